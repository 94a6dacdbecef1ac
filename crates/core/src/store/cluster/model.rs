//! The naive model of clusters: objects by place, and events that must agree with it. Slots are
//! given out, written, read, retired, discarded and used again; writes fail; nobody may ever see
//! another object than the one of their place.

use std::collections::HashMap;

use super::{AppendError, Clusters, Flush, MAX_OBJECT_BYTES, Place, blocks_of, sealed_range};
use crate::store::seal::Encryption;
use crate::store::testing::{Fault, MemoryStore};
use crate::store::{BLOCK_BYTES, CLUSTER_BYTES, Progress, QUEUE_BUFFERS, Queue};
use crate::sys::mem::Mapping;
use crate::testing::{Choices, object};

struct World {
    clusters: Clusters<MemoryStore>,
    queue: Queue,
    flushes: [Option<Flush<MemoryStore>>; QUEUE_BUFFERS],
    blocks: Mapping,
    /// Number and length of the object at each place.
    objects: HashMap<(u32, u16), (u64, usize)>,
    /// Its keys, so that one can be drawn.
    order: Vec<Place>,
}

impl World {
    fn draw(&self, choices: &mut impl Choices) -> Option<usize> {
        (!self.order.is_empty()).then(|| choices.index(self.order.len()))
    }

    fn append(&mut self, number: u64, len: usize) -> Result<(), AppendError> {
        let place = self.clusters.append(&object(number, len))?;
        let key = (place.cluster, place.offset);
        assert!(self.objects.insert(key, (number, len)).is_none(), "{place:?} is given out twice");
        self.order.push(place);
        Ok(())
    }

    fn release(&mut self, at: usize) {
        let place = self.order.swap_remove(at);
        let (_, len) = self.objects.remove(&(place.cluster, place.offset)).expect("it lives");
        self.clusters.release(place, len);
    }

    /// Starts to write a cluster if there is a buffer, and takes in what has been written.
    fn flush(&mut self, wait: bool) {
        self.queue.reap(wait);
        for slot in 0..QUEUE_BUFFERS {
            if let Some(result) = self.queue.take_result(slot) {
                let flush = self.flushes[slot].take().expect("a result is of a flush");
                self.clusters.end_flush(flush, result);
            }
        }
        let Some(slot) = self.queue.idle() else { return };
        let Some(flush) = self.clusters.begin_flush(self.queue.buffer(slot)) else { return };
        flush.seal(self.queue.buffer(slot));
        match flush.start(&mut self.queue, slot) {
            Progress::Queued => self.flushes[slot] = Some(flush),
            Progress::Ended(result) => self.clusters.end_flush(flush, result),
        }
    }

    fn settle(&mut self) {
        while self.flushes.iter().any(Option::is_some) {
            self.flush(true);
        }
    }

    /// Reads an object from where it is; a failed read is none.
    fn verify(&mut self, place: Place) {
        let (number, len) = self.objects[&(place.cluster, place.offset)];
        if let Some(bytes) = self.clusters.buffered(place, len) {
            assert_eq!(bytes, object(number, len), "in memory");
            return;
        }
        let source = self.clusters.source(place.cluster).expect("in memory or written");
        assert!(self.clusters.is_source(place.cluster, &source));
        let bytes = sealed_range(place.offset, len);
        let blocks = blocks_of(&bytes);
        if source.read(blocks.clone(), self.blocks.as_mut_slice()).is_err() {
            return;
        }
        let from = bytes.start - blocks.start * BLOCK_BYTES;
        let sealed = &mut self.blocks.as_mut_slice()[from..from + bytes.len()];
        let opened = source.open(place.offset, sealed).expect("what was written opens");
        assert_eq!(opened, object(number, len), "in the file");
    }

    fn check(&mut self) {
        self.settle();
        self.clusters.check();
        let stats = self.clusters.stats();
        assert_eq!(
            stats.live_bytes,
            self.objects.values().map(|(_, len)| *len as u64).sum::<u64>()
        );
    }
}

/// Runs events until there are so many, or no choices any more.
pub fn run(choices: &mut impl Choices, events: usize) {
    let store = MemoryStore::new();
    let encryption = [Encryption::On, Encryption::Off][choices.index(2)];
    let mut world = World {
        clusters: Clusters::new(Some(store), encryption).expect("memory"),
        queue: Queue::new(CLUSTER_BYTES).expect("memory"),
        flushes: [const { None }; QUEUE_BUFFERS],
        blocks: Mapping::new(CLUSTER_BYTES).expect("memory"),
        objects: HashMap::new(),
        order: Vec::new(),
    };
    // Phases swell and drain, so that clusters die and their slots are used again.
    let mut append_share = 50;
    for event in 0..events {
        if choices.is_over() {
            break;
        }
        match choices.below(100) {
            0 => {
                let n = 1 + choices.below(30);
                let fault = [Fault::Never, Fault::Once(n), Fault::From(n), Fault::Every(n + 1)];
                store.set_fault(fault[choices.index(4)]);
                store.set_late(choices.below(2) == 0);
            }
            1 => {
                world.clusters.clear_failure();
                append_share = [10, 35, 60, 80][choices.index(4)];
            }
            2 | 3 => {
                let Some(discard) = world.clusters.begin_discard() else { continue };
                discard.run();
                world.clusters.end_discard(discard);
            }
            // Compaction: the objects of a sparse cluster are appended again, elsewhere.
            4 | 5 => {
                let Some(victim) = world.clusters.sparse() else { continue };
                for at in (0..world.order.len()).rev() {
                    let place = world.order[at];
                    let (number, len) = world.objects[&(place.cluster, place.offset)];
                    if place.cluster == victim && world.append(number, len).is_ok() {
                        world.release(at);
                    }
                }
            }
            6..12 => {
                if let Some(at) = world.draw(choices) {
                    world.verify(world.order[at]);
                }
            }
            12..16 => world.flush(choices.below(4) == 0),
            16 => world.check(),
            _ if choices.below(100) < append_share => {
                // Large ones fill clusters soon; small ones make them many objects long.
                let len = 1 + choices.index([MAX_OBJECT_BYTES, 200, 2000][event % 3]);
                if world.append(choices.next(), len) == Err(AppendError::Full) {
                    world.flush(true);
                }
            }
            _ => {
                if let Some(at) = world.draw(choices) {
                    world.release(at);
                }
            }
        }
    }
    store.set_fault(Fault::Never);
    world.clusters.clear_failure();
    world.check();
    for at in 0..world.order.len() {
        world.verify(world.order[at]);
    }
    while !world.order.is_empty() {
        world.release(world.order.len() - 1);
    }
    world.check();
    assert_eq!(world.clusters.stats().live_clusters, 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn random_events_agree_with_the_model() {
        for seed in 0..6 {
            run(&mut Random::new(seed), 30_000);
        }
    }
}
