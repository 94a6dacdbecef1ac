//! Bringing a page back, from wherever it is.
//!
//! An object of the pool is pinned under the lock, copied and decompressed without it (a group in a
//! buffer of its own: [`super::group`]). Meanwhile the entry may be invalidated, or its object go
//! to the store: the bytes stay until the thread has copied them. An object that waits
//! to be written is copied under the lock. An object in the file is read into a reader's buffer
//! with no other lock held; meanwhile the entry may be invalidated, written elsewhere by
//! compaction, its place reused. None of that needs a reference count: the seal names the place and
//! the use of the place, so an object that opens is the one that was stored under this entry when
//! the load began. When an object does not open the entry is looked up again: if it is still where
//! it was, the file is wrong, else the load starts over.
//!
//! # Read-ahead
//! A reader remembers which cluster it read last. A second miss in the same cluster reads the rest
//! of it, and what follows comes from the buffer: pages that were evicted together are wanted
//! together. Clusters that were written one after the other are wanted together, too. So the first
//! load from the next cluster reads all of it. It also starts to read the cluster after that into
//! another reader's buffer: the disk works while pages are decompressed.
//!
//! ```text
//!   disk    [ cluster 7 ][ cluster 8 ]   [ cluster 9 ]
//!   us          6, 6, 6 | 7, 7, 7, 7, 7 | 8, 8, 8, 8, 8 |
//!                first 7: start 8 ^       ^ first 8: start 9
//! ```
//!
//! Such a read has a reader's buffer and nothing else: no lock, no entry. The next load that takes
//! that reader, for whatever cluster, waits for it first; so does a fork. Meanwhile the cluster may
//! die and its place be written again: the bytes are known by its sequence number, so nobody will
//! ask for them. If the read fails, nothing has come, and a load that wants the cluster reads it
//! itself. A read ahead is a favour: a reader that is busy is not waited for.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use super::entry::{Entry, Mark};
use super::group::Spot;
use super::{LoadError, Location, Page, RAW, SwapCache, SwapEntry, fill, state};
use crate::codec::{CodecId, Scratch};
use crate::pool::pin::Pinned;
use crate::store::cluster::{CLUSTER_BYTES, Place, Source, blocks_of, sealed_range};
use crate::store::seal::TAG_BYTES;
use crate::store::{BLOCK_BYTES, ReadQueue, Store};
use crate::sys::contention::{self, Slow};
use crate::sys::mem::Mapping;
use crate::sys::sync::Mutex;
use crate::sys::{PAGE_SIZE, Result};

/// Reads that can be under way at the same time. A cluster is always read by the same reader, and
/// by another one than the cluster before it.
pub const READERS: usize = 4;

/// Bytes that count as near: an eighth of the pool, at least four clusters. A pool larger by so
/// much would still have had a page after which fewer bytes were written.
pub fn near_bytes(pool_bytes: u64) -> u64 {
    (pool_bytes / 8).max(4 * CLUSTER_BYTES as u64)
}

/// The buffer of one read.
pub struct Reader {
    blocks: ReadQueue,
    /// One object, taken out of the blocks to be opened in place.
    object: Mapping,
    /// The contents of `blocks`, now or when the read that is under way has ended: the blocks
    /// `valid` of the cluster with this sequence number (numbers never repeat).
    sequence: u64,
    valid: Range<usize>,
}

impl Reader {
    pub const BYTES: usize = CLUSTER_BYTES + 2 * PAGE_SIZE;

    pub fn new() -> Result<Reader> {
        Ok(Reader {
            blocks: ReadQueue::new(CLUSTER_BYTES)?,
            object: Mapping::new(2 * PAGE_SIZE)?,
            sequence: 0,
            valid: 0..0,
        })
    }

    /// Reads the whole of a cluster.
    pub fn fetch_all<S: Store>(&mut self, source: &Source<S>) -> Result<usize> {
        self.fetch(source, &(0..source.blocks * BLOCK_BYTES), false)
    }

