//! How much stack the cache takes: it runs on alternate signal stacks of tens of KiB, below the fault
//! handler's frames.

mod stack;

use stack::{on_a_fresh_stack, stack_bytes_of};
use uzswap::cache::{CacheConfig, Page, SwapCache};
use uzswap::store::FileStore;

/// Fills a page without taking stack.
fn set(p: &mut Page, tag: u64) {
    let mut x = tag.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for (i, word) in p.chunks_exact_mut(8).enumerate() {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        let w = if i % 3 == 0 || tag.is_multiple_of(4) { x } else { tag };
        word.copy_from_slice(&w.to_le_bytes());
    }
}

#[test]
fn swapping_out_and_in_takes_little_stack() {
    let directory = std::env::temp_dir();
    let store = FileStore::open(directory.as_os_str().as_encoded_bytes()).unwrap();
    let config = CacheConfig { max_pool_bytes: 1 << 20, store: Some(store), ..CacheConfig::default() };
    let cache = SwapCache::new(config).unwrap();
    let (mut page, mut back) = (Box::new([0; 4096]), Box::new([0; 4096]));
    let mut entries = Vec::with_capacity(4000);
    let run = || {
        let out = stack_bytes_of(|| {
            for tag in 0..4000 {
                set(&mut page, tag);
                entries.push(cache.swap_out(&page).unwrap());
            }
        });
        let load = stack_bytes_of(|| {
            for e in &entries {
                cache.swap_in(*e, &mut back).unwrap();
            }
        });
        let free = stack_bytes_of(|| entries.drain(..).for_each(|e| cache.free(e)));
        let c = cache.counters();
        assert!(
            c.store_loads > 0 && c.written_back_pages > 0 && c.discarded_clusters > 0,
            "every way was gone"
        );
        (out, load, free)
    };
    let (out, load, free) = on_a_fresh_stack(run);
    println!("swap_out {out}, swap_in {load}, free {free} bytes");
    assert!(out <= 16 << 10 && load <= 12 << 10 && free <= 8 << 10, "{out} {load} {free}");
}
