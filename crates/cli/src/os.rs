//! The operating system, as far as the standard library does not reach: the control block, signals,
//! starting the program, probes. All unsafe code of the command is here and in `os/`, but for the
//! entry point in `bin/uzswap.rs`.
//!
//! # Safety charter
//! The command is an ordinary process. It forks before it has threads, but for a `Waker`, and every
//! function here is safe to call from its main thread. Other threads have all signals blocked.
//! Pointers given to libc point to live locals or to memory that this file owns. A forked child
//! calls async-signal-safe functions only and allocates nothing, until it execs or ends; the
//! supervisor of `--in-place` alone goes on as an ordinary process, with the one thread that it was
//! forked from. The control block is mapped for the life of the process and sealed against
//! shrinking, so references to it stay valid whatever the managed program does; its shared half
//! consists of atomics.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::ptr::{null, null_mut};
use std::time::Duration;

pub mod apart;
pub mod contention;
mod end;
mod witness;

pub use end::{End, How};
pub use witness::Witness;

use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr};
use uzswap::PAGE_BYTES;
use uzswap::control::handles::{COUNTERS_SEALS, Handle, Handles, SETTINGS_SEALS, TEXT_BYTES};
use uzswap::control::trace::{RING_OFFSET, Ring, TRACED_BYTES};
use uzswap::control::{CONTROL_BYTES, Settings, Tree};

/// Puts /dev/null where a standard descriptor is closed, for us only: it is closed again by the
/// exec. Without this the first file opened would become our stderr.
pub fn fill_standard_descriptors() {
    for fd in 0..3 {
        // SAFETY: no pointers but a constant string; an open takes the lowest free number, which is
        // `fd`.
        unsafe {
            if libc::fcntl(fd, libc::F_GETFD) == -1 {
                libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
            }
        }
    }
}

fn check(result: c_int) -> io::Result<c_int> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A C string of a path or argument.
pub fn c_string(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "contains a zero byte"))
}

// ---------------------------------------------------------------- the control block

/// Memory that the processes of one run share, and what they are told, see `uzswap::control`.
pub struct ControlBlock {
    addr: *mut u8,
    counters: OwnedFd,
    settings: OwnedFd,
    has_ring: bool,
}

impl ControlBlock {
    /// Makes both: the counters, which all may write, and the settings, which nobody can write any
    /// more. Their descriptors survive an exec.
    pub fn create(settings: &Settings) -> io::Result<ControlBlock> {
        let has_ring = settings.trace != 0;
        Self::fits(has_ring)?;
        let sealed = memory_file(c"uzswap-settings")?;
        // SAFETY: plain numbers and bytes without padding between them, read for their length.
        let bytes = unsafe {
            std::slice::from_raw_parts(
                std::ptr::from_ref(settings).cast::<u8>(),
                size_of::<Settings>(),
            )
        };
        File::from(sealed.try_clone()?).write_all_at(bytes, 0)?;
        add_seals(&sealed, SETTINGS_SEALS)?;

        let shared = memory_file(c"uzswap-control")?;
        let bytes = Self::file_bytes(has_ring);
        // SAFETY: plain calls on our descriptor; the mapping is new, of the size the file was just
        // given.
        let addr = unsafe {
            check(libc::ftruncate(shared.as_raw_fd(), bytes as libc::off_t))?;
            add_seals(&shared, COUNTERS_SEALS)?;
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(null_mut(), bytes, prot, libc::MAP_SHARED, shared.as_raw_fd(), 0)
        };
        if addr == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let (counters, settings) = (above_small_numbers(shared)?, above_small_numbers(sealed)?);
        Ok(ControlBlock { addr: addr.cast(), counters, settings, has_ring })
    }

    /// Whether files, those in memory included, may be as large as the block's.
    pub fn fits(has_ring: bool) -> io::Result<()> {
        within_file_size(Self::file_bytes(has_ring).max(size_of::<Settings>()))
    }

