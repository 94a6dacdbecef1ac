//! Seeded runs of the model. A failure is named by its seed. `UZSWAP_FUZZ_OPERATIONS` sets how many
//! operations a run has.

use super::*;
use crate::store::testing::Fault;

/// Runs the model, and says the seed if it fails.
fn run<S: Store>(
    cache: &SwapCache<S>,
    seed: u64,
    operations: u64,
    max_pages: usize,
    faulty: bool,
) -> u64 {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        crate::testing::cache::run(cache, &mut Random::new(seed), operations, max_pages, faulty)
    }));
    result.unwrap_or_else(|why| {
        eprintln!("failed with seed {seed}");
        std::panic::resume_unwind(why)
    })
}

fn operations(default: u64) -> u64 {
    std::env::var("UZSWAP_FUZZ_OPERATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

#[test]
fn agrees_with_the_model() {
    let (mut dropped, mut recompressed) = (0, 0);
    let (mut grouped, mut group_loads, mut dispersed) = (0, 0, 0);
    for seed in 0..8 {
        let (cache, store) = in_memory(1 << 20);
        store.set_late(seed % 2 == 1);
        assert_eq!(run(&cache, seed, operations(12_000), 300 << (seed % 4), false), 0);
        let c = cache.counters();
        assert!(c.written_back_pages > 0 && c.store_loads > 0 && c.duplicate_entries > 0, "{c:?}");
        assert!(c.unchanged_pages > 0 && c.changed_pages > 0, "{c:?}");
        dropped += c.dropped_copies;
        recompressed += c.recompressed_pages;
        grouped += c.group_stores;
        group_loads += c.group_loads;
        dispersed += c.dispersed_pages;
    }
    assert!(dropped > 0 && recompressed > 0, "not in every run, but in some");
    assert!(grouped > 0 && group_loads > 0 && dispersed > 0, "{grouped} {group_loads} {dispersed}");
}

#[test]
fn agrees_with_the_model_over_a_file() {
    let cache = over_file(512 << 10);
    assert_eq!(run(&cache, 1000, operations(12_000), 800, false), 0);
    let c = cache.counters();
    assert!(c.written_back_pages > 0 && c.store_loads > 0 && c.duplicate_entries > 0, "{c:?}");
}

#[test]
fn agrees_with_the_model_where_incompressible_pages_may_stay() {
    for seed in 2000..2004 {
        let store = MemoryStore::new();
        store.set_late(seed % 2 == 1);
        let config = CacheConfig {
            max_pool_bytes: 1 << 20,
            keeps_incompressible: true,
            store: Some(store),
            ..CacheConfig::default()
        };
        let cache = SwapCache::new(config).unwrap();
        cache.set_leisure(true);
        assert_eq!(run(&cache, seed, operations(12_000), 600, false), 0);
        let c = cache.counters();
        assert!(c.incompressible_stores > 0 && c.written_back_pages > 0, "{c:?}");
        assert!(c.recompressed_pages > 0 && c.unchanged_pages > 0, "{c:?}");
    }
}

#[test]
fn gives_disk_space_back_and_keeps_it_in_proportion() {
    let (cache, store) = in_memory(64 << 10);
    run(&cache, 99, operations(30_000), 6000, false);
    let c = cache.counters();
    assert!(c.discarded_clusters > 0 && store.discards() == c.discarded_clusters, "{c:?}");

    // Long-lived pages scattered among short-lived ones leave sparse clusters behind.
    cache.set_max_pool_bytes(0);
    cache.set_codec(CodecSpec::parse("lz4").unwrap());
    let mut kept = Vec::new();
    for tag in 0..40_000u64 {
        let e = cache.swap_out(&page(tag)).unwrap();
        if tag % 16 == 0 { kept.push((e, tag)) } else { cache.free(e) }
    }
    let churn: Vec<_> = (0..12_000u64).map(|tag| cache.swap_out(&page(tag)).unwrap()).collect();
    churn.chunks(16).for_each(|some| some[1..].iter().for_each(|e| cache.free(*e)));
    let mut rest: Vec<_> = churn.chunks(16).map(|some| some[0]).collect();
    for tag in 0..4_000u64 {
        let e = cache.swap_out(&page(tag)).unwrap();
        cache.free(e);
        rest.push(cache.swap_out(&page(tag)).unwrap());
    }
    cache.check();
    let c = cache.counters();
    assert!(c.compacted_pages > 0, "{c:?}");
    assert!(kept.iter().all(|(e, tag)| loaded(&cache, *e) == page(*tag)));
}

#[test]
fn the_nth_io_fails_once_or_for_good_and_no_page_is_lost_or_wrong() {
    for fault in [Fault::Once as fn(u64) -> Fault, Fault::From] {
        let mut n = 1;
        loop {
            let (cache, store) = in_memory(128 << 10);
            store.set_late(n % 2 == 0);
            store.set_fault(fault(n));
            run(&cache, 7, 1500, 400, true);
            if store.operations() < n {
                break;
            }
            // Early ones one by one, later ones by steps: they repeat.
            n += 1 + n / 16;
        }
        assert!(n > 30, "the run does I/O");
    }
}

/// The long form is `UZSWAP_FUZZ_OPERATIONS=10000000 cargo test --release -p uzswap --lib model`:
/// some minutes each.
fn every_nth_io_fails(seed: u64, n: u64) {
    let (cache, store) = in_memory(256 << 10);
    store.set_late(seed.is_multiple_of(2));
    store.set_fault(Fault::Every(n));
    let failed_loads = run(&cache, seed, operations(20_000), 700, true);
    let c = cache.counters();
    assert!(c.write_errors + c.read_errors > 0 && c.written_back_pages > 0, "{c:?}");
    assert!(c.write_errors > 0 || n > 10, "there are few writes: {c:?}");
    assert_eq!(c.read_errors > 0, failed_loads > 0);
}

#[test]
fn every_second_io_fails_and_no_page_is_lost_or_wrong() {
    every_nth_io_fails(21, 2);
}

#[test]
fn every_seventh_io_fails_and_no_page_is_lost_or_wrong() {
    every_nth_io_fails(22, 7);
}

#[test]
fn every_hundredth_io_fails_and_no_page_is_lost_or_wrong() {
    every_nth_io_fails(23, 100);
}

#[test]
fn after_a_fault_every_page_is_still_there() {
    for n in (1..200).step_by(3) {
        let (cache, store) = in_memory(64 << 10);
        store.set_late(n % 2 == 0);
        store.set_fault(Fault::From(n));
        let mut taken = Vec::new();
        for tag in 0..600 {
            if let Ok(e) = cache.swap_out(&any_page(tag)) {
                taken.push((e, tag));
            }
        }
        let mut p = [0; PAGE_SIZE];
        for &(e, tag) in &taken {
            match cache.swap_in(e, &mut p) {
                Ok(()) => assert!(p == any_page(tag)),
                Err(why) => assert_eq!(why, LoadError::Io(Errno::EIO)),
            }
        }
        cache.check();
        // The disk works again: everything that was taken is there, and writing back goes on.
        store.set_fault(Fault::Never);
        cache.retry_store();
        for &(e, tag) in &taken {
            assert!(loaded(&cache, e) == any_page(tag), "n {n}");
        }
        let before = cache.counters().cluster_writes;
        for tag in 0..600 {
            taken.push((cache.swap_out(&any_page(tag)).unwrap(), tag));
        }
        assert!(cache.counters().cluster_writes > before);
        for &(e, tag) in &taken {
            assert!(loaded(&cache, e) == any_page(tag), "n {n}");
        }
        cache.check();
    }
}
