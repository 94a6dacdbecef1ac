//! The cost of a fault here and now: the engine itself, at work on the sampled pages.
//!
//! Three runs of a small process that touches 64 MiB of such pages, in order and at random
//! (`worker.rs`): free, with room for two fifths of them beside the compressed rest, and with
//! hardly any room for compressed ones, so that pages come from the disk. And once more, free and
//! with room for two fifths, a process that goes through memory of its own between two touches, as
//! programs do: what a fault needs has left the caches by then.
//!
//! A cost is the time a touch takes longer than it does in the free run. It includes the part of
//! the eviction that the program waits for. So the figures hold for a machine that is as busy as
//! this one is now.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::Arc;

use nix::sys::memfd::{MFdFlags, memfd_create};
use serde_json::{Value, json};
use uzswap::latency::FaultKind;

use super::density::Density;
use super::mark;
use super::worker::Between;
use crate::Failure;
use crate::pages::{PAGE_BYTES, PageBytes};
use crate::place::own_path;
use crate::process::{Interrupt, one_line};
use crate::program::reason;

/// Memory that a process that pages takes for uzswap itself (`docs/experiments/builds.md`).
pub const PROCESS_BYTES: f64 = 5.0 * 1024.0 * 1024.0;

const PAGES: u64 = 16_384;
/// Pages of the cold work: there the worker reads, between two touches, as many cache lines as the
/// caches that are a core's own hold (`Between::LINES`).
const COLD_PAGES: u64 = 8192;
/// Ways to touch pages in which each fault serves one page.
const AT_RANDOM: [&str; 2] = ["random read", "random write"];
/// A program that works this part of the cold work's time between two touches pays two thirds of
/// the price of cold caches.
const COLD_AFTER: f64 = 0.25;
/// The fewest sampled pages to measure with; if there are fewer, made-up pages stand for them.
const SAMPLE_LEAST: usize = 256;
/// The part of the pages for which there is room uncompressed, in the runs with room for some.
const RESIDENT: f64 = 0.4;
/// Passes over the pages in each way to touch them.
const PASSES: u32 = 2;

/// Costs of a page in nanoseconds, beyond its time without uzswap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// A first touch for which another page has to go: where the evictor does that meanwhile, and
    /// (most) in a program that does nothing else and waits until the page has gone.
    pub first_touch_ns: f64,
    pub first_touch_most_ns: f64,
    /// A load from the pool: at random; at least, in order, where one fault brings several pages;
    /// and at most, in the dearest way.
    pub load_ns: f64,
    pub load_least_ns: f64,
    pub load_most_ns: f64,
    /// A load in order, in the mean of reading and writing.
    pub load_in_order_ns: f64,
    /// The time by which a load at random takes longer after other work, and the length of that
    /// work, in nanoseconds, after which two thirds of it show.
    pub load_cold_ns: f64,
    pub cold_after_ns: f64,
    /// The signal's part of a load, in and out, before and after the handler.
    pub signal_ns: f64,
    /// The time of a first touch without uzswap: of a page by itself, of one that comes with 2 MiB.
    pub first_ns: [f64; 2],
    /// A load from the disk: at random, and (least) in order.
    pub store_load_ns: f64,
    pub store_load_least_ns: f64,
}

fn mean(two: [f64; 2]) -> f64 {
    (two[0] + two[1]) / 2.0
}

impl Costs {
    pub fn measure(
        pages: &[Arc<PageBytes>],
        density: &Density,
        interrupt: &Interrupt,
    ) -> Result<Costs, Failure> {
        let bench = Calibration { corpus: corpus(pages)?, interrupt };
        let room = (RESIDENT + (1.0 - RESIDENT) * density.stored).min(0.7);
        let limit = |pages: u64, room: f64| {
            format!("{:.0}", (pages * PAGE_BYTES as u64) as f64 * room + PROCESS_BYTES)
        };
        let free = bench.run(&WARM, None)?;
        let squeezed = bench.run(&WARM, Some(&["--memory", &limit(PAGES, room)]))?;
        let stored =
            bench.run(&WARM, Some(&["--memory", &limit(PAGES, 0.3), "--pool-percent", "10"]))?;
        let cold_free = bench.run(&COLD, None)?;
        let cold = bench.run(&COLD, Some(&["--memory", &limit(COLD_PAGES, room)]))?;
        Ok(Costs::of([&free, &squeezed, &stored], [&cold_free, &cold], mark::first_ns()))
    }

