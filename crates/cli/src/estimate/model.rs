//! The meaning of a limit: who gets the memory, which pages come back, what that costs.
//!
//! ```text
//!  limit - what uzswap itself takes:   | resident pages |  compressed pages  |      and the rest on the disk
//!                                      '-- used last ---'-- used before -----'------- used longest ago
//! ```
//!
//! As many pages as possible stay as they are, if all fit: resident + compressed = limit. If not,
//! the pool has the share at which it comes to rest by the engine's own rule (`policy`). On the way
//! there it has other shares, so the estimated time is between that at the end and that at half of
//! the way. The codec is the one that `--compressor auto` would take, by the engine's rule again.
//! That need not be the faster one: where pages come and go all the time, the engine has no reason
//! to try the other. Where the rule could choose either, the time is between those of both. Pages
//! brought back come from the pool down to where resident and compressed pages end, from the disk
//! below (`within` and `curve` say how many). The program waits for each of them, one at a time:
//! for a program with more threads than faults to wait for, that is too much.

use std::cmp::Ordering;

use serde_json::{Value, json};
use uzswap::policy::{Borders, POOL_FIRST_PERCENT, POOL_LEAST_PERCENT, POOL_MOST_PERCENT};
use uzswap::policy::{is_denser_better, limbo_target, next_pool_percent};

use super::cost::{Costs, PROCESS_BYTES};
use super::curve::{self, Step};
use super::density::Density;
use super::watch::Observation;
use super::within::Refaults;

const PAGE_BYTES: f64 = uzswap::PAGE_BYTES as f64;
/// The part of the pages after one used a moment ago that comes by windows. Only some pages are
/// watched, so touches look in order where pages between those are left out, too. Of CPython's
/// loads 49, 45 and 16 % came by windows at 75, 50 and 25 %.
const BY_WINDOWS: f64 = 0.5;
/// A smaller part of the memory on the disk counts as none: it is what does not compress, or
/// nothing.
const LEAST_STORED: f64 = 0.002;
/// The step, in percent, by which the pool's share is looked for, and the most steps.
const SHARE_STEP: u32 = 5;
const SHARE_STEPS: usize = 16;
/// The part of the memory beside the pool that is for copies of pages that have come back, at first
/// (`pager/balance.rs`).
const KEPT: f64 = 1.0 / 8.0;

/// A program at a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forecast {
    pub memory_bytes: u64,
    /// At the peak: pages as they are, memory of compressed ones, memory of the program that would
    /// be on the disk.
    pub resident_bytes: f64,
    pub compressed_bytes: f64,
    pub stored_bytes: f64,
    /// Pages brought back in a second of the program's own time.
    pub faults_by_second: f64,
    /// Its time divided by that without uzswap: expected, at least, at most.
    pub slowdown: [f64; 3],
    /// Whether the denser codec is used.
    pub is_dense: bool,
}

/// How so much memory is divided, in pages.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Division {
    resident: f64,
    pool: f64,
    compressed: f64,
    stored: f64,
}

impl Division {
    /// Divides `memory` pages among the program's `anonymous` pages, where the pool may take
    /// `pool_percent`.
    fn of(anonymous: f64, memory: f64, density: &Density, pool_percent: u32) -> Division {
        if anonymous <= memory {
            return Division { resident: anonymous, pool: 0.0, compressed: 0.0, stored: 0.0 };
        }
        let size = density.stored.clamp(0.001, 1.0);
        let compressible = 1.0 - density.incompressible;
        // resident + (anonymous - resident) * by_page = memory
        let by_page = compressible * size;
        let all_in_memory =
            if by_page < 1.0 { (memory - anonymous * by_page) / (1.0 - by_page) } else { 0.0 };
        let resident = all_in_memory.max(memory * (1.0 - f64::from(pool_percent) / 100.0)).max(1.0);
        let out = anonymous - resident;
        let compressed = ((memory - resident).max(0.0) / size).min(out * compressible);
        Division { resident, pool: compressed * size, compressed, stored: out - compressed }
    }
}

/// The memories that are asked about, as multiples of the one in question.
const LARGER: [f64; 5] = [1.0, 1.5, 2.0, 3.0, 4.5];

