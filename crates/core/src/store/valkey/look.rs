//! Looking for the map of a Cluster, and going by it.

use core::sync::atomic::Ordering;

use super::link::{Answer, Failure, ask_once};
use super::map::{Map, NODES_MOST};
use super::nodes::{HURRY_NS, Valkey, errno_of};
use super::resp::{Address, Outgoing};
use crate::store::remote::{NO_ANSWER, SERVERS_MOST};
use crate::sys::socket::Patience;
use crate::sys::{Errno, Result};

/// How often the map is asked for because a primary has no replica: one that was just added is
/// waited for soon, and a Cluster without any costs next to nothing.
const REPLICA_NS: u64 = 5_000_000_000;

impl Valkey {
    /// Asks for the map, unless somebody else has just done that.
    pub(super) fn look(&self, patience: &mut Patience) -> Result<()> {
        if !self.is_cluster {
            return Ok(());
        }
        let looks = self.looks.load(Ordering::Acquire);
        let mut map = self.map.lock();
        if self.looks.load(Ordering::Acquire) != looks {
            return Ok(());
        }
        self.looked_at_ns.store(crate::sys::now_ns(), Ordering::Relaxed);
        // Another node is asked first each time: some may be on the wrong side of a split.
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

    /// A node without a replica may have one by now.
    pub(super) fn look_for_replica(&self, slot: u16) {
        let Some(node) = self.node_of(slot).filter(|_| self.is_cluster) else { return };
        let (looked_at, now) = (self.looked_at_ns.load(Ordering::Relaxed), crate::sys::now_ns());
        if !self.nodes[node].has_replica() && now.wrapping_sub(looked_at) > REPLICA_NS {
            let _ = self.look(&mut Patience::new(HURRY_NS));
        }
    }

    fn ask_map(&self, at: Address, map: &mut Map, patience: &mut Patience) -> Answer<bool> {
        let command = Outgoing::new().command(2).word(b"CLUSTER").word(b"SLOTS");
        ask_once(at, &self.login, &command, patience, |incoming, mut more| {
            map.read(incoming, &mut more, at)
        })
    }

    /// Goes by a map from now on. Nodes that the map no longer names make room for new ones.
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
            node.name.store(primary.name, Ordering::Relaxed);
            node.has_replica.store(primary.has_replica, Ordering::Relaxed);
        }
        for (slot, owner) in self.slots.iter().enumerate() {
            let node = map.owner(slot).and_then(|number| nodes[number]);
            owner.store(node.map_or(0, |node| node as u8 + 1), Ordering::Release);
        }
        for (i, node) in self.nodes.iter().enumerate() {
            if !nodes.contains(&Some(i)) {
                *node.address.lock() = Address::NONE;
                node.name.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Connects to all nodes, as far as they answer.
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
}
