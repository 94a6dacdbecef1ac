//! Frames that are kept without a page: a stock of limbo's for the next window, and a huge page's
//! for the next huge page. They count as limbo's until they are given back to the kernel.

use super::{Active, Locked, Pager};
use crate::policy::limbo::Batch;
use crate::sys::HUGE_PAGES;

impl Pager {
    /// Gives the frames of a batch of the stock back to the kernel. Returns whether there was
    /// one.
    pub(super) fn give_stock_back(&self, s: &mut Locked<'_>, active: &Active) -> bool {
        let Some(batch) = s.limbo.take_stock(usize::MAX) else { return false };
        self.release_batch(s, active, batch, true);
        true
    }

    /// Gives the kernel back the frames that were kept for pages that come in: those of a window,
    /// or else of a huge page. Returns whether there were any.
    pub(super) fn give_frame_back(&self, s: &mut Locked<'_>, active: &Active) -> bool {
        if self.give_stock_back(s, active) {
            return true;
        }
        let Some(slot) = s.limbo.kept_frame() else { return false };
        self.release_block(s, active, slot);
        true
    }

    /// Frees a batch without pages. `has_frames`: not all of its frames went to the program.
    pub(super) fn release_batch(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        batch: Batch,
        has_frames: bool,
    ) {
        if has_frames {
            active.mechanism.release_slots(batch.slot, batch.count);
        }
        s.limbo.finish(batch);
        self.count_frames(-(batch.count as i64));
    }

    /// Frees a block without pages, and its frame.
    pub(super) fn release_block(&self, s: &mut Locked<'_>, active: &Active, slot: usize) {
        active.mechanism.release_slots(slot, HUGE_PAGES);
        s.limbo.finish_block(slot);
        self.count_frames(-(HUGE_PAGES as i64));
    }

    /// Whether there is room for a huge page. A frame that was kept counts already.
    pub(super) fn has_room_for_huge(&self, s: &Locked<'_>) -> bool {
        let more = if s.limbo.kept_frame().is_some() { 0 } else { HUGE_PAGES as i64 };
        self.excess(more) <= 0
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::{READ_WRITE, STRETCH_PAGES, Spec, Touch, World};
    use super::*;
    use core::sync::atomic::Ordering;

    /// Pages of the window whose frames are kept.
    const PAGES: usize = 64;
    const HUGE: i64 = HUGE_PAGES as i64;

    /// A world that keeps the frames of a huge page and of a window.
    fn world() -> World {
        let w = World::new(Spec { slots: 256, blocks: 2, ..Spec::roomy(2 * STRETCH_PAGES) });
        // The second stretch is not mapped as a whole, so its pages are small ones.
        w.map(0, STRETCH_PAGES + PAGES, READ_WRITE);
        let write = |page: usize| {
            assert_eq!(w.thread().access(w.at(page), true, |b| b[9] = 1), Touch::Done);
        };
        write(0);
        w.sweep(false);
        w.age_out(STRETCH_PAGES);
        (STRETCH_PAGES..STRETCH_PAGES + PAGES).for_each(write);
        w.sweep(false);
        assert!(w.stock());
        assert_eq!(w.pager.limbo_pages(), PAGES as i64 + HUGE);
        w
    }

    fn give_back(w: &World) -> bool {
        w.pager.give_frame_back(&mut w.pager.enter(), w.active())
    }

    #[test]
    fn frames_of_a_window_go_before_those_of_a_huge_page_and_count_no_more() {
        let w = world();
        let kept = w.pager.enter().limbo.kept_frame().expect("a huge page's frame");
        assert!(give_back(&w) && !w.pager.enter().limbo.has_stock());
        assert_eq!((w.pager.limbo_pages(), w.fake().has_frames(0, 1)), (HUGE, false));
        assert!(w.fake().has_frames(kept, HUGE_PAGES));
        assert!(give_back(&w) && w.pager.enter().limbo.kept_frame().is_none());
        assert!((kept..kept + HUGE_PAGES).all(|slot| !w.fake().has_frames(slot, 1)));
        assert!(!give_back(&w), "there are no others");
        assert_eq!(w.pager.limbo_pages(), 0);
        let mut s = w.pager.enter();
        assert!(s.limbo.peek_free(1).is_some() && s.limbo.in_use() == 0);
        drop(s);
        w.check();
    }

    #[test]
    fn slots_whose_frames_are_the_programs_now_are_free_without_a_call_of_the_kernel() {
        let w = world();
        let mut s = w.pager.enter();
        let batch = s.limbo.take_stock(PAGES).expect("the window's");
        w.pager.release_batch(&mut s, w.active(), batch, false);
        assert!(w.fake().has_frames(batch.slot, batch.count), "nobody has asked for them");
        assert!(s.limbo.peek_free(1).is_some() && s.limbo.in_use() == HUGE_PAGES);
        assert_eq!(w.pager.limbo_pages(), HUGE);
    }

    #[test]
    fn a_frame_that_was_kept_is_room_for_a_huge_page() {
        let w = world();
        let has_room = |limit: i64| {
            w.pager.tree().limit_pages.store(limit, Ordering::Relaxed);
            w.pager.has_room_for_huge(&w.pager.enter())
        };
        let used = w.pager.used_pages();
        assert_eq!([used - 1, used].map(has_room), [false, true]);
        while give_back(&w) {}
        let used = w.pager.used_pages() + HUGE;
        assert_eq!([used - 1, used].map(has_room), [false, true]);
    }
}
