//! Which pages go: the rules of replacement, for the pager and for `uzswap simulate`, which replays
//! recorded faults under them.
//!
//! ```text
//!            the hand comes by          the oldest first
//!   RESIDENT ------------------> LIMBO ------------------> out
//!      ^                           |  a ring of `limbo_target` pages
//!      +---------------------------+
//!            touched there
//! ```
//!
//! The rules know pages as numbers: the hand takes them in their order, [`trail`] says which go
//! before that, [`limbo`] is the first-in first-out part, and the figures below say how much of
//! each. How the hand gets from page to page is not here: the pager goes by
//! ranges, runs and huge pages (`pager/sweep.rs`), the simulator by a bitmap.

pub mod ghost;
pub mod limbo;
pub mod trail;

/// Pages that one sweep step takes where they lie apart: one lock hold, a few flushes.
pub const SWEEP_PAGES: usize = 32;
/// [`SWEEP_PAGES`] where pages leave with one flush for all, at most: more pages share the other
/// costs of a step.
pub const SWEEP_MOST_PAGES: usize = 128;
/// Pages that go in or out together at most, with one flush: neighbours that leave, a window, a
/// step of ageing out.
pub const BATCH_PAGES: usize = 256;
/// [`BATCH_PAGES`] however small the limit.
pub const BATCH_LEAST_PAGES: usize = 64;
/// The smallest window of pages that comes in by moving frames, without the lock.
pub const WINDOW_LEAST_PAGES: usize = 8;
/// The largest window of pages that are served one by one, with the lock held.
pub const WINDOW_LOCKED_PAGES: usize = 64;
/// The first window of a thread whose access is sequential.
const WINDOW_FIRST_PAGES: usize = 4;
/// Pages that one step of a thread that waits for room gives to the cache.
pub const DIRECT_PAGES: usize = 8;
/// Pages that limbo holds at least when memory is short.
pub const LIMBO_LEAST_PAGES: i64 = 16;
/// Pages that limbo holds at most, however large the limit.
pub const LIMBO_MOST_PAGES: i64 = 16384;
/// The pool's share of the limit as it starts, in percent; the rest is for pages as they are.
pub const POOL_FIRST_PERCENT: u32 = 75;

/// Bounds of the share, in percent of what the process may use.
pub const POOL_LEAST_PERCENT: u32 = 10;
pub const POOL_MOST_PERCENT: u32 = 85;
/// Microseconds, roughly, that a load from the store takes longer than one from the pool.
const STORE_WORTH: u64 = 100;
/// The loads and hits in limbo after which the share may move. With twice as many a program of two
/// seconds has ended before its share is right; with half as many chance moves it (Redis, CPython).
const FEW: u64 = 512;
/// The most loads from the pool to one hit in limbo with which a smaller pool is tried while little
/// is in the store: with more, memory for pages would save next to nothing.
const TRY_ABOVE: u64 = 16;
/// Loads from the store that are enough to speak for a larger pool.
pub const FEW_LOADS: u64 = 32;
/// The fewest pages in the store by which it is known what the next ones would cost there.
const FEW_STORED: u64 = 512;

/// Events at the borders between pages as they are, the pool, and the store.
#[derive(Clone, Copy, Debug)]
pub struct Borders {
    /// Loads from the store that a pool larger by `near` frames would have had; hits in limbo;
    /// loads from the pool.
    pub near_loads: u64,
    pub limbo_hits: u64,
    pub pool_loads: u64,
    pub near: u64,
    /// Pages in the store that the pool would have; pages in limbo.
    pub stored: u64,
    pub limbo: u64,
}

impl Borders {
    /// Time, in 1/1024 us, that one page of memory more would have saved: for pages as they are,
    /// and for the pool.
    fn worth(&self) -> [u64; 2] {
        let as_page = ((self.limbo_hits * LOAD_WORTH) << 10) / self.limbo.max(16);
        let as_pool = ((self.near_loads * STORE_WORTH) << 10) / self.near.max(16);
        [as_page, as_pool]
    }
}

