//! Memory shared by fork: counted once among relatives, page by page.
//!
//! After fork parent and child have every frame in common until one of them writes it. Counting all
//! of it twice would make every fork-and-exec evict half of the parent; counting it once until
//! somebody looks would let a family grow past its limit unseen. So each shared page is marked in
//! its word and write-protected, on both sides:
//!
//! ```text
//!   fork:  RESIDENT -> RESIDENT, shared      the child owes all of them (a *debt* that is not counted), the parent none
//!   first write (a fault), eviction,         the page is this process's own from now on:
//!   discarding, moving                       debt - 1, for the parent as for the child
//! ```
//! The parent's count may pass the truth this way, never fall below it: when the parent writes, the
//! old frame is the child's. The kernel's proportional share (Pss) puts the counts right at the
//! evictor's ticks. The first time the parent hands over the pages that the child has to count from
//! then on; later a process counts less only when its relatives have looked, too. The sum never
//! falls below the truth.
//!
//! The pool is shared too, but written by uzswap alone: a frame for each page that is freed. (Pages
//! that come in go to frames that are counted when they are taken.) All else, tables, stacks and
//! data, counts on both sides from the start.
//!
//! Evicting a shared page frees nothing while relatives have it, and its compressed copy would come
//! on top: so it goes to the store at once, if there is one. It needs no limbo, being stable behind
//! its write protection.

use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering, fence};

use super::{Active, Locked, PROT_WRITE, Pager};
use crate::control::{Counter, Slot};
use crate::region::{PageEntry, PageState, Range, RangeFlags};
use crate::sys::{PAGE_SHIFT, PAGE_SIZE};

/// A child older than this is believed to stay: it has neither exec'd nor exited.
const INFANT_NS: u64 = 20_000_000;
/// Bytes of address space marked or unmarked in one step.
const STEP_BYTES: usize = crate::region::table::LEAF_BYTES;

/// How long a process waits for its relatives to look at their share before it counts less itself.
const WAIT_FOR_OTHERS_NS: u64 = 1_000_000_000;

/// Pages that this process shares with relatives, and those of them that do not count here.
pub(super) struct Sharing {
    /// Pages that are counted by relatives; negative: pages counted here that they hold.
    debt: AtomicI64,
    /// Pages that were in the cache when this process was forked: relatives need those that still
    /// are.
    inherited_stored: AtomicI64,
    /// Frames of the cache that may still be shared.
    cache_frames: AtomicI64,
    /// Pages that go on counting here until relatives, which may have them now, have looked at
    /// their share; and since when.
    handed_over: AtomicI64,
    handed_over_at_ns: AtomicU64,
    /// Some page is marked.
    marked: AtomicBool,
    /// Counts forks, so that unmarking notices one.
    forks: AtomicU64,
}

impl Sharing {
    pub const fn new() -> Sharing {
        Sharing {
            debt: AtomicI64::new(0),
            inherited_stored: AtomicI64::new(0),
            cache_frames: AtomicI64::new(0),
            handed_over: AtomicI64::new(0),
            handed_over_at_ns: AtomicU64::new(0),
            marked: AtomicBool::new(false),
            forks: AtomicU64::new(0),
        }
    }
}

impl Pager {
    /// Pages of this process that do not count against the limit now.
    #[inline]
    pub(super) fn uncounted_pages(&self) -> i64 {
        let s = &self.sharing;
        s.debt.load(Ordering::Relaxed) - self.slot().charged()
    }

    /// Pages that this process would share with relatives without uzswap and that count there, as
    /// far as is known.
    pub(super) fn needed_by_relatives(&self) -> i64 {
        let s = &self.sharing;
        let stored = s.inherited_stored.load(Ordering::Relaxed).min(self.stored_pages());
        let shared = (s.debt.load(Ordering::Relaxed) - self.pool_pages())
            .clamp(0, self.resident_pages().max(0));
        stored + shared
    }

    /// Counts a page of the cache that is freed, which writes its frame.
    pub(super) fn count_freed(&self) {
        self.count_given_back(1);
    }

    /// Counts frames that the cache gave back or wrote: relatives have those that were shared.
    pub(super) fn count_given_back(&self, frames: i64) {
        let shared = &self.sharing.cache_frames;
        let left = shared.load(Ordering::Relaxed);
        if left > 0 {
            shared.fetch_sub(frames.min(left), Ordering::Relaxed);
            self.sharing.debt.fetch_sub(frames.min(left), Ordering::Relaxed);
        }
    }