    /// Makes the blocks with `bytes` of the cluster present, or `all` of them; says how many bytes
    /// had to be read.
    fn fetch<S: Store>(
        &mut self,
        source: &Source<S>,
        bytes: &Range<usize>,
        all: bool,
    ) -> Result<usize> {
        self.settle();
        let mut want = blocks_of(bytes);
        let same_cluster = self.sequence == source.sequence;
        if same_cluster && self.valid.start <= want.start && want.end <= self.valid.end {
            return Ok(0);
        }
        if same_cluster || all {
            want = 0..source.blocks;
        }
        self.valid = 0..0;
        self.sequence = source.sequence;
        source.read(want.clone(), self.blocks.buffer(0))?;
        self.valid = want;
        Ok(self.valid.len() * BLOCK_BYTES)
    }

    /// Fetches the blocks from one copy, even if they are here already.
    fn fetch_copy<S: Store>(
        &mut self,
        source: &Source<S>,
        copy: usize,
        waits: bool,
        bytes: &Range<usize>,
    ) -> Result<usize> {
        let want = blocks_of(bytes);
        self.valid = 0..0;
        source.read_copy(copy, waits, want.clone(), self.blocks.buffer(0))?;
        self.valid = want;
        Ok(self.valid.len() * BLOCK_BYTES)
    }

    /// Starts reading the whole of a cluster, unless it is here or on its way; says how many bytes.
    fn read_ahead<S: Store>(&mut self, source: &Source<S>) -> usize {
        let all = 0..source.blocks;
        if self.sequence == source.sequence && self.valid == all {
            return 0;
        }
        // A read that is still under way is somebody else's.
        self.harvest(false);
        if !self.blocks.is_idle() || !source.read_ahead(&mut self.blocks) {
            return 0;
        }
        (self.sequence, self.valid) = (source.sequence, all);
        source.blocks * BLOCK_BYTES
    }

    fn harvest(&mut self, wait: bool) {
        self.blocks.reap(wait);
        if let Some(Err(_)) = self.blocks.take_result(0) {
            self.valid = 0..0;
        }
    }

    /// Waits for a read ahead that is under way.
    pub fn settle(&mut self) {
        while !self.blocks.is_idle() {
            self.harvest(true);
        }
    }

    /// Whether a read ahead is under way, as far as anybody knows.
    #[cfg(test)]
    pub fn is_reading(&self) -> bool {
        !self.blocks.is_idle()
    }

    /// Gives the buffers back, after a read ahead that is under way has ended.
    pub fn give_buffers_back(&mut self) {
        self.settle();
        self.valid = 0..0;
        self.blocks.give_buffers_back();
        self.object.decommit(0..self.object.len());
    }

    /// In the child after fork.
    pub fn forget_parent(&mut self) {
        self.blocks.forget();
    }

    /// In a child that was forked at any moment; it is only dropped from now on.
    pub fn abandon(&mut self) {
        self.blocks.abandon();
    }

    /// Opens the object at `bytes` of the cluster whose blocks are present.
    pub fn open<S: Store>(
        &mut self,
        source: &Source<S>,
        place: Place,
        bytes: &Range<usize>,
    ) -> Option<&[u8]> {
        self.opens(source, place, bytes).then(|| &self.object.as_slice()[..bytes.len() - TAG_BYTES])
    }

    /// Whether the object opens; it is in `object` then.
    fn opens<S: Store>(&mut self, source: &Source<S>, place: Place, bytes: &Range<usize>) -> bool {
        let blocks = blocks_of(bytes);
        if !(self.valid.start <= blocks.start && blocks.end <= self.valid.end) {
            return false;
        }
        let first = self.valid.start * BLOCK_BYTES;
        let sealed = &mut self.object.as_mut_slice()[..bytes.len()];
        sealed.copy_from_slice(&self.blocks.buffer(0)[bytes.start - first..bytes.end - first]);
        let opened = source.open(place.offset, sealed).is_ok();
        if !opened {
            self.valid = 0..0;
        }
        opened
    }
}

/// Whether clusters are read in the order in which they were written.
pub struct Direction {
    /// Sequence of the cluster read last.
    last: AtomicU64,
}

