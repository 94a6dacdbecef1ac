//! The progress of long work, for a user who waits at a terminal.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// One line on a terminal that is written over, and gone in the end.
pub struct Progress {
    is_shown: bool,
    last: Option<Instant>,
}

impl Progress {
    pub fn new() -> Progress {
        Progress { is_shown: std::io::stderr().is_terminal(), last: None }
    }

    pub fn show(&mut self, text: &str) {
        const EVERY: Duration = Duration::from_millis(200);
        if self.is_shown && self.last.is_none_or(|last| last.elapsed() >= EVERY) {
            self.last = Some(Instant::now());
            self.write(text);
        }
    }

    fn write(&self, text: &str) {
        let _ = std::io::stderr().write_all(format!("\r\x1b[K{text}").as_bytes());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.last.is_some() {
            self.write("");
        }
    }
}
