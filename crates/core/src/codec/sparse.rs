//! Pages that are one machine word repeated, but for a few words: memory that was reserved and
//! hardly used, tables with a header, pages that are written once in each. Looking for the few is
//! four times cheaper than any codec, and putting them back costs as much as filling the page.
//!
//! ```text
//!   | word that is repeated: 8 bytes | index: 2 | word: 8 | index: 2 | word: 8 | ...
//! ```

use crate::sys::{PAGE_SIZE, simd};

const WORD_BYTES: usize = 8;
const OTHER_BYTES: usize = 2 + WORD_BYTES;
const LINE_WORDS: usize = 8;
/// Words that may differ, at most: with more of them a codec makes less of the page.
const OTHERS_MAX: usize = 8;

/// Writes `page` to the start of `dst`, if it is such a page. Returns the length of what was
/// written.
#[inline]
pub fn compress(page: &[u8; PAGE_SIZE], dst: &mut [u8]) -> Option<usize> {
    let (words, _) = page.as_chunks::<WORD_BYTES>();
    // Two of three words far apart have to be alike: else the page is not worth the search.
    let [a, b, c] = [1, 2, 3].map(|quarter| words[words.len() * quarter / 4 - 1]);
    let repeated = if a == b || a == c { a } else { (b == c).then_some(b)? };
    let mut lines = simd::other_lines(page, u64::from_ne_bytes(repeated));
    if lines.count_ones() as usize > OTHERS_MAX {
        return None;
    }
    let mut len = WORD_BYTES;
    dst.get_mut(..len)?.copy_from_slice(&repeated);
    while lines != 0 {
        let first = lines.trailing_zeros() as usize * LINE_WORDS;
        lines &= lines - 1;
        for (i, word) in
            words[first..][..LINE_WORDS].iter().enumerate().filter(|(_, word)| **word != repeated)
        {
            if len == WORD_BYTES + OTHERS_MAX * OTHER_BYTES {
                return None;
            }
            let other = dst.get_mut(len..len + OTHER_BYTES)?;
            other[..2].copy_from_slice(&((first + i) as u16).to_le_bytes());
            other[2..].copy_from_slice(word);
            len += OTHER_BYTES;
        }
    }
    Some(len)
}

/// Restores a page from the bytes that `compress` wrote. `None`: it did not write them.
#[inline]
pub fn decompress(src: &[u8], dst: &mut [u8]) -> Option<usize> {
    let (repeated, others) = src.split_first_chunk::<WORD_BYTES>()?;
    let (others, rest) = others.as_chunks::<OTHER_BYTES>();
    let page: &mut [u8; PAGE_SIZE] = dst.try_into().ok()?;
    if !rest.is_empty() {
        return None;
    }
    simd::fill(page, u64::from_ne_bytes(*repeated));
    let (words, _) = page.as_chunks_mut::<WORD_BYTES>();
    for other in others {
        let index = u16::from_le_bytes([other[0], other[1]]);
        words.get_mut(usize::from(index))?.copy_from_slice(&other[2..]);
    }
    Some(PAGE_SIZE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(fill: u64, others: &[(usize, u64)]) -> [u8; PAGE_SIZE] {
        let mut words = vec![fill; 512];
        for (i, word) in others {
            words[*i] = *word;
        }
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        bytes.try_into().unwrap()
    }

    #[test]
    fn few_other_words_come_back() {
        let mut out = [0; 200];
        // Not at the places that tell the repeated word.
        let places = [0, 1, 126, 128, 254, 256, 384, 511];
        for n in 0..=8 {
            for fill in [0, 7, u64::MAX] {
                let others: Vec<_> = places[..n].iter().map(|i| (*i, *i as u64 + 1)).collect();
                let page = page(fill, &others);
                let len = compress(&page, &mut out)
                    .unwrap_or_else(|| panic!("{n} words beside {fill:x}"));
                let mut back = vec![0x55; 4096];
                assert_eq!(decompress(&out[..len], &mut back), Some(4096));
                assert_eq!(back, page);
                assert!(len <= 8 + 10 * n);
                assert_eq!(compress(&page, &mut out[..len - 1]), None, "no room");
            }
        }
    }

    #[test]
    fn what_a_codec_does_better_is_left_to_it() {
        let mut out = [0; 200];
        let many: Vec<_> = (0..9).map(|i| (i * 50 + 3, 1)).collect();
        assert_eq!(compress(&page(0, &many), &mut out), None);
        let text = core::array::from_fn(|i| ((i * i) >> 7) as u8);
        assert_eq!(compress(&text, &mut out), None);
    }

    #[test]
    fn wrong_bytes_are_noticed_or_stay_inside() {
        let mut out = [0; 200];
        let len = compress(&page(3, &[(5, 1), (511, 2)]), &mut out).unwrap();
        let mut back = vec![0; 4096];
        for cut in 0..len {
            let whole = cut >= 8 && (cut - 8).is_multiple_of(10);
            assert_eq!(decompress(&out[..cut], &mut back).is_some(), whole, "{cut}");
        }
        out[8..10].copy_from_slice(&512u16.to_le_bytes());
        assert_eq!(decompress(&out[..len], &mut back), None);
        assert_eq!(decompress(&out[..8], &mut back[..4093]), None);
    }
}
