//! After it is made, the cache never calls the Rust allocator: it runs in a program's fault
//! handler, where the program's own allocator may be half-way through something.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use uzswap::cache::{CacheConfig, Page, SwapCache, SwapEntry};
use uzswap::codec::CodecSpec;
use uzswap::pool::PoolKind;
use uzswap::store::FileStore;

thread_local! {
    static FORBIDDEN: Cell<bool> = const { Cell::new(false) };
}

/// The system's allocator, for code that may allocate.
struct Watched;

fn check() {
    if FORBIDDEN.get() {
        FORBIDDEN.set(false);
        panic!("the cache allocates");
    }
}

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        check();
        // SAFETY: the caller's contract is the same.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        check();
        // SAFETY: the caller's contract is the same.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

fn page(tag: u64) -> Page {
    let mut p = [0; 4096];
    let mut x = tag.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for (i, word) in p.chunks_exact_mut(8).enumerate() {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        // Some pages are all noise, some one word, most half and half.
        let w = match tag % 8 {
            0 => x.wrapping_mul(0x2545_F491_4F6C_DD1D),
            1 => tag,
            _ if i % 3 == 0 => x,
            _ => tag,
        };
        word.copy_from_slice(&w.to_le_bytes());
    }
    p
}

#[test]
fn nothing_is_allocated_after_construction() {
    let directory = std::env::temp_dir();
    let store = FileStore::open(directory.as_os_str().as_encoded_bytes()).unwrap();
    let config =
        CacheConfig { max_pool_bytes: 1 << 20, store: Some(store), ..CacheConfig::default() };
    let cache = SwapCache::new(config).unwrap();
    let mut entries: Vec<SwapEntry> = Vec::with_capacity(9000);
    FORBIDDEN.set(true);
    cache.init(1).unwrap();
    for (round, codec) in ["words", "lz4", "zstd", "lzo", "deflate"].into_iter().enumerate() {
        cache.set_codec(CodecSpec::parse(codec).unwrap());
        cache.set_pool([PoolKind::Zsmalloc, PoolKind::Zbud][round % 2]);
        for tag in 0..1500 {
            entries.push(cache.swap_out(&page(tag)).unwrap());
            cache.store(SwapEntry::new(1, tag as u32 * 1000), &page(tag + 1)).unwrap();
        }
        let mut p = [0; 4096];
        for (tag, e) in entries.iter().enumerate() {
            cache.swap_in(*e, &mut p).unwrap();
            assert!(p == page(tag as u64 % 1500));
        }
        cache.shrink(1 << 30);
        for e in entries.iter().step_by(7) {
            cache.swap_in(*e, &mut p).unwrap();
        }
        let guard = cache.prepare_fork();
        cache.after_fork_failed(guard);
        cache.check();
        assert!(cache.counters().store_loads > 0 && cache.footprint_bytes() > 0);
    }
    // Pages that resemble each other become groups.
    cache.set_codec(CodecSpec::default());
    cache.set_recompressor(CodecSpec::parse("zstd:level=-1").ok());
    cache.set_leisure(true);
    cache.set_max_pool_bytes(64 << 20);
    let from = entries.len();
    let alike = |tag: u64| {
        let mut p = page(2);
        p[..8].copy_from_slice(&tag.to_le_bytes());
        p
    };
    for tag in 0..1000 {
        entries.push(cache.swap_out(&alike(tag)).unwrap());
    }
    cache.recompress(usize::MAX);
    let mut p = [0; 4096];
    for (tag, e) in entries[from..].iter().enumerate() {
        cache.swap_in(*e, &mut p).unwrap();
        assert!(p == alike(tag as u64));
    }
    cache.give_buffers_back();
    cache.shrink(1 << 30);
    let c = cache.counters();
    assert!(c.group_loads > 0 && c.dispersed_pages > 0);
    cache.check();
    cache.invalidate_area(1);
    for e in entries.drain(..) {
        cache.free(e);
    }
    cache.check();
    FORBIDDEN.set(false);
}
