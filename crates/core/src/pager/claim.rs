//! Claims: pages whose state changes while nobody holds the pager's lock.
//!
//! ```text
//!   fault      lock: look, claim   | read, decompress, COPY      | lock: new state, end of claim
//!   eviction   lock: pick, claim   | MOVE, or protect, and flush | lock: new state, end of claim
//!   mmap & co. lock, and no page of the range is claimed: the kernel's call and the note of it
//! ```
//!
//! Everything slow happens under a claim, so that faults at different pages never wait for each
//! other. The lock itself is held for as long as it takes to look at words and to change them.
//!
//! A claim is of *pages* (a bit of each word, counted by their stretches) or of a *whole stretch*
//! of 2 MiB, when a call of the kernel changes all of it at once.
//!
//! # The protocol
//! 1. A page's word and the kernel's mapping of it change by the holder of its claim, or under the
//!    lock while the page and its stretch are not claimed. Hints in a word (stuck, which copy is
//!    kept) may change under the lock always.
//! 2. The holder of a claim waits for no other claim and for no room, so every claim ends.
//! 3. A thread that meets a claimed page waits for the end of some claim, without the lock, and
//!    looks again.
//! 4. A thread that wants a range without claims ([`Pager::lock_range`]) says so: no new claim
//!    begins there before it has had its turn.
//! 5. A page's count in `resident` is taken when its claim begins, so that threads side by side do
//!    not go over the limit.
//!
//! The lock order has no place for claims: they are taken and ended under the lock, and never
//! waited for under it.

use core::sync::atomic::Ordering;

use super::{Locked, Pager};
use crate::region::ADDRESS_END;
use crate::region::table::LEAF_BYTES;
use crate::sys::PAGE_SIZE;
use crate::sys::contention::{self, Waits};
use crate::sys::sync::{futex_wait, futex_wake, look_for_abandoned};

/// Looks at the word before a waiting thread sleeps: some 2 us, as long as most claims last.
const SPINS: u32 = 400;
/// A thread that waits looks again after this long even if nobody wakes it: a bound, not a rhythm.
const WAIT_NS: u64 = 2_000_000;
/// Waits of that length, two seconds together, after which the waiting thread asks whether the
/// claim's holder still exists.
const ABANDONED_WAITS: u32 = 1000;
/// Ranges in which no claim begins, because threads wait for the last one to end
/// ([`Pager::lock_range`]), that are known one by one. With more of them no claim begins anywhere.
const DRAINS_MAX: usize = 8;

/// The part of the pager's state that is about claims, under its lock.
pub(super) struct Claims {
    /// Claims that have not ended, of pages and of stretches.
    count: u32,
    /// Some thread waits for the end of a claim.
    is_awaited: bool,
    /// Waits that nobody ended, since the last claim ended.
    vain_waits: u32,
    /// Where no claim may begin: some thread waits until the claims there have ended.
    drains: [(usize, usize); DRAINS_MAX],
    drains_len: usize,
    /// How often a range was locked. A thread that let the lock go knows by it whether the ranges
    /// are as they were.
    pub(super) changes: u64,
}

const NO_DRAIN: (usize, usize) = (0, 0);

impl Claims {
    pub const fn new() -> Claims {
        Claims {
            count: 0,
            is_awaited: false,
            vain_waits: 0,
            drains: [NO_DRAIN; DRAINS_MAX],
            drains_len: 0,
            changes: 0,
        }
    }

    /// No page is claimed, and no thread waits for that.
    #[inline]
    fn are_none(&self) -> bool {
        self.count == 0 && self.drains_len == 0
    }

    fn is_draining(&self, page: usize) -> bool {
        self.drains_len > 0 && self.drains.iter().any(|(start, end)| *start <= page && page < *end)
    }

