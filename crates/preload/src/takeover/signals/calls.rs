//! The program's signal calls, and those that take a mask: it sees the actions, masks and stacks
//! that it asked for, not ours.
//!
//! # Safety charter
//! As for [`super`]: memory to which the program points is copied in and out by `buffers`, which
//! refuses bad addresses.
#![allow(unsafe_code)]

use uzswap::sys::{Errno, nr};

use super::super::thread::{StackT, ThreadBlock};
use super::super::{Answer, Args, buffers, call};
use super::*;

/// The signal calls.
pub(in crate::takeover) fn call(t: &'static ThreadBlock, number: usize, a: Args) -> Option<Answer> {
    match number {
        nr::RT_SIGACTION => Some(Answer::Result(sigaction(t, a))),
        nr::RT_SIGPENDING => Some(Answer::Result(sigpending(t, a))),
        nr::RT_SIGPROCMASK => Some(Answer::Result(sigprocmask(t, a))),
        nr::RT_SIGTIMEDWAIT => sent::timed_wait(t, argument(t, a[0])?, a).map(Answer::Result),
        nr::RT_SIGSUSPEND => with_mask(t, number, a, 0, 1),
        nr::PPOLL => with_mask(t, number, a, 3, 4),
        nr::EPOLL_PWAIT | nr::EPOLL_PWAIT2 => with_mask(t, number, a, 4, 5),
        nr::SIGNALFD | nr::SIGNALFD4 => with_mask(t, number, a, 1, 2),
        nr::PSELECT6 | nr::IO_PGETEVENTS => with_pair(t, number, a),
        _ => None,
    }
}

/// A call that takes a signal mask by pointer in argument `at`, its size in argument `size_at`.
fn with_mask(
    t: &'static ThreadBlock,
    number: usize,
    mut a: Args,
    at: usize,
    size_at: usize,
) -> Option<Answer> {
    if a[at] == 0 || a[size_at] != 8 {
        return None;
    }
    let mask = argument(t, a[at])?;
    if mask & fault_bit() != 0 {
        a[at] = t.mask_slot(mask & !fault_bit());
    }
    match number {
        nr::SIGNALFD | nr::SIGNALFD4 if mask & fault_bit() == 0 => None,
        nr::SIGNALFD | nr::SIGNALFD4 => Some(Answer::Result(buffers::held_call(t, number, a))),
        _ => Some(Answer::Result(wait(t, mask, number, a))),
    }
}

/// A call that takes a pointer to a mask and its size by pointer in its last argument.
fn with_pair(t: &'static ThreadBlock, number: usize, mut a: Args) -> Option<Answer> {
    if a[5] == 0 {
        return None;
    }
    let (mask_at, size) = (argument(t, a[5])? as usize, argument(t, a[5] + 8)?);
    if mask_at == 0 || size != 8 {
        return None;
    }
    let mask = argument(t, mask_at)?;
    let pair = [t.mask_slot(mask & !fault_bit()) as u64, 8];
    if mask & fault_bit() != 0 {
        a[5] = pair.as_ptr() as usize;
    }
    Some(Answer::Result(wait(t, mask, number, a)))
}

/// Makes a call that waits with a mask of its own. A handler that ends the wait is entered with
/// that mask, as by the kernel, and lets through what the call does.
fn wait(t: &'static ThreadBlock, mask: u64, number: usize, a: Args) -> isize {
    let outer = t.wait_mask.swap(mask & !fault_bit() | WAITS, Ordering::Relaxed);
    let r = sent::with_mask(t, mask, || buffers::held_call(t, number, a));
    t.wait_mask.store(outer, Ordering::Relaxed);
    r
}

/// A word of the program's arguments; `None` where the address is bad (the kernel then says so).
fn argument(t: &'static ThreadBlock, at: usize) -> Option<u64> {
    let mut bytes = [0u8; 8];
    buffers::copy_in(t, at, &mut bytes).then(|| u64::from_le_bytes(bytes))
}

/// The pending signals, with the fault signal that waits here for the program to unblock it.
fn sigpending(t: &'static ThreadBlock, a: Args) -> isize {
    let mut set = 0u64;
    let r = buffers::with_own_words(|| {
        set = core::hint::black_box(0);
        call!(nr::RT_SIGPENDING, &raw mut set, 8)
    });
    if r != 0 || a[1] > 8 {
        return super::super::raw(nr::RT_SIGPENDING, a);
    }
    let ours = if sent::is_pending(t) { fault_bit() } else { 0 };
    set |= ours;
    if buffers::copy_out(t, a[0], &set.to_le_bytes()[..a[1]]) {
        0
    } else {
        Errno::EFAULT.as_return()
    }
}

