//! The directories of the sockets: `$XDG_RUNTIME_DIR/uzswap`, else `/run/user/UID/uzswap`, else
//! `/tmp/uzswap-UID`, of the user alone.
//!
//! /tmp is everybody's: another user may have made the name first, as a directory, a link, or a
//! file. Then runs work as well, but cannot be seen, and say so. The directory is opened once,
//! checked, and used by its descriptor (`private.rs`).
//!
//! A run that is killed leaves its socket behind. Nobody listens there; the next process that looks
//! finds this out and removes the socket.

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::os;
use crate::private::{Closed, Fault, Private};
use crate::program::reason;

type Env<'a> = &'a dyn Fn(&str) -> Option<OsString>;

const SUFFIX: &str = ".sock";
/// The ending of a socket's first name, until the socket listens.
const NEW_SUFFIX: &str = ".new";

/// The directories where sockets may be, best first. The second is where systemd puts
/// XDG_RUNTIME_DIR: a command that has no such variable (by cron, by ssh) finds the runs of a
/// session there.
fn candidates(env: Env, user: u32) -> Vec<PathBuf> {
    let session = session(user);
    let given = env("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|d| d.is_absolute());
    let mut all: Vec<PathBuf> =
        given.into_iter().chain([session]).map(|d| d.join("uzswap")).collect();
    all.push(format!("/tmp/uzswap-{user}").into());
    all.dedup();
    all
}

/// The directory of the user's session.
fn session(user: u32) -> PathBuf {
    format!("/run/user/{user}").into()
}

/// Those of the directories in which something may be made. The session's is not made by us, though
/// root could: once a session begins systemd mounts its own over it, and nobody sees what is below.
fn usable(mut all: Vec<PathBuf>, session: &Path) -> Vec<PathBuf> {
    all.retain(|d| !d.starts_with(session) || session.is_dir());
    all
}

/// The directories that exist and are the user's alone.
pub fn existing(env: Env) -> Vec<PathBuf> {
    let user = os::identity().user;
    let is_own = |d: &PathBuf| Private::open(d, user, Closed::ToAll).is_ok();
    candidates(env, user).into_iter().filter(is_own).collect()
}

/// The first directory that will do, made if it is not there; by its name, since others are to find
/// what is in it.
pub fn open(env: Env) -> Result<PathBuf, String> {
    in_first(env, |directory| Ok(directory.path().to_path_buf())).map_err(|fault| fault.text)
}

/// Calls `f` in the first directory that will do, made if it is not there. The fault has the text
/// of all directories' faults.
fn in_first<T>(env: Env, f: impl Fn(Private) -> Result<T, Fault>) -> Result<T, Fault> {
    let user = os::identity().user;
    let mut all = Fault { text: String::new(), is_foreign: false };
    for path in usable(candidates(env, user), &session(user)) {
        match Private::make(&path, user, Closed::ToAll).and_then(&f) {
            Ok(made) => return Ok(made),
            Err(fault) => {
                all.text += if all.text.is_empty() { "" } else { ", " };
                all.text += &fault.text;
                all.is_foreign |= fault.is_foreign;
            }
        }
    }
    Err(all)
}

/// A socket that listens, and the name by which it is found.
#[derive(Debug)]
pub struct Named {
    pub listener: UnixListener,
    directory: Private,
    name: String,
}

impl Named {
    /// Removes the name: nobody finds the socket any more.
    pub fn unlink(&self) {
        let _ = fs::remove_file(self.directory.at(&self.name));
    }
}

/// Listens as run `run`, in the first directory that will do.
pub fn listen(env: Env, run: u32) -> Result<Named, Fault> {
    in_first(env, |directory| listen_in(directory, run))
}

fn listen_in(directory: Private, run: u32) -> Result<Named, Fault> {
    let name = format!("{run}{SUFFIX}");
    let fault = |why: &str| {
        let path = directory.path().join(&name);
        Fault { text: format!("{}: {why}", path.display()), is_foreign: false }
    };
    // A run of another pid namespace that shares the directory may have our number.
    match os::connect_at_once(&directory.at(&name)) {
        Ok(_) => return Err(fault("is in use")),
        Err(e) if e.kind() == ErrorKind::WouldBlock => return Err(fault("is in use")),
        Err(_) => {}
    }
    // A client that lists runs removes a socket on which nobody listens, so the socket gets its
    // name once we listen.
    let unnamed = directory.at(&format!("{run}{NEW_SUFFIX}"));
    let _ = fs::remove_file(&unnamed);
    let listener = UnixListener::bind(&unnamed).map_err(|e| fault(&reason(&e)))?;
    fs::rename(&unnamed, directory.at(&name)).map_err(|e| {
        let _ = fs::remove_file(&unnamed);
        fault(&reason(&e))
    })?;
    Ok(Named { listener, directory, name })
}

/// The runs found: those of the user that are there, and where somebody else keeps runs from being
/// seen.
#[derive(Default)]
pub struct Found {
    pub runs: Vec<(u32, UnixStream)>,
    /// Runs that take no more connections: one that was stopped while somebody asked again and
    /// again.
    pub silent: Vec<u32>,
    pub foreign: Vec<String>,
}

/// Connects to every run of the user that is there, and removes what killed runs have left.
pub fn connect_all(env: Env) -> Found {
    let user = os::identity().user;
    let mut found = Found::default();
    for path in candidates(env, user) {
        match Private::open(&path, user, Closed::ToAll) {
            Ok(directory) => connect_in(&directory, &mut found),
            Err(fault) if fault.is_foreign => found.foreign.push(fault.text),
            Err(_) => {}
        }
    }
    found.runs.sort_by_key(|(run, _)| *run);
    found
}

fn connect_in(directory: &Private, found: &mut Found) {
    for entry in fs::read_dir(directory.itself()).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let path = directory.at(name);
        let of = |suffix| name.strip_suffix(suffix).and_then(|run| run.parse().ok());
        match of(SUFFIX) {
            Some(run) => match os::connect_at_once(&path) {
                Ok(stream) => found.runs.push((run, stream)),
                Err(e) if e.kind() == ErrorKind::ConnectionRefused => _ = fs::remove_file(&path),
                Err(e) if e.kind() == ErrorKind::WouldBlock => found.silent.push(run),
                Err(_) => {}
            },
            // The run was killed between the two names of its socket.
            None if of(NEW_SUFFIX)
                .is_some_and(|run: u32| !Path::new(&format!("/proc/{run}")).exists()) =>
            {
                let _ = fs::remove_file(&path);
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::private::tests::Scratch;

    fn user() -> u32 {
        os::identity().user
    }

    #[test]
    fn directories_by_preference() {
        let env = |name: &str| (name == "XDG_RUNTIME_DIR").then(|| OsString::from("/run/mine"));
        let all = candidates(&env, 7);
        assert_eq!(
            all,
            ["/run/mine/uzswap", "/run/user/7/uzswap", "/tmp/uzswap-7"].map(PathBuf::from)
        );
        let relative = |_: &str| Some(OsString::from("here"));
        assert_eq!(candidates(&relative, 7).len(), 2);
        let session = |_: &str| Some(OsString::from("/run/user/7"));
        assert_eq!(candidates(&session, 7).len(), 2);
    }

    #[test]
    fn the_directory_of_a_session_is_not_made() {
        let s = Scratch::new();
        let [session, other] = [s.0.join("session"), s.0.join("other")].map(|d| d.join("uzswap"));
        let all = || vec![session.clone(), other.clone()];
        let above = session.parent().unwrap();
        assert_eq!(usable(all(), above), [other.as_path()]);
        fs::create_dir(above).unwrap();
        assert_eq!(usable(all(), above), all());
    }

    #[test]
    fn sockets_of_killed_runs_are_removed_by_who_lists() {
        let s = Scratch::new();
        fs::set_permissions(&s.0, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let open = || Private::open(&s.0, user(), Closed::ToAll).unwrap();
        let alive = listen_in(open(), 11).unwrap();
        // Nobody listens any more, but the name stays.
        drop(UnixListener::bind(s.0.join("12.sock")).unwrap());
        fs::write(s.0.join("4194999.new"), "").unwrap();
        fs::write(s.0.join("other.txt"), "").unwrap();
        let mut found = Found::default();
        connect_in(&open(), &mut found);
        assert_eq!(found.runs.iter().map(|(run, _)| *run).collect::<Vec<u32>>(), [11]);
        let names = || {
            let mut names: Vec<_> =
                fs::read_dir(&s.0).unwrap().map(|e| e.unwrap().file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(), ["11.sock", "other.txt"]);
        assert!(listen_in(open(), 11).unwrap_err().text.contains("in use"));
        alive.unlink();
        assert_eq!(names(), ["other.txt"]);
        // A name that a killed run has left is taken over.
        drop(UnixListener::bind(s.0.join("12.sock")).unwrap());
        listen_in(open(), 12).unwrap();
    }

    #[test]
    fn nobody_waits_for_a_stopped_run_that_takes_no_more_connections() {
        let s = Scratch::new();
        fs::set_permissions(&s.0, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let named = listen_in(Private::open(&s.0, user(), Closed::ToAll).unwrap(), 11).unwrap();
        // Nobody accepts here, and few may wait.
        nix::sys::socket::listen(&named.listener, nix::sys::socket::Backlog::new(1).unwrap())
            .unwrap();
        let path = s.0.clone();
        let (sender, seen) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let open = || Private::open(&path, user(), Closed::ToAll).unwrap();
            let looks = (0..5).map(|_| {
                let mut found = Found::default();
                connect_in(&open(), &mut found);
                (found.runs.len(), found.silent)
            });
            let looks: Vec<_> = looks.collect();
            let second = listen_in(open(), 11).unwrap_err().text;
            sender.send((looks, second)).unwrap();
        });
        let seen = seen.recv_timeout(std::time::Duration::from_secs(30));
        let (looks, second) = seen.expect("it waits for a connection");
        assert_eq!(looks.first(), Some(&(1, vec![])));
        assert_eq!(looks.last(), Some(&(0, vec![11])));
        assert!(second.contains("in use"), "{second}");
        assert!(s.0.join("11.sock").exists());
    }
}
