//! Limits, causes and figures: each counter by the event that it is named after.

use super::*;
use crate::store::testing::Fault;

#[test]
fn once_full_nothing_is_accepted_until_below_the_threshold() {
    let (cache, _) = in_memory(1 << 20);
    cache.set_accept_threshold_percent(50);
    let mut entries = Vec::new();
    let mut tag = 0;
    let mut out = |cache: &SwapCache<MemoryStore>| {
        tag += 1;
        entries.push(cache.swap_out(&page(tag)).unwrap());
    };
    while cache.counters().pool_limit_hits == 0 {
        out(&cache);
    }
    let c = cache.counters();
    assert_eq!((c.reject_full, c.pool_limit_hits, c.direct_stores), (1, 1, 1));
    assert!(
        c.mem_used_max_bytes >= 1 << 20 && c.mem_used_max_bytes < (1 << 20) + 8 * PAGE_SIZE as u64
    );
    // Pages go past the pool, each taking some of the oldest along, until half is free.
    let mut last = c;
    while cache.pool_bytes() > 512 << 10 {
        out(&cache);
        let c = cache.counters();
        assert_eq!((c.pool_stores, c.reject_full), (last.pool_stores, last.reject_full + 1));
        assert!(c.written_back_pages >= last.written_back_pages && c.pool_limit_hits == 1);
        last = c;
    }
    assert!(last.reject_full < 40, "a page that is rejected makes room for many: {last:?}");
    out(&cache);
    let c = cache.counters();
    assert_eq!((c.pool_stores, c.reject_full), (last.pool_stores + 1, last.reject_full));
    cache.check();
}

#[test]
fn without_a_store_the_limit_refuses_and_loses_nothing() {
    let config = CacheConfig { max_pool_bytes: 256 << 10, ..CacheConfig::<MemoryStore>::default() };
    let cache = SwapCache::new(config).unwrap();
    let mut entries = Vec::new();
    let refused = loop {
        let tag = entries.len() as u64;
        match cache.swap_out(&page(tag)) {
            Ok(e) => entries.push(e),
            Err(SwapFull) => break tag,
        }
    };
    assert!(refused > 100);
    assert_eq!(cache.swap_out(&noise(1)), Err(SwapFull));
    let same = cache.swap_out(&[9; PAGE_SIZE]).expect("a page of one word needs no pool");
    let c = cache.counters();
    assert_eq!(
        (c.failed_stores, c.reject_reclaim_failed, c.reject_full, c.reject_compress_poor),
        (2, 2, 1, 1)
    );
    assert_eq!(cache.shrink(1 << 20), 0, "there is nowhere to write to");
    for (tag, e) in entries.iter().enumerate() {
        assert!(loaded(&cache, *e) == page(tag as u64));
    }
    // Room for one is room for one: no threshold, as nothing but `free` could ever reach it.
    for e in entries.drain(..8) {
        cache.free(e);
    }
    entries.push(cache.swap_out(&page(refused)).unwrap());
    cache.free(same);
    cache.check();
}

#[test]
fn the_oldest_are_written_back_first_and_what_was_loaded_is_spared_once() {
    let (cache, _) = in_memory(usize::MAX);
    let entries: Vec<_> = (0..400u64).map(|tag| cache.swap_out(&page(tag)).unwrap()).collect();
    // Of the oldest 100, every fourth is used.
    for e in entries[..100].iter().step_by(4) {
        loaded(&cache, *e);
    }
    assert!(cache.shrink(64 << 10) >= 64 << 10);
    let c = cache.counters();
    assert_eq!(c.second_chances, 25);
    let moved = c.written_back_pages as usize;
    assert!((30..290).contains(&moved), "{moved}");
    let before = cache.counters().pool_loads;
    for (i, e) in entries.iter().enumerate() {
        let in_pool = cache.counters().pool_loads;
        assert!(loaded(&cache, *e) == page(i as u64));
        let in_pool = cache.counters().pool_loads > in_pool;
        // Those not spared went in order of age.
        let rank = i - i.min(100).div_ceil(4);
        assert_eq!(in_pool, i < 100 && i % 4 == 0 || rank >= moved, "entry {i} of {moved} moved");
    }
    assert_eq!(cache.counters().pool_loads - before, (400 - moved) as u64);
    cache.check();
}

#[test]
fn shrinking_returns_what_it_says() {
    let (cache, _) = in_memory(usize::MAX);
    let entries: Vec<_> = (0..4000u64).map(|tag| cache.swap_out(&page(tag)).unwrap()).collect();
    let footprint = cache.footprint_bytes();
    let freed = cache.shrink(2 << 20);
    assert!((2 << 20..3 << 20).contains(&freed), "{freed}");
    // Writing needs its buffers.
    assert!(cache.footprint_bytes() < footprint - (1 << 20));
    cache.shrink(usize::MAX);
    let c = cache.counters();
    assert_eq!((c.pool_pages, c.store_pages), (0, 4000));
    for (tag, e) in entries.iter().enumerate() {
        assert!(loaded(&cache, *e) == page(tag as u64));
    }
    cache.check();
}

