//! The naive model: a map from names to tags, and seeded random events that must agree with it.
//!
//! A failure is named by its seed. `UZSWAP_FUZZ_OPERATIONS` sets how many operations a run has.

use std::collections::HashMap;

use super::*;
use crate::store::testing::Fault;

const KEYED_AREA: u8 = 3;

struct Model {
    own: Vec<(SwapEntry, u64)>,
    keyed: HashMap<u32, u64>,
}

/// Runs `operations` random events. Under `fault`, stores may be refused and loads may say that they could
/// not read; wrong bytes and lost pages are never right. Returns how many loads failed.
fn run<S: Store>(cache: &SwapCache<S>, seed: u64, operations: u64, max_pages: usize, faulty: bool) -> u64 {
    let mut random = Random::new(seed);
    let mut model = Model { own: Vec::new(), keyed: HashMap::new() };
    cache.init(KEYED_AREA).unwrap();
    let mut read_errors = 0;
    let mut page_out = [0u8; PAGE_SIZE];
    let mut verify = |e: SwapEntry, tag: u64| match cache.swap_in(e, &mut page_out) {
        Ok(()) => assert!(page_out == any_page(tag), "seed {seed}: wrong bytes for {e:?}"),
        Err(LoadError::Io(_)) if faulty => read_errors += 1,
        Err(why) => panic!("seed {seed}: {e:?}: {why:?}"),
    };
    for step in 0..operations {
        let tag = random.next();
        match random.below(100) {
            0..40 if model.own.len() < max_pages => match cache.swap_out(&any_page(tag)) {
                Ok(e) => {
                    assert_ne!(e.to_bits(), (1 << SwapEntry::BITS) - 1);
                    assert_eq!(SwapEntry::from_bits(e.to_bits()), Some(e));
                    model.own.push((e, tag));
                }
                Err(SwapFull) => assert!(faulty, "seed {seed}: full"),
            },
            0..60 if !model.own.is_empty() => {
                let (e, tag) = model.own[random.below(model.own.len() as u64) as usize];
                verify(e, tag);
            }
            0..80 if !model.own.is_empty() => {
                let i = random.below(model.own.len() as u64) as usize;
                cache.free(model.own.swap_remove(i).0);
            }
            80..86 => {
                // Near ones, and ones far away in the area.
                let offset = (random.below(200) * if random.below(8) == 0 { 1 << 20 } else { 1 }) as u32;
                match cache.store(SwapEntry::new(KEYED_AREA, offset), &any_page(tag)) {
                    Ok(()) => drop(model.keyed.insert(offset, tag)),
                    Err(SwapFull) => {
                        assert!(faulty, "seed {seed}: full");
                        model.keyed.remove(&offset);
                    }
                }
            }
            86..92 => {
                let key = SwapEntry::new(KEYED_AREA, random.below(200) as u32);
                match model.keyed.get(&key.offset()) {
                    Some(&tag) => verify(key, tag),
                    None => assert_eq!(cache.load(key, &mut [0; PAGE_SIZE]), Err(LoadError::NotFound)),
                }
            }
            92..95 => {
                let key = SwapEntry::new(KEYED_AREA, random.below(200) as u32);
                assert_eq!(cache.invalidate_page(key), model.keyed.remove(&key.offset()).is_some());
            }
            95 => {
                cache.shrink(random.below(64 << 10) as usize);
            }
            96 => cache.set_max_pool_bytes(random.below(2 << 20) as usize),
            97 => match random.below(3) {
                0 => cache.set_accept_threshold_percent(random.below(101) as u32),
                1 => cache.set_pool([PoolKind::Zsmalloc, PoolKind::Zbud][random.below(2) as usize]),
                _ => cache.set_codec(
                    CodecSpec::parse(["lz4", "zstd:level=1", "lzo", "none"][random.below(4) as usize])
                        .unwrap(),
                ),
            },
            98 if random.below(40) == 0 => {
                cache.invalidate_area(KEYED_AREA);
                model.keyed.clear();
                assert_eq!(cache.store(SwapEntry::new(KEYED_AREA, 0), &any_page(tag)), Err(SwapFull));
                cache.init(KEYED_AREA).unwrap();
            }
            99 if faulty && random.below(10) == 0 => cache.retry_store(),
            _ => {}
        }
        if step % 2000 == 0 {
            cache.check();
        }
        assert_eq!(
            cache.counters().stored_pages as usize,
            model.own.len() + model.keyed.len(),
            "seed {seed}"
        );
    }
    cache.check();
    for (e, tag) in &model.own {
        verify(*e, *tag);
    }
    for (offset, tag) in &model.keyed {
        verify(SwapEntry::new(KEYED_AREA, *offset), *tag);
    }
    for (e, _) in model.own {
        cache.free(e);
    }
    cache.invalidate_area(KEYED_AREA);
    cache.check();
    assert_eq!(cache.counters().stored_pages, 0);
    read_errors
}

fn operations(default: u64) -> u64 {
    std::env::var("UZSWAP_FUZZ_OPERATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

#[test]
fn agrees_with_the_model() {
    for seed in 0..8 {
        let (cache, store) = in_memory(1 << 20);
        store.set_late(seed % 2 == 1);
        assert_eq!(run(&cache, seed, operations(12_000), 300 << (seed % 4), false), 0);
        let c = cache.counters();
        assert!(c.written_back_pages > 0 && c.store_loads > 0 && c.duplicate_entries > 0, "{c:?}");
    }
}

#[test]
fn agrees_with_the_model_over_a_file() {
    let cache = over_file(512 << 10);
    assert_eq!(run(&cache, 1000, operations(12_000), 800, false), 0);
    let c = cache.counters();
    assert!(c.written_back_pages > 0 && c.store_loads > 0 && c.duplicate_entries > 0, "{c:?}");
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
