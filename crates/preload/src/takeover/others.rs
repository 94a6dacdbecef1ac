//! Memory of another process of the run, read or written by `process_vm_readv` and
//! `process_vm_writev`.
//!
//! Pages that are out there end the kernel's transfer. So it goes on piece by piece, and for a
//! piece that is missing the other process is asked (`control/wish.rs`). A process that may not
//! read the other gets EPERM, not EFAULT, and asks for nothing.

use core::sync::atomic::Ordering;

use uzswap::control::Slot;
use uzswap::control::wish::WISHED_MOST;
use uzswap::region::{page_ceil, page_floor};
use uzswap::sys::text::{DIGITS_MOST, decimal, join};
use uzswap::sys::{Errno, PAGE_SIZE, fd};

use super::buffers::{MOST_BYTES, VECTORS_MAX, held_call, is_ours, vector, vectors_bytes};
use super::descriptors::CONTROL_FD;
use super::own_stack::runtime;
use super::thread::ThreadBlock;
use super::{Args, FILTERED, PAGER};

/// Wishes for one piece: its pages went again before they were read.
const TRIES: u32 = 3;

/// Makes the call. `None`: it is about no process of the run that pages, or about this one.
pub(super) fn call(t: &'static ThreadBlock, number: usize, a: Args) -> Option<isize> {
    let pid = a[0] as u32;
    let pages = |s: &Slot| s.own_pid() == pid && s.mechanism().is_some();
    // A filter may end a process that asks.
    let asks = !FILTERED.load(Ordering::Relaxed) && PAGER.tree().live_slots().any(pages);
    if !asks || a[5] != 0 || a[2].max(a[4]) > VECTORS_MAX || is_ours(pid as usize) {
        return None;
    }
    let r = held_call(t, number, a);
    let done = if r == Errno::EFAULT.as_return() { Some(0) } else { usize::try_from(r).ok() };
    Some(done.and_then(|done| go_on(t, number, &a, done)).map_or(r, |sum| sum as isize))
}

/// Goes on behind the bytes that are done. Returns how many are then; `None`: no more.
fn go_on(t: &'static ThreadBlock, number: usize, a: &Args, done: usize) -> Option<usize> {
    let [pid, ours, our_count, theirs, their_count, _] = *a;
    let bytes = |array, count| vectors_bytes(t, array, count);
    let all = bytes(ours, our_count)?.min(bytes(theirs, their_count)?).min(MOST_BYTES);
    if done >= all {
        return None;
    }
    let (slot, id) = PAGER.tree().find(pid as u32, CONTROL_FD.load(Ordering::Relaxed))?;
    if runtime(t, move || stands_still(pid as u32)) {
        return None;
    }
    let mut ours = Side { array: ours, count: our_count, next: 0, offset: done };
    let mut theirs = Side { array: theirs, count: their_count, next: 0, offset: done };
    let mut sum = done;
    while sum < all
        && let Some((to, room)) = ours.next_bytes(t)
        && let Some((from, len)) = theirs.next_bytes(t)
    {
        let piece = page_floor(from) + WISHED_MOST * PAGE_SIZE - from;
        let len = len.min(room).min(piece);
        let r = transfer(t, number, pid, (slot, id), [to, from, len]);
        let moved = usize::try_from(r).ok().filter(|moved| *moved > 0);
        let Some(moved) = moved else { break };
        (ours.offset, theirs.offset, sum) =
            (ours.offset + moved, theirs.offset + moved, sum + moved);
    }
    (sum > done).then_some(sum)
}

