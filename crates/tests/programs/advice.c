// advice: gives advice about its memory, and checks that it is followed and that no byte changes.
//
//     advice [managed]
//
// Prints what the calls return, which must be the same with and without uzswap. With `managed` it
// also asserts where its pages are afterwards. Exits 1 where something is wrong, with a line on
// stderr.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COLD = 20, PAGEOUT = 21, POPULATE_READ = 22, POPULATE_WRITE = 23, PIDFD_SELF = -10001 };
enum { GUARD_INSTALL = 102, GUARD_REMOVE = 103, MSEAL = 462 };
enum { PAGE = 4096, PAGES = 16384, HALF = PAGES / 2 };

static uint64_t *memory;
static int is_managed;

static void fail(const char *format, ...) {
    va_list list;
    va_start(list, format);
    vfprintf(stderr, format, list);
    fprintf(stderr, "\n");
    exit(1);
}

static void *page(long i) {
    return (char *)memory + i * PAGE;
}

// Half of a page is noise, half one word.
static uint64_t word_of(long i, long w) {
    uint64_t x = (uint64_t)(i * 512 + w) * 0x9e3779b97f4a7c15u;
    return w % 2 ? x ^ x >> 29 : (uint64_t)i + 1;
}

static void fill(long from, long to) {
    for (long i = from; i < to; i++)
        for (long w = 0; w < 512; w++) memory[i * 512 + w] = word_of(i, w);
}

static void check(const char *when, long from, long to) {
    for (long i = from; i < to; i++)
        for (long w = 0; w < 512; w++)
            if (memory[i * 512 + w] != word_of(i, w))
                fail("%s: page %ld word %ld is wrong", when, i, w);
}

static long there(long from, long to) {
    static unsigned char map[PAGES];
    long count = 0;
    if (mincore(page(from), (size_t)(to - from) * PAGE, map)) fail("mincore: %m");
    for (long i = 0; i < to - from; i++) count += map[i] & 1;
    return count;
}

// At least, and at most, so many of the pages are there; other threads, and what is held, are worth
// a few.
static void expect(const char *when, long from, long to, long least, long most) {
    long count = there(from, to);
    if (is_managed && (count < least || count > most))
        fail("%s: %ld of %ld pages are there, not %ld to %ld", when, count, to - from, least, most);
}

static long result(long r) {
    return r < 0 ? -errno : r;
}

static long advise(long from, long pages, int advice) {
    return result(madvise(page(from), (size_t)pages * PAGE, advice));
}

static long advise_process(int fd, const struct iovec *parts, long count, int advice) {
    return result(syscall(SYS_process_madvise, fd, parts, count, advice, 0));
}

static void simple(void) {
    fill(0, PAGES);
    printf("page out %ld\n", advise(0, HALF, PAGEOUT));
    expect("paged out", 0, HALF, 0, 64);
    expect("not advised", HALF, PAGES, HALF - 64, HALF);
    check("paged out", 0, HALF / 2);
    printf("need %ld\n", advise(0, HALF, MADV_WILLNEED));
    expect("needed", 0, HALF, HALF - 64, HALF);
    check("needed", 0, PAGES);
    printf("cold %ld\n", advise(0, PAGES, COLD));
    expect("cold, and no memory is short", 0, PAGES, PAGES - 64, PAGES);
    check("cold", 0, PAGES);
}

