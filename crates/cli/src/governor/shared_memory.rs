//! Shared memory that the processes of a run map counts against the limit, each page once.
//!
//! It is anonymous memory that is shared from the start (`MAP_SHARED`), memfds, files of a tmpfs
//! such as /dev/shm, and System V segments. The memory group of a run counts it, and no process can
//! page it: a page may leave one mapping and stay in the others. So ordinary memory makes room for
//! it. This thread looks from outside, because it alone sees all mappings of a page: the kernel
//! divides a page among them (`Pss_Shmem`), so that the sum over the processes has it once. A part
//! that processes of others map is theirs.
//!
//! That sum costs the kernel a walk through the tables of each process. The kernel's own count
//! (`RssShmem`) has a page once for each mapping, and costs nothing: while this does not change,
//! the sum is not asked for. Files of a tmpfs that nobody maps are not seen.

use std::sync::Arc;
use std::thread;

use crate::control::Run;
use crate::procfs;
use crate::size::PAGE_BYTES;

use super::pace::Pace;

/// The least shared memory of a process that counts, 1 MiB: the block of counters that all of them
/// share with `uzswap run` is smaller.
const LEAST_BYTES: u64 = 1 << 20;
/// A change of the kernel's own count that is not worth a look at the tables, 512 KiB: it counts in
/// batches of some dozen pages for each thread.
const CHANGE_BYTES: u64 = 512 << 10;
/// The part of the limit, as a divisor, that shared memory leaves to ordinary memory: with less a
/// program stands still, and what shares the rest will not stop there.
const LEFT_PART: i64 = 4;

/// Watches the shared memory. Without a thread for it, it does not count.
pub fn start(run: Arc<Run>) {
    super::in_background("uzswap-shared", move || {
        let (mut pace, mut count) = (Pace::default(), Count::default());
        loop {
            pace.begin();
            look(&run, &mut count);
            thread::sleep(pace.pause());
        }
    });
}

fn look(run: &Run, count: &mut Count) {
    let mapped = run.live().filter_map(|(pid, _)| Some((pid, mapped_bytes(pid)?))).collect();
    let pages = (count.look(mapped, share_bytes) / PAGE_BYTES) as i64;
    let limit = run.tree.limit();
    run.tree.count_shared(pages, limit - limit / LEFT_PART);
    // A dormant process does not see by itself that others, or this memory, take its room.
    if pages > 0 && run.tree.used() > limit {
        run.live().for_each(|(_, slot)| slot.orders.ring());
    }
}

/// The shared memory that a process maps, a page once for each mapping.
fn mapped_bytes(pid: u32) -> Option<u64> {
    procfs::bytes_of(pid, "status", "RssShmem:")
}

/// A process's share of the shared memory that it maps. None: we may not look at its tables.
fn share_bytes(pid: u32) -> Option<u64> {
    procfs::bytes_of(pid, "smaps_rollup", "Pss_Shmem:")
}

/// The last look.
#[derive(Default)]
struct Count {
    /// Processes that mapped shared memory, and how much.
    mapped: Vec<(u32, u64)>,
    /// The memory of all of them, each page once.
    bytes: u64,
}

impl Count {
    /// The shared memory of processes that map so much, each page once; `share` is as
    /// [`share_bytes`].
    fn look(&mut self, mut mapped: Vec<(u32, u64)>, share: impl Fn(u32) -> Option<u64>) -> u64 {
        mapped.retain(|(_, bytes)| *bytes >= LEAST_BYTES);
        let is_near = |((a, before), (b, now)): (&(u32, u64), &(u32, u64))| {
            a == b && before.abs_diff(*now) < CHANGE_BYTES
        };
        let is_as_before =
            mapped.len() == self.mapped.len() && self.mapped.iter().zip(&mapped).all(is_near);
        if !is_as_before {
            let (mut seen, mut hidden) = (0, 0);
            for (pid, bytes) in &mapped {
                match share(*pid) {
                    Some(share) => seen += share,
                    // Mostly processes of one server, which map one memory: the largest stands for
                    // them.
                    None => hidden = hidden.max(*bytes),
                }
            }
            self.bytes = seen + hidden;
            self.mapped = mapped;
        }
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const MIB: u64 = 1 << 20;

    #[test]
    fn tables_are_looked_at_when_something_has_changed() {
        let mut count = Count::default();
        let looks = Cell::new(0);
        let share = |_| {
            looks.set(looks.get() + 1);
            Some(4 * MIB)
        };
        let mut look = |mapped: &[(u32, u64)]| (count.look(mapped.to_vec(), share), looks.get());
        assert_eq!(look(&[(1, MIB - 1)]), (0, 0), "too little to be looked at");
        assert_eq!(look(&[(1, 8 * MIB), (2, 8 * MIB)]), (8 * MIB, 2));
        assert_eq!(look(&[(1, 8 * MIB + 1), (2, 8 * MIB)]), (8 * MIB, 2));
        assert_eq!(look(&[(1, 9 * MIB), (2, 8 * MIB)]), (8 * MIB, 4));
        assert_eq!(look(&[(1, 9 * MIB)]), (4 * MIB, 5));
        assert_eq!(look(&[(3, 9 * MIB)]), (4 * MIB, 6));
        assert_eq!(look(&[]), (0, 6));
    }

    #[test]
    fn processes_that_cannot_be_looked_at_count_as_the_largest() {
        let mapped = vec![(1, 8 * MIB), (2, 30 * MIB), (3, 20 * MIB)];
        let share = |pid| (pid == 1).then_some(5 * MIB);
        assert_eq!(Count::default().look(mapped, share), 35 * MIB);
    }

    #[test]
    fn the_kernel_has_both_counts() {
        let me = std::process::id();
        assert!(mapped_bytes(me).is_some() && share_bytes(me).is_some());
        assert_eq!((mapped_bytes(u32::MAX), share_bytes(u32::MAX)), (None, None));
    }
}