    /// The length of the larger file.
    pub fn file_bytes(has_ring: bool) -> usize {
        if has_ring { TRACED_BYTES } else { CONTROL_BYTES }
    }

    /// The shared counters.
    pub fn tree(&self) -> &'static Tree {
        // SAFETY: mapped until the process ends (there is no Drop), at a page boundary, for
        // CONTROL_BYTES; all fields are atomics, for which any bytes are valid.
        unsafe { &*self.addr.cast::<Tree>() }
    }

    /// Where faults are recorded, if the settings said so.
    pub fn ring(&self) -> Option<&'static Ring> {
        // SAFETY: as above; with a ring the mapping is as long as that needs.
        self.has_ring.then(|| unsafe { &*self.addr.add(RING_OFFSET).cast::<Ring>() })
    }

    /// The descriptor of the counters.
    pub fn fd(&self) -> RawFd {
        self.counters.as_raw_fd()
    }

    /// Variables of the program's environment: the descriptors, and which files they are of.
    pub fn variable(&self) -> String {
        let handle = |fd: &OwnedFd| {
            // The descriptor is open, so this finds an inode. A wrong number would only make the
            // program run unmanaged.
            let inode =
                uzswap::sys::fd::inode_and_bytes(fd.as_raw_fd()).map_or(0, |(inode, _)| inode);
            Handle { fd: fd.as_raw_fd(), inode }
        };
        let all = Handles { counters: handle(&self.counters), settings: handle(&self.settings) };
        String::from_utf8_lossy(all.write_to(&mut [0; TEXT_BYTES])).into_owned()
    }
}

/// A new file in memory that can be sealed.
fn memory_file(name: &CStr) -> io::Result<OwnedFd> {
    const MFD_NOEXEC_SEAL: u32 = 8;
    let make = |flags| {
        // SAFETY: a terminated name.
        check(unsafe { libc::memfd_create(name.as_ptr(), flags) })
    };
    let sealing = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // Kernels before 6.3 do not know NOEXEC_SEAL; later ones may insist on it (vm.memfd_noexec).
    let fd = make(sealing | MFD_NOEXEC_SEAL).or_else(|_| make(sealing))?;
    // SAFETY: just opened, ours.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn add_seals(file: &OwnedFd, seals: u32) -> io::Result<()> {
    // SAFETY: plain numbers.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals as c_int) }).map(drop)
}

/// Moves a descriptor to where it is in nobody's way, without close-on-exec. Shells use 10 and up
/// for themselves and scripts small numbers; `select` ends at 1024.
fn above_small_numbers(fd: OwnedFd) -> io::Result<OwnedFd> {
    const WANTED: u64 = 700;
    let limit = resource_limit(libc::RLIMIT_NOFILE as c_int).unwrap_or(1024);
    let mut lowest = WANTED.min(limit.saturating_sub(1)) as c_int;
    loop {
        // SAFETY: duplicating our own descriptor.
        match check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD, lowest) }) {
            // SAFETY: just made, ours.
            Ok(high) => return Ok(unsafe { OwnedFd::from_raw_fd(high) }),
            // The numbers up there are taken: look further down.
            Err(_) if lowest > 3 => lowest /= 2,
            Err(e) => return Err(e),
        }
    }
}

/// Whether a file may have so many bytes (`ulimit -f`). To be asked before a file is made longer:
/// beyond the limit the kernel not only refuses, it ends us by SIGXFSZ.
pub fn within_file_size(bytes: usize) -> io::Result<()> {
    uzswap::sys::file::within_size_limit(0, bytes).map_err(|e| io::Error::from_raw_os_error(e.0))
}

