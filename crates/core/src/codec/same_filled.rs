//! Pages that are one machine word repeated: the word is all there is to keep.
//!
//! Every stored page is looked at first, so a page of another kind must cost next to nothing: its
//! first, second and last word tell almost all of them. The rest is compared by vectors, half a KiB
//! between two decisions.

use crate::sys::simd;

const WORD_BYTES: usize = 8;
const PAGE_BYTES: usize = 4096;

#[inline(always)]
fn word(page: &[u8; PAGE_BYTES], index: usize) -> u64 {
    let (words, _) = page.as_chunks::<WORD_BYTES>();
    u64::from_ne_bytes(words[index])
}

/// The word that `page` repeats, if it does.
#[inline]
pub fn same_filled(page: &[u8; PAGE_BYTES]) -> Option<u64> {
    let first = word(page, 0);
    if word(page, 1) != first || word(page, PAGE_BYTES / WORD_BYTES - 1) != first {
        return None;
    }
    simd::is_filled(page, first).then_some(first)
}

/// Makes `page` repeat `word`.
#[inline]
pub fn fill(page: &mut [u8; PAGE_BYTES], word: u64) {
    simd::fill(page, word);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(word: u64) -> Box<[u8; PAGE_BYTES]> {
        let mut page = Box::new([0xa5; PAGE_BYTES]);
        fill(&mut page, word);
        page
    }

    #[test]
    fn finds_the_word_of_every_kind_of_fill() {
        for word in
            [0, 1, u64::MAX, 0x0102_0304_0506_0708, 0xff00_0000_0000_0000, 0x5555_5555_5555_5555]
        {
            let page = filled(word);
            assert!(page.chunks(8).all(|c| c == word.to_ne_bytes()));
            assert_eq!(same_filled(&page), Some(word));
        }
    }

    #[test]
    fn one_bit_anywhere_is_seen() {
        let mut page = filled(0x1122_3344_5566_7788);
        for at in 0..PAGE_BYTES {
            for bit in [0, 3, 7] {
                page[at] ^= 1 << bit;
                assert_eq!(same_filled(&page), None, "byte {at} bit {bit}");
                page[at] ^= 1 << bit;
            }
        }
        assert_eq!(same_filled(&page), Some(0x1122_3344_5566_7788));
    }

    #[test]
    fn a_pattern_longer_than_a_word_is_not_one() {
        for period in [16usize, 32, 64, 128, 256, 512, 1024, 2048] {
            let mut page = filled(7);
            for at in (0..PAGE_BYTES).step_by(period) {
                page[at + period / 2] ^= 1;
            }
            assert_eq!(same_filled(&page), None, "period {period}");
        }
    }
}
