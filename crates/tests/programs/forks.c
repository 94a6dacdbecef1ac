// forks: fill memory, fork, and write to all of it in each child as fast as it can, while the
// parent has its own.
//
//     forks MIB [CHILDREN [HELD_MS]]
//
// When all children have, and it was held for so long, each process checks every word of its own.
// Prints "right"; exits 1 on a wrong word, or if a child did not end well.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE_WORDS = 512 };

static uint64_t *memory;
static size_t words;

// Of each eight words two are unlike all others, so that pages compress but are not trivial.
static uint64_t word(size_t i, uint64_t whose) {
    return i % 8 < 2 ? (i + whose) * 0x9e3779b97f4a7c15ull : i / PAGE_WORDS + whose;
}

static void fill(uint64_t whose) {
    for (size_t i = 0; i < words; i++) memory[i] = word(i, whose);
}

static int is_right(uint64_t whose) {
    for (size_t i = 0; i < words; i++) {
        if (memory[i] != word(i, whose)) return fprintf(stderr, "wrong word %zu\n", i), 0;
    }
    return 1;
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    size_t bytes = strtoul(argv[1], NULL, 10) << 20;
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 2;
    words = bytes / 8;
    fill(1);
    unsigned children = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;
    int filled[2], all_filled[2];
    if (pipe(filled) < 0 || pipe(all_filled) < 0) return 2;
    for (unsigned i = 0; i < children; i++) {
        pid_t child = fork();
        if (child < 0) return 2;
        if (child > 0) continue;
        char none;
        close(all_filled[1]);
        fill(2 + i);
        if (write(filled[1], "", 1) != 1 || read(all_filled[0], &none, 1) != 0) _exit(2);
        _exit(!is_right(2 + i));
    }
    close(filled[1]);
    char one;
    for (unsigned i = 0; i < children; i++) {
        if (read(filled[0], &one, 1) != 1) return 1;
    }
    if (argc > 3) usleep(atoi(argv[3]) * 1000);
    close(all_filled[1]);
    for (unsigned i = 0; i < children; i++) {
        int status;
        if (wait(&status) < 0 || status != 0) return 1;
    }
    if (!is_right(1)) return 1;
    puts("right");
    return 0;
}
