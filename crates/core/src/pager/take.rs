//! Taking pages out of the program: a run that a thread can write goes to limbo by MOVE; a page
//! that MOVE does not take is stored at once.
//!
//! ```text
//!   lock: words say LIMBO, look at holds | claimed, no lock: MOVE | lock: the others are RESIDENT
//! ```

use core::sync::atomic::{Ordering, fence};

use super::huge_sampling::Evidence;
use super::to_cache::Aged;
use super::{Active, Locked, PROT_WRITE, Pager, is_data};
use crate::control::Counter;
use crate::policy::limbo::Batch;
use crate::region::{PageEntry, Range};
use crate::sys::mechanism::{Next, Taken};
use crate::sys::{PAGE_SHIFT, PAGE_SIZE};

/// Resident pages whose words say already that they are in limbo: `slots.count` from `addr` on.
#[derive(Clone, Copy)]
pub(super) struct Going {
    pub addr: usize,
    /// The pages before the first hold, which may go, and where that hold ends.
    pub free: usize,
    pub held_to: usize,
    pub slots: Batch,
    /// Pages that were shared by fork, and count as the process's own now.
    owned: usize,
}

impl Pager {
    /// Notes that the program may have let the kernel write its memory whenever it likes.
    pub fn note_pins(&self) {
        self.pins.store(true, Ordering::SeqCst);
    }

    pub(super) fn may_be_pinned(&self) -> bool {
        self.pins.load(Ordering::SeqCst)
    }

    /// Whether the kernel may be at a page: a call holds it, or something is pinned somewhere. A
    /// call may have begun since the sweep looked.
    pub(super) fn may_be_in_use(&self, page: usize) -> bool {
        self.may_be_pinned() || self.holds.is_held(page, page + PAGE_SIZE)
    }

    /// Takes out the run of resident pages at `addr`, as far as it is still one. `Next::End` with
    /// no page: limbo is full. Also returns the end of the hold that stopped it.
    pub(super) fn take_run(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        addr: usize,
        run: usize,
        from_trail: bool,
    ) -> (Taken, usize) {
        const STUCK: (Taken, usize) = (Taken { pages: 0, next: Next::Stuck }, 0);
        let has_units = active.mechanism.has_units();
        let Some(range) = self.ranges.find(addr).filter(Range::is_swept) else { return STUCK };
        let shared = self.is_shared(addr);
        let most = run.min((range.end - addr) >> PAGE_SHIFT);
        let run = self.run_still_there(s, addr, most, (!has_units).then_some(shared));
        let movable = has_units || !shared && is_data(range.prot);
        // MOVE refuses a pinned page, but `take_special` drops what it does not move. Memory may
        // have been pinned before its protection was changed.
        let is_dropped = !movable && !is_code_being_written(range.prot, shared);
        if run == 0 || is_dropped && self.may_be_pinned() {
            return STUCK;
        }
        if !movable {
            return (self.take_special(s, active, range, addr), 0);
        }
        let Some(going) = self.announce_run(s, active, addr, run, from_trail) else {
            return (Taken { pages: 0, next: Next::End }, 0);
        };
        let Going { free, slots, .. } = going;
        self.claim(s, addr, slots.count);
        let t = s.unlocked(|| match free {
            0 => Taken { pages: 0, next: Next::Stuck },
            _ => active.mechanism.take_out(addr, free, slots.slot),
        });
        self.end_going(s, active, range, going, t);
        self.end_claim(s, addr, slots.count);
        self.note_taken(s, active, addr, t.pages);
        if t.next == Next::Stuck && free > t.pages {
            self.add(Counter::MoveBusy, 1);
        }
        // A page that is held ends the run like a page that cannot be moved.
        let next = if t.pages < slots.count && t.next == Next::End { Next::Stuck } else { t.next };
        (Taken { pages: t.pages, next }, going.held_to)
    }

    /// Announces up to `run` resident pages from `addr` on, as many as limbo has slots for: their
    /// words say that they are in limbo, and the slots expect them. `None`: limbo is full.
    #[inline]
    pub(super) fn announce_run(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        addr: usize,
        run: usize,
        from_trail: bool,
    ) -> Option<Going> {
        let slots = self.free_slots(s, active, run)?;
        let shared = self.is_shared(addr);
        let ends = (addr, addr + slots.count * PAGE_SIZE);
        let announce = || self.announce(s, addr, slots.count, slots.slot, from_trail);
        let owned = self.with_borders(s, active, ends, announce);
        let (free, held_to) = self.before_holds(addr, slots.count);
        s.limbo.expect(slots, addr, shared);
        Some(Going { addr, free, held_to, slots, owned })
    }

