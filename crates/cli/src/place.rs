//! Places in the file system: where cold pages go, where analyses of libraries are kept, where the
//! preload library is.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use uzswap::sys::file;

use crate::Failure;
use crate::os::{self, FileSystem};
use crate::private::{Closed, Fault, Private};
use crate::program::reason;

pub type Env<'a> = &'a dyn Fn(&str) -> Option<OsString>;

// ---------------------------------------------------------------- the store

/// Makes a file without a name.
fn open_unnamed(directory: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .mode(0o600)
        .custom_flags(libc::O_TMPFILE)
        .open(directory)
}

/// The way for file systems without O_TMPFILE (overlay on old kernels, NFS, 9p), as the store goes
/// it: a random name that exists for a moment. One that is left, by a process that was killed in
/// that moment, is in nobody's way.
fn create_and_unlink(directory: &Path) -> io::Result<File> {
    let mut random = [0u8; 12];
    file::fill_random(&mut random).map_err(|e| io::Error::from_raw_os_error(e.0))?;
    let digits: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let path = directory.join(format!(".uzswap-{digits}"));
    let file =
        OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

/// A file without a name, as the store makes it.
fn open_store_file(directory: &Path) -> io::Result<File> {
    /// Errors of file systems without O_TMPFILE, and of kernels that take it for O_DIRECTORY.
    const WITHOUT: [i32; 4] = [libc::EOPNOTSUPP, libc::EISDIR, libc::ENOENT, libc::EINVAL];
    match open_unnamed(directory) {
        Err(e) if e.raw_os_error().is_some_and(|errno| WITHOUT.contains(&errno)) => {
            create_and_unlink(directory)
        }
        other => other,
    }
}

/// Whether writes can bypass the page cache, which would count against the memory limit.
pub fn takes_direct_io(directory: &Path) -> bool {
    open_store_file(directory).is_ok_and(|file| file::set_direct(file.as_raw_fd(), true).is_ok())
}

/// Tries a directory for the backing store by doing what the store does: a file without a name, and
/// bytes in it. Returns its file system.
pub fn try_store(directory: &Path) -> io::Result<FileSystem> {
    if !fs::metadata(directory)?.is_dir() {
        return Err(ErrorKind::NotADirectory.into());
    }
    let bytes = [0xa5u8; 65536];
    os::within_file_size(bytes.len())?;
    open_store_file(directory)?.write_all_at(&bytes, 0)?;
    FileSystem::of(directory)
}

/// The store's directory when no option names one: the first on a disk that works, or why there is
/// none.
pub fn default_store(env: Env) -> Result<PathBuf, String> {
    let candidates =
        [env("TMPDIR").map(PathBuf::from), Some("/var/tmp".into()), Some("/tmp".into())];
    let mut faults = Vec::new();
    for directory in candidates.into_iter().flatten().filter(|d| d.is_absolute()) {
        match try_store(&directory) {
            Ok(file_system) if file_system.is_memory() => {
                faults.push(format!("{} is a {} (memory)", directory.display(), file_system.name()))
            }
            Ok(_) => return Ok(directory),
            Err(e) => faults.push(format!("{}: {}", directory.display(), store_fault(&e))),
        }
    }
    Err(faults.join(", "))
}

/// Why a directory cannot hold the store, in words.
pub fn store_fault(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "no such directory".to_string(),
        ErrorKind::NotADirectory => "is not a directory".to_string(),
        ErrorKind::PermissionDenied => "not writable".to_string(),
        ErrorKind::StorageFull => "no space left on its disk".to_string(),
        ErrorKind::QuotaExceeded => "its disk quota is used up".to_string(),
        _ => reason(error),
    }
}

// ---------------------------------------------------------------- the cache of patch tables and
// texts

/// Tells programs that make backups to leave the directory out: a backup restored over it would
/// change texts that run.
const TAG: &str = "CACHEDIR.TAG";
const TAG_TEXT: &str = "Signature: 8a477f597d28d172789f06886806bc55\n\
                        # This is a cache of uzswap. See https://bford.info/cachedir/\n";

