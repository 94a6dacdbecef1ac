//! Advice of the program: `madvise`, and `process_madvise` on itself.
//!
//! Advice that changes what memory holds, or how it is inherited, is given to the kernel and noted
//! under one hold of the lock. Advice about use (MADV_COLD, MADV_PAGEOUT, MADV_WILLNEED) is the
//! pager's to follow (`pager/advise.rs`), in portions between which signals come in; the kernel is
//! asked too, for unmanaged memory in the range, and for the result.
#![allow(unsafe_code)]

use core::sync::atomic::Ordering;

use uzswap::pager::Locked;
use uzswap::region::{ADDRESS_END, Range, RangeFlags, page_ceil};
use uzswap::sys::mem::{PROT_READ, PROT_WRITE};
use uzswap::sys::text::{DIGITS_MOST, decimal, join};
use uzswap::sys::{Errno, PAGE_SIZE, fd, nr};

use super::super::buffers::copy_in;
use super::super::{evictor, owners};
use super::growth::activate;
use super::remap::has_hole;
use super::{ACTIVE, Answer, Args, PAGER, ThreadBlock, call, overlaps, runtime};

const WILLNEED: usize = 3;
const DONTNEED: usize = 4;
const FREE: usize = 8;
const DONTFORK: usize = 10;
const DOFORK: usize = 11;
const MERGEABLE: usize = 12;
const HUGEPAGE: usize = 14;
const NOHUGEPAGE: usize = 15;
const WIPEONFORK: usize = 18;
const KEEPONFORK: usize = 19;
const COLD: usize = 20;
const PAGEOUT: usize = 21;
const POPULATE_READ: usize = 22;
const POPULATE_WRITE: usize = 23;
const DONTNEED_LOCKED: usize = 24;
const COLLAPSE: usize = 25;
const GUARD_INSTALL: usize = 102;
const GUARD_REMOVE: usize = 103;

/// The most parts of a vector, and the most bytes of all parts together, in one call: the kernel's
/// own limits.
const VECTORS_MAX: usize = 1024;
const BYTES_MAX: usize = 0x7fff_f000;
/// Numbers in place of a descriptor, for this thread and this process.
const PIDFD_SELF_THREAD: i32 = -10_000;
const PIDFD_SELF_THREAD_GROUP: i32 = -10_001;

/// The call by which the kernel is asked: the two allow different advice.
#[derive(Clone, Copy)]
enum Way {
    Madvise,
    /// `process_madvise` on this descriptor of the process itself.
    Process(usize),
}

impl Way {
    /// Asks the kernel, with words in memory of ours: called in `runtime`.
    fn kernel(self, start: usize, len: usize, advice: usize) -> isize {
        let fd = match self {
            Way::Madvise => return call!(nr::MADVISE, start, len, advice),
            Way::Process(fd) => fd,
        };
        let vector = [start, len];
        call!(nr::PROCESS_MADVISE, fd, vector.as_ptr(), 1, advice, 0).min(0)
    }
}

/// `madvise` of memory of which some is managed.
pub(super) fn one(t: &'static ThreadBlock, a: Args) -> Answer {
    let [start, len, advice, ..] = a;
    advise(t, Way::Madvise, start, len, advice).map_or(Answer::Inline, Answer::Result)
}

/// `process_madvise`. `None`: the kernel's business alone.
pub(super) fn several(t: &'static ThreadBlock, a: Args) -> Option<Answer> {
    let [fd, vector, count, advice, flags, _] = a;
    if flags != 0 || count > VECTORS_MAX || !is_own(t, fd) {
        return None;
    }
    let part = |i: usize| {
        let mut pair = [0u8; 16];
        let is_there = copy_in(t, vector.wrapping_add(i * pair.len()), &mut pair);
        let (words, _) = pair.as_chunks::<8>();
        let [start, len] = [0, 1].map(|w| usize::from_le_bytes(words[w]));
        (is_there && len <= isize::MAX as usize).then_some((start, len))
    };
    // The kernel looks at all of the vector before it does anything, and says if it is wrong.
    if (0..count).any(|i| part(i).is_none()) {
        return None;
    }
    let mut done = 0;
    for i in 0..count {
        let (start, len) = part(i)?;
        let len = len.min(BYTES_MAX - done);
        let way = Way::Process(fd);
        let ours = if overlaps(start, len) { advise(t, way, start, len, advice) } else { None };
        let r = ours.unwrap_or_else(|| runtime(t, move || way.kernel(start, len, advice)));
        if r < 0 {
            return Some(Answer::Result(if done > 0 { done as isize } else { r }));
        }
        done += len;
    }
    Some(Answer::Result(done as isize))
}

