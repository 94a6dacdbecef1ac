//! One run of one program, and what came of it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::kills::{Killer, Kills};
use crate::watch::{Peaks, Watch};
use crate::{Group, MIB, Sandbox, User, Workshop, workshop};

/// A guard against hanging, not an assertion of speed: far beyond what any case needs.
const HANGS_AFTER: Duration = Duration::from_secs(300);
/// The message of `uzswap run` where a test asks for a mechanism that came with Linux 6.8.
const LACKS_MOVE: &str = "this kernel's userfaultfd lacks MOVE";

/// How to run the program under uzswap.
#[derive(Clone, Debug, Default)]
pub struct Managed {
    /// `--memory`; `None` leaves it to its default.
    pub memory_bytes: Option<u64>,
    /// More options of `uzswap run`.
    pub options: Vec<OsString>,
}

/// One run to be made. Built with the methods, then `run`.
#[derive(Clone, Debug)]
pub struct Job {
    argv: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    user: User,
    sandbox: Sandbox,
    limit_bytes: Option<u64>,
    managed: Option<Managed>,
    hangs_after: Duration,
    kills: Option<Kills>,
}

/// The outcome of a job. The job's directory lives as long as the outcome does.
#[derive(Debug)]
pub struct Outcome {
    pub status: ExitStatus,
    /// SHA-256 of everything written to stdout, in hex.
    pub hash: String,
    /// The head of stdout, to show.
    pub stdout: String,
    pub stderr: String,
    pub oom_kills: u64,
    pub peaks: Peaks,
    /// The statistics that `--stats` wrote, when managed.
    pub stats: Option<serde_json::Value>,
    /// The state of every process when the job was given up.
    pub hung: Option<String>,
    pub elapsed: Duration,
    /// How many of its processes we have killed.
    pub killed: u32,
    /// The processes that were still there a while after the first one had ended.
    pub left_behind: Vec<String>,
    dir: JobDir,
}

#[derive(Debug)]
struct JobDir(PathBuf);

