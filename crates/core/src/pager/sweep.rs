//! The sweep: pages leave the program, most of them for limbo.
//!
//! ```text
//!   pick (lock): victims, each with its way    runs    | huge pages | pages that lie alone
//!   leave (under claims, without the lock):    take.rs | huge.rs    | together.rs
//! ```
//!
//! A clock over the addresses takes what it comes to. The pages' second chance is limbo, which sees
//! every touch; degrees of heat beside that cost more than they won (docs/decisions/0017). Going by
//! address makes runs, which suit the kernel: one MOVE and one flush for many pages. Pages that
//! came in by windows and lie behind the access go before that, and those that the program calls
//! cold (`policy/trail.rs`). Pages that lie alone leave together (`together.rs`).

use core::sync::atomic::Ordering;

use super::together::{ALONE_MAX, Found, LONE_RUNS_MAX};
use super::{Active, Locked, Pager, is_data};
use crate::control::Counter;
use crate::policy::{SWEEP_MOST_PAGES, SWEEP_PAGES, sweep_pages};
use crate::region::{PageEntry, PageState, Range};
use crate::sys::mechanism::Next;
use crate::sys::{HUGE_BYTES, HUGE_PAGES, PAGE_SHIFT, PAGE_SIZE};

/// Words that one sweep step looks at before it lets the lock go.
pub(super) const SWEEP_LOOK_PAGES: usize = 32 << 10;

/// The outcome of a sweep.
#[derive(Default)]
pub(super) struct Swept {
    /// Pages taken out of the program.
    pub taken: usize,
    /// Words looked at.
    pub looked: usize,
}

/// Neighbours that leave by one MOVE.
#[derive(Clone, Copy)]
struct Victim {
    addr: usize,
    pages: usize,
    is_huge: bool,
}

impl Victim {
    fn start_at(&mut self, addr: usize) {
        self.pages -= (addr - self.addr) >> PAGE_SHIFT;
        self.addr = addr;
    }
}

/// The picks of a sweep: pages of the program, and the way by which each is to leave. Nothing has
/// happened to them yet, and changes of them before their turn are looked at then.
pub(super) struct Victims {
    runs: [Victim; SWEEP_MOST_PAGES],
    runs_len: usize,
    pub lone: Found,
    /// The picked pages are the end of the trail.
    from_trail: bool,
    /// Pages in all, and words looked at.
    pages: usize,
    looked: usize,
    /// Limbo has no room for a huge page.
    is_full: bool,
}

impl Victims {
    /// `wants_lone`: pages that lie alone are to leave together.
    pub fn new(wants_lone: bool) -> Victims {
        Victims {
            runs: [Victim { addr: 0, pages: 0, is_huge: false }; SWEEP_MOST_PAGES],
            runs_len: 0,
            lone: Found::new(wants_lone),
            from_trail: false,
            pages: 0,
            looked: 0,
            is_full: false,
        }
    }

    fn push(&mut self, addr: usize, pages: usize, is_huge: bool) {
        self.runs[self.runs_len] = Victim { addr, pages, is_huge };
        self.runs_len += 1;
        self.pages += pages;
    }

    /// Adds a run that is to leave together with others that lie alone. False: those found so far
    /// have to leave first.
    #[inline]
    fn push_lone(&mut self, addr: usize, run: usize, from_trail: bool) -> bool {
        if !self.lone.reaches(addr, run) {
            // The pages found so far leave together if they are enough. If not, they leave as runs.
            if self.lone.is_enough() {
                return false;
            }
            self.lone_as_runs();
        }
        self.lone.push(addr, run, from_trail);
        self.pages += run;
        true
    }

    /// No more pages fit, or are wanted.
    fn is_enough(&self, want: usize) -> bool {
        self.pages >= want
            || self.is_full
            || self.runs_len + LONE_RUNS_MAX >= SWEEP_MOST_PAGES
            || self.lone.is_full()
            || self.looked >= SWEEP_LOOK_PAGES
    }

