//! The program's own pages: addresses with a length, never Rust references.
//!
//! # Safety charter
//! The program may change its memory at any instant, so no `&[u8]` to it ever exists. Bytes are
//! copied by the kernel (`/proc/self/mem`, which reports a bad address as an error) or by
//! `raw_copy` from pages that the pager holds. Mapping calls on the program's addresses are made by
//! the hooks with the pager's lock held.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicI32, Ordering};

use super::mem::{MADV_DONTNEED, MADV_DONTNEED_LOCKED, PROT_NONE, drop_runs};
use super::{Errno, PAGE_SIZE, Result, nr};

/// Copies bytes between two addresses.
///
/// # Safety
/// Both ranges must be mapped and resident (or demand-zero), the destination writable and not a
/// Rust object that somebody borrows.
#[inline]
pub unsafe fn raw_copy(dst: usize, src: usize, len: usize) {
    // SAFETY: the caller vouches; `copy` allows overlap.
    unsafe { core::ptr::copy(src as *const u8, dst as *mut u8, len) }
}

/// A page of staging memory as a slice.
///
/// # Safety
/// The page must be mapped, and nobody may write it while the slice lives.
#[inline]
pub unsafe fn page_at<'a>(addr: usize) -> &'a [u8; PAGE_SIZE] {
    // SAFETY: the caller vouches.
    unsafe { &*(addr as *const [u8; PAGE_SIZE]) }
}

/// A page of our memory, to be written.
///
/// # Safety
/// The page must be memory of ours, readable and writable, and nobody else may use it while the
/// reference lives.
#[inline]
pub unsafe fn page_at_mut<'a>(addr: usize) -> &'a mut [u8; PAGE_SIZE] {
    // SAFETY: the caller vouches.
    unsafe { &mut *(addr as *mut [u8; PAGE_SIZE]) }
}

/// Which of `pages` pages from `addr` are mapped to a frame: one byte each, bit 0.
pub fn mincore(addr: usize, vec: &mut [u8]) -> Result<()> {
    // SAFETY: the kernel writes one byte per page into vec, which has that many.
    unsafe { uz_syscall!(nr::MINCORE, addr, vec.len() * PAGE_SIZE, vec.as_mut_ptr()) }.map(drop)
}

/// Whether one page is mapped to a frame.
pub fn is_present(addr: usize) -> bool {
    let mut v = [0u8];
    mincore(addr, &mut v).is_ok() && v[0] & 1 != 0
}

/// Drops the frames of a range: it reads as zero (or faults, where registered) afterwards.
///
/// # Safety
/// The contents must be worthless or stored elsewhere.
pub unsafe fn drop_pages(addr: usize, len: usize) -> Result<()> {
    // SAFETY: the caller vouches.
    unsafe { uz_syscall!(nr::MADVISE, addr, len, MADV_DONTNEED) }.map(drop)
}

/// Single pages that [`drop_each`] and [`copy_each`] take at once.
pub const EACH_MAX_PAGES: usize = 128;

/// Drops single pages, wherever they lie, as [`drop_pages`] does, with one flush for all. Returns
/// how many from the first on were dropped. Linux before 6.15 drops none.
///
/// # Safety
/// As for [`drop_pages`], of each.
pub unsafe fn drop_each(pages: &[usize]) -> usize {
    let mut vector = [(0usize, PAGE_SIZE); EACH_MAX_PAGES];
    let count = pages.len().min(EACH_MAX_PAGES);
    for (v, page) in vector.iter_mut().zip(pages) {
        v.0 = *page;
    }
    // SAFETY: the caller vouches.
    unsafe { drop_runs(&vector[..count]) / PAGE_SIZE }
}

/// Copies single pages of the program to `into`, one after the other: how many, up to the first
/// that is not there. The kernel reads them, so a page that goes away meanwhile is one that is not
/// there.
pub fn copy_each(pages: &[usize], into: &mut [u8]) -> usize {
    let mut remote = [(0usize, PAGE_SIZE); EACH_MAX_PAGES];
    let count = pages.len().min(EACH_MAX_PAGES).min(into.len() / PAGE_SIZE);
    for (r, page) in remote.iter_mut().zip(pages) {
        r.0 = *page;
    }
    let local = (into.as_mut_ptr() as usize, count * PAGE_SIZE);
    // SAFETY: the kernel writes `into`, which is borrowed; vectors are arrays of address and
    // length.
    let done = unsafe {
        let pid = uz_syscall!(nr::GETPID).unwrap_or(0);
        uz_syscall!(nr::PROCESS_VM_READV, pid, &raw const local, 1, remote.as_ptr(), count, 0)
    };
    done.map_or(0, |bytes| bytes / PAGE_SIZE)
}

