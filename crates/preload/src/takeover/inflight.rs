//! System calls that other threads are inside of when paging is switched on.
//!
//! While dormant, calls with buffers run in place and hold nothing. A thread may sit in such a
//! call, or in the kernel's restart of it, for hours; when its page goes missing meanwhile, the
//! call fails and may lose its data. So before any page can go missing, the kernel is asked where
//! every thread is (/proc/self/task/TID/syscall: number and arguments of a blocked call), and the
//! buffers are held until the thread is found elsewhere.
//!
//! From the moment that the classes are set, new calls are hooked. A thread that is "running" then
//! is in the program, in a hooked call, or in the last instants of a call that does not block:
//! those get a little time.
#![allow(unsafe_code)]

use core::ffi::CStr;

use uzswap::region::{page_ceil, page_floor};
use uzswap::sys::open::{AT_FDCWD, O_CLOEXEC, O_DIRECTORY};
use uzswap::sys::sync::Mutex;
use uzswap::sys::{fd, file, nr};

use super::{Args, PAGER, call, evictor};
use crate::calls::walk::{Kind, Visit, walk};

/// Threads and buffers that can be followed; beyond that the rest is held for good.
const CALLS_MAX: usize = 256;
const BUFFERS_MAX: usize = 512;
/// How often, and for how long each time, running threads are given time to leave short calls.
const GRACE_ROUNDS: u32 = 4;
const GRACE_NS: u64 = 500_000;

/// A blocked call: thread, number, arguments and stack pointer tell it from the next one.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Blocked {
    tid: u32,
    number: usize,
    args: Args,
    sp: usize,
}

#[derive(Clone, Copy, Default)]
struct Buffer {
    call: usize,
    start: usize,
    end: usize,
}

struct Inflight {
    calls: [Blocked; CALLS_MAX],
    calls_len: usize,
    buffers: [Buffer; BUFFERS_MAX],
    buffers_len: usize,
}

static INFLIGHT: Mutex<Inflight> = Mutex::new(Inflight {
    calls: [Blocked { tid: 0, number: 0, args: [0; 6], sp: 0 }; CALLS_MAX],
    calls_len: 0,
    buffers: [Buffer { call: 0, start: 0, end: 0 }; BUFFERS_MAX],
    buffers_len: 0,
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
            // What is not there yet is made while the kernel still does that by itself.
            const POPULATE_WRITE: usize = 23;
            let _ = call!(nr::MADVISE, start, end - start, POPULATE_WRITE);
            let _ = PAGER.holds.hold_inflight(start, end);
            let f = &mut *self.inflight;
            if f.buffers_len < BUFFERS_MAX {
                f.buffers[f.buffers_len] = Buffer { call: self.call, start, end };
                f.buffers_len += 1;
            }
        }
    }

    fn read(&self, addr: usize, into: &mut [u8]) -> bool {
        let (local, remote) = ([into.as_mut_ptr() as usize, into.len()], [addr, into.len()]);
        let pid = uzswap::sys::getpid();
        call!(nr::PROCESS_VM_READV, pid, local.as_ptr(), 1, remote.as_ptr(), 1, 0)
            == into.len() as isize
    }

    fn own_pid(&self) -> usize {
        uzswap::sys::getpid() as usize
    }
}

/// Finds the blocked calls and holds their buffers. With the pager's lock held, after the classes
/// were set and before any range is attached.
pub fn hold_all() {
    let me = uzswap::sys::gettid();
    let mut f = INFLIGHT.lock();
    for round in 0..=GRACE_ROUNDS {
        let mut running = 0;
        (f.calls_len, f.buffers_len) = (0, 0);
        for_each_thread(|tid| {
            if tid == me {
                return;
            }
            match where_is(tid) {
                Some(b) if f.calls_len < CALLS_MAX => {
                    let n = f.calls_len;
                    f.calls[n] = b;
                    f.calls_len += 1;
                }
                Some(_) => {}
                None => running += 1,
            }
        });
        if running == 0 || round == GRACE_ROUNDS {
            break;
        }
        uzswap::sys::sleep_ns(GRACE_NS);
    }
    for call in 0..f.calls_len {
        let Blocked { number, args, .. } = f.calls[call];
        walk(number, &args, &mut Collector { inflight: &mut f, call });
    }
}

/// Gives up the buffers of calls that have returned. Called by the evictor now and then.
pub fn release_finished() {
    let mut f = INFLIGHT.lock();
    if f.calls_len == 0 {
        return;
    }
    let mut over = [false; CALLS_MAX];
    let mut left = 0;
    let len = f.calls_len;
    for (call, over) in f.calls[..len].iter_mut().zip(&mut over) {
        *over = call.tid == 0 || where_is(call.tid) != Some(*call);
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

/// In the child after fork the other threads do not exist.
pub fn after_fork_child() {
    // SAFETY: single-threaded, and nobody of this process holds it.
    unsafe { INFLIGHT.force_unlock() };
    let mut f = INFLIGHT.lock();
    (f.calls_len, f.buffers_len) = (0, 0);
    PAGER.holds.forget_inflight();
}

/// The blocked call of a thread; `None` while it runs.
fn where_is(tid: u32) -> Option<Blocked> {
    let mut path = [0u8; 64];
    let mut n = 0;
    let mut digits = [0u8; 12];
    for part in [&b"/proc/self/task/"[..], super::process::decimal(tid, &mut digits), b"/syscall\0"]
    {
        path[n..n + part.len()].copy_from_slice(part);
        n += part.len();
    }
    let file = fd::open_read(CStr::from_bytes_until_nul(&path).ok()?).ok()?;
    let mut text = [0u8; 256];
    let len = fd::read(file, &mut text);
    fd::close(file);
    let mut words =
        text[..len.ok()?].split(|b| *b == b' ' || *b == b'\n').filter(|w| !w.is_empty());
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
    Some(Blocked { tid, number, args, sp: hex()? })
}

/// Calls `f` with the id of every thread of the process but the evictor.
pub fn for_each_thread(mut f: impl FnMut(u32)) {
    let dir = call!(nr::OPENAT, AT_FDCWD, c"/proc/self/task".as_ptr(), O_DIRECTORY | O_CLOEXEC);
    if dir < 0 {
        return;
    }
    // What cannot be listed has no threads that we could see.
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
