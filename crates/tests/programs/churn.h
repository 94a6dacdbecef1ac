// churn.h: what all parts of the stress share: failing, random numbers, threads, self-describing
// pages.
//
// A page is described by (uid of its region, index, version) and by nothing else: every one of its
// 512 words follows from these three, so that any page can be checked at any time, and a page that
// comes back old, moved, torn or mixed with another is told apart. Version 0 is the page as the
// kernel gives it: zero.
#pragma once
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
#define WORDS 512
#define MAX_THREADS 16

static uint64_t seed;
static atomic_int stopping;
static const char *volatile process_name = "parent";

// ---- random numbers and failing

static uint64_t mix(uint64_t x) {
    x ^= x >> 30, x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27, x *= 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

// One worker thread. Its state is thread-local through `self`; a forked child keeps its parent
// thread's.
typedef struct {
    int id;
    uint64_t state;
    const char *volatile doing; // the operation at work, for the message of a failure
    uint64_t operations;
    unsigned char *scratch; // buffers for system calls, see churn_calls.h
    void *barrier_region;   // the region that this thread writes to, see churn_regions.h
} Worker;

static __thread Worker *self;

static uint64_t rnd(void) { return mix(self->state += 0x9e3779b97f4a7c15ull); }
static uint64_t below(uint64_t n) { return rnd() % n; }

// Ends the whole process at once. Writes without stdio: it may be called in a handler or a forked
// child.
__attribute__((noreturn, format(printf, 1, 2))) static void fail(const char *format, ...) {
    char text[600];
    int n = snprintf(
        text, 200, "churn: seed %llu: %s %d, thread %d, %s: ", (unsigned long long)seed,
        process_name, getpid(), self ? self->id : -1, self && self->doing ? self->doing : "start");
    va_list list;
    va_start(list, format);
    n += vsnprintf(text + n, sizeof text - n - 2, format, list);
    va_end(list);
    if (n > (int)sizeof text - 2) n = sizeof text - 2;
    text[n++] = '\n';
    ssize_t written = write(2, text, n);
    _exit(written == n ? 3 : 4);
}

// For calls that cannot fail here unless something is wrong.
static intptr_t must_value(intptr_t result, const char *call) {
    if (result == -1) fail("%s: %s", call, strerror(errno));
    return result;
}
#define must(call) must_value((intptr_t)(call), #call)

static void *map(size_t bytes) {
    return (void *)must(
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

// Waits for a child of ours that must have ended well.
static void expect_success(pid_t pid) {
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) fail("waitpid: %s", strerror(errno));
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail("child %d ended with status %#x", pid, status);
}

// ---- pages

// How a version looks: one word repeated, a third random, all random, nearly zero.
static uint64_t page_word(uint64_t key, unsigned kind, unsigned i) {
    switch (kind) {
    case 0: return key;
    case 1: return i < WORDS / 3 ? mix(key + i) : key;
    case 2: return mix(key + i);
    default: return i % 64 == 5 ? key + i : 0;
    }
}

static uint64_t page_key(uint64_t uid, uint64_t index, uint32_t version) {
    return mix(uid * 0x10001 + index) ^ mix(version);
}

static void page_fill(uint64_t *page, uint64_t uid, uint64_t index, uint32_t version) {
    uint64_t key = page_key(uid, index, version);
    unsigned kind = key % 4;
    for (unsigned i = 0; i < WORDS; i++) page[i] = page_word(key, kind, i);
}

static int page_is_zero(const uint64_t *page) {
    uint64_t any = 0;
    for (unsigned i = 0; i < WORDS; i++) any |= page[i];
    return any == 0;
}

// The index of the first wrong word, or -1.
static int page_wrong_word(const uint64_t *page, uint64_t uid, uint64_t index, uint32_t version) {
    if (version == 0) {
        for (unsigned i = 0; i < WORDS; i++)
            if (page[i]) return i;
        return -1;
    }
    uint64_t key = page_key(uid, index, version);
    unsigned kind = key % 4;
    for (unsigned i = 0; i < WORDS; i++)
        if (page[i] != page_word(key, kind, i)) return i;
    return -1;
}

static void page_check(const uint64_t *page, uint64_t uid, uint64_t index, uint32_t version) {
    int i = page_wrong_word(page, uid, index, version);
    if (i < 0) return;
    uint64_t got = page[i];
    uint64_t expected =
        version ? page_word(page_key(uid, index, version), page_key(uid, index, version) % 4, i)
                : 0;
    const char *what = "unknown bytes";
    if (page_is_zero(page)) what = "a zero page";
    for (uint32_t old = version; old-- > 0 && version - old < 1000;)
        if (page_wrong_word(page, uid, index, old) < 0) what = "an older version of the page";
    for (uint64_t other = index < 4096 ? 0 : index - 4096; other < index + 4096; other++)
        if (other != index && page_wrong_word(page, uid, other, version) < 0)
            what = "another page of the region";
    int again = page_wrong_word(page, uid, index, version);
    fail("region %llu page %llu version %u at %p: word %d is %#llx, expected %#llx: %s%s",
         (unsigned long long)uid, (unsigned long long)index, version, (void *)page, i,
         (unsigned long long)got, (unsigned long long)expected, what,
         again < 0 ? " (right when read again)" : "");
}

// For a page whose filling was cut short: each word is that of `version` or of the one after it.
static void page_check_filling(const uint64_t *page, uint64_t uid, uint64_t index,
                               uint32_t version) {
    uint64_t key = page_key(uid, index, version), next = page_key(uid, index, version + 1);
    for (unsigned i = 0; i < WORDS; i++) {
        uint64_t got = page[i], old = version ? page_word(key, key % 4, i) : 0,
                 fresh = page_word(next, next % 4, i);
        if (got != old && got != fresh)
            fail("region %llu page %llu between versions %u and %u at %p: word %u is %#llx, "
                 "expected %#llx or %#llx",
                 (unsigned long long)uid, (unsigned long long)index, version, version + 1,
                 (void *)page, i, (unsigned long long)got, (unsigned long long)old,
                 (unsigned long long)fresh);
    }
}
