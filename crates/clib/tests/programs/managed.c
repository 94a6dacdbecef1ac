/* A program that sees and steers its own run; under `uzswap run --memory 64M`. It also has a cache,
 * whose memory is managed like all other, and forks. Argument: a directory. */
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { BYTES = 32 << 20 };

static struct uzswap_self_status now(void) {
    struct uzswap_self_status status = {.size = sizeof status};
    IS(UZSWAP_OK, uzswap_self_status(&status));
    CHECK(status.size == sizeof status);
    return status;
}

static void is_whole(const unsigned char *data) {
    for (size_t at = 0; at < BYTES; at += UZSWAP_PAGE_BYTES) CHECK(is_filled(data + at, at));
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    CHECK(uzswap_self_is_managed() == 1);
    unsigned char *data = aligned_alloc(UZSWAP_PAGE_BYTES, BYTES);
    CHECK(data);
    for (size_t at = 0; at < BYTES; at += UZSWAP_PAGE_BYTES) fill(data + at, at);

    struct uzswap_self_status before = now();
    CHECK(before.run > 0 && before.processes == 1 && before.limit_bytes == 64 << 20);
    CHECK(before.own_used_bytes > 8 << 20 && before.used_bytes >= before.own_used_bytes);
    CHECK(before.own_needed_bytes > BYTES && before.activity <= UZSWAP_WAITS);

    /* Some pages may be in use by uzswap at that moment, and stay. */
    IS(UZSWAP_OK, uzswap_self_advise(data, BYTES, UZSWAP_OUT));
    uint64_t out = now().resident_bytes;
    CHECK(out + (16 << 20) <= before.resident_bytes);
    IS(UZSWAP_OK, uzswap_self_advise(data, BYTES, UZSWAP_NEED));
    uint64_t back = now().resident_bytes;
    CHECK(back >= out + (8 << 20));
    IS(UZSWAP_OK, uzswap_self_advise(data, BYTES, UZSWAP_COLD));
    /* A part of one page has no whole page in it. */
    IS(UZSWAP_OK, uzswap_self_advise(data + 1, 100, UZSWAP_OUT));
    is_whole(data);

    uint64_t limit = 0, freed = 0;
    IS(UZSWAP_OK, uzswap_self_set_memory(48 << 20, &limit));
    CHECK(limit == 48 << 20 && now().limit_bytes == 48 << 20);
    IS(UZSWAP_REFUSED, uzswap_self_set_memory(1, NULL));
    CHECK(now().limit_bytes == 48 << 20);
    IS(UZSWAP_OK, uzswap_self_reclaim(&freed));
    CHECK(freed > 4 << 20);
    is_whole(data);

    unsigned char page[UZSWAP_PAGE_BYTES];
    uzswap_cache *cache = opened(4 << 20, argv[1]);
    for (uint64_t n = 0; n < 4000; n++) {
        fill(page, n);
        IS(UZSWAP_OK, uzswap_cache_store(cache, 0, n, page));
    }
    IS(UZSWAP_OK, uzswap_self_reclaim(NULL));
    for (int is_announced = 0; is_announced < 2; is_announced++) {
        if (is_announced) IS(UZSWAP_OK, uzswap_cache_before_fork(cache));
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (is_announced) IS(UZSWAP_OK, uzswap_cache_after_fork(cache, pid));
        if (pid == 0) {
            CHECK(now().run == before.run && now().processes == 2);
            IS(is_announced ? UZSWAP_OK : UZSWAP_FORKED, uzswap_cache_load(cache, 0, 7, page));
            CHECK(!is_announced || is_filled(page, 7));
            uzswap_cache_close(cache);
            _exit(0);
        }
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    }
    for (uint64_t n = 0; n < 4000; n++) {
        IS(UZSWAP_OK, uzswap_cache_load(cache, 0, n, page));
        CHECK(is_filled(page, n));
    }
    uzswap_cache_close(cache);
    free(data);
    puts("done");
    return 0;
}
