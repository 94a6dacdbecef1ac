//! How the memory is divided between pages as they are and compressed ones.
//!
//! A larger pool keeps pages from the disk, a smaller one leaves more of them ready to use. The
//! loads at the borders show which is better. Limbo holds the pages that a little more memory would
//! have kept: its hits per page are the loads that a page of memory saves. The latest pages of the
//! store are those that a little more pool would have kept: loads of them are the reads that a page
//! of pool saves. The pool's share moves to where more is saved, unless the user has fixed it.
//! While nothing is in the store, the share moves as a trial.
//!
//! Kept copies are judged likewise: a copy kept of a page that is back (`cache/kept.rs`) saves
//! compressing it again, and takes memory that could hold pages.
//!
//! In a tree of processes the pool's part is one of the whole tree's memory: a process that sleeps
//! is all pool, as it should be. Where all pools together are too large each gives back in
//! proportion.
//!
//! The codec is judged likewise: a denser one leaves memory for pages and makes each load slower.
//! It is chosen for all pages of a program, or for none.

use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};

use super::{Active, Pager};
use crate::cache::near_bytes;
use crate::control::Counter;
use crate::policy::{Borders, POOL_FIRST_PERCENT};
use crate::policy::{is_denser_better, next_pool_percent};
use crate::sys::PAGE_SIZE;

/// The pool's share where there is no store, or it fails.
const WITHOUT_STORE_PERCENT: u32 = 90;
/// The cost of evicting a page and loading it again, in units of compressing it.
const RELOAD_COST: i64 = 3;
/// Loads and stores between two choices of the codec.
const CODEC_PAGES: u64 = 8192;
/// With fewer pages loaded and stored than this between two ticks the program hardly pages: 200
/// loads a second, each 60 us slower from a group, are 1 % of its time.
const QUIET_PAGES: u64 = 2;
/// So many quiet ticks in a row are leisure: a second. Many programs compute for less between two
/// rounds of paging.
const LEISURE_TICKS: u32 = 100;
/// The share of kept copies: its start and its bounds, as divisors of the memory that the pool
/// leaves.
const FIRST_KEPT: i64 = 8;
const LEAST_KEPT: i64 = 256;
const MOST_KEPT: i64 = 3;

/// Totals of events, as of the last look.
struct Seen<const N: usize>([AtomicU64; N]);

impl<const N: usize> Seen<N> {
    const fn new() -> Seen<N> {
        Seen([const { AtomicU64::new(0) }; N])
    }

    /// Events since the last look.
    fn since(&self, totals: [u64; N]) -> [u64; N] {
        core::array::from_fn(|i| totals[i].wrapping_sub(self.0[i].load(Ordering::Relaxed)))
    }

    /// As [`Self::since`]; this look becomes the last one.
    fn take(&self, totals: [u64; N]) -> [u64; N] {
        let since = self.since(totals);
        self.settle(totals);
        since
    }

    fn settle(&self, totals: [u64; N]) {
        self.0.iter().zip(totals).for_each(|(seen, total)| seen.store(total, Ordering::Relaxed));
    }
}

pub(super) struct Balance {
    others: Others,
    /// The pool's share: fixed by the user, or where it is now.
    percent: AtomicU32,
    is_fixed: AtomicBool,
    /// Loads from the store that a little more pool would have saved, hits in limbo, loads from the
    /// pool.
    border_seen: Seen<3>,
    /// Pages of memory that kept copies may take; 0: not begun.
    kept_pages: AtomicI64,
    /// Copies that served, pages stored, hits in limbo.
    kept_seen: Seen<3>,
    /// Pages stored since a copy served last.
    in_vain: AtomicI64,
    /// Loads, stores and hits in limbo.
    codec_seen: Seen<3>,
    /// Pages loaded and stored, at the last tick.
    leisure_seen: Seen<2>,
    quiet_ticks: AtomicU32,
    /// Pages that left without limbo, at the last tick.
    dropped_seen: Seen<1>,
}

/// The other processes' part of the memory that pages and pools share, in pages, as of the last
/// tick.
struct Others {
    pages: AtomicI64,
    pools: AtomicI64,
}

