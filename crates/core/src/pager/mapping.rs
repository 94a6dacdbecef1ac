//! The program's changes of its mappings, followed in the ranges and the page words.
//!
//! The hooks make the kernel's call and these notes under one hold of the lock, because another
//! thread may get the same address the moment the kernel has let it go. Memory stays where the
//! kernel put it.
//!
//! With protection faults the kernel's protection differs from the one that the program asked for
//! wherever pages are missing: the notes here hide new memory and show only pages that are filled.

use super::{Active, Locked, Pager};
use crate::control::trace::Kind;
use crate::region::table::LEAF_BYTES;
use crate::region::{Mapped, PageState, Range, RangeFlags, page_ceil};
use crate::sys::{Errno, PAGE_SIZE, Result};

/// The most ranges that a move adds to the list: the new one, and the pieces cut off at its ends
/// and at the ends of the old one.
const MOVED_RANGES_MOST: usize = 8;
/// Ranges that one part of what is moved adds at most: the part, and what it cuts off.
const RANGES_OF_PART: usize = 2;

impl Pager {
    /// Notes that private anonymous memory was mapped at `[start, end)`, untouched.
    pub fn note_mapped(
        &self,
        s: &mut Locked<'_>,
        start: usize,
        end: usize,
        prot: u32,
        flags: RangeFlags,
    ) {
        self.note_unmapped(s, start, end);
        self.table.for_each_stretch(start, end, |at, m| {
            let whole = start <= at && at + LEAF_BYTES <= end;
            m.set_mapped(if whole { Mapped::Empty } else { Mapped::Small });
            if whole {
                m.set_usage(0);
            }
        });
        let mut range = Range { start, end, prot, flags };
        if let Some(a) = self.active()
            && a.mechanism.attach(start, end - start).is_err()
        {
            // The range stays resident: it is not evicted, and its pages never fault.
            range.flags = range.flags.with(RangeFlags::UNREGISTERED, true);
        }
        if let Some(a) = self.active() {
            self.want_huge(a, &range);
        }
        // Without memory for the list the range is not managed; attached, its pages would go on
        // faulting, and nobody would serve them.
        if self.ranges.add(range).is_err()
            && let Some(a) = self.active()
        {
            let _ = a.mechanism.release(start, end - start, prot);
        }
    }

    /// Notes that `[start, end)` is not the program's anonymous memory any more.
    pub fn note_unmapped(&self, s: &mut Locked<'_>, start: usize, end: usize) {
        if !self.ranges.overlaps(start, end) {
            return;
        }
        self.discard_words(s, start, end);
        let _ = self.ranges.remove(start, end);
        let _ = self.holds.forget(start, end);
    }

    /// Notes that the contents of `[start, end)` are worthless: the pages read as zero from now on.
    /// The caller's MADV_DONTNEED drops the kernel's frames.
    pub fn note_discarded(&self, s: &mut Locked<'_>, start: usize, end: usize) {
        let Some(a) = self.active() else { return };
        if !a.mechanism.hides() {
            self.discard_words(s, start, end);
            return;
        }
        // Whole units are hidden again, so that their pages are counted when touched; parts of
        // units stay shown.
        let unit = self.unit_pages() * PAGE_SIZE;
        let (first, last) = (start.next_multiple_of(unit), end / unit * unit);
        self.trace_pages(Kind::Discarded, start, end);
        self.table.for_each_occupied(start, end, |page, m, e| {
            let hides = || {
                let whole =
                    first <= page && page < last && !self.holds.is_held(page, page + PAGE_SIZE);
                whole && a.mechanism.attach(page, PAGE_SIZE).is_ok()
            };
            if e.state() != PageState::Resident || hides() {
                self.discard_word(s, m, e);
            }
        });
    }

    /// Notes a new protection of the managed parts of `[start, end)`. With protection faults
    /// [`Self::protect_shown`] tells the kernel, of shown pages only.
    pub fn note_protected(&self, start: usize, end: usize, prot: u32) {
        let _ = self.ranges.update(start, end, |r| Range { prot, ..r });
    }

    /// Notes that the kernel has failed to change the protection of all of `[start, end)`, and does
    /// not tell which part it has changed. No page there is evicted from now on. The pager serves
    /// what either protection allows, and the kernel forbids the rest. Paging that begins later
    /// leaves such memory of a dormant process alone: only the kernel knows its protection.
    pub fn note_half_protected(&self, start: usize, end: usize, prot: u32) {
        let is_dormant = self.active().is_none();
        let _ = self.ranges.update(start, end, |r| {
            let flags = r.flags.with(RangeFlags::STAYS, true);
            let is_apart = is_dormant || flags.has(RangeFlags::UNREGISTERED);
            let flags = flags.with(RangeFlags::UNREGISTERED, is_apart);
            Range { prot: r.prot | prot, flags, ..r }
        });
    }

