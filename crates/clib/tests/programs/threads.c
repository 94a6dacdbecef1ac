/* Several threads on one cache: each page that is loaded is one that was stored under its key, the
 * newest of the thread that owns the key. Arguments: a directory, and rounds. */
#include <pthread.h>

#include "check.h"

enum { THREADS = 4, PAGES = 400 };

static uzswap_cache *cache;
static int rounds;

/* What was stored is a key and a count, of which a page is made. */
static uint64_t seed_of(uint64_t key, uint64_t count) { return key << 32 | count; }

static void *work(void *argument) {
    uint64_t me = (uintptr_t)argument;
    unsigned char page[UZSWAP_PAGE_BYTES];
    uint64_t counts[PAGES] = {0}, random = me + 1;
    for (int i = 0; i < rounds; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint64_t at = (random >> 33) % PAGES, key = at * THREADS + me;
        switch (random >> 60) {
        case 0:
            IS(counts[at] ? UZSWAP_OK : UZSWAP_NOT_FOUND, uzswap_cache_drop(cache, 0, key));
            counts[at] = 0;
            break;
        case 1: {
            /* A key of another thread's: whatever comes is whole. */
            uint64_t other = at * THREADS + (me + 1) % THREADS, word;
            int result = uzswap_cache_load(cache, 0, other, page);
            CHECK(result == UZSWAP_OK || result == UZSWAP_NOT_FOUND);
            memcpy(&word, page + 8, 8);
            CHECK(result == UZSWAP_NOT_FOUND || (word >> 32 == other && is_filled(page, word)));
            break;
        }
        case 2:
            if (i % 16 == 0) IS(UZSWAP_OK, uzswap_cache_shrink(cache, 256 << 10, NULL));
            break;
        case 3: {
            struct uzswap_cache_stats stats = {.size = sizeof stats};
            IS(UZSWAP_OK, uzswap_cache_stats(cache, &stats));
            CHECK(stats.pages <= THREADS * PAGES && stats.corrupt_loads == 0);
            break;
        }
        case 4 ... 8:
            fill(page, seed_of(key, ++counts[at]));
            IS(UZSWAP_OK, uzswap_cache_store(cache, 0, key, page));
            break;
        default:
            if (counts[at]) {
                IS(UZSWAP_OK, uzswap_cache_load(cache, 0, key, page));
                CHECK(is_filled(page, seed_of(key, counts[at])));
            } else {
                IS(UZSWAP_NOT_FOUND, uzswap_cache_load(cache, 0, key, page));
            }
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    rounds = atoi(argv[2]);
    cache = opened(1 << 20, argv[1]);
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    uzswap_cache_close(cache);
    puts("done");
    return 0;
}
