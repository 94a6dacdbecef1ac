//! Every place where the cache lets go of its lock while something is under way, with everything
//! that others can do there.
//!
//! All of the cache's state is behind one lock, so what can interleave with a flush, a load, a
//! compaction or a discard is exactly what happens during its I/O. The store below runs other
//! operations there: all sequences of up to three, so that this is a complete model of the
//! protocol, on the real code. An operation that would wait for the lock that is held in a window
//! (another flush during a flush, another read by the same reader) cannot interleave, and is left
//! out there.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::store::testing::{Fault, MemoryStore};
use crate::store::{Progress, Queue, ReadQueue};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Window {
    Read,
    ReadAhead,
    Write,
    Discard,
}

type Hook = Box<dyn FnMut(Window) + Send>;

/// A store that lets a hook run before each operation, and whose reads ahead fail if they are to.
#[derive(Clone, Copy)]
struct HookedStore(MemoryStore, &'static Mutex<Option<Hook>>, &'static AtomicBool);

impl HookedStore {
    fn new() -> HookedStore {
        HookedStore(
            MemoryStore::new(),
            Box::leak(Box::new(Mutex::new(None))),
            Box::leak(Box::new(AtomicBool::new(false))),
        )
    }

    fn set(self, hook: impl FnMut(Window) + Send + 'static) {
        *self.1.lock().unwrap() = Some(Box::new(hook));
    }

    fn run(self, window: Window) {
        // Taken out, so that the operations in a window have none themselves.
        let hook = self.1.lock().unwrap().take();
        if let Some(mut hook) = hook {
            hook(window);
            self.1.lock().unwrap().get_or_insert(hook);
        }
    }
}

impl Store for HookedStore {
    fn read(self, at: u64, buf: &mut [u8]) -> Result<()> {
        self.run(Window::Read);
        self.0.read(at, buf)
    }
    fn read_ahead(self, queue: &mut ReadQueue, at: u64, len: usize) -> bool {
        self.run(Window::ReadAhead);
        if self.2.load(Ordering::Relaxed) {
            queue.promise(0, move |buf| {
                buf[..len].fill(0x5a);
                Err(Errno::EIO)
            });
            return true;
        }
        self.0.read_ahead(queue, at, len)
    }
    fn write(self, queue: &mut Queue, slot: usize, at: u64, len: usize) -> Progress {
        self.run(Window::Write);
        self.0.write(queue, slot, at, len)
    }
    fn discard(self, at: u64, len: u64) {
        self.run(Window::Discard);
        self.0.discard(at, len)
    }
    fn fresh(self) -> Result<Self> {
        Ok(HookedStore(self.0.fresh()?, self.1, self.2))
    }
    fn close(self) {
        self.0.close();
    }
    fn is_inherited(self) -> bool {
        false
    }
}

/// An operation of another thread in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Other {
    LoadAll,
    InvalidateOne,
    InvalidateAll,
    StoreOneAgain,
    StoreAllAgain,
    WriteAllBack,
}

const OTHERS: [Other; 6] = [
    Other::LoadAll,
    Other::InvalidateOne,
    Other::InvalidateAll,
    Other::StoreOneAgain,
    Other::StoreAllAgain,
    Other::WriteAllBack,
];
const KEYS: u32 = 70;
/// The key on which everything meets.
const ONE: u32 = 20;

/// The version of each key, 0: none.
type Versions = [u64; KEYS as usize];

fn key(k: u32) -> SwapEntry {
    SwapEntry::new(1, k)
}

/// Small versions are noise, which goes straight to the store.
fn content(k: u32, version: u64) -> Page {
    let tag = version * 1000 + u64::from(k);
    if version < 100 { noise(tag) } else { page(tag) }
}

fn store(cache: &SwapCache<HookedStore>, versions: &mut Versions, k: u32) {
    store_version(cache, versions, k, versions[k as usize] + 100 - versions[k as usize] % 100 + 1);
}

fn store_version(cache: &SwapCache<HookedStore>, versions: &mut Versions, k: u32, version: u64) {
    cache.store(key(k), &content(k, version)).unwrap();
    versions[k as usize] = version;
}

fn verify(cache: &SwapCache<HookedStore>, versions: &Versions, context: &dyn std::fmt::Debug) {
    let mut p = [0; PAGE_SIZE];
    for k in 0..KEYS {
        match (cache.load(key(k), &mut p), versions[k as usize]) {
            (Ok(()), v) if v > 0 => assert!(p == content(k, v), "{context:?}: key {k}"),
            (Err(LoadError::NotFound), 0) => {}
            (got, v) => panic!("{context:?}: key {k} of version {v}: {got:?}"),
        }
    }
}

