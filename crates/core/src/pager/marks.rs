//! Marks of pages that are shared by fork: set and write-protected when a process forks, taken off
//! page by page as it writes (`shared.rs` counts them).

use core::sync::atomic::{Ordering, fence};

use super::{Active, Locked, Pager};
use crate::region::{PageEntry, PageState, Range, RangeFlags};
use crate::sys::{PAGE_SHIFT, PAGE_SIZE};

/// Bytes of address space marked or unmarked in one step.
const STEP_BYTES: usize = crate::region::table::LEAF_BYTES;

impl Pager {
    /// Makes up to `want` shared pages from the resident page `page` on the process's own and
    /// writable: the program, or the kernel for it, is about to write there. With protection faults
    /// it is the unit around `page`. Returns how many pages from `page` on can be written now.
    pub(super) fn own_run(
        &self,
        s: &Locked<'_>,
        active: &Active,
        range: Range,
        page: usize,
        want: usize,
    ) -> usize {
        if active.mechanism.has_units() {
            let unit = self.unit_pages() * PAGE_SIZE;
            let start = (page / unit * unit).max(range.start);
            let end = ((page / unit + 1) * unit).min(range.end);
            let own = |(start, end): (usize, usize)| {
                let own = || self.own_between(active, range.prot, start, end);
                self.with_borders(s, active, (start, end), own)
            };
            if !own(self.free_around(s, page, (start, end))) && self.is_shared(page) {
                // The kernel is out of mappings. All resident pages around this one have a mapping
                // already.
                let resident = self.resident_around(page, range.start, range.end);
                own(self.free_around(s, page, resident));
            }
            return 1;
        }
        let most = self.free_run(s, page, ((range.end - page) >> PAGE_SHIFT).min(want.max(1)));
        let n = (0..most).take_while(|i| self.is_shared(page + i * PAGE_SIZE)).count();
        // A page may be protected and not marked: a fork that failed, or a pause of the marks, left
        // it so.
        active.mechanism.allow_write(page, n.max(1) * PAGE_SIZE, range.prot);
        self.own_all(page, page + n * PAGE_SIZE);
        n.max(1)
    }

    /// Lifts the write protection of `[start, end)`, a part of one range with protection `prot`,
    /// and then takes its marks off; the pages count from now on. False: see `lift_marked`.
    fn own_between(&self, active: &Active, prot: u32, start: usize, end: usize) -> bool {
        self.lift_marked(active, prot, start, end, |from, to| self.own_all(from, to))
    }

    /// Lifts the write protection of `[start, end)`, and calls `then` with each part that can be
    /// written now: no word may say writable before that, as words are believed without the lock.
    /// False: the kernel, out of mappings, protects some of it as before.
    fn lift_marked(
        &self,
        active: &Active,
        prot: u32,
        start: usize,
        end: usize,
        mut then: impl FnMut(usize, usize),
    ) -> bool {
        let mut is_all = true;
        let mut lift = |from, to| {
            match active.mechanism.try_allow_write(from, to - from, prot) {
                Ok(()) => then(from, to),
                Err(_) => is_all = false,
            }
            Ok(())
        };
        let _ = match active.mechanism.hides() {
            // A page that is not resident is hidden, and stays so.
            true => self.for_each_resident_run(start, end, lift),
            false => lift(start, end),
        };
        is_all
    }

    /// The run of resident pages around the resident page `page`, within `[start, end)`.
    fn resident_around(&self, page: usize, start: usize, end: usize) -> (usize, usize) {
        let is_resident = |at: &usize| self.state_of(*at) == PageState::Resident;
        let before = (start..page).step_by(PAGE_SIZE).rev().take_while(is_resident).last();
        let after = (page..end).step_by(PAGE_SIZE).take_while(is_resident).last();
        (before.unwrap_or(page), after.unwrap_or(page) + PAGE_SIZE)
    }

