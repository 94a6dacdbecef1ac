//! One node, as one process deals with it: two connections, whether its replica keeps up, and
//! whether it has just failed to do something for many keys.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use super::link::Link;
use super::resp::Address;
use crate::sys::Result;
use crate::sys::contention::Class;
use crate::sys::sync::Mutex;

/// How long a replica is waited for, in milliseconds. One that does not come in this time is not
/// waited for again for a while, twice as long each time, up to 32 seconds.
const WAIT_MS: u32 = 500;
const LONE_NS: u64 = 1_000_000_000;
const LONE_LOG2_MOST: u32 = 5;
/// How long a node is left alone that has come to nothing in a command for many keys. `uzswap run`
/// gives one for each extent: it must not wait for a dead node with each of them, and finds one
/// that is back before any lease ends.
const LEFT_ALONE_NS: u64 = 3_000_000_000;

/// A node, its connections, and whether its replica comes in time.
pub struct Node {
    pub(super) address: Mutex<Address>,
    /// Its name in redirections, as [`name_of`](super::resp::name_of) says it; 0: none is known.
    pub(super) name: AtomicU64,
    pub(super) reads: Mutex<Link>,
    pub(super) writes: Mutex<Link>,
    /// The numbers of the links' descriptors, to be read without their locks.
    pub(super) descriptors: [AtomicI32; 2],
    pub(super) has_replica: AtomicBool,
    /// The time until which the replica is not waited for, and how often in a row it has not come
    /// in time.
    lone_until_ns: AtomicU64,
    lones: AtomicU32,
    /// The time until which no command for many keys is given to it.
    left_alone_until_ns: AtomicU64,
}

impl Node {
    pub(super) fn new() -> Node {
        Node {
            address: Mutex::new(Address::NONE),
            name: AtomicU64::new(0),
            reads: Mutex::of(Class::Link, Link::new()),
            writes: Mutex::of(Class::Link, Link::new()),
            descriptors: [const { AtomicI32::new(-1) }; 2],
            has_replica: AtomicBool::new(false),
            lone_until_ns: AtomicU64::new(0),
            lones: AtomicU32::new(0),
            left_alone_until_ns: AtomicU64::new(0),
        }
    }

    pub fn address(&self) -> Address {
        *self.address.lock()
    }

    pub fn has_replica(&self) -> bool {
        self.has_replica.load(Ordering::Relaxed)
    }

    /// How long a replica is to be waited for, in milliseconds; 0: not at all.
    pub(super) fn wait_ms(&self) -> u32 {
        let until = self.lone_until_ns.load(Ordering::Relaxed);
        let is_lone = until != 0 && crate::sys::now_ns() < until;
        if self.has_replica() && !is_lone { WAIT_MS } else { 0 }
    }

    pub(super) fn replica_came(&self, came: bool) {
        if came {
            self.lones.store(0, Ordering::Relaxed);
            self.lone_until_ns.store(0, Ordering::Relaxed);
        } else {
            let log2 = self.lones.fetch_add(1, Ordering::Relaxed).min(LONE_LOG2_MOST);
            let until = crate::sys::now_ns() + (LONE_NS << log2);
            self.lone_until_ns.store(until, Ordering::Relaxed);
        }
    }

    /// Whether it is left alone for a while.
    pub(super) fn is_left_alone(&self) -> bool {
        let until = self.left_alone_until_ns.load(Ordering::Relaxed);
        until != 0 && crate::sys::now_ns() < until
    }

    pub(super) fn leave_alone(&self) {
        let until = crate::sys::now_ns() + LEFT_ALONE_NS;
        self.left_alone_until_ns.store(until, Ordering::Relaxed);
    }

    pub(super) fn links(&self) -> [&Mutex<Link>; 2] {
        [&self.reads, &self.writes]
    }

    /// Gives the number of each connection that was there to a new one, which is not made yet. An
    /// error of one link keeps no other from leaving its own.
    pub(super) fn reserve(&self) -> Result<()> {
        let mut reserved = Ok(());
        for (link, number) in self.links().into_iter().zip(&self.descriptors) {
            let mut link = link.lock();
            if link.descriptor() >= 0 {
                reserved = reserved.and(link.reserve());
                number.store(link.descriptor(), Ordering::Release);
            }
        }
        reserved
    }

    pub fn close(&self) {
        self.links().into_iter().for_each(|link| link.lock().close());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::file;

    fn load(of: &AtomicU64) -> u64 {
        of.load(Ordering::Relaxed)
    }

    #[test]
    fn a_replica_is_waited_for_if_there_is_one_and_it_came_the_last_time() {
        let node = Node::new();
        assert_eq!((node.wait_ms(), node.has_replica()), (0, false));
        node.has_replica.store(true, Ordering::Relaxed);
        assert_eq!(node.wait_ms(), WAIT_MS);
        for n in 0..9 {
            let before = crate::sys::now_ns();
            node.replica_came(false);
            let (until, lone_ns) = (load(&node.lone_until_ns), LONE_NS << n.min(LONE_LOG2_MOST));
            assert!(before + lone_ns <= until && until <= crate::sys::now_ns() + lone_ns);
            assert_eq!(node.lones.load(Ordering::Relaxed), n + 1);
        }
        node.lone_until_ns.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(node.wait_ms(), 0);
        // It is tried again when its time is over, and a time longer than that if it fails.
        node.lone_until_ns.store(1, Ordering::Relaxed);
        assert_eq!(node.wait_ms(), WAIT_MS);
        node.replica_came(true);
        assert_eq!((node.wait_ms(), load(&node.lone_until_ns)), (WAIT_MS, 0));
        assert_eq!(node.lones.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_node_is_left_alone_until_a_time_that_ends() {
        let node = Node::new();
        assert!(!node.is_left_alone());
        let before = crate::sys::now_ns();
        node.leave_alone();
        let until = load(&node.left_alone_until_ns);
        assert!(before + LEFT_ALONE_NS <= until && until <= crate::sys::now_ns() + LEFT_ALONE_NS);
        for (until, is_left) in [(u64::MAX, true), (before, false), (0, false)] {
            node.left_alone_until_ns.store(until, Ordering::Relaxed);
            assert_eq!(node.is_left_alone(), is_left);
        }
    }

    #[test]
    fn connections_that_were_there_keep_their_numbers_and_none_is_taken_for_others() {
        let node = Node::new();
        let numbers = || node.descriptors.each_ref().map(|number| number.load(Ordering::Acquire));
        // A process has a connection to each of a few nodes, and there is room for many.
        assert_eq!((node.reserve(), numbers()), (Ok(()), [-1; 2]));
        node.writes.lock().reserve().expect("a descriptor");
        let fd = node.writes.lock().descriptor();
        assert_eq!((node.reserve(), numbers()), (Ok(()), [-1, fd]));
        assert!(file::disk_bytes(fd).is_ok(), "it is open");
        node.close();
        assert_eq!(node.writes.lock().descriptor(), -1);
        assert_eq!((node.reserve(), numbers()[0]), (Ok(()), -1));
    }
}
