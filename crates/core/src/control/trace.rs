//! Faults on their way out of the program: records, and the ring in shared memory through which
//! they go.
//!
//! ```text
//!   pagers of all processes ──push──> Ring (behind the tree in the control block) ──next──> `uzswap run` ──> FILE
//! ```
//!
//! The program writes no file: a process that is killed loses nothing that it has pushed, and has
//! no descriptor for the file that it would have to hide. Records of one process are in order,
//! since they are pushed under its pager's lock.
//!
//! A slot is valid when its *seal* fits its position and its words. A writer killed between taking
//! a slot and sealing it leaves a hole, which the reader skips after a while and counts as lost. A
//! full ring makes writers wait, since a trace with gaps is worth little; when nobody reads any
//! more they give up, count lost records, and do not wait again until the reader is back.
//!
//! While pages are watched (`pager/sampling.rs`) only touches of watched ones are recorded; the
//! reader asks which those are, too ([`is_watched`]).
//!
//! Nothing here is trusted: positions are taken modulo the slots, and a process that scribbles over
//! the ring spoils its own trace.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{CONTROL_BYTES, MAX_PROCESSES};
use crate::latency::FaultKind;
use crate::sys::PAGE_SIZE;

/// Where the ring lies in the memfd: behind the bytes by which slots are locked.
pub const RING_OFFSET: usize = (CONTROL_BYTES + MAX_PROCESSES).next_multiple_of(PAGE_SIZE);
/// Bytes of the ring, and of the memfd with it.
pub const RING_BYTES: usize = size_of::<Ring>().next_multiple_of(PAGE_SIZE);
pub const TRACED_BYTES: usize = RING_OFFSET + RING_BYTES;

/// Records that the ring holds.
pub const SLOTS: usize = 1 << 16;
/// How often a writer looks for room (2 s in all), and nanoseconds between two looks.
const WAITS_MAX: u32 = 20_000;
const WAIT_NS: u64 = 100_000;

/// The event of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// A fault: the pages had no contents yet.
    FirstTouch = 0,
    /// A fault: the pages were in limbo.
    LimboHit = 1,
    /// A fault: the pages came from the pool, or are one repeated word.
    PoolLoad = 2,
    /// A fault: the page, or one of those brought beside it, came from the store.
    StoreLoad = 3,
    /// Pages in front of the touched page, with which they came and whose record follows: the rest
    /// of a huge page, or of a unit.
    Around = 4,
    /// The pages were there when paging was switched on.
    Adopted = 5,
    /// The contents of the pages are not wanted any more: unmapped, or discarded.
    Discarded = 6,
    /// The pages move to the address of this process's next record.
    MovedFrom = 7,
    MovedTo = 8,
    /// The process is a child; `page` is the process id of its parent, whose pages it has.
    Forked = 9,
    /// The process runs a program from its start.
    Began = 10,
    /// The process ends.
    Ended = 11,
    /// Pages (in `page`) that all processes together had mapped or in limbo, at a moment when
    /// memory was short.
    InMemory = 12,
}

impl Kind {
    pub const ALL: [Kind; 13] = [
        Kind::FirstTouch,
        Kind::LimboHit,
        Kind::PoolLoad,
        Kind::StoreLoad,
        Kind::Around,
        Kind::Adopted,
        Kind::Discarded,
        Kind::MovedFrom,
        Kind::MovedTo,
        Kind::Forked,
        Kind::Began,
        Kind::Ended,
        Kind::InMemory,
    ];

    /// Whether the record is of `pages` pages from `page` on.
    pub const fn has_pages(self) -> bool {
        (self as u8) < Kind::Forked as u8
    }

    /// Whether the pages are in the program from then on, and were perhaps not before.
    pub const fn is_touch(self) -> bool {
        (self as u8) < Kind::Discarded as u8
    }
}

impl From<FaultKind> for Kind {
    fn from(kind: FaultKind) -> Kind {
        match kind {
            FaultKind::FirstTouch => Kind::FirstTouch,
            FaultKind::LimboHit => Kind::LimboHit,
            FaultKind::PoolLoad => Kind::PoolLoad,
            FaultKind::StoreLoad => Kind::StoreLoad,
        }
    }
}

/// One event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    pub kind: Kind,
    /// For a fault: the access was a write.
    pub is_write: bool,
    /// For a record that looks like a fault: a system call's buffer was brought in, the program has
    /// not faulted.
    pub is_held: bool,
    /// Page number: address / 4096.
    pub page: u64,
    pub pages: u32,
    pub pid: u32,
    /// Microseconds since the beginning of the trace.
    pub time_us: u64,
}

