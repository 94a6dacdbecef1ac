//! Swap entries: the compact record of where each page is, and the tables that find it.

use super::records::{NONE, Record, Records};
use crate::store::cluster::Place;
use crate::sys::Result;
use crate::sys::mem::Table;

/// Areas: type 0 is the cache's own (`swap_out`), the others are keyed by the caller (`init`).
pub const MAX_AREAS: usize = 32;
/// The area whose offsets the cache gives out.
pub const OWN_AREA: u8 = 0;

/// The name of a page that is out: (type, offset), 40 bits, never all ones.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SwapEntry {
    area: u8,
    offset: u32,
}

impl SwapEntry {
    pub const BITS: u32 = 40;

    pub const fn new(area: u8, offset: u32) -> SwapEntry {
        assert!((area as usize) < MAX_AREAS);
        SwapEntry { area, offset }
    }

    pub const fn area(self) -> u8 {
        self.area
    }

    pub const fn offset(self) -> u32 {
        self.offset
    }

    /// Below 2^40, and never 2^40 - 1.
    pub const fn to_bits(self) -> u64 {
        (self.area as u64) << 32 | self.offset as u64
    }

    /// The entry of which [`SwapEntry::to_bits`] made `bits`; `None` for bits that it cannot have
    /// made.
    pub const fn from_bits(bits: u64) -> Option<SwapEntry> {
        if bits >> 32 >= MAX_AREAS as u64 {
            return None;
        }
        Some(SwapEntry { area: (bits >> 32) as u8, offset: bits as u32 })
    }
}

/// A place in a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    pub group: u32,
    pub index: u8,
}

/// Where the page of an entry is. Exactly one place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Location {
    /// Nowhere: the entry is not in use.
    Free,
    /// One word, repeated.
    Same(u64),
    /// An object of the pool: its raw handle.
    Pool(u64),
    /// A page of a group in the pool.
    Grouped(Member),
    /// An object of a cluster, in memory or in the file.
    Stored(Place),
    /// Nowhere: it was the copy of a page that its owner has, and was dropped.
    Gone,
}

/// Marks of an entry.
#[derive(Clone, Copy)]
#[repr(u8)]
pub enum Mark {
    /// Loaded since it was looked at last.
    Referenced = 1,
    /// In the list of the old rather than in that of the young.
    Old = 2,
    /// The recompressor has done for it what it can.
    Packed = 4,
    /// The recompressor is working on it.
    Packing = 8,
    /// In the list of the ancient, whatever it is besides.
    Ancient = 16,
    /// The fingerprint of its page is known.
    Printed = 32,
}

/// The time of use of an entry that was marked as idle: 0, because the owner's clock begins with 1.
const IDLE: u64 = 0;

const FREE: u8 = 0;
const SAME: u8 = 1;
const POOL: u8 = 2;
const STORED: u8 = 3;
const GONE: u8 = 4;
const GROUPED: u8 = 5;

crate::zeroable! {
    /// The record. All zero: free.
    #[derive(Clone, Copy)]
    pub struct Entry {
        /// The word, the handle, group and index, or cluster and offset.
        payload: u64,
        /// The fingerprint of its page, once a copy of it was kept ([`Mark::Printed`]); before that
        /// the time at which it was used last, or [`IDLE`].
        pub fingerprint: u64,
        /// Neighbours in the one list that the entry is in: young, old, ancient or kept (in the
        /// pool), its cluster's (stored), unused (free).
        pub prev: u32,
        pub next: u32,
        /// Length of the object; 0 of a page in a group, which has none of its own.
        pub len: u16,
        kind: u8,
        pub codec: u8,
        /// Which pool the object is in.
        pub pool: u8,
        pub area: u8,
        flags: u8,
        /// The page is with its owner.
        pub kept: u8,
    }
}
const _: () = assert!(size_of::<Entry>() == 32);

impl Entry {
    pub fn is(&self, mark: Mark) -> bool {
        self.flags & mark as u8 != 0
    }

    pub fn mark(&mut self, mark: Mark, on: bool) {
        self.flags = self.flags & !(mark as u8) | if on { mark as u8 } else { 0 };
    }

    /// A new object: no marks.
    pub fn unmark(&mut self) {
        self.flags = 0;
    }

