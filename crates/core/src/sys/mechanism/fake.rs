//! A mechanism for tests: a kernel of their own, whose 'program' lives at made-up addresses and has
//! its bytes in plain memory.
//!
//! ```text
//!   program's address --> Page { mapped, prot, registered, present, protected, shared } --> bytes
//!   limbo's slot      --> present                                                       --> bytes
//! ```
//! It treats a page as Linux does by userfaultfd with MOVE, page by page, each under a lock of its
//! own, so that a thread may come in between any two pages (with `--cfg shuttle` each such lock is
//! a point of the scheduler). A call that would lose contents fails an assertion: a page that is
//! dropped must be one that nobody can write, a slot that is filled must be empty, and a slot that
//! is read must have a frame.
//!
//! Touches go through [`Fake::access`], which behaves as the processor does. [`Fake::set_trouble`]
//! makes calls fail, or stop halfway, as the kernel's do now and then.
#![allow(unsafe_code)]
// Safety charter: all addresses are of mappings that the fake owns; a page's bytes are used with
// its lock held, and a slot's by the thread that has the slot, as the pager promises.

mod hide;

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{Filled, Next, Taken};
use crate::sys::mem::Mapping;
use crate::sys::sync::Mutex;
use crate::sys::{Errno, HUGE_BYTES, HUGE_PAGES, PAGE_SIZE, Result, program};

const PROT_WRITE: u32 = 2;
/// The bytes of memory that was given back: nobody may see them.
const JUNK: u8 = 0xdd;
/// Bits of the processor's page-fault error code: the page was there; it was a write.
const CODE_PRESENT: u64 = 1;
const CODE_WRITE: u64 = 2;

/// The kernel's record of a page.
#[derive(Clone, Copy)]
struct Page {
    is_mapped: bool,
    prot: u32,
    is_registered: bool,
    is_present: bool,
    is_protected: bool,
    /// A child by fork has its frame as well.
    is_shared: bool,
    /// Behind PROT_NONE.
    is_hidden: bool,
}

const UNMAPPED: Page = Page {
    is_mapped: false,
    prot: 0,
    is_registered: false,
    is_present: false,
    is_protected: false,
    is_shared: false,
    is_hidden: false,
};

/// How an access of the processor, or of the kernel in a call, ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    Done,
    /// A fault, with the processor's error code, for the pager to serve.
    Fault(u64),
    /// No such memory, or not allowed: the program's own business.
    Forbidden,
}

/// The kernel's record of a huge page's worth of addresses.
#[derive(Default)]
struct Stretch {
    is_huge: AtomicBool,
    /// There is a table of small pages.
    has_table: AtomicBool,
}

pub struct Fake {
    base: usize,
    pages: Vec<Mutex<Page>>,
    bytes: Mapping,
    stretches: Vec<Stretch>,
    /// Slots of one page, those of huge pages, and the dock, one behind the other.
    staging: Mapping,
    filled: Vec<AtomicBool>,
    slots: usize,
    blocks: usize,
    /// Whether each block, and the dock, is one huge page.
    is_block_huge: Vec<AtomicBool>,
    keeps_tables: AtomicBool,
    /// The kernel is one without userfaultfd: see `hide.rs`.
    hides: bool,
    /// The last change of protection found no mapping.
    was_short: AtomicBool,
    /// The kernel has no mapping left: no change of protection of a few pages finds one.
    is_out_of_mappings: AtomicBool,
    /// One call in so many fails or stops halfway; 0: none.
    trouble: AtomicU64,
    random: AtomicU64,
}

impl Fake {
    /// An address space of `pages` pages from `base` on, nothing mapped.
    pub fn new(base: usize, pages: usize, slots: usize, blocks: usize) -> Fake {
        assert!(base.is_multiple_of(HUGE_BYTES));
        let all = slots + (blocks + 1) * HUGE_PAGES;
        let flags = |n: usize| (0..n).map(|_| AtomicBool::new(false)).collect();
        Fake {
            base,
            pages: (0..pages).map(|_| Mutex::new(UNMAPPED)).collect(),
            bytes: Mapping::new(pages * PAGE_SIZE).expect("memory"),
            stretches: (0..pages.div_ceil(HUGE_PAGES)).map(|_| Stretch::default()).collect(),
            staging: Mapping::new(all * PAGE_SIZE).expect("memory"),
            filled: flags(all),
            slots,
            blocks,
            is_block_huge: flags(blocks + 1),
            keeps_tables: AtomicBool::new(false),
            hides: false,
            was_short: AtomicBool::new(false),
            is_out_of_mappings: AtomicBool::new(false),
            trouble: AtomicU64::new(0),
            random: AtomicU64::new(0x9e37_79b9_7f4a_7c15),
        }
    }

