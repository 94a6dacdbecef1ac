//! Calls that can be made without harm, with their arguments in the arena.
//!
//! A case must touch all of its memory when everything is accessible: either the call succeeds, or
//! it fails for a reason that it finds only after it has read its arguments (a device that does not
//! exist, an invalid time). Dangerous calls are tried in this second way.

use uzswap::sys::nr;

use crate::arena::{Place, sys};

/// One call.
pub struct Case {
    pub nr: usize,
    pub what: &'static str,
    /// Lays out the arguments, in the child. `None`: the case is not possible here.
    pub make: fn(&mut Place) -> Option<[usize; 6]>,
    /// The error with which the call ends; `None`: it succeeds.
    pub fails: Option<isize>,
    /// The result is another in each run (a process, a key, a time): only success is compared.
    pub varies: bool,
    /// A value compared besides the result, when all of the arena is accessible again: for calls
    /// that do not say when they could not write, or not at once.
    pub after: fn(&[usize; 6]) -> isize,
}

impl Case {
    const fn and_then(mut self, after: fn(&[usize; 6]) -> isize) -> Case {
        self.after = after;
        self
    }
}

/// No value besides the result is compared.
fn no_more(_: &[usize; 6]) -> isize {
    0
}

const HERE: usize = -100isize as usize;
const NOBODY: usize = usize::MAX;
const EPERM: isize = 1;
const ENOENT: isize = 2;
const EINTR: isize = 4;
const ENXIO: isize = 6;
const E2BIG: isize = 7;
const ENOEXEC: isize = 8;
const EAGAIN: isize = 11;
const ENOTBLK: isize = 15;
const EBUSY: isize = 16;
const EEXIST: isize = 17;
const ENODEV: isize = 19;
const EINVAL: isize = 22;
const ENODATA: isize = 61;
const ETIME: isize = 62;
const ENOTSOCK: isize = 88;
const ETIMEDOUT: isize = 110;
const ESTALE: isize = 116;
const ENOKEY: isize = 126;

/// Makes a fresh directory the current one, until it is dropped.
pub fn enter_directory() -> Directory {
    let path = std::env::temp_dir().join(format!("uzswap-shapes-{}", std::process::id()));
    std::fs::create_dir_all(&path).expect("a directory of our own");
    std::env::set_current_dir(&path).expect("its own directory");
    Directory(path)
}

/// A queue of messages that outlives the case which makes it.
const QUEUE: &str = "uzswap-shapes";

pub struct Directory(std::path::PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::env::set_current_dir("/");
        sys(nr::MQ_UNLINK, &[path(QUEUE)]);
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

// Helpers that set cases up. Nothing of theirs lies in the arena.

fn fill<const N: usize>(given: [usize; N]) -> Option<[usize; 6]> {
    let mut args = [0; 6];
    args[..N].copy_from_slice(&given);
    Some(args)
}

/// Makes a call of the set-up, without whose success the case is not possible.
fn set_up(number: usize, args: &[usize]) -> Option<usize> {
    usize::try_from(sys(number, args)).ok()
}

/// The address of a copy of the bytes that is never freed.
fn outside(bytes: &[u8]) -> usize {
    bytes.to_vec().leak().as_ptr() as usize
}

fn path(text: &str) -> usize {
    outside(format!("{text}\0").as_bytes())
}

fn room(len: usize) -> usize {
    outside(&vec![0; len])
}

fn root() -> Option<()> {
    (sys(nr::GETEUID, &[]) == 0).then_some(())
}

/// A file of 10 000 bytes, open for reading and writing.
fn file() -> Option<usize> {
    const READ_WRITE_CREATE: usize = 2 | 0o100;
    let fd = set_up(nr::OPEN, &[path("file"), READ_WRITE_CREATE, 0o644])?;
    set_up(nr::PWRITE64, &[fd, outside(&[b'x'; 10_000]), 10_000, 0])?;
    Some(fd)
}

fn directory() -> Option<usize> {
    set_up(nr::OPEN, &[path("."), 0o200_000])
}

/// Both ends of a pipe with `bytes` bytes in it.
fn pipe(bytes: usize) -> Option<(usize, usize)> {
    let ends = room(8);
    set_up(nr::PIPE2, &[ends, 0o4000])?;
    let (read, write) = int_pair(ends);
    if bytes > 0 {
        set_up(nr::WRITE, &[write, outside(&vec![b'p'; bytes]), bytes])?;
    }
    Some((read, write))
}

/// Two connected sockets of the unix domain.
fn sockets(kind: usize) -> Option<(usize, usize)> {
    const NONBLOCK: usize = 0o4000;
    let ends = room(8);
    set_up(nr::SOCKETPAIR, &[1, kind | NONBLOCK, 0, ends])?;
    Some(int_pair(ends))
}

const STREAM: usize = 1;
const DATAGRAM: usize = 2;

/// Two numbers that the kernel has written.
fn int_pair(at: usize) -> (usize, usize) {
    // SAFETY: eight bytes that `room` has made and the kernel has filled.
    let [first, second] = unsafe { std::ptr::read(at as *const [u32; 2]) };
    (first as usize, second as usize)
}

/// A UDP socket on the loopback, and its address (16 bytes).
fn udp() -> Option<(usize, [u8; 16])> {
    let fd = set_up(nr::SOCKET, &[2, DATAGRAM | 0o4000, 0])?;
    let mut address = [0; 16];
    address[0] = 2;
    address[4..8].copy_from_slice(&[127, 0, 0, 1]);
    let at = outside(&address);
    set_up(nr::BIND, &[fd, at, 16])?;
    set_up(nr::GETSOCKNAME, &[fd, at, outside(&16u32.to_le_bytes())])?;
    // SAFETY: `at` names sixteen bytes that are never freed.
    Some((fd, unsafe { std::ptr::read(at as *const [u8; 16]) }))
}

/// A UDP socket with one datagram of `bytes` bytes from itself in its queue.
fn udp_with_datagram(bytes: usize) -> Option<(usize, [u8; 16])> {
    let (fd, address) = udp()?;
    set_up(nr::SENDTO, &[fd, outside(&vec![b'u'; bytes]), bytes, 0, outside(&address), 16])?;
    Some((fd, address))
}

/// A TCP socket that listens on the loopback, and one that is connecting to it.
fn tcp() -> Option<(usize, usize)> {
    let mut address = [0; 16];
    address[0] = 2;
    address[4..8].copy_from_slice(&[127, 0, 0, 1]);
    let at = outside(&address);
    let listener = set_up(nr::SOCKET, &[2, STREAM, 0])?;
    set_up(nr::BIND, &[listener, at, 16])?;
    set_up(nr::LISTEN, &[listener, 5])?;
    set_up(nr::GETSOCKNAME, &[listener, at, outside(&16u32.to_le_bytes())])?;
    let connected = set_up(nr::SOCKET, &[2, STREAM, 0])?;
    set_up(nr::CONNECT, &[connected, at, 16])?;
    Some((listener, connected))
}

/// A child that has ended with 3, not yet waited for.
fn dead_child() -> Option<usize> {
    const EXITED_NOWAIT: usize = 4 | 0x0100_0000;
    let child = sys(nr::FORK, &[]);
    if child == 0 {
        sys(nr::EXIT_GROUP, &[3]);
    }
    set_up(nr::WAITID, &[1, usize::try_from(child).ok()?, 0, EXITED_NOWAIT, 0])?;
    Some(child as usize)
}

/// Makes a file that may be executed, but is no program. The kernel finds out after it has taken
/// the arguments.
fn not_a_program() -> Option<()> {
    let fd = set_up(nr::OPEN, &[path("program"), 1 | 0o100, 0o755])?;
    set_up(nr::WRITE, &[fd, outside(&[b'x'; 200]), 200])?;
    set_up(nr::CLOSE, &[fd]).map(|_| ())
}

/// A child of this one, stopped and traced.
fn tracee() -> Option<usize> {
    const TRACEME: usize = 0;
    const SIGSTOP: usize = 19;
    const KILL_WITH_ME: usize = 1;
    let child = sys(nr::FORK, &[]);
    if child == 0 {
        sys(nr::PRCTL, &[KILL_WITH_ME, 9]);
        sys(nr::PTRACE, &[TRACEME, 0, 0, 0]);
        sys(nr::KILL, &[sys(nr::GETPID, &[]) as usize, SIGSTOP]);
        sys(nr::EXIT_GROUP, &[0]);
    }
    let child = usize::try_from(child).ok()?;
    const EXIT_KILL: usize = 0x10_0000;
    set_up(nr::WAIT4, &[child, 0, 2, 0])?;
    set_up(nr::PTRACE, &[0x4200, child, 0, EXIT_KILL])?;
    Some(child)
}

/// A signal that is blocked and pending.
fn pending(signal: usize) -> Option<()> {
    let mask = outside(&(1u64 << (signal - 1)).to_le_bytes());
    set_up(nr::RT_SIGPROCMASK, &[0, mask, 0, 8])?;
    set_up(nr::KILL, &[sys(nr::GETPID, &[]) as usize, signal])?;
    Some(())
}

fn own_pid() -> usize {
    sys(nr::GETPID, &[]) as usize
}

/// Namespaces of our own, where host names and mounts do not matter.
fn namespaces() -> Option<()> {
    const NEWNS_NEWUTS_NEWIPC: usize = 0x0002_0000 | 0x0400_0000 | 0x0800_0000;
    root()?;
    set_up(nr::UNSHARE, &[NEWNS_NEWUTS_NEWIPC])?;
    const REC_PRIVATE: usize = 0x4000 | 0x4_0000;
    set_up(nr::MOUNT, &[0, path("/"), 0, REC_PRIVATE, 0])?;
    Some(())
}

/// A time in the past or of no length.
const NO_TIME: [usize; 2] = [0, 0];
/// A time with too many nanoseconds: refused, but only once it has been read.
const BAD_TIME: [usize; 2] = [0, 2_000_000_000];

const fn ok(nr: usize, what: &'static str, make: fn(&mut Place) -> Option<[usize; 6]>) -> Case {
    Case { nr, what, make, fails: None, varies: false, after: no_more }
}

const fn varies(nr: usize, what: &'static str, make: fn(&mut Place) -> Option<[usize; 6]>) -> Case {
    Case { nr, what, make, fails: None, varies: true, after: no_more }
}

const fn fails(
    error: isize,
    nr: usize,
    what: &'static str,
    make: fn(&mut Place) -> Option<[usize; 6]>,
) -> Case {
    Case { nr, what, make, fails: Some(error), varies: false, after: no_more }
}

pub fn all() -> impl Iterator<Item = &'static Case> {
    [FILES, PATHS, DESCRIPTORS, SOCKETS, TIME, SIGNALS, PROCESS, MEMORY, SYSTEM, DEVICES]
        .into_iter()
        .flatten()
}

