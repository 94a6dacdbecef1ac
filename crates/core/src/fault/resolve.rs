//! Serving a fault: the page that was touched, and its neighbours where the access runs on.
//!
//! Runs in the signal handler of the faulting thread (or under a system call that needs the page), so: no
//! allocation, no managed memory, the lock held while a page's word and the kernel's mapping change together. Two threads
//! that fault on one page serialise on the lock: the second finds it resident.

use core::sync::atomic::Ordering;

use super::stream::FaultStream;
use super::{Active, Locked, PROT_EXEC, PROT_READ, PROT_WRITE, Pager};
use crate::cache::{LoadError, Origin, SwapEntry};
use crate::control::trace::Kind;
use crate::control::{Counter, Mechanism};
use crate::latency::FaultKind;
use crate::policy::trail::Run;
use crate::policy::{WINDOW_LEAST_PAGES, WINDOW_LOCKED_PAGES};
use crate::region::{Mapped, PageEntry, PageState, Range, RangeFlags, page_ceil, page_floor};
use crate::sys::mechanism::Filled;
use crate::sys::{HUGE_BYTES, HUGE_PAGES, PAGE_SHIFT, PAGE_SIZE};

/// How a fault ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The access can be repeated.
    Served,
    /// Not a missing page of ours: the program's own business.
    NotOurs,
    /// The page's contents cannot be had: its copy in the store is unreadable or does not verify.
    Lost,
}

/// Page-fault error code: the page was mapped, its protection forbade the access.
const FAULT_PRESENT: u64 = 1;
/// Page-fault error code: the access was a write.
pub const FAULT_WRITE: u64 = 2;

/// Pages, or whole stretches of 2 MiB, that a thread may find there without ceasing to read on.
const ACROSS_STEPS: usize = 256;
/// Attempts to make room for the copy of a shared page; then it is copied all the same.
const OWN_TRIES: u32 = 4;
/// Attempts to make room for a huge page.
const HUGE_TRIES: u32 = 8;
/// Attempts to bring a window in by moving frames.
const WINDOW_TRIES: u32 = 4;
/// Pages that a thread brings itself though the evictor has them in hand.
const TWICE_PAGES: usize = 16;
/// Attempts to fill a page that the kernel refuses.
const AGAIN_MAX: u32 = 2000;

/// What one attempt to serve came to.
pub(super) enum Serve {
    /// So many pages are there now; of the kind that took longest.
    Done(usize, FaultKind),
    NeedRoom(i64),
    /// The lock was let go, and the page that was asked for is not what it was.
    Changed,
    Again,
    Lost(LoadError),
}

