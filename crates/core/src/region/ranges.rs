//! The managed ranges: sorted, disjoint, merged where neighbours agree, with the attributes that
//! the program asked for.
//!
//! Written with the pager's lock held. Read without it by the fast path of system calls and faults,
//! through a sequence count: a reader that overlapped a write repeats. The list lives in a table
//! that never moves.

use core::sync::atomic::{AtomicUsize, Ordering, fence};

use crate::sys::mem::Table;
use crate::sys::{Errno, Result};

/// Properties of a whole range beside its protection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RangeFlags(pub u32);

impl RangeFlags {
    pub const NONE: RangeFlags = RangeFlags(0);
    /// Locked by the program (mlock): never evicted until it is unlocked. A child of fork does not
    /// inherit it.
    pub const LOCKED: RangeFlags = RangeFlags(1);
    /// Not inherited by fork (MADV_DONTFORK).
    pub const DONTFORK: RangeFlags = RangeFlags(2);
    /// Zero in the child of fork (MADV_WIPEONFORK).
    pub const WIPEONFORK: RangeFlags = RangeFlags(4);
    /// Known to the range list but not under the mechanism (it could not be registered): stays
    /// resident.
    pub const UNREGISTERED: RangeFlags = RangeFlags(8);
    /// Guard pages (MADV_GUARD_INSTALL): every access is the program's own fault.
    pub const GUARD: RangeFlags = RangeFlags(16);
    /// The program asked for huge pages (MADV_HUGEPAGE).
    pub const HUGE: RangeFlags = RangeFlags(32);
    /// The program asked for none (MADV_NOHUGEPAGE).
    pub const NOT_HUGE: RangeFlags = RangeFlags(64);
    /// The program reserved it: it may never touch most of it.
    pub const RESERVED: RangeFlags = RangeFlags(128);
    /// Never evicted, whatever the program unlocks: its pages cannot be moved, or their protection
    /// is not known for certain.
    pub const STAYS: RangeFlags = RangeFlags(256);

    pub const fn has(self, other: RangeFlags) -> bool {
        self.0 & other.0 == other.0
    }
    pub const fn with(self, other: RangeFlags, on: bool) -> RangeFlags {
        RangeFlags(if on { self.0 | other.0 } else { self.0 & !other.0 })
    }
}

/// A stretch of managed addresses, `[start, end)`, whole pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    pub start: usize,
    pub end: usize,
    /// The protection that the program asked for (PROT_* bits).
    pub prot: u32,
    pub flags: RangeFlags,
}

impl Range {
    pub fn len(&self) -> usize {
        self.end - self.start
    }
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }
    pub fn contains(&self, addr: usize) -> bool {
        self.start <= addr && addr < self.end
    }
    /// Whether its pages may be taken out.
    pub fn is_swept(&self) -> bool {
        let kept = RangeFlags::LOCKED.0 | RangeFlags::UNREGISTERED.0 | RangeFlags::STAYS.0;
        self.flags.0 & kept == 0
    }
    /// The part inside `[start, end)`.
    pub fn clip(&self, start: usize, end: usize) -> Range {
        Range { start: self.start.max(start), end: self.end.min(end), ..*self }
    }
}

crate::zeroable! {
    #[derive(Default)]
    struct Cell {
        start: AtomicUsize,
        end: AtomicUsize,
        attributes: AtomicUsize,
    }
}

/// The sorted list.
pub struct Ranges {
    sequence: AtomicUsize,
    cells: Table<Cell>,
    len: AtomicUsize,
    /// Sum of the lengths of ranges with any access, in bytes.
    accessible_bytes: AtomicUsize,
    /// Of these, bytes that were reserved.
    reserved_bytes: AtomicUsize,
    total_bytes: AtomicUsize,
    huge_bytes: AtomicUsize,
}

impl Default for Ranges {
    fn default() -> Self {
        Self::new()
    }
}

impl Ranges {
    pub const fn new() -> Ranges {
        Ranges {
            sequence: AtomicUsize::new(0),
            cells: Table::new(),
            len: AtomicUsize::new(0),
            accessible_bytes: AtomicUsize::new(0),
            reserved_bytes: AtomicUsize::new(0),
            total_bytes: AtomicUsize::new(0),
            huge_bytes: AtomicUsize::new(0),
        }
    }

