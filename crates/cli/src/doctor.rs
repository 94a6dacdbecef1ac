//! `uzswap doctor`: what this machine allows, and how to fix what it does not.
//!
//! Every line is the result of a try, not of a version number: a userfaultfd is opened, a protected
//! page is written through /proc/self/mem, a file is made in the store's directory, and at the end
//! a program is run.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use uzswap::control::{CONTROL_FD_ENV, Counter, Mechanism, Settings};

use crate::budget::{Budget, Version};
use crate::mechanism::{self, Probe, Refusal};
use crate::options::{self, MIN_MEMORY_BYTES, RawOptions};
use crate::os::{self, ControlBlock};
use crate::place;
use crate::program::{Program, reason};
use crate::remote::valkey::{self, Values};
use crate::remote::{self, Exports, Kept, address, device};
use crate::settings::describe;
use crate::size::human;
use crate::{Failure, console};

/// Arguments of `uzswap doctor`.
#[derive(clap::Args, Debug)]
pub struct DoctorArguments {
    /// Say it as JSON
    #[arg(long)]
    json: bool,
    /// Try this store, a directory, a device, the exports of servers, Valkey or Redis, instead of
    /// the one that a run would take
    #[arg(long, value_name = "DIR|URL,...")]
    store: Option<OsString>,
    /// Also say whether this program can be taken over
    program: Option<OsString>,
}

/// One finding.
#[derive(Debug)]
struct Check {
    name: &'static str,
    verdict: Verdict,
    found: String,
    /// The remedy.
    remedy: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Good,
    /// It works, but less well than it could.
    Note,
    /// `uzswap run` fails because of this.
    Bad,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Verdict::Good => "ok",
            Verdict::Note => "note",
            Verdict::Bad => "FAIL",
        }
    }
}

fn good(name: &'static str, found: impl Into<String>) -> Check {
    Check { name, verdict: Verdict::Good, found: found.into(), remedy: None }
}

fn note(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Check {
    Check { name, verdict: Verdict::Note, found: found.into(), remedy: Some(remedy.into()) }
}

fn bad(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Check {
    Check { name, verdict: Verdict::Bad, found: found.into(), remedy: Some(remedy.into()) }
}

/// Examines the machine; the exit code is 0 if `uzswap run` would work.
pub fn run(arguments: DoctorArguments) -> Result<u8, Failure> {
    let env = |name: &str| std::env::var_os(name);
    let probe = Probe::run();
    let budget = Budget::read();
    let preload = place::find_preload(&env);
    let mut checks = vec![architecture(), kernel()];
    checks.extend(mechanisms(&probe));
    checks.extend([
        mappings(),
        overcommit(),
        address_space(),
        huge_pages(),
        debugger(&probe),
        memory(&budget),
    ]);
    checks.extend(stores(arguments.store, &env));
    checks.extend([cache(&env), library(&preload)]);
    if let Ok(library) = &preload {
        checks.push(trial(library));
    }
    if let Some(program) = arguments.program {
        checks.push(program_check(program, env("PATH"))?);
    }
    let works = checks.iter().all(|c| c.verdict != Verdict::Bad);
    if arguments.json {
        let mechanism = probe.choose().ok().map(Mechanism::name);
        console::print(&format!(
            "{:#}\n",
            as_json(&checks, works, mechanism, budget.ok().map(|b| b.default_memory_bytes()))
        ))?;
    } else {
        console::print(&as_text(&checks, works))?;
    }
    Ok(if works { 0 } else { 1 })
}

fn as_text(checks: &[Check], works: bool) -> String {
    let mut text = String::new();
    for check in checks {
        text += &format!("{:<4}  {:<15} {}\n", check.verdict.word(), check.name, check.found);
        if let Some(remedy) = &check.remedy {
            text += &format!("{:<4}  {:<15} -> {remedy}\n", "", "");
        }
    }
    text + match works {
        true => "uzswap run works here\n",
        false => "uzswap run does not work here\n",
    }
}

/// `memory_bytes`: the limit without an option, if it can be known.
fn as_json(
    checks: &[Check],
    works: bool,
    mechanism: Option<&str>,
    memory_bytes: Option<u64>,
) -> Value {
    let checks: Vec<Value> = checks
        .iter()
        .map(|c| {
            let verdict = c.verdict.word().to_ascii_lowercase();
            json!({"name": c.name, "verdict": verdict, "found": c.found, "remedy": c.remedy})
        })
        .collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "works": works,
        "mechanism": mechanism,
        "default_memory_bytes": memory_bytes,
        "checks": checks,
    })
}

