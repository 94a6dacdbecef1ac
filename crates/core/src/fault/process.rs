//! Events of the whole process: paging is switched on, the process forks, time passes.
//!
//! **Switching on.** Each range is attached first and looked at afterwards: from the attach on only uzswap
//! maps pages there, so what is found present then is exactly what is resident.
//!
//! **Fork.** The child has copies of everything: words, limbo's frames, the pool. It has no userfaultfd of its own, so a missing
//! page would read as zero: before anything else runs there, it opens one and attaches every range.
//! Its inherited memory (pages, limbo, the pool) is shared with the parent until one of them writes; counting it at
//! once would make every fork-and-exec evict half of the parent. So all of it begins as a *debt* that is not
//! counted; it melts with time and evictions, which may turn shared pages into copies, and the evictors correct it by what
//! the kernel says is each one's share (Pss).

use core::sync::atomic::Ordering;

use super::hold::ThreadHolds;
use super::{Active, Locked, Pager};
use crate::cache::ForkGuard;
use crate::control::{Counter, Slot};
use crate::region::{PageState, RangeFlags};
use crate::store::FileStore;
use crate::sys::program::mincore;
use crate::sys::{PAGE_SIZE, Result};

/// What one core needs at least to copy a shared page that is written.
const COPY_NS_PER_PAGE: u64 = 3_000;
/// A fresh child's memory is counted with its relatives' for this long: most exec or exit by then.
const FORK_GRACE_NS: u64 = 30_000_000;
/// How long a process may stay over its limit before it must try again to make room.
const TOLERATED_NS: u64 = 2_000_000;

impl Pager {
    /// Attaches every range and adopts what is present. With the lock held, right after `set_active`.
    pub fn activate_ranges(&self, s: &mut Locked<'_>) {
        let active = self.active().expect("active");
        let mut i = 0;
        while i < self.ranges.len() {
            let range = self.ranges.at(i);
            i += 1;
            // Hiding memory, if only for a moment, would fail the call that is using it.
            let in_use = active.mechanism.is_protect() && self.holds.is_inflight(range.start, range.end);
            if in_use || active.mechanism.attach(range.start, range.len()).is_err() {
                self.note_flag(range.start, range.end, RangeFlags::UNREGISTERED, true);
                // The list may have been split or merged: find the place again.
                i = self.ranges.index_from(range.end);
                continue;
            }
            self.adopt(s, active, range.start, range.end, range.prot);
        }
        self.publish(true);
    }

    /// Finds what is present in a range that was just attached.
    fn adopt(&self, _s: &mut Locked<'_>, active: &Active, start: usize, end: usize, prot: u32) {
        let mut present = [0u8; 512];
        let unit = if active.mechanism.is_protect() { self.unit_pages() * PAGE_SIZE } else { PAGE_SIZE };
        let mut at = start;
        while at < end {
            let stop = ((at / (512 * PAGE_SIZE) + 1) * 512 * PAGE_SIZE).min(end);
            let pages = (stop - at) / PAGE_SIZE;
            if mincore(at, &mut present[..pages]).is_ok() && present[..pages].iter().any(|p| p & 1 != 0) {
                for unit_at in (at / unit * unit..stop).step_by(unit) {
                    let (from, to) = (unit_at.max(at), (unit_at + unit).min(stop));
                    let slice = &present[(from - at) / PAGE_SIZE..(to - at) / PAGE_SIZE];
                    if slice.iter().any(|p| p & 1 != 0) {
                        self.adopt_run(active, from, to, prot);
                    }
                }
            }
            at = stop;
        }
    }

    fn adopt_run(&self, active: &Active, from: usize, to: usize, prot: u32) {
        for page in (from..to).step_by(PAGE_SIZE) {
            if let Ok((m, e)) = self.table.ensure(page)
                && e.state() == PageState::None
            {
                e.adopt();
                m.count(1, 1);
                self.resident.fetch_add(1, Ordering::Relaxed);
            }
        }
        let _ = active.mechanism.expose(from, to - from, prot);
    }