    /// Gives pages that were announced, and are claimed, the states that `t` says.
    #[inline]
    pub(super) fn end_going(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        range: Range,
        going: Going,
        t: Taken,
    ) {
        let Going { addr, slots, owned, .. } = going;
        let in_use = s.limbo.arrive(slots, t.pages);
        // Where slots have frames, one without a page has one, too.
        let in_limbo = if active.mechanism.keeps_frames() { t.pages } else { in_use };
        self.count_frames(in_limbo as i64);
        let (rest, end) = (addr + t.pages * PAGE_SIZE, addr + slots.count * PAGE_SIZE);
        let is_protected = owned > 0
            && rest < end
            && active.mechanism.try_allow_write(rest, end - rest, range.prot).is_err();
        self.with_borders(s, active, (addr, end), || self.note_taken_out(s, addr, slots.count, &t));
        if is_protected {
            self.share_again(rest, end);
        }
    }

    /// How many of `most` pages from `addr` on are free and still resident; with `shared`, all
    /// shared by fork or none.
    #[inline]
    pub(super) fn run_still_there(
        &self,
        s: &Locked<'_>,
        addr: usize,
        most: usize,
        shared: Option<bool>,
    ) -> usize {
        let is_there = |e: &PageEntry| {
            e.is_resident()
                && !e.is_guarded()
                && shared.is_none_or(|shared| e.is_shared() == shared)
        };
        let has_it = |i: &usize| self.table.get(addr + i * PAGE_SIZE).is_some_and(is_there);
        (0..self.free_run(s, addr, most)).take_while(has_it).count()
    }

    /// Slots of limbo for `run` pages, or for fewer. `None`: limbo is full.
    #[inline]
    fn free_slots(&self, s: &mut Locked<'_>, active: &Active, run: usize) -> Option<Batch> {
        loop {
            match s.limbo.peek_free(run) {
                Some(slots) => return Some(slots),
                // The tail cannot pass the stock, which goes back to the kernel then.
                None if self.give_stock_back(s, active) => {}
                None => return None,
            }
        }
    }

    /// How many of the `run` pages at `addr` lie before the first hold, and where that hold ends.
    fn before_holds(&self, addr: usize, run: usize) -> (usize, usize) {
        let (mut free, mut held_to) = (run, 0);
        self.holds.overlapping(addr, addr + run * PAGE_SIZE, |start, stop| {
            let before = start.saturating_sub(addr) >> PAGE_SHIFT;
            if before < free || held_to == 0 {
                (free, held_to) = (before.min(free), crate::region::page_floor(stop));
            }
            free == 0
        });
        (free, held_to)
    }

    /// Stores at once, without limbo, a page that MOVE does not take: no thread can write it
    /// (read-only, no access, shared by fork), or it is code being written (JIT).
    fn take_special(&self, s: &Locked<'_>, active: &Active, range: Range, addr: usize) -> Taken {
        let refused = Taken { pages: 0, next: Next::Stuck };
        let shared = self.is_shared(addr);
        // The word must not say writable before the kernel does, not for an instant: holders
        // believe it without the lock.
        self.table.word(addr, |_, e| e.enter_limbo(0, false));
        self.count_owned(shared as usize);
        let refuse = || {
            if shared {
                active.mechanism.allow_write(addr, PAGE_SIZE, range.prot);
            }
            self.table.word(addr, |_, e| e.refuse_limbo(true));
        };
        fence(Ordering::SeqCst);
        let mut bytes = [0u8; PAGE_SIZE];
        let executable = is_code_being_written(range.prot, shared);
        if !self.take_contents(active, &range, addr, executable, &mut bytes) {
            refuse();
            return refused;
        }
        let copy = self.table.word(addr, |_, e| e.take_copy());
        let aged = self.give_to_cache(active, &bytes, shared, copy, &mut Evidence::default());
        self.recount_own();
        if matches!(aged, Aged::Refused | Aged::Empty) {
            if executable {
                let f = active.mechanism.fill(addr, &bytes);
                assert!(
                    f == crate::sys::mechanism::Filled::All,
                    "page {addr:#x} cannot be put back: {f:?}"
                );
            }
            refuse();
            if matches!(aged, Aged::Refused) {
                self.note_refused(addr);
            }
            return refused;
        }
        if !executable && active.mechanism.drop_in_place(addr, 1).is_err() {
            if let Aged::Stored(e) = aged {
                active.cache.free(e);
            }
            refuse();
            return refused;
        }
        let entry = if let Aged::Stored(entry) = aged { Some(entry) } else { None };
        self.note_given(s, addr, false, entry);
        Taken { pages: 1, next: Next::End }
    }

    /// Copies the contents of a page that MOVE does not take, unless it is held. An `executable`
    /// page is taken out; any other is read while no thread can write it.
    fn take_contents(
        &self,
        active: &Active,
        range: &Range,
        addr: usize,
        executable: bool,
        into: &mut [u8; PAGE_SIZE],
    ) -> bool {
        if executable {
            // MOVE asks the kernel whether the page is pinned.
            !self.holds.is_held(addr, addr + PAGE_SIZE)
                && active.mechanism.take_executable(addr, into).pages == 1
        } else {
            !self.may_be_in_use(addr) && active.mechanism.read_stable(addr, range.prot, into)
        }
    }
}

/// Whether a page that is not only data is moved all the same, as JIT code is.
fn is_code_being_written(prot: u32, shared: bool) -> bool {
    !shared && prot & PROT_WRITE != 0
}

