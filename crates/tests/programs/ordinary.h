// The ordinary memory of a test program: words whose values their places tell; and its last words.
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define WORDS_OF_PAGE 512

static uint64_t *memory;
static size_t words;

static void say(const char *text) {
    if (write(1, text, strlen(text)) < 0) _exit(3);
}

static void check(int ok, const char *what) {
    if (!ok) {
        say("failed: ");
        say(what);
        say("\n");
        _exit(2);
    }
}

static uint64_t value(size_t i) { return i * 0x9e3779b97f4a7c15u >> 40; }

static void fill(size_t mib) {
    words = mib << 17;
    memory = mmap(0, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(memory != MAP_FAILED, "memory");
    for (size_t i = 0; i < words; i++) memory[i] = value(i);
}

static int is_right(void) {
    for (size_t i = 0; i < words; i += WORDS_OF_PAGE)
        if (memory[i] != value(i)) return 0;
    return 1;
}
