//! The loops with AVX-512: a line is one vector.
//!
//! ```text
//!   compress    what differs from each base: vplzcntq of an exclusive or
//!               the cheapest code: vpshufb and a minimum
//!               literals: vpcompressb; positions by hash: gather and scatter
//!   decompress  which bytes are literals: vpshufb of the codes
//!               literals: vpexpandb; distances: pdep; bases: gather
//! ```
//!
//! # Safety charter
//! Loads and stores of vectors go through slices or arrays of at least that length, or through
//! masks that leave out the bytes beyond. Gathers read inside their arrays: positions come from
//! tables whose entries are below `BLOCK_WORDS` (and 0 at first), and of a block only those in
//! front of the line are taken; hashes are below `TABLE_WORDS`; distances are cut to what lies
//! before.

use core::arch::x86_64::*;

use super::ABOVE;
use super::form::{
    BY_ABOVE, BY_DISTANT, BY_ZERO, Block, CODE_BYTES, FIRST_ABOVE, HAS_DISTANCE, LINE_BYTES, Lines,
    MULTIPLIER, PRODUCT_SHIFT, REPLACED, SHIFTS, TABLE_WORDS, TABLES_BYTES, first,
};

/// One byte of every code in a word.
const NIBBLES: u64 = 0x0f0f_0f0f_0f0f_0f0f;
/// Leaves the lowest byte of each word to a table, and makes zero of the others.
const LOWEST_BYTE: i64 = 0x8080_8080_8080_8000_u64 as i64;

/// A mask of the first `count` bytes of a line.
#[inline]
fn first_bytes(count: usize) -> u64 {
    if count >= LINE_BYTES { u64::MAX } else { (1 << count) - 1 }
}

#[target_feature(enable = "avx512f")]
fn everywhere(table: &[u8; 16]) -> __m512i {
    // SAFETY: the table has the 16 bytes of the load.
    _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(table.as_ptr().cast()) })
}

/// Bytes from the lowest to the highest that is not zero.
#[target_feature(enable = "avx512f,avx512cd")]
fn bytes_used(words: __m512i) -> __m512i {
    _mm512_sub_epi64(_mm512_set1_epi64(8), _mm512_srli_epi64::<3>(_mm512_lzcnt_epi64(words)))
}

/// The table's bytes for the lowest byte of each word.
#[target_feature(enable = "avx512f,avx512bw")]
fn chosen(table: __m512i, counts: __m512i) -> __m512i {
    _mm512_shuffle_epi8(table, _mm512_or_si512(counts, _mm512_set1_epi64(LOWEST_BYTE)))
}

/// The places of the words in a table, by what the shift leaves of them.
#[target_feature(enable = "avx512f")]
fn places<const SHIFT: u32>(words: __m512i) -> __m512i {
    let upper = _mm512_srli_epi64::<SHIFT>(words);
    let folded = _mm512_xor_si512(upper, _mm512_srli_epi64::<32>(upper));
    let product = _mm512_mul_epu32(folded, _mm512_set1_epi64(MULTIPLIER as i64));
    _mm512_and_si512(
        _mm512_srli_epi64::<PRODUCT_SHIFT>(product),
        _mm512_set1_epi64(TABLE_WORDS as i64 - 1),
    )
}

