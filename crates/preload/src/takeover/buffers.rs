//! System calls with buffers, once paging is on: every buffer is resident before the call and held
//! until it returns.
//!
//! The shapes of the arguments are in `calls/`; here their memory is held. Retry on EFAULT is the
//! safety net, not the plan: some calls have consumed their data by then (`buffers/again.rs`).
//! vmsplice, by which pages would be lent to a pipe, is in `buffers/vmsplice.rs`.
#![allow(unsafe_code)]

use core::hint::black_box;
use core::sync::atomic::Ordering;

use uzswap::control::Counter;
use uzswap::region::{ADDRESS_END, page_ceil, page_floor};
use uzswap::sys::{Errno, PAGE_SIZE, nr};

mod again;
mod own_memory;
mod vmsplice;

pub(super) use own_memory::note_seek;

use super::own_stack::{current, runtime};
use super::thread::ThreadBlock;
use super::{ACTIVE, Answer, Args, FILTERED, PAGER, PID, call, cancel, count, owners};
use crate::calls::walk::{Kind, Visit, scan, walk};

/// Larger transfers go in pieces, so that holding does not exceed the limit. A piece is some MiB:
/// O_DIRECT wants multiples of the device's blocks.
fn piece_bytes() -> usize {
    const LEAST: usize = 1 << 20;
    (PAGER.limit_pages().max(0) as usize * PAGE_SIZE / 8 / LEAST * LEAST).max(LEAST)
}

/// Buffers that the kernel takes in one array (UIO_MAXIOV).
const VECTORS_MAX: usize = 1024;

/// How a transfer on a descriptor may be cut.
#[derive(Clone, Copy, PartialEq)]
enum Cut {
    /// Files and memory devices: pieces until the request or the file ends, as one transfer would.
    Whole,
    /// Pipes and stream sockets: a read may be short; a write goes on.
    Stream,
    /// Datagrams, terminals, other devices: one transfer is one message.
    Never,
}

/// How transfers on a descriptor may be cut.
fn cut(fd: usize) -> Cut {
    const SOL_SOCKET: usize = 1;
    const SO_TYPE: usize = 3;
    const SOCK_STREAM: i32 = 1;
    const F_GETFL: usize = 3;
    const O_DIRECT: isize = 0o40000;
    const MEMORY_DEVICES: u64 = 1;
    let mut stat = [0u64; 18];
    let r = with_own_words(|| {
        stat = black_box([0; 18]);
        call!(nr::FSTAT, fd, stat.as_mut_ptr())
    });
    if r != 0 {
        return Cut::Never;
    }
    // st_mode is the first half of the fourth word, st_rdev the sixth.
    match stat[3] as u32 & 0o170000 {
        0o100000 | 0o060000 => Cut::Whole,
        0o020000 if stat[5] >> 8 & 0xfff == MEMORY_DEVICES => Cut::Whole,
        // A pipe in packet mode keeps the borders of writes.
        0o010000 if call!(nr::FCNTL, fd, F_GETFL) & O_DIRECT == 0 => Cut::Stream,
        0o140000 => {
            let (mut kind, mut len) = (0i32, 0u32);
            let r = with_own_words(|| {
                (kind, len) = black_box((0, 4));
                call!(nr::GETSOCKOPT, fd, SOL_SOCKET, SO_TYPE, &raw mut kind, &raw mut len)
            });
            if r == 0 && kind == SOCK_STREAM { Cut::Stream } else { Cut::Never }
        }
        _ => Cut::Never,
    }
}

/// Holds the memory that a call touches.
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
                .all(|p| PAGER.table.get(p).is_some_and(|e| e.is_writable()) && !must_unprotect());
        if kind == Kind::Keep {
            runtime(self.t, move || {
                let (guard, _) = PAGER.make_resident(PAGER.enter(), start, end);
                let _ = PAGER.holds.keep(start, end);
                drop(guard);
            });
        } else if !resident {
            runtime(self.t, move || drop(PAGER.make_resident(PAGER.enter(), start, end)));
        }
    }

    fn read(&self, addr: usize, into: &mut [u8]) -> bool {
        // Just above our own frame is the stack of the caller: mapped for sure.
        if addr.wrapping_sub(self.sp) < 1024 && into.len() <= 1024 {
            // SAFETY: part of the caller's live stack frames.
            unsafe {
                core::ptr::copy_nonoverlapping(addr as *const u8, into.as_mut_ptr(), into.len())
            };
            return true;
        }
        read_program(addr, into)
    }

    fn is_own(&self, pid: usize) -> bool {
        is_ours(pid)
    }
}

