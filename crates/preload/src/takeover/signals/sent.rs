//! The fault signal where it was sent to the program, not raised by an access, and where the
//! program believes it blocked. The kernel never blocks it: it comes to the handler, and waits here
//! for a call that takes it.
//!
//! A signal for the whole process waits for all of its threads, and the kernel may have given it to
//! one that believes it blocked. So those that can take it are woken, by the signal itself with a
//! value that nobody else sends: threads that wait for it, or else one that does not block it.
//!
//! A call that takes it looks here first, and a signal that comes between the look and the call
//! must end the call. [`cancel::call`] sees to that: it looks at `sent_came`, and a thread that is
//! interrupted after that look goes on with EINTR.
//!
//! # Safety charter
//! As for [`super`]: the frame is the kernel's, on our alternate stack.
#![allow(unsafe_code)]

use core::hint::black_box;

use super::super::Args;
use super::super::buffers::{self, with_own_words};
use super::super::thread::{INFO_WORDS, Info, Sent, each_block};
use super::*;

const SI_TKILL: i32 = -6;
const SI_QUEUE: i32 = -1;

/// The signal that was sent to the process.
static OF_PROCESS: Sent = Sent::new();

/// The value by which a thread is woken: an address of ours.
fn wake_value() -> u64 {
    (&raw const OF_PROCESS).addr() as u64
}

fn is_wake(info: &Info) -> bool {
    info[1] as i32 == SI_QUEUE && info[3] == wake_value()
}

fn believes_blocked(t: &ThreadBlock) -> bool {
    t.fault_signal_blocked.load(Ordering::SeqCst) != 0
}

/// A fault signal that was sent has come. Whether it is dealt with; else it is to be delivered, as
/// `info` says now.
pub(super) fn arrived(t: &'static ThreadBlock, info: usize, context: usize) -> bool {
    let words: Info = core::array::from_fn(|i| read_u64(info + 8 * i));
    let (is_blocked, is_wake) = (believes_blocked(t), is_wake(&words));
    match (is_wake, is_blocked) {
        (false, false) => return false,
        (true, false) => {
            let Some(words) = take(t) else { return true };
            words.iter().enumerate().for_each(|(i, word)| write_u64(info + 8 * i, *word));
            return false;
        }
        (true, true) => {}
        // A child that shares our memory has what was sent to it, not to us.
        (false, true) if words[1] as i32 == SI_TKILL || is_shared_child() => t.sent.put(&words),
        (false, true) => {
            OF_PROCESS.put(&words);
            wake_others(t);
        }
    }
    if let Some(ip) = ends_call(t, read_u64(context + UC_RIP) as usize) {
        write_u64(context + UC_RIP, ip as u64);
    }
    true
}

/// Where a thread goes on for which the signal has come, if it was about to wait.
pub(super) fn ends_call(t: &ThreadBlock, ip: usize) -> Option<usize> {
    t.sent_came.store(1, Ordering::SeqCst);
    cancel::ended_by_sent(t, ip)
}

/// Takes the signal that waits for this thread, or for the process.
fn take(t: &ThreadBlock) -> Option<Info> {
    t.sent.take().or_else(|| OF_PROCESS.take())
}

/// Whether the signal waits for this thread.
pub(super) fn is_pending(t: &ThreadBlock) -> bool {
    t.sent.is_there() || OF_PROCESS.is_there()
}

/// In the child after fork: nothing waits for it.
pub fn after_fork_child(t: &ThreadBlock) {
    t.sent.forget();
    OF_PROCESS.forget();
}

/// Sends the signal that waits, if one does, to the calling thread, by the kernel: the program does
/// not block it any more.
pub(super) fn send_on(t: &ThreadBlock) {
    let Some(info) = take(t) else { return };
    let thread = uzswap::sys::gettid();
    if !queue(thread, info) {
        let _ = call!(nr::TKILL, thread, FAULT_SIGNAL.load(Ordering::Relaxed));
    }
}

