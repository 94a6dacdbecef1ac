//! Writeback: the oldest objects leave the pool for the store.
//!
//! ```text
//!  pool --oldest--> open cluster --full--> sealed in the queue's buffer --> in flight --> written
//!       under `state`              under `writer`, no other lock           found out by whoever comes next
//! ```
//! A cluster is filled and sealed while as many as there can be are in flight; only then is one of
//! them waited for, so that the disk does not wait for us.
//!
//! An object moves from the pool into the open cluster in one step under the lock, and is served
//! from there at once. So a write concerns a cluster and no entry: load, invalidate, and another
//! store of the same key may come at any time (see `store/cluster`). The kernel's design has to
//! revalidate its state after every unlock; here one question is left for the end: is anything
//! alive in the cluster?
//!
//! The races that other swap caches had cannot be here. *A load during writeback* finds the object
//! in the pool or in the cluster, never in between. *An entry twice on the LRU*: it is there
//! exactly while its location is `Pool`, and both are set under one lock. *Use after free outside
//! the lock*: no entry is touched outside it. *Counters after an area's end*: the one function that
//! drops entries changes them.

use core::sync::atomic::Ordering;

use super::entry::Mark;
use super::group::Oldest;
use super::keys::Which;
use super::read::Reader;
use super::{Location, Page, State, SwapCache, state};
use crate::pool::Pool;
use crate::store::cluster::{AppendError, CLUSTER_BYTES, Flush, Place, sealed_range};
use crate::store::{Progress, QUEUE_BUFFERS, QUEUE_DEPTH, Queue, Store};
use crate::sys::{PAGE_SIZE, Result};

/// Objects moved and frames freed by compaction in one portion of work under the lock.
const MOVED_AT_ONCE: usize = 16;
const COMPACT_FRAMES: usize = 8;
/// Waste in the pool that is not worth packing.
const SPARSE_SLACK_BYTES: usize = 512 << 10;
/// Frames that are given back to the kernel together.
const RELEASED_AT_ONCE: usize = 256;
/// Entries that are spared at most while looking for one to write back.
const MAX_SPARED: u32 = 256;
/// Dead places given back at one time.
const MAX_DISCARDS: usize = 4;

/// The writer's buffers: guarded by one lock, because one writer keeps several writes in flight.
pub struct Writer<S> {
    queue: Queue,
    /// The flush in each of the queue's buffers.
    flushes: [Option<Flush<S>>; QUEUE_BUFFERS],
    /// For compaction, which reads before it writes.
    reader: Reader,
}

impl<S> Writer<S> {
    pub const BYTES: usize = QUEUE_BUFFERS * CLUSTER_BYTES;

    pub fn new() -> Result<Self> {
        let flushes = [const { None }; QUEUE_BUFFERS];
        Ok(Writer { queue: Queue::new(CLUSTER_BYTES)?, flushes, reader: Reader::new()? })
    }

    /// Whether nothing is in flight.
    #[cfg(test)]
    pub fn is_idle(&self) -> bool {
        self.queue.is_idle()
    }

    /// In the child after fork.
    pub fn forget_parent(&mut self) {
        self.queue.forget();
    }

    /// In a child that was forked at any moment; it is only dropped from now on.
    pub fn abandon(&mut self) {
        self.queue.abandon();
        self.reader.abandon();
    }

    /// Gives the buffers back. Nothing is in flight.
    pub fn give_buffers_back(&mut self) {
        self.queue.give_buffers_back();
        self.reader.give_buffers_back();
    }
}

/// Memory of the pools.
struct Frames {
    used: usize,
    resident: usize,
    object_bytes: usize,
}

impl Frames {
    /// Whether more than an eighth is wasted, beside the frames that are always half filled in
    /// every size class.
    fn is_sparse(&self) -> bool {
        self.used * PAGE_SIZE > self.object_bytes + self.object_bytes / 8 + SPARSE_SLACK_BYTES
    }
}

/// The source of the objects for a flush.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// Only full clusters are written.
    No,
    /// The oldest objects of the pool fill the open cluster, if the pool has to become smaller.
    IfPoolFull,
    /// The oldest objects fill it in any case.
    Yes,
}

impl<S: Store> SwapCache<S> {
    /// Writes the least recently used objects back until `bytes` of the pool's memory are free, or
    /// nothing more can be done. Says how many bytes of memory went back to the kernel: frames that
    /// were free already count, too.
    pub fn shrink(&self, bytes: usize) -> usize {
        self.shrink_by(bytes, |frames| frames.resident)
    }

    /// As [`SwapCache::shrink`], until objects take `bytes` less. Says how many bytes less they
    /// take: frames that were free already go back, too, and do not count.
    pub fn shrink_used(&self, bytes: usize) -> usize {
        self.shrink_by(bytes, |frames| frames.used)
    }

