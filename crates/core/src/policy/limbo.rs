//! Limbo: the second chance of a page, and the only access bit there is without privilege.
//!
//! A ring of slots in the order in which pages came in. Entering takes a *batch* of slots, one
//! after the other, at the head; ageing out takes a batch at the tail, which *ages* meanwhile. A
//! page that is touched, unmapped or moved leaves its slot dead; the slot is reused when the tail
//! has passed and its frame was given back.
//!
//! ```text
//!     freed         ageing            ready                     free
//!   ...........|==========|#######.####.##########|..............
//!            tail       aged                     head             (positions count up for ever; slot = position % len)
//! ```
//! When the pages of an aged batch are in the cache, its frames need not go back to the kernel.
//! A few such batches are the *stock*: windows of stored pages are loaded into them, and moved to
//! the program with their frames. The tail cannot pass the stock, so the stock is small, and is
//! given up before it gets old.
//!
//! Huge pages have blocks of slots behind the ring's, each for one of them, aged out in the order
//! in which they came ([`blocks`]).
//!
//! All methods need the pager's lock, except that a batch belongs to the thread that ages it
//! until `finish`.

mod blocks;

use core::sync::atomic::{AtomicU64, Ordering};

use super::WINDOW_LEAST_PAGES;
use crate::sys::mem::Table;
use crate::sys::{HUGE_PAGES, PAGE_SHIFT, Result};
use blocks::{BLOCK_FREE, BLOCK_TAKEN};

/// A slot whose frame is gone: the tail may pass.
const FREED: u64 = u64::MAX;
/// A slot with a frame but no page.
const DEAD: u64 = 0;
/// Bit of a slot: the page goes to the store rather than the pool.
const TO_STORE: u64 = 1 << 62;
/// Bit of a slot: the page's frame is on its way into it.
const COMING: u64 = 1 << 61;

/// Blocks for huge pages, at most.
pub const BLOCKS_MAX: usize = 64;
/// The most batches in stock. After one was asked for, so many of the next batches may go into
/// the stock, and no more: a stock that nobody uses holds memory.
const STOCK_MAX: usize = 4;
const WANTED_MAX: u32 = 8;

/// The ring and the blocks. Slots hold the page number of their page, or one of the marks above.
pub struct Limbo {
    owner: Table<AtomicU64>,
    slots: u64,
    tail: u64,
    /// The position up to which slots age, or have aged.
    aged: u64,
    head: u64,
    /// A mark for each block: when its huge page came (counted from 1), or one of the marks above.
    blocks: [u64; BLOCKS_MAX],
    blocks_len: usize,
    blocks_came: u64,
    /// The batches in stock, the oldest first.
    stock: [Option<Batch>; STOCK_MAX],
    wanted: u32,
}

/// Consecutive slots of the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Batch {
    pub position: u64,
    pub slot: usize,
    pub count: usize,
}

impl Default for Limbo {
    fn default() -> Self {
        Self::new()
    }
}

impl Limbo {
    pub const fn new() -> Limbo {
        Limbo {
            owner: Table::new(),
            slots: 0,
            tail: 0,
            aged: 0,
            head: 0,
            blocks: [BLOCK_FREE; BLOCKS_MAX],
            blocks_len: 0,
            blocks_came: 0,
            stock: [None; STOCK_MAX],
            wanted: 0,
        }
    }

    /// Sets the number of slots of the ring, and of blocks, once.
    pub fn init(&mut self, slots: usize, blocks: usize) -> Result<()> {
        self.slots = slots as u64;
        self.blocks_len = blocks;
        let slots = slots + blocks * HUGE_PAGES;
        for i in (0..slots).step_by(Table::<AtomicU64>::PER_SEGMENT) {
            self.owner.ensure(i)?;
        }
        self.owner.ensure(slots - 1).map(drop)
    }

    fn owner(&self, position: u64) -> &AtomicU64 {
        self.of_slot((position % self.slots) as usize)
    }

    fn of_slot(&self, slot: usize) -> &AtomicU64 {
        self.owner.get(slot).expect("a slot")
    }

    /// Slots between tail and head, and in blocks that are not free.
    pub fn in_use(&self) -> usize {
        let blocks = self.count_blocks(|b| b != BLOCK_FREE);
        (self.head - self.tail) as usize + blocks * HUGE_PAGES
    }

