//! Watches the memory of a tree of processes, every 10 ms, from start to end.
//!
//! Three figures, because each means something else:
//! - *process*: anonymous and shared memory (RssAnon + RssShmem) of the largest single process, as
//!   the kernel counts it for the process. Shared memory is included so that nothing is hidden by
//!   moving it into a memfd.
//! - *tree*: the same, summed over the processes; pages shared after a fork count in each.
//! - *group*: anonymous memory charged to the group; such pages count once.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::Group;

/// Time between two samples.
pub const PERIOD: Duration = Duration::from_millis(10);

/// The largest values seen, in bytes.
#[derive(Clone, Copy, Default, Debug)]
pub struct Peaks {
    pub process_bytes: u64,
    pub tree_bytes: u64,
    pub group_bytes: u64,
    /// How often we looked.
    pub samples: u64,
}

/// A running watch; `finish` ends it.
pub struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Peaks>,
}

impl Watch {
    pub fn start(group: Arc<Group>) -> Watch {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut peaks = Peaks::default();
            while !seen.load(Ordering::Relaxed) {
                sample(&group, &mut peaks);
                std::thread::sleep(PERIOD);
            }
            peaks
        });
        Watch { stop, thread }
    }

    pub fn finish(self) -> Peaks {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the watch does not panic")
    }
}

fn sample(group: &Group, peaks: &mut Peaks) {
    let mut tree_bytes = 0;
    for pid in group.members() {
        let bytes = process_bytes(pid);
        tree_bytes += bytes;
        peaks.process_bytes = peaks.process_bytes.max(bytes);
    }
    peaks.tree_bytes = peaks.tree_bytes.max(tree_bytes);
    peaks.group_bytes = peaks.group_bytes.max(group.anonymous_bytes());
    peaks.samples += 1;
}

/// Anonymous and shared memory of one process, 0 if it has gone.
fn process_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |key: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(key))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    (field("RssAnon:").unwrap_or(0) + field("RssShmem:").unwrap_or(0)) * 1024
}
