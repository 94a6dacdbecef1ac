//! The library that `uzswap run` loads into a program.
