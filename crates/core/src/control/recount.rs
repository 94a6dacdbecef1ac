//! The tree's sums, put right from the slots now and then.
//!
//! A process that is killed between its slot and the sum, or while it frees a slot, leaves the sum
//! wrong, or the slot taken, for the rest of the run. `uzswap run` sees this as a difference that
//! stays from look to look: a change that is under way is over by the next one.

use core::sync::atomic::{AtomicI64, Ordering};

use super::slot::RETIRING;
use super::{MAX_PROCESSES, Slot, Tree};

/// Looks in a row, some time apart, in which a difference must be equal to be believed.
const LOOKS: u32 = 5;

/// Differences found so far.
pub struct Recount {
    used: Difference,
    needed: Difference,
    held: Difference,
    /// For how many looks each slot has been in the middle of being claimed or freed.
    stuck: [u32; MAX_PROCESSES],
}

/// By how much a sum exceeds that of the slots, and in how many looks.
#[derive(Default)]
struct Difference {
    pages: i64,
    looks: u32,
}

impl Difference {
    fn look(&mut self, sum: &AtomicI64, of_slots: i64) {
        let pages = sum.load(Ordering::Acquire).wrapping_sub(of_slots);
        self.looks = if pages == self.pages { self.looks + 1 } else { 1 };
        self.pages = pages;
        if self.looks >= LOOKS && pages != 0 {
            sum.fetch_sub(pages, Ordering::AcqRel);
            *self = Difference::default();
        }
    }
}

impl Default for Recount {
    fn default() -> Self {
        let none = Difference::default;
        Recount { used: none(), needed: none(), held: none(), stuck: [0; MAX_PROCESSES] }
    }
}

impl Recount {
    /// One look at a tree: some hundred milliseconds or more after the one before.
    pub fn look(&mut self, tree: &Tree) {
        for (s, stuck) in tree.used_slots().iter().zip(&mut self.stuck) {
            *stuck = if s.id() == RETIRING { *stuck + 1 } else { 0 };
            if *stuck >= LOOKS {
                // The process that was claiming or freeing the slot is gone. Pages that it had
                // taken out of the slot, and not out of the sums, are a difference now.
                tree.free(s);
            }
        }
        let sum = |f: fn(&Slot) -> &AtomicI64| {
            // Any process may have written anything into the block, so the sum may wrap.
            let shared = tree.shared_pages.load(Ordering::Acquire);
            tree.used_slots()
                .iter()
                .fold(shared, |all, s| all.wrapping_add(f(s).load(Ordering::Acquire)))
        };
        self.used.look(&tree.used_pages, sum(|s| &s.used_pages));
        self.needed.look(&tree.needed_pages, sum(|s| &s.needed_pages));
        self.held.look(&tree.held_pages, sum(|s| &s.held_pages));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::zeroed_tree as tree;

    #[test]
    fn a_sum_that_stays_wrong_is_put_right() {
        let (t, mut recount) = (tree(), Recount::default());
        t.publish(t.claim(1).unwrap(), 70, 100);
        t.count_shared(5, i64::MAX);
        t.used_pages.fetch_add(30, Ordering::Relaxed);
        (1..LOOKS).for_each(|_| recount.look(&t));
        assert_eq!(
            t.used_pages.load(Ordering::Relaxed),
            105,
            "it may be a change that is under way"
        );
        recount.look(&t);
        assert_eq!(t.used_pages.load(Ordering::Relaxed), 75);
        assert_eq!(t.needed_pages.load(Ordering::Relaxed), 105);
    }

    #[test]
    fn what_changes_is_left_alone() {
        let (t, mut recount) = (tree(), Recount::default());
        for pages in 1..40 {
            t.used_pages.store(pages, Ordering::Relaxed);
            recount.look(&t);
        }
        assert_eq!(t.used_pages.load(Ordering::Relaxed), 39);
    }

    #[test]
    fn a_slot_that_was_being_freed_by_one_who_is_gone_is_free_again() {
        let (t, mut recount) = (tree(), Recount::default());
        let s = t.claim(1).unwrap();
        t.publish(s, 70, 100);
        s.is_locked.store(1, Ordering::Relaxed);
        s.charged_pages.store(7, Ordering::Relaxed);
        s.gone_at_ns.store(1, Ordering::Relaxed);
        s.id.store(RETIRING, Ordering::Relaxed);
        (0..2 * LOOKS).for_each(|_| recount.look(&t));
        assert!(core::ptr::eq(t.claim(2).unwrap(), s));
        // The next owner inherits nothing.
        assert_eq!(s.is_locked.load(Ordering::Relaxed), 0);
        assert_eq!(s.charged_pages.load(Ordering::Relaxed), 0);
        assert_eq!(s.gone_at_ns.load(Ordering::Relaxed), 0);
        assert_eq!(t.used_pages.load(Ordering::Relaxed), 0);
        assert_eq!(t.said_pages(), [0, 0]);
    }
}
