//! Guarded pages: pages that come back write-protected, because many go out again unchanged. They
//! leave without a look at their contents.
//!
//! ```text
//!   read fault:  STORED --copy, protected--> RESIDENT, guarded, copy kept --first write (a fault)--> RESIDENT, copy freed
//!                  ^                             |
//!                  +------- many at a time ------+ the sweep: words first, then the holds, then one call drops the frames
//! ```
//!
//! This saves not the fingerprint but the flush. A page that may be written has to be taken from
//! the program before it is looked at. Where pages are touched at random each lies alone and takes
//! a MOVE, which is a flush, and an interrupt of every processor that runs the program: 12 to 20 us
//! on a virtual machine. A page that cannot have been written need not be looked at, and the kernel
//! drops any number of such pages with one flush. The price is a fault for each page that is read
//! first and written afterwards; the score of kept copies says whether that is worth it.
//!
//! Limbo is for pages that have no copy. A guarded page gets its second chance by the clock
//! (`policy/ghost.rs`).
//!
//! Architecture invariant: a word says guarded only while the kernel has the page write-protected.
//! A step that lifts the protection (a write, a system call's buffer, fork, mremap) unguards the
//! word under the same lock, after the kernel; and the word of a page that comes protected never
//! says writable, not for an instant: holders believe words without the lock.

use core::sync::atomic::{Ordering, fence};

use super::book::swap_entry;
use super::{Active, Locked, Pager, is_data};
use crate::cache::Back;
use crate::control::Counter;
use crate::policy::SWEEP_MOST_PAGES;
use crate::region::{PageState, Range};
use crate::sys::PAGE_SIZE;
use crate::sys::mechanism::Next;

/// Cold pages that a sweep has found and not yet taken out.
pub(super) struct Leaving {
    pages: [usize; SWEEP_MOST_PAGES],
    count: usize,
}

impl Leaving {
    pub const fn new() -> Leaving {
        Leaving { pages: [0; SWEEP_MOST_PAGES], count: 0 }
    }

    pub fn push(&mut self, page: usize) {
        self.pages[self.count] = page;
        self.count += 1;
    }

    pub fn count(&self) -> usize {
        self.count
    }

    pub fn is_full(&self) -> bool {
        self.count == SWEEP_MOST_PAGES
    }

    pub fn first(&self) -> Option<usize> {
        self.pages[..self.count].first().copied()
    }

    pub fn as_slice(&self) -> &[usize] {
        &self.pages[..self.count]
    }

    /// Keeps those pages that are `wanted`, in their order.
    pub fn retain(&mut self, mut wanted: impl FnMut(usize) -> bool) {
        let mut count = 0;
        for i in 0..self.count {
            if wanted(self.pages[i]) {
                self.pages[count] = self.pages[i];
                count += 1;
            }
        }
        self.count = count;
    }

    pub fn pages(&mut self) -> &mut [usize] {
        &mut self.pages[..self.count]
    }
}

impl Pager {
    /// Whether a stored page of `range` that is read now is worth guarding.
    pub(super) fn may_be_guarded(&self, active: &Active, range: &Range) -> bool {
        // Pages that are watched leave by way of limbo.
        !self.is_watching()
            && active.mechanism.as_mover().is_some_and(|u| u.has_drop_each())
            && is_data(range.prot)
            && range.is_swept()
            && active.cache.are_pages_read_only()
            && !self.may_be_pinned()
    }

    /// Makes a guarded page writable. `is_written`: it is about to be written, so its copy is worth
    /// nothing. Returns whether it was as its copy until now.
    pub(super) fn unguard(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        range: &Range,
        page: usize,
        is_written: bool,
    ) -> bool {
        self.claim(s, page, 1);
        s.unlocked(|| active.mechanism.allow_write(page, PAGE_SIZE, range.prot));
        let (was_as_its_copy, copy) = self.table.word(page, |_, e| {
            let was_as_its_copy = e.is_as_its_copy();
            e.unguard();
            (was_as_its_copy, if is_written { e.take_copy() } else { None })
        });
        self.end_claim(s, page, 1);
        self.disturbed.fetch_add(!was_as_its_copy as u32, Ordering::Relaxed);
        if let Some(raw) = copy {
            self.count_freed();
            active.cache.give_up_copy(swap_entry(raw));
        }
        was_as_its_copy
    }

