//! The cache as a disk uses it: keys of the caller, no store or a small one, nothing may be lost.

use super::*;

const AREA: u8 = 1;

fn key(k: u64) -> SwapEntry {
    SwapEntry::new(AREA, k as u32)
}

/// Without a store, and with all that comes in memory.
fn keeping_all(max_pool_bytes: usize, pool: PoolKind) -> SwapCache<MemoryStore> {
    let recompressor = CodecSpec::parse("zstd:level=1").ok();
    let config = CacheConfig {
        max_pool_bytes,
        pool,
        recompressor,
        keeps_incompressible: true,
        ..CacheConfig::default()
    };
    let cache = SwapCache::new(config).unwrap();
    cache.set_leisure(true);
    cache.init(AREA).unwrap();
    cache
}

#[test]
fn what_does_not_compress_stays_in_the_pool_if_it_may() {
    for pool in PoolKind::ALL {
        let cache = keeping_all(usize::MAX, pool);
        (0..300).for_each(|k| cache.store(key(k), &noise(k)).unwrap());
        let c = cache.counters();
        assert_eq!(
            (c.pool_pages, c.incompressible_pages, c.incompressible_stores),
            (300, 300, 300)
        );
        assert_eq!((c.direct_stores, c.reject_compress_poor), (0, 0));
        cache.check();
        // Neither codec makes it smaller, so it grows old as it is.
        assert!(cache.recompress(usize::MAX) > 0);
        assert_eq!(cache.counters().recompressed_pages, 0);
        assert!((0..300).all(|k| loaded(&cache, key(k)) == noise(k)));
        // A page that becomes compressible, or goes, is counted no more.
        (0..100).for_each(|k| cache.store(key(k), &page(k)).unwrap());
        (100..200).for_each(|k| assert!(cache.invalidate_page(key(k))));
        assert_eq!(cache.counters().incompressible_pages, 100);
        assert!((0..100).all(|k| loaded(&cache, key(k)) == page(k)));
        assert!((200..300).all(|k| loaded(&cache, key(k)) == noise(k)));
        cache.check();
    }
}

#[test]
fn what_only_another_codec_makes_smaller_is_not_kept_as_it_is() {
    let cache = keeping_all(usize::MAX, PoolKind::Zsmalloc);
    // The fast codec takes nothing, and the stronger one is not there yet.
    cache.set_codec(CodecSpec::parse("none").unwrap());
    cache.set_recompressor(None);
    (0..1000).for_each(|k| cache.store(key(k), &page(k)).unwrap());
    assert_eq!(cache.counters().incompressible_pages, 1000);
    cache.set_recompressor(CodecSpec::parse("zstd:level=1").ok());
    cache.recompress(usize::MAX);
    let c = cache.counters();
    assert!(c.recompressed_pages >= 500, "{c:?}");
    assert_eq!(c.incompressible_pages, 1000 - c.recompressed_pages);
    assert!((0..1000).all(|k| loaded(&cache, key(k)) == page(k)));
    cache.check();
}

#[test]
fn groups_take_in_pages_that_are_as_they_were() {
    let cache = keeping_all(usize::MAX, PoolKind::Zsmalloc);
    // Kin look like noise one by one.
    (0..1024).for_each(|k| cache.store(key(k), &kin(k)).unwrap());
    let before = cache.counters();
    cache.recompress(usize::MAX);
    let c = cache.counters();
    assert!(c.grouped_pages > 0, "{c:?}");
    assert!(c.incompressible_pages <= before.incompressible_pages);
    assert!((0..1024).all(|k| loaded(&cache, key(k)) == kin(k)));
    cache.check();
}

#[test]
fn with_a_store_the_oldest_make_room_for_pages_as_they_are() {
    let store = MemoryStore::new();
    let config = CacheConfig {
        max_pool_bytes: 256 << 10,
        keeps_incompressible: true,
        store: Some(store),
        ..CacheConfig::default()
    };
    let cache = SwapCache::new(config).unwrap();
    cache.init(AREA).unwrap();
    (0..1000).for_each(|k| cache.store(key(k), &noise(k)).unwrap());
    let c = cache.counters();
    assert!(c.incompressible_stores > 0 && c.store_pages > 800 && c.reject_full > 0, "{c:?}");
    assert_eq!(c.incompressible_pages, 1000);
    assert!((0..1000).all(|k| loaded(&cache, key(k)) == noise(k)));
    cache.check();
}