    /// The entry is used now, by the owner's clock.
    pub fn touch(&mut self, now: u32) {
        if !self.is(Mark::Printed) {
            self.fingerprint = u64::from(now);
        }
    }

    /// When the entry was used last, if that is known; 0 of one that was marked as idle since.
    pub fn used_at(&self) -> Option<u32> {
        (!self.is(Mark::Printed)).then_some(self.fingerprint as u32)
    }

    /// Marks the entry as idle, if it was not used after the time `latest`.
    pub fn become_idle(&mut self, latest: u32) {
        if self.used_at().is_some_and(|at| at <= latest) {
            self.fingerprint = IDLE;
        }
    }

    pub fn is_idle(&self) -> bool {
        self.used_at() == Some(IDLE as u32)
    }

    pub fn location(&self) -> Location {
        match self.kind {
            FREE => Location::Free,
            SAME => Location::Same(self.payload),
            POOL => Location::Pool(self.payload),
            GONE => Location::Gone,
            GROUPED => Location::Grouped(Member {
                group: (self.payload >> 8) as u32,
                index: self.payload as u8,
            }),
            _ => Location::Stored(Place {
                cluster: (self.payload >> 16) as u32,
                offset: self.payload as u16,
            }),
        }
    }

    pub fn set_location(&mut self, location: Location) {
        (self.kind, self.payload) = match location {
            Location::Free => (FREE, 0),
            Location::Gone => (GONE, 0),
            Location::Same(word) => (SAME, word),
            Location::Pool(handle) => (POOL, handle),
            Location::Grouped(m) => (GROUPED, u64::from(m.group) << 8 | u64::from(m.index)),
            Location::Stored(p) => (STORED, u64::from(p.cluster) << 16 | u64::from(p.offset)),
        };
    }
}

/// All entries, by id.
pub type Entries = Records<Entry>;

impl Record for Entry {
    fn is_unused(&self) -> bool {
        self.location() == Location::Free
    }

    fn next_unused(&self) -> u32 {
        self.next
    }

    fn retire(&mut self, next_unused: u32) {
        self.set_location(Location::Free);
        (self.prev, self.next) = (NONE, next_unused);
    }
}

/// The use of an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AreaState {
    #[default]
    Unused,
    InUse,
    /// Being invalidated: nothing comes in any more, pages that are left can be read.
    Ending,
}

/// An area that the caller keys: offset -> entry.
#[derive(Default)]
pub struct Area {
    pub state: AreaState,
    /// Id plus one; 0: none.
    map: Table<u32>,
    /// One more than the largest offset ever stored: 2^32 at most.
    high: u64,
    /// Offsets that have an entry.
    len: u32,
}

impl Area {
    pub fn get(&self, offset: u32) -> Option<u32> {
        self.map.get(offset as usize).and_then(|&id| id.checked_sub(1))
    }

    /// Makes room for `offset`, so that `set` cannot fail.
    pub fn reserve(&mut self, offset: u32) -> Result<()> {
        self.map.ensure(offset as usize)?;
        self.high = self.high.max(u64::from(offset) + 1);
        Ok(())
    }

    /// Whether the table has a place for `offset` already.
    pub fn reaches(&self, offset: u32) -> bool {
        u64::from(offset) < self.high && self.map.get(offset as usize).is_some()
    }

    pub fn set(&mut self, offset: u32, id: Option<u32>) {
        let slot = self.map.get_mut(offset as usize).expect("reserved before");
        let before = core::mem::replace(slot, id.map_or(0, |id| id + 1));
        self.len = self.len + u32::from(id.is_some()) - u32::from(before != 0);
    }

    /// The next offset from `from` on that has an entry, with its entry.
    pub fn next(&self, from: u32) -> Option<(u32, u32)> {
        self.next_below(from, self.high)
    }

    /// The next offset from `from` on, and below `end`, that has an entry, with its entry.
    pub fn next_before(&self, from: u32, end: u32) -> Option<(u32, u32)> {
        self.next_below(from, self.high.min(u64::from(end)))
    }

    fn next_below(&self, from: u32, end: u64) -> Option<(u32, u32)> {
        let mut offset = u64::from(from);
        while offset < end {
            match self.map.get(offset as usize) {
                Some(0) => offset += 1,
                Some(&id) => return Some((offset as u32, id - 1)),
                // No segment of the table, so no entry at any of its offsets.
                None => {
                    offset = (offset + 1).next_multiple_of(Table::<u32>::PER_SEGMENT as u64);
                }
            }
        }
        None
    }

