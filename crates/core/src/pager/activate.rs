//! Switching paging on. Each range is attached first and looked at afterwards: from the attach on
//! only uzswap maps pages there, so the pages found present then are exactly the resident ones.

use core::sync::atomic::Ordering;

use super::{Active, Locked, Pager};
use crate::control::Counter;
use crate::policy::WINDOW_LOCKED_PAGES;
use crate::region::{ADDRESS_END, RangeFlags};
use crate::sys::mem::Mapping;
use crate::sys::{PAGE_SIZE, Result};

impl Pager {
    /// Switches paging on. The caller attaches the ranges (`activate_ranges`) under the same lock.
    pub fn set_active(&self, s: &mut Locked<'_>, active: &'static mut Active) -> Result<()> {
        s.limbo.init(active.slots, active.blocks)?;
        crate::sys::mem::keep_spare()?;
        // The buffer's frames are taken as windows grow: in a tree of many processes most never
        // need them all.
        s.bounce = Some(Mapping::new(WINDOW_LOCKED_PAGES * PAGE_SIZE)?);
        self.slot().mechanism.store(active.kind as u32, Ordering::Release);
        crate::sys::tsc::ask();
        self.room.begin();
        self.add(Counter::Activations, 1);
        self.balance.begin(active.pool_percent.load(Ordering::Relaxed), active.has_store);
        self.limit_pool(active);
        self.active.store(active, Ordering::Release);
        self.follow_tuning();
        Ok(())
    }

    /// Attaches every range and adopts what is present. With the lock held, right after
    /// `set_active`.
    pub fn activate_ranges(&self, s: &mut Locked<'_>) {
        let active = self.active().expect("active");
        let hides = active.mechanism.hides();
        if hides {
            // Hiding memory, if only for a moment, would fail the call that is using it. Memory
            // around it can be paged.
            self.holds.overlapping(0, ADDRESS_END, |start, end| {
                self.note_flag(start, end, RangeFlags::UNREGISTERED, true);
                false
            });
        }
        let mut i = 0;
        while i < self.ranges.len() {
            let range = self.ranges.at(i);
            i += 1;
            if range.flags.has(RangeFlags::UNREGISTERED) {
                continue;
            }
            let in_use = hides && self.holds.is_inflight(range.start, range.end);
            if in_use || active.mechanism.attach(range.start, range.len()).is_err() {
                self.note_flag(range.start, range.end, RangeFlags::UNREGISTERED, true);
                // The list may have been split or merged: find the place again.
                i = self.ranges.index_from(range.end);
                continue;
            }
            self.want_huge(active, &range);
            self.adopt(s, active, range.start, range.end, range.prot);
            self.note_huge_ones(active, &range);
        }
        self.size.store(self.used_pages(), Ordering::Relaxed);
        self.publish(true);
    }

    /// Finds the pages that are present in a range that was just attached.
    fn adopt(&self, s: &mut Locked<'_>, active: &Active, start: usize, end: usize, prot: u32) {
        let mut present = [0u8; 512];
        let unit = self.unit_bytes(active);
        let mut at = start;
        while at < end {
            let stop = ((at / (512 * PAGE_SIZE) + 1) * 512 * PAGE_SIZE).min(end);
            let pages = (stop - at) / PAGE_SIZE;
            if active.mechanism.present(at, &mut present[..pages]).is_ok()
                && present[..pages].iter().any(|p| p & 1 != 0)
            {
                for unit_at in (at / unit * unit..stop).step_by(unit) {
                    let (from, to) = (unit_at.max(at), (unit_at + unit).min(stop));
                    let slice = &present[(from - at) / PAGE_SIZE..(to - at) / PAGE_SIZE];
                    if slice.iter().any(|p| p & 1 != 0) {
                        self.adopt_run(s, active, from, to, prot);
                        self.watch_found(s, from, to);
                    }
                }
            }
            at = stop;
        }
    }