const FILES: &[Case] = &[
    ok(nr::READ, "file", |p| fill([file()?, p.out(9000), 9000])),
    ok(nr::READ, "one byte", |p| fill([file()?, p.out(1), 1])),
    ok(nr::READ, "eventfd", |p| fill([set_up(nr::EVENTFD2, &[3, 0])?, p.out(8), 8])),
    ok(nr::WRITE, "file", |p| fill([file()?, p.put(&[b'w'; 5000]), 5000])),
    ok(nr::WRITE, "pipe", |p| fill([pipe(0)?.1, p.put(&[b'w'; 5000]), 5000])),
    ok(nr::PREAD64, "", |p| fill([file()?, p.out(5000), 5000, 100])),
    ok(nr::PWRITE64, "", |p| fill([file()?, p.put(&[1; 5000]), 5000, 100])),
    ok(nr::READV, "", |p| {
        let buffers = [(p.out(30), 30), (p.out(5000), 5000), (0, 0), (p.out(1), 1)];
        fill([file()?, p.iovecs(&buffers), 4])
    }),
    ok(nr::WRITEV, "", |p| {
        let buffers = [(p.put(&[1; 30]), 30), (p.put(&[2; 5000]), 5000), (p.put(&[3]), 1)];
        fill([file()?, p.iovecs(&buffers), 3])
    }),
    ok(nr::PREADV, "", |p| {
        let buffers = [(p.out(30), 30), (p.out(70), 70)];
        fill([file()?, p.iovecs(&buffers), 2, 10])
    }),
    ok(nr::PWRITEV, "", |p| {
        let buffers = [(p.put(&[1; 30]), 30), (p.put(&[2; 70]), 70)];
        fill([file()?, p.iovecs(&buffers), 2, 10])
    }),
    ok(nr::PREADV2, "", |p| {
        let buffers = [(p.out(30), 30), (p.out(70), 70)];
        fill([file()?, p.iovecs(&buffers), 2, NOBODY, 0, 0])
    }),
    ok(nr::PWRITEV2, "", |p| {
        let buffers = [(p.put(&[1; 30]), 30), (p.put(&[2; 70]), 70)];
        fill([file()?, p.iovecs(&buffers), 2, 10, 0, 0])
    }),
    ok(nr::FSTAT, "", |p| fill([file()?, p.out(144)])),
    ok(nr::FSTATFS, "", |p| fill([file()?, p.out(120)])),
    ok(nr::GETDENTS, "", |p| fill([directory()?, p.out(200), 200])),
    ok(nr::GETDENTS64, "", |p| fill([directory()?, p.out(200), 200])),
    ok(nr::SENDFILE, "", |p| fill([pipe(0)?.1, file()?, p.words(&[5]), 100])),
    ok(nr::SPLICE, "", |p| {
        let (from, to) = (file()?, pipe(0)?.1);
        fill([from, p.words(&[5]), to, 0, 100, 0])
    }),
    ok(nr::SPLICE, "the other way", |p| {
        let (from, to) = (pipe(100)?.0, file()?);
        fill([from, 0, to, p.words(&[5]), 100, 0])
    }),
    ok(nr::COPY_FILE_RANGE, "", |p| {
        let to = set_up(nr::OPEN, &[path("copy"), 2 | 0o100, 0o644])?;
        fill([file()?, p.words(&[5]), to, p.words(&[7]), 100, 0])
    }),
    ok(nr::VMSPLICE, "", |p| {
        let buffers = [(p.put(&[1; 5000]), 5000), (p.put(&[2; 10]), 10)];
        fill([pipe(0)?.1, p.iovecs(&buffers), 2, 0])
    }),
    ok(nr::FCNTL, "GETLK", |p| fill([file()?, 5, p.words(&[1, 0, 10, 0])])),
    ok(nr::FCNTL, "SETLK", |p| fill([file()?, 6, p.words(&[1, 0, 10, 0])])),
    ok(nr::FCNTL, "OFD_SETLK", |p| fill([file()?, 37, p.words(&[1, 0, 10, 0])])),
    ok(nr::FCNTL, "SETOWN_EX", |p| fill([file()?, 15, p.ints(&[1, own_pid() as u32])])),
    ok(nr::FCNTL, "GETOWN_EX", |p| fill([file()?, 16, p.out(8)])),
    ok(nr::FCNTL, "GETOWNER_UIDS", |p| fill([file()?, 17, p.out(8)])),
    ok(nr::FCNTL, "GET_RW_HINT", |p| fill([file()?, 1035, p.out(8)])),
    ok(nr::FCNTL, "SET_RW_HINT", |p| fill([file()?, 1036, p.words(&[2])])),
    ok(nr::CACHESTAT, "", |p| fill([file()?, p.words(&[0, 0]), p.out(40), 0])),
    ok(nr::FSETXATTR, "", |p| fill([file()?, p.str("user.name"), p.put(&[7; 50]), 50, 0])),
    ok(nr::FGETXATTR, "", |p| {
        let fd = file()?;
        set_up(nr::FSETXATTR, &[fd, path("user.name"), outside(&[7; 50]), 50, 0])?;
        fill([fd, p.str("user.name"), p.out(50), 50])
    }),
    ok(nr::FLISTXATTR, "", |p| {
        let fd = file()?;
        set_up(nr::FSETXATTR, &[fd, path("user.name"), outside(&[7; 50]), 50, 0])?;
        fill([fd, p.out(10), 10])
    }),
    fails(ENODATA, nr::FREMOVEXATTR, "", |p| fill([file()?, p.str("user.none")])),
    ok(nr::IO_SETUP, "", |p| fill([10, p.words(&[0])])),
    ok(nr::IO_SUBMIT, "read, readv", |p| {
        let (fd, context) = (file()?, aio()?);
        let iovecs = [(p.out(20), 20), (p.out(30), 30)];
        let iovecs = p.iovecs(&iovecs);
        let buffer = p.out(600);
        let one = p.words(&[1, 0, fd << 32, buffer, 600, 0, 0, 0]);
        let two = p.words(&[2, 0, 7 | fd << 32, iovecs, 2, 0, 0, 0]);
        fill([context, 2, p.words(&[one, two])])
    })
    .and_then(bytes_moved),
    ok(nr::IO_SUBMIT, "write, writev", |p| {
        let (fd, context) = (file()?, aio()?);
        let iovecs = [(p.put(&[1; 20]), 20), (p.put(&[2; 30]), 30)];
        let iovecs = p.iovecs(&iovecs);
        let buffer = p.put(&[3; 600]);
        let one = p.words(&[1, 0, 1 | fd << 32, buffer, 600, 0, 0, 0]);
        let two = p.words(&[2, 0, 8 | fd << 32, iovecs, 2, 0, 0, 0]);
        fill([context, 2, p.words(&[one, two])])
    })
    .and_then(bytes_moved),
    ok(nr::IO_GETEVENTS, "", |p| fill([aio_with_events()?, 1, 2, p.out(64), p.words(&[1, 0])])),
    ok(nr::IO_PGETEVENTS, "", |p| {
        let mask = p.words(&[0]);
        fill([aio_with_events()?, 1, 2, p.out(64), p.words(&[1, 0]), p.words(&[mask, 8])])
    }),
    fails(EINVAL, nr::IO_CANCEL, "", |p| fill([aio()?, p.words(&[0; 8]), p.out(32)])),
    ok(nr::NAME_TO_HANDLE_AT, "", |p| {
        file()?;
        let handle = handle(path("file"))?;
        let bytes = u32::from_le_bytes(handle[..4].try_into().ok()?) as usize;
        let mut empty = vec![0; 8 + bytes];
        empty[0] = bytes as u8;
        fill([HERE, p.str("file"), p.put(&empty), p.out(4), 0])
    }),
    ok(nr::OPEN_BY_HANDLE_AT, "", |p| {
        root()?;
        file()?;
        let handle = handle(path("file"))?;
        fill([directory()?, p.put(&handle), 0])
    }),
    fails(ESTALE, nr::OPEN_BY_HANDLE_AT, "of nothing", |p| {
        root()?;
        fill([directory()?, p.put(&[8, 0, 0, 0, 1, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]), 0])
    }),
    ok(nr::FILE_GETATTR, "", |p| {
        file()?;
        fill([HERE, p.str("file"), p.out(24), 24, 0])
    }),
    ok(nr::FILE_SETATTR, "", |p| {
        file()?;
        fill([HERE, p.str("file"), p.out(24), 24, 0])
    }),
    ok(nr::MEMFD_CREATE, "", |p| fill([p.str("a name"), 0])),
];

/// A context of asynchronous I/O.
fn aio() -> Option<usize> {
    let at = room(8);
    set_up(nr::IO_SETUP, &[10, at])?;
    // SAFETY: eight bytes that `room` has made and the kernel has filled.
    Some(unsafe { std::ptr::read(at as *const usize) })
}

/// A context of asynchronous I/O in which two reads have ended.
fn aio_with_events() -> Option<usize> {
    let (fd, context) = (file()?, aio()?);
    let words = |words: &[usize]| {
        outside(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>())
    };
    let read = || words(&[1, 0, fd << 32, room(10), 10, 0, 0, 0]);
    set_up(nr::IO_SUBMIT, &[context, 2, words(&[read(), read()])])?;
    Some(context)
}

/// How many bytes the two operations have moved, or what went wrong.
fn bytes_moved(args: &[usize; 6]) -> isize {
    let events = room(64);
    assert_eq!(sys(nr::IO_GETEVENTS, &[args[0], 2, 2, events, 0]), 2);
    // SAFETY: the kernel has filled two events: data, object, result, second result.
    let events = unsafe { std::ptr::read(events as *const [[isize; 4]; 2]) };
    events[0][2] * 100_000 + events[1][2]
}

/// The kernel's handle of a file.
fn handle(name: usize) -> Option<Vec<u8>> {
    let at = outside(&[&128u32.to_le_bytes()[..], &[0; 132]].concat());
    set_up(nr::NAME_TO_HANDLE_AT, &[HERE, name, at, room(8), 0])?;
    // SAFETY: `at` names 136 bytes that are never freed.
    let whole = unsafe { std::ptr::read(at as *const [u8; 136]) };
    let bytes = u32::from_le_bytes(whole[..4].try_into().ok()?) as usize;
    Some(whole[..8 + bytes].to_vec())
}

/// Removes a file that an earlier run of the case may have left.
fn without(name: &str) {
    sys(nr::UNLINK, &[path(name)]);
    sys(nr::RMDIR, &[path(name)]);
}

