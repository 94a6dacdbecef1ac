//! System calls that other threads are inside of when paging is switched on.
//!
//! While dormant, calls with buffers run in place and hold nothing. A thread may sit in such a
//! call, or in the kernel's restart of it, for hours; when its page goes missing meanwhile, the
//! call fails and may lose its data. So before any page can go missing, the kernel is asked where
//! every thread is (/proc/self/task/TID/syscall: number and arguments of a blocked call), and the
//! buffers are held until the thread is found elsewhere.
//!
//! From the moment that the routes are set, new calls are hooked. A thread that is "running" then
//! is in the program, in a hooked call, in the last instants of a call that does not block, or has
//! looked at its route and not made the call yet. Each of them gets processor time to leave that
//! state: a thread that has used some cannot be there any more, however long others kept it
//! waiting.
#![allow(unsafe_code)]

use core::ffi::CStr;

use uzswap::region::{page_ceil, page_floor};
use uzswap::sys::open::{AT_FDCWD, O_CLOEXEC, O_DIRECTORY};
use uzswap::sys::sync::Mutex;
use uzswap::sys::text::{DIGITS_MOST, decimal, join};
use uzswap::sys::{Errno, fd, file, nr};

use super::{Args, PAGER, call, evictor, owners};
use crate::calls::walk::{Kind, Visit, walk};

/// Threads and buffers that can be followed. With more of either all buffers are held for good.
const CALLS_MAX: usize = 256;
const BUFFERS_MAX: usize = 512;
/// Running threads that can be waited for: as many as a program of many threads can have ready on
/// few processors.
const RUNNING_MAX: usize = 1024;
/// The processor time after which a running thread has left a call that does not block, or has made
/// the call that it was about to make: 1 ms. The way from the route to the instruction takes a
/// thousandth of it, and a call can copy some MiB in it.
const PROGRESS_NS: u64 = 1_000_000;
/// Time between two looks at threads that have not used `PROGRESS_NS`.
const LOOK_NS: u64 = 500_000;
/// The most looks, a second in all: a thread that a debugger has stopped uses no time.
const LOOKS_MAX: u32 = 2000;

/// Calls that the kernel goes on with under the number of restart_syscall, after a stop or a
/// freeze: the arguments stay, and nothing says which call it was. FUTEX_WAIT stands for all futex
/// calls, which begin with the word.
const RESTARTED: [usize; 4] = [nr::FUTEX_WAIT, nr::NANOSLEEP, nr::CLOCK_NANOSLEEP, nr::POLL];
/// Descriptors that one poll can have by default (fs.nr_open). A larger number is an address.
const POLLED_MAX: usize = 1 << 20;

/// A blocked call: number, arguments and stack pointer tell it from the thread's next one.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Blocked {
    number: usize,
    args: Args,
    sp: usize,
}

impl Blocked {
    /// The calls that this may be.
    fn numbers(&self) -> &[usize] {
        match self.number {
            nr::RESTART_SYSCALL if self.args[1] > POLLED_MAX => &RESTARTED[..3],
            nr::RESTART_SYSCALL => &RESTARTED,
            _ => core::slice::from_ref(&self.number),
        }
    }

    /// Whether a thread that was in this call is still in it if it is in `now`.
    fn goes_on_as(&self, now: &Blocked) -> bool {
        *now == *self || *now == Blocked { number: nr::RESTART_SYSCALL, ..*self }
    }
}

/// A call that is followed.
#[derive(Clone, Copy, Default)]
struct Call {
    /// 0: it is over.
    tid: u32,
    blocked: Blocked,
    /// The thread's processor time when the call was found.
    cpu_ns: Option<u64>,
}

/// Where a thread is.
#[derive(PartialEq, Eq)]
enum Where {
    Blocked(Blocked),
    Running,
    Gone,
    /// The kernel cannot be asked: no descriptor is left, or /proc is not there.
    Unknown,
}

#[derive(Clone, Copy, Default)]
struct Buffer {
    call: usize,
    start: usize,
    end: usize,
}

