//! libdeflate: raw deflate, a compressor at one level and the decoder.
//!
//! Unlike the other libraries it takes no memory for a context: it asks a callback for some. The
//! callback, and how it learns of the mapping to answer with, are at the head of this file.
//!
//! # Safety charter
//! That of `codec_ffi`. The callback answers with the mapping that is offered at the time, once,
//! else with null. A context that lies elsewhere than in that mapping is refused.
#![allow(unsafe_code)]

use core::ffi::c_void;
use core::sync::atomic::{AtomicUsize, Ordering};

use libdeflate_sys as deflate;

use super::NoOutput;
#[cfg(doc)]
use super::ZstdDecompressor;
use crate::sys::mem::Mapping;
use crate::sys::sync::Mutex;
use crate::sys::{Errno, Result};

/// How libdeflate gets its one block of memory: it asks twice, first to tell us the size (and is
/// refused), then to be given the mapping made for it. Its callback has no argument of ours, hence
/// the statics; the lock is held while they are in use, which is when a context is built, never
/// when it works.
static DEFLATE_BUILD: Mutex<()> = Mutex::new(());
static DEFLATE_ASKED_BYTES: AtomicUsize = AtomicUsize::new(0);
static DEFLATE_OFFER: AtomicUsize = AtomicUsize::new(0);

extern "C" fn deflate_malloc(len: usize) -> *mut c_void {
    DEFLATE_ASKED_BYTES.store(len, Ordering::Relaxed);
    DEFLATE_OFFER.swap(0, Ordering::Relaxed) as *mut c_void
}

/// The memory belongs to the owner of the context, so there is nothing to free.
extern "C" fn deflate_free(_: *mut c_void) {}

const DEFLATE_OPTIONS: deflate::libdeflate_options = deflate::libdeflate_options {
    sizeof_options: size_of::<deflate::libdeflate_options>(),
    malloc_func: Some(deflate_malloc),
    free_func: Some(deflate_free),
};

/// Memory for a context that `alloc` makes.
fn deflate_memory<T>(alloc: impl Fn(&deflate::libdeflate_options) -> *mut T) -> Result<Mapping> {
    let _building = DEFLATE_BUILD.lock();
    DEFLATE_OFFER.store(0, Ordering::Relaxed);
    DEFLATE_ASKED_BYTES.store(0, Ordering::Relaxed);
    assert!(alloc(&DEFLATE_OPTIONS).is_null(), "libdeflate made a context without memory");
    Mapping::new(DEFLATE_ASKED_BYTES.load(Ordering::Relaxed))
}

/// Builds a context with `alloc` in `memory`; its address there.
fn deflate_build<T>(
    memory: &mut Mapping,
    alloc: impl Fn(&deflate::libdeflate_options) -> *mut T,
) -> Option<usize> {
    let _building = DEFLATE_BUILD.lock();
    DEFLATE_OFFER.store(memory.addr(), Ordering::Relaxed);
    let context = alloc(&DEFLATE_OPTIONS) as usize;
    (memory.addr()..memory.addr() + memory.len()).contains(&context).then_some(context)
}

/// Raw deflate at one level.
pub struct DeflateCompressor {
    memory: Mapping,
    context: usize,
    level: i8,
}

impl DeflateCompressor {
    pub const LEVELS: core::ops::RangeInclusive<i8> = 1..=12;

    pub fn new(level: i8) -> Result<Self> {
        // SAFETY: the options are complete; a level out of range gives null.
        let alloc =
            |options: &_| unsafe { deflate::libdeflate_alloc_compressor_ex(level.into(), options) };
        let mut memory = deflate_memory(alloc)?;
        let context = deflate_build(&mut memory, alloc).ok_or(Errno::ENOMEM)?;
        Ok(Self { memory, context, level })
    }

    pub fn is_for(&self, level: i8) -> bool {
        self.level == level
    }

    pub fn compress(
        &mut self,
        src: &[u8],
        dst: &mut [u8],
    ) -> core::result::Result<usize, NoOutput> {
        // SAFETY: see the charter; the context was built by `deflate_build` in our mapping.
        let n = unsafe {
            deflate::libdeflate_deflate_compress(
                self.context as *mut _,
                src.as_ptr().cast(),
                src.len(),
                dst.as_mut_ptr().cast(),
                dst.len(),
            )
        };
        if n == 0 { Err(NoOutput::TooLong) } else { Ok(n) }
    }

    pub fn mapped_bytes(&self) -> usize {
        self.memory.len()
    }
}

/// The decoder of raw deflate. Its context is made as that of [`ZstdDecompressor`].
pub struct DeflateDecompressor {
    memory: Mapping,
    context: Option<usize>,
}

impl DeflateDecompressor {
    pub fn new() -> Result<Self> {
        Ok(Self { memory: deflate_memory(Self::alloc)?, context: None })
    }

    fn alloc(options: &deflate::libdeflate_options) -> *mut deflate::libdeflate_decompressor {
        // SAFETY: the options are complete.
        unsafe { deflate::libdeflate_alloc_decompressor_ex(options) }
    }

    fn make(&mut self) -> Option<usize> {
        if self.context.is_none() {
            self.context = deflate_build(&mut self.memory, Self::alloc);
        }
        self.context
    }

    /// Gives the frames back; the address space stays.
    pub fn give_buffers_back(&mut self) {
        self.context = None;
        self.memory.decommit(0..self.memory.len());
    }

    /// The number of bytes written, `None` if `src` is not one stream, whole and alone, or does not
    /// fit.
    pub fn decompress(&mut self, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        let context = self.make()?;
        let (mut read, mut written) = (0usize, 0usize);
        // SAFETY: see the charter; the context was built by `deflate_build` in our mapping.
        let result = unsafe {
            deflate::libdeflate_deflate_decompress_ex(
                context as *mut _,
                src.as_ptr().cast(),
                src.len(),
                dst.as_mut_ptr().cast(),
                dst.len(),
                &mut read,
                &mut written,
            )
        };
        (result == deflate::libdeflate_result_LIBDEFLATE_SUCCESS && read == src.len())
            .then_some(written)
    }

    /// Bytes that may have frames.
    pub fn mapped_bytes(&self) -> usize {
        if self.context.is_some() { self.memory.len() } else { 0 }
    }
}
