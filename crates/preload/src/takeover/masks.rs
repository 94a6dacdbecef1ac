//! Signal masks of the calling thread, and the signal by which missing pages are reported: it is
//! never blocked.
//!
//! # Safety charter
//! The kernel reads and writes single words, of the thread's block or of this stack.

use core::sync::atomic::{AtomicI32, Ordering};

use uzswap::sys::nr;

use super::call;
use super::thread::{ThreadBlock, existing};

pub const SIGBUS: i32 = 7;

pub const SIG_BLOCK: usize = 0;
pub const SIG_UNBLOCK: usize = 1;
pub const SIG_SETMASK: usize = 2;

/// The signal by which missing pages are reported.
pub static FAULT_SIGNAL: AtomicI32 = AtomicI32::new(SIGBUS);

pub fn fault_bit() -> u64 {
    1 << (FAULT_SIGNAL.load(Ordering::Relaxed) - 1)
}

/// Blocks all signals but the fault signal; returns the mask before. Any number of handlers may
/// come before the signals are blocked.
pub fn block_all() -> u64 {
    // The kernel reads and writes the masks in memory that cannot be missing: the program's stack
    // can. A handler that comes before the call is made leaves the first word as it is, and the
    // second is written after it.
    let Some(t) = existing() else {
        let (all, mut old) = (!fault_bit(), 0u64);
        let _ = call!(nr::RT_SIGPROCMASK, SIG_SETMASK, &raw const all, &raw mut old, 8);
        return old;
    };
    let [all, old] = &t.block_words;
    all.store(!fault_bit(), Ordering::Relaxed);
    let _ = call!(nr::RT_SIGPROCMASK, SIG_SETMASK, all.as_ptr(), old.as_ptr(), 8);
    old.load(Ordering::Relaxed)
}

/// Unblocks the fault signal in the thread with which the process begins. Masks survive exec: a
/// program that begins with the signal blocked sees it so, and one that waits goes on waiting.
pub fn unblock(t: &ThreadBlock) {
    let (bit, mut mask) = (fault_bit(), 0u64);
    let _ = call!(nr::RT_SIGPROCMASK, SIG_BLOCK, 0, &raw mut mask, 8);
    t.fault_signal_blocked.store(u32::from(mask & bit != 0), Ordering::Relaxed);
    let _ = call!(nr::RT_SIGPROCMASK, SIG_UNBLOCK, &raw const bit, 0, 8);
}

/// Sets the signal mask.
pub fn restore(mask: u64) {
    if let Some(t) = existing() {
        // Signals are blocked: nobody else uses the word.
        let word = &t.block_words[1];
        word.store(mask, Ordering::Relaxed);
        let _ = call!(nr::RT_SIGPROCMASK, SIG_SETMASK, word.as_ptr(), 0, 8);
        return;
    }
    let _ = call!(nr::RT_SIGPROCMASK, SIG_SETMASK, &raw const mask, 0, 8);
}

/// The signals that wait for this thread, as bits.
fn pending() -> u64 {
    let mut set = 0u64;
    let _ = call!(nr::RT_SIGPENDING, &raw mut set, 8);
    set
}

/// Whether a signal waits for this thread that it would take with this mask.
pub fn would_interrupt(mask: u64) -> bool {
    pending() & !mask != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_begins_with_the_fault_signal_blocked_sees_it_so() {
        let (t, bit) = (ThreadBlock::allocate().unwrap(), fault_bit());
        let (mut before, mut after) = (0u64, 0u64);
        let is_blocked = || t.fault_signal_blocked.load(Ordering::Relaxed) != 0;
        assert_eq!(call!(nr::RT_SIGPROCMASK, SIG_BLOCK, &raw const bit, &raw mut before, 8), 0);
        unblock(t);
        assert!(is_blocked());
        assert_eq!(call!(nr::RT_SIGPROCMASK, SIG_BLOCK, 0, &raw mut after, 8), 0);
        assert_eq!(after, before & !bit);
        unblock(t);
        assert!(!is_blocked());
        t.give_back();
    }
}
