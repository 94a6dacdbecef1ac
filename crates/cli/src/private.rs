//! Directories that are the user's alone. The owner of a place is checked before anything is made
//! there, and the directory that was checked is the one that is used.
//!
//! ```text
//!   ours(parent)? ──> mkdir ──> open once, without following a link ──> whose is it, who else may enter? ──> /proc/self/fd/N/NAME
//! ```
//!
//! Between a look and a use a name can become another directory, if somebody else owns a directory
//! above it. An open directory stays what it is. root makes nothing in a user's directory: it would
//! be root's, and in the user's way.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::program::reason;

/// Why a directory will not do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The directory, and what is wrong.
    pub text: String,
    /// Something is there that somebody else has put there, or may change.
    pub is_foreign: bool,
}

/// Rights of others in a directory, as bits of its mode that must not be set.
#[derive(Clone, Copy)]
pub enum Closed {
    /// Nobody else may enter.
    ToAll = 0o077,
    /// Nobody else may write.
    ToWriters = 0o022,
}

/// An open directory that is the user's.
#[derive(Debug)]
pub struct Private {
    directory: File,
    path: PathBuf,
}

impl Private {
    /// Opens a directory, made if it is missing, with what is missing above it.
    pub fn make(path: &Path, user: u32, closed: Closed) -> Result<Private, Fault> {
        may_make(path, user)?;
        match DirBuilder::new().recursive(true).mode(0o700).create(path) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => Err(own_fault(path, &reason(&e))),
            _ => Private::open(path, user, closed),
        }
    }

    /// Opens a directory that is there.
    pub fn open(path: &Path, user: u32, closed: Closed) -> Result<Private, Fault> {
        let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let directory =
            OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(|e| {
                // The kernel says the same of a link and of a file.
                match fs::symlink_metadata(path) {
                    Ok(m) if m.is_symlink() => foreign_fault(path, "is a symbolic link"),
                    Ok(m) if !m.is_dir() => foreign_fault(path, "is not a directory"),
                    _ => own_fault(path, &reason(&e)),
                }
            })?;
        let metadata = directory.metadata().map_err(|e| own_fault(path, &reason(&e)))?;
        let others = metadata.mode() & closed as u32;
        if metadata.uid() != user {
            return Err(foreign_fault(path, &format!("belongs to user {}", metadata.uid())));
        }
        if others != 0 {
            let can =
                if others & 0o022 != 0 { "can be written by others" } else { "is open to others" };
            let text = format!("{can} (mode {:o})", metadata.mode() & 0o777);
            return Err(foreign_fault(path, &text));
        }
        Ok(Private { directory, path: path.into() })
    }

    /// The path as the user knows it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory itself, whatever its name leads to by now.
    pub fn itself(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.directory.as_raw_fd()).into()
    }

    /// A file in it.
    pub fn at(&self, name: &str) -> PathBuf {
        self.itself().join(name)
    }
}

fn own_fault(path: &Path, what: &str) -> Fault {
    Fault { text: format!("{}: {what}", path.display()), is_foreign: false }
}

fn foreign_fault(path: &Path, what: &str) -> Fault {
    Fault { text: format!("{} {what}", path.display()), is_foreign: true }
}

