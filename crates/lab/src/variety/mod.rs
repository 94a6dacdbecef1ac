//! `uzswap bench variety`: many programs of many kinds, each once by each mechanism, at half of
//! what they need.
//!
//! ```text
//!  lists/*.sh ─> prepare, once ─> free ─> need, output ─┬─> userfaultfd ─┐
//!                                                       ├─> protect      ├─> output like the free one?
//!                                                       └─> alone        ┘   or killed, an error, too long
//! ```
//!
//! The other benches measure how quick uzswap is with a few programs; this one asks whether a
//! program works at all. The *need* is the largest anonymous memory of the program's memory group,
//! sampled in the free run. Every other run has a group that may hold half of it, and a *margin*
//! for what uzswap does not manage: 5 % and 16 MiB. It may not swap, so a limit that is passed by
//! more kills. *Alone* is that group without uzswap. Times are of one run each, on whatever else
//! the machine does.

mod catalogue;
mod once;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value, json};

use self::catalogue::Program;
#[cfg(test)]
pub use self::catalogue::all;
use self::once::{Arm, Once, Run};
use super::process::Interrupt;
use super::record::{Out, Record};
use super::scratch::Scratch;
use uzswap_cli::Failure;
use uzswap_cli::console;
use uzswap_cli::program::reason;
use uzswap_cli::size::human;

#[derive(clap::Args, Debug)]
pub struct VarietyArguments {
    /// Programs to run, by name or kind, or 'all'; one that is not installed is left out, and said
    #[arg(long, value_name = "LIST", default_value = "all")]
    programs: String,
    /// A file of other programs, in the form of crates/lab/src/variety/lists; its name is their
    /// kind
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Say what there is, and run nothing
    #[arg(long)]
    list: bool,
    /// Keep what each run wrote in this directory, as PROGRAM.ARM.out and PROGRAM.ARM.err
    #[arg(long, value_name = "DIR")]
    outputs: Option<PathBuf>,
    #[command(flatten)]
    out: Out,
}

/// The group's limit for a program that may have `memory_bytes`. The margin is for memory that is
/// not managed: file pages in use, stacks, page tables, and the processes' own share of the kernel.
pub fn with_margin(memory_bytes: u64) -> u64 {
    const MARGIN_BYTES: u64 = 16 << 20;
    memory_bytes + memory_bytes / 20 + MARGIN_BYTES
}

/// The words for a run that ended well and said something else than the free one.
const OTHER_OUTPUT: &str = "other output";

/// The least that `uzswap run --memory` takes.
const LEAST_MEMORY_BYTES: u64 = 16 << 20;

/// How long a run may take. Half of a program's memory is little for some, so a factor that would
/// be a failure elsewhere is none here; what takes longer is most likely a hang.
fn patience(free: Duration) -> Duration {
    (free * 60).clamp(Duration::from_secs(120), Duration::from_secs(180))
}

pub fn run(arguments: VarietyArguments) -> Result<u8, Failure> {
    let all = match &arguments.from {
        Some(file) => catalogue::read(file)?,
        None => catalogue::all(),
    };
    let programs = catalogue::chosen(&all, &arguments.programs)
        .map_err(|why| Failure::usage(format!("--programs: {why}")))?;
    if arguments.list {
        let line = |p: &Program| format!("{:<20} {:<12} {}\n", p.name, p.kind, p.package);
        console::print(&programs.into_iter().map(line).collect::<String>())?;
        return Ok(0);
    }
    let record = Record::begin(&arguments.out, "variety")?;
    if let Some(directory) = &arguments.outputs {
        fs::create_dir_all(directory).map_err(|e| Failure::usage(reason(&e)))?;
    }
    let scratch = Scratch::new("variety")?;
    let interrupt = Interrupt::install();
    let once = Once::new(&scratch, arguments.outputs.as_deref(), &interrupt);
    let (mut runs, mut summary, mut failed) = (Vec::new(), Map::new(), 0);
    for program in programs {
        let own = match measure(program, &once, &mut runs)? {
            Ok(free) => free,
            Err(why) => json!({"not_measured": why}),
        };
        let (line, is_failed) = row(program, &own, &runs);
        println!("{line}");
        failed += usize::from(is_failed);
        summary.insert(program.name.to_string(), own);
        // Kept after each program: a machine that goes away takes one program with it.
        record.write_json(json!({
            "settings": {"part_percent": 50},
            "summary": {"programs": summary},
            "runs": runs,
        }))?;
    }
    println!("{} programs, {failed} of them failed under uzswap", summary.len());
    Ok(u8::from(failed > 0))
}

