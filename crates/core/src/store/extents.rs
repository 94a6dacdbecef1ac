//! Extents: the parts of a device, or of the exports of servers, that processes lease.
//!
//! Either is one flat array, and all processes of a run use it. So it is cut into extents, and the
//! run's processes share a table of them. A process leases an extent when it has filled those that
//! it has, and gives none back while it lives. `uzswap run` trims them and leases them out again
//! once the process is gone, and so are all processes that it forked, which can read them.
//!
//! ```text
//!   space (a process's flat array):    | 0      | 1      | 2      | ...
//!                                           |        |        +----------------+
//!                                      +----+        +------+                  |
//!   server 0:   | claim | extent 0 | extent 1 | extent 2 |  |                  |
//!   server 1:   | claim | extent 3 | extent 4 | extent 5 | (with --copies 2: one on each of two)
//! ```
//!
//! A place that is leased while one of two servers is down has one copy, and gets the other with
//! the first write after that. Then the second extent has only what is written from there on, so it
//! is read last.
//!
//! A process that scribbles over the table has others write over each other's extents: what they
//! read back does not open then (`store/seal.rs`) and is lost. Anybody who reaches the server or
//! the device could do the same.

use core::sync::atomic::{AtomicU32, Ordering};

use super::CLUSTER_BYTES;
use super::remote::{COPIES_MOST, SERVERS_MOST};
use crate::sys::mem::Table;
use crate::sys::{Errno, Result};

/// Extents of a run, over all servers.
pub const EXTENTS_MOST: usize = 4096;
/// The least that an extent has: so small an export as 64 MiB still serves 63 processes.
pub const EXTENT_LEAST_BYTES: u64 = 1 << 20;
/// Bytes before the first extent: the claim that says that a run uses the export.
pub const CLAIM_BYTES: u64 = CLUSTER_BYTES as u64;
/// Spaces that a process can have: its own, and those of its ancestors that it still reads from.
pub const SPACES: usize = 17;

/// In a table's entry: the second extent came later than the first.
const LATE: u32 = 1 << 31;
const _: () = assert!(EXTENTS_MOST < 1 << 15, "an extent's number leaves room for it");

/// The lessee of each extent: the id of a process in its run, 0: nobody.
pub type Leases = [AtomicU32; EXTENTS_MOST];

/// The id by which this process leases extents; 0: it has none.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Sets the id by which this process is known in its run.
pub fn set_owner(id: u32) {
    OWNER.store(id, Ordering::Release);
}

pub fn owner() -> u32 {
    OWNER.load(Ordering::Acquire)
}

/// How the exports are cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    pub extent_bytes: u64,
    /// The place in the table where each server's extents begin; and where the last one's end.
    pub first: [usize; SERVERS_MOST + 1],
}

impl Geometry {
    /// The cut of exports of these sizes.
    pub fn of(sizes: &[u64]) -> Geometry {
        // A server may state any size, and the sum of some is more than 64 bits hold.
        let total: u128 = sizes.iter().map(|bytes| u128::from(*bytes)).sum();
        let least = (total / (EXTENTS_MOST as u128 - 1)) as u64;
        let extent_bytes = least.next_power_of_two().max(EXTENT_LEAST_BYTES);
        let counts =
            sizes.iter().map(|bytes| (bytes.saturating_sub(CLAIM_BYTES) / extent_bytes) as usize);
        Self::cut(extent_bytes, counts)
    }

    /// A cut with so many extents on each server; never more in all than there can be.
    pub fn cut(extent_bytes: u64, counts: impl Iterator<Item = usize>) -> Geometry {
        let mut first = [0; SERVERS_MOST + 1];
        let mut end = 0;
        let mut counts = counts.fuse();
        for next in &mut first[1..] {
            end = (end + counts.next().unwrap_or(0)).min(EXTENTS_MOST);
            *next = end;
        }
        Geometry { extent_bytes, first }
    }

    pub fn extents_of(&self, server: usize) -> core::ops::Range<usize> {
        self.first[server]..self.first[server + 1]
    }

