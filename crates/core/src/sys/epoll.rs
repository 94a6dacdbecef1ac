//! Waiting for many descriptors at one time.
//!
//! # Safety charter
//! The kernel reads and writes structures on this file's own stack, for the time of the call. A
//! wrong descriptor number makes a call fail.
#![allow(unsafe_code)]

use super::fd::close;
use super::file::Fd;
use super::open::O_CLOEXEC;
use super::{Errno, Result, nr};

const CTL_ADD: usize = 1;
const CTL_DEL: usize = 2;
const IN: u32 = 1;
const ERR: u32 = 8;
const HUP: u32 = 0x10;
const RDHUP: u32 = 0x2000;
/// An event is told once, to one who waits, when something has come.
const EDGE: u32 = 1 << 31;

/// `struct epoll_event` of x86-64, which has no gap.
#[repr(C, packed)]
#[derive(Clone, Copy)]
struct Event {
    events: u32,
    name: u64,
}

/// Something has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ready {
    /// The name that the descriptor was added by.
    pub name: u64,
    /// Nothing will come after what is there.
    pub is_end: bool,
}

/// Descriptors that are waited for.
#[derive(Debug)]
pub struct Epoll(Fd);

impl Epoll {
    pub fn new() -> Result<Epoll> {
        // SAFETY: touches no memory.
        unsafe { uz_syscall!(nr::EPOLL_CREATE1, O_CLOEXEC) }.map(|fd| Epoll(fd as Fd))
    }

    /// Tells from now on when something has come that can be read, and at once if something is
    /// there.
    pub fn add(&self, fd: Fd, name: u64) -> Result<()> {
        let event = Event { events: IN | RDHUP | EDGE, name };
        // SAFETY: the kernel reads one structure.
        unsafe { uz_syscall!(nr::EPOLL_CTL, self.0, CTL_ADD, fd, &raw const event) }.map(drop)
    }

    pub fn remove(&self, fd: Fd) -> Result<()> {
        // SAFETY: touches no memory.
        unsafe { uz_syscall!(nr::EPOLL_CTL, self.0, CTL_DEL, fd, 0) }.map(drop)
    }

    /// One that is ready now.
    pub fn look(&self) -> Result<Option<Ready>> {
        self.next(0)
    }

    /// Waits for one. `None`: a signal has come.
    pub fn wait(&self) -> Result<Option<Ready>> {
        self.next(-1)
    }

    fn next(&self, timeout_ms: isize) -> Result<Option<Ready>> {
        let mut event = Event { events: 0, name: 0 };
        // SAFETY: the kernel writes one structure.
        match unsafe { uz_syscall!(nr::EPOLL_WAIT, self.0, &raw mut event, 1, timeout_ms) } {
            Ok(0) | Err(Errno::EINTR) => Ok(None),
            Ok(_) => {
                let Event { events, name } = event;
                Ok(Some(Ready { name, is_end: events & (ERR | HUP | RDHUP) != 0 }))
            }
            Err(e) => Err(e),
        }
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        close(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn what_has_come_is_told_once_and_the_end_of_a_stream_with_it() {
        let epoll = Epoll::new().unwrap();
        let (mut near, mut far) = UnixStream::pair().unwrap();
        far.write_all(b"one").unwrap();
        epoll.add(near.as_raw_fd(), 7).unwrap();
        assert_eq!(epoll.wait(), Ok(Some(Ready { name: 7, is_end: false })));
        assert_eq!(epoll.look(), Ok(None), "it is told already");
        far.write_all(b"two").unwrap();
        assert_eq!(epoll.look(), Ok(Some(Ready { name: 7, is_end: false })), "there is more");
        near.read_exact(&mut [0; 6]).unwrap();
        far.write_all(b"last").unwrap();
        drop(far);
        assert_eq!(epoll.wait(), Ok(Some(Ready { name: 7, is_end: true })));
        epoll.remove(near.as_raw_fd()).unwrap();
        epoll.add(near.as_raw_fd(), 8).unwrap();
        assert_eq!(epoll.look(), Ok(Some(Ready { name: 8, is_end: true })));
        assert!(epoll.remove(-1).is_err());
    }
}
