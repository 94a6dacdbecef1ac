// edge: corners of what a program may do with its memory, one by one.
//
//     edge --list         the names of the cases
//     edge CASE           runs one; what it prints must be the same with and without paging
//
// Every case works on `big`, which is several times larger than the limit that the test sets;
// `push_out` walks over it, so that whatever was touched before is cold, and `big_is_right` checks
// all of it. Nothing that a case prints depends on addresses, times or ids.
#define _GNU_SOURCE
#include <aio.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/aio_abi.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>
#include <unwind.h>

#define PAGE 4096ul
#define BIG (40ul << 20)

extern char **environ;
static uint64_t *big;

// The first half compresses well, the second not at all, so that memory and the store both take
// part.
static uint64_t big_word(size_t i) {
    return i < BIG / 16 ? i / 16 * 0x9e3779b97f4a7c15ull
                        : (i * 0x9e3779b97f4a7c15ull) >> (i % 3 * 20);
}

// Writes what is there already: any thread may do it at any time.
static void push_out(void) {
    for (size_t i = 0; i < BIG / 8; i += PAGE / 8)
        ((volatile uint64_t *)big)[i + 1] = big_word(i + 1);
}

static int big_is_right(void) {
    for (size_t i = 0; i < BIG / 8; i++)
        if (big[i] != big_word(i)) return 0;
    return 1;
}

static void *map(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? (perror("mmap"), exit(9), NULL) : p;
}

static unsigned char cold_pattern(size_t i) { return i * 7 + i / 251; }

static void put_cold_pattern(unsigned char *p, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) p[i] = cold_pattern(i);
}

// Bytes that are known and by now cold.
static unsigned char *cold(size_t bytes) {
    unsigned char *p = map(bytes);
    put_cold_pattern(p, bytes);
    push_out();
    return p;
}

static int is_cold_pattern(const unsigned char *p, size_t from, size_t to) {
    for (size_t i = from; i < to; i++)
        if (p[i] != cold_pattern(i)) return 0;
    return 1;
}

static int wait_for(pid_t pid) {
    int status = -1;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    return status;
}

#define show(...) (printf(__VA_ARGS__), fflush(stdout))

#define HUGE (2ul << 20)

static int holds_words(const uint64_t *p, size_t from, size_t to, uint64_t seed) {
    for (size_t i = from / 8; i < to / 8; i++)
        if (p[i] != (i ^ seed) * 0x9e3779b97f4a7c15ull >> 20) return 0;
    return 1;
}

static void put_words(uint64_t *p, size_t from, size_t to, uint64_t seed) {
    for (size_t i = from / 8; i < to / 8; i++) p[i] = (i ^ seed) * 0x9e3779b97f4a7c15ull >> 20;
}

static int is_zero(const unsigned char *p, size_t from, size_t to) {
    for (size_t i = from; i < to; i++)
        if (p[i]) return 0;
    return 1;
}

// Reads at random, so that each page that is cold comes by itself, and goes again as it came.
static void read_at_random(const unsigned char *p, size_t bytes, int touches) {
    static uint64_t seed = 88172645463325252ull;
    for (int i = 0; i < touches; i++) {
        seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
        (void)*(volatile const unsigned char *)(p + seed % bytes);
    }
}

// ---- mappings

// Pages that were only read for so long that a write to one is a fault of its own: everybody who
// may write them does.
static void case_only_read(void) {
    enum { BYTES = 4 << 20, HALF = BYTES / 2 };
    int zero = open("/dev/zero", O_RDONLY);
    for (int way = 0; way < 7; way++) {
        unsigned char *p = cold(BYTES), *q = p;
        read_at_random((unsigned char *)big, BIG / 2, 6000);
        read_at_random(p, BYTES, 3000);
        int done = 0, child = 0;
        if (way == 0) memset(p, 0, HALF), done = 1;
        if (way == 1) done = read(zero, p, HALF) == HALF;
        if (way == 2)
            done =
                readv(zero, (struct iovec[]){{p, HALF - 5000}, {p + HALF - 5000, 5000}}, 2) == HALF;
        if (way == 3) {
            q = mremap(p, BYTES, 2 * BYTES, MREMAP_MAYMOVE);
            done = read(zero, q, HALF) == HALF;
        }
        if (way == 4) {
            // Smaller, where it is.
            done = mremap(p, BYTES, BYTES - PAGE, 0) == p && read(zero, p, HALF) == HALF;
        }
        if (way == 5) {
            mprotect(p, BYTES, PROT_READ);
            read_at_random(p, BYTES, 1000);
            mprotect(p, BYTES, PROT_READ | PROT_WRITE);
            for (size_t i = 0; i < HALF; i++) p[i] &= 0;
            done = 1;
        }
        if (way == 6) {
            pid_t pid = fork();
            if (pid == 0) {
                memset(p + HALF, 0, HALF);
                read_at_random((unsigned char *)big, BIG / 2, 3000);
                _exit(is_cold_pattern(p, 0, HALF) && is_zero(p, HALF, BYTES) ? 7 : 8);
            }
            memset(p, 0, HALF), done = 1;
            child = WEXITSTATUS(wait_for(pid));
        }
        size_t end = way == 4 ? BYTES - PAGE : BYTES;
        read_at_random((unsigned char *)big, BIG / 2, 3000);
        show("way %d: done %d, child %d, written %d, rest %d\n", way, done, child,
             is_zero(q, 0, HALF), is_cold_pattern(q, HALF, end));
        munmap(q, way == 3 ? 2 * BYTES : BYTES);
    }
}

