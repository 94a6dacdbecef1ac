//! A page is given to the swap cache, and gets the state that comes of it.

use super::book::swap_entry;
use super::huge_sampling::Evidence;
use super::{Active, Locked, Pager};
use crate::cache::{Back, SwapEntry, SwapFull};
use crate::codec::same_filled;
use crate::control::Counter;
use crate::sys::PAGE_SIZE;

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
            let back = active.cache.take_back_as(entry, bytes);
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
        if active.mechanism.is_protect() {
            // The page is in place behind its protection, where it would seem to be in limbo still
            // until a touch shows it. So it is shown now.
            let range = self.ranges.find(page).expect("a page in limbo has a range");
            let _ = active.mechanism.expose(page, PAGE_SIZE, range.prot);
        } else {
            let f = active.mechanism.fill_from_limbo(page, slot, 1);
            assert!(
                f == crate::sys::mechanism::Filled::All,
                "page {page:#x} cannot be put back: {f:?}"
            );
        }
        self.note_put_back(s, page);
        self.note_small(page);
    }
}
