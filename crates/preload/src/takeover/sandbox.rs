//! Seccomp filters under which the program puts itself: they hold for our calls, too.
//!
//! The filter is read first, and its program run on each call that the runtime may make
//! (`sys/seccomp.rs`). If it lets them pass nothing changes. If not, uzswap leaves the process for
//! good before the filter comes: all memory is brought in, paging ends, signals are as the program
//! set them, and its calls are the kernel's alone. From then on we make no call that the program
//! does not make itself, not even at its end. uzswap leaves as well where the kernel's strict mode
//! comes.

#![allow(unsafe_code)]
// # Safety charter
// The program's filter is copied to memory of our own before it is looked at.

use core::sync::atomic::{AtomicBool, Ordering};

use uzswap::control::{Mechanism, Notice};
use uzswap::sys::mem::{PROT_READ, PROT_WRITE, map_anonymous};
use uzswap::sys::seccomp::{Call, INSTRUCTIONS_MAX, Instruction, Verdict, verdict};
use uzswap::sys::{file, nr, userfaultfd};

use super::own_stack::runtime;
use super::thread::ThreadBlock;
use super::{Args, PAGER, buffers, call, classes, ending, is_shared_child, outside, run, signals};

/// A filter is installed; a forked child may open the mechanism's files; a program that is executed
/// may load us.
static FILTERED: AtomicBool = AtomicBool::new(false);
static MAY_OPEN: AtomicBool = AtomicBool::new(true);
static MAY_START: AtomicBool = AtomicBool::new(true);

/// Calls without which a program cannot be paged.
const NEEDED: [usize; 14] = [
    nr::RT_SIGPROCMASK,
    nr::RT_SIGACTION,
    nr::SIGALTSTACK,
    nr::FUTEX,
    nr::MMAP,
    nr::MUNMAP,
    nr::MPROTECT,
    nr::MADVISE,
    nr::MINCORE,
    nr::PREAD64,
    nr::GETPID,
    nr::GETTID,
    nr::EXIT,
    nr::PWRITE64,
];

/// Calls that may fail, each of which has another way, but may not end the program.
const OPTIONAL: [usize; 29] = [
    nr::CLOCK_GETTIME,
    nr::CLOSE,
    nr::FALLOCATE,
    nr::FADVISE64,
    nr::FCNTL,
    nr::FSTAT,
    nr::FTRUNCATE,
    nr::GETRANDOM,
    nr::GETSOCKOPT,
    nr::GET_ROBUST_LIST,
    nr::IO_GETEVENTS,
    nr::IO_SUBMIT,
    nr::NANOSLEEP,
    nr::OPENAT,
    nr::POLL,
    nr::PRLIMIT64,
    nr::PROCESS_MADVISE,
    nr::PROCESS_VM_READV,
    nr::PROCESS_VM_WRITEV,
    nr::READ,
    nr::READLINK,
    nr::RT_SIGPENDING,
    nr::RT_TGSIGQUEUEINFO,
    nr::SCHED_YIELD,
    nr::SYNC_FILE_RANGE,
    nr::TGKILL,
    nr::TKILL,
    nr::CLOSE_RANGE,
    nr::BRK,
];

/// Calls that a child or another thread of ours makes before it is as its parent.
const TO_OPEN: [usize; 6] =
    [nr::USERFAULTFD, nr::OPENAT, nr::IO_SETUP, nr::PIPE2, nr::UNLINKAT, nr::STAT];

/// Where the store is on servers: calls that bring a page back, and calls that connect again.
const NEEDED_REMOTE: [usize; 3] = [nr::SENDTO, nr::RECVFROM, nr::POLL];
const OPTIONAL_REMOTE: [usize; 5] =
    [nr::SOCKET, nr::CONNECT, nr::SETSOCKOPT, nr::DUP3, nr::SHUTDOWN];

/// Calls of a program that loads us, beside those of a running one. (What the loader itself needs
/// is not our business.)
const TO_START: [usize; 5] = [nr::OPENAT, nr::READ, nr::FSTAT, nr::FCNTL, nr::BRK];

pub(super) fn is_filtered() -> bool {
    FILTERED.load(Ordering::Relaxed)
}

/// Whether a forked child may try to open files of its own. Under a filter that would end it, it
/// may not.
pub(super) fn may_open_again() -> bool {
    MAY_OPEN.load(Ordering::Relaxed)
}

/// Whether a program that is executed now can load us.
pub(super) fn may_start() -> bool {
    MAY_START.load(Ordering::Relaxed)
}

