//! Messages of the command, beside its results.

use std::io::Write;

/// Writes one line to stderr. An error is ignored: perhaps nobody reads stderr any more.
pub fn say(line: &str) {
    let _ = std::io::stderr().write_all(format!("uzswap: {line}\n").as_bytes());
}
