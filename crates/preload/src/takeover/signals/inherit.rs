//! The fault signal at an exec. A program that is executed inherits the signals that are ignored,
//! and the mask: the kernel's, in which the fault signal is neither ignored nor blocked. So it is
//! made what the program believes, for the time of the call.
//!
//! A fault would end the process meanwhile. So the stack is held, and a handler of the program's
//! that comes in between is run as ever: it blocks no fault signal, and takes back that it is
//! ignored. A process that has other threads does not ignore the signal, since one of them may
//! fault: the next program is told, by the variable that brings us along.
//!
//! # Safety charter
//! As for [`super`].
#![allow(unsafe_code)]

use core::sync::atomic::AtomicBool;

use super::super::buffers;
use super::*;

/// In [`ThreadBlock::fault_signal_of_child`]: what a vfork child has made of the fault signal. Its
/// table in the kernel is its own, and our record its parent's.
const UNCHANGED: u32 = 0;
const NOT_IGNORED: u32 = 1;
const IGNORED: u32 = 2;

/// Set while the kernel ignores the fault signal.
static IS_IGNORED: AtomicBool = AtomicBool::new(false);

/// Notes that a vfork child sets the action of the fault signal.
pub(super) fn note_of_child(t: &ThreadBlock, action: &KernelAction) {
    let now = if action.handler == SIG_IGN { IGNORED } else { NOT_IGNORED };
    t.fault_signal_of_child.store(now, Ordering::Relaxed);
}

/// Notes that the thread is about to have a vfork child.
pub fn expect_child(t: &ThreadBlock) {
    t.fault_signal_of_child.store(UNCHANGED, Ordering::Relaxed);
}

/// Whether the program ignores the fault signal.
fn ignores(t: &ThreadBlock) -> bool {
    match (is_shared_child(), t.fault_signal_of_child.load(Ordering::Relaxed)) {
        (true, NOT_IGNORED) => false,
        (true, IGNORED) => true,
        _ => RECORDED[FAULT_SIGNAL.load(Ordering::Relaxed) as usize].get().handler == SIG_IGN,
    }
}

/// Whether the program ignores the fault signal, and nobody else would fault under the kernel's
/// action.
fn may_ignore(t: &ThreadBlock) -> bool {
    let is_alone = match is_shared_child() {
        true => t.is_guest.load(Ordering::Relaxed) == 0,
        false => thread::is_only_one(),
    };
    is_alone && ignores(t)
}

/// The fault signal, if a program that is executed now must be told that it is ignored.
pub fn to_tell(t: &ThreadBlock) -> Option<u32> {
    let is_to_tell = ignores(t) && !may_ignore(t);
    is_to_tell.then(|| FAULT_SIGNAL.load(Ordering::Relaxed) as u32)
}

/// Makes the call of an exec with the fault signal as the program has set it.
pub fn with_inherited(t: &'static ThreadBlock, exec: impl FnOnce() -> isize) -> isize {
    let is_blocked = t.fault_signal_blocked.load(Ordering::Relaxed) != 0;
    let is_ignored = may_ignore(t);
    if !is_blocked && !is_ignored {
        return exec();
    }
    buffers::with_stack_held(|| {
        let (sig, bit) = (FAULT_SIGNAL.load(Ordering::Relaxed), fault_bit());
        let mut before = KernelAction::default();
        if is_ignored {
            let ignored = KernelAction { handler: SIG_IGN, ..KernelAction::default() };
            IS_IGNORED.store(true, Ordering::SeqCst);
            let _ = kernel_action(sig, Some(&ignored), Some(&mut before));
        }
        if is_blocked {
            let _ = call!(nr::RT_SIGPROCMASK, SIG_BLOCK, &raw const bit, 0, 8);
            // One that waits here for the program goes on waiting. For a child that shares its
            // parent's memory none does: it is the parent's.
            if !is_shared_child() {
                sent::send_on(t);
            }
        }
        let r = exec();
        if is_ignored {
            IS_IGNORED.store(false, Ordering::SeqCst);
            let _ = kernel_action(sig, Some(&before), None);
        }
        if is_blocked {
            let _ = call!(nr::RT_SIGPROCMASK, SIG_UNBLOCK, &raw const bit, 0, 8);
        }
        r
    })
}

/// A handler of the program's runs before the exec, or after one that has failed: faults are ours.
pub(super) fn take_back() {
    if IS_IGNORED.load(Ordering::SeqCst) && IS_IGNORED.swap(false, Ordering::SeqCst) {
        let _ = kernel_action(FAULT_SIGNAL.load(Ordering::Relaxed), Some(&fault_action()), None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the kernel blocks and ignores the fault signal.
    fn is_blocked_and_ignored() -> (bool, bool) {
        let (mut mask, mut action) = (0u64, KernelAction::default());
        assert_eq!(call!(nr::RT_SIGPROCMASK, SIG_BLOCK, 0, &raw mut mask, 8), 0);
        assert_eq!(kernel_action(FAULT_SIGNAL.load(Ordering::Relaxed), None, Some(&mut action)), 0);
        (mask & fault_bit() != 0, action.handler == SIG_IGN)
    }

    #[test]
    fn a_program_that_is_executed_inherits_the_fault_signal_as_this_one_believes_it() {
        let t = ThreadBlock::allocate().unwrap();
        let mut seen = (false, false);
        let mut exec = |blocked: u32, of_child: u32| {
            t.fault_signal_blocked.store(blocked, Ordering::Relaxed);
            t.fault_signal_of_child.store(of_child, Ordering::Relaxed);
            let failed = with_inherited(t, || {
                seen = is_blocked_and_ignored();
                -8
            });
            assert_eq!((failed, is_blocked_and_ignored()), (-8, (false, false)));
            seen
        };
        // Tests have no number of the process: all of them are vfork children.
        assert_eq!(exec(0, UNCHANGED), (false, false));
        assert_eq!(exec(1, NOT_IGNORED), (true, false));
        assert_eq!(exec(0, IGNORED), (false, true));
        assert_eq!(exec(1, IGNORED), (true, true));
        assert_eq!(to_tell(t), None);
        t.is_guest.store(1, Ordering::Relaxed);
        assert_eq!(exec(0, IGNORED), (false, false), "others may share the table of actions");
        assert_eq!(to_tell(t), Some(FAULT_SIGNAL.load(Ordering::Relaxed) as u32));
        t.fault_signal_of_child.store(NOT_IGNORED, Ordering::Relaxed);
        assert_eq!(to_tell(t), None);
        t.is_guest.store(0, Ordering::Relaxed);
        note_of_child(t, &KernelAction { handler: SIG_IGN, ..KernelAction::default() });
        assert!(may_ignore(t));
        expect_child(t);
        assert!(!may_ignore(t));
        t.give_back();
    }
}
