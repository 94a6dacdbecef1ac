//! The program's mapping calls: made by the kernel, noted by the pager, under one hold of the lock.
//!
//! Memory stays where the kernel puts it. A dormant process only keeps the list; every call that
//! adds memory asks whether the process could now exceed the limit, and if so paging is switched on
//! (`memory/growth.rs`). Calls that map, unmap and protect are here; `memory/remap.rs` has mremap,
//! `memory/lock.rs` mlock and its kin, `memory/advise.rs` madvise.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use uzswap::control::Counter;
use uzswap::pager::Locked;
use uzswap::region::{RangeFlags, page_ceil, page_floor};
use uzswap::sys::mem::{
    MAP_ANONYMOUS, MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_PRIVATE, MAP_TYPE, PROT_EXEC,
};
use uzswap::sys::{Errno, PAGE_SIZE, check, nr, program};

mod advise;
mod growth;
mod lock;
mod remap;

pub(super) use growth::{activate, before_fork, grown};
pub(super) use lock::after_fork_child;

use super::own_stack::runtime;
use super::thread::ThreadBlock;
use super::{
    ACTIVE, Answer, Args, PAGER, call, count, file_memory, is_unmanaged, raw, reserved, run,
};
use crate::patch;

const MAP_GROWSDOWN: usize = 0x100;
const MAP_LOCKED: usize = 0x2000;
const MAP_POPULATE: usize = 0x8000;
const MAP_STACK: usize = 0x2_0000;
const MAP_HUGETLB: usize = 0x4_0000;
const MREMAP_FIXED: usize = 2;
const SHM_REMAP: usize = 0o40000;

/// End of the heap, as the program last set it.
static BREAK: AtomicUsize = AtomicUsize::new(0);

pub fn set_break(addr: usize) {
    BREAK.store(addr, Ordering::Release);
}

fn overlaps(start: usize, len: usize) -> bool {
    PAGER
        .ranges
        .first_overlap_unlocked(page_floor(start), page_ceil(start.saturating_add(len)))
        .is_some()
}

pub(super) fn call(t: &'static ThreadBlock, number: usize, a: Args) -> Option<Answer> {
    // A process that pages waits at its faults.
    if !ACTIVE.load(Ordering::Acquire) && !is_unmanaged() {
        let pages = growth::added_pages(number, a);
        if pages > 0 && PAGER.may_have_to_wait(pages) {
            growth::wait_for_turn(t);
        }
    }
    let r = match number {
        nr::MMAP => return mmap(t, a),
        nr::MUNMAP if overlaps(a[0], a[1]) || file_memory::overlaps(a[0], a[1]) => {
            runtime(t, move || munmap(a))
        }
        nr::MPROTECT | nr::PKEY_MPROTECT if overlaps(a[0], a[1]) => {
            runtime(t, move || mprotect(number, a))
        }
        nr::MREMAP
            if overlaps(a[0], a[1].max(1))
                || (a[3] & MREMAP_FIXED != 0
                    && (overlaps(a[4], a[2]) || file_memory::overlaps(a[4], a[2]))) =>
        {
            runtime(t, move || remap::mremap(a))
        }
        nr::MREMAP if file_memory::overlaps(a[0], a[1].max(1)) => {
            runtime(t, move || remap::remap_file(a))
        }
        nr::MADVISE if overlaps(a[0], a[1]) => return Some(advise::one(t, a)),
        nr::PROCESS_MADVISE => return advise::several(t, a),
        nr::BRK => runtime(t, move || brk(a[0])),
        nr::MLOCK | nr::MLOCK2 | nr::MUNLOCK if overlaps(a[0], a[1]) => {
            runtime(t, move || lock::mlock(t, number, a))
        }
        nr::MLOCKALL => runtime(t, move || lock::mlockall(a[0])),
        nr::MUNLOCKALL => runtime(t, lock::munlockall),
        nr::MSEAL if overlaps(a[0], a[1]) => runtime(t, move || mseal(a)),
        nr::SHMAT if a[2] & SHM_REMAP != 0 => runtime(t, move || shmat_over(a)),
        nr::MUNMAP | nr::MPROTECT | nr::PKEY_MPROTECT | nr::MREMAP | nr::MADVISE => {
            return Some(Answer::Inline);
        }
        nr::MLOCK | nr::MLOCK2 | nr::MUNLOCK => return Some(Answer::Inline),
        _ => return None,
    };
    Some(Answer::Result(r))
}

