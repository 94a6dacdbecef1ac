// churn_regions.h: memory whose mapping is changed in every way that a program can, and checked all
// the time.
//
// A region belongs to whoever holds its lock. `version[i]` and `state[i]` say what page i must
// hold; a version is never used twice, so that an old copy is told from a new one. Between
// operations a region is readable and writable, but for *barrier* regions: their pages are
// read-only at random, and a write goes through a SIGSEGV handler that opens the page, as garbage
// collectors do it.
#pragma once
#include "churn.h"

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#ifndef MADV_COLD
#define MADV_COLD 20
#define MADV_PAGEOUT 21
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

#define REGIONS 24
#define MAX_PAGES 4096u

// The contents of a page: its version; zero; or either of the two (after MADV_FREE).
enum { WRITTEN, ZERO, FREED };

typedef struct {
    pthread_mutex_t lock;
    uint64_t uid;
    char *base;
    size_t pages, target_pages;
    uint32_t *version;
    uint8_t *state;
    int barrier;
    atomic_ulong barrier_hits;
} Region;

static Region regions[REGIONS];
static atomic_ulong next_uid = 1;

static uint64_t *page_at(Region *r, size_t i) { return (uint64_t *)(r->base + i * PAGE); }

static void region_make(Region *r, size_t pages) {
    r->uid = next_uid++;
    r->pages = pages;
    r->base = map(pages * PAGE);
    memset(r->version, 0, MAX_PAGES * sizeof *r->version);
    memset(r->state, ZERO, MAX_PAGES);
}

static void region_init(Region *r, size_t pages, int barrier) {
    pthread_mutex_init(&r->lock, NULL);
    r->version = map(MAX_PAGES * sizeof *r->version);
    r->state = map(MAX_PAGES);
    r->target_pages = pages;
    r->barrier = barrier;
    region_make(r, pages);
}

static void check_page(Region *r, size_t i) {
    if (r->state[i] == FREED && page_is_zero(page_at(r, i))) return;
    page_check(page_at(r, i), r->uid, i, r->state[i] == ZERO ? 0 : r->version[i]);
}

static void check_range(Region *r, size_t first, size_t count) {
    for (size_t i = first; i < first + count; i++) check_page(r, i);
}

static void write_page(Region *r, size_t i) {
    self->barrier_region = r;
    page_fill(page_at(r, i), r->uid, i, ++r->version[i]);
    r->state[i] = WRITTEN;
}

static void mark_zero(Region *r, size_t first, size_t count) {
    memset(r->state + first, ZERO, count);
}

// The write barrier. It runs on a fault of this thread's own write to a region that it has locked.
static void on_segv(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    Region *r = self ? self->barrier_region : NULL;
    char *at = info->si_addr;
    if (!r || !r->barrier || at < r->base || at >= r->base + r->pages * PAGE)
        fail("SIGSEGV at %p", (void *)at);
    int saved = errno;
    must(mprotect((void *)((uintptr_t)at & ~(PAGE - 1)), PAGE, PROT_READ | PROT_WRITE));
    r->barrier_hits++;
    errno = saved;
}

// ---- operations; each takes a locked region and a range in it

static void op_write(Region *r, size_t first, size_t count) {
    for (size_t i = first; i < first + count; i++) write_page(r, i);
}

// Changes some words of pages in place: a read-modify-write, so that an older copy would show.
static void op_modify(Region *r, size_t first, size_t count) {
    for (size_t i = first; i < first + count; i += 3) {
        check_page(r, i);
        write_page(r, i);
    }
}

static void op_dontneed(Region *r, size_t first, size_t count) {
    must(madvise(r->base + first * PAGE, count * PAGE, MADV_DONTNEED));
    mark_zero(r, first, count);
    check_range(r, first, count < 4 ? count : 4);
}

static void op_free(Region *r, size_t first, size_t count) {
    must(madvise(r->base + first * PAGE, count * PAGE, MADV_FREE));
    for (size_t i = first; i < first + count; i++)
        if (r->state[i] == WRITTEN) r->state[i] = FREED;
}

