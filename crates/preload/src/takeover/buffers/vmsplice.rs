//! vmsplice as a copy.
//!
//! The kernel would lend pages to the pipe, and a lent page is not pinned: once it had been taken
//! out, its frame would be used again before the pipe is read. So the call is made as a read or a
//! write that waits as vmsplice does, while dormant as well: paging may begin before the pipe is
//! read.
//!
//! ```text
//!  waits, reads   readv
//!  waits, writes  pwritev2 with RWF_NOWAIT; EAGAIN: a write of no more than any room takes
//!  does not wait  preadv2 or pwritev2 with RWF_NOWAIT; before Linux 6.5 the pipe is asked first
//! ```

use core::hint::black_box;

use uzswap::sys::{Errno, nr};

use super::super::thread::ThreadBlock;
use super::super::{Answer, Args, call};
use super::held_call;
use super::hold::with_own_words;
use super::pieces::{VECTORS_MAX, piece_bytes, piecewise, vector, vectors_bytes};

const F_GETPIPE_SZ: usize = 1032;

/// Makes the call: into the pipe, or out of it where the descriptor is its other end.
pub(super) fn call(t: &'static ThreadBlock, a: Args) -> Answer {
    /// MOVE, NONBLOCK, MORE, GIFT.
    const SPLICE_F_ALL: u32 = 0xf;
    if a[3] as u32 & !SPLICE_F_ALL != 0 {
        return Answer::Result(Errno::EINVAL.as_return());
    }
    // A file or socket would take the bytes, where the kernel refuses the call (EBADF) and the
    // program goes another way.
    let size = call!(nr::FCNTL, a[0], F_GETPIPE_SZ);
    if size < 0 {
        return Answer::Result(size);
    }
    const F_GETFL: usize = 3;
    const O_ACCMODE: isize = 3;
    const O_RDONLY: isize = 0;
    const SPLICE_F_NONBLOCK: usize = 2;
    let reads = call!(nr::FCNTL, a[0], F_GETFL) & O_ACCMODE == O_RDONLY;
    let waits = a[3] & SPLICE_F_NONBLOCK == 0;
    if reads && waits {
        let n = [a[0], a[1], a[2], 0, 0, 0];
        return piecewise(t, nr::READV, n)
            .unwrap_or_else(|| Answer::Result(held_call(t, nr::READV, n)));
    }
    // A write waits until all is in the pipe. This call waits for any room and fills it: programs
    // empty the pipe themselves before they give it more.
    let r = at_once(t, a, reads);
    let is = |e: Errno| r == e.as_return();
    Answer::Result(if waits && is(Errno::EAGAIN) {
        part(t, a, reads, PIPE_BUF)
    } else if waits && is(Errno::EOPNOTSUPP) {
        part(t, a, reads, pipe_room(a[0]))
    } else if is(Errno::EOPNOTSUPP) {
        if_ready(t, a, reads)
    } else {
        r
    })
}

/// A pipe with any room takes so many bytes without waiting.
const PIPE_BUF: usize = 4096;

/// Bytes that a pipe takes without waiting, once it has any room: all that it holds if it is empty.
fn pipe_room(fd: usize) -> usize {
    const FIONREAD: usize = 0x541b;
    let mut inside = 0i32;
    let r = with_own_words(|| {
        inside = black_box(-1);
        call!(nr::IOCTL, fd, FIONREAD, &raw mut inside)
    });
    let all = call!(nr::FCNTL, fd, F_GETPIPE_SZ);
    if r == 0 && inside == 0 { (all.max(0) as usize).max(PIPE_BUF) } else { PIPE_BUF }
}

/// [`call`] that does not wait for the pipe; EOPNOTSUPP from one that does not know how (before
/// Linux 6.5).
fn at_once(t: &'static ThreadBlock, a: Args, reads: bool) -> isize {
    const RWF_NOWAIT: usize = 8;
    let number = if reads { nr::PREADV2 } else { nr::PWRITEV2 };
    // No more is held than a piece: a pipe takes little at a time.
    let parts = || (0..a[2].min(VECTORS_MAX)).map_while(|i| vector(t, a[1], i));
    let bytes = parts().fold(0usize, |sum, (_, len)| sum.saturating_add(len));
    let first = parts().find(|(_, len)| *len > 0);
    let one;
    let (at, count) = match first {
        Some((base, len)) if bytes > 2 * piece_bytes() && a[2] <= VECTORS_MAX => {
            one = [base, len.min(piece_bytes())];
            (one.as_ptr() as usize, 1)
        }
        _ => (a[1], a[2]),
    };
    held_call(t, number, [a[0], at, count, usize::MAX, usize::MAX, RWF_NOWAIT])
}

