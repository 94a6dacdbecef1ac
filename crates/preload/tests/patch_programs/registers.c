/* Everything that a system call preserves must survive a hooked one: general registers, the red
   zone, vector and mask registers, mxcsr, the x87 control word and stack. The instruction is
   this program's own. */
#include "check.h"
#include <stdint.h>
#include <string.h>

struct state {
    uint64_t general[12]; /* rbx rbp r12-r15 rdi rsi rdx r10 r8 r9 */
    uint8_t red_zone[128];
    uint32_t mxcsr;
    uint16_t x87_control;
    double x87;
    uint8_t vectors[32][64] __attribute__((aligned(64)));
    uint64_t masks[8];
    uint64_t result;
};

/* run(in, out, number): loads everything from in, makes the call, stores everything to out.
   Three versions. */
#define RUN(name, load, store)                                                                     \
    void name(const struct state *in, struct state *out, uint64_t number);                         \
    __asm__(".text\n.globl " #name "\n.type " #name ",@function\n" #name ":\n.cfi_startproc\n"     \
            "push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n"              \
            "push %rsi\n push %rdx\n"                                                              \
            "sub $8, %rsp\n stmxcsr (%rsp)\n fnstcw 4(%rsp)\n"                                     \
            "mov %rdi, %rax\n" load                                                                \
            "ldmxcsr 224(%rax)\n fldcw 228(%rax)\n fldl 232(%rax)\n"                               \
            "lea 96(%rax), %rsi\n lea -128(%rsp), %rdi\n mov $16, %ecx\n"                          \
            "1: mov (%rsi), %rdx\n mov %rdx, (%rdi)\n add $8, %rsi\n add $8, %rdi\n dec %ecx\n"    \
            " jnz 1b\n"                                                                            \
            "mov 0(%rax), %rbx\n mov 8(%rax), %rbp\n mov 16(%rax), %r12\n mov 24(%rax), %r13\n"    \
            "mov 32(%rax), %r14\n mov 40(%rax), %r15\n mov 48(%rax), %rdi\n mov 56(%rax), %rsi\n"  \
            "mov 64(%rax), %rdx\n mov 72(%rax), %r10\n mov 80(%rax), %r8\n mov 88(%rax), %r9\n"    \
            "mov 8(%rsp), %rax\n"                                                                  \
            "syscall\n"                                                                            \
            "mov 16(%rsp), %rcx\n" /* out */                                                       \
            "mov %rbx, 0(%rcx)\n mov %rbp, 8(%rcx)\n mov %r12, 16(%rcx)\n mov %r13, 24(%rcx)\n"    \
            "mov %r14, 32(%rcx)\n mov %r15, 40(%rcx)\n mov %rdi, 48(%rcx)\n mov %rsi, 56(%rcx)\n"  \
            "mov %rdx, 64(%rcx)\n mov %r10, 72(%rcx)\n mov %r8, 80(%rcx)\n mov %r9, 88(%rcx)\n"    \
            "mov %rcx, %r9\n mov %rax, 2880(%r9)\n" store                                          \
            "lea -128(%rsp), %rsi\n lea 96(%r9), %rdi\n mov $16, %ecx\n"                           \
            "1: mov (%rsi), %rdx\n mov %rdx, (%rdi)\n add $8, %rsi\n add $8, %rdi\n dec %ecx\n"    \
            " jnz 1b\n"                                                                            \
            "stmxcsr 224(%r9)\n fnstcw 228(%r9)\n fstpl 232(%r9)\n"                                \
            "ldmxcsr (%rsp)\n fldcw 4(%rsp)\n"                                                     \
            "add $24, %rsp\n pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n"    \
            "ret\n.cfi_endproc\n.size " #name ", . - " #name "\n")

#define EACH16(insn_a)                                                                             \
    insn_a(0) insn_a(1) insn_a(2) insn_a(3) insn_a(4) insn_a(5) insn_a(6) insn_a(7)                \
    insn_a(8) insn_a(9) insn_a(10) insn_a(11) insn_a(12) insn_a(13) insn_a(14) insn_a(15)
#define EACH_HIGH(insn)                                                                            \
    insn(16) insn(17) insn(18) insn(19) insn(20) insn(21) insn(22) insn(23)                        \
    insn(24) insn(25) insn(26) insn(27) insn(28) insn(29) insn(30) insn(31)
#define AT(n, base) "256+64*" #n "(%" base ")"
#define LOAD_XMM(n) "movdqu " AT(n, "rax") ", %xmm" #n "\n"
#define STORE_XMM(n) "movdqu %xmm" #n ", " AT(n, "r9") "\n"
#define LOAD_YMM(n) "vmovdqu " AT(n, "rax") ", %ymm" #n "\n"
#define STORE_YMM(n) "vmovdqu %ymm" #n ", " AT(n, "r9") "\n"
#define LOAD_ZMM(n) "vmovdqu64 " AT(n, "rax") ", %zmm" #n "\n"
#define STORE_ZMM(n) "vmovdqu64 %zmm" #n ", " AT(n, "r9") "\n"
#define EACH_MASK(insn) insn(1) insn(2) insn(3) insn(4) insn(5) insn(6) insn(7)
#define LOAD_K(n) "kmovw 2304+8*" #n "(%rax), %k" #n "\n"
#define STORE_K(n) "kmovw %k" #n ", 2304+8*" #n "(%r9)\n"

RUN(run_sse, EACH16(LOAD_XMM), EACH16(STORE_XMM));
RUN(run_avx, EACH16(LOAD_YMM), EACH16(STORE_YMM) "vzeroupper\n");
RUN(run_avx512, EACH16(LOAD_ZMM) EACH_HIGH(LOAD_ZMM) EACH_MASK(LOAD_K),
    EACH16(STORE_ZMM) EACH_HIGH(STORE_ZMM) EACH_MASK(STORE_K) "vzeroupper\n");

static void compare(void (*run)(const struct state *, struct state *, uint64_t), int bytes,
                    int count, int masks) {
    static struct state in;
    static struct { struct state s; char room[1024]; } out;
    for (int round = 0; round < 200; round++) {
        for (size_t i = 0; i < sizeof in; i++) ((uint8_t *)&in)[i] = rand();
        in.mxcsr = 0x1f80 | (round % 4) << 13 | (round & 4 ? 0x8040 : 0);
        in.x87_control = (0x37f & ~0xc00) | (round % 4) << 10;
        in.x87 = round * 1.5;
        memset(&out, 0xee, sizeof out);
        run(&in, &out.s, MAGIC_CALL);
        uint64_t result;
        memcpy(&result, (char *)&out + 2880, 8);
        CHECK(result == (hooked() ? (uint64_t)MAGIC_ANSWER : (uint64_t)-38));
        CHECK(!memcmp(in.general, out.s.general, sizeof in.general));
        CHECK(!memcmp(in.red_zone, out.s.red_zone, sizeof in.red_zone));
        CHECK(in.mxcsr == out.s.mxcsr && in.x87_control == out.s.x87_control &&
              in.x87 == out.s.x87);
        for (int i = 0; i < count; i++) CHECK(!memcmp(in.vectors[i], out.s.vectors[i], bytes));
        for (int i = 1; masks && i < 8; i++)
            CHECK((uint16_t)in.masks[i] == (uint16_t)out.s.masks[i]);
    }
}

_Static_assert(__builtin_offsetof(struct state, red_zone) == 96, "");
_Static_assert(__builtin_offsetof(struct state, mxcsr) == 224, "");
_Static_assert(__builtin_offsetof(struct state, x87) == 232, "");
_Static_assert(__builtin_offsetof(struct state, vectors) == 256, "");
_Static_assert(__builtin_offsetof(struct state, masks) == 2304, "");
_Static_assert(sizeof(struct state) <= 2880, "");

int main(void) {
    compare(run_sse, 16, 16, 0);
    if (getenv("SSE_ONLY")) return puts("registers ok"), 0;
    if (__builtin_cpu_supports("avx")) compare(run_avx, 32, 16, 0), puts("avx");
    if (__builtin_cpu_supports("avx512f")) compare(run_avx512, 64, 32, 1), puts("avx512");
    puts("registers ok");
}
