//! The program as our child: it is started, its changes are seen, signals are sent to it.
//!
//! Signals to us (`signals.rs`) know of no program; so what is passed on to it stands here.
//!
//! # Safety charter
//! That of `os.rs`. Until its exec the child uses memory that was made before it, and that is ours.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int, c_void};
use std::io;
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

/// A start, as the new process sees it: in our memory, while we wait.
struct Start<'a> {
    path: *const c_char,
    argv: *const *const c_char,
    envp: *const *const c_char,
    inherited: &'a InheritedSignals,
    parent: c_int,
    /// The reason why there is no program; 0: there is one.
    errno: c_int,
}

/// Bytes of the stack on which a new process comes to its exec: it calls five functions of libc,
/// none of which has more than some hundred bytes of locals.
const STACK_BYTES: usize = 64 << 10;

/// Starts a program in our own process group, with our descriptors, and with the signal state that
/// we inherited. It dies with us if we are killed, as it would if it had been killed itself.
///
/// The new process shares our memory until its exec, and we wait for that: to copy our page tables,
/// and each page that we write to next, takes a sixteenth of the time of a short run.
pub fn start(program: &Executable, inherited: &InheritedSignals) -> io::Result<Pid> {
    let (argv, envp) = (pointers(&program.arguments), pointers(&program.environment));
    let mut start = Start {
        path: program.path.as_ptr(),
        argv: argv.as_ptr(),
        envp: envp.as_ptr(),
        inherited,
        // SAFETY: touches no memory.
        parent: unsafe { libc::getpid() },
        errno: 0,
    };
    let mut stack = vec![0u128; STACK_BYTES / size_of::<u128>()];
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: `become_program` does what a process may that shares the memory of a waiting one. The
    // stack and `start` live until it has left, and are its alone until then.
    let pid = check(unsafe {
        let top = stack.as_mut_ptr_range().end.cast();
        libc::clone(become_program, top, flags, (&raw mut start).cast())
    })?;
    if start.errno != 0 {
        // SAFETY: our own child, which has ended.
        unsafe { libc::waitpid(pid, null_mut(), 0) };
        return Err(io::Error::from_raw_os_error(start.errno));
    }
    Ok(Pid(pid))
}

/// The new process. It makes async-signal-safe calls on memory made before, and leaves by exec or
/// _exit. No handler runs in it: all signals are blocked until `restore`, and we have no handlers.
extern "C" fn become_program(start: *mut c_void) -> c_int {
    // SAFETY: see `start`, which waits.
    unsafe {
        let start = &mut *start.cast::<Start>();
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() != start.parent {
            libc::_exit(0); // uzswap died before the line above
        }
        start.inherited.restore();
        libc::execve(start.path, start.argv, start.envp);
        start.errno = *libc::__errno_location();
        libc::_exit(127)
    }
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
