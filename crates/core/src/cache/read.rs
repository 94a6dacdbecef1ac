//! Bringing a page back, from wherever it is.
//!
//! What is in memory is copied out under the lock and decompressed without it. What is in the file is read into a
//! reader's buffer with no other lock held; meanwhile the entry may be invalidated, written elsewhere by compaction, its place
//! reused. None of that needs a reference count: the seal names the place and the use of the place, so
//! what opens is what was stored under this entry when the load began; and what does not open is asked about again: if
//! the entry is still where it was, the file is wrong, else the load starts over.
//!
//! # Read-ahead
//! A reader remembers which cluster it read last. A second miss in the same cluster reads the rest of it, and what follows comes
//! from the buffer: pages that were evicted together are wanted together.

use core::ops::Range;

use super::{Location, LoadError, Page, RAW, SwapCache, SwapEntry, entry::Entry, fill};
use crate::pool::Handle;
use crate::store::cluster::{CLUSTER_BYTES, Place, Source, blocks_of, sealed_range};
use crate::store::seal::TAG_BYTES;
use crate::store::{BLOCK_BYTES, Store};
use crate::sys::mem::Mapping;
use crate::sys::{Errno, PAGE_SIZE, Result};

/// Reads that can be under way at the same time. A cluster is always read by the same reader.
pub const READERS: usize = 8;

/// The buffer of one read.
pub struct Reader {
    blocks: Mapping,
    /// One object, taken out of the blocks to be opened in place.
    object: Mapping,
    /// What the blocks are: of the cluster with this sequence number (they never repeat), these.
    sequence: u64,
    valid: Range<usize>,
}

impl Reader {
    pub const BYTES: usize = CLUSTER_BYTES + 2 * PAGE_SIZE;

    pub fn new() -> Result<Reader> {
        Ok(Reader {
            blocks: Mapping::new(CLUSTER_BYTES)?,
            object: Mapping::new(2 * PAGE_SIZE)?,
            sequence: 0,
            valid: 0..0,
        })
    }

    /// Makes the blocks with `bytes` of the cluster present; says how many bytes had to be read.
    fn fetch<S: Store>(&mut self, source: &Source<S>, bytes: &Range<usize>) -> Result<usize> {
        let mut want = blocks_of(bytes);
        let same_cluster = self.sequence == source.sequence;
        if same_cluster && self.valid.start <= want.start && want.end <= self.valid.end {
            return Ok(0);
        }
        if same_cluster {
            want = 0..source.blocks;
        }
        self.valid = 0..0;
        self.sequence = source.sequence;
        source.read(want.clone(), self.blocks.as_mut_slice())?;
        self.valid = want;
        Ok(self.valid.len() * BLOCK_BYTES)
    }

    /// Opens the object at `bytes` of the cluster whose blocks are present.
    fn open<S: Store>(&mut self, source: &Source<S>, place: Place, bytes: &Range<usize>) -> Option<&[u8]> {
        let first = self.valid.start * BLOCK_BYTES;
        let sealed = &mut self.object.as_mut_slice()[..bytes.len()];
        sealed.copy_from_slice(&self.blocks.as_slice()[bytes.start - first..bytes.end - first]);
        let opened = source.open(place.offset, sealed).is_ok();
        if !opened {
            self.valid = 0..0;
            return None;
        }
        Some(&self.object.as_slice()[..bytes.len() - TAG_BYTES])
    }
}

/// What the lock let us see of an entry.
enum Seen<S> {
    Done,
    /// Compressed bytes, copied to the stream's buffer.
    Copied(Entry),
    InFile(Entry, Place, Source<S>),
}

impl<S: Store> SwapCache<S> {
    pub(super) fn load_entry(&self, key: SwapEntry, page: &mut Page) -> core::result::Result<(), LoadError> {
        loop {
            let seen = self.streams.with(|stream| {
                let (out, scratch) = stream.out.as_mut_slice().split_at_mut(PAGE_SIZE);
                let seen = self.look(key, page, out, scratch)?;
                if let Seen::Copied(e) = &seen {
                    let bytes = &out[..usize::from(e.len)];
                    self.unpack(e, &mut stream.scratch, bytes, page)?;
                }
                Ok(seen)
            })?;
            match seen {
                Seen::Done | Seen::Copied(_) => return Ok(()),
                Seen::InFile(e, place, source) => match self.load_from_file(&e, place, &source, page) {
                    Ok(()) => return Ok(()),
                    Err(why) if self.is_still(key, place, &source) => {
                        let mut s = self.state.lock();
                        match why {
                            LoadError::Io(_) => s.counters.read_errors += 1,
                            _ => s.counters.corrupt_loads += 1,
                        }
                        return Err(why);
                    }
                    Err(_) => {}
                },
            }
        }
    }

