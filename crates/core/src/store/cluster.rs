//! Clusters: 64 KiB units in which compressed pages are packed, written, found again and given back.
//!
//! ```text
//!             append                begin_flush            end_flush: ok
//!   (new) ---------------> OPEN ------------------> WRITING ------------> WRITTEN
//!                           ^                          |                     | last object released
//!                           +---- end_flush: failed ---+                     v
//!                             (stays in memory, FULL)              its place: IDLE  (written again by anybody)
//!                                                                          or DEFERRED (a forked child may read it)
//! ```
//!
//! Objects of an OPEN, FULL or WRITING cluster are served from its buffer in memory, those of a WRITTEN one from the
//! file. So writing back moves an object from the pool into the open cluster in one step under the lock, and
//! the write itself concerns no object any more: an object released while its cluster is being written needs no
//! care, one that is loaded meanwhile is copied out of the buffer, and when the write fails nothing has
//! to be brought back. At any time there is one open cluster, and at most [`WRITERS`] are being written.
//!
//! # Vocabulary
//! *Object*: bytes that the owner appended, known by a [`Place`]. *Cluster id*: index of a record here; an id is free for
//! use again when its cluster has died. *Slot*: a 64 KiB place in the file. *Sequence*: the number of a flush; never comes
//! back, so it names one use of one slot (`seal.rs` builds on that).
//!
//! # The file and fork
//! Fork copies memory but shares files. So after a fork the parent may not touch the slots that the child can
//! still read, and the child may not write to the parent's file at all: see `prepare_fork`.
//!
//! Nothing here locks: the cache guards the whole of `Clusters` with its own lock. Jobs ([`Flush`], [`Read`]) carry all that the
//! I/O needs, and run with that lock released.

use core::ops::Range;

use super::seal::{Encryption, NotAuthentic, Seal, TAG_BYTES};
use super::{BLOCK_BYTES, Store};
use crate::sys::file::{self, Fd};
use crate::sys::mem::{Mapping, Table};
use crate::sys::{Errno, Result};

pub const CLUSTER_BYTES: usize = 64 << 10;
/// Flushes that can be under way at the same time.
pub const WRITERS: usize = 2;
/// One buffer per flush under way, and one to append to meanwhile.
const BUFFERS: usize = WRITERS + 1;
/// Two bytes of length stand before each object: a flush has to find the objects, dead ones too.
const LENGTH_BYTES: usize = 2;
/// The largest object.
pub const MAX_OBJECT_BYTES: usize = 4096;
/// Files that one process can have: its own and those of its ancestors that it still reads from. A child that
/// would need more has no store of its own: it writes nothing back (`EMFILE`) until an ancestor's file has served its last page.
const MAX_FILES: usize = 16;
/// Forks whose children may still read our file. With more than that, what was written before the fork is never
/// reused in this process: it costs disk, nothing else.
const MAX_SNAPSHOTS: usize = 64;
/// Idle slots keep their disk blocks for the next writes up to this many, or a quarter of the live ones.
const IDLE_SLOTS_KEPT: u32 = 64;
/// Disk space beyond twice the live bytes that is not worth compacting for.
const COMPACT_SLACK_BYTES: u64 = 4 << 20;
/// Records looked at in one search for a sparse cluster.
const COMPACT_SCAN: u32 = 512;
/// Flushes between two looks at whether forked children have gone.
const SNAPSHOT_POLL_FLUSHES: u64 = 16;

/// No cluster, no object, no list member.
pub const NONE: u32 = u32::MAX;

/// Where an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub cluster: u32,
    pub offset: u16,
}

#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Unused = 0,
    Buffered = 1,
    Written = 2,
    Idle = 3,
    Deferred = 4,
    Punching = 5,
}