    /// From now on one call in `one_in` fails, or stops halfway; 0: none.
    pub fn set_trouble(&self, one_in: u64) {
        self.trouble.store(one_in, Ordering::Relaxed);
    }

    /// Runs `f`, in which no call fails.
    pub fn calmly<T>(&self, f: impl FnOnce() -> T) -> T {
        let trouble = self.trouble.swap(0, Ordering::Relaxed);
        let result = f();
        self.trouble.store(trouble, Ordering::Relaxed);
        result
    }

    fn random(&self) -> u64 {
        let mut x = self.random.load(Ordering::Relaxed);
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.store(x, Ordering::Relaxed);
        x.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn has_trouble(&self) -> bool {
        let one_in = self.trouble.load(Ordering::Relaxed);
        one_in > 0 && self.random().is_multiple_of(one_in)
    }

    /// How many of `pages` pages a call gets to.
    fn reach(&self, pages: usize) -> usize {
        if self.has_trouble() { self.random() as usize % pages.max(1) } else { pages }
    }

    fn index(&self, addr: usize) -> usize {
        (addr - self.base) / PAGE_SIZE
    }

    /// The kernel's record of the page at `addr`, locked, and the place of its bytes.
    fn with<T>(&self, addr: usize, f: impl FnOnce(&mut Page, usize) -> T) -> T {
        let i = self.index(addr);
        f(&mut self.pages[i].lock(), self.bytes.addr() + i * PAGE_SIZE)
    }

    fn each(&self, addr: usize, len: usize, mut f: impl FnMut(&mut Page, usize)) {
        (addr..addr + len).step_by(PAGE_SIZE).for_each(|at| self.with(at, &mut f));
    }

    fn all_are(&self, addr: usize, len: usize, is: impl Fn(&Page) -> bool) -> Result<()> {
        let all = (addr..addr + len).step_by(PAGE_SIZE).all(|at| self.with(at, |p, _| is(p)));
        if all { Ok(()) } else { Err(Errno::ENOENT) }
    }

    fn stretch(&self, addr: usize) -> &Stretch {
        &self.stretches[(addr - self.base) / HUGE_BYTES]
    }

    /// A page around `addr` came or went by itself.
    fn split(&self, addr: usize) {
        let stretch = self.stretch(addr);
        stretch.is_huge.store(false, Ordering::Relaxed);
        stretch.has_table.store(true, Ordering::Relaxed);
    }

    fn slot_addr(&self, slot: usize) -> usize {
        self.staging.addr() + slot * PAGE_SIZE
    }

    fn dock(&self) -> usize {
        self.slots + self.blocks * HUGE_PAGES
    }

    fn is_filled(&self, slot: usize) -> bool {
        self.filled[slot].load(Ordering::Acquire)
    }

    fn set_filled(&self, slot: usize, filled: bool) {
        self.filled[slot].store(filled, Ordering::Release);
        if slot >= self.slots {
            self.is_block_huge[(slot - self.slots) / HUGE_PAGES].store(false, Ordering::Relaxed);
        }
    }

    fn junk(&self, at: usize) {
        // SAFETY: memory of the fake that was given back.
        unsafe { program::page_at_mut(at) }.fill(JUNK);
    }
}

/// Runs `child` in a process of its own that has a copy of this one's memory, and says whether it
/// came to a good end. `child` must not need other threads, which are not there.
pub fn in_child(child: impl FnOnce()) -> bool {
    // The C library's, so that its locks are whole in the child.
    unsafe extern "C" {
        fn fork() -> i32;
        fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
        fn _exit(status: i32) -> !;
    }
    // SAFETY: the child leaves by `_exit` whatever happens, and the parent waits for it.
    unsafe {
        match fork() {
            -1 => panic!("no child"),
            0 => {
                let end = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
                _exit(end.is_err() as i32)
            }
            pid => {
                let mut status = -1;
                waitpid(pid, &raw mut status, 0) == pid && status == 0
            }
        }
    }
}

/// Acts of the processor, and the kernel's calls.
impl Fake {
    /// An access to the page of `addr`, by the program or by the kernel for it: `f` has its bytes
    /// if it is allowed now.
    pub fn access(
        &self,
        addr: usize,
        is_write: bool,
        f: impl FnOnce(&mut [u8; PAGE_SIZE]),
    ) -> Access {
        let mut is_first = false;
        let access = self.with(addr & !(PAGE_SIZE - 1), |p, at| {
            let code = if is_write { CODE_WRITE } else { 0 };
            if !p.is_mapped || p.prot == 0 || is_write && p.prot & PROT_WRITE == 0 {
                return Access::Forbidden;
            }
            if !p.is_present && p.is_registered || p.is_hidden {
                return Access::Fault(code);
            }
            if is_write && p.is_protected {
                return Access::Fault(code | CODE_PRESENT);
            }
            // SAFETY: bytes of the fake's, used under the page's lock.
            let bytes = unsafe { program::page_at_mut(at) };
            if !p.is_present {
                bytes.fill(0);
                (p.is_present, is_first) = (true, true);
            }
            p.is_shared &= !is_write;
            f(bytes);
            Access::Done
        });
        if is_first {
            self.split(addr);
        }
        access
    }

