//! Builds: `make -jN` of a made-up source tree under one limit, a tree of a hundred short-lived
//! processes in which many are large at a time. Every object is as without uzswap, the limit holds
//! for all of them together, in a hard memory group no process is killed, and a process that we
//! kill takes no other with it and leaves nothing behind.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use uzswap_tests::{
    Job, Kills, MIB, Managed, Outcome, Sandbox, Suite, User, Verdict, Workshop, full, seed,
};

const FILES: u32 = 18;
/// Compilers at a time; each takes some 25 MiB.
const JOBS: u32 = 12;
/// The limit for all of them: about half of what they need.
const MEMORY_MIB: u64 = 128;
/// The limit of a build that is disturbed; with less it takes too long to be repeated.
const DISTURBED_MIB: u64 = 192;
/// The limit of the hard group in which they all are.
const GROUP_MIB: u64 = 160;

/// Objects are made beside their names and moved there: one that is there is whole, whichever
/// process was killed.
const MAKEFILE: &str = "\
OBJECTS := $(patsubst $(SOURCES)/%.c,%.o,$(wildcard $(SOURCES)/*.c))
all: $(OBJECTS)
%.o: $(SOURCES)/%.c
\tgcc -O1 -c $< -o $@.$$$$ && mv $@.$$$$ $@
";

/// Builds until it succeeds, since killed processes leave objects that have to be made again.
const SCRIPT: &str = "\
tries=0
until make -s -k -j\"$1\" -f \"$2/Makefile\" SOURCES=\"$2\"; do
    tries=$((tries + 1))
    [ $tries -lt 60 ] || exit 1
done
sha256sum *.o
";

fn main() -> ExitCode {
    let workshop = Arc::new(Workshop::new());
    let mut suite = Suite::new();
    for (user, sandbox) in [(User::Ordinary, Sandbox::Open), (User::Root, Sandbox::NoUserfaultfd)] {
        // By protection faults a build that thrashes takes minutes.
        if sandbox == Sandbox::NoUserfaultfd && !full() {
            continue;
        }
        let w = workshop.clone();
        suite.add(format!("objects::{}", sandbox.mechanism()), move || objects(&w, user, sandbox));
        let w = workshop.clone();
        suite
            .add(format!("in_group::{}", sandbox.mechanism()), move || in_group(&w, user, sandbox));
        let w = workshop.clone();
        suite.add(format!("killed::{}", sandbox.mechanism()), move || killed(&w, user, sandbox));
    }
    drop(workshop);
    suite.main()
}

/// The managed build makes the objects of the free one, and all its processes together stay within
/// the limit.
fn objects(workshop: &Workshop, user: User, sandbox: Sandbox) -> Result<Verdict, String> {
    let free = free(workshop)?;
    let run = build(workshop)
        .user(user)
        .sandbox(sandbox)
        .managed(managed(Some(MEMORY_MIB), vec![]))
        .run(workshop)?;
    let allowed_mib = MEMORY_MIB + MEMORY_MIB / 20 + 16;
    println!(
        "free {} MiB in {:.1} s; limit {MEMORY_MIB} MiB, allowed {allowed_mib}, highest {} MiB in \
         {} samples, {:.1} s",
        free.peaks.group_bytes / MIB,
        free.elapsed.as_secs_f64(),
        run.peaks.group_bytes / MIB,
        run.peaks.samples,
        run.elapsed.as_secs_f64()
    );
    let wrong = if free.peaks.group_bytes < MEMORY_MIB * MIB * 3 / 2 {
        "the build is smaller than it should be"
    } else if run.peaks.group_bytes > allowed_mib * MIB {
        "the limit does not hold"
    } else {
        return Ok(like(&run, free));
    };
    Ok(Verdict::Failed(format!("{wrong}\n{}{}", run.report(), free.report())))
}

/// With the default of `--memory`, what the kernel needs for all those processes has room in the
/// group too.
fn in_group(workshop: &Workshop, user: User, sandbox: Sandbox) -> Result<Verdict, String> {
    let free = free(workshop)?;
    let job = build(workshop).user(user).sandbox(sandbox).limit(GROUP_MIB * MIB);
    Ok(like(&job.managed(managed(None, vec![])).run(workshop)?, free))
}

