//! How much of the tree's memory a process may have.
//!
//! Without a decision the process that came first would keep its memory, touched or not, while a
//! later one pages in what is left. `uzswap run` compares what memory is worth to each
//! (`cli/src/governor/shares.rs`) and gives those to which it is worth least a bound a little below
//! what they have. Above its bound a process leaves a part of the tree's memory free for the
//! others: it takes memory that it needs from its own, and its evictor gives pages until so much is
//! free. Pages leave through limbo as ever, so those that the process uses stay.

use core::sync::atomic::{AtomicU64, Ordering};

/// Longest time that a bound lasts without news: 10 s, ten times as long as `uzswap run` says
/// (`cli/src/governor/shares.rs`).
const BOUND_MOST_NS: u64 = 10_000_000_000;

/// The share of one process. All-zero: no bound.
#[repr(C)]
pub struct Share {
    /// Pages that it may have, mapped or in limbo, while others want memory; 0: no bound.
    most_pages: AtomicU64,
    /// When the bound ends without news.
    until_ns: AtomicU64,
}

impl Share {
    /// Sets the bound. Returns whether there was none before.
    pub fn bound(&self, most_pages: u64, until_ns: u64) -> bool {
        self.until_ns.store(until_ns, Ordering::Release);
        self.most_pages.swap(most_pages.max(1), Ordering::AcqRel) == 0
    }

    pub fn unbound(&self) {
        self.most_pages.store(0, Ordering::Release);
    }

    /// Ends a bound that `uzswap run` has not renewed, and one that lasts longer than it ever says.
    /// The process calls this now and then.
    pub fn end_if_forgotten(&self, now_ns: u64) {
        let left = self.until_ns.load(Ordering::Acquire).checked_sub(now_ns);
        let is_valid = left.is_some_and(|left| 0 < left && left <= BOUND_MOST_NS);
        if self.most_pages().is_some() && !is_valid {
            self.unbound();
        }
    }

    #[inline]
    pub fn most_pages(&self) -> Option<u64> {
        let most = self.most_pages.load(Ordering::Acquire);
        (most != 0).then_some(most)
    }
}

#[cfg(test)]
mod tests {
    use crate::control::zeroed_tree as tree;

    #[test]
    fn a_bound_ends_when_it_is_said_or_forgotten_or_with_the_process() {
        let t = tree();
        let s = t.claim(10).unwrap();
        assert_eq!(s.share.most_pages(), None);
        assert!(s.share.bound(100, 7) && !s.share.bound(50, 9));
        assert_eq!(s.share.most_pages(), Some(50));
        s.share.unbound();
        assert_eq!(s.share.most_pages(), None);
        assert!(s.share.bound(100, 9));
        s.share.end_if_forgotten(8);
        assert_eq!(s.share.most_pages(), Some(100));
        s.share.end_if_forgotten(9);
        assert_eq!(s.share.most_pages(), None);
        assert!(s.share.bound(0, 9));
        t.retire(s, s.id());
        assert_eq!(s.share.most_pages(), None);
    }
}
