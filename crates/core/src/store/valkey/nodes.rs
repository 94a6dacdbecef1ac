//! The nodes of a Cluster, or the one server, as one process deals with them: which node has which
//! key, tries and their number, writes that are under way.
//!
//! ```text
//!   number ─> key ─> slot ─> node ──try──> done
//!             ^               │ MOVED, ASK: the other node, at once
//!             │               │ CLUSTERDOWN, TRYAGAIN, LOADING, no connection: the map is asked for anew,
//!             └───────────────┘   a moment is waited, while there is patience
//! ```

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use super::link::{Answer, Failure, Link, Login, Manner, Outcome, Ticket};
use super::many::Verb;
use super::map::{Map, NODES_MOST, SLOTS, slot_of};
use super::node::Node;
use super::resp::{Address, Complaint, Place};
use super::{GONE, KEY_BYTES, PREFIX_BYTES, Terms, key_of};
use crate::store::QUEUE_BUFFERS;
use crate::store::extents::{Extents, Geometry, Leases};
use crate::store::remote::{NO_ANSWER, SERVERS_MOST, Server};
use crate::sys::socket::Patience;
use crate::sys::sync::Mutex;
use crate::sys::{Errno, Result};

/// How long one server is tried, as an NBD server is.
pub const PATIENCE_NS: u64 = 10_000_000_000;
/// How long a Cluster is tried: its nodes believe by default after 15 seconds that a primary is
/// gone, then a replica has to be elected; four times that is for machines that are slow as well.
pub const CLUSTER_PATIENCE_NS: u64 = 60_000_000_000;
/// How long a try of one node of a Cluster takes at most. After it the map is asked for anew,
/// because another node may have the key by then.
const TRY_NS: u64 = 1_000_000_000;
/// How long a node has to answer where there is another way: for the map, and for requests that may
/// be left out.
const HURRY_NS: u64 = 500_000_000;
/// The pause between two tries where nobody answers.
const AGAIN_NS: u64 = 50_000_000;
/// The pause between two tries of a write that no thread waits for, and the longest time of one
/// such try.
const ASIDE_AGAIN_NS: u64 = 500_000_000;
const ASIDE_NS: u64 = 100_000_000;
/// How long no value is deleted after a node has not answered: a program that frees much must not
/// wait for each part of it.
const NOT_DELETED_NS: u64 = 10_000_000_000;
/// Redirections one after the other that are followed at once.
const HOPS_MOST: u32 = 5;

/// One cluster of pages on its way.
#[derive(Clone, Copy)]
pub(super) struct Flight {
    number: u64,
    len: usize,
    /// The node that it was sent to, and its ticket there; `None`: it has to be sent again.
    sent: Option<(usize, Ticket)>,
    /// The time before which it is not tried again, unless somebody waits.
    again_at_ns: u64,
    patience: Patience,
}

/// Events so far in this process.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) loads: AtomicU64,
    pub(super) timeouts: AtomicU64,
    pub(super) lone_copies: AtomicU64,
}

impl Counts {
    pub(super) fn all(&self) -> [&AtomicU64; 3] {
        [&self.loads, &self.timeouts, &self.lone_copies]
    }
}

/// The servers of a run, for one process.
pub struct Valkey {
    pub(super) seeds: [Address; SERVERS_MOST],
    pub(super) login: Login,
    pub(super) is_cluster: bool,
    prefix: [u8; PREFIX_BYTES],
    pub(super) lease_ms: u32,
    patience_ns: u64,
    try_ns: u64,
    pub(super) hurry_ns: u64,
    /// When a page was last given up, 0: never. A thread that comes soon after need not wait as
    /// long.
    lost_at_ns: AtomicU64,
    /// When a value could last not be let go of, 0: never.
    kept_at_ns: AtomicU64,
    pub(super) nodes: Box<[Node]>,
    /// By slot: the node plus one, 0: unknown.
    pub(super) slots: Box<[AtomicU8]>,
    pub(super) map: Mutex<Map>,
    /// How often the map was looked for, and when last.
    pub(super) looks: AtomicU32,
    pub(super) looked_at_ns: AtomicU64,
    pub(super) extents: Extents,
    pub(super) flights: Mutex<[Option<Flight>; QUEUE_BUFFERS]>,
    pub(super) counts: Counts,
}

