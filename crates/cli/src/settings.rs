//! Raw options made into settings: every value parsed, completed, and checked against this machine.
//!
//! After this step nothing is optional and nothing can be wrong that could have been known before
//! the program starts.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use uzswap::codec::CodecSpec;
use uzswap::control::{HugePages, Mechanism, Settings};
use uzswap::pool::MOST_BYTES;

use crate::Failure;
use crate::budget::Budget;
use crate::duration;
use crate::observe::address::Listener;
use crate::options::{self, Given, MIN_MEMORY_BYTES, RawOptions};
use crate::place;
use crate::program::reason;
use crate::remote::valkey::{self, Values};
use crate::remote::{self, Exports, Kept, address, device};
use crate::size;
use crate::trace::recorder::TraceFile;
use crate::whole_file;

type Env<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The settings of `uzswap run`, resolved.
#[derive(Debug)]
pub struct RunSettings {
    pub memory_bytes: u64,
    /// How that was decided, in words, for `--stats`.
    pub memory_origin: String,
    /// The margin that the limit keeps to the memory group that it was taken from, if it was.
    pub group_margin_bytes: Option<u64>,
    /// 0: adapts.
    pub pool_percent: u32,
    pub compressor: String,
    /// `none`: nothing is compressed again.
    pub recompressor: String,
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

/// Where pages go that find no room in memory.
#[derive(Debug)]
pub enum Backing {
    Directory(PathBuf),
    /// On servers, or on a block device. Taken out when the program starts; how that is called
    /// stays.
    Servers(Option<Box<dyn Kept>>, String),
}

impl Backing {
    /// For messages and documents.
    pub fn shown(&self) -> String {
        match self {
            Backing::Directory(path) => path.to_string_lossy().into_owned(),
            Backing::Servers(_, shown) => shown.clone(),
        }
    }

    fn directory(&self) -> Option<&Path> {
        match self {
            Backing::Directory(path) => Some(path),
            Backing::Servers(..) => None,
        }
    }

    fn servers(kept: impl Kept + 'static) -> Backing {
        let shown = kept.shown();
        Backing::Servers(Some(Box::new(kept)), shown)
    }
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
        let text = |option| match raw.text(option, env) {
            None => Ok(None),
            Some(given) => match given.value.to_str() {
                Some(value) => Ok(Some(Given { value: value.to_string(), origin: given.origin })),
                None => Err(wrong(format!("{}: {:?} is not UTF-8", given.origin, given.value))),
            },
        };
        let switch = |option| raw.switch(option, env).map_err(wrong);

