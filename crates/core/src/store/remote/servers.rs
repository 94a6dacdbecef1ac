//! The servers of a run, as one process deals with them: reads of one copy or the other, and writes
//! of both.

use core::sync::atomic::{AtomicU64, Ordering};

use super::link::{Failure, Ticket};
use super::peer::Peer;
use super::{COPIES_MOST, NO_ANSWER, PATIENCE_NS, SERVERS_MOST, Server};
use crate::nbd::CMD_WRITE;
use crate::store::extents::{CLAIM_BYTES, Extents, Geometry, Leases, Spot, Spots};
use crate::store::{CLUSTER_BYTES, QUEUE_BUFFERS};
use crate::sys::socket::Patience;
use crate::sys::sync::Mutex;
use crate::sys::{Errno, Result};

/// How long a server is waited for where there is another copy: some hundred times as long as a
/// load takes, and little enough to wait for once.
const HURRY_NS: u64 = 500_000_000;
/// The pause between two tries where no server answers.
const AGAIN_NS: u64 = 50_000_000;
/// The pause between two tries of a write that nobody waits for, and how long each of them takes at
/// most: whoever only looks loses little time, now and then.
const ASIDE_AGAIN_NS: u64 = 500_000_000;
const ASIDE_NS: u64 = 100_000_000;

#[derive(Default)]
pub(super) struct Counts {
    pub(super) loads: AtomicU64,
    pub(super) timeouts: AtomicU64,
    pub(super) second_copies: AtomicU64,
    pub(super) lone_copies: AtomicU64,
}

/// One cluster on its way, and its copies.
#[derive(Clone, Copy)]
pub(super) struct Flight {
    copies: [Option<Sent>; COPIES_MOST],
    len: usize,
    /// The time left for sending it again.
    patience: Patience,
}

/// One copy: where it goes, and its outcome.
#[derive(Clone, Copy)]
struct Sent {
    spot: Spot,
    sent: core::result::Result<Ticket, Errno>,
    result: Option<Result<()>>,
    is_again: bool,
    /// The time before which it is not sent again, unless somebody waits.
    again_at_ns: u64,
}

/// The servers of a run, for one process.
pub struct Remote {
    pub(super) peers: [Peer; SERVERS_MOST],
    pub(super) servers: usize,
    pub(super) copies: usize,
    pub(super) patience_ns: u64,
    pub(super) hurry_ns: u64,
    /// When a page was last given up, 0: never. A thread that comes soon after need not wait as
    /// long.
    pub(super) lost_at_ns: AtomicU64,
    pub(super) extents: Extents,
    pub(super) flights: Mutex<[Option<Flight>; QUEUE_BUFFERS]>,
    pub(super) counts: Counts,
}