fn act(cache: &SwapCache<HookedStore>, versions: &mut Versions, other: Other) {
    match other {
        Other::LoadAll => verify(cache, versions, &other),
        Other::InvalidateOne => {
            cache.invalidate_page(key(ONE));
            versions[ONE as usize] = 0;
        }
        Other::InvalidateAll => {
            for k in 0..KEYS {
                cache.invalidate_page(key(k));
                versions[k as usize] = 0;
            }
        }
        Other::StoreOneAgain => store(cache, versions, ONE),
        Other::StoreAllAgain => (0..KEYS).for_each(|k| store(cache, versions, k)),
        Other::WriteAllBack => {
            cache.shrink(1 << 30);
        }
    }
}

/// All sequences of one to `max_len` of them.
fn sequences(max_len: u32) -> impl Iterator<Item = Vec<Other>> {
    let n = OTHERS.len();
    (1..=max_len).flat_map(move |len| {
        (0..n.pow(len)).map(move |i| (0..len).map(|d| OTHERS[i / n.pow(d) % n]).collect())
    })
}

/// A cache whose `KEYS` pages are in the pool and in clusters, and which lives for ever, as the
/// hook needs it.
fn world() -> (&'static SwapCache<HookedStore>, HookedStore, &'static Mutex<Versions>) {
    let store_ = HookedStore::new();
    let cache: &'static _ = Box::leak(Box::new(over(store_, usize::MAX)));
    cache.init(1).unwrap();
    let mut versions = [0; KEYS as usize];
    (0..KEYS).for_each(|k| store(cache, &mut versions, k));
    (cache, store_, Box::leak(Box::new(Mutex::new(versions))))
}

/// Runs `main` with `others` in the `nth` window of the kind; false if there were not that many.
fn with_window(
    (cache, store_, versions): (
        &'static SwapCache<HookedStore>,
        HookedStore,
        &'static Mutex<Versions>,
    ),
    (window, nth): (Window, usize),
    others: &[Other],
    main: impl FnOnce(),
) -> bool {
    let (mut seen, list) = (0, others.to_vec());
    let hit: &'static _ = Box::leak(Box::new(AtomicBool::new(false)));
    store_.set(move |w| {
        if w == window {
            seen += 1;
            if seen == nth {
                hit.store(true, Ordering::Relaxed);
                let mut v = versions.lock().unwrap();
                let limit = core::mem::replace(&mut cache.state.lock().max_pool_bytes, usize::MAX);
                list.iter().for_each(|&o| act(cache, &mut v, o));
                cache.set_max_pool_bytes(limit);
            }
        }
    });
    main();
    *store_.1.lock().unwrap() = None;
    hit.load(Ordering::Relaxed)
}

#[test]
fn during_a_flush() {
    // A flush inside a flush would wait for the writer.
    for others in sequences(3).filter(|o| !o.contains(&Other::WriteAllBack)) {
        let w = world();
        assert!(with_window(w, (Window::Write, 1), &others, || {
            w.0.shrink(1 << 30);
        }));
        verify(w.0, &w.2.lock().unwrap(), &others);
        w.0.check();
    }
}

#[test]
fn between_the_start_of_a_flush_and_its_result() {
    for fails in [false, true] {
        for others in sequences(3) {
            let (cache, store_, versions) = world();
            store_.0.set_late(true);
            store_.0.set_fault(if fails { Fault::Once(1) } else { Fault::Never });
            let mut v = versions.lock().unwrap();
            cache.write_back(&mut cache.writer.lock(), writeback::Fill::Yes);
            assert!(!cache.writer.try_lock().unwrap().is_idle(), "a flush is in flight");
            others.iter().for_each(|&o| act(cache, &mut v, o));
            verify(cache, &v, &others);
            cache.check();
            assert_eq!(cache.counters().write_errors, u64::from(fails));
            cache.retry_store();
            cache.shrink(1 << 30);
            verify(cache, &v, &others);
            cache.check();
        }
    }
}