/// Whether resident pages may be write-protected for a moment, as without MOVE: only the lock
/// tells.
fn must_unprotect() -> bool {
    PAGER.active().is_some_and(|a| a.kind == uzswap::control::Mechanism::UserfaultfdCopy)
}

/// Copies program memory that may be unmapped: the kernel checks.
fn read_program(addr: usize, into: &mut [u8]) -> bool {
    let r = transfer(nr::PROCESS_VM_READV, into.as_mut_ptr() as usize, addr, into.len());
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

/// Whether a byte of the program's memory can be read.
pub(super) fn is_readable(addr: usize) -> bool {
    read_program(addr, &mut [0])
}

/// Has the kernel copy between memory of ours and the program's, which it checks.
fn transfer(number: usize, ours: usize, theirs: usize, len: usize) -> isize {
    let pid = uzswap::sys::getpid();
    with_own_words(|| {
        for at in [ours, ours + len.max(1) - 1] {
            // SAFETY: a byte of ours: its page is there afterwards, to be written where the kernel
            // will write.
            unsafe {
                let byte = (at as *const u8).read_volatile();
                if number == nr::PROCESS_VM_READV {
                    (at as *mut u8).write_volatile(byte);
                }
            }
        }
        let (local, remote) = black_box(([ours, len], [theirs, len]));
        call!(number, pid, local.as_ptr(), 1, remote.as_ptr(), 1, 0)
    })
}

/// Copies a program's argument in, as the kernel would: false where the address is bad.
pub(super) fn copy_in(t: &'static ThreadBlock, addr: usize, into: &mut [u8]) -> bool {
    let here = 0u8;
    let mut holder = Holder { t, sp: &raw const here as usize };
    let mark = t.holds().mark();
    if ACTIVE.load(Ordering::Acquire) {
        holder.hold(addr, into.len(), Kind::In);
    }
    let ok = addr.checked_add(into.len()).is_some() && holder.read(addr, into);
    t.holds().pop_to(mark);
    ok
}

/// Copies a result out to the program: false where the address is bad.
pub(super) fn copy_out(t: &'static ThreadBlock, addr: usize, from: &[u8]) -> bool {
    let here = 0u8;
    let sp = &raw const here as usize;
    if addr.wrapping_sub(sp) < 1024 && from.len() <= 1024 {
        // SAFETY: part of the caller's live stack frames.
        unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), addr as *mut u8, from.len()) };
        return true;
    }
    let mark = t.holds().mark();
    if ACTIVE.load(Ordering::Acquire) && addr.checked_add(from.len()).is_some() {
        Holder { t, sp }.hold(addr, from.len(), Kind::Out);
    }
    let r = transfer(nr::PROCESS_VM_WRITEV, from.as_ptr() as usize, addr, from.len());
    let is_refused = r < 0 && r != Errno::EFAULT.as_return();
    if is_refused {
        // Refused by a sandbox: write as the program would.
        // SAFETY: the program's own address; a bad one faults in it.
        unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), addr as *mut u8, from.len()) };
    }
    t.holds().pop_to(mark);
    // Where memory ends in the middle, the kernel copies as far as it goes and says how much.
    is_refused || r == from.len() as isize
}

/// Makes a call with its buffers held.
pub(super) fn held_call(t: &'static ThreadBlock, number: usize, a: Args) -> isize {
    match ACTIVE.load(Ordering::Acquire) {
        true => call_and_hold(t, number, a),
        false => cancel::call(t, number, a),
    }
}

fn call_and_hold(t: &'static ThreadBlock, number: usize, a: Args) -> isize {
    let mark = t.holds().mark();
    let here = 0u8;
    let mut holder = Holder { t, sp: &raw const here as usize };
    walk(number, &a, &mut holder);
    let mut r = cancel::call(t, number, a);
    let mut tries = 0;
    while r == Errno::EFAULT.as_return() && tries < 3 && again::may_help(t, number, &a) {
        let before = t.holds().mark();
        scan(number, &a, tries, &mut holder);
        if t.holds().mark() == before {
            break;
        }
        count(Counter::EfaultRetries, 1);
        r = cancel::call(t, number, a);
        tries += 1;
    }
    t.holds().pop_to(mark);
    r
}

