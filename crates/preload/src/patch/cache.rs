//! The cache directory: knowledge of objects, kept between starts.
//!
//! ```text
//!  BUILD-ID-SPAN              a patch table (table.rs)
//!  BUILD-ID-SPAN-KEY.text     a text with the jumps in it, and its trampolines (shared.rs)
//!  ... .text.seen             that its bytes were looked at, and are right
//!  NAME.RANDOM                one that is being written
//! ```
//!
//! These files are executed by the user's programs. So directory and files must belong to the user
//! and be writable by nobody else; a file is written under another name and renamed, and never
//! changed afterwards. A cache that cannot be had or written costs time and memory, nothing else.
//!
//! # Safety charter
//! Raw system calls on paths and buffers of this file's own.
#![allow(unsafe_code)]

use std::vec;
use std::vec::Vec;

use uzswap::sys::open::{
    AT_FDCWD, O_CLOEXEC, O_CREAT, O_DIRECTORY, O_EXCL, O_NOFOLLOW, O_NONBLOCK, O_WRONLY,
};
use uzswap::sys::{Errno, Result, fd, file, nr};
use uzswap::uz_syscall;

const S_IFMT: u32 = 0o170000;
const S_IFREG: u32 = 0o100000;
const S_IFDIR: u32 = 0o040000;
const WRITABLE_BY_OTHERS: u32 = 0o022;
const W_OK: usize = 2;
const ST_RDONLY: u64 = 1;
const ST_NOEXEC: u64 = 8;
const CLOCK_REALTIME: usize = 0;

/// File systems whose files stay readable while they are open, whatever another machine or a server
/// does: ext, xfs, btrfs, f2fs, bcachefs, zfs, tmpfs, overlayfs.
const DEPENDABLE: [u64; 8] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0xf2f5_2010,
    0xca45_1a4e,
    0x2fc1_2fc1,
    0x0102_1994,
    0x794c_7630,
];

/// The parts of `struct stat` that matter here.
#[derive(Clone, Copy)]
pub struct Stat {
    pub device: u64,
    pub inode: u64,
    mode: u32,
    uid: u32,
    pub bytes: u64,
    pub modified_ns: u64,
    pub changed_ns: u64,
}

fn stat_from(raw: &[u64; 18]) -> Stat {
    let ns = |at: usize| raw[at].wrapping_mul(1_000_000_000).wrapping_add(raw[at + 1]);
    Stat {
        device: raw[0],
        inode: raw[1],
        mode: raw[3] as u32,
        uid: (raw[3] >> 32) as u32,
        bytes: raw[6],
        modified_ns: ns(11),
        changed_ns: ns(13),
    }
}

pub fn stat_fd(fd: i32) -> Result<Stat> {
    let mut raw = [0u64; 18];
    // SAFETY: the buffer has the size of struct stat.
    unsafe { uz_syscall!(nr::FSTAT, fd, raw.as_mut_ptr()) }?;
    Ok(stat_from(&raw))
}

pub fn stat_path(path: &[u8]) -> Result<Stat> {
    let path = terminated(path)?;
    stat_at(AT_FDCWD, &path)
}

/// `path` ends with a NUL.
fn stat_at(directory: isize, path: &[u8]) -> Result<Stat> {
    let mut raw = [0u64; 18];
    // SAFETY: a terminated path of our own, and a buffer with the size of struct stat.
    unsafe { uz_syscall!(nr::NEWFSTATAT, directory, path.as_ptr(), raw.as_mut_ptr(), 0) }?;
    Ok(stat_from(&raw))
}

/// Opens a path of bytes for reading.
pub fn open_path(path: &[u8], flags: usize) -> Result<i32> {
    let path = terminated(path)?;
    // SAFETY: a terminated path of our own.
    unsafe { uz_syscall!(nr::OPENAT, AT_FDCWD, path.as_ptr(), flags | O_CLOEXEC) }
        .map(|fd| fd as i32)
}