    /// Looks an entry up, and takes what is in memory.
    fn look(
        &self,
        key: SwapEntry,
        page: &mut Page,
        out: &mut [u8],
        scratch: &mut [u8],
    ) -> core::result::Result<Seen<S>, LoadError> {
        let mut guard = self.state.lock();
        let s = &mut *guard;
        let Some(id) = s.lookup(key) else {
            s.counters.missing_loads += 1;
            return Err(LoadError::NotFound);
        };
        let e = s.entries.get_mut(id);
        e.referenced = 1;
        let e = *e;
        match e.location() {
            Location::Free => unreachable!("looked up"),
            Location::Same(word) => {
                s.counters.same_filled_loads += 1;
                drop(guard);
                fill(page, word);
                Ok(Seen::Done)
            }
            Location::Pool(raw) => {
                s.counters.pool_loads += 1;
                let handle = Handle::from_raw(raw).expect("an entry keeps a handle");
                let bytes = s.pools[usize::from(e.pool)].read(handle, scratch);
                out[..bytes.len()].copy_from_slice(bytes);
                Ok(Seen::Copied(e))
            }
            Location::Stored(place) => {
                if let Some(bytes) = s.clusters.buffered(place, usize::from(e.len)) {
                    s.counters.buffer_loads += 1;
                    out[..bytes.len()].copy_from_slice(bytes);
                    return Ok(Seen::Copied(e));
                }
                Ok(Seen::InFile(e, place, s.clusters.source(place.cluster)))
            }
        }
    }

    fn load_from_file(
        &self,
        e: &Entry,
        place: Place,
        source: &Source<S>,
        page: &mut Page,
    ) -> core::result::Result<(), LoadError> {
        let bytes = sealed_range(place.offset, usize::from(e.len));
        let mut reader = self.readers[place.cluster as usize % READERS].lock();
        let read_bytes = reader.fetch(source, &bytes).map_err(LoadError::Io)? as u64;
        let object = reader.open(source, place, &bytes).ok_or(LoadError::Corrupt)?;
        if e.codec == RAW {
            self.unpack_raw(object, page)?;
        } else {
            self.streams.with(|stream| self.unpack(e, &mut stream.scratch, object, page))?;
        }
        drop(reader);
        let c = &mut self.state.lock().counters;
        c.store_loads += 1;
        c.read_ahead_hits += u64::from(read_bytes == 0);
        c.store_reads += u64::from(read_bytes > 0);
        c.store_read_bytes += read_bytes;
        Ok(())
    }

    fn unpack(
        &self,
        e: &Entry,
        scratch: &mut crate::codec::Scratch,
        bytes: &[u8],
        page: &mut Page,
    ) -> core::result::Result<(), LoadError> {
        if e.codec == RAW {
            return self.unpack_raw(bytes, page);
        }
        self.codecs.decompress(e.codec, scratch, bytes, page).map_err(|_| LoadError::Corrupt)
    }

    fn unpack_raw(&self, bytes: &[u8], page: &mut Page) -> core::result::Result<(), LoadError> {
        let raw: &Page = bytes.try_into().map_err(|_| LoadError::Corrupt)?;
        page.copy_from_slice(raw);
        Ok(())
    }

    /// Whether the entry is still the object that was read.
    fn is_still(&self, key: SwapEntry, place: Place, source: &Source<S>) -> bool {
        let s = self.state.lock();
        s.lookup(key).is_some_and(|id| s.entries.get(id).location() == Location::Stored(place))
            && s.clusters.is_source(place.cluster, source)
    }

    /// Puts what can be read of a whole cluster into `reader` (for compaction).
    pub(super) fn fetch_all(&self, reader: &mut Reader, source: &Source<S>) -> core::result::Result<(), Errno> {
        reader.fetch(source, &(0..source.blocks * BLOCK_BYTES)).map(drop)
    }

    pub(super) fn open_in<'a>(
        &self,
        reader: &'a mut Reader,
        source: &Source<S>,
        place: Place,
        len: usize,
    ) -> Option<&'a [u8]> {
        reader.open(source, place, &sealed_range(place.offset, len))
    }
}
