//! The waker: a small copy of us that looks at the program while we are stopped.
//!
//! A process that is stopped cannot see that its child goes on or has died, so another one has to
//! look. Like the witness it is a process of its own, and gone when dropped.
//!
//! # Safety charter
//! That of `os.rs`. The copy uses memory that was made before the fork, and exits.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};
use std::io;
use std::ptr::null_mut;

use super::program::Pid;
use super::{c_string, check};

/// A helper that ends our stop when the program's stop ends; gone when dropped.
pub struct Waker(c_int);

impl Waker {
    /// While we are stopped nobody can tell us that the program goes on (it was continued directly)
    /// or has died. A small copy of us looks at its state and continues us then, so that a program
    /// that is stopped and continued from outside never leaves us stopped for good. It goes on with
    /// that until it is dropped: the program may run again before we have stopped, and then the
    /// first signal comes too early.
    pub fn start(program: Pid) -> io::Result<Waker> {
        let stat = c_string(format!("/proc/{}/stat", program.0).as_bytes())?;
        // SAFETY: the child makes async-signal-safe calls on memory made before, and exits.
        unsafe {
            let parent = libc::getpid();
            let pid = check(libc::fork())?;
            if pid == 0 {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                // Only if our parent still is the uzswap that forked us.
                while libc::getppid() == parent {
                    if !is_stopped(&stat) {
                        libc::kill(parent, libc::SIGCONT);
                    }
                    let pause = libc::timespec { tv_sec: 0, tv_nsec: 20_000_000 };
                    libc::nanosleep(&pause, null_mut());
                }
                libc::_exit(0);
            }
            Ok(Waker(pid))
        }
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        // SAFETY: our own child, not yet reaped: nobody else waits for it while we are here.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, null_mut(), 0);
        }
    }
}

/// Whether the third field of a /proc/PID/stat says stopped. Without allocation.
fn is_stopped(stat: &CStr) -> bool {
    let mut text = [0u8; 512];
    // SAFETY: reads at most the size of the local.
    let len = unsafe {
        let fd = libc::open(stat.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        let len = libc::read(fd, text.as_mut_ptr().cast(), text.len());
        libc::close(fd);
        len
    };
    let Some(text) = text.get(..len.max(0) as usize) else { return false };
    // The second field is the name in parentheses and may contain anything.
    match text.iter().rposition(|b| *b == b')') {
        Some(end) => matches!(text.get(end + 2), Some(b'T' | b't')),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::signals::{set_of, take_signals};

    /// As where a program is continued before uzswap, which is to stop with it, has stopped.
    #[test]
    fn a_waker_wakes_again_and_again_until_it_is_dropped() {
        let once = libc::timespec { tv_sec: 30, tv_nsec: 0 };
        // SAFETY: the copy has one thread, calls what works in a copy, and leaves by _exit.
        let status = unsafe {
            let awake = Pid(libc::getpid());
            let copy = libc::fork();
            if copy == 0 {
                take_signals();
                let Ok(waker) = Waker::start(awake) else { libc::_exit(2) };
                let only = set_of([libc::SIGCONT]);
                let woken = || libc::sigtimedwait(&only, null_mut(), &once) == libc::SIGCONT;
                let is_woken_again = woken() && woken();
                drop(waker);
                libc::_exit(!is_woken_again as c_int);
            }
            let mut status = 0;
            libc::waitpid(copy, &mut status, 0);
            status
        };
        assert_eq!(status, 0);
    }
}