// Huge pages of which parts go different ways.
static void case_huge(void) {
    const size_t n = 12, bytes = n * HUGE;
    unsigned char *p = map(bytes + HUGE);
    p = (unsigned char *)(((uintptr_t)p + HUGE - 1) / HUGE * HUGE);
    show("advice %d\n", madvise(p, bytes, MADV_HUGEPAGE));
    put_words((uint64_t *)p, 0, bytes - HUGE, 1); // The last is never written before it goes out.
    push_out();
    show("whole %d %d\n", holds_words((uint64_t *)p, 0, bytes - HUGE, 1),
         is_zero(p, bytes - HUGE, bytes));
    push_out();
    // Each operation below meets a huge page that is out, and then one that is in.
    for (int in = 0; in < 2; in++) {
        unsigned char *q = p + in * 5 * HUGE;
        if (in) holds_words((uint64_t *)p, 0, bytes - HUGE, 1);
        int r = madvise(q + 5 * PAGE, 9 * PAGE, MADV_DONTNEED);
        show("dropped %d %d %d %d\n", r, is_zero(q + 5 * PAGE, 0, 9 * PAGE),
             holds_words((uint64_t *)p, q - p, q - p + 5 * PAGE, 1),
             holds_words((uint64_t *)p, q - p + 14 * PAGE, q - p + HUGE, 1));
        put_words((uint64_t *)p, q - p + 5 * PAGE, q - p + 14 * PAGE, 1);
        q += HUGE;
        r = mprotect(q + 100 * PAGE, PAGE, PROT_READ);
        push_out();
        show("protected %d %d\n", r, holds_words((uint64_t *)p, q - p, q - p + HUGE, 1));
        r = mprotect(q + 100 * PAGE, PAGE, PROT_READ | PROT_WRITE);
        put_words((uint64_t *)p, q - p, q - p + HUGE, 1);
        q += HUGE;
        unsigned char *moved = mremap(q + 7 * PAGE, 300 * PAGE, 301 * PAGE, MREMAP_MAYMOVE);
        mmap(q + 7 * PAGE, 300 * PAGE, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        memcpy(q + 7 * PAGE, moved, 300 * PAGE);
        push_out();
        show("moved %d %d\n", holds_words((uint64_t *)p, q - p, q - p + HUGE, 1),
             is_zero(moved, 300 * PAGE, 301 * PAGE));
        q += HUGE;
        munmap(q, HUGE);
        mmap(q, HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        madvise(q, HUGE, MADV_HUGEPAGE);
        int zero = is_zero(q, 0, HUGE);
        put_words((uint64_t *)p, q - p, q - p + HUGE, 1);
        push_out();
        show("anew %d %d\n", zero, holds_words((uint64_t *)p, q - p, q - p + HUGE, 1));
        push_out();
        // A system call reads the one, another writes it, across its end.
        q += HUGE;
        int zeros = open("/dev/zero", O_RDONLY), pair[2];
        r = read(zeros, q - 3 * PAGE, 6 * PAGE) == 6 * PAGE && is_zero(q - 3 * PAGE, 0, 6 * PAGE);
        put_words((uint64_t *)p, q - p - 3 * PAGE, q - p + 3 * PAGE, 1);
        push_out();
        pipe(pair);
        char got[100];
        r &= write(pair[1], q - 50, 100) == 100 && read(pair[0], got, 100) == 100 &&
             !memcmp(got, q - 50, 100);
        close(zeros), close(pair[0]), close(pair[1]);
        show("calls %d\n", r);
    }
    fflush(stdout);
    push_out();
    pid_t pid = fork();
    if (pid == 0) {
        int ok = holds_words((uint64_t *)p, 0, 4 * HUGE, 1);
        put_words((uint64_t *)p, 2 * HUGE, 6 * HUGE, 2);
        push_out();
        ok &= holds_words((uint64_t *)p, 0, 2 * HUGE, 1) &&
              holds_words((uint64_t *)p, 2 * HUGE, 6 * HUGE, 2);
        _exit(!(ok & holds_words((uint64_t *)p, 6 * HUGE, bytes - HUGE, 1)));
    }
    put_words((uint64_t *)p, HUGE, 3 * HUGE, 3);
    push_out();
    int ok =
        holds_words((uint64_t *)p, 0, HUGE, 1) && holds_words((uint64_t *)p, HUGE, 3 * HUGE, 3);
    ok &= holds_words((uint64_t *)p, 3 * HUGE, bytes - HUGE, 1);
    show("fork %d child %d big %d\n", ok, wait_for(pid), big_is_right());
}

static void case_grow(void) {
    unsigned char *p = cold(4 << 20);
    p = mremap(p, 4 << 20, 32 << 20, MREMAP_MAYMOVE);
    int zero = 1;
    for (size_t i = 4 << 20; i < 32 << 20; i += 64) zero &= p[i] == 0;
    show("kept %d zero %d\n", is_cold_pattern(p, 0, 4 << 20), zero);
}

enum { RESIZED = 8 << 20, STAYS = RESIZED / 2 };
static volatile int resize_ended;

// Counts in each page of what stays, and looks whether it still holds what was written last.
static void *count_in_pages(void *memory) {
    uint64_t *p = memory, counts[STAYS / PAGE] = {0}, lost = 0;
    for (size_t i = 0; !resize_ended; i = (i * 5 + 1) % (STAYS / PAGE)) {
        volatile uint64_t *word = p + i * (PAGE / 8) + 3;
        lost += *word != counts[i];
        *word = ++counts[i];
    }
    return (void *)lost;
}

// Memory that becomes smaller and larger where it is, while another thread uses what stays; also
// after a fork.
static void case_resize_in_place(void) {
    for (int forked = 0; forked < 2; forked++) {
        unsigned char *p = map(RESIZED);
        for (size_t i = 0; i < RESIZED; i++) p[i] = i % PAGE >= 32 ? i * 7 >> 3 : 0;
        push_out();
        pid_t child = forked ? fork() : 0;
        if (forked && child == 0) pause(), _exit(0);
        pthread_t counter;
        resize_ended = 0;
        pthread_create(&counter, NULL, count_in_pages, p);
        int same = 1;
        for (int i = 0; i < 2000; i++) {
            if (i % 400 == 0) push_out();
            same &= mremap(p, RESIZED, STAYS, 0) == p && mremap(p, STAYS, RESIZED, 0) == p;
        }
        void *lost;
        resize_ended = 1;
        pthread_join(counter, &lost);
        if (forked) kill(child, SIGKILL), wait_for(child);
        show("same %d lost %d zero %d\n", same, lost != NULL, is_zero(p, STAYS, RESIZED));
        munmap(p, RESIZED);
    }
}

// Moves that the kernel refuses leave the memory as it is.
static void case_refused_moves(void) {
    unsigned char *p = cold(4 << 20), *place = map(2 * PAGE);
    const struct {
        size_t at, bytes, wanted;
    } tries[] = {{PAGE + 8, PAGE, 2 * PAGE}, {PAGE, 0, PAGE}, {PAGE, PAGE, 0}};
    for (int i = 0; i < 3; i++) {
        void *to = mremap(p + tries[i].at, tries[i].bytes, tries[i].wanted, MREMAP_MAYMOVE);
        show("%s ", to == MAP_FAILED ? strerror(errno) : "moved");
    }
    void *to = mremap(p + 8, PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place);
    show("%s\n", to == MAP_FAILED ? strerror(errno) : "moved");
    push_out();
    show("kept %d\n", is_cold_pattern(p, 0, 4 << 20));
}

static void case_none_and_back(void) {
    unsigned char *p = cold(4 << 20);
    mprotect(p, 4 << 20, PROT_NONE);
    push_out();
    mprotect(p, 4 << 20, PROT_READ | PROT_WRITE);
    show("kept %d\n", is_cold_pattern(p, 0, 4 << 20));
    madvise(p, 2 << 20, MADV_DONTNEED);
    int zero = 1;
    for (size_t i = 0; i < 2 << 20; i++) zero &= p[i] == 0;
    show("zero %d rest %d\n", zero, is_cold_pattern(p, 2 << 20, 4 << 20));
}

static void case_read_only(void) {
    unsigned char *p = cold(1 << 20);
    mprotect(p, 1 << 20, PROT_READ);
    push_out();
    int fd = open("/dev/zero", O_RDONLY);
    ssize_t n = read(fd, p + 5000, 100);
    show("kept %d read %zd %s\n", is_cold_pattern(p, 0, 1 << 20), n, strerror(errno));
}

// Advice that the kernel refuses, since it begins within a page or is longer than all memory, is
// refused and changes nothing.
static void case_refused_advice(void) {
    unsigned char *p = cold(4 << 20);
    const int advice[] = {
        MADV_NORMAL,       MADV_WILLNEED,   MADV_DONTNEED, MADV_FREE,     MADV_DONTFORK,
        MADV_DOFORK,       MADV_HUGEPAGE,   MADV_NOHUGEPAGE, MADV_MERGEABLE, MADV_WIPEONFORK,
        MADV_KEEPONFORK,   MADV_COLD,       MADV_PAGEOUT,  MADV_POPULATE_READ,
        MADV_POPULATE_WRITE,
    };
    for (size_t i = 0; i < sizeof advice / sizeof *advice; i++) {
        const int within = madvise(p + PAGE + 5, 10, advice[i]) ? errno : 0;
        const int whole = madvise(p + PAGE + 8, 3 * PAGE, advice[i]) ? errno : 0;
        const int endless = madvise(p + PAGE, -10ul, advice[i]) ? errno : 0;
        push_out();
        show("advice %d: %d %d %d, kept %d\n", advice[i], within, whole, endless,
             is_cold_pattern(p, 0, 4 << 20));
    }
    pid_t pid = fork();
    if (pid == 0) _exit(is_cold_pattern(p, 0, 4 << 20) ? 7 : 8);
    show("child %d\n", WEXITSTATUS(wait_for(pid)));
}

static void case_map_fixed(void) {
    unsigned char *p = cold(1 << 20);
    mmap(p + (256 << 10), 64 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
         -1, 0);
    push_out();
    int zero = 1;
    for (size_t i = 256 << 10; i < 320 << 10; i++) zero &= p[i] == 0;
    show("zero %d kept %d %d\n", zero, is_cold_pattern(p, 0, 256 << 10),
         is_cold_pattern(p, 320 << 10, 1 << 20));
    void *again =
        mmap(p, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    show("noreplace %s\n", again == MAP_FAILED ? strerror(errno) : "mapped");
}

static void case_private_file(void) {
    char name[] = "edge-XXXXXX";
    int fd = mkstemp(name);
    unlink(name);
    for (int i = 0; i < 256; i++) {
        char page[PAGE];
        memset(page, i, PAGE);
        if (write(fd, page, PAGE) != (ssize_t)PAGE) show("short\n");
    }
    unsigned char *p = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    for (int i = 0; i < 256; i += 2) p[i * PAGE + 9] = 200;
    push_out();
    int right = 1;
    for (int i = 0; i < 256; i++)
        right &= p[i * PAGE + 9] == (i % 2 ? i : 200) && p[i * PAGE + 10] == i;
    char byte;
    right &= pread(fd, &byte, 1, 9) == 1 && byte == 0;
    show("private %d\n", right);
}

extern const char __ehdr_start __attribute__((visibility("hidden")));

// read, by an instruction of its own.
__attribute__((noinline)) static long bare_read(long fd, void *into, size_t n) {
    long r;
    __asm__ volatile("mov %4, %%eax\n syscall"
                     : "=&a"(r)
                     : "D"(fd), "S"(into), "d"(n), "i"(SYS_read)
                     : "rcx", "r11", "memory");
    return r;
}

static void case_run_code(void) {
    // mov eax, imm32; ret
    unsigned char *code = map(64 * PAGE);
    for (int i = 0; i < 64; i++) {
        unsigned char *at = code + i * PAGE;
        at[0] = 0xb8, memcpy(at + 1, &(int){i * 1000 + 7}, 4), at[5] = 0xc3;
    }
    mprotect(code, 32 * PAGE, PROT_READ | PROT_EXEC);
    mprotect(code + 32 * PAGE, 32 * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC);
    push_out();
    long sum = 0;
    for (int i = 0; i < 64; i++) sum += ((int (*)(void))(code + i * PAGE))();
    show("sum %ld\n", sum);
    // A text that is mapped over memory that was reserved for it, as loaders do for one that wants
    // to be aligned.
    unsigned char *text = mmap(NULL, 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uintptr_t at = (uintptr_t)bare_read - (uintptr_t)&__ehdr_start;
    int file = open("/proc/self/exe", O_RDONLY), zero = open("/dev/zero", O_RDONLY);
    mmap(text, 2 * PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, file, at / PAGE * PAGE);
    long (*read_there)(long, void *, size_t) = (void *)(text + at % PAGE);
    unsigned char *p = cold(1 << 20);
    long n = read_there(zero, p, 1 << 20);
    show("read %ld zero %d\n", n, is_zero(p, 0, 1 << 20));
}

static void case_read_own_memory(void) {
    unsigned char *p = cold(1 << 20), copy[10000];
    int fd = open("/proc/self/mem", O_RDWR);
    ssize_t n = pread(fd, copy, sizeof copy, (off_t)(uintptr_t)(p + 8000));
    show("mem %zd %d\n", n, memcmp(copy, p + 8000, sizeof copy));
    push_out();
    n = pwrite(fd, "changed", 7, (off_t)(uintptr_t)(p + 90000));
    show("mem %zd %.7s %d\n", n, p + 90000,
         is_cold_pattern(p, 0, 90000) && is_cold_pattern(p, 90007, 1 << 20));
    // At the descriptor's own position, which goes on.
    unsigned char *q = cold(1 << 20);
    lseek(fd, (off_t)(uintptr_t)(q + 8000), SEEK_SET);
    for (int i = 0; i < 2; i++) {
        push_out();
        n = read(fd, copy, sizeof copy);
        show("mem %zd %d\n", n, memcmp(copy, q + 8000 + i * sizeof copy, sizeof copy));
    }
    push_out();
    n = write(fd, "changed", 7);
    show("mem %zd %.7s\n", n, q + 8000 + 2 * sizeof copy);
    // So do several parts at once, there and at a place that the call names.
    struct iovec parts[] = {{copy, 3000}, {copy, 0}, {copy + 3000, sizeof copy - 3000}};
    for (int way = 0; way < 4; way++) {
        off_t place = (off_t)(uintptr_t)(q + 400000 + way * 100000);
        memset(copy, 0, sizeof copy);
        lseek(fd, place, SEEK_SET);
        madvise(q, 1 << 20, 21 /* MADV_PAGEOUT */), push_out();
        n = way == 0   ? readv(fd, parts, 3)
            : way == 1 ? preadv(fd, parts, 3, place)
                       : preadv2(fd, parts, 3, way == 2 ? place : -1, 0);
        show("mem %zd %d\n", n, memcmp(copy, (void *)(uintptr_t)place, sizeof copy));
    }
    struct iovec words[] = {{"chan", 4}, {"ged", 3}};
    madvise(q, 1 << 20, 21), push_out();
    n = pwritev(fd, words, 2, (off_t)(uintptr_t)(q + 300000 + PAGE));
    show("mem %zd %.7s\n", n, q + 300000 + PAGE);
    // More than can be held at a time comes whole, too.
    unsigned char *much = cold(9 << 20), *much_copy = map(9 << 20);
    n = pread(fd, much_copy, 9 << 20, (off_t)(uintptr_t)much);
    show("mem %zd %d\n", n, is_cold_pattern(much_copy, 0, 9 << 20));
    unsigned char *other = cold(1 << 20);
    struct iovec to = {copy, sizeof copy}, from = {other + 700000, sizeof copy};
    n = process_vm_readv(getpid(), &to, 1, &from, 1, 0);
    show("vm %zd %d\n", n, memcmp(copy, other + 700000, sizeof copy));
}

// One process reads and writes what is out in another: parent and child, each way.
static void case_other_memory(void) {
    enum { BYTES = 3 << 20, HOLE = 1 << 20 };
    for (int way = 0; way < 2; way++) {
        int ready[2], done[2];
        if (pipe(ready) || pipe(done)) perror("pipe");
        prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
        unsigned char *p = cold(BYTES), *copy = map(BYTES), *untouched = map(64 * PAGE);
        munmap(p + HOLE, PAGE);
        pid_t child = fork(), other = way ? getppid() : child;
        // The owner of the memory puts it out, and waits; the other one reads and writes it.
        if ((child == 0) != way) {
            prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
            push_out();
            madvise(p, HOLE, 21 /* MADV_PAGEOUT */);
            madvise(p + HOLE + PAGE, BYTES - HOLE - PAGE, 21);
            char c = 0;
            if (write(ready[1], "", 1) != 1 || read(done[0], &c, 1) != 1) perror("pipe");
            show("owner %d %.7s %.7s\n", is_cold_pattern(p, 0, 90000), p + 90000, untouched + 5000);
        } else {
            char c = 0;
            if (read(ready[0], &c, 1) != 1) perror("pipe");
            struct iovec to[] = {{copy, 5}, {copy + 5, BYTES - 5}},
                         from[] = {{p, 100000}, {p, 0}, {p + 100000, HOLE - 100000},
                                   {p + HOLE + PAGE, BYTES - HOLE - PAGE}};
            ssize_t n = process_vm_readv(other, to, 2, from, 4, 0);
            show("read %zd %d\n", n, is_cold_pattern(copy, 0, HOLE));
            show("all %d\n",
                                 copy[HOLE] == cold_pattern(HOLE + PAGE) &&
                                 copy[BYTES - PAGE - 1] == cold_pattern(BYTES - 1));
            // As far as a hole, in it, and memory that nobody has touched.
            struct iovec up_to = {p + HOLE - 20000, 60000}, in = {p + HOLE, 8},
                         zeros = {untouched, 16 * PAGE};
            show("to a hole %zd", process_vm_readv(other, to + 1, 1, &up_to, 1, 0));
            n = process_vm_readv(other, to + 1, 1, &in, 1, 0);
            show(", in it %zd %d", n, errno);
            n = process_vm_readv(other, to + 1, 1, &zeros, 1, 0);
            show(", zeros %zd %d\n", n, is_zero(copy + 5, 0, 16 * PAGE));
            struct iovec words[] = {{"changed", 7}, {"written", 7}},
                         places[] = {{p + 90000, 7}, {untouched + 5000, 7}};
            show("write %zd\n", process_vm_writev(other, words, 2, places, 2, 0));
            if (write(done[1], "", 1) != 1) perror("pipe");
        }
        if (child == 0) _exit(0);
        show("child %d\n", wait_for(child));
        munmap(p, BYTES), munmap(copy, BYTES), munmap(untouched, 64 * PAGE);
        for (int i = 0; i < 2; i++) close(ready[i]), close(done[i]);
    }
}

static void case_deep_stack(void) {
    struct rlimit limit = {64 << 20, 64 << 20};
    setrlimit(RLIMIT_STACK, &limit);
    // Some 30 MiB of stack: recursion with frames that are checked on the way back.
    int descend(int depth) {
        volatile uint64_t frame[3500];
        for (int i = 0; i < 3500; i += 50) frame[i] = depth * 7 + i;
        int below = depth ? descend(depth - 1) : 1;
        for (int i = 0; i < 3500; i += 50) below &= frame[i] == (uint64_t)depth * 7 + i;
        return below;
    }
    show("deep %d\n", descend(1000));
}

static void case_brk(void) {
    unsigned char *base = sbrk(0);
    base += -(uintptr_t)base % PAGE;
    if (brk(base + (16 << 20))) perror("brk");
    for (size_t i = 0; i < 16 << 20; i += 8) *(uint64_t *)(base + i) = i;
    push_out();
    int right = 1;
    for (size_t i = 0; i < 16 << 20; i += 8) right &= *(uint64_t *)(base + i) == i;
    if (brk(base + (4 << 20)) || brk(base + (8 << 20))) perror("brk");
    for (size_t i = 4 << 20; i < 8 << 20; i++) right &= base[i] == 0;
    for (size_t i = 0; i < 4 << 20; i += 8) right &= *(uint64_t *)(base + i) == i;
    show("brk %d\n", right);
}

// ---- the kernel reads and writes buffers

static void case_bad_pointers(void) {
    unsigned char *p = cold(16 * PAGE);
    munmap(p + 8 * PAGE, 8 * PAGE);
    int fds[2];
    if (pipe(fds)) return;
    void *volatile low = (void *)16;
    show("low %zd", write(fds[1], low, 5));
    show(" %s\n", strerror(errno));
    show("unmapped %zd", write(fds[1], p + 8 * PAGE, 100));
    show(" %s\n", strerror(errno));
    // The first page is there, the second not: the kernel gives what it can.
    int file = open(".", O_TMPFILE | O_RDWR, 0600);
    show("half %zd", write(file, p + 8 * PAGE - 1000, 2000));
    show(" %zd", pread(file, p + 8 * PAGE - 1000, 3000, 0));
    show(" %d\n", is_cold_pattern(p, 0, 8 * PAGE));
    // Libraries ask so whether an address can be read.
    push_out();
    show("asked %ld", syscall(SYS_rt_sigprocmask, -1, p + PAGE, NULL, 8));
    show(" %s\n", strerror(errno));
    mprotect(p, PAGE, PROT_NONE);
    show("none %zd", write(fds[1], p, 10));
    show(" %s\n", strerror(errno));
    show("sigaction %ld", syscall(SYS_rt_sigaction, SIGUSR1, low, NULL, 8));
    show(" %s\n", strerror(errno));
    show("open %d", open((void *)(p + 9 * PAGE), O_RDONLY));
    show(" %s\n", strerror(errno));
    // An environment that is none, one whose second word is missing, one whose string is.
    char *words[] = {"true", NULL}, *wild[] = {"A=1", low, NULL};
    char **cut = (char **)(p + 8 * PAGE) - 1;
    *cut = "A=1";
    char **environments[] = {low, cut, wild};
    for (int i = 0; i < 3; i++) {
        show("exec %d", execve("/bin/true", words, environments[i]));
        show(" %s\n", strerror(errno));
    }
}

static void case_direct_io(void) {
    int fd = open(".", O_TMPFILE | O_RDWR | O_DIRECT, 0600);
    if (fd < 0) fd = open(".", O_TMPFILE | O_RDWR, 0600); // a file system without it
    unsigned char *p = cold(2 << 20), *q = cold(2 << 20);
    ssize_t out = pwrite(fd, p, 1 << 20, 0);
    memset(q, 0, 1 << 20);
    push_out();
    ssize_t in = pread(fd, q, 1 << 20, 0);
    show("direct %zd %zd %d %d\n", out, in, is_cold_pattern(q, 0, 1 << 20),
         is_cold_pattern(p, 0, 2 << 20));
}

static void case_kernel_aio(void) {
    aio_context_t context = 0;
    if (syscall(SYS_io_setup, 8, &context)) {
        show("aio 65536 1\n"); // not in this kernel
        return;
    }
    int fd = open(".", O_TMPFILE | O_RDWR, 0600);
    unsigned char *p = cold(1 << 20), *q = cold(1 << 20);
    if (pwrite(fd, p, 65536, 0) != 65536) show("short\n");
    memset(q, 0, 1 << 20);
    struct iocb *block = (void *)(q + 70 * PAGE), **list = (void *)(q + 80 * PAGE);
    struct io_event *event = (void *)(q + 90 * PAGE);
    *block = (struct iocb){.aio_lio_opcode = IOCB_CMD_PREAD,
                           .aio_fildes = fd,
                           .aio_buf = (uintptr_t)q,
                           .aio_nbytes = 65536};
    *list = block;
    push_out();
    if (syscall(SYS_io_submit, context, 1, list) != 1) perror("io_submit");
    push_out();
    if (syscall(SYS_io_getevents, context, 1, 1, event, NULL) != 1) perror("io_getevents");
    show("aio %lld %d\n", (long long)event->res, is_cold_pattern(q, 0, 65536));
}

static void case_vmsplice(void) {
    int fds[2];
    if (pipe(fds)) return;
    unsigned char *p = cold(1 << 20), *q = map(1 << 20);
    struct iovec v = {p + 16384, 32768};
    ssize_t n = vmsplice(fds[1], &v, 1, 0);
    // The pages are in the pipe, not copies: what happens to the memory now must not show there.
    push_out();
    push_out();
    ssize_t got = 0;
    while (got < n) {
        ssize_t part = read(fds[0], q + 16384 + got, n - got);
        if (part <= 0) break;
        got += part;
    }
    show("vmsplice %zd %zd %d\n", n, got, is_cold_pattern(q, 16384, 16384 + got));
    // A full pipe, and an empty one, are not waited for.
    for (int i = 0; i < 1000 && n > 0; i++) n = vmsplice(fds[1], &v, 1, SPLICE_F_NONBLOCK);
    show("full %zd %s\n", n, strerror(errno));
    fcntl(fds[0], F_SETFL, O_NONBLOCK);
    while (read(fds[0], q, 1 << 20) > 0) continue;
    fcntl(fds[0], F_SETFL, 0);
    v.iov_base = q;
    n = vmsplice(fds[0], &v, 1, SPLICE_F_NONBLOCK);
    show("empty %zd %s\n", n, strerror(errno));
}

static void case_clocks(void) {
    struct timespec *t = (void *)(cold(1 << 20) + (512 << 10));
    static const clockid_t ids[] = {
        CLOCK_REALTIME,      CLOCK_MONOTONIC, CLOCK_PROCESS_CPUTIME_ID, CLOCK_THREAD_CPUTIME_ID,
        CLOCK_MONOTONIC_RAW, CLOCK_BOOTTIME,  CLOCK_REALTIME_COARSE};
    for (unsigned i = 0; i < sizeof ids / sizeof *ids; i++) {
        t->tv_nsec = -1;
        push_out();
        int r = clock_gettime(ids[i], t);
        show("clock %u: %d %d\n", i, r, t->tv_nsec >= 0 && t->tv_nsec < 1000000000);
    }
    struct timeval *v = (void *)t;
    v->tv_usec = -1;
    push_out();
    int r = gettimeofday(v, NULL);
    show("timeofday %d %d\n", r, v->tv_usec >= 0);
    unsigned *cpu = (unsigned *)t;
    *cpu = 99999;
    push_out();
    r = getcpu(cpu, NULL);
    show("getcpu %d %d\n", r, *cpu < 99999);
}

// ---- signals

static volatile int hits;
static void *volatile hit_address;
static volatile int hit_code;
static sigjmp_buf back;

static void on_fault(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    hits++, hit_address = info->si_addr, hit_code = info->si_code;
    siglongjmp(back, 1);
}

static void on_hit(int number) { (void)number, hits++; }

static void handle(int number, void (*handler)(int, siginfo_t *, void *), int flags) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags};
    sigaction(number, &action, NULL);
}

static void case_own_faults(void) {
    handle(SIGSEGV, on_fault, 0), handle(SIGBUS, on_fault, 0);
    unsigned char *p = cold(16 * PAGE);
    munmap(p + 4 * PAGE, PAGE), mprotect(p + 8 * PAGE, PAGE, PROT_READ),
        mprotect(p + 9 * PAGE, PAGE, PROT_NONE);
    push_out();
    struct {
        const char *name;
        volatile unsigned char *at;
        int write;
    } tries[] = {{"null", NULL, 0},
                 {"unmapped", p + 4 * PAGE + 123, 0},
                 {"read only", p + 8 * PAGE + 77, 1},
                 {"none", p + 9 * PAGE + 1, 0}};
    for (int i = 0; i < 4; i++) {
        hits = 0;
        if (sigsetjmp(back, 1) == 0) {
            if (tries[i].write) *tries[i].at = 1;
            else show("%d\n", *tries[i].at);
        }
        show("%s: %d at its address %d code %d\n", tries[i].name, hits,
             hit_address == (void *)tries[i].at, hit_code);
    }
    // Past the end of a file: the program's own SIGBUS.
    int fd = open(".", O_TMPFILE | O_RDWR, 0600);
    if (ftruncate(fd, 100)) return;
    volatile unsigned char *m = mmap(NULL, 4 * PAGE, PROT_READ, MAP_SHARED, fd, 0);
    hits = 0;
    if (sigsetjmp(back, 1) == 0) show("%d\n", m[2 * PAGE + 5]);
    show("bus: %d at its address %d code %d\n", hits, hit_address == (void *)(m + 2 * PAGE + 5),
         hit_code);
    // A change of protection that stops at the hole is made before it.
    mprotect(p, 4 * PAGE, PROT_NONE);
    int r = mprotect(p, 16 * PAGE, PROT_READ | PROT_WRITE);
    volatile int half = 0;
    if (sigsetjmp(back, 1) == 0) half = is_cold_pattern(p, 0, 4 * PAGE);
    show("half a change %d %d\n", r, half);
    show("rest %d %d\n", is_cold_pattern(p, 0, 4 * PAGE), is_cold_pattern(p, 10 * PAGE, 16 * PAGE));
}

static void case_deadly_faults(void) {
    unsigned char *p = cold(4 * PAGE);
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    for (int i = 0; i < 4; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            if (i == 1) signal(SIGSEGV, SIG_IGN);
            if (i == 3) raise(SIGBUS);
            if (i < 2) munmap(p, 4 * PAGE);
            if (i == 2) mprotect(p, PAGE, PROT_READ);
            *(volatile unsigned char *)p = 1;
            _exit(0);
        }
        int status = wait_for(pid);
        show("%d: signal %d\n", i, WIFSIGNALED(status) ? WTERMSIG(status) : -1);
    }
}

static void case_write_barrier(void) {
    void on_barrier(int number, siginfo_t *info, void *context) {
        (void)number, (void)context;
        hits++;
        mprotect((void *)((uintptr_t)info->si_addr & ~(PAGE - 1)), PAGE, PROT_READ | PROT_WRITE);
    }
    unsigned char *p = cold(512 * PAGE);
    handle(SIGSEGV, on_barrier, 0);
    mprotect(p, 512 * PAGE, PROT_READ);
    push_out();
    for (int i = 0; i < 512; i += 4) p[i * PAGE + 50] = 250;
    show("barrier %d", hits);
    push_out();
    int right = 1;
    for (int i = 0; i < 512; i++)
        right &= p[i * PAGE + 51] == (unsigned char)((i * PAGE + 51) * 7 + (i * PAGE + 51) / 251);
    for (int i = 0; i < 512; i += 4) right &= p[i * PAGE + 50] == 250;
    show(" %d\n", right);
}

static void case_masks(void) {
    sigset_t all, now, pending;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    push_out();
    show("right %d", big_is_right());
    sigprocmask(SIG_SETMASK, NULL, &now);
    show(" blocked: bus %d segv %d usr1 %d kill %d\n", sigismember(&now, SIGBUS),
         sigismember(&now, SIGSEGV), sigismember(&now, SIGUSR1), sigismember(&now, SIGKILL));
    signal(SIGBUS, on_hit), signal(SIGUSR1, on_hit);
    raise(SIGBUS), raise(SIGUSR1);
    sigpending(&pending);
    show("hits %d pending: bus %d usr1 %d usr2 %d\n", hits, sigismember(&pending, SIGBUS),
         sigismember(&pending, SIGUSR1), sigismember(&pending, SIGUSR2));
    sigemptyset(&all);
    sigprocmask(SIG_SETMASK, &all, &now);
    show("hits %d, old mask bus %d\n", hits, sigismember(&now, SIGBUS));
    struct sigaction action = {.sa_handler = on_hit, .sa_flags = SA_RESTART | SA_NODEFER}, old;
    sigaddset(&action.sa_mask, SIGBUS), sigaddset(&action.sa_mask, SIGHUP);
    sigaction(SIGSEGV, &action, NULL), sigaction(SIGSEGV, NULL, &old);
    show("action %d flags %x mask %d %d %d\n", old.sa_handler == on_hit, old.sa_flags & ~0x04000000,
         sigismember(&old.sa_mask, SIGBUS), sigismember(&old.sa_mask, SIGHUP),
         sigismember(&old.sa_mask, SIGINT));
    signal(SIGBUS, SIG_IGN);
    raise(SIGBUS);
    push_out();
    show("ignored: right %d, hits %d, %d\n", big_is_right(), hits,
         signal(SIGBUS, SIG_DFL) == SIG_IGN);
    // Two that wait come at once, since the first one's handler goes by the mask of the call.
    sigset_t two, none;
    sigemptyset(&two), sigemptyset(&none), sigaddset(&two, SIGUSR1), sigaddset(&two, SIGUSR2);
    signal(SIGUSR1, on_hit), signal(SIGUSR2, on_hit);
    sigprocmask(SIG_BLOCK, &two, NULL);
    for (int way = 0; way < 3; way++) {
        struct timespec soon = {60, 0};
        hits = 0;
        raise(SIGUSR1), raise(SIGUSR2);
        push_out();
        if (way == 0) sigsuspend(&none);
        if (way == 1) ppoll(NULL, 0, &soon, &none);
        if (way == 2) pselect(0, NULL, NULL, NULL, &soon, &none);
        sigprocmask(SIG_BLOCK, NULL, &now);
        show("at once %d, blocked %d\n", hits, sigismember(&now, SIGUSR2));
    }
}

static sigset_t sent_set;
static volatile int sent_number, sent_rounds, sent_asked;
static pthread_t sent_to;

static void *send_when_asked(void *unused) {
    for (int done = 0; done < sent_rounds;) {
        if (sent_asked == done) continue;
        pthread_kill(sent_to, sent_number), done++;
    }
    return unused;
}

static void *take_one(void *unused) {
    siginfo_t info;
    int got = sigwaitinfo(&sent_set, &info);
    return got == sent_number && info.si_code == SI_USER ? unused : NULL;
}

// Signals of faults that were sent, and that the program takes by calls because it blocks them.
static void case_sent_faults(void) {
    const int numbers[] = {SIGBUS, SIGSEGV};
    for (int k = 0; k < 2; k++) {
        const int number = sent_number = numbers[k];
        struct timespec now = {0, 0}, long_time = {100, 0};
        siginfo_t *info = (void *)cold(PAGE);
        sigset_t none, pending;
        sigemptyset(&none), sigemptyset(&sent_set), sigaddset(&sent_set, number);
        sigprocmask(SIG_SETMASK, &sent_set, NULL);
        show("none: %d", sigtimedwait(&sent_set, info, &now));
        show(" %s\n", strerror(errno));
        for (int way = 0; way < 3; way++) {
            if (way == 0) raise(number), raise(number);
            if (way == 1) kill(getpid(), number);
            if (way == 2) sigqueue(getpid(), number, (union sigval){.sival_int = 42});
            push_out();
            if (fork() == 0) sigpending(&pending), _exit(sigismember(&pending, number));
            int status, got;
            wait(&status), sigpending(&pending);
            got = sigtimedwait(&sent_set, info, &now);
            show("way %d: child %d pending %d got %d code %d own %d value %d, once %d\n", way,
                 WEXITSTATUS(status), sigismember(&pending, number), got, info->si_code,
                 info->si_pid == getpid(), way == 2 ? info->si_value.sival_int : 0,
                 sigtimedwait(&sent_set, NULL, &now));
        }
        // From outside, while this thread waits; and to another thread that does.
        pid_t pid = fork();
        if (pid == 0) usleep(50000), kill(getppid(), number), _exit(0);
        int got = sigwaitinfo(&sent_set, info);
        show("waited: %d code %d from the child %d\n", got, info->si_code, info->si_pid == pid);
        wait_for(pid);
        pthread_t thread;
        void *result;
        pthread_create(&thread, NULL, take_one, info);
        usleep(50000);
        kill(getpid(), number);
        pthread_join(thread, &result);
        show("another thread: %d\n", result == info);
        // By calls with a mask of their own.
        struct sigaction action = {.sa_handler = on_hit};
        sigaction(number, &action, NULL);
        hits = 0;
        for (int way = 0; way < 3; way++) {
            int r = 0;
            raise(number);
            push_out();
            show("before %d, ", hits);
            if (way == 0) r = sigsuspend(&none);
            if (way == 1) r = ppoll(NULL, 0, &long_time, &none);
            if (way == 2) r = pselect(0, NULL, NULL, NULL, &long_time, &none);
            sigprocmask(SIG_BLOCK, NULL, &pending);
            show("call %d, hits %d, blocked %d\n", r, hits, sigismember(&pending, number));
        }
        // Whenever the signal comes, it is seen.
        int rounds = sent_rounds = 3000, seen = 0;
        sent_asked = 0, sent_to = pthread_self();
        pthread_create(&thread, NULL, send_when_asked, NULL);
        for (int i = 0; i < rounds; i++) {
            sent_asked++;
            for (int spin = 0; spin < i % 50; spin++) __asm__ volatile("pause");
            if (i % 2) seen += sigtimedwait(&sent_set, NULL, &long_time) == number;
            else seen += sigsuspend(&none) == -1 && hits == 3 + i / 2 + 1;
        }
        pthread_join(thread, NULL);
        show("seen %d of %d, hits %d\n", seen, rounds, hits);
        signal(number, SIG_DFL);
        sigprocmask(SIG_SETMASK, &none, NULL);
    }
}

static void block_afterwards(int number, siginfo_t *info, void *context) {
    (void)number, (void)info;
    sigset_t *mask = &((ucontext_t *)context)->uc_sigmask;
    sigaddset(mask, SIGBUS), sigaddset(mask, SIGSEGV);
}

// A handler changes the mask in its frame, on a stack that can be out and on one that cannot.
static void case_mask_in_frame(void) {
    stack_t stack = {.ss_sp = cold(1 << 20), .ss_size = 1 << 20};
    sigaltstack(&stack, NULL);
    sigset_t none;
    sigemptyset(&none);
    for (int way = 0; way < 2; way++) {
        struct sigaction action = {.sa_sigaction = block_afterwards,
                                   .sa_flags = SA_SIGINFO | (way ? SA_ONSTACK : 0)};
        sigaction(SIGUSR1, &action, NULL);
        raise(SIGUSR1);
        push_out();
        show("after a handler: right %d\n", big_is_right());
        sigprocmask(SIG_SETMASK, &none, NULL);
    }
}

static void case_mask_in_thread(void) {
    void *sleeper(void *argument) {
        (void)argument;
        sigset_t all, now;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, NULL);
        unsigned char *p = cold(64 * PAGE);
        pthread_sigmask(SIG_SETMASK, NULL, &now);
        show("thread %d bus %d\n", is_cold_pattern(p, 0, 64 * PAGE), sigismember(&now, SIGBUS));
        struct timespec *wait = (void *)(p + PAGE);
        siginfo_t *info = (void *)(p + 9 * PAGE);
        *wait = (struct timespec){20, 0};
        push_out();
        int got = sigtimedwait(&all, info, wait);
        show("waited %d %d\n", got, got == info->si_signo);
        return NULL;
    }
    // A thread inherits a mask that blocks all, and a process-directed signal waits for it.
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    pthread_t thread;
    pthread_create(&thread, NULL, sleeper, NULL);
    usleep(1000);
    pthread_kill(thread, SIGUSR2);
    pthread_join(thread, NULL);
    sigset_t none, *mask = (void *)cold(PAGE);
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, NULL);
    // Waiting calls that swap the mask, SIGBUS in it, everything in cold memory.
    struct timespec *soon = (void *)cold(PAGE);
    sigfillset(mask), *soon = (struct timespec){0, 1000000};
    push_out();
    show("ppoll %d", ppoll(NULL, 0, soon, mask));
    push_out();
    show(" pselect %d", pselect(0, NULL, NULL, NULL, soon, mask));
    show(" right %d\n", big_is_right());
}