/// [`at_once`] for a pipe that is asked first, and gets no more than it has room for.
fn if_ready(t: &'static ThreadBlock, a: Args, reads: bool) -> isize {
    const POLLIN: u64 = 1;
    const POLLOUT: u64 = 4;
    let mut asked = 0u64;
    let events = if reads { POLLIN } else { POLLOUT };
    let ready = with_own_words(|| {
        asked = black_box(a[0] as u32 as u64 | events << 32);
        call!(nr::POLL, &raw mut asked, 1, 0)
    });
    if ready <= 0 {
        return if ready == 0 { Errno::EAGAIN.as_return() } else { ready };
    }
    part(t, a, reads, PIPE_BUF)
}

/// Moves all buffers if they have no more than `most` bytes, or so much of the first that has any.
fn part(t: &'static ThreadBlock, a: Args, reads: bool, most: usize) -> isize {
    if a[2] <= VECTORS_MAX && vectors_bytes(t, a[1], a[2]).is_some_and(|bytes| bytes <= most) {
        let number = if reads { nr::READV } else { nr::WRITEV };
        return held_call(t, number, [a[0], a[1], a[2], 0, 0, 0]);
    }
    for i in 0..a[2] {
        let Some((base, len)) = vector(t, a[1], i) else { return Errno::EFAULT.as_return() };
        if len > 0 {
            let number = if reads { nr::READ } else { nr::WRITE };
            return held_call(t, number, [a[0], base, len.min(most), 0, 0, 0]);
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::super::tests::{block, connect};
    use super::*;
    use core::time::Duration;
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use uzswap::sys::PAGE_SIZE;

    #[test]
    fn a_pipe_takes_what_it_has_room_for_and_no_more_is_waited_for() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let bytes = std::vec![7u8; 1 << 20];
        let vector = [bytes.as_ptr() as usize, bytes.len()];
        let args = [writer.as_raw_fd() as usize, &raw const vector as usize, 1, 0, 0, 0];
        let (say, said) = std::sync::mpsc::channel();
        let made = move || {
            connect();
            let t = block();
            let Answer::Result(r) = call(t, args) else { panic!("it is made here") };
            t.give_back();
            say.send(r).unwrap();
        };
        // A call that waits for more than fits ends when the pipe does.
        let hears = || said.recv_timeout(Duration::from_secs(60)).unwrap_or(0);
        let first = std::thread::spawn(made.clone());
        let taken = hears();
        // The pipe is full: the next call waits until some of it is read.
        let second = std::thread::spawn(made);
        reader.read_exact(&mut [0; 2 * PAGE_SIZE]).unwrap();
        let more = hears();
        drop(reader);
        first.join().unwrap();
        second.join().unwrap();
        assert!((1..1 << 20).contains(&taken), "{taken} bytes");
        assert!((1..=2 * PAGE_SIZE as isize).contains(&more), "{more} bytes");
    }

    #[test]
    fn a_flag_that_the_kernel_does_not_know_is_refused_before_all_else() {
        let (t, (_reader, writer)) = (block(), std::io::pipe().unwrap());
        let vector = [c"text".as_ptr() as usize, 4];
        let with = |fd: usize, flags| {
            let Answer::Result(r) = call(t, [fd, &raw const vector as usize, 1, flags, 0, 0])
            else {
                panic!("it is made here")
            };
            r
        };
        connect();
        let fd = writer.as_raw_fd() as usize;
        for fd in [fd, usize::MAX] {
            assert_eq!(with(fd, 0x12), Errno::EINVAL.as_return());
        }
        assert_eq!(with(fd, 0xf), 4);
        t.give_back();
    }

    #[test]
    fn a_descriptor_that_is_no_pipe_gets_no_bytes() {
        connect();
        let (mut reader, writer) = std::os::unix::net::UnixStream::pair().unwrap();
        let (t, bytes) = (block(), [7u8; 10]);
        let vector = [bytes.as_ptr() as usize, bytes.len()];
        for flags in [0, 2] {
            let a = [writer.as_raw_fd() as usize, &raw const vector as usize, 1, flags, 0, 0];
            let Answer::Result(r) = call(t, a) else { panic!("it is made here") };
            assert_eq!(r, Errno::EBADF.as_return(), "flags {flags}");
        }
        drop(writer);
        assert_eq!(reader.read(&mut [0; 10]).unwrap(), 0, "the socket has taken bytes");
        t.give_back();
    }

    #[test]
    fn an_empty_pipe_takes_as_much_as_it_holds_and_another_a_page() {
        let (_reader, writer) = std::io::pipe().unwrap();
        let (t, fd) = (block(), writer.as_raw_fd() as usize);
        let bytes = std::vec![7u8; 1 << 20];
        let part = |lens: [usize; 2]| {
            let at = bytes.as_ptr() as usize;
            let vectors = [at, lens[0], at, lens[1]];
            let a = [fd, &raw const vectors as usize, 2, 0, 0, 0];
            super::part(t, a, false, pipe_room(fd))
        };
        assert!(pipe_room(fd) > 20_000);
        assert_eq!(part([10_000, 10_000]), 20_000);
        assert_eq!(pipe_room(fd), PIPE_BUF);
        assert_eq!(part([1000, 1000]), 2000);
        assert_eq!(part([0, 10_000]), PIPE_BUF as isize);
        t.give_back();
    }
}
