//! The allocator of this library: memory straight from the kernel, never libc's malloc.
//!
//! libc's heap is the program's: managed, possibly evicted, its locks possibly held. Memory that
//! uzswap itself allocates (patch tables, settings; never anything on the fault path) comes from
//! here.
//!
//! ```text
//!  <= 32 KiB   size class (16, 32, 48, 64, 96, 128, 192, ...): a free list, else cut from the current chunk
//!  larger      a mapping of its own, unmapped when freed
//! ```
//!
//! All of it lies where all memory of ours lies (`core/sys/place.rs`), and in no core dump: the
//! pager's own state, with the contents for which it stands, is allocated here, too.
//!
//! Chunks are not given back; there is little in them. Lock order: `HEAP` is the innermost lock,
//! nothing is called under it. A signal handler that allocates on top of an allocation would wait
//! for itself: handlers do not allocate, and hooks allocate only with signals blocked.
//!
//! Fork takes no lock here: all allocations are made under the patcher's lock (patch tables) or the
//! pager's (switching paging on), and fork holds both. If it took `HEAP` before the pager's lock,
//! it could wait in a circle with a thread that switches paging on.
//!
//! # Safety charter
//! Blocks of one class have one size; a free block's first word links to the next. Chunk memory is
//! cut once and belongs to exactly one block.
#![allow(unsafe_code)]

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicUsize, Ordering};

use uzswap::sys::PAGE_SIZE;
use uzswap::sys::mem::{PROT_READ, PROT_WRITE, map_anonymous, unmap_anonymous};
use uzswap::sys::sync::Mutex;

const LARGEST_CLASS_BYTES: usize = 32 << 10;
const CHUNK_BYTES: usize = 256 << 10;
/// 16, then two classes for each doubling: 2^k and 3 * 2^(k-1).
const CLASSES: usize = 22;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

static MAPPED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Address space that the allocator holds, in bytes.
pub fn mapped_bytes() -> usize {
    MAPPED_BYTES.load(Ordering::Relaxed)
}

struct Heap {
    free: [*mut Free; CLASSES],
    chunk: usize,
    chunk_end: usize,
}

struct Free {
    next: *mut Free,
}

// SAFETY: the pointers are to memory that only the heap owns.
unsafe impl Send for Heap {}

static HEAP: Mutex<Heap> = Mutex::new(Heap { free: [null_mut(); CLASSES], chunk: 0, chunk_end: 0 });

/// The class for a block: its index and size. 0 is 16, 1 is 32, then 48, 64, 96, 128, ...
fn class_of(bytes: usize) -> (usize, usize) {
    if bytes <= 16 {
        return (0, 16);
    }
    if bytes <= 32 {
        return (1, 32);
    }
    let high = (bytes - 1).ilog2() as usize; // 2^high < bytes <= 2^(high+1)
    let middle = 3 << (high - 1);
    if bytes <= middle { (2 * high - 8, middle) } else { (2 * high - 7, 2 << high) }
}

/// The size that a layout is served with, or `None` for a mapping of its own.
fn class_for(layout: Layout) -> Option<(usize, usize)> {
    let bytes = if layout.align() > 16 {
        // Powers of two are cut at their own alignment.
        layout.size().max(layout.align()).next_power_of_two()
    } else {
        layout.size()
    };
    (bytes <= LARGEST_CLASS_BYTES && layout.align() <= PAGE_SIZE).then(|| class_of(bytes))
}

fn map(len: usize) -> usize {
    match map_anonymous(len, PROT_READ | PROT_WRITE) {
        Ok(at) => {
            MAPPED_BYTES.fetch_add(len, Ordering::Relaxed);
            at
        }
        Err(_) => 0,
    }
}

/// # Safety
/// The range must be the caller's, mapped by `map`.
unsafe fn unmap(at: usize, len: usize) {
    if len > 0 {
        // SAFETY: the caller's.
        unsafe { unmap_anonymous(at, len) };
        MAPPED_BYTES.fetch_sub(len, Ordering::Relaxed);
    }
}

impl Heap {
    fn take(&mut self, class: usize, bytes: usize) -> *mut u8 {
        let block = self.free[class];
        if !block.is_null() {
            // SAFETY: a block in the list is free and begins with its link.
            self.free[class] = unsafe { (*block).next };
            return block.cast();
        }
        let align = (1usize << bytes.trailing_zeros()).min(PAGE_SIZE);
        let mut at = self.chunk.next_multiple_of(align);
        if self.chunk == 0 || at + bytes > self.chunk_end {
            let chunk = map(CHUNK_BYTES);
            if chunk == 0 {
                return null_mut();
            }
            (at, self.chunk_end) = (chunk, chunk + CHUNK_BYTES);
        }
        self.chunk = at + bytes;
        at as *mut u8
    }

    fn give(&mut self, class: usize, block: *mut u8) {
        let block: *mut Free = block.cast();
        // SAFETY: the block is at least 16 bytes, aligned to 16, and belongs to nobody now.
        unsafe { (*block).next = self.free[class] };
        self.free[class] = block;
    }
}

struct Allocator;

/// A mapping's length for a large layout.
fn large_bytes(size: usize) -> usize {
    size.next_multiple_of(PAGE_SIZE)
}

