//! Groups of pages: made, loaded from, left by their members, written back, and all of it in each
//! other's way.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::*;
use crate::cache::group::GROUP_PAGES;
use crate::store::testing::Fault;

const PAGES: u64 = 1024;

/// Pages that resemble each other, half of them compressed again and half of these in groups.
struct World {
    cache: SwapCache<MemoryStore>,
    store: MemoryStore,
    entries: Vec<SwapEntry>,
}

impl World {
    fn new() -> World {
        let (cache, store) = in_memory(64 << 20);
        cache.set_recompressor(CodecSpec::parse("zstd:level=-1").ok());
        cache.set_leisure(true);
        let entries: Vec<_> = (0..PAGES).map(|n| cache.swap_out(&kin(n)).unwrap()).collect();
        while cache.recompress(8) > 0 {}
        cache.check();
        assert!((500..700).contains(&cache.counters().grouped_pages), "{:?}", cache.counters());
        World { cache, store, entries }
    }

    fn grouped(&self) -> usize {
        self.cache.counters().grouped_pages as usize
    }

    fn is_right(&self) {
        for (n, e) in self.entries.iter().enumerate() {
            assert!(loaded(&self.cache, *e) == kin(n as u64), "page {n}");
        }
    }
}

#[test]
fn neighbours_take_less_together_and_are_the_same() {
    let (cache, _) = in_memory(64 << 20);
    cache.set_recompressor(CodecSpec::parse("zstd:level=1").ok());
    cache.set_leisure(true);
    let entries: Vec<_> = (0..PAGES).map(|n| cache.swap_out(&kin(n)).unwrap()).collect();
    let before = cache.counters().compr_data_bytes;
    cache.recompress(usize::MAX);
    cache.check();
    let c = cache.counters();
    assert_eq!(before - c.compr_data_bytes, c.recompressed_saved_bytes);
    assert_eq!((c.grouped_pages, c.pool_pages), (c.group_stores, PAGES));
    let grouped = c.grouped_pages as usize;
    assert!(grouped >= 256 && grouped.is_multiple_of(GROUP_PAGES), "{c:?}");
    let single_bytes = before / PAGES;
    assert!(
        c.compr_data_bytes < before - single_bytes * grouped as u64 * 3 / 4,
        "a quarter is left: {c:?}"
    );
    // The oldest are in groups: one of them is unpacked, the neighbours come from the buffer.
    for (n, e) in entries.iter().enumerate() {
        assert!(loaded(&cache, *e) == kin(n as u64), "page {n}");
    }
    let c = cache.counters();
    assert_eq!(
        (c.group_loads as usize, c.unpacked_groups as usize),
        (grouped, grouped / GROUP_PAGES)
    );
    cache.check();
    entries.into_iter().for_each(|e| cache.free(e));
    cache.check();
    let c = cache.counters();
    assert_eq!((c.grouped_pages, c.compr_data_bytes, c.mem_used_bytes), (0, 0, 0));
}

#[test]
fn groups_that_a_busy_program_asks_for_are_taken_apart() {
    let World { cache, entries, .. } = World::new();
    let grouped = || cache.counters().grouped_pages as usize;
    let before = grouped();
    assert!(loaded(&cache, entries[0]) == kin(0));
    assert_eq!(grouped(), before, "there is leisure");
    cache.set_leisure(false);
    let c = cache.counters();
    // The first page of the next group; itself it stays where it is.
    assert!(loaded(&cache, entries[GROUP_PAGES]) == kin(GROUP_PAGES as u64));
    cache.check();
    assert_eq!(grouped(), before - (GROUP_PAGES - 1));
    assert!(cache.counters().compr_data_bytes > c.compr_data_bytes);
    assert_eq!(cache.counters().stored_pages, c.stored_pages);
    // They are young, and no new group is made of those that are left.
    cache.recompress(usize::MAX);
    assert_eq!(cache.counters().group_stores, c.group_stores);
    for (n, e) in entries.iter().enumerate() {
        assert!(loaded(&cache, *e) == kin(n as u64), "page {n}");
    }
    // The first of each, and all of the first group, which was in a buffer.
    assert_eq!(grouped(), before / GROUP_PAGES + GROUP_PAGES - 1);
    entries.into_iter().for_each(|e| cache.free(e));
    cache.check();
    assert_eq!(grouped(), 0);
}

#[test]
fn pages_that_do_not_resemble_each_other_stay_apart() {
    let (cache, _) = in_memory(64 << 20);
    cache.set_recompressor(CodecSpec::parse("zstd:level=1").ok());
    cache.set_leisure(true);
    let entries: Vec<_> = (0..PAGES).map(|n| cache.swap_out(&page(n)).unwrap()).collect();
    cache.recompress(usize::MAX);
    let c = cache.counters();
    assert_eq!((c.grouped_pages, c.group_stores), (0, 0));
    assert_eq!(cache.recompress(100), 0, "and are not tried again");
    assert!(entries.iter().zip(0..).all(|(e, n)| loaded(&cache, *e) == page(n)));
    cache.check();
}

