//! The way from a patched `syscall` instruction into Rust and back.
//!
//! ```text
//!  program text          trampoline (trampoline.rs)          here
//!  ------------          --------------------------          ----
//!  mov eax, 1   ==>      mov eax, 1
//!  jmp trampoline        route of 1 is 0? ---- yes --> the instruction, nothing else
//!                        lea rcx, [after the syscall]
//!                        jmp  ------------------------------> uzswap_patch_slow
//!                                                             registers -> HookFrame, vectors -> xsave area
//!                                                             action = hook(&mut frame)
//!  next         <===========================================  RETURN: frame.rax is the result
//!  syscall      <===========================================  INLINE: everything as it was, the instruction runs
//!                                                             CLONE_THREAD: the instruction runs here, see below
//! ```
//!
//! A system call changes rax, rcx and r11 and nothing else, and compilers rely on it: vector
//! registers, the x87 and mask registers, mxcsr and the 128 bytes below rsp live on. So all of
//! these are kept here; only the arithmetic flags are not (every compiler assumes that a system
//! call overwrites them). AMX tiles and protection keys are left alone: nothing of ours touches
//! them.
//!
//! # CLONE_THREAD
//! The child of a `clone` with a new stack starts with our instruction pointer and its own stack,
//! which may be memory that is not there at the moment. So the child touches nothing of it: it
//! finds its [`ThreadStart`] in r9 (no clone call has a sixth argument), changes to that block's
//! stack, and is set up there before it goes on in the program. The parent goes through
//! [`Hooks::clone_parent`].
//!
//! # The hook stack
//! Where the program's stack may have no room, the slow path is `uzswap_patch_slow_own`, and the
//! frame lies on the thread's hook stack (`frame.rs`). Nothing of the program's stack is touched
//! then.
//!
//! # Unwinding
//! Every stage has call-frame information, because glibc cancels threads by unwinding out of a
//! signal handler through the interrupted system call; without it, cleanup handlers would silently
//! not run.
//!
//! # Safety charter
//! The assembly runs between two arbitrary instructions of the program. It may use the stack below
//! the red zone, rcx, r11 and the flags, and must leave everything else as it was. It builds each
//! `HookFrame`; hooks get exclusive access to it for the time of the call. The thread slot is
//! `thread_slot.rs`'s.
#![allow(unsafe_code)]

use core::arch::global_asm;
use core::mem::{offset_of, size_of};
use core::sync::atomic::{AtomicPtr, Ordering};

use super::frame::{
    ACTION_CLONE_THREAD, ACTION_INLINE, HOOK_FRAME_BYTES, HookFrame, PIECE_BYTES, ThreadStart,
};
use super::routes::{ROUTE_LIGHT_HOOK, ROUTE_TABLE};
use super::thread_slot::SLOT_IN_GS;
#[cfg(doc)]
use super::vectors::vector_state_bytes;
use super::vectors::{BY_XSAVE, SAVE_BYTES, SAVE_MASK, SAVE_METHOD, measure_vector_state};

/// Called for every system call whose route is not 0; returns one of the actions.
pub type Hook = extern "C" fn(*mut HookFrame) -> u64;
/// Called in a new thread, on the stack of its block, before the thread continues in the program.
pub type ThreadStartFn = extern "C" fn(*mut ThreadStart);
/// Called in the thread that made a new one, with the result of the clone (negative: there is no
/// child).
pub type CloneParentFn = extern "C" fn(*mut ThreadStart, isize);

extern "C" fn inline_hook(_: *mut HookFrame) -> u64 {
    ACTION_INLINE
}
extern "C" fn no_thread_start(_: *mut ThreadStart) {}
extern "C" fn no_clone_parent(_: *mut ThreadStart, _: isize) {}

static HOOK: AtomicPtr<()> = AtomicPtr::new(inline_hook as *mut ());
static THREAD_START: AtomicPtr<()> = AtomicPtr::new(no_thread_start as *mut ());
static CLONE_PARENT: AtomicPtr<()> = AtomicPtr::new(no_clone_parent as *mut ());

/// The three entries from the assembly into Rust.
#[derive(Clone, Copy)]
pub struct Hooks {
    pub hook: Hook,
    pub thread_start: ThreadStartFn,
    pub clone_parent: CloneParentFn,
}

