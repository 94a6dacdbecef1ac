//! Guarded pages: brought back write-protected, because so many go out again as they came. They leave without a look.
//!
//! ```text
//!   read fault:  STORED --copy, protected--> RESIDENT, guarded, copy kept --first write (a fault)--> RESIDENT, copy freed
//!                  ^                             |
//!                  +------- many at a time ------+ the sweep: words first, then the holds, then one call drops the frames
//! ```
//!
//! What this saves is not the fingerprint but the flush. A page that may be written has to be taken from the program before it is looked at,
//! and where pages are touched at random each lies alone: one MOVE, one flush, one interrupt for every processor that runs the
//! program, 12 to 20 us on a virtual machine. Of pages that cannot have been written nothing is to be looked at, and the kernel drops as many as it is given with one
//! flush. The price is a fault for each page that is read first and written afterwards; the score of kept copies says whether that is worth it.
//!
//! Limbo is for pages that have no copy. A guarded page gets its second chance by the clock (`policy/ghost.rs`).
//!
//! Architecture invariant: a word says guarded only while the kernel has the page write-protected. Whatever lifts the protection
//! (a write, a system call's buffer, fork, mremap) unguards the word under the same lock, after the kernel.

use core::sync::atomic::{Ordering, fence};

use super::resolve::{Serve, swap_entry};
use super::{Active, Locked, PROT_EXEC, PROT_READ, PROT_WRITE, Pager};
use crate::cache::{Back, Origin};
use crate::control::Counter;
use crate::latency::FaultKind;
use crate::policy::{SWEEP_PAGES, ghost};
use crate::region::{PageEntry, PageState, Range};
use crate::sys::PAGE_SIZE;

/// Cold guarded pages that a sweep has found and not yet dropped.
pub(super) struct Leaving {
    pages: [usize; SWEEP_PAGES],
    count: usize,
    /// Pages dropped so far.
    pub dropped: usize,
}

impl Leaving {
    pub fn new() -> Leaving {
        Leaving { pages: [0; SWEEP_PAGES], count: 0, dropped: 0 }
    }
}

impl Pager {
    #[inline]
    pub(super) fn is_guarded(&self, page: usize) -> bool {
        self.table.get(page).is_some_and(|e| e.is_guarded())
    }

    /// Whether a page of `range` that is read now is worth guarding.
    pub(super) fn may_be_guarded(&self, active: &Active, range: &Range) -> bool {
        active.mechanism.as_mover().is_some_and(|u| u.has_drop_each())
            && range.prot & (PROT_READ | PROT_WRITE | PROT_EXEC) == PROT_READ | PROT_WRITE
            && range.is_swept()
            && active.cache.are_pages_read_only()
    }

    /// Brings one stored page in, guarded if the cache keeps its copy.
    pub(super) fn serve_guarded(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        range: &Range,
        page: usize,
    ) -> Serve {
        let PageState::Stored(raw) = self.state_of(page) else { unreachable!("the page is stored") };
        let entry = swap_entry(raw);
        let mechanism = active.mechanism.as_mover().expect("asked");
        if !active.cache.wants_copy(entry) {
            return self.serve_stored(s, active, page, 1);
        }
        let (into, _) = s.bounce.as_mut().expect("active").as_mut_slice().as_chunks_mut::<PAGE_SIZE>();
        let loaded = match active.cache.swap_in_from(entry, &mut into[0]) {
            Ok(loaded) => loaded,
            Err(e) => return Serve::Lost(e),
        };
        if !mechanism.fill_guarded(page, &into[0]) {
            // The ordinary way knows what may be in the way.
            return self.serve_stored(s, active, page, 1);
        }
        let print = active.cache.print(loaded, &into[0]);
        let keeps = active.cache.keep_wanted(entry, Some(print));
        if !keeps {
            active.mechanism.allow_write(page, PAGE_SIZE, range.prot);
        }
        self.note_loaded(page, keeps);
        if keeps {
            self.word(page, |_, e| e.guard());
            self.add(Counter::GuardedPages, 1);
        }
        self.count_loaded(1);
        let kind = if loaded.from == Origin::Store { FaultKind::StoreLoad } else { FaultKind::PoolLoad };
        Serve::Done(1, kind)
    }