/// Whether a descriptor of a process, or the number that stands for one, is that of this process.
fn is_own(t: &'static ThreadBlock, number: usize) -> bool {
    let number = number as i32;
    if matches!(number, PIDFD_SELF_THREAD | PIDFD_SELF_THREAD_GROUP) {
        return true;
    }
    number >= 0 && runtime(t, move || process_of(number).is_some_and(is_of_this_process))
}

/// Whether a process id is this process's, or that of one of its threads, by whose descriptor it is
/// named. In doubt it is: memory that the kernel drops and we do not note would come back with what
/// it had before, and for another process the kernel refuses all advice that drops any.
fn is_of_this_process(pid: u32) -> bool {
    owners::is_there(pid).unwrap_or(true)
}

/// The process of which `number` is a descriptor, by /proc. Without /proc the process is not known,
/// and the kernel alone answers.
fn process_of(number: i32) -> Option<u32> {
    let mut path = [0u8; 40];
    let mut digits = [0u8; DIGITS_MOST];
    join(&[b"/proc/self/fdinfo/", decimal(u64::from(number as u32), &mut digits)], &mut path);
    let path = core::ffi::CStr::from_bytes_until_nul(&path).ok()?;
    let file = fd::open_read(path).ok()?;
    let mut text = [0u8; 512];
    let n = fd::read(file, &mut text);
    fd::close(file);
    let line =
        text[..n.ok()?].split(|b| *b == b'\n').find_map(|line| line.strip_prefix(b"Pid:\t"))?;
    // A process id of -1: the process has ended. One of 0: it has none in this pid namespace.
    let is_number = !line.is_empty() && line.iter().all(u8::is_ascii_digit);
    let pid = is_number.then(|| line.iter().fold(0, |v, b| v * 10 + u32::from(b - b'0')));
    pid.filter(|pid| *pid != 0)
}

/// `None`: the kernel's business alone.
fn advise(
    t: &'static ThreadBlock,
    way: Way,
    start: usize,
    len: usize,
    advice: usize,
) -> Option<isize> {
    match advice {
        COLD | PAGEOUT | WILLNEED => follow(t, way, start, len, advice),
        _ => runtime(t, move || note(way, start, len, advice)),
    }
}

/// Follows advice about use. Without paging it is the kernel's, but for a process that listens to
/// orders: asked to page out, it begins to page.
fn follow(
    t: &'static ThreadBlock,
    way: Way,
    start: usize,
    len: usize,
    advice: usize,
) -> Option<isize> {
    let end = start.checked_add(len)?.min(ADDRESS_END);
    if !start.is_multiple_of(PAGE_SIZE) {
        return None;
    }
    if advice == PAGEOUT && !ACTIVE.load(Ordering::Acquire) && evictor::is_running() {
        runtime(t, || activate(&mut PAGER.lock()));
    }
    if !ACTIVE.load(Ordering::Acquire) {
        return None;
    }
    let end = page_ceil(end);
    let kernel = || runtime(t, move || way.kernel(start, len, advice));
    if advice == WILLNEED {
        // The kernel reads files ahead meanwhile.
        let r = kernel();
        let (mut at, mut left) = (start, PAGER.wanted_most());
        while at < end {
            let came;
            (at, came) = runtime(t, move || PAGER.bring_in(at, end, left));
            left -= came;
        }
        return Some(r);
    }
    if advice == PAGEOUT {
        let mut at = start;
        while at < end {
            at = runtime(t, move || PAGER.page_out(at, end));
        }
    } else {
        runtime(t, move || PAGER.make_cold(start, end));
    }
    // The kernel follows for pages of the range that are not managed, or have to stay.
    Some(kernel())
}