impl Drop for JobDir {
    fn drop(&mut self) {
        if !workshop::keep() {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

impl Job {
    pub fn new<S: AsRef<OsStr>>(argv: impl IntoIterator<Item = S>) -> Job {
        Job {
            argv: argv.into_iter().map(|a| a.as_ref().to_owned()).collect(),
            env: Vec::new(),
            user: User::Root,
            sandbox: Sandbox::Open,
            limit_bytes: None,
            managed: None,
            hangs_after: HANGS_AFTER,
            kills: None,
        }
    }

    pub fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Job {
        self.env.push((key.into(), value.as_ref().to_owned()));
        self
    }

    pub fn user(mut self, user: User) -> Job {
        self.user = user;
        self
    }

    pub fn sandbox(mut self, sandbox: Sandbox) -> Job {
        self.sandbox = sandbox;
        self
    }

    /// A hard limit on the group: memory above it is refused by the OOM killer.
    pub fn limit(mut self, bytes: u64) -> Job {
        self.limit_bytes = Some(bytes);
        self
    }

    pub fn managed(mut self, managed: Managed) -> Job {
        self.managed = Some(managed);
        self
    }

    /// For jobs that are meant to run long.
    pub fn hangs_after(mut self, duration: Duration) -> Job {
        self.hangs_after = duration;
        self
    }

    /// Processes of the job are killed while it runs.
    pub fn kills(mut self, kills: Kills) -> Job {
        self.kills = Some(kills);
        self
    }

    /// Runs the job to its end. `Err` says why it cannot be run here.
    pub fn run(&self, workshop: &Workshop) -> Result<Outcome, String> {
        let group = Arc::new(Group::new(self.limit_bytes)?);
        let dir = JobDir(workshop.job_dir(self.user));
        let stats_file = dir.0.join("stats.json");
        let file = |name: &str| dir.0.join(name);
        let create = |name: &str| {
            let made = fs::File::create(file(name)).expect("the job's directory is ours");
            if self.user == User::Ordinary {
                // Otherwise it could not open /dev/stdout.
                let id = Some(User::ORDINARY_UID);
                std::os::unix::fs::fchown(&made, id, id).expect("root can give a file away");
            }
            made
        };

        let mut command = Command::new(workshop.dir().join("bin/jail"));
        command.arg("-g").arg(group.procs_file());
        if self.user == User::Ordinary {
            command.args(["-u", &User::ORDINARY_UID.to_string()]);
        }
        if self.sandbox == Sandbox::NoUserfaultfd {
            command.arg("-s");
        }
        command.arg("--");
        if let Some(managed) = &self.managed {
            command.arg(workshop.uzswap()).arg("run").arg("--stats").arg(&stats_file);
            if let Some(bytes) = managed.memory_bytes {
                command.arg("--memory").arg(bytes.to_string());
            }
            command.args(&managed.options).arg("--");
        }
        command.args(&self.argv);
        command.env_clear().envs([
            ("LANG", "C.UTF-8"),
            ("PYTHONHASHSEED", "0"),
            ("USER", "nobody"),
        ]);
        command.env("PATH", std::env::var_os("PATH").unwrap_or("/usr/bin:/bin".into()));
        command.env("HOME", &dir.0).env("TMPDIR", &dir.0).current_dir(&dir.0);
        command.envs(self.env.iter().map(|(k, v)| (k, v)));
        command.stdin(Stdio::null()).stdout(create("stdout")).stderr(create("stderr"));

        let start = Instant::now();
        let mut child = command.spawn().expect("the jail starts");
        let watch = Watch::start(group.clone());
        let mut killer = self.kills.map(Killer::new);
        let deadline = start + self.hangs_after * crate::patience();
        let (status, hung) = wait(&mut child, &group, deadline, &mut killer);
        let elapsed = start.elapsed();
        // Processes whose parents were killed may have work to finish.
        let left_behind = if killer.is_some() { wait_for_the_rest(&group) } else { Vec::new() };
        let peaks = watch.finish();
        let oom_kills = group.oom_kills();
        // Ends what the program left behind, before its output is read.
        group.kill_members();

        let stderr = head(&fs::read(file("stderr")).unwrap_or_default());
        if let Some(refusal) = stderr.lines().find(|line| line.contains(LACKS_MOVE))
            && status.code() == Some(2)
        {
            return Err(refusal.to_string());
        }
        let stdout = fs::read(file("stdout")).unwrap_or_default();
        Ok(Outcome {
            status,
            hash: hex(&Sha256::digest(&stdout)),
            stdout: head(&stdout),
            stderr,
            oom_kills,
            peaks,
            stats: fs::read(&stats_file).ok().and_then(|b| serde_json::from_slice(&b).ok()),
            hung,
            elapsed,
            killed: killer.map_or(0, |killer| killer.done),
            left_behind,
            dir,
        })
    }
}

/// Waits for the job's first process; at `deadline` notes what everybody was doing and ends the
/// group.
fn wait(
    child: &mut Child,
    group: &Group,
    deadline: Instant,
    killer: &mut Option<Killer>,
) -> (ExitStatus, Option<String>) {
    let mut hung = None;
    loop {
        if let Some(status) = child.try_wait().expect("our child") {
            return (status, hung);
        }
        if hung.is_none() && Instant::now() > deadline {
            hung = Some(group.members().into_iter().map(describe).collect());
            group.kill_members();
            let _ = child.kill();
        }
        if let Some(killer) = killer {
            killer.turn(group, child.id());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until nobody is left, and says who is after a minute.
fn wait_for_the_rest(group: &Group) -> Vec<String> {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let members = group.members();
        if members.is_empty() || Instant::now() > end {
            return members.into_iter().map(describe).collect();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The state of every thread of a process, as /proc tells it.
fn describe(pid: u32) -> String {
    let read = |path: &Path, name: &str| fs::read_to_string(path.join(name)).unwrap_or_default();
    let process = PathBuf::from(format!("/proc/{pid}"));
    let mut text = format!("pid {pid}: {}\n", read(&process, "cmdline").replace('\0', " "));
    for task in fs::read_dir(process.join("task")).into_iter().flatten().flatten() {
        let task = task.path();
        let status = read(&task, "status");
        let state = status.lines().find(|l| l.starts_with("State:")).unwrap_or("State: gone");
        let masks = status.lines().filter(|l| l.starts_with("SigBlk:") || l.starts_with("SigPnd:"));
        text += &format!(
            "  {} {state} wchan {} syscall {} {}\n",
            task.file_name().unwrap_or_default().display(),
            read(&task, "wchan"),
            read(&task, "syscall").trim_end(),
            masks.collect::<Vec<_>>().join(" "),
        );
    }
    text
}

impl Outcome {
    /// A file that the program left in its directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.0.join(name)
    }

    /// Ended by itself with exit code 0, nobody killed, nothing hung.
    pub fn succeeded(&self) -> bool {
        self.status.success() && self.oom_kills == 0 && self.hung.is_none()
    }

    /// A number from `--stats`, wherever it lies in the document.
    pub fn stat(&self, key: &str) -> Option<u64> {
        fn find(value: &serde_json::Value, key: &str) -> Option<u64> {
            match value {
                serde_json::Value::Object(map) => {
                    let own = map.get(key).and_then(|v| v.as_u64());
                    own.or_else(|| map.values().find_map(|v| find(v, key)))
                }
                _ => None,
            }
        }
        find(self.stats.as_ref()?, key)
    }

    /// The mechanisms that were in use, as `--stats` names them.
    pub fn mechanisms(&self) -> Vec<&str> {
        let list = self.stats.as_ref().and_then(|s| s.get("mechanisms")?.as_array());
        list.into_iter().flatten().filter_map(|m| m.as_str()).collect()
    }

    /// Everything one wants to see when a case fails.
    pub fn report(&self) -> String {
        let mut text = format!(
            "exit {:?} signal {:?}, OOM kills {}, {:.1} s, peaks: process {} MiB, tree {} MiB, \
             group {} MiB\n",
            self.status.code(),
            self.status.signal(),
            self.oom_kills,
            self.elapsed.as_secs_f64(),
            self.peaks.process_bytes / MIB,
            self.peaks.tree_bytes / MIB,
            self.peaks.group_bytes / MIB,
        );
        for left in &self.left_behind {
            text += &format!("left behind: {left}");
        }
        if let Some(hung) = &self.hung {
            text += &format!("gave up waiting; the processes then:\n{hung}");
        }
        if let Some(stats) = &self.stats {
            text += &format!("stats: {stats}\n");
        }
        for (name, content) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            if !content.is_empty() {
                text += &format!("--- {name}\n{content}\n");
            }
        }
        text
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Enough of an output to understand it: the first and the last lines.
fn head(bytes: &[u8]) -> String {
    const SHOWN: usize = 6000;
    if bytes.len() <= 2 * SHOWN {
        return String::from_utf8_lossy(bytes).into_owned();
    }
    let (first, last) = (&bytes[..SHOWN], &bytes[bytes.len() - SHOWN..]);
    format!("{}\n[...]\n{}", String::from_utf8_lossy(first), String::from_utf8_lossy(last))
}
