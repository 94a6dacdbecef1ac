//! Rights keep their borders: between processes of a tree with different rights, in programs that
//! gain rights, in core dumps.
//!
//! A tree is not one domain of trust: a process without rights must not decide what a process with
//! rights executes, opens or encrypts, whatever it writes over all that it has inherited.
//!
//! ```text
//!   uzswap run -- sh ─┬─ keeper (root: pages, has a store, starts programs)
//!                     └─ enemy (12345, managed and static): ones, random words, paths over all that it can write
//! ```

use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use uzswap_tests::{Job, MIB, Managed, Outcome, Suite, User, Verdict, Workshop};

const MECHANISMS: [&str; 3] = ["userfaultfd", "userfaultfd-copy", "protect"];
const MEMORY_MIB: u64 = 48;
const KEEPER_MIB: u64 = 80;

fn main() -> ExitCode {
    let workshop = Arc::new(Workshop::new());
    let mut suite = Suite::new();
    for mechanism in MECHANISMS {
        let w = workshop.clone();
        suite.add(format!("enemy_within_the_tree::{mechanism}"), move || enemy(&w, mechanism));
        let w = workshop.clone();
        suite.add(format!("paths_of_an_enemy::{mechanism}"), move || paths(&w, mechanism));
    }
    let w = workshop.clone();
    suite.add("the_search_finds_what_is_readable", move || readable(&w));
    for (name, case) in [
        (
            "own_memory_is_apart_and_not_in_core_dumps",
            own as fn(&Workshop) -> Result<Verdict, String>,
        ),
        ("programs_that_gain_rights_are_given_nothing", rights),
        ("a_sanitizers_runtime_comes_first", sanitizer),
    ] {
        let w = workshop.clone();
        suite.add(name, move || case(&w));
    }
    drop(workshop);
    suite.main()
}

/// A run of `script` as root, with the paths of the programs as its arguments.
fn run(
    workshop: &Workshop,
    script: &str,
    options: &[&str],
    store: &Path,
) -> Result<Outcome, String> {
    let says_so_in = format!("-DFILE_OF_EVIL=\"{}\"", evil_file(workshop).display());
    let made = workshop.object_of_pages("evil", 0, &[&says_so_in]);
    // Its path must fit where another one was.
    let library = workshop.dir().join("e.so");
    fs::copy(made, &library).map_err(|e| e.to_string())?;
    let directory = workshop.dir().join("e");
    fs::create_dir_all(&directory).map_err(|e| e.to_string())?;
    let uid = User::ORDINARY_UID.to_string();
    let mut argv: Vec<OsString> = ["sh", "-c", script, "sh"].map(OsString::from).into();
    argv.push(workshop.program("keeper").into());
    argv.push(workshop.program("enemy").into());
    argv.push(workshop.program_by("enemy", "-static").into());
    argv.extend([uid.into(), library.into_os_string(), directory.into_os_string()]);
    let mut all: Vec<OsString> = vec!["--store".into(), store.into()];
    all.extend(options.iter().map(OsString::from));
    let managed = Managed { memory_bytes: Some(MEMORY_MIB * MIB), options: all };
    Job::new(argv).managed(managed).run(workshop)
}

/// Where the library of the enemy says that it was loaded, if that is there.
fn evil_file(workshop: &Workshop) -> PathBuf {
    workshop.dir().join("loaded")
}

/// A directory on a disk whose name is longer than the enemy's.
fn store(workshop: &Workshop) -> Result<PathBuf, String> {
    let store = workshop.dir().join("store-of-the-process-with-rights");
    fs::create_dir_all(&store).map_err(|e| e.to_string())?;
    Ok(store)
}

/// Everything is written over, for a while. (Counts are nonsense then, and processes page that need
/// not.)
fn enemy(workshop: &Workshop, mechanism: &str) -> Result<Verdict, String> {
    // Programs are started before, while and after the enemies are at it.
    let script = format!(
        "$1 {KEEPER_MIB} 4 & \"$2\" $4 \"$5\" \"$6\" 60 & \"$3\" $4 \"$5\" \"$6\" 60 & wait; \
         for i in 1 2 3; do /bin/sh -c '/bin/true; true' || exit 1; done; $1 {KEEPER_MIB} 1"
    );
    attacked(workshop, mechanism, &script, 2)
}

/// Only paths and switches are written over, so that all else is as the enemy needs it: the next
/// program but one that is started would load the enemy's library, and a process that pages would
/// have its store in the enemy's directory.
fn paths(workshop: &Workshop, mechanism: &str) -> Result<Verdict, String> {
    let script = format!(
        "\"$2\" $4 \"$5\" \"$6\" 1; \"$3\" $4 \"$5\" \"$6\" 1; \
         /bin/sh -c '/bin/true; true' && $1 {KEEPER_MIB} 1"
    );
    attacked(workshop, mechanism, &script, 1)
}

