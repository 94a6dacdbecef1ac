//! Owners of locks and of calls in flight: which thread is one, and whether it is still there.

use core::sync::atomic::Ordering;

use uzswap::sys::{Errno, nr};

use super::thread::{by_word, each_block};
use super::{FILTERED, call, evictor};

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

/// Whether there is no such thread, it has ended and its parent has not waited for it, or its
/// number is that of another process by now. 0: its number is that of another process that shares
/// this memory (`ThreadBlock::adopt_guest`).
fn is_gone(owner: u32) -> bool {
    const P_PID: usize = 1;
    /// WEXITED, without reaping: WNOWAIT, WNOHANG, `__WALL`.
    const ENDED: usize = 4 | 0x100_0000 | 1 | 0x4000_0000;
    let mut info = [0u64; 16];
    let r = call!(nr::WAITID, P_PID, owner, info.as_mut_ptr(), ENDED, 0);
    // `si_pid`, 16 bytes from the start: 0 where it has not ended.
    let is_dead_child = r == 0 && info[2] as u32 == owner;
    owner == 0
        || is_dead_child
        || !uzswap::sys::thread_exists(owner)
        || has_other_memory(owner) == Some(true)
}

/// Whether thread `tid` has another memory than this process. None: the kernel does not say.
fn has_other_memory(tid: u32) -> Option<bool> {
    const KCMP_VM: usize = 1;
    // A filter may end a process that asks.
    if FILTERED.load(Ordering::Relaxed) {
        return None;
    }
    // The order of the two memories: 0 where they are one.
    let order = call!(nr::KCMP, uzswap::sys::getpid(), tid, KCMP_VM, 0, 0);
    (order >= 0).then_some(order > 0)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_had_a_number_that_is_another_process_s_by_now_is_gone() {
        let me = uzswap::sys::gettid();
        assert!(!is_gone(me) && is_gone(0));
        if has_other_memory(me).is_none() {
            return std::println!("SKIPPED: this kernel does not compare memories (kcmp)");
        }
        // It ends when its input does, with `other`.
        let input = std::process::Stdio::piped();
        let mut other = std::process::Command::new("cat").stdin(input).spawn().unwrap();
        let is_found = is_gone(other.id());
        drop(other.stdin.take());
        assert!(other.wait().unwrap().success());
        assert!(is_found);
    }
}
