//! userfaultfd: the kernel's answers decoded once, for private anonymous memory of this process.
//!
//! # Safety charter
//! The ioctls here change mappings of this process, so wrong arguments are as bad as a wild write.
//! The callers are the pager's mechanism and nobody else: they hold the pager's lock or a claim of
//! the pages, destinations are pages that the pager knows to be absent, sources are staging memory
//! of our own. The kernel's own checks (ranges registered, aligned, inside one mapping) are
//! reported as outcomes, never ignored.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicI32, Ordering};

use super::open::O_CLOEXEC;
use super::{Errno, PAGE_SIZE, Result, nr};

const USER_MODE_ONLY: usize = 1;

pub const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
pub const FEATURE_SIGBUS: u64 = 1 << 7;
pub const FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
pub const FEATURE_WP_ASYNC: u64 = 1 << 15;
pub const FEATURE_MOVE: u64 = 1 << 16;

const API_VERSION: u64 = 0xAA;
const REGISTER_MODE_MISSING: u64 = 1;
const REGISTER_MODE_WP: u64 = 2;
const COPY_MODE_DONTWAKE: u64 = 1;
const MOVE_MODE_DONTWAKE: u64 = 1;
const WRITEPROTECT_MODE_WP: u64 = 1;

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}
#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}
#[repr(C)]
struct RangeArg {
    start: u64,
    len: u64,
}
#[repr(C)]
struct Copy {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    copy: i64,
}
#[repr(C)]
struct WriteProtect {
    start: u64,
    len: u64,
    mode: u64,
}
#[repr(C)]
struct Move {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    moved: i64,
}

const fn iowr(number: usize, size: usize) -> usize {
    (3 << 30) | (size << 16) | (0xAA << 8) | number
}
const fn ior(number: usize, size: usize) -> usize {
    (2 << 30) | (size << 16) | (0xAA << 8) | number
}
const IOCTL_API: usize = iowr(0x3F, size_of::<Api>());
pub const IOCTL_REGISTER: usize = iowr(0x00, size_of::<Register>());
const IOCTL_UNREGISTER: usize = ior(0x01, size_of::<RangeArg>());
const IOCTL_COPY: usize = iowr(0x03, size_of::<Copy>());
pub const IOCTL_MOVE: usize = iowr(0x05, size_of::<Move>());
const IOCTL_WRITEPROTECT: usize = iowr(0x06, size_of::<WriteProtect>());
const _: () = assert!(IOCTL_API == 0xC018_AA3F && IOCTL_REGISTER == 0xC020_AA00);
const _: () = assert!(IOCTL_COPY == 0xC028_AA03 && IOCTL_MOVE == 0xC028_AA05);

/// The requests that paging makes of its descriptor, again and again.
pub const COMMANDS: [usize; 5] =
    [IOCTL_REGISTER, IOCTL_UNREGISTER, IOCTL_COPY, IOCTL_MOVE, IOCTL_WRITEPROTECT];

/// The outcome of a COPY or MOVE. `done_pages` from the start of the range are in place in every
/// case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transfer {
    pub done_pages: usize,
    pub stop: Stop,
}

/// Why a transfer stopped before its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The transfer did not stop: everything was done.
    Complete,
    /// The kernel asks to go on from here (a concurrent change of the mapping, or a lock it could
    /// not take).
    Again,
    /// The destination page is present already.
    Present,
    /// The source page is shared after fork, or pinned for I/O.
    Busy,
    /// Anything else: other protection, a boundary between mappings, memory short.
    Refused(Errno),
}

/// One userfaultfd of this process.
pub struct Userfaultfd {
    fd: AtomicI32,
}

impl Userfaultfd {
    /// Opens a descriptor with `features` (all required). Works without privilege: user-mode faults
    /// only.
    pub fn open(features: u64) -> Result<Userfaultfd> {
        // SAFETY: makes a descriptor; touches no memory.
        let fd = unsafe { uz_syscall!(nr::USERFAULTFD, O_CLOEXEC | USER_MODE_ONLY) }? as i32;
        let mut api = Api { api: API_VERSION, features, ioctls: 0 };
        // SAFETY: the argument is a live struct of the size encoded in the request.
        let r = unsafe { uz_syscall!(nr::IOCTL, fd, IOCTL_API, &raw mut api) };
        let u = Userfaultfd { fd: AtomicI32::new(super::fd::move_high(fd)) };
        r.map(|_| u)
    }