    /// mmap, over any mapping that is there.
    pub fn map(&self, addr: usize, len: usize, prot: u32) {
        self.each(addr, len, |p, at| {
            self.junk(at);
            *p = Page { is_mapped: true, prot, ..UNMAPPED };
        });
        self.forget_tables(addr, len);
    }

    pub fn unmap(&self, addr: usize, len: usize) {
        self.each(addr, len, |p, at| {
            self.junk(at);
            *p = UNMAPPED;
        });
        self.forget_tables(addr, len);
    }

    fn forget_tables(&self, addr: usize, len: usize) {
        let mut at = addr;
        while at < addr + len {
            let next = (at / HUGE_BYTES + 1) * HUGE_BYTES;
            let stretch = self.stretch(at);
            let is_whole = at.is_multiple_of(HUGE_BYTES) && next <= addr + len;
            stretch.is_huge.store(false, Ordering::Relaxed);
            stretch.has_table.store(!is_whole, Ordering::Relaxed);
            at = next;
        }
    }

    pub fn set_prot(&self, addr: usize, len: usize, prot: u32) {
        self.each(addr, len, |p, _| p.prot = prot);
    }

    /// MADV_DONTNEED.
    pub fn discard(&self, addr: usize, len: usize) {
        self.each(addr, len, |p, at| {
            self.junk(at);
            *p = Page {
                is_present: false,
                is_protected: self.hides && p.is_protected,
                is_shared: false,
                ..*p
            };
        });
        self.forget_tables(addr, len);
    }

    /// mremap to other addresses. `keeps`: the old ones stay mapped, empty. The pages moved are
    /// under no mechanism.
    pub fn move_range(&self, old: usize, new: usize, len: usize, keeps: bool) {
        for i in (0..len).step_by(PAGE_SIZE) {
            let (was, from) = self.with(old + i, |p, from| {
                let was = *p;
                *p = if keeps {
                    Page { is_mapped: true, prot: was.prot, is_hidden: was.is_hidden, ..UNMAPPED }
                } else {
                    UNMAPPED
                };
                (was, from)
            });
            self.with(new + i, |p, to| {
                // SAFETY: pages of the fake's; nobody may use the old addresses meanwhile.
                unsafe { program::raw_copy(to, from, PAGE_SIZE) };
                *p = Page { is_registered: false, is_protected: false, ..was };
            });
            self.junk(from);
            self.split(new + i);
        }
        self.forget_tables(old, len);
    }

    /// fork, in the parent: pages that are present are shared.
    pub fn share_all(&self) {
        for page in &self.pages {
            let mut p = page.lock();
            p.is_shared = p.is_present;
        }
    }