/// Installs the hooks and measures the vector state. Call it before any route is set.
pub fn set_hooks(hooks: Hooks) {
    measure_vector_state();
    HOOK.store(hooks.hook as *mut (), Ordering::Release);
    THREAD_START.store(hooks.thread_start as *mut (), Ordering::Release);
    CLONE_PARENT.store(hooks.clone_parent as *mut (), Ordering::Release);
}

// ---- the stub ----------------------------------------------------------------------------------------------

const RED_ZONE: usize = 128;
const FRAME: usize = RED_ZONE + size_of::<HookFrame>();

unsafe extern "C" {
    /// Where trampolines go when a call's route leads to the hook.
    pub(super) fn uzswap_patch_slow();
    /// Where trampolines go when it leads there, and the hook runs on the thread's hook stack.
    pub(super) fn uzswap_patch_slow_own();
    fn uzswap_call_on_stack(top: usize, f: extern "C" fn(*mut u8), arg: *mut u8);
    fn uzswap_call_on_stack_saving_vectors(top: usize, f: extern "C" fn(*mut u8), arg: *mut u8);
}

global_asm!(
    // Both macros expect rbx = the frame; the save area lies under it, aligned, at rsp.
    ".macro uzswap_save_vectors",
    "    mov rsp, rbx",
    "    sub rsp, qword ptr [rip + {bytes}]",
    "    and rsp, -64",
    "    cmp dword ptr [rip + {method}], {by_xsave}",
    "    jb 2f",
    "    mov eax, dword ptr [rip + {mask}]",
    "    mov edx, 0",
    // The header behind the legacy area must be zero but for the bits that the instruction writes.
    "    mov [rsp + 512], rdx",
    "    mov [rsp + 520], rdx",
    "    mov [rsp + 528], rdx",
    "    mov [rsp + 536], rdx",
    "    mov [rsp + 544], rdx",
    "    mov [rsp + 552], rdx",
    "    mov [rsp + 560], rdx",
    "    mov [rsp + 568], rdx",
    "    jne 1f",
    "    xsave64 [rsp]",
    "    jmp 3f",
    "1:  xsavec64 [rsp]",
    "    jmp 3f",
    "2:  fxsave64 [rsp]",
    "3:",
    ".endm",
    ".macro uzswap_restore_vectors",
    "    cmp dword ptr [rip + {method}], {by_xsave}",
    "    jb 2f",
    "    mov eax, dword ptr [rip + {mask}]",
    "    xor edx, edx",
    "    xrstor64 [rsp]",
    "    jmp 3f",
    "2:  fxrstor64 [rsp]",
    "3:",
    ".endm",
    // From a frame at rsp: all that a system call preserves, except rbx, r12 and rcx.
    ".macro uzswap_load_frame",
    "    mov rax, [rsp + {rax}]",
    "    mov rdi, [rsp + {rdi}]",
    "    mov rsi, [rsp + {rsi}]",
    "    mov rdx, [rsp + {rdx}]",
    "    mov r10, [rsp + {r10}]",
    "    mov r8,  [rsp + {r8}]",
    "    mov r9,  [rsp + {r9}]",
    "    mov rbp, [rsp + {rbp}]",
    "    mov r13, [rsp + {r13}]",
    "    mov r14, [rsp + {r14}]",
    "    mov r15, [rsp + {r15}]",
    ".endm",
    ".macro uzswap_store_frame",
    "    mov [rsp + {rax}], rax",
    "    mov [rsp + {rdi}], rdi",
    "    mov [rsp + {rsi}], rsi",
    "    mov [rsp + {rdx}], rdx",
    "    mov [rsp + {r10}], r10",
    "    mov [rsp + {r8}], r8",
    "    mov [rsp + {r9}], r9",
    "    mov [rsp + {rbx}], rbx",
    "    mov [rsp + {rbp}], rbp",
    "    mov [rsp + {r12}], r12",
    "    mov [rsp + {r13}], r13",
    "    mov [rsp + {r14}], r14",
    "    mov [rsp + {r15}], r15",
    ".endm",
    "",
    ".pushsection .text.uzswap_patch_slow,\"ax\",@progbits",
    ".p2align 6",
    ".globl uzswap_patch_slow",
    ".hidden uzswap_patch_slow",
    ".type uzswap_patch_slow,@function",
    "uzswap_patch_slow:",
    "    .cfi_startproc",
    "    .cfi_def_cfa rsp, 0",
    "    .cfi_register rip, rcx",
    "    lea rsp, [rsp - {frame}]",
    "    .cfi_def_cfa_offset {frame}",
    "    uzswap_store_frame",
    "    mov [rsp + {ret}], rcx",
    "    .cfi_offset rip, {ret} - {frame}",
    "    .cfi_offset rbx, {rbx} - {frame}",
    "    .cfi_offset rbp, {rbp} - {frame}",
    "    .cfi_offset r12, {r12} - {frame}",
    "    .cfi_offset r13, {r13} - {frame}",
    "    .cfi_offset r14, {r14} - {frame}",
    "    .cfi_offset r15, {r15} - {frame}",
    "    lea rcx, [rsp + {frame}]",
    "    mov [rsp + {rsp}], rcx",
    "    mov qword ptr [rsp + {block}], 0",
    "    mov qword ptr [rsp + {own}], 0",
    "20: mov rbx, rsp",
    "    .cfi_def_cfa_register rbx",
    "    cld",
    "    mov ecx, eax",
    "    lea r11, [rip + {routes}]",
    "    cmp byte ptr [r11 + rcx], {light}",
    "    je 6f",
    "    uzswap_save_vectors",
    "    mov rdi, rbx",
    "    call qword ptr [rip + {hook}]",
    "    mov r12, rax",
    "    uzswap_restore_vectors",
    "3:  cmp r12d, {clone}",
    "    je 5f",
    // RETURN (0) and INLINE (1) go on at ret, or at the instruction two bytes before it.
    "4:  mov rsp, rbx",
    "    .cfi_remember_state",
    "    .cfi_def_cfa_register rsp",
    "    mov rcx, [rsp + {ret}]",
    "    sub rcx, r12",
    "    sub rcx, r12",
    "    uzswap_load_frame",
    "    mov r12, [rsp + {r12}]",
    "    mov rbx, [rsp + {rbx}]",
    "    mov r11, [rsp + {own}]",
    "    mov rsp, [rsp + {rsp}]",
    "    .cfi_def_cfa_offset 0",
    "    .cfi_register rip, rcx",
    "    .cfi_same_value rbx",
    "    .cfi_same_value rbp",
    "    .cfi_same_value r12",
    "    .cfi_same_value r13",
    "    .cfi_same_value r14",
    "    .cfi_same_value r15",
    "    test r11, r11",
    "    jnz 7f",
    "    jmp rcx",
    // The piece is given back when nothing on it is needed any more.
    "7:  add qword ptr [r11 + {b_bottom}], {piece}",
    "    inc qword ptr [r11 + {b_pieces}]",
    "    jmp rcx",
    "    .cfi_restore_state",
    "6:  sub rsp, 256",
    "    and rsp, -64",
    "    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
    "    movaps [rsp + 16 * \\n], xmm\\n",
    "    .endr",
    "    mov rdi, rbx",
    "    call qword ptr [rip + {hook}]",
    "    mov r12, rax",
    "    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
    "    movaps xmm\\n, [rsp + 16 * \\n]",
    "    .endr",
    "    jmp 3b",
    // CLONE_THREAD. The parent keeps its frame: the kernel gives the child another stack.
    "5:  mov rcx, [rbx + {block}]",
    "    mov rax, [rbx + {r9}]",
    "    mov [rcx + {b_r9}], rax",
    "    mov rax, [rbx + {ret}]",
    "    mov [rcx + {b_ret}], rax",
    "    mov rsp, rbx",
    "    .cfi_def_cfa_register rsp",
    "    uzswap_load_frame",
    "    mov r12, [rsp + {r12}]",
    "    mov rbx, [rsp + {rbx}]",
    "    mov r9, rcx",
    "    syscall",
    "    test rax, rax",
    "    jz uzswap_patch_child",
    "    mov [rsp + {rax}], rax",
    "    mov rbx, rsp",
    "    .cfi_def_cfa_register rbx",
    "    mov r12, r9",
    "    uzswap_save_vectors",
    "    mov rdi, r12",
    "    mov rsi, [rbx + {rax}]",
    "    call qword ptr [rip + {parent}]",
    "    uzswap_restore_vectors",
    "    xor r12d, r12d",
    "    jmp 4b",
    // The other entry, on the thread's hook stack. Nothing of the program's stack is touched.
    ".globl uzswap_patch_slow_own",
    ".hidden uzswap_patch_slow_own",
    "uzswap_patch_slow_own:",
    "    .cfi_def_cfa rsp, 0",
    "    .cfi_register rip, rcx",
    "    cmp byte ptr [rip + {in_gs}], 0",
    "    jne 8f",
    "    mov r11, qword ptr [rip + uzswap_thread_slot@GOTTPOFF]",
    "    mov r11, qword ptr fs:[r11]",
    "    jmp 9f",
    "8:  rdgsbase r11",
    "9:  test r11, r11",
    "    jz uzswap_patch_slow",
    "    cmp qword ptr [r11 + {b_pieces}], 0",
    "    je uzswap_patch_slow",
    "    dec qword ptr [r11 + {b_pieces}]",
    "    sub qword ptr [r11 + {b_bottom}], {piece}",
    "    mov r11, [r11 + {b_bottom}]",
    "    lea r11, [r11 + {piece} - {own_frame}]",
    "    mov [r11 + {rsp}], rsp",
    "    mov rsp, r11",
    "    .cfi_def_cfa_offset {frame}",
    "    uzswap_store_frame",
    "    mov [rsp + {ret}], rcx",
    "    mov qword ptr [rsp + {block}], 0",
    // The block's address once more: the frame's has taken its register.
    "    cmp byte ptr [rip + {in_gs}], 0",
    "    jne 8f",
    "    mov r11, qword ptr [rip + uzswap_thread_slot@GOTTPOFF]",
    "    mov r11, qword ptr fs:[r11]",
    "    jmp 9f",
    "8:  rdgsbase r11",
    "9:  mov [rsp + {own}], r11",
    "    jmp 20b",
    "    .cfi_endproc",
    ".size uzswap_patch_slow, . - uzswap_patch_slow",
    "",
    ".type uzswap_patch_child,@function",
    "uzswap_patch_child:",
    "    .cfi_startproc",
    "    .cfi_undefined rip",
    "    mov [r9 + {b_rsp}], rsp",
    "    mov rsp, [r9 + {b_stack}]",
    "    and rsp, -64",
    "    sub rsp, {frame}",
    "    uzswap_store_frame",
    "    mov rbx, rsp",
    "    mov r12, r9",
    "    uzswap_save_vectors",
    "    mov rdi, r12",
    "    cld",
    "    call qword ptr [rip + {child}]",
    "    uzswap_restore_vectors",
    "    mov rsp, rbx",
    "    uzswap_load_frame",
    "    mov r12, [rsp + {r12}]",
    "    mov rbx, [rsp + {rbx}]",
    "    xor eax, eax",
    "    mov rcx, [r9 + {b_ret}]",
    "    mov rsp, [r9 + {b_rsp}]",
    "    mov r9, [r9 + {b_r9}]",
    "    jmp rcx",
    "    .cfi_endproc",
    ".size uzswap_patch_child, . - uzswap_patch_child",
    "",
    ".globl uzswap_call_on_stack",
    ".hidden uzswap_call_on_stack",
    ".type uzswap_call_on_stack,@function",
    "uzswap_call_on_stack:",
    "    .cfi_startproc",
    "    push rbp",
    "    .cfi_def_cfa_offset 16",
    "    .cfi_offset rbp, -16",
    "    mov rbp, rsp",
    "    .cfi_def_cfa_register rbp",
    "    mov rsp, rdi",
    "    and rsp, -16",
    "    mov rdi, rdx",
    "    call rsi",
    "    mov rsp, rbp",
    "    pop rbp",
    "    .cfi_def_cfa rsp, 8",
    "    ret",
    "    .cfi_endproc",
    ".size uzswap_call_on_stack, . - uzswap_call_on_stack",
    "",
    ".globl uzswap_call_on_stack_saving_vectors",
    ".hidden uzswap_call_on_stack_saving_vectors",
    ".type uzswap_call_on_stack_saving_vectors,@function",
    "uzswap_call_on_stack_saving_vectors:",
    "    .cfi_startproc",
    "    push rbp",
    "    .cfi_def_cfa_offset 16",
    "    .cfi_offset rbp, -16",
    "    mov rbp, rsp",
    "    .cfi_def_cfa_register rbp",
    "    push rbx",
    "    push r12",
    "    .cfi_offset rbx, -24",
    "    .cfi_offset r12, -32",
    "    mov rbx, rdi",
    "    mov r12, rdx",
    "    uzswap_save_vectors",
    "    mov rdi, r12",
    "    call rsi",
    "    uzswap_restore_vectors",
    "    lea rsp, [rbp - 16]",
    "    pop r12",
    "    pop rbx",
    "    pop rbp",
    "    .cfi_def_cfa rsp, 8",
    "    ret",
    "    .cfi_endproc",
    ".size uzswap_call_on_stack_saving_vectors, . - uzswap_call_on_stack_saving_vectors",
    ".popsection",
    bytes = sym SAVE_BYTES,
    mask = sym SAVE_MASK,
    method = sym SAVE_METHOD,
    by_xsave = const BY_XSAVE,
    hook = sym HOOK,
    parent = sym CLONE_PARENT,
    child = sym THREAD_START,
    routes = sym ROUTE_TABLE,
    light = const ROUTE_LIGHT_HOOK,
    clone = const ACTION_CLONE_THREAD,
    frame = const FRAME,
    rax = const offset_of!(HookFrame, rax),
    rdi = const offset_of!(HookFrame, rdi),
    rsi = const offset_of!(HookFrame, rsi),
    rdx = const offset_of!(HookFrame, rdx),
    r10 = const offset_of!(HookFrame, r10),
    r8 = const offset_of!(HookFrame, r8),
    r9 = const offset_of!(HookFrame, r9),
    rbx = const offset_of!(HookFrame, rbx),
    rbp = const offset_of!(HookFrame, rbp),
    r12 = const offset_of!(HookFrame, r12),
    r13 = const offset_of!(HookFrame, r13),
    r14 = const offset_of!(HookFrame, r14),
    r15 = const offset_of!(HookFrame, r15),
    ret = const offset_of!(HookFrame, ret),
    rsp = const offset_of!(HookFrame, rsp),
    block = const offset_of!(HookFrame, thread_block),
    b_stack = const offset_of!(ThreadStart, stack_top),
    b_r9 = const offset_of!(ThreadStart, program_r9),
    b_rsp = const offset_of!(ThreadStart, program_rsp),
    b_ret = const offset_of!(ThreadStart, ret),
    b_bottom = const offset_of!(ThreadStart, hook_bottom),
    b_pieces = const offset_of!(ThreadStart, hook_pieces),
    own = const offset_of!(HookFrame, hook_stack),
    own_frame = const HOOK_FRAME_BYTES,
    piece = const PIECE_BYTES,
    in_gs = sym SLOT_IN_GS,
);

