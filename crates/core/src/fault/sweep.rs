//! The sweep: cold pages leave the program, most of them for limbo.
//!
//! A clock over the addresses: each pass cools a page, a cold one is taken. Going by address makes runs, which is what the kernel
//! is good at: one MOVE and one flush for many pages. What has come in by windows and lies behind goes before that
//! (`policy/trail.rs`), guarded pages are dropped (`guard.rs`), and those that lie alone leave together (`together.rs`).

use core::sync::atomic::{Ordering, fence};

use super::age_out::Aged;
use super::guard::Leaving;
use super::together::ALONE_MAX;
use super::units::Evidence;
use super::{Active, Locked, PROT_WRITE, Pager, is_data};
use crate::control::Counter;
use crate::policy::{SWEEP_PAGES, sweep_pages};
use crate::region::{PageEntry, PageState, Range};
use crate::sys::mechanism::{Next, Taken};
use crate::sys::{HUGE_BYTES, PAGE_SHIFT, PAGE_SIZE};

/// Words that one sweep step looks at before it lets the lock go.
pub(super) const SWEEP_LOOK_PAGES: usize = 32 << 10;

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

impl Pager {
    /// Takes pages out of the program: `run_most` of the end of the trail, if it goes first, or what the hand finds: [`SWEEP_PAGES`], more if
    /// pages may leave together, or a run of as many as `run_most` neighbours.
    pub(super) fn sweep(&self, s: &mut Locked<'_>, active: &Active, run_most: usize) -> Swept {
        let mut swept = self.sweep_trail(s, active, run_most);
        if swept.taken == 0 && !s.lone.is_enough() {
            let want = if s.lone.is_wanted { sweep_pages(self.resident_pages()) } else { SWEEP_PAGES };
            swept = self.sweep_by_hand(s, active, want, run_most);
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
            let left = want - sum.taken;
            let swept = self.sweep_range(s, active, Range { end, ..range }, start, (left, left), true);
            sum.add(&swept);
            // Limbo is full.
            let is_over = swept.taken == 0 && swept.looked >= SWEEP_LOOK_PAGES;
            let passed =
                if swept.next < end { swept.next.saturating_sub(start) >> PAGE_SHIFT } else { run.pages };
            s.trail.took(passed, swept.taken);
            if is_over {
                break;
            }
        }
        sum
    }

    /// Takes cold pages out of the program, going on from where the hand stopped, until there are `want`. The last run of them may be of
    /// `run_most`.
    fn sweep_by_hand(&self, s: &mut Locked<'_>, active: &Active, want: usize, run_most: usize) -> Swept {
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
            let swept = self.sweep_range(s, active, range, start, (want - sum.taken, run_most), false);
            s.hand = swept.next;
            sum.add(&swept);
        }
        sum
    }

    /// Sweeps one range from `start` until there are `want` pages, the last run of which may be of `run_most`. `behind`: it is of the trail.
    fn sweep_range(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        range: Range,
        start: usize,
        (want, run_most): (usize, usize),
        behind: bool,
    ) -> Swept {
        use crate::region::table::LEAF_BYTES;
        let (mut addr, mut taken, mut looked, mut leaving) = (start, 0, 0, Leaving::new());
        let unit = if active.mechanism.is_protect() { self.unit_pages() } else { 1 };
        while addr < range.end
            && taken + leaving.count() + s.lone.count() < want
            && !leaving.is_full()
            && !s.lone.is_full()
            && looked < SWEEP_LOOK_PAGES
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
                ((range.end - addr) >> PAGE_SHIFT).min(run_most)
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
                // A huge page goes whole.
                let begins_huge = |i: usize| {
                    let page = addr + i * PAGE_SIZE;
                    i > 0 && page.is_multiple_of(HUGE_BYTES) && self.is_in_huge(page)
                };
                while run < most && !begins_huge(run) && cold(run) {
                    run += 1;
                }
            }
            looked += run;
            if run == 0 {
                addr += PAGE_SIZE;
                continue;
            }
            // What leaves later must not leave with a huge page before that.
            let may_wait = !shared && is_data(range.prot) && !self.is_in_huge(addr);
            if run <= ALONE_MAX && s.lone.is_wanted && may_wait {
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
        // What MOVE would refuse the rest of this would drop.
        if shared && !active.mechanism.is_protect() && self.may_be_pinned() {
            return (Taken { pages: 0, next: Next::Stuck }, 0);
        }
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
