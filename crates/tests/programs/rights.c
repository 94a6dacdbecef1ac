// A program changes its own rights, and who is in its memory, and must survive that under uzswap as
// it does alone:
//   rights MIB drop chroot|setuid|dumpable     gives something up, forks, and the child looks at every page
//   rights MIB jail kill|errno|strict [idle]   puts itself under a seccomp filter (idle: having nothing that would be paged)
//   rights MIB threads LIMIT_MIB               makes threads in so much address space until that is refused, and goes on
//   rights MIB guest                           another process in its memory, with a stack that was never touched, looks at every page
//   rights MIB killed ROUNDS                   such processes are killed while they do
//   rights MIB namespaces PROCESSES            so many children, each the first of a pid namespace, that have MIB each
// It prints "ok" and ends with 0.
#define _GNU_SOURCE
#include <errno.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ordinary.h"

#define STACK_BYTES (256 << 10)

static void look_in_child(void) {
    pid_t child = fork();
    check(child >= 0, "fork");
    if (child == 0) {
        memory[0] = value(0);
        _exit(is_right() ? 5 : 6);
    }
    int status;
    check(waitpid(child, &status, 0) == child, "waitpid");
    check(WIFEXITED(status) && WEXITSTATUS(status) == 5, "the child");
}

static void drop(const char *what) {
    if (!strcmp(what, "chroot")) {
        check(!chroot(".") && !chdir("/"), "chroot");
    } else if (!strcmp(what, "setuid")) {
        check(!setgroups(0, 0) && !setresgid(65534, 65534, 65534) &&
                  !setresuid(65534, 65534, 65534),
              "setuid");
    } else {
        check(!prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "dumpable");
    }
    look_in_child();
    look_in_child();
    check(is_right(), "the parent");
}

#define ALLOW(name) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_##name, 0, 1), \
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static void jail(const char *how) {
    unsigned refusal = !strcmp(how, "kill") ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | EPERM;
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(read),
        ALLOW(write),
        ALLOW(exit),
        ALLOW(exit_group),
        ALLOW(rt_sigreturn),
        ALLOW(brk),
        ALLOW(mmap),
        ALLOW(munmap),
        ALLOW(rt_sigaction),
        BPF_STMT(BPF_RET | BPF_K, refusal),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    check(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
    int is_strict = !strcmp(how, "strict");
    check(!(is_strict ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT)
                      : prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)),
          "the filter");
    for (int round = 0; round < 3; round++) check(is_right(), "memory under the filter");
    if (!is_strict) {
        static struct sigaction ignore = {.sa_handler = SIG_IGN};
        check(!sigaction(SIGUSR1, &ignore, 0), "sigaction");
        for (int i = 0; i < 64; i++) {
            char *more =
                mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            check(more != MAP_FAILED, "more memory");
            memset(more, i, 1 << 20);
        }
    }
    say("ok\n");
    syscall(is_strict ? SYS_exit : SYS_exit_group, 0);
}

static void *wait_for_ever(void *nothing) {
    pause();
    return nothing;
}

static void threads(size_t limit_mib) {
    struct rlimit limit = {limit_mib << 20, limit_mib << 20};
    check(!setrlimit(RLIMIT_AS, &limit), "setrlimit");
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 64 << 10);
    pthread_t thread;
    int error = 0;
    for (int i = 0; i < 30000 && !error; i++)
        error = pthread_create(&thread, &attributes, wait_for_ever, 0);
    check(error == EAGAIN, "the error of pthread_create");
    check(is_right(), "memory");
}

static int guest(void *rounds) {
    for (long i = 0; i < (long)rounds; i++)
        if (!is_right()) _exit(6);
    _exit(5);
}

static pid_t invite(long rounds) {
    char *stack = mmap(0, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(stack != MAP_FAILED, "a stack");
    pid_t child = clone(guest, stack + STACK_BYTES, CLONE_VM | SIGCHLD, (void *)rounds);
    check(child > 0, "clone");
    return child;
}

static void guests(void) {
    pid_t child = invite(2);
    check(is_right(), "beside the guest");
    int status;
    check(waitpid(child, &status, 0) == child, "waitpid");
    check(WIFEXITED(status) && WEXITSTATUS(status) == 5, "the guest");
    check(is_right(), "after the guest");
}

static void killed(int rounds) {
    for (int i = 0; i < rounds; i++) {
        pid_t child = invite(1000000);
        struct timespec moment = {0, 1000000 + i * 300000};
        nanosleep(&moment, 0);
        kill(child, SIGKILL);
        check(is_right(), "while a guest is killed");
        check(waitpid(child, 0, 0) == child, "waitpid");
    }
}

static void namespaces(size_t mib, int processes) {
    for (int i = 0; i < processes; i++) {
        pid_t child = syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0);
        check(child >= 0, "a pid namespace");
        if (child == 0) {
            check(getpid() == 1, "the first of its namespace");
            fill(mib);
            sleep(2);
            _exit(is_right() ? 5 : 6);
        }
    }
    for (int i = 0; i < processes; i++) {
        int status;
        check(wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 5,
              "a process of a namespace");
    }
}

int main(int count, char **arguments) {
    check(count >= 3, "arguments");
    size_t mib = atoi(arguments[1]);
    const char *what = arguments[2], *how = count > 3 ? arguments[3] : "";
    if (!strcmp(what, "namespaces")) {
        namespaces(mib, atoi(how));
    } else {
        fill(count > 4 ? 1 : mib);
        if (!strcmp(what, "drop")) drop(how);
        if (!strcmp(what, "jail")) jail(how);
        if (!strcmp(what, "threads")) threads(atoi(how));
        if (!strcmp(what, "guest")) guests();
        if (!strcmp(what, "killed")) killed(atoi(how));
    }
    say("ok\n");
    _exit(0);
}
