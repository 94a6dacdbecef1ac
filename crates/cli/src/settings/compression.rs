//! How a run compresses, in words: as `uzswap run` is told at first, and `uzswap set` later.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};
use uzswap::codec::CodecSpec;
use uzswap::control::tuning::Compression;
use uzswap::pool::PoolKind;

use crate::options::{
    self, ACCEPT_THRESHOLD, COMPRESSOR, Given, OptionSpec, POOL, POOL_PERCENT, RECOMPRESSOR,
};

/// The words for what is to change; none: it stays.
#[derive(clap::Args, Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Words {
    /// How pages are compressed from now on: words, lz4, zstd:level=3 and others, or auto; pages
    /// that are in the pool stay as they are
    #[arg(long, value_name = "NAME|auto")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compressor: Option<String>,
    /// How idle pages are compressed again, or none
    #[arg(long, value_name = "NAME|none")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recompressor: Option<String>,
    /// The pool for pages that go out from now on: zsmalloc or zbud
    #[arg(long, value_name = "NAME")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// The share of the memory that compressed pages may take, in percent (1 to 90), or auto
    #[arg(long, value_name = "N|auto", allow_hyphen_values = true)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool_percent: Option<String>,
    /// A full pool takes nothing until it is below this part of its size, in percent (1 to 100)
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accept_threshold: Option<String>,
}

impl Words {
    pub fn is_empty(&self) -> bool {
        *self == Words::default()
    }

    /// With the changes that the words ask for. An error names the option.
    pub fn change(&self, before: Compression) -> Result<Compression, String> {
        changed(before, |option| {
            let words = [
                (COMPRESSOR.flag, &self.compressor),
                (RECOMPRESSOR.flag, &self.recompressor),
                (POOL.flag, &self.pool),
                (POOL_PERCENT.flag, &self.pool_percent),
                (ACCEPT_THRESHOLD.flag, &self.accept_threshold),
            ];
            let word = words
                .into_iter()
                .find_map(|(flag, word)| if flag == option.flag { word.clone() } else { None });
            let origin = format!("--{}", option.flag);
            Ok(word.map(|value| Given { value, origin }))
        })
    }
}

/// The word for no recompressor.
const NONE: &str = "none";

/// The values that a run has if nothing is said.
pub fn default() -> Compression {
    Compression {
        compressor: None,
        recompressor: CodecSpec::parse(options::RECOMPRESSOR_DEFAULT).ok(),
        pool: PoolKind::Zsmalloc,
        pool_percent: 0,
        accept_threshold_percent: options::ACCEPT_THRESHOLD_DEFAULT,
    }
}

