//! A store in the memory of other machines: a Valkey (or Redis) server, or a Cluster of them.
//!
//! ```text
//!   Clusters --- ValkeyStore --- ../extents: which values are whose
//!                     |             value: 64 KiB of a space without end, under one key
//!                 nodes: tries, writes under way --- link: the client, over a socket --- resp
//!                     |
//!                    map: which node has which key
//! ```
//!
//! Each process talks to the nodes itself, as it does to NBD servers (`../remote`), and believes
//! them as little: every object is sealed. Two things differ. A server has no place for a page
//! before it is written, so extents are numbers only, and the server says when it is full (`OOM`).
//! And a value that nobody renews is gone after the lease, so nothing stays behind of a run that
//! was killed. `uzswap run` renews.
//!
//! # Two copies
//! A primary answers before its replica has a write. So where it has a replica each value is
//! followed by `WAIT 1`, before the pages in it are given up ([decision
//! 34](../../../../../docs/decisions/0034-wait-for-a-replica.md)).
//!
//! # Waiting
//! A server has ten seconds, a Cluster sixty: for a replica to be elected. Then the page is lost
//! and its thread gets SIGBUS.

#[cfg(test)]
pub(crate) mod hostile;
mod link;
mod look;
mod many;
mod map;
mod node;
mod nodes;
pub mod resp;

pub use link::Failure;
pub use many::Verb;
pub use map::{NODES_MOST, TOO_MANY};
pub use node::Node;
pub use nodes::{CLUSTER_PATIENCE_NS, PATIENCE_NS, Valkey, errno_of};

use core::sync::atomic::Ordering;

use super::extents::owner;
use super::remote::{RemoteCounts, Server};
use super::{CLUSTER_BYTES, DESCRIPTORS, Progress, Queue, ReadQueue, Store};
use crate::sys::file::Fd;
use crate::sys::{Errno, Result};

/// A server no longer has a value that was written: ENODATA. The server was restarted, or the value
/// was deleted, evicted, has expired, or was lost in a failover.
pub const GONE: Errno = Errno::ENODATA;

/// `uz:` (by which an ACL can name our keys) and nine random letters of a run's: 54 bits.
pub const PREFIX_BYTES: usize = 12;
/// The prefix, and six letters for the value's number.
pub const KEY_BYTES: usize = PREFIX_BYTES + 6;
/// Letters of keys, six bits each: none of them means anything to a Cluster, as braces would.
pub const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
/// The terms that a run's processes agree on.
#[derive(Clone, Copy)]
pub struct Terms<'a> {
    /// The nodes that are named. The kind, the login and the extents of the first one are those of
    /// all.
    pub servers: &'a [Server],
    pub extent_bytes: u64,
    /// How long a value lives that nobody renews.
    pub lease_ms: u32,
    /// The beginning of the run's keys.
    pub key_prefix: [u8; PREFIX_BYTES],
}

/// How long a forked child waits for its connections. It makes the missing ones later, when it
/// needs them.
const CHILD_NS: u64 = 500_000_000;

/// The key of a value.
pub fn key_of(prefix: &[u8; PREFIX_BYTES], number: u64) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    key[..PREFIX_BYTES].copy_from_slice(prefix);
    for (i, letter) in key[PREFIX_BYTES..].iter_mut().rev().enumerate() {
        *letter = LETTERS[(number >> (6 * i) & 63) as usize];
    }
    key
}

/// The number of the value at a place: 64 KiB each.
pub fn number_of(at: u64) -> u64 {
    at / CLUSTER_BYTES as u64
}

/// One space. See [`Store`].
#[derive(Clone, Copy)]
pub struct ValkeyStore {
    valkey: &'static Valkey,
    space: u8,
}

impl ValkeyStore {
    /// Connects. Allocates all memory that is ever needed, so not for use in a fault.
    pub fn open(valkey: Valkey) -> Result<ValkeyStore> {
        let valkey: &'static Valkey = Box::leak(Box::new(valkey));
        let connected = valkey.connect(valkey.patience().left_ns() / 4);
        match connected.and_then(|()| valkey.extents.open_space()) {
            Ok(space) => Ok(ValkeyStore { valkey, space }),
            Err(e) => {
                ValkeyStore { valkey, space: 0 }.end();
                Err(e)
            }
        }
    }

    fn find(self, at: u64) -> Option<u64> {
        self.valkey.extents.find(self.space, at)[0].map(|spot| spot.at)
    }
}

impl Store for ValkeyStore {
    fn read(self, at: u64, buf: &mut [u8]) -> Result<()> {
        let at = self.find(at).ok_or(Errno::EIO)?;
        let from = (at % CLUSTER_BYTES as u64) as usize;
        if from + buf.len() > CLUSTER_BYTES {
            return Err(Errno::EINVAL);
        }
        self.valkey.read(number_of(at), from, buf)
    }

    /// A whole value by one request costs little more than a part of it: nothing is gained.
    fn read_ahead(self, _: &mut ReadQueue, _: u64, _: usize) -> bool {
        false
    }

