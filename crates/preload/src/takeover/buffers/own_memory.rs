//! Transfers of `/proc/self/mem`: the other side is this process's memory, too, and must be there.
//! Those of vectors come here buffer by buffer (`pieces.rs`).
//!
//! pread and pwrite say where it is. read and write begin at the descriptor's position, for which
//! the kernel would have to be asked before each of them. So the hook looks at lseek, and asks only
//! for descriptors by which the program has once sought its own memory.

use core::hint::black_box;
use core::sync::atomic::{AtomicU64, Ordering};

use uzswap::sys::text::{DIGITS_MOST, decimal, join};
use uzswap::sys::{check, nr};

use super::super::thread::ThreadBlock;
use super::super::{Args, call};
use super::held_call;
use super::hold::{Holder, with_own_words};
use super::pieces::{in_pieces, is_range, managed};
use crate::calls::walk::{Kind, Visit};

const SEEK_SET: usize = 0;
const SEEK_CUR: usize = 1;

/// Descriptors by which the program has sought its own memory, a bit for each number. One of them
/// may be another file's by now.
static SOUGHT: AtomicU64 = AtomicU64::new(0);

/// The bit of a descriptor: the last one is that of all higher numbers.
fn bit(fd: usize) -> u64 {
    1 << (fd as u32).min(u64::BITS - 1)
}

/// Notes a call of lseek that may seek managed memory.
pub(in crate::takeover) fn note_seek(a: &Args) {
    let is_absolute = matches!(a[2] as u32 as usize, SEEK_SET | SEEK_CUR);
    if is_absolute && managed(a[1], 1) && is_own_memory(a[0]) {
        SOUGHT.fetch_or(bit(a[0]), Ordering::Relaxed);
    }
}

/// The address of the other side of a transfer, if that is managed memory.
pub(super) fn other_side(number: usize, a: &Args) -> Option<usize> {
    let at = match number {
        nr::PREAD64 | nr::PWRITE64 => a[3],
        _ if SOUGHT.load(Ordering::Relaxed) & bit(a[0]) == 0 => return None,
        _ => check(call!(nr::LSEEK, a[0], 0, SEEK_CUR)).ok()?,
    };
    (managed(at, a[2]) && is_range(a[1], a[2]) && is_own_memory(a[0])).then_some(at)
}

/// Whether a descriptor is this process's own memory (/proc/self/mem).
fn is_own_memory(fd: usize) -> bool {
    let mut path = [0u8; 40];
    let mut digits = [0u8; DIGITS_MOST];
    join(&[b"/proc/self/fd/", decimal(u64::from(fd as u32), &mut digits)], &mut path);
    let mut target = [0u8; 64];
    let r = with_own_words(|| {
        (path, target) = black_box((path, [0; 64]));
        call!(nr::READLINK, path.as_ptr(), target.as_mut_ptr(), target.len())
    });
    r > 0 && target[..r as usize].starts_with(b"/proc/") && target[..r as usize].ends_with(b"/mem")
}

/// A transfer of which the other side is `at`: in pieces, since both sides are held, and as long as
/// the kernel's own would be.
pub(super) fn call(t: &'static ThreadBlock, number: usize, a: Args, at: usize) -> isize {
    let here = 0u8;
    in_pieces(a[2], true, |done, piece| {
        let mark = t.holds().mark();
        Holder { t, sp: &raw const here as usize }.hold(at + done, piece, Kind::Out);
        // read and write have no offset: the position goes on by itself.
        let offset = a[3].wrapping_add(done);
        let r = held_call(t, number, [a[0], a[1] + done, piece, offset, a[4], a[5]]);
        t.holds().pop_to(mark);
        r
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::PAGER;
    use super::super::pieces::piece_bytes;
    use super::super::tests::{block, connect};
    use super::*;
    use std::os::fd::AsRawFd;
    use uzswap::region::RangeFlags;
    use uzswap::sys::PAGE_SIZE;
    use uzswap::sys::mem::{PROT_READ, PROT_WRITE, map_anonymous};

    #[test]
    fn the_position_of_a_descriptor_of_the_own_memory_is_asked_for_once_it_was_sought() {
        let at = map_anonymous(PAGE_SIZE, PROT_READ | PROT_WRITE).unwrap();
        PAGER.note_mapped(&mut PAGER.enter(), at, at + PAGE_SIZE, 3, RangeFlags::NONE);
        let [memory, other] = ["/proc/self/mem", "/dev/zero"]
            .map(|path| std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap());
        let fd = memory.as_raw_fd() as usize;
        let mut bytes = [0u8; 100];
        let buffer = bytes.as_mut_ptr() as usize;
        let side = |number, offset| other_side(number, &[fd, buffer, 100, offset, 0, 0]);
        let seek = |to: usize| {
            note_seek(&[fd, to, SEEK_SET, 0, 0, 0]);
            assert_eq!(call!(nr::LSEEK, fd, to, SEEK_SET), to as isize);
        };
        assert_eq!([nr::READ, nr::WRITE].map(|n| side(n, 0)), [None; 2]);
        seek(at + 8);
        assert_eq!([nr::READ, nr::WRITE].map(|n| side(n, 0)), [Some(at + 8); 2]);
        assert_eq!([nr::PREAD64, nr::PWRITE64].map(|n| side(n, at)), [Some(at); 2]);
        assert_eq!(side(nr::PREAD64, buffer), None, "it is not managed");
        // As it goes on, and at another place.
        assert_eq!(call!(nr::READ, fd, buffer, 100), 100);
        assert_eq!(side(nr::READ, 0), Some(at + 108));
        seek(buffer);
        assert_eq!(side(nr::READ, 0), None);
        let a = [other.as_raw_fd() as usize, at + 8, SEEK_SET, 0, 0, 0];
        note_seek(&a);
        assert_eq!(other_side(nr::READ, &[a[0], buffer, 100, 0, 0, 0]), None);
        PAGER.note_unmapped(&mut PAGER.enter(), at, at + PAGE_SIZE);
    }

    #[test]
    fn a_transfer_of_more_than_a_piece_is_as_long_as_the_kernels() {
        connect();
        let (t, len) = (block(), 3 * piece_bytes() + 5 * PAGE_SIZE);
        let at = map_anonymous(len, PROT_READ | PROT_WRITE).unwrap();
        PAGER.note_mapped(&mut PAGER.enter(), at, at + len, 3, RangeFlags::NONE);
        let path = "/proc/self/mem";
        let memory = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        let fd = memory.as_raw_fd() as usize;
        let bytes: std::vec::Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
        let mut back = std::vec![0u8; len];
        let written = call(t, nr::PWRITE64, [fd, bytes.as_ptr() as usize, len, at, 0, 0], at);
        assert_eq!(written, len as isize);
        assert_eq!(call!(nr::LSEEK, fd, at, SEEK_SET), at as isize);
        let read = call(t, nr::READ, [fd, back.as_mut_ptr() as usize, len, 0, 0, 0], at);
        assert_eq!(read, len as isize);
        assert!(bytes == back);
        // Up to where memory ends.
        assert_eq!(call!(nr::MUNMAP, at + len - PAGE_SIZE, PAGE_SIZE), 0);
        let read = call(t, nr::PREAD64, [fd, back.as_mut_ptr() as usize, len, at, 0, 0], at);
        assert_eq!(read, (len - PAGE_SIZE) as isize);
        PAGER.note_unmapped(&mut PAGER.enter(), at, at + len);
        t.give_back();
    }
}
