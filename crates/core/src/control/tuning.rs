//! How the processes of a run compress, as `uzswap run` begins and as a user changes it while they
//! run (`uzswap set`).
//!
//! ```text
//!   uzswap run, its server                       each process's evictor
//!   set: the values, then changes + 1 ────────>  at each tick: changed? follow
//! ```
//!
//! Processes begin by their sealed settings. The values here are in the shared block, so anybody in
//! the tree may write them, and they decide nothing but how densely others compress. Where one of
//! them means nothing, processes go on as before.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::codec::CodecSpec;
use crate::pool::PoolKind;

/// How pages are compressed, and where they lie then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Compression {
    /// The compressor for pages that come in; none: the best for the program is found (auto).
    pub compressor: Option<CodecSpec>,
    /// The compressor for idle pages; none: they stay as they are.
    pub recompressor: Option<CodecSpec>,
    /// The pool for pages that come in from now on.
    pub pool: PoolKind,
    /// The pool's share of the memory, in percent; 0: it adapts.
    pub pool_percent: u32,
    /// A full pool takes nothing until it is below this part of its size, in percent.
    pub accept_threshold_percent: u32,
}

/// The values in the block. All-zero: none were set.
#[repr(C)]
pub struct Tuning {
    /// How often they were set.
    changes: AtomicU32,
    /// The word of a codec, or of none.
    compressor: AtomicU32,
    recompressor: AtomicU32,
    /// The place of the kind in [`PoolKind::ALL`].
    pool: AtomicU32,
    pool_percent: AtomicU32,
    accept_threshold_percent: AtomicU32,
}

impl Tuning {
    /// Sets the values. Of two writers at a time each value is that of one.
    pub fn set(&self, c: &Compression) {
        let pool = PoolKind::ALL.iter().position(|kind| *kind == c.pool).unwrap_or(0);
        for (place, value) in [
            (&self.compressor, CodecSpec::option_to_word(c.compressor)),
            (&self.recompressor, CodecSpec::option_to_word(c.recompressor)),
            (&self.pool, pool as u32),
            (&self.pool_percent, c.pool_percent),
            (&self.accept_threshold_percent, c.accept_threshold_percent),
        ] {
            place.store(value, Ordering::Relaxed);
        }
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// How often the values were set, to be asked before they are read.
    pub fn changes(&self) -> u32 {
        self.changes.load(Ordering::Acquire)
    }

    /// The values; none: they were never set, or mean nothing. A change at the same moment may
    /// have come through in part, and counts as one more.
    pub fn get(&self) -> Option<Compression> {
        if self.changes() == 0 {
            return None;
        }
        let codec = |place: &AtomicU32| CodecSpec::option_from_word(place.load(Ordering::Relaxed));
        let percent = |place: &AtomicU32| place.load(Ordering::Relaxed).min(100);
        Some(Compression {
            compressor: codec(&self.compressor)?,
            recompressor: codec(&self.recompressor)?,
            pool: *PoolKind::ALL.get(self.pool.load(Ordering::Relaxed) as usize)?,
            pool_percent: percent(&self.pool_percent),
            accept_threshold_percent: percent(&self.accept_threshold_percent),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::zeroed_tree as tree;

    fn codec(name: &str) -> Option<CodecSpec> {
        Some(CodecSpec::parse(name).unwrap())
    }

    #[test]
    fn what_was_set_is_read() {
        let t = tree();
        assert_eq!((t.tuning.changes(), t.tuning.get()), (0, None));
        let first = Compression {
            compressor: None,
            recompressor: codec("zstd:level=-1"),
            pool: PoolKind::Zsmalloc,
            pool_percent: 0,
            accept_threshold_percent: 90,
        };
        let second = Compression {
            compressor: codec("lz4"),
            recompressor: None,
            pool: PoolKind::Zbud,
            pool_percent: 40,
            accept_threshold_percent: 100,
        };
        for (changes, c) in [(1, first), (2, second)] {
            t.tuning.set(&c);
            assert_eq!((t.tuning.changes(), t.tuning.get()), (changes, Some(c)));
        }
    }

    #[test]
    fn scribble_means_nothing() {
        let t = tree();
        t.tuning.changes.store(1, Ordering::Relaxed);
        t.tuning.pool_percent.store(u32::MAX, Ordering::Relaxed);
        assert_eq!(t.tuning.get().map(|c| c.pool_percent), Some(100));
        for place in [&t.tuning.compressor, &t.tuning.recompressor, &t.tuning.pool] {
            place.store(u32::MAX, Ordering::Relaxed);
            assert_eq!(t.tuning.get(), None);
            place.store(0, Ordering::Relaxed);
        }
        assert!(t.tuning.get().is_some());
    }
}
