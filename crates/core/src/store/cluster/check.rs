//! The checker of clusters.

use super::buffer::BufferState;
use super::record::State;
use super::{Clusters, MAX_FILES};
use crate::store::Store;

impl<S: Store> Clusters<S> {
    /// Asserts every equation between records, lists, files and totals. Only while no flush or
    /// discard is under way.
    pub fn check(&self) {
        let mut live_bytes = 0;
        let (mut disk, mut written_blocks, mut written_bytes) = (0, 0, 0);
        let mut per_file = [0; MAX_FILES];
        let mut buffered = 0;
        for id in self.records.ids() {
            let c = self.records.get(id);
            let own = Some(usize::from(c.file)) == self.own;
            match c.state() {
                State::Unused => {}
                State::Buffered => {
                    let b = &self.buffers[usize::from(c.buffer)];
                    assert!(
                        b.cluster == id && b.state != BufferState::Unused,
                        "a buffer knows its cluster"
                    );
                    assert!(b.state != BufferState::Writing, "a flush is under way");
                    assert!(c.live > 0 || b.state == BufferState::Open);
                    live_bytes += u64::from(c.live_bytes);
                    buffered += 1;
                }
                State::Written => {
                    assert!(
                        c.live > 0
                            && c.blocks > 0
                            && c.disk_blocks >= c.blocks
                            && c.sequence < self.next_sequence
                    );
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
                    assert!(
                        c.state() == State::Idle || c.sequence < self.snapshots.frozen_before(),
                        "kept for nobody"
                    );
                    disk += u64::from(c.disk_blocks);
                }
                State::Discarding => panic!("a discard is under way"),
            }
        }
        self.records.check();
        let buffers = self.buffers.iter().filter(|b| b.state != BufferState::Unused).count();
        assert_eq!(buffers, buffered);
        assert_eq!(self.buffers.iter().position(|b| b.state == BufferState::Open), self.open);
        assert_eq!(live_bytes, self.live_bytes);
        assert_eq!(
            (disk, written_blocks, written_bytes),
            (self.disk_blocks, self.written_blocks, self.written_bytes)
        );
        for (i, n) in per_file.into_iter().enumerate() {
            assert_eq!(self.files[i].as_ref().map_or(0, |f| f.live_clusters), n);
            assert!(
                self.files[i].is_none() || n > 0 || self.own == Some(i),
                "a file that serves nobody is closed"
            );
        }
    }
}