/// Whether the kernel takes that number for this process: each of its threads stands for it.
pub(super) fn is_ours(pid: usize) -> bool {
    let process = PID.load(Ordering::Relaxed);
    // A filter may end a process that asks.
    pid == process as usize || !FILTERED.load(Ordering::Relaxed) && is_thread_of(process, pid)
}

/// A guest is no thread of this process, and its memory is ours all the same.
fn is_thread_of(process: u32, tid: usize) -> bool {
    owners::is_thread_of(process, tid as u32) == Some(true)
}

/// Keeps resident for good the memory that the kernel uses after this call (robust list, rseq, the
/// word cleared at thread exit), also while dormant: paging may be switched on later.
pub(super) fn keep_named(t: &'static ThreadBlock, number: usize, a: &Args) {
    struct Keeper(Holder);
    impl Visit for Keeper {
        fn hold(&mut self, addr: usize, len: usize, kind: Kind) {
            if kind == Kind::Keep {
                keep(self.0.t, addr, len);
            }
        }
        fn read(&self, addr: usize, into: &mut [u8]) -> bool {
            self.0.read(addr, into)
        }
        fn is_own(&self, pid: usize) -> bool {
            self.0.is_own(pid)
        }
    }
    let here = 0u8;
    walk(number, a, &mut Keeper(Holder { t, sp: &raw const here as usize }));
}

/// Holds the entries of an ending thread's list of robust mutexes, and their words, until the
/// thread is gone: the kernel walks the list and marks the mutexes that the thread held, but skips
/// missing memory silently.
pub(super) fn hold_robust_list(t: &'static ThreadBlock) {
    const ENTRIES_MAX: usize = 2048;
    let (mut head, mut len) = (0usize, 0usize);
    let r = with_own_words(|| {
        (head, len) = black_box((0, 0));
        call!(nr::GET_ROBUST_LIST, 0, &raw mut head, &raw mut len)
    });
    if r != 0 || head == 0 {
        return;
    }
    let here = 0u8;
    let mut holder = Holder { t, sp: &raw const here as usize };
    let mut word = |at: usize| {
        let mut bytes = [0u8; 8];
        holder.hold(at, 8, Kind::Out);
        read_program(at, &mut bytes).then(|| usize::from_le_bytes(bytes))
    };
    let (Some(first), Some(offset), Some(pending)) = (word(head), word(head + 8), word(head + 16))
    else {
        return;
    };
    // The lowest bit of an entry says what kind of mutex it is.
    let mut entry = first & !1;
    for _ in 0..ENTRIES_MAX {
        if entry == 0 || entry == head {
            break;
        }
        word(entry.wrapping_add(offset) & !7);
        let Some(next) = word(entry) else { break };
        entry = next & !1;
    }
    if pending & !1 != 0 {
        word((pending & !1).wrapping_add(offset) & !7);
    }
}

/// Keeps managed memory resident for good.
pub(super) fn keep(t: &'static ThreadBlock, addr: usize, len: usize) {
    let (start, end) = (page_floor(addr), page_ceil(addr.saturating_add(len)));
    if PAGER.ranges.first_overlap_unlocked(start, end).is_some() {
        runtime(t, move || {
            let (guard, _) = PAGER.make_resident(PAGER.enter(), start, end);
            let _ = PAGER.holds.keep(start, end);
            drop(guard);
        });
    }
}

/// Holds the memory that a call names, for the duration of `f`.
pub(super) fn with_held<R>(
    t: &'static ThreadBlock,
    number: usize,
    a: &Args,
    f: impl FnOnce() -> R,
) -> R {
    let mark = t.holds().mark();
    if ACTIVE.load(Ordering::Acquire) {
        let here = 0u8;
        walk(number, a, &mut Holder { t, sp: &raw const here as usize });
    }
    let r = f();
    t.holds().pop_to(mark);
    r
}