/// # Safety
/// The caller has found the features, and `lines` are a block at most.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512cd,avx512vbmi2,bmi2,popcnt")]
pub unsafe fn compress(
    tables: &mut [u8; TABLES_BYTES],
    lines: &[[u8; LINE_BYTES]],
    literals: &mut [u8],
    found: &mut Lines,
) -> bool {
    tables.fill(0);
    let first: *mut u8 = tables.as_mut_ptr();
    // SAFETY: the second half of the tables.
    let second = unsafe { first.add(TABLES_BYTES / 2) };
    let all: *const u8 = lines.as_ptr().cast();
    let (by_zero, by_above, by_distant) =
        (everywhere(&BY_ZERO), everywhere(&BY_ABOVE), everywhere(&BY_DISTANT));
    // SAFETY: the tables have the 16 bytes of the loads.
    let (replaced, has_distance) = unsafe {
        (_mm_loadu_si128(REPLACED.as_ptr().cast()), _mm_loadu_si128(HAS_DISTANCE.as_ptr().cast()))
    };
    let mut above = _mm512_setzero_si512();
    let mut here = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
    for (number, line) in lines.iter().enumerate() {
        if found.is_hopeless(number, lines.len(), literals.len()) {
            return false;
        }
        // SAFETY: a line has the 64 bytes of the load.
        let words = unsafe { _mm512_loadu_si512(line.as_ptr().cast()) };
        let from_zero = chosen(by_zero, bytes_used(words));
        let from_above = chosen(by_above, bytes_used(_mm512_xor_si512(words, above)));
        let mut best = _mm512_min_epu64(from_zero, from_above);
        let mut distances = _mm512_setzero_si512();
        let one = places::<{ SHIFTS[0] }>(words);
        let two = places::<{ SHIFTS[1] }>(words);
        if number > 0 {
            let last = _mm512_set1_epi64(number as i64 * 8 - 1);
            let look = |table: *mut u8, places: __m512i| {
                // SAFETY: places are below TABLE_WORDS, of four bytes each.
                let found = unsafe { _mm512_i64gather_epi32::<4>(places, table.cast()) };
                let at = _mm512_cvtepu32_epi64(found);
                // SAFETY: the tables hold positions of lines before this one, or 0.
                let base = unsafe { _mm512_i64gather_epi64::<8>(at, all.cast()) };
                let distance = _mm512_sub_epi64(last, at);
                let too_far = _mm512_cmpgt_epu64_mask(distance, _mm512_set1_epi64(255));
                let differ = bytes_used(_mm512_xor_si512(words, base));
                (_mm512_mask_mov_epi64(differ, too_far, _mm512_set1_epi64(8)), distance)
            };
            let (a, b) = (look(first, one), look(second, two));
            let is_better = _mm512_cmplt_epu64_mask(b.0, a.0);
            distances = _mm512_mask_mov_epi64(a.1, is_better, b.1);
            best = _mm512_min_epu64(best, chosen(by_distant, _mm512_min_epu64(a.0, b.0)));
        }
        let positions = _mm512_cvtepi64_epi32(here);
        // SAFETY: places are below TABLE_WORDS, of four bytes each. Of equal ones the last word's
        // stays.
        unsafe {
            _mm512_i64scatter_epi32::<4>(first.cast(), one, positions);
            _mm512_i64scatter_epi32::<4>(second.cast(), two, positions);
        }
        here = _mm512_add_epi64(here, _mm512_set1_epi64(8));
        let codes = _mm_and_si128(_mm512_cvtepi64_epi8(best), _mm_set1_epi8(15));
        let packed_codes = _pext_u64(_mm_cvtsi128_si64(codes) as u64, NIBBLES) as u32;
        found.put_codes(number, packed_codes);
        let mask = _mm_cvtsi128_si64(_mm_shuffle_epi8(replaced, codes)) as u64;
        let count = mask.count_ones() as usize;
        let Some(out) = literals.get_mut(found.literal_bytes..found.literal_bytes + count) else {
            return false;
        };
        // SAFETY: the mask has the bytes of `out`, no more.
        unsafe {
            _mm512_mask_storeu_epi8(
                out.as_mut_ptr().cast(),
                first_bytes(count),
                _mm512_maskz_compress_epi8(mask, words),
            );
        }
        found.literal_bytes += count;
        let distant = _mm_cvtsi128_si64(_mm_shuffle_epi8(has_distance, codes)) as u64;
        let distances =
            _pext_u64(_mm_cvtsi128_si64(_mm512_cvtepi64_epi8(distances)) as u64, distant);
        found.distances[found.distance_bytes..][..8].copy_from_slice(&distances.to_le_bytes());
        found.distance_bytes += distant.count_ones() as usize / 8;
        above = words;
    }
    true
}

/// # Safety
/// The caller has found the features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,bmi2,popcnt")]
pub unsafe fn decompress(block: &Block, lines: &mut [[u8; LINE_BYTES]]) -> Option<usize> {
    // SAFETY: the tables have the 16 bytes of the loads.
    let (replaced, has_distance) = unsafe {
        (_mm_loadu_si128(REPLACED.as_ptr().cast()), _mm_loadu_si128(HAS_DISTANCE.as_ptr().cast()))
    };
    let (mut codes, mut literals, mut distances) = (block.codes, block.literals, block.distances);
    let all: *mut u8 = lines.as_mut_ptr().cast();
    for number in 0..lines.len() {
        let mut line_codes = 0;
        if block.with_code >> number & 1 != 0 {
            let (these, more) = codes.split_first_chunk::<CODE_BYTES>()?;
            (line_codes, codes) = (u32::from_le_bytes(*these), more);
        }
        let codes = _mm_cvtsi64_si128(_pdep_u64(line_codes.into(), NIBBLES) as i64);
        let mask = _mm_cvtsi128_si64(_mm_shuffle_epi8(replaced, codes)) as u64;
        let count = mask.count_ones() as usize;
        let (low, more) = literals.split_at_checked(count)?;
        literals = more;
        // SAFETY: the mask has the bytes of `low`, no more.
        let low = unsafe { _mm512_maskz_loadu_epi8(first_bytes(count), low.as_ptr().cast()) };
        let low = _mm512_maskz_expand_epi8(mask, low);
        let distant = _mm_cvtsi128_si64(_mm_shuffle_epi8(has_distance, codes)) as u64;
        let next = u64::from_le_bytes(*first(distances, &mut [0; 8]));
        distances = distances.get(distant.count_ones() as usize / 8..)?;
        let mut line = low;
        // The first line has nothing before it: its words above are zero.
        let based = _mm_cmpgt_epi8_mask(codes, _mm_set1_epi8(FIRST_ABOVE as i8 - 1)) as u8;
        if number > 0 {
            let back = _pdep_u64(next, distant) | ABOVE & !distant;
            let back = _mm512_cvtepu8_epi64(_mm_cvtsi64_si128(back as i64));
            let index = _mm512_sub_epi64(_mm512_set1_epi64(number as i64 * 8 - 1), back);
            if _mm512_mask_cmplt_epi64_mask(based, index, _mm512_setzero_si512()) != 0 {
                return None;
            }
            // SAFETY: indexes are from 0 to the last word before this line.
            let bases = unsafe {
                _mm512_mask_i64gather_epi64::<8>(
                    _mm512_setzero_si512(),
                    based,
                    index,
                    all.cast_const().cast(),
                )
            };
            line = _mm512_mask_blend_epi8(mask, bases, low);
        } else if distant != 0 {
            return None;
        }
        // SAFETY: the place of line `number`, of 64 bytes.
        unsafe { _mm512_storeu_si512(all.add(number * LINE_BYTES).cast(), line) };
    }
    literals.is_empty().then_some(block.distances.len() - distances.len())
}
