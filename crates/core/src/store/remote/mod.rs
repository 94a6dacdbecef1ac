//! A store in the memory (or on the disks) of other machines: NBD servers.
//!
//! ```text
//!   Clusters --- RemoteStore --- ../extents: which part of which export
//!                      |
//!                   servers: state, two links each   --- link: NBD's client, over a socket
//! ```
//!
//! The process that has the pages talks to the servers itself. A broker in `uzswap run` would cost
//! two wake-ups more for each load, and the pages would be gone with it; as it is they are there as
//! long as the process and a server are (docs/decisions.md).
//!
//! What a server gives is believed as little as a disk is: each object is sealed under a key that
//! never leaves the process, by its place and the number of its use. So a server can neither read
//! nor forge one, nor pass off an older one for it; and what does not open is asked of the other
//! copy ([`Store::read_copy`]).
//!
//! # Waiting
//! A read has ten seconds ([`PATIENCE_NS`]), then the page is lost and its thread gets SIGBUS. With
//! another copy a server has half a second, then the other is asked; and for a second after that,
//! or longer each time, it is asked last. Nobody else waits meanwhile but for the same server:
//! there is a link for reads and one for writes, each with a lock.
//!
//! # Fork
//! The connections are the parent's. The child makes its own to the same exports and reads its
//! parent's extents by them; it writes to extents of its own.

#[cfg(test)]
#[allow(dead_code, reason = "some of it is for the tests of whole programs")]
pub(crate) mod hostile;
mod link;

pub use link::{ENOKEY, EPROTO, Export, Failure, Link, Ticket};

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use super::extents::{CLAIM_BYTES, Extents, Geometry, Leases, Spot, Spots, owner};
use super::{Progress, Queue, ReadQueue, Store};
use crate::nbd::{CMD_TRIM, CMD_WRITE};
use crate::store::{CLUSTER_BYTES, QUEUE_BUFFERS};
use crate::sys::file::Fd;
use crate::sys::socket::Patience;
use crate::sys::sync::Mutex;
use crate::sys::{Errno, Result};

/// Servers of one run.
pub const SERVERS_MOST: usize = 4;
/// Copies of one cluster.
pub const COPIES_MOST: usize = 2;
/// Descriptors of one process: two links to each server.
pub const DESCRIPTORS: usize = 2 * SERVERS_MOST;

/// How long a read or a write is tried before it is given up.
pub const PATIENCE_NS: u64 = 10_000_000_000;
/// How long a server is waited for where there is another copy: some hundred times what a load
/// takes, and little enough to wait for once.
const HURRY_NS: u64 = 500_000_000;
/// How long a server that did not answer is asked last, and given nothing to write; twice as long
/// each time that it still does not, up to 32 times. Each time costs somebody half a second.
const DOWN_NS: u64 = 1_000_000_000;
const DOWN_LOG2_MOST: u32 = 5;
/// Between two tries where no server answers.
const AGAIN_NS: u64 = 50_000_000;
/// How long a forked child waits for its connections; what it does not get then it makes later.
const CHILD_NS: u64 = 500_000_000;

/// No server that has the page answers: EREMOTEIO.
pub const NO_ANSWER: Errno = Errno(121);

/// A server's address, as the kernel takes it, and the name of the export; or a device, whose path
/// is the name. Plain bytes: a part of the run's settings.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Server {
    pub address_len: u32,
    pub name_len: u32,
    /// Extents that are cut from its export.
    pub extents: u32,
    /// 1: a block device.
    pub is_device: u32,
    pub address: [u8; Server::ADDRESS_BYTES],
    pub name: [u8; Server::NAME_BYTES],
}

impl Server {
    /// `struct sockaddr_un` is the longest.
    pub const ADDRESS_BYTES: usize = 112;
    /// The longest name that servers must take is 4096 bytes; nobody has such a one.
    pub const NAME_BYTES: usize = 256;
    pub const NONE: Server = Server {
        address_len: 0,
        name_len: 0,
        extents: 0,
        is_device: 0,
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
        Some(Server { is_device: 1, ..Server::new(&[], path)? })
    }