/// Runs a script with two enemies and so many keepers in it.
fn attacked(
    workshop: &Workshop,
    mechanism: &str,
    script: &str,
    keepers: usize,
) -> Result<Verdict, String> {
    let store = store(workshop)?;
    let evil = evil_file(workshop);
    fs::write(&evil, "")
        .and_then(|()| fs::set_permissions(&evil, Permissions::from_mode(0o666)))
        .unwrap();
    let outcome = run(workshop, script, &["--mechanism", mechanism], &store)?;
    let loaded = fs::read_to_string(&evil).unwrap();
    let lines = |text: &str| outcome.stdout.lines().filter(|l| *l == text).count();
    let uid = User::ORDINARY_UID;
    let sealed = format!("keeper: store in {}, sealed", store.display());
    let is_right = outcome.succeeded()
        && lines("keeper: right") == keepers
        && outcome.stdout.lines().filter(|l| l.starts_with("keeper: store")).all(|l| l == sealed)
        // One that starts while all slots are written over may find none, and runs unmanaged.
        && (1..=keepers).contains(&lines(&sealed))
        && lines(&format!("enemy: user {uid}, files found, settings safe, counters written")) == 2
        && loaded.is_empty();
    Ok(Verdict::check(is_right, || format!("{loaded}{}", outcome.report())))
}

/// Whether the test above would see it if pages were written as they are.
fn readable(workshop: &Workshop) -> Result<Verdict, String> {
    let store = store(workshop)?;
    let outcome = run(workshop, &format!("$1 {KEEPER_MIB} 1"), &["--no-encrypt"], &store)?;
    let found = format!("keeper: store in {}, readable\n", store.display());
    Ok(Verdict::check(outcome.succeeded() && outcome.stdout.contains(&found), || outcome.report()))
}

/// A program of a shell's under uzswap.
fn plain(workshop: &Workshop, argv: &[&OsStr], env: &[(&str, &str)]) -> Result<Outcome, String> {
    let managed = Managed { memory_bytes: Some(MEMORY_MIB * MIB), ..Managed::default() };
    let job = Job::new(argv).managed(managed);
    env.iter().fold(job, |job, (name, value)| job.env(name, value)).run(workshop)
}

/// The allocator of the library keeps the promises that all memory of ours does.
fn own(workshop: &Workshop) -> Result<Verdict, String> {
    let program = workshop.program("own");
    let outcome = plain(workshop, &[program.as_os_str(), "96".as_ref()], &[])?;
    let is_paged = outcome.stat("evictions").unwrap_or(0) > 0;
    let is_right = outcome.stdout == "own: some mappings left out, 0 wrong, keys 0 and hidden\n";
    Ok(Verdict::check(outcome.succeeded() && is_paged && is_right, || outcome.report()))
}

/// The runtime is not loaded into a program that gains rights, so nothing of it may be there
/// either. Other programs see nothing because they are taken over.
fn rights(workshop: &Workshop) -> Result<Verdict, String> {
    let program = workshop.program("sees");
    let gains = workshop.dir().join("bin/sees-as-another");
    fs::copy(&program, &gains).and_then(|_| chown(&gains, Some(User::ORDINARY_UID), None)).unwrap();
    fs::set_permissions(&gains, Permissions::from_mode(0o4755)).unwrap();
    let fixed = workshop.program_by("sees", "-static");
    let script = "\"$1\"; echo; \"$2\"; echo; \"$3\"; echo; exec \"$2\"";
    let argv = ["sh".as_ref(), "-c".as_ref(), script.as_ref(), "sh".as_ref()];
    let programs = [program.as_os_str(), gains.as_os_str(), fixed.as_os_str()];
    let outcome = plain(workshop, &[&argv[..], &programs].concat(), &[])?;
    let seen: Vec<&str> = outcome.stdout.split("\n\n").map(str::trim_end).collect();
    let is_right = seen == ["sees: done"; 4]
        && outcome.stat("unmanaged_execs") == Some(2)
        && outcome.stderr.contains("ran unmanaged");
    Ok(Verdict::check(outcome.succeeded() && is_right, || outcome.report()))
}

/// Started by `uzswap run` and by a program, by a script, and with a list of its own.
fn sanitizer(workshop: &Workshop) -> Result<Verdict, String> {
    let has_runtime = std::process::Command::new("gcc").arg("-print-file-name=libasan.so").output();
    if !has_runtime.is_ok_and(|o| o.stdout.starts_with(b"/")) {
        return Ok(Verdict::Skipped("gcc has no libasan here".to_string()));
    }
    let program = workshop.program_by("sees", "-fsanitize=address");
    let script = workshop.input("sees-script", |path| {
        fs::write(path, format!("#!{}\n", program.display())).unwrap();
        fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    });
    // Leaks are looked for by a process that stops all threads, the pager's too.
    let env = [("ASAN_OPTIONS", "detect_leaks=0")];
    let run = |argv: &[&OsStr]| plain(workshop, argv, &env);
    let direct = run(&[program.as_os_str()])?;
    let shell = "\"$1\" && \"$2\" && LD_PRELOAD=libm.so.6 \"$1\"".as_ref();
    let argv = [
        "sh".as_ref(),
        "-c".as_ref(),
        shell,
        "sh".as_ref(),
        program.as_os_str(),
        script.as_os_str(),
    ];
    let by_shell = run(&argv)?;
    let is_right = direct.stdout == "sees: done\n" && direct.succeeded() && by_shell.succeeded();
    let wanted = "sees: done\nsees: done\nsees: LD_PRELOAD=libm.so.6\nsees: done\n";
    let managed = direct.stat("processes") == Some(1) && by_shell.stat("processes") >= Some(4);
    Ok(Verdict::check(is_right && managed && by_shell.stdout == wanted, || {
        format!("{}{}", direct.report(), by_shell.report())
    }))
}