/// Runs `f(arg)` on the stack that ends at `top`.
///
/// # Safety
/// The stack must be large enough, in nobody else's use until `f` returns, and `f` must be sound to
/// call with `arg`; it must return normally (nothing unwinds or jumps out of it).
pub unsafe fn call_on_stack(top: usize, f: extern "C" fn(*mut u8), arg: *mut u8) {
    // SAFETY: an ordinary call but for the stack, for which the caller vouches.
    unsafe { uzswap_call_on_stack(top, f, arg) }
}

/// [`call_on_stack`] with the vector state kept, for hooks of [`ROUTE_LIGHT_HOOK`]: `f` may use all
/// vectors that the processor has.
///
/// # Safety
/// As for `call_on_stack`; the stack also holds [`vector_state_bytes`] and 64 more.
pub unsafe fn call_on_stack_saving_vectors(top: usize, f: extern "C" fn(*mut u8), arg: *mut u8) {
    // SAFETY: the caller's.
    unsafe { uzswap_call_on_stack_saving_vectors(top, f, arg) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patch::vectors::vector_state_bytes;

    #[test]
    fn a_call_runs_on_the_other_stack_and_returns() {
        extern "C" fn probe(arg: *mut u8) {
            let local = 0u8;
            // SAFETY: the test below passes a usize.
            unsafe { *(arg as *mut usize) = (&raw const local) as usize };
        }
        let mut stack = vec![0u8; 64 << 10];
        let range = stack.as_mut_ptr_range();
        let mut seen;
        measure_vector_state();
        for call in [call_on_stack, call_on_stack_saving_vectors] {
            seen = 0;
            // SAFETY: a fresh stack, a function that returns.
            unsafe { call(range.end as usize, probe, (&raw mut seen).cast()) };
            assert!((range.start as usize..range.end as usize).contains(&seen));
        }
    }

    #[test]
    fn the_frame_is_small() {
        measure_vector_state();
        assert!(FRAME + 64 + vector_state_bytes() <= 3584, "{}", vector_state_bytes());
    }
}
