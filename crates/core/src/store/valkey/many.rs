//! Commands that neither read nor write values, but delete or renew them, one or many at a time;
//! and the questions of `uzswap run` to nodes.

use super::link::{Failure, Link, Manner, WINDOW};
use super::map::{NODES_MOST, slot_of};
use super::resp::{Address, Outgoing};
use super::{Node, Valkey};
use crate::sys::Result;
use crate::sys::socket::Patience;

/// A command for many keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    Unlink,
    /// Their lease begins anew.
    Renew,
}

impl Valkey {
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

    /// Gives a command for one unit. Returns how many keys there were.
    pub(super) fn each_one(&self, verb: Verb, unit: u64, patience: &mut Patience) -> Result<u64> {
        let (key, command) = (self.key(unit), self.command(verb, unit));
        let said = self.drive(slot_of(&key), patience, |node, is_asking, patience| {
            let mut link = node.writes.lock();
            self.open(node, &mut link, 1, patience)?;
            link.ask(&command, Manner { is_asking, wait_ms: 0 }, patience)
        })?;
        Ok(said.max(0) as u64)
    }

    /// Gives a command for units, many at a time. Returns how many keys there were.
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
        // Units whose slots no node has are dealt with one by one.
        for unit in units.clone().filter(|unit| self.node_of(slot_of(&self.key(*unit))).is_none()) {
            done += self.each_one(verb, unit, patience)?;
        }
        Ok(done)
    }

    /// Gives a command for units of one node. A unit for which this does not work is done by
    /// itself.
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