/// Set where executable files that the program maps are not for the processor: see
/// `leave_later_texts`.
static LEAVE_TEXTS: AtomicBool = AtomicBool::new(false);

/// Leaves texts alone that are mapped from now on: the program (Valgrind) reads them, and makes
/// code of its own of them. A jump in them would lead it out of the code that it knows; the calls
/// that it makes for them are its own.
pub fn leave_later_texts() {
    LEAVE_TEXTS.store(true, Ordering::Release);
}

fn mmap(t: &'static ThreadBlock, a: Args) -> Option<Answer> {
    let [addr, len, prot, flags, fd, offset] = a;
    let anonymous = flags & MAP_ANONYMOUS != 0
        && flags & MAP_TYPE == MAP_PRIVATE
        && flags & (MAP_STACK | MAP_GROWSDOWN | MAP_HUGETLB) == 0
        && len > 0;
    let fixed = flags & (MAP_FIXED | MAP_FIXED_NOREPLACE) != 0;
    let over = fixed && (overlaps(addr, len) || file_memory::overlaps(addr, len));
    let is_noted = anonymous || over || file_memory::is_mapping(&a);
    let is_text = prot & PROT_EXEC != 0
        && flags & MAP_ANONYMOUS == 0
        && flags & MAP_TYPE == MAP_PRIVATE
        && !LEAVE_TEXTS.load(Ordering::Acquire);
    if !is_noted && !is_text {
        return Some(Answer::Inline);
    }
    // A loader that wants a text aligned maps it over memory that it has reserved, and that is
    // managed.
    let r = if is_noted { runtime(t, move || mmap_noted(a, anonymous)) } else { raw(nr::MMAP, a) };
    if is_text && check(r).is_ok() {
        let unpatched = runtime(t, move || {
            // SAFETY: the mapping was just made by the program's loader and does not run yet.
            let report = unsafe {
                patch::patch_file_mapping(fd as i32, r as usize, page_ceil(len), offset, prot)
            };
            report.unpatched
        });
        count(Counter::UnpatchedSites, unpatched as u64);
    }
    Some(Answer::Result(r))
}

fn mmap_noted(a: Args, anonymous: bool) -> isize {
    let [addr, len, prot, flags, ..] = a;
    // A mapping that the kernel places by itself is not there yet, so there is no range to lock.
    let is_fixed = flags & (MAP_FIXED | MAP_FIXED_NOREPLACE) != 0;
    let fixed_end = addr.saturating_add(page_ceil(len));
    let mut s = if is_fixed { PAGER.lock_range(addr, fixed_end) } else { PAGER.enter() };
    let active = ACTIVE.load(Ordering::Acquire);
    let populate = anonymous && active && flags & MAP_POPULATE != 0;
    let mut b = a;
    if populate {
        b[3] &= !MAP_POPULATE;
    }
    let r = raw(nr::MMAP, b);
    let Ok(start) = check(r) else {
        if is_fixed {
            note_failed_over(&mut s, addr, fixed_end);
        }
        return r;
    };
    let end = start + page_ceil(len);
    file_memory::forget(&s, start, end);
    if !anonymous {
        PAGER.note_unmapped(&mut s, start, end);
        if file_memory::is_mapping(&a) {
            reserved::note_file(&s, start, end);
            grown(&mut s);
        }
        return r;
    }
    debug_assert!(flags & MAP_FIXED == 0 || start == addr);
    let locked = flags & MAP_LOCKED != 0 || lock::holds_for_memory_to_come();
    PAGER.note_mapped(
        &mut s,
        start,
        end,
        prot as u32,
        RangeFlags::NONE.with(RangeFlags::LOCKED, locked),
    );
    if reserved::is_mapping(a) && !locked && flags & MAP_POPULATE == 0 {
        reserved::note(start, end);
    }
    if populate || (locked && active && !lock::waits_for_touches()) {
        let (guard, _) = PAGER.make_resident(s, start, end);
        s = guard;
    }
    grown(&mut s);
    if !ACTIVE.load(Ordering::Acquire) {
        want_huge_pages(start, end);
    }
    r
}

/// Asks the kernel for huge pages in a dormant process, if they are wanted everywhere, so that they
/// are there when paging begins.
fn want_huge_pages(start: usize, end: usize) {
    let always = run::settings().huge_pages == uzswap::control::HugePages::Always as u32;
    if always && end - start >= uzswap::sys::HUGE_BYTES {
        // SAFETY: dormant; the pager takes pages as it finds them when it begins.
        unsafe { uzswap::sys::program::advise_huge(start, end - start) };
    }
}

