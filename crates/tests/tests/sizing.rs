//! Programs size themselves by the memory that they see, and under uzswap they see what is there:
//! machine and group as the kernel has them (decision 0037). A runtime that is not told more ends
//! with an error of its own in a group in which uzswap would have had room; told its size in its
//! own words it finishes. A linker takes what it needs, and has to be told nothing.
//!
//! `docs/containers.md` says for each program how it is told.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;

use uzswap_tests::suite::command;
use uzswap_tests::{Job, MIB, Managed, Outcome, Suite, User, Verdict, Workshop};

/// A group in which the JVM takes less than its program needs, and that needs more than it has.
const RUNTIME_GROUP_BYTES: u64 = 128 * MIB;
/// A limit of the run below the group's: no program sees that either.
const OWN_LIMIT_BYTES: u64 = 64 * MIB;

/// Six tenths of what the linker needs.
const LINKER_GROUP_BYTES: u64 = 112 * MIB;
/// The linker's work: functions in a section each, of several objects that call one another.
const OBJECTS: u32 = 4;
const FUNCTIONS: u32 = 24_000;

/// All by which a program could size itself.
const LOOKS: &str = r#"
import ctypes, os, resource
class Info(ctypes.Structure):
    _fields_ = [("uptime", ctypes.c_long), ("loads", ctypes.c_ulong * 3), ("total", ctypes.c_ulong),
                ("rest", ctypes.c_char * 256)]
info = Info()
assert ctypes.CDLL(None).sysinfo(ctypes.byref(info)) == 0
print("sysinfo", info.total)
print("sysconf", os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_NPROCESSORS_ONLN"))
print("meminfo", [line for line in open("/proc/meminfo") if line.startswith(("MemT", "SwapT"))])
for what in "AS DATA RSS STACK MEMLOCK".split():
    print(what, resource.getrlimit(getattr(resource, "RLIMIT_" + what)))
for line in open("/proc/self/cgroup"):
    number, kind, path = line.strip().split(":", 2)
    for file in (f"/sys/fs/cgroup/memory{path}/memory.limit_in_bytes",
                 f"/sys/fs/cgroup{path}/memory.max"):
        if kind in ("", "memory") and os.path.exists(file):
            print(kind, os.path.basename(file), open(file).read())
"#;

fn main() -> ExitCode {
    let workshop = Arc::new(Workshop::new());
    let mut suite = Suite::new();
    let w = workshop.clone();
    suite.add("machine_and_group_are_seen_as_they_are", move || sees(&w));
    let w = workshop.clone();
    suite.add("java_is_told", move || told(&w, &JAVA));
    let w = workshop.clone();
    suite.add("a_linker_is_saved", move || linker(&w));
    drop(workshop);
    suite.independent();
    suite.main()
}

/// In a group, and with a smaller limit of the run besides.
fn sees(workshop: &Workshop) -> Result<Verdict, String> {
    let look = Job::new(["/usr/bin/python3", "-Ic", LOOKS]).limit(RUNTIME_GROUP_BYTES);
    let plain = look.clone().run(workshop)?;
    let group = look.clone().managed(Managed::default()).run(workshop)?;
    let own = Managed { memory_bytes: Some(OWN_LIMIT_BYTES), options: vec![] };
    let own = look.managed(own).run(workshop)?;
    let sees_group = plain.stdout.contains(&RUNTIME_GROUP_BYTES.to_string());
    let is_right =
        plain.succeeded() && sees_group && [&group, &own].map(|run| &run.hash) == [&plain.hash; 2];
    Ok(Verdict::check(is_right, || {
        format!("{}in the group: {}{}", plain.report(), group.report(), own.report())
    }))
}

// ---------------------------------------------------------------- runtimes

/// A program of a runtime that sizes its heap by the group.
struct Runtime {
    /// The command line with these options of the runtime, or what is not installed.
    group_bytes: u64,
    argv: fn(&Workshop, &[&str]) -> Result<Vec<OsString>, String>,
    /// How it is told, and what it says if it is not.
    told: &'static [&'static str],
    says: &'static str,
}

