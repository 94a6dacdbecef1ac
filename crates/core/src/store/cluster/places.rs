//! Places in the own file: found, given up, given back to the disk; and clusters that waste them.

use super::record::{Cluster, ListName, State};
use super::{CLUSTER_BYTES, Clusters, NONE};
use crate::store::{BLOCK_BYTES, Store};
use crate::sys::{Errno, Result};

/// Idle slots keep their disk blocks for the next writes up to this many, or a quarter of the live
/// ones.
const IDLE_SLOTS_KEPT: u32 = 64;
/// Disk space beyond twice the live bytes that is not worth compacting for.
const COMPACT_SLACK_BYTES: u64 = 4 << 20;
/// Records looked at in one search for a sparse cluster.
const COMPACT_SCAN: u32 = 512;
/// Places that are set aside at most: a disk has few bad blocks. Where more writes fail the whole
/// disk does, and no place is worse than another.
pub(super) const SET_ASIDE_MOST: u32 = 64;
/// Flushes between two looks at whether forked children have gone.
const SNAPSHOT_POLL_FLUSHES: u64 = 16;

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

impl<S: Store> Clusters<S> {
    /// A written cluster has lost its last object.
    pub(super) fn retire(&mut self, id: u32) {
        let c = *self.records.get(id);
        let file = usize::from(c.file);
        let f = self.files[file].as_mut().expect("a file with clusters is open");
        f.live_clusters -= 1;
        if self.own != Some(file) {
            if f.live_clusters == 0 {
                self.close_file(file);
                // Now there is room for a file of our own.
                if self.own.is_none() && self.failure == Some(Errno::EMFILE) {
                    self.failure = None;
                }
            }
            self.records.free(id);
            return;
        }
        self.written_blocks -= u64::from(c.blocks);
        self.records.get_mut(id).first = NONE;
        self.records.push(
            if c.sequence < self.snapshots.frozen_before() {
                ListName::Deferred
            } else {
                ListName::Idle
            },
            id,
        );
    }

    /// A place in the own file: (slot, disk blocks it has).
    pub(super) fn take_slot(&mut self, file: usize) -> Result<(u32, u8)> {
        if self.records.len(ListName::Deferred) > 0
            && (self.records.len(ListName::Idle) == 0
                || self.next_sequence.is_multiple_of(SNAPSHOT_POLL_FLUSHES))
        {
            self.poll_snapshots();
        }
        if let Some(id) =
            self.records.pop(ListName::Idle).or_else(|| self.records.pop(ListName::Holes))
        {
            let c = *self.records.get(id);
            self.records.free(id);
            return Ok((c.slot, c.disk_blocks));
        }
        let f = self.files[file].as_mut().expect("own file");
        let slot = f.next_slot;
        f.next_slot = slot.checked_add(1).ok_or(Errno::ENOSPC)?;
        Ok((slot, 0))
    }

    /// Puts a place back that has nothing. `is_bad`: it does not take writes, perhaps for good. It
    /// is set aside then, or the next trial of the store would fail by it again.
    pub(super) fn put_slot(&mut self, slot: u32, disk_blocks: u8, file: u8, is_bad: bool) {
        let by_space =
            |c: &Cluster| if c.disk_blocks > 0 { ListName::Idle } else { ListName::Holes };
        if is_bad && self.records.len(ListName::SetAside) >= SET_ASIDE_MOST {
            // The first one that was set aside is the first to be tried.
            self.records.sort_out(ListName::SetAside, by_space);
        }
        // Without memory for a record the place is lost to this process; nothing else is.
        let Ok(id) = self.records.allocate() else { return };
        let c = Cluster { slot, disk_blocks, file, ..Cluster::UNUSED };
        *self.records.get_mut(id) = c;
        self.records.push(if is_bad { ListName::SetAside } else { by_space(&c) }, id);
    }

    /// Whether there are more places with disk space than will be written to soon.
    pub fn has_discards(&self) -> bool {
        let own = self.own.and_then(|i| self.files[i].as_ref());
        own.is_some_and(|f| {
            self.records.len(ListName::Idle) > IDLE_SLOTS_KEPT.max(f.live_clusters / 4)
        })
    }

    /// A place that is not needed soon: its disk space should go back. [`Discard::run`] without the
    /// lock, then [`Clusters::end_discard`].
    pub fn begin_discard(&mut self) -> Option<Discard<S>> {
        if !self.has_discards() {
            return None;
        }
        let store = self.files[self.own?].as_ref()?.store;
        let id = self.records.pop(ListName::Idle)?;
        let c = self.records.get_mut(id);
        c.state = State::Discarding as u8;
        Some(Discard { store, at: c.at(), cluster: id })
    }

    pub fn end_discard(&mut self, discard: Discard<S>) {
        let c = self.records.get_mut(discard.cluster);
        let disk_blocks = core::mem::take(&mut c.disk_blocks);
        self.disk_blocks -= u64::from(disk_blocks);
        self.records.push(ListName::Holes, discard.cluster);
    }

    /// A cluster with little left in it, if the file takes more than twice the disk space of its
    /// live objects. Its objects should be appended again and released here.
    pub fn sparse(&mut self) -> Option<u32> {
        let disk_bytes = self.written_blocks * BLOCK_BYTES as u64;
        if !self.is_writable() || disk_bytes <= 2 * self.written_bytes + COMPACT_SLACK_BYTES {
            return None;
        }
        let frozen = self.snapshots.frozen_before();
        for _ in 0..COMPACT_SCAN.min(self.records.ids().end) {
            self.compact_hand = if self.compact_hand + 1 < self.records.ids().end {
                self.compact_hand + 1
            } else {
                0
            };
            let c = self.records.get(self.compact_hand);
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
}
