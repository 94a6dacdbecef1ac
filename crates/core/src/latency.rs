//! How long faults take: counted in buckets, by the kind of fault, in memory that the processes of
//! a run share.
//!
//! ```text
//!  bucket      0          1 .. 4         5 .. 8      ...    93 .. 96      97
//!  up to    512 ns    640 .. 1024 ns   1.3 .. 2 us   ...    .. 8.6 s    without end
//! ```
//!
//! Four buckets to each power of two, so that a quantile is right to an eighth or better. Each
//! bucket includes its upper end, as the buckets of Prometheus do. Times are those of our handler,
//! its wait for the lock and for room included; the signal itself, in and out, is the kernel's and
//! costs a microsecond or two more.

use core::sync::atomic::{AtomicU64, Ordering};

/// The way in which a fault was served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum FaultKind {
    /// A page that had no contents yet.
    FirstTouch,
    /// A page that was still in limbo.
    LimboHit,
    /// A page from the pool, or one of a repeated word.
    PoolLoad,
    /// A page from the backing store, or one beside it that was brought together with this one.
    StoreLoad,
}

impl FaultKind {
    pub const ALL: [FaultKind; 4] =
        [FaultKind::FirstTouch, FaultKind::LimboHit, FaultKind::PoolLoad, FaultKind::StoreLoad];

    /// As `--stats` and the metrics name it.
    pub const fn name(self) -> &'static str {
        match self {
            FaultKind::FirstTouch => "first_touch",
            FaultKind::LimboHit => "limbo_hit",
            FaultKind::PoolLoad => "pool_load",
            FaultKind::StoreLoad => "store_load",
        }
    }

    /// In words.
    pub const fn doc(self) -> &'static str {
        match self {
            FaultKind::FirstTouch => "first touches (zero-filled)",
            FaultKind::LimboHit => "pages that were still in limbo",
            FaultKind::PoolLoad => "loads from the compressed pool, or of one repeated word",
            FaultKind::StoreLoad => "loads from the backing store",
        }
    }
}

/// log2 of the upper end of the first bucket, and of the last one that has an end, in nanoseconds.
const FIRST_POWER: u32 = 9;
const LAST_POWER: u32 = 33;
/// log2 of the buckets to a power of two.
const SUB_BITS: u32 = 2;

pub const BUCKETS: usize = 2 + ((LAST_POWER - FIRST_POWER) << SUB_BITS) as usize;

fn bucket(ns: u64) -> usize {
    // The upper end belongs to the bucket.
    let below = ns.saturating_sub(1);
    if below >> FIRST_POWER == 0 {
        return 0;
    }
    let power = below.ilog2();
    if power >= LAST_POWER {
        return BUCKETS - 1;
    }
    let sub = (below >> (power - SUB_BITS)) as usize & ((1 << SUB_BITS) - 1);
    1 + ((power - FIRST_POWER) << SUB_BITS) as usize + sub
}

/// The longest time that a bucket counts, in nanoseconds; `None` for the last.
pub fn upper_ns(bucket: usize) -> Option<u64> {
    match bucket {
        0 => Some(1 << FIRST_POWER),
        b if b < BUCKETS - 1 => {
            let power = FIRST_POWER + ((b - 1) >> SUB_BITS) as u32;
            let sub = (b - 1) as u64 & ((1 << SUB_BITS) - 1);
            Some((1 << power) + ((sub + 1) << (power - SUB_BITS)))
        }
        _ => None,
    }
}

/// The counts of one process, or of those that ended. All-zero at first.
#[repr(C)]
pub struct Latency {
    counts: [[AtomicU64; BUCKETS]; FaultKind::ALL.len()],
    sum_ns: [AtomicU64; FaultKind::ALL.len()],
}

impl Latency {
    #[inline]
    pub fn record(&self, kind: FaultKind, ns: u64) {
        self.counts[kind as usize][bucket(ns)].fetch_add(1, Ordering::Relaxed);
        self.sum_ns[kind as usize].fetch_add(ns, Ordering::Relaxed);
    }

    /// Moves all counts to `total`.
    pub(crate) fn fold_into(&self, total: &Latency) {
        let pairs = self.counts.iter().flatten().zip(total.counts.iter().flatten());
        for (from, to) in pairs.chain(self.sum_ns.iter().zip(&total.sum_ns)) {
            // Most buckets are empty, and an exchange costs more than a look.
            if from.load(Ordering::Relaxed) != 0 {
                to.fetch_add(from.swap(0, Ordering::AcqRel), Ordering::AcqRel);
            }
        }
    }

