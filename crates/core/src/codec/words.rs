//! Words: a codec for heaps, after WKdm (Wilson, Kaplan and Smaragdakis, 1999), eight words of
//! eight bytes at a time.
//!
//! What is in a heap are pointers that share their upper bytes, small numbers, zeros, and words
//! that were there a moment ago. So each word is its *base*, a word that is known, with so many of
//! its low bytes replaced by *literal* ones:
//!
//! ```text
//!   base     zero                     the word 64 bytes before    a word behind this line, found by its upper bytes
//!   bytes    0, 1, 2, 4, 5, 6, 8      0, 1, 2, 3, 4, 6            0, 1, 2, and one that says where: its distance
//!   code     0 .. 6                   7 .. 12                     13 .. 15
//! ```
//!
//! Eight words are a *line*. Bases lie in lines before, never in the same one, so that the words of
//! a line do not wait for each other: a line is one vector, or two, both ways (`sys/words`; without
//! AVX2 the loops here do it word by word). An input is cut into *blocks* of a page, each for
//! itself:
//!
//! ```text
//!   | lines with a code: 64 bits | bytes of the literals: 16 | literals | codes: 4 bits a word | distances | rest of a line |
//! ```
//!
//! A line without code is zero. A distance counts words back from the last one before the line,
//! less one: 0 to 255.

use super::CompressError;
use super::offers::{Kind, Offers};
use crate::sys::codec_ffi::Lz4Compressor;
use crate::sys::mem::Mapping;
use crate::sys::words as vector;
use crate::sys::{PAGE_SIZE, Result};

pub const LINE_BYTES: usize = 64;
const LINE_WORDS: usize = LINE_BYTES / 8;
const BLOCK_LINES: usize = PAGE_SIZE / LINE_BYTES;
pub const BLOCK_WORDS: usize = PAGE_SIZE / 8;
/// Before the literals of a block.
pub const HEAD_BYTES: usize = 10;
/// Bytes of codes of one line.
pub const CODE_BYTES: usize = LINE_WORDS / 2;
/// A distance goes into a byte.
const DISTANCE_MAX: usize = 255;

/// Low bytes that each code replaces.
pub const LITERALS: [u8; 16] = [0, 1, 2, 4, 5, 6, 8, 0, 1, 2, 3, 4, 6, 0, 1, 2];
/// The first code with the word a line before for its base, and the first with a distance.
pub const FIRST_ABOVE: u8 = 7;
pub const FIRST_DISTANT: u8 = 13;

/// Where a word was last, by the upper bytes of it: one table by the upper seven, one by the upper
/// six. What is in them is a guess that is looked at.
pub const SHIFTS: [u32; 2] = [8, 16];
pub const TABLE_WORDS: usize = 512;
pub const TABLES_BYTES: usize = 2 * TABLE_WORDS * size_of::<u32>();
/// Knuth's multiplier of 32 bits, and where the bits of the product are that count.
pub const MULTIPLIER: u64 = 0x9e37_79b1;
pub const PRODUCT_SHIFT: u32 = 20;

/// The choice by number of bytes that differ from a base, 0 to 8: what the code costs, in bytes,
/// above the code.
pub type Choices = [u8; 16];
pub const BY_ZERO: Choices = choices(0, FIRST_ABOVE, 0);
pub const BY_ABOVE: Choices = choices(FIRST_ABOVE, FIRST_DISTANT, 0);
pub const BY_DISTANT: Choices = choices(FIRST_DISTANT, 16, 1);
/// The low bytes that each code replaces, one bit each; and 0xff for each code that has a distance.
pub const REPLACED: [u8; 16] = replaced();
pub const HAS_DISTANCE: [u8; 16] = has_distance();

const fn choices(first: u8, end: u8, more: u8) -> Choices {
    let mut table = [0xff; 16];
    let mut differ = 0;
    while differ <= 8 {
        let mut code = first;
        while code < end {
            let literals = LITERALS[code as usize];
            if literals >= differ {
                table[differ as usize] = (literals + more) << 4 | code;
                break;
            }
            code += 1;
        }
        differ += 1;
    }
    table
}

/// The bits of the low bytes that each code replaces.
const MASKS: [u64; 16] = {
    let mut table = [0; 16];
    let mut code = 0;
    while code < 16 {
        let bytes = LITERALS[code] as u32;
        table[code] = if bytes == 8 { u64::MAX } else { (1 << (8 * bytes)) - 1 };
        code += 1;
    }
    table
};