    /// Lets the pages that lie alone leave as runs, if they are too few to leave together.
    fn lone_as_runs(&mut self) {
        if !self.lone.is_enough() {
            let found = self.lone.take();
            for (addr, run) in found.runs() {
                self.runs[self.runs_len] = Victim { addr, pages: run, is_huge: false };
                self.runs_len += 1;
            }
        }
    }
}

impl Pager {
    /// Takes pages out of the program: `run_most` of the end of the trail, if that goes first, or
    /// pages that the hand finds: [`SWEEP_PAGES`], more if pages may leave together, or a run of as
    /// many as `run_most` neighbours; by protection faults as many wherever they lie. Pages that
    /// are to leave together stay in `v`.
    pub(super) fn sweep(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        v: &mut Victims,
        run_most: usize,
    ) -> Swept {
        self.pick_of_trail(s, active, v, run_most);
        v.from_trail = v.pages > 0;
        let by_hand = v.pages == 0;
        if by_hand {
            let want = match active.mechanism.has_units() {
                // One call hides them wherever they lie. As many age out by one step: with fewer
                // limbo would stay empty.
                true => run_most,
                false if v.lone.is_wanted() => sweep_pages(self.resident_pages()),
                false => SWEEP_PAGES,
            };
            self.pick_by_hand(s, active, v, want, run_most);
        }
        v.lone_as_runs();
        let swept = self.take_victims(s, active, v);
        if by_hand {
            let came_back = self.came_back.swap(0, Ordering::Relaxed) as usize;
            let picked = swept.taken + v.lone.count();
            s.trail.learn(picked, came_back, self.limit_pages());
        }
        self.add(Counter::Evictions, swept.taken as u64);
        swept
    }

    /// Lets the victims leave that do not leave together, each in its way.
    fn take_victims(&self, s: &mut Locked<'_>, active: &Active, v: &mut Victims) -> Swept {
        let mut swept = Swept { looked: v.looked, ..Swept::default() };
        let from_trail = v.from_trail;
        if active.mechanism.has_units() {
            swept.taken = self.hide_victims(s, active, v);
            return swept;
        }
        for i in 0..v.runs_len {
            let Victim { addr, pages, is_huge } = v.runs[i];
            if is_huge {
                let Some(n) = self.take_huge(s, active, addr, from_trail) else { break };
                swept.taken += n;
                continue;
            }
            let (mut at, end) = (addr, addr + pages * PAGE_SIZE);
            while at < end {
                let (n, held_to) =
                    self.take_run(s, active, at, (end - at) >> PAGE_SHIFT, from_trail);
                swept.taken += n.pages;
                if n.pages == 0 && n.next == Next::End {
                    // Limbo is full: the rest is for the next time.
                    return swept;
                }
                at += (n.pages + (n.next != Next::End) as usize).max(1) * PAGE_SIZE;
                // Held pages will not go: do not ask page by page.
                at = at.max(held_to);
            }
        }
        swept
    }

    /// Hides the victims, those that lie near one another together. Returns how many pages went.
    fn hide_victims(&self, s: &mut Locked<'_>, active: &Active, v: &mut Victims) -> usize {
        let (mut gone, mut i) = (0, 0);
        while i < v.runs_len {
            let runs = v.runs[i..v.runs_len].iter().map(|v| (v.addr, v.pages));
            let span = self.hide_span(s, active, runs, v.from_trail);
            gone += span.pages;
            if span.is_full {
                // The rest is for the next time.
                break;
            }
            i += span.runs;
            if let Some(rest) = span.rest {
                v.runs[i].start_at(rest);
            }
        }
        gone
    }

