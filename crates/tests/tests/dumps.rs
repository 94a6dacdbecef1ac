//! A core dump has the program's memory: what is out comes in before the signal takes its course.
//! Where there is no memory for that a line on stderr says how much is missing, and nobody is
//! killed for it.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitCode;
use std::sync::Arc;

use uzswap_tests::{Job, MIB, Managed, Outcome, Sandbox, Suite, Verdict, Workshop};

const DATA_MIB: u64 = 200;
const LIMIT: u64 = 64 * MIB;
const PAGES: usize = (DATA_MIB * MIB / 4096) as usize;
const MARK: &[u8] = b"\x7fMARKED\n";
const ABORTED: i32 = 6;
const SEGMENT: i32 = 11;

fn main() -> ExitCode {
    let workshop = Arc::new(Workshop::new());
    let mut suite = Suite::new();
    for sandbox in [Sandbox::Open, Sandbox::NoUserfaultfd] {
        for (how, signal) in [("abort", ABORTED), ("segv", SEGMENT), ("handler", ABORTED)] {
            let w = workshop.clone();
            suite.add(format!("whole::{how}::{}", sandbox.mechanism()), move || {
                let (run, marks) = dump(&w, sandbox, how, None)?;
                let is_whole = marks == PAGES && !run.stderr.contains("core dump lacks");
                Ok(Verdict::check(is_whole && run.status.signal() == Some(signal), || {
                    format!("{marks} of {PAGES} pages\n{}", run.report())
                }))
            });
        }
        let w = workshop.clone();
        suite.add(format!("what_is_missing_is_said::{}", sandbox.mechanism()), move || {
            let group = LIMIT + LIMIT / 20 + 32 * MIB;
            let (run, marks) = dump(&w, sandbox, "abort", Some(group))?;
            let is_said = run.stderr.contains("uzswap: the core dump lacks ");
            let is_right = is_said && run.oom_kills == 0 && marks < PAGES;
            Ok(Verdict::check(is_right && run.status.signal() == Some(ABORTED), || {
                format!("{marks} of {PAGES} pages\n{}", run.report())
            }))
        });
    }
    drop(workshop);
    suite.main()
}

/// Runs the program until it is dumped. How many of its pages are in the core?
fn dump(
    workshop: &Workshop,
    sandbox: Sandbox,
    how: &str,
    group_bytes: Option<u64>,
) -> Result<(Outcome, usize), String> {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if !pattern.starts_with("core") {
        return Err(format!("core dumps go to '{}', not to the directory", pattern.trim()));
    }
    let program = workshop.program("dump").into_os_string();
    let argv = ["sh", "-c", "ulimit -c unlimited; exec \"$0\" \"$@\""].map(Into::into);
    let argv = argv.into_iter().chain([program, DATA_MIB.to_string().into(), how.into()]);
    let managed = Managed { memory_bytes: Some(LIMIT), options: vec![] };
    let mut job = Job::new(argv).sandbox(sandbox).managed(managed);
    if let Some(bytes) = group_bytes {
        job = job.limit(bytes);
    }
    let run = job.run(workshop)?;
    let entries = fs::read_dir(run.file(".")).map_err(|e| e.to_string())?.flatten();
    let core = entries
        .filter(|e| e.file_name().to_string_lossy().starts_with("core"))
        .map(|e| e.path())
        .next();
    let core = core.and_then(|path| fs::read(path).ok()).unwrap_or_default();
    let mut seen = vec![false; PAGES];
    for page in core.chunks_exact(4096).filter(|page| page.starts_with(MARK)) {
        let number = u64::from_le_bytes(std::array::from_fn(|i| page[8 + i])) as usize;
        if let Some(seen) = seen.get_mut(number) {
            *seen = true;
        }
    }
    let marks = seen.iter().filter(|seen| **seen).count();
    Ok((run, marks))
}
