//! Frames: 4 KiB pieces of memory for a pool, obtained from the kernel in segments of 1 MiB.
//!
//! ```text
//!                grow (1 MiB)           warm up (16)            alloc
//!   not mapped ----------------> BARE ----------------> WARM ----------> USED
//!        ^                       |  ^                   |  ^              |
//!        +-----------------------+  +-------------------+  +--------------+
//!         a whole segment is bare          release               free
//! ```
//!
//! A *bare* frame has an address and no memory behind it; a *warm* one is free and has memory.
//! Frames stay warm when they are freed, because touching memory that was handed back costs
//! microseconds on a virtual machine. Low addresses are taken before high ones, so that the highest
//! segments run empty and can be unmapped. [`Frames::release`] turns warm frames into bare ones in
//! runs, the highest first.
//!
//! A frame number stays valid while the frame is used. Nothing here knows what the bytes mean.

use core::ops::Range;

use super::{MOST_BYTES, PoolError};
use crate::sys::PAGE_SIZE;
use crate::sys::mem::{RUNS_AT_ONCE, Table, Zeroable};

/// The bytes of one frame.
type Frame = [u8; PAGE_SIZE];

/// Frames of one segment: the unit in which address space is taken and given back.
const SEGMENT_FRAMES: usize = Table::<Frame>::PER_SEGMENT;
/// Warm frames that `release` keeps, so that a pool that breathes does not pay for it (256 KiB).
pub(super) const RESERVE_FRAMES: usize = 64;

/// Bare frames that get memory in one call. Batched, it costs two thirds of what a fault for each
/// costs.
const WARM_UP_FRAMES: usize = 16;

/// The frames of one pool.
pub(super) struct Frames {
    bytes: Table<Frame>,
    warm: BitSet,
    bare: BitSet,
    used: usize,
    max_frames: usize,
    /// Segments `0..segments_end` were mapped at some time; no segment below `hole_hint` is
    /// unmapped.
    segments_end: usize,
    hole_hint: usize,
    pub growth: Growth,
}

impl Frames {
    pub const fn new() -> Self {
        Frames {
            bytes: Table::new(),
            warm: BitSet::new(),
            bare: BitSet::new(),
            used: 0,
            max_frames: usize::MAX,
            segments_end: 0,
            hole_hint: 0,
            growth: Growth { left: None },
        }
    }

    /// A frame with arbitrary bytes. Nothing changes if there is none.
    pub fn alloc(&mut self) -> Result<u32, PoolError> {
        if self.used >= self.max_frames {
            return Err(PoolError::Full);
        }
        self.take()
    }

    /// A frame as by `alloc`, but without regard to the limit.
    pub fn take(&mut self) -> Result<u32, PoolError> {
        let frame = match self.warm.first() {
            Some(frame) => frame,
            None => self.warm_up()?,
        };
        self.warm.remove(frame);
        self.used += 1;
        Ok(frame as u32)
    }

    /// Makes a few bare frames warm, the first of which is returned.
    #[cold]
    fn warm_up(&mut self) -> Result<usize, PoolError> {
        let first = match self.bare.first() {
            Some(frame) => frame,
            None => self.grow()?,
        };
        let room = self.max_frames.saturating_sub(self.resident()).clamp(1, WARM_UP_FRAMES);
        let segment_end = (first / SEGMENT_FRAMES + 1) * SEGMENT_FRAMES;
        let end = (first + 1..segment_end.min(first + room)).find(|&f| !self.bare.contains(f));
        let end = end.unwrap_or(segment_end.min(first + room));
        for frame in first..end {
            self.bare.remove(frame);
            self.warm.insert(frame);
        }
        if end - first > 1 {
            self.bytes.populate(first, end - first);
        }
        Ok(first)
    }

    /// Maps one more segment; returns its first frame, now bare.
    #[cold]
    fn grow(&mut self) -> Result<usize, PoolError> {
        while self.hole_hint < self.segments_end
            && self.bytes.address(self.hole_hint * SEGMENT_FRAMES).is_some()
        {
            self.hole_hint += 1;
        }
        let first = self.hole_hint * SEGMENT_FRAMES;
        let end = first + SEGMENT_FRAMES;
        if end > BitSet::CAPACITY {
            return Err(PoolError::NoMemory);
        }
        self.warm.reserve(end, &mut self.growth)?;
        self.bare.reserve(end, &mut self.growth)?;
        self.growth.ensure(&self.bytes, first)?;
        self.segments_end = self.segments_end.max(self.hole_hint + 1);
        for frame in first..end {
            self.bare.insert(frame);
        }
        Ok(first)
    }

