//! The environment that this process was given, entry by entry.
//!
//! The standard library shows variables, `NAME=VALUE`. An exec may give words that are none,
//! without a `=` or with nothing before it, and a program that is started by us is to have those,
//! too.
#![allow(unsafe_code)]

use std::ffi::{CStr, OsString, c_char};
use std::os::unix::ffi::OsStringExt;

unsafe extern "C" {
    /// An array that ends with a null pointer; no array at all where all variables were cleared.
    static environ: *const *const c_char;
}

/// All entries, in their order.
pub fn entries() -> Vec<OsString> {
    let mut entries = Vec::new();
    // SAFETY: nothing in the command changes its environment, so the array and its strings are what
    // the C library found at the start: strings that end, and a null pointer behind them.
    unsafe {
        let mut next = environ;
        while !next.is_null() && !(*next).is_null() {
            entries.push(OsString::from_vec(CStr::from_ptr(*next).to_bytes().to_vec()));
            next = next.add(1);
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_variables_are_among_the_entries_in_their_order() {
        let entries = entries();
        let mut left = entries.iter();
        for (mut name, value) in std::env::vars_os() {
            name.push("=");
            name.push(value);
            assert!(left.any(|entry| *entry == name), "no {name:?} in {entries:?}");
        }
    }
}