const fn replaced() -> [u8; 16] {
    let mut table = [0; 16];
    let mut code = 0;
    while code < 16 {
        table[code] = ((1u16 << LITERALS[code]) - 1) as u8;
        code += 1;
    }
    table
}

const fn has_distance() -> [u8; 16] {
    let mut table = [0; 16];
    let mut code = FIRST_DISTANT as usize;
    while code < 16 {
        table[code] = 0xff;
        code += 1;
    }
    table
}

/// What the lines of a block come to, but for their literals.
pub struct Lines {
    pub with_code: u64,
    pub literal_bytes: usize,
    pub codes: [u8; BLOCK_LINES * CODE_BYTES],
    pub code_bytes: usize,
    /// Eight more, since the vector loops write eight at a time.
    pub distances: [u8; BLOCK_WORDS + 8],
    pub distance_bytes: usize,
}

/// Lines after which it is seen whether words make anything of a page.
const TRIED_LINES: usize = BLOCK_LINES / 4;

impl Lines {
    /// After `done` of so many lines: hardly anything has become smaller, and it has to, to find
    /// `room`. Text, say, and the time for the rest is better spent on another codec.
    #[inline(always)]
    pub fn is_hopeless(&self, done: usize, lines: usize, room: usize) -> bool {
        let bytes = self.literal_bytes + self.code_bytes + self.distance_bytes;
        done == TRIED_LINES
            && room < lines * LINE_BYTES
            && bytes > TRIED_LINES * LINE_BYTES * 15 / 16
    }

    /// Adds the codes of a line, if it has some.
    #[inline(always)]
    pub fn put_codes(&mut self, number: usize, codes: u32) {
        let is_coded = codes != 0;
        self.codes[self.code_bytes..][..CODE_BYTES].copy_from_slice(&codes.to_le_bytes());
        self.code_bytes += CODE_BYTES * usize::from(is_coded);
        self.with_code |= u64::from(is_coded) << number;
    }

    const fn new() -> Lines {
        Lines {
            with_code: 0,
            literal_bytes: 0,
            codes: [0; BLOCK_LINES * CODE_BYTES],
            code_bytes: 0,
            distances: [0; BLOCK_WORDS + 8],
            distance_bytes: 0,
        }
    }
}

/// What a page has become, and its length.
pub enum Form {
    Words(usize),
    Lz4(usize),
}

/// Working memory: the tables, and what lz4 needs for pages of which it makes less (text, above
/// all).
pub struct WordsCompressor {
    memory: Mapping,
    lz4: Lz4Compressor,
    offers: Offers,
}

impl WordsCompressor {
    pub fn new() -> Result<WordsCompressor> {
        let memory = Mapping::new(TABLES_BYTES + PAGE_SIZE)?;
        Ok(WordsCompressor { memory, lz4: Lz4Compressor::new()?, offers: Offers::new() })
    }

    pub fn mapped_bytes(&self) -> usize {
        self.memory.len() + self.lz4.mapped_bytes()
    }

    /// Compresses to the start of `dst`. A page of a kind of which lz4 has made less is offered to
    /// it, too.
    pub fn compress(
        &mut self,
        src: &[u8],
        dst: &mut [u8],
    ) -> core::result::Result<Form, CompressError> {
        let (tables, other) = self.memory.as_mut_slice().split_first_chunk_mut().expect("made so");
        let by_words = compress(tables, src, dst);
        let kind = by_words.map_or(None, |c| Kind::of(c.len, c.distances));
        let by_words = by_words.map(|c| c.len);
        // What words can do nothing with is the other's in any case.
        let is_due = by_words.is_err() || kind.is_some_and(|kind| self.offers.is_due(kind));
        if !is_due || src.len() != PAGE_SIZE {
            return by_words.map(Form::Words);
        }
        // What costs three times as much to bring back is to be clearly smaller.
        let most = match by_words {
            Ok(len) if len > PAGE_SIZE / 2 => len - len / 8,
            Ok(len) => len - len / 4,
            Err(_) => dst.len().min(PAGE_SIZE),
        };
        let other = &mut other[..most];
        let by_lz4 = self.lz4.compress(src, other);
        if let Some(kind) = kind {
            self.offers.learn(kind, by_lz4.is_ok());
        }
        match by_lz4 {
            Ok(len) => {
                dst[..len].copy_from_slice(&other[..len]);
                Ok(Form::Lz4(len))
            }
            Err(_) => by_words.map(Form::Words),
        }
    }
}

