//! Signal masks of the calling thread, and the signal by which missing pages are reported: it is
//! never blocked.
//!
//! # Safety charter
//! The kernel reads and writes single words, of the thread's block or of this stack.

use core::sync::atomic::{AtomicI32, Ordering};

use uzswap::sys::nr;

use super::{call, thread};

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
    let Some(t) = thread::existing() else {
        let (all, mut old) = (!fault_bit(), 0u64);
        let _ = call!(nr::RT_SIGPROCMASK, SIG_SETMASK, &raw const all, &raw mut old, 8);
        return old;
    };
    let [all, old] = &t.block_words;
    all.store(!fault_bit(), Ordering::Relaxed);
    let _ = call!(nr::RT_SIGPROCMASK, SIG_SETMASK, all.as_ptr(), old.as_ptr(), 8);
    old.load(Ordering::Relaxed)
}

/// Sets the signal mask.
pub fn restore(mask: u64) {
    if let Some(t) = thread::existing() {
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
