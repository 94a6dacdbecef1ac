//! Serving a disk: its sockets, the command that is run on it, and the end of both.

use std::ffi::{OsStr, OsString};
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGPIPE, SIGTERM};
use signal_hook::iterator::Signals;
use uzswap_disk::keeper::{self, Upkeep};
use uzswap_disk::server::{Listener, Server};
use uzswap_disk::{Disk, Export};

use super::arguments::ServeSettings;
use super::client::{self, CLIENTS_SUFFIX, ORDERS_SUFFIX, PREFIX};
use crate::control::open_directory;
use crate::observe::address;
use crate::program::reason;
use crate::size::human;
use crate::{Failure, console, os};

/// Names that are tried for a disk that was given none.
const NAMES_TRIED: u32 = 1000;
/// The signals that end a disk.
const END_SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];
/// Signals that come within this time of the first are one wish to end: timeout(1) and shells send
/// some twice. A later one is impatience.
const ONE_WISH: Duration = Duration::from_millis(300);

/// The sockets of a disk. Their files go when this does.
struct Sockets {
    orders: address::Listener,
    /// The socket where clients connect, if we have made it.
    clients: Option<address::Listener>,
    clients_fd: Listener,
    uri: String,
}

/// Why serving ends.
enum End {
    Signal(i32),
    Command(io::Result<ExitStatus>),
}

pub fn run(settings: Box<ServeSettings>) -> Result<u8, Failure> {
    // Before there are threads: all of them must leave these signals to the one that waits for
    // them. A signal that is ignored stays so: the disk was started to live on.
    let signals = END_SIGNALS.into_iter().filter(|signal| !os::is_ignored(*signal));
    let mut signals = Signals::new(signals).map_err(failed("signals"))?;
    // A client that has gone is an error of a write, no more.
    signal_hook::flag::register(SIGPIPE, Arc::new(AtomicBool::new(false)))
        .map_err(failed("signals"))?;
    let inherited = os::inherited_socket();
    let (name, directory, orders) = place(settings.name.as_deref())?;
    let sockets = open(&settings, &name, &directory, orders, inherited)?;
    if settings.locked {
        lock_memory()?;
    }
    let disk = Arc::new(Disk::new(&settings.config).map_err(failed("no disk"))?);
    let limit = settings.writeback_limit_pages;
    let upkeep = Arc::new(Upkeep::new(limit, settings.idle_after_seconds));
    let told = format!("disk {name}");
    keeper::start(disk.clone(), upkeep.clone(), move |line| {
        console::say(&format!("{told}: {line}"))
    })
    .map_err(failed("no thread"))?;
    let export = Export {
        name: name.clone(),
        description: "compressed memory (uzswap)".to_string(),
        bytes: settings.config.bytes,
        read_only: settings.config.read_only,
    };
    let server = Arc::new(Server::new(disk, export, upkeep));
    let orders = blocking(&sockets.orders).map_err(failed("no socket"))?;
    server.listen_for_orders(orders).map_err(failed("no thread"))?;
    server.listen(sockets.clients_fd).map_err(failed("no thread"))?;
    // Nobody reads the words of a server that was started on a socket.
    if sockets.clients.is_some() && settings.command.is_empty() {
        let sizes = [settings.config.bytes, settings.config.memory_bytes].map(human);
        console::say(&format!(
            "disk {name}: {} in at most {} of memory: {}",
            sizes[0], sizes[1], sockets.uri
        ));
    }
    let (tell, told) = mpsc::channel();
    let by_signal = tell.clone();
    let wait_for_signals = move || {
        for signal in signals.forever() {
            let _ = by_signal.send(End::Signal(signal));
        }
    };
    thread::Builder::new().spawn(wait_for_signals).map_err(failed("no thread"))?;
    if settings.locked {
        // The command is no part of the disk: it may be swapped to it, and be killed.
        os::serve_memory(false);
    }
    let child = start(&settings.command, &sockets.uri, &name, tell)?;
    if settings.locked {
        protect();
    }
    let end = told.recv().unwrap_or(End::Signal(SIGTERM));
    // The names of the sockets go first: nobody connects to what is about to end.
    drop((sockets.orders, sockets.clients));
    match (end, child) {
        (End::Command(ended), _) => code_of(ended),
        (End::Signal(_), Some(pid)) => end_command(pid, &told),
        (End::Signal(_), None) => Ok(0),
    }
}

