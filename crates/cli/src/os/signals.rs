//! Signals to us: none interrupts us, each is taken when we ask for one.
//!
//! ```text
//!   take_signals ── all are blocked; what was before is kept for the program (InheritedSignals)
//!   wait_for_signal ── the next one     suffer ── what it does by default, after all
//! ```
//!
//! # Safety charter
//! That of `os.rs`. No handler of ours is ever installed: signals are blocked, and waited for.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr::{null, null_mut};
use std::time::Duration;

/// Signal state as uzswap was given it, for the program to inherit.
pub struct InheritedSignals {
    mask: libc::sigset_t,
    child_action: libc::sigaction,
}

impl InheritedSignals {
    /// Gives the process that state back, before it becomes the program.
    ///
    /// # Safety
    /// Without other threads, or between fork and exec: async-signal-safe.
    pub(super) unsafe fn restore(&self) {
        // SAFETY: the state that the kernel gave us.
        unsafe {
            libc::sigaction(libc::SIGCHLD, &self.child_action, null_mut());
            libc::sigprocmask(libc::SIG_SETMASK, &self.mask, null_mut());
        }
    }
}

/// Whether a signal is ignored, as nohup and a shell's `&` leave it for those that they start.
pub fn is_ignored(signal: c_int) -> bool {
    // SAFETY: asks only; the kernel fills the local.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, null(), &mut action);
        action.sa_sigaction == libc::SIG_IGN
    }
}

/// A signal that was sent to us.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    pub signal: c_int,
    /// `si_code`: who sent it.
    pub code: c_int,
    /// The value that came with it, when `code` is SI_QUEUE.
    pub(super) value: usize,
}

impl Received {
    #[cfg(test)]
    pub fn of(signal: c_int, code: c_int) -> Received {
        Received { signal, code, value: 0 }
    }

    /// The kernel sent it (for instance the terminal, on Ctrl-C), not a process.
    pub fn is_from_kernel(&self) -> bool {
        self.code == libc::SI_KERNEL
    }
}

/// The set of these signals. Async-signal-safe.
pub(super) fn set_of(signals: impl IntoIterator<Item = c_int>) -> libc::sigset_t {
    // SAFETY: sigemptyset initialises the local.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in signals {
            libc::sigaddset(&mut set, signal);
        }
        set
    }
}

/// The action by which the kernel does what a signal does by default.
fn default_action() -> libc::sigaction {
    // SAFETY: plain numbers, for which zeros are valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = libc::SIG_DFL;
    action
}

fn all_signals() -> libc::sigset_t {
    // SAFETY: sigfillset initialises the local.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigfillset(&mut set);
        set
    }
}

/// From now on no signal interrupts us: they wait for [`wait_for_signal`]. Returns what was before.
pub fn take_signals() -> InheritedSignals {
    // SAFETY: structures are locals; SIGCHLD gets the default action because inherited "ignore"
    // would have the kernel reap the program before we learn how it ended.
    unsafe {
        let mut inherited =
            InheritedSignals { mask: std::mem::zeroed(), child_action: std::mem::zeroed() };
        libc::sigprocmask(libc::SIG_SETMASK, &all_signals(), &mut inherited.mask);
        libc::sigaction(libc::SIGCHLD, &default_action(), &mut inherited.child_action);
        inherited
    }
}

/// Waits for the next signal.
pub fn wait_for_signal() -> Received {
    loop {
        // SAFETY: fills the local.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let signal = libc::sigwaitinfo(&all_signals(), &mut info);
            if signal > 0 {
                let value = info.si_value().sival_ptr as usize;
                return Received { signal, code: info.si_code, value };
            }
        }
    }
}

/// Forgets a signal that waits for us, if one does.
pub fn discard(signal: c_int) {
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: live locals; no information is asked for.
    unsafe { libc::sigtimedwait(&set_of([signal]), null_mut(), &now) };
}

