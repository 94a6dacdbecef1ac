//! The metrics, in the text format of Prometheus 0.0.4.
//!
//! Made from the counters of `--stats`: what is summed is a counter and ends in `_total`, what is
//! held now is a gauge, pages are given in bytes and times in seconds. `uzswap_*` is of the whole
//! run, ended processes included; `uzswap_process_*` of each live process, which pid and name tell
//! apart.
//!
//! A counter never falls while the run lasts. A reader may miss the counts of a process for a
//! moment, while they move to the totals. So no figure is ever given that is smaller than the one
//! given before ([`Floor`]).

use std::collections::HashSet;
use std::fmt::{Display, Write};
use std::sync::atomic::Ordering;
use std::time::UNIX_EPOCH;

use uzswap::control::{Counter, Fold, Slot, Tree};
use uzswap::latency::{BUCKETS, FaultKind, Histogram, upper_ns};

use super::Watched;
use crate::os;
use crate::size::PAGE_BYTES;

/// Of the buckets of a fault's time every fourth is given for the run: powers of two. Of a process
/// every eighth.
const RUN_STEP: usize = 4;
const PROCESS_STEP: usize = 8;

/// Counters that are given for each process; the others only for the run, since a thousand
/// processes have a thousand of each.
const OF_PROCESSES: [Counter; 15] = [
    Counter::ResidentPages,
    Counter::LimboPages,
    Counter::StoredPages,
    Counter::PoolBytes,
    Counter::OutsidePages,
    Counter::ManagedBytes,
    Counter::Faults,
    Counter::FirstTouches,
    Counter::LimboHits,
    Counter::Loads,
    Counter::Evictions,
    Counter::Stores,
    Counter::WrittenBackPages,
    Counter::ReadBackPages,
    Counter::HookedCalls,
];

/// The text as it grows: a family is begun, its samples follow.
#[derive(Default)]
struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = match labels {
            "" => writeln!(self.0, "{name} {value}"),
            _ => writeln!(self.0, "{name}{{{labels}}} {value}"),
        };
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(name, "", value);
    }

    /// The buckets, count and sum of a histogram; `step` buckets of ours are one.
    fn histogram(&mut self, name: &str, labels: &str, histogram: &Histogram, step: usize) {
        let (bucket, comma) = (format!("{name}_bucket"), if labels.is_empty() { "" } else { "," });
        let mut sum = 0;
        for (index, count) in histogram.counts.iter().enumerate() {
            sum += count;
            let Some(upper) = upper_ns(index).filter(|_| index.is_multiple_of(step)) else {
                continue;
            };
            self.sample(&bucket, &format!("{labels}{comma}le=\"{}\"", seconds(upper)), sum);
        }
        self.sample(&bucket, &format!("{labels}{comma}le=\"+Inf\""), sum);
        self.sample(&format!("{name}_sum"), labels, seconds(histogram.sum_ns));
        self.sample(&format!("{name}_count"), labels, sum);
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// A value between the quotes of a label.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Name, type and factor of a counter. Those of which the largest process's value is kept say so.
fn exposed(counter: Counter, prefix: &str) -> (String, &'static str, u64) {
    let name = counter.name();
    let in_bytes = |name: &str| match name.strip_suffix("_pages") {
        Some(stem) => (format!("{stem}_bytes"), PAGE_BYTES),
        None => (name.to_string(), 1),
    };
    match counter.fold() {
        Fold::Sum => (format!("{prefix}{name}_total"), "counter", 1),
        Fold::Gauge => {
            let (name, factor) = in_bytes(name);
            (format!("{prefix}{name}"), "gauge", factor)
        }
        Fold::Max => {
            let (name, factor) = in_bytes(name);
            (format!("{prefix}largest_process_{name}"), "gauge", factor)
        }
    }
}

/// The counter's meaning, without the unit where it has become bytes.
fn help(counter: Counter) -> &'static str {
    counter.doc().trim_end_matches(" (4 KiB pages)").trim_end_matches(" (bytes)")
}

/// One process as of a moment.
struct Process {
    labels: String,
    counters: [u64; OF_PROCESSES.len()],
    used_pages: i64,
    needed_pages: i64,
    latency: Histogram,
}

impl Process {
    /// `None`: it came or went while we looked.
    fn of(slot: &Slot) -> Option<Process> {
        let pid = slot.process()?;
        let claims = slot.claims.load(Ordering::Acquire);
        let mut latency = Histogram::default();
        FaultKind::ALL.iter().for_each(|kind| slot.latency.add_to(*kind, &mut latency));
        let process = Process {
            labels: format!("pid=\"{pid}\",name=\"{}\"", escape(&os::name_of(pid))),
            counters: OF_PROCESSES.map(|c| slot.get(c)),
            used_pages: slot.used_pages.load(Ordering::Relaxed),
            needed_pages: slot.needed_pages.load(Ordering::Relaxed),
            latency,
        };
        let is_same = slot.process() == Some(pid) && slot.claims.load(Ordering::Acquire) == claims;
        is_same.then_some(process)
    }
}