struct Inflight {
    calls: [Call; CALLS_MAX],
    calls_len: usize,
    buffers: [Buffer; BUFFERS_MAX],
    buffers_len: usize,
    /// Threads in no call, with their processor time when they were found.
    running: [(u32, Option<u64>); RUNNING_MAX],
    /// There were more calls or buffers than can be followed.
    holds_for_good: bool,
}

static INFLIGHT: Mutex<Inflight> = Mutex::new(Inflight {
    calls: [Call { tid: 0, blocked: Blocked { number: 0, args: [0; 6], sp: 0 }, cpu_ns: None };
        CALLS_MAX],
    calls_len: 0,
    buffers: [Buffer { call: 0, start: 0, end: 0 }; BUFFERS_MAX],
    buffers_len: 0,
    running: [(0, None); RUNNING_MAX],
    holds_for_good: false,
});

/// Collects the buffers of one call.
struct Collector<'a> {
    inflight: &'a mut Inflight,
    call: usize,
}

impl Visit for Collector<'_> {
    fn hold(&mut self, addr: usize, len: usize, _kind: Kind) {
        let (start, end) = (page_floor(addr), page_ceil(addr.saturating_add(len)));
        if PAGER.ranges.overlaps(start, end) {
            // Pages that are not there yet are made while the kernel still makes them by itself.
            const POPULATE_WRITE: usize = 23;
            let _ = call!(nr::MADVISE, start, end - start, POPULATE_WRITE);
            let _ = PAGER.holds.hold_inflight(start, end);
            let f = &mut *self.inflight;
            if f.buffers_len < BUFFERS_MAX {
                f.buffers[f.buffers_len] = Buffer { call: self.call, start, end };
                f.buffers_len += 1;
            } else {
                f.holds_for_good = true;
            }
        }
    }

    fn read(&self, addr: usize, into: &mut [u8]) -> bool {
        let (local, remote) = ([into.as_mut_ptr() as usize, into.len()], [addr, into.len()]);
        let pid = uzswap::sys::getpid();
        call!(nr::PROCESS_VM_READV, pid, local.as_ptr(), 1, remote.as_ptr(), 1, 0)
            == into.len() as isize
    }

    fn is_own(&self, pid: usize) -> bool {
        super::buffers::is_ours(pid)
    }
}

/// Finds the blocked calls and holds their buffers. Called with the pager's lock held, after the
/// routes were set and before any range is attached.
pub fn hold_all() {
    let me = uzswap::sys::gettid();
    let mut f = INFLIGHT.lock();
    f.forget();
    let mut running_len = 0;
    for_each_thread(|tid| match where_is(tid) {
        _ if tid == me => {}
        Where::Blocked(call) => f.follow(tid, call),
        Where::Running if running_len < RUNNING_MAX => {
            f.running[running_len] = (tid, cpu_ns(tid));
            running_len += 1;
        }
        Where::Running | Where::Gone | Where::Unknown => {}
    });
    for _ in 0..LOOKS_MAX {
        let mut left = 0;
        for i in 0..running_len {
            let (tid, before_ns) = f.running[i];
            match where_is(tid) {
                Where::Blocked(call) => f.follow(tid, call),
                Where::Running if !has_run(tid, before_ns) => {
                    f.running[left] = f.running[i];
                    left += 1;
                }
                Where::Running | Where::Gone | Where::Unknown => {}
            }
        }
        running_len = left;
        if running_len == 0 {
            break;
        }
        uzswap::sys::sleep_ns(LOOK_NS);
    }
}

impl Inflight {
    fn forget(&mut self) {
        (self.calls_len, self.buffers_len, self.holds_for_good) = (0, 0, false);
    }

    /// Holds the buffers of a thread's call.
    fn follow(&mut self, tid: u32, blocked: Blocked) {
        let call = self.calls_len;
        if call < CALLS_MAX {
            self.calls[call] = Call { tid, blocked, cpu_ns: cpu_ns(tid) };
            self.calls_len += 1;
        } else {
            self.holds_for_good = true;
        }
        for number in blocked.numbers() {
            walk(*number, &blocked.args, &mut Collector { inflight: self, call });
        }
    }
}

