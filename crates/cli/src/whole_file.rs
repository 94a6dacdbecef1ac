//! Files that are there whole or not at all: written beside their place, and moved there. Where the
//! disk is full the file of before stays.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Whether something is there that no new file may take the place of: a device, a pipe, or a link
/// to something.
fn is_kept(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|there| !there.is_file() || path.is_symlink())
}

/// Opens it without waiting for a reader of the pipe that it may be.
fn open_at_once(path: &Path) -> io::Result<File> {
    File::options().append(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// Whether the file can be made. Nothing is left: a run that is killed leaves no half of one.
pub fn try_path(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if is_kept(path) {
        // A pipe that nobody reads yet.
        return open_at_once(path).map(drop).or_else(|e| match e.raw_os_error() {
            Some(libc::ENXIO) => Ok(()),
            _ => Err(e),
        });
    }
    let (temporary, _) = create_beside(path)?;
    fs::remove_file(temporary)
}

/// Writes the file, whole or not at all; into what is kept, as it goes.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    if is_kept(path) {
        let _there = open_at_once(path)?;
        let mut file = File::options().write(true).truncate(true).open(path)?;
        return file.write_all(text.as_bytes());
    }
    let (temporary, mut file) = create_beside(path)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

fn create_beside(path: &Path) -> io::Result<(PathBuf, File)> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut beside = OsString::from(".");
    beside.push(name);
    beside.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(beside);
    let make = || File::options().write(true).create_new(true).open(&temporary);
    let file = match make() {
        // Of a run that was killed as it wrote: in a container the next has its number again.
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_file(&temporary).and_then(|()| make())
        }
        other => other,
    }?;
    Ok((temporary, file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_there_whole_or_not_at_all() {
        let dir = std::env::temp_dir().join(format!("uzswap-page-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("r.html");
        try_path(&path).unwrap();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        write(&path, "one").unwrap();
        write(&path, "two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        assert!(try_path(&dir).is_err() && try_path(&dir.join("none/r.html")).is_err());

        // A run of this number was killed and left a file there, or another user has put one.
        let beside = dir.join(format!(".r.html.{}.tmp", std::process::id()));
        fs::write(&beside, "half").unwrap();
        try_path(&path).unwrap();
        std::os::unix::fs::symlink(&path, &beside).unwrap();
        write(&path, "three").unwrap();
        assert!(fs::read(&path).unwrap() == b"three" && !path.is_symlink() && !beside.exists());
        // No file takes the place of a device, or of a link.
        for (name, target) in [("null", Path::new("/dev/null")), ("link", path.as_path())] {
            let link = dir.join(name);
            std::os::unix::fs::symlink(target, &link).unwrap();
            try_path(&link).unwrap();
            write(&link, "four").unwrap();
            assert!(link.is_symlink(), "{name}");
        }
        assert_eq!(fs::read(&path).unwrap(), b"four");
        fs::remove_dir_all(&dir).unwrap();
    }
}