#[test]
fn few_that_are_left_become_a_group_with_others() {
    let World { cache, entries, .. } = World::new();
    let grouped = cache.counters().grouped_pages as usize;
    // Three of four are freed. Until the rest are somewhere else the groups stay as large as they
    // were.
    let (mut left, mut before) = (Vec::new(), cache.counters());
    for (n, e) in entries.into_iter().enumerate() {
        if n < grouped && n % 4 != 0 {
            cache.free(e);
        } else {
            left.push((e, n as u64));
        }
    }
    let c = cache.counters();
    assert_eq!(c.grouped_pages as usize, grouped / 4);
    assert_eq!(c.compr_data_bytes, before.compr_data_bytes);
    cache.check();
    // New pages push them towards the ancient.
    for n in 0..PAGES {
        left.push((cache.swap_out(&kin(PAGES + n)).unwrap(), PAGES + n));
    }
    before = cache.counters();
    while cache.recompress(16) > 0 {}
    cache.check();
    let c = cache.counters();
    assert!(
        c.group_stores - before.group_stores > c.grouped_pages - before.grouped_pages,
        "some for the second time"
    );
    assert!(left.iter().all(|(e, n)| loaded(&cache, *e) == kin(*n)));
    cache.check();
}

#[test]
fn groups_are_written_back_page_by_page() {
    let w = World::new();
    let grouped = w.grouped() as u64;
    w.cache.shrink(64 << 20);
    w.cache.check();
    let c = w.cache.counters();
    assert_eq!((c.pool_pages, c.grouped_pages, c.dispersed_pages), (0, 0, grouped));
    assert_eq!((c.store_pages, c.written_back_pages, c.incompressible_pages), (PAGES, PAGES, 0));
    w.is_right();
    w.cache.check();
}

#[test]
fn what_no_codec_makes_smaller_singly_is_written_back_as_it_is() {
    let w = World::new();
    let grouped = w.grouped() as u64;
    w.cache.set_recompressor(None);
    w.cache.set_codec(CodecSpec::parse("none").unwrap());
    w.cache.shrink(64 << 20);
    w.cache.check();
    assert_eq!(w.cache.counters().incompressible_pages, grouped);
    w.is_right();
}

#[test]
fn what_was_asked_for_is_written_back_last() {
    let w = World::new();
    // Of the first group, one in three.
    let wanted: Vec<usize> = (0..GROUP_PAGES).step_by(3).collect();
    wanted.iter().for_each(|&n| assert!(loaded(&w.cache, w.entries[n]) == kin(n as u64)));
    // Free frames go first.
    while w.cache.counters().written_back_pages == 0 {
        w.cache.shrink(256 << 10);
    }
    w.cache.check();
    let c = w.cache.counters();
    assert!(c.written_back_pages > 0 && c.grouped_pages > 0, "{c:?}");
    assert!((1..=wanted.len() as u64).contains(&c.second_chances), "{c:?}");
    let before = w.cache.counters().pool_loads;
    wanted.iter().for_each(|&n| assert!(loaded(&w.cache, w.entries[n]) == kin(n as u64)));
    assert_eq!(w.cache.counters().pool_loads - before, wanted.len() as u64);
    w.is_right();
}

#[test]
fn a_store_that_fails_loses_no_member() {
    for (n, late) in (1..12).flat_map(|n| [(n, false), (n, true)]) {
        let w = World::new();
        w.store.set_late(late);
        w.store.set_fault(Fault::From(n));
        w.cache.shrink(64 << 20);
        w.cache.check();
        let c = w.cache.counters();
        assert_eq!(c.pool_pages + c.store_pages, PAGES);
        w.store.set_fault(Fault::Never);
        w.is_right();
        w.cache.retry_store();
        w.cache.shrink(64 << 20);
        w.cache.check();
        assert_eq!(w.cache.counters().grouped_pages, 0);
        w.is_right();
    }
}

#[test]
fn a_pool_that_cannot_grow_makes_no_group_and_loses_nothing() {
    for n in 0..12 {
        let (cache, _) = in_memory(64 << 20);
        cache.set_recompressor(CodecSpec::parse("zstd:level=1").ok());
        cache.set_leisure(true);
        let entries: Vec<_> = (0..PAGES).map(|n| cache.swap_out(&kin(n)).unwrap()).collect();
        // One by one first, then groups.
        cache.recompress(500);
        cache.state.lock().pools[0].fail_growth_after(Some(n));
        cache.recompress(usize::MAX);
        cache.check();
        assert!(entries.iter().zip(0..).all(|(e, n)| loaded(&cache, *e) == kin(n)));
    }
}

#[test]
fn members_are_not_kept() {
    let w = World::new();
    w.cache.set_max_kept_bytes(8 << 20);
    let grouped = w.grouped();
    assert!(!keep(&w.cache, w.entries[0], &kin(0)), "it is gone");
    assert_eq!(w.grouped(), grouped - 1);
    assert!(keep(&w.cache, w.entries[PAGES as usize - 1], &kin(PAGES - 1)));
    w.cache.check();
}