const PATHS: &[Case] = &[
    ok(nr::OPEN, "", |p| fill([p.str("/etc/passwd"), 0])),
    ok(nr::OPENAT, "", |p| fill([HERE, p.str("/etc/passwd"), 0])),
    ok(nr::OPENAT2, "", |p| fill([HERE, p.str("/etc/passwd"), p.words(&[0, 0, 0]), 24])),
    ok(nr::OPENAT2, "of a later kernel", |p| {
        fill([HERE, p.str("/etc/passwd"), p.words(&[0; 9]), 72])
    }),
    ok(nr::CREAT, "", |p| fill([p.str("created"), 0o644])),
    ok(nr::STAT, "", |p| fill([p.str("/etc/passwd"), p.out(144)])),
    ok(nr::STAT, "a long path", |p| fill([p.str(&"/".repeat(4000)), p.out(144)])),
    ok(nr::LSTAT, "", |p| fill([p.str("/etc/passwd"), p.out(144)])),
    ok(nr::NEWFSTATAT, "", |p| fill([HERE, p.str("/etc/passwd"), p.out(144), 0])),
    ok(nr::STATX, "", |p| fill([HERE, p.str("/etc/passwd"), 0, 0xfff, p.out(256)])),
    ok(nr::STATFS, "", |p| fill([p.str("/"), p.out(120)])),
    ok(nr::ACCESS, "", |p| fill([p.str("/etc/passwd"), 4])),
    ok(nr::FACCESSAT, "", |p| fill([HERE, p.str("/etc/passwd"), 4])),
    ok(nr::FACCESSAT2, "", |p| fill([HERE, p.str("/etc/passwd"), 4, 0])),
    ok(nr::CHDIR, "", |p| fill([p.str("/usr")])),
    ok(nr::CHROOT, "", |p| {
        root()?;
        fill([p.str("/usr")])
    }),
    ok(nr::GETCWD, "", |p| {
        set_up(nr::CHDIR, &[path("/usr/share")])?;
        fill([p.out(11), 11])
    }),
    ok(nr::READLINK, "", |p| fill([p.str("/proc/self/exe"), p.out(9), 9])),
    ok(nr::READLINKAT, "", |p| fill([HERE, p.str("/proc/self/exe"), p.out(9), 9])),
    ok(nr::MKDIR, "", |p| {
        without("new");
        fill([p.str("new"), 0o755])
    }),
    ok(nr::MKDIRAT, "", |p| {
        without("new");
        fill([HERE, p.str("new"), 0o755])
    }),
    fails(ENOENT, nr::RMDIR, "", |p| fill([p.str("no such thing")])),
    fails(ENOENT, nr::UNLINK, "", |p| fill([p.str("no such thing")])),
    fails(ENOENT, nr::UNLINKAT, "", |p| fill([HERE, p.str("no such thing"), 0])),
    fails(ENOENT, nr::RENAME, "", |p| fill([p.str("no such thing"), p.str("anywhere")])),
    fails(ENOENT, nr::RENAMEAT, "", |p| {
        fill([HERE, p.str("no such thing"), HERE, p.str("anywhere")])
    }),
    fails(ENOENT, nr::RENAMEAT2, "", |p| {
        fill([HERE, p.str("no such thing"), HERE, p.str("anywhere"), 0])
    }),
    fails(EEXIST, nr::LINK, "", |p| {
        file()?;
        fill([p.str("file"), p.str("file")])
    }),
    fails(EEXIST, nr::LINKAT, "", |p| {
        file()?;
        fill([HERE, p.str("file"), HERE, p.str("file"), 0])
    }),
    ok(nr::SYMLINK, "", |p| {
        without("link");
        fill([p.str("where it leads"), p.str("link")])
    }),
    ok(nr::SYMLINKAT, "", |p| {
        without("link");
        fill([p.str("where it leads"), HERE, p.str("link")])
    }),
    ok(nr::MKNOD, "", |p| {
        without("node");
        fill([p.str("node"), 0o100_644, 0])
    }),
    ok(nr::MKNODAT, "", |p| {
        without("node");
        fill([HERE, p.str("node"), 0o100_644, 0])
    }),
    ok(nr::TRUNCATE, "", |p| {
        file()?;
        fill([p.str("file"), 50])
    }),
    ok(nr::CHMOD, "", |p| {
        file()?;
        fill([p.str("file"), 0o600])
    }),
    ok(nr::FCHMODAT, "", |p| {
        file()?;
        fill([HERE, p.str("file"), 0o600])
    }),
    ok(nr::FCHMODAT2, "", |p| {
        file()?;
        fill([HERE, p.str("file"), 0o600, 0])
    }),
    ok(nr::CHOWN, "", |p| {
        file()?;
        fill([p.str("file"), NOBODY, NOBODY])
    }),
    ok(nr::LCHOWN, "", |p| {
        file()?;
        fill([p.str("file"), NOBODY, NOBODY])
    }),
    ok(nr::FCHOWNAT, "", |p| {
        file()?;
        fill([HERE, p.str("file"), NOBODY, NOBODY, 0])
    }),
    ok(nr::UTIME, "", |p| {
        file()?;
        fill([p.str("file"), p.words(&[1, 2])])
    }),
    ok(nr::UTIMES, "", |p| {
        file()?;
        fill([p.str("file"), p.words(&[1, 2, 3, 4])])
    }),
    ok(nr::FUTIMESAT, "", |p| {
        file()?;
        fill([HERE, p.str("file"), p.words(&[1, 2, 3, 4])])
    }),
    ok(nr::UTIMENSAT, "", |p| {
        file()?;
        fill([HERE, p.str("file"), p.words(&[1, 2, 3, 4]), 0])
    }),
    ok(nr::SETXATTR, "", |p| {
        file()?;
        fill([p.str("file"), p.str("user.name"), p.put(&[7; 50]), 50, 0])
    }),
    fails(EPERM, nr::LSETXATTR, "on a link", |p| {
        without("link");
        set_up(nr::SYMLINK, &[path("a"), path("link")])?;
        fill([p.str("link"), p.str("user.name"), p.put(&[7; 50]), 50, 0])
    }),
    ok(nr::GETXATTR, "", |p| fill([with_attribute(p)?, p.str("user.name"), p.out(50), 50])),
    ok(nr::LGETXATTR, "", |p| fill([with_attribute(p)?, p.str("user.name"), p.out(50), 50])),
    ok(nr::LISTXATTR, "", |p| fill([with_attribute(p)?, p.out(10), 10])),
    ok(nr::LLISTXATTR, "", |p| fill([with_attribute(p)?, p.out(10), 10])),
    ok(nr::REMOVEXATTR, "", |p| fill([with_attribute(p)?, p.str("user.name")])),
    ok(nr::LREMOVEXATTR, "", |p| fill([with_attribute(p)?, p.str("user.name")])),
    ok(nr::SETXATTRAT, "", |p| {
        let value = p.put(&[7; 50]);
        fill([HERE, with_attribute(p)?, 0, p.str("user.name"), p.words(&[value, 50]), 16])
    }),
    ok(nr::GETXATTRAT, "", |p| {
        let value = p.out(50);
        fill([HERE, with_attribute(p)?, 0, p.str("user.name"), p.words(&[value, 50]), 16])
    }),
    ok(nr::LISTXATTRAT, "", |p| fill([HERE, with_attribute(p)?, 0, p.out(10), 10])),
    ok(nr::REMOVEXATTRAT, "", |p| fill([HERE, with_attribute(p)?, 0, p.str("user.name")])),
    ok(nr::INOTIFY_ADD_WATCH, "", |p| {
        fill([set_up(nr::INOTIFY_INIT1, &[0])?, p.str("/usr"), 0xfff])
    }),
    ok(nr::FANOTIFY_MARK, "", |p| {
        fill([set_up(nr::FANOTIFY_INIT, &[0x200, 0])?, 1, 0x100, HERE, p.str(".")])
    }),
    ok(nr::OPEN_TREE, "", |p| fill([HERE, p.str("/usr"), 0])),
    fails(ENOENT, nr::MOVE_MOUNT, "", |p| {
        namespaces()?;
        fill([HERE, p.str("no such thing"), HERE, p.str("/usr"), 0])
    }),
    fails(ENOENT, nr::MOUNT_SETATTR, "", |p| {
        namespaces()?;
        fill([HERE, p.str("no such thing"), 0, p.words(&[1, 0, 0, 0]), 32])
    }),
    fails(EINVAL, nr::OPEN_TREE_ATTR, "", |p| {
        namespaces()?;
        fill([HERE, p.str("/usr"), 0, p.words(&[1 << 63, 0, 0, 0]), 32])
    }),
    ok(nr::FSOPEN, "", |p| {
        namespaces()?;
        fill([p.str("tmpfs"), 0])
    }),
    ok(nr::FSCONFIG, "string", |p| {
        namespaces()?;
        let fd = set_up(nr::FSOPEN, &[path("tmpfs"), 0])?;
        fill([fd, 1, p.str("size"), p.str("1048576"), 0])
    }),
    fails(EINVAL, nr::FSCONFIG, "binary", |p| {
        namespaces()?;
        let fd = set_up(nr::FSOPEN, &[path("tmpfs"), 0])?;
        fill([fd, 2, p.str("size"), p.put(&[1; 30]), 30])
    }),
    ok(nr::FSPICK, "", |p| {
        namespaces()?;
        fill([HERE, p.str("/proc"), 0])
    }),
    fails(ENODEV, nr::MOUNT, "", |p| {
        namespaces()?;
        fill([p.str("none"), p.str("/usr"), p.str("no such type"), 0, p.put(&[b'x'; 4096])])
    }),
    ok(nr::MOUNT, "with options", |p| {
        namespaces()?;
        fill([p.str("none"), p.str("/usr"), p.str("tmpfs"), 0, p.str("size=1048576,mode=0755")])
    }),
    fails(EINVAL, nr::UMOUNT2, "", |p| {
        namespaces()?;
        fill([p.str("/usr"), 0])
    }),
    fails(EBUSY, nr::PIVOT_ROOT, "", |p| {
        namespaces()?;
        fill([p.str("/usr"), p.str("/usr")])
    }),
    fails(ENOENT, nr::SWAPON, "", |p| {
        root()?;
        fill([p.str("no such thing"), 0])
    }),
    fails(ENOENT, nr::SWAPOFF, "", |p| {
        root()?;
        fill([p.str("no such thing")])
    }),
    fails(ENOENT, nr::ACCT, "", |p| {
        root()?;
        fill([p.str("no such thing")])
    }),
];

/// The path of a file with an attribute.
fn with_attribute(p: &mut Place) -> Option<usize> {
    let fd = file()?;
    set_up(nr::FSETXATTR, &[fd, path("user.name"), outside(&[7; 50]), 50, 0])?;
    Some(p.str("file"))
}

