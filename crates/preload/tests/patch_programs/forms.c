/* Every way of replacing an instruction, and every trap for it, written by hand. `tests` lists
   the functions with the value that each must return; all of them make MAGIC_CALL once or more,
   or not at all. */
#include "check.h"
#include <stdint.h>

#define FUNCTION(name, body)                                                                       \
    uint64_t name(uint64_t, uint64_t);                                                             \
    __asm__(".text\n.p2align 4\n.globl " #name "\n.type " #name ",@function\n" #name               \
            ":\n.cfi_startproc\n" body "\n.cfi_endproc\n.size " #name ", . - " #name               \
            "\n.p2align 4\n")

/* before: the instruction stays in place */
FUNCTION(before_one, "mov $499, %eax\n syscall\n ret");
FUNCTION(before_many, "mov $499, %eax\n mov %rdi, %rdx\n xor %esi, %esi\n syscall\n ret");
FUNCTION(before_sets_number_twice, "mov $1, %eax\n mov $499, %eax\n syscall\n ret");
FUNCTION(before_number_from_register, "mov %rdi, %rax\n mov %rsi, %rdi\n syscall\n ret");
/* the kernel looks at 32 bits of the number */
FUNCTION(before_high_bits, "movabs $0x7f000000000001f3, %rax\n syscall\n ret");
/* numbers beyond the table run inline */
FUNCTION(beyond_table, "mov $100000, %eax\n syscall\n ret");
FUNCTION(beyond_16_bits, "mov $0x7fff01f3, %eax\n syscall\n ret");
FUNCTION(partly_written_number, "mov $0x100, %eax\n mov $0xf3, %al\n nop\n nop\n nop\n syscall\n"
                                " ret");
/* over: what follows moves too */
FUNCTION(over_compare, "mov $499, %eax\n jmp 1f\n 1: syscall\n cmp $-4095, %rax\n jae 2f\n"
                       " add $1, %rax\n ret\n 2: ret");
FUNCTION(over_branch_taken, "mov $499, %eax\n jmp 1f\n 1: syscall\n test %eax, %eax\n jne 2f\n"
                            " mov $1, %eax\n ret\n 2: ret");
FUNCTION(over_branch_not_taken, "mov $499, %eax\n jmp 1f\n 1: syscall\n test %eax, %eax\n je 2f\n"
                                " mov $7, %eax\n ret\n 2: ret");
FUNCTION(over_far_branch, "mov $499, %eax\n jmp 1f\n 1: syscall\n test %eax, %eax\n jne 2f\n ret\n"
                          " .skip 300, 0x90\n 2: ret");
FUNCTION(over_jump, "mov $499, %eax\n jmp 1f\n .byte 0xcc\n 2: add $2, %rax\n ret\n 1: syscall\n"
                    " inc %eax\n jmp 2b");
FUNCTION(over_return, "mov $499, %eax\n jmp 1f\n 1: syscall\n mov %eax, %eax\n ret");
/* detour: nothing may move */
FUNCTION(detour, "mov $499, %eax\n jmp 1f\n 1: syscall\n jmp 2f\n 2: ret");
FUNCTION(detour_loop, "mov $3, %r8d\n mov $499, %eax\n 1: syscall\n 2: dec %r8d\n je 3f\n"
                      " mov $499, %eax\n jmp 1b\n 3: ret\n jmp 2b");
/* ways into the middle */
FUNCTION(entered_at_call, "mov $499, %eax\n test %rdi, %rdi\n jne 1f\n mov $39, %eax\n"
                          " 1: syscall\n nop\n nop\n nop\n ret");
FUNCTION(entered_in_neighbours, "mov $1, %edx\n test %rdi, %rdi\n jne 1f\n xor %edx, %edx\n"
                                " xor %esi, %esi\n 1: mov $499, %eax\n syscall\n"
                                " lea (%rax,%rdx), %rax\n ret");
__asm__(".section .rodata\n.p2align 2\n"
        "1: .long switch_a - 1b\n .long switch_b - 1b\n .long switch_c - 1b\n"
        " .set switch_table, 1b\n.text\n");
FUNCTION(switched, "lea switch_table(%rip), %rdx\n movslq (%rdx,%rdi,4), %rcx\n add %rdx, %rcx\n"
                   " xor %edx, %edx\n jmp *%rcx\n"
                   "switch_a: inc %edx\n inc %edx\n switch_b: inc %edx\n mov $499, %eax\n"
                   " switch_c: syscall\n mov %edx, %edx\n add %rdx, %rax\n ret");
/* entered from another function, by a short and by a long branch */
FUNCTION(entered_from_elsewhere, "mov $499, %eax\n 1: .set inner_entry, 1b\n syscall\n nop\n nop\n"
                                 " nop\n ret");
FUNCTION(short_entry, "mov %edi, %eax\n jmp inner_entry");
FUNCTION(long_entry, ".skip 400, 0x90\n mov %edi, %eax\n jmp inner_entry");
/* distances relative to the instruction */
__asm__(".data\n number_499: .long 499\n answer_store: .quad 0\n .text\n");
FUNCTION(rip_before, "mov number_499(%rip), %eax\n syscall\n ret");
FUNCTION(rip_after, "mov $499, %eax\n jmp 1f\n 1: syscall\n mov %rax, answer_store(%rip)\n"
                    " xor %eax, %eax\n mov answer_store(%rip), %rax\n ret");
