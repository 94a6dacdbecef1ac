//! Frames that are kept without a page: a stock of limbo's for the next window, and a huge page's
//! for the next huge page. They count as limbo's until they are given back to the kernel.

use super::{Active, Locked, Pager};
use crate::policy::limbo::Stretch;
use crate::sys::HUGE_PAGES;

impl Pager {
    /// Gives the frames of a stretch of the stock back to the kernel. Returns whether there was
    /// one.
    pub(super) fn give_stock_back(&self, s: &mut Locked<'_>, active: &Active) -> bool {
        let Some(stretch) = s.limbo.take_stock(usize::MAX) else { return false };
        self.release_stretch(s, active, stretch, true);
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

    /// Frees a stretch without pages. `has_frames`: not all of its frames went to the program.
    pub(super) fn release_stretch(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        stretch: Stretch,
        has_frames: bool,
    ) {
        if has_frames {
            active.mechanism.release_slots(stretch.slot, stretch.count);
        }
        s.limbo.finish(stretch);
        self.count_frames(-(stretch.count as i64));
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
