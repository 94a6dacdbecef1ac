//! A memory cgroup of our own: a hard limit, no swap, gone when dropped.
//!
//! v1 and v2 differ in file names only; both are asked for the same five things: limit, members,
//! anonymous memory, OOM kills, end. The group lies at the top of the hierarchy, outside whatever
//! limits this test itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

const V1_ROOT: &str = "/sys/fs/cgroup/memory";
const V2_ROOTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
const PREFIX: &str = "uzswap-test-";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Version {
    V1,
    V2,
}

/// A memory group. Dropping it ends every process in it and removes it.
#[derive(Debug)]
pub struct Group {
    dir: PathBuf,
    version: Version,
}

impl Group {
    /// Makes a group that holds at most `limit_bytes` of memory and no swap; `None` is no limit.
    pub fn new(limit_bytes: Option<u64>) -> Result<Group, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (root, version) = hierarchy()?;
        sweep(root);
        let name =
            format!("{PREFIX}{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let group = Group { dir: Path::new(root).join(name), version };
        fs::create_dir(&group.dir).map_err(|e| format!("no cgroup can be made in {root}: {e}"))?;
        if let Some(limit) = limit_bytes {
            group.set_limit(limit)?;
        }
        Ok(group)
    }

    fn set_limit(&self, limit_bytes: u64) -> Result<(), String> {
        let limit = limit_bytes.to_string();
        match self.version {
            Version::V1 => {
                self.write("memory.limit_in_bytes", &limit)?;
                self.write("memory.swappiness", "0")?;
                // Absent without swap accounting; then swappiness 0 is what there is.
                if self.dir.join("memory.memsw.limit_in_bytes").exists() {
                    self.write("memory.memsw.limit_in_bytes", &limit)?;
                }
            }
            Version::V2 => {
                self.write("memory.max", &limit)?;
                if self.dir.join("memory.swap.max").exists() {
                    self.write("memory.swap.max", "0")?;
                }
            }
        }
        Ok(())
    }

    /// The file that a process writes its pid to, to join.
    pub fn procs_file(&self) -> PathBuf {
        self.dir.join("cgroup.procs")
    }

    /// The processes in the group now.
    pub fn members(&self) -> Vec<u32> {
        let text = fs::read_to_string(self.procs_file()).unwrap_or_default();
        text.lines().filter_map(|l| l.parse().ok()).collect()
    }

    /// How many processes the kernel killed here for want of memory.
    pub fn oom_kills(&self) -> u64 {
        match self.version {
            Version::V1 => self.field("memory.oom_control", "oom_kill"),
            Version::V2 => self.field("memory.events", "oom_kill"),
        }
        .expect("the kernel counts OOM kills")
    }

    /// Anonymous memory charged to the group now, in bytes; memory shared after a fork counts once.
    pub fn anonymous_bytes(&self) -> u64 {
        match self.version {
            Version::V1 => self.field("memory.stat", "total_rss"),
            Version::V2 => self.field("memory.stat", "anon"),
        }
        .unwrap_or(0)
    }

    fn field(&self, file: &str, key: &str) -> Option<u64> {
        let text = fs::read_to_string(self.dir.join(file)).ok()?;
        text.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
    }

    fn write(&self, file: &str, value: &str) -> Result<(), String> {
        fs::write(self.dir.join(file), value).map_err(|e| format!("{file} = {value}: {e}"))
    }

    /// Kills every member, again until there is none: a member may fork while we look.
    pub fn kill_members(&self) {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let members = self.members();
            if members.is_empty() || Instant::now() > end {
                return;
            }
            for pid in members {
                if let Some(pid) = Pid::from_raw(pid as i32) {
                    let _ = kill_process(pid, Signal::KILL);
                }
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill_members();
        // The last member may still be on its way out.
        for _ in 0..400 {
            match fs::remove_dir(&self.dir) {
                Ok(()) => return,
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => return,
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
        eprintln!("warning: {} could not be removed", self.dir.display());
    }
}

/// The hierarchy in which groups with a memory limit can be made, or why there is none.
fn hierarchy() -> Result<(&'static str, Version), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("not root: memory groups need root".into());
    }
    if Path::new(V1_ROOT).join("memory.limit_in_bytes").exists() {
        return Ok((V1_ROOT, Version::V1));
    }
    for root in V2_ROOTS {
        let controllers =
            fs::read_to_string(Path::new(root).join("cgroup.controllers")).unwrap_or_default();
        if controllers.split_whitespace().any(|c| c == "memory") {
            // Fails where processes live at the top, as in a container; creating the limit then
            // says so.
            let _ = fs::write(Path::new(root).join("cgroup.subtree_control"), "+memory");
            return Ok((root, Version::V2));
        }
    }
    Err("no memory controller, neither cgroup v1 nor v2".into())
}

/// Removes the groups of test runs that were killed before they could clean up.
fn sweep(root: &str) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(rest) = name.to_str().and_then(|n| n.strip_prefix(PREFIX)) else { continue };
        let pid = rest.split('-').next().unwrap_or("");
        if !pid.is_empty() && !Path::new("/proc").join(pid).exists() {
            let _ = fs::remove_dir(entry.path());
        }
    }
}