#[test]
fn during_a_load_from_the_file() {
    // A load in the window of a load would wait for the reader; threads do that, this cannot.
    for others in sequences(3).filter(|o| !o.contains(&Other::LoadAll)) {
        let w @ (cache, _, versions) = world();
        cache.shrink(1 << 30);
        let before = versions.lock().unwrap()[ONE as usize];
        let mut p = [0; PAGE_SIZE];
        let mut got = Ok(());
        assert!(with_window(w, (Window::Read, 1), &others, || got = cache.load(key(ONE), &mut p)));
        let after = versions.lock().unwrap()[ONE as usize];
        match got {
            Ok(()) => assert!(
                p == content(ONE, before) || after > 0 && p == content(ONE, after),
                "{others:?}: neither what was there nor what is"
            ),
            Err(why) => {
                assert_eq!(why, LoadError::NotFound, "{others:?}: nothing is wrong with the file");
                assert!(
                    others.iter().any(|o| matches!(o, Other::InvalidateOne | Other::InvalidateAll))
                );
            }
        }
        verify(cache, &versions.lock().unwrap(), &others);
        cache.check();
        let c = cache.counters();
        assert_eq!((c.corrupt_loads, c.read_errors), (0, 0));
    }
}

/// A cache with incompressible pages in five clusters, fifteen in each, and the first of them:
/// pages without a key in the first, keys in order in the others, `ONE` in the third.
fn world_in_clusters() -> (SwapCache<HookedStore>, HookedStore, Versions, SwapEntry) {
    let store_ = HookedStore::new();
    let cache = over(store_, usize::MAX);
    cache.init(1).unwrap();
    let first = cache.swap_out(&noise(1)).unwrap();
    for tag in 2..16 {
        cache.swap_out(&noise(tag)).unwrap();
    }
    let mut versions = [0; KEYS as usize];
    (0..KEYS).for_each(|k| store_version(&cache, &mut versions, k, 1));
    assert_eq!(cache.counters().cluster_writes, 5);
    (cache, store_, versions, first)
}

/// Loads from the first cluster, then from the second: that is in order, so the third is read
/// ahead.
fn start_read_ahead(cache: &SwapCache<HookedStore>, first: SwapEntry) {
    assert!(loaded(cache, first) == noise(1));
    assert!(!is_reading_ahead(cache));
    assert!(loaded(cache, key(0)) == content(0, 1));
}

fn is_reading_ahead(cache: &SwapCache<HookedStore>) -> bool {
    cache.readers.iter().any(|r| r.lock().is_reading())
}

#[test]
fn clusters_are_read_ahead_once_each() {
    let (cache, store_, versions, first) = world_in_clusters();
    start_read_ahead(&cache, first);
    assert!(is_reading_ahead(&cache));
    assert_eq!((cache.counters().store_reads, cache.counters().read_ahead_hits), (3, 0));
    for k in 0..60 {
        assert!(loaded(&cache, key(k)) == content(k, versions[k as usize]));
    }
    let c = cache.counters();
    assert_eq!(
        (c.store_reads, store_.0.reads_ahead()),
        (5, 3),
        "nothing is read twice, and nothing past the end"
    );
    assert_eq!(c.store_read_bytes, 8192 + 4 * 65536);
    assert_eq!((c.store_loads, c.read_ahead_hits), (62, 60));
    assert!(!is_reading_ahead(&cache));
    // Backwards, and at random, nothing is read ahead.
    for k in (0..60).rev().chain([50, 3, 36, 20]) {
        assert!(loaded(&cache, key(k)) == content(k, versions[k as usize]));
    }
    assert_eq!(store_.0.reads_ahead(), 3);
}

/// When a read ahead takes place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ahead {
    AtOnce,
    WhenItIsWaitedFor,
    Never,
}

const AHEADS: [Ahead; 3] = [Ahead::AtOnce, Ahead::WhenItIsWaitedFor, Ahead::Never];

impl Ahead {
    fn set(self, store: HookedStore) {
        store.0.set_late(self == Ahead::WhenItIsWaitedFor);
        store.2.store(self == Ahead::Never, Ordering::Relaxed);
    }
}

#[test]
fn between_the_start_of_a_read_ahead_and_its_result() {
    for ahead in AHEADS {
        for others in sequences(3) {
            let (cache, store_, mut versions, first) = world_in_clusters();
            ahead.set(store_);
            start_read_ahead(&cache, first);
            assert!(is_reading_ahead(&cache));
            others.iter().for_each(|&o| act(&cache, &mut versions, o));
            verify(&cache, &versions, &(ahead, &others));
            cache.check();
            let c = cache.counters();
            assert_eq!((c.corrupt_loads, c.read_errors), (0, 0), "{ahead:?} {others:?}");
        }
    }
}

