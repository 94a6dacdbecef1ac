//! Stream sockets whose every wait has an end: for the connections to a store on another machine.
//!
//! Nothing here blocks but `poll`, and that for a short time each: the time waited is the sum of
//! these, not the time on the clock. So a program that is stopped (Ctrl-Z) or a machine that sleeps
//! in the middle of an exchange finds its patience as it was.
//!
//! # Safety charter
//! The kernel reads and writes slices handed in by safe borrow, and structures on this file's own
//! stack, for the time of the call. A wrong descriptor number makes a call fail.
#![allow(unsafe_code)]

use super::fd::{close, move_high, with_more_numbers};
use super::file::Fd;
use super::open::{O_CLOEXEC, O_NONBLOCK};
use super::{Errno, Result, nr};

const SOCK_STREAM: usize = 1;
const AF_UNIX: u16 = 1;
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
const SOL_SOCKET: usize = 1;
const SO_ERROR: usize = 4;
const SO_KEEPALIVE: usize = 9;
const IPPROTO_TCP: usize = 6;
const TCP_NODELAY: usize = 1;
const TCP_KEEPIDLE: usize = 4;
const TCP_KEEPINTVL: usize = 5;
const TCP_KEEPCNT: usize = 6;
const MSG_DONTWAIT: usize = 0x40;
const MSG_NOSIGNAL: usize = 0x4000;
const POLLIN: i16 = 1;
const POLLOUT: i16 = 4;
const EINPROGRESS: Errno = Errno(115);
const ECONNRESET: Errno = Errno(104);
const EAFNOSUPPORT: Errno = Errno(97);

/// The longest single wait: a stop in the middle of one costs at most this much of the patience.
const SINGLE_WAIT_NS: u64 = 50_000_000;
/// The pause between two tries to connect to a Unix socket whose queue is full (the kernel does not
/// wait for that without blocking).
const FULL_QUEUE_NS: u64 = 1_000_000;

/// The waiting that is left to a caller, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    left_ns: u64,
}

impl Patience {
    pub const fn new(ns: u64) -> Patience {
        Patience { left_ns: ns }
    }

    pub fn is_over(&self) -> bool {
        self.left_ns == 0
    }

    pub fn left_ns(&self) -> u64 {
        self.left_ns
    }

    /// A part of the patience that is left: the time that it spends is to be given to `spend`.
    pub fn at_most(&self, ns: u64) -> Patience {
        Patience { left_ns: self.left_ns.min(ns) }
    }

    pub fn spend(&mut self, ns: u64) {
        self.left_ns = self.left_ns.saturating_sub(ns);
    }

    /// Sleeps, for [`SINGLE_WAIT_NS`] at most.
    pub fn sleep(&mut self, ns: u64) {
        let ns = ns.min(SINGLE_WAIT_NS).min(self.left_ns);
        super::sleep_ns(ns);
        self.spend(ns);
    }

    /// Waits, for [`SINGLE_WAIT_NS`] at most, until the descriptor can be read or written.
    fn wait(&mut self, fd: Fd, events: i16) -> Result<()> {
        if self.is_over() {
            return Err(Errno::ETIMEDOUT);
        }
        let single_ns = self.left_ns.min(SINGLE_WAIT_NS);
        let before = super::now_ns();
        let result = poll(fd, events, single_ns.div_ceil(1_000_000) as usize);
        // At least something: time may stand still, patience may not.
        self.spend((super::now_ns() - before).clamp(1000, single_ns));
        result.map(drop)
    }
}

/// Whether the descriptor is ready within so many milliseconds. Interrupted: not yet.
fn poll(fd: Fd, events: i16, timeout_ms: usize) -> Result<bool> {
    #[repr(C)]
    struct PollFd {
        fd: i32,
        events: i16,
        revents: i16,
    }
    let mut one = PollFd { fd, events, revents: 0 };
    // SAFETY: one structure.
    match unsafe { uz_syscall!(nr::POLL, &raw mut one, 1, timeout_ms) } {
        Ok(n) => Ok(n > 0),
        Err(Errno::EINTR) => Ok(false),
        Err(e) => Err(e),
    }
}

/// A socket that is connected to nothing, to keep a descriptor's number.
pub fn unconnected() -> Result<Fd> {
    socket(AF_UNIX)
}

fn socket(family: u16) -> Result<Fd> {
    let kind = SOCK_STREAM | O_NONBLOCK | O_CLOEXEC;
    // SAFETY: touches no memory.
    let open = || unsafe { uz_syscall!(nr::SOCKET, family, kind, 0) };
    let mut opened = open();
    if opened == Err(Errno::EMFILE) {
        opened = with_more_numbers(0, open);
    }
    Ok(move_high(opened? as Fd))
}

