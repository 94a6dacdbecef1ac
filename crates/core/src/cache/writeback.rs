//! Writeback: the oldest objects leave the pool for the store.
//!
//! An object moves from the pool into the open cluster in one step under the lock, and is served from there at
//! once. So the write itself, which happens without the lock, is the affair of a cluster and of no entry: load, invalidate,
//! and another store of the same key may come at any time (see `store/cluster.rs`). What the kernel's
//! design has to revalidate after every unlock is, here, one question at the end: is anything left alive in the cluster?
//!
//! The published races and why they cannot be: *load during writeback* finds the object in the pool or in the cluster, never in between;
//! *twice on the LRU*: an entry is on it exactly while its location is `Pool`, both set under one lock; *use after free outside the lock*: no entry
//! is touched outside the lock; *counters after an area's end* are changed by the one function that drops entries.

use super::{Location, NONE, Page, State, SwapCache};
use crate::pool::Handle;
use crate::store::cluster::{AppendError, CLUSTER_BYTES, Place, WRITERS, sealed_range};
use crate::store::{BLOCK_BYTES, Store};
use crate::sys::mem::Mapping;
use crate::sys::sync::MutexGuard;
use crate::sys::{PAGE_SIZE, Result};

use super::read::Reader;

/// Frames that one compaction of the pool frees at most: a portion of work under the lock.
const COMPACT_FRAMES: usize = 32;
/// Dead places given back at one time.
const MAX_DISCARDS: usize = 4;
/// Entries that are spared at most while looking for one to write back.
const MAX_SPARED: u32 = 256;

/// The buffers of one flush.
pub struct Writer {
    io: Mapping,
    /// For compaction, which reads before it writes.
    reader: Reader,
}

impl Writer {
    pub const BYTES: usize = CLUSTER_BYTES;

    pub fn new() -> Result<Writer> {
        Ok(Writer { io: Mapping::new(CLUSTER_BYTES)?, reader: Reader::new()? })
    }
}

/// Where the objects for a flush come from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// Only full clusters are written.
    No,
    /// The oldest objects of the pool fill the open cluster, if the pool has to become smaller.
    IfPoolFull,
    /// They do in any case.
    Yes,
}

impl<S: Store> SwapCache<S> {
    /// Writes the least recently used objects back until `bytes` of the pool's memory are free, or nothing more can be done. Says how
    /// many bytes of memory went back to the kernel.
    pub fn shrink(&self, bytes: usize) -> usize {
        let resident = |s: &State<S>| s.pools.iter().map(|p| p.resident_frames()).sum::<usize>() * PAGE_SIZE;
        let before = resident(&self.state.lock());
        loop {
            let progress = self.write_back(Fill::Yes);
            let mut s = self.state.lock();
            while s.pools.iter_mut().any(|p| p.compact(COMPACT_FRAMES) > 0) {}
            let released = s.pools.iter_mut().map(|p| p.release()).sum::<usize>();
            let freed = before.saturating_sub(resident(&s));
            if freed >= bytes || !progress && released == 0 {
                return freed;
            }
        }
    }

    /// One portion of writeback: fills a cluster, writes it, and does some of the store's housekeeping. False if there was nothing to do, or
    /// the store does not take anything.
    pub(super) fn write_back(&self, fill: Fill) -> bool {
        let mut writer = self.take_writer();
        let mut moved = 0;
        let flush = {
            let mut s = self.state.lock();
            if fill == Fill::Yes || fill == Fill::IfPoolFull && s.is_over_threshold() {
                moved = s.fill_cluster();
            }
            s.clusters.begin_flush(writer.io.as_mut_slice())
        };
        let Some(flush) = flush else { return moved > 0 };
        let result = flush.run(writer.io.as_mut_slice());
        {
            let mut s = self.state.lock();
            match result {
                Ok(()) => {
                    s.counters.cluster_writes += 1;
                    s.counters.store_write_bytes += flush.bytes().next_multiple_of(BLOCK_BYTES) as u64;
                }
                Err(_) => s.counters.write_errors += 1,
            }
            s.clusters.end_flush(flush, result);
        }
        self.discard_some();
        self.compact_one(&mut writer.reader);
        result.is_ok()
    }

