//! The kernel's counts of processes and of the machine, mostly from its files.

use std::fs;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::os;
use crate::pages::PAGE_BYTES;

/// Processor time of this thread.
pub fn own_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// Anonymous memory of a process, by the kernel's count; none if it has gone.
pub fn anonymous_bytes(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let mut fields = text.split(' ').skip(1).map(|f| f.parse::<u64>().unwrap_or(0));
    Some(fields.next()?.saturating_sub(fields.next()?) * PAGE_BYTES as u64)
}

/// Whether a process was stopped, and does nothing that is asked of it.
pub fn is_stopped(pid: u32) -> bool {
    os::stat_of(pid).is_some_and(|stat| matches!(stat.first().map(String::as_str), Some("T" | "t")))
}

/// The text without characters that could disturb a terminal.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// The beginning of a text, of so many bytes at most, without the half of a character.
pub fn beginning(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

/// The text, or the beginning of one that is longer, with a mark.
pub fn shortened(text: &str, bytes: usize) -> String {
    if text.len() <= bytes { text.to_string() } else { beginning(text, bytes).to_string() + "..." }
}

/// The value of a line such as `Zswap:  12 kB`.
pub fn kib_of(path: &str, key: &str) -> u64 {
    value_of(&fs::read_to_string(path).unwrap_or_default(), key)
}

/// The value of a line such as `RssShmem:  12 kB` in a file of a process, in bytes; 0 without such
/// a line, none if the file cannot be read.
pub fn bytes_of(pid: u32, file: &str, key: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?;
    Some(value_of(&text, key) << 10)
}

/// The number behind `key` at the start of a line; 0 without one.
pub fn value_of(text: &str, key: &str) -> u64 {
    (text.lines().filter_map(|line| line.strip_prefix(key)))
        .find_map(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_disturb_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\n"), "a?[2Jb?");
    }

    #[test]
    fn values_of_meminfo() {
        assert!(kib_of("/proc/meminfo", "MemTotal:") > 1000);
        assert_eq!(kib_of("/proc/meminfo", "NoSuchThing:"), 0);
        assert_eq!(value_of("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", "oom_kill "), 3);
    }
}