/// Makes the directory if it is missing, and checks that only we can write there: what it holds is
/// executed, in effect, by every program that we run.
pub fn private_directory(path: &Path) -> Result<(), Fault> {
    let directory = Private::make(path, os::identity().user, Closed::ToWriters)?;
    if os::c_string(path.as_os_str().as_bytes()).is_err() {
        return Err(Fault {
            text: format!("{}: contains a zero byte", path.display()),
            is_foreign: false,
        });
    }
    // Without it the cache works as well.
    if os::within_file_size(TAG_TEXT.len()).is_ok()
        && let Ok(mut file) =
            OpenOptions::new().write(true).create_new(true).open(directory.at(TAG))
    {
        let _ = file.write_all(TAG_TEXT.as_bytes());
    }
    Ok(())
}

/// The directory of patch tables and texts when no option names one; none if no place is private. A
/// directory in which another user is in the way becomes a remark.
pub fn default_cache(env: Env, remarks: &mut Vec<String>) -> Option<PathBuf> {
    let absolute = |base: &PathBuf| base.is_absolute();
    let base = env("XDG_CACHE_HOME")
        .map(PathBuf::from)
        // By its specification an empty or relative one counts as none.
        .filter(absolute)
        .or_else(|| env("HOME").map(|home| Path::new(&home).join(".cache")).filter(absolute))
        .map(|base| base.join("uzswap"));
    let shared = PathBuf::from(format!("/tmp/uzswap-{}", os::identity().user));
    let mut foreign = Vec::new();
    let found =
        [base, Some(shared)].into_iter().flatten().find(|path| match private_directory(path) {
            Ok(()) => true,
            Err(fault) => {
                foreign.extend(fault.is_foreign.then_some(fault.text));
                false
            }
        });
    if !foreign.is_empty() {
        let instead = match &found {
            Some(path) => format!("the cache is in {}", path.display()),
            None => "there is no cache, so starts take longer".to_string(),
        };
        let why = foreign.join(", ");
        remarks.push(format!("{instead}: {why} (remove it, or name a directory with --cache)"));
    }
    found
}

// ---------------------------------------------------------------- the preload library

/// The variable that names the preload library.
pub const PRELOAD_VARIABLE: &str = "UZSWAP_PRELOAD";
/// Where the preload library may lie, by the directory of the command: beside it, as cargo builds
/// and installs it, or where packages have it.
const LIBRARIES: [&str; 2] = ["libuzswap_preload", "../lib/uzswap/libuzswap_preload.so"];

/// The preload library: where one belongs to this command, or where UZSWAP_PRELOAD says.
pub fn find_preload(env: Env) -> Result<PathBuf, String> {
    let path = match env(PRELOAD_VARIABLE).filter(|v| !v.is_empty()) {
        Some(given) => {
            let path = fs::canonicalize(&given)
                .map_err(|e| format!("{PRELOAD_VARIABLE}: {}: {}", given.display(), reason(&e)))?;
            if !path.is_file() {
                return Err(format!("{PRELOAD_VARIABLE}: {} is not a file", path.display()));
            }
            path
        }
        None => {
            let own = std::env::current_exe().map_err(|e| format!("cannot find myself: {e}"))?;
            let own_directory = own.parent().unwrap_or(Path::new("/"));
            let found = LIBRARIES.iter().find_map(|c| fs::canonicalize(own_directory.join(c)).ok());
            found.ok_or_else(|| {
                format!(
                    "{} is neither beside {} nor in ../lib/uzswap: build it (cargo build \
                     --release) or name it in {PRELOAD_VARIABLE}",
                    LIBRARIES[0],
                    own.display()
                )
            })?
        }
    };
    check_preload_path(path.as_os_str())?;
    Ok(path)
}

/// LD_PRELOAD is a list: blanks and colons separate, and there is no way to quote them.
fn check_preload_path(path: &OsStr) -> Result<(), String> {
    if path.as_bytes().iter().any(|b| matches!(b, b' ' | b':' | b'\t' | b'\n' | b';' | b'$')) {
        return Err(format!(
            "the path of {} holds a character that LD_PRELOAD cannot carry: install it elsewhere",
            path.display()
        ));
    }
    Ok(())
}