/// One cluster. All zero: unused.
#[derive(Clone, Copy)]
struct Cluster {
    sequence: u64,
    /// The place in the file, in units of a cluster. Only of what was written.
    slot: u32,
    /// The first of the owner's objects, in a list that the owner keeps.
    first: u32,
    /// The next record in the list that this one is in: unused, idle or deferred.
    next: u32,
    live_bytes: u32,
    live: u16,
    state: u8,
    file: u8,
    /// Blocks of the last flush.
    blocks: u8,
    /// Blocks of the slot that take disk space.
    disk_blocks: u8,
    buffer: u8,
    pad: u8,
}
crate::zeroable!(Cluster {
    sequence: u64, slot: u32, first: u32, next: u32, live_bytes: u32, live: u16, state: u8, file: u8,
    blocks: u8, disk_blocks: u8, buffer: u8, pad: u8,
});

impl Cluster {
    const UNUSED: Cluster = Cluster {
        sequence: 0,
        slot: 0,
        first: NONE,
        next: NONE,
        live_bytes: 0,
        live: 0,
        state: State::Unused as u8,
        file: 0,
        blocks: 0,
        disk_blocks: 0,
        buffer: 0,
        pad: 0,
    };

    fn state(&self) -> State {
        match self.state {
            0 => State::Unused,
            1 => State::Buffered,
            2 => State::Written,
            3 => State::Idle,
            4 => State::Deferred,
            _ => State::Punching,
        }
    }

    fn at(&self) -> u64 {
        u64::from(self.slot) * CLUSTER_BYTES as u64
    }
}

/// A singly linked list of records.
#[derive(Clone, Copy)]
struct List {
    head: u32,
    len: u32,
}

const EMPTY: List = List { head: NONE, len: 0 };

#[derive(Clone, Copy)]
enum ListName {
    Unused,
    Idle,
    Holes,
    Deferred,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum BufferState {
    Unused,
    Open,
    /// Waits to be written (again).
    Full,
    Writing,
}

/// A cluster in memory.
struct Buffer {
    bytes: Mapping,
    state: BufferState,
    cluster: u32,
    used: usize,
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

/// A fork whose child (or whose child's children) may still read our file.
#[derive(Clone, Copy)]
struct Snapshot {
    /// Clusters with smaller numbers were there at the fork.
    before: u64,
    read_end: Fd,
}

/// What the store costs and does, in bytes and clusters.
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
    table: Table<Cluster>,
    /// Records ever used.
    records: u32,
    unused: List,
    /// Places to write to that have disk space, and those that have none.
    idle: List,
    holes: List,
    deferred: List,
    buffers: [Buffer; BUFFERS],
    open: Option<usize>,
    files: [Option<File<S>>; MAX_FILES],
    /// The file that this process writes to.
    own: Option<usize>,
    /// Where a new file comes from, after fork.
    origin: Option<S>,
    encryption: Encryption,
    next_sequence: u64,
    snapshots: [Snapshot; MAX_SNAPSHOTS],
    snapshot_count: usize,
    /// Clusters with smaller numbers are never reused (too many snapshots).
    frozen_before: u64,
    failure: Option<Errno>,
    compact_hand: u32,
    live_bytes: u64,
    /// Of the own file: disk blocks of all slots, and of those that are alive.
    disk_blocks: u64,
    written_blocks: u64,
    written_bytes: u64,
}

/// Why an object was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendError {
    /// All buffers are full: flush one, then try again.
    Full,
    /// There is no store, or it does not take writes any more.
    Unwritable,
}

/// One cluster on its way to the file.
pub struct Flush<S> {
    store: S,
    seal: Seal,
    buffer: usize,
    cluster: u32,
    sequence: u64,
    at: u64,
    used: usize,
}

impl<S: Store> Flush<S> {
    /// Seals and writes what [`Clusters::begin_flush`] copied to `io`.
    pub fn run(&self, io: &mut [u8]) -> Result<()> {
        let mut at = 0;
        while at < self.used {
            let len = usize::from(u16::from_le_bytes([io[at], io[at + 1]]));
            // The length has done its work, and is nobody's business.
            io[at..at + LENGTH_BYTES].fill(0);
            let start = at + LENGTH_BYTES;
            at = start + len + TAG_BYTES;
            self.seal.seal(self.sequence, start as u32, &mut io[start..at]);
        }
        self.store.write(self.at, &io[..self.used.next_multiple_of(BLOCK_BYTES)])
    }

    pub fn bytes(&self) -> usize {
        self.used
    }
}

