// dump: fill memory with marked pages, and end by a signal that writes a core dump.
//
//     dump MIB abort|segv|handler
//
// Each page begins with a mark and its number; the rest compresses. `handler`: the program has a
// handler, which takes it away and raises the signal again, as crash reporters do.
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static void again(int sig) {
    signal(sig, SIG_DFL);
    raise(sig);
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    size_t pages = strtoul(argv[1], NULL, 10) * 256;
    char *memory =
        mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 2;
    for (uint64_t i = 0; i < pages; i++) {
        uint64_t *page = (uint64_t *)(memory + i * 4096);
        for (int k = 2; k < 512; k++) page[k] = (i + k / 4) * 2654435761u >> 9;
        memcpy(page, "\x7fMARKED\n", 8);
        page[1] = i;
    }
    puts("filled");
    fflush(stdout);
    volatile int *volatile nowhere = (int *)8;
    if (!strcmp(argv[2], "segv")) *nowhere = 1;
    if (!strcmp(argv[2], "handler")) signal(SIGABRT, again);
    abort();
}