/// The most that was said of each counter of the run.
struct Floor {
    counters: Vec<u64>,
    latency: [Histogram; FaultKind::ALL.len()],
}

impl Floor {
    fn counter(&mut self, tree: &Tree, counter: Counter) -> u64 {
        let floor = &mut self.counters[counter as usize];
        *floor = tree.total(counter).max(if counter.fold() == Fold::Gauge { 0 } else { *floor });
        *floor
    }

    fn latency(&mut self, tree: &Tree, kind: FaultKind) -> &Histogram {
        let (floor, now) = (&mut self.latency[kind as usize], tree.latency(kind));
        for index in 0..BUCKETS {
            floor.counts[index] = floor.counts[index].max(now.counts[index]);
        }
        floor.sum_ns = floor.sum_ns.max(now.sum_ns);
        floor
    }
}

pub struct Exposition {
    floor: Floor,
}

impl Exposition {
    pub fn new() -> Exposition {
        let latency = std::array::from_fn(|_| Histogram::default());
        Exposition { floor: Floor { counters: vec![0; Counter::COUNT], latency } }
    }

    /// All metrics as of now.
    pub fn render(&mut self, watched: &Watched) -> String {
        let mut text = Text::default();
        text.family("uzswap_info", "gauge", "version of uzswap");
        text.sample("uzswap_info", concat!("version=\"", env!("CARGO_PKG_VERSION"), "\""), 1);
        let began = watched.started_at.duration_since(UNIX_EPOCH).unwrap_or_default();
        text.single(
            "uzswap_start_time_seconds",
            "gauge",
            "when the program was started, in seconds since 1970",
            began.as_secs_f64(),
        );
        text.single(
            "uzswap_managed",
            "gauge",
            "1 if the program is managed",
            watched.tree.is_some() as u8,
        );
        match watched.tree {
            Some(tree) => self.managed(&mut text, tree, watched.memory_bytes),
            None => text.single("uzswap_limit_bytes", "gauge", LIMIT_HELP, watched.memory_bytes),
        }
        text.0
    }

    fn managed(&mut self, text: &mut Text, tree: &Tree, memory_bytes: u64) {
        let bytes =
            |v: &std::sync::atomic::AtomicI64| v.load(Ordering::Relaxed).max(0) as u64 * PAGE_BYTES;
        // Set by the first process when it starts.
        let limit =
            Some(bytes(&tree.limit_pages)).filter(|limit| *limit > 0).unwrap_or(memory_bytes);
        for (name, help, value) in [
            ("uzswap_limit_bytes", LIMIT_HELP, limit),
            (
                "uzswap_used_bytes",
                "memory that its processes hold or have reserved",
                bytes(&tree.used_pages),
            ),
            (
                "uzswap_peak_used_bytes",
                "the most that they held together",
                bytes(&tree.peak_used_pages),
            ),
            (
                "uzswap_needed_bytes",
                "what they would hold without uzswap",
                bytes(&tree.needed_pages),
            ),
            ("uzswap_peak_needed_bytes", "the most of that", bytes(&tree.peak_needed_pages)),
            (
                "uzswap_shared_bytes",
                "shared memory in it, which is not paged",
                bytes(&tree.shared_pages),
            ),
        ] {
            text.single(name, "gauge", help, value);
        }
        let mut seen = HashSet::new();
        let processes: Vec<Process> = tree.used_slots().iter().filter_map(Process::of).collect();
        // In namespaces of their own two may have one number; of two alike only one can be told.
        let processes: Vec<&Process> =
            processes.iter().filter(|p| seen.insert(p.labels.as_str())).collect();
        text.single(
            "uzswap_processes",
            "gauge",
            "managed processes that are alive",
            processes.len(),
        );
        for counter in Counter::ALL {
            let (name, kind, factor) = exposed(*counter, "uzswap_");
            let value = self.floor.counter(tree, *counter) * factor;
            text.single(&name, kind, help(*counter), value);
        }
        const RUN: &str = "uzswap_fault_duration_seconds";
        text.family(
            RUN,
            "histogram",
            "time of a fault in uzswap's handler, by what was to be done",
        );
        for kind in FaultKind::ALL {
            let labels = format!("kind=\"{}\"", kind.name());
            text.histogram(RUN, &labels, self.floor.latency(tree, kind), RUN_STEP);
        }
        of_processes(text, &processes);
    }
}

