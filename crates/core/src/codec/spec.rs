//! Which codec, said in words: `lz4`, `lz4hc:level=9`, `zstd:level=-5,dict=auto`.
//!
//! A [`CodecSpec`] is a plain value of four bytes, so that it fits a tunable that is changed while
//! running. An [`Algorithm`] is how pages are compressed from now on; an entry does not carry it,
//! but a [`CodecId`](super::CodecId), which names how the entry is decompressed.

use core::fmt;
use core::ops::RangeInclusive;
use core::str::FromStr;

use crate::sys::codec_ffi::{DeflateCompressor, Lz4HcCompressor, ZSTD_LEVELS};
use crate::sys::words;

/// A way to compress. The numbers are part of [`CodecSpec::to_bits`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Algorithm {
    None = 0,
    Lz4 = 1,
    Lz4Hc = 2,
    Lzo = 3,
    LzoRle = 4,
    Zstd = 5,
    Deflate = 6,
    Ibm842 = 7,
    Words = 8,
}

/// One algorithm: the one home of its name, parameters and help.
struct Entry {
    algorithm: Algorithm,
    name: &'static str,
    /// The levels taken, and the one in force when none is said.
    levels: Option<(RangeInclusive<i8>, i8)>,
    dictionary: bool,
    parameters: &'static str,
    summary: &'static str,
}

const ENTRIES: [Entry; 9] = [
    Entry {
        algorithm: Algorithm::Words,
        name: "words",
        levels: None,
        dictionary: false,
        parameters: "",
        summary: "made for heaps, denser than lz4, which takes pages of which it makes less; the \
                  default on processors with AVX2, where it is the fastest both ways",
    },
    Entry {
        algorithm: Algorithm::Lz4,
        name: "lz4",
        levels: None,
        dictionary: false,
        parameters: "",
        summary: "fast both ways, whatever the pages hold (liblz4); the default on other \
                  processors",
    },
    Entry {
        algorithm: Algorithm::Lz4Hc,
        name: "lz4hc",
        levels: Some((Lz4HcCompressor::LEVELS, 9)),
        dictionary: false,
        parameters: "level=2..9",
        summary: "lz4, several times slower to compress, somewhat denser (liblz4)",
    },
    Entry {
        algorithm: Algorithm::Lzo,
        name: "lzo",
        levels: None,
        dictionary: false,
        parameters: "",
        summary: "lzo1x-1, the compressor of many kernels' zswap",
    },
    Entry {
        algorithm: Algorithm::LzoRle,
        name: "lzo-rle",
        levels: None,
        dictionary: false,
        parameters: "",
        summary: "lzo1x-1 with runs of zeros, zram's default in many kernels",
    },
    Entry {
        algorithm: Algorithm::Zstd,
        name: "zstd",
        levels: Some((ZSTD_LEVELS, 1)),
        dictionary: true,
        parameters: "level=-128..22, dict=auto|off",
        summary: "dense (libzstd); dict=auto trains a dictionary on the program's own pages",
    },
    Entry {
        algorithm: Algorithm::Deflate,
        name: "deflate",
        levels: Some((DeflateCompressor::LEVELS, 6)),
        dictionary: false,
        parameters: "level=1..12",
        summary: "zlib's format without its header (libdeflate)",
    },
    Entry {
        algorithm: Algorithm::Ibm842,
        name: "842",
        levels: None,
        dictionary: false,
        parameters: "",
        summary: "the format of POWER's compression engines, in software",
    },
    Entry {
        algorithm: Algorithm::None,
        name: "none",
        levels: None,
        dictionary: false,
        parameters: "",
        summary: "a plain copy; only useful without a limit on the compressed size",
    },
];

fn entry(algorithm: Algorithm) -> &'static Entry {
    // Every algorithm has an entry: `every_algorithm_is_listed_once` checks it.
    ENTRIES.iter().find(|e| e.algorithm == algorithm).unwrap_or(&ENTRIES[0])
}

/// One line of a help text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodecInfo {
    pub name: &'static str,
    /// The parameters taken, as one writes them; empty if none.
    pub parameters: &'static str,
    pub summary: &'static str,
}

/// Every codec, in the order in which a help text shows them.
pub fn list() -> impl Iterator<Item = CodecInfo> {
    ENTRIES.iter().map(|e| CodecInfo { name: e.name, parameters: e.parameters, summary: e.summary })
}