/// The values in words, each with the name of its option.
pub fn said(c: &Compression) -> [(&'static str, String); 5] {
    let codec = |codec: Option<CodecSpec>, none: &str| codec.map_or(none.into(), |c| c.to_string());
    let pool_percent = match c.pool_percent {
        0 => options::POOL_PERCENT_DEFAULT.to_string(),
        percent => percent.to_string(),
    };
    [
        (COMPRESSOR.flag, codec(c.compressor, options::COMPRESSOR_DEFAULT)),
        (RECOMPRESSOR.flag, codec(c.recompressor, NONE)),
        (POOL.flag, c.pool.name().to_string()),
        (POOL_PERCENT.flag, pool_percent),
        (ACCEPT_THRESHOLD.flag, c.accept_threshold_percent.to_string()),
    ]
}

/// The values with what `text` says in their place: the word for an option, and its origin.
pub fn changed(
    before: Compression,
    text: impl Fn(&OptionSpec) -> Result<Option<Given<String>>, String>,
) -> Result<Compression, String> {
    let mut now = before;
    if let Some(given) = text(&COMPRESSOR)? {
        now.compressor = codec_or(&given, options::COMPRESSOR_DEFAULT)?;
    }
    if let Some(given) = text(&RECOMPRESSOR)? {
        now.recompressor = codec_or(&given, NONE)?;
    }
    if let Some(given) = text(&POOL)? {
        now.pool = pool(&given)?;
    }
    if let Some(given) = text(&POOL_PERCENT)? {
        now.pool_percent = match given.value.trim() {
            options::POOL_PERCENT_DEFAULT => 0,
            _ => percent(&given, options::POOL_PERCENT_MIN..=options::POOL_PERCENT_MAX)?,
        };
    }
    if let Some(given) = text(&ACCEPT_THRESHOLD)? {
        now.accept_threshold_percent = percent(&given, 1..=100)?;
    }
    Ok(now)
}

/// A codec, or none where the word is `none`.
fn codec_or(given: &Given<String>, none: &str) -> Result<Option<CodecSpec>, String> {
    if given.value == none {
        return Ok(None);
    }
    let codec = CodecSpec::parse(&given.value);
    codec.map(Some).map_err(|why| format!("{}: {why}", given.origin))
}

fn pool(given: &Given<String>) -> Result<PoolKind, String> {
    PoolKind::parse(&given.value).ok_or_else(|| {
        let names = PoolKind::ALL.map(PoolKind::name).join(" or ");
        format!("{}: there is no pool '{}': take {names}", given.origin, given.value)
    })
}

fn percent(given: &Given<String>, range: RangeInclusive<u32>) -> Result<u32, String> {
    match given.value.trim().trim_end_matches('%').parse() {
        Ok(percent) if range.contains(&percent) => Ok(percent),
        _ => Err(format!(
            "{}: '{}' is no percentage from {} to {}",
            given.origin,
            given.value,
            range.start(),
            range.end()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The outcome of one word for `option`.
    fn with(option: &OptionSpec, word: &str) -> Result<Compression, String> {
        changed(default(), |asked| {
            let given = || Given { value: word.to_string(), origin: "--x".to_string() };
            Ok((asked.flag == option.flag).then(given))
        })
    }

    #[test]
    fn what_is_said_is_understood() {
        let words = Words {
            compressor: Some("zstd:3".into()),
            recompressor: Some("none".into()),
            pool: Some("zbud".into()),
            pool_percent: Some("25%".into()),
            accept_threshold: Some("80".into()),
        };
        let now = words.change(default()).unwrap();
        let values = said(&now).map(|(_, value)| value);
        assert_eq!(values, ["zstd:level=3", "none", "zbud", "25", "80"]);
        let back = Words {
            compressor: Some("auto".into()),
            pool_percent: Some("auto".into()),
            ..Words::default()
        };
        assert!(Words::default().is_empty() && !back.is_empty());
        let now = back.change(now).unwrap();
        let values = said(&now).map(|(_, value)| value);
        assert_eq!(values, ["auto", "none", "zbud", "auto", "80"], "the rest stays");
        let first = said(&default()).map(|(_, value)| value);
        assert_eq!(first, ["auto", "zstd:level=-1", "zsmalloc", "auto", "90"]);
        let options = [&COMPRESSOR, &RECOMPRESSOR, &POOL, &POOL_PERCENT, &ACCEPT_THRESHOLD];
        assert_eq!(first, options.map(|option| option.default), "as the help says");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (option, wrong, words) in [
            (&COMPRESSOR, "gzip", &["gzip", "lzo-rle"][..]),
            (&RECOMPRESSOR, "auto", &["'auto'", "lzo-rle"]),
            (&POOL, "z3fold", &["'z3fold'", "zsmalloc or zbud"]),
            (&POOL_PERCENT, "0", &["'0'", "from 1 to 90"]),
            (&POOL_PERCENT, "91", &["'91'", "from 1 to 90"]),
            (&POOL_PERCENT, "-1", &["'-1'"]),
            (&POOL_PERCENT, "", &["''"]),
            (&POOL_PERCENT, "half", &["'half'", "from 1 to 90"]),
            (&POOL_PERCENT, "4294967346", &["from 1 to 90"]),
            (&ACCEPT_THRESHOLD, "0", &["from 1 to 100"]),
            (&ACCEPT_THRESHOLD, "101", &["from 1 to 100"]),
        ] {
            let why = with(option, wrong).unwrap_err();
            assert!(why.starts_with("--x: "), "{why}");
            assert!(words.iter().all(|word| why.contains(word)), "{why}");
        }
    }
}