    /// Takes a used frame back. It stays warm until `release`.
    pub fn free(&mut self, frame: u32) {
        self.used -= 1;
        self.warm.insert(frame as usize);
    }

    /// Gives the memory of up to `max_frames` warm frames back to the kernel, the reserve excepted,
    /// and the address space of segments that hold nothing any more. Returns the number of frames.
    pub fn release(&mut self, max_frames: usize) -> usize {
        let surplus = self.warm.len().saturating_sub(RESERVE_FRAMES).min(max_frames);
        let mut left = surplus;
        while left > 0 {
            // A call for each run would be a flush of all processors for each.
            let (mut runs, mut count) = ([(0, 0); RUNS_AT_ONCE], 0);
            while left > 0 && count < RUNS_AT_ONCE {
                runs[count] = self.cool_last(left);
                left -= runs[count].1;
                count += 1;
            }
            self.bytes.decommit_each(&runs[..count]);
            for (first, _) in &runs[..count] {
                self.unmap_if_cold(first / SEGMENT_FRAMES);
            }
        }
        surplus
    }

    /// The last run of warm frames in a segment, or its last `most`, counts as bare from now on:
    /// where it begins, and how many.
    fn cool_last(&mut self, most: usize) -> (usize, usize) {
        let last = self.warm.last().expect("there are as many warm frames");
        let lowest = (last / SEGMENT_FRAMES * SEGMENT_FRAMES).max((last + 1).saturating_sub(most));
        let mut first = last;
        while first > lowest && self.warm.contains(first - 1) {
            first -= 1;
        }
        for frame in first..=last {
            self.warm.remove(frame);
            self.bare.insert(frame);
        }
        (first, last + 1 - first)
    }

    fn unmap_if_cold(&mut self, segment: usize) {
        let frames = segment * SEGMENT_FRAMES..(segment + 1) * SEGMENT_FRAMES;
        if !self.bare.contains_all(frames.clone()) {
            return;
        }
        for frame in frames {
            self.bare.remove(frame);
        }
        self.bytes.unmap_segment(segment);
        self.hole_hint = self.hole_hint.min(segment);
    }

    /// Bytes of a used frame. Others of it may be in use by a thread that has pinned them.
    #[inline]
    pub fn get(&self, frame: u32, part: Range<usize>) -> &[u8] {
        self.bytes.part(frame as usize, part).expect("pool: frame is not mapped")
    }

    /// Bytes of a used frame, to write.
    #[inline]
    pub fn get_mut(&mut self, frame: u32, part: Range<usize>) -> &mut [u8] {
        self.bytes.part_mut(frame as usize, part).expect("pool: frame is not mapped")
    }

    /// Where a used frame is.
    #[inline]
    pub fn address(&self, frame: u32) -> *mut u8 {
        self.bytes.address(frame as usize).expect("pool: frame is not mapped")
    }

    pub fn used(&self) -> usize {
        self.used
    }

    /// Used and warm frames: those with memory behind them.
    pub fn resident(&self) -> usize {
        self.used + self.warm.len()
    }

    /// From now on `alloc` refuses to have more than `max_frames` used.
    pub fn set_max(&mut self, max_frames: usize) {
        self.max_frames = max_frames;
    }

    /// Memory of the tables kept here, in bytes.
    pub fn metadata_bytes(&self) -> usize {
        // A bit for each frame in each of the two sets.
        2 * self.segments_end * SEGMENT_FRAMES / 8
    }

    /// Asserts that a frame is used, as far as this side knows.
    pub fn check_used(&self, frame: u32) {
        let n = frame as usize;
        assert!(self.bytes.address(n).is_some(), "pool: used frame {n} is not mapped");
        assert!(!self.warm.contains(n) && !self.bare.contains(n), "pool: used frame {n} is free");
    }

