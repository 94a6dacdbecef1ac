//! Holds: pages that must stay mapped because the kernel is using them.
//!
//! A system call that meets a missing page fails, sometimes after it has consumed its data. So its
//! buffers are held: published here first, then made resident, and given up when the call returns.
//!
//! The protocol with the evictor needs no lock when the pages are resident already:
//! ```text
//!  system call:  publish hold ; fence ; read page words   -> all Resident: go
//!  evictor:      words := Limbo ; fence ; read holds      -> held: words := Resident, page untouched
//! ```
//! The second of the two sees the first (both orders are sequentially consistent): either the call
//! sees Limbo and takes the slow way through the lock, or the evictor sees the hold and leaves the
//! page.
//!
//! Holds of a thread form a stack, because signal handlers make system calls on top of interrupted
//! ones.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering, compiler_fence, fence};

use crate::region::{RangeFlags, Ranges};
use crate::sys::mem::Table;
use crate::sys::{PAGE_SIZE, Result};

/// Ranges that one thread can hold: a full vector (1024) and those of the handlers on top of it.
/// Only slots in use are touched. Further ranges are merged into the last one, which then covers
/// the memory between them.
pub const HOLDS_PER_THREAD: usize = 1360;
/// Threads that can be registered.
const MAX_THREADS: usize = 1 << 15;
/// Bit of a slot's thread id: the thread is ending.
const ENDING: u32 = 1 << 31;

crate::zeroable! {
    #[derive(Default)]
    struct Held {
        start: AtomicUsize,
        end: AtomicUsize,
        /// The stack pointer of the holder: a hold whose frame was left by longjmp or cancellation
        /// is recognised by it.
        sp: AtomicUsize,
    }
}

crate::zeroable! {
    /// The holds of one thread.
    pub struct ThreadHolds {
        /// Thread id; 0: free.
        tid: AtomicU32,
        count: AtomicU32,
        /// The mark from which on holds are another process's, and one more; 0: the stack is not
        /// lent.
        lent: AtomicU32,
        held: [Held; HOLDS_PER_THREAD],
    }
}

impl ThreadHolds {
    /// Gives the slot to the thread for which it was claimed, which exists now.
    pub fn adopt(&self, tid: u32) {
        self.tid.store(tid, Ordering::Release);
    }

