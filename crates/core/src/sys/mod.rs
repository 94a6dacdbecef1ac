//! The kernel, and all unsafe code of this crate.
//!
//! Everything above this module is safe Rust: it sees mappings as slices, the program's pages as addresses
//! with a length, and the kernel's answers as outcomes. No errno travels further up than it must, and
//! nothing here calls libc (see `syscall.rs` for why).
#![allow(unsafe_code)]

#[macro_use]
mod syscall;

pub mod mem;
pub mod nr;
pub mod sync;

pub use syscall::{Errno, Result, check, syscall};

/// Bytes in a page. uzswap runs on x86-64 only, where this is fixed.
pub const PAGE_SIZE: usize = 4096;
/// log2 of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 12;
