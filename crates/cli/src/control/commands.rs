//! `uzswap ps`, `uzswap set`, `uzswap reclaim`, `uzswap bring-in`: what they ask and what they print.

use std::collections::HashMap;
use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::{self, Runs};
use super::protocol::Request;
use super::server::parse_amount;
use super::state::RunState;
use crate::size::{self, human};
use crate::{Failure, columns, report};

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
    /// The new limit for the whole run: bytes, 512M, 1.5G, 1GiB, or 50% of what the run may have where it runs
    #[arg(long, value_name = "SIZE|PERCENT", allow_hyphen_values = true)]
    memory: String,
}

/// Arguments of `uzswap reclaim`.
#[derive(clap::Args, Debug)]
pub struct ReclaimArguments {
    /// A process, a run (all its processes), or a name that only one process has
    #[arg(value_name = "PID|NAME")]
    target: String,
    /// How much to free: bytes, 512M, 50% of what it holds, or all: every page leaves memory until it is touched
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
pub fn fault_rates(before: &[RunState], after: &[RunState], elapsed: Duration) -> HashMap<(u32, u32), u64> {
    let faults = |runs: &[RunState]| -> HashMap<(u32, u32), u64> {
        let all = runs.iter().flat_map(|r| r.processes.iter().map(move |p| ((r.run, p.pid), p.faults)));
        all.collect()
    };
    let (then, seconds) = (faults(before), elapsed.as_secs_f64().max(0.001));
    let rate = |now: u64, then: u64| (now.saturating_sub(then) as f64 / seconds).round() as u64;
    faults(after).into_iter().map(|(key, now)| (key, then.get(&key).map_or(0, |t| rate(now, *t)))).collect()
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
    print_ps(&arguments, &runs, &rates);
    Ok(0)
}

fn print_ps(arguments: &PsArguments, runs: &Runs, rates: &HashMap<(u32, u32), u64>) {
    let text =
        if arguments.json { format!("{:#}\n", as_json(runs, rates)) } else { table(&runs.states, rates) };
    let _ = std::io::stdout().write_all(text.as_bytes());
    for run in &runs.silent {
        report::say(&client::does_not_answer(*run).message);
    }
    if !arguments.json && runs.states.is_empty() && runs.silent.is_empty() {
        let seen = match &runs.foreign[..] {
            [] => String::new(),
            foreign => format!(", as far as can be seen: {}", foreign.join(", ")),
        };
        report::say(&format!("nothing of yours runs under uzswap{seen}"));
    }
}

fn as_json(runs: &Runs, rates: &HashMap<(u32, u32), u64>) -> Value {
    let with_rates = |run: &RunState| {
        let mut value = run.to_json();
        for process in value["processes"].as_array_mut().into_iter().flatten() {
            let pid = process["pid"].as_u64().unwrap_or(0) as u32;
            process["faults_per_second"] = rates.get(&(run.run, pid)).copied().unwrap_or(0).into();
        }
        value
    };
    json!({"runs": runs.states.iter().map(with_rates).collect::<Vec<_>>(), "silent": runs.silent})
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
    // A wrong size is heard of before anybody is asked.
    size::parse(&arguments.memory).map_err(|why| Failure::usage(format!("--memory: {why}")))?;
    let target = Runs::find().pick(&arguments.target, false)?;
    let done = client::ask(target.run, &Request::Set { memory: arguments.memory })?;
    for remark in done["remarks"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        report::say(remark);
    }
    let bytes = |key: &str| human(done[key].as_u64().unwrap_or(0));
    print_line(format!("run {}: limit {}, was {}", target.run, bytes("limit_bytes"), bytes("before_bytes")));
    Ok(0)
}

pub fn reclaim(arguments: ReclaimArguments) -> Result<u8, Failure> {
    parse_amount(&arguments.amount).map_err(Failure::usage)?;
    let target = Runs::find().pick(&arguments.target, true)?;
    let done = client::ask(target.run, &Request::Reclaim { pid: target.pid, amount: arguments.amount })?;
    let results: Vec<&Value> = done.as_array().into_iter().flatten().collect();
    for result in &results {
        print_line(outcome(result));
    }
    // One that was named and gave nothing is a failure; of many, some may be too small.
    let is_wrong = |r: &&&Value| !r["fault"].is_null();
    let failed = results.iter().filter(is_wrong).count();
    Ok(u8::from(failed > 0 && failed == results.len()))
}

pub fn bring_in(arguments: BringInArguments) -> Result<u8, Failure> {
    let target = Runs::find().pick(&arguments.target, true)?;
    let done = client::ask(target.run, &Request::BringIn { pid: target.pid })?;
    let results: Vec<&Value> = done.as_array().into_iter().flatten().collect();
    for result in &results {
        print_line(brought_in(result));
    }
    // Who looks at the process must know.
    let is_whole = |r: &&Value| r["fault"].is_null() && r["missing_bytes"].as_u64() == Some(0);
    Ok(u8::from(!results.iter().all(is_whole)))
}

fn brought_in(result: &Value) -> String {
    let number = |key: &str| result[key].as_u64().unwrap_or(0);
    let (pid, after) = (number("pid"), human(number("after_bytes")));
    if let Some(fault) = result["fault"].as_str() {
        return format!("process {pid}: {after} in memory, the rest is where it was: it {fault}");
    }
    match number("missing_bytes") {
        0 => format!("process {pid}: all {after} are in memory"),
        missing => format!(
            "process {pid}: {after} in memory, {} are not: the limit has no room for them (see 'uzswap set')",
            human(missing)
        ),
    }
}

fn outcome(result: &Value) -> String {
    let number = |key: &str| result[key].as_u64().unwrap_or(0);
    let (before, after) = (number("before_bytes"), number("after_bytes"));
    let fault = result["fault"].as_str().map(|f| format!(": it {f}")).unwrap_or_default();
    format!(
        "process {}: {} in memory, was {} ({} freed){fault}",
        number("pid"),
        human(after),
        human(before),
        human(before.saturating_sub(after)),
    )
}

fn print_line(line: String) {
    let _ = std::io::stdout().write_all(format!("{line}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::super::state::ProcessState;
    use super::*;

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
            is_paused: false,
        };
        let small = ProcessState { pid: 12, name: "sh".into(), resident_bytes: 4096, ..Default::default() };
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
        let rows: Vec<Vec<&str>> =
            text.lines().map(|l| l.split("  ").map(str::trim).filter(|c| !c.is_empty()).collect()).collect();
        assert_eq!(rows[0], COLUMNS.map(|(name, _)| name));
        assert_eq!(
            rows[1],
            ["10", "11", "python3", "active", "300 MiB", "100 MiB", "7.0 MiB", "2.5x", "4 000", "512 MiB"]
        );
        assert_eq!(rows[2][2..5], ["sh", "dormant", "4.0 KiB"]);
        assert_eq!(table(&[], &HashMap::new()), "");
        let silent = Runs { states: runs(0), silent: vec![99], foreign: Vec::new() };
        let json = as_json(&silent, &rates);
        assert_eq!(json["runs"][0]["processes"][0]["faults_per_second"], 4000);
        assert_eq!(json["silent"][0], 99);
    }

    #[test]
    fn outcomes_in_words() {
        let result = json!({"pid": 7, "before_bytes": 100 * MIB, "after_bytes": 3 * MIB, "fault": null});
        assert_eq!(outcome(&result), "process 7: 3.0 MiB in memory, was 100 MiB (97 MiB freed)");
        let result =
            json!({"pid": 7, "before_bytes": 1, "after_bytes": 2, "fault": "is too small to be paged"});
        assert!(outcome(&result).ends_with("(0 bytes freed): it is too small to be paged"));
        let mut result = json!({"pid": 7, "after_bytes": 100 * MIB, "missing_bytes": 0, "fault": null});
        assert_eq!(brought_in(&result), "process 7: all 100 MiB are in memory");
        result["missing_bytes"] = (3 * MIB).into();
        assert!(brought_in(&result).contains("100 MiB in memory, 3.0 MiB are not: the limit"));
        result["fault"] = "is stopped".into();
        assert!(brought_in(&result).ends_with("it is stopped"));
    }
}