/// Gives up the buffers of calls that have returned. Called by the evictor now and then.
pub fn release_finished() {
    let mut f = INFLIGHT.lock();
    if f.calls_len == 0 || f.holds_for_good {
        return;
    }
    let mut over = [false; CALLS_MAX];
    let mut left = 0;
    let len = f.calls_len;
    for (call, over) in f.calls[..len].iter_mut().zip(&mut over) {
        *over = call.tid == 0 || call.is_over();
        if *over {
            call.tid = 0;
        } else {
            left += 1;
        }
    }
    drop(f);
    // Lock order: the pager's before this one. Ranges of several calls may overlap: start over with
    // those that remain.
    let guard = PAGER.lock();
    let mut f = INFLIGHT.lock();
    PAGER.holds.forget_inflight();
    for b in &f.buffers[..f.buffers_len] {
        if !over[b.call] {
            let _ = PAGER.holds.hold_inflight(b.start, b.end);
        }
    }
    drop(guard);
    if left == 0 {
        (f.calls_len, f.buffers_len) = (0, 0);
    }
}

impl Call {
    /// Whether the thread has left the call. One that runs may be on its way into it again, as
    /// after a signal: not if it runs for some time.
    fn is_over(&self) -> bool {
        match where_is(self.tid) {
            Where::Blocked(call) => !self.blocked.goes_on_as(&call),
            Where::Running => has_run(self.tid, self.cpu_ns),
            Where::Gone => true,
            Where::Unknown => false,
        }
    }
}

/// Forgets all calls in the child after fork, where the other threads do not exist.
pub fn after_fork_child() {
    // SAFETY: single-threaded, and nobody of this process holds it.
    unsafe { INFLIGHT.force_unlock() };
    INFLIGHT.lock().forget();
    PAGER.holds.forget_inflight();
}

/// The processor time of a thread of this process, where the kernel tells it.
fn cpu_ns(tid: u32) -> Option<u64> {
    // The clock is made from the thread's id: clock_getcpuclockid(3), with the bit for a thread.
    const THREAD_CPU_CLOCK: u32 = 6;
    let mut time = [0i64; 2];
    let r = call!(nr::CLOCK_GETTIME, (!tid << 3 | THREAD_CPU_CLOCK) as i32, time.as_mut_ptr());
    (r == 0).then(|| time[0] as u64 * 1_000_000_000 + time[1] as u64)
}

/// Whether a thread has had `PROGRESS_NS` since an answer of `cpu_ns`. Where the kernel does not
/// tell, it has.
fn has_run(tid: u32, since_ns: Option<u64>) -> bool {
    let now_ns = since_ns.and_then(|_| cpu_ns(tid));
    now_ns.is_none_or(|now| Some(now) >= since_ns.map(|since| since + PROGRESS_NS))
}

fn where_is(tid: u32) -> Where {
    let mut path = [0u8; 64];
    let mut digits = [0u8; DIGITS_MOST];
    let name = decimal(u64::from(tid), &mut digits);
    join(&[b"/proc/self/task/", name, b"/syscall"], &mut path);
    let Ok(path) = CStr::from_bytes_until_nul(&path) else { return Where::Unknown };
    let file = match fd::open_read(path) {
        Ok(file) => file,
        Err(Errno::ENOENT | Errno::ESRCH) => return unlisted(tid),
        Err(_) => return Where::Unknown,
    };
    let mut text = [0u8; 256];
    let len = fd::read(file, &mut text);
    fd::close(file);
    match len {
        Ok(len) => blocked_call(&text[..len]).map_or(Where::Running, Where::Blocked),
        Err(Errno::ESRCH) => Where::Gone,
        Err(_) => Where::Unknown,
    }
}

/// Where a thread is for which /proc has no file: the kernel knows whether it is gone. The program
/// may have left /proc behind (chroot, another mount namespace), while the thread sits in its call:
/// in doubt it still does, and its buffers stay held.
fn unlisted(tid: u32) -> Where {
    if owners::is_there(tid) == Some(false) { Where::Gone } else { Where::Unknown }
}