#[test]
fn freed_pages_give_their_memory_back() {
    let (cache, _) = in_memory(usize::MAX);
    let entries: Vec<_> = (0..20_000u64).map(|tag| cache.swap_out(&page(tag)).unwrap()).collect();
    let full = cache.footprint_bytes();
    entries.into_iter().for_each(|e| cache.free(e));
    cache.check();
    let left = cache.footprint_bytes();
    assert!(left < full / 10, "{left} of {full}");
}

#[test]
fn loads_that_a_little_more_pool_would_have_saved_are_known() {
    let (cache, _) = in_memory(1 << 20);
    let entries: Vec<_> = (0..6000u64).map(|tag| cache.swap_out(&page(tag)).unwrap()).collect();
    let store_loads_of = |entries: &[SwapEntry]| {
        let before = cache.counters();
        entries.iter().for_each(|e| _ = loaded(&cache, *e));
        let c = cache.counters();
        (c.store_loads - before.store_loads, c.near_loads - before.near_loads)
    };
    // Written first.
    assert_eq!(store_loads_of(&entries[..50]), (50, 0));
    // Four clusters of pages of 1 to 1.5 KiB, less those that are in a buffer still.
    let (loads, near) = store_loads_of(&entries);
    assert!(loads > 4000 && (20..260).contains(&near), "{near} of {loads}");
    // A page that does not compress would not be in a larger pool either: its load is not near.
    let raw: Vec<_> = (0..40).map(|tag| cache.swap_out(&noise(tag)).unwrap()).collect();
    let (loads, near) = store_loads_of(&raw);
    assert!(loads > 0 && near == 0, "{near} of {loads}");
}

#[test]
fn every_load_is_counted_where_it_came_from() {
    let (cache, store) = in_memory(usize::MAX);
    let same = cache.swap_out(&[5; PAGE_SIZE]).unwrap();
    let pooled = cache.swap_out(&page(1)).unwrap();
    let raw = cache.swap_out(&noise(1)).unwrap();
    let c = cache.counters();
    assert_eq!(
        (c.same_filled_stores, c.pool_stores, c.direct_stores, c.reject_compress_poor),
        (1, 1, 1, 1)
    );
    assert_eq!(
        (c.same_filled_pages, c.pool_pages, c.store_pages, c.incompressible_pages),
        (1, 1, 1, 1)
    );
    assert_eq!((c.orig_data_bytes, c.store_data_bytes), (2 * PAGE_SIZE as u64, PAGE_SIZE as u64));
    assert!(
        c.compr_data_bytes > 1000
            && c.compr_data_bytes < 3000
            && c.mem_used_bytes >= c.compr_data_bytes
    );
    loaded(&cache, same);
    loaded(&cache, pooled);
    loaded(&cache, raw);
    let c = cache.counters();
    assert_eq!((c.same_filled_loads, c.pool_loads, c.buffer_loads, c.store_loads), (1, 1, 1, 0));
    // Fifteen raw pages fill a cluster.
    let others: Vec<_> = (2..40).map(|tag| cache.swap_out(&noise(tag)).unwrap()).collect();
    assert_eq!(cache.counters().cluster_writes, 2);
    let operations = store.operations();
    assert!(loaded(&cache, raw) == noise(1));
    assert!(loaded(&cache, others[0]) == noise(2));
    assert!(loaded(&cache, others[1]) == noise(3));
    let c = cache.counters();
    assert_eq!(
        (c.store_loads, c.store_reads, c.read_ahead_hits),
        (3, 2, 1),
        "the second miss reads all"
    );
    assert_eq!(store.operations() - operations, 2);
    assert_eq!(
        c.store_read_bytes,
        2 * PAGE_SIZE as u64 + 64 * 1024
            - PAGE_SIZE as u64 * u64::from(c.store_read_bytes % 65536 != 8192)
    );
    // Blocks read ahead for an entry are not served to the next entry in its place.
    for e in [raw].iter().chain(&others) {
        cache.free(*e);
    }
    let fresh: Vec<_> = (100..139).map(|tag| cache.swap_out(&noise(tag)).unwrap()).collect();
    for (i, e) in fresh.iter().enumerate() {
        assert!(loaded(&cache, *e) == noise(100 + i as u64));
    }
    assert_eq!(cache.swap_in(raw, &mut [0; PAGE_SIZE]).err(), None, "the id was given out again");
    let unknown = SwapEntry::new(0, 1 << 20);
    assert_eq!(cache.swap_in(unknown, &mut [0; PAGE_SIZE]), Err(LoadError::NotFound));
    assert_eq!(cache.counters().missing_loads, 1);
    cache.check();
}

