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
use crate::region::PageState;
use crate::region::table::LEAF_BYTES;
use crate::sys::{PAGE_SHIFT, PAGE_SIZE};

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
        let (start, end) = self.next_missing(b.next)?;
        b.next = end;
        let _ = self.make_resident(s, start, end);
        Some((end - start) >> PAGE_SHIFT)
    }

    /// The first run of pages from `from` on that have contents and are not in their place. With
    /// the lock held.
    pub(super) fn next_missing(&self, from: usize) -> Option<(usize, usize)> {
        let is_missing =
            |page: usize| matches!(self.state_of(page), PageState::Limbo(_) | PageState::Stored(_));
        for i in self.ranges.index_from(from)..self.ranges.len() {
            let range = self.ranges.at(i);
            let mut page = from.max(range.start);
            while page < range.end {
                let is_whole = self.table.middle(page).is_none_or(|m| m.occupied() == m.resident());
                if is_whole {
                    page = (page / LEAF_BYTES + 1) * LEAF_BYTES;
                } else if is_missing(page) {
                    let most = range.end.min(page + TOGETHER * PAGE_SIZE);
                    let end =
                        (page..most).step_by(PAGE_SIZE).find(|p| !is_missing(*p)).unwrap_or(most);
                    return Some((page, end));
                } else {
                    page += PAGE_SIZE;
                }
            }
        }
        None
    }
}
