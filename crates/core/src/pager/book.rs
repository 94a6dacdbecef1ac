//! The book: what is known of each page, and the counts that go with it.
//!
//! A page's word and the counts of its stretch change together, by transitions that have names; the
//! gauges of the process by these, or for several pages at once (`count_...`). No other file
//! touches the counts. The word asserts that the page was in the state at which a transition begins
//! (`region/page.rs`).
//!
//! ```text
//!   NONE       touched, adopted ----------------> RESIDENT
//!   RESIDENT   announced -----------------------> LIMBO; back again if not taken out
//!   LIMBO      left limbo, put back, copied ----> RESIDENT
//!   LIMBO      given to the cache --------------> STORED or NONE
//!   STORED     loaded, copied ------------------> RESIDENT
//!   RESIDENT   dropped -------------------------> NONE
//!   any        discarded, moved ----------------> NONE
//! ```
//! Some words change before it is known whether their pages go: of pages that leave without limbo
//! (`guard.rs`, `together.rs`), and of pages that are announced (`take.rs`, `huge.rs`). The counts
//! follow when the pages have gone.
//!
//! The caller holds the lock. The pages are claimed by the caller or by nobody (`claim.rs`).

use core::sync::atomic::{Ordering, fence};

use super::{Active, Locked, Pager};
use crate::cache::{Print, SwapEntry};
use crate::control::Counter;
use crate::control::trace::Kind;
use crate::policy::ghost;
use crate::region::table::MiddleEntry;
use crate::region::{Mapped, PageEntry, PageState};
use crate::sys::mechanism::{Next, Taken};
use crate::sys::{HUGE_PAGES, PAGE_SIZE, Result};

/// The swap entry that a page word carries.
pub(super) fn swap_entry(bits: u64) -> SwapEntry {
    SwapEntry::from_bits(bits).expect("a stored page has a swap entry")
}

// Looking.
impl Pager {
    /// The state of a page; `None` where it has no word.
    #[inline]
    pub(super) fn state_of(&self, page: usize) -> PageState {
        self.table.get(page).map_or(PageState::None, |e| e.state())
    }

    #[inline]
    pub(super) fn is_guarded(&self, page: usize) -> bool {
        self.table.get(page).is_some_and(|e| e.is_guarded())
    }

    pub(super) fn is_shared(&self, page: usize) -> bool {
        self.table.get(page).is_some_and(|e| e.is_shared())
    }

    /// Calls `f` for each maximal run of resident pages in `[start, end)`.
    pub(super) fn for_each_resident_run(
        &self,
        start: usize,
        end: usize,
        f: impl FnMut(usize, usize) -> Result<()>,
    ) -> Result<()> {
        self.for_each_run(start, end, PageEntry::is_resident, f)
    }

    /// Calls `f` for each maximal run of pages in `[start, end)` whose words are `wanted`, until it
    /// fails.
    pub(super) fn for_each_run(
        &self,
        start: usize,
        end: usize,
        wanted: impl Fn(&PageEntry) -> bool,
        mut f: impl FnMut(usize, usize) -> Result<()>,
    ) -> Result<()> {
        let mut run: Option<(usize, usize)> = None;
        let mut result = Ok(());
        self.table.for_each_occupied(start, end, |page, _, e| {
            if !wanted(e) || result.is_err() {
                return;
            }
            match &mut run {
                Some((_, to)) if *to == page => *to += PAGE_SIZE,
                _ => {
                    if let Some((from, to)) = run.replace((page, page + PAGE_SIZE)) {
                        result = f(from, to);
                    }
                }
            }
        });
        result?;
        run.map_or(Ok(()), |(from, to)| f(from, to))
    }

    /// The ghost time of a page that leaves without limbo after `more` others.
    pub(super) fn stamp(&self, more: usize) -> u64 {
        ghost::stamp(
            self.left_directly.load(Ordering::Relaxed) + more as u64,
            self.limbo_target() as u64,
        )
    }

    /// Whether a page that is about to be mapped again was dropped so lately that it would still be
    /// in limbo.
    fn was_dropped_lately(&self, e: &PageEntry) -> bool {
        e.dropped_at().is_some_and(|then| {
            ghost::would_be_there(then, self.stamp(0), self.limbo_target() as u64)
        })
    }
}

// Pages come.
impl Pager {
    /// Counts pages that are about to come: from the beginning of their claim on, so that threads
    /// side by side do not go over the limit. Those of a window are counted afterwards: the frames
    /// that they move into count already.
    pub(super) fn count_coming(&self, pages: usize) {
        self.resident.fetch_add(pages as i64, Ordering::Relaxed);
    }

