//! Marks of pages that are shared by fork: set and write-protected when a process forks, taken off
//! page by page as it writes (`shared.rs` counts them).

use core::sync::atomic::{Ordering, fence};

use super::{Active, Locked, PROT_WRITE, Pager};
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
        if active.mechanism.is_protect() {
            let unit = self.unit_pages() * PAGE_SIZE;
            let start = (page / unit * unit).max(range.start);
            let end = ((page / unit + 1) * unit).min(range.end);
            let (start, end) = self.free_around(s, page, (start, end));
            if !self.own_between(active, range.prot, start, end) && self.is_shared(page) {
                // The kernel is out of mappings. All resident pages around this one have a mapping
                // already.
                let resident = self.resident_around(page, range.start, range.end);
                let (start, end) = self.free_around(s, page, resident);
                self.own_between(active, range.prot, start, end);
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
        let _ = match active.mechanism.is_protect() {
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
        if range.prot & PROT_WRITE == 0 && active.mechanism.is_protect() {
            return;
        }
        let _ = self.for_each_run(start, end, PageEntry::is_shared, |from, to| {
            if active.mechanism.forbid_write(from, to - from, range.prot).is_err() {
                // Some pages were guarded, and the marks have taken the place of that.
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
        if !active.mechanism.is_protect() {
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
        let i = self.ranges.index_from(at);
        if i >= self.ranges.len() {
            return None;
        }
        let range = self.ranges.at(i);
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