    /// `first_ns`: as in the costs.
    fn of(
        [free, squeezed, stored]: [&Value; 3],
        [cold_free, cold]: [&Value; 2],
        first_ns: [f64; 2],
    ) -> Costs {
        let [squeezed, stored] = [squeezed, stored].map(|run| Beside { run, free });
        let cold = Beside { run: cold, free: cold_free };
        let ways = squeezed.at_random_ns();
        let load_ns = mean(ways);
        let load_least_ns = squeezed.in_order_ns().min(load_ns);
        let by_writing = squeezed.longer_ns("sequential write", "touches");
        let load_in_order_ns = mean([load_least_ns, by_writing]).clamp(load_least_ns, load_ns);
        let from_store = stored.part_of_store();
        let by_store = |with: f64, without: f64| match from_store {
            part if part > 0.0 => without + (with - without).max(0.0) / part,
            _ => without,
        };
        let signal_ns = squeezed.signal_ns(PAGES, first_ns[0]);
        let between_ns =
            mean(AT_RANDOM.map(|name| number(&cold_free["phases"][name]["between_mean_ns"])));
        // The first pages found room.
        let first_touch_most_ns = (squeezed.fill_ns() / (1.0 - RESIDENT)).max(0.0);
        // The median first touch counts: some wait for a page to go, which `first_touch_most_ns` is
        // for. One fault may have brought many pages; a page is never dearer than where all wait.
        let first_touch_ns = (squeezed.handler(FaultKind::FirstTouch, "p50_ns") + signal_ns)
            .min(first_touch_most_ns);
        Costs {
            first_touch_ns,
            first_touch_most_ns,
            load_ns,
            load_least_ns,
            load_most_ns: ways[0].max(ways[1]),
            load_in_order_ns,
            load_cold_ns: (mean(cold.at_random_ns()) - load_ns).max(0.0),
            cold_after_ns: (COLD_AFTER * between_ns).max(1.0),
            // A program that is watched has few faults.
            signal_ns: cold.signal_ns(COLD_PAGES, first_ns[0]).max(signal_ns),
            first_ns,
            store_load_ns: by_store(mean(stored.at_random_ns()), load_ns),
            store_load_least_ns: by_store(stored.in_order_ns(), load_least_ns),
        }
    }

    /// The time by which loads at random take longer in a program that works `own_ns` between two
    /// of them.
    pub fn colder_ns(&self, own_ns: f64) -> f64 {
        self.load_cold_ns * (1.0 - (-own_ns / self.cold_after_ns).exp())
    }

    pub fn to_json(self) -> Value {
        json!({
            "first_touch_ns": self.first_touch_ns,
            "first_touch_most_ns": self.first_touch_most_ns,
            "load_ns": self.load_ns,
            "load_least_ns": self.load_least_ns,
            "load_most_ns": self.load_most_ns,
            "load_in_order_ns": self.load_in_order_ns,
            "load_cold_ns": self.load_cold_ns,
            "cold_after_ns": self.cold_after_ns,
            "signal_ns": self.signal_ns,
            "first_ns": self.first_ns[0],
            "first_huge_ns": self.first_ns[1],
            "store_load_ns": self.store_load_ns,
            "store_load_least_ns": self.store_load_least_ns,
        })
    }
}

fn number(v: &Value) -> f64 {
    v.as_f64().unwrap_or(0.0)
}

/// A run under uzswap beside the free one: what its pages cost.
struct Beside<'a> {
    run: &'a Value,
    free: &'a Value,
}

