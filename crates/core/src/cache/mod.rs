//! The compressed, write-behind swap cache.
//!
//! ```text
//!   swap_out(page) -> SwapEntry           swap_in(SwapEntry) -> page         free(SwapEntry)
//!        |                                      ^
//!        | same word throughout? --yes--------> Same(word)
//!        | compress (a stream, no lock)         |
//!        |   | shrinks enough? pool accepts? -> Pool(handle) --- oldest first, when the pool is full -+
//!        |   no                                                                                       |
//!        +---+--------------------------------> Stored(place) <---------------------------------------+
//!                                               |
//!                                   in the open cluster (memory) -> written by 64 KiB -> in the file
//! ```
//!
//! An independent engine: keys and pages, no fault handling, no thread. Work that takes time
//! (writing clusters) is done by the caller, in small portions: a caller that finds the pool full
//! writes one cluster; a background thread, if there is one, calls [`SwapCache::shrink`], and
//! [`SwapCache::recompress`] while there is leisure.
//!
//! # Vocabulary
//! *Swap entry*: (type, offset), the name of a page that is out. *Type*: an area of offsets; type 0
//! is the cache's own, in which `swap_out` gives out offsets, the others are keyed by the caller:
//! `store`, `load`, `invalidate_page`, `invalidate_area`. *Slot*: the entry's record, reserved as
//! long as the page is out, so that the page can be written back later without asking
//! anybody. *Writeback*: moving the least recently used objects from the pool to the store. *Load*
//! leaves the entry as it is.
//!
//! # Locks, in the order in which they are taken
//! 1. `packer`: working memory of the recompressor; held while entries are compressed again.
//! 2. `writer`: the buffers of flushes; held while a cluster is sealed, and while waiting for one
//!    that is in flight.
//! 3. `readers[i]`: the I/O buffer of one read; held while blocks are read and one object is
//!    opened. A read ahead goes on without it ([`read`]).
//! 4. `unpacked[i]`: the pages of one group; held while it is decompressed, and while its members
//!    are written back.
//! 5. a stream of the codec; never held during I/O (others spin for it).
//! 6. the samples of the codec; held while a dictionary is trained, and only tried but for a fork.
//! 7. `state`: entries, lists, pool, clusters, counters. An object of the pool is filled and read
//!    without it, pinned ([`crate::pool::pin`]); it is held to copy an object for a caller's key,
//!    to the store, or to be compressed again, and to copy a cluster.
//!
//! A thread that lets `state` go leaves the figures behind that each fault asks for ([`glance`]).
//! Entries are only looked at under `state`, and a thread that lets it go knows nothing of them any
//! more. So before it decompresses or reads it pins or copies what it needs, or it asks again
//! afterwards ([`read`], [`writeback`]). A thread unpins an object before it gives its stream back,
//! so none is pinned where all streams are held: at a fork.

mod buffers;
mod check;
mod choice;
mod counters;
mod entry;
mod fingerprint;
mod fork;
mod glance;
mod group;
mod kept;
mod keys;
#[cfg(any(test, feature = "testing"))]
pub mod model;
mod read;
mod recompress;
mod records;
mod state;
#[cfg(test)]
mod tests;
mod writeback;

pub use counters::Counters;
pub use entry::{MAX_AREAS, SwapEntry};
pub use fork::ForkGuard;
pub use kept::{Back, Print};
pub use keys::{Run, Which};

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::codec::{CodecSpec, Codecs, Streams, Training, fill, same_filled};
use crate::pool::PoolKind;
use crate::store::cluster::Clusters;
use crate::store::remote::RemoteCounts;
use crate::store::seal::Encryption;
use crate::store::{FileStore, Store};
use crate::sys::contention::Class;
use crate::sys::sync::Mutex;
use crate::sys::{Errno, PAGE_SIZE, Result};
use choice::Choice;
use entry::{Area, AreaState, Location, OWN_AREA};
use fingerprint::Fingerprint;
use glance::{StateGuard, StateLock};
use group::{UNPACKED, Unpacked};
use read::{Direction, READERS, Reader};
pub use read::{Loaded, Origin, near_bytes};
use recompress::Packer;
use state::{Attempt, Content, Owner, RAW, State, pool_index};
use writeback::Writer;

/// A page, as the cache sees it: bytes.
pub type Page = [u8; PAGE_SIZE];

