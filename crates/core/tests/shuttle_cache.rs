//! The published races of this design, on the real cache: every schedule of a few threads that
//! shuttle can find, where each attempt to take a lock is a point at which another thread may run.
//! `RUSTFLAGS="--cfg shuttle" cargo test -p uzswap --release --features testing --test
//! shuttle_cache`; `UZSWAP_SCHEDULES` sets how many schedules each test tries.
//!
//! Shuttle runs one thread at a time, so this is about the order of whole steps, which is what the
//! races are about; whether the lock and the cell themselves order memory is for
//! `loom_take_cell.rs` to show, and the hardware's part.
#![cfg(shuttle)]

use std::sync::atomic::{AtomicU64, Ordering};

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::Arc;
use shuttle::thread;
use shuttle::{Config, Runner};
use uzswap::cache::{CacheConfig, LoadError, Page, SwapCache, SwapEntry};
use uzswap::codec::CodecSpec;
use uzswap::store::testing::{Fault, MemoryStore};
use uzswap::testing::{noise, page};

type Cache = Arc<SwapCache<MemoryStore>>;

const KEYS: u32 = 60;
/// The key that all threads want.
const ONE: u32 = 7;

/// Tries many schedules: random ones, and ones with few changes at unlikely places.
fn schedules(model: impl Fn() + Send + Sync + Clone + 'static) {
    let number =
        std::env::var("UZSWAP_SCHEDULES").ok().and_then(|text| text.parse().ok()).unwrap_or(300);
    let config = || {
        let mut config = Config::new();
        config.stack_size = 1 << 20;
        config
    };
    Runner::new(RandomScheduler::new(number), config()).run(model.clone());
    Runner::new(PctScheduler::new(3, number), config()).run(model);
}

fn key(k: u32) -> SwapEntry {
    SwapEntry::new(1, k)
}

/// The page of a key in version `version`: noise, which goes straight to the store, or
/// compressible.
fn content(k: u32, version: u64) -> Page {
    let tag = version * 1000 + u64::from(k);
    if version.is_multiple_of(2) { noise(tag) } else { page(tag) }
}

/// A cache in which every key has version 1 (in the pool) or, of half of them, 2 (most in the file
/// already).
fn world() -> (Cache, MemoryStore) {
    let store = MemoryStore::new();
    let config = CacheConfig { store: Some(store), ..CacheConfig::default() };
    let cache = SwapCache::new(config).unwrap();
    cache.init(1).unwrap();
    for k in 0..KEYS {
        cache.store(key(k), &content(k, 1 + u64::from(k % 2))).unwrap();
    }
    (Arc::new(cache), store)
}

/// Loads a key: the version that came, if there is one, of those that may.
fn load(cache: &SwapCache<MemoryStore>, k: u32, versions: &[u64]) -> Option<u64> {
    let mut p = [0; 4096];
    match cache.load(key(k), &mut p) {
        Ok(()) => {
            let is_it = |v: &&u64| p == content(k, **v);
            Some(
                *versions
                    .iter()
                    .find(is_it)
                    .unwrap_or_else(|| panic!("key {k}: none of {versions:?}")),
            )
        }
        Err(LoadError::NotFound) => None,
        Err(why) => panic!("key {k}: {why:?}"),
    }
}

/// A thread that works with the cache; its answer is ignored.
fn spawn<R>(
    cache: &Cache,
    work: impl FnOnce(&SwapCache<MemoryStore>) -> R + Send + 'static,
) -> thread::JoinHandle<()> {
    let cache = cache.clone();
    thread::spawn(move || {
        let _ = work(&cache);
    })
}

