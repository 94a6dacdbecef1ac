//! Memory of our own, straight from the kernel: mappings, and tables that grow without moving.
//!
//! # Safety charter
//! A `Mapping` owns its addresses from `mmap` to `munmap`, so slices borrowed from it are sound:
//! nobody else knows the address. `decommit` gives the frames back and the bytes read as zero
//! afterwards, which for plain bytes is a legal value. `Table<T>` relies on `T: Zeroable`: all-zero
//! bytes are a valid `T`.
#![allow(unsafe_code)]

use core::marker::PhantomData;
use core::ops::Range;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use super::sync::Mutex;
use super::{Errno, PAGE_SIZE, Result, nr, place, program};

pub const PROT_NONE: usize = 0;
pub const PROT_READ: usize = 1;
pub const PROT_WRITE: usize = 2;
pub const PROT_EXEC: usize = 4;
pub const MAP_SHARED: usize = 1;
pub const MAP_PRIVATE: usize = 2;
pub const MAP_TYPE: usize = 0xf;
pub const MAP_FIXED: usize = 0x10;
pub const MAP_ANONYMOUS: usize = 0x20;
pub const MAP_NORESERVE: usize = 0x4000;
pub const MAP_FIXED_NOREPLACE: usize = 0x10_0000;
pub const MADV_DONTNEED: usize = 4;
pub const MADV_DONTDUMP: usize = 16;
pub const MADV_NOHUGEPAGE: usize = 15;
pub const MADV_POPULATE_WRITE: usize = 23;
pub const MADV_DONTNEED_LOCKED: usize = 24;

/// Maps at least `len` bytes of private anonymous zero memory with `prot`, where the program has
/// nothing (`place.rs`). The address is the caller's to unmap.
pub fn map_anonymous(len: usize, prot: usize) -> Result<usize> {
    let addr = place::map(len, prot)?;
    // Our tables and pools hold compressed copies of the program's pages: they have no place in its
    // core dump, and huge pages would make them resident before they are used.
    // SAFETY: advice about the mapping just made.
    unsafe {
        let _ = uz_syscall!(nr::MADVISE, addr, len, MADV_DONTDUMP);
        let _ = uz_syscall!(nr::MADVISE, addr, len, MADV_NOHUGEPAGE);
    }
    Ok(addr)
}

/// Gives back what [`map_anonymous`] mapped, or a part of it: whole pages.
///
/// # Safety
/// The range must be the caller's.
pub unsafe fn unmap_anonymous(addr: usize, len: usize) {
    let len = len.next_multiple_of(PAGE_SIZE);
    // SAFETY: the caller's.
    let _ = unsafe { uz_syscall!(nr::MUNMAP, addr, len) };
}

/// Address space kept for data that a fault cannot do without: its beginning, and the bytes that
/// are left.
static SPARE: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
/// Four segments of tables, for memory that lies apart.
const SPARE_BYTES: usize = 4 * SEGMENT_BYTES;
/// Bytes of address space to one byte of the words for its pages: a word of eight bytes for each
/// page.
const BYTES_TO_WORDS: usize = PAGE_SIZE / size_of::<u64>();

/// Keeps address space aside, before a limit on it (ulimit -v) is reached: the words of pages that
/// are touched for the first time need some, and a program that has the pages already would die
/// without.
pub fn keep_spare() -> Result<()> {
    const RLIMIT_AS: usize = 9;
    if SPARE[0].load(Ordering::Acquire) != 0 {
        return Ok(());
    }
    let mut limit = [0usize; 2];
    // SAFETY: the kernel writes two words.
    let asked = unsafe { uz_syscall!(nr::PRLIMIT64, 0, RLIMIT_AS, 0, limit.as_mut_ptr()) };
    let of_limit = if asked.is_ok() && limit[0] < 1 << 47 { limit[0] / BYTES_TO_WORDS } else { 0 };
    let len = SPARE_BYTES + of_limit.next_multiple_of(SEGMENT_BYTES);
    let spare = place::map(len, PROT_NONE)?;
    // SAFETY: advice about the mapping just made: there is nothing in it to dump.
    let _ = unsafe { uz_syscall!(nr::MADVISE, spare, len, MADV_DONTDUMP) };
    SPARE[0].store(spare, Ordering::Release);
    SPARE[1].store(len, Ordering::Release);
    Ok(())
}

