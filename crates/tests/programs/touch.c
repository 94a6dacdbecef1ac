// touch: write memory as fast as it can, then read it all back and check it.
//
//     touch MIB THREADS [ROUNDS]
//
// Every thread owns a share of one mapping. A page's words follow from its address and the round; a
// third of each page is random, so that pages compress but are not trivial. Prints one checksum;
// exits 1 on a wrong word.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { PAGE_WORDS = 512, RANDOM_WORDS = 170 };

static uint64_t *memory;
static size_t pages;
static int threads, rounds = 1;
static uint64_t sums[64];

static uint64_t mix(uint64_t x) {
    x ^= x >> 33, x *= 0xff51afd7ed558ccdull, x ^= x >> 29;
    return x;
}

static void fill(uint64_t *page, uint64_t id) {
    uint64_t x = mix(id + 1);
    for (int i = 0; i < RANDOM_WORDS; i++) page[i] = x = x * 6364136223846793005ull + id;
    for (int i = RANDOM_WORDS; i < PAGE_WORDS; i++) page[i] = id;
}

static int check(const uint64_t *page, uint64_t id) {
    uint64_t x = mix(id + 1), wrong = 0;
    for (int i = 0; i < RANDOM_WORDS; i++) wrong |= page[i] ^ (x = x * 6364136223846793005ull + id);
    for (int i = RANDOM_WORDS; i < PAGE_WORDS; i++) wrong |= page[i] ^ id;
    return wrong == 0;
}

static void *work(void *argument) {
    size_t self = (size_t)argument, sum = 0;
    size_t first = pages * self / threads, end = pages * (self + 1) / threads;
    for (int round = 0; round < rounds; round++) {
        for (size_t i = first; i < end; i++)
            fill(memory + i * PAGE_WORDS, i + ((uint64_t)round << 40));
        for (size_t i = first; i < end; i++) {
            if (!check(memory + i * PAGE_WORDS, i + ((uint64_t)round << 40))) {
                fprintf(stderr, "wrong bytes in page %zu, round %d, thread %zu\n", i, round, self);
                exit(1);
            }
            sum += mix(memory[i * PAGE_WORDS + i % PAGE_WORDS]);
        }
    }
    sums[self] = sum;
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    pages = strtoul(argv[1], NULL, 10) * 256, threads = atoi(argv[2]);
    if (argc > 3) rounds = atoi(argv[3]);
    memory = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || threads < 1 || threads > 64) return 2;
    pthread_t thread[64];
    for (int i = 0; i < threads; i++) pthread_create(&thread[i], NULL, work, (void *)(size_t)i);
    uint64_t sum = 0;
    for (int i = 0; i < threads; i++) pthread_join(thread[i], NULL), sum += sums[i];
    printf("%016llx\n", (unsigned long long)sum);
    return 0;
}