    /// The server that has an extent, and where on it the extent begins.
    pub fn at(&self, extent: usize) -> Option<(usize, u64)> {
        let server = (0..SERVERS_MOST).find(|s| self.extents_of(*s).contains(&extent))?;
        let before = (extent - self.first[server]) as u64;
        Some((server, CLAIM_BYTES + before * self.extent_bytes))
    }
}

/// One place of a space: a server and an offset on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spot {
    pub server: usize,
    pub at: u64,
    /// The extent was leased later than that of the other copy: it may lack what that one has.
    pub is_late: bool,
}

/// As many spots as there are copies.
pub type Spots = [Option<Spot>; COPIES_MOST];

/// The spaces of one process.
pub struct Extents {
    geometry: Geometry,
    leases: &'static Leases,
    /// By space and number in it: the extents of the two copies, each plus one, 16 bits each, of
    /// which the highest is [`LATE`].
    table: Table<AtomicU32>,
    in_use: [AtomicU32; SPACES],
}

impl Extents {
    pub const fn new(geometry: Geometry, leases: &'static Leases) -> Extents {
        let in_use = [const { AtomicU32::new(0) }; SPACES];
        Extents { geometry, leases, table: Table::new(), in_use }
    }

    pub fn extent_bytes(&self) -> u64 {
        self.geometry.extent_bytes
    }

    /// A space with nothing in it.
    pub fn open_space(&self) -> Result<u8> {
        let is_free =
            |u: &AtomicU32| u.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        self.in_use.iter().position(is_free).map(|i| i as u8).ok_or(Errno::EMFILE)
    }

    /// Forgets a space. A read from it that comes later finds nothing, or the bytes of the next
    /// space in its place, which do not open.
    pub fn close_space(&self, space: u8) {
        for number in 0..EXTENTS_MOST {
            let Some(entry) = self.table.get(index(space, number)) else { continue };
            if entry.load(Ordering::Relaxed) != 0 {
                entry.store(0, Ordering::Release);
            }
        }
        self.in_use[usize::from(space)].store(0, Ordering::Release);
    }

    /// The spots where the copies of a place of a space are.
    pub fn find(&self, space: u8, at: u64) -> Spots {
        let number = (at / self.geometry.extent_bytes) as usize;
        if number >= EXTENTS_MOST {
            return [None; COPIES_MOST];
        }
        let entry = self.table.get(index(space, number)).map_or(0, |e| e.load(Ordering::Acquire));
        self.spots(entry, at % self.geometry.extent_bytes)
    }

    /// Finds a place that is to be written: leases the extents for it that there are not yet, as
    /// many as `copies`, on servers that `may_use`. For one thread at a time in a space.
    pub fn find_or_lease(
        &self,
        space: u8,
        at: u64,
        owner: u32,
        copies: usize,
        may_use: impl Fn(usize) -> bool,
    ) -> Result<Spots> {
        let number = (at / self.geometry.extent_bytes) as usize;
        if number >= EXTENTS_MOST || owner == 0 {
            return Err(Errno::ENOSPC);
        }
        let entry = self.table.ensure(index(space, number))?;
        let before = entry.load(Ordering::Acquire);
        let bits = self.complete(before, owner, copies, &may_use);
        if bits == 0 {
            return Err(Errno::ENOSPC);
        }
        if bits != before {
            entry.store(bits, Ordering::Release);
        }
        Ok(self.spots(bits, at % self.geometry.extent_bytes))
    }

    /// An entry with the extents that it lacks, as far as there are any.
    fn complete(
        &self,
        entry: u32,
        owner: u32,
        copies: usize,
        may_use: &impl Fn(usize) -> bool,
    ) -> u32 {
        let mut bits = entry;
        let mut taken = self.spots(entry, 0).map(|spot| spot.map(|spot| spot.server));
        for copy in 0..copies {
            if taken[copy].is_some() {
                continue;
            }
            let Some((server, extent)) = self.lease(owner, &taken, may_use) else { break };
            taken[copy] = Some(server);
            bits |= (extent as u32 + 1) << (16 * copy);
        }
        if entry == 0 || bits == entry { bits } else { bits | LATE }
    }

