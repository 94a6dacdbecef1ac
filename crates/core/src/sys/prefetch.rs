//! Asking the processor for memory ahead of time.
//!
//! # Safety charter
//! A prefetch changes nothing and cannot fault; the instruction is part of every x86-64.
#![allow(unsafe_code)]

use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

use super::PAGE_SIZE;

const LINE_BYTES: usize = 64;

/// Asks for the lines of a page that is about to be read.
#[inline]
pub fn page(page: &[u8; PAGE_SIZE]) {
    for line in page.as_chunks::<LINE_BYTES>().0 {
        // SAFETY: charter.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
}
