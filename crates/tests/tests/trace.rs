//! `uzswap run --trace`: every fault that `--stats` counts is in the trace, over fork and with
//! processes that are killed, and `uzswap simulate` makes something of it.

use std::ffi::OsString;
use std::fs;
use std::process::{Command, ExitCode};
use std::sync::Arc;

use serde_json::Value;
use uzswap_tests::suite::command;
use uzswap_tests::{Job, MIB, Managed, Outcome, Sandbox, Suite, Verdict, Workshop, full};

const MEMORY_BYTES: u64 = 48 * MIB;

/// One thread, so that no fault finds what another has just brought: 120 MiB walked, then by two
/// children as well, which write a third of it.
const FORKS: &str = r#"
import os
heap = [bytearray(b"%08d" % i * 512) for i in range(30000)]
def walk(step): return sum(heap[i * 7919 % 30000][i % 4096] for i in range(0, 60000, step))
total = walk(1)
for k in range(2):
    child = os.fork()
    if child == 0:
        for i in range(k, 30000, 3): heap[i][0] = k
        os._exit(0 if walk(3) > 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
print(total, walk(2))
"#;

/// `$0` is the program, killed once the trace has many records. Says nothing of that one.
const KILLED: &str = r#""$0" 160 1 100000 >/dev/null &
until [ $(stat -c %s faults.trace) -gt 100000 ]; do sleep 0.1; done; sleep 1; kill -KILL $!
wait $!; [ $? = 137 ] && echo killed"#;

fn main() -> ExitCode {
    let workshop = Arc::new(Workshop::new());
    let mut suite = Suite::new();
    for sandbox in [Sandbox::Open, Sandbox::NoUserfaultfd] {
        // By protection faults this takes up to twice as long.
        if sandbox == Sandbox::NoUserfaultfd && !full() {
            continue;
        }
        let w = workshop.clone();
        suite.add(
            format!("every_fault_is_recorded_over_fork::{}", sandbox.mechanism()),
            move || forks(&w, sandbox),
        );
    }
    let w = workshop.clone();
    suite.add("a_killed_process_leaves_what_it_recorded", move || killed(&w));
    let w = workshop.clone();
    suite.add("what_cannot_be_is_said_before_the_program_starts", move || refused(&w));
    drop(workshop);
    suite.main()
}

fn traced(argv: &[OsString]) -> Job {
    let options = vec!["--trace".into(), "faults.trace".into()];
    Job::new(argv).managed(Managed { memory_bytes: Some(MEMORY_BYTES), options })
}

/// The output of `uzswap simulate` for the trace of a run, as text and as JSON.
fn simulate(workshop: &Workshop, run: &Outcome) -> Result<(String, Value), String> {
    let (json, plot) = (run.file("simulation.json"), run.file("simulation.svg"));
    let output = Command::new(workshop.uzswap())
        .arg("simulate")
        .arg(run.file("faults.trace"))
        .args(["--memory", "90%,75%"])
        .arg("--json")
        .arg(&json)
        .arg("--plot")
        .arg(&plot)
        .output()
        .map_err(|e| e.to_string())?;
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    let json = fs::read(&json).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let is_plot = fs::read_to_string(&plot).is_ok_and(|svg| svg.ends_with("</svg>\n"));
    match json {
        Some(json) if output.status.success() && is_plot => Ok((text, json)),
        _ => Err(format!("simulate ended with {}: {text}", output.status)),
    }
}

fn forks(workshop: &Workshop, sandbox: Sandbox) -> Result<Verdict, String> {
    let python = command("python3")?;
    let argv = [python.into_os_string(), "-I".into(), "-c".into(), FORKS.into()];
    let free = Job::new(&argv).run(workshop)?;
    let run = traced(&argv).sandbox(sandbox).run(workshop)?;
    if !run.succeeded() || !free.succeeded() || run.hash != free.hash {
        return Ok(Verdict::Failed(format!("{}{}", run.report(), free.report())));
    }
    let (text, told) = match simulate(workshop, &run) {
        Ok(told) => told,
        Err(why) => return Ok(Verdict::Failed(format!("{why}\n{}", run.report()))),
    };
    println!("{text}");
    let counted = |key: &str| run.stat(key).unwrap_or(0);
    let recorded = |key: &str| told[key].as_u64().unwrap_or(u64::MAX);
    let agrees = recorded("faults") == counted("faults")
        && recorded("faults") > 1000
        && recorded("lost_records") == 0
        && recorded("processes") >= 3
        // Units of pages are told whole by protection faults, whatever each page was.
        && (sandbox != Sandbox::Open || told["recorded"]["loads"] == counted("loads"));
    let sizes = told["sizes"].as_array().map_or(0, Vec::len);
    let least = |size: &Value| {
        let loads = |policy: &str| size["policies"][policy]["loads"].as_u64().unwrap_or(0);
        ["uzswap", "s3-fifo", "clock", "lru", "fifo"]
            .iter()
            .all(|policy| loads(policy) >= loads("optimum"))
    };
    let is_best = told["sizes"].as_array().is_some_and(|sizes| sizes.iter().all(least));
    Ok(Verdict::check(agrees && is_best && sizes == 2, || {
        format!("{text}\n{told:#}\n{}", run.report())
    }))
}

fn killed(workshop: &Workshop) -> Result<Verdict, String> {
    let argv =
        ["sh".into(), "-c".into(), KILLED.into(), workshop.program("touch").into_os_string()];
    let run = traced(&argv).run(workshop)?;
    let (text, told) = match simulate(workshop, &run) {
        Ok(told) => told,
        Err(why) => return Ok(Verdict::Failed(format!("{why}\n{}", run.report()))),
    };
    println!("{text}");
    let recorded = told["faults"].as_u64().unwrap_or(0);
    // Killed between counting a fault and serving it, or while its record was written: one at most,
    // and the latter is counted.
    let missing = run.stat("faults").unwrap_or(0).wrapping_sub(recorded);
    let is_right = run.succeeded() && run.stdout == "killed\n" && recorded > 1000 && missing <= 1;
    Ok(Verdict::check(is_right, || format!("{missing} are missing\n{text}\n{}", run.report())))
}

fn refused(workshop: &Workshop) -> Result<Verdict, String> {
    let run = |path: &str| {
        let mut command = Command::new(workshop.uzswap());
        command
            .args(["run", "--trace", path, "--", "echo", "started"])
            .output()
            .map_err(|e| e.to_string())
    };
    for (path, why) in
        [("/no/such/trace", "its directory does not exist"), ("/tmp", "is a directory")]
    {
        let output = run(path)?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let is_right = output.status.code() == Some(2)
            && output.stdout.is_empty()
            && said.lines().count() == 1;
        if !is_right || said != format!("uzswap: --trace: {path}: {why}\n") {
            return Ok(Verdict::Failed(format!("{path}: {output:?}")));
        }
    }
    let output = run("/dev/full")?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let is_right = output.status.code() == Some(2) && output.stdout.is_empty();
    if !is_right || !said.contains("--trace: /dev/full: ") || !said.contains("make room") {
        return Ok(Verdict::Failed(format!("/dev/full: {output:?}")));
    }
    let output = Command::new(workshop.uzswap()).args(["simulate", "/etc/passwd"]).output();
    let output = output.map_err(|e| e.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let is_right = output.status.code() == Some(1) && said.contains("/etc/passwd: it is no trace");
    Ok(Verdict::check(is_right, || format!("{output:?}")))
}
