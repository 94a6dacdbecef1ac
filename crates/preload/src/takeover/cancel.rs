//! Calls during which a thread can be cancelled (pthread_cancel).
//!
//! musl, and glibc from 2.41 on, make all such calls at one place, by one sequence of instructions:
//!
//! ```text
//!  mov eax, [rdi]          the word that says whether the thread is cancelled; if so, no call
//!  ...
//!  mov r9, [rsp + 16]
//!  mov [rsp + 8], r11      where that word is: libc keeps it        <- replaced by a jump
//!  syscall
//!  ret
//! ```
//! The signal of pthread_cancel finds the thread in that sequence, or libc leaves it alone: then
//! the kernel restarts the call. A call that the hook makes is somewhere else. So the hook looks at
//! the word as libc does, in a sequence of its own, and a thread that is interrupted there while
//! the word is set gets EINTR, at which libc looks at the word again.
#![allow(unsafe_code)]
// # Safety charter
// The assembly makes the program's own call; it touches the array of arguments, which is the
// caller's, and the word, which libc reads at this call, too.

use core::sync::atomic::Ordering;

use uzswap::sys::Errno;

use super::thread::ThreadBlock;
use super::{Args, raw};

/// glibc's bit of the word.
const CANCELED_BITMASK: u32 = 8;
/// musl's word. In glibc it says that cancellation is disabled: no call is made in this way then.
const CANCEL: u32 = 1;

unsafe extern "C" {
    fn uzswap_cancellable_call(n: usize, args: *const usize, word: usize, sent: usize) -> isize;
    static uzswap_cancellable_begin: u8;
    static uzswap_cancellable_end: u8;
    static uzswap_cancellable_interrupted: u8;
}

core::arch::global_asm!(
    ".pushsection .text.uzswap_cancellable_call,\"ax\",@progbits",
    ".globl uzswap_cancellable_call",
    ".hidden uzswap_cancellable_call",
    ".globl uzswap_cancellable_begin",
    ".hidden uzswap_cancellable_begin",
    ".globl uzswap_cancellable_end",
    ".hidden uzswap_cancellable_end",
    ".globl uzswap_cancellable_interrupted",
    ".hidden uzswap_cancellable_interrupted",
    ".type uzswap_cancellable_call,@function",
    "uzswap_cancellable_call:",
    "    .cfi_startproc",
    "    push rbx",
    "    .cfi_adjust_cfa_offset 8",
    "    .cfi_rel_offset rbx, 0",
    "    mov rax, rdi",
    "    mov r11, rdx",
    "    mov rbx, rcx",
    "    mov rcx, rsi",
    "    mov rdi, [rcx]",
    "    mov rsi, [rcx + 8]",
    "    mov rdx, [rcx + 16]",
    "    mov r10, [rcx + 24]",
    "    mov r8,  [rcx + 32]",
    "    mov r9,  [rcx + 40]",
    "uzswap_cancellable_begin:",
    "    mov ecx, dword ptr [r11]",
    "    test ecx, {canceled}",
    "    jnz uzswap_cancellable_interrupted",
    "    cmp ecx, {cancel}",
    "    je uzswap_cancellable_interrupted",
    "    cmp dword ptr [rbx], 0",
    "    jne uzswap_cancellable_interrupted",
    "    syscall",
    "uzswap_cancellable_end:",
    "    pop rbx",
    "    .cfi_remember_state",
    "    .cfi_adjust_cfa_offset -8",
    "    .cfi_restore rbx",
    "    ret",
    "    .cfi_restore_state",
    "uzswap_cancellable_interrupted:",
    "    mov rax, {interrupted}",
    "    jmp uzswap_cancellable_end",
    "    .cfi_endproc",
    ".size uzswap_cancellable_call, . - uzswap_cancellable_call",
    ".popsection",
    canceled = const CANCELED_BITMASK,
    cancel = const CANCEL,
    interrupted = const Errno::EINTR.as_return(),
);

/// Makes the call of a hook for the program; where libc makes it one at which the thread can be
/// cancelled, so does this.
pub(super) fn call(t: &'static ThreadBlock, number: usize, a: Args) -> isize {
    let never = (&raw const NEVER).addr();
    let awaits = t.awaits_sent.load(Ordering::Relaxed) != 0;
    let sent = if awaits { t.sent_came.as_ptr().addr() } else { never };
    match t.cancel_word.load(Ordering::Relaxed) {
        0 if t.wait_mask.load(Ordering::Relaxed) == 0 && !awaits => raw(number, a),
        // Where the call is made, `has_ended_a_call` finds it.
        // SAFETY: as below; the words are ours.
        0 => unsafe { uzswap_cancellable_call(number, a.as_ptr(), never, sent) },
        // SAFETY: the program's own call (charter).
        word => unsafe { uzswap_cancellable_call(number, a.as_ptr(), word, sent) },
    }
}

/// The word of a call that is not cancelled, and of one that no signal ends.
static NEVER: u32 = 0;

/// Whether a signal that has found the thread at `ip` with `result` in rax has ended a call that
/// [`call`] has made.
pub(super) fn has_ended_a_call(ip: usize, result: u64) -> bool {
    ip == &raw const uzswap_cancellable_end as usize && result as isize == Errno::EINTR.as_return()
}

/// Where a thread goes on that the fault signal has interrupted at `ip`, if its call waits for that
/// and has not begun.
pub(super) fn ended_by_sent(t: &ThreadBlock, ip: usize) -> Option<usize> {
    let begin = &raw const uzswap_cancellable_begin as usize;
    let end = &raw const uzswap_cancellable_end as usize;
    let is_about_to = t.awaits_sent.load(Ordering::Relaxed) != 0 && (begin..end).contains(&ip);
    is_about_to.then_some(&raw const uzswap_cancellable_interrupted as usize)
}

/// The signals by which glibc and musl cancel threads.
const CANCEL_SIGNALS: [i32; 2] = [32, 33];

/// Where a thread goes on that such a signal has interrupted at `ip`, if its call is to end.
pub(super) fn interrupted(t: &ThreadBlock, sig: i32, ip: usize) -> Option<usize> {
    let begin = &raw const uzswap_cancellable_begin as usize;
    let end = &raw const uzswap_cancellable_end as usize;
    if !CANCEL_SIGNALS.contains(&sig) || !(begin..end).contains(&ip) {
        return None;
    }
    let at = t.cancel_word.load(Ordering::Relaxed) as *const u32;
    // A handler that was left by a jump has put nothing back.
    if at.is_null() {
        return None;
    }
    // SAFETY: the word that the interrupted call reads, too: it was given to it by `call`.
    let word = unsafe { at.read_volatile() };
    let is_cancelled = word & CANCELED_BITMASK != 0 || word == CANCEL;
    is_cancelled.then_some(&raw const uzswap_cancellable_interrupted as usize)
}
