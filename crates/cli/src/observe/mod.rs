//! Watching a run from outside: metrics for a monitor while it lasts, a page about it at the end.
//!
//! ```text
//!   the program's processes ──> Tree (shared memory)
//!                                 ^ reads           ^ reads
//!     server ── exposition ───────┘                 └────── sampler ──> Series ──> page ──> FILE.html
//!       ^ HTTP                                                            (when the run has ended)
//!     monitor
//! ```
//!
//! Each has a thread of its own in `uzswap run`, which the program cannot see; both only read. They
//! begin when the program has been started, with all signals blocked as the main thread has them,
//! and end before anything is said of the run.

pub mod address;
pub mod clock;
mod exposition;
pub mod outcome;
pub mod page;
mod request;
pub mod sampler;
mod server;

use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::{Instant, SystemTime};

use uzswap::control::Tree;

use crate::console;
use address::Listener;
use sampler::{Sampler, Series};

/// Enough for what these threads do; the default would be address space for nothing.
const STACK_BYTES: usize = 512 << 10;

/// The parts of the run that can be watched.
#[derive(Clone, Copy)]
pub struct Watched<'a> {
    /// None: it is unmanaged.
    pub tree: Option<&'a Tree>,
    pub memory_bytes: u64,
    pub started: Instant,
    pub started_at: SystemTime,
}

/// Watches while `wait` waits for the program's end. Gives what that returns, and what was sampled
/// if a report is wanted. If a thread cannot be had, a message says so, and the run goes on without
/// it: the program runs already.
pub fn during<T>(
    watched: Watched,
    listener: Option<Listener>,
    wants_series: bool,
    wait: impl FnOnce() -> T,
) -> (T, Option<Series>) {
    let missed =
        |what: &str, e: &io::Error| console::say(&format!("no {what}: cannot make a thread: {e}"));
    thread::scope(|scope| {
        let thread =
            |name: &str| thread::Builder::new().name(name.to_string()).stack_size(STACK_BYTES);
        // The threads see when these ends are dropped here.
        let mut ends_server = None;
        if let Some(listener) = listener {
            let started = io::pipe().and_then(|(stop, end)| {
                thread("uzswap-metrics")
                    .spawn_scoped(scope, move || server::serve(listener, &watched, stop))?;
                Ok(end)
            });
            ends_server = started.map_err(|e| missed("metrics", &e)).ok();
        }
        let mut sampling = None;
        if wants_series {
            let (end, stop) = mpsc::channel::<()>();
            let started = thread("uzswap-sampler")
                .spawn_scoped(scope, move || Sampler::new(&watched).run(&stop))
                .map(|thread| (thread, end));
            sampling = started.map_err(|e| missed("samples for the report", &e)).ok();
        }
        let result = wait();
        drop(ends_server);
        let series = sampling.map(|(thread, end)| {
            drop(end);
            thread.join().expect("a panic ends the process")
        });
        (result, series)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::ControlBlock;

    /// A run of 64 MiB that begins now.
    pub fn watched(block: &ControlBlock) -> Watched<'_> {
        Watched {
            tree: Some(block.tree()),
            memory_bytes: 64 << 20,
            started: Instant::now(),
            started_at: SystemTime::now(),
        }
    }
}