/// The facts about the border between pages and pool: totals of loads from the store that a pool
/// larger by `near` frames would have had, hits in limbo, loads from the pool; pages in the store,
/// and in limbo.
struct BorderFacts {
    events: [u64; 3],
    near: u64,
    stored: u64,
    limbo: u64,
}

/// The facts for the choice of a codec: totals of loads, stores, and hits in limbo; pages in limbo
/// and in the pool; sizes of one sample of pages by the fast codec and by the dense one; whether
/// the dense one is chosen now.
struct CodecFacts {
    events: [u64; 3],
    limbo: u64,
    pool: u64,
    sizes: (u32, u32),
    is_dense: bool,
}

impl Balance {
    pub const fn new() -> Balance {
        Balance {
            others: Others { pages: AtomicI64::new(0), pools: AtomicI64::new(0) },
            percent: AtomicU32::new(POOL_FIRST_PERCENT),
            is_fixed: AtomicBool::new(false),
            border_seen: Seen::new(),
            kept_pages: AtomicI64::new(0),
            kept_seen: Seen::new(),
            in_vain: AtomicI64::new(0),
            codec_seen: Seen::new(),
            leisure_seen: Seen::new(),
            quiet_ticks: AtomicU32::new(0),
            dropped_seen: Seen::new(),
        }
    }

    /// Whether the denser codec is the better one, if that has changed.
    fn step_codec(&self, facts: &CodecFacts) -> Option<bool> {
        let events = self.codec_seen.since(facts.events);
        let [loads, stores, _] = events;
        if loads + stores < CODEC_PAGES {
            return None;
        }
        self.codec_seen.settle(facts.events);
        let was = facts.is_dense;
        let (fast, dense) = (u64::from(facts.sizes.0), u64::from(facts.sizes.1));
        // Memory that the dense codec saves over the fast one, by the pool's size now.
        let saved = facts.pool * fast.saturating_sub(dense) / if was { dense } else { fast };
        let is = is_denser_better(was, events, facts.limbo, saved);
        (is != was).then_some(is)
    }

    /// One step of the share of kept copies. `room`: pages of memory that the pool leaves; `limbo`:
    /// pages in limbo; `kept`: pages of memory that copies take. `events`: totals of copies that
    /// served, of pages stored, of hits in limbo.
    fn step_kept(&self, room: i64, limbo: i64, kept: i64, events: [u64; 3]) -> i64 {
        let [gain, stored, hits] = self.kept_seen.take(events).map(|n| n as i64);
        let loss = hits.saturating_mul(kept).saturating_mul(RELOAD_COST) / limbo.max(16);
        let now = match self.kept_pages.load(Ordering::Relaxed) {
            0 => room / FIRST_KEPT,
            now => now,
        };
        // The copies are full, and none served though memory has changed hands: they are of pages
        // that never go.
        let in_vain = if gain > 0 { 0 } else { self.in_vain.load(Ordering::Relaxed) + stored };
        let is_stuck = in_vain > 2 * room && kept > now / 2;
        self.in_vain.store(if is_stuck { 0 } else { in_vain }, Ordering::Relaxed);
        let next = if loss > gain || is_stuck {
            now - now / 4
        } else if gain > 0 && kept > now / 2 {
            now + now / 4
        } else {
            now
        };
        let next = next.clamp(room / LEAST_KEPT, room / MOST_KEPT);
        self.kept_pages.store(next, Ordering::Relaxed);
        next
    }

    /// Whether the program hardly pages, and has not for a while. `traffic`: totals of pages loaded
    /// and stored.
    fn has_leisure(&self, traffic: [u64; 2]) -> bool {
        let pages: u64 = self.leisure_seen.take(traffic).iter().sum();
        let ticks = self.quiet_ticks.load(Ordering::Relaxed);
        let ticks = if pages < QUIET_PAGES { (ticks + 1).min(LEISURE_TICKS) } else { 0 };
        self.quiet_ticks.store(ticks, Ordering::Relaxed);
        ticks == LEISURE_TICKS
    }

