//! The counts that the library loaded into this process has of its locks, if it counts.
//!
//! # Safety charter
//! The loader finds the function by its name; no other library has one of that name, and ours says
//! of it what it writes.
#![allow(unsafe_code)]

use std::ffi::c_void;

use uzswap::sys::contention::{Counts, WORDS};

/// The library's counts; `None`: there is no library in this process, or it counts nothing.
pub fn counts() -> Option<Counts> {
    type Read = unsafe extern "C" fn(*mut u64, usize) -> usize;
    // SAFETY: the name is a constant.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"uzswap_contention".as_ptr()) };
    if found.is_null() {
        return None;
    }
    // SAFETY: the library's function of this name has this type.
    let read: Read = unsafe { std::mem::transmute::<*mut c_void, Read>(found) };
    let mut words = vec![0u64; WORDS];
    // SAFETY: there is room for as many words as are said.
    let count = unsafe { read(words.as_mut_ptr(), words.len()) };
    words.truncate(count);
    Counts::of(words)
}
