//! Seeded runs of the model, and threads side by side. A failure is named by its seed. `UZSWAP_FUZZ_OPERATIONS` sets how many
//! events a run has.

use super::events::{Sum, run};
use super::*;
use crate::testing::Random;

const SMALL: Spec = Spec { pages: 1024, limit_pages: 480, slots: 256, blocks: 0, has_store: true };

fn operations(default: u64) -> u64 {
    std::env::var("UZSWAP_FUZZ_OPERATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

/// Runs the model, and says the seed if it fails.
fn seeded(spec: Spec, seed: u64, default: u64) -> Sum {
    let run = || run(spec, &mut Random::new(seed), operations(default), MAY_FORK);
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_or_else(|why| {
        eprintln!("failed with seed {seed}");
        std::panic::resume_unwind(why)
    })
}

const MAY_FORK: bool = true;

#[test]
fn agrees_with_the_model() {
    for seed in 0..6 {
        let sum = seeded(SMALL, seed, 20_000);
        println!("seed {seed}: {sum:?}");
    }
}

#[test]
fn agrees_with_the_model_without_a_store() {
    for seed in 100..104 {
        let sum = seeded(Spec { has_store: false, ..SMALL }, seed, 20_000);
        assert_eq!(sum.lost, 0);
    }
}

#[test]
fn agrees_with_the_model_with_huge_pages() {
    let spec = Spec { pages: 8 * STRETCH_PAGES, limit_pages: 2200, slots: 275, blocks: 2, has_store: true };
    for seed in 200..204 {
        let sum = seeded(spec, seed, 20_000);
        println!("seed {seed}: {sum:?}");
    }
}
