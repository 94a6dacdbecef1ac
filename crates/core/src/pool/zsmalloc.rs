//! zsmalloc: size classes, zspages of up to 8 frames, objects that can move.
//!
//! ```text
//!  Handle --index--> Entry --location--> Zspage ---frames--> [f3] [f9] [  ] [f4]
//!                      ^                    |                  objects lie in slots, which
//!                      |                    v                  may span two frames; a frame no
//!                      +----- owners: for each slot, its entry  slot uses is not attached
//! ```
//!
//! Vocabulary:
//! - *slot*: room for one object in a zspage. *Backed*: all frames it lies in are attached.
//!   *Ready*: backed and free, so that storing there costs no frame.
//! - *zspage*: a chain of 1 to 8 frames cut into slots of one size class. Unlike the kernel's, it
//!   takes a frame when the first slot in it is used and lets it go with the last, so that a class
//!   wastes less than a frame while it fills, and frames of a zspage that empties come free one by
//!   one.
//! - *entry*: the record that a handle indexes; it says where the object is now. Compaction changes
//!   it and nothing else.
//!
//! Zspages of a class stand in ten lists by fullness, the share of their slots that is used; full
//! ones stand in none. In each list those with ready slots come first. A store takes the fullest
//! that has a ready slot, else the fullest, which then gets a frame, else a new one. Compaction
//! drains the sparsest into the fullest until a class has no more frames than its objects need.
//!
//! All metadata lies in tables outside the frames, so frames hold object bytes only, about 11 bytes
//! for each object and 64 for each zspage.

mod check;
mod compact;
mod zspages;

use core::ops::Range;

use super::frames::Frames;
use super::pin::{Extents, Pinned, Pins};
use super::size_class::{CLASS_COUNT, CLASSES, MAX_CHAIN, MAX_SLOTS, SizeClass, class_of};
use super::{
    ClassStats, FULLNESS_COLUMNS, Handle, INDEX_BITS, MOST_BYTES, PoolError, PoolKind, PoolTag,
    stale,
};
use crate::sys::PAGE_SIZE;
use crate::sys::mem::Table;
use crate::sys::pin::PinCount;
use crate::zeroable;

/// Lists of zspages, by tenths of fullness.
const TENTHS: usize = 10;
/// The fullness of a zspage without a free slot. Such zspages are counted, not listed.
const FULL: u8 = TENTHS as u8;
const _: () = assert!(FULLNESS_COLUMNS == TENTHS + 1);

const SLOT_BITS: u32 = MAX_SLOTS.ilog2();
/// Zspages of a whole pool, if each has all frames of the longest chain.
const ZSPAGE_BITS: u32 = 25;
const _: () = assert!(SLOT_BITS + ZSPAGE_BITS <= 32 && INDEX_BITS <= 32);
const _: () = assert!((MAX_CHAIN * PAGE_SIZE) << ZSPAGE_BITS >= MOST_BYTES);

zeroable! {
    /// The place of a handle's object. Six bytes, because there is one for each object.
    struct Entry {
        /// `zspage << SLOT_BITS | slot`, or the next free entry; in halves to keep the alignment
        /// at 2.
        location: [u16; 2],
        /// Counts how often the entry was taken and given back: odd while it stands for an object.
        generation: u16,
    }
}

impl Entry {
    fn location(&self) -> u32 {
        (self.location[1] as u32) << 16 | self.location[0] as u32
    }

    fn is_free(&self) -> bool {
        self.generation.is_multiple_of(2)
    }

    fn set_location(&mut self, location: u32) {
        self.location = [location as u16, (location >> 16) as u16];
    }
}

zeroable! {
    /// One zspage; a cache line. All zero, or a link of the free list, if it is not in use.
    struct Zspage {
        /// The frame at each attached position.
        frames: [u32; MAX_CHAIN],
        /// The used slots.
        used: u128,
        /// The first of its `slots` places in `owners`.
        owners: u32,
        /// Links of the circular list of zspages of its fullness; `next` also links free
        /// descriptors (0: none).
        next: u32,
        prev: u32,
        class: u8,
        /// Positions that have a frame.
        attached: u8,
        fullness: u8,
        /// Number of ready slots.
        ready: u8,
    }
}
const _: () = assert!(size_of::<Zspage>() == 64 && size_of::<Entry>() == 6);

impl Zspage {
    fn class(&self) -> &'static SizeClass {
        &CLASSES[self.class as usize]
    }

    fn ready_slots(&self) -> u128 {
        self.class().backed(self.attached) & !self.used
    }
}

