//! Turns: where the processes of a tree need more memory at a time than there is, only so many run
//! as fit.
//!
//! A build by 24 compilers on two processors with memory for six is the example. Each gets a
//! processor for a few milliseconds, brings back what the others have pushed out, and pushes out
//! what they will need next: nearly all time goes to paging. Nothing is gained by running all 24 at
//! a time on two processors. So while paging takes more of the processors than it should, a few
//! processes run and the others wait, at their next fault (`uzswap::control::turns`), until a turn
//! is over:
//!
//! ```text
//!   look: what faults cost ──> policy: how many, which ──> pause (renewed at each look) or resume
//! ```
//!
//! `policy.rs` decides; this file looks and tells. Without news from here every process runs, and a
//! waiting thread goes on when a signal comes. A tree that fits, or a single process, never gets
//! here.

mod policy;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use uzswap::control::{Counter, Slot};
use uzswap::pager::COMPETING_PAGES;

use super::cost;
use crate::control::run::Run;
use crate::control::sight::{Key, key, processor_time};
use policy::{Policy, Sight, Supply};

/// The time between two looks: while processes take turns, and while they do not.
const BUSY_LOOK: Duration = Duration::from_millis(20);
const CALM_LOOK: Duration = Duration::from_millis(50);
/// The pause before an answer, in which other processes may ask: they are answered by the same
/// look.
const OTHERS: Duration = Duration::from_millis(1);
/// How long a pause lasts without news.
const PAUSE: Duration = Duration::from_millis(500);
/// Fewer ticks of all processors together tell nothing of how idle they are.
const LEAST_TICKS: u64 = 4;

/// Watches the processes of a run. Without a thread for it all of them run, that is all.
pub fn start(run: Arc<Run>) {
    super::in_background("uzswap-turns", move || {
        let cores = thread::available_parallelism().map_or(1, |n| n.get());
        let mut policy = Policy::new(cores);
        let mut processors = Processors::default();
        let referee = &run.tree.referee;
        loop {
            referee.stay();
            let rung = referee.rung();
            look(&run, &mut policy, &mut processors);
            let pause = if policy.is_on() { BUSY_LOOK } else { CALM_LOOK };
            referee.wait(rung, pause.as_nanos() as u64);
            if referee.rung() != rung {
                thread::sleep(OTHERS);
            }
        }
    });
}

fn look(run: &Run, policy: &mut Policy, processors: &mut Processors) {
    let live: Vec<(u32, &Slot)> = run.live().collect();
    if live.len() < 2 && !policy.is_on() {
        policy.forget();
        return live.iter().for_each(|(_, slot)| slot.turn.resume());
    }
    let sights: Vec<Sight> = live
        .iter()
        .filter(|(_, slot)| competes(slot))
        .map(|(pid, slot)| sight(*pid, slot))
        .collect();
    let waited: Vec<Key> = sights.iter().filter(|s| s.is_waiting).map(|s| s.key).collect();
    policy.step(Instant::now(), Supply { room: run.room(), idle: processors.idle() }, sights);
    let until_ns = uzswap::sys::now_ns() + PAUSE.as_nanos() as u64;
    for (pid, slot) in &live {
        let key = key(*pid, slot);
        // A process that asks since it was seen has rung, and is answered by the next look.
        let has_just_asked = slot.turn.is_waiting() && competes(slot) && !waited.contains(&key);
        match policy.may_run(key) {
            true if has_just_asked => {}
            true => slot.turn.resume(),
            false => slot.turn.pause(until_ns),
        }
    }
}

/// Whether it matters that the process runs: not if it needs next to nothing, nor while its memory
/// is still its parent's; most such children exec at once.
fn competes(slot: &Slot) -> bool {
    (needed_pages(slot) >= COMPETING_PAGES as u64 || slot.turn.is_waiting())
        && slot.counted_by.load(Ordering::Acquire) == 0
}

