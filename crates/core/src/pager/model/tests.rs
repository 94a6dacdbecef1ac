//! Seeded runs of the model, and threads side by side. A failure is named by its seed.
//! `UZSWAP_FUZZ_OPERATIONS` sets how many events a run has; `UZSWAP_FUZZ_SEED` is added to each
//! seed, for a search of other ones.

use super::events::{Sum, WAYS, count_in_words, run, run_part};
use super::*;
use crate::control::Counter;
use crate::testing::{Choices, Random};

const SMALL: Spec =
    Spec { pages: 1024, limit_pages: 480, slots: 256, blocks: 0, has_store: true, hides: false };

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

fn operations(default: u64) -> u64 {
    number("UZSWAP_FUZZ_OPERATIONS", default)
}

fn seeds_from() -> u64 {
    number("UZSWAP_FUZZ_SEED", 0)
}

/// Runs the model, and prints the seed if it fails.
fn seeded(spec: Spec, seed: u64, default: u64) -> Sum {
    let run = || run(spec, &mut Random::new(seed), operations(default), true);
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_or_else(|why| {
        eprintln!("failed with seed {seed}");
        std::panic::resume_unwind(why)
    })
}

/// Runs some seeds, which together must go all ways but `never`. A way depends on times, too, of
/// which a busy machine has others: as long as a rare one is missing, more seeds are tried.
fn seeds(spec: Spec, seeds: core::ops::Range<u64>, never: &[Counter]) {
    const MORE_SEEDS: u64 = 20;
    // A search of other seeds asks for no ways.
    let more = if seeds_from() > 0 { 0 } else { MORE_SEEDS };
    let mut ways = [0; WAYS.len()];
    for seed in seeds.start..seeds.end + more {
        let is_missing = |(way, count): (&Counter, &u64)| *count == 0 && !never.contains(way);
        if seed >= seeds.end && !WAYS.iter().zip(&ways).any(is_missing) {
            break;
        }
        let seed = seed + seeds_from();
        let sum = seeded(spec, seed, 12_000);
        println!("seed {seed}: {sum:?}");
        ways.iter_mut().zip(sum.ways).for_each(|(all, one)| *all += one);
    }
    if seeds_from() > 0 {
        return;
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
    let spec = Spec {
        pages: 8 * STRETCH_PAGES,
        limit_pages: 2200,
        slots: 275,
        blocks: 2,
        has_store: true,
        hides: false,
    };
    seeds(spec, 200..204, &[]);
}

/// Counters of ways that only userfaultfd has.
const MOVERS_ONLY: [Counter; 6] = [
    Counter::QuickReturns,
    Counter::FaultAroundPages,
    Counter::AheadPages,
    Counter::LoneEvictions,
    Counter::HugeFaults,
    Counter::HugeEvictions,
];

#[test]
fn agrees_with_the_model_by_protection_faults() {
    seeds(Spec { hides: true, ..SMALL }, 300..303, &MOVERS_ONLY);
}

/// Evicts, and changes how much memory is wanted, until all other threads are done.
fn evict_until(world: &World, random: &mut Random, is_over: impl Fn() -> bool) {
    let pager = &world.pager;
    while !is_over() {
        match random.below(32) {
            0 => {
                let limit =
                    world.spec.limit_pages / 2 + random.below(world.spec.limit_pages as u64) as i64;
                pager.tree().limit_pages.store(limit, Ordering::Relaxed);
            }
            1 => {
                let mut reclaim = pager.begin_reclaim(random.below(200));
                pager.reclaim_portion(&mut reclaim);
            }
            2..6 => pager.balance_pool(),
            6 => _ = pager.recompress_idle(),
            7 => pager.set_unshared(),
            8 => drop(pager.lock()),
            _ => _ = pager.evict_to_watermark(),
        }
        if random.below(4) == 0 {
            std::thread::yield_now();
        }
    }
}

/// Threads with parts of their own that lie in the same stretches of 2 MiB, threads that share a
/// part, and the evictor.
fn threads(seed: u64, operations: u64, blocks: usize, hides: bool) {
    const PART_PAGES: usize = 256;
    const PARTS: usize = 4;
    let limit_pages = if blocks > 0 { 1800 } else { 600 };
    let pages = 4 * STRETCH_PAGES;
    let spec = Spec { pages, limit_pages, slots: 256, blocks, has_store: true, hides };
    let world = World::new(spec);
    let shared = PARTS * PART_PAGES..spec.pages;
    world.map(shared.start, shared.len(), READ_WRITE);
    let is_over = core::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let evictor = scope.spawn(|| {
            evict_until(&world, &mut Random::new(seed), || is_over.load(Ordering::Relaxed));
        });
        let mut workers = vec![];
        for part in 0..PARTS {
            let (world, shared) = (&world, shared.clone());
            workers.push(scope.spawn(move || {
                let mut random = Random::new(seed * 100 + part as u64);
                run_part(world, part * PART_PAGES, PART_PAGES, &mut random, operations);
            }));
            workers.push(scope.spawn(move || {
                let mut random = Random::new(seed * 100 + 50 + part as u64);
                count_in_words(world, shared, part, &mut random, operations);
            }));
        }
        let ends: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        evictor.join().expect("the evictor");
        ends.into_iter().for_each(|end| end.expect("a worker"));
    });
    world.unmap(shared.start, shared.len());
    world.check_empty();
}

#[test]
fn threads_side_by_side_find_what_they_wrote() {
    for seed in seeds_from()..seeds_from() + 4 {
        println!("seed {seed}");
        threads(seed, operations(2000), if seed % 2 == 0 { 0 } else { 2 }, false);
    }
}

#[test]
fn threads_by_protection_faults_find_what_they_wrote() {
    for seed in seeds_from() + 10..seeds_from() + 14 {
        println!("seed {seed}");
        threads(seed, operations(2000), 0, true);
    }
}