    /// Whether a page is write-protected by the mechanism.
    pub fn is_protected(&self, addr: usize) -> bool {
        self.with(addr, |p, _| p.is_present && p.is_protected)
    }
}

/// The pager's calls: as of `Uffd`, whose methods of these names say what each is for.
impl Fake {
    pub fn attach(&self, addr: usize, len: usize) -> Result<()> {
        self.all_are(addr, len, |p| p.is_mapped)?;
        self.each(addr, len, |p, _| p.is_registered = true);
        Ok(())
    }

    pub fn detach(&self, addr: usize, len: usize) -> Result<()> {
        self.all_are(addr, len, |p| p.is_mapped)?;
        self.each(addr, len, |p, _| (p.is_registered, p.is_protected) = (false, false));
        Ok(())
    }

    pub fn present(&self, addr: usize, vec: &mut [u8]) -> Result<()> {
        self.all_are(addr, vec.len() * PAGE_SIZE, |p| p.is_mapped)?;
        for (i, v) in vec.iter_mut().enumerate() {
            *v = self.with(addr + i * PAGE_SIZE, |p, _| p.is_present as u8);
        }
        Ok(())
    }

    pub fn take_out(&self, addr: usize, pages: usize, slot: usize) -> Taken {
        let is_huge = pages == HUGE_PAGES && self.is_huge(addr);
        let reach = self.reach(pages);
        for i in 0..pages {
            let to = slot + i;
            let next = if i == reach {
                Some(Next::Stuck)
            } else {
                self.move_out(addr + i * PAGE_SIZE, to)
            };
            if let Some(next) = next {
                self.split(addr);
                return Taken { pages: i, next };
            }
        }
        if is_huge {
            self.stretch(addr).is_huge.store(false, Ordering::Relaxed);
            self.is_block_huge[(slot - self.slots) / HUGE_PAGES].store(true, Ordering::Relaxed);
        } else {
            self.split(addr);
        }
        Taken { pages, next: Next::End }
    }

    /// Moves one page into a slot, or says why not.
    fn move_out(&self, addr: usize, slot: usize) -> Option<Next> {
        self.with(addr, |p, at| {
            if !p.is_mapped || p.prot & PROT_WRITE == 0 || p.is_shared && p.is_protected {
                return Some(Next::Stuck);
            }
            if !p.is_present {
                return Some(Next::Absent);
            }
            assert!(!self.is_filled(slot), "slot {slot} is in use");
            // SAFETY: a page of the fake's, locked, and a slot of the pager's.
            unsafe { program::raw_copy(self.slot_addr(slot), at, PAGE_SIZE) };
            self.junk(at);
            self.set_filled(slot, true);
            (p.is_present, p.is_protected, p.is_shared) = (false, false, false);
            None
        })
    }

    /// Puts bytes where there is no page. `None`: done.
    fn put(&self, addr: usize, src: usize) -> Option<Filled> {
        self.with(addr, |p, at| {
            if !p.is_registered {
                return Some(Filled::Failed(0));
            }
            if p.is_present {
                return Some(Filled::Present(0));
            }
            // SAFETY: a page of the fake's, locked; the source is the caller's.
            unsafe { program::raw_copy(at, src, PAGE_SIZE) };
            (p.is_present, p.is_protected, p.is_shared) = (true, false, false);
            None
        })
    }

    fn fill_from(&self, addr: usize, pages: usize, src: impl Fn(usize) -> usize) -> Filled {
        // One page comes or the machine has no memory: the pager tries each for as long.
        let reach = if pages > 1 { self.reach(pages) } else { pages };
        for i in 0..pages {
            if i == reach {
                return Filled::Again(i);
            }
            match self.put(addr + i * PAGE_SIZE, src(i)) {
                None => self.split(addr + i * PAGE_SIZE),
                Some(Filled::Present(_)) => return Filled::Present(i),
                Some(_) => return Filled::Failed(i),
            }
        }
        Filled::All
    }

    pub fn fill_from_slots(&self, addr: usize, slot: usize, pages: usize) -> Filled {
        (slot..slot + pages)
            .for_each(|slot| assert!(self.is_filled(slot), "slot {slot} has no frame"));
        self.fill_from(addr, pages, |i| self.slot_addr(slot + i))
    }

