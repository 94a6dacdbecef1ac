//! The governor of a tree: which processes run, and which give memory, where not all fit.
//!
//! ```text
//!                 ┌─ turns ───> the control block: who waits ──> faults
//!                 ├─ shares ──> the control block: who gives ──> evictors
//!  uzswap run ────┼─ idle ────> the control block: orders ─────> evictors      (--idle-after)
//!                 ├─ dormant ─> the control block: the peak, with what dormant processes hold
//!                 ├─ shared ──> the control block: the sums, with memory that processes share
//!                 ├─ recount ─> the control block: sums that a killed process left wrong
//!                 ├─ group ───> the control block: the limit, as the memory group has room
//!                 └─ room ────> the control block: how much memory a dump may take
//! ```
//!
//! Each is a thread of `uzswap run` that looks at the processes from outside (`control::sight`) and
//! tells them by the control block. No user talks to it, and without it a run goes on as well.

mod cost;
mod dormant;
mod group;
mod idle;
mod pace;
mod recount;
mod room;
mod shared_memory;
mod shares;
mod turns;

use std::sync::Arc;

use crate::control::Run;
use crate::settings::RunSettings;

/// Stack of a thread that watches the processes of a run.
const WATCHER_STACK_BYTES: usize = 128 << 10;

/// Runs `watcher` beside the program. Without a thread for it nobody watches, that is all.
fn in_background(name: &str, watcher: impl FnOnce() + Send + 'static) {
    let builder =
        std::thread::Builder::new().name(name.to_string()).stack_size(WATCHER_STACK_BYTES);
    let _ = builder.spawn(watcher);
}

/// Begins to watch the processes of a run: for those that need their memory less than others, for
/// idle ones, if it wants that, and for more of them than fit; and the memory group that the limit
/// was taken from.
pub fn watch(run: &Arc<Run>, settings: &RunSettings) {
    shares::start(run.clone());
    room::start(run.clone());
    dormant::start(run.clone());
    shared_memory::start(run.clone());
    recount::start(run.clone());
    if let Some(margin_bytes) = settings.group_margin_bytes {
        group::start(run.clone(), margin_bytes);
    }
    if let Some(idle_after) = settings.idle_after {
        idle::start(run.clone(), idle_after);
    }
    if settings.takes_turns {
        turns::start(run.clone());
    }
}
