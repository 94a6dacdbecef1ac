//! A user changes how the run compresses: the process follows (`uzswap::control::tuning`).

use core::sync::atomic::Ordering;

use super::{Active, Pager};

impl Pager {
    /// The evictor's tick, and the beginning of paging: looks whether anything was changed.
    pub fn follow_tuning(&self) {
        let Some(active) = self.active() else { return };
        let tuning = &self.tree().tuning;
        let changes = tuning.changes();
        if self.tuned.swap(changes, Ordering::Relaxed) == changes {
            return;
        }
        let Some(now) = tuning.get() else { return };
        let cache = &active.cache;
        cache.set_recompressor(now.recompressor);
        cache.set_pool(now.pool);
        cache.set_accept_threshold_percent(now.accept_threshold_percent);
        cache.fix_codec(now.compressor);
        self.set_pool_percent(active, now.pool_percent);
    }

    fn set_pool_percent(&self, active: &Active, percent: u32) {
        if active.pool_percent.swap(percent, Ordering::Relaxed) != percent {
            let can_leave = active.has_store && active.cache.store_failure().is_none();
            self.balance.begin(percent, can_leave);
            self.limit_pool(active);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::{READ_WRITE, Spec, World};
    use crate::codec::CodecSpec;
    use crate::control::tuning::Compression;
    use crate::pool::PoolKind;
    use crate::sys::PAGE_SIZE;
    use crate::testing::any_page;

    const PAGES: usize = 64;
    const FIRST: Compression = Compression {
        compressor: None,
        recompressor: None,
        pool: PoolKind::Zsmalloc,
        pool_percent: 0,
        accept_threshold_percent: 90,
    };

    /// Frames of the pool that the pages take, and bytes of their objects, once `now` is followed
    /// and all have gone out with contents of another kind.
    fn gone_by(w: &World, kind: u64, now: Compression) -> (u64, u64) {
        w.pager.tree().tuning.set(&now);
        w.pager.follow_tuning();
        w.write(0..PAGES, |page, b| *b = any_page(16 * page as u64 + kind));
        w.page_out();
        w.check();
        let c = w.active().cache.counters();
        assert_eq!(c.pool_pages, PAGES as u64);
        (c.mem_used_bytes / PAGE_SIZE as u64, c.compr_data_bytes)
    }

    #[test]
    fn pages_that_go_out_follow() {
        let w = World::new(Spec::roomy(PAGES));
        w.map(0, PAGES, READ_WRITE);
        let all = PAGES as u64;
        let (close, bytes) = gone_by(&w, 4, FIRST);
        // Two to a frame, however short they are.
        let (by_twos, _) = gone_by(&w, 5, Compression { pool: PoolKind::Zbud, ..FIRST });
        assert!(close < all / 2 && by_twos >= all / 2, "{close} {by_twos}");
        assert_eq!(gone_by(&w, 6, FIRST), (close, bytes));
        let fast = gone_by(&w, 8, FIRST).1;
        let zstd = CodecSpec::parse("zstd:level=3").ok();
        let dense = gone_by(&w, 9, Compression { compressor: zstd, ..FIRST }).1;
        assert!(dense < fast, "{dense} {fast}");
    }

    #[test]
    fn the_pools_share_is_the_users_until_it_adapts_again() {
        let w = World::new(Spec::roomy(PAGES));
        let percent = |pool_percent: u32| {
            w.pager.tree().tuning.set(&Compression { pool_percent, ..FIRST });
            w.pager.follow_tuning();
            w.pager.balance.percent()
        };
        let first = percent(0);
        assert_eq!((percent(37), percent(0)), (37, first));
    }
}
