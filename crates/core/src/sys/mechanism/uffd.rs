//! Pages by userfaultfd: out by MOVE into staging slots, in by COPY.
//!
//! Staging is an area of our own, registered like the program's ranges because MOVE demands it of
//! its destination. Slots are empty (absent) until a page is moved in and must be emptied before
//! they are used again. Where the kernel has no MOVE (5.11 to 6.7), a run is write-protected,
//! copied and dropped; a write in between is a SIGBUS, which waits for the pager's lock.
//!
//! Huge pages have slots of their own, behind the others, and a dock (`uffd/huge.rs`).
#![allow(unsafe_code)]
// Safety charter: see `mechanism/mod.rs`; sources of COPY are staging, zeros, or buffers borrowed
// from the caller.

use core::sync::atomic::AtomicBool;

mod huge;

use super::{Filled, Next, Taken};
use crate::sys::mem::{Mapping, PROT_EXEC, PROT_READ, PROT_WRITE, map_anonymous, map_huge};
use crate::sys::pagemap::Pagemap;
use crate::sys::program::{self, ProcMem};
use crate::sys::userfaultfd::{
    FEATURE_MOVE, FEATURE_PAGEFAULT_FLAG_WP, FEATURE_SIGBUS, Stop, Userfaultfd,
};
use crate::sys::{Errno, HUGE_BYTES, HUGE_PAGES, PAGE_SIZE, Result};

/// Pages of zeros kept for first touches.
const ZERO_PAGES: usize = 64;
/// Tries before a page that the kernel calls busy is left alone.
const BUSY_TRIES: u32 = 4;
/// Tries of a transfer that makes no progress before it is given up for now.
const AGAIN_TRIES: u32 = 200;

/// The batched MOVE of 6.18 and later can move a page without counting it and then complain that it
/// is there. Both sides say what happened.
fn has_moved(from: usize, to: usize) -> bool {
    !program::is_present(from) && program::is_present(to)
}

pub struct Uffd {
    fd: Userfaultfd,
    has_move: bool,
    staging: usize,
    /// Slots of one page, and behind them of huge pages, which begin at `huge` and end at the dock.
    slots: usize,
    huge: usize,
    huge_slots: usize,
    /// One page with the protection of JIT code, mapped when first needed.
    executable: usize,
    zeros: Mapping,
    /// The file for reading pages that the program made inaccessible; absent where the sandbox
    /// forbids it.
    proc_mem: Option<ProcMem>,
    /// The file that tells which pages are huge; for huge pages only, and absent where the sandbox
    /// or the kernel has none.
    pagemap: Option<Pagemap>,
    /// Tables of small pages that have all gone cannot be got rid of.
    keeps_tables: AtomicBool,
    /// The kernel drops scattered pages of a process by one call, if the process itself makes it.
    drops_each: bool,
    /// The kernel copies scattered pages by one call.
    copies_each: bool,
}

impl Uffd {
    /// Slots that `has_frames` looks at in one call.
    pub const FRAMES_MAX: usize = 256;

    fn features(has_move: bool) -> u64 {
        FEATURE_SIGBUS | FEATURE_PAGEFAULT_FLAG_WP | if has_move { FEATURE_MOVE } else { 0 }
    }

