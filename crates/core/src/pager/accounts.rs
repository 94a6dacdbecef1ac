//! Accounts: how much memory the process uses and needs, and what it tells the run of it.

use core::sync::atomic::Ordering;

use super::{Active, Pager};
use crate::cache::Counters as CacheCounters;
use crate::control::{Counter, Notice};
use crate::sys::PAGE_SIZE;

/// How many of the run's counters are counted by the cache.
pub(super) const CACHE_EVENTS: usize = 15;

fn cache_events(c: &CacheCounters) -> [(Counter, u64); CACHE_EVENTS] {
    [
        (Counter::SameFilledPages, c.same_filled_stores),
        (Counter::PoolStores, c.pool_stores),
        (Counter::ChangedPages, c.changed_pages),
        (Counter::RejectPoor, c.reject_compress_poor),
        (Counter::RejectFull, c.reject_full),
        (Counter::RejectAlloc, c.reject_alloc_failed),
        (Counter::RejectCodec, c.reject_compress_failed),
        (Counter::RejectReclaim, c.reject_reclaim_failed),
        (Counter::RecompressedPages, c.recompressed_pages),
        (Counter::GroupedPages, c.group_stores),
        (Counter::RecompressedSavedBytes, c.recompressed_saved_bytes),
        (Counter::PoolLimitHits, c.pool_limit_hits),
        (Counter::WrittenBackPages, c.written_back_pages),
        (Counter::ReadBackPages, c.store_loads),
        (Counter::StoreErrors, c.write_errors + c.read_errors),
    ]
}

impl Pager {
    /// Asks the cache how much memory it takes now. Called after pages were given to it or taken
    /// from it.
    pub(super) fn recount_own(&self) {
        if let Some(a) = self.active() {
            let own_bytes = a.cache.footprint_bytes() + self.table.bytes();
            let pages = (own_bytes / PAGE_SIZE) as i64;
            let given_back = self.own.swap(pages, Ordering::Relaxed) - pages;
            if given_back > 0 {
                self.count_given_back(given_back);
            }
            self.pool.store((a.cache.pool_bytes() / PAGE_SIZE) as i64, Ordering::Relaxed);
        }
    }

    /// Pages of this process that count against the limit.
    pub fn used_pages(&self) -> i64 {
        let all = self.resident_pages()
            + self.limbo_pages()
            + self.own_pages()
            + self.outside.load(Ordering::Relaxed);
        all - self.uncounted_pages()
    }

    /// Pages that the process would hold without uzswap, except those that it shares with relatives
    /// and that count there.
    pub fn needed_pages(&self) -> i64 {
        self.resident_pages()
            + self.limbo_pages()
            + self.stored_pages()
            + self.outside.load(Ordering::Relaxed)
            - self.needed_by_relatives()
    }

    /// The limit that the tree leaves to this process.
    pub fn limit_pages(&self) -> i64 {
        let t = self.tree();
        t.limit() - (t.used() - self.published_pages()).max(0)
    }

    /// Pages that this process uses, as the tree knows.
    pub(super) fn published_pages(&self) -> i64 {
        self.slot().used()
    }

    /// Publishes how many pages this process uses, when that has changed enough to matter.
    pub fn publish(&self, always: bool) {
        let used = self.used_pages();
        if always || (used - self.published_pages()).abs() >= 32 {
            self.tree().publish(self.slot(), used, self.needed_pages());
        }
    }

    /// Reserves the pages that a dormant process could use at most.
    pub fn reserve(&self, pages: i64) {
        self.tree().reserve(self.slot(), pages);
    }

    /// [`Self::reserve`], if the tree's limit leaves room.
    pub fn try_reserve(&self, pages: i64) -> bool {
        self.tree().try_reserve(self.slot(), pages)
    }

    /// Publishes the pages that a dormant process held at its end, by the kernel's count.
    pub fn publish_final(&self, pages: i64) {
        self.tree().publish_last(self.slot(), pages);
    }

    /// Sets the anonymous memory of the process that is not managed, from the kernel's own count.
    pub fn set_outside(&self, anonymous_pages: i64) {
        self.recount_own();
        let known = self.resident_pages() + self.limbo_pages() + self.own_pages();
        self.outside.store((anonymous_pages - known).max(0), Ordering::Relaxed);
    }

    pub fn outside_pages(&self) -> i64 {
        self.outside.load(Ordering::Relaxed)
    }