impl Direction {
    pub const fn new() -> Direction {
        // Sequences begin with 1, which is not the one after this.
        Direction { last: AtomicU64::new(u64::MAX) }
    }

    /// Notes a read, and says whether it is of the cluster that follows the last one. A guess:
    /// readers may overtake each other.
    fn is_forward(&self, sequence: u64) -> bool {
        let last = self.last.load(Ordering::Relaxed);
        if last != sequence {
            self.last.store(sequence, Ordering::Relaxed);
        }
        sequence == last.wrapping_add(1)
    }
}

/// The place from which a page was loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// In the pool, in a buffer on its way to the store, or in the entry itself.
    Memory,
    /// In the store.
    Store,
}

/// A page was loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loaded {
    pub from: Origin,
    /// Its fingerprint was known when it was looked up.
    pub is_printed: bool,
    /// A copy of it is worth keeping once it has gone back to its owner.
    pub wants_copy: bool,
}

/// An entry as seen under the lock.
enum Seen<'a> {
    Done,
    /// The object stays where it lies until it is copied: codec and pool.
    Pinned(CodecId, u8, Pinned<'a>),
    /// The object is in the stream's buffer: codec and length.
    Copied(CodecId, usize),
    InGroup(Spot),
    InFile,
}

/// Why a load from the file, or from a group, did not end.
pub enum Failure {
    Load(LoadError),
    /// The entry has changed meanwhile.
    Changed,
}

impl<S: Store> SwapCache<S> {
    /// Brings a page back, and says where it was, and what is known of it.
    pub fn swap_in_from(
        &self,
        key: SwapEntry,
        page: &mut Page,
    ) -> core::result::Result<Loaded, LoadError> {
        loop {
            let (left, known) = self.streams.with(|stream| {
                let (out, scratch) = stream.out.as_mut_slice().split_at_mut(PAGE_SIZE);
                match self.look(key, page, out, scratch)? {
                    (Seen::Pinned(codec, pool, pinned), known) => {
                        // Codecs wait for each line of memory that comes; a copy does not.
                        let (object, was_freed) = pinned.copy_to(out);
                        if let Some(freed) = was_freed {
                            self.state.lock().bury_object(pool, freed);
                        }
                        self.unpack(codec, &mut stream.scratch, object, page)?;
                        Ok((Seen::Done, known))
                    }
                    (Seen::Copied(codec, len), known) => {
                        self.unpack(codec, &mut stream.scratch, &out[..len], page)?;
                        Ok((Seen::Done, known))
                    }
                    other => Ok(other),
                }
            })?;
            let loaded = match left {
                Seen::InFile => self.load_from_file(key, page).map(|()| Origin::Store),
                Seen::InGroup(spot) => self.load_from_group(spot, page).map(|()| Origin::Memory),
                _ => Ok(Origin::Memory),
            };
            match loaded {
                Ok(from) => return Ok(Loaded { from, ..known }),
                Err(Failure::Load(why)) => return Err(why),
                Err(Failure::Changed) => {}
            }
        }
    }

