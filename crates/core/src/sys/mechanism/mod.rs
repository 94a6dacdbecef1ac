//! How pages leave and enter the program: two kernel mechanisms behind one seam.
//!
//! | | userfaultfd | protection faults |
//! |---|---|---|
//! | a missing page is | an absent page of a registered range | a page behind PROT_NONE |
//! | a touch of it is | SIGBUS | SIGSEGV |
//! | taking out | MOVE to a staging slot (or write-protect, copy, drop) | mprotect(PROT_NONE), frame stays |
//! | filling | COPY | /proc/self/mem behind the protection, then mprotect |
//! | unit | one page | as many pages as keep the kernel's mappings few |
//! | a forked child has | ranges to be attached again | all as its parent's |
//!
//! The pager asks for these properties by name ([`Mechanism::hides`] and those after it), never for
//! the mechanism.
//!
//! # Safety charter
//! The methods are safe to call for addresses inside managed ranges: no Rust object of uzswap lives
//! there, so changing those pages cannot break a Rust invariant of ours. That the *program* sees
//! its own bytes is the pager's business: it calls with its lock held, after checking the page's
//! state.
#![allow(unsafe_code)]

#[cfg(any(test, feature = "testing"))]
mod fake;
mod kind;
mod mover;
mod protect;
mod uffd;

#[cfg(any(test, feature = "testing"))]
pub use fake::{Access, Fake, in_child};
pub use kind::Kind;
pub use mover::Mover;
pub use protect::ProtectFaults;
pub use uffd::Uffd;

use super::{PAGE_SIZE, Result};

const PROT_WRITE: u32 = 2;

/// The outcome of taking a run out: the first `pages` are out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    pub pages: usize,
    pub next: Next,
}

/// The page after the last one taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// The run is complete.
    End,
    /// Shared or pinned, or the kernel refuses: it stays resident.
    Stuck,
    /// It has no frame: the kernel dropped it, it reads as zero.
    Absent,
}

/// The outcome of filling: the first `n` pages are in, or all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Filled {
    All,
    /// The page after the first `n` is there already.
    Present(usize),
    /// The page after the first `n` cannot be filled now; try again.
    Again(usize),
    /// No memory, or the mapping is not what the pager thinks; nothing after the first `n` was
    /// done.
    Failed(usize),
}

/// The mechanism in use.
pub enum Mechanism {
    Uffd(Uffd),
    Protect(ProtectFaults),
    /// A kernel of the tests' own, on plain memory.
    #[cfg(any(test, feature = "testing"))]
    Fake(Fake),
}

impl Mechanism {
    /// Opens the wanted mechanism, or with `Auto` the best that works. `slots`: staging slots for
    /// limbo, and `huge_slots` for huge pages, which follow those. `is_alone`: the process has one
    /// thread.
    pub fn open(kind: Kind, slots: usize, huge_slots: usize, is_alone: bool) -> Result<Mechanism> {
        let open = |kind| Self::open(kind, slots, huge_slots, is_alone);
        match kind {
            Kind::Userfaultfd => Uffd::open(true, slots, huge_slots).map(Mechanism::Uffd),
            Kind::UserfaultfdCopy => Uffd::open(false, slots, 0).map(Mechanism::Uffd),
            Kind::Protect => ProtectFaults::open(is_alone).map(Mechanism::Protect),
            Kind::Auto => open(Kind::Userfaultfd)
                .or_else(|_| open(Kind::UserfaultfdCopy))
                .or_else(|_| open(Kind::Protect)),
        }
    }

    /// Whether paging has to end before the process has a second thread.
    pub fn needs_to_be_alone(&self) -> bool {
        matches!(self, Mechanism::Protect(p) if p.needs_to_be_alone())
    }