/// As [`drop_pages`], of a range that is locked in memory.
///
/// # Safety
/// As for [`drop_pages`].
pub unsafe fn drop_locked_pages(addr: usize, len: usize) -> Result<()> {
    // SAFETY: the caller vouches.
    unsafe { uz_syscall!(nr::MADVISE, addr, len, MADV_DONTNEED_LOCKED) }.map(drop)
}

/// As [`drop_pages`], of memory of ours. After mlockall (the program's or ours) it is locked, and
/// Linux before 5.18 has no advice for that: its frames stay.
///
/// # Safety
/// As for [`drop_pages`].
pub unsafe fn drop_ours(addr: usize, len: usize) -> Result<()> {
    // SAFETY: the caller vouches.
    unsafe { drop_pages(addr, len).or_else(|_| drop_locked_pages(addr, len)) }
}

/// Lets the kernel map a range with huge pages. Where it has none the advice is refused, and
/// nothing changes.
///
/// # Safety
/// Missing pages must be the pager's to bring, or none of its business yet: the kernel maps 2 MiB
/// for a touch of any of them.
pub unsafe fn advise_huge(addr: usize, len: usize) {
    const MADV_HUGEPAGE: usize = 14;
    // SAFETY: the caller vouches.
    let _ = unsafe { uz_syscall!(nr::MADVISE, addr, len, MADV_HUGEPAGE) };
}

/// Changes the protection of a range of the program.
///
/// # Safety
/// Every thread that runs in the range must be able to cope with the fault: the pager serves it.
pub unsafe fn protect(addr: usize, len: usize, prot: usize) -> Result<()> {
    // SAFETY: the caller vouches.
    unsafe { uz_syscall!(nr::MPROTECT, addr, len, prot) }.map(drop)
}

/// Gives a range of the program a protection, where no thread runs that could see the bytes behind
/// the former one: in a process of one thread, or for a page that nobody is to touch.
pub fn show(addr: usize, len: usize, prot: usize) -> Result<()> {
    // SAFETY: no Rust object lies in the program's ranges; what the program sees of it is the
    // caller's part.
    unsafe { protect(addr, len, prot) }
}

/// Writes a page of the program that [`show`] has made writable.
pub fn put_page(addr: usize, bytes: &[u8; PAGE_SIZE]) {
    // SAFETY: writable memory of the program, where no Rust object lies.
    unsafe { raw_copy(addr, bytes.as_ptr() as usize, PAGE_SIZE) }
}

/// Makes a range inaccessible.
///
/// # Safety
/// As for [`protect`].
pub unsafe fn protect_none(addr: usize, len: usize) -> Result<()> {
    // SAFETY: the caller vouches.
    unsafe { protect(addr, len, PROT_NONE) }
}

/// Writes a page's first word with itself, in the kernel: breaks the sharing that fork left, and
/// says with an error, not a signal, when the page is gone.
pub fn break_sharing(addr: usize) -> Result<()> {
    const FUTEX_WAKE_OP_PRIVATE: usize = 5 | 128;
    // FUTEX_OP(FUTEX_OP_OR, 0, FUTEX_OP_CMP_EQ, 0): *addr |= 0.
    const OP_OR_ZERO: usize = 2 << 28;
    let dummy = 0u32;
    // SAFETY: the kernel ORs zero into the word, atomically; the first address is only a key.
    unsafe {
        uz_syscall!(nr::FUTEX, &raw const dummy, FUTEX_WAKE_OP_PRIVATE, 0, 0, addr, OP_OR_ZERO)
    }
    .map(drop)
}

/// See [`ProcMem::open_early`].
static EARLY_FD: AtomicI32 = AtomicI32::new(-1);

/// /proc/self/mem: reads and writes this process's memory under any protection.
pub struct ProcMem {
    fd: AtomicI32,
}

impl ProcMem {
    pub fn open() -> Result<ProcMem> {
        let early = EARLY_FD.swap(-1, Ordering::Relaxed);
        let fd = if early >= 0 { early } else { Self::open_fd()? };
        Ok(ProcMem { fd: AtomicI32::new(fd) })
    }

    fn open_fd() -> Result<i32> {
        super::fd::open_read_write(c"/proc/self/mem").map(super::fd::move_high)
    }

