//! The disk: bytes outside, pages of the cache inside.
//!
//! ```text
//!   write(at, bytes)     [..part..][ page ][ page ][part....]
//!                         read, changed,  stored     read, changed,
//!                         stored                     stored
//! ```
//! A page of zeros is no page: it is dropped, and a page that is not there reads as zeros. So a
//! fresh disk, and one that was trimmed, takes no memory.
//!
//! # Locks
//! All changes of a page happen under its *stripe*, one of a few hundred locks by page number. A
//! page that is written in part is read, changed and stored: without the stripe a write of another
//! part could come in between, and be lost. A thread that drops a range takes all stripes, in
//! order, for some pages at a time. A stripe comes before all locks of the cache. Reads take none.
//!
//! # Memory
//! `memory_bytes` is for all that grows with what is stored: objects of the pool, records, tables.
//! The pool has what the tables leave ([`Disk::divide_memory`]). A write that finds no room packs
//! the pool once, and fails if that does not help.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use uzswap::cache::{CacheConfig, LoadError, Page, Run, SwapCache, SwapEntry, SwapFull};
use uzswap::codec::CodecSpec;
use uzswap::pool::PoolKind;
use uzswap::store::FileStore;
use uzswap::store::seal::Encryption;
use uzswap::sys::Errno;

pub const PAGE_BYTES: u64 = uzswap::PAGE_BYTES as u64;
/// The largest disk: keys of the cache have 32 bits, and the last one is left alone.
pub const DISK_MOST_BYTES: u64 = (u32::MAX as u64 - 1) * PAGE_BYTES;
/// The area of the cache's keys that the pages are under.
const AREA: u8 = 1;
/// The number of stripes: enough that threads seldom meet by chance.
const STRIPES: usize = 256;
/// The most pages that are dropped one by one, each under its own stripe: to take all stripes costs
/// about as much.
const DROPPED_SINGLY: u32 = 32;
/// The memory is divided anew after so many stores, in which tables grow by some 10 KiB.
const DIVIDED_AFTER: u64 = 256;
/// A pool that could not be packed is packed again after this time, or once a page was dropped.
const PACKED_AGAIN: Duration = Duration::from_millis(500);

/// How a disk is made.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    pub bytes: u64,
    pub memory_bytes: u64,
    pub compressor: CodecSpec,
    pub recompressor: Option<CodecSpec>,
    /// A directory for what finds no room in memory.
    pub store: Option<PathBuf>,
    pub encryption: Encryption,
    pub read_only: bool,
}

/// Why bytes could not be read or written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskError {
    /// There is no room. The older contents are there still.
    Full,
    /// The store could not be read, or what it has is not what was written.
    Store,
}

/// Requests and errors since the start.
#[derive(Debug, Default)]
pub struct Traffic {
    pub reads: AtomicU64,
    pub read_bytes: AtomicU64,
    pub writes: AtomicU64,
    pub written_bytes: AtomicU64,
    /// Pages that were trimmed or zeroed.
    pub dropped_pages: AtomicU64,
    pub failed_reads: AtomicU64,
    pub failed_writes: AtomicU64,
    /// Requests that were not valid.
    pub invalid: AtomicU64,
    pub compacted_frames: AtomicU64,
}

pub fn count(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

/// Bytes that follow one another and are alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    pub bytes: u64,
    /// No memory is taken by them.
    pub is_hole: bool,
    pub is_zero: bool,
}

/// See the module.
pub struct Disk {
    cache: SwapCache,
    bytes: u64,
    stripes: [Mutex<()>; STRIPES],
    memory_bytes: AtomicU64,
    read_only: AtomicBool,
    has_store: bool,
    /// The tables alone take all memory.
    are_tables_full: AtomicBool,
    stores: AtomicU64,
    /// The time at which packing freed nothing, and the pages that had been dropped by then.
    packed_in_vain: Mutex<Option<(Instant, u64)>>,
    pub traffic: Traffic,
    started: Instant,
}

fn key(page: u32) -> SwapEntry {
    SwapEntry::new(AREA, page)
}

fn in_words(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.0)
}