/// Other advice: given and noted under one hold of the lock. `None`: the kernel's business alone.
fn note(way: Way, start: usize, len: usize, advice: usize) -> Option<isize> {
    // The kernel refuses these. A range that began within a page would never be swept to its end.
    if !start.is_multiple_of(PAGE_SIZE) || page_ceil(len) < len {
        return None;
    }
    let end = start.checked_add(page_ceil(len))?;
    let mut s = PAGER.lock_range(start, end);
    let active = ACTIVE.load(Ordering::Acquire);
    // With a hole in the range the rest was advised nevertheless.
    let is_given = |r: isize| r == 0 || r == Errno::ENOMEM.as_return();
    let flag = |flag, on| {
        let r = way.kernel(start, len, advice);
        if is_given(r) {
            PAGER.note_flag(start, end, flag, on);
        }
        Some(r)
    };
    match advice {
        DONTFORK => return flag(RangeFlags::DONTFORK, true),
        DOFORK => return flag(RangeFlags::DONTFORK, false),
        WIPEONFORK => return flag(RangeFlags::WIPEONFORK, true),
        KEEPONFORK => return flag(RangeFlags::WIPEONFORK, false),
        HUGEPAGE | NOHUGEPAGE => {
            // Dormant, the kernel makes huge pages; active, the pager does, if it makes any.
            let kernels = !active || PAGER.makes_huge_pages() || advice == NOHUGEPAGE;
            let r = if kernels { way.kernel(start, len, advice) } else { 0 };
            if is_given(r) {
                PAGER.note_flag(start, end, RangeFlags::HUGE, advice == HUGEPAGE);
                PAGER.note_flag(start, end, RangeFlags::NOT_HUGE, advice == NOHUGEPAGE);
            }
            return Some(r);
        }
        // Paging that begins later must not fill them.
        GUARD_INSTALL | GUARD_REMOVE => {}
        _ if !active => return None,
        _ => {}
    }
    match advice {
        GUARD_INSTALL => Some(install_guards(&mut s, way, start, len)),
        DONTNEED | FREE | DONTNEED_LOCKED => {
            // MADV_FREE may drop at once; a page dropped later, unseen, could not be told from a
            // stored one.
            let kernel = if advice == FREE { DONTNEED } else { advice };
            let r = way.kernel(start, len, kernel);
            if r == 0 {
                PAGER.note_discarded(&mut s, start, end);
            } else {
                // A refusal by `process_madvise` may be one of this advice for any process.
                let stops = kernel == DONTNEED && matches!(way, Way::Madvise);
                discarded_in_part(&mut s, start, end, r, stops);
            }
            Some(r)
        }
        GUARD_REMOVE => {
            let r = way.kernel(start, len, advice);
            PAGER.note_flag(start, end, RangeFlags::GUARD, false);
            Some(r)
        }
        // How pages are kept is the pager's to decide here.
        MERGEABLE | COLLAPSE => Some(0),
        POPULATE_READ | POPULATE_WRITE => Some(populate(s, way, start, end, advice)),
        _ => None,
    }
}

/// Brings in all memory of `[start, end)` that the program may read, or write: the pager what it
/// manages, and the kernel the rest, without the lock. As in the kernel the first place without
/// memory, or without the right, ends it.
fn populate(mut s: Locked<'_>, way: Way, start: usize, end: usize, advice: usize) -> isize {
    let right = if advice == POPULATE_READ { PROT_READ } else { PROT_WRITE };
    let mut at = start;
    while at < end {
        let range = PAGER.ranges.next_from(at).map(|range| range.clip(at, end));
        let is_managed = |range: &Range| !range.flags.has(RangeFlags::UNREGISTERED);
        match range.filter(|range| range.start == at && is_managed(range)) {
            Some(range) if range.prot & right as u32 == 0 => return Errno::EINVAL.as_return(),
            Some(range) if range.flags.has(RangeFlags::GUARD) => return Errno::EFAULT.as_return(),
            Some(range) => {
                let is_there;
                (s, is_there) = PAGER.make_resident(s, at, range.end);
                if !is_there {
                    return Errno::EFAULT.as_return();
                }
                at = range.end;
            }
            None => {
                // Up to where managed memory begins, or to the end of what is left to the kernel.
                let stop = match range {
                    Some(range) if range.start == at => range.end,
                    Some(range) => range.start.min(end),
                    None => end,
                };
                let r = s.unlocked(|| way.kernel(at, stop - at, advice));
                if r != 0 {
                    return r;
                }
                at = stop;
            }
        }
    }
    0
}

