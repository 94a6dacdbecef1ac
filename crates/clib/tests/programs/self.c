/* A program that is not linked with the library: it says whether it finds the library and whether
 * it is managed, and checks that the functions go by that. In C and in C++. */
#include <stdio.h>
#include <stdlib.h>

#include "uzswap_self.h"

enum { PAGE_BYTES = 4096, DATA_BYTES = 32 << 20 };

#define IS(expected, value)                                                                    \
    do {                                                                                       \
        long long value_ = (long long)(value);                                                 \
        if (value_ != (long long)(expected)) {                                                 \
            fprintf(stderr, "%s:%d: %s: %lld instead of %lld\n", __FILE__, __LINE__, #value,   \
                    value_, (long long)(expected));                                            \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)

static int has_library(void) {
    int (*call)(void);
    return uzswap_self_find_("uzswap_self_is_managed", &call);
}

/* Twice: what was found, or not, is remembered. */
static void nothing_is_done(void) {
    static unsigned char data[2 * PAGE_BYTES];
    struct uzswap_self_status status;
    uint64_t bytes = 7;
    memset(&status, 0, sizeof status);
    status.size = sizeof status;
    for (int time = 0; time < 2; time++) {
        IS(UZSWAP_NOT_MANAGED, uzswap_self_status(&status));
        IS(UZSWAP_NOT_MANAGED, uzswap_self_set_memory(64 << 20, &bytes));
        IS(UZSWAP_NOT_MANAGED, uzswap_self_reclaim(&bytes));
        IS(UZSWAP_NOT_MANAGED, uzswap_self_advise(data, sizeof data, UZSWAP_OUT));
    }
    IS(7, bytes);
    IS(0, status.run);
}

static unsigned char byte_of(size_t at) { return (unsigned char)(at / PAGE_BYTES % 251 + 1); }

static void all_is_done(void) {
    unsigned char *data = (unsigned char *)malloc(DATA_BYTES);
    struct uzswap_self_status status;
    uint64_t limit_bytes = 0, freed_bytes = 0;
    IS(1, data != NULL);
    for (size_t at = 0; at < DATA_BYTES; at++) data[at] = byte_of(at);
    memset(&status, 0, sizeof status);
    IS(UZSWAP_INVALID, uzswap_self_status(&status));
    status.size = sizeof status;
    IS(UZSWAP_OK, uzswap_self_status(&status));
    IS(sizeof status, status.size);
    IS(64 << 20, status.limit_bytes);
    IS(1, status.run > 0 && status.own_used_bytes > DATA_BYTES / 2);
    IS(UZSWAP_OK, uzswap_self_advise(data, DATA_BYTES, UZSWAP_COLD));
    IS(UZSWAP_OK, uzswap_self_reclaim(&freed_bytes));
    IS(1, freed_bytes > 4 << 20);
    IS(UZSWAP_OK, uzswap_self_set_memory(48 << 20, &limit_bytes));
    IS(48 << 20, limit_bytes);
    IS(UZSWAP_REFUSED, uzswap_self_set_memory(1, NULL));
    for (size_t at = 0; at < DATA_BYTES; at++) IS(byte_of(at), data[at]);
    free(data);
}

int main(void) {
    int is_managed = uzswap_self_is_managed();
    if (is_managed) all_is_done();
    else nothing_is_done();
    printf("%s, %s\n", has_library() ? "library" : "no library",
           is_managed ? "managed" : "not managed");
    return 0;
}
