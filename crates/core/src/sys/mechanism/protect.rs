//! Pages by protection faults, for where userfaultfd is refused or missing.
//!
//! A run is hidden behind PROT_NONE: atomic, and nobody can change it from then on. It is read and filled from
//! behind through `/proc/self/mem`, which ignores protection. A fork needs nothing: the child inherits protection and
//! contents. Each run that differs from its neighbours costs the kernel a mapping, so the pager works in
//! units of 16 pages and more here.
#![allow(unsafe_code)]
// Safety charter: see `mechanism/mod.rs`.

use super::Filled;
use crate::sys::program::{self, ProcMem};
use crate::sys::{PAGE_SIZE, Result};

pub struct ProtectFaults {
    proc_mem: ProcMem,
}

impl ProtectFaults {
    /// Opens the mechanism and proves that the kernel lets us write behind a protection.
    pub fn open() -> Result<ProtectFaults> {
        let p = ProtectFaults { proc_mem: ProcMem::open()? };
        let probe = crate::sys::mem::Mapping::new(PAGE_SIZE)?;
        p.hide(probe.addr(), PAGE_SIZE)?;
        let bytes = [1u8; 64];
        // SAFETY: a mapping of our own, hidden.
        unsafe { p.proc_mem.write(probe.addr(), bytes.as_ptr() as usize, bytes.len()) }?;
        Ok(p)
    }

    pub fn renew(&self) -> Result<()> {
        self.proc_mem.renew()
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

    pub fn read(&self, addr: usize, into: &mut [u8; PAGE_SIZE]) -> Result<()> {
        // SAFETY: `into` is borrowed exclusively.
        unsafe { self.proc_mem.read(into.as_mut_ptr() as usize, addr, PAGE_SIZE) }
    }

    pub fn fill(&self, addr: usize, bytes: &[u8]) -> Filled {
        // SAFETY: the pager is entitled to replace missing pages.
        match unsafe { self.proc_mem.write(addr, bytes.as_ptr() as usize, bytes.len()) } {
            Ok(()) => Filled::All,
            Err(_) => Filled::Failed(0),
        }
    }
}
