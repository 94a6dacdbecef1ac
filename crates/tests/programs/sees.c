// sees: what of uzswap a program sees in its environment and its descriptors.
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

int main(void) {
    for (char **e = environ; *e; e++) {
        if (strstr(*e, "UZSWAP") || strstr(*e, "LD_PRELOAD")) printf("sees: %s\n", *e);
    }
    for (int fd = 3; fd < 5000; fd++) {
        char path[64], target[256];
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        // By a call: what is hidden is not there, whatever /proc tells.
        if (fcntl(fd, F_GETFD) < 0) continue;
        ssize_t n = readlink(path, target, sizeof target - 1);
        target[n < 0 ? 0 : n] = 0;
        if (n < 0 || strstr(target, "uzswap"))
            printf("sees: %d is %s\n", fd, n < 0 ? "something" : target);
    }
    printf("sees: done\n");
    return 0;
}
