//! The records of clusters, and the lists that they wait in.

use super::{CLUSTER_BYTES, NONE};
use crate::sys::mem::Table;
use crate::sys::{Errno, Result};

/// The meaning of a record.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Nothing.
    Unused = 0,
    /// A cluster in memory: open, full, or being written.
    Buffered = 1,
    /// A cluster in a file.
    Written = 2,
    /// A place in the own file to write to.
    Idle = 3,
    /// A place in the own file that a forked child may still read.
    Deferred = 4,
    /// A place whose disk space is being given back.
    Discarding = 5,
}

crate::zeroable! {
    /// One cluster. All zero: unused.
    #[derive(Clone, Copy)]
    pub struct Cluster {
        pub sequence: u64,
        /// The cluster's nonces are made of this and the sequence number.
        pub salt: u32,
        /// The place in the file, in units of a cluster. Only of a written cluster.
        pub slot: u32,
        /// The first of the owner's objects, in a list that the owner keeps.
        pub first: u32,
        /// The next record in the list that this one is in: unused, idle or deferred. Of a written
        /// cluster: the record that the flush after it was of, a hint.
        pub next: u32,
        pub live_bytes: u32,
        pub live: u16,
        pub state: u8,
        pub file: u8,
        /// Blocks of the last flush.
        pub blocks: u8,
        /// Blocks of the slot that take disk space.
        pub disk_blocks: u8,
        pub buffer: u8,
        pub _pad: [u8; 5],
    }
}

impl Cluster {
    pub const UNUSED: Cluster = Cluster {
        sequence: 0,
        salt: 0,
        slot: 0,
        first: NONE,
        next: NONE,
        live_bytes: 0,
        live: 0,
        state: State::Unused as u8,
        file: 0,
        blocks: 0,
        disk_blocks: 0,
        buffer: 0,
        _pad: [0; 5],
    };

    pub fn state(&self) -> State {
        match self.state {
            0 => State::Unused,
            1 => State::Buffered,
            2 => State::Written,
            3 => State::Idle,
            4 => State::Deferred,
            _ => State::Discarding,
        }
    }

    pub fn at(&self) -> u64 {
        u64::from(self.slot) * CLUSTER_BYTES as u64
    }
}

/// A singly linked list of records.
#[derive(Clone, Copy)]
pub struct List {
    head: u32,
    len: u32,
}

const EMPTY: List = List { head: NONE, len: 0 };

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ListName {
    Unused,
    /// Places to write to that have disk space already.
    Idle,
    /// Places to write to that have none.
    Holes,
    Deferred,
    /// Places to write to at which a write has failed.
    SetAside,
}

/// All records, by id.
pub struct Records {
    table: Table<Cluster>,
    /// Ids ever given out.
    high: u32,
    lists: [List; 5],
}

impl Records {
    pub const fn new() -> Records {
        Records { table: Table::new(), high: 0, lists: [EMPTY; 5] }
    }

    pub fn get(&self, id: u32) -> &Cluster {
        self.table.get(id as usize).expect("a cluster id comes from here")
    }

    pub fn get_mut(&mut self, id: u32) -> &mut Cluster {
        self.table.get_mut(id as usize).expect("a cluster id comes from here")
    }

    pub fn ids(&self) -> core::ops::Range<u32> {
        0..self.high
    }

    pub fn len(&self, name: ListName) -> u32 {
        self.lists[name as usize].len
    }

    pub fn push(&mut self, name: ListName, id: u32) {
        let list = &mut self.lists[name as usize];
        let next = list.head;
        *list = List { head: id, len: list.len + 1 };
        let c = self.get_mut(id);
        c.next = next;
        c.state = match name {
            ListName::Unused => State::Unused,
            ListName::Idle | ListName::Holes | ListName::SetAside => State::Idle,
            ListName::Deferred => State::Deferred,
        } as u8;
    }