impl Disk {
    /// Makes an empty disk. The error is the kernel's: of the store's directory, or no memory.
    pub fn new(config: &DiskConfig) -> io::Result<Disk> {
        assert!(config.bytes <= DISK_MOST_BYTES, "checked by whoever reads the size");
        let store = match &config.store {
            Some(directory) => {
                Some(FileStore::open(directory.as_os_str().as_bytes()).map_err(in_words)?)
            }
            None => None,
        };
        let cache = SwapCache::new(CacheConfig {
            codec: config.compressor,
            recompressor: config.recompressor,
            chooses_codec: false,
            pool: PoolKind::Zsmalloc,
            max_pool_bytes: usize::MAX,
            keeps_incompressible: true,
            store,
            encryption: config.encryption,
            ..CacheConfig::default()
        })
        .map_err(in_words)?;
        cache.init(AREA).map_err(in_words)?;
        let disk = Disk {
            cache,
            bytes: config.bytes,
            stripes: [const { Mutex::new(()) }; STRIPES],
            memory_bytes: AtomicU64::new(config.memory_bytes),
            read_only: AtomicBool::new(config.read_only),
            has_store: store.is_some(),
            are_tables_full: AtomicBool::new(false),
            stores: AtomicU64::new(0),
            packed_in_vain: Mutex::new(None),
            traffic: Traffic::default(),
            started: Instant::now(),
        };
        disk.divide_memory();
        Ok(disk)
    }

    pub fn cache(&self) -> &SwapCache {
        &self.cache
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn has_store(&self) -> bool {
        self.has_store
    }

    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes.load(Ordering::Relaxed)
    }

    pub fn set_memory_bytes(&self, bytes: u64) {
        self.memory_bytes.store(bytes, Ordering::Relaxed);
        self.divide_memory();
    }

