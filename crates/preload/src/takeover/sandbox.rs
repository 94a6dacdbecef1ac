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
use super::{
    Args, FILTERED, PAGER, buffers, call, ending, evictor, is_shared_child, outside, routes, run,
    signals,
};

/// A forked child may open the mechanism's files; a program that is executed may load us.
static MAY_OPEN: AtomicBool = AtomicBool::new(true);
static MAY_START: AtomicBool = AtomicBool::new(true);

/// Calls without which a program cannot be paged. By the last the handler of a fault returns.
const NEEDED: [usize; 15] = [
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
    nr::RT_SIGRETURN,
];

/// Calls that may fail, each of which has another way, but may not end the program.
const OPTIONAL: [usize; 33] = [
    nr::CLOCK_GETTIME,
    nr::CLOSE,
    nr::FALLOCATE,
    nr::FADVISE64,
    nr::FCNTL,
    nr::FSTAT,
    nr::FTRUNCATE,
    nr::GETDENTS64,
    nr::GETRANDOM,
    nr::GETSOCKOPT,
    nr::GET_ROBUST_LIST,
    nr::IO_GETEVENTS,
    nr::IO_SUBMIT,
    nr::MREMAP,
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
    nr::SCHED_GETAFFINITY,
    nr::SCHED_YIELD,
    nr::SYNC_FILE_RANGE,
    nr::TGKILL,
    nr::TKILL,
    nr::WAITID,
    nr::CLOSE_RANGE,
    nr::BRK,
];

/// Orders of prctl that may fail: whether the kernel would write a core, a thread's name.
const ORDERS: [u64; 2] = [3, 15];

/// Calls that a forked child, or another thread of ours, makes to get what its parent has:
/// descriptors and queues of its own.
const TO_OPEN: [usize; 6] =
    [nr::USERFAULTFD, nr::OPENAT, nr::IO_SETUP, nr::PIPE2, nr::UNLINKAT, nr::STAT];

/// Calls that are made where the store is on servers: to bring a page back, and to connect again.
const NEEDED_REMOTE: [usize; 3] = [nr::SENDTO, nr::RECVFROM, nr::POLL];
const OPTIONAL_REMOTE: [usize; 5] =
    [nr::SOCKET, nr::CONNECT, nr::SETSOCKOPT, nr::DUP3, nr::SHUTDOWN];

/// Calls of a program that loads us, beside those of a running one. (What the loader itself needs
/// is not our business.)
const TO_START: [usize; 5] = [nr::OPENAT, nr::READ, nr::FSTAT, nr::FCNTL, nr::BRK];

/// Whether a forked child may try to open files of its own. Under a filter that would end it, it
/// may not.
pub(super) fn may_open_again() -> bool {
    MAY_OPEN.load(Ordering::Relaxed)
}

/// Whether a program that is executed now can load us.
pub(super) fn may_start() -> bool {
    MAY_START.load(Ordering::Relaxed)
}

/// A sandbox that a call asks for.
#[derive(Debug, PartialEq)]
enum Asked {
    Strict,
    Filter,
}

/// The sandbox that a call asks for. The kernel takes the lower half of the first argument.
fn asked(number: usize, a: &Args) -> Option<Asked> {
    const PR_SET_SECCOMP: u32 = 22;
    const MODE_STRICT: usize = 1;
    const MODE_FILTER: usize = 2;
    const SET_MODE_STRICT: u32 = 0;
    const SET_MODE_FILTER: u32 = 1;
    match (number, a[0] as u32) {
        (nr::PRCTL, PR_SET_SECCOMP) if a[1] == MODE_STRICT => Some(Asked::Strict),
        (nr::PRCTL, PR_SET_SECCOMP) if a[1] == MODE_FILTER => Some(Asked::Filter),
        (nr::SECCOMP, SET_MODE_STRICT) if a[1] as u32 == 0 && a[2] == 0 => Some(Asked::Strict),
        (nr::SECCOMP, SET_MODE_FILTER) => Some(Asked::Filter),
        _ => None,
    }
}

