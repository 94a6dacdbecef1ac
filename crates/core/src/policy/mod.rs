//! Which pages go: the rules of replacement, for the pager and for `uzswap simulate`, which replays recorded faults under them.
//!
//! ```text
//!            the hand passes: one degree colder           the oldest first
//!   RESIDENT -------------------------------> (cold) LIMBO ---------------> out
//!      ^  Heat                                          |  a ring of `limbo_target` pages
//!      +------------------------------------------------+
//!                  touched there: hot
//! ```
//!
//! What is here knows pages as numbers: [`Heat`] decides what the hand takes, [`trail`] what goes before that,
//! [`limbo`] is the first-in first-out part, and the figures below say how much of each. How the hand gets from page to page is not: the pager goes by ranges, runs and
//! huge pages (`fault/sweep.rs`), the simulator by a bitmap.

pub mod ghost;
pub mod limbo;
pub mod trail;

/// Pages that one sweep step takes where they lie apart: one lock hold, a few flushes.
pub const SWEEP_PAGES: usize = 32;
/// The same of pages that leave with one flush for all, at most: what a step costs besides them is shared by more.
pub const SWEEP_MOST_PAGES: usize = 128;
/// Pages that go in or out together at most, with one flush: neighbours that leave, a window, a step of ageing out.
pub const BATCH_PAGES: usize = 256;
/// The same however small the limit.
pub const BATCH_LEAST_PAGES: usize = 64;
/// The smallest window of pages that comes in by moving frames, without the lock.
pub const WINDOW_LEAST_PAGES: usize = 8;
/// The largest window of pages that are served one by one, with the lock held.
pub const WINDOW_LOCKED_PAGES: usize = 64;
/// The first window of a thread that begins to read on.
const WINDOW_FIRST_PAGES: usize = 4;
/// Pages that one step of a thread that waits for room gives to the cache.
pub const DIRECT_PAGES: usize = 8;
/// Pages that limbo holds at least when memory is short.
pub const LIMBO_LEAST_PAGES: i64 = 16;
/// Pages that limbo holds at most, however large the limit.
pub const LIMBO_MOST_PAGES: i64 = 16384;
/// The pool's share of the limit as it starts, in percent; the rest is for pages as they are.
pub const POOL_FIRST_PERCENT: u32 = 75;

/// How many passes of the hand a resident page survives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Heat(u8);

impl Heat {
    /// Touched for the first time: many such pages are never touched again.
    pub const COLD: Heat = Heat(0);
    /// Brought back, or there before anybody looked.
    pub const WARM: Heat = Heat(1);
    /// Touched while in limbo: it has proved useful.
    pub const HOT: Heat = Heat(3);
    /// Bits that hold any heat.
    pub const BITS: u32 = 2;

    #[inline]
    pub const fn from_bits(bits: u64) -> Heat {
        Heat((bits & ((1 << Heat::BITS) - 1)) as u8)
    }

    #[inline]
    pub const fn bits(self) -> u64 {
        self.0 as u64
    }

    /// The hand passes. `None`: the page was cold, and is taken.
    #[inline]
    pub const fn cooled(self) -> Option<Heat> {
        match self.0 {
            0 => None,
            heat => Some(Heat(heat - 1)),
        }
    }
}

/// Pages that limbo holds when memory is short. `slots`: of its ring.
pub fn limbo_target(limit_pages: i64, slots: usize) -> i64 {
    let most = ((slots / 2) as i64).min(LIMBO_MOST_PAGES);
    (limit_pages / 16).clamp(LIMBO_LEAST_PAGES, most)
}

/// Slots that limbo's ring is to have: for pages in it, and for those whose frames are being given back.
pub fn limbo_slots(limit_pages: usize) -> usize {
    (limit_pages / 8).max(256)
}

/// Pages that go in or out together at most. A flush costs what some hundred pages do; several batches are in hand at a time.
#[inline]
pub fn batch_pages(limit_pages: i64) -> usize {
    (limit_pages / 64).clamp(BATCH_LEAST_PAGES as i64, BATCH_PAGES as i64) as usize
}

/// Pages that leave with one flush for all, of so many that are there.
#[inline]
pub fn sweep_pages(resident_pages: i64) -> usize {
    (resident_pages / 64).clamp(SWEEP_PAGES as i64, SWEEP_MOST_PAGES as i64) as usize
}

/// The window of a thread that reads on, after one of `pages`; `most`: the largest.
#[inline]
pub fn next_window(pages: usize, most: usize) -> usize {
    (pages * 2).clamp(WINDOW_FIRST_PAGES, most)
}

/// Whether a step of eviction fills limbo before it empties it.
#[inline]
pub fn sweeps_first(ready: usize, target: i64) -> bool {
    (ready as i64) < target
}

/// What a load is worth that does not happen, what a denser codec costs a load, and a store: microseconds, roughly.
pub const LOAD_WORTH: u64 = 12;
const DENSE_LOAD_COST: u64 = 2;
const DENSE_STORE_COST: u64 = 1;

/// Whether the denser codec is to be taken for all pages, if `was` says whether it is now. `loads`, `stores`: pages that came from the pool and
/// went there of late; `hits`: loads that `limbo` pages more of memory save; `saved`: pages of memory that the denser codec leaves.
pub fn is_denser_better(was: bool, [loads, stores, hits]: [u64; 3], limbo: u64, saved: u64) -> bool {
    let gain = LOAD_WORTH * hits * saved / limbo.max(16);
    let cost = DENSE_LOAD_COST * loads + DENSE_STORE_COST * stores;
    // Not to and fro between equals.
    if was { gain > cost * 3 / 4 } else { gain > cost * 5 / 4 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_survives_as_many_passes_as_it_is_hot() {
        for (heat, passes) in [(Heat::COLD, 0), (Heat::WARM, 1), (Heat::HOT, 3)] {
            let mut now = Some(heat);
            for _ in 0..passes {
                now = now.and_then(Heat::cooled);
            }
            assert_eq!(now, Some(Heat::COLD));
            assert_eq!(now.and_then(Heat::cooled), None);
            assert_eq!(Heat::from_bits(heat.bits()), heat);
        }
    }

    #[test]
    fn limbo_is_a_part_of_the_limit_within_bounds() {
        let target = |limit: i64| limbo_target(limit, limbo_slots(limit as usize));
        assert_eq!((target(0), target(1600), target(160_000)), (16, 100, 10_000));
        assert_eq!(target(100_000_000), LIMBO_MOST_PAGES);
        assert!(sweeps_first(15, target(0)) && !sweeps_first(16, target(0)));
    }

    #[test]
    fn a_window_begins_small_and_is_a_part_of_the_limit() {
        let grown = |limit| {
            let next = |w: &usize| Some(next_window(*w, batch_pages(limit)));
            std::iter::successors(Some(1), next).take(9).collect::<Vec<_>>()
        };
        assert_eq!(grown(1 << 20), [1, 4, 8, 16, 32, 64, 128, 256, 256]);
        assert_eq!(grown(0), [1, 4, 8, 16, 32, 64, 64, 64, 64]);
        assert_eq!(batch_pages(8192), 128);
        assert_eq!([0, 4096, 1 << 20].map(sweep_pages), [SWEEP_PAGES, 64, SWEEP_MOST_PAGES]);
    }
}
