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
