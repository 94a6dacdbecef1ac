//! Processes that share this one's memory and run beside it (`clone(CLONE_VM)` without a
//! thread-local area of their own), and stop its threads to look at it, as LeakSanitizer does.
//!
//! They fault like any thread, each on a block of its own (`thread.rs`). A thread that is stopped
//! while it holds one of the pager's locks would never free it, and the guest would wait for it
//! without end. So a guest stops a thread only while the guest itself holds all of these locks.

use uzswap::sys::{Errno, nr};

use super::own_stack::runtime;
use super::thread::ThreadBlock;
use super::{Args, PAGER, call, is_shared_child, raw};

const PTRACE_ATTACH: usize = 16;
const PTRACE_INTERRUPT: usize = 0x4207;

/// Whether a ptrace call stops a thread that shares the caller's memory.
pub(super) fn stops_us(a: &Args) -> bool {
    matches!(a[0], PTRACE_ATTACH | PTRACE_INTERRUPT) && is_shared_child()
}

/// Makes a ptrace call that stops a thread, and waits until the thread has stopped.
pub(super) fn stop_thread(t: &'static ThreadBlock, a: Args) -> isize {
    const P_PID: usize = 1;
    /// WSTOPPED and WEXITED; `__WALL`; and WNOWAIT: the caller will ask again.
    const STOPPED: usize = 2 | 4 | 0x4000_0000 | 0x100_0000;
    runtime(t, move || {
        let lock = PAGER.lock();
        let guard = PAGER.active().map(|active| active.cache.prepare_fork());
        let r = raw(nr::PTRACE, a);
        while r == 0 && call!(nr::WAITID, P_PID, a[1], 0, STOPPED, 0) == Errno::EINTR.as_return() {}
        if let (Some(active), Some(guard)) = (PAGER.active(), guard) {
            active.cache.after_fork_failed(guard);
        }
        drop(lock);
        r
    })
}
