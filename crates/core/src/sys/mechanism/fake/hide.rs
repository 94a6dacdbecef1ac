//! Protection faults: what Linux does to pages behind PROT_NONE.
//!
//! A hidden page keeps its frame where it is, and the program's touch of it is a fault. A call that
//! would lose contents fails an assertion here, too: only a hidden page is read or written from
//! behind.

use core::sync::atomic::Ordering;

use super::super::{Filled, Next, Taken};
use super::{Fake, PROT_WRITE, Page};
use crate::sys::{Errno, PAGE_SIZE, Result, program};

/// A change of protection of more pages than this always finds a mapping: it needs to split none.
const SPLIT_MOST_PAGES: usize = 16;

impl Fake {
    /// An address space of `pages` pages from `base` on whose kernel has protection faults only.
    pub fn hiding(base: usize, pages: usize, slots: usize) -> Fake {
        Fake { hides: true, ..Fake::new(base, pages, slots, 0) }
    }

    pub fn hides(&self) -> bool {
        self.hides
    }

    /// Whether the program can see the page at `addr` without a fault.
    pub fn is_shown(&self, addr: usize) -> bool {
        self.with(addr, |p, _| if self.hides { !p.is_hidden } else { p.is_present })
    }

    /// The kernel is short of mappings now and then, and never twice in a row: others give some
    /// back.
    fn has_no_mapping(&self, len: usize) -> bool {
        let is_split = len <= SPLIT_MOST_PAGES * PAGE_SIZE;
        if self.is_out_of_mappings.load(Ordering::Relaxed) {
            return is_split;
        }
        let is_short = is_split && self.has_trouble();
        !self.was_short.swap(is_short, Ordering::Relaxed) && is_short
    }

    /// From now on, and until further notice, the kernel has no mapping left.
    pub fn set_out_of_mappings(&self, on: bool) {
        self.is_out_of_mappings.store(on, Ordering::Relaxed);
    }

    pub fn hide(&self, addr: usize, len: usize) -> Result<()> {
        self.all_are(addr, len, |p| p.is_mapped)?;
        self.each(addr, len, |p, _| p.is_hidden = true);
        Ok(())
    }

    /// Shows pages with the protection `prot`, which is no more than the program's.
    pub fn show(&self, addr: usize, len: usize, prot: u32) -> Result<()> {
        // Pages that are shown so already need no mapping.
        let is_shown = |p: &mut Page, _| {
            let shown_prot = if p.is_protected { p.prot & !PROT_WRITE } else { p.prot };
            p.is_mapped && !p.is_hidden && shown_prot == prot
        };
        let changes = !(addr..addr + len).step_by(PAGE_SIZE).all(|at| self.with(at, is_shown));
        if changes && self.has_no_mapping(len) {
            self.show_first(addr, len, prot);
            return Err(Errno::ENOMEM);
        }
        self.all_are(addr, len, |p| p.is_mapped)?;
        self.each(addr, len, |p, _| {
            assert!(prot & !p.prot == 0, "{addr:#x} is shown with {prot}, not {}", p.prot);
            p.is_protected = p.prot & !prot & PROT_WRITE != 0;
            p.is_hidden = false;
        });
        Ok(())
    }

    /// Shows the hidden pages before the first one that is not: where the kernel cannot split a
    /// mapping, it has changed those before it.
    fn show_first(&self, addr: usize, len: usize, prot: u32) {
        let is_hidden = |at: &usize| self.with(*at, |p, _| p.is_hidden && p.prot == prot);
        let pages = (addr..addr + len).step_by(PAGE_SIZE).take_while(is_hidden).count();
        if pages < len / PAGE_SIZE {
            self.each(addr, pages * PAGE_SIZE, |p, _| {
                (p.is_hidden, p.is_protected) = (false, false);
            });
        }
    }

    pub fn hide_run(&self, addr: usize, pages: usize) -> Taken {
        let hidden =
            !self.has_no_mapping(pages * PAGE_SIZE) && self.hide(addr, pages * PAGE_SIZE).is_ok();
        let (pages, next) = if hidden { (pages, Next::End) } else { (0, Next::Stuck) };
        Taken { pages, next }
    }

    pub fn write_behind(&self, addr: usize, bytes: &[u8]) -> Filled {
        if self.has_trouble() {
            return Filled::Failed(0);
        }
        for (i, bytes) in bytes.as_chunks::<PAGE_SIZE>().0.iter().enumerate() {
            self.behind(addr + i * PAGE_SIZE, |p, page| {
                *page = *bytes;
                (p.is_present, p.is_shared) = (true, false);
            });
        }
        Filled::All
    }

    pub fn read_behind(&self, addr: usize, into: &mut [u8; PAGE_SIZE]) -> Result<()> {
        if self.has_trouble() {
            return Err(Errno::EIO);
        }
        self.behind(addr, |p, page| match p.is_present {
            true => *into = *page,
            false => into.fill(0),
        });
        Ok(())
    }

    /// The bytes in the frame of a hidden page.
    fn behind(&self, addr: usize, f: impl FnOnce(&mut Page, &mut [u8; PAGE_SIZE])) {
        self.with(addr, |p, at| {
            assert!(p.is_mapped && p.is_hidden, "page {addr:#x} is used behind the program's back");
            // SAFETY: a page of the fake's, locked.
            f(p, unsafe { program::page_at_mut(at) });
        });
    }
}