#[test]
fn before_the_start_of_a_read_ahead() {
    // Loads would wait for the reader that is to read; threads do that, this cannot.
    for others in sequences(3).filter(|o| !o.contains(&Other::LoadAll)) {
        let (cache, store_, versions, first) = world_in_clusters();
        let cache: &'static _ = Box::leak(Box::new(cache));
        let versions: &'static _ = Box::leak(Box::new(Mutex::new(versions)));
        let mut p = [0; PAGE_SIZE];
        let mut got = Ok(());
        assert!(with_window((cache, store_, versions), (Window::ReadAhead, 1), &others, || {
            assert!(loaded(cache, first) == noise(1));
            got = cache.load(key(1), &mut p);
        }));
        let after = versions.lock().unwrap()[1];
        match got {
            Ok(()) => {
                assert!(p == content(1, 1) || after > 0 && p == content(1, after), "{others:?}")
            }
            Err(why) => {
                assert!(why == LoadError::NotFound && others.contains(&Other::InvalidateAll))
            }
        }
        verify(cache, &versions.lock().unwrap(), &others);
        cache.check();
        let c = cache.counters();
        assert_eq!((c.corrupt_loads, c.read_errors), (0, 0), "{others:?}");
    }
}

#[test]
fn a_place_that_is_written_again_while_it_is_read_ahead() {
    for ahead in AHEADS {
        let (cache, store_, mut versions, first) = world_in_clusters();
        ahead.set(store_);
        start_read_ahead(&cache, first);
        assert!(is_reading_ahead(&cache));
        let idle = || cache.state.lock().clusters.stats().idle_clusters;
        // The third cluster dies, and is the only place to write to.
        (15..30).for_each(|k| {
            cache.invalidate_page(key(k));
            versions[k as usize] = 0;
        });
        assert_eq!(idle(), 1);
        (15..30).for_each(|k| store_version(&cache, &mut versions, k, 2));
        cache.settle(&mut cache.writer.lock());
        assert_eq!((idle(), cache.counters().cluster_writes), (0, 6));
        verify(&cache, &versions, &ahead);
        verify(&cache, &versions, &ahead);
        cache.check();
        assert_eq!(cache.counters().corrupt_loads, 0);
    }
}

#[test]
fn two_reads_ahead_that_want_one_buffer() {
    // The read of the third cluster is still under way, as far as anybody knows, when the seventh
    // is to be read by the same reader.
    for ahead in AHEADS {
        let (cache, store_, versions, first) = world_in_clusters();
        let more: Vec<_> = (200..290).map(|tag| cache.swap_out(&noise(tag)).unwrap()).collect();
        ahead.set(store_);
        start_read_ahead(&cache, first);
        assert!(loaded(&cache, key(45)) == content(45, 1));
        let reads = cache.counters().store_reads;
        assert!(loaded(&cache, more[0]) == noise(200));
        assert_eq!(cache.counters().store_reads, reads + 1, "the sixth, and none ahead");
        for (i, e) in more.iter().enumerate() {
            assert!(loaded(&cache, *e) == noise(200 + i as u64));
        }
        verify(&cache, &versions, &ahead);
        cache.check();
    }
}

#[test]
fn during_compaction_and_discard() {
    // One page in 15 leaves sparse clusters, one in 240 dead ones.
    for (window, step) in [(Window::Read, 15), (Window::Discard, 240)] {
        let mut hits = 0;
        for others in sequences(2) {
            let w @ (cache, _, versions) = world();
            cache.set_max_pool_bytes(0);
            // Pages without a key fill clusters between ours; most of them die.
            let filler: Vec<_> =
                (0..1800).map(|tag| cache.swap_out(&noise(tag)).unwrap()).collect();
            cache.shrink(1 << 30);
            let kept: Vec<_> = filler.iter().step_by(step).copied().collect();
            let main = || {
                for (i, e) in filler.iter().enumerate() {
                    if i % step != 0 {
                        cache.free(*e);
                    }
                }
                for tag in 0..60 {
                    let e = cache.swap_out(&noise(5000 + tag)).unwrap();
                    cache.free(e);
                    cache.swap_out(&noise(6000 + tag)).unwrap();
                }
            };
            // The writer is held there.
            if others.contains(&Other::WriteAllBack) {
                continue;
            }
            hits += usize::from(with_window(w, (window, 1), &others, main));
            verify(cache, &versions.lock().unwrap(), &others);
            for (i, e) in kept.iter().enumerate() {
                assert!(loaded(cache, *e) == noise((step * i) as u64));
            }
            cache.check();
        }
        assert!(hits > 0, "{window:?} never happened");
    }
}
