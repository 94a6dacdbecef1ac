//! Which stretches are huge pages, or may become so: what the program and the options want, and
//! what the kernel has there as far as we know.
//!
//! A stretch is *small* once its pages come or go one by one: the kernel has a table of small pages
//! there. A note that is out of date makes a huge page slow, never wrong (`huge.rs`).

use super::{Active, Pager, is_data};
use crate::control::HugePages;
use crate::region::table::MiddleEntry;
use crate::region::{Mapped, Range, RangeFlags};
use crate::sys::{HUGE_BYTES, HUGE_PAGES, PAGE_SIZE};

impl Pager {
    /// Whether there may be huge pages at all.
    pub fn makes_huge_pages(&self) -> bool {
        self.active().is_some_and(|a| a.blocks > 0 && a.huge_pages != HugePages::Never)
    }

    /// With [`HugePages::Always`], asks the kernel for huge pages in a new range. Unasked, it makes
    /// a table of small pages for the very fault that is to bring the huge one.
    pub(super) fn want_huge(&self, active: &Active, range: &Range) {
        if active.blocks > 0
            && active.huge_pages == HugePages::Always
            && !range.flags.has(RangeFlags::NOT_HUGE)
            && range.len() >= HUGE_BYTES
        {
            active.mechanism.want_huge(range.start, range.len());
        }
    }

    /// Whether the stretch around `page` is, or may become, a huge page of `range`.
    pub(super) fn may_be_huge(&self, active: &Active, range: &Range, page: usize) -> bool {
        let start = page / HUGE_BYTES * HUGE_BYTES;
        let asked = match active.huge_pages {
            HugePages::Never => false,
            HugePages::Madvise => range.flags.has(RangeFlags::HUGE),
            HugePages::Always => !range.flags.has(RangeFlags::NOT_HUGE),
        };
        asked
            && active.blocks > 0
            && range.start <= start
            && start + HUGE_BYTES <= range.end
            && is_data(range.prot)
            && !range.flags.has(RangeFlags::UNREGISTERED)
    }

    /// The start of the huge page of `range` that `addr` is in, if there is one.
    pub(super) fn huge_page(&self, active: &Active, range: &Range, addr: usize) -> Option<usize> {
        (self.is_in_huge(addr) && self.may_be_huge(active, range, addr))
            .then_some(addr / HUGE_BYTES * HUGE_BYTES)
    }

    /// Whether the stretch around `addr` came as a huge page and all of it is still there, whatever
    /// has become of its range since.
    pub(super) fn is_in_huge(&self, addr: usize) -> bool {
        let is_whole =
            |m: &MiddleEntry| m.mapped() == Mapped::Huge && m.resident() as usize == HUGE_PAGES;
        self.table.middle(addr).is_some_and(is_whole)
    }

    /// How many of `pages` pages from `page` on a window may have: one that reached into a stretch
    /// that may be huge would make it small.
    pub(super) fn within_stretch(
        &self,
        active: &Active,
        range: &Range,
        page: usize,
        pages: usize,
    ) -> usize {
        let next = page / HUGE_BYTES * HUGE_BYTES + HUGE_BYTES;
        let most = (next - page) / PAGE_SIZE;
        if pages > most && self.may_be_huge(active, range, next) { most } else { pages }
    }

    /// Notes that pages around `page` come or go one by one: the kernel has a table of small pages
    /// there.
    pub(super) fn note_small(&self, page: usize) {
        if let Some(m) = self.table.middle(page) {
            m.set_mapped(Mapped::Small);
        }
    }

    /// Notes, when paging begins, the stretches that the kernel has made huge in `range`, whose
    /// pages were just adopted: they go out whole.
    pub(super) fn note_huge_ones(&self, active: &Active, range: &Range) {
        let Some(mechanism) = active.mechanism.as_huge() else { return };
        self.table.for_each_stretch(range.start, range.end, |start, m| {
            let is_whole =
                m.resident() as usize == HUGE_PAGES && self.may_be_huge(active, range, start);
            if is_whole && mechanism.is_known_huge(start) {
                m.set_mapped(Mapped::Huge);
            }
        });
    }

    /// Notes, before fork and with the lock held, that all stretches are small: a huge page shared
    /// with the child is written page by page.
    pub(super) fn note_all_small(&self) {
        for i in 0..self.ranges.len() {
            let range = self.ranges.at(i);
            self.table.for_each_stretch(range.start, range.end, |_, m| {
                if m.resident() > 0 {
                    m.set_mapped(Mapped::Small);
                }
            });
        }
    }
}
