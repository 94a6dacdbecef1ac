//! The kinds of mechanism, by the names that users know.
#![forbid(unsafe_code)]

/// How pages leave and enter the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Kind {
    /// The best that this kernel and sandbox allow.
    Auto = 0,
    /// userfaultfd with MOVE.
    Userfaultfd = 1,
    /// userfaultfd without MOVE: write-protect, copy, drop (kernels 5.11 to 6.7).
    UserfaultfdCopy = 2,
    /// Protection faults: mprotect, /proc/self/mem, SIGSEGV.
    Protect = 3,
}

impl Kind {
    pub const ALL: [Kind; 4] =
        [Kind::Auto, Kind::Userfaultfd, Kind::UserfaultfdCopy, Kind::Protect];

    pub const fn name(self) -> &'static str {
        match self {
            Kind::Auto => "auto",
            Kind::Userfaultfd => "userfaultfd",
            Kind::UserfaultfdCopy => "userfaultfd-copy",
            Kind::Protect => "protect",
        }
    }

    pub fn from_u32(v: u32) -> Option<Kind> {
        Self::ALL.into_iter().find(|m| *m as u32 == v)
    }
}
