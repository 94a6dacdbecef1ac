//! The words at the end of a run: one line for people, warnings, and JSON with every counter.

use std::io::Write;
use std::sync::atomic::Ordering;

use serde_json::{Map, Value, json};
use uzswap::control::{Counter, Fold, Mechanism, Notice, Tree};
use uzswap::latency::{FaultKind, Histogram, upper_ns};

mod notices;

use crate::console;
use crate::observe::outcome::{Outcome, Told, settings_json};
use crate::observe::page;
use crate::observe::sampler::Series;
use crate::os::{self, How};
use crate::program::reason;
use crate::size::{PAGE_BYTES, grouped, human};
use crate::whole_file;
use crate::written;
use notices::{Over, explain, notice_name, notices};

/// The part of the limit by which a run may pass it without a warning.
const SLACK_PART: u64 = 64;
/// The part of the limit by which it must have been lowered, or that shared memory must have taken,
/// to be worth a line.
const TOLD_PART: u64 = 8;

/// Prints warnings and the summary, and writes the statistics and the report.
pub fn finish(outcome: &Outcome) {
    let numbers = outcome.tree.map(Numbers::of);
    let lowest_bytes = outcome.tree.and_then(lowest_limit_bytes);
    let mut warnings = Vec::new();
    if let Some(tree) = outcome.tree {
        warn_of_notices(tree, outcome, lowest_bytes, &mut warnings);
    }
    let tell = |line: &str| {
        if !outcome.settings.quiet {
            console::say(line);
        }
    };
    let first_bytes = outcome.settings.memory_bytes;
    let is_lowered = |bytes: &u64| *bytes < first_bytes - first_bytes / TOLD_PART;
    let lowered = lowest_bytes.filter(is_lowered).map(|bytes| {
        let bytes = human(bytes);
        format!("the limit was lowered to {bytes} at times: its memory group had no more room")
    });
    let shared_bytes = numbers.as_ref().map_or(0, |n| n.peak_shared_bytes);
    let shared = (shared_bytes > first_bytes / TOLD_PART).then(|| {
        format!(
            "up to {} of the memory was shared (memfd, /dev/shm, MAP_SHARED), which is not paged",
            human(shared_bytes)
        )
    });
    for warning in [lowered, shared].into_iter().flatten() {
        tell(&warning);
        warnings.push(warning);
    }
    // A limit that was lowered was not set by the user.
    let last_bytes = outcome.tree.map(limit_bytes).filter(|_| lowest_bytes.is_none());
    let summary = summary(numbers.as_ref(), outcome.settings.memory_bytes, last_bytes);
    tell(&summary);
    if let Some(stats) = &outcome.settings.stats {
        let text = format!("{:#}\n", statistics(outcome));
        if let Err(e) = (&stats.file).write_all(text.as_bytes()) {
            console::say(&format!("--stats: {}: {}", stats.path.display(), reason(&e)));
        }
    }
    if let Some(path) = &outcome.settings.report {
        let numbers = numbers.unwrap_or_default();
        let told = Told {
            summary,
            warnings,
            peak_used_bytes: numbers.peak_used_bytes,
            peak_needed_bytes: numbers.peak_needed_bytes,
            ratio: numbers.ratio(),
        };
        let none = Series::default();
        if let Err(e) =
            whole_file::write(path, &page::render(outcome, &told, outcome.series.unwrap_or(&none)))
        {
            console::say(&format!("--report: {}: {}", path.display(), reason(&e)));
        }
    }
}