/// The soft limit of a resource; `None` when it is unlimited.
pub fn resource_limit(resource: c_int) -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills the local.
    let result = unsafe { libc::getrlimit(resource as libc::__rlimit_resource_t, &mut limit) };
    (result == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// The soft limit on address space.
pub fn address_space_limit() -> Option<u64> {
    resource_limit(libc::RLIMIT_AS as c_int)
}

// ---------------------------------------------------------------- signals

/// Signal state as uzswap was given it, for the program to inherit.
pub struct InheritedSignals {
    mask: libc::sigset_t,
    child_action: libc::sigaction,
}

impl InheritedSignals {
    /// Gives the process that state back, before it becomes the program.
    ///
    /// # Safety
    /// Without other threads, or between fork and exec: async-signal-safe.
    unsafe fn restore(&self) {
        // SAFETY: the state that the kernel gave us.
        unsafe {
            libc::sigaction(libc::SIGCHLD, &self.child_action, null_mut());
            libc::sigprocmask(libc::SIG_SETMASK, &self.mask, null_mut());
        }
    }
}

/// Whether a signal is ignored, as nohup and a shell's `&` leave it for those that they start.
pub fn is_ignored(signal: c_int) -> bool {
    // SAFETY: asks only; the kernel fills the local.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, null(), &mut action);
        action.sa_sigaction == libc::SIG_IGN
    }
}

/// A signal that was sent to us.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    pub signal: c_int,
    /// `si_code`: who sent it.
    pub code: c_int,
    /// The value that came with it, when `code` is SI_QUEUE.
    value: usize,
}

impl Received {
    #[cfg(test)]
    pub fn of(signal: c_int, code: c_int) -> Received {
        Received { signal, code, value: 0 }
    }

    /// The kernel sent it (for instance the terminal, on Ctrl-C), not a process.
    pub fn is_from_kernel(&self) -> bool {
        self.code == libc::SI_KERNEL
    }
}

fn all_signals() -> libc::sigset_t {
    // SAFETY: sigfillset initialises the local.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigfillset(&mut set);
        set
    }
}

/// From now on no signal interrupts us: they wait for [`wait_for_signal`]. Returns what was before.
pub fn take_signals() -> InheritedSignals {
    // SAFETY: structures are locals; SIGCHLD gets the default action because inherited "ignore"
    // would have the kernel reap the program before we learn how it ended.
    unsafe {
        let mut inherited =
            InheritedSignals { mask: std::mem::zeroed(), child_action: std::mem::zeroed() };
        libc::sigprocmask(libc::SIG_SETMASK, &all_signals(), &mut inherited.mask);
        let mut default: libc::sigaction = std::mem::zeroed();
        default.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(libc::SIGCHLD, &default, &mut inherited.child_action);
        inherited
    }
}

/// Waits for the next signal.
pub fn wait_for_signal() -> Received {
    loop {
        // SAFETY: fills the local.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let signal = libc::sigwaitinfo(&all_signals(), &mut info);
            if signal > 0 {
                let value = info.si_value().sival_ptr as usize;
                return Received { signal, code: info.si_code, value };
            }
        }
    }
}

/// Sends a signal on to the program, with its value if it had one.
pub fn forward(pid: Pid, received: Received) {
    // SAFETY: no pointers are followed; the value is the sender's.
    unsafe {
        if received.code == libc::SI_QUEUE {
            let value = libc::sigval { sival_ptr: received.value as *mut c_void };
            libc::sigqueue(pid.0, received.signal, value);
        } else {
            libc::kill(pid.0, received.signal);
        }
    }
}

/// Sends a signal to the program.
pub fn send(pid: Pid, signal: c_int) {
    // SAFETY: plain numbers.
    unsafe { libc::kill(pid.0, signal) };
}

/// Forgets a signal that waits for us, if one does.
pub fn discard(signal: c_int) {
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: live locals; no information is asked for.
    unsafe {
        let mut only: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut only);
        libc::sigaddset(&mut only, signal);
        libc::sigtimedwait(&only, null_mut(), &now);
    }
}

