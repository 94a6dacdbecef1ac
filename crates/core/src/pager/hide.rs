//! Leaving by protection faults: pages are hidden, and their frames wait in limbo where they are.
//!
//! ```text
//!   hiding    lock: claim a span  | PROT_NONE                            | lock: LIMBO
//!   ageing    lock: claim some    | read, compress, drop their frames    | lock: new states
//!
//!   a span    SHOWN out SHOWN SHOWN out out SHOWN
//!             [------ one call: PROT_NONE ------]
//! ```
//!
//! Each call takes the kernel's lock of all mappings, for which faults wait, and interrupts the
//! other processors. Pages between the runs are out and hidden already. They are claimed as well: a
//! page that came in meanwhile would be hidden, and its word would say that it is there.

use super::huge_sampling::Evidence;
use super::take::Going;
use super::to_cache::Aged;
use super::{Active, Locked, Pager};
use crate::control::Counter;
use crate::policy::limbo::Batch;
use crate::region::{PageEntry, PageState, Range};
use crate::sys::mechanism::{Next, Taken};
use crate::sys::{PAGE_SHIFT, PAGE_SIZE};

/// Pages of neighbouring units that leave as one run with protection faults, about: a run in order
/// has as many.
const UNITS_RUN_PAGES: usize = 16;

/// Pages from the first of a span to its last, at most: threads that touch one wait for the call,
/// and each costs some nanoseconds, where a call takes some microseconds.
const SPAN_PAGES: usize = 512;
/// Runs of a span, at most: they have room on the stack of a system call's hook.
const SPAN_RUNS: usize = 64;

/// Pages of limbo that are claimed at the same time as they leave: a touch of one waits for all.
/// Runs of units have as many.
const LEAVING_PAGES: usize = 16;

/// The outcome of hiding a span.
pub(super) struct Span {
    /// Pages that went.
    pub pages: usize,
    /// Runs that are done with.
    pub runs: usize,
    /// Where the run after those goes on, if a part of it is done with.
    pub rest: Option<usize>,
    /// Limbo has no room for the next run.
    pub is_full: bool,
}

/// A page of limbo that leaves, claimed. `copy`: the entry of its copy, if the cache kept one.
#[derive(Clone, Copy)]
struct Leaver {
    page: usize,
    copy: Option<u64>,
    goes_to_store: bool,
}

impl Pager {
    /// Picks the unit around `addr`, and those after it. Returns the pages of the run, and the
    /// number of pages looked at.
    pub(super) fn units_to_go(
        &self,
        range: &Range,
        addr: usize,
        goes: &dyn Fn(&PageEntry) -> bool,
    ) -> (usize, usize) {
        let (mut run, mut passed) = self.unit_to_go(range, addr, goes);
        while 0 < run && run == passed && run < UNITS_RUN_PAGES {
            let next = addr + run * PAGE_SIZE;
            if next >= range.end || self.state_of(next) != PageState::Resident {
                break;
            }
            let (more, looked) = self.unit_to_go(range, next, goes);
            (run, passed) = (run + more, passed + looked);
            // A unit that begins with a refused page has no run, and nothing was looked at.
            if more == 0 {
                break;
            }
        }
        (run, passed)
    }

    /// With protection faults the unit around `addr` decides: returns the resident pages of its
    /// part from `addr` on, if all may go, and the number of pages looked at.
    fn unit_to_go(
        &self,
        range: &Range,
        addr: usize,
        goes: &dyn Fn(&PageEntry) -> bool,
    ) -> (usize, usize) {
        let unit_bytes = self.unit_pages() * PAGE_SIZE;
        let unit_end = (addr / unit_bytes + 1) * unit_bytes;
        let most = (unit_end.min(range.end) - addr) >> PAGE_SHIFT;
        let generation = self.generation();
        let may_go = |e: &PageEntry| e.is_resident() && !e.is_refused(generation);
        let is_resident = |i: &usize| self.table.get(addr + i * PAGE_SIZE).is_some_and(may_go);
        let may_leave = |i: usize| self.table.get(addr + i * PAGE_SIZE).is_some_and(goes);
        // The hand passes every page of the unit, whether or not one of them is stuck.
        let stuck = (0..most).filter(is_resident).filter(|i| !may_leave(*i)).count();
        if stuck > 0 {
            return (0, most);
        }
        let run = (0..most).take_while(is_resident).count();
        (run, run)
    }

