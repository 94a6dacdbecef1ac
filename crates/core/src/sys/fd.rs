//! File descriptors of the runtime: kept high, out of the numbers that programs use and close.
//!
//! # Safety charter
//! Descriptor calls touch no memory but the path strings, which are C strings of ours.
#![allow(unsafe_code)]

use core::ffi::CStr;

use super::open::{AT_FDCWD, O_CLOEXEC, O_RDWR};
use super::sync::Mutex;
use super::{Result, nr};

const F_DUPFD_CLOEXEC: usize = 1030;
const RLIMIT_NOFILE: usize = 7;
/// The highest soft limit that counts, and the one while descriptors of ours are opened: a program
/// that allows itself more meets ours among its own. A table has 8 bytes for each number.
const HIGHEST: u64 = 4096;
/// How far below the soft limit the runtime's descriptors begin.
const HIGH_ROOM: u64 = 128;

pub fn close(fd: i32) {
    // SAFETY: closes a descriptor that the caller owns.
    let _ = unsafe { uz_syscall!(nr::CLOSE, fd) };
}

/// The lowest number that the runtime uses for its descriptors.
pub fn high_base() -> i32 {
    let [soft, _hard] = number_limits(None).unwrap_or([0; 2]);
    // A higher number makes the kernel allocate a larger table, for every process.
    let soft = soft.min(HIGHEST);
    if soft > 2 * HIGH_ROOM { (soft - HIGH_ROOM) as i32 } else { (soft / 2) as i32 }
}

/// Moves a descriptor to a high number, close-on-exec. Where no high number is free it stays where
/// it is.
pub fn move_high(fd: i32) -> i32 {
    // SAFETY: duplicates a descriptor.
    match unsafe { uz_syscall!(nr::FCNTL, fd, F_DUPFD_CLOEXEC, high_base()) } {
        Ok(high) => {
            close(fd);
            high as i32
        }
        Err(_) => fd,
    }
}

/// The limits on descriptor numbers: soft, hard.
pub type NumberLimits = [u64; 2];

/// The limits of this process; sets `new` first.
pub(crate) fn number_limits(new: Option<NumberLimits>) -> Result<NumberLimits> {
    let mut old = [0u64; 2];
    let at = new.as_ref().map_or(core::ptr::null(), |new| new.as_ptr());
    // SAFETY: the kernel reads two words, or none, and writes two.
    unsafe { uz_syscall!(nr::PRLIMIT64, 0, RLIMIT_NOFILE, at, old.as_mut_ptr()) }?;
    Ok(old)
}

/// Limits on descriptor numbers that hold for a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ForNow {
    before: NumberLimits,
    now: NumberLimits,
}

impl ForNow {
    /// Sets the limits that `change` makes of those that are. `None`: they are these already, or
    /// the kernel does not allow it.
    pub fn begin(change: impl FnOnce(NumberLimits) -> NumberLimits) -> Option<ForNow> {
        let before = number_limits(None).ok()?;
        let now = change(before);
        (now != before && number_limits(Some(now)).is_ok()).then_some(ForNow { before, now })
    }

    /// Raises the soft limit to `soft`, or as far as the hard one allows.
    pub fn raise(soft: u64) -> Option<ForNow> {
        Self::begin(|[now, hard]| [now.max(soft.min(hard)), hard])
    }

    /// Room for the runtime's descriptors above those of the program.
    pub fn make_room() -> Option<ForNow> {
        Self::raise(HIGHEST)
    }

    /// Puts the limits back that were changed, as far as the kernel allows. Those that another
    /// thread has set meanwhile stay.
    pub fn end(changed: Option<ForNow>) {
        if let Some(ForNow { before, now }) = changed
            && let Ok(found) = number_limits(Some(before))
            && found != now
        {
            let _ = number_limits(Some(found));
        }
    }
}

/// Does something that needs a number above the soft limit: all below it are the program's, or it
/// was higher when `fd` was opened. It is raised for that moment, as far as the hard one allows.
pub fn with_more_numbers<T>(fd: i32, act: impl FnOnce() -> T) -> T {
    /// Two threads that raise the limit side by side would each take the other's for the program's.
    static RAISED: Mutex<()> = Mutex::new(());
    let _raised = RAISED.lock();
    let raised = ForNow::raise((fd as u64 + 1).max(HIGHEST));
    let done = act();
    ForNow::end(raised);
    done
}

