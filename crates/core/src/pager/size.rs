//! How much of a tree's memory a process keeps: how far it is over its limit, how much it leaves
//! free, and how many pages of it limbo takes.
//!
//! A process takes the pages that it needs from its own, so that it keeps its size. `uzswap run`
//! changes the sizes (`control/share.rs`): it knows what memory is worth to each process.

use core::sync::atomic::Ordering;

use super::{MIN_PAGES, PAUSED_PAGES, Pager};
use crate::policy::{LIMBO_LEAST_PAGES, batch_pages, limbo_target};

/// The part of the limit, as a divisor, that each process of a tree gives away at a tick of its
/// evictor while memory is short. It is little: `uzswap run`, which knows what memory is worth to
/// each process, decides about more.
const GIVEN_AT_TICK: i64 = 1024;
/// A process that waits for its turn, or has more than its share, gives memory away as long as less
/// than this part of the limit is free.
pub const GIVEN_AHEAD: i64 = 16;

/// The excess where paging ends: there is room for all, in every sum that includes it.
const NO_EXCESS: i64 = -(1 << 40);

impl Pager {
    /// How far `extra` more pages would exceed the limit; negative: room.
    #[inline]
    pub fn excess(&self, extra: i64) -> i64 {
        if self.is_ending() {
            return NO_EXCESS;
        }
        let by_tree = self.excess_of_tree(extra);
        let by_share = self.slot().share.most_pages().map(|most| {
            let over =
                (self.resident_pages() + self.limbo_pages() + extra).saturating_sub_unsigned(most);
            over.min(by_tree + self.given_ahead())
        });
        let by_tree = by_share.map_or(by_tree, |s| s.max(by_tree));
        // However full the tree is, a process keeps enough to make progress. A process that waits
        // for its turn makes none.
        let least = if self.slot().turn.is_paused() { PAUSED_PAGES } else { MIN_PAGES };
        let by_floor = self.resident_pages() + self.limbo_pages() + extra - least;
        by_tree.min(by_floor)
    }

    /// [`Self::excess`] by the tree's limit alone, whatever the process's share is. Tolerated pages
    /// are room.
    pub(super) fn excess_of_tree(&self, extra: i64) -> i64 {
        if self.is_ending() {
            return NO_EXCESS;
        }
        self.used_pages() + extra - self.limit_pages() - self.refusals.tolerated()
    }

    /// Free pages below which the evictor starts, and up to which it works.
    pub fn watermarks(&self) -> (i64, i64) {
        if self.slot().turn.is_paused() {
            // Processes whose turn it is lose nothing before all of this is gone.
            let ahead = self.given_ahead();
            return (ahead, ahead);
        }
        let limit = self.limit_pages();
        ((limit / 64).clamp(32, 4096), (limit / 32).clamp(64, 8192))
    }

    /// Whether the evictor has, or will soon have, to make room.
    pub(super) fn is_nearly_full(&self) -> bool {
        self.excess(0) + 2 * self.watermarks().1 > 0
    }

    /// Pages that go in or out together at most.
    pub(super) fn batch_pages(&self) -> usize {
        batch_pages(self.limit_pages())
    }

    /// Pages that a process leaves free for others while it waits for its turn, or has more than
    /// its share.
    fn given_ahead(&self) -> i64 {
        self.tree().limit() / GIVEN_AHEAD
    }

    /// Pages that the process has grown by since memory was last not short: it takes the pages that
    /// it needs from its own, and no more. There is no such bound where the process is alone, waits
    /// for its turn, or is over its limit or its share.
    pub(super) fn above_size(&self) -> i64 {
        if self.is_alone() || self.excess(0) > 0 || self.slot().turn.is_paused() {
            return i64::MAX;
        }
        self.used_pages() - self.size.load(Ordering::Relaxed)
    }

    pub(super) fn is_alone(&self) -> bool {
        self.tree().used() <= self.published_pages()
    }

    /// Every few milliseconds: ends a share that `uzswap run` has forgotten. While memory is short
    /// each process of a tree becomes a little smaller; if another process is stuck, this one lets
    /// go of all that is needed.
    pub fn shrink_size(&self) {
        self.slot().share.end_if_forgotten(crate::sys::now_ns());
        let stuck = self.tree().stuck.load(Ordering::Acquire);
        if self.stuck_seen.swap(stuck, Ordering::Relaxed) != stuck {
            return self.size.store(0, Ordering::Relaxed);
        }
        let used = self.used_pages();
        let is_short = self.excess(0) + self.watermarks().1 > 0;
        let less = if is_short { self.tree().limit() / GIVEN_AT_TICK } else { 0 };
        self.size.store(self.size.load(Ordering::Relaxed).min(used) - less, Ordering::Relaxed);
    }

