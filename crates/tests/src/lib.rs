//! The harness of the whole-program tests: real, unmodified programs run with and without uzswap in
//! hard memory groups, as root and as an ordinary user, with userfaultfd allowed and refused.
//!
//! ```text
//!  tests/*.rs ── Suite ── a case ──> Job ── jail (group, filter, user) ── uzswap run ── PROGRAM
//!                                     │                                                  ^
//!                                     └── Watch: every 10 ms, anonymous memory of the tree
//!                                     v
//!                                  Outcome: exit, output hash, OOM kills, peaks, --stats
//! ```
//!
//! - *Workshop*: a temporary directory that every user can read: the programs, and copies of
//!   uzswap's two files.
//! - *Group*: a memory cgroup of our own, v1 or v2, without swap. Every job runs in one, so that
//!   its whole tree can be seen and ended.
//! - *Job*: one run of one program. *Outcome*: what came of it.
//! - *Suite*: the cases of one test file. One case at a time on the whole machine, because memory
//!   is measured. A case that cannot run here says why (`SKIPPED name: reason`) and counts as
//!   ignored.
//!
//! Environment: `UZSWAP_TEST_FULL=1` runs the full matrix and the long stress;
//! `UZSWAP_TEST_BIN=DIR` names the directory of `uzswap` and `libuzswap_preload` (default:
//! beside the test's own `deps/`); `UZSWAP_TEST_SEED=N` repeats a stress run; `UZSWAP_TEST_KEEP=1`
//! keeps the workshop.

pub mod exposition;
pub mod group;
pub mod job;
pub mod junit;
pub mod kills;
pub mod suite;
pub mod watch;
pub mod workshop;

pub use group::Group;
pub use job::{Job, Managed, Outcome};
pub use kills::Kills;
pub use suite::{Case, Suite, Verdict};
pub use workshop::Workshop;

/// Bytes in one MiB.
pub const MIB: u64 = 1 << 20;

/// The user that runs the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum User {
    Root,
    /// A user id without an entry in the password file and without any privilege.
    Ordinary,
}

impl User {
    pub const ORDINARY_UID: u32 = 12345;

    pub const fn name(self) -> &'static str {
        match self {
            User::Root => "root",
            User::Ordinary => "user",
        }
    }
}

/// The system calls that the program may use for paging.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sandbox {
    /// Nothing is refused: uzswap picks userfaultfd.
    Open,
    /// userfaultfd answers EPERM, as in a default container: uzswap falls back to protection
    /// faults.
    NoUserfaultfd,
}

impl Sandbox {
    /// The name of the mechanism that uzswap must choose by itself.
    pub const fn mechanism(self) -> &'static str {
        match self {
            Sandbox::Open => "userfaultfd",
            Sandbox::NoUserfaultfd => "protect",
        }
    }

    /// Whether the case of this number runs here: in the long form each case does by both
    /// mechanisms, in the short form odd numbers by userfaultfd and even ones by protection faults.
    pub fn has_turn(self, number: usize) -> bool {
        full() || (number % 2 == 1) == (self == Sandbox::Open)
    }
}

/// Whether the long versions were asked for.
pub fn full() -> bool {
    std::env::var_os("UZSWAP_TEST_FULL").is_some_and(|v| !v.is_empty() && v != "0")
}

/// How many times longer than usual a job may run before it hangs: more than once where the whole
/// machine is slow (`.ci/kernels`).
pub fn patience() -> u32 {
    match std::env::var("UZSWAP_TEST_PATIENCE") {
        Ok(text) => text.parse().expect("UZSWAP_TEST_PATIENCE is a whole number"),
        Err(_) => 1,
    }
}

/// A seed for a stress run: the one asked for, or one from the clock.
pub fn seed() -> u64 {
    match std::env::var("UZSWAP_TEST_SEED") {
        Ok(text) => text.parse().expect("UZSWAP_TEST_SEED is a number"),
        Err(_) => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
            (now.as_nanos() as u64) % 1_000_000_007
        }
    }
}