    pub fn fill(&self, addr: usize, bytes: &[u8]) -> Filled {
        let src = bytes.as_ptr() as usize;
        self.fill_from(addr, bytes.len() / PAGE_SIZE, |i| src + i * PAGE_SIZE)
    }

    pub fn fill_zero(&self, addr: usize, pages: usize) -> Filled {
        static ZEROS: [u8; PAGE_SIZE] = [0; PAGE_SIZE];
        self.fill_from(addr, pages, |_| ZEROS.as_ptr() as usize)
    }

    pub fn fill_by_move(&self, addr: usize, slot: usize, pages: usize) -> usize {
        let reach = self.reach(pages);
        self.move_in(addr, slot, reach)
    }

    fn move_in(&self, addr: usize, slot: usize, pages: usize) -> usize {
        for i in 0..pages {
            let slot = slot + i;
            assert!(self.is_filled(slot), "slot {slot} has no frame");
            if self.put(addr + i * PAGE_SIZE, self.slot_addr(slot)).is_some() {
                return i;
            }
            self.junk(self.slot_addr(slot));
            self.set_filled(slot, false);
            self.split(addr + i * PAGE_SIZE);
        }
        pages
    }

    pub fn forbid_write(&self, addr: usize, len: usize) -> Result<()> {
        if self.has_trouble() {
            return Err(Errno::ENOMEM);
        }
        self.all_are(addr, len, |p| p.is_registered)?;
        self.each(addr, len, |p, _| p.is_protected |= p.is_present);
        Ok(())
    }

    pub fn allow_write(&self, addr: usize, len: usize) {
        if self.all_are(addr, len, |p| p.is_registered).is_ok() {
            self.each(addr, len, |p, _| p.is_protected = false);
        }
    }

    pub fn release_slots(&self, slot: usize, count: usize) {
        for slot in slot..slot + count {
            self.junk(self.slot_addr(slot));
            self.set_filled(slot, false);
        }
    }

    /// Drops a page that nobody can write.
    fn drop_page(&self, addr: usize) -> bool {
        let is_mapped = self.with(addr, |p, at| {
            let can_be_written = p.is_mapped
                && p.is_present
                && !p.is_protected
                && !p.is_hidden
                && p.prot & PROT_WRITE != 0;
            assert!(!can_be_written, "page {addr:#x} is dropped while it can be written");
            if p.is_mapped {
                self.junk(at);
                let stays_protected = self.hides && p.is_protected;
                (p.is_present, p.is_protected, p.is_shared) = (false, stays_protected, false);
            }
            p.is_mapped
        });
        self.split(addr);
        is_mapped
    }

    pub fn drop_in_place(&self, addr: usize, pages: usize) -> Result<()> {
        let all = !self.has_trouble() && (0..pages).all(|i| self.drop_page(addr + i * PAGE_SIZE));
        if all { Ok(()) } else { Err(Errno::EINVAL) }
    }

    pub fn has_drop_each(&self) -> bool {
        true
    }

    pub fn drop_each(&self, pages: &[usize]) -> usize {
        let reach = self.reach(pages.len());
        pages[..reach].iter().take_while(|page| self.drop_page(**page)).count()
    }

    pub fn has_copy_each(&self) -> bool {
        true
    }

    pub fn copy_each(&self, pages: &[usize], into: &mut [u8]) -> usize {
        let reach = self.reach(pages.len());
        let (into, _) = into.as_chunks_mut::<PAGE_SIZE>();
        let copies = |(page, into): (&usize, &mut [u8; PAGE_SIZE])| {
            self.access(*page, false, |bytes| into.copy_from_slice(bytes)) == Access::Done
        };
        pages[..reach].iter().zip(into).map(copies).take_while(|done| *done).count()
    }

    pub fn read_stable(&self, addr: usize, into: &mut [u8; PAGE_SIZE]) -> bool {
        self.with(addr, |p, at| {
            assert!(p.is_protected || p.prot & PROT_WRITE == 0, "page {addr:#x} can be written");
            if p.is_present {
                // SAFETY: a page of the fake's, locked.
                into.copy_from_slice(unsafe { program::page_at(at) });
            }
            p.is_present
        })
    }