    /// Before fork, with the lock held: nothing in the cache may be half done when memory is copied. The guard goes
    /// to one of the two functions below, in the parent and in the child.
    pub fn prepare_fork(&self, _s: &mut Locked<'_>) -> Option<ForkGuard<'static, FileStore>> {
        let a = self.active()?;
        self.add(Counter::Forks, 1);
        Some(a.cache.prepare_fork())
    }

    /// After fork, in the parent (also when fork failed).
    pub fn after_fork_parent(
        &self,
        _s: &mut Locked<'_>,
        guard: Option<ForkGuard<'static, FileStore>>,
        child_exists: bool,
    ) {
        match (self.active(), guard) {
            (Some(a), Some(g)) if child_exists => a.cache.after_fork_parent(g),
            (Some(a), Some(g)) => a.cache.after_fork_failed(g),
            _ => {}
        }
    }

    /// After fork, in the child, before anything else runs: `mine` are this thread's holds, `slot` is
    /// the child's own.
    pub fn after_fork_child(
        &self,
        s: &mut Locked<'_>,
        guard: Option<ForkGuard<'static, FileStore>>,
        mine: &ThreadHolds,
        tid: u32,
        slot: &'static Slot,
    ) -> Result<()> {
        // Order matters: the cache's locks are held since `prepare_fork`, and dropping ranges frees entries.
        if let (Some(a), Some(g)) = (self.active(), guard) {
            a.cache.after_fork_child(g);
        }
        self.slot.store(core::ptr::from_ref(slot).cast_mut(), Ordering::Release);
        self.published.store(0, Ordering::Relaxed);
        self.holds.after_fork_child(mine, tid);
        self.evictor_word.store(0, Ordering::Relaxed);
        self.evictor_asked.store(false, Ordering::Relaxed);
        let dropped = |r: &crate::region::Range| r.flags.has(RangeFlags::DONTFORK);
        while let Some(r) = (0..self.ranges.len()).map(|i| self.ranges.at(i)).find(dropped) {
            self.note_unmapped(s, r.start, r.end);
        }
        let Some(active) = self.active() else { return Ok(()) };
        active.mechanism.renew()?;
        s.limbo.after_fork_child(|slot, n| active.mechanism.release_slots(slot, n));
        self.limbo_pages.store(s.limbo.in_use() as i64, Ordering::Relaxed);
        slot.mechanism.store(active.kind as u32, Ordering::Release);
        for i in 0..self.ranges.len() {
            let r = self.ranges.at(i);
            if r.flags.has(RangeFlags::UNREGISTERED) {
                continue;
            }
            if r.flags.has(RangeFlags::WIPEONFORK) {
                self.note_discarded(s, r.start, r.end);
            }
            // By protection faults the child inherits what is hidden and what is shown.
            if !active.mechanism.is_protect() {
                active.mechanism.attach(r.start, r.len())?;
            }
        }
        self.set_unshared();
        self.set_debt(self.used_pages(), FORK_GRACE_NS);
        self.publish(true);
        Ok(())
    }

    /// What is left of the debt: since it was known, every eviction by a relative may have made a shared page this
    /// process's own, and so may every write, as fast as pages can be copied.
    pub(super) fn debt_now(&self) -> i64 {
        let debt = self.debt.load(Ordering::Relaxed);
        if debt <= 0 {
            return 0;
        }
        let elapsed_ns = crate::sys::now_ns().saturating_sub(self.debt_at_ns.load(Ordering::Relaxed));
        let evictions =
            self.tree().evictions.load(Ordering::Relaxed) - self.debt_at_evictions.load(Ordering::Relaxed);
        (debt - (elapsed_ns / COPY_NS_PER_PAGE) as i64 - evictions as i64).max(0)
    }

    fn set_debt(&self, pages: i64, grace_ns: u64) {
        self.debt_at_evictions.store(self.tree().evictions.load(Ordering::Relaxed), Ordering::Relaxed);
        self.debt_at_ns.store(crate::sys::now_ns() + grace_ns, Ordering::Relaxed);
        self.debt.store(pages.max(0), Ordering::Relaxed);
    }

    /// Corrects what counts by the kernel's own share: `pss_pages` is the process's proportional part of its
    /// anonymous memory. What it shares with relatives is counted once among them.
    pub fn set_shared(&self, pss_pages: i64) {
        let counted = self.used_pages() + self.debt_now();
        self.set_debt(counted - pss_pages, 0);
    }

    /// The process has no relatives that share memory with it any more.
    pub fn set_unshared(&self) {
        self.debt.store(0, Ordering::Relaxed);
    }

    /// Lets the process go over its limit by so much until the evictor's next tick.
    pub(super) fn tolerate(&self, pages: i64) {
        let debt = self.debt_now();
        self.set_debt(debt + pages, TOLERATED_NS);
    }
}
