//! Programs that are measured: a *tree* is a process with all that it starts, in a process group of
//! their own, and is ended whole. For a single process see `uzswap_cli::process`.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command};
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use uzswap_cli::os;
use uzswap_cli::process::verdict;
pub use uzswap_cli::process::{Interrupt, Running, children_seconds, one_line};
use uzswap_cli::procfs::kib_of;
use uzswap_cli::program::reason;

/// A process and all that it starts, as far as they stay in its process group. All of them are
/// ended when it goes out of scope.
pub struct Tree(Child);

impl Tree {
    pub fn start(command: &mut Command) -> Result<Tree, String> {
        match command.process_group(0).spawn() {
            Ok(child) => Ok(Tree(child)),
            Err(e) => Err(format!("{}: {}", command.get_program().display(), reason(&e))),
        }
    }

    /// Its first process.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Its output, if that was piped.
    pub fn stdout(&mut self) -> Option<ChildStdout> {
        self.0.stdout.take()
    }

    /// How the first process ended, or `None` while it has not.
    pub fn end(&mut self) -> Option<Result<(), String>> {
        self.0
            .try_wait()
            .map_err(|e| reason(&e))
            .map_or_else(|e| Some(Err(e)), |end| end.map(verdict))
    }

    /// Private anonymous memory of all its processes that is resident now.
    pub fn anonymous_bytes(&self) -> u64 {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let own = pids.filter(|pid| group_of(*pid) == Some(self.0.id()));
        own.map(|pid| kib_of(&format!("/proc/{pid}/status"), "RssAnon:") * 1024).sum()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // If the first process was reaped and nobody else is left, there is no such group, and no
        // other can have its number yet: numbers are given out in order.
        let _ = killpg(Pid::from_raw(self.0.id() as i32), Signal::SIGKILL);
        let _ = self.0.wait();
    }
}

/// The process group of a process, if it is there.
fn group_of(pid: u32) -> Option<u32> {
    os::stat_of(pid)?.get(2)?.parse().ok()
}

/// How long a run may take whose free run takes `free`.
pub fn patience(free: Duration) -> Duration {
    (free * 20).max(Duration::from_secs(30))
}

/// Page faults, of all processes that we have waited for and theirs, that waited for a disk or came
/// from swap.
pub fn children_major_faults() -> u64 {
    getrusage(UsageWho::RUSAGE_CHILDREN).map_or(0, |usage| usage.major_page_faults().max(0) as u64)
}

/// The program's real file: the system's own before the search path, which may lead to a script
/// that starts it.
pub fn find(program: &str) -> Result<PathBuf, String> {
    all_named(program).into_iter().next().ok_or(format!("{program} is not installed"))
}

/// All files of that name, the system's own before those on the search path.
pub fn all_named(program: &str) -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories =
        ["/usr/bin".into(), "/bin".into()].into_iter().chain(std::env::split_paths(&path));
    let files = directories.map(|directory: PathBuf| directory.join(program));
    files.filter(|file| file.is_file()).collect()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;
    use std::thread;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_tree_is_ended_with_all_its_processes() {
        let mut script = Command::new("sh");
        script.args(["-c", "sleep 1000 & echo $!; wait"]);
        let mut tree = Tree::start(script.stdout(Stdio::piped())).unwrap();
        let mut line = String::new();
        BufReader::new(tree.stdout().unwrap()).read_line(&mut line).unwrap();
        let sleeper: u32 = line.trim().parse().unwrap();
        assert_eq!(group_of(sleeper), Some(tree.0.id()));
        assert_ne!(group_of(std::process::id()), Some(tree.0.id()));
        assert!(tree.anonymous_bytes() > 4096);
        assert_eq!(tree.end(), None);
        drop(tree);
        // The process that adopted it reaps it, sooner or later.
        let state =
            || fs::read_to_string(format!("/proc/{sleeper}/stat")).unwrap_or(") Z ".to_string());
        let started = Instant::now();
        while !state().contains(") Z ") {
            assert!(started.elapsed().as_secs() < 100, "still there: {}", state());
            thread::sleep(Duration::from_millis(5));
        }
    }
}