    /// Takes the first of `runs` of resident pages out, and as many of the others as lie near
    /// behind it in the same range.
    #[inline(never)] // Its caller, on whose stack a codec may run later, does not need these runs.
    pub(super) fn hide_span(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        runs: impl Iterator<Item = (usize, usize)>,
        from_trail: bool,
    ) -> Span {
        let (mut going, mut count) = ([None; SPAN_RUNS], 0);
        let mut span = Span { pages: 0, runs: 0, rest: None, is_full: false };
        let mut runs = runs.peekable();
        let start = runs.peek().expect("there is a first run").0;
        let Some(range) = self.ranges.find(start).filter(Range::is_swept) else {
            return Span { runs: 1, ..span };
        };
        let mut end = start;
        for (addr, pages) in runs {
            // The range may have become smaller since the pick.
            let pages = pages.min(range.end.saturating_sub(addr) >> PAGE_SHIFT);
            if count == going.len() || !self.is_near(s, (start, end), (addr, pages)) {
                break;
            }
            let run = self.run_still_there(s, addr, pages, None);
            if run == 0 && count == 0 {
                // Somebody else has its first page in hand.
                (span.runs, span.rest) = after((addr, pages), addr + PAGE_SIZE);
            }
            if run == 0 {
                break;
            }
            let Some(g) = self.announce_run(s, active, addr, run, from_trail) else {
                span.is_full = true;
                break;
            };
            (going[count], count) = (Some(g), count + 1);
            end = addr + g.slots.count * PAGE_SIZE;
            // Slots wrap around, or some page is stuck, or held.
            let gone = addr + g.free * PAGE_SIZE;
            let is_cut = g.free == g.slots.count && g.slots.count < run;
            let next = if is_cut { gone } else { (gone + PAGE_SIZE).max(g.held_to) };
            let (done, rest) = after((addr, pages), if g.free == pages { gone } else { next });
            (span.runs, span.rest) = (span.runs + done, rest);
            if g.free < pages {
                break;
            }
        }
        if count > 0 {
            span.pages = self.hide_going(s, active, range, &going[..count]);
        }
        span
    }

    /// Whether a run lies so near behind `[start, end)`, which goes, that it can go by the same
    /// call.
    fn is_near(
        &self,
        s: &Locked<'_>,
        (start, end): (usize, usize),
        (addr, pages): (usize, usize),
    ) -> bool {
        let last = addr + pages * PAGE_SIZE;
        let is_out = |page: usize| {
            self.table.get(page).is_some_and(|e| !e.is_resident()) && self.is_free(s, page)
        };
        end <= addr
            && pages > 0
            && (start == end || last - start <= SPAN_PAGES * PAGE_SIZE)
            && (end..addr).step_by(PAGE_SIZE).all(is_out)
    }

    /// Hides pages that were announced, from the first to the last. Returns how many went.
    fn hide_going(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        range: Range,
        going: &[Option<Going>],
    ) -> usize {
        let (Some(Some(first)), Some(Some(last))) = (going.first(), going.last()) else { return 0 };
        let hide = |from: usize, to: usize, slot: usize| {
            let pages = (to - from) >> PAGE_SHIFT;
            pages == 0 || active.mechanism.take_out(from, pages, slot).pages == pages
        };
        let claimed = ((last.addr - first.addr) >> PAGE_SHIFT) + last.slots.count;
        self.claim(s, first.addr, claimed);
        let mut gone = [false; SPAN_RUNS];
        s.unlocked(|| {
            let is_all = hide(first.addr, last.addr + last.free * PAGE_SIZE, first.slots.slot);
            for (gone, g) in gone.iter_mut().zip(going.iter().flatten()) {
                // A kernel that is short of mappings has hidden the runs before one that it cannot
                // split, and does not say which. To hide a run again needs no mapping.
                *gone = is_all || hide(g.addr, g.addr + g.free * PAGE_SIZE, g.slots.slot);
            }
        });
        let mut pages = 0;
        for (gone, g) in gone.into_iter().zip(going.iter().flatten()) {
            let t = Taken { pages: if gone { g.free } else { 0 }, next: Next::Stuck };
            self.end_going(s, active, range, *g, t);
            self.add(Counter::MoveBusy, !gone as u64);
            pages += t.pages;
        }
        self.end_claim(s, first.addr, claimed);
        pages
    }

