//! Where code of the runtime runs: with the caller's block, on a stack that is not managed memory.
//!
//! # Safety charter
//! A thread's runtime stack is used with all signals blocked, by that thread only.
#![allow(unsafe_code)]

use core::sync::atomic::Ordering;

use super::masks;
use super::thread::{ThreadBlock, came, existing};
use crate::patch;

/// The block of the calling thread, which has one: its system call passes the hook.
#[inline]
pub fn current() -> &'static ThreadBlock {
    // The hook lets the call of a thread that has none run as it is.
    find().unwrap_or_else(|| super::fatal("a thread without a block got past the hook"))
}

/// The block of the calling thread; made now for a thread whose start we did not see. None: there
/// is no memory for it.
#[inline]
pub fn find() -> Option<&'static ThreadBlock> {
    existing().or_else(adopt_unknown)
}

#[cold]
fn adopt_unknown() -> Option<&'static ThreadBlock> {
    let mask = masks::block_all();
    let b = ThreadBlock::allocate();
    if let Some(b) = b {
        b.adopt(uzswap::sys::gettid());
        came();
    }
    masks::restore(mask);
    b
}

/// Runs `f` where the pager's lock may be taken: signals blocked, on this thread's runtime stack.
/// `f` and its result are moved, so it must capture by value: nothing on the program's stack may be
/// touched inside.
pub(super) fn runtime<R>(t: &'static ThreadBlock, f: impl FnOnce() -> R) -> R {
    struct Job<F, R> {
        f: Option<F>,
        result: Option<R>,
    }
    extern "C" fn run<F: FnOnce() -> R, R>(job: *mut u8) {
        let job = job.cast::<Job<F, R>>();
        // Both moves happen on this stack while no lock is held: the program's stack may fault
        // here.
        // SAFETY: the job lives on the caller's stack until we return.
        let f = unsafe { (*job).f.take() }.expect("a job runs once");
        let result = f();
        // SAFETY: as above.
        unsafe { (*job).result = Some(result) };
    }
    let mask = masks::block_all();
    let was_busy = t.is_busy.swap(1, Ordering::Relaxed);
    let mut job = Job { f: Some(f), result: None };
    let p = (&raw mut job).cast::<u8>();
    if t.on_own_stack() {
        run_here(p, run_of(&job));
    } else {
        // SAFETY: the runtime stack is ours, and signals are blocked: nobody else uses it
        // meanwhile.
        unsafe { patch::call_on_stack_saving_vectors(t.runtime_stack_top(), run_of(&job), p) };
    }
    t.is_busy.store(was_busy, Ordering::Relaxed);
    masks::restore(mask);
    fn run_of<F: FnOnce() -> R, R>(_: &Job<F, R>) -> extern "C" fn(*mut u8) {
        run::<F, R>
    }
    fn run_here(p: *mut u8, f: extern "C" fn(*mut u8)) {
        f(p)
    }
    job.result.expect("the job has run")
}
