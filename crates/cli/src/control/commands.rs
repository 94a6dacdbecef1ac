//! `uzswap ps`, `uzswap set`, `uzswap reclaim`, `uzswap bring-in`: what they ask and what they
//! print.

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::client::{self, Runs};
use super::protocol::{BroughtIn, Changed, Reclaimed, Request, parse_amount};
use super::state::{ProcessState, RunState};
use crate::settings::compression::{self, Words};
use crate::size::{self, human};
use crate::{Failure, columns, console};

/// Faults a second are counted over this time.
const SAMPLE: Duration = Duration::from_millis(500);

/// Arguments of `uzswap ps`.
#[derive(clap::Args, Debug)]
pub struct PsArguments {
    /// Everything that is known, as JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `uzswap set`.
#[derive(clap::Args, Debug)]
pub struct SetArguments {
    /// A process of the run, the run itself (see 'uzswap ps'), or the name of its program
    #[arg(value_name = "PID|NAME")]
    target: String,
    /// The new limit for the whole run: bytes, 512M, 1.5G, 1GiB, or 50% of what the run may have
    /// where it runs
    #[arg(long, value_name = "SIZE|PERCENT", allow_hyphen_values = true)]
    memory: Option<String>,
    #[command(flatten)]
    compression: Words,
}

/// Arguments of `uzswap reclaim`.
#[derive(clap::Args, Debug)]
pub struct ReclaimArguments {
    /// A process, a run (all its processes), or a name that only one process has
    #[arg(value_name = "PID|NAME")]
    target: String,
    /// How much to free: bytes, 512M, 50% of what it holds, or all: every page leaves memory until
    /// it is touched
    #[arg(value_name = "SIZE|PERCENT|all", allow_hyphen_values = true)]
    amount: String,
}

/// Arguments of `uzswap bring-in`.
#[derive(clap::Args, Debug)]
pub struct BringInArguments {
    /// A process, a run (all its processes), or a name that only one process has
    #[arg(value_name = "PID|NAME")]
    target: String,
}

/// Faults a second of each process, between two looks.
pub fn fault_rates(
    before: &[RunState],
    after: &[RunState],
    elapsed: Duration,
) -> HashMap<(u32, u32), u64> {
    let faults = |runs: &[RunState]| -> HashMap<(u32, u32), u64> {
        let all =
            runs.iter().flat_map(|r| r.processes.iter().map(move |p| ((r.run, p.pid), p.faults)));
        all.collect()
    };
    let (then, seconds) = (faults(before), elapsed.as_secs_f64().max(0.001));
    let rate = |now: u64, then: u64| (now.saturating_sub(then) as f64 / seconds).round() as u64;
    faults(after)
        .into_iter()
        .map(|(key, now)| (key, then.get(&key).map_or(0, |t| rate(now, *t))))
        .collect()
}

pub fn ps(arguments: PsArguments) -> Result<u8, Failure> {
    let (mut runs, since) = (Runs::find(), Instant::now());
    let mut rates = HashMap::new();
    if !runs.states.is_empty() {
        thread::sleep(SAMPLE);
        let now = Runs::find();
        rates = fault_rates(&runs.states, &now.states, since.elapsed());
        runs = now;
    }
    print_ps(&arguments, &runs, &rates)?;
    Ok(0)
}

fn print_ps(
    arguments: &PsArguments,
    runs: &Runs,
    rates: &HashMap<(u32, u32), u64>,
) -> Result<(), Failure> {
    let text = if arguments.json { as_json(runs, rates) } else { table(&runs.states, rates) };
    console::print(&text)?;
    for run in &runs.silent {
        console::say(&client::does_not_answer(*run).message);
    }
    if !arguments.json && runs.states.is_empty() && runs.silent.is_empty() {
        let seen = match &runs.foreign[..] {
            [] => String::new(),
            foreign => format!(", as far as can be seen: {}", foreign.join(", ")),
        };
        console::say(&format!("nothing of yours runs under uzswap{seen}"));
    }
    Ok(())
}

/// The document of `ps --json`: the states, with what follows from them.
#[derive(Serialize)]
struct Shown<'a> {
    runs: Vec<ShownRun<'a>>,
    silent: &'a [u32],
}

#[derive(Serialize)]
struct ShownRun<'a> {
    run: u32,
    command: &'a [String],
    limit_bytes: u64,
    used_bytes: u64,
    seconds: f64,
    processes: Vec<ShownProcess<'a>>,
}

