//! The fuzz target 'round_trip': its events are in `src/lib.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| uzswap_fuzz::round_trip(data));
