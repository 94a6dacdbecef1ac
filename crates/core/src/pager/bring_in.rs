//! Bringing in: all memory of the process back in its place, for somebody who looks at it from
//! outside (a debugger, a core dump). The kernel shows such an observer nothing, or zeros, where a
//! page is out; the program itself would have had a fault.
//!
//! ```text
//!   uzswap bring-in ──> order ──> the evictor, in portions, as far as the limit leaves room
//!   fatal signal with a core limit ──> the thread that got it, over the limit as far as the machine leaves room
//! ```
//!
//! Pages that went out as zeros are nowhere: they are zeros in a core dump, and a debugger is told
//! that they cannot be read.

use super::Pager;
use crate::policy::WINDOW_LOCKED_PAGES;
use crate::sys::PAGE_SHIFT;

/// Pages that come under one hold of the lock: others wait for it.
const TOGETHER: usize = WINDOW_LOCKED_PAGES;
/// Pages that one portion brings: some milliseconds of work, after which the evictor sees to its
/// other duties.
const PORTION_PAGES: usize = 1024;

/// Where the next portion begins.
#[derive(Default)]
pub struct BringIn {
    next: usize,
}

impl Pager {
    /// Brings in a portion of the pages that are out, as long as the limit has room. True: it has
    /// ended.
    pub fn bring_in_portion(&self, b: &mut BringIn) -> bool {
        let mut left = PORTION_PAGES;
        while left > 0 {
            // Pages above the evictor's mark would go again at once.
            if self.excess(TOGETHER as i64) + self.watermarks().1 > 0 {
                return true;
            }
            let Some(pages) = self.bring_in_some(b) else { return true };
            left = left.saturating_sub(pages);
        }
        false
    }

    /// Brings in all pages that are out, for a process that is about to be dumped, until it holds
    /// `most_pages` more than now, whatever the limit. Nothing goes out any more. Returns how many
    /// pages are missing.
    pub fn bring_in_all(&self, most_pages: i64) -> u64 {
        let most = self.used_pages().saturating_add(most_pages).max(self.limit_pages());
        self.keep_all();
        let mut b = BringIn::default();
        while self.used_pages() + TOGETHER as i64 <= most {
            if self.bring_in_some(&mut b).is_none() {
                break;
            }
        }
        self.publish(true);
        self.missing_pages()
    }

    /// Pages with contents that are not in their place.
    pub fn missing_pages(&self) -> u64 {
        let _lock = self.lock();
        let mut missing = 0;
        self.table
            .for_each_occupied(0, usize::MAX, |_, _, e| missing += u64::from(!e.is_resident()));
        missing
    }

