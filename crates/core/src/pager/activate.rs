//! Events of the whole process: paging is switched on, the process forks, time passes.
//!
//! **Switching on.** Each range is attached first and looked at afterwards: from the attach on only
//! uzswap maps pages there, so the pages found present then are exactly the resident ones.
//!
//! **Fork.** The child has copies of everything: words, limbo's frames, the pool. It has no
//! userfaultfd of its own, so a missing page would read as zero: before anything else runs there,
//! it opens one and attaches every range. Memory that it shares with the parent is marked and
//! counted page by page (`shared.rs`).

use core::sync::atomic::Ordering;

use super::active::PagerStore;
use super::ahead::Ahead;
use super::hold::ThreadHolds;
use super::{Active, Locked, Pager};
use crate::cache::ForkGuard;
use crate::control::trace::Kind;
use crate::control::{Counter, Slot};
use crate::region::{ADDRESS_END, Mapped, PageState, Range, RangeFlags};
use crate::store::extents::set_owner;
use crate::sys::{Errno, PAGE_SIZE, Result};

impl Pager {
    /// Attaches every range and adopts what is present. With the lock held, right after
    /// `set_active`.
    pub fn activate_ranges(&self, s: &mut Locked<'_>) {
        let active = self.active().expect("active");
        let hides = active.mechanism.is_protect();
        if hides {
            // Hiding memory, if only for a moment, would fail the call that is using it. Memory
            // around it can be paged.
            self.holds.overlapping(0, ADDRESS_END, |start, end| {
                self.note_flag(start, end, RangeFlags::UNREGISTERED, true);
                false
            });
        }
        let mut i = 0;
        while i < self.ranges.len() {
            let range = self.ranges.at(i);
            i += 1;
            if range.flags.has(RangeFlags::UNREGISTERED) {
                continue;
            }
            let in_use = hides && self.holds.is_inflight(range.start, range.end);
            if in_use || active.mechanism.attach(range.start, range.len()).is_err() {
                self.note_flag(range.start, range.end, RangeFlags::UNREGISTERED, true);
                // The list may have been split or merged: find the place again.
                i = self.ranges.index_from(range.end);
                continue;
            }
            self.want_huge(active, &range);
            self.adopt(s, active, range.start, range.end, range.prot);
            self.note_huge_ones(active, &range);
        }
        self.size.store(self.used_pages(), Ordering::Relaxed);
        self.publish(true);
    }

    /// Finds the pages that are present in a range that was just attached.
    fn adopt(&self, s: &mut Locked<'_>, active: &Active, start: usize, end: usize, prot: u32) {
        let mut present = [0u8; 512];
        let unit =
            if active.mechanism.is_protect() { self.unit_pages() * PAGE_SIZE } else { PAGE_SIZE };
        let mut at = start;
        while at < end {
            let stop = ((at / (512 * PAGE_SIZE) + 1) * 512 * PAGE_SIZE).min(end);
            let pages = (stop - at) / PAGE_SIZE;
            if active.mechanism.present(at, &mut present[..pages]).is_ok()
                && present[..pages].iter().any(|p| p & 1 != 0)
            {
                for unit_at in (at / unit * unit..stop).step_by(unit) {
                    let (from, to) = (unit_at.max(at), (unit_at + unit).min(stop));
                    let slice = &present[(from - at) / PAGE_SIZE..(to - at) / PAGE_SIZE];
                    if slice.iter().any(|p| p & 1 != 0) {
                        self.adopt_run(active, from, to, prot);
                        self.watch_found(s, from, to);
                    }
                }
            }
            at = stop;
        }
    }