    /// Slots that are neither free nor ageing.
    pub fn ready(&self) -> usize {
        (self.head - self.aged) as usize + self.blocks_ready() * HUGE_PAGES
    }

    /// Slots that a thread ages and has not finished, without those in stock.
    pub fn ageing(&mut self) -> usize {
        self.advance_tail();
        let blocks = self.count_blocks(|b| b == BLOCK_TAKEN);
        let is_there = |position: &u64| self.owner(*position).load(Ordering::Acquire) != FREED;
        let ageing = (self.tail..self.aged).filter(is_there).count();
        ageing - self.stock_slots() + blocks * HUGE_PAGES
    }

    fn stock_slots(&self) -> usize {
        self.stock.iter().flatten().map(|s| s.count).sum()
    }

    /// Notes that a window could use a batch with frames.
    pub fn want_stock(&mut self) {
        self.wanted = WANTED_MAX;
    }

    /// Whether an aged batch of `count` is to be kept rather than given back.
    pub fn wants_stock(&self, count: usize) -> bool {
        self.wanted > 0
            && self.stock[STOCK_MAX - 1].is_none()
            && self.stock_slots() + count <= self.slots as usize / 4
    }

    /// Keeps an aged batch, all of whose slots have frames and no pages.
    pub fn keep_batch(&mut self, s: Batch) {
        self.wanted = self.wanted.saturating_sub(1);
        let place = self.stock.iter().position(Option::is_none).expect("asked");
        self.stock[place] = Some(s);
    }

    pub fn has_stock(&self) -> bool {
        self.stock[0].is_some()
    }

    /// Takes up to `most` slots of the oldest batch of the stock that has as many, or of the
    /// largest: they are the caller's, as if it had begun to age them, until `finish`. The rest of
    /// that batch stays if it is large enough for a window.
    pub fn take_stock(&mut self, most: usize) -> Option<Batch> {
        let counts = || self.stock.iter().map_while(|s| s.map(|s| s.count));
        let largest = counts().max()?;
        let i = counts().position(|count| count >= most.min(largest)).expect("one is the largest");
        let s = self.stock[i].take().expect("it was counted");
        if s.count.saturating_sub(most) >= WINDOW_LEAST_PAGES {
            self.stock[i] = Some(Batch {
                position: s.position + most as u64,
                slot: s.slot + most,
                count: s.count - most,
            });
            return Some(Batch { count: most, ..s });
        }
        self.stock[i..].rotate_left(1);
        Some(s)
    }

    /// How many of `most` slots from `slot` on have their frames side by side: those of the ring
    /// and of the blocks lie apart.
    pub fn side_by_side(&self, slot: usize, most: usize) -> usize {
        let ring = self.slots as usize;
        if slot < ring { most.min(ring - slot) } else { most }
    }

    fn advance_tail(&mut self) {
        while self.tail < self.aged && self.owner(self.tail).load(Ordering::Acquire) == FREED {
            self.tail += 1;
        }
    }

    /// Up to `want` consecutive free slots (none wraps around), which are not taken yet.
    pub fn peek_free(&mut self, want: usize) -> Option<Batch> {
        self.advance_tail();
        let free = self.slots - (self.head - self.tail);
        let to_wrap = self.slots - self.head % self.slots;
        let count = (want as u64).min(free).min(to_wrap) as usize;
        (count > 0).then(|| Batch {
            position: self.head,
            slot: (self.head % self.slots) as usize,
            count,
        })
    }

    /// Takes the first `count` slots that `peek_free` returned, for pages from `addr` on.
    /// `to_store`: the pages go to the store, not to the pool.
    pub fn take(&mut self, count: usize, addr: usize, to_store: bool) {
        let flag = if to_store { TO_STORE } else { 0 };
        for i in 0..count as u64 {
            self.owner(self.head + i)
                .store(((addr >> PAGE_SHIFT) as u64 + i) | flag, Ordering::Release);
        }
        self.head += count as u64;
    }

    /// Takes all slots that `peek_free` returned, for pages from `addr` on whose frames are on
    /// their way. No thread ages the slots before `arrive`.
    pub fn expect(&mut self, s: Batch, addr: usize, to_store: bool) {
        debug_assert!(s.position == self.head);
        self.take(s.count, addr, to_store);
        (0..s.count).for_each(|i| _ = self.of_slot(s.slot + i).fetch_or(COMING, Ordering::AcqRel));
    }