/// Calls `write`, whose output perhaps nobody reads any more: SIGPIPE does not end us for that, and
/// is not left for [`wait_for_signal`], which would take it for one that a process has sent.
pub fn without_sigpipe<T>(write: impl FnOnce() -> T) -> T {
    // SAFETY: live locals. A signal that a write raises waits for the thread that wrote.
    unsafe {
        let only = set_of([libc::SIGPIPE]);
        let (mut before, mut waiting): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
        libc::sigpending(&mut waiting);
        libc::pthread_sigmask(libc::SIG_BLOCK, &only, &mut before);
        let result = write();
        // One that waited before is the program's.
        if libc::sigismember(&waiting, libc::SIGPIPE) == 0 {
            discard(libc::SIGPIPE);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, null_mut());
        result
    }
}

/// Waits for a signal that asks a process to end, for so long. One that we were started to ignore
/// (by nohup, or behind a shell's &) asks nobody. False: none has come.
pub fn is_asked_to_end_within(time: Duration) -> bool {
    let time = libc::timespec {
        tv_sec: time.as_secs() as libc::time_t,
        tv_nsec: time.subsec_nanos().into(),
    };
    let asking = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];
    let asking = set_of(asking.into_iter().filter(|signal| !is_ignored(*signal)));
    // SAFETY: live locals; no information is asked for.
    unsafe { libc::sigtimedwait(&asking, null_mut(), &time) > 0 }
}

/// Lets `signal` do to us what it does by default: stop, or end the process. Returns when we were
/// continued, or when the kernel ignored it (process 1 of a container; a stop in an orphaned
/// process group). From the moment we are continued until we run, the signal strikes us directly
/// again; that is the stop the shell wants.
pub fn suffer(signal: c_int) {
    // SAFETY: locals and plain calls.
    unsafe {
        libc::sigaction(signal, &default_action(), null_mut());
        let only = set_of([signal]);
        libc::raise(signal);
        let mut before: libc::sigset_t = std::mem::zeroed();
        // The signal ends the process once it is unblocked.
        libc::sigprocmask(libc::SIG_UNBLOCK, &only, &mut before);
        libc::sigprocmask(libc::SIG_SETMASK, &before, null_mut());
    }
}

/// The name of a signal: `SIGTERM`.
pub fn signal_name(signal: c_int) -> String {
    const NAMES: [&str; 32] = [
        "", "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV",
        "USR2", "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU",
        "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
    ];
    match NAMES.get(signal as usize) {
        Some(name) if signal > 0 => format!("SIG{name}"),
        _ => format!("SIG{signal}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn a_signal_that_asks_to_end_is_heard_once() {
        // The mask is the thread's own.
        let heard = std::thread::spawn(|| {
            take_signals();
            let asked = || is_asked_to_end_within(Duration::from_millis(1));
            let before = asked();
            // SAFETY: sent to this thread, which blocks both.
            unsafe {
                libc::raise(libc::SIGUSR1);
                libc::raise(libc::SIGTERM);
            }
            [before, asked(), asked()]
        });
        assert_eq!(heard.join().unwrap(), [false, true, false]);
    }

    #[test]
    fn a_write_that_nobody_reads_leaves_no_signal() {
        // The mask is the thread's own.
        let waits = std::thread::spawn(|| {
            take_signals();
            let (reader, mut writer) = io::pipe().unwrap();
            drop(reader);
            let write = || io::Write::write(&mut writer, b"x").unwrap_err().kind();
            assert_eq!(without_sigpipe(write), io::ErrorKind::BrokenPipe);
            // SAFETY: asks; the kernel fills the local.
            unsafe {
                let mut waiting: libc::sigset_t = std::mem::zeroed();
                libc::sigpending(&mut waiting);
                libc::sigismember(&waiting, libc::SIGPIPE)
            }
        });
        assert_eq!(waits.join().unwrap(), 0);
    }

    #[test]
    fn names_of_signals() {
        assert_eq!(signal_name(libc::SIGTERM), "SIGTERM");
        assert_eq!(signal_name(libc::SIGKILL), "SIGKILL");
        assert_eq!(signal_name(libc::SIGSYS), "SIGSYS");
        assert_eq!(signal_name(40), "SIG40");
    }
}
