//! Bytes to fewer bytes and back.
//!
//! ```text
//!               CodecSpec ("zstd:level=3")      what new entries are compressed with; may change
//!                    |
//!  src --compress--> Codecs --> dst, CodecId    the id goes into the entry and names the decoder
//!  dst <--decompress-- Codecs <-- src, CodecId
//!                    |
//!                 Scratch                       working memory of one compressor at a time
//!                    |
//!                 Streams                       one Scratch and one output buffer per CPU
//! ```
//!
//! Architecture invariant: this module knows slices only: nothing of pages, pools, entries,
//! threads. The exceptions are `same_filled` and `sparse`, which are about pages and cheaper than
//! any codec.
//!
//! Architecture invariant: a compressed form is trusted no more than a file: `decompress` stays
//! inside its slices whatever the bytes are, and answers [`Corrupt`] unless exactly `dst.len()`
//! bytes came out. A damaged form that still decodes to the right length is not noticed: that takes
//! a checksum, which is the store's matter.
//!
//! Libraries, by speed at 4 KiB (a CPython heap): liblz4 and lz4_flex compress alike (5.3 us),
//! liblz4 decompresses 20 % faster; its table is ours to place. libzstd and libdeflate have no
//! rival. lzo is ours (`lzo.rs`), because the C one is GPL; it packs that heap slightly smaller
//! than liblzo2, in no more time. `words.rs` is made for heaps: a quarter of liblz4's time to
//! compress, a third to decompress, and fewer bytes; data that repeat themselves it leaves to
//! liblz4 (`offers.rs`). All of them work in memory that is mapped beforehand and on less than 4
//! KiB of stack (`tests/codec_stack.rs`, `tests/codec_no_alloc.rs`, `tests/codec_guard.rs`).
//!
//! Vocabulary: an *algorithm* is a way to compress (lz4 and lz4hc are two), a *format* is what it
//! writes (lz4 both times), a *codec id* is a format and its dictionary. Old ids stay decodable
//! while the [`Codecs`] that made them lives, so the algorithm can be changed at any time.

mod dictionary;
mod ibm842;
mod lzo;
mod offers;
mod same_filled;
mod scratch;
mod sparse;
mod spec;
mod streams;
pub(crate) mod words;

use core::sync::atomic::{AtomicU32, Ordering};

pub use dictionary::{Samples, Training};
pub use same_filled::{fill, same_filled};
pub use scratch::Scratch;
pub use spec::{Algorithm, CodecInfo, CodecSpec, ParseError, list};
pub use streams::{HeldStreams, Stream, Streams};

use crate::sys::codec_ffi::{self, NoOutput};
use crate::sys::contention::{self, Slow};
use crate::sys::sync::MutexGuard;
use dictionary::Dictionaries;

/// An entry's record of its codec: the format, and from bit 4 up the number of the dictionary (0:
/// none).
pub type CodecId = u8;

/// The largest input taken.
pub const MAX_INPUT_BYTES: usize = 2 << 20;

const FORMAT_MASK: CodecId = 0x0f;
const DICTIONARY_SHIFT: u32 = 4;
const FORMAT_NONE: CodecId = 0;
const FORMAT_LZ4: CodecId = 1;
const FORMAT_LZO: CodecId = 2;
const FORMAT_ZSTD: CodecId = 3;
const FORMAT_DEFLATE: CodecId = 4;
const FORMAT_842: CodecId = 5;
const FORMAT_SPARSE: CodecId = 6;
const FORMAT_WORDS: CodecId = 7;

/// A compression that succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compressed {
    pub codec: CodecId,
    /// Bytes written at the start of `dst`.
    pub len: usize,
}

/// Why there is no compressed form. `dst` may hold anything afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompressError {
    /// The compressed form does not fit `dst`.
    Incompressible,
    /// The codec could not work: no memory for its scratch, or an input above [`MAX_INPUT_BYTES`].
    Failed,
}

/// The bytes are not what the codec wrote, or do not make exactly the length that was asked for.
/// `dst` may hold anything afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Corrupt;

