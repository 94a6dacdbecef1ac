//! Pages by protection faults, for where userfaultfd is refused or missing.
//!
//! A run is hidden behind PROT_NONE: atomic, and nobody can change it from then on. It is read and
//! filled from behind through `/proc/self/mem`, which ignores protection. A fork needs nothing: the
//! child inherits protection and contents. Each run that differs from its neighbours costs the
//! kernel a mapping, so the pager works in units of several pages where memory is large.
//!
//! A process that has given up its rights, or sees no /proc, cannot open that file (again: a child
//! needs its own). As long as it has one thread it needs none: the thread that shows a page to read
//! or fill it is the only one that could see it half done. Before there is another thread, paging
//! has to end (`pager/ending.rs`).
#![allow(unsafe_code)]
// Safety charter: see `mechanism/mod.rs`.

use super::Filled;
use crate::sys::mem::{PROT_READ, PROT_WRITE};
use crate::sys::program::{self, ProcMem};
use crate::sys::{Errno, PAGE_SIZE, Result};

pub struct ProtectFaults {
    proc_mem: ProcMem,
}

impl ProtectFaults {
    /// Opens the mechanism and proves that the kernel lets us write behind a protection.
    /// `is_alone`: the process has one thread, so that it can do without.
    pub fn open(is_alone: bool) -> Result<ProtectFaults> {
        match Self::open_file() {
            Err(_) if is_alone => Ok(ProtectFaults { proc_mem: ProcMem::none() }),
            opened => opened,
        }
    }

    fn open_file() -> Result<ProtectFaults> {
        let p = ProtectFaults { proc_mem: ProcMem::open()? };
        let probe = crate::sys::mem::Mapping::new(PAGE_SIZE)?;
        p.hide(probe.addr(), PAGE_SIZE)?;
        let bytes = [1u8; 64];
        // SAFETY: a mapping of our own, hidden.
        unsafe { p.proc_mem.write(probe.addr(), bytes.as_ptr() as usize, bytes.len()) }?;
        Ok(p)
    }

    pub fn renew(&self) {
        self.proc_mem.renew();
    }

    /// Whether pages are reached by showing them: right in a process of one thread only.
    pub fn needs_to_be_alone(&self) -> bool {
        !self.proc_mem.is_open()
    }

    pub fn fd(&self) -> i32 {
        self.proc_mem.fd()
    }

    pub fn hide(&self, addr: usize, len: usize) -> Result<()> {
        // SAFETY: a touch is a SIGSEGV that the pager serves.
        unsafe { program::protect_none(addr, len) }
    }

    pub fn expose(&self, addr: usize, len: usize, prot: u32) -> Result<()> {
        // SAFETY: every page of the run is filled; this is what the program asked for.
        unsafe { program::protect(addr, len, prot as usize) }
    }

    /// Copies a hidden page, which stays hidden.
    pub fn read(&self, addr: usize, into: &mut [u8; PAGE_SIZE]) -> Result<()> {
        if self.needs_to_be_alone() {
            self.expose(addr, PAGE_SIZE, PROT_READ as u32)?;
            // SAFETY: readable now, and nobody else runs.
            unsafe { program::raw_copy(into.as_mut_ptr() as usize, addr, PAGE_SIZE) };
            return self.hide(addr, PAGE_SIZE);
        }
        // SAFETY: `into` is borrowed exclusively.
        unsafe { self.proc_mem.read(into.as_mut_ptr() as usize, addr, PAGE_SIZE) }
    }

    /// Copies a page that is not hidden, and that the program has with the protection `prot`.
    pub fn read_shown(&self, addr: usize, prot: u32, into: &mut [u8; PAGE_SIZE]) -> Result<()> {
        if !self.needs_to_be_alone() {
            return self.read(addr, into);
        }
        if prot as usize & PROT_READ == 0 {
            return Err(Errno::EPERM);
        }
        // SAFETY: the program may read it, so this can; a frame that the kernel dropped reads as
        // zero, in the file too.
        unsafe { program::raw_copy(into.as_mut_ptr() as usize, addr, PAGE_SIZE) };
        Ok(())
    }

    /// Writes hidden pages, which stay hidden.
    pub fn fill(&self, addr: usize, bytes: &[u8]) -> Filled {
        // SAFETY: the pager is entitled to replace missing pages.
        let write = || unsafe { self.proc_mem.write(addr, bytes.as_ptr() as usize, bytes.len()) };
        let filled = if self.needs_to_be_alone() { self.fill_shown(addr, bytes) } else { write() };
        if filled.is_ok() { Filled::All } else { Filled::Failed(0) }
    }