/// Ends the command because a signal came, and gives its exit code. A second signal ends all at
/// once.
fn end_command(pid: Pid, told: &mpsc::Receiver<End>) -> Result<u8, Failure> {
    let _ = kill(pid, Signal::SIGTERM);
    let asked = Instant::now();
    loop {
        let Ok(end) = told.recv() else { return Ok(exit_code(ExitStatus::from_raw(SIGTERM))) };
        match end {
            End::Command(ended) => return code_of(ended),
            End::Signal(_) if asked.elapsed() < ONE_WISH => {}
            End::Signal(signal) => {
                // The command may hang in a request to this disk, where only our end ends it: so
                // its own end is not waited for.
                let _ = kill(pid, Signal::SIGKILL);
                return Ok(exit_code(ExitStatus::from_raw(signal)));
            }
        }
    }
}

fn code_of(ended: io::Result<ExitStatus>) -> Result<u8, Failure> {
    ended.map(exit_code).map_err(|e| Failure::environment(format!("the command: {}", reason(&e))))
}

/// The exit code of a status, as shells give it.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(1)
}

/// Starts the command, if there is one, and tells when it has ended.
fn start(
    command: &[OsString],
    uri: &str,
    name: &str,
    tell: mpsc::Sender<End>,
) -> Result<Option<Pid>, Failure> {
    let Some((program, arguments)) = command.split_first() else {
        // Without a command no end is told here: only a signal ends the disk.
        std::mem::forget(tell);
        return Ok(None);
    };
    let mut command = Command::new(program);
    command.args(arguments).env("NBD_URI", uri).env("UZSWAP_DISK", name);
    for variable in ["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"] {
        command.env_remove(variable);
    }
    // Before the command, which nobody would wait for without it.
    let (gives, given) = mpsc::channel::<Child>();
    let wait_for_end = move || {
        if let Ok(mut child) = given.recv() {
            let _ = tell.send(End::Command(child.wait()));
        }
    };
    thread::Builder::new().spawn(wait_for_end).map_err(failed("no thread"))?;
    let child = command.spawn().map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => Failure::not_found(format!("{}: not found", program.display())),
        _ => Failure::not_executable(format!("{}: {}", program.display(), reason(&e))),
    })?;
    let pid = Pid::from_raw(child.id() as i32);
    let _ = gives.send(child);
    Ok(Some(pid))
}

/// Something of the machine's that cannot be had.
fn failed(what: &str) -> impl Fn(io::Error) -> Failure {
    move |e| Failure::environment(format!("{what}: {}", reason(&e)))
}

fn lock_memory() -> Result<(), Failure> {
    os::lock_memory().map_err(|e| {
        Failure::environment(format!(
            "--locked: memory cannot be locked: {}: allow more by 'ulimit -l unlimited', or as \
             root",
            reason(&e)
        ))
    })?;
    os::serve_memory(true);
    Ok(())
}

/// As far as the user may: the kernel must not kill a disk that is swapped on for lack of memory.
fn protect() {
    let adjusted = std::fs::write("/proc/self/oom_score_adj", "-1000");
    if adjusted.is_err() {
        console::say(
            "--locked: the kernel may still end this process when memory is short (needs root)",
        );
    }
}

/// The disk's name, and the socket for its orders, by which the name is its own.
fn place(given: Option<&str>) -> Result<(String, PathBuf, address::Listener), Failure> {
    let directory = open_directory(&|name| std::env::var_os(name))
        .map_err(|why| Failure::environment(format!("no place for the disk's sockets: {why}")))?;
    let orders_of = |name: &str| {
        let path = directory.join(format!("{PREFIX}{name}{ORDERS_SUFFIX}"));
        // A process that lists the disks removes each socket on which nobody listens. So this one
        // gets its name once it listens.
        let unnamed = directory.join(format!("{PREFIX}{}.new", std::process::id()));
        let _ = std::fs::remove_file(&unnamed);
        address::Listener::open(&unix(&unnamed))?.named(&path)
    };
    if let Some(name) = given {
        return match orders_of(name) {
            Ok(orders) => Ok((name.to_string(), directory, orders)),
            Err(why) => {
                Err(Failure::usage(format!("--name: there is a disk '{name}' already, or: {why}")))
            }
        };
    }
    let taken: Vec<String> = client::disks().into_iter().map(|(name, _)| name).collect();
    for n in 0..NAMES_TRIED {
        let name = n.to_string();
        let is_free = !taken.contains(&name)
            || client::sweep(&directory.join(format!("{PREFIX}{name}{ORDERS_SUFFIX}")));
        if let Some(orders) = is_free.then(|| orders_of(&name).ok()).flatten() {
            return Ok((name, directory, orders));
        }
    }
    Err(Failure::environment("no name is free for the disk: give it one with --name".to_string()))
}