fn sigaction(t: &'static ThreadBlock, a: Args) -> isize {
    let (sig, new_at, old_at) = (a[0] as i32, a[1], a[2]);
    if a[3] != 8 || sig <= 0 || sig >= SIGNALS as i32 {
        return super::super::raw(nr::RT_SIGACTION, a);
    }
    // A vfork child has its own table in the kernel but shares our record.
    let shared_child = uzswap::sys::getpid() != PID.load(Ordering::Relaxed);
    let recorded = &RECORDED[sig as usize];
    let mut words = [0u8; size_of::<KernelAction>()];
    if new_at != 0 && !buffers::copy_in(t, new_at, &mut words) {
        return Errno::EFAULT.as_return();
    }
    // SAFETY: plain integers, any bytes are valid.
    let new =
        (new_at != 0).then(|| unsafe { words.as_ptr().cast::<KernelAction>().read_unaligned() });
    let new = new.map(as_the_kernel_has_it);
    let old = recorded.get();
    if sig == FAULT_SIGNAL.load(Ordering::Relaxed) {
        match new {
            Some(n) if shared_child => inherit::note_of_child(t, &n),
            Some(n) => recorded.set(n),
            None => {}
        }
    } else {
        let mut kernel_old = KernelAction::default();
        let is_dump =
            |n: &KernelAction| n.handler == SIG_DFL && !shared_child && dump::is_ours(sig);
        let install =
            new.map(|n| if is_handler(n.handler) || is_dump(&n) { wrapped(n) } else { n });
        // The record is written first when a handler comes, so that it is there at the first
        // signal.
        if let Some(n) = new
            && is_handler(n.handler)
            && !shared_child
        {
            recorded.set(n);
        }
        let r = kernel_action(sig, install.as_ref(), Some(&mut kernel_old));
        if r != 0 {
            recorded.set(old);
            return r;
        }
        if let Some(n) = new
            && !shared_child
        {
            recorded.set(n);
        }
    }
    if old_at != 0 {
        // SAFETY: plain integers without padding.
        let bytes: [u8; size_of::<KernelAction>()] = unsafe { core::mem::transmute(old) };
        if !buffers::copy_out(t, old_at, &bytes) {
            return Errno::EFAULT.as_return();
        }
    }
    0
}

/// An action as the kernel keeps and shows it: two signals are in no mask.
fn as_the_kernel_has_it(action: KernelAction) -> KernelAction {
    const SIGKILL: i32 = 9;
    const SIGSTOP: i32 = 19;
    let never = 1u64 << (SIGKILL - 1) | 1 << (SIGSTOP - 1);
    KernelAction { mask: action.mask & !never, ..action }
}

fn sigprocmask(t: &'static ThreadBlock, a: Args) -> isize {
    let (how, set_at, old_at) = (a[0] as u32 as usize, a[1], a[2]);
    // The kernel looks at the mask before it refuses what it does not know, and programs ask so
    // whether an address can be read. Without a mask it does not look at `how`.
    if a[3] != 8 || (set_at != 0 && how > SIG_SETMASK) {
        return buffers::held_call(t, nr::RT_SIGPROCMASK, a);
    }
    let asked = match set_at {
        0 => None,
        at => match argument(t, at) {
            Some(asked) => Some(asked),
            None => return Errno::EFAULT.as_return(),
        },
    };
    let bit = fault_bit();
    // Two calls are needed: in one, the kernel would leave the old mask in a place that is used by
    // the handlers which come with the new mask.
    let believed = if t.fault_signal_blocked.load(Ordering::Relaxed) != 0 { bit } else { 0 };
    let old = block_all() | believed;
    let new = match (how, asked) {
        (_, None) => old,
        (SIG_BLOCK, Some(asked)) => old | asked,
        (SIG_UNBLOCK, Some(asked)) => old & !asked,
        (_, Some(asked)) => asked,
    };
    t.fault_signal_blocked.store((new & bit != 0) as u32, Ordering::SeqCst);
    restore(new & !bit);
    if new & bit == 0 {
        // One that came meanwhile is delivered now.
        sent::send_on(t);
    }
    if old_at != 0 && !buffers::copy_out(t, old_at, &old.to_le_bytes()) {
        return Errno::EFAULT.as_return();
    }
    0
}

