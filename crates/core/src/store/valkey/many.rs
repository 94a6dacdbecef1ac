//! Commands that neither read nor write values, but delete or renew them, one or many at a time;
//! and the questions of `uzswap run` to nodes.

use super::link::{Failure, Link, Manner, PIPELINE_DEPTH};
use super::map::slot_of;
use super::resp::{Address, Complaint, Outgoing};
use super::{Node, Valkey};
use crate::store::remote::NO_ANSWER;
use crate::sys::Result;
use crate::sys::socket::Patience;

/// A value's number, behind that of the node that has it.
type Placed = (Option<usize>, u64);

/// A command for many keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    Unlink,
    /// Their lease begins anew.
    Renew,
}

impl Valkey {
    fn command(&self, verb: Verb, number: u64) -> Outgoing {
        let key = self.key(number);
        match verb {
            Verb::Unlink => Outgoing::new().command(2).word(b"UNLINK").word(&key),
            Verb::Renew => {
                let command = Outgoing::new().command(3).word(b"PEXPIRE").word(&key);
                command.word_of_number(u64::from(self.lease_ms.max(1)))
            }
        }
    }

    /// Gives a command for one value. Returns how many keys there were.
    pub(super) fn each_one(&self, verb: Verb, number: u64, patience: &mut Patience) -> Result<u64> {
        let (key, command) = (self.key(number), self.command(verb, number));
        let said = self.drive(slot_of(&key), patience, |node, is_asking, patience| {
            let mut link = node.writes.lock();
            self.open(node, &mut link, 1, patience)?;
            link.ask(&command, Manner { is_asking, wait_ms: 0 }, patience)
        })?;
        Ok(said.max(0) as u64)
    }

    /// Gives a command for values, many at a time. Returns how many keys there were. A node that
    /// says nothing keeps no other from its part: it has the time that is left at the end. If that
    /// comes to nothing it is left alone for a while, in which its values are an error at once.
    /// Allocates: for `uzswap run`.
    pub fn each(
        &self,
        verb: Verb,
        numbers: core::ops::Range<u64>,
        patience: &mut Patience,
    ) -> Result<u64> {
        let node_of = |number: u64| self.node_of(slot_of(&self.key(number)));
        let mut all: Vec<_> = numbers.map(|number| (node_of(number), number)).collect();
        all.sort_unstable();
        let (mut done, mut is_missing) = (0, false);
        // Values that a node refuses, or that no node has, before those of nodes that say nothing.
        let (mut refused, mut silent) = (Vec::new(), Vec::new());
        for its in all.chunk_by(|a, b| a.0 == b.0) {
            match its[0].0.map(|i| &self.nodes[i]) {
                None => refused.extend(its),
                Some(node) if node.is_left_alone() => is_missing = true,
                Some(node) => {
                    done += self.each_of(verb, node, its, [&mut refused, &mut silent], patience);
                }
            }
        }
        refused.append(&mut silent);
        for (n, (_, number)) in refused.iter().enumerate() {
            match self.each_one(verb, *number, patience) {
                Ok(keys) => done += keys,
                Err(why) => {
                    let left = refused[n..].iter().filter_map(|(node, _)| *node);
                    left.for_each(|node| self.nodes[node].leave_alone());
                    return Err(why);
                }
            }
        }
        if is_missing { Err(NO_ANSWER) } else { Ok(done) }
    }

    /// Gives a command for values of one node, and says how many keys there were. Values that are
    /// refused are added to the refused ones, and those without an answer to the silent ones: all
    /// that are left once none comes any more.
    fn each_of(
        &self,
        verb: Verb,
        node: &Node,
        numbers: &[Placed],
        [refused, silent]: [&mut Vec<Placed>; 2],
        patience: &mut Patience,
    ) -> u64 {
        let (mut done, mut breaks) = (0, 0);
        let mut batches = numbers.chunks(PIPELINE_DEPTH);
        while let Some(batch) = batches.next() {
            // Half of what is left at most: there are other nodes.
            let mut part = patience.at_most(self.try_ns().min(patience.left_ns() / 2));
            let before = part.left_ns();
            let said = self.batch(verb, node, batch, &mut part);
            patience.spend(before - part.left_ns());
            for (said, number) in said.iter().zip(batch) {
                match said {
                    Some(Ok(n)) => done += (*n).max(0) as u64,
                    Some(Err(_)) => refused.push(*number),
                    None => silent.push(*number),
                }
            }
            // A connection that somebody has closed meanwhile is made again.
            breaks = if said[batch.len() - 1].is_none() { breaks + 1 } else { 0 };
            if breaks > 1 || breaks > 0 && part.is_over() {
                silent.extend(batches.by_ref().flatten());
            }
        }
        done
    }

    /// Gives a command for so many values as can be under way; for each of them its answer, if
    /// there is one.
    fn batch(
        &self,
        verb: Verb,
        node: &Node,
        numbers: &[Placed],
        patience: &mut Patience,
    ) -> [Option<core::result::Result<i64, Complaint>>; PIPELINE_DEPTH] {
        let (mut tickets, mut said) = ([None; PIPELINE_DEPTH], [None; PIPELINE_DEPTH]);
        let mut link = node.writes.lock();
        if self.open(node, &mut link, 1, patience).is_ok() {
            for (ticket, (_, number)) in tickets.iter_mut().zip(numbers) {
                let command = self.command(verb, *number);
                *ticket = link.send(&command, Manner::default(), patience).ok();
            }
        }
        for (said, ticket) in said.iter_mut().zip(tickets.into_iter().flatten()) {
            let outcome = link.result(ticket, true, patience).expect("it is waited for");
            *said = outcome.ok().map(|outcome| outcome.said);
        }
        said
    }

