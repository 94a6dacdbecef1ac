//! `uzswap`, the program: its entry point, and nothing else.
//!
//! # Safety charter
//! The only unsafe thing is the name of the entry point, `main`, which nothing else in the program
//! has.
#![no_main]
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};

/// The entry point, instead of the one of the standard library, which would ignore SIGPIPE and open
/// descriptors 0 to 2: the program must find both as uzswap was given them.
// SAFETY: the C runtime calls `main` once, with these arguments; no other symbol of that name is
// linked.
#[unsafe(no_mangle)]
extern "C" fn main(_argc: c_int, _argv: *const *const c_char) -> c_int {
    uzswap_cli::os::fill_standard_descriptors();
    uzswap_cli::main_of_command()
}
