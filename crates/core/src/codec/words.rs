//! Words: a codec for heaps, after WKdm (Wilson, Kaplan and Smaragdakis, 1999), eight words of
//! eight bytes at a time.
//!
//! A heap holds pointers that share their upper bytes, small numbers, zeros, and words that were
//! there a moment ago. So each word is given by its *base*, a word that is known already, and
//! by *literal* bytes that replace the low bytes of the base:
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
use crate::sys::words::{
    self as vector, BLOCK_LINES, Block, CODE_BYTES, HEAD_BYTES, LINE_BYTES, Lines, TABLES_BYTES,
};
use crate::sys::{PAGE_SIZE, Result};

/// The form of a compressed page, and its length.
pub enum Form {
    Words(usize),
    Lz4(usize),
}

/// Working memory: the tables, and lz4's, for pages of which lz4 makes less (text, above all).
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
        // A page that words cannot compress is lz4's in any case.
        let is_due = by_words.is_err() || kind.is_some_and(|kind| self.offers.is_due(kind));
        if !is_due || src.len() != PAGE_SIZE {
            return by_words.map(Form::Words);
        }
        // A page by lz4 costs three times as much to bring back, so it has to be clearly smaller.
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

/// A compressed input: its length, and how many words have a distance.
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

/// Restores the whole of `dst` from the whole of `src`, and returns its length. `None`: `compress`
/// did not write `src`.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Choices, Random};

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