fn unix(path: &Path) -> OsString {
    let mut text = OsString::from("unix:");
    text.push(path);
    text
}

fn open(
    settings: &ServeSettings,
    name: &str,
    directory: &Path,
    orders: address::Listener,
    inherited: Option<OwnedFd>,
) -> Result<Sockets, Failure> {
    let fault = |why: String| Failure::usage(format!("--listen: {why}"));
    let own = unix(&directory.join(format!("{PREFIX}{name}{CLIENTS_SUFFIX}")));
    if let Some(fd) = inherited.filter(|_| settings.listen.is_none()) {
        let clients_fd = from_descriptor(fd).map_err(|e| {
            Failure::environment(format!("the socket that LISTEN_FDS passes: {}", reason(&e)))
        })?;
        return Ok(Sockets { orders, clients: None, clients_fd, uri: String::new() });
    }
    let text = settings.listen.as_deref().unwrap_or(&own);
    let clients = address::Listener::open(text).map_err(fault)?;
    let clients_fd = blocking(&clients).map_err(|e| fault(reason(&e)))?;
    let uri = match &clients {
        address::Listener::Unix { path, .. } => {
            format!("nbd+unix:///{name}?socket={}", escaped(path.as_os_str()))
        }
        address::Listener::Tcp(listener) => {
            let address = listener.local_addr().map_err(|e| fault(reason(&e)))?;
            if !address.ip().is_loopback() && !settings.may_be_plain {
                return Err(fault(format!(
                    "{address} is not of this machine alone, and nothing is encrypted or asked for \
                     a password: add --no-tls if the network is trusted, or tunnel a Unix socket \
                     (ssh -L)"
                )));
            }
            format!("nbd://{address}/{name}")
        }
    };
    Ok(Sockets { orders, clients: Some(clients), clients_fd, uri })
}

/// A path in a URI.
fn escaped(path: &OsStr) -> String {
    let mut text = String::new();
    for &byte in path.as_bytes() {
        match byte {
            b'/' | b'.' | b'_' | b'-' | b'~' => text.push(byte.into()),
            _ if byte.is_ascii_alphanumeric() => text.push(byte.into()),
            _ => text += &format!("%{byte:02X}"),
        }
    }
    text
}

/// A second descriptor of the socket, for threads that wait in it.
fn blocking(listener: &address::Listener) -> io::Result<Listener> {
    Ok(match listener {
        address::Listener::Tcp(listener) => {
            listener.set_nonblocking(false)?;
            Listener::Tcp(listener.try_clone()?)
        }
        address::Listener::Unix { listener, .. } => {
            listener.set_nonblocking(false)?;
            Listener::Unix(listener.try_clone()?)
        }
    })
}

/// A socket that somebody else opened.
fn from_descriptor(fd: OwnedFd) -> io::Result<Listener> {
    let is_unix = os::is_unix_socket(&fd)?;
    if is_unix {
        let listener = UnixListener::from(fd);
        listener.set_nonblocking(false)?;
        Ok(Listener::Unix(listener))
    } else {
        let listener = TcpListener::from(fd);
        listener.set_nonblocking(false)?;
        Ok(Listener::Tcp(listener))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_in_uris() {
        assert_eq!(escaped("/run/a-b_c.sock".as_ref()), "/run/a-b_c.sock");
        assert_eq!(escaped("/tmp/x y?&%".as_ref()), "/tmp/x%20y%3F%26%25");
    }

    #[test]
    fn codes_of_commands() {
        assert_eq!(exit_code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(exit_code(ExitStatus::from_raw(9)), 137);
    }
}
