//! Tests of the cache as a whole.

mod basic;
mod fork;
mod limits;
mod model;
mod races;
mod store;
mod windows;

use super::*;
use crate::store::testing::MemoryStore;

/// A page that says what it is: compressible to about half, different for every tag.
pub fn page(tag: u64) -> Page {
    let mut p = [0u8; PAGE_SIZE];
    let mut x = tag.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for (i, word) in p.chunks_exact_mut(8).enumerate() {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        let w = if i % 3 == 0 { x } else { tag };
        word.copy_from_slice(&w.to_le_bytes());
    }
    p
}

/// A page that no codec makes smaller.
pub fn noise(tag: u64) -> Page {
    let mut p = [0u8; PAGE_SIZE];
    let mut x = tag.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for word in p.chunks_exact_mut(8) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        word.copy_from_slice(&x.wrapping_mul(0x2545_F491_4F6C_DD1D).to_le_bytes());
    }
    p
}

/// Any kind of page, the same for the same tag.
pub fn any_page(tag: u64) -> Page {
    match tag % 16 {
        0 | 1 => [(tag / 16) as u8; PAGE_SIZE],
        2 | 3 => noise(tag),
        4..=7 => {
            // Very compressible.
            let mut p = [7; PAGE_SIZE];
            p[64..72].copy_from_slice(&tag.to_le_bytes());
            p
        }
        _ => page(tag),
    }
}

pub fn over<S: Store>(store: S, max_pool_bytes: usize) -> SwapCache<S> {
    SwapCache::new(CacheConfig { max_pool_bytes, store: Some(store), ..CacheConfig::default() }).unwrap()
}

pub fn over_file(max_pool_bytes: usize) -> SwapCache<FileStore> {
    over(FileStore::open(std::env::temp_dir().as_os_str().as_encoded_bytes()).unwrap(), max_pool_bytes)
}

pub fn in_memory(max_pool_bytes: usize) -> (SwapCache<MemoryStore>, MemoryStore) {
    let store = MemoryStore::new();
    (over(store, max_pool_bytes), store)
}

pub fn loaded<S: Store>(cache: &SwapCache<S>, e: SwapEntry) -> Page {
    let mut p = [0xee; PAGE_SIZE];
    cache.swap_in(e, &mut p).unwrap();
    p
}

/// A small generator of numbers that can be named by its seed.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(0x1234_5678_9abc_def1))
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }
}