// Word 0 of a packed record: page, kind, write, held, pages. Word 1: time, process.
const PAGE_BITS: u32 = 36;
const KIND_SHIFT: u32 = PAGE_BITS;
const KIND_BITS: u32 = 4;
const WRITE_SHIFT: u32 = KIND_SHIFT + KIND_BITS;
const HELD_SHIFT: u32 = WRITE_SHIFT + 1;
const PAGES_SHIFT: u32 = HELD_SHIFT + 1;
const TIME_BITS: u32 = 40;

/// The most pages of one record.
pub const PAGES_MAX: u32 = (1 << (u64::BITS - PAGES_SHIFT)) - 1;

const fn low(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// log2 of the most pages of which one is watched.
pub const WATCH_LOG2_MAX: u32 = 20;

/// Whether a page, by its number, is one in 2^`log2`: by the finalizer of splitmix64, so that no
/// stride of a program is favoured.
pub fn is_watched(page: u64, log2: u32) -> bool {
    let mut z = page.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    (z ^ z >> 31) & ((1 << log2) - 1) == 0
}

impl Record {
    /// The record as two words. Time comes round after twelve days.
    pub fn pack(&self) -> [u64; 2] {
        let flags = (self.is_write as u64) << WRITE_SHIFT | (self.is_held as u64) << HELD_SHIFT;
        let pages = u64::from(self.pages.min(PAGES_MAX)) << PAGES_SHIFT;
        [
            self.page & low(PAGE_BITS) | (self.kind as u64) << KIND_SHIFT | flags | pages,
            self.time_us & low(TIME_BITS) | u64::from(self.pid) << TIME_BITS,
        ]
    }

    /// The record of two words; `None`: no record packs to them.
    pub fn unpack([first, second]: [u64; 2]) -> Option<Record> {
        let kind = *Kind::ALL.get((first >> KIND_SHIFT & low(KIND_BITS)) as usize)?;
        let (page, pages) = (first & low(PAGE_BITS), (first >> PAGES_SHIFT) as u32);
        let fits = !kind.has_pages() || pages > 0 && page + u64::from(pages) <= 1 << PAGE_BITS;
        fits.then_some(Record {
            kind,
            is_write: first >> WRITE_SHIFT & 1 != 0,
            is_held: first >> HELD_SHIFT & 1 != 0,
            page,
            pages,
            pid: (second >> TIME_BITS) as u32,
            time_us: second & low(TIME_BITS),
        })
    }
}

#[repr(C)]
struct RingSlot {
    words: [AtomicU64; 2],
    seal: AtomicU64,
}

/// A word on a cache line of its own.
#[repr(C, align(64))]
struct Apart(AtomicU64);

/// The ring: many writers, one reader. All-zero at first.
#[repr(C)]
pub struct Ring {
    /// Slots taken since the beginning, and of them those that the reader has passed.
    taken: Apart,
    passed: Apart,
    /// Records that found no room, or were not finished.
    lost: AtomicU64,
    /// When the trace began, by the monotonic clock.
    pub began_ns: AtomicU64,
    /// A writer has given up waiting; the reader takes it back.
    is_stalled: AtomicU32,
    /// Nobody will read any more.
    is_closed: AtomicU32,
    slots: [RingSlot; SLOTS],
}

/// The reader's find at the front of the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    Record([u64; 2]),
    Empty,
    /// The next slot is taken, but its record is not there (yet).
    Unfinished,
}

fn seal(position: u64, words: [u64; 2]) -> u64 {
    let mix =
        |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    mix(mix(mix(!0, position), words[0]), words[1])
}

impl Ring {
    fn slot(&self, position: u64) -> &RingSlot {
        &self.slots[position as usize % SLOTS]
    }

    /// Puts a record at the end, waiting for room if need be.
    pub fn push(&self, record: &Record) {
        let words = record.pack();
        let mut waits = 0;
        let position = loop {
            if self.is_closed.load(Ordering::Acquire) != 0 {
                return;
            }
            // `passed` is read first: slots passed by now were taken before, so `taken` is not
            // behind.
            let passed = self.passed.0.load(Ordering::Acquire);
            let taken = self.taken.0.load(Ordering::Acquire);
            if taken.wrapping_sub(passed) < SLOTS as u64 {
                let take = self.taken.0.compare_exchange(
                    taken,
                    taken.wrapping_add(1),
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                );
                match take {
                    Ok(position) => break position,
                    Err(_) => continue,
                }
            }
            if waits == WAITS_MAX {
                self.is_stalled.store(1, Ordering::Release);
            }
            if self.is_stalled.load(Ordering::Acquire) != 0 {
                self.lost.fetch_add(1, Ordering::AcqRel);
                return;
            }
            waits += 1;
            crate::sys::sleep_ns(WAIT_NS);
        };
        let slot = self.slot(position);
        for (to, word) in slot.words.iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
        slot.seal.store(seal(position, words), Ordering::Release);
    }