const LIMIT_HELP: &str = "memory that the program and all it starts may hold";

fn of_processes(text: &mut Text, processes: &[&Process]) {
    if processes.is_empty() {
        return;
    }
    type Pages = fn(&Process) -> i64;
    let pages: [(&str, &str, Pages); 2] = [
        ("uzswap_process_used_bytes", "memory that the process holds or has reserved", |p| {
            p.used_pages
        }),
        ("uzswap_process_needed_bytes", "what it would hold without uzswap", |p| p.needed_pages),
    ];
    for (name, help, value) in pages {
        text.family(name, "gauge", help);
        processes
            .iter()
            .for_each(|p| text.sample(name, &p.labels, value(p).max(0) as u64 * PAGE_BYTES));
    }
    for (index, counter) in OF_PROCESSES.into_iter().enumerate() {
        let (name, kind, factor) = exposed(counter, "uzswap_process_");
        text.family(&name, kind, help(counter));
        processes.iter().for_each(|p| text.sample(&name, &p.labels, p.counters[index] * factor));
    }
    const PROCESS: &str = "uzswap_process_fault_duration_seconds";
    text.family(PROCESS, "histogram", "time of a fault in uzswap's handler");
    for process in processes {
        text.histogram(PROCESS, &process.labels, &process.latency, PROCESS_STEP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::tests::watched;
    use crate::os::ControlBlock;
    use uzswap::control::Settings;

    #[test]
    fn names_have_their_units_and_types() {
        let named = |c| exposed(c, "uzswap_");
        assert_eq!(named(Counter::Faults), ("uzswap_faults_total".to_string(), "counter", 1));
        assert_eq!(
            named(Counter::ResidentPages),
            ("uzswap_resident_bytes".to_string(), "gauge", 4096)
        );
        assert_eq!(named(Counter::PoolBytes), ("uzswap_pool_bytes".to_string(), "gauge", 1));
        let (name, kind, factor) = named(Counter::PeakUsedPages);
        assert_eq!(
            (name.as_str(), kind, factor),
            ("uzswap_largest_process_peak_used_bytes", "gauge", 4096)
        );
        let mut names: Vec<String> = Counter::ALL.iter().map(|c| named(*c).0).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), Counter::COUNT);
        assert!(OF_PROCESSES.iter().all(|c| c.fold() != Fold::Max));
    }

    #[test]
    fn the_run_and_its_processes() {
        let block = ControlBlock::create(&Settings::new()).unwrap();
        let slot = block.tree().claim(std::process::id()).unwrap();
        slot.add(Counter::Faults, 3);
        slot.set(Counter::ResidentPages, 2);
        slot.latency.record(FaultKind::PoolLoad, 3000);
        slot.latency.record(FaultKind::PoolLoad, 5000);
        block.tree().publish(slot, 10, 30);
        let mut exposition = Exposition::new();
        let text = exposition.render(&watched(&block));
        let labels = format!("pid=\"{}\",name=", std::process::id());
        for line in [
            "uzswap_faults_total 3",
            "uzswap_resident_bytes 8192",
            "uzswap_peak_needed_bytes 122880",
            "uzswap_limit_bytes 67108864",
            "# TYPE uzswap_fault_duration_seconds histogram",
            "uzswap_fault_duration_seconds_bucket{kind=\"pool_load\",le=\"0.000002048\"} 0",
            "uzswap_fault_duration_seconds_bucket{kind=\"pool_load\",le=\"0.000004096\"} 1",
            "uzswap_fault_duration_seconds_bucket{kind=\"pool_load\",le=\"+Inf\"} 2",
            "uzswap_fault_duration_seconds_sum{kind=\"pool_load\"} 0.000008",
            "uzswap_fault_duration_seconds_count{kind=\"first_touch\"} 0",
        ] {
            assert!(text.contains(&format!("\n{line}\n")), "{line} is not in\n{text}");
        }
        assert!(text.contains(&format!("uzswap_process_faults_total{{{labels}")), "{text}");
        // A process that ended still counts, and one that is missed for a moment is said again.
        block.tree().retire(slot, slot.id());
        slot.counters[Counter::Faults as usize].store(0, Ordering::Relaxed);
        block.tree().totals[Counter::Faults as usize].store(1, Ordering::Relaxed);
        let text = exposition.render(&watched(&block));
        assert!(text.contains("\nuzswap_faults_total 3\n") && !text.contains(&labels), "{text}");
        assert!(text.contains("\nuzswap_resident_bytes 0\n"));
    }

    #[test]
    fn labels_are_escaped() {
        assert_eq!(escape("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }
}