    /// Takes up to `most` pages out of a run of one range. Returns where to go on.
    pub(super) fn sweep_run(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        run: Range,
        most: usize,
    ) -> (Swept, usize) {
        let mut v = Victims::new(false);
        v.from_trail = true;
        let next = self.pick_in(s, active, run, run.start, &mut v, (most, most), true);
        let swept = self.take_victims(s, active, &mut v);
        self.add(Counter::Evictions, swept.taken as u64);
        (swept, next)
    }

    /// Picks up to `want` pages of those that go first: called cold, or come in by windows.
    fn pick_of_trail(&self, s: &mut Locked<'_>, active: &Active, v: &mut Victims, want: usize) {
        let limit = self.limit_pages();
        while !v.is_enough(want)
            && !v.lone.is_enough()
            && let Some(run) = s.trail.next(limit)
        {
            let (start, run_end) = (run.start << PAGE_SHIFT, (run.start + run.pages) << PAGE_SHIFT);
            let Some(range) = self.ranges.next_from(start).filter(|r| r.start < run_end) else {
                s.trail.took(run.pages, 0);
                continue;
            };
            let (from, end) = (start.max(range.start), range.end.min(run_end));
            let (before, most) = (v.pages, want - v.pages);
            v.looked += 1;
            let next = if range.is_swept() {
                self.pick_in(s, active, Range { end, ..range }, from, v, (want, most), true)
            } else {
                end
            };
            s.trail.took(next.saturating_sub(start) >> PAGE_SHIFT, v.pages - before);
            v.lone_as_runs();
        }
    }

    /// Picks pages, going on from where the hand stopped, until there are `want`. The last run of
    /// them may have `run_most` pages.
    fn pick_by_hand(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        v: &mut Victims,
        want: usize,
        run_most: usize,
    ) {
        let mut wraps = 0;
        while !v.is_enough(want) && wraps < 2 {
            let Some(range) = self.ranges.next_from(s.hand) else {
                s.hand = 0;
                wraps += 1;
                v.looked += 64;
                continue;
            };
            let start = s.hand.max(range.start);
            if !range.is_swept() {
                s.hand = range.end;
                v.looked += 1;
                continue;
            }
            s.hand = self.pick_in(s, active, range, start, v, (want, run_most), false);
            if v.lone.is_enough() {
                // The pages that lie alone leave before others are looked for.
                break;
            }
            // Pages of one range that lie alone leave together, or not at all.
            v.lone_as_runs();
        }
    }

    /// Picks pages of one range from `start` on until there are `want`. The last run of them may
    /// have `run_most` pages. `from_trail`: the range is of the trail. Returns where to go on.
    #[expect(clippy::too_many_arguments, reason = "a step of the two above")]
    fn pick_in(
        &self,
        s: &Locked<'_>,
        active: &Active,
        range: Range,
        start: usize,
        v: &mut Victims,
        (want, run_most): (usize, usize),
        from_trail: bool,
    ) -> usize {
        use crate::region::table::LEAF_BYTES;
        let generation = self.generation();
        let goes = |e: &PageEntry| {
            !e.is_refused(generation) && if from_trail { !e.is_stuck() } else { e.pass() }
        };
        let mut addr = start;
        while addr < range.end && !v.is_enough(want) {
            let resident = self.table.middle(addr).map_or(0, |m| m.resident());
            if resident == 0 {
                addr = (addr / LEAF_BYTES + 1) * LEAF_BYTES;
                v.looked += 8;
                continue;
            }
            v.looked += 1;
            if let Some(start) = self.huge_page(active, &range, addr) {
                self.pick_huge(s, start, v, &goes);
                if v.is_full {
                    // The sweep goes on at this stretch the next time.
                    return start;
                }
                addr = start + LEAF_BYTES;
                continue;
            }
            if self.state_of(addr) != PageState::Resident || !self.is_free(s, addr) {
                addr += PAGE_SIZE;
                continue;
            }
            if self.is_guarded(addr) {
                addr += PAGE_SIZE;
                continue;
            }
            let (run, passed) = match active.mechanism.has_units() {
                true => self.units_to_go(&range, addr, &goes),
                false => self.run_to_go(s, &range, addr, run_most, &goes),
            };
            v.looked += passed;
            if run == 0 {
                addr += passed.max(1) * PAGE_SIZE;
                continue;
            }
            // A page that leaves later must not leave with a huge page before that.
            let may_wait = !self.is_shared(addr) && is_data(range.prot) && !self.is_in_huge(addr);
            if may_wait && v.lone.is_wanted() && run <= ALONE_MAX {
                if !v.push_lone(addr, run, from_trail) {
                    return addr;
                }
            } else {
                v.push(addr, run, false);
            }
            addr += passed * PAGE_SIZE;
        }
        addr.min(range.end)
    }