    pub fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Relaxed)
    }

    /// Sets it from now on; open connections hear of it by the error of a write.
    pub fn set_read_only(&self, read_only: bool) {
        self.read_only.store(read_only, Ordering::Relaxed);
    }

    /// The clock by which pages age: seconds since the start, from 1 on.
    pub fn second(&self) -> u32 {
        u32::try_from(self.started.elapsed().as_secs() + 1).unwrap_or(u32::MAX)
    }

    /// Memory that the disk's contents take: what `memory_bytes` limits.
    pub fn used_bytes(&self) -> u64 {
        (self.cache.pool_bytes() + self.cache.tables_bytes()) as u64
    }

    /// Gives the pool what the tables leave.
    pub fn divide_memory(&self) {
        let (memory_bytes, tables_bytes) = (self.memory_bytes(), self.cache.tables_bytes() as u64);
        let pool_bytes = memory_bytes.saturating_sub(tables_bytes);
        // Buffers leave the pool less, but a page that goes through them needs no pool.
        let is_full = self.cache.records_bytes() as u64 >= memory_bytes;
        self.are_tables_full.store(is_full, Ordering::Relaxed);
        self.cache.set_max_pool_bytes(usize::try_from(pool_bytes).unwrap_or(usize::MAX));
    }

    // ---- Reading

    /// Reads a whole page. False: it is not there, and the buffer is as it was.
    pub fn read_page(&self, page: u32, to: &mut Page) -> Result<bool, DiskError> {
        match self.cache.load(key(page), to) {
            Ok(()) => Ok(true),
            Err(LoadError::NotFound) => Ok(false),
            Err(LoadError::Io(_) | LoadError::Corrupt) => Err(DiskError::Store),
        }
    }

    /// Reads bytes, which are on the disk.
    pub fn read(&self, at: u64, to: &mut [u8]) -> Result<(), DiskError> {
        assert!(
            at.checked_add(to.len() as u64).is_some_and(|end| end <= self.bytes),
            "checked before"
        );
        let mut page: Page = [0; PAGE_BYTES as usize];
        for piece in pieces(at, to.len() as u64) {
            let to = &mut to[piece.from..piece.from + piece.len];
            if let Ok(whole) = <&mut Page>::try_from(&mut *to) {
                if !self.read_page(piece.page, whole)? {
                    whole.fill(0);
                }
            } else if self.read_page(piece.page, &mut page)? {
                to.copy_from_slice(&page[piece.at..piece.at + piece.len]);
            } else {
                to.fill(0);
            }
        }
        Ok(())
    }

    /// The extent from `at` on, up to `end` at most: as much as one look finds, at least one byte.
    pub fn extent(&self, at: u64, end: u64) -> Extent {
        assert!(at < end && end <= self.bytes, "checked before");
        let first = page_of(at);
        let pages = first..page_of(end - 1) + 1;
        let run = self.cache.run(AREA, pages);
        let bytes = (u64::from(first) + u64::from(run.len())) * PAGE_BYTES;
        let is_hole = matches!(run, Run::Absent(_));
        Extent { bytes: bytes.min(end) - at, is_hole, is_zero: !matches!(run, Run::Present(_)) }
    }

    // ---- Writing

    /// Writes bytes, which are on the disk. On an error those up to some page were written.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<(), DiskError> {
        assert!(
            at.checked_add(bytes.len() as u64).is_some_and(|end| end <= self.bytes),
            "checked before"
        );
        for piece in pieces(at, bytes.len() as u64) {
            let bytes = &bytes[piece.from..piece.from + piece.len];
            match <&Page>::try_from(bytes) {
                Ok(whole) => {
                    let _stripe = self.stripe(piece.page);
                    self.put(piece.page, whole)?;
                }
                Err(_) => self.change(piece, |part| part.copy_from_slice(bytes))?,
            }
        }
        Ok(())
    }

    /// Zeroes bytes, which are on the disk. With `keeps`, pages of zeros are stored rather than
    /// dropped.
    pub fn zero(&self, at: u64, len: u64, keeps: bool) -> Result<(), DiskError> {
        self.clear(at, len, keeps, true)
    }

    /// Drops what is in a range; parts of pages at its ends stay as they are.
    pub fn trim(&self, at: u64, len: u64) -> Result<(), DiskError> {
        self.clear(at, len, false, false)
    }

    fn clear(&self, at: u64, len: u64, keeps: bool, edges: bool) -> Result<(), DiskError> {
        let Some(end) = at.checked_add(len).filter(|end| *end <= self.bytes) else {
            panic!("checked before");
        };
        // The last page of the disk may be shorter than others, and still counts as a whole one.
        let last_end = if end == self.bytes { end.next_multiple_of(PAGE_BYTES) } else { end };
        let (first, last) = (at.next_multiple_of(PAGE_BYTES), last_end / PAGE_BYTES * PAGE_BYTES);
        if first >= last {
            // No whole page.
            return if edges { self.zero_parts(at, len) } else { Ok(()) };
        }
        if edges {
            self.zero_parts(at, first - at)?;
        }
        match keeps {
            true => self.store_zeros(page_of(first), page_of(last))?,
            false => self.drop_pages(page_of(first), page_of(last)),
        }
        if edges && end > last { self.zero_parts(last, end - last) } else { Ok(()) }
    }

    fn zero_parts(&self, at: u64, len: u64) -> Result<(), DiskError> {
        for piece in pieces(at, len) {
            // A page that is not there is zero already, and stays so unless a client writes it
            // meanwhile.
            if self.extent_of(piece.page).is_some() {
                self.change(piece, |part| part.fill(0))?;
            }
        }
        Ok(())
    }

    fn extent_of(&self, page: u32) -> Option<Run> {
        Some(self.cache.run(AREA, page..page + 1)).filter(|run| !matches!(run, Run::Absent(_)))
    }

    fn store_zeros(&self, first: u32, end: u32) -> Result<(), DiskError> {
        for page in first..end {
            let _stripe = self.stripe(page);
            self.store(page, &[0; PAGE_BYTES as usize])?;
        }
        Ok(())
    }

    fn drop_pages(&self, first: u32, end: u32) {
        let mut page = first;
        while page < end {
            let run = self.cache.run(AREA, page..end);
            let next = page + run.len();
            if !matches!(run, Run::Absent(_)) {
                self.drop_present(page, next);
            }
            page = next;
        }
    }

    fn drop_present(&self, first: u32, end: u32) {
        if end - first <= DROPPED_SINGLY {
            for page in first..end {
                let _stripe = self.stripe(page);
                self.drop_page(page);
            }
            return;
        }
        // The stripes are held for no more pages than one look at the cache has found: a
        // millisecond at most.
        let _stripes = self.stripes.each_ref().map(lock);
        count(&self.traffic.dropped_pages, self.cache.invalidate_range(AREA, first..end));
    }

    /// Drops a page, if it is there. Under its stripe.
    fn drop_page(&self, page: u32) {
        let was_there = self.cache.invalidate_page(key(page));
        count(&self.traffic.dropped_pages, u64::from(was_there));
    }

    /// Drops everything.
    pub fn reset(&self) {
        if self.bytes > 0 {
            self.drop_pages(0, page_of(self.bytes - 1) + 1);
        }
    }

    fn stripe(&self, page: u32) -> MutexGuard<'_, ()> {
        lock(&self.stripes[page as usize % STRIPES])
    }

    /// Changes a part of a page.
    fn change(&self, piece: Piece, change: impl FnOnce(&mut [u8])) -> Result<(), DiskError> {
        let _stripe = self.stripe(piece.page);
        let mut page: Page = [0; PAGE_BYTES as usize];
        if !self.read_page(piece.page, &mut page)? {
            page.fill(0);
        }
        change(&mut page[piece.at..piece.at + piece.len]);
        self.put(piece.page, &page)
    }

    /// Stores a page, or drops it if it is zero. Under its stripe.
    fn put(&self, page: u32, bytes: &Page) -> Result<(), DiskError> {
        if is_zero(bytes) {
            self.drop_page(page);
            return Ok(());
        }
        self.store(page, bytes)
    }

    fn store(&self, page: u32, bytes: &Page) -> Result<(), DiskError> {
        if self.stores.fetch_add(1, Ordering::Relaxed).is_multiple_of(DIVIDED_AFTER) {
            self.divide_memory();
        }
        if self.are_tables_full.load(Ordering::Relaxed) && self.cache.needs_tables(key(page)) {
            return Err(DiskError::Full);
        }
        let packed = self.traffic.compacted_frames.load(Ordering::Relaxed);
        match self.cache.store(key(page), bytes) {
            Ok(()) => Ok(()),
            Err(SwapFull) if self.pack(packed) => {
                self.cache.store(key(page), bytes).map_err(|_| DiskError::Full)
            }
            Err(SwapFull) => Err(DiskError::Full),
        }
    }

    /// Packs the pool, unless that helped nothing a moment ago and no page was dropped since; says
    /// whether it has freed something since `packed` frames were.
    fn pack(&self, packed: u64) -> bool {
        let t = &self.traffic;
        let mut in_vain = self.packed_in_vain.lock().expect("nobody panics with it");
        // Another thread has packed it meanwhile, and left nothing to do.
        if t.compacted_frames.load(Ordering::Relaxed) != packed {
            return true;
        }
        let dropped = t.dropped_pages.load(Ordering::Relaxed);
        let is_same = |at: Instant, then| then == dropped && at.elapsed() < PACKED_AGAIN;
        if in_vain.is_some_and(|(at, then)| is_same(at, then)) {
            return false;
        }
        let frees = self.compact() > 0;
        *in_vain = (!frees).then(|| (Instant::now(), dropped));
        frees
    }

    /// Packs the pool as densely as can be; says how many frames that freed.
    pub fn compact(&self) -> u64 {
        let frames = self.cache.compact() as u64;
        count(&self.traffic.compacted_frames, frames);
        frames
    }
}

