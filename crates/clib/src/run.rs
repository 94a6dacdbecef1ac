//! The run of this process: one line of JSON each way, on the socket of `uzswap run`.
//!
//! Sockets lie in a directory that only the user can enter; the runs themselves say which of them
//! this process is in. The socket is looked for each time: nothing is remembered, so nothing is
//! wrong after a fork.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, fs, process};

use serde_json::{Value, json};

use crate::border::{Outcome, Result};

/// The longest reply: a full table of processes is shorter.
const REPLY_BYTES: usize = 4 << 20;
/// The patience with a request that is answered at once.
const ASKED: Duration = Duration::from_secs(5);
/// The patience with a request that waits until the run has done it.
const DONE: Duration = Duration::from_secs(300);

/// The fields of `struct uzswap_self_status` after its size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Figures {
    pub run: u64,
    pub milliseconds: u64,
    pub processes: u64,
    pub limit_bytes: u64,
    pub used_bytes: u64,
    pub own_used_bytes: u64,
    pub own_needed_bytes: u64,
    pub resident_bytes: u64,
    pub pool_bytes: u64,
    pub written_bytes: u64,
    pub faults: u64,
    pub activity: u64,
}

impl Figures {
    /// The figures of a run's list, if process `pid` is in it.
    fn of(list: &Value, pid: u32) -> Option<Figures> {
        let of = |value: &Value, name: &str| value[name].as_u64().unwrap_or(0);
        let processes = list["processes"].as_array()?;
        let own = processes.iter().find(|process| process["pid"].as_u64() == Some(pid.into()))?;
        let states = ["dormant", "active", "waits"];
        let state = own["state"].as_str().and_then(|name| states.iter().position(|s| *s == name));
        Some(Figures {
            run: of(list, "run"),
            milliseconds: (list["seconds"].as_f64().unwrap_or(0.0) * 1000.0) as u64,
            processes: processes.len() as u64,
            limit_bytes: of(list, "limit_bytes"),
            used_bytes: processes.iter().map(|process| of(process, "used_bytes")).sum(),
            own_used_bytes: of(own, "used_bytes"),
            own_needed_bytes: of(own, "needed_bytes"),
            resident_bytes: of(own, "resident_bytes"),
            pool_bytes: of(own, "pool_bytes"),
            written_bytes: of(own, "written_bytes"),
            faults: of(own, "faults"),
            activity: state.unwrap_or(0) as u64,
        })
    }
}

/// A run, and its figures.
pub struct Found {
    socket: PathBuf,
    pub figures: Figures,
}

/// The run that this process is in.
pub fn find() -> Result<Found> {
    let pid = process::id();
    let found = sockets().into_iter().find_map(|socket| {
        let list = ask(&socket, &json!({"do": "list"}), ASKED).ok()?;
        Some(Found { figures: Figures::of(&list, pid)?, socket })
    });
    found.ok_or(Outcome::NoAnswer)
}

/// Sets another limit. Returns the limit that came of it.
pub fn set_memory(bytes: u64) -> Result<u64> {
    let request = json!({"do": "set", "memory": bytes.to_string()});
    let done = ask(&find()?.socket, &request, ASKED)?;
    done["limit_bytes"].as_u64().ok_or(Outcome::NoAnswer)
}

/// Reclaims memory that this process does not use. Returns the bytes that this freed.
pub fn reclaim() -> Result<u64> {
    let request = json!({"do": "reclaim", "pid": process::id(), "amount": "all"});
    let done = ask(&find()?.socket, &request, DONE)?;
    let bytes = |name: &str| done[0][name].as_u64().ok_or(Outcome::NoAnswer);
    // A process that is too small to be paged has nothing to free.
    Ok(bytes("before_bytes")?.saturating_sub(bytes("after_bytes")?))
}

fn ask(socket: &Path, request: &Value, patience: Duration) -> Result<Value> {
    let reply = exchange(socket, request, patience).map_err(|_| Outcome::NoAnswer)?;
    let mut reply: Value = serde_json::from_slice(&reply).map_err(|_| Outcome::NoAnswer)?;
    if reply.get("error").is_some() {
        return Err(Outcome::Refused);
    }
    reply.get_mut("ok").map(Value::take).ok_or(Outcome::NoAnswer)
}