/// Compressed pages longer than this are not worth a place in memory (15/16 of a page).
const MAX_COMPRESSED_BYTES: usize = PAGE_SIZE - PAGE_SIZE / 16;
/// Output and scratch of a stream: a compressed page and room to assemble one.
const STREAM_BYTES: usize = 2 * PAGE_SIZE;
/// How often a store that found all of the store's buffers full is tried again.
const MAX_RETRIES: u32 = 8;
/// How a cache is made.
#[derive(Clone, Copy)]
pub struct CacheConfig<S = FileStore> {
    pub codec: CodecSpec,
    /// The codec for pages that have not been asked for in a while ([`SwapCache::recompress`]).
    pub recompressor: Option<CodecSpec>,
    /// Pages that come in are compressed by the stronger one too where it is much stronger.
    pub chooses_codec: bool,
    pub pool: PoolKind,
    pub max_pool_bytes: usize,
    /// Once full, the pool takes nothing until it is below this part of its maximum (only while
    /// there is a store that works).
    pub accept_threshold_percent: u32,
    /// Pages that do not compress stay in the pool as they are, as long as it has room. Otherwise
    /// they go to the store, and are refused where there is none.
    pub keeps_incompressible: bool,
    /// Where cold and incompressible pages go; taken over by the cache.
    pub store: Option<S>,
    pub encryption: Encryption,
}

impl<S> Default for CacheConfig<S> {
    fn default() -> Self {
        CacheConfig {
            codec: CodecSpec::default(),
            recompressor: None,
            chooses_codec: false,
            pool: PoolKind::Zsmalloc,
            max_pool_bytes: usize::MAX,
            accept_threshold_percent: 90,
            keeps_incompressible: false,
            store: None,
            encryption: Encryption::On,
        }
    }
}

/// Neither pool nor store can take the page: it stays where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapFull;

/// Why a page could not be brought back. The destination may hold anything; the entry is as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// There is no such entry.
    NotFound,
    /// The store could not be read.
    Io(Errno),
    /// The bytes that are there are not those that were stored.
    Corrupt,
}

/// See the module.
pub struct SwapCache<S: Store = FileStore> {
    state: StateLock<S>,
    codecs: Codecs,
    streams: Streams,
    packer: Mutex<Packer>,
    choice: Choice,
    /// Memory of the packer, to be read without its lock.
    packer_bytes: AtomicUsize,
    writer: Mutex<Writer<S>>,
    /// Something was read or written since the last rest.
    has_io_buffers: AtomicBool,
    readers: [Mutex<Reader>; READERS],
    unpacked: [Mutex<Unpacked>; UNPACKED],
    /// Memory of `unpacked`, to be read without its locks.
    unpacked_bytes: AtomicUsize,
    direction: Direction,
    fingerprint: Fingerprint,
}

impl<S: Store> SwapCache<S> {
    pub fn new(config: CacheConfig<S>) -> Result<SwapCache<S>> {
        let clusters = Clusters::new(config.store, config.encryption)?;
        let mut state = State::new(
            config.pool,
            clusters,
            config.max_pool_bytes,
            config.accept_threshold_percent,
        );
        state.keeps_incompressible = config.keeps_incompressible;
        Ok(SwapCache {
            state: StateLock::new(state),
            codecs: Codecs::new(config.codec),
            streams: Streams::new(STREAM_BYTES)?,
            packer: Mutex::of(Class::Packer, Packer::new()?),
            choice: Choice::new(config.chooses_codec, config.recompressor),
            packer_bytes: AtomicUsize::new(0),
            writer: Mutex::of(Class::Writer, Writer::new()?),
            has_io_buffers: AtomicBool::new(false),
            readers: make_readers()?,
            unpacked: [make_unpacked()?, make_unpacked()?],
            unpacked_bytes: AtomicUsize::new(0),
            direction: Direction::new(),
            fingerprint: Fingerprint::new()?,
        })
    }

    // ---- The pager's face: the cache names the entries

    /// Takes a page. On `Err` nothing has changed, and the page stays where it is.
    pub fn swap_out(&self, page: &Page) -> core::result::Result<SwapEntry, SwapFull> {
        self.put(Owner::Any, page)
    }

    /// Takes a page that is not worth memory: to the store at once, where there is one that works.
    pub fn swap_out_cold(&self, page: &Page) -> core::result::Result<SwapEntry, SwapFull> {
        self.put(Owner::Cold, page)
    }

    /// Brings a page back. The entry stays valid.
    pub fn swap_in(
        &self,
        entry: SwapEntry,
        page: &mut Page,
    ) -> core::result::Result<(), LoadError> {
        self.swap_in_from(entry, page).map(drop)
    }

    /// Drops a page. The entry must be there: freeing twice is a broken invariant.
    pub fn free(&self, entry: SwapEntry) {
        let s = self.state.lock();
        let id = s.lookup(entry).expect("a swap entry is freed once");
        self.drop_entry(s, entry, id);
    }

    // ---- zswap's face: the caller names the entries

