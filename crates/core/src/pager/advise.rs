//! The program's advice on its memory: it is cold, may go now, or is wanted soon (MADV_COLD,
//! MADV_PAGEOUT, MADV_WILLNEED).
//!
//! ```text
//!   cold      the sweep takes these pages before others (policy/trail.rs)
//!   page out  sweep that part ─> give limbo's oldest, as many as were taken, to the cache
//!   will need stored pages come in, as for a system call, up to a part of the limit
//! ```
//!
//! The latter two are done in portions: the lock is free between them, and the caller lets signals
//! in. A portion returns where the next one begins. MADV_PAGEOUT leaves pages that are shared since
//! a fork to their users, as in the kernel.

use super::fill::Serve;
use super::sweep::Swept;
use super::{Active, Locked, Pager};
use crate::policy::BATCH_PAGES;
use crate::policy::trail::Run;
use crate::region::table::{LEAF_BYTES, MiddleEntry, SKIP_BYTES};
use crate::region::{ADDRESS_END, PageEntry, Range, RangeFlags};
use crate::sys::{PAGE_SHIFT, PAGE_SIZE};

/// Bytes of which words are looked at under one hold of the lock: 65 536 words, less than a
/// millisecond.
const LOOK_BYTES: usize = 128 * LEAF_BYTES;
/// Pages of a portion that go out: some milliseconds, for most of which the lock is free.
const OUT_PAGES: usize = 1024;
/// Sweeps in a row that take nothing, after which the rest of a portion stays: limbo is full of
/// pages that other threads have in hand.
const BARREN_MAX: u32 = 16;
/// How long a sweep that took nothing waits for those threads.
const WAIT_NS: u64 = 50_000;
/// Attempts to bring in a stretch before it is left to be touched.
const TRIES_MAX: u32 = 64;
/// The part of the limit that one call brings in at most, as a divisor: the pages that come must
/// not push each other out.
const BROUGHT_MOST: i64 = 2;

impl Pager {
    /// Pages that one MADV_WILLNEED brings in at most.
    pub fn wanted_most(&self) -> i64 {
        self.limit_pages() / BROUGHT_MOST
    }

    /// Lets the pages of `[start, end)` go before other pages: the program does not need them soon.
    pub fn make_cold(&self, start: usize, end: usize) {
        let pages = end.saturating_sub(start) >> PAGE_SHIFT;
        self.enter().trail.advise(Run { start: start >> PAGE_SHIFT, pages });
    }

    /// Takes a portion of `[start, end)` out of the program.
    pub fn page_out(&self, start: usize, end: usize) -> usize {
        let Some(active) = self.active() else { return end };
        let (mut at, mut out, mut barren) = (start, 0, 0);
        let mut s = self.enter();
        while out < OUT_PAGES {
            // The slots that this thread has in hand are given back at the end (ending.rs), which
            // waits for those that were claimed before it began.
            if self.is_ending() {
                at = end;
                break;
            }
            let stop = end.min((at / LOOK_BYTES + 1) * LOOK_BYTES);
            let Some(run) = self.next_to_go(active, at, stop) else {
                at = stop;
                if at == end {
                    break;
                }
                s.unlocked(|| {});
                continue;
            };
            let (swept, next) = self.sweep_part(&mut s, active, run);
            let freed;
            (s, freed) = self.free_as_many(s, active, swept.taken);
            self.publish(false);
            out += swept.taken;
            if swept.taken + freed > 0 || next > run.start {
                (at, barren) = (next, 0);
                s.unlocked(|| {});
                continue;
            }
            barren += 1;
            if barren > BARREN_MAX {
                at = end;
                break;
            }
            drop(s);
            crate::sys::sleep_ns(WAIT_NS);
            s = self.enter();
        }
        // The frames that are kept for the next huge page go, too.
        while s.limbo.ready() == 0 && self.give_frame_back(&mut s, active) {}
        drop(s);
        self.publish(at == end);
        at
    }

    /// The first run of pages in `[at, end)` that can go, as a part of its range. It ends with its
    /// stretch, or unit, of which a batch is taken: what lies behind would be looked at once for
    /// each batch.
    fn next_to_go(&self, active: &Active, at: usize, end: usize) -> Option<Range> {
        let goes = |e: &PageEntry| e.is_resident() && !e.is_shared();
        let has_some = |m: &MiddleEntry| m.resident() > 0;
        let border = LEAF_BYTES.max(self.unit_bytes(active));
        let last = |start: usize| (start / border + 1) * border;
        let part = |r: &Range| r.is_swept().then(|| self.in_whole_units(active, r.clip(at, end)));
        self.first_of_all(at, end, part, |r| self.first_run(r, last, has_some, goes))
    }