/// Sends a line, and reads one.
fn exchange(socket: &Path, request: &Value, patience: Duration) -> std::io::Result<Vec<u8>> {
    let mut line = UnixStream::connect(socket)?;
    let until = Instant::now() + patience;
    line.set_write_timeout(Some(patience))?;
    line.write_all(format!("{request}\n").as_bytes())?;
    receive(until, |left, piece| {
        line.set_read_timeout(Some(left))?;
        line.read(piece)
    })
}

/// Reads a line in pieces, each by a `read` that waits no longer than it is told.
fn receive(
    until: Instant,
    mut read: impl FnMut(Duration, &mut [u8]) -> std::io::Result<usize>,
) -> std::io::Result<Vec<u8>> {
    let (mut reply, mut piece) = (Vec::new(), [0; 4096]);
    while !reply.ends_with(b"\n") && reply.len() < REPLY_BYTES {
        // Zero would be for ever.
        let left = until.saturating_duration_since(Instant::now());
        match read(left.max(Duration::from_millis(1)), &mut piece) {
            _ if left.is_zero() => return Err(ErrorKind::TimedOut.into()),
            // A read with a timeout ends with every signal that the program handles.
            Err(why) if why.kind() == ErrorKind::Interrupted => {}
            Err(why) => return Err(why),
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => reply.extend_from_slice(&piece[..n]),
        }
    }
    Ok(reply)
}

/// Sockets of the user's runs.
fn sockets() -> Vec<PathBuf> {
    let names = directories().into_iter().filter_map(|directory| fs::read_dir(directory).ok());
    let paths = names.flatten().flatten().map(|entry| entry.path());
    paths.filter(|path| path.extension().is_some_and(|own| own == "sock")).collect()
}

/// Directories in which they may be: this user's, and closed to others, since in an open one
/// anybody could answer.
fn directories() -> Vec<PathBuf> {
    let user = user();
    let given = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let mut all = Vec::from_iter(given.map(|path| path.join("uzswap")));
    all.extend(
        [format!("/run/user/{user}/uzswap"), format!("/tmp/uzswap-{user}")].map(PathBuf::from),
    );
    all.dedup();
    all.retain(|path| {
        let found = fs::symlink_metadata(path);
        found.is_ok_and(|d| d.is_dir() && d.uid() == user && d.mode() & 0o077 == 0)
    });
    all
}

/// The effective user, as the kernel has the owner of this process.
fn user() -> u32 {
    fs::metadata("/proc/self").map_or(u32::MAX, |of| of.uid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_waited_for_though_signals_come_and_no_longer_than_said() {
        let soon = Duration::from_secs(3600);
        let mut events =
            vec![Ok(&b"one li"[..]), Err(ErrorKind::Interrupted), Ok(b"ne\n"), Ok(b"no more")];
        let reply = receive(Instant::now() + soon, |left, piece| {
            assert!(left <= soon);
            let bytes = events.remove(0)?;
            piece[..bytes.len()].copy_from_slice(bytes);
            Ok(bytes.len())
        });
        assert_eq!((reply.unwrap(), events.len()), (b"one line\n".to_vec(), 1));
        // Signals that never end do not make it wait for ever.
        let late = receive(Instant::now(), |_, _| Err(ErrorKind::Interrupted.into()));
        assert_eq!(late.unwrap_err().kind(), ErrorKind::TimedOut);
        let gone = receive(Instant::now() + soon, |_, _| Ok(0));
        assert_eq!(gone.unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_list_is_this_process_and_its_run() {
        let list = json!({
            "run": 7, "command": ["x"], "limit_bytes": 100, "seconds": 1.5,
            "processes": [
                {"pid": 8, "state": "active", "used_bytes": 30, "needed_bytes": 90, "faults": 4,
                 "resident_bytes": 20, "pool_bytes": 10, "written_bytes": 5},
                {"pid": 9, "state": "waits", "used_bytes": 12},
            ],
        });
        let own = Figures::of(&list, 8).unwrap();
        let expected = Figures {
            run: 7,
            milliseconds: 1500,
            processes: 2,
            limit_bytes: 100,
            used_bytes: 42,
            own_used_bytes: 30,
            own_needed_bytes: 90,
            resident_bytes: 20,
            pool_bytes: 10,
            written_bytes: 5,
            faults: 4,
            activity: 1,
        };
        assert_eq!(own, expected);
        assert_eq!(Figures::of(&list, 9).map(|f| f.activity), Some(2));
        assert_eq!(Figures::of(&list, 10), None);
        assert_eq!(Figures::of(&json!({"processes": 3}), 8), None);
    }
}
