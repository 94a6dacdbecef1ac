//! Raw options made into settings: every value parsed, completed, and checked against this machine.
//!
//! After this step nothing is optional and nothing can be wrong that could have been known before
//! the program starts.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use uzswap::control::tuning::Compression;
use uzswap::control::{HugePages, Mechanism, Settings};

pub mod compression;
mod memory;
mod store;
mod values;

pub use memory::{describe, memory};
pub use store::Backing;
pub use values::idle_after;

use crate::Failure;
use crate::observe::address::Listener;
use crate::options::{self, Given, OptionSpec, RawOptions};
use crate::place;
use crate::program::reason;
use crate::size::PAGE_BYTES;
use crate::trace::Header;
use crate::trace::recorder::TraceFile;
use crate::whole_file;
use store::store;
use values::{huge_pages, mechanism, pool_remark};

type Env<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The settings of `uzswap run`, resolved.
#[derive(Debug)]
pub struct RunSettings {
    pub memory_bytes: u64,
    /// How that was decided, in words, for `--stats`.
    pub memory_origin: String,
    /// The margin that the limit keeps to the memory group that it was taken from, if it was.
    pub group_margin_bytes: Option<u64>,
    pub compression: Compression,
    pub huge_pages: HugePages,
    pub store: Option<Backing>,
    pub stats: Option<StatsFile>,
    /// Where `--metrics` listens: taken out when it begins.
    pub metrics: Option<Listener>,
    /// The page of `--report`, as an absolute path that could be written.
    pub report: Option<PathBuf>,
    /// Where `--trace` records: taken out when it begins.
    pub trace: Option<TraceFile>,
    pub mechanism: Mechanism,
    pub if_possible: bool,
    pub encrypt: bool,
    pub cache: Option<PathBuf>,
    pub quiet: bool,
    pub debug: bool,
    /// Processes that do nothing for so long give their memory back.
    pub idle_after: Option<Duration>,
    /// The program has our process id, and its supervisor another.
    pub in_place: bool,
    /// Where processes need more at a time than fits, they run by turns.
    pub takes_turns: bool,
    /// Lines worth saying before the program starts.
    pub remarks: Vec<String>,
}

/// The file of `--stats`, opened.
#[derive(Debug)]
pub struct StatsFile {
    pub path: PathBuf,
    pub file: File,
}

impl RunSettings {
    /// Completes and checks the options. Files and sockets are made last: a wrong option leaves
    /// them alone.
    pub fn resolve(raw: &RawOptions, env: Env) -> Result<RunSettings, Failure> {
        let mut remarks = Vec::new();
        let wrong = Failure::usage;
        let text = |option: &OptionSpec| match raw.text(option, env) {
            None => Ok(None),
            Some(given) => match given.value.to_str() {
                Some(value) => Ok(Some(Given { value: value.to_string(), origin: given.origin })),
                None => Err(wrong(format!("{}: {:?} is not UTF-8", given.origin, given.value))),
            },
        };
        let switch = |option| raw.switch(option, env).map_err(wrong);

        let memory = memory(text(&options::MEMORY)?, &mut remarks)?;
        let word = |option: &OptionSpec| text(option).map_err(|failure| failure.message);
        let compression = compression::changed(compression::default(), word).map_err(wrong)?;
        remarks.extend(pool_remark(memory.bytes, compression.pool_percent));
        Ok(RunSettings {
            memory_bytes: memory.bytes,
            memory_origin: memory.origin,
            group_margin_bytes: memory.group_margin_bytes,
            compression,
            mechanism: mechanism(text(&options::MECHANISM)?).map_err(wrong)?,
            huge_pages: huge_pages(text(&options::HUGE_PAGES)?).map_err(wrong)?,
            store: store(raw, env, text(&options::COPIES)?, &mut remarks)?,
            cache: cache(raw, env, &mut remarks)?,
            if_possible: switch(&options::IF_POSSIBLE)?,
            encrypt: !switch(&options::NO_ENCRYPT)?,
            quiet: switch(&options::QUIET)?,
            debug: switch(&options::DEBUG)?,
            report: report(raw, env)?,
            metrics: metrics(raw, env, &mut remarks)?,
            idle_after: idle_after(text(&options::IDLE_AFTER)?).map_err(wrong)?,
            in_place: switch(&options::IN_PLACE)?,
            takes_turns: !switch(&options::NO_TURNS)?,
            stats: stats(raw, env)?,
            trace: trace(raw, env)?,
            remarks,
        })
    }

