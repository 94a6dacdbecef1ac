//! Watches a program while it runs: memory, how fast it is touched, and sampled pages.
//!
//! ```text
//!  clear   look  look    look         look                clear  look ...
//!  |--1ms--|-----|-------|------------|------------------||------|--...
//!  '------------------- one epoch, until a share of the memory is touched, or for long enough
//!  12 %, 30 % or 65 %: whichever has had the least of the time
//! ```
//!
//! Each look walks the page tables of the program, which may have to wait meanwhile to map memory
//! (milliseconds for each GiB), and after a clearing the processor marks each page anew (`mark`).
//! So looks and clearings together may take a tenth of the time and a fifth of a second, and the
//! table says what they took (processor time: their waits for a processor are not the program's
//! loss). Counted are the process and its descendants; memory that processes share by fork counts
//! in each.
//!
//! A program that is watched from within (`within`) is looked at for its memory and the sampled
//! pages only; what faults took of its time is counted there.

use std::collections::HashMap;
use std::fs;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use uzswap::control::{Counter, Tree};
use uzswap::latency::FaultKind;

use super::cost::Costs;
use super::curve::Step;
use super::look::{self, Area, PAGE_KIB};
use super::sample::Reservoir;
use super::within::Touches;
use crate::os;
use crate::procfs::own_time;

/// The time from a clearing to the first look.
const FIRST: Duration = Duration::from_millis(1);
/// The wait from one of the later looks to the next, as a part of the time since the clearing.
const LATER: f64 = 0.6;
/// Part of the time that looks may take, and seconds that they may take besides: short programs are
/// seen often enough, too.
const DUTY: f64 = 0.1;
const CREDIT: f64 = 0.2;
/// Epochs: they end when so much of the memory is touched, or after so much of the time so far.
/// Each kind gets as much time as the others.
const EPOCHS: [(f64, f64); 3] = [(0.12, 0.03), (0.3, 0.1), (0.65, 0.3)];
/// The shortest epoch.
const EPOCH_LEAST: Duration = Duration::from_millis(30);
/// The pause between two looks at a program that is watched from within: this part of the time so
/// far, between these bounds.
const WITHIN_AFTER: f64 = 0.1;
const WITHIN_LEAST: Duration = Duration::from_millis(5);
const WITHIN_MOST: Duration = Duration::from_millis(500);
/// Pages drawn at each look: as many as they will have places, between these.
const DRAWN: std::ops::RangeInclusive<u32> = 64..=1024;
/// How long a list of the processes is used before it is made anew.
const LIST_FOR: Duration = Duration::from_millis(50);
/// The largest parts of a step's time that are taken off for marks, and for faults. If more were
/// taken off, the short rest would be as uncertain as the part.
const MARKS_MOST: f64 = 0.85;
const FAULTS_MOST: f64 = 0.95;
/// A look that took more than so many times the mean was interrupted, and counts as so many times
/// the mean.
const TIMES_MEAN: f64 = 4.0;

/// A program as it was seen.
pub struct Observation {
    pub seconds: f64,
    pub steps: Vec<Step>,
    pub pages: Vec<std::sync::Arc<crate::pages::PageBytes>>,
    pub peak_bytes: u64,
    /// The part of the peak in huge pages.
    pub peak_huge_bytes: u64,
    /// The most processes at a time that hold enough to be paged.
    pub large_processes: u32,
    pub looks: u32,
    /// Seconds taken by looks, and the part of them taken by clearings.
    pub look_seconds: f64,
    pub clear_seconds: f64,
    /// The time by which watching slowed the program (marks, or faults from within); `seconds` and
    /// steps are without it.
    pub mark_seconds: f64,
    /// From within: how often pages were used again.
    pub touches: Option<Touches>,
    /// How many processors it kept busy, in the mean.
    pub processors: f64,
}

impl Observation {
    /// The observation without the time that faults took, by the costs of faults and first touches.
    /// Of several processors at work one waits for each.
    pub fn without_faults(self, costs: &Costs) -> Observation {
        let processors = self.processors.max(1.0);
        self.without(FAULTS_MOST, |step| {
            let new = [step.new_pages - step.new_huge_pages, step.new_huge_pages];
            let anyway = new[0] * costs.first_ns[0] + new[1] * costs.first_ns[1];
            (step.fault_seconds + (step.faults * costs.signal_ns - anyway) / 1e9) / processors
        })
    }

