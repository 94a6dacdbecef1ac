//! Fork. The child has copies of everything: words, limbo's frames, the pool. It has no userfaultfd
//! of its own, so a missing page would read as zero: before anything else runs there, it opens one
//! and attaches every range. Memory that it shares with the parent is marked and counted page by
//! page (`marks.rs`, `shared.rs`).

use core::sync::atomic::Ordering;

use super::active::PagerStore;
use super::ahead::Ahead;
use super::hold::ThreadHolds;
use super::{Active, Locked, Pager};
use crate::cache::ForkGuard;
use crate::control::{Counter, Slot};
use crate::region::RangeFlags;
use crate::store::extents::set_owner;
use crate::sys::{Errno, Result};

impl Pager {
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
            self.count_frames(s.limbo.in_use() as i64 - self.limbo_pages());
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
}
