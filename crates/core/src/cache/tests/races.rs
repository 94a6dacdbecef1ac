//! Real threads on the same entries. Every page says which key it belongs to, so a mix-up shows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::*;

const KEYS: u64 = 48;

/// Ends the other threads when this one leaves, by a panic too.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The page of this key and version; the version can be read back out of it.
fn self_describing(key: u64, version: u64) -> Page {
    let tag = version * KEYS + key;
    let mut p = if version.is_multiple_of(4) { noise(tag) } else { page(tag) };
    p[..8].copy_from_slice(&tag.to_le_bytes());
    p
}

/// Loads have found pages in each place where a page can lie.
fn every_place(c: &Counters) -> bool {
    c.pool_loads > 0 && c.store_loads > 0 && c.buffer_loads > 0 && c.cluster_writes > 0
}

#[test]
fn store_load_invalidate_and_writeback_of_the_same_keys() {
    let cache = Arc::new(over_file(64 << 10));
    cache.init(1).unwrap();
    let stop = AtomicBool::new(false);
    let versions: [AtomicU64; KEYS as usize] = [const { AtomicU64::new(0) }; KEYS as usize];
    let loads = AtomicU64::new(0);
    std::thread::scope(|s| {
        let key = |k: u64| SwapEntry::new(1, k as u32);
        for t in 0..2 {
            let (cache, stop, versions) = (&cache, &stop, &versions);
            s.spawn(move || {
                let mut random = Random::new(t);
                while !stop.load(Ordering::Relaxed) {
                    let k = random.below(KEYS);
                    let version = versions[k as usize].fetch_add(1, Ordering::Relaxed) + 1;
                    cache.store(key(k), &self_describing(k, version)).unwrap();
                    if random.below(4) == 0 {
                        cache.invalidate_page(key(random.below(KEYS)));
                    }
                }
            });
        }
        for t in 0..3 {
            let (cache, stop, versions, loads) = (&cache, &stop, &versions, &loads);
            s.spawn(move || {
                let mut random = Random::new(100 + t);
                let mut p = [0; PAGE_SIZE];
                while !stop.load(Ordering::Relaxed) {
                    let k = random.below(KEYS);
                    match cache.load(key(k), &mut p) {
                        Ok(()) => {
                            let newest = versions[k as usize].load(Ordering::Relaxed);
                            let tag = u64::from_le_bytes(p[..8].try_into().unwrap());
                            assert!(
                                tag % KEYS == k && tag / KEYS <= newest,
                                "a page of another key"
                            );
                            assert!(p == self_describing(k, tag / KEYS), "a torn page");
                            loads.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(why) => assert_eq!(why, LoadError::NotFound),
                    }
                }
            });
        }
        let (cache, stop_) = (&cache, &stop);
        s.spawn(move || {
            let mut random = Random::new(200);
            while !stop_.load(Ordering::Relaxed) {
                match random.below(4) {
                    0 => cache
                        .set_pool([PoolKind::Zsmalloc, PoolKind::Zbud][random.below(2) as usize]),
                    1 => cache.check(),
                    _ => {
                        cache.shrink(32 << 10);
                    }
                }
            }
        });
        let _stop = StopAtEnd(&stop);
        // Pages lie in the buffer of the store for most of the time: loads from the store are the
        // rarest.
        let deadline = Instant::now() + Duration::from_secs(60);
        let enough = || loads.load(Ordering::Relaxed) >= 200_000 && every_place(&cache.counters());
        while Instant::now() < deadline && !enough() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    cache.check();
    let c = cache.counters();
    assert!(every_place(&c), "{c:?}");
    cache.invalidate_area(1);
    cache.check();
    assert_eq!(cache.counters().stored_pages, 0);
}

#[test]
fn reading_in_order_while_the_clusters_are_replaced() {
    const PAGES: u64 = 300;
    let cache = over_file(0);
    cache.init(1).unwrap();
    let stop = AtomicBool::new(false);
    let rounds = AtomicU64::new(0);
    let key = |k: u64| SwapEntry::new(1, k as u32);
    // Version `v` of key `k`: a tag that names both.
    let content = |k: u64, v: u64| self_describing(k % KEYS, v * PAGES + k);
    let has_read =
        |c: &Counters| c.read_ahead_hits > 0 && c.cluster_writes > 0 && c.store_loads > 0;
    (0..PAGES).for_each(|k| cache.store(key(k), &content(k, 0)).unwrap());
    std::thread::scope(|s| {
        for _ in 0..2 {
            let (cache, stop, rounds) = (&cache, &stop, &rounds);
            s.spawn(move || {
                let mut p = [0; PAGE_SIZE];
                while !stop.load(Ordering::Relaxed) {
                    for k in 0..PAGES {
                        match cache.load(key(k), &mut p) {
                            Ok(()) => {
                                let tag = u64::from_le_bytes(p[..8].try_into().unwrap()) / KEYS;
                                assert_eq!(tag % PAGES, k, "a page of another key");
                                assert!(p == content(k, tag / PAGES), "a torn page");
                            }
                            Err(why) => assert_eq!(why, LoadError::NotFound),
                        }
                    }
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let (cache, stop_) = (&cache, &stop);
        s.spawn(move || {
            let mut random = Random::new(7);
            let mut version = 0;
            while !stop_.load(Ordering::Relaxed) {
                version += 1;
                // A part of them in order, so that whole clusters die and others follow each other.
                let from = random.below(PAGES);
                for k in from..PAGES.min(from + random.below(120)) {
                    cache.store(key(k), &content(k, version)).unwrap();
                }
                cache.check();
            }
        });
        let _stop = StopAtEnd(&stop);
        let began = Instant::now();
        let goes_on = || match has_read(&cache.counters()) {
            // On a busy machine it takes a while.
            false => began.elapsed() < Duration::from_secs(60),
            true => {
                began.elapsed() < Duration::from_secs(3) && rounds.load(Ordering::Relaxed) < 400
            }
        };
        while goes_on() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    cache.check();
    let c = cache.counters();
    assert!(has_read(&c), "{c:?}");
    assert_eq!((c.corrupt_loads, c.read_errors), (0, 0));
}

#[test]
fn areas_come_and_go_under_traffic() {
    let (cache, _) = in_memory(128 << 10);
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        for t in 0..3u64 {
            let (cache, stop) = (&cache, &stop);
            s.spawn(move || {
                let mut random = Random::new(t);
                let mut p = [0; PAGE_SIZE];
                while !stop.load(Ordering::Relaxed) {
                    let offset = random.below(500);
                    let key = SwapEntry::new(2, offset as u32);
                    match random.below(3) {
                        0 => drop(
                            cache.store(key, &self_describing(offset % KEYS, random.below(1000))),
                        ),
                        1 => {
                            cache.invalidate_page(key);
                        }
                        _ => {
                            if cache.load(key, &mut p).is_ok() {
                                let tag = u64::from_le_bytes(p[..8].try_into().unwrap());
                                assert!(
                                    tag % KEYS == offset % KEYS
                                        && p == self_describing(tag % KEYS, tag / KEYS)
                                );
                            }
                        }
                    }
                }
            });
        }
        let _stop = StopAtEnd(&stop);
        for _ in 0..60 {
            cache.init(2).unwrap();
            std::thread::sleep(Duration::from_millis(10));
            cache.invalidate_area(2);
            cache.check();
        }
    });
    cache.check();
    assert_eq!(cache.counters().stored_pages, 0, "a store into an area that has ended is refused");
}
