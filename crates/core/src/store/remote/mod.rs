//! A store in the memory (or on the disks) of other machines: NBD servers.
//!
//! ```text
//!   Clusters --- RemoteStore --- ../extents: which part of which export
//!                      |
//!                   servers: state, and their links  --- link: NBD's client, over a socket
//!                      |
//!                   trims: space that goes back, and that nobody waits for
//! ```
//!
//! The process that has the pages talks to the servers itself. A broker in `uzswap run` would cost
//! two wake-ups more for each load, and the pages would be gone with it; without one they are there
//! as long as the process and a server are (docs/decisions/0031-remote-without-a-broker.md).
//!
//! A server is believed as little as a disk is: each object is sealed under a key that never leaves
//! the process, by its place and the number of its use. So a server can neither read nor forge one,
//! nor pass off an older one for it; and an object that does not open is read from the other copy
//! ([`Store::read_copy`]), which is waited for like an only one if it cannot be read just now.
//!
//! # Waiting
//! A read has ten seconds ([`PATIENCE_NS`]), then the page is lost and its thread gets SIGBUS.
//! After five of them the server is asked again, by a new connection; so is one that takes the only
//! copy of a write. With another copy a server has half a second, then the other server is asked.
//! For a second after that, or longer each time, the first is asked last. Only threads that need
//! the same server wait meanwhile: each has a few links for reads and one for writes, each with a
//! lock.
//!
//! # Fork
//! The connections are the parent's. The child makes its own to the same exports and reads its
//! parent's extents by them; it writes to extents of its own.

#[cfg(test)]
#[allow(dead_code, reason = "some of it is for the tests of whole programs")]
pub(crate) mod hostile;
mod link;
mod peer;
mod servers;
mod trims;

pub use link::{ENOKEY, EPROTO, Export, Failure, Link, Ticket};
use peer::{LINKS, Peer};
pub use servers::Remote;

use core::sync::atomic::Ordering;

use super::extents::{Spots, owner};
use super::{DESCRIPTORS, Progress, Queue, ReadQueue, Store};
use crate::sys::file::Fd;
use crate::sys::socket::Patience;
use crate::sys::{Errno, Result};

/// Servers of one run.
pub const SERVERS_MOST: usize = 4;
/// Copies of one cluster.
pub const COPIES_MOST: usize = 2;

/// How long a read or a write is tried before it is given up.
pub const PATIENCE_NS: u64 = 10_000_000_000;
/// How long a forked child waits for its connections. It makes the missing ones later, when it
/// needs them.
const CHILD_NS: u64 = 500_000_000;

/// No server that has the page answers: EREMOTEIO.
pub const NO_ANSWER: Errno = Errno(121);

/// A server's address, as the kernel takes it, and the name of the export; or a device, whose path
/// is the name; or a node of Valkey's, where the name is the login. Plain bytes: a part of the
/// run's settings.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Server {
    pub address_len: u32,
    pub name_len: u32,
    /// Extents that are cut from the server's export.
    pub extents: u32,
    /// [`Server::NBD`], or another of these kinds.
    pub kind: u32,
    pub address: [u8; Server::ADDRESS_BYTES],
    pub name: [u8; Server::NAME_BYTES],
}

impl Server {
    /// `struct sockaddr_un` is the longest.
    pub const ADDRESS_BYTES: usize = 112;
    /// The longest name that servers must take is 4096 bytes; nobody has such a one.
    pub const NAME_BYTES: usize = 256;
    pub const NBD: u32 = 0;
    pub const DEVICE: u32 = 1;
    /// One Valkey or Redis server, and a node of a Cluster of them.
    pub const VALKEY: u32 = 2;
    pub const CLUSTER: u32 = 3;
    pub const NONE: Server = Server {
        address_len: 0,
        name_len: 0,
        extents: 0,
        kind: Server::NBD,
        address: [0; Server::ADDRESS_BYTES],
        name: [0; Server::NAME_BYTES],
    };

    /// `None`: one of them is too long.
    pub fn new(address: &[u8], name: &[u8]) -> Option<Server> {
        let mut server = Server::NONE;
        server.address.get_mut(..address.len())?.copy_from_slice(address);
        server.name.get_mut(..name.len())?.copy_from_slice(name);
        (server.address_len, server.name_len) = (address.len() as u32, name.len() as u32);
        Some(server)
    }