/// All runs of one program. The inner error says why it cannot be measured here.
fn measure(
    program: &Program,
    once: &Once,
    runs: &mut Vec<Value>,
) -> Result<Result<Value, String>, Failure> {
    console::say(&format!("{}: prepared", program.name));
    if let Err(why) = once.prepare(program)? {
        return Ok(Err(why));
    }
    let free = once.run(program, Arm::Free, patience(Duration::ZERO))?;
    if let Some(why) = &free.failure {
        return Ok(Err(format!("it fails without a limit: {why}: {}", free.last_words)));
    }
    let memory_bytes = free.held_bytes / 2;
    if memory_bytes < LEAST_MEMORY_BYTES {
        let need = human(free.held_bytes);
        return Ok(Err(format!("it needs {need} only, and half of that is no limit")));
    }
    let arms = [
        Arm::Uzswap("userfaultfd", memory_bytes),
        Arm::Uzswap("protect", memory_bytes),
        Arm::Alone(memory_bytes),
    ];
    let mut own_runs = Vec::new();
    for arm in arms {
        console::say(&format!("{}: {}", program.name, arm.name()));
        let run = once.run(program, arm, patience(free.wall))?;
        own_runs.push(told(program, arm, &run, &free));
    }
    if own_runs.iter().any(|run| run["error"] == OTHER_OUTPUT) {
        let again = once.run(program, Arm::Free, patience(free.wall))?;
        if again.digest != free.digest {
            return Ok(Err("its output is another one in each run".to_string()));
        }
    }
    runs.extend(own_runs);
    once.tidy_up(program);
    let own = json!({
        "need_bytes": free.held_bytes,
        "wall_seconds": free.wall.as_secs_f64(),
        "output": free.digest,
    });
    Ok(Ok(json!({"kind": &program.kind, "free": own})))
}

/// A run as it is kept.
fn told(program: &Program, arm: Arm, run: &Run, free: &Run) -> Value {
    let failure = run.failure.clone().or_else(|| {
        let is_other = run.digest != free.digest;
        is_other.then(|| OTHER_OUTPUT.to_string())
    });
    json!({
        "program": &program.name,
        "arm": arm.name(),
        "round": 1,
        "wall_seconds": run.wall.as_secs_f64(),
        "by_free": run.wall.as_secs_f64() / free.wall.as_secs_f64(),
        "held_bytes": run.held_bytes,
        "limit_bytes": arm.limit_bytes(),
        "error": failure,
        "last_words": run.last_words,
        "state": run.state,
        "stats": run.stats,
    })
}

/// The printed line of a program, and whether it failed under uzswap.
fn row(program: &Program, own: &Value, runs: &[Value]) -> (String, bool) {
    let name = format!("{:<18} {:<10}", program.name, program.kind);
    if let Some(why) = own["not_measured"].as_str() {
        return (format!("{name} left out: {why}"), false);
    }
    let free = &own["free"];
    let need = human(free["need_bytes"].as_u64().unwrap_or(0));
    let mut text =
        format!("{name} {need:>9} {:>6.2} s", free["wall_seconds"].as_f64().unwrap_or(0.0));
    let mut is_failed = false;
    for run in runs.iter().filter(|run| run["program"] == *program.name) {
        let arm = run["arm"].as_str().unwrap_or_default();
        match run["error"].as_str() {
            None => text += &format!("  {arm} {:.1}x", run["by_free"].as_f64().unwrap_or(0.0)),
            Some(why) => {
                text += &format!("  {arm} {why}");
                is_failed |= arm != "alone";
            }
        }
    }
    (text, is_failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(digest: u64, failure: Option<&str>) -> Run {
        Run {
            wall: Duration::from_secs(2),
            held_bytes: 100 << 20,
            digest: format!("{digest:016x}"),
            failure: failure.map(str::to_string),
            last_words: String::new(),
            state: None,
            stats: Value::Null,
        }
    }

    #[test]
    fn other_output_is_a_failure_and_alone_may_fail() {
        let program = &all()[0];
        let arm = Arm::Uzswap("protect", 50 << 20);
        let free = ended(1, None);
        let of = |run: &Run| told(program, arm, run, &free)["error"].clone();
        assert_eq!(of(&ended(1, None)), Value::Null);
        assert_eq!(of(&ended(2, None)), "other output");
        assert_eq!(of(&ended(2, Some("killed"))), "killed");
        let own = json!({"free": {"need_bytes": 100 << 20, "wall_seconds": 2.0}});
        let alone = told(program, Arm::Alone(50 << 20), &ended(2, Some("killed")), &free);
        let right = told(program, arm, &ended(1, None), &free);
        assert!(!row(program, &own, &[right, alone.clone()]).1);
        let wrong = told(program, arm, &ended(2, None), &free);
        let (text, is_failed) = row(program, &own, &[wrong, alone]);
        assert!(is_failed && text.contains("protect other output"), "{text}");
    }

    #[test]
    fn patience_has_bounds() {
        let of = |seconds| patience(Duration::from_secs(seconds)).as_secs();
        assert_eq!((of(0), of(2), of(60)), (120, 120, 180));
        assert_eq!(with_margin(200 << 20), 226 << 20);
    }
}