/// Calls `write`, whose output perhaps nobody reads any more: SIGPIPE does not end us for that, and
/// is not left for [`wait_for_signal`], which would take it for one that a process has sent.
pub fn without_sigpipe<T>(write: impl FnOnce() -> T) -> T {
    // SAFETY: live locals. A signal that a write raises waits for the thread that wrote.
    unsafe {
        let mut only: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut only);
        libc::sigaddset(&mut only, libc::SIGPIPE);
        let (mut before, mut waiting): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
        libc::sigpending(&mut waiting);
        libc::pthread_sigmask(libc::SIG_BLOCK, &only, &mut before);
        let result = write();
        // One that waited before is the program's.
        if libc::sigismember(&waiting, libc::SIGPIPE) == 0 {
            discard(libc::SIGPIPE);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, null_mut());
        result
    }
}

/// Waits for a signal that asks a process to end, for so long. One that we were started to ignore
/// (by nohup, or behind a shell's &) asks nobody. False: none has come.
pub fn is_asked_to_end_within(time: Duration) -> bool {
    let time = libc::timespec {
        tv_sec: time.as_secs() as libc::time_t,
        tv_nsec: time.subsec_nanos().into(),
    };
    // SAFETY: live locals; no information is asked for.
    unsafe {
        let mut asking: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut asking);
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
            if !is_ignored(signal) {
                libc::sigaddset(&mut asking, signal);
            }
        }
        libc::sigtimedwait(&asking, null_mut(), &time) > 0
    }
}

/// Lets `signal` do to us what it does by default: stop, or end the process. Returns when we were
/// continued, or when the kernel ignored it (process 1 of a container; a stop in an orphaned
/// process group). From the moment we are continued until we run, the signal strikes us directly
/// again; that is the stop the shell wants.
pub fn suffer(signal: c_int) {
    // SAFETY: locals and plain calls.
    unsafe {
        let mut default: libc::sigaction = std::mem::zeroed();
        default.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(signal, &default, null_mut());
        let mut only: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut only);
        libc::sigaddset(&mut only, signal);
        libc::raise(signal);
        let mut before: libc::sigset_t = std::mem::zeroed();
        // The signal ends the process once it is unblocked.
        libc::sigprocmask(libc::SIG_UNBLOCK, &only, &mut before);
        libc::sigprocmask(libc::SIG_SETMASK, &before, null_mut());
    }
}

/// The first socket of those that our parent has opened and listens on, by systemd's protocol. To
/// be asked once, before anything is opened.
pub fn inherited_socket() -> Option<OwnedFd> {
    const FIRST: RawFd = 3;
    let number = |name| std::env::var(name).ok()?.parse::<u32>().ok();
    if number("LISTEN_PID") != Some(std::process::id())
        || number("LISTEN_FDS").is_none_or(|n| n == 0)
    {
        return None;
    }
    // SAFETY: plain calls; the descriptor is ours by the protocol, and nobody else takes it.
    unsafe {
        if libc::fcntl(FIRST, libc::F_SETFD, libc::FD_CLOEXEC) == -1 {
            return None;
        }
        Some(OwnedFd::from_raw_fd(FIRST))
    }
}

/// Connects to a socket, and waits for nobody. WouldBlock: as many wait there as may, for a process
/// that was stopped, say. The connection is an ordinary one.
pub fn connect_at_once(path: &Path) -> io::Result<UnixStream> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    socket::connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Whether a socket is of this machine's files. The error: it is no socket that listens.
pub fn is_unix_socket(fd: &OwnedFd) -> io::Result<bool> {
    let option = |name| {
        let mut value: c_int = 0;
        let mut len = size_of::<c_int>() as libc::socklen_t;
        let to = (&raw mut value).cast();
        // SAFETY: live locals, the second of which says how large the first is.
        check(unsafe { libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, name, to, &mut len) })?;
        Ok::<_, io::Error>(value)
    };
    if option(libc::SO_ACCEPTCONN)? == 0 {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    Ok(option(libc::SO_DOMAIN)? == libc::AF_UNIX)
}

/// Keeps this process's memory out of swap, now and later. Tells the kernel, as far as we may, that
/// other processes wait for this one when they need memory.
pub fn lock_memory() -> io::Result<()> {
    const PR_SET_IO_FLUSHER: c_int = 57;
    // SAFETY: plain calls.
    unsafe {
        check(libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT))?;
        libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0);
    }
    Ok(())
}