fn terminated(path: &[u8]) -> Result<Vec<u8>> {
    if path.is_empty() || path.contains(&0) || path.len() > 4095 {
        return Err(Errno::EINVAL);
    }
    let mut z = Vec::with_capacity(path.len() + 1);
    z.extend_from_slice(path);
    z.push(0);
    Ok(z)
}

/// Reads a whole descriptor from its start.
pub fn read_all(fd: i32, hint: usize) -> Result<Vec<u8>> {
    let mut out = vec![0; hint.max(64)];
    let mut len = 0;
    loop {
        if len == out.len() {
            out.resize(len * 2, 0);
        }
        match fd::read(fd, &mut out[len..]) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(Errno::EINTR) => {}
            Err(e) => return Err(e),
        }
    }
    out.truncate(len);
    Ok(out)
}

/// The time of day.
pub fn now_ns() -> u64 {
    let mut t = [0u64; 2];
    // SAFETY: the kernel writes two words.
    let _ = unsafe { uz_syscall!(nr::CLOCK_GETTIME, CLOCK_REALTIME, t.as_mut_ptr()) };
    t[0].wrapping_mul(1_000_000_000).wrapping_add(t[1])
}

/// The id of this start of the machine; zero where the kernel does not say.
pub fn boot_id() -> [u64; 2] {
    let Ok(fd) = open_path(b"/proc/sys/kernel/random/boot_id", 0) else { return [0; 2] };
    let text = read_all(fd, 64).unwrap_or_default();
    fd::close(fd);
    let digits = text.iter().filter_map(|b| (*b as char).to_digit(16));
    let all = digits.take(32).fold(0u128, |v, d| v << 4 | u128::from(d));
    [(all >> 64) as u64, all as u64]
}

pub fn push_hex(out: &mut Vec<u8>, bytes: &[u8]) {
    for b in bytes {
        out.extend([
            b"0123456789abcdef"[(b >> 4) as usize],
            b"0123456789abcdef"[(b & 15) as usize],
        ]);
    }
}

/// Whether a new file outlives a crash of the machine.
#[derive(Clone, Copy)]
pub enum Lasting {
    /// It need not: the file is read in full before it is used.
    No,
    /// It must: the file is mapped, has this time of modification as long as nobody changes it, and
    /// cannot be opened for writing.
    Dated { ns: u64 },
}

/// An open cache directory that nobody else can write to.
pub struct CacheDir {
    fd: i32,
    uid: u32,
}

impl Drop for CacheDir {
    fn drop(&mut self) {
        fd::close(self.fd);
    }
}

impl CacheDir {
    /// Opens the directory. Makes it (mode 0700) if it is missing and its parent is the user's.
    pub fn open(path: &[u8]) -> Option<CacheDir> {
        let flags = O_DIRECTORY | O_NOFOLLOW;
        // SAFETY: no argument.
        let uid = unsafe { uz_syscall!(nr::GETEUID) }.ok()? as u32;
        let fd = match open_path(path, flags) {
            Err(Errno::ENOENT) => {
                let above = &path[..path.iter().rposition(|b| *b == b'/')?.max(1)];
                if stat_path(above).ok()?.uid != uid {
                    return None;
                }
                let dir = terminated(path).ok()?;
                // SAFETY: a terminated path of our own. That it exists is no failure.
                let _ = unsafe { uz_syscall!(nr::MKDIR, dir.as_ptr(), 0o700) };
                open_path(path, flags).ok()?
            }
            other => other.ok()?,
        };
        let dir = CacheDir { fd, uid };
        dir.trusts(&stat_fd(fd).ok()?, S_IFDIR).then_some(dir)
    }

    fn trusts(&self, stat: &Stat, kind: u32) -> bool {
        stat.mode & S_IFMT == kind && stat.uid == self.uid && stat.mode & WRITABLE_BY_OTHERS == 0
    }