    fn shrink_by(&self, bytes: usize, count: fn(&Frames) -> usize) -> usize {
        let before = count(&self.frames());
        let freed = || before.saturating_sub(count(&self.frames())) * PAGE_SIZE;
        // Frames go back to the kernel many at a time: the cost is mostly the call's.
        let mut wanted = bytes.div_ceil(PAGE_SIZE);
        loop {
            let Frames { used, resident, .. } = self.frames();
            let is_enough = before.saturating_sub(used) >= wanted;
            if is_enough || resident - used > RELEASED_AT_ONCE {
                self.release_frames();
            }
            if is_enough {
                // The pool keeps a few frames for itself.
                match bytes.saturating_sub(freed()) {
                    0 => break,
                    missing => wanted += missing.div_ceil(PAGE_SIZE),
                }
            }
            if !self.write_back(&mut self.writer.lock(), Fill::Yes) {
                // Nothing more can be written: copies of pages that are back go, and the objects
                // that are left are packed as densely as can be.
                let dropped = self.drop_copies(bytes.saturating_sub(freed()));
                while self.compact_pools() > 0 && freed() < bytes {
                    self.release_frames();
                }
                self.release_frames();
                if dropped == 0 || freed() >= bytes {
                    break;
                }
            }
        }
        self.settle(&mut self.writer.lock());
        freed()
    }

    fn frames(&self) -> Frames {
        let s = self.state.lock();
        let sum = |f: fn(&Pool) -> usize| s.pools.iter().map(f).sum();
        Frames {
            used: sum(Pool::used_frames),
            resident: sum(Pool::resident_frames),
            object_bytes: sum(Pool::object_bytes),
        }
    }

    pub(super) fn release_frames(&self) {
        for pool in &mut self.state.lock().pools {
            pool.release();
        }
    }

    /// One portion of packing objects together; says how many frames it freed.
    pub(super) fn compact_pools(&self) -> usize {
        let mut s = self.state.lock();
        let freed = s.pools.iter_mut().map(|p| p.compact(COMPACT_FRAMES)).sum();
        // A pinned object keeps the frame in whose place another one was taken.
        s.note_most_used();
        freed
    }

    /// Does a portion of writeback on behalf of a store that is done already, unless another thread
    /// is at it.
    pub(super) fn help_write_back(&self) {
        if let Some(mut w) = self.writer.try_lock() {
            self.write_back(&mut w, Fill::IfPoolFull);
        }
    }

    /// One portion of writeback: fills a cluster, starts to write it, and does some of the store's
    /// housekeeping. Waits for an earlier write if as many are in flight as can be. False if there
    /// was nothing to do, or the store does not take anything.
    pub(super) fn write_back(&self, w: &mut Writer<S>, fill: Fill) -> bool {
        self.harvest(w, false);
        // A cluster is filled before the wait for an earlier write, while the disk works.
        let moved = self.fill_cluster(fill);
        let slot = w.queue.idle().expect("one buffer more than there are writes in flight");
        let flush = self.state.lock().clusters.begin_flush(w.queue.buffer(slot));
        let Some(flush) = flush else { return moved > 0 };
        self.has_io_buffers.store(true, Ordering::Relaxed);
        flush.seal(w.queue.buffer(slot));
        while w.queue.busy() == QUEUE_DEPTH {
            self.harvest(w, true);
        }
        match flush.start(&mut w.queue, slot) {
            Progress::Queued => w.flushes[slot] = Some(flush),
            Progress::Ended(result) => self.end_flush(flush, result),
        }
        self.discard_some(w);
        self.compact_one(&mut w.reader);
        true
    }

    /// Moves the least recently used objects from the pool to the open cluster until it is full;
    /// says how many.
    fn fill_cluster(&self, fill: Fill) -> usize {
        let mut moved = 0;
        loop {
            let mut s = self.state.lock();
            if fill == Fill::No || fill == Fill::IfPoolFull && s.accepts() {
                break;
            }
            let (some, oldest) = s.move_oldest(MOVED_AT_ONCE);
            drop(s);
            moved += some;
            match oldest {
                Some(oldest)
                    if !self.disperse(&oldest, Which::default(), usize::MAX, &mut moved) =>
                {
                    break;
                }
                None if some < MOVED_AT_ONCE => break,
                _ => {}
            }
        }
        // A pool that has become sparse is packed as fast as it is emptied. Pages that came
        // together go together, so mostly there is nothing to pack.
        let mut packed = 0;
        while moved > 0 && packed * PAGE_SIZE < CLUSTER_BYTES && self.frames().is_sparse() {
            match self.compact_pools() {
                0 => break,
                n => packed += n,
            }
        }
        moved
    }

