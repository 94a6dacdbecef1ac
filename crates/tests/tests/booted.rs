//! Programs that no loader of theirs lets the library into (static ones, and those for musl) are
//! managed as others: saved in a group in which they die alone, started directly or by a managed
//! shell.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use uzswap_tests::{Job, MIB, Managed, Sandbox, Suite, User, Verdict, Workshop, suite};

/// The program has this much, in two threads; the group a little more than half of it.
const PROGRAM_MIB: u64 = 96;
const GROUP_BYTES: u64 = 60 * MIB;
const MEMORY_BYTES: u64 = 48 * MIB;

fn main() -> ExitCode {
    let workshop = Arc::new(Workshop::new());
    let mut suite = Suite::new();
    for sandbox in [Sandbox::Open, Sandbox::NoUserfaultfd] {
        for kind in ["glibc_static", "musl_static", "musl"] {
            for by_shell in [false, true] {
                let (w, how) = (workshop.clone(), if by_shell { "by_a_shell" } else { "directly" });
                suite.add(format!("{kind}::{how}::{}", sandbox.mechanism()), move || {
                    saved(&w, sandbox, kind, by_shell)
                });
            }
        }
    }
    for kind in ["musl_static", "musl"] {
        let w = workshop.clone();
        suite.add(format!("cancelled::{kind}"), move || cancelled(&w, kind));
    }
    for mechanism in ["userfaultfd", "protect"] {
        let w = workshop.clone();
        suite.add(format!("under_valgrind::{mechanism}"), move || under_valgrind(&w, mechanism));
    }
    drop(workshop);
    suite.independent();
    suite.main()
}

/// Valgrind is a static program, and the memory of the program that it runs is its own. The library
/// comes twice: it boots Valgrind, and Valgrind's loader of programs finds it in LD_PRELOAD.
fn under_valgrind(w: &Workshop, mechanism: &str) -> Result<Verdict, String> {
    let Ok(valgrind) = suite::command("valgrind") else {
        return Ok(Verdict::Skipped("valgrind is not installed".into()));
    };
    let program = w.program("touch").into_os_string();
    let line = [
        valgrind.into_os_string(),
        "-q".into(),
        "--error-exitcode=9".into(),
        program,
        PROGRAM_MIB.to_string().into(),
        "2".into(),
    ];
    let job = Job::new(&line);
    let free = job.clone().run(w)?;
    let options = vec!["--mechanism".into(), mechanism.into()];
    let managed = Managed { memory_bytes: Some(2 * MEMORY_BYTES), options };
    let run = job.managed(managed).run(w)?;
    let is_right = free.succeeded()
        && run.succeeded()
        && run.hash == free.hash
        && run.stat("evictions").unwrap_or(0) > 0;
    Ok(Verdict::check(is_right, || format!("{}{}", free.report(), run.report())))
}

/// musl ends a call of a cancelled thread by itself, where it finds the thread in the call.
fn cancelled(w: &Workshop, kind: &str) -> Result<Verdict, String> {
    let Some(program) = program(w, "cancelled", kind) else {
        return Ok(Verdict::Skipped("musl-gcc is not installed".into()));
    };
    let managed = Managed { memory_bytes: Some(16 * MIB), options: vec![] };
    let job = Job::new([program]).hangs_after(Duration::from_secs(60)).managed(managed);
    let run = job.run(w)?;
    let is_right =
        run.succeeded() && run.stdout == "cancelled 12\n" && run.stat("evictions").unwrap_or(0) > 0;
    Ok(Verdict::check(is_right, || run.report()))
}

/// A program; `None` where its compiler is missing.
fn program(w: &Workshop, name: &str, kind: &str) -> Option<PathBuf> {
    if kind == "glibc_static" {
        return Some(w.program_by(name, "-static"));
    }
    let compiler = "musl-gcc";
    suite::command(compiler).ok()?;
    let mut options = ["-O2", "-pthread"].map(PathBuf::from).to_vec();
    options.extend((kind == "musl_static").then(|| "-static".into()));
    Some(w.compile_by(compiler, name, &format!("{name}-{kind}"), &options))
}

fn saved(w: &Workshop, sandbox: Sandbox, kind: &str, by_shell: bool) -> Result<Verdict, String> {
    let Some(program) = program(w, "touch", kind) else {
        return Ok(Verdict::Skipped("musl-gcc is not installed".into()));
    };
    let mut line: Vec<OsString> = vec![program.into(), PROGRAM_MIB.to_string().into(), "2".into()];
    if by_shell {
        line.splice(0..0, ["sh", "-c", "\"$0\" \"$@\"; exit $?"].map(OsString::from));
    }
    let job = Job::new(&line).user(User::Ordinary);
    let free = job.clone().run(w)?;
    let alone = job.clone().limit(GROUP_BYTES).run(w)?;
    let managed = Managed { memory_bytes: Some(MEMORY_BYTES), options: vec![] };
    let run = job.sandbox(sandbox).limit(GROUP_BYTES).managed(managed).run(w)?;
    let is_right = free.succeeded()
        && !alone.succeeded()
        && run.succeeded()
        && run.hash == free.hash
        && run.stat("evictions").unwrap_or(0) > 0
        && run.stat("unmanaged_execs") == Some(0);
    Ok(Verdict::check(is_right, || format!("{}{}{}", free.report(), alone.report(), run.report())))
}
