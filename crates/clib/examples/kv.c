/*
 * A store of values that is larger than its memory: keys in a table, values packed into pages,
 * pages in uzswap's cache, which compresses them and writes the coldest to a directory.
 *
 *     cc -O2 kv.c $(pkg-config --cflags --libs uzswap) -o kv
 *     ./kv [VALUES [MEMORY_MIB [DIRECTORY]]]
 *
 *   put(key, value) --> slot: page, offset, length --> [value|value|val...] the open page, as it is
 *                                                       [ page ][ page ][ page ]   in the cache
 * A value is never changed in place: its new form goes into the open page. What its page had of the
 * old one is lost, until nothing in that page is in use any more: then the page is dropped.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <uzswap.h>

/* A value and where it is. Length 0: the slot is free. */
struct slot {
    uint64_t key;
    uint32_t page;
    uint16_t offset, length;
};

struct kv {
    uzswap_cache *cache;
    struct slot *slots; /* a hash table, at most half full */
    size_t capacity, count;
    uint16_t *live;     /* bytes in use of each page */
    size_t live_capacity;
    uint32_t open;      /* the page that is being filled, and how far it is */
    uint16_t filled;
    unsigned char page[UZSWAP_PAGE_BYTES]; /* its bytes */
};

static void fail(const char *what, int result) {
    fprintf(stderr, "kv: %s: %s\n", what, uzswap_strerror(result));
    exit(1);
}

static void *memory(void *got) {
    if (!got) {
        fprintf(stderr, "kv: no memory for the keys\n");
        exit(1);
    }
    return got;
}

static struct kv *kv_open(uint64_t memory_bytes, const char *directory) {
    struct kv *kv = memory(calloc(1, sizeof *kv));
    struct uzswap_config config = {
        .size = sizeof config, .memory_bytes = memory_bytes, .store_directory = directory};
    int result = uzswap_cache_open(&config, &kv->cache);
    if (result != UZSWAP_OK) fail("cannot open the cache", result);
    kv->capacity = 1024;
    kv->slots = memory(calloc(kv->capacity, sizeof *kv->slots));
    kv->live_capacity = 1024;
    kv->live = memory(calloc(kv->live_capacity, sizeof *kv->live));
    return kv;
}

static void kv_close(struct kv *kv) {
    uzswap_cache_close(kv->cache);
    free(kv->slots);
    free(kv->live);
    free(kv);
}

/* The slot of a key, or the free one in which it would be. */
static struct slot *find(struct kv *kv, uint64_t key) {
    uint64_t hash = key * 0x9E3779B97F4A7C15u;
    size_t at = (hash >> 32) & (kv->capacity - 1);
    while (kv->slots[at].length && kv->slots[at].key != key) at = (at + 1) & (kv->capacity - 1);
    return &kv->slots[at];
}

static void grow(struct kv *kv) {
    struct slot *old = kv->slots;
    size_t old_capacity = kv->capacity;
    kv->capacity *= 2;
    kv->slots = memory(calloc(kv->capacity, sizeof *kv->slots));
    for (size_t i = 0; i < old_capacity; i++)
        if (old[i].length) *find(kv, old[i].key) = old[i];
    free(old);
}

/* Gives the open page to the cache and opens the next. */
static void turn_page(struct kv *kv) {
    /* Nothing in it may be in use any more. */
    if (kv->live[kv->open]) {
        memset(kv->page + kv->filled, 0, UZSWAP_PAGE_BYTES - kv->filled);
        int result = uzswap_cache_store(kv->cache, 0, kv->open, kv->page);
        if (result != UZSWAP_OK) fail("cannot store a page", result);
    }
    kv->open++;
    kv->filled = 0;
    if (kv->open == kv->live_capacity) {
        kv->live = memory(realloc(kv->live, 2 * kv->live_capacity * sizeof *kv->live));
        memset(kv->live + kv->live_capacity, 0, kv->live_capacity * sizeof *kv->live);
        kv->live_capacity *= 2;
    }
}

/* What a slot has is not in use any more. */
static void let_go(struct kv *kv, struct slot *slot) {
    kv->live[slot->page] -= slot->length;
    if (kv->live[slot->page] == 0 && slot->page != kv->open)
        uzswap_cache_drop(kv->cache, 0, slot->page);
}