    pub fn take_executable(&self, addr: usize, into: &mut [u8; PAGE_SIZE]) -> Taken {
        self.split(addr);
        self.with(addr, |p, at| {
            if p.is_present && !p.is_shared {
                // SAFETY: a page of the fake's, locked.
                into.copy_from_slice(unsafe { program::page_at(at) });
                self.junk(at);
                (p.is_present, p.is_protected) = (false, false);
                return Taken { pages: 1, next: Next::End };
            }
            Taken { pages: 0, next: if p.is_present { Next::Stuck } else { Next::Absent } }
        })
    }

    /// The child has a mechanism of its own, under which there is nothing yet.
    pub fn renew(&self) -> Result<()> {
        if self.hides {
            return Ok(());
        }
        for page in &self.pages {
            let mut p = page.lock();
            (p.is_registered, p.is_protected) = (false, false);
        }
        Ok(())
    }

    pub fn slot(&self, slot: usize) -> &[u8; PAGE_SIZE] {
        assert!(self.is_filled(slot), "slot {slot} has no frame");
        // SAFETY: the pager's promise: nobody writes a slot in use.
        unsafe { program::page_at(self.slot_addr(slot)) }
    }

    pub fn slot_mut<T>(&self, slot: usize, f: impl FnOnce(&mut [u8; PAGE_SIZE]) -> T) -> T {
        assert!(self.is_filled(slot), "slot {slot} has no frame");
        // SAFETY: the pager's promise: the slot is the caller's.
        f(unsafe { program::page_at_mut(self.slot_addr(slot)) })
    }

    pub fn has_frames(&self, slot: usize, count: usize) -> bool {
        (slot..slot + count).all(|slot| self.is_filled(slot))
    }
}

/// Huge pages.
impl Fake {
    pub fn has_huge(&self) -> bool {
        self.blocks > 0
    }

    pub fn with_page_to_fill<T>(
        &self,
        kept: Option<usize>,
        i: usize,
        f: impl FnOnce(&mut [u8; PAGE_SIZE]) -> T,
    ) -> T {
        let Some(slot) = kept else {
            if !self.is_filled(self.dock()) {
                for slot in self.dock()..self.dock() + HUGE_PAGES {
                    // SAFETY: the dock is the caller's.
                    unsafe { program::page_at_mut(self.slot_addr(slot)) }.fill(0);
                    self.set_filled(slot, true);
                }
                self.is_block_huge[self.blocks].store(!self.has_trouble(), Ordering::Relaxed);
            }
            return self.slot_mut(self.dock() + i, f);
        };
        self.slot_mut(slot + i, f)
    }

    pub fn fill_huge(&self, addr: usize, from: Option<usize>) -> usize {
        let is_huge =
            self.is_source_huge(from) && !self.stretch(addr).has_table.load(Ordering::Relaxed);
        let pages = self.move_in(addr, from.unwrap_or(self.dock()), self.reach(HUGE_PAGES));
        if pages == HUGE_PAGES && is_huge {
            self.stretch(addr).is_huge.store(true, Ordering::Relaxed);
            self.stretch(addr).has_table.store(false, Ordering::Relaxed);
        }
        pages
    }

    pub fn keeps_tables(&self) -> bool {
        self.keeps_tables.load(Ordering::Relaxed)
    }

    pub fn clear_table(&self, addr: usize) -> bool {
        let is_empty = self.all_are(addr, HUGE_BYTES, |p| p.is_mapped && !p.is_present).is_ok();
        if is_empty {
            self.stretch(addr).has_table.store(false, Ordering::Relaxed);
        }
        is_empty && !self.keeps_tables()
    }

    pub fn is_huge(&self, addr: usize) -> bool {
        self.stretch(addr).is_huge.load(Ordering::Relaxed)
    }

    pub fn is_known_huge(&self, addr: usize) -> bool {
        self.is_huge(addr)
    }

    pub fn is_source_huge(&self, from: Option<usize>) -> bool {
        let block = from.map_or(self.blocks, |slot| (slot - self.slots) / HUGE_PAGES);
        self.is_block_huge[block].load(Ordering::Relaxed)
    }

    pub fn note_table_kept(&self) {
        self.keeps_tables.store(true, Ordering::Relaxed);
    }

    pub fn clear_dock(&self) {
        self.release_slots(self.dock(), HUGE_PAGES);
    }
}