    /// Looks an entry up, and takes an object that is in memory. Says what is known of the page.
    #[inline]
    fn look(
        &self,
        key: SwapEntry,
        page: &mut Page,
        out: &mut [u8],
        scratch: &mut [u8],
    ) -> core::result::Result<(Seen<'_>, Loaded), LoadError> {
        let mut guard = self.state.lock();
        let s = &mut *guard;
        let Some(id) = s.lookup(key).filter(|id| s.has_page(*id)) else {
            s.counters.missing_loads += 1;
            return Err(LoadError::NotFound);
        };
        let e = s.entries.get_mut(id);
        e.mark(Mark::Referenced, true);
        e.touch(s.now);
        let e = *e;
        let known = Loaded {
            from: Origin::Memory,
            is_printed: e.is(Mark::Printed),
            wants_copy: s.may_keep(id, self.is_dense()),
        };
        let seen = match e.location() {
            Location::Free | Location::Gone => unreachable!("has a page"),
            Location::Same(word) => {
                s.counters.same_filled_loads += 1;
                drop(guard);
                fill(page, word);
                Seen::Done
            }
            Location::Pool(raw) => {
                s.counters.pool_loads += 1;
                match guard.pin(e.pool, state::handle(raw)) {
                    Some(pinned) => Seen::Pinned(e.codec, e.pool, pinned),
                    None => {
                        contention::note(Slow::Copy);
                        let bytes = state::object(&guard.pools, e.pool, raw, scratch);
                        out[..bytes.len()].copy_from_slice(bytes);
                        Seen::Copied(e.codec, bytes.len())
                    }
                }
            }
            Location::Grouped(member) => {
                s.counters.pool_loads += 1;
                s.counters.group_loads += 1;
                Seen::InGroup(s.groups.spot(member))
            }
            Location::Stored(place) => match s.clusters.buffered(place, usize::from(e.len)) {
                Some(bytes) => {
                    contention::note(Slow::Copy);
                    s.counters.buffer_loads += 1;
                    out[..bytes.len()].copy_from_slice(bytes);
                    Seen::Copied(e.codec, bytes.len())
                }
                None => Seen::InFile,
            },
        };
        Ok((seen, known))
    }

    fn load_from_file(&self, key: SwapEntry, page: &mut Page) -> core::result::Result<(), Failure> {
        let (e, place, source) = {
            let s = self.state.lock();
            let e = *s.entries.get(s.lookup(key).ok_or(Failure::Changed)?);
            let Location::Stored(place) = e.location() else { return Err(Failure::Changed) };
            (e, place, s.clusters.source(place.cluster).ok_or(Failure::Changed)?)
        };
        self.has_io_buffers.store(true, Ordering::Relaxed);
        let is_forward = self.direction.is_forward(source.sequence);
        // The read ahead begins before this read, so that the disk has both.
        let ahead_bytes = if is_forward { self.read_ahead(place.cluster) } else { 0 };
        let read = self.read_object(&e, place, &source, is_forward, page);
        let mut s = self.state.lock();
        s.counters.store_reads += u64::from(ahead_bytes > 0);
        s.counters.store_read_bytes += ahead_bytes as u64;
        match read {
            Ok(read_bytes) => {
                s.counters.store_loads += 1;
                s.counters.incompressible_loads += u64::from(e.codec == RAW);
                let written_bytes = s.clusters.written_since(&source) * CLUSTER_BYTES as u64;
                let is_near = e.codec != RAW && written_bytes < near_bytes(s.pool_bytes() as u64);
                s.counters.near_loads += u64::from(is_near);
                s.counters.read_ahead_hits += u64::from(read_bytes == 0);
                s.counters.store_reads += u64::from(read_bytes > 0);
                s.counters.store_read_bytes += read_bytes as u64;
                Ok(())
            }
            Err(why) => {
                // Is the file wrong, or has the entry another object by now?
                let is_still = s.clusters.is_source(place.cluster, &source)
                    && s.lookup(key)
                        .is_some_and(|id| s.entries.get(id).location() == Location::Stored(place));
                if !is_still {
                    return Err(Failure::Changed);
                }
                match why {
                    LoadError::Io(_) => s.counters.read_errors += 1,
                    _ => s.counters.corrupt_loads += 1,
                }
                Err(Failure::Load(why))
            }
        }
    }

    /// Starts reading the cluster after this one, if there is one and its reader is free; says how
    /// many bytes.
    #[cold]
    fn read_ahead(&self, cluster: u32) -> usize {
        let next = self.state.lock().clusters.following(cluster);
        let Some(next) = next else { return 0 };
        self.reader_of(&next).try_lock().map_or(0, |mut reader| reader.read_ahead(&next))
    }

    fn reader_of(&self, source: &Source<S>) -> &Mutex<Reader> {
        &self.readers[source.sequence as usize % READERS]
    }

