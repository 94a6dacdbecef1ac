//! One server, as one process deals with it: its connections, and whether it is believed to answer.

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use super::Server;
use super::link::Link;
use super::trims::Trims;
use crate::store::CLUSTER_BYTES;
use crate::sys::contention::Class;
use crate::sys::socket::Patience;
use crate::sys::sync::{Mutex, MutexGuard};
use crate::sys::{Errno, Result};

/// How long a server that did not answer is asked last, and is given nothing to write. The time
/// doubles with each further failure, up to 32 times this, because each try costs some thread half
/// a second.
const DOWN_NS: u64 = 1_000_000_000;
const DOWN_LOG2_MOST: u32 = 5;

/// Loads that are on their way from one server at a time: as many as the cache has readers.
const READERS: usize = 4;
/// One more is for writes.
pub(super) const LINKS: usize = READERS + 1;
/// How long a connection for one more load at a time is tried: some hundred times as long as it
/// takes to make. A server that takes no more is not asked again for a second ([`DOWN_NS`]).
const MORE_NS: u64 = 100_000_000;

/// A server, and whether it answers.
pub(super) struct Peer {
    pub(super) server: Server,
    pub(super) reads: [Mutex<Link>; READERS],
    pub(super) writes: Mutex<Link>,
    /// Requests by the link for writes; taken after it.
    pub(super) trims: Mutex<Trims>,
    /// The numbers of the links' descriptors, to be read without their locks.
    pub(super) descriptors: [AtomicI32; LINKS],
    /// The time until which the server is believed not to answer, and how often in a row it has
    /// not.
    pub(super) down_until_ns: AtomicU64,
    pub(super) downs: AtomicU32,
    /// The time before which no more connections are tried.
    pub(super) more_at_ns: AtomicU64,
}

impl Peer {
    pub(super) fn new(server: Server) -> Peer {
        Peer {
            server,
            reads: [const { Mutex::of(Class::Link, Link::new()) }; READERS],
            writes: Mutex::of(Class::Link, Link::new()),
            trims: Mutex::new(Trims::new()),
            descriptors: [const { AtomicI32::new(-1) }; LINKS],
            down_until_ns: AtomicU64::new(0),
            downs: AtomicU32::new(0),
            more_at_ns: AtomicU64::new(0),
        }
    }

    pub(super) fn is_down(&self) -> bool {
        let until = self.down_until_ns.load(Ordering::Relaxed);
        until != 0 && crate::sys::now_ns() < until
    }

    pub(super) fn is_up(&self) {
        if self.down_until_ns.load(Ordering::Relaxed) != 0 {
            self.down_until_ns.store(0, Ordering::Relaxed);
            self.downs.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn goes_down(&self) {
        // A request that was already on its way when the server went down says nothing new.
        if !self.is_down() {
            let log2 = self.downs.fetch_add(1, Ordering::Relaxed).min(DOWN_LOG2_MOST);
            self.down_until_ns.store(crate::sys::now_ns() + (DOWN_NS << log2), Ordering::Relaxed);
        }
    }

    /// Those without which the server is of no use.
    pub(super) fn first_links(&self) -> [&Mutex<Link>; 2] {
        [&self.reads[0], &self.writes]
    }

    pub(super) fn links(&self) -> impl Iterator<Item = &Mutex<Link>> {
        self.first_links().into_iter().chain(&self.reads[1..])
    }

    /// A link to read up to `end` by: a free one, connected now if all others are in use.
    pub(super) fn reader(&self, end: u64) -> MutexGuard<'_, Link> {
        let mut closed = None;
        for (nth, link) in self.reads.iter().enumerate() {
            match link.try_lock() {
                Some(link) if link.is_open() => return link,
                Some(link) if closed.is_none() => closed = Some((nth, link)),
                _ => {}
            }
        }
        if let Some((nth, mut link)) = closed {
            if nth == 0 {
                return link;
            }
            let now = crate::sys::now_ns();
            if now >= self.more_at_ns.load(Ordering::Relaxed) {
                if self.open(&mut link, end, &mut Patience::new(MORE_NS)).is_ok() {
                    return link;
                }
                self.more_at_ns.store(now + DOWN_NS, Ordering::Relaxed);
            }
        }
        let any = self.reads[(end / CLUSTER_BYTES as u64) as usize % READERS].lock();
        if any.is_open() { any } else { self.reads[0].lock() }
    }

    /// Takes numbers for the connections. A connection that was there leaves its number to a new
    /// one, which is not made yet. An error of one link keeps no other from leaving its own.
    pub(super) fn reserve(&self) -> Result<()> {
        let mut reserved = Ok(());
        for (link, number) in self.links().zip(&self.descriptors) {
            let mut link = link.lock();
            reserved = reserved.and(link.reserve());
            number.store(link.descriptor(), Ordering::Release);
        }
        self.down_until_ns.store(0, Ordering::Relaxed);
        self.downs.store(0, Ordering::Relaxed);
        reserved
    }

    /// The bytes that the extents need must still be there: a server that was started again may
    /// have a smaller export.
    pub(super) fn open(&self, link: &mut Link, end: u64, patience: &mut Patience) -> Result<()> {
        link.open(&self.server, patience)?;
        if link.export().bytes < end {
            return Err(Errno::EIO);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_were_on_their_way_count_as_one_and_each_time_down_is_twice_as_long() {
        let peer = Peer::new(Server::NONE);
        let state =
            || (peer.down_until_ns.load(Ordering::Relaxed), peer.downs.load(Ordering::Relaxed));
        for n in 0..9 {
            // Never down, or for a time that is over.
            peer.down_until_ns.store(n.min(1), Ordering::Relaxed);
            let before = crate::sys::now_ns();
            peer.goes_down();
            let (until, downs) = state();
            let down_ns = DOWN_NS << n.min(DOWN_LOG2_MOST.into());
            assert!(before + down_ns <= until && until <= crate::sys::now_ns() + down_ns);
            assert_eq!(u64::from(downs), n + 1);
        }
        peer.down_until_ns.store(u64::MAX, Ordering::Relaxed);
        peer.goes_down();
        assert!(peer.is_down());
        assert_eq!(state(), (u64::MAX, 9));
        peer.is_up();
        assert!(!peer.is_down());
        assert_eq!(state(), (0, 0));
    }
}
