//! What the fuzz targets do with their bytes. Each target is one function here, so that it also
//! runs without a fuzzer (`tests/seeded.rs`).
//!
//! ```text
//!  cargo +nightly fuzz run decompress -- -detect_leaks=0      or round_trip, pool, clusters, cache, disk
//! ```
//! (Stores in memory leave a few bytes each, which the leak detector would report.)
//!
//! *decompress* gives every decoder bytes that no compressor wrote; it must return, and leave what
//! is around its output alone. *round_trip* compresses anything and wants it back. *disk* is a
//! client of `uzswap disk` that says anything, or valid requests, of which a model knows the
//! answers. The other three run the naive models of `uzswap::testing` on events that the bytes
//! choose.

use std::cell::RefCell;

use uzswap::cache::{CacheConfig, SwapCache};
use uzswap::codec::{CodecSpec, Codecs, Scratch, Training};
use uzswap::pool::PoolKind;
use uzswap::store::testing::{Fault, MemoryStore};
use uzswap::testing::{self, Bytes, Choices};
use uzswap_disk::Disk;
use uzswap_disk::handshake::Agreement;

const SPECS: [&str; 13] = [
    "words",
    "lz4",
    "lz4hc:9",
    "lzo",
    "lzo-rle",
    "842",
    "none",
    "zstd:-5",
    "zstd:1",
    "zstd:19",
    "zstd:1,dict=auto",
    "deflate:1",
    "deflate:9",
];

/// Codecs with a trained dictionary, so that its decoder is reached too, and working memory that is
/// used again.
struct Decoders {
    codecs: Codecs,
    scratch: Scratch,
}

thread_local! {
    static DECODERS: RefCell<Decoders> = RefCell::new(Decoders::new());
}

impl Decoders {
    fn new() -> Decoders {
        let codecs = Codecs::new(spec("zstd:1,dict=auto"));
        let (mut scratch, mut out) = (Scratch::new(), [0; 8192]);
        let kinds: Vec<Vec<u8>> = (0..40).map(|kind| testing::object(kind, 300)).collect();
        let mut random = testing::Random::new(1);
        while !codecs.training_due() {
            let mut page: Vec<u8> = Vec::new();
            while page.len() < 4096 {
                page.extend_from_slice(&kinds[random.index(kinds.len())]);
                page.extend_from_slice(&random.next().to_le_bytes());
            }
            codecs.compress(&mut scratch, &page[..4096], &mut out).expect("such a page shrinks");
        }
        assert!(matches!(codecs.train(), Training::Kept { .. }));
        Decoders { codecs, scratch }
    }
}

fn spec(text: &str) -> CodecSpec {
    text.parse().expect("a codec of ours")
}

/// Three bytes say which decoder and how long the output, the rest is what it gets.
pub fn decompress(data: &[u8]) {
    let Some((&[codec, low, high], form)) = data.split_first_chunk::<3>() else { return };
    let len = usize::from(u16::from_le_bytes([low, high])) % 8193;
    DECODERS.with_borrow_mut(|Decoders { codecs, scratch }| {
        let mut out = vec![0xdd; len + 64];
        // A copy of its own, so that a sanitizer sees a read behind its end.
        let form = form.to_vec().into_boxed_slice();
        let _ = codecs.decompress(codec, scratch, &form, &mut out[..len]);
        assert!(out[len..].iter().all(|&byte| byte == 0xdd), "codec {codec} wrote past its output");
    });
}