static void on_storm(int number) {
    (void)number;
    sigset_t block, old;
    sigemptyset(&block), sigaddset(&block, SIGUSR2);
    sigprocmask(SIG_BLOCK, &block, &old), sigprocmask(SIG_SETMASK, NULL, &old);
    hits++;
}

// The mask that a call says was there before is right, however many handlers come in between.
static void case_mask_storm(void) {
    enum { TIMERS = 8, CALLS = 100000, STORM = 1000 };
    struct itimerspec often = {{0, 200000}, {0, 200000}};
    for (int i = 0; i < TIMERS; i++) {
        struct sigaction action = {.sa_handler = on_storm};
        if (i % 2) sigfillset(&action.sa_mask);
        sigaction(SIGRTMIN + i, &action, NULL);
        struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + i};
        timer_t timer;
        timer_create(CLOCK_MONOTONIC, &event, &timer), timer_settime(timer, 0, &often, NULL);
    }
    sigset_t mask, old;
    sigemptyset(&mask);
    sigprocmask(SIG_SETMASK, &mask, NULL);
    int wrong = 0;
    for (int i = 0; i < CALLS || hits < STORM; i++) {
        int was_blocked = sigismember(&mask, SIGUSR1);
        sigemptyset(&mask);
        if (!was_blocked) sigaddset(&mask, SIGUSR1);
        sigprocmask(SIG_SETMASK, &mask, &old);
        wrong += sigismember(&old, SIGUSR1) != was_blocked || sigismember(&old, SIGUSR2) ||
                 sigismember(&old, SIGRTMIN);
    }
    show("wrong %d\n", wrong);
}

