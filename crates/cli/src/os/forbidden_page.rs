//! A page that nobody may touch, to try what the kernel can do with it all the same.
//!
//! # Safety charter
//! That of `os.rs`. The page is the value's own, and no reference to it is ever made.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::ptr::null_mut;

use uzswap::PAGE_BYTES;

use super::check;

/// A page that nobody may touch, to try what /proc/self/mem can do with it.
pub struct ForbiddenPage(*mut c_void);

impl ForbiddenPage {
    /// Holds `byte` everywhere and is PROT_NONE.
    pub fn new(byte: u8) -> io::Result<ForbiddenPage> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of ours, written while it is writable.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let addr = libc::mmap(null_mut(), PAGE_BYTES, prot, flags, -1, 0);
            if addr == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let page = ForbiddenPage(addr);
            addr.cast::<u8>().write_bytes(byte, PAGE_BYTES);
            check(libc::mprotect(addr, PAGE_BYTES, libc::PROT_NONE))?;
            Ok(page)
        }
    }

    pub fn address(&self) -> u64 {
        self.0 as u64
    }

    /// Makes it readable again and copies it out.
    pub fn into_bytes(self) -> io::Result<[u8; PAGE_BYTES]> {
        // SAFETY: our own mapping, readable after mprotect.
        unsafe {
            check(libc::mprotect(self.0, PAGE_BYTES, libc::PROT_READ))?;
            Ok(self.0.cast::<[u8; PAGE_BYTES]>().read())
        }
    }
}

impl Drop for ForbiddenPage {
    fn drop(&mut self) {
        // SAFETY: our own mapping, no references to it exist.
        unsafe { libc::munmap(self.0, PAGE_BYTES) };
    }
}