/// Makes a call that reads or writes words of ours on the program's stack. They may be paged out
/// after `attempt` has touched them and before the kernel does: a bad address is one that stays
/// bad. `attempt` writes the words anew each time.
///
/// Trying again is not enough. In a process that waits for its turn each touch waits until a signal
/// comes, whose handler then runs before the call is made, while the evictor takes all pages: no
/// number of tries would do. So the stack around the words is held.
pub(super) fn with_own_words(mut attempt: impl FnMut() -> isize) -> isize {
    const TRIES: u32 = 2;
    for _ in 0..TRIES {
        let result = attempt();
        if result != Errno::EFAULT.as_return() {
            return result;
        }
    }
    with_stack_held(attempt)
}

/// Holds the stack around the caller's frames for the duration of `f`, which may have words there
/// for the kernel to read or write.
pub(super) fn with_stack_held(f: impl FnOnce() -> isize) -> isize {
    /// Bytes of stack that `f` uses below this frame, and bytes above it where words of its callers
    /// lie.
    const BELOW_BYTES: usize = 4 << 10;
    const ABOVE_BYTES: usize = 12 << 10;
    if !ACTIVE.load(Ordering::Acquire) {
        return f();
    }
    let t = current();
    let mark = t.holds().mark();
    let here = 0u8;
    let sp = &raw const here as usize;
    Holder { t, sp }.hold(sp - BELOW_BYTES, BELOW_BYTES + ABOVE_BYTES, Kind::Out);
    let r = f();
    t.holds().pop_to(mark);
    r
}

fn managed(addr: usize, len: usize) -> bool {
    len > 0 && PAGER.ranges.first_overlap_unlocked(addr, addr.saturating_add(len)).is_some()
}

/// Whether a buffer ends where the program's addresses do. One that does not, such as one of -1
/// bytes, the kernel refuses before it moves anything. A piece of it would not be refused, and run
/// over all that lies behind the program's buffer.
fn is_range(addr: usize, len: usize) -> bool {
    addr.checked_add(len).is_some_and(|end| end <= ADDRESS_END)
}

/// read, write and their kin: large transfers in pieces where that cannot be told from one.
pub(super) fn piecewise(t: &'static ThreadBlock, number: usize, a: Args) -> Option<Answer> {
    match number {
        nr::READ | nr::WRITE | nr::PREAD64 | nr::PWRITE64 => {
            if let Some(at) = own_memory::other_side(number, &a) {
                return Some(Answer::Result(own_memory::call(t, number, a, at)));
            }
            if !managed(a[1], a[2]) || !is_range(a[1], a[2]) {
                return Some(Answer::Inline);
            }
            if a[2] <= piece_bytes() {
                return None;
            }
            match cut(a[0]) {
                Cut::Never => None,
                how => Some(Answer::Result(plain_pieces(t, number, a, how))),
            }
        }
        nr::READV | nr::WRITEV | nr::PREADV | nr::PWRITEV | nr::PREADV2 | nr::PWRITEV2 => {
            vector_pieces(t, number, a).map(Answer::Result)
        }
        _ => None,
    }
}

/// The kernel's own limit on one transfer, of all buffers together: MAX_RW_COUNT.
const MOST_BYTES: usize = 0x7fff_f000;

/// A large transfer in pieces that can be held. `transfer` makes one: of so many bytes, after those
/// that are done. A piece that is not whole is the last one, and so is the first where nothing
/// `goes_on`.
fn in_pieces(len: usize, goes_on: bool, transfer: impl Fn(usize, usize) -> isize) -> isize {
    let (len, most) = (len.min(MOST_BYTES), piece_bytes());
    let mut done = 0;
    while done < len {
        let piece = (len - done).min(most);
        let r = transfer(done, piece);
        if r < 0 {
            return if done > 0 { done as isize } else { r };
        }
        done += r as usize;
        if (r as usize) < piece || !goes_on {
            break;
        }
    }
    done as isize
}

/// A large transfer with one buffer.
fn plain_pieces(t: &'static ThreadBlock, number: usize, a: Args, how: Cut) -> isize {
    let positioned = matches!(number, nr::PREAD64 | nr::PWRITE64);
    let goes_on = how == Cut::Whole || matches!(number, nr::WRITE | nr::PWRITE64);
    in_pieces(a[2], goes_on, |done, piece| {
        let offset = if positioned { a[3].wrapping_add(done) } else { a[3] };
        held_call(t, number, [a[0], a[1] + done, piece, offset, a[4], a[5]])
    })
}