/// No core dump of ours: the program has left its own.
pub fn disable_core_dump() {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: reads the local.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
}

/// Whether we lead our session: then a hang-up of the terminal reaches us alone.
pub fn is_session_leader() -> bool {
    // SAFETY: plain calls.
    unsafe { libc::getsid(0) == libc::getpid() }
}

/// The name of a signal: `SIGTERM`.
pub fn signal_name(signal: c_int) -> String {
    const NAMES: [&str; 32] = [
        "", "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV",
        "USR2", "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU",
        "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
    ];
    match NAMES.get(signal as usize) {
        Some(name) if signal > 0 => format!("SIG{name}"),
        _ => format!("SIG{signal}"),
    }
}

// ---------------------------------------------------------------- the program

/// A process that we started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pid(c_int);

impl Pid {
    pub fn number(self) -> i32 {
        self.0
    }
}

/// A program, as `execve` wants it.
pub struct Executable {
    path: CString,
    arguments: Vec<CString>,
    environment: Vec<CString>,
}

impl Executable {
    pub fn new(path: CString, arguments: Vec<CString>, environment: Vec<CString>) -> Executable {
        Executable { path, arguments, environment }
    }

    /// Becomes the program. Returns why it could not.
    pub fn exec(&self) -> io::Error {
        let (argv, envp) = (pointers(&self.arguments), pointers(&self.environment));
        // SAFETY: live strings, and arrays of them that end with a null pointer.
        unsafe { libc::execve(self.path.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
        io::Error::last_os_error()
    }
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|s| s.as_ptr()).chain([null()]).collect()
}

/// Starts a program in our own process group, with our descriptors, and with the signal state that
/// we inherited. It dies with us if we are killed, as it would if it had been killed itself.
pub fn start(program: &Executable, inherited: &InheritedSignals) -> io::Result<Pid> {
    let (argv, envp) = (pointers(&program.arguments), pointers(&program.environment));
    let mut pipe = [0; 2];
    // SAFETY: fills the local.
    check(unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) })?;
    // SAFETY: both ends were just opened.
    let (from_child, to_parent) =
        unsafe { (OwnedFd::from_raw_fd(pipe[0]), OwnedFd::from_raw_fd(pipe[1])) };
    // SAFETY: the child calls async-signal-safe functions only, on memory made before the fork, and
    // leaves by exec or _exit.
    let pid = unsafe {
        let parent = libc::getpid();
        let pid = check(libc::fork())?;
        if pid == 0 {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            if libc::getppid() != parent {
                libc::_exit(0); // uzswap died before the line above
            }
            inherited.restore();
            libc::execve(program.path.as_ptr(), argv.as_ptr(), envp.as_ptr());
            let errno = *libc::__errno_location();
            libc::write(to_parent.as_raw_fd(), (&raw const errno).cast(), size_of::<c_int>());
            libc::_exit(127);
        }
        pid
    };
    drop(to_parent);
    let mut errno: c_int = 0;
    // SAFETY: reads at most the size of the local; end of file means that the exec worked.
    let read =
        unsafe { libc::read(from_child.as_raw_fd(), (&raw mut errno).cast(), size_of::<c_int>()) };
    if read == size_of::<c_int>() as isize {
        // SAFETY: our own child, which is ending.
        unsafe { libc::waitpid(pid, null_mut(), 0) };
        return Err(io::Error::from_raw_os_error(errno));
    }
    Ok(Pid(pid))
}

/// A change of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Exited(c_int),
    Killed(c_int),
    Stopped(c_int),
    Continued,
}