    fn adopt_run(&self, active: &Active, from: usize, to: usize, prot: u32) {
        // Pages that the kernel has no mapping to show are not taken to be there: calls would not
        // make them so. By protection faults a page that was never touched is shown as it is.
        if active.mechanism.expose(from, to - from, prot).is_err() {
            return;
        }
        for page in (from..to).step_by(PAGE_SIZE) {
            if let Ok((m, e)) = self.table.ensure(page)
                && e.state() == PageState::None
            {
                e.adopt();
                m.count(1, 1);
                self.resident.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.trace_pages(Kind::Adopted, from, to);
        // Pages mapped before paging began may be small pages to the kernel.
        self.table.for_each_stretch(from, to, |_, m| m.set_mapped(Mapped::Small));
    }

    /// Before fork, with the lock held: nothing in the cache may be half done when memory is
    /// copied. The guard goes to one of the two functions below, in the parent and in the child.
    /// `child` is the child's slot, if there is one.
    pub fn prepare_fork(
        &self,
        s: &mut Locked<'_>,
        child: Option<&Slot>,
    ) -> Option<ForkGuard<'static, PagerStore>> {
        let a = self.active()?;
        self.add(Counter::Forks, 1);
        if let Some(child) = child {
            self.count_for_child(child);
        }
        while self.give_frame_back(s, a) {}
        self.let_stay(s, a);
        self.share_all(a);
        Some(a.cache.prepare_fork())
    }

    /// After fork, in the parent (also when fork failed).
    pub fn after_fork_parent(
        &self,
        _s: &mut Locked<'_>,
        guard: Option<ForkGuard<'static, PagerStore>>,
        child_exists: bool,
    ) {
        match (self.active(), guard) {
            (Some(a), Some(g)) if child_exists => a.cache.after_fork_parent(g),
            (Some(a), Some(g)) => a.cache.after_fork_failed(g),
            _ => {}
        }
    }

    /// After fork, in the child, before anything else runs: `mine` are this thread's holds, `slot`
    /// is the child's own. `may_renew`: the mechanism's files may be opened. Without the mechanism
    /// paging ends in the child, which has all of its memory then; the error says why.
    pub fn after_fork_child(
        &self,
        s: &mut Locked<'_>,
        guard: Option<ForkGuard<'static, PagerStore>>,
        mine: &ThreadHolds,
        tid: u32,
        slot: &'static Slot,
        may_renew: bool,
    ) -> Result<()> {
        self.has_asked.store(false, Ordering::Relaxed);
        // The parent's pinned pages are copied for the child, and the copies are not pinned.
        self.pins.store(false, Ordering::Relaxed);
        // The threads that may be copying are the parent's.
        self.copying.store(0, Ordering::Relaxed);
        // Order matters: the cache's locks are held since `prepare_fork`, and dropping ranges frees
        // entries.
        if let (Some(a), Some(g)) = (self.active(), guard) {
            a.cache.after_fork_child(g);
        }
        let parent = self.slot().own_pid();
        self.slot.store(core::ptr::from_ref(slot).cast_mut(), Ordering::Release);
        set_owner(slot.lease_owner());
        self.trace_fork(parent);
        self.holds.after_fork_child(mine, tid);
        self.evictor_word.store(0, Ordering::Relaxed);
        self.evictor_asked.store(false, Ordering::Relaxed);
        self.room.after_fork_child();
        (s.ahead, s.coming) = (Ahead::NOTHING, Ahead::NOTHING);
        s.claims.after_fork_child();
        let dropped = |r: &crate::region::Range| r.flags.has(RangeFlags::DONTFORK);
        while let Some(r) = (0..self.ranges.len()).map(|i| self.ranges.at(i)).find(dropped) {
            self.note_unmapped(s, r.start, r.end);
        }
        let Some(active) = self.active() else { return Ok(()) };
        let attached = if may_renew { self.attach_again(s, active) } else { Err(Errno::EPERM) };
        if attached.is_err() {
            self.end_in_child(s, active);
            self.set_unshared();
            return attached;
        }
        s.limbo.after_fork_child(|slot, n| active.mechanism.release_slots(slot, n));
        // With protection faults the pages of limbo are counted one by one, and that count holds in
        // the child, too.
        if !active.mechanism.is_protect() {
            self.limbo_pages.store(s.limbo.in_use() as i64, Ordering::Relaxed);
        }
        slot.mechanism.store(active.kind as u32, Ordering::Release);
        self.share_in_child(active);
        self.publish(true);
        Ok(())
    }

    /// Puts every range under a mechanism of the child's own.
    fn attach_again(&self, s: &mut Locked<'_>, active: &Active) -> Result<()> {
        active.mechanism.renew()?;
        self.for_each_inherited(s, |_, r| match active.mechanism.is_protect() {
            // With protection faults the child inherits which memory is hidden and which is shown.
            true => Ok(()),
            false => active.mechanism.attach(r.start, r.len()),
        })
    }

    /// Calls `f`, in the child, with every range that its parent paged. Ranges that fork wipes are
    /// empty by then.
    pub(super) fn for_each_inherited(
        &self,
        s: &mut Locked<'_>,
        mut f: impl FnMut(&mut Locked<'_>, Range) -> Result<()>,
    ) -> Result<()> {
        // By addresses, as `f` may split ranges.
        let mut next = 0;
        loop {
            let i = self.ranges.index_from(next);
            if i >= self.ranges.len() {
                return Ok(());
            }
            let r = self.ranges.at(i);
            next = r.end;
            if r.flags.has(RangeFlags::UNREGISTERED) {
                continue;
            }
            if r.flags.has(RangeFlags::WIPEONFORK) {
                self.note_discarded(s, r.start, r.end);
            }
            f(s, r)?;
        }
    }
}