    /// Empties the files that were opened, once nothing else keeps the program from starting, and
    /// begins the trace: a program whose trace has no place does not start.
    pub fn begin_files(&mut self, started_at: SystemTime) -> Result<(), Failure> {
        if let Some(trace) = &mut self.trace {
            let began = started_at.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
            let header = Header { limit_pages: self.memory_bytes / PAGE_BYTES, began };
            trace.begin(header).map_err(|e| {
                Failure::environment(format!(
                    "--trace: {}: {}: make room there, or name a file on another disk",
                    trace.path.display(),
                    reason(&e)
                ))
            })?;
        }
        // Of a pipe or a device there is nothing to empty.
        self.stats.iter().for_each(|stats| _ = stats.file.set_len(0));
        Ok(())
    }

    /// The settings for the runtime, as plain bytes.
    pub fn for_runtime(&self) -> Result<Settings, Failure> {
        let mut plain = Settings {
            memory_bytes: self.memory_bytes,
            pool_percent: self.compression.pool_percent,
            mechanism: self.mechanism as u32,
            huge_pages: self.huge_pages as u32,
            if_possible: self.if_possible as u32,
            encrypt: self.encrypt as u32,
            debug: self.debug as u32,
            trace: self.trace.is_some() as u32,
            ..Settings::new()
        };
        let [(_, compressor), (_, recompressor), ..] = compression::said(&self.compression);
        plain.compressor_len = put(&mut plain.compressor, compressor.as_bytes(), "the compressor")?;
        let recompressor = if self.compression.recompressor.is_none() { "" } else { &recompressor };
        plain.recompressor_len =
            put(&mut plain.recompressor, recompressor.as_bytes(), "the recompressor")?;
        let directory = self.store.as_ref().and_then(Backing::directory);
        let directory = directory.map_or(&[][..], |path| path.as_os_str().as_bytes());
        plain.store_dir_len = put(&mut plain.store_dir, directory, "the store directory")?;
        if let Some(Backing::Servers(Some(kept), _)) = &self.store {
            kept.put(&mut plain);
        }
        put_cache(&mut plain, self.cache.as_deref())?;
        Ok(plain)
    }
}

/// Says where patch tables and texts are kept.
pub fn put_cache(plain: &mut Settings, cache: Option<&Path>) -> Result<(), Failure> {
    let cache = cache.map_or(&[][..], |path| path.as_os_str().as_bytes());
    plain.cache_dir_len = put(&mut plain.cache_dir, cache, "the cache directory")?;
    Ok(())
}

/// Copies a string into a field and returns its length.
fn put(field: &mut [u8], bytes: &[u8], what: &str) -> Result<u32, Failure> {
    let Some(room) = field.get_mut(..bytes.len()) else {
        return Err(Failure::usage(format!(
            "the name of {what} is too long ({} bytes)",
            bytes.len()
        )));
    };
    room.copy_from_slice(bytes);
    Ok(bytes.len() as u32)
}

fn absolute(given: &Given<OsString>) -> Result<PathBuf, Failure> {
    std::path::absolute(&given.value).map_err(|e| {
        Failure::usage(format!("{}: {}: {}", given.origin, given.value.display(), reason(&e)))
    })
}

/// The directory of patch tables and texts, which is ours alone.
fn cache(
    raw: &RawOptions,
    env: Env,
    remarks: &mut Vec<String>,
) -> Result<Option<PathBuf>, Failure> {
    match raw.text(&options::CACHE, env) {
        None => Ok(place::default_cache(env, remarks)),
        Some(given) if given.value == "none" => Ok(None),
        Some(given) => {
            let path = absolute(&given)?;
            place::private_directory(&path)
                .map_err(|fault| Failure::usage(format!("{}: {}", given.origin, fault.text)))?;
            Ok(Some(path))
        }
    }
}

