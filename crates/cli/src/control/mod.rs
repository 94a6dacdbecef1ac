//! Control of programs that are running: who they are, what they hold, and what their users want of them.
//!
//! ```text
//!  uzswap ps, top, set, reclaim, bring-in                      uzswap run
//!     client ── one JSON line ──> DIRECTORY/RUN.sock ──> server ──> the control block: limit, orders ──> evictors
//!            <── one JSON line ──                                   idle (--idle-after) ────^
//!                                                                    turns ──> the control block: who waits ──> faults
//!                                                                    shares ──> the control block: who gives ──> evictors
//!                                                                    dormant ──> what processes hold that do not page
//!                                                                    room <──> who is about to be dumped
//! ```
//!
//! - *Run*: one `uzswap run` and its processes, named by the process id of `uzswap run`.
//! - *Directory* (`directory.rs`): where the sockets are; nobody but the user can enter.
//! - *Protocol* (`protocol.rs`): a request and its reply, one line each.
//! - *State* (`state.rs`): what a run and its processes hold, as `ps` and `top` show it.
//!
//! A run without a socket (no directory to be had) is none the worse: it cannot be seen or controlled, that is all.

pub mod client;
mod commands;
mod cost;
mod directory;
mod dormant;
mod idle;
pub mod protocol;
mod room;
mod server;
mod shares;
mod state;
mod top;
mod turns;

pub use commands::{
    BringInArguments, PsArguments, ReclaimArguments, SetArguments, bring_in, ps, reclaim, set,
};
pub use directory::{existing as directories, open as open_directory};
pub use server::{Run, Server};
pub use top::{TopArguments, top};

/// Stack of a thread that watches the processes of a run.
const WATCHER_STACK_BYTES: usize = 128 << 10;

/// Runs `watcher` beside the program. Without a thread for it nobody watches, that is all.
fn in_background(name: &str, watcher: impl FnOnce() + Send + 'static) {
    let builder = std::thread::Builder::new().name(name.to_string()).stack_size(WATCHER_STACK_BYTES);
    let _ = builder.spawn(watcher);
}

/// Puts the sums of a run right where a process that was killed has left them wrong. Without a thread for it they stay so.
fn recount(run: std::sync::Arc<Run>) {
    const PAUSE: std::time::Duration = std::time::Duration::from_secs(1);
    in_background("uzswap-recount", move || {
        let mut recount = uzswap::control::Recount::default();
        loop {
            std::thread::sleep(PAUSE);
            recount.look(run.tree);
        }
    });
}

/// Begins to watch the processes of a run: for those that need their memory less than others, for idle ones, if it wants that, and
/// for more of them than fit.
pub fn watch(run: &std::sync::Arc<Run>, idle_after: Option<std::time::Duration>, takes_turns: bool) {
    shares::start(run.clone());
    room::start(run.clone());
    dormant::start(run.clone());
    recount(run.clone());
    if let Some(idle_after) = idle_after {
        idle::start(run.clone(), idle_after);
    }
    if takes_turns {
        turns::start(run.clone());
    }
}
