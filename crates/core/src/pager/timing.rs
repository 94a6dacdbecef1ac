//! The time that a fault takes: from the handler's first instruction to its last, by the
//! processor's own counter.
//!
//! `uzswap run` has measured how long a tick is and written it into the shared block. Nothing is
//! counted without that (tests that have no run, a machine whose counter is slow to read), or where
//! the program forbids the instruction.

use core::sync::atomic::Ordering;

use super::Pager;
use crate::latency::FaultKind;
use crate::sys::tsc;

/// When a fault began, in ticks; 0: it is not timed.
#[derive(Clone, Copy)]
pub(super) struct Began(u64);

impl Pager {
    #[inline]
    pub(super) fn fault_begins(&self) -> Began {
        let is_timed = tsc::is_allowed() && self.tree().tick_ns_q32.load(Ordering::Relaxed) != 0;
        Began(if is_timed { tsc::now() } else { 0 })
    }

    #[inline]
    pub(super) fn fault_ends(&self, began: Began, kind: FaultKind) {
        if began.0 != 0 {
            // The thread may have moved to a processor whose counter is a little behind.
            let ticks = tsc::now().saturating_sub(began.0);
            let scale = self.tree().tick_ns_q32.load(Ordering::Relaxed);
            let ns = (u128::from(ticks) * u128::from(scale)) >> 32;
            self.slot().latency.record(kind, ns as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::zeroed_tree as tree;
    use crate::latency::Histogram;

    /// The pager of a run in which a tick takes so long; 0: nobody has measured that.
    fn pager(tick_ns: u64) -> Pager {
        let tree: &'static _ = Box::leak(tree());
        tree.tick_ns_q32.store(tick_ns << 32, Ordering::Relaxed);
        let pager = Pager::new();
        pager.connect(tree, tree.claim(1).expect("a slot"));
        pager
    }

    fn counts(p: &Pager) -> [u64; FaultKind::ALL.len()] {
        FaultKind::ALL.map(|kind| p.slot().latency.count(kind))
    }

    fn sum_ns(p: &Pager, kind: FaultKind) -> u64 {
        let mut h = Histogram::default();
        p.slot().latency.add_to(kind, &mut h);
        h.sum_ns
    }

    #[test]
    fn a_fault_that_began_before_a_tick_was_measured_is_not_timed() {
        let p = pager(0);
        let began = p.fault_begins();
        p.tree().tick_ns_q32.store(1 << 32, Ordering::Relaxed);
        p.fault_ends(began, FaultKind::LimboHit);
        assert_eq!(counts(&p), [0; 4]);
        p.fault_ends(p.fault_begins(), FaultKind::LimboHit);
        assert_eq!(counts(&p), [0, 1, 0, 0]);
    }

    #[test]
    fn ticks_count_as_nanoseconds_under_the_kind_of_the_fault() {
        const TICK_NS: u64 = 1000;
        const AGO: u64 = 1 << 30;
        let p = pager(TICK_NS);
        let began = tsc::now() - AGO;
        p.fault_ends(Began(began), FaultKind::StoreLoad);
        let passed = tsc::now() - began;
        assert_eq!(counts(&p), [0, 0, 0, 1]);
        // The thread may have moved to a processor whose counter is not quite the same.
        let right = AGO / 2 * TICK_NS..(passed + AGO / 2) * TICK_NS;
        assert!(right.contains(&sum_ns(&p, FaultKind::StoreLoad)));
    }

    #[test]
    fn a_counter_that_is_behind_the_one_of_the_beginning_takes_no_time() {
        let p = pager(1);
        p.fault_ends(Began(u64::MAX), FaultKind::PoolLoad);
        assert_eq!((counts(&p), sum_ns(&p, FaultKind::PoolLoad)), ([0, 0, 1, 0], 0));
    }
}