    /// Counts pages no more that were to come and did not.
    pub(super) fn count_not_come(&self, pages: usize) {
        self.resident.fetch_sub(pages as i64, Ordering::Relaxed);
    }

    /// Notes pages of `[from, to)` that were there before they were paged, as far as there is
    /// memory for their words.
    pub(super) fn note_adopted(&self, _: &Locked<'_>, from: usize, to: usize) {
        for page in (from..to).step_by(PAGE_SIZE) {
            if let Ok((m, e)) = self.table.ensure(page)
                && e.state() == PageState::None
            {
                e.touch_first();
                m.count(1, 1);
                self.resident.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.trace_pages(Kind::Adopted, from, to);
        // Pages mapped before paging began may be small pages to the kernel.
        self.table.for_each_stretch(from, to, |_, m| m.set_mapped(Mapped::Small));
    }

    /// Notes that a page that was never there is mapped now, as zeros.
    #[inline]
    pub(super) fn note_touched(&self, _: &Locked<'_>, page: usize) {
        self.table.word(page, |m, e| {
            e.touch_first();
            m.count(1, 1);
        });
    }

    /// Notes that a page of limbo is mapped now. Its slot is empty.
    #[inline]
    pub(super) fn note_left_limbo(&self, s: &Locked<'_>, page: usize, slot: usize) {
        self.table.word(page, |m, e| {
            self.note_return(e);
            e.leave_limbo();
            m.count(1, 0);
        });
        s.limbo.kill(slot);
    }

    /// Notes that a stored page is mapped now. `keeps`: the cache keeps its copy; else the entry is
    /// free.
    #[inline]
    pub(super) fn note_loaded(&self, _: &Locked<'_>, page: usize, keeps: bool) {
        self.table.word(page, |m, e| {
            self.note_return(e);
            let was_away_for_a_moment = self.was_dropped_lately(e);
            if keeps {
                e.load_keeping()
            } else {
                e.load()
            }
            if was_away_for_a_moment {
                self.add(Counter::QuickReturns, 1);
            }
            m.count(1, 0);
        });
        if !keeps {
            self.count_freed();
        }
    }

    /// Counts a page that is about to be mapped again, if it was the hand that took it.
    #[inline]
    fn note_return(&self, e: &PageEntry) {
        if !e.was_from_trail() {
            self.came_back.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts stored pages that came in together; all but the first came around a fault.
    pub(super) fn count_loaded(&self, pages: usize) {
        self.stored.fetch_sub(pages as i64, Ordering::Relaxed);
        self.add(Counter::Loads, pages as u64);
        self.add(Counter::FaultAroundPages, (pages as u64).saturating_sub(1));
    }

    /// The words and counts of a run that was filled and is shown. `kept`: the pages whose copies
    /// the cache keeps.
    pub(super) fn note_shown(&self, s: &Locked<'_>, start: usize, end: usize, kept: u64) {
        let (mut first, mut hits, mut loaded) = (0, 0, 0);
        for (i, at) in (start..end).step_by(PAGE_SIZE).enumerate() {
            match self.state_of(at) {
                PageState::None => {
                    self.note_touched(s, at);
                    first += 1;
                }
                PageState::Limbo(slot) => {
                    self.note_left_limbo(s, at, slot as usize);
                    self.count_frames(-1);
                    hits += 1;
                }
                PageState::Stored(_) => {
                    let keeps = kept.checked_shr(i as u32).unwrap_or(0) & 1 != 0;
                    self.note_loaded(s, at, keeps);
                    loaded += 1;
                }
                PageState::Resident => {
                    self.table.word(at, |_, e| self.count_owned(e.own() as usize))
                }
            }
        }
        self.stored.fetch_sub(loaded, Ordering::Relaxed);
        self.add(Counter::FirstTouches, first);
        self.add(Counter::LimboHits, hits);
        self.add(Counter::Loads, loaded as u64);
        self.recount_own();
    }

    /// Notes that the first `pages` pages of the stretch `m` at `start`, which is claimed, came as
    /// a huge page or, unless `is_huge`, split. `prints`: the fingerprints of loaded pages whose
    /// copies are to stay.
    pub(super) fn note_came_whole(
        &self,
        s: &Locked<'_>,
        active: &Active,
        (m, start): (&MiddleEntry, usize),
        (pages, is_huge): (usize, bool),
        prints: &[[u8; 8]; HUGE_PAGES],
    ) {
        let (mut touched, mut loaded, mut hits) = (0, 0, 0);
        for (i, print) in prints.iter().enumerate().take(pages) {
            self.table.word(start + i * PAGE_SIZE, |_, e| match e.state() {
                PageState::None => {
                    e.touch_first();
                    touched += 1;
                }
                PageState::Stored(raw) => {
                    self.note_return(e);
                    if active.cache.keep(swap_entry(raw), Print::from_bytes(*print)) {
                        e.load_keeping();
                    } else {
                        e.load();
                        self.count_freed();
                    }
                    loaded += 1;
                }
                PageState::Limbo(slot) => {
                    self.note_return(e);
                    e.leave_limbo();
                    s.limbo.kill(slot as usize);
                    hits += 1;
                }
                PageState::Resident => unreachable!("no page of the stretch is resident"),
            });
        }
        m.count(pages as i32, touched);
        m.set_mapped(if is_huge { Mapped::Huge } else { Mapped::Small });
        self.resident.fetch_add(pages as i64, Ordering::Relaxed);
        self.count_loaded(loaded);
        self.add(Counter::FirstTouches, touched as u64);
        self.add(Counter::LimboHits, hits);
    }

    /// Notes that a page that was to leave limbo for the cache is back in the program.
    pub(super) fn note_put_back(&self, _: &Locked<'_>, page: usize) {
        self.table.word(page, |m, e| {
            e.refuse_limbo(true);
            m.count(1, 0);
        });
        self.resident.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that a page's contents were copied into place as paging ends: the copy goes.
    pub(super) fn note_copied(&self, s: &Locked<'_>, page: usize) {
        match self.state_of(page) {
            PageState::Stored(raw) => {
                self.table.word(page, |m, e| {
                    e.load();
                    m.count(1, 0);
                });
                self.stored.fetch_sub(1, Ordering::Relaxed);
                self.free_entry(Some(raw));
            }
            PageState::Limbo(slot) => {
                s.limbo.kill(slot as usize);
                self.table.word(page, |m, e| {
                    e.leave_limbo();
                    m.count(1, 0);
                });
            }
            PageState::None | PageState::Resident => {}
        }
        self.resident.fetch_add(1, Ordering::Relaxed);
    }
}

// Pages go.
impl Pager {
    /// Publishes that `run` pages are to go into limbo, before the holds are looked at (hold.rs).
    /// Returns how many of them were shared by fork. No word may say writable before the kernel
    /// does.
    pub(super) fn announce(
        &self,
        _: &Locked<'_>,
        addr: usize,
        run: usize,
        first_slot: usize,
        from_trail: bool,
    ) -> usize {
        let mut owned = 0;
        for i in 0..run {
            owned += self.is_shared(addr + i * PAGE_SIZE) as usize;
            self.table.word(addr + i * PAGE_SIZE, |_, e| {
                e.enter_limbo((first_slot + i) as u64, from_trail)
            });
        }
        self.count_owned(owned);
        fence(Ordering::SeqCst);
        owned
    }

    /// Notes which of `run` pages that were announced went to limbo. The others are still there, or
    /// the kernel has dropped the first of them.
    pub(super) fn note_taken_out(&self, s: &Locked<'_>, addr: usize, run: usize, taken: &Taken) {
        for i in taken.pages..run {
            self.table.word(addr + i * PAGE_SIZE, |_, e| e.refuse_limbo(i == taken.pages));
        }
        if taken.next == Next::Absent {
            self.note_dropped(s, addr + taken.pages * PAGE_SIZE);
        }
        for i in 0..taken.pages {
            self.table.word(addr + i * PAGE_SIZE, |m, _| m.count(-1, 0));
        }
        self.resident.fetch_sub(taken.pages as i64, Ordering::Relaxed);
    }

    /// Notes that the first `pages` pages of the stretch at `start` are in a block of limbo. The
    /// block counts as a whole: it is given back as a whole.
    pub(super) fn note_taken_whole(&self, _: &Locked<'_>, start: usize, pages: usize) {
        self.table.word(start, |m, _| m.count(-(pages as i32), 0));
        self.resident.fetch_sub(pages as i64, Ordering::Relaxed);
        self.count_frames(HUGE_PAGES as i64);
        self.add(Counter::HugeEvictions, 1);
    }

    /// Counts more frames of limbo, or, negative, fewer.
    pub(super) fn count_frames(&self, more: i64) {
        self.limbo_pages.fetch_add(more, Ordering::Relaxed);
    }

    /// Notes that a page went into the cache as `entry`, or as zeros nowhere: from limbo, or from
    /// its place.
    pub(super) fn note_given(
        &self,
        _: &Locked<'_>,
        page: usize,
        was_in_limbo: bool,
        entry: Option<SwapEntry>,
    ) {
        let resident = i32::from(!was_in_limbo);
        if !was_in_limbo {
            self.resident.fetch_sub(1, Ordering::Relaxed);
        }
        self.table.word(page, |m, e| match entry {
            Some(entry) => {
                e.store(entry.to_bits());
                m.count(-resident, 0);
            }
            None => {
                e.drop_contents();
                m.count(-resident, -1);
            }
        });
        if entry.is_some() {
            self.stored.fetch_add(1, Ordering::Relaxed);
            self.add(Counter::Stores, 1);
        } else {
            self.add(Counter::ZeroPages, 1);
        }
    }

    /// Notes that the frame of a page went whose word says already that the page has gone. Returns
    /// whether the page is stored; [`Self::count_left_directly`] counts.
    pub(super) fn note_left_directly(&self, _: &Locked<'_>, page: usize) -> bool {
        let is_stored = matches!(self.state_of(page), PageState::Stored(_));
        self.table.word(page, |m, _| m.count(-1, is_stored as i32 - 1));
        is_stored
    }

    /// Counts pages that went without limbo, and those of them that are stored.
    pub(super) fn count_left_directly(&self, gone: usize, stored: usize) {
        self.left_directly.fetch_add(gone as u64, Ordering::Relaxed);
        self.resident.fetch_sub(gone as i64, Ordering::Relaxed);
        self.stored.fetch_add(stored as i64, Ordering::Relaxed);
        self.add(Counter::Stores, stored as u64);
    }

    /// Notes that the kernel dropped a resident page unseen: it reads as zero now.
    pub(super) fn note_dropped(&self, s: &Locked<'_>, page: usize) {
        self.trace_pages(Kind::Discarded, page, page + PAGE_SIZE);
        self.table.word(page, |m, e| self.discard_word(s, m, e));
    }

    /// Frees the swap entry that a page word carried, if it carried one.
    pub(super) fn free_entry(&self, entry: Option<u64>) {
        if let (Some(active), Some(raw)) = (self.active(), entry) {
            self.count_freed();
            active.cache.free(swap_entry(raw));
        }
    }
}

// Calls of the program.
impl Pager {
    /// Forgets the contents of the pages of `[start, end)`.
    pub(super) fn discard_words(&self, s: &Locked<'_>, start: usize, end: usize) {
        let (mut first, mut last) = (usize::MAX, 0);
        self.table.for_each_occupied(start, end, |page, m, e| {
            (first, last) = (first.min(page), page);
            self.discard_word(s, m, e);
        });
        // Pages that were mapped and never touched are in no trace.
        self.trace_pages(Kind::Discarded, first, last + PAGE_SIZE);
    }

    /// Forgets one page's contents, wherever they are.
    pub(super) fn discard_word(&self, s: &Locked<'_>, m: &MiddleEntry, e: &PageEntry) {
        match e.state() {
            PageState::None => return,
            PageState::Resident => {
                self.count_owned(e.own() as usize);
                m.count(-1, -1);
                self.resident.fetch_sub(1, Ordering::Relaxed);
            }
            PageState::Limbo(slot) => {
                m.count(0, -1);
                s.limbo.kill(slot as usize);
                if self.active().is_some_and(|a| a.mechanism.keeps_frames()) {
                    self.count_frames(-1);
                }
            }
            PageState::Stored(raw) => {
                m.count(0, -1);
                self.stored.fetch_sub(1, Ordering::Relaxed);
                self.free_entry(Some(raw));
            }
        }
        self.free_entry(e.take_copy());
        e.drop_contents();
    }

    /// Notes that the kernel has moved pages: `bytes` from `old` on are at `new`.
    pub(super) fn move_words(&self, s: &Locked<'_>, old: usize, new: usize, bytes: usize) {
        self.table.for_each_occupied(old, old + bytes, |page, m, e| {
            let to = new + (page - old);
            let state = e.state();
            let resident = (state == PageState::Resident) as i32;
            let (tm, te) = self.table.ensure(to).expect("memory for a page word");
            te.take_over(e);
            m.count(-resident, -1);
            tm.count(resident, 1);
            if let PageState::Limbo(slot) = state {
                s.limbo.moved(slot as usize, to);
            }
        });
        self.trace_pages(Kind::MovedFrom, old, old + bytes);
        self.trace_pages(Kind::MovedTo, new, new + bytes);
        // The kernel moves some stretches as huge pages and does not say which.
        self.table.for_each_stretch(new, new + bytes, |_, m| m.set_mapped(Mapped::Small));
    }

    /// Notes that the kernel has lifted the protection of all of `[start, end)`.
    pub(super) fn note_unguarded(&self, start: usize, end: usize) {
        self.table.for_each_occupied(start, end, |_, _, e| _ = e.unguard());
    }

    /// Takes the marks off `[start, end)`; the pages count from now on.
    pub(super) fn own_all(&self, start: usize, end: usize) {
        if !self.sharing.has_marks() {
            return;
        }
        let mut owned = 0;
        self.table.for_each_occupied(start, end, |_, _, e| owned += e.own() as usize);
        self.count_owned(owned);
    }

    /// Marks again resident pages that the caller has claimed and whose protection the kernel, out
    /// of mappings, has not lifted. No thread has believed them to be writable meanwhile.
    pub(super) fn share_again(&self, start: usize, end: usize) {
        let mut pages = 0;
        self.table.for_each_occupied(start, end, |_, _, e| {
            if e.is_resident() {
                e.share();
                pages += 1;
            }
        });
        self.sharing.count_marked(pages);
    }
}

// The books balance.
impl Pager {
    /// Asserts the pager's invariants, with the lock held and nothing in flight.
    pub fn check(&self, s: &Locked<'_>) {
        self.ranges.check();
        s.limbo.check();
        self.check_claims(s);
        let (mut resident, mut stored) = (0, 0);
        let mut counts = std::collections::BTreeMap::new();
        self.table.for_each_occupied(0, usize::MAX, |addr, m, e| {
            let c = counts.entry(addr >> 21).or_insert((0, 0, m.resident(), m.occupied()));
            c.1 += 1;
            assert!(self.ranges.find(addr).is_some(), "page {addr:#x} has contents but no range");
            self.check_shared(addr, e.state());
            match e.state() {
                PageState::Resident => {
                    resident += 1;
                    c.0 += 1;
                }
                PageState::Stored(_) => stored += 1,
                PageState::Limbo(slot) => assert_eq!(s.limbo.page(slot as usize), Some(addr)),
                PageState::None => unreachable!(),
            }
        });
        for (at, (r, o, mr, mo)) in counts {
            assert_eq!((r, o), (mr, mo), "counts of the stretch {at:#x}");
        }
        assert_eq!((resident, stored), (self.resident_pages(), self.stored_pages()));
    }

    /// Asserts that only a resident page is marked, and only while marks are believed.
    fn check_shared(&self, page: usize, state: PageState) {
        assert!(
            !self.is_shared(page) || (state == PageState::Resident && self.sharing.has_marks()),
            "page {page:#x} is marked as shared"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::PROT_READ;
    use super::super::model::{READ_WRITE, STRETCH_PAGES, Spec, Touch, World};
    use super::*;
    use crate::sys::Errno;
    use crate::sys::mechanism::Filled;

    fn world(pages: usize, hides: bool) -> World {
        let w = World::new(Spec { hides, ..Spec::roomy(pages) });
        w.map(0, pages, READ_WRITE);
        w
    }

    /// Writes pages, each by a thread of its own, so that none brings neighbours along.
    fn write(w: &World, pages: &[usize]) {
        for page in pages {
            assert_eq!(w.thread().access(w.at(*page), true, |b| b[9] = 7), Touch::Done);
        }
    }

    fn state(w: &World, page: usize) -> PageState {
        w.pager.state_of(w.at(page))
    }

    #[test]
    fn runs_end_where_the_question_does_and_a_failure_is_the_last_answer() {
        const BORDER: usize = STRETCH_PAGES;
        let w = world(2 * BORDER, false);
        write(&w, &[1, 2, 3, BORDER - 1, BORDER, BORDER + 2]);
        let runs = |from: usize, to: usize, fails_at: usize| {
            let mut seen = Vec::new();
            let result = w.pager.for_each_resident_run(w.at(from), w.at(to), |start, end| {
                seen.push([start, end].map(|at| (at - World::BASE) / PAGE_SIZE));
                if seen.len() == fails_at { Err(Errno::EIO) } else { Ok(()) }
            });
            (seen, result.is_ok())
        };
        let all = vec![[1, 4], [BORDER - 1, BORDER + 1], [BORDER + 2, BORDER + 3]];
        assert_eq!(runs(0, 2 * BORDER, 0), (all, true));
        assert_eq!(runs(2, BORDER, 0), (vec![[2, 4], [BORDER - 1, BORDER]], true));
        assert_eq!(runs(4, BORDER - 1, 1), (vec![], true));
        assert_eq!(runs(0, 2 * BORDER, 1), (vec![[1, 4]], false));
        assert_eq!(runs(2, 4, 1), (vec![[2, 4]], false), "the last run may fail, too");
    }

    #[test]
    fn of_a_run_that_stops_halfway_only_the_page_that_stopped_it_is_passed_over() {
        let w = world(8, false);
        write(&w, &[0, 1, 2, 3, 4, 5]);
        // All of them have copies.
        w.active().cache.set_max_kept_bytes(usize::MAX);
        w.page_out();
        write(&w, &[0, 1, 2, 3, 4, 5]);
        // The kernel will not move page 1, and has dropped page 4.
        w.fake().set_prot(w.at(1), PAGE_SIZE, PROT_READ);
        w.fake().discard(w.at(4), PAGE_SIZE);
        let take = |page: usize| {
            w.pager.take_run(&mut w.pager.enter(), w.active(), w.at(page), 3, false).0.pages
        };
        assert_eq!([0, 3].map(take), [1, 1]);
        w.fake().set_prot(w.at(1), PAGE_SIZE, READ_WRITE);
        let goes = |page: usize| w.pager.table.word(w.at(page), |_, e| e.pass());
        assert_eq!([1, 2, 5].map(goes), [false, true, true]);
        assert_eq!((state(&w, 4), w.pager.resident_pages()), (PageState::None, 3));
        assert_eq!(w.active().cache.counters().stored_pages, 5, "its copy is of no use");
        w.check();
    }

    #[test]
    fn each_page_of_a_unit_that_is_shown_counts_by_where_it_was() {
        let w = world(8, true);
        w.active().cache.set_max_kept_bytes(usize::MAX);
        write(&w, &[1, 2]);
        w.pager.page_out(w.at(2), w.at(3));
        w.sweep(false);
        write(&w, &[3]);
        w.fork_in_vain();
        assert!(matches!(state(&w, 1), PageState::Limbo(_)) && w.pager.is_shared(w.at(3)));
        let ways = [Counter::FirstTouches, Counter::LimboHits, Counter::Loads, Counter::OwnedPages];
        let before = ways.map(|way| w.pager.slot().get(way));
        w.pager.unit_pages_least.store(4, Ordering::Relaxed);
        write(&w, &[0]);
        assert_eq!(ways.map(|way| w.pager.slot().get(way)), before.map(|count| count + 1));
        assert_eq!((w.pager.resident_pages(), w.pager.limbo_pages()), (4, 0));
        let has_copy = |page: &usize| w.pager.table.word(w.at(*page), |_, e| e.copy().is_some());
        assert_eq!((0..4).filter(has_copy).collect::<Vec<_>>(), [2]);
        w.check();
    }

    #[test]
    fn a_page_that_was_copied_into_its_place_is_nowhere_else() {
        let w = world(8, false);
        write(&w, &[0, 1, 2]);
        w.pager.page_out(w.at(0), w.at(1));
        w.sweep(false);
        let PageState::Limbo(slot) = state(&w, 1) else { panic!("{:?}", state(&w, 1)) };
        let s = w.pager.enter();
        for page in [0, 1] {
            assert_eq!(w.fake().fill(w.at(page), &[7; PAGE_SIZE]), Filled::All);
            w.pager.note_copied(&s, w.at(page));
        }
        assert_eq!(s.limbo.page(slot as usize), None);
        drop(s);
        assert_eq!((w.pager.resident_pages(), w.pager.stored_pages()), (2, 0));
        assert_eq!(w.active().cache.counters().stored_pages, 0);
        w.check();
    }

    #[test]
    fn a_shared_page_that_the_kernel_drops_is_counted_by_relatives_no_more() {
        let w = world(8, false);
        write(&w, &[3, 4]);
        w.fork_in_vain();
        let uncounted = w.pager.uncounted_pages();
        w.fake().discard(w.at(3), PAGE_SIZE);
        assert_eq!(w.thread().access(w.at(3), false, |b| assert_eq!(b[9], 0)), Touch::Done);
        assert_eq!(w.pager.uncounted_pages(), uncounted - 1);
        w.check();
    }
}
