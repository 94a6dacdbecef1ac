//! The library that `uzswap run` loads into a program: all of it but how it is linked, which is
//! `cli/build.rs`.
//!
//! `patch` redirects the program's system calls, `calls` knows what each of them touches,
//! `takeover` acts on them, `boot` starts programs that have no loader for the library. The pager
//! itself is the core crate's.

mod boot;
pub mod calls;
pub mod patch;
pub mod takeover;

/// The loader calls this before any other constructor (`-z initfirst`). Without a control
/// descriptor in the environment it does nothing.
#[used]
#[allow(unsafe_code)]
// SAFETY: the section holds pointers to functions of this signature, which the loader calls once.
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: unsafe extern "C" fn(i32, *mut *mut u8, *mut *mut u8) = takeover::constructor;