/// Prints the notices of a run as warnings. `lowest_bytes`: the lowest limit that its memory group
/// has led to.
fn warn_of_notices(
    tree: &Tree,
    outcome: &Outcome,
    lowest_bytes: Option<u64>,
    warnings: &mut Vec<String>,
) {
    let over = Over::of(tree, outcome.settings.memory_bytes);
    for notice in notices(tree) {
        let warning = match lowest_bytes.filter(|_| over.is_none()) {
            Some(bytes) if notice == Notice::OverLimit => format!(
                "the limit could not be held while it was lowered to {}: what must stay in \
                 memory is larger",
                human(bytes)
            ),
            _ => {
                let errno = tree.notice_errnos[notice as usize].load(Ordering::Acquire);
                explain(notice, errno as i32, outcome.settings, over.as_ref())
            }
        };
        // Failures are said in any case; that a helper program ran unmanaged belongs to the
        // summary.
        if notice != Notice::Unmanaged || !outcome.settings.quiet {
            console::say(&warning);
        }
        warnings.push(warning);
    }
}

/// The figures of the summary.
#[derive(Debug, Default)]
struct Numbers {
    processes: u64,
    activations: u64,
    peak_used_bytes: u64,
    peak_needed_bytes: u64,
    peak_shared_bytes: u64,
    faults: u64,
    /// Written back from the pool, or straight to the store.
    written_pages: u64,
    unmanaged: u64,
}

impl Numbers {
    fn of(tree: &Tree) -> Numbers {
        let peak =
            |v: &std::sync::atomic::AtomicI64| v.load(Ordering::Relaxed).max(0) as u64 * PAGE_BYTES;
        let peak_used_bytes = peak(&tree.peak_used_pages);
        Numbers {
            processes: tree.total(Counter::Processes),
            activations: tree.total(Counter::Activations),
            peak_used_bytes,
            // A program cannot have needed less than it held.
            peak_needed_bytes: peak(&tree.peak_needed_pages).max(peak_used_bytes),
            peak_shared_bytes: peak(&tree.peak_shared_pages),
            faults: tree.total(Counter::Faults),
            written_pages: written::pages(|counter| tree.total(counter)),
            unmanaged: tree.total(Counter::UnmanagedExecs),
        }
    }

    /// Programs that the figures do not have.
    fn besides(&self) -> String {
        match self.unmanaged {
            0 => String::new(),
            1 => ", without a program that ran unmanaged".to_string(),
            n => format!(", without {n} programs that ran unmanaged"),
        }
    }

    fn ratio(&self) -> f64 {
        if self.peak_used_bytes == 0 {
            1.0
        } else {
            self.peak_needed_bytes as f64 / self.peak_used_bytes as f64
        }
    }
}

/// The limit at the end; 0: no process has started.
fn limit_bytes(tree: &Tree) -> u64 {
    tree.limit_pages.load(Ordering::Relaxed).max(0) as u64 * PAGE_BYTES
}

/// The lowest limit that the room of the memory group has led to, if it has.
fn lowest_limit_bytes(tree: &Tree) -> Option<u64> {
    let pages = tree.lowest_limit_pages.load(Ordering::Relaxed);
    (pages > 0).then(|| pages as u64 * PAGE_BYTES)
}

/// `last_bytes`: the limit at the end, which `uzswap set` may have changed.
fn summary(numbers: Option<&Numbers>, memory_bytes: u64, last_bytes: Option<u64>) -> String {
    let memory =
        match last_bytes.filter(|l| *l != 0 && *l / PAGE_BYTES != memory_bytes / PAGE_BYTES) {
            None => human(memory_bytes),
            Some(last) => format!("{} (set to {} while it ran)", human(memory_bytes), human(last)),
        };
    let most_bytes = memory_bytes.max(last_bytes.unwrap_or(0));
    match numbers {
        None => "ran unmanaged".to_string(),
        Some(n) if n.processes == 0 => {
            "ran unmanaged: the preload library did not start in the program (see 'uzswap doctor')"
                .to_string()
        }
        Some(n) if n.activations == 0 => {
            let peak = human(n.peak_used_bytes);
            // Some slack: the kernel's own for a process, and what it counts in batches, is in no
            // limit.
            let is_passed = n.peak_used_bytes > most_bytes + most_bytes / SLACK_PART;
            let how = if is_passed { "passed the limit" } else { "fitted" };
            format!("{how}: peak {peak} of {memory}{}", n.besides())
        }
        Some(n) => format!(
            "peak {} of {memory} for {} ({:.1}x), {} faults, {} pages written to the \
             store{}",
            human(n.peak_used_bytes),
            human(n.peak_needed_bytes),
            n.ratio(),
            grouped(n.faults),
            grouped(n.written_pages),
            n.besides()
        ),
    }
}