/// What an input has become: its length, and how many words have a distance.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    len: usize,
    distances: usize,
}

/// Compresses to the start of `dst`. `tables` may hold anything.
#[inline(never)]
fn compress(
    tables: &mut [u8; TABLES_BYTES],
    src: &[u8],
    dst: &mut [u8],
) -> core::result::Result<Outcome, CompressError> {
    let loops = vector::loops();
    let mut done = Outcome::default();
    for block in src.chunks(PAGE_SIZE) {
        let (lines, rest) = block.as_chunks::<LINE_BYTES>();
        let out = dst.get_mut(done.len..).ok_or(CompressError::Incompressible)?;
        let (head, out) =
            out.split_at_mut_checked(HEAD_BYTES).ok_or(CompressError::Incompressible)?;
        let mut found = Lines::new();
        if !loops.compress(tables, lines, out, &mut found) {
            return Err(CompressError::Incompressible);
        }
        head[..8].copy_from_slice(&found.with_code.to_le_bytes());
        head[8..].copy_from_slice(&(found.literal_bytes as u16).to_le_bytes());
        done.len += HEAD_BYTES + found.literal_bytes;
        done.distances += found.distance_bytes;
        for part in
            [&found.codes[..found.code_bytes], &found.distances[..found.distance_bytes], rest]
        {
            let end = done.len + part.len();
            dst.get_mut(done.len..end).ok_or(CompressError::Incompressible)?.copy_from_slice(part);
            done.len = end;
        }
    }
    Ok(done)
}

/// The parts of a compressed block.
pub struct Block<'a> {
    pub with_code: u64,
    pub literals: &'a [u8],
    pub codes: &'a [u8],
    /// The distances, and all that follows.
    pub distances: &'a [u8],
}

/// Restores the whole of `dst` from the whole of `src`: its length. `None`: `compress` did not
/// write that.
pub fn decompress(mut src: &[u8], dst: &mut [u8]) -> Option<usize> {
    let loops = vector::loops();
    for block in dst.chunks_mut(PAGE_SIZE) {
        let (lines, rest) = block.as_chunks_mut::<LINE_BYTES>();
        let parts = parts(src, lines.len())?;
        let distances = loops.decompress(&parts, lines)?;
        src = parts.distances.get(distances..)?;
        let (tail, after) = src.split_at_checked(rest.len())?;
        rest.copy_from_slice(tail);
        src = after;
    }
    src.is_empty().then_some(dst.len())
}

fn parts(src: &[u8], lines: usize) -> Option<Block<'_>> {
    let (with_code, src) = src.split_first_chunk::<8>()?;
    let with_code = u64::from_le_bytes(*with_code);
    let (literal_bytes, src) = src.split_first_chunk::<2>()?;
    let (literals, src) = src.split_at_checked(u16::from_le_bytes(*literal_bytes).into())?;
    let (codes, distances) = src.split_at_checked(with_code.count_ones() as usize * CODE_BYTES)?;
    let is_within = lines == BLOCK_LINES || with_code >> lines == 0;
    is_within.then_some(Block { with_code, literals, codes, distances })
}

/// The first bytes of some; behind the last of them those of `spare`, which are zero.
#[inline(always)]
pub fn first<'a, const N: usize>(bytes: &'a [u8], spare: &'a mut [u8; N]) -> &'a [u8; N] {
    match bytes.first_chunk() {
        Some(first) => first,
        None => {
            spare[..bytes.len()].copy_from_slice(bytes);
            spare
        }
    }
}

fn line_words(line: &[u8; LINE_BYTES]) -> [u64; LINE_WORDS] {
    let (words, _) = line.as_chunks::<8>();
    core::array::from_fn(|i| u64::from_le_bytes(words[i]))
}

fn bytes_that_differ(a: u64, b: u64) -> usize {
    8 - (a ^ b).leading_zeros() as usize / 8
}

