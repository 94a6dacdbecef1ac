//! Processes that do not fit together run by turns: all of them finish and find their bytes, some had to wait, and with `--no-turns`
//! nobody has to.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

use uzswap_tests::{Job, MIB, Managed, Sandbox, Suite, User, Verdict, Workshop};

/// So many processes, each of which writes so much memory and reads it back, again and again.
const PROCESSES: u32 = 6;
const EACH_MIB: u32 = 40;
const ROUNDS: u32 = 6;
/// For all of them: two fit.
const MEMORY_MIB: u64 = 96;

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
    drop(workshop);
    suite.main()
}

fn run(workshop: &Workshop, sandbox: Sandbox, takes_turns: bool) -> Result<Verdict, String> {
    let mut argv: Vec<OsString> =
        vec!["sh".into(), "-c".into(), SCRIPT.into(), workshop.program("touch").into()];
    argv.extend([PROCESSES, EACH_MIB, 1, ROUNDS].map(|n| n.to_string().into()));
    let job = Job::new(&argv).user(User::Ordinary);
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