fn munmap(a: Args) -> isize {
    let mut s = PAGER.lock_range(a[0], a[0].saturating_add(page_ceil(a[1])));
    let r = raw(nr::MUNMAP, a);
    if r == 0 {
        note_gone(&mut s, a[0], a[0] + page_ceil(a[1]));
    }
    r
}

/// Notes that nothing of `[start, end)` is ours to know any more.
fn note_gone(s: &mut Locked<'_>, start: usize, end: usize) {
    PAGER.note_unmapped(s, start, end);
    file_memory::forget(s, start, end);
}

/// After a call that failed and was to map something over `[start, end)`: the kernel unmaps all of
/// it first, and does not bring it back. In doubt it is there.
fn note_failed_over(s: &mut Locked<'_>, start: usize, end: usize) {
    let managed = PAGER.ranges.first_overlap_unlocked(start, end);
    let Some(noted) = managed.or_else(|| file_memory::first(start, end)) else { return };
    let page = noted.start.max(start);
    if program::mincore(page, &mut [0]) == Err(Errno::ENOMEM) {
        note_gone(s, start, end);
    }
}

fn mprotect(number: usize, a: Args) -> isize {
    let (start, prot) = (a[0], a[2] as u32 & 7);
    // An address inside a page, or an end beyond all addresses, the kernel refuses at once.
    let Some(end) = start.checked_add(page_ceil(a[1])).filter(|_| start.is_multiple_of(PAGE_SIZE))
    else {
        return raw(number, a);
    };
    let mut s = PAGER.lock_range(start, end);
    let protect = PAGER.active().is_some_and(|x| x.mechanism.hides());
    if protect && has_key(number, &a) {
        // Pages are shown by mprotect, which gives no key.
        drop(s);
        return if PAGER.end_paging_of(start, end) {
            raw(number, a)
        } else {
            Errno::ENOMEM.as_return()
        };
    }
    // Where a change stopped halfway, if that is known.
    let mut stopped = None;
    let r = if protect {
        match PAGER.protect_shown(start, end, prot) {
            Ok(()) => 0,
            Err((at, e)) => {
                stopped = Some(at);
                e.as_return()
            }
        }
    } else {
        raw(number, a)
    };
    if r == 0 {
        let was_closed = PAGER.ranges.find(start).is_some_and(|r| r.prot == 0 && r.end >= end);
        PAGER.note_protected(start, end, prot);
        if prot != 0 && reserved::is_one(end - start, was_closed) {
            reserved::note(start, end);
        }
        // Pages with a protection key of their own cannot be moved: they stay resident.
        if has_key(number, &a) {
            PAGER.note_flag(start, end, RangeFlags::STAYS, true);
        }
        grown(&mut s);
    } else if let Some(at) = stopped {
        PAGER.note_protected(start, at, prot);
        // The kernel may have changed some pages behind.
        PAGER.note_flag(at, end, RangeFlags::STAYS, true);
    } else if r != Errno::EINVAL.as_return() {
        PAGER.note_half_protected(start, end, prot);
        grown(&mut s);
    }
    r
}

/// Whether a call gives memory a protection key of its own.
fn has_key(number: usize, a: &Args) -> bool {
    number == nr::PKEY_MPROTECT && a[3] as i32 > 0
}

fn brk(wanted: usize) -> isize {
    let mut s = PAGER.enter();
    if wanted < BREAK.load(Ordering::Relaxed) {
        // Pages that go may be claimed. The break itself changes under the lock only.
        drop(s);
        s = PAGER.lock();
    }
    let r = call!(nr::BRK, wanted);
    let (old, new) = (page_ceil(BREAK.load(Ordering::Relaxed)), page_ceil(r as usize));
    if new > old {
        let locked = lock::holds_for_memory_to_come();
        PAGER.note_mapped(&mut s, old, new, 3, RangeFlags::NONE.with(RangeFlags::LOCKED, locked));
        grown(&mut s);
    } else if new < old {
        PAGER.note_unmapped(&mut s, new, old);
    }
    BREAK.store(r as usize, Ordering::Release);
    r
}

