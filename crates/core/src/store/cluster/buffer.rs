//! Clusters in memory: a buffer each, from the first object on until the write has succeeded.

use super::super::Store;
use super::record::{Cluster, State};
use super::{AppendError, BUFFERS, CLUSTER_BYTES, Clusters, NONE, Place};
use crate::sys::Result;
use crate::sys::mem::Mapping;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BufferState {
    Unused,
    Open,
    /// Waits to be written (again).
    Full,
    Writing,
}

/// A cluster in memory.
pub(super) struct Buffer {
    pub(super) bytes: Mapping,
    pub(super) state: BufferState,
    pub(super) cluster: u32,
    pub(super) used: usize,
}

/// As many buffers as there can be clusters in memory.
pub(super) fn make_buffers() -> Result<[Buffer; BUFFERS]> {
    let mut buffers = [const { None }; BUFFERS];
    for b in &mut buffers {
        *b = Some(Buffer {
            bytes: Mapping::new(CLUSTER_BYTES)?,
            state: BufferState::Unused,
            cluster: NONE,
            used: 0,
        });
    }
    Ok(buffers.map(|b| b.expect("filled above")))
}

impl<S: Store> Clusters<S> {
    pub(super) fn open_buffer(&mut self) -> core::result::Result<usize, AppendError> {
        let b = self
            .buffers
            .iter()
            .position(|b| b.state == BufferState::Unused)
            .ok_or(AppendError::Full)?;
        let id = self.records.allocate().map_err(|_| AppendError::Unwritable)?;
        *self.records.get_mut(id) =
            Cluster { state: State::Buffered as u8, buffer: b as u8, ..Cluster::UNUSED };
        let buffer = &mut self.buffers[b];
        (buffer.state, buffer.cluster, buffer.used) = (BufferState::Open, id, 0);
        self.are_buffers_bare = false;
        self.open = Some(b);
        Ok(b)
    }

    pub(super) fn drop_buffer(&mut self, b: usize) {
        let id = self.buffers[b].cluster;
        self.empty_buffer(b);
        self.records.free(id);
    }

    /// A buffer is not in use any more. Its memory is still there.
    pub(super) fn empty_buffer(&mut self, b: usize) {
        let buffer = &mut self.buffers[b];
        (buffer.state, buffer.cluster, buffer.used) = (BufferState::Unused, NONE, 0);
        self.are_buffers_bare = false;
    }

    /// The object, if it is in memory.
    pub fn buffered(&self, place: Place, len: usize) -> Option<&[u8]> {
        let c = self.records.get(place.cluster);
        let at = usize::from(place.offset);
        (c.state() == State::Buffered)
            .then(|| &self.buffers[usize::from(c.buffer)].bytes.as_slice()[at..at + len])
    }

    /// Memory of the buffers alone.
    pub fn buffers_bytes(&self) -> usize {
        let in_use = || self.buffers.iter().filter(|b| b.state != BufferState::Unused).count();
        let buffers = if self.are_buffers_bare { in_use() } else { BUFFERS };
        buffers * CLUSTER_BYTES
    }

    /// Gives the memory back of buffers that are not in use.
    pub fn give_buffers_back(&mut self) {
        if self.are_buffers_bare {
            return;
        }
        for buffer in self.buffers.iter_mut().filter(|b| b.state == BufferState::Unused) {
            buffer.bytes.decommit(0..CLUSTER_BYTES);
        }
        self.are_buffers_bare = true;
    }
}
