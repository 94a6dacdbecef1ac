//! The store of a pager: the kind that the run was given.

use super::remote::{RemoteCounts, RemoteStore};
#[cfg(any(test, feature = "testing"))]
use super::testing::MemoryStore;
use super::valkey::ValkeyStore;
use super::{DESCRIPTORS, DeviceStore, FileStore, Progress, Queue, ReadQueue, Store};
use crate::sys::Result;

/// A store of any kind. The choice costs a comparison beside a system call.
#[derive(Clone, Copy)]
pub enum AnyStore {
    File(FileStore),
    Device(DeviceStore),
    Remote(RemoteStore),
    Valkey(ValkeyStore),
    #[cfg(any(test, feature = "testing"))]
    Memory(MemoryStore),
}

impl From<FileStore> for AnyStore {
    fn from(store: FileStore) -> AnyStore {
        AnyStore::File(store)
    }
}

impl From<DeviceStore> for AnyStore {
    fn from(store: DeviceStore) -> AnyStore {
        AnyStore::Device(store)
    }
}

impl From<RemoteStore> for AnyStore {
    fn from(store: RemoteStore) -> AnyStore {
        AnyStore::Remote(store)
    }
}

impl From<ValkeyStore> for AnyStore {
    fn from(store: ValkeyStore) -> AnyStore {
        AnyStore::Valkey(store)
    }
}

#[cfg(any(test, feature = "testing"))]
impl From<MemoryStore> for AnyStore {
    fn from(store: MemoryStore) -> AnyStore {
        AnyStore::Memory(store)
    }
}

/// Calls a method of the store, of any kind.
macro_rules! either {
    ($self:ident, $store:ident => $call:expr) => {
        match $self {
            AnyStore::File($store) => $call,
            AnyStore::Device($store) => $call,
            AnyStore::Remote($store) => $call,
            AnyStore::Valkey($store) => $call,
            #[cfg(any(test, feature = "testing"))]
            AnyStore::Memory($store) => $call,
        }
    };
}

impl Store for AnyStore {
    fn read(self, at: u64, buf: &mut [u8]) -> Result<()> {
        either!(self, s => s.read(at, buf))
    }

    fn read_ahead(self, queue: &mut ReadQueue, at: u64, len: usize) -> bool {
        either!(self, s => s.read_ahead(queue, at, len))
    }

    fn write(self, queue: &mut Queue, slot: usize, at: u64, len: usize) -> Progress {
        either!(self, s => s.write(queue, slot, at, len))
    }

    fn collect(self, queue: &mut Queue, waits: bool) {
        either!(self, s => s.collect(queue, waits))
    }

    fn copies(self, at: u64) -> usize {
        either!(self, s => s.copies(at))
    }

    fn read_copy(self, copy: usize, waits: bool, at: u64, buf: &mut [u8]) -> Result<()> {
        either!(self, s => s.read_copy(copy, waits, at, buf))
    }

    fn discard(self, at: u64, len: u64) {
        either!(self, s => s.discard(at, len))
    }

    fn fresh(self) -> Result<AnyStore> {
        either!(self, s => s.fresh().map(AnyStore::from))
    }

    fn close(self) {
        either!(self, s => s.close())
    }

    fn end(self) {
        either!(self, s => s.end())
    }

    fn in_child(self, is_needed: bool) {
        either!(self, s => s.in_child(is_needed))
    }

    fn is_inherited(self) -> bool {
        either!(self, s => s.is_inherited())
    }

    fn descriptor(self) -> i32 {
        either!(self, s => s.descriptor())
    }

    fn shared_descriptors(self) -> [i32; DESCRIPTORS] {
        either!(self, s => s.shared_descriptors())
    }

    fn remote_counts(self) -> RemoteCounts {
        either!(self, s => s.remote_counts())
    }
}
