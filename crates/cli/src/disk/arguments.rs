//! The words of `uzswap disk`: a new disk, an order to one that is there, or their list.

use std::ffi::OsString;
use std::path::PathBuf;

use uzswap::codec::CodecSpec;
use uzswap::store::seal::Encryption;
use uzswap_disk::DiskConfig;
use uzswap_disk::disk::DISK_MOST_BYTES;

use crate::size::{self, Size};
use crate::{Failure, duration, options, place};

/// Arguments of `uzswap disk`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Orders, as zram's files: mm_stat, io_stat, bd_stat, stats, idle all|AGE, \
                        writeback idle|huge|huge_idle|incompressible [max_pages=N], \
                        recompress [idle|huge|huge_idle] [threshold=BYTES] [max_pages=N], compact, \
                        reset, set memory=SIZE|compressor=NAME|recompressor=NAME|\
                        writeback_limit=SIZE|idle_after=AGE|read_only=0|1")]
pub struct DiskArguments {
    /// How large the disk is (512M, 4G), the name of one that is served, or ls for all of them
    #[arg(value_name = "SIZE|NAME|ls", allow_hyphen_values = true)]
    first: String,
    /// An order to the disk of that name, or a question
    #[arg(value_name = "ORDER")]
    order: Vec<String>,
    /// Its name, for orders and as an export
    #[arg(long)]
    name: Option<String>,
    /// Memory for all that is stored, compressed; a part of SIZE if in percent [default: 50% of
    /// SIZE with a
    /// store, else what SIZE bytes that do not compress take]
    #[arg(long, value_name = "SIZE|PERCENT")]
    memory: Option<String>,
    /// Directory on a disk for what finds no room in memory
    #[arg(long, value_name = "DIR|none", default_value = "none")]
    store: OsString,
    /// How pages are compressed (see 'uzswap help compressors')
    #[arg(long, value_name = "NAME", default_value = "words")]
    compressor: String,
    /// How pages are compressed again that are idle
    #[arg(long, value_name = "NAME|none", default_value = options::RECOMPRESSOR_DEFAULT)]
    recompressor: String,
    /// Where clients connect [default: a Unix socket of the user's alone]
    #[arg(long, value_name = "unix:PATH|HOST:PORT")]
    listen: Option<OsString>,
    /// Serve other machines in plain text: whoever reaches the port reads and writes the disk
    #[arg(long)]
    no_tls: bool,
    /// Refuse whatever changes the disk
    #[arg(long)]
    read_only: bool,
    /// After this time without use pages go to the store, or are compressed more densely
    #[arg(long, value_name = "TIME")]
    idle_after: Option<String>,
    /// Write no more than this to the store for being idle, or by order
    #[arg(long, value_name = "SIZE")]
    writeback_limit: Option<String>,
    /// Keep the disk's memory out of the kernel's swap: for a disk that is swapped on
    #[arg(long)]
    locked: bool,
    /// Write what goes to the store as it is
    #[arg(long)]
    no_encrypt: bool,
    /// The list as JSON
    #[arg(long)]
    json: bool,
    /// Run this with $NBD_URI set, and end with it
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// A command line of `uzswap disk`.
pub enum Meaning {
    List { json: bool },
    Order { name: String, words: Vec<String> },
    Serve(Box<ServeSettings>),
}

/// A disk that is to be served.
pub struct ServeSettings {
    pub config: DiskConfig,
    pub name: Option<String>,
    pub listen: Option<OsString>,
    pub may_be_plain: bool,
    pub idle_after_seconds: u64,
    pub writeback_limit_pages: Option<u64>,
    pub locked: bool,
    pub command: Vec<OsString>,
}

fn wrong(option: &str) -> impl Fn(String) -> Failure {
    move |why| Failure::usage(format!("{option}: {why}"))
}

/// A name is a part of a file's name, and a word.
fn check_name(name: &str) -> Result<(), String> {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    match name.len() {
        1..=64 if begins && name.chars().all(is_fine) => Ok(()),
        _ => Err(format!("'{name}' is no name: up to 64 letters, digits, dots, dashes")),
    }
}

/// The size of a disk.
fn disk_bytes(text: &str) -> Result<u64, String> {
    match size::parse(text)? {
        Size::Bytes(0) => Err(format!("'{text}': a disk of no bytes")),
        Size::Bytes(bytes) if bytes <= DISK_MOST_BYTES => Ok(bytes),
        Size::Bytes(_) => Err(format!("'{text}' is too large: at most 16 TiB less two pages")),
        Size::MilliPercent(_) => {
            Err(format!("'{text}': a disk is no part of anything: write 512M or 4G"))
        }
    }
}

/// The most that so many bytes take: as they are, and a little more for the records of each page.
fn incompressible_bytes(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / 50).saturating_add(8 << 20)
}

fn codec(option: &str, name: &str) -> Result<CodecSpec, Failure> {
    CodecSpec::parse(name).map_err(|why| wrong(option)(why.to_string()))
}

impl DiskArguments {
    pub fn meaning(self) -> Result<Meaning, Failure> {
        if !self.order.is_empty() {
            check_name(&self.first).map_err(Failure::usage)?;
            return Ok(Meaning::Order { words: plain_words(&self.order)?, name: self.first });
        }
        if self.first == "ls" {
            return Ok(Meaning::List { json: self.json });
        }
        self.settings().map(|settings| Meaning::Serve(Box::new(settings)))
    }