/// Managed memory that it would hold if it could; of one that is dormant, all that it could hold.
fn needed_pages(slot: &Slot) -> u64 {
    match slot.mechanism() {
        Some(_) => {
            let needed = slot.needed_pages.load(Ordering::Relaxed).max(0) as u64;
            needed.saturating_sub(slot.get(Counter::OutsidePages))
        }
        None => reserved_pages(slot),
    }
}

fn reserved_pages(slot: &Slot) -> u64 {
    slot.used_pages.load(Ordering::Relaxed).max(0) as u64
}

fn sight(pid: u32, slot: &Slot) -> Sight {
    Sight {
        key: key(pid, slot),
        paging: cost::of(slot),
        needed_pages: needed_pages(slot),
        resident_pages: match slot.mechanism() {
            Some(_) => slot.get(Counter::ResidentPages) + slot.get(Counter::LimboPages),
            None => reserved_pages(slot),
        },
        is_waiting: slot.turn.is_waiting(),
        processor: processor_time(pid),
    }
}

/// Work of the machine's processors until the last look, in ticks: idle, and all.
#[derive(Default)]
struct Processors {
    seen: (u64, u64),
    idle: f64,
}

impl Processors {
    /// The part of them that was idle since the last look. The last value stays if the time is too
    /// short to tell.
    fn idle(&mut self) -> f64 {
        let Some((idle, all)) =
            std::fs::read_to_string("/proc/stat").ok().as_deref().and_then(idle_ticks)
        else {
            return 1.0;
        };
        let (idle_more, more) = (idle.saturating_sub(self.seen.0), all.saturating_sub(self.seen.1));
        if more >= LEAST_TICKS {
            (self.idle, self.seen) = (idle_more as f64 / more as f64, (idle, all));
        }
        self.idle
    }
}

/// Ticks that all processors were idle or waited for a disk, and all ticks: of the first line of
/// /proc/stat.
fn idle_ticks(stat: &str) -> Option<(u64, u64)> {
    const IDLE: usize = 3;
    const WAITS_FOR_DISK: usize = 4;
    // Guests' time is in user's already.
    let ticks: Vec<u64> = stat
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_whitespace()
        .take(8)
        .map_while(|w| w.parse().ok())
        .collect();
    Some((ticks.get(IDLE)? + ticks.get(WAITS_FOR_DISK)?, ticks.iter().sum()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_needs_nothing_of_its_own_does_not_compete() {
        let block = crate::os::ControlBlock::create(&uzswap::control::Settings::new()).unwrap();
        let slot = block.tree().claim(10).unwrap();
        let needs = |pages: u64| {
            slot.needed_pages.store(pages as i64, Ordering::Relaxed);
            competes(slot)
        };
        assert!(!needs(100_000), "dormant: what it has reserved counts");
        slot.used_pages.store(COMPETING_PAGES, Ordering::Relaxed);
        assert!(needs(0));
        slot.mechanism.store(uzswap::control::Mechanism::Userfaultfd as u32, Ordering::Relaxed);
        slot.set(Counter::OutsidePages, 100);
        let competing = COMPETING_PAGES as u64;
        assert!(!needs(100 + competing - 1) && needs(100 + competing));
        slot.counted_by.store(9, Ordering::Relaxed);
        assert!(!needs(100_000));
    }

    #[test]
    fn a_process_that_waits_is_seen_and_goes_on_when_all_run() {
        let block = crate::os::ControlBlock::create(&uzswap::control::Settings::new()).unwrap();
        let slot = block.tree().claim(std::process::id()).unwrap();
        slot.turn.pause(u64::MAX);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| slot.turn.wait(|| true));
            while !sight(1, slot).is_waiting {
                thread::sleep(Duration::from_millis(1));
            }
            slot.turn.resume();
            waiter.join().unwrap();
        });
        assert!(!sight(1, slot).is_waiting);
    }
}
