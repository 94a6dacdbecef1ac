//! Our descriptors are hidden: the program can neither close nor replace them, and they take no
//! room from it.
//!
//! They lie above its soft limit where the hard limit allows, so that a program whose table is full
//! can still fork (the child opens descriptors of ours). For that the kernel keeps the hard limit
//! that the program started with. A lower one that the program sets is remembered, shown to it, and
//! given to the kernel before it execs.
#![allow(unsafe_code)]

use core::hint::black_box;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use uzswap::control::handles::{Handle, Handles};
use uzswap::sys::fd::{ForNow, NumberLimits};
use uzswap::sys::program::ProcMem;
use uzswap::sys::{Errno, nr};

use super::buffers::with_own_words;
use super::own_stack::{current, runtime};
use super::thread::ThreadBlock;
use super::{Answer, Args, PAGER, PID, buffers, call, evictor, outside, raw, thread};

/// The descriptors of the run: the counters', and the settings'. Their files are checked once, at
/// the start: from then on nobody but us can close or replace them.
pub static CONTROL_FD: AtomicI32 = AtomicI32::new(-1);
static SETTINGS_FD: AtomicI32 = AtomicI32::new(-1);
static INODES: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Notes the descriptors of the run.
pub fn set_handles(handles: &Handles) {
    CONTROL_FD.store(handles.counters.fd, Ordering::Release);
    SETTINGS_FD.store(handles.settings.fd, Ordering::Release);
    INODES[0].store(handles.counters.inode, Ordering::Release);
    INODES[1].store(handles.settings.inode, Ordering::Release);
}

/// The descriptors of the run, as the next program is told of them.
pub fn handles() -> Handles {
    let handle = |fd: &AtomicI32, inode: &AtomicU64| Handle {
        fd: fd.load(Ordering::Relaxed),
        inode: inode.load(Ordering::Relaxed),
    };
    Handles {
        counters: handle(&CONTROL_FD, &INODES[0]),
        settings: handle(&SETTINGS_FD, &INODES[1]),
        ignored: None,
    }
}

/// Whether the descriptors of the run stay open over an exec.
pub fn keep_over_exec(stay: bool) {
    const F_SETFD: usize = 2;
    const CLOEXEC: usize = 1;
    for fd in [&CONTROL_FD, &SETTINGS_FD] {
        let _ =
            call!(nr::FCNTL, fd.load(Ordering::Relaxed), F_SETFD, if stay { 0 } else { CLOEXEC });
    }
}
/// No descriptor of ours is below this number.
static LOWEST: AtomicI32 = AtomicI32::new(i32::MAX);

/// The most descriptors of ours: more than the largest store has (32 connections), with the files
/// and leashes of forks.
const OURS_MOST: usize = 128;

/// Collects our descriptors, ascending, into a bounded array.
fn ours(into: &mut [i32; OURS_MOST]) -> usize {
    let mut n = 0;
    let mut add = |fd: i32| {
        if fd >= 0 && n < into.len() {
            into[n] = fd;
            n += 1;
        }
    };
    add(CONTROL_FD.load(Ordering::Relaxed));
    add(SETTINGS_FD.load(Ordering::Relaxed));
    outside::fds().into_iter().for_each(&mut add);
    add(ProcMem::early_fd());
    if let Some(a) = PAGER.active().or(PAGER.ended()) {
        a.mechanism.fds().into_iter().for_each(&mut add);
        a.cache.for_each_descriptor(&mut add);
    }
    into[..n].sort_unstable();
    n
}

/// Looks up the descriptors that we own now; called after some were opened.
pub fn refresh() {
    let mut fds = [0; OURS_MOST];
    let n = ours(&mut fds);
    LOWEST.store(fds[..n].first().copied().unwrap_or(i32::MAX), Ordering::Release);
}

