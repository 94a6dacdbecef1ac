// Memory of kinds that a pager must know from the ordinary one, beside MIB of that:
//   kinds MIB served         under a userfaultfd of the program's own: missing pages that it copies in from ordinary
//                            memory, ordinary memory that is registered when much of it is out, pages that are moved
//   kinds MIB file PATH      a private mapping of the file PATH, which has MIB too, and is written to
// It prints "ok" and ends with 0.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
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

int main(int count, char **arguments) {
    check(count >= 3, "arguments");
    fill(atoi(arguments[1]));
    if (!strcmp(arguments[2], "served")) serve_faults();
    if (!strcmp(arguments[2], "file")) write_file(arguments[3]);
    say("ok\n");
    _exit(0);
}
