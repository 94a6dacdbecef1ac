//! Control of programs that are running: who they are, what they hold, and what their users want of
//! them.
//!
//! ```text
//!  uzswap ps, top, set, reclaim, bring-in                      uzswap run
//!     client ── one JSON line ──> DIRECTORY/RUN.sock ──> server ──> the control block: limit, orders ──> evictors
//!            <── one JSON line ──                                 governor (its own folder) ─^
//! ```
//!
//! - *Run*: one `uzswap run` and its processes, named by the process id of `uzswap run`.
//! - *Directory* (`directory.rs`): where the sockets are; nobody but the user can enter.
//! - *Protocol* (`protocol.rs`): a request and its reply, one line each.
//! - *Sight* (`sight.rs`): what can be seen of a process from outside.
//! - *State* (`state.rs`): what a run and its processes hold, as `ps` and `top` show it.
//!
//! A run without a socket (no directory will do) works as well: it only cannot be seen or
//! controlled.

pub mod client;
mod commands;
mod directory;
pub mod protocol;
pub mod run;
mod server;
pub mod sight;
pub mod state;
mod top;

pub use commands::{
    BringInArguments, PsArguments, ReclaimArguments, SetArguments, bring_in, ps, reclaim, set,
};
pub use directory::{existing as directories, open as open_directory};
pub use run::{Run, words};
pub use server::Server;
pub use top::{TopArguments, top};
