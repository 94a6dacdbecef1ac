//! System calls with buffers, once paging is on: every buffer is resident before the call and held until it returns.
//!
//! The shapes of the arguments are in `calls/`; here they are held. Retry on EFAULT is the safety net, not the plan:
//! some calls have consumed their data by then.
#![allow(unsafe_code)]

use core::sync::atomic::Ordering;

use uzswap::control::Counter;
use uzswap::region::{page_ceil, page_floor};
use uzswap::sys::{Errno, PAGE_SIZE, nr};

use super::thread::ThreadBlock;
use super::{ACTIVE, Answer, Args, PAGER, PID, call, count, raw, runtime};
use crate::calls::walk::{Kind, Visit, scan, walk};

/// Larger transfers go in pieces, so that holding does not exceed the limit.
const PIECE_BYTES: usize = 1 << 20;

/// Holds what a call touches.
struct Holder {
    t: &'static ThreadBlock,
    sp: usize,
}

impl Visit for Holder {
    fn hold(&mut self, addr: usize, len: usize, kind: Kind) {
        let (start, end) = (page_floor(addr), page_ceil(addr + len));
        if PAGER.ranges.first_overlap_unlocked(start, end).is_none() {
            return;
        }
        self.t.holds().push(start, end, self.sp);
        let resident = end - start <= 64 * PAGE_SIZE
            && (start..end)
                .step_by(PAGE_SIZE)
                .all(|p| PAGER.table.get(p).is_some_and(|e| e.is_resident()) && !must_unprotect());
        if kind == Kind::Keep {
            runtime(self.t, move || {
                let (guard, _) = PAGER.make_resident(PAGER.lock(), start, end);
                let _ = PAGER.holds.keep(start, end);
                drop(guard);
            });
        } else if !resident {
            runtime(self.t, move || drop(PAGER.make_resident(PAGER.lock(), start, end)));
        }
    }

    fn read(&self, addr: usize, into: &mut [u8]) -> bool {
        // Just above our own frame is the stack of the caller: mapped for sure.
        if addr.wrapping_sub(self.sp) < 1024 && into.len() <= 1024 {
            // SAFETY: part of the caller's live stack frames.
            unsafe { core::ptr::copy_nonoverlapping(addr as *const u8, into.as_mut_ptr(), into.len()) };
            return true;
        }
        read_program(addr, into)
    }

    fn own_pid(&self) -> usize {
        PID.load(Ordering::Relaxed) as usize
    }
}

/// Without MOVE, resident pages may be write-protected for a moment: only the lock tells.
fn must_unprotect() -> bool {
    PAGER.active().is_some_and(|a| a.kind == uzswap::control::Mechanism::UserfaultfdCopy)
}

/// Copies program memory that may not even be mapped: the kernel checks.
fn read_program(addr: usize, into: &mut [u8]) -> bool {
    let local = [into.as_mut_ptr() as usize, into.len()];
    let remote = [addr, into.len()];
    let pid = uzswap::sys::getpid();
    let r = call!(nr::PROCESS_VM_READV, pid, local.as_ptr(), 1, remote.as_ptr(), 1, 0);
    if r == into.len() as isize {
        return true;
    }
    if r == Errno::EFAULT.as_return() || r >= 0 {
        return false;
    }
    // process_vm_readv is refused by some sandboxes. Then ask whether the pages are mapped at all.
    let (first, last) = (page_floor(addr), page_floor(addr + into.len() - 1));
    let mapped = |p: usize| uzswap::sys::program::mincore(p, &mut [0u8]).is_ok();
    if !mapped(first) || !mapped(last) {
        return false;
    }
    // SAFETY: mapped a moment ago; memory without read access faults as it would in the program.
    unsafe { core::ptr::copy_nonoverlapping(addr as *const u8, into.as_mut_ptr(), into.len()) };
    true
}

