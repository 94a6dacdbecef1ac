//! Pages that lie alone leave together, from where they are: two flushes for many pages, where a
//! MOVE has one for each.
//!
//! ```text
//!   addresses   p . h p . . h p p h . p       p: a page, h: held, .: not there
//!   protect     [---------------------]       (lock) words first, then the holds, then one call of the kernel
//!   compress    x     x       x x     x       (no lock) copies of them
//!   drop        x     x       w x     x       (lock) one flush; what was written meanwhile (w) stays
//!   let write   [---------------------]       those that stay
//! ```
//!
//! Where pages are touched at random nearly all of them lie alone, and a flush is an interrupt of
//! every processor that runs the program: 12 to 20 us on a virtual machine, with the lock held.
//! Runs go by MOVE, which needs no copy.
//!
//! A thread that writes a page of the stretch meanwhile has a fault and lifts the page's protection
//! under the lock (`guard.rs`), and the page's word forgets that it leaves.
//! Fork lets all pages stay. The pages have no limbo; one that is back soon counts as
//! found there (`policy/ghost.rs`).
//!
//! MOVE refuses a page that is pinned, and this does not: one that a device, or the kernel on its
//! behalf, writes without asking the page tables. So a program that has made a call by which memory
//! may be pinned for longer than the call lasts has all its pages moved from then on (`note_pins`).
//!
//! Leaving together is not worth it where the neighbours are written all the time: each write is a
//! fault. It is a bet, lost if more than a quarter as many pages were written as left
//! ([`Lone::learn`]); pages are moved where it does not pay.
//!
//! A thread that reads a missing page of memory that is under no mechanism gets a zero page there,
//! for good. So memory is not moved (mremap takes it from the mechanism for that) while pages are
//! being copied: other memory may come to lie where they were.
//!
//! The evictor does this, or a thread that makes room for itself; one of them at a time. A filter
//! of the program's may refuse the calls that this takes: then nothing leaves, and pages are moved.
//! A filter that would kill for them ends paging before it comes (decision 30).

use core::sync::atomic::{Ordering, fence};

use super::evict::Reclaimed;
use super::guard::Leaving;
use super::huge_sampling::Evidence;
use super::to_cache::Aged;
use super::{Active, Locked, Pager};
use crate::bet::Bet;
use crate::control::Counter;
use crate::policy::SWEEP_MOST_PAGES;
use crate::region::{Range, RangeFlags};
use crate::sys::mechanism::Next;
use crate::sys::mem::Mapping;
use crate::sys::sync::look_for_abandoned;
use crate::sys::{HUGE_BYTES, PAGE_SIZE, program};

/// Pages side by side that count as lying alone: a copy of each is cheaper than a flush.
pub(super) const ALONE_MAX: usize = 2;
/// The fewest pages that are worth the flushes.
const ENOUGH: usize = 6;
/// Sweeps with too many neighbours written that one with few makes up for.
const ODDS: i8 = 1;
// A page that is not copied in one call would stay.
const _: () = assert!(SWEEP_MOST_PAGES <= program::EACH_MAX_PAGES);
/// How far the last page may lie from the first.
const SPAN_BYTES: usize = HUGE_BYTES;

/// The most runs of pages that lie alone and are too few to leave together.
pub(super) const LONE_RUNS_MAX: usize = ENOUGH;

/// Pages that lie alone, of one range, in the order of addresses: found by a sweep.
pub(super) struct Found {
    is_wanted: bool,
    pages: Leaving,
    from_trail: bool,
}

impl Found {
    /// `is_wanted`: the sweep looks for pages that lie alone.
    pub fn new(is_wanted: bool) -> Found {
        Found { is_wanted, pages: Leaving::new(), from_trail: false }
    }

    pub fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    pub fn count(&self) -> usize {
        self.pages.count()
    }

    /// Enough were found to leave together.
    pub fn is_enough(&self) -> bool {
        self.count() >= ENOUGH
    }

    /// There is no room for another run.
    pub fn is_full(&self) -> bool {
        self.count() + ALONE_MAX > SWEEP_MOST_PAGES
    }

