//! Eviction: the sweep takes cold pages into limbo, ageing out gives limbo's oldest to the swap cache.
//!
//! ```text
//!   sweep (lock)                 age out: claim (lock) -> compress (no lock) -> publish (lock) -> give frames back
//!   RESIDENT --take_out--> LIMBO ------------------------------------------------> STORED | NONE (all zero)
//! ```
//!
//! The sweep is a clock over the addresses: each pass cools a page, a cold one is taken. Going by address makes
//! runs, which is what the kernel is good at: one MOVE and one flush for many pages. Limbo's ring then is
//! first in, first out, and a page touched there comes back hot. The rules of this are in `policy/`.
//!
//! Both the evictor and a faulting thread that finds no room do the same steps; a claimed batch belongs
//! to its claimer, so they work side by side.

use core::sync::atomic::{Ordering, fence};

use super::guard::Leaving;
use super::resolve::swap_entry;
use super::together::ALONE_MAX;
use super::units::Evidence;
use super::{ALL_BY_LIMBO, Active, Locked, PROT_WRITE, Pager, is_data};
use crate::cache::{Back, SwapEntry, SwapFull};
use crate::codec::same_filled;
use crate::control::{Counter, Notice};
use crate::policy::limbo::Stretch;
use crate::policy::{BATCH_PAGES, DIRECT_PAGES, LIMBO_LEAST_PAGES, SWEEP_PAGES, WINDOW_LEAST_PAGES};
use crate::policy::{limbo_target, sweeps_first};
use crate::region::{PageEntry, PageState, Range};
use crate::sys::mechanism::{Next, Taken, Uffd};
use crate::sys::sync::futex_wake;
use crate::sys::{HUGE_PAGES, PAGE_SHIFT, PAGE_SIZE};

/// Pages that the evictor frees before it sees to its other duties, some 10 ms of work.
pub const EVICTOR_PAGES: usize = 2048;
/// Portions that the evictor brings ahead before it sees to its other duties while memory is not short.
const AHEAD_PORTIONS: u32 = 64;
/// Words that one sweep step looks at before it lets the lock go.
pub(super) const SWEEP_LOOK_PAGES: usize = 32 << 10;
/// Entries that the evictor compresses again before it sees to its other duties, and before it looks whether memory is
/// short.
const PACK_PAGES: usize = 512;
const PACK_BATCH: usize = 8;
/// What a fruitless step asks the cache to write back.
const SHRINK_BYTES: usize = 256 << 10;
/// Fruitless steps after which a thread that wants room goes over the limit rather than wait for ever.
const FRUITLESS_MAX: u32 = 64;
/// The same where others may have something to give, which takes a few of their evictors' ticks.
const FRUITLESS_IN_TREE: u32 = 16 * FRUITLESS_MAX;
/// The same when it went over the limit a moment ago.
const FRUITLESS_AGAIN: u32 = 2;
/// Pages that a thread goes over the limit at once, so that it does not wait for each. The evictor's next tick counts them.
const OVER_PAGES: i64 = 64;
/// A thread that found nothing to evict looks again after this long...
const WAIT_NS: u64 = 50_000;
/// ...and in all waits this often at most (a disk that hangs must not hang the program for ever).
const WAITS_MAX: u32 = 400_000;

/// What a step of eviction achieved.
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
    /// Nothing came of it, and trying again at once would be the same.
    fn is_fruitless(&self) -> bool {
        self.freed == 0 && (self.taken == 0 || self.refused > 0)
    }
}

/// What a sweep came to.
#[derive(Default)]
pub(super) struct Swept {
    /// Where to go on.
    next: usize,
    /// Pages taken out of the program, and of them those that needed no limbo: their frames are free.
    pub taken: usize,
    pub dropped: usize,
    /// Words looked at.
    looked: usize,
}

impl Swept {
    fn add(&mut self, other: &Swept) {
        self.taken += other.taken;
        self.dropped += other.dropped;
        self.looked += other.looked;
    }
}

/// What became of a page in a claimed batch, found without the lock.
#[derive(Clone, Copy)]
pub(super) enum Aged {
    /// No page in the slot any more, or none that could be copied.
    Empty,
    Zero,
    Stored(SwapEntry),
    /// Neither pool nor store took it.
    Refused,
}