static void case_alternate_stack(void) {
    static unsigned char *alternate;
    static volatile int inside, flags;
    void on_overflow(int number, siginfo_t *info, void *context) {
        (void)number, (void)info, (void)context;
        unsigned char here;
        stack_t now;
        sigaltstack(NULL, &now);
        inside = &here >= alternate && &here < alternate + 64 * 1024;
        flags = now.ss_flags;
        siglongjmp(back, 1);
    }
    alternate = map(64 * 1024);
    stack_t given = {.ss_sp = alternate, .ss_size = 64 * 1024}, got;
    sigaltstack(&given, NULL), sigaltstack(NULL, &got);
    show("alternate %d %zu %d\n", got.ss_sp == alternate, got.ss_size, got.ss_flags);
    handle(SIGSEGV, on_overflow, SA_ONSTACK);
    struct rlimit limit = {1 << 20, RLIM_INFINITY};
    setrlimit(RLIMIT_STACK, &limit);
    int endless(volatile char *above) {
        volatile char frame[4000];
        frame[0] = above ? above[0] + 1 : 0;
        return above == frame ? 0 : endless(frame) + frame[0];
    }
    for (int i = 0; i < 3; i++) {
        push_out();
        if (sigsetjmp(back, 1) == 0) endless(NULL);
        show("overflow: on the stack %d, flag %d\n", inside, flags & SS_ONSTACK);
    }
    given = (stack_t){.ss_flags = SS_DISABLE};
    sigaltstack(&given, &got), sigaltstack(NULL, &given);
    show("disabled %d, was %d, small: ", given.ss_flags == SS_DISABLE, got.ss_sp == alternate);
    given = (stack_t){.ss_sp = alternate, .ss_size = 100};
    show("%d", sigaltstack(&given, NULL));
    show(" %s\n", strerror(errno));
    show("right %d\n", big_is_right());
}

