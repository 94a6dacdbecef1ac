//! Refusals: pages that neither pool nor store takes, and how far the process goes over its limit
//! meanwhile.
//!
//! ```text
//!   evict ──refused──> the page's word names the generation: the sweep passes it by
//!     │ a whole round of the clock frees nothing
//!     v
//!   rest: the evictor sleeps, faults are served over the limit ──as many as tolerated──> another round, twice as many
//!     │ the pool has room, or time has passed
//!     v
//!   next generation: every page is tried again
//! ```
//!
//! A page that was refused would be refused again: compressing it once more for each fault would
//! leave the program standing still. A write to it goes unseen and may make it compressible, so it
//! is also tried again after some time, twice as long after each vain trial. The limit is not held
//! meanwhile, and the count of used pages says so.

use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};

use super::Pager;
use crate::control::Counter;
use crate::region::page::GENERATIONS;
use crate::region::table::LEAF_BYTES;

/// Pages that a thread goes over the limit at once, so that it does not wait for each.
const OVER_PAGES: i64 = 64;
/// The most pages that a process goes over its limit at once, after many fruitless rounds: a
/// divisor of the limit.
const OVER_MOST: i64 = 8;
/// How long the process may stay over its limit before it tries again to make room, where a round
/// of the clock has not ended.
const TOLERATED_NS: u64 = 2_000_000;
/// A process that went over its limit within this time does not wait long before it does so again.
const MOMENT_NS: u64 = 200_000_000;
/// In place of a time: the evictor rests until all tolerated pages are used.
const RESTS: u64 = u64::MAX;
/// Pages that a process that keeps all may have over its limit: more than there are.
const ALL: i64 = 1 << 40;
/// Passes over each word in a round of the clock: a page is stuck once at most.
const PASSES: usize = 2;
/// The room in the pool, as a divisor of the resident pages, that starts another trial of all
/// refused pages.
const ROOM: i64 = 8;
/// A trial that begins because time has passed needs this many faults before it, as a divisor of
/// the resident pages: each trial compresses all refused pages.
const FAULTS: u64 = 32;
/// How long refused pages are left alone, at first and at most. With fewer faults than [`FAULTS`]
/// asks for it is 16 times as long.
const RETRY_FIRST_NS: u64 = 1_000_000_000;
const RETRY_MOST_NS: u64 = 64_000_000_000;
const RETRY_IDLE: u64 = 16;

pub(super) struct Refusals {
    /// The generation that the words of pages refused now name, from 1 on.
    generation: AtomicU64,
    /// Some page was refused in this generation.
    has_any: AtomicBool,
    /// Pages in the cache, and the pool's room in pages, at the latest refusal.
    stored_at: AtomicI64,
    room_at: AtomicI64,
    /// When the first page was refused in this generation, and how many faults had been served.
    began_at_ns: AtomicU64,
    began_at_faults: AtomicU64,
    retry_after_ns: AtomicU64,
    /// Words that sweeps have passed since something was freed.
    barren: AtomicUsize,
    /// Pages that the process may have over its limit until `tolerated_until_ns`, or [`RESTS`].
    tolerated: AtomicI64,
    tolerated_until_ns: AtomicU64,
    /// [`Self::tolerated_until_ns`] as the process itself, and not a guest, set it last.
    went_over_until_ns: AtomicU64,
    /// Pages over the limit after which the next rest ends.
    step: AtomicI64,
    /// The process is about to be dumped: it keeps all.
    keeps_all: AtomicBool,
}

