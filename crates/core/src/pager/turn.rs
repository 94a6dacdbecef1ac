//! Waiting for the turn: before a fault, and before a dormant process has more memory.
//!
//! `uzswap run` decides which process runs (`cli/src/governor/turns`). A process that pages waits
//! at its next fault. A dormant process has no faults of the pager's, and waits before it adds
//! memory: it has little then, and none of the memory that paging itself needs. Where memory is
//! short it asks first, once: a process that has just begun would otherwise take what the others
//! need before `uzswap run` had seen it.

use core::sync::atomic::Ordering;

use super::{GIVEN_AHEAD, PAUSED_PAGES, Pager};
use crate::control::Counter;

/// The fewest pages with which a process competes for memory, 1 MiB: a process that needs fewer is
/// in nobody's way.
pub const COMPETING_PAGES: i64 = 256;
impl Pager {
    /// Waits while it is not this process's turn, as long as `may_wait` allows it.
    #[inline]
    pub fn wait_for_turn(&self, may_wait: impl Fn() -> bool) {
        if self.slot().turn.is_paused() {
            self.count_pause(self.slot().turn.wait(may_wait));
        }
    }

    /// Whether a dormant process has to wait, or to ask, before it may have `pages` pages more.
    #[inline]
    pub fn may_have_to_wait(&self, pages: i64) -> bool {
        self.slot().turn.is_paused() || self.would_ask(pages)
    }

    /// Waits, or asks, before a dormant process grows. `held`: the pages that it holds, if it
    /// cannot touch more of its reserved ones during the wait. The reserved ones are for other
    /// processes until then.
    pub fn wait_to_grow(&self, held: Option<i64>, may_wait: impl Fn() -> bool) {
        if let Some(held) = held.filter(|held| *held < self.published_pages()) {
            self.reserve(held);
        }
        if self.slot().turn.is_paused() {
            return self.wait_for_turn(may_wait);
        }
        self.has_asked.store(true, Ordering::Relaxed);
        self.count_pause(self.slot().turn.ask(&self.tree().referee, may_wait));
    }

    fn would_ask(&self, pages: i64) -> bool {
        let tree = self.tree();
        let limit = tree.limit();
        tree.used() + pages > limit - limit / GIVEN_AHEAD
            && self.published_pages() + pages >= COMPETING_PAGES
            && !self.has_asked.load(Ordering::Relaxed)
            && tree.referee.is_there()
    }

    fn count_pause(&self, lasted_ns: u64) {
        self.add(Counter::Pauses, 1);
        self.add(Counter::PausedNs, lasted_ns);
    }

    /// Whether the process waits for its turn and has given away what it could.
    pub fn is_drained(&self) -> bool {
        self.slot().turn.is_paused()
            && self.resident_pages() + self.limbo_pages() <= 2 * PAUSED_PAGES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_asks_once_where_memory_is_short_and_somebody_answers() {
        let tree = Box::leak(crate::control::zeroed_tree());
        tree.limit_pages.store(16_000, Ordering::Relaxed);
        let pager = Pager::new();
        pager.connect(tree, tree.claim(1).unwrap());
        pager.reserve(700);
        tree.used_pages.store(15_900, Ordering::Relaxed);
        assert!(!pager.may_have_to_wait(400), "nobody listens");
        tree.referee.stay();
        tree.used_pages.store(14_600, Ordering::Relaxed);
        assert!(pager.may_have_to_wait(401) && !pager.may_have_to_wait(400), "there is room");
        pager.reserve(100);
        tree.used_pages.store(15_900, Ordering::Relaxed);
        let least = COMPETING_PAGES - 100;
        assert!(
            pager.may_have_to_wait(least) && !pager.may_have_to_wait(least - 1),
            "too small to matter"
        );
        let rung = tree.referee.rung();
        // No answer comes; pages that it has reserved and does not hold are for others.
        pager.wait_to_grow(Some(40), || true);
        assert_eq!(
            (pager.published_pages(), tree.used_pages.load(Ordering::Relaxed)),
            (40, 15_840)
        );
        assert!(tree.referee.rung() != rung && pager.slot().get(Counter::Pauses) == 1);
        pager.wait_to_grow(Some(50), || false);
        assert_eq!(pager.published_pages(), 40, "more than it has reserved is not for anybody");
        pager.slot().turn.resume();
        assert!(!pager.may_have_to_wait(400), "it has asked");
        pager.slot().turn.pause(u64::MAX);
        assert!(pager.may_have_to_wait(1));
    }
}
