/* Each function of the cache, each way that it can succeed or fail. Argument: a directory. */
#include "check.h"

static unsigned char page[UZSWAP_PAGE_BYTES];

static struct uzswap_cache_stats stats_of(uzswap_cache *cache) {
    struct uzswap_cache_stats stats = {.size = sizeof stats};
    IS(UZSWAP_OK, uzswap_cache_stats(cache, &stats));
    CHECK(stats.size == sizeof stats);
    return stats;
}

/* A result for which `cache` must be null, whatever it was. */
static void is_refused(int expected, const struct uzswap_config *config) {
    uzswap_cache *cache = (uzswap_cache *)page;
    IS(expected, uzswap_cache_open(config, &cache));
    CHECK(cache == NULL);
}

static void opens_or_says_why_not(const char *directory) {
    struct uzswap_config good = {.size = sizeof good, .memory_bytes = 1 << 20}, bad = good;
    IS(UZSWAP_INVALID, uzswap_cache_open(&good, NULL));
    is_refused(UZSWAP_INVALID, NULL);
    bad.size = 0;
    is_refused(UZSWAP_INVALID, &bad);
    bad.size = sizeof bad - 1;
    is_refused(UZSWAP_INVALID, &bad);
    bad.size = (size_t)-1;
    is_refused(UZSWAP_INVALID, &bad);
    bad = good, bad.flags = 2;
    is_refused(UZSWAP_INVALID, &bad);
    for (int i = 0; i < 4; i++) {
        const char *const names[] = {"", "snappy", "zstd:level=99", "\xff\xfe"};
        bad = good, bad.compressor = names[i];
        is_refused(UZSWAP_COMPRESSOR, &bad);
    }
    bad = good, bad.store_directory = "/no/such/directory";
    is_refused(UZSWAP_STORE, &bad);
    CHECK(errno == ENOENT);
    bad.store_directory = "/dev/null";
    is_refused(UZSWAP_STORE, &bad);
    CHECK(errno == ENOTDIR);

    /* A program that is newer than the library: zero in what is not known. */
    struct {
        struct uzswap_config known;
        uint64_t more;
    } newer = {good, 0};
    newer.known.size = sizeof newer;
    uzswap_cache *cache;
    IS(UZSWAP_OK, uzswap_cache_open(&newer.known, &cache));
    uzswap_cache_close(cache);
    newer.more = 1;
    is_refused(UZSWAP_INVALID, &newer.known);

    const char *const names[] = {"words",   "lz4",  "lz4hc",   "lzo", "lzo-rle",
                                 "zstd:level=1", "zstd", "deflate", "842", "none"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        for (uint64_t flags = 0; flags < 2; flags++) {
            struct uzswap_config each = {.size = sizeof each, .memory_bytes = 64 << 10,
                .compressor = names[i], .store_directory = directory, .flags = flags};
            IS(UZSWAP_OK, uzswap_cache_open(&each, &cache));
            for (uint64_t n = 0; n < 64; n++) {
                fill(page, n);
                IS(UZSWAP_OK, uzswap_cache_store(cache, 0, n, page));
            }
            for (uint64_t n = 0; n < 64; n++) {
                IS(UZSWAP_OK, uzswap_cache_load(cache, 0, n, page));
                CHECK(is_filled(page, n));
            }
            CHECK(stats_of(cache).store_pages > 0);
            uzswap_cache_close(cache);
        }
    }
    uzswap_cache_close(NULL);
}

static void nothing_is_null(uzswap_cache *cache) {
    struct uzswap_cache_stats stats = {.size = sizeof stats};
    IS(UZSWAP_INVALID, uzswap_cache_store(NULL, 0, 0, page));
    IS(UZSWAP_INVALID, uzswap_cache_store(cache, 0, 0, NULL));
    IS(UZSWAP_INVALID, uzswap_cache_load(NULL, 0, 0, page));
    IS(UZSWAP_INVALID, uzswap_cache_load(cache, 0, 0, NULL));
    IS(UZSWAP_INVALID, uzswap_cache_drop(NULL, 0, 0));
    IS(UZSWAP_INVALID, uzswap_cache_drop_area(NULL, 0, NULL));
    IS(UZSWAP_INVALID, uzswap_cache_shrink(NULL, 0, NULL));
    IS(UZSWAP_INVALID, uzswap_cache_set_memory(NULL, 0, NULL));
    IS(UZSWAP_INVALID, uzswap_cache_stats(NULL, &stats));
    IS(UZSWAP_INVALID, uzswap_cache_stats(cache, NULL));
    IS(UZSWAP_INVALID, uzswap_cache_before_fork(NULL));
    IS(UZSWAP_INVALID, uzswap_cache_after_fork(NULL, 1));
    IS(UZSWAP_INVALID, uzswap_cache_after_fork(cache, 1));
    stats.size = 8;
    IS(UZSWAP_INVALID, uzswap_cache_stats(cache, &stats));
}