    /// Opens the file of that name for reading, if there is one that can be trusted. The caller
    /// closes it.
    pub fn open_file(&self, name: &[u8]) -> Option<(i32, Stat)> {
        let name = terminated(name).ok()?;
        let flags = O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
        // SAFETY: a terminated name of our own.
        let fd = unsafe { uz_syscall!(nr::OPENAT, self.fd, name.as_ptr(), flags) }.ok()? as i32;
        match stat_fd(fd) {
            Ok(stat) if self.trusts(&stat, S_IFREG) => Some((fd, stat)),
            _ => {
                fd::close(fd);
                None
            }
        }
    }

    /// Whether a file of `bytes` can be made here, executed, and kept mapped for any time.
    pub fn can_hold_code(&self, bytes: u64) -> bool {
        let mut raw = [0u64; 15];
        // SAFETY: a terminated name; the buffer has the size of struct statfs.
        let known = unsafe {
            uz_syscall!(nr::FACCESSAT, self.fd, c".".as_ptr(), W_OK).is_ok()
                && uz_syscall!(nr::FSTATFS, self.fd, raw.as_mut_ptr()).is_ok()
        };
        let [kind, block_bytes, _, _, free_blocks, _, _, _, _, _, flags, ..] = raw;
        known
            && DEPENDABLE.contains(&kind)
            && flags & (ST_NOEXEC | ST_RDONLY) == 0
            && free_blocks.saturating_mul(block_bytes) > bytes
    }

    /// Makes a file of these pieces, or replaces the one of that name.
    pub fn save(&self, name: &[u8], pieces: &[&[u8]], lasting: Lasting) -> Result<()> {
        // Beyond RLIMIT_FSIZE the kernel not only refuses, it kills.
        file::within_size_limit(0, pieces.iter().map(|p| p.len()).sum())?;
        let final_name = terminated(name)?;
        let mut random = [0; 8];
        file::fill_random(&mut random)?;
        let mut temporary = Vec::from(name);
        temporary.push(b'.');
        push_hex(&mut temporary, &random);
        temporary.push(0);
        let flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
        let mode = if matches!(lasting, Lasting::Dated { .. }) { 0o400 } else { 0o600 };
        // SAFETY: terminated names of our own; they live until the calls return.
        unsafe {
            let fd = uz_syscall!(nr::OPENAT, self.fd, temporary.as_ptr(), flags, mode)? as i32;
            let mut outcome = write_pieces(fd, pieces).and_then(|()| settle(fd, lasting));
            fd::close(fd);
            if outcome.is_ok() {
                outcome = uz_syscall!(
                    nr::RENAMEAT,
                    self.fd,
                    temporary.as_ptr(),
                    self.fd,
                    final_name.as_ptr()
                )
                .map(drop);
            }
            if outcome.is_err() {
                let _ = uz_syscall!(nr::UNLINKAT, self.fd, temporary.as_ptr(), 0);
            }
            outcome
        }
    }

    /// Makes room for `bytes` more of the files that have `mark` in their names: while they are
    /// more than `largest`, the oldest goes. Files younger than `rest_ns` stay, so that files of no
    /// lasting use are not made all the time.
    pub fn make_room(&self, mark: &[u8], bytes: u64, largest: u64, rest_ns: u64) -> bool {
        loop {
            let mut total = bytes;
            let mut oldest: Option<(u64, Vec<u8>)> = None;
            let listed = self.each_name(|name| {
                if !name.windows(mark.len()).any(|w| w == mark) {
                    return;
                }
                let Ok(stat) = stat_at(self.fd as isize, name) else { return };
                total += stat.bytes;
                if oldest.as_ref().is_none_or(|o| stat.changed_ns < o.0) {
                    oldest = Some((stat.changed_ns, name.into()));
                }
            });
            if listed.is_err() || total <= largest {
                return listed.is_ok();
            }
            let Some((changed_ns, name)) = oldest else { return false };
            // SAFETY: a terminated name of our own. A process that has the file mapped keeps it.
            let gone = || unsafe { uz_syscall!(nr::UNLINKAT, self.fd, name.as_ptr(), 0) }.is_ok();
            if changed_ns.saturating_add(rest_ns) > now_ns() || !gone() {
                return false;
            }
        }
    }

