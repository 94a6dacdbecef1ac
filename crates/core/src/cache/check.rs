//! The whole-structure checker: every counting equation of the cache.

use super::entry::{Ends, Entry, Mark};
use super::{AreaState, Location, NONE, OWN_AREA, RAW, SwapCache, SwapEntry};
use crate::pool::Handle;
use crate::store::Store;
use crate::sys::PAGE_SIZE;

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

        let c = &s.counters_now();
        let (mut same, mut pool, mut stored, mut raw_pages) = (0u64, 0u64, 0u64, 0u64);
        let mut grouped = 0u64;
        let (mut pool_bytes, mut stored_bytes) = (0, 0);
        let (mut gone, mut kept, mut kept_in_pool) = (0u64, 0u64, (0u64, 0));
        for id in s.entries.ids() {
            let e = s.entries.get(id);
            kept += u64::from(e.kept);
            if e.kept != 0 && matches!(e.location(), Location::Pool(_)) {
                kept_in_pool = (kept_in_pool.0 + 1, kept_in_pool.1 + usize::from(e.len));
            }
            match e.location() {
                Location::Free => continue,
                Location::Same(_) => same += 1,
                Location::Gone => {
                    gone += 1;
                    assert!(e.kept != 0, "only a copy may be gone");
                }
                Location::Pool(raw) => {
                    pool += 1;
                    let handle = Handle::from_raw(raw).expect("an entry keeps a handle");
                    assert!(
                        s.pools[usize::from(e.pool)].holds(handle),
                        "the pool knows the object"
                    );
                    assert_eq!(handle.len(), usize::from(e.len));
                    raw_pages += u64::from(e.codec == RAW);
                    assert!(e.codec != RAW || usize::from(e.len) == PAGE_SIZE, "a page as it is");
                    pool_bytes += usize::from(e.len);
                }
                Location::Grouped(_) => {
                    // That its group knows it: as many are members as say that they are
                    // (`check_groups`).
                    grouped += 1;
                    assert!(
                        e.kept == 0 && e.len == 0,
                        "a page in a group has no object of its own"
                    );
                }
                Location::Stored(_) => {
                    stored += 1;
                    stored_bytes += u64::from(e.len);
                    raw_pages += u64::from(e.codec == RAW);
                }
            }
            assert!(
                s.areas[usize::from(e.area)].state != AreaState::Unused,
                "an entry's area exists"
            );
        }
        let objects = pool as usize;
        pool += grouped;
        assert_eq!(c.stored_pages, same + pool + stored + gone);
        assert_eq!((c.gone_pages, c.kept_pages), (gone, kept));
        assert_eq!(c.stored_pages, u64::from(s.entries.in_use()));
        assert_eq!((c.same_filled_pages, c.pool_pages, c.store_pages), (same, pool, stored));
        assert_eq!(c.incompressible_pages, raw_pages);
        assert_eq!(c.grouped_pages, grouped);
        let (parts, part_bytes) = s.group_parts();
        assert_eq!(objects + parts, s.pools.iter().map(|p| p.objects()).sum::<usize>());
        pool_bytes += part_bytes;
        assert_eq!(pool_bytes, s.pools.iter().map(|p| p.object_bytes()).sum::<usize>());
        assert_eq!(stored_bytes, s.clusters.stats().live_bytes);
        // zram's columns and the store's.
        assert_eq!(c.orig_data_bytes, (same + pool) * PAGE_SIZE as u64);
        assert_eq!((c.compr_data_bytes, c.store_data_bytes), (pool_bytes as u64, stored_bytes));
        assert!(
            c.mem_used_bytes >= c.compr_data_bytes
                && c.mem_used_bytes.is_multiple_of(PAGE_SIZE as u64)
        );
        assert!(c.mem_used_max_bytes >= c.mem_used_bytes || pool == 0);

        // Where pages come from and where they go.
        assert_eq!(
            c.stores,
            c.same_filled_stores + c.pool_stores + c.direct_stores + c.failed_stores
        );
        assert_eq!(c.stored_pages + c.invalidates, c.stores - c.failed_stores);
        assert!(c.incompressible_stores <= c.pool_stores);
        assert!(c.dispersed_pages <= c.written_back_pages && c.written_back_pages <= c.pool_stores);
        assert!(grouped + c.dispersed_pages <= c.group_stores);
        assert!(c.unpacked_groups <= c.group_loads && c.group_loads <= c.pool_loads);
        let rejected = c.reject_full
            + c.reject_alloc_failed
            + c.reject_compress_poor
            + c.reject_compress_failed;
        assert_eq!(c.cold_stores + rejected, c.direct_stores + c.reject_reclaim_failed);
        assert_eq!(c.failed_stores, c.reject_reclaim_failed + c.reject_no_slot);

        // The lists of the young, the old, the cold and the kept hold the pool's entries, each
        // once.
        let is_pooled =
            |e: &Entry| matches!(e.location(), Location::Pool(_) | Location::Grouped(_));
        let in_list = |list: &Ends, belongs: fn(&Entry) -> bool| {
            let (mut n, mut prev, mut at) = (0, NONE, list.first);
            while at != NONE {
                let e = s.entries.get(at);
                assert!(is_pooled(e) && e.prev == prev && belongs(e));
                n += 1;
                assert!(n <= pool, "the list is a ring");
                (prev, at) = (at, e.next);
            }
            assert_eq!((n, prev), (u64::from(list.len), list.last));
            n
        };
        assert_eq!((in_list(&s.kept.list, |e| e.kept == 1), s.kept.bytes), kept_in_pool);
        let young = in_list(&s.young, |e| e.kept == 0 && !e.is(Mark::Old) && !e.is(Mark::Cold));
        let old = in_list(&s.old, |e| e.kept == 0 && e.is(Mark::Old) && !e.is(Mark::Cold));
        let cold = in_list(&s.cold, |e| e.kept == 0 && e.is(Mark::Cold));
        assert_eq!(young + old + cold + kept_in_pool.0, pool);

        // Each cluster's list holds its entries, each once.
        let mut listed = 0;
        for cluster in s.clusters.ids() {
            if let Some((live, live_bytes)) = s.clusters.live(cluster) {
                let (mut n, mut bytes, mut prev, mut at) = (0, 0, NONE, s.clusters.first(cluster));
                while at != NONE {
                    let e = s.entries.get(at);
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
        assert_eq!(listed, stored);

        // Each key names its own entry.
        let mut keyed = 0;
        for (i, area) in s.areas.iter().enumerate().skip(1) {
            let mut from = 0;
            while let Some((offset, id)) = area.next(from) {
                let e = s.entries.get(id);
                assert!(
                    area.state != AreaState::Unused
                        && usize::from(e.area) == i
                        && e.location() != Location::Free,
                    "a key's entry"
                );
                assert_eq!(s.lookup(SwapEntry::new(i as u8, offset)), Some(id));
                keyed += 1;
                let Some(next) = offset.checked_add(1) else { break };
                from = next;
            }
        }
        let in_keyed_areas = |id: &u32| {
            let e = s.entries.get(*id);
            e.location() != Location::Free && e.area != OWN_AREA
        };
        assert_eq!(s.entries.ids().filter(in_keyed_areas).count(), keyed);
    }
}