#[test]
fn buffers_are_given_back_and_taken_again() {
    let w = World::new();
    let rested = |cache: &SwapCache<MemoryStore>| {
        cache.give_buffers_back();
        cache.footprint_bytes()
    };
    let before = rested(&w.cache);
    assert!(loaded(&w.cache, w.entries[0]) == kin(0) && loaded(&w.cache, w.entries[16]) == kin(16));
    assert!(w.cache.footprint_bytes() >= before + 2 * GROUP_PAGES * PAGE_SIZE, "two buffers");
    assert_eq!(rested(&w.cache), before);
    assert!(loaded(&w.cache, w.entries[1]) == kin(1));
    assert_eq!(rested(&w.cache), before);
    w.is_right();
}

#[test]
fn a_child_has_the_groups_too() {
    use crate::sys::file::testing;
    let w = World::new();
    let mut guard = Some(w.cache.prepare_fork());
    let child = testing::fork(|| {
        w.cache.after_fork_child(guard.take().unwrap());
        let mut p = [0; PAGE_SIZE];
        let mut is_right = || {
            w.entries
                .iter()
                .zip(0..)
                .all(|(e, n)| w.cache.swap_in(*e, &mut p).is_ok() && p == kin(n))
        };
        let before = is_right();
        w.entries.iter().skip(1).step_by(2).for_each(|e| w.cache.free(*e));
        w.cache.recompress(usize::MAX);
        w.cache.check();
        before && w.entries.iter().zip(0..).step_by(2).all(|(e, n)| loaded(&w.cache, *e) == kin(n))
    });
    w.cache.after_fork_parent(guard.take().unwrap());
    w.entries.iter().step_by(3).for_each(|e| w.cache.free(*e));
    assert_eq!(testing::wait(child), 0, "the child read right pages");
    let left = w.entries.iter().zip(0..).filter(|(_, n)| n % 3 != 0);
    left.for_each(|(e, n)| assert!(loaded(&w.cache, *e) == kin(n)));
    w.cache.check();
}

#[test]
fn groups_come_and_go_under_traffic() {
    const KEYS: u64 = 600;
    let (cache, _) = in_memory(64 << 20);
    cache.set_recompressor(CodecSpec::parse("zstd:level=-1").ok());
    cache.set_leisure(true);
    cache.init(1).unwrap();
    let key = |k: u64| SwapEntry::new(1, k as u32);
    (0..KEYS).for_each(|k| cache.store(key(k), &kin(k)).unwrap());
    let (stop, group_loads) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|s| {
        for t in 0..3 {
            let (cache, stop) = (&cache, &stop);
            s.spawn(move || {
                let mut random = Random::new(t);
                let mut p = [0; PAGE_SIZE];
                while !stop.load(Ordering::Relaxed) {
                    let k = random.below(KEYS);
                    // Runs of neighbours, as a program has them.
                    for k in k..KEYS.min(k + 20) {
                        match random.below(16) {
                            0 => drop(cache.invalidate_page(key(k))),
                            1..6 => cache.store(key(k), &kin(k + KEYS * random.below(64))).unwrap(),
                            _ if cache.load(key(k), &mut p).is_ok() => {
                                let tag = u64::from_le_bytes(p[..8].try_into().unwrap());
                                assert!(tag % KEYS == k && p == kin(tag), "a page of another key");
                            }
                            _ => {}
                        }
                    }
                }
            });
        }
        let (cache, stop_) = (&cache, &stop);
        s.spawn(move || {
            let mut random = Random::new(9);
            while !stop_.load(Ordering::Relaxed) {
                match random.below(24) {
                    0 => cache.check(),
                    1 => drop(cache.shrink(32 << 10)),
                    2 => cache.give_buffers_back(),
                    3 => cache.pause_recompression(),
                    _ => drop(cache.recompress(random.below(200) as usize)),
                }
            }
        });
        let began = Instant::now();
        let goes_on = |loads: u64| match loads {
            // On a busy machine it takes a while until pages are left alone for long enough.
            0 => began.elapsed() < Duration::from_secs(60),
            _ => began.elapsed() < Duration::from_secs(4) && loads < 20_000,
        };
        while goes_on(group_loads.load(Ordering::Relaxed)) {
            std::thread::sleep(Duration::from_millis(20));
            group_loads.store(cache.counters().group_loads, Ordering::Relaxed);
        }
        stop.store(true, Ordering::Relaxed);
    });
    cache.check();
    let c = cache.counters();
    assert!(c.group_stores > 0 && c.group_loads > 0, "{c:?}");
    assert_eq!((c.corrupt_loads, c.read_errors), (0, 0));
    cache.invalidate_area(1);
    cache.check();
    assert_eq!((cache.counters().stored_pages, cache.counters().mem_used_bytes), (0, 0));
}