    /// The first run of pages in `[at, end)`, at most `most` of them, that are out and that the
    /// program may use.
    fn next_to_come(&self, at: usize, end: usize, most: usize) -> Option<Range> {
        let part = |r: &Range| {
            let is_usable = r.prot != 0 && !r.flags.has(RangeFlags::GUARD);
            is_usable.then(|| r.clip(at, end))
        };
        self.first_of_all(at, end, part, |r| self.first_out(r, most))
    }

    /// The first run of pages from `from` on, at most `most` of them, that are out. With the lock
    /// held.
    pub(super) fn next_out(&self, from: usize, most: usize) -> Option<Range> {
        let part = |r: &Range| Some(r.clip(from, ADDRESS_END));
        self.first_of_all(from, ADDRESS_END, part, |r| self.first_out(r, most))
    }

    /// The first run that `find` finds in the parts of the ranges of `[at, end)`.
    fn first_of_all(
        &self,
        mut at: usize,
        end: usize,
        part: impl Fn(&Range) -> Option<Range>,
        find: impl Fn(&Range) -> Option<Range>,
    ) -> Option<Range> {
        while at < end {
            let range = self.ranges.next_from(at).filter(|r| r.start < end)?;
            let found = part(&range).and_then(|part| find(&part));
            if found.is_some() {
                return found;
            }
            at = range.end;
        }
        None
    }

    /// The first pages of a range in a row, at most `most`, that are out.
    pub(super) fn first_out(&self, range: &Range, most: usize) -> Option<Range> {
        let has_some = |m: &MiddleEntry| m.occupied() > m.resident();
        let last = |start: usize| start.saturating_add(most.saturating_mul(PAGE_SIZE));
        self.first_run(range, last, has_some, |e| e.state().is_out())
    }

    /// The first pages of a range in a row that are as `wanted`, up to the end that `last` has for
    /// their start; stretches that have none are passed at once.
    fn first_run(
        &self,
        range: &Range,
        last: impl Fn(usize) -> usize,
        has_some: impl Fn(&MiddleEntry) -> bool,
        wanted: impl Fn(&PageEntry) -> bool,
    ) -> Option<Range> {
        let mut run: Option<Range> = None;
        let mut at = range.start;
        while at < range.end && run.is_none_or(|run| run.end < last(run.start)) {
            #[cfg(test)]
            tests::STEPS.set(tests::STEPS.get() + 1);
            let passes = match self.table.middle(at) {
                None => SKIP_BYTES,
                Some(m) if !has_some(m) => LEAF_BYTES,
                Some(_) => PAGE_SIZE,
            };
            let is_wanted = passes == PAGE_SIZE && self.table.get(at).is_some_and(&wanted);
            match (is_wanted, &mut run) {
                (true, Some(run)) => run.end = at + PAGE_SIZE,
                (true, None) => run = Some(Range { start: at, end: at + PAGE_SIZE, ..*range }),
                (false, Some(_)) => break,
                (false, None) => {}
            }
            at = (at / passes + 1) * passes;
        }
        run
    }

    /// Only whole units go, which keeps the kernel's mappings few.
    fn in_whole_units(&self, active: &Active, part: Range) -> Range {
        let unit = self.unit_bytes(active);
        Range { start: part.start.next_multiple_of(unit), end: part.end / unit * unit, ..part }
    }

    /// Takes pages of a run out: a batch of them, or a huge page.
    fn sweep_part(&self, s: &mut Locked<'_>, active: &Active, run: Range) -> (Swept, usize) {
        let most = self.batch_pages();
        self.table.for_each_occupied(run.start, run.end, |_, _, e| {
            #[cfg(test)]
            tests::STEPS.set(tests::STEPS.get() + 1);
            e.unstick();
        });
        self.sweep_run(s, active, run, most)
    }