/* as before, but with no padding in reach: only the relative instruction can move */
#define CROWD ".skip 300, 0x90\n"
FUNCTION(rip_only_before, CROWD "jmp 1f\n 1: mov number_499(%rip), %eax\n syscall\n jmp 2f\n"
                                " 2: ret\n" CROWD);
FUNCTION(rip_only_after, CROWD "mov $499, %eax\n jmp 1f\n 1: syscall\n cmpl $0, number_499(%rip)\n"
                               " jmp 2f\n 2: ret\n" CROWD);
/* and nothing at all: left as it is */
FUNCTION(hopeless, CROWD "mov $499, %eax\n jmp 1f\n 1: syscall\n jmp 2f\n 2: ret\n" CROWD);
/* the stack pointer must not move */
FUNCTION(pushes, "push %rbx\n .cfi_adjust_cfa_offset 8\n mov $499, %eax\n push %rdi\n"
                 " .cfi_adjust_cfa_offset 8\n syscall\n pop %rdi\n .cfi_adjust_cfa_offset -8\n"
                 " pop %rbx\n .cfi_adjust_cfa_offset -8\n ret");
/* two in a row */
FUNCTION(twice, "mov $499, %eax\n syscall\n mov %rax, %r8\n mov $499, %eax\n syscall\n"
                " add %r8, %rax\n ret");
FUNCTION(twice_close, "mov $499, %eax\n syscall\n mov $499, %eax\n syscall\n ret");
/* no calls at all: the bytes are inside other instructions, or data */
FUNCTION(in_immediate, "mov $0x050f050f, %eax\n ret");
__asm__(".text\n.p2align 4\ndata_between: .byte 0x0f, 0x05, 0x0f, 0x05, 0xff, 0xff, 0xff, 0xff\n"
        ".p2align 4\n");
/* the tail of a function without an entry of its own (as glibc's clone) */
__asm__(".text\n.p2align 4\n.globl cut_short\n.type cut_short,@function\ncut_short:\n"
        ".cfi_startproc\n mov $499, %eax\n"
        ".cfi_endproc\n syscall\n ret\n.p2align 4\n");
FUNCTION(after_cut, "ret");
uint64_t cut_short(uint64_t, uint64_t);

extern const unsigned char data_between[8] __attribute__((visibility("hidden")));

int main(void) {
    uint64_t magic = hooked() ? MAGIC_ANSWER : (uint64_t)-38;
    int fails = 0;
#define EXPECT(call, value)                                                                        \
    do {                                                                                           \
        uint64_t got = call, want = value;                                                         \
        if (got != want) fails++, printf("%s = %ld, not %ld\n", #call, (long)got, (long)want);     \
    } while (0)
    for (int round = 0; round < 3; round++) {
        EXPECT(before_one(0, 0), magic);
        EXPECT(before_many(0, 0), magic);
        EXPECT(before_sets_number_twice(0, 0), magic);
        EXPECT(before_number_from_register(499, 0), magic);
        EXPECT(before_high_bits(0, 0), magic);
        EXPECT(beyond_table(0, 0), -38);
        EXPECT(beyond_16_bits(0, 0), -38);
        EXPECT(partly_written_number(0, 0), magic);
        EXPECT(over_compare(0, 0), hooked() ? magic + 1 : magic);
        EXPECT(over_branch_taken(0, 0), magic);
        EXPECT(over_branch_not_taken(0, 0), 7);
        EXPECT(over_far_branch(0, 0), magic);
        EXPECT(over_jump(0, 0), (uint64_t)(uint32_t)(magic + 1) + 2);
        EXPECT(over_return(0, 0), (uint32_t)magic);
        EXPECT(detour(0, 0), magic);
        EXPECT(detour_loop(0, 0), magic);
        EXPECT(entered_at_call(1, 0), magic);
        EXPECT(entered_in_neighbours(0, 0), magic);
        EXPECT(entered_in_neighbours(1, 0), magic + 1);
        EXPECT(switched(0, 0), magic + 3);
        EXPECT(switched(1, 0), magic + 1);
        EXPECT(entered_from_elsewhere(0, 0), magic);
        EXPECT(short_entry(499, 0), magic);
        EXPECT(long_entry(499, 0), magic);
        EXPECT(rip_before(0, 0), magic);
        EXPECT(rip_after(0, 0), magic);
#ifdef NEAR /* a relative operand cannot move two gigabytes away */
        EXPECT(rip_only_before(0, 0), magic);
        EXPECT(rip_only_after(0, 0), magic);
#else
        EXPECT(rip_only_before(0, 0), -38);
        EXPECT(rip_only_after(0, 0), -38);
#endif
        EXPECT(hopeless(0, 0), -38);
        EXPECT(pushes(0, 0), magic);
        EXPECT(twice(0, 0), 2 * magic);
        EXPECT(twice_close(0, 0), magic);
        EXPECT(in_immediate(0, 0), 0x050f050f);
        EXPECT(cut_short(0, 0), magic);
        EXPECT(data_between[0] << 8 | data_between[1], 0x0f05);
    }
    if (fails) return 1;
    puts("forms ok");
    return 0;
}
