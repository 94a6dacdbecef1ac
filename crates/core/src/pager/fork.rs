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
use crate::region::{ADDRESS_END, RangeFlags};
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
        // By addresses: without memory for the list a range stays in it, and cannot be attached
        // below.
        let mut next = 0;
        while let Some(r) = self.ranges.next_from(next) {
            next = r.end;
            if r.flags.has(RangeFlags::DONTFORK) {
                self.note_unmapped(s, r.start, r.end);
            }
        }
        // The kernel has locked the parent's memory alone.
        self.note_flag(0, ADDRESS_END, RangeFlags::LOCKED, false);
        let Some(active) = self.active() else { return Ok(()) };
        let attached = if may_renew { self.attach_again(s, active) } else { Err(Errno::EPERM) };
        if attached.is_err() {
            self.end_in_child(s, active);
            self.set_unshared();
            return attached;
        }
        s.limbo.after_fork_child(|slot, n| active.mechanism.release_slots(slot, n));
        // Frames in their place are counted one by one, and that count holds in the child, too.
        if !active.mechanism.keeps_frames() {
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
        self.for_each_inherited(s, |_, r| match active.mechanism.is_inherited() {
            true => Ok(()),
            false => active.mechanism.attach(r.start, r.len()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::{READ_WRITE, Spec, Thread, Touch, World};
    use super::*;
    use crate::sys::mechanism::in_child;

    const PAGES: usize = 16;

    /// A world whose pages are written, and the thread that did it.
    fn write(w: &World, pages: usize) -> Thread<'_> {
        w.map(0, pages, READ_WRITE);
        w.write(0..pages, |page, b| b[7] = page as u8 + 1)
    }

    #[test]
    fn a_child_has_its_own_slot_and_none_of_its_parents_threads_and_pins() {
        let w = World::new(Spec::roomy(PAGES));
        let (mut mine, other) = (write(&w, PAGES), w.thread());
        mine.holds.push(w.at(0), w.at(1), 1);
        other.holds.push(w.at(4), w.at(5), 1);
        let p = &w.pager;
        p.note_pins();
        p.copying.store(1, Ordering::Relaxed);
        p.has_asked.store(true, Ordering::Relaxed);
        p.wake_evictor();
        let of_threads = || {
            let is_held = [0, 4].map(|page| p.holds.is_held(w.at(page), w.at(page + 1)));
            let asked = [&p.has_asked, &p.evictor_asked].map(|flag| flag.load(Ordering::Relaxed));
            let counts = [&p.copying, &p.evictor_word].map(|n| n.load(Ordering::Relaxed));
            (is_held, p.may_be_pinned(), asked, counts)
        };
        let (before, parent) = (of_threads(), p.slot());
        assert_eq!(before, ([true; 2], true, [true; 2], [1; 2]));
        assert!(w.fork(&mut mine, |_| {
            assert_eq!(of_threads(), ([true, false], false, [false; 2], [0; 2]));
            assert!(!p.is_my_slot(parent) && p.slot().mechanism().is_some());
            assert_eq!(p.slot().counted_by.load(Ordering::Relaxed), parent.id());
            assert_eq!(p.published_pages(), p.used_pages());
        }));
        assert_eq!((of_threads(), parent.get(Counter::Forks)), (before, 1));
        p.copying.store(0, Ordering::Relaxed);
    }

    #[test]
    fn memory_that_is_not_for_the_child_is_forgotten_there_and_wiped_memory_is_zero() {
        let w = World::new(Spec::roomy(PAGES));
        let mut thread = write(&w, PAGES);
        w.pager.note_flag(w.at(4), w.at(8), RangeFlags::DONTFORK, true);
        w.pager.note_flag(w.at(8), w.at(12), RangeFlags::WIPEONFORK, true);
        // All of both is in the cache, so that the kernel has nothing to do there.
        assert_eq!(w.pager.page_out(w.at(4), w.at(12)), w.at(12));
        let assert_byte = |thread: &mut Thread<'_>, page: usize, byte: u8| {
            let touch = thread.access(w.at(page), false, |b| assert_eq!(b[7], byte));
            assert_eq!(touch, Touch::Done);
        };
        assert!(w.fork(&mut thread, |thread| {
            assert!(!w.pager.ranges.overlaps(w.at(4), w.at(8)));
            assert_eq!(w.active().cache.counters().stored_pages, 0);
            for (page, byte) in [(3, 4), (8, 0), (11, 0), (12, 13)] {
                assert_byte(thread, page, byte);
            }
        }));
        assert_eq!(w.pager.stored_pages(), 8);
        (4..12).for_each(|page| assert_byte(&mut thread, page, page as u8 + 1));
        w.check();
    }

    #[test]
    fn memory_that_is_locked_is_not_locked_in_the_child() {
        let w = World::new(Spec::roomy(PAGES));
        let mut thread = write(&w, PAGES);
        w.lock_in_memory(&thread, 0, 8, true);
        w.pager.note_flag(w.at(4), w.at(12), RangeFlags::STAYS, true);
        let may_leave =
            || [0, 4, 8, 12].map(|page| w.pager.ranges.find(w.at(page)).unwrap().is_swept());
        assert!(w.fork(&mut thread, |_| assert_eq!(may_leave(), [true, false, false, true])));
        assert_eq!(may_leave(), [false, false, false, true]);
        w.check();
    }

    #[test]
    fn without_the_mechanism_paging_ends_in_the_child_and_everything_counts_there() {
        let w = World::new(Spec::roomy(PAGES));
        let (p, thread) = (&w.pager, write(&w, PAGES));
        // The parent is a child itself, of a process that counts some of its pages.
        p.sharing.begin_in_child(5, 0);
        let slot = p.tree().claim(2).expect("a slot");
        let mut s = p.lock();
        let mut guard = p.prepare_fork(&mut s, Some(slot));
        let is_good = in_child(|| {
            let (holds, guard) = (thread.holds, guard.take());
            let result = p.after_fork_child(&mut s, guard, holds, 1 << 24, slot, false);
            assert_eq!(result, Err(Errno::EPERM));
            assert!(p.active().is_none() && p.ended().is_some() && p.is_ending());
            assert_eq!((p.uncounted_pages(), p.resident_pages()), (0, PAGES as i64));
        });
        p.after_fork_parent(&mut s, guard, true);
        assert!(is_good && p.active().is_some() && !p.is_ending());
        assert_eq!(p.uncounted_pages(), 5);
    }

    #[test]
    fn frames_that_wait_for_a_window_are_given_back_before_a_fork() {
        const MANY: usize = 64;
        let w = World::new(Spec { slots: 1024, ..Spec::roomy(MANY) });
        write(&w, MANY);
        w.sweep(false);
        assert!(w.stock() && w.pager.limbo_pages() > 0);
        w.fork_in_vain();
        assert!(!w.pager.enter().limbo.has_stock());
        assert_eq!(w.pager.limbo_pages(), 0);
        w.check();
    }
}
