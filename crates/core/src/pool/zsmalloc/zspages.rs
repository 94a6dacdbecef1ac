//! Zspages: where the next object of a class goes, and the lists by fullness.

use super::*;

impl Zsmalloc {
    /// A zspage of the class with a ready slot: the fullest of those, else the fullest of all with
    /// a frame more, else a new one.
    pub(super) fn zspage_with_room(&mut self, class: usize) -> Result<u32, PoolError> {
        let heads = &self.classes[class].heads;
        if self.classes[class].ready > 0 {
            let z = heads.iter().rfind(|&&z| z != 0 && self.zspage(z).ready > 0);
            return Ok(*z.expect("pool: ready slots stand in no list"));
        }
        let fullest = heads.iter().rfind(|&&z| z != 0).copied();
        let frame = self.frames.alloc()?;
        let z = match fullest {
            Some(z) => z,
            None => self.new_zspage(class).inspect_err(|_| self.frames.free(frame))?,
        };
        self.attach(z, frame);
        Ok(z)
    }

    /// Gives a zspage, whose first free slot is not ready, the frame that this slot lacks. The
    /// caller occupies a slot next, by which the zspage comes into the right list.
    pub(super) fn attach(&mut self, z: u32, frame: u32) {
        let zspage = self.zspage_mut(z);
        let slot = zspage.used.trailing_ones() as usize;
        // One frame suffices: the slot either begins a frame, or begins in one that the slot before
        // it uses.
        let lacking = zspage.class().frames_of(slot) & !zspage.attached;
        assert!(lacking.count_ones() == 1, "pool: slot {slot} of zspage {z} lacks {lacking:#b}");
        zspage.frames[lacking.trailing_zeros() as usize] = frame;
        zspage.attached |= lacking;
        let class = zspage.class as usize;
        self.classes[class].frames += 1;
    }

    /// A zspage without frames, counted as `FULL` until `note_fullness` sees it.
    fn new_zspage(&mut self, class: usize) -> Result<u32, PoolError> {
        let slots = CLASSES[class].slots as u32;
        let z = match self.free_zspages {
            0 if self.zspages_end >> ZSPAGE_BITS != 0 => return Err(PoolError::NoMemory),
            0 => self.zspages_end,
            z => z,
        };
        self.frames.growth.ensure(&self.zspages, z as usize)?;
        let owners = match self.free_owners[slots as usize] {
            0 => {
                let end = self.owners_end.checked_add(slots).ok_or(PoolError::NoMemory)?;
                self.frames.growth.ensure(&self.owners, self.owners_end as usize)?;
                self.frames.growth.ensure(&self.owners, end as usize - 1)?;
                self.owners_end
            }
            run => run,
        };
        // Nothing fails from here.
        if owners == self.owners_end {
            self.owners_end += slots;
        } else {
            self.free_owners[slots as usize] = *self.owner_mut(owners);
        }
        if z == self.zspages_end {
            self.zspages_end += 1;
        } else {
            self.free_zspages = self.zspage(z).next;
        }
        *self.zspage_mut(z) = Zspage {
            frames: [0; MAX_CHAIN],
            used: 0,
            owners,
            next: 0,
            prev: 0,
            class: class as u8,
            attached: 0,
            fullness: FULL,
            ready: 0,
        };
        self.classes[class].zspages[FULL as usize] += 1;
        Ok(z)
    }

    /// Takes an empty zspage, whose frames are gone, out of the class.
    pub(super) fn retire(&mut self, z: u32) {
        self.unlist(z);
        let free_zspages = self.free_zspages;
        let zspage = self.zspage_mut(z);
        assert!(zspage.attached == 0, "pool: an empty zspage has frames");
        zspage.next = free_zspages;
        let (owners, slots) = (zspage.owners, zspage.class().slots);
        self.free_zspages = z;
        *self.owner_mut(owners) = self.free_owners[slots];
        self.free_owners[slots] = owners;
    }

    /// Puts a zspage whose slots or frames changed where it belongs.
    pub(super) fn note_fullness(&mut self, z: u32) {
        let zspage = self.zspage_mut(z);
        let ready = zspage.ready_slots().count_ones();
        // Narrow on purpose: a 64-bit division takes longer than all the rest.
        let fullness =
            (zspage.used.count_ones() * TENTHS as u32 / zspage.class().slots as u32) as u8;
        let before = core::mem::replace(&mut zspage.ready, ready as u8) as usize;
        let moves = fullness != zspage.fullness || (ready == 0) != (before == 0);
        let class = zspage.class as usize;
        self.classes[class].ready = self.classes[class].ready + ready as usize - before;
        if moves {
            self.unlink(z);
            self.link(z, fullness);
        }
    }

    /// Takes a zspage out of its list and of all counts of its class.
    fn unlist(&mut self, z: u32) {
        self.unlink(z);
        let zspage = self.zspage_mut(z);
        let class = zspage.class as usize;
        let ready = core::mem::replace(&mut zspage.ready, 0);
        self.classes[class].ready -= ready as usize;
    }

    /// Enters a zspage into the list of its fullness: in front if it has ready slots, else at the
    /// end.
    fn link(&mut self, z: u32, fullness: u8) {
        let &Zspage { class, ready, .. } = self.zspage(z);
        let state = &mut self.classes[class as usize];
        state.zspages[fullness as usize] += 1;
        self.zspage_mut(z).fullness = fullness;
        if fullness == FULL {
            return;
        }
        let state = &mut self.classes[class as usize];
        let head = state.heads[fullness as usize];
        if head == 0 || ready > 0 {
            state.heads[fullness as usize] = z;
        }
        let (prev, next) = if head == 0 { (z, z) } else { (self.zspage(head).prev, head) };
        self.zspage_mut(prev).next = z;
        self.zspage_mut(next).prev = z;
        let zspage = self.zspage_mut(z);
        (zspage.prev, zspage.next) = (prev, next);
    }

    fn unlink(&mut self, z: u32) {
        let &Zspage { class, fullness, prev, next, .. } = self.zspage(z);
        let state = &mut self.classes[class as usize];
        state.zspages[fullness as usize] -= 1;
        if fullness == FULL {
            return;
        }
        let head = &mut state.heads[fullness as usize];
        if *head == z {
            *head = if next == z { 0 } else { next };
        }
        self.zspage_mut(prev).next = next;
        self.zspage_mut(next).prev = prev;
    }
}