fn read_line(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_string())
}

fn architecture() -> Check {
    match std::env::consts::ARCH {
        "x86_64" => good("processor", "x86-64"),
        other => bad("processor", other, "uzswap runs on x86-64 only"),
    }
}

fn kernel() -> Check {
    let release = read_line("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".to_string());
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    match version {
        (6, 8..) | (7.., _) => good("kernel", format!("Linux {release}")),
        (5, 11..) | (6, _) => note(
            "kernel",
            format!("Linux {release}: pages are copied, not moved"),
            "6.8 and later are faster",
        ),
        _ => note(
            "kernel",
            format!("Linux {release}: protection faults only"),
            "6.8 and later are faster",
        ),
    }
}

fn mechanisms(probe: &Probe) -> Vec<Check> {
    let mut checks = Vec::new();
    checks.push(match &probe.userfaultfd {
        Ok(features) => {
            let names = mechanism::feature_names(*features);
            match probe.check(Mechanism::Userfaultfd) {
                Ok(()) => good("userfaultfd", format!("without privileges, with {names}")),
                Err(Refusal { cause, remedy }) => {
                    note("userfaultfd", format!("with {names}; {cause}"), remedy)
                }
            }
        }
        Err(Refusal { cause, remedy }) => note("userfaultfd", cause, remedy),
    });
    checks.push(match &probe.proc_self_mem {
        Ok(()) => good("/proc/self/mem", "writes behind a protection"),
        Err(Refusal { cause, remedy }) => note("/proc/self/mem", cause, remedy),
    });
    checks.push(match probe.choose() {
        Ok(Mechanism::Userfaultfd) => good("mechanism", "auto takes userfaultfd, the fastest"),
        Ok(Mechanism::UserfaultfdCopy) => {
            good("mechanism", "auto takes userfaultfd-copy: this userfaultfd cannot move pages")
        }
        Ok(other) => {
            good("mechanism", format!("auto takes {}: userfaultfd cannot be used", other.name()))
        }
        Err(Refusal { cause, remedy }) => bad("mechanism", cause, remedy),
    });
    checks
}

fn mappings() -> Check {
    const NAME: &str = "max_map_count";
    const USUAL: u64 = 65530;
    match read_line("/proc/sys/vm/max_map_count").and_then(|v| v.parse::<u64>().ok()) {
        Some(count) if count < USUAL => note(
            NAME,
            format!("{count} mappings per process: protection faults need many"),
            format!("sysctl vm.max_map_count={USUAL}"),
        ),
        Some(count) => good(NAME, format!("{count} mappings per process")),
        None => note(NAME, "unknown", "mount /proc"),
    }
}

fn overcommit() -> Check {
    const NAME: &str = "overcommit";
    match read_line("/proc/sys/vm/overcommit_memory").as_deref() {
        Some("2") => note(
            NAME,
            "strict: the kernel refuses mappings beyond its commit limit, whatever uzswap could \
             hold",
            "sysctl vm.overcommit_memory=1",
        ),
        Some("0") => {
            good(NAME, "heuristic: a single mapping larger than all RAM and swap is refused")
        }
        Some(_) => good(NAME, "unlimited"),
        None => note(NAME, "unknown", "mount /proc"),
    }
}

fn address_space() -> Check {
    const NAME: &str = "address space";
    match os::address_space_limit() {
        None => good(NAME, "unlimited"),
        Some(bytes) => note(
            NAME,
            format!("limited to {}: the program and uzswap's tables share it", human(bytes)),
            "ulimit -v unlimited",
        ),
    }
}