    pub fn fd(&self) -> i32 {
        self.fd.load(Ordering::Relaxed)
    }

    /// Opens the file while the process still may, for later use ([`ProcMem::open`]): after
    /// `chroot` there may be no /proc, and after `setuid` or `PR_SET_DUMPABLE` the file is root's.
    pub fn open_early() {
        if EARLY_FD.load(Ordering::Relaxed) < 0
            && let Ok(fd) = Self::open_fd()
        {
            EARLY_FD.store(fd, Ordering::Relaxed);
        }
    }

    /// The descriptor of [`ProcMem::open_early`]; negative: there is none.
    pub fn early_fd() -> i32 {
        EARLY_FD.load(Ordering::Relaxed)
    }

    /// Closes the early descriptor, which is of the parent's memory, in the child after fork.
    pub fn close_early() {
        super::fd::close(EARLY_FD.swap(-1, Ordering::Relaxed));
    }

    /// In the child after fork: the file was opened for the parent's memory; open this process's.
    /// Where that is refused there is none from now on: reads and writes fail.
    pub fn renew(&self) {
        super::fd::close(self.fd());
        self.fd.store(Self::open_fd().unwrap_or(-1), Ordering::Relaxed);
    }

    /// Whether there is a file.
    pub fn is_open(&self) -> bool {
        self.fd() >= 0
    }

    /// A value without a file: every read and write fails.
    pub fn none() -> ProcMem {
        ProcMem { fd: AtomicI32::new(-1) }
    }

    /// Reads exactly `len` bytes at `src` into memory of ours at `dst`.
    ///
    /// # Safety
    /// `dst` must be writable memory of ours.
    pub unsafe fn read(&self, dst: usize, src: usize, len: usize) -> Result<()> {
        // SAFETY: the kernel writes `len` bytes at most at `dst`.
        unsafe { self.move_all(nr::PREAD64, dst, src, len) }
    }

    /// Writes exactly `len` bytes of ours at `src` into the program at `dst`.
    ///
    /// # Safety
    /// `dst` must be pages whose contents the pager is entitled to replace.
    pub unsafe fn write(&self, dst: usize, src: usize, len: usize) -> Result<()> {
        // SAFETY: the kernel reads our bytes and checks the program's.
        unsafe { self.move_all(nr::PWRITE64, src, dst, len) }
    }

    /// Repeats the call until it has moved `len` bytes between `ours` and the program's `theirs`.
    ///
    /// # Safety
    /// As of the call.
    unsafe fn move_all(&self, call: usize, ours: usize, theirs: usize, len: usize) -> Result<()> {
        let mut done = 0;
        while done < len {
            // SAFETY: as the caller says, for a part of the bytes.
            match unsafe { uz_syscall!(call, self.fd(), ours + done, len - done, theirs + done) } {
                Ok(0) => return Err(Errno::EIO),
                Ok(n) => done += n,
                Err(Errno::EINTR) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

impl Drop for ProcMem {
    fn drop(&mut self) {
        super::fd::close(self.fd());
    }
}

#[cfg(test)]
mod tests {
    use super::super::mem::Mapping;
    use super::*;

    #[test]
    fn proc_mem_reads_and_writes_behind_the_protection() {
        let m = Mapping::new(2 * PAGE_SIZE).unwrap();
        let p = match ProcMem::open() {
            Ok(p) => p,
            Err(e) => return println!("SKIPPED: /proc/self/mem: {e}"),
        };
        let bytes = [5u8; PAGE_SIZE];
        let mut back = [0u8; PAGE_SIZE];
        // SAFETY: a mapping of this test, without protection while it is written from behind.
        unsafe {
            protect_none(m.addr(), PAGE_SIZE).unwrap();
            p.write(m.addr(), bytes.as_ptr() as usize, PAGE_SIZE).unwrap();
            p.read(back.as_mut_ptr() as usize, m.addr(), PAGE_SIZE).unwrap();
            protect(m.addr(), PAGE_SIZE, 3).unwrap();
        }
        assert_eq!(back, bytes);
        assert_eq!(m.as_slice()[..PAGE_SIZE], bytes);
        assert!(is_present(m.addr()));
        assert!(!is_present(m.addr() + PAGE_SIZE));
        break_sharing(m.addr()).unwrap();
        // SAFETY: a mapping of this test.
        unsafe {
            drop_locked_pages(m.addr(), PAGE_SIZE).unwrap();
        }
        assert!(!is_present(m.addr()));
    }
}
