//! exec: the program that is executed is looked at first, and brings us along if it takes us.
//!
//! Limits, descriptors, the reserve and the hook stack's piece are made ready for a success. Where
//! the kernel refuses the call, each of them is changed back.
#![allow(unsafe_code)]

use core::sync::atomic::Ordering;

use uzswap::control::{Counter, Notice};
use uzswap::sys::{Errno, nr};

use super::super::outside::finish_counters;
use super::super::own_stack::runtime;
use super::super::target::Way;
use super::super::thread::ThreadBlock;
use super::super::{
    ACTIVE, Args, PAGER, buffers, descriptors, is_shared_child, raw, reserved, sandbox, signals,
    target,
};
use super::environment::{Given, carry, scratch};
use crate::patch::HookFrame;

/// exec, with the environment that carries us along.
pub(super) fn exec(t: &'static ThreadBlock, number: usize, a: Args, f: &HookFrame) -> isize {
    if !sandbox::may_start() {
        // The calls that we make at its start would end the program.
        return with_limits_and_held(t, number, &a, || execute(t, number, a));
    }
    let environment_at = if number == nr::EXECVE { 2 } else { 3 };
    with_limits_and_held(t, number, &a, || {
        let Some(target) = look(t, number, &a) else { return Errno::ENOMEM.as_return() };
        let way = target.way();
        let mut executed = (number, a);
        if way.is_given_ours() {
            let Some(given) = Given::read(a[environment_at], !matches!(way, Way::Boot(_))) else {
                // The kernel says what is wrong with it, or with the path, which it reads first.
                return execute(t, number, a);
            };
            let carried = carry(t, way, &given, target.first_library());
            let Some(carried) = carried else { return Errno::ENOMEM.as_return() };
            executed.1[environment_at] = carried.environment;
            if let Way::Boot(_) = way {
                executed = (
                    nr::EXECVE,
                    [carried.library, a[environment_at - 1], carried.environment, 0, 0, 0],
                );
            }
            descriptors::keep_over_exec(true);
        }
        let mut is_unmanaged = !way.is_managed();
        let note_unmanaged = || {
            PAGER.add(Counter::UnmanagedExecs, 1);
            PAGER.tree().notice(Notice::Unmanaged, 0);
        };
        let shared = is_shared_child();
        if !shared {
            runtime(t, || {
                finish_counters();
                PAGER.reserve(PAGER.slot().charged());
            });
        }
        if is_unmanaged {
            note_unmanaged();
        }
        // SAFETY: this thread's block, or none.
        let lent = unsafe { f.hook_stack.as_ref() }.filter(|_| shared);
        lent.inspect(|start| start.lend_piece(true));
        let mut r = execute(t, executed.0, executed.1);
        if let Way::Boot(_) = way {
            // The library was not executed: the call is made for the program itself.
            descriptors::keep_over_exec(false);
            note_unmanaged();
            is_unmanaged = true;
            r = execute(t, number, a);
        }
        // The exec failed: all is as before.
        lent.inspect(|start| start.lend_piece(false));
        if is_unmanaged {
            PAGER.add(Counter::UnmanagedExecs, 1u64.wrapping_neg());
        }
        descriptors::keep_over_exec(false);
        if !shared {
            runtime(t, || {
                if ACTIVE.load(Ordering::Acquire) {
                    PAGER.publish(true)
                } else {
                    PAGER.reserve(reserved::dormant_pages())
                }
            });
        }
        r
    })
}

/// Makes the call of an exec with its memory held, and with the limits on descriptors in which the
/// program believes.
///
/// Only a process with rights may raise its hard limit again. So the limits stay as they are where
/// the path alone makes the call fail: a search of PATH makes many such calls.
fn with_limits_and_held(
    t: &'static ThreadBlock,
    number: usize,
    a: &Args,
    exec: impl FnOnce() -> isize,
) -> isize {
    buffers::with_held(t, number, a, || {
        if !descriptors::is_hard_limit_ours() || target::is_check(number, a) {
            return exec();
        }
        let fails = if sandbox::may_start() { target::why_not_executed(number, a) } else { None };
        match fails {
            Some(e) => e.as_return(),
            None => descriptors::with_believed_limits(t, exec),
        }
    })
}

fn execute(t: &'static ThreadBlock, number: usize, a: Args) -> isize {
    signals::inherit::with_inherited(t, || raw(number, a))
}

/// Looks at the program that is to be executed. `None`: there is no memory for that.
fn look(t: &'static ThreadBlock, number: usize, a: &Args) -> Option<target::Target> {
    let buffer = scratch(t, target::BUFFER_BYTES)? as *mut [u8; target::BUFFER_BYTES];
    // SAFETY: memory of ours of that size, which nobody else has; the environment is built in it
    // only after this.
    Some(target::look(number, a, unsafe { &mut *buffer }))
}

#[cfg(test)]
mod tests {
    use super::super::super::descriptors::kernel_limits;
    use super::super::super::descriptors::tests::{LIMITS, believe};
    use super::super::super::own_stack;
    use super::*;
    use core::ffi::CStr;

    #[test]
    fn an_exec_that_fails_leaves_the_limits_as_they_were() {
        let _limits = LIMITS.lock();
        let (t, before) = (own_stack::current(), kernel_limits(None).unwrap());
        let [soft, hard] = before;
        let [believed_soft, believed] = [soft.min(hard - 1), hard - 1];
        believe(believed);
        let seen = |path: &CStr| {
            let (mut limits, a) = (None, [path.as_ptr() as usize, 0, 0, 0, 0, 0]);
            let r = with_limits_and_held(t, nr::EXECVE, &a, || {
                limits = Some(kernel_limits(None).unwrap());
                -8
            });
            (r, limits)
        };
        // The kernel is not even asked where there is no such program.
        assert_eq!(seen(c"/no/such/program"), (Errno::ENOENT.as_return(), None));
        assert_eq!(seen(c"/proc/self/status/program"), (-20, None), "a file is no directory");
        assert_eq!(seen(c"/proc/self/status"), (Errno::EACCES.as_return(), None));
        assert_eq!(kernel_limits(None), Ok(before));
        assert_eq!(seen(c"/bin/sh"), (-8, Some([believed_soft, believed])));
        let after = kernel_limits(None);
        match kernel_limits(Some(before)) {
            Ok(_) => assert_eq!(after, Ok(before)),
            Err(_) => std::println!("SKIPPED: nobody without rights raises a hard limit"),
        }
        believe(u64::MAX);
        assert_eq!(seen(c"/bin/sh"), (-8, Some(kernel_limits(None).unwrap())));
    }
}
