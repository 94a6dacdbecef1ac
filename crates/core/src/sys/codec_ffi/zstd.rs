//! libzstd: a compressor at one level, a decoder for all, dictionaries for both.
//!
//! A context is *static* in zstd's words: the library builds it in memory that it is given, and
//! never asks for more. A compressor's is built again, in its place, for another dictionary or when
//! it gives up.
//!
//! # Safety charter
//! That of `codec_ffi`. A compressor's context keeps the address of a dictionary, and uses it only
//! in calls that are given this dictionary. The hooks answer 0 and do nothing else.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};

use zstd_sys as zstd;

use super::NoOutput;
use crate::sys::mem::Mapping;
use crate::sys::{Errno, Result};

/// The levels offered: the library's own reach down to -131072, where nothing is left of
/// compression.
pub const ZSTD_LEVELS: core::ops::RangeInclusive<i8> = -128..=22;

// libzstd calls these hooks if anybody defines them, by weak references: a program that traces its
// own zstd would be called back from the middle of a fault. Ours come first for our copy of the
// library, and are hidden, so that the program's copy does not see them. "Begin" answers 0, for "do
// not trace".
core::arch::global_asm!(
    ".macro uz_zstd_hook name",
    ".weak \\name",
    ".hidden \\name",
    ".type \\name, @function",
    "\\name: xorl %eax, %eax",
    "ret",
    ".size \\name, . - \\name",
    ".endm",
    ".text",
    "uz_zstd_hook ZSTD_trace_compress_begin",
    "uz_zstd_hook ZSTD_trace_compress_end",
    "uz_zstd_hook ZSTD_trace_decompress_begin",
    "uz_zstd_hook ZSTD_trace_decompress_end",
    ".purgem uz_zstd_hook",
    options(att_syntax)
);

unsafe extern "C" {
    fn ZSTD_trace_compress_begin(context: *const c_void) -> u64;
    fn ZSTD_trace_decompress_begin(context: *const c_void) -> u64;
}

/// Weak references alone would not make the linker take the hooks.
#[used]
static ZSTD_HOOKS: [unsafe extern "C" fn(*const c_void) -> u64; 2] =
    [ZSTD_trace_compress_begin, ZSTD_trace_decompress_begin];

/// The form of frames, for both directions: without a magic number.
const MAGICLESS: c_int = zstd::ZSTD_format_e::ZSTD_f_zstd1_magicless as c_int;

fn zstd_ok(code: usize) -> bool {
    // SAFETY: a pure function.
    unsafe { zstd::ZSTD_isError(code) == 0 }
}

/// The parameters that zstd recommends for inputs of about `input_bytes`. They size the tables.
fn zstd_parameters(
    level: i8,
    input_bytes: usize,
    dictionary_bytes: usize,
) -> zstd::ZSTD_compressionParameters {
    // SAFETY: a pure function.
    unsafe { zstd::ZSTD_getCParams(level.into(), input_bytes as u64, dictionary_bytes) }
}

/// zstd at one level, for inputs up to about one size. The frames are as short as they can be: no
/// magic number, no content size, no checksum, no dictionary number.
pub struct ZstdCompressor {
    memory: Mapping,
    /// The beginning of the context, in bytes from the memory's: not 0 in a build of zstd for
    /// sanitizers.
    at: usize,
    level: i8,
    input_bytes: usize,
    /// The dictionary that the context refers to: its number and address, both 0 for none.
    dictionary: (u32, usize),
}

impl ZstdCompressor {
    pub fn new(level: i8, input_bytes: usize) -> Result<Self> {
        let parameters = zstd_parameters(level, input_bytes, 0);
        // SAFETY: a pure function.
        let need = unsafe { zstd::ZSTD_estimateCCtxSize_usingCParams(parameters) };
        // The estimate is exact for these parameters; a dictionary's own can ask for a little more.
        let mut this = Self {
            memory: Mapping::new(need + need / 4)?,
            at: 0,
            level,
            input_bytes,
            dictionary: (0, 0),
        };
        if this.build(None) { Ok(this) } else { Err(Errno::ENOMEM) }
    }

    /// Whether this context was built for that.
    pub fn is_for(&self, level: i8, input_bytes: usize) -> bool {
        self.level == level && self.input_bytes == input_bytes
    }

