//! Processes that are measured: started, listened to, and never left behind.
//!
//! *Running* is one process, ended politely, since `uzswap run` hands the signal on. A *tree* is a process with all that
//! it starts, in a process group of their own: what is a program in several processes, or does not end, is ended whole.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use super::peers::kib_of;
use crate::program::reason;
use crate::{Failure, os};

/// Ctrl-C and its like, as a flag: what was switched on is put back before we end.
#[derive(Clone, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    pub fn install() -> Interrupt {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            // Fails for signals that cannot be caught only.
            let _ = signal_hook::flag::register(signal, Arc::clone(&flag));
        }
        Interrupt(flag)
    }

    pub fn check(&self) -> Result<(), Failure> {
        match self.0.load(Ordering::Relaxed) {
            true => Err(Failure { message: "interrupted".to_string(), exit_code: 130 }),
            false => Ok(()),
        }
    }
}

/// A child that is ended when it goes out of scope.
pub struct Running(Child);

impl Running {
    pub fn start(command: &mut Command) -> Result<Running, String> {
        match command.spawn() {
            Ok(child) => Ok(Running(child)),
            Err(e) => Err(format!("{}: {}", command.get_program().display(), reason(&e))),
        }
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// What it reads and what it writes, if both were piped.
    pub fn pipes(&mut self) -> (ChildStdin, BufReader<ChildStdout>) {
        let child = &mut self.0;
        (child.stdin.take().expect("piped"), BufReader::new(child.stdout.take().expect("piped")))
    }

    /// Waits for the end; an error unless it was a good one.
    pub fn wait(mut self) -> Result<(), String> {
        self.0.wait().map_err(|e| reason(&e)).and_then(verdict)
    }

    /// Whether it is still there.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let patience = Instant::now();
        while self.is_alive() {
            // `uzswap run` hands SIGTERM on to its program; SIGKILL would leave the program alone.
            let signal =
                if patience.elapsed() < Duration::from_secs(5) { Signal::SIGTERM } else { Signal::SIGKILL };
            let _ = kill(Pid::from_raw(self.pid() as i32), signal);
            thread::sleep(Duration::from_millis(20));
        }
    }
}

fn verdict(status: ExitStatus) -> Result<(), String> {
    match (status.success(), status.signal()) {
        (true, _) => Ok(()),
        (_, Some(libc::SIGKILL)) => Err("killed".to_string()),
        _ => Err(format!("ended with {status}")),
    }
}

/// A process and all that it starts, as far as they stay in its process group. All of them are ended when it goes
/// out of scope.
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

    /// What it writes, if that was piped.
    pub fn stdout(&mut self) -> Option<ChildStdout> {
        self.0.stdout.take()
    }

    /// How the first process ended, or `None` while it has not.
    pub fn end(&mut self) -> Option<Result<(), String>> {
        self.0.try_wait().map_err(|e| reason(&e)).map_or_else(|e| Some(Err(e)), |end| end.map(verdict))
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
        // If the first process was reaped and nobody else is left, there is no such group, and no other can have its
        // number yet: numbers are given out in order.
        let _ = killpg(Pid::from_raw(self.0.id() as i32), Signal::SIGKILL);
        let _ = self.0.wait();
    }
}

/// The process group of a process, if it is there.
fn group_of(pid: u32) -> Option<u32> {
    os::stat_of(pid)?.get(2)?.parse().ok()
}

/// How long a run may take that takes so long when it is free.
pub fn patience(free: Duration) -> Duration {
    (free * 20).max(Duration::from_secs(30))
}

/// Processor time of all processes that we have waited for, and theirs.
pub fn children_seconds() -> f64 {
    let of = |t: nix::sys::time::TimeVal| t.tv_sec() as f64 + t.tv_usec() as f64 / 1e6;
    getrusage(UsageWho::RUSAGE_CHILDREN).map_or(0.0, |u| of(u.user_time()) + of(u.system_time()))
}

/// Page faults, of all processes that we have waited for and theirs, that waited for a disk or came from swap.
pub fn children_major_faults() -> u64 {
    getrusage(UsageWho::RUSAGE_CHILDREN).map_or(0, |usage| usage.major_page_faults().max(0) as u64)
}