    fn write(self, queue: &mut Queue, slot: usize, at: u64, len: usize) -> Progress {
        let valkey = self.valkey;
        let leased = valkey.extents.find_or_lease(self.space, at, owner(), 1, |_| true);
        let spot = match leased.and_then(|spots| spots[0].ok_or(Errno::ENOSPC)) {
            Ok(spot) => spot,
            Err(e) => return Progress::Ended(Err(e)),
        };
        let flight = valkey.write(number_of(spot.at), &queue.buffer(slot)[..len]);
        queue.lend(slot);
        valkey.flights.lock()[slot] = Some(flight);
        Progress::Queued
    }

    fn collect(self, queue: &mut Queue, waits: bool) {
        let mut flights = self.valkey.flights.lock();
        let mut has_waited = false;
        for (slot, flight) in flights.iter_mut().enumerate() {
            let Some(under_way) = flight else { continue };
            let landed = self.valkey.land(under_way, queue.lent(slot), waits && !has_waited);
            let Some(landed) = landed else { continue };
            has_waited = true;
            *flight = None;
            queue.give_back(slot, landed);
        }
    }

    fn discard(self, at: u64, _len: u64) {
        if let Some(at) = self.find(at) {
            self.valkey.unlink(number_of(at));
        }
    }

    fn fresh(self) -> Result<ValkeyStore> {
        Ok(ValkeyStore { valkey: self.valkey, space: self.valkey.extents.open_space()? })
    }

    fn close(self) {
        self.valkey.extents.close_space(self.space);
    }

    fn end(self) {
        self.valkey.nodes.iter().for_each(Node::close);
    }

    fn in_child(self, is_needed: bool) {
        let valkey = self.valkey;
        for count in valkey.counts.all() {
            count.store(0, Ordering::Relaxed);
        }
        let reserved = valkey.nodes.iter().map(Node::reserve).fold(Ok(()), Result::and);
        if reserved.is_ok() && is_needed {
            // A node that is not there now is tried again when it is needed.
            let _ = valkey.connect(CHILD_NS);
        }
    }

    fn is_inherited(self) -> bool {
        true
    }

    fn shared_descriptors(self) -> [Fd; DESCRIPTORS] {
        let of = |i: usize| self.valkey.nodes[i / 2].descriptors[i % 2].load(Ordering::Acquire);
        core::array::from_fn(of)
    }

    fn remote_counts(self) -> RemoteCounts {
        let [loads, timeouts, lone_copies] =
            self.valkey.counts.all().map(|c| c.load(Ordering::Relaxed));
        RemoteCounts { loads, timeouts, second_copies: 0, lone_copies }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::extents::{EXTENTS_MOST, Leases};
    use core::sync::atomic::AtomicU32;

    #[test]
    fn each_value_has_a_key_of_its_own_of_letters() {
        let prefix = b"uz:aaaaaaaaa";
        let key = |number| String::from_utf8(key_of(prefix, number).to_vec()).unwrap();
        assert_eq!(key(0), "uz:aaaaaaaaaAAAAAA");
        assert_eq!(key(63), "uz:aaaaaaaaaAAAAA_");
        assert_eq!(key(64), "uz:aaaaaaaaaAAAABA");
        assert_eq!(key((1 << 36) - 1), "uz:aaaaaaaaa______");
        let alone = (0..36).map(|bit| key(1 << bit)).collect::<std::collections::BTreeSet<_>>();
        assert_eq!(alone.len(), 36);
    }

    #[test]
    fn a_read_stays_within_a_unit_that_was_written_and_asks_nobody_else() {
        static LEASES: Leases = [const { AtomicU32::new(0) }; EXTENTS_MOST];
        let servers = &[Server { kind: Server::VALKEY, extents: 2, ..Server::NONE }];
        let key_prefix = *b"uz:aaaaaaaaa";
        let terms = Terms { servers, extent_bytes: 1 << 20, lease_ms: 1000, key_prefix };
        let valkey: &'static Valkey = Box::leak(Box::new(Valkey::new(&terms, &LEASES)));
        let store = ValkeyStore { valkey, space: valkey.extents.open_space().unwrap() };
        let mut buf = [0; 8192];
        assert_eq!(store.read(0, &mut buf), Err(Errno::EIO), "nothing is leased for it");
        valkey.extents.find_or_lease(store.space, 0, 1, 1, |_| true).unwrap();
        let last = CLUSTER_BYTES as u64 - 4096;
        assert_eq!(store.read(last, &mut buf), Err(Errno::EINVAL));
        // The next extent is another lease.
        assert_eq!(store.read(1 << 20, &mut buf), Err(Errno::EIO));
        let next = store.fresh().unwrap();
        assert_eq!(next.read(0, &mut buf), Err(Errno::EIO));
        assert_eq!(store.remote_counts(), RemoteCounts::default());
        assert!(store.shared_descriptors().iter().all(|fd| *fd == -1));
    }
}