    /// Marks and write-protects, before fork and with the lock held, the memory that will be
    /// shared. Buffers of system calls stay as they are: the kernel could not wait for the pager.
    pub(super) fn share_all(&self, active: &Active) {
        self.sharing.begin_marks();
        self.note_all_small();
        for i in 0..self.ranges.len() {
            let range = self.ranges.at(i);
            if range.flags.has(RangeFlags::UNREGISTERED) || range.flags.has(RangeFlags::DONTFORK) {
                continue;
            }
            let mut at = range.start;
            while at < range.end {
                let stop = ((at / STEP_BYTES + 1) * STEP_BYTES).min(range.end);
                self.table.for_each_occupied(at, stop, |_, _, e| {
                    if e.is_resident() {
                        e.share();
                    }
                });
                // As in hold.rs: the marks first, then a look at the holds.
                fence(Ordering::SeqCst);
                self.holds.overlapping(at, stop, |from, to| {
                    let (from, to) = (from.max(at), to.min(stop));
                    // An earlier fork may have protected the buffer: its holder then waits for the
                    // lock.
                    self.own_between(active, range.prot, from, to);
                    false
                });
                self.protect_marked(active, range, at, stop);
                at = stop;
            }
        }
        self.sharing.share_cache(self.own_pages());
    }

    /// Write-protects the marked pages of `[start, end)`, a part of `range`. A page that cannot be
    /// protected loses its mark.
    fn protect_marked(&self, active: &Active, range: Range, start: usize, end: usize) {
        let _ = self.for_each_run(start, end, PageEntry::is_shared, |from, to| {
            if active.mechanism.forbid_write(from, to - from, range.prot).is_err() {
                self.own_between(active, range.prot, from, to);
            }
            Ok(())
        });
    }

    /// Write-protects, in the child after fork, the marked pages of its ranges, which are
    /// registered again without that protection. The parent counts the pages that are resident or
    /// in the pool.
    pub(super) fn share_in_child(&self, active: &Active) {
        self.inherit_events(active);
        if !active.mechanism.is_inherited() {
            for i in 0..self.ranges.len() {
                let range = self.ranges.at(i);
                self.protect_marked(active, range, range.start, range.end);
            }
        }
        self.tolerate_nothing();
        // The rest counts here from now on. Limbo: the parent gives its frames back without asking.
        // Tables, stacks, the program's data and uzswap's are not marked: much of them will be
        // written at once, unseen.
        let debt = self.resident_pages() + self.pool_pages();
        self.sharing.begin_in_child(debt, self.stored_pages());
    }

    /// Ends sharing: the process has no relatives that share memory with it any more, so everything
    /// counts and nothing is protected.
    pub fn set_unshared(&self) {
        let s = &self.sharing;
        s.end();
        self.slot().looked_at_ns.store(0, Ordering::Release);
        self.slot().charged_pages.store(0, Ordering::Relaxed);
        if !s.has_marks() {
            return;
        }
        let Some(active) = self.active() else { return };
        let forks = s.forks();
        let (mut at, mut is_all) = (0, true);
        // Step by step, so that a fault need not wait for all of it.
        while let Some(next) = self.unmark_step(active, at, &mut is_all) {
            if s.forks() != forks {
                return;
            }
            at = next;
        }
        // Under the lock, or a fork in between would mark pages that nobody believes to be marked.
        let _lock = self.lock();
        if is_all && s.forks() == forks {
            s.end_marks();
        }
    }