/// A line of /proc/PID/syscall: number and arguments, stack pointer and instruction pointer of a
/// blocked call. `None` for "running", and for -1 (blocked, and not in a call).
fn blocked_call(line: &[u8]) -> Option<Blocked> {
    let mut words = line.split(|b| *b == b' ' || *b == b'\n').filter(|w| !w.is_empty());
    let number = words
        .next()?
        .iter()
        .try_fold(0usize, |v, b| b.is_ascii_digit().then(|| v * 10 + (b - b'0') as usize))?;
    let mut hex = || {
        let w = words.next()?.strip_prefix(b"0x")?;
        w.iter().try_fold(0usize, |v, b| Some(v << 4 | (*b as char).to_digit(16)? as usize))
    };
    let mut args = [0; 6];
    for a in &mut args {
        *a = hex()?;
    }
    Some(Blocked { number, args, sp: hex()? })
}

/// Calls `f` with the id of every thread of the process but the evictor.
pub fn for_each_thread(mut f: impl FnMut(u32)) {
    let dir = call!(nr::OPENAT, AT_FDCWD, c"/proc/self/task".as_ptr(), O_DIRECTORY | O_CLOEXEC);
    if dir < 0 {
        return;
    }
    // Threads that cannot be listed are not seen.
    let _ = file::each_name(dir as i32, &mut [0; 4096], |name| {
        let tid = name
            .iter()
            .take_while(|b| b.is_ascii_digit())
            .fold(0u32, |v, b| v * 10 + (b - b'0') as u32);
        if tid != 0 && tid != evictor::tid() {
            f(tid);
        }
    });
    fd::close(dir as i32);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of one thread before it was stopped, and after it went on.
    #[test]
    fn a_call_that_is_restarted_is_the_call_that_it_was() {
        let line = |number: &str| {
            let rest = " 0x7ffd129be1d0 0x3 0x64 0x0 0x0 0x0 0x7ffd129be1b8 0x7f25eb8c1503\n";
            blocked_call(&[number.as_bytes(), rest.as_bytes()].concat()).expect("a blocked call")
        };
        let (poll, restarted) = (line("7"), line("219"));
        assert!(poll.goes_on_as(&poll) && poll.goes_on_as(&restarted));
        assert!(!poll.goes_on_as(&line("0")) && !restarted.goes_on_as(&poll));
        assert_eq!(poll.numbers(), [nr::POLL]);
        assert!(restarted.numbers().contains(&nr::POLL));
        // nanosleep: no array has as many elements as its second address.
        let mut slept = restarted;
        slept.args[1] = slept.args[0] + 16;
        assert!(slept.numbers().contains(&nr::NANOSLEEP) && !slept.numbers().contains(&nr::POLL));
    }

    #[test]
    fn a_thread_that_proc_does_not_list_is_gone_only_if_the_kernel_has_no_such_thread() {
        // No thread has that number: numbers end at 4 million.
        let nobody = u32::MAX >> 1;
        assert!(unlisted(nobody) == Where::Gone && where_is(nobody) == Where::Gone);
        assert!(unlisted(uzswap::sys::gettid()) == Where::Unknown);
        let call = |tid| Call { tid, ..Call::default() };
        assert!(call(nobody).is_over());
    }

    #[test]
    fn a_thread_that_is_in_no_call_or_whose_line_is_cut_is_not_blocked() {
        let line = b"0 0x3 0x7f00 0x10 0x0 0x0 0x0 0x7ffd129be1b8 0x7f25eb8c1503\n";
        let found = blocked_call(line).expect("a blocked call");
        assert_eq!(
            (found.number, found.args, found.sp),
            (0, [3, 0x7f00, 16, 0, 0, 0], 0x7ffd_129b_e1b8)
        );
        assert!(blocked_call(b"running\n").is_none() && blocked_call(b"").is_none());
        assert!(blocked_call(b"-1 0x7ffd129be1b8 0x7f25eb8c1503\n").is_none());
        assert!(blocked_call(&line[..30]).is_none(), "without its last words");
    }
}