    pub fn is_valid(&self) -> bool {
        self.address_len as usize <= Server::ADDRESS_BYTES && self.name_len as usize <= Server::NAME_BYTES
    }

    pub fn address(&self) -> &[u8] {
        &self.address[..self.address_len as usize]
    }

    /// The export's name, or the device's path.
    pub fn export(&self) -> &[u8] {
        &self.name[..self.name_len as usize]
    }
}

/// What happened so far in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteCounts {
    pub loads: u64,
    pub timeouts: u64,
    pub second_copies: u64,
    pub lone_copies: u64,
}

#[derive(Default)]
struct Counts {
    loads: AtomicU64,
    timeouts: AtomicU64,
    second_copies: AtomicU64,
    lone_copies: AtomicU64,
}

/// A server, and how it is with it.
struct Peer {
    server: Server,
    reads: Mutex<Link>,
    writes: Mutex<Link>,
    /// The numbers of the links' descriptors, for whoever asks without their locks.
    descriptors: [AtomicI32; 2],
    /// Until when it is believed not to answer, and how often it has not, one time after the other.
    down_until_ns: AtomicU64,
    downs: AtomicU32,
}

/// One cluster on its way, and its copies.
#[derive(Clone, Copy)]
struct Flight {
    copies: [Option<Sent>; COPIES_MOST],
    len: usize,
    /// What is left for sending it again.
    patience: Patience,
}

/// Where one goes, and what came of it.
#[derive(Clone, Copy)]
struct Sent {
    spot: Spot,
    sent: core::result::Result<Ticket, Errno>,
    result: Option<Result<()>>,
    is_again: bool,
}

/// The servers of a run, for one process.
pub struct Remote {
    peers: [Peer; SERVERS_MOST],
    servers: usize,
    copies: usize,
    patience_ns: u64,
    hurry_ns: u64,
    /// When a page was last given up, 0: never. Who comes soon after that need not wait as long.
    lost_at_ns: AtomicU64,
    extents: Extents,
    flights: Mutex<[Option<Flight>; QUEUE_BUFFERS]>,
    counts: Counts,
}

/// One space on the servers. See [`Store`].
#[derive(Clone, Copy)]
pub struct RemoteStore {
    remote: &'static Remote,
    space: u8,
}

impl Peer {
    fn new(server: Server) -> Peer {
        Peer {
            server,
            reads: Mutex::new(Link::new()),
            writes: Mutex::new(Link::new()),
            descriptors: [const { AtomicI32::new(-1) }; 2],
            down_until_ns: AtomicU64::new(0),
            downs: AtomicU32::new(0),
        }
    }

    fn is_down(&self) -> bool {
        let until = self.down_until_ns.load(Ordering::Relaxed);
        until != 0 && crate::sys::now_ns() < until
    }

    fn is_up(&self) {
        if self.down_until_ns.load(Ordering::Relaxed) != 0 {
            self.down_until_ns.store(0, Ordering::Relaxed);
            self.downs.store(0, Ordering::Relaxed);
        }
    }

    fn goes_down(&self) {
        // Who was already on the way when it went down says nothing new.
        if !self.is_down() {
            let log2 = self.downs.fetch_add(1, Ordering::Relaxed).min(DOWN_LOG2_MOST);
            self.down_until_ns.store(crate::sys::now_ns() + (DOWN_NS << log2), Ordering::Relaxed);
        }
    }

    fn links(&self) -> [&Mutex<Link>; 2] {
        [&self.reads, &self.writes]
    }