    /// With protection faults: gives the shown pages of `[start, end)`, and the memory between
    /// ranges, the protection `prot`. An error comes with the address before which all is done.
    pub fn protect_shown(
        &self,
        start: usize,
        end: usize,
        prot: u32,
    ) -> core::result::Result<(), (usize, Errno)> {
        let Some(a) = self.active() else { return Ok(()) };
        let mut at = start;
        while at < end {
            let range = self.ranges.next_from(at).filter(|r| r.start < end);
            let (gap_end, managed_end) =
                range.map_or((end, end), |r| (r.start.max(at), r.end.min(end)));
            if gap_end > at {
                a.mechanism.expose(at, gap_end - at, prot).map_err(|e| (at, e))?;
            }
            let unregistered = range.is_some_and(|r| r.flags.has(RangeFlags::UNREGISTERED));
            if unregistered && managed_end > gap_end {
                let len = managed_end - gap_end;
                a.mechanism.expose(gap_end, len, prot).map_err(|e| (gap_end, e))?;
            } else {
                self.show_and_own(a, gap_end, managed_end, prot)?;
            }
            at = managed_end;
        }
        Ok(())
    }

    /// With protection faults: shows the resident pages of `[start, end)` with the protection
    /// `prot`, and then takes their marks off: no word may say writable of a page that the kernel
    /// protects, as words are believed without the lock.
    /// An error comes with the address before which all is done.
    fn show_and_own(
        &self,
        active: &Active,
        start: usize,
        end: usize,
        prot: u32,
    ) -> core::result::Result<(), (usize, Errno)> {
        let mut at = start;
        self.for_each_resident_run(start, end, |from, to| {
            at = from;
            active.mechanism.expose(from, to - from, prot)?;
            self.own_all(from, to);
            Ok(())
        })
        .map_err(|e| (at, e))
    }

    /// Before the kernel moves `[start, end)` (mremap), with the lock held until it has. A failure
    /// leaves the range as it was.
    pub fn prepare_move(&self, start: usize, end: usize) -> Result<()> {
        let Some(a) = self.active() else { return Ok(()) };
        // The note of the move cannot fail any more: pages that are out would read as zeros.
        let mut parts = 0;
        self.ranges.for_each(start, end, |_| parts += 1);
        self.ranges.reserve(MOVED_RANGES_MOST + RANGES_OF_PART * parts)?;
        self.wait_for_copies();
        let mut result = Ok(());
        let mut is_paged = false;
        self.ranges.for_each(start, end, |r| is_paged |= !r.flags.has(RangeFlags::UNREGISTERED));
        // With protection faults memory that is not paged must be hidden with the rest, so that all
        // of it is one mapping.
        let hides_all = is_paged && a.mechanism.hides();
        self.ranges.for_each(start, end, |r| {
            if (hides_all || !r.flags.has(RangeFlags::UNREGISTERED)) && result.is_ok() {
                result = a.mechanism.ready_to_move(r.start, r.len());
                if result.is_ok() {
                    self.note_lifted(a, &r);
                }
            }
        });
        if result.is_err() {
            self.after_move(start, end);
            // The call that failed may have lifted the protection of some pages.
            self.ranges.for_each(start, end, |r| {
                if !r.flags.has(RangeFlags::UNREGISTERED) && !a.mechanism.hides() {
                    a.mechanism.allow_write(r.start, r.len(), r.prot);
                    self.note_lifted(a, &r);
                }
            });
        }
        result
    }

    /// Notes that the mechanism has lifted its protection of all of `range`.
    fn note_lifted(&self, active: &Active, range: &Range) {
        self.note_unguarded(range.start, range.end);
        if !active.mechanism.hides() {
            self.own_all(range.start, range.end);
        }
    }

    /// Puts `[start, end)` under the mechanism again, after the kernel has moved a range there, or
    /// has failed to.
    pub fn after_move(&self, start: usize, end: usize) {
        let Some(a) = self.active() else { return };
        self.ranges.for_each(start, end, |r| {
            if r.flags.has(RangeFlags::UNREGISTERED) {
                let _ = a.mechanism.expose(r.start, r.len(), r.prot);
                return;
            }
            if !a.mechanism.hides() {
                // The range was registered before, so it can be again; missing pages would read as
                // zero otherwise.
                let again = a.mechanism.attach(r.start, r.len());
                assert!(again.is_ok(), "a moved range cannot be registered again: {again:?}");
                return;
            }
            let _ = self.show_and_own(a, r.start, r.end, r.prot);
        });
    }

