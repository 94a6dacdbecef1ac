//! Tests of the cache as a whole.

mod basic;

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

pub fn in_memory(max_pool_bytes: usize) -> (SwapCache<MemoryStore>, MemoryStore) {
    let store = MemoryStore::new();
    let config = CacheConfig { max_pool_bytes, store: Some(store), ..CacheConfig::default() };
    (SwapCache::new(config).unwrap(), store)
}

pub fn loaded<S: Store>(cache: &SwapCache<S>, e: SwapEntry) -> Page {
    let mut p = [0xee; PAGE_SIZE];
    cache.swap_in(e, &mut p).unwrap();
    p
}
