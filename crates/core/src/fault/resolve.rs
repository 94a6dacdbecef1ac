//! Serving a fault: the page that was touched, and its neighbours where the access runs on.
//!
//! Runs in the signal handler of the faulting thread (or under a system call that needs the page), so: no
//! allocation, no managed memory, the lock held while a page's word and the kernel's mapping change together. Two threads
//! that fault on one page serialise on the lock: the second finds it resident.

use core::sync::atomic::Ordering;

use super::{Active, Locked, PROT_EXEC, PROT_READ, PROT_WRITE, Pager};
use crate::cache::{LoadError, Origin, SwapEntry};
use crate::control::trace::Kind;
use crate::control::{Counter, Mechanism};
use crate::latency::FaultKind;
use crate::policy::trail::Run;
use crate::policy::{WINDOW_LEAST_PAGES, WINDOW_LOCKED_PAGES, next_window};
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

/// Places at which a thread may read on at the same time: from one array to another, say, by way of an index.
const PATHS: usize = 4;

/// One of them: where its next fault falls if the access runs on, and how many pages are brought then.
#[derive(Clone, Copy, Default)]
struct Path {
    next: usize,
    /// Where the pages end that the evictor was asked to bring ahead of this thread; 0: none.
    ahead_end: usize,
    window: usize,
    /// Faults that ran on and were served with one page all the same.
    alone: u32,
    /// Pages that the last fault brought along, if they were loaded.
    around: usize,
}

impl Path {
    const NONE: Path = Path { next: 0, ahead_end: 0, window: 0, alone: 0, around: 0 };

    /// Whether a fault at `page` is the next one. `was_last`: so was the thread's last fault. `reaches(a, b)`: all of `[a, b)` is there.
    fn leads_to(&self, page: usize, was_last: bool, reaches: impl FnOnce(usize, usize) -> bool) -> bool {
        let is_under_way = self.window > 1;
        page == self.next
            || (was_last || is_under_way)
                && (self.next..=self.next.max(self.ahead_end) + PAGE_SIZE).contains(&page)
            || is_under_way && self.next < page && reaches(self.next, page)
    }
}

/// One thread's pattern of faults.
#[derive(Default)]
pub struct FaultStream {
    /// The one of the last fault first. What so many faults did not come by is forgotten.
    paths: [Path; PATHS],
    /// Windows that were used of late, less those that were not.
    used: i32,
    /// To notice a fault that repeats without end though the page is there.
    last: usize,
    repeats: u32,
}

impl FaultStream {
    pub const fn new() -> FaultStream {
        FaultStream { paths: [Path::NONE; PATHS], used: 0, last: 0, repeats: 0 }
    }

    /// Counts a fault for which there was nothing to do; true when it has happened too often in a row.
    fn repeated(&mut self, page: usize) -> bool {
        self.repeats = if self.last == page { self.repeats + 1 } else { 0 };
        self.last = page;
        self.repeats > REPEATS_MAX
    }

    /// The path of the last fault.
    fn path(&mut self) -> &mut Path {
        &mut self.paths[0]
    }

    /// Pages to serve for a fault at `page`: doubled while the faults run on, up to `most`, one otherwise. Then those are told that the path
    /// which is forgotten for it has brought in vain. `reaches(a, b)`: all of `[a, b)` is there.
    fn window(&mut self, page: usize, most: usize, reaches: impl Fn(usize, usize) -> bool) -> (usize, usize) {
        let on = |(i, path): (usize, &Path)| path.leads_to(page, i == 0, &reaches);
        let known = self.paths.iter().enumerate().position(on);
        self.paths[..=known.unwrap_or(PATHS - 1)].rotate_right(1);
        let path = &mut self.paths[0];
        if known.is_some() {
            self.used = (self.used + (path.around > 0) as i32).min(USED_MOST);
            if path.window == 1 && self.used < 0 && path.alone < ALONE_FAULTS {
                // What lies side by side is not read in order here: records of two pages, say.
                path.alone += 1;
            } else {
                path.window = next_window(path.window, most);
            }
            return (path.window, 0);
        }
        let wasted = core::mem::replace(path, Path { window: 1, ..Path::NONE }).around;
        self.used = (self.used - (wasted > 0) as i32).max(-USED_MOST);
        (1, wasted)
    }
}