    /// Begins with the user's share, or with 0 for one that adapts; `has_store`: cold pages can
    /// leave memory.
    pub fn begin(&self, percent: u32, has_store: bool) {
        let first = if has_store { POOL_FIRST_PERCENT } else { WITHOUT_STORE_PERCENT };
        let percent_now = if percent == 0 { first } else { percent.min(WITHOUT_STORE_PERCENT) };
        self.percent.store(percent_now, Ordering::Relaxed);
        self.is_fixed.store(percent != 0 || !has_store, Ordering::Relaxed);
    }

    pub fn percent(&self) -> u32 {
        self.percent.load(Ordering::Relaxed)
    }

    /// One step of the pool's share.
    fn step(&self, facts: &BorderFacts) {
        let borders = facts.borders(self.border_seen.since(facts.events));
        if !self.is_fixed.load(Ordering::Relaxed)
            && let Some(next) = next_pool_percent(self.percent(), &borders)
        {
            self.border_seen.settle(facts.events);
            self.percent.store(next, Ordering::Relaxed);
        }
    }
}

impl BorderFacts {
    /// The borders with the events since the last look.
    fn borders(&self, [near_loads, limbo_hits, pool_loads]: [u64; 3]) -> Borders {
        let BorderFacts { near, stored, limbo, .. } = *self;
        Borders { near_loads, limbo_hits, pool_loads, near, stored, limbo }
    }
}

impl Pager {
    /// The memory that pages and pool share: the limit, less memory that is neither.
    fn divided_pages(&self) -> i64 {
        (self.limit_pages() - self.outside_pages()).max(super::MIN_PAGES)
    }

    /// Frames that the pool may have: the tree's part less the pools of the other processes, or
    /// this process's share of that part by the sizes of the pools, if that is more.
    pub(super) fn pool_target_pages(&self) -> i64 {
        let Others { pages, pools } = &self.balance.others;
        let (pages, pools) = (pages.load(Ordering::Relaxed), pools.load(Ordering::Relaxed));
        let all = (self.divided_pages() + pages) * i64::from(self.balance.percent()) / 100;
        let mine = self.pool_pages();
        (all - pools).max(all * mine / (mine + pools).max(1)).max(super::MIN_PAGES)
    }

    /// Sums up what the other processes hold. A dormant process holds none of it; memory shared by
    /// fork is part of the relative that counts it (`shared.rs`).
    fn look_at_others(&self) {
        let (mut pages, mut pools) = (0, 0);
        let others = self.tree().live_slots().filter(|s| !core::ptr::eq(*s, self.slot()));
        for s in others.filter(|s| s.mechanism().is_some()) {
            let used = s.used().max(0);
            let managed = used - (s.get(Counter::OutsidePages).min(used as u64) as i64);
            pages += managed;
            pools += managed.min((s.get(Counter::PoolBytes) / PAGE_SIZE as u64) as i64);
        }
        self.balance.others.pages.store(pages, Ordering::Relaxed);
        self.balance.others.pools.store(pools, Ordering::Relaxed);
    }

    /// Whether the pool takes more than its part: relatives may have left it less than it began
    /// with. The pool is also too large when the process has hardly anything else left and the tree
    /// is still over its limit: what others have of the part may be locked.
    pub(super) fn is_pool_too_large(&self) -> bool {
        let is_last = self.resident_pages() + self.limbo_pages() <= 2 * super::MIN_PAGES;
        if is_last && self.pool_pages() > super::MIN_PAGES && self.excess_of_tree(0) > 0 {
            return true;
        }
        // The pool has a little slack: otherwise each page that comes in would make it too large.
        let target = self.pool_target_pages();
        self.pool_pages() > target + target / 16
    }

