//! The preload library: all of it is the crate `uzswap-preload`, and `build.rs` says how it is
//! linked.
#![no_main]

extern crate uzswap_preload as _;
