//! Looking for the map of a Cluster, and going by it.

use core::sync::atomic::Ordering;

use super::link::{Answer, Failure, ask_once};
use super::map::{Map, NODES_MOST};
use super::nodes::{Valkey, errno_of};
use super::resp::{Address, Outgoing};
use crate::store::remote::{NO_ANSWER, SERVERS_MOST};
use crate::sys::socket::Patience;
use crate::sys::{Errno, Result};

/// The time between two questions for the map because a primary has no replica. A replica that was
/// just added is known within that time, and a Cluster without replicas costs next to nothing.
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
            let mut part = patience.at_most(self.hurry_ns);
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
            let _ = self.look(&mut Patience::new(self.hurry_ns));
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
                let mut part = patience.at_most(self.hurry_ns);
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

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicU32;
    use std::io::Read;

    use super::super::hostile::Hostile;
    use super::super::resp::{Incoming, name_of};
    use super::super::{Node, Terms};
    use super::*;
    use crate::store::extents::{EXTENTS_MOST, Leases};
    use crate::store::remote::{EPROTO, Server};
    use crate::store::testing::LONG_PATIENCE_NS;

    static NOBODY: Leases = [const { AtomicU32::new(0) }; EXTENTS_MOST];

    fn patience() -> Patience {
        Patience::new(LONG_PATIENCE_NS)
    }

    fn at(port: u16) -> Address {
        Address::of(b"127.0.0.1", port).expect("digits")
    }

    /// A Cluster, or one server, of which nodes at these ports are named.
    fn valkey(kind: u32, ports: &[u16]) -> Valkey {
        let server = |port: &u16| {
            let server = Server::new(at(*port).bytes(), b"").expect("it fits");
            Server { kind, extents: 1, ..server }
        };
        let servers: Vec<_> = ports.iter().map(server).collect();
        let key_prefix = *b"uz:aaaaaaaaa";
        let terms = Terms { servers: &servers, extent_bytes: 1 << 20, lease_ms: 1000, key_prefix };
        Valkey::new(&terms, &NOBODY).with_patient_tries()
    }

    /// A node of a Cluster, which has everything.
    fn whole(replicas: u64) -> Hostile {
        let server = Hostile::start();
        server.belongs_to(&server, replicas);
        server
    }

    /// A map of ranges of slots: the first, the last, the primary's port, and its replicas.
    fn map(ranges: &[(usize, usize, u16, usize)]) -> Map {
        let range = |(first, last, port, replicas): &(usize, usize, u16, usize)| {
            let node = |port: u16| format!("*3\r\n$9\r\n127.0.0.1\r\n:{port}\r\n$1\r\nx\r\n");
            let nodes = node(*port) + &node(1).repeat(*replicas);
            format!("*{}\r\n:{first}\r\n:{last}\r\n{nodes}", 3 + replicas)
        };
        let text: String = ranges.iter().map(range).collect();
        let text = format!("*{}\r\n{text}", ranges.len());
        let mut rest = text.as_bytes();
        let mut more = |into: &mut [u8]| rest.read(into).map_err(|_| EPROTO);
        let mut more: &mut dyn FnMut(&mut [u8]) -> Result<usize> = &mut more;
        let mut map = Map::new();
        assert_eq!(map.read(&mut Incoming::new(), &mut more, at(1)), Ok(true));
        map
    }

    #[test]
    fn nodes_keep_their_places_and_those_that_are_gone_make_room() {
        let valkey = valkey(Server::CLUSTER, &[1]);
        let ports = |valkey: &Valkey| -> Vec<_> {
            let port = |node: &Node| node.address().to_socket_address().map(|a| a.port());
            valkey.nodes[..4].iter().map(port).collect()
        };
        let of = |slot: u16| valkey.node_of(slot);
        valkey.take_over(&map(&[
            (0, 5000, 7000, 1),
            (5001, 10000, 7001, 0),
            (10001, 16383, 7002, 1),
        ]));
        assert_eq!(ports(&valkey), [Some(7000), Some(7001), Some(7002), None]);
        assert_eq!([0, 5001, 16383].map(of), [Some(0), Some(1), Some(2)]);
        assert!(
            valkey.is_whole() && !valkey.nodes[1].has_replica() && valkey.nodes[2].has_replica()
        );
        let name = valkey.nodes[2].name.load(Ordering::Relaxed);
        assert_eq!(name, name_of(b"127.0.0.1", 7002));
        // The first is followed by another one, and of the second's slots some are nobody's.
        valkey.nodes[0].replica_came(false);
        valkey.take_over(&map(&[
            (0, 5000, 7003, 1),
            (9000, 10000, 7001, 1),
            (10001, 16383, 7002, 1),
        ]));
        assert_eq!(ports(&valkey), [Some(7003), Some(7001), Some(7002), None]);
        assert_eq!([0, 5001, 9000, 16383].map(of), [Some(0), None, Some(1), Some(2)]);
        assert!(!valkey.is_whole() && valkey.nodes[1].has_replica());
        assert!(valkey.nodes[0].wait_ms() > 0, "the replica is another one, too");
        valkey.take_over(&map(&[(0, 16383, 7002, 0)]));
        assert_eq!(ports(&valkey), [None, None, Some(7002), None]);
        let names = valkey.nodes.iter().filter(|node| node.name.load(Ordering::Relaxed) != 0);
        assert_eq!((names.count(), valkey.primaries().count(), of(0)), (1, 1, Some(2)));
    }

    #[test]
    fn a_map_is_asked_of_one_after_the_other_until_there_is_one() {
        let (alone, node) = (Hostile::start(), whole(0));
        let ports = [1, alone.address().port(), node.address().port()];
        let valkey = valkey(Server::CLUSTER, &ports);
        assert_eq!(valkey.look(&mut patience()), Ok(()));
        assert_eq!(valkey.node_of(0).map(|i| valkey.nodes[i].address()), Some(at(ports[2])));
        assert!(valkey.is_whole() && valkey.looks.load(Ordering::Relaxed) == 1);
        // No node of the Cluster is left.
        drop(node);
        assert!(valkey.look(&mut patience()).is_err());
        assert!(valkey.is_whole(), "what was known stays");
    }

    #[test]
    fn one_server_has_no_map_and_is_not_asked_for_it() {
        // Nobody listens there.
        let valkey = valkey(Server::VALKEY, &[1]);
        assert_eq!(valkey.look(&mut patience()), Ok(()));
        valkey.look_for_replica(7);
        assert_eq!(valkey.looks.load(Ordering::Relaxed), 0);
        assert_eq!((valkey.is_whole(), valkey.node_of(16383)), (true, Some(0)));
        assert_eq!(valkey.connect(1_000_000_000), Err(Errno(111 /* ECONNREFUSED */)));
        valkey.nodes.iter().for_each(Node::close);
    }

    #[test]
    fn a_replica_that_was_added_is_found_after_a_while() {
        let node = whole(0);
        let valkey = valkey(Server::CLUSTER, &[node.address().port()]);
        valkey.connect(patience().left_ns()).expect("it is there");
        let slot = valkey.node_of(7).expect("the map is whole");
        node.belongs_to(&node, 1);
        let looks = || valkey.looks.load(Ordering::Relaxed);
        // The map was just asked for; that was long ago; there is a replica by now.
        for (is_old, found, asked) in [(false, false, 1), (true, true, 2), (true, true, 2)] {
            let looked_at_ns = if is_old { 0 } else { crate::sys::now_ns() };
            valkey.looked_at_ns.store(looked_at_ns, Ordering::Relaxed);
            valkey.look_for_replica(7);
            assert_eq!((valkey.nodes[slot].has_replica(), looks()), (found, asked));
        }
        valkey.nodes.iter().for_each(Node::close);
    }
}