impl Pager {
    /// Serves the fault at `addr`. `error_code` is the processor's.
    pub fn fault(&self, addr: usize, error_code: u64, stream: &mut FaultStream) -> Fault {
        let began = self.fault_begins();
        let page = page_floor(addr);
        let Some(active) = self.active() else { return Fault::NotOurs };
        let write = error_code & FAULT_WRITE != 0;
        let mut want = 0;
        let mut tries = 0;
        let mut first = None;
        let mut s = self.lock();
        loop {
            let Some(range) = self.ranges.find(page) else { return Fault::NotOurs };
            if !allows(range.prot, write) || range.flags.has(RangeFlags::GUARD) {
                return Fault::NotOurs;
            }
            if self.state_of(page) == PageState::Resident {
                if error_code & FAULT_PRESENT == 0
                    && !active.mechanism.is_protect()
                    && !crate::sys::program::is_present(page)
                {
                    self.note_dropped(page);
                    continue;
                }
                if want > 0 {
                    // Another thread has brought it while this one waited, or loaded it in vain; or the evictor, ahead of it.
                    self.trace_served(page, 1, FaultKind::PoolLoad, write, false);
                    self.fault_ends(began, FaultKind::PoolLoad);
                    want = 0;
                }
                if write && self.is_guarded(page) {
                    let was_as_its_copy = self.unguard(active, &range, page, true);
                    self.add(Counter::GuardFaults, was_as_its_copy as u64);
                    return Fault::Served;
                }
                if write && self.is_shared(page) {
                    // The kernel is about to copy it.
                    if self.excess(1) > 0 && tries < OWN_TRIES {
                        tries += 1;
                        s = self.make_room(s, active, 1);
                        continue;
                    }
                    let (window, _) =
                        stream.window(page, WINDOW_LOCKED_PAGES, |a, b| self.are_resident(a, b));
                    let pages = self.own_run(active, range, page, window);
                    stream.path().next = page + pages * PAGE_SIZE;
                    self.publish(false);
                    drop(s);
                    self.ask_evictor();
                    return Fault::Served;
                }
                // Another thread was first; or, by protection faults, a change of protection stopped halfway.
                if active.mechanism.is_protect() {
                    let prot = if self.is_shared(page) { range.prot & !PROT_WRITE } else { range.prot };
                    let _ = active.mechanism.expose(page, PAGE_SIZE, prot);
                } else if write {
                    active.mechanism.allow_write(page, PAGE_SIZE, range.prot);
                }
                return if stream.repeated(page) { Fault::NotOurs } else { Fault::Served };
            }
            if want == 0 {
                let wasted;
                (want, wasted) = stream.window(page, self.batch_pages(), |a, b| self.are_resident(a, b));
                want = self.watch_window(page, want);
                self.add(Counter::AroundWastedPages, wasted as u64);
                self.add(Counter::Faults, 1);
                stream.path().around = 0;
                first = self.behind_coming(&s, active, &range, page);
                stream.path().ahead_end = self.ask_ahead(&mut s, active, &range, first.unwrap_or(page), want);
            }
            if let Some(behind) = first {
                match self.serve(&mut s, active, range, behind, want, tries, write) {
                    Serve::NeedRoom(pages) if tries == 0 => {
                        s = self.make_room(s, active, pages);
                        tries += 1;
                        continue;
                    }
                    Serve::Done(pages, kind) => {
                        self.trace_served(behind, pages, kind, false, true);
                        s.trail.follow(Run { start: behind >> PAGE_SHIFT, pages }, self.limit_pages());
                        let path = stream.path();
                        path.ahead_end = path.ahead_end.max(behind + pages * PAGE_SIZE);
                    }
                    _ => {}
                }
                first = None;
                tries = 0;
                if self.coming_end(&s, page).is_some() {
                    // It may be about to: on this processor, even.
                    drop(s);
                    crate::sys::yield_now();
                    s = self.lock();
                }
                // A little is soon done twice.
                want = if self.coming_end(&s, page).is_some() { want.min(TWICE_PAGES) } else { want };
                continue;
            }
            match self.serve(&mut s, active, range, page, want, tries, write) {
                Serve::Done(pages, kind) => {
                    self.trace_served(page, pages, kind, write, false);
                    s = self.watch_arrivals(s, active, page, pages);
                    stream.path().next = page + pages * PAGE_SIZE;
                    stream.path().around = self.loaded_around(page, pages, kind);
                    stream.served();
                    if want >= WINDOW_LEAST_PAGES
                        && matches!(kind, FaultKind::PoolLoad | FaultKind::StoreLoad)
                    {
                        s.trail.follow(Run { start: page >> PAGE_SHIFT, pages }, self.limit_pages());
                    }
                    self.publish(false);
                    drop(s);
                    self.ask_evictor();
                    self.fault_ends(began, kind);
                    return Fault::Served;
                }
                Serve::Changed => tries += 1,
                Serve::NeedRoom(pages) => {
                    s = self.make_room(s, active, pages);
                    // What was made room for may have changed hands meanwhile; do not ask for much again.
                    tries += 1;
                    want = if tries > 4 { 1 } else { want };
                }
                Serve::Again => {
                    tries += 1;
                    // The kernel has no such mapping any more: a wild access like any other.
                    if tries > AGAIN_MAX {
                        return Fault::NotOurs;
                    }
                    drop(s);
                    crate::sys::yield_now();
                    s = self.lock();
                }
                Serve::Lost(why) => {
                    self.note_lost(why);
                    return Fault::Lost;
                }
            }
        }
    }