/// The forecast for a limit of `memory_bytes`.
pub fn forecast(
    seen: &Observation,
    densities: &[Density; 2],
    costs: &Costs,
    memory_bytes: u64,
) -> Forecast {
    let model = Model::new(seen, densities, costs, memory_bytes);
    let settled = settled_percent(|percent| model.borders(percent));
    // The pool's share takes a while to get there.
    model.at(settled).between(model.at(settled.midpoint(POOL_FIRST_PERCENT)))
}

/// A program that was seen, at one limit.
struct Model<'a> {
    seen: &'a Observation,
    fast: &'a Density,
    dense: &'a Density,
    costs: &'a Costs,
    memory_bytes: u64,
    /// The limit without uzswap's own memory, and the program's peak, in pages.
    memory: f64,
    peak: f64,
    seconds: f64,
    /// Pages of limbo: a little more memory, as the engine sees it.
    limbo: f64,
}

impl<'a> Model<'a> {
    fn new(
        seen: &'a Observation,
        [fast, dense]: &'a [Density; 2],
        costs: &'a Costs,
        memory_bytes: u64,
    ) -> Model<'a> {
        let own_bytes = PROCESS_BYTES * f64::from(seen.large_processes.max(1));
        let memory = (memory_bytes as f64 - own_bytes).max(PROCESS_BYTES) / PAGE_BYTES;
        Model {
            seen,
            fast,
            dense,
            costs,
            memory_bytes,
            memory,
            peak: seen.peak_bytes as f64 / PAGE_BYTES,
            seconds: seen.seconds.max(1e-9),
            limbo: limbo_target(memory as i64, usize::MAX) as f64,
        }
    }

    /// The cost of all first touches. Pages go while the program runs, unless it asks for new ones
    /// faster than they go.
    fn first_ns(&self) -> f64 {
        let first = |step: &Step| {
            let own_ns = 1e9 * step.seconds / step.new_pages.max(1.0);
            let most_ns = self.costs.first_touch_most_ns - own_ns;
            step.new_pages * most_ns.max(self.costs.first_touch_ns)
        };
        let is_full = |step: &&Step| step.anonymous_pages > self.memory;
        self.seen.steps.iter().filter(is_full).map(first).sum()
    }

    /// Pages that come back with `more` pages resident than the division leaves.
    fn loads(&self, density: &Density, pool_percent: u32, more: f64) -> Refaults {
        refaults(self.seen, &|anonymous| {
            let division = Division::of(anonymous, self.memory, density, pool_percent);
            let resident = division.resident * (1.0 - KEPT) + more;
            if division.resident < anonymous { resident.min(anonymous) } else { anonymous }
        })
    }

    /// Pages that come back from the disk.
    fn store_loads(&self, density: &Density, pool_percent: u32) -> f64 {
        refaults(self.seen, &|anonymous| {
            let division = Division::of(anonymous, self.memory, density, pool_percent);
            let is_some = division.stored > LEAST_STORED * anonymous;
            if is_some { division.resident + division.compressed } else { anonymous }
        })
        .pages
    }

    /// Pages, of so many `loads`, that a little more memory would save.
    fn hits(&self, pool_percent: u32, loads: f64) -> f64 {
        (loads - self.loads(self.fast, pool_percent, self.limbo).pages).max(0.0)
    }

    /// The forecast with that share of the pool, and the codec that the engine decides on.
    fn at(&self, pool_percent: u32) -> Forecast {
        let by_fast = self.with(pool_percent, false);
        match self.may_be_dense(pool_percent, &by_fast) {
            [false, false] => by_fast,
            [true, true] => self.with(pool_percent, true),
            _ => by_fast.between(self.with(pool_percent, true)),
        }
    }

    fn with(&self, pool_percent: u32, is_dense: bool) -> Forecast {
        let density = if is_dense { self.dense } else { self.fast };
        let loads = self.loads(density, pool_percent, 0.0);
        let times = self.times(density, pool_percent, &loads);
        let at_peak = Division::of(self.peak, self.memory, density, pool_percent);
        Forecast {
            memory_bytes: self.memory_bytes,
            resident_bytes: at_peak.resident * PAGE_BYTES,
            compressed_bytes: at_peak.pool * PAGE_BYTES,
            stored_bytes: at_peak.stored * PAGE_BYTES,
            faults_by_second: loads.pages / self.seconds,
            slowdown: times.map(|time| 1.0 + time / self.seconds),
            is_dense,
        }
    }

    /// Seconds more that the program takes: expected, at least, at most.
    fn times(&self, density: &Density, pool_percent: u32, loads: &Refaults) -> [f64; 3] {
        let Model { seen, costs, .. } = self;
        let slower_ns = (density.page_ns - self.fast.page_ns).max(0.0);
        let from_store = self.store_loads(density, pool_percent);
        // A page that does not compress is not in the pool, however often it is used.
        let from_store = from_store.max(loads.pages * density.incompressible).min(loads.pages);
        // A page that is read in order comes by windows, from the disk too.
        let in_order = BY_WINDOWS * loads.in_order / loads.pages.max(1.0);
        // Memory that was in huge pages comes in units, from the disk as it lies there.
        let in_units = (seen.peak_huge_bytes as f64 / seen.peak_bytes.max(1) as f64).min(1.0);
        let store_in_order = in_order.max(in_units);
        let store_load_ns = costs.store_load_ns
            + store_in_order * (costs.store_load_least_ns - costs.store_load_ns);
        let colder_ns = costs.colder_ns(1e9 * self.seconds / loads.pages.max(1.0));
        let first_ns = self.first_ns();
        [costs.load_ns, costs.load_least_ns, costs.load_most_ns].map(|load_ns| {
            let load_ns = load_ns + colder_ns;
            let load_ns = load_ns + in_order * (costs.load_in_order_ns - load_ns).min(0.0);
            let by_store = from_store * (store_load_ns - load_ns).max(0.0);
            (first_ns + loads.pages * (load_ns + slower_ns) + by_store) / 1e9
        })
    }

    /// Whether the engine takes the denser codec, by what more memory would save. It sees that in
    /// limbo only, so it may see half of it.
    fn may_be_dense(&self, pool_percent: u32, by_fast: &Forecast) -> [bool; 2] {
        let loads = by_fast.faults_by_second * self.seconds;
        let hits = self.hits(pool_percent, loads);
        let pool = by_fast.compressed_bytes / PAGE_BYTES;
        let saved = pool * (1.0 - self.dense.stored / self.fast.stored.max(0.001)).max(0.0);
        [hits / 2.0, hits].map(|hits| {
            let events = [loads, loads, hits].map(|pages| pages as u64);
            is_denser_better(false, events, self.limbo as u64, saved as u64)
        })
    }

    /// The hits and loads that the engine would count at the borders of a pool with that share.
    fn borders(&self, pool_percent: u32) -> Borders {
        let division = Division::of(self.peak, self.memory, self.fast, pool_percent);
        let loads = self.loads(self.fast, pool_percent, 0.0).pages;
        let store_loads = self.store_loads(self.fast, pool_percent).min(loads);
        // The hits of a little more pool, by all that is stored: in a sample too few pages lie so
        // near the border.
        Borders {
            near_loads: store_loads as u64,
            limbo_hits: self.hits(pool_percent, loads) as u64,
            pool_loads: (loads - store_loads) as u64,
            near: (division.stored * self.fast.stored) as u64,
            stored: division.stored as u64,
            limbo: self.limbo as u64,
        }
    }
}