impl Pager {
    /// Pages that limbo holds when memory is short.
    pub fn limbo_target(&self) -> i64 {
        if self.slot().turn.is_paused() {
            return LIMBO_LEAST_PAGES;
        }
        // A limit that was raised meanwhile does not make the ring larger.
        limbo_target(self.limit_pages(), self.active().map_or(usize::MAX, |a| a.slots))
    }

    /// The same where other pages leave without.
    fn limbo_target_now(&self, s: &Locked<'_>) -> i64 {
        (self.limbo_target() * s.by_limbo as i64 / ALL_BY_LIMBO as i64).max(LIMBO_LEAST_PAGES)
    }

    /// Wakes the evictor when free pages are below the low mark.
    #[inline]
    pub(super) fn ask_evictor(&self) {
        if self.excess(0) + self.watermarks().0 > 0 {
            self.wake_evictor();
        }
    }

    #[inline]
    pub(super) fn wake_evictor(&self) {
        if !self.evictor_asked.swap(true, Ordering::AcqRel) {
            self.evictor_word.fetch_add(1, Ordering::Release);
            futex_wake(&self.evictor_word, 1);
        }
    }

    /// The evictor's work until free pages are above the high mark again, or a portion of it. Returns what was done.
    pub fn evict_to_watermark(&self) -> Reclaimed {
        let mut sum = Reclaimed::default();
        let Some(active) = self.active() else { return sum };
        self.evictor_asked.store(false, Ordering::Release);
        let (mut fruitless, mut ahead) = (0, 0);
        while sum.freed < EVICTOR_PAGES {
            if self.is_pool_too_large() {
                self.shrink_pool(active);
            }
            let mut s = self.lock();
            let has_brought = self.bring_ahead(&mut s, active);
            // Who waits for its turn brings nothing in.
            while self.slot().turn.is_paused() && self.give_stock_back(&mut s, active) {}
            let short = self.excess(0) + self.watermarks().1;
            if short <= 0 {
                self.size.store(self.used_pages(), Ordering::Relaxed);
            }
            let short = short.min(self.above_size());
            if short <= 0 {
                ahead += 1;
                if has_brought && ahead < AHEAD_PORTIONS {
                    continue;
                }
                break;
            }
            let (mut s, r) = self.reclaim(s, active, short as usize, None);
            let is_fruitless = r.is_fruitless() && !self.give_frame_back(&mut s, active);
            drop(s);
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
        sum
    }

    /// Between two rounds of eviction: compresses idle entries again until memory is short, or some 5 ms are over. Says
    /// whether there is more to do.
    pub fn recompress_idle(&self) -> bool {
        let Some(active) = self.active() else { return false };
        let is_short =
            || self.evictor_asked.load(Ordering::Acquire) || self.excess(0) + self.watermarks().0 > 0;
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

    /// Frees memory until `pages` more fit, or nothing can be freed any more.
    pub(super) fn make_room<'a>(&'a self, mut s: Locked<'a>, active: &Active, pages: i64) -> Locked<'a> {
        let (mut fruitless, mut waits) = (0, 0);
        let fruitless_max = match () {
            () if self.tolerates() => FRUITLESS_AGAIN,
            () if self.is_alone() => FRUITLESS_MAX,
            () => FRUITLESS_IN_TREE,
        };
        let is_window = (WINDOW_LEAST_PAGES as i64..HUGE_PAGES as i64).contains(&pages);
        let has_room = |s: &Locked<'_>| {
            self.excess(pages) <= 0
                || pages == HUGE_PAGES as i64 && self.has_room_for_huge(s)
                || is_window && s.limbo.has_stock() && self.excess(0) <= 0
        };
        while !has_room(&s) {
            if self.is_pool_too_large() {
                drop(s);
                self.shrink_pool(active);
                s = self.lock();
            }
            let r;
            let batch = if is_window { BATCH_PAGES } else { DIRECT_PAGES };
            (s, r) = self.reclaim(s, active, self.excess(pages).max(8) as usize, Some(batch));
            let is_claimed = s.limbo.claimed() > 0 || s.lone.are_leaving();
            let idle = r.is_fruitless() && !is_claimed;
            if r.is_fruitless() && self.excess_of_tree(pages) <= 0 {
                // What it has more than its share cannot go (it is locked, say), and there is room.
                self.slot().share.unbound();
            } else if r.is_fruitless() && !(idle && self.give_frame_back(&mut s, active)) {
                // What others have claimed is on its way to the cache, or to the disk: wait for it.
                fruitless += !is_claimed as u32;
                waits += 1;
                if fruitless % FRUITLESS_MAX == 1 {
                    self.tree().stuck.fetch_add(1, Ordering::AcqRel);
                }
                if fruitless > fruitless_max || waits > WAITS_MAX {
                    self.tree().notice(Notice::OverLimit, 0);
                    // Serve over the limit: a program that is refused memory is a dead program.
                    self.tolerate(pages.max(OVER_PAGES));
                    break;
                }
                drop(s);
                // Nothing to evict: the pool itself may be what is too large.
                self.shrink_pool(active);
                crate::sys::sleep_ns(WAIT_NS);
                s = self.lock();
            } else {
                fruitless = 0;
            }
        }
        s
    }

    /// Writes a portion of the pool back.
    fn shrink_pool(&self, active: &Active) {
        active.cache.shrink(SHRINK_BYTES);
        self.recount_own();
    }

    /// One step: age a batch out of limbo if limbo has enough, else sweep. `direct`: for a thread that waits, and which batch it
    /// waits for.
    fn reclaim<'a>(
        &'a self,
        mut s: Locked<'a>,
        active: &Active,
        want: usize,
        direct: Option<usize>,
    ) -> (Locked<'a>, Reclaimed) {
        let mut r = Reclaimed::default();
        if sweeps_first(s.limbo.ready(), self.limbo_target_now(&s)) {
            s.lone.is_wanted = direct.is_none() && self.look_for_lone(&mut s, active);
            let swept = self.sweep(&mut s, active, SWEEP_PAGES);
            s.lone.is_wanted = false;
            (r.taken, r.freed) = (swept.taken, swept.dropped);
            if direct.is_some() {
                self.add(Counter::DirectEvictions, r.taken as u64);
            }
            let left;
            (s, left) = self.leave_together(s, active);
            (r.taken, r.freed, r.refused) = (r.taken + left.taken, r.freed + left.freed, left.refused);
        }
        // While limbo is filling up towards its target its pages are not old; but memory is short now.
        // A thread that waits for one page does not wait for a whole batch.
        let batch = direct.unwrap_or(BATCH_PAGES);
        // Nor does it wait for frames that others then have.
        let keeps_frames = batch == BATCH_PAGES;
        if r.freed > 0 && !(keeps_frames && direct.is_some()) {
            // What needed no limbo has made room: what is in it can wait until a whole batch is due.
            return (s, r);
        }
        let (s, aged, refused) = self.age_out_batch(s, active, want.min(batch), keeps_frames);
        (r.freed, r.refused) = (r.freed + aged, r.refused + refused);
        (s, r)
    }