    /// Makes the managed pages of `[start, end)` resident. False if some page's contents are lost.
    pub fn make_resident<'a>(&'a self, mut s: Locked<'a>, start: usize, end: usize) -> (Locked<'a>, bool) {
        let Some(active) = self.active() else { return (s, true) };
        let (mut page, end) = (page_floor(start), page_ceil(end));
        let (mut tries, mut rooms) = (0, 0);
        while page < end {
            let i = self.ranges.index_from(page);
            if i >= self.ranges.len() || self.ranges.at(i).start >= end {
                break;
            }
            let range = self.ranges.at(i);
            page = page.max(range.start);
            if self.state_of(page) == PageState::Resident {
                if self.is_shared(page) {
                    if self.excess(1) > 0 && tries < OWN_TRIES {
                        tries += 1;
                        s = self.make_room(s, active, 1);
                        continue;
                    }
                    tries = 0;
                    page += self.own_run(active, range, page, (end - page) >> PAGE_SHIFT) * PAGE_SIZE;
                    continue;
                }
                if self.is_guarded(page) {
                    self.unguard(active, &range, page, false);
                } else if active.kind == Mechanism::UserfaultfdCopy {
                    // Protected for a moment, to be copied out.
                    active.mechanism.allow_write(page, PAGE_SIZE, range.prot);
                }
                page += PAGE_SIZE;
                continue;
            }
            // Memory that the program itself cannot access is not brought in for the kernel either.
            if range.prot == 0 || range.flags.has(RangeFlags::GUARD) {
                page = range.end;
                continue;
            }
            let want = ((end.min(range.end) - page) >> PAGE_SHIFT).min(self.batch_pages());
            // The kernel may write it.
            match self.serve(&mut s, active, range, page, want, rooms, true) {
                Serve::Done(pages, kind) => {
                    self.trace_served(page, pages, kind, false, true);
                    s = self.watch_arrivals(s, active, page, pages);
                    self.add(Counter::HeldPages, pages as u64);
                    page += pages * PAGE_SIZE;
                    rooms = 0;
                }
                Serve::Changed => rooms += 1,
                Serve::NeedRoom(pages) => {
                    rooms += 1;
                    s = self.make_room(s, active, pages);
                }
                Serve::Again => {
                    tries += 1;
                    if tries > AGAIN_MAX {
                        return (s, true);
                    }
                    drop(s);
                    crate::sys::yield_now();
                    s = self.lock();
                }
                Serve::Lost(why) => {
                    self.note_lost(why);
                    return (s, false);
                }
            }
        }
        self.publish(false);
        (s, true)
    }

    /// State of a page; `None` where no word was ever made.
    #[inline]
    pub(super) fn state_of(&self, page: usize) -> PageState {
        self.table.get(page).map_or(PageState::None, |e| e.state())
    }

    /// Whether a thread that reads on has found all of `[start, end)` there; false if that would take long to find out.
    fn are_resident(&self, start: usize, end: usize) -> bool {
        let mut at = start;
        for _ in 0..ACROSS_STEPS {
            let Some(m) = self.table.middle(at) else { return false };
            at = if m.resident() as usize == HUGE_PAGES {
                page_ceil(at + 1).next_multiple_of(HUGE_BYTES)
            } else if self.state_of(at) == PageState::Resident {
                at + PAGE_SIZE
            } else {
                return false;
            };
            if at >= end {
                return true;
            }
        }
        false
    }

    /// Serves the missing page `page` and up to `want - 1` after it that are missing in the same way, or the huge page that they
    /// belong to. After some `tries` less will do. `write`: it is known that the page will be written, or may be by the kernel.
    #[expect(clippy::too_many_arguments, reason = "what a fault is")]
    pub(super) fn serve(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        range: Range,
        page: usize,
        want: usize,
        tries: u32,
        write: bool,
    ) -> Serve {
        if active.mechanism.is_protect() {
            return self.serve_unit(s, active, range, page, want);
        }
        if tries <= HUGE_TRIES
            && let Some(served) = self.serve_huge(s, active, &range, page)
        {
            return served;
        }
        let first = self.state_of(page);
        let is_stored = matches!(first, PageState::Stored(_));
        let want = if is_stored { want } else { want.min(WINDOW_LOCKED_PAGES) };
        let most = self.within_unit(active, &range, page, ((range.end - page) >> PAGE_SHIFT).min(want));
        let alike = |i: usize| match (first, self.state_of(page + i * PAGE_SIZE)) {
            (PageState::None, PageState::None) => true,
            (PageState::Stored(_), PageState::Stored(_)) => true,
            (PageState::Limbo(a), PageState::Limbo(b)) => b == a + i as u64,
            _ => false,
        };
        let mut pages = 1;
        while pages < most && alike(pages) {
            pages += 1;
        }
        let is_window = is_stored && tries <= WINDOW_TRIES && self.may_be_window(active, &range, pages);
        let mut stretch = None;
        if is_window {
            s.limbo.want_stock();
            // Its frames count already.
            stretch = if self.excess(0) <= 0 { s.limbo.take_stock(pages) } else { None };
            if stretch.is_none() && tries == 0 && self.is_nearly_full() {
                // Pages have to go for these, now or soon: better now, and without a copy.
                return Serve::NeedRoom(pages as i64);
            }
        }
        if stretch.is_none() {
            pages = pages.min(WINDOW_LOCKED_PAGES);
        }
        // Limbo pages count already; everything else needs room. Prefer less to waiting.
        if !matches!(first, PageState::Limbo(_)) && stretch.is_none() {
            let excess = self.excess(pages as i64);
            if excess > 0 {
                if excess as usize >= pages {
                    return Serve::NeedRoom(if is_window { pages as i64 } else { 1 });
                }
                pages -= excess as usize;
            }
        }
        let served = match first {
            PageState::Stored(_) if let Some(stretch) = stretch => {
                self.serve_window(s, active, page, pages, stretch)
            }
            PageState::None => self.serve_zero(active, page, pages),
            PageState::Limbo(slot) => self.serve_limbo(s, active, page, slot as usize, pages),
            PageState::Stored(_) => {
                let guards = !write && pages == 1 && self.may_be_guarded(active, &range, page);
                self.serve_stored(s, active, &range, page, pages, guards)
            }
            // Nobody asks for a page that is there.
            PageState::Resident => Serve::Done(1, FaultKind::LimboHit),
        };
        if active.blocks > 0 && !matches!(served, Serve::Changed) {
            // A window may reach into the next stretch.
            self.note_small(page);
            self.note_small(page + (pages - 1) * PAGE_SIZE);
            if let Serve::Done(brought, _) = served {
                self.note_brought(s, active, &range, page, brought);
            }
        }
        served
    }

    /// Pages that a fault at `page` brought along by way of a window, if they were loaded: huge pages are counted otherwise.
    fn loaded_around(&self, page: usize, pages: usize, kind: FaultKind) -> usize {
        let is_loaded = matches!(kind, FaultKind::PoolLoad | FaultKind::StoreLoad);
        let is_huge = self.table.middle(page).is_some_and(|m| m.mapped() == Mapped::Huge);
        if is_loaded && !is_huge { pages - 1 } else { 0 }
    }

    /// The kernel dropped a resident page unseen: it reads as zero now.
    pub(super) fn note_dropped(&self, page: usize) {
        self.trace_pages(Kind::Discarded, page, page + PAGE_SIZE);
        self.word(page, |m, e| {
            self.free_entry(e.take_copy());
            e.drop_contents();
            m.count(-1, -1);
        });
        self.resident.fetch_sub(1, Ordering::Relaxed);
    }

    /// How many of `pages` were filled, and whether to try again.
    fn filled(&self, f: Filled, pages: usize) -> (usize, bool) {
        match f {
            Filled::All => (pages, false),
            // The page after the first n is there: nothing of ours put it there, so it is the program's.
            Filled::Present(n) => (n + 1, false),
            Filled::Again(n) => (n, n == 0),
            Filled::Failed(n) => (n, n == 0),
        }
    }

    fn serve_zero(&self, active: &Active, page: usize, pages: usize) -> Serve {
        // Words first: without memory for them nothing may be mapped.
        for i in 0..pages {
            if self.table.ensure(page + i * PAGE_SIZE).is_err() {
                return Serve::Again;
            }
        }
        let (n, again) = self.filled(active.mechanism.fill_zero(page, pages), pages);
        for i in 0..n {
            self.word(page + i * PAGE_SIZE, |m, e| {
                e.touch_first();
                m.count(1, 1);
            });
        }
        self.resident.fetch_add(n as i64, Ordering::Relaxed);
        self.add(Counter::FirstTouches, n as u64);
        if again { Serve::Again } else { Serve::Done(n, FaultKind::FirstTouch) }
    }

    fn serve_limbo(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        page: usize,
        slot: usize,
        pages: usize,
    ) -> Serve {
        let (n, again) = match active.mechanism.fill_from_limbo(page, slot, pages) {
            Filled::Present(n) => {
                assert!(n > 0, "page {page:#x} is in limbo and mapped");
                (n, false)
            }
            f => self.filled(f, pages),
        };
        for i in 0..n {
            self.word(page + i * PAGE_SIZE, |m, e| {
                self.note_return(e);
                e.leave_limbo();
                m.count(1, 0);
            });
            s.limbo.kill(slot + i);
        }
        // The frames in the slots are still there until the tail passes, so they go on counting.
        self.resident.fetch_add(n as i64, Ordering::Relaxed);
        self.add(Counter::LimboHits, n as u64);
        if again { Serve::Again } else { Serve::Done(n, FaultKind::LimboHit) }
    }

    /// `guards`: the page, a single one, comes write-protected if it can.
    fn serve_stored(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        range: &Range,
        page: usize,
        pages: usize,
        guards: bool,
    ) -> Serve {
        let mut entries = [None; WINDOW_LOCKED_PAGES];
        let mut loaded = 0;
        let mut kind = FaultKind::PoolLoad;
        let bounce = s.bounce.as_mut().expect("active").as_mut_slice();
        for i in 0..pages {
            let PageState::Stored(raw) = self.state_of(page + i * PAGE_SIZE) else { break };
            let entry = swap_entry(raw);
            let (into, _) = bounce[i * PAGE_SIZE..].as_chunks_mut::<PAGE_SIZE>();
            match active.cache.swap_in_from(entry, &mut into[0]) {
                Ok(l) => {
                    kind = if l.from == Origin::Store { FaultKind::StoreLoad } else { kind };
                    entries[i] = Some((entry, l));
                }
                Err(e) if loaded == 0 => return Serve::Lost(e),
                // A neighbour that cannot be read is nobody's business before it is touched.
                Err(_) => break,
            }
            loaded += 1;
        }
        // What may be in the way the ordinary way knows.
        let is_guarded = guards
            && active.mechanism.as_mover().is_some_and(|u| u.fill_guarded(page, &bounce.as_chunks().0[0]));
        let f = match is_guarded {
            true => Filled::All,
            false => active.mechanism.fill(page, &bounce[..loaded * PAGE_SIZE]),
        };
        let (n, again) = match f {
            Filled::Present(n) => {
                assert!(n > 0, "page {page:#x} is stored and mapped");
                (n, false)
            }
            f => self.filled(f, loaded),
        };
        let (loaded, _) = s.bounce.as_ref().expect("active").as_slice().as_chunks::<PAGE_SIZE>();
        for (i, ((entry, l), bytes)) in entries[..n].iter().flatten().zip(loaded).enumerate() {
            let keeps = active.cache.keep_as(*entry, || active.cache.print(*l, bytes));
            if is_guarded && !keeps {
                active.mechanism.allow_write(page, PAGE_SIZE, range.prot);
            }
            self.note_loaded(page + i * PAGE_SIZE, keeps, is_guarded && keeps);
        }
        self.count_loaded(n);
        if again { Serve::Again } else { Serve::Done(n, kind) }
    }

    /// A stored page is mapped now. `keeps`: the cache keeps its copy; else the entry is free. `is_guarded`: write-protected.
    pub(super) fn note_loaded(&self, page: usize, keeps: bool, is_guarded: bool) {
        self.word(page, |m, e| {
            self.note_return(e);
            let was_away_for_a_moment = self.was_dropped_lately(e);
            if is_guarded {
                e.load_guarded();
                self.add(Counter::GuardedPages, 1);
            } else if keeps {
                e.load_keeping()
            } else {
                e.load()
            }
            if was_away_for_a_moment {
                e.prove_useful();
                self.add(Counter::QuickReturns, 1);
            }
            m.count(1, 0);
        });
        if !keeps {
            self.count_freed();
        }
    }

    /// A page is about to be mapped again: was it the hand's choice that it was not?
    #[inline]
    pub(super) fn note_return(&self, e: &PageEntry) {
        if !e.was_taken_behind() {
            self.came_back.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts stored pages that were brought in together, for the first of them.
    pub(super) fn count_loaded(&self, pages: usize) {
        self.recount_own();
        self.resident.fetch_add(pages as i64, Ordering::Relaxed);
        self.stored.fetch_sub(pages as i64, Ordering::Relaxed);
        self.add(Counter::Loads, pages as u64);
        self.add(Counter::FaultAroundPages, (pages as u64).saturating_sub(1));
    }

    /// A page that somebody needs cannot be had.
    fn note_lost(&self, why: LoadError) {
        let errno = if matches!(why, LoadError::Corrupt) { 0 } else { 5 };
        self.tree().notice(crate::control::Notice::CorruptPage, errno);
    }

    /// Frees the swap entry that a page word carried, if it carried one.
    pub(super) fn free_entry(&self, entry: Option<u64>) {
        if let (Some(active), Some(raw)) = (self.active(), entry) {
            self.count_freed();
            active.cache.free(swap_entry(raw));
        }
    }

    /// Changes an existing word together with its stretch.
    pub(super) fn word<T>(
        &self,
        page: usize,
        f: impl FnOnce(&crate::region::table::MiddleEntry, &crate::region::PageEntry) -> T,
    ) -> T {
        let m = self.table.middle(page).expect("the page has a stretch");
        f(m, self.table.get(page).expect("the page has a word"))
    }
}

/// Whether a protection allows an access. Exec and write imply read on x86.
fn allows(prot: u32, write: bool) -> bool {
    if write { prot & PROT_WRITE != 0 } else { prot & (PROT_READ | PROT_WRITE | PROT_EXEC) != 0 }
}

/// The swap entry that a page word carries.
pub(super) fn swap_entry(bits: u64) -> SwapEntry {
    SwapEntry::from_bits(bits).expect("a stored page has a swap entry")
}
