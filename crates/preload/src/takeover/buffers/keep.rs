//! Memory that the kernel uses after the call that names it, at a thread's end at the latest: a
//! robust list, rseq, the word that is cleared. It stays resident for good, or until the thread is
//! gone.

use core::hint::black_box;

use uzswap::region::{page_ceil, page_floor};
use uzswap::sys::nr;

use super::super::own_stack::runtime;
use super::super::thread::ThreadBlock;
use super::super::{Args, PAGER, call};
use super::copy::read_program;
use super::hold::{Holder, with_own_words};
use crate::calls::walk::{Kind, Visit, walk};

/// Keeps managed memory resident for good.
pub(in crate::takeover) fn keep(t: &'static ThreadBlock, addr: usize, len: usize) {
    let (start, end) = (page_floor(addr), page_ceil(addr.saturating_add(len)));
    if PAGER.ranges.first_overlap_unlocked(start, end).is_some() {
        runtime(t, move || {
            let (guard, _) = PAGER.make_resident(PAGER.enter(), start, end);
            let _ = PAGER.holds.keep(start, end);
            drop(guard);
        });
    }
}

/// Keeps resident for good the memory that the kernel uses after this call (robust list, rseq, the
/// word cleared at thread exit), also while dormant: paging may be switched on later.
pub(in crate::takeover) fn keep_named(t: &'static ThreadBlock, number: usize, a: &Args) {
    struct Keeper(Holder);
    impl Visit for Keeper {
        fn hold(&mut self, addr: usize, len: usize, kind: Kind) {
            if kind == Kind::Keep {
                keep(self.0.t, addr, len);
            }
        }
        fn read(&self, addr: usize, into: &mut [u8]) -> bool {
            self.0.read(addr, into)
        }
        fn is_own(&self, pid: usize) -> bool {
            self.0.is_own(pid)
        }
    }
    let here = 0u8;
    walk(number, a, &mut Keeper(Holder { t, sp: &raw const here as usize }));
}

/// Holds the entries of an ending thread's list of robust mutexes, and their words, until the
/// thread is gone: the kernel walks the list and marks the mutexes that the thread held, but skips
/// missing memory silently.
pub(in crate::takeover) fn hold_robust_list(t: &'static ThreadBlock) {
    const ENTRIES_MAX: usize = 2048;
    let (mut head, mut len) = (0usize, 0usize);
    let r = with_own_words(|| {
        (head, len) = black_box((0, 0));
        call!(nr::GET_ROBUST_LIST, 0, &raw mut head, &raw mut len)
    });
    if r != 0 || head == 0 {
        return;
    }
    let here = 0u8;
    let mut holder = Holder { t, sp: &raw const here as usize };
    let mut word = |at: usize| {
        let mut bytes = [0u8; 8];
        holder.hold(at, 8, Kind::Out);
        read_program(at, &mut bytes).then(|| usize::from_le_bytes(bytes))
    };
    let (Some(first), Some(offset), Some(pending)) = (word(head), word(head + 8), word(head + 16))
    else {
        return;
    };
    // The lowest bit of an entry says what kind of mutex it is.
    let mut entry = first & !1;
    for _ in 0..ENTRIES_MAX {
        if entry == 0 || entry == head {
            break;
        }
        word(entry.wrapping_add(offset) & !7);
        let Some(next) = word(entry) else { break };
        entry = next & !1;
    }
    if pending & !1 != 0 {
        word((pending & !1).wrapping_add(offset) & !7);
    }
}