/// Opens an existing file for reading and writing.
pub fn open_read_write(path: &CStr) -> Result<i32> {
    // SAFETY: the path is a C string.
    unsafe { uz_syscall!(nr::OPENAT, AT_FDCWD, path.as_ptr(), O_RDWR | O_CLOEXEC) }
        .map(|fd| fd as i32)
}

/// Opens an existing file for reading.
pub fn open_read(path: &CStr) -> Result<i32> {
    // SAFETY: the path is a C string.
    unsafe { uz_syscall!(nr::OPENAT, AT_FDCWD, path.as_ptr(), O_CLOEXEC) }.map(|fd| fd as i32)
}

/// Reads into `buf` from the descriptor's position.
pub fn read(fd: i32, buf: &mut [u8]) -> Result<usize> {
    // SAFETY: the kernel writes at most buf.len() bytes.
    unsafe { uz_syscall!(nr::READ, fd, buf.as_mut_ptr(), buf.len()) }
}

/// Seals of a memfd: no further seals, not shorter, not longer, no writing.
pub const SEAL_SEAL: u32 = 1;
pub const SEAL_SHRINK: u32 = 2;
pub const SEAL_GROW: u32 = 4;
pub const SEAL_WRITE: u32 = 8;

/// The seals of a file in memory; an error for every other file.
pub fn seals(fd: i32) -> Result<u32> {
    const F_GET_SEALS: usize = 1034;
    // SAFETY: touches no memory.
    unsafe { uz_syscall!(nr::FCNTL, fd, F_GET_SEALS) }.map(|seals| seals as u32)
}

/// The inode's number of a descriptor's file, and the file's length in bytes.
pub fn inode_and_bytes(fd: i32) -> Result<(u64, u64)> {
    // struct stat is 144 bytes on x86-64; st_ino is at 8 and st_size at 48.
    let mut stat = [0u64; 18];
    // SAFETY: the buffer has the size of struct stat.
    unsafe { uz_syscall!(nr::FSTAT, fd, stat.as_mut_ptr()) }?;
    Ok((stat[1], stat[6]))
}

const F_GETLK: usize = 5;
const F_SETLK: usize = 6;
const F_WRLCK: i16 = 1;
const F_UNLCK: i16 = 2;

/// A record lock as the kernel takes it (`struct flock`): from `start`, `len` bytes, 0 for all that
/// follow.
#[repr(C)]
struct RecordLock {
    kind: i16,
    whence: i16,
    start: i64,
    len: i64,
    pid: i32,
}

fn record_lock(fd: i32, command: usize, kind: i16, start: usize, len: usize) -> Result<RecordLock> {
    let mut lock = RecordLock { kind, whence: 0, start: start as i64, len: len as i64, pid: 0 };
    // SAFETY: the kernel reads the structure and may write it.
    unsafe { uz_syscall!(nr::FCNTL, fd, command, &raw mut lock) }?;
    Ok(lock)
}

/// Makes the byte at `at` of the file the one that this process has locked, instead of any from
/// `first` on. The kernel gives the lock back when the process has gone, however it ended: after
/// its memory.
pub fn lock_only_byte(fd: i32, first: usize, at: usize) -> Result<()> {
    record_lock(fd, F_SETLK, F_UNLCK, first, 0)?;
    lock_byte(fd, at)
}

/// Locks one byte of the file for this process, if no other has.
pub fn lock_byte(fd: i32, at: usize) -> Result<()> {
    record_lock(fd, F_SETLK, F_WRLCK, at, 1).map(drop)
}

/// Whether another process has that byte locked.
pub fn is_byte_locked(fd: i32, at: usize) -> Result<bool> {
    record_lock(fd, F_GETLK, F_WRLCK, at, 1).map(|lock| lock.kind != F_UNLCK)
}

/// The process, other than this one, that has that byte locked, by its id in this one's namespace;
/// `None` where there is none.
pub fn lock_holder(fd: i32, at: usize) -> Result<Option<u32>> {
    let lock = record_lock(fd, F_GETLK, F_WRLCK, at, 1)?;
    let pid = u32::try_from(lock.pid).ok().filter(|pid| *pid != 0);
    Ok(pid.filter(|_| lock.kind != F_UNLCK))
}