    /// Gives the disk space of some dead places back, if there are many.
    pub(super) fn discard_some(&self) {
        for _ in 0..MAX_DISCARDS {
            let Some(discard) = self.state.lock().clusters.begin_discard() else { return };
            discard.run();
            let mut s = self.state.lock();
            s.counters.discarded_clusters += 1;
            s.clusters.end_discard(discard);
        }
    }

    fn take_writer(&self) -> MutexGuard<'_, Writer> {
        self.writers[..WRITERS - 1].iter().find_map(|w| w.try_lock()).unwrap_or_else(|| self.writers[WRITERS - 1].lock())
    }

    /// Moves what lives in one sparse cluster to the open one, if the file has grown too large for what is in it.
    fn compact_one(&self, reader: &mut Reader) {
        let (victim, source) = {
            let mut s = self.state.lock();
            let Some(victim) = s.clusters.sparse() else { return };
            let Some(source) = s.clusters.source(victim) else { return };
            (victim, source)
        };
        // An unreadable cluster is left alone: whoever loads from it learns of the error.
        if reader.fetch_all(&source).is_err() {
            return;
        }
        loop {
            // Look, open without the lock, look again.
            let (id, place, len) = {
                let s = self.state.lock();
                if !s.clusters.is_source(victim, &source) {
                    return;
                }
                let id = s.clusters.first(victim);
                let e = s.entries.get(id);
                let Location::Stored(place) = e.location() else { unreachable!("in a cluster's list") };
                (id, place, usize::from(e.len))
            };
            let Some(object) = reader.open(&source, place, &sealed_range(place.offset, len)) else { return };
            let mut s = self.state.lock();
            if s.clusters.is_source(victim, &source) && s.entries.get(id).location() == Location::Stored(place) {
                match s.clusters.append(object) {
                    Ok(new) => s.restore(id, place, new),
                    Err(AppendError::Full | AppendError::Unwritable) => return,
                }
            }
        }
    }
}

impl<S: Store> State<S> {
    /// Whether the pool has to become smaller than it is.
    fn is_over_threshold(&mut self) -> bool {
        !self.accepts()
    }

    /// Moves the least recently used objects from the pool to the open cluster until it is full; says how many.
    fn fill_cluster(&mut self) -> usize {
        let mut moved = 0;
        let mut spared = 0;
        while !self.clusters.has_full() && self.clusters.is_writable() {
            let id = self.lru.last;
            if id == NONE {
                break;
            }
            let e = *self.entries.get(id);
            if e.referenced != 0 && spared < MAX_SPARED {
                self.entries.get_mut(id).referenced = 0;
                self.lru.remove(&mut self.entries, id);
                self.lru.push_front(&mut self.entries, id);
                self.counters.second_chances += 1;
                spared += 1;
                continue;
            }
            let Location::Pool(raw) = e.location() else { unreachable!("on the LRU") };
            let handle = Handle::from_raw(raw).expect("an entry keeps a handle");
            let mut scratch: Page = [0; PAGE_SIZE];
            let object = self.pools[usize::from(e.pool)].read(handle, &mut scratch);
            let Ok(place) = self.clusters.append(object) else { break };
            self.lru.remove(&mut self.entries, id);
            self.free_object(e.pool, raw);
            self.entries.get_mut(id).set_location(Location::Stored(place));
            self.link_stored(id, place);
            self.counters.pool_pages -= 1;
            self.counters.store_pages += 1;
            self.counters.written_back_pages += 1;
            moved += 1;
        }
        if moved > 0 {
            for pool in &mut self.pools {
                pool.compact(COMPACT_FRAMES);
            }
        }
        moved
    }

    /// The object of a stored entry has moved to another cluster.
    fn restore(&mut self, id: u32, old: Place, new: Place) {
        self.unlink_stored(id, old);
        self.entries.get_mut(id).set_location(Location::Stored(new));
        self.link_stored(id, new);
        self.counters.compacted_pages += 1;
    }
}