        let memory = memory(text(&options::MEMORY)?, &mut remarks)?;
        let pool_percent = pool_percent(text(&options::POOL_PERCENT)?).map_err(wrong)?;
        remarks.extend(pool_remark(memory.bytes, pool_percent));
        Ok(RunSettings {
            memory_bytes: memory.bytes,
            memory_origin: memory.origin,
            group_margin_bytes: memory.group_margin_bytes,
            pool_percent,
            compressor: compressor(text(&options::COMPRESSOR)?).map_err(wrong)?,
            recompressor: recompressor(text(&options::RECOMPRESSOR)?).map_err(wrong)?,
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

    /// Empties the files that were opened, once nothing keeps the program from starting.
    pub fn empty_files(&self) {
        let files = [self.stats.as_ref().map(|s| &s.file), self.trace.as_ref().map(|t| &t.file)];
        // Of a pipe or a device there is nothing to empty.
        files.into_iter().flatten().for_each(|file| _ = file.set_len(0));
    }

    /// The settings for the runtime, as plain bytes.
    pub fn for_runtime(&self) -> Result<Settings, Failure> {
        let mut plain = Settings {
            memory_bytes: self.memory_bytes,
            pool_percent: self.pool_percent,
            mechanism: self.mechanism as u32,
            huge_pages: self.huge_pages as u32,
            if_possible: self.if_possible as u32,
            encrypt: self.encrypt as u32,
            debug: self.debug as u32,
            trace: self.trace.is_some() as u32,
            ..Settings::new()
        };
        plain.compressor_len =
            put(&mut plain.compressor, self.compressor.as_bytes(), "the compressor")?;
        let recompressor = if self.recompressor == "none" { "" } else { &self.recompressor };
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

/// The limit of a run.
pub struct Memory {
    pub bytes: u64,
    /// Where it came from, in words.
    pub origin: String,
    /// See [`RunSettings::group_margin_bytes`].
    pub group_margin_bytes: Option<u64>,
}

/// The limit as somebody wants it, checked against what there is here.
pub fn memory(given: Option<Given<String>>, remarks: &mut Vec<String>) -> Result<Memory, Failure> {
    let budget = Budget::read().map_err(Failure::environment)?;
    let least = size::human(MIN_MEMORY_BYTES);
    let Some(given) = given else {
        let bytes = budget.default_memory_bytes();
        let source = describe(&budget);
        if bytes < MIN_MEMORY_BYTES {
            return Err(Failure::environment(format!(
                "{source} leaves {} after a margin of {}, and the least that works is {least}: \
                 raise the limit, or give --memory to try with less margin",
                size::human(bytes),
                size::human(budget.margin_bytes())
            )));
        }
        return Ok(Memory {
            bytes,
            origin: format!("{source}, less a margin of {}", size::human(budget.margin_bytes())),
            group_margin_bytes: budget.tightest_group().map(|_| budget.margin_bytes()),
        });
    };
    let parsed = size::parse(&given.value)
        .map_err(|why| Failure::usage(format!("{}: {why}", given.origin)))?;
    let bytes = parsed.of(budget.whole_bytes());
    if bytes < MIN_MEMORY_BYTES {
        let is = match parsed {
            size::Size::Bytes(_) => String::new(),
            size::Size::MilliPercent(_) => format!(" of {}", size::human(budget.whole_bytes())),
        };
        return Err(Failure::usage(format!(
            "{}: '{}'{is} is {}, and the least that works is {least}",
            given.origin,
            given.value,
            size::human(bytes)
        )));
    }
    if let Some(group) = budget.group.as_ref().filter(|g| bytes > g.limit_bytes) {
        remarks.push(format!(
            "{} {} is more than the limit of {}, {}: the kernel may kill the program",
            given.origin,
            size::human(bytes),
            group.directory.display(),
            size::human(group.limit_bytes)
        ));
    }
    Ok(Memory { bytes, origin: given.origin, group_margin_bytes: None })
}

/// Which constraint the default comes from, in words.
pub fn describe(budget: &Budget) -> String {
    match budget.tightest_group() {
        Some(group) => format!(
            "the memory cgroup {} ({} of {} free)",
            group.directory.display(),
            size::human(group.available_bytes),
            size::human(group.limit_bytes)
        ),
        None => format!(
            "the machine ({} of {} available)",
            size::human(budget.ram_available_bytes),
            size::human(budget.ram_bytes)
        ),
    }
}

fn pool_percent(given: Option<Given<String>>) -> Result<u32, String> {
    let Some(given) = given else { return Ok(0) };
    let range = options::POOL_PERCENT_MIN..=options::POOL_PERCENT_MAX;
    if given.value.trim() == options::POOL_PERCENT_DEFAULT {
        return Ok(0);
    }
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

/// Says so where the pool's share of the limit is more than the pool of one process can be.
fn pool_remark(memory_bytes: u64, pool_percent: u32) -> Option<String> {
    let percent = if pool_percent == 0 { options::POOL_PERCENT_MAX } else { pool_percent };
    let share_bytes = size::Size::MilliPercent(percent * 1000).of(memory_bytes);
    (share_bytes > MOST_BYTES as u64).then(|| {
        format!(
            "compressed pages may take {} ({percent} %), but those of one process take {} at most",
            size::human(share_bytes),
            size::human(MOST_BYTES as u64)
        )
    })
}

/// The time after which a process counts as idle, or none.
pub fn idle_after(given: Option<Given<String>>) -> Result<Option<Duration>, String> {
    let Some(given) = given.filter(|g| g.value.trim() != options::IDLE_AFTER_DEFAULT) else {
        return Ok(None);
    };
    let duration =
        duration::parse(&given.value).map_err(|why| format!("{}: {why}", given.origin))?;
    if duration < options::IDLE_AFTER_LEAST {
        return Err(format!(
            "{}: '{}' is less than a second, the least that works",
            given.origin, given.value
        ));
    }
    Ok(Some(duration))
}

fn mechanism(given: Option<Given<String>>) -> Result<Mechanism, String> {
    let Some(given) = given else { return Ok(Mechanism::Auto) };
    let names: Vec<&str> = Mechanism::ALL.iter().map(|m| m.name()).collect();
    Mechanism::ALL.into_iter().find(|m| m.name() == given.value).ok_or_else(|| {
        format!(
            "{}: there is no mechanism '{}': take one of {}",
            given.origin,
            given.value,
            names.join(", ")
        )
    })
}

fn huge_pages(given: Option<Given<String>>) -> Result<HugePages, String> {
    let Some(given) = given else { return Ok(HugePages::Madvise) };
    HugePages::ALL.into_iter().find(|h| h.name() == given.value).ok_or_else(|| {
        format!("{}: '{}' is none of always, madvise and never", given.origin, given.value)
    })
}

fn compressor(given: Option<Given<String>>) -> Result<String, String> {
    match given {
        None => Ok(options::COMPRESSOR_DEFAULT.to_string()),
        Some(given) if given.value == options::COMPRESSOR_DEFAULT => Ok(given.value),
        Some(given) => codec(&given),
    }
}

fn recompressor(given: Option<Given<String>>) -> Result<String, String> {
    match given {
        None => Ok(options::RECOMPRESSOR_DEFAULT.to_string()),
        Some(given) if given.value == "none" => Ok(given.value),
        Some(given) => codec(&given),
    }
}

/// A codec with its parameters, all said.
fn codec(given: &Given<String>) -> Result<String, String> {
    match CodecSpec::parse(&given.value) {
        Ok(spec) => Ok(spec.to_string()),
        Err(why) => Err(format!("{}: {why}", given.origin)),
    }
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

fn copies(given: &Given<String>) -> Result<usize, String> {
    match given.value.trim() {
        "1" => Ok(1),
        "2" => Ok(2),
        other => Err(format!("{}: '{other}' is neither 1 nor 2", given.origin)),
    }
}

fn store(
    raw: &RawOptions,
    env: Env,
    wanted: Option<Given<String>>,
    remarks: &mut Vec<String>,
) -> Result<Option<Backing>, Failure> {
    let wrong = Failure::usage;
    let copies = wanted.as_ref().map_or(Ok(1), copies).map_err(wrong)?;
    let given = raw.text(&options::STORE, env);
    if let Some(given) = &given
        && let Some(text) = given.value.to_str().filter(|text| text.contains("://"))
    {
        return on_servers(text, copies, env, remarks)
            .map(Some)
            .map_err(|why| wrong(format!("{}: {why}", given.origin)));
    }
    if let Some(wanted) = wanted.filter(|_| copies == 2) {
        let origin = wanted.origin;
        return Err(wrong(format!(
            "{origin}: two copies are for servers: --store nbd://A/X,nbd://B/Y"
        )));
    }
    let Some(given) = given else {
        return match place::default_store(env) {
            Ok(directory) => Ok(Some(Backing::Directory(directory))),
            Err(why) => {
                remarks.push(format!(
                    "no directory for the backing store ({why}): pages stay compressed in memory; \
                     name a directory on a disk with --store"
                ));
                Ok(None)
            }
        };
    };
    if given.value == "none" {
        return Ok(None);
    }
    let directory = absolute(&given)?;
    if device::is_one(&directory) {
        let exports = Exports::device(&directory);
        let exports = exports.map_err(|why| Failure::usage(format!("{}: {why}", given.origin)))?;
        return Ok(Some(Backing::servers(exports)));
    }
    match place::try_store(&directory) {
        Ok(file_system) => {
            if file_system.is_memory() {
                remarks.push(format!(
                    "{}: {} is a {}: what is written there stays in memory",
                    given.origin,
                    directory.display(),
                    file_system.name()
                ));
            }
            Ok(Some(Backing::Directory(directory)))
        }
        Err(e) => Err(Failure::usage(format!(
            "{}: {}: {}",
            given.origin,
            directory.display(),
            place::store_fault(&e)
        ))),
    }
}

/// A store on servers, whatever they speak.
fn on_servers(
    text: &str,
    copies: usize,
    env: Env,
    remarks: &mut Vec<String>,
) -> Result<Backing, String> {
    if valkey::address::is_one(text) {
        values(text, copies, env, remarks)
    } else if address::is_one(text) {
        servers(text, copies, remarks)
    } else {
        Err(format!(
            "'{text}' is none of nbd://, nbd+unix://, valkey:// and redis:// (a directory of that \
             name: ./{text})"
        ))
    }
}

/// The exports of a store on servers.
fn servers(text: &str, copies: usize, remarks: &mut Vec<String>) -> Result<Backing, String> {
    let addresses = remote::addresses(text)?;
    let exports = Exports::open(&addresses, copies)?;
    for claim in exports.claims.iter().filter(|c| !c.traits().can_trim) {
        remarks.push(format!(
            "{} keeps what is not needed any more: it does not know TRIM",
            claim.shown
        ));
    }
    Ok(Backing::servers(exports))
}

/// A store of values on Valkey or Redis servers.
fn values(
    text: &str,
    copies: usize,
    env: Env,
    remarks: &mut Vec<String>,
) -> Result<Backing, String> {
    if copies != 1 {
        return Err("a second copy is the replica's of a Cluster: leave --copies away".to_string());
    }
    let password = |name: &str| env(name).map(|value| value.as_bytes().to_vec());
    let address = valkey::address::Address::parse(text, password)?;
    let values = Values::open(&address)?;
    values.check_policies()?;
    if values.is_cluster() && !values.has_replicas() {
        remarks.push(format!(
            "{}: a primary has no replica: its pages are lost when it is",
            values.shown()
        ));
    }
    Ok(Backing::servers(values))
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

    fn given(value: &str) -> Given<String> {
        Given { value: value.to_string(), origin: "--x".to_string() }
    }

    #[test]
    fn pool_percentages() {
        assert_eq!(pool_percent(Some(given("50"))), Ok(50));
        assert_eq!(pool_percent(Some(given("25%"))), Ok(25));
        assert_eq!(pool_percent(Some(given("auto"))), Ok(0));
        for wrong in ["0", "91", "-1", "", "half", "4294967346"] {
            assert!(
                pool_percent(Some(given(wrong))).unwrap_err().contains("from 1 to 90"),
                "{wrong}"
            );
        }
    }

    #[test]
    fn limits_at_their_borders() {
        let limit = |text: &str| memory(Some(given(text)), &mut Vec::new());
        let bytes = |text: &str| limit(text).map(|m| m.bytes).map_err(|f| f.message);
        assert_eq!(bytes("16M"), Ok(16 << 20));
        assert_eq!(bytes(" 512 M "), Ok(512 << 20));
        assert_eq!(bytes("9223372036854775807"), Ok(i64::MAX as u64));
        assert_eq!(bytes("100%"), Ok(Budget::read().unwrap().whole_bytes()));
        for (text, word) in [
            ("0", "'0' is 0 bytes, and the least that works is 16 MiB"),
            ("1", "'1' is 1 bytes"),
            ("16777215", "the least that works is 16 MiB"),
            ("0.001%", "'0.001%' of "),
            ("0%", "no percentage between 0 and 100: write"),
            ("100.001%", "no percentage between 0 and 100: write"),
            ("-5", "is negative: write"),
            ("1e3G", "is no size: write"),
            ("9223372036854775808", "is too large: write"),
            ("", "'' is empty: write"),
        ] {
            let why = bytes(text).unwrap_err();
            assert!(why.starts_with("--x: ") && why.contains(word), "{why}");
            assert!(why.contains(text) && !why.contains('\n'), "{why}");
        }
    }

    #[test]
    fn a_limit_with_a_larger_share_than_a_pool_can_have() {
        let remark = pool_remark(2 << 40, 0).unwrap();
        assert!(remark.contains("1.8 TiB (90 %)") && remark.contains("1.0 TiB"), "{remark}");
        assert_eq!((pool_remark(200 << 30, 0), pool_remark(2 << 40, 40)), (None, None));
    }

    #[test]
    fn times_of_idleness() {
        let idle = |text: &str| idle_after(Some(given(text)));
        assert_eq!(idle("10m"), Ok(Some(Duration::from_secs(600))));
        assert_eq!((idle("never"), idle_after(None)), (Ok(None), Ok(None)));
        assert!(idle("0.5s").unwrap_err().contains("less than a second"));
        assert!(idle("soon").unwrap_err().starts_with("--x: 'soon'"));
    }

    #[test]
    fn mechanisms_by_name() {
        assert_eq!(mechanism(Some(given("protect"))), Ok(Mechanism::Protect));
        let error = mechanism(Some(given("magic"))).unwrap_err();
        assert!(error.contains("'magic'") && error.contains("userfaultfd-copy"), "{error}");
    }

    #[test]
    fn compressors_with_parameters() {
        assert_eq!(compressor(Some(given("lz4"))), Ok("lz4".to_string()));
        assert_eq!(compressor(Some(given("zstd:3"))), Ok("zstd:level=3".to_string()));
        let error = compressor(Some(given("gzip"))).unwrap_err();
        assert!(
            error.contains("--x") && error.contains("gzip") && error.contains("lzo-rle"),
            "{error}"
        );
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
        let settings = resolve("/dev/null").unwrap();
        assert_eq!(std::fs::read(&stats).unwrap(), b"results");
        settings.empty_files();
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
