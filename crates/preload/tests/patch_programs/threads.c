/* Threads: made by libc, and by a bare clone whose child checks that it starts with its parent's
   registers. */
#define _GNU_SOURCE
#include "check.h"
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static void *count(void *arg) {
    for (int i = 0; i < 200; i++) syscall(MAGIC_CALL), getppid();
    __atomic_add_fetch((int *)arg, 1, __ATOMIC_RELAXED);
    return arg;
}

/* clone(flags, stack, parent_tid, child_tid, tls) with r9 and all callee-saved registers set;
   the child writes what it finds to `seen` (on its new stack) and exits; the parent returns the
   result. */
uint64_t bare_clone(uint64_t flags, uint64_t *stack_top, int *tids, uint64_t *parent_seen);
__asm__(".text\n.p2align 4\n.globl bare_clone\n.type bare_clone,@function\nbare_clone:\n"
        ".cfi_startproc\n"
        "push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n push %rcx\n"
        "mov %rdx, %r10\n xor %r8d, %r8d\n"
        "mov $0x1111, %ebx\n mov $0x2222, %ebp\n mov $0x3333, %r12d\n mov $0x4444, %r13d\n"
        " mov $0x5555, %r14d\n"
        "mov $0x6666, %r15d\n mov $0x7777, %r9d\n mov $0x8888, %eax\n movq %rax, %xmm0\n"
        " movq %rax, %xmm15\n"
        "mov $56, %eax\n syscall\n test %rax, %rax\n jnz 1f\n"
        "mov %rbx, -8(%rsp)\n mov %rbp, -16(%rsp)\n mov %r12, -24(%rsp)\n mov %r13, -32(%rsp)\n"
        " mov %r14, -40(%rsp)\n"
        "mov %r15, -48(%rsp)\n mov %r9, -56(%rsp)\n movq %xmm0, -64(%rsp)\n"
        " movq %xmm15, -72(%rsp)\n mov %rsp, -80(%rsp)\n"
        "mov %rdi, -88(%rsp)\n mov %rsi, -96(%rsp)\n mov %rdx, -104(%rsp)\n mov %r10, -112(%rsp)\n"
        "xor %edi, %edi\n mov $60, %eax\n syscall\n hlt\n"
        "1: pop %rcx\n mov %rbx, (%rcx)\n mov %rbp, 8(%rcx)\n mov %r12, 16(%rcx)\n"
        " mov %r13, 24(%rcx)\n mov %r14, 32(%rcx)\n"
        "mov %r15, 40(%rcx)\n mov %r9, 48(%rcx)\n movq %xmm0, 56(%rcx)\n movq %xmm15, 64(%rcx)\n"
        "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n ret\n"
        ".cfi_endproc\n.size bare_clone, . - bare_clone\n.p2align 4\n");

static void bare(void) {
    static const uint64_t expected[9] = {0x1111, 0x2222, 0x3333, 0x4444, 0x5555,
                                         0x6666, 0x7777, 0x8888, 0x8888};
    char *stack = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t *top = (uint64_t *)(stack + (1 << 16));
    int tid = 1;
    uint64_t parent[9] = {0};
    /* No SETTLS: the child shares our TLS, which is fine for code that uses none. */
    uint64_t flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD |
                     CLONE_SYSVSEM | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID;
    uint64_t child = bare_clone(flags, top, &tid, parent);
    CHECK((int64_t)child > 0);
    CHECK(!memcmp(parent, expected, sizeof expected));
    int now;
    while ((now = __atomic_load_n(&tid, __ATOMIC_ACQUIRE)) != 0)
        syscall(SYS_futex, &tid, FUTEX_WAIT, now, NULL);
    for (int i = 0; i < 9; i++) CHECK(top[-1 - i] == expected[i]);
    CHECK(top[-10] == (uint64_t)top && top[-11] == flags && top[-12] == (uint64_t)top);
    CHECK(top[-14] == (uint64_t)&tid);
    munmap(stack, 1 << 16);
    /* A clone that fails reports it, and nothing has changed. */
    memset(parent, 0, sizeof parent);
    CHECK((int64_t)bare_clone(CLONE_THREAD, top, &tid, parent) == -22);
    CHECK(!memcmp(parent, expected, sizeof expected));
}

int main(void) {
    int done = 0;
    pthread_t t[32];
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < 32; i++) CHECK(pthread_create(&t[i], NULL, count, &done) == 0);
        for (int i = 0; i < 32; i++) CHECK(pthread_join(t[i], NULL) == 0);
    }
    CHECK(done == 320);
    for (int i = 0; i < 50; i++) bare();
    puts("threads ok");
}