fn is_ours(fd: i32) -> bool {
    if fd < LOWEST.load(Ordering::Acquire) {
        return false;
    }
    runtime(current(), move || {
        let mut fds = [0; OURS_MOST];
        let n = ours(&mut fds);
        fds[..n].contains(&fd)
    })
}

/// Calls by which a program finds out whether a number is a descriptor, and of what.
pub(super) const ASKING: [usize; 5] = [nr::FCNTL, nr::FSTAT, nr::NEWFSTATAT, nr::STATX, nr::DUP];

/// Whether such a call asks for a descriptor of ours: there is none.
pub(super) fn is_hidden(number: usize, a: &Args) -> bool {
    const AT_EMPTY_PATH: usize = 0x1000;
    let of_descriptor = match number {
        nr::NEWFSTATAT => a[3] & AT_EMPTY_PATH != 0,
        nr::STATX => a[2] & AT_EMPTY_PATH != 0,
        _ => true,
    };
    of_descriptor && is_ours(a[0] as i32)
}

pub(super) fn call(number: usize, a: Args) -> Option<Answer> {
    let bad = || Some(Answer::Result(Errno::EBADF.as_return()));
    match number {
        nr::CLOSE if is_ours(a[0] as i32) => bad(),
        nr::DUP2 | nr::DUP3 if is_ours(a[1] as i32) || is_ours(a[0] as i32) => bad(),
        nr::CLOSE_RANGE => close_range(a),
        nr::CLOSE | nr::DUP2 | nr::DUP3 => Some(Answer::Inline),
        _ => None,
    }
}

/// Whether the program's only thread shares the table of descriptors with the evictor and with
/// nobody else. A table of its own would do nothing for it, but all that it closes from then on
/// would stay open in the evictor's: a pipe would never end.
pub(super) fn only_evictor_shares(t: &ThreadBlock) -> bool {
    thread::is_only_one()
        && !t.is_in_company()
        && evictor::is_running()
        && uzswap::sys::getpid() == PID.load(Ordering::Relaxed)
}

/// close_range around our descriptors.
fn close_range(mut a: Args) -> Option<Answer> {
    const UNSHARE: usize = 2;
    const CLOEXEC: usize = 4;
    let stays = a[2] & UNSHARE != 0 && only_evictor_shares(current());
    if stays {
        a[2] &= !UNSHARE;
    }
    let (first, last) = (a[0] as u32, a[1] as u32);
    // Ours are close-on-exec anyway.
    if first > last || last < LOWEST.load(Ordering::Acquire) as u32 || a[2] & CLOEXEC != 0 {
        // In its place the call would have the program's arguments.
        let here = || Answer::Result(raw(nr::CLOSE_RANGE, a));
        return Some(if stays { here() } else { Answer::Inline });
    }
    let (fds, n) = runtime(current(), || {
        let mut fds = [0; OURS_MOST];
        let n = ours(&mut fds);
        (fds, n)
    });
    let mut from = first;
    for &fd in &fds[..n] {
        let fd = fd as u32;
        if fd < from || fd > last {
            continue;
        }
        if fd > from {
            let r = raw(nr::CLOSE_RANGE, [from as usize, fd as usize - 1, a[2], 0, 0, 0]);
            if r < 0 {
                return Some(Answer::Result(r));
            }
        }
        from = fd + 1;
    }
    let r = if from <= last { call!(nr::CLOSE_RANGE, from, last, a[2]) } else { 0 };
    Some(Answer::Result(r))
}

const RLIMIT_NOFILE: usize = 7;

/// The hard limit that the program has set, if lower than the kernel's.
static HARD: AtomicU64 = AtomicU64::new(u64::MAX);

/// The kernel's limits of this process; sets `new` first.
pub(super) fn kernel_limits(new: Option<NumberLimits>) -> Result<NumberLimits, isize> {
    let mut old: NumberLimits = [0; 2];
    let r = with_own_words(|| {
        old = black_box([0; 2]);
        let new = black_box(new);
        let at = new.as_ref().map_or(0, |n| n.as_ptr() as usize);
        call!(nr::PRLIMIT64, 0, RLIMIT_NOFILE, at, old.as_mut_ptr())
    });
    if r == 0 { Ok(old) } else { Err(r) }
}

