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
