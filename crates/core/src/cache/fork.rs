//! Fork: memory is copied, the file is shared.
//!
//! A fork must find the cache at rest: [`SwapCache::prepare_fork`] takes every lock and waits for
//! reads, writes and a training under way, and the guard is given to one of three ends. The further
//! use of the file by the two sides is decided in `store/cluster/fork.rs`: the parent keeps what
//! the child can read, the child writes to a file of its own.

use super::SwapCache;
use super::glance::StateGuard;
use super::group::{UNPACKED, Unpacked};
use super::read::{READERS, Reader};
use super::recompress::Packer;
use super::writeback::Writer;
use crate::codec::{HeldStreams, Samples};
use crate::store::Store;
use crate::store::cluster::Leash;
use crate::sys::sync::MutexGuard;

/// Everything locked, for the moment of a fork.
#[must_use]
pub struct ForkGuard<'a, S: Store> {
    // Dropped in this order: the reverse of the order of locking.
    state: StateGuard<'a, S>,
    _training: MutexGuard<'a, Samples>,
    _streams: HeldStreams<'a>,
    _unpacked: [MutexGuard<'a, Unpacked>; UNPACKED],
    readers: [MutexGuard<'a, Reader>; READERS],
    writer: MutexGuard<'a, Writer<S>>,
    _packer: MutexGuard<'a, Packer>,
    leash: Leash,
}

impl<S: Store> SwapCache<S> {
    /// Brings the cache to rest. Until the guard is gone, every other call waits.
    pub fn prepare_fork(&self) -> ForkGuard<'_, S> {
        let _packer = self.packer.lock();
        let mut writer = self.writer.lock();
        self.settle(&mut writer);
        let mut readers = self.readers.each_ref().map(|r| r.lock());
        // The kernel must not be filling memory that is being copied.
        readers.iter_mut().for_each(|r| r.settle());
        let _unpacked = self.unpacked.each_ref().map(|u| u.lock());
        let _streams = self.streams.hold_all();
        let _training = self.codecs.hold_training();
        let mut state = self.state.lock();
        let leash = state.clusters.prepare_fork();
        ForkGuard { state, _training, _streams, _unpacked, readers, writer, _packer, leash }
    }

    /// In the parent, after a fork that succeeded.
    pub fn after_fork_parent(&self, guard: ForkGuard<'_, S>) {
        let ForkGuard { mut state, leash, .. } = guard;
        state.clusters.in_parent(leash);
    }

    /// In the parent, after a fork that failed.
    pub fn after_fork_failed(&self, guard: ForkGuard<'_, S>) {
        let ForkGuard { mut state, leash, .. } = guard;
        state.clusters.fork_failed(leash);
    }

    /// In the child, before anything else uses the cache.
    ///
    /// A child that inherits pages gets its file at once: a descriptor that is opened later, by a
    /// thread beside the program's, takes for a moment the lowest free number, which the program
    /// may expect for its own. See also [`SwapCache::open_store`].
    pub fn after_fork_child(&self, guard: ForkGuard<'_, S>) {
        let ForkGuard { mut state, mut readers, mut writer, leash, .. } = guard;
        writer.forget_parent();
        readers.iter_mut().for_each(|r| r.forget_parent());
        state.clusters.in_child(leash);
        if state.entries.in_use() > 0 {
            state.clusters.open_file();
        }
    }

    /// In a child that was forked at any moment, before the cache is dropped, which is all that may
    /// be done with it: reads and writes under way are the parent's, and nobody waits for them
    /// here.
    pub fn abandon(&mut self) {
        self.writer.get_mut().abandon();
        self.readers.iter_mut().for_each(|reader| reader.get_mut().abandon());
    }
}
