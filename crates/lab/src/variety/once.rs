//! One run of one program in a memory group of its own.
//!
//! ```text
//!  sh enters the group ─> [uzswap run --memory HALF --mechanism NAME --stats FILE --] sh -e SCRIPT
//!        every 20 ms: ended? too long? how much does the group hold?
//!  at the end: whoever is left in the group is killed; output, digest, last words, statistics
//! ```
//!
//! A run's output goes to files in the program's directory: a pipe would need a reader, and a
//! server that stays would hold it open.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::super::arms;
use super::super::peers::Fence;
use super::super::process::{Interrupt, Tree, find};
use super::super::scratch::Scratch;
use super::catalogue::Program;
use super::with_margin;
use uzswap_cli::Failure;
use uzswap_cli::machine::machine;
use uzswap_cli::program::reason;

/// One way to run a program. Bytes are what it may hold, without the margin.
#[derive(Clone, Copy, Debug)]
pub enum Arm {
    Free,
    Uzswap(&'static str, u64),
    Alone(u64),
}

impl Arm {
    pub fn name(self) -> &'static str {
        match self {
            Arm::Free => "free",
            Arm::Uzswap(mechanism, _) => mechanism,
            Arm::Alone(_) => "alone",
        }
    }

    /// The limit of the group.
    pub fn limit_bytes(self) -> u64 {
        match self {
            // For a machine that does not say, more than any has.
            Arm::Free => machine()["memory_bytes"].as_u64().unwrap_or(1 << 50),
            Arm::Uzswap(_, bytes) | Arm::Alone(bytes) => with_margin(bytes),
        }
    }
}

/// The outcome.
#[derive(Clone, Debug)]
pub struct Run {
    pub wall: Duration,
    /// The most anonymous memory that the group was seen to hold.
    pub held_bytes: u64,
    pub digest: String,
    /// Why the run is none to compare.
    pub failure: Option<String>,
    /// The end of what it wrote to stderr.
    pub last_words: String,
    /// The state of each thread of a run that took too long.
    pub state: Option<String>,
    pub stats: Value,
}

pub struct Once<'a> {
    scratch: &'a Scratch,
    outputs: Option<&'a Path>,
    interrupt: &'a Interrupt,
}

impl<'a> Once<'a> {
    pub fn new(
        scratch: &'a Scratch,
        outputs: Option<&'a Path>,
        interrupt: &'a Interrupt,
    ) -> Once<'a> {
        Once { scratch, outputs, interrupt }
    }

    fn directory(&self, program: &Program) -> PathBuf {
        self.scratch.path().join(&program.name)
    }

    /// Makes the program's directory and what it needs. The inner error says what is missing.
    pub fn prepare(&self, program: &Program) -> Result<Result<(), String>, Failure> {
        for needed in &program.needs {
            // A need that is an absolute path is a file, of a module for example; any other is a
            // command.
            let is_there = match needed.starts_with('/') {
                true => Path::new(needed).exists(),
                false => find(needed).is_ok(),
            };
            if !is_there {
                let package = &program.package;
                return Ok(Err(format!("{needed} is not installed: install {package}")));
            }
        }
        let directory = self.directory(program);
        fs::create_dir_all(&directory).map_err(|e| {
            Failure::environment(format!("{}: {}", directory.display(), reason(&e)))
        })?;
        let mut command = Command::new("sh");
        command.args(["-e", "-c", &program.prepare()]).current_dir(&directory);
        let output = command.stdin(Stdio::null()).output();
        Ok(match output {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(format!(
                "it cannot be prepared: {}",
                last_words(&String::from_utf8_lossy(&output.stderr))
            )),
            Err(e) => Err(reason(&e)),
        })
    }

    pub fn tidy_up(&self, program: &Program) {
        let _ = fs::remove_dir_all(self.directory(program));
    }

    pub fn run(&self, program: &Program, arm: Arm, patience: Duration) -> Result<Run, Failure> {
        let fence = Fence::put_up(arm.limit_bytes()).map_err(Failure::environment)?;
        let directory = self.directory(program);
        let [out, err, stats] = ["out", "err", "stats"].map(|suffix| {
            let name = format!("{}.{}.{suffix}", program.name, arm.name());
            self.outputs.unwrap_or(&directory).join(name)
        });
        let mut command = arms::entering(fence.group());
        if let Arm::Uzswap(mechanism, bytes) = arm {
            command.arg(arms::uzswap()?).args(["run", "--mechanism", mechanism, "--memory"]);
            command.arg(bytes.to_string()).arg("--stats").arg(&stats).arg("--");
        }
        let script = directory.join("run.sh");
        fs::write(&script, program.script())
            .map_err(|e| Failure::environment(format!("{}: {}", script.display(), reason(&e))))?;
        command.args(["sh", "-e", "run.sh"]).current_dir(&directory);
        let file = |path: &Path| {
            File::create(path)
                .map_err(|e| Failure::environment(format!("{}: {}", path.display(), reason(&e))))
        };
        command.stdin(Stdio::null()).stdout(file(&out)?).stderr(file(&err)?);
        // Sums of several threads depend on how the work was divided.
        command.env("LC_ALL", "C").env("OMP_NUM_THREADS", "1").env("HOME", &directory);
        let watched = watch(&mut command, fence.group(), patience, self.interrupt);
        end_members(fence.group());
        let kills = fence.out_of_memory_kills();
        fence.put_back().map_err(|why| Failure::failed(format!("not put back: {why}")))?;
        let mut run = watched?;
        run.digest = digest(&out);
        run.last_words = last_words(&fs::read_to_string(&err).unwrap_or_default());
        let text = fs::read_to_string(&stats).unwrap_or_default();
        run.stats = serde_json::from_str(&text).unwrap_or(Value::Null);
        if kills > 0 {
            run.failure = Some("killed: no memory".to_string());
        } else if run.failure.is_none() && matches!(arm, Arm::Uzswap(..)) {
            run.failure = unmanaged(&run.stats);
        }
        Ok(run)
    }
}