    /// The features that this kernel offers, or the reason why there is no userfaultfd.
    pub fn probe() -> Result<u64> {
        // SAFETY: as in `open`; with features 0 the API call only reports.
        let fd = unsafe { uz_syscall!(nr::USERFAULTFD, O_CLOEXEC | USER_MODE_ONLY) }? as i32;
        let mut api = Api { api: API_VERSION, features: 0, ioctls: 0 };
        // SAFETY: as in `open`.
        let r = unsafe { uz_syscall!(nr::IOCTL, fd, IOCTL_API, &raw mut api) };
        super::fd::close(fd);
        r.map(|_| api.features)
    }

    /// [`Userfaultfd::probe`] by a child of this process, for where a seccomp filter may end the
    /// process that asks: then the probe is refused.
    pub fn probe_in_child() -> Result<u64> {
        let (from, to) = super::file::pipe()?;
        // SAFETY: the child makes the calls below and ends; it touches nothing but its stack.
        let child = unsafe { uz_syscall!(nr::FORK) }.inspect_err(|_| {
            super::fd::close(from);
            super::fd::close(to);
        })?;
        if child == 0 {
            let answer = match Self::probe() {
                Ok(features) => [1, features],
                Err(e) => [0, e.0 as u64],
            };
            // SAFETY: two words of this frame are read; the process ends.
            unsafe {
                let _ = uz_syscall!(nr::WRITE, to, answer.as_ptr(), size_of_val(&answer));
                loop {
                    let _ = uz_syscall!(nr::EXIT_GROUP, 0);
                }
            }
        }
        super::fd::close(to);
        // Reading does not wait, and the pipe has room for the answer: it is there once the child
        // has ended.
        // SAFETY: the child is ours; nothing is written.
        while unsafe { uz_syscall!(nr::WAIT4, child, 0, 0, 0) } == Err(Errno::EINTR) {}
        let mut bytes = [0u8; 16];
        let read = super::fd::read(from, &mut bytes);
        super::fd::close(from);
        let word = |i: usize| u64::from_le_bytes(bytes.as_chunks::<8>().0[i]);
        match (read, word(0)) {
            (Ok(16), 1) => Ok(word(1)),
            (Ok(16), _) => Err(Errno(word(1) as i32)),
            _ => Err(Errno::EPERM),
        }
    }

    pub fn fd(&self) -> i32 {
        self.fd.load(Ordering::Relaxed)
    }

    /// In the child after fork: a new descriptor for this process instead of the parent's.
    pub fn renew(&self, features: u64) -> Result<()> {
        self.close();
        let new = Self::open(features)?;
        self.fd.store(new.fd.swap(-1, Ordering::Relaxed), Ordering::Relaxed);
        Ok(())
    }

    /// Closes the descriptor: nothing is registered any more.
    pub fn close(&self) {
        super::fd::close(self.fd.swap(-1, Ordering::Relaxed));
    }

    /// Puts `[addr, addr+len)` under this descriptor; `write_protect` adds the mode that write
    /// protection needs.
    pub fn register(&self, addr: usize, len: usize, write_protect: bool) -> Result<()> {
        let mode = REGISTER_MODE_MISSING | if write_protect { REGISTER_MODE_WP } else { 0 };
        let mut r = Register { start: addr as u64, len: len as u64, mode, ioctls: 0 };
        // SAFETY: registering changes how faults of the range are reported, not its contents.
        unsafe { uz_syscall!(nr::IOCTL, self.fd(), IOCTL_REGISTER, &raw mut r) }.map(drop)
    }

    /// Takes a range out again: missing pages read as zero afterwards.
    pub fn unregister(&self, addr: usize, len: usize) -> Result<()> {
        let mut r = RangeArg { start: addr as u64, len: len as u64 };
        // SAFETY: as above.
        unsafe { uz_syscall!(nr::IOCTL, self.fd(), IOCTL_UNREGISTER, &raw mut r) }.map(drop)
    }

