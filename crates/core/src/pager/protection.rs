//! Paging by protection faults: units of pages come in, filled behind PROT_NONE and shown at once.
//! How they go: `hide.rs`.
//!
//! ```text
//!   lock: claim the unit  | load, write behind the protection, show  | lock: new states
//! ```
//!
//! Each change of protection may split a mapping of the kernel's, so pages come and go by units of
//! several where there would be too many (`mappings.rs`).

use super::book::swap_entry;
use super::fill::Serve;
use super::fill::unlocked_with_room;
use super::{Active, Locked, Pager};
use crate::cache::{LoadError, Origin, Print};
use crate::control::trace::Kind;
use crate::latency::FaultKind;
use crate::policy::{WINDOW_LEAST_PAGES, WINDOW_LOCKED_PAGES};
use crate::region::{PageState, Range};
use crate::sys::mechanism::Filled;
use crate::sys::{PAGE_SHIFT, PAGE_SIZE};

/// The result of a run that was filled and shown without the lock.
struct Shown {
    /// Where the pages that are shown end: the kernel may have no mapping left for the others.
    end: usize,
    from: Origin,
    /// Bits of the pages whose copies the cache keeps; 0 for a run longer than
    /// [`WINDOW_LOCKED_PAGES`].
    kept: u64,
}

/// Why a run was not shown. Nothing has changed: pages that were loaded are still stored.
enum Hidden {
    Lost(LoadError),
    /// The kernel did not take the pages.
    Unfilled,
    /// The kernel has no mapping left to show part of one.
    NoMapping,
}

impl Pager {
    /// Serves by protection faults: the whole unit around the page, filled behind its protection,
    /// then shown at once.
    pub(super) fn serve_unit(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        range: Range,
        page: usize,
        want: usize,
        tries: u32,
    ) -> Serve {
        if !self.is_free(s, page) {
            // Another thread has it in hand: that says nothing about the kernel's mappings.
            return Serve::Changed;
        }
        let (start, end) = match self.unit_with_room(&range, page, want, tries == 0) {
            Ok(unit) => self.free_around(s, page, unit),
            Err(pages) => return Serve::NeedRoom(pages),
        };
        match self.serve_run(s, active, &range, page, (start, end)) {
            // A neighbour that cannot be read, or written, matters to no thread before it is
            // touched.
            Serve::Lost(_) | Serve::Again if end - start > PAGE_SIZE => {
                self.serve_run(s, active, &range, page, (page, page + PAGE_SIZE))
            }
            served => served,
        }
    }

    /// Serves the free pages from `start` to `end`, which have room.
    fn serve_run(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        range: &Range,
        page: usize,
        (start, end): (usize, usize),
    ) -> Serve {
        if (start..end).step_by(PAGE_SIZE).any(|at| self.table.ensure(at).is_err()) {
            return Serve::Again;
        }
        let found = match self.state_of(page) {
            PageState::None => FaultKind::FirstTouch,
            PageState::Limbo(_) | PageState::Resident => FaultKind::LimboHit,
            PageState::Stored(_) => FaultKind::PoolLoad,
        };
        let pages = (end - start) >> PAGE_SHIFT;
        let missing = self.missing_between(start, end);
        self.claim(s, start, pages);
        self.count_coming(missing);
        // One page has room on the stack. The buffer for several may be in use by another thread.
        let buffer = if pages > 1 { s.bounce.take() } else { None };
        let shown = unlocked_with_room(s, buffer, |bytes| {
            self.fill_and_show(active, range, (start, end), bytes)
        });
        self.end_claim(s, start, pages);
        if let Ok(shown) = &shown {
            let run = (start, shown.end);
            self.with_borders(s, active, run, || self.note_shown(s, start, shown.end, shown.kept));
            self.trace_pages(Kind::Around, start, page.min(shown.end));
        }
        let shown_end = shown.as_ref().map_or(start, |shown| shown.end);
        self.count_not_come(self.missing_between(shown_end, end));
        let is_whole_range = start <= range.start && range.end <= end;
        match shown {
            Err(Hidden::Lost(error)) => Serve::Lost(error),
            Err(Hidden::Unfilled) => Serve::Again,
            Ok(shown) if page < shown_end => {
                if shown_end < end && !is_whole_range {
                    self.need_fewer_mappings(pages);
                }
                let from_store = shown.from == Origin::Store;
                let kind = if from_store { FaultKind::StoreLoad } else { found };
                Serve::Done((shown_end - page) >> PAGE_SHIFT, kind)
            }
            // Other ranges may give mappings back.
            _ if is_whole_range => Serve::Again,
            _ => {
                self.need_fewer_mappings(pages);
                Serve::Changed
            }
        }
    }

