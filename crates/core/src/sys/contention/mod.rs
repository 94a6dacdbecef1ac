//! Contention: how long locks and claims are held and waited for.
//!
//! ```text
//!   thread   asks ....... taken ================ released          ticks of the time stamp counter
//!            |  waited  |  |       held        |
//!                          | a system call, a codec, a copy: counted if one happens here
//! ```
//!
//! Nothing of this is in the library that people use: [`Meter`] and the other marks are empty
//! there (`off.rs`). The feature `contention` puts `on.rs` in their place, in a library that
//! `uzswap bench contention` loads in the place of the other.
//!
//! Each thread counts for itself, in a block of `on.rs`, after it has let the lock go: counting
//! makes no hold longer but for one reading of the counter at each end. A reader asks for all
//! blocks at once, in words, as [`Counts`] has them: events in faults in one half, the rest (the
//! evictor's work, calls of the program) in the other.

#[cfg(not(feature = "contention"))]
mod off;
#[cfg(feature = "contention")]
mod on;

#[cfg(not(feature = "contention"))]
pub use off::{
    InFault, Meter, Waits, claim_begins, claim_ends, claim_waited, fault_begins, hold_begins, note,
};
#[cfg(feature = "contention")]
pub use on::{
    InFault, Meter, Waits, claim_begins, claim_ends, claim_waited, fault_begins, hold_begins, note,
    read,
};

/// The kinds of things that are held: locks, and claims.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Class {
    /// The pager's lock.
    Pager,
    /// The cache's entries, pool, clusters and counters.
    CacheState,
    /// The buffers of the cache's flushes.
    Writer,
    /// The I/O buffers of the cache's reads.
    Reader,
    /// The pages of groups that were decompressed.
    Unpacked,
    /// The recompressor's working memory.
    Packer,
    /// Working memory of the codecs, one for each processor.
    Stream,
    /// The links to the servers of a remote store.
    Link,
    /// Every other lock of the library.
    Other,
    /// Pages that change while nobody holds the pager's lock.
    Claim,
}

impl Class {
    pub const ALL: [Class; 10] = [
        Class::Pager,
        Class::CacheState,
        Class::Writer,
        Class::Reader,
        Class::Unpacked,
        Class::Packer,
        Class::Stream,
        Class::Link,
        Class::Other,
        Class::Claim,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Class::Pager => "pager",
            Class::CacheState => "cache state",
            Class::Writer => "store writer",
            Class::Reader => "readers",
            Class::Unpacked => "unpacked",
            Class::Packer => "packer",
            Class::Stream => "streams",
            Class::Link => "links",
            Class::Other => "other",
            Class::Claim => "claims",
        }
    }

    /// Whether a fault in another stretch could wait for it. Not for the packer, whose lock faults
    /// only try; not for a stream, of which each processor has one; not for a claim, which is of
    /// some pages.
    pub const fn is_serial(self) -> bool {
        !matches!(self, Class::Packer | Class::Stream | Class::Claim)
    }
}

/// Work that takes long, and should happen under no lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Slow {
    Call,
    Codec,
    /// Of the bytes of a compressed page.
    Copy,
}

impl Slow {
    pub const ALL: [Slow; 3] = [Slow::Call, Slow::Codec, Slow::Copy];
}

// ---------------------------------------------------------------- counts, as words

/// log2 of the buckets to a power of two: a quantile is right to an eighth.
const SUB_BITS: u32 = 3;
const SUBS: usize = 1 << SUB_BITS;
/// log2 of the longest time that has a bucket of its own, in ticks: some minutes.
const LAST_POWER: u32 = 39;
/// Buckets of times.
pub const BUCKETS: usize = ((LAST_POWER - SUB_BITS + 2) as usize) << SUB_BITS;

/// The bucket of a time. Times below [`SUBS`] have one each.
pub fn bucket(ticks: u64) -> usize {
    if ticks < SUBS as u64 {
        return ticks as usize;
    }
    let power = ticks.ilog2();
    if power > LAST_POWER {
        return BUCKETS - 1;
    }
    let sub = (ticks >> (power - SUB_BITS)) as usize & (SUBS - 1);
    (((power - SUB_BITS) as usize + 1) << SUB_BITS) + sub
}

/// The first time of a bucket, in ticks.
pub fn lower(bucket: usize) -> u64 {
    if bucket < SUBS {
        return bucket as u64;
    }
    let power = (bucket >> SUB_BITS) as u32 - 1;
    (SUBS as u64 + (bucket & (SUBS - 1)) as u64) << power
}

/// The sums before the buckets: acquisitions, waits, ticks waited, ticks held, and slow work by its
/// kind.
const SUMS: usize = 4 + Slow::ALL.len();
/// Words of one class.
const CLASS_WORDS: usize = SUMS + BUCKETS;
/// Words of one half.
const HALF_WORDS: usize = Class::ALL.len() * CLASS_WORDS;
/// Words of all counts: faults, and the halves.
pub const WORDS: usize = 1 + Half::ALL.len() * HALF_WORDS;

