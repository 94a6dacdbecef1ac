//! Limbo's blocks: slots for a huge page each, behind those of the ring.

use core::sync::atomic::Ordering;

use super::{DEAD, Limbo};
use crate::sys::{HUGE_PAGES, PAGE_SHIFT, PAGE_SIZE};

/// The state of a block in place of its page: free; in the hands of a thread that gives its
/// contents to the cache; or with a frame that is kept for the next huge page.
pub(super) const BLOCK_FREE: u64 = 0;
pub(super) const BLOCK_TAKEN: u64 = u64::MAX;
const BLOCK_KEPT: u64 = u64::MAX - 1;
/// Frames of huge pages kept at most.
const KEPT_FRAMES_MAX: usize = 2;

impl Limbo {
    fn waits(block: u64) -> bool {
        !matches!(block, BLOCK_FREE | BLOCK_TAKEN | BLOCK_KEPT)
    }

    pub(super) fn count_blocks(&self, are: impl Fn(u64) -> bool) -> usize {
        self.blocks[..self.blocks_len].iter().filter(|b| are(**b)).count()
    }

    pub(super) fn blocks_ready(&self) -> usize {
        self.count_blocks(Self::waits)
    }

    /// First slot of a block with `mark`.
    fn find_block(&self, mark: u64) -> Option<usize> {
        let block = self.blocks[..self.blocks_len].iter().position(|b| *b == mark)?;
        Some(self.block_slot(block))
    }

    /// The mark of the block that `slot` is in.
    fn block_mut(&mut self, slot: usize) -> &mut u64 {
        let block = self.block_of(slot).expect("a block's slot");
        &mut self.blocks[block]
    }

    /// First slot of a block.
    pub(super) fn block_slot(&self, block: usize) -> usize {
        self.slots as usize + block * HUGE_PAGES
    }

    /// The block that a slot is in; `None`: the slot is the ring's.
    fn block_of(&self, slot: usize) -> Option<usize> {
        slot.checked_sub(self.slots as usize).map(|behind| behind / HUGE_PAGES)
    }

    /// Whether there is a block for a huge page.
    pub fn has_free_block(&self) -> bool {
        self.find_block(BLOCK_FREE).is_some()
    }

    /// First slot of a free block, which is the caller's from now on, until `take_block` or
    /// `finish_block`.
    pub fn reserve_block(&mut self) -> Option<usize> {
        let slot = self.find_block(BLOCK_FREE)?;
        *self.block_mut(slot) = BLOCK_TAKEN;
        Some(slot)
    }

    /// First slot of a block whose frame was kept, which is the caller's from now on, until
    /// `finish_block`.
    pub fn take_kept_frame(&mut self) -> Option<usize> {
        let slot = self.kept_frame()?;
        *self.block_mut(slot) = BLOCK_TAKEN;
        Some(slot)
    }

    /// Takes the block of `slot`, which waits. Returns its place in the order, for
    /// [`Limbo::leave_block`].
    pub fn take_waiting_block(&mut self, slot: usize) -> u64 {
        let block = self.block_mut(slot);
        debug_assert!(Self::waits(*block));
        core::mem::replace(block, BLOCK_TAKEN)
    }

    /// Lets the block of `slot` wait again, in its place in the order.
    pub fn leave_block(&mut self, slot: usize, place: u64) {
        *self.block_mut(slot) = place;
    }

    /// Takes the block of `slot` for the first `pages` pages of the huge page at `addr`; the others
    /// stayed where they were.
    pub fn take_block(&mut self, slot: usize, addr: usize, pages: usize) {
        for i in 0..HUGE_PAGES {
            let page = if i < pages { (addr >> PAGE_SHIFT) as u64 + i as u64 } else { DEAD };
            self.of_slot(slot + i).store(page, Ordering::Release);
        }
        self.blocks_came += 1;
        *self.block_mut(slot) = self.blocks_came;
    }

    /// Whether most of the pages that wait are in huge pages.
    pub fn has_more_in_blocks(&self) -> bool {
        let blocks = self.blocks_ready() * HUGE_PAGES;
        blocks > 0 && blocks >= (self.head - self.aged) as usize
    }

    /// Begins to age the block that came first.
    pub fn age_block(&mut self) -> Option<usize> {
        let blocks = self.blocks[..self.blocks_len].iter().copied().enumerate();
        let (block, _) = blocks.filter(|b| Self::waits(b.1)).min_by_key(|b| b.1)?;
        self.blocks[block] = BLOCK_TAKEN;
        Some(self.block_slot(block))
    }

    /// Whether the block of `slot` waits, and holds the whole huge page at `addr`.
    pub fn is_whole(&self, slot: usize, addr: usize) -> bool {
        let Some(block) = self.block_of(slot) else { return false };
        let first = self.block_slot(block);
        Self::waits(self.blocks[block])
            && (0..HUGE_PAGES).all(|i| self.page(first + i) == Some(addr + i * PAGE_SIZE))
    }

    /// Keeps the frame of an aged block that has given its pages to the cache, if few are kept.
    /// Otherwise the caller gives the frame back.
    pub fn keep_frame(&mut self, slot: usize) -> bool {
        let keeps =
            self.count_blocks(|b| b == BLOCK_KEPT) < KEPT_FRAMES_MAX.min(self.blocks_len / 2);
        if keeps {
            *self.block_mut(slot) = BLOCK_KEPT;
        }
        keeps
    }

    /// First slot of a block whose frame was kept. It stays kept until `finish_block`.
    pub fn kept_frame(&self) -> Option<usize> {
        self.find_block(BLOCK_KEPT)
    }

    /// Frees the block of `slot`, which has given its frames back.
    pub fn finish_block(&mut self, slot: usize) {
        *self.block_mut(slot) = BLOCK_FREE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_age_in_the_order_in_which_they_came() {
        let mut l = Limbo::new();
        l.init(4, 3).unwrap();
        let addr = |i: usize| i * crate::sys::HUGE_BYTES;
        let slots: Vec<_> = (1..=3)
            .map(|i| {
                let slot = l.reserve_block().unwrap();
                l.take_block(slot, addr(i), HUGE_PAGES);
                slot
            })
            .collect();
        assert!(l.reserve_block().is_none() && l.has_more_in_blocks());
        assert!(l.is_whole(slots[1] + 7, addr(2)) && !l.is_whole(slots[1], addr(3)));
        assert_eq!(l.page(slots[2] + 5), Some(addr(3) + 5 * PAGE_SIZE));
        l.kill(slots[2]);
        assert!(!l.is_whole(slots[2], addr(3)));
        assert_eq!(l.age_block(), Some(slots[0]));
        assert!(!l.is_whole(slots[0], addr(1)));
        assert_eq!(
            (l.ready(), l.ageing(), l.in_use()),
            (2 * HUGE_PAGES, HUGE_PAGES, 3 * HUGE_PAGES)
        );
        assert!(
            l.keep_frame(slots[0])
                && l.kept_frame() == Some(slots[0])
                && l.reserve_block().is_none()
        );
        assert_eq!((l.ready(), l.ageing(), l.in_use()), (2 * HUGE_PAGES, 0, 3 * HUGE_PAGES));
        l.finish_block(slots[0]);
        l.take_block(slots[0], addr(9), 3);
        assert_eq!(
            (l.page(slots[0] + 2), l.page(slots[0] + 3)),
            (Some(addr(9) + 2 * PAGE_SIZE), None)
        );
        assert_eq!(
            [l.age_block(), l.age_block(), l.age_block()],
            [1, 2, 0].map(|i| Some(slots[i]))
        );
        assert_eq!(l.age_block(), None);
    }
}