    /// Reads, opens and decompresses one object; says how many bytes had to be read.
    fn read_object(
        &self,
        e: &Entry,
        place: Place,
        source: &Source<S>,
        all: bool,
        page: &mut Page,
    ) -> core::result::Result<usize, LoadError> {
        let bytes = sealed_range(place.offset, usize::from(e.len));
        let mut reader = self.reader_of(source).lock();
        let mut read_bytes = reader.fetch(source, &bytes, all).map_err(LoadError::Io)?;
        if !reader.opens(source, place, &bytes) {
            read_bytes += self.open_copy(&mut reader, place, source, &bytes)?;
        }
        let object = &reader.object.as_slice()[..bytes.len() - TAG_BYTES];
        self.streams.with(|stream| self.unpack(e.codec, &mut stream.scratch, object, page))?;
        Ok(read_bytes)
    }

    /// Opens an object that has not opened from one of the copies: one may be wrong by itself. A
    /// copy that cannot be read may be the right one, so it is waited for if no other opens. Says
    /// how many bytes were read.
    #[cold]
    fn open_copy(
        &self,
        reader: &mut Reader,
        place: Place,
        source: &Source<S>,
        bytes: &Range<usize>,
    ) -> core::result::Result<usize, LoadError> {
        let (mut read_bytes, mut unread, mut why) = (0, 0u32, LoadError::Corrupt);
        for waits in [false, true] {
            for copy in 0..source.copies() {
                if waits && unread >> copy & 1 == 0 {
                    continue;
                }
                // The cluster may have died meanwhile, and its place is another's.
                if !self.state.lock().clusters.is_source(place.cluster, source) {
                    return Err(LoadError::Corrupt);
                }
                match reader.fetch_copy(source, copy, waits, bytes) {
                    Ok(n) => read_bytes += n,
                    Err(e) if waits => why = LoadError::Io(e),
                    Err(_) => unread |= 1 << copy,
                }
                if reader.opens(source, place, bytes) {
                    return Ok(read_bytes);
                }
            }
        }
        Err(why)
    }

    /// The page of an object.
    #[inline]
    pub(super) fn unpack(
        &self,
        codec: CodecId,
        scratch: &mut Scratch,
        bytes: &[u8],
        page: &mut [u8],
    ) -> core::result::Result<(), LoadError> {
        if codec == RAW {
            if bytes.len() != page.len() {
                return Err(LoadError::Corrupt);
            }
            page.copy_from_slice(bytes);
            return Ok(());
        }
        self.codecs.decompress(codec, scratch, bytes, page).map_err(|_| LoadError::Corrupt)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{in_memory, loaded};
    use super::*;
    use crate::store::testing::Fault;
    use crate::sys::Errno;
    use crate::testing::noise;

    #[test]
    fn what_a_failed_or_wrong_read_has_left_in_a_buffer_is_not_taken_for_the_cluster() {
        // Fifteen in each cluster; the first and the fifth are read by one reader.
        let (cache, store) = in_memory(usize::MAX);
        let entries: Vec<_> = (0..100).map(|n| cache.swap_out(&noise(n)).unwrap()).collect();
        assert_eq!(cache.counters().cluster_writes, 6);
        let is_right = |n: usize| loaded(&cache, entries[n]) == noise(n as u64);
        let load = |n: usize| cache.swap_in(entries[n], &mut [0; PAGE_SIZE]);
        assert!(is_right(0) && is_right(2), "all of the first is here");
        store.set_fault(Fault::Once(1));
        assert_eq!(load(62), Err(LoadError::Io(Errno::EIO)));
        assert!(is_right(62));
        // Wrong on the way, and right the next time.
        cache.give_buffers_back();
        let turn = || {
            store.corrupt(|disk| {
                disk[4 * CLUSTER_BYTES..5 * CLUSTER_BYTES].iter_mut().for_each(|byte| *byte ^= 1);
            });
        };
        turn();
        assert_eq!(load(62), Err(LoadError::Corrupt));
        turn();
        assert!(is_right(62));
        let c = cache.counters();
        assert_eq!((c.read_errors, c.corrupt_loads), (1, 1));
        cache.check();
    }
}
