//! The parts of the system that the tests need beyond the standard library: a terminal, signals, a
//! seccomp filter.
//!
//! # Safety charter
//! Code in `pre_exec` runs in a fork of a process with threads and makes system calls only. Other
//! calls take plain numbers or pointers to live locals.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use super::PATIENCE;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

pub fn kill(pid: u32, signal: i32) {
    // SAFETY: plain numbers.
    check(unsafe { libc::kill(pid as i32, signal) }).unwrap();
}

/// Sends a signal to all processes of a group.
pub fn kill_group(group: u32, signal: i32) {
    // SAFETY: plain numbers.
    check(unsafe { libc::killpg(group as i32, signal) }).unwrap();
}

/// Sends a signal with a value, as sigqueue(3) does.
pub fn queue(pid: u32, signal: i32, value: usize) {
    let value = libc::sigval { sival_ptr: value as *mut libc::c_void };
    // SAFETY: plain numbers.
    check(unsafe { libc::sigqueue(pid as i32, signal, value) }).unwrap();
}

pub fn is_root() -> bool {
    // SAFETY: plain call.
    unsafe { libc::geteuid() == 0 }
}

/// The process will find these signals ignored, as after nohup.
pub fn with_ignored<'a>(command: &'a mut Command, signals: &[i32]) -> &'a mut Command {
    let signals = signals.to_vec();
    // SAFETY: system calls only.
    unsafe {
        command.pre_exec(move || {
            signals.iter().for_each(|signal| {
                libc::signal(*signal, libc::SIG_IGN);
            });
            Ok(())
        })
    }
}

static CAUGHT: AtomicU32 = AtomicU32::new(0);

/// From now on `signal` is counted, and each time "got=N" is written to stdout.
pub fn count_signal(signal: i32) {
    extern "C" fn caught(_: libc::c_int) {
        let count = CAUGHT.fetch_add(1, Ordering::Relaxed) + 1;
        let text =
            [b'g', b'o', b't', b'=', b'0' + (count / 10) as u8, b'0' + (count % 10) as u8, b'\n'];
        // SAFETY: writes a live local; write is async-signal-safe.
        unsafe { libc::write(1, text.as_ptr().cast(), text.len()) };
    }
    // SAFETY: the handler makes one system call.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = caught as extern "C" fn(libc::c_int) as usize;
        action.sa_flags = libc::SA_RESTART;
        check(libc::sigaction(signal, &action, null_mut())).unwrap();
    }
}

/// How often the counted signal has come.
pub fn signals_counted() -> u32 {
    CAUGHT.load(Ordering::Relaxed)
}

/// The process will be sent SIGALRM after a second; timers survive an exec.
pub fn with_alarm(command: &mut Command) -> &mut Command {
    // SAFETY: one system call.
    unsafe {
        command.pre_exec(|| {
            libc::alarm(1);
            Ok(())
        })
    }
}

/// A soft limit of the process.
pub fn with_limit(command: &mut Command, resource: u32, value: u64) -> &mut Command {
    let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
    // SAFETY: one system call that reads a local.
    unsafe { command.pre_exec(move || check(libc::setrlimit(resource, &limit)).map(drop)) }
}

/// The process becomes `words` in this environment, whatever the command is: its entries need be no
/// variables.
pub fn instead(
    command: &mut Command,
    words: impl IntoIterator<Item = CString>,
    entries: impl IntoIterator<Item = CString>,
) {
    let strings: [Vec<CString>; 2] = [words.into_iter().collect(), entries.into_iter().collect()];
    // As numbers, which may go to another process. The strings stay where they are.
    let addresses = strings.each_ref().map(|strings| -> Vec<usize> {
        strings.iter().map(|s| s.as_ptr().expose_provenance()).chain([0]).collect()
    });
    // SAFETY: one system call, on live strings and on arrays of their addresses that end with zero.
    unsafe {
        command.pre_exec(move || {
            let [argv, envp] = addresses.each_ref().map(|a| a.as_ptr().cast());
            libc::execve(strings[0][0].as_ptr(), argv, envp);
            Err(io::Error::last_os_error())
        });
    }
}

