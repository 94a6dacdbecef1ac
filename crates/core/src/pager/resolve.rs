//! A fault: the touched page, and its neighbours where the access is sequential.
//!
//! This runs in the signal handler of the faulting thread (or under a system call that needs the
//! page), so: no allocation, no managed memory. A fault looks at the page under the lock, plans
//! which pages are to come, and has them served under a claim (`serve.rs`). The second of two
//! threads that fault on one page waits for the claim of the first, and finds the page resident.

use super::fill::Serve;
use super::serve::HUGE_TRIES;
use super::stream::FaultStream;
use super::timing::Began;
use super::{Active, Locked, PROT_EXEC, PROT_READ, PROT_WRITE, Pager};
use crate::control::{Counter, Mechanism};
use crate::latency::FaultKind;
use crate::policy::trail::Run;
use crate::policy::{WINDOW_LEAST_PAGES, WINDOW_LOCKED_PAGES};
use crate::region::{Mapped, PageState, Range, RangeFlags, page_ceil, page_floor};
use crate::sys::{HUGE_BYTES, HUGE_PAGES, PAGE_SHIFT, PAGE_SIZE, contention};

/// How a fault ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The access can be repeated.
    Served,
    /// The fault is not at a missing page of the pager's: it is the program's own business.
    NotOurs,
    /// The page's contents cannot be had: its copy in the store is unreadable or does not verify.
    Lost,
}

/// Page-fault error code: the page was mapped, its protection forbade the access.
const FAULT_PRESENT: u64 = 1;
/// Page-fault error code: the access was a write.
pub const FAULT_WRITE: u64 = 2;

/// Pages, or whole stretches of 2 MiB, that a sequential access may cross because they are there.
const ACROSS_STEPS: usize = 256;
/// Attempts to make room for the copy of a shared page; after them it is copied without.
const OWN_TRIES: u32 = 4;
/// Pages that a thread brings itself though the evictor has them in hand: few, as some may be
/// loaded twice.
const TWICE_PAGES: usize = 16;
/// How often a guest that needs room, and may free none itself, waits for the evictor before it
/// goes over the limit, and how long each time: together a few of the evictor's batches.
const GUEST_WAITS: u32 = 16;
const GUEST_WAIT_NS: u64 = 50_000;
/// Attempts to fill a page that the kernel refuses.
const AGAIN_MAX: u32 = 2000;

/// A touch that is to be served, and the state of its attempts.
struct Touch {
    page: usize,
    is_write: bool,
    /// The processor found no page there.
    was_missing: bool,
    /// Pages that are to come; 0: not planned yet.
    want: usize,
    tries: u32,
    /// The page that is served first: the one behind the pages that the evictor has in hand.
    first: Option<usize>,
    began: Began,
}

impl Pager {
    /// Serves the fault at `addr`. `error_code` is the processor's.
    pub fn fault(&self, addr: usize, error_code: u64, stream: &mut FaultStream) -> Fault {
        let _in_fault = contention::fault_begins();
        let began = self.fault_begins();
        let page = page_floor(addr);
        let Some(active) = self.active() else { return self.fault_after_the_end(page, stream) };
        let (is_write, was_missing) =
            (error_code & FAULT_WRITE != 0, error_code & FAULT_PRESENT == 0);
        let mut t = Touch { page, is_write, was_missing, want: 0, tries: 0, first: None, began };
        let mut s = self.enter();
        loop {
            if self.active().is_none() {
                // Another thread ended paging before this one had the lock, or while it waited.
                drop(s);
                return self.fault_after_the_end(page, stream);
            }
            if !self.is_free(&s, page) {
                self.wait_for_claim(&mut s);
                continue;
            }
            let Some(range) = self.ranges.find(page) else {
                return answer_changed(active, stream.repeated_outside(page));
            };
            if !allows(range.prot, is_write) || range.flags.has(RangeFlags::GUARD) {
                return answer_changed(active, stream.repeated(page));
            }
            let step = if self.state_of(page) == PageState::Resident {
                self.found_resident(s, active, range, &mut t, stream)
            } else {
                if t.want == 0 {
                    self.plan(&mut s, active, &range, &mut t, stream);
                }
                // Another thread may have made the range smaller since the plan.
                match t.first.filter(|first| *first < range.end) {
                    Some(first) => self.serve_first(s, active, range, first, &mut t, stream),
                    None => self.serve_touch(s, active, range, &mut t, stream),
                }
            };
            match step {
                Ok(end) => return end,
                Err(lock) => s = lock,
            }
        }
    }