const DESCRIPTORS: &[Case] = &[
    ok(nr::PIPE, "", |p| fill([p.out(8)])),
    ok(nr::PIPE2, "", |p| fill([p.out(8), 0])),
    ok(nr::SOCKETPAIR, "", |p| fill([1, STREAM, 0, p.out(8)])),
    ok(nr::POLL, "", |p| {
        let fd = pipe(1)?.0 as u32;
        fill([p.ints(&[fd, 1, fd, 1, fd, 4]), 3, 0])
    }),
    ok(nr::PPOLL, "", |p| {
        let fd = pipe(1)?.0 as u32;
        fill([p.ints(&[fd, 1, fd, 1]), 2, p.words(&NO_TIME), p.words(&[0]), 8])
    }),
    ok(nr::SELECT, "three descriptors", |p| {
        fill([3, p.words(&[0]), p.words(&[1]), p.words(&[0]), p.words(&NO_TIME)])
    }),
    ok(nr::SELECT, "sixty-five descriptors", |p| {
        let fd = pipe(1)?.0;
        set_up(nr::DUP2, &[fd, 300])?;
        fill([65, p.words(&[0, 0]), p.words(&[0, 0]), p.words(&[0, 0]), p.words(&NO_TIME)])
    }),
    ok(nr::SELECT, "three hundred descriptors", |p| {
        let fd = pipe(1)?.0;
        set_up(nr::DUP2, &[fd, 300])?;
        fill([301, p.words(&[0, 0, 0, 0, 1 << 44]), p.words(&[0; 5]), 0, p.words(&NO_TIME)])
    }),
    ok(nr::PSELECT6, "", |p| {
        let mask = p.words(&[0]);
        fill([
            3,
            p.words(&[0]),
            p.words(&[0]),
            p.words(&[0]),
            p.words(&NO_TIME),
            p.words(&[mask, 8]),
        ])
    }),
    ok(nr::EPOLL_CTL, "", |p| {
        let (epoll, fd) = (set_up(nr::EPOLL_CREATE1, &[0])?, pipe(1)?.0);
        fill([epoll, 1, fd, p.ints(&[1, 7, 7])])
    }),
    ok(nr::EPOLL_WAIT, "", |p| fill([epoll()?, p.out(24), 2, 0])),
    ok(nr::EPOLL_PWAIT, "", |p| fill([epoll()?, p.out(24), 2, 0, p.words(&[0]), 8])),
    ok(nr::EPOLL_PWAIT2, "", |p| {
        fill([epoll()?, p.out(24), 2, p.words(&NO_TIME), p.words(&[0]), 8])
    }),
    ok(nr::SIGNALFD, "", |p| fill([NOBODY, p.words(&[1]), 8])),
    ok(nr::SIGNALFD4, "", |p| fill([NOBODY, p.words(&[1]), 8, 0])),
    ok(nr::TIMERFD_SETTIME, "", |p| {
        let fd = set_up(nr::TIMERFD_CREATE, &[1, 0])?;
        fill([fd, 0, p.words(&[0, 0, 100, 0]), p.out(32)])
    }),
    ok(nr::TIMERFD_GETTIME, "", |p| fill([set_up(nr::TIMERFD_CREATE, &[1, 0])?, p.out(32)])),
    ok(nr::MQ_OPEN, "", |p| {
        fill([p.str(QUEUE), 2 | 0o100, 0o600, p.words(&[0, 4, 64, 0, 0, 0, 0, 0])])
    }),
    fails(ENOENT, nr::MQ_UNLINK, "", |p| fill([p.str("uzswap-none")])),
    ok(nr::MQ_TIMEDSEND, "", |p| fill([queue(0)?, p.put(&[1; 40]), 40, 1, p.words(&[1, 0])])),
    ok(nr::MQ_TIMEDRECEIVE, "", |p| fill([queue(64)?, p.out(64), 64, p.out(4), p.words(&[1, 0])])),
    ok(nr::MQ_GETSETATTR, "", |p| {
        fill([queue(0)?, p.words(&[0o4000, 0, 0, 0, 0, 0, 0, 0]), p.out(64)])
    }),
    ok(nr::MQ_NOTIFY, "signal", |p| {
        fill([queue(0)?, p.ints(&[1, 2, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])])
    }),
    fails(ENOTSOCK, nr::MQ_NOTIFY, "thread", |p| {
        let cookie = p.put(&[5; 32]);
        let mut event = [0u8; 64];
        event[..8].copy_from_slice(&cookie.to_le_bytes());
        // The notification goes to a netlink socket, whose descriptor this should be.
        event[8] = file()? as u8;
        event[12] = 2;
        fill([queue(0)?, p.put(&event)])
    }),
    ok(nr::IO_URING_SETUP, "", |p| fill([4, p.words(&[0; 15])])),
    ok(nr::IO_URING_REGISTER, "buffers", |p| {
        let iovecs = [(p.out(5000), 5000), (p.out(10), 10)];
        fill([ring()?, 0, p.iovecs(&iovecs), 2])
    }),
    ok(nr::IO_URING_REGISTER, "files", |p| {
        let fd = file()? as u32;
        fill([ring()?, 2, p.ints(&[fd, fd, fd]), 3])
    }),
    ok(nr::IO_URING_REGISTER, "probe", |p| fill([ring()?, 8, p.out(16 + 40 * 8), 40])),
    ok(nr::IO_URING_REGISTER, "workers", |p| fill([ring()?, 19, p.ints(&[0, 0]), 2])),
    ok(nr::IO_URING_REGISTER, "files with tags", |p| {
        let fd = file()? as u32;
        let (data, tags) = (p.ints(&[fd, fd]), p.words(&[1, 2]));
        fill([ring()?, 13, p.words(&[2, 0, data, tags]), 32])
    }),
    ok(nr::IO_URING_REGISTER, "buffers with tags", |p| {
        let iovecs = [(p.out(5000), 5000), (p.out(10), 10)];
        let (data, tags) = (p.iovecs(&iovecs), p.words(&[1, 2]));
        fill([ring()?, 15, p.words(&[2, 0, data, tags]), 32])
    }),
    ok(nr::IO_URING_REGISTER, "files updated", |p| {
        let (ring, fd) = (ring()?, file()? as u32);
        set_up(nr::IO_URING_REGISTER, &[ring, 2, outside(&[255; 12]), 3])?;
        let fds = p.ints(&[fd, fd, fd]);
        fill([ring, 6, p.words(&[0, fds]), 3])
    }),
    fails(ETIME, nr::IO_URING_ENTER, "with time and mask", |p| {
        let (mask, time) = (p.words(&[0]), p.words(&[0, 1000]));
        fill([ring()?, 0, 1, 1 | 8, p.words(&[mask, 8, time]), 24])
    }),
    fails(EINTR, nr::IO_URING_ENTER, "with mask", |p| {
        interrupted_soon()?;
        fill([ring()?, 0, 1, 1, p.words(&[0]), 8])
    }),
];

fn epoll() -> Option<usize> {
    let epoll = set_up(nr::EPOLL_CREATE1, &[0])?;
    for _ in 0..2 {
        set_up(
            nr::EPOLL_CTL,
            &[epoll, 1, pipe(1)?.0, outside(&[1, 0, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9])],
        )?;
    }
    Some(epoll)
}

/// A queue of messages with one of `bytes` bytes, or none.
fn queue(bytes: usize) -> Option<usize> {
    let name = path("uzswap-shapes-queue");
    sys(nr::MQ_UNLINK, &[name]);
    let mut attributes = [0; 64];
    attributes[8] = 4;
    attributes[16] = 64;
    let queue = set_up(nr::MQ_OPEN, &[name, 2 | 0o100 | 0o4000, 0o600, outside(&attributes)])?;
    sys(nr::MQ_UNLINK, &[name]);
    if bytes > 0 {
        set_up(nr::MQ_TIMEDSEND, &[queue, outside(&vec![1; bytes]), bytes, 0, 0])?;
    }
    Some(queue)
}

fn ring() -> Option<usize> {
    set_up(nr::IO_URING_SETUP, &[4, room(120)])
}

/// A msghdr.
fn message(name: (usize, usize), iovecs: (usize, usize), control: (usize, usize)) -> [usize; 7] {
    [name.0, name.1, iovecs.0, iovecs.1, control.0, control.1, 0]
}

/// How many bytes of control data have come, and whether some were cut.
fn control_of_message(args: &[usize; 6]) -> isize {
    // SAFETY: the message header is in the arena, which is accessible.
    let [length, _, flags] = unsafe { std::ptr::read_unaligned((args[1] + 40) as *const [u32; 3]) };
    length as isize * 1000 + flags as isize
}

