//! Watching how a program uses its memory while it has all that it wants (`uzswap estimate --
//! COMMAND`).
//!
//! ```text
//!   fault of a watched page ──> served, recorded ──> among those that came last ──> limbo ──> its next touch is a fault
//! ```
//!
//! One page in many is *watched*, chosen by its address: it goes to limbo a moment after it came,
//! so that its next use after a while is a fault, and a record in the ring. This is spatial
//! sampling (Waldspurger et al., Efficient MRC construction with SHARDS, 2015): the watched pages
//! that were used in between, times the number of pages to a watched one, are all pages that were.
//! A page that is not watched is recorded only when it is discarded or moves.
//!
//! Memory is not short meanwhile, so no other page leaves the program.

use core::sync::atomic::Ordering;

use super::{Active, Locked, Pager};
use crate::control::trace::is_watched;
use crate::policy::BATCH_PAGES;
use crate::region::PageState;
use crate::sys::{PAGE_SHIFT, PAGE_SIZE};

/// The part of the watched pages, as a divisor, that stay in the program because they came last:
/// their touches are hidden.
const HIDDEN_PART: usize = 24;
/// The fewest watched pages that stay. An instruction needs at most six pages at once: two operands
/// and itself, each across a border (a gather goes on where it was). It would begin again for ever
/// if one of the six left for another.
const HIDDEN_LEAST: usize = 8;
/// Watched pages that can be in the program at most, with those that wait until the system call
/// that uses them has ended.
const WATCHED_MOST: usize = 4096;
/// Watched pages that the arrival of one may try to take out.
const TRIES: usize = 4;
/// Slots of limbo that watched pages take at most: a page that is back leaves its frame there until
/// those before it have gone, too.
const SLOTS_MOST: usize = 4096;
/// The watched pages that are in the program, in the order in which they came: a ring.
pub(super) struct Watched {
    pages: [usize; WATCHED_MOST],
    first: usize,
    len: usize,
}

impl Watched {
    pub const fn new() -> Watched {
        Watched { pages: [0; WATCHED_MOST], first: 0, len: 0 }
    }

    /// Puts a page in. A page that finds no place is not watched any more.
    fn push(&mut self, page: usize) {
        if self.len < WATCHED_MOST {
            self.pages[(self.first + self.len) % WATCHED_MOST] = page;
            self.len += 1;
        }
    }

    /// Takes out the page that has been in for longest, if there are more than `stay`.
    fn pop(&mut self, stay: usize) -> Option<usize> {
        (self.len > stay).then(|| {
            let page = self.pages[self.first];
            self.first = (self.first + 1) % WATCHED_MOST;
            self.len -= 1;
            page
        })
    }
}

impl Pager {
    /// Begins to watch pages, before paging begins.
    pub fn begin_to_watch(&self) {
        self.is_watching.store(true, Ordering::Release);
    }

    /// How many pages a fault at `page` may bring: pages that were taken out to be watched come one
    /// by one, each for its own touch.
    #[inline]
    pub(super) fn watch_window(&self, page: usize, want: usize) -> usize {
        if self.is_watching() && self.state_of(page) != PageState::None { 1 } else { want }
    }

    /// Lets the watched ones among `pages` pages, which have just come in, leave again.
    #[inline]
    pub(super) fn watch_arrivals<'a>(
        &'a self,
        s: Locked<'a>,
        active: &Active,
        page: usize,
        pages: usize,
    ) -> Locked<'a> {
        if self.is_watching() { self.take_watched(s, active, page, pages) } else { s }
    }

    #[cold]
    fn take_watched<'a>(
        &'a self,
        mut s: Locked<'a>,
        active: &Active,
        page: usize,
        pages: usize,
    ) -> Locked<'a> {
        let log2 = self.watch_log2();
        for page in (page..page + pages * PAGE_SIZE).step_by(PAGE_SIZE) {
            if is_watched((page >> PAGE_SHIFT) as u64, log2) {
                s.watched.push(page);
                s = self.take_oldest(s, active, TRIES);
            }
        }
        s
    }

    /// Notes pages of `[start, end)` that are there and did not come by a fault: the watched ones
    /// among them leave with the next tick.
    pub(super) fn watch_found(&self, s: &mut Locked<'_>, start: usize, end: usize) {
        if self.is_watching() {
            let log2 = self.watch_log2();
            (start..end)
                .step_by(PAGE_SIZE)
                .filter(|page| is_watched((page >> PAGE_SHIFT) as u64, log2))
                .filter(|page| self.state_of(*page) == PageState::Resident)
                .for_each(|page| s.watched.push(page));
        }
    }

    /// Takes out the pages that could not go when others came: those in use by system calls.
    pub fn watch_rest(&self) {
        if let (Some(active), true) = (self.active(), self.is_watching()) {
            let s = self.enter();
            let len = s.watched.len;
            self.take_oldest(s, active, len);
        }
    }

    fn take_oldest<'a>(&'a self, mut s: Locked<'a>, active: &Active, tries: usize) -> Locked<'a> {
        let all = self.needed_pages().max(0) as usize >> self.watch_log2();
        let stay = (all / HIDDEN_PART).max(HIDDEN_LEAST);
        for _ in 0..tries {
            let Some(page) = s.watched.pop(stay) else { break };
            s = self.take_to_watch(s, active, page);
        }
        s
    }

    /// Takes a page out, if it can go.
    fn take_to_watch<'a>(&'a self, mut s: Locked<'a>, active: &Active, page: usize) -> Locked<'a> {
        if s.limbo.peek_free(1).is_none() || s.limbo.in_use() >= SLOTS_MOST {
            // The pages that are in limbo for longest are compressed: they are not used often. The
            // lock is let go for that.
            s = self.age_out(s, active, BATCH_PAGES).0;
        }
        let is_swept = self.ranges.find(page).is_some_and(|r| r.is_swept());
        if self.state_of(page) != PageState::Resident || !is_swept {
            return s;
        }
        let (taken, _) = self.take_run(&mut s, active, page, 1, false);
        if taken.pages == 0 && self.state_of(page) == PageState::Resident {
            // The page may be in use by a system call: it is tried again later.
            s.watched.push(page);
        }
        s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_page_in_so_many_is_watched_whatever_the_stride() {
        for stride in [1, 2, 16, 64, 512, 4097] {
            let watched = (0..64_000u64).filter(|i| is_watched((1 << 34) + i * stride, 6)).count();
            // Five standard deviations.
            assert!(watched.abs_diff(1000) < 160, "{watched} by {stride}");
        }
    }

    #[test]
    fn the_oldest_leaves_when_one_comes() {
        let mut watched = Watched::new();
        (1..=3).for_each(|page| watched.push(page));
        assert_eq!(watched.pop(3), None);
        (98..100).for_each(|page| watched.push(page));
        assert_eq!([3; 3].map(|stay| watched.pop(stay)), [Some(1), Some(2), None]);
        // One too many is left out.
        (0..2 * WATCHED_MOST).for_each(|page| watched.push(page));
        let all: Vec<usize> = core::iter::from_fn(|| watched.pop(0)).collect();
        assert_eq!(all.len(), WATCHED_MOST);
        assert_eq!(all[..4], [3, 98, 99, 0]);
    }
}
