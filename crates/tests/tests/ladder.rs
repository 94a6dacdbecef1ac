//! A ladder: the n-th of the library's own system calls fails, or the process that makes it is
//! killed.
//!
//! A program that does a little of all with its memory is run again and again, each time on another
//! rung. It ends with the right sum; or says which call of its own was refused; or uzswap says why
//! it ended. It never sees wrong bytes, never hangs and never dies without a word. In a tree of two
//! where one is killed the other ends as it does alone.
//!
//! Short form: some rungs, more of them where paging begins. UZSWAP_TEST_FULL=1 climbs many more.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use uzswap_tests::{Job, Outcome, Sandbox, Suite, Verdict, Workshop};

const PROGRAM_MIB: &str = "20";
/// The least that works.
const MEMORY: &str = "16M";
/// The calls until paging has begun are some hundred; the rest are those of faults and evictions.
const START_CALLS: u64 = 320;
/// So many rungs in the short form, a part of them among the first calls.
const RUNGS: u64 = 4;
const RUNGS_FULL: u64 = 400;
const HANGS_AFTER: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let workshop = Arc::new(Workshop::new());
    let mut suite = Suite::new();
    for sandbox in [Sandbox::Open, Sandbox::NoUserfaultfd] {
        for mode in ["once", "ever", "kill"] {
            let w = workshop.clone();
            suite.add(format!("{mode}::{}", sandbox.mechanism()), move || climb(&w, sandbox, mode));
        }
    }
    drop(workshop);
    suite.independent();
    suite.main()
}

fn climb(workshop: &Workshop, sandbox: Sandbox, mode: &str) -> Result<Verdict, String> {
    let alone =
        Job::new([workshop.program("rungs").into_os_string(), PROGRAM_MIB.into()]).run(workshop)?;
    let whole = rung(workshop, sandbox, if mode == "ever" { "ever" } else { "count" }, u64::MAX)?;
    let calls =
        counted(&whole).ok_or_else(|| format!("nothing was counted: {}", whole.report()))?;
    if !whole.succeeded() || !whole.stdout.contains(&alone.stdout) || calls == 0 {
        return Ok(Verdict::Failed(whole.report()));
    }
    let mut refused = 0;
    for n in rungs(calls) {
        let run = rung(workshop, sandbox, mode, n)?;
        refused += u64::from(!run.stderr.contains("refused 0 times"));
        if let Some(wrong) = wrong(&run, &alone, mode) {
            return Ok(Verdict::Failed(format!("rung {n} of {calls}: {wrong}\n{}", run.report())));
        }
    }
    println!("{calls} calls, {refused} rungs");
    Ok(Verdict::check(refused > 0, || "no call was refused".to_string()))
}

/// The rungs to be tried: close to each other at first, then over all calls.
fn rungs(calls: u64) -> impl Iterator<Item = u64> {
    let most = if std::env::var_os("UZSWAP_TEST_FULL").is_some() { RUNGS_FULL } else { RUNGS };
    let (early, late) = (most * 2 / 3, most - most * 2 / 3);
    let start = START_CALLS.min(calls);
    // Odd steps, so that another number of calls does not always meet those of one kind.
    let first = (0..early).map(move |i| 1 + i * (start / early).max(1));
    first.chain(
        (1..=late).map(move |i| start + i * ((calls.saturating_sub(start) / (late + 1)) | 1)),
    )
}

fn rung(workshop: &Workshop, sandbox: Sandbox, mode: &str, n: u64) -> Result<Outcome, String> {
    let program = workshop.program("rungs").into_os_string();
    let mut argv: Vec<OsString> =
        vec![workshop.program("ladder").into(), mode.into(), n.to_string().into()];
    argv.extend([
        workshop.uzswap().into(),
        "run".into(),
        "--memory".into(),
        MEMORY.into(),
        "--".into(),
    ]);
    if mode == "kill" {
        // The other one lives on beside the one that is killed.
        argv.extend(["sh", "-c", "\"$0\" $1 & \"$0\" $1; wait"].map(OsString::from));
    }
    argv.extend([program, PROGRAM_MIB.into()]);
    Job::new(argv).sandbox(sandbox).hangs_after(HANGS_AFTER).run(workshop)
}

/// The fault of a run, if it has one.
fn wrong(run: &Outcome, alone: &Outcome, mode: &str) -> Option<&'static str> {
    let sums = run.stdout.lines().filter(|l| *l == alone.stdout.trim()).count();
    let said = |what: &str| run.stderr.lines().any(|l| l.starts_with(what));
    let is_said = said("rungs: ") || said("uzswap: a page c") || said("memory allocation of ");
    match () {
        () if run.hung.is_some() => Some("it hangs"),
        () if run.stderr.contains("wrong bytes") => Some("wrong bytes"),
        () if run.stdout.lines().count() > sums => Some("a wrong sum"),
        // An evictor has a name of its own. Where the shell was killed it may have started neither.
        () if mode == "kill" && sums == 0 && !said("ladder: killed sh") => Some("both are gone"),
        () if mode != "kill" && sums == 0 && !is_said => Some("it ended without a word"),
        () => None,
    }
}

fn counted(run: &Outcome) -> Option<u64> {
    let line = run.stderr.lines().rev().find_map(|l| l.strip_prefix("ladder: counted "))?;
    line.split(',').next()?.parse().ok()
}
