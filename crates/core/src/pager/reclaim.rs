//! Reclaim on demand: a user outside wants memory of this process, whether or not it is short
//! (`uzswap reclaim`).
//!
//! ```text
//!   Pages: sweep, age out, as the evictor does, but on and on ──> Limbo: age out what is left ──> Pool: write it back,
//!                                                                                            or pack it without a store
//! ```
//!
//! It ends when enough is free, or when every page that was there at the beginning had its turn: a
//! program that goes on running brings pages back, and reclaim does not chase them. It is done in
//! portions, between which the evictor sees to its other duties.

use super::ahead::Ahead;
use super::sweep::{SWEEP_LOOK_PAGES, Victims};
use super::{Active, Locked, Pager};
use crate::control::orders::ALL_PAGES;
use crate::policy::BATCH_PAGES;
use crate::region::table::LEAF_BYTES;

/// How long a portion takes, roughly.
const PORTION_NS: u64 = 8_000_000;
/// Bytes written back in one step: enough to keep a disk busy.
const WRITE_BYTES: usize = 4 << 20;
/// Entries packed in one step.
const PACK_PAGES: usize = 32;
/// Fruitless steps in a row after which the rest of limbo is left alone.
const FRUITLESS_MAX: u32 = 8;
/// A step that found the rest of limbo in other threads' hands looks again after this long, and
/// [`WAITS_MAX`] times at most in all.
const WAIT_NS: u64 = 50_000;
const WAITS_MAX: u32 = 20_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Pages,
    Limbo,
    Pool,
}

/// A reclaim that is under way.
pub struct Reclaim {
    stage: Stage,
    /// Used pages at which it is enough.
    enough: i64,
    /// Pages that may still be taken out.
    left: i64,
    /// Sweeps that took nothing, and the number of them after which nothing is left to take.
    barren: usize,
    barren_max: usize,
    fruitless: u32,
    waits: u32,
}

impl Pager {
    /// Begins to free `pages` pages that count against the limit, or [`ALL_PAGES`].
    pub fn begin_reclaim(&self, pages: u64) -> Reclaim {
        // Nothing is brought ahead of a thread any more: it would go again at once.
        self.enter().ahead = Ahead::NOTHING;
        self.forget_refusals();
        self.try_failed_store();
        let enough = match pages {
            ALL_PAGES => i64::MIN,
            _ => self.used_pages().saturating_sub_unsigned(pages),
        };
        // The words that the hand passes in a round, roughly.
        let words =
            self.resident_pages().max(0) as usize + self.ranges.total_bytes() / LEAF_BYTES * 8;
        Reclaim {
            stage: Stage::Pages,
            enough,
            left: self.resident_pages(),
            barren: 0,
            barren_max: 16 + 4 * words / SWEEP_LOOK_PAGES,
            fruitless: 0,
            waits: 0,
        }
    }

    /// Gives back memory that only work in hand needs: the process has none.
    pub fn give_buffers_back(&self) {
        if let Some(active) = self.active() {
            active.cache.give_buffers_back();
            self.recount_own();
            self.publish(true);
        }
    }

    /// Does a portion. True: it has ended.
    pub fn reclaim_portion(&self, r: &mut Reclaim) -> bool {
        let Some(active) = self.active().filter(|_| !self.keeps_all()) else { return true };
        let until = crate::sys::now_ns() + PORTION_NS;
        let is_done = loop {
            if self.used_pages() <= r.enough || self.reclaim_step(active, r) {
                break true;
            }
            self.publish(false);
            if crate::sys::now_ns() >= until {
                break false;
            }
        };
        self.publish(true);
        is_done
    }

    fn reclaim_step(&self, active: &Active, r: &mut Reclaim) -> bool {
        match r.stage {
            Stage::Pages => {
                let mut s = self.enter();
                let mut victims = Victims::new(false);
                let taken = self.sweep(&mut s, active, &mut victims, self.batch_pages()).taken;
                let (s, freed, _) = self.age_out(s, active, BATCH_PAGES);
                if taken + freed == 0 && self.waits_for_others(s, r) {
                    return false;
                }
                r.left -= taken as i64;
                r.barren = if taken + freed > 0 { 0 } else { r.barren + 1 };
                if r.left <= 0 || r.barren > r.barren_max {
                    r.stage = Stage::Limbo;
                }
            }
            Stage::Limbo => {
                let (mut s, freed, refused) = self.age_out(self.enter(), active, BATCH_PAGES);
                let is_empty = s.limbo.ready() == 0;
                while is_empty && self.give_frame_back(&mut s, active) {}
                if freed == 0 && self.waits_for_others(s, r) {
                    return false;
                }
                r.fruitless = if freed > 0 && refused == 0 { 0 } else { r.fruitless + 1 };
                if is_empty || r.fruitless > FRUITLESS_MAX {
                    r.stage = Stage::Pool;
                }
            }
            Stage::Pool => {
                let has_store = || active.has_store && active.cache.store_failure().is_none();
                let is_done = if has_store() {
                    // The store may fail now: then the pool is packed.
                    active.cache.shrink(WRITE_BYTES) == 0 && has_store()
                } else {
                    // A user who asks for memory takes time for it.
                    active.cache.set_leisure(true);
                    active.cache.recompress(PACK_PAGES) < PACK_PAGES
                };
                self.recount_own();
                return is_done;
            }
        }
        false
    }