static void keys_have_bounds(uzswap_cache *cache) {
    IS(UZSWAP_OUT_OF_RANGE, uzswap_cache_store(cache, UZSWAP_AREAS, 0, page));
    IS(UZSWAP_OUT_OF_RANGE, uzswap_cache_store(cache, UINT32_MAX, 0, page));
    IS(UZSWAP_OUT_OF_RANGE, uzswap_cache_store(cache, 0, UZSWAP_PAGES, page));
    IS(UZSWAP_OUT_OF_RANGE, uzswap_cache_store(cache, 0, UINT64_MAX, page));
    IS(UZSWAP_OUT_OF_RANGE, uzswap_cache_load(cache, UZSWAP_AREAS, 0, page));
    IS(UZSWAP_OUT_OF_RANGE, uzswap_cache_drop(cache, 0, UZSWAP_PAGES));
    IS(UZSWAP_OUT_OF_RANGE, uzswap_cache_drop_area(cache, UZSWAP_AREAS, NULL));
    fill(page, 3);
    IS(UZSWAP_OK, uzswap_cache_store(cache, UZSWAP_AREAS - 1, 1 << 20, page));
    memset(page, 0, sizeof page);
    IS(UZSWAP_OK, uzswap_cache_load(cache, UZSWAP_AREAS - 1, 1 << 20, page));
    CHECK(is_filled(page, 3));
    uint64_t pages = 0;
    IS(UZSWAP_OK, uzswap_cache_drop_area(cache, UZSWAP_AREAS - 1, &pages));
    CHECK(pages == 1);
}

static void pages_come_back_until_they_are_dropped(uzswap_cache *cache) {
    /* At an odd address, and not a byte beyond. */
    unsigned char *odd = malloc(1 + UZSWAP_PAGE_BYTES);
    CHECK(odd);
    for (uint64_t n = 0; n < 100; n++) {
        fill(odd + 1, n);
        IS(UZSWAP_OK, uzswap_cache_store(cache, 1, n, odd + 1));
    }
    for (uint64_t n = 0; n < 100; n++) {
        IS(UZSWAP_OK, uzswap_cache_load(cache, 1, n, odd + 1));
        CHECK(is_filled(odd + 1, n));
    }
    fill(odd + 1, 1000);
    IS(UZSWAP_OK, uzswap_cache_store(cache, 1, 7, odd + 1));
    IS(UZSWAP_OK, uzswap_cache_load(cache, 1, 7, page));
    CHECK(is_filled(page, 1000));
    free(odd);

    IS(UZSWAP_OK, uzswap_cache_drop(cache, 1, 7));
    IS(UZSWAP_NOT_FOUND, uzswap_cache_drop(cache, 1, 7));
    IS(UZSWAP_NOT_FOUND, uzswap_cache_load(cache, 1, 7, page));
    CHECK(is_filled(page, 1000));
    IS(UZSWAP_NOT_FOUND, uzswap_cache_load(cache, 2, 8, page));
    IS(UZSWAP_OK, uzswap_cache_drop_area(cache, 1, NULL));
    IS(UZSWAP_NOT_FOUND, uzswap_cache_load(cache, 1, 8, page));
    struct uzswap_cache_stats stats = stats_of(cache);
    CHECK(stats.pages == 0 && stats.missing_loads == 3 && stats.store_error == 0);
}

