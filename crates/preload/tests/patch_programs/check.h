/* A call number that no kernel has: the test hook answers it with 4242, so it shows whether a
   site is hooked. */
#pragma once
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#define MAGIC_CALL 499
#define MAGIC_ANSWER 4242
/* Set by the test when the hook is there. */
static inline int hooked(void) { return getenv("EXPECT_HOOK") != NULL; }
#define CHECK(what)                                                                     \
    do {                                                                                \
        if (!(what)) {                                                                  \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #what);        \
            exit(1);                                                                    \
        }                                                                               \
    } while (0)

/* A crash says where it was: registers, the top of the stack, and what is mapped at all these
   addresses. */
static void crashed(int sig, siginfo_t *info, void *context) {
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    unsigned long *stack = (unsigned long *)r[REG_RSP], words[64];
    for (int i = 0; i < 64; i++) words[i] = i < 23 ? (unsigned long)r[i] : stack[i - 23];
    fprintf(stderr, "signal %d code %d address %p rip %llx\n", sig, info->si_code, info->si_addr,
            r[REG_RIP]);
    for (int i = 0; i < 64; i++) fprintf(stderr, "%s%016lx", i % 8 ? " " : "\n", words[i]);
    char line[256];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        int named = 0;
        if (sscanf(line, "%lx-%lx", &start, &end) != 2) continue;
        for (int i = 0; i < 64; i++) named |= words[i] >= start && words[i] < end;
        if (named) fprintf(stderr, "\n%.*s", (int)strcspn(line, "\n"), line);
    }
    fprintf(stderr, "\n");
    signal(sig, SIG_DFL);
}
static void __attribute__((constructor)) report_crashes(void) {
    struct sigaction act;
    memset(&act, 0, sizeof act);
    act.sa_sigaction = crashed;
    act.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &act, NULL);
    sigaction(SIGBUS, &act, NULL);
}
