//! A page is given to the swap cache, and gets the state that comes of it.

use super::book::swap_entry;
use super::huge_sampling::Evidence;
use super::{Active, Locked, Pager};
use crate::cache::{Back, SwapEntry, SwapFull};
use crate::codec::same_filled;
use crate::control::Counter;
use crate::sys::PAGE_SIZE;
use crate::sys::mechanism::Filled;

/// The outcome for a page of a claimed batch, found without the lock.
#[derive(Clone, Copy)]
pub(super) enum Aged {
    /// No page in the slot any more, or none that could be copied.
    Empty,
    Zero,
    Stored(SwapEntry),
    /// Neither pool nor store took it.
    Refused,
}

impl Pager {
    /// Gives a page to the cache and returns the outcome. `copy`: the entry that it was loaded
    /// from, if the cache kept it.
    pub(super) fn give_to_cache(
        &self,
        active: &Active,
        bytes: &[u8; PAGE_SIZE],
        cold: bool,
        copy: Option<u64>,
        evidence: &mut Evidence,
    ) -> Aged {
        evidence.pages += 1;
        if let Some(entry) = copy.map(swap_entry) {
            let back = active.cache.take_back(entry, bytes);
            evidence.note_copy(back);
            if back == Back::Same {
                self.add(Counter::CleanEvictions, 1);
                return Aged::Stored(entry);
            }
            self.count_freed();
        }
        self.store_anew(active, bytes, cold, evidence)
    }

    /// Stores a page that has no valid copy.
    pub(super) fn store_anew(
        &self,
        active: &Active,
        bytes: &[u8; PAGE_SIZE],
        cold: bool,
        evidence: &mut Evidence,
    ) -> Aged {
        if same_filled(bytes) == Some(0) {
            evidence.zeros += 1;
            return Aged::Zero;
        }
        let stored =
            if cold { active.cache.swap_out_cold(bytes) } else { active.cache.swap_out(bytes) };
        match stored {
            Ok(e) => Aged::Stored(e),
            Err(SwapFull) => Aged::Refused,
        }
    }

    /// Gives the page of a slot, which nobody else can change, its new state. False: it stays in
    /// the program.
    pub(super) fn publish_page(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        page: usize,
        slot: usize,
        aged: Aged,
    ) -> bool {
        match aged {
            Aged::Zero => self.note_given(s, page, true, None),
            Aged::Stored(entry) => self.note_given(s, page, true, Some(entry)),
            Aged::Refused | Aged::Empty => {
                self.put_back(s, active, page, slot);
                if matches!(aged, Aged::Refused) {
                    self.note_refused(page);
                }
            }
        }
        s.limbo.kill(slot);
        matches!(aged, Aged::Zero | Aged::Stored(_))
    }

    /// Puts a page back into the program, which neither pool nor store took.
    fn put_back(&self, s: &Locked<'_>, active: &Active, page: usize, slot: usize) {
        let range = self.ranges.find(page).expect("a page in limbo has a range");
        let filled = active.mechanism.put_back(page, slot, range.prot);
        assert!(filled == Filled::All, "page {page:#x} cannot be put back: {filled:?}");
        self.note_put_back(s, page);
        self.note_small(page);
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::{READ_WRITE, Spec, Touch, World};
    use super::*;
    use crate::policy::BATCH_PAGES;
    use crate::region::{Mapped, PageState};
    use crate::testing::{noise, page};

    const ZEROS: [u8; PAGE_SIZE] = [0; PAGE_SIZE];

    #[test]
    fn a_page_that_nobody_takes_is_back_at_once_and_is_not_tried_again() {
        for hides in [false, true] {
            let w = World::new(Spec { hides, ..Spec::roomy(4) });
            w.map(0, 4, READ_WRITE);
            // No codec makes noise smaller, and there is no store.
            let pages = [noise(1), ZEROS, page(2)];
            for (i, bytes) in pages.iter().enumerate() {
                assert_eq!(w.thread().access(w.at(i), true, |b| *b = *bytes), Touch::Done);
            }
            w.sweep(false);
            w.age_out(BATCH_PAGES);
            let states = [0, 1, 2].map(|i| w.pager.state_of(w.at(i)));
            let [PageState::Resident, PageState::None, PageState::Stored(_)] = states else {
                panic!("{states:?}")
            };
            w.pager.table.word(w.at(0), |m, e| {
                assert!(e.is_refused(w.pager.generation()) && m.mapped() == Mapped::Small);
            });
            assert!(w.fake().is_shown(w.at(0)));
            let counted = [Counter::EvictionsRefused, Counter::ZeroPages, Counter::Stores];
            assert_eq!(counted.map(|c| w.pager.slot().get(c)), [1; 3]);
            w.check();
            for (i, bytes) in pages.iter().enumerate() {
                let right = |b: &mut [u8; PAGE_SIZE]| assert!(b == bytes, "page {i}");
                assert_eq!(w.thread().access(w.at(i), false, right), Touch::Done);
            }
        }
    }

    #[test]
    fn a_copy_that_is_right_is_the_page_and_any_other_goes() {
        let w = World::new(Spec::roomy(1));
        let cache = &w.active().cache;
        cache.set_max_kept_bytes(usize::MAX);
        // Relatives have frames of the cache, of which each freed entry writes one.
        w.pager.sharing.share_cache(10);
        let mut all = Evidence::default();
        let mut give = |bytes: &[u8; PAGE_SIZE], kept_bytes: usize| {
            let (entry, mut back) = (cache.swap_out(&page(1)).expect("room"), ZEROS);
            let loaded = cache.swap_in_from(entry, &mut back).expect("it is there");
            assert!(cache.keep(entry, cache.print(loaded, &back)));
            cache.set_max_kept_bytes(kept_bytes);
            let copy = Some(entry.to_bits());
            w.pager.give_to_cache(w.active(), bytes, false, copy, &mut all)
        };
        let is = |aged: Aged, bytes: &[u8; PAGE_SIZE]| {
            let (Aged::Stored(entry), mut back) = (aged, ZEROS) else { return false };
            cache.swap_in(entry, &mut back).expect("it is there");
            back == *bytes
        };
        assert!(is(give(&page(1), usize::MAX), &page(1)));
        assert_eq!((w.pager.uncounted_pages(), cache.counters().pool_stores), (0, 1));
        assert!(is(give(&page(2), usize::MAX), &page(2)), "it was written");
        assert!(matches!(give(&ZEROS, usize::MAX), Aged::Zero));
        assert!(matches!(give(&noise(1), usize::MAX), Aged::Refused));
        assert!(is(give(&page(1), 0), &page(1)), "its copy is gone");
        assert_eq!((w.pager.uncounted_pages(), cache.counters().stored_pages), (-4, 3));
        assert_eq!((all.pages, all.zeros, all.copies, all.changed), (5, 1, 4, 3));
        assert_eq!(w.pager.slot().get(Counter::CleanEvictions), 1);
    }

    #[test]
    fn a_cold_page_goes_past_the_pool() {
        let w = World::new(Spec { has_store: true, ..Spec::roomy(1) });
        let store = |bytes: &[u8; PAGE_SIZE], cold: bool| {
            let aged = w.pager.store_anew(w.active(), bytes, cold, &mut Evidence::default());
            let c = w.active().cache.counters();
            (matches!(aged, Aged::Stored(_)), c.pool_pages, c.store_pages)
        };
        assert_eq!(store(&page(1), true), (true, 0, 1));
        assert_eq!(store(&page(1), false), (true, 1, 1));
        assert_eq!(store(&ZEROS, true), (false, 1, 1), "it goes nowhere");
    }
}