impl Remote {
    /// The servers for the processes of a run. Connects to nothing yet.
    pub fn new(
        servers: &[Server],
        copies: usize,
        extent_bytes: u64,
        leases: &'static Leases,
    ) -> Remote {
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

    /// The servers with another patience than ten seconds, once they are connected, for tests.
    #[cfg(test)]
    pub fn with_patience(self, patience_ns: u64) -> Remote {
        Remote { patience_ns, hurry_ns: patience_ns / 4, ..self }
    }

    pub(super) fn peers(&self) -> &[Peer] {
        &self.peers[..self.servers]
    }

    /// Notes a request that failed.
    pub(super) fn failed(&self, peer: &Peer, why: Failure) -> Errno {
        if let Failure::Broken(_) = why {
            self.counts.timeouts.fetch_add(1, Ordering::Relaxed);
            peer.goes_down();
        }
        why.errno()
    }

    /// Reads from one copy. A connection that turns out to be broken is made again, once.
    pub(super) fn read_from(
        &self,
        spot: Spot,
        buf: &mut [u8],
        patience: &mut Patience,
    ) -> Result<()> {
        let peer = &self.peers[spot.server];
        let end = spot.at + buf.len() as u64;
        let mut link = peer.reader(end);
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

    pub(super) fn read(&self, spots: Spots, buf: &mut [u8]) -> Result<()> {
        let is_down = |spot: &Option<Spot>| spot.is_none_or(|s| self.peers[s.server].is_down());
        // By turns, so that the servers have equal parts of the work.
        let is_odd = |spot: Spot| spot.at / CLUSTER_BYTES as u64 % 2 == 1;
        let mut spots = spots;
        if spots[0].is_some_and(is_odd) && spots[1].is_some_and(|spot| !spot.is_late) {
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
        let mut tries = 0;
        loop {
            for (i, spot) in spots.iter().enumerate() {
                let Some(spot) = spot else { continue };
                // The second copy has the time that the first one leaves, and that is not nothing.
                // Nor is that of a second try: a connection that a firewall has forgotten says
                // nothing for ever, and a new one works.
                let halves = if has_two { i == 0 } else { tries == 0 };
                let most = if halves { patience.left_ns() / 2 } else { patience.left_ns() };
                tries += 1;
                let mut part =
                    patience.at_most(if hurries { self.hurry_ns.min(most) } else { most });
                let before = part.left_ns();
                let read = self.read_from(*spot, buf, &mut part);
                patience.spend(before - part.left_ns());
                if read.is_ok() {
                    let is_second = has_two && i > 0;
                    self.counts.second_copies.fetch_add(u64::from(is_second), Ordering::Relaxed);
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
    /// fails, again, while there is patience and `persists`. Then the first try has half of it: a
    /// connection that a firewall has forgotten says nothing for ever, and a new one works.
    fn write_to(
        &self,
        spot: Spot,
        bytes: &[u8],
        persists: bool,
        patience: &mut Patience,
    ) -> core::result::Result<Ticket, Errno> {
        let peer = &self.peers[spot.server];
        let mut link = peer.writes.lock();
        // A TRIM of the place has the time of a write, beside that of the write.
        let mut whole = Patience::new(self.patience_ns);
        let trims = if persists { &mut whole } else { &mut *patience };
        let end = spot.at + bytes.len() as u64;
        let settled = peer.trims.lock().settle(&mut link, spot.at..end, self.patience_ns, trims);
        settled.map_err(|why| self.failed(peer, why))?;
        let mut is_again = !link.is_open();
        let mut most = if persists { patience.left_ns() / 2 } else { patience.left_ns() };
        loop {
            let mut part = patience.at_most(most);
            let before = part.left_ns();
            let sent = match peer.open(&mut link, end, &mut part) {
                Ok(()) => link.send(CMD_WRITE, spot.at, bytes.len(), bytes, &mut part),
                Err(e) => Err(Failure::Broken(e)),
            };
            patience.spend(before - part.left_ns());
            most = patience.left_ns();
            match sent {
                Ok(ticket) => return Ok(ticket),
                Err(_) if !is_again => is_again = true,
                Err(why) if patience.is_over() || !persists => return Err(self.failed(peer, why)),
                Err(_) => patience.sleep(AGAIN_NS),
            }
        }
    }

    pub(super) fn write(&self, spots: Spots, bytes: &[u8]) -> Result<Flight> {
        let has_two = spots.iter().all(Option::is_some);
        let patience = Patience::new(self.patience_ns);
        let mut flight = Flight { copies: [None; COPIES_MOST], len: bytes.len(), patience };
        let is_down = |spot: &Spot| self.peers[spot.server].is_down();
        loop {
            let all_down = spots.iter().flatten().all(is_down);
            let left_ns = flight.patience.left_ns();
            let most = match has_two {
                true if left_ns > self.patience_ns / 2 => self.hurry_ns,
                true => left_ns / 2,
                false => left_ns,
            };
            for (copy, spot) in flight.copies.iter_mut().zip(spots) {
                let Some(spot) = spot else { continue };
                let mut part = flight.patience.at_most(most);
                let before = part.left_ns();
                // Nobody waits for a server that does not answer, if there is another.
                let skips = is_down(&spot) && !all_down;
                let sent = if skips {
                    Err(NO_ANSWER)
                } else {
                    self.write_to(spot, bytes, !has_two, &mut part)
                };
                flight.patience.spend(before - part.left_ns());
                *copy = Some(Sent { spot, sent, result: None, is_again: false, again_at_ns: 0 });
            }
            if flight.copies.iter().flatten().any(|copy| copy.sent.is_ok()) {
                return Ok(flight);
            }
            // To give up ends writing for good, and the outage of both may be a short one.
            if flight.patience.is_over() {
                return Err(NO_ANSWER);
            }
            flight.patience.sleep(AGAIN_NS);
        }
    }

    /// The outcome of a cluster's flight, if it is known by now; with `waits`, it is waited for.
    pub(super) fn land(
        &self,
        flight: &mut Flight,
        bytes: &[u8],
        waits: bool,
    ) -> Option<Result<()>> {
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
            // The error of a server without room, or with a bad place, is passed on rather than
            // that of one that is gone.
            let said = |why: &Errno| results().any(|result| result == Some(Err(*why)));
            let why = [Errno::ENOSPC, Errno::EIO].into_iter().find(said);
            return Some(Err(why.unwrap_or(NO_ANSWER)));
        }
        self.counts.lone_copies.fetch_add(u64::from(written < self.copies), Ordering::Relaxed);
        Some(Ok(()))
    }

    /// The outcome of one copy. A copy whose connection broke on the way is sent again: once, or,
    /// if there is no other, as long as there is patience.
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
            // Half, as in `write_to`.
            let most = if is_other_there { self.hurry_ns } else { self.patience_ns / 2 };
            let mut part = patience.at_most(most);
            let before = part.left_ns();
            let answer = match copy.sent {
                Ok(ticket) => peer.writes.lock().result(ticket, waits, &mut part),
                Err(e) => Some(Err(Failure::Refused(e))),
            };
            patience.spend(before - part.left_ns());
            // The other half is for a new connection.
            let again = if is_other_there { part } else { *patience };
            if let Some(Err(Failure::Broken(_))) = answer
                && !again.is_over()
                && (!copy.is_again || !is_other_there)
            {
                if !waits && crate::sys::now_ns() < copy.again_at_ns {
                    return;
                }
                let mut part = if waits { again } else { again.at_most(ASIDE_NS) };
                let before = part.left_ns();
                let is_sent = self.send_again(copy, bytes, &mut part, is_other_there, waits);
                patience.spend(before - part.left_ns());
                if !is_sent {
                    return;
                }
                continue;
            }
            if answer == Some(Ok(())) {
                peer.is_up();
            }
            copy.result = answer.map(|result| result.map_err(|why| self.failed(peer, why)));
            return;
        }
    }

    /// Sends a copy again. False: it does not work just now, and nobody waits.
    fn send_again(
        &self,
        copy: &mut Sent,
        bytes: &[u8],
        patience: &mut Patience,
        is_other_there: bool,
        waits: bool,
    ) -> bool {
        if waits && copy.is_again {
            patience.sleep(AGAIN_NS);
        }
        copy.is_again = true;
        self.counts.timeouts.fetch_add(1, Ordering::Relaxed);
        let sent = self.write_to(copy.spot, bytes, waits && !is_other_there, patience);
        if sent.is_err() && !waits && !is_other_there {
            copy.again_at_ns = crate::sys::now_ns() + ASIDE_AGAIN_NS;
            return false;
        }
        copy.sent = sent;
        true
    }

    pub(super) fn trim(&self, spot: Spot, len: u64) {
        let peer = &self.peers[spot.server];
        let mut link = peer.writes.lock();
        if peer.is_down() || !link.is_open() || !link.export().can_trim() {
            return;
        }
        let sent = peer.trims.lock().send(&mut link, spot.at, len as usize, self.patience_ns);
        if let Err(why) = sent {
            self.failed(peer, why);
        }
    }

    /// Connects to every server, as far as they answer; the last error if none does.
    pub(super) fn connect(&self, ns: u64) -> Result<()> {
        let mut connected = Err(NO_ANSWER);
        for peer in self.peers() {
            for link in peer.first_links() {
                let end =
                    CLAIM_BYTES + u64::from(peer.server.extents) * self.extents.extent_bytes();
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

impl Counts {
    pub(super) fn all(&self) -> [&AtomicU64; 4] {
        [&self.loads, &self.timeouts, &self.second_copies, &self.lone_copies]
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicBool, AtomicU32};
    use std::path::PathBuf;

    use super::super::hostile::{Hostile, Mode};
    use super::*;
    use crate::store::extents::{EXTENT_LEAST_BYTES, EXTENTS_MOST};
    use crate::store::testing::LONG_PATIENCE_NS;

    const EXPORT_BYTES: usize = 1 << 20;
    const CLAIM: usize = CLAIM_BYTES as usize;
    const BYTES: [u8; 4096] = [7; 4096];

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("uzswap-servers-{}-{name}", std::process::id()))
    }

    /// The part of a process, for servers at these places, which need not be there yet.
    fn remote(paths: &[PathBuf]) -> Remote {
        let server = |path: &PathBuf| {
            let address = [&[1, 0], path.as_os_str().as_encoded_bytes(), &[0]].concat();
            Server { extents: 8, ..Server::new(&address, b"x").expect("a short path") }
        };
        let leases = Box::leak(Box::new([const { AtomicU32::new(0) }; EXTENTS_MOST]));
        let servers: Vec<_> = paths.iter().map(server).collect();
        Remote::new(&servers, paths.len(), EXTENT_LEAST_BYTES, leases)
    }

    fn spot(server: usize) -> Option<Spot> {
        Some(Spot { server, at: CLAIM_BYTES, is_late: false })
    }

    fn count(of: &AtomicU64) -> u64 {
        of.load(Ordering::Relaxed)
    }

    /// Writes to the only server, and waits until it has the bytes.
    fn written(remote: &Remote) -> Flight {
        let mut flight = remote.write([spot(0), None], &BYTES).expect("it takes requests");
        assert_eq!(remote.land(&mut flight, &BYTES, true), Some(Ok(())));
        flight
    }

    /// A server that has the bytes, and their place.
    fn with_bytes(name: &str) -> (Hostile, Remote, Spot) {
        let paths = [path(name)];
        let server = Hostile::start(&paths[0], EXPORT_BYTES);
        let remote = remote(&paths).with_patience(LONG_PATIENCE_NS);
        written(&remote);
        (server, remote, spot(0).expect("there is one"))
    }

    fn close(remote: &Remote) {
        remote.peers().iter().flat_map(Peer::links).for_each(|link| link.lock().close());
    }

    #[test]
    fn a_cluster_that_no_server_takes_waits_for_one_to_come_back() {
        let paths = ["first", "second"].map(path);
        let (remote, is_over) = (remote(&paths), AtomicBool::new(false));
        let timeouts = || count(&remote.counts.timeouts);
        std::thread::scope(|s| {
            let started = s.spawn(|| {
                // Both have been tried twice.
                while timeouts() < 4 && !is_over.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                Hostile::start(&paths[1], EXPORT_BYTES)
            });
            let sent = remote.write([spot(0), spot(1)], &BYTES);
            is_over.store(true, Ordering::Release);
            let server = started.join().expect("it starts");
            let mut flight = sent.expect("there is patience left");
            assert_eq!(remote.land(&mut flight, &BYTES, true), Some(Ok(())));
            assert_eq!(server.contents()[CLAIM..][..BYTES.len()], BYTES);
            assert_eq!(count(&remote.counts.lone_copies), 1);
        });
        close(&remote);
    }

    #[test]
    fn a_server_that_ends_each_connection_is_asked_again_after_a_pause() {
        let paths = [path("closes")];
        let server = Hostile::start(&paths[0], EXPORT_BYTES);
        let remote = remote(&paths);
        // The second request follows at once: a connection may break. The other four wait.
        server.set(Mode::Closes);
        server.set_after(5, Mode::Honest);
        let flight = written(&remote);
        assert_eq!(server.requests(), 6);
        assert!(flight.patience.left_ns() <= PATIENCE_NS - 4 * AGAIN_NS);
        close(&remote);
    }

    #[test]
    fn a_write_by_a_connection_that_says_nothing_is_sent_again_by_a_new_one() {
        let paths = [path("silent")];
        let server = Hostile::start(&paths[0], EXPORT_BYTES);
        // The connection of the first request stays silent, for half of it.
        let remote = remote(&paths).with_patience(6_000_000_000);
        server.set(Mode::Silent);
        server.set_after(1, Mode::Honest);
        written(&remote);
        assert_eq!(server.contents()[CLAIM..][..BYTES.len()], BYTES);
        assert_eq!((server.requests(), count(&remote.counts.timeouts)), (2, 1));
        close(&remote);
    }

    #[test]
    fn whoever_only_looks_tries_a_server_that_is_gone_now_and_then_and_does_not_wait_for_it() {
        let paths = [path("gone")];
        let server = Hostile::start(&paths[0], EXPORT_BYTES);
        let remote = remote(&paths);
        server.set(Mode::Closes);
        let mut flight = remote.write([spot(0), None], &BYTES).expect("it takes requests");
        drop(server);
        let mut look = |again_at_ns: u64| {
            flight.copies[0].as_mut().expect("it is sent").again_at_ns = again_at_ns;
            let before = count(&remote.counts.timeouts);
            assert_eq!(remote.land(&mut flight, &BYTES, false), None);
            assert!(!flight.patience.is_over());
            count(&remote.counts.timeouts) > before
        };
        assert_eq!([0, u64::MAX, 0].map(&mut look), [true, false, true]);
        let server = Hostile::start(&paths[0], EXPORT_BYTES);
        assert_eq!(remote.land(&mut flight, &BYTES, true), Some(Ok(())));
        assert_eq!(server.contents()[CLAIM..][..BYTES.len()], BYTES);
        close(&remote);
    }

    #[test]
    fn the_error_of_a_server_that_is_there_is_told_rather_than_that_of_one_that_is_gone() {
        let remote = remote(&["one", "other"].map(path));
        let told = |results: [Errno; 2]| {
            let copy = |server: usize| Sent {
                spot: spot(server).expect("there is one"),
                sent: Err(NO_ANSWER),
                result: Some(Err(results[server])),
                is_again: false,
                again_at_ns: 0,
            };
            let copies = [0, 1].map(|server| Some(copy(server)));
            let mut flight =
                Flight { copies, len: BYTES.len(), patience: Patience::new(PATIENCE_NS) };
            remote.land(&mut flight, &BYTES, true)
        };
        assert_eq!(told([NO_ANSWER; 2]), Some(Err(NO_ANSWER)));
        assert_eq!(told([NO_ANSWER, Errno::EIO]), Some(Err(Errno::EIO)), "a place is bad");
        assert_eq!(told([Errno::EIO, Errno::ENOSPC]), Some(Err(Errno::ENOSPC)));
    }

    #[test]
    fn nobody_waits_for_a_trim_but_a_write_to_its_place() {
        let (server, remote, spot) = with_bytes("not-answered");
        server.set(Mode::Silent);
        remote.trim(spot, BYTES.len() as u64);
        let other = Spot { at: spot.at + CLUSTER_BYTES as u64, ..spot };
        let sent = remote.write([Some(other), None], &BYTES).map(drop);
        assert_eq!((sent, count(&remote.counts.timeouts)), (Ok(()), 0));
        assert!(remote.peers[0].writes.lock().is_open());
        close(&remote);
    }

    #[test]
    fn a_place_that_was_given_back_is_written_to_once_the_server_has_answered() {
        let (server, remote, spot) = with_bytes("given-back");
        server.set_delay(std::time::Duration::from_millis(300));
        remote.trim(spot, BYTES.len() as u64);
        let mut flight = remote.write([Some(spot), None], &BYTES).expect("it takes requests");
        assert_eq!(server.trimmed(), BYTES.len() as u64, "before the write was sent");
        assert_eq!(remote.land(&mut flight, &BYTES, true), Some(Ok(())));
        assert_eq!(server.contents()[CLAIM..][..BYTES.len()], BYTES);
        assert_eq!(count(&remote.counts.timeouts), 0);
        close(&remote);
    }

    #[test]
    fn a_server_that_takes_no_more_connections_is_read_by_those_that_are_there() {
        let (_server, remote, spot) = with_bytes("no-more");
        remote.peers[0].more_at_ns.store(u64::MAX, Ordering::Relaxed);
        for at in (0..4).map(|nth| spot.at + nth * CLUSTER_BYTES as u64) {
            std::thread::scope(|s| {
                let in_use = remote.peers[0].reads[0].lock();
                let (remote, spots) = (&remote, [Some(Spot { at, ..spot }), None]);
                let read = s.spawn(move || remote.read(spots, &mut [0; 8]));
                std::thread::sleep(std::time::Duration::from_millis(50));
                drop(in_use);
                assert_eq!(read.join().expect("no panic"), Ok(()));
            });
        }
        close(&remote);
    }

    #[test]
    fn a_read_of_the_only_copy_counts_as_none_of_another() {
        let paths = [path("only")];
        let server = Hostile::start(&paths[0], EXPORT_BYTES);
        server.put(CLAIM, &BYTES);
        let remote = remote(&paths);
        remote.peers[0].down_until_ns.store(u64::MAX, Ordering::Relaxed);
        let mut buf = [0; BYTES.len()];
        assert_eq!(remote.read([spot(0), None], &mut buf), Ok(()));
        assert_eq!(buf, BYTES);
        assert!(!remote.peers[0].is_down());
        assert_eq!((count(&remote.counts.loads), count(&remote.counts.second_copies)), (1, 0));
        close(&remote);
    }

    #[test]
    fn a_place_that_one_server_took_alone_has_two_copies_once_the_other_is_back() {
        let paths = ["away", "alone"].map(path);
        let _servers = paths.each_ref().map(|path| Hostile::start(path, EXPORT_BYTES));
        let remote = remote(&paths).with_patience(LONG_PATIENCE_NS);
        let space = remote.extents.open_space().expect("the first");
        let write = |at: u64, byte: u8, is_up: fn(usize) -> bool| {
            let leased = remote.extents.find_or_lease(space, at, 1, 2, is_up);
            let bytes = [byte; BYTES.len()];
            let mut flight = remote.write(leased.expect("there is room"), &bytes).expect("taken");
            assert_eq!(remote.land(&mut flight, &bytes, true), Some(Ok(())));
        };
        let next = CLUSTER_BYTES as u64;
        write(0, 1, |server| server == 1);
        write(next, 2, |_| true);
        assert_eq!(count(&remote.counts.lone_copies), 1, "the first");
        // Bytes of earlier writes are read from where they are, in any turn.
        for (at, byte) in [(0, 1), (next, 2)] {
            let mut buf = [0; BYTES.len()];
            assert_eq!(remote.read(remote.extents.find(space, at), &mut buf), Ok(()));
            assert_eq!(buf, [byte; BYTES.len()]);
        }
        close(&remote);
    }

    #[test]
    fn a_server_with_a_smaller_export_than_before_is_asked_for_nothing_behind_its_end() {
        let paths = ["smaller", "larger"].map(path);
        let end = EXPORT_BYTES - CLUSTER_BYTES;
        let at = (end - BYTES.len()) as u64;
        let smaller = Hostile::start(&paths[0], end - 1);
        let larger = Hostile::start(&paths[1], EXPORT_BYTES);
        larger.put(at as usize, &BYTES);
        let remote = remote(&paths).with_patience(LONG_PATIENCE_NS);
        let spots = [0, 1].map(|server| Some(Spot { server, at, is_late: false }));
        let mut buf = [0; BYTES.len()];
        assert_eq!(remote.read(spots, &mut buf), Ok(()));
        assert_eq!((buf, smaller.requests()), (BYTES, 0));
        let downs = remote.peers[0].downs.load(Ordering::Relaxed);
        assert_eq!(downs, 1, "it was the first to be tried");
        remote.peers[0].is_up();
        let mut flight = remote.write(spots, &BYTES).expect("there is another");
        assert_eq!(remote.land(&mut flight, &BYTES, true), Some(Ok(())));
        assert_eq!((smaller.requests(), count(&remote.counts.lone_copies)), (0, 1));
        close(&remote);
    }
}
