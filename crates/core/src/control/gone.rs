//! Whether a slot's process is still there: the lock on the slot's byte tells.
//!
//! A process holds a lock on one byte of the block's file for each slot that it has, and the kernel
//! gives the lock back only when the process's memory is gone. A process id would tell less: it
//! means something in one pid namespace, and may be another process's by now. It serves where there
//! is no lock, and is what `uzswap run` shows (`translate`).

use core::sync::atomic::Ordering;

use super::slot::{DEPARTED, UNBORN};
use super::{CONTROL_BYTES, Slot, Tree};
use crate::sys::{fd, now_ns, pid_namespace, thread_exists};

/// 10 s: a process of another pid namespace that has not locked its slot's byte by then never will,
/// since it has ended before.
pub(super) const UNLOCKED_NS: u64 = 10_000_000_000;

impl Tree {
    /// Finds out under which process ids `uzswap run` sees the processes: the kernel names the
    /// holder of the lock on a slot's byte.
    pub fn translate(&self, control_fd: i32) {
        for s in self.live_slots() {
            let id = s.id();
            let is_known = (s.seen.load(Ordering::Acquire) >> 32) as u32 == id;
            if is_known || id & (DEPARTED | UNBORN) != 0 || s.is_locked.load(Ordering::Acquire) == 0
            {
                continue;
            }
            if let Some(at) = self.lock_offset(s)
                && let Ok(Some(pid)) = fd::lock_holder(control_fd, at)
                && s.id() == id
            {
                s.seen.store(u64::from(id) << 32 | u64::from(pid), Ordering::Release);
            }
        }
    }

    /// The slot of another process that has this id in this pid namespace, and the slot's owner.
    /// The process holds the slot's lock, so it is alive and none that had its id before.
    pub fn find(&self, pid: u32, control_fd: i32) -> Option<(&Slot, u32)> {
        self.live_slots().find_map(|s| {
            let id = s.id();
            let is_named = id & (DEPARTED | UNBORN) == 0 && s.own_pid() == pid;
            let at = self.lock_offset(s).filter(|_| is_named)?;
            (fd::lock_holder(control_fd, at) == Ok(Some(pid)) && s.id() == id).then_some((s, id))
        })
    }

    /// Where in the control block's file the lock of a slot's process lies: behind its end, one
    /// byte each. None: a slot that is not of this tree.
    pub fn lock_offset(&self, s: &Slot) -> Option<usize> {
        let i = self.slots.element_offset(s)?;
        Some(CONTROL_BYTES + i)
    }

    /// Whether a slot's process is gone, and its memory with it. `control_fd` is the control
    /// block's file. A process that could take no lock (or has not yet) is gone when its process id
    /// is, where that can be told.
    pub fn is_gone(&self, s: &Slot, control_fd: i32) -> bool {
        let id = s.id();
        let locked = s.is_locked.load(Ordering::Acquire) != 0;
        match self.lock_offset(s).filter(|_| locked).map(|at| fd::is_byte_locked(control_fd, at)) {
            // The lock may have gone to the next process in the slot meanwhile.
            Some(Ok(held)) => !held && s.id() == id,
            _ => id & DEPARTED != 0 || self.is_gone_unlocked(s),
        }
    }

    /// Whether a slot's process is gone, if it has taken no lock.
    fn is_gone_unlocked(&self, s: &Slot) -> bool {
        let whose = s.whose.load(Ordering::Acquire);
        let (namespace, pid) = ((whose >> 32) as u32, whose as u32);
        if namespace != 0 && namespace == pid_namespace() {
            return !thread_exists(pid);
        }
        // A process id of another namespace says nothing here. A time that is still to come is
        // nonsense.
        now_ns().wrapping_sub(s.claimed_at_ns.load(Ordering::Acquire)) > UNLOCKED_NS
    }

    /// Looks for processes that are gone, unless another process did within `notice_ns`: one look
    /// is enough for all. A process is retired `notice_ns` after it was first seen to be gone:
    /// until then its relatives can look at the memory that they shared with it.
    pub fn look_for_gone(&self, now_ns: u64, notice_ns: u64, is_gone: impl Fn(&Slot) -> bool) {
        let at = self.gone_looked_at_ns.load(Ordering::Acquire);
        // A time that is still to come is nonsense, and must not keep all processes from looking.
        let looks = now_ns.wrapping_sub(at) >= notice_ns
            && self
                .gone_looked_at_ns
                .compare_exchange(at, now_ns, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        if !looks {
            return;
        }
        for s in self.live_slots() {
            let id = s.id();
            if !is_gone(s) {
                continue;
            }
            match s.gone_at_ns.load(Ordering::Acquire) {
                0 => {
                    s.gone_at_ns.store(now_ns, Ordering::Release);
                    self.gone_found_at_ns.fetch_max(now_ns, Ordering::AcqRel);
                }
                since if now_ns.wrapping_sub(since) >= notice_ns => self.retire(s, id),
                _ => {}
            }
        }
    }

    /// When a process was last found to be gone.
    pub fn gone_found_at_ns(&self) -> u64 {
        self.gone_found_at_ns.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::zeroed_tree as tree;

    #[test]
    fn who_is_gone_is_noticed_once_for_all_and_counts_until_relatives_have_looked() {
        let t = tree();
        let a = t.claim(10).unwrap();
        t.publish(a, 100, 100);
        t.publish(t.claim(11).unwrap(), 50, 50);
        let is_gone = |s: &Slot| s.own_pid() == 10;
        let looks = |now: u64| {
            t.look_for_gone(now, 10, is_gone);
            (t.gone_found_at_ns(), t.used_pages.load(Ordering::Relaxed))
        };
        assert_eq!(looks(1000), (1000, 150));
        t.look_for_gone(1005, 10, |_| panic!("somebody has just looked"));
        assert_eq!(looks(1010), (1000, 50), "after its time");
        let b = t.claim(10).unwrap();
        t.publish(b, 30, 30);
        assert_eq!(looks(1020), (1020, 80), "the next in the slot has a time of its own");
    }
}
