//! The loops with AVX2: a line is two vectors. A fact about each of its eight words is a byte, and
//! the eight bytes of a fact lie side by side in one word.
//!
//! ```text
//!   compress    bytes that differ from each base: a comparison, its mask, and a table of nibbles
//!               the cheapest code: vpshufb and a minimum
//!               literals: whole words, each from where the literal of the one before ends
//!   decompress  literals of two words: vpshufb, by their two codes; the mask lets bases through
//!               distances: vpshufb, by the mask of the words that have one
//! ```
//!
//! # Safety charter
//! Loads and stores go through slices or arrays of at least that length, as each says. Positions
//! come from tables that this module has filled, with words in front of the line; places in these
//! tables are below `TABLE_WORDS`; distances are compared with what lies before.

use core::arch::x86_64::*;

use super::ABOVE;
use super::form::{
    BLOCK_WORDS, BY_ABOVE, BY_DISTANT, BY_ZERO, Block, CODE_BYTES, FIRST_ABOVE, FIRST_DISTANT,
    LINE_BYTES, LITERALS, Lines, MULTIPLIER, PRODUCT_SHIFT, SHIFTS, TABLE_WORDS, TABLES_BYTES,
    first,
};

/// The bits that a nibble uses; and those that a byte uses whose upper nibble it is.
const BITS: [u8; 16] = [0, 1, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4, 4];
const BITS_UPPER: [u8; 16] = [0, 5, 6, 6, 7, 7, 7, 7, 8, 8, 8, 8, 8, 8, 8, 8];
/// The least that a code with a distance costs, as tables of choices say it.
const LEAST_DISTANT: u8 = BY_DISTANT[0];
/// An index of which `vpshufb` makes a zero.
const NOTHING: u8 = 0x80;

/// Bytes for `vpshufb`, for each mask of eight bytes.
type ByMask = [[u8; 8]; 256];

/// The bytes that the mask has, moved together.
static TOGETHER: ByMask = by_masks(false);
/// The first bytes, moved to those that the mask has.
static APART: ByMask = by_masks(true);

const fn by_masks(is_apart: bool) -> ByMask {
    let mut table = [[NOTHING; 8]; 256];
    let mut mask = 0;
    while mask < 256 {
        let (mut byte, mut count) = (0, 0);
        while byte < 8 {
            if mask >> byte & 1 != 0 {
                let (from, to) = if is_apart { (count, byte) } else { (byte, count) };
                table[mask][to] = from as u8;
                count += 1;
            }
            byte += 1;
        }
        mask += 1;
    }
    table
}

/// For each pair of codes: where the bytes of their words are among the literals.
static PAIRS: [[u8; 16]; 256] = {
    let mut table = [[NOTHING; 16]; 256];
    let mut pair = 0;
    while pair < 256 {
        let (first, second) = (LITERALS[pair & 15], LITERALS[pair >> 4]);
        let mut byte = 0;
        while byte < 8 {
            if byte < first {
                table[pair][byte as usize] = byte;
            }
            if byte < second {
                table[pair][8 + byte as usize] = first + byte;
            }
            byte += 1;
        }
        pair += 1;
    }
    table
};

/// For each pair of codes: their literals, in bytes.
static PAIR_BYTES: [u8; 256] = {
    let mut table = [0; 256];
    let mut pair = 0;
    while pair < 256 {
        table[pair] = LITERALS[pair & 15] + LITERALS[pair >> 4];
        pair += 1;
    }
    table
};

#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn loaded(table: &[u8; 16]) -> __m128i {
    // SAFETY: the table has the 16 bytes of the load.
    unsafe { _mm_loadu_si128(table.as_ptr().cast()) }
}

/// A table of eight bytes for `vpshufb`, chosen by a mask.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn by_mask(tables: &ByMask, mask: u8) -> __m128i {
    _mm_cvtsi64_si128(i64::from_le_bytes(tables[usize::from(mask)]))
}

/// The words of a line.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn load(line: &[u8; LINE_BYTES]) -> [__m256i; 2] {
    // SAFETY: a line has the 64 bytes of the loads.
    unsafe {
        [_mm256_loadu_si256(line.as_ptr().cast()), _mm256_loadu_si256(line.as_ptr().add(32).cast())]
    }
}

/// A bit for each byte in which eight words differ.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn different(a: [__m256i; 2], b: [__m256i; 2]) -> i64 {
    let alike = |i: usize| _mm256_movemask_epi8(_mm256_cmpeq_epi8(a[i], b[i])) as u32;
    !(u64::from(alike(1)) << 32 | u64::from(alike(0))) as i64
}