/// Why a run was no run under uzswap, if it was none.
fn unmanaged(stats: &Value) -> Option<String> {
    let counter = |name: &str| stats["counters"][name].as_u64().unwrap_or(0);
    let notices = stats["notices"].as_array().map_or(&[][..], Vec::as_slice);
    if let Some(notice) = notices.iter().find_map(|notice| notice.as_str()) {
        return Some(format!("said {notice}"));
    }
    match counter("evictions") {
        0 => Some("nothing was paged".to_string()),
        _ => None,
    }
}

fn watch(
    command: &mut Command,
    group: &Path,
    patience: Duration,
    interrupt: &Interrupt,
) -> Result<Run, Failure> {
    // The pause between two looks at the group: the shortest at which looks are no load of their
    // own.
    const PAUSE: Duration = Duration::from_millis(20);
    let started = Instant::now();
    let mut tree = Tree::start(command).map_err(Failure::failed)?;
    let mut run = Run {
        wall: Duration::ZERO,
        held_bytes: 0,
        digest: String::new(),
        failure: None,
        last_words: String::new(),
        state: None,
        stats: Value::Null,
    };
    loop {
        run.held_bytes = run.held_bytes.max(anonymous_bytes(group));
        if let Some(end) = tree.end() {
            run.failure = end.err();
            break;
        }
        if started.elapsed() > patience {
            run.failure = Some(format!("not ended after {} s", patience.as_secs()));
            run.state = Some(state(group));
            break;
        }
        interrupt.check().inspect_err(|_| end_members(group))?;
        thread::sleep(PAUSE);
    }
    run.wall = started.elapsed();
    Ok(run)
}

/// Anonymous memory of the group's processes.
fn anonymous_bytes(group: &Path) -> u64 {
    let text = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    // The first is of cgroup v1, the second of v2.
    let of = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.parse().ok());
    of("total_rss ").or(of("anon ")).unwrap_or(0)
}

fn members(group: &Path) -> Vec<i32> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Kills the processes that are left: servers that went into the background, and those that hang.
fn end_members(group: &Path) {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(20) {
        let members = members(group);
        if members.is_empty() {
            return;
        }
        for pid in members {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// One line for each thread of the group.
fn state(group: &Path) -> String {
    let mut text = String::new();
    for pid in members(group) {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for task in tasks.map(|task| task.path()) {
            let word = |name: &str| fs::read_to_string(task.join(name)).unwrap_or_default();
            let stat = word("stat");
            let fields: Vec<&str> =
                stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
            let field = |at: usize| fields.get(at).copied().unwrap_or("?");
            text += &format!(
                "{} {} {} user {} system {} in {} call {}\n",
                task.display(),
                word("comm").trim(),
                field(0),
                field(11),
                field(12),
                word("wchan").trim(),
                word("syscall").trim(),
            );
        }
    }
    text
}

fn digest(path: &Path) -> String {
    let mut digest = DefaultHasher::new();
    digest.write(&fs::read(path).unwrap_or_default());
    format!("{:016x}", digest.finish())
}

/// The end of a text, short enough for a line.
fn last_words(text: &str) -> String {
    const CHARACTERS: usize = 400;
    let line = text.trim().replace('\n', "; ");
    let skipped = line.chars().count().saturating_sub(CHARACTERS);
    line.chars().skip(skipped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_run_that_was_not_paged_is_none() {
        let stats = |notices: Value, evictions: u64| {
            let counters = json!({"evictions": evictions});
            json!({"notices": notices, "counters": counters})
        };
        assert_eq!(unmanaged(&stats(json!([]), 7)), None);
        assert_eq!(unmanaged(&stats(json!([]), 0)).unwrap(), "nothing was paged");
        assert_eq!(unmanaged(&stats(json!(["over_limit"]), 7)).unwrap(), "said over_limit");
    }

    #[test]
    fn last_words_are_short() {
        assert_eq!(last_words("a\nb\n"), "a; b");
        assert_eq!(last_words(&"x".repeat(1000)).len(), 400);
    }
}