    /// Fills absent pages at `dst` with the bytes at `src`, atomically page by page.
    ///
    /// # Safety
    /// `src..src+pages` must be readable memory of ours, and `dst` pages that the pager manages.
    pub unsafe fn copy(&self, dst: usize, src: usize, pages: usize) -> Transfer {
        let mut done = 0;
        loop {
            let mut c = Copy {
                dst: (dst + done * PAGE_SIZE) as u64,
                src: (src + done * PAGE_SIZE) as u64,
                len: ((pages - done) * PAGE_SIZE) as u64,
                mode: COPY_MODE_DONTWAKE,
                copy: 0,
            };
            // SAFETY: the caller vouches for both ranges; the kernel checks the destination.
            let r = unsafe { uz_syscall!(nr::IOCTL, self.fd(), IOCTL_COPY, &raw mut c) };
            if c.copy > 0 {
                done += c.copy as usize / PAGE_SIZE;
            }
            let stop = match r {
                Ok(_) => return Transfer { done_pages: pages, stop: Stop::Complete },
                Err(Errno::EAGAIN) if c.copy > 0 && done < pages => continue,
                Err(Errno::EAGAIN) => Stop::Again,
                Err(Errno::EEXIST) => Stop::Present,
                Err(e) => Stop::Refused(e),
            };
            return Transfer { done_pages: done, stop };
        }
    }

    /// Moves the frames of `src` pages to absent pages at `dst`; stops at a hole (ENOENT).
    ///
    /// # Safety
    /// The caller must be entitled to take the source pages out of the program (or out of staging),
    /// and the destination must be absent pages of staging (or of a managed range).
    pub unsafe fn move_pages(&self, dst: usize, src: usize, pages: usize) -> Transfer {
        let mut m = Move {
            dst: dst as u64,
            src: src as u64,
            len: (pages * PAGE_SIZE) as u64,
            mode: MOVE_MODE_DONTWAKE,
            moved: 0,
        };
        // SAFETY: the caller vouches for both ranges.
        let r = unsafe { uz_syscall!(nr::IOCTL, self.fd(), IOCTL_MOVE, &raw mut m) };
        let done_pages = if m.moved > 0 { m.moved as usize / PAGE_SIZE } else { 0 };
        let stop = match r {
            Ok(_) => return Transfer { done_pages: pages, stop: Stop::Complete },
            Err(Errno::EAGAIN) => Stop::Again,
            Err(Errno::EEXIST) => Stop::Present,
            Err(Errno::EBUSY) => Stop::Busy,
            Err(e) => Stop::Refused(e),
        };
        Transfer { done_pages, stop }
    }

    /// Write-protects a range or lifts the protection. A write to a protected page is a SIGBUS
    /// (unless the descriptor has WP_ASYNC).
    pub fn write_protect(&self, addr: usize, len: usize, protect: bool) -> Result<()> {
        let mode = if protect { WRITEPROTECT_MODE_WP } else { 0 };
        loop {
            let mut w = WriteProtect { start: addr as u64, len: len as u64, mode };
            // SAFETY: protection makes writes fault; it changes no contents.
            match unsafe { uz_syscall!(nr::IOCTL, self.fd(), IOCTL_WRITEPROTECT, &raw mut w) } {
                Err(Errno::EAGAIN) => continue,
                r => return r.map(drop),
            }
        }
    }
}

impl Drop for Userfaultfd {
    fn drop(&mut self) {
        if self.fd() >= 0 {
            super::fd::close(self.fd());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::mem::Mapping;
    use super::*;

    /// The child's answer takes its time, and is no refusal meanwhile.
    #[test]
    fn a_child_gets_the_answer_that_this_process_would_get() {
        for _ in 0..20 {
            assert_eq!(Userfaultfd::probe_in_child(), Userfaultfd::probe());
        }
    }

    #[test]
    fn copy_fills_and_reports_presence() {
        let u = match Userfaultfd::open(FEATURE_SIGBUS) {
            Ok(u) => u,
            Err(e) => return println!("SKIPPED: userfaultfd: {e}"),
        };
        let m = Mapping::new(16 * PAGE_SIZE).unwrap();
        let mut src = Mapping::new(16 * PAGE_SIZE).unwrap();
        src.as_mut_slice().fill(9);
        u.register(m.addr(), m.len(), false).unwrap();
        // SAFETY: both are mappings of this test.
        let t = unsafe { u.copy(m.addr() + PAGE_SIZE, src.addr(), 2) };
        assert_eq!(t, Transfer { done_pages: 2, stop: Stop::Complete });
        // SAFETY: as above.
        let t = unsafe { u.copy(m.addr(), src.addr(), 4) };
        assert_eq!(t, Transfer { done_pages: 1, stop: Stop::Present });
        assert_eq!(m.as_slice()[..3 * PAGE_SIZE], src.as_slice()[..3 * PAGE_SIZE]);
    }
}
