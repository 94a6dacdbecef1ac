//! Clusters: 64 KiB units in which compressed pages are packed, written, found again and given
//! back.
//!
//! ```text
//!      append         no room left      begin_flush          end_flush: ok
//! new --------> OPEN ------------> FULL -----------> WRITING -------------> WRITTEN
//!                                   ^                   |                      | last object released
//!                                   +-------------------+                      v
//!                                    end_flush: failed          its place: IDLE (to be written again)
//!                                    (stays in memory)            or DEFERRED (a forked child may read it)
//! ```
//!
//! Objects of an OPEN, FULL or WRITING cluster are served from its buffer in memory, those of a
//! WRITTEN one from the file. So writing back moves an object from the pool into the open cluster
//! in one step under the lock, and the write itself concerns no object any more. An object that is
//! released while its cluster is being written needs no care. One that is loaded meanwhile is
//! copied out of the buffer. When the write fails nothing has to be brought back. At any time there
//! is one open cluster, and at most [`QUEUE_BUFFERS`] are being sealed or written.
//!
//! # Vocabulary
//! *Object*: bytes that the owner appended, known by a [`Place`]. *Cluster id*: index of a record
//! here; an id is free for use again when its cluster has died. *Slot*: a 64 KiB place in the file.
//! *Sequence*: the number of a flush; never comes back, so it names one use of one slot (`seal.rs`
//! builds on that).
//!
//! # The file and fork
//! Fork copies memory but shares files. So after a fork the parent may not touch the slots that the
//! child can still read, and the child may not write to the parent's file at all: see
//! `prepare_fork`.
//!
//! Nothing here locks: the cache guards the whole of `Clusters` with its own lock. Jobs ([`Flush`],
//! [`Source`], [`Discard`]) carry all that the I/O needs, and run with that lock released.

mod buffer;
mod check;
mod flush;
mod fork;
#[cfg(any(test, feature = "testing"))]
pub mod model;
mod places;
mod record;
mod source;

use core::ops::Range;

pub use flush::Flush;
pub use fork::Leash;
pub use places::Discard;
pub use source::{Source, blocks_of, sealed_range};

use super::remote::RemoteCounts;
pub use super::seal::MAX_OBJECT_BYTES;
use super::seal::{Encryption, Seal, TAG_BYTES};
use super::{BLOCK_BYTES, QUEUE_BUFFERS, Store};
use crate::sys::file::{self, Fd};
use crate::sys::{Errno, Result};
use buffer::{Buffer, BufferState, make_buffers};
use fork::Snapshots;
use record::{ListName, Records, State};

pub const CLUSTER_BYTES: usize = 64 << 10;
/// One buffer per flush under way, and one to append to meanwhile.
const BUFFERS: usize = QUEUE_BUFFERS + 1;
/// Two bytes of length stand before each object: a flush has to find the objects, dead ones too.
const LENGTH_BYTES: usize = 2;
/// Files that one process can have: its own and those of its ancestors that it still reads from. A
/// child that would need more has no store of its own: it writes nothing back (`EMFILE`) until an
/// ancestor's file has served its last page.
const MAX_FILES: usize = 16;

/// No cluster, no object, no list member.
pub const NONE: u32 = u32::MAX;

/// Where an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub cluster: u32,
    pub offset: u16,
}

/// A file that clusters of ours are in.
struct File<S> {
    store: S,
    seal: Seal,
    /// Written clusters in it that are alive. An inherited file without any is closed.
    live_clusters: u32,
    next_slot: u32,
    /// The end of a pipe that tells the owner of an inherited file that we may still read it.
    leash: Option<Fd>,
}

/// Figures of the store, in bytes and clusters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClusterStats {
    pub live_clusters: u64,
    pub live_bytes: u64,
    /// Disk space in the process's own file.
    pub disk_bytes: u64,
    pub idle_clusters: u64,
    pub deferred_clusters: u64,
    pub snapshots: u64,
}

/// All clusters of one cache.
pub struct Clusters<S: Store> {
    records: Records,
    buffers: [Buffer; BUFFERS],
    /// Buffers that are not in use have no memory.
    are_buffers_bare: bool,
    open: Option<usize>,
    files: [Option<File<S>>; MAX_FILES],
    /// The file that this process writes to.
    own: Option<usize>,
    /// The store that gives a new file, after fork.
    origin: Option<S>,
    encryption: Encryption,
    next_sequence: u64,
    /// The cluster whose flush began last.
    last_flushed: u32,
    /// Forks whose children may still read the own file.
    snapshots: Snapshots,
    failure: Option<Errno>,
    compact_hand: u32,
    live_bytes: u64,
    /// Of the own file: disk blocks of all slots, and of those that are alive.
    disk_blocks: u64,
    written_blocks: u64,
    written_bytes: u64,
}

