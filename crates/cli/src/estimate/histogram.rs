//! Times of single touches, counted in buckets: 16 to each power of two, so that a quantile is
//! right to 6 %.
//!
//! A touch that took [`REFAULT_NS`] or longer counts as a refault. Every arm has this border: a hit
//! costs a TLB and a cache miss (under 0.5 us even in a virtual machine), or the first write to a
//! page tracked by write protection (0.75 us), and the cheapest refault 3 us.

use serde_json::{Value, json};

/// A touch that took this long, or longer, was no hit.
pub const REFAULT_NS: u64 = 1000;

const SUB_BITS: u32 = 4;
const SUBS: usize = 1 << SUB_BITS;
const BUCKETS: usize = (64 - SUB_BITS as usize + 1) * SUBS;

/// Counts of touches by the time that they took.
pub struct Histogram {
    counts: Vec<u32>,
    touches: u64,
    refaults: u64,
    refault_total_ns: u64,
    hit_total_ns: u64,
}

impl Histogram {
    pub fn new() -> Histogram {
        Histogram {
            counts: vec![0; BUCKETS],
            touches: 0,
            refaults: 0,
            refault_total_ns: 0,
            hit_total_ns: 0,
        }
    }

    pub fn record(&mut self, ns: u64) {
        self.counts[bucket(ns)] += 1;
        self.touches += 1;
        if ns >= REFAULT_NS {
            self.refaults += 1;
            self.refault_total_ns += ns;
        } else {
            self.hit_total_ns += ns;
        }
    }

    /// Adds the touches that another histogram counted.
    pub fn add(&mut self, other: &Histogram) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.touches += other.touches;
        self.refaults += other.refaults;
        self.refault_total_ns += other.refault_total_ns;
        self.hit_total_ns += other.hit_total_ns;
    }

    /// All touches together.
    pub fn total_ns(&self) -> u64 {
        self.hit_total_ns + self.refault_total_ns
    }

    /// The time that `share` of the refaults did not exceed (upper end of its bucket); 0 without
    /// refaults.
    pub fn refault_quantile_ns(&self, share: f64) -> u64 {
        let first = bucket(REFAULT_NS);
        // The bucket that holds the border also counts some hits, at most one bucket's width below
        // it.
        let total: u64 = self.counts[first..].iter().map(|c| u64::from(*c)).sum();
        let wanted = (total as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate().skip(first) {
            seen += u64::from(*count);
            if seen >= wanted {
                return lower_ns(index + 1) - 1;
            }
        }
        0
    }

    /// Everything known, with the non-empty buckets as pairs of lower end and count.
    pub fn to_json(&self) -> Value {
        let mean =
            |total: u64, count: u64| if count == 0 { 0.0 } else { total as f64 / count as f64 };
        let buckets: Vec<Value> = (self.counts.iter().enumerate())
            .filter(|(_, count)| **count > 0)
            .map(|(index, count)| json!([lower_ns(index), count]))
            .collect();
        json!({
            "touches": self.touches,
            "refaults": self.refaults,
            "hit_mean_ns": mean(self.hit_total_ns, self.touches - self.refaults),
            "refault_mean_ns": mean(self.refault_total_ns, self.refaults),
            "refault_p50_ns": self.refault_quantile_ns(0.5),
            "refault_p99_ns": self.refault_quantile_ns(0.99),
            "refault_p999_ns": self.refault_quantile_ns(0.999),
            "buckets": buckets,
        })
    }
}

fn bucket(ns: u64) -> usize {
    if ns < SUBS as u64 {
        return ns as usize;
    }
    let power = ns.ilog2();
    let sub = (ns >> (power - SUB_BITS)) as usize & (SUBS - 1);
    (power - SUB_BITS + 1) as usize * SUBS + sub
}

fn lower_ns(bucket: usize) -> u64 {
    if bucket < SUBS {
        return bucket as u64;
    }
    let power = (bucket / SUBS) as u32 + SUB_BITS - 1;
    if power >= 64 {
        return u64::MAX;
    }
    (1 << power) + ((bucket % SUBS) as u64) * (1 << (power - SUB_BITS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_a_partition() {
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        for index in 0..BUCKETS - 1 {
            let (low, next) = (lower_ns(index), lower_ns(index + 1));
            assert!(low < next, "{index}");
            assert_eq!((bucket(low), bucket(next - 1)), (index, index));
            assert!(
                (next - low) as f64 <= (low as f64 / SUBS as f64).max(1.0),
                "{index}: wider than 6 %"
            );
        }
    }

    #[test]
    fn a_sum_is_as_if_one_had_counted_all() {
        let (mut one, mut other, mut both) = (Histogram::new(), Histogram::new(), Histogram::new());
        for ns in [3, 900, 5000, 70_000, 5000] {
            one.record(ns);
            both.record(ns);
        }
        for ns in [1000, 5000, 12] {
            other.record(ns);
            both.record(ns);
        }
        one.add(&other);
        assert_eq!(one.to_json(), both.to_json());
    }

    #[test]
    fn quantiles_are_of_refaults_only() {
        let mut histogram = Histogram::new();
        assert_eq!(histogram.refault_quantile_ns(0.5), 0);
        (0..1_000_000).for_each(|_| histogram.record(30));
        (1..=1000).for_each(|us| histogram.record(us * 10_000));
        let near = |ns: u64, wanted: f64| (ns as f64 / wanted - 1.0).abs() < 0.07;
        assert!(
            near(histogram.refault_quantile_ns(0.5), 5e6),
            "{}",
            histogram.refault_quantile_ns(0.5)
        );
        assert!(near(histogram.refault_quantile_ns(0.999), 9.99e6));
        let json = histogram.to_json();
        assert_eq!(json["touches"], 1_001_000);
        assert_eq!(json["refaults"], 1000);
        assert_eq!(json["hit_mean_ns"], 30.0);
        assert_eq!(json["refault_mean_ns"], 5_005_000.0);
        assert_eq!(json["buckets"][0], json!([30, 1_000_000]));
    }
}