    /// The kernel moved `[old, old + old_len)` to `[new, new + new_len)`, frames and all.
    /// `keep_old`: the old range stays mapped, empty (MREMAP_DONTUNMAP).
    pub fn note_moved(
        &self,
        s: &mut Locked<'_>,
        old: usize,
        old_len: usize,
        new: usize,
        new_len: usize,
        keep_old: bool,
    ) {
        if self.ranges.find(old).is_none() {
            return;
        }
        let common = old_len.min(new_len);
        // Memory that is added is like the last of the old, but for guard pages.
        let last = self.ranges.find(old + old_len - PAGE_SIZE);
        let (prot, flags) = last.map_or((0, RangeFlags::NONE), |r| (r.prot, r.flags));
        let flags = flags.with(RangeFlags::UNREGISTERED, false).with(RangeFlags::GUARD, false);
        if new == old {
            if new_len < old_len {
                self.note_unmapped(s, old + new_len, old + old_len);
            } else if new_len > old_len {
                self.note_mapped(s, old + old_len, old + new_len, prot, flags);
            }
            self.after_move(old, old + common);
            return;
        }
        // Moving loses the write protection.
        self.own_all(old, old + common);
        // The destination's old contents are gone with its mapping.
        self.note_mapped(s, new, new + new_len, prot, flags);
        self.copy_properties(old, new, common);
        self.move_words(s, old, new, common);
        self.watch_found(s, new, new + common);
        self.after_move(new, new + common);
        if keep_old {
            self.discard_words(s, old, old + old_len);
            if let Some(a) = self.active()
                && a.mechanism.attach(old, old_len).is_err()
            {
                // This memory stays resident, like new memory that cannot be attached.
                self.note_flag(old, old + old_len, RangeFlags::UNREGISTERED, true);
            }
        } else {
            self.note_unmapped(s, old, old + old_len);
        }
    }

    /// Gives `[new, new + len)` the properties of the ranges of `[old, old + len)`, part by part.
    fn copy_properties(&self, old: usize, new: usize, len: usize) {
        let (mut at, end) = (old, old + len);
        while at < end {
            let Some(part) = self.ranges.next_from(at).filter(|r| r.start < end) else { return };
            let part = part.clip(at, end);
            at = part.end;
            let (start, stop) = (part.start - old + new, part.end - old + new);
            let _ = self.ranges.update(start, stop, |r| {
                let is_apart = r.flags.has(RangeFlags::UNREGISTERED);
                let flags = part.flags.with(RangeFlags::UNREGISTERED, is_apart);
                Range { prot: part.prot, flags, ..r }
            });
        }
    }

