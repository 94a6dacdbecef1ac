//! The directories of the sockets: `$XDG_RUNTIME_DIR/uzswap`, else `/tmp/uzswap-UID`, of the user alone.
//!
//! /tmp is everybody's: another user may have made the name first, as a directory, a link, or a file. So what is there
//! is looked at before it is used: a directory, not a link, ours, closed to all others. After that nobody else can
//! put anything into it or take it away (/tmp is sticky).
//!
//! A run that is killed leaves its socket behind. Nobody listens there, which the next one who looks finds out, and removes it.

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::os;
use crate::program::reason;

type Env<'a> = &'a dyn Fn(&str) -> Option<OsString>;

const SUFFIX: &str = ".sock";
/// A socket before it has its name.
const NEW_SUFFIX: &str = ".new";

/// Where sockets may be, best first. The second is where systemd puts XDG_RUNTIME_DIR: a command that has no such
/// variable (by cron, by ssh) finds the runs of a session there.
fn candidates(env: Env, user: u32) -> Vec<PathBuf> {
    let session = PathBuf::from(format!("/run/user/{user}"));
    let given = env("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|d| d.is_absolute());
    let mut all: Vec<PathBuf> = given.into_iter().chain([session]).map(|d| d.join("uzswap")).collect();
    all.push(format!("/tmp/uzswap-{user}").into());
    all.dedup();
    all
}

/// Checks that nobody but `user` can do anything in the directory.
fn verify(path: &Path, user: u32) -> Result<(), String> {
    // The directory itself, not what a link of somebody else points to.
    let metadata = fs::symlink_metadata(path).map_err(|e| format!("{}: {}", path.display(), reason(&e)))?;
    let fault = if metadata.is_symlink() {
        "is a symbolic link".to_string()
    } else if !metadata.is_dir() {
        "is not a directory".to_string()
    } else if metadata.uid() != user {
        format!("belongs to user {}", metadata.uid())
    } else if metadata.mode() & 0o077 != 0 {
        format!("is open to others (mode {:o})", metadata.mode() & 0o777)
    } else {
        return Ok(());
    };
    Err(format!("{} {fault}", path.display()))
}

fn make(path: &Path, user: u32) -> Result<(), String> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => Err(format!("{}: {}", path.display(), reason(&e))),
        _ => verify(path, user),
    }
}

/// A socket that listens, and the name by which it is found.
#[derive(Debug)]
pub struct Named {
    pub listener: UnixListener,
    path: PathBuf,
}