impl Refusals {
    pub const fn new() -> Refusals {
        Refusals {
            generation: AtomicU64::new(1),
            has_any: AtomicBool::new(false),
            stored_at: AtomicI64::new(0),
            room_at: AtomicI64::new(0),
            began_at_ns: AtomicU64::new(0),
            began_at_faults: AtomicU64::new(0),
            retry_after_ns: AtomicU64::new(RETRY_FIRST_NS),
            barren: AtomicUsize::new(0),
            tolerated: AtomicI64::new(0),
            tolerated_until_ns: AtomicU64::new(0),
            went_over_until_ns: AtomicU64::new(0),
            step: AtomicI64::new(OVER_PAGES),
            keeps_all: AtomicBool::new(false),
        }
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Whether the evictor rests: it has nothing to try.
    #[inline]
    pub fn rests(&self) -> bool {
        self.tolerated_until_ns.load(Ordering::Relaxed) == RESTS
    }

    fn tolerate(&self, pages: i64, until_ns: u64) {
        self.tolerated_until_ns.store(until_ns, Ordering::Relaxed);
        self.tolerated.store(pages, Ordering::Relaxed);
    }

    /// Lets the process have that many pages over its limit because it found no room itself.
    fn go_over(&self, pages: i64, until_ns: u64) {
        self.went_over_until_ns.store(until_ns, Ordering::Relaxed);
        self.tolerate(pages, until_ns);
    }

    /// Whether the process itself went over its limit a moment ago. A guest does not look for pages
    /// that can leave, so its going over says nothing about them.
    fn went_over(&self, now_ns: u64) -> bool {
        let until_ns = self.went_over_until_ns.load(Ordering::Relaxed);
        until_ns != 0 && now_ns < until_ns.saturating_add(MOMENT_NS)
    }

    fn end_rest(&self) {
        if self.rests() {
            self.go_over(0, 0);
        }
        self.barren.store(0, Ordering::Relaxed);
    }

    /// Pages that the process may have over its limit now.
    pub fn tolerated(&self) -> i64 {
        if self.keeps_all.load(Ordering::Relaxed) {
            return ALL;
        }
        let tolerated = self.tolerated.load(Ordering::Relaxed);
        let until_ns = self.tolerated_until_ns.load(Ordering::Relaxed);
        if tolerated > 0 && until_ns != RESTS && crate::sys::now_ns() > until_ns {
            self.tolerated.store(0, Ordering::Relaxed);
            return 0;
        }
        tolerated
    }

    /// Begins a rest, `over` pages over a limit: it lasts for twice as many pages as the last one.
    fn rest(&self, over: i64, pages: i64, limit: i64) {
        let step = self.step.load(Ordering::Relaxed);
        self.go_over(over.max(0) + pages.max(step), RESTS);
        self.step.store((2 * step).min(limit / OVER_MOST).max(OVER_PAGES), Ordering::Relaxed);
        self.barren.store(0, Ordering::Relaxed);
    }

    /// Lets all pages be tried again. `by_time`: only because time has passed.
    fn begin_generation(&self, by_time: bool) {
        let next = self.generation() % GENERATIONS + 1;
        self.generation.store(next, Ordering::Relaxed);
        self.has_any.store(false, Ordering::Relaxed);
        let after = self.retry_after_ns.load(Ordering::Relaxed);
        let after = if by_time { (2 * after).min(RETRY_MOST_NS) } else { RETRY_FIRST_NS };
        self.retry_after_ns.store(after, Ordering::Relaxed);
        self.end_rest();
    }
}

impl Pager {
    /// The generation of refusals: a page whose word names it is not tried.
    pub(super) fn generation(&self) -> u64 {
        self.refusals.generation()
    }

    /// Notes that neither pool nor store takes the resident page at `page`.
    pub(super) fn note_refused(&self, page: usize) {
        let r = &self.refusals;
        self.add(Counter::EvictionsRefused, 1);
        self.table.word(page, |_, e| e.refuse_storing(r.generation()));
        r.stored_at.store(self.stored_pages(), Ordering::Relaxed);
        r.room_at.store(self.pool_room(), Ordering::Relaxed);
        if !r.has_any.swap(true, Ordering::Relaxed) {
            r.began_at_ns.store(crate::sys::now_ns(), Ordering::Relaxed);
            r.began_at_faults.store(self.slot().get(Counter::Faults), Ordering::Relaxed);
        }
    }

    /// Whether refused pages are to be tried again only because time has passed: they may have been
    /// written.
    fn is_time_to_retry(&self) -> bool {
        let r = &self.refusals;
        let began_at = r.began_at_faults.load(Ordering::Relaxed);
        let faults = self.slot().get(Counter::Faults).saturating_sub(began_at);
        let is_busy = faults >= self.resident_pages().max(0) as u64 / FAULTS;
        let after_ns =
            r.retry_after_ns.load(Ordering::Relaxed) * if is_busy { 1 } else { RETRY_IDLE };
        crate::sys::now_ns() >= r.began_at_ns.load(Ordering::Relaxed) + after_ns
    }

    fn pool_room(&self) -> i64 {
        self.pool_target_pages() - self.pool_pages()
    }

    /// Whether the process went over its limit a moment ago.
    pub(super) fn went_over(&self) -> bool {
        let r = &self.refusals;
        r.step.load(Ordering::Relaxed) > OVER_PAGES || r.went_over(crate::sys::now_ns())
    }

    /// Notes that a step of eviction has passed `looked` words and freed `freed` frames.
    pub(super) fn note_step(&self, looked: usize, freed: usize) {
        let barren = &self.refusals.barren;
        if freed > 0 {
            barren.store(0, Ordering::Relaxed);
        } else {
            barren.fetch_add(looked, Ordering::Relaxed);
        }
    }

    /// Lets the process go over its limit, for `pages` at least: nothing can leave.
    pub(super) fn go_over(&self, pages: i64) {
        let r = &self.refusals;
        let over = self.excess_of_tree(0) + self.refusals.tolerated();
        let words =
            self.resident_pages().max(0) as usize + self.ranges.total_bytes() / LEAF_BYTES * 8;
        if r.barren.load(Ordering::Relaxed) > PASSES * words {
            r.rest(over, pages, self.limit_pages());
        } else {
            r.go_over(over.max(0) + pages.max(OVER_PAGES), crate::sys::now_ns() + TOLERATED_NS);
        }
    }