    /// The observation without the time in which pages were marked anew after clearings.
    pub fn without_marks(self, mark_ns: f64) -> Observation {
        self.without(MARKS_MOST, |step| step.marks * mark_ns / 1e9)
    }

    /// Takes so many seconds off each step, a part of it at most.
    fn without(mut self, most: f64, watching_seconds: impl Fn(&Step) -> f64) -> Observation {
        for step in &mut self.steps {
            let longer = watching_seconds(step).clamp(0.0, most * step.seconds);
            step.seconds -= longer;
            self.seconds -= longer;
            self.mark_seconds += longer;
        }
        self
    }
}

/// Counts of uzswap in all processes.
#[derive(Clone, Copy, Default)]
struct Counted {
    first_touches: u64,
    faults: u64,
    fault_ns: u64,
}

impl Counted {
    fn of(tree: &Tree) -> Counted {
        let mut counted =
            Counted { first_touches: tree.total(Counter::FirstTouches), ..Counted::default() };
        for kind in FaultKind::ALL {
            let latency = tree.latency(kind);
            counted.faults += latency.count();
            counted.fault_ns += latency.sum_ns;
        }
        counted
    }
}

/// A process between two looks.
#[derive(Default)]
struct Known {
    areas: Vec<Area>,
    minor_faults: u64,
}

pub struct Watch {
    root: u32,
    /// The counts of a program watched from within, and those at the last look.
    within: Option<&'static Tree>,
    counted: Counted,
    started: Instant,
    listed: Option<Instant>,
    processes: HashMap<u32, Known>,
    reservoir: Reservoir,
    seen: Observation,
    /// Which kind of epoch it is, how long each has been, when this one began, and what was known
    /// at the last look.
    kind: usize,
    spent: [Duration; EPOCHS.len()],
    /// Seconds of looks and clearings, by which the next one is put off.
    counted_seconds: f64,
    epoch_began: Instant,
    looked: Instant,
    touched_pages: f64,
}

impl Watch {
    pub fn new(root: u32, within: Option<&'static Tree>) -> Watch {
        let now = Instant::now();
        Watch {
            root,
            within,
            counted: Counted::default(),
            started: now,
            listed: None,
            processes: HashMap::new(),
            reservoir: Reservoir::new(),
            seen: Observation {
                seconds: 0.0,
                steps: Vec::new(),
                pages: Vec::new(),
                peak_bytes: 0,
                peak_huge_bytes: 0,
                large_processes: 0,
                looks: 0,
                look_seconds: 0.0,
                clear_seconds: 0.0,
                mark_seconds: 0.0,
                touches: None,
                processors: 1.0,
            },
            kind: 0,
            spent: [Duration::ZERO; EPOCHS.len()],
            counted_seconds: 0.0,
            epoch_began: now,
            looked: now,
            touched_pages: 0.0,
        }
    }

    /// Watches until the program has gone, or the other end of `stop` has. `progress` hears after
    /// each look how long it has been, and how much memory there is.
    pub fn run(
        mut self,
        stop: &Receiver<()>,
        mut progress: impl FnMut(Duration, u64),
    ) -> Observation {
        let mut wait = FIRST;
        if self.within.is_none() {
            self.clear();
        }
        while let Err(RecvTimeoutError::Timeout) = stop.recv_timeout(wait) {
            let Some(bytes) = self.look() else { break };
            progress(self.started.elapsed(), bytes);
            if self.within.is_some() {
                let next =
                    self.started.elapsed().mul_f64(WITHIN_AFTER).clamp(WITHIN_LEAST, WITHIN_MOST);
                wait = self.owed().max(next);
                continue;
            }
            let since = self.epoch_began.elapsed();
            // An epoch goes on until its looks are paid for.
            wait = match (self.is_epoch_over(bytes), self.owed()) {
                (true, Duration::ZERO) => {
                    self.clear();
                    FIRST
                }
                (true, owed) => owed.max(FIRST),
                (false, _) => since.mul_f64(LATER),
            };
        }
        self.seen.seconds = self.started.elapsed().as_secs_f64();
        self.seen.pages = self.reservoir.into_pages();
        self.seen
    }

    fn is_epoch_over(&self, bytes: u64) -> bool {
        let (share, part) = EPOCHS[self.kind];
        let longest = self.started.elapsed().mul_f64(part).max(EPOCH_LEAST);
        self.touched_pages >= share * bytes as f64 / 4096.0 || self.epoch_began.elapsed() >= longest
    }

