//! Ageing out: limbo's oldest pages are given to the swap cache, in batches. A batch belongs to the
//! thread that ages it.
//!
//! ```text
//!   age (lock) -> compress (no lock) -> publish (lock) -> give frames back (no lock)
//! ```
//!
//! Limbo's ring is first in, first out. A page that is touched or dropped meanwhile is no longer in
//! its slot when its batch is published, and the copy is freed. So any number of threads age out
//! side by side.

use super::book::swap_entry;
use super::huge_sampling::Evidence;
use super::to_cache::Aged;
use super::{Active, Locked, Pager};
use crate::cache::{Back, Print, SwapEntry};
use crate::control::Counter;
use crate::policy::limbo::Batch;
use crate::policy::{BATCH_PAGES, WINDOW_LEAST_PAGES};
use crate::region::PageState;
use crate::sys::mechanism::Mover;
use crate::sys::{HUGE_PAGES, prefetch};

/// Pages of a batch that are looked at and published under one hold of the lock: others wait for
/// it.
const PART_PAGES: usize = 64;
/// Pages that the cache is asked about at once: its lock is taken once for all of them, and not
/// held for long.
pub(super) const TOGETHER: usize = 32;

impl Pager {
    /// Ages out up to `want` of limbo's oldest pages, or the oldest huge page if more of those
    /// wait, and gives them to the swap cache. Returns the frames freed and the pages refused.
    pub(super) fn age_out<'a>(
        &'a self,
        s: Locked<'a>,
        active: &Active,
        want: usize,
    ) -> (Locked<'a>, usize, usize) {
        self.age_out_batch(s, active, want, false)
    }

    /// As [`Self::age_out`]; with `may_keep` the frames may stay with their slots, for a window
    /// that comes in.
    pub(super) fn age_out_batch<'a>(
        &'a self,
        mut s: Locked<'a>,
        active: &Active,
        want: usize,
        may_keep: bool,
    ) -> (Locked<'a>, usize, usize) {
        if s.limbo.has_more_in_blocks() {
            return self.age_out_block(s, active);
        }
        let Some(batch) = s.limbo.age(want.clamp(1, BATCH_PAGES)) else { return (s, 0, 0) };
        if active.mechanism.keeps_frames() {
            let (freed, refused) = self.age_in_place(&mut s, active, batch);
            return (s, freed, refused);
        }
        let mut refused = 0;
        for first in (0..batch.count).step_by(PART_PAGES) {
            let (slot, count) = (batch.slot + first, PART_PAGES.min(batch.count - first));
            let mut aged = [Aged::Empty; PART_PAGES];
            let (live, copies) = self.look_at_slots(&s, slot, count);
            drop(s);
            let _ = self.give_slots_to_cache(active, slot, &live[..count], &copies, &mut aged);
            s = self.enter();
            refused += self.publish_slots(&mut s, active, slot, &aged[..count]);
        }
        self.end_batch(s, active, batch, refused, may_keep)
    }

    /// Which of `count` ageing slots have a page, and the copies that the cache kept of those
    /// pages. The copies become the thread's: a page that is touched or dropped meanwhile has none
    /// any more.
    fn look_at_slots(
        &self,
        s: &Locked<'_>,
        slot: usize,
        count: usize,
    ) -> ([bool; PART_PAGES], [Option<u64>; PART_PAGES]) {
        let (mut live, mut copies) = ([false; PART_PAGES], [None; PART_PAGES]);
        for i in 0..count {
            if let Some(page) = s.limbo.page(slot + i) {
                live[i] = true;
                copies[i] = self.table.word(page, |_, e| e.take_copy());
            }
        }
        (live, copies)
    }

    /// Compresses the pages of ageing slots, without the lock. Returns what the pages tell of
    /// their use.
    fn give_slots_to_cache(
        &self,
        active: &Active,
        slot: usize,
        live: &[bool],
        copies: &[Option<u64>],
        aged: &mut [Aged],
    ) -> Evidence {
        let mut e = Evidence::default();
        let page = |i: usize| if live[i] { active.mechanism.slot(slot + i) } else { None };
        // The page was last looked at when it was in the program, so it may be in no cache of the
        // processor.
        let ask_for = |i: usize| _ = (i < live.len()).then(|| page(i).map(prefetch::page));
        ask_for(0);
        for first in (0..live.len()).step_by(TOGETHER) {
            let some = first..live.len().min(first + TOGETHER);
            let (mut prints, mut count) = ([None; TOGETHER], 0);
            for i in some.clone() {
                ask_for(i + 1);
                if let (Some(bytes), Some(copy)) = (page(i), copies[i]) {
                    prints[count] = Some((i, swap_entry(copy), active.cache.print_of(bytes)));
                    count += 1;
                }
            }
            self.take_back(active, &prints[..count], aged, &mut e);
            for i in some {
                if let (Some(bytes), Aged::Empty) = (page(i), aged[i]) {
                    e.pages += 1;
                    aged[i] = self.store_anew(active, bytes, false, &mut e);
                }
            }
        }
        e
    }

    /// Judges the pages of a batch of which the cache kept copies. A page that equals its copy is
    /// stored by that; the copy of any other page goes.
    fn take_back(
        &self,
        active: &Active,
        pages: &[Option<(usize, SwapEntry, Print)>],
        aged: &mut [Aged],
        e: &mut Evidence,
    ) {
        let mut same = 0;
        active.cache.take_back_each(pages.iter().flatten().map(|p| (p.1, p.2)), |n, back| {
            let (i, entry, _) = pages[n].expect("asked");
            if back == Back::Same {
                aged[i] = Aged::Stored(entry);
                same += 1;
            }
            e.note_copy(back);
        });
        e.pages += same;
        self.add(Counter::CleanEvictions, same as u64);
        (same..pages.len()).for_each(|_| self.count_freed());
    }

    /// Ages the oldest huge page in limbo and gives its pages to the swap cache, batch by batch,
    /// so that a touch of one need not wait for all. Returns the same as `age_out`.
    fn age_out_block<'a>(
        &'a self,
        mut s: Locked<'a>,
        active: &Active,
    ) -> (Locked<'a>, usize, usize) {
        let Some(block) = s.limbo.age_block() else { return (s, 0, 0) };
        let stretch = s.limbo.page(block);
        let (mut refused, mut evidence) = (0, Evidence::default());
        for slot in (block..block + HUGE_PAGES).step_by(PART_PAGES) {
            let (live, copies) = self.look_at_slots(&s, slot, PART_PAGES);
            drop(s);
            let mut aged = [Aged::Empty; PART_PAGES];
            evidence.add(self.give_slots_to_cache(active, slot, &live, &copies, &mut aged));
            s = self.enter();
            refused += self.publish_slots(&mut s, active, slot, &aged);
        }
        if let Some(stretch) = stretch {
            self.learn_from_huge(&mut s, stretch, evidence);
        }
        // The slots hold no page any more and are still this thread's: the frame is for
        // the next huge page, or goes back without the lock. Not all of it may be there: some pages
        // stayed in the program, or a fork came in between.
        if Self::is_whole(active, block) && s.limbo.keep_frame(block) {
            return (s, HUGE_PAGES - refused, refused);
        }
        drop(s);
        active.mechanism.release_slots(block, HUGE_PAGES);
        s = self.enter();
        s.limbo.finish_block(block);
        self.count_frames(-(HUGE_PAGES as i64));
        (s, HUGE_PAGES - refused, refused)
    }

    /// Whether all slots of a huge page have frames.
    fn is_whole(active: &Active, block: usize) -> bool {
        let mut parts = (block..block + HUGE_PAGES).step_by(Mover::FRAMES_MAX);
        const { assert!(HUGE_PAGES.is_multiple_of(Mover::FRAMES_MAX)) };
        active
            .mechanism
            .as_mover()
            .is_some_and(|u| parts.all(|slot| u.has_frames(slot, Mover::FRAMES_MAX)))
    }

    /// The pages of a batch have their new states: its frames go, or stay for others.
    fn end_batch<'a>(
        &'a self,
        mut s: Locked<'a>,
        active: &Active,
        batch: Batch,
        refused: usize,
        may_keep: bool,
    ) -> (Locked<'a>, usize, usize) {
        if may_keep && refused == 0 && self.keeps_frames(&mut s, active, batch) {
            return (s, batch.count - refused, refused);
        }
        // The slots hold no page any more and are still this thread's: their frames go
        // back without the lock.
        drop(s);
        active.mechanism.release_slots(batch.slot, batch.count);
        let s = self.enter();
        s.limbo.finish(batch);
        self.count_frames(-(batch.count as i64));
        (s, batch.count - refused, refused)
    }

    /// Keeps the frames of a published batch for the next window that comes in, if windows are
    /// coming in.
    fn keeps_frames(&self, s: &mut Locked<'_>, active: &Active, batch: Batch) -> bool {
        const { assert!(BATCH_PAGES <= Mover::FRAMES_MAX) };
        let keeps = batch.count >= WINDOW_LEAST_PAGES
            && !self.slot().turn.is_paused()
            && s.limbo.wants_stock(batch.count)
            && active.mechanism.as_mover().is_some_and(|u| u.has_frames(batch.slot, batch.count));
        if keeps {
            s.limbo.keep_batch(batch);
        }
        keeps
    }

    /// Gives the pages of the slots from `first` on their new state, as far as they are still
    /// there. Returns how many stay in the program.
    fn publish_slots(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        first: usize,
        aged: &[Aged],
    ) -> usize {
        let mut refused = 0;
        self.recount_own();
        for (i, aged) in aged.iter().enumerate() {
            let slot = first + i;
            let page = self.page_in_slot(s, slot);
            let Some(page) = page else {
                // The page was touched or dropped meanwhile, so its copy is not needed.
                if let Aged::Stored(e) = *aged {
                    active.cache.free(e);
                }
                continue;
            };
            refused += !self.publish_page(s, active, page, slot, *aged) as usize;
        }
        refused
    }

    /// The page that is still in a slot, once no thread is about to bring it back: after that its
    /// frame may go.
    fn page_in_slot(&self, s: &mut Locked<'_>, slot: usize) -> Option<usize> {
        loop {
            let page = s
                .limbo
                .page(slot)
                .filter(|p| self.state_of(*p) == PageState::Limbo(slot as u64))?;
            if self.is_free(s, page) {
                return Some(page);
            }
            self.wait_for_claim(s);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::{READ_WRITE, Spec, Touch, World};
    use super::*;
    use crate::sys::PAGE_SIZE;
    use crate::testing::noise;

    /// More than are looked at and published at a time.
    const PAGES: usize = PART_PAGES + 16;

    fn world() -> World {
        let world = World::new(Spec { slots: 256, ..Spec::roomy(PAGES) });
        world.map(0, PAGES, READ_WRITE);
        world
    }

    /// Writes a byte and its number to each page.
    fn write(w: &World, pages: impl IntoIterator<Item = usize>, byte: u8) {
        w.write(pages, |page, b| (b[7], b[9]) = (page as u8, byte));
    }

    fn assert_contents(w: &World, pages: impl IntoIterator<Item = usize>, byte: u8) {
        let mut thread = w.thread();
        for page in pages {
            let right = |b: &mut [u8; PAGE_SIZE]| assert_eq!((b[7], b[9]), (page as u8, byte));
            assert_eq!(thread.access(w.at(page), false, right), Touch::Done);
        }
    }

    /// Moves the first pages to limbo, where they lie in their order.
    fn to_limbo(w: &World, pages: usize) {
        let s = &mut w.pager.enter();
        let (taken, _) = w.pager.take_run(s, w.active(), w.at(0), pages, false);
        assert_eq!(taken.pages, pages);
    }

    fn state(w: &World, page: usize) -> PageState {
        w.pager.state_of(w.at(page))
    }

    #[test]
    fn a_batch_goes_but_for_the_pages_that_the_cache_refuses() {
        let w = world();
        write(&w, 0..PAGES, 1);
        // Pages at the border of two parts: one that nobody takes, and one that needs no place.
        let (last, next) = (w.at(PART_PAGES - 1), w.at(PART_PAGES));
        assert_eq!(w.thread().access(last, true, |b| *b = noise(5)), Touch::Done);
        assert_eq!(w.thread().access(next, true, |b| b.fill(0)), Touch::Done);
        to_limbo(&w, PAGES);
        let age_out = |want: usize| {
            let (_s, freed, refused) = w.pager.age_out(w.pager.enter(), w.active(), want);
            (freed, refused)
        };
        assert_eq!(age_out(PAGES - 1), (PAGES - 2, 1));
        assert_eq!([age_out(0), age_out(9)], [(1, 0), (0, 0)], "one at least, if there is one");
        assert_eq!((w.pager.limbo_pages(), w.pager.enter().limbo.ageing()), (0, 0));
        let states = [state(&w, PART_PAGES - 1), state(&w, PART_PAGES)];
        assert_eq!(states, [PageState::Resident, PageState::None]);
        assert_eq!(w.pager.stored_pages(), PAGES as i64 - 2);
        w.check();
        w.thread().access(last, false, |b| assert!(*b == noise(5)));
        assert_contents(&w, (0..PART_PAGES - 1).chain(PART_PAGES + 1..PAGES), 1);
    }

    #[test]
    fn the_copies_of_pages_that_were_touched_or_dropped_meanwhile_are_freed() {
        let w = world();
        let (pager, active) = (&w.pager, w.active());
        write(&w, 0..8, 1);
        to_limbo(&w, 8);
        let mut s = pager.enter();
        let batch = s.limbo.age(8).expect("they are in limbo");
        let (live, copies) = pager.look_at_slots(&s, batch.slot, 8);
        drop(s);
        let mut aged = [Aged::Empty; 8];
        let _ = pager.give_slots_to_cache(active, batch.slot, &live[..8], &copies, &mut aged);
        write(&w, [2], 7);
        w.discard(5, 1);
        let mut s = pager.enter();
        assert_eq!(pager.publish_slots(&mut s, active, batch.slot, &aged), 0);
        let (s, freed, _) = pager.end_batch(s, active, batch, 0, false);
        drop(s);
        assert_eq!((freed, pager.limbo_pages()), (8, 0), "all frames go");
        assert_eq!([state(&w, 2), state(&w, 5)], [PageState::Resident, PageState::None]);
        assert_eq!((pager.stored_pages(), active.cache.counters().stored_pages), (6, 6));
        w.check();
        assert_contents(&w, [0, 1, 3, 4, 6, 7], 1);
        assert_contents(&w, [2], 7);
    }

    #[test]
    fn a_page_that_nobody_wrote_goes_back_to_its_own_copy() {
        // Pages without a copy lie between those with one, and so do pages that were written.
        const NEW: [usize; 2] = [3, TOGETHER + 1];
        const WRITTEN: [usize; 3] = [0, TOGETHER - 1, TOGETHER];
        let w = world();
        let old = || (0..PAGES).filter(|page| !NEW.contains(page));
        let unwritten = || old().filter(|page| !WRITTEN.contains(page));
        write(&w, old(), 1);
        w.page_out();
        let entries: Vec<_> = unwritten().map(|page| state(&w, page)).collect();
        w.active().cache.set_max_kept_bytes(usize::MAX);
        assert_contents(&w, old(), 1);
        write(&w, NEW.into_iter().chain(WRITTEN), 2);
        to_limbo(&w, PAGES);
        w.age_out(PAGES);
        assert_eq!(unwritten().map(|page| state(&w, page)).collect::<Vec<_>>(), entries);
        let clean = w.pager.slot().get(Counter::CleanEvictions);
        let c = w.active().cache.counters();
        assert_eq!((clean, c.changed_pages), (entries.len() as u64, WRITTEN.len() as u64));
        assert_eq!((c.stored_pages, w.pager.stored_pages()), (PAGES as u64, PAGES as i64));
        w.check();
        assert_contents(&w, unwritten(), 1);
        assert_contents(&w, NEW.into_iter().chain(WRITTEN), 2);
    }
}
