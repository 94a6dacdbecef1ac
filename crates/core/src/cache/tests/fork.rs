//! Real forks: parent and child go on with copies of one cache and one file.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::*;
use crate::codec::CodecSpec;
use crate::sys::file::{self, testing};

const PAGES: usize = 1500;

/// Version `version` of page `i`.
fn content(i: usize, version: u64) -> Page {
    any_page((version * PAGES as u64 + i as u64) * 7 + 1)
}

/// Pages and what is in them. On the stack: a child must not allocate.
struct World {
    entries: [(SwapEntry, u64); PAGES],
}

impl World {
    fn new<S: Store>(cache: &SwapCache<S>) -> World {
        World { entries: core::array::from_fn(|i| (cache.swap_out(&content(i, 1)).unwrap(), 1)) }
    }

    fn is_right<S: Store>(&self, cache: &SwapCache<S>) -> bool {
        let mut p = [0; PAGE_SIZE];
        self.entries
            .iter()
            .enumerate()
            .all(|(i, (e, v))| cache.swap_in(*e, &mut p).is_ok() && p == content(i, *v))
    }

    /// Replaces every page with `i % step == rest`.
    fn churn<S: Store>(
        &mut self,
        cache: &SwapCache<S>,
        step: usize,
        rest: usize,
        version: u64,
    ) -> bool {
        for i in (rest..PAGES).step_by(step) {
            let Ok(e) = cache.swap_out(&content(i, version)) else { return false };
            cache.free(self.entries[i].0);
            self.entries[i] = (e, version);
        }
        true
    }
}

/// Forks the cache; `child` gets it as the child has it.
pub(super) fn fork<S: Store>(cache: &SwapCache<S>, child: impl FnOnce() -> bool) -> i32 {
    let mut guard = Some(cache.prepare_fork());
    let pid = testing::fork(|| {
        cache.after_fork_child(guard.take().unwrap());
        child()
    });
    cache.after_fork_parent(guard.take().unwrap());
    pid
}

/// Keeps two tests whose children wait at gates apart: each child would have the write end of the
/// other's gate, and wait for ever.
pub(super) fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A gate that children wait at until it is opened, by closing its write end everywhere. For tests
/// that are [`alone`].
struct Gate(i32, i32);

impl Gate {
    fn new() -> Gate {
        let (r, w) = file::pipe().unwrap();
        Gate(r, w)
    }

    fn wait_in_child(&self) {
        file::close(self.1);
        self.wait();
    }

    fn wait(&self) {
        while file::hung_up(&[self.0]) == 0 {
            std::thread::yield_now();
        }
    }

    fn open(&self) {
        file::close(self.1);
    }
}

fn stats<S: Store>(cache: &SwapCache<S>) -> crate::store::cluster::ClusterStats {
    cache.state.lock().clusters.stats()
}

/// Lets the store look at its snapshots.
fn poll<S: Store>(cache: &SwapCache<S>) {
    let guard = cache.prepare_fork();
    cache.after_fork_failed(guard);
}

#[test]
fn both_sides_keep_every_page_while_both_change_theirs() {
    let _alone = alone();
    let cache = over_file(256 << 10);
    let mut world = World::new(&cache);
    cache.shrink(1 << 20);
    let (parent_done, child_done) = (Gate::new(), Gate::new());
    let child = fork(&cache, || {
        file::close(child_done.0);
        // First write our own, then read what the parent has replaced meanwhile, then change
        // everything.
        let ok = world.churn(&cache, 3, 0, 10) && world.is_right(&cache);
        child_done.open();
        parent_done.wait_in_child();
        let ok =
            ok && world.is_right(&cache) && world.churn(&cache, 2, 1, 11) && world.is_right(&cache);
        cache.check();
        let ok = ok && world.churn(&cache, 1, 0, 12);
        cache.shrink(1 << 30);
        cache.check();
        ok && world.is_right(&cache)
    });
    child_done.open();
    for version in 20..26 {
        assert!(world.churn(&cache, 2, (version % 2) as usize, version) && world.is_right(&cache));
        cache.check();
    }
    let s = stats(&cache);
    assert!(s.snapshots == 1 && s.deferred_clusters > 0, "what the child can read is kept: {s:?}");
    child_done.wait();
    parent_done.open();
    assert_eq!(testing::wait(child), 0, "the child read right pages");
    poll(&cache);
    let s = stats(&cache);
    assert!(s.snapshots == 0 && s.deferred_clusters == 0, "and given back when it has gone: {s:?}");
    assert!(world.churn(&cache, 1, 0, 30) && world.is_right(&cache));
    cache.check();
}

