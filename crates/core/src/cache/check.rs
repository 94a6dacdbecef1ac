//! The whole-structure checker: every counting equation of the cache.

use super::counters::Counters;
use super::entry::{Ends, Entry, Mark};
use super::records::NONE;
use super::state::State;
use super::{AreaState, Location, OWN_AREA, RAW, SwapCache, SwapEntry};
use crate::pool::Handle;
use crate::store::Store;
use crate::sys::PAGE_SIZE;

/// The result of a walk over all entries: pages by the place where they are, and bytes.
#[derive(Default)]
struct Found {
    same: u64,
    /// In the pool, each with an object of its own.
    alone: u64,
    grouped: u64,
    stored: u64,
    gone: u64,
    /// Pages that are not compressed, in any place.
    raw: u64,
    kept: u64,
    /// Kept copies in the pool, and their bytes.
    kept_in_pool: (u64, usize),
    alone_bytes: usize,
    stored_bytes: u64,
}

impl Found {
    fn pool(&self) -> u64 {
        self.alone + self.grouped
    }
}

impl<S: Store> SwapCache<S> {
    /// Panics on any broken invariant. Waits for flushes under way; costs as much as walking
    /// everything.
    pub fn check(&self) {
        let mut writer = self.writer.lock();
        self.settle(&mut writer);
        let s = self.state.lock();
        s.entries.check();
        s.clusters.check();
        s.pools.iter().for_each(|p| p.check());
        s.check_groups();

        let c = s.counters_now();
        let mut found = Found::default();
        for id in s.entries.ids() {
            s.check_entry(s.entries.get(id), &mut found);
        }
        s.check_sums(&c, &found);
        check_ways(&c, &found);
        s.check_lists(&found);
        s.check_clusters(&found);
        s.check_keys();
    }
}

impl<S: Store> State<S> {
    /// One entry is where it says, and counts there.
    fn check_entry(&self, e: &Entry, found: &mut Found) {
        found.kept += u64::from(e.kept);
        match e.location() {
            Location::Free => return,
            Location::Same(_) => found.same += 1,
            Location::Gone => {
                found.gone += 1;
                assert!(e.kept != 0, "only a copy may be gone");
            }
            Location::Pool(raw) => {
                found.alone += 1;
                let handle = Handle::from_raw(raw).expect("an entry keeps a handle");
                let is_known = self.pools[usize::from(e.pool)].holds(handle);
                assert!(is_known, "the pool knows the object");
                assert_eq!(handle.len(), usize::from(e.len));
                found.raw += u64::from(e.codec == RAW);
                assert!(e.codec != RAW || usize::from(e.len) == PAGE_SIZE, "a page as it is");
                found.alone_bytes += usize::from(e.len);
                if e.kept != 0 {
                    let (pages, bytes) = found.kept_in_pool;
                    found.kept_in_pool = (pages + 1, bytes + usize::from(e.len));
                }
            }
            Location::Grouped(_) => {
                // The group is not asked: it has as many members as entries that name it
                // (`check_groups`).
                found.grouped += 1;
                assert!(e.kept == 0 && e.len == 0, "a page in a group has no object of its own");
            }
            Location::Stored(_) => {
                found.stored += 1;
                found.stored_bytes += u64::from(e.len);
                found.raw += u64::from(e.codec == RAW);
            }
        }
        let is_there = self.areas[usize::from(e.area)].state != AreaState::Unused;
        assert!(is_there, "an entry's area exists");
    }

    /// Asserts that counters, pools and clusters agree with what was found.
    fn check_sums(&self, c: &Counters, found: &Found) {
        let pool = found.pool();
        assert_eq!(c.stored_pages, found.same + pool + found.stored + found.gone);
        assert_eq!((c.gone_pages, c.kept_pages), (found.gone, found.kept));
        assert_eq!(c.stored_pages, u64::from(self.entries.in_use()));
        assert_eq!(
            (c.same_filled_pages, c.pool_pages, c.store_pages),
            (found.same, pool, found.stored)
        );
        assert_eq!(c.incompressible_pages, found.raw);
        assert_eq!(c.grouped_pages, found.grouped);
        let (parts, part_bytes) = self.group_parts();
        let objects = found.alone as usize + parts;
        assert_eq!(objects, self.pools.iter().map(|p| p.objects()).sum::<usize>());
        let pool_bytes = found.alone_bytes + part_bytes;
        assert_eq!(pool_bytes, self.pools.iter().map(|p| p.object_bytes()).sum::<usize>());
        assert_eq!(found.stored_bytes, self.clusters.stats().live_bytes);
        // zram's columns and the store's.
        assert_eq!(c.orig_data_bytes, (found.same + pool) * PAGE_SIZE as u64);
        assert_eq!(
            (c.compr_data_bytes, c.store_data_bytes),
            (pool_bytes as u64, found.stored_bytes)
        );
        assert!(
            c.mem_used_bytes >= c.compr_data_bytes
                && c.mem_used_bytes.is_multiple_of(PAGE_SIZE as u64)
        );
        assert!(c.mem_used_max_bytes >= c.mem_used_bytes || pool == 0);
    }

