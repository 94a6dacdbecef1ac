//! Owners of locks and of calls in flight: which thread is one, and whether it is still there.

use core::sync::atomic::Ordering;

use uzswap::sys::{Errno, nr};

use super::thread::{by_word, each_block};
use super::{call, evictor};

/// The calling thread's id, for the words of locks.
pub fn id_for_locks() -> u32 {
    // The evictor comes first: its thread-local area does not reach to where threads of the program
    // have their word.
    if evictor::is_caller() {
        return evictor::tid();
    }
    match by_word() {
        Some(b) if !b.is_in_company() => b.tid.load(Ordering::Relaxed),
        _ => uzswap::sys::gettid(),
    }
}

/// Looks whether thread `owner`, which has held a lock for a long time, is gone. Then nobody will
/// ever free the lock: says so, and ends the process.
pub fn look_after(owner: u32) {
    if is_gone(owner) {
        super::fatal(
            "a process that shared this program's memory was ended while it brought a page in; \
             what it was changing cannot be finished",
        );
    }
}

/// Looks, after a long wait, whether a guest that is gone was in the pager.
pub fn look_for_abandoned() {
    each_block(|b| {
        if b.is_busy_guest() {
            look_after(b.tid.load(Ordering::Acquire));
        }
    });
}

/// Whether there is no such thread, or it has ended and its parent has not waited for it.
fn is_gone(owner: u32) -> bool {
    const P_PID: usize = 1;
    /// WEXITED, without reaping: WNOWAIT, WNOHANG, `__WALL`.
    const ENDED: usize = 4 | 0x100_0000 | 1 | 0x4000_0000;
    let mut info = [0u64; 16];
    let r = call!(nr::WAITID, P_PID, owner, info.as_mut_ptr(), ENDED, 0);
    // `si_pid`, 16 bytes from the start: 0 where it has not ended.
    let is_dead_child = r == 0 && info[2] as u32 == owner;
    is_dead_child || !uzswap::sys::thread_exists(owner)
}

/// Whether this process has a thread of that id. None: the kernel does not say, as where a filter
/// refuses the question.
pub fn is_there(tid: u32) -> Option<bool> {
    is_thread_of(uzswap::sys::getpid(), tid)
}

/// As [`is_there`], of any process.
pub fn is_thread_of(process: u32, tid: u32) -> Option<bool> {
    const SUCCESS: isize = 0;
    match call!(nr::TGKILL, process, tid, 0) {
        SUCCESS => Some(true),
        r if r == Errno::ESRCH.as_return() => Some(false),
        _ => None,
    }
}