    /// `None`: the path is too long.
    pub fn device(path: &[u8]) -> Option<Server> {
        Some(Server { kind: Server::DEVICE, ..Server::new(&[], path)? })
    }

    pub fn is_valid(&self) -> bool {
        self.address_len as usize <= Server::ADDRESS_BYTES
            && self.name_len as usize <= Server::NAME_BYTES
            && self.kind <= Server::CLUSTER
    }

    pub fn address(&self) -> &[u8] {
        &self.address[..self.address_len as usize]
    }

    /// The export's name, or the device's path.
    pub fn export(&self) -> &[u8] {
        &self.name[..self.name_len as usize]
    }
}

/// Events so far in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteCounts {
    pub loads: u64,
    pub timeouts: u64,
    pub second_copies: u64,
    pub lone_copies: u64,
}

/// One space on the servers. See [`Store`].
#[derive(Clone, Copy)]
pub struct RemoteStore {
    remote: &'static Remote,
    space: u8,
}

impl RemoteStore {
    /// Connects. Allocates all memory that is ever needed, so not for use in a fault.
    pub fn open(remote: Remote) -> Result<RemoteStore> {
        let remote: &'static Remote = Box::leak(Box::new(remote));
        let opened = remote.peers().iter().try_for_each(Peer::reserve);
        let opened = opened.and_then(|()| remote.connect(PATIENCE_NS / SERVERS_MOST as u64));
        let store = RemoteStore { remote, space: 0 };
        match opened.and_then(|()| remote.extents.open_space()) {
            Ok(space) => Ok(RemoteStore { remote, space }),
            Err(e) => {
                store.end();
                Err(e)
            }
        }
    }

    fn spots(self, at: u64) -> Spots {
        self.remote.extents.find(self.space, at)
    }
}

impl Store for RemoteStore {
    fn read(self, at: u64, buf: &mut [u8]) -> Result<()> {
        self.remote.read(self.spots(at), buf)
    }

    fn copies(self, at: u64) -> usize {
        self.spots(at).into_iter().flatten().count()
    }

    fn read_copy(self, copy: usize, waits: bool, at: u64, buf: &mut [u8]) -> Result<()> {
        let spot = self.spots(at).get(copy).copied().flatten().ok_or(Errno::EIO)?;
        self.remote.counts.second_copies.fetch_add(1, Ordering::Relaxed);
        if waits {
            return self.remote.read([Some(spot), None], buf);
        }
        self.remote.read_from(spot, buf, &mut Patience::new(self.remote.hurry_ns))
    }

    /// A whole cluster by one request costs little more than a part of it: nothing is gained.
    fn read_ahead(self, _: &mut ReadQueue, _: u64, _: usize) -> bool {
        false
    }

    fn write(self, queue: &mut Queue, slot: usize, at: u64, len: usize) -> Progress {
        let remote = self.remote;
        let owner = owner();
        let is_up = |server: usize| !remote.peers[server].is_down();
        let copies = remote.copies;
        let leased = remote.extents.find_or_lease(self.space, at, owner, copies, is_up);
        let leased = leased
            .or_else(|_| remote.extents.find_or_lease(self.space, at, owner, copies, |_| true));
        let flight = leased.and_then(|spots| remote.write(spots, &queue.buffer(slot)[..len]));
        match flight {
            Ok(flight) => {
                queue.lend(slot);
                remote.flights.lock()[slot] = Some(flight);
                Progress::Queued
            }
            Err(e) => Progress::Ended(Err(e)),
        }
    }

    fn collect(self, queue: &mut Queue, waits: bool) {
        let mut flights = self.remote.flights.lock();
        let mut has_waited = false;
        for (slot, flight) in flights.iter_mut().enumerate() {
            let Some(under_way) = flight else { continue };
            let landed = self.remote.land(under_way, queue.lent(slot), waits && !has_waited);
            let Some(landed) = landed else { continue };
            has_waited = true;
            *flight = None;
            queue.give_back(slot, landed);
        }
    }

    fn discard(self, at: u64, len: u64) {
        self.spots(at).into_iter().flatten().for_each(|spot| self.remote.trim(spot, len));
    }