    /// Adds the present counts.
    pub fn add_to(&self, kind: FaultKind, histogram: &mut Histogram) {
        for (to, from) in histogram.counts.iter_mut().zip(&self.counts[kind as usize]) {
            *to += from.load(Ordering::Relaxed);
        }
        histogram.sum_ns += self.sum_ns[kind as usize].load(Ordering::Relaxed);
    }

    /// How many faults of a kind were counted.
    pub fn count(&self, kind: FaultKind) -> u64 {
        self.counts[kind as usize].iter().map(|c| c.load(Ordering::Relaxed)).sum()
    }
}

/// Counts as of one moment, of one or several processes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Histogram {
    pub counts: [u64; BUCKETS],
    pub sum_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: [0; BUCKETS], sum_ns: 0 }
    }
}

impl Histogram {
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub fn mean_ns(&self) -> f64 {
        self.sum_ns as f64 / self.count().max(1) as f64
    }

    pub fn add(&mut self, other: &Histogram) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(to, from)| *to += from);
        self.sum_ns += other.sum_ns;
    }

    /// The time that `share` of the faults did not exceed, as if those of a bucket were spread
    /// evenly over it; 0 without faults.
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let wanted = self.count() as f64 * share.clamp(0.0, 1.0);
        let (mut seen, mut low) = (0.0, 0);
        for (index, count) in self.counts.iter().enumerate() {
            // Nothing else is known of faults that took longer than the last end.
            let Some(high) = upper_ns(index) else { break };
            let count = *count as f64;
            if count > 0.0 && seen + count >= wanted {
                let part = ((wanted - seen) / count).clamp(0.0, 1.0);
                return low + ((high - low) as f64 * part) as u64;
            }
            seen += count;
            low = high;
        }
        if self.count() == 0 { 0 } else { low }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    fn latency() -> &'static Latency {
        &Box::leak(crate::control::zeroed_tree()).latency
    }

    #[test]
    fn buckets_are_a_partition_and_include_their_upper_end() {
        assert_eq!((bucket(0), bucket(512), bucket(513)), (0, 0, 1));
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        let mut low = 0;
        for index in 0..BUCKETS - 1 {
            let high = upper_ns(index).unwrap();
            assert_eq!(
                (bucket(low + 1), bucket(high), bucket(high + 1)),
                (index, index, index + 1)
            );
            assert!(index == 0 || (high - low) * 4 <= low, "{index}: too wide");
            low = high;
        }
        assert_eq!(low, 1 << LAST_POWER);
        assert_eq!(upper_ns(BUCKETS - 1), None);
    }

    #[test]
    fn quantiles_come_out_as_they_went_in() {
        let (l, mut h) = (latency(), Histogram::default());
        assert_eq!((h.quantile_ns(0.5), h.mean_ns()), (0, 0.0));
        (1..=10_000).for_each(|us| l.record(FaultKind::PoolLoad, us * 1000));
        l.add_to(FaultKind::PoolLoad, &mut h);
        for (share, wanted) in [(0.5, 5e6), (0.99, 9.9e6), (0.999, 9.99e6)] {
            let got = h.quantile_ns(share) as f64;
            assert!((got / wanted - 1.0).abs() < 0.06, "{share}: {got}");
        }
        assert_eq!(h.mean_ns(), 5_000_500.0);
        assert_eq!((l.count(FaultKind::PoolLoad), l.count(FaultKind::LimboHit)), (10_000, 0));
        let mut beyond = Histogram::default();
        beyond.counts[BUCKETS - 1] = 1;
        assert_eq!(beyond.quantile_ns(0.5), 1 << LAST_POWER);
    }

    #[test]
    fn what_is_folded_is_counted_once() {
        let (a, total) = (latency(), latency());
        a.record(FaultKind::FirstTouch, 700);
        a.record(FaultKind::StoreLoad, 90_000);
        a.fold_into(total);
        a.fold_into(total);
        assert_eq!(FaultKind::ALL.map(|k| total.count(k)), [1, 0, 0, 1]);
        assert_eq!(FaultKind::ALL.map(|k| a.count(k)), [0; 4]);
        assert_eq!(total.sum_ns[FaultKind::StoreLoad as usize].load(Ordering::Relaxed), 90_000);
    }
}
