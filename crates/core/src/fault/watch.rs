//! Watching how a program uses its memory while it has all that it wants (`uzswap estimate --
//! COMMAND`).
//!
//! ```text
//!   fault of a watched page ──> served, recorded ──> among those that came last ──> limbo ──> its next touch is a fault
//! ```
//!
//! One page in many is *watched*, chosen by its address: it goes to limbo a moment after it came,
//! so that whenever it is used again after a while that is a fault, and a record in the ring. That
//! is spatial sampling (Waldspurger et al., Efficient MRC construction with SHARDS, 2015): how many
//! other watched pages were used in between, times so many, is how many pages were. Of what is not
//! watched nothing is recorded but that it is discarded or moves.
//!
//! Nothing is short of memory meanwhile, so nothing else leaves the program.

use core::sync::atomic::Ordering;

use super::{Active, Locked, Pager};
use crate::policy::BATCH_PAGES;
use crate::region::PageState;
use crate::sys::{PAGE_SHIFT, PAGE_SIZE};

/// The part of the memory whose touches are hidden, since it came last.
const HIDDEN_PART: usize = 24;
/// Watched pages in it at least: an instruction needs six pages at once at most (two operands and
/// itself, each across a border; a gather goes on where it was), and would begin again for ever if
/// one of them left for another.
const HIDDEN_LEAST: usize = 8;
/// As many watched pages can be in the program: those that wait until the system call which uses
/// them has ended, too.
const WATCHED_MOST: usize = 4096;
/// Pages that are tried for one that comes.
const TRIES: usize = 4;
/// Slots of limbo that watched pages take: a page that is back leaves its frame there until those
/// before it have gone, too.
const SLOTS_MOST: usize = 4096;
/// log2 of how many pages there may be to a watched one.
pub const LOG2_MAX: u32 = 20;

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

    /// Puts a page in; one too many is not watched any more.
    fn push(&mut self, page: usize) {
        if self.len < WATCHED_MOST {
            self.pages[(self.first + self.len) % WATCHED_MOST] = page;
            self.len += 1;
        }
    }

    /// Takes out the one that has been in for longest, if there are more than so many.
    fn pop(&mut self, stay: usize) -> Option<usize> {
        (self.len > stay).then(|| {
            let page = self.pages[self.first];
            self.first = (self.first + 1) % WATCHED_MOST;
            self.len -= 1;
            page
        })
    }
}

/// Whether a page, by its number, is one in 2^`log2`: by the finalizer of splitmix64, so that no
/// stride of a program's is favoured.
pub fn is_watched(page: u64, log2: u32) -> bool {
    let mut z = page.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    (z ^ z >> 31) & ((1 << log2) - 1) == 0
}

impl Pager {
    /// From now on pages are watched. Before paging begins.
    pub fn begin_to_watch(&self) {
        self.is_watching.store(true, Ordering::Release);
    }

    /// log2 of how many pages there are to a watched one, which who watches may raise; 0: nobody
    /// watches.
    #[inline]
    pub(super) fn watch_log2(&self) -> u32 {
        match self.is_watching() {
            true => self.tree().watch_log2.load(Ordering::Relaxed).clamp(1, LOG2_MAX),
            false => 0,
        }
    }

    #[inline]
    pub fn is_watching(&self) -> bool {
        self.is_watching.load(Ordering::Relaxed)
    }

    /// How many pages a fault at `page` may bring: of those that were taken out to be watched no
    /// more than are used.
    #[inline]
    pub(super) fn watch_window(&self, page: usize, want: usize) -> usize {
        if self.is_watching() && self.state_of(page) != PageState::None { 1 } else { want }
    }

    /// `pages` pages are in the program now: the watched ones among them are to leave again.
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

    /// Pages of `[start, end)` are there that did not come by a fault: the watched ones among them
    /// leave with the next tick.
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

    /// Takes out what could not go when others came: what was in use by system calls.
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
            // Those that are in it for longest are compressed: they are not used often. The lock is
            // let go for that.
            s = self.age_out(s, active, BATCH_PAGES).0;
        }
        let is_swept = self.ranges.find(page).is_some_and(|r| r.is_swept());
        if self.state_of(page) != PageState::Resident || !is_swept {
            return s;
        }
        let (taken, _) = self.take_run(&mut s, active, page, 1, false);
        if taken.pages == 0 && self.state_of(page) == PageState::Resident {
            // In use by a system call, say: another time.
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
