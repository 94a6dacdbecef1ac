//! liblz4: the fast compressor, the one with hash chains, and the decoder of both.
//!
//! A compressor's state is plain memory that each call initialises: nothing has to be built, and no
//! pointer is kept from call to call. The crate `lz4_sys` does not declare the functions that take
//! such a state, so they are declared here.
//!
//! # Safety charter
//! That of `codec_ffi`; the declarations are those of lz4.h and lz4hc.h.
#![allow(unsafe_code)]

use core::ffi::{c_char, c_int, c_void};

// The crate is named for its link line.
use lz4_sys as _;

use super::NoOutput;
use crate::sys::Result;
use crate::sys::mem::Mapping;

/// The largest input: liblz4 counts in `int`; far above any unit that is swapped.
const MAX_INPUT_BYTES: usize = 1 << 30;

unsafe extern "C" {
    fn LZ4_sizeofState() -> c_int;
    fn LZ4_sizeofStateHC() -> c_int;
    fn LZ4_compress_fast_extState(
        state: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_len: c_int,
        dst_len: c_int,
        acceleration: c_int,
    ) -> c_int;
    fn LZ4_compress_HC_extStateHC(
        state: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_len: c_int,
        dst_len: c_int,
        level: c_int,
    ) -> c_int;
    fn LZ4_decompress_safe(
        src: *const c_char,
        dst: *mut c_char,
        src_len: c_int,
        dst_len: c_int,
    ) -> c_int;
}

/// liblz4's answer: 0 when the output is too small, else the bytes written.
fn lz4_written(n: c_int) -> core::result::Result<usize, NoOutput> {
    if n > 0 { Ok(n as usize) } else { Err(NoOutput::TooLong) }
}

/// lz4, the fast kind.
pub struct Lz4Compressor(Mapping);

impl Lz4Compressor {
    pub fn new() -> Result<Self> {
        // SAFETY: a pure function.
        Ok(Self(Mapping::new(unsafe { LZ4_sizeofState() } as usize)?))
    }

    pub fn compress(
        &mut self,
        src: &[u8],
        dst: &mut [u8],
    ) -> core::result::Result<usize, NoOutput> {
        if src.len() > MAX_INPUT_BYTES {
            return Err(NoOutput::Failed);
        }
        let dst_len = dst.len().min(MAX_INPUT_BYTES) as c_int;
        // SAFETY: see the charter; the state has the size asked for, is page-aligned and is
        // initialised by the call itself.
        lz4_written(unsafe {
            LZ4_compress_fast_extState(
                self.0.as_mut_slice().as_mut_ptr().cast(),
                src.as_ptr().cast(),
                dst.as_mut_ptr().cast(),
                src.len() as c_int,
                dst_len,
                1,
            )
        })
    }

    pub fn mapped_bytes(&self) -> usize {
        self.0.len()
    }
}

/// lz4 with hash chains: slower, denser, the same format.
pub struct Lz4HcCompressor(Mapping);

impl Lz4HcCompressor {
    /// From level 10 on liblz4 uses its optimal parser, which takes 64 KiB from `malloc` or the
    /// stack.
    pub const LEVELS: core::ops::RangeInclusive<i8> = 2..=9;

    pub fn new() -> Result<Self> {
        // SAFETY: a pure function.
        Ok(Self(Mapping::new(unsafe { LZ4_sizeofStateHC() } as usize)?))
    }

    pub fn compress(
        &mut self,
        level: i8,
        src: &[u8],
        dst: &mut [u8],
    ) -> core::result::Result<usize, NoOutput> {
        if src.len() > MAX_INPUT_BYTES || !Self::LEVELS.contains(&level) {
            return Err(NoOutput::Failed);
        }
        let dst_len = dst.len().min(MAX_INPUT_BYTES) as c_int;
        // SAFETY: as for the fast kind; the level keeps the parser out that allocates.
        lz4_written(unsafe {
            LZ4_compress_HC_extStateHC(
                self.0.as_mut_slice().as_mut_ptr().cast(),
                src.as_ptr().cast(),
                dst.as_mut_ptr().cast(),
                src.len() as c_int,
                dst_len,
                level.into(),
            )
        })
    }

    pub fn mapped_bytes(&self) -> usize {
        self.0.len()
    }
}

/// Decodes one lz4 block; the number of bytes written, `None` if `src` is not a block or does not
/// fit.
pub fn lz4_decompress(src: &[u8], dst: &mut [u8]) -> Option<usize> {
    if src.len() > MAX_INPUT_BYTES || dst.len() > MAX_INPUT_BYTES {
        return None;
    }
    // SAFETY: see the charter.
    let n = unsafe {
        LZ4_decompress_safe(
            src.as_ptr().cast(),
            dst.as_mut_ptr().cast(),
            src.len() as c_int,
            dst.len() as c_int,
        )
    };
    usize::try_from(n).ok()
}