/// The reason why an object was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendError {
    /// All buffers are full: flush one, then try again.
    Full,
    /// There is no store, or it does not take writes any more.
    Unwritable,
}

impl<S: Store> Clusters<S> {
    /// The clusters of a store, which is theirs from now on: where there is no memory for them it
    /// is closed.
    pub fn new(store: Option<S>, encryption: Encryption) -> Result<Clusters<S>> {
        let made = Self::make(store, encryption);
        if let (Err(_), Some(store)) = (&made, store) {
            store.close();
            store.end();
        }
        made
    }

    fn make(store: Option<S>, encryption: Encryption) -> Result<Clusters<S>> {
        let mut files = [const { None }; MAX_FILES];
        if let Some(store) = store {
            files[0] = Some(File {
                store,
                seal: Seal::new(encryption)?,
                live_clusters: 0,
                next_slot: 0,
                leash: None,
            });
        }
        Ok(Clusters {
            records: Records::new(),
            buffers: make_buffers()?,
            are_buffers_bare: true,
            open: None,
            own: store.map(|_| 0),
            origin: store,
            files,
            encryption,
            next_sequence: 1,
            last_flushed: NONE,
            snapshots: Snapshots::new(),
            failure: None,
            compact_hand: 0,
            live_bytes: 0,
            disk_blocks: 0,
            written_blocks: 0,
            written_bytes: 0,
        })
    }

    /// Whether objects can be appended: there is a store, and it has not failed.
    pub fn is_writable(&self) -> bool {
        self.origin.is_some() && self.failure.is_none()
    }

    /// Takes an object into the open cluster.
    pub fn append(&mut self, object: &[u8]) -> core::result::Result<Place, AppendError> {
        assert!(!object.is_empty() && object.len() <= MAX_OBJECT_BYTES);
        if !self.is_writable() {
            return Err(AppendError::Unwritable);
        }
        let need = LENGTH_BYTES + object.len() + TAG_BYTES;
        if let Some(b) = self.open
            && self.buffers[b].used + need > CLUSTER_BYTES
        {
            self.buffers[b].state = BufferState::Full;
            self.open = None;
        }
        let b = match self.open {
            Some(b) => b,
            None => self.open_buffer()?,
        };
        let buffer = &mut self.buffers[b];
        let start = buffer.used + LENGTH_BYTES;
        let bytes = buffer.bytes.as_mut_slice();
        bytes[buffer.used..start].copy_from_slice(&(object.len() as u16).to_le_bytes());
        bytes[start..start + object.len()].copy_from_slice(object);
        buffer.used += need;
        let id = buffer.cluster;
        let c = self.records.get_mut(id);
        c.live += 1;
        c.live_bytes += object.len() as u32;
        self.live_bytes += object.len() as u64;
        Ok(Place { cluster: id, offset: start as u16 })
    }

    /// Lets go of an object of `len` bytes.
    pub fn release(&mut self, place: Place, len: usize) {
        let c = self.records.get_mut(place.cluster);
        assert!(c.live > 0 && c.live_bytes >= len as u32, "an object is released once");
        c.live -= 1;
        c.live_bytes -= len as u32;
        let c = *c;
        self.live_bytes -= len as u64;
        if c.state() == State::Written && Some(usize::from(c.file)) == self.own {
            self.written_bytes -= len as u64;
        }
        if c.live > 0 {
            return;
        }
        match c.state() {
            State::Written => self.retire(place.cluster),
            State::Buffered => {
                let b = usize::from(c.buffer);
                match self.buffers[b].state {
                    // Nobody needs the cluster any more, written or not.
                    BufferState::Full => self.drop_buffer(b),
                    // An emptied cluster can be filled again from the start: no object refers to
                    // it.
                    BufferState::Open => self.buffers[b].used = 0,
                    BufferState::Writing | BufferState::Unused => {}
                }
            }
            s => unreachable!("an object in a cluster that is {s:?}"),
        }
    }

    /// The first of the owner's objects in this cluster.
    pub fn first(&self, id: u32) -> u32 {
        self.records.get(id).first
    }

    pub fn set_first(&mut self, id: u32, first: u32) {
        self.records.get_mut(id).first = first;
    }

    fn close_file(&mut self, i: usize) {
        if let Some(f) = self.files[i].take() {
            f.store.close();
            if let Some(leash) = f.leash {
                file::close(leash);
            }
        }
    }

    // ---- Accounts

    /// Events so far of a store on other machines.
    pub fn remote_counts(&self) -> RemoteCounts {
        self.origin.map_or(RemoteCounts::default(), Store::remote_counts)
    }

