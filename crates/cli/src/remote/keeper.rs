//! The thread that keeps a run's exports: counts in their claims, leases the extents of processes
//! that are gone out again, and gives all of it back at the end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use uzswap::control::Tree;
use uzswap::store::extents::EXTENTS_MOST;

use super::Exports;
use super::claim::{BEAT, Claimed};
use crate::control::Run;

/// How long a process has been gone before its extents are somebody else's, in beats. What it has
/// sent before it was killed a server may still have to read, and would write over theirs.
const GRACE_BEATS: u8 = 3;
/// How long processes that are ending are waited for, at the end.
const ENDS_WITHIN: Duration = Duration::from_millis(500);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// See the module.
pub struct Keeper {
    thread: JoinHandle<Exports>,
    ends: Sender<()>,
    run: Arc<Run>,
}

impl Keeper {
    /// `None`: there is no thread for it. Then nobody counts, that is all.
    pub fn start(mut exports: Exports, run: Arc<Run>) -> Option<Keeper> {
        let (ends, end) = mpsc::channel();
        let keeps = run.clone();
        let keep = move || {
            exports.claims.iter_mut().for_each(Claimed::hurry);
            let mut gone = vec![0u8; EXTENTS_MOST];
            while end.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) {
                // A server that is down is none of our business: the processes say it.
                exports.claims.iter_mut().for_each(|claim| _ = claim.beat());
                lease_again(&mut exports, &keeps, &mut gone);
            }
            exports
        };
        let thread = thread::Builder::new().name("uzswap-leases".to_string()).spawn(keep).ok()?;
        Some(Keeper { thread, ends, run })
    }

    /// The program has ended. What is left to say, if anything.
    pub fn finish(self) -> Option<String> {
        drop(self.ends);
        let mut exports = self.thread.join().ok()?;
        let is_used = !wait_for_end(&self.run);
        for extent in 0..EXTENTS_MOST {
            let owner = self.run.tree.leases[extent].load(Ordering::Acquire);
            if owner != 0 && !(is_used && is_wanted(&self.run, owner)) {
                give_back(&mut exports, extent);
            }
        }
        let mut said = is_used.then(|| {
            format!(
                "processes that the program left behind still use {}, until they end",
                exports.shown()
            )
        });
        for claim in &mut exports.claims {
            if let Err(e) = claim.release(is_used) {
                let why = super::claim::in_words(&claim.shown, e);
                said = Some(format!(
                    "what the program wrote to a server could not be taken away: {why}"
                ));
            }
        }
        said
    }
}

/// Whether nobody uses extents any more, soon.
fn wait_for_end(run: &Run) -> bool {
    let mut waited = Duration::ZERO;
    while owners(run.tree).any(|owner| is_wanted(run, owner)) {
        if waited >= ENDS_WITHIN {
            return false;
        }
        thread::sleep(LOOK_AGAIN);
        waited += LOOK_AGAIN;
    }
    true
}

/// Who has extents, by extent.
fn owners(tree: &Tree) -> impl Iterator<Item = u32> {
    tree.leases.iter().map(|lease| lease.load(Ordering::Acquire)).filter(|owner| *owner != 0)
}

fn is_wanted(run: &Run, owner: u32) -> bool {
    run.tree.is_lease_wanted(owner, |s| !run.tree.is_gone(s, run.control_fd))
}

/// Leases extents of processes that are gone for good out again.
fn lease_again(exports: &mut Exports, run: &Run, gone: &mut [u8]) {
    // Extents of one process lie beside each other mostly.
    let mut last = (0, true);
    for (extent, beats) in gone.iter_mut().enumerate() {
        let lease = &run.tree.leases[extent];
        let owner = lease.load(Ordering::Acquire);
        if owner != 0 && owner != last.0 {
            last = (owner, is_wanted(run, owner));
        }
        if owner == 0 || last.1 {
            *beats = 0;
            continue;
        }
        *beats += 1;
        if *beats >= GRACE_BEATS && give_back(exports, extent) {
            *beats = 0;
            let _ = lease.compare_exchange(owner, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

/// Trims an extent. False: its server does not answer.
fn give_back(exports: &mut Exports, extent: usize) -> bool {
    let Some((server, at)) = exports.geometry.at(extent) else { return true };
    let bytes = exports.geometry.extent_bytes;
    exports.claims.get_mut(server).is_some_and(|claim| claim.trim(at, bytes).is_ok())
}
