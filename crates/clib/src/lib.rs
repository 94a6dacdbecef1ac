//! The library for C: what `include/uzswap.h` declares, and documents.
//!
//! ```text
//!   uzswap.h ──> cache.rs  ──> uzswap::Cache          border.rs: pointers become references here,
//!           └──> managed.rs ──> run.rs ──> the run's socket           errors become numbers
//! ```
//!
//! Each function checks its pointers and hands on; `crates/core` decides, or the run. The header is
//! written by hand: `tests/header.rs` holds it against the library, and against it
//! `include/uzswap_self.h`, which finds the second half at run time.
//!
//! Nothing unwinds into C: the workspace's panics abort, and `extern "C"` aborts in any other
//! build.

mod border;
mod cache;
#[cfg(test)]
mod layout;
mod managed;
mod run;
