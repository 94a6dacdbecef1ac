//! The end of a command that could not do its work.

/// A command that could not do its work: what it says, and the exit code.
#[derive(Debug)]
pub struct Failure {
    pub message: String,
    pub exit_code: u8,
}

impl Failure {
    /// The user asked for something that is not possible or not understood.
    pub fn usage(message: String) -> Failure {
        Failure { message, exit_code: 2 }
    }

    /// This machine, or this program, does not allow it.
    pub fn environment(message: String) -> Failure {
        Failure { message, exit_code: 2 }
    }

    /// A measurement or a check failed.
    pub fn failed(message: String) -> Failure {
        Failure { message, exit_code: 1 }
    }

    /// A program that is not there; the exit code is that of shells.
    pub fn not_found(message: String) -> Failure {
        Failure { message, exit_code: 127 }
    }

    /// A file that is no program; the exit code is that of shells.
    pub fn not_executable(message: String) -> Failure {
        Failure { message, exit_code: 126 }
    }
}