#[test]
fn clusters_that_are_read_in_order_are_read_as_wholes() {
    let (cache, _) = in_memory(0);
    let entries: Vec<_> = (0..150).map(|tag| cache.swap_out(&noise(tag)).unwrap()).collect();
    let written = cache.counters().cluster_writes;
    assert!(written >= 8);
    // Fifteen raw pages fill a cluster; one of each, in the order of writing.
    let read = |order: &mut dyn Iterator<Item = usize>| {
        let before = cache.counters();
        order.for_each(|i| assert!(loaded(&cache, entries[i]) == noise(i as u64)));
        let after = cache.counters();
        (after.store_reads - before.store_reads, after.store_read_bytes - before.store_read_bytes)
    };
    let (reads, bytes) = read(&mut (0..8 * 15).step_by(15));
    // Nobody knows of an order at the first, nor that the eighth is the last that is wanted.
    assert!(reads == 9 && bytes >= 8 * 60 * 1024, "{reads} reads of {bytes} bytes together");
    let (reads, bytes) = read(&mut (0..8 * 15).rev().step_by(15));
    assert!(
        reads <= 8 && bytes <= 8 * 2 * PAGE_SIZE as u64,
        "backwards: {reads} reads of {bytes} bytes"
    );
    cache.check();
}

#[test]
fn a_failed_read_and_a_failed_write_are_counted() {
    let (cache, store) = in_memory(usize::MAX);
    let raw: Vec<_> = (0..40).map(|tag| cache.swap_out(&noise(tag)).unwrap()).collect();
    store.set_fault(Fault::Once(1));
    assert_eq!(cache.swap_in(raw[0], &mut [0; PAGE_SIZE]), Err(LoadError::Io(Errno::EIO)));
    assert!(loaded(&cache, raw[0]) == noise(0), "the next attempt reads it");
    assert_eq!(cache.counters().read_errors, 1);
    assert_eq!(cache.store_failure(), None, "a failed read does not end writing");
    store.set_fault(Fault::From(1));
    let more: Vec<_> = (40..100).map_while(|tag| cache.swap_out(&noise(tag)).ok()).collect();
    assert_eq!((cache.counters().write_errors, cache.store_failure()), (1, Some(Errno::EIO)));
    assert!(more.len() < 20, "one cluster's worth is kept in memory");
    for (i, e) in more.iter().enumerate() {
        assert!(loaded(&cache, *e) == noise(40 + i as u64));
    }
    // Compressible pages still have the pool.
    let e = cache.swap_out(&page(1)).unwrap();
    assert!(loaded(&cache, e) == page(1));
    cache.check();
}

#[test]
fn a_store_under_an_older_key_replaces_the_older_page_unless_it_fails() {
    let (cache, store) = in_memory(0);
    cache.init(1).unwrap();
    assert_eq!(cache.init(1), Err(Errno::EEXIST));
    assert_eq!(cache.init(MAX_AREAS as u8), Err(Errno::EINVAL));
    let key = SwapEntry::new(1, 77);
    cache.store(key, &page(1)).unwrap();
    cache.store(key, &page(2)).unwrap();
    assert!(loaded(&cache, key) == page(2));
    assert_eq!(cache.counters().duplicate_entries, 1);
    // Break the store, then store again: the older page must still be there.
    store.set_fault(Fault::From(1));
    while cache.store_failure().is_none() {
        let _ = cache.swap_out(&noise(3));
    }
    assert_eq!(cache.store(key, &page(3)), Err(SwapFull));
    assert_eq!(cache.counters().duplicate_entries, 1);
    store.set_fault(Fault::Never);
    assert!(loaded(&cache, key) == page(2));
    cache.check();
}

#[test]
#[should_panic(expected = "freed once")]
fn freeing_twice_is_caught() {
    let (cache, _) = in_memory(usize::MAX);
    let e = cache.swap_out(&page(1)).unwrap();
    cache.free(e);
    cache.free(e);
}

#[test]
fn the_counters_name_themselves() {
    let (cache, _) = in_memory(usize::MAX);
    cache.swap_out(&page(1)).unwrap();
    let all: Vec<_> = cache.counters().iter().collect();
    assert!(all.iter().any(|(name, value, meaning)| *name == "stores"
        && *value == 1
        && meaning.contains("came in")));
    assert!(all.iter().all(|(_, _, meaning)| meaning.ends_with('.')));
}

#[test]
fn the_nth_growth_of_the_pool_fails_and_no_page_is_lost() {
    for with_store in [true, false] {
        for n in 0.. {
            let store = with_store.then(MemoryStore::new);
            let cache = SwapCache::new(CacheConfig { store, ..CacheConfig::default() }).unwrap();
            cache.state.lock().pools[0].fail_growth_after(Some(n));
            let taken: Vec<_> = (0..600u64)
                .filter_map(|tag| Some((cache.swap_out(&page(tag)).ok()?, tag)))
                .collect();
            let c = cache.counters();
            if c.reject_alloc_failed == 0 {
                assert!(n > 3 && taken.len() == 600, "growth {n}");
                break;
            }
            assert_eq!(c.direct_stores > 0, with_store);
            assert_eq!(c.reject_reclaim_failed > 0, !with_store);
            for (e, tag) in &taken {
                assert!(loaded(&cache, *e) == page(*tag));
            }
            cache.check();
            cache.state.lock().pools[0].fail_growth_after(None);
            let e = cache.swap_out(&page(1)).unwrap();
            assert!(loaded(&cache, e) == page(1));
            assert_eq!(cache.counters().reject_alloc_failed, c.reject_alloc_failed);
            cache.check();
        }
    }
}
