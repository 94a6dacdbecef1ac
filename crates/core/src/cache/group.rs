//! Groups: pages that grow ancient are compressed together with their neighbours.
//!
//! ```text
//!            one by one                 16 pages as one                 in the pool, by 4 KiB
//!   YOUNG --------------> OLD  [a][b]...[p] ------> ################## ------> [####][####][##]
//!                          |                                                      ^ parts
//!                          +--> ANCIENT a: (group, 0)  b: (group, 1) ... p -----> group
//! ```
//!
//! Pages that lay side by side resemble each other, and a codec that sees 64 KiB of them finds what
//! one that sees 4 KiB cannot: a fifth of the bytes. In exchange a load of one page decompresses
//! all of them. So groups are for objects that [`recompress`](super::recompress) has compressed
//! again and nobody has asked for since. When the old are more than their part of the old and the
//! ancient together, the oldest of them are due. The cache knows of no addresses; neighbours are
//! those that came in one after the other, as they still follow each other in the list.
//!
//! A *group* is a record: the parts of its form, its *members*, and which of them are alive. A
//! member's entry says (group, index) where others have a handle, and is in one of the pool's lists
//! as they are. Its page comes from an [`Unpacked`]: a buffer with the pages of the group
//! decompressed last, from which the neighbours come for the price of a copy. Copies of members are
//! not kept: a page that is expensive to load never is.
//!
//! The form lives as long as a member does, and the pool counts all of it. When fewer than half of
//! the members are alive they are due again, to become a group with others. On its way to the store
//! each member is compressed singly (*dispersed*): a load from the store is of one object. A group
//! that a busy program asks for is taken apart.
//!
//! # The race
//! As in recompression: objects are copied out under the lock and marked, the group is made without
//! it, and an entry that has not changed meanwhile joins. Others leave a hole. A load asks for a
//! group by its sequence number, which never comes again: a buffer holds under that number the
//! pages that the members were, alive or not.

mod make;
mod unpack;

use super::Page;
use super::entry::{Location, Mark, Member};
use super::records::{Record, Records};
use super::state::{self, RAW, State};
use crate::codec::CodecId;
use crate::pool::{Handle, MAX_OBJECT_BYTES};
use crate::store::Store;
use crate::sys::{PAGE_SIZE, Result};
pub use make::Grouper;
pub use unpack::{Oldest, UNPACKED, Unpacked};

/// Pages of a group: 64 KiB. A group of 8 takes 3 % more bytes, and half the time for a load.
pub const GROUP_PAGES: usize = 16;
/// Objects that a form is cut into, at most: pages that do not become half as large stay as they
/// are.
const MAX_PARTS: usize = 8;
const MAX_FORM_BYTES: usize = MAX_PARTS * MAX_OBJECT_BYTES;

/// A place in a group with the group's sequence number, for a caller that lets go of the lock.
#[derive(Clone, Copy)]
pub struct Spot {
    member: Member,
    sequence: u64,
}

crate::zeroable! {
    /// The record of a group. All zero: not in use.
    #[derive(Clone, Copy)]
    pub struct Group {
        /// The sequence number: never 0, never given twice.
        sequence: u64,
        /// Handles of the form's parts, each but the last of a page's length; 0: no more.
        parts: [u64; MAX_PARTS],
        /// Entries, by index.
        members: [u32; GROUP_PAGES],
        /// Length of the form.
        bytes: u32,
        /// Neighbour in the list of records not in use.
        next: u32,
        /// A bit for each member that is alive.
        live: u16,
        /// Pages in the form, holes included.
        pages: u8,
        codec: u8,
        pool: u8,
        /// Not 0: so few members are alive, or were once, that they are due again.
        is_sparse: u8,
        _unused: u16,
    }
}

impl Group {
    /// The entries that are alive, with their indices.
    fn members(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        let is_live = |(i, _): &(usize, u32)| self.live >> i & 1 != 0;
        self.members.iter().copied().enumerate().filter(is_live)
    }

    fn handles(&self) -> impl Iterator<Item = Handle> + '_ {
        self.parts.iter().map_while(|raw| Handle::from_raw(*raw))
    }
}

impl Record for Group {
    fn is_unused(&self) -> bool {
        self.sequence == 0
    }

    fn next_unused(&self) -> u32 {
        self.next
    }

    fn retire(&mut self, next_unused: u32) {
        *self = Group { next: next_unused, ..EMPTY };
    }
}

/// All groups, by id.
#[derive(Default)]
pub struct Groups {
    records: Records<Group>,
    /// The last sequence number given out.
    sequence: u64,
}

impl Groups {
    fn get(&self, id: u32) -> &Group {
        self.records.get(id)
    }

    fn get_mut(&mut self, id: u32) -> &mut Group {
        self.records.get_mut(id)
    }

    pub fn spot(&self, member: Member) -> Spot {
        Spot { member, sequence: self.get(member.group).sequence }
    }

    /// The group of `spot`, if it is still there.
    fn find(&self, spot: Spot) -> Option<&Group> {
        Some(self.get(spot.member.group)).filter(|g| g.sequence == spot.sequence)
    }

    /// An empty group, with a sequence number.
    fn allocate(&mut self) -> Result<u32> {
        let id = self.records.allocate()?;
        self.sequence += 1;
        let sequence = self.sequence;
        *self.get_mut(id) = Group { sequence, ..EMPTY };
        Ok(id)
    }

    pub fn memory_bytes(&self) -> usize {
        self.records.memory_bytes()
    }
}