#[derive(Serialize)]
struct ShownProcess<'a> {
    #[serde(flatten)]
    process: &'a ProcessState,
    faults_per_second: u64,
}

fn shown<'a>(runs: &'a Runs, rates: &HashMap<(u32, u32), u64>) -> Shown<'a> {
    let process = |run: &RunState, process: &'a ProcessState| {
        let rate = rates.get(&(run.run, process.pid)).copied();
        ShownProcess { process, faults_per_second: rate.unwrap_or(0) }
    };
    let run = |run: &'a RunState| ShownRun {
        run: run.run,
        command: &run.command,
        limit_bytes: run.limit_bytes,
        used_bytes: run.used_bytes(),
        seconds: run.age.as_secs_f64(),
        processes: run.processes.iter().map(|one| process(run, one)).collect(),
    };
    Shown { runs: runs.states.iter().map(run).collect(), silent: &runs.silent }
}

fn as_json(runs: &Runs, rates: &HashMap<(u32, u32), u64>) -> String {
    let text = serde_json::to_string_pretty(&shown(runs, rates));
    text.expect("states are strings and numbers") + "\n"
}

/// The columns of `ps`; true: to the right.
const COLUMNS: [(&str, bool); 10] = [
    ("RUN", true),
    ("PID", true),
    ("NAME", false),
    ("STATE", false),
    ("RESIDENT", true),
    ("POOL", true),
    ("WRITTEN", true),
    ("RATIO", true),
    ("FAULTS/s", true),
    ("LIMIT", true),
];

fn table(runs: &[RunState], rates: &HashMap<(u32, u32), u64>) -> String {
    let mut rows: Vec<[String; COLUMNS.len()]> = Vec::new();
    if !runs.is_empty() {
        rows.push(COLUMNS.map(|(name, _)| name.to_string()));
    }
    for run in runs {
        for p in &run.processes {
            let [pid, name, state, resident, pool, written, ratio, rate] =
                p.cells(rates.get(&(run.run, p.pid)).copied().unwrap_or(0));
            let (run, limit) = (run.run.to_string(), human(run.limit_bytes));
            rows.push([run, pid, name, state, resident, pool, written, ratio, rate, limit]);
        }
    }
    columns::aligned(&rows, COLUMNS.map(|(_, right)| right))
}

pub fn set(arguments: SetArguments) -> Result<u8, Failure> {
    let SetArguments { target, memory, compression: words } = arguments;
    // A wrong value is heard of before anybody is asked.
    if let Some(memory) = &memory {
        size::parse(memory).map_err(|why| Failure::usage(format!("--memory: {why}")))?;
    }
    words.change(compression::default()).map_err(Failure::usage)?;
    let changes_limit = memory.is_some();
    if !changes_limit && words.is_empty() {
        let why = "nothing is to be set: give --memory, or another option of 'uzswap help set'";
        return Err(Failure::usage(why.to_string()));
    }
    let target = Runs::find().pick(&target, false)?;
    let request = Request::Set { memory, compression: words };
    let done: Changed = client::ask(target.run, &request)?;
    done.remarks.iter().for_each(|remark| console::say(remark));
    if changes_limit {
        let (limit, before) = (human(done.limit_bytes), human(done.before_bytes));
        print_line(format!("run {}: limit {limit}, was {before}", target.run))?;
    }
    for (option, now, before) in &done.tuned {
        print_line(format!("run {}: {option} {now}, was {before}", target.run))?;
    }
    Ok(0)
}

pub fn reclaim(arguments: ReclaimArguments) -> Result<u8, Failure> {
    parse_amount(&arguments.amount).map_err(Failure::usage)?;
    let target = Runs::find().pick(&arguments.target, true)?;
    let request = Request::Reclaim { pid: target.pid, amount: arguments.amount };
    let results: Vec<Reclaimed> = client::ask(target.run, &request)?;
    for result in &results {
        print_line(outcome(result))?;
    }
    // The command fails if no process gave memory: of several, some may be too small to give any.
    let failed = results.iter().filter(|result| result.fault.is_some()).count();
    Ok(u8::from(failed > 0 && failed == results.len()))
}

pub fn bring_in(arguments: BringInArguments) -> Result<u8, Failure> {
    let target = Runs::find().pick(&arguments.target, true)?;
    let results: Vec<BroughtIn> = client::ask(target.run, &Request::BringIn { pid: target.pid })?;
    for result in &results {
        print_line(brought_in(result))?;
    }
    // A debugger or a dump that comes next must know.
    let is_whole = |r: &BroughtIn| r.fault.is_none() && r.missing_bytes == 0;
    Ok(u8::from(!results.iter().all(is_whole)))
}