    /// Waits a little if a thread ages a part of limbo. Limbo is a ring: its oldest part has
    /// to be freed before there is room for more, however much else is freed, and the thread that
    /// ages that part may have lost the processor.
    fn waits_for_others(&self, mut s: Locked<'_>, r: &mut Reclaim) -> bool {
        let waits = s.is_ageing() && r.waits < WAITS_MAX;
        drop(s);
        if waits {
            r.waits += 1;
            crate::sys::sleep_ns(WAIT_NS);
        }
        waits
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::{READ_WRITE, Spec, Touch, World};
    use super::*;
    use crate::codec::CodecSpec;
    use crate::control::Counter;
    use crate::store::testing::Fault;
    use crate::testing::page;

    const PAGES: usize = 300;

    /// A world whose pages are all written.
    fn world(has_store: bool) -> World {
        let world = World::new(Spec { slots: 512, has_store, ..Spec::roomy(PAGES) });
        world.map(0, PAGES, READ_WRITE);
        let mut thread = world.thread();
        for i in 0..PAGES {
            assert_eq!(thread.access(world.at(i), true, |b| *b = page(i as u64)), Touch::Done);
        }
        world.pager.recount_own();
        world
    }

    /// Reads all pages, which brings them back.
    fn read_all(w: &World) {
        let mut thread = w.thread();
        for i in 0..PAGES {
            let touch = thread.access(w.at(i), false, |b| assert!(*b == page(i as u64), "{i}"));
            assert_eq!(touch, Touch::Done);
        }
    }

    fn reclaim(w: &World, pages: u64) -> Reclaim {
        let mut r = w.pager.begin_reclaim(pages);
        while !w.pager.reclaim_portion(&mut r) {}
        w.check();
        r
    }

    #[test]
    fn reclaim_ends_when_as_much_is_free_as_was_asked_for() {
        let w = world(false);
        let before = w.pager.used_pages();
        reclaim(&w, 0);
        assert_eq!(w.pager.resident_pages(), PAGES as i64, "nothing was asked for");
        let r = reclaim(&w, 100);
        let freed = before - w.pager.used_pages();
        assert!((100..100 + w.pager.batch_pages() as i64).contains(&freed), "{freed}");
        assert_eq!(r.stage, Stage::Pages);
        let resident = w.pager.resident_pages();
        w.pager.keep_all();
        reclaim(&w, ALL_PAGES);
        assert_eq!(w.pager.resident_pages(), resident, "it is being dumped");
    }

    #[test]
    fn pages_that_come_back_meanwhile_are_not_chased() {
        let w = world(false);
        let (mut r, mut steps) = (w.pager.begin_reclaim(ALL_PAGES), 0);
        while !w.pager.reclaim_step(w.active(), &mut r) {
            read_all(&w);
            steps += 1;
            assert!(steps < 100, "each page has had its turn");
        }
        assert_eq!(w.pager.resident_pages(), PAGES as i64);
        assert!(w.pager.slot().get(Counter::Evictions) >= PAGES as u64);
        w.check();
    }

    #[test]
    fn pages_that_were_refused_before_are_tried_again() {
        let w = world(false);
        let cache = &w.active().cache;
        cache.set_max_pool_bytes(0);
        reclaim(&w, ALL_PAGES);
        let refused = w.pager.slot().get(Counter::EvictionsRefused);
        assert_eq!((w.pager.resident_pages(), refused), (PAGES as i64, PAGES as u64), "once each");
        cache.set_max_pool_bytes(usize::MAX);
        reclaim(&w, ALL_PAGES);
        assert_eq!((w.pager.resident_pages(), w.pager.limbo_pages()), (0, 0));
        assert_eq!(w.pager.stored_pages(), PAGES as i64);
        read_all(&w);
    }

    #[test]
    fn the_pool_goes_to_the_store_or_is_packed_where_there_is_none_that_works() {
        // How many pages are in the pool at the end, and how many were compressed again.
        let end = |has_store: bool, fails: bool, has_failed: bool| {
            let w = world(has_store);
            let cache = &w.active().cache;
            cache.set_recompressor(CodecSpec::parse("zstd:level=1").ok());
            if fails {
                w.store.inspect(|store| store.set_fault(Fault::From(1)));
            }
            if has_failed {
                w.page_out();
                cache.shrink(1);
                assert!(cache.store_failure().is_some());
            }
            reclaim(&w, ALL_PAGES);
            assert_eq!(w.pager.stored_pages(), PAGES as i64);
            let c = cache.counters();
            read_all(&w);
            (c.pool_pages, c.recompressed_pages)
        };
        assert_eq!(end(true, false, false), (0, 0));
        let without = [end(false, false, false), end(true, true, true), end(true, true, false)];
        for (in_pool, packed) in without {
            assert!(in_pool > 0 && packed > 0, "{in_pool} {packed}");
        }
    }
}