impl Valkey {
    /// The servers for the processes of a run. Allocates all that is ever needed; connects to
    /// nothing yet.
    pub fn new(terms: &Terms<'_>, leases: &'static Leases) -> Valkey {
        let servers = terms.servers;
        let seed = |i: usize| servers.get(i).and_then(|s| Address::new(s.address()));
        let first = servers.first().copied().unwrap_or(Server::NONE);
        let geometry = Geometry::cut(terms.extent_bytes, [first.extents as usize].into_iter());
        let is_cluster = first.kind == Server::CLUSTER;
        let valkey = Valkey {
            seeds: core::array::from_fn(|i| seed(i).unwrap_or(Address::NONE)),
            login: Login::of(&first),
            is_cluster,
            prefix: terms.key_prefix,
            lease_ms: terms.lease_ms,
            patience_ns: if is_cluster { CLUSTER_PATIENCE_NS } else { PATIENCE_NS },
            try_ns: TRY_NS,
            hurry_ns: HURRY_NS,
            lost_at_ns: AtomicU64::new(0),
            kept_at_ns: AtomicU64::new(0),
            nodes: (0..NODES_MOST).map(|_| Node::new()).collect(),
            slots: (0..SLOTS).map(|_| AtomicU8::new(0)).collect(),
            map: Mutex::new(Map::new()),
            looks: AtomicU32::new(0),
            looked_at_ns: AtomicU64::new(0),
            extents: Extents::new(geometry, leases),
            flights: Mutex::new([None; QUEUE_BUFFERS]),
            counts: Counts::default(),
        };
        if !is_cluster {
            *valkey.nodes[0].address.lock() = valkey.seeds[0];
            valkey.slots.iter().for_each(|slot| slot.store(1, Ordering::Relaxed));
        }
        valkey
    }

    /// With another patience, for tests and for `uzswap run`.
    pub fn with_patience(self, patience_ns: u64) -> Valkey {
        Valkey { patience_ns, ..self }
    }

    /// With long patience, and with more for each try, for tests: on a busy machine a server that
    /// does its work may be late.
    #[cfg(test)]
    pub fn with_patient_tries(self) -> Valkey {
        let patience_ns = crate::store::testing::LONG_PATIENCE_NS;
        Valkey { patience_ns, try_ns: patience_ns / 2, hurry_ns: patience_ns / 4, ..self }
    }

    pub fn patience(&self) -> Patience {
        Patience::new(self.patience_ns)
    }

