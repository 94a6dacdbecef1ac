// Memory of kinds that a pager must know from the ordinary one, beside MIB of that:
//   kinds MIB served         under a userfaultfd of the program's own: missing pages that it copies in from ordinary
//                            memory, ordinary memory that is registered when much of it is out, pages that are moved
//   kinds MIB file PATH      a private mapping of the file PATH, which has MIB too, and is written to
//   kinds MIB shared         two pieces of shared memory of 24 MiB, one of them a memfd that is
//                            mapped twice, in this process and in a child; they are there before
//                            the ordinary memory is
// It prints "ok" and ends with 0.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ordinary.h"

#define PAGE_BYTES 4096
#define SERVED_BYTES (8 << 20)
#define SHARED_BYTES (24 << 20)

// Of Linux 6.8, which headers may not know: UFFDIO_MOVE.
#define FEATURE_MOVE (1 << 16)
struct moved { uint64_t dst, src, len, mode; int64_t bytes; };
#define MOVE _IOWR(UFFDIO, 0x05, struct moved)

static int faults;

// Page n of the served region is page n of the ordinary memory.
static char *served;

static void *serve(void *nothing) {
    for (;;) {
        struct uffd_msg message;
        if (read(faults, &message, sizeof message) != sizeof message) continue;
        check(message.event == UFFD_EVENT_PAGEFAULT, "an event");
        size_t at = (message.arg.pagefault.address & -PAGE_BYTES) - (size_t)served;
        struct uffdio_copy copy = {
            .dst = (size_t)served + at, .src = (size_t)memory + at, .len = PAGE_BYTES};
        check(!ioctl(faults, UFFDIO_COPY, &copy) || errno == EEXIST, "UFFDIO_COPY");
    }
    return nothing;
}

static void enlist(void *start, size_t bytes) {
    struct uffdio_register range = {.range = {(size_t)start, bytes},
                                    .mode = UFFDIO_REGISTER_MODE_MISSING};
    check(!ioctl(faults, UFFDIO_REGISTER, &range), "UFFDIO_REGISTER");
}

static void serve_faults(void) {
    faults = syscall(SYS_userfaultfd, O_CLOEXEC);
    check(faults >= 0, "userfaultfd");
    struct uffdio_api api = {.api = UFFD_API};
    check(!ioctl(faults, UFFDIO_API, &api), "UFFDIO_API");
    served = mmap(0, SERVED_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(served != MAP_FAILED, "memory to be served");
    enlist(served, SERVED_BYTES);
    pthread_t thread;
    check(!pthread_create(&thread, 0, serve, 0), "pthread_create");
    for (int round = 0; round < 2; round++) {
        for (size_t at = 0; at < SERVED_BYTES; at += PAGE_BYTES)
            check(*(uint64_t *)(served + at) == value(at / 8), "a served page");
        check(is_right(), "ordinary memory");
    }
    // A quarter of the ordinary memory, of which most is out.
    enlist(memory + words / 4, words * 2);
    check(is_right(), "memory that was registered");
    if (api.features & FEATURE_MOVE) {
        check(!madvise(served, SERVED_BYTES, MADV_DONTNEED), "madvise");
        struct moved move = {.dst = (size_t)served, .src = (size_t)memory, .len = 64 * PAGE_BYTES};
        check(!ioctl(faults, MOVE, &move) && move.bytes == 64 * PAGE_BYTES, "UFFDIO_MOVE");
        for (size_t at = 0; at < 64 * PAGE_BYTES; at += PAGE_BYTES)
            check(*(uint64_t *)(served + at) == value(at / 8), "a page that was moved");
        for (size_t i = 0; i < 64 * WORDS_OF_PAGE; i++) {
            check(memory[i] == 0, "the place of a page that was moved");
            memory[i] = value(i);
        }
    }
    check(is_right(), "ordinary memory at last");
}

static void write_file(const char *path) {
    int file = open(path, O_RDONLY);
    check(file >= 0, "open");
    size_t count = words;
    uint64_t *copy = mmap(0, count * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    check(copy != MAP_FAILED, "mmap");
    for (size_t i = 0; i < count; i += WORDS_OF_PAGE) copy[i] += value(i) + 1;
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < count; i += WORDS_OF_PAGE) {
            check(copy[i] == value(i) + 1, "a word that was written");
            check(copy[i + 1] == 0, "a word of the file");
        }
        check(is_right(), "ordinary memory");
    }
}

static char *map_shared(int file, int flags) {
    char *piece = mmap(0, SHARED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | flags, file, 0);
    check(piece != MAP_FAILED, "shared memory");
    return piece;
}

// Shared memory, and the child that maps it as well.
static char *shared[3];
static pid_t child;

static void check_shared(void) {
    for (int i = 0; i < 3; i++)
        for (size_t at = 0; at < SHARED_BYTES; at += PAGE_BYTES)
            check(shared[i][at] == (i == 0 ? 1 : 2), "a shared page");
}

static void share(void) {
    int file = memfd_create("kinds", MFD_CLOEXEC);
    check(file >= 0 && !ftruncate(file, SHARED_BYTES), "memfd");
    shared[0] = map_shared(-1, MAP_ANONYMOUS);
    shared[1] = map_shared(file, 0);
    shared[2] = map_shared(file, 0);
    memset(shared[0], 1, SHARED_BYTES);
    memset(shared[1], 2, SHARED_BYTES);
    int pipe_of[2];
    check(!pipe(pipe_of), "pipe");
    child = fork();
    check(child >= 0, "fork");
    check_shared();
    if (!child) {
        check(write(pipe_of[1], "", 1) == 1, "write");
        for (;;) pause();
    }
    char ready;
    check(read(pipe_of[0], &ready, 1) == 1, "read");
    // Nobody tells this program when its shared memory has been seen.
    sleep(2);
}

int main(int count, char **arguments) {
    check(count >= 3, "arguments");
    int shares = !strcmp(arguments[2], "shared");
    if (shares) share();
    fill(atoi(arguments[1]));
    if (!strcmp(arguments[2], "served")) serve_faults();
    if (!strcmp(arguments[2], "file")) write_file(arguments[3]);
    if (shares) {
        for (int round = 0; round < 3; round++) {
            check(is_right(), "ordinary memory");
            check_shared();
        }
        kill(child, SIGKILL);
    }
    say("ok\n");
    _exit(0);
}