    /// Counts what a look took, or a clearing.
    fn count(&mut self, took: Duration) {
        let took = took.as_secs_f64();
        let mean = self.counted_seconds / f64::from(self.seen.looks.max(1));
        self.counted_seconds +=
            if self.seen.looks > 0 { took.min(TIMES_MEAN * mean) } else { took };
        self.seen.look_seconds += took;
    }

    /// How long it is until the looks so far have taken no more than they may.
    fn owed(&self) -> Duration {
        let paid_after = (self.counted_seconds - CREDIT) / DUTY;
        Duration::try_from_secs_f64(paid_after - self.started.elapsed().as_secs_f64())
            .unwrap_or(Duration::ZERO)
    }

    fn clear(&mut self) {
        self.list();
        self.spent[self.kind] += self.epoch_began.elapsed();
        self.kind = (0..EPOCHS.len()).min_by_key(|kind| self.spent[*kind]).expect("some");
        let (began, spent) = (Instant::now(), own_time());
        for (pid, known) in &mut self.processes {
            // A process that has gone is found out by the next look.
            let _ = look::clear(*pid);
            known.areas.iter_mut().for_each(|area| area.referenced_kib = 0);
        }
        self.epoch_began = began + began.elapsed() / 2;
        let took = own_time() - spent;
        self.seen.clear_seconds += took.as_secs_f64();
        self.count(took);
        self.looked = self.epoch_began;
        self.touched_pages = 0.0;
    }

    /// Looks at all processes and notes what has happened since the last look. Returns their memory
    /// in bytes; none if none is left.
    fn look(&mut self) -> Option<u64> {
        self.list();
        let (began, spent) = (Instant::now(), own_time());
        let mut step = Step { touched_before_pages: self.touched_pages, ..Step::default() };
        let (mut total, mut huge, mut touched, mut large) = (0, 0, 0, 0);
        let mut looked_at = Vec::new();
        self.processes.retain(|pid, known| {
            let Ok(mut areas) = look::look(*pid) else { return false };
            if self.within.is_some() && areas.iter().any(|area| area.is_managed) {
                // The others are uzswap's own.
                areas.retain(|area| area.is_managed);
            }
            let minor_faults = minor_faults(*pid);
            let again = look::touched_again(&known.areas, &areas);
            step.again_pages += again.kib as f64 / PAGE_KIB;
            step.marks += again.marks;
            step.new_pages += minor_faults.saturating_sub(known.minor_faults) as f64;
            let sum = |of: fn(&Area) -> u64| areas.iter().map(of).sum::<u64>();
            let anonymous = sum(|area| area.anonymous_kib);
            total += anonymous;
            huge += sum(|area| area.huge_kib);
            touched += sum(|area| area.referenced_kib);
            large += u32::from(anonymous >= LARGE_KIB);
            looked_at.push((*pid, anonymous));
            *known = Known { areas, minor_faults };
            true
        });
        if let Some(tree) = self.within {
            let now = Counted::of(tree);
            let before = std::mem::replace(&mut self.counted, now);
            // A process that ends at this moment may be missing in one of the two.
            let since = |of: fn(&Counted) -> u64| of(&now).saturating_sub(of(&before)) as f64;
            step.new_pages = since(|counted| counted.first_touches);
            step.faults = since(|counted| counted.faults);
            step.fault_seconds = since(|counted| counted.fault_ns) / 1e9;
            step.again_pages = 0.0;
            // While pages are watched there are no huge pages. So memory that the program asks to
            // be huge is counted as if it were.
            huge = (tree.total(Counter::HugeBytes) >> 10).min(total);
            step.new_huge_pages = step.new_pages * huge as f64 / total.max(1) as f64;
        }
        let (ended, spent) = (Instant::now(), own_time() - spent);
        // The walk goes on while the program does: what it sees is of the middle of it.
        let now = began + (ended - began) / 2;
        step.seconds = now.saturating_duration_since(self.looked).as_secs_f64();
        step.anonymous_pages = total as f64 / PAGE_KIB;
        step.touched_pages = touched as f64 / PAGE_KIB;
        self.looked = now;
        self.touched_pages = step.touched_pages;
        let all =
            self.reservoir.places(total as f64 * step.seconds).clamp(*DRAWN.start(), *DRAWN.end());
        for (pid, anonymous) in looked_at {
            let drawn = (u64::from(all) * anonymous).div_ceil(total.max(1)) as u32;
            let weight = anonymous as f64 * step.seconds;
            self.reservoir.draw(pid, &self.processes[&pid].areas, drawn, weight);
        }
        let seen = &mut self.seen;
        seen.steps.push(step);
        if total * 1024 > seen.peak_bytes {
            (seen.peak_bytes, seen.peak_huge_bytes) = (total * 1024, huge * 1024);
        }
        seen.large_processes = seen.large_processes.max(large);
        seen.looks += 1;
        self.count(spent);
        (!self.processes.is_empty()).then_some(total * 1024)
    }

