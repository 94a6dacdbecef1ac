//! Where our own memory lies: in a part of the address space of its own, far below where the kernel
//! puts the program's.
//!
//! ```text
//!   ... |  ours, upwards -->  |         64 GiB         |  <-- the kernel's choice, downwards | libraries | stack
//! ```
//!
//! The kernel puts a mapping next to the program's, or in a hole between them. But a program may
//! count on a hole that it made: it unmaps something, or has it not inherited (`MADV_DONTFORK`),
//! and maps over it (`MAP_FIXED`). Were the hole ours meanwhile, since a pool grows at any time,
//! our data in it would be gone.
//!
//! # Safety charter
//! Nothing is replaced: a place that is taken is passed over. Where all are, the kernel chooses.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicUsize, Ordering};

use super::mem::{MAP_ANONYMOUS, MAP_FIXED_NOREPLACE, MAP_NORESERVE, MAP_PRIVATE, PROT_NONE};
use super::{Errno, HUGE_BYTES, PAGE_SIZE, Result, nr};

/// How far below the library our part begins, and how large it is.
const BELOW_BYTES: usize = 192 << 30;
const PART_BYTES: usize = 128 << 30;
/// Bytes passed over where something lies in the way, and tries in all.
const STEP_BYTES: usize = 4 << 30;
const STEPS: usize = PART_BYTES / STEP_BYTES;

/// Bytes of our part that have been given out or passed over; it begins anew when it is all used.
static GIVEN_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Maps at least `len` bytes of private anonymous zero memory. The address is the caller's to
/// unmap.
pub fn map(len: usize, prot: usize) -> Result<usize> {
    let len = len.next_multiple_of(PAGE_SIZE);
    let map_at = |addr: usize, flags: usize| {
        let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags;
        // SAFETY: no mapping is replaced.
        unsafe { uz_syscall!(nr::MMAP, addr, len, prot, flags, usize::MAX, 0) }
    };
    let part = start();
    for _ in 0..STEPS {
        let at = GIVEN_BYTES.fetch_add(len, Ordering::Relaxed) % PART_BYTES;
        match map_at(part + at, MAP_FIXED_NOREPLACE) {
            Err(Errno::EEXIST) => GIVEN_BYTES.fetch_add(STEP_BYTES, Ordering::Relaxed),
            Err(_) => break,
            // Kernels before 4.17 take the address for a hint.
            Ok(addr) => return Ok(addr),
        };
    }
    map_at(0, 0)
}

/// Moves a mapping that the kernel made for us, of `len` bytes, into our part. Returns its new
/// address.
pub fn take_in(addr: usize, len: usize) -> usize {
    const MREMAP_MAYMOVE: usize = 1;
    const MREMAP_FIXED: usize = 2;
    let Ok(place) = map(len, PROT_NONE) else { return addr };
    // SAFETY: what is replaced was mapped a moment ago and is nobody's.
    match unsafe { uz_syscall!(nr::MREMAP, addr, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, place) } {
        Ok(moved) => moved,
        Err(_) => {
            // SAFETY: as above.
            let _ = unsafe { uz_syscall!(nr::MUNMAP, place, len) };
            addr
        }
    }
}

/// Where our part begins.
fn start() -> usize {
    let here = (&raw const GIVEN_BYTES).addr();
    here.saturating_sub(BELOW_BYTES).max(PAGE_SIZE).next_multiple_of(HUGE_BYTES)
}

#[cfg(test)]
pub(super) fn is_here(addr: usize) -> bool {
    (start()..start() + PART_BYTES).contains(&addr)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::mem::Mapping;

    #[test]
    fn a_hole_that_the_program_made_stays_one() {
        const LEN: usize = 16 << 20;
        // SAFETY: a new mapping, unmapped as it was mapped; nobody has its address.
        let hole = unsafe {
            let hole = uz_syscall!(
                nr::MMAP,
                0,
                LEN,
                PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS,
                usize::MAX,
                0
            )
            .unwrap();
            uz_syscall!(nr::MUNMAP, hole, LEN).unwrap();
            hole
        };
        let ours: Vec<_> = [PAGE_SIZE, LEN / 4, LEN].map(|len| Mapping::new(len).unwrap()).into();
        for m in &ours {
            assert!(is_here(m.addr()), "{:#x}", m.addr());
            assert!(m.addr() >= hole + LEN || m.addr() + m.len() <= hole);
        }
    }

    #[test]
    fn what_lies_in_the_way_stays() {
        let mut first = Mapping::new(PAGE_SIZE).unwrap();
        first.as_mut_slice().fill(7);
        // Sets the state as if all had been given out once.
        GIVEN_BYTES.store(first.addr() - start(), Ordering::Relaxed);
        let second = Mapping::new(PAGE_SIZE).unwrap();
        assert_ne!(second.addr(), first.addr());
        assert!(
            first.as_slice().iter().all(|&b| b == 7) && second.as_slice().iter().all(|&b| b == 0)
        );
    }
}
