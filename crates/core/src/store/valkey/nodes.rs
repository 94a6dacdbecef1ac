//! The nodes of a Cluster, or the one server, as one process deals with them: which has what, tries
//! and how often, writes that are under way.
//!
//! ```text
//!   unit ─> key ─> slot ─> node ──try──> done
//!            ^               │ MOVED, ASK: the other node, at once
//!            │               │ CLUSTERDOWN, TRYAGAIN, LOADING, no connection: the map is asked for anew,
//!            └───────────────┘   a moment is waited, while there is patience
//! ```

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering};

use super::link::{Answer, Failure, Link, Login, Manner, Outcome, Ticket, WINDOW, ask_once};
use super::map::{Map, NODES_MOST, SLOTS, slot_of};
use super::resp::{Address, Complaint, Outgoing};
use super::{GONE, KEY_BYTES, PREFIX_BYTES, key_of};
use crate::control::Settings;
use crate::store::QUEUE_BUFFERS;
use crate::store::extents::{Extents, Geometry, Leases};
use crate::store::remote::{NO_ANSWER, SERVERS_MOST, Server};
use crate::sys::socket::Patience;
use crate::sys::sync::Mutex;
use crate::sys::{Errno, Result};

/// How long one server is tried, as an NBD server is.
pub const PATIENCE_NS: u64 = 10_000_000_000;
/// How long a Cluster is: its nodes believe by default after 15 seconds that a primary is gone,
/// then a replica has to be elected; four times that is for machines that are slow as well.
pub const CLUSTER_PATIENCE_NS: u64 = 60_000_000_000;
/// One try of a node of a Cluster, after which the map is asked for anew: it may be another's turn.
const TRY_NS: u64 = 1_000_000_000;
/// How long a node is asked for the map, or for anything that is only a favour.
const HURRY_NS: u64 = 500_000_000;
/// Between two tries where nobody answers.
const AGAIN_NS: u64 = 50_000_000;
/// Between two tries of a write that nobody waits for, and how long each of them takes at most.
const ASIDE_AGAIN_NS: u64 = 500_000_000;
const ASIDE_NS: u64 = 100_000_000;
/// Redirections one after the other that are followed at once.
const HOPS_MOST: u32 = 5;
/// How long a replica is waited for, in milliseconds. One that does not come in this time is not
/// waited for again for a while, twice as long each time, up to 32 seconds.
const WAIT_MS: u32 = 500;
const LONE_NS: u64 = 1_000_000_000;
const LONE_LOG2_MOST: u32 = 5;

/// A node, and how it is with it.
pub struct Node {
    address: Mutex<Address>,
    pub(super) reads: Mutex<Link>,
    pub(super) writes: Mutex<Link>,
    /// The numbers of the links' descriptors, for whoever asks without their locks.
    pub(super) descriptors: [AtomicI32; 2],
    has_replica: AtomicBool,
    /// Until when its replica is not waited for, and how often that has not come.
    lone_until_ns: AtomicU64,
    lones: AtomicU32,
}

impl Node {
    fn new() -> Node {
        Node {
            address: Mutex::new(Address::NONE),
            reads: Mutex::new(Link::new()),
            writes: Mutex::new(Link::new()),
            descriptors: [const { AtomicI32::new(-1) }; 2],
            has_replica: AtomicBool::new(false),
            lone_until_ns: AtomicU64::new(0),
            lones: AtomicU32::new(0),
        }
    }

    pub fn address(&self) -> Address {
        *self.address.lock()
    }

    pub fn has_replica(&self) -> bool {
        self.has_replica.load(Ordering::Relaxed)
    }

    /// Whether there is somebody to wait for.
    fn wait_ms(&self) -> u32 {
        let until = self.lone_until_ns.load(Ordering::Relaxed);
        let is_lone = until != 0 && crate::sys::now_ns() < until;
        if self.has_replica() && !is_lone { WAIT_MS } else { 0 }
    }

    fn replica_came(&self, came: bool) {
        if came {
            self.lones.store(0, Ordering::Relaxed);
            self.lone_until_ns.store(0, Ordering::Relaxed);
        } else {
            let log2 = self.lones.fetch_add(1, Ordering::Relaxed).min(LONE_LOG2_MOST);
            let until = crate::sys::now_ns() + (LONE_NS << log2);
            self.lone_until_ns.store(until, Ordering::Relaxed);
        }
    }

