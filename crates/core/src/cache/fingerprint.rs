//! Fingerprints of pages: NH (the hash of UMAC and VMAC: products of keyed word pairs, summed to
//! 128 bits), then a keyed polynomial modulo 2^61 - 1. Both are universal: without the key nobody
//! can make two pages agree.

use super::Page;
use crate::sys::file::fill_random;
use crate::sys::mem::Mapping;
use crate::sys::{PAGE_SIZE, Result};

/// A key, and the fingerprints under it.
pub struct Fingerprint {
    /// A page of key.
    key: Mapping,
    last: [u64; 4],
}

const PRIME: u64 = (1 << 61) - 1;

impl Fingerprint {
    pub fn new() -> Result<Fingerprint> {
        let mut key = Mapping::new(PAGE_SIZE)?;
        fill_random(key.as_mut_slice())?;
        let mut last = [0; 4];
        for word in &mut last {
            let mut bytes = [0; 8];
            fill_random(&mut bytes)?;
            *word = u64::from_le_bytes(bytes) % PRIME;
        }
        Ok(Fingerprint { key, last })
    }

    pub fn of(&self, page: &Page) -> u64 {
        let (data, _) = page.as_chunks::<16>();
        let (key, _) = self.key.as_slice().as_chunks::<16>();
        let mut sum = 0u128;
        for (d, k) in data.iter().zip(key) {
            let ([d0, d1], [k0, k1]) = (words(d), words(k));
            sum =
                sum.wrapping_add(u128::from(d0.wrapping_add(k0)) * u128::from(d1.wrapping_add(k1)));
        }
        let parts = [sum as u32, (sum >> 32) as u32, (sum >> 64) as u32, (sum >> 96) as u32];
        let poly: u128 =
            parts.iter().zip(self.last).map(|(&p, k)| u128::from(p) * u128::from(k)).sum();
        (poly % u128::from(PRIME)) as u64
    }
}

fn words(pair: &[u8; 16]) -> [u64; 2] {
    let both = u128::from_le_bytes(*pair);
    [both as u64, (both >> 64) as u64]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::any_page;

    #[test]
    fn every_changed_bit_changes_the_fingerprint() {
        let f = Fingerprint::new().unwrap();
        let mut page = any_page(77);
        let before = f.of(&page);
        assert_eq!(f.of(&page), before);
        for bit in 0..PAGE_SIZE * 8 {
            page[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(f.of(&page), before, "bit {bit}");
            page[bit / 8] ^= 1 << (bit % 8);
        }
        // Words that change places, within a pair and between pairs.
        page[..32].copy_from_slice(&core::array::from_fn::<u8, 32, _>(|i| i as u8));
        let before = f.of(&page);
        for (a, b) in [(0, 8), (0, 16), (8, 24)] {
            let mut other = page;
            other[a..a + 8].copy_from_slice(&page[b..b + 8]);
            other[b..b + 8].copy_from_slice(&page[a..a + 8]);
            assert_ne!(f.of(&other), before, "{a} and {b}");
        }
        assert_ne!(Fingerprint::new().unwrap().of(&page), before, "another key");
    }
}