/// Makes a call with its buffers held.
pub(super) fn held_call(t: &'static ThreadBlock, number: usize, a: Args) -> isize {
    if !ACTIVE.load(Ordering::Acquire) {
        return raw(number, a);
    }
    let mark = t.holds().mark();
    let here = 0u8;
    let mut holder = Holder { t, sp: &raw const here as usize };
    walk(number, &a, &mut holder);
    let mut r = raw(number, a);
    let mut tries = 0;
    while r == Errno::EFAULT.as_return() && tries < 3 {
        let before = t.holds().mark();
        scan(number, &a, &mut holder);
        if t.holds().mark() == before {
            break;
        }
        count(Counter::EfaultRetries, 1);
        r = raw(number, a);
        tries += 1;
    }
    t.holds().pop_to(mark);
    r
}

/// Holds what a call names, for the duration of `f`.
pub(super) fn with_held<R>(t: &'static ThreadBlock, number: usize, a: &Args, f: impl FnOnce() -> R) -> R {
    let mark = t.holds().mark();
    if ACTIVE.load(Ordering::Acquire) {
        let here = 0u8;
        walk(number, a, &mut Holder { t, sp: &raw const here as usize });
    }
    let r = f();
    t.holds().pop_to(mark);
    r
}

fn managed(addr: usize, len: usize) -> bool {
    len > 0 && PAGER.ranges.first_overlap_unlocked(addr, addr.saturating_add(len)).is_some()
}

/// read, write and their kin.
pub(super) fn piecewise(t: &'static ThreadBlock, number: usize, a: Args) -> Option<Answer> {
    match number {
        nr::READ | nr::WRITE | nr::PREAD64 | nr::PWRITE64 => {
            if !managed(a[1], a[2]) {
                return Some(Answer::Inline);
            }
            if a[2] <= PIECE_BYTES {
                return None;
            }
            Some(Answer::Result(plain_pieces(t, number, a)))
        }
        nr::READV | nr::WRITEV | nr::PREADV | nr::PWRITEV | nr::PREADV2 | nr::PWRITEV2 => vector_pieces(t, number, a),
        _ => None,
    }
}

/// A large transfer with one buffer. Regular files are read to the end of the request, as the kernel would;
/// elsewhere a short count is an answer.
fn plain_pieces(t: &'static ThreadBlock, number: usize, a: Args) -> isize {
    let (positioned, writes) =
        (matches!(number, nr::PREAD64 | nr::PWRITE64), matches!(number, nr::WRITE | nr::PWRITE64));
    // The kernel's own limit on one transfer.
    let len = a[2].min(0x7fff_f000);
    let mut done = 0;
    let whole = writes || is_regular(a[0]);
    while done < len {
        let piece = (len - done).min(PIECE_BYTES);
        let offset = if positioned { a[3].wrapping_add(done) } else { a[3] };
        let r = held_call(t, number, [a[0], a[1] + done, piece, offset, a[4], a[5]]);
        if r < 0 {
            return if done > 0 { done as isize } else { r };
        }
        done += r as usize;
        if (r as usize) < piece || !whole {
            break;
        }
    }
    done as isize
}

fn is_regular(fd: usize) -> bool {
    let mut stat = [0u64; 18];
    let r = call!(nr::FSTAT, fd, stat.as_mut_ptr());
    // st_mode is the first half of the fourth word.
    r == 0 && stat[3] as u32 & 0o170000 == 0o100000
}

/// A vector transfer: whole if it is small, otherwise up to the pieces that fit.
fn vector_pieces(t: &'static ThreadBlock, number: usize, a: Args) -> Option<Answer> {
    const VECTORS_MAX: usize = 1024;
    const COPIED: usize = 32;
    let n = a[2];
    if n == 0 || n > VECTORS_MAX {
        return None;
    }
    let mut total = 0usize;
    let mut vectors = [[0usize; 2]; COPIED];
    let mut used = 0;
    for i in 0..n {
        let mut pair = [0u8; 16];
        let at = a[1] + i * 16;
        let ok = with_held(t, nr::READ, &[0, at, 16, 0, 0, 0], || read_program(at, &mut pair));
        if !ok {
            return None;
        }
        let (words, _) = pair.as_chunks::<8>();
        let (base, len) = (usize::from_le_bytes(words[0]), usize::from_le_bytes(words[1]));
        if len > isize::MAX as usize {
            return None;
        }
        if i < COPIED {
            // The last piece ends at the limit.
            let take = len.min((2 * PIECE_BYTES).saturating_sub(total));
            if take > 0 || total < 2 * PIECE_BYTES {
                vectors[i] = [base, take];
                used = i + 1;
            }
        }
        total = total.saturating_add(len);
    }
    if total <= 2 * PIECE_BYTES && n <= HOLDABLE {
        return None;
    }
    // A transfer that is cut short is legal for pipes and sockets; for files the rest follows.
    let fd_regular = is_regular(a[0]);
    let r = {
        let mut b = a;
        b[1] = vectors.as_ptr() as usize;
        b[2] = used;
        held_call(t, number, b)
    };
    if r <= 0 || !fd_regular {
        return Some(Answer::Result(r));
    }
    Some(Answer::Result(rest_of_vectors(t, number, a, r as usize, total)))
}

