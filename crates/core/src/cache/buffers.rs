//! Buffers that nobody uses: a process that waits, for its turn or for input, needs no buffers.
//!
//! Buffers of clusters, of reads and writes, and the codecs' working memory are 1 to 1.5 MiB of a
//! process that pages. That is little for one of them, and a sixth of all memory where 24 compilers
//! wait for each other. A thread that needs them takes them again.

use core::sync::atomic::Ordering;

use super::SwapCache;
use crate::store::Store;

impl<S: Store> SwapCache<S> {
    /// Gives the buffers back that nobody uses, after reads and writes under way have ended.
    pub fn give_buffers_back(&self) {
        let packer_bytes = self.packer_bytes.load(Ordering::Relaxed);
        let unpacked_bytes = self.unpacked_bytes.load(Ordering::Relaxed);
        if !self.has_io_buffers.load(Ordering::Relaxed)
            && !self.streams.have_scratch()
            && packer_bytes + unpacked_bytes == 0
        {
            // A cluster that was begun and not written yet has taken buffers that nothing of this
            // counts.
            self.state.lock().clusters.give_buffers_back();
            return;
        }
        let mut writer = self.writer.lock();
        self.settle(&mut writer);
        writer.give_buffers_back();
        // Under the writer's lock: a write that begins says that there are buffers again.
        self.has_io_buffers.store(false, Ordering::Relaxed);
        drop(writer);
        self.readers.iter().for_each(|reader| reader.lock().give_buffers_back());
        self.give_unpacked_back();
        self.state.lock().clusters.give_buffers_back();
        self.streams.give_buffers_back();
        if let Some(mut packer) = self.packer.try_lock() {
            packer.give_buffers_back();
            self.packer_bytes.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{in_memory, loaded};
    use crate::store::CLUSTER_BYTES;
    use crate::testing::page;

    #[test]
    fn buffers_of_a_cluster_that_was_begun_go_back_though_nothing_was_written() {
        let (cache, _) = in_memory(usize::MAX);
        let entries: Vec<_> = (0..10).map(|n| cache.swap_out(&page(n)).unwrap()).collect();
        cache.give_buffers_back();
        cache.shrink(usize::MAX);
        let c = cache.counters();
        assert_eq!((c.store_pages, c.cluster_writes), (10, 0));
        cache.give_buffers_back();
        assert_eq!(cache.state.lock().clusters.buffers_bytes(), CLUSTER_BYTES);
        assert!(entries.iter().zip(0..).all(|(e, n)| loaded(&cache, *e) == page(n)));
        cache.check();
    }
}