    /// Picks the huge page at `start` if it goes, or notes that limbo has no room for it.
    #[inline]
    fn pick_huge(
        &self,
        s: &Locked<'_>,
        start: usize,
        v: &mut Victims,
        goes: &dyn Fn(&PageEntry) -> bool,
    ) {
        v.looked += 8;
        if self.is_free(s, start) && self.table.word(start, |_, e| goes(e)) {
            v.is_full = !s.limbo.has_free_block();
            if !v.is_full {
                v.push(start, HUGE_PAGES, true);
            }
        }
    }

    /// The length of the run of pages at `addr` that may go, all shared by fork or none, `most` at
    /// most; and the number of pages looked at.
    fn run_to_go(
        &self,
        s: &Locked<'_>,
        range: &Range,
        addr: usize,
        most: usize,
        goes: &dyn Fn(&PageEntry) -> bool,
    ) -> (usize, usize) {
        let most = ((range.end - addr) >> PAGE_SHIFT).min(most);
        let shared = self.is_shared(addr);
        let alike = |e: &PageEntry| e.is_resident() && e.is_shared() == shared && !e.is_guarded();
        // A huge page goes whole.
        let begins_huge = |page: usize| page.is_multiple_of(HUGE_BYTES) && self.is_in_huge(page);
        let mut run = 0;
        while run < most {
            let page = addr + run * PAGE_SIZE;
            let may_leave =
                self.table.get(page).is_some_and(|e| alike(e) && self.is_free(s, page) && goes(e));
            if !may_leave || run > 0 && begins_huge(page) {
                break;
            }
            run += 1;
        }
        (run, run)
    }
}

#[cfg(test)]
mod tests {
    use super::super::PROT_READ;
    use super::super::model::{READ_WRITE, Spec, Touch, World};
    use super::*;

    #[test]
    fn what_may_be_pinned_and_cannot_be_moved_stays() {
        const PAGES: usize = 8;
        let w = World::new(Spec::roomy(PAGES));
        w.map(0, PAGES, READ_WRITE);
        let mut thread = w.thread();
        for page in 0..PAGES {
            let touch = thread.access(w.at(page), true, |bytes| bytes[9] = page as u8 + 1);
            assert_eq!(touch, Touch::Done);
        }
        w.protect(0, PAGES / 2, PROT_READ);
        let all_out = |from: usize, to: usize| {
            w.page_out();
            w.check();
            (from..to).all(|page| w.pager.state_of(w.at(page)) != PageState::Resident)
        };
        w.pager.note_pins();
        assert!(all_out(PAGES / 2, PAGES), "data is moved");
        let is_there = |page: &usize| w.pager.state_of(w.at(*page)) == PageState::Resident;
        assert_eq!((0..PAGES).filter(is_there).count(), PAGES / 2);
        // In a program that pins nothing the others go, too.
        w.pager.pins.store(false, Ordering::SeqCst);
        assert!(all_out(0, PAGES));
        for page in 0..PAGES {
            let touch =
                thread.access(w.at(page), false, |bytes| assert_eq!(bytes[9], page as u8 + 1));
            assert_eq!(touch, Touch::Done);
        }
    }
}
