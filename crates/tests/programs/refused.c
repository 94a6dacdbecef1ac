// refused: hold memory that does not compress, and check it.
//
//     refused MIB [ROUNDS]
//
// Pages are touched in no order that one could read on in, so that each is a fault of its own where
// it is missing. In the last round half of them are written anew, with contents that compress.
// Prints one checksum; exits 1 on a wrong word.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { PAGE_WORDS = 512, STEP = 1000003 };

static uint64_t word(uint64_t id, int i) {
    uint64_t x = (id << 16) + i + 1;
    x ^= x >> 31, x *= 0x9e3779b97f4a7c15ull, x ^= x >> 29, x *= 0xbf58476d1ce4e5b9ull;
    return x ^ x >> 32;
}

// The contents of a page: random words, or one word and a little.
static uint64_t content(uint64_t id, int round, int i) {
    return round % 2 && id % 2 ? id + (i == 7) : word(id, i);
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    size_t pages = strtoul(argv[1], NULL, 10) * 256;
    int rounds = argc > 2 ? atoi(argv[2]) : 2;
    uint64_t *memory =
        mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 2;
    uint64_t sum = 0;
    for (int round = 0; round < rounds; round++) {
        for (size_t n = 0; n < pages; n++) {
            size_t id = n * STEP % pages;
            uint64_t *page = memory + id * PAGE_WORDS;
            if (!round || id % 2)
                for (int i = 0; i < PAGE_WORDS; i++) page[i] = content(id, round, i);
        }
        for (size_t n = 0; n < pages; n++) {
            size_t id = n * STEP % pages;
            for (int i = 0; i < PAGE_WORDS; i++) {
                uint64_t found = memory[id * PAGE_WORDS + i];
                if (found != content(id, round, i)) {
                    fprintf(stderr, "wrong bytes in page %zu, word %d, round %d\n", id, i, round);
                    return 1;
                }
                sum = sum * 31 + found;
            }
        }
    }
    printf("%016llx\n", (unsigned long long)sum);
    return 0;
}
