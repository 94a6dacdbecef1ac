//! Processes that do not fit together run by turns: all of them finish and find their bytes, some
//! had to wait, and with `--no-turns` nobody has to. A process that waits before it has memory
//! never pages.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

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
/// A machine that stands still for so long lets processes fill memory unseen: a process of theirs
/// takes less for its 16 MiB.
const TOO_LATE: Duration = Duration::from_millis(100);
/// Runs of that case until one has a machine that goes on: stalls are minutes apart.
const TRIES: u32 = 4;

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
/// run` may be too late for one or two: it looks many times in a second. On a machine that stands
/// still meanwhile it is too late for all, and the case is tried again.
fn wait_at_first(workshop: &Workshop) -> Result<Verdict, String> {
    let job = job(workshop, MANY, LITTLE_MIB, MANY_ROUNDS);
    let free = job.clone().run(workshop)?;
    let managed = Managed { memory_bytes: Some(MEMORY_MIB * MIB), options: vec![] };
    let job = job.managed(managed);
    for tries_left in (0..TRIES).rev() {
        let (run, stall) = with_longest_stall(|| job.run(workshop));
        let run = run?;
        let [pauses, activations] = ["pauses", "activations"].map(|s| run.stat(s).unwrap_or(0));
        println!("{pauses} pauses, {activations} of {MANY} page, stalls of {stall:?} at most");
        let is_right = free.succeeded() && run.succeeded() && run.hash == free.hash;
        let has_waited = pauses > 0 && activations < MANY - FIT;
        if is_right && !has_waited && stall > TOO_LATE && tries_left > 0 {
            continue;
        }
        let report = || format!("{}{}", run.report(), free.report());
        return Ok(Verdict::check(is_right && has_waited, report));
    }
    unreachable!("the last try has a verdict")
}

/// Runs `f`, and says for how long at most a thread beside it that sleeps a hundredth of a second
/// at a time got no processor.
fn with_longest_stall<R>(f: impl FnOnce() -> R) -> (R, Duration) {
    const SLEEP: Duration = Duration::from_millis(10);
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut longest = Duration::ZERO;
            while !ended.load(Ordering::Relaxed) {
                let began = Instant::now();
                thread::sleep(SLEEP);
                longest = longest.max(began.elapsed().saturating_sub(SLEEP));
            }
            longest
        });
        let result = f();
        ended.store(true, Ordering::Relaxed);
        (result, watch.join().expect("it only sleeps"))
    })
}