/// The pool's next share after `percent`, if enough events speak: it moves to where a page of
/// memory saves more.
pub fn next_pool_percent(percent: u32, b: &Borders) -> Option<u32> {
    let [as_page, as_pool] = b.worth();
    // A pool that is too small costs trips to the disk and back, so it grows at once. Only pages
    // that are back soon speak for that: pages that have been there for long may be read once, or
    // in order, and the pages whose memory they would take come back as often.
    if b.near_loads >= FEW_LOADS && as_pool > as_page + as_page / 2 {
        return Some((percent + 2).min(POOL_MOST_PERCENT));
    }
    if b.near_loads + b.limbo_hits < FEW {
        return None;
    }
    // More memory would save next to nothing, so nothing is tried.
    let is_idle = b.stored < FEW_STORED && b.limbo_hits * TRY_ABOVE < b.pool_loads;
    let shrinks = !is_idle && as_pool < as_page - as_page / 3;
    // The share moves step by step where nothing is known of the pages that would go to the store,
    // and faster where much speaks for it.
    let by = if b.stored >= FEW_STORED && as_pool < as_page / 4 { 4 } else { 1 };
    Some(if shrinks { percent.saturating_sub(by).max(POOL_LEAST_PERCENT) } else { percent })
}

/// Pages that limbo holds when memory is short. `slots`: the slots of its ring.
pub fn limbo_target(limit_pages: i64, slots: usize) -> i64 {
    let most = ((slots / 2) as i64).min(LIMBO_MOST_PAGES);
    (limit_pages / 16).clamp(LIMBO_LEAST_PAGES, most)
}

/// Slots that limbo's ring is to have: for pages in it, and for pages whose frames are being given
/// back.
pub fn limbo_slots(limit_pages: usize) -> usize {
    (limit_pages / 8).max(256)
}

/// Pages that go in or out together at most. A flush costs as much as some hundred pages do;
/// several batches are in hand at a time.
#[inline]
pub fn batch_pages(limit_pages: i64) -> usize {
    (limit_pages / 64).clamp(BATCH_LEAST_PAGES as i64, BATCH_PAGES as i64) as usize
}

/// Pages that leave with one flush for all, where `resident_pages` are in the program.
#[inline]
pub fn sweep_pages(resident_pages: i64) -> usize {
    (resident_pages / 64).clamp(SWEEP_PAGES as i64, SWEEP_MOST_PAGES as i64) as usize
}

/// The next window of a thread whose access is sequential, after one of `pages`; `most`: the
/// largest.
#[inline]
pub fn next_window(pages: usize, most: usize) -> usize {
    (pages * 2).clamp(WINDOW_FIRST_PAGES, most)
}

/// Whether a step of eviction fills limbo before it empties it.
#[inline]
pub fn sweeps_first(ready: usize, target: i64) -> bool {
    (ready as i64) < target
}

/// Rough times in microseconds: of a load, which a page in memory saves; and those by which the
/// denser codec makes a load and a store longer.
pub const LOAD_WORTH: u64 = 12;
const DENSE_LOAD_COST: u64 = 2;
const DENSE_STORE_COST: u64 = 1;

/// Whether the denser codec is to be taken for all pages. `was`: it is now. `loads`, `stores`:
/// pages that came from the pool and went there lately; `hits`: loads that `limbo` pages more of
/// memory save; `saved`: pages of memory that the denser codec leaves.
pub fn is_denser_better(
    was: bool,
    [loads, stores, hits]: [u64; 3],
    limbo: u64,
    saved: u64,
) -> bool {
    let gain = LOAD_WORTH * hits * saved / limbo.max(16);
    let cost = DENSE_LOAD_COST * loads + DENSE_STORE_COST * stores;
    // The codec does not change to and fro between equals.
    if was { gain > cost * 3 / 4 } else { gain > cost * 5 / 4 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limbo_is_a_part_of_the_limit_within_bounds() {
        let target = |limit: i64| limbo_target(limit, limbo_slots(limit as usize));
        assert_eq!((target(0), target(1600), target(160_000)), (16, 100, 10_000));
        assert_eq!(target(100_000_000), LIMBO_MOST_PAGES);
        assert!(sweeps_first(15, target(0)) && !sweeps_first(16, target(0)));
    }

    #[test]
    fn the_pools_share_moves_the_faster_the_more_speaks_for_it() {
        let next = |near_loads, limbo_hits, stored| {
            let pool_loads = 10 * limbo_hits;
            let borders =
                Borders { near_loads, limbo_hits, pool_loads, near: 4000, stored, limbo: 1000 };
            next_pool_percent(75, &borders)
        };
        // A page as it is saves 12 us, a page of the pool 2.5 us and then 6.
        assert_eq!([next(100, 1000, 10_000), next(240, 1000, 10_000)], [Some(71), Some(74)]);
        // Nothing is known of the store.
        assert_eq!(next(0, 1024, 0), Some(74));
        assert_eq!([next(31, 0, 10_000), next(1000, 1000, 10_000)], [None, Some(77)]);
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