    /// The unit around a page, and the units after it that `want` pages reach into, as far as there
    /// is room for them. `Err`: the pages to make room for, where there is none for the page's own
    /// unit, or, with `may_wait`, for a window.
    fn unit_with_room(
        &self,
        range: &Range,
        page: usize,
        want: usize,
        may_wait: bool,
    ) -> core::result::Result<(usize, usize), i64> {
        let unit = self.unit_pages() * PAGE_SIZE;
        let (start, least_end) = around(range, page, unit);
        // The copies of no more pages are kept.
        let wanted = (want.min(WINDOW_LOCKED_PAGES) * PAGE_SIZE).next_multiple_of(unit).max(unit);
        let mut end = ((page & !(unit - 1)) + wanted).min(range.end);
        let mut coming = self.coming_between(start, end);
        let has_room = |coming: i64| coming == 0 || self.excess(coming) <= 0;
        let window = coming.min(self.unit_pages_by_size().max(WINDOW_LOCKED_PAGES) as i64);
        if may_wait && want >= WINDOW_LEAST_PAGES && !has_room(window) {
            return Err(window);
        }
        while end > least_end && !has_room(coming) {
            // To bring fewer pages is better than to wait for room.
            let next = least_end.max((end - PAGE_SIZE) & !(unit - 1));
            coming -= self.coming_between(next, end);
            end = next;
        }
        // Where the kernel is short of mappings units are larger, but room for one of the ordinary
        // size is enough.
        let least = coming.min(self.unit_pages_by_size() as i64);
        if end > least_end || has_room(least) { Ok((start, end)) } else { Err(least) }
    }

    /// Pages that need room to come. Those of limbo count already.
    fn coming_between(&self, start: usize, end: usize) -> i64 {
        let is_coming =
            |at: &usize| matches!(self.state_of(*at), PageState::None | PageState::Stored(_));
        (start..end).step_by(PAGE_SIZE).filter(is_coming).count() as i64
    }

    fn missing_between(&self, start: usize, end: usize) -> usize {
        let is_missing = |at: &usize| self.state_of(*at) != PageState::Resident;
        (start..end).step_by(PAGE_SIZE).filter(is_missing).count()
    }

    /// The part of a unit around a free page that nobody has claimed.
    pub(super) fn free_around(
        &self,
        s: &Locked<'_>,
        page: usize,
        (start, end): (usize, usize),
    ) -> (usize, usize) {
        let mut first = page;
        while first > start && self.is_free(s, first - PAGE_SIZE) {
            first -= PAGE_SIZE;
        }
        (first, page + self.free_run(s, page, (end - page) >> PAGE_SHIFT) * PAGE_SIZE)
    }

