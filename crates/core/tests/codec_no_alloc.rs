//! No codec allocates from the program's allocator, and none calls `malloc` behind Rust's back.
//!
//! Codecs run inside programs, under locks of the program's own allocator: a `malloc` there could
//! wait for a page that only the waiting thread can bring in. The Rust side is counted by a global
//! allocator; the C side by defining `malloc` and its relatives in this test program, which the
//! linker prefers to libc's.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::ffi::c_void;

use uzswap::codec::{
    CodecSpec, Codecs, Scratch, Stream, Streams, Training, fill, list, same_filled,
};

thread_local! {
    /// Calls of this thread: the test harness has another one, which allocates when it likes. (A
    /// constant without a destructor, so using it allocates nothing.)
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    CALLS.set(CALLS.get() + 1);
}

unsafe extern "C" {
    fn __libc_malloc(len: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, len: usize) -> *mut c_void;
    fn __libc_realloc(old: *mut c_void, len: usize) -> *mut c_void;
    fn __libc_memalign(align: usize, len: usize) -> *mut c_void;
    fn __libc_free(old: *mut c_void);
}

macro_rules! counted {
    ($($name:ident => $real:ident($($arg:ident: $t:ty),*) -> $r:ty;)*) => { $(
        // SAFETY: libc's own function under libc's own name, with a count added.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $t),*) -> $r {
            count();
            // SAFETY: the caller's arguments, passed on.
            unsafe { $real($($arg),*) }
        }
    )* };
}

counted! {
    malloc => __libc_malloc(len: usize) -> *mut c_void;
    calloc => __libc_calloc(count: usize, len: usize) -> *mut c_void;
    realloc => __libc_realloc(old: *mut c_void, len: usize) -> *mut c_void;
    aligned_alloc => __libc_memalign(align: usize, len: usize) -> *mut c_void;
    memalign => __libc_memalign(align: usize, len: usize) -> *mut c_void;
    free => __libc_free(old: *mut c_void) -> ();
}

/// Counts what never reaches the functions above, should the standard library ever do without them.
struct Counting;

// SAFETY: the system's allocator, with a count added.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's layout, passed on.
        unsafe { std::alloc::System.alloc(layout) }
    }
    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller's arguments, passed on.
        unsafe { std::alloc::System.dealloc(old, layout) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

#[test]
fn no_codec_allocates() {
    let mut page = [0u8; 4096];
    for (i, b) in page.iter_mut().enumerate() {
        *b = ((i * i) >> 7) as u8 & 0x3f;
    }
    let mut noise = [0u8; 4096];
    let mut x = 1u64;
    for b in &mut noise {
        x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        *b = (x >> 56) as u8;
    }
    let specs: Vec<CodecSpec> = list()
        .flat_map(|info| {
            let levels = if info.parameters.contains("level") { 1..23 } else { 0..1 };
            levels.filter_map(move |level| match level {
                0 => CodecSpec::parse(info.name).ok(),
                _ => CodecSpec::parse(&format!("{}:{level}", info.name)).ok(),
            })
        })
        .chain(["zstd:-1", "zstd:-60"].map(|s| CodecSpec::parse(s).unwrap()))
        .collect();
    assert!(specs.len() > 40);
    let dictionary = CodecSpec::parse("zstd:level=1,dict=auto").unwrap();
    let codecs = Codecs::new(CodecSpec::default());
    let streams = Streams::with_cells(2, 4096).unwrap();
    let mut back = [0u8; 4096];

    // The count is not dead: Rust's allocator and C's are both seen.
    let before = CALLS.get();
    drop(std::hint::black_box(Box::new(1u64)));
    let seen = CALLS.get();
    assert!(seen >= before + 4, "Rust's allocation goes through malloc, and both are counted");

    let before = CALLS.get();
    // Building the contexts is in the count too, and so is a stream's first use.
    for &spec in &specs {
        codecs.select(spec);
        for src in [&page, &noise] {
            streams.with(|stream| {
                let Stream { scratch, out } = stream;
                let limit = 3500;
                if let Ok(done) = codecs.compress(scratch, src, &mut out.as_mut_slice()[..limit]) {
                    codecs
                        .decompress(done.codec, scratch, &out.as_slice()[..done.len], &mut back)
                        .unwrap();
                }
                let mut alone = Scratch::new();
                let _ = codecs.decompress(3, &mut alone, src, &mut back);
                let _ = codecs.decompress(4, &mut alone, src, &mut back);
            });
        }
    }
    // A dictionary, from its samples to its use.
    codecs.select(dictionary);
    let mut trained = false;
    for number in 0..4000u32 {
        page[..4].copy_from_slice(&number.to_le_bytes());
        streams.with(|stream| {
            let Stream { scratch, out } = stream;
            let done = codecs.compress(scratch, &page, out.as_mut_slice()).unwrap();
            codecs.decompress(done.codec, scratch, &out.as_slice()[..done.len], &mut back).unwrap();
        });
        trained |= matches!(codecs.train(), Training::Kept { .. });
    }
    drop(streams.hold_all());
    fill(&mut back, 7);
    let same = same_filled(&back);
    let after = CALLS.get();
    assert_eq!(same, Some(7));
    assert!(trained, "these pages are alike");
    assert_eq!(after - before, 0, "allocations");
}