    /// Gives the pages of a batch of limbo that ages out to the cache, from where they are. Returns
    /// the frames freed and the pages refused.
    pub(super) fn age_in_place(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        batch: Batch,
    ) -> (usize, usize) {
        let (mut freed, mut refused) = (0, 0);
        for first in (0..batch.count).step_by(LEAVING_PAGES) {
            let (slot, count) = (batch.slot + first, LEAVING_PAGES.min(batch.count - first));
            let leavers = self.claim_slots(s, slot, count);
            let aged = s.unlocked(|| self.give_leavers_to_cache(active, &leavers));
            self.recount_own();
            for i in 0..count {
                let Some(Leaver { page, .. }) = leavers[i] else { continue };
                // The page is still claimed here, as its frame is gone already.
                let is_out = self.publish_page(s, active, page, slot + i, aged[i]);
                (freed, refused) = (freed + is_out as usize, refused + !is_out as usize);
                self.count_frames(-1);
                self.end_claim(s, page, 1);
            }
        }
        s.limbo.finish(batch);
        (freed, refused)
    }

    /// Claims the pages in `count` slots from `first` on, once none of them is about to be shown.
    /// Their copies become the claimer's.
    fn claim_slots(
        &self,
        s: &mut Locked<'_>,
        first: usize,
        count: usize,
    ) -> [Option<Leaver>; LEAVING_PAGES] {
        let slots = first..first + count;
        while slots.clone().any(|slot| s.limbo.page(slot).is_some_and(|p| !self.is_free(s, p))) {
            self.wait_for_claim(s);
        }
        let mut leavers = [None; LEAVING_PAGES];
        for (slot, leaver) in slots.zip(&mut leavers) {
            let Some(page) = s.limbo.page(slot) else { continue };
            self.claim(s, page, 1);
            let copy = self.table.word(page, |_, e| e.take_copy());
            *leaver = Some(Leaver { page, copy, goes_to_store: s.limbo.goes_to_store(slot) });
        }
        leavers
    }

    /// Compresses claimed pages, without the lock, and drops the frames of those that are stored.
    fn give_leavers_to_cache(
        &self,
        active: &Active,
        leavers: &[Option<Leaver>; LEAVING_PAGES],
    ) -> [Aged; LEAVING_PAGES] {
        let mut bytes = [0u8; PAGE_SIZE];
        let aged = leavers.map(|leaver| {
            let Some(Leaver { page, copy, goes_to_store }) = leaver else { return Aged::Empty };
            if active.mechanism.read_hidden(page, &mut bytes).is_err() {
                self.free_entry(copy);
                return Aged::Refused;
            }
            self.give_to_cache(active, &bytes, goes_to_store, copy, &mut Evidence::default())
        });
        let is_gone = |i: &usize| matches!(aged[*i], Aged::Zero | Aged::Stored(_));
        let (mut gone, mut count) = ([0; LEAVING_PAGES], 0);
        for leaver in (0..LEAVING_PAGES).filter(is_gone).filter_map(|i| leavers[i]) {
            (gone[count], count) = (leaver.page, count + 1);
        }
        // A frame that the kernel does not drop goes on taking memory, and is written over later.
        active.mechanism.drop_all_in_place(&gone[..count]);
        aged
    }
}

/// Whether a run is done with, 1 or 0, if it goes on at `next`; and where it does otherwise.
fn after((addr, pages): (usize, usize), next: usize) -> (usize, Option<usize>) {
    if next >= addr + pages * PAGE_SIZE { (1, None) } else { (0, Some(next)) }
}

#[cfg(test)]
mod tests {
    use super::super::model::{READ_WRITE, Spec, Touch, World};
    use super::*;

    const PAGES: usize = 64;

    /// A world with protection faults of which every second page is there, and the others are
    /// stored.
    fn world(spec: Spec) -> World {
        let w = World::new(Spec { hides: true, ..spec });
        w.map(0, PAGES, READ_WRITE);
        // From the last to the first, so that no page brings neighbours along.
        let fill = |page: usize, b: &mut [u8; PAGE_SIZE]| b[7] = page as u8 + 1;
        drop(w.write((0..PAGES).rev(), fill));
        w.page_out();
        drop(w.write((0..PAGES).step_by(2).rev(), fill));
        w
    }

    /// Hides the first of the runs of one page from `page` to `end`, and those near it. Returns
    /// pages and runs, and whether limbo is full.
    fn hide(w: &World, page: usize, end: usize) -> (usize, usize, bool) {
        let runs = (page..end).step_by(2).map(|page| (w.at(page), 1));
        let span = w.pager.hide_span(&mut w.pager.enter(), w.active(), runs, false);
        assert_eq!(span.rest, None);
        (span.pages, span.runs, span.is_full)
    }