static void errors(void) {
    static const int advices[] = {COLD, PAGEOUT, MADV_WILLNEED};
    for (int i = 0; i < 3; i++) {
        int advice = advices[i];
        printf("%d: inside a page %ld", advice, result(madvise((char *)page(1) + 8, PAGE, advice)));
        printf(", nothing %ld", advise(1, 0, advice));
        printf(", too much %ld\n", result(madvise(page(1), (size_t)-PAGE, advice)));
    }
    // A hole: what is around it is done all the same.
    if (munmap(page(100), 4 * PAGE)) fail("munmap: %m");
    printf("over a hole %ld\n", advise(0, 1024, PAGEOUT));
    expect("before a hole", 0, 100, 0, 32);
    expect("behind a hole", 104, 1024, 0, 64);
    enum { PROT = PROT_READ | PROT_WRITE, FLAGS = MAP_PRIVATE | MAP_ANONYMOUS };
    advise(64, 64, PAGEOUT);
    printf("bring in up to a hole %ld\n", advise(64, 64, POPULATE_WRITE));
    expect("brought in before a hole", 64, 100, 36, 36);
    expect("brought in behind a hole", 104, 128, 0, 0);
    mprotect(page(80), PAGE, PROT_READ);
    printf("bring in what is read %ld", advise(64, 32, POPULATE_READ));
    printf(", what is not written %ld\n", advise(64, 32, POPULATE_WRITE));
    mprotect(page(80), PAGE, PROT);
    if (mmap(page(100), 4 * PAGE, PROT, FLAGS | MAP_FIXED, -1, 0) != page(100)) fail("mmap: %m");
    fill(100, 104);
    check("over a hole", 0, 1024);
    // Locked pages stay; the kernel says that it does not like it.
    if (mlock(page(200), 16 * PAGE)) fail("mlock: %m");
    printf("locked %ld\n", advise(192, 32, PAGEOUT));
    expect("locked", 200, 216, 16, 16);
    check("locked", 192, 224);
    // Guard pages are there on both sides of a hole: a call finds none to write to.
    int ends[2];
    if (pipe(ends) || write(ends[1], "guards", 6) != 6) fail("pipe: %m");
    advise(288, 16, PAGEOUT);
    if (munmap(page(290), PAGE)) fail("munmap: %m");
    printf("guards over a hole %ld", advise(288, 8, GUARD_INSTALL));
    printf(", read %ld\n", result(read(ends[0], page(292), 6)));
    close(ends[0]), close(ends[1]);
    advise(288, 2, GUARD_REMOVE), advise(291, 5, GUARD_REMOVE);
    if (mmap(page(290), PAGE, PROT, FLAGS | MAP_FIXED, -1, 0) != page(290)) fail("mmap: %m");
    fill(288, 296);
    check("guards", 280, 304);
    // Memory that is locked when it is touched stays out until then, and stays in from then on.
    advise(224, 32, PAGEOUT);
    printf("locked when touched %ld\n", result(mlock2(page(224), 32 * PAGE, MLOCK_ONFAULT)));
    expect("locked when touched", 224, 256, 0, 4);
    check("locked when touched", 224, 256);
    advise(224, 32, PAGEOUT);
    expect("locked and touched", 224, 256, 32, 32);
    munlock(page(224), 32 * PAGE);
    // Nothing is discarded behind a locked page of another kind.
    advise(161, 39, PAGEOUT);
    int shared = MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED;
    if (mmap(page(160), PAGE, PROT, shared, -1, 0) != page(160)) fail("mmap: %m");
    munlock(page(208), 8 * PAGE);
    if (mlock(page(160), PAGE)) fail("mlock: %m");
    printf("behind a locked page %ld\n", advise(160, 56, MADV_DONTNEED));
    check("behind a locked page", 161, 216);
    munlock(page(200), 16 * PAGE);
    if (mmap(page(160), PAGE, PROT, FLAGS | MAP_FIXED, -1, 0) != page(160)) fail("mmap: %m");
    fill(160, 161);
}

