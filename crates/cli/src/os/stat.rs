//! Any process by its number, as /proc tells: its state and its name.
//!
//! The copies of us (`apart.rs`, `witness.rs`) ask about themselves and the program, so this lies
//! below them, and needs nothing unsafe. Other readers of /proc are in `procfs.rs`.

/// The words of /proc/PID/stat on a process behind its name: state, parent, group and so on; none
/// if it has gone.
pub fn stat_of(pid: u32) -> Option<Vec<String>> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the name in parentheses and may contain anything.
    let end = stat.iter().rposition(|b| *b == b')')?;
    Some(String::from_utf8_lossy(&stat[end + 1..]).split_whitespace().map(String::from).collect())
}

/// The name of a process; empty if it has gone.
pub fn name_of(pid: u32) -> String {
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(&name).trim_end_matches('\n').to_string()
}