    /// `slots`: staging slots for single pages; `huge_slots`: for huge ones, if the kernel can move
    /// pages.
    pub fn open(has_move: bool, slots: usize, huge_slots: usize) -> Result<Uffd> {
        let fd = Userfaultfd::open(Self::features(has_move))?;
        let huge_slots = if has_move { huge_slots } else { 0 };
        let huge = if huge_slots > 0 { map_huge(huge_slots + 1)? } else { 0 };
        let staging = map_anonymous(slots * PAGE_SIZE, PROT_READ | PROT_WRITE)?;
        let executable = map_anonymous(PAGE_SIZE, PROT_READ | PROT_WRITE | PROT_EXEC).unwrap_or(0);
        let zeros = Mapping::new(ZERO_PAGES * PAGE_SIZE)?;
        // Read, so that COPY does not fault on them each time. Not written: the kernel's one zero
        // page is enough for all processes.
        zeros
            .as_slice()
            .iter()
            .step_by(PAGE_SIZE)
            .for_each(|byte| _ = core::hint::black_box(*byte));
        let proc_mem = ProcMem::open().ok();
        let pagemap = if huge_slots > 0 { Pagemap::open().ok() } else { None };
        let keeps_tables = AtomicBool::new(pagemap.is_none());
        // SAFETY: nothing is in staging yet.
        let drops_each =
            slots > 1 && unsafe { program::drop_each(&[staging, staging + PAGE_SIZE]) } == 2;
        let copies_each = program::copy_each(&[zeros.addr()], &mut [1; PAGE_SIZE]) == 1;
        let u = Uffd {
            fd,
            has_move,
            staging,
            slots,
            huge,
            huge_slots,
            executable,
            zeros,
            proc_mem,
            pagemap,
            keeps_tables,
            drops_each,
            copies_each,
        };
        u.attach_own()?;
        Ok(u)
    }

    fn attach_own(&self) -> Result<()> {
        if self.has_move {
            self.attach(self.staging, self.slots * PAGE_SIZE)?;
            if self.huge_slots > 0 {
                self.attach(self.huge, self.huge_slots * HUGE_BYTES)?;
            }
            if self.executable != 0 {
                self.attach(self.executable, PAGE_SIZE)?;
            }
        }
        Ok(())
    }

    pub fn renew(&self) -> Result<()> {
        self.fd.renew(Self::features(self.has_move))?;
        // Neither is needed: the process may have no /proc any more, or no right to these.
        if let Some(p) = &self.proc_mem {
            p.renew();
        }
        if let Some(p) = &self.pagemap {
            p.renew();
        }
        self.attach_own()
    }

    /// Takes everything off the mechanism again, our own memory included.
    pub fn close(&self) {
        self.fd.close();
    }

    pub fn has_move(&self) -> bool {
        self.has_move
    }

    pub fn fds(&self) -> [i32; 3] {
        let proc_mem = self.proc_mem.as_ref().map_or(-1, ProcMem::fd);
        [self.fd.fd(), proc_mem, self.pagemap.as_ref().map_or(-1, Pagemap::fd)]
    }

    pub fn attach(&self, addr: usize, len: usize) -> Result<()> {
        self.fd.register(addr, len, true)
    }

    pub fn detach(&self, addr: usize, len: usize) -> Result<()> {
        self.fd.unregister(addr, len)
    }

    fn slot_addr(&self, slot: usize) -> usize {
        if slot < self.slots {
            return self.staging + slot * PAGE_SIZE;
        }
        let behind = slot - self.slots;
        assert!(behind < self.huge_slots * HUGE_PAGES);
        self.huge + behind * PAGE_SIZE
    }

    /// Moves `pages` pages from the slots from `slot` on, as [`Uffd::fill_huge`] does.
    pub fn fill_by_move(&self, addr: usize, slot: usize, pages: usize) -> usize {
        self.move_in(addr, self.slot_addr(slot), pages)
    }

    fn move_in(&self, addr: usize, src: usize, pages: usize) -> usize {
        let (mut done, mut again, mut most) = (0, 0, pages);
        while done < pages && again < AGAIN_TRIES {
            let (to, at, run) =
                (addr + done * PAGE_SIZE, src + done * PAGE_SIZE, (pages - done).min(most));
            // SAFETY: charter; the source is staging of ours.
            let t = unsafe { self.fd.move_pages(to, at, run) };
            done += t.done_pages;
            match t.stop {
                Stop::Complete => {}
                Stop::Again => again += 1,
                Stop::Present if has_moved(src + done * PAGE_SIZE, addr + done * PAGE_SIZE) => {
                    done += 1
                }
                // A run may cross kernel mappings that the pager sees as one range.
                Stop::Refused(Errno::EINVAL) if run > 1 => most = run / 2,
                _ => break,
            }
        }
        done
    }