/// Any page that is stored under a key, by random writes and trims to a pool that is mostly full.
fn nothing_is_lost(seed: u64, pool: PoolKind, max_pool_bytes: usize) -> Counters {
    const KEYS: u64 = 400;
    let cache = keeping_all(max_pool_bytes, pool);
    let mut random = Random::new(seed);
    let mut tags: Vec<Option<u64>> = vec![None; KEYS as usize];
    let mut refused = 0;
    for step in 0..12_000 {
        let k = random.below(KEYS);
        let before = cache.counters();
        match random.below(20) {
            0 => assert_eq!(cache.invalidate_page(key(k)), tags[k as usize].take().is_some()),
            1 => drop(cache.recompress(20)),
            2..10 => {
                let tag = random.next();
                match cache.store(key(k), &any_page(tag)) {
                    Ok(()) => tags[k as usize] = Some(tag),
                    Err(SwapFull) => {
                        refused += 1;
                        let c = cache.counters();
                        assert_eq!(
                            (c.stored_pages, c.pool_pages),
                            (before.stored_pages, before.pool_pages)
                        );
                        assert_eq!(c.compr_data_bytes, before.compr_data_bytes);
                    }
                }
            }
            _ => match tags[k as usize] {
                Some(tag) => {
                    assert!(loaded(&cache, key(k)) == any_page(tag), "seed {seed}, step {step}")
                }
                None => {
                    assert_eq!(cache.load(key(k), &mut [0; PAGE_SIZE]), Err(LoadError::NotFound))
                }
            },
        }
        if step % 500 == 0 {
            cache.check();
        }
    }
    for (k, tag) in tags.iter().enumerate() {
        if let Some(tag) = tag {
            assert!(loaded(&cache, key(k as u64)) == any_page(*tag), "seed {seed}");
        }
    }
    cache.check();
    assert!(refused > 100, "the pool was full: {refused}");
    cache.counters()
}

#[test]
fn a_full_pool_loses_nothing() {
    for seed in 0..6 {
        let pool = PoolKind::ALL[seed as usize % 2];
        let c = nothing_is_lost(seed, pool, 192 << 10);
        assert!(c.duplicate_entries > 0 && c.recompressed_pages > 0, "{c:?}");
        // A page that replaces as many bytes is taken, a little above the limit.
        let most_bytes = (192 << 10) + (64 << 10) + (8 * PAGE_SIZE) as u64;
        assert!(c.mem_used_max_bytes < most_bytes, "{c:?}");
    }
}

#[test]
fn a_page_of_a_full_pool_can_be_written_again() {
    let cache = keeping_all(256 << 10, PoolKind::Zsmalloc);
    let stored = (0..).take_while(|k| cache.store(key(*k), &page(*k)).is_ok()).count() as u64;
    assert!(stored > 100);
    // Each of them, time and again, and never one that is not there yet.
    for round in 1..20 {
        for k in 0..stored {
            cache.store(key(k), &page(k + round * stored)).unwrap();
        }
        assert_eq!(cache.store(key(stored), &noise(1)), Err(SwapFull));
        cache.check();
    }
    assert!((0..stored).all(|k| loaded(&cache, key(k)) == page(k + 19 * stored)));
    // A page that takes more is refused, and the older one is there.
    assert_eq!(cache.store(key(0), &noise(7)), Err(SwapFull));
    assert!(loaded(&cache, key(0)) == page(19 * stored));
    cache.check();
}

