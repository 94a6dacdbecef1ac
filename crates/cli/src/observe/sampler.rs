//! Samples of a run over time, for the report.
//!
//! Every 100 ms at first. When there are a thousand samples every second one goes and the interval
//! doubles, so that a run of days costs what a run of minutes does. Of two neighbours the one with
//! the larger memory stays: peaks are what one looks for. Events are kept as totals, of which any
//! two samples give a rate.

use std::collections::HashMap;
use std::fs;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use uzswap::control::{Counter, Mechanism, Tree};
use uzswap::latency::FaultKind;

use super::Watched;
use crate::procfs::shortened;
use crate::size::PAGE_BYTES;
use crate::written;

const FIRST_INTERVAL: Duration = Duration::from_millis(100);
const SAMPLES_MAX: usize = 1000;
/// Processes that are remembered; beyond twice as many the smallest of those that ended are
/// forgotten.
const PROCESSES_MAX: usize = 500;
/// Bytes of a command line that are shown.
const COMMAND_BYTES_MAX: usize = 300;

/// The run at one moment. Pages are of 4 KiB.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Sample {
    pub at_ms: u64,
    pub limit_pages: u64,
    /// Held or reserved.
    pub used_pages: u64,
    pub needed_pages: u64,
    pub resident_pages: u64,
    pub limbo_pages: u64,
    pub pool_pages: u64,
    pub outside_pages: u64,
    /// By processes that do not page: at most what they hold.
    pub reserved_pages: u64,
    pub stored_pages: u64,
    /// Since the start.
    pub written_pages: u64,
    pub read_pages: u64,
    pub faults: [u64; FaultKind::ALL.len()],
    pub processes: u64,
}

/// A process that was seen.
#[derive(Clone, Debug)]
pub struct Seen {
    pub pid: u32,
    pub command: String,
    pub first_ms: u64,
    pub last_ms: u64,
    pub is_alive: bool,
    /// `None` as long as it does not page.
    pub mechanism: Option<Mechanism>,
    pub peak_used_pages: u64,
    pub peak_needed_pages: u64,
    pub faults: u64,
    pub loads: u64,
    pub evictions: u64,
}

/// Samples of a run.
#[derive(Default)]
pub struct Series {
    pub samples: Vec<Sample>,
    pub interval: Duration,
    /// The largest first.
    pub processes: Vec<Seen>,
    /// Processes that were seen, but are not in the list any more.
    pub forgotten: u64,
}

pub struct Sampler<'a> {
    tree: Option<&'a Tree>,
    started: Instant,
    series: Series,
    /// By slot and the number of its claim.
    seen: HashMap<(usize, u64), Seen>,
    /// Between two samples, now.
    interval: Duration,
}

impl<'a> Sampler<'a> {
    pub fn new(watched: &Watched<'a>) -> Sampler<'a> {
        Sampler {
            tree: watched.tree,
            started: watched.started,
            series: Series::default(),
            seen: HashMap::new(),
            interval: FIRST_INTERVAL,
        }
    }

    /// Samples until the other end of `stop` is gone, and once more then.
    pub fn run(mut self, stop: &Receiver<()>) -> Series {
        let mut next = Instant::now();
        loop {
            self.sample(self.started.elapsed().as_millis() as u64);
            next += self.interval;
            // After a stop (Ctrl-Z) there is nothing to make up for.
            next = next.max(Instant::now());
            match stop.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Err(RecvTimeoutError::Timeout) => {}
                _ => break,
            }
        }
        self.sample(self.started.elapsed().as_millis() as u64);
        self.finish()
    }

    fn sample(&mut self, at_ms: u64) {
        let Some(tree) = self.tree else { return };
        let sample = self.look(tree, at_ms);
        let samples = &mut self.series.samples;
        samples.push(sample);
        if samples.len() >= SAMPLES_MAX {
            thin(samples);
            self.interval *= 2;
        }
    }