/// Makes guard pages, whose contents are gone. A call that fails has made them everywhere but in a
/// hole, or up to a locked range.
fn install_guards(s: &mut Locked<'_>, way: Way, start: usize, len: usize) -> isize {
    let end = start + page_ceil(len);
    let r = way.kernel(start, len, GUARD_INSTALL);
    // An older kernel does not know the advice, and `process_madvise` may refuse it.
    let is_known = || matches!(way, Way::Madvise) && way.kernel(start, 0, GUARD_INSTALL) == 0;
    let made_to = match r {
        0 => Some(end),
        _ if r == Errno::ENOMEM.as_return() => has_hole(start, end).then_some(end),
        _ if r == Errno::EINVAL.as_return() && is_known() => PAGER.ranges.first_locked(start, end),
        _ => None,
    };
    if let Some(stop) = made_to {
        PAGER.note_discarded(s, start, stop);
        PAGER.note_flag(start, stop, RangeFlags::GUARD, true);
    }
    r
}

/// Notes the pages that are gone after a call that was to discard `[start, end)` and failed with
/// `r`. In doubt a page keeps its contents. `stops`: EINVAL may mean that the kernel, which knows
/// the advice, stopped at a locked range.
fn discarded_in_part(s: &mut Locked<'_>, start: usize, end: usize, r: isize, stops: bool) {
    // With a hole in the range the rest was discarded nevertheless.
    if r == Errno::ENOMEM.as_return() {
        PAGER.note_discarded(s, start, end);
    } else if r == Errno::EINVAL.as_return()
        && stops
        && let Some(stop) = PAGER.ranges.first_locked(start, end)
    {
        PAGER.note_discarded(s, start, stop);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    use uzswap::sys::mem::{MAP_ANONYMOUS, MAP_FIXED_NOREPLACE, MAP_PRIVATE, map_anonymous};
    use uzswap::sys::program;
    use uzswap::sys::seccomp::Instruction;

    #[test]
    fn advice_holds_on_both_sides_of_a_hole() {
        // Far from where the kernel puts what other tests map.
        let at = 0x1234_0000_0000;
        let parts = [at, at + 2 * PAGE_SIZE];
        for part in parts {
            let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
            let mapped =
                call!(nr::MMAP, part, PAGE_SIZE, PROT_READ | PROT_WRITE, flags, usize::MAX, 0);
            assert_eq!(mapped, part as isize);
            PAGER.note_mapped(&mut PAGER.enter(), part, part + PAGE_SIZE, 3, RangeFlags::NONE);
        }
        let expect = |advice, flag, on| {
            let r = note(Way::Madvise, at, 3 * PAGE_SIZE, advice);
            if r == Some(Errno::EINVAL.as_return()) && matches!(advice, HUGEPAGE | NOHUGEPAGE) {
                return; // A kernel without huge pages.
            }
            assert_eq!(r, Some(Errno::ENOMEM.as_return()), "advice {advice}");
            let has = |part| PAGER.ranges.find(part).is_some_and(|r| r.flags.has(flag));
            assert_eq!(parts.map(has), [on; 2], "advice {advice}");
        };
        expect(DONTFORK, RangeFlags::DONTFORK, true);
        expect(DOFORK, RangeFlags::DONTFORK, false);
        expect(NOHUGEPAGE, RangeFlags::NOT_HUGE, true);
        expect(HUGEPAGE, RangeFlags::HUGE, true);
        expect(HUGEPAGE, RangeFlags::NOT_HUGE, false);
        // A range beyond the address space, or from within a page, is the kernel's to refuse.
        for advice in [DONTFORK, WIPEONFORK, HUGEPAGE, NOHUGEPAGE, DONTNEED] {
            assert_eq!(note(Way::Madvise, at, usize::MAX, advice), None);
            assert_eq!(note(Way::Madvise, at + 1, PAGE_SIZE, advice), None);
        }
        assert!(PAGER.ranges.find(at).is_some_and(|r| r.end == at + PAGE_SIZE));
        expect(KEEPONFORK, RangeFlags::DONTFORK, false);
        PAGER.note_unmapped(&mut PAGER.enter(), at, at + 3 * PAGE_SIZE);
    }

    #[test]
    fn memory_comes_in_up_to_the_first_place_that_has_none_or_gives_no_right() {
        const PAGES: usize = 8;
        let start = map_anonymous(PAGES * PAGE_SIZE, PROT_READ | PROT_WRITE).unwrap();
        let at = |page: usize| start + page * PAGE_SIZE;
        let note = |from: usize, to: usize, prot: u32| {
            PAGER.note_mapped(&mut PAGER.enter(), at(from), at(to), prot, RangeFlags::NONE);
        };
        note(0, 1, 3);
        note(2, 3, 3);
        let populate = |from: usize, to: usize, advice: usize| {
            populate(PAGER.enter(), Way::Madvise, at(from), at(to), advice)
        };
        if populate(0, 4, POPULATE_WRITE) == Errno::EINVAL.as_return() {
            return std::println!("SKIPPED: before Linux 5.14");
        }
        let there: [_; PAGES] = core::array::from_fn(|page| program::is_present(at(page)));
        let [managed, other] = [[there[0], there[2]], [there[1], there[3]]];
        assert_eq!((managed, other), ([false; 2], [true; 2]), "the pager has nothing out");
        assert!(!there[4..].contains(&true));
        let (bad, none, fault) = (Errno::EINVAL, Errno::ENOMEM, Errno::EFAULT);
        let refused = |e: Errno| e.as_return();
        note(3, 4, PROT_READ as u32);
        assert_eq!(populate(0, 4, POPULATE_READ), 0);
        assert_eq!(populate(0, 4, POPULATE_WRITE), refused(bad));
        note(3, 4, 0);
        assert_eq!(populate(0, 4, POPULATE_READ), refused(bad));
        note(3, 4, 3);
        PAGER.note_flag(at(3), at(4), RangeFlags::GUARD, true);
        assert_eq!(populate(0, 4, POPULATE_READ), refused(fault));
        assert_eq!(populate(0, 3, POPULATE_READ), 0);
        // Memory on the list that is the kernel's, a hole, and memory behind it.
        PAGER.note_flag(at(3), at(4), RangeFlags::UNREGISTERED, true);
        assert_eq!(call!(nr::MUNMAP, at(5), PAGE_SIZE), 0);
        assert_eq!(populate(2, PAGES, POPULATE_WRITE), refused(none));
        assert_eq!(
            [3, 4, 6, 7].map(|page| program::is_present(at(page))),
            [true, true, false, false]
        );
        PAGER.note_unmapped(&mut PAGER.enter(), start, at(PAGES));
    }

    #[test]
    fn guard_pages_are_noted_before_paging_begins() {
        let at = map_anonymous(2 * PAGE_SIZE, PROT_READ | PROT_WRITE).unwrap();
        PAGER.note_mapped(&mut PAGER.enter(), at, at + 2 * PAGE_SIZE, 3, RangeFlags::NONE);
        let is_guard = || PAGER.ranges.find(at).unwrap().flags.has(RangeFlags::GUARD);
        let advise = |start, advice| note(Way::Madvise, start, PAGE_SIZE, advice);
        if advise(at, GUARD_INSTALL) != Some(0) {
            return std::println!("SKIPPED: before Linux 6.13");
        }
        assert!(is_guard());
        assert_eq!(advise(at + 8, GUARD_REMOVE), None, "the kernel refuses that");
        assert!(is_guard());
        assert_eq!(advise(at, GUARD_REMOVE), Some(0));
        assert!(!is_guard());
        PAGER.note_unmapped(&mut PAGER.enter(), at, at + 2 * PAGE_SIZE);
    }

    #[test]
    fn guard_pages_are_noted_where_a_call_that_fails_has_made_them() {
        const PAGES: usize = 6;
        let start = map_anonymous(PAGES * PAGE_SIZE, PROT_READ | PROT_WRITE).unwrap();
        let at = |page: usize| start + page * PAGE_SIZE;
        let mut s = PAGER.enter();
        PAGER.note_mapped(&mut s, start, at(PAGES), 3, RangeFlags::NONE);
        let is_guard = |page: usize| {
            PAGER.ranges.find(at(page)).is_some_and(|r| r.flags.has(RangeFlags::GUARD))
        };
        let guards = || -> [bool; PAGES] { core::array::from_fn(is_guard) };
        if Way::Madvise.kernel(start, 0, GUARD_INSTALL) != 0 {
            return std::println!("SKIPPED: before Linux 6.13");
        }
        assert_eq!(call!(nr::MLOCK, at(4), PAGE_SIZE), 0);
        PAGER.note_flag(at(4), at(5), RangeFlags::LOCKED, true);
        let r = install_guards(&mut s, Way::Madvise, at(3), 3 * PAGE_SIZE);
        assert_eq!((r, guards()), (-22, [false, false, false, true, false, false]));
        assert_eq!(call!(nr::MUNMAP, at(1), PAGE_SIZE), 0);
        PAGER.note_unmapped(&mut s, at(1), at(2));
        let r = install_guards(&mut s, Way::Madvise, start, 3 * PAGE_SIZE);
        assert_eq!((r, guards()), (-12, [true, false, true, true, false, false]));
        assert_eq!(install_guards(&mut s, Way::Madvise, at(5), PAGE_SIZE), 0);
        assert_eq!(guards(), [true, false, true, true, false, true]);
        for (page, is_guard) in guards().into_iter().enumerate().filter(|(page, _)| *page != 1) {
            let r = Way::Madvise.kernel(at(page), PAGE_SIZE, POPULATE_READ);
            assert_eq!(r != 0, is_guard, "page {page}");
        }
        PAGER.note_unmapped(&mut s, start, at(PAGES));
    }

    /// A descriptor of a process.
    fn open(pid: u32) -> OwnedFd {
        let fd = call!(nr::PIDFD_OPEN, pid, 0) as i32;
        assert!(fd >= 0, "error {fd}");
        // SAFETY: a descriptor that was just made, and is nobody else's.
        unsafe { OwnedFd::from_raw_fd(fd) }
    }

    #[test]
    fn a_descriptor_of_a_process_names_it_until_it_has_ended() {
        let me = open(uzswap::sys::getpid());
        assert_eq!(process_of(me.as_raw_fd()), Some(uzswap::sys::getpid()));
        let mut child = std::process::Command::new("/bin/true").spawn().unwrap();
        let other = open(child.id());
        assert_eq!(process_of(other.as_raw_fd()), Some(child.id()));
        child.wait().unwrap();
        assert_eq!(process_of(other.as_raw_fd()), None, "-1 is no number of a process");
        let (reader, _writer) = std::io::pipe().unwrap();
        assert_eq!(process_of(reader.as_raw_fd()), None);
        assert_eq!(process_of(i32::MAX), None);
    }

    #[test]
    fn a_process_is_this_one_where_the_kernel_does_not_say() {
        let mut child = std::process::Command::new("/bin/true").spawn().unwrap();
        assert!(!is_of_this_process(child.id()));
        child.wait().unwrap();
        let me = uzswap::sys::getpid();
        assert!(is_of_this_process(me) && is_of_this_process(uzswap::sys::gettid()));
        // The filter is the thread's own, and ends with it.
        let is_filtered = std::thread::spawn(move || {
            let is_filtered = refuse(nr::TGKILL);
            assert!(!is_filtered || owners::is_there(me).is_none() && is_of_this_process(me));
            is_filtered
        });
        if !is_filtered.join().unwrap() {
            std::println!("SKIPPED in part: the kernel takes no filter here");
        }
    }

    /// Has a seccomp filter refuse a call to this thread; false where the kernel takes no filter.
    fn refuse(number: usize) -> bool {
        const PR_SET_NO_NEW_PRIVS: usize = 38;
        const SET_MODE_FILTER: usize = 1;
        const ERRNO_EPERM: u32 = 0x5_0001;
        const ALLOW: u32 = 0x7fff_0000;
        let step = |code, jump_true, jump_false, k| Instruction { code, jump_true, jump_false, k };
        // Loads the call's number, compares it, returns.
        let filter = [
            step(0x20, 0, 0, 0),
            step(0x15, 0, 1, number as u32),
            step(6, 0, 0, ERRNO_EPERM),
            step(6, 0, 0, ALLOW),
        ];
        let program = [filter.len(), filter.as_ptr() as usize];
        call!(nr::PRCTL, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && call!(nr::SECCOMP, SET_MODE_FILTER, 0, program.as_ptr()) == 0
    }
}
