//! Size classes of zsmalloc: which slot sizes exist, and how many frames a zspage chains for each.
//!
//! ```text
//!  class of 2730 bytes: a chain of 8 frames holds 12 slots and wastes 8 bytes of 32768
//!
//!  frame 0          frame 1          frame 2                        frame 7
//! +----------------+----------------+----------------+-- ... --+----------------+
//! | slot 0   | slot 1    | slot 2     | slot 3   | slo           | slot 11     ||
//! +----------------+----------------+----------------+-- ... --+----------------+
//! ```
//!
//! For a size, the chain of 1..=8 frames with the least waste is taken; the longer one where two
//! waste the same, for it needs fewer descriptors, and a zspage takes its frames only as it fills.
//! Sizes that lead to the same (chain, slots) are one class, named by the largest of them. The
//! remaining classes are thinned: a class less than [`SPACING_BYTES`] below its neighbour saves
//! less by its smaller slots than it costs by one more half-filled frame. Everything here is
//! computed by the compiler.

use crate::sys::PAGE_SIZE;

/// The most frames of one zspage.
pub(super) const MAX_CHAIN: usize = 8;
/// The most slots of one zspage: as many as the bits of its `used` map.
pub(super) const MAX_SLOTS: usize = 128;
/// The smallest slot.
const MIN_SLOT_BYTES: usize = 32;
/// The least difference between two classes. Measured on page corpora of real heaps: see
/// `tests::density`.
const SPACING_BYTES: usize = 16;

/// One class: slots of `size` bytes, `slots` of them in `chain` frames.
pub(super) struct SizeClass {
    pub size: usize,
    pub chain: usize,
    pub slots: usize,
    /// For each frame of the chain, the slots that have a byte in it.
    pub overlap: [u128; MAX_CHAIN],
}

impl SizeClass {
    /// Where a slot begins: (position in the chain, byte in that frame).
    #[inline]
    pub fn place(&self, slot: usize) -> (usize, usize) {
        let at = slot * self.size;
        (at / PAGE_SIZE, at % PAGE_SIZE)
    }

    /// The positions in the chain where `slot` has bytes, as a bit map.
    #[inline]
    pub fn frames_of(&self, slot: usize) -> u8 {
        let first = slot * self.size / PAGE_SIZE;
        let last = (slot * self.size + self.size - 1) / PAGE_SIZE;
        (1 << first) | (1 << last)
    }

    /// A bit for every slot.
    #[inline]
    pub fn all_slots(&self) -> u128 {
        u128::MAX >> (MAX_SLOTS - self.slots)
    }

    /// The slots that lie entirely in frames of `attached` (a bit for each position in the chain).
    #[inline]
    pub fn backed(&self, attached: u8) -> u128 {
        let mut slots = self.all_slots();
        let mut missing = !attached & (u8::MAX >> (MAX_CHAIN - self.chain));
        while missing != 0 {
            slots &= !self.overlap[missing.trailing_zeros() as usize];
            missing &= missing - 1;
        }
        slots
    }
}

/// The number of classes.
pub(super) const CLASS_COUNT: usize = count_classes();
/// All classes, largest first.
pub(super) static CLASSES: [SizeClass; CLASS_COUNT] = build_classes();
/// For an object's length, its class: the smallest that holds it.
pub(super) static CLASS_OF: [u8; PAGE_SIZE + 1] = build_class_of();

/// The class of objects of `len` bytes (1..=4096).
#[inline]
pub(super) fn class_of(len: usize) -> usize {
    CLASS_OF[len] as usize
}

/// The chain and slot count that waste least per frame for `size`.
const fn best_chain(size: usize) -> (usize, usize) {
    let mut best = (1, 1);
    let mut best_waste = usize::MAX;
    let mut chain = 1;
    while chain <= MAX_CHAIN {
        let fit = chain * PAGE_SIZE / size;
        let slots = if fit < MAX_SLOTS { fit } else { MAX_SLOTS };
        // Waste per frame, scaled so that integers compare exactly (840 is divisible by 1..=8).
        let waste = (chain * PAGE_SIZE - slots * size) * 840 / chain;
        if waste <= best_waste {
            best_waste = waste;
            best = (chain, slots);
        }
        chain += 1;
    }
    best
}