    /// Counts `pages` marked pages that were written or are gone.
    pub(super) fn count_owned(&self, pages: usize) {
        if pages > 0 {
            self.sharing.debt.fetch_sub(pages as i64, Ordering::Relaxed);
            self.add(Counter::OwnedPages, pages as u64);
        }
    }

    pub(super) fn is_shared(&self, page: usize) -> bool {
        self.table.get(page).is_some_and(|e| e.is_shared())
    }

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

    /// Marks again resident pages that the caller has claimed and whose protection the kernel, out
    /// of mappings, has not lifted. No thread has believed them to be writable meanwhile.
    pub(super) fn share_again(&self, start: usize, end: usize) {
        let mut pages = 0;
        self.table.for_each_occupied(start, end, |_, _, e| {
            if e.is_resident() {
                e.share();
                pages += 1;
            }
        });
        self.sharing.debt.fetch_add(pages, Ordering::Relaxed);
    }

    /// Takes the marks off `[start, end)`; the pages count from now on.
    pub(super) fn own_all(&self, start: usize, end: usize) {
        if !self.sharing.marked.load(Ordering::Relaxed) {
            return;
        }
        let mut owned = 0;
        self.table.for_each_occupied(start, end, |_, _, e| owned += e.own() as usize);
        self.count_owned(owned);
    }