fn lock(mutex: &Mutex<()>) -> MutexGuard<'_, ()> {
    mutex.lock().expect("a panic ends the process")
}

fn page_of(at: u64) -> u32 {
    u32::try_from(at / PAGE_BYTES).expect("the largest disk has as many pages")
}

fn is_zero(page: &Page) -> bool {
    let (words, _) = page.as_chunks::<8>();
    words.iter().all(|word| *word == [0; 8])
}

/// The part of a range of bytes that lies in one page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Piece {
    page: u32,
    /// Where it begins in the page, and in the range.
    at: usize,
    from: usize,
    len: usize,
}

fn pieces(at: u64, len: u64) -> impl Iterator<Item = Piece> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let here = at + from;
        let in_page = here % PAGE_BYTES;
        let some = (len - from).min(PAGE_BYTES - in_page);
        let piece = Piece {
            page: page_of(here),
            at: in_page as usize,
            from: from as usize,
            len: some as usize,
        };
        from += some;
        (some > 0).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{disk, disk_over, lose_the_store, random};

    const MIB: u64 = 1 << 20;
    const PAGE: usize = PAGE_BYTES as usize;

    /// A page that compresses to about half.
    fn half(n: u64) -> Vec<u8> {
        let mut next = random(n + 1);
        (0..PAGE).map(|at| if at < PAGE / 2 { next(256) as u8 } else { n as u8 }).collect()
    }

    fn write(disk: &Disk, n: u64) -> Result<(), DiskError> {
        disk.write(n * PAGE_BYTES, &half(n))
    }

    fn read(disk: &Disk, n: u64) -> Vec<u8> {
        let mut bytes = vec![0xee; PAGE];
        disk.read(n * PAGE_BYTES, &mut bytes).unwrap();
        bytes
    }

    /// A disk whose pool is full, of pages 0 to a number, and has just been packed in vain.
    fn full() -> (Disk, u64) {
        let disk = disk(16 * MIB, 2 * MIB);
        let stored = (0..4096).find(|n| write(&disk, *n).is_err()).expect("it is full some time");
        assert_eq!(write(&disk, stored), Err(DiskError::Full));
        (disk, stored)
    }

    #[test]
    fn gaps_that_dropped_pages_leave_are_room_at_once() {
        let zero = |disk: &Disk, at: u64| disk.zero(at, PAGE_BYTES / 2, false).unwrap();
        let trimmed = |disk: &Disk, at| disk.trim(at, PAGE_BYTES).unwrap();
        let overwritten = |disk: &Disk, at| disk.write(at, &[0; PAGE]).unwrap();
        let zeroed =
            |disk: &Disk, at: u64| [0, PAGE_BYTES / 2].iter().for_each(|n| zero(disk, at + n));
        for drop in [&trimmed as &dyn Fn(&Disk, u64), &overwritten, &zeroed] {
            let (disk, stored) = full();
            (0..stored).step_by(2).for_each(|n| drop(&disk, n * PAGE_BYTES));
            // More than there is room for in what a few pages have had for themselves.
            let more = 3000..3000 + stored / 4;
            more.clone().for_each(|n| assert_eq!(write(&disk, n), Ok(()), "page {n}"));
            more.for_each(|n| assert!(read(&disk, n) == half(n)));
            (1..stored).step_by(2).for_each(|n| assert!(read(&disk, n) == half(n), "page {n}"));
            disk.cache().check();
        }
    }

    #[test]
    fn a_writer_that_waited_for_another_to_pack_tries_again() {
        let (disk, stored) = full();
        (0..stored).step_by(2).for_each(|n| disk.trim(n * PAGE_BYTES, PAGE_BYTES).unwrap());
        let packed = |disk: &Disk| disk.traffic.compacted_frames.load(Ordering::Relaxed);
        let before = packed(&disk);
        assert!(disk.compact() > 0);
        assert!(disk.pack(before), "another has freed something since");
        assert!(!disk.pack(packed(&disk)), "nobody has, and there is nothing to free");
    }

    #[test]
    fn a_lost_page_can_be_replaced_as_a_whole_and_not_in_part() {
        let disk = disk_over(true, MIB, MIB);
        (0..64).for_each(|n| write(&disk, n).unwrap());
        lose_the_store(&disk);
        let mut bytes = [0; 8];
        assert_eq!(disk.read(PAGE_BYTES, &mut bytes), Err(DiskError::Store));
        assert_eq!(disk.write(PAGE_BYTES + 8, &bytes), Err(DiskError::Store));
        assert_eq!(disk.zero(PAGE_BYTES + 8, PAGE_BYTES, false), Err(DiskError::Store));
        disk.write(PAGE_BYTES, &half(700)).unwrap();
        assert!(read(&disk, 1) == half(700));
        // Nothing need be read to drop a page.
        disk.zero(2 * PAGE_BYTES, PAGE_BYTES, false).unwrap();
        assert!(read(&disk, 2) == [0; PAGE]);
        disk.cache().check();
    }

    #[test]
    fn the_last_bytes_of_the_largest_disk_are_as_all_others() {
        let disk = disk(DISK_MOST_BYTES, 1 << 40);
        let at = DISK_MOST_BYTES - 100;
        disk.write(at, &[7; 100]).unwrap();
        let mut bytes = [0; 200];
        disk.read(at - 100, &mut bytes).unwrap();
        assert!(bytes[..100] == [0; 100] && bytes[100..] == [7; 100]);
        let extent = disk.extent(at, DISK_MOST_BYTES);
        assert_eq!(extent, Extent { bytes: 100, is_hole: false, is_zero: false });
        disk.zero(at + 50, 50, false).unwrap();
        disk.trim(at - MIB, MIB + 50).unwrap();
        disk.read(at - 100, &mut bytes).unwrap();
        assert!(bytes[100..150] == [7; 50] && bytes[150..] == [0; 50], "a part is not trimmed");
        disk.reset();
        assert_eq!(disk.cache().counters().stored_pages, 0);
    }
}