    fn look(&mut self, tree: &Tree, at_ms: u64) -> Sample {
        let pages = |v: &std::sync::atomic::AtomicI64| v.load(Ordering::Relaxed).max(0) as u64;
        let mut sample = Sample {
            at_ms,
            limit_pages: pages(&tree.limit_pages),
            used_pages: pages(&tree.used_pages),
            needed_pages: pages(&tree.needed_pages),
            written_pages: written::pages(|counter| tree.total(counter)),
            read_pages: tree.total(Counter::ReadBackPages),
            faults: FaultKind::ALL.map(|kind| tree.latency.count(kind)),
            ..Sample::default()
        };
        self.seen.values_mut().for_each(|seen| seen.is_alive = false);
        for (index, slot) in tree.used_slots().iter().enumerate() {
            for kind in FaultKind::ALL {
                sample.faults[kind as usize] += slot.latency.count(kind);
            }
            let Some(pid) = slot.process() else { continue };
            let used = pages(&slot.used_pages);
            let mechanism = slot.mechanism();
            sample.processes += 1;
            match mechanism {
                Some(_) => {
                    sample.resident_pages += slot.get(Counter::ResidentPages);
                    sample.limbo_pages += slot.get(Counter::LimboPages);
                    sample.outside_pages += slot.get(Counter::OutsidePages);
                    sample.stored_pages += slot.get(Counter::StoredPages);
                    sample.pool_pages += slot.get(Counter::PoolBytes) / PAGE_BYTES;
                }
                None => sample.reserved_pages += used,
            }
            let key = (index, slot.claims.load(Ordering::Acquire));
            let seen = self.seen.entry(key).or_insert_with(|| Seen {
                pid,
                command: command_of(pid),
                first_ms: at_ms,
                last_ms: at_ms,
                is_alive: true,
                mechanism: None,
                peak_used_pages: 0,
                peak_needed_pages: 0,
                faults: 0,
                loads: 0,
                evictions: 0,
            });
            let grow = |v: &mut u64, now: u64| *v = (*v).max(now);
            seen.is_alive = true;
            seen.last_ms = at_ms;
            seen.mechanism = mechanism.or(seen.mechanism);
            grow(&mut seen.peak_used_pages, used.max(slot.get(Counter::PeakUsedPages)));
            let needed = pages(&slot.needed_pages).max(slot.get(Counter::PeakNeededPages));
            grow(&mut seen.peak_needed_pages, needed);
            grow(&mut seen.faults, slot.get(Counter::Faults));
            grow(&mut seen.loads, slot.get(Counter::Loads));
            grow(&mut seen.evictions, slot.get(Counter::Evictions));
        }
        if self.seen.len() > 2 * PROCESSES_MAX {
            self.forget_small();
        }
        sample
    }

    /// Forgets the smallest of the processes that ended.
    fn forget_small(&mut self) {
        let mut ended: Vec<_> = self.seen.iter().filter(|(_, p)| !p.is_alive).collect();
        ended.sort_by_key(|(_, p)| std::cmp::Reverse((p.peak_needed_pages, p.faults)));
        let small: Vec<_> = ended.iter().skip(PROCESSES_MAX).map(|(key, _)| **key).collect();
        self.series.forgotten += small.len() as u64;
        small.iter().for_each(|key| _ = self.seen.remove(key));
    }

    fn finish(mut self) -> Series {
        let mut processes: Vec<Seen> = self.seen.into_values().collect();
        processes.sort_by_key(|p| {
            (std::cmp::Reverse((p.peak_needed_pages, p.peak_used_pages)), p.first_ms, p.pid)
        });
        self.series.processes = processes;
        self.series.interval = self.interval;
        self.series
    }
}

/// Of each two neighbours the one with more memory.
fn thin(samples: &mut Vec<Sample>) {
    let larger = |pair: &[Sample]| *pair.iter().max_by_key(|s| s.used_pages).expect("at least one");
    *samples = samples.chunks(2).map(larger).collect();
}

/// The program and its arguments, as far as they are readable.
fn command_of(pid: u32) -> String {
    command_in(&fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default())
}

