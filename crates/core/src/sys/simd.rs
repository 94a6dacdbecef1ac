//! Vector loops over one page: whether it is filled with one word, where it is not, and filling it
//! with one.
//!
//! The plain loops are what the compiler makes of them for any x86-64 (SSE2); the AVX2 and AVX-512
//! ones are chosen at run time. Callers run with the program's vector state saved, or in a signal
//! handler, where the kernel has.
//!
//! # Safety charter
//! Two arguments only: a function compiled for a CPU feature is called after the feature was found,
//! and pointers stay inside the array that they come from, whose length is in the type.
#![allow(unsafe_code)]

use core::arch::x86_64::*;
use std::arch::is_x86_feature_detected;

const PAGE_BYTES: usize = super::PAGE_SIZE;

/// Whether `page` is `word` repeated.
#[inline]
pub fn is_filled(page: &[u8; PAGE_BYTES], word: u64) -> bool {
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the feature was found.
        unsafe { is_filled_avx512(page, word) }
    } else if is_x86_feature_detected!("avx2") {
        // SAFETY: the feature was found.
        unsafe { is_filled_avx2(page, word) }
    } else {
        is_filled_plain(page, word)
    }
}

/// The lines of 64 bytes of `page` that are not `word` repeated: one bit each.
#[inline]
pub fn other_lines(page: &[u8; PAGE_BYTES], word: u64) -> u64 {
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the feature was found.
        unsafe { other_lines_avx512(page, word) }
    } else if is_x86_feature_detected!("avx2") {
        // SAFETY: the feature was found.
        unsafe { other_lines_avx2(page, word) }
    } else {
        other_lines_plain(page, word)
    }
}

/// Fills `page` with `word`.
#[inline]
pub fn fill(page: &mut [u8; PAGE_BYTES], word: u64) {
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the feature was found.
        unsafe { fill_avx512(page, word) }
    } else if is_x86_feature_detected!("avx2") {
        // SAFETY: the feature was found.
        unsafe { fill_avx2(page, word) }
    } else {
        fill_plain(page, word)
    }
}

fn is_filled_plain(page: &[u8; PAGE_BYTES], word: u64) -> bool {
    let (words, _) = page.as_chunks::<8>();
    words.chunks_exact(16).all(|chunk| {
        chunk.iter().fold(0, |difference, w| difference | (u64::from_ne_bytes(*w) ^ word)) == 0
    })
}

fn fill_plain(page: &mut [u8; PAGE_BYTES], word: u64) {
    let (words, _) = page.as_chunks_mut::<8>();
    words.fill(word.to_ne_bytes());
}

fn other_lines_plain(page: &[u8; PAGE_BYTES], word: u64) -> u64 {
    let (words, _) = page.as_chunks::<8>();
    let (lines, _) = words.as_chunks::<8>();
    lines.iter().enumerate().fold(0, |others, (i, line)| {
        let difference = line.iter().fold(0, |d, w| d | (u64::from_ne_bytes(*w) ^ word));
        others | u64::from(difference != 0) << i
    })
}

#[target_feature(enable = "avx2")]
fn other_lines_avx2(page: &[u8; PAGE_BYTES], word: u64) -> u64 {
    let pattern = _mm256_set1_epi64x(word as i64);
    let (lines, _) = page.as_chunks::<64>();
    let mut others = 0;
    for (i, line) in lines.iter().enumerate() {
        // SAFETY: the line has the 64 bytes of the two loads, which need no alignment.
        let (a, b) = unsafe {
            (
                _mm256_loadu_si256(line.as_ptr().cast()),
                _mm256_loadu_si256(line.as_ptr().add(32).cast()),
            )
        };
        let d = _mm256_or_si256(_mm256_xor_si256(a, pattern), _mm256_xor_si256(b, pattern));
        others |= u64::from(_mm256_testz_si256(d, d) == 0) << i;
    }
    others
}

#[target_feature(enable = "avx512f")]
fn other_lines_avx512(page: &[u8; PAGE_BYTES], word: u64) -> u64 {
    let pattern = _mm512_set1_epi64(word as i64);
    let (lines, _) = page.as_chunks::<64>();
    let mut others = 0;
    for (i, line) in lines.iter().enumerate() {
        // SAFETY: the line has the 64 bytes of the load, which needs no alignment.
        let v = unsafe { _mm512_loadu_si512(line.as_ptr().cast()) };
        others |= u64::from(_mm512_cmpneq_epi64_mask(v, pattern) != 0) << i;
    }
    others
}

