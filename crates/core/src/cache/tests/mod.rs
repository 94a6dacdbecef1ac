//! Tests of the cache as a whole.

mod basic;
mod fork;
mod groups;
mod keyed;
mod limits;
mod model;
mod races;
mod remote;
mod servers;
mod store;
mod valkey;
mod windows;

use super::*;
use crate::store::testing::MemoryStore;
use crate::testing::{Choices, Random, any_page, kin, noise, page};

pub fn over<S: Store>(store: S, max_pool_bytes: usize) -> SwapCache<S> {
    SwapCache::new(CacheConfig { max_pool_bytes, store: Some(store), ..CacheConfig::default() })
        .unwrap()
}

pub fn over_file(max_pool_bytes: usize) -> SwapCache<FileStore> {
    over(
        FileStore::open(std::env::temp_dir().as_os_str().as_encoded_bytes()).unwrap(),
        max_pool_bytes,
    )
}

pub fn in_memory(max_pool_bytes: usize) -> (SwapCache<MemoryStore>, MemoryStore) {
    let store = MemoryStore::new();
    (over(store, max_pool_bytes), store)
}

/// Without a store, with a stronger codec than the one in force.
pub fn recompressing(chooses_codec: bool) -> SwapCache {
    let recompressor = CodecSpec::parse("zstd:level=1").ok();
    let config = CacheConfig { recompressor, chooses_codec, ..CacheConfig::default() };
    let cache = SwapCache::new(config).unwrap();
    cache.set_leisure(true);
    cache
}

/// The page of an entry goes back to its owner: whether its copy stays.
pub fn keep<S: Store>(cache: &SwapCache<S>, e: SwapEntry, p: &Page) -> bool {
    let mut back = [0xee; PAGE_SIZE];
    let loaded = cache.swap_in_from(e, &mut back).unwrap();
    assert_eq!(&back, p);
    cache.keep(e, cache.print(loaded, &back))
}

pub fn loaded<S: Store>(cache: &SwapCache<S>, e: SwapEntry) -> Page {
    let mut p = [0xee; PAGE_SIZE];
    cache.swap_in(e, &mut p).unwrap();
    p
}