    /// Begins area `area` (1 to [`MAX_AREAS`] - 1), empty.
    pub fn init(&self, area: u8) -> Result<()> {
        let mut guard = self.state.lock();
        let s = &mut *guard;
        match s.areas.get_mut(usize::from(area)) {
            Some(a) if a.state == AreaState::Unused => {
                a.state = AreaState::InUse;
                s.areas_end = s.areas_end.max(usize::from(area) + 1);
                Ok(())
            }
            Some(_) => Err(Errno::EEXIST),
            None => Err(Errno::EINVAL),
        }
    }

    /// Takes a page under a key of the caller's, in the place of an older one. On `Err` nothing has
    /// changed: the older one is still there, and a caller to whom it would be wrong invalidates
    /// it.
    pub fn store(&self, key: SwapEntry, page: &Page) -> core::result::Result<(), SwapFull> {
        self.put(Owner::Key(key), page).map(drop)
    }

    /// Brings the page of a key back. It stays stored.
    pub fn load(&self, key: SwapEntry, page: &mut Page) -> core::result::Result<(), LoadError> {
        self.swap_in(key, page)
    }

    /// Drops the page of a key; says whether there was one.
    pub fn invalidate_page(&self, key: SwapEntry) -> bool {
        let s = self.state.lock();
        let Some(id) = s.lookup(key) else { return false };
        self.drop_entry(s, key, id);
        true
    }

    /// Drops all pages of an area and ends it (`init` begins it again).
    pub fn invalidate_area(&self, area: u8) {
        assert!(area != OWN_AREA, "the cache's own area has no keys");
        // From here on nothing comes in, so that one pass finds everything.
        match self.state.lock().areas.get_mut(usize::from(area)) {
            Some(a) if a.state == AreaState::InUse => a.state = AreaState::Ending,
            _ => return,
        }
        let mut from = 0;
        loop {
            // Entries are dropped in portions, so that no thread waits for the lock until all have
            // gone.
            let mut s = self.state.lock();
            for _ in 0..64 {
                let Some((offset, id)) = s.areas[usize::from(area)].next(from) else {
                    s.areas[usize::from(area)] = Area::default();
                    return;
                };
                s.drop_entry(SwapEntry::new(area, offset), id);
                from = offset;
            }
            drop(s);
            self.help_discard();
        }
    }

    /// Drops an entry, and does its share of giving disk space back.
    fn drop_entry(&self, mut s: StateGuard<'_, S>, entry: SwapEntry, id: u32) {
        s.drop_entry(entry, id);
        self.end_of_drops(s);
    }

    /// Entries may have been dropped: lets the lock go, and gives disk space back if there is much
    /// of it now.
    fn end_of_drops(&self, s: StateGuard<'_, S>) {
        let has_discards = s.clusters.has_discards();
        drop(s);
        if has_discards {
            self.help_discard();
        }
    }

    /// Gives disk space back if there is much to give, unless another thread is at it.
    fn help_discard(&self) {
        if self.state.lock().clusters.has_discards()
            && let Some(mut w) = self.writer.try_lock()
        {
            self.discard_some(&mut w);
        }
    }

    // ---- Taking a page in

    fn put(&self, owner: Owner, page: &Page) -> core::result::Result<SwapEntry, SwapFull> {
        let mut retries = 0;
        loop {
            match self.attempt(owner, page) {
                Attempt::Done(entry) => return Ok(entry),
                Attempt::DoneFlush(entry) => {
                    self.help_write_back();
                    return Ok(entry);
                }
                // Other threads may be faster to use the room that the flush makes, again and
                // again.
                Attempt::NoRoom if retries < MAX_RETRIES => {
                    self.write_back(&mut self.writer.lock(), writeback::Fill::No);
                    retries += 1;
                }
                Attempt::NoRoom => {
                    let c = &mut self.state.lock().counters;
                    c.stores += 1;
                    c.failed_stores += 1;
                    c.reject_no_slot += 1;
                    return Err(SwapFull);
                }
                Attempt::Full => return Err(SwapFull),
            }
        }
    }

    fn attempt(&self, owner: Owner, page: &Page) -> Attempt {
        if let Some(word) = same_filled(page) {
            return self.take(owner, Content::Same(word));
        }
        self.streams.with(|stream| {
            let out = &mut stream.out.as_mut_slice()[..MAX_COMPRESSED_BYTES];
            if let Some(c) = self.codecs.compress_sparse(page, out) {
                return self.take(owner, Content::Compressed(c.codec, &out[..c.len]));
            }
            let codec = self.codec_for_stores();
            let content = match self.codecs.compress_as(codec, &mut stream.scratch, page, out) {
                Ok(c) => {
                    self.compare_codecs(page, codec, c.len);
                    Content::Compressed(c.codec, &out[..c.len])
                }
                // Some content is a matter of entropy coding: the stronger codec makes it smaller,
                // the fast one not.
                Err(why) => match self.compress_densely(page, codec, &mut out[..]) {
                    Some(c) => Content::Compressed(c.codec, &out[..c.len]),
                    None => Content::Raw(page, why),
                },
            };
            self.take(owner, content)
        })
    }