/// Bits from the lowest to the highest that is set, of each byte.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn bits_used(bytes: __m128i) -> __m128i {
    let nibble = _mm_set1_epi8(15);
    let low = _mm_shuffle_epi8(loaded(&BITS), _mm_and_si128(bytes, nibble));
    let upper = _mm_and_si128(_mm_srli_epi16::<4>(bytes), nibble);
    _mm_max_epu8(low, _mm_shuffle_epi8(loaded(&BITS_UPPER), upper))
}

/// The places of four words in a table, by what the shift leaves of them.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn places<const SHIFT: i32>(words: __m256i) -> __m256i {
    let upper = _mm256_srli_epi64::<SHIFT>(words);
    let folded = _mm256_xor_si256(upper, _mm256_srli_epi64::<32>(upper));
    let product = _mm256_mul_epu32(folded, _mm256_set1_epi64x(MULTIPLIER as i64));
    let place = _mm256_srli_epi64::<{ PRODUCT_SHIFT as i32 }>(product);
    _mm256_and_si256(place, _mm256_set1_epi64x(TABLE_WORDS as i64 - 1))
}

/// Positions of words by a hash of their upper bytes.
type Positions = [[u8; 2]; TABLE_WORDS];

/// The places of the words of a line, first those by the one hash, then those by the other.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn all_places(words: [__m256i; 2]) -> [[u16; 8]; 2] {
    let half = |i: usize| {
        let (one, other) =
            (places::<{ SHIFTS[0] as i32 }>(words[i]), places::<{ SHIFTS[1] as i32 }>(words[i]));
        _mm256_or_si256(one, _mm256_slli_epi64::<16>(other))
    };
    let both = _mm256_or_si256(half(0), _mm256_slli_epi64::<32>(half(1)));
    let lanes = [
        _mm256_extract_epi64::<0>(both) as u64,
        _mm256_extract_epi64::<1>(both) as u64,
        _mm256_extract_epi64::<2>(both) as u64,
        _mm256_extract_epi64::<3>(both) as u64,
    ];
    let mut all = [[0; 8]; 2];
    for i in 0..4 {
        all[0][i] = lanes[i] as u16;
        all[1][i] = (lanes[i] >> 16) as u16;
        all[0][4 + i] = (lanes[i] >> 32) as u16;
        all[1][4 + i] = (lanes[i] >> 48) as u16;
    }
    all
}

/// The words of the block that were last at these places: their positions, and the bytes in which
/// they differ from those of the line.
///
/// # Safety
/// Places are below `TABLE_WORDS`, and the table holds positions in `all`.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
unsafe fn look(
    positions: &Positions,
    places: &[u16; 8],
    all: *const i64,
    words: [__m256i; 2],
) -> (__m128i, i64) {
    // SAFETY: as the caller says.
    let at =
        |i: usize| u16::from_le_bytes(unsafe { *positions.get_unchecked(usize::from(places[i])) });
    let at: [u16; 8] = [at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7)];
    // SAFETY: as the caller says; a word may lie anywhere.
    let base = |i: usize| unsafe { all.add(usize::from(at[i])).read_unaligned() };
    let bases = [
        _mm256_setr_epi64x(base(0), base(1), base(2), base(3)),
        _mm256_setr_epi64x(base(4), base(5), base(6), base(7)),
    ];
    let [a, b, c, d, e, f, g, h] = at.map(|at| at as i16);
    (_mm_setr_epi16(a, b, c, d, e, f, g, h), different(words, bases))
}

/// The nearest of the words that the tables know: the bytes in which each differs, and its
/// distance.
///
/// # Safety
/// As [`look`].
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
unsafe fn nearest(
    tables: &[&mut Positions; 2],
    places: &[[u16; 8]; 2],
    all: *const i64,
    start: usize,
    words: [__m256i; 2],
) -> (__m128i, __m128i) {
    // SAFETY: as the caller says.
    let (one, other) = unsafe {
        (look(tables[0], &places[0], all, words), look(tables[1], &places[1], all, words))
    };
    let last = _mm_set1_epi16(start as i16 - 1);
    let distances = [_mm_sub_epi16(last, one.0), _mm_sub_epi16(last, other.0)];
    let most = _mm_set1_epi16(255);
    let too_far =
        _mm_packs_epi16(_mm_cmpgt_epi16(distances[0], most), _mm_cmpgt_epi16(distances[1], most));
    let distances = _mm_packus_epi16(distances[0], distances[1]);
    let differ = bits_used(_mm_set_epi64x(other.1, one.1));
    let differ = _mm_max_epu8(differ, _mm_and_si128(too_far, _mm_set1_epi8(8)));
    let second = _mm_unpackhi_epi64(differ, differ);
    let is_better = _mm_cmpgt_epi8(differ, second);
    let distances = _mm_blendv_epi8(distances, _mm_unpackhi_epi64(distances, distances), is_better);
    (_mm_min_epu8(differ, second), distances)
}

