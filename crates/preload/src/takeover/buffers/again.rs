//! Whether a call that has answered EFAULT is made again: a page of ours may be the reason, or a
//! bad pointer of the program's own.
//!
//! Some calls have taken something by then: a datagram, a child that has ended, a signal. Made
//! again with a bad pointer, such a call would take the next one, or wait for it. So it is made
//! again only where memory that it names, and the program may use, is missing.

use uzswap::region::{RangeFlags, page_ceil, page_floor};
use uzswap::sys::mem::{PROT_READ, PROT_WRITE};
use uzswap::sys::{PAGE_SIZE, nr};

use super::super::thread::ThreadBlock;
use super::super::{Args, PAGER};
use super::hold::{Holder, is_ours};
use crate::calls::shapes::{Disposition, disposition};
use crate::calls::walk::{Kind, Visit, walk};

/// Whether a call could have another result with more memory held.
pub(super) fn may_help(t: &'static ThreadBlock, number: usize, a: &Args) -> bool {
    !is_of_another(number, a) && (!takes(number) || Search::finds_missing(t, number, a))
}

/// Whether the memory that a call does not find may be another process's. To look for more memory
/// of this one would then be in vain, and takes milliseconds.
fn is_of_another(number: usize, a: &Args) -> bool {
    moves_memory_of_a_process(number) && !is_ours(a[0] as u32 as usize)
}

/// Whether a call moves memory between this process and one that it names.
pub(in crate::takeover) fn moves_memory_of_a_process(number: usize) -> bool {
    matches!(number, nr::PROCESS_VM_READV | nr::PROCESS_VM_WRITEV)
}

/// Whether a call may have taken something before it answers EFAULT.
fn takes(number: usize) -> bool {
    disposition(number) == Disposition::ConsumesBeforeFault
        || matches!(number, nr::READ | nr::READV | nr::PREADV2 | nr::RT_SIGTIMEDWAIT)
}

/// Looks whether memory is missing that a call may use, and the program may, too.
struct Search {
    holder: Holder,
    has_found: bool,
}

impl Search {
    fn finds_missing(t: &'static ThreadBlock, number: usize, a: &Args) -> bool {
        let here = 0u8;
        let holder = Holder { t, sp: &raw const here as usize };
        let mut search = Search { holder, has_found: false };
        walk(number, a, &mut search);
        search.has_found
    }
}

impl Visit for Search {
    fn hold(&mut self, addr: usize, len: usize, kind: Kind) {
        let right = if kind == Kind::In { PROT_READ | PROT_WRITE } else { PROT_WRITE };
        let (mut at, end) = (page_floor(addr), page_ceil(addr + len));
        while !self.has_found
            && at < end
            && let Some(range) = PAGER.ranges.first_overlap_unlocked(at, end)
        {
            let from = range.start.max(at);
            at = range.end;
            let is_left = [RangeFlags::UNREGISTERED, RangeFlags::GUARD];
            if range.prot & right as u32 == 0 || is_left.iter().any(|f| range.flags.has(*f)) {
                continue;
            }
            // Pages that the call holds are resident and free to be written.
            self.has_found = (from..range.end.min(end))
                .step_by(PAGE_SIZE)
                .any(|page| PAGER.table.get(page).is_none_or(|e| !e.is_writable()));
        }
    }

    fn read(&self, addr: usize, into: &mut [u8]) -> bool {
        self.holder.read(addr, into)
    }

    fn is_own(&self, pid: usize) -> bool {
        self.holder.is_own(pid)
    }
}

#[cfg(test)]
mod tests {
    use super::super::call_and_hold;
    use super::super::tests::{block, connect};
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixDatagram;
    use uzswap::sys::Errno;
    use uzswap::sys::mem::map_anonymous;

    /// A page that is managed, with these rights.
    fn managed(prot: usize) -> usize {
        let at = map_anonymous(PAGE_SIZE, prot).unwrap();
        let mut s = PAGER.enter();
        PAGER.note_mapped(&mut s, at, at + PAGE_SIZE, prot as u32, RangeFlags::NONE);
        at
    }

    #[test]
    fn a_call_with_a_bad_pointer_takes_no_more_than_one_datagram() {
        connect();
        let (t, only_to_read) = (block(), managed(PROT_READ));
        let (to, from) = UnixDatagram::pair().unwrap();
        from.set_nonblocking(true).unwrap();
        for text in ["first", "second", "third"] {
            to.send(text.as_bytes()).unwrap();
        }
        let a = [from.as_raw_fd() as usize, only_to_read, 8, 0, 0, 0];
        for number in [nr::RECVFROM, nr::READ] {
            assert_eq!(call_and_hold(t, number, a), Errno::EFAULT.as_return(), "call {number}");
        }
        let mut text = [0; 8];
        assert_eq!(from.recv(&mut text).unwrap(), 5);
        assert_eq!(&text[..5], b"third");
        PAGER.note_unmapped(&mut PAGER.enter(), only_to_read, only_to_read + PAGE_SIZE);
        t.give_back();
    }

    #[test]
    fn memory_is_missing_where_the_program_may_use_it_and_no_page_is_there() {
        let t = block();
        let [to_read, to_write] = [PROT_READ, PROT_READ | PROT_WRITE].map(managed);
        let finds = |number, at| Search::finds_missing(t, number, &[0, at, 8, 0, 0, 0]);
        assert!(!finds(nr::READ, to_read) && finds(nr::WRITE, to_read));
        assert!(finds(nr::READ, to_write) && finds(nr::WRITE, to_write));
        let flag = |flag| PAGER.note_flag(to_write, to_write + PAGE_SIZE, flag, true);
        flag(RangeFlags::UNREGISTERED);
        assert!(!finds(nr::READ, to_write), "the kernel brings it in");
        for at in [to_read, to_write] {
            PAGER.note_unmapped(&mut PAGER.enter(), at, at + PAGE_SIZE);
        }
        t.give_back();
    }
}