    /// The evictor's tick: moves the border.
    pub fn balance_pool(&self) {
        let Some(active) = self.active() else { return };
        self.look_at_others();
        let c = active.cache.counters();
        // A page that left without limbo and was back at once counts as a hit, in a limbo that
        // would have been larger by all pages that left without it.
        let limbo_hits =
            self.slot().get(Counter::LimboHits) + self.slot().get(Counter::QuickReturns);
        let [dropped] =
            self.balance.dropped_seen.take([self.left_directly.load(Ordering::Relaxed)]);
        let limbo = self.limbo_pages().max(0) + (dropped as i64).min(self.limbo_target());
        self.slot().set(Counter::EdgePages, limbo as u64);
        let facts = BorderFacts {
            events: [c.near_loads, limbo_hits, c.pool_loads],
            near: near_bytes(c.mem_used_bytes) / PAGE_SIZE as u64,
            // Incompressible pages in the store would not be in a larger pool either.
            stored: c.store_pages - c.incompressible_pages.min(c.store_pages),
            limbo: limbo as u64,
        };
        self.balance.step(&facts);
        self.limit_pool(active);
        let kept = c.kept_bytes as usize / PAGE_SIZE;
        let events = [c.unchanged_pages, c.stores, limbo_hits];
        // The memory that the pool leaves, kept copies not counted: the pool's part may be more
        // than it takes.
        let pool = self.pool_pages().min(self.pool_target_pages()) - kept as i64;
        let room = (self.divided_pages() - pool.max(0)).max(super::MIN_PAGES);
        let most = self.balance.step_kept(room, limbo, kept as i64, events);
        active.cache.set_max_kept_bytes(most as usize * PAGE_SIZE);
        let facts = active.cache.codec_sizes().map(|sizes| CodecFacts {
            events: [c.pool_loads, c.pool_stores, limbo_hits],
            limbo: limbo as u64,
            pool: self.pool_pages().max(0) as u64,
            sizes,
            is_dense: active.cache.is_dense(),
        });
        if let Some(dense) = facts.and_then(|f| self.balance.step_codec(&f)) {
            active.cache.choose_dense(dense);
        }
        active.cache.set_leisure(self.balance.has_leisure([c.pool_loads, c.stores]));
    }

