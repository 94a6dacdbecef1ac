//! The program as our child: it is started, its changes are seen, signals are sent to it.
//!
//! Signals to us (`signals.rs`) know of no program; so what is passed on to it stands here.
//!
//! # Safety charter
//! That of `os.rs`. Between fork and exec the child uses memory that was made before the fork.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int, c_void};
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::{null, null_mut};

use super::check;
use super::signals::{InheritedSignals, Received};

/// A process that we started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pid(pub(super) c_int);

impl Pid {
    pub fn number(self) -> i32 {
        self.0
    }
}

/// A program, as `execve` wants it.
pub struct Executable {
    path: CString,
    arguments: Vec<CString>,
    environment: Vec<CString>,
}

impl Executable {
    pub fn new(path: CString, arguments: Vec<CString>, environment: Vec<CString>) -> Executable {
        Executable { path, arguments, environment }
    }

    /// Becomes the program. Returns why it could not.
    pub fn exec(&self) -> io::Error {
        let (argv, envp) = (pointers(&self.arguments), pointers(&self.environment));
        // SAFETY: live strings, and arrays of them that end with a null pointer.
        unsafe { libc::execve(self.path.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
        io::Error::last_os_error()
    }
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|s| s.as_ptr()).chain([null()]).collect()
}

/// Starts a program in our own process group, with our descriptors, and with the signal state that
/// we inherited. It dies with us if we are killed, as it would if it had been killed itself.
pub fn start(program: &Executable, inherited: &InheritedSignals) -> io::Result<Pid> {
    let (argv, envp) = (pointers(&program.arguments), pointers(&program.environment));
    let (from_child, to_parent) = io::pipe()?;
    // SAFETY: the child calls async-signal-safe functions only, on memory made before the fork, and
    // leaves by exec or _exit.
    let pid = unsafe {
        let parent = libc::getpid();
        let pid = check(libc::fork())?;
        if pid == 0 {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            if libc::getppid() != parent {
                libc::_exit(0); // uzswap died before the line above
            }
            inherited.restore();
            libc::execve(program.path.as_ptr(), argv.as_ptr(), envp.as_ptr());
            let errno = *libc::__errno_location();
            libc::write(to_parent.as_raw_fd(), (&raw const errno).cast(), size_of::<c_int>());
            libc::_exit(127);
        }
        pid
    };
    drop(to_parent);
    let mut errno: c_int = 0;
    // SAFETY: reads at most the size of the local; end of file means that the exec worked.
    let read =
        unsafe { libc::read(from_child.as_raw_fd(), (&raw mut errno).cast(), size_of::<c_int>()) };
    if read == size_of::<c_int>() as isize {
        // SAFETY: our own child, which is ending.
        unsafe { libc::waitpid(pid, null_mut(), 0) };
        return Err(io::Error::from_raw_os_error(errno));
    }
    Ok(Pid(pid))
}

/// A change of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Exited(c_int),
    Killed(c_int),
    Stopped(c_int),
    Continued,
}

/// The next change of any child, if there is one now. Any: as process 1 of a container we inherit
/// orphans.
pub fn next_change() -> Option<(Pid, Change)> {
    let mut status = 0;
    // SAFETY: fills the local.
    let pid = unsafe {
        libc::waitpid(-1, &mut status, libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED)
    };
    if pid <= 0 {
        return None;
    }
    let change = if libc::WIFEXITED(status) {
        Change::Exited(libc::WEXITSTATUS(status))
    } else if libc::WIFSIGNALED(status) {
        Change::Killed(libc::WTERMSIG(status))
    } else if libc::WIFSTOPPED(status) {
        Change::Stopped(libc::WSTOPSIG(status))
    } else {
        Change::Continued
    };
    Some((Pid(pid), change))
}

/// Whether [`next_change`] has something to tell about the program. An error counts: it is gone.
pub fn has_news(program: Pid) -> bool {
    let news = libc::WEXITED | libc::WSTOPPED | libc::WCONTINUED;
    // SAFETY: fills the local; without news the kernel leaves its process number zero.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let flags = news | libc::WNOHANG | libc::WNOWAIT;
        libc::waitid(libc::P_PID, program.0 as libc::id_t, &mut info, flags) != 0
            || info.si_pid() != 0
    }
}

/// Sends a signal on to the program, with its value if it had one.
pub fn forward(pid: Pid, received: Received) {
    // SAFETY: no pointers are followed; the value is the sender's.
    unsafe {
        if received.code == libc::SI_QUEUE {
            let value = libc::sigval { sival_ptr: received.value as *mut c_void };
            libc::sigqueue(pid.0, received.signal, value);
        } else {
            libc::kill(pid.0, received.signal);
        }
    }
}

/// Sends a signal to the program.
pub fn send(pid: Pid, signal: c_int) {
    // SAFETY: plain numbers.
    unsafe { libc::kill(pid.0, signal) };
}
