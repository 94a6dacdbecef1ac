// evil: a library that nobody asked for. Whoever loads it says so in a file, if that is there.
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

__attribute__((constructor)) static void loaded(void) {
    char line[64];
    int fd = open(FILE_OF_EVIL, O_WRONLY | O_APPEND | O_NOFOLLOW);
    int n = snprintf(line, sizeof line, "loaded by user %d\n", geteuid());
    if (fd >= 0 && write(fd, line, n) != n) _exit(3);
}
