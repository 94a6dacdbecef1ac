//! Memory shared by fork: counted once among relatives, page by page.
//!
//! After fork parent and child have every frame in common until one of them writes it. Counting all
//! of it twice would make every fork-and-exec evict half of the parent; counting it once until
//! somebody looks would let a family grow past its limit unseen. So each shared page is marked in
//! its word and write-protected, on both sides (`marks.rs`):
//!
//! ```text
//!   fork:  RESIDENT -> RESIDENT, shared      the child owes all of them (a *debt* that is not counted), the parent none
//!   first write (a fault), eviction,         the page is this process's own from now on:
//!   discarding, moving                       debt - 1, for the parent as for the child
//! ```
//! In this way the parent's count may be larger than the truth, but never smaller: when the parent
//! writes a page, the old frame becomes the child's. The kernel's proportional share (Pss) puts the
//! counts right at the evictor's ticks. The first time the parent hands over the pages that the
//! child has to count from then on; later a process counts less only when its relatives have
//! looked, too. The sum never falls below the truth.
//!
//! The pool is shared too, but written by uzswap alone: a frame for each page that is freed. (Pages
//! that come in go to frames that are counted when they are taken.) All else, tables, stacks and
//! data, counts on both sides from the start.
//!
//! Evicting a shared page frees nothing while relatives have it, and its compressed copy would come
//! on top: so it goes to the store at once, if there is one. It needs no limbo, being stable behind
//! its write protection.

use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use super::Pager;
use crate::control::{Counter, Slot};

/// A child older than this is believed to stay: it has neither exec'd nor exited.
const INFANT_NS: u64 = 20_000_000;
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

    /// Whether marks are believed: some page may be marked.
    #[inline]
    pub fn has_marks(&self) -> bool {
        self.marked.load(Ordering::Relaxed)
    }

    /// The process forks: pages are being marked from now on.
    pub fn begin_marks(&self) {
        self.marked.store(true, Ordering::Relaxed);
        self.forks.fetch_add(1, Ordering::Relaxed);
    }

    /// No page is marked any more.
    pub fn end_marks(&self) {
        self.marked.store(false, Ordering::Relaxed);
    }

    pub fn forks(&self) -> u64 {
        self.forks.load(Ordering::Relaxed)
    }

    /// Relatives have `frames` frames of the cache from now on.
    pub fn share_cache(&self, frames: i64) {
        self.cache_frames.store(frames, Ordering::Relaxed);
    }

    /// Marked pages count with relatives again.
    pub fn count_marked(&self, pages: i64) {
        self.debt.fetch_add(pages, Ordering::Relaxed);
    }

    /// In the child after fork: the parent counts `debt` pages of it, and needs the `stored` ones,
    /// too.
    pub fn begin_in_child(&self, debt: i64, stored: i64) {
        self.inherited_stored.store(stored, Ordering::Relaxed);
        self.debt.store(debt, Ordering::Relaxed);
    }

    /// There are no relatives any more: all counts here.
    pub fn end(&self) {
        self.debt.store(0, Ordering::Relaxed);
        self.cache_frames.store(0, Ordering::Relaxed);
        self.handed_over.store(0, Ordering::Relaxed);
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

    /// Says in the child's slot, before fork, that this process counts for it. Later would be too
    /// late: a relative could see that it shares with one more process, and count less, before any
    /// process counts for that one.
    pub(super) fn count_for_child(&self, child: &Slot) {
        child.forked_at_ns.store(crate::sys::now_ns(), Ordering::Relaxed);
        child.counted_by.store(self.slot().id(), Ordering::Release);
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::zeroed_tree as tree;

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
