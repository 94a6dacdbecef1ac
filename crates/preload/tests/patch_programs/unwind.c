/* Steps through hooked system calls one machine instruction at a time and unwinds from each:
   through trampoline, stub and hook, the caller must always be found. Also libc's calls,
   and longjmps out of handlers. */
#define _GNU_SOURCE
#include "check.h"
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>
#include <unwind.h>

static volatile int steps, lost;
static uintptr_t top_low, top_high; /* the function that must be found */
static uintptr_t lost_at;

static _Unwind_Reason_Code look(struct _Unwind_Context *c, void *found) {
    uintptr_t ip = _Unwind_GetIP(c);
    if (ip >= top_low && ip < top_high) return *(int *)found = 1, _URC_END_OF_STACK;
    return _URC_NO_REASON;
}

static void on_trap(int sig, siginfo_t *info, void *context) {
    (void)sig, (void)info;
    int found = 0;
    steps++;
    _Unwind_Backtrace(look, &found);
    if (!found && !lost++) lost_at = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
}

#define STEP_ON __asm__ volatile("pushfq\n orq $0x100, (%%rsp)\n popfq" ::: "cc", "memory")
#define STEP_OFF __asm__ volatile("pushfq\n andq $~0x100, (%%rsp)\n popfq" ::: "cc", "memory")

static __attribute__((noinline)) long own_call(long n) {
    long r;
    __asm__ volatile("syscall" : "=a"(r) : "a"(n) : "rcx", "r11", "memory");
    return r;
}

/* One section, so that its bounds can be had; the page behind it holds no other frame of
   interest. */
__attribute__((noinline, section("stepped_code"))) static void stepped(void) {
    char buffer[8];
    STEP_ON;
    getppid();
    syscall(MAGIC_CALL, 1, 2, 3, 4, 5, 6);
    (void)!read(-1, buffer, 8);
    (void)!write(-1, buffer, 8);
    usleep(1);
    STEP_OFF;
}

__attribute__((noinline, section("stepped_code"))) static void stepped_own(void) {
    STEP_ON;
    own_call(39);
    own_call(MAGIC_CALL);
    STEP_OFF;
}
extern char __start_stepped_code[], __stop_stepped_code[];

static sigjmp_buf out;
static void jump(int sig) { siglongjmp(out, sig); }

int main(void) {
    top_low = (uintptr_t)__start_stepped_code, top_high = (uintptr_t)__stop_stepped_code;
    struct sigaction trap = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigaction(SIGTRAP, &trap, NULL);
    stepped();
    CHECK(steps > 100);
    if (lost) fprintf(stderr, "lost %d of %d, first at %lx\n", lost, steps, lost_at);
    CHECK(lost == 0);
    steps = 0;
    stepped_own();
    CHECK(steps > 10);
    /* An executable is out of reach of the trampolines: each of its calls passes a stub of one
       instruction that no unwinder knows. Nothing else may be lost. */
    CHECK(lost <= 2);

    /* Out of a blocked call by longjmp, many times. */
    signal(SIGALRM, jump);
    int ends[2];
    CHECK(pipe(ends) == 0);
    for (volatile int i = 0; i < 200; i++) {
        struct itimerval soon = {{0, 0}, {0, 300}};
        char c;
        if (sigsetjmp(out, 1) == 0) {
            setitimer(ITIMER_REAL, &soon, NULL);
            for (;;) (void)!read(ends[0], &c, 1);
        }
    }
    puts("unwind ok");
}
