//! The loops of `codec/words.rs` for the processor's vectors: a line of eight words at a time, with
//! AVX-512 (`avx512.rs`) or AVX2 (`avx2.rs`), or else one word after the other.
//!
//! # Safety charter
//! Functions compiled for CPU features are called after the features were found.
#![allow(unsafe_code)]

mod avx2;
mod avx512;
mod form;
mod plain;

use std::arch::is_x86_feature_detected;

pub use form::{BLOCK_LINES, Block, CODE_BYTES, HEAD_BYTES, LINE_BYTES, Lines, TABLES_BYTES};

use form::BLOCK_WORDS;

/// Distances of the words of a line from those a line before.
const ABOVE: u64 = 0x0001_0203_0405_0607;

/// Loops that a processor can have.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    Plain,
    Avx2,
    /// AVX-512, with VBMI2.
    Avx512,
}

/// A level that this processor has. No value is of another level: only [`loops`] makes them.
#[derive(Clone, Copy)]
pub struct Loops(Level);

/// The best that this processor has.
#[inline]
pub fn loops() -> Loops {
    let has_avx2 = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("popcnt");
    let has_avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512cd")
        && is_x86_feature_detected!("avx512vbmi2");
    Loops(match (has_avx2, has_avx512) {
        (false, _) => Level::Plain,
        (true, false) => Level::Avx2,
        (true, true) => Level::Avx512,
    })
}

impl Loops {
    pub fn level(self) -> Level {
        self.0
    }

    /// The loops of a lower level, or of this one.
    #[cfg(test)]
    pub fn at(self, level: Level) -> Option<Loops> {
        (level <= self.0).then_some(Loops(level))
    }

    /// Writes the literals of a block to the start of `literals`, and the rest to `found`. False:
    /// there is no room, or words make nothing of it.
    #[inline]
    pub fn compress(
        self,
        tables: &mut [u8; TABLES_BYTES],
        lines: &[[u8; LINE_BYTES]],
        literals: &mut [u8],
        found: &mut Lines,
    ) -> bool {
        assert!(lines.len() * LINE_BYTES <= BLOCK_WORDS * 8);
        // SAFETY: the features of the level were found, and there are no more lines than a block
        // has.
        unsafe {
            match self.0 {
                Level::Plain => compress_plainly(tables, lines, literals, found),
                Level::Avx2 => avx2::compress(tables, lines, literals, found),
                Level::Avx512 => avx512::compress(tables, lines, literals, found),
            }
        }
    }

    /// Restores the lines of a block. Says how many distances there were; `None`: that is no block.
    #[inline]
    pub fn decompress(self, block: &Block, lines: &mut [[u8; LINE_BYTES]]) -> Option<usize> {
        assert!(lines.len() * LINE_BYTES <= BLOCK_WORDS * 8);
        // SAFETY: as above.
        unsafe {
            match self.0 {
                Level::Plain => decompress_plainly(block, lines),
                Level::Avx2 => avx2::decompress(block, lines),
                Level::Avx512 => avx512::decompress(block, lines),
            }
        }
    }
}

/// The plain loops have a frame of their own, as the vector loops do: a caller that has another
/// codec to call does not have that much stack.
#[inline(never)]
fn compress_plainly(
    tables: &mut [u8; TABLES_BYTES],
    lines: &[[u8; LINE_BYTES]],
    literals: &mut [u8],
    found: &mut Lines,
) -> bool {
    plain::compress_lines(tables, lines, literals, found)
}

#[inline(never)]
fn decompress_plainly(block: &Block, lines: &mut [[u8; LINE_BYTES]]) -> Option<usize> {
    plain::decompress_lines(block, lines)
}
