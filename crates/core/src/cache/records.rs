//! Records by id, and which of them are not in use.

use crate::sys::mem::{Table, Zeroable};
use crate::sys::{Errno, Result};

/// No record: the end of a list.
pub const NONE: u32 = u32::MAX;

/// A record that says itself whether it is in use. All zero: it is not.
pub trait Record: Zeroable {
    fn is_unused(&self) -> bool;

    /// The id of the record that follows in the list of those not in use, or `NONE`. This one is in
    /// that list, too.
    fn next_unused(&self) -> u32;

    /// The record is not in use from now on.
    fn retire(&mut self, next_unused: u32);
}

/// All records of one kind, by id, with the list of those not in use.
pub struct Records<R> {
    table: Table<R>,
    /// Ids ever given out.
    high: u32,
    unused: Option<u32>,
    in_use: u32,
}

impl<R: Zeroable> Default for Records<R> {
    fn default() -> Self {
        Records { table: Table::new(), high: 0, unused: None, in_use: 0 }
    }
}

impl<R: Record> Records<R> {
    pub fn get(&self, id: u32) -> &R {
        self.table.get(id as usize).expect("an id comes from here")
    }

    pub fn get_mut(&mut self, id: u32) -> &mut R {
        self.table.get_mut(id as usize).expect("an id comes from here")
    }

    /// The record, if there ever was one.
    pub fn find(&self, id: u32) -> Option<&R> {
        if id < self.high { self.table.get(id as usize) } else { None }
    }

    /// A record that is not in use, for the caller to fill.
    pub fn allocate(&mut self) -> Result<u32> {
        let id = match self.unused {
            Some(id) => {
                let next = self.get(id).next_unused();
                self.unused = (next != NONE).then_some(next);
                id
            }
            None => {
                let id = self.high;
                if id == NONE {
                    return Err(Errno::ENOMEM);
                }
                self.table.ensure(id as usize)?;
                self.high += 1;
                id
            }
        };
        self.in_use += 1;
        Ok(id)
    }

    pub fn free(&mut self, id: u32) {
        let next = self.unused.unwrap_or(NONE);
        let record = self.get_mut(id);
        assert!(!record.is_unused(), "a record is freed once");
        record.retire(next);
        self.unused = Some(id);
        self.in_use -= 1;
    }

    /// Whether the next record is one that was in use before.
    pub fn has_unused(&self) -> bool {
        self.unused.is_some()
    }

    pub fn in_use(&self) -> u32 {
        self.in_use
    }

    pub fn ids(&self) -> core::ops::Range<u32> {
        0..self.high
    }

    pub fn memory_bytes(&self) -> usize {
        self.high as usize * size_of::<R>()
    }

    /// Asserts that the list of unused records and the counts agree with the records.
    pub fn check(&self) {
        let free = self.ids().filter(|&id| self.get(id).is_unused()).count();
        assert_eq!(self.high as usize - free, self.in_use as usize);
        let (mut listed, mut at) = (0, self.unused.unwrap_or(NONE));
        while at != NONE {
            assert!(self.get(at).is_unused() && listed < free, "the unused list");
            listed += 1;
            at = self.get(at).next_unused();
        }
        assert_eq!(listed, free);
    }
}