    fn settings(self) -> Result<ServeSettings, Failure> {
        let bytes = disk_bytes(&self.first).map_err(|why| {
            Failure::usage(format!("disk: {why}; an order to a disk follows its name"))
        })?;
        if let Some(name) = &self.name {
            check_name(name).map_err(wrong("--name"))?;
        }
        let store = match self.store.to_str() {
            Some("none") => None,
            _ => Some(store_directory(&self.store)?),
        };
        let memory_bytes = match &self.memory {
            Some(text) => size::parse(text).map_err(wrong("--memory"))?.of(bytes),
            None if store.is_some() => bytes / 2,
            None => incompressible_bytes(bytes),
        };
        let recompressor = match self.recompressor.as_str() {
            "none" => None,
            name => Some(codec("--recompressor", name)?),
        };
        let idle_after = match &self.idle_after {
            Some(text) => duration::parse(text).map_err(wrong("--idle-after"))?.as_secs().max(1),
            None => 0,
        };
        let limit = self.writeback_limit.as_deref().map(limit_pages).transpose();
        let config = DiskConfig {
            bytes,
            memory_bytes,
            compressor: codec("--compressor", &self.compressor)?,
            recompressor,
            store,
            encryption: if self.no_encrypt { Encryption::Off } else { Encryption::On },
            read_only: self.read_only,
        };
        Ok(ServeSettings {
            config,
            name: self.name,
            listen: self.listen,
            may_be_plain: self.no_tls,
            idle_after_seconds: idle_after,
            writeback_limit_pages: limit.map_err(wrong("--writeback-limit"))?,
            locked: self.locked,
            command: self.command,
        })
    }
}

fn store_directory(text: &OsString) -> Result<PathBuf, Failure> {
    let fault = |e: &std::io::Error| {
        Failure::usage(format!("--store: {}: {}", text.display(), place::store_fault(e)))
    };
    let directory = std::path::absolute(text).map_err(|e| fault(&e))?;
    place::try_store(&directory).map_err(|e| fault(&e))?;
    Ok(directory)
}

fn limit_pages(text: &str) -> Result<u64, String> {
    match size::parse(text)? {
        Size::Bytes(bytes) => Ok(bytes / 4096),
        Size::MilliPercent(_) => Err(format!("'{text}': write 400M, or a number of bytes")),
    }
}

/// The words of an order, with sizes and times as plain numbers.
fn plain_words(words: &[String]) -> Result<Vec<String>, Failure> {
    let mut plain = Vec::new();
    for (i, word) in words.iter().enumerate() {
        let seconds = |text: &str| duration::parse(text).map(|d| d.as_secs().to_string());
        let bytes = |text: &str| match size::parse(text)? {
            Size::Bytes(bytes) => Ok(bytes.to_string()),
            Size::MilliPercent(_) => {
                Err(format!("'{text}': write 512M, 1.5G or a number of bytes"))
            }
        };
        let plain_word = match (words[0].as_str(), word.split_once('=')) {
            _ if i == 0 => Ok(word.clone()),
            ("idle", None) if word != "all" => seconds(word),
            ("set", Some(("memory", value))) => bytes(value).map(|n| format!("memory={n}")),
            ("set", Some(("idle_after", value))) => {
                seconds(value).map(|n| format!("idle_after={n}"))
            }
            ("set", Some(("writeback_limit", value))) if value != "none" => {
                limit_pages(value).map(|n| format!("writeback_limit={n}"))
            }
            ("recompress", Some(("threshold", value))) => {
                bytes(value).map(|n| format!("threshold={n}"))
            }
            _ => Ok(word.clone()),
        };
        plain.push(plain_word.map_err(wrong(&words[0]))?);
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_disks() {
        assert_eq!(disk_bytes("1M"), Ok(1 << 20));
        assert_eq!(disk_bytes("1000"), Ok(1000));
        for (text, word) in
            [("0", "no bytes"), ("50%", "no part"), ("16T", "too large"), ("x", "no size")]
        {
            let error = disk_bytes(text).unwrap_err();
            assert!(error.contains(word) && error.contains(text), "{error}");
        }
    }

    #[test]
    fn names_are_words_and_parts_of_file_names() {
        for name in ["a", "0", "build-1.x_y"] {
            assert_eq!(check_name(name), Ok(()));
        }
        for name in ["", ".", "../x", "a/b", "-x", "a b", "ü", &"x".repeat(65)] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn orders_are_sent_in_plain_numbers() {
        let plain = |text: &str| {
            let words: Vec<String> = text.split(' ').map(str::to_string).collect();
            plain_words(&words).map(|w| w.join(" ")).map_err(|f| f.message)
        };
        for (given, sent) in [
            ("idle 10m", "idle 600"),
            ("idle all", "idle all"),
            ("set memory=1G", "set memory=1073741824"),
            ("set idle_after=1h", "set idle_after=3600"),
            ("set writeback_limit=1M", "set writeback_limit=256"),
            ("set writeback_limit=none", "set writeback_limit=none"),
            ("set compressor=zstd:level=3", "set compressor=zstd:level=3"),
            (
                "recompress huge threshold=3K max_pages=7",
                "recompress huge threshold=3072 max_pages=7",
            ),
            ("mm_stat", "mm_stat"),
        ] {
            assert_eq!(plain(given).as_deref(), Ok(sent));
        }
        for wrong in ["idle soon", "set memory=50%", "set memory=", "set writeback_limit=x"] {
            assert!(plain(wrong).is_err(), "{wrong}");
        }
    }
}