/// Element `i` of a program's array of buffers: address and length. `None`: it cannot be read.
fn vector(t: &'static ThreadBlock, array: usize, i: usize) -> Option<(usize, usize)> {
    let mut pair = [0u8; 16];
    let at = array.wrapping_add(i * 16);
    with_held(t, nr::READ, &[0, at, 16, 0, 0, 0], || read_program(at, &mut pair)).then(|| {
        let (words, _) = pair.as_chunks::<8>();
        (usize::from_le_bytes(words[0]), usize::from_le_bytes(words[1]))
    })
}

/// The bytes of all buffers in a program's array of `n`. `None`: it cannot be read, or one of them
/// is where no memory of the program's can be, which the kernel finds before it moves anything.
fn vectors_bytes(t: &'static ThreadBlock, array: usize, n: usize) -> Option<usize> {
    /// Elements read at a time: each read is a call, and this comes before every transfer.
    const BATCH: usize = 16;
    let mut batch = [0u8; BATCH * 16];
    let mut total = 0usize;
    for first in (0..n).step_by(BATCH) {
        let elements = &mut batch[..(n - first).min(BATCH) * 16];
        if !copy_in(t, array.wrapping_add(first * 16), elements) {
            return None;
        }
        for pair in elements.as_chunks::<8>().0.as_chunks::<2>().0 {
            let [base, len] = pair.map(usize::from_le_bytes);
            if !is_range(base, len) {
                return None;
            }
            total = total.saturating_add(len);
        }
    }
    Some(total)
}

/// Whether a vector transfer is at `offset`, and not at the file's own position. The kernel refuses
/// a negative offset, but for -1 in the second versions, where it means the file's own.
fn has_offset(number: usize, offset: usize) -> bool {
    match number {
        nr::READV | nr::WRITEV => false,
        nr::PREADV2 | nr::PWRITEV2 => offset as isize != -1,
        _ => true,
    }
}

/// A large vector transfer, buffer by buffer. `None`: small, or one that must not be cut.
fn vector_pieces(t: &'static ThreadBlock, number: usize, a: Args) -> Option<isize> {
    let n = a[2];
    if n == 0 || n > VECTORS_MAX {
        return None;
    }
    let total = vectors_bytes(t, a[1], n)?;
    if total <= 2 * piece_bytes() || total > isize::MAX as usize {
        return None;
    }
    let how = cut(a[0]);
    let flags = if matches!(number, nr::PREADV2 | nr::PWRITEV2) { a[5] } else { 0 };
    if how == Cut::Never || flags != 0 {
        return None;
    }
    let writes = matches!(number, nr::WRITEV | nr::PWRITEV | nr::PWRITEV2);
    let single = match (has_offset(number, a[3]), writes) {
        (false, false) => nr::READ,
        (false, true) => nr::WRITE,
        (true, false) => nr::PREAD64,
        (true, true) => nr::PWRITE64,
    };
    let mut done = 0;
    for i in 0..n {
        let Some((base, len)) = vector(t, a[1], i) else { break };
        let len = len.min(MOST_BYTES - done);
        if !is_range(base, len) {
            return Some(if done > 0 { done as isize } else { Errno::EFAULT.as_return() });
        }
        if len == 0 {
            continue;
        }
        let r = plain_pieces(t, single, [a[0], base, len, a[3].wrapping_add(done), 0, 0], how);
        if r < 0 {
            return Some(if done > 0 { done as isize } else { r });
        }
        done += r as usize;
        // The next read of a stream may wait, though data has come.
        if (r as usize) < len || (how == Cut::Stream && !writes) {
            break;
        }
    }
    Some(done as isize)
}

/// A large send on a stream, in pieces.
fn send_pieces(t: &'static ThreadBlock, a: Args) -> isize {
    in_pieces(a[2], true, |done, piece| {
        held_call(t, nr::SENDTO, [a[0], a[1] + done, piece, a[3], a[4], a[5]])
    })
}

