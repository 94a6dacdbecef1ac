//! The memory of a call is made resident and held: what a call's arguments lead to
//! (`calls/walk.rs`), and words of ours on the program's stack.
//!
//! # Safety charter
//! Memory is read directly where it is a caller's live stack frame, else by the kernel
//! (`buffers/copy.rs`).
#![allow(unsafe_code)]

use core::sync::atomic::Ordering;

use uzswap::region::{page_ceil, page_floor};
use uzswap::sys::{Errno, PAGE_SIZE};

use super::super::own_stack::{current, runtime};
use super::super::thread::ThreadBlock;
use super::super::{ACTIVE, FILTERED, PAGER, PID, owners};
use super::copy::read_program;
use crate::calls::walk::{Kind, Visit};

/// Holds the memory that a call touches.
pub(super) struct Holder {
    pub(super) t: &'static ThreadBlock,
    pub(super) sp: usize,
}

impl Visit for Holder {
    fn hold(&mut self, addr: usize, len: usize, kind: Kind) {
        let (start, end) = (page_floor(addr), page_ceil(addr + len));
        if PAGER.ranges.first_overlap_unlocked(start, end).is_none() {
            return;
        }
        self.t.holds().push(start, end, self.sp);
        let resident = end - start <= 64 * PAGE_SIZE
            && (start..end)
                .step_by(PAGE_SIZE)
                .all(|p| PAGER.table.get(p).is_some_and(|e| e.is_writable()) && !must_unprotect());
        if kind == Kind::Keep {
            runtime(self.t, move || {
                let (guard, _) = PAGER.make_resident(PAGER.enter(), start, end);
                let _ = PAGER.holds.keep(start, end);
                drop(guard);
            });
        } else if !resident {
            runtime(self.t, move || drop(PAGER.make_resident(PAGER.enter(), start, end)));
        }
    }

    fn read(&self, addr: usize, into: &mut [u8]) -> bool {
        // Just above our own frame is the stack of the caller: mapped for sure.
        if addr.wrapping_sub(self.sp) < 1024 && into.len() <= 1024 {
            // SAFETY: part of the caller's live stack frames.
            unsafe {
                core::ptr::copy_nonoverlapping(addr as *const u8, into.as_mut_ptr(), into.len())
            };
            return true;
        }
        read_program(addr, into)
    }

    fn is_own(&self, pid: usize) -> bool {
        is_ours(pid)
    }
}

/// Whether resident pages may be write-protected for a moment, as without MOVE: only the lock
/// tells.
fn must_unprotect() -> bool {
    PAGER.active().is_some_and(|a| a.kind == uzswap::control::Mechanism::UserfaultfdCopy)
}

/// Whether the kernel takes that number for this process: each of its threads stands for it.
pub(in crate::takeover) fn is_ours(pid: usize) -> bool {
    let process = PID.load(Ordering::Relaxed);
    // A filter may end a process that asks.
    pid == process as usize || !FILTERED.load(Ordering::Relaxed) && is_thread_of(process, pid)
}

/// A guest is no thread of this process, and its memory is ours all the same.
fn is_thread_of(process: u32, tid: usize) -> bool {
    owners::is_thread_of(process, tid as u32) == Some(true)
}

/// Makes a call that reads or writes words of ours on the program's stack. They may be paged out
/// after `attempt` has touched them and before the kernel does: a bad address is one that stays
/// bad. `attempt` writes the words anew each time.
///
/// Trying again is not enough. In a process that waits for its turn each touch waits until a signal
/// comes, whose handler then runs before the call is made, while the evictor takes all pages: no
/// number of tries would do. So the stack around the words is held.
pub(in crate::takeover) fn with_own_words(mut attempt: impl FnMut() -> isize) -> isize {
    const TRIES: u32 = 2;
    for _ in 0..TRIES {
        let result = attempt();
        if result != Errno::EFAULT.as_return() {
            return result;
        }
    }
    with_stack_held(attempt)
}

/// Holds the stack around the caller's frames for the duration of `f`, which may have words there
/// for the kernel to read or write.
pub(in crate::takeover) fn with_stack_held(f: impl FnOnce() -> isize) -> isize {
    /// Bytes of stack that `f` uses below this frame, and bytes above it where words of its callers
    /// lie.
    const BELOW_BYTES: usize = 4 << 10;
    const ABOVE_BYTES: usize = 12 << 10;
    if !ACTIVE.load(Ordering::Acquire) {
        return f();
    }
    let t = current();
    let mark = t.holds().mark();
    let here = 0u8;
    let sp = &raw const here as usize;
    Holder { t, sp }.hold(sp - BELOW_BYTES, BELOW_BYTES + ABOVE_BYTES, Kind::Out);
    let r = f();
    t.holds().pop_to(mark);
    r
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_stands_for_its_process() {
        let ours = uzswap::sys::getpid();
        let (say, end) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || {
            tell.send(uzswap::sys::gettid()).unwrap();
            let _ = end.recv();
        });
        let tid = told.recv().unwrap() as usize;
        assert!(is_thread_of(ours, tid) && is_thread_of(ours, ours as usize));
        assert!(!is_thread_of(ours, 0) && !is_thread_of(ours, u32::MAX as usize));
        assert!(!is_thread_of(ours, 1), "another process");
        drop(say);
        other.join().unwrap();
    }
}
