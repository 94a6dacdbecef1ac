//! Where `--metrics` listens: `unix:PATH`, `HOST:PORT` or `PORT`.
//!
//! Opened before the program starts, so that a wrong address is heard of at once. A socket file is
//! readable and writable for its owner only, and removed at the end; one that a killed run has left
//! behind is replaced. A port alone is one of this machine for this machine: whoever names a host
//! decides who may read.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, UnixAddr};
use nix::sys::stat::{Mode, fchmod};

use crate::os;
use crate::program::reason;

const UNIX: &[u8] = b"unix:";

/// A connection, of either kind.
pub trait Stream: Read + Write + AsFd + Send {
    /// Nothing more will be written.
    fn finish(&self);
}

impl Stream for TcpStream {
    fn finish(&self) {
        let _ = self.shutdown(std::net::Shutdown::Write);
    }
}

impl Stream for UnixStream {
    fn finish(&self) {
        let _ = self.shutdown(std::net::Shutdown::Write);
    }
}

/// A socket that accepts connections. Its file, if it has one, is gone when it is dropped.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    Unix {
        listener: UnixListener,
        path: PathBuf,
        /// Device and number of the file that we made: another's is not removed.
        made: Option<(u64, u64)>,
    },
}

impl Listener {
    /// Opens what `text` names. The error says what is wrong, without naming the option.
    pub fn open(text: &OsStr) -> Result<Listener, String> {
        if let Some(path) = text.as_bytes().strip_prefix(UNIX) {
            return Self::open_unix(Path::new(OsStr::from_bytes(path)));
        }
        let text = text.to_str().ok_or_else(|| format!("{text:?} is not UTF-8"))?;
        let refused = |e: io::Error| format!("{text}: {}", why(&e));
        let addresses = tcp_addresses(text)?;
        let listener = TcpListener::bind(&addresses[..]).map_err(refused)?;
        listener.set_nonblocking(true).map_err(refused)?;
        Ok(Listener::Tcp(listener))
    }

    fn open_unix(path: &Path) -> Result<Listener, String> {
        if path.as_os_str().is_empty() {
            return Err("'unix:' names no file: write unix:PATH".to_string());
        }
        let refused = |e: io::Error| format!("{}: {}", path.display(), why(&e));
        // The current directory may be another one when the file is removed.
        let path = &std::path::absolute(path).map_err(refused)?;
        let listener = match listen_at(path) {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse && is_abandoned(path) => {
                fs::remove_file(path).and_then(|()| listen_at(path))
            }
            other => other,
        };
        let listener = listener.map_err(refused)?;
        listener.set_nonblocking(true).map_err(refused)?;
        let made = identity(path);
        Ok(Listener::Unix { listener, path: path.clone(), made })
    }

    /// Gives a socket of this user's the name by which it is found, which nobody else has: from the
    /// first moment on somebody listens there.
    pub fn named(mut self, name: &Path) -> Result<Listener, String> {
        if let Listener::Unix { path, .. } = &mut self {
            let link = || fs::hard_link(&path, name);
            let linked = match link() {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists && is_abandoned(name) => {
                    fs::remove_file(name).and_then(|()| link())
                }
                other => other,
            };
            linked.map_err(|e| format!("{}: {}", name.display(), why(&e)))?;
            let _ = fs::remove_file(&path);
            *path = name.to_path_buf();
        }
        Ok(self)
    }

    /// Where it can be reached, in words; of port 0 the one that the kernel chose.
    pub fn name(&self) -> String {
        match self {
            Listener::Tcp(listener) => match listener.local_addr() {
                Ok(address) => format!("http://{address}/metrics"),
                Err(_) => "a TCP port".to_string(),
            },
            Listener::Unix { path, .. } => format!("unix:{}", path.display()),
        }
    }

    pub fn accept(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Box::new(stream)
            }
            Listener::Unix { listener, .. } => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Box::new(stream)
            }
        })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix { listener, .. } => listener.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix { path, made, .. } = self
            && made.is_some()
            && identity(path) == *made
        {
            let _ = fs::remove_file(path);
        }
    }
}

/// A listener whose file is made with its rights: others cannot connect at any moment. Linux gives
/// the file those of the socket, where the process' mask would be another thread's, too.
fn listen_at(path: &Path) -> io::Result<UnixListener> {
    // Says of a long path how long it may be.
    std::os::unix::net::SocketAddr::from_pathname(path)?;
    let (family, kind) = (AddressFamily::Unix, SockType::Stream);
    let socket = socket::socket(family, kind, SockFlag::SOCK_CLOEXEC, None)?;
    fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
    socket::bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    socket::listen(&socket, Backlog::MAXCONN)?;
    Ok(UnixListener::from(socket))
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|m| (m.dev(), m.ino()))
}