impl Beside<'_> {
    fn extra_ns(&self, phase: &str) -> f64 {
        let wall_ns = |run: &Value| number(&run["phases"][phase]["wall_ns"]);
        (wall_ns(self.run) - wall_ns(self.free)).max(0.0)
    }

    /// By refault, or where one fault serves many touches by touch.
    fn longer_ns(&self, phase: &str, by: &str) -> f64 {
        self.extra_ns(phase) / number(&self.run["phases"][phase][by]).max(1.0)
    }

    fn count(&self, name: &str) -> f64 {
        number(&self.run["stats"]["counters"][name])
    }

    /// The cost of a refault in each way at random. A hit in limbo is a refault, but no page that
    /// had to come back: what it costs belongs to those that had to.
    fn at_random_ns(&self) -> [f64; 2] {
        let (loads, hits) = (self.count("loads"), self.count("limbo_hits"));
        let part = if loads > 0.0 { loads / (loads + hits) } else { 1.0 };
        AT_RANDOM.map(|name| self.longer_ns(name, "refaults") / part)
    }

    fn in_order_ns(&self) -> f64 {
        self.longer_ns("sequential read", "touches")
    }

    /// The part of the loads that came from the disk. With hardly any pool nearly all pages come
    /// from there, and leave for it: the waiting for both is in what they cost.
    fn part_of_store(&self) -> f64 {
        (self.count("read_back_pages") / self.count("loads").max(1.0)).min(1.0)
    }

    fn handler(&self, kind: FaultKind, figure: &str) -> f64 {
        number(&self.run["stats"]["fault_latency"][kind.name()][figure])
    }

    fn fill_ns(&self) -> f64 {
        number(&self.run["fill_ns_per_page"]) - number(&self.free["fill_ns_per_page"])
    }

    /// The part on top of the handlers: signals, in and out. First touches were faults in the free
    /// run, too, of `first_ns` each.
    fn signal_ns(&self, pages: u64, first_ns: f64) -> f64 {
        let phases = self.free["phases"].as_object().into_iter().flatten();
        let all_phases: f64 = phases.map(|(name, _)| self.extra_ns(name)).sum();
        let verifying = number(&self.run["verify_ns"]) - number(&self.free["verify_ns"]);
        let (mut faults, mut handlers) = (0.0, 0.0);
        for kind in FaultKind::ALL {
            let count = self.handler(kind, "count");
            faults += count;
            handlers += count * self.handler(kind, "mean_ns");
        }
        let all = all_phases + verifying + pages as f64 * (self.fill_ns() + first_ns);
        ((all - handlers) / faults.max(1.0)).max(0.0)
    }
}

/// The worker's task.
struct Work {
    pages: u64,
    passes: u32,
    between_lines: usize,
    /// The phases to run; all, if none is named.
    phases: &'static [&'static str],
}

const WARM: Work = Work { pages: PAGES, passes: PASSES, between_lines: 0, phases: &[] };
const COLD: Work =
    Work { pages: COLD_PAGES, passes: 1, between_lines: Between::LINES, phases: &AT_RANDOM };

struct Calibration<'a> {
    corpus: Option<File>,
    interrupt: &'a Interrupt,
}

impl Calibration<'_> {
    /// The worker's answer, with the statistics of the run under uzswap.
    fn run(&self, work: &Work, options: Option<&[&str]>) -> Result<Value, Failure> {
        let own = own_path()?;
        let mut command = Command::new(&own);
        let stats = memory_file()?;
        if let Some(options) = options {
            command
                .args(["run", "--quiet", "--stats"])
                .arg(path(&stats))
                .args(options)
                .arg("--")
                .arg(&own);
        }
        let Work { pages, passes, between_lines, phases } = work;
        command.args(["worker", "--pages", &pages.to_string(), "--passes", &passes.to_string()]);
        command.args(["--between-lines", &between_lines.to_string()]);
        phases.iter().for_each(|phase| _ = command.args(["--phase", phase]));
        if let Some(corpus) = &self.corpus {
            command.arg("--corpus").arg(path(corpus));
        }
        let failed = |why| {
            Failure::failed(format!(
                "what a fault costs could not be measured: {why} (see 'uzswap doctor')"
            ))
        };
        let line = one_line(&mut command, self.interrupt, || ())?.map_err(failed)?;
        let mut result: Value = serde_json::from_str(&line).map_err(|e| failed(e.to_string()))?;
        if options.is_some() {
            let text = std::fs::read_to_string(path(&stats)).unwrap_or_default();
            result["stats"] = serde_json::from_str(&text).map_err(|e| failed(e.to_string()))?;
        }
        Ok(result)
    }
}