impl From<NoOutput> for CompressError {
    fn from(why: NoOutput) -> Self {
        match why {
            NoOutput::TooLong => CompressError::Incompressible,
            NoOutput::Failed => CompressError::Failed,
        }
    }
}

impl CodecSpec {
    /// Whether this codec writes the format of the id `codec`. Several may: lz4 writes what lz4hc
    /// does.
    pub fn writes(self, codec: CodecId) -> bool {
        let format = codec & FORMAT_MASK;
        match self.algorithm() {
            Algorithm::None => format == FORMAT_NONE,
            Algorithm::Words => format == FORMAT_WORDS || format == FORMAT_LZ4,
            Algorithm::Lz4 | Algorithm::Lz4Hc => format == FORMAT_LZ4,
            Algorithm::Lzo | Algorithm::LzoRle => format == FORMAT_LZO,
            Algorithm::Ibm842 => format == FORMAT_842,
            Algorithm::Zstd => format == FORMAT_ZSTD,
            Algorithm::Deflate => format == FORMAT_DEFLATE,
        }
    }
}

/// The codec in force, and the decoders of everything compressed before.
pub struct Codecs {
    spec_bits: AtomicU32,
    dictionaries: Dictionaries,
}

impl Codecs {
    pub fn new(spec: CodecSpec) -> Codecs {
        Codecs { spec_bits: AtomicU32::new(spec.to_bits()), dictionaries: Dictionaries::new() }
    }

    /// The codec in force.
    pub fn spec(&self) -> CodecSpec {
        CodecSpec::from_bits(self.spec_bits.load(Ordering::Relaxed)).unwrap_or_default()
    }

    /// Puts another codec in force, from the next compression on.
    pub fn select(&self, spec: CodecSpec) {
        self.spec_bits.store(spec.to_bits(), Ordering::Relaxed);
    }

    /// Compresses `src` to the start of `dst`, whose length is the limit of what is accepted.
    pub fn compress(
        &self,
        scratch: &mut Scratch,
        src: &[u8],
        dst: &mut [u8],
    ) -> Result<Compressed, CompressError> {
        self.compress_as(self.spec(), scratch, src, dst)
    }

    /// Compresses a page that is one word repeated, but for a few: before any codec, and cheaper.
    #[inline]
    pub fn compress_sparse(
        &self,
        page: &[u8; crate::sys::PAGE_SIZE],
        dst: &mut [u8],
    ) -> Option<Compressed> {
        sparse::compress(page, dst).map(|len| Compressed { codec: FORMAT_SPARSE, len })
    }

    /// Compresses as [`Codecs::compress`] does, by a codec that need not be the one in force.
    pub fn compress_as(
        &self,
        spec: CodecSpec,
        scratch: &mut Scratch,
        src: &[u8],
        dst: &mut [u8],
    ) -> Result<Compressed, CompressError> {
        if src.len() > MAX_INPUT_BYTES {
            return Err(CompressError::Failed);
        }
        contention::note(Slow::Codec);
        let done = |codec, len| Ok(Compressed { codec, len });
        match spec.algorithm() {
            Algorithm::None => {
                let dst = dst.get_mut(..src.len()).ok_or(CompressError::Incompressible)?;
                dst.copy_from_slice(src);
                done(FORMAT_NONE, src.len())
            }
            Algorithm::Words => match scratch.words()?.compress(src, dst)? {
                words::Form::Words(len) => done(FORMAT_WORDS, len),
                words::Form::Lz4(len) => done(FORMAT_LZ4, len),
            },
            Algorithm::Lz4 => done(FORMAT_LZ4, scratch.lz4()?.compress(src, dst)?),
            Algorithm::Lz4Hc => {
                done(FORMAT_LZ4, scratch.lz4hc()?.compress(spec.level(), src, dst)?)
            }
            Algorithm::Lzo => {
                done(FORMAT_LZO, lzo::compress(scratch.lzo()?, src, dst, lzo::Stream::V0)?)
            }
            Algorithm::LzoRle => {
                done(FORMAT_LZO, lzo::compress(scratch.lzo()?, src, dst, lzo::Stream::V1)?)
            }
            Algorithm::Ibm842 => done(FORMAT_842, ibm842::compress(scratch.ibm842()?, src, dst)?),
            Algorithm::Zstd => self.compress_by_zstd(spec, scratch, src, dst),
            Algorithm::Deflate => {
                done(FORMAT_DEFLATE, scratch.deflate(spec.level())?.compress(src, dst)?)
            }
        }
    }

