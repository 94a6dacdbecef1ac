//! The pager's own policy, from the parts in `uzswap::policy` by which `pager/sweep.rs` and
//! `pager/evict.rs` go: the ring of limbo, and its target; the windows that go first (`Trail`); and
//! the sizes of a step.
//!
//! Simulated here is what lies between them: the hand goes over the numbers of pages, which are in
//! the order of addresses, by a bitmap of those that are resident. It differs from the pager in
//! this:
//! - misses of consecutive pages are taken for those of one thread that reads on, and its windows
//!   grow as the pager's do: the trail is made of them;
//! - one hand goes over all processes; in the pager each has its own, and which of them sweeps is
//!   decided by who faults;
//! - nothing is evicted ahead: the evictor's watermarks keep some percent of the memory free, which
//!   no policy here does;
//! - no page is held, locked, shared by fork or huge, and ageing out takes no time;
//! - limbo's target is a part of the limit, which includes the pool. Here the pool is taken to have
//!   the share of it that the pager begins with ([`POOL_FIRST_PERCENT`]).

use uzswap::policy::limbo::Limbo;
use uzswap::policy::trail::{Run, Trail};
use uzswap::policy::{
    DIRECT_PAGES, POOL_FIRST_PERCENT, SWEEP_PAGES, batch_pages, limbo_slots, limbo_target,
    next_window, sweeps_first,
};

use super::sequence::Policy;

const PAGE_SHIFT: u32 = 12;
/// No slot of limbo.
const NO_SLOT: u32 = u32::MAX;

/// Where a page is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Resident,
    Limbo(usize),
    Out,
}

pub struct Own {
    resident: Bitmap,
    /// Of every page its slot, if it is in limbo.
    slots: Vec<u32>,
    was_touched: Vec<bool>,
    /// Of every page that is not resident: it was taken as the end of the trail.
    was_from_trail: Vec<bool>,
    hand: usize,
    trail: Trail,
    came_back: usize,
    stream: Stream,
    limbo: Limbo,
    target: i64,
    limit: i64,
    pages: usize,
}

/// Misses that run on, as windows.
#[derive(Default)]
struct Stream {
    start: usize,
    pages: usize,
    window: usize,
}

impl Stream {
    /// A page is missed; the window that it completes.
    fn miss(&mut self, page: usize, most: usize) -> Option<Run> {
        if page == self.start + self.pages && self.pages > 0 {
            if self.pages == self.window {
                *self = Stream { start: page, pages: 0, window: next_window(self.window, most) };
            }
            self.pages += 1;
        } else {
            *self = Stream { start: page, pages: 1, window: 1 };
        }
        (self.pages == self.window).then_some(Run { start: self.start, pages: self.pages })
    }
}

/// The limit of which so many pages are the part for pages as they are. The pool's part stays as it
/// begins, in place of the pager's, which adapts.
fn limit_of(pages: usize) -> usize {
    pages * 100 / (100 - POOL_FIRST_PERCENT as usize)
}

impl Own {
    pub fn new(lives: usize, pages: usize) -> Own {
        // Where all pages fit none goes, however much larger the memory is.
        let pages = pages.min(lives.max(1));
        let limit = limit_of(pages);
        let slots = limbo_slots(limit);
        let mut limbo = Limbo::new();
        limbo.init(slots, 0).expect("memory for the simulation");
        Own {
            resident: Bitmap::new(lives),
            slots: vec![NO_SLOT; lives],
            was_touched: vec![false; lives],
            was_from_trail: vec![false; lives],
            hand: 0,
            trail: Trail::new(),
            came_back: 0,
            stream: Stream::default(),
            limbo,
            target: limbo_target(limit as i64, slots),
            limit: limit as i64,
            pages,
        }
    }

    fn place(&self, page: u32) -> Place {
        match self.slots[page as usize] {
            _ if self.resident.has(page as usize) => Place::Resident,
            NO_SLOT => Place::Out,
            slot => Place::Limbo(slot as usize),
        }
    }

    /// Frames in use: a page that left limbo leaves its slot, which counts until the tail has
    /// passed, as in the pager.
    fn used(&self) -> usize {
        self.resident.len + self.limbo.in_use()
    }

    fn make_room(&mut self) {
        while self.used() + 1 > self.pages && (self.resident.len > 0 || self.limbo.ready() > 0) {
            // One step of a thread that waits for room (`reclaim`).
            if sweeps_first(self.limbo.ready(), self.target) {
                self.sweep();
            }
            self.age_out();
        }
    }