/// One written cluster, to be read from.
#[derive(Clone)]
pub struct Source<S> {
    store: S,
    seal: Seal,
    /// Names the contents, together with the file.
    pub sequence: u64,
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

    /// Opens the object whose `sealed` bytes were read from `offset`.
    pub fn open<'a>(&self, offset: u16, sealed: &'a mut [u8]) -> core::result::Result<&'a [u8], NotAuthentic> {
        self.seal.open(self.sequence, u32::from(offset), sealed)
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

/// A dead place whose disk space goes back.
pub struct Discard<S> {
    store: S,
    at: u64,
    cluster: u32,
}

impl<S: Store> Discard<S> {
    pub fn run(&self) {
        self.store.discard(self.at, CLUSTER_BYTES as u64);
    }
}

/// What `prepare_fork` made; one of the three ends of a fork takes it.
pub struct Leash {
    /// (read end, write end), if the child can read clusters of ours.
    ends: Option<(Fd, Fd)>,
    /// There should have been a pipe, but there is none.
    missing: bool,
}

impl<S: Store> Clusters<S> {
    pub fn new(store: Option<S>, encryption: Encryption) -> Result<Clusters<S>> {
        let buffer = || Ok(Buffer { bytes: Mapping::new(CLUSTER_BYTES)?, state: BufferState::Unused, cluster: NONE, used: 0 });
        let mut files = [const { None }; MAX_FILES];
        if let Some(store) = store {
            files[0] = Some(File { store, seal: Seal::new(encryption)?, live_clusters: 0, next_slot: 0, leash: None });
        }
        Ok(Clusters {
            table: Table::new(),
            records: 0,
            unused: EMPTY,
            idle: EMPTY,
            holes: EMPTY,
            deferred: EMPTY,
            buffers: [buffer()?, buffer()?, buffer()?],
            open: None,
            own: store.map(|_| 0),
            origin: store,
            files,
            encryption,
            next_sequence: 1,
            snapshots: [Snapshot { before: 0, read_end: -1 }; MAX_SNAPSHOTS],
            snapshot_count: 0,
            frozen_before: 0,
            failure: None,
            compact_hand: 0,
            live_bytes: 0,
            disk_blocks: 0,
            written_blocks: 0,
            written_bytes: 0,
        })
    }

    fn get(&self, id: u32) -> &Cluster {
        self.table.get(id as usize).expect("a cluster id comes from here")
    }

    fn get_mut(&mut self, id: u32) -> &mut Cluster {
        self.table.get_mut(id as usize).expect("a cluster id comes from here")
    }