fn join<const N: usize>(threads: [thread::JoinHandle<()>; N]) {
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn load_during_writeback() {
    schedules(|| {
        let (cache, store) = world();
        cache.shrink(4096);
        store.set_late(true);
        let loads = spawn(&cache, |cache| {
            for k in [ONE, ONE + 1, ONE, 0] {
                assert_eq!(
                    load(cache, k, &[1, 2]),
                    Some(1 + u64::from(k % 2)),
                    "a page is always somewhere"
                );
            }
        });
        let writeback = spawn(&cache, |cache| cache.shrink(1 << 30));
        let other = spawn(&cache, |cache| cache.shrink(4096));
        join([loads, writeback, other]);
        cache.check();
    });
}

#[test]
fn two_stores_of_one_key_during_writeback_put_it_on_the_list_once() {
    schedules(|| {
        let (cache, _) = world();
        let one = spawn(&cache, |cache| cache.store(key(ONE), &content(ONE, 3)).unwrap());
        let two = spawn(&cache, |cache| cache.store(key(ONE), &content(ONE, 5)).unwrap());
        let writeback = spawn(&cache, |cache| cache.shrink(1 << 30));
        join([one, two, writeback]);
        cache.check();
        assert!(load(&cache, ONE, &[3, 5]).is_some());
        cache.shrink(1 << 30);
        cache.check();
        assert!(load(&cache, ONE, &[3, 5]).is_some());
        let c = cache.counters();
        assert_eq!((c.duplicate_entries, c.stored_pages), (2, u64::from(KEYS)));
    });
}

#[test]
fn a_page_freed_and_stored_again_during_a_load_from_the_file_is_never_another() {
    // Fifteen of them fill a cluster.
    const KEYS: u32 = 33;
    // In the second cluster, whose place is the first to be used again.
    const LOADED: u32 = 20;
    schedules(|| {
        let config = CacheConfig { store: Some(MemoryStore::new()), ..CacheConfig::default() };
        let cache = Arc::new(SwapCache::new(config).unwrap());
        let fill = |cache: &SwapCache<MemoryStore>, version| {
            cache.init(1).unwrap();
            (0..KEYS).for_each(|k| cache.store(key(k), &content(k, version)).unwrap());
        };
        fill(&cache, 2);
        assert_eq!(cache.counters().cluster_writes, 2);
        let loads = spawn(&cache, |cache| {
            for _ in 0..3 {
                load(cache, LOADED, &[2, 4]);
            }
        });
        let change = spawn(&cache, move |cache| {
            cache.invalidate_area(1);
            fill(cache, 4);
        });
        join([loads, change]);
        cache.check();
        (0..KEYS).for_each(|k| assert_eq!(load(&cache, k, &[4]), Some(4)));
        assert_eq!(cache.counters().corrupt_loads, 0, "nothing is wrong with the file");
    });
}

/// A cache that compresses its objects again.
fn at_leisure() -> Arc<SwapCache<MemoryStore>> {
    let config = CacheConfig {
        recompressor: CodecSpec::parse("zstd:level=1").ok(),
        store: Some(MemoryStore::new()),
        ..CacheConfig::default()
    };
    let cache = Arc::new(SwapCache::new(config).unwrap());
    cache.set_leisure(true);
    cache
}

#[test]
fn an_object_is_compressed_again_while_its_page_changes_hands() {
    schedules(|| {
        let cache = at_leisure();
        cache.init(1).unwrap();
        const MANY: u32 = 66;
        (0..MANY).for_each(|k| cache.store(key(k), &content(k, 1)).unwrap());
        // The two oldest are due.
        let pack = spawn(&cache, |cache| cache.recompress(2));
        let change = spawn(&cache, |cache| {
            cache.invalidate_page(key(0));
            cache.store(key(0), &content(0, 3)).unwrap();
            assert_eq!(load(cache, 0, &[3]), Some(3));
        });
        let others = spawn(&cache, |cache| {
            load(cache, 1, &[1]);
            cache.shrink(1 << 30);
        });
        join([pack, change, others]);
        cache.check();
        for k in 0..MANY {
            let version = if k == 0 { 3 } else { 1 };
            assert_eq!(load(&cache, k, &[version]), Some(version));
        }
    });
}

#[test]
fn an_area_ends_under_stores_loads_and_writeback() {
    schedules(|| {
        let (cache, store) = world();
        store.set_late(true);
        let traffic = spawn(&cache, |cache| {
            load(cache, ONE, &[2]);
            // The older page stays where a newer one is refused.
            let stored = cache.store(key(ONE), &content(ONE, 3));
            let _ = cache.store(key(ONE + 1), &content(ONE + 1, 3));
            load(cache, ONE, if stored.is_ok() { &[3] } else { &[2] });
        });
        let end = spawn(&cache, |cache| cache.invalidate_area(1));
        let writeback = spawn(&cache, |cache| cache.shrink(1 << 30));
        join([traffic, end, writeback]);
        cache.check();
        let c = cache.counters();
        assert_eq!((c.stored_pages, c.pool_pages, c.store_pages, c.store_data_bytes), (0, 0, 0, 0));
        assert_eq!(load(&cache, ONE, &[]), None);
        cache.init(1).unwrap();
    });
}

#[test]
fn a_write_that_fails_under_traffic_loses_nothing() {
    schedules(|| {
        let (cache, store) = world();
        cache.shrink(1 << 30);
        store.set_late(true);
        store.set_fault(Fault::Once(1));
        let stored = Arc::new(AtomicU64::new(0));
        let bits = stored.clone();
        let writeback = spawn(&cache, move |cache| {
            for k in 0..KEYS {
                let is_stored = cache.store(key(k), &content(k, 4)).is_ok();
                bits.fetch_or(u64::from(is_stored) << k, Ordering::Relaxed);
            }
            cache.shrink(1 << 30);
        });
        let free = spawn(&cache, |cache| cache.invalidate_page(key(ONE)));
        let retry = spawn(&cache, |cache| cache.retry_store());
        join([writeback, free, retry]);
        cache.retry_store();
        cache.check();
        // The older page stays where a newer one is refused.
        for k in 0..KEYS {
            let is_stored = stored.load(Ordering::Relaxed) >> k & 1 != 0;
            let version = if is_stored { 4 } else { 1 + u64::from(k % 2) };
            let found = load(&cache, k, &[version]);
            assert!(found.is_some() || k == ONE, "key {k} is lost");
        }
    });
}

#[test]
fn a_page_is_loaded_while_it_is_freed_moved_and_its_place_used_again() {
    schedules(|| {
        let (cache, _) = world();
        let loads = spawn(&cache, |cache| {
            for k in [0, ONE + 1, 0] {
                load(cache, k, &[1, 3]);
            }
        });
        let free = spawn(&cache, |cache| {
            for k in [0, 2, ONE + 1] {
                cache.invalidate_page(key(k));
                cache.store(key(k), &content(k, 3)).unwrap();
            }
        });
        let others = spawn(&cache, |cache| {
            cache.compact();
            cache.shrink(4096);
        });
        join([loads, free, others]);
        cache.check();
        for k in [0, 2, ONE + 1] {
            assert_eq!(load(&cache, k, &[3]), Some(3));
        }
    });
}

#[test]
fn nobody_reads_an_object_whose_bytes_are_still_to_come() {
    schedules(|| {
        let cache = at_leisure();
        let stores = |first: u32| {
            move |cache: &SwapCache<MemoryStore>| {
                for k in first..first + 4 {
                    let entry = cache.swap_out(&content(k, 1)).unwrap();
                    let mut page = [0; 4096];
                    cache.swap_in(entry, &mut page).unwrap();
                    assert!(page == content(k, 1), "page {k}");
                }
            }
        };
        // Its number is the next to be used, and a thread that brings a window asks for it still.
        let stale = cache.swap_out(&content(0, 1)).unwrap();
        cache.free(stale);
        let late = spawn(&cache, move |cache| {
            for _ in 0..4 {
                let mut page = [0; 4096];
                match cache.swap_in(stale, &mut page) {
                    Ok(()) => assert!(page == content(0, 1) || page == content(10, 1)),
                    Err(why) => assert_eq!(why, LoadError::NotFound),
                }
            }
        });
        let one = spawn(&cache, stores(0));
        let two = spawn(&cache, stores(10));
        let others = spawn(&cache, |cache| {
            cache.recompress(8);
            cache.shrink(4096);
            cache.compact();
            cache.shrink(1 << 30);
        });
        join([late, one, two, others]);
        cache.check();
    });
}