/// # Safety
/// The caller has found the features, and `lines` are a block at most.
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
pub unsafe fn compress(
    tables: &mut [u8; TABLES_BYTES],
    lines: &[[u8; LINE_BYTES]],
    literals: &mut [u8],
    found: &mut Lines,
) -> bool {
    const { assert!(2 * size_of::<Positions>() <= TABLES_BYTES) };
    const { assert!(BLOCK_WORDS <= i16::MAX as usize) };
    let (entries, _) = tables[..2 * size_of::<Positions>()].as_chunks_mut::<2>();
    entries.fill([0; 2]);
    let (first, second) = entries.split_at_mut(TABLE_WORDS);
    let mut tables: [&mut Positions; 2] =
        [first.try_into().expect("made so"), second.try_into().expect("made so")];
    let all: *const i64 = lines.as_ptr().cast();
    let zeros = [_mm256_setzero_si256(); 2];
    let mut above = zeros;
    for (number, line) in lines.iter().enumerate() {
        if found.is_hopeless(number, lines.len(), literals.len()) {
            return false;
        }
        let words = load(line);
        let start = number * 8;
        let not_zero = different(words, zeros);
        if not_zero == 0 {
            // No code, and its last word is where zero was last.
            tables.iter_mut().for_each(|table| table[0] = (start as u16 + 7).to_le_bytes());
            above = zeros;
            continue;
        }
        let differ = bits_used(_mm_set_epi64x(different(words, above), not_zero));
        let mut best = _mm_min_epu8(
            _mm_shuffle_epi8(loaded(&BY_ZERO), differ),
            _mm_shuffle_epi8(loaded(&BY_ABOVE), _mm_unpackhi_epi64(differ, differ)),
        );
        let places = all_places(words);
        let least = _mm_set1_epi8(LEAST_DISTANT as i8);
        let may_be_less = _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_max_epu8(best, least), best)) & 0xff;
        if number > 0 && may_be_less != 0 {
            // SAFETY: places are below TABLE_WORDS; the tables hold positions of lines before this
            // one, or 0.
            let (differ, distances) = unsafe { nearest(&tables, &places, all, start, words) };
            best = _mm_min_epu8(best, _mm_shuffle_epi8(loaded(&BY_DISTANT), differ));
            put_distances(found, best, distances);
        }
        for (table, places) in tables.iter_mut().zip(&places) {
            for (i, place) in places.iter().enumerate() {
                // SAFETY: places are below TABLE_WORDS.
                unsafe {
                    *table.get_unchecked_mut(usize::from(*place)) =
                        ((start + i) as u16).to_le_bytes()
                };
            }
        }
        let codes = _mm_and_si128(best, _mm_set1_epi8(15));
        put_codes(found, number, codes);
        if !put_literals(found, literals, line, codes) {
            return false;
        }
        above = words;
    }
    true
}

/// Adds the distances of those words whose code has one.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn put_distances(found: &mut Lines, best: __m128i, distances: __m128i) {
    let codes = _mm_and_si128(best, _mm_set1_epi8(15));
    let distant =
        _mm_movemask_epi8(_mm_cmpgt_epi8(codes, _mm_set1_epi8(FIRST_DISTANT as i8 - 1))) as u8;
    let bytes = _mm_cvtsi128_si64(_mm_shuffle_epi8(distances, by_mask(&TOGETHER, distant)));
    found.distances[found.distance_bytes..][..8].copy_from_slice(&bytes.to_le_bytes());
    found.distance_bytes += distant.count_ones() as usize;
}

/// Adds the codes of a line, if it has some.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn put_codes(found: &mut Lines, number: usize, codes: __m128i) {
    // Each second one times 16.
    let pairs = _mm_maddubs_epi16(codes, _mm_set1_epi16(0x1001));
    found.put_codes(number, _mm_cvtsi128_si32(_mm_packus_epi16(pairs, pairs)) as u32);
}

/// Adds the literals of a line. False: there is no room.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn put_literals(
    found: &mut Lines,
    literals: &mut [u8],
    line: &[u8; LINE_BYTES],
    codes: __m128i,
) -> bool {
    let counts = _mm_cvtsi128_si64(_mm_shuffle_epi8(loaded(&LITERALS), codes)) as u64;
    // Each byte becomes the sum of those up to it: 64 at most.
    let ends = counts.wrapping_mul(0x0101_0101_0101_0101);
    let (starts, count) = (ends << 8, (ends >> 56) as usize);
    let Some(out) = literals.get_mut(found.literal_bytes..) else { return false };
    let mut some = [0; LINE_BYTES];
    let is_wide = out.len() >= LINE_BYTES;
    let to = if is_wide { out.as_mut_ptr() } else { some.as_mut_ptr() };
    let (words, _) = line.as_chunks::<8>();
    for (i, word) in words.iter().enumerate() {
        let at = (starts >> (8 * i)) as u8;
        // SAFETY: both have 64 bytes, and `i` words before this one have 8 bytes each at most.
        unsafe { to.add(usize::from(at)).cast::<[u8; 8]>().write(*word) };
    }
    found.literal_bytes += count;
    if is_wide {
        return true;
    }
    // The end of the room: not a byte too many.
    out.get_mut(..count).map(|out| out.copy_from_slice(&some[..count])).is_some()
}