    /// Keeps new claims out of `[start, end)`. Returns the number of the drain, for its end.
    fn begin_drain(&mut self, start: usize, end: usize) -> usize {
        self.drains_len += 1;
        match self.drains.iter().position(|d| *d == NO_DRAIN) {
            Some(i) => {
                self.drains[i] = (start, end);
                i
            }
            // A drain that ends earlier lets claims in again, so this one only takes longer.
            None => {
                self.drains[DRAINS_MAX - 1] = (0, ADDRESS_END);
                DRAINS_MAX - 1
            }
        }
    }

    fn end_drain(&mut self, i: usize) {
        self.drains_len -= 1;
        self.drains[i] = NO_DRAIN;
    }

    /// In the child after fork: threads that waited are not there.
    pub fn after_fork_child(&mut self) {
        debug_assert!(self.count == 0, "fork waits for all claims");
        (self.drains, self.drains_len, self.is_awaited) = ([NO_DRAIN; DRAINS_MAX], 0, false);
    }
}

impl Pager {
    /// Takes the lock, while no page of the program is claimed.
    pub fn lock(&self) -> Locked<'_> {
        self.lock_range(0, ADDRESS_END)
    }

    /// Takes the lock while no page of `[start, end)` is claimed, to change how that is mapped.
    pub fn lock_range(&self, start: usize, end: usize) -> Locked<'_> {
        let mut s = self.enter();
        s.claims.changes += 1;
        if self.has_claims(&s, start, end) {
            let drain = s.claims.begin_drain(start, end);
            while self.has_claims(&s, start, end) {
                self.wait_for_claim(&mut s);
            }
            s.claims.end_drain(drain);
            self.wake_waiting(&mut s);
        }
        s
    }

    /// Takes the lock. Pages may be claimed: see the protocol.
    #[inline]
    pub fn enter(&self) -> Locked<'_> {
        self.state.lock()
    }

    /// Whether some page of `[start, end)` is claimed.
    fn has_claims(&self, s: &Locked<'_>, start: usize, end: usize) -> bool {
        if s.claims.count == 0 || (start, end) == (0, ADDRESS_END) {
            return s.claims.count > 0;
        }
        let mut any = false;
        self.table.for_each_stretch(start, end, |_, m| any |= m.is_claimed());
        any
    }

    /// Whether the page may be claimed, or changed under the lock.
    #[inline]
    pub(super) fn is_free(&self, s: &Locked<'_>, page: usize) -> bool {
        s.claims.are_none()
            || !self.table.get(page).is_some_and(|e| e.is_claimed())
                && !self.table.middle(page).is_some_and(|m| m.is_claimed_whole())
                && !s.claims.is_draining(page)
    }

    /// How many of the `most` pages from `page` on may be claimed.
    pub(super) fn free_run(&self, s: &Locked<'_>, page: usize, most: usize) -> usize {
        if s.claims.are_none() {
            return most;
        }
        (0..most).take_while(|i| self.is_free(s, page + i * PAGE_SIZE)).count()
    }

    /// Claims pages that are free and have words.
    #[inline]
    pub(super) fn claim(&self, s: &mut Locked<'_>, page: usize, pages: usize) {
        for i in 0..pages {
            self.table.word(page + i * PAGE_SIZE, |m, e| {
                m.claim_page();
                e.claim();
            });
        }
        s.claims.count += pages as u32;
        contention::claim_begins(page, pages);
    }

    /// Ends the claim of pages, which have their new state.
    #[inline]
    pub(super) fn end_claim(&self, s: &mut Locked<'_>, page: usize, pages: usize) {
        for i in 0..pages {
            self.table.word(page + i * PAGE_SIZE, |m, e| {
                m.end_page_claim();
                e.end_claim();
            });
        }
        s.claims.count -= pages as u32;
        if pages > 0 {
            contention::claim_ends(page);
        }
        self.wake_waiting(s);
    }

    /// Claims all stretches that touch `[start, end)`. False, and nothing is claimed, if some page
    /// there is claimed.
    pub(super) fn claim_stretches(&self, s: &mut Locked<'_>, start: usize, end: usize) -> bool {
        if self.has_claims(s, start, end)
            || (start..end).step_by(PAGE_SIZE).any(|p| s.claims.is_draining(p))
        {
            return false;
        }
        let mut count = 0;
        self.table.for_each_stretch(start, end, |at, m| {
            m.claim_whole();
            contention::claim_begins(at, 1);
            count += 1;
        });
        s.claims.count += count;
        true
    }

    /// As [`Self::claim_stretches`], after a wait. The caller holds no claim.
    pub(super) fn wait_to_claim_stretches(&self, s: &mut Locked<'_>, start: usize, end: usize) {
        if self.claim_stretches(s, start, end) {
            return;
        }
        let drain = s.claims.begin_drain(start, end);
        while self.has_claims(s, start, end) {
            self.wait_for_claim(s);
        }
        s.claims.end_drain(drain);
        while !self.claim_stretches(s, start, end) {
            self.wait_for_claim(s);
        }
    }

    /// Ends the claim of all stretches that touch `[start, end)`.
    pub(super) fn end_stretch_claims(&self, s: &mut Locked<'_>, start: usize, end: usize) {
        let mut count = 0;
        self.table.for_each_stretch(start, end, |at, m| {
            m.end_whole_claim();
            contention::claim_ends(at);
            count += 1;
        });
        s.claims.count -= count;
        self.wake_waiting(s);
    }

    /// Lets the lock go until some claim, or a wait for the end of claims, has ended.
    pub(super) fn wait_for_claim(&self, s: &mut Locked<'_>) {
        s.claims.is_awaited = true;
        let seen = self.claims_ended.load(Ordering::Relaxed);
        let is_over = || self.claims_ended.load(Ordering::Acquire) != seen;
        let waits = Waits::begin();
        s.unlocked(|| {
            for _ in 0..SPINS {
                if is_over() {
                    return;
                }
                core::hint::spin_loop();
            }
            futex_wait(&self.claims_ended, seen, Some(WAIT_NS));
        });
        contention::claim_waited(waits);
        s.claims.vain_waits = if is_over() { 0 } else { s.claims.vain_waits + 1 };
        if s.claims.vain_waits == ABANDONED_WAITS {
            s.claims.vain_waits = 0;
            // A process that shares this memory may have been killed while it held a claim.
            s.unlocked(look_for_abandoned);
        }
    }

    #[inline]
    fn wake_waiting(&self, s: &mut Locked<'_>) {
        if core::mem::take(&mut s.claims.is_awaited) {
            self.claims_ended.fetch_add(1, Ordering::Release);
            futex_wake(&self.claims_ended, i32::MAX as u32);
        }
    }

    /// Asserts, while nothing is in flight, that no claim was forgotten.
    pub(super) fn check_claims(&self, s: &Locked<'_>) {
        assert_eq!(s.claims.count, 0, "claims");
        self.table.for_each_stretch(0, ADDRESS_END, |at, m| {
            assert!(!m.is_claimed(), "the stretch {at:#x} is claimed");
            assert!(at.is_multiple_of(LEAF_BYTES));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::{READ_WRITE, STRETCH_PAGES, Spec, World};
    use super::*;

    /// Two stretches whose pages have words.
    fn world() -> World {
        let spec = Spec::roomy(2 * STRETCH_PAGES);
        let world = World::new(spec);
        world.map(0, spec.pages, READ_WRITE);
        let mut thread = world.thread();
        for page in 0..spec.pages {
            thread.access(world.at(page), true, |_| ());
        }
        world
    }

    #[test]
    fn a_claimed_page_is_nobody_elses_and_its_neighbours_are_free() {
        let w = world();
        let mut s = w.pager.enter();
        w.pager.claim(&mut s, w.at(2), 2);
        let free = |s: &Locked<'_>, page: usize| w.pager.is_free(s, w.at(page));
        assert_eq!([1, 2, 3, 4].map(|page| free(&s, page)), [true, false, false, true]);
        assert_eq!(w.pager.free_run(&s, w.at(0), 9), 2);
        assert!(!w.pager.claim_stretches(&mut s, w.at(0), w.at(1)), "a page of it is claimed");
        w.pager.end_claim(&mut s, w.at(2), 1);
        assert!(free(&s, 2) && !free(&s, 3), "part of a claim has ended");
        w.pager.end_claim(&mut s, w.at(3), 1);
        w.pager.check_claims(&s);
        assert_eq!(w.pager.free_run(&s, w.at(0), 9), 9);
    }

    #[test]
    fn a_claimed_stretch_has_no_free_page_and_the_next_is_locked_at_once() {
        let w = world();
        let (start, end) = (w.at(0), w.at(STRETCH_PAGES));
        let mut s = w.pager.enter();
        assert!(w.pager.claim_stretches(&mut s, start, end));
        assert!(!w.pager.is_free(&s, w.at(STRETCH_PAGES - 1)) && w.pager.is_free(&s, end));
        assert!(!w.pager.claim_stretches(&mut s, start, end), "it is claimed once");
        drop(s);
        // This would wait for ever if it waited for claims outside its range.
        let mut s = w.pager.lock_range(end, w.at(2 * STRETCH_PAGES - 1));
        w.pager.end_stretch_claims(&mut s, start, end);
        w.pager.check_claims(&s);
    }

    /// Rules 3 and 4.
    #[test]
    fn who_wants_a_range_waits_for_its_claims_and_no_new_one_begins_meanwhile() {
        let w = world();
        w.pager.claim(&mut w.pager.enter(), w.at(5), 1);
        let is_locked = core::sync::atomic::AtomicBool::new(false);
        let (mut is_early, mut is_taken, mut free) = (true, true, [false; 4]);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let s = w.pager.lock_range(w.at(4), w.at(8));
                is_locked.store(true, Ordering::SeqCst);
                w.pager.check_claims(&s);
            });
            while w.pager.enter().claims.drains_len == 0 {
                std::thread::yield_now();
            }
            let mut s = w.pager.enter();
            is_early = is_locked.load(Ordering::SeqCst);
            free = [3, 4, 7, 8].map(|page| w.pager.is_free(&s, w.at(page)));
            is_taken = w.pager.claim_stretches(&mut s, w.at(0), w.at(8));
            w.pager.end_claim(&mut s, w.at(5), 1);
        });
        // Asserted here, so that the waiting thread has ended even if the answer is wrong.
        assert!(!is_early, "page 5 was claimed");
        assert_eq!(free, [true, false, false, true]);
        assert!(!is_taken, "it was waited for");
        assert!(is_locked.load(Ordering::SeqCst));
        let s = w.pager.enter();
        assert!(w.pager.is_free(&s, w.at(4)), "who waited has had its turn");
    }

    #[test]
    fn a_range_that_was_locked_is_a_change() {
        let w = world();
        let before = w.pager.enter().claims.changes;
        drop(w.pager.lock_range(w.at(0), w.at(1)));
        assert_ne!(w.pager.enter().claims.changes, before);
    }

    #[test]
    fn more_drains_than_have_names_drain_everything() {
        let mut claims = Claims::new();
        let all: Vec<usize> =
            (0..=DRAINS_MAX).map(|i| claims.begin_drain(2 * i, 2 * i + 1)).collect();
        assert!(claims.is_draining(2 * DRAINS_MAX) && claims.is_draining(1 << 40));
        all.into_iter().for_each(|i| claims.end_drain(i));
        assert!(claims.are_none() && !claims.is_draining(0));
    }

    #[test]
    fn a_child_has_none_of_the_threads_that_waited() {
        let mut claims = Claims::new();
        claims.begin_drain(0, ADDRESS_END);
        claims.is_awaited = true;
        claims.after_fork_child();
        assert!(claims.are_none() && !claims.is_awaited && !claims.is_draining(4096));
    }
}
