//! Seeded runs of the model, and threads side by side. A failure is named by its seed. `UZSWAP_FUZZ_OPERATIONS` sets how many
//! events a run has.

use super::events::{Sum, WAYS, run};
use super::*;
use crate::control::Counter;
use crate::testing::Random;

const SMALL: Spec = Spec { pages: 1024, limit_pages: 480, slots: 256, blocks: 0, has_store: true };

fn operations(default: u64) -> u64 {
    std::env::var("UZSWAP_FUZZ_OPERATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

/// Runs the model, and says the seed if it fails.
fn seeded(spec: Spec, seed: u64, default: u64) -> Sum {
    let run = || run(spec, &mut Random::new(seed), operations(default), true);
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_or_else(|why| {
        eprintln!("failed with seed {seed}");
        std::panic::resume_unwind(why)
    })
}

/// Runs some seeds, in which all ways but `never` were gone.
fn seeds(spec: Spec, seeds: core::ops::Range<u64>, never: &[Counter]) {
    let mut ways = [0; WAYS.len()];
    for seed in seeds {
        let sum = seeded(spec, seed, 20_000);
        println!("seed {seed}: {sum:?}");
        ways.iter_mut().zip(sum.ways).for_each(|(all, one)| *all += one);
    }
    for (way, count) in WAYS.into_iter().zip(ways) {
        assert_eq!(count > 0, !never.contains(&way), "{count} {}", way.name());
    }
}

#[test]
fn agrees_with_the_model() {
    seeds(SMALL, 0..6, &[Counter::HugeFaults, Counter::HugeEvictions]);
}

#[test]
fn agrees_with_the_model_without_a_store() {
    let never = [Counter::HugeFaults, Counter::HugeEvictions, Counter::ReadBackPages];
    seeds(Spec { has_store: false, ..SMALL }, 100..104, &never);
}

#[test]
fn agrees_with_the_model_with_huge_pages() {
    let spec = Spec { pages: 8 * STRETCH_PAGES, limit_pages: 2200, slots: 275, blocks: 2, has_store: true };
    seeds(spec, 200..204, &[]);
}
