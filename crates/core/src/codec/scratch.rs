//! Working memory of a compressor: allocated when a codec first needs it, kept from call to call.
//!
//! A scratch is used by one caller at a time (`&mut`), so none of it is locked. It holds the
//! compressor used last, and the decoders used so far: two formats are decoded in turn while old
//! entries live, but the compressor changes only when somebody changes a setting. Everything is
//! mapped, nothing comes from the Rust allocator; a stream that has warmed up makes no system call.

use super::words::WordsCompressor;
use super::{CompressError, ibm842, lzo};
use crate::sys::codec_ffi::{
    DeflateCompressor, DeflateDecompressor, Lz4Compressor, Lz4HcCompressor, ZstdCompressor,
    ZstdDecompressor,
};
use crate::sys::mem::Mapping;

/// See the module.
#[derive(Default)]
pub struct Scratch {
    compressor: Compressor,
    zstd: Option<ZstdDecompressor>,
    deflate: Option<DeflateDecompressor>,
}

#[derive(Default)]
enum Compressor {
    #[default]
    Empty,
    Words(WordsCompressor),
    Lz4(Lz4Compressor),
    Lz4Hc(Lz4HcCompressor),
    Lzo(Mapping),
    Ibm842(Mapping),
    Zstd(ZstdCompressor),
    Deflate(DeflateCompressor),
}

/// The compressor of that kind, made if another one (or none) is held.
macro_rules! hold {
    ($held:expr, $kind:ident($found:ident) $(if $fits:expr)?, $make:expr) => {{
        if !matches!(&$held, Compressor::$kind($found) $(if $fits)?) {
            // The old one first: its memory is given back before new memory is asked for.
            $held = Compressor::Empty;
            $held = Compressor::$kind($make.map_err(|_| CompressError::Failed)?);
        }
        match &mut $held {
            Compressor::$kind(c) => Ok(c),
            _ => Err(CompressError::Failed),
        }
    }};
}

impl Scratch {
    /// Takes no memory until a codec needs some.
    pub const fn new() -> Scratch {
        Scratch { compressor: Compressor::Empty, zstd: None, deflate: None }
    }

    /// A scratch with address space for all decoders: it can decompress even if memory is short
    /// later.
    pub fn with_decoders() -> crate::sys::Result<Scratch> {
        let (zstd, deflate) = (ZstdDecompressor::new()?, DeflateDecompressor::new()?);
        Ok(Scratch { zstd: Some(zstd), deflate: Some(deflate), ..Scratch::new() })
    }

    /// Gives its memory back, but for the address space of decoders.
    pub fn give_buffers_back(&mut self) {
        self.compressor = Compressor::Empty;
        self.zstd.iter_mut().for_each(ZstdDecompressor::give_buffers_back);
        self.deflate.iter_mut().for_each(DeflateDecompressor::give_buffers_back);
    }

    /// Memory in use, in bytes.
    pub fn mapped_bytes(&self) -> usize {
        let compressor = match &self.compressor {
            Compressor::Empty => 0,
            Compressor::Words(c) => c.mapped_bytes(),
            Compressor::Lz4(c) => c.mapped_bytes(),
            Compressor::Lz4Hc(c) => c.mapped_bytes(),
            Compressor::Lzo(c) | Compressor::Ibm842(c) => c.len(),
            Compressor::Zstd(c) => c.mapped_bytes(),
            Compressor::Deflate(c) => c.mapped_bytes(),
        };
        compressor
            + self.zstd.as_ref().map_or(0, |c| c.mapped_bytes())
            + self.deflate.as_ref().map_or(0, |c| c.mapped_bytes())
    }

    /// A function by itself, so that the stack frame of making one is gone when it compresses.
    #[inline(never)]
    pub(super) fn words(&mut self) -> Result<&mut WordsCompressor, CompressError> {
        hold!(self.compressor, Words(_c), WordsCompressor::new())
    }

    pub(super) fn lz4(&mut self) -> Result<&mut Lz4Compressor, CompressError> {
        hold!(self.compressor, Lz4(_c), Lz4Compressor::new())
    }

    pub(super) fn lz4hc(&mut self) -> Result<&mut Lz4HcCompressor, CompressError> {
        hold!(self.compressor, Lz4Hc(_c), Lz4HcCompressor::new())
    }

    pub(super) fn lzo(&mut self) -> Result<&mut [u8], CompressError> {
        hold!(self.compressor, Lzo(_c), Mapping::new(lzo::TABLE_BYTES)).map(Mapping::as_mut_slice)
    }

    pub(super) fn ibm842(&mut self) -> Result<&mut [u8], CompressError> {
        hold!(self.compressor, Ibm842(_c), Mapping::new(ibm842::TABLE_BYTES))
            .map(Mapping::as_mut_slice)
    }

    /// A zstd context sized for inputs like this one: tables for 2 MiB would cost a 4 KiB page its
    /// time, and the other way round the ratio.
    pub(super) fn zstd(
        &mut self,
        level: i8,
        input_bytes: usize,
    ) -> Result<&mut ZstdCompressor, CompressError> {
        let about = input_bytes.next_power_of_two().max(4096);
        hold!(self.compressor, Zstd(c) if c.is_for(level, about), ZstdCompressor::new(level, about))
    }

    pub(super) fn deflate(&mut self, level: i8) -> Result<&mut DeflateCompressor, CompressError> {
        hold!(self.compressor, Deflate(c) if c.is_for(level), DeflateCompressor::new(level))
    }

    pub(super) fn unzstd(&mut self) -> Option<&mut ZstdDecompressor> {
        if self.zstd.is_none() {
            self.zstd = ZstdDecompressor::new().ok();
        }
        self.zstd.as_mut()
    }

    pub(super) fn inflate(&mut self) -> Option<&mut DeflateDecompressor> {
        if self.deflate.is_none() {
            self.deflate = DeflateDecompressor::new().ok();
        }
        self.deflate.as_mut()
    }
}