#[target_feature(enable = "avx2")]
fn is_filled_avx2(page: &[u8; PAGE_BYTES], word: u64) -> bool {
    let pattern = _mm256_set1_epi64x(word as i64);
    let (chunks, _) = page.as_chunks::<256>();
    for chunk in chunks {
        let mut difference = _mm256_setzero_si256();
        for at in (0..256).step_by(32) {
            // SAFETY: at + 32 <= 256, the length of the chunk; the load needs no alignment.
            let v = unsafe { _mm256_loadu_si256(chunk.as_ptr().add(at).cast()) };
            difference = _mm256_or_si256(difference, _mm256_xor_si256(v, pattern));
        }
        if _mm256_testz_si256(difference, difference) == 0 {
            return false;
        }
    }
    true
}

#[target_feature(enable = "avx512f")]
fn is_filled_avx512(page: &[u8; PAGE_BYTES], word: u64) -> bool {
    let pattern = _mm512_set1_epi64(word as i64);
    let (chunks, _) = page.as_chunks::<512>();
    for chunk in chunks {
        let mut difference = _mm512_setzero_si512();
        for at in (0..512).step_by(64) {
            // SAFETY: at + 64 <= 512, the length of the chunk; the load needs no alignment.
            let v = unsafe { _mm512_loadu_si512(chunk.as_ptr().add(at).cast()) };
            difference = _mm512_or_si512(difference, _mm512_xor_si512(v, pattern));
        }
        if _mm512_test_epi64_mask(difference, difference) != 0 {
            return false;
        }
    }
    true
}

#[target_feature(enable = "avx2")]
fn fill_avx2(page: &mut [u8; PAGE_BYTES], word: u64) {
    let pattern = _mm256_set1_epi64x(word as i64);
    let (chunks, _) = page.as_chunks_mut::<32>();
    for chunk in chunks {
        // SAFETY: the chunk has the 32 bytes of the store, which needs no alignment.
        unsafe { _mm256_storeu_si256(chunk.as_mut_ptr().cast(), pattern) };
    }
}

#[target_feature(enable = "avx512f")]
fn fill_avx512(page: &mut [u8; PAGE_BYTES], word: u64) {
    let pattern = _mm512_set1_epi64(word as i64);
    let (chunks, _) = page.as_chunks_mut::<64>();
    for chunk in chunks {
        // SAFETY: the chunk has the 64 bytes of the store, which needs no alignment.
        unsafe { _mm512_storeu_si512(chunk.as_mut_ptr().cast(), pattern) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type IsFilled = fn(&[u8; PAGE_BYTES], u64) -> bool;
    type Fill = fn(&mut [u8; PAGE_BYTES], u64);

    /// Every variant that this CPU can run.
    fn variants() -> (Vec<IsFilled>, Vec<Fill>) {
        let mut filled: Vec<IsFilled> = vec![is_filled_plain];
        let mut fills: Vec<Fill> = vec![fill_plain];
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the feature was found.
            filled.push(|p, w| unsafe { is_filled_avx2(p, w) });
            // SAFETY: the feature was found.
            fills.push(|p, w| unsafe { fill_avx2(p, w) });
        }
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the feature was found.
            filled.push(|p, w| unsafe { is_filled_avx512(p, w) });
            // SAFETY: the feature was found.
            fills.push(|p, w| unsafe { fill_avx512(p, w) });
        }
        (filled, fills)
    }

    #[test]
    fn every_line_that_differs_is_found() {
        let mut variants: Vec<fn(&[u8; PAGE_BYTES], u64) -> u64> =
            vec![other_lines, other_lines_plain];
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the feature was found.
            variants.push(|p, w| unsafe { other_lines_avx2(p, w) });
        }
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the feature was found.
            variants.push(|p, w| unsafe { other_lines_avx512(p, w) });
        }
        for word in [0u64, 0x0123_4567_89ab_cdef] {
            let mut page = [0u8; PAGE_BYTES];
            fill(&mut page, word);
            for at in 0..PAGE_BYTES {
                page[at] ^= 1;
                page[PAGE_BYTES - 1] ^= 2;
                let expected = 1 << (at / 64) | 1 << 63;
                assert!(variants.iter().all(|v| v(&page, word) == expected), "byte {at}");
                page[at] ^= 1;
                page[PAGE_BYTES - 1] ^= 2;
            }
            assert!(variants.iter().all(|v| v(&page, word) == 0));
        }
    }

    #[test]
    fn all_variants_agree() {
        let (filled, fills) = variants();
        for word in [0u64, u64::MAX, 0x0123_4567_89ab_cdef] {
            for fill in &fills {
                let mut page = [1u8; PAGE_BYTES];
                fill(&mut page, word);
                assert!(page.chunks(8).all(|c| c == word.to_ne_bytes()));
                for is_filled in &filled {
                    assert!(is_filled(&page, word));
                    assert!(!is_filled(&page, word ^ 1 << 40));
                    for at in 0..PAGE_BYTES {
                        page[at] ^= 0x80;
                        assert!(!is_filled(&page, word), "byte {at}");
                        page[at] ^= 0x80;
                    }
                }
            }
        }
    }
}