/// Where the pool's share comes to rest, by the engine's own rule, from where it begins.
fn settled_percent(borders: impl Fn(u32) -> Borders) -> u32 {
    let (mut percent, mut direction) = (POOL_FIRST_PERCENT, Ordering::Equal);
    for _ in 0..SHARE_STEPS {
        let next = next_pool_percent(percent, &borders(percent)).unwrap_or(percent);
        let moved = match next.cmp(&percent) {
            Ordering::Less if direction != Ordering::Greater => percent.saturating_sub(SHARE_STEP),
            Ordering::Greater if direction != Ordering::Less => percent + SHARE_STEP,
            // The share stays, or would come back.
            _ => return percent,
        };
        direction = next.cmp(&percent);
        let moved = moved.clamp(POOL_LEAST_PERCENT, POOL_MOST_PERCENT);
        if moved == percent {
            return percent;
        }
        percent = moved;
    }
    percent
}

/// Refaults as seen from outside: no fewer than with more memory, since a smaller memory misses all
/// that a larger one does, and looks are too far apart for small memories to show all that they
/// miss.
fn refaults_outside(seen: &Observation, resident: &dyn Fn(f64) -> f64) -> f64 {
    let with = |times: &f64| curve::refaults(&seen.steps, &|anonymous| resident(anonymous) * times);
    LARGER.iter().map(with).fold(0.0, f64::max)
}