/// Looks at a call that may install a filter, before it is made.
pub(super) fn note(t: &'static ThreadBlock, number: usize, a: &Args) {
    let Some(sandbox) = asked(number, a) else { return };
    // A vfork child's filter is its own, and the memory that it shares with its parent stays paged.
    if is_shared_child() {
        return;
    }
    if sandbox == Asked::Strict {
        return leave(t);
    }
    if let Some(can_stay) = judge(t, a[2]) {
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
    let may_with = |number: usize, first: u64| {
        let args = [Some(first), None, None, None, None, None];
        verdict(filter, &Call { number, args }) <= Verdict::Refused
    };
    if !may_with(nr::CLONE, evictor::CLONE_FLAGS as u64) {
        evictor::start_no_more();
    }
    let survives = OPTIONAL.iter().chain(optional_remote).all(|n| at_most(Verdict::Refused, *n))
        && ORDERS.iter().all(|order| may_with(nr::PRCTL, *order))
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
    routes::set_no_routes();
}

#[cfg(test)]
mod tests {
    use super::*;
    use uzswap::control::Settings;

    const KILL: u32 = 0x8000_0000;
    const ERRNO: u32 = 0x5_0001;

    /// A filter with one answer to one call, which lets all others pass.
    fn but(number: usize, answer: u32) -> [Instruction; 4] {
        const ALLOW: u32 = 0x7fff_0000;
        let step = |code, jump_false, k| Instruction { code, jump_true: 0, jump_false, k };
        // Loads the call's number, compares it, returns.
        [step(0x20, 0, 0), step(0x15, 1, number as u32), step(6, 0, answer), step(6, 0, ALLOW)]
    }

    #[test]
    fn a_program_stays_paged_under_a_filter_that_lets_all_calls_of_ours_pass() {
        run::set_settings(Settings::new());
        let stays = |number, answer| passes(&but(number, answer));
        assert!(stays(nr::PTRACE, KILL) && stays(nr::OPENAT, ERRNO));
        for number in [nr::MMAP, nr::FUTEX, nr::RT_SIGRETURN] {
            assert!(!stays(number, ERRNO) && !stays(number, KILL), "call {number}");
        }
        for number in [nr::TGKILL, nr::WAITID, nr::GETDENTS64, nr::PRCTL, nr::MREMAP] {
            assert!(stays(number, ERRNO) && !stays(number, KILL), "call {number}");
        }
    }

    #[test]
    fn no_thread_is_made_under_a_filter_that_ends_a_program_for_it() {
        run::set_settings(Settings::new());
        assert!(passes(&but(nr::CLONE, ERRNO)) && evictor::may_start());
        assert!(passes(&but(nr::CLONE, KILL)) && !evictor::may_start());
    }

    #[test]
    fn a_sandbox_is_asked_for_by_the_lower_half_of_a_word() {
        let high = 0xffff_ffff_0000_0000;
        let by = |number, a: [usize; 3]| asked(number, &[a[0], a[1], a[2], 0, 0, 0]);
        for order in [22, high | 22] {
            assert_eq!(by(nr::PRCTL, [order, 2, 8]), Some(Asked::Filter));
        }
        assert_eq!(by(nr::SECCOMP, [high | 1, 0, 8]), Some(Asked::Filter));
        assert_eq!(by(nr::PRCTL, [22, 1, 0]), Some(Asked::Strict));
        assert_eq!(by(nr::SECCOMP, [0, 0, 0]), Some(Asked::Strict));
        // Of these the kernel takes none: a mode, a pointer, an operation that it does not know.
        assert_eq!([by(nr::PRCTL, [22, 3, 8]), by(nr::SECCOMP, [0, 0, 8])], [None, None]);
        assert_eq!([by(nr::SECCOMP, [2, 0, 8]), by(nr::PTRACE, [22, 2, 8])], [None, None]);
    }
}