    /// Takes numbers for the connections, of which none is there any more.
    fn reserve(&self) -> Result<()> {
        for (link, number) in self.links().into_iter().zip(&self.descriptors) {
            let mut link = link.lock();
            link.reserve()?;
            number.store(link.descriptor(), Ordering::Release);
        }
        self.down_until_ns.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// The bytes that the extents need must still be there: a server that was started again may
    /// have a smaller export.
    fn open(&self, link: &mut Link, end: u64, patience: &mut Patience) -> Result<()> {
        link.open(&self.server, patience)?;
        if link.export().bytes < end {
            return Err(Errno::EIO);
        }
        Ok(())
    }
}

impl Remote {
    /// For the processes of a run. Connects to nothing yet.
    pub fn new(servers: &[Server], copies: usize, extent_bytes: u64, leases: &'static Leases) -> Remote {
        let server = |i: usize| servers.get(i).copied().unwrap_or(Server::NONE);
        let geometry = Geometry::cut(extent_bytes, servers.iter().map(|s| s.extents as usize));
        Remote {
            peers: core::array::from_fn(|i| Peer::new(server(i))),
            servers: servers.len().min(SERVERS_MOST),
            copies: copies.clamp(1, COPIES_MOST),
            patience_ns: PATIENCE_NS,
            hurry_ns: HURRY_NS,
            lost_at_ns: AtomicU64::new(0),
            extents: Extents::new(geometry, leases),
            flights: Mutex::new([None; QUEUE_BUFFERS]),
            counts: Counts::default(),
        }
    }

    /// With another patience than ten seconds, for tests.
    #[cfg(test)]
    pub fn with_patience(self, patience_ns: u64) -> Remote {
        Remote { patience_ns, hurry_ns: patience_ns / 4, ..self }
    }

    fn peers(&self) -> &[Peer] {
        &self.peers[..self.servers]
    }

    /// Notes what came to nothing.
    fn failed(&self, peer: &Peer, why: Failure) -> Errno {
        if let Failure::Broken(_) = why {
            self.counts.timeouts.fetch_add(1, Ordering::Relaxed);
            peer.goes_down();
        }
        why.errno()
    }

    /// Reads from one copy. A connection that turns out to be broken is made again, once.
    fn read_from(&self, spot: Spot, buf: &mut [u8], patience: &mut Patience) -> Result<()> {
        let peer = &self.peers[spot.server];
        let mut link = peer.reads.lock();
        let end = spot.at + buf.len() as u64;
        let mut is_again = !link.is_open();
        loop {
            let read = match peer.open(&mut link, end, patience) {
                Ok(()) => link.read(spot.at, buf, patience),
                Err(e) => Err(Failure::Broken(e)),
            };
            match read {
                Ok(()) => {
                    self.counts.loads.fetch_add(1, Ordering::Relaxed);
                    peer.is_up();
                    return Ok(());
                }
                Err(Failure::Broken(_)) if !is_again && !patience.is_over() => {
                    is_again = true;
                    self.counts.timeouts.fetch_add(1, Ordering::Relaxed);
                }
                Err(why) => return Err(self.failed(peer, why)),
            }
        }
    }

    fn read(&self, spots: Spots, buf: &mut [u8]) -> Result<()> {
        let is_down = |spot: &Option<Spot>| spot.is_none_or(|s| self.peers[s.server].is_down());
        // By turns, so that the servers have equal parts of the work.
        let is_odd = |spot: Spot| spot.at / CLUSTER_BYTES as u64 % 2 == 1;
        let mut spots = spots;
        if spots[0].is_some_and(is_odd) && spots[1].is_some() {
            spots.swap(0, 1);
        }
        if is_down(&spots[0]) {
            spots.swap(0, 1);
        }
        let has_two = spots.iter().all(Option::is_some);
        let lost_at = self.lost_at_ns.load(Ordering::Relaxed);
        let is_lost = lost_at != 0 && crate::sys::now_ns().wrapping_sub(lost_at) < self.patience_ns;
        let mut patience = Patience::new(if is_lost { self.hurry_ns } else { self.patience_ns });
        let mut hurries = has_two;
        if spots == [None; COPIES_MOST] {
            return Err(Errno::EIO);
        }
        loop {
            for (i, spot) in spots.iter().enumerate() {
                let Some(spot) = spot else { continue };
                // The second one has what the first one leaves, and that is not nothing.
                let most = if has_two && i == 0 { patience.left_ns() / 2 } else { patience.left_ns() };
                let mut part = patience.at_most(if hurries { self.hurry_ns.min(most) } else { most });
                let before = part.left_ns();
                let read = self.read_from(*spot, buf, &mut part);
                patience.spend(before - part.left_ns());
                if read.is_ok() {
                    self.counts.second_copies.fetch_add(u64::from(i > 0), Ordering::Relaxed);
                    return Ok(());
                }
            }
            if patience.is_over() {
                self.lost_at_ns.store(crate::sys::now_ns(), Ordering::Relaxed);
                return Err(NO_ANSWER);
            }
            hurries = has_two && patience.left_ns() > self.patience_ns / 2;
            patience.sleep(AGAIN_NS);
        }
    }