    pub(super) fn limit_pool(&self, active: &Active) {
        active.cache.set_max_pool_bytes(self.pool_target_pages() as usize * PAGE_SIZE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{
        FEW_LOADS, POOL_LEAST_PERCENT as LEAST_PERCENT, POOL_MOST_PERCENT as MOST_PERCENT,
    };

    #[test]
    fn the_border_moves_to_where_memory_saves_more() {
        let b = Balance::new();
        b.begin(0, true);
        let mut facts = BorderFacts { events: [0; 3], near: 4000, stored: 10_000, limbo: 1000 };
        let steps = |n: usize, loads: u64, hits: u64, facts: &mut BorderFacts| {
            for _ in 0..n {
                facts.events =
                    [facts.events[0] + loads, facts.events[1] + hits, facts.events[2] + 8 * hits];
                b.step(facts);
            }
            b.percent()
        };
        // Pages in the store come back: 0.25 loads of each page, 25 us of a page of pool; 12 us of
        // a page as it is.
        assert_eq!(steps(100, 1000, 1000, &mut facts), MOST_PERCENT);
        // They do not: 0.025 loads.
        assert_eq!(steps(200, 100, 1000, &mut facts), LEAST_PERCENT);
        // In between nothing moves; a program that hardly faults says nothing.
        assert_eq!(steps(100, 500, 1000, &mut facts), LEAST_PERCENT);
        assert_eq!(steps(1, FEW_LOADS - 1, 0, &mut facts), LEAST_PERCENT);
        // Nothing is in the store: it tries.
        assert_eq!(steps(10, 1000, 1000, &mut facts), LEAST_PERCENT + 20);
        facts.stored = 0;
        assert_eq!(steps(5, 0, 1024, &mut facts), LEAST_PERCENT + 15);
        // But not where memory would save nothing.
        facts.events[2] += 1 << 20;
        assert_eq!(steps(1, 0, 1024, &mut facts), LEAST_PERCENT + 15);
    }

    #[test]
    fn copies_are_kept_while_they_are_worth_more_than_pages() {
        let b = Balance::new();
        let (mut unchanged, mut hits, mut now) = (0, 0, 100);
        // Clean evictions, and no use for more pages: the copies take as much as they may.
        for _ in 0..50 {
            unchanged += 1000;
            now = b.step_kept(16_000, 1000, now, [unchanged, 0, hits]);
        }
        assert_eq!(now, 16_000 / 3);
        // Each page of memory would have saved some loads.
        for _ in 0..50 {
            unchanged += 100;
            hits += 1000;
            now = b.step_kept(16_000, 1000, now, [unchanged, 0, hits]);
        }
        assert!(now < 200, "{now}");
        // Copies that never serve, while others have to be compressed.
        let b2 = Balance::new();
        let first = b2.step_kept(16_000, 1000, 2000, [0, 0, 0]);
        assert_eq!(b2.step_kept(16_000, 1000, first, [0, 30_000, 0]), first);
        assert!(b2.step_kept(16_000, 1000, first, [0, 60_000, 0]) < first);
        // Nothing happens: nothing changes.
        assert_eq!(b.step_kept(16_000, 1000, now, [unchanged, 0, hits]), now);
    }

    #[test]
    fn the_denser_codec_is_chosen_where_memory_is_worth_more_than_time() {
        let b = Balance::new();
        let mut facts = CodecFacts {
            events: [0; 3],
            limbo: 1000,
            pool: 10_000,
            sizes: (1000, 600),
            is_dense: false,
        };
        let step = |loads, stores, hits, facts: &mut CodecFacts| {
            facts.events.iter_mut().zip([loads, stores, hits]).for_each(|(e, n)| *e += n);
            let chosen = b.step_codec(facts);
            facts.is_dense = chosen.unwrap_or(facts.is_dense);
            chosen
        };
        // Each page of memory would have saved five loads: 4000 pages, 20 000 loads.
        assert_eq!(step(1000, 1000, 500, &mut facts), None, "too few to speak");
        assert_eq!(step(20_000, 20_000, 5000, &mut facts), Some(true));
        facts.pool = 6000;
        assert_eq!(step(20_000, 20_000, 5000, &mut facts), None, "and so it stays");
        assert_eq!(step(20_000, 20_000, 500, &mut facts), Some(false));
        facts.pool = 10_000;
        assert_eq!(step(20_000, 20_000, 500, &mut facts), None);
        facts.sizes = (1000, 1100);
        assert_eq!(step(20_000, 20_000, 50_000, &mut facts), None, "it is not denser at all");
    }

    #[test]
    fn the_pool_takes_its_part_of_what_memory_outside_leaves() {
        let tree = Box::leak(crate::control::zeroed_tree());
        tree.limit_pages.store(10_000, Ordering::Relaxed);
        let pager = Pager::new();
        pager.connect(tree, tree.claim(1).unwrap());
        pager.balance.begin(60, true);
        assert_eq!(pager.pool_target_pages(), 6_000);
        pager.set_outside(4_000);
        assert_eq!(pager.pool_target_pages(), 3_600);
    }

    #[test]
    fn leisure_is_a_while_with_hardly_a_page() {
        let b = Balance::new();
        let mut loads = 0;
        let mut tick = |pages: u64| {
            loads += pages;
            b.has_leisure([loads, 0])
        };
        let mut first = |pages: u64| (0..2 * LEISURE_TICKS).position(|_| tick(pages));
        assert_eq!(first(QUIET_PAGES), None);
        assert_eq!(first(QUIET_PAGES - 1), Some(LEISURE_TICKS as usize - 1));
        assert!(tick(0) && !tick(QUIET_PAGES) && !tick(0), "the while begins anew");
    }

    #[test]
    fn what_the_user_says_stays() {
        let b = Balance::new();
        for (said, has_store, percent) in [(30, true, 30), (30, false, 30), (0, false, 90)] {
            b.begin(said, has_store);
            for loads in [0, 100_000, 200_000] {
                b.step(&BorderFacts {
                    events: [loads, 0, 0],
                    near: 400,
                    stored: 1000,
                    limbo: 1000,
                });
            }
            assert_eq!(b.percent(), percent);
        }
    }
}