fn report(raw: &RawOptions, env: Env) -> Result<Option<PathBuf>, Failure> {
    let Some(given) = raw.text(&options::REPORT, env) else { return Ok(None) };
    let path = absolute(&given)?;
    match whole_file::try_path(&path) {
        Ok(()) => Ok(Some(path)),
        Err(e) => {
            Err(Failure::usage(format!("{}: {}: {}", given.origin, path.display(), file_fault(&e))))
        }
    }
}

fn metrics(
    raw: &RawOptions,
    env: Env,
    remarks: &mut Vec<String>,
) -> Result<Option<Listener>, Failure> {
    let Some(given) = raw.text(&options::METRICS, env) else { return Ok(None) };
    let listener = Listener::open(&given.value)
        .map_err(|why| Failure::usage(format!("{}: {why}", given.origin)))?;
    // Nobody knows a port that the kernel has chosen.
    if given.value == "0" || given.value.as_bytes().ends_with(b":0") {
        remarks.push(format!("metrics at {}", listener.name()));
    }
    Ok(Some(listener))
}

/// Why a file cannot be made.
fn file_fault(e: &std::io::Error) -> String {
    match e.kind() {
        std::io::ErrorKind::NotFound => "its directory does not exist".to_string(),
        std::io::ErrorKind::IsADirectory => "is a directory".to_string(),
        _ => reason(e),
    }
}

fn stats(raw: &RawOptions, env: Env) -> Result<Option<StatsFile>, Failure> {
    let Some(given) = raw.text(&options::STATS, env) else { return Ok(None) };
    create(&given).map(|(path, file)| Some(StatsFile { path, file }))
}

fn trace(raw: &RawOptions, env: Env) -> Result<Option<TraceFile>, Failure> {
    let Some(given) = raw.text(&options::TRACE, env) else { return Ok(None) };
    create(&given).map(|(path, file)| Some(TraceFile { path, file }))
}

/// Makes a file, or says why not. A file that is there keeps its contents for now.
fn create(given: &Given<OsString>) -> Result<(PathBuf, File), Failure> {
    let path = PathBuf::from(&given.value);
    match File::options().write(true).create(true).truncate(false).open(&path) {
        Ok(file) => Ok((path, file)),
        Err(e) => {
            Err(Failure::usage(format!("{}: {}: {}", given.origin, path.display(), file_fault(&e))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn given(value: &str) -> Given<String> {
        Given { value: value.to_string(), origin: "--x".to_string() }
    }

    #[test]
    fn a_run_that_is_refused_leaves_the_results_of_the_last_one() {
        let stats = std::env::temp_dir().join(format!("uzswap-settings-{}", std::process::id()));
        std::fs::write(&stats, "results").unwrap();
        let resolve = |trace: &str| {
            let env = |name: &str| match name {
                "UZSWAP_STATS" => Some(stats.clone().into()),
                "UZSWAP_TRACE" => Some(OsString::from(trace)),
                "UZSWAP_STORE" | "UZSWAP_CACHE" => Some("none".into()),
                _ => None,
            };
            RunSettings::resolve(&RawOptions::default(), &env)
        };
        let why = resolve("/no/where/trace").unwrap_err().message;
        assert!(why.contains("/no/where/trace: its directory does not exist"), "{why}");
        let why = resolve("/dev/full").unwrap().begin_files(UNIX_EPOCH).unwrap_err().message;
        assert!(why.starts_with("--trace: /dev/full: ") && why.contains("another disk"), "{why}");
        let mut settings = resolve("/dev/null").unwrap();
        assert_eq!(std::fs::read(&stats).unwrap(), b"results");
        settings.begin_files(UNIX_EPOCH).unwrap();
        assert_eq!(std::fs::read(&stats).unwrap(), b"");
        std::fs::remove_file(&stats).unwrap();
    }

    #[test]
    fn fields_of_fixed_size() {
        let mut field = [0u8; 4];
        assert_eq!(put(&mut field, b"abc", "it").unwrap(), 3);
        assert_eq!(&field, b"abc\0");
        assert!(put(&mut field, b"abcde", "it").is_err());
    }
}
