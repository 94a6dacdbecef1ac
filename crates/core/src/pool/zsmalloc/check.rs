//! `check()` of zsmalloc: every structure walked, every equation between them asserted. No
//! allocation.
//!
//! - used slots <-> live entries, one to one: the owner of each used slot is an entry whose
//!   location is that slot, and there are as many of the one as of the other.
//! - attached positions <-> used frames, likewise (see `Frames::check`), and a position is attached
//!   exactly if a used slot lies in its frame.
//! - zspages of a class: each is in the one list where its fullness puts it, those with ready slots
//!   first.
//! - live + free = ever used, for zspages, entries and owner places.

use super::*;

impl Zsmalloc {
    pub(in crate::pool) fn check(&self) {
        self.frames.check();
        let mut totals = [Totals::default(); CLASS_COUNT];
        let (mut live_zspages, mut live_owners) = (0, 0);
        for z in 1..self.zspages_end {
            let zspage = self.zspage(z);
            if zspage.used != 0 {
                live_zspages += 1;
                live_owners += zspage.class().slots;
                self.check_zspage(z, &mut totals[zspage.class as usize]);
            }
        }
        let mut objects = 0;
        let mut frames = 0;
        let mut room = 0;
        let mut least = 0;
        for (class, totals) in totals.iter().enumerate() {
            let state = &self.classes[class];
            assert_eq!(totals.zspages, state.zspages, "pool: zspages by fullness of class {class}");
            assert_eq!(
                (totals.ready, totals.used, totals.frames),
                (state.ready, state.used, state.frames),
                "pool: (ready, used, frames) of class {class}"
            );
            for fullness in 0..FULL {
                self.check_list(class, fullness);
            }
            objects += totals.used;
            frames += totals.frames;
            room += totals.used * CLASSES[class].size;
            least += totals.used * CLASSES.get(class + 1).map_or(1, |c| c.size + 1);
        }
        assert_eq!(objects, self.objects + self.freed_objects, "pool: objects");
        assert_eq!(frames, self.frames.used(), "pool: attached = used frames");
        let object_bytes = self.object_bytes + self.freed_bytes;
        assert!((least..=room).contains(&object_bytes), "pool: object bytes");
        self.check_free_lists(live_zspages, live_owners);
    }

    fn check_zspage(&self, z: u32, totals: &mut Totals) {
        let zspage = self.zspage(z);
        let class = zspage.class();
        assert_eq!(zspage.used & !class.all_slots(), 0, "pool: zspage {z} uses slots it has not");
        for position in 0..MAX_CHAIN {
            let attached = zspage.attached >> position & 1 == 1;
            let used = zspage.used & class.overlap[position] != 0;
            assert_eq!(
                attached, used,
                "pool: (attached, used) at position {position} of zspage {z}"
            );
            if attached {
                self.frames.check_used(zspage.frames[position]);
            }
        }
        for slot in (0..class.slots).filter(|slot| zspage.used >> slot & 1 == 1) {
            let owner = self.owners.get(zspage.owners as usize + slot).copied().expect("mapped");
            assert!(
                owner != 0 && owner < self.entries_end,
                "pool: owner of slot {slot} of zspage {z}"
            );
            let entry = self.entry(owner);
            let is_used = !entry.is_free() || self.pins.of(owner).is_ended();
            assert!(is_used, "pool: entry {owner} has a slot and is free");
            let location = entry.location();
            assert_eq!(location, z << SLOT_BITS | slot as u32, "pool: location of entry {owner}");
        }
        let (ready, used) =
            (zspage.ready_slots().count_ones() as usize, zspage.used.count_ones() as usize);
        assert_eq!(zspage.ready as usize, ready, "pool: ready slots of zspage {z}");
        let fullness = used * TENTHS / class.slots;
        assert_eq!(zspage.fullness as usize, fullness, "pool: fullness of zspage {z}");
        totals.zspages[fullness] += 1;
        totals.ready += ready;
        totals.used += used;
        totals.frames += zspage.attached.count_ones() as usize;
    }

    fn check_list(&self, class: usize, fullness: u8) {
        let head = self.classes[class].heads[fullness as usize];
        let mut count = 0;
        let mut z = head;
        let mut last_ready = u8::MAX;
        while z != 0 {
            let zspage = self.zspage(z);
            assert!(zspage.used != 0, "pool: free zspage {z} is in a list");
            assert_eq!(
                (zspage.class as usize, zspage.fullness),
                (class, fullness),
                "pool: list of zspage {z}"
            );
            assert_eq!(self.zspage(zspage.next).prev, z, "pool: links of zspage {z}");
            assert!(
                last_ready > 0 || zspage.ready == 0,
                "pool: zspage {z} is behind one without ready slots"
            );
            count += 1;
            assert!(
                count <= self.classes[class].zspages[fullness as usize],
                "pool: list longer than counted"
            );
            last_ready = zspage.ready;
            z = if zspage.next == head { 0 } else { zspage.next };
        }
        assert_eq!(
            count, self.classes[class].zspages[fullness as usize],
            "pool: list shorter than counted"
        );
    }

    fn check_free_lists(&self, live_zspages: usize, live_owners: usize) {
        let mut free = 0;
        let mut z = self.free_zspages;
        while z != 0 {
            assert_eq!(self.zspage(z).used, 0, "pool: live zspage {z} is in the free list");
            free += 1;
            assert!(free <= self.zspages_end, "pool: the free list of zspages is a circle");
            z = self.zspage(z).next;
        }
        assert_eq!(live_zspages + free as usize, self.zspages_end as usize - 1, "pool: zspages");

        let mut free = 0;
        let mut index = self.free_entries;
        while index != 0 {
            let entry = self.entry(index);
            assert!(entry.is_free(), "pool: live entry {index} is in the free list");
            assert!(!self.pins.of(index).is_pinned(), "pool: free entry {index} is pinned");
            free += 1;
            assert!(free <= self.entries_end, "pool: the free list of entries is a circle");
            index = entry.location();
        }
        let used = self.objects + self.freed_objects;
        assert_eq!(used + free as usize, self.entries_end as usize - 1, "pool: entries");

        let mut free = 0;
        for (slots, &head) in self.free_owners.iter().enumerate() {
            let mut run = head;
            while run != 0 {
                free += slots;
                assert!(
                    free < self.owners_end as usize,
                    "pool: a free list of owner places is a circle"
                );
                run = self.owners.get(run as usize).copied().expect("mapped");
            }
        }
        assert_eq!(live_owners + free, self.owners_end as usize - 1, "pool: owner places");
    }
}

/// Sums over the zspages of a class.
#[derive(Clone, Copy, Default)]
struct Totals {
    zspages: [u32; TENTHS + 1],
    ready: usize,
    used: usize,
    frames: usize,
}