    /// Whether `run` pages at `addr` are near enough to those found so far.
    pub fn reaches(&self, addr: usize, run: usize) -> bool {
        self.pages.first().is_none_or(|first| addr + run * PAGE_SIZE - first <= SPAN_BYTES)
    }

    pub fn push(&mut self, addr: usize, run: usize, from_trail: bool) {
        self.from_trail = from_trail;
        (0..run).for_each(|i| self.pages.push(addr + i * PAGE_SIZE));
    }

    /// Takes all pages; none is left.
    pub fn take(&mut self) -> Found {
        core::mem::replace(self, Found::new(self.is_wanted))
    }

    /// Address and length of each run of neighbours.
    pub fn runs(&self) -> impl Iterator<Item = (usize, usize)> {
        self.pages.as_slice().chunk_by(|a, b| *b == a + PAGE_SIZE).map(|run| (run[0], run.len()))
    }
}

/// The state of pages that leave together.
pub(super) struct Lone {
    /// Few neighbours are written meanwhile.
    undisturbed: Bet<ODDS>,
    /// The stretch that is protected while pages leave.
    stretch: Option<(usize, usize)>,
    /// Departures so far, of which the stretch is the last one's. A fork ends a departure while its
    /// thread copies, and another may have begun when that thread comes back.
    departures: u64,
    /// The buffer for copies. The thread that lets pages leave has it meanwhile.
    copies: Option<Mapping>,
}

impl Lone {
    pub const fn new() -> Lone {
        Lone { undisturbed: Bet::new(), stretch: None, departures: 0, copies: None }
    }

    /// Begins a departure from `[start, end)`. Returns its number.
    fn begin(&mut self, start: usize, end: usize) -> u64 {
        debug_assert!(!self.are_leaving());
        self.stretch = Some((start, end));
        self.departures += 1;
        self.departures
    }

    /// The stretch of a departure, if that has not ended.
    fn stretch_of(&self, departure: u64) -> Option<(usize, usize)> {
        self.stretch.filter(|_| departure == self.departures)
    }

    /// Learns that `left` pages left together while `written` pages of their stretch were written.
    /// A fault costs about as much as a MOVE.
    fn learn(&self, left: usize, written: usize) {
        self.undisturbed.learn(left > 0 && written <= left / 4);
    }

    /// Whether pages are leaving: their frames will be free.
    pub fn are_leaving(&self) -> bool {
        self.stretch.is_some()
    }
}

impl Pager {
    /// Whether the next sweep is to look for pages that lie alone, to let them leave together.
    pub(super) fn look_for_lone(&self, s: &mut Locked<'_>, active: &Active) -> bool {
        // Only one stretch can be leaving at a time.
        !s.lone.are_leaving()
            && s.lone.undisturbed.is_on()
            && active.mechanism.as_mover().is_some_and(|u| u.has_drop_each() && u.has_copy_each())
            && !self.may_be_pinned()
    }