#[test]
fn a_grandchild_reads_on_when_its_parent_has_gone() {
    let _alone = alone();
    let cache = over_file(64 << 10);
    let mut world = World::new(&cache);
    let parent_done = Gate::new();
    let result = Gate::new();
    let child = fork(&cache, || {
        file::close(result.0);
        let ok = world.churn(&cache, 4, 1, 5);
        // The grandchild reads two inherited files and writes to a third.
        fork(&cache, || {
            parent_done.wait_in_child();
            let ok =
                world.is_right(&cache) && world.churn(&cache, 4, 2, 6) && world.is_right(&cache);
            cache.check();
            if !ok {
                // Nobody waits for a grandchild: a byte says that it failed.
                testing::write(result.1, b"x");
            }
            ok
        });
        ok && world.churn(&cache, 4, 3, 7) && world.is_right(&cache)
    });
    result.open();
    assert_eq!(testing::wait(child), 0);
    for version in 20..23 {
        assert!(world.churn(&cache, 1, 0, version) && world.is_right(&cache));
    }
    poll(&cache);
    assert_eq!(stats(&cache).snapshots, 1, "the grandchild holds on to what its parent held");
    parent_done.open();
    result.wait();
    let mut byte = [0];
    assert_eq!(crate::sys::fd::read(result.0, &mut byte), Ok(0), "the grandchild read right pages");
    poll(&cache);
    assert_eq!(stats(&cache).snapshots, 0);
    assert!(world.is_right(&cache));
    cache.check();
}

#[test]
fn more_forks_than_snapshots_freeze_places_and_lose_nothing() {
    let _alone = alone();
    let cache = over_file(64 << 10);
    let mut world = World::new(&cache);
    let gate = Gate::new();
    let mut children = Vec::with_capacity(70);
    for n in 0..70 {
        children.push(fork(&cache, || {
            gate.wait_in_child();
            world.is_right(&cache)
        }));
        assert!(world.churn(&cache, 70, n, 40 + n as u64));
    }
    assert_eq!(stats(&cache).snapshots, 64);
    assert!(world.churn(&cache, 1, 0, 200));
    gate.open();
    children.into_iter().for_each(|pid| assert_eq!(testing::wait(pid), 0));
    poll(&cache);
    let s = stats(&cache);
    assert!(s.snapshots == 0 && s.deferred_clusters > 0, "{s:?}");
    assert!(world.is_right(&cache) && world.churn(&cache, 1, 0, 201) && world.is_right(&cache));
    cache.check();
}

#[test]
fn generations_beyond_the_bound_write_nothing_back_and_lose_nothing() {
    /// Each generation writes a file of its own and keeps pages in all those before.
    fn generation(cache: &SwapCache<FileStore>, world: &mut World, n: usize) -> bool {
        let ok = world.churn(cache, 24, n, 100 + n as u64);
        let before = cache.counters().cluster_writes;
        cache.shrink(1 << 30);
        let wrote = cache.counters().cluster_writes > before;
        let ok = world.is_right(cache) && (ok && wrote || n >= 16);
        cache.check();
        if !ok || n == 20 {
            return ok && !wrote && cache.store_failure() == Some(Errno::EMFILE);
        }
        testing::wait(fork(cache, || generation(cache, world, n + 1))) == 0
    }
    let cache = over_file(usize::MAX);
    let mut world = World::new(&cache);
    assert!(generation(&cache, &mut world, 0));
}

