// churn_lanes.h: pages that all threads write at the same time.
//
// Every page of the arena is divided into lanes, one for each worker: only the owner writes it, and
// remembers exactly what it wrote. An update that gets lost because the page was taken away between
// a look and a write shows as an old number. All threads read each other's lanes (the tag must be
// right) and share one atomic counter for each page, whose sum is known at the end.
#pragma once
#include "churn.h"
#include <fcntl.h>

#define LANE_WORDS 16
#define COUNTER_WORD (WORDS - 1)

static uint64_t *arena;
static size_t arena_pages;
// The value that each worker last wrote to each page; managed memory itself.
static uint32_t *lane_written[MAX_THREADS];
static atomic_ulong counted;
static int arena_threads;

static _Atomic uint64_t *lane_at(size_t page, int worker) {
    return (_Atomic uint64_t *)(arena + page * WORDS + worker * LANE_WORDS);
}

static void lanes_start(size_t pages, int threads) {
    arena_pages = pages, arena_threads = threads;
    arena = map(pages * PAGE);
    for (int i = 0; i < threads; i++) lane_written[i] = map(pages * sizeof(uint32_t));
}

static void lane_check_tags(size_t page) {
    for (int worker = 0; worker < arena_threads; worker++)
        for (int i = 0; i < LANE_WORDS; i += 5) {
            uint64_t word = atomic_load_explicit(lane_at(page, worker) + i, memory_order_relaxed);
            if (word && word >> 32 != page)
                fail("arena page %zu holds %#llx", page, (unsigned long long)word);
        }
}

static void lane_step(void) {
    self->doing = "lanes";
    uint32_t *written = lane_written[self->id];
    for (int n = 0; n < 64; n++) {
        // Half of the steps in a hot part, so that writers meet on a page.
        size_t page = below(n % 2 ? arena_pages : arena_pages / 16 + 1);
        _Atomic uint64_t *lane = lane_at(page, self->id);
        uint64_t old = written[page] ? (uint64_t)page << 32 | written[page] : 0;
        for (int i = 0; i < LANE_WORDS; i++) {
            uint64_t word = atomic_load_explicit(lane + i, memory_order_relaxed);
            if (word != old)
                fail("a lost update: arena page %zu lane %d word %d is %#llx, this thread wrote "
                     "%#llx",
                     page, self->id, i, (unsigned long long)word, (unsigned long long)old);
        }
        uint64_t fresh = (uint64_t)page << 32 | ++written[page];
        for (int i = 0; i < LANE_WORDS; i++)
            atomic_store_explicit(lane + i, fresh, memory_order_relaxed);
        atomic_fetch_add_explicit((_Atomic uint64_t *)(arena + page * WORDS + COUNTER_WORD), 1,
                                  memory_order_relaxed);
        counted++;
        if (n % 8 == 0) lane_check_tags(page);
    }
}

// The kernel writes one lane while other threads write theirs, to the same page.
static void lane_by_kernel(int zero, int sink) {
    self->doing = "lane by kernel";
    uint32_t *written = lane_written[self->id];
    size_t page = below(arena_pages);
    void *lane = (void *)lane_at(page, self->id);
    if (must(read(zero, lane, LANE_WORDS * 8)) != LANE_WORDS * 8) fail("a short read of /dev/zero");
    written[page] = 0;
    for (int i = 0; i < LANE_WORDS; i++)
        if (lane_at(page, self->id)[i])
            fail("a lost update by the kernel: arena page %zu word %d", page, i);
    if (must(write(sink, lane, LANE_WORDS * 8)) != LANE_WORDS * 8)
        fail("a short write to /dev/null");
}

static void lanes_check(void) {
    uint64_t sum = 0;
    for (size_t page = 0; page < arena_pages; page++) {
        sum += arena[page * WORDS + COUNTER_WORD];
        for (int worker = 0; worker < arena_threads; worker++) {
            uint32_t n = lane_written[worker][page];
            uint64_t expected = n ? (uint64_t)page << 32 | n : 0;
            for (int i = 0; i < LANE_WORDS; i++)
                if (lane_at(page, worker)[i] != expected)
                    fail("at the end: arena page %zu, lane %d", page, worker);
        }
    }
    if (sum != counted)
        fail("the counters of the arena sum up to %llu, not %lu", (unsigned long long)sum, counted);
}