    /// Asks any node for a text, by a connection for that: see [`Link::read_text`]. For `uzswap
    /// run`.
    pub fn ask_text(
        &self,
        at: Address,
        command: &Outgoing,
        into: &mut [u8],
        patience: &mut Patience,
    ) -> core::result::Result<usize, Failure> {
        let mut link = Link::new();
        let answer = link.open(at, &self.login, patience);
        let answer = answer.and_then(|()| link.read_text(command, into, patience));
        link.close();
        answer
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicU32, Ordering};

    use super::super::Terms;
    use super::super::hostile::Hostile;
    use super::*;
    use crate::store::extents::{EXTENTS_MOST, Leases};
    use crate::store::remote::Server;
    use crate::store::testing::LONG_PATIENCE_NS;

    static NOBODY: Leases = [const { AtomicU32::new(0) }; EXTENTS_MOST];
    const NUMBERS: core::ops::Range<u64> = 0..100;

    fn patience() -> Patience {
        Patience::new(LONG_PATIENCE_NS)
    }

    /// Nodes of a Cluster at these ports, which have the slots by turns.
    fn cluster(ports: &[u16]) -> Valkey {
        let at = |port: u16| Address::of(b"127.0.0.1", port).expect("digits");
        let seed = Server::new(at(ports[0]).bytes(), b"").expect("it fits");
        let servers = &[Server { kind: Server::CLUSTER, extents: 8, ..seed }];
        let key_prefix = *b"uz:aaaaaaaaa";
        let terms = Terms { servers, extent_bytes: 1 << 20, lease_ms: 1000, key_prefix };
        let valkey = Valkey::new(&terms, &NOBODY).with_patient_tries();
        for (node, port) in valkey.nodes.iter().zip(ports) {
            *node.address.lock() = at(*port);
        }
        for (i, slot) in valkey.slots.iter().enumerate() {
            slot.store((i % ports.len()) as u8 + 1, Ordering::Relaxed);
        }
        valkey
    }

    /// Stores the values of a node.
    fn fill(valkey: &Valkey, node: usize) -> u64 {
        let is_its = |number: &u64| valkey.node_of(slot_of(&valkey.key(*number))) == Some(node);
        let store = |number: &u64| valkey.store(*number, b"value", &mut patience()).expect("there");
        NUMBERS.filter(is_its).inspect(store).count() as u64
    }

    #[test]
    fn a_node_that_is_gone_keeps_no_other_from_its_part_and_is_left_alone_then() {
        let live = Hostile::start();
        // Nobody listens at the first one, which would have its turn first.
        let valkey = cluster(&[1, live.address().port()]);
        let timeouts = || valkey.counts.timeouts.load(Ordering::Relaxed);
        let mut before = 0;
        for is_new in [true, false] {
            assert!(fill(&valkey, 1) > 20);
            before = if is_new { before } else { timeouts() };
            if !is_new {
                // However long ago it was given up.
                valkey.nodes[0].leave_alone();
            }
            // The first one has all of it.
            let mut short = Patience::new(3_000_000_000);
            assert_eq!(valkey.each(Verb::Unlink, NUMBERS, &mut short), Err(NO_ANSWER));
            assert!(live.values().is_empty());
            assert_eq!((valkey.nodes[0].is_left_alone(), timeouts() > before), (true, is_new));
            assert!(!valkey.nodes[1].is_left_alone());
        }
        valkey.nodes.iter().for_each(Node::close);
    }

    #[test]
    fn each_key_counts_once_where_its_connection_was_closed_meanwhile() {
        let servers = [Hostile::start(), Hostile::start()];
        let valkey = cluster(&servers.each_ref().map(|server| server.address().port()));
        let there = fill(&valkey, 0) + fill(&valkey, 1);
        assert_eq!(there, NUMBERS.count() as u64);
        servers[1].hang_up();
        assert_eq!(valkey.each(Verb::Renew, NUMBERS, &mut patience()), Ok(there));
        servers.iter().for_each(Hostile::hang_up);
        assert_eq!(valkey.each(Verb::Unlink, NUMBERS, &mut patience()), Ok(there));
        assert_eq!(valkey.each(Verb::Renew, NUMBERS, &mut patience()), Ok(0));
        valkey.nodes.iter().for_each(Node::close);
    }

    #[test]
    fn units_that_have_moved_or_have_no_node_are_asked_for_one_by_one() {
        let servers = [Hostile::start(), Hostile::start()];
        let valkey = cluster(&servers.each_ref().map(|server| server.address().port()));
        let there = fill(&valkey, 0) + fill(&valkey, 1);
        // The second has all by now, and says so.
        servers[0].moves_to(&servers[1]);
        assert_eq!(valkey.each(Verb::Renew, NUMBERS, &mut patience()), Ok(there));
        assert!(
            NUMBERS.clone().all(|number| valkey.node_of(slot_of(&valkey.key(number))) == Some(1))
        );
        // The map that is looked for knows them.
        valkey.slots.iter().for_each(|slot| slot.store(0, Ordering::Relaxed));
        assert_eq!(valkey.each(Verb::Unlink, NUMBERS, &mut patience()), Ok(there));
        assert!(servers[1].values().is_empty() && valkey.is_whole());
        valkey.nodes.iter().for_each(Node::close);
    }
}