    pub fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Bytes in ranges that the program can access in some way.
    pub fn accessible_bytes(&self) -> usize {
        self.accessible_bytes.load(Ordering::Relaxed)
    }
    /// Of these, bytes that the program reserved and need not touch.
    pub fn reserved_bytes(&self) -> usize {
        self.reserved_bytes.load(Ordering::Relaxed)
    }
    /// Bytes in all ranges.
    pub fn total_bytes(&self) -> usize {
        self.total_bytes.load(Ordering::Relaxed)
    }

    /// Bytes in ranges that the program asked huge pages for.
    pub fn huge_bytes(&self) -> usize {
        self.huge_bytes.load(Ordering::Relaxed)
    }

    #[inline]
    fn cell(&self, i: usize) -> &Cell {
        self.cells.get(i).expect("range index within the list")
    }

    /// The i-th range, in address order. With the lock held, `i < len`.
    pub fn at(&self, i: usize) -> Range {
        let c = self.cell(i);
        let a = c.attributes.load(Ordering::Relaxed);
        Range {
            start: c.start.load(Ordering::Relaxed),
            end: c.end.load(Ordering::Relaxed),
            prot: a as u32,
            flags: RangeFlags((a >> 32) as u32),
        }
    }

    fn put(&self, i: usize, r: Range) {
        let c = self.cell(i);
        c.start.store(r.start, Ordering::Relaxed);
        c.end.store(r.end, Ordering::Relaxed);
        c.attributes.store(r.prot as usize | (r.flags.0 as usize) << 32, Ordering::Relaxed);
    }

    /// Index of the first range with `end > addr`; may be `len`.
    pub fn index_from(&self, addr: usize) -> usize {
        let (mut lo, mut hi) = (0, self.len());
        while lo < hi {
            let mid = (lo + hi) / 2;
            if self.cell(mid).end.load(Ordering::Relaxed) <= addr { lo = mid + 1 } else { hi = mid }
        }
        lo
    }

    /// The range of an address, or the first one behind it. With the lock held.
    pub fn next_from(&self, addr: usize) -> Option<Range> {
        let i = self.index_from(addr);
        (i < self.len()).then(|| self.at(i))
    }

    /// The range of an address. With the lock held.
    pub fn find(&self, addr: usize) -> Option<Range> {
        self.next_from(addr).filter(|r| r.contains(addr))
    }

    fn read<T>(&self, f: impl Fn(&Self) -> T) -> T {
        loop {
            let before = self.sequence.load(Ordering::Acquire);
            if before & 1 == 0 {
                let v = f(self);
                fence(Ordering::Acquire);
                if self.sequence.load(Ordering::Relaxed) == before {
                    return v;
                }
            }
            core::hint::spin_loop();
        }
    }

    /// The range of an address, without the lock.
    pub fn find_unlocked(&self, addr: usize) -> Option<Range> {
        self.read(|s| s.find(addr))
    }

    /// The first range that touches `[start, end)`, without the lock.
    pub fn first_overlap_unlocked(&self, start: usize, end: usize) -> Option<Range> {
        if self.is_empty() {
            return None;
        }
        self.read(|s| {
            let i = s.index_from(start);
            (i < s.len()).then(|| s.at(i)).filter(|r| r.start < end)
        })
    }

    /// Whether `[start, end)` touches a managed range. With the lock held.
    pub fn overlaps(&self, start: usize, end: usize) -> bool {
        let i = self.index_from(start);
        i < self.len() && self.at(i).start < end
    }

    /// Whether all of `[start, end)` is managed. With the lock held.
    pub fn cover(&self, start: usize, end: usize) -> bool {
        let mut at = start;
        self.for_each(start, end, |r| at = if r.start == at { r.end } else { at });
        at >= end
    }

    /// Calls `f` for the part of every range inside `[start, end)`. `f` must not change the list.
    pub fn for_each(&self, start: usize, end: usize, mut f: impl FnMut(Range)) {
        let mut i = self.index_from(start);
        while i < self.len() {
            let r = self.at(i);
            if r.start >= end {
                break;
            }
            f(r.clip(start, end));
            i += 1;
        }
    }

    /// The start of the first locked range of `[start, end)`, if all before it is managed: other
    /// memory may be locked, too. With the lock held.
    pub fn first_locked(&self, start: usize, end: usize) -> Option<usize> {
        let (mut at, mut locked) = (start, None);
        self.for_each(start, end, |r| {
            if locked.is_none() && r.start == at {
                at = r.end;
                locked = r.flags.has(RangeFlags::LOCKED).then_some(r.start);
            }
        });
        locked
    }

