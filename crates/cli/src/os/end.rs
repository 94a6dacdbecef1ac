//! The end of a program, as the kernel tells it to the process that waits for it.

/// How the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    pub pid: i32,
    pub how: How,
}

/// Its exit code or signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    Exited(u8),
    Killed(i32),
    /// It was not our child, and nobody could say.
    Unknown,
}