const EMPTY: Group = Group {
    sequence: 0,
    parts: [0; MAX_PARTS],
    members: [0; GROUP_PAGES],
    bytes: 0,
    next: 0,
    live: 0,
    pages: 0,
    codec: 0,
    pool: 0,
    is_sparse: 0,
    _unused: 0,
};

impl<S: Store> State<S> {
    /// A group of the form `form`, without members yet.
    fn store_group(&mut self, codec: CodecId, form: &[u8], pages: usize) -> Option<u32> {
        let id = self.groups.allocate().ok()?;
        let pool = self.pool as u8;
        for (i, part) in form.chunks(MAX_OBJECT_BYTES).enumerate() {
            match self.pools[self.pool].store(part) {
                Ok(handle) => self.groups.get_mut(id).parts[i] = handle.to_raw(),
                Err(_) => {
                    self.free_group(id, pool);
                    return None;
                }
            }
        }
        let group = self.groups.get_mut(id);
        (group.codec, group.pool) = (codec, pool);
        (group.bytes, group.pages) = (form.len() as u32, pages as u8);
        Some(id)
    }

    fn free_group(&mut self, id: u32, pool: u8) {
        let parts = self.groups.get(id).parts;
        parts.iter().take_while(|raw| **raw != 0).for_each(|raw| self.free_object(pool, *raw));
        self.groups.records.free(id);
    }

    fn join_group(&mut self, id: u32, member: Member) {
        let group = self.groups.get_mut(member.group);
        group.live |= 1 << member.index;
        group.members[usize::from(member.index)] = id;
        let e = self.entries.get_mut(id);
        self.counters.incompressible_pages -= u64::from(e.codec == RAW);
        e.set_location(Location::Grouped(member));
        (e.codec, e.len) = (0, 0);
        self.counters.grouped_pages += 1;
        self.counters.group_stores += 1;
    }

    /// The entry at a place leaves its group for another location, or for none.
    pub(in crate::cache) fn leave_group(&mut self, member: Member) {
        let group = self.groups.get_mut(member.group);
        assert!(group.live >> member.index & 1 != 0, "a member leaves once");
        group.live &= !(1 << member.index);
        let live = group.live.count_ones();
        let becomes_sparse = group.is_sparse == 0 && live < u32::from(group.pages).div_ceil(2);
        group.is_sparse |= u8::from(becomes_sparse);
        let group = *group;
        self.counters.grouped_pages -= 1;
        if live == 0 {
            self.free_group(member.group, group.pool);
        } else if becomes_sparse {
            group.members().for_each(|(_, id)| self.make_due(id));
        }
    }

    fn copy_form(&self, group: &Group, to: &mut [u8]) {
        let mut scratch: Page = [0; PAGE_SIZE];
        for (handle, to) in group.handles().zip(to.chunks_mut(MAX_OBJECT_BYTES)) {
            let part = state::object(&self.pools, group.pool, handle.to_raw(), &mut scratch);
            to[..part.len()].copy_from_slice(part);
        }
    }

    /// An old entry becomes the youngest of the ancient.
    fn grow_ancient(&mut self, id: u32) {
        self.unlink_pooled(id);
        self.entries.get_mut(id).mark(Mark::Ancient, true);
        self.ancient.push_front(&mut self.entries, id);
    }

    /// An ancient entry becomes the oldest of the old.
    fn make_due(&mut self, id: u32) {
        if self.entries.get(id).is(Mark::Ancient) {
            self.unlink_pooled(id);
            self.entries.get_mut(id).mark(Mark::Ancient, false);
            self.old.push_back(&mut self.entries, id);
        }
    }

    /// Asserts that groups, their members and their parts agree.
    pub(in crate::cache) fn check_groups(&self) {
        let mut live = 0u64;
        for id in self.groups.records.ids() {
            let group = self.groups.get(id);
            if group.is_unused() {
                continue;
            }
            live += u64::from(group.live.count_ones());
            assert!(
                group.sequence <= self.groups.sequence && group.live != 0,
                "a group has members"
            );
            assert!(
                usize::from(group.pages) <= GROUP_PAGES
                    && u32::from(group.live) >> group.pages == 0
            );
            let is_sparse = group.live.count_ones() < u32::from(group.pages).div_ceil(2);
            assert!(!is_sparse || group.is_sparse != 0, "few members are due again");
            let pool = &self.pools[usize::from(group.pool)];
            assert!(group.handles().all(|h| pool.holds(h)), "the pool knows the parts");
            assert_eq!(group.handles().map(Handle::len).sum::<usize>(), group.bytes as usize);
            for (index, entry) in group.members() {
                let member = Member { group: id, index: index as u8 };
                assert_eq!(self.entries.get(entry).location(), Location::Grouped(member));
            }
        }
        self.groups.records.check();
        assert_eq!(live, self.counters.grouped_pages);
    }

    /// Objects of the pool that are parts of groups, and their bytes.
    pub(in crate::cache) fn group_parts(&self) -> (usize, usize) {
        let parts = |id| self.groups.get(id).handles().map(|h| (1, h.len()));
        let sum = |a: (usize, usize), b: (usize, usize)| (a.0 + b.0, a.1 + b.1);
        self.groups.records.ids().flat_map(parts).fold((0, 0), sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spot_finds_its_own_group_and_none_that_has_its_record_later() {
        let mut groups = Groups::default();
        let group = groups.allocate().unwrap();
        let spot = groups.spot(Member { group, index: 3 });
        assert!(groups.find(spot).is_some());
        groups.records.free(group);
        assert!(groups.find(spot).is_none());
        assert_eq!(groups.allocate(), Ok(group));
        assert!(groups.find(spot).is_none());
        assert!(groups.find(groups.spot(spot.member)).is_some());
    }
}