#[test]
fn the_nth_growth_of_the_pool_fails_and_the_older_page_is_there() {
    for n in 0..200 {
        let cache = keeping_all(usize::MAX, PoolKind::Zsmalloc);
        cache.state.lock().pools[0].fail_growth_after(Some(n));
        let mut tags: Vec<Option<u64>> = vec![None; 100];
        for step in 0..400u64 {
            let k = step % 100;
            if cache.store(key(k), &any_page(step)).is_ok() {
                tags[k as usize] = Some(step);
            }
        }
        let failed = cache.counters().reject_alloc_failed;
        for (k, tag) in tags.iter().enumerate() {
            match tag {
                Some(tag) => assert!(loaded(&cache, key(k as u64)) == any_page(*tag), "growth {n}"),
                None => assert!(cache.load(key(k as u64), &mut [0; PAGE_SIZE]).is_err()),
            }
        }
        cache.check();
        if failed == 0 {
            assert!(n > 3, "growth {n}");
            return;
        }
    }
    panic!("the pool grows no more than that");
}

fn with_store(store: MemoryStore) -> SwapCache<MemoryStore> {
    let recompressor = CodecSpec::parse("zstd:level=1").ok();
    let config = CacheConfig {
        keeps_incompressible: true,
        recompressor,
        store: Some(store),
        ..CacheConfig::default()
    };
    let cache = SwapCache::new(config).unwrap();
    cache.set_leisure(true);
    cache.init(AREA).unwrap();
    cache
}

#[test]
fn what_is_idle_goes_to_the_store_and_nothing_else() {
    let cache = with_store(MemoryStore::new());
    cache.set_now(100);
    (0..400).for_each(|k| cache.store(key(k), &page(k)).unwrap());
    cache.set_now(200);
    // Written again, and read.
    (0..100).for_each(|k| cache.store(key(k), &page(k)).unwrap());
    (100..200).for_each(|k| assert!(loaded(&cache, key(k)) == page(k)));
    let idle = Which { idle: true, ..Which::default() };
    assert_eq!(cache.write_back_which(idle, usize::MAX), 0, "nothing is marked yet");
    cache.mark_idle(150);
    assert_eq!(cache.write_back_which(idle, 50), 50);
    assert_eq!(cache.write_back_which(idle, usize::MAX), 150);
    assert_eq!(cache.write_back_which(idle, usize::MAX), 0);
    let c = cache.counters();
    assert_eq!((c.pool_pages, c.store_pages, c.written_back_pages), (200, 200, 200));
    cache.check();
    assert!((0..400).all(|k| loaded(&cache, key(k)) == page(k)));
    // All of them, and one that is used again.
    cache.mark_idle(u32::MAX);
    assert!(loaded(&cache, key(7)) == page(7));
    assert_eq!(cache.write_back_which(idle, usize::MAX), 199);
    assert_eq!(cache.counters().pool_pages, 1);
    assert!((0..400).all(|k| loaded(&cache, key(k)) == page(k)));
    cache.check();
}

#[test]
fn what_is_huge_goes_to_the_store_and_nothing_else() {
    let cache = with_store(MemoryStore::new());
    (0..300)
        .for_each(|k| cache.store(key(k), &if k % 3 == 0 { noise(k) } else { page(k) }).unwrap());
    let incompressible = Which { incompressible: true, ..Which::default() };
    assert_eq!(
        cache.write_back_which(incompressible, usize::MAX),
        0,
        "the recompressor has not tried"
    );
    let huge = Which { huge: true, ..Which::default() };
    assert_eq!(cache.recompress_which(huge, 40), 40);
    assert_eq!(cache.write_back_which(incompressible, usize::MAX), 40);
    assert_eq!(cache.write_back_which(huge, usize::MAX), 60);
    let c = cache.counters();
    assert_eq!((c.store_pages, c.incompressible_pages, c.pool_pages), (100, 100, 200));
    assert!(
        (0..300).all(|k| loaded(&cache, key(k)) == if k % 3 == 0 { noise(k) } else { page(k) })
    );
    cache.check();
}

