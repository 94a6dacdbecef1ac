// enemy: a process of the tree that has given its rights up, and takes what it inherited to get
// them back.
//
//     enemy UID LIBRARY DIRECTORY ROUNDS
//
// It becomes user UID. Then, ROUNDS times, in every descriptor and every shared mapping that it
// has:
//   - each path of a library becomes LIBRARY, each other path DIRECTORY (both padded with slashes
//     to the same length)
//   - words that are 1 become 0, and back: switches
//   - everything becomes ones, then random words
//   - the file is cut, or holes are punched into it
// It says how much of which file it could write.
#define _GNU_SOURCE
#include <fcntl.h>
#include <grp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HIGHEST = 5000, LARGEST = 64 << 20, PIECE = 64 << 10 };

static const char *library, *directory;
static uint64_t state = 88172645463325252ull;

static uint64_t next(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

static int is_path(char c) { return c > ' ' && c < 127; }

// Puts LIBRARY or DIRECTORY in the place of each path; how many fitted.
static int replace_paths(char *bytes, size_t len) {
    int replaced = 0;
    for (size_t i = 0; i + 1 < len; i++) {
        if (bytes[i] != '/' || (i > 0 && bytes[i - 1])) continue;
        size_t end = i;
        while (end < len && is_path(bytes[end])) end++;
        char *found = memmem(bytes + i, end - i, ".so", 3);
        const char *by = found ? library : directory;
        size_t n = strlen(by);
        if (end - i >= n) {
            memset(bytes + i, '/', end - i);
            memcpy(bytes + end - n, by, n);
            replaced++;
        }
        i = end;
    }
    return replaced;
}

static void flip_switches(char *bytes, size_t len) {
    for (size_t i = 0; i + 4 <= len && i < 4096; i += 4) {
        uint32_t word;
        memcpy(&word, bytes + i, 4);
        if (word == 1) memset(bytes + i, 0, 4);
    }
}

static void spoil(char *bytes, size_t len, int how) {
    if (how == 0) replace_paths(bytes, len), flip_switches(bytes, len);
    if (how == 1) memset(bytes, 0xff, len);
    for (size_t i = 0; how == 2 && i + 8 <= len; i += 8) {
        uint64_t word = next();
        memcpy(bytes + i, &word, 8);
    }
}

// Overwrites a descriptor's file. Returns how much of it could be written.
static size_t attack_descriptor(int fd, size_t len, int how) {
    // In pieces: what it writes makes its own memory short, too, and a large buffer would not fit
    // any more.
    static char bytes[PIECE];
    size_t done = 0;
    for (size_t at = 0; at < len; at += PIECE) {
        ssize_t n = pread(fd, bytes, PIECE, at);
        if (n <= 0) break;
        spoil(bytes, n, how);
        ssize_t written = pwrite(fd, bytes, n, at);
        if (written > 0) done += written;
    }
    char *mapped = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped != MAP_FAILED) {
        spoil(mapped, len, how);
        munmap(mapped, len);
        done += len;
    }
    if (ftruncate(fd, len / 2) == 0) done++;
    if (how == 2 && fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0) done++;
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int again = open(path, O_RDWR | O_CLOEXEC);
    ssize_t written = again >= 0 ? pwrite(again, bytes, PIECE, 0) : 0;
    if (written > 0) done += written;
    if (again >= 0) close(again);
    return done;
}

// Writes over shared mappings of files in memory that this process has, whatever their protection
// is.
static size_t attack_mappings(int how) {
    static char lines[1 << 18];
    size_t done = 0, len = 0;
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    for (ssize_t n; (n = read(fd, lines + len, sizeof lines - 1 - len)) > 0;) len += n;
    close(fd);
    lines[len] = 0;
    for (char *line = strtok(lines, "\n"); line; line = strtok(NULL, "\n")) {
        unsigned long from, to;
        char mode[5];
        if (sscanf(line, "%lx-%lx %4s", &from, &to, mode) != 3 || mode[3] != 's') continue;
        if (!strstr(line, "uzswap")) continue;
        if (mprotect((void *)from, to - from, PROT_READ | PROT_WRITE)) continue;
        spoil((char *)from, to - from, how);
        done += to - from;
    }
    return done;
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    long id = atol(argv[1]);
    library = argv[2], directory = argv[3];
    if (id > 0 && (setgroups(0, NULL) || setgid(id) || setuid(id) || setuid(0) == 0)) return 2;
    size_t settings = 0, counters = 0;
    int found = 0;
    for (int round = 0; round < atoi(argv[4]); round++) {
        for (int fd = 3; fd < HIGHEST; fd++) {
            char path[64], target[256];
            struct stat st;
            snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
            ssize_t n = readlink(path, target, sizeof target - 1);
            if (n <= 0 || stat(path, &st) || st.st_size > LARGEST) continue;
            target[n] = 0;
            if (!strstr(target, "memfd:uzswap")) continue;
            found++;
            size_t *sum = strstr(target, "settings") ? &settings : &counters;
            *sum += attack_descriptor(fd, st.st_size, round % 3);
        }
        counters += attack_mappings(round % 3);
        usleep(1000);
    }
    printf("enemy: user %d, files %s, settings %s, counters %s\n", geteuid(),
           found ? "found" : "none", settings ? "written" : "safe", counters ? "written" : "safe");
    return 0;
}