/// Whether something may be made at `path`. The first directory above it that exists must be the
/// user's, or one like /tmp, where nobody can remove what another user made.
fn may_make(path: &Path, user: u32) -> Result<(), Fault> {
    let is_everybodys = |m: &Metadata| m.uid() == 0 && m.mode() & 0o1002 == 0o1002;
    for above in path.ancestors().skip(1).filter(|a| !a.as_os_str().is_empty()) {
        match fs::metadata(above) {
            Ok(m) if m.uid() == user || is_everybodys(&m) => return Ok(()),
            Ok(m) => {
                let text =
                    format!("{}: {} belongs to user {}", path.display(), above.display(), m.uid());
                return Err(Fault { text, is_foreign: false });
            }
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(own_fault(above, &reason(&e))),
        }
    }
    // Relative to where we are.
    Ok(())
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::sync::atomic::{AtomicU32, Ordering};

    /// An empty directory that is gone with the value.
    pub struct Scratch(pub PathBuf);

    impl Scratch {
        pub fn new() -> Scratch {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let n = NEXT.fetch_add(1, Ordering::Relaxed);
            let path =
                std::env::temp_dir().join(format!("uzswap-private-{}-{n}", std::process::id()));
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
        crate::os::identity().user
    }

    #[test]
    fn a_directory_is_made_for_the_user_alone() {
        let s = Scratch::new();
        let path = s.0.join("a/b");
        Private::make(&path, user(), Closed::ToAll).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        assert_eq!(Private::make(&path, user(), Closed::ToAll).unwrap().path(), path);
    }

    #[test]
    fn what_is_not_the_users_alone_is_refused() {
        let s = Scratch::new();
        let refused = |path: &Path, user, closed, word: &str| {
            let fault = Private::open(path, user, closed).unwrap_err();
            assert!(
                fault.text.contains(word) && fault.text.contains(path.to_str().unwrap()),
                "{fault:?}"
            );
            assert_eq!(fault.is_foreign, word != "no such", "{fault:?}");
        };
        let (open, file, link) = (s.0.join("open"), s.0.join("file"), s.0.join("link"));
        fs::create_dir(&open).unwrap();
        let mode = |mode| fs::set_permissions(&open, fs::Permissions::from_mode(mode)).unwrap();
        mode(0o750);
        refused(&open, user(), Closed::ToAll, "open to others (mode 750)");
        Private::open(&open, user(), Closed::ToWriters).unwrap();
        mode(0o770);
        refused(&open, user(), Closed::ToWriters, "written by others (mode 770)");
        mode(0o700);
        refused(&open, user() + 1, Closed::ToAll, "belongs to user");
        symlink(&open, &link).unwrap();
        refused(&link, user(), Closed::ToAll, "symbolic link");
        fs::write(&file, "").unwrap();
        refused(&file, user(), Closed::ToAll, "not a directory");
        refused(&s.0.join("no/where"), user(), Closed::ToAll, "no such");
    }

    #[test]
    fn nothing_is_made_where_somebody_else_is_at_home() {
        let s = Scratch::new();
        let home = s.0.join("home");
        fs::create_dir(&home).unwrap();
        // As if we were somebody else: /tmp is everybody's, what is in it is not.
        let stranger = user() + 1;
        let fault =
            Private::make(&home.join(".cache/uzswap"), stranger, Closed::ToAll).unwrap_err();
        assert!(fault.text.contains("belongs to user") && !fault.is_foreign, "{fault:?}");
        assert_eq!(fs::read_dir(&home).unwrap().count(), 0);
        if user() == 0 {
            chown(&home, Some(65534), None).unwrap();
            Private::make(&home.join(".cache/uzswap"), 0, Closed::ToAll).unwrap_err();
            assert_eq!(
                fs::read_dir(&home).unwrap().count(),
                0,
                "root makes nothing in a user's home"
            );
        }
    }

    #[test]
    fn what_was_opened_is_what_is_used() {
        let s = Scratch::new();
        let (name, moved, elsewhere) = (s.0.join("name"), s.0.join("moved"), s.0.join("elsewhere"));
        let private = Private::make(&name, user(), Closed::ToAll).unwrap();
        fs::create_dir(&elsewhere).unwrap();
        fs::write(elsewhere.join("file"), "precious").unwrap();
        fs::rename(&name, &moved).unwrap();
        symlink(&elsewhere, &name).unwrap();
        let _ = fs::remove_file(private.at("file"));
        fs::write(private.at("new"), "").unwrap();
        assert!(elsewhere.join("file").exists() && moved.join("new").exists());
        assert_eq!(fs::read_dir(private.itself()).unwrap().count(), 1);
    }
}
