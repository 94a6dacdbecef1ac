//! The pager on a kernel of the tests' own (`sys/mechanism/fake.rs`): a small program whose every
//! touch, call and fork the tests make, on one thread or on many.
//!
//! ```text
//!   events.rs: random events beside a naive model     tests.rs: threads     tests/shuttle_pager.rs: schedules
//!        \___________________________ World, Thread ______________________________/
//!                 touches and calls | faults, notes (as the preload library makes them)
//!                         Fake <----+----> Pager
//! ```

pub mod events;
pub mod steps;
#[cfg(test)]
mod tests;

use core::sync::atomic::{AtomicU32, Ordering};

use super::hold::ThreadHolds;
use super::{Active, Fault, FaultStream, Pager};
use crate::cache::{CacheConfig, SwapCache};
use crate::control::{HugePages, Mechanism as Kind};
use crate::region::{PageState, RangeFlags, page_floor};
use crate::store::testing::MemoryStore;
use crate::sys::mechanism::{Access, Fake, Mechanism};
use crate::sys::{HUGE_BYTES, PAGE_SIZE};

pub const READ_WRITE: u32 = 3;
/// The program's process.
const PID: u32 = 1;
/// The first thread id of a world. No thread of the machine has this id or a higher one.
const FIRST_TID: u32 = 1 << 24;

/// Faults in a row, of an access that is allowed, that the pager may take for the program's own:
/// other threads do not change the mapping at just the right moment more often.
const STRAYS_MAX: u32 = 8;

/// The measures of a world.
#[derive(Clone, Copy)]
pub struct Spec {
    /// Pages of the program's addresses; `limit_pages`: pages that the process may use.
    pub pages: usize,
    pub limit_pages: i64,
    pub slots: usize,
    /// Blocks of limbo for huge pages; 0: there are none.
    pub blocks: usize,
    pub has_store: bool,
    /// Paging is by protection faults: pages that are out are hidden behind PROT_NONE.
    pub hides: bool,
}

impl Spec {
    /// A small program that has room for all it does, with userfaultfd, without a store.
    pub const fn roomy(pages: usize) -> Spec {
        Spec { pages, limit_pages: 4096, slots: 64, blocks: 0, has_store: false, hides: false }
    }
}

/// A process with its pager and a kernel.
pub struct World {
    pub pager: Pager,
    pub store: Option<MemoryStore>,
    pub spec: Spec,
    tids: AtomicU32,
    /// Pages of calls' buffers that the kernel could not use at first, with protection faults.
    pub calls_again: AtomicU32,
}

/// How an access of the program ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Touch {
    Done,
    /// The program's own fault: the access is not allowed.
    Forbidden,
    /// The page cannot be had.
    Lost,
}

impl World {
    pub const BASE: usize = 0x4000_0000;

    pub fn new(spec: Spec) -> World {
        let fake = match spec.hides {
            true => Fake::hiding(Self::BASE, spec.pages, spec.slots),
            false => Fake::new(Self::BASE, spec.pages, spec.slots, spec.blocks),
        };
        let store = spec.has_store.then(MemoryStore::new);
        let config = CacheConfig { store: store.map(From::from), ..CacheConfig::default() };
        let active = Active {
            mechanism: Mechanism::Fake(fake),
            cache: SwapCache::new(config).expect("a cache"),
            kind: if spec.hides { Kind::Protect } else { Kind::Userfaultfd },
            slots: spec.slots,
            blocks: spec.blocks,
            huge_pages: if spec.blocks > 0 { HugePages::Always } else { HugePages::Never },
            pool_percent: AtomicU32::new(0),
            has_store: spec.has_store,
        };
        let pager = Pager::new();
        let tree = Box::leak(crate::control::zeroed_tree());
        tree.limit_pages.store(spec.limit_pages, Ordering::Relaxed);
        pager.connect(tree, tree.claim(PID).expect("a slot"));
        {
            let mut s = pager.lock();
            pager.set_active(&mut s, Box::leak(Box::new(active))).expect("memory");
            pager.activate_ranges(&mut s);
        }
        let calls_again = AtomicU32::new(0);
        World { pager, store, spec, tids: AtomicU32::new(FIRST_TID), calls_again }
    }

