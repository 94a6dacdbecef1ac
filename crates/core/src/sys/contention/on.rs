//! The counts of a library that is built for them (feature `contention`).
//!
//! A block belongs to the threads whose ids have one remainder, so two threads seldom share one,
//! and then both still count. Blocks are static memory without contents at first: those that no
//! thread uses take none.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{BUCKETS, Class, Half, SUMS, Slow, WORDS, bucket, class_at};
use crate::sys::sync::me;
use crate::sys::{PAGE_SHIFT, PAGE_SIZE, tsc};

/// Blocks: more than there are threads in a measurement, so that few threads meet in one.
const BLOCKS: usize = 128;
/// Pages whose claims have a beginning of their own: 256 MiB, the heap of a measurement in one
/// piece.
const BEGINNINGS: usize = 1 << 16;

struct Sums {
    /// As [`super::Counts`] has them.
    sums: [AtomicU64; SUMS],
    holds: [AtomicU32; BUCKETS],
}

struct Block {
    faults: AtomicU64,
    /// The [`Half`] to which the thread's present work belongs.
    half: AtomicU32,
    /// The things that the thread holds now: a bit for each class.
    holds: AtomicU32,
    classes: [[Sums; Class::ALL.len()]; Half::ALL.len()],
}

impl Sums {
    const fn new() -> Sums {
        Sums {
            sums: [const { AtomicU64::new(0) }; SUMS],
            holds: [const { AtomicU32::new(0) }; BUCKETS],
        }
    }
}

impl Block {
    const fn new() -> Block {
        Block {
            faults: AtomicU64::new(0),
            // Zero, so that the whole is memory without contents.
            half: AtomicU32::new(OUTSIDE),
            holds: AtomicU32::new(0),
            classes: [const { [const { Sums::new() }; Class::ALL.len()] }; Half::ALL.len()],
        }
    }
}

/// Values of [`Block::half`].
const OUTSIDE: u32 = 0;
const IN_FAULT: u32 = 1;

static COUNTED: [Block; BLOCKS] = [const { Block::new() }; BLOCKS];

/// When pages were claimed, by their numbers.
static BEGAN: [AtomicU64; BEGINNINGS] = [const { AtomicU64::new(0) }; BEGINNINGS];

fn block(thread: u32) -> &'static Block {
    &COUNTED[thread as usize % BLOCKS]
}

/// The counter, or 0 where the program forbids the instruction.
#[inline]
fn now() -> u64 {
    if tsc::is_allowed() { tsc::now() } else { 0 }
}

impl Block {
    fn sums(&self, class: Class) -> &Sums {
        let is_in_fault = self.half.load(Ordering::Relaxed) == IN_FAULT;
        let half = if is_in_fault { Half::InFault } else { Half::Outside };
        &self.classes[half as usize][class as usize]
    }

    fn add(&self, class: Class, sum: usize, n: u64) {
        self.sums(class).sums[sum].fetch_add(n, Ordering::Relaxed);
    }

    fn count_wait(&self, class: Class, waits: Waits, until: u64) {
        if waits.0 != 0 {
            self.add(class, 1, 1);
            // The thread may have come to a processor whose counter is a little behind.
            self.add(class, 2, until.saturating_sub(waits.0));
        }
    }

    fn count_hold(&self, class: Class, ticks: u64) {
        self.add(class, 0, 1);
        self.add(class, 3, ticks);
        self.sums(class).holds[bucket(ticks)].fetch_add(1, Ordering::Relaxed);
    }
}

/// A lock's record for being counted. Written by its holder.
pub struct Meter {
    class: Class,
    holder: AtomicU32,
    since: AtomicU64,
    /// The wait before, in ticks.
    waits: AtomicU64,
}

/// When a wait began; 0: there is none.
#[derive(Clone, Copy)]
pub struct Waits(u64);

impl Waits {
    pub const NONE: Waits = Waits(0);

    pub fn begin() -> Waits {
        Waits(now())
    }
}

/// A hold that has ended.
pub struct Hold {
    class: Class,
    holder: u32,
    since: u64,
    until: u64,
    waits: Waits,
}