/// userfaultfd fails with EPERM, as under the seccomp profile that containers have by default.
pub fn without_userfaultfd(command: &mut Command) -> &mut Command {
    const LOAD: u16 = 0x20; // ld [k]
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const ALLOW: u32 = 0x7fff_0000;
    const ERRNO: u32 = 0x0005_0000;
    let rule = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let rules = [
        rule(LOAD, 0, 0, 0), // the system call's number
        rule(JUMP_IF_EQUAL, 0, 1, libc::SYS_userfaultfd as u32),
        rule(RETURN, 0, 0, ERRNO | libc::EPERM as u32),
        rule(RETURN, 0, 0, ALLOW),
    ];
    // SAFETY: two system calls; the program points to the closure's own rules.
    unsafe {
        command.pre_exec(move || {
            let mut rules = rules;
            let program = libc::sock_fprog { len: rules.len() as u16, filter: rules.as_mut_ptr() };
            check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
            check(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program))?;
            Ok(())
        })
    }
}

/// A pseudo-terminal with a process that leads its session.
pub struct Terminal {
    keyboard: Option<File>,
    child: Child,
    /// Output not yet matched.
    seen: String,
}

impl Terminal {
    pub fn start(command: &mut Command) -> Terminal {
        let (mut master, mut slave) = (0, 0);
        // SAFETY: fills the locals; the descriptors are new and become owned.
        let (master, slave) = unsafe {
            check(libc::openpty(&mut master, &mut slave, null_mut(), null_mut(), null_mut()))
                .unwrap();
            libc::fcntl(master, libc::F_SETFD, libc::FD_CLOEXEC);
            libc::fcntl(slave, libc::F_SETFD, libc::FD_CLOEXEC);
            (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave))
        };
        command
            .stdin(Stdio::from(slave.try_clone().unwrap()))
            .stdout(Stdio::from(slave.try_clone().unwrap()))
            .stderr(Stdio::from(slave));
        // SAFETY: system calls only.
        unsafe {
            command.pre_exec(|| {
                check(libc::setsid())?;
                check(libc::ioctl(0, libc::TIOCSCTTY, 0)).map(drop)
            });
        }
        let child = command.spawn().unwrap();
        // The command holds copies of the terminal's other side: with them open, a hang-up is never
        // seen.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Terminal { keyboard: Some(master), child, seen: String::new() }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn press(&mut self, keys: &str) {
        self.keyboard.as_mut().unwrap().write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the output holds `text`; returns everything up to its end.
    #[track_caller]
    pub fn expect(&mut self, text: &str) -> String {
        let started = Instant::now();
        let screen = self.keyboard.as_mut().unwrap();
        loop {
            if let Some(at) = self.seen.find(text) {
                let rest = self.seen.split_off(at + text.len());
                return std::mem::replace(&mut self.seen, rest);
            }
            assert!(started.elapsed() < PATIENCE, "no '{text}' in:\n{}", self.seen);
            let mut poll =
                libc::pollfd { fd: screen.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: a live local.
            if unsafe { libc::poll(&mut poll, 1, 100) } > 0 {
                let mut bytes = [0; 4096];
                // EIO: the last process has closed the other side.
                match screen.read(&mut bytes) {
                    Ok(n) => self.seen += &String::from_utf8_lossy(&bytes[..n]),
                    Err(e) => {
                        panic!("the terminal is closed ({e}), and no '{text}' in:\n{}", self.seen)
                    }
                }
            }
        }
    }

    pub fn resize(&self, rows: u16, columns: u16) {
        let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let fd = self.keyboard.as_ref().unwrap().as_raw_fd();
        // SAFETY: reads a live local.
        check(unsafe { libc::ioctl(fd, libc::TIOCSWINSZ, &size) }).unwrap();
    }

    /// Whether the terminal collects lines and echoes, as a shell expects it.
    pub fn is_in_order(&self) -> bool {
        let fd = self.keyboard.as_ref().unwrap().as_raw_fd();
        // SAFETY: fills the local.
        let settings = unsafe {
            let mut settings: libc::termios = std::mem::zeroed();
            check(libc::tcgetattr(fd, &mut settings)).unwrap();
            settings
        };
        settings.c_lflag & (libc::ICANON | libc::ECHO) == libc::ICANON | libc::ECHO
    }

    /// Hangs the terminal up.
    pub fn hang_up(&mut self) {
        self.keyboard = None;
    }

    pub fn wait(&mut self) -> ExitStatus {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(started.elapsed() < PATIENCE, "the program does not end:\n{}", self.seen);
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