    /// The record at the front, which is taken away. For one reader.
    pub fn next(&self) -> Next {
        let taken = self.taken.0.load(Ordering::Acquire);
        let mut position = self.passed.0.load(Ordering::Relaxed);
        if position == taken {
            return Next::Empty;
        }
        // Writers never take more slots than there are: a process has scribbled. The reader does
        // not wait for records that are not there.
        if taken.wrapping_sub(position) > SLOTS as u64 {
            position = taken.wrapping_sub(SLOTS as u64);
            self.passed.0.store(position, Ordering::Release);
        }
        let slot = self.slot(position);
        let sealed = slot.seal.load(Ordering::Acquire);
        let words = [0, 1].map(|i| slot.words[i].load(Ordering::Relaxed));
        if sealed != seal(position, words) {
            return Next::Unfinished;
        }
        self.pass(position);
        Next::Record(words)
    }

    /// Gives up the unfinished record at the front.
    pub fn skip(&self) {
        self.lost.fetch_add(1, Ordering::AcqRel);
        self.pass(self.passed.0.load(Ordering::Relaxed));
    }

    fn pass(&self, position: u64) {
        self.passed.0.store(position.wrapping_add(1), Ordering::Release);
        self.is_stalled.store(0, Ordering::Release);
    }

    /// From now on nothing is recorded.
    pub fn close(&self) {
        self.is_closed.store(1, Ordering::Release);
    }

    /// Records that found no room, or were not finished.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Acquire)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::sync::Arc;

    pub(crate) fn ring() -> Arc<Ring> {
        // An all-zero Ring is valid: it consists of atomics.
        #[allow(unsafe_code)]
        // SAFETY: allocated zeroed; zero is valid for atomics.
        unsafe {
            Arc::<Ring>::new_zeroed().assume_init()
        }
    }

    fn record(page: u64, pid: u32) -> Record {
        Record {
            kind: Kind::PoolLoad,
            is_write: true,
            is_held: false,
            page,
            pages: 3,
            pid,
            time_us: 77,
        }
    }

    #[test]
    fn records_survive_packing() {
        for (i, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, i);
            let whole = Record {
                kind,
                is_write: i % 2 == 0,
                is_held: i % 3 == 0,
                page: (1 << 35) + i as u64,
                pages: PAGES_MAX - i as u32,
                pid: (1 << 24) - 1,
                time_us: (1 << 40) - 1,
            };
            assert_eq!(Record::unpack(whole.pack()), Some(whole));
        }
        assert_eq!(Record::unpack([13 << KIND_SHIFT, 0]), None, "no such kind");
        assert_eq!(Record::unpack([5, 0]), None, "a fault of no page");
        let far = Record { page: (1 << 36) - 1, ..record(0, 1) };
        assert_eq!(Record::unpack(far.pack()), None, "pages behind the last");
    }

    #[test]
    fn what_is_pushed_by_many_comes_out_in_each_ones_order() {
        const EACH: u64 = 40_000;
        let ring = ring();
        let writers: Vec<_> = (1..=4)
            .map(|pid| {
                let ring = ring.clone();
                std::thread::spawn(move || (0..EACH).for_each(|n| ring.push(&record(n, pid))))
            })
            .collect();
        let mut seen = [0u64; 5];
        while seen.iter().sum::<u64>() < 4 * EACH {
            match ring.next() {
                Next::Record(words) => {
                    let r = Record::unpack(words).unwrap();
                    assert_eq!(r, record(seen[r.pid as usize], r.pid));
                    seen[r.pid as usize] += 1;
                }
                _ => std::thread::yield_now(),
            }
        }
        writers.into_iter().for_each(|w| w.join().unwrap());
        assert_eq!((ring.next(), ring.lost()), (Next::Empty, 0));
    }

    #[test]
    fn a_hole_is_skipped_and_counted_and_a_closed_ring_takes_nothing() {
        let ring = ring();
        ring.push(&record(1, 1));
        // A writer is killed here.
        ring.taken.0.fetch_add(1, Ordering::Relaxed);
        ring.push(&record(2, 2));
        assert!(matches!(ring.next(), Next::Record(_)));
        assert_eq!(ring.next(), Next::Unfinished);
        ring.skip();
        assert_eq!(ring.next(), Next::Record(record(2, 2).pack()));
        assert_eq!(ring.lost(), 1);
        ring.close();
        ring.push(&record(3, 3));
        assert_eq!((ring.next(), ring.lost()), (Next::Empty, 1));
    }

    #[test]
    fn a_full_ring_that_nobody_reads_loses_records_and_says_how_many() {
        let ring = ring();
        (0..SLOTS as u64).for_each(|n| ring.push(&record(n, 1)));
        ring.is_stalled.store(1, Ordering::Relaxed);
        ring.push(&record(0, 1));
        assert_eq!(ring.lost(), 1);
        assert!(matches!(ring.next(), Next::Record(_)));
        ring.push(&record(SLOTS as u64, 1));
        assert_eq!(ring.lost(), 1, "there is room again");
    }
}