static void op_advice(Region *r, size_t first, size_t count) {
    static const int harmless[] = {MADV_COLD,       MADV_PAGEOUT,       MADV_WILLNEED,
                                   MADV_SEQUENTIAL, MADV_NORMAL,        MADV_HUGEPAGE,
                                   MADV_NOHUGEPAGE, MADV_POPULATE_READ, MADV_POPULATE_WRITE};
    int advice = harmless[below(sizeof harmless / sizeof *harmless)];
    if (r->barrier && advice == MADV_POPULATE_WRITE) return; // refused on read-only pages
    // Not every kernel has every advice; what none may do is change a byte.
    if (madvise(r->base + first * PAGE, count * PAGE, advice) && errno != EINVAL &&
        errno != ENOMEM && errno != EAGAIN)
        fail("madvise %d: %s", advice, strerror(errno));
}

static void op_read_only(Region *r, size_t first, size_t count) {
    must(mprotect(r->base + first * PAGE, count * PAGE, PROT_READ));
    check_range(r, first, count);
    if (!r->barrier) must(mprotect(r->base + first * PAGE, count * PAGE, PROT_READ | PROT_WRITE));
    else write_page(r, first + below(count));
}

static void op_none(Region *r, size_t first, size_t count) {
    must(mprotect(r->base + first * PAGE, count * PAGE, PROT_NONE));
    if (below(2)) sched_yield();
    // Part of it first, so that the kernel's mappings are split.
    must(mprotect(r->base + first * PAGE, PAGE, PROT_READ));
    must(mprotect(r->base + first * PAGE, count * PAGE, PROT_READ | PROT_WRITE));
    check_range(r, first, count);
}

// Code written at run time: pages that are executable for a while keep their bytes.
static void op_executable(Region *r, size_t first, size_t count) {
    must(mprotect(r->base + first * PAGE, count * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC));
    op_modify(r, first, count);
    check_range(r, first, count);
    must(mprotect(r->base + first * PAGE, count * PAGE, PROT_READ | PROT_WRITE));
}

static void op_lock(Region *r, size_t first, size_t count) {
    if (count > 8) count = 8;
    // RLIMIT_MEMLOCK may say no.
    if (mlock(r->base + first * PAGE, count * PAGE)) return;
    check_range(r, first, count);
    must(munlock(r->base + first * PAGE, count * PAGE));
}

// A hole, then a fresh mapping exactly there. Nobody else may get the hole meanwhile, so it is made
// by MAP_FIXED directly, or by PROT_NONE first.
static void op_map_over(Region *r, size_t first, size_t count) {
    char *at = r->base + first * PAGE;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (below(2)) must(mmap(at, count * PAGE, PROT_NONE, flags | MAP_NORESERVE, -1, 0));
    must(mmap(at, count * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0));
    mark_zero(r, first, count);
    check_range(r, first, count < 4 ? count : 4);
}

static void op_resize(Region *r, size_t first, size_t count) {
    (void)first;
    size_t pages = r->pages > r->target_pages ? r->pages - r->pages / 3 : r->pages + count;
    if (pages > MAX_PAGES || pages < 8) return;
    // Pieces with different protections cannot be resized as one.
    must(mprotect(r->base, r->pages * PAGE, PROT_READ | PROT_WRITE));
    char *base = mremap(r->base, r->pages * PAGE, pages * PAGE, MREMAP_MAYMOVE);
    if (base == MAP_FAILED && errno == EFAULT) return; // several mappings: see op_gather
    if (base == MAP_FAILED) fail("mremap: %s", strerror(errno));
    r->base = base;
    if (pages > r->pages) mark_zero(r, r->pages, pages - r->pages);
    r->pages = pages;
    check_range(r, pages - 1, 1);
}

// Moves the region to a place of its choice, over an existing mapping.
static void op_move(Region *r, size_t first, size_t count) {
    (void)first, (void)count;
    must(mprotect(r->base, r->pages * PAGE, PROT_READ | PROT_WRITE));
    char *target = map(r->pages * PAGE);
    memset(target, 0x5a, PAGE * 3);
    char *moved =
        mremap(r->base, r->pages * PAGE, r->pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, target);
    if (moved == MAP_FAILED) {
        if (errno != EFAULT && errno != EINVAL) fail("mremap fixed: %s", strerror(errno));
        must(munmap(target, r->pages * PAGE));
        return;
    }
    r->base = moved;
    check_range(r, 0, r->pages < 8 ? r->pages : 8);
}

