//! Saved from the OOM killer: real programs that need at least twice the memory of their hard group
//! finish under uzswap with the output they have without any limit, and are killed in the same
//! group without uzswap.
//!
//! Every program is run three ways: free (the expected output, and the memory that it needs),
//! unmanaged in the group (killed), and managed in the group with `--memory` left to its default:
//! as root and as an ordinary user, with userfaultfd and with userfaultfd refused. CI runs a few
//! programs, as an ordinary user with userfaultfd and some as root without; `UZSWAP_TEST_FULL=1`
//! runs all.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::{Arc, OnceLock};

use uzswap_tests::{
    Job, MIB, Managed, Outcome, Sandbox, Suite, User, Verdict, Workshop, full, suite,
};

/// A real program with its arguments, and the group that is too small for it.
struct Program {
    name: &'static str,
    limit_mib: u64,
    /// The command line, or what is not installed.
    argv: fn(&Workshop) -> Result<Vec<OsString>, String>,
    /// Whether an ordinary user can run it: the Rust toolchain lies in a home directory.
    for_all: bool,
    /// In which sandboxes CI runs it.
    in_ci: &'static [Sandbox],
}

const NEVER: &[Sandbox] = &[];
const OPEN: &[Sandbox] = &[Sandbox::Open];
const REFUSED: &[Sandbox] = &[Sandbox::NoUserfaultfd];

const PROGRAMS: &[Program] = &[
    Program {
        name: "python_sort",
        limit_mib: 96,
        argv: |w| python(w, "sort.py", "1.35"),
        for_all: true,
        in_ci: OPEN,
    },
    Program {
        name: "python_procs",
        limit_mib: 104,
        argv: |w| python(w, "procs.py", "1.5"),
        for_all: true,
        in_ci: OPEN,
    },
    Program { name: "numpy", limit_mib: 88, argv: numpy, for_all: true, in_ci: NEVER },
    Program { name: "sort", limit_mib: 48, argv: gnu_sort, for_all: true, in_ci: NEVER },
    Program { name: "xz", limit_mib: 30, argv: xz, for_all: true, in_ci: NEVER },
    Program { name: "gcc", limit_mib: 104, argv: gcc, for_all: true, in_ci: NEVER },
    Program { name: "rustc", limit_mib: 88, argv: rustc, for_all: false, in_ci: NEVER },
    Program { name: "sqlite", limit_mib: 60, argv: sqlite, for_all: true, in_ci: REFUSED },
    Program { name: "redis", limit_mib: 96, argv: redis, for_all: true, in_ci: OPEN },
    Program { name: "node", limit_mib: 88, argv: node, for_all: true, in_ci: NEVER },
    Program {
        name: "java_g1",
        limit_mib: 76,
        argv: |w| java(w, "-XX:+UseG1GC"),
        for_all: true,
        in_ci: NEVER,
    },
    Program {
        name: "java_serial",
        limit_mib: 78,
        argv: |w| java(w, "-XX:+UseSerialGC"),
        for_all: true,
        in_ci: NEVER,
    },
    Program { name: "perl", limit_mib: 96, argv: perl, for_all: true, in_ci: NEVER },
];

fn line<const N: usize>(words: [&dyn AsRef<std::ffi::OsStr>; N]) -> Vec<OsString> {
    words.iter().map(|w| w.as_ref().to_owned()).collect()
}

/// Debian's interpreter: one in a home directory is out of reach for other users.
fn python3() -> Result<PathBuf, String> {
    let path = PathBuf::from("/usr/bin/python3");
    if path.exists() { Ok(path) } else { Err("/usr/bin/python3 is not installed".into()) }
}

fn python(w: &Workshop, script: &str, scale: &str) -> Result<Vec<OsString>, String> {
    Ok(line([&python3()?, &w.script(script), &scale]))
}

fn numpy(w: &Workshop) -> Result<Vec<OsString>, String> {
    let found = Command::new(python3()?).args(["-c", "import numpy"]).output();
    if !found.is_ok_and(|o| o.status.success()) {
        return Err("NumPy is not installed for /usr/bin/python3".into());
    }
    python(w, "arrays.py", "0.9")
}

fn gnu_sort(w: &Workshop) -> Result<Vec<OsString>, String> {
    let input = w.input("lines", |path| make_lines(path, 300_000));
    Ok(line([&suite::command("sort")?, &"-S", &"400M", &"--parallel=2", &input]))
}