/// Some processes are killed now and then: the objects are made in the end, and nothing is left.
fn killed(workshop: &Workshop, user: User, sandbox: Sandbox) -> Result<Verdict, String> {
    // In every other build no process waits for a turn, and all that are killed page.
    let (builds, count) = if full() { (6, 40) } else { (2, 20) };
    let free = free(workshop)?;
    let store = workshop.input("store", |path| {
        fs::create_dir(path).expect("the workshop is ours");
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o1777);
        fs::set_permissions(path, open).expect("it is ours");
    });
    let (before, mut all) = (traces(&store, None), 0);
    for round in 0..builds {
        let kills = Kills {
            count,
            pause: Duration::from_millis(200),
            seed: seed() + round,
            spared: "make",
        };
        let mut options = vec!["--store".into(), store.clone().into()];
        options.extend((round % 2 == 0).then(|| "--no-turns".into()));
        let job = build(workshop)
            .user(user)
            .sandbox(sandbox)
            .managed(managed(Some(DISTURBED_MIB), options))
            .kills(kills);
        let run = job.run(workshop)?;
        all += run.killed;
        let verdict = like(&run, free);
        if verdict != Verdict::Passed {
            return Ok(verdict);
        }
        let after = traces(&store, Some(&run));
        if after != before || !run.left_behind.is_empty() {
            return Ok(Verdict::Failed(format!(
                "left behind: {after:?}, before {before:?}\n{}",
                run.report()
            )));
        }
    }
    println!("{all} killed in {builds} builds");
    Ok(Verdict::check(all > 0, || "nobody was killed".to_string()))
}

/// The build without uzswap, once for all cases.
fn free(workshop: &Workshop) -> Result<&'static Outcome, String> {
    static FREE: OnceLock<Result<Outcome, String>> = OnceLock::new();
    let run = || build(workshop).user(User::Ordinary).run(workshop);
    FREE.get_or_init(run).as_ref().map_err(String::clone)
}

/// Passes if the objects are equal though memory was short: pages went out, or compilers waited for
/// a turn, after which the others may fit.
fn like(run: &Outcome, free: &Outcome) -> Verdict {
    let was_short = ["evictions", "pauses"].iter().any(|c| run.stat(c).unwrap_or(0) > 0);
    let wrong = if !free.succeeded() || !run.succeeded() {
        "the build failed"
    } else if run.hash != free.hash {
        "an object is another"
    } else if !was_short {
        "memory was not short"
    } else {
        return Verdict::Passed;
    };
    Verdict::Failed(format!("{}expected:\n{}{wrong}", run.report(), free.report()))
}

/// Where uzswap could leave something: its store's directory, the job's own, which is TMPDIR and
/// HOME, and sockets. Elsewhere on the machine other runs have theirs.
fn traces(store: &Path, run: Option<&Outcome>) -> BTreeSet<String> {
    let names = |directory: &Path| -> Vec<String> {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.path().display().to_string()).collect()
    };
    let mut traces: BTreeSet<String> = names(store).into_iter().collect();
    let job = run.map(|run| names(&run.file(""))).unwrap_or_default();
    let is_ours = |path: &String| path.rsplit('/').next().is_some_and(|n| n.contains("uzswap"));
    traces.extend(job.into_iter().filter(is_ours));
    let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let here = store.parent().unwrap_or(store).display().to_string();
    traces.extend(sockets.lines().filter(|line| line.contains(&here)).map(String::from));
    traces
}

fn managed(memory_mib: Option<u64>, options: Vec<std::ffi::OsString>) -> Managed {
    Managed { memory_bytes: memory_mib.map(|mib| mib * MIB), options }
}

/// The build of the tree by `JOBS` jobs, in the job's own directory.
fn build(workshop: &Workshop) -> Job {
    let sources =
        workshop.input("sources", |path| write_sources(path).expect("the workshop is ours"));
    let script =
        workshop.input("build.sh", |path| fs::write(path, SCRIPT).expect("the workshop is ours"));
    let argv: [PathBuf; 4] = ["sh".into(), script, JOBS.to_string().into(), sources];
    Job::new(argv).hangs_after(Duration::from_secs(900))
}

/// Functions that are large enough for a compiler to need memory: each a loop over a switch.
fn write_sources(directory: &Path) -> std::io::Result<()> {
    const FUNCTIONS: u32 = 36;
    const CASES: u32 = 16;
    fs::create_dir(directory)?;
    fs::write(directory.join("Makefile"), MAKEFILE)?;
    let mut random = 1u32;
    for file in 0..FILES {
        let mut text = String::from("unsigned table[256];\n");
        for function in 0..FUNCTIONS {
            let _ = writeln!(
                text,
                "unsigned f{file}_{function}(unsigned a, unsigned b) {{\n  for (; b; b--) switch \
                 (a % {CASES}) {{"
            );
            for case in 0..CASES {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let (first, second) = (random >> 24, random >> 12 & 255);
                let _ = writeln!(
                    text,
                    "  case {case}: a += table[(b ^ {first}) & 255] * {second}; table[a & 255] ^= \
                     b << {}; break;",
                    case % 7
                );
            }
            text += "  }\n  return a;\n}\n";
        }
        fs::write(directory.join(format!("part{file:02}.c")), text)?;
    }
    Ok(())
}