    fn account(&self, r: Range, sign: isize) {
        let n = (r.len() as isize * sign) as usize;
        self.total_bytes.store(self.total_bytes().wrapping_add(n), Ordering::Relaxed);
        if r.prot != 0 {
            self.accessible_bytes.store(self.accessible_bytes().wrapping_add(n), Ordering::Relaxed);
        }
        if r.prot != 0 && r.flags.has(RangeFlags::RESERVED) {
            self.reserved_bytes.store(self.reserved_bytes().wrapping_add(n), Ordering::Relaxed);
        }
        if r.flags.has(RangeFlags::HUGE) {
            self.huge_bytes.store(self.huge_bytes().wrapping_add(n), Ordering::Relaxed);
        }
    }

    /// Makes room for `extra` ranges more, so that a change that adds no more of them cannot fail.
    pub fn reserve(&self, extra: usize) -> Result<()> {
        self.cells.ensure(self.len() + extra).map(drop)
    }

    fn insert_at(&self, i: usize, r: Range) {
        let len = self.len();
        for k in (i..len).rev() {
            self.put(k + 1, self.at(k));
        }
        self.put(i, r);
        self.len.store(len + 1, Ordering::Release);
    }

    fn remove_at(&self, i: usize, count: usize) {
        let len = self.len();
        for k in i + count..len {
            self.put(k - count, self.at(k));
        }
        self.len.store(len - count, Ordering::Release);
    }

    fn write(&self, f: impl FnOnce(&Self)) {
        self.sequence.fetch_add(1, Ordering::SeqCst);
        f(self);
        self.sequence.fetch_add(1, Ordering::SeqCst);
    }

    fn remove_in_write(&self, start: usize, end: usize) {
        let mut i = self.index_from(start);
        while i < self.len() {
            let r = self.at(i);
            if r.start >= end {
                break;
            }
            self.account(r.clip(start, end), -1);
            match (r.start < start, r.end > end) {
                (true, true) => {
                    self.put(i, Range { end: start, ..r });
                    self.insert_at(i + 1, Range { start: end, ..r });
                    break;
                }
                (true, false) => {
                    self.put(i, Range { end: start, ..r });
                    i += 1;
                }
                (false, true) => {
                    self.put(i, Range { start: end, ..r });
                    break;
                }
                (false, false) => {
                    // Take out the whole run of covered ranges at once.
                    let mut n = 1;
                    while i + n < self.len() && self.at(i + n).end <= end {
                        self.account(self.at(i + n), -1);
                        n += 1;
                    }
                    self.remove_at(i, n);
                }
            }
        }
    }

    fn add_in_write(&self, r: Range) {
        self.remove_in_write(r.start, r.end);
        self.account(r, 1);
        let i = self.index_from(r.start);
        let same = |o: Range| o.prot == r.prot && o.flags == r.flags;
        let left = i > 0 && self.at(i - 1).end == r.start && same(self.at(i - 1));
        let right = i < self.len() && self.at(i).start == r.end && same(self.at(i));
        match (left, right) {
            (true, true) => {
                let end = self.at(i).end;
                self.put(i - 1, Range { end, ..self.at(i - 1) });
                self.remove_at(i, 1);
            }
            (true, false) => self.put(i - 1, Range { end: r.end, ..self.at(i - 1) }),
            (false, true) => self.put(i, Range { start: r.start, ..self.at(i) }),
            (false, false) => self.insert_at(i, r),
        }
    }

    /// Takes `[start, end)` out of the list.
    pub fn remove(&self, start: usize, end: usize) -> Result<()> {
        if start >= end || !self.overlaps(start, end) {
            return Ok(());
        }
        self.reserve(1)?;
        self.write(|s| s.remove_in_write(start, end));
        Ok(())
    }

    /// Puts a range into the list, over any that was there.
    pub fn add(&self, r: Range) -> Result<()> {
        if r.start >= r.end || r.end > super::ADDRESS_END {
            return Err(Errno::EINVAL);
        }
        self.reserve(2)?;
        self.write(|s| s.add_in_write(r));
        Ok(())
    }

    /// Changes the attributes of the managed parts of `[start, end)`.
    pub fn update(&self, start: usize, end: usize, f: impl Fn(Range) -> Range) -> Result<()> {
        let mut addr = start;
        while addr < end {
            let i = self.index_from(addr);
            if i >= self.len() || self.at(i).start >= end {
                break;
            }
            let part = self.at(i).clip(addr, end);
            let new = f(part);
            debug_assert!(new.start == part.start && new.end == part.end);
            if new != part {
                self.add(new)?;
            }
            addr = part.end;
        }
        Ok(())
    }

