//! The program's mapping calls: made by the kernel, noted by the pager, under one hold of the lock.
//!
//! Memory stays where the kernel puts it. A dormant process only keeps the list; every call that
//! adds memory asks whether the process could now exceed the limit, and if so paging is switched
//! on.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use uzswap::control::Counter;
use uzswap::pager::{Active, Locked};
use uzswap::region::{RangeFlags, page_ceil, page_floor};
use uzswap::sys::fd::ForNow;
use uzswap::sys::mem::{
    MAP_ANONYMOUS, MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_PRIVATE, MAP_TYPE, PROT_EXEC,
};
use uzswap::sys::{Errno, PAGE_SIZE, check, nr, program};

use super::own_stack::runtime;
use super::reserved::{dormant_pages, inherited_pages};
use super::signals::dump;
use super::thread::{self, ThreadBlock};
use super::{
    ACTIVE, Answer, Args, PAGER, call, classes, count, descriptors, evictor, file_memory, inflight,
    is_settled, is_unmanaged, masks, outside, raw, relatives, reserved, run, set_unmanaged,
};
use crate::patch;

mod advise;

const MAP_GROWSDOWN: usize = 0x100;
const MAP_LOCKED: usize = 0x2000;
const MAP_POPULATE: usize = 0x8000;
const MAP_STACK: usize = 0x2_0000;
const MAP_HUGETLB: usize = 0x4_0000;
const MREMAP_MAYMOVE: usize = 1;
const MREMAP_FIXED: usize = 2;
const MREMAP_DONTUNMAP: usize = 4;
const SHM_REMAP: usize = 0o40000;
const MCL_CURRENT: usize = 1;
const MCL_FUTURE: usize = 2;
const MCL_ONFAULT: usize = 4;

/// End of the heap, as the program last set it.
static BREAK: AtomicUsize = AtomicUsize::new(0);
/// The flags of mlockall while MCL_FUTURE is in force, else 0.
static LOCK_FUTURE: AtomicUsize = AtomicUsize::new(0);

pub fn set_break(addr: usize) {
    BREAK.store(addr, Ordering::Release);
}