/// How long the faults of one kind took. Buckets are pairs of the longest time (null: without end)
/// and the count.
fn latency_json(histogram: &Histogram) -> Value {
    let counts = histogram.counts.iter().enumerate().filter(|(_, count)| **count > 0);
    json!({
        "count": histogram.count(),
        "mean_ns": histogram.mean_ns(),
        "p50_ns": histogram.quantile_ns(0.5),
        "p99_ns": histogram.quantile_ns(0.99),
        "p999_ns": histogram.quantile_ns(0.999),
        "buckets": counts.map(|(index, count)| json!([upper_ns(index), count])).collect::<Vec<_>>(),
    })
}

/// The JSON of `--stats`. [`DOCUMENTED`] explains it.
fn statistics(outcome: &Outcome) -> Value {
    let numbers = outcome.tree.map(Numbers::of).unwrap_or_default();
    let (code, signal) = match outcome.end.how {
        How::Exited(code) => (Some(code), None),
        How::Killed(signal) => (None, Some(os::signal_name(signal))),
        How::Unknown => (None, None),
    };
    let counters: Map<String, Value> = match outcome.tree {
        None => Map::new(),
        Some(tree) => {
            Counter::ALL.iter().map(|c| (c.name().to_string(), tree.total(*c).into())).collect()
        }
    };
    let mechanisms: Vec<&str> = outcome
        .tree
        .map(|t| t.mechanisms_used().map(Mechanism::name).collect())
        .unwrap_or_default();
    let latency: Map<String, Value> = match outcome.tree {
        None => Map::new(),
        Some(tree) => {
            let of = |kind: FaultKind| (kind.name().to_string(), latency_json(&tree.latency(kind)));
            FaultKind::ALL.into_iter().map(of).collect()
        }
    };
    let names: Vec<&str> =
        outcome.tree.map(|t| notices(t).map(notice_name).collect()).unwrap_or_default();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "command": outcome.command.iter().map(|a| a.to_string_lossy()).collect::<Vec<_>>(),
        "pid": outcome.pid,
        "exit_code": code,
        "signal": signal,
        "wall_seconds": outcome.wall_time.as_secs_f64(),
        "managed": numbers.processes > 0,
        "mechanisms": mechanisms,
        "peak_used_bytes": numbers.peak_used_bytes,
        "peak_needed_bytes": numbers.peak_needed_bytes,
        "peak_shared_bytes": numbers.peak_shared_bytes,
        "ratio": numbers.ratio(),
        "lowest_limit_bytes": outcome.tree.and_then(lowest_limit_bytes),
        "settings": settings_json(outcome.settings),
        "notices": names,
        "fault_latency": latency,
        "counters": counters,
    })
}