fn huge_pages() -> Check {
    const NAME: &str = "huge pages";
    let setting = read_line("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    match setting.split(['[', ']']).nth(1) {
        Some("always") => note(
            NAME,
            "transparent huge pages are always on: first touches take 2 MiB at once",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        Some(other) => good(NAME, format!("transparent huge pages: {other}")),
        None => good(NAME, "no transparent huge pages"),
    }
}

/// Not a fault: gdb stops at each signal by which a page is asked for, until it is told not to.
fn debugger(probe: &Probe) -> Check {
    let signal = match probe.choose() {
        Ok(Mechanism::Protect) => "SIGSEGV",
        _ => "SIGBUS",
    };
    good("debugger", format!("for gdb, in ~/.gdbinit: handle {signal} nostop noprint pass"))
}

fn memory(budget: &Result<Budget, String>) -> Check {
    const NAME: &str = "memory";
    let budget = match budget {
        Ok(budget) => budget,
        Err(why) => return bad(NAME, why, "mount /proc"),
    };
    let bytes = budget.default_memory_bytes();
    let (from, kind) = match &budget.group {
        Some(group) => {
            let version = match group.version {
                Version::V1 => "v1",
                Version::V2 => "v2",
            };
            (describe(budget), format!("cgroup {version}"))
        }
        None => (describe(budget), "no memory cgroup limits it".to_string()),
    };
    let found = format!(
        "--memory is {} by default: {from}, less a margin of {}; {kind}",
        human(bytes),
        human(budget.margin_bytes())
    );
    match bytes >= MIN_MEMORY_BYTES {
        true => good(NAME, found),
        false => bad(
            NAME,
            found,
            format!("the least that works is {}: raise the limit", human(MIN_MEMORY_BYTES)),
        ),
    }
}

fn stores(named: Option<OsString>, env: &dyn Fn(&str) -> Option<OsString>) -> Vec<Check> {
    let given = RawOptions::default().text(&options::STORE, env);
    let named = named.map(|value| options::Given { value, origin: "--store".to_string() });
    let given = named.or(given);
    match given.as_ref().and_then(|g| g.value.to_str()) {
        Some(text) if valkey::address::is_one(text) => values(text, env),
        Some(text) if address::is_one(text) => servers(text),
        _ => {
            match given.as_ref().map(|g| Path::new(&g.value)).filter(|path| device::is_one(path)) {
                Some(path) => vec![measured(Exports::device(path), false)],
                None => vec![store(given, env)],
            }
        }
    }
}

/// How often each measurement is made.
const ROUNDS: usize = 100;

/// One line for each server.
fn servers(text: &str) -> Vec<Check> {
    const NAME: &str = "store";
    let addresses = match remote::addresses(text) {
        Ok(addresses) => addresses,
        Err(why) => return vec![bad(NAME, why, REMEDY)],
    };
    let open = |one: &address::Address| Exports::open(std::slice::from_ref(one), 1);
    addresses.iter().map(|one| measured(open(one), one.is_local())).collect()
}

const REMEDY: &str = "see docs/remote.md";

/// One export, or one device, tried.
fn measured(exports: Result<Exports, String>, takes_memory: bool) -> Check {
    const NAME: &str = "store";
    let try_it = || -> Result<Check, String> {
        let mut exports = exports?;
        exports.claim()?;
        let claim = &mut exports.claims[0];
        let times = times(claim.measure(ROUNDS)?);
        let trims = claim.traits().can_trim;
        let found = format!(
            "{}: {}, {} extents of {}; {times}",
            claim.shown,
            human(claim.traits().bytes),
            claim.server.extents,
            human(exports.geometry.extent_bytes),
        );
        Ok(if !trims {
            note(NAME, found, "it does not know TRIM, and keeps what is not needed any more")
        } else if takes_memory {
            note(NAME, found, "it is on this machine, and takes of its memory")
        } else {
            good(NAME, found)
        })
    };
    try_it().unwrap_or_else(|why| bad(NAME, why, REMEDY))
}

/// The measured times of reads of 4 and 64 KiB and of writes of 64 KiB, in words, with the times of
/// loads that follow from them.
fn times([block, cluster, write]: [u64; 3]) -> String {
    let megabytes = |ns: u64| (64 << 10) * 1000 / ns.max(1);
    format!(
        "4 KiB in {} us, 64 KiB in {} us ({} MB/s), written in {} us ({} MB/s); so a load takes \
         about {} us, and one of many in a row {} us",
        block / 1000,
        cluster / 1000,
        megabytes(cluster),
        write / 1000,
        megabytes(write),
        block / 1000 + LOAD_US,
        cluster / 1000 / PAGES_IN_CLUSTER + LOAD_US,
    )
}

/// Valkey and Redis: one line for all of it, and one for each node.
fn values(text: &str, env: &dyn Fn(&str) -> Option<OsString>) -> Vec<Check> {
    const NAME: &str = "store";
    let password = |name: &str| env(name).map(|value| value.as_bytes().to_vec());
    let opened = valkey::address::Address::parse(text, password).and_then(|address| {
        let mut values = Values::open(&address)?;
        values.claim()?;
        let times = times(values.measure(ROUNDS)?);
        Ok((address.is_local(), values, times))
    });
    let (is_local, values, times) = match opened {
        Ok(opened) => opened,
        Err(why) => return vec![bad(NAME, why, REMEDY)],
    };
    let kind = match (values.is_cluster(), values.has_replicas()) {
        (false, _) => "one server".to_string(),
        (true, true) => format!("a Cluster of {} primaries with replicas", values.primaries()),
        (true, false) => format!("a Cluster of {} primaries", values.primaries()),
    };
    let found = format!("{}: {kind}; {times}", values.shown());
    let mut checks = vec![if values.is_cluster() && !values.has_replicas() {
        note(NAME, found, "give each primary a replica: with it gone its pages are lost")
    } else if is_local {
        note(NAME, found, "it is on this machine, and takes of its memory")
    } else {
        good(NAME, found)
    }];
    checks.extend(values.nodes.iter().map(|node| {
        let found = node.describe();
        match (&node.policy, node.evicts()) {
            (None, _) => note(NAME, found, "see to it that it says noeviction, or pages are lost"),
            (_, Some(_)) => bad(NAME, found, valkey::node::POLICY_REMEDY),
            _ => good(NAME, found),
        }
    }));
    checks
}

/// The time of a load beside the read: the fault, the seal and the codec.
const LOAD_US: u64 = 5;
/// Pages of one cluster, at a ratio of two.
const PAGES_IN_CLUSTER: u64 = 32;

fn store(given: Option<options::Given<OsString>>, env: &dyn Fn(&str) -> Option<OsString>) -> Check {
    const NAME: &str = "store";
    let directory = match &given {
        Some(given) if given.value == "none" => {
            return good(NAME, format!("none, as {} says", given.origin));
        }
        Some(given) => PathBuf::from(&given.value),
        None => match place::default_store(env) {
            Ok(directory) => directory,
            Err(why) => {
                return note(
                    NAME,
                    format!("no directory on a disk ({why}): pages stay compressed in memory"),
                    "name a directory with --store or UZSWAP_STORE",
                );
            }
        },
    };
    let shown = directory.display();
    match place::try_store(&directory) {
        Ok(file_system) => {
            let found = format!(
                "{shown} on {}, {} free, O_DIRECT {}",
                file_system.name(),
                human(file_system.free_bytes),
                if place::takes_direct_io(&directory) {
                    "works"
                } else {
                    "is refused: writes pass through the page cache"
                }
            );
            if file_system.is_memory() {
                note(NAME, found, "this is memory: name a directory on a disk")
            } else if file_system.free_bytes < 1 << 30 {
                note(NAME, found, "free space, or name another directory with --store")
            } else {
                good(NAME, found)
            }
        }
        Err(e) => bad(
            NAME,
            format!(
                "{}: {shown}: {}",
                given.as_ref().map_or(options::STORE.variable, |g| g.origin.as_str()),
                place::store_fault(&e)
            ),
            "name a writable directory on a disk",
        ),
    }
}

fn cache(env: &dyn Fn(&str) -> Option<OsString>) -> Check {
    const NAME: &str = "cache";
    match RawOptions::default().text(&options::CACHE, env) {
        Some(given) if given.value == "none" => {
            good(NAME, format!("none, as {} says", options::CACHE.variable))
        }
        Some(given) => match place::private_directory(Path::new(&given.value)) {
            Ok(()) => good(NAME, given.value.display().to_string()),
            Err(fault) => bad(NAME, fault.text, "name a directory that only you can write"),
        },
        None => match place::default_cache(env, &mut Vec::new()) {
            Some(path) => good(NAME, path.display().to_string()),
            None => note(
                NAME,
                "no private directory: every start analyses the C library again",
                "set HOME, or name a directory in UZSWAP_CACHE",
            ),
        },
    }
}

fn library(preload: &Result<PathBuf, String>) -> Check {
    const NAME: &str = "library";
    match preload {
        Ok(path) => good(NAME, path.display().to_string()),
        Err(why) => bad(NAME, why, "keep it beside the command, or in ../lib/uzswap"),
    }
}

/// Runs a program (this one, to say its version) with the library in it, and looks whether the
/// runtime started.
fn trial(library: &Path) -> Check {
    const NAME: &str = "trial run";
    const PATIENCE: Duration = Duration::from_secs(20);
    let remedy = "rebuild uzswap: the command and the library must be of one version";
    let attempt = || -> Result<u64, String> {
        let words = |e: std::io::Error| reason(&e);
        let own = std::env::current_exe().map_err(words)?;
        let settings = Settings { memory_bytes: 256 << 20, ..Settings::new() };
        let block = ControlBlock::create(&settings).map_err(words)?;
        let mut child = Command::new(own)
            .arg("--version")
            .env("LD_PRELOAD", library)
            .env(CONTROL_FD_ENV, block.variable())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(words)?;
        let started = Instant::now();
        let status = loop {
            match child.try_wait().map_err(words)? {
                Some(status) => break status,
                None if started.elapsed() > PATIENCE => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err("a program with the library in it does not end".to_string());
                }
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        match status.success() {
            true => Ok(block.tree().total(Counter::Processes)),
            false => Err(format!("a program with the library in it fails: {status}")),
        }
    };
    match attempt() {
        Ok(0) => bad(NAME, "the library does not start in a program", remedy),
        Ok(_) => good(NAME, "a program was taken over"),
        Err(why) => bad(NAME, why, remedy),
    }
}

fn program_check(name: OsString, search_path: Option<OsString>) -> Result<Check, Failure> {
    const NAME: &str = "program";
    let program = Program::find(&[name], search_path)?;
    Ok(match program.takeover {
        Ok(_) => good(NAME, format!("{} can be taken over", program.path.display())),
        Err(Refusal { cause, remedy }) => bad(NAME, cause, remedy),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_shown_with_their_remedies() {
        let checks = [
            good("one", "fine"),
            note("two", "so so", "do this"),
            bad("three", "broken", "do that"),
        ];
        let text = as_text(&checks, false);
        assert!(text.contains("ok    one") && text.contains("FAIL  three"), "{text}");
        assert!(text.contains("-> do that") && text.ends_with("does not work here\n"), "{text}");
        let json = as_json(&checks, false, None, Some(5));
        assert_eq!(
            json["checks"][2],
            json!({"name": "three", "verdict": "fail", "found": "broken", "remedy": "do that"})
        );
        assert_eq!(json["mechanism"], Value::Null);
    }

    #[test]
    fn too_little_memory_is_a_failure() {
        let budget = |mib: u64| {
            Ok(Budget { group: None, ram_bytes: 1 << 30, ram_available_bytes: mib << 20 })
        };
        assert_eq!(memory(&budget(512)).verdict, Verdict::Good);
        assert_eq!(memory(&budget(70)).verdict, Verdict::Bad);
    }

    #[test]
    fn a_machine_without_proc_has_findings_too() {
        let check = memory(&Err("cannot read /proc/meminfo: no such file".to_string()));
        assert_eq!((check.verdict, check.remedy.as_deref()), (Verdict::Bad, Some("mount /proc")));
        assert_eq!(as_json(&[check], false, None, None)["default_memory_bytes"], Value::Null);
    }
}