    /// Notes that the first `came` of the expected frames are there. The other slots are free
    /// again, or dead if younger ones follow. Returns how many slots stay in use.
    pub fn arrive(&mut self, s: Batch, came: usize) -> usize {
        (0..came).for_each(|i| _ = self.of_slot(s.slot + i).fetch_and(!COMING, Ordering::AcqRel));
        (came..s.count).for_each(|i| self.kill(s.slot + i));
        if self.head == s.position + s.count as u64 {
            self.head = s.position + came as u64;
            return came;
        }
        s.count
    }

    fn is_coming(&self, position: u64) -> bool {
        let n = self.owner(position).load(Ordering::Acquire);
        n != FREED && n & COMING != 0
    }

    /// Begins to age up to `want` of the oldest slots.
    pub fn age(&mut self, want: usize) -> Option<Batch> {
        let to_wrap = self.slots - self.aged % self.slots;
        let most = (want as u64).min(self.head - self.aged).min(to_wrap);
        let count = (0..most).take_while(|i| !self.is_coming(self.aged + i)).count();
        let s = Batch { position: self.aged, slot: (self.aged % self.slots) as usize, count };
        self.aged += count as u64;
        (count > 0).then_some(s)
    }

    /// The address of the page in a slot, if it still has one.
    pub fn page(&self, slot: usize) -> Option<usize> {
        match self.of_slot(slot).load(Ordering::Acquire) {
            DEAD | FREED => None,
            n => Some(((n & !(TO_STORE | COMING)) as usize) << PAGE_SHIFT),
        }
    }

    /// Whether the slot's page goes to the store rather than the pool.
    pub fn goes_to_store(&self, slot: usize) -> bool {
        let n = self.of_slot(slot).load(Ordering::Acquire);
        n != FREED && n & TO_STORE != 0
    }

    /// Notes that the slot's page was moved to another address (mremap).
    pub fn moved(&self, slot: usize, addr: usize) {
        self.of_slot(slot).store((addr >> PAGE_SHIFT) as u64, Ordering::Release);
    }

    /// Notes that the slot's page is elsewhere now, or worthless.
    pub fn kill(&self, slot: usize) {
        self.of_slot(slot).store(DEAD, Ordering::Release);
    }

    /// Frees an aged batch, which has given its frames back.
    pub fn finish(&self, s: Batch) {
        for i in 0..s.count as u64 {
            self.owner(s.position + i).store(FREED, Ordering::Release);
        }
    }

    /// Ends, in the child after fork, the ageing by threads that do not exist there, and the
    /// stock. Calls `release` for batches whose frames may still be there though no page is.
    pub fn after_fork_child(&mut self, mut release: impl FnMut(usize, usize)) {
        self.aged = self.tail;
        self.stock = [None; STOCK_MAX];
        for p in self.tail..self.head {
            if matches!(self.owner(p).load(Ordering::Acquire), DEAD | FREED) {
                release((p % self.slots) as usize, 1);
                self.owner(p).store(DEAD, Ordering::Release);
            }
        }
        for block in 0..self.blocks_len {
            if self.blocks[block] == BLOCK_TAKEN {
                self.blocks_came += 1;
                self.blocks[block] = self.blocks_came;
            }
        }
    }