    /// Starts to write one copy. A connection that turns out to be broken is made again; if that
    /// fails, again, while there is patience and `persists`.
    fn write_to(
        &self,
        spot: Spot,
        bytes: &[u8],
        persists: bool,
        patience: &mut Patience,
    ) -> core::result::Result<Ticket, Errno> {
        let peer = &self.peers[spot.server];
        let mut link = peer.writes.lock();
        let end = spot.at + bytes.len() as u64;
        let mut is_again = !link.is_open();
        loop {
            let sent = match peer.open(&mut link, end, patience) {
                Ok(()) => link.send(CMD_WRITE, spot.at, bytes.len(), bytes, patience),
                Err(e) => Err(Failure::Broken(e)),
            };
            match sent {
                Ok(ticket) => return Ok(ticket),
                Err(_) if !is_again => is_again = true,
                Err(why) if patience.is_over() || !persists => return Err(self.failed(peer, why)),
                Err(_) => patience.sleep(AGAIN_NS),
            }
        }
    }

    fn write(&self, spots: Spots, bytes: &[u8]) -> Result<Flight> {
        let has_two = spots.iter().all(Option::is_some);
        let patience = Patience::new(self.patience_ns);
        let mut flight = Flight { copies: [None; COPIES_MOST], len: bytes.len(), patience };
        let is_down = |spot: &Spot| self.peers[spot.server].is_down();
        let all_down = spots.iter().flatten().all(is_down);
        for (copy, spot) in flight.copies.iter_mut().zip(spots) {
            let Some(spot) = spot else { continue };
            let mut part = patience.at_most(if has_two { self.hurry_ns } else { self.patience_ns });
            // For one that does not answer nobody waits, if there is another.
            let skips = is_down(&spot) && !all_down;
            let sent = if skips { Err(NO_ANSWER) } else { self.write_to(spot, bytes, !has_two, &mut part) };
            *copy = Some(Sent { spot, sent, result: None, is_again: false });
        }
        let is_sent = flight.copies.iter().flatten().any(|copy| copy.sent.is_ok());
        if is_sent { Ok(flight) } else { Err(NO_ANSWER) }
    }

    /// What came of a cluster, if it is known by now; with `waits`, it is waited for.
    fn land(&self, flight: &mut Flight, bytes: &[u8], waits: bool) -> Option<Result<()>> {
        let bytes = &bytes[..flight.len];
        for i in 0..COPIES_MOST {
            // Written, or on its way.
            let is_other_there = flight.copies.iter().enumerate().any(|(j, other)| {
                j != i && other.is_some_and(|o| o.sent.is_ok() && !matches!(o.result, Some(Err(_))))
            });
            if let Some(copy) = &mut flight.copies[i]
                && copy.result.is_none()
            {
                self.land_copy(copy, bytes, &mut flight.patience, is_other_there, waits);
            }
        }
        let results = || flight.copies.iter().flatten().map(|copy| copy.result);
        if results().any(|result| result.is_none()) {
            return None;
        }
        let written = results().filter(|result| *result == Some(Ok(()))).count();
        if written == 0 {
            // That there is no room says more than that somebody is gone.
            let is_full = results().any(|result| result == Some(Err(Errno::ENOSPC)));
            return Some(Err(if is_full { Errno::ENOSPC } else { NO_ANSWER }));
        }
        self.counts.lone_copies.fetch_add(u64::from(written < self.copies), Ordering::Relaxed);
        Some(Ok(()))
    }