    fn fresh(self) -> Result<RemoteStore> {
        Ok(RemoteStore { remote: self.remote, space: self.remote.extents.open_space()? })
    }

    fn close(self) {
        self.remote.extents.close_space(self.space);
    }

    fn end(self) {
        self.remote.peers().iter().for_each(|p| p.links().for_each(|l| l.lock().close()));
    }

    fn in_child(self, is_needed: bool) {
        let remote = self.remote;
        for count in remote.counts.all() {
            count.store(0, Ordering::Relaxed);
        }
        let reserved = remote.peers().iter().map(Peer::reserve).fold(Ok(()), Result::and);
        if reserved.is_ok() && is_needed {
            // A server that is not there now is tried again when it is needed.
            let _ = remote.connect(CHILD_NS);
        }
    }

    fn is_inherited(self) -> bool {
        true
    }

    fn descriptor(self) -> Fd {
        -1
    }

    fn shared_descriptors(self) -> [Fd; DESCRIPTORS] {
        let peers = &self.remote.peers;
        let of =
            |i: usize| Some(peers.get(i / LINKS)?.descriptors[i % LINKS].load(Ordering::Acquire));
        core::array::from_fn(|i| of(i).unwrap_or(-1))
    }

    fn remote_counts(self) -> RemoteCounts {
        let [loads, timeouts, second_copies, lone_copies] =
            self.remote.counts.all().map(|c| c.load(Ordering::Relaxed));
        RemoteCounts { loads, timeouts, second_copies, lone_copies }
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicU32;

    use super::super::extents::{EXTENT_LEAST_BYTES, EXTENTS_MOST};
    use super::*;

    #[test]
    fn an_address_and_a_name_fit_to_the_last_byte_or_not_at_all() {
        let (address, name) = ([1; Server::ADDRESS_BYTES + 1], [2; Server::NAME_BYTES + 1]);
        let (longest, long) = (&address[1..], &name[1..]);
        let server = Server::new(longest, long).expect("both fit");
        assert!(server.is_valid() && server.address() == longest && server.export() == long);
        assert!(Server::device(long).is_some_and(|s| s.is_valid() && s.export() == long));
        assert!(Server::new(&address, long).is_none() && Server::new(longest, &name).is_none());
        assert!(Server::device(&name).is_none());
        // Settings from elsewhere.
        let (address_len, name_len) = (address.len() as u32, name.len() as u32);
        assert!(!Server { address_len, ..server }.is_valid());
        assert!(!Server { name_len, ..server }.is_valid());
        assert!(!Server { kind: Server::CLUSTER + 1, ..server }.is_valid());
    }

    #[test]
    fn a_place_that_was_never_written_is_asked_of_nobody() {
        let leases = Box::leak(Box::new([const { AtomicU32::new(0) }; EXTENTS_MOST]));
        // A server that cannot be connected to would be tried for ten seconds.
        let servers = [Server { extents: 8, ..Server::NONE }; 2];
        let remote: &Remote =
            Box::leak(Box::new(Remote::new(&servers, 2, EXTENT_LEAST_BYTES, leases)));
        let store = RemoteStore { remote, space: remote.extents.open_space().expect("the first") };
        let mut buf = [0; 4096];
        assert_eq!(store.read(0, &mut buf), Err(Errno::EIO));
        for copy in 0..=COPIES_MOST {
            assert_eq!(store.read_copy(copy, true, 0, &mut buf), Err(Errno::EIO));
        }
        assert_eq!(store.copies(0), 0);
        store.discard(0, 4096);
        // There is one copy where the other server was down as the place was leased.
        let up = |server: usize| server == 1;
        remote.extents.find_or_lease(store.space, 0, 1, 2, up).expect("there is room");
        assert_eq!(store.read_copy(1, true, 0, &mut buf), Err(Errno::EIO));
        assert_eq!(store.copies(0), 1);
        assert_eq!(store.remote_counts(), RemoteCounts::default());
        // Its space is gone when the store is closed, and there is one for the next.
        store.close();
        assert_eq!(store.read(0, &mut buf), Err(Errno::EIO));
        assert_eq!(store.fresh().map(|fresh| fresh.space), Ok(store.space));
    }
}
