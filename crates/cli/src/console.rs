//! Messages of the command, beside its results.

use std::io::{self, Write};

use crate::os;

/// Writes one line to stderr. An error is ignored: perhaps nobody reads stderr any more.
pub fn say(line: &str) {
    let text = format!("uzswap: {line}\n");
    let _ = os::without_sigpipe(|| io::stderr().write_all(text.as_bytes()));
}
