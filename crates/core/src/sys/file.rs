//! Files and pipes as the backing store needs them: raw system calls on descriptors of our own.
//!
//! Descriptors are plain numbers here ([`Fd`] is `Copy`): a store is copied freely into the place
//! that does the I/O, and exactly one owner closes it. Every descriptor is close-on-exec and lives
//! high, out of the way of programs that count on small numbers.
//!
//! # Safety charter
//! The only memory that these calls read or write are slices handed in by safe borrow, valid for
//! their length for the time of the call, and structures on this file's own stack. A wrong
//! descriptor number makes a call fail or act on another file; it never touches memory.
#![allow(unsafe_code)]

pub use super::fd::close;
use super::fd::move_high;
use super::open::{
    AT_FDCWD, O_CLOEXEC, O_CREAT, O_DIRECT, O_DIRECTORY, O_EXCL, O_NOFOLLOW, O_NONBLOCK, O_PATH,
    O_RDWR, O_TMPFILE,
};
use super::{Errno, Result, nr};

/// An open descriptor. Not closed by itself.
pub type Fd = i32;

const OWNER_ONLY: u32 = 0o600;

const F_DUPFD_CLOEXEC: u32 = 1030;
const F_SETFL: u32 = 4;
const FALLOC_FL_KEEP_SIZE: u32 = 1;
const FALLOC_FL_PUNCH_HOLE: u32 = 2;
const POSIX_FADV_DONTNEED: u32 = 4;
const SYNC_FILE_RANGE_WAIT_BEFORE: u32 = 1;
const SYNC_FILE_RANGE_WRITE: u32 = 2;
const SYNC_FILE_RANGE_WAIT_AFTER: u32 = 4;
const RLIMIT_FSIZE: u32 = 1;
const POLLHUP: i16 = 0x10;
const POLLERR: i16 = 0x8;
const POLLNVAL: i16 = 0x20;

const EISDIR: Errno = Errno(21);
const EFBIG: Errno = Errno(27);

/// Opens a directory, only to make files in it later (the path may have changed its meaning by
/// then).
pub fn open_directory(path: &[u8]) -> Result<Fd> {
    let mut z = [0u8; 4096];
    if path.len() >= z.len() || path.contains(&0) {
        return Err(Errno::EINVAL);
    }
    z[..path.len()].copy_from_slice(path);
    // SAFETY: the path is NUL-terminated and outlives the call.
    let fd = unsafe {
        uz_syscall!(nr::OPENAT, AT_FDCWD, z.as_ptr(), O_PATH | O_DIRECTORY | O_CLOEXEC, 0)
    }?;
    Ok(move_high(fd as Fd))
}

/// Opens a block device for reading and writing around the page cache. Any other file is refused:
/// somebody who could put one in the device's place must not have it written to.
pub fn open_device(path: &[u8]) -> Result<Fd> {
    const S_IFMT: u32 = 0o170000;
    const S_IFBLK: u32 = 0o060000;
    let mut z = [0u8; 4096];
    if path.len() >= z.len() || path.contains(&0) {
        return Err(Errno::EINVAL);
    }
    z[..path.len()].copy_from_slice(path);
    let flags = O_RDWR | O_DIRECT | O_CLOEXEC;
    // SAFETY: the path is NUL-terminated and outlives the call.
    let fd = unsafe { uz_syscall!(nr::OPENAT, AT_FDCWD, z.as_ptr(), flags, 0) }? as Fd;
    // struct stat is 144 bytes on x86-64; st_mode is at 24.
    let mut stat = [0u64; 18];
    // SAFETY: the buffer has the size of struct stat.
    let asked = unsafe { uz_syscall!(nr::FSTAT, fd, stat.as_mut_ptr()) };
    if asked.is_err() || stat[3] as u32 & S_IFMT != S_IFBLK {
        close(fd);
        return Err(Errno(15 /* ENOTBLK */));
    }
    Ok(move_high(fd))
}

/// The command of ioctl for [`discard_of_device`].
pub const BLKDISCARD: usize = 0x1277;

/// Tells a device that a range is not needed any more. Best effort: some cannot be told.
pub fn discard_of_device(fd: Fd, at: u64, len: u64) {
    let range = [at, len];
    // SAFETY: the kernel reads two words.
    let _ = unsafe { uz_syscall!(nr::IOCTL, fd, BLKDISCARD, range.as_ptr()) };
}

/// A new, empty file that has no name, readable and writable by its owner only.
pub fn open_unlinked(directory: Fd) -> Result<Fd> {
    let flags = O_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC;
    // SAFETY: the path is NUL-terminated and static.
    match unsafe { uz_syscall!(nr::OPENAT, directory, c".".as_ptr(), flags, OWNER_ONLY) } {
        Ok(fd) => Ok(move_high(fd as Fd)),
        // File systems without O_TMPFILE (and kernels that take it for O_DIRECTORY) say one of
        // these.
        Err(Errno::EOPNOTSUPP | EISDIR | Errno::ENOENT | Errno::EINVAL) => {
            create_and_unlink(directory)
        }
        Err(e) => Err(e),
    }
}

