// rungs: a little of all that a program does with its memory, with each result looked at.
//
//     rungs MIB
//
// Prints one checksum and ends with 0; ends with 3, and says which call, where the system refuses
// something; with 1 on a wrong word.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE_WORDS = 512 };
static uint64_t *memory;
static size_t pages;

static void refused(const char *what, int error) {
    char text[128];
    int len = snprintf(text, sizeof text, "rungs: %s: %s\n", what, strerror(error));
    _exit(write(2, text, len) < 0 ? 4 : 3);
}

static uint64_t word(size_t page, int i) {
    uint64_t x = page * PAGE_WORDS + i + 1;
    // Half of the pages shrink well.
    return page % 2 ? x * 0x9e3779b97f4a7c15ull ^ x << 29 : page + i / 8;
}

static uint64_t sum_of(size_t from, size_t to) {
    uint64_t sum = 0;
    for (size_t p = from; p < to; p++)
        for (int i = 0; i < PAGE_WORDS; i++) {
            uint64_t found = memory[p * PAGE_WORDS + i];
            if (found != word(p, i)) {
                char text[128];
                int len =
                    snprintf(text, sizeof text, "rungs: wrong bytes in page %zu, word %d: %llx\n",
                             p, i, (unsigned long long)found);
                _exit(write(2, text, len) < 0 ? 4 : 1);
            }
            sum = sum * 31 + found;
        }
    return sum;
}

static void fill(size_t from, size_t to) {
    for (size_t p = from; p < to; p++)
        for (int i = 0; i < PAGE_WORDS; i++) memory[p * PAGE_WORDS + i] = word(p, i);
}

static void *half(void *result) {
    *(uint64_t *)result = sum_of(0, pages / 2);
    return NULL;
}

static void with_a_thread(void) {
    pthread_t thread;
    uint64_t sum = 0;
    int error = pthread_create(&thread, NULL, half, &sum);
    if (error) refused("pthread_create", error);
    fill(pages / 2, pages);
    if ((error = pthread_join(thread, NULL))) refused("pthread_join", error);
    if (sum != sum_of(0, pages / 2)) _exit(1);
}

static void with_a_child(void) {
    pid_t child = fork();
    if (child < 0) refused("fork", errno);
    if (!child) {
        sum_of(0, pages);
        memset(memory, 7, 64 << 12);
        _exit(0);
    }
    fill(0, 64);
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) refused("waitpid", errno);
    if (WIFEXITED(status) && WEXITSTATUS(status)) _exit(WEXITSTATUS(status));
    // The program that killed the child says so.
    if (WIFSIGNALED(status)) refused("the child", EINTR);
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    pages = strtoul(argv[1], NULL, 10) * 256;
    memory = mmap(NULL, pages << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) refused("mmap", errno);
    fill(0, pages);
    uint64_t sum = sum_of(0, pages);
    with_a_thread();
    with_a_child();
    if (mprotect(memory, 1 << 20, PROT_READ)) refused("mprotect", errno);
    sum_of(0, 256);
    if (mprotect(memory, 1 << 20, PROT_READ | PROT_WRITE)) refused("mprotect", errno);
    if (madvise(memory, 1 << 20, MADV_DONTNEED)) refused("madvise", errno);
    fill(0, 256);
    void *moved = mremap(memory, pages << 12, (pages + 256) << 12, MREMAP_MAYMOVE);
    if (moved == MAP_FAILED) refused("mremap", errno);
    memory = moved, pages += 256;
    fill(pages - 256, pages);
    sum = sum * 31 + sum_of(0, pages);
    if (munmap(memory, pages << 12)) refused("munmap", errno);
    printf("%016llx\n", (unsigned long long)sum);
    return fflush(stdout) ? 3 : 0;
}
