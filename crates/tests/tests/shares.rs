//! In a tree memory goes where it is needed: a process that does nothing with its data, and was
//! there first, has given most of it away after another has paged for a while, and finds every byte
//! when it looks.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

use uzswap_tests::{Job, MIB, Managed, Sandbox, Suite, User, Verdict, Workshop, suite};

/// Memory that the first program holds, and that the other works on. Either fits, both do not.
const COLD_MIB: u32 = 64;
const BUSY_MIB: u32 = 64;
const MEMORY_MIB: u64 = 96;
/// How much of its own the first one still has afterwards: half, with its interpreter.
const LEFT_KIB: u32 = COLD_MIB * 1024 / 2 + (8 << 10);
/// The other one's work: so many times all of its memory.
const ROUNDS: u32 = 16;

fn main() -> ExitCode {
    let workshop = Arc::new(Workshop::new());
    let mut suite = Suite::new();
    for sandbox in [Sandbox::Open, Sandbox::NoUserfaultfd] {
        let w = workshop.clone();
        suite.add(format!("who_came_first_gives::{}", sandbox.mechanism()), move || {
            run(&w, sandbox)
        });
    }
    let w = workshop.clone();
    suite.add("what_is_locked_stays", move || locked(&w));
    drop(workshop);
    suite.main()
}

/// Both programs. The first one waits until it has so little left; 0: only until the other one has
/// ended.
fn job(workshop: &Workshop, left_kib: u32) -> Job {
    let mut argv: Vec<OsString> = vec!["python3".into(), workshop.script("cold.py").into()];
    argv.extend([COLD_MIB, left_kib].map(|n| n.to_string().into()));
    argv.push(workshop.program("touch").into());
    argv.extend([BUSY_MIB, 1, ROUNDS].map(|n| n.to_string().into()));
    Job::new(&argv)
}

fn managed() -> Managed {
    Managed { memory_bytes: Some(MEMORY_MIB * MIB), options: vec![] }
}

/// A process that cannot give what it is to give goes on as it did, and nobody is told that the
/// limit cannot be held.
fn locked(workshop: &Workshop) -> Result<Verdict, String> {
    suite::command("python3")?;
    let job = job(workshop, 0).env("LOCKED", "1");
    let free = job.clone().run(workshop)?;
    let run = job.managed(managed()).run(workshop)?;
    let is_right = free.succeeded() && run.succeeded() && run.hash == free.hash;
    let is_quiet = !run.stderr.contains("could not be held");
    Ok(Verdict::check(is_right && is_quiet, || format!("{}{}", run.report(), free.report())))
}

fn run(workshop: &Workshop, sandbox: Sandbox) -> Result<Verdict, String> {
    suite::command("python3")?;
    let user = User::Ordinary;
    let free = job(workshop, 0).user(user).run(workshop)?;
    let run =
        job(workshop, LEFT_KIB).user(user).sandbox(sandbox).managed(managed()).run(workshop)?;
    println!("{}", run.stderr.lines().next().unwrap_or_default());
    let is_right = free.succeeded() && run.succeeded() && run.hash == free.hash;
    Ok(Verdict::check(is_right, || format!("{}{}", run.report(), free.report())))
}
