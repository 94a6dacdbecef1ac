//! The kernel, and all unsafe code of this crate.
//!
//! Everything above this module is safe Rust: it sees mappings as slices, the program's pages as
//! addresses with a length, and the kernel's answers as outcomes. No errno travels further up than
//! it must, and nothing here calls libc (see `syscall.rs` for why).
#![allow(unsafe_code)]

#[macro_use]
mod syscall;

pub mod aio;
pub mod codec_ffi;
pub mod contention;
pub mod cpu;
pub mod fd;
pub mod file;
pub mod fork_mark;
pub mod mechanism;
pub mod mem;
pub mod nr;
pub mod once;
pub mod open;
pub mod pagemap;
pub mod pin;
mod place;
pub mod prefetch;
pub mod program;
pub mod seccomp;
pub mod secret;
pub mod simd;
pub mod socket;
pub mod sync;
pub mod take_cell;
pub mod text;
pub mod tsc;
pub mod userfaultfd;
pub mod words;

use core::sync::atomic::{AtomicU32, Ordering};

pub use syscall::{Errno, Result, check, six, syscall};

/// Bytes in a page. uzswap runs on x86-64 only, where this is fixed.
pub const PAGE_SIZE: usize = 4096;
/// log2 of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 12;
/// A huge page of x86-64, in bytes and in pages.
pub const HUGE_BYTES: usize = 2 << 20;
pub const HUGE_PAGES: usize = HUGE_BYTES / PAGE_SIZE;

/// One past the highest user address that is managed (47 bits; five-level addresses are left
/// alone).
pub const ADDRESS_END: usize = 1 << 47;

/// Lets another thread run.
pub fn yield_now() {
    #[cfg(shuttle)]
    return shuttle::thread::yield_now();
    #[cfg(not(shuttle))]
    // SAFETY: touches no memory.
    let _ = unsafe { uz_syscall!(nr::SCHED_YIELD) };
}

/// Sleeps (at least about that long; a signal may end it early).
pub fn sleep_ns(ns: u64) {
    #[cfg(shuttle)]
    shuttle::thread::yield_now();
    let ns = if cfg!(shuttle) { 0 } else { ns };
    let t = [ns / 1_000_000_000, ns % 1_000_000_000];
    // SAFETY: the kernel reads the two words.
    let _ = unsafe { uz_syscall!(nr::NANOSLEEP, t.as_ptr(), 0) };
}

/// A pointer to something that lives for ever, as a reference; `None` while null.
#[inline]
pub(crate) fn static_ref<T: 'static>(p: &core::sync::atomic::AtomicPtr<T>) -> Option<&'static T> {
    // SAFETY: the crate stores only pointers made from `&'static` or leaked references.
    unsafe { p.load(core::sync::atomic::Ordering::Acquire).as_ref() }
}

/// Takes back the value that [`static_ref`] gave references to. For tests, when nobody can have one
/// any more.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn take_back<T>(p: &core::sync::atomic::AtomicPtr<T>) -> Option<Box<T>> {
    let p = p.swap(core::ptr::null_mut(), core::sync::atomic::Ordering::AcqRel);
    // SAFETY: the tests store only pointers made from leaked boxes, and each ends its threads
    // before this.
    (!p.is_null()).then(|| unsafe { Box::from_raw(p) })
}

/// Process id of this process, asked of the kernel.
pub fn getpid() -> u32 {
    // SAFETY: touches no memory.
    unsafe { syscall(nr::GETPID, [0; 6]) as u32 }
}

/// Thread id of this thread.
pub fn gettid() -> u32 {
    // SAFETY: touches no memory.
    unsafe { syscall(nr::GETTID, [0; 6]) as u32 }
}

/// Whether a thread of that id exists (in any process).
pub fn thread_exists(tid: u32) -> bool {
    // SAFETY: signal 0 only asks.
    let r = unsafe { uz_syscall!(nr::TKILL, tid, 0) };
    r != Err(Errno::ESRCH)
}

/// The pid namespace that this process is in, as the number of its file in /proc, once it was
/// looked up.
static PID_NAMESPACE: AtomicU32 = AtomicU32::new(NAMESPACE_UNASKED);
const NAMESPACE_UNASKED: u32 = u32::MAX;

/// The pid namespace of this process; 0: unknown.
pub fn pid_namespace() -> u32 {
    if PID_NAMESPACE.load(Ordering::Relaxed) == NAMESPACE_UNASKED {
        look_up_pid_namespace();
    }
    PID_NAMESPACE.load(Ordering::Relaxed)
}

/// Looks the pid namespace up (again: a forked child may be in another).
pub fn look_up_pid_namespace() {
    // `struct stat`: the second word is the number of the file.
    let mut stat = [0u64; 18];
    // SAFETY: the path is a C string, and the kernel writes one structure, of this size.
    let r = unsafe { uz_syscall!(nr::STAT, c"/proc/self/ns/pid".as_ptr(), stat.as_mut_ptr()) };
    PID_NAMESPACE.store(if r.is_ok() { stat[1] as u32 } else { 0 }, Ordering::Relaxed);
}

/// The pid namespace is unknown from now on, and may not be asked for.
pub fn forget_pid_namespace() {
    PID_NAMESPACE.store(0, Ordering::Relaxed);
}

/// Monotonic time in nanoseconds.
pub fn now_ns() -> u64 {
    let mut ts = [0i64; 2];
    // SAFETY: the kernel writes two words.
    let _ = unsafe { uz_syscall!(nr::CLOCK_GETTIME, 1, ts.as_mut_ptr()) };
    ts[0] as u64 * 1_000_000_000 + ts[1] as u64
}