    /// What came of one copy. Where the connection broke on the way it is sent again: once, or, if
    /// there is no other, as long as there is patience.
    fn land_copy(
        &self,
        copy: &mut Sent,
        bytes: &[u8],
        patience: &mut Patience,
        is_other_there: bool,
        waits: bool,
    ) {
        let peer = &self.peers[copy.spot.server];
        loop {
            let ns = if is_other_there { self.hurry_ns } else { self.patience_ns };
            let mut part = patience.at_most(ns);
            let before = part.left_ns();
            let answer = match copy.sent {
                Ok(ticket) => peer.writes.lock().result(ticket, waits, &mut part),
                Err(e) => Some(Err(Failure::Refused(e))),
            };
            if let Some(Err(Failure::Broken(_))) = answer
                && !part.is_over()
                && (!copy.is_again || !is_other_there)
            {
                copy.is_again = true;
                self.counts.timeouts.fetch_add(1, Ordering::Relaxed);
                copy.sent = self.write_to(copy.spot, bytes, !is_other_there, &mut part);
                patience.spend(before - part.left_ns());
                continue;
            }
            patience.spend(before - part.left_ns());
            if answer == Some(Ok(())) {
                peer.is_up();
            }
            copy.result = answer.map(|result| result.map_err(|why| self.failed(peer, why)));
            return;
        }
    }

    fn trim(&self, spot: Spot, len: u64) {
        let peer = &self.peers[spot.server];
        let mut link = peer.writes.lock();
        if peer.is_down() || !link.is_open() || !link.export().can_trim() {
            return;
        }
        let trimmed = link.ask(CMD_TRIM, spot.at, len as usize, &[], &mut Patience::new(self.hurry_ns));
        if let Err(why) = trimmed {
            self.failed(peer, why);
        }
    }

    /// Connects to every server, as far as they answer; the last error if none does.
    fn connect(&self, ns: u64) -> Result<()> {
        let mut connected = Err(NO_ANSWER);
        for peer in self.peers() {
            for link in peer.links() {
                let end = CLAIM_BYTES + u64::from(peer.server.extents) * self.extents.extent_bytes();
                let opened = peer.open(&mut link.lock(), end, &mut Patience::new(ns));
                match opened {
                    Ok(()) => connected = Ok(()),
                    Err(e) => {
                        let why = self.failed(peer, Failure::Broken(e));
                        connected = connected.or(Err(why));
                        break;
                    }
                }
            }
        }
        connected
    }
}

impl RemoteStore {
    /// Connects. Allocates what it needs once and for all, so not in a fault.
    pub fn open(remote: Remote) -> Result<RemoteStore> {
        let remote: &'static Remote = Box::leak(Box::new(remote));
        let opened = remote.peers().iter().try_for_each(Peer::reserve);
        let opened = opened.and_then(|()| remote.connect(remote.patience_ns / SERVERS_MOST as u64));
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

    fn copies(self) -> usize {
        self.remote.copies
    }

    fn read_copy(self, copy: usize, at: u64, buf: &mut [u8]) -> Result<()> {
        let spot = self.spots(at).get(copy).copied().flatten().ok_or(Errno::EIO)?;
        self.remote.counts.second_copies.fetch_add(1, Ordering::Relaxed);
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
        let leased =
            leased.or_else(|_| remote.extents.find_or_lease(self.space, at, owner, copies, |_| true));
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
        self.remote.peers().iter().for_each(|p| p.links().iter().for_each(|l| l.lock().close()));
    }

    fn in_child(self, is_needed: bool) {
        let remote = self.remote;
        for count in remote.counts.all() {
            count.store(0, Ordering::Relaxed);
        }
        let reserved = remote.peers().iter().try_for_each(Peer::reserve);
        if reserved.is_ok() && is_needed {
            // What is not there now is tried again when it is needed.
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
        let of = |i: usize| self.remote.peers[i / 2].descriptors[i % 2].load(Ordering::Acquire);
        core::array::from_fn(of)
    }

    fn remote_counts(self) -> RemoteCounts {
        let [loads, timeouts, second_copies, lone_copies] =
            self.remote.counts.all().map(|c| c.load(Ordering::Relaxed));
        RemoteCounts { loads, timeouts, second_copies, lone_copies }
    }
}

impl Counts {
    fn all(&self) -> [&AtomicU64; 4] {
        [&self.loads, &self.timeouts, &self.second_copies, &self.lone_copies]
    }
}