const JAVA: Runtime = Runtime {
    group_bytes: RUNTIME_GROUP_BYTES,
    argv: java,
    told: &["-Xmx700m"],
    says: "OutOfMemoryError",
};

fn java(w: &Workshop, options: &[&str]) -> Result<Vec<OsString>, String> {
    let (java, compiler) = (command("java")?, command("javac")?);
    let classes = w.classes(&compiler, "Structures");
    let mut argv: Vec<OsString> = vec![java.into(), "-XX:+UseSerialGC".into()];
    argv.extend(options.iter().map(OsString::from));
    argv.extend(["-cp".into(), classes.into(), "Structures".into(), "0.9".into()]);
    Ok(argv)
}

/// With room by uzswap a runtime that is not told ends by itself, and one that is told finishes;
/// without uzswap that one is killed.
fn told(workshop: &Workshop, runtime: &Runtime) -> Result<Verdict, String> {
    let argv = |options| (runtime.argv)(workshop, options);
    let free = Job::new(argv(runtime.told)?).run(workshop)?;
    let job = |options| Ok::<_, String>(Job::new(argv(options)?).limit(runtime.group_bytes));
    let killed = job(runtime.told)?.run(workshop)?;
    let untold = job(&[])?.managed(Managed::default()).run(workshop)?;
    let told = job(runtime.told)?.managed(Managed::default()).run(workshop)?;
    let said = format!("{}{}", untold.stdout, untold.stderr);
    let gives_up = !untold.succeeded() && untold.oom_kills == 0 && said.contains(runtime.says);
    let is_right = gives_up && killed.oom_kills > 0 && is_saved(&told, &free);
    Ok(Verdict::check(is_right, || {
        let reports = [&free, &killed, &untold, &told].map(Outcome::report);
        format!("free, killed, not told, told:\n{}", reports.concat())
    }))
}

/// The output is as with all memory, and pages had to go out for it.
fn is_saved(run: &Outcome, free: &Outcome) -> bool {
    let is_paged = run.stat("evictions").is_some_and(|pages| pages > 0);
    free.succeeded() && run.succeeded() && run.hash == free.hash && is_paged
}

// ---------------------------------------------------------------- a linker

/// By its compiler, as builds call it: who says that it was killed is the compiler.
fn linker(workshop: &Workshop) -> Result<Verdict, String> {
    let (compiler, assembler) = (command("g++")?, command("as")?);
    let objects = workshop.input("objects", |directory| assemble(&assembler, directory));
    let script = "\"$0\" -shared -fuse-ld=bfd \"$1\"/*.o -o linked.so && sha256sum linked.so";
    let argv: [PathBuf; 5] = ["sh".into(), "-c".into(), script.into(), compiler, objects];
    let job = Job::new(argv).user(User::Ordinary);
    let free = job.clone().run(workshop)?;
    let job = job.limit(LINKER_GROUP_BYTES);
    let killed = job.clone().run(workshop)?;
    let saved = job.managed(Managed::default()).run(workshop)?;
    let says = killed.stderr.contains("signal 9");
    let is_right = killed.oom_kills > 0 && says && is_saved(&saved, &free);
    Ok(Verdict::check(is_right, || {
        format!("{}killed: {}saved: {}", free.report(), killed.report(), saved.report())
    }))
}

fn assemble(assembler: &Path, directory: &Path) {
    fs::create_dir(directory).expect("the workshop is ours");
    for object in 0..OBJECTS {
        let line = |n: u32| {
            let (other, callee) = ((object + n) % OBJECTS, n * 7919 % FUNCTIONS);
            format!(
                ".section .text.f{object}_{n},\"ax\"\n.globl f{object}_{n}\n\
                 f{object}_{n}: call f{other}_{callee}@PLT\nret\n"
            )
        };
        let source = directory.join(format!("{object}.s"));
        fs::write(&source, (0..FUNCTIONS).map(line).collect::<String>())
            .expect("space on the disk");
        let made =
            Command::new(assembler).arg("-o").args([source.with_extension("o"), source]).output();
        let made = made.expect("the assembler starts");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
}