const SOCKETS: &[Case] = &[
    ok(nr::CONNECT, "", |p| {
        let (_, address) = udp()?;
        fill([set_up(nr::SOCKET, &[2, DATAGRAM, 0])?, p.put(&address), 16])
    }),
    ok(nr::BIND, "", |p| {
        let fd = set_up(nr::SOCKET, &[1, STREAM, 0])?;
        without("socket");
        fill([fd, p.put(b"\x01\0socket\0"), 9])
    }),
    ok(nr::ACCEPT, "", |p| fill([tcp()?.0, p.out(16), p.ints(&[16])])),
    ok(nr::ACCEPT4, "", |p| fill([tcp()?.0, p.out(16), p.ints(&[16]), 0])),
    ok(nr::GETSOCKNAME, "", |p| fill([udp()?.0, p.out(16), p.ints(&[16])])),
    ok(nr::GETSOCKNAME, "too short", |p| fill([udp()?.0, p.out(5), p.ints(&[5])])),
    ok(nr::GETPEERNAME, "", |p| fill([tcp()?.1, p.out(16), p.ints(&[16])])),
    ok(nr::SENDTO, "", |p| {
        let (fd, address) = udp()?;
        fill([fd, p.put(&[1; 1000]), 1000, 0, p.put(&address), 16])
    }),
    ok(nr::RECVFROM, "", |p| {
        let (fd, _) = udp_with_datagram(1000)?;
        fill([fd, p.out(1000), 1000, 0, p.out(16), p.ints(&[16])])
    }),
    ok(nr::RECVFROM, "stream", |p| {
        let (here, there) = sockets(STREAM)?;
        set_up(nr::WRITE, &[there, outside(&[1; 700]), 700])?;
        fill([here, p.out(700), 700, 0, 0, 0])
    }),
    ok(nr::SENDMSG, "address, data", |p| {
        let (fd, address) = udp()?;
        let buffers = [(p.put(&[1; 300]), 300), (p.put(&[2; 5]), 5)];
        let (iovecs, name) = (p.iovecs(&buffers), p.put(&address));
        let header = message((name, 16), (iovecs, 2), (0, 0));
        fill([fd, p.words(&header), 0])
    }),
    ok(nr::SENDMSG, "descriptors", |p| {
        let (here, _) = sockets(STREAM)?;
        let buffers = [(p.put(&[1; 300]), 300)];
        let control = p.ints(&[24, 0, 1, 1, here as u32, here as u32]);
        let iovecs = p.iovecs(&buffers);
        let header = message((0, 0), (iovecs, 1), (control, 24));
        fill([here, p.words(&header), 0])
    }),
    ok(nr::RECVMSG, "address, data, control", |p| {
        const TIMESTAMP: usize = 29;
        let (fd, address) = udp()?;
        set_up(nr::SETSOCKOPT, &[fd, 1, TIMESTAMP, outside(&[1, 0, 0, 0]), 4])?;
        set_up(nr::SENDTO, &[fd, outside(&[b'u'; 310]), 310, 0, outside(&address), 16])?;
        let buffers = [(p.out(300), 300), (p.out(10), 10)];
        let (iovecs, name, control) = (p.iovecs(&buffers), p.out(16), p.out(32));
        let header = message((name, 16), (iovecs, 2), (control, 32));
        fill([fd, p.words(&header), 0])
    })
    .and_then(control_of_message),
    ok(nr::SENDMMSG, "", |p| {
        let (fd, address) = udp()?;
        let mut both = Vec::new();
        for _ in 0..2 {
            let buffers = [(p.put(&[1; 300]), 300)];
            let (iovecs, name) = (p.iovecs(&buffers), p.put(&address));
            both.extend(message((name, 16), (iovecs, 1), (0, 0)));
            both.push(0);
        }
        fill([fd, p.words(&both), 2, 0])
    }),
    ok(nr::RECVMMSG, "", |p| {
        let (fd, address) = udp_with_datagram(300)?;
        set_up(nr::SENDTO, &[fd, outside(&[b'u'; 300]), 300, 0, outside(&address), 16])?;
        let mut both = Vec::new();
        for _ in 0..2 {
            let buffers = [(p.out(200), 200), (p.out(100), 100)];
            let (iovecs, name) = (p.iovecs(&buffers), p.out(16));
            both.extend(message((name, 16), (iovecs, 2), (0, 0)));
            both.push(0);
        }
        fill([fd, p.words(&both), 2, 0, p.words(&[1, 0])])
    }),
    ok(nr::SETSOCKOPT, "an int", |p| fill([udp()?.0, 1, 2, p.ints(&[1]), 4])),
    ok(nr::SETSOCKOPT, "a time", |p| fill([udp()?.0, 1, 20, p.words(&[1, 0]), 16])),
    ok(nr::SETSOCKOPT, "a filter", |p| {
        let filter = p.ints(&[0x28, 12, 6, 0xffff, 6, 0]);
        fill([udp()?.0, 1, 26, p.words(&[3, filter]), 16])
    }),
    ok(nr::SETSOCKOPT, "a device", |p| fill([udp()?.0, 1, 25, p.str("lo"), 3])),
    ok(nr::GETSOCKOPT, "an int", |p| fill([udp()?.0, 1, 2, p.out(4), p.ints(&[4])])),
    ok(nr::GETSOCKOPT, "credentials", |p| {
        fill([sockets(STREAM)?.0, 1, 17, p.out(12), p.ints(&[12])])
    }),
    ok(nr::GETSOCKOPT, "tcp_info", |p| fill([tcp()?.1, 6, 11, p.out(200), p.ints(&[200])])),
    ok(nr::GETSOCKOPT, "a filter", |p| {
        let fd = udp()?.0;
        let filter = room(24);
        // SAFETY: 24 bytes made by `room`.
        unsafe { std::ptr::write(filter as *mut [u32; 6], [0x28, 12, 6, 0xffff, 6, 0]) };
        let program = outside(&[3usize.to_le_bytes(), filter.to_le_bytes()].concat());
        set_up(nr::SETSOCKOPT, &[fd, 1, 26, program, 16])?;
        fill([fd, 1, 26, p.out(24), p.ints(&[3])])
    }),
    ok(nr::IOCTL, "SIOCGIFCONF", |p| {
        let buffer = p.out(40);
        fill([udp()?.0, 0x8912, p.words(&[40, buffer])])
    }),
    ok(nr::IOCTL, "SIOCGIFINDEX", |p| {
        let mut request = [0; 40];
        request[..2].copy_from_slice(b"lo");
        fill([udp()?.0, 0x8933, p.put(&request)])
    }),
    ok(nr::IOCTL, "SIOCGIFFLAGS", |p| {
        let mut request = [0; 40];
        request[..2].copy_from_slice(b"lo");
        fill([udp()?.0, 0x8913, p.put(&request)])
    }),
    fails(ENODEV, nr::IOCTL, "SIOCADDRT", |p| {
        root()?;
        let device = p.str("none");
        let mut route = [0usize; 15];
        route[1] = 2;
        route[3] = 2;
        route[5] = 2;
        route[7] = 1;
        route[11] = device;
        fill([udp()?.0, 0x890b, p.words(&route)])
    }),
    ok(nr::IOCTL, "SIOCETHTOOL", |p| {
        let command = p.ints(&[0x0a, 0]);
        let mut request = [0; 40];
        request[..2].copy_from_slice(b"lo");
        request[16..24].copy_from_slice(&command.to_le_bytes());
        fill([udp()?.0, 0x8946, p.put(&request)])
    }),
    fails(ENXIO, nr::IOCTL, "SIOCGARP", |p| {
        let mut request = [0; 68];
        request[0] = 2;
        request[4..8].copy_from_slice(&[127, 9, 9, 9]);
        request[52..54].copy_from_slice(b"lo");
        fill([udp()?.0, 0x8954, p.put(&request)])
    }),
];

const TIME: &[Case] = &[
    ok(nr::NANOSLEEP, "", |p| fill([p.words(&NO_TIME), 0])),
    fails(EINTR, nr::NANOSLEEP, "interrupted", |p| {
        interrupted_soon()?;
        fill([p.words(&[5, 0]), p.out(16)])
    }),
    ok(nr::CLOCK_NANOSLEEP, "", |p| fill([1, 0, p.words(&NO_TIME), 0])),
    fails(EINTR, nr::CLOCK_NANOSLEEP, "interrupted", |p| {
        interrupted_soon()?;
        fill([1, 0, p.words(&[5, 0]), p.out(16)])
    }),
    ok(nr::GETTIMEOFDAY, "", |p| fill([p.out(16), p.out(8)])),
    fails(EINVAL, nr::SETTIMEOFDAY, "", |p| fill([p.words(&BAD_TIME), 0])),
    fails(EINVAL, nr::SETTIMEOFDAY, "zone", |p| {
        root()?;
        fill([0, p.ints(&[100_000, 0])])
    }),
    varies(nr::TIME, "", |p| fill([p.out(8)])),
    varies(nr::TIMES, "", |p| fill([p.out(32)])),
    ok(nr::CLOCK_GETTIME, "", |p| fill([2, p.out(16)])),
    ok(nr::CLOCK_GETRES, "", |p| fill([1, p.out(16)])),
    fails(EINVAL, nr::CLOCK_SETTIME, "", |p| fill([0, p.words(&BAD_TIME)])),
    ok(nr::ADJTIMEX, "", |p| fill([p.out(208)])),
    ok(nr::CLOCK_ADJTIME, "", |p| fill([0, p.out(208)])),
    ok(nr::GETITIMER, "", |p| fill([0, p.out(32)])),
    ok(nr::SETITIMER, "", |p| fill([1, p.words(&[0, 0, 100, 0]), p.out(32)])),
    ok(nr::TIMER_CREATE, "", |p| {
        let mut event = [0; 64];
        event[8] = 10;
        fill([1, p.put(&event), p.out(4)])
    }),
    ok(nr::TIMER_SETTIME, "", |p| fill([timer()?, 0, p.words(&[0, 0, 100, 0]), p.out(32)])),
    ok(nr::TIMER_GETTIME, "", |p| fill([timer()?, p.out(32)])),
    ok(nr::SCHED_RR_GET_INTERVAL, "", |p| fill([0, p.out(16)])),
    fails(EAGAIN, nr::FUTEX, "wait", |p| {
        fill([p.put_aligned(&[0; 4], 4), 128, 1, p.words(&NO_TIME), 0, 0])
    }),
    fails(ETIMEDOUT, nr::FUTEX, "wait until the time is over", |p| {
        fill([p.put_aligned(&[0; 4], 4), 128, 0, p.words(&NO_TIME), 0, 0])
    }),
    ok(nr::FUTEX, "wake shared", |p| fill([p.put_aligned(&[0; 4], 4), 1, 1, 0, 0, 0])),
    ok(nr::FUTEX, "wake with operation", |p| {
        fill([p.put_aligned(&[0; 4], 4), 5, 1, 1, p.put_aligned(&[0; 4], 4), 0])
    }),
    ok(nr::FUTEX, "requeue", |p| {
        fill([p.put_aligned(&[0; 4], 4), 4 | 128, 1, 1, p.put_aligned(&[0; 4], 4), 0])
    }),
    ok(nr::FUTEX, "lock", |p| fill([p.put_aligned(&[0; 4], 4), 6 | 128, 0, p.words(&[1, 0])])),
    ok(nr::FUTEX, "try to lock", |p| fill([p.put_aligned(&[0; 4], 4), 8 | 128, 0, 0])),
    fails(EPERM, nr::FUTEX, "unlock", |p| fill([p.put_aligned(&[0; 4], 4), 7 | 128, 0, 0])),
    ok(nr::FUTEX_WAKE, "shared", |p| fill([p.put_aligned(&[0; 4], 4), 1, 1, 2])),
    fails(EAGAIN, nr::FUTEX_WAIT, "", |p| {
        fill([p.put_aligned(&[0; 4], 4), 1, 1, 2 | 128, p.words(&NO_TIME), 1])
    }),
    fails(EAGAIN, nr::FUTEX_WAITV, "", |p| {
        let words = [p.put_aligned(&[0; 4], 4), p.put_aligned(&[0; 4], 4)];
        fill([p.words(&[0, words[0], 2 | 128, 1, words[1], 2 | 128]), 2, 0, p.words(&NO_TIME), 1])
    }),
    ok(nr::FUTEX_REQUEUE, "", |p| {
        let words = [p.put_aligned(&[0; 4], 4), p.put_aligned(&[0; 4], 4)];
        fill([p.words(&[0, words[0], 2 | 128, 0, words[1], 2 | 128]), 0, 1, 1])
    }),
];

