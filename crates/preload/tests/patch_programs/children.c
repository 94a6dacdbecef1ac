/* Children of all kinds: fork, vfork, posix_spawn, system, popen, clone with a stack of its own. */
#define _GNU_SOURCE
#include "check.h"
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static int shared;

static int in_child(void *arg) {
    *(int *)arg = 5;
    syscall(MAGIC_CALL);
    return 9;
}

static int status_of(pid_t pid) {
    int status = -1;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return WEXITSTATUS(status);
}

int main(void) {
    for (volatile int i = 0; i < 20; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            CHECK(syscall(MAGIC_CALL) == (hooked() ? MAGIC_ANSWER : -1));
            pid_t inner = fork();
            if (inner == 0) _exit(3);
            _exit(status_of(inner) + 1);
        }
        CHECK(status_of(pid) == 4);

        volatile int local = i;
        pid = vfork();
        if (pid == 0) {
            local = i + 100; /* shares our stack */
            shared = i;
            _exit(6);
        }
        CHECK(status_of(pid) == 6 && local == i + 100 && shared == i);

        pid = vfork();
        if (pid == 0) {
            execl("/bin/sh", "sh", "-c", "exit 8", NULL);
            _exit(errno);
        }
        CHECK(status_of(pid) == 8);

        char *argv[] = {"sh", "-c", "exit 11", NULL};
        CHECK(posix_spawn(&pid, "/bin/sh", NULL, NULL, argv, environ) == 0 && status_of(pid) == 11);
        CHECK(posix_spawn(&pid, "/nonexistent", NULL, NULL, argv, environ) == ENOENT);

        char *stack =
            mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        int value = 0;
        CHECK(status_of(clone(in_child, stack + (1 << 16), CLONE_VM | CLONE_VFORK | SIGCHLD,
                              &value)) == 9);
        CHECK(value == 5);
        CHECK(status_of(clone(in_child, stack + (1 << 16), SIGCHLD, &value)) == 9);
        munmap(stack, 1 << 16);
    }
    CHECK(WEXITSTATUS(system("exit 12")) == 12);
    FILE *p = popen("echo from a pipe", "r");
    char line[64];
    CHECK(p && fgets(line, sizeof line, p) && !strcmp(line, "from a pipe\n") && pclose(p) == 0);
    puts("children ok");
}
