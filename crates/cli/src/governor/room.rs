//! Answers a process that is about to be dumped and asks how much memory is left
//! (`uzswap::control::room`).

use std::sync::Arc;

use crate::budget::Budget;
use crate::control::run::Run;
use crate::size::PAGE_BYTES;

/// Starts a thread that answers questions. It answers 0 pages if the memory left cannot be read.
pub fn start(run: Arc<Run>) {
    let look = || Some(Budget::read().map_or(0, |b| b.available_bytes() / PAGE_BYTES));
    super::in_background("uzswap-room", move || run.tree.room.answer(look));
}