    /// Gives as many of limbo's pages to the cache as came into it, the oldest first. Where memory
    /// is not short those are the pages that came; where it is, the second chance of the others is
    /// over. Returns the frames freed.
    fn free_as_many<'a>(
        &'a self,
        mut s: Locked<'a>,
        active: &Active,
        pages: usize,
    ) -> (Locked<'a>, usize) {
        let mut sum = 0;
        while sum < pages {
            let (freed, refused);
            (s, freed, refused) = self.age_out(s, active, (pages - sum).min(BATCH_PAGES));
            sum += freed;
            if freed == 0 || refused > 0 {
                break;
            }
        }
        (s, sum)
    }

    /// Brings a portion of `[start, end)` in that is not there: at most `most` pages. Returns where
    /// to go on, and the pages that came.
    pub fn bring_in(&self, start: usize, end: usize, most: i64) -> (usize, i64) {
        let Some(active) = self.active() else { return (end, 0) };
        let mut s = self.enter();
        // A process that waits for its turn brings nothing in.
        if most <= 0 || self.slot().turn.is_paused() {
            return (end, 0);
        }
        let most = self.batch_pages().min(most as usize);
        let Some(run) = self.next_to_come(start, end, most) else { return (end, 0) };
        let want = run.len() >> PAGE_SHIFT;
        let range = self.ranges.find(run.start).expect("the run is of a range");
        let mut tries = 0;
        loop {
            match self.serve(&mut s, active, range, run.start, want, tries) {
                Serve::Done(pages, kind) => {
                    self.trace_served(run.start, pages, kind, false, true);
                    s = self.watch_arrivals(s, active, run.start, pages);
                    drop(s);
                    self.publish(false);
                    self.ask_evictor();
                    return (run.start + pages * PAGE_SIZE, pages as i64);
                }
                Serve::NeedRoom(pages) if tries < TRIES_MAX => {
                    s = self.make_room(s, active, pages);
                    tries += 1;
                }
                Serve::Again if tries < TRIES_MAX => {
                    tries += 1;
                    drop(s);
                    crate::sys::yield_now();
                    s = self.enter();
                }
                // Another thread has the page in hand, or it cannot be read: the thread that
                // touches it will see.
                _ => return (run.start + PAGE_SIZE, 0),
            }
            let is_as_it_was =
                self.ranges.find(run.start) == Some(range) && self.state_of(run.start).is_out();
            if !is_as_it_was {
                return (run.start + PAGE_SIZE, 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::PROT_READ;
    use super::super::model::{READ_WRITE, STRETCH_PAGES, Spec, Thread, Touch, World};
    use super::*;
    use crate::region::PageState;

    std::thread_local! {
        /// Words of pages that advice has looked at, in this thread.
        pub(super) static STEPS: core::cell::Cell<usize> = const { core::cell::Cell::new(0) };
    }

    const PAGES: usize = 64;

    fn world(limit_pages: i64) -> World {
        let world = World::new(Spec { limit_pages, slots: 128, ..Spec::roomy(PAGES) });
        world.map(0, PAGES, READ_WRITE);
        world
    }

    fn fill(world: &World) -> Thread<'_> {
        world.write(0..PAGES, |page, b| b[7] = page as u8 + 1)
    }

    fn page_out(world: &World, page: usize, pages: usize) {
        let (mut at, end) = (world.at(page), world.at(page) + pages * PAGE_SIZE);
        while at < end {
            let next = world.pager.page_out(at, end);
            assert!(next > at, "a portion returns where the next begins");
            at = next;
        }
    }

    fn are_away(world: &World, page: usize, pages: usize) -> usize {
        (page..page + pages).filter(|page| world.pager.state_of(world.at(*page)).is_out()).count()
    }

    /// Pages in limbo, in the order in which they left, which is that of their slots.
    fn in_limbo(world: &World) -> Vec<usize> {
        let slot = |page: &usize| match world.pager.state_of(world.at(*page)) {
            PageState::Limbo(slot) => Some(slot),
            _ => None,
        };
        let mut pages: Vec<usize> = (0..PAGES).filter(|page| slot(page).is_some()).collect();
        pages.sort_unstable_by_key(slot);
        pages
    }

    fn assert_contents(thread: &mut Thread<'_>) {
        for page in 0..PAGES {
            let right = |b: &mut [u8; PAGE_SIZE]| assert_eq!(b[7], page as u8 + 1, "page {page}");
            assert_eq!(thread.access(thread.world.at(page), false, right), Touch::Done);
        }
        thread.world.check();
    }

    #[test]
    fn exactly_the_pages_that_are_named_go_out_and_into_the_cache() {
        let w = world(4096);
        let mut thread = fill(&w);
        page_out(&w, 8, 20);
        assert_eq!((are_away(&w, 8, 20), are_away(&w, 0, PAGES)), (20, 20));
        assert_eq!(w.pager.stored_pages(), 20, "none is left in limbo");
        assert_eq!(w.pager.limbo_pages(), 0);
        page_out(&w, 8, 20);
        assert_eq!(are_away(&w, 0, PAGES), 20, "what is out is passed");
        assert_contents(&mut thread);
    }

    #[test]
    fn each_page_of_a_large_range_is_looked_at_a_few_times() {
        const FEW: usize = 16;
        let looks = |stretches: usize| {
            let pages = stretches * STRETCH_PAGES;
            let w = World::new(Spec { limit_pages: 1 << 16, slots: 1024, ..Spec::roomy(pages) });
            w.map(0, pages, READ_WRITE);
            w.write(0..pages, |page, b| b[7] = page as u8 | 1);
            STEPS.set(0);
            page_out(&w, 0, pages);
            assert_eq!(are_away(&w, 0, pages), pages);
            STEPS.get() / pages
        };
        let looks = [1, 4, 16].map(looks);
        assert!(looks.iter().all(|looks| *looks <= FEW), "{looks:?} looks at a page");
    }

    #[test]
    fn memory_locked_by_the_program_stays() {
        let w = world(4096);
        let mut thread = fill(&w);
        w.lock_in_memory(&thread, 10, 4, true);
        page_out(&w, 0, PAGES);
        assert_eq!((are_away(&w, 10, 4), are_away(&w, 0, PAGES)), (0, PAGES - 4));
        assert_contents(&mut thread);
    }

    #[test]
    fn nothing_goes_any_more_once_paging_ends() {
        let w = world(4096);
        let mut thread = fill(&w);
        w.pager.ending.store(true, core::sync::atomic::Ordering::Release);
        page_out(&w, 0, PAGES);
        assert_eq!(are_away(&w, 0, PAGES), 0);
        assert_contents(&mut thread);
    }

    #[test]
    fn what_is_cold_goes_before_what_is_not() {
        let w = world(4096);
        let mut thread = fill(&w);
        w.pager.make_cold(w.at(40), w.at(40) + 8 * PAGE_SIZE);
        w.sweep(false);
        assert_eq!(in_limbo(&w)[..8], [40, 41, 42, 43, 44, 45, 46, 47]);
        assert_contents(&mut thread);
    }

    #[test]
    fn what_is_cold_is_found_behind_a_hole_and_in_other_ranges() {
        let w = world(4096);
        fill(&w);
        w.unmap(42, 2);
        w.protect(45, 1, PROT_READ);
        w.pager.make_cold(w.at(40), w.at(40) + 8 * PAGE_SIZE);
        w.sweep(false);
        assert_eq!(
            in_limbo(&w),
            [40, 41, 44, 46, 47],
            "the kernel moves no page that is read-only"
        );
        w.sweep(false);
        assert_eq!(in_limbo(&w)[5], 0, "the hand's turn");
        w.check();
    }

    #[test]
    fn no_more_comes_in_than_is_asked_for_and_nothing_while_paused() {
        let w = world(4096);
        let mut thread = fill(&w);
        page_out(&w, 0, PAGES);
        let (start, end) = (w.at(0), w.at(0) + PAGES * PAGE_SIZE);
        assert_eq!(w.pager.bring_in(start, end, 0), (end, 0));
        w.pager.slot().turn.pause(u64::MAX);
        assert_eq!(w.pager.bring_in(start, end, 50), (end, 0));
        w.pager.slot().turn.resume();
        let (mut at, mut left) = (start, 24);
        while at < end && left > 0 {
            let (next, came) = w.pager.bring_in(at, end, left);
            assert!(next > at && came <= left);
            (at, left) = (next, left - came);
        }
        assert_eq!((left, are_away(&w, 0, PAGES)), (0, PAGES - 24));
        assert_contents(&mut thread);
    }

    #[test]
    fn memory_that_the_program_cannot_use_does_not_come_in() {
        let w = world(4096);
        let mut thread = fill(&w);
        page_out(&w, 0, PAGES);
        w.protect(0, 16, 0);
        w.protect(16, 16, PROT_READ);
        let (mut at, end) = (w.at(0), w.at(32));
        while at < end {
            at = w.pager.bring_in(at, end, PAGES as i64).0;
        }
        assert_eq!((are_away(&w, 0, 16), are_away(&w, 16, 16)), (16, 0));
        w.protect(0, 32, READ_WRITE);
        assert_contents(&mut thread);
    }

    #[test]
    fn one_call_does_not_bring_in_what_would_push_itself_out() {
        assert_eq!(world(1000).pager.wanted_most(), 1000 / BROUGHT_MOST);
    }
}