    pub fn fake(&self) -> &Fake {
        match &self.active().mechanism {
            Mechanism::Fake(fake) => fake,
            _ => unreachable!("its mechanism is the fake one"),
        }
    }

    /// The mechanism and the cache of the pager, also after paging ended.
    pub fn active(&self) -> &Active {
        self.pager.active().or(self.pager.ended()).expect("active")
    }

    /// The address of a page.
    pub fn at(&self, page: usize) -> usize {
        Self::BASE + page * PAGE_SIZE
    }

    /// A thread of the program.
    pub fn thread(&self) -> Thread<'_> {
        let tid = self.tids.fetch_add(1, Ordering::Relaxed);
        let holds = self.pager.holds.register(tid).expect("memory");
        Thread { world: self, stream: Box::new(FaultStream::new()), holds, tid }
    }

    /// A new thread, which has written pages one after the other.
    pub fn write(
        &self,
        pages: impl IntoIterator<Item = usize>,
        write: impl Fn(usize, &mut [u8; PAGE_SIZE]),
    ) -> Thread<'_> {
        let mut thread = self.thread();
        for page in pages {
            assert_eq!(thread.access(self.at(page), true, |b| write(page, b)), Touch::Done);
        }
        thread
    }

    /// A guest: a thread of a process that shares the program's memory, and may be killed at any
    /// moment.
    pub fn guest(&self) -> Thread<'_> {
        let mut thread = self.thread();
        thread.stream.is_of_guest = true;
        thread
    }

    /// Address and length of `pages` pages from `page` on.
    fn stretch(&self, page: usize, pages: usize) -> (usize, usize) {
        assert!(page + pages <= self.spec.pages);
        (self.at(page), pages * PAGE_SIZE)
    }

    // ---- the program's calls, as the preload library makes them

    pub fn map(&self, page: usize, pages: usize, prot: u32) {
        let (start, len) = self.stretch(page, pages);
        let mut s = self.pager.lock_range(start, start + len);
        self.fake().map(start, len, prot);
        self.pager.note_mapped(&mut s, start, start + len, prot, RangeFlags::NONE);
    }

    pub fn unmap(&self, page: usize, pages: usize) {
        let (start, len) = self.stretch(page, pages);
        let mut s = self.pager.lock_range(start, start + len);
        self.fake().unmap(start, len);
        self.pager.note_unmapped(&mut s, start, start + len);
    }

    pub fn protect(&self, page: usize, pages: usize, prot: u32) {
        let (start, len) = self.stretch(page, pages);
        let _s = self.pager.lock_range(start, start + len);
        self.fake().set_prot(start, len, prot);
        if self.spec.hides {
            let shown = self.fake().calmly(|| self.pager.protect_shown(start, start + len, prot));
            shown.expect("it is mapped");
        }
        self.pager.note_protected(start, start + len, prot);
    }

    /// MADV_DONTNEED.
    pub fn discard(&self, page: usize, pages: usize) {
        let (start, len) = self.stretch(page, pages);
        let mut s = self.pager.lock_range(start, start + len);
        self.fake().discard(start, len);
        self.pager.note_discarded(&mut s, start, start + len);
    }

    /// mremap of memory of one range to other addresses, over the memory there. `keeps`: the old
    /// addresses stay mapped, empty.
    pub fn remap(&self, from: usize, to: usize, pages: usize, keeps: bool) {
        let ((old, len), (new, _)) = (self.stretch(from, pages), self.stretch(to, pages));
        let mut s = self.pager.lock();
        self.pager.prepare_move(old, old + len).expect("it is mapped");
        self.fake().map(new, len, READ_WRITE);
        self.fake().move_range(old, new, len, keeps);
        self.pager.note_unmapped(&mut s, new, new + len);
        self.pager.note_moved(&mut s, old, len, new, len, keeps);
    }

    /// mremap in place, to another length.
    pub fn resize(&self, page: usize, pages: usize, new_pages: usize, prot: u32) {
        let ((old, len), (_, new_len)) = (self.stretch(page, pages), self.stretch(page, new_pages));
        let mut s = self.pager.lock();
        if new_len < len {
            self.fake().unmap(old + new_len, len - new_len);
        } else {
            self.fake().map(old + len, new_len - len, prot);
        }
        self.pager.note_moved(&mut s, old, len, old, new_len, false);
    }

    /// mlock, when `on`, of memory that may be read.
    pub fn lock_in_memory(&self, thread: &Thread<'_>, page: usize, pages: usize, on: bool) {
        let (start, len) = self.stretch(page, pages);
        let mut s = self.pager.lock_range(start, start + len);
        let mark = thread.holds.mark();
        let mut is_there = true;
        if on {
            thread.holds.push(start, start + len, 1);
            (s, is_there) = self.pager.make_resident(s, start, start + len);
        }
        thread.holds.pop_to(mark);
        if is_there {
            self.pager.note_flag(start, start + len, RangeFlags::LOCKED, on);
        }
        drop(s);
    }

    /// fork: the child, whose only thread is `thread`, runs `child` when it has its memory. False:
    /// the child came to a bad end.
    pub fn fork(&self, thread: &mut Thread<'_>, child: impl FnOnce(&mut Thread<'_>)) -> bool {
        let tree = self.pager.tree();
        let pid = PID + 1;
        let slot = tree.claim(pid).expect("a slot");
        let mut s = self.pager.lock();
        let mut guard = self.pager.prepare_fork(&mut s, Some(slot));
        self.fake().share_all();
        let is_good = crate::sys::mechanism::in_child(|| {
            let (holds, tid) = (thread.holds, thread.tid);
            self.pager
                .after_fork_child(&mut s, guard.take(), holds, tid, slot, true)
                .expect("memory");
            // The child's lock is free from here on, as its copy of the guard is.
            s.unlocked(|| {
                child(thread);
                self.check();
            });
        });
        self.pager.after_fork_parent(&mut s, guard, true);
        drop(s);
        tree.retire(slot, slot.id());
        is_good
    }

    /// Ends paging, while the program goes on.
    pub fn end_paging(&self) {
        let (_s, is_all_in) = self.pager.end_paging(self.pager.lock());
        assert!(is_all_in, "the kernel lets all ranges go");
        assert!(self.pager.active().is_none());
    }

    /// Ends paging of a stretch.
    pub fn end_paging_of(&self, page: usize, pages: usize) -> bool {
        let (start, len) = self.stretch(page, pages);
        let is_let_go = self.pager.end_paging_of(start, start + len);
        assert_ne!(is_let_go, self.pager.ranges.overlaps(start, start + len));
        is_let_go
    }

    /// Asserts the invariants that hold while no thread is in the pager, and that the kernel's
    /// pages are as the words say.
    pub fn check(&self) {
        self.check_but(0..0);
    }

    /// [`Self::check`] where the kernel may have put pages at `racy` ones, since a thread touched
    /// memory that another was about to map: such a page holds the right bytes and is nobody's to
    /// take.
    pub fn check_but(&self, racy: core::ops::Range<usize>) {
        let s = self.pager.lock();
        self.pager.check(&s);
        self.active().cache.check();
        let fake = self.fake();
        for page in (0..self.spec.pages).map(|page| self.at(page)) {
            let Some(range) = self.pager.ranges.find(page) else { continue };
            let is_shown = fake.is_shown(page);
            let word = self.pager.table.get(page);
            let state = word.map_or(PageState::None, |e| e.state());
            let is_racy =
                racy.contains(&((page - Self::BASE) / PAGE_SIZE)) && state == PageState::None;
            // A page that the kernel had no mapping to show is shown when it is touched.
            let is_late = self.spec.hides && !is_shown && state == PageState::Resident;
            assert!(
                (state == PageState::Resident) == is_shown || is_racy || is_late,
                "{page:#x} is {state:?}, {range:?}"
            );
            let Some(e) = word else { continue };
            if (e.is_writable() || e.is_guarded()) && !is_late {
                assert_eq!(e.is_guarded(), fake.is_protected(page), "{page:#x}: {range:?}");
            }
        }
    }

    /// [`Self::check`] where nothing is mapped any more.
    pub fn check_empty(&self) {
        self.check();
        self.pager.publish_gauges();
        assert_eq!(
            (self.pager.resident_pages(), self.pager.stored_pages()),
            (0, 0),
            "nothing is mapped"
        );
        let c = self.active().cache.counters();
        assert_eq!(c.stored_pages, 0, "nothing is stored: {c:?}");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        drop(crate::sys::take_back(&self.pager.active));
        drop(crate::sys::take_back(&self.pager.ended));
        drop(crate::sys::take_back(&self.pager.tree));
    }
}