fn queue(thread: u32, info: Info) -> bool {
    let sig = FAULT_SIGNAL.load(Ordering::Relaxed);
    let attempt = || {
        let words = black_box(info);
        call!(nr::RT_TGSIGQUEUEINFO, uzswap::sys::getpid(), thread, sig, words.as_ptr())
    };
    with_own_words(attempt) == 0
}

/// Wakes the threads that wait for the signal, or else one that does not block it.
fn wake_others(me: &ThreadBlock) {
    let mut info = [0; INFO_WORDS];
    info[0] = FAULT_SIGNAL.load(Ordering::Relaxed) as u64;
    info[1] = u64::from(SI_QUEUE as u32);
    info[2] = uzswap::sys::getpid().into();
    info[3] = wake_value();
    let wake = |b: &ThreadBlock| {
        let is_other = !core::ptr::eq(b, me) && b.is_guest.load(Ordering::Relaxed) == 0;
        is_other && b.thread().is_some_and(|thread| queue(thread, info))
    };
    let mut is_woken = false;
    each_block(|b| is_woken |= b.awaits_sent.load(Ordering::SeqCst) != 0 && wake(b));
    each_block(|b| is_woken = is_woken || !believes_blocked(b) && wake(b));
}

/// Has the calls that `f` makes end at a signal that comes after it has begun.
fn awaiting<R>(t: &ThreadBlock, f: impl FnOnce() -> R) -> R {
    let outer = t.awaits_sent.swap(1, Ordering::SeqCst);
    let came = t.sent_came.swap(0, Ordering::SeqCst);
    let result = f();
    // The call that this one has interrupted looks again.
    t.sent_came.fetch_or(came, Ordering::SeqCst);
    t.awaits_sent.store(outer, Ordering::SeqCst);
    result
}

/// sigwaitinfo and its like, which take the signal though it is blocked. `None`: another call, or
/// one for other signals.
pub(super) fn timed_wait(t: &'static ThreadBlock, set: u64, a: Args) -> Option<isize> {
    if a[3] != 8 || set & fault_bit() == 0 || is_shared_child() {
        return None;
    }
    let mut info = [0u64; INFO_WORDS];
    let result = awaiting(t, || {
        let sig = FAULT_SIGNAL.load(Ordering::Relaxed) as isize;
        if let Some(waited) = take(t) {
            info = waited;
            return sig;
        }
        let b = [a[0], (&raw mut info).addr(), a[2], a[3], 0, 0];
        let r = buffers::held_call(t, nr::RT_SIGTIMEDWAIT, b);
        info = black_box(info);
        let is_woken = r == sig && is_wake(&info);
        if !is_woken && r != Errno::EINTR.as_return() {
            return r;
        }
        match take(t) {
            Some(waited) => {
                info = waited;
                sig
            }
            // Another thread was faster: as if a handler had run.
            None => Errno::EINTR.as_return(),
        }
    });
    if OF_PROCESS.is_there() {
        // One that came for all while this thread seemed to wait for it.
        wake_others(t);
    }
    let bytes: [[u8; 8]; INFO_WORDS] = info.map(u64::to_le_bytes);
    if result > 0 && a[1] != 0 && !buffers::copy_out(t, a[1], bytes.as_flattened()) {
        return Some(Errno::EFAULT.as_return());
    }
    Some(result)
}

/// Makes a call that waits with a mask of its own, in which the fault signal is as it says.
pub(super) fn with_mask(t: &'static ThreadBlock, mask: u64, call: impl FnOnce() -> isize) -> isize {
    let (was, is) = (believes_blocked(t), mask & fault_bit() != 0);
    if was == is {
        return call();
    }
    let r = awaiting(t, || {
        t.fault_signal_blocked.store(is.into(), Ordering::SeqCst);
        if !is {
            send_on(t);
        }
        call()
    });
    t.fault_signal_blocked.store(was.into(), Ordering::SeqCst);
    if !was {
        send_on(t);
    }
    r
}