    /// Asserts the order of the marks.
    pub fn check(&self) {
        assert!(
            self.tail <= self.aged && self.aged <= self.head && self.head - self.tail <= self.slots
        );
        let is_aged =
            |s: &Batch| self.tail <= s.position && s.position + s.count as u64 <= self.aged;
        assert!(self.stock.iter().flatten().all(is_aged));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_go_round_in_order() {
        let mut l = Limbo::new();
        l.init(10, 0).unwrap();
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
            if let Some(s) = l.age(1 + round % 5) {
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
    fn a_slot_whose_frame_is_on_its_way_does_not_age() {
        let mut l = Limbo::new();
        l.init(16, 0).unwrap();
        let take = |l: &mut Limbo, n: usize, addr: usize| {
            let s = l.peek_free(n).unwrap();
            l.expect(s, addr, false);
            s
        };
        let (a, b) = (take(&mut l, 4, 0x10000), take(&mut l, 3, 0x20000));
        assert_eq!(l.age(8), None);
        l.arrive(b, 3);
        assert_eq!(l.age(8), None, "the older ones are still on their way");
        l.arrive(a, 2);
        assert_eq!(l.page(a.slot + 1), Some(0x11000));
        assert_eq!(l.page(a.slot + 2), None, "it did not come, and younger ones follow");
        assert_eq!(l.age(16).map(|s| s.count), Some(7));
        let c = take(&mut l, 5, 0x30000);
        l.arrive(c, 1);
        assert_eq!(l.peek_free(1).map(|s| s.slot), Some(c.slot + 1), "free again");
        l.check();
    }

    #[test]
    fn frames_of_the_ring_and_of_blocks_are_apart() {
        let mut l = Limbo::new();
        l.init(10, 2).unwrap();
        let runs = [0, 8, 9, 10, 10 + HUGE_PAGES - 1].map(|slot| l.side_by_side(slot, 4));
        assert_eq!(runs, [4, 2, 1, 4, 4]);
    }

    #[test]
    fn the_stock_is_kept_while_it_is_asked_for() {
        let mut l = Limbo::new();
        l.init(64, 0).unwrap();
        let batch = |l: &mut Limbo, n: usize| {
            let free = l.peek_free(n).unwrap();
            l.take(free.count, 0x1000, false);
            l.age(n).unwrap()
        };
        let a = batch(&mut l, 4);
        assert!(!l.wants_stock(a.count), "nobody has asked");
        l.want_stock();
        assert!(l.wants_stock(a.count) && l.ageing() == 4);
        assert!(!l.wants_stock(17), "more than a quarter of the ring");
        l.keep_batch(a);
        let b = batch(&mut l, 6);
        l.keep_batch(b);
        l.check();
        assert_eq!((l.ageing(), l.has_stock()), (0, true));
        assert_eq!((l.take_stock(1), l.ageing()), (Some(a), 4), "the rest is not worth it");
        l.finish(a);
        assert_eq!((l.take_stock(64), l.take_stock(64), l.ageing()), (Some(b), None, 6));
        l.finish(b);
        assert_eq!((l.ageing(), l.has_stock(), l.in_use()), (0, false, 0));
        let whole = batch(&mut l, 16);
        l.keep_batch(whole);
        let (part, rest) = (l.take_stock(6).unwrap(), l.take_stock(6).unwrap());
        assert_eq!(
            (part, rest.slot, rest.count),
            (Batch { count: 6, ..whole }, whole.slot + 6, 10)
        );
        l.finish(rest);
        assert_eq!(l.ageing(), 6);
        l.finish(part);
        assert_eq!((l.ageing(), l.has_stock(), l.in_use()), (0, false, 0));
        let (small, large) = (batch(&mut l, 4), batch(&mut l, 8));
        l.keep_batch(small);
        l.keep_batch(large);
        assert_eq!(
            (l.take_stock(8), l.take_stock(8)),
            (Some(large), Some(small)),
            "what is large enough first"
        );
        l.finish(small);
        l.finish(large);
        l.want_stock();
        for i in 0..WANTED_MAX {
            let s = batch(&mut l, 1);
            assert!(l.wants_stock(s.count), "{i}");
            l.keep_batch(s);
            if i as usize % STOCK_MAX == STOCK_MAX - 1 {
                assert!(!l.wants_stock(s.count), "full");
                while let Some(s) = l.take_stock(64) {
                    l.finish(s);
                }
            }
            if i == 0 {
                l.want_stock();
                l.wanted -= 1;
            }
        }
        assert!(!l.wants_stock(a.count), "nobody has asked for long");
    }

    #[test]
    fn a_full_ring_gives_nothing_until_the_tail_moves() {
        let mut l = Limbo::new();
        l.init(4, 0).unwrap();
        l.take(4, 0x1000, true);
        assert!(l.peek_free(1).is_none());
        let a = l.age(2).unwrap();
        let b = l.age(2).unwrap();
        l.finish(b);
        assert!(l.peek_free(1).is_none(), "the older batch is not finished");
        l.kill(a.slot);
        l.finish(a);
        assert_eq!(l.peek_free(9).map(|s| s.count), Some(4));
    }
}