fn command_in(mut words: &[u8]) -> String {
    while let Some(rest) = words.strip_suffix(b"\0") {
        words = rest;
    }
    // As many bytes more as a character has at most, so that the last one is whole.
    let text = String::from_utf8_lossy(&words[..words.len().min(COMMAND_BYTES_MAX + 4)]);
    match shortened(&text, COMMAND_BYTES_MAX).replace('\0', " ") {
        empty if empty.is_empty() => "?".to_string(),
        shown => shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::tests::watched;
    use crate::os::ControlBlock;
    use uzswap::control::Settings;

    #[test]
    fn a_long_run_has_no_more_samples_than_a_short_one() {
        let block = ControlBlock::create(&Settings::new()).unwrap();
        let mut sampler = Sampler::new(&watched(&block));
        let mut at_ms = 0;
        let slot = block.tree().claim(1).unwrap();
        for round in 0..7000 {
            block.tree().publish(slot, if round == 777 { 5000 } else { 50 }, 60);
            sampler.sample(at_ms);
            at_ms += sampler.interval.as_millis() as u64;
        }
        let series = sampler.finish();
        assert!((SAMPLES_MAX / 2..SAMPLES_MAX).contains(&series.samples.len()));
        assert!(at_ms > 24 * 3600 * 1000, "{at_ms} ms");
        assert!(series.samples.is_sorted_by_key(|s| s.at_ms));
        assert!(series.samples.iter().any(|s| s.used_pages == 5000), "the peak is still there");
    }

    #[test]
    fn a_long_command_line_ends_with_a_whole_character() {
        assert_eq!(command_in(b"prog\0-x\0\0\0"), "prog -x");
        assert_eq!(command_in(b"\0"), "?");
        for shift in ["", "x"] {
            let long = format!("{shift}{}", "\u{e4}".repeat(COMMAND_BYTES_MAX));
            let shown = command_in(long.as_bytes());
            assert!(
                shown.ends_with("\u{e4}...") && shown.len() <= COMMAND_BYTES_MAX + 3,
                "{shown}"
            );
        }
    }

    #[test]
    fn processes_are_told_apart_by_their_claim() {
        let block = ControlBlock::create(&Settings::new()).unwrap();
        let (tree, me) = (block.tree(), std::process::id());
        let mut sampler = Sampler::new(&watched(&block));
        let slot = tree.claim(me).unwrap();
        slot.add(Counter::Faults, 5);
        slot.latency.record(FaultKind::LimboHit, 900);
        slot.mechanism.store(Mechanism::Protect as u32, Ordering::Relaxed);
        slot.set(Counter::ResidentPages, 7);
        tree.publish(slot, 10, 40);
        sampler.sample(0);
        // An exec: the same number, the same slot, another program.
        tree.leave_former(me, |_| true);
        let slot = tree.claim(me).unwrap();
        tree.reserve(slot, 3);
        sampler.sample(100);
        tree.retire(slot, slot.id());
        sampler.sample(200);
        let series = sampler.finish();
        let counted: Vec<_> = series
            .samples
            .iter()
            .map(|s| (s.resident_pages, s.reserved_pages, s.processes))
            .collect();
        assert_eq!(counted, [(7, 0, 1), (0, 3, 1), (0, 0, 0)]);
        assert!(series.samples.iter().all(|s| s.faults == [0, 1, 0, 0]));
        let [first, second] = &series.processes[..] else { panic!("{:?}", series.processes) };
        assert_eq!(
            (first.pid, first.faults, first.peak_needed_pages, first.last_ms),
            (me, 5, 40, 0)
        );
        assert_eq!(first.mechanism, Some(Mechanism::Protect));
        assert_eq!((second.faults, second.peak_used_pages, second.mechanism), (0, 3, None));
        assert!(first.command.contains("uzswap") && !second.is_alive);
    }

    #[test]
    fn a_run_of_many_small_processes_is_not_remembered_whole() {
        let block = ControlBlock::create(&Settings::new()).unwrap();
        let mut sampler = Sampler::new(&watched(&block));
        for pid in 1..=3000u32 {
            let slot = block.tree().claim(pid).unwrap();
            block.tree().publish(slot, 1, i64::from(pid == 100) * 1000 + 1);
            sampler.sample(u64::from(pid));
            block.tree().retire(slot, slot.id());
        }
        let series = sampler.finish();
        assert!(series.processes.len() <= 2 * PROCESSES_MAX + 1);
        assert_eq!(series.processes.len() as u64 + series.forgotten, 3000);
        assert_eq!(series.processes[0].pid, 100);
    }
}