/// The keys of `--stats` that are not counters, with their meaning.
pub const DOCUMENTED: &[(&str, &str)] = &[
    ("version", "of uzswap"),
    ("command", "the program and its arguments"),
    ("pid", "its process"),
    ("exit_code", "how it ended, or null"),
    ("signal", "the signal that killed it (SIGTERM), or null"),
    ("wall_seconds", "from its start to its end (seconds)"),
    ("managed", "whether the runtime started in it"),
    ("mechanisms", "the ones that were used: none if no process came near the limit"),
    (
        "peak_used_bytes",
        "largest memory of all its processes together that was counted against the limit (bytes)",
    ),
    (
        "peak_needed_bytes",
        "largest memory that they would have needed together without uzswap (bytes)",
    ),
    (
        "peak_shared_bytes",
        "largest shared memory that they mapped, each page once; of the limit it takes three \
         quarters at most, and is not paged (bytes)",
    ),
    ("ratio", "peak_needed_bytes by peak_used_bytes"),
    (
        "lowest_limit_bytes",
        "lowest limit that the run was given while its memory group had less room than at the \
         start, or null (bytes)",
    ),
    (
        "settings",
        "the options of the run as they were resolved, with memory_from saying where the limit is \
         from",
    ),
    (
        "notices",
        "warnings: store_failed, no_mechanism, over_limit, too_many_processes, corrupt_page, \
         unmanaged, not_traced, paging_ended, sandboxed, load_refused, remote_lost, remote_gone",
    ),
    (
        "fault_latency",
        "how long faults took in uzswap's handler, by first_touch, limbo_hit, pool_load, \
         store_load: count, mean_ns, p50_ns, p99_ns, p999_ns, and buckets as pairs of the longest \
         time (ns, null: without end) and the count; all zero where the processor's time stamp \
         counter cannot be used",
    ),
    ("counters", "the counters below, over all processes of the run"),
];

pub fn fold_word(fold: Fold) -> &'static str {
    match fold {
        Fold::Sum => "sum",
        Fold::Max => "largest",
        Fold::Gauge => "at the end",
    }
}