static void case_alarms(void) {
    struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    signal(SIGALRM, on_hit);
    setitimer(ITIMER_REAL, &often, NULL);
    int right = 1;
    while (hits < 100) push_out(), right &= big_is_right();
    setitimer(ITIMER_REAL, &never, NULL);
    show("alarms %d right %d\n", hits >= 100, right);
}

// An alternate stack that is disarmed while a handler runs on it, and armed again when that
// returns.
static void case_disarming(void) {
    static unsigned char *alternate;
    static volatile int inside, disarmed, told;
    void on_signal(int number, siginfo_t *info, void *context) {
        (void)number, (void)info;
        unsigned char here;
        stack_t now;
        sigaltstack(NULL, &now);
        push_out();
        inside += &here >= alternate && &here < alternate + 64 * 1024;
        disarmed += now.ss_flags == SS_DISABLE;
        told += ((ucontext_t *)context)->uc_stack.ss_sp == alternate;
    }
    alternate = map(64 * 1024);
    stack_t given = {.ss_sp = alternate, .ss_size = 64 * 1024, .ss_flags = (int)(1u << 31)}, got;
    sigaltstack(&given, NULL);
    handle(SIGUSR1, on_signal, SA_ONSTACK);
    for (int i = 0; i < 3; i++) raise(SIGUSR1), push_out();
    sigaltstack(NULL, &got);
    show("inside %d disarmed %d told %d armed %d\n", inside, disarmed, told,
         got.ss_sp == alternate);
}