    /// Sets or clears a flag on the managed parts of `[start, end)`.
    pub fn note_flag(&self, start: usize, end: usize, flag: RangeFlags, on: bool) {
        let _ = self
            .ranges
            .update(start, page_ceil(end), |r| Range { flags: r.flags.with(flag, on), ..r });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{CacheConfig, SwapCache};
    use crate::control::{HugePages, Mechanism as Kind, zeroed_tree as tree};
    use crate::pager::PROT_READ;
    use crate::pager::model::{READ_WRITE, Spec, Touch, World};
    use crate::region::ADDRESS_END;
    use crate::sys::HUGE_BYTES;
    use crate::sys::mechanism::{Access, Fake, Mechanism};
    use core::sync::atomic::AtomicU32;

    fn write(w: &World, page: usize, pages: usize) {
        w.write(page..page + pages, |_, b| b[9] = 1);
    }

    #[test]
    fn a_shared_page_that_the_kernel_goes_on_protecting_stays_marked() {
        let w = World::new(Spec { hides: true, ..Spec::roomy(8) });
        w.map(0, 8, READ_WRITE);
        write(&w, 0, 8);
        w.fork_in_vain();
        // The next call that changes a protection finds no mapping.
        w.fake().set_trouble(1);
        let s = w.pager.lock();
        let changed = w.pager.protect_shown(w.at(0), w.at(8), READ_WRITE);
        drop(s);
        w.fake().set_trouble(0);
        assert!(changed.is_err() && w.pager.is_shared(w.at(0)));
        w.check();
        write(&w, 0, 8);
        assert!(!w.pager.is_shared(w.at(0)));
        w.check();
    }

    #[test]
    fn half_a_change_of_protection_is_noted_as_far_as_it_came() {
        let w = World::new(Spec { hides: true, ..Spec::roomy(16) });
        w.map(0, 8, READ_WRITE);
        w.map(12, 4, READ_WRITE);
        write(&w, 0, 8);
        write(&w, 12, 4);
        let _s = w.pager.lock();
        // The kernel stops at the hole.
        let changed = w.pager.protect_shown(w.at(0), w.at(16), PROT_READ);
        assert_eq!(changed.map_err(|(stopped, _)| stopped), Err(w.at(8)));
    }

    #[test]
    fn where_half_a_change_was_made_either_protection_is_served_and_nothing_leaves() {
        let w = World::new(Spec::roomy(8));
        w.map(0, 8, 0);
        w.fake().set_prot(w.at(0), 4 * PAGE_SIZE, READ_WRITE);
        let s = w.pager.lock();
        w.pager.note_half_protected(w.at(0), w.at(8), READ_WRITE);
        drop(s);
        write(&w, 0, 4);
        assert_eq!(w.thread().access(w.at(4), false, |_| ()), Touch::Forbidden);
        let resident = || w.count(|state| state == PageState::Resident);
        let before = resident();
        // munlock, of memory that the program has not locked.
        w.lock_in_memory(&w.thread(), 0, 8, false);
        w.page_out();
        assert!(before >= 4 && resident() == before);
        w.check();
    }

    #[test]
    fn half_a_change_before_paging_begins_leaves_the_memory_to_the_kernel() {
        let pager = Pager::new();
        let mut s = pager.lock();
        let (start, end) = (World::BASE, World::BASE + 2 * PAGE_SIZE);
        pager.note_mapped(&mut s, start, end, PROT_READ, RangeFlags::NONE);
        pager.note_half_protected(start, end, READ_WRITE);
        let range = pager.ranges.find(start).expect("it is mapped");
        assert!(range.prot == READ_WRITE && range.flags.has(RangeFlags::UNREGISTERED));
    }

    #[test]
    fn what_is_moved_keeps_the_properties_of_each_of_its_parts() {
        for hides in [false, true] {
            let w = World::new(Spec { hides, ..Spec::roomy(32) });
            w.map(0, 12, READ_WRITE);
            let mut thread = w.write(1..8, |page, b| b[9] = page as u8);
            let flag =
                |page: usize, flag| w.pager.note_flag(w.at(page), w.at(page + 1), flag, true);
            flag(0, RangeFlags::GUARD);
            flag(3, RangeFlags::LOCKED);
            flag(5, RangeFlags::DONTFORK);
            w.protect(6, 1, PROT_READ);
            w.page_out();
            w.map(16, 12, READ_WRITE);
            w.remap(0, 16, 8, false);
            let range = |page: usize| w.pager.ranges.find(w.at(page)).expect("it is mapped");
            let of = |page: usize| (range(page).prot, range(page).flags);
            assert_eq!(of(16), (READ_WRITE, RangeFlags::GUARD));
            assert_eq!([17, 20, 23].map(of), [(READ_WRITE, RangeFlags::NONE); 3]);
            assert_eq!(of(19), (READ_WRITE, RangeFlags::LOCKED));
            assert_eq!(of(21), (READ_WRITE, RangeFlags::DONTFORK));
            assert_eq!(of(22), (PROT_READ, RangeFlags::NONE));
            for page in 1..8 {
                let right = |b: &mut [u8; PAGE_SIZE]| assert_eq!(b[9], page as u8);
                assert_eq!(thread.access(w.at(16 + page), false, right), Touch::Done);
            }
            w.check();
            // Memory that is added behind a guard page is none.
            flag(11, RangeFlags::GUARD);
            w.resize(8, 4, 8, READ_WRITE);
            assert_eq!([11, 12].map(|page| of(page).1), [RangeFlags::GUARD, RangeFlags::NONE]);
        }
    }

    /// A list that has no memory takes a range as little as one that is beyond its addresses.
    #[test]
    fn memory_that_the_list_cannot_take_is_the_kernels() {
        const SLOTS: usize = 64;
        let (base, start) = (ADDRESS_END - HUGE_BYTES, ADDRESS_END - PAGE_SIZE);
        let fake = Fake::new(base, HUGE_BYTES / PAGE_SIZE + 1, SLOTS, 0);
        let active: &'static mut Active = Box::leak(Box::new(Active {
            mechanism: Mechanism::Fake(fake),
            cache: SwapCache::new(CacheConfig::default()).expect("a cache"),
            kind: Kind::Userfaultfd,
            slots: SLOTS,
            blocks: 0,
            huge_pages: HugePages::Never,
            pool_percent: AtomicU32::new(0),
            has_store: false,
        }));
        let pager = Pager::new();
        let tree: &'static _ = Box::leak(tree());
        pager.connect(tree, tree.claim(10).expect("a slot"));
        let mut s = pager.lock();
        pager.set_active(&mut s, active).expect("memory");
        let Some(Mechanism::Fake(fake)) = pager.active().map(|a| &a.mechanism) else {
            unreachable!("it has just been set")
        };
        fake.map(start, 2 * PAGE_SIZE, READ_WRITE);
        pager.note_mapped(&mut s, start, start + 2 * PAGE_SIZE, READ_WRITE, RangeFlags::NONE);
        assert!(!pager.ranges.overlaps(start, start + PAGE_SIZE));
        assert_eq!(fake.access(start, true, |_| ()), Access::Done);
    }
}
