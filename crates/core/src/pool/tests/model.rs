//! Seeded runs of the model.

use crate::pool::{PoolKind, model};
use crate::testing::Random;

/// `POOL_FUZZ_SEED=n` runs that seed alone; `POOL_FUZZ_RUNS=n` runs so many.
#[test]
fn random_events_agree_with_the_model() {
    let number = |name: &str| std::env::var(name).ok().map(|v| v.parse::<u64>().expect("a number"));
    let seeds = match number("POOL_FUZZ_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("POOL_FUZZ_RUNS").unwrap_or(6),
    };
    for seed in seeds {
        for kind in PoolKind::ALL {
            let outcome =
                std::panic::catch_unwind(|| model::run(kind, &mut Random::new(seed), 30_000));
            if let Err(panic) = outcome {
                eprintln!("{} failed: POOL_FUZZ_SEED={seed}", kind.name());
                std::panic::resume_unwind(panic);
            }
        }
    }
}
