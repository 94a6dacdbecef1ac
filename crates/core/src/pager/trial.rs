//! Trials: a store that has failed is asked again now and then.
//!
//! ```text
//!   works ──a write fails──> fails: the pool has nearly all, pages stay over the limit
//!     ^                        │ after a wait, or by order (`begin_reclaim`)
//!     │ a write comes through  v
//!     └─────────────────── tried ──a write fails──> fails, for twice as long
//! ```
//!
//! A disk that was full has room again when another program's files are gone, and a server that was
//! away comes back. Each trial is one write. It costs little where a disk is full, and the evictor
//! some seconds where a server does not answer, so trials that fail become rare. It goes to another
//! place than the one that has failed (`store/cluster/places.rs`): a disk may have a bad block.

use core::sync::atomic::{AtomicU64, Ordering};

use super::{Active, Pager};
use crate::sys::now_ns;

/// The wait before the first trial, and the longest one. A user that frees room on the disk of a
/// program that is about to be killed cannot wait much longer than the first; at the last a server
/// that never comes back takes one second in a hundred.
const FIRST_NS: u64 = 15_000_000_000;
const MOST_NS: u64 = 1_000_000_000_000;

pub(super) struct Trial {
    /// When a failed store is due; 0: the failure has not been seen yet.
    due_ns: AtomicU64,
    /// The wait before the latest trial; 0: the store has worked since.
    wait_ns: AtomicU64,
    /// Writes that had ended well when the store was tried.
    writes: AtomicU64,
}

/// The outcome of a look at the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Look {
    Works,
    Fails,
    /// The store failed, and is to be tried now.
    IsDue,
}

impl Trial {
    pub const fn new() -> Trial {
        Trial { due_ns: AtomicU64::new(0), wait_ns: AtomicU64::new(0), writes: AtomicU64::new(0) }
    }

    /// A look at a store that fails or not, after so many writes that ended well.
    fn look(&self, fails: bool, writes: u64, now_ns: u64) -> Look {
        let (due, wait) = (&self.due_ns, &self.wait_ns);
        if !fails {
            if writes > self.writes.load(Ordering::Relaxed) {
                wait.store(0, Ordering::Relaxed);
            }
            return Look::Works;
        }
        if due.load(Ordering::Relaxed) == 0 {
            let next = (2 * wait.load(Ordering::Relaxed)).clamp(FIRST_NS, MOST_NS);
            wait.store(next, Ordering::Relaxed);
            due.store(now_ns + next, Ordering::Relaxed);
        }
        if now_ns < due.load(Ordering::Relaxed) {
            return Look::Fails;
        }
        self.begin(writes);
        Look::IsDue
    }

    fn begin(&self, writes: u64) {
        self.due_ns.store(0, Ordering::Relaxed);
        self.writes.store(writes, Ordering::Relaxed);
    }

    /// Whether a trial has not yet ended well.
    fn is_open(&self) -> bool {
        self.wait_ns.load(Ordering::Relaxed) != 0
    }
}

impl Pager {
    /// The evictor's tick: while the store fails the pool has nearly all of the memory, since pages
    /// take less there than as they were. When a trial is due all is as at the beginning.
    pub fn tend_store(&self) {
        let Some(active) = self.active().filter(|active| active.has_store) else { return };
        let fails = active.cache.store_failure().is_some();
        if !fails && !self.trial.is_open() {
            return;
        }
        match self.trial.look(fails, active.cache.counters().cluster_writes, now_ns()) {
            Look::Works => {}
            Look::Fails => self.balance.begin(0, false),
            Look::IsDue => self.try_store(active),
        }
    }

    fn try_store(&self, active: &Active) {
        active.cache.retry_store();
        self.balance.begin(active.pool_percent.load(Ordering::Relaxed), true);
        // An evictor that rests would write nothing.
        self.forget_refusals();
    }

    /// A user wants memory back: a store that has failed is tried now.
    pub(super) fn try_failed_store(&self) {
        let Some(active) = self.active().filter(|active| active.has_store) else { return };
        if active.cache.store_failure().is_some() {
            self.trial.begin(active.cache.counters().cluster_writes);
            self.try_store(active);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::{READ_WRITE, Spec, Touch, World};
    use super::*;
    use crate::store::testing::Fault;
    use crate::testing::any_page;

    #[test]
    fn trials_that_fail_become_rare_until_one_does_not() {
        let t = Trial::new();
        assert_eq!(t.look(false, 3, 1), Look::Works);
        let mut now = 1;
        let mut waits = vec![];
        for _ in 0..8 {
            assert_eq!(t.look(true, 3, now), Look::Fails);
            let due = t.due_ns.load(Ordering::Relaxed);
            assert_eq!(t.look(true, 3, due - 1), Look::Fails);
            assert_eq!(t.look(true, 3, due), Look::IsDue);
            waits.push((due - now) / FIRST_NS);
            // The trial has not ended: nothing is known.
            assert_eq!(t.look(false, 3, due + 1), Look::Works);
            now = due + 2;
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, MOST_NS / FIRST_NS]);
        assert_eq!(t.look(false, 4, now), Look::Works);
        assert_eq!(
            (t.look(true, 4, now), t.wait_ns.load(Ordering::Relaxed)),
            (Look::Fails, FIRST_NS)
        );
    }

    /// A store that has room again, and one of which a place stays bad: they fail in this way, and
    /// then in that.
    const FAULTS: [[Fault; 2]; 2] =
        [[Fault::From(1), Fault::Never], [Fault::WritesTo(0), Fault::WritesTo(0)]];

    #[test]
    fn a_store_that_has_room_again_or_a_bad_place_is_written_again() {
        FAULTS.into_iter().for_each(is_written_again);
    }

    fn is_written_again([fault, later]: [Fault; 2]) {
        const PAGES: usize = 300;
        let w = World::new(Spec { has_store: true, ..Spec::roomy(PAGES) });
        let (pager, cache, store) = (&w.pager, &w.active().cache, w.store.expect("asked for"));
        w.map(0, PAGES, READ_WRITE);
        let mut thread = w.thread();
        for page in 0..PAGES {
            let touch = thread.access(w.at(page), true, |b| *b = any_page(page as u64));
            assert_eq!(touch, Touch::Done);
        }
        let begun = pager.balance.percent();
        store.set_fault(fault);
        w.page_out();
        cache.shrink(1 << 20);
        assert!(cache.store_failure().is_some());
        pager.tend_store();
        assert!(pager.balance.percent() > begun);
        assert!(cache.counters().cluster_writes == 0);
        // The disk could be written, and nobody has looked yet.
        store.set_fault(later);
        pager.tend_store();
        cache.shrink(1 << 20);
        assert_eq!(cache.counters().cluster_writes, 0);
        pager.try_failed_store();
        assert_eq!(pager.balance.percent(), begun);
        cache.shrink(1 << 20);
        assert!(cache.store_failure().is_none() && cache.counters().cluster_writes > 0);
        for page in 0..PAGES {
            let right = any_page(page as u64);
            assert_eq!(thread.access(w.at(page), false, |b| assert!(*b == right)), Touch::Done);
        }
        w.check();
    }
}
