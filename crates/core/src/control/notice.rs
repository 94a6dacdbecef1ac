//! Notices: things that happened once in some process and that the user must hear of.
//!
//! The runtime cannot print, since the program owns its descriptors. It sets a bit in the block
//! ([`Tree::notice`]), and `uzswap run` prints each notice once.

#[cfg(doc)]
use super::Tree;

/// A notice, as a bit of `Tree::notices`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Notice {
    /// The backing store refused a write; nothing is lost, but no more is written.
    StoreFailed = 0,
    /// No mechanism works here; the program ran unmanaged.
    NoMechanism = 1,
    /// The limit cannot be held: the memory that must stay resident is larger.
    OverLimit = 2,
    /// More processes than slots; the rest ran unmanaged.
    TooManyProcesses = 3,
    /// A page did not verify when it was read back; the program got SIGBUS.
    CorruptPage = 4,
    /// A program of the tree could not be taken over (static or setuid).
    Unmanaged = 5,
    /// A process has no memory for the ring of `--trace`: the trace does not have it.
    NotTraced = 6,
    /// Paging ended in a process that lives on, because the process lost something that paging
    /// needs: it ran unmanaged from there.
    PagingEnded = 7,
    /// Paging ended because of a seccomp filter that the program installed: the process ran
    /// unmanaged from there.
    Sandboxed = 8,
    /// A page could not be read back because the system refused the call; the program got SIGBUS.
    LoadRefused = 9,
    /// A page was on a server that did not answer; the program got SIGBUS.
    RemoteLost = 10,
    /// A server no longer had a page that was written to it; the program got SIGBUS.
    RemoteGone = 11,
}

impl Notice {
    pub const ALL: [Notice; 12] = [
        Notice::StoreFailed,
        Notice::NoMechanism,
        Notice::OverLimit,
        Notice::TooManyProcesses,
        Notice::CorruptPage,
        Notice::Unmanaged,
        Notice::NotTraced,
        Notice::PagingEnded,
        Notice::Sandboxed,
        Notice::LoadRefused,
        Notice::RemoteLost,
        Notice::RemoteGone,
    ];
}