    /// Drops the guarded pages that a sweep has found and that are unchanged since: words first,
    /// then a look at the holds (see hold.rs), then the frames. Returns how many went.
    pub(super) fn drop_leaving(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        leaving: &mut Leaving,
    ) -> usize {
        let mut n = 0;
        leaving.retain(|page| {
            let goes = self.may_be_dropped(s, page);
            if goes {
                self.table.word(page, |_, e| e.drop_to_copy(self.stamp(n)));
                self.claim(s, page, 1);
                n += 1;
            }
            goes
        });
        let pages = leaving.pages();
        if pages.is_empty() {
            return 0;
        }
        fence(Ordering::SeqCst);
        let mut count = 0;
        for i in 0..pages.len() {
            let page = pages[i];
            if self.may_be_in_use(page) {
                self.table.word(page, |_, e| e.keep_guarded());
            } else if self.goes_back(active, page) {
                pages.swap(count, i);
                count += 1;
            }
        }
        // The pages that go are now the first `count`, the others follow.
        let (gone, _) = self.let_go(s, active, &mut pages[..count]);
        for page in &*pages {
            self.end_claim(s, *page, 1);
        }
        for c in [Counter::CleanEvictions, Counter::GuardedEvictions] {
            self.add(c, gone as u64);
        }
        gone
    }

    /// Whether a guarded page that a sweep has found is unchanged since, and may go.
    fn may_be_dropped(&self, s: &Locked<'_>, page: usize) -> bool {
        self.is_free(s, page)
            && self.table.get(page).is_some_and(|e| e.is_as_its_copy() && e.copy().is_some())
            && self.ranges.find(page).is_some_and(|r| r.is_swept())
    }

    /// Moves the guarded pages that a sweep has found, made writable first. A device may have
    /// pinned such a page to read it, and would go on reading a frame that was dropped, whatever
    /// the program writes afterwards. MOVE refuses a pinned page. Returns how many went.
    pub(super) fn move_leaving(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        leaving: &Leaving,
        from_trail: bool,
    ) -> usize {
        let mut gone = 0;
        for &page in leaving.as_slice() {
            let Some(range) = self.ranges.find(page).filter(|_| self.may_be_dropped(s, page))
            else {
                continue;
            };
            self.unguard(s, active, &range, page, false);
            let (taken, _) = self.take_run(s, active, page, 1, from_trail);
            if taken.pages == 0 && taken.next == Next::End {
                // Limbo is full: the rest is for the next time.
                break;
            }
            gone += taken.pages;
        }
        gone
    }

    /// Makes a page's copy the page itself. A page without a copy stays in the program, and can be
    /// written.
    fn goes_back(&self, active: &Active, page: usize) -> bool {
        let PageState::Stored(raw) = self.state_of(page) else {
            unreachable!("it has just been dropped")
        };
        let is_back = active.cache.take_back_unwritten(swap_entry(raw)) == Back::Same;
        if !is_back {
            let range = self.ranges.find(page).expect("a page that was to go has a range");
            self.stay(active, &range, page);
        }
        is_back
    }

    /// Drops the frames of `pages`, which the caller has claimed and whose words say already that
    /// they have gone. Returns how many went, and how many of those are stored. A page that the
    /// kernel will not drop stays in the program. Afterwards the pages that went come first in
    /// `pages`.
    pub(super) fn let_go(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        pages: &mut [usize],
    ) -> (usize, usize) {
        let mechanism = active.mechanism.as_mover().expect("guarded");
        let at_once = s.unlocked(|| mechanism.drop_each(pages));
        let mut gone = at_once;
        for i in at_once..pages.len() {
            let page = pages[i];
            if active.mechanism.drop_in_place(page, 1).is_ok() {
                pages.swap(gone, i);
                gone += 1;
            } else {
                self.come_back(active, page);
            }
        }
        let mut stored = 0;
        for page in &pages[..gone] {
            stored += self.note_left_directly(s, *page) as usize;
            let range = self.ranges.find(*page).expect("a page that went has a range");
            self.note_taken(s, active, &range, *page, 1);
        }
        self.count_left_directly(gone, stored);
        (gone, stored)
    }

    /// Keeps a page in the program that was to go, and whose frame is still there. Its stored entry
    /// goes.
    pub(super) fn come_back(&self, active: &Active, page: usize) {
        if let PageState::Stored(raw) = self.state_of(page) {
            active.cache.free(swap_entry(raw));
        }
        let range = self.ranges.find(page).expect("a page that was to go has a range");
        self.stay(active, &range, page);
    }

