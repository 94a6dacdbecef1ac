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
    cache.init(AREA).unwrap();
    cache
}

#[test]
fn what_does_not_compress_stays_in_the_pool_if_it_may() {
    for pool in PoolKind::ALL {
        let cache = keeping_all(usize::MAX, pool);
        (0..300).for_each(|k| cache.store(key(k), &noise(k)).unwrap());
        let c = cache.counters();
        assert_eq!((c.pool_pages, c.incompressible_pages, c.incompressible_stores), (300, 300, 300));
        assert_eq!((c.direct_stores, c.reject_compress_poor), (0, 0));
        cache.check();
        // Neither codec makes it smaller, so it grows old as it is.
        assert!(cache.recompress(usize::MAX) > 0);
        assert_eq!(cache.counters().recompressed_pages, 0);
        assert!((0..300).all(|k| loaded(&cache, key(k)) == noise(k)));
        // What becomes compressible, or goes, is counted no more.
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