    /// Asserts that mapped frames = used + warm + bare. If the pool then names exactly `used`
    /// frames, each of which passes `check_used`, no frame is named twice or lost.
    pub fn check(&self) {
        let (mut mapped, mut warm, mut bare) = (0, 0, 0);
        for segment in 0..self.segments_end {
            let is_mapped = self.bytes.address(segment * SEGMENT_FRAMES).is_some();
            assert!(
                is_mapped || segment >= self.hole_hint,
                "pool: unmapped segment below the hint"
            );
            mapped += if is_mapped { SEGMENT_FRAMES } else { 0 };
            for frame in segment * SEGMENT_FRAMES..(segment + 1) * SEGMENT_FRAMES {
                let (is_warm, is_bare) = (self.warm.contains(frame), self.bare.contains(frame));
                assert!(!(is_warm && is_bare), "pool: frame {frame} is warm and bare");
                assert!(
                    is_mapped || !(is_warm || is_bare),
                    "pool: free frame {frame} is not mapped"
                );
                warm += is_warm as usize;
                bare += is_bare as usize;
            }
        }
        assert_eq!((warm, bare), (self.warm.len(), self.bare.len()), "pool: counts of free frames");
        assert_eq!(mapped, self.used + warm + bare, "pool: mapped = used + warm + bare");
    }
}

/// The right to map more memory; in tests a fault injector, if told so.
pub(super) struct Growth {
    left: Option<u64>,
}

impl Growth {
    /// Lets `n` more mappings succeed and every later one fail; `None` lifts it.
    pub fn fail_after(&mut self, n: Option<u64>) {
        self.left = n;
    }

    /// Makes the element exist, by mapping its segment if need be.
    #[inline]
    pub fn ensure<T: Zeroable>(&mut self, table: &Table<T>, index: usize) -> Result<(), PoolError> {
        if table.get(index).is_some() {
            return Ok(());
        }
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(1).ok_or(PoolError::NoMemory)?;
        }
        table.ensure(index).map(|_| ()).map_err(|_| PoolError::NoMemory)
    }
}

/// A set of small numbers with its least and greatest element at hand: a bit for each, and three
/// levels of summary above (a bit for each word that is not zero).
///
/// ```text
///   top ──> [2 1 1 .. 1][2 1 1 .. 1] ..                   [0 0 0 0 ..
///            a word of level 2, and the 64 of level 1      level 0: a bit for each number
///            that it sums up
/// ```
///
/// The words of a small set lie in two pages.
struct BitSet {
    /// Levels 2 and 1 (`SUMMARY_WORDS` words), then level 0.
    words: Table<u64>,
    top: [u64; TOP_WORDS],
    len: usize,
}

/// log2 of the frame numbers that one word of the top level stands for: 2^24 of them, 64 GiB.
const TOP_SHIFT: u32 = 24;
const TOP_WORDS: usize = BitSet::CAPACITY >> TOP_SHIFT;
const SUMMARY_WORDS: usize = TOP_WORDS * 64 * 65;
const _: () = assert!(BitSet::CAPACITY == TOP_WORDS << TOP_SHIFT);
const _: () = assert!(BitSet::CAPACITY <= Table::<Frame>::CAPACITY);
// `reserve` maps all of the summary with its first word.
const _: () = assert!(SUMMARY_WORDS < Table::<u64>::PER_SEGMENT);

impl BitSet {
    /// Elements are below this: all frames that a pool can have.
    const CAPACITY: usize = MOST_BYTES / PAGE_SIZE;

    const fn new() -> Self {
        BitSet { words: Table::new(), top: [0; TOP_WORDS], len: 0 }
    }

    /// Where the word of level 2 is for a number shifted by 18.
    const fn level2(n: usize) -> usize {
        n * 65
    }

    /// Where the word of level 1 is for a number shifted by 12.
    const fn level1(n: usize) -> usize {
        n + n / 64 + 1
    }

    /// Where the word of level 0 is for a number shifted by 6.
    const fn level0(n: usize) -> usize {
        SUMMARY_WORDS + n
    }

