//! The preload library: all of it is the crate `uzswap-preload`, and `build.rs` says how it is
//! linked.
//!
//! # Safety charter
//! One symbol for the dynamic loader, in the library of `uzswap bench contention` only. Its caller
//! finds it by its name, and vouches for the memory that it names.
#![no_main]
#![allow(unsafe_code)]

extern crate uzswap_preload as _;

/// Writes this process's counts of locks and claims to `words`. Says how many words that are, or 0
/// where there is no room for them.
///
/// # Safety
/// `words` points to room for as many words as `room` says.
#[cfg(feature = "contention")]
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uzswap_contention(words: *mut u64, room: usize) -> usize {
    use uzswap::sys::contention::{WORDS, read};

    if room < WORDS {
        return 0;
    }
    // SAFETY: the caller's memory, as long as that.
    read(unsafe { &mut *words.cast::<[u64; WORDS]>() });
    WORDS
}