/// Seals memory against changes of its mapping. By protection faults such changes hide and show its
/// pages: one that is out could not be shown any more. So paging of that memory ends first.
fn mseal(a: Args) -> isize {
    let [start, len, flags, ..] = a;
    let end = start.saturating_add(page_ceil(len));
    let s = PAGER.lock_range(page_floor(start), end);
    let is_hidden = PAGER.active().is_some_and(|x| x.mechanism.hides());
    // Anything else the kernel refuses.
    if is_hidden && start.is_multiple_of(PAGE_SIZE) && flags == 0 {
        drop(s);
        let is_let_go = PAGER.end_paging_of(start, end);
        return if is_let_go { raw(nr::MSEAL, a) } else { Errno::ENOMEM.as_return() };
    }
    raw(nr::MSEAL, a)
}

/// Attaches a segment over memory that may be managed (shmat): the segment's size says which memory
/// is gone.
fn shmat_over(a: Args) -> isize {
    let mut s = PAGER.lock();
    let r = raw(nr::SHMAT, a);
    let mut info = [0u64; 14];
    // IPC_STAT: shm_segsz follows the 48 bytes of ipc_perm.
    if call!(nr::SHMCTL, a[0], 2, info.as_mut_ptr()) == 0 {
        let len = page_ceil(info[6] as usize);
        match check(r) {
            Ok(at) => note_gone(&mut s, at, at + len),
            Err(_) => {
                let at = page_floor(a[1]);
                note_failed_over(&mut s, at, at.saturating_add(len));
            }
        }
    }
    r
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use uzswap::sys::mem::{MAP_SHARED, PROT_READ, PROT_WRITE};

    #[test]
    fn over_a_mapping_of_a_file_and_managed_memory_a_segment_is_neither() {
        const LEN: usize = 2 * PAGE_SIZE;
        let start = uzswap::sys::mem::map_anonymous(2 * LEN, PROT_READ | PROT_WRITE).unwrap();
        let file = start + LEN;
        {
            let mut s = PAGER.enter();
            PAGER.note_mapped(&mut s, start, file, 3, RangeFlags::NONE);
            file_memory::note(&s, file, file + LEN, false);
        }
        let id = call!(nr::SHMGET, 0, 2 * LEN - 1, 0o600);
        assert!(id >= 0, "error {id}");
        let noted = || [overlaps(start, LEN), file_memory::overlaps(file, LEN)];
        let attach = |flags| shmat_over([id as usize, start, flags, 0, 0, 0]);
        assert_eq!((attach(0), noted()), (Errno::EINVAL.as_return(), [true; 2]));
        assert_eq!((attach(SHM_REMAP), noted()), (start as isize, [false; 2]));
        assert_eq!(call!(nr::SHMDT, start), 0);
        // IPC_RMID.
        assert_eq!(call!(nr::SHMCTL, id, 0, 0), 0);
    }

    #[test]
    fn a_mapping_that_fails_takes_along_what_it_was_to_lie_over() {
        const LEN: usize = 2 * PAGE_SIZE;
        let start = uzswap::sys::mem::map_anonymous(3 * LEN, PROT_READ | PROT_WRITE).unwrap();
        let [file, between, end] = [start + LEN, start + 2 * LEN, start + 3 * LEN];
        {
            let mut s = PAGER.enter();
            PAGER.note_mapped(&mut s, start, file, 3, RangeFlags::NONE);
            file_memory::note(&s, file, between, false);
            PAGER.note_mapped(&mut s, between, end, 3, RangeFlags::NONE);
        }
        let map_over = |at: usize, len: usize, fd: i32| {
            mmap_noted([at, len, 3, MAP_SHARED | MAP_FIXED, fd as usize, 0], false)
        };
        let is_noted =
            || [overlaps(start, LEN), file_memory::overlaps(file, LEN), overlaps(between, LEN)];
        assert_eq!(map_over(start, 3 * LEN, -1), Errno::EBADF.as_return());
        assert_eq!(is_noted(), [true; 3], "nothing was done");
        // The kernel asks a socket for its memory when what was there is unmapped.
        let socket = std::os::unix::net::UnixDatagram::unbound().unwrap();
        assert_eq!(map_over(start + PAGE_SIZE, 2 * LEN, socket.as_raw_fd()), -19);
        assert!(program::mincore(file, &mut [0]).is_err(), "it is gone");
        assert_eq!(is_noted(), [true, false, true]);
        assert!(overlaps(start, PAGE_SIZE) && !overlaps(start + PAGE_SIZE, PAGE_SIZE));
        assert!(overlaps(end - PAGE_SIZE, PAGE_SIZE) && !overlaps(between, PAGE_SIZE));
        for at in [start, end - PAGE_SIZE] {
            assert_eq!(munmap([at, PAGE_SIZE, 0, 0, 0, 0]), 0);
        }
    }
}