    /// Writes the stored pages of a claimed, hidden run into place and shows the run, without the
    /// lock. `bytes`: room for some pages.
    fn fill_and_show(
        &self,
        active: &Active,
        range: &Range,
        (start, end): (usize, usize),
        bytes: &mut [[u8; PAGE_SIZE]],
    ) -> core::result::Result<Shown, Hidden> {
        let mut shown = Shown { end: start, from: Origin::Memory, kept: 0 };
        let mut prints = [None; WINDOW_LOCKED_PAGES];
        let keeps = (end - start) >> PAGE_SHIFT <= WINDOW_LOCKED_PAGES;
        let mut at = start;
        while at < end {
            let first = if keeps { (at - start) >> PAGE_SHIFT } else { WINDOW_LOCKED_PAGES };
            let (pages, from) = self.load_run(active, (at, end), bytes, &mut prints[first..])?;
            if from == Origin::Store {
                shown.from = from;
            }
            let loaded = bytes[..pages].as_flattened();
            if pages > 0 && active.mechanism.fill(at, loaded) != Filled::All {
                return Err(Hidden::Unfilled);
            }
            at += pages.max(1) * PAGE_SIZE;
        }
        shown.end = show(active, range, start, end);
        if shown.end == start {
            return Err(Hidden::NoMapping);
        }
        for (i, at) in (start..shown.end).step_by(PAGE_SIZE).enumerate() {
            if let PageState::Stored(raw) = self.state_of(at) {
                let print = prints.get(i).copied().flatten();
                let is_kept = active.cache.keep(swap_entry(raw), print);
                shown.kept |= u64::from(is_kept).checked_shl(i as u32).unwrap_or(0);
            }
        }
        Ok(shown)
    }

    /// Loads the stored pages from `start` on, as many as are neighbours and have room, and takes
    /// the fingerprints of those whose copies are to be kept. `prints`: room for those, or none.
    fn load_run(
        &self,
        active: &Active,
        (start, end): (usize, usize),
        bytes: &mut [[u8; PAGE_SIZE]],
        prints: &mut [Option<Print>],
    ) -> core::result::Result<(usize, Origin), Hidden> {
        let (mut pages, mut from) = (0, Origin::Memory);
        for (at, into) in (start..end).step_by(PAGE_SIZE).zip(bytes) {
            let PageState::Stored(raw) = self.state_of(at) else { break };
            let entry = swap_entry(raw);
            let loaded = active.cache.swap_in_from(entry, into).map_err(Hidden::Lost)?;
            if loaded.from == Origin::Store {
                from = Origin::Store;
            }
            if let Some(print) = prints.get_mut(pages) {
                *print = active.cache.print(loaded, into);
            }
            pages += 1;
        }
        Ok((pages, from))
    }
}

/// Shows a run that is filled. Returns where the part that is shown ends.
fn show(active: &Active, range: &Range, start: usize, end: usize) -> usize {
    let is_shown = |at: usize, len: usize| active.mechanism.expose(at, len, range.prot).is_ok();
    if is_shown(start, end - start) {
        return end;
    }
    if end - start == PAGE_SIZE {
        return start;
    }
    // The kernel has changed one of its mappings after the other, up to one that it cannot split,
    // and does not say which. A page that is shown and taken to be hidden would be written over. So
    // each is asked for: one that is shown already needs no mapping.
    (start..end).step_by(PAGE_SIZE).find(|at| !is_shown(*at, PAGE_SIZE)).unwrap_or(end)
}