    fn is_right(w: &World) {
        for page in 0..PAGES {
            let right = |b: &mut [u8; PAGE_SIZE]| assert_eq!(b[7], page as u8 + 1);
            assert_eq!(w.thread().access(w.at(page), false, right), Touch::Done);
        }
        w.check();
    }

    #[test]
    fn pages_that_lie_near_one_another_go_by_one_call() {
        let w = world(Spec::roomy(PAGES));
        // The kernel has no mapping left to split one for a few pages; it hides many.
        w.fake().set_out_of_mappings(true);
        assert_eq!(hide(&w, 0, 8), (0, 4, false));
        assert_eq!(hide(&w, 8, PAGES), (PAGES / 2 - 4, PAGES / 2 - 4, false));
        w.fake().set_out_of_mappings(false);
        assert_eq!((w.pager.resident_pages(), w.pager.limbo_pages()), (4, PAGES as i64 / 2 - 4));
        is_right(&w);
    }

    #[test]
    fn where_the_kernel_does_not_hide_all_each_run_goes_by_itself() {
        let w = world(Spec::roomy(PAGES));
        w.fake().set_trouble(1);
        assert_eq!(hide(&w, 0, 12), (6, 6, false));
        w.fake().set_trouble(0);
        is_right(&w);
    }

    #[test]
    fn a_page_between_that_somebody_has_in_hand_ends_the_span() {
        let w = world(Spec::roomy(PAGES));
        w.pager.claim(&mut w.pager.enter(), w.at(5), 1);
        assert_eq!(hide(&w, 0, 20), (3, 3, false));
        assert_eq!(hide(&w, 6, 20), (7, 7, false));
        w.pager.end_claim(&mut w.pager.enter(), w.at(5), 1);
        // Pages that are there between two runs are not hidden with them.
        drop(w.write([23], |_, b| b[7] = 24));
        assert_eq!(hide(&w, 20, 30), (2, 2, false));
        // Runs that go backwards are others' spans.
        let runs = [(w.at(30), 1), (w.at(28), 1)];
        let span = w.pager.hide_span(&mut w.pager.enter(), w.active(), runs.into_iter(), false);
        assert_eq!((span.pages, span.runs), (1, 1));
        is_right(&w);
    }

    #[test]
    fn a_run_goes_on_behind_a_page_that_is_held() {
        let w = world(Spec::roomy(PAGES));
        drop(w.write((0..PAGES).rev(), |page, b| b[7] = page as u8 + 1));
        let hide = |page: usize, pages: usize| {
            let runs = core::iter::once((w.at(page), pages));
            let span = w.pager.hide_span(&mut w.pager.enter(), w.active(), runs, false);
            (span.pages, span.runs, span.rest.map(|at| (at - w.at(0)) / PAGE_SIZE))
        };
        let thread = w.thread();
        let mark = thread.holds.mark();
        thread.holds.push(w.at(4), w.at(6), 1);
        assert_eq!(hide(0, 12), (4, 0, Some(6)));
        assert_eq!(hide(5, 2), (0, 0, Some(6)));
        assert_eq!(hide(6, 6), (6, 1, None));
        thread.holds.pop_to(mark);
        w.pager.claim(&mut w.pager.enter(), w.at(12), 1);
        assert_eq!(hide(12, 3), (0, 0, Some(13)));
        w.pager.end_claim(&mut w.pager.enter(), w.at(12), 1);
        // The range ends before the run does.
        w.unmap(PAGES - 2, 2);
        assert_eq!(hide(PAGES - 4, 4), (2, 1, None));
        w.map(PAGES - 2, 2, READ_WRITE);
        w.check();
    }

    #[test]
    fn where_limbo_is_full_the_rest_stays() {
        const SLOTS: usize = PAGES / 2;
        let w = World::new(Spec { hides: true, slots: SLOTS, ..Spec::roomy(PAGES) });
        w.map(0, PAGES, READ_WRITE);
        drop(w.write((0..PAGES).rev(), |page, b| b[7] = page as u8 + 1));
        let hide = |page: usize| {
            let runs = core::iter::once((w.at(page), PAGES - page));
            let span = w.pager.hide_span(&mut w.pager.enter(), w.active(), runs, false);
            w.check();
            (span.pages, span.rest, span.is_full)
        };
        assert_eq!(hide(0), (SLOTS, Some(w.at(SLOTS)), false));
        assert_eq!(hide(SLOTS), (0, None, true));
        is_right(&w);
    }
}