impl Named {
    /// Nobody finds it any more.
    pub fn unlink(&self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Listens as run `run`, in the first directory that will do.
pub fn listen(env: Env, run: u32) -> Result<Named, String> {
    let user = os::identity().user;
    let mut faults = Vec::new();
    for directory in candidates(env, user) {
        match make(&directory, user).and_then(|()| listen_in(&directory, run)) {
            Ok(named) => return Ok(named),
            Err(fault) => faults.push(fault),
        }
    }
    Err(faults.join(", "))
}

fn listen_in(directory: &Path, run: u32) -> Result<Named, String> {
    let path = directory.join(format!("{run}{SUFFIX}"));
    let fault = |e: std::io::Error| format!("{}: {}", path.display(), reason(&e));
    // A run of another pid namespace that shares the directory may have our number.
    if UnixStream::connect(&path).is_ok() {
        return Err(format!("{} is in use", path.display()));
    }
    // Whoever lists removes a socket on which nobody listens, so it gets its name when we do.
    let unnamed = directory.join(format!("{run}{NEW_SUFFIX}"));
    let _ = fs::remove_file(&unnamed);
    let listener = UnixListener::bind(&unnamed).map_err(fault)?;
    fs::rename(&unnamed, &path).map_err(|e| {
        let _ = fs::remove_file(&unnamed);
        fault(e)
    })?;
    Ok(Named { listener, path })
}

/// Connects to every run of the user that is there, and removes what killed runs have left.
pub fn connect_all(env: Env) -> Vec<(u32, UnixStream)> {
    let user = os::identity().user;
    let usable = |d: &PathBuf| verify(d, user).is_ok();
    let mut found: Vec<_> =
        candidates(env, user).iter().filter(|d| usable(d)).flat_map(|d| connect_in(d)).collect();
    found.sort_by_key(|(run, _)| *run);
    found
}

fn connect_in(directory: &Path) -> Vec<(u32, UnixStream)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let Some(name) = name.to_str() else { continue };
        let of = |suffix| name.strip_suffix(suffix).and_then(|run| run.parse().ok());
        match of(SUFFIX) {
            Some(run) => match UnixStream::connect(&path) {
                Ok(stream) => found.push((run, stream)),
                Err(e) if e.kind() == ErrorKind::ConnectionRefused => _ = fs::remove_file(&path),
                Err(_) => {}
            },
            // Killed between the two names.
            None if of(NEW_SUFFIX).is_some_and(|run: u32| !Path::new(&format!("/proc/{run}")).exists()) => {
                let _ = fs::remove_file(&path);
            }
            None => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::sync::atomic::{AtomicU32, Ordering};

    struct Scratch(PathBuf);

    impl Scratch {
        fn new() -> Scratch {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let n = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("uzswap-control-{}-{n}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Scratch(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn user() -> u32 {
        os::identity().user
    }

    #[test]
    fn a_directory_is_made_for_the_user_alone() {
        let s = Scratch::new();
        let path = s.0.join("uzswap");
        make(&path, user()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        make(&path, user()).unwrap();
    }

    #[test]
    fn what_is_not_the_users_alone_is_refused() {
        let s = Scratch::new();
        let refused = |path: &Path, user, word: &str| {
            let fault = make(path, user).unwrap_err();
            assert!(fault.contains(word) && fault.contains(path.to_str().unwrap()), "{fault}");
        };
        let (open, file, link) = (s.0.join("open"), s.0.join("file"), s.0.join("link"));
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o750)).unwrap();
        refused(&open, user(), "open to others (mode 750)");
        fs::set_permissions(&open, fs::Permissions::from_mode(0o700)).unwrap();
        refused(&open, user() + 1, "belongs to user");
        symlink(&open, &link).unwrap();
        refused(&link, user(), "symbolic link");
        fs::write(&file, "").unwrap();
        refused(&file, user(), "not a directory");
        refused(&s.0.join("no/where"), user(), "no such");
    }

    #[test]
    fn directories_by_preference() {
        let env = |name: &str| (name == "XDG_RUNTIME_DIR").then(|| OsString::from("/run/mine"));
        let all = candidates(&env, 7);
        assert_eq!(all, ["/run/mine/uzswap", "/run/user/7/uzswap", "/tmp/uzswap-7"].map(PathBuf::from));
        let relative = |_: &str| Some(OsString::from("here"));
        assert_eq!(candidates(&relative, 7).len(), 2);
        let session = |_: &str| Some(OsString::from("/run/user/7"));
        assert_eq!(candidates(&session, 7).len(), 2);
    }

    #[test]
    fn sockets_of_killed_runs_are_removed_by_who_lists() {
        let s = Scratch::new();
        let alive = listen_in(&s.0, 11).unwrap();
        // Nobody listens any more, but the name stays.
        drop(UnixListener::bind(s.0.join("12.sock")).unwrap());
        fs::write(s.0.join("4194999.new"), "").unwrap();
        fs::write(s.0.join("other.txt"), "").unwrap();
        let found: Vec<u32> = connect_in(&s.0).into_iter().map(|(run, _)| run).collect();
        assert_eq!(found, [11]);
        let names = || {
            let mut names: Vec<_> = fs::read_dir(&s.0).unwrap().map(|e| e.unwrap().file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(), ["11.sock", "other.txt"]);
        assert!(listen_in(&s.0, 11).unwrap_err().contains("in use"));
        alive.unlink();
        assert_eq!(names(), ["other.txt"]);
        // A name that a killed run has left is taken over.
        drop(UnixListener::bind(s.0.join("12.sock")).unwrap());
        listen_in(&s.0, 12).unwrap();
    }
}