    /// The lists of the young, the old, the ancient and the kept hold the pool's entries, each
    /// once.
    fn check_lists(&self, found: &Found) {
        let pool = found.pool();
        let is_pooled =
            |e: &Entry| matches!(e.location(), Location::Pool(_) | Location::Grouped(_));
        let in_list = |list: &Ends, belongs: fn(&Entry) -> bool| {
            let (mut n, mut prev, mut at) = (0, NONE, list.first);
            while at != NONE {
                let e = self.entries.get(at);
                assert!(is_pooled(e) && e.prev == prev && belongs(e));
                n += 1;
                assert!(n <= pool, "the list is a ring");
                (prev, at) = (at, e.next);
            }
            assert_eq!((n, prev), (u64::from(list.len), list.last));
            n
        };
        assert_eq!(
            (in_list(&self.kept.list, |e| e.kept == 1), self.kept.bytes),
            found.kept_in_pool
        );
        let young =
            in_list(&self.young, |e| e.kept == 0 && !e.is(Mark::Old) && !e.is(Mark::Ancient));
        let old = in_list(&self.old, |e| e.kept == 0 && e.is(Mark::Old) && !e.is(Mark::Ancient));
        let ancient = in_list(&self.ancient, |e| e.kept == 0 && e.is(Mark::Ancient));
        assert_eq!(young + old + ancient + found.kept_in_pool.0, pool);
    }

    /// Each cluster's list holds its entries, each once.
    fn check_clusters(&self, found: &Found) {
        let mut listed = 0;
        for cluster in self.clusters.ids() {
            if let Some((live, live_bytes)) = self.clusters.live(cluster) {
                let (mut n, mut bytes, mut prev, mut at) =
                    (0, 0, NONE, self.clusters.first(cluster));
                while at != NONE {
                    let e = self.entries.get(at);
                    assert!(
                        matches!(e.location(), Location::Stored(p) if p.cluster == cluster)
                            && e.prev == prev
                    );
                    n += 1;
                    assert!(n <= live, "a cluster's list is a ring");
                    bytes += u32::from(e.len);
                    (prev, at) = (at, e.next);
                }
                assert_eq!((n, bytes), (live, live_bytes));
                listed += u64::from(n);
            }
        }
        assert_eq!(listed, found.stored);
    }

    /// Each key names its own entry.
    fn check_keys(&self) {
        let mut keyed = 0;
        let never_begun = &self.areas[self.areas_end..];
        assert!(never_begun.iter().all(|a| a.state == AreaState::Unused));
        for (i, area) in self.areas.iter().enumerate().skip(1) {
            let mut from = 0;
            while let Some((offset, id)) = area.next(from) {
                let e = self.entries.get(id);
                assert!(
                    area.state != AreaState::Unused
                        && usize::from(e.area) == i
                        && e.location() != Location::Free,
                    "a key's entry"
                );
                assert_eq!(self.lookup(SwapEntry::new(i as u8, offset)), Some(id));
                keyed += 1;
                let Some(next) = offset.checked_add(1) else { break };
                from = next;
            }
        }
        let in_keyed_areas = |id: &u32| {
            let e = self.entries.get(*id);
            e.location() != Location::Free && e.area != OWN_AREA
        };
        assert_eq!(self.entries.ids().filter(in_keyed_areas).count(), keyed);
    }
}

/// Where pages come from and where they go.
fn check_ways(c: &Counters, found: &Found) {
    assert_eq!(c.stores, c.same_filled_stores + c.pool_stores + c.direct_stores + c.failed_stores);
    assert_eq!(c.stored_pages + c.invalidates, c.stores - c.failed_stores);
    assert!(c.incompressible_stores <= c.pool_stores);
    assert!(c.dispersed_pages <= c.written_back_pages && c.written_back_pages <= c.pool_stores);
    assert!(found.grouped + c.dispersed_pages <= c.group_stores);
    assert!(c.unpacked_groups <= c.group_loads && c.group_loads <= c.pool_loads);
    let rejected =
        c.reject_full + c.reject_alloc_failed + c.reject_compress_poor + c.reject_compress_failed;
    assert_eq!(c.cold_stores + rejected, c.direct_stores + c.reject_reclaim_failed);
    assert_eq!(c.failed_stores, c.reject_reclaim_failed + c.reject_no_slot);
}
