//! Large transfers in pieces, so that holding their memory does not exceed the limit.
//!
//! Only a transfer of which the program cannot tell that it was cut is: pieces go on where one
//! transfer would have, and end where it would have ended ([`Cut`]). Others are held whole.

use core::hint::black_box;

use uzswap::region::ADDRESS_END;
use uzswap::sys::{Errno, PAGE_SIZE, nr};

use super::super::thread::ThreadBlock;
use super::super::{Answer, Args, PAGER, call};
use super::copy::{copy_in, read_program};
use super::hold::with_own_words;
use super::{held_call, own_memory, with_held};

/// Larger transfers go in pieces, so that holding does not exceed the limit. A piece is some MiB:
/// O_DIRECT wants multiples of the device's blocks.
pub(super) fn piece_bytes() -> usize {
    const LEAST: usize = 1 << 20;
    (PAGER.limit_pages().max(0) as usize * PAGE_SIZE / 8 / LEAST * LEAST).max(LEAST)
}

/// Buffers that the kernel takes in one array (UIO_MAXIOV).
pub(in crate::takeover) const VECTORS_MAX: usize = 1024;

/// The kernel's own limit on one transfer, of all buffers together: MAX_RW_COUNT.
pub(in crate::takeover) const MOST_BYTES: usize = 0x7fff_f000;

/// How a transfer on a descriptor may be cut.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Cut {
    /// Files and memory devices: pieces until the request or the file ends, as one transfer would.
    Whole,
    /// Pipes and stream sockets: a read may be short; a write goes on.
    Stream,
    /// Datagrams, terminals, other devices: one transfer is one message.
    Never,
}

/// How transfers on a descriptor may be cut.
pub(super) fn cut(fd: usize) -> Cut {
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

pub(super) fn managed(addr: usize, len: usize) -> bool {
    len > 0 && PAGER.ranges.first_overlap_unlocked(addr, addr.saturating_add(len)).is_some()
}

/// Whether a buffer ends where the program's addresses do. One that does not, such as one of -1
/// bytes, the kernel refuses before it moves anything. A piece of it would not be refused, and run
/// over all that lies behind the program's buffer.
pub(super) fn is_range(addr: usize, len: usize) -> bool {
    addr.checked_add(len).is_some_and(|end| end <= ADDRESS_END)
}

/// read, write and their kin: large transfers in pieces where that cannot be told from one.
pub(in crate::takeover) fn piecewise(
    t: &'static ThreadBlock,
    number: usize,
    a: Args,
) -> Option<Answer> {
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

/// A large transfer in pieces that can be held. `transfer` makes one: of so many bytes, after those
/// that are done. A piece that is not whole is the last one, and so is the first where nothing
/// `goes_on`.
pub(super) fn in_pieces(
    len: usize,
    goes_on: bool,
    transfer: impl Fn(usize, usize) -> isize,
) -> isize {
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
pub(in crate::takeover) fn vector(
    t: &'static ThreadBlock,
    array: usize,
    i: usize,
) -> Option<(usize, usize)> {
    let mut pair = [0u8; 16];
    let at = array.wrapping_add(i * 16);
    with_held(t, nr::READ, &[0, at, 16, 0, 0, 0], || read_program(at, &mut pair)).then(|| {
        let (words, _) = pair.as_chunks::<8>();
        (usize::from_le_bytes(words[0]), usize::from_le_bytes(words[1]))
    })
}

/// The bytes of all buffers in a program's array of `n`. `None`: it cannot be read, or one of them
/// is where no memory of the program's can be, which the kernel finds before it moves anything.
pub(in crate::takeover) fn vectors_bytes(
    t: &'static ThreadBlock,
    array: usize,
    n: usize,
) -> Option<usize> {
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

/// The call that makes the transfer of one buffer of a vector transfer.
fn single(number: usize, offset: usize) -> usize {
    let writes = matches!(number, nr::WRITEV | nr::PWRITEV | nr::PWRITEV2);
    match (has_offset(number, offset), writes) {
        (false, false) => nr::READ,
        (false, true) => nr::WRITE,
        (true, false) => nr::PREAD64,
        (true, true) => nr::PWRITE64,
    }
}

/// A large vector transfer, or one of `/proc/self/mem`, buffer by buffer, as the kernel makes that.
/// `None`: small, or one that must not be cut.
fn vector_pieces(t: &'static ThreadBlock, number: usize, a: Args) -> Option<isize> {
    let n = a[2];
    if n == 0 || n > VECTORS_MAX {
        return None;
    }
    let total = vectors_bytes(t, a[1], n)?;
    let flags = if matches!(number, nr::PREADV2 | nr::PWRITEV2) { a[5] } else { 0 };
    if total > isize::MAX as usize || flags != 0 {
        return None;
    }
    let single = single(number, a[3]);
    let own = own_memory::other_side(single, &[a[0], 0, total, a[3], 0, 0]);
    if total <= 2 * piece_bytes() && own.is_none() {
        return None;
    }
    let how = cut(a[0]);
    if how == Cut::Never {
        return None;
    }
    let writes = matches!(single, nr::WRITE | nr::PWRITE64);
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
        let one = [a[0], base, len, a[3].wrapping_add(done), 0, 0];
        let r = match own {
            Some(at) => own_memory::call(t, single, one, at + done),
            None => plain_pieces(t, single, one, how),
        };
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
pub(super) fn send_pieces(t: &'static ThreadBlock, a: Args) -> isize {
    in_pieces(a[2], true, |done, piece| {
        held_call(t, nr::SENDTO, [a[0], a[1] + done, piece, a[3], a[4], a[5]])
    })
}

/// Much randomness, in pieces. Where no signal comes the kernel gives as much as is asked for, and
/// not every program asks for the rest.
pub(super) fn random_pieces(t: &'static ThreadBlock, a: Args) -> isize {
    in_pieces(a[1], true, |done, piece| {
        held_call(t, nr::GETRANDOM, [a[0] + done, piece, a[2], a[3], a[4], a[5]])
    })
}

/// Cuts the length of a buffer that a call may fill in part to one that can be held. Returns the
/// arguments with it.
pub(super) fn clamp_length(number: usize, mut a: Args) -> Args {
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

#[cfg(test)]
mod tests {
    use super::super::tests::{block, connect};
    use super::*;
    use std::os::fd::AsRawFd;
    use uzswap::region::RangeFlags;
    use uzswap::sys::mem::{PROT_READ, PROT_WRITE, map_anonymous};

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
