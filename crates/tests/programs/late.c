// late: a thread stands before the instruction of a call for as long as it pleases its tracer.
//
//     late MIB
//
// The thread has passed all that comes before `read`, and has not made the call. Meanwhile its
// process fills MIB of memory; then the thread goes on, and the answer arrives. Prints what the
// call returned and whether all bytes are right.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ANSWER_BYTES = 100, STEPS_MAX = 100000, WAIT_US = 100000 };
static struct {
    _Atomic pid_t tid;
    _Atomic int goes, stands;
} *shared;
static int fds[2];
static unsigned char *into;

static void give_up(const char *what) {
    perror(what);
    exit(4);
}

static void *map(size_t bytes, int flags) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) give_up("late: mmap");
    return p;
}

static void *reader(void *unused) {
    (void)unused;
    shared->tid = gettid();
    while (!shared->goes) continue;
    return (void *)read(fds[0], into, ANSWER_BYTES);
}

static int traced(size_t bytes) {
    if (pipe(fds)) give_up("late: pipe");
    into = map(4096, MAP_PRIVATE);
    pthread_t thread;
    void *result;
    if (pthread_create(&thread, NULL, reader, NULL)) give_up("late: pthread_create");
    while (!shared->stands) usleep(1000);
    uint64_t *memory = map(bytes, MAP_PRIVATE);
    for (size_t i = 0; i < bytes / 8; i++) memory[i] = i * 0x9e3779b97f4a7c15ull;
    unsigned char answer[ANSWER_BYTES];
    for (int i = 0; i < ANSWER_BYTES; i++) answer[i] = i + 1;
    if (write(fds[1], answer, sizeof answer) != sizeof answer) give_up("late: write");
    pthread_join(thread, &result);
    int is_right = !memcmp(into, answer, sizeof answer);
    for (size_t i = 0; i < bytes / 8; i++) is_right &= memory[i] == i * 0x9e3779b97f4a7c15ull;
    printf("read %ld, right %d\n", (long)result, is_right);
    return 0;
}

// Whether the thread's next instruction is the call.
static int is_at_call(pid_t tid) {
    struct user_regs_struct regs;
    if (ptrace(PTRACE_GETREGS, tid, 0, &regs)) give_up("late: PTRACE_GETREGS");
    long text = ptrace(PTRACE_PEEKTEXT, tid, regs.rip, 0);
    return (text & 0xffff) == 0x050f && regs.rax == SYS_read && regs.rdx == ANSWER_BYTES;
}

int main(int argc, char **argv) {
    if (argc != 2) return fprintf(stderr, "usage: late MIB\n"), 2;
    shared = map(4096, MAP_SHARED);
    pid_t child = fork();
    if (child == 0) return traced(strtoul(argv[1], NULL, 10) << 20);
    while (!shared->tid) usleep(1000);
    pid_t tid = shared->tid;
    if (ptrace(PTRACE_SEIZE, tid, 0, 0)) give_up("late: PTRACE_SEIZE");
    if (ptrace(PTRACE_INTERRUPT, tid, 0, 0)) give_up("late: PTRACE_INTERRUPT");
    int status, steps = 0;
    waitpid(tid, &status, __WALL);
    shared->goes = 1;
    while (!is_at_call(tid) && steps++ < STEPS_MAX) {
        ptrace(PTRACE_SINGLESTEP, tid, 0, 0);
        waitpid(tid, &status, __WALL);
    }
    if (steps >= STEPS_MAX) return fprintf(stderr, "late: the call does not come\n"), 4;
    shared->stands = 1;
    usleep(WAIT_US);
    ptrace(PTRACE_DETACH, tid, 0, 0);
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 3;
}