    /// Serves a touch of a page that is there: another thread was first, or the page is protected.
    /// `Err`: look again.
    fn found_resident<'a>(
        &'a self,
        mut s: Locked<'a>,
        active: &Active,
        range: Range,
        t: &mut Touch,
        stream: &mut FaultStream,
    ) -> core::result::Result<Fault, Locked<'a>> {
        let page = t.page;
        if t.was_missing && active.mechanism.has_dropped(page) {
            self.note_dropped(&s, page);
            return Err(s);
        }
        if t.want > 0 {
            // Another thread has brought it while this one waited, or loaded it in vain; or the
            // evictor has, ahead of this thread.
            self.trace_served(page, 1, FaultKind::PoolLoad, t.is_write, false);
            self.fault_ends(t.began, FaultKind::PoolLoad);
            t.want = 0;
        }
        if t.is_write && self.is_guarded(page) {
            self.unguard(&mut s, active, &range, page, true);
            return Ok(Fault::Served);
        }
        if t.is_write && self.is_shared(page) {
            // The kernel is about to copy the page.
            if self.excess(1) > 0 && t.tries < OWN_TRIES && !stream.is_of_guest {
                t.tries += 1;
                return Err(self.make_room(s, active, 1));
            }
            let (window, _) =
                stream.window(page, WINDOW_LOCKED_PAGES, |a, b| self.are_resident(a, b));
            let pages = self.own_run(&s, active, range, page, window);
            stream.path().next = page + pages * PAGE_SIZE;
            self.publish(false);
            drop(s);
            self.ask_evictor();
            return Ok(Fault::Served);
        }
        // Another thread was first. Or a change of protection stopped halfway.
        if active.mechanism.has_units() {
            let prot = if self.is_shared(page) { range.prot & !PROT_WRITE } else { range.prot };
            if active.mechanism.expose(page, PAGE_SIZE, prot).is_err() {
                // The kernel has no mapping left for this page alone: like a missing one it is
                // shown with its unit, and units grow until one finds a mapping.
                return self.serve_touch(s, active, range, t, stream);
            }
        } else if t.is_write {
            active.mechanism.allow_write(page, PAGE_SIZE, range.prot);
        }
        Ok(if stream.repeated(page) { Fault::NotOurs } else { Fault::Served })
    }

    /// Decides how many pages are to come, and which page comes before them.
    fn plan(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        range: &Range,
        t: &mut Touch,
        stream: &mut FaultStream,
    ) {
        // By protection faults no more pages come at a time.
        let has_units = active.mechanism.has_units();
        let most = if has_units { WINDOW_LOCKED_PAGES } else { self.batch_pages() };
        let (want, wasted) = stream.window(t.page, most, |a, b| self.are_resident(a, b));
        t.want = if stream.is_of_guest { 1 } else { self.watch_window(t.page, want) };
        self.add(Counter::AroundWastedPages, wasted as u64);
        self.add(Counter::Faults, 1);
        stream.path().around = 0;
        // A guest makes no room, as these pages may need.
        t.first = match stream.is_of_guest {
            true => None,
            false => self.after_coming(s, active, range, t.page),
        };
        stream.path().ahead_end =
            self.ask_ahead(s, active, range, t.first.unwrap_or(t.page), t.want);
    }

    /// Serves the pages behind those that the evictor has in hand. After that the touched page is
    /// looked at again.
    fn serve_first<'a>(
        &'a self,
        mut s: Locked<'a>,
        active: &Active,
        range: Range,
        first: usize,
        t: &mut Touch,
        stream: &mut FaultStream,
    ) -> core::result::Result<Fault, Locked<'a>> {
        match self.serve(&mut s, active, range, first, t.want, t.tries) {
            Serve::NeedRoom(pages) if t.tries == 0 => {
                t.tries += 1;
                return Err(self.make_room(s, active, pages));
            }
            Serve::Done(pages, kind) => {
                self.trace_served(first, pages, kind, false, true);
                s.trail.follow(Run { start: first >> PAGE_SHIFT, pages }, self.limit_pages());
                let path = stream.path();
                path.ahead_end = path.ahead_end.max(first + pages * PAGE_SIZE);
            }
            _ => {}
        }
        (t.first, t.tries) = (None, 0);
        if self.coming_end(&s, t.page).is_some() {
            // The evictor may be about to be done with the page, on this very processor.
            s.unlocked(crate::sys::yield_now);
        }
        if self.coming_end(&s, t.page).is_some() {
            // Few pages are brought: loading some of them twice costs little.
            t.want = t.want.min(TWICE_PAGES);
        }
        Err(s)
    }

    /// Serves the touched page, and the pages that come with it.
    fn serve_touch<'a>(
        &'a self,
        mut s: Locked<'a>,
        active: &Active,
        range: Range,
        t: &mut Touch,
        stream: &mut FaultStream,
    ) -> core::result::Result<Fault, Locked<'a>> {
        let page = t.page;
        // A guest brings one page of a huge page: others would wait for its claim of the whole, and
        // for the room that it does not make.
        let tries = if stream.is_of_guest { t.tries.max(HUGE_TRIES + 1) } else { t.tries };
        match self.serve(&mut s, active, range, page, t.want, tries) {
            Serve::Done(pages, kind) => {
                self.trace_served(page, pages, kind, t.is_write, false);
                s = self.watch_arrivals(s, active, page, pages);
                stream.path().next = page + pages * PAGE_SIZE;
                stream.path().around = self.loaded_around(page, pages, kind);
                stream.served();
                if t.want >= WINDOW_LEAST_PAGES
                    && matches!(kind, FaultKind::PoolLoad | FaultKind::StoreLoad)
                {
                    s.trail.follow(Run { start: page >> PAGE_SHIFT, pages }, self.limit_pages());
                }
                drop(s);
                self.publish(false);
                self.ask_evictor();
                self.fault_ends(t.began, kind);
                Ok(Fault::Served)
            }
            Serve::Changed => {
                t.tries += 1;
                Err(s)
            }
            Serve::NeedRoom(pages) if stream.is_of_guest => {
                t.tries += 1;
                if t.tries > GUEST_WAITS || self.refusals.rests() {
                    self.tolerate_guest(pages);
                } else {
                    s.unlocked(|| {
                        self.wake_evictor();
                        crate::sys::sleep_ns(GUEST_WAIT_NS);
                    });
                }
                Err(s)
            }
            Serve::NeedRoom(pages) => {
                // The room that was made may have gone to another thread meanwhile: do not ask for
                // much again.
                t.tries += 1;
                t.want = if t.tries > 4 { 1 } else { t.want };
                Err(self.make_room(s, active, pages))
            }
            Serve::Again => {
                t.tries += 1;
                // The kernel has no such mapping any more: the access is a wild one like any other.
                if t.tries > AGAIN_MAX {
                    return Ok(Fault::NotOurs);
                }
                s.unlocked(crate::sys::yield_now);
                Err(s)
            }
            Serve::Lost(why) => {
                self.note_lost(why);
                Ok(Fault::Lost)
            }
        }
    }

    /// Makes the managed pages of `[start, end)` resident. False if some page's contents are lost.
    pub fn make_resident<'a>(
        &'a self,
        mut s: Locked<'a>,
        start: usize,
        end: usize,
    ) -> (Locked<'a>, bool) {
        let Some(active) = self.active() else { return (s, true) };
        let (mut page, end) = (page_floor(start), page_ceil(end));
        let (mut tries, mut rooms) = (0, 0);
        // Paging may end while the lock is let go: no page is missing any more then.
        while page < end && self.active().is_some() {
            let Some(range) = self.ranges.next_from(page).filter(|r| r.start < end) else { break };
            page = page.max(range.start);
            if !self.is_free(&s, page) {
                self.wait_for_claim(&mut s);
                continue;
            }
            if self.state_of(page) == PageState::Resident {
                let most = (end - page) >> PAGE_SHIFT;
                let pages;
                (s, pages) = self.open_resident(s, active, range, page, most, &mut tries);
                page += pages * PAGE_SIZE;
                continue;
            }
            // Memory that the program itself cannot access is not brought in for the kernel either.
            if range.prot == 0 || range.flags.has(RangeFlags::GUARD) {
                page = range.end;
                continue;
            }
            let want = ((end.min(range.end) - page) >> PAGE_SHIFT).min(self.batch_pages());
            // The kernel may write the page.
            match self.serve(&mut s, active, range, page, want, rooms) {
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
                    s.unlocked(crate::sys::yield_now);
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

    /// Lets the kernel write a page that is there, and the pages shared by fork after it, up to
    /// `most`. Returns how many; 0: room was made, look again.
    fn open_resident<'a>(
        &'a self,
        mut s: Locked<'a>,
        active: &Active,
        range: Range,
        page: usize,
        most: usize,
        tries: &mut u32,
    ) -> (Locked<'a>, usize) {
        if self.is_shared(page) {
            if self.excess(1) > 0 && *tries < OWN_TRIES {
                *tries += 1;
                return (self.make_room(s, active, 1), 0);
            }
            *tries = 0;
            let pages = self.own_run(&s, active, range, page, most);
            return (s, pages);
        }
        if self.is_guarded(page) {
            self.unguard(&mut s, active, &range, page, false);
        } else if active.kind == Mechanism::UserfaultfdCopy {
            // The page may be protected for a moment, to be copied out.
            active.mechanism.allow_write(page, PAGE_SIZE, range.prot);
        }
        (s, 1)
    }

    /// Whether all of `[start, end)` is there, so that a thread may have read across it; false if
    /// that would take long to find out.
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

    /// Pages that a fault at `page` brought along in a window, if they were loaded: huge pages are
    /// counted otherwise.
    fn loaded_around(&self, page: usize, pages: usize, kind: FaultKind) -> usize {
        let is_loaded = matches!(kind, FaultKind::PoolLoad | FaultKind::StoreLoad);
        let is_huge = self.table.middle(page).is_some_and(|m| m.mapped() == Mapped::Huge);
        if is_loaded && !is_huge { pages - 1 } else { 0 }
    }

    /// Answers a fault that was under way when paging ended: the page is there now. A fault that
    /// repeats too often in a row is the program's own business.
    fn fault_after_the_end(&self, page: usize, stream: &mut FaultStream) -> Fault {
        if self.ended().is_none() || stream.repeated(page) { Fault::NotOurs } else { Fault::Served }
    }
}

/// Whether a protection allows an access. Exec and write imply read on x86.
fn allows(prot: u32, write: bool) -> bool {
    if write { prot & PROT_WRITE != 0 } else { prot & (PROT_READ | PROT_WRITE | PROT_EXEC) != 0 }
}

/// Answers a fault at a page that the program may not use in this way, or that is not the pager's.
///
/// By userfaultfd the kernel looks at mappings and protections before it looks for the page. So the
/// fault was raised before another thread's call changed them, and the access is made again: the
/// kernel answers it by what is true now, with SIGSEGV where it is forbidden. SIGBUS would be the
/// wrong signal. Its default action, once set, would also stay where the kernel does not raise it
/// again, and the next missing page would end the program. By protection faults the signal is the
/// right one.
fn answer_changed(active: &Active, is_repeated: bool) -> Fault {
    let is_over = is_repeated || active.mechanism.faults_as_forbidden();
    if is_over { Fault::NotOurs } else { Fault::Served }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering;

    use core::sync::atomic::AtomicBool;

    use super::super::model::{READ_WRITE, Spec, World};
    use super::*;

    const PAGES: usize = 8;

    /// A world of pages that nobody has touched.
    fn world(hides: bool) -> World {
        let world = World::new(Spec { hides, ..Spec::roomy(PAGES) });
        world.map(0, PAGES, READ_WRITE);
        world
    }

    /// How many faults at a page, all that one access raises, are answered before they are the
    /// program's own.
    fn answered(world: &World, page: usize) -> usize {
        let mut stream = FaultStream::new();
        let mut fault = || world.pager.fault(world.at(page), FAULT_WRITE, &mut stream);
        (0..1 << 20).find(|_| fault() == Fault::NotOurs).expect("an access comes to an end")
    }

    #[test]
    fn an_access_that_met_a_change_of_its_mapping_is_made_again_and_not_for_ever() {
        let w = world(false);
        w.protect(2, 1, PROT_READ);
        w.pager.note_flag(w.at(3), w.at(4), RangeFlags::GUARD, true);
        w.unmap(4, 1);
        assert!(w.end_paging_of(5, 1));
        assert!([2, 3, 4, 5].iter().all(|page| answered(&w, *page) > 0));
        // A file that is shorter than its mapping has no page however often it is asked for one.
        assert!(answered(&w, 4) < 10);
        w.check();
        // Here the program gets the signal that the kernel would have sent.
        let w = world(true);
        w.protect(2, 1, PROT_READ);
        assert_eq!(answered(&w, 2), 0);
    }

    #[test]
    fn a_first_touch_that_meets_the_end_of_paging_is_made_again() {
        let w = world(false);
        let is_coming = AtomicBool::new(false);
        let fault = std::thread::scope(|scope| {
            let s = w.pager.enter();
            let thread = scope.spawn(|| {
                is_coming.store(true, Ordering::SeqCst);
                w.pager.fault(w.at(3), FAULT_WRITE, &mut FaultStream::new())
            });
            while !is_coming.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            // Time to see that paging is on, and to wait for the lock.
            std::thread::sleep(std::time::Duration::from_millis(20));
            let (s, _) = w.pager.end_paging(s);
            drop(s);
            thread.join().expect("it waits for nothing but the lock")
        });
        assert!(w.pager.active().is_none());
        assert_eq!(fault, Fault::Served);
    }
}
