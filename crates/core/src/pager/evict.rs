//! Eviction: when memory is freed, how much, and by whom.
//!
//! ```text
//!   sweep (lock)                 age out: claim (lock) -> compress (no lock) -> publish (lock) -> give frames back
//!   RESIDENT --take_out--> LIMBO ------------------------------------------------> STORED | NONE (all zero)
//! ```
//!
//! The evictor keeps free pages above a mark; a faulting thread that finds no room does the same
//! steps, or waits for those that do (`room.rs`). Which pages a step takes is in `sweep.rs`, what
//! becomes of those in limbo in `age_out.rs`, and the rules of it in `policy/`.

use core::sync::atomic::Ordering;

use super::sweep::Victims;
use super::{Active, Locked, Pager};
use crate::control::{Counter, Notice};
use crate::policy::sweeps_first;
use crate::policy::{DIRECT_PAGES, SWEEP_PAGES, WINDOW_LEAST_PAGES};
use crate::sys::HUGE_PAGES;
use crate::sys::sync::look_for_abandoned;

/// Pages that the evictor frees before it sees to its other duties, some 10 ms of work.
pub const EVICTOR_PAGES: usize = 2048;
/// Portions that the evictor brings ahead, while memory is not short, before it sees to its other
/// duties.
const AHEAD_PORTIONS: u32 = 64;
/// Entries that the evictor compresses again before it sees to its other duties ([`PACK_PAGES`]),
/// and before it looks whether memory is short ([`PACK_BATCH`]).
const PACK_PAGES: usize = 512;
const PACK_BATCH: usize = 8;
/// Bytes that a fruitless step asks the cache to write back.
const SHRINK_BYTES: usize = 256 << 10;
/// Fruitless steps that a thread that wants room tolerates before it goes over the limit rather
/// than wait for ever.
const FRUITLESS_MAX: u32 = 64;
/// [`FRUITLESS_MAX`] in a tree of processes: a relative's evictor may free memory, which takes a
/// few of its ticks.
const FRUITLESS_IN_TREE: u32 = 16 * FRUITLESS_MAX;
/// [`FRUITLESS_MAX`] of a process that went over the limit a moment ago.
const FRUITLESS_AGAIN: u32 = 2;
/// The pause of a thread that found nothing to evict, before it looks again.
const WAIT_NS: u64 = 50_000;
/// The most such pauses in a row, before the thread goes over the limit: a disk that hangs must not
/// hang the program for ever.
const WAITS_MAX: u32 = 400_000;

/// Waits of that length, a second or more together, after which the thread asks whether the holder
/// of the claims that it waits for still exists.
const ABANDONED_WAITS: u32 = 20_000;

/// The outcome of a step of eviction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reclaimed {
    /// Pages taken out of the program.
    pub taken: usize,
    /// Frames given back.
    pub freed: usize,
    /// Pages that neither pool nor store would have: they are where they were.
    pub refused: usize,
}

impl Reclaimed {
    /// Nothing came of the step, and another at once would be as fruitless.
    fn is_fruitless(&self) -> bool {
        self.freed == 0 && (self.taken == 0 || self.refused > 0)
    }
}

/// Whether `pages` that come in are a window.
fn is_window(pages: i64) -> bool {
    (WINDOW_LEAST_PAGES as i64..HUGE_PAGES as i64).contains(&pages)
}

impl Pager {
    /// The evictor's work until free pages are above the high mark again, or a portion of it.
    /// Returns what was done.
    pub fn evict_to_watermark(&self) -> Reclaimed {
        let mut sum = Reclaimed::default();
        let Some(active) = self.active().filter(|_| !self.keeps_all()) else { return sum };
        self.evictor_asked.store(false, Ordering::Release);
        let (mut fruitless, mut ahead) = (0, 0);
        while sum.freed < EVICTOR_PAGES {
            if self.is_pool_too_large() {
                self.shrink_pool(active);
            }
            let mut s = self.enter();
            let has_brought = self.bring_ahead(&mut s, active);
            // A process that waits for its turn brings no windows in, so it needs no frames ready
            // for them.
            while self.slot().turn.is_paused() && self.give_stock_back(&mut s, active) {}
            let short = self.excess(0) + self.watermarks().1;
            if short <= 0 {
                self.size.store(self.used_pages(), Ordering::Relaxed);
            }
            let short = short.min(self.above_size());
            let is_idle = short <= 0 && !self.lacks_stock(&s) || self.stays_at_rest();
            if is_idle {
                ahead += 1;
                if has_brought && ahead < AHEAD_PORTIONS {
                    continue;
                }
                break;
            }
            let (mut s, r) = self.reclaim(s, active, short.max(0) as usize, None);
            let is_fruitless = r.is_fruitless() && !self.give_frame_back(&mut s, active);
            drop(s);
            if r.freed > 0 {
                self.room.wake_some();
            }
            sum.taken += r.taken;
            sum.freed += r.freed;
            sum.refused += r.refused;
            if is_fruitless {
                fruitless += 1;
                if fruitless > 2 {
                    break;
                }
            } else {
                fruitless = 0;
            }
            self.publish(false);
        }
        self.room.wake_all();
        sum
    }