    /// Calls `f` with every name in the directory, its NUL included.
    fn each_name(&self, f: impl FnMut(&[u8])) -> Result<()> {
        // The directory is opened anew, so that the listing starts at the beginning.
        // SAFETY: a terminated name.
        let fd =
            unsafe { uz_syscall!(nr::OPENAT, self.fd, c".".as_ptr(), O_DIRECTORY | O_CLOEXEC) }?
                as i32;
        let outcome = file::each_name(fd, &mut vec![0; 8192], f);
        fd::close(fd);
        outcome
    }
}

fn write_pieces(fd: i32, pieces: &[&[u8]]) -> Result<()> {
    let mut at = 0;
    for piece in pieces {
        file::write_all_at(fd, piece, at)?;
        at += piece.len() as u64;
    }
    Ok(())
}

/// Dates a written file and waits until it is on the medium: else, after a crash, a file of the
/// right length might have no contents.
fn settle(fd: i32, lasting: Lasting) -> Result<()> {
    let Lasting::Dated { ns } = lasting else { return Ok(()) };
    let time = [ns / 1_000_000_000, ns % 1_000_000_000];
    let times = [time, time];
    // SAFETY: two times; without a name it is the descriptor's file.
    unsafe {
        uz_syscall!(nr::UTIMENSAT, fd, 0, times.as_ptr(), 0)?;
        uz_syscall!(nr::FSYNC, fd).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh(name: &str) -> (std::path::PathBuf, CacheDir) {
        let path =
            std::env::temp_dir().join(std::format!("uzswap-cache-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        let dir = CacheDir::open(path.join("made").as_os_str().as_encoded_bytes()).unwrap();
        (path.join("made"), dir)
    }

    #[test]
    fn a_dated_file_keeps_its_date_until_it_is_changed() {
        let (path, dir) = fresh("dated");
        let ns = 1_000_000_000 * 1_700_000_000;
        dir.save(b"a.text", &[b"one", b"", b"two"], Lasting::Dated { ns }).unwrap();
        let stat = || {
            let (fd, stat) = dir.open_file(b"a.text").unwrap();
            fd::close(fd);
            stat
        };
        assert_eq!((stat().bytes, stat().modified_ns), (6, ns));
        assert_eq!(std::fs::read(path.join("a.text")).unwrap(), b"onetwo");
        use std::os::unix::fs::PermissionsExt;
        let mode = |mode| std::fs::Permissions::from_mode(mode);
        assert_eq!(
            std::fs::metadata(path.join("a.text")).unwrap().permissions().mode() & 0o777,
            0o400
        );
        std::fs::set_permissions(path.join("a.text"), mode(0o600)).unwrap();
        std::fs::write(path.join("a.text"), b"onetwo").unwrap();
        assert_ne!(stat().modified_ns, ns);
        assert!(dir.open_file(b"b.text").is_none());
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 1, "nothing is left of the writing");
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn room_is_made_of_the_oldest_that_has_rested() {
        let (path, dir) = fresh("room");
        for n in 0..20 {
            dir.save(std::format!("{n:02}.text").as_bytes(), &[&[0; 100]], Lasting::No).unwrap();
            dir.save(std::format!("{n:02}").as_bytes(), &[&[0; 100]], Lasting::No).unwrap();
            // File systems have coarse clocks.
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let names = || {
            let names = std::fs::read_dir(&path).unwrap().map(|e| e.unwrap().file_name());
            let mut texts: Vec<_> =
                names.map(|n| n.into_string().unwrap()).filter(|n| n.contains(".text")).collect();
            texts.sort();
            texts
        };
        assert!(dir.make_room(b".text", 100, 2100, 0));
        assert_eq!(names().len(), 20);
        assert!(!dir.make_room(b".text", 200, 2100, u64::MAX));
        assert_eq!(names().len(), 20);
        assert!(dir.make_room(b".text", 500, 2100, 0));
        assert_eq!((names().len(), &names()[0][..]), (16, "04.text"));
        assert!(!dir.make_room(b".text", 2200, 2100, 0));
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 20, "tables stay");
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }
}