    fn links(&self) -> [&Mutex<Link>; 2] {
        [&self.reads, &self.writes]
    }

    /// Takes a new number for each connection that was there: none is any more.
    pub(super) fn reserve(&self) -> Result<()> {
        for (link, number) in self.links().into_iter().zip(&self.descriptors) {
            let mut link = link.lock();
            if link.descriptor() >= 0 {
                link.reserve()?;
                number.store(link.descriptor(), Ordering::Release);
            }
        }
        Ok(())
    }

    pub(super) fn close(&self) {
        self.links().into_iter().for_each(|link| link.lock().close());
    }
}

/// One cluster of pages on its way.
#[derive(Clone, Copy)]
pub(super) struct Flight {
    unit: u64,
    len: usize,
    /// By which node, and as what; `None`: it has to be sent again.
    sent: Option<(usize, Ticket)>,
    /// Not before that, unless somebody waits.
    again_at_ns: u64,
    patience: Patience,
}

/// What happened so far in this process.
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
    seeds: [Address; SERVERS_MOST],
    login: Login,
    is_cluster: bool,
    prefix: [u8; PREFIX_BYTES],
    lease_ms: u32,
    patience_ns: u64,
    /// When a page was last given up, 0: never. Who comes soon after that need not wait as long.
    lost_at_ns: AtomicU64,
    pub(super) nodes: Box<[Node]>,
    /// By slot: the node plus one, 0: unknown.
    slots: Box<[AtomicU8]>,
    map: Mutex<Map>,
    /// How often the map was looked for, and at whom last.
    looks: AtomicU32,
    pub(super) extents: Extents,
    pub(super) flights: Mutex<[Option<Flight>; QUEUE_BUFFERS]>,
    pub(super) counts: Counts,
}

/// What is done to many keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    Unlink,
    /// Their lease begins anew.
    Renew,
}