    /// Pages that limbo holds when memory is short.
    pub fn limbo_target(&self) -> i64 {
        if self.slot().turn.is_paused() {
            return LIMBO_LEAST_PAGES;
        }
        // A limit that was raised meanwhile does not make the ring larger.
        limbo_target(self.limit_pages(), self.active().map_or(usize::MAX, |a| a.slots))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pager that has `resident` pages under a limit, of which others use some.
    fn pager(limit: i64, resident: i64, others: i64) -> Pager {
        let tree = Box::leak(crate::control::zeroed_tree());
        tree.limit_pages.store(limit, Ordering::Relaxed);
        let pager = Pager::new();
        pager.connect(tree, tree.claim(1).unwrap());
        pager.resident.store(resident, Ordering::Relaxed);
        pager.publish(true);
        tree.used_pages.fetch_add(others, Ordering::Relaxed);
        pager
    }

    #[test]
    fn the_excess_is_what_the_tree_is_over_its_limit() {
        let p = pager(10_000, 6000, 3000);
        assert_eq!((p.excess(0), p.excess(1000), p.excess(1001)), (-1000, 0, 1));
        assert!(!p.is_alone() && pager(10_000, 6000, 0).is_alone());
    }

    #[test]
    fn a_process_keeps_enough_to_make_progress_however_full_the_tree_is() {
        let p = pager(10_000, MIN_PAGES - 6, 50_000);
        assert_eq!((p.excess(6), p.excess(7)), (0, 1));
        // A process that waits for its turn makes no progress.
        p.slot().turn.pause(u64::MAX);
        assert_eq!(p.excess(0), MIN_PAGES - 6 - PAUSED_PAGES);
        p.slot().turn.resume();
        assert_eq!(p.excess(0), -6);
    }

    #[test]
    fn a_share_is_a_bound_only_while_memory_is_nearly_short() {
        let p = pager(16_000, 6000, 9500);
        assert_eq!(p.excess(0), -500);
        p.slot().share.bound(5000, u64::MAX);
        // Half of the room to be left for others is there: the other half is missing.
        assert_eq!(p.excess(0), 16_000 / GIVEN_AHEAD - 500);
        assert_eq!(pager(16_000, 6000, 9500).excess_of_tree(0), p.excess_of_tree(0));
        p.tree().used_pages.fetch_sub(5000, Ordering::Relaxed);
        assert!(p.excess(0) < 0, "there is room for all");
    }

    #[test]
    fn who_waits_for_its_turn_gives_memory_ahead() {
        let p = pager(16_000, 6000, 0);
        assert_eq!(p.watermarks(), (16_000 / 64, 16_000 / 32));
        p.slot().turn.pause(u64::MAX);
        assert_eq!(p.watermarks(), (16_000 / GIVEN_AHEAD, 16_000 / GIVEN_AHEAD));
        assert_eq!(pager(640, 10, 0).watermarks(), (32, 64), "small ones leave some, too");
    }

    #[test]
    fn what_a_process_needs_it_takes_from_its_own() {
        let p = pager(10_000, 3000, 6950);
        p.size.store(2990, Ordering::Relaxed);
        assert_eq!(p.above_size(), 10);
        // Short of memory it gives a little at each tick...
        p.shrink_size();
        assert_eq!(p.above_size(), 10 + 10_000 / GIVEN_AT_TICK);
        // ...and, once, all that is needed by a process that is stuck.
        p.tree().stuck.fetch_add(1, Ordering::Relaxed);
        p.shrink_size();
        assert_eq!(p.above_size(), 3000);
        p.size.store(2990, Ordering::Relaxed);
        p.shrink_size();
        assert_eq!(p.above_size(), 10 + 10_000 / GIVEN_AT_TICK, "nobody is stuck any more");
        // Over the limit, or alone, there is no such bound.
        p.tree().used_pages.fetch_add(100, Ordering::Relaxed);
        assert_eq!(p.above_size(), i64::MAX);
        assert_eq!(pager(10_000, 3000, 0).above_size(), i64::MAX);
    }

    #[test]
    fn with_room_the_size_follows_what_is_used_and_nothing_is_given() {
        let p = pager(10_000, 3000, 1000);
        p.size.store(5000, Ordering::Relaxed);
        p.shrink_size();
        assert_eq!(p.above_size(), 0);
    }
}
