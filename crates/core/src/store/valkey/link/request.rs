//! Requests of one link: their names, the replies that each of them has, and their outcomes.

use crate::store::valkey::resp::Complaint;

/// Requests whose replies are on their way, or not taken: two writes and a discard of a process;
/// `uzswap run` sends as many as fit.
pub const PIPELINE_DEPTH: usize = 16;

/// Additions to a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Manner {
    /// The node has said that it answers for the key this once.
    pub is_asking: bool,
    /// A replica is waited for, so many milliseconds at most; 0: none.
    pub wait_ms: u32,
}

impl Manner {
    fn replies(self) -> u8 {
        1 + u8::from(self.is_asking) + u8::from(self.wait_ms > 0)
    }
}

/// The outcome of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The number that came, 0 for a text.
    pub said: core::result::Result<i64, Complaint>,
    /// Replicas that have the value.
    pub copies: Option<core::result::Result<i64, Complaint>>,
}

/// The name of a request on one link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket {
    pub(super) number: u64,
    /// Connections that broke before.
    pub(super) epoch: u32,
}

/// A request that is under way, or whose result is kept.
#[derive(Clone, Copy)]
pub(super) struct Request {
    manner: Manner,
    /// Replies that have come.
    replies: u8,
    pub(super) outcome: Outcome,
}

impl Request {
    pub(super) const fn new(manner: Manner) -> Request {
        Request { manner, replies: 0, outcome: Outcome { said: Ok(0), copies: None } }
    }

    /// Takes one reply; true: the last.
    pub(super) fn take(&mut self, reply: core::result::Result<i64, Complaint>) -> bool {
        let is_first = self.replies == 0;
        self.replies += 1;
        let is_last = self.replies == self.manner.replies();
        if self.manner.is_asking && is_first {
            self.outcome.said = reply;
        } else if self.manner.wait_ms > 0 && is_last {
            self.outcome.copies = Some(reply);
        } else if self.outcome.said.is_ok() {
            self.outcome.said = reply;
        }
        is_last
    }
}