/// The next change of any child, if there is one now. Any: as process 1 of a container we inherit
/// orphans.
pub fn next_change() -> Option<(Pid, Change)> {
    let mut status = 0;
    // SAFETY: fills the local.
    let pid = unsafe {
        libc::waitpid(-1, &mut status, libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED)
    };
    if pid <= 0 {
        return None;
    }
    let change = if libc::WIFEXITED(status) {
        Change::Exited(libc::WEXITSTATUS(status))
    } else if libc::WIFSIGNALED(status) {
        Change::Killed(libc::WTERMSIG(status))
    } else if libc::WIFSTOPPED(status) {
        Change::Stopped(libc::WSTOPSIG(status))
    } else {
        Change::Continued
    };
    Some((Pid(pid), change))
}

/// Whether [`next_change`] has something to tell about the program. An error counts: it is gone.
pub fn has_news(program: Pid) -> bool {
    let news = libc::WEXITED | libc::WSTOPPED | libc::WCONTINUED;
    // SAFETY: fills the local; without news the kernel leaves its process number zero.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let flags = news | libc::WNOHANG | libc::WNOWAIT;
        libc::waitid(libc::P_PID, program.0 as libc::id_t, &mut info, flags) != 0
            || info.si_pid() != 0
    }
}

/// A helper that ends our stop when the program's stop ends; gone when dropped.
pub struct Waker(c_int);

impl Waker {
    /// While we are stopped nobody can tell us that the program goes on (it was continued directly)
    /// or has died. A small copy of us looks at its state and continues us then, so that a program
    /// that is stopped and continued from outside never leaves us stopped for good. It goes on with
    /// that until it is dropped: the program may run again before we have stopped, and then the
    /// first signal comes too early.
    pub fn start(program: Pid) -> io::Result<Waker> {
        let stat = c_string(format!("/proc/{}/stat", program.0).as_bytes())?;
        // SAFETY: as in `start`: the child makes async-signal-safe calls on memory made before, and
        // exits.
        unsafe {
            let parent = libc::getpid();
            let pid = check(libc::fork())?;
            if pid == 0 {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                // Only if our parent still is the uzswap that forked us.
                while libc::getppid() == parent {
                    if !is_stopped(&stat) {
                        libc::kill(parent, libc::SIGCONT);
                    }
                    let pause = libc::timespec { tv_sec: 0, tv_nsec: 20_000_000 };
                    libc::nanosleep(&pause, null_mut());
                }
                libc::_exit(0);
            }
            Ok(Waker(pid))
        }
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        // SAFETY: our own child, not yet reaped: nobody else waits for it while we are here.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, null_mut(), 0);
        }
    }
}

/// Whether the third field of a /proc/PID/stat says stopped. Without allocation.
fn is_stopped(stat: &CStr) -> bool {
    let mut text = [0u8; 512];
    // SAFETY: reads at most the size of the local.
    let len = unsafe {
        let fd = libc::open(stat.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        let len = libc::read(fd, text.as_mut_ptr().cast(), text.len());
        libc::close(fd);
        len
    };
    let Some(text) = text.get(..len.max(0) as usize) else { return false };
    // The second field is the name in parentheses and may contain anything.
    match text.iter().rposition(|b| *b == b')') {
        Some(end) => matches!(text.get(end + 2), Some(b'T' | b't')),
        None => false,
    }
}

// ---------------------------------------------------------------- questions about files

/// Whether we may execute the file, with our effective identity.
pub fn may_execute(path: &Path) -> io::Result<()> {
    let path = c_string(path.as_os_str().as_bytes())?;
    // SAFETY: a live string.
    check(unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::X_OK, libc::AT_EACCESS) })?;
    Ok(())
}

/// A value that the kernel has told this process at its start; 0: it did not.
pub fn auxiliary(tag: libc::c_ulong) -> libc::c_ulong {
    // SAFETY: reads what the loader has kept.
    unsafe { libc::getauxval(tag) }
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

/// Whether the file carries capabilities that it gains when it is executed.
pub fn has_capabilities(path: &Path) -> bool {
    let Ok(path) = c_string(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: live strings; no buffer, only the size is asked for.
    unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), null_mut(), 0) > 0 }
}

/// Our identity, and whether an exec may change that.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    pub user: u32,
    pub group: u32,
    pub no_new_privileges: bool,
}