static void a_full_cache_refuses(void) {
    uzswap_cache *cache = opened(1 << 20, NULL);
    uint64_t stored = 0;
    int result;
    do {
        fill(page, stored);
        result = uzswap_cache_store(cache, 0, stored, page);
    } while (result == UZSWAP_OK && ++stored < 10000);
    IS(UZSWAP_FULL, result);
    CHECK(stored > 200 && stored < 1000);
    for (uint64_t n = 0; n < stored; n++) {
        IS(UZSWAP_OK, uzswap_cache_load(cache, 0, n, page));
        CHECK(is_filled(page, n));
    }
    uint64_t used = 0;
    IS(UZSWAP_OK, uzswap_cache_set_memory(cache, 2 << 20, &used));
    CHECK(used > 0);
    fill(page, stored);
    IS(UZSWAP_OK, uzswap_cache_store(cache, 0, stored, page));
    CHECK(stats_of(cache).memory_bytes == 2 << 20);
    uzswap_cache_close(cache);
}

static void a_store_takes_what_memory_does_not(const char *directory) {
    uzswap_cache *cache = opened(1 << 20, directory);
    for (uint64_t n = 0; n < 3000; n++) {
        fill(page, n);
        IS(UZSWAP_OK, uzswap_cache_store(cache, 0, n, page));
    }
    struct uzswap_cache_stats stats = stats_of(cache);
    CHECK(stats.pages == 3000 && stats.store_pages > 1500 && stats.store_bytes > 3 << 20);
    uint64_t used = 0;
    IS(UZSWAP_OK, uzswap_cache_shrink(cache, 0, &used));
    CHECK(used < 512 << 10 && stats_of(cache).memory_pages == 0);
    for (uint64_t n = 0; n < 3000; n++) {
        IS(UZSWAP_OK, uzswap_cache_load(cache, 0, n, page));
        CHECK(is_filled(page, n));
    }
    CHECK(stats_of(cache).store_loads > 1500);
    uzswap_cache_close(cache);
}

static void statistics_are_as_long_as_the_caller_knows(uzswap_cache *cache) {
    struct {
        struct uzswap_cache_stats known;
        uint64_t more, behind;
    } newer;
    memset(&newer, 0xaa, sizeof newer);
    newer.known.size = sizeof newer.known + sizeof newer.more;
    IS(UZSWAP_OK, uzswap_cache_stats(cache, &newer.known));
    CHECK(newer.known.size == sizeof newer.known);
    CHECK(newer.more == 0 && newer.behind == 0xaaaaaaaaaaaaaaaa);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    CHECK(strlen(uzswap_version()) >= 5);
    CHECK(strstr(uzswap_strerror(UZSWAP_FULL), "room"));
    CHECK(strstr(uzswap_strerror(-1), "unknown") && strstr(uzswap_strerror(1000), "unknown"));
    for (int result = UZSWAP_OK; result <= UZSWAP_REFUSED; result++)
        CHECK(!strstr(uzswap_strerror(result), "unknown"));
    opens_or_says_why_not(argv[1]);
    uzswap_cache *cache = opened(16 << 20, NULL);
    nothing_is_null(cache);
    keys_have_bounds(cache);
    pages_come_back_until_they_are_dropped(cache);
    statistics_are_as_long_as_the_caller_knows(cache);
    uzswap_cache_close(cache);
    a_full_cache_refuses();
    a_store_takes_what_memory_does_not(argv[1]);
    /* Without uzswap; with it, `managed.c`. */
    struct uzswap_self_status status = {.size = sizeof status};
    uint64_t bytes = 7;
    CHECK(uzswap_self_is_managed() == 0);
    IS(UZSWAP_INVALID, uzswap_self_status(NULL));
    IS(UZSWAP_NOT_MANAGED, uzswap_self_status(&status));
    IS(UZSWAP_NOT_MANAGED, uzswap_self_set_memory(1 << 30, &bytes));
    IS(UZSWAP_NOT_MANAGED, uzswap_self_reclaim(&bytes));
    IS(UZSWAP_NOT_MANAGED, uzswap_self_advise(page, sizeof page, UZSWAP_COLD));
    IS(UZSWAP_INVALID, uzswap_self_advise(NULL, 1, UZSWAP_COLD));
    IS(UZSWAP_INVALID, uzswap_self_advise(page, sizeof page, 3));
    CHECK(bytes == 7 && status.run == 0);
    puts("done");
    return 0;
}
