//! Notes on how stretches are used, made as their pages come and go. `huge_sampling.rs` judges by
//! them which stretches come whole.

use super::huge_sampling::{Ended, Evidence, Usage};
use super::{Active, Locked, Pager};
use crate::control::Counter;
use crate::region::Range;
use crate::region::table::MiddleEntry;
use crate::sys::{HUGE_BYTES, HUGE_PAGES, PAGE_SIZE};

impl Pager {
    /// Begins to count the pages that come into the stretch at `start`, which has none in memory
    /// and is about to come page by page.
    pub(super) fn begin_probe(&self, s: &mut Locked<'_>, m: &MiddleEntry, start: usize) {
        let usage = Usage::from_bits(m.usage());
        m.set_usage(Usage { is_probed: true, is_first: m.occupied() == 0, ..usage }.bits());
        let ended = s.huge_sampling.begin_probe(start);
        self.judge(s, ended);
    }

    /// Notes that `pages` pages of `range` from `page` on came in, not as a huge page.
    pub(super) fn note_brought(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        range: &Range,
        page: usize,
        pages: usize,
    ) {
        let end = page + pages * PAGE_SIZE;
        self.table.for_each_stretch(page, end, |start, m| {
            let usage = Usage::from_bits(m.usage());
            if usage.is_probed {
                let (at, stop) = (start.max(page), end.min(start + HUGE_BYTES));
                let ended = s.huge_sampling.saw(at, (stop - at) / PAGE_SIZE);
                self.judge(s, ended);
            } else if m.resident() as usize == HUGE_PAGES && self.may_be_huge(active, range, start)
            {
                m.set_usage(s.huge_sampling.saw_full(usage).bits());
            }
        });
    }

    /// Notes that `pages` pages from `page` on went out, not as a huge page.
    pub(super) fn note_taken(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        page: usize,
        pages: usize,
    ) {
        if active.mechanism.as_huge().is_none() {
            return;
        }
        self.table.for_each_stretch(page, page + pages * PAGE_SIZE, |start, m| {
            let usage = Usage::from_bits(m.usage());
            if m.resident() == 0 {
                let ended = if usage.is_probed { s.huge_sampling.end_probe(start) } else { None };
                self.judge(s, ended);
            }
        });
    }

    fn judge(&self, s: &mut Locked<'_>, ended: Option<Ended>) {
        let Some(ended) = ended else { return };
        let Some(m) = self.table.middle(ended.stretch) else { return };
        let usage = Usage::from_bits(m.usage());
        if !usage.is_probed {
            return;
        }
        if m.occupied() == 0 {
            // Its pages were dropped, or mapped anew: pages that were not touched do not count as
            // useless.
            return m.set_usage(Usage { is_probed: false, ..usage }.bits());
        }
        let (usage, wasted) = s.huge_sampling.judge(usage, ended.used);
        m.set_usage(usage.bits());
        self.add(Counter::HugeWastedPages, wasted);
    }

    /// Learns from the huge page at `start`, which has gone to the cache.
    pub(super) fn learn_from_huge(&self, s: &mut Locked<'_>, start: usize, evidence: Evidence) {
        if let Some(m) = self.table.middle(start) {
            let (usage, wasted) = s.huge_sampling.learn(Usage::from_bits(m.usage()), evidence);
            m.set_usage(usage.bits());
            self.add(Counter::HugeWastedPages, wasted);
        }
    }
}
