//! A run, as its server and its governor see it: the processes, and the memory that they share.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

use uzswap::control::{Slot, Tree};

use super::state::{self, PAGE_BYTES, ProcessState, RunState};

/// One `uzswap run` and its processes.
#[derive(Clone)]
pub struct Run {
    /// The process id by which it is named: that of `uzswap run`, also where that has become the
    /// program.
    pub id: u32,
    pub tree: &'static Tree,
    pub control_fd: i32,
    pub command: Vec<String>,
    pub started: Instant,
}

/// The limit, and the memory that nobody holds.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    pub limit_pages: u64,
    pub free_pages: u64,
}

impl Run {
    pub fn state(&self) -> RunState {
        let limit_pages = self.tree.limit_pages.load(Ordering::Relaxed).max(0) as u64;
        RunState {
            run: self.id,
            command: self.command.clone(),
            limit_bytes: limit_pages * PAGE_BYTES,
            age: self.started.elapsed(),
            processes: self.live().filter_map(|(pid, slot)| ProcessState::of(pid, slot)).collect(),
        }
    }

    pub fn room(&self) -> Room {
        let pages = |v: &AtomicI64| v.load(Ordering::Relaxed).max(0) as u64;
        let limit_pages = pages(&self.tree.limit_pages);
        Room { limit_pages, free_pages: limit_pages.saturating_sub(pages(&self.tree.used_pages)) }
    }

    /// The processes that are there.
    pub fn live(&self) -> impl Iterator<Item = (u32, &'static Slot)> {
        state::live(self.tree, self.control_fd)
    }
}