/// [`map_anonymous`], of the spare address space where there is no other.
fn map_needed(len: usize, prot: usize) -> Result<usize> {
    let take = |left: usize| left.checked_sub(len.next_multiple_of(PAGE_SIZE));
    match map_anonymous(len, prot) {
        Err(Errno::ENOMEM) => {
            let old = SPARE[1].fetch_update(Ordering::AcqRel, Ordering::Acquire, take);
            let left = old.map_err(|_| Errno::ENOMEM).map(|old| take(old).expect("taken"))?;
            let addr = SPARE[0].load(Ordering::Acquire) + left;
            // The spare mapping is opened where it is: between giving it back and mapping it again
            // somebody else might take the place.
            // SAFETY: this end of the spare mapping is ours, has no memory, and was taken by nobody
            // else.
            unsafe {
                uz_syscall!(nr::MPROTECT, addr, len.next_multiple_of(PAGE_SIZE), prot)?;
                let _ = uz_syscall!(nr::MADVISE, addr, len, MADV_NOHUGEPAGE);
            }
            Ok(addr)
        }
        mapped => mapped,
    }
}

/// Maps room for `count` huge pages, aligned to their size; a touch maps one where the kernel has
/// one to give. For ever.
pub fn map_huge(count: usize) -> Result<usize> {
    let len = count * super::HUGE_BYTES;
    let start = map_anonymous(len + super::HUGE_BYTES, PROT_READ | PROT_WRITE)?
        .next_multiple_of(super::HUGE_BYTES);
    // SAFETY: a mapping of our own.
    unsafe { program::advise_huge(start, len) };
    Ok(start)
}

/// Zero-initialised private memory, page-aligned, owned; given back when dropped.
pub struct Mapping {
    addr: usize,
    len: usize,
}

impl Mapping {
    /// Maps at least `len` bytes (rounded up to whole pages). Frames are allocated by touch.
    pub fn new(len: usize) -> Result<Mapping> {
        let len = len.max(1).next_multiple_of(PAGE_SIZE);
        Ok(Mapping { addr: map_anonymous(len, PROT_READ | PROT_WRITE)?, len })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        false
    }

    /// The first address.
    pub fn addr(&self) -> usize {
        self.addr
    }

    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: owned, mapped readable for `len` bytes; shared borrow of self.
        unsafe { core::slice::from_raw_parts(self.addr as *const u8, self.len) }
    }

    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: owned, mapped writable for `len` bytes; exclusive borrow of self.
        unsafe { core::slice::from_raw_parts_mut(self.addr as *mut u8, self.len) }
    }

    /// Gives the frames of `range` (whole pages, in bytes) back to the kernel; they read as zero
    /// afterwards.
    pub fn decommit(&mut self, range: Range<usize>) {
        assert!(range.start.is_multiple_of(PAGE_SIZE) && range.end.is_multiple_of(PAGE_SIZE));
        assert!(range.start <= range.end && range.end <= self.len);
        if range.is_empty() {
            return;
        }
        // SAFETY: the range lies in our own mapping, borrowed exclusively; zero bytes are valid
        // bytes.
        let _ = unsafe { program::drop_ours(self.addr + range.start, range.end - range.start) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nobody can hold a borrow of it any more.
        let _ = unsafe { uz_syscall!(nr::MUNMAP, self.addr, self.len) };
    }
}

/// Drops the frames of runs (address, bytes), wherever they lie, with one flush for all.
/// Returns how many bytes were dropped, from the first on. Linux before 6.15 drops none, and none
/// that are locked.
///
/// # Safety
/// The contents must be worthless or stored elsewhere.
pub(super) unsafe fn drop_runs(runs: &[(usize, usize)]) -> usize {
    const PIDFD_SELF_THREAD_GROUP: i32 = -10_001;
    let (vector, count) = (runs.as_ptr(), runs.len());
    // SAFETY: the caller vouches; the vector is an array of address and length.
    let done = unsafe {
        uz_syscall!(nr::PROCESS_MADVISE, PIDFD_SELF_THREAD_GROUP, vector, count, MADV_DONTNEED, 0)
    };
    done.unwrap_or(0)
}

