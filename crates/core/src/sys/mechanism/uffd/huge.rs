//! Huge pages by userfaultfd: out and in by one MOVE each.
//!
//! A MOVE keeps a huge page whole if neither side has small pages
//! there: so they have slots of their own, behind the others, and a dock, where one is filled
//! before it goes in. The dock is not registered: a touch maps a huge page. Where small pages have
//! been, their table is left, and a huge page that is moved there is split. Since 6.14 kernels free
//! an empty table when all that it covers is dropped (`CONFIG_PT_RECLAIM`); whether this one does
//! is seen at the first try.
#![allow(unsafe_code)]
// Safety charter: see `mechanism/mod.rs`; the dock is memory of ours.

use core::sync::atomic::Ordering;

use super::Uffd;
use crate::sys::program;
use crate::sys::{HUGE_BYTES, HUGE_PAGES, PAGE_SIZE};

impl Uffd {
    pub fn has_huge(&self) -> bool {
        self.huge_slots > 0
    }

    fn dock(&self) -> usize {
        self.huge + self.huge_slots * HUGE_BYTES
    }

    /// Page `i` of the huge page that is being filled, in the dock or in slots from `kept` on whose
    /// frames are kept. The first touch of any page in the dock maps all of it, zero. The caller
    /// has the dock, or those slots, to itself, and has no other page of it.
    pub fn with_page_to_fill<T>(
        &self,
        kept: Option<usize>,
        i: usize,
        f: impl FnOnce(&mut [u8; PAGE_SIZE]) -> T,
    ) -> T {
        assert!(i < HUGE_PAGES && self.huge_slots > 0);
        match kept {
            Some(slot) => self.slot_mut(slot + i, f),
            // SAFETY: memory of ours that nobody else uses (the caller's part of the contract: one
            // at a time).
            None => f(unsafe { program::page_at_mut(self.dock() + i * PAGE_SIZE) }),
        }
    }

    /// Moves a huge page from the dock, or from the slots from `from` on, to an empty place of the
    /// program. Returns how many pages have gone in; they are the program's from that instant.
    pub fn fill_huge(&self, addr: usize, from: Option<usize>) -> usize {
        self.move_in(addr, from.map_or(self.dock(), |slot| self.slot_addr(slot)), HUGE_PAGES)
    }

    /// Whether the pages that `fill_huge` is to move are one huge page, as `is_huge` tells.
    pub fn is_source_huge(&self, from: Option<usize>) -> bool {
        self.is_huge(from.map_or(self.dock(), |slot| self.slot_addr(slot)))
    }

    /// Empties the dock.
    pub fn clear_dock(&self) {
        // SAFETY: nothing in it is needed.
        let _ = unsafe { program::drop_ours(self.dock(), HUGE_BYTES) };
    }

    /// Whether a place where small pages have been keeps their table.
    pub fn keeps_tables(&self) -> bool {
        self.keeps_tables.load(Ordering::Relaxed)
    }

    /// Makes the 2 MiB at `addr`, of which no page is resident, a place for a huge page, though
    /// small ones have been there. Says whether that may have worked: `is_huge` tells after the
    /// next huge page has gone in.
    pub fn clear_table(&self, addr: usize) -> bool {
        let Some(pagemap) = self.pagemap.as_ref().filter(|_| !self.keeps_tables()) else {
            return false;
        };
        // A page that the kernel itself swapped out before it came under management is there,
        // though no word tells of it.
        // SAFETY: nothing is mapped there, and nothing can come but by the pager, whose lock the
        // caller holds.
        pagemap.is_empty(addr) && unsafe { program::drop_pages(addr, HUGE_BYTES) }.is_ok()
    }

    /// Whether the 2 MiB at `addr` are one huge page to the kernel; where it does not say, they are
    /// taken for one.
    pub fn is_huge(&self, addr: usize) -> bool {
        self.pagemap.as_ref().is_none_or(|p| p.is_huge(addr))
    }

    /// Whether the kernel says that the 2 MiB at `addr` are one huge page.
    pub fn is_known_huge(&self, addr: usize) -> bool {
        self.pagemap.as_ref().is_some_and(|p| p.is_huge(addr))
    }

    /// A huge page was split, though `clear_table` had said that there was no table.
    pub fn note_table_kept(&self) {
        self.keeps_tables.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{Filled, Next, Taken};
    use super::*;
    use crate::sys::mem::map_huge;

    #[test]
    fn huge_pages_go_out_and_come_in_by_one_move() {
        const SLOTS: usize = 8;
        let u = match Uffd::open(true, SLOTS, 3) {
            Ok(u) => u,
            Err(e) => return println!("SKIPPED: userfaultfd with MOVE: {e}"),
        };
        let program = map_huge(4).unwrap();
        u.attach(program, 4 * HUGE_BYTES).unwrap();
        for round in 0..3u8 {
            for n in 0..4usize {
                let at = program + n * HUGE_BYTES;
                for i in (0..HUGE_PAGES).step_by(7) {
                    u.with_page_to_fill(None, i, |bytes| bytes.fill(round ^ n as u8 ^ i as u8));
                }
                assert_eq!(u.fill_huge(at, None), HUGE_PAGES, "round {round}, page {n}");
            }
            for n in 0..4usize {
                let (at, slot) = (program + n * HUGE_BYTES, SLOTS + (n % 3) * HUGE_PAGES);
                assert_eq!(
                    u.take_out(at, HUGE_PAGES, slot),
                    Taken { pages: HUGE_PAGES, next: Next::End }
                );
                let value =
                    |i: usize| if i.is_multiple_of(7) { round ^ n as u8 ^ i as u8 } else { 0 };
                assert!((0..HUGE_PAGES).all(|i| *u.slot(slot + i) == [value(i); PAGE_SIZE]));
                assert_eq!(u.fill_huge(at, Some(slot)), HUGE_PAGES);
                assert_eq!(u.take_out(at, HUGE_PAGES, slot).pages, HUGE_PAGES);
                u.release_slots(slot, HUGE_PAGES);
            }
        }
    }

    #[test]
    fn where_small_pages_have_been_a_huge_one_goes_in() {
        let u = match Uffd::open(true, 8, 2) {
            Ok(u) => u,
            Err(e) => return println!("SKIPPED: userfaultfd with MOVE: {e}"),
        };
        let program = map_huge(1).unwrap();
        u.attach(program, HUGE_BYTES).unwrap();
        u.with_page_to_fill(None, 0, |bytes| bytes[0] = 1);
        assert_eq!(u.fill_huge(program, None), HUGE_PAGES);
        if u.keeps_tables() || !u.is_huge(program) {
            return println!("SKIPPED: huge pages, or PAGEMAP_SCAN");
        }
        assert_eq!(u.take_out(program, HUGE_PAGES, 8).pages, HUGE_PAGES);
        u.release_slots(8, HUGE_PAGES);
        assert_eq!(u.fill_zero(program, 5), Filled::All);
        assert!(!u.clear_table(program), "there are pages");
        assert_eq!(u.take_out(program, 5, 0).pages, 5);
        assert!(u.clear_table(program));
        u.with_page_to_fill(None, 0, |bytes| bytes[0] = 1);
        assert_eq!(u.fill_huge(program, None), HUGE_PAGES);
        println!("this kernel {} tables", if u.is_huge(program) { "frees" } else { "keeps" });
    }
}