    /// One sweep: the end of the trail, if it goes first, or what the hand finds.
    fn sweep(&mut self) {
        if self.sweep_trail() == 0 {
            let taken = self.sweep_by_hand();
            self.trail.learn(taken, std::mem::take(&mut self.came_back), self.limit);
        }
    }

    fn sweep_trail(&mut self) -> usize {
        let mut taken = 0;
        while taken < SWEEP_PAGES
            && let Some(run) = self.trail.next(self.limit)
        {
            let (mut looked, mut went) = (0, 0);
            while looked < run.pages && taken + went < SWEEP_PAGES {
                let page = run.start + looked;
                if self.resident.has(page) {
                    if !self.take(page, true) {
                        self.trail.took(looked, went);
                        return taken + went;
                    }
                    went += 1;
                }
                looked += 1;
            }
            self.trail.took(looked, went);
            taken += went;
        }
        taken
    }

    /// The hand goes on until it has taken enough, or has been round twice.
    fn sweep_by_hand(&mut self) -> usize {
        let (mut taken, mut wraps) = (0, 0);
        while taken < SWEEP_PAGES && wraps < 2 {
            let Some(page) = self.resident.next_from(self.hand) else {
                self.hand = 0;
                wraps += 1;
                continue;
            };
            if !self.take(page, false) {
                break;
            }
            taken += 1;
            self.hand = page + 1;
        }
        taken
    }

    /// A resident page goes into limbo, if there is a slot.
    fn take(&mut self, page: usize, from_trail: bool) -> bool {
        let Some(free) = self.limbo.peek_free(1) else { return false };
        self.limbo.take(1, address(page), false);
        self.slots[page] = free.slot as u32;
        self.resident.clear(page);
        self.was_from_trail[page] = from_trail;
        true
    }

    fn age_out(&mut self) {
        let Some(batch) = self.limbo.age(DIRECT_PAGES) else { return };
        for slot in batch.slot..batch.slot + batch.count {
            if let Some(page) = self.limbo.page(slot) {
                self.slots[number(page)] = NO_SLOT;
            }
        }
        self.limbo.finish(batch);
        // The tail follows when it is asked for.
        self.limbo.ageing();
    }
}

impl Policy for Own {
    fn touch(&mut self, page: u32, _: usize) -> bool {
        let i = page as usize;
        match self.place(page) {
            // Nobody sees a touch of a resident page.
            Place::Resident => return true,
            Place::Limbo(slot) => {
                self.limbo.kill(slot);
                self.slots[i] = NO_SLOT;
                self.came_back += usize::from(!self.was_from_trail[i]);
            }
            Place::Out => {
                self.make_room();
                let was_touched = std::mem::replace(&mut self.was_touched[i], true);
                self.came_back += usize::from(was_touched && !self.was_from_trail[i]);
                if was_touched && let Some(window) = self.stream.miss(i, batch_pages(self.limit)) {
                    self.trail.follow(window, self.limit);
                }
                self.resident.set(i);
                return false;
            }
        }
        self.resident.set(i);
        true
    }

    fn forget(&mut self, page: u32) {
        match self.place(page) {
            Place::Resident => self.resident.clear(page as usize),
            Place::Limbo(slot) => {
                self.limbo.kill(slot);
                self.slots[page as usize] = NO_SLOT;
            }
            Place::Out => {}
        }
    }
}

/// The address under which limbo knows a page; 0 is none.
fn address(page: usize) -> usize {
    (page + 1) << PAGE_SHIFT
}

fn number(address: usize) -> usize {
    (address >> PAGE_SHIFT) - 1
}

/// A set of pages in which the next one is found quickly.
struct Bitmap {
    words: Vec<u64>,
    len: usize,
}

impl Bitmap {
    fn new(lives: usize) -> Bitmap {
        Bitmap { words: vec![0; lives / 64 + 1], len: 0 }
    }

    fn has(&self, page: usize) -> bool {
        self.words[page / 64] >> (page % 64) & 1 != 0
    }

    fn set(&mut self, page: usize) {
        self.len += usize::from(!self.has(page));
        self.words[page / 64] |= 1 << (page % 64);
    }

    fn clear(&mut self, page: usize) {
        self.len -= usize::from(self.has(page));
        self.words[page / 64] &= !(1 << (page % 64));
    }

