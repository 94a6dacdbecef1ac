//! `uzswap doctor`: what this machine allows, and how to fix what it does not.
//!
//! Every line is the result of a try, not of a version number: a userfaultfd is opened, a protected
//! page is written through /proc/self/mem, a file is made in the store's directory, and at the end
//! a program is run.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use uzswap::control::{CONTROL_FD_ENV, Counter, Mechanism, Settings};

mod machine;
mod stores;

use crate::budget::Budget;
use crate::mechanism::{Probe, Refusal};
use crate::options::{self, RawOptions};
use crate::os::ControlBlock;
use crate::place;
use crate::program::{Program, reason};
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
    let mut checks = vec![machine::architecture(), machine::kernel()];
    checks.extend(machine::mechanisms(&probe));
    checks.extend([
        machine::mappings(),
        machine::overcommit(),
        machine::address_space(),
        machine::huge_pages(),
        machine::debugger(&probe),
        machine::memory(&budget),
    ]);
    checks.extend(stores::stores(arguments.store, &env));
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
    fn a_machine_without_proc_has_findings_too() {
        let check = machine::memory(&Err("cannot read /proc/meminfo: no such file".to_string()));
        assert_eq!((check.verdict, check.remedy.as_deref()), (Verdict::Bad, Some("mount /proc")));
        assert_eq!(as_json(&[check], false, None, None)["default_memory_bytes"], Value::Null);
    }
}