/// Pages that would have to be brought back with so much memory resident, about.
fn refaults(seen: &Observation, resident: &dyn Fn(f64) -> f64) -> Refaults {
    match &seen.touches {
        Some(touches) => touches.refaults_about(seen.peak_bytes as f64 / PAGE_BYTES, resident),
        None => Refaults { pages: refaults_outside(seen, resident), in_order: 0.0 },
    }
}

impl Forecast {
    /// Times between those of two forecasts, all else as in the first.
    fn between(self, other: Forecast) -> Forecast {
        let mean = |a: f64, b: f64| (a * b).sqrt();
        Forecast {
            faults_by_second: mean(self.faults_by_second, other.faults_by_second),
            slowdown: std::array::from_fn(|i| mean(self.slowdown[i], other.slowdown[i])),
            ..self
        }
    }

    pub fn to_json(self) -> Value {
        let [expected, least, most] = self.slowdown;
        json!({
            "memory_bytes": self.memory_bytes,
            "resident_bytes": self.resident_bytes as u64,
            "compressed_bytes": self.compressed_bytes as u64,
            "stored_bytes": self.stored_bytes as u64,
            "faults_per_second": self.faults_by_second,
            "slowdown": expected,
            "slowdown_least": least,
            "slowdown_most": most,
            "dense_codec": self.is_dense,
        })
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn density(stored: f64) -> Density {
        Density {
            sampled_pages: 1000,
            stored,
            stored_error: 0.01,
            page_ns: 5000.0,
            ..Density::default()
        }
    }

    pub const COSTS: Costs = Costs {
        first_touch_ns: 5000.0,
        first_touch_most_ns: 9000.0,
        load_ns: 10_000.0,
        load_least_ns: 4000.0,
        load_most_ns: 12_000.0,
        load_in_order_ns: 5000.0,
        load_cold_ns: 0.0,
        cold_after_ns: 10_000.0,
        signal_ns: 2000.0,
        first_ns: [500.0, 100.0],
        store_load_ns: 100_000.0,
        store_load_least_ns: 20_000.0,
    };

    /// A program of 256 MiB that touches all of it in a loop, `pages_by_second`, for 10 seconds.
    pub fn looping(pages_by_second: f64) -> Observation {
        let step = |before: f64, touched: f64| Step {
            seconds: (touched - before) / pages_by_second,
            anonymous_pages: 65_536.0,
            touched_before_pages: before,
            touched_pages: touched,
            again_pages: touched - before,
            marks: touched - before,
            ..Step::default()
        };
        let round: Vec<Step> =
            (0..10).map(|i| step(6000.0 * f64::from(i), 6000.0 * f64::from(i + 1))).collect();
        let seconds: f64 = round.iter().map(|step| step.seconds).sum();
        let steps = vec![round; (10.0 / seconds).round() as usize].concat();
        Observation {
            seconds: steps.iter().map(|step| step.seconds).sum(),
            steps,
            pages: Vec::new(),
            peak_bytes: 256 << 20,
            peak_huge_bytes: 0,
            large_processes: 1,
            looks: 100,
            look_seconds: 0.2,
            clear_seconds: 0.1,
            mark_seconds: 0.0,
            touches: None,
            processors: 1.0,
        }
    }

    #[test]
    fn memory_is_divided_without_a_rest() {
        for (anonymous, memory, incompressible) in
            [(1000.0, 750.0, 0.0), (1000.0, 500.0, 0.0), (1000.0, 250.0, 0.1), (1000.0, 100.0, 1.0)]
        {
            let density = Density { incompressible, ..density(0.25) };
            for share in [40, 85] {
                let d = Division::of(anonymous, memory, &density, share);
                assert!(d.resident > 0.0 && d.compressed >= 0.0 && d.stored >= -1e-9, "{d:?}");
                assert!((d.resident + d.compressed + d.stored - anonymous).abs() < 1e-6, "{d:?}");
                assert!(d.resident + d.pool <= memory + 1.0, "{d:?}");
                assert!(d.pool <= memory * f64::from(share) / 100.0 + 1e-6, "{d:?}");
            }
        }
        // All fits: 2/3 of 1000 in 750, the rest by a quarter.
        let d = Division::of(1000.0, 750.0, &density(0.25), 85);
        assert!((d.resident - 2000.0 / 3.0).abs() < 1e-6 && d.stored.abs() < 1e-6, "{d:?}");
        assert_eq!(Division::of(10.0, 10.0, &density(0.25), 50).resident, 10.0);
    }

    #[test]
    fn a_loop_pays_for_every_page() {
        let both = [density(0.25), Density { page_ns: 9000.0, ..density(0.2) }];
        let at = |memory: u64| forecast(&looping(10_000.0), &both, &COSTS, memory << 20);
        let half = at(128);
        assert!((half.faults_by_second - 10_000.0).abs() < 500.0, "{half:?}");
        // 10 000 times 10 us, and between 4 and 12.
        for (found, expected) in half.slowdown.iter().zip([1.1, 1.04, 1.12]) {
            assert!((found - expected).abs() < 0.01, "{half:?}");
        }
        assert_eq!((half.stored_bytes, half.is_dense), (0.0, false));
        let all = at(300);
        assert_eq!((all.slowdown, all.faults_by_second), ([1.0; 3], 0.0));
    }

    #[test]
    fn the_denser_codec_is_taken_where_a_little_more_memory_saves_much() {
        // A loop misses as much with a little more memory, so there is no reason to try.
        let both = [density(0.25), Density { page_ns: 9000.0, ..density(0.1) }];
        let at_half = |seen: &Observation| forecast(seen, &both, &COSTS, 128 << 20);
        assert!(!at_half(&looping(10_000.0)).is_dense);
        // One over 18 000 pages only, of which 17 600 would stay with the fast codec, 24 200 with
        // the dense one: for `part` of the time.
        let hot = |part: f64| {
            let mut seen = looping(10_000.0);
            let steps = (seen.steps.len() as f64 * part) as usize;
            for step in seen.steps[..steps].iter_mut().filter(|step| step.touched_pages > 18_000.0)
            {
                step.again_pages = 0.0;
                (step.touched_before_pages, step.touched_pages) = (18_000.0, 18_000.0);
            }
            seen
        };
        // All the time: the rest is never used, so it goes to the disk, and there is room without
        // the denser codec.
        let forecast = at_half(&hot(1.0));
        assert!(!forecast.is_dense && forecast.slowdown[0] < 1.01, "{forecast:?}");
        // Half of the time, and the rest in the other half: it has to stay.
        let forecast = at_half(&hot(0.5));
        let by_fast = super::forecast(&hot(0.5), &[both[0]; 2], &COSTS, 128 << 20);
        assert!(
            forecast.is_dense && forecast.slowdown[0] < by_fast.slowdown[0],
            "{forecast:?} {by_fast:?}"
        );
        assert!(forecast.slowdown[0] < 1.1, "{forecast:?}");
    }

    #[test]
    fn what_could_be_either_is_between_the_two() {
        let at = |density| forecast(&looping(10_000.0), &[density; 2], &COSTS, 128 << 20);
        let [low, high] = [at(density(0.25)), Forecast { slowdown: [4.0; 3], ..at(density(0.25)) }];
        let low = Forecast { slowdown: [1.0; 3], ..low };
        assert_eq!(low.between(high).slowdown, [2.0; 3]);
        assert_eq!(low.between(low), low);
    }

    #[test]
    fn first_touches_cost_once_the_memory_is_full() {
        let mut seen = looping(10_000.0);
        seen.steps.iter_mut().for_each(|step| (step.again_pages, step.new_pages) = (0.0, 600.0));
        let steps = seen.steps.len() as f64;
        let both = [density(0.25); 2];
        let slowdown = forecast(&seen, &both, &COSTS, 128 << 20).slowdown[0];
        // 600 in 0.6 s: there is time for them to go.
        assert!((slowdown - 1.0 - steps * 600.0 * 5e-6 / seen.seconds).abs() < 1e-6, "{slowdown}");
        seen.steps.iter_mut().for_each(|step| step.new_pages = 300_000.0);
        let slowdown = forecast(&seen, &both, &COSTS, 128 << 20).slowdown[0];
        // Two us between two of them, and each needs nine to go.
        assert!(
            (slowdown - 1.0 - steps * 300_000.0 * 7e-6 / seen.seconds).abs() < 1e-6,
            "{slowdown}"
        );
        assert_eq!(forecast(&seen, &both, &COSTS, 300 << 20).slowdown[0], 1.0);
    }
}