/// The way for file systems without `O_TMPFILE`: a random name that exists for a moment.
fn create_and_unlink(directory: Fd) -> Result<Fd> {
    let mut random = [0u8; 12];
    fill_random(&mut random)?;
    let mut name = *b".uzswap-........................\0";
    for (i, b) in random.iter().enumerate() {
        name[8 + 2 * i] = b"0123456789abcdef"[(b >> 4) as usize];
        name[9 + 2 * i] = b"0123456789abcdef"[(b & 15) as usize];
    }
    let flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    // SAFETY: the name is NUL-terminated and outlives both calls.
    unsafe {
        let fd = uz_syscall!(nr::OPENAT, directory, name.as_ptr(), flags, OWNER_ONLY)? as Fd;
        match uz_syscall!(nr::UNLINKAT, directory, name.as_ptr(), 0) {
            Ok(_) => Ok(move_high(fd)),
            Err(e) => {
                close(fd);
                Err(e)
            }
        }
    }
}

/// Calls `f` with every name in a directory that was opened for this, its NUL included. `buffer`:
/// for a few hundred bytes of names at least.
pub fn each_name(directory: Fd, buffer: &mut [u8], mut f: impl FnMut(&[u8])) -> Result<()> {
    loop {
        // SAFETY: the kernel writes at most what the buffer holds.
        let n =
            unsafe { uz_syscall!(nr::GETDENTS64, directory, buffer.as_mut_ptr(), buffer.len()) }?;
        if n == 0 {
            return Ok(());
        }
        let mut entries = &buffer[..n];
        // inode, offset: 8 bytes each; length: 2; kind: 1; the name.
        while let Some(&[low, high]) = entries.get(16..18) {
            let len = u16::from_le_bytes([low, high]) as usize;
            let Some(name) = entries.get(19..len) else { break };
            let end = name.iter().position(|&b| b == 0).map_or(name.len(), |z| z + 1);
            f(&name[..end]);
            entries = &entries[len..];
        }
    }
}

/// A second descriptor of the same open file.
pub fn duplicate(fd: Fd) -> Result<Fd> {
    // SAFETY: fcntl with these arguments touches no memory.
    let new = unsafe { uz_syscall!(nr::FCNTL, fd, F_DUPFD_CLOEXEC, 3) }?;
    Ok(move_high(new as Fd))
}

/// Switches `O_DIRECT` on or off; an error means that the file system does not know it.
pub fn set_direct(fd: Fd, on: bool) -> Result<()> {
    // SAFETY: fcntl with these arguments touches no memory.
    unsafe { uz_syscall!(nr::FCNTL, fd, F_SETFL, if on { O_DIRECT } else { 0 }) }.map(drop)
}