    /// Lets a guest (`FaultStream::is_of_guest`) go over the limit for a moment, and has the
    /// evictor make room.
    pub(super) fn tolerate_guest(&self, pages: i64) {
        let over = self.excess_of_tree(0) + self.refusals.tolerated();
        let until_ns = crate::sys::now_ns() + TOLERATED_NS;
        self.refusals.tolerate(over.max(0) + pages.max(OVER_PAGES), until_ns);
        self.wake_evictor();
    }

    /// Ends the rest, for another round: all tolerated pages are used.
    pub(super) fn end_rest(&self) {
        self.refusals.end_rest();
    }

    /// Looks whether the evictor has something to try after all: refused pages, or pages that have
    /// come since. Returns whether it has not.
    pub(super) fn stays_at_rest(&self) -> bool {
        let r = &self.refusals;
        if r.has_any.load(Ordering::Relaxed) {
            let more = (self.resident_pages() / ROOM).max(OVER_PAGES);
            let has_room = r.stored_at.load(Ordering::Relaxed) - self.stored_pages() >= more
                || self.pool_room() - r.room_at.load(Ordering::Relaxed) >= more;
            if has_room || self.is_time_to_retry() {
                r.begin_generation(!has_room);
            }
        }
        if !r.rests() {
            return false;
        }
        // Memory that was freed meanwhile does not let the process go over its limit again.
        let over = self.excess_of_tree(0) + self.refusals.tolerated();
        let step = r.step.load(Ordering::Relaxed);
        if over <= 0 {
            r.step.store(OVER_PAGES, Ordering::Relaxed);
            r.end_rest();
        } else if self.refusals.tolerated() > over + step {
            r.tolerate(over + step, RESTS);
        }
        r.rests()
    }

    /// Lets nothing leave the process any more: it is about to be dumped.
    pub(super) fn keep_all(&self) {
        self.refusals.keeps_all.store(true, Ordering::SeqCst);
    }

    pub(super) fn keeps_all(&self) -> bool {
        self.refusals.keeps_all.load(Ordering::SeqCst)
    }

    /// Lets every page be tried again: a user asks for more memory than the limit does.
    pub(super) fn forget_refusals(&self) {
        self.refusals.begin_generation(false);
    }

    /// Ends, in the child after fork, the tolerance for pages over the limit that the parent had.
    pub(super) fn tolerate_nothing(&self) {
        self.refusals.go_over(0, 0);
        self.refusals.end_rest();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fruitless_round_lets_twice_as_many_pages_pass() {
        let r = Refusals::new();
        let mut tolerated = vec![];
        for _ in 0..7 {
            r.rest(1000, 1, 8192);
            tolerated.push(r.tolerated() - 1000);
            assert!(r.rests());
            r.end_rest();
            assert!(!r.rests() && r.tolerated() == 0);
        }
        assert_eq!(
            tolerated,
            [64, 128, 256, 512, 1024, 1024, 1024],
            "up to an eighth of the limit"
        );
        r.rest(-5000, 4096, 8192);
        assert_eq!(r.tolerated(), 4096, "what is asked for at once");
    }

    #[test]
    fn what_is_tolerated_for_a_moment_ends() {
        let r = Refusals::new();
        r.tolerate(64, crate::sys::now_ns() + 3_600_000_000_000);
        assert_eq!(r.tolerated(), 64);
        r.tolerate(64, crate::sys::now_ns() - 1);
        assert_eq!(r.tolerated(), 0);
    }

    #[test]
    fn a_guest_that_goes_over_does_not_speak_for_the_process() {
        let r = Refusals::new();
        let now = crate::sys::now_ns();
        r.tolerate(64, now + TOLERATED_NS);
        assert!(!r.went_over(now));
        r.go_over(64, now + TOLERATED_NS);
        assert!(r.went_over(now) && r.went_over(now + TOLERATED_NS));
        assert!(!r.went_over(now + TOLERATED_NS + MOMENT_NS));
        r.rest(0, 1, 8192);
        assert!(r.went_over(now));
        r.end_rest();
        assert!(!r.went_over(now));
    }

    #[test]
    fn generations_go_round_and_vain_trials_become_rare() {
        let r = Refusals::new();
        let mut after = vec![];
        for _ in 0..8 {
            r.begin_generation(true);
            after.push(r.retry_after_ns.load(Ordering::Relaxed) / RETRY_FIRST_NS);
        }
        assert_eq!(after, [2, 4, 8, 16, 32, 64, 64, 64]);
        r.begin_generation(false);
        assert_eq!(r.retry_after_ns.load(Ordering::Relaxed), RETRY_FIRST_NS);
        for _ in 0..3 * GENERATIONS {
            r.begin_generation(true);
            assert!((1..=GENERATIONS).contains(&r.generation()));
        }
    }
}