    /// A guarded page can be written from now on. `is_written`: it is about to be, so its copy is worth nothing.
    pub(super) fn unguard(&self, active: &Active, range: &Range, page: usize, is_written: bool) {
        active.mechanism.allow_write(page, PAGE_SIZE, range.prot);
        let copy = self.word(page, |_, e| {
            e.unguard();
            if is_written { e.take_copy() } else { None }
        });
        if let Some(raw) = copy {
            self.count_freed();
            active.cache.give_up_copy(swap_entry(raw));
        }
    }

    /// The kernel has lifted the protection of all of `[start, end)`.
    pub(super) fn note_unguarded(&self, start: usize, end: usize) {
        self.table.for_each_occupied(start, end, |_, _, e| _ = e.unguard());
    }

    /// Whether a page that is about to be mapped again was dropped so lately that it would still be in limbo.
    pub(super) fn was_dropped_lately(&self, e: &PageEntry) -> bool {
        e.dropped_at().is_some_and(|then| {
            let limbo = self.limbo_target() as u64;
            ghost::would_be_there(then, ghost::stamp(self.dropped.load(Ordering::Relaxed), limbo), limbo)
        })
    }

    /// The sweep has found the cold guarded page `page` of `range`.
    pub(super) fn let_go(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        range: &Range,
        page: usize,
        leaving: &mut Leaving,
    ) {
        leaving.pages[leaving.count] = page;
        leaving.count += 1;
        if leaving.count == leaving.pages.len() {
            self.drop_leaving(s, active, range, leaving);
        }
    }

    /// Drops what a sweep of `range` has found: words first, then a look at the holds (see hold.rs), then the frames.
    pub(super) fn drop_leaving(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        range: &Range,
        leaving: &mut Leaving,
    ) {
        let pages = &mut leaving.pages[..core::mem::take(&mut leaving.count)];
        if pages.is_empty() {
            return;
        }
        let limbo = self.limbo_target() as u64;
        let so_far = self.dropped.load(Ordering::Relaxed);
        for (page, n) in pages.iter().zip(so_far..) {
            self.word(*page, |_, e| e.drop_to_copy(ghost::stamp(n, limbo)));
        }
        fence(Ordering::SeqCst);
        let mut count = 0;
        for i in 0..pages.len() {
            let page = pages[i];
            if self.holds.is_held(page, page + PAGE_SIZE) {
                self.word(page, |_, e| e.keep_guarded());
            } else if self.goes_back(active, range, page) {
                pages[count] = page;
                count += 1;
            }
        }
        let count = self.drop_frames(active, range, &mut pages[..count]);
        for page in &pages[..count] {
            self.word(*page, |m, _| m.count(-1, 0));
            self.note_taken(s, active, range, *page, 1);
        }
        self.dropped.fetch_add(count as u64, Ordering::Relaxed);
        self.resident.fetch_sub(count as i64, Ordering::Relaxed);
        self.stored.fetch_add(count as i64, Ordering::Relaxed);
        for c in [Counter::Stores, Counter::CleanEvictions, Counter::GuardedEvictions] {
            self.add(c, count as u64);
        }
        leaving.dropped += count;
    }

    /// Makes the copy of a page the page. Without one it stays in the program, and can be written.
    fn goes_back(&self, active: &Active, range: &Range, page: usize) -> bool {
        let PageState::Stored(raw) = self.state_of(page) else { unreachable!("it has just been dropped") };
        let is_back = active.cache.take_back_unwritten(swap_entry(raw)) == Back::Same;
        if !is_back {
            self.stay(active, range, page);
        }
        is_back
    }

    /// Drops the frames of `pages`: how many went. What the kernel will not drop, for whatever reason, stays in the program.
    fn drop_frames(&self, active: &Active, range: &Range, pages: &mut [usize]) -> usize {
        let mechanism = active.mechanism.as_mover().expect("guarded");
        let at_once = mechanism.drop_each(pages);
        let mut gone = at_once;
        for i in at_once..pages.len() {
            let page = pages[i];
            if active.mechanism.drop_in_place(page, 1).is_ok() {
                pages[gone] = page;
                gone += 1;
            } else {
                let PageState::Stored(raw) = self.state_of(page) else { unreachable!("it was to go") };
                active.cache.free(swap_entry(raw));
                self.stay(active, range, page);
            }
        }
        gone
    }

    /// A page that was to go, and whose copy is gone.
    fn stay(&self, active: &Active, range: &Range, page: usize) {
        active.mechanism.allow_write(page, PAGE_SIZE, range.prot);
        self.word(page, |_, e| e.keep_without_copy());
        self.count_freed();
    }
}