/// The program's alternate stack is only recorded: the kernel knows ours. `sp`: the program's stack
/// pointer.
pub(in crate::takeover) fn sigaltstack(t: &'static ThreadBlock, a: Args, sp: usize) -> isize {
    const MIN_BYTES: usize = 2048;
    // SAFETY: this thread's own cell.
    let stack = unsafe { &mut *t.program_stack.get() };
    let on_it = stack.has(sp);
    let old = StackT {
        flags: (stack.flags & !SS_ONSTACK) | if on_it { SS_ONSTACK } else { 0 },
        ..*stack
    };
    let mut words = [0u8; size_of::<StackT>()];
    if a[0] != 0 && !buffers::copy_in(t, a[0], &mut words) {
        return Errno::EFAULT.as_return();
    }
    // SAFETY: plain integers, any bytes are valid.
    let new = (a[0] != 0).then(|| unsafe { words.as_ptr().cast::<StackT>().read_unaligned() });
    if let Some(n) = new {
        let mode = n.flags & !SS_AUTODISARM;
        if on_it {
            return Errno::EPERM.as_return();
        }
        if mode != 0 && mode != SS_DISABLE && mode != SS_ONSTACK {
            return Errno::EINVAL.as_return();
        }
        *stack = if mode == SS_DISABLE {
            StackT { sp: 0, flags: n.flags, size: 0 }
        } else if n.size < MIN_BYTES {
            return Errno::ENOMEM.as_return();
        } else {
            StackT { flags: n.flags & !SS_ONSTACK, ..n }
        };
    }
    if a[1] != 0 {
        let mut bytes = [0u8; size_of::<StackT>()];
        bytes[..8].copy_from_slice(&old.sp.to_le_bytes());
        bytes[8..12].copy_from_slice(&old.flags.to_le_bytes());
        bytes[16..].copy_from_slice(&old.size.to_le_bytes());
        if !buffers::copy_out(t, a[1], &bytes) {
            return Errno::EFAULT.as_return();
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The address of a value that a call reads or writes.
    fn at<T>(value: &mut T) -> usize {
        core::ptr::from_mut(value) as usize
    }

    #[test]
    fn an_alternate_stack_is_the_one_that_the_program_set() {
        let t = ThreadBlock::allocate().unwrap();
        let (elsewhere, size) = (0x7000_0000, 0x4000);
        let stack = |flags, size| StackT { sp: 0x10_0000, flags, size };
        let set = |mut new: StackT, sp| sigaltstack(t, [at(&mut new), 0, 0, 0, 0, 0], sp);
        let get = |sp| {
            let mut old = stack(-1, 1);
            assert_eq!(sigaltstack(t, [0, at(&mut old), 0, 0, 0, 0], sp), 0);
            (old.sp, old.flags, old.size)
        };
        assert_eq!(get(elsewhere), (0, SS_DISABLE, 0));
        assert_eq!(set(stack(0, 2047), elsewhere), Errno::ENOMEM.as_return());
        assert_eq!(set(stack(4, size), elsewhere), Errno::EINVAL.as_return());
        assert_eq!(get(elsewhere), (0, SS_DISABLE, 0), "nothing of it was taken");
        assert_eq!(set(stack(SS_ONSTACK, size), elsewhere), 0);
        assert_eq!(get(elsewhere), (0x10_0000, 0, size));
        // On it.
        let inside = 0x10_0000 + size;
        assert_eq!(get(inside), (0x10_0000, SS_ONSTACK, size));
        assert_eq!(set(stack(SS_DISABLE, 0), inside), Errno::EPERM.as_return());
        assert_eq!(sigaltstack(t, [8, 0, 0, 0, 0, 0], inside), Errno::EFAULT.as_return());
        assert_eq!(set(stack(SS_AUTODISARM, size), elsewhere), 0);
        assert_eq!(get(inside), (0x10_0000, SS_AUTODISARM, size));
        assert_eq!(set(stack(SS_DISABLE | SS_AUTODISARM, size), inside), 0);
        assert_eq!(get(elsewhere), (0, SS_DISABLE | SS_AUTODISARM, 0));
        t.give_back();
    }

    #[test]
    fn a_handler_that_ends_a_wait_goes_by_the_mask_of_the_wait() {
        static SEEN: AtomicU64 = AtomicU64::new(0);
        const USR1: u64 = 1 << 9;
        extern "C" fn handle(_: i32, _: usize, context: usize) {
            let t = SEEN.load(Ordering::Acquire) as *const ThreadBlock;
            // SAFETY: the waiting thread's block, which is never unmapped.
            let t = unsafe { &*t };
            let (ip, result) = (read_u64(context + UC_RIP) as usize, read_u64(context + UC_RAX));
            let found = waits_with(t, ip, result).unwrap_or(0);
            SEEN.store(found | WAITS, Ordering::Release);
        }
        // The first real-time signal that libc leaves to programs.
        const SIG: i32 = 34;
        let mut action = wrapped(KernelAction::default());
        action.handler = handle as *const () as usize;
        action.flags &= !SA_ONSTACK;
        assert_eq!(kernel_action(SIG, Some(&action), None), 0);
        let t = ThreadBlock::allocate().unwrap();
        let blocked = 1u64 << (SIG - 1);
        let mut before = 0u64;
        let set = |how, mask: &u64, old| call!(nr::RT_SIGPROCMASK, how, mask as *const u64, old, 8);
        assert_eq!(set(SIG_BLOCK, &blocked, &raw mut before), 0);
        let (mut mask, mut ring, mut events) = (USR1, 0usize, [0u64; 4]);
        let mut pair = [at(&mut mask), 8];
        let mut waits = std::vec![(nr::RT_SIGSUSPEND, [pair[0], 8, 0, 0, 0, 0])];
        if call!(nr::IO_SETUP, 1, &raw mut ring) == 0 {
            waits.push((nr::IO_PGETEVENTS, [ring, 1, 1, at(&mut events), 0, at(&mut pair)]));
        }
        for (number, a) in waits {
            SEEN.store(core::ptr::from_ref(t).addr() as u64, Ordering::Release);
            let _ = call!(nr::TKILL, uzswap::sys::gettid(), SIG);
            let answer = super::call(t, number, a);
            assert!(matches!(answer, Some(Answer::Result(r)) if r == Errno::EINTR.as_return()));
            assert_eq!(SEEN.load(Ordering::Acquire), USR1 | WAITS, "call {number}");
            assert_eq!(t.wait_mask.load(Ordering::Relaxed), 0);
        }
        let _ = call!(nr::IO_DESTROY, ring);
        assert_eq!(set(SIG_SETMASK, &before, core::ptr::null_mut()), 0);
        // Another call, or one that had its result: the mask is the thread's.
        t.wait_mask.store(USR1 | WAITS, Ordering::Relaxed);
        assert_eq!(waits_with(t, 8, Errno::EINTR.as_return() as u64), None);
        t.give_back();
    }

    #[test]
    fn an_action_is_shown_as_the_kernel_shows_it() {
        // Its default action is none.
        const URG: usize = 23;
        let new = KernelAction { flags: SA_RESTORER, mask: !0, ..KernelAction::default() };
        let (mut first, mut old) = (KernelAction::default(), KernelAction::default());
        assert_eq!(kernel_action(URG as i32, Some(&new), Some(&mut first)), 0);
        assert_eq!(kernel_action(URG as i32, Some(&first), Some(&mut old)), 0);
        assert_ne!(old.mask, !0);
        assert_eq!(as_the_kernel_has_it(new).mask, old.mask);
    }

    #[test]
    fn the_fault_signal_is_blocked_as_far_as_the_program_can_see() {
        let t = ThreadBlock::allocate().unwrap();
        let call = |how, set: Option<u64>| {
            let (mut set, mut old) = (set, 0u64);
            let set_at = set.as_mut().map_or(0, at);
            let a = [how, set_at, at(&mut old), 8, 0, 0];
            assert_eq!(sigprocmask(t, a), 0);
            old
        };
        let kernels = || {
            let mut mask = 0u64;
            assert_eq!(call!(nr::RT_SIGPROCMASK, SIG_BLOCK, 0, &raw mut mask, 8), 0);
            mask
        };
        const USR1: u64 = 1 << 9;
        let before = call(SIG_BLOCK, Some(fault_bit() | USR1));
        assert_eq!(before & fault_bit(), 0);
        assert_eq!(call(SIG_BLOCK, None), before | fault_bit() | USR1);
        assert_eq!(kernels(), before | USR1);
        // Sent meanwhile.
        t.sent.put(&[7; 16]);
        let mut pending = 0u64;
        let a = [at(&mut pending), 8, 0, 0, 0, 0];
        assert_eq!(sigpending(t, a), 0);
        assert_ne!(core::hint::black_box(pending) & fault_bit(), 0);
        t.sent.forget();
        // The kernel says what is wrong with a call, and changes nothing.
        let mut set = 0u64;
        let wrong = [3, at(&mut set), 0, 8, 0, 0];
        assert_eq!(sigprocmask(t, wrong), Errno::EINVAL.as_return());
        assert_eq!(sigprocmask(t, [SIG_SETMASK, 8, 0, 8, 0, 0]), Errno::EFAULT.as_return());
        assert_eq!(call(SIG_SETMASK, Some(before)), before | fault_bit() | USR1);
        assert_eq!((call(3, None), kernels()), (before, before));
        t.give_back();
    }
}
