//! Every place where the cache lets go of its lock while something is under way, with everything that others
//! can do there.
//!
//! All of the cache's state is behind one lock, so what can interleave with a flush, a load, a compaction or
//! a discard is exactly what happens during its I/O. The store below runs other operations there: all
//! sequences of up to three, so that this is a complete model of the protocol, on the real code. What would
//! wait for the lock that is held in a window (another flush during a flush, another read by the same reader)
//! cannot interleave, and is left out there.

use std::sync::Mutex;

use super::*;
use crate::store::testing::{Fault, MemoryStore};
use crate::store::{Progress, Queue};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Window {
    Read,
    Write,
    Discard,
}

type Hook = Box<dyn FnMut(Window) + Send>;

/// A store that lets a hook run before each operation.
#[derive(Clone, Copy)]
struct HookedStore(MemoryStore, &'static Mutex<Option<Hook>>);

impl HookedStore {
    fn new() -> HookedStore {
        HookedStore(MemoryStore::new(), Box::leak(Box::new(Mutex::new(None))))
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
    fn write(self, queue: &mut Queue, slot: usize, at: u64, len: usize) -> Progress {
        self.run(Window::Write);
        self.0.write(queue, slot, at, len)
    }
    fn discard(self, at: u64, len: u64) {
        self.run(Window::Discard);
        self.0.discard(at, len)
    }
    fn fresh(self) -> Result<Self> {
        Ok(HookedStore(self.0.fresh()?, self.1))
    }
    fn close(self) {}
    fn descriptors(self) -> [i32; 2] {
        [-1; 2]
    }
}

/// What others do in a window.
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

fn content(k: u32, version: u64) -> Page {
    page(version * 1000 + u64::from(k))
}

fn store(cache: &SwapCache<HookedStore>, versions: &mut Versions, k: u32) {
    let version = versions[k as usize] + 100 - versions[k as usize] % 100 + 1;
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

/// A cache whose `KEYS` pages are in the pool and in clusters, and which lives for ever, as the hook needs
/// it.
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
    (cache, store_, versions): (&'static SwapCache<HookedStore>, HookedStore, &'static Mutex<Versions>),
    (window, nth): (Window, usize),
    others: &[Other],
    main: impl FnOnce(),
) -> bool {
    let (mut seen, list) = (0, others.to_vec());
    let hit: &'static _ = Box::leak(Box::new(std::sync::atomic::AtomicBool::new(false)));
    store_.set(move |w| {
        if w == window {
            seen += 1;
            if seen == nth {
                hit.store(true, std::sync::atomic::Ordering::Relaxed);
                let mut v = versions.lock().unwrap();
                let limit = core::mem::replace(&mut cache.state.lock().max_pool_bytes, usize::MAX);
                list.iter().for_each(|&o| act(cache, &mut v, o));
                cache.set_max_pool_bytes(limit);
            }
        }
    });
    main();
    *store_.1.lock().unwrap() = None;
    hit.load(std::sync::atomic::Ordering::Relaxed)
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
                assert!(others.iter().any(|o| matches!(o, Other::InvalidateOne | Other::InvalidateAll)));
            }
        }
        verify(cache, &versions.lock().unwrap(), &others);
        cache.check();
        let c = cache.counters();
        assert_eq!((c.corrupt_loads, c.read_errors), (0, 0));
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
            let filler: Vec<_> = (0..1800).map(|tag| cache.swap_out(&noise(tag)).unwrap()).collect();
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
