//! Processes that do not fit together run by turns: all of them finish and find their bytes, some
//! had to wait, and with `--no-turns` nobody has to. A process that waits before it has memory
//! never pages.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

use uzswap_tests::{Job, MIB, Managed, Sandbox, Suite, User, Verdict, Workshop};

/// So many processes, each of which writes so much memory and reads it back, again and again.
const PROCESSES: u64 = 6;
const EACH_MIB: u64 = 40;
const ROUNDS: u64 = 6;
/// The limit for all of them: two fit.
const MEMORY_MIB: u64 = 96;
/// More processes that need less each, of which so many fit.
const MANY: u64 = 12;
const FIT: u64 = 5;
const LITTLE_MIB: u64 = 16;
const MANY_ROUNDS: u64 = 150;

/// `$0` is the program, `$1` how many. Fails if one of them does.
const SCRIPT: &str = "\
program=$0; processes=$1; shift
for _ in $(seq $processes); do \"$program\" \"$@\" & list=\"$list $!\"; done
for one in $list; do wait $one || exit 1; done
";

fn main() -> ExitCode {
    let workshop = Arc::new(Workshop::new());
    let mut suite = Suite::new();
    for sandbox in [Sandbox::Open, Sandbox::NoUserfaultfd] {
        let w = workshop.clone();
        suite.add(format!("taken::{}", sandbox.mechanism()), move || run(&w, sandbox, true));
    }
    let w = workshop.clone();
    suite.add("not_wanted", move || run(&w, Sandbox::Open, false));
    let w = workshop.clone();
    suite.add("before_there_is_memory", move || wait_at_first(&w));
    drop(workshop);
    suite.main()
}

fn job(workshop: &Workshop, processes: u64, each_mib: u64, rounds: u64) -> Job {
    let mut argv: Vec<OsString> =
        vec!["sh".into(), "-c".into(), SCRIPT.into(), workshop.program("touch").into()];
    argv.extend([processes, each_mib, 1, rounds].map(|n| n.to_string().into()));
    Job::new(&argv).user(User::Ordinary)
}

fn run(workshop: &Workshop, sandbox: Sandbox, takes_turns: bool) -> Result<Verdict, String> {
    let job = job(workshop, PROCESSES, EACH_MIB, ROUNDS);
    let free = job.clone().run(workshop)?;
    let options = if takes_turns { vec![] } else { vec!["--no-turns".into()] };
    let managed = Managed { memory_bytes: Some(MEMORY_MIB * MIB), options };
    let run = job.sandbox(sandbox).managed(managed).run(workshop)?;
    let pauses = run.stat("pauses").unwrap_or(0);
    println!(
        "{pauses} pauses, {} ms in all; {:.1} s, free {:.1} s",
        run.stat("paused_ns").unwrap_or(0) / 1_000_000,
        run.elapsed.as_secs_f64(),
        free.elapsed.as_secs_f64()
    );
    let is_right = free.succeeded() && run.succeeded() && run.hash == free.hash;
    let is_paused = (pauses > 0) == takes_turns;
    Ok(Verdict::check(is_right && is_paused, || format!("{}{}", run.report(), free.report())))
}

/// Those that do not fit ask before they take memory, and have it when others have ended. `uzswap
/// run` may be too late for one or two: it looks many times in a second, on a machine that may be
/// busy.
fn wait_at_first(workshop: &Workshop) -> Result<Verdict, String> {
    let job = job(workshop, MANY, LITTLE_MIB, MANY_ROUNDS);
    let free = job.clone().run(workshop)?;
    let managed = Managed { memory_bytes: Some(MEMORY_MIB * MIB), options: vec![] };
    let run = job.managed(managed).run(workshop)?;
    let [pauses, activations] = ["pauses", "activations"].map(|s| run.stat(s).unwrap_or(0));
    println!("{pauses} pauses, {activations} of {MANY} page");
    let is_right = free.succeeded() && run.succeeded() && run.hash == free.hash;
    let has_waited = pauses > 0 && activations < MANY - FIT;
    Ok(Verdict::check(is_right && has_waited, || format!("{}{}", run.report(), free.report())))
}