// Backtraces, and so exceptions, pass through a handler, wherever its frame lies.
static volatile uintptr_t unwind_for, unwind_end;
static volatile int unwound;

static _Unwind_Reason_Code look(struct _Unwind_Context *frame, void *unused) {
    (void)unused;
    uintptr_t at = _Unwind_GetIP(frame);
    unwound += at >= unwind_for && at < unwind_end;
    return _URC_NO_REASON;
}

static void on_unwind(int number, siginfo_t *info, void *context) {
    (void)number, (void)info, (void)context;
    _Unwind_Backtrace(look, NULL);
}

__attribute__((noinline, noclone)) static void raise_within(int number) {
    unwind_for = (uintptr_t)raise_within, unwind_end = unwind_for + 256;
    raise(number);
    unwind_for = unwind_end = 0;
}

static void case_unwind(void) {
    handle(SIGUSR1, on_unwind, 0), handle(SIGUSR2, on_unwind, SA_ONSTACK);
    raise_within(SIGUSR1);
    show("plain %d\n", unwound);
    for (int kind = 0; kind < 2; kind++) {
        stack_t given = {
            .ss_sp = map(256 << 10), .ss_size = 256 << 10, .ss_flags = kind ? (int)(1u << 31) : 0};
        sigaltstack(&given, NULL), push_out();
        unwound = 0, raise_within(SIGUSR2);
        show("mapped %d\n", unwound);
    }
}

// A signal for which the stack has no room kills, as does a handler's frame on a guard page.
static void case_no_room(void) {
    unsigned char *stack = map(1 << 20);
    signal(SIGUSR1, on_hit);
    mprotect(stack, 512 << 10, PROT_NONE);
    push_out();
    pid_t pid = fork();
    if (pid == 0) {
        // kill(getpid(), SIGUSR1); exit_group(7), on a stack with 600 bytes left above the guard
        __asm__ volatile("mov %0, %%rsp; mov $39, %%eax; syscall;"
                         " mov %%eax, %%edi; mov $10, %%esi; mov $62, %%eax; syscall;"
                         "mov $7, %%edi; mov $231, %%eax; syscall"
                         :: "r"(stack + (512 << 10) + 600) : "memory");
    }
    int status = wait_for(pid);
    show("no room: signal %d, exit %d\n", WTERMSIG(status), WEXITSTATUS(status));
}

static void case_coroutines(void) {
    static ucontext_t outside, inside;
    static volatile long sum;
    void body(void) {
        for (int i = 0; i < 20; i++) {
            volatile char local[20000];
            memset((void *)local, i, sizeof local);
            swapcontext(&inside, &outside);
            for (size_t k = 0; k < sizeof local; k++) sum += local[k];
        }
    }
    struct itimerval often = {{0, 2000}, {0, 2000}}, never = {{0, 0}, {0, 0}};
    signal(SIGALRM, on_hit);
    setitimer(ITIMER_REAL, &often, NULL);
    getcontext(&inside);
    inside.uc_stack.ss_sp = cold(1 << 20), inside.uc_stack.ss_size = 1 << 20,
    inside.uc_link = &outside;
    makecontext(&inside, body, 0);
    for (int i = 0; i < 21; i++) {
        swapcontext(&outside, &inside);
        if (i % 3 == 0) push_out();
    }
    setitimer(ITIMER_REAL, &never, NULL);
    show("coroutine %ld\n", sum);
}

// ---- threads

static void *read_one(void *fds) {
    char *buffer = (char *)cold(4 * PAGE);
    ssize_t n = read(((int *)fds)[0], buffer + PAGE - 2, 10);
    return (void *)n;
}

static void case_cancel(void) {
    int fds[2];
    if (pipe(fds)) return;
    for (int i = 0; i < 20; i++) {
        pthread_t thread;
        void *result;
        pthread_create(&thread, NULL, read_one, fds);
        usleep(i * 100);
        pthread_cancel(thread);
        pthread_join(thread, &result);
        if (result != PTHREAD_CANCELED) show("not cancelled: %p\n", result);
    }
    show("cancelled, right %d\n", big_is_right());
}

static void fill_big(void) {
    big = map(BIG);
    for (size_t k = 0; k < BIG / 8; k++) big[k] = big_word(k);
}

struct late_read {
    int fds[2];
    unsigned char *into;
};

static void *read_late(void *argument) {
    struct late_read *call = argument;
    return (void *)read(call->fds[0], call->into, 100);
}

// A call that began before there was any need to page, into the middle of memory that is cold by
// the time it ends; and what becomes of that memory afterwards.
static void case_blocked(void) {
    struct late_read call;
    unsigned char *p = map(8 << 20), answer[100];
    put_cold_pattern(p, 8 << 20);
    const size_t at = (3 << 20) + PAGE - 50;
    for (size_t i = 0; i < sizeof answer; i++) answer[i] = cold_pattern(at + i);
    memset(p + at, 0, sizeof answer);
    call.into = p + at;
    if (pipe(call.fds)) return;
    pthread_t thread;
    void *result;
    pthread_create(&thread, NULL, read_late, &call);
    usleep(50000);
    // Pages that were lent to a pipe by then are the pipe's to read.
    int lent[2];
    if (pipe(lent)) return;
    struct iovec v = {p + (5 << 20), 8 * PAGE};
    ssize_t n = vmsplice(lent[1], &v, 1, 0);
    fill_big();
    push_out();
    unsigned char *got = map(8 * PAGE);
    show("lent %zd %zd", n, read(lent[0], got, 8 * PAGE));
    show(" %d\n", !memcmp(got, p + (5 << 20), 8 * PAGE));
    if (write(call.fds[1], answer, sizeof answer) != sizeof answer) return;
    pthread_join(thread, &result);
    show("read %ld, kept %d\n", (long)result, is_cold_pattern(p, 0, 8 << 20));
    push_out();
    p = mremap(p, 8 << 20, 4 << 20, 0);
    show("less %d\n", is_cold_pattern(p, 0, 4 << 20));
    push_out();
    unsigned char *q = mremap(p, 4 << 20, 16 << 20, MREMAP_MAYMOVE);
    show("more %d\n",
         q != MAP_FAILED && is_cold_pattern(q, 0, 4 << 20) && is_zero(q, 4 << 20, 16 << 20));
    push_out();
    mprotect(q + (2 << 20), 2 << 20, PROT_READ);
    show("part read only %d\n", is_cold_pattern(q, 0, 4 << 20));
    madvise(q + (3 << 20), PAGE, MADV_DONTNEED);
    show("dropped %d\n",
         is_zero(q, 3 << 20, (3 << 20) + PAGE) && is_cold_pattern(q, (3 << 20) + PAGE, 4 << 20));
}

// More such calls than are followed one by one, each into a page of its own.
static void case_many_blocked(void) {
    enum { THREADS = 300 };
    static struct late_read calls[THREADS];
    static pthread_t threads[THREADS];
    unsigned char *p = map(2 * THREADS * PAGE), answer[100];
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 40 << 10);
    for (int i = 0; i < THREADS; i++) {
        calls[i].into = p + 2 * i * PAGE;
        if (pipe(calls[i].fds)) return;
        if (pthread_create(&threads[i], &attributes, read_late, &calls[i])) return;
    }
    usleep(100000);
    fill_big();
    push_out();
    int right = 0;
    for (int i = 0; i < THREADS; i++) {
        void *result;
        for (size_t j = 0; j < sizeof answer; j++) answer[j] = cold_pattern(i + j);
        if (write(calls[i].fds[1], answer, sizeof answer) != sizeof answer) return;
        pthread_join(threads[i], &result);
        right += (long)result == sizeof answer && !memcmp(calls[i].into, answer, sizeof answer);
    }
    show("right %d\n", right);
}

static void case_own_stack(void) {
    int fds[2];
    if (pipe(fds)) return;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, cold(1 << 20), 1 << 20);
    push_out();
    pthread_t thread;
    void *result;
    pthread_create(&thread, &attributes, read_one, fds);
    push_out();
    if (write(fds[1], "hello", 5) != 5) return;
    pthread_join(thread, &result);
    show("own stack %ld\n", (long)result);
}

static void case_robust_mutex(void) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_t *mutex = (void *)(cold(1 << 20) + 64 * PAGE);
    pthread_mutex_init(mutex, &attributes);
    void *leave_locked(void *argument) {
        pthread_mutex_lock(argument);
        push_out();
        return NULL;
    }
    pthread_t thread;
    pthread_create(&thread, NULL, leave_locked, mutex);
    pthread_join(thread, NULL);
    push_out();
    int r = pthread_mutex_lock(mutex);
    show("robust %s\n", r == EOWNERDEAD ? "owner dead" : strerror(r));
    pthread_mutex_consistent(mutex), pthread_mutex_unlock(mutex);
    pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT);
    pthread_mutex_t *inherit = (void *)(cold(1 << 20) + 32 * PAGE);
    pthread_mutex_init(inherit, &attributes);
    push_out();
    show("inherit %d", pthread_mutex_lock(inherit));
    show(" %d\n", pthread_mutex_unlock(inherit));
}

