//! The compression libraries in C, one file each: liblz4, libzstd and libdeflate, as types that own
//! their working memory.
//!
//! ```text
//!  lz4      Lz4Compressor     16 KiB hash table                 LZ4_compress_fast_extState
//!           Lz4HcCompressor   256 KiB hash and chain tables     LZ4_compress_HC_extStateHC
//!           lz4_decompress    no memory at all                  LZ4_decompress_safe
//!  zstd     ZstdCompressor    tables by level and input size    ZSTD_initStaticCCtx, ZSTD_compress2
//!           ZstdDecompressor  155 KiB                           ZSTD_initStaticDCtx, ZSTD_decompressDCtx
//!           ZstdDictionary    digested for both directions      ZSTD_initStaticCDict, ZSTD_initStaticDDict
//!  deflate  Deflate…          libdeflate's struct in our memory libdeflate_alloc_…_ex
//! ```
//!
//! Each type owns a [`Mapping`] made when it is built; after that a call neither allocates nor
//! makes a system call. None of the functions used here has a large frame: the deepest was measured
//! and is asserted by `tests/codec_stack.rs`, because they run on alternate signal stacks.
//!
//! # Safety charter
//! - Every call passes pointers and lengths of live Rust slices or of an owned mapping, and the
//!   libraries promise to stay inside them, on hostile input too (`LZ4_decompress_safe`,
//!   `ZSTD_decompressDCtx` and `libdeflate_deflate_decompress` are specified and fuzzed for that by
//!   their maintainers).
//! - A context is built inside its own mapping, which never moves and is reachable through its
//!   owner only: nobody can alter the bytes between two calls, so the pointers that the context
//!   keeps stay valid.
//! - A context is used through `&mut self`: by one thread at a time.
//! - Nothing here keeps a pointer into a caller's slice after the call.
#![allow(unsafe_code)]

mod deflate;
mod lz4;
mod zstd;

pub use deflate::{DeflateCompressor, DeflateDecompressor};
pub use lz4::{Lz4Compressor, Lz4HcCompressor, lz4_decompress};
pub use zstd::{ZSTD_LEVELS, ZstdCompressor, ZstdDecompressor, ZstdDictionary};

#[cfg(doc)]
use super::mem::Mapping;

/// Why there is no compressed form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoOutput {
    /// It does not fit the output.
    TooLong,
    /// The library refused (input too large, working memory missing).
    Failed,
}