pub fn identity() -> Identity {
    // SAFETY: plain calls.
    unsafe {
        Identity {
            user: libc::getuid(),
            group: libc::getgid(),
            no_new_privileges: libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1,
        }
    }
}

// ---------------------------------------------------------------- probes of the kernel

/// A page that nobody may touch, to try what /proc/self/mem can do with it.
pub struct ForbiddenPage(*mut c_void);

impl ForbiddenPage {
    /// Holds `byte` everywhere and is PROT_NONE.
    pub fn new(byte: u8) -> io::Result<ForbiddenPage> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of ours, written while it is writable.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let addr = libc::mmap(null_mut(), PAGE_BYTES, prot, flags, -1, 0);
            if addr == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let page = ForbiddenPage(addr);
            addr.cast::<u8>().write_bytes(byte, PAGE_BYTES);
            check(libc::mprotect(addr, PAGE_BYTES, libc::PROT_NONE))?;
            Ok(page)
        }
    }

    pub fn address(&self) -> u64 {
        self.0 as u64
    }

    /// Makes it readable again and copies it out.
    pub fn into_bytes(self) -> io::Result<[u8; PAGE_BYTES]> {
        // SAFETY: our own mapping, readable after mprotect.
        unsafe {
            check(libc::mprotect(self.0, PAGE_BYTES, libc::PROT_READ))?;
            Ok(self.0.cast::<[u8; PAGE_BYTES]>().read())
        }
    }
}

impl Drop for ForbiddenPage {
    fn drop(&mut self) {
        // SAFETY: our own mapping, no references to it exist.
        unsafe { libc::munmap(self.0, PAGE_BYTES) };
    }
}

/// The words of /proc/PID/stat on a process behind its name: state, parent, group and so on; none
/// if it has gone.
pub fn stat_of(pid: u32) -> Option<Vec<String>> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the name in parentheses and may contain anything.
    let end = stat.iter().rposition(|b| *b == b')')?;
    Some(String::from_utf8_lossy(&stat[end + 1..]).split_whitespace().map(String::from).collect())
}