static void case_many_threads(void) {
    void *work(void *argument) {
        uint64_t *p = map(16 * PAGE), sum = 0;
        for (size_t i = 0; i < 16 * PAGE / 8; i++) p[i] = i ^ (uintptr_t)argument;
        sched_yield();
        for (size_t i = 0; i < 16 * PAGE / 8; i++) sum += p[i] == (i ^ (uintptr_t)argument);
        munmap(p, 16 * PAGE);
        return (void *)sum;
    }
    long sum = 0;
    for (int round = 0; round < 20; round++) {
        pthread_t thread[24];
        for (long i = 0; i < 24; i++)
            pthread_create(&thread[i], NULL, work, (void *)(round * 100 + i));
        push_out();
        for (int i = 0; i < 24; i++) {
            void *result;
            pthread_join(thread[i], &result);
            sum += (long)result;
        }
    }
    show("threads %ld right %d\n", sum, big_is_right());
}

// ---- processes

static void case_spawn(void) {
    pid_t pid;
    char *words[] = {"echo", "spawned", NULL};
    posix_spawnp(&pid, "echo", NULL, NULL, words, environ);
    show("spawn %d\n", wait_for(pid));
    show("system %d\n", system("echo from the shell; exit 3"));
    FILE *pipe = popen("cat; echo end", "w");
    for (int i = 0; i < 5; i++) fprintf(pipe, "line %d\n", i);
    show("popen %d\n", pclose(pipe));
}

static void case_cold_arguments(void) {
    char **words = (char **)cold(1 << 20), *text = (char *)words + (1 << 19);
    for (int way = 0; way < 3; way++) {
        words[0] = "sh", words[1] = "-c", words[2] = text, words[3] = NULL;
        sprintf(text, "echo way %d, arguments from cold memory", way);
        push_out();
        pid_t pid;
        if (way == 0) posix_spawn(&pid, "/bin/sh", NULL, NULL, words, environ);
        else if ((pid = way == 1 ? vfork() : fork()) == 0) execv("/bin/sh", words), _exit(99);
        show("%d\n", wait_for(pid));
    }
}

// Memory that a child of vfork maps is its parent's, and so is what paging needs for it.
static void case_vfork_grows(void) {
    static unsigned char *volatile p;
    pid_t pid = vfork();
    if (pid == 0) p = map(64 << 20), _exit(0);
    wait_for(pid);
    put_cold_pattern(p, 8 << 20);
    fill_big();
    push_out();
    show("kept %d\n", is_cold_pattern(p, 0, 8 << 20));
}

static void case_fork(void) {
    unsigned char *p = cold(8 << 20);
    for (int generation = 0; generation < 3; generation++) {
        pid_t pid = fork();
        if (pid == 0) {
            show("generation %d: %d %d\n", generation, is_cold_pattern(p, 0, 8 << 20),
                 big_is_right());
            push_out();
            memset(p, generation, 1 << 20);
            int kept = is_cold_pattern(p, 1 << 20, 8 << 20);
            for (int i = 0; i < 1 << 20; i++) kept &= p[i] == generation;
            _exit(kept && big_is_right() ? generation + 10 : 99);
        }
        push_out();
        show("child %d, parent %d\n", WEXITSTATUS(wait_for(pid)), big_is_right());
    }
    show("parent %d\n", is_cold_pattern(p, 0, 8 << 20));
}

// Memory that a child finds empty, by advice to a range with a hole in it.
static void case_fork_wiped(void) {
    unsigned char *p = map(8 << 20);
    put_cold_pattern(p, 8 << 20);
    munmap(p + (1 << 20), PAGE);
    int r = madvise(p, 4 << 20, MADV_WIPEONFORK);
    show("advice %s\n", r ? strerror(errno) : "taken");
    push_out();
    if (fork() == 0) {
        show("child %d %d %d\n", is_zero(p, 0, 1 << 20),
             is_zero(p, (1 << 20) + PAGE, 4 << 20), is_cold_pattern(p, 4 << 20, 8 << 20));
        _exit(0);
    }
    wait_for(-1);
    show("parent %d\n", is_cold_pattern(p, 0, 1 << 20));
}

static void case_fork_tree(void) {
    // Every process makes two until the fourth level; each checks all.
    int level = 0, status = 0;
    push_out();
    pid_t child[2] = {0, 0};
    while (level < 3) {
        level++;
        child[0] = fork();
        if (child[0] == 0) continue;
        child[1] = fork();
        if (child[1] == 0) continue;
        status |= wait_for(child[0]) | wait_for(child[1]);
        break;
    }
    int right = big_is_right();
    if (level > 1 || child[0] == 0) _exit(status != 0 || !right);
    show("tree %d %d\n", status, right);
}

static void case_raw_clone(void) {
    push_out();
    pid_t pid = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (pid == 0) _exit(big_is_right() ? 7 : 8);
    show("clone %d\n", WEXITSTATUS(wait_for(pid)));
    // A child on a stack of its own in our memory, until it ends.
    int child(void *argument) {
        push_out();
        return *(unsigned char *)argument;
    }
    unsigned char *stack = cold(1 << 20);
    pid = clone(child, stack + (1 << 20) - 64, CLONE_VM | CLONE_VFORK | SIGCHLD, stack + 3);
    show("clone vm %d right %d\n", WEXITSTATUS(wait_for(pid)), big_is_right());
    // A child with a copy of our memory: it ends by exit, not by exit_group.
    pid = clone(child, stack + (1 << 20) - 64, SIGCHLD, stack + 3);
    show("clone copy %d right %d\n", WEXITSTATUS(wait_for(pid)), big_is_right());
}

// A child with a copy of our memory and a thread pointer of its own, to a copy of our thread area
// in memory that is out.
static void case_clone_with_pointer(void) {
    enum { BELOW = 512, ABOVE = 2304 };
    char *pointer, *area = (char *)cold(16 * PAGE) + 8 * PAGE, *stack = (char *)cold(1 << 20);
    __asm__("mov %%fs:0, %0" : "=r"(pointer));
    memcpy(area - BELOW, pointer - BELOW, BELOW + ABOVE);
    // Two of its words are its own address.
    memcpy(area, &area, sizeof area), memcpy(area + 16, &area, sizeof area);
    int child(void *argument) {
        char *mine;
        __asm__("mov %%fs:0, %0" : "=r"(mine));
        push_out();
        int fails = close(-1) == -1 && errno == EBADF;
        pid_t pid = fork();
        if (pid == 0) push_out(), _exit(big_is_right() ? 7 : 8);
        int right = WEXITSTATUS(wait_for(pid)) == 7 && big_is_right();
        return mine == argument && fails && right ? 7 : 8;
    }
    push_out();
    pid_t pid = syscall(SYS_clone, CLONE_SETTLS | SIGCHLD, NULL, NULL, NULL, area);
    if (pid == 0) _exit(child(area));
    show("on our stack %d\n", WEXITSTATUS(wait_for(pid)));
    push_out();
    pid = clone(child, stack + (1 << 20) - 64, CLONE_SETTLS | SIGCHLD, area, NULL, area);
    show("on another %d, right %d\n", WEXITSTATUS(wait_for(pid)), big_is_right());
    // The kernel refuses a pointer that is in no program's memory.
    pid = syscall(SYS_clone, CLONE_SETTLS | SIGCHLD, NULL, NULL, NULL, -4096ul);
    show("refused %d %s\n", pid, strerror(errno));
}

static void case_fork_with_threads(void) {
    static volatile int stop;
    void *churn(void *argument) {
        uint64_t *p = argument;
        while (!stop)
            for (size_t i = 0; i < 1024; i++) p[i * 512]++;
        return NULL;
    }
    void before(void) { push_out(); }
    pthread_atfork(before, before, before);
    pthread_t thread[3];
    for (int i = 0; i < 3; i++) pthread_create(&thread[i], NULL, churn, map(1024 * PAGE));
    int bad = 0;
    for (int i = 0; i < 4; i++) {
        pid_t pid = fork();
        if (pid == 0) _exit(!big_is_right());
        bad |= wait_for(pid);
    }
    stop = 1;
    for (int i = 0; i < 3; i++) pthread_join(thread[i], NULL);
    show("forks among threads %d %d\n", bad, big_is_right());
}

static void case_daemon(void) {
    int fds[2];
    if (pipe(fds)) return;
    push_out();
    pid_t pid = fork();
    if (pid == 0) {
        setsid();
        if (fork()) _exit(0);
        close(0), close(1), close(2);
        usleep(20000);
        push_out();
        char c = big_is_right() ? 'y' : 'n';
        _exit(write(fds[1], &c, 1) != 1);
    }
    wait_for(pid);
    char c = '?';
    ssize_t n = read(fds[0], &c, 1);
    show("daemon %zd %c\n", n, c);
}

