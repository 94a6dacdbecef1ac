//! The life of a slot: claimed for a process or for a child that is about to exist, left at an
//! exec, freed at the end.
//!
//! ```text
//!   0 ── claim ────────────────────────────────> id ── retire ──> RETIRING ──> 0
//!   └─── claim_for_child ──> UNBORN | id ────────┤                    ^
//!                                       is_born, │ leave_former       │ retire
//!                                       am_born  └──> DEPARTED | id ──┘
//! ```
//!
//! A slot changes hands by a compare-and-swap of its `id`, so one process alone frees it, however
//! many find that its process is gone (`gone.rs`). `DEPARTED`: the process has exec'd, and pages
//! that it counted for relatives stay counted.

use core::sync::atomic::Ordering;

use super::slot::{DEPARTED, ID_END, RETIRING, UNBORN, whose};
use super::{Counter, Fold, Slot, Tree};
use crate::sys::{now_ns, pid_namespace};

impl Tree {
    /// Claims a slot for the process `pid`.
    pub fn claim(&self, pid: u32) -> Option<&Slot> {
        self.claim_with(0, pid)
    }

    /// `state`: [`UNBORN`], or nothing.
    fn claim_with(&self, state: u32, pid: u32) -> Option<&Slot> {
        let id = self.last_id.fetch_add(1, Ordering::AcqRel) % (ID_END - 1) + 1;
        for (i, s) in self.slots.iter().enumerate() {
            if s.id.compare_exchange(0, RETIRING, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                s.claims.fetch_add(1, Ordering::AcqRel);
                // Threads of the slot's last process may have been killed while they waited.
                s.turn.clear();
                s.reads.iter().for_each(|r| r.store(0, Ordering::Release));
                s.whose.store(whose(pid_namespace(), pid), Ordering::Release);
                s.claimed_at_ns.store(now_ns(), Ordering::Release);
                s.id.store(state | id, Ordering::Release);
                self.slots_high.fetch_max(i as u32 + 1, Ordering::AcqRel);
                return Some(s);
            }
        }
        None
    }

    /// Gives up the slots that a process which has just begun had before it exec'd: those under its
    /// process id whose lock nobody else holds, as `is_free` says. Pages that it counted for
    /// relatives stay counted.
    pub fn leave_former(&self, pid: u32, is_free: impl Fn(&Slot) -> bool) {
        let mine = whose(pid_namespace(), pid);
        for s in self.live_slots() {
            let id = s.id();
            let whose = s.whose.load(Ordering::Acquire);
            // Without a lock the namespace decides, as far as it is known.
            let is_locked = s.is_locked.load(Ordering::Acquire) != 0;
            let is_former =
                if is_locked { whose as u32 == pid && is_free(s) } else { whose == mine };
            if id & (DEPARTED | UNBORN) != 0 || !is_former {
                continue;
            }
            if s.charged_pages.load(Ordering::Acquire) > 0 {
                s.is_locked.store(0, Ordering::Release);
                let _ =
                    s.id.compare_exchange(id, DEPARTED | id, Ordering::AcqRel, Ordering::Relaxed);
            } else {
                self.retire(s, id);
            }
        }
    }

    /// Folds a slot's counters into the totals, takes its pages out of the sums and frees it. The
    /// caller that changes `id` to `RETIRING` first does it; a second caller does nothing.
    pub fn retire(&self, s: &Slot, id: u32) {
        if id == 0
            || id == RETIRING
            || s.id.compare_exchange(id, RETIRING, Ordering::AcqRel, Ordering::Relaxed).is_err()
        {
            return;
        }
        self.free(s);
    }

    /// Frees a slot whose `id` is `RETIRING`. Each number is taken out of the slot before it goes
    /// into a sum or out of one, so that nothing counts twice if another process began with it.
    pub(super) fn free(&self, s: &Slot) {
        self.used_pages.fetch_sub(s.used_pages.swap(0, Ordering::AcqRel), Ordering::AcqRel);
        self.hold(s, 0);
        self.needed_pages.fetch_sub(s.needed_pages.swap(0, Ordering::AcqRel), Ordering::AcqRel);
        for c in Counter::ALL {
            let v = s.counters[*c as usize].swap(0, Ordering::AcqRel);
            let total = &self.totals[*c as usize];
            match c.fold() {
                Fold::Sum => _ = total.fetch_add(v, Ordering::AcqRel),
                Fold::Max => _ = total.fetch_max(v, Ordering::AcqRel),
                Fold::Gauge => {}
            }
        }
        s.latency.fold_into(&self.latency);
        s.is_locked.store(0, Ordering::Release);
        s.counted_by.store(0, Ordering::Release);
        s.charged_pages.store(0, Ordering::Release);
        s.looked_at_ns.store(0, Ordering::Release);
        s.gone_at_ns.store(0, Ordering::Release);
        s.orders.clear();
        s.wish.clear();
        s.turn.clear();
        s.share.unbound();
        self.mechanisms
            .fetch_or(1 << (s.mechanism.swap(0, Ordering::AcqRel) & 31), Ordering::AcqRel);
        s.id.store(0, Ordering::Release);
    }

