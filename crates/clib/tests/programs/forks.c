/* Forks beside threads that use the cache: who was announced goes on, who was not is told.
 * Arguments: a directory, and how many forks. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { PAGES = 700 };

static uzswap_cache *cache;
static atomic_bool ends;

/* Works in an area of its own until it is told to end. */
static void *work(void *argument) {
    (void)argument;
    unsigned char page[UZSWAP_PAGE_BYTES];
    for (uint64_t n = 0; !atomic_load(&ends); n++) {
        fill(page, n);
        IS(UZSWAP_OK, uzswap_cache_store(cache, 1, n % 300, page));
        IS(UZSWAP_OK, uzswap_cache_load(cache, 1, n % 300, page));
        CHECK(is_filled(page, n));
    }
    return NULL;
}

static void has_pages(uint64_t shift) {
    unsigned char page[UZSWAP_PAGE_BYTES];
    for (uint64_t n = 0; n < PAGES; n++) {
        IS(UZSWAP_OK, uzswap_cache_load(cache, 0, n, page));
        CHECK(is_filled(page, n + shift));
    }
}

static void store_pages(uint64_t shift) {
    unsigned char page[UZSWAP_PAGE_BYTES];
    for (uint64_t n = 0; n < PAGES; n++) {
        fill(page, n + shift);
        IS(UZSWAP_OK, uzswap_cache_store(cache, 0, n, page));
    }
}

/* In a child that was not announced. */
static void is_told(void) {
    unsigned char page[UZSWAP_PAGE_BYTES] = {0};
    struct uzswap_cache_stats stats = {.size = sizeof stats};
    IS(UZSWAP_FORKED, uzswap_cache_store(cache, 0, 0, page));
    IS(UZSWAP_FORKED, uzswap_cache_load(cache, 0, 0, page));
    IS(UZSWAP_FORKED, uzswap_cache_drop(cache, 0, 0));
    IS(UZSWAP_FORKED, uzswap_cache_drop_area(cache, 0, NULL));
    IS(UZSWAP_FORKED, uzswap_cache_shrink(cache, 0, NULL));
    IS(UZSWAP_FORKED, uzswap_cache_set_memory(cache, 0, NULL));
    IS(UZSWAP_FORKED, uzswap_cache_stats(cache, &stats));
    IS(UZSWAP_FORKED, uzswap_cache_before_fork(cache));
    uzswap_cache_close(cache);
    /* One of its own works. */
    cache = opened(1 << 20, NULL);
    fill(page, 5);
    IS(UZSWAP_OK, uzswap_cache_store(cache, 0, 5, page));
    IS(UZSWAP_OK, uzswap_cache_load(cache, 0, 5, page));
    CHECK(is_filled(page, 5));
    uzswap_cache_close(cache);
}

/* In a child that was announced: it has what there was, and changes nothing of the parent's. */
static void goes_on(void) {
    has_pages(0);
    store_pages(1);
    has_pages(1);
    IS(UZSWAP_OK, uzswap_cache_shrink(cache, 0, NULL));
    has_pages(1);
    /* Its own child, not announced. */
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        is_told();
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    has_pages(1);
    uzswap_cache_close(cache);
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    cache = opened(512 << 10, argv[1]);
    store_pages(0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, work, NULL) == 0);
    for (int i = 0; i < atoi(argv[2]); i++) {
        int is_announced = i % 2;
        if (is_announced) IS(UZSWAP_OK, uzswap_cache_before_fork(cache));
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            if (is_announced) {
                IS(UZSWAP_OK, uzswap_cache_after_fork(cache, 0));
                goes_on();
            } else {
                is_told();
            }
            _exit(0);
        }
        if (is_announced) IS(UZSWAP_OK, uzswap_cache_after_fork(cache, pid));
        has_pages(0);
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    }
    /* A fork that failed. */
    IS(UZSWAP_OK, uzswap_cache_before_fork(cache));
    IS(UZSWAP_OK, uzswap_cache_after_fork(cache, -1));
    IS(UZSWAP_INVALID, uzswap_cache_after_fork(cache, -1));
    has_pages(0);
    atomic_store(&ends, 1);
    CHECK(pthread_join(thread, NULL) == 0);
    has_pages(0);
    uzswap_cache_close(cache);
    puts("done");
    return 0;
}
