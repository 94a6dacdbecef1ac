// ladder: run a command, and let the n-th system call that the preload library makes there fail, or
// kill who makes it.
//
//     ladder count|once|ever|kill N COMMAND...
//
// A call is the library's if the instruction lies in its text. Calls that the kernel never refuses
// for want of something are not counted. `once`: that one fails. `ever`: all of that number fail
// from there on; only calls are counted for which something can be short for long. `kill`: the
// process that makes it is killed. `count`: none of this. Ends as the command does; the last line
// on stderr says how many calls were counted, and which failed.
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TASKS = 4096 };
static const char *LIBRARY = "/libuzswap_preload";

// A thread: where the library's text is in its process, and what is to become of the call that the
// thread is in.
struct task {
    pid_t tid;
    uint64_t start, end;
    int is_in_call, fails_with;
};
static struct task tasks[TASKS];
static int tasks_len;

static enum { COUNT, ONCE, EVER, KILL } mode;
static long rung, counted;
static long refused_number = -1, refused_calls;

static struct task *task_of(pid_t tid) {
    for (int i = 0; i < tasks_len; i++)
        if (tasks[i].tid == tid) return &tasks[i];
    for (int i = 0; i < tasks_len; i++)
        if (!tasks[i].tid) return tasks[i] = (struct task){.tid = tid}, &tasks[i];
    if (tasks_len == TASKS) fprintf(stderr, "ladder: too many threads\n"), exit(2);
    tasks[tasks_len] = (struct task){.tid = tid};
    return &tasks[tasks_len++];
}

static void find_library(struct task *t) {
    char name[64], line[8192];
    snprintf(name, sizeof name, "/proc/%d/maps", t->tid);
    FILE *f = fopen(name, "r");
    if (!f) return;
    while (fgets(line, sizeof line, f)) {
        unsigned long start, end;
        char access[8];
        if (sscanf(line, "%lx-%lx %4s", &start, &end, access) == 3 && access[2] == 'x' &&
            strstr(line, LIBRARY))
            t->start = start, t->end = end;
    }
    fclose(f);
}

// Whether the instruction is the library's. It may have been loaded since the latest look.
static int is_of_library(struct task *t, uint64_t at, long number) {
    if (!t->start || number == SYS_arch_prctl || number == SYS_set_robust_list) find_library(t);
    return t->start <= at && at < t->end;
}

static int is_in(const long *numbers, size_t len, long number) {
    for (size_t i = 0; i < len; i++)
        if (number == numbers[i]) return 1;
    return 0;
}
#define IS_IN(numbers, number) is_in(numbers, sizeof numbers / sizeof *numbers, number)

static int is_counted(long number) {
    static const long lasting[] = {SYS_mmap,        SYS_open,      SYS_openat,   SYS_memfd_create,
                                   SYS_userfaultfd, SYS_clone,     SYS_pread64,  SYS_io_submit,
                                   SYS_io_setup,    SYS_fallocate, SYS_ftruncate};

    static const long never[] = {SYS_getpid,        SYS_gettid,         SYS_sched_yield,
                                 SYS_clock_gettime, SYS_rt_sigreturn,   SYS_exit,
                                 SYS_exit_group,    SYS_rt_sigprocmask, SYS_futex,
                                 SYS_nanosleep,     SYS_getuid,         SYS_geteuid,
                                 SYS_brk,           SYS_rt_sigaction};
    return mode == EVER ? IS_IN(lasting, number) : !IS_IN(never, number);
}

// The error that the kernel has for such a call where something is short.
static int error_of(long number) {
    switch (number) {
        case SYS_read: case SYS_pread64: return EIO;
        case SYS_write: case SYS_pwrite64: case SYS_io_submit: case SYS_fallocate: return ENOSPC;
        case SYS_open:
        case SYS_openat:
        case SYS_memfd_create:
        case SYS_fcntl:
        case SYS_userfaultfd: return EMFILE;
        case SYS_clone: case SYS_fork: case SYS_vfork: return EAGAIN;
        default: return ENOMEM;
    }
}

static void say_who(pid_t tid) {
    char name[64], who[32] = "";
    snprintf(name, sizeof name, "/proc/%d/comm", tid);
    FILE *f = fopen(name, "r");
    if (f && fgets(who, sizeof who, f)) fprintf(stderr, "ladder: killed %s", who);
    if (f) fclose(f);
}