#[test]
fn an_order_compresses_again_what_is_due_or_not() {
    let cache = with_store(MemoryStore::new());
    (0..100).for_each(|k| cache.store(key(k), &page(k)).unwrap());
    // Asked for: not idle, but the order does not care.
    assert!((0..100).all(|k| loaded(&cache, key(k)) == page(k)));
    assert_eq!(cache.recompress(usize::MAX), 0);
    assert_eq!(cache.recompress_which(Which { least_bytes: 4096, ..Which::default() }, 100), 0);
    assert_eq!(cache.recompress_which(Which::default(), 30), 30);
    assert_eq!(cache.recompress_which(Which::default(), usize::MAX), 70);
    assert_eq!(cache.recompress_which(Which::default(), usize::MAX), 0, "tried once");
    assert_eq!(cache.counters().recompressed_pages, 100);
    assert!((0..100).all(|k| loaded(&cache, key(k)) == page(k)));
    cache.check();
}

#[test]
fn groups_are_written_back_by_order() {
    let cache = with_store(MemoryStore::new());
    (0..1024).for_each(|k| cache.store(key(k), &kin(k)).unwrap());
    cache.recompress(usize::MAX);
    assert!(cache.counters().grouped_pages > 0);
    assert_eq!(cache.write_back_which(Which::default(), usize::MAX), 1024);
    let c = cache.counters();
    assert_eq!((c.pool_pages, c.grouped_pages, c.store_pages), (0, 0, 1024));
    assert!((0..1024).all(|k| loaded(&cache, key(k)) == kin(k)));
    cache.check();
}

#[test]
fn an_order_ends_when_the_store_fails() {
    let store = MemoryStore::new();
    let cache = with_store(store);
    (0..1000).for_each(|k| cache.store(key(k), &page(k)).unwrap());
    store.set_fault(crate::store::testing::Fault::From(1));
    cache.write_back_which(Which::default(), usize::MAX);
    assert!(cache.counters().pool_pages > 500);
    assert_eq!(cache.write_back_which(Which::default(), usize::MAX), 0);
    store.set_fault(crate::store::testing::Fault::Never);
    assert!((0..1000).all(|k| loaded(&cache, key(k)) == page(k)));
    cache.check();
}

#[test]
fn ranges_far_apart_are_found_and_dropped() {
    let cache = keeping_all(usize::MAX, PoolKind::Zsmalloc);
    let far = u32::MAX - 10;
    let all = 0..u32::MAX;
    for k in [5, 6, 7, 1 << 20, far] {
        cache.store(SwapEntry::new(AREA, k), &page(k.into())).unwrap();
    }
    (8..4000).for_each(|k| cache.store(key(k), &[0; PAGE_SIZE]).unwrap());
    let runs = |from: u32, end: u32| {
        let (mut at, mut runs) = (from, Vec::<Run>::new());
        while at < end {
            let run = cache.run(AREA, at..end);
            at += run.len();
            match (runs.last_mut(), run) {
                (Some(Run::Absent(n)), Run::Absent(m)) | (Some(Run::Zero(n)), Run::Zero(m)) => {
                    *n += m
                }
                _ => runs.push(run),
            }
        }
        runs
    };
    let expected = [
        Run::Absent(5),
        Run::Present(3),
        Run::Zero(3992),
        Run::Absent((1 << 20) - 4000),
        Run::Present(1),
        Run::Absent(far - (1 << 20) - 1),
        Run::Present(1),
        Run::Absent(9),
    ];
    assert_eq!(runs(0, u32::MAX), expected);
    assert_eq!(cache.invalidate_range(AREA, 6..7), 1);
    assert_eq!(cache.invalidate_range(AREA, 8..9), 1);
    assert_eq!(cache.invalidate_range(AREA, 9..9), 0);
    let tables_bytes = cache.tables_bytes();
    cache.give_tables_back();
    assert_eq!(cache.tables_bytes(), tables_bytes, "there are pages still");
    assert_eq!(cache.invalidate_range(AREA, all), 3995);
    cache.check();
    cache.give_tables_back();
    assert!(cache.tables_bytes() < tables_bytes / 8, "{} of {tables_bytes}", cache.tables_bytes());
    cache.store(key(3), &page(3)).unwrap();
    assert!(loaded(&cache, key(3)) == page(3));
    cache.check();
}
