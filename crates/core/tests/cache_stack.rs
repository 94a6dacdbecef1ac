//! How much stack the cache takes: it runs on alternate signal stacks of tens of KiB, below the
//! fault handler's frames.

mod stack;

use stack::{on_a_fresh_stack, stack_bytes_of};
use uzswap::cache::{CacheConfig, Page, SwapCache};
use uzswap::codec::CodecSpec;
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

/// Fills a page with pieces that the pages of all tags are made of.
fn set_kin(p: &mut Page, tag: u64) {
    for (i, piece) in p.chunks_exact_mut(128).enumerate() {
        let mut x = ((tag * 31 + i as u64 * 7) % 24).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        for word in piece.chunks_exact_mut(8) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            word.copy_from_slice(&x.to_le_bytes());
        }
    }
    p[..8].copy_from_slice(&tag.to_le_bytes());
}

#[test]
fn groups_take_little_stack() {
    let directory = std::env::temp_dir();
    let store = FileStore::open(directory.as_os_str().as_encoded_bytes()).unwrap();
    let recompressor = CodecSpec::parse("zstd:level=-1").ok();
    let cache =
        SwapCache::new(CacheConfig { store: Some(store), recompressor, ..CacheConfig::default() })
            .unwrap();
    cache.set_leisure(true);
    let (mut page, mut back) = (Box::new([0; 4096]), Box::new([0; 4096]));
    let run = || {
        let mut entries = Vec::with_capacity(2000);
        for tag in 0..2000 {
            set_kin(&mut page, tag);
            entries.push(cache.swap_out(&page).unwrap());
        }
        let make = stack_bytes_of(|| while cache.recompress(64) > 0 {});
        let load = stack_bytes_of(|| {
            for e in entries.iter().step_by(5) {
                cache.swap_in(*e, &mut back).unwrap();
            }
        });
        let free = stack_bytes_of(|| entries.drain(..).step_by(3).for_each(|e| cache.free(e)));
        let write = stack_bytes_of(|| {
            cache.shrink(1 << 30);
        });
        let c = cache.counters();
        assert!(c.group_loads > 0 && c.dispersed_pages > 0, "every way was gone: {c:?}");
        (make, load, free, write)
    };
    let (make, load, free, write) = on_a_fresh_stack(run);
    println!("recompress {make}, swap_in {load}, free {free}, shrink {write} bytes");
    assert!(make <= 16 << 10 && write <= 16 << 10, "{make} {write}");
    assert!(load <= 12 << 10 && free <= 8 << 10, "{load} {free}");
}

#[test]
fn swapping_out_and_in_takes_little_stack() {
    let directory = std::env::temp_dir();
    let store = FileStore::open(directory.as_os_str().as_encoded_bytes()).unwrap();
    let config =
        CacheConfig { max_pool_bytes: 1 << 20, store: Some(store), ..CacheConfig::default() };
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