    /// Lets the pages that a sweep has found lying alone leave together, if they are enough; or
    /// moves them out.
    pub(super) fn leave_together<'a>(
        &'a self,
        mut s: Locked<'a>,
        active: &Active,
        found: &mut Found,
    ) -> (Locked<'a>, Reclaimed) {
        if !found.is_enough() {
            return (s, Reclaimed::default());
        }
        let Some((mut copies, kept, departure)) = self.begin_to_leave(&mut s, active, found) else {
            let taken = self.take_lone(&mut s, active, found);
            return (s, Reclaimed { taken, ..Reclaimed::default() });
        };
        let pages = found.pages.as_slice();
        let mover = active.mechanism.as_mover().expect("may leave together");
        let copied = self.copy_unlocked(s, || mover.copy_each(pages, copies.as_mut_slice()));
        let mut aged = [Aged::Empty; SWEEP_MOST_PAGES];
        let (bytes, _) = copies.as_slice().as_chunks::<PAGE_SIZE>();
        for (i, aged) in aged[..copied].iter_mut().enumerate() {
            *aged = self.give_to_cache(active, &bytes[i], false, kept[i], &mut Evidence::default());
        }
        kept[copied..pages.len()].iter().for_each(|kept| self.free_entry(*kept));
        let mut s = self.enter();
        s.lone.copies = Some(copies);
        let (freed, refused) = self.end_leaving(&mut s, active, found, &aged, copied, departure);
        s.lone.learn(freed, self.disturbed.swap(0, Ordering::Relaxed) as usize);
        (s, Reclaimed { taken: freed, freed, refused })
    }

    /// Moves the pages that a sweep has found lying alone out, run by run. Returns how many went.
    fn take_lone(&self, s: &mut Locked<'_>, active: &Active, found: &Found) -> usize {
        let mut taken = 0;
        for (addr, run) in found.runs() {
            let (t, _) = self.take_run(s, active, addr, run, found.from_trail);
            taken += t.pages;
            if t.pages == 0 && t.next == Next::End {
                break;
            }
        }
        self.add(Counter::Evictions, taken as u64);
        taken
    }

    /// Lets the lock go and calls `copy`, which reads pages of the program that were there under
    /// the lock.
    pub fn copy_unlocked<T>(&self, s: Locked<'_>, copy: impl FnOnce() -> T) -> T {
        self.copying.fetch_add(1, Ordering::Relaxed);
        drop(s);
        let copied = copy();
        self.copying.fetch_sub(1, Ordering::Release);
        copied
    }

    /// Waits, with the lock held and before memory is taken from the mechanism, until no thread
    /// reads that memory without the lock. None begins to before the lock is free.
    pub(super) fn wait_for_copies(&self) {
        const MOMENT_NS: u64 = 20_000;
        // Some seconds: a process that shares this memory may have been killed while it copied.
        const ABANDONED_MOMENTS: u32 = 50_000;
        let mut moments = 0;
        while self.copying.load(Ordering::Acquire) > 0 {
            crate::sys::sleep_ns(MOMENT_NS);
            moments += 1;
            if moments % ABANDONED_MOMENTS == 0 {
                look_for_abandoned();
            }
        }
    }

    /// Protects the stretch of those found pages that can still leave. Returns memory for copies,
    /// the entries that the cache kept of the pages, which are the caller's now, and the number of
    /// the departure. `None`: the pages cannot leave together.
    fn begin_to_leave(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        found: &mut Found,
    ) -> Option<(Mapping, [Option<u64>; SWEEP_MOST_PAGES], u64)> {
        // Another thread may have begun since the sweep looked.
        if s.lone.are_leaving() {
            return None;
        }
        let range = found
            .pages
            .first()
            .and_then(|first| self.ranges.find(first))
            .filter(Range::is_swept)?;
        found.pages.retain(|page| {
            range.contains(page)
                && self.is_free(s, page)
                && self.table.get(page).is_some_and(|e| e.is_writable())
        });
        if !found.is_enough() {
            return None;
        }
        let pages = found.pages.as_slice();
        let (start, end) = (pages[0], pages[pages.len() - 1] + PAGE_SIZE);
        let mut is_shared = false;
        self.table.for_each_occupied(start, end, |_, _, e| is_shared |= e.is_shared());
        if is_shared || !self.claim_stretches(s, start, end) {
            return None;
        }
        // Before the lock is let go, so that no other thread begins meanwhile.
        let departure = s.lone.begin(start, end);
        let mut kept = [None; SWEEP_MOST_PAGES];
        for (page, kept) in pages.iter().zip(&mut kept) {
            self.table.word(*page, |_, e| {
                *kept = e.take_copy();
                e.begin_to_leave();
            });
        }
        self.table.for_each_occupied(start, end, |_, _, e| e.guard());
        fence(Ordering::SeqCst);
        let copies =
            s.lone.copies.take().or_else(|| Mapping::new(SWEEP_MOST_PAGES * PAGE_SIZE).ok());
        let is_protected = copies.is_some()
            && !self.holds.is_held(start, end)
            && s.unlocked(|| active.mechanism.forbid_write(start, end - start, range.prot).is_ok())
            // The program may have pinned memory since the sweep began. From here on a pin that is
            // to write waits for the pager.
            && !self.may_be_pinned();
        if !is_protected {
            s.lone.copies = copies;
            self.lift(s, active, start, end);
            s.lone.stretch = None;
            self.end_stretch_claims(s, start, end);
            kept.iter().for_each(|kept| self.free_entry(*kept));
            return None;
        }
        self.end_stretch_claims(s, start, end);
        copies.map(|copies| (copies, kept, departure))
    }

    /// Drops the frames of those pages that were not written since they began to leave. Returns how
    /// many, and how many others the cache refused. The first `copied` could be copied.
    fn end_leaving(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        found: &Found,
        aged: &[Aged],
        copied: usize,
        departure: u64,
    ) -> (usize, usize) {
        self.recount_own();
        let pages = found.pages.as_slice();
        let claimed = s.lone.stretch_of(departure);
        if let Some((start, end)) = claimed {
            self.wait_to_claim_stretches(s, start, end);
        }
        // A fork meanwhile has let all pages stay. Those that leave again by now have other copies.
        let stretch = s.lone.stretch_of(departure);
        // A page that has no frame any more could not be copied: the kernel dropped it, and its
        // neighbours are for the next time.
        if stretch.is_some()
            && let Some(page) = pages.get(copied)
            && self.table.get(*page).is_some_and(|e| e.is_leaving())
            && !active.mechanism.is_present(*page)
        {
            self.note_dropped(s, *page);
        }
        let (mut going, mut refused) = (Leaving::new(), 0);
        for (page, aged) in pages.iter().zip(aged) {
            let leaves = stretch.is_some() && self.table.get(*page).is_some_and(|e| e.is_leaving());
            match *aged {
                Aged::Stored(entry) if leaves => {
                    let stamp = self.stamp(going.count());
                    self.table
                        .word(*page, |_, e| e.leave_to(entry.to_bits(), stamp, found.from_trail));
                    going.push(*page);
                }
                Aged::Zero if leaves => {
                    self.table.word(*page, |_, e| e.leave_nothing());
                    going.push(*page);
                }
                Aged::Stored(entry) => active.cache.free(entry),
                Aged::Refused if leaves => {
                    self.table.word(*page, |_, e| e.refuse_to_leave());
                    self.note_refused(*page);
                    refused += 1;
                }
                Aged::Zero | Aged::Refused | Aged::Empty => {}
            }
        }
        let mut done = (0, refused);
        if let Some((start, end)) = stretch {
            s.lone.stretch = None;
            done.0 = self.let_leave(s, active, going.pages(), start, end);
        }
        if let Some((start, end)) = claimed {
            self.end_stretch_claims(s, start, end);
        }
        done
    }

    /// Drops the frames of `pages`, whose words say already that they have gone, except for pages
    /// that are held, and lifts the protection of their stretch. Returns how many went.
    fn let_leave(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        pages: &mut [usize],
        start: usize,
        end: usize,
    ) -> usize {
        fence(Ordering::SeqCst);
        let mut count = 0;
        for i in 0..pages.len() {
            if self.may_be_in_use(pages[i]) {
                self.come_back(active, pages[i]);
            } else {
                pages[count] = pages[i];
                count += 1;
            }
        }
        let (gone, stored) = self.let_go(s, active, &mut pages[..count]);
        self.lift(s, active, start, end);
        for c in [Counter::Evictions, Counter::LoneEvictions] {
            self.add(c, gone as u64);
        }
        self.add(Counter::ZeroPages, (gone - stored) as u64);
        gone
    }

    /// Lets the pages that are about to leave stay.
    pub(super) fn let_stay(&self, s: &mut Locked<'_>, active: &Active) {
        if let Some((start, end)) = s.lone.stretch.take() {
            self.lift_now(active, start, end);
        }
    }

    /// Makes all of `[start, end)`, which the caller has claimed, writable.
    fn lift(&self, s: &mut Locked<'_>, active: &Active, start: usize, end: usize) {
        match self.ranges.find(start).filter(|r| end <= r.end) {
            Some(r) if !r.flags.has(RangeFlags::UNREGISTERED) => {
                s.unlocked(|| active.mechanism.allow_write(start, end - start, r.prot));
                self.note_unguarded(start, end);
            }
            _ => self.lift_now(active, start, end),
        }
    }

    /// [`Self::lift`] under the lock: `[start, end)` may be several ranges by now.
    fn lift_now(&self, active: &Active, start: usize, end: usize) {
        self.ranges.for_each(start, end, |r| {
            if !r.flags.has(RangeFlags::UNREGISTERED) {
                active.mechanism.allow_write(r.start, r.len(), r.prot);
            }
        });
        self.note_unguarded(start, end);
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::{READ_WRITE, Spec, Touch, World};
    use super::*;

    /// Pages of each half of a world of which every other page is in use.
    const HALF_PAGES: usize = 16;

    /// Begins to let the pages from `first` on leave, as far as their entries in the cache. `None`:
    /// they cannot.
    fn begin(w: &World, first: usize) -> Option<(Found, [Aged; SWEEP_MOST_PAGES], u64)> {
        let (pager, active) = (&w.pager, w.active());
        let mut found = Found::new(true);
        (0..HALF_PAGES).step_by(2).for_each(|page| found.push(w.at(first + page), 1, false));
        let (mut copies, kept, departure) =
            pager.begin_to_leave(&mut pager.enter(), active, &mut found)?;
        let pages = found.pages.as_slice();
        let mover = active.mechanism.as_mover().expect("it moves");
        assert_eq!(mover.copy_each(pages, copies.as_mut_slice()), pages.len());
        let mut aged = [Aged::Empty; SWEEP_MOST_PAGES];
        for (i, bytes) in
            copies.as_slice().as_chunks::<PAGE_SIZE>().0[..pages.len()].iter().enumerate()
        {
            let mut evidence = Evidence::default();
            aged[i] = pager.give_to_cache(active, bytes, false, kept[i], &mut evidence);
        }
        Some((found, aged, departure))
    }

    fn end(w: &World, (found, aged, departure): &(Found, [Aged; SWEEP_MOST_PAGES], u64)) -> usize {
        let mut s = w.pager.enter();
        let copied = found.count();
        w.pager.end_leaving(&mut s, w.active(), found, aged, copied, *departure).0
    }

    #[test]
    fn a_departure_that_a_fork_has_ended_takes_nothing_of_the_next() {
        let w = World::new(Spec::roomy(2 * HALF_PAGES));
        w.map(0, 2 * HALF_PAGES, READ_WRITE);
        let mut thread = w.thread();
        // From the last to the first, so that no page brings neighbours along.
        let mut write = |byte: u8| {
            for page in (0..2 * HALF_PAGES).step_by(2).rev() {
                assert_eq!(thread.access(w.at(page), true, |b| b[9] = byte), Touch::Done);
            }
        };
        write(1);
        let first = begin(&w, 0).expect("all can leave");
        w.fork_in_vain();
        write(2);
        let second = begin(&w, 0).expect("all can leave again");
        assert!(begin(&w, HALF_PAGES).is_none(), "one stretch leaves at a time");
        assert_eq!(end(&w, &first), 0, "its copies are of before the fork");
        assert!(w.pager.enter().lone.are_leaving());
        assert_eq!(end(&w, &second), HALF_PAGES / 2);
        w.check();
        for page in (0..2 * HALF_PAGES).step_by(2) {
            let touch = thread.access(w.at(page), false, |b| assert_eq!(b[9], 2, "page {page}"));
            assert_eq!(touch, Touch::Done);
        }
        w.unmap(0, 2 * HALF_PAGES);
        w.check_empty();
    }

    #[test]
    fn a_stretch_is_of_one_size() {
        let mut found = Found::new(true);
        assert!(found.reaches(0x1000, 2) && !found.is_enough());
        found.push(0x1000, 1, false);
        let last = 0x1000 + SPAN_BYTES - PAGE_SIZE;
        assert!(
            found.reaches(last, 1)
                && !found.reaches(last, 2)
                && !found.reaches(last + PAGE_SIZE, 1)
        );
        found.push(0x8000, 2, false);
        found.push(0x20000, 2, false);
        assert!(!found.is_enough());
        found.push(last, 1, true);
        assert_eq!((found.is_enough(), found.count()), (true, 6));
        let all = found.take();
        assert_eq!((found.count(), found.is_wanted()), (0, true));
        let runs: Vec<_> = all.runs().collect();
        assert_eq!(runs, [(0x1000, 1), (0x8000, 2), (0x20000, 2), (last, 1)]);
    }
}
