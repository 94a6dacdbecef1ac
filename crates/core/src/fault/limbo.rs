//! Limbo: the second chance of a page, and the only access bit there is without privilege.
//!
//! A ring of slots in the order in which pages came in. Entering takes a stretch of slots at the head, ageing out claims
//! a batch at the tail. A page that is touched, unmapped or moved leaves its slot dead; the slot is reused when
//! the tail has passed and its frame was given back.
//!
//! ```text
//!     freed        claimed            ready                     free
//!   ...........|==========|#######.####.##########|..............
//!            tail       claim                    head             (positions count up for ever; slot = position % len)
//! ```
//! All methods need the pager's lock, except that a claimed stretch belongs to its claimer until `finish`.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::sys::mem::Table;
use crate::sys::{PAGE_SHIFT, Result};

/// A slot whose frame is gone: the tail may pass.
const FREED: u64 = u64::MAX;
/// A slot with a frame but no page.
const DEAD: u64 = 0;
/// Bit of a slot: the page goes to the store rather than the pool.
const COLD: u64 = 1 << 62;

/// The ring. Slots hold the page number of their page, or one of the marks above.
#[derive(Default)]
pub struct Limbo {
    owner: Table<AtomicU64>,
    slots: u64,
    tail: u64,
    claim: u64,
    head: u64,
}

/// A stretch of consecutive slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stretch {
    pub position: u64,
    pub slot: usize,
    pub count: usize,
}

impl Limbo {
    pub const fn new() -> Limbo {
        Limbo { owner: Table::new(), slots: 0, tail: 0, claim: 0, head: 0 }
    }

    /// Sets the number of slots, once.
    pub fn init(&mut self, slots: usize) -> Result<()> {
        self.slots = slots as u64;
        for i in (0..slots).step_by(Table::<AtomicU64>::PER_SEGMENT) {
            self.owner.ensure(i)?;
        }
        self.owner.ensure(slots - 1).map(drop)
    }

    fn owner(&self, position: u64) -> &AtomicU64 {
        self.owner.get((position % self.slots) as usize).expect("slot of the ring")
    }

    /// Slots between tail and head.
    pub fn in_use(&self) -> usize {
        (self.head - self.tail) as usize
    }

    /// Slots that are neither free nor claimed.
    pub fn ready(&self) -> usize {
        (self.head - self.claim) as usize
    }

    /// Slots that somebody has claimed and not finished.
    pub fn claimed(&mut self) -> usize {
        self.advance_tail();
        (self.claim - self.tail) as usize
    }

    fn advance_tail(&mut self) {
        while self.tail < self.claim && self.owner(self.tail).load(Ordering::Acquire) == FREED {
            self.tail += 1;
        }
    }

    /// Up to `want` consecutive free slots (none wraps around), not yet taken.
    pub fn peek_free(&mut self, want: usize) -> Option<Stretch> {
        self.advance_tail();
        let free = self.slots - (self.head - self.tail);
        let to_wrap = self.slots - self.head % self.slots;
        let count = (want as u64).min(free).min(to_wrap) as usize;
        (count > 0).then(|| Stretch { position: self.head, slot: (self.head % self.slots) as usize, count })
    }

    /// Takes the first `count` slots of what `peek_free` gave, for pages from `addr` on. `cold`: they go to the
    /// store rather than the pool.
    pub fn take(&mut self, count: usize, addr: usize, cold: bool) {
        let flag = if cold { COLD } else { 0 };
        for i in 0..count as u64 {
            self.owner(self.head + i).store(((addr >> PAGE_SHIFT) as u64 + i) | flag, Ordering::Release);
        }
        self.head += count as u64;
    }

    /// Claims up to `want` of the oldest slots.
    pub fn claim(&mut self, want: usize) -> Option<Stretch> {
        let to_wrap = self.slots - self.claim % self.slots;
        let count = (want as u64).min(self.head - self.claim).min(to_wrap) as usize;
        let s = Stretch { position: self.claim, slot: (self.claim % self.slots) as usize, count };
        self.claim += count as u64;
        (count > 0).then_some(s)
    }

    /// The address of the page in a slot, if it still has one.
    pub fn page(&self, slot: usize) -> Option<usize> {
        match self.owner(slot as u64).load(Ordering::Acquire) {
            DEAD | FREED => None,
            n => Some(((n & !COLD) as usize) << PAGE_SHIFT),
        }
    }

    /// Whether the slot's page goes to the store rather than the pool.
    pub fn is_cold(&self, slot: usize) -> bool {
        let n = self.owner(slot as u64).load(Ordering::Acquire);
        n != FREED && n & COLD != 0
    }

    /// The slot's page was moved to another address (mremap).
    pub fn moved(&self, slot: usize, addr: usize) {
        self.owner(slot as u64).store((addr >> PAGE_SHIFT) as u64, Ordering::Release);
    }

    /// The slot's page is elsewhere now, or worthless.
    pub fn kill(&self, slot: usize) {
        self.owner(slot as u64).store(DEAD, Ordering::Release);
    }

    /// A claimed stretch has given its frames back.
    pub fn finish(&self, s: Stretch) {
        for i in 0..s.count as u64 {
            self.owner(s.position + i).store(FREED, Ordering::Release);
        }
    }

    /// In the child after fork: claims of threads that do not exist here are void. Calls `release` for
    /// stretches whose frames may still be there though no page is.
    pub fn after_fork_child(&mut self, mut release: impl FnMut(usize, usize)) {
        self.claim = self.tail;
        for p in self.tail..self.head {
            if matches!(self.owner(p).load(Ordering::Acquire), DEAD | FREED) {
                release((p % self.slots) as usize, 1);
                self.owner(p).store(DEAD, Ordering::Release);
            }
        }
    }

    /// Asserts the order of the marks.
    pub fn check(&self) {
        assert!(self.tail <= self.claim && self.claim <= self.head && self.head - self.tail <= self.slots);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_go_round_in_order() {
        let mut l = Limbo::new();
        l.init(10).unwrap();
        let mut next_page = 1usize;
        let mut expected = std::collections::VecDeque::new();
        for round in 0..100 {
            let want = 1 + round % 7;
            if let Some(s) = l.peek_free(want) {
                l.take(s.count, next_page << PAGE_SHIFT, round % 3 == 0);
                for i in 0..s.count {
                    expected.push_back((next_page + i, s.slot + i));
                }
                next_page += s.count;
            }
            l.check();
            if let Some(s) = l.claim(1 + round % 5) {
                for i in 0..s.count {
                    let (page, slot) = expected.pop_front().unwrap();
                    assert_eq!((l.page(s.slot + i), s.slot + i), (Some(page << PAGE_SHIFT), slot));
                }
                l.finish(s);
            }
            l.check();
        }
        assert!(next_page > 100);
    }

    #[test]
    fn a_full_ring_gives_nothing_until_the_tail_moves() {
        let mut l = Limbo::new();
        l.init(4).unwrap();
        l.take(4, 0x1000, true);
        assert!(l.peek_free(1).is_none());
        let a = l.claim(2).unwrap();
        let b = l.claim(2).unwrap();
        l.finish(b);
        assert!(l.peek_free(1).is_none(), "the older claim is not finished");
        l.kill(a.slot);
        l.finish(a);
        assert_eq!(l.peek_free(9).map(|s| s.count), Some(4));
    }
}
