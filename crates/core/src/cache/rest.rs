//! Rest: a process that waits, for its turn or for input, needs no buffers.
//!
//! Buffers of clusters, of reads and writes, and the codecs' working memory are 1 to 1.5 MiB of a
//! process that pages. That is little for one of them, and a sixth of all memory where 24 compilers
//! wait for each other. A thread that needs them takes them again.

use core::sync::atomic::Ordering;

use super::SwapCache;
use crate::store::Store;

impl<S: Store> SwapCache<S> {
    /// Gives the buffers back that nobody uses, after reads and writes under way have ended.
    pub fn rest(&self) {
        let packer_bytes = self.packer_bytes.load(Ordering::Relaxed);
        let unpacked_bytes = self.unpacked_bytes.load(Ordering::Relaxed);
        if !self.has_io_buffers.load(Ordering::Relaxed)
            && !self.streams.have_scratch()
            && packer_bytes + unpacked_bytes == 0
        {
            return;
        }
        let mut writer = self.writer.lock();
        self.settle(&mut writer);
        writer.rest();
        // Under the writer's lock: a write that begins says that there are buffers again.
        self.has_io_buffers.store(false, Ordering::Relaxed);
        drop(writer);
        self.readers.iter().for_each(|reader| reader.lock().rest());
        self.rest_unpacked();
        self.state.lock().clusters.give_buffers_back();
        self.streams.rest();
        if let Some(mut packer) = self.packer.try_lock() {
            packer.rest();
            self.packer_bytes.store(0, Ordering::Relaxed);
        }
    }
}