fn place(word: u64, shift: u32) -> usize {
    let upper = word >> shift;
    let folded = (upper ^ upper >> 32) & 0xffff_ffff;
    ((folded * MULTIPLIER) >> PRODUCT_SHIFT) as usize % TABLE_WORDS
}

/// As the vector loops, to the byte, one word after the other.
#[inline(always)]
pub fn compress_lines(
    tables: &mut [u8; TABLES_BYTES],
    lines: &[[u8; LINE_BYTES]],
    literals: &mut [u8],
    found: &mut Lines,
) -> bool {
    tables.fill(0);
    let (entries, _) = tables.as_chunks_mut::<4>();
    let (first, second) = entries.split_at_mut(TABLE_WORDS);
    let (all, _) = lines.as_flattened().as_chunks::<8>();
    for (number, line) in lines.iter().enumerate() {
        if found.is_hopeless(number, lines.len(), literals.len()) {
            return false;
        }
        let words = line_words(line);
        let start = number * LINE_WORDS;
        if words == [0; LINE_WORDS] {
            // No code, and its last word is where zero was last.
            for (table, shift) in [(&mut *first, SHIFTS[0]), (&mut *second, SHIFTS[1])] {
                table[place(0, shift)] = ((start + LINE_WORDS - 1) as u32).to_le_bytes();
            }
            continue;
        }
        // Whole words are written, each from where the literal of the one before ends.
        let (mut low, mut count) = ([0; LINE_BYTES + 8], 0);
        let mut codes = 0u32;
        // Loops, not `map`: a closure in a function of its own loses the processor's features.
        let mut places = [[0; LINE_WORDS]; SHIFTS.len()];
        for (places, shift) in places.iter_mut().zip(SHIFTS) {
            for (place_of, word) in places.iter_mut().zip(words) {
                *place_of = place(word, shift) as u16;
            }
        }
        // The tables of choices have places for all of four bits.
        let choose = |by: &Choices, differ: usize| by[differ & 15];
        for (i, word) in words.into_iter().enumerate() {
            let above =
                if number > 0 { u64::from_le_bytes(all[start - LINE_WORDS + i]) } else { 0 };
            let mut best = choose(&BY_ZERO, bytes_that_differ(word, 0))
                .min(choose(&BY_ABOVE, bytes_that_differ(word, above)));
            let mut distance = 0;
            if number > 0 {
                let near = |table: &[[u8; 4]], places: &[u16; LINE_WORDS]| {
                    let index = u32::from_le_bytes(table[usize::from(places[i])]) as usize;
                    let distance = start - 1 - index;
                    let differ = bytes_that_differ(word, u64::from_le_bytes(all[index]));
                    (if distance > DISTANCE_MAX { 8 } else { differ }, distance)
                };
                let (one, other) = (near(first, &places[0]), near(second, &places[1]));
                let (differ, nearer) = if other.0 < one.0 { other } else { one };
                distance = nearer;
                best = best.min(choose(&BY_DISTANT, differ));
            }
            let code = best & 15;
            codes |= u32::from(code) << (4 * i);
            low[count..count + 8].copy_from_slice(&word.to_le_bytes());
            count += usize::from(LITERALS[usize::from(code)]);
            // One too many is overwritten by the next.
            found.distances[found.distance_bytes] = distance as u8;
            found.distance_bytes += usize::from(code >= FIRST_DISTANT);
        }
        let Some(out) = literals.get_mut(found.literal_bytes..) else { return false };
        if let Some(out) = out.first_chunk_mut::<LINE_BYTES>() {
            out.copy_from_slice(&low[..LINE_BYTES]);
        } else if let Some(out) = out.get_mut(..count) {
            out.copy_from_slice(&low[..count]);
        } else {
            return false;
        }
        found.literal_bytes += count;
        for i in 0..LINE_WORDS {
            first[usize::from(places[0][i])] = ((start + i) as u32).to_le_bytes();
            second[usize::from(places[1][i])] = ((start + i) as u32).to_le_bytes();
        }
        found.put_codes(number, codes);
    }
    true
}