    /// Makes a fresh context in the memory.
    fn build(&mut self, dictionary: Option<&ZstdDictionary>) -> bool {
        use zstd::ZSTD_cParameter as P;
        // SAFETY: the memory is ours, page-aligned, and holds no context that anybody uses.
        let context = unsafe {
            let start = self.memory.as_mut_slice().as_mut_ptr();
            zstd::ZSTD_initStaticCCtx(start.cast(), self.memory.len())
        };
        if context.is_null() {
            return false;
        }
        self.at = context.addr() - self.memory.addr();
        let switches = [
            (P::ZSTD_c_experimentalParam2, MAGICLESS),
            (P::ZSTD_c_contentSizeFlag, 0),
            (P::ZSTD_c_checksumFlag, 0),
            (P::ZSTD_c_dictIDFlag, 0),
        ];
        for (parameter, value) in switches {
            // SAFETY: the context was made above.
            if !zstd_ok(unsafe { zstd::ZSTD_CCtx_setParameter(context, parameter, value) }) {
                return false;
            }
        }
        let parameters = zstd_parameters(self.level, self.input_bytes, 0);
        // SAFETY: the context was made above.
        if !zstd_ok(unsafe { zstd::ZSTD_CCtx_setCParams(context, parameters) }) {
            return false;
        }
        self.dictionary = (0, 0);
        if let Some(dictionary) = dictionary {
            // SAFETY: the context was made above. It will keep the address of the dictionary, and
            // uses it in `compress` only, which is given the same dictionary (compared there by
            // number and address).
            if !zstd_ok(unsafe { zstd::ZSTD_CCtx_refCDict(context, dictionary.compress_side()) }) {
                return false;
            }
            self.dictionary = dictionary.key();
        }
        true
    }

    fn context(&mut self) -> *mut zstd::ZSTD_CCtx {
        self.memory.as_mut_slice()[self.at..].as_mut_ptr().cast()
    }

    pub fn compress(
        &mut self,
        dictionary: Option<&ZstdDictionary>,
        src: &[u8],
        dst: &mut [u8],
    ) -> core::result::Result<usize, NoOutput> {
        if self.dictionary != dictionary.map_or((0, 0), ZstdDictionary::key)
            && !self.build(dictionary)
        {
            return Err(NoOutput::Failed);
        }
        // Twice, because a static context gives up after many inputs that are far smaller than the
        // memory it was given ("workspace wasteful", then no resize): a fresh one starts that count
        // again.
        for _ in 0..2 {
            // SAFETY: see the charter; the context was built in `new` or above, and the dictionary
            // that it refers to is the argument, alive.
            let code = unsafe {
                zstd::ZSTD_compress2(
                    self.context(),
                    dst.as_mut_ptr().cast(),
                    dst.len(),
                    src.as_ptr().cast(),
                    src.len(),
                )
            };
            if zstd_ok(code) {
                return Ok(code);
            }
            // SAFETY: a pure function.
            if unsafe { zstd::ZSTD_getErrorCode(code) }
                == zstd::ZSTD_ErrorCode::ZSTD_error_dstSize_tooSmall
            {
                return Err(NoOutput::TooLong);
            }
            if !self.build(dictionary) {
                break;
            }
        }
        Err(NoOutput::Failed)
    }

    pub fn mapped_bytes(&self) -> usize {
        self.memory.len()
    }
}

/// The decoder of zstd, of every level and dictionary.
///
/// Its address space is there from the start and its context is made by the first use: a stored
/// page can be decompressed when no address space is left, and a process that decompresses nothing
/// has no frames of it. The decoder of deflate is made alike.
pub struct ZstdDecompressor {
    memory: Mapping,
    is_made: bool,
}

impl ZstdDecompressor {
    pub fn new() -> Result<Self> {
        // SAFETY: a pure function.
        let memory = Mapping::new(unsafe { zstd::ZSTD_estimateDCtxSize() })?;
        Ok(Self { memory, is_made: false })
    }

    /// Makes the context if there is none.
    fn make(&mut self) -> Option<*mut zstd::ZSTD_DCtx> {
        let (at, len) = (self.memory.as_mut_slice().as_mut_ptr(), self.memory.len());
        if self.is_made {
            return Some(at.cast());
        }
        // SAFETY: the memory is ours, page-aligned, and holds no context yet.
        let context = unsafe { zstd::ZSTD_initStaticDCtx(at.cast(), len) };
        // SAFETY: the context was made above (null is an error code of its own).
        self.is_made = !context.is_null()
            && zstd_ok(unsafe {
                zstd::ZSTD_DCtx_setParameter(
                    context,
                    zstd::ZSTD_dParameter::ZSTD_d_experimentalParam1,
                    MAGICLESS,
                )
            });
        self.is_made.then_some(context)
    }