    pub fn stats(&self) -> ClusterStats {
        ClusterStats {
            live_clusters: self.files.iter().flatten().map(|f| u64::from(f.live_clusters)).sum(),
            live_bytes: self.live_bytes,
            disk_bytes: self.disk_blocks * BLOCK_BYTES as u64,
            idle_clusters: u64::from(
                self.records.len(ListName::Idle) + self.records.len(ListName::Holes),
            ),
            deferred_clusters: u64::from(self.records.len(ListName::Deferred)),
            snapshots: self.snapshots.len() as u64,
        }
    }

    /// Memory of records, and of buffers once they are used.
    pub fn memory_bytes(&self) -> usize {
        self.records.memory_bytes() + self.buffers_bytes()
    }

    /// Ids of all records, in any state.
    pub fn ids(&self) -> Range<u32> {
        self.records.ids()
    }

    /// Whether this record holds live objects: (objects, their bytes).
    pub fn live(&self, id: u32) -> Option<(u32, u32)> {
        let c = self.records.get(id);
        matches!(c.state(), State::Buffered | State::Written)
            .then_some((u32::from(c.live), c.live_bytes))
    }
}

impl<S: Store> Drop for Clusters<S> {
    fn drop(&mut self) {
        self.snapshots.clear();
        for i in 0..MAX_FILES {
            self.close_file(i);
        }
        if let Some(origin) = self.origin {
            origin.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Fault, MemoryStore};
    use super::super::{FileStore, Progress, Queue};
    use super::places::SET_ASIDE_MOST;
    use super::*;
    use crate::sys::file::testing;
    use crate::sys::mem::Mapping;
    use crate::testing::object;

    fn clusters() -> (Clusters<MemoryStore>, Queue) {
        let clusters = Clusters::new(Some(MemoryStore::new()), Encryption::On).expect("memory");
        (clusters, Queue::new(CLUSTER_BYTES).expect("memory"))
    }

    /// Appends objects until a cluster is full, and the next one has one.
    fn fill(c: &mut Clusters<MemoryStore>) -> Vec<Place> {
        let mut places = Vec::new();
        while !c.has_full() {
            let number = places.len() as u64;
            places.push(c.append(&object(number, MAX_OBJECT_BYTES)).expect("there is a buffer"));
        }
        places
    }

    /// Writes a full cluster; `None`: it cannot be begun.
    fn flush(c: &mut Clusters<MemoryStore>, queue: &mut Queue) -> Option<Result<()>> {
        let flush = c.begin_flush(queue.buffer(0))?;
        flush.seal(queue.buffer(0));
        let Progress::Ended(result) = flush.start(queue, 0) else {
            panic!("it is written at once")
        };
        c.end_flush(flush, result);
        Some(result)
    }

    /// Lets go of those that are in the cluster of the first one.
    fn release(c: &mut Clusters<MemoryStore>, places: &mut Vec<Place>) {
        let id = places[0].cluster;
        let is_there = |p: &mut Place| p.cluster == id;
        places.extract_if(.., is_there).for_each(|p| c.release(p, MAX_OBJECT_BYTES));
    }

    #[test]
    fn a_store_whose_clusters_find_no_memory_is_closed() {
        let directory = std::env::temp_dir();
        let store = FileStore::open(directory.as_os_str().as_encoded_bytes()).expect("a file");
        let child = testing::fork(|| {
            testing::limit_address_space(0);
            let made = Clusters::new(Some(store), Encryption::On);
            let fds = [store.descriptor(), store.shared_descriptors()[0]];
            let are_closed = fds.iter().all(|fd| file::disk_bytes(*fd) == Err(Errno::EBADF));
            made.err() == Some(Errno::ENOMEM) && are_closed
        });
        assert_eq!(testing::wait(child), 0);
        store.close();
        store.end();
    }

    #[test]
    fn a_process_with_too_many_files_of_ancestors_writes_again_once_one_has_served() {
        let (mut c, mut queue) = clusters();
        let mut places = Vec::new();
        for _ in 0..MAX_FILES {
            places.extend(fill(&mut c));
            assert_eq!(flush(&mut c, &mut queue), Some(Ok(())));
            let leash = c.prepare_fork();
            c.in_child(leash);
        }
        fill(&mut c);
        assert_eq!((flush(&mut c, &mut queue), c.failure()), (None, Some(Errno::EMFILE)));
        assert_eq!(c.append(&[1]), Err(AppendError::Unwritable));
        release(&mut c, &mut places);
        assert_eq!((c.failure(), flush(&mut c, &mut queue)), (None, Some(Ok(()))));
        c.check();
    }

    #[test]
    fn a_buffer_counts_until_its_memory_has_gone_back() {
        let (mut c, mut queue) = clusters();
        assert_eq!(c.buffers_bytes(), 0);
        for is_written in [false, true] {
            let mut places = fill(&mut c);
            assert_eq!(c.buffers_bytes(), BUFFERS * CLUSTER_BYTES);
            c.give_buffers_back();
            assert_eq!(c.buffers_bytes(), 2 * CLUSTER_BYTES, "one is full and one open");
            if is_written {
                assert_eq!(flush(&mut c, &mut queue), Some(Ok(())));
            } else {
                release(&mut c, &mut places);
            }
            assert!(c.buffers_bytes() >= 2 * CLUSTER_BYTES, "written: {is_written}");
            c.give_buffers_back();
            assert_eq!(c.buffers_bytes(), CLUSTER_BYTES);
            c.check();
        }
    }

    #[test]
    fn a_cluster_is_filled_to_its_last_byte() {
        const LARGE: usize = 15;
        let (mut c, mut queue) = clusters();
        let overhead = LENGTH_BYTES + TAG_BYTES;
        let last = CLUSTER_BYTES - LARGE * (MAX_OBJECT_BYTES + overhead) - overhead;
        let lens = [[MAX_OBJECT_BYTES; LARGE].as_slice(), &[last]].concat();
        let append =
            |c: &mut Clusters<MemoryStore>, len: &usize| c.append(&object(3, *len)).unwrap();
        let places: Vec<_> = lens.iter().map(|len| append(&mut c, len)).collect();
        assert!(places.iter().all(|p| p.cluster == places[0].cluster) && !c.has_full());
        assert_eq!(sealed_range(places[LARGE].offset, last).end, CLUSTER_BYTES);
        assert_ne!(append(&mut c, &1).cluster, places[0].cluster);
        assert_eq!(flush(&mut c, &mut queue), Some(Ok(())));
        assert_eq!(c.stats().disk_bytes, CLUSTER_BYTES as u64);
        let source = c.source(places[0].cluster).expect("it is written");
        let mut all = Mapping::new(CLUSTER_BYTES).expect("memory");
        source.read(0..source.blocks, all.as_mut_slice()).unwrap();
        for (place, len) in places.iter().zip(&lens) {
            let sealed = &mut all.as_mut_slice()[sealed_range(place.offset, *len)];
            assert_eq!(source.open(place.offset, sealed), Ok(&object(3, *len)[..]));
        }
        c.check();
    }

    #[test]
    fn a_trial_writes_beside_the_place_that_takes_nothing() {
        let (mut c, mut queue) = clusters();
        let store = c.origin.expect("it has one");
        store.set_fault(Fault::WritesTo(0));
        fill(&mut c);
        assert_eq!(flush(&mut c, &mut queue), Some(Err(Errno::EIO)));
        assert_eq!((flush(&mut c, &mut queue), c.failure()), (None, Some(Errno::EIO)));
        c.clear_failure();
        assert_eq!(flush(&mut c, &mut queue), Some(Ok(())));
        fill(&mut c);
        assert_eq!((flush(&mut c, &mut queue), c.failure()), (Some(Ok(())), None));
        c.check();
        // A child has a file of its own, and the place there is another.
        let leash = c.prepare_fork();
        c.in_child(leash);
        c.check();
    }

    #[test]
    fn places_that_fail_are_set_aside_while_they_are_few() {
        let (mut c, mut queue) = clusters();
        let store = c.origin.expect("it has one");
        store.set_fault(Fault::From(1));
        fill(&mut c);
        for _ in 0..4 * SET_ASIDE_MOST {
            assert_eq!(flush(&mut c, &mut queue), Some(Err(Errno::EIO)));
            c.clear_failure();
            c.check();
        }
        let own = |c: &Clusters<MemoryStore>| c.files[0].as_ref().expect("its own").next_slot;
        assert_eq!(own(&c), SET_ASIDE_MOST + 1);
        store.set_fault(Fault::Never);
        assert_eq!(flush(&mut c, &mut queue), Some(Ok(())));
        assert_eq!(own(&c), SET_ASIDE_MOST + 1);
        c.check();
    }

    #[test]
    fn a_cluster_is_followed_by_the_one_that_was_written_next_to_its_file() {
        let (mut c, mut queue) = clusters();
        let mut write = |c: &mut Clusters<MemoryStore>| {
            let id = fill(c)[0].cluster;
            assert_eq!(flush(c, &mut queue), Some(Ok(())));
            id
        };
        let ids = [(); 3].map(|()| write(&mut c));
        let following = |c: &Clusters<MemoryStore>, of: usize| {
            let next = c.following(ids[of])?;
            ids.iter().position(|id| c.is_source(*id, &next))
        };
        assert_eq!([0, 1, 2].map(|of| following(&c, of)), [Some(1), Some(2), None]);
        let leash = c.prepare_fork();
        c.in_child(leash);
        let own = write(&mut c);
        assert!(c.following(ids[2]).is_none(), "it is in another file");
        assert!(c.following(own).is_none() && c.source(own).is_some());
        assert_eq!(following(&c, 1), Some(2));
        c.check();
    }
}