/// The program's real file: the system's own before the search path, which may lead to a script that starts it.
pub fn find(program: &str) -> Result<PathBuf, String> {
    all_named(program).into_iter().next().ok_or(format!("{program} is not installed"))
}

/// All files of that name, the system's own before those on the search path.
pub fn all_named(program: &str) -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = ["/usr/bin".into(), "/bin".into()].into_iter().chain(std::env::split_paths(&path));
    let files = directories.map(|directory: PathBuf| directory.join(program));
    files.filter(|file| file.is_file()).collect()
}

/// Runs a command that prints one line and then waits for one; `look` is called in between. Returns the line, or
/// why there is none.
pub fn one_line(
    command: &mut Command,
    interrupt: &Interrupt,
    mut look: impl FnMut(),
) -> Result<Result<String, String>, Failure> {
    let mut child = match Running::start(command.stdin(Stdio::piped()).stdout(Stdio::piped())) {
        Ok(child) => child,
        Err(why) => return Ok(Err(why)),
    };
    let (mut stdin, mut stdout) = child.pipes();
    let (sender, lines) = mpsc::channel();
    let reader = thread::spawn(move || {
        let mut line = String::new();
        let result = stdout.read_line(&mut line);
        let _ = sender.send(result.map(|_| line));
    });
    let line = loop {
        match lines.recv_timeout(Duration::from_millis(50)) {
            Ok(line) => break line.unwrap_or_default(),
            Err(RecvTimeoutError::Timeout) => interrupt.check()?,
            Err(RecvTimeoutError::Disconnected) => break String::new(),
        }
    };
    interrupt.check()?;
    if line.ends_with('\n') {
        look();
        let _ = stdin.write_all(b"\n");
    }
    drop(stdin);
    let end = child.wait();
    let _ = reader.join();
    interrupt.check()?;
    Ok(end.and_then(|()| if line.ends_with('\n') { Ok(line) } else { Err("said nothing".to_string()) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_line_is_heard_while_its_process_still_waits() {
        let interrupt = Interrupt(Arc::new(AtomicBool::new(false)));
        let looks = std::cell::Cell::new(0);
        let look = || looks.set(looks.get() + 1);
        let say = |script: &str| one_line(&mut shell(script), &interrupt, look).unwrap();
        assert_eq!(say("echo hello; read line"), Ok("hello\n".to_string()));
        assert_eq!(looks.get(), 1);
        assert_eq!(say("exit 3").unwrap_err(), "ended with exit status: 3");
        assert_eq!(say("echo hello; read line; exit 4").unwrap_err(), "ended with exit status: 4");
        assert_eq!(say(":").unwrap_err(), "said nothing");
        assert_eq!(say("kill -9 $$").unwrap_err(), "killed");
        assert!(say("kill -15 $$").unwrap_err().contains("signal: 15"));
        assert_eq!(looks.get(), 2);
    }

    #[test]
    fn a_tree_is_ended_with_all_its_processes() {
        let mut script = shell("sleep 1000 & echo $!; wait");
        let mut tree = Tree::start(script.stdout(Stdio::piped())).unwrap();
        let mut line = String::new();
        BufReader::new(tree.stdout().unwrap()).read_line(&mut line).unwrap();
        let sleeper: u32 = line.trim().parse().unwrap();
        assert_eq!(group_of(sleeper), Some(tree.0.id()));
        assert_ne!(group_of(std::process::id()), Some(tree.0.id()));
        assert!(tree.anonymous_bytes() > 4096);
        assert_eq!(tree.end(), None);
        drop(tree);
        // Whoever adopted it reaps it, sooner or later.
        let state = || fs::read_to_string(format!("/proc/{sleeper}/stat")).unwrap_or(") Z ".to_string());
        let started = Instant::now();
        while !state().contains(") Z ") {
            assert!(started.elapsed().as_secs() < 100, "still there: {}", state());
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn an_interrupt_ends_the_process() {
        let interrupt = Interrupt(Arc::new(AtomicBool::new(true)));
        let started = Instant::now();
        let failure = one_line(&mut shell("exec sleep 1000"), &interrupt, || ()).unwrap_err();
        assert_eq!(failure.exit_code, 130);
        assert!(started.elapsed() < Duration::from_secs(500), "waited for the process");
    }
}