    /// Gives the frames back; the address space stays.
    pub fn give_buffers_back(&mut self) {
        self.is_made = false;
        self.memory.decommit(0..self.memory.len());
    }

    /// Returns the number of bytes written, `None` if the compressor did not make `src` or its
    /// content does not fit.
    pub fn decompress(
        &mut self,
        dictionary: Option<&ZstdDictionary>,
        src: &[u8],
        dst: &mut [u8],
    ) -> Option<usize> {
        let context = self.make()?;
        let (to, to_len) = (dst.as_mut_ptr().cast(), dst.len());
        let (from, from_len) = (src.as_ptr().cast(), src.len());
        // SAFETY: see the charter; the context was made above, the dictionary lives until the
        // call returns and is not referred to afterwards (`usingDDict` is for one call).
        let code = unsafe {
            match dictionary {
                None => zstd::ZSTD_decompressDCtx(context, to, to_len, from, from_len),
                Some(d) => zstd::ZSTD_decompress_usingDDict(
                    context,
                    to,
                    to_len,
                    from,
                    from_len,
                    d.decompress_side(),
                ),
            }
        };
        zstd_ok(code).then_some(code)
    }

    /// Bytes that may have frames.
    pub fn mapped_bytes(&self) -> usize {
        if self.is_made { self.memory.len() } else { 0 }
    }
}

/// A dictionary, digested once and read by any number of contexts.
pub struct ZstdDictionary {
    number: u32,
    compress: Mapping,
    decompress: Mapping,
}

impl ZstdDictionary {
    /// Digests `content` (raw bytes, or a dictionary with zstd's header) for inputs of about
    /// `input_bytes` at `level`. `number` tells dictionaries apart; it is the caller's and not 0.
    pub fn new(number: u32, content: &[u8], level: i8, input_bytes: usize) -> Result<Self> {
        use zstd::ZSTD_dictContentType_e::ZSTD_dct_auto as AUTO;
        use zstd::ZSTD_dictLoadMethod_e::ZSTD_dlm_byCopy as BY_COPY;
        assert!(number != 0);
        let parameters = zstd_parameters(level, input_bytes, content.len());
        // SAFETY: pure functions.
        let (c_len, d_len) = unsafe {
            (
                zstd::ZSTD_estimateCDictSize_advanced(content.len(), parameters, BY_COPY),
                zstd::ZSTD_estimateDDictSize(content.len(), BY_COPY),
            )
        };
        let (mut compress, mut decompress) = (Mapping::new(c_len)?, Mapping::new(d_len)?);
        let (c_len, d_len) = (compress.len(), decompress.len());
        // SAFETY: the mappings are ours, page-aligned and hold nothing yet; the content is copied
        // into them.
        let built = unsafe {
            let from = content.as_ptr().cast();
            let c_at = compress.as_mut_slice().as_mut_ptr().cast();
            let d_at = decompress.as_mut_slice().as_mut_ptr().cast();
            let c = zstd::ZSTD_initStaticCDict(
                c_at,
                c_len,
                from,
                content.len(),
                BY_COPY,
                AUTO,
                parameters,
            );
            let d = zstd::ZSTD_initStaticDDict(d_at, d_len, from, content.len(), BY_COPY, AUTO);
            c.cast::<c_void>() == c_at.cast_const() && d.cast::<c_void>() == d_at.cast_const()
        };
        if built { Ok(Self { number, compress, decompress }) } else { Err(Errno::ENOMEM) }
    }

    pub fn number(&self) -> u32 {
        self.number
    }

    fn key(&self) -> (u32, usize) {
        (self.number, self.compress.addr())
    }

    fn compress_side(&self) -> *const zstd::ZSTD_CDict {
        self.compress.as_slice().as_ptr().cast()
    }

    fn decompress_side(&self) -> *const zstd::ZSTD_DDict {
        self.decompress.as_slice().as_ptr().cast()
    }

    pub fn mapped_bytes(&self) -> usize {
        self.compress.len() + self.decompress.len()
    }
}