/// An algorithm with its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodecSpec {
    algorithm: Algorithm,
    level: i8,
    dictionary: bool,
}

impl Default for CodecSpec {
    /// The algorithm that brings pages back fastest on this processor.
    fn default() -> Self {
        Self::of(if words::loops().level() > words::Level::Plain {
            Algorithm::Words
        } else {
            Algorithm::Lz4
        })
    }
}

impl CodecSpec {
    /// The algorithm at its default level.
    pub fn of(algorithm: Algorithm) -> CodecSpec {
        let level = entry(algorithm).levels.as_ref().map_or(0, |l| l.1);
        CodecSpec { algorithm, level, dictionary: false }
    }

    /// Understands `name`, `name:level`, `name:key=value,key=value`.
    pub fn parse(text: &str) -> Result<CodecSpec, ParseError> {
        let (name, parameters) = text.split_once(':').map_or((text, None), |(n, p)| (n, Some(p)));
        let fail = |reason| Err(ParseError { text: text.into(), reason });
        let Some(entry) = ENTRIES.iter().find(|e| e.name == name) else {
            return fail(Reason::NoSuchCodec);
        };
        let mut spec = CodecSpec::of(entry.algorithm);
        for parameter in parameters.into_iter().flat_map(|p| p.split(',')) {
            let (key, value) = parameter.split_once('=').unwrap_or(("level", parameter));
            match (key, &entry.levels) {
                ("level", Some((levels, _))) => match value.parse() {
                    Ok(level) if levels.contains(&level) => spec.level = level,
                    _ => return fail(Reason::BadValue { value: value.into(), entry }),
                },
                ("dict", _) if entry.dictionary => match value {
                    "auto" => spec.dictionary = true,
                    "off" => spec.dictionary = false,
                    _ => return fail(Reason::BadValue { value: value.into(), entry }),
                },
                _ => return fail(Reason::NoSuchParameter { parameter: parameter.into(), entry }),
            }
        }
        Ok(spec)
    }

    pub fn algorithm(self) -> Algorithm {
        self.algorithm
    }

    /// The name without parameters.
    pub fn name(self) -> &'static str {
        entry(self.algorithm).name
    }

    /// The level, 0 where there is none.
    pub fn level(self) -> i8 {
        self.level
    }

    /// Whether a dictionary is to be trained on the program's pages.
    pub fn wants_dictionary(self) -> bool {
        self.dictionary
    }

    /// The value as a word, for an atomic.
    pub const fn to_bits(self) -> u32 {
        self.algorithm as u32 | (self.level as u8 as u32) << 8 | (self.dictionary as u32) << 16
    }

    /// A codec, or none, as a word for an atomic: 0 is none.
    pub fn option_to_word(codec: Option<CodecSpec>) -> u32 {
        codec.map_or(0, |codec| codec.to_bits() + 1)
    }

    /// The value of which [`Self::option_to_word`] made a word; `None` if it was of nothing.
    pub fn option_from_word(word: u32) -> Option<Option<CodecSpec>> {
        match word.checked_sub(1) {
            None => Some(None),
            Some(bits) => CodecSpec::from_bits(bits).map(Some),
        }
    }

    /// The value back from its word; `None` if no `to_bits` made it.
    pub fn from_bits(bits: u32) -> Option<CodecSpec> {
        let entry = ENTRIES.iter().find(|e| e.algorithm as u32 == bits & 0xff)?;
        let spec = CodecSpec {
            algorithm: entry.algorithm,
            level: (bits >> 8) as u8 as i8,
            dictionary: bits >> 16 & 1 == 1,
        };
        let level_ok = entry.levels.as_ref().map_or(spec.level == 0, |l| l.0.contains(&spec.level));
        let ok = level_ok && (entry.dictionary || !spec.dictionary) && bits >> 17 == 0;
        ok.then_some(spec)
    }
}

/// Says the spec as [`CodecSpec::parse`] reads it, defaults included.
impl fmt::Display for CodecSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        if entry(self.algorithm).levels.is_some() {
            write!(f, ":level={}", self.level)?;
        }
        if self.dictionary {
            f.write_str(",dict=auto")?;
        }
        Ok(())
    }
}

impl FromStr for CodecSpec {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Self, ParseError> {
        CodecSpec::parse(text)
    }
}

/// The reason why a text is no codec; displayed in one line.
#[derive(Clone)]
pub struct ParseError {
    text: String,
    reason: Reason,
}