/// Whether a socket lies there that nobody listens on.
fn is_abandoned(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket())
        && os::connect_at_once(path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
}

fn why(e: &io::Error) -> String {
    match e.kind() {
        io::ErrorKind::AddrInUse | io::ErrorKind::AlreadyExists => "is in use".to_string(),
        io::ErrorKind::AddrNotAvailable => "is no address of this machine".to_string(),
        io::ErrorKind::NotFound => "its directory does not exist".to_string(),
        // "path must be shorter than SUN_LEN" comes without a number.
        _ if e.raw_os_error().is_none() => e.to_string(),
        _ => reason(e),
    }
}

fn tcp_addresses(text: &str) -> Result<Vec<SocketAddr>, String> {
    let wrong = || format!("'{text}' is no address: write unix:PATH, HOST:PORT or PORT");
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        let port = text.parse().map_err(|_| format!("'{text}' is no port: they end at 65535"))?;
        return Ok(vec![(Ipv4Addr::LOCALHOST, port).into()]);
    }
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {}
        _ => return Err(wrong()),
    }
    match text.to_socket_addrs().map(|found| found.collect::<Vec<_>>()) {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(wrong()),
        Err(e) => Err(format!("'{text}': the host is not known ({e})")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn scratch(name: &str) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("uzswap-address-{}-{name}", std::process::id()));
        let _ = fs::remove_file(&path);
        path
    }

    fn unix(path: &Path) -> Result<Listener, String> {
        Listener::open(format!("unix:{}", path.display()).as_ref())
    }

    #[test]
    fn a_socket_gets_its_name_when_somebody_listens_and_no_other_gets_it_too() {
        let (name, first, second) = (scratch("name"), scratch("first"), scratch("second"));
        let listener = unix(&first).unwrap().named(&name).unwrap();
        assert!(!first.exists() && UnixStream::connect(&name).is_ok());
        let refused = unix(&second).unwrap().named(&name).unwrap_err();
        assert!(refused.contains("is in use") && !second.exists(), "{refused}");
        drop(listener);
        assert!(!name.exists());
        // One that was killed has left its name.
        drop(UnixListener::bind(&name).unwrap());
        drop(unix(&second).unwrap().named(&name).unwrap());
        assert!(!name.exists() && !second.exists());
    }

    #[test]
    fn a_port_alone_is_of_this_machine_only() {
        assert_eq!(tcp_addresses("9100").unwrap(), ["127.0.0.1:9100".parse().unwrap()]);
        assert_eq!(tcp_addresses("0.0.0.0:80").unwrap(), ["0.0.0.0:80".parse().unwrap()]);
        assert_eq!(tcp_addresses("[::1]:80").unwrap(), ["[::1]:80".parse().unwrap()]);
        for wrong in ["", "x", "70000", ":80", "host:", "127.0.0.1:x", "1:2:3", "127.0.0.1:99999"] {
            assert!(tcp_addresses(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_port_in_use_is_said() {
        let first = Listener::open("0".as_ref()).unwrap();
        let Listener::Tcp(tcp) = &first else { panic!() };
        let port = tcp.local_addr().unwrap().port().to_string();
        assert!(first.name().contains(&port));
        let error = Listener::open(port.as_ref()).unwrap_err();
        assert!(error.contains("in use") && error.contains(&port), "{error}");
    }

    #[test]
    fn the_socket_file_is_ours_alone_and_goes_with_us() {
        let path = scratch("own");
        let listener = unix(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(unix(&path).unwrap_err().contains("in use"));
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn files_of_other_threads_have_their_rights_while_a_socket_is_made() {
        let (path, other) = (scratch("mask"), scratch("other"));
        let ends = std::thread::spawn(move || (0..300).for_each(|_| drop(unix(&path).unwrap())));
        while !ends.is_finished() {
            fs::create_dir(&other).unwrap();
            assert_eq!(fs::metadata(&other).unwrap().permissions().mode() & 0o700, 0o700);
            fs::remove_dir(&other).unwrap();
        }
    }

    #[test]
    fn what_a_killed_run_left_is_replaced_and_what_is_another_s_stays() {
        let path = scratch("left");
        drop(UnixListener::bind(&path).unwrap());
        let listener = unix(&path).unwrap();
        // Somebody else's now.
        fs::remove_file(&path).unwrap();
        fs::write(&path, "mine").unwrap();
        drop(listener);
        assert_eq!(fs::read(&path).unwrap(), b"mine");
        assert!(unix(&path).unwrap_err().contains("in use"), "a file is not removed");
        fs::remove_file(&path).unwrap();
        let error = unix(&path.join("socket")).unwrap_err();
        assert!(error.contains("does not exist"), "{error}");
        assert!(unix(Path::new(&"x".repeat(200))).unwrap_err().contains("shorter"));
    }
}