/// How far used and unused windows are counted against each other.
const USED_MOST: i32 = 16;
/// Where most were not used, so many faults run on before there is another window.
const ALONE_FAULTS: u32 = 3;

/// Page-fault error code: the page was mapped, its protection forbade the access.
const FAULT_PRESENT: u64 = 1;
/// Page-fault error code: the access was a write.
pub const FAULT_WRITE: u64 = 2;
/// Faults in a row at one page for which there was nothing to do, before they are taken for the program's own.
const REPEATS_MAX: u32 = 20_000;

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
                    stream.path().next = page + pages * PAGE_SIZE;
                    stream.path().around = self.loaded_around(page, pages, kind);
                    stream.repeats = 0;
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

    /// Serves by protection faults: the whole unit around the page, filled behind its protection, then shown
    /// at once.
    fn serve_unit(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        range: Range,
        page: usize,
        want: usize,
    ) -> Serve {
        let mut unit = self.unit_pages() * PAGE_SIZE;
        let start = (page & !(unit - 1)).max(range.start);
        let mut end =
            ((page & !(unit - 1)) + unit.max((want * PAGE_SIZE).next_multiple_of(unit))).min(range.end);
        let mut missing = 0;
        let mut at = start;
        while at < end {
            missing += (self.state_of(at) != PageState::Resident) as i64;
            at += PAGE_SIZE;
        }
        let excess = self.excess(missing);
        if excess > 0 {
            let least = ((page & !(unit - 1)) + unit).min(range.end);
            if least < end {
                end = least;
            }
            if self.excess(((end - start) >> PAGE_SHIFT) as i64) > 0 {
                return Serve::NeedRoom(((end - start) >> PAGE_SHIFT) as i64);
            }
        }
        let mut kind = match self.state_of(page) {
            PageState::None => FaultKind::FirstTouch,
            PageState::Limbo(_) | PageState::Resident => FaultKind::LimboHit,
            PageState::Stored(_) => FaultKind::PoolLoad,
        };
        let mut low = start;
        loop {
            match self.fill_behind(s, active, low, end) {
                Ok(Origin::Memory) => {}
                Ok(Origin::Store) => kind = FaultKind::StoreLoad,
                Err(r) => return r,
            }
            if active.mechanism.expose(low, end - low, range.prot).is_ok() {
                break;
            }
            // Out of kernel mappings: a larger run needs fewer of them.
            assert!(low > range.start || end < range.end, "a whole range cannot be shown: {range:?}");
            unit *= 8;
            low = (page & !(unit - 1)).max(range.start);
            end = ((page & !(unit - 1)) + unit).min(range.end);
        }
        let mut shown = 0;
        let mut at = low;
        while at < end {
            let limbo = match self.state_of(at) {
                PageState::Limbo(slot) => Some(slot as usize),
                _ => None,
            };
            if let Some(slot) = limbo {
                s.limbo.kill(slot);
            }
            self.word(at, |m, e| match e.state() {
                PageState::None => {
                    e.touch_first();
                    m.count(1, 1);
                    shown += 1;
                }
                PageState::Limbo(_) => {
                    e.leave_limbo();
                    m.count(1, 0);
                    shown += 1;
                    self.limbo_pages.fetch_sub(1, Ordering::Relaxed);
                }
                PageState::Stored(raw) => {
                    e.load();
                    m.count(1, 0);
                    shown += 1;
                    self.stored.fetch_sub(1, Ordering::Relaxed);
                    self.add(Counter::Loads, 1);
                    self.free_entry(Some(raw));
                }
                PageState::Resident => self.count_owned(e.own() as usize),
            });
            at += PAGE_SIZE;
        }
        self.recount_own();
        self.resident.fetch_add(shown, Ordering::Relaxed);
        self.trace_pages(Kind::Around, low, page);
        Serve::Done((end - page) >> PAGE_SHIFT, kind)
    }

    /// Writes the stored pages of a hidden run into place, and says whether one came from the store. `Err` is how it failed.
    fn fill_behind(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        start: usize,
        end: usize,
    ) -> core::result::Result<Origin, Serve> {
        let mut from = Origin::Memory;
        let bounce = s.bounce.as_mut().expect("active").as_mut_slice();
        for at in (start..end).step_by(PAGE_SIZE) {
            if self.table.ensure(at).is_err() {
                return Err(Serve::Again);
            }
            if let PageState::Stored(raw) = self.state_of(at) {
                let (into, _) = bounce.as_chunks_mut::<PAGE_SIZE>();
                match active.cache.swap_in_from(swap_entry(raw), &mut into[0]).map(|l| l.from) {
                    Ok(Origin::Memory) => {}
                    Ok(Origin::Store) => from = Origin::Store,
                    Err(e) => return Err(Serve::Lost(e)),
                }
                if active.mechanism.fill(at, &into[0]) != Filled::All {
                    return Err(Serve::Again);
                }
            }
        }
        Ok(from)
    }

    /// Pages that protection faults handle together: as many as keep the kernel's mappings few.
    pub(super) fn unit_pages(&self) -> usize {
        const UNITS_MAX: usize = 16 << 10;
        let pages = self.ranges.accessible_bytes() >> PAGE_SHIFT;
        (pages / UNITS_MAX).next_power_of_two().clamp(16, 4096)
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

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 256;

    /// Serves a fault at page number `page` as if all of its window came; says how large that is.
    fn fault(stream: &mut FaultStream, page: usize) -> usize {
        let (window, _) = stream.window(page * PAGE_SIZE, MOST, |_, _| false);
        stream.path().next = (page + window) * PAGE_SIZE;
        window
    }

    #[test]
    fn windows_that_are_not_used_take_longer_to_open() {
        let mut stream = FaultStream::new();
        let mut at = 1 << 20;
        // Reads `pages` in order, somewhere else each time; the largest window.
        let mut read = |stream: &mut FaultStream, pages: usize| {
            at += 1 << 12;
            let (mut largest, mut page) = (0, at);
            while page < at + pages {
                let window = fault(stream, page);
                stream.path().around = window - 1;
                page += window;
                largest = largest.max(window);
            }
            largest
        };
        assert_eq!(read(&mut stream, 2), 4);
        assert_eq!(read(&mut stream, 600), MOST);
        // Two pages side by side, again and again: soon one by one.
        let opened = (0..200).filter(|_| read(&mut stream, 2) > 1).count();
        assert!((1..30).contains(&opened), "{opened}");
        // Who reads on has windows all the same, and soon at once.
        assert_eq!(read(&mut stream, 600), MOST);
        (0..20).for_each(|_| _ = read(&mut stream, 600));
        assert_eq!(read(&mut stream, 2), 4);
    }

    #[test]
    fn windows_double_and_end_where_the_access_does() {
        let mut s = FaultStream::new();
        let mut at = 1000;
        let windows: Vec<_> = (0..9)
            .map(|_| {
                let window = fault(&mut s, at);
                at += window;
                window
            })
            .collect();
        assert_eq!(windows, [1, 4, 8, 16, 32, 64, 128, 256, 256]);
        s.path().around = 255;
        // It is forgotten after as many faults elsewhere as there are paths, and what it brought was in vain.
        let wasted: Vec<_> = (1..=PATHS).map(|i| s.window(i << 30, MOST, |_, _| false).1).collect();
        assert_eq!(wasted, [0, 0, 0, 255]);
        assert_eq!(fault(&mut s, at), 1);
    }

    #[test]
    fn a_thread_reads_on_in_several_places() {
        let mut s = FaultStream::new();
        let mut at = [1 << 20, 2 << 20, 3 << 20];
        let mut windows = [0; 3];
        for _ in 0..8 {
            for (at, window) in at.iter_mut().zip(&mut windows) {
                *window = fault(&mut s, *at);
                *at += *window;
            }
        }
        assert_eq!(windows, [MOST; 3]);
    }

    #[test]
    fn who_touches_at_random_gets_single_pages() {
        let mut s = FaultStream::new();
        // Near the last one but one, and not the next one of it.
        let pages = [10, 500, 12, 502, 14, 504];
        assert!(pages.iter().all(|page| fault(&mut s, *page) == 1));
        // Of the last fault a page may be left out.
        assert_eq!(fault(&mut s, 506), 4);
    }
}