    /// Makes room for elements below `end`.
    fn reserve(&mut self, end: usize, growth: &mut Growth) -> Result<(), PoolError> {
        assert!(end <= Self::CAPACITY);
        growth.ensure(&self.words, 0)?;
        growth.ensure(&self.words, Self::level0((end - 1) >> 6))
    }

    fn word(&self, index: usize) -> u64 {
        self.words.get(index).copied().unwrap_or(0)
    }

    fn word_mut(&mut self, index: usize) -> &mut u64 {
        self.words.get_mut(index).expect("reserved")
    }

    fn len(&self) -> usize {
        self.len
    }

    fn contains(&self, n: usize) -> bool {
        self.word(Self::level0(n >> 6)) >> (n & 63) & 1 == 1
    }

    fn contains_all(&self, mut range: core::ops::Range<usize>) -> bool {
        range.all(|n| self.contains(n))
    }

    fn insert(&mut self, n: usize) {
        assert!(!self.contains(n), "pool: frame {n} is free already");
        *self.word_mut(Self::level0(n >> 6)) |= 1 << (n & 63);
        *self.word_mut(Self::level1(n >> 12)) |= 1 << (n >> 6 & 63);
        *self.word_mut(Self::level2(n >> 18)) |= 1 << (n >> 12 & 63);
        self.top[n >> TOP_SHIFT] |= 1 << (n >> 18 & 63);
        self.len += 1;
    }

    fn remove(&mut self, n: usize) {
        assert!(self.contains(n), "pool: frame {n} is not free");
        self.len -= 1;
        let word = self.word_mut(Self::level0(n >> 6));
        *word &= !(1 << (n & 63));
        if *word != 0 {
            return;
        }
        let word = self.word_mut(Self::level1(n >> 12));
        *word &= !(1 << (n >> 6 & 63));
        if *word != 0 {
            return;
        }
        let word = self.word_mut(Self::level2(n >> 18));
        *word &= !(1 << (n >> 12 & 63));
        if *word == 0 {
            self.top[n >> TOP_SHIFT] &= !(1 << (n >> 18 & 63));
        }
    }

    fn first(&self) -> Option<usize> {
        let t = self.top.iter().position(|&w| w != 0)?;
        let a = t << 6 | self.top[t].trailing_zeros() as usize;
        let b = a << 6 | self.word(Self::level2(a)).trailing_zeros() as usize;
        let c = b << 6 | self.word(Self::level1(b)).trailing_zeros() as usize;
        Some(c << 6 | self.word(Self::level0(c)).trailing_zeros() as usize)
    }