    /// Asserts order, disjointness and the sums.
    pub fn check(&self) {
        let (mut last, mut total, mut accessible, mut reserved) = (0, 0, 0, 0);
        for i in 0..self.len() {
            let r = self.at(i);
            assert!(r.start < r.end && r.start >= last, "range {i} {r:?} out of order");
            last = r.end;
            total += r.len();
            accessible += if r.prot != 0 { r.len() } else { 0 };
            let is_reserved = r.prot != 0 && r.flags.has(RangeFlags::RESERVED);
            reserved += if is_reserved { r.len() } else { 0 };
        }
        assert_eq!((total, accessible), (self.total_bytes(), self.accessible_bytes()));
        assert_eq!(reserved, self.reserved_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: usize = 4096;
    fn r(s: usize, e: usize, prot: u32) -> Range {
        Range { start: s * P, end: e * P, prot, flags: RangeFlags::NONE }
    }

    #[test]
    fn neighbours_merge_and_holes_split() {
        let l = Ranges::new();
        l.add(r(10, 20, 3)).unwrap();
        l.add(r(20, 30, 3)).unwrap();
        assert_eq!(l.len(), 1);
        l.remove(15 * P, 16 * P).unwrap();
        assert_eq!(l.len(), 2);
        l.add(r(15, 16, 1)).unwrap();
        assert_eq!(l.find(15 * P).unwrap().prot, 1);
        l.update(0, 100 * P, |x| Range { prot: 3, ..x }).unwrap();
        assert_eq!(l.len(), 1);
        assert_eq!(l.find_unlocked(29 * P + 1), Some(r(10, 30, 3)));
        assert_eq!(l.first_overlap_unlocked(0, 10 * P), None);
        l.check();
    }

    #[test]
    fn a_locked_range_is_the_first_only_if_all_before_it_is_managed() {
        let l = Ranges::new();
        let first = |start: usize, end: usize| l.first_locked(start * P, end * P).map(|at| at / P);
        for (start, flags) in [(10, RangeFlags::NONE), (12, RangeFlags::LOCKED)] {
            l.add(Range { flags, ..r(start, start + 2, 3) }).unwrap();
        }
        l.add(r(14, 16, 3)).unwrap();
        assert_eq!([first(10, 16), first(11, 14), first(13, 16)], [Some(12), Some(12), Some(13)]);
        assert_eq!([first(9, 16), first(10, 12), first(14, 16)], [None; 3]);
        l.remove(11 * P, 12 * P).unwrap();
        assert_eq!(first(10, 16), None);
    }

    #[test]
    fn ranges_side_by_side_cover_what_lies_in_them_and_no_hole() {
        let l = Ranges::new();
        for range in [r(10, 12, 3), r(12, 14, 1), r(15, 16, 3)] {
            l.add(range).unwrap();
        }
        let cover = |start: usize, end: usize| l.cover(start * P, end * P);
        assert!(cover(10, 14) && cover(11, 13) && cover(15, 16));
        assert!(!cover(9, 12) && !cover(13, 15) && !cover(13, 16) && !cover(14, 15));
    }

    /// Against a naive model: one cell per page.
    #[test]
    fn fuzz_against_a_page_array() {
        for seed in 0..30u64 {
            let mut s = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
            let mut rnd = |n: usize| {
                s ^= s << 13;
                s ^= s >> 7;
                s ^= s << 17;
                (s % n as u64) as usize
            };
            let l = Ranges::new();
            let mut model = [None::<u32>; 300];
            for step in 0..600 {
                let a = rnd(290);
                let wide = rnd(20) == 0;
                let b = a + 1 + rnd(if wide { 300 } else { 10 }).min(299 - a);
                match rnd(4) {
                    0 => {
                        l.remove(a * P, b * P).unwrap();
                        model[a..b].fill(None);
                    }
                    1 => {
                        let p = rnd(4) as u32;
                        l.update(a * P, b * P, |x| Range { prot: p, ..x }).unwrap();
                        model[a..b].iter_mut().for_each(|m| *m = m.map(|_| p));
                    }
                    _ => {
                        let p = rnd(4) as u32;
                        l.add(r(a, b, p)).unwrap();
                        model[a..b].fill(Some(p));
                    }
                }
                l.check();
                for (i, m) in model.iter().enumerate() {
                    assert_eq!(
                        l.find(i * P + 5).map(|x| x.prot),
                        *m,
                        "seed {seed} step {step} page {i}"
                    );
                }
            }
        }
    }
}