/// As the vector loops, one word after the other: how many distances there were.
#[inline(always)]
pub fn decompress_lines(block: &Block, lines: &mut [[u8; LINE_BYTES]]) -> Option<usize> {
    const WINDOW: usize = LINE_BYTES + 8;
    let (mut codes, _) = block.codes.as_chunks::<CODE_BYTES>();
    let (mut literals, mut distances) = (block.literals, 0);
    let (all, _) = lines.as_flattened_mut().as_chunks_mut::<8>();
    let mut above = [0; LINE_WORDS];
    for start in (0..all.len()).step_by(LINE_WORDS) {
        if block.with_code >> (start / LINE_WORDS) & 1 == 0 {
            all[start..start + LINE_WORDS].fill([0; 8]);
            above = [0; LINE_WORDS];
            continue;
        }
        let (line_codes, more) = codes.split_first()?;
        let line_codes = u32::from_le_bytes(*line_codes);
        codes = more;
        // Whole words are read, so the last lines of a block need something behind them.
        let mut tail = [0; WINDOW];
        let low = first(literals, &mut tail);
        let mut count = 0;
        for (i, above) in above.iter_mut().enumerate() {
            let code = (line_codes >> (4 * i)) as usize & 15;
            let mask = MASKS[code];
            let mut base = if code < usize::from(FIRST_ABOVE) { 0 } else { *above };
            if code >= usize::from(FIRST_DISTANT) {
                let distance = usize::from(*block.distances.get(distances)?);
                distances += 1;
                base = u64::from_le_bytes(all[start.checked_sub(1 + distance)?]);
            }
            let literal = u64::from_le_bytes(low[count..count + 8].try_into().expect("8 bytes"));
            count += usize::from(LITERALS[code]);
            *above = base & !mask | literal & mask;
            all[start + i] = above.to_le_bytes();
        }
        literals = literals.get(count..)?;
    }
    literals.is_empty().then_some(distances)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Choices, Random};

    /// The same, as it is said above.
    fn naive_compress(
        tables: &mut [u8; TABLES_BYTES],
        lines: &[[u8; LINE_BYTES]],
        literals: &mut [u8],
        found: &mut Lines,
    ) -> bool {
        tables.fill(0);
        let (entries, _) = tables.as_chunks_mut::<4>();
        let (first, second) = entries.split_at_mut(TABLE_WORDS);
        let at = |index: usize| line_words(&lines[index / LINE_WORDS])[index % LINE_WORDS];
        let mut above = [0; LINE_WORDS];
        for (number, line) in lines.iter().enumerate() {
            if found.is_hopeless(number, lines.len(), literals.len()) {
                return false;
            }
            let words = line_words(line);
            let start = number * LINE_WORDS;
            let mut codes = 0u32;
            for (i, word) in words.into_iter().enumerate() {
                let mut best = BY_ZERO[bytes_that_differ(word, 0)]
                    .min(BY_ABOVE[bytes_that_differ(word, above[i])]);
                let mut distance = 0;
                if number > 0 {
                    let near = |table: &[[u8; 4]], shift| {
                        let index = u32::from_le_bytes(table[place(word, shift)]) as usize;
                        let distance = start - 1 - index;
                        let differ = if distance > DISTANCE_MAX {
                            8
                        } else {
                            bytes_that_differ(word, at(index))
                        };
                        (differ, distance)
                    };
                    let (one, other) = (near(first, SHIFTS[0]), near(second, SHIFTS[1]));
                    let (differ, nearer) = if other.0 < one.0 { other } else { one };
                    distance = nearer;
                    best = best.min(BY_DISTANT[differ]);
                }
                let code = best & 15;
                codes |= u32::from(code) << (4 * i);
                let count = LITERALS[usize::from(code)].into();
                let end = found.literal_bytes + count;
                let Some(out) = literals.get_mut(found.literal_bytes..end) else { return false };
                out.copy_from_slice(&word.to_le_bytes()[..count]);
                found.literal_bytes = end;
                if code >= FIRST_DISTANT {
                    found.distances[found.distance_bytes] = distance as u8;
                    found.distance_bytes += 1;
                }
            }
            for (i, word) in words.into_iter().enumerate() {
                first[place(word, SHIFTS[0])] = ((start + i) as u32).to_le_bytes();
                second[place(word, SHIFTS[1])] = ((start + i) as u32).to_le_bytes();
            }
            if codes != 0 {
                found.with_code |= 1 << number;
                found.codes[found.code_bytes..][..CODE_BYTES].copy_from_slice(&codes.to_le_bytes());
                found.code_bytes += CODE_BYTES;
            }
            above = words;
        }
        true
    }

    fn naive_decompress(block: &Block, lines: &mut [[u8; LINE_BYTES]]) -> Option<usize> {
        let (mut codes, _) = block.codes.as_chunks::<CODE_BYTES>();
        let (mut literals, mut distances) = (block.literals, 0);
        let mut above = [0; LINE_WORDS];
        for number in 0..lines.len() {
            let mut word_codes = 0;
            if block.with_code >> number & 1 != 0 {
                let (first, more) = codes.split_first()?;
                (word_codes, codes) = (u32::from_le_bytes(*first), more);
            }
            let mut words = [0u64; LINE_WORDS];
            for (i, word) in words.iter_mut().enumerate() {
                let code = (word_codes >> (4 * i)) as u8 & 15;
                let base = if code < FIRST_ABOVE {
                    0
                } else if code < FIRST_DISTANT {
                    above[i]
                } else {
                    let distance = usize::from(*block.distances.get(distances)?);
                    distances += 1;
                    let index = (number * LINE_WORDS).checked_sub(1 + distance)?;
                    line_words(&lines[index / LINE_WORDS])[index % LINE_WORDS]
                };
                let (low, more) = literals.split_at_checked(LITERALS[usize::from(code)].into())?;
                let mut bytes = base.to_le_bytes();
                bytes[..low.len()].copy_from_slice(low);
                (*word, literals) = (u64::from_le_bytes(bytes), more);
            }
            let (out, _) = lines[number].as_chunks_mut::<8>();
            out.iter_mut().zip(words).for_each(|(out, word)| *out = word.to_le_bytes());
            above = words;
        }
        literals.is_empty().then_some(distances)
    }

    /// Lines of pointers, numbers, noise, zeros and words from before.
    fn heap(random: &mut Random, lines: usize) -> Vec<[u8; LINE_BYTES]> {
        let mut words = Vec::new();
        while words.len() < lines * LINE_WORDS {
            let word = match random.index(9) {
                0 | 1 => 0,
                2 => random.next() >> random.index(64),
                3 => 0x7f3a_5c00_0000 + random.next() % (1 << (8 * (1 + random.index(4)))),
                4 => u64::MAX,
                5 if words.len() >= 8 => words[words.len() - 8],
                6 if words.len() >= 8 => {
                    words[words.len() - 8] ^ random.next() >> (8 * random.index(8))
                }
                7 if !words.is_empty() => words[random.index(words.len())],
                8 if !words.is_empty() => words[random.index(words.len())] ^ random.next() & 0xffff,
                _ => random.next(),
            };
            words.push(word);
        }
        words
            .chunks_exact(LINE_WORDS)
            .map(|line| core::array::from_fn(|i| line[i / 8].to_le_bytes()[i % 8]))
            .collect()
    }

    /// Against what is written down naively.
    fn compare(loops: vector::Loops, seed: u64) {
        let mut random = Random::new(seed);
        let mut tables = [[0xa5; TABLES_BYTES], [0x5a; TABLES_BYTES]];
        for round in 0..3000 {
            let lines = heap(&mut random, round % (BLOCK_LINES + 1));
            let room =
                if round % 3 == 0 { random.index(lines.len() * LINE_BYTES + 1) } else { 5000 };
            let mut outs = [vec![0; room], vec![0; room]];
            let mut found = [Lines::new(), Lines::new()];
            let ([naive_tables, tables], [naive_out, out]) = (&mut tables, &mut outs);
            let [naive_found, new_found] = &mut found;
            let fits = [
                naive_compress(naive_tables, &lines, naive_out, naive_found),
                loops.compress(tables, &lines, out, new_found),
            ];
            assert_eq!(fits[0], fits[1], "round {round}");
            if !fits[0] {
                continue;
            }
            let parts = |i: usize| {
                let f = &found[i];
                (
                    f.with_code,
                    outs[i][..f.literal_bytes].to_vec(),
                    f.codes[..f.code_bytes].to_vec(),
                    f.distances[..f.distance_bytes].to_vec(),
                )
            };
            assert_eq!(parts(0), parts(1), "round {round}");
            let (with_code, literals, codes, mut distances) = parts(0);
            let count = distances.len();
            distances.resize(count + random.index(9), 7);
            // Both decoders, and both with something wrong.
            for damage in 0..4 {
                let (mut literals, mut codes, mut distances) =
                    (literals.clone(), codes.clone(), distances.clone());
                let bytes = match damage {
                    1 => &mut literals,
                    2 => &mut codes,
                    _ => &mut distances,
                };
                if damage > 0 && !bytes.is_empty() {
                    let at = random.index(bytes.len());
                    match random.index(3) {
                        0 => bytes.truncate(at),
                        _ => bytes[at] ^= 1 << random.index(8),
                    }
                }
                let block =
                    Block { with_code, literals: &literals, codes: &codes, distances: &distances };
                let mut back =
                    [vec![[1; LINE_BYTES]; lines.len()], vec![[2; LINE_BYTES]; lines.len()]];
                let ends = [
                    naive_decompress(&block, &mut back[0]),
                    loops.decompress(&block, &mut back[1]),
                ];
                assert_eq!(ends[0], ends[1], "round {round}, damage {damage}");
                if ends[0].is_some() {
                    assert!(back[0] == back[1], "round {round}, damage {damage}");
                }
                if damage == 0 {
                    assert_eq!(ends[0], Some(count));
                    assert!(back[0] == lines, "round {round}");
                }
            }
        }
    }

    #[test]
    fn with_what_the_processor_has_the_bytes_are_those_that_are_said() {
        for (level, seed) in
            [(vector::Level::Plain, 11), (vector::Level::Avx2, 12), (vector::Level::Avx512, 11)]
        {
            match vector::loops().at(level) {
                Some(loops) => compare(loops, seed),
                None => println!("SKIPPED: this processor has no {level:?}"),
            }
        }
    }

    #[test]
    fn what_a_heap_is_made_of_takes_what_the_table_says() {
        let mut tables = [0; TABLES_BYTES];
        let mut len_of = |words: &[u64]| {
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            let mut out = vec![0; 2 * bytes.len() + 64];
            let len = compress(&mut tables, &bytes, &mut out).unwrap().len;
            let mut back = vec![1; bytes.len()];
            decompress(&out[..len], &mut back).unwrap();
            assert_eq!(back, bytes);
            len
        };
        assert_eq!(len_of(&[0; 512]), HEAD_BYTES);
        assert_eq!(len_of(&[3; 8]), HEAD_BYTES + CODE_BYTES + 8);
        // The line before, again: codes only.
        assert_eq!(len_of(&[0x7f00_1234_5678; 16]), HEAD_BYTES + 2 * CODE_BYTES + 8 * 6);
        // Somewhere before, with another low byte: that byte and a distance.
        let mut words = [0; 24];
        words[..8].fill(0x7f00_1234_5678);
        words[16..].fill(0x7f00_1234_56ff);
        assert_eq!(len_of(&words), HEAD_BYTES + 2 * CODE_BYTES + 8 * 6 + 8 * 2);
        // Not a whole line: as it is.
        assert_eq!(len_of(&[5; 3]), HEAD_BYTES + 24);
    }

    #[test]
    fn what_repeats_itself_becomes_lz4_whatever_came_before() {
        let mut random = Random::new(5);
        let mut c = WordsCompressor::new().unwrap();
        let mut dst = [0; PAGE_SIZE];
        let mut form = |page: &[u8; PAGE_SIZE]| c.compress(page, &mut dst[..PAGE_SIZE - 256]);
        // Repeated at a distance that is no multiple of a word's length.
        let key: Vec<u8> = (0..1003).map(|_| b'a' + random.index(26) as u8).collect();
        let repeated = core::array::from_fn(|i| key[i % key.len()]);
        // No word comes again, but parts of words do.
        let text = |random: &mut Random| -> [u8; PAGE_SIZE] {
            let words =
                core::iter::repeat_with(|| format!("which {} was written ", random.next() % 1000));
            let bytes: Vec<u8> = words.flat_map(String::into_bytes).take(PAGE_SIZE).collect();
            bytes.try_into().unwrap()
        };
        for _ in 0..1000 {
            assert!(form(&core::array::from_fn(|_| random.next() as u8)).is_err());
            assert!(matches!(form(&text(&mut random)), Ok(Form::Lz4(..2000))));
            assert!(matches!(form(&repeated), Ok(Form::Lz4(..1200))));
        }
    }
}
