//! This process's counts of locks and claims, for the program in it that asks: only in a library
//! that is built for `uzswap bench contention`.
//!
//! # Safety charter
//! One symbol for the dynamic loader, which the caller finds by its name, and a copy into memory
//! for which the caller vouches.
#![allow(unsafe_code)]

use uzswap::sys::contention::{WORDS, read};

/// Writes all counts to `words`. Says how many words that are, or 0 where there is no room for
/// them.
///
/// # Safety
/// `words` points to room for as many words as `room` says.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uzswap_contention(words: *mut u64, room: usize) -> usize {
    if room < WORDS {
        return 0;
    }
    // SAFETY: the caller's memory, as long as that.
    read(unsafe { &mut *words.cast::<[u64; WORDS]>() });
    WORDS
}
