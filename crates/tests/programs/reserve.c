// reserve: map far more than is ever touched, as allocators and runtimes do, and touch a part of it
// as fast as it can.
//
//     reserve noreserve|mprotect MIB
//
// `noreserve`: mapped for reading and writing at once, with MAP_NORESERVE. `mprotect`: without any
// access first. What is touched is checked; prints one checksum.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const size_t RESERVED = 16ul << 30;

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    int closed = !strcmp(argv[1], "mprotect");
    size_t touched = strtoul(argv[2], NULL, 10) << 20;
    int prot = closed ? PROT_NONE : PROT_READ | PROT_WRITE;
    char *memory = mmap(NULL, RESERVED, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return 2;
    if (closed && mprotect(memory, RESERVED / 2, PROT_READ | PROT_WRITE)) return 2;
    for (size_t i = 0; i < touched; i += 4096) *(uint64_t *)(memory + i) = i * 2654435761u + 1;
    uint64_t sum = 0;
    for (size_t i = 0; i < touched; i += 4096) {
        uint64_t word = *(uint64_t *)(memory + i);
        if (word != i * 2654435761u + 1) {
            fprintf(stderr, "wrong bytes at %zu\n", i);
            return 1;
        }
        sum = sum * 31 + word;
    }
    printf("%016llx\n", (unsigned long long)sum);
    return 0;
}