#[cfg(test)]
mod tests {
    use super::super::model::{READ_WRITE, Spec, Touch, World};
    use super::super::{PROT_EXEC, PROT_READ};
    use super::*;

    const PAGES: usize = 48;

    /// A world whose pages are all written.
    fn world(spec: Spec) -> World {
        let world = World::new(spec);
        world.map(0, PAGES, READ_WRITE);
        let mut thread = world.thread();
        for page in 0..PAGES {
            let touch = thread.access(world.at(page), true, |b| b[7] = page as u8 + 1);
            assert_eq!(touch, Touch::Done);
        }
        world
    }

    /// Takes a run out. Returns how many pages went, what came next, and where the hold ends.
    fn take(w: &World, page: usize, run: usize) -> (usize, Next, usize) {
        let s = &mut w.pager.enter();
        let (t, held_to) = w.pager.take_run(s, w.active(), w.at(page), run, false);
        (t.pages, t.next, held_to)
    }

    #[test]
    fn a_run_ends_at_the_first_page_that_another_has_in_hand() {
        let w = world(Spec::roomy(PAGES));
        let thread = w.thread();
        let mark = thread.holds.mark();
        // The first hold is not the first in memory.
        thread.holds.push(w.at(20), w.at(25), 1);
        thread.holds.push(w.at(4), w.at(6), 1);
        assert_eq!(take(&w, 0, PAGES), (4, Next::Stuck, w.at(6)));
        assert_eq!(take(&w, 5, 10), (0, Next::Stuck, w.at(6)), "it is held from its beginning");
        assert_eq!((w.pager.resident_pages(), w.pager.limbo_pages()), (PAGES as i64 - 4, 4));
        assert_eq!(w.pager.slot().get(Counter::MoveBusy), 0, "the kernel was not asked");
        w.pager.claim(&mut w.pager.enter(), w.at(10), 1);
        assert_eq!(take(&w, 6, 20), (4, Next::End, 0));
        w.pager.end_claim(&mut w.pager.enter(), w.at(10), 1);
        thread.holds.pop_to(mark);
        w.check();
    }

    #[test]
    fn where_limbo_is_full_the_stock_makes_way_and_then_nothing_goes() {
        const SLOTS: usize = 32;
        let w = world(Spec { slots: SLOTS, ..Spec::roomy(PAGES) });
        assert_eq!(take(&w, 0, 8), (8, Next::End, 0));
        assert!(w.stock(), "the frames of these pages stay");
        assert_eq!(take(&w, 8, PAGES), (SLOTS - 8, Next::End, 0));
        assert_eq!(take(&w, SLOTS, 2), (2, Next::End, 0));
        assert!(!w.pager.enter().limbo.has_stock());
        assert_eq!(w.pager.limbo_pages(), SLOTS as i64 - 8 + 2);
        assert_eq!(take(&w, SLOTS + 2, PAGES), (6, Next::End, 0));
        assert_eq!(take(&w, SLOTS + 8, 8), (0, Next::End, 0));
        assert_eq!((w.pager.resident_pages(), w.pager.limbo_pages()), (8, SLOTS as i64));
        w.check();
    }

    #[test]
    fn a_page_that_the_cache_or_the_kernel_does_not_take_is_there_as_before() {
        let w = world(Spec::roomy(PAGES));
        w.protect(0, 1, PROT_READ);
        w.protect(1, 1, READ_WRITE | PROT_EXEC);
        let cache = &w.active().cache;
        cache.set_max_pool_bytes(0);
        assert_eq!([take(&w, 0, 1), take(&w, 1, 1)], [(0, Next::Stuck, 0); 2]);
        let generation = w.pager.generation();
        let is_refused = |e: &PageEntry| e.is_refused(generation);
        assert!([0, 1].iter().all(|page| w.pager.table.get(w.at(*page)).is_some_and(is_refused)));
        cache.set_max_pool_bytes(usize::MAX);
        // The kernel does not drop a page that the cache has already.
        w.fake().set_trouble(1);
        assert_eq!(take(&w, 0, 1), (0, Next::Stuck, 0));
        w.fake().set_trouble(0);
        assert_eq!((cache.counters().stored_pages, w.pager.stored_pages()), (0, 0));
        w.check();
        for page in 0..2 {
            let touch = w.thread().access(w.at(page), false, |b| assert_eq!(b[7], page as u8 + 1));
            assert_eq!(touch, Touch::Done);
        }
    }

    #[test]
    fn pages_shared_by_fork_that_the_kernel_has_no_mapping_for_stay_shared() {
        let w = world(Spec { hides: true, ..Spec::roomy(PAGES) });
        assert!(w.fork(&mut w.thread(), |_| ()));
        let used = w.pager.used_pages();
        w.fake().set_out_of_mappings(true);
        // They are neither hidden nor made writable.
        assert_eq!(take(&w, 0, 4), (0, Next::Stuck, 0));
        w.fake().set_out_of_mappings(false);
        assert!((0..PAGES).all(|page| w.pager.is_shared(w.at(page))));
        assert_eq!(w.pager.used_pages(), used);
        w.check();
    }
}
