//! The pages that the kernel has at a stretch of addresses, in memory or swapped out, and which of
//! them are huge: `PAGEMAP_SCAN` of /proc/self/pagemap (Linux 6.7 and later).
//!
//! # Safety charter
//! The kernel reads one structure and writes one array, both ours and live; nothing of the program
//! is touched.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicI32, Ordering};

use super::{HUGE_BYTES, Result, nr};

const PRESENT: u64 = 1 << 3;
/// In the kernel's swap, or a marker of userfaultfd or of guard pages.
const SWAPPED: u64 = 1 << 4;
/// Mapped by a huge page as a whole.
const HUGE: u64 = 1 << 6;

/// `struct pm_scan_arg`.
#[repr(C)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    regions_len: u64,
    max_pages: u64,
    inverted: u64,
    all_of: u64,
    any_of: u64,
    returned: u64,
}

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

const _: () = assert!(size_of::<Scan>() == 96 && size_of::<Region>() == 24);
/// `_IOWR('f', 16, struct pm_scan_arg)`.
const IOCTL_PAGEMAP_SCAN: usize =
    (3 << 30) | (size_of::<Scan>() << 16) | ((b'f' as usize) << 8) | 16;

/// The file, open.
pub struct Pagemap {
    fd: AtomicI32,
}

impl Pagemap {
    /// Fails where the kernel cannot scan, too.
    pub fn open() -> Result<Pagemap> {
        let pagemap = Pagemap { fd: AtomicI32::new(Self::open_fd()?) };
        pagemap.first(0, 0, PRESENT).map(|_| pagemap)
    }

    fn open_fd() -> Result<i32> {
        super::fd::open_read(c"/proc/self/pagemap").map(super::fd::move_high)
    }

    pub fn fd(&self) -> i32 {
        self.fd.load(Ordering::Relaxed)
    }

    /// In the child after fork: the file tells of the parent; open this process's. Where that is
    /// refused nothing is known from now on: all pages are in doubt.
    pub fn renew(&self) {
        super::fd::close(self.fd());
        self.fd.store(Self::open_fd().unwrap_or(-1), Ordering::Relaxed);
    }

    /// The first region of `[addr, addr + len)` that is of any of the categories.
    fn first(&self, addr: usize, len: usize, any_of: u64) -> Result<Option<Region>> {
        let mut region = Region::default();
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            flags: 0,
            start: addr as u64,
            end: (addr + len) as u64,
            walk_end: 0,
            regions: (&raw mut region).addr() as u64,
            regions_len: 1,
            max_pages: 0,
            inverted: 0,
            all_of: 0,
            any_of,
            returned: PRESENT | SWAPPED | HUGE,
        };
        // SAFETY: charter; the argument has the size that it says, and room for one region.
        let found =
            unsafe { uz_syscall!(nr::IOCTL, self.fd(), IOCTL_PAGEMAP_SCAN, &raw mut scan) }?;
        Ok((found > 0).then_some(region))
    }

    /// Whether the kernel has nothing at all at the 2 MiB from `addr` on. In doubt it has.
    pub fn is_empty(&self, addr: usize) -> bool {
        matches!(self.first(addr, HUGE_BYTES, PRESENT | SWAPPED), Ok(None))
    }

    /// Whether the 2 MiB from `addr` on are mapped by one huge page. In doubt they are not.
    pub fn is_huge(&self, addr: usize) -> bool {
        let all = |r: Region| r.start == addr as u64 && r.end == (addr + HUGE_BYTES) as u64;
        self.first(addr, HUGE_BYTES, HUGE).is_ok_and(|found| found.is_some_and(all))
    }
}

impl Drop for Pagemap {
    fn drop(&mut self) {
        super::fd::close(self.fd());
    }
}

#[cfg(test)]
mod tests {
    use super::super::mem::map_huge;
    use super::super::program::{advise_huge, page_at_mut};
    use super::*;

    #[test]
    fn it_tells_empty_small_and_huge() {
        let pagemap = match Pagemap::open() {
            Ok(p) => p,
            Err(e) => return println!("SKIPPED: PAGEMAP_SCAN: {e}"),
        };
        let at = map_huge(1).unwrap();
        assert!(pagemap.is_empty(at) && !pagemap.is_huge(at));
        // SAFETY: a mapping of this test.
        unsafe {
            advise_huge(at, HUGE_BYTES);
            page_at_mut(at)[0] = 1;
        }
        assert!(!pagemap.is_empty(at));
        pagemap.renew();
        assert!(!pagemap.is_empty(at));
    }
}