/// The first byte says which compressor, the second how much room there is; the rest is what it
/// gets.
pub fn round_trip(data: &[u8]) {
    let Some((&[which, room], src)) = data.split_first_chunk::<2>() else { return };
    DECODERS.with_borrow_mut(|Decoders { codecs, scratch }| {
        codecs.select(spec(SPECS[usize::from(which) % SPECS.len()]));
        let src = src[..src.len().min(16 << 10)].to_vec().into_boxed_slice();
        let room = if room < 128 {
            src.len() * 9 / 8 + 64
        } else {
            src.len() * usize::from(room - 128) / 128
        };
        let mut out = vec![0xdd; room + 64];
        let done = codecs.compress(scratch, &src, &mut out[..room]);
        assert!(out[room..].iter().all(|&byte| byte == 0xdd), "wrote past its room");
        let Ok(done) = done else {
            assert!(room < src.len() * 9 / 8 + 64, "{} did not fit", src.len());
            return;
        };
        let form = out[..done.len].to_vec().into_boxed_slice();
        let mut back = vec![0; src.len()];
        codecs
            .decompress(done.codec, scratch, &form, &mut back)
            .expect("what was compressed decompresses");
        assert!(back == *src, "other bytes came back");
        if codecs.training_due() {
            codecs.train();
        }
    });
}

pub fn pool(data: &[u8]) {
    let mut choices = Bytes(data);
    let kind = PoolKind::ALL[choices.index(PoolKind::ALL.len())];
    testing::pool::run(kind, &mut choices, usize::MAX);
}

pub fn clusters(data: &[u8]) {
    testing::clusters::run(&mut Bytes(data), usize::MAX);
}

pub fn cache(data: &[u8]) {
    let mut choices = Bytes(data);
    let store = MemoryStore::new();
    let n = 1 + choices.below(40);
    let fault = [Fault::Never, Fault::Once(n), Fault::From(n), Fault::Every(n)][choices.index(4)];
    store.set_fault(fault);
    store.set_late(choices.below(2) == 0);
    let max_pool_bytes = choices.index(256) << 10;
    let pool = PoolKind::ALL[choices.index(PoolKind::ALL.len())];
    let config = CacheConfig { max_pool_bytes, pool, store: Some(store), ..CacheConfig::default() };
    let cache = SwapCache::new(config).expect("memory for the cache");
    testing::cache::run(&cache, &mut choices, u64::MAX, 500, fault != Fault::Never);
}

/// The first byte says which: what a stranger sends, from the handshake on, after one, or requests
/// that a model knows.
pub fn disk(data: &[u8]) {
    const BYTES: u64 = 300_001;
    let Some((&which, rest)) = data.split_first() else { return };
    let disk =
        Disk::new(&uzswap_disk::testing::config(BYTES, 8 << 20)).expect("memory for the disk");
    // "IHAVEOPT", GO or EXPORT_NAME of the default, with and without structured replies before.
    const OPTION: &[u8] = b"IHAVEOPT";
    let hello = |options: &[&[u8]]| {
        let mut bytes = vec![0, 0, 0, 3];
        options.iter().for_each(|o| bytes.extend([OPTION, o].concat()));
        bytes.extend(rest);
        bytes
    };
    let structured: &[u8] = b"\0\0\0\x08\0\0\0\0";
    let enter: &[u8] = b"\0\0\0\x01\0\0\0\0";
    let context: &[u8] = b"\0\0\0\x0a\0\0\0\x1b\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation";
    let said = match which % 5 {
        0 => uzswap_disk::testing::connection(&disk, rest),
        1 => uzswap_disk::testing::connection(&disk, &hello(&[])),
        2 => uzswap_disk::testing::connection(&disk, &hello(&[enter])),
        3 => uzswap_disk::testing::connection(&disk, &hello(&[structured, context, enter])),
        _ => {
            let mut choices = Bytes(rest);
            let structured = choices.below(2) == 0;
            let agreement =
                Agreement { structured, allocation: structured && choices.below(2) == 0 };
            let mut model = vec![0; BYTES as usize];
            let requests = rest.len().div_ceil(8).min(200);
            let mut below = |n| choices.below(n);
            uzswap_disk::testing::requests(&disk, &mut model, agreement, requests, &mut below);
            let mut now = vec![1; BYTES as usize];
            disk.read(0, &mut now).expect("no store, no error");
            assert!(now == model, "the disk is as it was written");
            Vec::new()
        }
    };
    // Requests are small, and so are replies to most: a long reply is to a read.
    assert!(
        said.len() <= 64 + data.len() / 28 * (32 << 20) + data.len() * 300,
        "it says no end of things"
    );
    disk.cache().check();
}