    /// Claims up to `want` of limbo's oldest pages, or the oldest huge page if more of those wait, and gives them to the
    /// swap cache. Returns the frames freed and the pages refused.
    pub(super) fn age_out<'a>(
        &'a self,
        s: Locked<'a>,
        active: &Active,
        want: usize,
    ) -> (Locked<'a>, usize, usize) {
        self.age_out_batch(s, active, want, false)
    }

    /// The same; with `may_keep` the frames may stay with their slots, for a window that comes in.
    fn age_out_batch<'a>(
        &'a self,
        mut s: Locked<'a>,
        active: &Active,
        want: usize,
        may_keep: bool,
    ) -> (Locked<'a>, usize, usize) {
        if s.limbo.has_more_in_blocks() {
            return self.age_out_block(s, active);
        }
        let Some(stretch) = s.limbo.claim(want.clamp(1, BATCH_PAGES)) else { return (s, 0, 0) };
        let mut aged = [Aged::Empty; BATCH_PAGES];
        let (live, copies) = self.look_at_slots(&s, stretch.slot, stretch.count);
        if active.mechanism.is_protect() {
            // In place: the page must not be touched between reading and dropping, so the lock stays.
            let mut bytes = [0u8; PAGE_SIZE];
            for i in 0..stretch.count {
                let slot = stretch.slot + i;
                if let Some(page) = s.limbo.page(slot)
                    && active.mechanism.read_limbo(page, slot, &mut bytes).is_ok()
                {
                    let cold = s.limbo.is_cold(slot);
                    aged[i] = self.give_to_cache(active, &bytes, cold, copies[i], &mut Evidence::default());
                } else if live[i] {
                    self.free_entry(copies[i]);
                    aged[i] = Aged::Refused;
                }
            }
        } else {
            drop(s);
            let _ =
                self.give_slots_to_cache(active, stretch.slot, &live[..stretch.count], &copies, &mut aged);
            s = self.lock();
        }
        self.publish_aged(s, active, stretch, &aged, may_keep)
    }

    /// Which of `count` claimed slots have a page, and the copies of those that the cache kept. The copies become the
    /// claimer's: a page that is touched or dropped meanwhile has none any more.
    fn look_at_slots(
        &self,
        s: &Locked<'_>,
        slot: usize,
        count: usize,
    ) -> ([bool; BATCH_PAGES], [Option<u64>; BATCH_PAGES]) {
        let (mut live, mut copies) = ([false; BATCH_PAGES], [None; BATCH_PAGES]);
        for i in 0..count {
            if let Some(page) = s.limbo.page(slot + i) {
                live[i] = true;
                copies[i] = self.word(page, |_, e| e.take_copy());
            }
        }
        (live, copies)
    }

    /// Compresses the pages of claimed slots, without the lock. Returns what they tell of their use.
    fn give_slots_to_cache(
        &self,
        active: &Active,
        slot: usize,
        live: &[bool],
        copies: &[Option<u64>],
        aged: &mut [Aged],
    ) -> Evidence {
        let mut e = Evidence::default();
        for (i, _) in live.iter().enumerate().filter(|(_, live)| **live) {
            if let Some(bytes) = active.mechanism.slot(slot + i) {
                aged[i] = self.give_to_cache(active, bytes, false, copies[i], &mut e);
            }
        }
        e
    }

    /// Claims the huge page that came into limbo first and gives its pages to the swap cache, batch by batch, so that
    /// a touch of one need not wait for all. As `age_out`.
    fn age_out_block<'a>(&'a self, mut s: Locked<'a>, active: &Active) -> (Locked<'a>, usize, usize) {
        let Some(block) = s.limbo.claim_block() else { return (s, 0, 0) };
        let stretch = s.limbo.page(block);
        let (mut refused, mut evidence) = (0, Evidence::default());
        for slot in (block..block + HUGE_PAGES).step_by(BATCH_PAGES) {
            let (live, copies) = self.look_at_slots(&s, slot, BATCH_PAGES);
            drop(s);
            let mut aged = [Aged::Empty; BATCH_PAGES];
            evidence.add(self.give_slots_to_cache(active, slot, &live, &copies, &mut aged));
            s = self.lock();
            refused += self.publish_slots(&s, active, slot, &aged);
        }
        if let Some(stretch) = stretch {
            self.learn_from_huge(&mut s, stretch, evidence);
        }
        // The slots hold no page any more and are still ours: the frame is for the next huge page, or goes back
        // without the lock.
        if s.limbo.keep_frame(block) {
            return (s, HUGE_PAGES - refused, refused);
        }
        drop(s);
        active.mechanism.release_slots(block, HUGE_PAGES);
        s = self.lock();
        s.limbo.finish_block(block);
        self.limbo_pages.fetch_sub(HUGE_PAGES as i64, Ordering::Relaxed);
        (s, HUGE_PAGES - refused, refused)
    }

    /// Finds out what becomes of a page. `copy`: the entry that it was loaded from, if the cache kept it.
    pub(super) fn give_to_cache(
        &self,
        active: &Active,
        bytes: &[u8; PAGE_SIZE],
        cold: bool,
        copy: Option<u64>,
        evidence: &mut Evidence,
    ) -> Aged {
        evidence.pages += 1;
        if let Some(entry) = copy.map(swap_entry) {
            let back = active.cache.take_back_as(entry, bytes);
            evidence.copies += (back != Back::Gone) as usize;
            evidence.changed += (back == Back::Changed) as usize;
            if back == Back::Same {
                self.add(Counter::CleanEvictions, 1);
                return Aged::Stored(entry);
            }
            self.count_freed();
        }
        if same_filled(bytes) == Some(0) {
            evidence.zeros += 1;
            return Aged::Zero;
        }
        let stored = if cold { active.cache.swap_out_cold(bytes) } else { active.cache.swap_out(bytes) };
        match stored {
            Ok(e) => Aged::Stored(e),
            Err(SwapFull) => Aged::Refused,
        }
    }

    /// Publishes a batch: each page that is still in its slot gets its new state. Then the frames go.
    fn publish_aged<'a>(
        &'a self,
        mut s: Locked<'a>,
        active: &Active,
        stretch: Stretch,
        aged: &[Aged; BATCH_PAGES],
        may_keep: bool,
    ) -> (Locked<'a>, usize, usize) {
        let refused = self.publish_slots(&s, active, stretch.slot, &aged[..stretch.count]);
        if may_keep && refused == 0 && self.keeps_frames(&mut s, active, stretch) {
            return (s, stretch.count - refused, refused);
        }
        if active.mechanism.is_protect() {
            let freed =
                aged[..stretch.count].iter().filter(|a| matches!(a, Aged::Zero | Aged::Stored(_))).count();
            s.limbo.finish(stretch);
            return (s, freed, refused);
        }
        // The slots hold no page any more and are still ours: their frames go back without the lock.
        drop(s);
        active.mechanism.release_slots(stretch.slot, stretch.count);
        let s = self.lock();
        s.limbo.finish(stretch);
        self.limbo_pages.fetch_sub(stretch.count as i64, Ordering::Relaxed);
        (s, stretch.count - refused, refused)
    }

    /// Keeps the frames of a published stretch for the next window that comes in, if somebody may want them.
    fn keeps_frames(&self, s: &mut Locked<'_>, active: &Active, stretch: Stretch) -> bool {
        const { assert!(BATCH_PAGES <= Uffd::FRAMES_MAX) };
        let keeps = stretch.count >= WINDOW_LEAST_PAGES
            && !self.slot().turn.is_paused()
            && s.limbo.wants_stock(&stretch)
            && active.mechanism.as_mover().is_some_and(|u| u.has_frames(stretch.slot, stretch.count));
        if keeps {
            s.limbo.keep_stretch(stretch);
        }
        keeps
    }

    /// Gives the pages of the slots from `first` on their new state, as far as they are still there. Returns how many stay
    /// in the program.
    fn publish_slots(&self, s: &Locked<'_>, active: &Active, first: usize, aged: &[Aged]) -> usize {
        let mut refused = 0;
        self.recount_own();
        for (i, aged) in aged.iter().enumerate() {
            let slot = first + i;
            let page = s.limbo.page(slot).filter(|p| self.state_of(*p) == PageState::Limbo(slot as u64));
            let Some(page) = page else {
                // Touched or dropped meanwhile: the copy is not needed.
                if let Aged::Stored(e) = *aged {
                    active.cache.free(e);
                }
                continue;
            };
            match *aged {
                Aged::Zero => {
                    self.word(page, |m, e| {
                        e.drop_contents();
                        m.count(0, -1);
                    });
                    self.add(Counter::ZeroPages, 1);
                }
                Aged::Stored(e) => {
                    self.word(page, |_, w| w.store(e.to_bits()));
                    self.stored.fetch_add(1, Ordering::Relaxed);
                    self.add(Counter::Stores, 1);
                }
                Aged::Refused | Aged::Empty => {
                    self.put_back(active, page, slot);
                    self.add(Counter::EvictionsRefused, 1);
                    s.limbo.kill(slot);
                    refused += 1;
                    continue;
                }
            }
            s.limbo.kill(slot);
            if active.mechanism.is_protect() {
                let _ = active.mechanism.drop_in_place(page, 1);
                self.limbo_pages.fetch_sub(1, Ordering::Relaxed);
            }
        }
        refused
    }

    /// A page that nobody takes goes back to the program.
    fn put_back(&self, active: &Active, page: usize, slot: usize) {
        if active.mechanism.is_protect() {
            // In place behind its protection; a touch shows it again. It stays in limbo as far as the program can
            // tell, so show it now.
            let range = self.ranges.find(page).expect("a page in limbo has a range");
            let _ = active.mechanism.expose(page, PAGE_SIZE, range.prot);
            self.limbo_pages.fetch_sub(1, Ordering::Relaxed);
        } else {
            let f = active.mechanism.fill_from_limbo(page, slot, 1);
            assert!(f == crate::sys::mechanism::Filled::All, "page {page:#x} cannot be put back: {f:?}");
        }
        self.word(page, |m, e| {
            e.refuse_limbo(true);
            m.count(1, 0);
        });
        self.note_small(page);
        self.resident.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes up to `want` pages out of the program: the end of the trail, if it goes first, or what the hand finds.
    pub(super) fn sweep(&self, s: &mut Locked<'_>, active: &Active, want: usize) -> Swept {
        let mut swept = self.sweep_trail(s, active, want);
        if swept.taken == 0 && !s.lone.is_enough() {
            swept = self.sweep_by_hand(s, active, want);
            let came_back = self.came_back.swap(0, Ordering::Relaxed) as usize;
            s.trail.learn(swept.taken, came_back, self.limit_pages());
        }
        self.note_way(s, swept.taken - swept.dropped, swept.taken);
        self.add(Counter::Evictions, swept.taken as u64);
        swept
    }

    /// Takes up to `want` pages of what came in by windows, the oldest first.
    fn sweep_trail(&self, s: &mut Locked<'_>, active: &Active, want: usize) -> Swept {
        let (mut sum, limit) = (Swept::default(), self.limit_pages());
        while sum.taken < want
            && !s.lone.is_enough()
            && let Some(run) = s.trail.next(limit)
        {
            let start = run.start << PAGE_SHIFT;
            let Some(range) = self.ranges.find(start).filter(Range::is_swept) else {
                s.trail.took(run.pages, 0);
                continue;
            };
            let end = range.end.min(start + run.pages * PAGE_SIZE);
            let swept = self.sweep_range(s, active, Range { end, ..range }, start, want - sum.taken, true);
            sum.add(&swept);
            // Limbo is full.
            let is_over = swept.taken == 0 && swept.looked >= SWEEP_LOOK_PAGES;
            let passed = if swept.next < end { (swept.next - start) >> PAGE_SHIFT } else { run.pages };
            s.trail.took(passed, swept.taken);
            if is_over {
                break;
            }
        }
        sum
    }

    /// Takes up to `want` cold pages out of the program, going on from where the hand stopped.
    fn sweep_by_hand(&self, s: &mut Locked<'_>, active: &Active, want: usize) -> Swept {
        let mut sum = Swept::default();
        let mut wraps = 0;
        while sum.taken < want && sum.looked < SWEEP_LOOK_PAGES && wraps < 2 {
            let i = self.ranges.index_from(s.hand);
            if i >= self.ranges.len() {
                s.hand = 0;
                wraps += 1;
                sum.looked += 64;
                continue;
            }
            let range = self.ranges.at(i);
            let start = s.hand.max(range.start);
            if !range.is_swept() {
                s.hand = range.end;
                sum.looked += 1;
                continue;
            }
            let swept = self.sweep_range(s, active, range, start, want - sum.taken, false);
            s.hand = swept.next;
            sum.add(&swept);
        }
        sum
    }

    /// Sweeps one range from `start`. `behind`: it is of the trail.
    fn sweep_range(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        range: Range,
        start: usize,
        want: usize,
        behind: bool,
    ) -> Swept {
        use crate::region::table::LEAF_BYTES;
        debug_assert!(want <= SWEEP_PAGES);
        let (mut addr, mut taken, mut looked, mut leaving) = (start, 0, 0, Leaving::new());
        let unit = if active.mechanism.is_protect() { self.unit_pages() } else { 1 };
        while addr < range.end && taken + leaving.count() + s.lone.count() < want && looked < SWEEP_LOOK_PAGES
        {
            let resident = self.table.middle(addr).map_or(0, |m| m.resident());
            if resident == 0 {
                addr = (addr / LEAF_BYTES + 1) * LEAF_BYTES;
                looked += 8;
                continue;
            }
            looked += 1;
            if let Some(start) = self.huge_page(active, &range, addr) {
                let Some(pages) = self.sweep_huge(s, active, start, behind) else {
                    // Limbo is full: leave the rest for the next time.
                    (addr, looked) = (start, SWEEP_LOOK_PAGES);
                    break;
                };
                taken += pages;
                looked += 8;
                addr = start + LEAF_BYTES;
                continue;
            }
            if self.state_of(addr) != PageState::Resident {
                addr += PAGE_SIZE;
                continue;
            }
            let goes = |e: &PageEntry| if behind { e.may_go_behind() } else { e.cool() };
            if let Some(e) = self.table.get(addr).filter(|e| e.is_guarded()) {
                if e.is_as_its_copy() && goes(e) {
                    leaving.push(addr);
                }
                addr += PAGE_SIZE;
                continue;
            }
            // A run of cold pages, shared by fork or not; protection faults decide by the unit.
            let shared = self.is_shared(addr);
            let most = if unit > 1 {
                let unit_end = (addr / (unit * PAGE_SIZE) + 1) * unit * PAGE_SIZE;
                (unit_end.min(range.end) - addr) >> PAGE_SHIFT
            } else {
                ((range.end - addr) >> PAGE_SHIFT).min(want - taken - leaving.count() - s.lone.count())
            };
            let alike =
                |e: &PageEntry| e.is_resident() && (unit > 1 || e.is_shared() == shared && !e.is_guarded());
            let cold = |i: usize| self.table.get(addr + i * PAGE_SIZE).is_some_and(|e| alike(e) && goes(e));
            let mut run = 0;
            if unit > 1 {
                let resident = |i: &usize| self.state_of(addr + i * PAGE_SIZE) == PageState::Resident;
                // Every page of the unit is cooled, whether or not one of them is still warm.
                let warm = (0..most).filter(resident).filter(|i| !cold(*i)).count();
                let all_cold = warm == 0;
                while all_cold && run < most && self.state_of(addr + run * PAGE_SIZE) == PageState::Resident {
                    run += 1;
                }
                if !all_cold {
                    addr += most * PAGE_SIZE;
                    looked += most;
                    continue;
                }
            } else {
                while run < most && cold(run) {
                    run += 1;
                }
            }
            looked += run;
            if run == 0 {
                addr += PAGE_SIZE;
                continue;
            }
            if run <= ALONE_MAX && s.lone.is_wanted && !shared && is_data(range.prot) {
                if !s.lone.reaches(addr, run) {
                    // What there is has to do, or has to go the other way.
                    if s.lone.is_enough() {
                        break;
                    }
                    taken += self.take_lone(s, active, range);
                }
                s.lone.push(addr, run, behind);
                addr += run * PAGE_SIZE;
                continue;
            }
            let (n, held_to) = self.take_run(s, active, range, addr, run, behind);
            taken += n.pages;
            // Limbo is full: leave the rest for the next time.
            if n.pages == 0 && n.next == Next::End {
                looked = SWEEP_LOOK_PAGES;
                break;
            }
            addr += (n.pages + (n.next != Next::End) as usize).max(1) * PAGE_SIZE;
            // Nothing of what is held will go: do not ask page by page.
            addr = addr.max(held_to);
        }
        let dropped = self.drop_leaving(s, active, &range, &mut leaving);
        if s.lone.is_enough() {
            // They leave before anything else is looked for.
            looked = SWEEP_LOOK_PAGES;
        } else {
            taken += self.take_lone(s, active, range);
        }
        Swept { next: addr.min(range.end), taken: taken + dropped, dropped, looked }
    }

    /// Takes out one run of resident pages of one range. `Next::End` with fewer pages than asked: no slots.
    /// Also returns where the hold ends that stopped it.
    pub(super) fn take_run(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        range: Range,
        addr: usize,
        run: usize,
        behind: bool,
    ) -> (Taken, usize) {
        let shared = self.is_shared(addr);
        let movable = active.mechanism.is_protect() || !shared && is_data(range.prot);
        if !movable {
            return (self.take_special(active, range, addr), 0);
        }
        let slots = loop {
            match s.limbo.peek_free(run) {
                Some(slots) => break slots,
                // The stock is in the way of the tail.
                None if self.give_stock_back(s, active) => {}
                None => return (Taken { pages: 0, next: Next::End }, 0),
            }
        };
        let run = run.min(slots.count);
        // Publish the intent, then look at the holds (see hold.rs). No word may say writable before the kernel does.
        let mut owned = 0;
        for i in 0..run {
            owned += self.is_shared(addr + i * PAGE_SIZE) as usize;
            self.word(addr + i * PAGE_SIZE, |_, e| e.enter_limbo((slots.slot + i) as u64, behind));
        }
        self.count_owned(owned);
        fence(Ordering::SeqCst);
        let mut free = run;
        let end = addr + run * PAGE_SIZE;
        let mut held_to = 0;
        self.holds.overlapping(addr, end, |start, stop| {
            let before = start.saturating_sub(addr) >> PAGE_SHIFT;
            if before < free || held_to == 0 {
                (free, held_to) = (before.min(free), crate::region::page_floor(stop));
            }
            free == 0
        });
        let t = if free > 0 {
            active.mechanism.take_out(addr, free, slots.slot)
        } else {
            Taken { pages: 0, next: Next::Stuck }
        };
        if owned > 0 && t.pages < run {
            active.mechanism.allow_write(addr + t.pages * PAGE_SIZE, (run - t.pages) * PAGE_SIZE, range.prot);
        }
        for i in t.pages..run {
            self.word(addr + i * PAGE_SIZE, |_, e| e.refuse_limbo(i == t.pages));
        }
        if t.next == Next::Absent {
            self.note_dropped(addr + t.pages * PAGE_SIZE);
        }
        for i in 0..t.pages {
            self.word(addr + i * PAGE_SIZE, |m, _| m.count(-1, 0));
        }
        s.limbo.take(t.pages, addr, shared);
        self.note_taken(s, active, &range, addr, t.pages);
        self.resident.fetch_sub(t.pages as i64, Ordering::Relaxed);
        self.limbo_pages.fetch_add(t.pages as i64, Ordering::Relaxed);
        if t.next == Next::Stuck && free > t.pages {
            self.add(Counter::MoveBusy, 1);
        }
        // Held: as good as stuck.
        let next = if t.pages < run && t.next == Next::End { Next::Stuck } else { t.next };
        (Taken { pages: t.pages, next }, held_to)
    }

    /// One page that MOVE does not take: nobody can write it (read-only, no access, shared by fork), or it is code
    /// being written (JIT). Stored at once, without limbo.
    fn take_special(&self, active: &Active, range: Range, addr: usize) -> Taken {
        let refused = Taken { pages: 0, next: Next::Stuck };
        let shared = self.is_shared(addr);
        // The word must not say writable before the kernel does, not for an instant: holders believe it without the lock.
        self.word(addr, |_, e| e.enter_limbo(0, false));
        self.count_owned(shared as usize);
        let refuse = || {
            if shared {
                active.mechanism.allow_write(addr, PAGE_SIZE, range.prot);
            }
            self.word(addr, |_, e| e.refuse_limbo(true));
        };
        fence(Ordering::SeqCst);
        let mut bytes = [0u8; PAGE_SIZE];
        let executable = !shared && range.prot & PROT_WRITE != 0;
        let taken = if self.holds.is_held(addr, addr + PAGE_SIZE) {
            false
        } else if executable {
            active.mechanism.take_executable(addr, &mut bytes).pages == 1
        } else {
            active.mechanism.read_stable(addr, range.prot, &mut bytes)
        };
        if !taken {
            refuse();
            return refused;
        }
        let copy = self.word(addr, |_, e| e.take_copy());
        let aged = self.give_to_cache(active, &bytes, shared, copy, &mut Evidence::default());
        self.recount_own();
        if matches!(aged, Aged::Refused | Aged::Empty) {
            if executable {
                let f = active.mechanism.fill(addr, &bytes);
                assert!(f == crate::sys::mechanism::Filled::All, "page {addr:#x} cannot be put back: {f:?}");
            }
            refuse();
            return refused;
        }
        if !executable && active.mechanism.drop_in_place(addr, 1).is_err() {
            if let Aged::Stored(e) = aged {
                active.cache.free(e);
            }
            refuse();
            return refused;
        }
        self.resident.fetch_sub(1, Ordering::Relaxed);
        match aged {
            Aged::Stored(entry) => {
                self.word(addr, |m, e| {
                    e.store(entry.to_bits());
                    m.count(-1, 0);
                });
                self.stored.fetch_add(1, Ordering::Relaxed);
                self.add(Counter::Stores, 1);
            }
            _ => {
                self.word(addr, |m, e| {
                    e.drop_contents();
                    m.count(-1, -1);
                });
                self.add(Counter::ZeroPages, 1);
            }
        }
        Taken { pages: 1, next: Next::End }
    }
}
