// neighbour: a program whose main thread's control block lies right behind a library's .bss.
//
//     neighbour where     prints how many pages lie between the two, and whether the kernel shows them as one mapping
//     neighbour run       works under memory pressure while the kernel writes to the control block; prints `right`
//
// Compiled twice, as the program and, with PAGES, as the library. Without randomised addresses
// where things lie follows from PAGES alone.
#ifdef PAGES

static char memory[PAGES * 4096];
char *neighbour_memory(void) { return memory; }
unsigned long neighbour_pages(void) { return PAGES; }

#else

#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <unistd.h>

char *neighbour_memory(void);
unsigned long neighbour_pages(void);

enum { PAGE = 4096, OTHER_PAGES = 16384, ROUNDS = 4 };

// It lies behind the thread's variables. So many of them fit into no hole between mappings but the
// one behind the library.
static __thread volatile char variables[4 << 20];

static uintptr_t control_block(void) {
    uintptr_t fs;
    __asm__("mov %%fs:0, %0" : "=r"(fs));
    return fs;
}

static int where(void) {
    const uintptr_t block = control_block();
    const uintptr_t end =
        ((uintptr_t)neighbour_memory() + neighbour_pages() * PAGE + PAGE - 1) / PAGE * PAGE;
    unsigned long low, high, start = 0;
    int one = variables[0];
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx", &low, &high) == 2 && low <= block && block < high) {
            start = low;
            one = low <= end - PAGE && end - PAGE < high;
        }
    printf("%ld %d\n", one ? 0 : ((long)start - (long)end) / PAGE, one);
    return start == 0;
}

static int run(void) {
    char *neighbour = neighbour_memory();
    const size_t pages = neighbour_pages();
    for (size_t i = 0; i < pages; i++) memset(neighbour + i * PAGE, 'a' + i % 26, 100 + i % 3000);
    uint64_t *other = mmap(NULL, (size_t)OTHER_PAGES * PAGE, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (other == MAP_FAILED) return perror("mmap"), 1;
    for (int round = 0; round < ROUNDS; round++)
        for (size_t i = 0; i < OTHER_PAGES; i++) {
            other[i * PAGE / 8 + i % 512] += i * 0x9e3779b97f4a7c15ull;
            // The kernel writes where the thread runs when it comes back to a processor.
            if (i % 64 == 0) usleep(1), sched_yield();
        }
    for (size_t i = 0; i < OTHER_PAGES; i++)
        if (other[i * PAGE / 8 + i % 512] != ROUNDS * i * 0x9e3779b97f4a7c15ull)
            return puts("wrong"), 1;
    for (size_t i = 0; i < pages; i++)
        for (size_t k = 0; k < PAGE; k++)
            if (neighbour[i * PAGE + k] != (k < 100 + i % 3000 ? (char)('a' + i % 26) : 0))
                return puts("wrong"), 1;
    return puts("right"), 0;
}

int main(int argc, char **argv) {
    const int now = personality(0xffffffff);
    if (now < 0) return perror("personality"), 1;
    if (!(now & ADDR_NO_RANDOMIZE)) {
        if (personality(now | ADDR_NO_RANDOMIZE) < 0) return perror("personality"), 1;
        execv("/proc/self/exe", argv);
        return perror("execv"), 1;
    }
    return argc > 1 && !strcmp(argv[1], "run") ? run() : where();
}

#endif