    fn next_from(&self, page: usize) -> Option<usize> {
        let mut at = page / 64;
        let mut word = *self.words.get(at)? & (!0 << (page % 64));
        while word == 0 {
            at += 1;
            word = *self.words.get(at)?;
        }
        Some(at * 64 + word.trailing_zeros() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: usize = 1600;

    /// Touches pages in order; how many of them were there.
    fn touch(own: &mut Own, pages: impl IntoIterator<Item = u32>) -> usize {
        pages.into_iter().filter(|page| own.touch(*page, 0)).count()
    }

    #[test]
    fn the_bitmap_finds_the_next_page() {
        let mut map = Bitmap::new(300);
        for page in [0, 63, 64, 200, 200, 300] {
            map.set(page);
        }
        let all: Vec<usize> =
            std::iter::successors(map.next_from(0), |p| map.next_from(p + 1)).collect();
        assert_eq!((all, map.len), (vec![0, 63, 64, 200, 300], 5));
        map.clear(200);
        map.clear(200);
        assert_eq!((map.next_from(65), map.len), (Some(300), 4));
        assert_eq!(map.next_from(10_000), None);
    }

    #[test]
    fn the_hand_takes_the_cold_by_address_and_limbo_is_the_second_chance() {
        let mut own = Own::new(2 * PAGES, PAGES);
        assert_eq!(touch(&mut own, 0..PAGES as u32), 0);
        assert!((0..PAGES as u32).all(|p| own.place(p) == Place::Resident), "all fits");
        // One more: 32 are taken in the order of their addresses, and the oldest eight go.
        touch(&mut own, [PAGES as u32]);
        assert!((0..DIRECT_PAGES as u32).all(|p| own.place(p) == Place::Out));
        assert!(
            (DIRECT_PAGES as u32..SWEEP_PAGES as u32)
                .all(|p| matches!(own.place(p), Place::Limbo(_)))
        );
        assert_eq!(own.place(SWEEP_PAGES as u32), Place::Resident);
        // Touched there it is there; what had gone comes back.
        assert_eq!(touch(&mut own, [20, 0]), 1);
        assert_eq!((own.place(20), own.place(0)), (Place::Resident, Place::Resident));
    }

    #[test]
    fn limbo_fills_to_its_target_and_memory_is_never_exceeded_but_by_hits() {
        let mut own = Own::new(10 * PAGES, PAGES);
        // Three quarters of the limit are for the pool, as the pager begins.
        let limit = 4 * PAGES;
        assert_eq!(own.limit, limit as i64);
        assert_eq!((own.target, limbo_target(limit as i64, limbo_slots(limit))), (400, 400));
        for page in 0..8 * PAGES as u32 {
            touch(&mut own, [page]);
            assert!(own.used() <= PAGES, "{page}: {}", own.used());
        }
        assert!(
            (own.limbo.ready() as i64 - own.target).abs() <= SWEEP_PAGES as i64,
            "{}",
            own.limbo.ready()
        );
    }

    #[test]
    fn a_memory_larger_than_all_pages_takes_no_more_than_they_need() {
        let mut own = Own::new(PAGES, 1 << 32);
        assert!(own.limbo.peek_free(usize::MAX).is_some_and(|free| free.count < 8 * PAGES));
        touch(&mut own, 0..PAGES as u32);
        assert_eq!(touch(&mut own, 0..PAGES as u32), PAGES);
    }

    #[test]
    fn who_goes_round_through_two_memories_finds_a_part_there() {
        let mut own = Own::new(2 * PAGES, PAGES);
        let rounds: Vec<usize> = (0..12).map(|_| touch(&mut own, 0..2 * PAGES as u32)).collect();
        // A quarter of this small memory is limbo, which such a loop goes through in vain. The
        // trail is what is found.
        assert!(
            rounds[1] < PAGES / 4 && rounds[4..].iter().sum::<usize>() > 8 * PAGES / 8,
            "{rounds:?}"
        );
    }

    #[test]
    fn who_turns_to_other_pages_soon_has_them_all() {
        let mut own = Own::new(4 * PAGES, PAGES);
        (0..12).for_each(|_| _ = touch(&mut own, 0..2 * PAGES as u32));
        assert!(own.trail.is_on());
        let others = || 2 * PAGES as u32..2 * PAGES as u32 + PAGES as u32 / 2;
        let rounds: Vec<usize> = (0..8).map(|_| touch(&mut own, others())).collect();
        assert_eq!(rounds[3], PAGES / 2, "{rounds:?}");
    }

    #[test]
    fn the_dead_leave_no_trace() {
        let mut own = Own::new(2 * PAGES, PAGES);
        touch(&mut own, 0..=PAGES as u32);
        // Out, in limbo, resident.
        for page in [3, 20, 500] {
            own.forget(page);
            assert_eq!(own.place(page), Place::Out);
        }
        touch(&mut own, (0..2 * PAGES as u32).rev());
        assert!(own.used() <= PAGES + 1);
    }
}
