//! The libraries' own tests give the same results under uzswap as without: CPython's test suite,
//! module by module, and NumPy's core tests. Compared test by test. Both run beside live ballast
//! that is read before each test (`programs/ballast.py`), so that every test meets evicted memory,
//! however little it needs itself.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use uzswap_tests::{
    Job, MIB, Managed, Outcome, Sandbox, Suite, User, Verdict, Workshop, full, junit,
};

const PYTHON: &str = "/usr/bin/python3";

/// Modules of CPython's suite, whether CI runs them, by userfaultfd, and the memory that they get,
/// by userfaultfd and by protection faults.
const CPYTHON: &[(&str, bool, [u64; 2])] = &[
    ("test_mmap", true, SMALL_MIB),
    ("test_threading", false, SMALL_MIB),
    ("test_subprocess", false, SMALL_MIB),
    ("test_multiprocessing_fork", false, [96, 320]),
    ("test_multiprocessing_spawn", false, [96, 192]),
    ("test_multiprocessing_forkserver", false, [96, 192]),
    ("test_multiprocessing_main_handling", false, [48, 48]),
    ("test_fork1", true, SMALL_MIB),
    ("test_signal", false, SMALL_MIB),
    ("test_faulthandler", false, SMALL_MIB),
    ("test_socket", false, SMALL_MIB),
    ("test_io", false, SMALL_MIB),
    ("test_os", false, SMALL_MIB),
    ("test_posix", true, SMALL_MIB),
    ("test_asyncio", false, [96, 96]),
    ("test_array", false, SMALL_MIB),
    ("test_zlib", false, SMALL_MIB),
    ("test_pickle", false, SMALL_MIB),
];

/// Limits above what an interpreter holds at its start, and below that and the ballast. Modules
/// that hold more themselves, or start many processes, get more: with half of what they need they
/// miss their own time limits of 10 to 100 seconds, and by protection faults earlier than by
/// userfaultfd.
const SMALL_MIB: [u64; 2] = [24, 24];
const BALLAST_MIB: u64 = 24;
/// NumPy's tests are many thousands that all read the ballast; one of them needs 2.3 GiB.
const NUMPY_MEMORY_MIB: u64 = 192;
const NUMPY_BALLAST_MIB: u64 = 64;

fn main() -> ExitCode {
    let workshop = Arc::new(Workshop::new());
    let mut suite = Suite::new();
    for sandbox in [Sandbox::Open, Sandbox::NoUserfaultfd] {
        for &(module, in_ci, memory_mib) in CPYTHON {
            if full() || (in_ci && sandbox == Sandbox::Open) {
                let w = workshop.clone();
                suite.add(format!("cpython::{module}::{}", sandbox.mechanism()), move || {
                    if !Path::new("/usr/lib/python3.11/test/test_mmap.py").exists() {
                        return Err("libpython3.11-testsuite is not installed".into());
                    }
                    let memory_mib = memory_mib[(sandbox == Sandbox::NoUserfaultfd) as usize];
                    compare(&w, &cpython(&w, module), sandbox, memory_mib)
                });
            }
        }
        if full() {
            let w = workshop.clone();
            suite.add(format!("numpy::core::{}", sandbox.mechanism()), move || {
                let directory = Path::new("/usr/lib/python3/dist-packages/numpy/core/tests");
                for needed in ["numpy/core/tests", "pytest", "hypothesis"] {
                    if !Path::new("/usr/lib/python3/dist-packages").join(needed).exists() {
                        return Err(format!("{needed} is not installed for {PYTHON}"));
                    }
                }
                compare(&w, &numpy(&w, directory), sandbox, NUMPY_MEMORY_MIB)
            });
        }
    }
    drop(workshop);
    suite.independent();
    suite.main()
}

fn words(line: &str) -> Vec<OsString> {
    line.split(' ').map(Into::into).collect()
}

/// `python3 -m MODULE`, with ballast.
fn module(workshop: &Workshop, name: &str, ballast_mib: u64) -> Vec<OsString> {
    let mut argv = words(&format!("{PYTHON} BALLAST {ballast_mib} {name}"));
    argv[1] = workshop.script("ballast.py").into();
    argv
}

fn cpython(workshop: &Workshop, name: &str) -> Vec<OsString> {
    let mut argv = module(workshop, "test", BALLAST_MIB);
    argv.extend(words(&format!("--junit-xml results.xml --timeout 1500 {name}")));
    argv
}

fn numpy(workshop: &Workshop, directory: &Path) -> Vec<OsString> {
    let mut argv = module(workshop, "pytest", NUMPY_BALLAST_MIB);
    // The cache would be written beside the tests. The slow ones need gigabytes, also unmanaged.
    argv.extend(words("-q -p no:cacheprovider --junitxml results.xml -m"));
    argv.extend(["not slow".into(), directory.into()]);
    argv
}

fn compare(
    workshop: &Workshop,
    argv: &[OsString],
    sandbox: Sandbox,
    memory_mib: u64,
) -> Result<Verdict, String> {
    let job =
        Job::new(argv).user(User::Ordinary).sandbox(sandbox).hangs_after(Duration::from_secs(1800));
    let managed = Managed { memory_bytes: Some(memory_mib * MIB), ..Managed::default() };
    let job_managed = job.clone().managed(managed);
    let free = job.run(workshop)?;
    let expected = results(&free);
    let mut differences = Vec::new();
    // Some of these tests depend on timing and fail now and then by themselves: what differs must
    // differ twice.
    for attempt in 1..=2 {
        let run = job_managed.run(workshop)?;
        let got = results(&run);
        let now = junit::differences(&expected, &got);
        println!(
            "{} tests, {} differ, {:.1} s (free {:.1} s), {} evictions",
            expected.len(),
            now.len(),
            run.elapsed.as_secs_f64(),
            free.elapsed.as_secs_f64(),
            run.stat("evictions").unwrap_or(0),
        );
        if expected.is_empty() {
            return Ok(Verdict::Failed(format!("no test ran:\n{}", free.report())));
        }
        if run.stat("evictions").unwrap_or(0) == 0 {
            return Ok(Verdict::Failed(format!("nothing was paged: {}", run.report())));
        }
        if now.is_empty() && run.hung.is_none() && run.status == free.status {
            return Ok(Verdict::Passed);
        }
        differences.retain(|d| now.contains(d));
        if attempt == 1 {
            differences = now;
        } else if differences.is_empty() && run.hung.is_none() {
            return Ok(Verdict::Passed);
        } else {
            return Ok(Verdict::Failed(format!("{}\n{}", differences.join("\n"), run.report())));
        }
    }
    unreachable!("the second attempt returns")
}

fn results(run: &Outcome) -> junit::Results {
    junit::read(&run.file("results.xml")).unwrap_or_default()
}