/// `uzswap help stats`.
pub fn stats_help() -> String {
    let mut text = String::from("The file of --stats is one JSON object:\n\n");
    for (key, meaning) in DOCUMENTED {
        text += &format!("  {key:<20} {meaning}\n");
    }
    text += "\nCounters are sums over all processes; (largest) is the largest of one process, (at \
             the end) is what\n\
             processes that were still alive then held:\n\n";
    for counter in Counter::ALL {
        let fold = match counter.fold() {
            Fold::Sum => String::new(),
            other => format!(" ({})", fold_word(other)),
        };
        text += &format!("  {:<20} {}{fold}\n", counter.name(), counter.doc());
    }
    text
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::os::ControlBlock;
    use crate::os::End;
    use crate::settings::{Backing, RunSettings};
    use std::ffi::OsString;
    use std::time::{Duration, SystemTime};
    use uzswap::control::{HugePages, Settings};

    pub const MIB: u64 = 1 << 20;

    #[test]
    fn the_summary_says_what_happened() {
        let mut n = Numbers {
            processes: 2,
            activations: 1,
            peak_used_bytes: 498 * MIB,
            peak_needed_bytes: 1946 * MIB,
            peak_shared_bytes: 0,
            faults: 123_456,
            written_pages: 78_901,
            unmanaged: 0,
        };
        assert_eq!(
            summary(Some(&n), 512 * MIB, Some(512 * MIB)),
            "peak 498 MiB of 512 MiB for 1.9 GiB (3.9x), 123 456 faults, 78 901 pages written to \
             the store"
        );
        n.activations = 0;
        assert_eq!(summary(Some(&n), 512 * MIB, Some(0)), "fitted: peak 498 MiB of 512 MiB");
        assert_eq!(
            summary(Some(&n), 512 * MIB, Some(1 << 30)),
            "fitted: peak 498 MiB of 512 MiB (set to 1.0 GiB while it ran)"
        );
        n.processes = 0;
        assert!(
            summary(Some(&n), 512 * MIB, None).starts_with("ran unmanaged: the preload library")
        );
        assert_eq!(summary(None, 512 * MIB, None), "ran unmanaged");
        let n = Numbers {
            processes: 2,
            peak_used_bytes: 600 * MIB,
            unmanaged: 2,
            ..Default::default()
        };
        assert_eq!(
            summary(Some(&n), 512 * MIB, Some(256 * MIB)),
            "passed the limit: peak 600 MiB of 512 MiB (set to 256 MiB while it ran), without 2 \
             programs that ran unmanaged"
        );
        let n = Numbers { activations: 1, unmanaged: 1, ..n };
        assert!(
            summary(Some(&n), 512 * MIB, None)
                .ends_with("store, without a program that ran unmanaged")
        );
        assert_eq!(Numbers::default().ratio(), 1.0);
    }

    #[test]
    fn the_summary_counts_incompressible_pages_that_went_to_the_store() {
        let block = ControlBlock::create(&Settings::new()).unwrap();
        let slot = block.tree().claim(1).unwrap();
        slot.add(Counter::Processes, 1);
        slot.add(Counter::Activations, 1);
        slot.add(Counter::RejectPoor, 700);
        slot.add(Counter::WrittenBackPages, 5);
        let text = summary(Some(&Numbers::of(block.tree())), 512 * MIB, None);
        assert!(text.ends_with(" 705 pages written to the store"), "{text}");
    }

    pub fn settings() -> RunSettings {
        RunSettings {
            memory_bytes: 512 * MIB,
            memory_origin: "--memory".to_string(),
            group_margin_bytes: None,
            compression: crate::settings::compression::default(),
            huge_pages: HugePages::Madvise,
            store: Some(Backing::Directory("/var/tmp".into())),
            stats: None,
            metrics: None,
            report: None,
            trace: None,
            mechanism: Mechanism::Auto,
            if_possible: false,
            encrypt: true,
            cache: None,
            quiet: false,
            debug: false,
            idle_after: None,
            in_place: false,
            takes_turns: true,
            remarks: vec![],
        }
    }

    #[test]
    fn the_json_has_every_counter_and_every_key_is_documented() {
        let block = ControlBlock::create(&Settings::new()).unwrap();
        let tree = block.tree();
        let slot = tree.claim(1).unwrap();
        slot.add(Counter::Processes, 1);
        slot.add(Counter::Faults, 7);
        slot.latency.record(FaultKind::PoolLoad, 3000);
        slot.mechanism.store(Mechanism::UserfaultfdCopy as u32, Ordering::Relaxed);
        tree.publish(slot, 8, 28);
        tree.count_shared(2, i64::MAX);
        tree.lowest_limit_pages.store(1, Ordering::Relaxed);
        tree.notice(Notice::StoreFailed, libc::ENOSPC);
        let settings = settings();
        let command = [OsString::from("prog")];
        let outcome = Outcome {
            settings: &settings,
            command: &command,
            tree: Some(tree),
            end: End { pid: 1, how: How::Killed(libc::SIGTERM) },
            started_at: SystemTime::UNIX_EPOCH,
            wall_time: Duration::from_millis(1500),
            pid: 1,
            series: None,
        };
        let json = statistics(&outcome);
        let keys: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, DOCUMENTED.iter().map(|(k, _)| *k).collect::<Vec<_>>());
        assert_eq!(json["counters"].as_object().unwrap().len(), Counter::COUNT);
        assert_eq!(json["counters"]["faults"], 7);
        let loads = &json["fault_latency"]["pool_load"];
        assert_eq!((&loads["count"], &loads["mean_ns"]), (&json!(1), &json!(3000.0)));
        assert_eq!(loads["buckets"], json!([[3072, 1]]));
        assert_eq!(json["fault_latency"].as_object().unwrap().len(), FaultKind::ALL.len());
        assert_eq!(json["peak_used_bytes"], 40960);
        assert_eq!(json["ratio"], 3.0);
        assert_eq!(json["peak_shared_bytes"], 8192);
        assert_eq!(json["lowest_limit_bytes"], 4096);
        assert_eq!(json["mechanisms"], json!(["userfaultfd-copy"]));
        assert_eq!(json["signal"], "SIGTERM");
        assert_eq!(json["exit_code"], Value::Null);
        assert_eq!(json["wall_seconds"], 1.5);
        assert_eq!(json["notices"], json!(["store_failed"]));
        let help = stats_help();
        for counter in Counter::ALL {
            assert!(help.contains(counter.name()) && help.contains(counter.doc()));
        }
    }
}