/// The worker's contents. In memory only: these are somebody's data.
fn corpus(pages: &[Arc<PageBytes>]) -> Result<Option<File>, Failure> {
    if pages.chunk_by(Arc::ptr_eq).count() < SAMPLE_LEAST {
        return Ok(None);
    }
    let mut file = memory_file()?;
    let written = pages.iter().try_for_each(|page| file.write_all(&page[..]));
    written.map_err(|e| {
        Failure::environment(format!("memory for the sampled pages: {}", reason(&e)))
    })?;
    Ok(Some(file))
}

fn memory_file() -> Result<File, Failure> {
    let made = memfd_create(c"uzswap-estimate", MFdFlags::MFD_CLOEXEC);
    made.map(File::from).map_err(|e| Failure::environment(format!("memory for a file: {e}")))
}

/// The path by which others can open the file for as long as we have it.
fn path(file: &File) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_is_what_a_touch_takes_longer() {
        let run = |fill: f64, us: f64| {
            let phase = |us: f64| json!({"touches": 1000, "refaults": 500, "wall_ns": us * 1e6});
            json!({"fill_ns_per_page": fill, "phases": {
                "sequential read": phase(us), "sequential write": phase(us),
                "random read": phase(us), "random write": phase(2.0 * us),
            }})
        };
        let with = |mut run: Value, read_back: u32| {
            let mean = |ns: f64, count: u32| json!({"mean_ns": ns, "p50_ns": ns, "count": count});
            run["stats"] = json!({
                "counters": {"loads": 300, "limbo_hits": 100, "read_back_pages": read_back},
                "fault_latency": {
                    "first_touch": mean(1000.0, 5000), "pool_load": mean(8000.0, 10_000),
                },
            });
            run
        };
        let first_ns = [500.0, 100.0];
        let free = run(500.0, 0.0);
        let cold = |us: f64| {
            let phase = json!({"refaults": 500, "wall_ns": us * 1e6, "between_mean_ns": 40_000.0});
            json!({
                "fill_ns_per_page": 500.0, "verify_ns": 0,
                "phases": {"random read": phase, "random write": phase},
            })
        };
        let warm = [&free, &with(run(6500.0, 4.0), 0), &with(run(0.0, 19.0), 225)];
        let costs = Costs::of(warm, [&cold(0.0), &with(cold(9.0), 0)], first_ns);
        // 20 ms for touching, 6 us for each page in the beginning and what that took anyway; the
        // handlers took 85 ms of all.
        let signal_ns = (20e6 + PAGES as f64 * 6500.0 - 85e6) / 15_000.0;
        assert_eq!(
            costs,
            Costs {
                first_touch_ns: 1000.0 + signal_ns,
                first_touch_most_ns: 10_000.0,
                load_ns: 16_000.0,
                load_least_ns: 4000.0,
                load_most_ns: 16_000.0 / 0.75,
                load_in_order_ns: 4000.0,
                // 18 us a refault, of which three in four were loads: 24, and 16 of them in any
                // case.
                load_cold_ns: 8000.0,
                cold_after_ns: 10_000.0,
                signal_ns,
                first_ns,
                // Three in four came from there: 76 us are a quarter of 16 and the rest of 96.
                store_load_ns: 96_000.0,
                store_load_least_ns: 24_000.0,
            }
        );
    }

    #[test]
    fn the_sampled_pages_can_be_opened_by_others() {
        assert!(corpus(&[]).unwrap().is_none());
        let pages: Vec<Arc<PageBytes>> =
            (0..300).map(|i| Arc::new([i as u8; PAGE_BYTES])).collect();
        let file = corpus(&pages).unwrap().unwrap();
        let bytes = std::fs::read(path(&file)).unwrap();
        assert_eq!((bytes.len(), bytes[5 * PAGE_BYTES]), (300 * PAGE_BYTES, 5));
    }
}
