//! Writing clusters.

use super::buffer::BufferState;
use super::record::State;
use super::{Clusters, File, LENGTH_BYTES, NONE};
use crate::store::seal::{Seal, TAG_BYTES, Use};
use crate::store::{BLOCK_BYTES, Progress, Queue, Store};
use crate::sys::{Errno, Result};

/// One cluster on its way to the file.
pub struct Flush<S> {
    store: S,
    seal: Seal,
    buffer: usize,
    cluster: u32,
    of: Use,
    at: u64,
    used: usize,
}

impl<S: Store> Flush<S> {
    /// Seals what [`Clusters::begin_flush`] copied to `io`.
    pub fn seal(&self, io: &mut [u8]) {
        let mut at = 0;
        while at < self.used {
            let len = usize::from(u16::from_le_bytes([io[at], io[at + 1]]));
            // The length is not needed any more, and must not be readable in the file.
            io[at..at + LENGTH_BYTES].fill(0);
            let start = at + LENGTH_BYTES;
            at = start + len + TAG_BYTES;
            self.seal.seal(self.of, start as u16, &mut io[start..at]);
        }
    }

    /// Starts writing the cluster that is sealed in a buffer of the queue.
    pub fn start(&self, queue: &mut Queue, slot: usize) -> Progress {
        self.store.write(queue, slot, self.at, self.bytes())
    }

    /// Collects the results that have come, of this flush and others.
    pub fn collect(&self, queue: &mut Queue, waits: bool) {
        self.store.collect(queue, waits);
    }

    /// Bytes that are written: whole blocks.
    pub fn bytes(&self) -> usize {
        self.used.next_multiple_of(BLOCK_BYTES)
    }
}

/// Whether another place may take what this one did not: an error of its blocks, which the kernel
/// calls ENODATA if the disk says so.
fn is_of_the_place(why: Errno) -> bool {
    matches!(why, Errno::EIO | Errno::ENODATA)
}

impl<S: Store> Clusters<S> {
    /// Whether a flush of full clusters is due.
    pub fn has_full(&self) -> bool {
        self.is_writable() && self.buffers.iter().any(|b| b.state == BufferState::Full)
    }

    /// Begins the flush of a full cluster: copies it to `io`, so that the rest can be done without
    /// the lock.
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
        let of = match Use::new(sequence) {
            Ok(of) => of,
            Err(e) => {
                self.put_slot(slot, disk_blocks, file as u8, false);
                self.failure = Some(e);
                return None;
            }
        };
        self.next_sequence += 1;
        let (id, used) = (self.buffers[b].cluster, self.buffers[b].used);
        io[..used].copy_from_slice(&self.buffers[b].bytes.as_slice()[..used]);
        io[used..used.next_multiple_of(BLOCK_BYTES)].fill(0);
        self.buffers[b].state = BufferState::Writing;
        let c = self.records.get_mut(id);
        (c.sequence, c.salt) = (sequence, of.salt);
        (c.slot, c.disk_blocks, c.file) = (slot, disk_blocks, file as u8);
        let at = c.at();
        // Clusters that are written one after the other are often read so.
        let last = core::mem::replace(&mut self.last_flushed, id);
        if last != NONE
            && let l = self.records.get_mut(last)
            && matches!(l.state(), State::Buffered | State::Written)
            && l.sequence + 1 == sequence
        {
            l.next = id;
        }
        let f = self.files[file].as_ref().expect("own file");
        Some(Flush { store: f.store, seal: f.seal.clone(), buffer: b, cluster: id, of, at, used })
    }

    /// Ends a flush. A cluster that could not be written stays in memory, and the store takes no
    /// more.
    pub fn end_flush(&mut self, flush: Flush<S>, result: Result<()>) {
        let b = flush.buffer;
        let blocks = flush.used.div_ceil(BLOCK_BYTES) as u8;
        let file = usize::from(self.records.get(flush.cluster).file);
        match result {
            Ok(()) => {
                let c = self.records.get_mut(flush.cluster);
                let grown = blocks.saturating_sub(c.disk_blocks);
                (c.state, c.blocks, c.disk_blocks) =
                    (State::Written as u8, blocks, c.disk_blocks + grown);
                let (live, live_bytes) = (c.live, u64::from(c.live_bytes));
                self.disk_blocks += u64::from(grown);
                self.files[file].as_mut().expect("own file").live_clusters += 1;
                self.written_blocks += u64::from(blocks);
                self.written_bytes += live_bytes;
                self.empty_buffer(b);
                if live == 0 {
                    self.retire(flush.cluster);
                }
            }
            Err(e) => {
                self.failure = Some(e);
                // A place without disk space may not get any: after a retry places that have some
                // come first, and those that a disk cannot write to are left out.
                let c = *self.records.get(flush.cluster);
                self.put_slot(c.slot, c.disk_blocks, file as u8, is_of_the_place(e));
                self.records.get_mut(flush.cluster).disk_blocks = 0;
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

    /// Makes the file to write to, if there is none yet; a failure shows when it is needed.
    pub fn open_file(&mut self) {
        if self.origin.is_some() {
            let _ = self.own_file();
        }
    }

    /// The file to write to. After fork it is made when it is first needed: most children exec at
    /// once.
    fn own_file(&mut self) -> Result<usize> {
        if let Some(i) = self.own {
            return Ok(i);
        }
        let i = self.files.iter().position(Option::is_none).ok_or(Errno::EMFILE)?;
        let seal = Seal::new(self.encryption)?;
        let store = self.origin.ok_or(Errno::EBADF)?.fresh()?;
        self.files[i] = Some(File { store, seal, live_clusters: 0, next_slot: 0, leash: None });
        self.own = Some(i);
        Ok(i)
    }
}