/// The bases of words some of which have distances. `None`: some distance is too far.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn distant_bases(
    lines: &[[u8; LINE_BYTES]],
    number: usize,
    is_distant: __m128i,
    next: u64,
) -> Option<[__m128i; 4]> {
    let (all, _) = lines.as_flattened().as_chunks::<8>();
    let last = (8 * number).checked_sub(1)?;
    let apart = by_mask(&APART, _mm_movemask_epi8(is_distant) as u8);
    let back = _mm_shuffle_epi8(_mm_cvtsi64_si128(next as i64), apart);
    // The other words have those above for bases.
    let others = _mm_andnot_si128(is_distant, _mm_cvtsi64_si128(ABOVE as i64));
    let back = _mm_or_si128(back, others);
    let most = _mm_set1_epi8(last.min(255) as u8 as i8);
    if _mm_cvtsi128_si64(_mm_subs_epu8(back, most)) != 0 {
        return None;
    }
    let back = (_mm_cvtsi128_si64(back) as u64).to_le_bytes();
    // SAFETY: no distance reaches beyond the first word, as was just seen, and 0 is the last word
    // before this line.
    let base =
        |i: usize| unsafe { i64::from_le_bytes(*all.get_unchecked(last - usize::from(back[i]))) };
    Some([
        _mm_set_epi64x(base(1), base(0)),
        _mm_set_epi64x(base(3), base(2)),
        _mm_set_epi64x(base(5), base(4)),
        _mm_set_epi64x(base(7), base(6)),
    ])
}

/// # Safety
/// The caller has found the features.
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
pub unsafe fn decompress(block: &Block, lines: &mut [[u8; LINE_BYTES]]) -> Option<usize> {
    let (mut codes, mut literals, mut distances) = (block.codes, block.literals, block.distances);
    let mut above = [_mm_setzero_si128(); 4];
    for number in 0..lines.len() {
        if block.with_code >> number & 1 == 0 {
            lines[number] = [0; LINE_BYTES];
            above = [_mm_setzero_si128(); 4];
            continue;
        }
        let (pairs, more) = codes.split_first_chunk::<CODE_BYTES>()?;
        codes = more;
        let packed = _mm_cvtsi32_si128(i32::from_le_bytes(*pairs));
        let nibble = _mm_set1_epi8(15);
        let upper = _mm_and_si128(_mm_srli_epi16::<4>(packed), nibble);
        let each = _mm_unpacklo_epi8(_mm_and_si128(packed, nibble), upper);
        let at_least = |code: u8| _mm_cmpgt_epi8(each, _mm_set1_epi8(code as i8 - 1));
        let is_distant = at_least(FIRST_DISTANT);
        let distant = _mm_movemask_epi8(is_distant) as u8;
        if distant != 0 {
            let next = u64::from_le_bytes(*first(distances, &mut [0; 8]));
            distances = distances.get(distant.count_ones() as usize..)?;
            above = distant_bases(lines, number, is_distant, next)?;
        }
        let mut based = at_least(FIRST_ABOVE);
        // Whole vectors are read, so the last lines of a block need something behind them.
        let mut tail = [0; LINE_BYTES];
        let (from, mut count) = (first(literals, &mut tail).as_ptr(), 0);
        for (i, pair) in pairs.iter().enumerate() {
            let bytes = loaded(&PAIRS[usize::from(*pair)]);
            // SAFETY: of 64 bytes the pairs before this one have used 16 each at most.
            let low = unsafe { _mm_loadu_si128(from.add(count).cast()) };
            count += usize::from(PAIR_BYTES[usize::from(*pair)]);
            let base = _mm_and_si128(above[i], _mm_cvtepi8_epi64(based));
            based = _mm_srli_si128::<2>(based);
            above[i] = _mm_blendv_epi8(_mm_shuffle_epi8(low, bytes), base, bytes);
            // SAFETY: a line has room for the four pairs.
            unsafe { _mm_storeu_si128(lines[number].as_mut_ptr().add(16 * i).cast(), above[i]) };
        }
        literals = literals.get(count..)?;
    }
    literals.is_empty().then_some(block.distances.len() - distances.len())
}
