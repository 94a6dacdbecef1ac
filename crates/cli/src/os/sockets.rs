//! Sockets, where the standard library would wait, or cannot ask.
//!
//! The socket of a run that was killed is still there: connecting tells, and must not wait for a
//! process that was stopped. A disk's socket may be our parent's, by systemd's protocol.
//!
//! # Safety charter
//! That of `os.rs`.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr};

use super::check;

/// The first socket of those that our parent has opened and listens on, by systemd's protocol. To
/// be asked once, before anything is opened.
pub fn inherited_socket() -> Option<OwnedFd> {
    const FIRST: RawFd = 3;
    let number = |name| std::env::var(name).ok()?.parse::<u32>().ok();
    if number("LISTEN_PID") != Some(std::process::id())
        || number("LISTEN_FDS").is_none_or(|n| n == 0)
    {
        return None;
    }
    // SAFETY: plain calls; the descriptor is ours by the protocol, and nobody else takes it.
    unsafe {
        if libc::fcntl(FIRST, libc::F_SETFD, libc::FD_CLOEXEC) == -1 {
            return None;
        }
        Some(OwnedFd::from_raw_fd(FIRST))
    }
}

/// Connects to a socket, and waits for nobody. WouldBlock: as many wait there as may, for a process
/// that was stopped, say. The connection is an ordinary one.
pub fn connect_at_once(path: &Path) -> io::Result<UnixStream> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    socket::connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Whether a socket is of this machine's files. The error: it is no socket that listens.
pub fn is_unix_socket(fd: &OwnedFd) -> io::Result<bool> {
    let option = |name| {
        let mut value: c_int = 0;
        let mut len = size_of::<c_int>() as libc::socklen_t;
        let to = (&raw mut value).cast();
        // SAFETY: live locals, the second of which says how large the first is.
        check(unsafe { libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, name, to, &mut len) })?;
        Ok::<_, io::Error>(value)
    };
    if option(libc::SO_ACCEPTCONN)? == 0 {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    Ok(option(libc::SO_DOMAIN)? == libc::AF_UNIX)
}