    /// Unmarks one stretch from `at` on. Returns where to go on. `is_all`: all was unmarked so far.
    fn unmark_step(&self, active: &Active, at: usize, is_all: &mut bool) -> Option<usize> {
        let end = (at / STEP_BYTES + 1) * STEP_BYTES;
        let _s = self.lock_range(at, end);
        let range = self.ranges.next_from(at)?;
        if range.start >= end {
            return Some(range.start);
        }
        let (start, stop) = (at.max(range.start), end.min(range.end));
        if self.table.middle(start).is_some_and(|m| m.resident() > 0) {
            let mut any = false;
            self.table.for_each_occupied(start, stop, |_, _, e| any |= e.is_shared());
            if any {
                *is_all &= self.lift_marked(active, range.prot, start, stop, |from, to| {
                    let unmark = |e: &PageEntry| (e.own(), e.unguard());
                    self.table.for_each_occupied(from, to, |_, _, e| _ = unmark(e));
                });
            }
        }
        Some(stop)
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::{READ_WRITE, STRETCH_PAGES, Spec, World};
    use super::*;
    use crate::control::Counter;
    use crate::sys::mechanism::Access;

    fn write(w: &World, pages: core::ops::Range<usize>) {
        w.write(pages, |_, b| b[9] = 1);
    }

    /// The pages that are marked, all of which are protected.
    fn marked(w: &World) -> Vec<usize> {
        let is_marked = |page: &usize| w.pager.is_shared(w.at(*page));
        let all: Vec<usize> = (0..w.spec.pages).filter(is_marked).collect();
        assert!(all.iter().all(|page| w.fake().is_protected(w.at(*page))), "{all:?}");
        all
    }

    fn owned(w: &World) -> u64 {
        w.pager.slot().get(Counter::OwnedPages)
    }

    #[test]
    fn buffers_of_calls_and_memory_that_the_child_does_not_get_are_not_marked() {
        let w = World::new(Spec::roomy(2 * STRETCH_PAGES));
        let (first, border) = (STRETCH_PAGES - 8, STRETCH_PAGES);
        w.map(first, 16, READ_WRITE);
        write(&w, first..first + 16);
        w.pager.note_flag(w.at(border + 6), w.at(border + 8), RangeFlags::DONTFORK, true);
        w.fork_in_vain();
        assert_eq!(marked(&w), (first..border + 6).collect::<Vec<_>>());
        // The buffer, which an earlier fork has protected, lies in two steps.
        let thread = w.thread();
        thread.holds.push(w.at(border - 2), w.at(border + 2), 1);
        w.fork_in_vain();
        let others = (first..border - 2).chain(border + 2..border + 6);
        assert_eq!(marked(&w), others.collect::<Vec<_>>());
        assert_eq!((owned(&w), w.pager.uncounted_pages()), (4, -4));
        w.check();
    }

    #[test]
    fn pages_that_the_kernel_does_not_protect_lose_their_marks_and_can_be_written() {
        let w = World::new(Spec::roomy(16));
        w.map(0, 16, READ_WRITE);
        [1, 4, 6].iter().for_each(|page| write(&w, *page..*page + 1));
        w.fake().set_trouble(1);
        w.fork_in_vain();
        w.fake().set_trouble(0);
        assert_eq!(marked(&w), vec![]);
        // Its child would take them to be counted here.
        assert_eq!((owned(&w), w.pager.uncounted_pages()), (3, -3));
        assert_eq!(w.fake().access(w.at(4), true, |_| ()), Access::Done);
        w.check();
    }

    #[test]
    fn a_run_is_owned_up_to_what_is_wanted_claimed_unmarked_or_another_range() {
        let w = World::new(Spec::roomy(12));
        w.map(0, 8, READ_WRITE);
        w.map(8, 4, 7);
        write(&w, 0..12);
        w.fork_in_vain();
        let own = |s: &Locked<'_>, page: usize, want: usize| {
            let range = w.pager.ranges.find(w.at(page)).expect("it is mapped");
            w.pager.own_run(s, w.active(), range, w.at(page), want)
        };
        let mut s = w.pager.enter();
        assert_eq!([own(&s, 1, 2), own(&s, 6, 8)], [2, 2]);
        w.pager.claim(&mut s, w.at(4), 1);
        assert_eq!(own(&s, 3, 8), 1);
        w.pager.end_claim(&mut s, w.at(4), 1);
        assert_eq!([own(&s, 0, 8), own(&s, 5, 0)], [1, 1]);
        // Protected, and not marked: it can be written, and is not counted.
        w.fake().forbid_write(w.at(1), PAGE_SIZE).expect("it is registered");
        assert_eq!((own(&s, 1, 8), w.fake().is_protected(w.at(1))), (1, false));
        drop(s);
        assert_eq!(marked(&w), [4, 8, 9, 10, 11]);
        assert_eq!((owned(&w), w.pager.uncounted_pages()), (7, -7));
        w.check();
    }

    #[test]
    fn marks_are_believed_until_the_kernel_has_lifted_the_last_protection() {
        let w = World::new(Spec { hides: true, ..Spec::roomy(2 * STRETCH_PAGES) });
        // The kernel changes the protection of the longer one without another mapping.
        for (page, pages) in [(0, 8), (STRETCH_PAGES + 88, 24)] {
            w.map(page, pages, READ_WRITE);
            write(&w, page..page + pages);
        }
        w.fork_in_vain();
        assert_eq!(marked(&w).len(), 32);
        w.fake().set_out_of_mappings(true);
        w.pager.set_unshared();
        w.fake().set_out_of_mappings(false);
        assert_eq!(marked(&w), (0..8).collect::<Vec<_>>());
        w.check();
        w.pager.set_unshared();
        assert!(marked(&w).is_empty() && !w.pager.sharing.has_marks());
        assert_eq!(w.fake().access(w.at(7), true, |_| ()), Access::Done);
        assert_eq!((owned(&w), w.pager.uncounted_pages()), (0, 0));
        w.check();
    }
}
