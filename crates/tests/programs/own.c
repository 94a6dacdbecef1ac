// own: where uzswap's own memory lies, and what of it a core dump would have.
//
//     own MIB
//
// It fills MIB of memory, so that paging begins, and looks at its mappings:
//   - anonymous ones that are new since it began and are not its own must lie in the part far below
//     the library
//   - all of that part must be left out of core dumps ("dd")
//   - no expanded AES-256 key may be in anything that a core dump has; there must be one in what it
//     has not
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAPPINGS = 4096, TEXT_BYTES = 4 << 20, PIECE = 64 << 10, KEY_BYTES = 240 };
static const uint64_t FAR = 60ull << 30;

struct mapping {
    uint64_t from, to;
    int anonymous, readable, undumped, behind_file;
};
static struct mapping before[MAPPINGS], after[MAPPINGS];
static uint64_t library;

static int look(struct mapping *all) {
    static char text[TEXT_BYTES];
    size_t len = 0;
    int n = -1, fd = open("/proc/self/smaps", O_RDONLY | O_CLOEXEC);
    for (ssize_t got; (got = read(fd, text + len, sizeof text - 1 - len)) > 0;) len += got;
    close(fd);
    text[len] = 0;
    uint64_t chain = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        unsigned long from, to, inode;
        char mode[5], name[256] = "";
        if (sscanf(line, "%lx-%lx %4s %*s %*s %lu %255s", &from, &to, mode, &inode, name) >= 4) {
            if (++n == MAPPINGS) exit(2);
            all[n] =
                (struct mapping){from, to, !inode && !name[0], mode[0] == 'r', 0, from == chain};
            // The kernel shows the end of a file's segment (.bss), and what lies behind it, as
            // anonymous.
            chain = inode || from == chain ? to : 0;
            if (strstr(name, "libuzswap_preload") && !library) library = from;
        } else if (!strncmp(line, "VmFlags:", 8)) {
            all[n].undumped = strstr(line, " dd") != NULL;
        }
    }
    return n + 1;
}

static int is_key(const uint32_t *w) {
    int filled = 0;
    if (!w[0] && !w[1]) return 0;
    for (int i = 8; i < 60; i++) {
        if (i % 4 && w[i] != (w[i - 8] ^ w[i - 1])) return 0;
    }
    for (int i = 0; i < 60; i++) filled += w[i] != 0;
    return filled >= 50;
}

// As a debugger, or the kernel when it writes a core dump, reads it: what is missing cannot be
// read.
static int keys_in(const struct mapping *m) {
    static uint32_t words[(PIECE + KEY_BYTES) / 4];
    static int memory = -1;
    if (memory < 0) memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    int found = 0;
    for (uint64_t at = m->from; at < m->to; at += PIECE) {
        ssize_t n = pread(memory, words, sizeof words, at);
        for (ssize_t i = 0; n > 0 && i * 4 + KEY_BYTES <= n && i < PIECE / 4; i++)
            found += is_key(words + i);
    }
    return found;
}

static int is_in(const struct mapping *all, int n, const struct mapping *m) {
    for (int i = 0; i < n; i++) {
        if (all[i].from <= m->from && m->to <= all[i].to) return 1;
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    int n = look(before), wrong = 0, undumped = 0, dumped_keys = 0, hidden_keys = 0;
    size_t bytes = strtoul(argv[1], NULL, 10) << 20;
    unsigned char *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 2;
    uint64_t x = 88172645463325252ull;
    for (size_t i = 0; i < bytes / 8; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        ((uint64_t *)memory)[i] = x;
    }
    int m = look(after);
    for (int i = 0; i < m; i++) {
        struct mapping *a = &after[i];
        if (a->anonymous && a->to < library - FAR && a->from > library - (FAR << 2)) {
            undumped += a->undumped;
            if (!a->undumped)
                printf("own: %lx-%lx would be in a core dump\n", a->from, a->to), wrong++;
            if (a->readable) hidden_keys += keys_in(a);
            continue;
        }
        int is_mine = a->from >= (uint64_t)memory && a->to <= (uint64_t)memory + bytes;
        if (a->anonymous && !a->behind_file && !is_mine && !is_in(before, n, a)) {
            // The program's mapping may have grown together with a neighbour that was there before.
            int overlaps = a->from <= (uint64_t)memory && a->to >= (uint64_t)memory + bytes;
            if (!overlaps)
                printf("own: %lx-%lx lies where the kernel likes\n", a->from, a->to), wrong++;
        }
        if (a->readable && !a->undumped && a->from < 1ull << 47) dumped_keys += keys_in(a);
    }
    printf("own: %s mappings left out, %d wrong, keys %d and %s\n", undumped ? "some" : "no", wrong,
           dumped_keys, hidden_keys ? "hidden" : "none");
    return wrong || dumped_keys;
}