/// A pool's record of one class.
#[derive(Clone, Copy)]
struct Class {
    /// Heads of the lists; 0: empty.
    heads: [u32; TENTHS],
    /// Zspages of each fullness, `FULL` included.
    zspages: [u32; TENTHS + 1],
    /// Ready slots, used slots and attached frames of all zspages.
    ready: usize,
    used: usize,
    frames: usize,
}

impl Class {
    const EMPTY: Class =
        Class { heads: [0; TENTHS], zspages: [0; TENTHS + 1], ready: 0, used: 0, frames: 0 };

    /// The fewest frames in which the objects fit: full zspages, and one filled from its begin.
    fn least_frames(&self, class: &SizeClass) -> usize {
        let rest = self.used % class.slots * class.size;
        self.used / class.slots * class.chain + rest.div_ceil(PAGE_SIZE)
    }
}

/// A zsmalloc pool. See the head of this file.
pub struct Zsmalloc {
    tag: PoolTag,
    pub(super) frames: Frames,
    classes: [Class; CLASS_COUNT],
    zspages: Table<Zspage>,
    entries: Table<Entry>,
    pins: Pins,
    /// For each slot of each zspage, its entry. Runs of a zspage's length, threaded by length when
    /// free.
    owners: Table<u32>,
    /// Descriptors, entries and owner places that were ever used (number 0 of each never is), and
    /// the free ones among them.
    zspages_end: u32,
    entries_end: u32,
    owners_end: u32,
    free_zspages: u32,
    free_entries: u32,
    free_owners: [u32; MAX_SLOTS + 1],
    objects: usize,
    object_bytes: usize,
    /// Objects that were freed and are pinned still, which are not among the others.
    freed_objects: usize,
    freed_bytes: usize,
    /// The class at which compaction goes on.
    compact_class: usize,
}

impl Default for Zsmalloc {
    fn default() -> Self {
        Self::new()
    }
}

impl Zsmalloc {
    pub fn new() -> Self {
        Zsmalloc {
            tag: PoolTag::next(PoolKind::Zsmalloc),
            frames: Frames::new(),
            classes: [Class::EMPTY; CLASS_COUNT],
            zspages: Table::new(),
            entries: Table::new(),
            pins: Pins::new(),
            owners: Table::new(),
            zspages_end: 1,
            entries_end: 1,
            owners_end: 1,
            free_zspages: 0,
            free_entries: 0,
            free_owners: [0; MAX_SLOTS + 1],
            objects: 0,
            object_bytes: 0,
            freed_objects: 0,
            freed_bytes: 0,
            compact_class: 0,
        }
    }

    // ---- objects ----

    pub(super) fn store(&mut self, bytes: &[u8]) -> Result<Handle, PoolError> {
        let (handle, z, slot) = self.allocate(bytes.len())?;
        self.write(z, slot, bytes);
        Ok(handle)
    }

