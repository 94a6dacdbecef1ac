//! The page table: a page's word by its address, two levels, no search.
//!
//! ```text
//!  address: | 26 bits: 2 MiB stretch | 9 bits: page | 12 |
//!             stretches (sparse) ----> leaf[512] of PageEntry
//! ```
//!
//! Regions are dense, so leaves are full where it matters; a huge empty reservation costs nothing,
//! and each stretch counts its leaf's pages, so that dropping one skips it by 2 MiB. Leaves are
//! made under the pager's lock and never go away, so readers need no lock.

use core::sync::atomic::{AtomicU32, Ordering};

use super::{ADDRESS_END, PageEntry};
use crate::sys::mem::Table;
use crate::sys::{Errno, HUGE_BYTES, HUGE_PAGES, PAGE_SHIFT, PAGE_SIZE, Result};

/// Pages of a leaf, and bytes that it describes: as many as a huge page has.
pub const LEAF_PAGES: usize = HUGE_PAGES;
pub const LEAF_BYTES: usize = HUGE_BYTES;
/// Bytes that one segment of the table of stretches describes: a search skips them at once where
/// the segment is missing.
pub const SKIP_BYTES: usize = Table::<MiddleEntry>::PER_SEGMENT * LEAF_BYTES;

type Leaf = [PageEntry; LEAF_PAGES];

crate::zeroable! {
    /// One 2 MiB stretch: the place of its words, and how many of its pages are in which state.
    pub struct MiddleEntry {
        /// Index of the leaf plus one; 0: none.
        leaf: AtomicU32,
        /// Pages in state Resident.
        resident: AtomicU32,
        /// Pages in any state but None.
        occupied: AtomicU32,
        /// How the kernel maps the stretch, as far as known: a [`Mapped`]. In the bits above,
        /// `pager/huge_sampling.rs` keeps its use.
        mapped: AtomicU32,
        /// Pages of it that are claimed, or [`ALL_CLAIMED`]: see `pager/claim.rs`.
        claimed: AtomicU32,
    }
}

/// The stretch is claimed as a whole.
const ALL_CLAIMED: u32 = u32::MAX;

/// How the kernel maps a stretch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Mapped {
    /// Not at all since the program mapped it: it may become huge.
    Empty = 0,
    /// Page by page, or it was: there is a table of small pages, in the way of a huge page.
    Small = 1,
    /// By one huge page, when it is resident.
    Huge = 2,
}

const MAPPED_MASK: u32 = 0xff;
const USE_SHIFT: u32 = 8;