    /// Takes a range of resident pages off the mechanism for good: it is the kernel's alone.
    pub fn release(&self, addr: usize, len: usize, prot: u32) -> Result<()> {
        match self {
            Mechanism::Uffd(u) => u.detach(addr, len),
            Mechanism::Protect(p) => p.expose(addr, len, prot),
            #[cfg(any(test, feature = "testing"))]
            Mechanism::Fake(f) if f.hides() => f.show(addr, len, prot),
            #[cfg(any(test, feature = "testing"))]
            Mechanism::Fake(f) => f.detach(addr, len),
        }
    }

    /// In a process of one thread for which the mechanism does not work (the child of a fork):
    /// nothing faults from now on. By protection faults a touch of a hidden page still does.
    pub fn close(&self) {
        if let Mechanism::Uffd(u) = self {
            u.close();
        }
    }

    /// The kind of this mechanism.
    pub fn kind(&self) -> Kind {
        match self {
            Mechanism::Uffd(u) if u.has_move() => Kind::Userfaultfd,
            Mechanism::Uffd(_) => Kind::UserfaultfdCopy,
            Mechanism::Protect(_) => Kind::Protect,
            #[cfg(any(test, feature = "testing"))]
            Mechanism::Fake(f) if f.hides() => Kind::Protect,
            #[cfg(any(test, feature = "testing"))]
            Mechanism::Fake(_) => Kind::Userfaultfd,
        }
    }

    /// The signal by which a touch of a missing page arrives.
    pub fn signal(kind: Kind) -> i32 {
        const SIGBUS: i32 = 7;
        const SIGSEGV: i32 = 11;
        if kind == Kind::Protect { SIGSEGV } else { SIGBUS }
    }

    /// Whether memory that is out is there and hidden, so that a touch of it is one of memory that
    /// the program may not use. Otherwise it is absent.
    pub fn hides(&self) -> bool {
        match self {
            Mechanism::Uffd(_) => false,
            Mechanism::Protect(_) => true,
            #[cfg(any(test, feature = "testing"))]
            Mechanism::Fake(f) => f.hides(),
        }
    }

    /// Whether pages go and come by units, so that the kernel's mappings stay few. A unit may have
    /// pages of all kinds: shared, of any protection.
    pub fn has_units(&self) -> bool {
        self.hides()
    }

    /// Whether a page of limbo has its frame in its place, and its slot has none.
    pub fn keeps_frames(&self) -> bool {
        self.hides()
    }

    /// Whether a forked child has what its parent has asked for, range by range and page by page.
    pub fn is_inherited(&self) -> bool {
        self.hides()
    }

    /// Whether a missing page raises the signal of a forbidden access.
    pub fn faults_as_forbidden(&self) -> bool {
        self.hides()
    }

    /// Descriptors that must survive the program's closing.
    pub fn fds(&self) -> [i32; 3] {
        match self {
            Mechanism::Uffd(u) => u.fds(),
            Mechanism::Protect(p) => [p.fd(), -1, -1],
            #[cfg(any(test, feature = "testing"))]
            Mechanism::Fake(_) => [-1; 3],
        }
    }

    /// Puts a range under the mechanism: absent pages fault from now on.
    pub fn attach(&self, addr: usize, len: usize) -> Result<()> {
        match self {
            Mechanism::Uffd(u) => u.attach(addr, len),
            Mechanism::Protect(p) => p.hide(addr, len),
            #[cfg(any(test, feature = "testing"))]
            Mechanism::Fake(f) if f.hides() => f.hide(addr, len),
            #[cfg(any(test, feature = "testing"))]
            Mechanism::Fake(f) => f.attach(addr, len),
        }
    }

    /// Readies a range for the kernel's moving it. Moving resets the registration of the kernel
    /// mapping that the range ends up in, neighbours that it merges with included, whose missing
    /// pages would then read as zero: unregistered, it merges with none of ours. By protection
    /// faults the range must be one kernel mapping.
    pub fn ready_to_move(&self, addr: usize, len: usize) -> Result<()> {
        match self {
            Mechanism::Uffd(u) => u.detach(addr, len),
            Mechanism::Protect(p) => p.hide(addr, len),
            #[cfg(any(test, feature = "testing"))]
            Mechanism::Fake(f) if f.hides() => f.hide(addr, len),
            #[cfg(any(test, feature = "testing"))]
            Mechanism::Fake(f) => f.detach(addr, len),
        }
    }