    /// Marks and write-protects, before fork and with the lock held, the memory that will be
    /// shared. Buffers of system calls stay as they are: the kernel could not wait for the pager.
    pub(super) fn share_all(&self, active: &Active) {
        self.sharing.marked.store(true, Ordering::Relaxed);
        self.sharing.forks.fetch_add(1, Ordering::Relaxed);
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
        self.sharing.cache_frames.store(self.own_pages(), Ordering::Relaxed);
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

    /// Says in the child's slot, before fork, that this process counts for it. Later would be too
    /// late: a relative could see that it shares with one more process, and count less, before any
    /// process counts for that one.
    pub(super) fn count_for_child(&self, child: &Slot) {
        child.forked_at_ns.store(crate::sys::now_ns(), Ordering::Relaxed);
        child.counted_by.store(self.slot().id(), Ordering::Release);
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
        self.sharing.debt.store(0, Ordering::Relaxed);
        self.sharing.inherited_stored.store(self.stored_pages(), Ordering::Relaxed);
        // The rest counts here from now on. Limbo: the parent gives its frames back without asking.
        // Tables, stacks, the program's data and uzswap's are not marked: much of them will be
        // written at once, unseen.
        self.sharing.debt.store(self.resident_pages() + self.pool_pages(), Ordering::Relaxed);
    }

    /// Corrects the count by the kernel's own: `pss_pages` is the process's proportional share of
    /// its anonymous memory, asked for at `asked_ns` when `used_pages` gave `counted_pages`. Events
    /// since then stay counted.
    ///
    /// The tree's sum must not fall below the truth: pages that this process has no longer may be a
    /// relative's alone now. So more counts at once, less only when the relatives have looked.
    pub fn correct_share(&self, asked_ns: u64, counted_pages: i64, pss_pages: i64) {
        let (shared, slot) = (&self.sharing, self.slot());
        let surplus = counted_pages - pss_pages;
        let me = slot.id();
        let children =
            || self.tree().live_slots().filter(|s| s.counted_by.load(Ordering::Acquire) == me);
        let count = children().count() as i64;
        for s in children() {
            // The shared block may be written over between the two looks, so `count` may be 0.
            self.tree().charge(s, surplus.max(0) / count.max(1));
            // The child shares memory, and has not looked.
            s.looked_at_ns.fetch_max(1, Ordering::AcqRel);
            s.counted_by.store(0, Ordering::Release);
        }
        if count > 0 || surplus <= 0 {
            shared.debt.fetch_add(surplus, Ordering::Relaxed);
            shared.handed_over.store(0, Ordering::Relaxed);
        } else {
            let since = shared.handed_over_at_ns.load(Ordering::Relaxed);
            let late = asked_ns > since + WAIT_FOR_OTHERS_NS;
            if shared.handed_over.load(Ordering::Relaxed) == 0
                || late
                || self.have_relatives_looked(since)
            {
                let handed_over = shared.handed_over.swap(surplus, Ordering::Relaxed).min(surplus);
                shared.handed_over_at_ns.store(asked_ns, Ordering::Relaxed);
                shared.handed_over.fetch_sub(handed_over, Ordering::Relaxed);
                shared.debt.fetch_add(handed_over, Ordering::Relaxed);
            }
        }
        slot.looked_at_ns.store(asked_ns, Ordering::Release);
    }

    /// Whether all other processes that may share memory have looked at their share after
    /// `since_ns`.
    fn have_relatives_looked(&self, since_ns: u64) -> bool {
        let others = || self.tree().live_slots().filter(|s| !core::ptr::eq(*s, self.slot()));
        others().all(|s| {
            let looked = s.looked_at_ns.load(Ordering::Acquire);
            looked > since_ns || looked == 0 && s.counted_by.load(Ordering::Acquire) == 0
        })
    }

    /// Whether the kernel's answer may be used now: not while the parent counts for this process,
    /// nor while a child is so young that it may exec or exit at once.
    pub fn may_correct_share(&self) -> bool {
        let me = self.slot().id();
        let parent = self.slot().counted_by.load(Ordering::Acquire);
        let (mut has_parent, mut has_infant) = (false, false);
        let now = crate::sys::now_ns();
        for s in self.tree().live_slots() {
            has_parent |= parent != 0 && s.id() == parent;
            has_infant |= s.counted_by.load(Ordering::Acquire) == me
                && now < s.forked_at_ns.load(Ordering::Relaxed).saturating_add(INFANT_NS);
        }
        !has_parent && !has_infant
    }

    /// Ends sharing: the process has no relatives that share memory with it any more, so everything
    /// counts and nothing is protected.
    pub fn set_unshared(&self) {
        let s = &self.sharing;
        s.debt.store(0, Ordering::Relaxed);
        s.cache_frames.store(0, Ordering::Relaxed);
        s.handed_over.store(0, Ordering::Relaxed);
        self.slot().looked_at_ns.store(0, Ordering::Release);
        self.slot().charged_pages.store(0, Ordering::Relaxed);
        if !s.marked.load(Ordering::Relaxed) {
            return;
        }
        let Some(active) = self.active() else { return };
        let forks = s.forks.load(Ordering::Relaxed);
        let (mut at, mut is_all) = (0, true);
        // Step by step, so that a fault need not wait for all of it.
        while let Some(next) = self.unmark_step(active, at, &mut is_all) {
            if s.forks.load(Ordering::Relaxed) != forks {
                return;
            }
            at = next;
        }
        // Under the lock, or a fork in between would mark pages that nobody believes to be marked.
        let _lock = self.lock();
        if is_all && s.forks.load(Ordering::Relaxed) == forks {
            s.marked.store(false, Ordering::Relaxed);
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

    /// Asserts that only a resident page is marked, and only while marks are believed.
    pub(super) fn check_shared(&self, page: usize, state: PageState) {
        assert!(
            !self.is_shared(page)
                || (state == PageState::Resident && self.sharing.marked.load(Ordering::Relaxed)),
            "page {page:#x} is marked as shared"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::tests::tree;

    #[test]
    fn less_counts_only_when_relatives_have_looked() {
        let tree: &'static _ = Box::leak(tree());
        let [parent, child] = [10, 11].map(|pid| {
            let pager = Pager::new();
            pager.connect(tree, tree.claim(pid).unwrap());
            pager.set_outside(1000);
            pager
        });
        // As fork leaves it: the parent counts for both.
        parent.count_for_child(child.slot());
        child.sharing.debt.store(1000, Ordering::Relaxed);
        let counts = || [parent.used_pages(), child.used_pages()];
        assert_eq!(counts(), [1000, 0]);
        parent.correct_share(1, counts()[0], 500);
        assert_eq!(counts(), [500, 500]);
        // The parent gave up 200 shared pages, which are the child's alone now.
        parent.correct_share(2, counts()[0], 300);
        assert_eq!(counts(), [500, 500]);
        parent.correct_share(3, counts()[0], 300);
        assert_eq!(counts(), [500, 500], "the child has not looked");
        child.correct_share(4, counts()[1], 700);
        assert_eq!(counts(), [500, 700]);
        parent.correct_share(5, counts()[0], 250);
        assert_eq!(counts(), [300, 700], "the rest is handed over next time");
        // A child that does not look (stopped, for instance) is not waited for without end.
        parent.correct_share(6 + WAIT_FOR_OTHERS_NS, counts()[0], 250);
        assert_eq!(counts(), [250, 700]);
        child.set_unshared();
        assert_eq!(counts(), [250, 1000]);
    }
}