static void case_close_all(void) {
    // With a table of descriptors of its own, too, the process is the only one that has a pipe.
    push_out();
    for (int way = 0; way < 2; way++) {
        int fds[2];
        char c;
        if (pipe2(fds, O_NONBLOCK)) return;
        if (way == 0) unshare(CLONE_FILES), close(fds[1]);
        else close_range(fds[1], fds[1], 1u << 1 /* CLOSE_RANGE_UNSHARE */);
        show("end of the pipe: %zd\n", read(fds[0], &c, 1));
        close(fds[0]);
    }
    close_range(3, ~0u, 0);
    for (int fd = 3; fd < 2000; fd++) close(fd);
    push_out();
    show("closed, right %d\n", big_is_right());
    for (int fd = 3; fd < 1000; fd++) dup2(1, fd);
    pid_t pid = fork();
    if (pid == 0) _exit(big_is_right() ? 5 : 6);
    show("child %d\n", WEXITSTATUS(wait_for(pid)));
    struct rlimit few = {8, 8};
    close_range(3, ~0u, 0), setrlimit(RLIMIT_NOFILE, &few);
    push_out();
    pid = fork();
    if (pid == 0) push_out(), _exit(big_is_right() ? 5 : 6);
    show("few descriptors: right %d child %d\n", big_is_right(), WEXITSTATUS(wait_for(pid)));
    int fd = open("/dev/null", O_RDONLY), seen = 0;
    struct stat about;
    for (int i = fd + 1; i < 70000; i++)
        seen += fstat(i, &about) == 0 || fcntl(i, F_GETFD) >= 0 || dup(i) >= 0;
    show("next descriptor %d, %d more\n", fd, seen);
}

// Limits on descriptors are the program's own, whatever uzswap needs above them.
static void case_descriptor_limit(void) {
    struct rlimit first, now = {64, 128};
    getrlimit(RLIMIT_NOFILE, &first);
    push_out();
    show("set %d ", setrlimit(RLIMIT_NOFILE, &now));
    struct rlimit wrong = {200, 100}, more = {64, first.rlim_max};
    show("wrong %d ", setrlimit(RLIMIT_NOFILE, &wrong));
    getrlimit(RLIMIT_NOFILE, &now);
    show("is %d %d\n", (int)now.rlim_cur, (int)now.rlim_max);
    int opened = 0, last = -1;
    for (int fd; (fd = open("/dev/null", O_RDONLY)) >= 0; opened++) last = fd;
    push_out();
    pid_t pid = fork();
    if (pid == 0)
        getrlimit(RLIMIT_NOFILE, &now), _exit(big_is_right() && now.rlim_max == 128 ? 5 : 6);
    show("opened %d, last %d, child %d\n", opened, last, WEXITSTATUS(wait_for(pid)));
    close_range(3, ~0u, 0);
    pid_t shell;
    char *argv[] = {"sh", "-c", "ulimit -Sn; ulimit -Hn", NULL};
    if (posix_spawnp(&shell, "sh", NULL, NULL, argv, environ) == 0) wait_for(shell);
    int r = prlimit(0, RLIMIT_NOFILE, &more, NULL);
    show("raised %d %d\n", r, r ? errno : 0);
}

static void case_exec_again(void) {
    char *level = getenv("EDGE_LEVEL");
    int n = level ? atoi(level) : 0;
    sigset_t mask;
    struct sigaction bus, segv;
    sigprocmask(SIG_SETMASK, NULL, &mask);
    sigaction(SIGBUS, NULL, &bus), sigaction(SIGSEGV, NULL, &segv);
    show("blocked %d %d ignored %d %d\n", sigismember(&mask, SIGBUS), sigismember(&mask, SIGSEGV),
         bus.sa_handler == SIG_IGN, segv.sa_handler == SIG_IGN);
    push_out();
    show("level %d right %d\n", n, big_is_right());
    if (n == 4) return;
    char text[16];
    sprintf(text, "%d", n + 1);
    setenv("EDGE_LEVEL", text, 1);
    // The mask and what is ignored survive an exec.
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    signal(SIGBUS, SIG_IGN), signal(SIGSEGV, SIG_IGN);
    execl("/proc/self/exe", "edge", "exec_again", NULL);
}

static volatile int execs_soon;

static void *touch_meanwhile(void *unused) {
    while (!execs_soon) push_out();
    for (;;) push_out();
    return unused;
}

// What a program of several threads ignores is ignored after its exec; the threads run meanwhile,
// and go on where the exec fails.
static void case_exec_with_threads(void) {
    char *level = getenv("EDGE_LEVEL");
    struct sigaction bus, segv;
    sigaction(SIGBUS, NULL, &bus), sigaction(SIGSEGV, NULL, &segv);
    show("level %s ignored %d %d\n", level ? level : "0", bus.sa_handler == SIG_IGN,
         segv.sa_handler == SIG_IGN);
    if (bus.sa_handler == SIG_IGN) raise(SIGBUS);
    if (segv.sa_handler == SIG_IGN) raise(SIGSEGV);
    char *next = !level ? "1" : *level == '1' ? "2" : NULL;
    signal(SIGBUS, level ? SIG_DFL : SIG_IGN), signal(SIGSEGV, SIG_IGN);
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, touch_meanwhile, NULL);
    }
    push_out();
    execs_soon = 1;
    for (int i = 0; i < 20; i++) execl("/dev/null", "null", NULL);
    show("failed, right %d\n", big_is_right());
    setenv("EDGE_LEVEL", next ? next : "", 1);
    if (next) execl("/proc/self/exe", "edge", "exec_with_threads", NULL);
}

static void case_empty_environment(void) {
    char *none[] = {NULL}, *words[] = {"edge", "grow", NULL};
    pid_t pid = fork();
    if (pid == 0) execve("/proc/self/exe", words, none), _exit(99);
    show("exit %d\n", wait_for(pid));
}

static void case_shared(void) {
    uint64_t *shared =
        mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutex_t *mutex = (void *)(shared + 1000);
    pthread_mutex_init(mutex, &attributes);
    pid_t pids[3];
    for (int i = 0; i < 3; i++)
        if ((pids[i] = fork()) == 0) {
            for (int k = 0; k < 2000; k++)
                pthread_mutex_lock(mutex), shared[0]++, pthread_mutex_unlock(mutex);
            push_out();
            _exit(!big_is_right());
        }
    int bad = 0;
    for (int i = 0; i < 3; i++) bad |= wait_for(pids[i]);
    show("shared %llu %d\n", (unsigned long long)shared[0], bad);
}

static void case_end_in_thread(void) {
    void *work(void *argument) {
        push_out();
        show("last thread: %d\n", big_is_right());
        return argument;
    }
    pthread_t thread;
    pthread_create(&thread, NULL, work, NULL);
    pthread_exit(NULL);
}

// The number of different values, among all threads of this process, of what /proc says of a
// thread's user, groups and rights.
static int kinds_of_threads(void) {
    char kinds[16][512];
    int n = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *d; (d = readdir(tasks));) {
        char path[300], line[256], all[512] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/status", d->d_name);
        FILE *status = d->d_name[0] == '.' ? NULL : fopen(path, "r");
        if (!status) continue;
        while (fgets(line, sizeof line, status))
            if (!strncmp(line, "Uid:", 4) || !strncmp(line, "Gid:", 4) ||
                !strncmp(line, "CapEff:", 7))
                strcat(all, line);
        fclose(status);
        int k = 0;
        while (k < n && strcmp(kinds[k], all)) k++;
        if (k == n && n < 16) strcpy(kinds[n++], all);
    }
    closedir(tasks);
    return n;
}

static void case_identity(void) {
    push_out();
    pid_t pid = fork();
    if (pid == 0) {
        push_out();
        int r = unshare(CLONE_NEWUSER);
        show("a user namespace: %d %s\n", r, r ? strerror(errno) : "");
        push_out();
        show("in it: %d, kinds of threads: %d\n", big_is_right(), kinds_of_threads());
        _exit(0);
    }
    wait_for(pid);
    void *wait_here(void *barrier) {
        return pthread_barrier_wait(barrier), pthread_barrier_wait(barrier), NULL;
    }
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_t thread;
    pthread_create(&thread, NULL, wait_here, &barrier);
    pthread_barrier_wait(&barrier);
    uid_t user = getuid() ? getuid() : 65534;
    show("groups %d\n", getuid() ? 0 : setgroups(1, &(gid_t){65534}));
    show("user %d\n", setresuid(user, user, user));
    show("kinds of threads: %d\n", kinds_of_threads());
    push_out();
    show("and back: %d %d\n", setresuid(0, 0, 0), big_is_right());
    pthread_barrier_wait(&barrier);
    pthread_join(thread, NULL);
}

#define CASE(name) {#name, case_##name, 0}
// Makes `big` by itself.
#define LATE(name) {#name, case_##name, 1}
static const struct {
    const char *name;
    void (*run)(void);
    int is_late;
} cases[] = {
    CASE(huge), CASE(only_read), LATE(blocked), CASE(grow), CASE(resize_in_place),
    CASE(refused_moves), CASE(none_and_back), CASE(read_only), CASE(map_fixed), CASE(private_file),
    CASE(run_code), CASE(read_own_memory), CASE(refused_advice), CASE(deep_stack), CASE(brk),
    CASE(bad_pointers), CASE(direct_io), CASE(kernel_aio), CASE(vmsplice), CASE(clocks),
    CASE(own_faults), CASE(deadly_faults), CASE(write_barrier), CASE(masks), CASE(mask_in_thread),
    CASE(mask_storm), CASE(alternate_stack), CASE(alarms), CASE(coroutines), CASE(cancel),
    CASE(own_stack), CASE(robust_mutex), CASE(many_threads), CASE(spawn), CASE(cold_arguments),
    CASE(fork), LATE(vfork_grows), CASE(fork_wiped), CASE(fork_tree), CASE(raw_clone),
    CASE(fork_with_threads), CASE(daemon), CASE(close_all), CASE(exec_again), CASE(disarming),
    CASE(unwind), CASE(no_room), CASE(descriptor_limit), CASE(empty_environment), CASE(shared),
    CASE(end_in_thread), CASE(identity), CASE(mask_in_frame), LATE(many_blocked),
    CASE(other_memory), CASE(clone_with_pointer), CASE(sent_faults), CASE(exec_with_threads),
};

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (!strcmp(argv[1], "--list")) puts(cases[i].name);
        if (strcmp(argv[1], cases[i].name)) continue;
        if (!cases[i].is_late) fill_big();
        cases[i].run();
        show("end %d\n", big_is_right());
        return 0;
    }
    return strcmp(argv[1], "--list") ? 2 : 0;
}
