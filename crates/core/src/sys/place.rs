//! Where our own memory lies: in a part of the address space of its own, far below where the kernel
//! puts the program's.
//!
//! ```text
//!   ... |  ours, upwards -->  |         64 GiB         |  <-- the kernel's choice, downwards | libraries | stack
//! ```
//!
//! Pools that do not fit there, on large machines, go on in a second part, terabytes below. The
//! first lies near because a few programs (those of ThreadSanitizer) end where they find a mapping
//! far from their own.
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

/// A part of the address space that is ours.
struct Part {
    /// How far below the library it begins.
    below_bytes: usize,
    bytes: usize,
    /// Bytes of it that have been given out or passed over; it begins anew when it is all used.
    given_bytes: AtomicUsize,
}

static PARTS: [Part; 2] = [
    Part { below_bytes: 192 << 30, bytes: 128 << 30, given_bytes: AtomicUsize::new(0) },
    Part { below_bytes: 20 << 40, bytes: 16 << 40, given_bytes: AtomicUsize::new(0) },
];
/// Tries in each part. Where something lies in the way, that share of the part is passed over.
const STEPS: usize = 32;

/// Maps at least `len` bytes of private anonymous zero memory. The address is the caller's to
/// unmap.
pub fn map(len: usize, prot: usize) -> Result<usize> {
    let len = len.next_multiple_of(PAGE_SIZE);
    match PARTS.iter().find_map(|part| part.map(len, prot)) {
        Some(addr) => Ok(addr),
        None => map_at(0, len, prot, 0),
    }
}

fn map_at(addr: usize, len: usize, prot: usize, flags: usize) -> Result<usize> {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags;
    // SAFETY: no mapping is replaced.
    unsafe { uz_syscall!(nr::MMAP, addr, len, prot, flags, usize::MAX, 0) }
}

impl Part {
    /// Maps whole pages in the part, if it has room for them.
    fn map(&self, len: usize, prot: usize) -> Option<usize> {
        if len > self.bytes {
            return None;
        }
        let start = self.start();
        for _ in 0..STEPS {
            let at = self.given_bytes.fetch_add(len, Ordering::Relaxed) % self.bytes;
            match map_at(start + at, len, prot, MAP_FIXED_NOREPLACE) {
                Err(Errno::EEXIST) => {
                    self.given_bytes.fetch_add(self.bytes / STEPS, Ordering::Relaxed)
                }
                Err(_) => return None,
                // Kernels before 4.17 take the address for a hint.
                Ok(addr) => return Some(addr),
            };
        }
        None
    }

    fn start(&self) -> usize {
        let here = (&raw const PARTS).addr();
        here.saturating_sub(self.below_bytes).max(PAGE_SIZE).next_multiple_of(HUGE_BYTES)
    }

    #[cfg(test)]
    fn has(&self, addr: usize) -> bool {
        (self.start()..self.start() + self.bytes).contains(&addr)
    }
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

#[cfg(test)]
pub(super) fn is_here(addr: usize) -> bool {
    PARTS.iter().any(|part| part.has(addr))
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
        let part = &PARTS[0];
        part.given_bytes.store(first.addr() - part.start(), Ordering::Relaxed);
        let second = Mapping::new(PAGE_SIZE).unwrap();
        assert_ne!(second.addr(), first.addr());
        assert!(
            first.as_slice().iter().all(|&b| b == 7) && second.as_slice().iter().all(|&b| b == 0)
        );
    }

    #[test]
    fn what_does_not_fit_near_the_library_goes_far_below() {
        let len = PARTS[0].bytes + HUGE_BYTES;
        let addr = map(len, PROT_NONE).unwrap();
        assert!(PARTS[1].has(addr) && PARTS[1].has(addr + len - 1), "{addr:#x}");
        assert!(addr + len < PARTS[0].start());
        // SAFETY: mapped a moment ago, and nobody has the address.
        unsafe { uz_syscall!(nr::MUNMAP, addr, len) }.unwrap();
    }
}