/// Moves a piece, of which at least the first page is there, or has been brought in.
fn transfer(
    t: &'static ThreadBlock,
    number: usize,
    pid: usize,
    (slot, id): (&Slot, u32),
    [ours, theirs, len]: [usize; 3],
) -> isize {
    let attempt = || {
        let (local, remote) = ([ours, len], [theirs, len]);
        held_call(t, number, [pid, local.as_ptr() as usize, 1, remote.as_ptr() as usize, 1, 0])
    };
    let is_there = || slot.id() == id && slot.orders.has_listener() && slot.mechanism().is_some();
    let (start, end) = (page_floor(theirs), page_ceil(theirs + len));
    let mut r = attempt();
    for _ in 0..TRIES {
        if r != Errno::EFAULT.as_return() {
            break;
        }
        let Some(number) = slot.wish.make(start, end, is_there) else { break };
        r = attempt();
        // A page that is missing while it is held cannot be had.
        if slot.wish.end(number) {
            break;
        }
    }
    r
}

/// One side of a transfer: where it goes on in an array of buffers.
struct Side {
    array: usize,
    count: usize,
    next: usize,
    /// From the beginning of buffer `next`.
    offset: usize,
}

impl Side {
    /// The next bytes that lie together.
    fn next_bytes(&mut self, t: &'static ThreadBlock) -> Option<(usize, usize)> {
        while self.next < self.count {
            let (base, len) = vector(t, self.array, self.next)?;
            if self.offset < len {
                return Some((base + self.offset, len - self.offset));
            }
            (self.next, self.offset) = (self.next + 1, self.offset - len);
        }
        None
    }
}

/// Whether a process is stopped, or may be at any time, by who traces it: that one would wait for
/// itself.
fn stands_still(pid: u32) -> bool {
    let mut path = [0u8; 40];
    let mut digits = [0u8; DIGITS_MOST];
    join(&[b"/proc/", decimal(u64::from(pid), &mut digits), b"/status"], &mut path);
    let Ok(path) = core::ffi::CStr::from_bytes_until_nul(&path) else { return false };
    let Ok(file) = fd::open_read(path) else { return false };
    let mut text = [0u8; 512];
    let n = fd::read(file, &mut text);
    fd::close(file);
    n.is_ok_and(|n| is_stopped_or_traced(&text[..n]))
}

fn is_stopped_or_traced(status: &[u8]) -> bool {
    let value = |name: &[u8]| {
        status.split(|b| *b == b'\n').find_map(|line| line.strip_prefix(name)?.first())
    };
    matches!(value(b"State:\t"), Some(b'T' | b't')) || value(b"TracerPid:\t") > Some(&b'0')
}

#[cfg(test)]
mod tests {
    use super::super::buffers;
    use super::*;

    #[test]
    fn a_process_that_is_stopped_or_traced_is_not_asked() {
        let status = |state, tracer| {
            std::format!("Name:\tx\nState:\t{state}\nTgid:\t7\nTracerPid:\t{tracer}\nUid:\t0\n")
        };
        for (state, tracer, stands) in [
            ("S (sleeping)", 0, false),
            ("R (running)", 0, false),
            ("T (stopped)", 0, true),
            ("t (tracing stop)", 12, true),
            ("S (sleeping)", 12, true),
        ] {
            assert_eq!(is_stopped_or_traced(status(state, tracer).as_bytes()), stands);
        }
        assert!(!is_stopped_or_traced(b"Name:\tx\nState:\t"));
        assert!(!stands_still(uzswap::sys::getpid()) && !stands_still(u32::MAX));
    }

    #[test]
    fn a_side_goes_on_in_the_buffer_where_it_was() {
        let t = ThreadBlock::allocate().expect("a block");
        let buffers = [[1000usize, 10], [5, 0], [2000, 20]];
        let side = |offset| {
            let array = buffers.as_ptr() as usize;
            Side { array, count: buffers.len(), next: 0, offset }.next_bytes(t)
        };
        assert_eq!([side(0), side(9)], [Some((1000, 10)), Some((1009, 1))]);
        assert_eq!([side(10), side(29)], [Some((2000, 20)), Some((2019, 1))]);
        assert_eq!(side(30), None);
        assert_eq!(buffers::vectors_bytes(t, buffers.as_ptr() as usize, 3), Some(30));
        t.give_back();
    }
}
