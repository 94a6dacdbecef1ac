//! Contents that the worker writes into its pages: made up like a heap, or taken from a file.
//!
//! The made-up page is a row of small objects as runtimes keep them: a type pointer out of few, a
//! reference count, lengths, pointers to neighbours, a hash, a short text. LZ4 makes it about a
//! third, which is what heaps of real programs give. A number always gives one and the same page,
//! so a page that comes back can be compared without a second copy.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

pub use uzswap::PAGE_BYTES;
pub type PageBytes = [u8; PAGE_BYTES];

/// Where pages come from.
pub enum Pages {
    Synthetic,
    /// Pages of a file, from its start again after the last whole one.
    Corpus {
        file: File,
        pages: u64,
    },
}

impl Pages {
    pub fn from_file(path: &Path) -> io::Result<Pages> {
        let file = File::open(path)?;
        let pages = file.metadata()?.len() / PAGE_BYTES as u64;
        if pages == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "shorter than one page"));
        }
        Ok(Pages::Corpus { file, pages })
    }

    /// Makes page number `page`.
    pub fn make(&self, page: u64, bytes: &mut PageBytes) -> io::Result<()> {
        match self {
            Pages::Synthetic => synthetic(page, bytes),
            Pages::Corpus { file, pages } => {
                file.read_exact_at(bytes, page % pages * PAGE_BYTES as u64)?;
            }
        }
        Ok(())
    }
}

/// Sebastiano Vigna's splitmix64: the whole state is one word, and any word will do.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number from 0 to `end`, which is not 0; the bias does not matter where `end` is small
    /// against 2^64.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Fisher and Yates. The bias of the modulus is 2^-32 for any order that fits in memory here.
    pub fn shuffle(&mut self, order: &mut [u32]) {
        for i in (1..order.len()).rev() {
            order.swap(i, (self.next() % (i as u64 + 1)) as usize);
        }
    }
}

const HEAP_BASE: u64 = 0x7f3a_5c00_0000;
const TYPES_BASE: u64 = 0x55d4_1e8a_2000;
const TYPES: u64 = 12;
const WORDS: [&[u8; 8]; 16] = [
    b"__init__",
    b"username",
    b"address\0",
    b"value\0\0\0",
    b"position",
    b"created\0",
    b"parent\0\0",
    b"children",
    b"http://w",
    b"ww.examp",
    b"le.org/i",
    b"ndex.htm",
    b"2026-01-",
    b"true\0\0\0\0",
    b"undefine",
    b"function",
];

fn synthetic(page: u64, bytes: &mut PageBytes) {
    const OBJECT_WORDS: usize = 8;
    // How many of eight objects have been hashed: what compresses least, so it sets the ratio.
    const HASHED_EIGHTHS: u64 = 1;
    let mut random = Random(page ^ 0x5eed << 48);
    let address = HEAP_BASE + page * PAGE_BYTES as u64;
    for (number, object) in bytes.chunks_exact_mut(OBJECT_WORDS * 8).enumerate() {
        let dice = random.next();
        let text = WORDS[(dice >> 8 & dice >> 12 & 15) as usize];
        let neighbour = address + (number as u64 * 64 + (dice >> 16 & 0xff) * 16);
        let words: [u64; OBJECT_WORDS] = [
            1 + u64::from(dice & 7 == 0),
            TYPES_BASE + (dice >> 4) % TYPES * 0x1a0,
            dice >> 32 & dice >> 34 & 7,
            neighbour,
            if dice >> 40 & 7 < HASHED_EIGHTHS { random.next() } else { u64::MAX },
            u64::from_ne_bytes(*text),
            if dice >> 50 & 1 == 0 { 0 } else { address + (dice >> 44 & 0x3f) * 64 },
            0,
        ];
        for (word, place) in words.iter().zip(object.chunks_exact_mut(8)) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_always_the_same_and_never_another() {
        let (mut one, mut again) = ([0; PAGE_BYTES], [1; PAGE_BYTES]);
        let mut seen = std::collections::HashSet::new();
        for page in 0..2000 {
            Pages::Synthetic.make(page, &mut one).unwrap();
            Pages::Synthetic.make(page, &mut again).unwrap();
            assert!(one == again, "{page}");
            assert!(seen.insert(one), "{page}");
        }
    }

    #[test]
    fn pages_compress_like_a_heap() {
        let mut bytes = [0; PAGE_BYTES];
        let mut packed = 0;
        const PAGES: u64 = 500;
        for page in 0..PAGES {
            Pages::Synthetic.make(page * 131, &mut bytes).unwrap();
            packed += lz4_flex::block::compress(&bytes).len();
        }
        let ratio = (PAGES as usize * PAGE_BYTES) as f64 / packed as f64;
        assert!((2.7..3.3).contains(&ratio), "{ratio}");
    }

    #[test]
    fn pages_of_a_file_come_round() {
        let path = std::env::temp_dir().join(format!("uzswap-corpus-{}", std::process::id()));
        let mut content: Vec<u8> =
            (0..3 * PAGE_BYTES).map(|i| (i / PAGE_BYTES) as u8 + 7).collect();
        content.extend([9; 100]);
        std::fs::write(&path, &content).unwrap();
        let pages = Pages::from_file(&path).unwrap();
        std::fs::write(path.with_extension("short"), [0; 4095]).unwrap();
        assert!(Pages::from_file(&path.with_extension("short")).is_err());
        std::fs::remove_file(&path).unwrap();
        std::fs::remove_file(path.with_extension("short")).unwrap();
        let mut bytes = [0; PAGE_BYTES];
        for (page, value) in [(0, 7), (2, 9), (3, 7), (4, 8)] {
            pages.make(page, &mut bytes).unwrap();
            assert_eq!(bytes, [value; PAGE_BYTES], "{page}");
        }
    }

    #[test]
    fn a_shuffle_is_a_permutation() {
        let mut order: Vec<u32> = (0..1000).collect();
        Random(1).shuffle(&mut order);
        let mut other: Vec<u32> = (0..1000).collect();
        Random(2).shuffle(&mut other);
        assert_ne!(order, other);
        let neighbours = order.windows(2).filter(|w| w[0] + 1 == w[1]).count();
        assert!(neighbours < 20, "{neighbours}");
        order.sort_unstable();
        assert!(order.into_iter().eq(0..1000));
    }
}