    pub fn pop(&mut self, name: ListName) -> Option<u32> {
        let List { head, len } = self.lists[name as usize];
        if head == NONE {
            return None;
        }
        self.lists[name as usize] = List { head: self.get(head).next, len: len - 1 };
        Some(head)
    }

    /// Takes a whole list apart: calls `to` for each member, which says where it goes.
    pub fn sort_out(&mut self, name: ListName, to: impl Fn(&Cluster) -> ListName) {
        let mut rest = core::mem::replace(&mut self.lists[name as usize], EMPTY).head;
        while rest != NONE {
            let c = *self.get(rest);
            self.push(to(&c), rest);
            rest = c.next;
        }
    }

    /// A record to be filled in.
    pub fn allocate(&mut self) -> Result<u32> {
        if let Some(id) = self.pop(ListName::Unused) {
            return Ok(id);
        }
        let id = self.high;
        if id == NONE {
            return Err(Errno::ENOSPC);
        }
        self.table.ensure(id as usize)?;
        self.high += 1;
        Ok(id)
    }

    pub fn free(&mut self, id: u32) {
        *self.get_mut(id) = Cluster::UNUSED;
        self.push(ListName::Unused, id);
    }

    pub fn memory_bytes(&self) -> usize {
        self.high as usize * size_of::<Cluster>()
    }

    /// Asserts that the lists hold exactly the records in their states.
    pub fn check(&self) {
        let mut states = [0u32; 6];
        self.ids().for_each(|id| states[self.get(id).state as usize] += 1);
        let walked = |name: ListName| {
            let (mut n, mut at) = (0, self.lists[name as usize].head);
            while at != NONE {
                n += 1;
                assert!(n <= self.len(name), "a list is a ring");
                at = self.get(at).next;
            }
            assert_eq!(n, self.len(name));
            n
        };
        assert_eq!(walked(ListName::Unused), states[State::Unused as usize]);
        let idle = [ListName::Idle, ListName::Holes, ListName::SetAside].map(walked);
        assert_eq!(idle.iter().sum::<u32>(), states[State::Idle as usize]);
        assert_eq!(walked(ListName::Deferred), states[State::Deferred as usize]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_is_sorted_out_loses_none_also_where_some_stay_in_it() {
        let mut r = Records::new();
        r.sort_out(ListName::Deferred, |_| unreachable!("there is none"));
        for sequence in 1..=6 {
            let id = r.allocate().unwrap();
            *r.get_mut(id) = Cluster { sequence, ..Cluster::UNUSED };
            r.push(if id == 0 { ListName::Idle } else { ListName::Deferred }, id);
        }
        let by_sequence = |c: &Cluster| match c.sequence {
            2 | 6 => ListName::Deferred,
            4 => ListName::Holes,
            _ => ListName::Idle,
        };
        r.sort_out(ListName::Deferred, by_sequence);
        r.check();
        let mut all = |name| core::iter::from_fn(|| r.pop(name)).collect::<Vec<_>>();
        let mut lists = [ListName::Deferred, ListName::Holes, ListName::Idle].map(&mut all);
        lists.iter_mut().for_each(|ids| ids.sort_unstable());
        assert_eq!(lists, [vec![1, 5], vec![3], vec![0, 2, 4]]);
    }

    #[test]
    fn an_id_that_is_free_is_given_again_and_the_last_one_is_no_id() {
        let mut r = Records::new();
        let [first, second] = [0, 1].map(|_| r.allocate().unwrap());
        *r.get_mut(first) = Cluster { live: 3, state: State::Written as u8, ..Cluster::UNUSED };
        r.free(first);
        assert_eq!((r.get(first).live, r.get(first).state()), (0, State::Unused));
        r.high = NONE;
        assert_eq!([r.allocate(), r.allocate()], [Ok(first), Err(Errno::ENOSPC)]);
        assert_eq!((r.high, r.len(ListName::Unused)), (NONE, 0));
        r.free(second);
        assert_eq!(r.allocate(), Ok(second));
    }
}
