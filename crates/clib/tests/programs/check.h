/* Checks of the test programs: what does not hold is said, with its line, and ends the program. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "uzswap.h"

#define CHECK(condition)                                                              \
    do {                                                                              \
        if (!(condition)) {                                                           \
            fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
            exit(1);                                                                  \
        }                                                                             \
    } while (0)

/* The result of a call is the one that is expected. */
#define IS(expected, call)                                                                 \
    do {                                                                                   \
        int result_ = (call);                                                              \
        if (result_ != (expected)) {                                                       \
            fprintf(stderr, "%s:%d: %s: %s instead of %s\n", __FILE__, __LINE__, #call,    \
                    uzswap_strerror(result_), uzswap_strerror(expected));                  \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

/* Fills a page that compresses to about half and is different for each seed. */
static inline void fill(unsigned char *page, uint64_t seed) {
    uint64_t x = seed * 0x9E3779B97F4A7C15u | 1;
    for (int at = 0; at < UZSWAP_PAGE_BYTES; at += 8) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        uint64_t word = at % 16 ? seed : x;
        memcpy(page + at, &word, 8);
    }
}

static inline int is_filled(const unsigned char *page, uint64_t seed) {
    unsigned char expected[UZSWAP_PAGE_BYTES];
    fill(expected, seed);
    return memcmp(page, expected, UZSWAP_PAGE_BYTES) == 0;
}

static inline uzswap_cache *opened(uint64_t memory_bytes, const char *store_directory) {
    struct uzswap_config config = {
        .size = sizeof config, .memory_bytes = memory_bytes, .store_directory = store_directory};
    uzswap_cache *cache;
    IS(UZSWAP_OK, uzswap_cache_open(&config, &cache));
    return cache;
}