    /// Keeps a page in the program, writable, that was to go: its copy is gone.
    fn stay(&self, active: &Active, range: &Range, page: usize) {
        active.mechanism.allow_write(page, PAGE_SIZE, range.prot);
        self.table.word(page, |_, e| e.stay());
        self.count_freed();
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::{READ_WRITE, Spec, Thread, Touch, World};
    use super::*;

    const PAGES: usize = 16;

    fn world() -> World {
        let world = World::new(Spec::roomy(PAGES));
        world.trust_copies();
        world.map(0, PAGES, READ_WRITE);
        world
    }

    fn read(thread: &mut Thread<'_>, page: usize) -> u8 {
        let mut byte = 0;
        let touch = thread.access(thread.world.at(page), false, |bytes| byte = bytes[9]);
        assert_eq!(touch, Touch::Done);
        byte
    }

    fn write(thread: &mut Thread<'_>, page: usize, byte: u8) {
        let touch = thread.access(thread.world.at(page), true, |bytes| bytes[9] = byte);
        assert_eq!(touch, Touch::Done);
    }

    /// Pages that were read back from the cache: guarded.
    fn guarded<'w>(world: &'w World, pages: &[usize]) -> Thread<'w> {
        let mut thread = world.thread();
        for page in pages {
            write(&mut thread, *page, *page as u8 + 1);
        }
        world.page_out();
        for page in pages {
            assert_eq!(read(&mut thread, *page), *page as u8 + 1);
            assert!(world.pager.is_guarded(world.at(*page)));
        }
        world.check();
        thread
    }

    fn drop_all(world: &World, pages: &[usize]) -> usize {
        let mut leaving = Leaving::new();
        pages.iter().for_each(|page| leaving.push(world.at(*page)));
        let mut s = world.pager.enter();
        world.pager.drop_leaving(&mut s, world.active(), &mut leaving)
    }

    #[test]
    fn a_write_unguards_the_page_and_gives_its_copy_up() {
        let w = world();
        let mut thread = guarded(&w, &[3, 9]);
        let before = w.active().cache.counters().stored_pages;
        write(&mut thread, 3, 77);
        assert!(!w.pager.is_guarded(w.at(3)) && !w.fake().is_protected(w.at(3)));
        assert!(w.pager.is_guarded(w.at(9)), "its neighbour stays as it is");
        assert_eq!(w.active().cache.counters().stored_pages, before - 1);
        assert_eq!(w.pager.slot().get(Counter::GuardFaults), 1);
        w.check();
        assert_eq!(read(&mut thread, 3), 77);
    }

    #[test]
    fn guarded_pages_go_without_a_look_and_come_back_as_they_were() {
        let w = world();
        let mut thread = guarded(&w, &[1, 4, 6]);
        let stored = w.pager.stored_pages();
        assert_eq!(drop_all(&w, &[1, 6]), 2);
        w.check();
        assert_eq!(w.pager.stored_pages(), stored + 2);
        assert_eq!(w.pager.slot().get(Counter::GuardedEvictions), 2);
        assert_eq!([1, 4, 6].map(|page| read(&mut thread, page)), [2, 5, 7]);
        assert_eq!(w.pager.slot().get(Counter::QuickReturns), 2);
    }

    #[test]
    fn what_was_written_since_the_sweep_found_it_stays() {
        let w = world();
        let mut thread = guarded(&w, &[2, 5]);
        write(&mut thread, 5, 99);
        assert_eq!(drop_all(&w, &[2, 5]), 1);
        w.check();
        assert_eq!((read(&mut thread, 2), read(&mut thread, 5)), (3, 99));
    }

    #[test]
    fn a_page_in_a_call_stays_guarded() {
        let w = world();
        let mut thread = guarded(&w, &[2, 5]);
        let mark = thread.holds.mark();
        thread.holds.push(w.at(2), w.at(2) + PAGE_SIZE, 1);
        assert_eq!(drop_all(&w, &[2, 5]), 1);
        assert!(w.pager.is_guarded(w.at(2)) && !w.pager.is_guarded(w.at(5)));
        thread.holds.pop_to(mark);
        w.check();
        assert_eq!((read(&mut thread, 2), read(&mut thread, 5)), (3, 6));
    }

    #[test]
    fn a_page_that_may_be_pinned_is_moved() {
        let w = world();
        let mut thread = guarded(&w, &[2, 5]);
        w.pager.note_pins();
        w.page_out();
        w.check();
        assert!([2, 5].iter().all(|page| w.pager.state_of(w.at(*page)) != PageState::Resident));
        assert_eq!(w.pager.slot().get(Counter::GuardedEvictions), 0);
        assert_eq!([2, 5].map(|page| read(&mut thread, page)), [3, 6]);
        assert_eq!(w.guarded(), 0, "later ones are not guarded");
        w.check();
    }

    #[test]
    fn a_page_without_a_copy_any_more_stays_and_can_be_written() {
        let w = world();
        let mut thread = guarded(&w, &[2, 5]);
        w.active().cache.set_max_kept_bytes(0);
        assert_eq!(drop_all(&w, &[2, 5]), 0);
        assert_eq!(w.guarded(), 0);
        w.check();
        write(&mut thread, 2, 50);
        assert_eq!((read(&mut thread, 2), read(&mut thread, 5)), (50, 6));
    }

    #[test]
    fn pages_that_are_kept_keep_their_order() {
        let mut leaving = Leaving::new();
        assert_eq!((leaving.count(), leaving.first()), (0, None));
        [1, 2, 3, 4, 5].into_iter().for_each(|page| leaving.push(page));
        leaving.retain(|page| page % 2 == 1);
        assert_eq!((leaving.as_slice(), leaving.first()), (&[1, 3, 5][..], Some(1)));
        (leaving.count()..SWEEP_MOST_PAGES).for_each(|page| leaving.push(page));
        assert!(leaving.is_full());
    }
}