/// Whether the kernel's hard limit is higher than the program's own.
pub(super) fn is_hard_limit_ours() -> bool {
    kernel_limits(None).is_ok_and(|[_, hard]| HARD.load(Ordering::Relaxed) < hard)
}

/// Makes the call of an exec where the kernel's hard limit is ours: a program that is executed
/// inherits the limits in which this one believes. After a call that fails the limits are as
/// before, if the process has the right to raise its hard limit again.
pub(super) fn with_believed_limits(t: &'static ThreadBlock, exec: impl FnOnce() -> isize) -> isize {
    let believed = HARD.load(Ordering::Relaxed);
    let lower = move |[soft, hard]: NumberLimits| [soft.min(believed), hard.min(believed)];
    let lowered = runtime(t, move || ForNow::begin(lower));
    let r = exec();
    runtime(t, move || ForNow::end(lowered));
    r
}

/// getrlimit, setrlimit and prlimit64; `None` where the kernel's answer is the program's.
pub(super) fn limit_call(t: &'static ThreadBlock, number: usize, a: Args) -> Option<Answer> {
    let (resource, new_at, old_at) = match number {
        nr::GETRLIMIT => (a[0], 0, a[1]),
        nr::SETRLIMIT => (a[0], a[1], 0),
        _ => (a[1], a[2], a[3]),
    };
    let pid = uzswap::sys::getpid();
    let other = number == nr::PRLIMIT64 && a[0] != 0 && a[0] as u32 != pid;
    // A vfork child has limits of its own, but not a memory of its own to note them in.
    if resource as u32 as usize != RLIMIT_NOFILE || other || pid != PID.load(Ordering::Relaxed) {
        return None;
    }
    let result = limits(t, new_at, old_at).map_or_else(|e| e, |()| 0);
    Some(Answer::Result(result))
}

