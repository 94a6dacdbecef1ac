//! `--idle-after`: a process that does nothing for so long gives its memory back, until it does
//! something again.
//!
//! **Idle** is a process in which, for the whole time, no fault was served, no page was brought in
//! for a system call, and whose threads had a processor for at most a thousandth of the time.
//! Timers that look whether there is anything to do are allowed that much; what they touch comes
//! back and stays until the next time. A dormant process has no faults that we see, but a process
//! that touches memory runs. The evictor's own time does not count.
//!
//! `uzswap run` watches from outside, by what the kernel says of each thread, so that a process
//! that is not idle pays nothing.

use std::collections::HashMap;
use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use uzswap::control::orders::ALL_PAGES;
use uzswap::control::{Counter, Slot};

use crate::control::run::Run;
use crate::control::sight::waits_for_turn;

/// The part of the time that an idle process may have a processor for.
const BUSY_PART: u32 = 1000;
/// The number of looks within the time, and the bounds of the pause between two.
const LOOKS: u32 = 20;
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// The evictor's name, as the kernel shows it.
const EVICTOR: &str = "uzswap-evict";

/// Watches the processes of a run. Without a thread for it nothing is reclaimed, that is all.
pub fn start(run: Arc<Run>, idle_after: Duration) {
    super::in_background("uzswap-idle", move || {
        let mut seen = HashMap::new();
        loop {
            thread::sleep((idle_after / LOOKS).clamp(SHORTEST_PAUSE, LONGEST_PAUSE));
            look(&run, idle_after, &mut seen);
        }
    });
}

fn look(run: &Run, idle_after: Duration, seen: &mut HashMap<u32, Watch>) {
    let mut there = HashMap::new();
    // A process that waits for a turn has something to do.
    for (pid, slot) in
        run.live().filter(|(_, slot)| slot.orders.has_listener() && !waits_for_turn(slot))
    {
        let Some(activity) = Activity::of(pid, slot) else { continue };
        let now = Instant::now();
        let mut watch = seen.remove(&pid).unwrap_or(Watch::new(now, activity));
        if watch.is_idle(now, activity, idle_after) {
            slot.orders.ask_reclaim(ALL_PAGES);
        }
        there.insert(pid, watch);
    }
    *seen = there;
}

/// A process's work so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Activity {
    faults: u64,
    processor: Duration,
}

impl Activity {
    fn of(pid: u32, slot: &Slot) -> Option<Activity> {
        let faults = slot.get(Counter::Faults) + slot.get(Counter::HeldPages);
        let mut processor = Duration::ZERO;
        for task in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
            let read = |name| fs::read_to_string(task.path().join(name)).unwrap_or_default();
            if read("comm").trim_end() != EVICTOR {
                // A thread that has ended meanwhile has none.
                let ns = read("schedstat").split(' ').next().and_then(|t| t.parse().ok());
                processor += Duration::from_nanos(ns.unwrap_or(0));
            }
        }
        Some(Activity { faults, processor })
    }
}

/// One process, watched.
struct Watch {
    since: Instant,
    then: Activity,
    /// Faults until its memory was taken: without new ones there is nothing to take again.
    taken_at: Option<u64>,
}

impl Watch {
    fn new(now: Instant, activity: Activity) -> Watch {
        Watch { since: now, then: activity, taken_at: None }
    }

    /// Whether the process has been idle for so long, and its memory is to be taken.
    fn is_idle(&mut self, now: Instant, activity: Activity, idle_after: Duration) -> bool {
        // A thread that has ended takes its time away with it: that is something done, too.
        let ran = activity.processor.checked_sub(self.then.processor);
        let is_quiet =
            activity.faults == self.then.faults && ran.is_some_and(|r| r <= idle_after / BUSY_PART);
        let has_been = is_quiet && now - self.since >= idle_after;
        if !is_quiet || has_been {
            (self.since, self.then) = (now, activity);
        }
        let is_new = self.taken_at != Some(activity.faults);
        if has_been && is_new {
            self.taken_at = Some(activity.faults);
        }
        has_been && is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn idle_is_who_neither_faults_nor_runs() {
        let start = Instant::now();
        let activity = |faults, ms| Activity { faults, processor: Duration::from_millis(ms) };
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut w = Watch::new(start, activity(5, 1000));
        assert!(!w.is_idle(at(59), activity(5, 1000), MINUTE), "not yet");
        assert!(
            w.is_idle(at(60), activity(5, 1060), MINUTE),
            "a thousandth of the time is nothing"
        );
        assert!(!w.is_idle(at(130), activity(5, 1060), MINUTE), "there is nothing left to take");
        assert!(!w.is_idle(at(131), activity(6, 1060), MINUTE), "it came back");
        assert!(!w.is_idle(at(190), activity(6, 1060), MINUTE));
        assert!(w.is_idle(at(191), activity(6, 1060), MINUTE));
        assert!(!w.is_idle(at(240), activity(6, 1121), MINUTE), "it ran");
        assert!(!w.is_idle(at(299), activity(6, 900), MINUTE), "a thread ended");
        assert!(!w.is_idle(at(358), activity(6, 900), MINUTE));
    }

    #[test]
    fn a_dormant_process_that_was_never_taken_is() {
        let start = Instant::now();
        let nothing = Activity { faults: 0, processor: Duration::ZERO };
        assert!(Watch::new(start, nothing).is_idle(start + MINUTE, nothing, MINUTE));
    }

    #[test]
    fn the_kernel_says_how_long_a_process_ran() {
        let block = crate::os::ControlBlock::create(&uzswap::control::Settings::new()).unwrap();
        let me = std::process::id();
        let slot = block.tree().claim(me).unwrap();
        slot.add(Counter::Faults, 3);
        let activity = Activity::of(me, slot).unwrap();
        assert_eq!(activity.faults, 3);
        assert!(activity.processor > Duration::ZERO);
    }
}