    /// Between two rounds of eviction: compresses idle entries again until memory is short, or some
    /// 5 ms are over. Returns whether there is more to do.
    pub fn recompress_idle(&self) -> bool {
        let Some(active) = self.active() else { return false };
        let is_short = || {
            self.evictor_asked.load(Ordering::Acquire)
                || !self.refusals.rests() && self.excess(0) + self.watermarks().0 > 0
        };
        let mut left = PACK_PAGES;
        while left > 0 && !is_short() {
            if active.cache.recompress(PACK_BATCH) < PACK_BATCH {
                break;
            }
            left -= PACK_BATCH;
        }
        if left < PACK_PAGES {
            active.cache.pause_recompression();
            self.recount_own();
        }
        left == 0
    }

    /// Frees memory until `pages` more fit, or nothing can be freed any more; or waits until other
    /// threads have freed it (`room.rs`).
    pub(super) fn make_room<'a>(
        &'a self,
        s: Locked<'a>,
        active: &Active,
        pages: i64,
    ) -> Locked<'a> {
        // Ready frames are looked for once: the pages that can go may be in other threads' hands.
        let wants_stock = is_window(pages) && self.is_nearly_full();
        if self.has_room(&s, pages, wants_stock) {
            return s;
        }
        if self.refusals.rests() {
            self.end_rest();
        }
        let (mut s, evicts) = self.enter_room(s, |s| self.has_room(s, pages, false));
        if evicts {
            s = self.evict_for(s, active, pages, wants_stock);
            self.leave_room(&mut s);
        }
        s
    }

    /// Whether `pages` more fit. `wants_stock`: as frames that are ready for a window.
    fn has_room(&self, s: &Locked<'_>, pages: i64, wants_stock: bool) -> bool {
        self.excess(pages) <= 0 && !wants_stock
            || pages == HUGE_PAGES as i64 && self.has_room_for_huge(s)
            || is_window(pages) && s.limbo.has_stock() && self.excess(0) <= 0
    }

    /// Evicts until `pages` more fit, or nothing can be freed any more.
    fn evict_for<'a>(
        &'a self,
        mut s: Locked<'a>,
        active: &Active,
        pages: i64,
        mut wants_stock: bool,
    ) -> Locked<'a> {
        let (mut fruitless, mut waits) = (0, 0);
        let fruitless_max = match () {
            () if self.went_over() => FRUITLESS_AGAIN,
            () if self.is_alone() => FRUITLESS_MAX,
            () => FRUITLESS_IN_TREE,
        };
        while !self.has_room(&s, pages, wants_stock) {
            if self.is_pool_too_large() {
                drop(s);
                self.shrink_pool(active);
                s = self.enter();
            }
            let r;
            let batch = if is_window(pages) { self.batch_pages() } else { DIRECT_PAGES };
            (s, r) = self.reclaim(s, active, self.excess(pages).max(8) as usize, Some(batch));
            if core::mem::take(&mut wants_stock) && self.excess(pages) <= 0 {
                continue;
            }
            let is_ageing = s.is_ageing();
            let idle = r.is_fruitless() && !is_ageing;
            if r.is_fruitless() && self.excess_of_tree(pages) <= 0 {
                // The pages above this process's share cannot go (they are locked, say), and the
                // tree has room.
                self.slot().share.unbound();
            } else if r.is_fruitless() && !(idle && self.give_frame_back(&mut s, active)) {
                // Pages that others have claimed are on their way to the cache, or to the disk:
                // wait for them.
                fruitless += !is_ageing as u32;
                waits += 1;
                if fruitless % FRUITLESS_MAX == 1 {
                    self.tree().stuck.fetch_add(1, Ordering::AcqRel);
                }
                if fruitless > fruitless_max || waits > WAITS_MAX {
                    self.tree().notice(Notice::OverLimit, 0);
                    // Serve over the limit: a program that is refused memory is a dead program.
                    self.go_over(pages);
                    break;
                }
                drop(s);
                if waits % ABANDONED_WAITS == 0 {
                    look_for_abandoned();
                }
                // There was nothing to evict, so perhaps the pool is too large.
                self.shrink_pool(active);
                crate::sys::sleep_ns(WAIT_NS);
                s = self.enter();
            } else {
                fruitless = 0;
            }
        }
        s
    }

    /// Whether windows come in and the evictor is to have frames ready for them, taken from other
    /// pages: the process uses no more memory by that.
    fn lacks_stock(&self, s: &Locked<'_>) -> bool {
        self.is_nearly_full()
            && !self.slot().turn.is_paused()
            && s.limbo.wants_stock(self.batch_pages())
    }

    /// Writes a portion of the pool back.
    fn shrink_pool(&self, active: &Active) {
        active.cache.shrink(SHRINK_BYTES);
        self.recount_own();
    }

    /// One step: ages a batch out of limbo if limbo has enough, else sweeps. `direct`: the size of
    /// the batch that a thread waits for; `None`: none does.
    fn reclaim<'a>(
        &'a self,
        mut s: Locked<'a>,
        active: &Active,
        want: usize,
        direct: Option<usize>,
    ) -> (Locked<'a>, Reclaimed) {
        let (mut r, mut looked) = (Reclaimed::default(), 0);
        if self.is_ending() {
            return (s, r);
        }
        let most = self.batch_pages();
        // A thread that waits for one page does not wait for a whole batch.
        let batch = direct.unwrap_or(most);
        let is_large = batch == most;
        if sweeps_first(s.limbo.ready(), self.limbo_target()) {
            let wants_lone = self.look_for_lone(&mut s, active);
            let mut victims = Victims::new(wants_lone);
            let swept = self.sweep(&mut s, active, &mut victims, batch.max(SWEEP_PAGES));
            r.taken = swept.taken;
            looked = swept.looked;
            if direct.is_some() {
                self.add(Counter::DirectEvictions, r.taken as u64);
            }
            let left;
            (s, left) = self.leave_together(s, active, &mut victims.lone);
            (r.taken, r.freed, r.refused) =
                (r.taken + left.taken, r.freed + left.freed, left.refused);
        }
        if r.freed > 0 && !(is_large && direct.is_some()) {
            // Pages that needed no limbo have made room, so those in limbo can wait until a whole
            // batch is due.
            self.note_step(looked, r.freed);
            return (s, r);
        }
        // While limbo is filling up towards its target its pages are not old; but memory is short
        // now. A thread that waits for one page does not wait for frames that others would get.
        let want = if is_large && s.limbo.wants_stock(most) { most } else { want.min(batch) };
        let (s, aged, refused) = self.age_out_batch(s, active, want, is_large);
        (r.freed, r.refused) = (r.freed + aged, r.refused + refused);
        self.note_step(looked, r.freed);
        (s, r)
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::{READ_WRITE, Spec, Touch, World};
    use super::*;
    use core::sync::atomic::{AtomicBool, AtomicU32};

    /// More than a process keeps however full the tree is.
    const PAGES: usize = 300;

    /// A world whose pages are all written, with a limit that leaves room for `room` more.
    fn world(room: i64) -> World {
        let world = World::new(Spec::roomy(PAGES));
        world.map(0, PAGES, READ_WRITE);
        let mut thread = world.thread();
        for page in 0..PAGES {
            let touch = thread.access(world.at(page), true, |b| b[7] = page as u8 | 1);
            assert_eq!(touch, Touch::Done);
        }
        world.pager.recount_own();
        set_room(&world, room);
        world
    }

    fn set_room(w: &World, room: i64) {
        w.pager.tree().limit_pages.store(w.pager.used_pages() + room, Ordering::Relaxed);
        w.pager.publish(true);
    }

    /// As [`world`], where the program has locked all pages.
    fn locked(room: i64) -> World {
        let world = world(0);
        world.lock_in_memory(&world.thread(), 0, PAGES, true);
        set_room(&world, room);
        world
    }

    /// Whether the user was told that the process is over its limit.
    fn is_noticed(w: &World) -> bool {
        w.pager.tree().notices.load(Ordering::Relaxed) & 1 << Notice::OverLimit as u32 != 0
    }

    #[test]
    fn the_evictor_works_up_to_the_high_mark_and_no_further() {
        let w = world(0);
        let missing = || w.pager.excess(0) + w.pager.watermarks().1;
        set_room(&w, w.pager.watermarks().1);
        assert_eq!((missing(), w.pager.evict_to_watermark()), (0, Reclaimed::default()));
        set_room(&w, w.pager.watermarks().1 - 1);
        let r = w.pager.evict_to_watermark();
        assert!(r.freed > 0 && r.taken >= r.freed && r.refused == 0, "{r:?}");
        assert_eq!(missing(), 0);
        w.check();
        set_room(&w, 0);
        w.pager.keep_all();
        assert_eq!(w.pager.evict_to_watermark(), Reclaimed::default(), "it is being dumped");
    }

    #[test]
    fn a_step_fills_limbo_up_to_its_target_before_it_empties_it() {
        let w = world(4096);
        let (pager, active) = (&w.pager, w.active());
        let target = pager.limbo_target();
        let reclaim = |want: usize, direct: Option<usize>| {
            let (s, r) = pager.reclaim(pager.enter(), active, want, direct);
            assert_eq!(r.refused, 0);
            (r.taken, r.freed, s.limbo.ready() as i64 - target)
        };
        let few = target as usize - 1;
        pager.take_run(&mut pager.enter(), active, w.at(0), few, false);
        // A thread waits for a few pages only, whatever it wants.
        assert_eq!(reclaim(100, Some(8)), (SWEEP_PAGES, 8, SWEEP_PAGES as i64 - 9));
        assert_eq!(reclaim(100, Some(8)), (0, 8, SWEEP_PAGES as i64 - 17));
        assert_eq!(pager.slot().get(Counter::DirectEvictions), SWEEP_PAGES as u64);
        assert_eq!(reclaim(SWEEP_PAGES - 17, None), (0, SWEEP_PAGES - 17, 0));
        assert_eq!(reclaim(1, None), (0, 1, -1));
        assert!(reclaim(1, None).0 > 0, "limbo is below its target");
        assert_eq!(pager.slot().get(Counter::DirectEvictions), SWEEP_PAGES as u64);
        w.check();
        pager.ending.store(true, Ordering::Release);
        assert_eq!(pager.reclaim(pager.enter(), active, 9, None).1, Reclaimed::default());
    }

    #[test]
    fn a_thread_that_finds_nothing_to_evict_goes_over_the_limit_and_says_so() {
        let w = locked(-10);
        assert!(!is_noticed(&w));
        drop(w.pager.make_room(w.pager.enter(), w.active(), 1));
        assert!(w.pager.excess(1) <= 0 && w.pager.refusals.rests());
        assert!(is_noticed(&w));
        assert_ne!(w.pager.tree().stuck.load(Ordering::Relaxed), 0, "relatives are to give some");
        assert_eq!(w.pager.resident_pages(), PAGES as i64);
        w.check();
    }

    #[test]
    fn a_guest_leaves_the_evictor_a_moment_before_it_goes_over_the_limit() {
        let w = world(0);
        set_room(&w, w.pager.watermarks().1 - 20);
        let touch_one_that_is_out = || {
            let (pager, start) = (&w.pager, w.at(0));
            let stored =
                (0..PAGES).find(|p| !pager.table.get(start + p * 4096).unwrap().is_resident());
            w.guest().access(w.at(stored.unwrap()), false, |_| ())
        };
        assert!(w.pager.evict_to_watermark().freed > 0);
        let (is_over, turns) = (AtomicBool::new(false), AtomicU32::new(0));
        let mut touches = vec![];
        let mut has_made_room = false;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    if w.pager.evictor_asked.load(Ordering::Acquire) {
                        w.pager.evict_to_watermark();
                    }
                    turns.fetch_add(1, Ordering::AcqRel);
                    std::thread::yield_now();
                }
            });
            // On a busy machine the moment may be over before the evictor has had its turn.
            has_made_room = (0..10).any(|_| {
                let turn = turns.load(Ordering::Acquire);
                while turns.load(Ordering::Acquire) == turn {
                    std::thread::yield_now();
                }
                set_room(&w, 0);
                touches.push(touch_one_that_is_out());
                w.pager.refusals.tolerated() == 0
            });
            is_over.store(true, Ordering::Release);
        });
        assert!(has_made_room && touches.iter().all(|touch| *touch == Touch::Done));
        // An evictor that does nothing is not waited for.
        set_room(&w, 0);
        assert_eq!(touch_one_that_is_out(), Touch::Done);
        assert!(w.pager.excess_of_tree(0) + w.pager.refusals.tolerated() > 0);
        w.check();
    }

    #[test]
    fn a_share_that_cannot_be_kept_binds_no_more_while_the_tree_has_room() {
        let w = locked(10);
        let share = &w.pager.slot().share;
        share.bound(1, u64::MAX);
        assert!(w.pager.excess(1) > 0);
        drop(w.pager.make_room(w.pager.enter(), w.active(), 1));
        assert_eq!(share.most_pages(), None);
        assert_eq!((w.pager.excess(10), w.pager.excess(11)), (0, 1), "the limit is as it was");
        assert_eq!(w.pager.tree().stuck.load(Ordering::Relaxed), 0);
        w.check();
    }
}
