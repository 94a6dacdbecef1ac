//! The thread slot: one word for each thread, in which the runtime keeps the address of the
//! thread's block.
//!
//! In a program for glibc it is a word of this library's static TLS block. A program that the
//! library has mapped itself (`boot`) has no such block, and sets its thread pointer when it likes.
//! There the word is the base of gs, a register that programs for x86-64 Linux leave alone (Wine
//! does not), and that a new thread inherits until it has a block of its own.
//!
//! # Safety charter
//! The static word exists in every thread that libc made. gs is used where the kernel says that
//! user code may (AT_HWCAP2), and nothing is ever read through it.
#![allow(unsafe_code)]

use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicBool, Ordering};

global_asm!(
    ".pushsection .tbss.uzswap_thread_slot,\"awT\",@nobits",
    ".p2align 3",
    ".globl uzswap_thread_slot",
    ".hidden uzswap_thread_slot",
    ".type uzswap_thread_slot,@object",
    ".size uzswap_thread_slot, 8",
    "uzswap_thread_slot:",
    "    .zero 8",
    ".popsection",
);

/// Set if the slot is the base of gs. Decided before the first thread has a slot.
pub(super) static SLOT_IN_GS: AtomicBool = AtomicBool::new(false);

/// Puts the slots of all threads into gs. Called before any slot is set, and only where the kernel
/// allows gs.
pub fn keep_slots_in_gs() {
    SLOT_IN_GS.store(true, Ordering::Relaxed);
}

/// Whether slots are in gs; then hooks never run on the program's stack.
pub fn are_slots_in_gs() -> bool {
    SLOT_IN_GS.load(Ordering::Relaxed)
}

/// This thread's word, 0 in a new thread. A clone that does not set up thread-local storage shares
/// it with its parent.
#[inline(always)]
pub fn thread_slot_get() -> usize {
    let value: usize;
    if are_slots_in_gs() {
        // SAFETY: user code may (charter).
        unsafe {
            asm!("rdgsbase {v}", v = out(reg) value, options(nomem, nostack, preserves_flags))
        };
        return value;
    }
    // SAFETY: reads a word of this thread's static TLS block.
    unsafe {
        asm!(
            "mov {v}, qword ptr [rip + uzswap_thread_slot@GOTTPOFF]",
            "mov {v}, qword ptr fs:[{v}]",
            v = out(reg) value,
            options(nostack, readonly, preserves_flags)
        );
    }
    value
}

/// Sets this thread's word.
#[inline(always)]
pub fn thread_slot_set(value: usize) {
    if are_slots_in_gs() {
        // SAFETY: user code may, and nothing else uses it (charter).
        unsafe {
            asm!("wrgsbase {v}", v = in(reg) value, options(nomem, nostack, preserves_flags))
        };
        return;
    }
    // SAFETY: writes a word of this thread's static TLS block that nothing else uses.
    unsafe {
        asm!(
            "mov {t}, qword ptr [rip + uzswap_thread_slot@GOTTPOFF]",
            "mov qword ptr fs:[{t}], {v}",
            t = out(reg) _,
            v = in(reg) value,
            options(nostack, preserves_flags)
        );
    }
}

/// The address of the word of a thread with this thread pointer (fs base): below it. `None` if
/// words are in gs.
pub fn thread_slot_of(pointer: usize) -> Option<usize> {
    if are_slots_in_gs() {
        return None;
    }
    let offset: isize;
    // SAFETY: reads a constant that the loader has written.
    unsafe {
        asm!(
            "mov {v}, qword ptr [rip + uzswap_thread_slot@GOTTPOFF]",
            v = out(reg) offset,
            options(nostack, readonly, preserves_flags)
        );
    }
    Some(pointer.wrapping_add_signed(offset))
}

/// The address of this thread's word, if it is in memory.
pub fn thread_slot_address() -> Option<usize> {
    if are_slots_in_gs() {
        return None;
    }
    let pointer: usize;
    // SAFETY: the thread pointer points to itself (x86-64 ABI).
    unsafe {
        asm!(
            "mov {p}, qword ptr fs:[0]",
            p = out(reg) pointer,
            options(nostack, readonly, preserves_flags),
        )
    };
    thread_slot_of(pointer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_own_slot() {
        thread_slot_set(17);
        std::thread::spawn(|| {
            assert_eq!(thread_slot_get(), 0);
            thread_slot_set(18);
            assert_eq!(thread_slot_get(), 18);
        })
        .join()
        .unwrap();
        assert_eq!(thread_slot_get(), 17);
        let word = thread_slot_address().unwrap();
        assert!(thread_slot_of(1 << 40).unwrap() < 1 << 40);
        // SAFETY: this thread's own word.
        assert_eq!(unsafe { (word as *const usize).read_volatile() }, 17);
    }
}