    pub fn slot(&self, slot: usize) -> &[u8; PAGE_SIZE] {
        // SAFETY: a slot in use is a mapped page of ours that nobody writes until it is released.
        unsafe { program::page_at(self.slot_addr(slot)) }
    }

    /// A slot with a frame and without a page, to be written by its claimer.
    pub fn slot_mut<T>(&self, slot: usize, f: impl FnOnce(&mut [u8; PAGE_SIZE]) -> T) -> T {
        // SAFETY: memory of ours; the slot is the caller's alone (its part of the contract) until
        // it is released.
        f(unsafe { program::page_at_mut(self.slot_addr(slot)) })
    }

    /// Whether all of `count` slots, [`Self::FRAMES_MAX`] at most, have frames.
    pub fn has_frames(&self, slot: usize, count: usize) -> bool {
        let mut present = [0u8; Self::FRAMES_MAX];
        let present = &mut present[..count];
        program::mincore(self.slot_addr(slot), present).is_ok()
            && present.iter().all(|p| p & 1 != 0)
    }

    pub fn take_out(&self, addr: usize, pages: usize, slot: usize) -> Taken {
        if self.has_move {
            self.move_out(addr, pages, self.slot_addr(slot))
        } else {
            self.copy_out(addr, pages, self.slot_addr(slot))
        }
    }

    fn move_out(&self, addr: usize, pages: usize, to: usize) -> Taken {
        let (mut done, mut busy, mut again, mut most) = (0, 0, 0, pages);
        while done < pages {
            let (src, dst, run) =
                (addr + done * PAGE_SIZE, to + done * PAGE_SIZE, (pages - done).min(most));
            // SAFETY: charter; the destination slots are empty.
            let t = unsafe { self.fd.move_pages(dst, src, run) };
            if t.done_pages > 0 {
                (busy, again) = (0, 0);
            }
            done += t.done_pages;
            let next = match t.stop {
                Stop::Complete => continue,
                Stop::Again => {
                    again += 1;
                    if again < AGAIN_TRIES {
                        continue;
                    }
                    Next::Stuck
                }
                Stop::Present if has_moved(addr + done * PAGE_SIZE, to + done * PAGE_SIZE) => {
                    done += 1;
                    continue;
                }
                Stop::Present => Next::Stuck,
                Stop::Busy => {
                    busy += 1;
                    if busy <= BUSY_TRIES && program::break_sharing(addr + done * PAGE_SIZE).is_ok()
                    {
                        continue;
                    }
                    Next::Stuck
                }
                Stop::Refused(Errno::ENOENT) => Next::Absent,
                // As in `move_in`.
                Stop::Refused(Errno::EINVAL) if run > 1 => {
                    most = run / 2;
                    continue;
                }
                Stop::Refused(_) => Next::Stuck,
            };
            return Taken { pages: done, next };
        }
        Taken { pages: done, next: Next::End }
    }

    fn copy_out(&self, addr: usize, pages: usize, to: usize) -> Taken {
        let len = pages * PAGE_SIZE;
        if self.fd.write_protect(addr, len, true).is_err() {
            return Taken { pages: 0, next: Next::Stuck };
        }
        let present = (0..pages).take_while(|i| program::is_present(addr + i * PAGE_SIZE)).count();
        let next = if present < pages { Next::Absent } else { Next::End };
        let out = present * PAGE_SIZE;
        if present > 0 {
            // SAFETY: the pages are present and write-protected: nobody changes them; staging is
            // ours.
            unsafe { program::raw_copy(to, addr, out) };
            // SAFETY: the contents are in staging now.
            if unsafe { program::drop_pages(addr, out) }.is_err() {
                self.allow_write(addr, len);
                return Taken { pages: 0, next: Next::Stuck };
            }
        }
        if present < pages {
            self.allow_write(addr + out, len - out);
        }
        Taken { pages: present, next }
    }

