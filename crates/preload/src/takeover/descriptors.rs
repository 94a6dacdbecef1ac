//! Our descriptors are hidden: the program can neither close nor replace them.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicI32, Ordering};

use uzswap::sys::{Errno, nr};

use super::{Answer, Args, PAGER, call, evictor, raw, runtime, thread};

/// The control block's descriptor.
pub static CONTROL_FD: AtomicI32 = AtomicI32::new(-1);
/// No descriptor of ours is below this number.
static LOWEST: AtomicI32 = AtomicI32::new(i32::MAX);

/// Collects our descriptors, ascending, into a bounded array.
fn ours(into: &mut [i32; 64]) -> usize {
    let mut n = 0;
    let mut add = |fd: i32| {
        if fd >= 0 && n < into.len() {
            into[n] = fd;
            n += 1;
        }
    };
    add(CONTROL_FD.load(Ordering::Relaxed));
    evictor::fds().into_iter().for_each(&mut add);
    if let Some(a) = PAGER.active() {
        a.mechanism.fds().into_iter().for_each(&mut add);
        a.cache.for_each_descriptor(&mut add);
    }
    into[..n].sort_unstable();
    n
}

/// Looks up what we own now; called after descriptors were opened.
pub fn refresh() {
    let mut fds = [0; 64];
    let n = ours(&mut fds);
    LOWEST.store(fds[..n].first().copied().unwrap_or(i32::MAX), Ordering::Release);
}

fn is_ours(fd: i32) -> bool {
    if fd < LOWEST.load(Ordering::Acquire) {
        return false;
    }
    runtime(thread::current(), move || {
        let mut fds = [0; 64];
        let n = ours(&mut fds);
        fds[..n].contains(&fd)
    })
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

/// close_range around our descriptors.
fn close_range(a: Args) -> Option<Answer> {
    const CLOEXEC: usize = 4;
    let (first, last) = (a[0] as u32, a[1] as u32);
    // Ours are close-on-exec anyway.
    if first > last || last < LOWEST.load(Ordering::Acquire) as u32 || a[2] & CLOEXEC != 0 {
        return Some(Answer::Inline);
    }
    let (fds, n) = runtime(thread::current(), || {
        let mut fds = [0; 64];
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