/// The name of a process; empty if it has gone.
pub fn name_of(pid: u32) -> String {
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(&name).trim_end_matches('\n').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn the_counters_are_shared_and_the_settings_are_sealed() {
        let settings = Settings { memory_bytes: 77 << 20, ..Settings::new() };
        let block = ControlBlock::create(&settings).unwrap();
        assert!(block.fd() >= 3);
        assert_eq!(block.tree().limit_pages.load(Ordering::Relaxed), 0);
        block.tree().limit_pages.store(5, Ordering::Relaxed);
        // As the preload library sees them.
        let handles = Handles::parse(block.variable().as_bytes()).unwrap();
        assert_eq!(handles.counters.fd, block.fd());
        assert!(handles.counters.is_there(COUNTERS_SEALS, CONTROL_BYTES));
        assert!(!handles.counters.is_there(COUNTERS_SEALS, CONTROL_BYTES + 1));
        assert!(!handles.counters.is_there(SETTINGS_SEALS, CONTROL_BYTES), "they can be written");
        assert!(handles.settings.is_there(SETTINGS_SEALS, size_of::<Settings>()));
        let counters = File::from(block.counters.try_clone().unwrap());
        assert!(
            counters.set_len(4096).is_err(),
            "sealed: a shorter file would kill us with SIGBUS"
        );
        counters.write_all_at(&[0], 0).unwrap();

        let sealed = File::from(block.settings.try_clone().unwrap());
        let read = || {
            let mut bytes = vec![0; size_of::<Settings>()];
            sealed.read_exact_at(&mut bytes, 0).unwrap();
            bytes
        };
        let before = read();
        assert_eq!(&before[..8], b"uzswap04");
        assert_eq!(before[8..16], (77u64 << 20).to_le_bytes());
        assert!(
            sealed.write_at(&[1], 0).is_err()
                && sealed.set_len(0).is_err()
                && sealed.set_len(9999).is_err()
        );
        let fd = sealed.as_raw_fd();
        // SAFETY: plain calls on our descriptor; a new mapping, of which nothing comes.
        unsafe {
            let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            assert_eq!(libc::fallocate(fd, hole, 0, 4096), -1);
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            assert_eq!(
                libc::mmap(null_mut(), 4096, prot, libc::MAP_SHARED, fd, 0),
                libc::MAP_FAILED
            );
        }
        // By a descriptor of its own, opened anew.
        let path = format!("/proc/self/fd/{fd}");
        let again = std::fs::OpenOptions::new().write(true).open(path);
        assert!(again.is_err() || again.is_ok_and(|f| f.write_at(&[1], 0).is_err()));
        assert_eq!(read(), before);

        assert!(block.ring().is_none());
        let traced = ControlBlock::create(&Settings { trace: 1, ..settings }).unwrap();
        assert_eq!(traced.ring().unwrap().next(), uzswap::control::trace::Next::Empty);
    }

    #[test]
    fn a_signal_that_asks_to_end_is_heard_once() {
        // The mask is the thread's own.
        let heard = std::thread::spawn(|| {
            take_signals();
            let asked = || is_asked_to_end_within(Duration::from_millis(1));
            let before = asked();
            // SAFETY: sent to this thread, which blocks both.
            unsafe {
                libc::raise(libc::SIGUSR1);
                libc::raise(libc::SIGTERM);
            }
            [before, asked(), asked()]
        });
        assert_eq!(heard.join().unwrap(), [false, true, false]);
    }

    /// As where a program is continued before uzswap, which is to stop with it, has stopped.
    #[test]
    fn a_waker_wakes_again_and_again_until_it_is_dropped() {
        let once = libc::timespec { tv_sec: 30, tv_nsec: 0 };
        // SAFETY: the copy has one thread, calls what works in a copy, and leaves by _exit.
        let status = unsafe {
            let awake = Pid(libc::getpid());
            let copy = libc::fork();
            if copy == 0 {
                take_signals();
                let Ok(waker) = Waker::start(awake) else { libc::_exit(2) };
                let mut only: libc::sigset_t = std::mem::zeroed();
                libc::sigaddset(&mut only, libc::SIGCONT);
                let woken = || libc::sigtimedwait(&only, null_mut(), &once) == libc::SIGCONT;
                let is_woken_again = woken() && woken();
                drop(waker);
                libc::_exit(!is_woken_again as c_int);
            }
            let mut status = 0;
            libc::waitpid(copy, &mut status, 0);
            status
        };
        assert_eq!(status, 0);
    }

    #[test]
    fn a_write_that_nobody_reads_leaves_no_signal() {
        // The mask is the thread's own.
        let waits = std::thread::spawn(|| {
            take_signals();
            let (reader, mut writer) = io::pipe().unwrap();
            drop(reader);
            let write = || io::Write::write(&mut writer, b"x").unwrap_err().kind();
            assert_eq!(without_sigpipe(write), io::ErrorKind::BrokenPipe);
            // SAFETY: asks; the kernel fills the local.
            unsafe {
                let mut waiting: libc::sigset_t = std::mem::zeroed();
                libc::sigpending(&mut waiting);
                libc::sigismember(&waiting, libc::SIGPIPE)
            }
        });
        assert_eq!(waits.join().unwrap(), 0);
    }

    #[test]
    fn names_of_signals() {
        assert_eq!(signal_name(libc::SIGTERM), "SIGTERM");
        assert_eq!(signal_name(libc::SIGKILL), "SIGKILL");
        assert_eq!(signal_name(libc::SIGSYS), "SIGSYS");
        assert_eq!(signal_name(40), "SIG40");
    }

    #[test]
    fn file_systems_that_are_memory() {
        assert!(FileSystem { magic: 0x0102_1994, free_bytes: 0, no_setuid: false }.is_memory());
        assert!(!FileSystem::of(Path::new("/proc")).unwrap().is_memory());
    }
}