/// Vectors whose buffers fit the hold stack one by one.
const HOLDABLE: usize = 48;

/// Goes on with a vector transfer on a regular file after the first `done` bytes, buffer by buffer.
fn rest_of_vectors(t: &'static ThreadBlock, number: usize, a: Args, mut done: usize, total: usize) -> isize {
    let positioned = !matches!(number, nr::READV | nr::WRITEV);
    let writes = matches!(number, nr::WRITEV | nr::PWRITEV | nr::PWRITEV2);
    let single = match (positioned, writes) {
        (false, false) => nr::READ,
        (false, true) => nr::WRITE,
        (true, false) => nr::PREAD64,
        (true, true) => nr::PWRITE64,
    };
    // preadv2 with offset -1 uses the file's own position.
    let single = if positioned && a[3] as isize == -1 { if writes { nr::WRITE } else { nr::READ } } else { single };
    let mut skip = done;
    for i in 0..a[2] {
        if done >= total {
            break;
        }
        let mut pair = [0u8; 16];
        let at = a[1] + i * 16;
        if !with_held(t, nr::READ, &[0, at, 16, 0, 0, 0], || read_program(at, &mut pair)) {
            break;
        }
        let (words, _) = pair.as_chunks::<8>();
        let (base, len) = (usize::from_le_bytes(words[0]), usize::from_le_bytes(words[1]));
        if skip >= len {
            skip -= len;
            continue;
        }
        let want = len - skip;
        let r = plain_pieces(t, single, [a[0], base + skip, want, a[3].wrapping_add(done), 0, 0]);
        skip = 0;
        if r < 0 {
            break;
        }
        done += r as usize;
        if (r as usize) < want {
            break;
        }
    }
    done as isize
}

/// Calls that need a decision of their own.
pub(super) fn special(t: &'static ThreadBlock, number: usize, mut a: Args) -> Option<Answer> {
    const SOL_SOCKET: usize = 1;
    const SO_ZEROCOPY: usize = 60;
    const MSG_ZEROCOPY: usize = 0x400_0000;
    match number {
        // io_uring lets the kernel use memory between calls; programs fall back without it.
        nr::IO_URING_SETUP | nr::IO_URING_ENTER | nr::IO_URING_REGISTER => {
            Some(Answer::Result(Errno::ENOSYS.as_return()))
        }
        // A page lent to a pipe is not pinned: taken out, it would be recycled under the reader. Copy instead.
        nr::VMSPLICE if ACTIVE.load(Ordering::Acquire) => {
            let n = [a[0], a[1], a[2], 0, 0, 0];
            match piecewise(t, nr::WRITEV, n) {
                Some(Answer::Result(r)) => Some(Answer::Result(r)),
                _ => Some(Answer::Result(held_call(t, nr::WRITEV, n))),
            }
        }
        // Zero-copy sends refer to pages after the call; without the option programs copy.
        nr::SETSOCKOPT if a[1] == SOL_SOCKET && a[2] == SO_ZEROCOPY => {
            Some(Answer::Result(Errno::ENOPROTOOPT.as_return()))
        }
        nr::SENDTO | nr::SENDMSG | nr::SENDMMSG => {
            let flags_at = if number == nr::SENDMSG { 2 } else { 3 };
            if a[flags_at] & MSG_ZEROCOPY == 0 {
                return None;
            }
            a[flags_at] &= !MSG_ZEROCOPY;
            Some(Answer::Result(held_call(t, number, a)))
        }
        _ => None,
    }
}
