//! The library that `uzswap run` loads into a program.

pub mod calls;
pub mod patch;