/// Types for which all-zero bytes are a valid value, and which need no drop.
///
/// # Safety
/// The implementor vouches for both.
pub unsafe trait Zeroable {}
// SAFETY: integers and atomics are valid when zero.
unsafe impl Zeroable for u8 {}
// SAFETY: as above.
unsafe impl Zeroable for u16 {}
// SAFETY: as above.
unsafe impl Zeroable for u32 {}
// SAFETY: as above.
unsafe impl Zeroable for u64 {}
// SAFETY: as above.
unsafe impl Zeroable for u128 {}
// SAFETY: as above.
unsafe impl Zeroable for core::sync::atomic::AtomicU8 {}
// SAFETY: as above.
unsafe impl Zeroable for core::sync::atomic::AtomicU32 {}
// SAFETY: as above.
unsafe impl Zeroable for core::sync::atomic::AtomicU64 {}
// SAFETY: as above.
unsafe impl Zeroable for AtomicUsize {}
// SAFETY: an array of zeroable values is zeroable.
unsafe impl<T: Zeroable, const N: usize> Zeroable for [T; N] {}

/// Defines a plain struct and implements [`Zeroable`] for it; all of its fields implement it
/// (checked).
#[macro_export]
macro_rules! zeroable {
    ($(#[$meta:meta])* $vis:vis struct $t:ident ( $ft:ty );) => {
        $(#[$meta])*
        $vis struct $t($ft);
        $crate::zeroable!(@implement $t, $ft);
    };
    ($(#[$meta:meta])* $vis:vis struct $t:ident {
        $($(#[$field_meta:meta])* $field_vis:vis $f:ident : $ft:ty),* $(,)?
    }) => {
        $(#[$meta])*
        $vis struct $t {
            $($(#[$field_meta])* $field_vis $f: $ft),*
        }
        $crate::zeroable!(@implement $t, $($ft),*);
    };
    (@implement $t:ident, $($ft:ty),*) => {
        const _: () = {
            const fn zero<T: $crate::sys::mem::Zeroable>() {}
            $( zero::<$ft>(); )*
        };
        #[allow(unsafe_code)]
        // SAFETY: these are all fields, and each is zeroable, checked above.
        unsafe impl $crate::sys::mem::Zeroable for $t {}
    };
}

const SEGMENT_BYTES: usize = 1 << 20;
/// Runs of elements that [`Table::decommit_each`] gives back with one call.
pub const RUNS_AT_ONCE: usize = 64;
/// Segments that the two directories of a table name: 32 GiB by the first, which most tables never
/// leave, 1 TiB with the second. One directory for all would be 8 MiB of address space for each
/// table, of which `ulimit -v` leaves some processes little.
const DIRECTORY_LENS: [usize; 2] = [1 << 15, (1 << 20) - (1 << 15)];
const MAX_SEGMENTS: usize = DIRECTORY_LENS[0] + DIRECTORY_LENS[1];

/// An array that grows and never moves: segments of 1 MiB, mapped when first reached, zero at
/// first. Readers need no lock; growing takes one inside. Elements are shared (`&T`), so they are
/// atomics or are guarded by the owner of the table; `get_mut` needs the table exclusively.
pub struct Table<T> {
    directories: [AtomicPtr<AtomicPtr<T>>; 2],
    grow: Mutex<()>,
    mapped_bytes: AtomicUsize,
    _t: PhantomData<T>,
}

impl<T: Zeroable> Default for Table<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Zeroable> Table<T> {
    /// Elements of one segment.
    pub const PER_SEGMENT: usize = SEGMENT_BYTES / size_of::<T>();
    /// The largest number of elements.
    pub const CAPACITY: usize = Self::PER_SEGMENT * MAX_SEGMENTS;

    pub const fn new() -> Self {
        Table {
            directories: [const { AtomicPtr::new(null_mut()) }; 2],
            grow: Mutex::new(()),
            mapped_bytes: AtomicUsize::new(0),
            _t: PhantomData,
        }
    }

    /// The directory that names a segment, and its number there.
    #[inline]
    const fn named(segment: usize) -> Option<(usize, usize)> {
        match segment {
            s if s < DIRECTORY_LENS[0] => Some((0, s)),
            s if s < MAX_SEGMENTS => Some((1, s - DIRECTORY_LENS[0])),
            _ => None,
        }
    }

    /// The place of a segment's address, if its directory exists.
    #[inline]
    fn segment(&self, segment: usize) -> Option<&AtomicPtr<T>> {
        let (which, number) = Self::named(segment)?;
        let dir = self.directories[which].load(Ordering::Acquire);
        if dir.is_null() {
            return None;
        }
        // SAFETY: the directory has DIRECTORY_LENS[which] entries and is never freed while self
        // lives.
        Some(unsafe { &*dir.add(number) })
    }

    /// The address of an element, if its segment exists.
    #[inline]
    fn slot(&self, index: usize) -> Option<*mut T> {
        let seg = self.segment(index / Self::PER_SEGMENT)?.load(Ordering::Acquire);
        if seg.is_null() {
            return None;
        }
        // SAFETY: a segment holds PER_SEGMENT elements.
        Some(unsafe { seg.add(index % Self::PER_SEGMENT) })
    }

    /// The element, if its segment exists.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&T> {
        // SAFETY: segments are zero-initialised (hence valid elements), never move, and live as
        // long as self.
        self.slot(index).map(|p| unsafe { &*p })
    }

    /// The element, exclusively, if its segment exists.
    #[inline]
    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        // SAFETY: as in `get`, and self is borrowed exclusively.
        self.slot(index).map(|p| unsafe { &mut *p })
    }

    /// The element, its segment mapped if need be.
    pub fn ensure(&self, index: usize) -> Result<&T> {
        self.ensure_by(index, map_anonymous)
    }

    /// The element, its segment mapped if need be, for data that the program cannot do without: in
    /// the spare address space, where there is no other.
    pub fn ensure_needed(&self, index: usize) -> Result<&T> {
        self.ensure_by(index, map_needed)
    }

    fn ensure_by(&self, index: usize, map: fn(usize, usize) -> Result<usize>) -> Result<&T> {
        if let Some(t) = self.get(index) {
            return Ok(t);
        }
        let segment = index / Self::PER_SEGMENT;
        let (which, _) = Self::named(segment).ok_or(super::Errno::ENOMEM)?;
        let _g = self.grow.lock();
        let directory = &self.directories[which];
        if directory.load(Ordering::Acquire).is_null() {
            let dir = map(DIRECTORY_LENS[which] * 8, PROT_READ | PROT_WRITE)?;
            directory.store(dir as *mut AtomicPtr<T>, Ordering::Release);
        }
        let slot = self.segment(segment).expect("a directory");
        if slot.load(Ordering::Acquire).is_null() {
            let seg = map(SEGMENT_BYTES, PROT_READ | PROT_WRITE)? as *mut T;
            slot.store(seg, Ordering::Release);
            self.mapped_bytes.fetch_add(SEGMENT_BYTES, Ordering::Relaxed);
        }
        drop(_g);
        self.get(index).ok_or(super::Errno::ENOMEM)
    }

    /// Gives the memory of `count` elements from `first` back to the kernel; they are zero
    /// afterwards. They must lie in one mapped segment and cover whole pages.
    fn decommit(&mut self, first: usize, count: usize) {
        let (addr, len) = self.span(first, count);
        if len > 0 {
            // SAFETY: the range lies in one segment of ours, borrowed exclusively; zero is a valid
            // T, without drop.
            let _ = unsafe { program::drop_ours(addr, len) };
        }
    }

    /// Gives several runs (first element, count) back, wherever they lie, as `decommit` does,
    /// with one flush for all. Linux before 6.15 wants a call for each.
    pub fn decommit_each(&mut self, runs: &[(usize, usize)]) {
        for some in runs.chunks(RUNS_AT_ONCE) {
            let mut vector = [(0usize, 0usize); RUNS_AT_ONCE];
            for (v, (first, count)) in vector.iter_mut().zip(some) {
                *v = self.span(*first, *count);
            }
            // SAFETY: the runs lie in segments of ours, borrowed exclusively; zero is a valid
            // T.
            let mut left = unsafe { drop_runs(&vector[..some.len()]) };
            for ((first, count), (_, bytes)) in some.iter().zip(vector) {
                if left < bytes {
                    self.decommit(*first, *count);
                }
                left = left.saturating_sub(bytes);
            }
        }
    }

    /// Puts memory behind `count` elements from `first`, for less than a fault for each page costs.
    /// Kernels before 5.14 cannot; then touching them does it. They must lie in one mapped segment
    /// and cover whole pages.
    pub fn populate(&mut self, first: usize, count: usize) {
        let (addr, len) = self.span(first, count);
        if len > 0 {
            // SAFETY: the range lies in one segment of ours, and the bytes stay as they are.
            let _ = unsafe { uz_syscall!(nr::MADVISE, addr, len, MADV_POPULATE_WRITE) };
        }
    }

    /// Address and length of whole pages of elements, in one mapped segment.
    fn span(&self, first: usize, count: usize) -> (usize, usize) {
        assert!(first % Self::PER_SEGMENT + count <= Self::PER_SEGMENT);
        let addr = self.slot(first).expect("a mapped segment") as usize;
        let len = count * size_of::<T>();
        assert!(addr.is_multiple_of(PAGE_SIZE) && len.is_multiple_of(PAGE_SIZE));
        (addr, len)
    }

    /// Unmaps a segment. Its elements are gone until `ensure` maps it again, zero.
    pub fn unmap_segment(&mut self, segment: usize) {
        let place = self.segment(segment).expect("a segment that was mapped once");
        let seg = place.swap(null_mut(), Ordering::AcqRel);
        if !seg.is_null() {
            // SAFETY: a mapping of ours; self is borrowed exclusively, so nobody borrows an
            // element, and now that the entry is null nobody finds the segment.
            let _ = unsafe { uz_syscall!(nr::MUNMAP, seg, SEGMENT_BYTES) };
            self.mapped_bytes.fetch_sub(SEGMENT_BYTES, Ordering::Relaxed);
        }
    }

    /// Address space of the segments, in bytes (an upper bound of what is resident).
    pub fn mapped_bytes(&self) -> usize {
        self.mapped_bytes.load(Ordering::Relaxed)
    }
}

impl<const N: usize> Table<[u8; N]> {
    /// The address of an element, if its segment exists.
    pub fn address(&self, index: usize) -> Option<*mut u8> {
        self.slot(index).map(|p| p.cast())
    }

    /// A part of an element. The other parts may be in other hands, by `address`.
    #[inline]
    pub fn part(&self, index: usize, part: Range<usize>) -> Option<&[u8]> {
        assert!(part.start <= part.end && part.end <= N);
        // SAFETY: as in `get`; the part lies in the element.
        self.address(index)
            .map(|p| unsafe { core::slice::from_raw_parts(p.add(part.start), part.len()) })
    }

    /// A part of an element, exclusively. The other parts may be in other hands, by `address`.
    #[inline]
    pub fn part_mut(&mut self, index: usize, part: Range<usize>) -> Option<&mut [u8]> {
        assert!(part.start <= part.end && part.end <= N);
        // SAFETY: as in `get_mut`; the part lies in the element.
        self.address(index)
            .map(|p| unsafe { core::slice::from_raw_parts_mut(p.add(part.start), part.len()) })
    }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        for (directory, len) in self.directories.iter_mut().zip(DIRECTORY_LENS) {
            let dir = *directory.get_mut();
            if dir.is_null() {
                continue;
            }
            for i in 0..len {
                // SAFETY: the directory has `len` entries; each non-null one is a mapping of ours
                // that nobody can borrow any more.
                unsafe {
                    let seg = (*dir.add(i)).load(Ordering::Relaxed);
                    if !seg.is_null() {
                        let _ = uz_syscall!(nr::MUNMAP, seg, SEGMENT_BYTES);
                    }
                }
            }
            // SAFETY: the directory itself, likewise.
            let _ = unsafe { uz_syscall!(nr::MUNMAP, dir, len * 8) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapping_is_zero_writable_and_decommits_to_zero() {
        let mut m = Mapping::new(5000).unwrap();
        assert_eq!(m.len(), 8192);
        assert!(m.as_slice().iter().all(|&b| b == 0));
        m.as_mut_slice().fill(7);
        m.decommit(4096..8192);
        assert_eq!(m.as_slice()[4095], 7);
        assert!(m.as_slice()[4096..].iter().all(|&b| b == 0));
    }

    #[test]
    fn table_grows_without_moving() {
        let mut t: Table<u64> = Table::new();
        assert!(t.get(0).is_none());
        let first = t.ensure(3).unwrap() as *const u64;
        *t.get_mut(3).unwrap() = 42;
        t.ensure(Table::<u64>::PER_SEGMENT * 5 + 1).unwrap();
        assert_eq!(t.get(3).map(|p| (p as *const u64, *p)), Some((first, 42)));
        assert!(t.get(Table::<u64>::PER_SEGMENT * 3).is_none());
        assert!(t.ensure(Table::<u64>::CAPACITY).is_err());
    }

    #[test]
    fn both_directories_name_segments() {
        let mut t: Table<[u8; PAGE_SIZE]> = Table::new();
        assert_eq!(Table::<[u8; PAGE_SIZE]>::CAPACITY * PAGE_SIZE, 1 << 40);
        let border = DIRECTORY_LENS[0] * Table::<[u8; PAGE_SIZE]>::PER_SEGMENT;
        let all = [0, border - 1, border, Table::<[u8; PAGE_SIZE]>::CAPACITY - 1];
        for (i, fill) in all.into_iter().zip(1..) {
            assert!(t.get(i).is_none());
            t.ensure(i).unwrap();
            t.get_mut(i).unwrap()[0] = fill;
        }
        assert!(all.into_iter().zip(1..).all(|(i, fill)| t.get(i).unwrap()[0] == fill));
        t.unmap_segment(DIRECTORY_LENS[0]);
        assert!(t.get(border).is_none() && t.get(border - 1).is_some());
        assert_eq!(t.mapped_bytes(), 3 * SEGMENT_BYTES);
    }

    #[test]
    fn runs_wherever_they_lie_are_given_back_and_no_others() {
        let mut t: Table<[u8; PAGE_SIZE]> = Table::new();
        let all = 2 * Table::<[u8; PAGE_SIZE]>::PER_SEGMENT;
        for i in 0..all {
            t.ensure(i).unwrap();
            t.get_mut(i).unwrap().fill(1);
        }
        // More than go at once, in any order.
        let runs: Vec<_> = (0..all).rev().step_by(5).map(|last| (last - 1, 1 + last % 2)).collect();
        assert!(runs.len() > RUNS_AT_ONCE);
        t.decommit_each(&runs);
        for i in 0..all {
            let is_given = runs.iter().any(|(first, count)| (*first..first + count).contains(&i));
            assert!(t.get(i).unwrap().iter().all(|&b| b == u8::from(!is_given)), "{i}");
        }
        t.decommit_each(&[]);
    }

    #[test]
    fn locked_memory_is_given_back() {
        let mut m = Mapping::new(2 * PAGE_SIZE).unwrap();
        let mut t: Table<[u8; PAGE_SIZE]> = Table::new();
        t.ensure(0).unwrap();
        for addr in [m.addr(), t.span(0, 2).0] {
            // SAFETY: memory of this test, which stays as it is.
            if let Err(e) = unsafe { uz_syscall!(nr::MLOCK, addr, 2 * PAGE_SIZE) } {
                return println!("SKIPPED: mlock: {e}");
            }
        }
        // SAFETY: a mapping of this test that has nothing in it yet.
        if let Err(e) = unsafe { program::drop_locked_pages(m.addr(), PAGE_SIZE) } {
            return println!("SKIPPED: MADV_DONTNEED_LOCKED: {e}");
        }
        m.as_mut_slice().fill(7);
        m.decommit(0..PAGE_SIZE);
        assert!(m.as_slice()[..PAGE_SIZE].iter().all(|&b| b == 0) && m.as_slice()[PAGE_SIZE] == 7);
        (0..2).for_each(|i| t.get_mut(i).unwrap().fill(7));
        t.decommit_each(&[(0, 1)]);
        assert!(t.get(0).unwrap().iter().all(|&b| b == 0) && t.get(1).unwrap()[0] == 7);
    }

    #[test]
    fn table_gives_back_memory_and_segments() {
        let mut t: Table<[u8; PAGE_SIZE]> = Table::new();
        let per_segment = Table::<[u8; PAGE_SIZE]>::PER_SEGMENT;
        for i in [0, 1, per_segment] {
            t.ensure(i).unwrap();
            t.get_mut(i).unwrap().fill(i as u8 | 1);
        }
        t.populate(2, 3);
        assert!(t.get(4).unwrap().iter().all(|&b| b == 0));
        t.decommit(1, 1);
        assert!(t.get(0).unwrap().iter().all(|&b| b == 1));
        assert!(t.get(1).unwrap().iter().all(|&b| b == 0));
        t.unmap_segment(0);
        assert!(t.get(0).is_none() && t.get(per_segment).unwrap()[0] == 1);
        assert_eq!(t.mapped_bytes(), SEGMENT_BYTES);
        t.ensure(0).unwrap();
        assert!(t.get(0).unwrap().iter().all(|&b| b == 0));
    }
}