fn xz(w: &Workshop) -> Result<Vec<OsString>, String> {
    let input = w.input("sources", |path| make_sources(path, 3 * MIB as usize / 2));
    Ok(line([&suite::command("xz")?, &"-9", &"-T1", &"-c", &input]))
}

fn gcc(w: &Workshop) -> Result<Vec<OsString>, String> {
    let compiler = suite::command("g++")?;
    Ok(line([
        &compiler,
        &"-std=c++17",
        &"-O1",
        &"-DCOUNT=2",
        &"-S",
        &"-o",
        &"/dev/stdout",
        &w.script("big.cpp"),
    ]))
}

fn rustc(w: &Workshop) -> Result<Vec<OsString>, String> {
    // Not the proxy of rustup, which only looks for the compiler.
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output();
    let sysroot = sysroot.map_err(|_| "rustc is not installed")?;
    let rustc = Path::new(String::from_utf8_lossy(&sysroot.stdout).trim()).join("bin/rustc");
    // Not to a pipe: for one, rustc writes a file beside it first, in /dev, which is memory that
    // nobody can page out.
    let script = "\"$0\" --edition=2021 --crate-type=lib -Copt-level=0 -Ccodegen-units=1 \
                  --emit=asm -o big.s \"$1\" && sha256sum big.s";
    Ok(line([&"sh", &"-c", &script, &rustc, &w.script("big.rs")]))
}

fn sqlite(w: &Workshop) -> Result<Vec<OsString>, String> {
    let scale = "CREATE TABLE scale(rows); INSERT INTO scale VALUES(150000);";
    let read = format!(".read {}", w.script("tables.sql").display());
    Ok(line([&suite::command("sqlite3")?, &"-batch", &"-cmd", &scale, &":memory:", &read]))
}

fn redis(w: &Workshop) -> Result<Vec<OsString>, String> {
    suite::command("redis-server")?;
    python(w, "redis.py", "1.2")
}

fn node(w: &Workshop) -> Result<Vec<OsString>, String> {
    // V8 sizes its heap by the group that it runs in, unless told.
    Ok(line([
        &suite::command("node")?,
        &"--max-old-space-size=2000",
        &w.script("structures.js"),
        &"0.9",
    ]))
}

fn java(w: &Workshop, collector: &str) -> Result<Vec<OsString>, String> {
    let java = suite::command("java")?;
    let classes = w.classes(&suite::command("javac")?, "Structures");
    // The JVM sizes its heap by the group, too.
    Ok(line([&java, &collector, &"-Xmx700m", &"-cp", &classes, &"Structures", &"0.9"]))
}

fn perl(w: &Workshop) -> Result<Vec<OsString>, String> {
    Ok(line([&suite::command("perl")?, &w.script("structures.pl"), &"0.75"]))
}

/// Lines of very different lengths in no order.
fn make_lines(path: &Path, count: u32) {
    let mut out = BufWriter::new(File::create(path).expect("the workshop is ours"));
    let mut state = 88172645463325252u64;
    for _ in 0..count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let letter = b'a' + (state % 26) as u8;
        let tail = vec![letter; 100 + (state >> 8) as usize % 400];
        writeln!(out, "{:08x} {}", (state >> 20) as u32, String::from_utf8_lossy(&tail))
            .expect("space on the disk");
    }
    out.flush().expect("space on the disk");
}

/// Real text: the sources of Python's library, one after the other.
fn make_sources(path: &Path, bytes: usize) {
    let mut text = Vec::new();
    let mut left = vec![
        PathBuf::from("/usr/lib/python3"),
        PathBuf::from("/usr/lib/python3.11"),
        "/usr/include".into(),
    ];
    while text.len() < bytes {
        let Some(next) = left.pop() else { break };
        if next.is_dir() {
            let entries = fs::read_dir(&next).into_iter().flatten().flatten().map(|e| e.path());
            let mut entries: Vec<_> = entries.filter(|p| !p.is_symlink()).collect();
            entries.sort();
            left.append(&mut entries);
        } else if next.extension().is_some_and(|e| e == "py" || e == "h") {
            text.extend(fs::read(&next).unwrap_or_default());
        }
    }
    assert!(text.len() >= bytes, "no sources of Python or C on this machine");
    fs::write(path, &text[..bytes]).expect("space on the disk");
}

