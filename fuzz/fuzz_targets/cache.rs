//! The fuzz target 'cache': its events are in `src/lib.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| uzswap_fuzz::cache(data));
