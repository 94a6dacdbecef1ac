//! Calls that change what the calling thread is to the kernel: its user, groups and capabilities,
//! its namespaces.
//!
//! The evictor is a thread of which the program knows nothing, and it is in the way of both kinds.
//! The kernel refuses a user namespace to a process of several threads. And libc makes the calls of
//! the first kind for every thread that it knows: the evictor would go on with rights that the
//! program has given up. So it ends, and starts again from the thread that made the call, with that
//! thread's new identity.
//!
//! Under a seccomp filter that the program has installed the evictor stays as it is. The old thread
//! has no filter. A new thread would inherit the program's, which may kill it for calls that the
//! evictor needs.
#![allow(unsafe_code)]
// # Safety charter
// One call: the lock is freed in a forked child, where its holder does not exist.

use core::sync::atomic::Ordering;

use uzswap::control::Mechanism;
use uzswap::sys::program::ProcMem;
use uzswap::sys::sync::Mutex;
use uzswap::sys::{Errno, nr, tsc};

use super::own_stack::runtime;
use super::routes::LOSING;
use super::thread::ThreadBlock;
use super::{
    Answer, Args, FILTERED, PAGER, buffers, descriptors, evictor, is_shared_child, raw, run,
};

/// Calls that a process of several threads may be refused.
const ALONE: [usize; 2] = [nr::UNSHARE, nr::SETNS];

/// Calls that a thread makes for itself and libc for all of them.
const RIGHTS: [usize; 10] = [
    nr::SETUID,
    nr::SETGID,
    nr::SETREUID,
    nr::SETREGID,
    nr::SETRESUID,
    nr::SETRESGID,
    nr::SETFSUID,
    nr::SETFSGID,
    nr::SETGROUPS,
    nr::CAPSET,
];

/// How often a call is tried again after the evictor has ended: the kernel counts a thread for a
/// moment longer.
const TRIES: u32 = 1000;

/// One thread at a time ends and starts the evictor.
static CHANGING: Mutex<()> = Mutex::new(());

const CLONE_FILES: usize = 0x400;
const PR_SET_DUMPABLE: usize = 4;
/// Has the kernel send SIGSYS for each call that comes from outside of a range of code.
const PR_SET_SYSCALL_USER_DISPATCH: u32 = 59;

/// Opens files that can be kept, before a call that may take away the right to files that paging
/// needs.
pub(super) fn note(number: usize, a: &Args) {
    let loses = LOSING.contains(&number)
        || RIGHTS.contains(&number)
        || number == nr::PRCTL && a[0] == PR_SET_DUMPABLE && a[1] == 0;
    let needs_file = || run::settings().mechanism == Mechanism::Protect as u32;
    if loses && needs_file() && PAGER.active().is_none() && !is_shared_child() {
        ProcMem::open_early();
        descriptors::refresh();
    }
}

/// Looks up the pid namespace in the child after fork: it may be another one.
pub(super) fn look_up_namespace() {
    if FILTERED.load(Ordering::Relaxed) {
        // Under a filter there must be no call that the program might not make.
        uzswap::sys::forget_pid_namespace();
    } else {
        uzswap::sys::look_up_pid_namespace();
    }
}

/// Frees the lock in the child after fork, where the thread that held it does not exist.
pub(super) fn after_fork_child() {
    ProcMem::close_early();
    // SAFETY: the only thread of this process is in fork, so it holds no guard; there is no value.
    unsafe { CHANGING.force_unlock() };
}

/// Makes the call, if it is one that changes the identity.
pub(super) fn call(t: &'static ThreadBlock, number: usize, mut a: Args) -> Option<Answer> {
    if number == nr::PRCTL && a[0] == tsc::PR_SET_TSC {
        tsc::forbid();
    }
    // Our calls, and the program's that the hook makes, come from outside of every such range. This
    // is the answer of a kernel that has no such order.
    if number == nr::PRCTL && a[0] as u32 == PR_SET_SYSCALL_USER_DISPATCH {
        return Some(Answer::Result(Errno::EINVAL.as_return()));
    }
    if number == nr::UNSHARE && a[0] & CLONE_FILES != 0 && descriptors::only_evictor_shares(t) {
        a[0] &= !CLONE_FILES;
    }
    let alone = ALONE.contains(&number);
    let renews = alone || RIGHTS.contains(&number) && !FILTERED.load(Ordering::Relaxed);
    if !renews || !evictor::is_running() || is_shared_child() {
        return None;
    }
    let result = buffers::with_held(t, number, &a, || {
        runtime(t, move || {
            let _one = CHANGING.lock();
            let mut r = raw(number, a);
            if alone {
                if r == Errno::EINVAL.as_return() {
                    evictor::stop();
                    for _ in 0..TRIES {
                        r = raw(number, a);
                        if r != Errno::EINVAL.as_return() {
                            break;
                        }
                        uzswap::sys::yield_now();
                    }
                    // The start is refused where new threads belong to another pid namespace: then
                    // evictions are direct.
                    evictor::start();
                }
            } else if r >= 0 {
                evictor::stop();
                evictor::start();
            }
            r
        })
    });
    Some(Answer::Result(result))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_program_gets_a_signal_for_each_call_from_outside_of_its_range() {
        let t = ThreadBlock::allocate().unwrap();
        let prctl = |order, mode| call(t, nr::PRCTL, [order, mode, 0, 0, 0, 0]);
        // Off, on, and on with rubbish in the upper half.
        for [order, mode] in [[59, 0], [59, 1], [59 | 1 << 32, 1]] {
            let Some(Answer::Result(r)) = prctl(order, mode) else { panic!("mode {mode}") };
            assert_eq!(r, Errno::EINVAL.as_return());
        }
        // PR_GET_NAME.
        assert!(prctl(16, 0).is_none());
        t.give_back();
    }
}