/// Called in the child after fork, whose mappings to come the kernel does not lock.
pub fn after_fork_child() {
    LOCK_FUTURE.store(0, Ordering::Relaxed);
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
        let pages = added_pages(number, a);
        if pages > 0 && PAGER.may_have_to_wait(pages) {
            wait_for_turn(t);
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
            runtime(t, move || mremap(a))
        }
        nr::MREMAP if file_memory::overlaps(a[0], a[1].max(1)) => runtime(t, move || remap_file(a)),
        nr::MADVISE if overlaps(a[0], a[1]) => return Some(advise::one(t, a)),
        nr::PROCESS_MADVISE => return advise::several(t, a),
        nr::BRK => runtime(t, move || brk(a[0])),
        nr::MLOCK | nr::MLOCK2 | nr::MUNLOCK if overlaps(a[0], a[1]) => {
            runtime(t, move || mlock(t, number, a))
        }
        nr::MLOCKALL => runtime(t, move || mlockall(a[0])),
        nr::MUNLOCKALL => runtime(t, munlockall),
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

/// Pages that a call may add to those that the process could hold.
fn added_pages(number: usize, a: Args) -> i64 {
    const ACCESSIBLE: usize = 7;
    let private = MAP_ANONYMOUS | MAP_PRIVATE;
    let bytes = match number {
        nr::MMAP if reserved::is_mapping(a) => 0,
        nr::MMAP if file_memory::is_mapping(&a) && !reserved::is_one(a[1], true) => a[1],
        nr::MMAP if a[3] & (MAP_ANONYMOUS | MAP_TYPE) == private && a[2] & ACCESSIBLE != 0 => a[1],
        nr::MPROTECT | nr::PKEY_MPROTECT if a[2] & ACCESSIBLE != 0 && overlaps(a[0], a[1]) => a[1],
        nr::MREMAP => a[2].saturating_sub(a[1]),
        nr::BRK => a[0].saturating_sub(BREAK.load(Ordering::Relaxed)),
        _ => 0,
    };
    bytes.div_ceil(PAGE_SIZE) as i64
}

/// Waits for the turn of this dormant process before it has more memory. A process of one thread
/// touches nothing meanwhile, so only the pages that it holds count.
fn wait_for_turn(t: &'static ThreadBlock) {
    let mask = masks::block_all();
    runtime(t, move || {
        let held = if thread::is_only_one() { outside::held_pages() } else { None };
        PAGER.wait_to_grow(held, || !masks::would_interrupt(mask));
        grown(&mut PAGER.enter());
    });
    masks::restore(mask);
}

/// The smallest process whose pages are watched (`pager/sampling.rs`), in pages, 8 MiB; smaller
/// ones are left alone anyway.
const WATCHED_FROM_PAGES: i64 = (8 << 20) / PAGE_SIZE as i64;

/// Asks, after memory was added, whether the process may exceed the limit now.
pub fn grown(s: &mut Locked<'_>) {
    if is_settled() {
        return;
    }
    let pages = dormant_pages();
    if !relatives::reserve(pages) || PAGER.is_watching() && pages >= WATCHED_FROM_PAGES {
        activate(s);
    } else {
        evictor::listen_from(pages);
    }
}

/// Asks before a fork whether the child's pages fit. The child of a dormant process counts all
/// inherited pages from before it exists ([`relatives::expect_child`]): it could write to them
/// faster than anybody would notice. Where they do not fit, paging is on before the fork: then
/// shared pages count as they are written to.
pub fn before_fork() {
    if is_settled() {
        return;
    }
    if inherited_pages().is_some_and(|pages| !relatives::has_room(pages)) {
        activate(&mut PAGER.lock());
    }
}

/// Switches paging on.
pub fn activate(s: &mut Locked<'_>) {
    if is_settled() {
        return;
    }
    let room = ForNow::make_room();
    let opened = Active::open(run::settings(), thread::is_only_one(), &PAGER.tree().leases)
        .and_then(|a| PAGER.set_active(s, Box::leak(Box::new(a))));
    if let Err(e) = opened {
        ForNow::end(room);
        return unmanaged(e);
    }
    // From here on buffers are held, before any page can be missing.
    classes::set_classes(true);
    ACTIVE.store(true, Ordering::SeqCst);
    dump::begin();
    inflight::hold_all();
    PAGER.activate_ranges(s);
    outside::open_files();
    ForNow::end(room);
    descriptors::refresh();
    evictor::start();
}

fn unmanaged(e: Errno) {
    set_unmanaged();
    PAGER.reserve(dormant_pages());
    PAGER.tree().notice(uzswap::control::Notice::NoMechanism, e.0);
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
    let future = LOCK_FUTURE.load(Ordering::Relaxed);
    let locked = flags & MAP_LOCKED != 0 || future != 0;
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
    if populate || (locked && active && future & MCL_ONFAULT == 0) {
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

/// Moves or resizes a private mapping of a file, which stays one (mremap).
fn remap_file(a: Args) -> isize {
    let mut s = PAGER.enter();
    let r = raw(nr::MREMAP, a);
    if let Ok(start) = check(r) {
        file_moved(&s, a, start);
        grown(&mut s);
    }
    r
}

/// Notes that the kernel has moved or resized a private mapping of a file, which is at `new`.
fn file_moved(s: &Locked<'_>, a: Args, new: usize) {
    file_memory::forget(s, a[0], a[0] + page_ceil(a[1]));
    reserved::note_file(s, new, new + page_ceil(a[2]));
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

fn mremap(a: Args) -> isize {
    let [old, old_len, new_len, flags, target, _] = a;
    let (old_len, new_len) = (page_ceil(old_len), page_ceil(new_len));
    let mut s = PAGER.lock();
    // The kernel refuses these at once, and the mechanism has no such ranges.
    let Some(old_end) = old.checked_add(old_len) else { return raw(nr::MREMAP, a) };
    let managed = PAGER.ranges.find(old);
    if !old.is_multiple_of(PAGE_SIZE) || managed.is_some() && old_len == 0 {
        return raw(nr::MREMAP, a);
    }
    let is_move = flags & MREMAP_FIXED != 0 && old_len == new_len;
    if is_move && !moves_as_one(old, old_end) {
        return Errno::EFAULT.as_return();
    }
    // Memory that stays at its place stays under the mechanism: other threads may use it meanwhile.
    let may_stay = managed.is_some() && flags & (MREMAP_FIXED | MREMAP_DONTUNMAP) == 0;
    if may_stay && PAGER.active().is_some_and(|x| !x.mechanism.hides()) {
        let r = raw(nr::MREMAP, [old, old_len, new_len, flags & !MREMAP_MAYMOVE, target, 0]);
        if check(r).is_ok() {
            return moved(&mut s, a, old);
        }
        if flags & MREMAP_MAYMOVE == 0 || !may_move_after(r) {
            return r;
        }
    }
    if managed.is_some() && PAGER.prepare_move(old, old_end).is_err() {
        return Errno::ENOMEM.as_return();
    }
    let r = raw(nr::MREMAP, a);
    let Ok(new) = check(r) else {
        if flags & MREMAP_FIXED != 0 {
            note_failed_over(&mut s, target, target.saturating_add(new_len));
            // A mapping that is to become smaller does so first.
            note_failed_over(&mut s, old + new_len.min(old_len), old_end);
        }
        PAGER.after_move(old, old_end);
        return r;
    };
    if flags & MREMAP_FIXED != 0 {
        debug_assert!(new == target);
        PAGER.note_unmapped(&mut s, new, new + new_len);
        // Over managed memory goes a mapping of a file as well, and over one of a file any memory.
        file_memory::forget(&s, new, new + new_len);
        if managed.is_none() && file_memory::overlaps(old, old_len) {
            file_moved(&s, a, new);
        }
    }
    moved(&mut s, a, new)
}

/// Whether a call that could not resize memory at its place may do so at another. A wrong argument
/// (EINVAL, EFAULT), a seal (EPERM) or a limit on locked memory (EAGAIN) is in the way wherever the
/// memory is to go. Taken off the mechanism for such a call, pages that are out would read as zeros
/// meanwhile.
fn may_move_after(r: isize) -> bool {
    r == Errno::ENOMEM.as_return()
}

/// Whether a move of `[old, end)` moves all of it. Newer kernels (6.17) move several mappings by
/// one call, leave what lies where the holes come to be, and stop at a mapping that cannot go
/// along. Others refuse that.
fn moves_as_one(old: usize, end: usize) -> bool {
    if PAGER.ranges.overlaps(old, end) { PAGER.ranges.cover(old, end) } else { !has_hole(old, end) }
}

/// Whether there is no mapping somewhere in `[start, end)`.
fn has_hole(start: usize, end: usize) -> bool {
    /// Pages that the kernel is asked for at a time.
    const PAGES: usize = 512;
    let mut there = [0u8; PAGES];
    (start..end).step_by(PAGES * PAGE_SIZE).any(|at| {
        let pages = ((end - at) / PAGE_SIZE).min(PAGES);
        program::mincore(at, &mut there[..pages]) == Err(Errno::ENOMEM)
    })
}

/// Notes that the kernel has moved or resized the memory, which is at `new`.
fn moved(s: &mut Locked<'_>, a: Args, new: usize) -> isize {
    let [old, old_len, new_len, flags, ..] = a;
    let (old_len, new_len) = (page_ceil(old_len), page_ceil(new_len));
    PAGER.note_moved(s, old, old_len, new, new_len, flags & MREMAP_DONTUNMAP != 0);
    grown(s);
    new as isize
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
        let locked = LOCK_FUTURE.load(Ordering::Relaxed) != 0;
        PAGER.note_mapped(&mut s, old, new, 3, RangeFlags::NONE.with(RangeFlags::LOCKED, locked));
        grown(&mut s);
    } else if new < old {
        PAGER.note_unmapped(&mut s, new, old);
    }
    BREAK.store(r as usize, Ordering::Release);
    r
}

/// Whether a call that locks memory brings it in, too. Memory that is locked when it is touched
/// stays out until then, and flags that the kernel does not know it refuses.
fn brings_in(number: usize, flags: usize) -> bool {
    match number {
        nr::MLOCK => true,
        nr::MLOCK2 => flags == 0,
        nr::MLOCKALL => flags & (MCL_CURRENT | MCL_ONFAULT) == MCL_CURRENT,
        _ => false,
    }
}

fn mlock(t: &'static ThreadBlock, number: usize, a: Args) -> isize {
    let (start, end) = (page_floor(a[0]), page_ceil(a[0].saturating_add(a[1])));
    let mut s = PAGER.lock_range(start, end);
    // Resident pages must stay until the others have come: the kernel stops at a missing page, with
    // the mapping locked.
    let mark = t.holds().mark();
    if brings_in(number, a[2]) {
        t.holds().push(start, end, &raw const s as usize);
        let (guard, ok) = PAGER.make_resident(s, start, end);
        s = guard;
        if !ok {
            t.holds().pop_to(mark);
            return Errno::ENOMEM.as_return();
        }
    }
    let r = raw(number, a);
    t.holds().pop_to(mark);
    if r == 0 {
        PAGER.note_flag(start, end, RangeFlags::LOCKED, number != nr::MUNLOCK);
    }
    drop(s);
    r
}

fn mlockall(flags: usize) -> isize {
    let mut s = PAGER.lock();
    if brings_in(nr::MLOCKALL, flags) && ACTIVE.load(Ordering::Acquire) {
        let (guard, ok) = PAGER.make_resident(s, 0, uzswap::region::ADDRESS_END);
        s = guard;
        if !ok {
            return Errno::EAGAIN.as_return();
        }
    }
    let r = call!(nr::MLOCKALL, flags);
    if r == 0 {
        if flags & MCL_CURRENT != 0 {
            PAGER.note_flag(0, uzswap::region::ADDRESS_END, RangeFlags::LOCKED, true);
        }
        let future = if flags & MCL_FUTURE != 0 { flags } else { 0 };
        LOCK_FUTURE.store(future, Ordering::Relaxed);
    }
    drop(s);
    r
}

fn munlockall() -> isize {
    let s = PAGER.lock();
    let r = call!(nr::MUNLOCKALL);
    if r == 0 {
        LOCK_FUTURE.store(0, Ordering::Relaxed);
        PAGER.note_flag(0, uzswap::region::ADDRESS_END, RangeFlags::LOCKED, false);
    }
    drop(s);
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
    fn a_child_of_fork_does_not_inherit_that_memory_to_come_is_locked() {
        let map = || {
            let a = [0, PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, 0, 0];
            let at = check(mmap_noted(a, true)).unwrap();
            let is_locked = PAGER.ranges.find(at).unwrap().flags.has(RangeFlags::LOCKED);
            assert_eq!(munmap([at, PAGE_SIZE, 0, 0, 0, 0]), 0);
            is_locked
        };
        run::set_settings(uzswap::control::Settings::new());
        LOCK_FUTURE.store(MCL_FUTURE, Ordering::Relaxed);
        assert!(map());
        after_fork_child();
        assert!(!map());
    }

    #[test]
    fn memory_that_is_locked_when_it_is_touched_does_not_come_before() {
        const MLOCK_ONFAULT: usize = 1;
        assert!(brings_in(nr::MLOCK, 0) && brings_in(nr::MLOCK2, 0));
        assert!(brings_in(nr::MLOCK, MLOCK_ONFAULT), "mlock has no flags");
        assert!(!brings_in(nr::MLOCK2, MLOCK_ONFAULT) && !brings_in(nr::MUNLOCK, 0));
        let all = |flags| brings_in(nr::MLOCKALL, flags);
        assert!(all(MCL_CURRENT) && all(MCL_CURRENT | MCL_FUTURE));
        assert!(!all(MCL_FUTURE) && !all(MCL_CURRENT | MCL_ONFAULT));
        assert!(!all(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT));
    }

    #[test]
    fn memory_that_the_kernel_will_not_move_either_is_not_made_ready_for_that() {
        const LEN: usize = 2 * PAGE_SIZE;
        let at = uzswap::sys::mem::map_anonymous(2 * LEN, PROT_READ | PROT_WRITE).unwrap();
        // Another mapping follows.
        assert_eq!(call!(nr::MPROTECT, at + LEN, LEN, PROT_READ), 0);
        let resize = |from, to| call!(nr::MREMAP, at, from, to, 0);
        assert!(may_move_after(resize(LEN, 2 * LEN)), "it has no room here");
        assert!(!may_move_after(resize(2 * LEN, 3 * LEN)), "two mappings");
        assert!(!may_move_after(resize(LEN, 0)), "nothing would be left");
        assert_eq!(call!(nr::MUNMAP, at, 2 * LEN), 0);
    }

    #[test]
    fn mappings_of_files_count_where_they_are_whatever_they_were_moved_over() {
        const LEN: usize = 2 * PAGE_SIZE;
        let new = || {
            let at = uzswap::sys::mem::map_anonymous(LEN, PROT_READ | PROT_WRITE).unwrap();
            move |is_managed| {
                let mut s = PAGER.enter();
                match is_managed {
                    true => PAGER.note_mapped(&mut s, at, at + LEN, 3, RangeFlags::NONE),
                    false => reserved::note_file(&s, at, at + LEN),
                }
                at
            }
        };
        let (file, memory, other) = (new()(false), new()(true), new()(true));
        let move_over = |from, to| mremap([from, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, to, 0]);
        assert_eq!(move_over(file, memory), memory as isize);
        assert!(!overlaps(memory, LEN) && file_memory::overlaps(memory, LEN));
        assert!(!file_memory::overlaps(file, LEN), "nothing is there any more");
        assert_eq!(move_over(other, memory), memory as isize);
        assert!(overlaps(memory, LEN) && !file_memory::overlaps(memory, LEN));
        assert_eq!(munmap([memory, LEN, 0, 0, 0, 0]), 0);
        assert!(!overlaps(memory, LEN));
    }

    #[test]
    fn memory_that_is_managed_in_part_and_memory_with_holes_is_not_moved() {
        const LEN: usize = 4 * PAGE_SIZE;
        let new = || uzswap::sys::mem::map_anonymous(LEN, PROT_READ | PROT_WRITE).unwrap();
        let note = |at: usize, pages: usize| {
            let end = at + pages * PAGE_SIZE;
            PAGER.note_mapped(&mut PAGER.enter(), at, end, 3, RangeFlags::NONE);
        };
        let (old, to) = (new(), new());
        note(old, 2);
        note(to, 4);
        let remap = |len| mremap([old, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, to, 0]);
        assert_eq!(remap(LEN), Errno::EFAULT.as_return(), "two pages are not managed");
        assert!(overlaps(old, PAGE_SIZE) && !overlaps(old + 2 * PAGE_SIZE, PAGE_SIZE));
        assert_eq!(call!(nr::MUNMAP, old + 2 * PAGE_SIZE, PAGE_SIZE), 0);
        PAGER.note_unmapped(&mut PAGER.enter(), old, old + LEN);
        assert_eq!(remap(LEN), Errno::EFAULT.as_return(), "the third page is a hole");
        assert!(overlaps(to, LEN));
        assert_eq!(remap(2 * PAGE_SIZE), to as isize);
        assert!(!overlaps(to, 2 * PAGE_SIZE) && overlaps(to + 2 * PAGE_SIZE, PAGE_SIZE));
        assert_eq!(munmap([to, LEN, 0, 0, 0, 0]), 0);
    }

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