fn brought_in(result: &BroughtIn) -> String {
    let (pid, after) = (result.pid, human(result.after_bytes));
    if let Some(fault) = &result.fault {
        return format!("process {pid}: {after} in memory, the rest is where it was: it {fault}");
    }
    match result.missing_bytes {
        0 => format!("process {pid}: all {after} are in memory"),
        missing => format!(
            "process {pid}: {after} in memory, {} are not: the limit has no room for them (see \
             'uzswap set')",
            human(missing)
        ),
    }
}

fn outcome(result: &Reclaimed) -> String {
    let (before, after) = (result.before_bytes, result.after_bytes);
    let fault = result.fault.as_ref().map(|f| format!(": it {f}")).unwrap_or_default();
    format!(
        "process {}: {} in memory, was {} ({} freed){fault}",
        result.pid,
        human(after),
        human(before),
        human(before.saturating_sub(after)),
    )
}

fn print_line(line: String) -> Result<(), Failure> {
    console::print(&format!("{line}\n"))
}

#[cfg(test)]
mod tests {
    use super::super::state::Activity;
    use super::*;
    use serde_json::Value;

    const MIB: u64 = 1 << 20;

    fn runs(faults: u64) -> Vec<RunState> {
        let active = ProcessState {
            pid: 11,
            name: "python3".into(),
            mechanism: Some("userfaultfd".into()),
            resident_bytes: 300 * MIB,
            pool_bytes: 100 * MIB,
            kept_bytes: 0,
            written_bytes: 7 * MIB,
            used_bytes: 400 * MIB,
            needed_bytes: 1000 * MIB,
            faults,
            listens: true,
            state: Activity::Active,
        };
        let small =
            ProcessState { pid: 12, name: "sh".into(), resident_bytes: 4096, ..Default::default() };
        vec![RunState {
            run: 10,
            limit_bytes: 512 * MIB,
            processes: vec![active, small],
            ..Default::default()
        }]
    }

    #[test]
    fn the_table_has_a_row_for_each_process() {
        let rates = fault_rates(&runs(1000), &runs(3000), Duration::from_millis(500));
        let text = table(&runs(3000), &rates);
        let rows: Vec<Vec<&str>> = text
            .lines()
            .map(|l| l.split("  ").map(str::trim).filter(|c| !c.is_empty()).collect())
            .collect();
        assert_eq!(rows[0], COLUMNS.map(|(name, _)| name));
        assert_eq!(
            rows[1],
            [
                "10", "11", "python3", "active", "300 MiB", "100 MiB", "7.0 MiB", "2.5x", "4 000",
                "512 MiB"
            ]
        );
        assert_eq!(rows[2][2..5], ["sh", "dormant", "4.0 KiB"]);
        assert_eq!(table(&[], &HashMap::new()), "");
        let silent = Runs { states: runs(0), silent: vec![99], foreign: Vec::new() };
        let json: Value = serde_json::from_str(&as_json(&silent, &rates)).unwrap();
        assert_eq!(json["runs"][0]["processes"][0]["faults_per_second"], 4000);
        assert_eq!(json["silent"][0], 99);
    }

    #[test]
    fn outcomes_in_words() {
        let result = |before_bytes: u64, after_bytes: u64, fault: Option<&str>| {
            let fault = fault.map(str::to_string);
            outcome(&Reclaimed { pid: 7, before_bytes, after_bytes, fault })
        };
        let text = result(100 * MIB, 3 * MIB, None);
        assert_eq!(text, "process 7: 3.0 MiB in memory, was 100 MiB (97 MiB freed)");
        let text = result(1, 2, Some("is too small to be paged"));
        assert!(text.ends_with("(0 bytes freed): it is too small to be paged"));
        let mut result = BroughtIn {
            pid: 7,
            before_bytes: 0,
            after_bytes: 100 * MIB,
            missing_bytes: 0,
            fault: None,
        };
        assert_eq!(brought_in(&result), "process 7: all 100 MiB are in memory");
        result.missing_bytes = 3 * MIB;
        assert!(brought_in(&result).contains("100 MiB in memory, 3.0 MiB are not: the limit"));
        result.fault = Some("is stopped".to_string());
        assert!(brought_in(&result).ends_with("it is stopped"));
    }
}
