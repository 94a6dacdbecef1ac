//! The backing store: where compressed pages go that have no place in memory any more.
//!
//! ```text
//!   cache/   objects: compressed pages, each with its entry
//!     |        packed together by 64 KiB: what is evicted together is written together
//!   cluster  a 64 KiB place in a file, known by a sequence number that never comes back
//!     |        each object sealed (encrypted and authenticated) by its cluster's number and its offset
//!   Store    read, write, discard; fork and descriptors
//!     |
//!   file     one unlinked sparse file per process; gone with the process, whatever happens to it
//!   device   extents of a block device
//!   remote   extents of the exports of NBD servers, on one or two of them
//!   valkey   values of Valkey and Redis servers, one for each cluster
//! ```
//!
//! [`Store`] is the narrow seam: a flat array of bytes outside memory. It knows nothing of pages,
//! of compression or of encryption, so a twin that fails on demand stands in for it in tests.

mod any;
pub mod cluster;
mod device;
pub mod extents;
mod file;
pub mod remote;
pub mod seal;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod valkey;

pub use any::AnyStore;
pub use cluster::{CLUSTER_BYTES, Clusters};
pub use device::DeviceStore;
pub use file::{FileStore, PageCache};

use crate::sys::Result;
use crate::sys::aio::AioQueue;
use crate::sys::file::Fd;
use remote::RemoteCounts;

/// Reads and writes start at a multiple of this, and so do their lengths and their buffers'
/// addresses.
pub const BLOCK_BYTES: usize = 4096;

/// Writes that can be under way at the same time.
pub const QUEUE_DEPTH: usize = 2;
/// One buffer per write under way, and one to seal the next cluster in meanwhile.
pub const QUEUE_BUFFERS: usize = QUEUE_DEPTH + 1;
/// Descriptors that all stores of a process have in common: two links to each node of the largest
/// Cluster.
pub const DESCRIPTORS: usize = 2 * valkey::NODES_MOST;
/// The buffers to write from.
pub type Queue = AioQueue<QUEUE_BUFFERS>;
/// The buffer to read into.
pub type ReadQueue = AioQueue<1>;

/// How far a write has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Ended(Result<()>),
    /// The queue will have the result.
    Queued,
}

/// A flat, sparse array of bytes outside memory.
///
/// A value is a handle: copying it copies no data, and the owner of the store closes one copy,
/// once. No method may allocate or take a lock for long: they run in the program's fault handler.
pub trait Store: Copy + Send + Sync {
    /// Reads exactly `buf.len()` bytes.
    fn read(self, at: u64, buf: &mut [u8]) -> Result<()>;

    /// Starts reading into the first `len` bytes of the queue's buffer; the queue will have the
    /// result. False if nothing was started: reading ahead is a favour, and a load that needs the
    /// bytes reads them.
    fn read_ahead(self, queue: &mut ReadQueue, at: u64, len: usize) -> bool;

    /// Starts writing the first `len` bytes of a buffer of the queue. When it fails, then or later,
    /// the range's contents are undefined.
    fn write(self, queue: &mut Queue, slot: usize, at: u64, len: usize) -> Progress;

    /// Gives the space of a range back. The contents are undefined afterwards. Best effort.
    fn discard(self, at: u64, len: u64);

    /// Collects the results of writes that have come; with `waits`, of one at least if any is under
    /// way.
    fn collect(self, queue: &mut Queue, waits: bool) {
        queue.reap(waits);
    }

    /// Copies of a place that can be read by themselves; 0: there is only `read`.
    fn copies(self, _at: u64) -> usize {
        0
    }

    /// Reads from the copy of that number: for a caller that got bytes from `read` that are not
    /// those that were written. `waits`: for it alone, as long as `read` does.
    fn read_copy(self, _copy: usize, _waits: bool, at: u64, buf: &mut [u8]) -> Result<()> {
        self.read(at, buf)
    }

    /// A new, empty store of the same kind in the same place: for the child after fork, which
    /// shares this one with its parent and must not write to it.
    fn fresh(self) -> Result<Self>;

    /// Gives all its space back. `fresh` still works afterwards, nothing else does.
    fn close(self);

    /// Gives back the things that `fresh` needs. The last call of all.
    fn end(self) {}

    /// In the child after fork, once for all stores of a kind. `is_needed`: there is something in
    /// them that the child may read.
    fn in_child(self, _is_needed: bool) {}

    /// Whether a child after fork reads its parent's bytes here, not a copy of them.
    fn is_inherited(self) -> bool;

    /// The descriptor that `close` closes, and that the program must not be able to close; -1:
    /// none.
    fn descriptor(self) -> Fd {
        -1
    }

    /// The descriptors that all stores of the kind have in common; -1: none.
    fn shared_descriptors(self) -> [Fd; DESCRIPTORS] {
        [-1; DESCRIPTORS]
    }

    /// Events so far of a store on other machines.
    fn remote_counts(self) -> RemoteCounts {
        RemoteCounts::default()
    }
}