    /// Takes a page in, in the form that it has got. The caller has a stream, or no object.
    fn take(&self, owner: Owner, content: Content<'_>) -> Attempt {
        if let Owner::Key(_) = owner {
            // Others know the key, and may load the page as soon as the lock is free.
            return self.state.lock().take(owner, content);
        }
        let mut s = self.state.lock();
        let (attempt, unfilled) = s.take_unfilled(owner, content);
        let pool = s.pool as u8;
        drop(s);
        if let Some(freed) = unfilled.and_then(|object| object.fill(content.object())) {
            self.state.lock().bury_object(pool, freed);
        }
        attempt
    }

    // ---- Limits and figures

    /// Sets the largest size of the pool. Objects above it go to the store by and by, or by
    /// `shrink`.
    pub fn set_max_pool_bytes(&self, bytes: usize) {
        self.state.lock().max_pool_bytes = bytes;
    }

    pub fn set_accept_threshold_percent(&self, percent: u32) {
        self.state.lock().accept_threshold_percent = percent.min(100);
    }

    /// Compresses with another codec from now on. Objects already stored stay as they are.
    pub fn set_codec(&self, codec: CodecSpec) {
        self.codecs.select(codec);
    }

    /// Trains a dictionary on the pages seen so far if the codec wants one and it is time
    /// (`zstd:dict=auto`). For a thread that can spare some 20 ms between two rounds of work;
    /// training takes no lock that others wait for, and everything but a fork goes on meanwhile.
    pub fn train(&self) -> Training {
        if self.codecs.training_due() { self.codecs.train() } else { Training::NotDue }
    }

    /// Puts new objects into a pool of another kind from now on. Objects already stored stay where
    /// they are.
    pub fn set_pool(&self, kind: PoolKind) {
        self.state.lock().pool = pool_index(kind);
    }

    /// Memory that the cache holds: pool frames, records, buffers, scratch.
    pub fn footprint_bytes(&self) -> usize {
        let buffers = self.streams.mapped_bytes()
            + self.codecs.dictionary_bytes()
            + self.codecs.sample_bytes()
            + self.packer_bytes.load(Ordering::Relaxed)
            + self.unpacked_bytes.load(Ordering::Relaxed);
        let io = if self.has_io_buffers.load(Ordering::Relaxed) {
            Writer::<S>::BYTES + (READERS + 1) * Reader::BYTES
        } else {
            0
        };
        self.state.memory_bytes() + buffers + io
    }

    /// Memory that the pool's objects take, in whole frames, but for kept copies: what
    /// `max_pool_bytes` limits.
    pub fn pool_bytes(&self) -> usize {
        self.state.pool_bytes()
    }

    pub fn counters(&self) -> Counters {
        self.state.lock().counters_now()
    }

    /// The error that made writing back stop, if it did. Sticky: everything is served on from
    /// memory.
    pub fn store_failure(&self) -> Option<Errno> {
        if let Some(mut w) = self.writer.try_lock() {
            self.harvest(&mut w, false);
        }
        self.state.lock().clusters.failure()
    }

    /// Events so far of a store on other machines.
    pub fn remote_counts(&self) -> RemoteCounts {
        self.state.lock().clusters.remote_counts()
    }

    /// Tries the store again, after somebody has made room on the disk.
    pub fn retry_store(&self) {
        self.state.lock().clusters.clear_failure();
    }

    /// Makes the store's file now, if it is not there yet (in a child after fork it is made when it
    /// is needed).
    pub fn open_store(&self) {
        self.state.lock().clusters.open_file();
    }

    /// Calls `each` with every descriptor that the program must not be able to close.
    pub fn for_each_descriptor(&self, each: impl FnMut(i32)) {
        self.state.lock().clusters.descriptors().for_each(each);
    }
}

fn make_unpacked() -> Result<Mutex<Unpacked>> {
    Ok(Mutex::of(Class::Unpacked, Unpacked::new()?))
}

fn make_readers() -> Result<[Mutex<Reader>; READERS]> {
    let mut all = [const { None }; READERS];
    for reader in &mut all {
        *reader = Some(Mutex::of(Class::Reader, Reader::new()?));
    }
    Ok(all.map(|r| r.expect("filled above")))
}