/// The unlimited run: made once for each program, compared with by all the others.
type Free = Arc<OnceLock<Result<Outcome, String>>>;

fn free<'a>(program: &Program, workshop: &Workshop, cell: &'a Free) -> Result<&'a Outcome, String> {
    let made = cell.get_or_init(|| {
        let run = Job::new((program.argv)(workshop)?).run(workshop)?;
        assert!(run.succeeded(), "{} does not even run freely: {}", program.name, run.report());
        println!(
            "{}: needs {} MiB, limit {} MiB, {:.1} s",
            program.name,
            run.peaks.group_bytes / MIB,
            program.limit_mib,
            run.elapsed.as_secs_f64(),
        );
        Ok(run)
    });
    made.as_ref().map_err(|e| e.clone())
}

fn killed_unmanaged(
    program: &Program,
    workshop: &Workshop,
    cell: &Free,
) -> Result<Verdict, String> {
    let needed_bytes = free(program, workshop, cell)?.peaks.group_bytes;
    let limit_bytes = program.limit_mib * MIB;
    if needed_bytes < 2 * limit_bytes {
        return Ok(Verdict::Failed(format!(
            "the case is too small: {} MiB needed, limit {} MiB",
            needed_bytes / MIB,
            program.limit_mib,
        )));
    }
    let run = Job::new((program.argv)(workshop)?).limit(limit_bytes).run(workshop)?;
    Ok(Verdict::check(run.oom_kills > 0 && !run.status.success(), || {
        format!("not killed: {}", run.report())
    }))
}

fn saved(
    program: &Program,
    workshop: &Workshop,
    cell: &Free,
    user: User,
    sandbox: Sandbox,
) -> Result<Verdict, String> {
    let expected = free(program, workshop, cell)?;
    let limit_bytes = program.limit_mib * MIB;
    let run = Job::new((program.argv)(workshop)?)
        .user(user)
        .sandbox(sandbox)
        .limit(limit_bytes)
        .managed(Managed::default())
        .run(workshop)?;
    println!(
        "{}::{}::{}: {:.1} s (free {:.1} s), {} faults, {} written back",
        program.name,
        user.name(),
        sandbox.mechanism(),
        run.elapsed.as_secs_f64(),
        expected.elapsed.as_secs_f64(),
        run.stat("faults").unwrap_or(0),
        run.stat("written_back_pages").unwrap_or(0),
    );
    let wrong = if !run.succeeded() {
        "it did not finish"
    } else if run.hash != expected.hash {
        "its output differs"
    } else if run.stat("evictions").unwrap_or(0) == 0 {
        "nothing was paged, so it was not uzswap that saved it"
    } else if run.stat("peak_needed_bytes").unwrap_or(0) < 2 * limit_bytes {
        "by --stats it did not need twice the limit"
    } else if run.mechanisms() != [sandbox.mechanism()] {
        "another mechanism was used than the sandbox allows"
    } else {
        return Ok(Verdict::Passed);
    };
    Ok(Verdict::Failed(format!(
        "{wrong}\n{}expected output {}:\n{}",
        run.report(),
        expected.hash,
        expected.stdout
    )))
}

fn main() -> ExitCode {
    let workshop = Arc::new(Workshop::new());
    let mut suite = Suite::new();
    for program in PROGRAMS {
        if !full() && program.in_ci.is_empty() {
            continue;
        }
        let cell = Free::default();
        let (w, c) = (workshop.clone(), cell.clone());
        suite.add(format!("{}::killed_unmanaged", program.name), move || {
            killed_unmanaged(program, &w, &c)
        });
        for user in [User::Ordinary, User::Root] {
            for sandbox in [Sandbox::Open, Sandbox::NoUserfaultfd] {
                // In CI the ordinary user has userfaultfd and root has not.
                let pair = (user == User::Ordinary) == (sandbox == Sandbox::Open);
                let in_ci = pair && program.in_ci.contains(&sandbox);
                if !(full() || in_ci) || (user == User::Ordinary && !program.for_all) {
                    continue;
                }
                let (w, c) = (workshop.clone(), cell.clone());
                let name =
                    format!("{}::saved::{}::{}", program.name, user.name(), sandbox.mechanism());
                suite.add(name, move || saved(program, &w, &c, user, sandbox));
            }
        }
    }
    drop(workshop);
    suite.independent();
    suite.main()
}