/// A signal comes every hundredth of a second and is caught: a sleep ends early.
fn interrupted_soon() -> Option<()> {
    const SIGALRM: i32 = 14;
    unsafe extern "C" {
        fn signal(number: i32, handler: extern "C" fn(i32)) -> usize;
    }
    extern "C" fn caught(_: i32) {}
    // SAFETY: the handler does nothing.
    unsafe { signal(SIGALRM, caught) };
    let often: Vec<u8> =
        [0usize, 10_000, 0, 10_000].iter().flat_map(|word| word.to_le_bytes()).collect();
    set_up(nr::SETITIMER, &[0, outside(&often), 0])?;
    Some(())
}

fn timer() -> Option<usize> {
    let id = room(8);
    set_up(nr::TIMER_CREATE, &[1, 0, id])?;
    Some(int_pair(id).0)
}

const SIGNALS: &[Case] = &[
    ok(nr::RT_SIGACTION, "", |p| fill([10, p.words(&[1, 0, 0, 0]), p.out(32), 8])),
    ok(nr::RT_SIGPROCMASK, "", |p| fill([0, p.words(&[1]), p.out(8), 8])),
    ok(nr::RT_SIGPENDING, "", |p| fill([p.out(8), 8])),
    ok(nr::RT_SIGTIMEDWAIT, "", |p| {
        pending(10)?;
        fill([p.words(&[1 << 9]), p.out(128), p.words(&[1, 0]), 8])
    }),
    fails(EAGAIN, nr::RT_SIGTIMEDWAIT, "nothing", |p| {
        fill([p.words(&[1 << 9]), 0, p.words(&NO_TIME), 8])
    }),
    ok(nr::RT_SIGQUEUEINFO, "", |p| {
        pending(10)?;
        fill([own_pid(), 10, p.ints(&signal_info())])
    }),
    ok(nr::RT_TGSIGQUEUEINFO, "", |p| {
        pending(10)?;
        fill([own_pid(), own_pid(), 10, p.ints(&signal_info())])
    }),
    ok(nr::PIDFD_SEND_SIGNAL, "", |p| {
        pending(10)?;
        fill([set_up(nr::PIDFD_OPEN, &[own_pid(), 0])?, 10, p.ints(&signal_info()), 0])
    }),
    fails(EINTR, nr::RT_SIGSUSPEND, "", |p| {
        interrupted_soon()?;
        fill([p.words(&[0]), 8])
    }),
    ok(nr::SIGALTSTACK, "", |p| {
        let stack = room(65536);
        fill([p.words(&[stack, 0, 65536]), p.out(24)])
    }),
];

/// A siginfo from this very process, with SI_QUEUE.
fn signal_info() -> [u32; 32] {
    let mut info = [0; 32];
    info[0] = 10;
    info[2] = u32::MAX;
    info[4] = own_pid() as u32;
    info
}

/// Whether the kernel has written a number.
fn is_set(addr: usize) -> isize {
    // SAFETY: the number is in the arena, which is accessible.
    isize::from(unsafe { std::ptr::read_unaligned(addr as *const u32) } != 0)
}

