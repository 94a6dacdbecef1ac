//! Words of the command beside its results.

use std::io::Write;

/// One line on stderr. Whether anybody reads it is not our concern: the program has closed what it
/// liked.
pub fn say(line: &str) {
    let _ = std::io::stderr().write_all(format!("uzswap: {line}\n").as_bytes());
}