/// Reads exactly `buf.len()` bytes at `at`. The end of the file before that is an I/O error: the
/// bytes were never written, or somebody cut the file.
pub fn read_exact_at(fd: Fd, mut buf: &mut [u8], mut at: u64) -> Result<()> {
    while !buf.is_empty() {
        // SAFETY: the slice is exclusively borrowed and writable for its length.
        match unsafe { uz_syscall!(nr::PREAD64, fd, buf.as_mut_ptr(), buf.len(), at) } {
            Ok(0) => return Err(Errno::EIO),
            Ok(n) => {
                buf = &mut buf[n..];
                at += n as u64;
            }
            Err(Errno::EINTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Writes all of `buf` at `at`.
pub fn write_all_at(fd: Fd, buf: &[u8], at: u64) -> Result<()> {
    within_size_limit(at, buf.len())?;
    write_all_to_device(fd, buf, at)
}

/// Writes all of `buf` at `at` of a device. RLIMIT_FSIZE is about files, and the kernel asks for it
/// there only.
pub fn write_all_to_device(fd: Fd, mut buf: &[u8], mut at: u64) -> Result<()> {
    while !buf.is_empty() {
        // SAFETY: the slice is borrowed and readable for its length.
        match unsafe { uz_syscall!(nr::PWRITE64, fd, buf.as_ptr(), buf.len(), at) } {
            // A short write that makes no progress is how some file systems say that they are full.
            Ok(0) => return Err(Errno::ENOSPC),
            Ok(n) => {
                buf = &buf[n..];
                at += n as u64;
            }
            Err(Errno::EINTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Whether a write would stay within RLIMIT_FSIZE. Beyond it the kernel not only refuses: it sends
/// SIGXFSZ, whose default action kills the program that we serve. The program may lower the limit
/// at any time, so ask before each write (150 ns).
pub fn within_size_limit(at: u64, len: usize) -> Result<()> {
    if at.saturating_add(len as u64) > soft_limit(RLIMIT_FSIZE) { Err(EFBIG) } else { Ok(()) }
}

/// Makes the file `len` bytes long, without allocating anything: a write inside the file's size
/// needs not wait for the size to be updated. Best effort.
pub fn extend(fd: Fd, len: u64) {
    let len = len.min(soft_limit(RLIMIT_FSIZE));
    // SAFETY: touches no memory of ours.
    let _ = unsafe { uz_syscall!(nr::FTRUNCATE, fd, len) };
}

/// Gives the disk space of a range back; the range then reads as zeros.
pub fn punch_hole(fd: Fd, at: u64, len: u64) -> Result<()> {
    let mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    // SAFETY: fallocate touches no memory of ours.
    unsafe { uz_syscall!(nr::FALLOCATE, fd, mode, at, len) }.map(drop)
}

/// Starts writing a range out of the page cache, without waiting.
pub fn start_writeout(fd: Fd, at: u64, len: u64) {
    // SAFETY: touches no memory of ours; failure only means more page cache for a while.
    let _ = unsafe { uz_syscall!(nr::SYNC_FILE_RANGE, fd, at, len, SYNC_FILE_RANGE_WRITE) };
}

/// Waits until a range is written and drops it from the page cache.
pub fn drop_page_cache(fd: Fd, at: u64, len: u64) {
    let flags = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: both touch no memory of ours; failure only means more page cache for a while.
    unsafe {
        let _ = uz_syscall!(nr::SYNC_FILE_RANGE, fd, at, len, flags);
        let _ = uz_syscall!(nr::FADVISE64, fd, at, len, POSIX_FADV_DONTNEED);
    }
}

/// Disk space that a file takes, in bytes.
pub fn disk_bytes(fd: Fd) -> Result<u64> {
    // struct stat is 144 bytes on x86-64; st_blocks (units of 512 bytes) is at 64.
    let mut stat = [0u64; 18];
    // SAFETY: the buffer has the size of struct stat.
    unsafe { uz_syscall!(nr::FSTAT, fd, stat.as_mut_ptr()) }?;
    Ok(stat[8] * 512)
}

/// A pipe: (read end, write end), close-on-exec, not blocking.
pub fn pipe() -> Result<(Fd, Fd)> {
    let mut ends = [0i32; 2];
    // SAFETY: the kernel writes two ints into the array.
    unsafe { uz_syscall!(nr::PIPE2, ends.as_mut_ptr(), O_CLOEXEC | O_NONBLOCK) }?;
    Ok((move_high(ends[0]), move_high(ends[1])))
}

/// Whether each of these read ends has lost all its writers (asked without waiting). At most 64 at
/// a time.
pub fn hung_up(fds: &[Fd]) -> u64 {
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct PollFd {
        fd: i32,
        events: i16,
        revents: i16,
    }
    let mut polls = [PollFd { fd: -1, events: 0, revents: 0 }; 64];
    let n = fds.len().min(64);
    for (p, fd) in polls.iter_mut().zip(fds) {
        p.fd = *fd;
    }
    // SAFETY: the array holds n initialised pollfd structures.
    if unsafe { uz_syscall!(nr::POLL, polls.as_mut_ptr(), n, 0) }.is_err() {
        return 0;
    }
    // A descriptor that somebody closed under us says nothing about writers: it counts as still
    // open.
    let gone = |p: &PollFd| p.revents & POLLNVAL == 0 && p.revents & (POLLHUP | POLLERR) != 0;
    (0..n).filter(|&i| gone(&polls[i])).fold(0, |bits, i| bits | 1 << i)
}

/// Fills a buffer from the kernel's random generator.
pub fn fill_random(mut buf: &mut [u8]) -> Result<()> {
    while !buf.is_empty() {
        // SAFETY: the slice is exclusively borrowed and writable for its length.
        match unsafe { uz_syscall!(nr::GETRANDOM, buf.as_mut_ptr(), buf.len(), 0) } {
            Ok(n) => buf = &mut buf[n..],
            Err(Errno::EINTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// The soft limit of a resource; none known counts as unlimited.
fn soft_limit(resource: u32) -> u64 {
    let mut limit = [u64::MAX; 2];
    // SAFETY: the kernel writes a struct rlimit64 (two u64) into the array.
    match unsafe { uz_syscall!(nr::PRLIMIT64, 0, resource, 0, limit.as_mut_ptr()) } {
        Ok(_) => limit[0],
        Err(_) => u64::MAX,
    }
}

/// Processes for tests of what fork does.
#[cfg(test)]
pub mod testing {
    use super::*;

    /// Forks. The child runs `child`, which must not allocate (other threads of the test process
    /// may hold the allocator's lock), and exits with 0 if it answers true; the parent gets its
    /// process id.
    pub fn fork(child: impl FnOnce() -> bool) -> i32 {
        const SIGCHLD: usize = 17;
        // SAFETY: without CLONE_VM the child is a copy; it leaves by exit_group and never returns
        // from here.
        unsafe {
            match uz_syscall!(nr::CLONE, SIGCHLD, 0, 0, 0, 0).unwrap() {
                0 => {
                    // A panic must not unwind into a second copy of the test harness.
                    let ok = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
                    let code = if ok.unwrap_or(false) { 0 } else { 1 };
                    let _ = uz_syscall!(nr::EXIT_GROUP, code);
                    unreachable!()
                }
                pid => pid as i32,
            }
        }
    }

    /// A value of zeros that this process shares with those that it forks.
    pub fn shared<T: crate::sys::mem::Zeroable>() -> &'static T {
        use crate::sys::mem::{MAP_ANONYMOUS, MAP_SHARED, PROT_READ, PROT_WRITE};
        let (prot, flags) = (PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS);
        // SAFETY: a new mapping, as long as the value, that stays for ever; zeros are a value.
        unsafe {
            let at = uz_syscall!(nr::MMAP, 0, size_of::<T>(), prot, flags, usize::MAX, 0).unwrap();
            &*(at as *const T)
        }
    }

    /// Writes to a pipe.
    pub fn write(fd: Fd, bytes: &[u8]) {
        // SAFETY: the slice is borrowed and readable for its length.
        unsafe { uz_syscall!(nr::WRITE, fd, bytes.as_ptr(), bytes.len()) }.unwrap();
    }

    /// Waits for a child; its wait status (0: exited with 0).
    pub fn wait(pid: i32) -> i32 {
        let mut status = -1;
        // SAFETY: the kernel writes one int.
        while unsafe { uz_syscall!(nr::WAIT4, pid, &raw mut status, 0, 0) } == Err(Errno::EINTR) {}
        status
    }

    /// Limits the size of the files that this process writes.
    pub fn limit_file_size(bytes: u64) {
        limit(RLIMIT_FSIZE, bytes);
    }

    /// Limits the address space of this process; 0: there is no memory any more.
    pub fn limit_address_space(bytes: u64) {
        const RLIMIT_AS: u32 = 9;
        limit(RLIMIT_AS, bytes);
    }

    fn limit(resource: u32, most: u64) {
        let limit = [most, u64::MAX];
        // SAFETY: the kernel reads a struct rlimit64.
        unsafe { uz_syscall!(nr::PRLIMIT64, 0, resource, limit.as_ptr(), 0) }.unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unlinked_file_reads_what_was_written_and_holes_read_zero() {
        let dir = open_directory(std::env::temp_dir().as_os_str().as_encoded_bytes()).unwrap();
        for fd in [open_unlinked(dir).unwrap(), create_and_unlink(dir).unwrap()] {
            let bytes = [7u8; 8192];
            write_all_at(fd, &bytes, 4096).unwrap();
            let mut back = [0u8; 8192];
            read_exact_at(fd, &mut back, 4096).unwrap();
            assert_eq!(back, bytes);
            punch_hole(fd, 4096, 4096).unwrap();
            read_exact_at(fd, &mut back, 4096).unwrap();
            assert!(back[..4096].iter().all(|&b| b == 0) && back[4096..].iter().all(|&b| b == 7));
            assert_eq!(read_exact_at(fd, &mut back, 8192), Err(Errno::EIO), "end of file");
            assert!(disk_bytes(fd).unwrap() >= 4096);
            close(fd);
        }
        assert_eq!(open_unlinked(-1), Err(Errno::EBADF));
        close(dir);
        assert_eq!(open_directory(b"/nonexistent/uzswap"), Err(Errno::ENOENT));
    }

    #[test]
    fn a_pipe_hangs_up_when_its_last_writer_goes() {
        let (r1, w1) = pipe().unwrap();
        let (r2, w2) = pipe().unwrap();
        let second = duplicate(w1).unwrap();
        close(w1);
        assert_eq!(hung_up(&[r1, r2]), 0);
        close(second);
        assert_eq!(hung_up(&[r1, r2]), 0b01);
        close(w2);
        assert_eq!(hung_up(&[r1, r2]), 0b11);
        close(r1);
        close(r2);
        assert_eq!(hung_up(&[1 << 20]), 0, "a bad descriptor is not a hang-up");
    }

    #[test]
    fn random_bytes_differ() {
        let (mut a, mut b) = ([0u8; 32], [0u8; 32]);
        fill_random(&mut a).unwrap();
        fill_random(&mut b).unwrap();
        assert_ne!(a, b);
    }
}
