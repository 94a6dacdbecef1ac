//! Memory that the program puts under a userfaultfd of its own: its faults are the program's to
//! serve, and a mapping has one userfaultfd.
//!
//! Such memory is brought in and taken off the pager before the kernel is asked, and is unmanaged
//! from then on: it counts with the process's other unmanaged memory. Where it cannot be taken off
//! the kernel's answer is what it would be for a mapping that has one already (EBUSY). UFFDIO_MOVE
//! takes pages away without a word, so their place is let go as well. Memory that UFFDIO_COPY reads
//! is held as any buffer is (`calls/ioctl.rs`).

use uzswap::region::{page_ceil, page_floor};
use uzswap::sys::nr;
use uzswap::sys::userfaultfd::{IOCTL_MOVE, IOCTL_REGISTER};

use super::thread::ThreadBlock;
use super::{Args, PAGER, buffers, runtime};

/// struct uffdio_register begins with the start and the length, struct uffdio_move with the
/// destination, the source and the length.
const LONGEST_BYTES: usize = 24;

/// Lets memory go that a call is about to put under a userfaultfd, or to move away from its place.
pub(super) fn note(t: &'static ThreadBlock, number: usize, args: &Args) {
    if number != nr::IOCTL {
        return;
    }
    let (words, range_at) = match args[1] as u32 as usize {
        IOCTL_REGISTER => (2, 0),
        IOCTL_MOVE => (3, 1),
        _ => return,
    };
    let mut bytes = [0u8; LONGEST_BYTES];
    if !buffers::copy_in(t, args[2], &mut bytes[..words * 8]) {
        return;
    }
    let word = |n: usize| usize::from_le_bytes(core::array::from_fn(|i| bytes[n * 8 + i]));
    let (start, len) = (word(range_at), word(range_at + 1));
    let Some(end) = start.checked_add(len) else { return };
    // The kernel refuses parts of pages.
    let is_whole = start == page_floor(start) && end == page_ceil(end) && len > 0;
    if is_whole && PAGER.ranges.first_overlap_unlocked(start, end).is_some() {
        runtime(t, move || PAGER.end_paging_of(start, end));
    }
}