/* Sets the value of a key: 1 to 4096 bytes. */
static void kv_put(struct kv *kv, uint64_t key, const void *value, uint16_t length) {
    if (length == 0 || length > UZSWAP_PAGE_BYTES)
        fail("a value is 1 to 4096 bytes", UZSWAP_INVALID);
    if (2 * (kv->count + 1) > kv->capacity) grow(kv);
    if (kv->filled + length > UZSWAP_PAGE_BYTES) turn_page(kv);
    struct slot *slot = find(kv, key);
    if (slot->length) let_go(kv, slot);
    else kv->count++;
    memcpy(kv->page + kv->filled, value, length);
    *slot = (struct slot){key, kv->open, kv->filled, length};
    kv->filled += length;
    kv->live[kv->open] += length;
}

/* Copies the value of a key; its length, or 0 if there is none. */
static uint16_t kv_get(struct kv *kv, uint64_t key, void *value) {
    unsigned char page[UZSWAP_PAGE_BYTES];
    const struct slot *slot = find(kv, key);
    if (!slot->length) return 0;
    const unsigned char *bytes = kv->page;
    if (slot->page != kv->open) {
        int result = uzswap_cache_load(kv->cache, 0, slot->page, page);
        if (result != UZSWAP_OK) fail("cannot load a page", result);
        bytes = page;
    }
    memcpy(value, bytes + slot->offset, slot->length);
    return slot->length;
}

/* ------------------------------------------------------------------------- a use of it, checked */

static uint64_t random_state = 1;

static uint64_t random_number(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* The value of a key in its nth version: a record in text, of 200 to 700 bytes. */
static uint16_t make_value(uint64_t key, unsigned version, char *value) {
    int at = sprintf(value, "{\"key\": %llu, \"version\": %u, \"tags\": [", (unsigned long long)key,
                     version);
    uint64_t x = key * 0x9E3779B97F4A7C15u + version;
    int end = 200 + (int)(x >> 32) % 500;
    while (at < end) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        at += sprintf(value + at, "\"tag-%04x\", ", (unsigned)(x >> 48));
    }
    return (uint16_t)at;
}

static void check(struct kv *kv, uint64_t key, unsigned version) {
    char value[UZSWAP_PAGE_BYTES], expected[UZSWAP_PAGE_BYTES];
    uint16_t length = kv_get(kv, key, value), expected_length = make_value(key, version, expected);
    if (length != expected_length || memcmp(value, expected, length) != 0) {
        fprintf(stderr, "kv: key %llu has another value\n", (unsigned long long)key);
        exit(1);
    }
}

int main(int argc, char **argv) {
    uint64_t values = argc > 1 ? strtoull(argv[1], NULL, 10) : 300000;
    uint64_t memory_bytes = (argc > 2 ? strtoull(argv[2], NULL, 10) : 32) << 20;
    struct kv *kv = kv_open(memory_bytes, argc > 3 ? argv[3] : "/tmp");
    char value[UZSWAP_PAGE_BYTES];
    uint64_t bytes = 0;
    for (uint64_t key = 0; key < values; key++) {
        uint16_t length = make_value(key, 1, value);
        kv_put(kv, key, value, length);
        bytes += length;
    }
    /* Every tenth is changed, then all are read at random, and some that are not there. */
    for (uint64_t key = 0; key < values; key += 10)
        kv_put(kv, key, value, make_value(key, 2, value));
    for (uint64_t i = 0; i < values; i++) {
        uint64_t key = random_number() % values;
        check(kv, key, key % 10 ? 1 : 2);
    }
    if (kv_get(kv, values, value)) fail("a key that was never put has a value", UZSWAP_CORRUPT);

    struct uzswap_cache_stats stats = {.size = sizeof stats};
    int result = uzswap_cache_stats(kv->cache, &stats);
    if (result != UZSWAP_OK) fail("no statistics", result);
    printf("%llu values of %llu MiB in %llu MiB of memory; %llu MiB in the store\n",
           (unsigned long long)kv->count, (unsigned long long)(bytes >> 20),
           (unsigned long long)(stats.used_bytes >> 20),
           (unsigned long long)(stats.store_bytes >> 20));
    kv_close(kv);
    return 0;
}
