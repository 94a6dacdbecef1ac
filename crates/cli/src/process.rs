//! Processes that are started, listened to, and never left behind: a *running* one is ended
//! politely, since `uzswap run` hands the signal on.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Failure;
use crate::program::reason;

/// Ctrl-C and its like, as a flag: what was switched on is put back before we end.
#[derive(Clone, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    pub fn install() -> Interrupt {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            // `register` fails only for signals that cannot be caught.
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

    /// Its input and output, if both were piped.
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
            let signal = if patience.elapsed() < Duration::from_secs(5) {
                Signal::SIGTERM
            } else {
                Signal::SIGKILL
            };
            let _ = kill(Pid::from_raw(self.pid() as i32), signal);
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A good end, or the words for another one.
pub fn verdict(status: ExitStatus) -> Result<(), String> {
    match (status.success(), status.signal()) {
        (true, _) => Ok(()),
        (_, Some(libc::SIGKILL)) => Err("killed".to_string()),
        _ => Err(format!("ended with {status}")),
    }
}

/// Processor time of all processes that we have waited for, and theirs.
pub fn children_seconds() -> f64 {
    let of = |t: nix::sys::time::TimeVal| t.tv_sec() as f64 + t.tv_usec() as f64 / 1e6;
    getrusage(UsageWho::RUSAGE_CHILDREN).map_or(0.0, |u| of(u.user_time()) + of(u.system_time()))
}

/// Runs a command that prints one line and then waits for one; `look` is called in between. Returns
/// the line, or why there is none.
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
    let listen = move || {
        let mut line = String::new();
        let result = stdout.read_line(&mut line);
        let _ = sender.send(result.map(|_| line));
    };
    let reader = match thread::Builder::new().spawn(listen) {
        Ok(reader) => reader,
        Err(e) => return Ok(Err(format!("cannot make a thread: {}", reason(&e)))),
    };
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
    Ok(end.and_then(
        |()| if line.ends_with('\n') { Ok(line) } else { Err("said nothing".to_string()) },
    ))
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
    fn an_interrupt_ends_the_process() {
        let interrupt = Interrupt(Arc::new(AtomicBool::new(true)));
        let started = Instant::now();
        let failure = one_line(&mut shell("exec sleep 1000"), &interrupt, || ()).unwrap_err();
        assert_eq!(failure.exit_code, 130);
        assert!(started.elapsed() < Duration::from_secs(500), "waited for the process");
    }
}
