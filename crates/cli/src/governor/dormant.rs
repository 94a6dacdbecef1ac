//! Memory that the dormant processes of a run hold. They have reserved what they could hold and do
//! not count what they do hold, so for the peak of a run this thread looks from outside, by the
//! kernel's count, now and then.
//!
//! The kernel counts memory that is shared since a fork for each process that has it. Where that
//! can matter, the thread asks for the process's share (Pss), which costs the kernel a walk through
//! its tables; this cost decides how often. It is of processor time: a look that waits for a
//! processor takes long and costs nothing.

use std::fs;
use std::sync::Arc;
use std::thread;

use crate::control::run::Run;
use crate::control::state::PAGE_BYTES;
use crate::procfs;

use super::pace::Pace;

/// A process that holds less is not asked for its share.
const SHARE_FROM_BYTES: u64 = 1 << 20;

/// Watches the dormant processes. Without a thread for it the peak is that of those that page, and
/// of each that ends.
pub fn start(run: Arc<Run>) {
    super::in_background("uzswap-dormant", move || {
        let mut pace = Pace::default();
        loop {
            pace.begin();
            // Read first, so that a process that begins to page meanwhile is not counted twice.
            let [held, needed] = run.tree.said_pages();
            let dormant = (look(&run) / PAGE_BYTES) as i64;
            run.tree.note_peaks(held + dormant, needed + dormant);
            thread::sleep(pace.pause());
        }
    });
}

fn look(run: &Run) -> u64 {
    let dormant = run.live().filter(|(_, slot)| slot.mechanism().is_none());
    let holds = |pid| match procfs::anonymous_bytes(pid).unwrap_or(0) {
        bytes if bytes < SHARE_FROM_BYTES => bytes,
        bytes => (bytes as f64 * share(pid).unwrap_or(1.0)) as u64,
    };
    dormant.map(|(pid, _)| holds(pid)).sum()
}

/// The part of a process's anonymous memory that is its own, or its share of what others have as
/// well.
fn share(pid: u32) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    share_in(&text)
}

fn share_in(text: &str) -> Option<f64> {
    let kib = |name: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok()
    };
    let (own, all) = (kib("Pss_Anon:")?, kib("Anonymous:")?);
    (all > 0.0).then(|| (own / all).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_part_of_what_is_anonymous() {
        let text = "Rss:  900 kB\nPss_Anon:    200 kB\nAnonymous:   800 kB\n";
        assert_eq!(share_in(text), Some(0.25));
        assert_eq!(share_in("Anonymous: 0 kB\nPss_Anon: 0 kB\n"), None);
        assert_eq!(share_in("Pss_Anon: 1 kB\n"), None);
        let own = share(std::process::id());
        assert!(own.is_some_and(|s| s > 0.0 && s <= 1.0), "{own:?}");
    }
}