    // ---- Objects

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
        let c = self.get_mut(id);
        c.live += 1;
        c.live_bytes += object.len() as u32;
        self.live_bytes += object.len() as u64;
        Ok(Place { cluster: id, offset: start as u16 })
    }

    fn open_buffer(&mut self) -> core::result::Result<usize, AppendError> {
        let b = self.buffers.iter().position(|b| b.state == BufferState::Unused).ok_or(AppendError::Full)?;
        let id = self.new_record().map_err(|_| AppendError::Unwritable)?;
        *self.get_mut(id) = Cluster { state: State::Buffered as u8, buffer: b as u8, ..Cluster::UNUSED };
        let buffer = &mut self.buffers[b];
        (buffer.state, buffer.cluster, buffer.used) = (BufferState::Open, id, 0);
        self.open = Some(b);
        Ok(b)
    }

    /// Lets go of an object of `len` bytes.
    pub fn release(&mut self, place: Place, len: usize) {
        let c = self.get_mut(place.cluster);
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
                    // Nobody needs it any more, written or not.
                    BufferState::Full => self.drop_buffer(b),
                    // Emptied, it can be filled again from the start: no object refers to it.
                    BufferState::Open => self.buffers[b].used = 0,
                    BufferState::Writing | BufferState::Unused => {}
                }
            }
            s => unreachable!("an object in a cluster that is {s:?}"),
        }
    }

    fn drop_buffer(&mut self, b: usize) {
        let id = self.buffers[b].cluster;
        let buffer = &mut self.buffers[b];
        (buffer.state, buffer.cluster, buffer.used) = (BufferState::Unused, NONE, 0);
        self.free_record(id);
    }

    /// The object, if it is in memory.
    pub fn buffered(&self, place: Place, len: usize) -> Option<&[u8]> {
        let c = self.get(place.cluster);
        let at = usize::from(place.offset);
        (c.state() == State::Buffered).then(|| &self.buffers[usize::from(c.buffer)].bytes.as_slice()[at..at + len])
    }

    /// The first of the owner's objects in this cluster.
    pub fn first(&self, id: u32) -> u32 {
        self.get(id).first
    }

    pub fn set_first(&mut self, id: u32, first: u32) {
        self.get_mut(id).first = first;
    }

    // ---- Writing

    /// Whether a flush of full clusters is due.
    pub fn has_full(&self) -> bool {
        self.is_writable() && self.buffers.iter().any(|b| b.state == BufferState::Full)
    }

    /// Closes the open cluster if less than `room` bytes are left in it.
    pub fn close_open(&mut self, room: usize) {
        if let Some(b) = self.open
            && self.buffers[b].used > 0
            && CLUSTER_BYTES - self.buffers[b].used < room
        {
            self.buffers[b].state = BufferState::Full;
            self.open = None;
        }
    }

    /// Begins the flush of a full cluster: copies it to `io`, so that the rest can be done without the lock.
    pub fn begin_flush(&mut self, io: &mut [u8]) -> Option<Flush<S>> {
        if !self.is_writable() {
            return None;
        }
        let b = self.buffers.iter().position(|b| b.state == BufferState::Full)?;
        let file = match self.own_file() {
            Ok(file) => file,
            Err(e) => {
                self.failure = Some(e);
                return None;
            }
        };
        let Ok((slot, disk_blocks)) = self.take_slot(file) else {
            self.failure = Some(Errno::ENOSPC);
            return None;
        };
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let (id, used) = (self.buffers[b].cluster, self.buffers[b].used);
        io[..used].copy_from_slice(&self.buffers[b].bytes.as_slice()[..used]);
        io[used..used.next_multiple_of(BLOCK_BYTES)].fill(0);
        self.buffers[b].state = BufferState::Writing;
        let c = self.get_mut(id);
        (c.sequence, c.slot, c.disk_blocks, c.file) = (sequence, slot, disk_blocks, file as u8);
        let at = c.at();
        let f = self.files[file].as_ref().expect("own file");
        Some(Flush { store: f.store, seal: f.seal.clone(), buffer: b, cluster: id, sequence, at, used })
    }

    /// Ends a flush. A cluster that could not be written stays in memory, and the store takes no more.
    pub fn end_flush(&mut self, flush: Flush<S>, result: Result<()>) {
        let b = flush.buffer;
        let blocks = flush.used.div_ceil(BLOCK_BYTES) as u8;
        let file = usize::from(self.get(flush.cluster).file);
        match result {
            Ok(()) => {
                let c = self.get_mut(flush.cluster);
                let grown = blocks.saturating_sub(c.disk_blocks);
                (c.state, c.blocks, c.disk_blocks) = (State::Written as u8, blocks, c.disk_blocks + grown);
                let (live, live_bytes) = (c.live, u64::from(c.live_bytes));
                self.disk_blocks += u64::from(grown);
                self.files[file].as_mut().expect("own file").live_clusters += 1;
                self.written_blocks += u64::from(blocks);
                self.written_bytes += live_bytes;
                let buffer = &mut self.buffers[b];
                (buffer.state, buffer.cluster, buffer.used) = (BufferState::Unused, NONE, 0);
                if live == 0 {
                    self.retire(flush.cluster);
                }
            }
            Err(e) => {
                self.failure = Some(e);
                // A place that had no disk space may have none to get: after a retry those that have some come first.
                let c = *self.get(flush.cluster);
                self.put_slot(c.slot, c.disk_blocks, file as u8);
                self.get_mut(flush.cluster).disk_blocks = 0;
                if c.live == 0 {
                    self.drop_buffer(b);
                } else {
                    self.buffers[b].state = BufferState::Full;
                }
            }
        }
    }

    /// The error that ended writing back, if any. Sticky.
    pub fn failure(&self) -> Option<Errno> {
        self.failure
    }

    /// Lets the store be tried again.
    pub fn clear_failure(&mut self) {
        self.failure = None;
    }

    /// The file to write to. After fork it is made when it is first needed: most children exec at once.
    fn own_file(&mut self) -> Result<usize> {
        if let Some(i) = self.own {
            return Ok(i);
        }
        let i = self.files.iter().position(Option::is_none).ok_or(Errno(24 /* EMFILE */))?;
        let seal = Seal::new(self.encryption)?;
        let store = self.origin.ok_or(Errno::EBADF)?.fresh()?;
        self.files[i] = Some(File { store, seal, live_clusters: 0, next_slot: 0, leash: None });
        self.own = Some(i);
        Ok(i)
    }

    // ---- Reading

    /// How to read the objects of a cluster; `None` while they are in memory.
    pub fn source(&self, cluster: u32) -> Option<Source<S>> {
        let c = self.get(cluster);
        if c.state() != State::Written {
            return None;
        }
        let f = self.files[usize::from(c.file)].as_ref().expect("a file with objects is open");
        Some(Source {
            store: f.store,
            seal: f.seal.clone(),
            file: c.file,
            sequence: c.sequence,
            at: c.at(),
            blocks: usize::from(c.blocks),
        })
    }

    /// Whether `cluster` is still the one that `source` reads from.
    pub fn is_source(&self, cluster: u32, source: &Source<S>) -> bool {
        let c = self.get(cluster);
        c.state() == State::Written && (c.sequence, c.file) == (source.sequence, source.file)
    }

    /// A cluster with little left in it, if the file takes more than twice the disk space of what lives in it. Its objects
    /// should be appended again and released here.
    pub fn sparse(&mut self) -> Option<u32> {
        let disk_bytes = self.written_blocks * BLOCK_BYTES as u64;
        if !self.is_writable() || disk_bytes <= 2 * self.written_bytes + COMPACT_SLACK_BYTES {
            return None;
        }
        let frozen = self.frozen_before();
        for _ in 0..COMPACT_SCAN.min(self.records) {
            self.compact_hand = if self.compact_hand + 1 < self.records { self.compact_hand + 1 } else { 0 };
            let c = self.get(self.compact_hand);
            if c.state() == State::Written
                && Some(usize::from(c.file)) == self.own
                && c.sequence >= frozen
                && c.live_bytes as usize * 2 < usize::from(c.blocks) * BLOCK_BYTES
            {
                return Some(self.compact_hand);
            }
        }
        None
    }

    // ---- Places in the file

    /// A written cluster has lost its last object.
    fn retire(&mut self, id: u32) {
        let c = *self.get(id);
        let file = usize::from(c.file);
        let f = self.files[file].as_mut().expect("a file with clusters is open");
        f.live_clusters -= 1;
        if self.own != Some(file) {
            if f.live_clusters == 0 {
                self.close_file(file);
            }
            self.free_record(id);
            return;
        }
        self.written_blocks -= u64::from(c.blocks);
        self.get_mut(id).first = NONE;
        self.push(if c.sequence < self.frozen_before() { ListName::Deferred } else { ListName::Idle }, id);
    }

    /// A place in the own file: (slot, disk blocks it has).
    fn take_slot(&mut self, file: usize) -> Result<(u32, u8)> {
        if self.deferred.head != NONE && (self.idle.head == NONE || self.next_sequence.is_multiple_of(SNAPSHOT_POLL_FLUSHES)) {
            self.poll_snapshots();
        }
        let list = if self.idle.head != NONE { ListName::Idle } else { ListName::Holes };
        if let Some(id) = self.pop(list) {
            let c = *self.get(id);
            self.free_record(id);
            return Ok((c.slot, c.disk_blocks));
        }
        let f = self.files[file].as_mut().expect("own file");
        let slot = f.next_slot;
        f.next_slot = slot.checked_add(1).ok_or(Errno::ENOSPC)?;
        Ok((slot, 0))
    }

    fn put_slot(&mut self, slot: u32, disk_blocks: u8, file: u8) {
        // Without memory for a record the place is lost to this process; nothing else is.
        let Ok(id) = self.new_record() else { return };
        *self.get_mut(id) = Cluster { slot, disk_blocks, file, ..Cluster::UNUSED };
        self.push(if disk_blocks > 0 { ListName::Idle } else { ListName::Holes }, id);
    }

    fn list(&mut self, name: ListName) -> &mut List {
        match name {
            ListName::Unused => &mut self.unused,
            ListName::Idle => &mut self.idle,
            ListName::Holes => &mut self.holes,
            ListName::Deferred => &mut self.deferred,
        }
    }

    fn push(&mut self, name: ListName, id: u32) {
        let list = self.list(name);
        let next = list.head;
        *list = List { head: id, len: list.len + 1 };
        let c = self.get_mut(id);
        c.next = next;
        c.state = match name {
            ListName::Unused => State::Unused,
            ListName::Idle | ListName::Holes => State::Idle,
            ListName::Deferred => State::Deferred,
        } as u8;
    }

    fn pop(&mut self, name: ListName) -> Option<u32> {
        let List { head, len } = *self.list(name);
        if head == NONE {
            return None;
        }
        *self.list(name) = List { head: self.get(head).next, len: len - 1 };
        Some(head)
    }

    fn new_record(&mut self) -> Result<u32> {
        if let Some(id) = self.pop(ListName::Unused) {
            return Ok(id);
        }
        let id = self.records;
        if id == NONE {
            return Err(Errno::ENOSPC);
        }
        self.table.ensure(id as usize)?;
        self.records += 1;
        Ok(id)
    }

    fn free_record(&mut self, id: u32) {
        *self.get_mut(id) = Cluster::UNUSED;
        self.push(ListName::Unused, id);
    }

    fn close_file(&mut self, i: usize) {
        if let Some(f) = self.files[i].take() {
            f.store.close();
            if let Some(leash) = f.leash {
                file::close(leash);
            }
        }
    }

    /// Whether there are more places with disk space than will be written to soon.
    pub fn has_discards(&self) -> bool {
        let own = self.own.and_then(|i| self.files[i].as_ref());
        own.is_some_and(|f| self.idle.len > IDLE_SLOTS_KEPT.max(f.live_clusters / 4))
    }

    /// A place that is not needed soon: its disk space should go back. [`Discard::run`] without the lock, then
    /// [`Clusters::end_discard`].
    pub fn begin_discard(&mut self) -> Option<Discard<S>> {
        if !self.has_discards() {
            return None;
        }
        let store = self.files[self.own?].as_ref()?.store;
        let id = self.pop(ListName::Idle)?;
        let c = self.get_mut(id);
        c.state = State::Punching as u8;
        Some(Discard { store, at: c.at(), cluster: id })
    }

    pub fn end_discard(&mut self, discard: Discard<S>) {
        let c = self.get_mut(discard.cluster);
        let disk_blocks = core::mem::take(&mut c.disk_blocks);
        self.disk_blocks -= u64::from(disk_blocks);
        self.push(ListName::Holes, discard.cluster);
    }

    // ---- Fork

    /// Makes ready for a fork. If the child will be able to read clusters of ours, it gets the write end of a pipe and we keep the
    /// read end: when that hangs up, the child, all its children that did not exec, and thus all who could read them, are gone.
    pub fn prepare_fork(&mut self) -> Leash {
        self.poll_snapshots();
        let readable = self.own.and_then(|i| self.files[i].as_ref()).is_some_and(|f| {
            // A store without descriptors lives in memory, which fork copies.
            f.live_clusters > 0 && f.store.descriptors()[0] >= 0
        });
        let ends = if readable && self.snapshot_count < MAX_SNAPSHOTS { file::pipe().ok() } else { None };
        Leash { ends, missing: readable && ends.is_none() }
    }

    pub fn fork_failed(&mut self, leash: Leash) {
        if let Some((read_end, write_end)) = leash.ends {
            file::close(read_end);
            file::close(write_end);
        }
    }

    pub fn in_parent(&mut self, leash: Leash) {
        if let Some((read_end, write_end)) = leash.ends {
            file::close(write_end);
            self.snapshots[self.snapshot_count] = Snapshot { before: self.next_sequence, read_end };
            self.snapshot_count += 1;
        } else if leash.missing {
            self.frozen_before = self.next_sequence;
        }
    }

    /// In the child our file has become another process's: a source, nothing to write to. The leashes of the files that were inherited
    /// already are inherited again, by the fork itself.
    pub fn in_child(&mut self, leash: Leash) {
        for s in &self.snapshots[..self.snapshot_count] {
            file::close(s.read_end);
        }
        (self.snapshot_count, self.frozen_before) = (0, 0);
        for name in [ListName::Idle, ListName::Holes, ListName::Deferred] {
            while let Some(id) = self.pop(name) {
                self.free_record(id);
            }
        }
        if let Some((read_end, write_end)) = leash.ends {
            file::close(read_end);
            let own = self.own.and_then(|i| self.files[i].as_mut()).expect("a leash is for a file");
            own.leash = Some(write_end);
        }
        if let Some(i) = self.own.take()
            && self.files[i].as_ref().is_some_and(|f| f.live_clusters == 0)
        {
            self.close_file(i);
        }
        (self.disk_blocks, self.written_blocks, self.written_bytes) = (0, 0, 0);
        // What failed was the parent's file. A full disk will be found full again.
        self.failure = None;
    }

    /// Clusters with smaller sequence numbers may still be read by a forked child.
    fn frozen_before(&self) -> u64 {
        self.snapshots[..self.snapshot_count].iter().map(|s| s.before).fold(self.frozen_before, u64::max)
    }

    /// Forgets the forks whose children have gone, and takes back what was kept for them.
    fn poll_snapshots(&mut self) {
        if self.snapshot_count == 0 {
            return;
        }
        let mut fds = [-1; MAX_SNAPSHOTS];
        for (fd, s) in fds.iter_mut().zip(&self.snapshots) {
            *fd = s.read_end;
        }
        let gone = file::hung_up(&fds[..self.snapshot_count]);
        if gone == 0 {
            return;
        }
        let mut kept = 0;
        for i in 0..self.snapshot_count {
            if gone >> i & 1 == 1 {
                file::close(self.snapshots[i].read_end);
            } else {
                self.snapshots[kept] = self.snapshots[i];
                kept += 1;
            }
        }
        self.snapshot_count = kept;
        let frozen = self.frozen_before();
        let mut rest = core::mem::replace(&mut self.deferred, EMPTY).head;
        while rest != NONE {
            let c = *self.get(rest);
            self.push(if c.sequence < frozen { ListName::Deferred } else { ListName::Idle }, rest);
            rest = c.next;
        }
    }

    /// All descriptors that the program must not be able to close.
    pub fn descriptors(&self) -> impl Iterator<Item = Fd> {
        let files = self.files.iter().flatten().flat_map(|f| {
            let [a, b] = f.store.descriptors();
            [a, b, f.leash.unwrap_or(-1)]
        });
        let snapshots = self.snapshots[..self.snapshot_count].iter().map(|s| s.read_end);
        let origin = self.origin.map_or([-1; 2], |o| o.descriptors());
        // The origin's file may have been closed; its directory is open.
        files.chain(snapshots).chain([origin[1]]).filter(|&fd| fd >= 0)
    }

    // ---- Accounts

    pub fn stats(&self) -> ClusterStats {
        ClusterStats {
            live_clusters: self.files.iter().flatten().map(|f| u64::from(f.live_clusters)).sum(),
            live_bytes: self.live_bytes,
            disk_bytes: self.disk_blocks * BLOCK_BYTES as u64,
            idle_clusters: u64::from(self.idle.len + self.holes.len),
            deferred_clusters: u64::from(self.deferred.len),
            snapshots: self.snapshot_count as u64,
        }
    }

    /// Memory that this takes: records, and buffers once they are used.
    pub fn memory_bytes(&self) -> usize {
        let buffers = if self.records > 0 { BUFFERS * CLUSTER_BYTES } else { 0 };
        self.records as usize * size_of::<Cluster>() + buffers
    }

    /// Whether there is such a record.
    pub fn is_record(&self, id: u32) -> bool {
        id < self.records
    }

    /// Whether this record holds live objects: (objects, their bytes).
    pub fn live(&self, id: u32) -> Option<(u32, u32)> {
        let c = self.table.get(id as usize)?;
        matches!(c.state(), State::Buffered | State::Written).then_some((u32::from(c.live), c.live_bytes))
    }

    /// Asserts every equation between records, lists, files and totals. Only while no flush or discard is under way.
    pub fn check(&self) {
        let mut live_bytes = 0;
        let (mut disk, mut written_blocks, mut written_bytes) = (0, 0, 0);
        let mut per_file = [0; MAX_FILES];
        let mut counts = [0u32; 6];
        for id in 0..self.records {
            let c = self.get(id);
            counts[c.state as usize] += 1;
            let own = Some(usize::from(c.file)) == self.own;
            match c.state() {
                State::Unused => {}
                State::Buffered => {
                    let b = &self.buffers[usize::from(c.buffer)];
                    assert!(b.cluster == id && b.state != BufferState::Unused, "a buffer knows its cluster");
                    assert!(b.state != BufferState::Writing, "a flush is under way");
                    assert!(c.live > 0 || b.state == BufferState::Open);
                    live_bytes += u64::from(c.live_bytes);
                }
                State::Written => {
                    assert!(c.live > 0 && c.blocks > 0 && c.disk_blocks >= c.blocks && c.sequence < self.next_sequence);
                    live_bytes += u64::from(c.live_bytes);
                    per_file[usize::from(c.file)] += 1;
                    if own {
                        disk += u64::from(c.disk_blocks);
                        written_blocks += u64::from(c.blocks);
                        written_bytes += u64::from(c.live_bytes);
                    }
                }
                State::Idle | State::Deferred => {
                    assert!(c.live == 0 && own, "dead places are the own file's");
                    assert!(c.state() == State::Idle || c.sequence < self.frozen_before(), "kept for nobody");
                    disk += u64::from(c.disk_blocks);
                }
                State::Punching => panic!("a discard is under way"),
            }
        }
        for (list, n) in [
            (self.unused, counts[State::Unused as usize]),
            (self.deferred, counts[State::Deferred as usize]),
        ] {
            assert_eq!((self.list_len(list), list.len), (n, n));
        }
        assert_eq!(self.list_len(self.idle) + self.list_len(self.holes), counts[State::Idle as usize]);
        assert_eq!(self.idle.len + self.holes.len, counts[State::Idle as usize]);
        let buffers = self.buffers.iter().filter(|b| b.state != BufferState::Unused).count();
        assert_eq!(buffers, counts[State::Buffered as usize] as usize);
        assert_eq!(self.buffers.iter().position(|b| b.state == BufferState::Open), self.open);
        assert_eq!(live_bytes, self.live_bytes);
        assert_eq!((disk, written_blocks, written_bytes), (self.disk_blocks, self.written_blocks, self.written_bytes));
        for (i, n) in per_file.into_iter().enumerate() {
            assert_eq!(self.files[i].as_ref().map_or(0, |f| f.live_clusters), n);
            assert!(self.files[i].is_none() || n > 0 || self.own == Some(i), "a file that serves nobody is closed");
        }
    }

    fn list_len(&self, list: List) -> u32 {
        let (mut n, mut at) = (0, list.head);
        while at != NONE {
            n += 1;
            assert!(n <= list.len, "a list is a ring");
            at = self.get(at).next;
        }
        n
    }
}

impl<S: Store> Drop for Clusters<S> {
    fn drop(&mut self) {
        for s in &self.snapshots[..self.snapshot_count] {
            file::close(s.read_end);
        }
        for i in 0..MAX_FILES {
            self.close_file(i);
        }
        // The origin's file is closed, its directory is not: dropping a cache is rare, and no method is worth it.
        if let Some(directory) = self.origin.map(|o| o.descriptors()[1]).filter(|&fd| fd >= 0) {
            file::close(directory);
        }
    }
}