fn limits(t: &'static ThreadBlock, new_at: usize, old_at: usize) -> Result<(), isize> {
    let [soft, kernel_hard] = kernel_limits(None)?;
    let hard = HARD.load(Ordering::Relaxed).min(kernel_hard);
    if new_at != 0 {
        let mut bytes = [0u8; 16];
        if !buffers::copy_in(t, new_at, &mut bytes) {
            return Err(Errno::EFAULT.as_return());
        }
        let (words, _) = bytes.as_chunks::<8>();
        let [new_soft, new_hard] = [u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1])];
        if new_soft > new_hard {
            return Err(Errno::EINVAL.as_return());
        }
        if new_hard > hard && hard < kernel_hard {
            // The kernel would allow what the program has given up, so it is asked for more than
            // that.
            kernel_limits(Some([soft, kernel_hard + 1]))?;
        }
        kernel_limits(Some([new_soft, new_hard.max(kernel_hard)]))?;
        HARD.store(new_hard, Ordering::Relaxed);
    }
    let mut old = [0u8; 16];
    old[..8].copy_from_slice(&soft.to_le_bytes());
    old[8..].copy_from_slice(&hard.to_le_bytes());
    if old_at != 0 && !buffers::copy_out(t, old_at, &old) {
        return Err(Errno::EFAULT.as_return());
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::sync::Mutex;

    const F_DUPFD_CLOEXEC: usize = 1030;

    fn is_open(fd: i32) -> bool {
        call!(nr::FCNTL, fd, 1) >= 0
    }

    /// Numbers in a row that no other test has: above those that come by themselves, and below
    /// those that the runtime takes.
    fn row() -> [i32; 7] {
        core::array::from_fn(|i| {
            let fd = call!(nr::FCNTL, 0, F_DUPFD_CLOEXEC, 600 + i) as i32;
            assert_eq!(fd, 600 + i as i32);
            fd
        })
    }

    #[test]
    fn a_range_is_closed_around_our_descriptors_which_the_program_does_not_see() {
        let fds = row();
        let handle = |fd| Handle { fd, inode: 0 };
        let set = |counters, settings| {
            let [counters, settings] = [counters, settings].map(handle);
            set_handles(&Handles { counters, settings, ignored: None });
        };
        // Beside each other, and at the end of the range.
        set(fds[2], fds[1]);
        refresh();
        let of = |i: usize| fds[i] as usize;
        assert!(matches!(close_range([of(0), of(2), 0, 0, 0, 0]), Some(Answer::Result(0))));
        assert_eq!(fds.map(is_open), [false, true, true, true, true, true, true]);
        set(fds[4], fds[1]);
        assert!(matches!(close_range([of(2), of(5), 0, 0, 0, 0]), Some(Answer::Result(0))));
        assert_eq!(fds.map(is_open), [false, true, false, false, true, false, true]);
        // A range that is empty, or below our descriptors, has none of them.
        assert!(matches!(close_range([of(5), of(2), 0, 0, 0, 0]), Some(Answer::Inline)));
        assert!(matches!(close_range([500, of(0), 0, 0, 0, 0]), Some(Answer::Inline)));
        let is_bad =
            |answer| matches!(answer, Some(Answer::Result(r)) if r == Errno::EBADF.as_return());
        assert!(is_bad(call(nr::CLOSE, [of(4), 0, 0, 0, 0, 0])));
        assert!(is_bad(call(nr::DUP2, [of(6), of(4), 0, 0, 0, 0])));
        assert!(is_bad(call(nr::DUP3, [of(4), of(6), 0, 0, 0, 0])));
        assert!(matches!(call(nr::CLOSE, [of(6), 0, 0, 0, 0, 0]), Some(Answer::Inline)));
        // By its number alone, and where a path is given only if that may be empty.
        assert!(is_hidden(nr::FSTAT, &[of(4), 0, 0, 0, 0, 0]));
        assert!(is_hidden(nr::NEWFSTATAT, &[of(4), 0, 0, 0x1000, 0, 0]));
        assert!(is_hidden(nr::STATX, &[of(4), 0, 0x1000, 0, 0, 0]));
        assert!(!is_hidden(nr::NEWFSTATAT, &[of(4), 0, 0x1000, 0, 0, 0]));
        assert!(!is_hidden(nr::STATX, &[of(4), 0, 0, 0x1000, 0, 0]));
        set(-1, -1);
        refresh();
        assert!(!is_hidden(nr::FSTAT, &[of(4), 0, 0, 0, 0, 0]));
        for i in [1, 4, 6] {
            assert_eq!(call!(nr::CLOSE, fds[i]), 0);
        }
    }

    /// The limits are the process's: tests that change them come one after the other.
    pub static LIMITS: Mutex<()> = Mutex::new(());

    /// Has the program believe in this hard limit.
    pub fn believe(hard: u64) {
        HARD.store(hard, Ordering::Relaxed);
    }

    #[test]
    fn a_limit_that_the_program_sets_while_there_is_room_for_ours_stays() {
        let _limits = LIMITS.lock();
        let [soft, hard] = kernel_limits(None).unwrap();
        let set = |soft| kernel_limits(Some([soft, hard])).unwrap();
        set(1024);
        let room = ForNow::make_room();
        assert_eq!(kernel_limits(None), Ok([hard.min(4096), hard]));
        ForNow::end(room);
        assert_eq!(kernel_limits(None), Ok([1024, hard]));
        let room = ForNow::make_room();
        set(1100);
        ForNow::end(room);
        assert_eq!(kernel_limits(None), Ok([1100, hard]));
        set(hard);
        assert_eq!(ForNow::make_room(), None);
        ForNow::end(None);
        assert_eq!(kernel_limits(None), Ok([hard; 2]));
        set(soft);
    }
}