    fn adopt_run(&self, s: &Locked<'_>, active: &Active, from: usize, to: usize, prot: u32) {
        // Pages that the kernel has no mapping to show are not taken to be there: calls would not
        // make them so. By protection faults a page that was never touched is shown as it is.
        if active.mechanism.expose(from, to - from, prot).is_err() {
            return;
        }
        self.note_adopted(s, from, to);
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::{READ_WRITE, STRETCH_PAGES, Spec, Touch, World};
    use super::*;
    use crate::region::{PageState, Range};
    use crate::sys::mechanism::Access;

    /// Maps pages as before paging began: the mechanism does not have them.
    fn map_before(w: &World, page: usize, pages: usize, prot: u32, flags: RangeFlags) {
        let (start, end) = (w.at(page), w.at(page + pages));
        w.fake().map(start, end - start, prot);
        w.pager.ranges.add(Range { start, end, prot, flags }).expect("memory");
    }

    fn touch_before(w: &World, pages: &[usize]) {
        for page in pages {
            let access = w.fake().access(w.at(*page), true, |b| b[9] = *page as u8);
            assert_eq!(access, Access::Done);
        }
    }

    fn activate(w: &World) {
        w.pager.activate_ranges(&mut w.pager.lock());
    }

    fn pages_that(w: &World, are: impl Fn(usize) -> bool) -> Vec<usize> {
        (0..w.spec.pages).filter(|page| are(w.at(*page))).collect()
    }

    fn resident(w: &World) -> Vec<usize> {
        pages_that(w, |page| w.pager.state_of(page) == PageState::Resident)
    }

    fn unpaged(w: &World) -> Vec<usize> {
        let is_unpaged = |r: Range| r.flags.has(RangeFlags::UNREGISTERED);
        pages_that(w, |page| w.pager.ranges.find(page).is_some_and(is_unpaged))
    }

    #[test]
    fn exactly_the_pages_that_are_there_are_resident_and_count() {
        let w = World::new(Spec::roomy(2 * STRETCH_PAGES));
        let (first, last) = (STRETCH_PAGES - 4, STRETCH_PAGES + 9);
        map_before(&w, first, 14, READ_WRITE, RangeFlags::NONE);
        let there = [first, STRETCH_PAGES - 1, STRETCH_PAGES, last];
        touch_before(&w, &there);
        activate(&w);
        assert_eq!(resident(&w), there);
        assert_eq!(w.pager.size.load(Ordering::Relaxed), w.pager.used_pages());
        assert_eq!(w.pager.published_pages(), w.pager.used_pages());
        w.check();
        let mut thread = w.thread();
        let mut look = |page: usize, byte: u8| {
            let touch = thread.access(w.at(page), false, |b| assert_eq!(b[9], byte));
            assert_eq!(touch, Touch::Done);
        };
        look(last, last as u8);
        look(last - 1, 0);
    }

    #[test]
    fn by_protection_faults_a_unit_is_shown_with_its_first_page_as_far_as_the_range_goes() {
        let w = World::new(Spec { hides: true, ..Spec::roomy(16) });
        w.pager.unit_pages_least.store(4, Ordering::Relaxed);
        map_before(&w, 2, 9, READ_WRITE, RangeFlags::NONE);
        map_before(&w, 11, 5, READ_WRITE, RangeFlags::HUGE);
        touch_before(&w, &[3, 9]);
        activate(&w);
        assert_eq!(resident(&w), [2, 3, 8, 9, 10]);
        w.check();
    }

    #[test]
    fn the_buffer_of_a_call_is_left_alone_only_where_memory_is_hidden() {
        for hides in [true, false] {
            let w = World::new(Spec { hides, ..Spec::roomy(16) });
            let thread = w.thread();
            map_before(&w, 0, 16, READ_WRITE, RangeFlags::NONE);
            touch_before(&w, &[5, 9]);
            thread.holds.push(w.at(4), w.at(6), 1);
            w.pager.holds.hold_inflight(w.at(12), w.at(13)).expect("memory");
            activate(&w);
            let (left_alone, paged): (&[usize], &[usize]) =
                if hides { (&[4, 5, 12], &[9]) } else { (&[], &[5, 9]) };
            assert_eq!((&unpaged(&w)[..], &resident(&w)[..]), (left_alone, paged));
            assert!(left_alone.iter().all(|page| w.fake().is_shown(w.at(*page))));
        }
    }

    #[test]
    fn a_range_that_cannot_be_attached_stays_the_kernels_and_the_next_one_is_paged() {
        let w = World::new(Spec::roomy(16));
        // The list merges the second range with the first when it is left alone, too.
        map_before(&w, 0, 4, READ_WRITE, RangeFlags::UNREGISTERED);
        map_before(&w, 4, 4, READ_WRITE, RangeFlags::NONE);
        map_before(&w, 9, 4, READ_WRITE, RangeFlags::NONE);
        touch_before(&w, &[5, 10]);
        w.fake().unmap(w.at(7), PAGE_SIZE);
        activate(&w);
        assert_eq!((unpaged(&w), resident(&w)), ((0..8).collect(), vec![10]));
        assert_eq!(w.fake().access(w.at(6), false, |_| ()), Access::Done);
        assert!(matches!(w.fake().access(w.at(9), false, |_| ()), Access::Fault(_)));
        w.check_but(0..8);
    }
}