#[derive(Clone)]
enum Reason {
    NoSuchCodec,
    NoSuchParameter { parameter: String, entry: &'static Entry },
    BadValue { value: String, entry: &'static Entry },
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "codec '{}': ", self.text)?;
        let takes = |f: &mut fmt::Formatter<'_>, entry: &Entry| match entry.parameters {
            "" => write!(f, "{} takes no parameters", entry.name),
            parameters => write!(f, "{} takes {parameters}", entry.name),
        };
        match &self.reason {
            Reason::NoSuchCodec => {
                f.write_str("no such codec; there are ")?;
                for (i, e) in ENTRIES.iter().enumerate() {
                    write!(f, "{}{}", if i == 0 { "" } else { ", " }, e.name)?;
                }
                Ok(())
            }
            Reason::NoSuchParameter { parameter, entry } => {
                write!(f, "no such parameter '{parameter}'; ")?;
                takes(f, entry)
            }
            Reason::BadValue { value, entry } => {
                write!(f, "'{value}' is not a value for it; ")?;
                takes(f, entry)
            }
        }
    }
}

impl fmt::Debug for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl core::error::Error for ParseError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_algorithm_is_listed_once() {
        for number in 0..ENTRIES.len() as u32 {
            let spec =
                CodecSpec::from_bits(number | 1 << 8).or(CodecSpec::from_bits(number | 2 << 8));
            let spec = spec.or(CodecSpec::from_bits(number)).unwrap();
            assert_eq!(spec.algorithm as u32, number);
            assert_eq!(list().filter(|i| i.name == spec.name()).count(), 1);
        }
        assert_eq!(CodecSpec::from_bits(ENTRIES.len() as u32), None);
    }

    #[test]
    fn what_is_said_is_read_back() {
        for text in [
            "words",
            "lz4",
            "none",
            "842",
            "lzo",
            "lzo-rle",
            "lz4hc:level=2",
            "zstd:level=-128",
            "zstd:level=22",
            "zstd:level=3,dict=auto",
            "deflate:level=12",
        ] {
            let spec = CodecSpec::parse(text).unwrap();
            assert_eq!(spec.to_string(), text);
            assert_eq!(CodecSpec::from_bits(spec.to_bits()), Some(spec));
        }
        assert_eq!(
            CodecSpec::parse("zstd").unwrap(),
            CodecSpec::parse("zstd:level=1,dict=off").unwrap()
        );
        assert_eq!(CodecSpec::parse("lz4hc:4").unwrap().level(), 4);
        let is_plain = words::loops().level() == words::Level::Plain;
        assert_eq!(CodecSpec::default().to_string(), if is_plain { "lz4" } else { "words" });
    }

    #[test]
    fn a_refusal_names_the_value_and_what_there_is() {
        let says = |text: &str| CodecSpec::parse(text).unwrap_err().to_string();
        assert_eq!(
            says("snappy"),
            "codec 'snappy': no such codec; there are words, lz4, lz4hc, lzo, lzo-rle, zstd, \
             deflate, 842, none"
        );
        assert_eq!(
            says("zstd:level=99"),
            "codec 'zstd:level=99': '99' is not a value for it; zstd takes level=-128..22, \
             dict=auto|off"
        );
        assert_eq!(
            says("zstd:lvl=9"),
            "codec 'zstd:lvl=9': no such parameter 'lvl=9'; zstd takes level=-128..22, \
             dict=auto|off"
        );
        assert_eq!(says("lz4:9"), "codec 'lz4:9': no such parameter '9'; lz4 takes no parameters");
        for bad in [
            "",
            "lz4:",
            "lz4hc:level=10",
            "lz4hc:",
            "zstd:dict=yes",
            "LZ4",
            "deflate:level=0",
            "zstd:",
        ] {
            assert!(CodecSpec::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn bits_that_mean_nothing_are_refused() {
        let mut good = 0;
        for bits in 0..1u32 << 18 {
            if let Some(spec) = CodecSpec::from_bits(bits) {
                assert_eq!(spec.to_bits(), bits);
                assert_eq!(CodecSpec::parse(&spec.to_string()).unwrap(), spec);
                good += 1;
            }
        }
        // words, lz4, lzo, lzo-rle, 842 and none once each, 8 levels of lz4hc, 12 of deflate, 151
        // of zstd twice.
        assert_eq!(good, 6 + 8 + 12 + 2 * 151);
    }
}