    /// Writes the gauges into the shared slot.
    pub fn publish_gauges(&self) {
        let s = self.slot();
        s.set(Counter::ResidentPages, self.resident_pages().max(0) as u64);
        s.set(Counter::LimboPages, self.limbo_pages().max(0) as u64);
        s.set(Counter::StoredPages, self.stored_pages().max(0) as u64);
        s.set(Counter::OutsidePages, self.outside_pages() as u64);
        s.set(Counter::ManagedBytes, self.ranges.total_bytes() as u64);
        s.set(Counter::HugeBytes, self.ranges.huge_bytes() as u64);
        if let Some(a) = self.active() {
            let pool = a.cache.footprint_bytes() as u64;
            s.set(Counter::PoolBytes, pool);
            s.max(Counter::PeakPoolBytes, pool);
            let c = a.cache.counters();
            s.set(Counter::KeptBytes, c.kept_bytes);
            s.max(Counter::PeakKeptBytes, c.kept_bytes);
            for (i, (counter, count)) in cache_events(&c).into_iter().enumerate() {
                s.set(
                    counter,
                    count.saturating_sub(self.inherited_events[i].load(Ordering::Relaxed)),
                );
            }
            let remote = a.cache.remote_counts();
            s.set(Counter::RemoteLoads, remote.loads);
            s.set(Counter::RemoteTimeouts, remote.timeouts);
            s.set(Counter::RemoteSecondCopies, remote.second_copies);
            s.set(Counter::RemoteLoneCopies, remote.lone_copies);
            if let Some(e) = a.cache.store_failure() {
                self.tree().notice(Notice::StoreFailed, e.0);
            }
        }
    }

    /// Notes, in the child after fork, that the cache's counts so far are the parent's.
    pub(super) fn inherit_events(&self, active: &Active) {
        for (inherited, (_, count)) in
            self.inherited_events.iter().zip(cache_events(&active.cache.counters()))
        {
            inherited.store(count, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::{READ_WRITE, Spec, Touch, World};
    use super::*;
    use crate::region::PageState;
    use crate::testing::any_page;

    const PAGES: usize = 16;

    fn write(w: &World, pages: core::ops::Range<usize>) {
        // These compress well, and none is one word over and over.
        w.write(pages, |page, b| *b = any_page(16 * page as u64 + 4));
    }

    fn in_limbo(w: &World) -> usize {
        w.count(|state| matches!(state, PageState::Limbo(_)))
    }

    /// A world of which 8 pages are stored, 6 in limbo and 2 resident.
    fn world() -> World {
        let w = World::new(Spec::roomy(PAGES));
        w.map(0, PAGES, READ_WRITE);
        write(&w, 0..8);
        w.page_out();
        write(&w, 8..PAGES);
        w.sweep(false);
        write(&w, 15..16);
        write(&w, 10..11);
        assert_eq!((w.pager.stored_pages(), in_limbo(&w), w.pager.resident_pages()), (8, 6, 2));
        w
    }

    #[test]
    fn memory_outside_is_what_is_not_counted_already() {
        let w = world();
        // The cache was never asked.
        w.pager.own.store(0, Ordering::Relaxed);
        w.pager.set_outside(1000);
        assert!(w.pager.own_pages() > 0);
        assert_eq!(w.pager.used_pages(), 1000);
        // The kernel's count is of a moment ago, when there was less.
        w.pager.set_outside(1);
        assert_eq!(w.pager.outside_pages(), 0);
    }

    #[test]
    fn a_change_is_published_once_it_matters() {
        let tree: &'static _ = Box::leak(crate::control::zeroed_tree());
        let pager = Pager::new();
        pager.connect(tree, tree.claim(1).expect("a slot"));
        let publish = |pages: i64, always: bool| {
            pager.set_outside(pages);
            pager.publish(always);
            (pager.published_pages(), tree.used())
        };
        assert_eq!([publish(31, false), publish(32, false)], [(0, 0), (32, 32)]);
        assert_eq!([publish(1, false), publish(0, false)], [(32, 32), (0, 0)]);
        assert_eq!(publish(1, true), (1, 1));
    }

    #[test]
    fn frames_of_the_cache_that_relatives_have_go_on_counting() {
        let w = world();
        w.pager.recount_own();
        let (own, used) = (w.pager.own_pages(), w.pager.used_pages());
        w.pager.sharing.share_cache(6);
        // As if the cache had grown since the last count, and then as if it had shrunk.
        w.pager.own.store(own - 1, Ordering::Relaxed);
        w.pager.recount_own();
        assert_eq!(w.pager.used_pages(), used);
        w.pager.own.store(own + 10, Ordering::Relaxed);
        w.pager.recount_own();
        assert_eq!((w.pager.own_pages(), w.pager.used_pages()), (own, used + 6));
    }

    #[test]
    fn a_child_begins_with_what_is_its_own() {
        let w = world();
        let p = &w.pager;
        let stores = || {
            p.publish_gauges();
            p.slot().get(Counter::PoolStores)
        };
        assert_eq!(stores(), 8);
        let is_good = w.fork(&mut w.thread(), |thread| {
            assert_eq!(stores(), 0);
            // The parent counts what is resident or in the pool, and needs what is stored.
            assert_eq!(p.used_pages(), p.limbo_pages() + p.own_pages() - p.pool_pages());
            let (used, needed) = (p.used_pages(), p.needed_pages());
            assert_eq!(needed, p.limbo_pages());
            assert_eq!(thread.access(w.at(15), true, |b| b[0] = 1), Touch::Done);
            assert_eq!((p.used_pages(), p.needed_pages()), (used + 1, needed + 1));
            w.age_out(PAGES);
            assert_eq!((in_limbo(&w), stores()), (0, 6));
        });
        assert!(is_good);
        assert_eq!((stores(), p.uncounted_pages()), (8, 0), "the parent counts all as before");
    }
}