#[test]
fn a_fork_with_nothing_in_the_file_costs_no_descriptor() {
    let _alone = alone();
    let cache = over_file(usize::MAX);
    let count = |cache: &SwapCache<FileStore>| {
        let mut n = 0;
        cache.for_each_descriptor(|fd| {
            n += 1;
            let info = format!("/proc/self/fdinfo/{fd}");
            assert!(fd >= 512, "out of the program's way");
            let info = std::fs::read_to_string(info).unwrap();
            let flags = info.lines().find_map(|l| l.strip_prefix("flags:")).unwrap().trim();
            assert!(u32::from_str_radix(flags, 8).unwrap() & 0o2000000 != 0, "close-on-exec");
        });
        n
    };
    cache.swap_out(&page(1)).unwrap();
    let before = count(&cache);
    let pid = fork(&cache, || true);
    assert_eq!(count(&cache), before);
    testing::wait(pid);
    let _world = World::new(&cache);
    cache.shrink(1 << 30);
    let gate = Gate::new();
    let pid = fork(&cache, || {
        gate.wait_in_child();
        true
    });
    assert_eq!(count(&cache), before + 1);
    gate.open();
    testing::wait(pid);
}

#[test]
fn a_read_ahead_that_is_under_way_at_a_fork_is_waited_for_and_both_sides_read_on() {
    let _alone = alone();
    let store = FileStore::open(std::env::temp_dir().as_os_str().as_encoded_bytes()).unwrap();
    let cache = over(store, 0);
    let mut world = World::new(&cache);
    let is_reading =
        |cache: &SwapCache<FileStore>| cache.readers.iter().any(|r| r.lock().is_reading());
    // Loads in order until something is read ahead.
    let start = |cache: &SwapCache<FileStore>, world: &World| {
        let mut p = [0; PAGE_SIZE];
        world.entries.iter().enumerate().any(|(i, (e, v))| {
            cache.swap_in(*e, &mut p).unwrap();
            assert!(p == content(i, *v));
            is_reading(cache)
        })
    };
    assert!(start(&cache, &world) || !store.is_direct());
    let child_done = Gate::new();
    let child = fork(&cache, || {
        file::close(child_done.0);
        // The child has no business with the parent's reads, and makes its own.
        let ok = !is_reading(&cache) && (start(&cache, &world) || !store.is_direct());
        let ok =
            ok && world.is_right(&cache) && world.churn(&cache, 2, 0, 5) && world.is_right(&cache);
        cache.check();
        ok
    });
    child_done.open();
    assert!(!is_reading(&cache));
    assert!(world.churn(&cache, 3, 0, 6) && world.is_right(&cache) && world.is_right(&cache));
    child_done.wait();
    assert_eq!(testing::wait(child), 0, "the child read right pages");
    let c = cache.counters();
    assert_eq!((c.corrupt_loads, c.read_errors), (0, 0));
    cache.check();
}

#[test]
fn forks_under_traffic_find_the_cache_at_rest() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let cache = over_file(128 << 10);
    let world = World::new(&cache);
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        for t in 0..3 {
            let (cache, stop, world) = (&cache, &stop, &world);
            s.spawn(move || {
                let mut random = Random::new(t);
                let mut p = [0; PAGE_SIZE];
                while !stop.load(Ordering::Relaxed) {
                    let i = random.below(PAGES as u64) as usize;
                    cache.swap_in(world.entries[i].0, &mut p).unwrap();
                    assert!(p == content(i, 1));
                    let tag = random.next();
                    let e = cache.swap_out(&any_page(tag)).unwrap();
                    cache.swap_in(e, &mut p).unwrap();
                    assert!(p == any_page(tag));
                    cache.free(e);
                }
            });
        }
        s.spawn(|| {
            cache.set_recompressor(CodecSpec::parse("zstd:level=1").ok());
            cache.set_leisure(true);
            while !stop.load(Ordering::Relaxed) {
                cache.recompress(5);
            }
        });
        for _ in 0..12 {
            let pid = fork(&cache, || {
                cache.recompress(5);
                cache.check();
                world.is_right(&cache)
            });
            assert_eq!(testing::wait(pid), 0);
        }
        stop.store(true, Ordering::Relaxed);
    });
    cache.check();
}