// A thread is about to make a call. True: it was killed instead.
static int enter(struct task *t, const struct __ptrace_syscall_info *info) {
    long number = (long)info->entry.nr;
    if (!is_of_library(t, info->instruction_pointer, number) || !is_counted(number)) return 0;
    counted++;
    int is_it = counted == rung && mode != COUNT;
    if (is_it && mode == KILL) {
        refused_number = number, refused_calls = 1;
        say_who(t->tid);
        return kill(t->tid, SIGKILL) == 0;
    }
    if (!is_it && !(mode == EVER && number == refused_number)) return 0;
    refused_number = number, refused_calls++;
    struct user_regs_struct regs;
    if (ptrace(PTRACE_GETREGS, t->tid, 0, &regs)) return 0;
    t->fails_with = error_of(number);
    regs.orig_rax = -1;
    ptrace(PTRACE_SETREGS, t->tid, 0, &regs);
    return 0;
}

static void leave(struct task *t) {
    if (!t->fails_with) return;
    struct user_regs_struct regs;
    if (ptrace(PTRACE_GETREGS, t->tid, 0, &regs)) return;
    regs.rax = -t->fails_with;
    t->fails_with = 0;
    ptrace(PTRACE_SETREGS, t->tid, 0, &regs);
}

static void at_call(struct task *t) {
    struct __ptrace_syscall_info info;
    if (ptrace(PTRACE_GET_SYSCALL_INFO, t->tid, sizeof info, &info) <= 0) return;
    if (info.op == PTRACE_SYSCALL_INFO_ENTRY) {
        if (!enter(t, &info)) return;
    } else if (info.op == PTRACE_SYSCALL_INFO_EXIT) {
        leave(t);
    }
}

// A thread has stopped. Which signal it is to have.
static int at_stop(struct task *t, int status, int *goes_on) {
    int sig = WSTOPSIG(status), event = status >> 16;
    *goes_on = PTRACE_SYSCALL;
    if (sig == (SIGTRAP | 0x80)) return at_call(t), 0;
    if (event == PTRACE_EVENT_STOP) {
        if (sig == SIGSTOP || sig == SIGTSTP || sig == SIGTTIN || sig == SIGTTOU)
            *goes_on = PTRACE_LISTEN;
        return 0;
    }
    if (event == PTRACE_EVENT_EXEC) return t->start = t->end = 0, 0;
    if (event) {
        unsigned long child = 0;
        ptrace(PTRACE_GETEVENTMSG, t->tid, 0, &child);
        struct task *c = task_of((pid_t)child);
        // It begins with what its parent has mapped.
        c->start = t->start, c->end = t->end;
        return 0;
    }
    return sig;
}

static int follow(pid_t first) {
    int status, ends_with = 0;
    for (pid_t tid; (tid = waitpid(-1, &status, __WALL)) > 0;) {
        struct task *t = task_of(tid);
        if (WIFSTOPPED(status)) {
            int how, sig = at_stop(t, status, &how);
            ptrace(how, tid, 0, sig);
        } else {
            t->tid = 0;
            if (tid == first)
                ends_with = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        }
    }
    return ends_with;
}

int main(int argc, char **argv) {
    static const char *const modes[] = {"count", "once", "ever", "kill"};
    if (argc < 4) return 2;
    for (mode = COUNT; mode <= KILL && strcmp(argv[1], modes[mode]); mode++) {}
    rung = atol(argv[2]);
    pid_t child = fork();
    if (!child) {
        raise(SIGSTOP);
        execvp(argv[3], argv + 3);
        _exit(127);
    }
    int status;
    waitpid(child, &status, WUNTRACED);
    long options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK |
                   PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL;
    if (ptrace(PTRACE_SEIZE, child, 0, options)) {
        fprintf(stderr, "ladder: ptrace: %s\n", strerror(errno));
        return 2;
    }
    kill(child, SIGCONT);
    int ends_with = follow(child);
    fprintf(stderr, "\nladder: counted %ld, number %ld refused %ld times\n", counted,
            refused_number, refused_calls);
    return ends_with;
}
