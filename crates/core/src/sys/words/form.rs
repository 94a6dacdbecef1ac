//! The form of a compressed block of words, as `codec/words.rs` draws it: its parts, its codes, and
//! the tables by which they are chosen.
#![forbid(unsafe_code)]

use crate::sys::PAGE_SIZE;

pub const LINE_BYTES: usize = 64;
pub const LINE_WORDS: usize = LINE_BYTES / 8;
pub const BLOCK_LINES: usize = PAGE_SIZE / LINE_BYTES;
pub const BLOCK_WORDS: usize = PAGE_SIZE / 8;
/// Bytes of a block before its literals.
pub const HEAD_BYTES: usize = 10;
/// Bytes of codes of one line.
pub const CODE_BYTES: usize = LINE_WORDS / 2;
/// The largest distance: it goes into a byte.
pub const DISTANCE_MAX: usize = 255;

/// Low bytes that each code replaces.
pub const LITERALS: [u8; 16] = [0, 1, 2, 4, 5, 6, 8, 0, 1, 2, 3, 4, 6, 0, 1, 2];
/// The first code with the word a line before for its base, and the first with a distance.
pub const FIRST_ABOVE: u8 = 7;
pub const FIRST_DISTANT: u8 = 13;

/// The bits that the keys of the two tables leave out: one table says where a word with the same
/// upper seven bytes was last, the other where one with the same upper six. An entry is a guess
/// that is checked.
pub const SHIFTS: [u32; 2] = [8, 16];
pub const TABLE_WORDS: usize = 512;
pub const TABLES_BYTES: usize = 2 * TABLE_WORDS * size_of::<u32>();
/// Knuth's multiplier of 32 bits, and where the bits of the product are that count.
pub const MULTIPLIER: u64 = 0x9e37_79b1;
pub const PRODUCT_SHIFT: u32 = 20;

/// The choice by number of bytes that differ from a base, 0 to 8: the code in the low four bits,
/// and its cost in bytes above them.
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
pub const MASKS: [u64; 16] = {
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

/// The form of a block's lines, but for their literals.
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
    /// Whether hardly anything has become smaller after `done` of `lines` lines, though it has to,
    /// to fit `room`. Such a page is text, say, and the time for the rest is better spent on
    /// another codec.
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

    pub(crate) const fn new() -> Lines {
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

/// The parts of a compressed block.
pub struct Block<'a> {
    pub with_code: u64,
    pub literals: &'a [u8],
    pub codes: &'a [u8],
    /// The distances, and all that follows.
    pub distances: &'a [u8],
}

/// The first `N` bytes of `bytes`; behind its last byte those of `spare`, which are zero.
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