fn map_large(layout: Layout) -> *mut u8 {
    let len = large_bytes(layout.size().max(1));
    if layout.align() <= PAGE_SIZE {
        return map(len) as *mut u8;
    }
    let Some(wide) = len.checked_add(layout.align()) else { return null_mut() };
    let start = map(wide);
    if start == 0 {
        return null_mut();
    }
    let at = start.next_multiple_of(layout.align());
    // SAFETY: the edges of the mapping just made.
    unsafe {
        unmap(start, at - start);
        unmap(at + len, start + wide - (at + len));
    }
    at as *mut u8
}

// SAFETY: blocks are distinct, large enough and aligned as asked (see `class_for`); they stay until
// given back.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match class_for(layout) {
            Some((class, bytes)) => HEAP.lock().take(class, bytes),
            None => map_large(layout),
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match class_for(layout) {
            Some((class, bytes)) => {
                let block = HEAP.lock().take(class, bytes);
                if !block.is_null() {
                    // SAFETY: the block has that many bytes.
                    unsafe { block.write_bytes(0, layout.size()) };
                }
                block
            }
            None => map_large(layout), // fresh mappings are zero
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match class_for(layout) {
            Some((class, _)) => HEAP.lock().give(class, block),
            // SAFETY: the caller gives back what `map_large` mapped for this layout.
            None => unsafe { unmap(block as usize, large_bytes(layout.size().max(1))) },
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller promises that the new size is valid for this alignment.
        let new_layout = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        match (class_for(layout), class_for(new_layout)) {
            (Some((old, _)), Some((new, _))) if old == new => block,
            // The new size takes as many pages as the old one.
            (None, None) if large_bytes(layout.size()) == large_bytes(new_size) => block,
            // mremap would move the block to a place that the kernel chooses.
            _ => {
                // SAFETY: an allocation, a copy of what both have, and giving back the old block.
                unsafe {
                    let new = self.alloc(new_layout);
                    if !new.is_null() {
                        new.copy_from_nonoverlapping(block, layout.size().min(new_size));
                        self.dealloc(block, layout);
                    }
                    new
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn classes_grow_and_hold_what_they_say() {
        let mut last = (0, 16);
        for bytes in 1..=LARGEST_CLASS_BYTES {
            let (class, size) = class_of(bytes);
            assert!(size >= bytes && class < CLASSES);
            assert!(
                (class, size) == last
                    || (class == last.0 + 1 && size > last.1 && bytes == last.1 + 1)
            );
            assert!(size - bytes < size / 2 || size <= 32);
            last = (class, size);
        }
        assert_eq!(last.0, CLASSES - 1);
    }

    /// Random blocks with random alignments, filled and checked, from several threads.
    #[test]
    fn blocks_do_not_overlap_and_are_aligned() {
        let work = |seed: u64| {
            let mut x = seed;
            let mut next = move || {
                x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (x >> 33) as usize
            };
            let mut live: Vec<(*mut u8, Layout, u8)> = Vec::new();
            for round in 0..20_000 {
                if live.len() > 200 || (next() % 3 == 0 && !live.is_empty()) {
                    let i = next() % live.len();
                    let (p, l, fill) = live.swap_remove(i);
                    // SAFETY: the block is live and l.size() bytes long.
                    let bytes = unsafe { core::slice::from_raw_parts(p, l.size()) };
                    assert!(bytes.iter().all(|&b| b == fill));
                    if next() % 2 == 0 {
                        let size = 1 + next() % 100_000;
                        // SAFETY: as above; the new block is checked before use.
                        unsafe {
                            let q = ALLOCATOR.realloc(p, l, size);
                            let kept = core::slice::from_raw_parts(q, size.min(l.size()));
                            assert!(kept.iter().all(|&b| b == fill));
                            q.write_bytes(fill, size);
                            live.push((q, Layout::from_size_align(size, l.align()).unwrap(), fill));
                        }
                    } else {
                        // SAFETY: live, and forgotten now.
                        unsafe { ALLOCATOR.dealloc(p, l) };
                    }
                    continue;
                }
                let size = match next() % 4 {
                    0 => 1 + next() % 64,
                    1 => 1 + next() % 4096,
                    2 => 1 + next() % 40_000,
                    _ => 1 + next() % 200_000,
                };
                let layout = Layout::from_size_align(size, 1 << (next() % 16)).unwrap();
                let zeroed = next() % 2 == 0;
                // SAFETY: sizes are not 0.
                let p = unsafe {
                    if zeroed { ALLOCATOR.alloc_zeroed(layout) } else { ALLOCATOR.alloc(layout) }
                };
                assert!(!p.is_null() && (p as usize).is_multiple_of(layout.align()));
                // SAFETY: a block of that size.
                unsafe {
                    if zeroed {
                        assert!(core::slice::from_raw_parts(p, size).iter().all(|&b| b == 0));
                    }
                    p.write_bytes(round as u8, size);
                }
                live.push((p, layout, round as u8));
            }
            for (p, l, _) in live {
                // SAFETY: live, and forgotten now.
                unsafe { ALLOCATOR.dealloc(p, l) };
            }
        };
        let threads: Vec<_> = (1..5).map(|s| std::thread::spawn(move || work(s))).collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert!(mapped_bytes() > 0);
    }
}