    /// Memory that the kernel has given, at most: mapped by large segments, touched up to the
    /// largest offset.
    pub fn memory_bytes(&self) -> usize {
        self.map.mapped_bytes().min(self.high as usize * size_of::<u32>())
    }

    /// Gives the area's memory back, if it has no entries and may get some again.
    pub fn clear_if_empty(&mut self) {
        if self.len == 0 && self.state == AreaState::InUse {
            *self = Area { state: self.state, ..Area::default() };
        }
    }
}

/// Ends of a doubly linked list through the entries' `prev` and `next`.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    pub first: u32,
    pub last: u32,
    pub len: u32,
}

impl Default for Ends {
    fn default() -> Self {
        Ends { first: NONE, last: NONE, len: 0 }
    }
}

impl Ends {
    pub fn push_front(&mut self, entries: &mut Entries, id: u32) {
        let e = entries.get_mut(id);
        (e.prev, e.next) = (NONE, self.first);
        match self.first {
            NONE => self.last = id,
            first => entries.get_mut(first).prev = id,
        }
        self.first = id;
        self.len += 1;
    }

    pub fn push_back(&mut self, entries: &mut Entries, id: u32) {
        let e = entries.get_mut(id);
        (e.prev, e.next) = (self.last, NONE);
        match self.last {
            NONE => self.first = id,
            last => entries.get_mut(last).next = id,
        }
        self.last = id;
        self.len += 1;
    }

    pub fn remove(&mut self, entries: &mut Entries, id: u32) {
        let (prev, next) = (entries.get(id).prev, entries.get(id).next);
        match prev {
            NONE => {
                assert_eq!(self.first, id, "an entry is in the list that it is taken from");
                self.first = next;
            }
            prev => entries.get_mut(prev).next = next,
        }
        match next {
            NONE => {
                assert_eq!(self.last, id, "an entry is in the list that it is taken from");
                self.last = prev;
            }
            next => entries.get_mut(next).prev = prev,
        }
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{in_memory, loaded};
    use super::*;
    use crate::testing::page;

    #[test]
    fn names_and_places_survive_their_bits_at_the_borders() {
        for (area, offset) in [(0, 0), (0, u32::MAX), (MAX_AREAS as u8 - 1, u32::MAX)] {
            let entry = SwapEntry::new(area, offset);
            assert_eq!(SwapEntry::from_bits(entry.to_bits()), Some(entry));
        }
        assert_eq!(SwapEntry::from_bits((MAX_AREAS as u64) << 32), None);
        assert_eq!(SwapEntry::from_bits(u64::MAX), None);
        let mut entries = Entries::default();
        let id = entries.allocate().unwrap();
        for location in [
            Location::Same(u64::MAX),
            Location::Pool(u64::MAX),
            Location::Grouped(Member { group: u32::MAX, index: u8::MAX }),
            Location::Stored(Place { cluster: u32::MAX, offset: u16::MAX }),
            Location::Gone,
        ] {
            entries.get_mut(id).set_location(location);
            assert_eq!(entries.get(id).location(), location);
        }
    }

    #[test]
    fn idle_is_who_was_not_used_after_a_second_and_never_who_has_a_fingerprint() {
        let mut entries = Entries::default();
        let id = entries.allocate().unwrap();
        let e = entries.get_mut(id);
        e.touch(7);
        e.become_idle(6);
        assert!(!e.is_idle() && e.used_at() == Some(7));
        e.become_idle(7);
        assert!(e.is_idle());
        e.touch(8);
        assert!(!e.is_idle());
        e.fingerprint = 0;
        e.mark(Mark::Printed, true);
        e.touch(9);
        e.become_idle(u32::MAX);
        assert!(!e.is_idle() && e.used_at().is_none() && e.fingerprint == 0);
    }

    #[test]
    fn the_last_key_of_an_area_goes_with_it() {
        let (cache, _) = in_memory(1 << 20);
        cache.init(1).unwrap();
        let last = SwapEntry::new(1, u32::MAX);
        cache.store(last, &page(1)).unwrap();
        assert!(loaded(&cache, last) == page(1));
        cache.check();
        cache.invalidate_area(1);
        assert_eq!(cache.counters().stored_pages, 0);
        cache.check();
    }
}