/// Makes a call with its buffers held, once paging is on: no more of a large one than can be held.
pub(super) fn bounded_call(t: &'static ThreadBlock, number: usize, a: Args) -> isize {
    match number {
        nr::GETRANDOM if a[1] > piece_bytes() && managed(a[0], a[1]) => random_pieces(t, a),
        _ => held_call(t, number, clamp_length(number, a)),
    }
}

/// Much randomness, in pieces. Where no signal comes the kernel gives as much as is asked for, and
/// not every program asks for the rest.
fn random_pieces(t: &'static ThreadBlock, a: Args) -> isize {
    in_pieces(a[1], true, |done, piece| {
        held_call(t, nr::GETRANDOM, [a[0] + done, piece, a[2], a[3], a[4], a[5]])
    })
}

/// Cuts the length of a buffer that a call may fill in part to one that can be held. Returns the
/// arguments with it.
fn clamp_length(number: usize, mut a: Args) -> Args {
    const MSG_WAITALL: usize = 0x100;
    /// The longest buffer of a datagram, in bytes: many times the largest receive buffer that a
    /// program can have without privilege.
    const DATAGRAM_MOST: usize = 16 << 20;
    if number == nr::RECVFROM
        && a[2] > piece_bytes()
        && a[3] & MSG_WAITALL == 0
        && managed(a[1], a[2])
    {
        let most = if cut(a[0]) == Cut::Stream { piece_bytes() } else { DATAGRAM_MOST };
        a[2] = a[2].min(most);
    }
    a
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
        // A page lent to a pipe is not pinned: taken out, it would be recycled under the reader.
        // Copy instead, while dormant as well: paging may begin before the pipe is read.
        nr::VMSPLICE => Some(vmsplice::call(t, a)),
        // Zero-copy sends refer to pages after the call; without the option programs copy.
        nr::SETSOCKOPT if a[1] == SOL_SOCKET && a[2] == SO_ZEROCOPY => {
            Some(Answer::Result(Errno::ENOPROTOOPT.as_return()))
        }
        nr::SENDTO if a[2] > piece_bytes() && managed(a[1], a[2]) && cut(a[0]) == Cut::Stream => {
            a[3] &= !MSG_ZEROCOPY;
            Some(Answer::Result(send_pieces(t, a)))
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use uzswap::control::Tree;
    use uzswap::region::RangeFlags;
    use uzswap::sys::mem::{PROT_READ, PROT_WRITE, map_anonymous};

    pub(super) fn block() -> &'static ThreadBlock {
        ThreadBlock::allocate().expect("a block")
    }

    /// Has the pager know a tree, whose limit is 0: pieces are as small as they get.
    pub(super) fn connect() {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            let at = map_anonymous(size_of::<Tree>(), PROT_READ | PROT_WRITE).unwrap();
            // SAFETY: fresh memory of ours; a tree of zeros is one, as that of a new run.
            let tree: &'static Tree = unsafe { &*(at as *const Tree) };
            PAGER.connect(tree, tree.claim(uzswap::sys::getpid()).unwrap());
        });
    }

    /// The end of a page behind which nothing is mapped.
    fn end_of_memory() -> usize {
        let at = map_anonymous(2 * PAGE_SIZE, PROT_READ | PROT_WRITE).unwrap();
        assert_eq!(call!(nr::MPROTECT, at + PAGE_SIZE, PAGE_SIZE, 0), 0);
        at + PAGE_SIZE
    }

    #[test]
    fn an_answer_that_fits_in_part_is_not_given() {
        let (t, end) = (block(), end_of_memory());
        assert!(copy_out(t, end - 16, &[7; 16]));
        assert!(!copy_out(t, end - 8, &[8; 16]), "the second half has no place");
        assert!(!copy_out(t, end, &[8; 16]));
        let mut bytes = [0; 16];
        assert!(copy_in(t, end - 16, &mut bytes) && bytes[..8] == [7; 8]);
        assert!(!copy_in(t, end - 8, &mut bytes));
        t.give_back();
    }

    #[test]
    fn no_piece_is_made_of_a_buffer_that_is_longer_than_memory() {
        let (t, at) = (block(), map_anonymous(PAGE_SIZE, PROT_READ | PROT_WRITE).unwrap());
        PAGER.note_mapped(&mut PAGER.enter(), at, at + PAGE_SIZE, 3, RangeFlags::NONE);
        for len in [usize::MAX, isize::MAX as usize, ADDRESS_END] {
            for number in [nr::READ, nr::WRITE, nr::PREAD64, nr::PWRITE64] {
                let answer = piecewise(t, number, [usize::MAX, at, len, 0, 0, 0]);
                assert!(matches!(answer, Some(Answer::Inline)), "call {number}, {len:x} bytes");
            }
        }
        PAGER.note_unmapped(&mut PAGER.enter(), at, at + PAGE_SIZE);
        assert!(is_range(at, 0) && is_range(at, ADDRESS_END - at));
        assert!(!is_range(at, ADDRESS_END - at + 1) && !is_range(usize::MAX, 1));
        t.give_back();
    }

    #[test]
    fn as_much_randomness_comes_as_is_asked_for() {
        const BYTES: usize = (2 << 20) + 5;
        connect();
        let (t, at) = (block(), map_anonymous(BYTES, PROT_READ | PROT_WRITE).unwrap());
        let end = at + page_ceil(BYTES);
        PAGER.note_mapped(&mut PAGER.enter(), at, end, 3, RangeFlags::NONE);
        assert_eq!(bounded_call(t, nr::GETRANDOM, [at, BYTES, 0, 0, 0, 0]), BYTES as isize);
        // A flag that the kernel does not know.
        let refused = bounded_call(t, nr::GETRANDOM, [at, BYTES, 1 << 9, 0, 0, 0]);
        assert_eq!(refused, Errno::EINVAL.as_return());
        PAGER.note_unmapped(&mut PAGER.enter(), at, end);
        t.give_back();
    }

    #[test]
    fn a_vector_with_an_address_that_is_none_is_left_to_the_kernel_whole() {
        connect();
        let (t, bytes) = (block(), std::vec![7u8; 3 << 20]);
        let file = std::fs::File::create("/dev/null").unwrap();
        let buffer = bytes.as_ptr() as usize;
        for bad in [[ADDRESS_END, 1], [buffer, usize::MAX], [usize::MAX, 2]] {
            let vectors = [[buffer, bytes.len()], bad];
            let a = [file.as_raw_fd() as usize, vectors.as_ptr() as usize, 2, 0, 0, 0];
            assert_eq!(vector_pieces(t, nr::WRITEV, a), None, "{bad:x?}");
        }
        t.give_back();
    }

    #[test]
    fn a_vector_moves_no_more_than_the_kernel_would() {
        const GIB: usize = 1 << 30;
        connect();
        // No page of it is touched: the device takes bytes without a look at them.
        let (t, buffer) = (block(), map_anonymous(GIB, PROT_READ).unwrap());
        let file = std::fs::File::create("/dev/null").unwrap();
        let vectors = [[buffer, GIB]; 3];
        let a = [file.as_raw_fd() as usize, vectors.as_ptr() as usize, 3, 0, 0, 0];
        assert_eq!(vector_pieces(t, nr::WRITEV, a), Some(MOST_BYTES as isize));
        assert_eq!(call!(nr::MUNMAP, buffer, GIB), 0);
        t.give_back();
    }

    #[test]
    fn each_thread_stands_for_its_process() {
        let ours = uzswap::sys::getpid();
        let (say, end) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || {
            tell.send(uzswap::sys::gettid()).unwrap();
            let _ = end.recv();
        });
        let tid = told.recv().unwrap() as usize;
        assert!(is_thread_of(ours, tid) && is_thread_of(ours, ours as usize));
        assert!(!is_thread_of(ours, 0) && !is_thread_of(ours, u32::MAX as usize));
        assert!(!is_thread_of(ours, 1), "another process");
        drop(say);
        other.join().unwrap();
    }

    #[test]
    fn the_position_of_the_file_itself_is_for_calls_that_can_name_it() {
        let none = usize::MAX;
        for number in [nr::PREADV, nr::PWRITEV] {
            assert!(has_offset(number, 0) && has_offset(number, none), "-1 is refused");
        }
        for number in [nr::PREADV2, nr::PWRITEV2] {
            assert!(has_offset(number, 0) && has_offset(number, none - 1));
            assert!(!has_offset(number, none));
        }
        assert!(!has_offset(nr::READV, 0) && !has_offset(nr::WRITEV, 5));
    }
}