    pub fn lease_ms(&self) -> u32 {
        self.lease_ms
    }

    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The nodes that have a part of the keys.
    pub fn primaries(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| !node.address().is_none())
    }

    /// Whether each slot has a node.
    pub fn is_whole(&self) -> bool {
        self.slots.iter().all(|slot| slot.load(Ordering::Relaxed) != 0)
    }

    pub(super) fn key(&self, number: u64) -> [u8; KEY_BYTES] {
        key_of(&self.prefix, number)
    }

    pub(super) fn node_of(&self, slot: u16) -> Option<usize> {
        let node = self.slots[usize::from(slot)].load(Ordering::Acquire);
        usize::from(node).checked_sub(1)
    }

    /// Connects, if need be.
    pub(super) fn open(
        &self,
        node: &Node,
        link: &mut Link,
        i: usize,
        patience: &mut Patience,
    ) -> Answer<()> {
        let opened = link.open(node.address(), &self.login, patience);
        node.descriptors[i].store(link.descriptor(), Ordering::Release);
        opened
    }

    /// How long one try may take. Half for one server: a connection that a firewall has forgotten
    /// says nothing, and a new one works.
    pub(super) fn try_ns(&self) -> u64 {
        if self.is_cluster { self.try_ns } else { self.patience_ns / 2 }
    }

    /// The node of an address, which may be new; `None`: there are too many.
    fn node_at(&self, address: Address) -> Option<usize> {
        if let Some(i) = self.nodes.iter().position(|node| node.address() == address) {
            return Some(i);
        }
        let is_used =
            |i: usize| self.slots.iter().any(|s| usize::from(s.load(Ordering::Relaxed)) == i + 1);
        let free = (0..NODES_MOST).find(|i| !is_used(*i))?;
        let node = &self.nodes[free];
        *node.address.lock() = address;
        node.name.store(0, Ordering::Relaxed);
        node.has_replica.store(false, Ordering::Relaxed);
        node.replica_came(true);
        Some(free)
    }

    /// The node of a place that the node `from` has named. A name that is not known yet may be in
    /// the next map.
    fn node_in(&self, place: Place, from: Option<usize>) -> Option<usize> {
        match place {
            Place::At(address) => self.node_at(address),
            Place::Here(port) => self.node_at(self.nodes[from?].address().with_port(port)?),
            Place::Named(name) => {
                self.nodes.iter().position(|node| node.name.load(Ordering::Relaxed) == name)
            }
        }
    }

    /// Does something at the node that has the key by now.
    pub(super) fn drive<T>(
        &self,
        slot: u16,
        patience: &mut Patience,
        mut attempt: impl FnMut(&Node, bool, &mut Patience) -> Answer<T>,
    ) -> Result<T> {
        let (mut asked, mut hops, mut tries) = (None, 0, 0);
        loop {
            let (node, is_asking) = match asked.take() {
                Some(node) => (Some(node), true),
                None => (self.node_of(slot), false),
            };
            let mut answer = Err(Failure::Said(Complaint::Later));
            if let Some(node) = node {
                let mut part = patience.at_most(self.try_ns());
                let before = part.left_ns();
                answer = attempt(&self.nodes[node], is_asking, &mut part);
                patience.spend(before - part.left_ns());
            }
            let why = match answer {
                Ok(value) => return Ok(value),
                Err(why) => why,
            };
            if let Failure::Broken(_) = why {
                self.counts.timeouts.fetch_add(1, Ordering::Relaxed);
            }
            if !is_passing(why) {
                return Err(errno_of(why));
            }
            hops += 1;
            let is_elsewhere = hops <= HOPS_MOST && self.redirect(slot, node, why, &mut asked);
            if is_elsewhere {
                continue;
            }
            // A connection that somebody has closed meanwhile is made again at once.
            tries += 1;
            if tries == 1 && matches!(why, Failure::Broken(_)) && !patience.is_over() {
                continue;
            }
            if patience.is_over() {
                return Err(NO_ANSWER);
            }
            hops = 0;
            patience.sleep(AGAIN_NS);
            let _ = self.look(patience);
        }
    }

    /// Whether the node `from` named another one, and that one is known.
    fn redirect(
        &self,
        slot: u16,
        from: Option<usize>,
        why: Failure,
        asked: &mut Option<usize>,
    ) -> bool {
        match why {
            Failure::Said(Complaint::Moved(to, Some(place))) if to == slot && self.is_cluster => {
                let node = self.node_in(place, from);
                if let Some(node) = node {
                    self.slots[usize::from(slot)].store(node as u8 + 1, Ordering::Release);
                }
                node.is_some()
            }
            Failure::Said(Complaint::Ask(Some(place))) if self.is_cluster => {
                *asked = self.node_in(place, from);
                asked.is_some()
            }
            _ => false,
        }
    }

    /// Reads a part of a value.
    pub fn read(&self, number: u64, from: usize, buf: &mut [u8]) -> Result<()> {
        let lost_at = self.lost_at_ns.load(Ordering::Relaxed);
        let is_lost = lost_at != 0 && crate::sys::now_ns().wrapping_sub(lost_at) < self.patience_ns;
        let ns = if is_lost { self.patience_ns.min(self.hurry_ns) } else { self.patience_ns };
        let (key, mut patience) = (self.key(number), Patience::new(ns));
        let read = self.drive(slot_of(&key), &mut patience, |node, is_asking, patience| {
            let mut link = node.reads.lock();
            self.open(node, &mut link, 0, patience)?;
            link.read(&key, from, buf, Manner { is_asking, wait_ms: 0 }, patience)
        });
        match read {
            Ok(()) => _ = self.counts.loads.fetch_add(1, Ordering::Relaxed),
            Err(NO_ANSWER) => self.lost_at_ns.store(crate::sys::now_ns(), Ordering::Relaxed),
            Err(_) => {}
        }
        read
    }

    /// Starts to write a value.
    pub(super) fn write(&self, number: u64, bytes: &[u8]) -> Flight {
        let key = self.key(number);
        let mut patience = self.patience();
        self.look_for_replica(slot_of(&key));
        let mut sent = None;
        if let Some(i) = self.node_of(slot_of(&key)) {
            let node = &self.nodes[i];
            let mut link = node.writes.lock();
            let mut part = patience.at_most(self.hurry_ns);
            let before = part.left_ns();
            let manner = Manner { is_asking: false, wait_ms: node.wait_ms() };
            let ticket = self
                .open(node, &mut link, 1, &mut part)
                .and_then(|()| link.send_set(&key, bytes, self.lease_ms, manner, &mut part));
            patience.spend(before - part.left_ns());
            sent = ticket.ok().map(|ticket| (i, ticket));
        }
        Flight { number, len: bytes.len(), sent, again_at_ns: 0, patience }
    }

    /// The outcome of a flight, if it is known by now; with `waits`, it is waited for.
    pub(super) fn land(
        &self,
        flight: &mut Flight,
        bytes: &[u8],
        waits: bool,
    ) -> Option<Result<()>> {
        let bytes = &bytes[..flight.len];
        if let Some((i, ticket)) = flight.sent {
            let node = &self.nodes[i];
            // The rest is for a new connection, as in `drive`.
            let mut part = flight.patience.at_most(self.try_ns());
            let before = part.left_ns();
            let answer = node.writes.lock().result(ticket, waits, &mut part)?;
            flight.patience.spend(before - part.left_ns());
            match answer.and_then(|outcome| self.judge(node, outcome)) {
                Ok(()) => return Some(Ok(())),
                Err(why) if !is_passing(why) => return Some(Err(errno_of(why))),
                Err(why) => {
                    let is_broken = matches!(why, Failure::Broken(_));
                    self.counts.timeouts.fetch_add(u64::from(is_broken), Ordering::Relaxed);
                }
            }
            flight.sent = None;
        }
        // A caller that does not wait loses little time for it, now and then.
        if !waits && crate::sys::now_ns() < flight.again_at_ns {
            return None;
        }
        let most = if waits { flight.patience.left_ns() } else { ASIDE_NS };
        let mut part = flight.patience.at_most(most);
        let before = part.left_ns();
        let stored = self.store(flight.number, bytes, &mut part);
        flight.patience.spend(before - part.left_ns());
        if stored == Err(NO_ANSWER) && !waits && !flight.patience.is_over() {
            flight.again_at_ns = crate::sys::now_ns() + ASIDE_AGAIN_NS;
            return None;
        }
        Some(stored)
    }

    /// Writes a value, and waits for it.
    pub fn store(&self, number: u64, bytes: &[u8], patience: &mut Patience) -> Result<()> {
        let key = self.key(number);
        self.drive(slot_of(&key), patience, |node, is_asking, patience| {
            let mut link = node.writes.lock();
            self.open(node, &mut link, 1, patience)?;
            let manner = Manner { is_asking, wait_ms: node.wait_ms() };
            let ticket = link.send_set(&key, bytes, self.lease_ms, manner, patience)?;
            let outcome = link.result(ticket, true, patience).expect("it is waited for")?;
            self.judge(node, outcome)
        })
    }

    /// Whether a value is written. Counts it if the replica that there is may not have it.
    fn judge(&self, node: &Node, outcome: Outcome) -> Answer<()> {
        outcome.said.map_err(Failure::Said)?;
        let is_lone = match outcome.copies {
            // The node is a primary no more: nobody knows whether the next one has the value.
            Some(Err(why)) => return Err(Failure::Said(why)),
            Some(Ok(replicas)) => {
                node.replica_came(replicas > 0);
                replicas < 1
            }
            None => node.has_replica(),
        };
        self.counts.lone_copies.fetch_add(u64::from(is_lone), Ordering::Relaxed);
        Ok(())
    }

    /// Lets go of a value, if its node answers and none has failed to just now. A value that is
    /// left ends with its lease.
    pub(super) fn unlink(&self, number: u64) {
        let kept_at = self.kept_at_ns.load(Ordering::Relaxed);
        if kept_at != 0 && crate::sys::now_ns().wrapping_sub(kept_at) < NOT_DELETED_NS {
            return;
        }
        let gone = self.each_one(Verb::Unlink, number, &mut Patience::new(self.hurry_ns));
        if gone == Err(NO_ANSWER) {
            self.kept_at_ns.store(crate::sys::now_ns(), Ordering::Relaxed);
        }
    }
}