/// The unit of `bytes`, a power of two, that a page is in, clipped to the range.
fn around(range: &Range, page: usize, bytes: usize) -> (usize, usize) {
    let start = page & !(bytes - 1);
    (start.max(range.start), (start + bytes).min(range.end))
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering;

    use super::super::model::{READ_WRITE, Spec, Touch, World};
    use super::*;
    use crate::control::Counter;
    use crate::store::testing::Fault;
    use crate::testing::{Choices, Random};

    const PAGES: usize = 32;

    /// A world whose pages are written, with protection faults.
    fn world() -> World {
        let world = World::new(Spec { has_store: true, hides: true, ..Spec::roomy(PAGES) });
        world.map(0, PAGES, READ_WRITE);
        let (mut thread, mut noise) = (world.thread(), Random::new(3));
        for page in 0..PAGES {
            // Half of them are noise, which no codec makes smaller.
            let touch = thread.access(world.at(page), true, |b| {
                b.fill_with(|| if page % 2 == 0 { 1 } else { noise.below(256) as u8 });
                b[7] = page as u8;
            });
            assert_eq!(touch, Touch::Done);
        }
        world
    }

    fn read(world: &World, page: usize) -> Touch {
        world.thread().access(world.at(page), false, |b| assert_eq!(b[7], page as u8))
    }

    #[test]
    fn pages_that_nobody_wrote_leave_again_without_being_compressed() {
        let w = world();
        w.page_out();
        assert_eq!(w.pager.stored_pages(), PAGES as i64);
        w.active().cache.set_max_kept_bytes(1 << 20);
        (0..PAGES).for_each(|page| assert_eq!(read(&w, page), Touch::Done));
        w.thread().access(w.at(4), true, |b| b[100] = 9);
        w.check();
        w.page_out();
        let clean = w.pager.slot().get(Counter::CleanEvictions);
        assert!(0 < clean && clean < PAGES as u64, "{clean}");
        w.thread().access(w.at(4), false, |b| assert_eq!((b[7], b[100]), (4, 9)));
        (0..PAGES).for_each(|page| assert_eq!(read(&w, page), Touch::Done));
        w.check();
    }

    #[test]
    fn a_neighbour_that_cannot_be_read_is_not_missed_before_it_is_touched() {
        let w = world();
        w.pager.unit_pages_least.store(4, Ordering::Relaxed);
        w.page_out();
        w.active().cache.give_buffers_back();
        w.store.unwrap().set_fault(Fault::From(1));
        // Page 8 compresses, so it is in the pool.
        assert_eq!((read(&w, 8), read(&w, 9)), (Touch::Done, Touch::Lost));
        w.store.unwrap().set_fault(Fault::Never);
        assert_eq!(read(&w, 9), Touch::Done);
        w.check();
    }

    #[test]
    fn a_page_that_another_has_in_hand_does_not_make_units_grow() {
        let w = world();
        w.page_out();
        for unit in [1, 4] {
            w.pager.unit_pages_least.store(unit, Ordering::Relaxed);
            let mut s = w.pager.enter();
            w.pager.claim(&mut s, w.at(6), 1);
            let range = w.pager.ranges.find(w.at(6)).unwrap();
            let served = w.pager.serve_unit(&mut s, w.active(), range, w.at(6), 8, 0);
            assert!(matches!(served, Serve::Changed));
            w.pager.end_claim(&mut s, w.at(6), 1);
            assert_eq!(w.pager.unit_pages(), unit);
        }
        w.check();
    }

    #[test]
    fn units_are_as_small_as_the_kernels_mappings_allow() {
        let w = world();
        assert_eq!(w.pager.unit_pages(), 1);
        w.sweep(false);
        assert!(matches!(w.pager.state_of(w.at(0)), PageState::Limbo(_)));
        w.fake().set_trouble(1);
        assert_eq!(read(&w, 0), Touch::Done);
        w.fake().set_trouble(0);
        assert_eq!(w.pager.unit_pages(), 2, "the kernel was short of them");
        w.check();
    }

    #[test]
    fn a_page_that_is_there_and_hidden_is_shown_with_others_if_not_alone() {
        let w = world();
        // Nobody took it, and there was no mapping to show it again.
        w.fake().hide(w.at(5), PAGE_SIZE).unwrap();
        w.fake().set_out_of_mappings(true);
        assert_eq!(read(&w, 5), Touch::Done);
        w.fake().set_out_of_mappings(false);
        w.check();
    }

    #[test]
    fn a_page_found_at_the_start_for_which_there_is_no_mapping_comes_for_a_call() {
        let w = World::new(Spec { hides: true, ..Spec::roomy(PAGES) });
        w.map(0, PAGES, READ_WRITE);
        assert_eq!(w.fake().write_behind(w.at(5), &[7; PAGE_SIZE]), Filled::All);
        w.fake().set_out_of_mappings(true);
        w.pager.activate_ranges(&mut w.pager.lock());
        let is_right = |_, b: &mut [u8; PAGE_SIZE]| assert_eq!(*b, [7; PAGE_SIZE]);
        assert!(!w.pager.table.get(w.at(5)).is_some_and(|e| e.is_writable()), "it is hidden");
        assert!(w.thread().call(w.at(5), 1, true, is_right));
        w.fake().set_out_of_mappings(false);
        w.check();
    }

    #[test]
    fn a_page_that_was_shown_before_the_kernel_was_short_of_mappings_is_resident() {
        let w = world();
        w.sweep(false);
        assert_eq!(read(&w, 1), Touch::Done);
        w.pager.unit_pages_least.store(4, Ordering::Relaxed);
        let serve = |page: usize| {
            let range = w.pager.ranges.find(w.at(page)).unwrap();
            w.pager.serve_unit(&mut w.pager.enter(), w.active(), range, w.at(page), 1, 0)
        };
        // Of this unit page 0 is shown, and page 1 is there already.
        w.fake().set_trouble(1);
        assert!(matches!(serve(2), Serve::Done(2, _)));
        w.fake().set_trouble(0);
        w.check();
        // Of this one the last page is never shown.
        w.fake().unmap(w.at(7), PAGE_SIZE);
        assert!(matches!(serve(5), Serve::Done(2, _)));
        w.unmap(7, 1);
        w.check();
        (0..PAGES).filter(|page| *page != 7).for_each(|p| assert_eq!(read(&w, p), Touch::Done));
    }

    #[test]
    fn no_page_is_said_to_be_writable_that_the_kernel_found_no_mapping_for() {
        let w = world();
        w.pager.unit_pages_least.store(4, Ordering::Relaxed);
        assert!(w.fork(&mut w.thread(), |_| ()));
        w.fake().set_trouble(1);
        assert_eq!(w.thread().access(w.at(5), true, |b| b[100] = 9), Touch::Done);
        w.fake().set_trouble(0);
        // Its neighbours, too, are as their words say.
        w.check();
    }

    #[test]
    fn the_part_of_a_unit_that_another_thread_has_is_left_to_it() {
        let w = world();
        let mut s = w.pager.enter();
        w.pager.claim(&mut s, w.at(2), 1);
        w.pager.claim(&mut s, w.at(6), 2);
        let unit = (w.at(0), w.at(8));
        assert_eq!(w.pager.free_around(&s, w.at(4), unit), (w.at(3), w.at(6)));
        assert_eq!(w.pager.free_around(&s, w.at(0), unit), (w.at(0), w.at(2)));
        w.pager.end_claim(&mut s, w.at(2), 1);
        w.pager.end_claim(&mut s, w.at(6), 2);
    }

    #[test]
    fn windows_are_as_large_as_their_room_and_wait_for_it_once() {
        let w = world();
        w.page_out();
        let room = |room: i64| {
            w.pager.tree().limit_pages.store(w.pager.used_pages() + room, Ordering::Relaxed);
            let range = w.pager.ranges.find(w.at(0)).expect("it is mapped");
            let unit = |may_wait: bool| {
                let unit = w.pager.unit_with_room(&range, w.at(4), 16, may_wait);
                unit.map(|(start, end)| {
                    ((start - w.at(0)) >> PAGE_SHIFT, (end - start) >> PAGE_SHIFT)
                })
            };
            [unit(true), unit(false)]
        };
        assert_eq!(room(100), [Ok((4, 16)); 2]);
        // A process has room for as many as it needs to make progress, so it has to have more.
        w.pager.resident.fetch_add(1000, Ordering::Relaxed);
        assert_eq!(room(16), [Ok((4, 16)); 2]);
        assert_eq!(room(10), [Err(16), Ok((4, 10))]);
        assert_eq!(room(1), [Err(16), Ok((4, 1))]);
        assert_eq!(room(0), [Err(16), Err(1)]);
        w.pager.unit_pages_least.store(4, Ordering::Relaxed);
        assert_eq!(room(10), [Err(16), Ok((4, 8))]);
        w.pager.unit_pages_least.store(1, Ordering::Relaxed);
        // Pages of limbo count already.
        w.pager.resident.fetch_sub(1000, Ordering::Relaxed);
        drop(w.write([6, 5, 4], |page, b| b[7] = page as u8));
        w.sweep(false);
        w.pager.resident.fetch_add(1000, Ordering::Relaxed);
        assert_eq!(room(-5), [Err(13), Ok((4, 3))]);
        w.pager.resident.fetch_sub(1000, Ordering::Relaxed);
        w.check();
    }
}