    fn fill_shown(&self, addr: usize, bytes: &[u8]) -> Result<()> {
        if let Err(e) = self.expose(addr, bytes.len(), (PROT_READ | PROT_WRITE) as u32) {
            // The kernel may have shown a part of it, with nothing in it.
            let _ = self.hide(addr, bytes.len());
            return Err(e);
        }
        // SAFETY: writable now, and nobody else runs.
        unsafe { program::raw_copy(addr, bytes.as_ptr() as usize, bytes.len()) };
        self.hide(addr, bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::mem::Mapping;

    #[test]
    fn what_is_shown_in_part_and_not_filled_is_hidden_again() {
        use crate::sys::mem::{map_anonymous, unmap_anonymous};
        let first = map_anonymous(4 * PAGE_SIZE, PROT_READ | PROT_WRITE).unwrap();
        let p = ProtectFaults { proc_mem: ProcMem::none() };
        let (at, hole) = (first + PAGE_SIZE, first + 2 * PAGE_SIZE);
        p.hide(at, 2 * PAGE_SIZE).unwrap();
        // SAFETY: memory of this test's, of which nobody uses that page.
        unsafe { unmap_anonymous(hole, PAGE_SIZE) };
        // The kernel stops at the hole.
        assert_eq!(p.fill(at, &[7; 2 * PAGE_SIZE]), Filled::Failed(0));
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| line.starts_with(&format!("{at:x}-")));
        assert!(line.unwrap().contains(" ---p "));
        // SAFETY: as above.
        unsafe {
            unmap_anonymous(first, 2 * PAGE_SIZE);
            unmap_anonymous(hole + PAGE_SIZE, PAGE_SIZE);
        }
    }

    #[test]
    fn without_the_file_pages_are_read_and_filled_all_the_same_and_stay_hidden() {
        let m = Mapping::new(2 * PAGE_SIZE).unwrap();
        let p = ProtectFaults { proc_mem: ProcMem::none() };
        assert!(p.needs_to_be_alone());
        let is_hidden = || {
            std::fs::read_to_string("/proc/self/maps").unwrap().lines().any(|line| {
                let (range, rest) = line.split_once(' ').unwrap();
                let start = range.split('-').next().unwrap();
                usize::from_str_radix(start, 16) == Ok(m.addr()) && rest.starts_with("---p")
            })
        };
        p.hide(m.addr(), PAGE_SIZE).unwrap();
        assert_eq!(p.fill(m.addr(), &[7; PAGE_SIZE]), Filled::All);
        assert!(is_hidden());
        let mut back = [0; PAGE_SIZE];
        p.read(m.addr(), &mut back).unwrap();
        assert!(is_hidden() && back == [7; PAGE_SIZE]);
        p.expose(m.addr(), PAGE_SIZE, 1).unwrap();
        p.read_shown(m.addr(), 1, &mut back).unwrap();
        assert_eq!(p.read_shown(m.addr(), 0, &mut back), Err(Errno::EPERM));
        assert_eq!(m.as_slice()[..PAGE_SIZE], [7; PAGE_SIZE]);
    }

    #[test]
    fn scattered_pages_are_dropped_and_no_other() {
        use crate::sys::mechanism::Mechanism;
        for by_one_call in [true, false] {
            let mut m = Mapping::new(5 * PAGE_SIZE).unwrap();
            m.as_mut_slice().fill(7);
            let page = |i: usize| m.addr() + i * PAGE_SIZE;
            let mechanism = Mechanism::Protect(ProtectFaults::open(false).unwrap());
            mechanism.attach(m.addr(), 5 * PAGE_SIZE).unwrap();
            let pages = [page(3), page(0), page(1)];
            match by_one_call {
                true => mechanism.drop_all_in_place(&pages),
                false => mechanism.drop_neighbours_in_place(&pages),
            }
            let mut bytes = [1; PAGE_SIZE];
            let left = [0, 1, 2, 3, 4].map(|i| {
                mechanism.read_hidden(page(i), &mut bytes).unwrap();
                bytes[9]
            });
            assert_eq!(left, [0, 0, 7, 0, 7], "{by_one_call}");
        }
    }
}
