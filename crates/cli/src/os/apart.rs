//! `--in-place`: this process becomes the program, and a copy of it, nobody's child, goes on beside
//! it.
//!
//! ```text
//!   P: uzswap ── fork ──> C ── fork ──> S: own session, no terminal, no descriptor that P was given
//!      │ waits for C       └ ends        │ reads the pipe: is P the program now?
//!      └ exec ──> P: the program         └ waits for P's end, by a descriptor of that process
//! ```
//!
//! S's parent is the process that takes orphans: process 1, or a subreaper. If P is process 1
//! itself, it gets a child that it does not know, as every first process of a container may.
//!
//! # Safety charter
//! That of `os.rs`.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::check;
use super::end::{End, How};
use super::program::Executable;
use super::signals::{InheritedSignals, discard};
use super::stat::stat_of;

/// Which of the two a process is after [`split`].
#[expect(clippy::large_enum_variant, reason = "a process has one, once")]
pub enum Side {
    Program(Becoming),
    Supervisor(Other),
}

/// The process that is about to become the program.
pub struct Becoming {
    inherited: InheritedSignals,
    /// Closed by the exec; a byte says that there was none.
    failed: PipeWriter,
}

/// The process that is the program, as its supervisor sees it.
pub struct Other {
    pid: c_int,
    descriptor: OwnedFd,
    failed: Option<PipeReader>,
}

/// The descriptors that are open now.
pub fn descriptors() -> Vec<RawFd> {
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers: Vec<RawFd> =
        entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
    // The one of the list itself is closed by now.
    // SAFETY: asks for flags.
    numbers.into_iter().filter(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } != -1).collect()
}

/// Becomes two processes. `given`: descriptors that are the program's alone. The caller has no
/// threads, and `inherited` is what `take_signals` gave.
pub fn split(inherited: InheritedSignals, given: &[RawFd]) -> io::Result<Side> {
    // SAFETY: plain calls; the descriptor is new and ours.
    let (pid, descriptor) = unsafe {
        let pid = libc::getpid();
        let descriptor = check(libc::syscall(libc::SYS_pidfd_open, pid, 0) as c_int)?;
        (pid, OwnedFd::from_raw_fd(descriptor))
    };
    let (reader, writer) = io::pipe()?;
    // SAFETY: without threads a copy of this process is as good as it. The one in between ends at
    // once.
    let child = unsafe {
        let child = check(libc::fork())?;
        if child == 0 {
            libc::setsid();
            match libc::fork() {
                0 => {}
                other => libc::_exit((other < 0) as c_int),
            }
        }
        child
    };
    if child == 0 {
        drop(writer);
        leave(given);
        return Ok(Side::Supervisor(Other { pid, descriptor, failed: Some(reader) }));
    }
    let mut status = 0;
    // SAFETY: our own child; fills the local.
    unsafe { libc::waitpid(child, &mut status, 0) };
    // The program was not told of it either.
    discard(libc::SIGCHLD);
    if status != 0 {
        return Err(io::Error::from_raw_os_error(libc::EAGAIN));
    }
    Ok(Side::Program(Becoming { inherited, failed: writer }))
}

/// Lets go of what the program was given: whoever reads the other end of a pipe waits for the
/// program's end, not for ours.
fn leave(given: &[RawFd]) {
    // SAFETY: descriptors of the program's that nothing here uses, and a constant name.
    unsafe {
        for fd in given.iter().filter(|fd| **fd > 2) {
            libc::close(*fd);
        }
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        for fd in 0..3 {
            if null >= 0 {
                libc::dup2(null, fd)
            } else {
                libc::close(fd)
            };
        }
        if null > 2 {
            libc::close(null);
        }
    }
}

impl Becoming {
    /// Becomes the program. Returns why it could not.
    pub fn exec(mut self, program: &Executable) -> io::Error {
        // SAFETY: there are no other threads (see `split`).
        unsafe { self.inherited.restore() };
        let error = program.exec();
        let _ = self.failed.write_all(b"-");
        error
    }
}

impl Other {
    pub fn pid(&self) -> u32 {
        self.pid as u32
    }

    /// Waits until it is the program. False: it could not be, and has said why.
    pub fn has_begun(&mut self) -> bool {
        let Some(mut pipe) = self.failed.take() else { return true };
        !pipe.read(&mut [0]).is_ok_and(|n| n > 0)
    }

    /// Waits for its end.
    pub fn wait(&self) -> End {
        let mut poll =
            libc::pollfd { fd: self.descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one live structure.
        while unsafe { libc::poll(&mut poll, 1, -1) } < 1 {}
        End { pid: self.pid, how: self.how() }
    }

    /// How it ended: from /proc until its parent has asked, from its descriptor afterwards (since
    /// Linux 6.15).
    fn how(&self) -> How {
        let Some(status) = self.status_of_zombie().or_else(|| self.status_of_descriptor()) else {
            return How::Unknown;
        };
        match libc::WIFEXITED(status) {
            true => How::Exited(libc::WEXITSTATUS(status) as u8),
            false => How::Killed(libc::WTERMSIG(status)),
        }
    }

    fn status_of_zombie(&self) -> Option<c_int> {
        /// `exit_code` is the 52nd field, the state the third.
        const EXIT_CODE: usize = 52 - 3;
        let fields = stat_of(self.pid())?;
        if !matches!(fields.first()?.as_str(), "Z" | "X") {
            return None;
        }
        fields.get(EXIT_CODE)?.parse().ok()
    }

    fn status_of_descriptor(&self) -> Option<c_int> {
        /// `struct pidfd_info` as it was first: what it is to have, and at its end the exit code.
        const WORDS: usize = 16;
        const MASK_EXIT: u32 = 1 << 3;
        const PIDFD_GET_INFO: u64 = 0xc040_ff0b;
        let mut info = [0u32; WORDS];
        info[0] = MASK_EXIT;
        // SAFETY: the kernel fills at most the 64 bytes that the number of the call names.
        let result = unsafe {
            let info = info.as_mut_ptr().cast::<c_void>();
            libc::ioctl(self.descriptor.as_raw_fd(), PIDFD_GET_INFO, info)
        };
        (result == 0 && info[0] & MASK_EXIT != 0).then_some(info[WORDS - 1] as c_int)
    }
}