/// Whether the failure may have passed a moment later.
fn is_passing(why: Failure) -> bool {
    match why {
        Failure::Broken(_) => true,
        Failure::Said(why) => {
            matches!(why, Complaint::Moved(..) | Complaint::Ask(_) | Complaint::Later)
        }
        Failure::Gone | Failure::Short => false,
    }
}

/// The failure as an error of the kernel's kind.
pub fn errno_of(why: Failure) -> Errno {
    match why {
        Failure::Broken(e) => e,
        Failure::Said(complaint) => complaint.errno(),
        Failure::Gone => GONE,
        Failure::Short => Errno::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::super::resp::name_of;
    use super::*;
    use crate::store::extents::EXTENTS_MOST;
    use std::io::Write;
    use std::net::TcpListener;

    static NOBODY: Leases = [const { AtomicU32::new(0) }; EXTENTS_MOST];

    fn address(port: u16) -> Address {
        Address::of(b"127.0.0.1", port).unwrap()
    }

    fn valkey(kind: u32, port: u16, patience_ns: u64) -> Valkey {
        let server = Server::new(address(port).bytes(), b"").unwrap();
        let servers = &[Server { kind, extents: 1, ..server }];
        let key_prefix = *b"uz:aaaaaaaaa";
        let terms = Terms { servers, extent_bytes: 1 << 20, lease_ms: 1000, key_prefix };
        Valkey::new(&terms, &NOBODY).with_patience(patience_ns)
    }

    #[test]
    fn a_write_by_a_connection_that_says_nothing_is_sent_again_by_a_new_one() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        // The silent connection has half of it.
        let valkey = valkey(Server::VALKEY, port, 6_000_000_000);
        let mut flight = valkey.write(7, b"bytes");
        let silent = listener.accept().unwrap();
        let answers = std::thread::spawn(move || {
            let mut second = listener.accept().unwrap().0;
            second.write_all(b"+OK\r\n").unwrap();
            second
        });
        assert_eq!(valkey.land(&mut flight, b"bytes", true), Some(Ok(())));
        assert_eq!(valkey.counts.timeouts.load(Ordering::Relaxed), 1);
        drop((silent, answers.join().unwrap()));
        valkey.nodes.iter().for_each(Node::close);
    }

    #[test]
    fn a_program_that_frees_much_waits_once_for_a_node_that_is_gone() {
        let valkey = valkey(Server::VALKEY, 1, PATIENCE_NS);
        let tries = || valkey.counts.timeouts.load(Ordering::Relaxed);
        valkey.unlink(0);
        let before = tries();
        assert!(before > 0);
        (1..4).for_each(|number| valkey.unlink(number));
        assert_eq!(tries(), before);
        valkey.kept_at_ns.store(0, Ordering::Relaxed);
        valkey.unlink(4);
        assert!(tries() > before);
        valkey.nodes.iter().for_each(Node::close);
    }

    #[test]
    fn a_unit_is_written_when_its_node_said_so_and_alone_where_no_replica_did() {
        let valkey = valkey(Server::CLUSTER, 1, PATIENCE_NS);
        let node = &valkey.nodes[0];
        let judge = |said, copies| valkey.judge(node, Outcome { said, copies });
        let lone = || valkey.counts.lone_copies.load(Ordering::Relaxed);
        assert_eq!((judge(Ok(0), None), lone()), (Ok(()), 0));
        node.has_replica.store(true, Ordering::Relaxed);
        assert_eq!((judge(Ok(0), Some(Ok(1))), lone()), (Ok(()), 0));
        let full = Failure::Said(Complaint::Full);
        assert_eq!((judge(Err(Complaint::Full), Some(Ok(1))), lone()), (Err(full), 0));
        let later = Failure::Said(Complaint::Later);
        assert_eq!((judge(Ok(0), Some(Err(Complaint::Later))), lone()), (Err(later), 0));
        assert!(node.wait_ms() > 0);
        assert_eq!((judge(Ok(0), Some(Ok(0))), lone()), (Ok(()), 1));
        // As where the replica is not waited for.
        assert_eq!((judge(Ok(0), None), lone()), (Ok(()), 2));
    }

    #[test]
    fn a_node_is_followed_to_if_it_is_named_for_the_slot_and_there_is_a_place_for_it() {
        let valkey = valkey(Server::CLUSTER, 1, PATIENCE_NS);
        let moved = |slot: u16, port| {
            let to = Failure::Said(Complaint::Moved(slot, Some(Place::At(address(port)))));
            valkey.redirect(slot, None, to, &mut None)
        };
        let most = NODES_MOST as u16;
        assert!((0..most).all(|slot| moved(slot, 7000 + slot)));
        assert!((0..most).all(|slot| valkey.node_of(slot) == Some(usize::from(slot))));
        assert!(!moved(3, 8000), "all places are taken");
        assert_eq!(valkey.node_of(3), Some(3));
        valkey.nodes[3].has_replica.store(true, Ordering::Relaxed);
        assert!(moved(3, 7000) && moved(4, 8000), "nobody has what was the third's");
        assert_eq!((valkey.node_of(3), valkey.node_of(4)), (Some(0), Some(3)));
        assert!(valkey.nodes[3].address() == address(8000) && !valkey.nodes[3].has_replica());
        // Of another slot, and where there is no name.
        let other = Failure::Said(Complaint::Moved(9, Some(Place::At(address(7001)))));
        assert!(!valkey.redirect(8, None, other, &mut None));
        assert!(!valkey.redirect(8, None, Failure::Said(Complaint::Ask(None)), &mut None));
        let mut asked = None;
        let ask = Failure::Said(Complaint::Ask(Some(Place::At(address(7001)))));
        assert!(valkey.redirect(8, None, ask, &mut asked));
        assert_eq!((asked, valkey.node_of(8)), (Some(1), Some(8)), "for this once");
    }

    #[test]
    fn a_key_is_found_at_a_node_that_has_a_name_or_another_port_of_the_one_that_was_asked() {
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [first, second] = listeners.each_ref().map(|l| l.local_addr().unwrap().port());
        let valkey = valkey(Server::CLUSTER, 1, 0).with_patient_tries();
        *valkey.nodes[0].address.lock() = address(first);
        valkey.slots.iter().for_each(|slot| slot.store(1, Ordering::Relaxed));
        *valkey.nodes[5].address.lock() = address(second);
        valkey.nodes[5].name.store(name_of(b"name.example", 7), Ordering::Relaxed);
        let asks = std::thread::spawn(move || {
            let say = |listener: &TcpListener, reply: &str| {
                let mut stream = listener.accept().unwrap().0;
                stream.write_all(reply.as_bytes()).unwrap();
                stream
            };
            let places = ["name.example:7".to_string(), format!(":{second}")];
            places.map(|place| {
                let first = say(&listeners[0], &format!("-ASK 7 {place}\r\n"));
                [first, say(&listeners[1], "+OK\r\n$5\r\nbytes\r\n")]
            })
        });
        for _ in 0..2 {
            let mut buf = [0; 5];
            assert_eq!(valkey.read(7, 0, &mut buf), Ok(()));
            assert_eq!(&buf, b"bytes");
            valkey.nodes.iter().for_each(Node::close);
        }
        let unknown = Failure::Said(Complaint::Ask(Some(Place::Named(name_of(b"x.example", 7)))));
        assert!(!valkey.redirect(7, Some(0), unknown, &mut None));
        assert_eq!(valkey.counts.timeouts.load(Ordering::Relaxed), 0);
        drop(asks.join().unwrap());
    }
}
