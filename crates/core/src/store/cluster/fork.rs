//! Fork: the two sides, and the file that they share.

use super::Clusters;
use super::record::{Cluster, ListName};
use crate::store::{DESCRIPTORS, Store};
use crate::sys::file::{self, Fd};

/// Forks whose children may still read our file. With more than that, places written before the
/// fork are never reused in this process: that costs disk, nothing else.
const MAX_SNAPSHOTS: usize = 64;

/// A fork whose child (or whose child's children) may still read our file.
#[derive(Clone, Copy)]
struct Snapshot {
    /// Clusters with smaller numbers were there at the fork.
    before: u64,
    read_end: Fd,
}

/// The forks that are not over yet, as far as our file is concerned.
pub struct Snapshots {
    all: [Snapshot; MAX_SNAPSHOTS],
    len: usize,
    /// Clusters with smaller numbers are never reused: there were too many snapshots, or no pipe.
    frozen_for_good: u64,
}

impl Snapshots {
    pub const fn new() -> Snapshots {
        Snapshots {
            all: [Snapshot { before: 0, read_end: -1 }; MAX_SNAPSHOTS],
            len: 0,
            frozen_for_good: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    fn list(&self) -> &[Snapshot] {
        &self.all[..self.len]
    }

    /// Clusters with smaller sequence numbers may still be read by a forked child.
    pub fn frozen_before(&self) -> u64 {
        self.list().iter().map(|s| s.before).fold(self.frozen_for_good, u64::max)
    }

    /// Forgets those whose children have gone; says whether there were any.
    fn poll(&mut self) -> bool {
        let mut fds = [-1; MAX_SNAPSHOTS];
        for (fd, s) in fds.iter_mut().zip(self.list()) {
            *fd = s.read_end;
        }
        let gone = if self.len > 0 { file::hung_up(&fds[..self.len]) } else { 0 };
        let mut kept = 0;
        for i in 0..self.len {
            if gone >> i & 1 == 1 {
                file::close(self.all[i].read_end);
            } else {
                self.all[kept] = self.all[i];
                kept += 1;
            }
        }
        self.len = kept;
        gone != 0
    }

    /// Forgets all forks.
    pub fn clear(&mut self) {
        self.list().iter().for_each(|s| file::close(s.read_end));
        (self.len, self.frozen_for_good) = (0, 0);
    }
}

/// The result of `prepare_fork`; one of the three ends of a fork takes it.
pub struct Leash {
    /// (read end, write end), if the child can read clusters of ours.
    ends: Option<(Fd, Fd)>,
    /// There should have been a pipe, but there is none.
    missing: bool,
}

impl<S: Store> Clusters<S> {
    /// Makes ready for a fork. If the child will be able to read clusters of ours, it gets the
    /// write end of a pipe and we keep the read end. When the pipe hangs up, the child is gone, and
    /// so are all its children that did not exec: no other process could read the clusters.
    pub fn prepare_fork(&mut self) -> Leash {
        self.poll_snapshots();
        let readable = self
            .own
            .and_then(|i| self.files[i].as_ref())
            .is_some_and(|f| f.live_clusters > 0 && f.store.is_inherited());
        let ends =
            if readable && self.snapshots.len < MAX_SNAPSHOTS { file::pipe().ok() } else { None };
        Leash { ends, missing: readable && ends.is_none() }
    }

    pub fn fork_failed(&mut self, leash: Leash) {
        if let Some((read_end, write_end)) = leash.ends {
            file::close(read_end);
            file::close(write_end);
        }
    }

    pub fn in_parent(&mut self, leash: Leash) {
        if let Some((read_end, write_end)) = leash.ends {
            file::close(write_end);
            self.snapshots.all[self.snapshots.len] =
                Snapshot { before: self.next_sequence, read_end };
            self.snapshots.len += 1;
        } else if leash.missing {
            self.snapshots.frozen_for_good = self.next_sequence;
        }
    }

    /// In the child our file has become another process's: a source, nothing to write to. The
    /// leashes of the files that were inherited already are inherited again, by the fork itself.
    pub fn in_child(&mut self, leash: Leash) {
        self.snapshots.clear();
        let all = [ListName::Idle, ListName::Holes, ListName::SetAside, ListName::Deferred];
        for name in all {
            while let Some(id) = self.records.pop(name) {
                self.records.free(id);
            }
        }
        if let Some((read_end, write_end)) = leash.ends {
            file::close(read_end);
            let own = self.own.and_then(|i| self.files[i].as_mut()).expect("a leash is for a file");
            own.leash = Some(write_end);
        }
        if let Some(i) = self.own.take()
            && self.files[i].as_ref().is_some_and(|f| f.live_clusters == 0)
        {
            self.close_file(i);
        }
        if let Some(origin) = self.origin {
            origin.in_child(self.live_bytes > 0);
        }
        (self.disk_blocks, self.written_blocks, self.written_bytes) = (0, 0, 0);
        // The failure was of the parent's file. A full disk will be found full again.
        self.failure = None;
    }

    /// Forgets the forks whose children have gone, and takes back the clusters that were kept for
    /// them.
    pub(super) fn poll_snapshots(&mut self) {
        if self.snapshots.poll() {
            let frozen = self.snapshots.frozen_before();
            let to =
                |c: &Cluster| if c.sequence < frozen { ListName::Deferred } else { ListName::Idle };
            self.records.sort_out(ListName::Deferred, to);
        }
    }

    /// All descriptors that the program must not be able to close.
    pub fn descriptors(&self) -> impl Iterator<Item = Fd> {
        let files =
            self.files.iter().flatten().flat_map(|f| [f.store.descriptor(), f.leash.unwrap_or(-1)]);
        let snapshots = self.snapshots.list().iter().map(|s| s.read_end);
        let shared = self.origin.map_or([-1; DESCRIPTORS], |o| o.shared_descriptors());
        files.chain(snapshots).chain(shared).filter(|&fd| fd >= 0)
    }
}