    /// A function by itself, so that its stack frame is not there below the other codecs.
    #[inline(never)]
    fn compress_by_zstd(
        &self,
        spec: CodecSpec,
        scratch: &mut Scratch,
        src: &[u8],
        dst: &mut [u8],
    ) -> Result<Compressed, CompressError> {
        let mut dictionary = None;
        if spec.wants_dictionary() && src.len() <= dictionary::MAX_INPUT_BYTES {
            self.dictionaries.see(src);
            dictionary = self.dictionaries.in_force(spec.level());
        }
        let number = dictionary.map_or(0, |d| d.number() as CodecId);
        let context = scratch.zstd(spec.level(), src.len())?;
        let len = context.compress(dictionary, src, dst)?;
        Ok(Compressed { codec: FORMAT_ZSTD | number << DICTIONARY_SHIFT, len })
    }

    /// Whether [`train`](Self::train) has something to do: samples enough for a dictionary.
    pub fn training_due(&self) -> bool {
        self.dictionaries.due()
    }

    /// Trains a dictionary if one is wanted and due, and puts it in force if it gains. Takes some
    /// 20 ms and 2 MiB for that time; for a thread that has the time (an evictor between two
    /// rounds), never needed.
    pub fn train(&self) -> Training {
        let spec = self.spec();
        if !spec.wants_dictionary() {
            return Training::NotDue;
        }
        self.dictionaries.train(spec.level())
    }

    /// Waits for a training under way, and lets none begin meanwhile: for the moment of a fork.
    pub fn hold_training(&self) -> MutexGuard<'_, Samples> {
        self.dictionaries.hold()
    }

    /// Memory of the pages seen so far for the next dictionary, in bytes.
    pub fn sample_bytes(&self) -> usize {
        self.dictionaries.sample_bytes()
    }

    /// Address space of the dictionaries kept, in bytes.
    pub fn dictionary_bytes(&self) -> usize {
        self.dictionaries.mapped_bytes()
    }

    /// Decompresses the whole of `src`, which `compress` gave the id `codec`, to the whole of
    /// `dst`.
    pub fn decompress(
        &self,
        codec: CodecId,
        scratch: &mut Scratch,
        src: &[u8],
        dst: &mut [u8],
    ) -> Result<(), Corrupt> {
        contention::note(Slow::Codec);
        let number = codec >> DICTIONARY_SHIFT;
        let written = match codec & FORMAT_MASK {
            FORMAT_ZSTD => {
                let dictionary = self.dictionaries.get(number.into());
                if dictionary.is_none() && number != 0 {
                    return Err(Corrupt);
                }
                scratch.unzstd().ok_or(Corrupt)?.decompress(dictionary, src, dst)
            }
            _ if number != 0 => None,
            FORMAT_NONE => {
                if src.len() != dst.len() {
                    return Err(Corrupt);
                }
                dst.copy_from_slice(src);
                Some(src.len())
            }
            FORMAT_LZ4 => codec_ffi::lz4_decompress(src, dst),
            FORMAT_SPARSE => sparse::decompress(src, dst),
            FORMAT_WORDS => words::decompress(src, dst),
            FORMAT_LZO => lzo::decompress(src, dst),
            FORMAT_842 => ibm842::decompress(src, dst),
            FORMAT_DEFLATE => scratch.inflate().ok_or(Corrupt)?.decompress(src, dst),
            _ => None,
        };
        if written == Some(dst.len()) { Ok(()) } else { Err(Corrupt) }
    }
}

#[cfg(test)]
mod tests;