    pub fn fill(&self, addr: usize, src: usize, pages: usize) -> Filled {
        let mut done = 0;
        for _ in 0..AGAIN_TRIES {
            // SAFETY: charter.
            let t = unsafe {
                self.fd.copy(addr + done * PAGE_SIZE, src + done * PAGE_SIZE, pages - done)
            };
            done += t.done_pages;
            match t.stop {
                Stop::Complete => return Filled::All,
                Stop::Again => continue,
                Stop::Present => return Filled::Present(done),
                // COPY stays within one kernel mapping; a run of the pager's may cross several.
                Stop::Refused(Errno::ENOENT) if pages - done > 1 => {
                    return match self.fill(addr + done * PAGE_SIZE, src + done * PAGE_SIZE, 1) {
                        Filled::All => Filled::Failed(done + 1),
                        Filled::Present(_) => Filled::Present(done),
                        Filled::Again(_) => Filled::Again(done),
                        Filled::Failed(_) => Filled::Failed(done),
                    };
                }
                Stop::Busy | Stop::Refused(_) => return Filled::Failed(done),
            }
        }
        Filled::Again(done)
    }

    /// Whether many pages can be dropped with one flush.
    pub fn has_drop_each(&self) -> bool {
        self.drops_each
    }

    /// Whether many pages can be copied by one call.
    pub fn has_copy_each(&self) -> bool {
        self.copies_each
    }

    /// Copies single pages of the program, one after the other, to `into`: how many, up to the
    /// first that is not there. The pages may go away meanwhile.
    pub fn copy_each(&self, pages: &[usize], into: &mut [u8]) -> usize {
        program::copy_each(pages, into)
    }

    /// Drops single pages of the program that nobody can write: how many from the first on. Their
    /// contents are stored.
    pub fn drop_each(&self, pages: &[usize]) -> usize {
        // SAFETY: charter.
        unsafe { program::drop_each(pages) }
    }

    pub fn fill_zero(&self, addr: usize, pages: usize) -> Filled {
        let mut done = 0;
        while done < pages {
            let n = (pages - done).min(ZERO_PAGES);
            match self.fill(addr + done * PAGE_SIZE, self.zeros.addr(), n) {
                Filled::All => done += n,
                Filled::Present(k) => return Filled::Present(done + k),
                Filled::Again(k) => return Filled::Again(done + k),
                Filled::Failed(k) => return Filled::Failed(done + k),
            }
        }
        Filled::All
    }

    pub fn forbid_write(&self, addr: usize, len: usize) -> Result<()> {
        self.fd.write_protect(addr, len, true)
    }

    pub fn allow_write(&self, addr: usize, len: usize) {
        let _ = self.fd.write_protect(addr, len, false);
    }

    pub fn release_slots(&self, slot: usize, count: usize) {
        let (addr, len) = (self.slot_addr(slot), count * PAGE_SIZE);
        // SAFETY: released slots hold nothing that anybody needs.
        let _ = unsafe { program::drop_ours(addr, len) };
    }

    pub fn read_stable(&self, addr: usize, prot: u32, into: &mut [u8; PAGE_SIZE]) -> bool {
        if prot as usize & PROT_READ != 0 {
            if !program::is_present(addr) {
                return false;
            }
            // SAFETY: present, readable, and not writable by anybody while the lock is held (the
            // caller's check).
            unsafe { program::raw_copy(into.as_mut_ptr() as usize, addr, PAGE_SIZE) };
            return true;
        }
        match &self.proc_mem {
            // SAFETY: `into` is borrowed exclusively.
            Some(p) => unsafe { p.read(into.as_mut_ptr() as usize, addr, PAGE_SIZE) }.is_ok(),
            None => false,
        }
    }

    pub fn take_executable(&self, addr: usize, into: &mut [u8; PAGE_SIZE]) -> Taken {
        if self.executable == 0 || !self.has_move {
            return Taken { pages: 0, next: Next::Stuck };
        }
        let t = self.move_out(addr, 1, self.executable);
        if t.pages == 1 {
            // SAFETY: the page is ours now; nobody else has it mapped.
            unsafe { program::raw_copy(into.as_mut_ptr() as usize, self.executable, PAGE_SIZE) };
            // SAFETY: copied.
            let _ = unsafe { program::drop_ours(self.executable, PAGE_SIZE) };
        }
        t
    }
}