    /// The number of holds now: the mark to return to.
    pub fn mark(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    /// Publishes a hold of whole pages. Only the owning thread calls this; a handler on top of it
    /// leaves the stack as it was.
    pub fn push(&self, start: usize, end: usize, sp: usize) {
        debug_assert!(
            start.is_multiple_of(PAGE_SIZE) && end.is_multiple_of(PAGE_SIZE),
            "{start:#x}..{end:#x}"
        );
        loop {
            let n = self.count.load(Ordering::Relaxed) as usize;
            if n == HOLDS_PER_THREAD {
                let h = &self.held[n - 1];
                h.start.store(h.start.load(Ordering::Relaxed).min(start), Ordering::SeqCst);
                h.end.store(h.end.load(Ordering::Relaxed).max(end), Ordering::SeqCst);
                fence(Ordering::SeqCst);
                return;
            }
            // The slot is taken first and filled afterwards: a handler that comes in between takes
            // the next one. The handler judges by the stack pointer whether the frame below it was
            // abandoned, so `sp` is right before the slot is taken.
            let h = &self.held[n];
            h.sp.store(sp, Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
            self.count.store(n as u32 + 1, Ordering::SeqCst);
            compiler_fence(Ordering::SeqCst);
            h.sp.store(sp, Ordering::Relaxed);
            h.start.store(start, Ordering::Relaxed);
            h.end.store(end, Ordering::SeqCst);
            // A half-written hold that the evictor has seen does no harm: words are believed only
            // after this fence.
            fence(Ordering::SeqCst);
            let is_ours = self.count.load(Ordering::Relaxed) as usize == n + 1;
            if is_ours && h.sp.load(Ordering::Relaxed) == sp {
                return;
            }
        }
    }

    /// Gives up all holds above the mark.
    pub fn pop_to(&self, mark: u32) {
        self.count.store(mark, Ordering::Release);
    }

    /// Gives up holds whose frames have been left without returning: frames below `sp` on the same
    /// stack, and frames on the alternate stack (`alternate`, empty if there is none) once the
    /// thread is off it.
    pub fn drop_abandoned(&self, sp: usize, alternate: core::ops::Range<usize>) {
        const SAME_STACK_BYTES: usize = 256 << 10;
        let mut n = self.count.load(Ordering::Relaxed);
        while n > 0 {
            let held_sp = self.held[n as usize - 1].sp.load(Ordering::Relaxed);
            let below = held_sp < sp && sp - held_sp <= SAME_STACK_BYTES;
            let left = match (alternate.contains(&held_sp), alternate.contains(&sp)) {
                (true, false) => true,
                // The interrupted frames, wherever they lie, are still there.
                (false, true) => false,
                (true, true) | (false, false) => below,
            };
            if !left {
                break;
            }
            n -= 1;
        }
        self.count.store(n, Ordering::Release);
    }

    /// Notes that a process which shares this memory is about to use the stack while the owner
    /// waits for it (vfork).
    pub fn lend(&self) {
        let _ =
            self.lent.compare_exchange(0, self.mark() + 1, Ordering::Relaxed, Ordering::Relaxed);
    }

    pub fn is_lent(&self) -> bool {
        self.lent.load(Ordering::Relaxed) != 0
    }

    /// The owner goes on. Gives up the holds that the process left: it has executed a program, or
    /// was killed, in the middle of a call.
    pub fn take_back(&self) {
        let lent = self.lent.swap(0, Ordering::Relaxed);
        if lent != 0 {
            self.count.fetch_min(lent - 1, Ordering::Release);
        }
    }

    fn any(&self, mut f: impl FnMut(usize, usize) -> bool) -> bool {
        let n = (self.count.load(Ordering::SeqCst) as usize).min(HOLDS_PER_THREAD);
        self.held[..n]
            .iter()
            .any(|h| f(h.start.load(Ordering::SeqCst), h.end.load(Ordering::SeqCst)))
    }
}

/// All holds of the process.
#[derive(Default)]
pub struct Holds {
    threads: Table<ThreadHolds>,
    /// Slots ever used.
    high: AtomicUsize,
    /// Held for good: memory that the kernel uses between calls. Whole pages.
    kept: Ranges,
    /// Buffers of calls that were under way, unheld, when paging was switched on.
    inflight: Ranges,
}

impl Holds {
    pub const fn new() -> Holds {
        Holds {
            threads: Table::new(),
            high: AtomicUsize::new(0),
            kept: Ranges::new(),
            inflight: Ranges::new(),
        }
    }

    /// Claims a slot for a thread. Slots of threads that have ended are taken over.
    pub fn register(&self, tid: u32) -> Result<&ThreadHolds> {
        let high = self.high.load(Ordering::Acquire);
        for i in 0..high {
            let Some(t) = self.threads.get(i) else { continue };
            let owner = t.tid.load(Ordering::Acquire);
            let ended = owner & ENDING != 0 && !crate::sys::thread_exists(owner & !ENDING);
            if (owner == 0 || ended)
                && t.tid.compare_exchange(owner, tid, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            {
                t.lent.store(0, Ordering::Relaxed);
                t.count.store(0, Ordering::Release);
                return Ok(t);
            }
        }
        loop {
            let i = self.high.fetch_add(1, Ordering::AcqRel);
            if i >= MAX_THREADS {
                self.high.store(MAX_THREADS, Ordering::Release);
                return Err(crate::sys::Errno::EAGAIN);
            }
            // Another thread that looks for a free slot may have found this one already.
            let t = self.threads.ensure(i)?;
            if t.tid.compare_exchange(0, tid, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return Ok(t);
            }
        }
    }

    /// Marks a thread that is about to end. Its holds stay until it is gone: the kernel still walks
    /// its robust list.
    pub fn end(&self, t: &ThreadHolds) {
        t.tid.fetch_or(ENDING, Ordering::AcqRel);
    }

    /// Frees the slot of a thread that does not exist.
    pub fn unregister(&self, t: &ThreadHolds) {
        t.count.store(0, Ordering::Release);
        t.tid.store(0, Ordering::Release);
    }

    /// Frees the slot of a thread that is gone, unless it has said that it ends: then the slot may
    /// be another thread's by now.
    pub fn forget_gone(&self, t: &ThreadHolds, tid: u32) {
        if t.tid.load(Ordering::Acquire) == tid {
            self.unregister(t);
        }
    }

    /// In the child after fork: only `mine` is a thread of this process.
    pub fn after_fork_child(&self, mine: &ThreadHolds, tid: u32) {
        for i in 0..self.high.load(Ordering::Acquire) {
            if let Some(t) = self.threads.get(i)
                && !core::ptr::eq(t, mine)
            {
                self.unregister(t);
            }
        }
        mine.tid.store(tid, Ordering::Release);
    }

    /// Keeps a range for good. With the pager's lock held.
    pub fn keep(&self, start: usize, end: usize) -> Result<()> {
        self.kept.add(crate::region::Range { start, end, prot: 1, flags: RangeFlags::NONE })
    }

    /// Forgets a range that is unmapped: there is nothing to keep any more.
    pub fn forget(&self, start: usize, end: usize) -> Result<()> {
        self.inflight.remove(start, end)?;
        self.kept.remove(start, end)
    }

    /// Holds a buffer of a call that is under way. With the pager's lock held.
    pub fn hold_inflight(&self, start: usize, end: usize) -> Result<()> {
        self.inflight.add(crate::region::Range { start, end, prot: 1, flags: RangeFlags::NONE })
    }

    /// Gives up all buffers of [`Holds::hold_inflight`].
    pub fn forget_inflight(&self) {
        let _ = self.inflight.remove(0, crate::region::ADDRESS_END);
    }

    /// Whether any part of `[start, end)` is a buffer of a call under way.
    pub fn is_inflight(&self, start: usize, end: usize) -> bool {
        self.inflight.first_overlap_unlocked(start, end).is_some()
    }

    /// Calls `f` with each held range that touches `[start, end)` until it returns true. Returns
    /// whether it did.
    pub fn overlapping(
        &self,
        start: usize,
        end: usize,
        mut f: impl FnMut(usize, usize) -> bool,
    ) -> bool {
        for i in 0..self.high.load(Ordering::Acquire) {
            if let Some(t) = self.threads.get(i)
                && t.any(|s, e| s < end && e > start && f(s, e))
            {
                return true;
            }
        }
        for list in [&self.kept, &self.inflight] {
            let mut from = start;
            while let Some(r) = list.first_overlap_unlocked(from, end) {
                if f(r.start, r.end) {
                    return true;
                }
                from = r.end;
            }
        }
        false
    }

    /// Whether any part of `[start, end)` is held.
    pub fn is_held(&self, start: usize, end: usize) -> bool {
        self.overlapping(start, end, |_, _| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_come_at_once_have_a_place_each() {
        const THREADS: usize = 4;
        for _ in 0..2000 {
            let (holds, start) = (Holds::new(), std::sync::Barrier::new(THREADS));
            let register = &|tid| {
                start.wait();
                (0..3)
                    .map(|_| core::ptr::from_ref(holds.register(tid).unwrap()) as usize)
                    .collect::<Vec<_>>()
            };
            let mut places: Vec<_> = std::thread::scope(|scope| {
                let threads: Vec<_> =
                    (1..=THREADS as u32).map(|tid| scope.spawn(move || register(tid))).collect();
                threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
            });
            places.sort_unstable();
            assert!(places.windows(2).all(|w| w[0] != w[1]));
        }
    }

    #[test]
    fn holds_nest_merge_and_are_given_up() {
        let h = Holds::new();
        let t = h.register(1).unwrap();
        assert!(!h.is_held(0, usize::MAX));
        let m = t.mark();
        t.push(0x1000, 0x3000, 100);
        assert!(h.is_held(0x2000, 0x3000) && !h.is_held(0x3000, 0x4000));
        for i in 0..2 * HOLDS_PER_THREAD {
            t.push(0x10_0000 + i * 0x1000, 0x10_1000 + i * 0x1000, 100);
        }
        for i in 0..2 * HOLDS_PER_THREAD {
            assert!(h.is_held(0x10_0000 + i * 0x1000, 0x10_0001 + i * 0x1000), "{i}");
        }
        t.pop_to(m);
        assert!(!h.is_held(0, usize::MAX));
    }

    #[test]
    fn a_thread_that_is_gone_holds_nothing_unless_its_slot_is_another_ones() {
        let h = Holds::new();
        let t = h.register(7).unwrap();
        t.push(0x1000, 0x2000, 100);
        h.forget_gone(t, 6);
        assert!(h.is_held(0x1000, 0x2000));
        h.forget_gone(t, 7);
        assert!(!h.is_held(0x1000, 0x2000));
        assert!(std::ptr::eq(h.register(8).unwrap(), t));
    }

    #[test]
    fn abandoned_frames_are_recognised_by_the_stack_pointer() {
        let h = Holds::new();
        let t = h.register(1).unwrap();
        t.push(0x1000, 0x2000, 0x7000_1000);
        t.push(0x5000, 0x6000, 0x7000_0800);
        t.drop_abandoned(0x7000_0900, 0..0);
        assert!(h.is_held(0x1000, 0x2000) && !h.is_held(0x5000, 0x6000));
        t.drop_abandoned(0x6000_0000, 0..0);
        // A handler on an alternate stack just above: the interrupted call goes on.
        t.drop_abandoned(0x7000_1800, 0x7000_1400..0x7000_2000);
        assert!(h.is_held(0x1000, 0x2000));
        t.drop_abandoned(0x7000_2000, 0..0);
        assert!(!h.is_held(0x1000, 0x2000));
    }

    #[test]
    fn what_a_vfork_child_leaves_is_given_up() {
        let h = Holds::new();
        let t = h.register(1).unwrap();
        t.push(0x1000, 0x2000, 0x7000_1000);
        t.lend();
        // The child's stack is far from its parent's.
        t.push(0x5000, 0x6000, 0x1000_0000);
        t.push(0x8000, 0x9000, 0x1000_0000);
        t.lend();
        t.drop_abandoned(0x7000_0900, 0..0);
        assert!(t.is_lent() && h.is_held(0x5000, 0x6000));
        t.take_back();
        assert!(!t.is_lent() && h.is_held(0x1000, 0x2000) && !h.is_held(0x5000, 0x9000));
        t.push(0x5000, 0x6000, 0x7000_0800);
        t.take_back();
        assert!(h.is_held(0x5000, 0x6000));
    }

    #[test]
    fn kept_ranges_stay_until_forgotten() {
        let h = Holds::new();
        h.keep(0x4000, 0x6000).unwrap();
        assert!(h.is_held(0x5000, 0x9000));
        h.forget(0x5000, 0x6000).unwrap();
        assert!(h.is_held(0x4000, 0x5000) && !h.is_held(0x5000, 0x6000));
    }
}