/// A thread of the program.
pub struct Thread<'w> {
    pub world: &'w World,
    stream: Box<FaultStream>,
    pub holds: &'w ThreadHolds,
    tid: u32,
}

impl Thread<'_> {
    /// Makes an access to the page of `addr`, with as many faults as it takes.
    pub fn access(
        &mut self,
        addr: usize,
        is_write: bool,
        mut f: impl FnMut(&mut [u8; PAGE_SIZE]),
    ) -> Touch {
        let mut strays = 0;
        loop {
            match self.world.fake().access(addr, is_write, &mut f) {
                Access::Done => return Touch::Done,
                Access::Forbidden => return Touch::Forbidden,
                Access::Fault(code) => match self.world.pager.fault(addr, code, &mut self.stream) {
                    Fault::Served => strays = 0,
                    Fault::Lost => return Touch::Lost,
                    // Another thread may have unmapped the page, or changed its protection, in
                    // between.
                    Fault::NotOurs => {
                        strays += 1;
                        let (pager, page) = (&self.world.pager, page_floor(addr));
                        assert!(
                            strays < STRAYS_MAX,
                            "a fault at {addr:#x} ({code}) is nobody's: {:?} of {:?}",
                            pager.table.get(page).map(|e| e.state()),
                            pager.ranges.find(page),
                        );
                    }
                },
            }
        }
    }

    /// Makes a system call that reads or writes each page of a buffer. False: it was not made,
    /// since a page cannot be had.
    pub fn call(
        &mut self,
        addr: usize,
        pages: usize,
        is_write: bool,
        mut f: impl FnMut(usize, &mut [u8; PAGE_SIZE]),
    ) -> bool {
        let pager = &self.world.pager;
        let (start, end) = (page_floor(addr), page_floor(addr) + pages * PAGE_SIZE);
        let mark = self.holds.mark();
        self.holds.push(start, end, 1);
        let is_writable = |page: usize| pager.table.get(page).is_some_and(|e| e.is_writable());
        let mut is_there = (start..end).step_by(PAGE_SIZE).all(is_writable);
        if !is_there {
            is_there = pager.make_resident(pager.enter(), start, end).1;
        }
        if is_there {
            for (i, page) in (start..end).step_by(PAGE_SIZE).enumerate() {
                let access = self.world.fake().access(page, is_write, |bytes| f(i, bytes));
                if self.world.spec.hides && access != Access::Done {
                    // The kernel had no mapping left to show the page: a call is made again after
                    // EFAULT.
                    self.world.calls_again.fetch_add(1, Ordering::Relaxed);
                    assert_eq!(self.access(page, is_write, |bytes| f(i, bytes)), Touch::Done);
                    continue;
                }
                assert_eq!(access, Access::Done, "a call's buffer at {page:#x}");
            }
        }
        self.holds.pop_to(mark);
        is_there
    }
}

/// Pages of a huge page.
pub const STRETCH_PAGES: usize = HUGE_BYTES / PAGE_SIZE;
