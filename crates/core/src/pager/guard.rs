//! Guarded pages: pages that are write-protected for a moment, while they or their neighbours leave
//! from where they are (`together.rs`).
//!
//! Architecture invariant: a word says guarded only while the kernel has the page write-protected.
//! A step that lifts the protection (a write, a system call's buffer, fork, mremap) unguards the
//! word under the same lock, after the kernel.

use core::sync::atomic::Ordering;

use super::book::swap_entry;
use super::{Active, Locked, Pager};
use crate::policy::SWEEP_MOST_PAGES;
use crate::region::{PageState, Range};
use crate::sys::PAGE_SIZE;

/// Pages that a sweep has found and not yet taken out.
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
    /// Makes a guarded page writable. `is_written`: it is about to be written, so its copy is worth
    /// nothing.
    pub(super) fn unguard(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        range: &Range,
        page: usize,
        is_written: bool,
    ) {
        self.claim(s, page, 1);
        s.unlocked(|| active.mechanism.allow_write(page, PAGE_SIZE, range.prot));
        let copy = self.table.word(page, |_, e| {
            e.unguard();
            if is_written { e.take_copy() } else { None }
        });
        self.end_claim(s, page, 1);
        self.disturbed.fetch_add(1, Ordering::Relaxed);
        if let Some(raw) = copy {
            self.count_freed();
            active.cache.give_up_copy(swap_entry(raw));
        }
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
            self.note_taken(s, active, *page, 1);
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
        active.mechanism.allow_write(page, PAGE_SIZE, range.prot);
        self.table.word(page, |_, e| e.stay());
        self.count_freed();
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::{READ_WRITE, Spec, Touch, World};
    use super::*;

    const PAGES: usize = 16;

    /// A world of pages that were read back from the cache, which has copies of them, and of which
    /// some are guarded.
    fn guarded(pages: &[usize]) -> World {
        let w = World::new(Spec::roomy(PAGES));
        w.active().cache.set_max_kept_bytes(usize::MAX);
        w.map(0, PAGES, READ_WRITE);
        drop(w.write(0..PAGES, |page, bytes| bytes[9] = page as u8 + 1));
        w.page_out();
        for page in (0..PAGES).rev() {
            assert_eq!(w.thread().access(w.at(page), false, |_| ()), Touch::Done);
        }
        let _lock = w.pager.enter();
        for page in pages {
            w.pager.table.word(w.at(*page), |_, e| e.guard());
            w.fake().forbid_write(w.at(*page), PAGE_SIZE).expect("it is registered");
        }
        drop(_lock);
        w.check();
        w
    }

    #[test]
    fn a_write_unguards_the_page_and_gives_its_copy_up() {
        let w = guarded(&[3, 9]);
        let before = w.active().cache.counters().stored_pages;
        assert_eq!(w.thread().access(w.at(3), true, |bytes| bytes[9] = 77), Touch::Done);
        assert!(!w.pager.is_guarded(w.at(3)) && !w.fake().is_protected(w.at(3)));
        assert!(w.pager.is_guarded(w.at(9)), "its neighbour stays as it is");
        assert_eq!(w.active().cache.counters().stored_pages, before - 1);
        w.check();
        w.page_out();
        let is_right = |bytes: &mut [u8; PAGE_SIZE]| assert_eq!(bytes[9], 77);
        assert_eq!(w.thread().access(w.at(3), false, is_right), Touch::Done);
    }

    #[test]
    fn a_call_that_may_write_unguards_the_page_and_keeps_its_copy() {
        let w = guarded(&[2, 5]);
        let before = w.active().cache.counters().stored_pages;
        assert!(w.thread().call(w.at(2), 1, true, |_, bytes| bytes[9] = 50));
        assert!(!w.pager.is_guarded(w.at(2)) && w.pager.is_guarded(w.at(5)));
        assert_eq!(w.active().cache.counters().stored_pages, before);
        w.check();
        w.page_out();
        let is_right = |bytes: &mut [u8; PAGE_SIZE]| assert_eq!(bytes[9], 50);
        assert_eq!(w.thread().access(w.at(2), false, is_right), Touch::Done);
    }

    #[test]
    fn a_guarded_page_is_not_swept() {
        let w = guarded(&[4]);
        w.sweep(false);
        assert_eq!(w.pager.state_of(w.at(4)), PageState::Resident);
        assert!(matches!(w.pager.state_of(w.at(8)), PageState::Limbo(_)));
        w.check();
    }

    #[test]
    fn pages_that_are_kept_keep_their_order() {
        let mut leaving = Leaving::new();
        assert_eq!((leaving.count(), leaving.first()), (0, None));
        [1, 2, 3, 4, 5].into_iter().for_each(|page| leaving.push(page));
        leaving.retain(|page| page % 2 == 1);
        assert_eq!((leaving.as_slice(), leaving.first()), (&[1, 3, 5][..], Some(1)));
    }
}
