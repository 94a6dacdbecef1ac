//! Stored pages can be loaded when the process may map nothing more (ulimit -v), after a rest, too.
#![allow(unsafe_code)]

use uzswap::cache::{CacheConfig, Page, SwapCache};
use uzswap::codec::CodecSpec;
use uzswap::store::FileStore;

const PAGES: u64 = 400;

fn page(tag: u64) -> Page {
    let mut p = [0; 4096];
    for (i, word) in p.chunks_exact_mut(8).enumerate() {
        let w = if i % 3 == 0 { (tag + i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) } else { tag };
        word.copy_from_slice(&w.to_le_bytes());
    }
    p
}

/// Lets the process map nothing more. Returns the limits as they were.
fn forbid_mappings() -> libc::rlimit {
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel reads and writes one structure.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_AS, &mut before), 0);
        let none = libc::rlimit { rlim_cur: 4096, rlim_max: before.rlim_max };
        assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &none), 0);
        let refused = libc::mmap(
            core::ptr::null_mut(),
            4096,
            libc::PROT_READ,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_eq!(refused, libc::MAP_FAILED);
    }
    before
}

#[test]
fn every_codec_decodes_without_address_space() {
    let directory = std::env::temp_dir();
    for codec in ["words", "lz4", "zstd", "lzo", "842", "deflate"] {
        let store = FileStore::open(directory.as_os_str().as_encoded_bytes()).unwrap();
        let config =
            CacheConfig { max_pool_bytes: 1 << 20, store: Some(store), ..CacheConfig::default() };
        let cache = SwapCache::new(config).unwrap();
        cache.set_codec(CodecSpec::parse(codec).unwrap());
        let entries: Vec<_> = (0..PAGES).map(|tag| cache.swap_out(&page(tag)).unwrap()).collect();
        // Some are in the pool, some in the file; nobody has decoded anything.
        cache.shrink(200 << 10);
        cache.give_buffers_back();
        let before = forbid_mappings();
        let mut bytes = [0; 4096];
        let wrong = entries.iter().zip(0..).find(|(entry, tag)| {
            cache.swap_in(**entry, &mut bytes).is_err() || bytes != page(*tag)
        });
        // SAFETY: the kernel reads one structure.
        unsafe { libc::setrlimit(libc::RLIMIT_AS, &before) };
        assert!(wrong.is_none(), "{codec}: page {}", wrong.expect("one").1);
        let c = cache.counters();
        assert!(c.pool_loads > 0 && c.store_loads > 0, "{codec}: {c:?}");
    }
}