impl Meter {
    pub const fn new(class: Class) -> Meter {
        Meter {
            class,
            holder: AtomicU32::new(0),
            since: AtomicU64::new(0),
            waits: AtomicU64::new(0),
        }
    }

    /// The thread `me` has the lock from now on.
    #[inline]
    pub fn taken(&self, me: u32, waits: Waits) {
        block(me).holds.fetch_or(1 << self.class as u32, Ordering::Relaxed);
        self.holder.store(me, Ordering::Relaxed);
        self.waits.store(waits.0, Ordering::Relaxed);
        self.since.store(now(), Ordering::Relaxed);
    }

    /// The holder is about to let the lock go, and counts the hold afterwards.
    #[inline]
    pub fn ends(&self) -> Hold {
        let hold = Hold {
            class: self.class,
            holder: self.holder.load(Ordering::Relaxed),
            since: self.since.load(Ordering::Relaxed),
            waits: Waits(self.waits.load(Ordering::Relaxed)),
            until: now(),
        };
        block(hold.holder).holds.fetch_and(!(1 << self.class as u32), Ordering::Relaxed);
        hold
    }
}

/// This thread holds from now on a thing that is no [`Mutex`](crate::sys::sync::Mutex).
pub fn hold_begins(class: Class, waits: Waits) -> Meter {
    let meter = Meter::new(class);
    meter.taken(me(), waits);
    meter
}

impl Hold {
    pub fn count(self) {
        let block = block(self.holder);
        block.count_wait(self.class, self.waits, self.since);
        block.count_hold(self.class, self.until.saturating_sub(self.since));
    }
}

/// Pages are claimed, under the pager's lock.
pub fn claim_begins(page: usize, pages: usize) {
    let now = now();
    for i in 0..pages {
        began(page + i * PAGE_SIZE).store(now, Ordering::Relaxed);
    }
}

/// Pages that were claimed together, from `page` on, are claimed no more.
pub fn claim_ends(page: usize) {
    let since = began(page).load(Ordering::Relaxed);
    block(me()).count_hold(Class::Claim, now().saturating_sub(since));
}

/// The wait for some claim's end is over.
pub fn claim_waited(waits: Waits) {
    block(me()).count_wait(Class::Claim, waits, now());
}

fn began(page: usize) -> &'static AtomicU64 {
    &BEGAN[(page >> PAGE_SHIFT) % BEGINNINGS]
}

/// A mark: the calling thread serves a fault while it is there.
pub struct InFault(&'static Block);

pub fn fault_begins() -> InFault {
    let block = block(me());
    block.faults.fetch_add(1, Ordering::Relaxed);
    block.half.store(IN_FAULT, Ordering::Relaxed);
    InFault(block)
}

impl Drop for InFault {
    fn drop(&mut self) {
        self.0.half.store(OUTSIDE, Ordering::Relaxed);
    }
}

/// Something slow begins: counted with all that the calling thread holds.
pub fn note(slow: Slow) {
    let block = block(me());
    let holds = block.holds.load(Ordering::Relaxed);
    if holds != 0 {
        for class in Class::ALL.into_iter().filter(|c| holds & 1 << *c as u32 != 0) {
            block.add(class, 4 + slow as usize, 1);
        }
    }
}

/// Adds the counts of all threads up in `words`.
pub fn read(words: &mut [u64; WORDS]) {
    words.fill(0);
    for block in &COUNTED {
        words[0] += block.faults.load(Ordering::Relaxed);
        for (half, class) in Half::ALL.into_iter().flat_map(|h| Class::ALL.map(|c| (h, c))) {
            let sums = &block.classes[half as usize][class as usize];
            let to = &mut words[class_at(half, class)..];
            for (to, from) in to.iter_mut().zip(&sums.sums) {
                *to += from.load(Ordering::Relaxed);
            }
            for (to, from) in to[SUMS..].iter_mut().zip(&sums.holds) {
                *to += u64::from(from.load(Ordering::Relaxed));
            }
        }
    }
}
