//! System calls with buffers, once paging is on: every buffer is resident before the call and held
//! until it returns.
//!
//! ```text
//!   pieces      large transfers, cut where that cannot be told from one
//!   own_memory  transfers of /proc/self/mem, whose other side is our memory, too
//!   vmsplice    by which pages would be lent to a pipe
//!   again       whether a call that answered EFAULT is made again
//!   keep        memory that the kernel uses after the call
//!   copy        arguments in, results out
//!   hold        resident, and held
//! ```
//!
//! The shapes of the arguments are in `calls/`; here their memory is held. Retry on EFAULT is the
//! safety net, not the plan: some calls have consumed their data by then.

use core::sync::atomic::Ordering;

use uzswap::control::Counter;
use uzswap::sys::{Errno, nr};

mod again;
mod copy;
mod hold;
mod keep;
mod own_memory;
mod pieces;
mod vmsplice;

pub(super) use again::moves_memory_of_a_process;
pub(super) use copy::{copy_in, copy_out, is_readable};
pub(super) use hold::{is_ours, with_own_words, with_stack_held};
pub(super) use keep::{hold_robust_list, keep, keep_named};
pub(super) use own_memory::note_seek;
pub(super) use pieces::{MOST_BYTES, VECTORS_MAX, piecewise, vector, vectors_bytes};

use super::thread::ThreadBlock;
use super::{ACTIVE, Answer, Args, cancel, count};
use crate::calls::walk::{scan, walk};
use hold::Holder;
use pieces::{Cut, clamp_length, cut, managed, piece_bytes, random_pieces, send_pieces};

/// Makes a call with its buffers held.
pub(super) fn held_call(t: &'static ThreadBlock, number: usize, a: Args) -> isize {
    match ACTIVE.load(Ordering::Acquire) {
        true => call_and_hold(t, number, a),
        false => cancel::call(t, number, a),
    }
}

fn call_and_hold(t: &'static ThreadBlock, number: usize, a: Args) -> isize {
    let mark = t.holds().mark();
    let here = 0u8;
    let mut holder = Holder { t, sp: &raw const here as usize };
    walk(number, &a, &mut holder);
    let mut r = cancel::call(t, number, a);
    let mut tries = 0;
    while r == Errno::EFAULT.as_return() && tries < 3 && again::may_help(t, number, &a) {
        let before = t.holds().mark();
        scan(number, &a, tries, &mut holder);
        if t.holds().mark() == before {
            break;
        }
        count(Counter::EfaultRetries, 1);
        r = cancel::call(t, number, a);
        tries += 1;
    }
    t.holds().pop_to(mark);
    r
}

/// Holds the memory that a call names, for the duration of `f`.
pub(super) fn with_held<R>(
    t: &'static ThreadBlock,
    number: usize,
    a: &Args,
    f: impl FnOnce() -> R,
) -> R {
    let mark = t.holds().mark();
    if ACTIVE.load(Ordering::Acquire) {
        let here = 0u8;
        walk(number, a, &mut Holder { t, sp: &raw const here as usize });
    }
    let r = f();
    t.holds().pop_to(mark);
    r
}

/// Makes a call with its buffers held, once paging is on: no more of a large one than can be held.
pub(super) fn bounded_call(t: &'static ThreadBlock, number: usize, a: Args) -> isize {
    match number {
        nr::GETRANDOM if a[1] > piece_bytes() && managed(a[0], a[1]) => random_pieces(t, a),
        _ => held_call(t, number, clamp_length(number, a)),
    }
}

/// Calls that need a decision of their own.
pub(super) fn special(t: &'static ThreadBlock, number: usize, mut a: Args) -> Option<Answer> {
    const SOL_SOCKET: usize = 1;
    const SO_ZEROCOPY: usize = 60;
    const MSG_ZEROCOPY: usize = 0x400_0000;
    match number {
        // io_uring lets the kernel use memory between calls; programs fall back without it.
        nr::IO_URING_SETUP | nr::IO_URING_ENTER | nr::IO_URING_REGISTER => {
            Some(Answer::Result(Errno::ENOSYS.as_return()))
        }
        // A page lent to a pipe is not pinned: taken out, it would be recycled under the reader.
        // Copy instead, while dormant as well: paging may begin before the pipe is read.
        nr::VMSPLICE => Some(vmsplice::call(t, a)),
        // Zero-copy sends refer to pages after the call; without the option programs copy.
        nr::SETSOCKOPT if a[1] == SOL_SOCKET && a[2] == SO_ZEROCOPY => {
            Some(Answer::Result(Errno::ENOPROTOOPT.as_return()))
        }
        nr::SENDTO if a[2] > piece_bytes() && managed(a[1], a[2]) && cut(a[0]) == Cut::Stream => {
            a[3] &= !MSG_ZEROCOPY;
            Some(Answer::Result(send_pieces(t, a)))
        }
        nr::SENDTO | nr::SENDMSG | nr::SENDMMSG => {
            let flags_at = if number == nr::SENDMSG { 2 } else { 3 };
            if a[flags_at] & MSG_ZEROCOPY == 0 {
                return None;
            }
            a[flags_at] &= !MSG_ZEROCOPY;
            Some(Answer::Result(held_call(t, number, a)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::PAGER;
    use super::*;
    use uzswap::control::Tree;
    use uzswap::region::{RangeFlags, page_ceil};
    use uzswap::sys::mem::{PROT_READ, PROT_WRITE, map_anonymous};

    pub(super) fn block() -> &'static ThreadBlock {
        ThreadBlock::allocate().expect("a block")
    }

    /// Has the pager know a tree, whose limit is 0: pieces are as small as they get.
    pub(super) fn connect() {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            let at = map_anonymous(size_of::<Tree>(), PROT_READ | PROT_WRITE).unwrap();
            // SAFETY: fresh memory of ours; a tree of zeros is one, as that of a new run.
            let tree: &'static Tree = unsafe { &*(at as *const Tree) };
            PAGER.connect(tree, tree.claim(uzswap::sys::getpid()).unwrap());
        });
    }

    #[test]
    fn as_much_randomness_comes_as_is_asked_for() {
        const BYTES: usize = (2 << 20) + 5;
        connect();
        let (t, at) = (block(), map_anonymous(BYTES, PROT_READ | PROT_WRITE).unwrap());
        let end = at + page_ceil(BYTES);
        PAGER.note_mapped(&mut PAGER.enter(), at, end, 3, RangeFlags::NONE);
        assert_eq!(bounded_call(t, nr::GETRANDOM, [at, BYTES, 0, 0, 0, 0]), BYTES as isize);
        // A flag that the kernel does not know.
        let refused = bounded_call(t, nr::GETRANDOM, [at, BYTES, 1 << 9, 0, 0, 0]);
        assert_eq!(refused, Errno::EINVAL.as_return());
        PAGER.note_unmapped(&mut PAGER.enter(), at, end);
        t.give_back();
    }
}