    /// Brings the list of processes up to date, now and then.
    fn list(&mut self) {
        if self.listed.is_some_and(|at| at.elapsed() < LIST_FOR) {
            return;
        }
        let is_first = self.listed.is_none();
        self.listed = Some(Instant::now());
        let pids = with_descendants(self.root);
        self.processes.retain(|pid, _| pids.contains(pid));
        for pid in pids {
            // The work of a process before we came is not counted; all that one does that started
            // while we watch is.
            let minor_faults = if is_first { minor_faults(pid) } else { 0 };
            self.processes.entry(pid).or_insert_with(|| Known { minor_faults, ..Known::default() });
        }
    }
}

/// The anonymous memory from which on a process is counted as one that would page, 32 MiB.
const LARGE_KIB: u64 = 32 << 10;

fn with_descendants(root: u32) -> Vec<u32> {
    let (mut all, mut at) = (vec![root], 0);
    while let Some(pid) = all.get(at) {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
        let children: Vec<u32> = lists
            .flat_map(|list| {
                list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()
            })
            .collect();
        all.extend(children);
        at += 1;
    }
    all
}

/// Page faults of a process, nearly all of them first touches.
fn minor_faults(pid: u32) -> u64 {
    os::stat_of(pid).and_then(|stat| stat.get(7)?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_program_is_watched_with_what_it_starts() {
        // Something that holds memory, touches it, and starts another one that does.
        let script = "i=0; a=$(seq 30000); (b=$(seq 90000); sleep 0.3); for i in $a; do :; done";
        let mut child =
            Command::new("sh").args(["-c", script]).stdout(Stdio::null()).spawn().unwrap();
        let (_end, stop) = mpsc::channel();
        let watch = Watch::new(child.id(), None);
        let reaper = std::thread::spawn(move || child.wait());
        let mut most = 0;
        let seen = watch.run(&stop, |_, bytes| most = most.max(bytes));
        assert!(reaper.join().unwrap().unwrap().success());
        assert_eq!(seen.peak_bytes, most);
        assert!(most > 300 << 10, "{most}");
        assert!(!seen.pages.is_empty() && seen.looks > 2);
        let steps = seen.steps.iter();
        let new: f64 = steps.clone().map(|step| step.new_pages).sum();
        assert!(new > 100.0, "{new}");
        assert!(steps.clone().all(|step| step.seconds >= 0.0));
        assert!(seen.clear_seconds <= seen.look_seconds);
    }

    #[test]
    fn what_marks_took_is_not_the_programs_time() {
        let step = |marks: f64| Step { seconds: 0.01, marks, ..Step::default() };
        let (_end, stop) = mpsc::channel::<()>();
        let mut seen = Watch::new(u32::MAX >> 1, None).run(&stop, |_, _| ());
        (seen.seconds, seen.steps) = (0.02, vec![step(10_000.0), step(1e6)]);
        let seen = seen.without_marks(250.0);
        let seconds: Vec<f64> = seen.steps.iter().map(|step| step.seconds).collect();
        // 2.5 ms of the first; all of the second, of which some is left.
        assert!(
            (seconds[0] - 0.0075).abs() < 1e-9 && (seconds[1] - 0.0015).abs() < 1e-9,
            "{seconds:?}"
        );
        assert!((seen.seconds - 0.009).abs() < 1e-9 && (seen.mark_seconds - 0.011).abs() < 1e-9);
    }

    #[test]
    fn an_interrupted_look_does_not_end_the_watching() {
        let mut watch = Watch::new(std::process::id(), None);
        for took in [1, 1, 1, 500] {
            watch.seen.looks += 1;
            watch.count(Duration::from_millis(took));
        }
        assert!((watch.seen.look_seconds - 0.503).abs() < 1e-9 && watch.counted_seconds < 0.01);
        assert_eq!(watch.owed(), Duration::ZERO);
    }

    #[test]
    fn the_end_of_the_channel_ends_it() {
        let (end, stop) = mpsc::channel();
        drop(end);
        assert_eq!(Watch::new(std::process::id(), None).run(&stop, |_, _| ()).looks, 0);
    }
}