    /// Claims a slot for the child that the process `parent` is about to fork.
    pub fn claim_for_child(&self, parent: u32) -> Option<&Slot> {
        self.claim_with(UNBORN, parent)
    }

    /// The parent says that its child exists, which it forked with `id` in the slot. The child's
    /// own statement ([`Tree::am_born`]) counts more.
    pub fn is_born(&self, s: &Slot, id: u32, parent: u32, child: u32) {
        let namespace = pid_namespace();
        let (from, to) = (whose(namespace, parent), whose(namespace, child));
        // `whose` changes before the id: a process that finds the new id reads `whose`.
        let _ = s.whose.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
        let _ = s.id.compare_exchange(id, id & !UNBORN, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// The child itself says that it exists: see [`Tree::is_born`].
    pub fn am_born(&self, s: &Slot, id: u32, child: u32) {
        s.whose.store(whose(pid_namespace(), child), Ordering::Release);
        let _ = s.id.compare_exchange(id, id & !UNBORN, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Frees the slot of a child that was not forked after all.
    pub fn not_born(&self, s: &Slot, id: u32) {
        self.retire(s, id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::gone::UNLOCKED_NS;
    use crate::control::{MAX_PROCESSES, Notice, zeroed_tree as tree};

    #[test]
    fn an_exec_gives_up_the_slot_of_before_and_nobody_elses() {
        let t = tree();
        let (mine, other) = (t.claim(10).unwrap(), t.claim(10).unwrap());
        for s in [mine, other] {
            s.is_locked.store(1, Ordering::Relaxed);
            t.publish(s, 5, 5);
        }
        // Two processes 10, in namespaces of their own: the lock tells whose slot is whose.
        t.leave_former(10, |s| std::ptr::eq(s, mine));
        assert_eq!(t.used_pages.load(Ordering::Relaxed), 5);
        assert!(mine.process().is_none() && other.process() == Some(10));
        // Without a lock the namespace does.
        other.is_locked.store(0, Ordering::Relaxed);
        other.whose.store(whose(1, 10), Ordering::Relaxed);
        t.leave_former(10, |_| unreachable!("nobody has locked"));
        assert_eq!(other.process(), Some(10));
        assert!(!t.is_gone(other, -1), "it may be about to take its lock");
        other.claimed_at_ns.store(1, Ordering::Relaxed);
        assert!(crate::sys::now_ns() < UNLOCKED_NS || t.is_gone(other, -1));
    }

    #[test]
    fn a_slot_that_changed_hands_is_not_taken_from_the_next() {
        let t = tree();
        let s = t.claim(1).unwrap();
        let former = s.id();
        t.retire(s, former);
        let again = t.claim(1).unwrap();
        assert!(std::ptr::eq(s, again) && again.id() != former);
        t.retire(again, former);
        assert_eq!(again.process(), Some(1));
    }

    #[test]
    fn a_child_has_a_slot_before_it_exists() {
        let t = tree();
        let me = std::process::id();
        let s = t.claim_for_child(me).unwrap();
        let id = s.id();
        assert!(!t.is_gone(s, -1) && s.process().is_none());
        t.am_born(s, id, 77);
        t.is_born(s, id, me, 78);
        assert_eq!(s.process(), Some(77), "the child knows best");
        let s = t.claim_for_child(me).unwrap();
        t.not_born(s, s.id());
        assert_eq!(t.live_slots().count(), 1);
    }

    #[test]
    fn what_a_process_counted_for_relatives_outlives_its_exec() {
        let t = tree();
        let me = std::process::id();
        let old = t.claim(me).unwrap();
        t.publish(old, 500, 500);
        old.charged_pages.store(300, Ordering::Relaxed);
        t.reserve(old, 300);
        t.leave_former(me, |_| true);
        let new = t.claim(me).unwrap();
        assert!(!std::ptr::eq(old, new) && !t.is_gone(new, -1));
        assert!(t.is_gone(old, -1));
        assert_eq!(t.used_pages.load(Ordering::Relaxed), 300);
        t.retire(old, old.id());
        assert_eq!(t.used_pages.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_full_table_refuses() {
        let t = tree();
        for pid in 1..=MAX_PROCESSES as u32 {
            assert!(t.claim(pid).is_some());
        }
        assert!(t.claim(5000).is_none());
        assert!(t.notice(Notice::TooManyProcesses, 0));
        assert!(!t.notice(Notice::TooManyProcesses, 0));
    }
}