const PROCESS: &[Case] = &[
    varies(nr::WAIT4, "", |p| fill([dead_child()?, p.out(4), 0, p.out(144)])),
    ok(nr::WAITID, "", |p| fill([1, dead_child()?, p.put(&[1; 128]), 4, p.out(144)])),
    fails(ENOEXEC, nr::EXECVE, "", |p| {
        not_a_program()?;
        let words = [p.str("true"), p.str("an argument"), p.str(&"long".repeat(2000)), 0];
        let environment = [p.str("A=b"), p.str("C=d"), 0];
        fill([p.str("program"), p.words(&words), p.words(&environment)])
    }),
    fails(ENOEXEC, nr::EXECVEAT, "", |p| {
        not_a_program()?;
        let words = [p.str("true"), p.str("an argument"), 0];
        let environment = [p.str("A=b"), 0];
        fill([HERE, p.str("program"), p.words(&words), p.words(&environment), 0])
    }),
    ok(nr::GETRLIMIT, "", |p| fill([7, p.out(16)])),
    ok(nr::SETRLIMIT, "", |p| fill([4, p.words(&[0, usize::MAX])])),
    ok(nr::PRLIMIT64, "", |p| fill([0, 4, p.words(&[0, usize::MAX]), p.out(16)])),
    ok(nr::GETRUSAGE, "", |p| fill([0, p.out(144)])),
    ok(nr::GETGROUPS, "", |p| {
        root()?;
        set_up(nr::SETGROUPS, &[3, outside(&[1; 12])])?;
        fill([3, p.out(12)])
    }),
    ok(nr::SETGROUPS, "", |p| {
        root()?;
        fill([3, p.ints(&[1, 2, 3])])
    }),
    ok(nr::GETRESUID, "", |p| fill([p.out(4), p.out(4), p.out(4)])),
    ok(nr::GETRESGID, "", |p| fill([p.out(4), p.out(4), p.out(4)])),
    ok(nr::CAPGET, "", |p| fill([p.ints(&[0x2008_0522, 0]), p.out(24)])),
    ok(nr::CAPSET, "", |p| fill([p.ints(&[0x2008_0522, 0]), p.out(24)])),
    fails(EINVAL, nr::CAPSET, "the version is written", |p| fill([p.ints(&[1, 0]), 0])),
    ok(nr::SCHED_SETPARAM, "", |p| fill([0, p.ints(&[0])])),
    ok(nr::SCHED_GETPARAM, "", |p| fill([0, p.out(4)])),
    ok(nr::SCHED_SETSCHEDULER, "", |p| fill([0, 3, p.ints(&[0])])),
    ok(nr::SCHED_SETAFFINITY, "", |p| fill([0, 16, p.words(&[usize::MAX, 0])])),
    ok(nr::SCHED_GETAFFINITY, "", |p| fill([0, 16, p.out(16)])),
    ok(nr::SCHED_SETATTR, "", |p| {
        fill([0, p.ints(&[56, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), 0])
    }),
    fails(E2BIG, nr::SCHED_SETATTR, "the size is written", |p| {
        fill([0, p.ints(&[60, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]), 0])
    }),
    ok(nr::SCHED_GETATTR, "", |p| fill([0, p.out(56), 56, 0])),
    ok(nr::PRCTL, "GET_PDEATHSIG", |p| fill([2, p.out(4)])),
    ok(nr::PRCTL, "SET_NAME", |p| fill([15, p.str("a name")])),
    ok(nr::PRCTL, "SET_NAME, too long", |p| fill([15, p.put(b"a name of more than 16 bytes")])),
    ok(nr::PRCTL, "GET_NAME", |p| fill([16, p.out(16)])),
    ok(nr::PRCTL, "GET_TSC", |p| fill([25, p.out(4)])),
    ok(nr::PRCTL, "GET_CHILD_SUBREAPER", |p| fill([37, p.out(4)])),
    ok(nr::PRCTL, "GET_TID_ADDRESS", |p| fill([40, p.out(8)])),
    ok(nr::PRCTL, "SET_SECCOMP", |p| {
        set_up(nr::PRCTL, &[38, 1, 0, 0, 0])?;
        let filter = p.ints(&[6, 0x7fff_0000]);
        fill([22, 2, p.words(&[1, filter])])
    }),
    ok(nr::PRCTL, "SET_MM: MAP_SIZE", |p| fill([35, 15, p.out(4), 0, 0])),
    ok(nr::PRCTL, "SET_MM: AUXV", |p| {
        root()?;
        fill([35, 12, p.words(&[3, 0, 0, 0]), 32, 0])
    }),
    fails(EINVAL, nr::PRCTL, "SET_MM: MAP", |p| {
        let auxv = p.out(300);
        let mut map = [0; 13];
        map[11] = auxv;
        map[12] = 300 | 0xffff_ffff_0000_0000;
        fill([35, 14, p.words(&map), 104, 0])
    }),
    ok(nr::PRCTL, "SET_VMA", |p| {
        let memory = room(40_000).next_multiple_of(4096);
        fill([0x5356_4d41, 0, memory, 4096, p.str("a name")])
    }),
    varies(nr::PRCTL, "GET_AUXV", |p| fill([0x4155_5856, p.out(64), 64, 0, 0])),
    ok(nr::PRCTL, "SCHED_CORE", |p| fill([62, 0, own_pid(), 0, p.out(8)])),
    ok(nr::ARCH_PRCTL, "GET_FS", |p| fill([0x1003, p.out(8)])),
    ok(nr::ARCH_PRCTL, "GET_GS", |p| fill([0x1004, p.out(8)])),
    ok(nr::ARCH_PRCTL, "GET_XCOMP_SUPP", |p| fill([0x1021, p.out(8)])),
    ok(nr::ARCH_PRCTL, "GET_XCOMP_PERM", |p| fill([0x1022, p.out(8)])),
    ok(nr::ARCH_PRCTL, "GET_UNTAG_MASK", |p| fill([0x4001, p.out(8)])),
    ok(nr::ARCH_PRCTL, "GET_MAX_TAG_BITS", |p| fill([0x4003, p.out(8)])),
    ok(nr::SECCOMP, "filter", |p| {
        set_up(nr::PRCTL, &[38, 1, 0, 0, 0])?;
        let filter = p.ints(&[6, 0x7fff_0000]);
        fill([1, 0, p.words(&[1, filter])])
    }),
    ok(nr::SECCOMP, "action", |p| fill([2, 0, p.ints(&[0x7fff_0000])])),
    ok(nr::SECCOMP, "sizes", |p| fill([3, 0, p.out(6)])),
    ok(nr::GET_ROBUST_LIST, "", |p| fill([0, p.out(8), p.out(8)])),
    ok(nr::GETCPU, "", |p| fill([p.out(4), p.out(4), 0])),
    // The kernel returns the error in 32 bits, so it does not look like one.
    ok(nr::MODIFY_LDT, "write", |p| fill([1, p.ints(&[9000, 0, 0, 0]), 16])),
    ok(nr::MODIFY_LDT, "read", |p| fill([2, p.out(128), 128])),
    ok(nr::LANDLOCK_CREATE_RULESET, "", |p| fill([p.words(&[1]), 8, 0])),
    ok(nr::LANDLOCK_ADD_RULE, "", |p| {
        let rules = set_up(nr::LANDLOCK_CREATE_RULESET, &[outside(&1usize.to_le_bytes()), 8, 0])?;
        let directory = directory()? as u32;
        fill([rules, 1, p.ints(&[1, 0, directory]), 0])
    }),
    ok(nr::KCMP, "", |p| {
        let (epoll, fd) = (set_up(nr::EPOLL_CREATE1, &[0])?, pipe(1)?.0);
        set_up(nr::EPOLL_CTL, &[epoll, 1, fd, outside(&[1; 12])])?;
        fill([own_pid(), own_pid(), 7, fd, p.ints(&[epoll as u32, fd as u32, 0])])
    }),
    ok(nr::PTRACE, "PEEKDATA", |p| fill([2, tracee()?, outside(&[0; 16]), p.out(8)])),
    ok(nr::PTRACE, "PEEKUSER", |p| fill([3, tracee()?, 0, p.out(8)])),
    ok(nr::PTRACE, "GETREGS", |p| fill([12, tracee()?, 0, p.out(216)])),
    ok(nr::PTRACE, "GETFPREGS", |p| fill([14, tracee()?, 0, p.out(512)])),
    ok(nr::PTRACE, "GETREGSET", |p| {
        let registers = p.out(216);
        fill([0x4204, tracee()?, 1, p.words(&[registers, 216])])
    }),
    ok(nr::PTRACE, "GETSIGINFO", |p| fill([0x4202, tracee()?, 0, p.out(128)])),
    ok(nr::PTRACE, "GETEVENTMSG", |p| fill([0x4201, tracee()?, 0, p.out(8)])),
    ok(nr::PTRACE, "GETSIGMASK", |p| fill([0x420a, tracee()?, 8, p.out(8)])),
    ok(nr::PTRACE, "SETSIGMASK", |p| fill([0x420b, tracee()?, 8, p.words(&[0])])),
    ok(nr::PTRACE, "GET_SYSCALL_INFO", |p| fill([0x420e, tracee()?, 88, p.out(88)])),
    ok(nr::PTRACE, "GET_RSEQ_CONFIGURATION", |p| fill([0x420f, tracee()?, 24, p.out(24)])),
    ok(nr::PTRACE, "GET_SYSCALL_USER_DISPATCH_CONFIG", |p| {
        fill([0x4211, tracee()?, 32, p.out(32)])
    }),
    ok(nr::PTRACE, "ARCH_PRCTL", |p| fill([30, tracee()?, p.out(8), 0x1003])),
    varies(nr::CLONE, "with the parent's number", |p| fill([0x0010_0000, 0, p.out(4), 0, 0]))
        .and_then(|args| is_set(args[2])),
    varies(nr::CLONE, "with a descriptor", |p| fill([0x1000, 0, p.out(4), 0, 0])),
    varies(nr::CLONE3, "", |p| {
        let parent = p.out(4);
        fill([p.words(&[0x0010_0000, 0, 0, parent, 0, 0, 0, 0]), 64])
    })
    .and_then(|args| {
        // SAFETY: the arguments are in the arena, which is accessible.
        is_set(unsafe { std::ptr::read_unaligned((args[0] + 24) as *const usize) })
    }),
    fails(EEXIST, nr::CLONE3, "with a number", |p| {
        root()?;
        let (parent, numbers) = (p.out(4), p.ints(&[1]));
        fill([p.words(&[0x0010_0000, 0, 0, parent, 0, 0, 0, 0, numbers, 1, 0]), 88])
    }),
    fails(E2BIG, nr::CLONE3, "of a later kernel", |p| {
        let mut args = [0; 16];
        args[15] = 1;
        fill([p.words(&args), 128])
    }),
    ok(nr::LSM_LIST_MODULES, "", |p| fill([p.out(80), p.ints(&[80]), 0])),
    ok(nr::PROCESS_VM_READV, "", |p| {
        let local = [(p.out(30), 30), (p.out(5000), 5000)];
        let remote = [(p.put(&[1; 5000]), 5000), (p.put(&[2; 30]), 30)];
        fill([own_pid(), p.iovecs(&local), 2, p.iovecs(&remote), 2, 0])
    }),
    ok(nr::PROCESS_VM_WRITEV, "", |p| {
        let local = [(p.put(&[1; 30]), 30), (p.put(&[2; 5000]), 5000)];
        let remote = [(p.out(5000), 5000), (p.out(30), 30)];
        fill([own_pid(), p.iovecs(&local), 2, p.iovecs(&remote), 2, 0])
    }),
];

const MEMORY: &[Case] = &[
    ok(nr::MINCORE, "", |p| fill([room(40_000) & !4095, 36_865, p.out(10)])),
    ok(nr::PROCESS_MADVISE, "", |p| {
        let memory = room(40_000).next_multiple_of(4096);
        let ranges = [(memory, 4096), (memory + 4096, 8192)];
        fill([set_up(nr::PIDFD_OPEN, &[own_pid(), 0])?, p.iovecs(&ranges), 2, 20, 0])
    }),
    ok(nr::MBIND, "", |p| {
        let memory = room(40_000).next_multiple_of(4096);
        fill([memory, 4096, 2, p.words(&[1]), 64, 0])
    }),
    ok(nr::SET_MEMPOLICY, "", |p| fill([2, p.words(&[1]), 64])),
    ok(nr::GET_MEMPOLICY, "", |p| fill([p.out(4), p.out(128), 1024, 0, 0])),
    ok(nr::GET_MEMPOLICY, "of a page", |p| fill([p.out(4), 0, 0, p.put(&[1]), 3])),
    ok(nr::MIGRATE_PAGES, "", |p| fill([0, 64, p.words(&[1]), p.words(&[1])])),
    ok(nr::MOVE_PAGES, "", |p| {
        let pages = [room(5000), room(5000), room(5000)];
        fill([0, 3, p.words(&pages), p.ints(&[0, 0, 0]), p.out(12), 2])
    }),
    ok(nr::SHMCTL, "IPC_STAT", |p| fill([segment()?, 2, p.out(112)])),
    ok(nr::SHMCTL, "IPC_INFO", |p| {
        segment()?;
        fill([0, 3, p.out(72)])
    }),
    ok(nr::SHMCTL, "SHM_INFO", |p| {
        segment()?;
        fill([0, 14, p.out(48)])
    }),
    ok(nr::SHMCTL, "IPC_SET", |p| {
        let id = segment()?;
        fill([id, 1, p.out(112)])
    }),
    ok(nr::MSGSND, "", |p| {
        let id = messages()?;
        fill([id, p.words(&[1, 2, 3]), 16, 0o4000])
    }),
    ok(nr::MSGRCV, "", |p| {
        let id = messages()?;
        set_up(nr::MSGSND, &[id, outside(&[1; 24]), 16, 0])?;
        fill([id, p.out(24), 16, 0, 0o4000])
    }),
    ok(nr::MSGCTL, "IPC_STAT", |p| fill([messages()?, 2, p.out(120)])),
    ok(nr::MSGCTL, "IPC_INFO", |p| {
        messages()?;
        fill([0, 3, p.out(32)])
    }),
    ok(nr::MSGCTL, "IPC_SET", |p| fill([messages()?, 1, p.out(120)])),
    ok(nr::SEMOP, "", |p| fill([semaphores()?, p.put(&[0, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0]), 2])),
    ok(nr::SEMTIMEDOP, "", |p| {
        fill([semaphores()?, p.put(&[0, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0]), 2, p.words(&[1, 0])])
    }),
    ok(nr::SEMCTL, "GETALL", |p| fill([semaphores()?, 0, 13, p.out(8)])),
    ok(nr::SEMCTL, "SETALL", |p| fill([semaphores()?, 0, 17, p.out(8)])),
    ok(nr::SEMCTL, "IPC_STAT", |p| fill([semaphores()?, 0, 2, p.out(104)])),
    ok(nr::SEMCTL, "IPC_SET", |p| fill([semaphores()?, 0, 1, p.out(104)])),
    ok(nr::SEMCTL, "IPC_INFO", |p| {
        semaphores()?;
        fill([0, 0, 3, p.out(40)])
    }),
];

// Objects of System V, in a namespace that goes with the process.

fn segment() -> Option<usize> {
    namespaces()?;
    set_up(nr::SHMGET, &[0, 4096, 0o600])
}

fn messages() -> Option<usize> {
    namespaces()?;
    set_up(nr::MSGGET, &[0, 0o600])
}

fn semaphores() -> Option<usize> {
    namespaces()?;
    set_up(nr::SEMGET, &[0, 4, 0o600])
}

const SYSTEM: &[Case] = &[
    ok(nr::UNAME, "", |p| fill([p.out(390)])),
    ok(nr::SYSINFO, "", |p| fill([p.out(112)])),
    ok(nr::SETHOSTNAME, "", |p| {
        namespaces()?;
        fill([p.put(b"a-name-without-end"), 18])
    }),
    ok(nr::SETDOMAINNAME, "", |p| {
        namespaces()?;
        fill([p.put(b"a-name-without-end"), 18])
    }),
    ok(nr::GETRANDOM, "", |p| fill([p.out(5000), 5000, 0])),
    ok(nr::SYSFS, "index", |p| fill([1, p.str("tmpfs")])),
    ok(nr::SYSFS, "name", |p| fill([2, 0, p.out(8)])),
    ok(nr::USTAT, "", |p| {
        let stat = room(144);
        set_up(nr::STAT, &[path("/proc"), stat])?;
        fill([int_pair(stat).0, p.out(32)])
    }),
    varies(nr::SYSLOG, "", |p| {
        root()?;
        fill([3, p.out(3000), 3000])
    }),
    fails(ENOEXEC, nr::INIT_MODULE, "", |p| {
        root()?;
        fill([p.put(&[1; 5000]), 5000, p.str("a=1")])
    }),
    fails(ENOENT, nr::DELETE_MODULE, "", |p| {
        root()?;
        fill([p.str("no such thing"), 0o4000])
    }),
    varies(nr::ADD_KEY, "", |p| {
        fill([p.str("user"), p.str("uzswap:shapes"), p.put(&[1; 40]), 40, THREAD_KEYRING])
    }),
    fails(ENOKEY, nr::REQUEST_KEY, "", |p| fill([p.str("user"), p.str("uzswap:none"), 0, 0])),
    varies(nr::KEYCTL, "JOIN", |p| fill([1, p.str("uzswap")])),
    ok(nr::KEYCTL, "UPDATE", |p| fill([2, key()?, p.put(&[2; 40]), 40])),
    varies(nr::KEYCTL, "DESCRIBE", |p| fill([6, key()?, p.out(100), 100])),
    ok(nr::KEYCTL, "READ", |p| fill([11, key()?, p.out(40), 40])),
    varies(nr::KEYCTL, "SEARCH", |p| {
        key()?;
        fill([10, THREAD_KEYRING, p.str("user"), p.str("uzswap:shapes"), 0])
    }),
    ok(nr::KEYCTL, "CAPABILITIES", |p| fill([31, p.out(2), 2])),
    ok(nr::BPF, "MAP_CREATE", |p| {
        root()?;
        fill([0, p.ints(&[2, 4, 8, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), 72])
    }),
    ok(nr::BPF, "MAP_UPDATE_ELEM", |p| {
        root()?;
        let (key, value) = (p.ints(&[1]), p.words(&[7]));
        fill([2, p.words(&[bpf_map()?, key, value, 0]), 32])
    }),
    ok(nr::BPF, "MAP_LOOKUP_ELEM", |p| {
        root()?;
        let (key, value) = (p.ints(&[1]), p.out(8));
        fill([1, p.words(&[bpf_map()?, key, value, 0]), 32])
    }),
    ok(nr::BPF, "MAP_GET_NEXT_KEY", |p| {
        root()?;
        let (key, next) = (p.ints(&[1]), p.out(4));
        fill([4, p.words(&[bpf_map()?, key, next, 0]), 32])
    }),
    ok(nr::BPF, "PROG_LOAD", |p| {
        root()?;
        // r0 = 0; exit
        let instructions = p.words(&[0xb7, 0x95]);
        let license = p.str("GPL");
        fill([5, p.words(&[1 | 2 << 32, instructions, license, 0, 0, 0]), 48])
    }),
    ok(nr::BPF, "OBJ_GET_INFO_BY_FD", |p| {
        root()?;
        let info = p.out(80);
        fill([15, p.words(&[bpf_map()? | 80 << 32, info]), 16])
    }),
    varies(nr::PERF_EVENT_OPEN, "", |p| {
        let mut attributes = [0; 32];
        attributes[0] = 1;
        attributes[1] = 128;
        fill([p.ints(&attributes), 0, NOBODY, NOBODY, 0])
    }),
    fails(E2BIG, nr::PERF_EVENT_OPEN, "the size is written", |p| {
        let mut attributes = [0; 32];
        attributes[1] = 3;
        fill([p.ints(&attributes), 0, NOBODY, NOBODY, 0])
    }),
    ok(nr::STATMOUNT, "", |p| {
        let id = mount_id()?;
        fill([p.words(&[24, id, 1]), p.out(512), 512, 0])
    }),
    varies(nr::LISTMOUNT, "", |p| fill([p.words(&[24, usize::MAX, 0]), p.out(8), 1, 0])),
    varies(nr::LISTNS, "", |p| fill([p.words(&[32, 0, 0, 0]), p.out(8), 1, 0])),
    fails(ENOTBLK, nr::QUOTACTL, "", |p| {
        root()?;
        fill([0x80_0007 << 8, p.str("/dev/null"), 0, p.out(72)])
    }),
    fails(EINVAL, nr::KEXEC_LOAD, "", |p| {
        root()?;
        let one = p.put(&[1; 100]);
        fill([0, 1, p.words(&[one, 100, 1, 4096]), 0])
    }),
];

const THREAD_KEYRING: usize = -1isize as usize;

fn key() -> Option<usize> {
    set_up(
        nr::ADD_KEY,
        &[path("user"), path("uzswap:shapes"), outside(&[1; 40]), 40, THREAD_KEYRING],
    )
}

/// An array of three values of eight bytes.
fn bpf_map() -> Option<usize> {
    let attributes: Vec<u8> = [2u32, 4, 8, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        .iter()
        .flat_map(|int| int.to_le_bytes())
        .collect();
    set_up(nr::BPF, &[0, outside(&attributes), 72])
}

/// The unique number of the mount that holds the current directory.
fn mount_id() -> Option<usize> {
    const MNT_ID_UNIQUE: usize = 0x4000;
    let answer = room(256);
    set_up(nr::STATX, &[HERE, path("/"), 0, MNT_ID_UNIQUE, answer])?;
    // SAFETY: the answer has 256 bytes, of which the mount's number begins at 144.
    Some(unsafe { std::ptr::read((answer + 144) as *const usize) })
}

/// A terminal.
fn terminal() -> Option<usize> {
    let controller = set_up(nr::OPEN, &[path("/dev/ptmx"), 2 | 0o400])?;
    set_up(nr::IOCTL, &[controller, 0x4004_5431, room(4)])?;
    set_up(nr::IOCTL, &[controller, 0x5441, 2 | 0o400])
}

/// A disk, to ask about.
fn disk() -> Option<usize> {
    let names = ["/dev/vda", "/dev/sda", "/dev/nvme0n1", "/dev/loop0"];
    names.iter().find_map(|name| set_up(nr::OPEN, &[path(name), 0]))
}

const DEVICES: &[Case] = &[
    ok(nr::IOCTL, "TCGETS", |p| fill([terminal()?, 0x5401, p.out(36)])),
    ok(nr::IOCTL, "TCSETS", |p| fill([terminal()?, 0x5402, p.out(36)])),
    ok(nr::IOCTL, "TCGETA", |p| fill([terminal()?, 0x5405, p.out(18)])),
    ok(nr::IOCTL, "TCGETS2", |p| fill([terminal()?, 0x802c_542a, p.out(44)])),
    ok(nr::IOCTL, "TIOCGWINSZ", |p| fill([terminal()?, 0x5413, p.out(8)])),
    ok(nr::IOCTL, "TIOCSWINSZ", |p| fill([terminal()?, 0x5414, p.out(8)])),
    ok(nr::IOCTL, "TIOCOUTQ", |p| fill([terminal()?, 0x5411, p.out(4)])),
    ok(nr::IOCTL, "TIOCGETD", |p| fill([terminal()?, 0x5424, p.out(4)])),
    ok(nr::IOCTL, "TIOCGLCKTRMIOS", |p| fill([terminal()?, 0x5456, p.out(36)])),
    ok(nr::IOCTL, "FIONREAD", |p| fill([pipe(5)?.0, 0x541b, p.out(4)])),
    ok(nr::IOCTL, "FIONBIO", |p| fill([pipe(5)?.0, 0x5421, p.ints(&[1])])),
    ok(nr::IOCTL, "FIOASYNC", |p| fill([pipe(5)?.0, 0x5452, p.ints(&[0])])),
    ok(nr::IOCTL, "FIOQSIZE", |p| fill([file()?, 0x5460, p.out(8)])),
    ok(nr::IOCTL, "FIGETBSZ", |p| fill([file()?, 2, p.out(4)])),
    ok(nr::IOCTL, "FS_IOC_GETFLAGS", |p| fill([file()?, 0x8008_6601, p.out(4)])),
    ok(nr::IOCTL, "FIEMAP", |p| {
        let fd = file()?;
        set_up(nr::FSYNC, &[fd])?;
        let mut request = [0; 32 + 3 * 56];
        request[8..16].fill(0xff);
        request[24] = 3;
        fill([fd, 0xc020_660b, p.put(&request)])
    }),
    ok(nr::IOCTL, "FS_IOC_GETFSMAP", |p| {
        // Room for two records, between the lowest key and the highest.
        let mut request = [0; 192 + 2 * 64];
        request[8] = 2;
        request[128..160].fill(0xff);
        fill([file()?, 0xc0c0_583b, p.put(&request)])
    }),
    ok(nr::IOCTL, "PAGEMAP_SCAN", |p| {
        const PRESENT: usize = 8;
        let memory = outside(&[1; 40_000]).next_multiple_of(4096);
        let regions = p.out(72);
        let fd = set_up(nr::OPEN, &[path("/proc/self/pagemap"), 0])?;
        let end = memory + 2 * 4096;
        fill([
            fd,
            0xc060_6610,
            p.words(&[96, 0, memory, end, 0, regions, 3, 0, 0, PRESENT, 0, PRESENT]),
        ])
    }),
    fails(EINVAL, nr::IOCTL, "FIDEDUPERANGE", |p| {
        let fd = file()?;
        let mut request = [0; 24 + 2 * 32];
        request[8] = 1;
        request[16] = 2;
        request[18] = 1;
        fill([fd, 0xc018_9436, p.put(&request)])
    }),
    ok(nr::IOCTL, "KVM_GET_SUPPORTED_CPUID", |p| {
        let mut entries = [0; 8 + 256 * 40];
        entries[1] = 1;
        fill([set_up(nr::OPEN, &[path("/dev/kvm"), 2])?, 0xc008_ae05, p.put_aligned(&entries, 64)])
    }),
    ok(nr::IOCTL, "RNDGETENTCNT", |p| {
        fill([set_up(nr::OPEN, &[path("/dev/urandom"), 0])?, 0x8004_5200, p.out(4)])
    }),
    ok(nr::IOCTL, "UFFDIO_API", |p| {
        let fd = set_up(nr::USERFAULTFD, &[1])?;
        fill([fd, 0xc018_aa3f, p.words(&[0xaa, 0, 0])])
    }),
    fails(EINVAL, nr::IOCTL, "TUNSETIFF of no kind", |p| {
        root()?;
        fill([set_up(nr::OPEN, &[path("/dev/net/tun"), 2])?, 0x4004_54ca, p.out(40)])
    }),
    ok(nr::IOCTL, "TUNGETFEATURES", |p| {
        fill([set_up(nr::OPEN, &[path("/dev/net/tun"), 2])?, 0x8004_54cf, p.out(4)])
    }),
    ok(nr::IOCTL, "BLKGETSIZE64", |p| fill([disk()?, 0x8008_1272, p.out(8)])),
    ok(nr::IOCTL, "BLKGETSIZE", |p| fill([disk()?, 0x1260, p.out(8)])),
    ok(nr::IOCTL, "BLKSSZGET", |p| fill([disk()?, 0x1268, p.out(4)])),
    ok(nr::IOCTL, "BLKRAGET", |p| fill([disk()?, 0x1263, p.out(8)])),
    fails(EINVAL, nr::IOCTL, "BLKPG of partition 0", |p| {
        root()?;
        let partition = p.put_aligned(&[0; 152], 8);
        fill([disk()?, 0x1269, p.words(&[1, 152, partition])])
    }),
    ok(nr::IOCTL, "HDIO_GETGEO", |p| fill([disk()?, 0x0301, p.out(16)])),
    ok(nr::IOCTL, "PIO_UNIMAP", |p| {
        let entries = p.out(8);
        fill([set_up(nr::OPEN, &[path("/dev/tty0"), 0o400])?, 0x4b66, p.words(&[2, entries])])
    }),
    ok(nr::IOCTL, "PERF_EVENT_IOC_ID", |p| {
        let mut attributes = [0; 128];
        attributes[0] = 1;
        attributes[4] = 128;
        let event = set_up(nr::PERF_EVENT_OPEN, &[outside(&attributes), 0, NOBODY, NOBODY, 0])?;
        fill([event, 0x8008_2407, p.out(8)])
    }),
];