    fn last(&self) -> Option<usize> {
        let t = self.top.iter().rposition(|&w| w != 0)?;
        let a = t << 6 | self.top[t].ilog2() as usize;
        let b = a << 6 | self.word(Self::level2(a)).ilog2() as usize;
        let c = b << 6 | self.word(Self::level1(b)).ilog2() as usize;
        Some(c << 6 | self.word(Self::level0(c)).ilog2() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn bit_set_agrees_with_a_btree_set() {
        let mut growth = Growth { left: None };
        let mut set = BitSet::new();
        set.reserve(BitSet::CAPACITY, &mut growth).unwrap();
        for piece in 0..BitSet::CAPACITY / (1 << 16) {
            set.reserve((piece + 1) << 16, &mut growth).unwrap();
        }
        let mut model = BTreeSet::new();
        let mut seed = 1u64;
        for i in 0..200_000 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // Dense at the low end, and single elements far away.
            let r = (seed >> 33) as usize;
            let n = if i % 3 == 0 { r % BitSet::CAPACITY } else { r % 5000 };
            if model.remove(&n) {
                set.remove(n);
            } else {
                model.insert(n);
                set.insert(n);
            }
            assert_eq!(set.first(), model.first().copied());
            assert_eq!(set.last(), model.last().copied());
            assert_eq!(set.len(), model.len());
        }
    }

    #[test]
    fn the_largest_pool_has_all_its_frames() {
        let mut f = Frames::new();
        // As if all segments but the last were in use.
        f.segments_end = BitSet::CAPACITY / SEGMENT_FRAMES - 1;
        f.hole_hint = f.segments_end;
        let frames: Vec<u32> = (0..SEGMENT_FRAMES).map(|_| f.alloc().unwrap()).collect();
        assert_eq!(*frames.last().unwrap() as usize * PAGE_SIZE, (1 << 40) - PAGE_SIZE);
        for &n in &frames {
            f.get_mut(n, 0..1)[0] = n as u8;
        }
        assert!(frames.iter().all(|&n| f.get(n, 0..1)[0] == n as u8));
        assert_eq!(f.alloc(), Err(PoolError::NoMemory));
        frames.iter().for_each(|&n| f.free(n));
        assert_eq!(f.release(usize::MAX), SEGMENT_FRAMES - RESERVE_FRAMES);
        assert_eq!(f.resident(), RESERVE_FRAMES);
    }

    #[test]
    fn warm_frames_are_reused_before_cold_ones() {
        let mut f = Frames::new();
        let a = f.alloc().unwrap();
        let b = f.alloc().unwrap();
        // A batch got memory at once; all of it is used before the next batch.
        assert_eq!((f.used(), f.resident()), (2, WARM_UP_FRAMES));
        f.free(a);
        assert_eq!(f.alloc().unwrap(), a);
        for _ in 2..WARM_UP_FRAMES {
            f.alloc().unwrap();
        }
        assert_eq!(f.resident(), WARM_UP_FRAMES);
        f.free(b);
        f.free(a);
        assert_eq!((f.used(), f.resident()), (WARM_UP_FRAMES - 2, WARM_UP_FRAMES));
        f.check();
    }

    #[test]
    fn a_batch_stops_at_the_limit_and_at_used_frames() {
        let mut f = Frames::new();
        f.set_max(5);
        f.alloc().unwrap();
        assert_eq!(f.resident(), 5);
        f.set_max(usize::MAX);
        let frames: Vec<u32> = (1..RESERVE_FRAMES + 9).map(|_| f.alloc().unwrap()).collect();
        for &n in frames.iter().filter(|&&n| n != 68) {
            f.free(n);
        }
        f.release(usize::MAX);
        f.check();
        // Frame 68 is used in the midst of bare ones.
        let before = f.resident();
        for _ in 0..RESERVE_FRAMES {
            f.alloc().unwrap();
        }
        assert_eq!(f.resident(), before);
        f.alloc().unwrap();
        f.check();
    }

    #[test]
    fn release_keeps_the_reserve_and_unmaps_whole_segments() {
        let mut f = Frames::new();
        let frames: Vec<u32> = (0..4 * SEGMENT_FRAMES).map(|_| f.alloc().unwrap()).collect();
        for &n in &frames {
            f.get_mut(n, 0..PAGE_SIZE).fill(1);
        }
        // One frame in the middle stays: its segment must survive.
        let kept = frames[2 * SEGMENT_FRAMES + 7];
        for &n in frames.iter().filter(|&&n| n != kept) {
            f.free(n);
        }
        f.check();
        assert_eq!(f.release(10), 10);
        f.check();
        assert_eq!(f.release(usize::MAX), 4 * SEGMENT_FRAMES - 1 - 10 - RESERVE_FRAMES);
        assert_eq!(f.resident(), 1 + RESERVE_FRAMES);
        f.check();
        assert!(f.get(kept, 0..PAGE_SIZE).iter().all(|&b| b == 1));
        assert!(f.bytes.get(0).is_some() && f.bytes.get(3 * SEGMENT_FRAMES).is_none());
        assert!(f.bytes.get(SEGMENT_FRAMES).is_none());
        // And grows again, holes first.
        for _ in 0..4 * SEGMENT_FRAMES - 1 {
            f.alloc().unwrap();
        }
        assert_eq!(f.segments_end, 4);
        f.check();
    }

    #[test]
    fn the_limit_is_kept_and_growth_can_fail() {
        let mut f = Frames::new();
        f.set_max(1);
        f.growth.fail_after(Some(0));
        assert_eq!(f.alloc(), Err(PoolError::NoMemory));
        // Three mappings make the first segment: the two sets' words and the bytes.
        f.growth.fail_after(Some(2));
        assert_eq!(f.alloc(), Err(PoolError::NoMemory));
        f.growth.fail_after(None);
        assert!(f.alloc().is_ok());
        assert_eq!(f.alloc(), Err(PoolError::Full));
        f.check();
    }
}