impl Valkey {
    /// For the processes of a run. Allocates all that it ever needs; connects to nothing yet.
    pub fn new(settings: &Settings, leases: &'static Leases) -> Valkey {
        let servers = settings.servers();
        let seed = |i: usize| servers.get(i).and_then(|s| Address::new(s.address()));
        let first = servers.first().copied().unwrap_or(Server::NONE);
        let geometry = Geometry::cut(settings.extent_bytes, [first.extents as usize].into_iter());
        let is_cluster = first.kind == Server::CLUSTER;
        let valkey = Valkey {
            seeds: core::array::from_fn(|i| seed(i).unwrap_or(Address::NONE)),
            login: Login::of(&first),
            is_cluster,
            prefix: settings.key_prefix,
            lease_ms: settings.lease_ms,
            patience_ns: if is_cluster { CLUSTER_PATIENCE_NS } else { PATIENCE_NS },
            lost_at_ns: AtomicU64::new(0),
            nodes: (0..NODES_MOST).map(|_| Node::new()).collect(),
            slots: (0..SLOTS).map(|_| AtomicU8::new(0)).collect(),
            map: Mutex::new(Map::new()),
            looks: AtomicU32::new(0),
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

    pub fn patience(&self) -> Patience {
        Patience::new(self.patience_ns)
    }

    pub fn lease_ms(&self) -> u32 {
        self.lease_ms
    }

    /// Those that have a part of the keys.
    pub fn primaries(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| !node.address().is_none())
    }

    /// Whether each slot has a node.
    pub fn is_whole(&self) -> bool {
        self.slots.iter().all(|slot| slot.load(Ordering::Relaxed) != 0)
    }

    fn key(&self, unit: u64) -> [u8; KEY_BYTES] {
        key_of(&self.prefix, unit)
    }

    fn node_of(&self, slot: u16) -> Option<usize> {
        let node = self.slots[usize::from(slot)].load(Ordering::Acquire);
        usize::from(node).checked_sub(1)
    }

    /// Connects, if need be.
    fn open(&self, node: &Node, link: &mut Link, i: usize, patience: &mut Patience) -> Answer<()> {
        let opened = link.open(node.address(), &self.login, patience);
        node.descriptors[i].store(link.descriptor(), Ordering::Release);
        opened
    }

    /// The node of an address, which may be new; `None`: there are too many.
    fn node_at(&self, address: Address) -> Option<usize> {
        if let Some(i) = self.nodes.iter().position(|node| node.address() == address) {
            return Some(i);
        }
        let is_used = |i: usize| {
            self.slots.iter().any(|s| usize::from(s.load(Ordering::Relaxed)) == i + 1)
        };
        let free = (0..NODES_MOST).find(|i| !is_used(*i))?;
        let node = &self.nodes[free];
        *node.address.lock() = address;
        node.has_replica.store(false, Ordering::Relaxed);
        node.replica_came(true);
        Some(free)
    }

    // ---- The map

    /// Asks for the map, unless somebody else has just done that.
    fn look(&self, patience: &mut Patience) -> Result<()> {
        if !self.is_cluster {
            return Ok(());
        }
        let looks = self.looks.load(Ordering::Acquire);
        let mut map = self.map.lock();
        if self.looks.load(Ordering::Acquire) != looks {
            return Ok(());
        }
        // Another one is asked first each time: some may be on the wrong side of a split.
        let known = |i: usize| match i.checked_sub(NODES_MOST) {
            None => self.nodes[i].address(),
            Some(seed) => self.seeds[seed],
        };
        let places = NODES_MOST + SERVERS_MOST;
        let mut why = NO_ANSWER;
        for i in 0..places {
            let address = known((looks as usize + i) % places);
            if address.is_none() {
                continue;
            }
            let mut part = patience.at_most(HURRY_NS);
            let before = part.left_ns();
            let read = self.ask_map(address, &mut map, &mut part);
            patience.spend(before - part.left_ns());
            match read {
                Ok(true) => {
                    self.take_over(&map);
                    self.looks.store(looks.wrapping_add(1), Ordering::Release);
                    return Ok(());
                }
                Ok(false) => why = Errno::EOPNOTSUPP,
                Err(Failure::Said(complaint)) => why = complaint.errno(),
                Err(Failure::Broken(e)) => why = e,
                Err(_) => {}
            }
            if patience.is_over() {
                break;
            }
        }
        self.looks.store(looks.wrapping_add(1), Ordering::Release);
        Err(why)
    }

    fn ask_map(&self, at: Address, map: &mut Map, patience: &mut Patience) -> Answer<bool> {
        let command = Outgoing::new().command(2).word(b"CLUSTER").word(b"SLOTS");
        ask_once(at, &self.login, &command, patience, |incoming, mut more| {
            map.read(incoming, &mut more, at)
        })
    }

    /// Goes by a map from now on. Nodes that are in it no more make room for those that are new.
    fn take_over(&self, map: &Map) {
        let mut nodes = [None; NODES_MOST];
        let at = |address| self.nodes.iter().position(|node| node.address() == address);
        for (number, primary) in map.primaries().iter().enumerate() {
            nodes[number] = at(primary.address);
        }
        for (number, primary) in map.primaries().iter().enumerate() {
            let free = (0..NODES_MOST).find(|i| !nodes.contains(&Some(*i)));
            let Some(node) = nodes[number].or(free) else { continue };
            nodes[number] = Some(node);
            let node = &self.nodes[node];
            let mut address = node.address.lock();
            if *address != primary.address {
                *address = primary.address;
                node.replica_came(true);
            }
            node.has_replica.store(primary.has_replica, Ordering::Relaxed);
        }
        for (slot, owner) in self.slots.iter().enumerate() {
            let node = map.owner(slot).and_then(|number| nodes[number]);
            owner.store(node.map_or(0, |node| node as u8 + 1), Ordering::Release);
        }
        for (i, node) in self.nodes.iter().enumerate() {
            if !nodes.contains(&Some(i)) {
                *node.address.lock() = Address::NONE;
            }
        }
    }

    /// Connects to all of them, as far as they answer.
    pub fn connect(&self, ns: u64) -> Result<()> {
        let mut patience = Patience::new(ns);
        self.look(&mut patience)?;
        let mut connected = Err(NO_ANSWER);
        for node in self.primaries() {
            for (i, link) in node.links().into_iter().enumerate() {
                let mut part = patience.at_most(HURRY_NS);
                let before = part.left_ns();
                let opened = self.open(node, &mut link.lock(), i, &mut part);
                patience.spend(before - part.left_ns());
                match opened {
                    Ok(()) => connected = Ok(()),
                    Err(why) => connected = connected.or(Err(errno_of(why))),
                }
            }
        }
        connected
    }

    // ---- Tries

    /// Does something at the node that has the key, whichever that is by now.
    fn drive<T>(
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
                let most = if self.is_cluster { TRY_NS } else { self.patience_ns };
                let mut part = patience.at_most(most);
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
            let is_elsewhere = hops <= HOPS_MOST && self.redirect(slot, why, &mut asked);
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

    /// Whether the node said where to go, and that is known.
    fn redirect(&self, slot: u16, why: Failure, asked: &mut Option<usize>) -> bool {
        match why {
            Failure::Said(Complaint::Moved(to, Some(address))) if to == slot && self.is_cluster => {
                let node = self.node_at(address);
                if let Some(node) = node {
                    self.slots[usize::from(slot)].store(node as u8 + 1, Ordering::Release);
                }
                node.is_some()
            }
            Failure::Said(Complaint::Ask(Some(address))) if self.is_cluster => {
                *asked = self.node_at(address);
                asked.is_some()
            }
            _ => false,
        }
    }

    /// Reads a part of a unit.
    pub fn read(&self, unit: u64, from: usize, buf: &mut [u8]) -> Result<()> {
        let lost_at = self.lost_at_ns.load(Ordering::Relaxed);
        let is_lost = lost_at != 0 && crate::sys::now_ns().wrapping_sub(lost_at) < self.patience_ns;
        let ns = if is_lost { self.patience_ns.min(HURRY_NS) } else { self.patience_ns };
        let (key, mut patience) = (self.key(unit), Patience::new(ns));
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

    /// Starts to write a unit.
    pub(super) fn write(&self, unit: u64, bytes: &[u8]) -> Flight {
        let key = self.key(unit);
        let mut patience = self.patience();
        let mut sent = None;
        if let Some(i) = self.node_of(slot_of(&key)) {
            let node = &self.nodes[i];
            let mut link = node.writes.lock();
            let mut part = patience.at_most(HURRY_NS);
            let before = part.left_ns();
            let manner = Manner { is_asking: false, wait_ms: node.wait_ms() };
            let ticket = self.open(node, &mut link, 1, &mut part).and_then(|()| {
                link.send_set(&key, bytes, self.lease_ms, manner, &mut part)
            });
            patience.spend(before - part.left_ns());
            sent = ticket.ok().map(|ticket| (i, ticket));
        }
        Flight { unit, len: bytes.len(), sent, again_at_ns: 0, patience }
    }

    /// What came of it, if it is known by now; with `waits`, it is waited for.
    pub(super) fn land(
        &self,
        flight: &mut Flight,
        bytes: &[u8],
        waits: bool,
    ) -> Option<Result<()>> {
        let bytes = &bytes[..flight.len];
        if let Some((i, ticket)) = flight.sent {
            let node = &self.nodes[i];
            let most = if self.is_cluster { TRY_NS } else { self.patience_ns };
            let mut part = flight.patience.at_most(most);
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
        // Who does not wait loses little time for it, now and then.
        if !waits && crate::sys::now_ns() < flight.again_at_ns {
            return None;
        }
        let most = if waits { flight.patience.left_ns() } else { ASIDE_NS };
        let mut part = flight.patience.at_most(most);
        let before = part.left_ns();
        let stored = self.store(flight.unit, bytes, &mut part);
        flight.patience.spend(before - part.left_ns());
        if stored == Err(NO_ANSWER) && !waits && !flight.patience.is_over() {
            flight.again_at_ns = crate::sys::now_ns() + ASIDE_AGAIN_NS;
            return None;
        }
        Some(stored)
    }

    /// Writes a unit, waited for.
    pub fn store(&self, unit: u64, bytes: &[u8], patience: &mut Patience) -> Result<()> {
        let key = self.key(unit);
        self.drive(slot_of(&key), patience, |node, is_asking, patience| {
            let mut link = node.writes.lock();
            self.open(node, &mut link, 1, patience)?;
            let manner = Manner { is_asking, wait_ms: node.wait_ms() };
            let ticket = link.send_set(&key, bytes, self.lease_ms, manner, patience)?;
            let outcome = link.result(ticket, true, patience).expect("it is waited for")?;
            self.judge(node, outcome)
        })
    }

    /// Whether a unit is written, and on how many.
    fn judge(&self, node: &Node, outcome: Outcome) -> Answer<()> {
        outcome.said.map_err(Failure::Said)?;
        let is_lone = match outcome.copies {
            // It is a primary no more: whether the next one has it nobody knows.
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

    fn command(&self, verb: Verb, unit: u64) -> Outgoing {
        let key = self.key(unit);
        match verb {
            Verb::Unlink => Outgoing::new().command(2).word(b"UNLINK").word(&key),
            Verb::Renew => {
                let command = Outgoing::new().command(3).word(b"PEXPIRE").word(&key);
                command.word_of_number(u64::from(self.lease_ms.max(1)))
            }
        }
    }

    /// Does something to one unit: how many keys there were.
    fn each_one(&self, verb: Verb, unit: u64, patience: &mut Patience) -> Result<u64> {
        let (key, command) = (self.key(unit), self.command(verb, unit));
        let said = self.drive(slot_of(&key), patience, |node, is_asking, patience| {
            let mut link = node.writes.lock();
            self.open(node, &mut link, 1, patience)?;
            link.ask(&command, Manner { is_asking, wait_ms: 0 }, patience)
        })?;
        Ok(said.max(0) as u64)
    }

    /// Lets go of a unit, if its node answers. What is left ends with its lease.
    pub(super) fn unlink(&self, unit: u64) {
        let _ = self.each_one(Verb::Unlink, unit, &mut Patience::new(HURRY_NS));
    }

    /// Does something to units, many at a time: how many keys there were.
    pub fn each(
        &self,
        verb: Verb,
        units: core::ops::Range<u64>,
        patience: &mut Patience,
    ) -> Result<u64> {
        let mut done = 0;
        for i in 0..NODES_MOST {
            let is_its = |unit: &u64| self.node_of(slot_of(&self.key(*unit))) == Some(i);
            let mut its = units.clone().filter(is_its);
            loop {
                let mut batch = [None; WINDOW];
                batch.iter_mut().zip(its.by_ref()).for_each(|(place, unit)| *place = Some(unit));
                if batch[0].is_none() {
                    break;
                }
                done += self.each_of(verb, &self.nodes[i], &batch, patience)?;
            }
        }
        // Of slots that nobody has: they are asked for one by one.
        for unit in units.clone().filter(|unit| self.node_of(slot_of(&self.key(*unit))).is_none()) {
            done += self.each_one(verb, unit, patience)?;
        }
        Ok(done)
    }

    /// Those of one node. What does not work this way is done by itself.
    fn each_of(
        &self,
        verb: Verb,
        node: &Node,
        units: &[Option<u64>; WINDOW],
        patience: &mut Patience,
    ) -> Result<u64> {
        let mut tickets = [None; WINDOW];
        let mut said = [None; WINDOW];
        {
            let mut link = node.writes.lock();
            if self.open(node, &mut link, 1, patience).is_ok() {
                for (ticket, unit) in tickets.iter_mut().zip(units.iter().flatten()) {
                    let command = self.command(verb, *unit);
                    *ticket = link.send(&command, Manner::default(), patience).ok();
                }
                for (said, ticket) in said.iter_mut().zip(tickets.into_iter().flatten()) {
                    let outcome = link.result(ticket, true, patience).expect("it is waited for");
                    *said = outcome.ok().and_then(|outcome| outcome.said.ok());
                }
            }
        }
        let mut done = 0;
        for (said, unit) in said.into_iter().zip(units.iter().flatten()) {
            done += match said {
                Some(n) => n.max(0) as u64,
                None => self.each_one(verb, *unit, patience)?,
            };
        }
        Ok(done)
    }

    /// Asks a node for a text: see [`Link::read_text`]. For `uzswap run`; the text of an error, if
    /// it says no.
    pub fn ask_text(
        &self,
        node: &Node,
        command: &Outgoing,
        into: &mut [u8],
        patience: &mut Patience,
    ) -> core::result::Result<usize, (Failure, String)> {
        let mut link = node.reads.lock();
        let answer = self.open(node, &mut link, 0, patience);
        let answer = answer.and_then(|()| link.read_text(command, into, patience));
        answer.map_err(|why| (why, String::from_utf8_lossy(link.text()).into_owned()))
    }
}

/// Whether it may be otherwise a moment later.
fn is_passing(why: Failure) -> bool {
    match why {
        Failure::Broken(_) => true,
        Failure::Said(why) => {
            matches!(why, Complaint::Moved(..) | Complaint::Ask(_) | Complaint::Later)
        }
        Failure::Gone | Failure::Short => false,
    }
}

/// As an error of the kernel's kind.
pub fn errno_of(why: Failure) -> Errno {
    match why {
        Failure::Broken(e) => e,
        Failure::Said(complaint) => complaint.errno(),
        Failure::Gone => GONE,
        Failure::Short => Errno::EIO,
    }
}
