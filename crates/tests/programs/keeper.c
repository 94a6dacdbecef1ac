// keeper: a process with rights, with secrets in its memory, that starts other programs.
//
//     keeper MIB ROUNDS
//
// It fills MIB of memory with pages that do not compress and begin with a mark, reads them back,
// and starts a program by a shell, ROUNDS times. At the end it says where its files without a name
// lie, and whether the mark is in them.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096, HIGHEST = 5000, LOOKED_AT = 64 << 20 };

// Made at run time, so that it is not in the program's own file.
static char mark[33];

static void fill(unsigned char *page, uint64_t id) {
    uint64_t x = id * 0x9E3779B97F4A7C15ull + 1;
    for (int i = 0; i < PAGE; i += 8) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        uint64_t word = x * 0x2545F4914F6CDD1Dull;
        memcpy(page + i, &word, 8);
    }
    memcpy(page, mark, 32);
}

static int is_right(const unsigned char *page, uint64_t id) {
    unsigned char wanted[PAGE];
    fill(wanted, id);
    return memcmp(page, wanted, PAGE) == 0;
}

static void look_at_files(void) {
    static char bytes[1 << 20];
    for (int fd = 3; fd < HIGHEST; fd++) {
        char path[64], target[512];
        struct stat st;
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(path, target, sizeof target - 1);
        if (n <= 0) continue;
        target[n] = 0;
        if (!strstr(target, " (deleted)") || target[0] != '/' || strstr(target, "memfd:")) continue;
        int file = open(path, O_RDONLY | O_CLOEXEC);
        if (file < 0 || fstat(file, &st)) continue;
        int found = 0;
        for (off_t at = 0; at < st.st_size && at < LOOKED_AT; at += sizeof bytes - PAGE) {
            ssize_t got = pread(file, bytes, sizeof bytes, at);
            found |= got > 0 && memmem(bytes, got, mark, 32) != NULL;
        }
        close(file);
        *strrchr(target, '/') = 0;
        printf("keeper: store in %s, %s\n", target, found ? "readable" : "sealed");
    }
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    for (int i = 0; i < 32; i++) mark[i] = "ABCDEFGHJKLMNPQR"[(i * 7 + i / 3) % 16];
    size_t pages = strtoul(argv[1], NULL, 10) * 256;
    unsigned char *memory =
        mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 2;
    for (size_t i = 0; i < pages; i++) fill(memory + i * PAGE, i);
    for (int round = 0; round < atoi(argv[2]); round++) {
        for (size_t i = 0; i < pages; i++) {
            if (!is_right(memory + i * PAGE, i)) return printf("keeper: page %zu is wrong\n", i), 1;
        }
        if (system("/bin/sh -c '/bin/true; true'")) return printf("keeper: a program failed\n"), 1;
    }
    look_at_files();
    printf("keeper: right\n");
    return 0;
}
