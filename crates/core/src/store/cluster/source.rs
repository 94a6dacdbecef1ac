//! Reading of written clusters: a source carries all that its reads need, and runs without the lock
//! of the clusters.

use core::ops::Range;

use super::super::seal::{NotAuthentic, Seal, TAG_BYTES, Use};
use super::super::{BLOCK_BYTES, ReadQueue, Store};
use super::record::State;
use super::{Clusters, NONE};
use crate::sys::Result;

/// One written cluster, to be read from.
#[derive(Clone)]
pub struct Source<S> {
    store: S,
    seal: Seal,
    /// The name of the contents, together with the file.
    pub sequence: u64,
    salt: u32,
    pub file: u8,
    at: u64,
    /// Blocks that were written.
    pub blocks: usize,
}

impl<S: Store> Source<S> {
    /// Reads some of the cluster's blocks.
    pub fn read(&self, blocks: Range<usize>, buf: &mut [u8]) -> Result<()> {
        let at = self.at + (blocks.start * BLOCK_BYTES) as u64;
        self.store.read(at, &mut buf[..blocks.len() * BLOCK_BYTES])
    }

    /// Copies of the cluster that can be asked for by themselves.
    pub fn copies(&self) -> usize {
        self.store.copies(self.at)
    }

    /// Reads one copy, as `read` does; `waits`: as patiently, too.
    pub fn read_copy(
        &self,
        copy: usize,
        waits: bool,
        blocks: Range<usize>,
        buf: &mut [u8],
    ) -> Result<()> {
        let at = self.at + (blocks.start * BLOCK_BYTES) as u64;
        self.store.read_copy(copy, waits, at, &mut buf[..blocks.len() * BLOCK_BYTES])
    }

    /// Starts reading all of the cluster's blocks; false if it cannot be done ahead.
    pub fn read_ahead(&self, queue: &mut ReadQueue) -> bool {
        self.store.read_ahead(queue, self.at, self.blocks * BLOCK_BYTES)
    }

    /// Opens the object whose `sealed` bytes were read from `offset`.
    pub fn open<'a>(
        &self,
        offset: u16,
        sealed: &'a mut [u8],
    ) -> core::result::Result<&'a [u8], NotAuthentic> {
        self.seal.open(Use { sequence: self.sequence, salt: self.salt }, offset, sealed)
    }
}

/// The bytes of a cluster in which an object of `len` bytes at `offset` lies, with its tag.
pub fn sealed_range(offset: u16, len: usize) -> Range<usize> {
    usize::from(offset)..usize::from(offset) + len + TAG_BYTES
}

/// The blocks of a cluster in which a range of its bytes lies.
pub fn blocks_of(bytes: &Range<usize>) -> Range<usize> {
    bytes.start / BLOCK_BYTES..bytes.end.div_ceil(BLOCK_BYTES)
}

impl<S: Store> Clusters<S> {
    /// The source to read the objects of a cluster from; `None` while they are in memory.
    pub fn source(&self, cluster: u32) -> Option<Source<S>> {
        let c = self.records.get(cluster);
        if c.state() != State::Written {
            return None;
        }
        let f = self.files[usize::from(c.file)].as_ref().expect("a file with objects is open");
        Some(Source {
            store: f.store,
            seal: f.seal.clone(),
            file: c.file,
            sequence: c.sequence,
            salt: c.salt,
            at: c.at(),
            blocks: usize::from(c.blocks),
        })
    }

    /// How many clusters have been written since `source`.
    pub fn written_since(&self, source: &Source<S>) -> u64 {
        self.next_sequence - source.sequence - 1
    }

    /// Whether `cluster` is still the one that `source` reads from.
    pub fn is_source(&self, cluster: u32, source: &Source<S>) -> bool {
        let c = self.records.get(cluster);
        c.state() == State::Written && (c.sequence, c.file) == (source.sequence, source.file)
    }

    /// The source of the cluster that was written after this one to the same file, if it is still
    /// there.
    pub fn following(&self, cluster: u32) -> Option<Source<S>> {
        let c = self.records.get(cluster);
        if c.state() != State::Written || c.next == NONE {
            return None;
        }
        // The link is a hint: by now the record may stand for something else.
        self.source(c.next).filter(|next| (next.sequence, next.file) == (c.sequence + 1, c.file))
    }
}