impl MiddleEntry {
    pub fn resident(&self) -> u32 {
        self.resident.load(Ordering::Relaxed)
    }
    pub fn occupied(&self) -> u32 {
        self.occupied.load(Ordering::Relaxed)
    }
    pub fn mapped(&self) -> Mapped {
        match self.mapped.load(Ordering::Relaxed) & MAPPED_MASK {
            0 => Mapped::Empty,
            1 => Mapped::Small,
            _ => Mapped::Huge,
        }
    }
    pub fn set_mapped(&self, mapped: Mapped) {
        let others = self.mapped.load(Ordering::Relaxed) & !MAPPED_MASK;
        self.mapped.store(others | mapped as u32, Ordering::Relaxed);
    }
    /// Bits that say how the stretch is used; 0: nothing is known, as at first.
    pub fn usage(&self) -> u32 {
        self.mapped.load(Ordering::Relaxed) >> USE_SHIFT
    }
    pub fn set_usage(&self, bits: u32) {
        let mapped = self.mapped.load(Ordering::Relaxed) & MAPPED_MASK;
        self.mapped.store(bits << USE_SHIFT | mapped, Ordering::Relaxed);
    }
    /// Some pages of the stretch are claimed, or all of it is.
    #[inline]
    pub fn is_claimed(&self) -> bool {
        self.claimed.load(Ordering::Relaxed) != 0
    }
    /// The stretch is claimed as a whole.
    #[inline]
    pub fn is_claimed_whole(&self) -> bool {
        self.claimed.load(Ordering::Relaxed) == ALL_CLAIMED
    }
    /// One more page of the stretch is claimed. With the pager's lock held, as for the next three
    /// functions.
    pub fn claim_page(&self) {
        debug_assert!(!self.is_claimed_whole());
        self.claimed.store(self.claimed.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
    /// The claim of one of its pages ends.
    pub fn end_page_claim(&self) {
        debug_assert!(self.is_claimed() && !self.is_claimed_whole());
        self.claimed.store(self.claimed.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
    }
    /// Claims the whole stretch, no page of which is claimed.
    pub fn claim_whole(&self) {
        debug_assert!(!self.is_claimed());
        self.claimed.store(ALL_CLAIMED, Ordering::Relaxed);
    }
    /// The claim of the whole stretch ends.
    pub fn end_whole_claim(&self) {
        debug_assert!(self.is_claimed_whole());
        self.claimed.store(0, Ordering::Relaxed);
    }
    /// Adjusts the counts when a page changes state.
    #[inline]
    pub fn count(&self, resident: i32, occupied: i32) {
        self.resident.store(self.resident().wrapping_add_signed(resident), Ordering::Relaxed);
        self.occupied.store(self.occupied().wrapping_add_signed(occupied), Ordering::Relaxed);
        debug_assert!(self.resident() <= self.occupied() && self.occupied() <= 512);
    }
}

/// The table of all managed pages.
#[derive(Default)]
pub struct PageTable {
    stretches: Table<MiddleEntry>,
    leaves: Table<Leaf>,
    leaves_used: AtomicU32,
}

impl PageTable {
    /// An empty table; maps nothing.
    pub const fn new() -> PageTable {
        PageTable { stretches: Table::new(), leaves: Table::new(), leaves_used: AtomicU32::new(0) }
    }

    /// Bytes of frames that the leaves use.
    pub fn bytes(&self) -> usize {
        self.leaves_used.load(Ordering::Relaxed) as usize * size_of::<Leaf>()
    }

    /// The 2 MiB stretch of an address, if its neighbourhood was ever used.
    #[inline]
    pub fn middle(&self, addr: usize) -> Option<&MiddleEntry> {
        self.stretches.get(addr / LEAF_BYTES).filter(|_| addr < ADDRESS_END)
    }

    #[inline]
    fn leaf(&self, m: &MiddleEntry) -> Option<&Leaf> {
        self.leaves.get((m.leaf.load(Ordering::Acquire) as usize).checked_sub(1)?)
    }

    /// The word of a page, if its 2 MiB stretch was ever used.
    #[inline]
    pub fn get(&self, addr: usize) -> Option<&PageEntry> {
        Some(&self.leaf(self.middle(addr)?)?[addr >> PAGE_SHIFT & (LEAF_PAGES - 1)])
    }

    /// Changes a page's word, which exists, and the counts of its stretch.
    #[inline]
    pub fn word<T>(&self, page: usize, f: impl FnOnce(&MiddleEntry, &PageEntry) -> T) -> T {
        let m = self.middle(page).expect("the page has a stretch");
        f(m, self.get(page).expect("the page has a word"))
    }

    /// The stretch and word of a page, made if need be. With the pager's lock held.
    pub fn ensure(&self, addr: usize) -> Result<(&MiddleEntry, &PageEntry)> {
        assert!(addr < ADDRESS_END);
        let m = self.stretches.ensure_needed(addr / LEAF_BYTES)?;
        if m.leaf.load(Ordering::Acquire) == 0 {
            let n = self.leaves_used.load(Ordering::Relaxed);
            self.leaves.ensure_needed(n as usize)?;
            self.leaves_used.store(n + 1, Ordering::Relaxed);
            m.leaf.store(n + 1, Ordering::Release);
        }
        let leaf = self.leaf(m).ok_or(Errno::ENOMEM)?;
        Ok((m, &leaf[addr >> PAGE_SHIFT & (LEAF_PAGES - 1)]))
    }

    /// Calls `f` for every stretch that touches `[start, end)` and was ever used, with its address.
    pub fn for_each_stretch(
        &self,
        start: usize,
        end: usize,
        mut f: impl FnMut(usize, &MiddleEntry),
    ) {
        let mut addr = start / LEAF_BYTES * LEAF_BYTES;
        let end = end.min(ADDRESS_END);
        while addr < end {
            match self.middle(addr) {
                Some(m) => {
                    f(addr, m);
                    addr += LEAF_BYTES;
                }
                None => addr = (addr / SKIP_BYTES + 1) * SKIP_BYTES,
            }
        }
    }

    /// Calls `f(address, stretch, word)` for every page of `[start, end)` that has contents. Empty
    /// stretches are skipped as a whole. `f` may change the page.
    pub fn for_each_occupied(
        &self,
        start: usize,
        end: usize,
        mut f: impl FnMut(usize, &MiddleEntry, &PageEntry),
    ) {
        let mut addr = start;
        let end = end.min(ADDRESS_END);
        while addr < end {
            let Some(m) = self.middle(addr) else {
                addr = (addr / SKIP_BYTES + 1) * SKIP_BYTES;
                continue;
            };
            let next = ((addr / LEAF_BYTES + 1) * LEAF_BYTES).min(end);
            if m.occupied() > 0
                && let Some(leaf) = self.leaf(m)
            {
                for a in (addr..next).step_by(PAGE_SIZE) {
                    let e = &leaf[a >> PAGE_SHIFT & (LEAF_PAGES - 1)];
                    if e.state() != super::PageState::None {
                        f(a, m, e);
                    }
                }
            }
            addr = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::PageState;
    use super::*;

    #[test]
    fn words_are_found_by_address_and_empty_stretches_are_skipped() {
        let t = PageTable::new();
        assert!(t.get(0x7f00_0000_0000).is_none());
        for a in [0x1000usize, 0x7f00_0000_0000, 0x7f00_0020_0000, ADDRESS_END - PAGE_SIZE] {
            let (m, e) = t.ensure(a).unwrap();
            e.touch_first();
            m.count(1, 1);
        }
        assert_eq!(t.get(0x1000).unwrap().state(), PageState::Resident);
        assert_eq!(t.get(0x2000).unwrap().state(), PageState::None);
        let mut seen = Vec::new();
        t.for_each_occupied(0, usize::MAX, |a, m, e| {
            seen.push(a);
            e.drop_contents();
            m.count(-1, -1);
        });
        assert_eq!(seen, [0x1000, 0x7f00_0000_0000, 0x7f00_0020_0000, ADDRESS_END - PAGE_SIZE]);
        t.for_each_occupied(0, usize::MAX, |_, _, _| panic!("nothing is left"));
        assert!(t.get(ADDRESS_END).is_none());
    }
}