    /// Takes the run `[addr, addr + pages)`, all resident, out into slots from `slot` on.
    pub fn take_out(&self, addr: usize, pages: usize, slot: usize) -> Taken {
        match self {
            Mechanism::Uffd(u) => u.take_out(addr, pages, slot),
            Mechanism::Protect(p) => match p.hide(addr, pages * PAGE_SIZE) {
                Ok(()) => Taken { pages, next: Next::End },
                Err(_) => Taken { pages: 0, next: Next::Stuck },
            },
            #[cfg(any(test, feature = "testing"))]
            Mechanism::Fake(f) if f.hides() => f.hide_run(addr, pages),
            #[cfg(any(test, feature = "testing"))]
            Mechanism::Fake(f) => f.take_out(addr, pages, slot),
        }
    }

    /// The mechanism for huge pages: userfaultfd with MOVE.
    pub fn as_huge(&self) -> Option<Mover<'_>> {
        match self {
            Mechanism::Uffd(u) if u.has_huge() => Some(Mover::Uffd(u)),
            #[cfg(any(test, feature = "testing"))]
            Mechanism::Fake(f) if f.has_huge() => Some(Mover::Fake(f)),
            _ => None,
        }
    }

    /// The mechanism by which frames go in as they are: userfaultfd with MOVE.
    pub fn as_mover(&self) -> Option<Mover<'_>> {
        match self {
            Mechanism::Uffd(u) if u.has_move() => Some(Mover::Uffd(u)),
            #[cfg(any(test, feature = "testing"))]
            Mechanism::Fake(f) if !f.hides() => Some(Mover::Fake(f)),
            _ => None,
        }
    }

    /// Tells the kernel that a range of the program may have huge pages.
    pub fn want_huge(&self, addr: usize, len: usize) {
        #[cfg(any(test, feature = "testing"))]
        if let Mechanism::Fake(_) = self {
            return;
        }
        // SAFETY: the pages of the range that are missing fault as before.
        unsafe { super::program::advise_huge(addr, len) }
    }

    /// Copies a page that limbo has left in its place, hidden.
    pub fn read_hidden(&self, addr: usize, into: &mut [u8; PAGE_SIZE]) -> Result<()> {
        match self {
            Mechanism::Protect(p) => p.read(addr, into),
            // Limbo has its pages in slots.
            Mechanism::Uffd(_) => Err(super::Errno::EINVAL),
            #[cfg(any(test, feature = "testing"))]
            Mechanism::Fake(f) => f.read_behind(addr, into),
        }
    }

    /// A page of staging, where limbo keeps frames in slots; it stays as it is until the slot is
    /// released.
    pub fn slot(&self, slot: usize) -> Option<&[u8; PAGE_SIZE]> {
        match self {
            Mechanism::Uffd(u) => Some(u.slot(slot)),
            Mechanism::Protect(_) => None,
            #[cfg(any(test, feature = "testing"))]
            Mechanism::Fake(f) if f.hides() => None,
            #[cfg(any(test, feature = "testing"))]
            Mechanism::Fake(f) => Some(f.slot(slot)),
        }
    }

    /// Brings pages back from limbo: `pages` from `addr`, in slots from `slot` on.
    pub fn fill_from_limbo(&self, addr: usize, slot: usize, pages: usize) -> Filled {
        match self {
            Mechanism::Uffd(u) => u.fill(addr, u.slot(slot).as_ptr() as usize, pages),
            Mechanism::Protect(_) => Filled::All,
            #[cfg(any(test, feature = "testing"))]
            Mechanism::Fake(f) if f.hides() => Filled::All,
            #[cfg(any(test, feature = "testing"))]
            Mechanism::Fake(f) => f.fill_from_slots(addr, slot, pages),
        }
    }

    /// Puts a page of limbo back, which is to stay. One that cannot be shown just now is there, and
    /// a touch shows it.
    pub fn put_back(&self, addr: usize, slot: usize, prot: u32) -> Filled {
        let filled = self.fill_from_limbo(addr, slot, 1);
        let _ = self.expose(addr, PAGE_SIZE, prot);
        filled
    }

    /// Fills missing pages from `addr` with `bytes` (whole pages).
    pub fn fill(&self, addr: usize, bytes: &[u8]) -> Filled {
        debug_assert!(bytes.len().is_multiple_of(PAGE_SIZE));
        match self {
            Mechanism::Uffd(u) => u.fill(addr, bytes.as_ptr() as usize, bytes.len() / PAGE_SIZE),
            Mechanism::Protect(p) => p.fill(addr, bytes),
            #[cfg(any(test, feature = "testing"))]
            Mechanism::Fake(f) if f.hides() => f.write_behind(addr, bytes),
            #[cfg(any(test, feature = "testing"))]
            Mechanism::Fake(f) => f.fill(addr, bytes),
        }
    }

    /// Fills missing pages with zeros.
    pub fn fill_zero(&self, addr: usize, pages: usize) -> Filled {
        match self {
            Mechanism::Uffd(u) => u.fill_zero(addr, pages),
            // Never-touched memory is zero behind its protection.
            Mechanism::Protect(_) => Filled::All,
            #[cfg(any(test, feature = "testing"))]
            Mechanism::Fake(f) if f.hides() => Filled::All,
            #[cfg(any(test, feature = "testing"))]
            Mechanism::Fake(f) => f.fill_zero(addr, pages),
        }
    }

    /// The pages of a run are all filled: let the program at them.
    pub fn expose(&self, addr: usize, len: usize, prot: u32) -> Result<()> {
        match self {
            Mechanism::Uffd(_) => Ok(()),
            Mechanism::Protect(p) => p.expose(addr, len, prot),
            #[cfg(any(test, feature = "testing"))]
            Mechanism::Fake(f) if f.hides() => f.show(addr, len, prot),
            #[cfg(any(test, feature = "testing"))]
            Mechanism::Fake(_) => Ok(()),
        }
    }

    /// Makes the first write to each page of a run of resident pages a fault. `prot`: what the
    /// program may do.
    pub fn forbid_write(&self, addr: usize, len: usize, prot: u32) -> Result<()> {
        match self {
            Mechanism::Uffd(u) => u.forbid_write(addr, len),
            // The program may write none of them.
            _ if self.hides() && prot & PROT_WRITE == 0 => Ok(()),
            Mechanism::Protect(p) => p.expose(addr, len, prot & !PROT_WRITE),
            #[cfg(any(test, feature = "testing"))]
            Mechanism::Fake(f) if f.hides() => f.show(addr, len, prot & !PROT_WRITE),
            #[cfg(any(test, feature = "testing"))]
            Mechanism::Fake(f) => f.forbid_write(addr, len),
        }
    }

    /// Lets the program write a run of resident pages as far as `prot` does. If that fails the next
    /// fault asks again.
    pub fn allow_write(&self, addr: usize, len: usize, prot: u32) {
        let _ = self.try_allow_write(addr, len, prot);
    }

    /// [`Mechanism::allow_write`], for a caller that goes by the page's word rather than by faults.
    /// ENOMEM, by protection faults: the kernel has no mapping left for a part of one.
    pub fn try_allow_write(&self, addr: usize, len: usize, prot: u32) -> Result<()> {
        match self {
            Mechanism::Uffd(u) => u.allow_write(addr, len),
            #[cfg(any(test, feature = "testing"))]
            Mechanism::Fake(f) if !f.hides() => f.allow_write(addr, len),
            _ => return self.expose(addr, len, prot),
        }
        Ok(())
    }

    /// Gives the frames of released slots back.
    pub fn release_slots(&self, slot: usize, count: usize) {
        match self {
            Mechanism::Uffd(u) => u.release_slots(slot, count),
            Mechanism::Protect(_) => {}
            #[cfg(any(test, feature = "testing"))]
            Mechanism::Fake(f) if f.hides() => {}
            #[cfg(any(test, feature = "testing"))]
            Mechanism::Fake(f) => f.release_slots(slot, count),
        }
    }

    /// Drops the frames of pages that were stored and stay behind their protection, or of a page
    /// that nobody can write now.
    pub fn drop_in_place(&self, addr: usize, pages: usize) -> Result<()> {
        #[cfg(any(test, feature = "testing"))]
        if let Mechanism::Fake(f) = self {
            return f.drop_in_place(addr, pages);
        }
        // SAFETY: charter; the pager has stored the contents.
        unsafe { super::program::drop_pages(addr, pages * PAGE_SIZE) }
    }

    /// [`Mechanism::drop_in_place`] of pages in any order: by one call where the kernel has one,
    /// else neighbours together. Each call takes as long as a page's codec.
    #[inline(never)] // The list of pages is not on the stack while a codec runs.
    pub fn drop_all_in_place(&self, pages: &[usize]) {
        let dropped = match self {
            // SAFETY: charter; the pager has stored the contents.
            Mechanism::Protect(_) => unsafe { super::program::drop_each(pages) },
            _ => 0,
        };
        self.drop_neighbours_in_place(&pages[dropped..]);
    }

    /// [`Mechanism::drop_in_place`] of pages in any order, neighbours by one call.
    fn drop_neighbours_in_place(&self, pages: &[usize]) {
        for run in pages.chunk_by(|a, b| a + PAGE_SIZE == *b) {
            let _ = self.drop_in_place(run[0], run.len());
        }
    }

    /// Copies a resident page that nobody can write while the lock is held. `prot`: what the
    /// program may do.
    pub fn read_stable(&self, addr: usize, prot: u32, into: &mut [u8; PAGE_SIZE]) -> bool {
        match self {
            Mechanism::Uffd(u) => u.read_stable(addr, prot, into),
            Mechanism::Protect(p) => p.read_shown(addr, prot, into).is_ok(),
            #[cfg(any(test, feature = "testing"))]
            Mechanism::Fake(f) => f.read_stable(addr, into),
        }
    }

    /// Takes one page that is writable and executable out, into `into`.
    pub fn take_executable(&self, addr: usize, into: &mut [u8; PAGE_SIZE]) -> Taken {
        match self {
            Mechanism::Uffd(u) => u.take_executable(addr, into),
            Mechanism::Protect(_) => Taken { pages: 0, next: Next::Stuck },
            #[cfg(any(test, feature = "testing"))]
            Mechanism::Fake(f) => f.take_executable(addr, into),
        }
    }

    /// In the child after fork: new descriptors for this process. Ranges must be attached again.
    pub fn renew(&self) -> Result<()> {
        match self {
            Mechanism::Uffd(u) => u.renew(),
            Mechanism::Protect(p) => {
                p.renew();
                Ok(())
            }
            #[cfg(any(test, feature = "testing"))]
            Mechanism::Fake(f) => f.renew(),
        }
    }
    /// Which of the pages from `addr` on are mapped to a frame: one byte each, bit 0.
    pub fn present(&self, addr: usize, vec: &mut [u8]) -> Result<()> {
        #[cfg(any(test, feature = "testing"))]
        if let Mechanism::Fake(f) = self {
            return f.present(addr, vec);
        }
        super::program::mincore(addr, vec)
    }

    /// Whether the kernel has dropped a page that was resident. One that is hidden is dropped
    /// unseen, and reads as zero.
    pub fn has_dropped(&self, addr: usize) -> bool {
        !self.hides() && !self.is_present(addr)
    }

    /// Whether one page is mapped to a frame.
    pub fn is_present(&self, addr: usize) -> bool {
        let mut v = [0u8];
        self.present(addr, &mut v).is_ok() && v[0] & 1 != 0
    }
}
