//! The cost of a clearing to the program that is watched.
//!
//! After it the processor marks each page anew, at its next touch: a walk of the page tables, and a
//! write into them. On a virtual machine that takes a quarter of a microsecond, ten times as long
//! as the touch, and a program that touches pages at random does little else for a while. By the
//! clock it would seem slower than it is, and its touches rarer. So the time that the marks took is
//! taken off.

use std::thread;
use std::time::Instant;

use memmap2::{Advice, MmapMut};

use super::look;
use crate::pages::PAGE_BYTES;
use crate::statistics::median;

/// 64 MiB: more entries of page tables than the processor's nearest cache holds.
const PAGES: usize = 16_384;
/// From one page to the next that is touched, so that no entry is beside the one before. Odd: all
/// pages come once.
const STRIDE: usize = 6151;
const PASSES: usize = 7;

/// Nanoseconds for one mark, as measured here; 0 where that cannot be done.
pub fn mark_ns() -> f64 {
    let Ok(mut memory) = MmapMut::map_anon(PAGES * PAGE_BYTES) else { return 0.0 };
    // A huge page would be one mark.
    let _ = memory.advise(Advice::NoHugePage);
    of_passes(|| pass(&mut memory))
}

/// The median of some passes; 0 if there is none.
fn of_passes(mut pass: impl FnMut() -> Option<f64>) -> f64 {
    median((0..PASSES).map_while(|_| pass())).map_or(0.0, |ns| ns.max(0.0))
}

/// Nanoseconds that the kernel takes for the first touch of a page, on which uzswap spends its own;
/// and for that of a page which comes with 2 MiB.
pub fn first_ns() -> [f64; 2] {
    [Advice::NoHugePage, Advice::HugePage].map(|advice| {
        of_passes(|| {
            let mut memory = MmapMut::map_anon(PAGES * PAGE_BYTES).ok()?;
            let _ = memory.advise(advice);
            // In order, as memory is filled: reading it first would be a second fault.
            let [first, again] = [fill(&mut memory), fill(&mut memory)];
            Some((first - again) / PAGES as f64)
        })
    })
}

/// How much longer touching a page takes after a clearing, by another thread, as it is for the
/// program.
fn pass(memory: &mut MmapMut) -> Option<f64> {
    touch(memory);
    let own = std::process::id();
    thread::scope(|scope| {
        let clears = thread::Builder::new().spawn_scoped(scope, || look::clear(own)).ok()?;
        clears.join().ok()?.ok()
    })?;
    let [marked, again] = [touch(memory), touch(memory)];
    Some((marked - again) / PAGES as f64)
}

/// Writes to every page in order. Returns the nanoseconds.
fn fill(memory: &mut MmapMut) -> f64 {
    let started = Instant::now();
    (0..PAGES).for_each(|page| memory[page * PAGE_BYTES] = std::hint::black_box(1));
    started.elapsed().as_nanos() as f64
}

/// Reads and writes every page, none beside the one before. Returns the nanoseconds.
fn touch(memory: &mut MmapMut) -> f64 {
    let started = Instant::now();
    for i in 0..PAGES {
        let byte = &mut memory[i * STRIDE % PAGES * PAGE_BYTES];
        *byte = std::hint::black_box(byte.wrapping_add(1));
    }
    started.elapsed().as_nanos() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_marked_once() {
        let mut memory = MmapMut::map_anon(PAGES * PAGE_BYTES).unwrap();
        touch(&mut memory);
        assert!(memory.chunks_exact(PAGE_BYTES).all(|page| page[0] == 1));
        // How long that takes is the machine's business; that it can be measured is not.
        assert!(pass(&mut memory).is_some_and(f64::is_finite) && mark_ns() >= 0.0);
    }
}
