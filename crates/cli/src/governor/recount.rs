//! Puts the sums of a run right where a process that was killed has left them wrong.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use uzswap::control::Recount;

use crate::control::Run;

/// Time between two looks: a wrong sum costs others some room, and no more, until then.
const PAUSE: Duration = Duration::from_secs(1);

/// Looks at the sums as long as the run lasts. Without a thread for it they stay as they are.
pub fn start(run: Arc<Run>) {
    super::in_background("uzswap-recount", move || {
        let mut recount = Recount::default();
        loop {
            thread::sleep(PAUSE);
            recount.look(run.tree);
        }
    });
}