    /// Ends the flushes whose results have come in; with `wait`, at least one if there is any.
    pub(super) fn harvest(&self, w: &mut Writer<S>, wait: bool) {
        // Any flush can collect the results of all: they are of one store.
        if let Some(flush) = w.flushes.iter().flatten().next() {
            flush.collect(&mut w.queue, wait);
        }
        for slot in 0..QUEUE_BUFFERS {
            if let Some(result) = w.queue.take_result(slot) {
                let flush = w.flushes[slot].take().expect("a result is of a flush");
                self.end_flush(flush, result);
            }
        }
    }

    /// Waits for all flushes under way.
    pub(super) fn settle(&self, w: &mut Writer<S>) {
        while !w.queue.is_idle() {
            self.harvest(w, true);
        }
    }

    fn end_flush(&self, flush: Flush<S>, result: Result<()>) {
        let mut s = self.state.lock();
        match result {
            Ok(()) => {
                s.counters.cluster_writes += 1;
                s.counters.store_write_bytes += flush.bytes() as u64;
            }
            Err(_) => s.counters.write_errors += 1,
        }
        s.clusters.end_flush(flush, result);
    }

    /// Gives the disk space of some dead places back, if there are many.
    pub(super) fn discard_some(&self, _writer: &mut Writer<S>) {
        for _ in 0..MAX_DISCARDS {
            let Some(discard) = self.state.lock().clusters.begin_discard() else { return };
            discard.run();
            let mut s = self.state.lock();
            s.counters.discarded_clusters += 1;
            s.clusters.end_discard(discard);
        }
    }

    /// Moves the live objects of one sparse cluster to the open one, if the file has grown too
    /// large for its contents.
    fn compact_one(&self, reader: &mut Reader) {
        let (victim, source) = {
            let mut s = self.state.lock();
            let Some(victim) = s.clusters.sparse() else { return };
            let Some(source) = s.clusters.source(victim) else { return };
            (victim, source)
        };
        // An unreadable cluster is left alone: a load from it reports the error.
        if reader.fetch_all(&source).is_err() {
            return;
        }
        // One object at a time, so that nobody waits long; the cluster may have died or changed in
        // between.
        loop {
            let mut s = self.state.lock();
            if !s.clusters.is_source(victim, &source) {
                return;
            }
            let id = s.clusters.first(victim);
            let e = *s.entries.get(id);
            let Location::Stored(place) = e.location() else { unreachable!("in a cluster's list") };
            let bytes = sealed_range(place.offset, usize::from(e.len));
            let Some(object) = reader.open(&source, place, &bytes) else { return };
            match s.clusters.append(object) {
                Ok(new) => s.restore(id, place, new),
                Err(AppendError::Full | AppendError::Unwritable) => return,
            }
        }
    }
}

impl<S: Store> State<S> {
    /// Moves up to `max` of the least recently used objects from the pool to the open cluster,
    /// until it is full. Stops at a page of a group, and names it: a group is not dispersed under
    /// the lock.
    fn move_oldest(&mut self, max: usize) -> (usize, Option<Oldest>) {
        let mut moved = 0;
        let mut spared = 0;
        while moved < max && !self.clusters.has_full() && self.clusters.is_writable() {
            let Some(id) = self.oldest() else { break };
            let e = *self.entries.get(id);
            // One more than these may be an object without bytes, which cannot be moved: those
            // behind it can, as they were spared.
            let is_unfilled = self.is_unfilled(&e);
            let most = if is_unfilled { 2 * MAX_SPARED } else { MAX_SPARED };
            if (e.is(Mark::Referenced) || is_unfilled) && spared < most {
                self.counters.second_chances += u64::from(e.is(Mark::Referenced));
                self.spare(id);
                spared += 1;
                continue;
            }
            if let Location::Grouped(member) = e.location() {
                return (moved, Some(Oldest { id, spot: self.groups.spot(member) }));
            }
            if !self.move_to_store(id) {
                break;
            }
            moved += 1;
        }
        (moved, None)
    }

    /// Moves an object of the pool, not a kept one, to the open cluster. False: there is no room,
    /// or no bytes yet.
    pub(super) fn move_to_store(&mut self, id: u32) -> bool {
        let e = *self.entries.get(id);
        let Location::Pool(raw) = e.location() else {
            unreachable!("in a list of the pool, and whole")
        };
        if self.is_unfilled(&e) {
            return false;
        }
        let mut scratch: Page = [0; PAGE_SIZE];
        let object = state::object(&self.pools, e.pool, raw, &mut scratch);
        let Ok(place) = self.clusters.append(object) else { return false };
        self.unlink_pooled(id);
        self.free_object(e.pool, raw);
        self.entries.get_mut(id).set_location(Location::Stored(place));
        self.link_stored(id, place);
        self.counters.pool_pages -= 1;
        self.counters.store_pages += 1;
        self.counters.written_back_pages += 1;
        true
    }