    /// As `store`, of an object whose bytes come later.
    pub(super) fn place<'a>(&mut self, len: usize) -> Result<(Handle, Pinned<'a>), PoolError> {
        let (handle, z, slot) = self.allocate(len)?;
        let pins = self.pins.of(handle.index());
        pins.pin_unfinished();
        Ok((handle, Pinned::new(self.extents(z, slot, len), pins, handle)))
    }

    /// An object without bytes: its handle, and its slot.
    fn allocate(&mut self, len: usize) -> Result<(Handle, u32, usize), PoolError> {
        let class = class_of(len);
        // All steps that can fail come first, and leave nothing behind that counts.
        let entry = self.next_entry()?;
        let z = self.zspage_with_room(class)?;
        self.take_entry(entry);

        let slot = self.zspage(z).ready_slots().trailing_zeros() as usize;
        self.occupy(z, slot, entry);
        self.objects += 1;
        self.object_bytes += len;
        Ok((Handle::new(self.tag, len, self.entry(entry).generation, entry), z, slot))
    }

    pub(super) fn read<'a>(&'a self, h: Handle, scratch: &'a mut [u8]) -> &'a [u8] {
        let Some((z, slot)) = self.find(h) else { stale(h) };
        assert!(!self.is_unfilled(h), "pool: {h:?} has no bytes yet");
        let [(first, head), (second, tail)] = self.parts(z, slot, h.len());
        let head = self.frames.get(first, head);
        if tail.is_empty() {
            return head;
        }
        let (to_head, to_tail) = scratch[..h.len()].split_at_mut(head.len());
        to_head.copy_from_slice(head);
        to_tail.copy_from_slice(self.frames.get(second, tail));
        &scratch[..h.len()]
    }

    pub(super) fn pin<'a>(&self, h: Handle) -> Pinned<'a> {
        let Some((z, slot)) = self.find(h) else { stale(h) };
        let pins = self.pins.of(h.index());
        pins.pin();
        Pinned::new(self.extents(z, slot, h.len()), pins, h)
    }

    pub(super) fn is_unfilled(&self, h: Handle) -> bool {
        self.pins.of(h.index()).is_unfinished()
    }

    pub(super) fn try_free(&mut self, h: Handle) -> bool {
        if self.find(h).is_none() {
            return false;
        }
        let entry = self.entry_mut(h.index());
        entry.generation = entry.generation.wrapping_add(1);
        self.objects -= 1;
        self.object_bytes -= h.len();
        if self.pins.of(h.index()).end() {
            self.vacate_freed(h);
        } else {
            self.freed_objects += 1;
            self.freed_bytes += h.len();
        }
        true
    }

    /// Ends an object that was freed while it was pinned.
    pub(super) fn bury(&mut self, h: Handle) {
        let pins = self.pins.of(h.index());
        assert!(pins.is_ended() && self.entry(h.index()).is_free(), "pool: {h:?} is alive");
        pins.clear();
        self.freed_objects -= 1;
        self.freed_bytes -= h.len();
        self.vacate_freed(h);
    }

    /// Frees the slot and the entry of an object whose handle is stale already.
    fn vacate_freed(&mut self, h: Handle) {
        let location = self.entry(h.index()).location();
        self.vacate(location >> SLOT_BITS, location as usize % MAX_SLOTS);
        let next = self.free_entries;
        self.entry_mut(h.index()).set_location(next);
        self.free_entries = h.index();
    }

    pub(super) fn holds(&self, h: Handle) -> bool {
        self.find(h).is_some()
    }

    /// The object's zspage and slot, if the handle is live.
    #[inline]
    fn find(&self, h: Handle) -> Option<(u32, usize)> {
        if h.tag() != self.tag || h.index() >= self.entries_end {
            return None;
        }
        let entry = self.entries.get(h.index() as usize)?;
        if entry.generation != h.generation() || entry.is_free() {
            return None;
        }
        let location = entry.location();
        let (z, slot) = (location >> SLOT_BITS, location as usize % MAX_SLOTS);
        assert!(
            self.zspage(z).class as usize == class_of(h.len()),
            "pool: {h:?} has a wrong length"
        );
        Some((z, slot))
    }

    // ---- slots ----

    /// Copies `bytes` to a slot, all of whose frames are attached.
    fn write(&mut self, z: u32, slot: usize, bytes: &[u8]) {
        let [(first, head), (second, tail)] = self.parts(z, slot, bytes.len());
        let (of_head, of_tail) = bytes.split_at(head.len());
        self.frames.get_mut(first, head).copy_from_slice(of_head);
        if !tail.is_empty() {
            self.frames.get_mut(second, tail).copy_from_slice(of_tail);
        }
    }

    /// The parts of an object of `len` bytes, each with its frame; the second may be empty.
    fn parts(&self, z: u32, slot: usize, len: usize) -> [(u32, Range<usize>); 2] {
        let zspage = self.zspage(z);
        let (position, at) = zspage.class().place(slot);
        let end = (at + len).min(PAGE_SIZE);
        let tail = at + len - end;
        let second = if tail == 0 { 0 } else { zspage.frames[position + 1] };
        [(zspage.frames[position], at..end), (second, 0..tail)]
    }

    /// Where an object of `len` bytes lies.
    fn extents(&self, z: u32, slot: usize, len: usize) -> Extents {
        self.parts(z, slot, len).map(|(frame, part)| match part.len() {
            0 => (core::ptr::dangling_mut(), 0),
            len => (self.frames.address(frame).wrapping_add(part.start), len),
        })
    }

    /// Marks a ready slot as the place of `entry`'s object.
    fn occupy(&mut self, z: u32, slot: usize, entry: u32) {
        let zspage = self.zspage_mut(z);
        debug_assert!(zspage.ready_slots() >> slot & 1 == 1);
        zspage.used |= 1 << slot;
        let (owners, class) = (zspage.owners, zspage.class as usize);
        *self.owner_mut(owners + slot as u32) = entry;
        self.entry_mut(entry).set_location(z << SLOT_BITS | slot as u32);
        self.classes[class].used += 1;
        self.note_fullness(z);
    }

    /// Frees a used slot, and with it each of its frames that has no other.
    fn vacate(&mut self, z: u32, slot: usize) {
        let zspage = self.zspage_mut(z);
        assert!(zspage.used >> slot & 1 == 1, "pool: slot {slot} of zspage {z} is free already");
        zspage.used &= !(1 << slot);
        let class = zspage.class as usize;
        let mut positions = CLASSES[class].frames_of(slot);
        while positions != 0 {
            let position = positions.trailing_zeros() as usize;
            positions &= positions - 1;
            let zspage = self.zspage_mut(z);
            if zspage.used & CLASSES[class].overlap[position] == 0 {
                zspage.attached &= !(1 << position);
                let frame = zspage.frames[position];
                self.frames.free(frame);
                self.classes[class].frames -= 1;
            }
        }
        self.classes[class].used -= 1;
        if self.zspage(z).used == 0 {
            self.retire(z);
        } else {
            self.note_fullness(z);
        }
    }

    // ---- entries ----

    /// The entry that the next object gets, without taking it.
    fn next_entry(&mut self) -> Result<u32, PoolError> {
        if self.free_entries != 0 {
            return Ok(self.free_entries);
        }
        if self.entries_end >> INDEX_BITS != 0 {
            return Err(PoolError::NoMemory);
        }
        self.frames.growth.ensure(&self.entries, self.entries_end as usize)?;
        self.pins.ensure(self.entries_end, &mut self.frames.growth)?;
        Ok(self.entries_end)
    }

    fn take_entry(&mut self, entry: u32) {
        if entry == self.entries_end {
            self.entries_end += 1;
        } else {
            self.free_entries = self.entry(entry).location();
        }
        let entry = self.entry_mut(entry);
        entry.generation = entry.generation.wrapping_add(1);
    }

    // ---- tables ----

    #[inline]
    fn zspage(&self, z: u32) -> &Zspage {
        self.zspages.get(z as usize).expect("pool: no such zspage")
    }

    #[inline]
    fn zspage_mut(&mut self, z: u32) -> &mut Zspage {
        self.zspages.get_mut(z as usize).expect("pool: no such zspage")
    }

    #[inline]
    fn entry(&self, index: u32) -> &Entry {
        self.entries.get(index as usize).expect("pool: no such entry")
    }

    #[inline]
    fn entry_mut(&mut self, index: u32) -> &mut Entry {
        self.entries.get_mut(index as usize).expect("pool: no such entry")
    }

    #[inline]
    fn owner_mut(&mut self, place: u32) -> &mut u32 {
        self.owners.get_mut(place as usize).expect("pool: no such owner")
    }

    // ---- figures ----

    pub(super) fn objects(&self) -> usize {
        self.objects
    }

    pub(super) fn object_bytes(&self) -> usize {
        self.object_bytes
    }

    pub(super) fn metadata_bytes(&self) -> usize {
        size_of::<Self>()
            + self.zspages_end as usize * size_of::<Zspage>()
            + self.entries_end as usize * (size_of::<Entry>() + size_of::<PinCount>())
            + self.owners_end as usize * size_of::<u32>()
    }

    pub(super) fn for_each_class(&self, mut f: impl FnMut(ClassStats)) {
        // Smallest size first, as the kernel prints them.
        for (number, (state, class)) in self.classes.iter().zip(&CLASSES).rev().enumerate() {
            if state.used == 0 {
                continue;
            }
            f(ClassStats {
                class: number,
                size_bytes: class.size,
                fullness: state.zspages.map(|count| count as usize),
                obj_allocated: state.used + state.ready,
                obj_used: state.used,
                pages_used: state.frames,
                pages_per_zspage: class.chain,
                freeable: state.frames - state.least_frames(class),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_zspage_and_entry_are_as_any_other() {
        let mut pool = Zsmalloc::new();
        // As if all others were in use.
        pool.zspages_end = (1 << ZSPAGE_BITS) - 1;
        pool.entries_end = (1 << INDEX_BITS) - 2;
        let first = pool.store(&[1; 1000]).unwrap();
        let last = pool.store(&[2; 1000]).unwrap();
        assert_eq!(last.index(), (1 << INDEX_BITS) - 1);
        assert_eq!(pool.store(&[3; 1000]), Err(PoolError::NoMemory), "no entry is left");
        let mut scratch = [0; PAGE_SIZE];
        assert_eq!(pool.read(first, &mut scratch), [1u8; 1000]);
        assert_eq!(pool.read(last, &mut scratch), [2u8; 1000]);
        assert!(pool.try_free(first) && !pool.holds(first));
        assert_eq!(pool.store(&[3; 2000]), Err(PoolError::NoMemory), "no zspage is left");
        let again = pool.store(&[3; 1000]).unwrap();
        assert!(!pool.holds(first) && again.index() == first.index());
        assert_eq!(pool.read(again, &mut scratch), [3u8; 1000]);
    }
}