/// Gives the number of `old` to `new`: the old socket is closed.
pub fn replace(old: Fd, new: Fd) -> Result<()> {
    // SAFETY: touches no memory; both are the caller's.
    let over = || unsafe { uz_syscall!(nr::DUP3, new, old, O_CLOEXEC) };
    let mut replaced = over();
    if replaced == Err(Errno::EBADF) {
        // The kernel gives no number above the soft limit, not even one that is in use.
        replaced = with_more_numbers(old, over);
    }
    close(new);
    replaced.map(drop)
}

/// Lets the kernel ask a machine that has said nothing for a quarter of an hour whether it is
/// there, and end the connection after a minute without an answer. Data that nobody acknowledges
/// are tried for as long. The other side's kernel answers, so its program may be silent, or
/// stopped, for as long as it likes. TCP_USER_TIMEOUT would end the connection of one that is
/// stopped, too: it has room for no more.
pub fn keep_alive(fd: Fd) -> Result<()> {
    // The times in seconds come first: with the kernel's own ones the first question would be hours
    // away.
    let options = [
        (IPPROTO_TCP, TCP_KEEPIDLE, 15 * 60),
        (IPPROTO_TCP, TCP_KEEPINTVL, 10),
        (IPPROTO_TCP, TCP_KEEPCNT, 6),
        (SOL_SOCKET, SO_KEEPALIVE, 1),
    ];
    options.into_iter().try_for_each(|(level, option, value)| set(fd, level, option, value))
}

fn set(fd: Fd, level: usize, option: usize, value: i32) -> Result<()> {
    // SAFETY: the kernel reads four bytes.
    unsafe { uz_syscall!(nr::SETSOCKOPT, fd, level, option, &raw const value, 4) }.map(drop)
}

/// Ends a connection, also for processes that have a copy of the descriptor. The descriptor stays
/// open.
pub fn shut_down(fd: Fd) {
    const BOTH: usize = 2;
    // SAFETY: touches no memory.
    let _ = unsafe { uz_syscall!(nr::SHUTDOWN, fd, BOTH) };
}

/// Ends a connection at once: bytes that are not sent yet never are. The descriptor stays open.
pub fn abandon(fd: Fd) {
    // An address of no family: TCP drops the bytes that it has, and sends a reset.
    let nowhere = [0u8; 16];
    // SAFETY: the kernel reads sixteen bytes.
    let _ = unsafe { uz_syscall!(nr::CONNECT, fd, nowhere.as_ptr(), nowhere.len()) };
    shut_down(fd);
}

/// Connects to an address as the kernel has it (`struct sockaddr_un`, `_in` or `_in6`).
pub fn connect(address: &[u8], patience: &mut Patience) -> Result<Fd> {
    let family = address.first_chunk().map_or(0, |f| u16::from_ne_bytes(*f));
    if !matches!(family, AF_UNIX | AF_INET | AF_INET6) {
        return Err(EAFNOSUPPORT);
    }
    let fd = socket(family)?;
    match connect_to(fd, address, patience) {
        Ok(()) => {
            if family != AF_UNIX {
                // Without it requests only leave later.
                let _ = set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
            }
            Ok(fd)
        }
        Err(e) => {
            close(fd);
            Err(e)
        }
    }
}

fn connect_to(fd: Fd, address: &[u8], patience: &mut Patience) -> Result<()> {
    loop {
        // SAFETY: the kernel reads the address for its length.
        match unsafe { uz_syscall!(nr::CONNECT, fd, address.as_ptr(), address.len()) } {
            Ok(_) => return Ok(()),
            Err(EINPROGRESS | Errno::EINTR) => break,
            Err(Errno::EAGAIN) if !patience.is_over() => patience.sleep(FULL_QUEUE_NS),
            Err(e) => return Err(e),
        }
    }
    while !poll(fd, POLLOUT, 0)? {
        patience.wait(fd, POLLOUT)?;
    }
    let (mut error, mut len) = (0i32, 4u32);
    // SAFETY: the kernel writes four bytes and their number.
    unsafe { uz_syscall!(nr::GETSOCKOPT, fd, SOL_SOCKET, SO_ERROR, &raw mut error, &raw mut len) }?;
    if error == 0 { Ok(()) } else { Err(Errno(error)) }
}

/// Whether some bytes can be sent without a wait, or an error would come at once.
pub fn has_room(fd: Fd) -> bool {
    poll(fd, POLLOUT, 0).unwrap_or(true)
}