    /// The object of a stored entry has moved to another cluster.
    fn restore(&mut self, id: u32, old: Place, new: Place) {
        self.unlink_stored(id, old);
        self.entries.get_mut(id).set_location(Location::Stored(new));
        self.link_stored(id, new);
        self.counters.compacted_pages += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::{Attempt, Content, Owner};
    use super::super::tests::{in_memory, loaded};
    use super::*;
    use crate::testing::page;

    #[test]
    fn frames_that_are_free_already_are_no_used_memory() {
        const BYTES: usize = 128 << 10;
        let (cache, _) = in_memory(usize::MAX);
        let entries: Vec<_> = (0..900).map(|n| cache.swap_out(&page(n)).unwrap()).collect();
        entries[..600].iter().for_each(|e| cache.free(*e));
        let Frames { used, resident, .. } = cache.frames();
        assert!((resident - used) * PAGE_SIZE > BYTES + (256 << 10), "more than the pool keeps");
        let freed = cache.shrink_used(BYTES);
        assert!(freed >= BYTES && (used - cache.frames().used) * PAGE_SIZE == freed);
        assert!(cache.counters().written_back_pages > 0);
        assert!((600..900).all(|n| loaded(&cache, entries[n]) == page(n as u64)));
        cache.check();
    }

    #[test]
    fn a_frame_that_compaction_takes_beside_a_pinned_object_counts_as_most_used() {
        let (cache, _) = in_memory(usize::MAX);
        let put = |len: usize| {
            let content = Content::Compressed(0, &[1; PAGE_SIZE][..len]);
            let Attempt::Done(entry) = cache.state.lock().take(Owner::Any, content) else {
                panic!("there is room")
            };
            entry
        };
        // Three frames of one zspage. The first comes free, and another class takes as much.
        let objects: Vec<_> = (0..9).map(|_| put(1240)).collect();
        [0, 1, 2, 3, 5, 6].iter().for_each(|i| cache.free(objects[*i]));
        put(3000);
        let pages = |bytes: u64| bytes / PAGE_SIZE as u64;
        assert_eq!(pages(cache.counters().mem_used_max_bytes), 3);
        let pinned = {
            let s = cache.state.lock();
            let e = *s.entries.get(s.lookup(objects[7]).expect("it is there"));
            let Location::Pool(raw) = e.location() else { panic!("an object of the pool") };
            s.pin(e.pool, state::handle(raw)).expect("this pool can")
        };
        // The last object moves to the begin of the zspage, and the pinned one holds its frame.
        assert_eq!(cache.compact(), 0);
        assert_eq!(pages(cache.counters().mem_used_bytes), 4);
        cache.check();
        assert_eq!(pinned.copy_to(&mut [0; PAGE_SIZE]), (&[1; 1240][..], None));
        assert_eq!(cache.compact(), 2);
        assert_eq!(pages(cache.counters().mem_used_max_bytes), 4);
        cache.check();
    }

    #[test]
    fn where_all_pages_were_asked_for_some_go_all_the_same() {
        let (cache, _) = in_memory(usize::MAX);
        let entries: Vec<_> = (0..600).map(|n| cache.swap_out(&page(n)).unwrap()).collect();
        let are_right = || (0..600).all(|n| loaded(&cache, entries[n]) == page(n as u64));
        assert!(are_right());
        let (moved, oldest) = cache.state.lock().move_oldest(5);
        assert!(moved == 5 && oldest.is_none());
        let c = cache.counters();
        assert_eq!((c.second_chances, c.written_back_pages), (u64::from(MAX_SPARED), 5));
        assert!(are_right());
        cache.check();
    }

    #[test]
    fn an_object_without_bytes_behind_all_that_are_spared_keeps_none_from_going() {
        let (cache, _) = in_memory(usize::MAX);
        let spared = u64::from(MAX_SPARED);
        let entries: Vec<_> = (0..spared).map(|n| cache.swap_out(&page(n)).unwrap()).collect();
        let are_right = || entries.iter().zip(0..).all(|(e, n)| loaded(&cache, *e) == page(n));
        assert!(are_right());
        // A thread is about to fill it.
        let content = Content::Compressed(0, &[1; 2000]);
        let (attempt, unfilled) = cache.state.lock().take_unfilled(Owner::Any, content);
        let (Attempt::Done(_), Some(unfilled)) = (attempt, unfilled) else { panic!("it has room") };
        assert!(cache.shrink_used(PAGE_SIZE) > 0);
        assert!(cache.counters().written_back_pages > 0);
        assert!(unfilled.fill(content.object()).is_none());
        assert!(are_right());
        cache.check();
    }
}
