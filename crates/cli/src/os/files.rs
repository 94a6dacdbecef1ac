//! Questions about files and file systems: may we execute it, how long may it be, where does it
//! lie?
//!
//! They are asked before a program is started or a file is made, so that a user hears a reason.
//!
//! # Safety charter
//! That of `os.rs`.
#![allow(unsafe_code)]

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;

use super::{c_string, check};

/// Whether we may execute the file, with our effective identity.
pub fn may_execute(path: &Path) -> io::Result<()> {
    let path = c_string(path.as_os_str().as_bytes())?;
    // SAFETY: a live string.
    check(unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::X_OK, libc::AT_EACCESS) })?;
    Ok(())
}

/// Whether the file carries capabilities that it gains when it is executed.
pub fn has_capabilities(path: &Path) -> bool {
    let Ok(path) = c_string(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: live strings; no buffer, only the size is asked for.
    unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), null_mut(), 0) > 0 }
}

/// Whether a file may have so many bytes (`ulimit -f`). To be asked before a file is made longer:
/// beyond the limit the kernel not only refuses, it ends us by SIGXFSZ.
pub fn within_file_size(bytes: usize) -> io::Result<()> {
    uzswap::sys::file::within_size_limit(0, bytes).map_err(|e| io::Error::from_raw_os_error(e.0))
}

/// A file system, as far as it matters for the backing store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystem {
    pub magic: u64,
    pub free_bytes: u64,
    pub no_setuid: bool,
}

impl FileSystem {
    pub fn of(path: &Path) -> io::Result<FileSystem> {
        let path = c_string(path.as_os_str().as_bytes())?;
        // SAFETY: a live string; fills the locals.
        unsafe {
            let mut stat: libc::statfs = std::mem::zeroed();
            check(libc::statfs(path.as_ptr(), &mut stat))?;
            let mut portable: libc::statvfs = std::mem::zeroed();
            check(libc::statvfs(path.as_ptr(), &mut portable))?;
            Ok(FileSystem {
                magic: stat.f_type as u32 as u64,
                free_bytes: (stat.f_bavail as u64).saturating_mul(stat.f_bsize as u64),
                no_setuid: portable.f_flag & libc::ST_NOSUID != 0,
            })
        }
    }

    /// Its files live in memory, which is what is short.
    pub fn is_memory(&self) -> bool {
        const RAMFS_MAGIC: u64 = 0x8584_58f6;
        const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
        self.magic == libc::TMPFS_MAGIC as u64
            || matches!(self.magic, RAMFS_MAGIC | HUGETLBFS_MAGIC)
    }

    pub fn name(&self) -> String {
        let known = match self.magic {
            0xef53 => "ext4",
            0x5846_5342 => "xfs",
            0x9123_683e => "btrfs",
            0x794c_7630 => "overlay",
            0x0102_1994 => "tmpfs",
            0x8584_58f6 => "ramfs",
            0x9584_58f6 => "hugetlbfs",
            0x6969 => "nfs",
            0x2fc1_2fc1 => "zfs",
            0xf2f5_2010 => "f2fs",
            0x6573_5546 => "fuse",
            0x0102_1997 => "9p",
            0xff53_4d42 => "cifs",
            0x7371_7368 => "squashfs",
            _ => return format!("file system {:#x}", self.magic),
        };
        known.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_that_are_memory() {
        assert!(FileSystem { magic: 0x0102_1994, free_bytes: 0, no_setuid: false }.is_memory());
        assert!(!FileSystem::of(Path::new("/proc")).unwrap().is_memory());
    }
}
