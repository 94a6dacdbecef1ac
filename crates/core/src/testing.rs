//! Tools of tests and fuzzers: sources of choices, pages and objects, and the naive models that are
//! run beside the real thing. In the crate's own tests, and for `fuzz/` with the feature `testing`;
//! never in the product.
//!
//! A model makes its events out of [`Choices`]: random numbers, so that a failure is named by its
//! seed, or a fuzzer's bytes, so that it can look for the rare ones. When those have run out, so
//! has the run.

pub use crate::cache::model as cache;
pub use crate::pager::model as pager;
pub use crate::pool::model as pool;
pub use crate::store::cluster::model as clusters;

use crate::sys::PAGE_SIZE;

/// The source of a model's decisions.
pub trait Choices {
    /// Any number.
    fn next(&mut self) -> u64;

    /// Whether there are none left; `next` answers 0 then.
    fn is_over(&self) -> bool {
        false
    }

    /// A number below `n`.
    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }

    /// A place below `n`.
    fn index(&mut self, n: usize) -> usize {
        self.below(n as u64) as usize
    }
}

/// A small generator of numbers that can be named by its seed (xorshift64*). Never over.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(0x1234_5678_9abc_def1))
    }
}

impl Choices for Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
}

/// The bytes of a fuzzer: one for a choice of few, two for any other.
pub struct Bytes<'a>(pub &'a [u8]);

impl Bytes<'_> {
    fn take(&mut self) -> u64 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        u64::from(*first)
    }
}

impl Choices for Bytes<'_> {
    fn next(&mut self) -> u64 {
        self.take() << 8 | self.take()
    }

    fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    fn below(&mut self, n: u64) -> u64 {
        if n <= 256 { self.take() % n } else { self.next() % n }
    }
}

type Page = [u8; PAGE_SIZE];

fn xorshift(tag: u64) -> impl FnMut() -> u64 {
    let mut x = tag.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    move || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    }
}

/// A page that names its tag: compressible to about half, different for every tag.
pub fn page(tag: u64) -> Page {
    let mut p = [0u8; PAGE_SIZE];
    let mut x = xorshift(tag);
    for (i, word) in p.chunks_exact_mut(8).enumerate() {
        let x = x();
        let w = if i % 3 == 0 { x } else { tag };
        word.copy_from_slice(&w.to_le_bytes());
    }
    p
}

/// A page that resembles others of its kind, as the pages of a heap do: pieces that all of them are
/// made of, in its own order.
pub fn kin(tag: u64) -> Page {
    const PIECE_BYTES: usize = 128;
    const PIECES: u64 = 24;
    let mut p = [0u8; PAGE_SIZE];
    let mut order = xorshift(tag);
    for piece in p.chunks_exact_mut(PIECE_BYTES) {
        let mut x = xorshift((1 << 40) + (order() >> 32) % PIECES);
        for word in piece.chunks_exact_mut(8) {
            word.copy_from_slice(&x().wrapping_mul(0x2545_F491_4F6C_DD1D).to_le_bytes());
        }
    }
    p[..8].copy_from_slice(&tag.to_le_bytes());
    p
}

/// A page that no codec makes smaller.
pub fn noise(tag: u64) -> Page {
    let mut p = [0u8; PAGE_SIZE];
    let mut x = xorshift(tag);
    for word in p.chunks_exact_mut(8) {
        word.copy_from_slice(&x().wrapping_mul(0x2545_F491_4F6C_DD1D).to_le_bytes());
    }
    p
}

/// Any kind of page, the same for the same tag.
pub fn any_page(tag: u64) -> Page {
    match tag % 16 {
        0 | 1 => [(tag / 16) as u8; PAGE_SIZE],
        2 | 3 => noise(tag),
        4..=7 => {
            // Very compressible.
            let mut p = [7; PAGE_SIZE];
            p[64..72].copy_from_slice(&tag.to_le_bytes());
            p
        }
        8..=11 => page(tag),
        _ => kin(tag),
    }
}

/// The bytes of an object that is named by a number.
pub fn object(id: u64, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = Vec::with_capacity(len + PAGE_SIZE);
    let mut part = id;
    while bytes.len() < len {
        bytes.extend_from_slice(&noise(part));
        part = part.wrapping_add(1 << 32);
    }
    bytes.truncate(len);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_used_up() {
        let mut choices = Bytes(&[7, 1, 2, 3]);
        assert_eq!(choices.below(10), 7);
        assert_eq!(choices.below(1000), 258);
        assert!(!choices.is_over());
        assert_eq!(choices.next(), 3 << 8);
        assert!(choices.is_over());
        assert_eq!(choices.next(), 0);
    }

    #[test]
    fn objects_of_different_numbers_differ() {
        assert_eq!(object(1, 10_000).len(), 10_000);
        assert_eq!(object(1, 5000)[..4096], object(1, 4096));
        assert_ne!(object(1, 64), object(2, 64));
    }
}