    fn spots(&self, entry: u32, offset: u64) -> Spots {
        let of = |bits: u32, is_late: bool| {
            let (server, at) = self.geometry.at((bits & 0x7fff).checked_sub(1)? as usize)?;
            Some(Spot { server, at: at + offset, is_late })
        };
        [of(entry, false), of(entry >> 16, entry & LATE != 0)]
    }

    /// Takes an extent of the server that has most to give, of those not taken.
    fn lease(
        &self,
        owner: u32,
        taken: &[Option<usize>; COPIES_MOST],
        may_use: &impl Fn(usize) -> bool,
    ) -> Option<(usize, usize)> {
        let mut tried = [false; SERVERS_MOST];
        loop {
            let free = |server: usize| {
                let leases = &self.leases[self.geometry.extents_of(server)];
                leases.iter().filter(|l| l.load(Ordering::Relaxed) == 0).count()
            };
            let usable = |s: &usize| !tried[*s] && !taken.contains(&Some(*s)) && may_use(*s);
            let server = (0..SERVERS_MOST).filter(usable).max_by_key(|s| free(*s))?;
            tried[server] = true;
            for extent in self.geometry.extents_of(server) {
                let lease = &self.leases[extent];
                if lease.compare_exchange(0, owner, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                    return Some((server, extent));
                }
            }
        }
    }
}