/// Sends all of it.
pub fn send(fd: Fd, mut bytes: &[u8], patience: &mut Patience) -> Result<()> {
    while !bytes.is_empty() {
        let flags = MSG_DONTWAIT | MSG_NOSIGNAL;
        // SAFETY: the slice is borrowed and readable for its length.
        match unsafe { uz_syscall!(nr::SENDTO, fd, bytes.as_ptr(), bytes.len(), flags, 0, 0) } {
            Ok(n) => bytes = &bytes[n..],
            Err(Errno::EAGAIN | Errno::EINTR) => patience.wait(fd, POLLOUT)?,
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Receives what has come, one byte at least. The end of the stream is an error.
pub fn receive_some(fd: Fd, buf: &mut [u8], patience: &mut Patience) -> Result<usize> {
    loop {
        // SAFETY: the slice is exclusively borrowed and writable for its length.
        match unsafe {
            uz_syscall!(nr::RECVFROM, fd, buf.as_mut_ptr(), buf.len(), MSG_DONTWAIT, 0, 0)
        } {
            Ok(0) => return Err(ECONNRESET),
            Ok(n) => return Ok(n),
            Err(Errno::EAGAIN | Errno::EINTR) => patience.wait(fd, POLLIN)?,
            Err(e) => return Err(e),
        }
    }
}

/// Receives exactly so many bytes. The end of the stream before that is an error.
pub fn receive(fd: Fd, mut buf: &mut [u8], patience: &mut Patience) -> Result<()> {
    while !buf.is_empty() {
        let n = receive_some(fd, buf, patience)?;
        buf = &mut buf[n..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::fd::number_limits;
    use crate::sys::file::testing;
    use std::io::{Read, Write};
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::UnixListener;

    const SOON: Patience = Patience::new(20_000_000);
    const LATER: Patience = Patience::new(20_000_000_000);

    fn unix_address(path: &std::path::Path) -> Vec<u8> {
        let mut address = AF_UNIX.to_ne_bytes().to_vec();
        address.extend(path.as_os_str().as_bytes());
        address.push(0);
        address
    }

    #[test]
    fn bytes_go_both_ways_and_silence_has_an_end() {
        let path = std::env::temp_dir().join(format!("uzswap-socket-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let fd = connect(&unix_address(&path), &mut LATER.clone()).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        let mut buf = [0u8; 5];
        assert_eq!(receive(fd, &mut buf, &mut SOON.clone()), Err(Errno::ETIMEDOUT));
        other.write_all(b"abc").unwrap();
        // A part comes, the rest never: the part is of no use.
        assert_eq!(receive(fd, &mut buf, &mut SOON.clone()), Err(Errno::ETIMEDOUT));
        // More than the kernel's buffer takes, to somebody who does not read at first.
        let many = vec![7u8; 4 << 20];
        assert_eq!(send(fd, &many, &mut SOON.clone()), Err(Errno::ETIMEDOUT));
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            other.read_to_end(&mut all).unwrap();
            all.len()
        });
        send(fd, &many, &mut LATER.clone()).unwrap();
        close(fd);
        assert!(reader.join().unwrap() > many.len());
        drop(listener);
        // A child that another test forks may have the listener for a moment.
        let refused = (0..1000).find_map(|_| {
            let fd = connect(&unix_address(&path), &mut SOON.clone());
            std::thread::sleep(std::time::Duration::from_millis(10));
            fd.map(close).err()
        });
        assert_eq!(refused, Some(Errno(111)));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(connect(&unix_address(&path), &mut SOON.clone()), Err(Errno::ENOENT));
        assert_eq!(connect(b"\x63\x00abc", &mut SOON.clone()), Err(EAFNOSUPPORT));
    }

    #[test]
    fn the_other_side_may_end_at_any_time() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut address = AF_INET.to_ne_bytes().to_vec();
        address.extend(listener.local_addr().unwrap().port().to_be_bytes());
        address.extend([127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        let fd = connect(&address, &mut LATER.clone()).unwrap();
        drop(listener.accept().unwrap());
        assert_eq!(receive(fd, &mut [0], &mut LATER.clone()), Err(ECONNRESET));
        // No SIGPIPE: the test lives on.
        while send(fd, &[1], &mut LATER.clone()).is_ok() {}
        close(fd);
    }

    #[test]
    fn a_connection_is_made_anew_above_the_soft_limit() {
        let child = testing::fork(|| {
            let old = unconnected().unwrap();
            let [_, hard] = number_limits(None).unwrap();
            // The number is from when more were allowed; then there is no free one either.
            for soft in [old as u64, 0] {
                number_limits(Some([soft, hard])).unwrap();
                let replaced = unconnected().and_then(|new| replace(old, new));
                if replaced.is_err() || number_limits(None) != Ok([soft, hard]) {
                    return false;
                }
            }
            true
        });
        assert_eq!(testing::wait(child), 0);
    }
}