/// Looks at a call that may install a filter, before it is made.
pub(super) fn note(t: &'static ThreadBlock, number: usize, a: &Args) {
    const PR_SET_SECCOMP: usize = 22;
    const MODE_STRICT: usize = 1;
    const MODE_FILTER: usize = 2;
    const SET_MODE_STRICT: usize = 0;
    const SET_MODE_FILTER: usize = 1;
    // A vfork child's filter is its own, and the memory that it shares with its parent stays paged.
    let is_asked = matches!((number, a[0]), (nr::PRCTL, PR_SET_SECCOMP))
        || number == nr::SECCOMP && matches!(a[0], SET_MODE_STRICT | SET_MODE_FILTER);
    if !is_asked || is_shared_child() {
        return;
    }
    let is_strict = match number {
        nr::PRCTL => a[1] == MODE_STRICT,
        _ => a[0] == SET_MODE_STRICT && a[1] == 0 && a[2] == 0,
    };
    if is_strict {
        return leave(t);
    }
    let is_filter = number == nr::SECCOMP || a[1] == MODE_FILTER;
    if is_filter && let Some(can_stay) = judge(t, a[2]) {
        FILTERED.store(true, Ordering::Relaxed);
        if !can_stay {
            leave(t);
        }
    }
}

/// Whether all needed calls pass the filter at `program` (`struct sock_fprog`). None: there is no
/// such filter, as the kernel will say.
fn judge(t: &'static ThreadBlock, program: usize) -> Option<bool> {
    const BYTES: usize = INSTRUCTIONS_MAX * size_of::<Instruction>();
    let mut head = [0u8; 16];
    if !buffers::copy_in(t, program, &mut head) {
        return None;
    }
    let count = u16::from_le_bytes([head[0], head[1]]) as usize;
    let at = head.as_chunks::<8>().0[1];
    if count == 0 || count > INSTRUCTIONS_MAX {
        return None;
    }
    // Too large for a stack of the program's.
    let Ok(copy) = map_anonymous(BYTES, PROT_READ | PROT_WRITE) else { return Some(false) };
    // SAFETY: fresh memory of ours, which nobody else uses; any bytes are instructions.
    let bytes = unsafe {
        core::slice::from_raw_parts_mut(copy as *mut u8, count * size_of::<Instruction>())
    };
    let can_stay = buffers::copy_in(t, u64::from_le_bytes(at) as usize, bytes).then(|| {
        // SAFETY: as above, and it is not written any more.
        let filter = unsafe { core::slice::from_raw_parts(copy as *const Instruction, count) };
        runtime(t, move || passes(filter))
    });
    let _ = call!(nr::MUNMAP, copy, BYTES);
    can_stay
}

/// Whether a program under `filter` can be paged; notes what its children can do.
fn passes(filter: &[Instruction]) -> bool {
    let at_most = |worst: Verdict, number: usize| verdict(filter, &Call::any(number)) <= worst;
    let commands = || {
        userfaultfd::COMMANDS.iter().map(|c| verdict(filter, &Call::with_command(nr::IOCTL, *c)))
    };
    let by_protection = run::settings().mechanism == Mechanism::Protect as u32;
    let (needed_remote, optional_remote): (&[usize], &[usize]) =
        if run::settings().is_remote() { (&NEEDED_REMOTE, &OPTIONAL_REMOTE) } else { (&[], &[]) };
    let needs = NEEDED.iter().chain(needed_remote).all(|n| at_most(Verdict::Allowed, *n))
        && (by_protection || commands().all(|v| v == Verdict::Allowed));
    let discards = || verdict(filter, &Call::with_command(nr::IOCTL, file::BLKDISCARD));
    let survives = OPTIONAL.iter().chain(optional_remote).all(|n| at_most(Verdict::Refused, *n))
        && (run::settings().device().is_none() || discards() <= Verdict::Refused);
    let may_open = survives && TO_OPEN.iter().all(|n| at_most(Verdict::Refused, *n));
    if !may_open {
        MAY_OPEN.store(false, Ordering::Relaxed);
    }
    if !may_open || !TO_START.iter().all(|n| at_most(Verdict::Allowed, *n)) {
        MAY_START.store(false, Ordering::Relaxed);
    }
    needs && survives
}

/// Leaves the process to itself.
fn leave(t: &'static ThreadBlock) {
    runtime(t, || {
        // Nobody will bring the counters up to date at the process's end.
        outside::finish_counters();
        ending::end_paging(Notice::Sandboxed, 0);
    });
    if PAGER.active().is_some() {
        // Not all ranges could be taken off: missing pages must go on being served, or the program
        // sees zeros.
        return;
    }
    signals::give_back(t);
    classes::set_no_classes();
}