static void of_itself(int fd) {
    struct iovec parts[3] = {{page(0), 512 * PAGE}, {page(HALF), 1024 * PAGE}, {page(4), 8 * PAGE}};
    fill(0, PAGES);
    printf("itself: page out %ld\n", advise_process(fd, parts, 3, PAGEOUT));
    expect("itself, first", 0, 512, 0, 32);
    expect("itself, between", 512, HALF, HALF - 512 - 64, HALF);
    expect("itself, second", HALF, HALF + 1024, 0, 32);
    printf("itself: need %ld\n", advise_process(fd, parts, 2, MADV_WILLNEED));
    expect("itself, needed", 0, 512, 512 - 32, 512);
    expect("itself, needed", HALF, HALF + 1024, 1024 - 32, 1024);
    check("itself", 0, PAGES);
    printf("itself: bad vector %ld\n", advise_process(fd, (void *)8, 1, PAGEOUT));
    printf("itself: too many %ld\n", advise_process(fd, parts, 1025, PAGEOUT));
    // Newer kernels allow any advice here: what is stored must then be gone as well.
    advise_process(fd, parts, 2, PAGEOUT);
    long gone = advise_process(fd, parts, 2, MADV_DONTNEED);
    printf("itself: drop %ld\n", gone);
    if (gone > 0) {
        for (long i = 0; i < 1536 * 512; i++) {
            long at = i < 512 * 512 ? i : (HALF - 512) * 512 + i;
            if (memory[at]) fail("word %ld was dropped and is %lx", at, memory[at]);
        }
        check("itself, not dropped", 512, HALF);
    } else {
        check("itself, not dropped", 0, PAGES);
    }
}

// Advice to a child is not about the same addresses here.
static void of_a_child(void) {
    fill(0, PAGES);
    pid_t child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    int fd = syscall(SYS_pidfd_open, child, 0);
    if (fd < 0) fail("pidfd_open: %m");
    struct iovec all = {page(0), HALF * PAGE};
    long before = there(0, HALF);
    printf("a child: need %ld\n", advise_process(fd, &all, 1, MADV_WILLNEED));
    printf("a child: drop %ld\n", advise_process(fd, &all, 1, MADV_DONTNEED));
    if (there(0, HALF) < before) fail("advice to a child went to its parent");
    check("a child's", 0, PAGES);
    // Shared with a child now: nothing would be gained, so it stays.
    printf("shared: page out %ld\n", advise(0, HALF, PAGEOUT));
    expect("shared", 0, HALF, HALF - 64, HALF);
    kill(child, SIGKILL);
    waitpid(child, 0, 0);
    close(fd);
    check("shared", 0, PAGES);
}

static void of_a_file(void) {
    int fd = memfd_create("advice", 0);
    if (fd < 0 || ftruncate(fd, 64 * PAGE)) fail("memfd: %m");
    char *file = mmap(page(64), 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, 0);
    if (file != page(64)) fail("mmap: %m");
    // Anonymous, a file's, anonymous.
    printf("with a file: need %ld\n", advise(0, 256, MADV_WILLNEED));
    printf("with a file: cold %ld\n", advise(0, 256, COLD));
    check("beside a file", 0, 64);
    check("beside a file", 128, PAGES);
}

// Sealed memory cannot be changed by mprotect any more: what is out of it comes all the same.
static void of_sealed_memory(void) {
    fill(PAGES - 64, PAGES);
    advise(PAGES - 64, 64, PAGEOUT);
    printf("sealed %ld\n", result(syscall(MSEAL, page(PAGES - 64), 64 * PAGE, 0)));
    check("sealed", PAGES - 64, PAGES);
    advise(PAGES - 64, 64, PAGEOUT);
    fill(PAGES - 64, PAGES);
    check("sealed, written", PAGES - 64, PAGES);
}

int main(int count, char **words) {
    is_managed = count > 1 && !strcmp(words[1], "managed");
    size_t bytes = (size_t)PAGES * PAGE;
    memory = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail("mmap: %m");
    simple();
    errors();
    int fd = syscall(SYS_pidfd_open, getpid(), 0);
    if (fd < 0) fail("pidfd_open: %m");
    of_itself(fd);
    of_itself(PIDFD_SELF);
    close(fd);
    of_a_child();
    of_a_file();
    of_sealed_memory();
    // No memory has this key.
    printf("key %ld\n", result(syscall(SYS_pkey_mprotect, page(8), PAGE, PROT_READ, 15)));
    return 0;
}