/// The first word of a class.
const fn class_at(half: Half, class: Class) -> usize {
    1 + half as usize * HALF_WORDS + class as usize * CLASS_WORDS
}

/// Counts of all threads between two readings, or since the start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counts(Vec<u64>);

/// One class of [`Counts`]: times in ticks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tally {
    pub acquired: u64,
    /// Acquisitions that had to wait.
    pub waits: u64,
    pub waited: u64,
    pub held: u64,
    /// By [`Slow`]: how often such work was done while the class was held.
    pub slow: [u64; Slow::ALL.len()],
    /// Holds, by bucket.
    pub holds: Vec<u64>,
}

/// The half of [`Counts`] to which a count belongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Half {
    InFault,
    Outside,
}

impl Half {
    pub const ALL: [Half; 2] = [Half::InFault, Half::Outside];
}

impl Counts {
    /// The counts that a library has written down; `None`: the number of words is wrong.
    pub fn of(words: Vec<u64>) -> Option<Counts> {
        (words.len() == WORDS).then_some(Counts(words))
    }

    /// The counts since `before`.
    pub fn since(&self, before: &Counts) -> Counts {
        Counts(self.0.iter().zip(&before.0).map(|(now, then)| now.wrapping_sub(*then)).collect())
    }

    /// Faults served.
    pub fn faults(&self) -> u64 {
        self.0[0]
    }

    pub fn tally(&self, half: Half, class: Class) -> Tally {
        let words = &self.0[class_at(half, class)..][..CLASS_WORDS];
        Tally {
            acquired: words[0],
            waits: words[1],
            waited: words[2],
            held: words[3],
            slow: core::array::from_fn(|i| words[4 + i]),
            holds: words[SUMS..].to_vec(),
        }
    }
}

impl Tally {
    /// Of all threads together.
    pub fn plus(mut self, other: &Tally) -> Tally {
        self.acquired += other.acquired;
        self.waits += other.waits;
        self.waited += other.waited;
        self.held += other.held;
        self.slow.iter_mut().zip(other.slow).for_each(|(to, from)| *to += from);
        self.holds.iter_mut().zip(&other.holds).for_each(|(to, from)| *to += from);
        self
    }

    /// The time that `share` of the holds did not exceed, in ticks: the end of its bucket. 0
    /// without holds.
    pub fn held_quantile(&self, share: f64) -> u64 {
        let all: u64 = self.holds.iter().sum();
        let wanted = ((all as f64 * share).ceil() as u64).clamp(1, all.max(1));
        let mut seen = 0;
        for (at, count) in self.holds.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return lower(at + 1) - 1;
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_a_partition() {
        for at in 0..BUCKETS - 1 {
            let (first, next) = (lower(at), lower(at + 1));
            assert_eq!((bucket(first), bucket(next - 1)), (at, at));
            assert!(at < SUBS || (next - first) * SUBS as u64 <= first, "{at}: too wide");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    /// Counts with what `set` writes into the words of a class.
    fn made_up(half: Half, class: Class, set: impl FnOnce(&mut [u64])) -> Counts {
        let mut words = vec![0; WORDS];
        set(&mut words[class_at(half, class)..][..CLASS_WORDS]);
        Counts::of(words).unwrap()
    }

    #[test]
    fn classes_and_halves_have_words_of_their_own() {
        let all = || Half::ALL.into_iter().flat_map(|half| Class::ALL.map(|class| (half, class)));
        for (half, class) in all() {
            let counts = made_up(half, class, |words| words.fill(7));
            for (h, c) in all() {
                let tally = counts.tally(h, c);
                let is_filled = tally.acquired == 7 && tally.holds.iter().all(|n| *n == 7);
                let is_empty = tally.acquired == 0 && tally.holds.iter().all(|n| *n == 0);
                assert_eq!((is_filled, !is_empty), ((h, c) == (half, class), is_filled));
            }
            assert_eq!(counts.faults(), 0);
        }
        assert_eq!(Counts::of(vec![0; WORDS - 1]), None);
    }

    #[test]
    fn a_difference_has_what_came_in_between() {
        let at = |n: u64| made_up(Half::Outside, Class::Pager, |words| words[3] = n);
        assert_eq!(at(9).since(&at(4)).tally(Half::Outside, Class::Pager).held, 5);
    }

    #[test]
    fn quantiles_are_ends_of_buckets_and_halves_add_up() {
        let of = |ticks: u64, times: u64| {
            made_up(Half::InFault, Class::Reader, |words| {
                words[..4].copy_from_slice(&[times, 1, 2, ticks * times]);
                words[SUMS + bucket(ticks)] = times;
            })
            .tally(Half::InFault, Class::Reader)
        };
        let both = of(100, 98).plus(&of(100_000, 2));
        assert_eq!((both.acquired, both.waits, both.waited, both.held), (100, 2, 4, 209_800));
        assert_eq!((both.held_quantile(0.5), both.held_quantile(0.98)), (103, 103));
        assert!((100_000..100_000 * 9 / 8).contains(&both.held_quantile(0.99)));
        assert_eq!(of(100, 0).held_quantile(0.99), 0);
    }
}