fn index(space: u8, number: usize) -> usize {
    usize::from(space) * EXTENTS_MOST + number
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicBool;

    use super::*;

    fn leases() -> &'static Leases {
        Box::leak(Box::new([const { AtomicU32::new(0) }; EXTENTS_MOST]))
    }

    #[test]
    fn exports_are_cut_so_that_the_table_has_room() {
        let g = Geometry::of(&[64 << 20]);
        assert_eq!((g.extent_bytes, g.first), (EXTENT_LEAST_BYTES, [0, 63, 63, 63, 63]));
        assert_eq!(g.at(62), Some((0, CLAIM_BYTES + 62 * EXTENT_LEAST_BYTES)));
        assert_eq!(g.at(63), None);
        for sizes in [&[1 << 40, 1 << 30][..], &[1 << 45; 4], &[0, 10 << 20], &[u64::MAX / 4; 4]] {
            let g = Geometry::of(sizes);
            assert!(g.first[SERVERS_MOST] <= EXTENTS_MOST);
            for extent in 0..g.first[SERVERS_MOST] {
                let (server, at) = g.at(extent).unwrap();
                assert!(at + g.extent_bytes <= sizes[server], "an extent lies on its export");
            }
        }
    }

    #[test]
    fn each_of_the_largest_exports_there_can_be_has_its_part() {
        for sizes in [&[u64::MAX; SERVERS_MOST][..], &[i64::MAX as u64; 3], &[u64::MAX]] {
            let g = Geometry::of(sizes);
            assert!(g.first[SERVERS_MOST] <= EXTENTS_MOST);
            for (server, bytes) in sizes.iter().enumerate() {
                let last = g.extents_of(server).next_back().expect("it has some");
                let (its, at) = g.at(last).expect("there is such an extent");
                assert!(its == server && at <= bytes - g.extent_bytes && at > bytes / 4 * 3);
            }
        }
    }

    #[test]
    fn two_processes_never_have_one_extent_and_two_copies_never_one_server() {
        let leases = leases();
        let g = Geometry::of(&[10 << 20, 8 << 20, 5 << 20]);
        let (a, b) = (Extents::new(g, leases), Extents::new(g, leases));
        let (x, y) = (a.open_space().unwrap(), b.open_space().unwrap());
        let mut seen = std::collections::HashSet::new();
        let mut pairs = 0;
        for number in 0..30 {
            for (extents, space, owner) in [(&a, x, 1), (&b, y, 2)] {
                let at = number * EXTENT_LEAST_BYTES + 65536;
                let Ok(spots) = extents.find_or_lease(space, at, owner, 2, |_| true) else {
                    continue;
                };
                assert_eq!(extents.find(space, at), spots);
                let [first, second] = spots;
                assert_ne!(first.map(|s| s.server), second.map(|s| s.server));
                pairs += usize::from(second.is_some());
                for spot in spots.into_iter().flatten() {
                    assert!(seen.insert((spot.server, spot.at)), "{spot:?} is leased twice");
                }
            }
        }
        // 9, 7 and 4 extents: all of them, in pairs as long as there are two servers with some.
        assert_eq!((seen.len(), pairs), (20, 10));
        assert_eq!(a.find_or_lease(x, 31 * EXTENT_LEAST_BYTES, 1, 2, |_| true), Err(Errno::ENOSPC));
        assert_eq!(a.find_or_lease(x, u64::MAX, 1, 1, |_| true), Err(Errno::ENOSPC));
        assert_eq!(a.find_or_lease(x, 0, 0, 1, |_| true), Err(Errno::ENOSPC), "nobody's");
    }

    #[test]
    fn a_server_that_is_down_gets_nothing_new() {
        let extents = Extents::new(Geometry::of(&[40 << 20, 40 << 20]), leases());
        let space = extents.open_space().unwrap();
        let spots = extents.find_or_lease(space, 0, 7, 2, |server| server == 1).unwrap();
        assert_eq!((spots[0].map(|s| s.server), spots[1]), (Some(1), None));
        extents.close_space(space);
        assert_eq!(extents.find(space, 0), [None; 2]);
        let spaces: Vec<_> = (0..SPACES).map(|_| extents.open_space().unwrap()).collect();
        assert!(extents.open_space().is_err() && spaces.contains(&space));
    }

    #[test]
    fn a_copy_that_no_server_could_take_is_leased_with_the_next_write() {
        let leases = leases();
        let extents = Extents::new(Geometry::of(&[40 << 20, 40 << 20]), leases);
        let space = extents.open_space().unwrap();
        let is_up = [true; SERVERS_MOST].map(AtomicBool::new);
        let lease = |copies: usize| {
            let may_use = |server: usize| is_up[server].load(Ordering::Relaxed);
            let spots = extents.find_or_lease(space, 4096, 7, copies, may_use).unwrap();
            assert_eq!(extents.find(space, 4096), spots);
            spots.map(|spot| spot.map(|spot| (spot.server, spot.is_late)))
        };
        is_up[0].store(false, Ordering::Relaxed);
        let alone = [Some((1, false)), None];
        assert_eq!([lease(2), lease(2)], [alone; 2], "the other is down");
        is_up[0].store(true, Ordering::Relaxed);
        assert_eq!(lease(1), alone, "one is enough");
        is_up[1].store(false, Ordering::Relaxed);
        let both = [Some((1, false)), Some((0, true))];
        assert_eq!([lease(2), lease(2), lease(1)], [both; 3]);
        assert_eq!(leases.iter().filter(|l| l.load(Ordering::Relaxed) == 7).count(), 2);
    }

    #[test]
    fn a_space_ends_where_the_next_one_begins_and_what_it_leased_stays_leased() {
        let (leases, end) = (leases(), EXTENTS_MOST as u64 * EXTENT_LEAST_BYTES);
        let extents = Extents::new(Geometry::of(&[40 << 20]), leases);
        let [first, second] = [0, 1].map(|_| extents.open_space().unwrap());
        let lease = |space: u8, at: u64| extents.find_or_lease(space, at, 7, 1, |_| true);
        assert_eq!(lease(first, end), Err(Errno::ENOSPC));
        let spots = lease(first, end - 1).unwrap();
        assert_eq!((extents.find(first, end - 1), extents.find(first, end)), (spots, [None; 2]));
        assert_eq!(extents.find(second, 0), [None; 2]);
        let of_second = lease(second, 0).unwrap();
        extents.close_space(first);
        assert_eq!((extents.find(first, end - 1), extents.find(second, 0)), ([None; 2], of_second));
        assert_eq!(extents.open_space(), Ok(first), "it is free for another");
        assert_eq!(leases.iter().filter(|l| l.load(Ordering::Relaxed) == 7).count(), 2);
    }
}