// The pages go, the mapping stays and reads zero.
static void op_move_leaving(Region *r, size_t first, size_t count) {
    (void)first, (void)count;
    must(mprotect(r->base, r->pages * PAGE, PROT_READ | PROT_WRITE));
    char *old = r->base;
    char *moved =
        mremap(old, r->pages * PAGE, r->pages * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    if (moved == MAP_FAILED) {
        if (errno != EFAULT && errno != EINVAL && errno != ENOMEM)
            fail("mremap dontunmap: %s", strerror(errno));
        return;
    }
    r->base = moved;
    for (size_t i = 0; i < r->pages; i += 1 + below(16))
        if (!page_is_zero((uint64_t *)(old + i * PAGE)))
            fail("page %zu left behind by DONTUNMAP is not zero", i);
    memset(old, 0xa5, PAGE);
    must(munmap(old, r->pages * PAGE));
    check_range(r, 0, r->pages < 8 ? r->pages : 8);
}

// All of it goes and comes anew elsewhere, in three pieces that the kernel unmaps in one call.
static void op_unmap(Region *r, size_t first, size_t count) {
    check_range(r, first, count);
    size_t half = r->pages / 2;
    if (below(2))
        must(munmap(r->base + half * PAGE, (r->pages - half) * PAGE)),
            must(munmap(r->base, half * PAGE));
    else must(munmap(r->base, r->pages * PAGE));
    region_make(r, r->target_pages);
}

// Copies every page into a fresh mapping: one kernel mapping again after many were split.
static void op_gather(Region *r, size_t first, size_t count) {
    (void)first, (void)count;
    char *fresh = map(r->pages * PAGE);
    for (size_t i = 0; i < r->pages; i++) {
        check_page(r, i);
        r->state[i] = page_is_zero(page_at(r, i)) ? ZERO : WRITTEN;
        if (r->state[i] == WRITTEN) memcpy(fresh + i * PAGE, page_at(r, i), PAGE);
    }
    must(munmap(r->base, r->pages * PAGE));
    r->base = fresh;
}

static struct {
    const char *name;
    void (*run)(Region *, size_t first, size_t count);
    unsigned weight;
} region_ops[] = {
    {"write", op_write, 30},     {"check", check_range, 40},   {"modify", op_modify, 25},
    {"dontneed", op_dontneed, 6}, {"free", op_free, 4},         {"advice", op_advice, 6},
    {"read only", op_read_only, 5}, {"none", op_none, 4},       {"executable", op_executable, 3},
    {"lock", op_lock, 2},        {"map over", op_map_over, 4}, {"resize", op_resize, 5},
    {"move", op_move, 3},        {"move leaving", op_move_leaving, 2}, {"unmap", op_unmap, 1},
    {"gather", op_gather, 1},
};

#define REGION_OPS (sizeof region_ops / sizeof *region_ops)

static unsigned pick_region_op(void) {
    unsigned total = 0, i = 0;
    for (size_t k = 0; k < REGION_OPS; k++) total += region_ops[k].weight;
    for (unsigned pick = below(total); pick >= region_ops[i].weight;)
        pick -= region_ops[i++].weight;
    return i;
}

// One operation on a random region that nobody holds.
static void region_step(void) {
    Region *r = &regions[below(REGIONS)];
    if (pthread_mutex_trylock(&r->lock)) return;
    size_t first = below(r->pages), count = 1 + below(below(4) ? 16 : 256);
    if (count > r->pages - first) count = r->pages - first;
    unsigned i = pick_region_op();
    self->doing = region_ops[i].name;
    region_ops[i].run(r, first, count);
    pthread_mutex_unlock(&r->lock);
}

static void regions_start(size_t total_pages) {
    struct sigaction action = {.sa_sigaction = on_segv, .sa_flags = SA_SIGINFO | SA_NODEFER};
    must(sigaction(SIGSEGV, &action, NULL));
    for (int i = 0; i < REGIONS; i++) {
        size_t pages = total_pages / REGIONS / 2 + below(total_pages / REGIONS);
        region_init(&regions[i], pages > MAX_PAGES / 2 ? MAX_PAGES / 2 : pages, i % 4 == 3);
        op_write(&regions[i], 0, regions[i].pages);
    }
}

static void regions_check(void) {
    for (int i = 0; i < REGIONS; i++) check_range(&regions[i], 0, regions[i].pages);
}