    /// Brings the next few pages in. Returns how many were asked for; `None`: there are no more.
    fn bring_in_some(&self, b: &mut BringIn) -> Option<usize> {
        let s = self.enter();
        let run = self.next_out(b.next, TOGETHER)?;
        let (_s, is_all) = self.make_resident(s, run.start, run.end);
        // A page that cannot be had does not keep those behind it from coming.
        let lost = if is_all { None } else { self.next_out(run.start, 1) };
        b.next = lost.map_or(run.end, |lost| lost.end.min(run.end));
        Some(run.len() >> PAGE_SHIFT)
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering;

    use super::super::PROT_READ;
    use super::super::model::{READ_WRITE, STRETCH_PAGES, Spec, World};
    use super::*;
    use crate::sys::PAGE_SIZE;
    use crate::testing::noise;

    const THERE: usize = 300;
    const OUT: usize = PORTION_PAGES + 76;

    fn write(w: &World, pages: impl IntoIterator<Item = usize>) {
        w.write(pages, |page, b| b[7] = page as u8 | 1);
    }

    /// A world whose first pages are there, and whose other pages are stored.
    fn world() -> World {
        let w = World::new(Spec::roomy(THERE + OUT));
        w.map(0, THERE + OUT, READ_WRITE);
        write(&w, THERE..THERE + OUT);
        w.page_out();
        write(&w, 0..THERE);
        w.pager.publish(true);
        assert_eq!(w.pager.missing_pages(), OUT as u64);
        w
    }

    #[test]
    fn pages_come_up_to_the_evictors_mark_and_no_farther() {
        let w = world();
        let leave = |pages: i64| {
            w.pager.tree().limit_pages.store(w.pager.used_pages() + pages, Ordering::Relaxed);
        };
        leave(0);
        let mark = w.pager.watermarks().1;
        leave(mark + TOGETHER as i64 - 1);
        assert!(w.pager.bring_in_portion(&mut BringIn::default()), "there is no room");
        assert_eq!(w.pager.missing_pages(), OUT as u64);
        leave(mark + TOGETHER as i64);
        assert!(w.pager.bring_in_portion(&mut BringIn::default()), "there is no more room");
        assert_eq!(w.pager.missing_pages(), (OUT - TOGETHER) as u64);
        w.check();
    }

    #[test]
    fn a_process_that_is_dumped_grows_as_far_as_it_may_and_nothing_leaves_it() {
        let w = world();
        w.pager.tree().limit_pages.store(w.pager.used_pages(), Ordering::Relaxed);
        let came = 2 * TOGETHER;
        assert_eq!(w.pager.bring_in_all(came as i64), (OUT - came) as u64);
        assert_eq!(w.pager.evict_to_watermark().taken, 0);
        assert_eq!(w.pager.resident_pages(), (THERE + came) as i64);
        assert_eq!(w.pager.bring_in_all(i64::MAX), 0);
        w.check();
    }

    #[test]
    fn memory_that_does_not_come_keeps_no_other_from_coming_in_the_next_portion() {
        let w = world();
        w.protect(THERE, 10, 0);
        let mut b = BringIn::default();
        assert!(!w.pager.bring_in_portion(&mut b), "there is more");
        assert_eq!(w.pager.missing_pages(), 76);
        assert!(w.pager.bring_in_portion(&mut b));
        assert_eq!(w.pager.missing_pages(), 10);
        w.check();
    }

    #[test]
    fn a_run_that_is_missing_ends_with_its_range_and_not_with_its_stretch() {
        let w = World::new(Spec::roomy(3 * STRETCH_PAGES));
        w.map(0, 3 * STRETCH_PAGES, READ_WRITE);
        let (first, last) = (STRETCH_PAGES + 8, 2 * STRETCH_PAGES - 1);
        write(&w, [last + 1, last, first + 3, first + 2, first + 1, first]);
        w.page_out();
        w.protect(first + 2, 1, PROT_READ);
        write(&w, [last + 2, first - 1]);
        let _s = w.pager.enter();
        let page = |addr: usize| (addr - World::BASE) >> PAGE_SHIFT;
        let run = |from: usize| {
            w.pager.next_out(w.at(from), TOGETHER).map(|run| (page(run.start), page(run.end)))
        };
        assert_eq!(run(20), Some((first, first + 2)), "stretches without any are passed");
        assert_eq!(run(first + 2), Some((first + 2, first + 3)));
        assert_eq!(run(first + 4), Some((last, last + 2)));
        assert_eq!((run(last + 1), run(last + 2)), (Some((last + 1, last + 2)), None));
    }

    #[test]
    fn a_page_that_is_lost_keeps_no_other_from_coming() {
        const PAGES: usize = 48;
        let w = World::new(Spec { has_store: true, ..Spec::roomy(PAGES) });
        w.map(0, PAGES, READ_WRITE);
        w.write(0..PAGES, |page, b| *b = noise(page as u64));
        w.page_out();
        w.active().cache.shrink(usize::MAX);
        assert_eq!(w.active().cache.counters().pool_pages, 0, "noise is in the store");
        w.store.expect("it has one").corrupt(|bytes| bytes[20 * PAGE_SIZE] ^= 1);
        assert_eq!(w.pager.bring_in_all(i64::MAX), 1);
        assert_eq!(w.pager.resident_pages(), PAGES as i64 - 1);
    }
}