/// The next smaller size that begins a class of its own, after a class of `size` bytes.
const fn next_class(size: usize) -> Option<usize> {
    let (chain, slots) = best_chain(size);
    let mut next = size - SPACING_BYTES;
    while next >= MIN_SLOT_BYTES {
        let (c, s) = best_chain(next);
        if c != chain || s != slots {
            return Some(next);
        }
        next -= 1;
    }
    None
}

const fn count_classes() -> usize {
    let mut count = 1;
    let mut size = PAGE_SIZE;
    while let Some(next) = next_class(size) {
        size = next;
        count += 1;
    }
    count
}

const fn build_classes() -> [SizeClass; CLASS_COUNT] {
    const EMPTY: SizeClass = SizeClass { size: 0, chain: 0, slots: 0, overlap: [0; MAX_CHAIN] };
    let mut classes = [EMPTY; CLASS_COUNT];
    let mut size = PAGE_SIZE;
    let mut i = 0;
    loop {
        let (chain, slots) = best_chain(size);
        let mut overlap = [0; MAX_CHAIN];
        let mut slot = 0;
        while slot < slots {
            let mut at = slot * size / PAGE_SIZE;
            while at <= (slot * size + size - 1) / PAGE_SIZE {
                overlap[at] |= 1 << slot;
                at += 1;
            }
            slot += 1;
        }
        classes[i] = SizeClass { size, chain, slots, overlap };
        i += 1;
        match next_class(size) {
            Some(next) => size = next,
            None => return classes,
        }
    }
}

const fn build_class_of() -> [u8; PAGE_SIZE + 1] {
    assert!(CLASS_COUNT <= u8::MAX as usize);
    let mut class_of = [0; PAGE_SIZE + 1];
    let mut class = 0;
    let mut len = PAGE_SIZE;
    while len > 0 {
        if class + 1 < CLASS_COUNT && CLASSES[class + 1].size >= len {
            class += 1;
        }
        class_of[len] = class as u8;
        len -= 1;
    }
    class_of
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_has_the_smallest_class_that_holds_it() {
        for len in 1..=PAGE_SIZE {
            let smallest = (0..CLASS_COUNT).rfind(|&i| CLASSES[i].size >= len).unwrap();
            assert_eq!(class_of(len), smallest, "length {len}");
        }
    }

    #[test]
    fn classes_descend_by_the_spacing_and_fit_their_chains() {
        for (i, c) in CLASSES.iter().enumerate() {
            assert!((1..=MAX_CHAIN).contains(&c.chain) && (1..=MAX_SLOTS).contains(&c.slots));
            assert!(c.slots * c.size <= c.chain * PAGE_SIZE);
            // The last slot uses the last frame, or the chain would be shorter.
            assert!(c.slots * c.size > (c.chain - 1) * PAGE_SIZE);
            assert!(i == 0 || CLASSES[i - 1].size - c.size >= SPACING_BYTES);
        }
    }

    #[test]
    fn waste_at_the_end_of_a_chain_is_small() {
        for c in &CLASSES {
            let total = c.chain * PAGE_SIZE;
            let waste = total - c.slots * c.size;
            assert!(waste * 50 <= total, "class {}: {waste} of {total}", c.size);
        }
    }

    #[test]
    fn overlap_and_backed_agree_with_a_byte_by_byte_count() {
        for c in &CLASSES {
            for attached in 0..=u8::MAX >> (MAX_CHAIN - c.chain) {
                let mut want = 0u128;
                for slot in 0..c.slots {
                    let bytes = slot * c.size..(slot + 1) * c.size;
                    let frames = bytes.clone().fold(0u8, |m, b| m | 1 << (b / PAGE_SIZE));
                    assert_eq!(frames, c.frames_of(slot));
                    if frames & !attached == 0 {
                        want |= 1 << slot;
                    }
                }
                assert_eq!(c.backed(attached), want, "class {} attached {attached:#b}", c.size);
                if c.size < 1000 {
                    // One pass suffices for the many-slot classes; the rest is slow and the same.
                    break;
                }
            }
        }
    }
}