/// This command, for processes of its own that are measured.
pub fn own_path() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|e| Failure::environment(format!("where this command is: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_store_directory_is_really_tried() {
        assert!(try_store(&std::env::temp_dir()).unwrap().free_bytes > 0);
        assert_eq!(
            try_store(Path::new("/does/not/exist")).unwrap_err().kind(),
            ErrorKind::NotFound
        );
        assert_eq!(
            try_store(Path::new("/etc/passwd")).unwrap_err().kind(),
            ErrorKind::NotADirectory
        );
        assert!(try_store(Path::new("/proc")).is_err());
    }

    #[test]
    fn a_memory_file_system_is_no_default() {
        let env = |name: &str| (name == "TMPDIR").then(|| OsString::from("/dev/shm"));
        match default_store(&env) {
            Ok(directory) => assert_ne!(directory, Path::new("/dev/shm")),
            Err(why) => assert!(why.contains("/dev/shm is a tmpfs"), "{why}"),
        }
    }

    #[test]
    fn a_file_that_a_killed_run_has_left_is_in_nobodys_way() {
        let path = std::env::temp_dir().join(format!("uzswap-left-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        let left = path.join(format!(".uzswap-{}", std::process::id()));
        fs::write(&left, "").unwrap();
        for _ in 0..3 {
            create_and_unlink(&path).unwrap().write_all_at(b"x", 0).unwrap();
        }
        assert_eq!(takes_direct_io(&path), {
            let file = create_and_unlink(&path).unwrap();
            file::set_direct(file.as_raw_fd(), true).is_ok()
        });
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1, "and none is added");
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn a_cache_that_others_can_write_is_refused_and_said() {
        let path = std::env::temp_dir().join(format!("uzswap-cache-{}", std::process::id()));
        private_directory(&path.join("uzswap")).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(
            fs::read_to_string(path.join("uzswap/CACHEDIR.TAG"))
                .unwrap()
                .starts_with("Signature: 8a47")
        );
        let found = || {
            let env = |name: &str| (name == "XDG_CACHE_HOME").then(|| path.clone().into());
            let mut remarks = Vec::new();
            (default_cache(&env, &mut remarks), remarks)
        };
        assert_eq!(found(), (Some(path.join("uzswap")), vec![]));
        fs::set_permissions(path.join("uzswap"), fs::Permissions::from_mode(0o777)).unwrap();
        let (other, remarks) = found();
        assert_ne!(other, Some(path.join("uzswap")));
        assert!(
            remarks[0].contains("written by others (mode 777)") && remarks[0].contains("--cache")
        );
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn a_variable_that_names_no_place_leaves_the_cache_at_home() {
        let home = std::env::temp_dir().join(format!("uzswap-xdg-{}", std::process::id()));
        fs::create_dir(&home).unwrap();
        for given in ["", "relative"] {
            let env = |name: &str| match name {
                "XDG_CACHE_HOME" => Some(OsString::from(given)),
                "HOME" => Some(home.clone().into()),
                _ => None,
            };
            let mut remarks = Vec::new();
            assert_eq!(default_cache(&env, &mut remarks), Some(home.join(".cache/uzswap")));
            assert_eq!(remarks, [""; 0]);
        }
        fs::remove_dir_all(&home).unwrap();
    }

    #[test]
    fn root_has_no_cache_in_the_home_of_a_user() {
        let home = std::env::temp_dir().join(format!("uzswap-home-{}", std::process::id()));
        fs::create_dir(&home).unwrap();
        if std::os::unix::fs::chown(&home, Some(65534), None).is_err() {
            eprintln!("only root can give a directory away: skipped");
        } else {
            let env = |name: &str| (name == "HOME").then(|| home.clone().into());
            let mut remarks = Vec::new();
            let found = default_cache(&env, &mut remarks);
            assert!(found.is_none_or(|path| !path.starts_with(&home)));
            assert_eq!((fs::read_dir(&home).unwrap().count(), remarks), (0, vec![]));
        }
        fs::remove_dir(&home).unwrap();
    }

    #[test]
    fn preload_paths_that_cannot_be_written_in_a_list() {
        assert!(check_preload_path(OsStr::new("/usr/lib/uzswap/libuzswap_preload.so")).is_ok());
        for path in ["/my files/a.so", "/a:b/a.so", "/$LIB/a.so"] {
            assert!(check_preload_path(OsStr::new(path)).is_err(), "{path}");
        }
    }
}
