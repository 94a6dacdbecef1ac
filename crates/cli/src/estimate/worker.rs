//! The process that is measured: fills memory with pages and touches them in four ways.
//!
//! ```text
//!  fill ─> sequential read ─> sequential write ─> random read ─> random write ─> verify ─> one line of JSON
//!          └───────────── each: several passes, every page once per pass ────┘  (not timed)
//! ```
//!
//! A touch reads or writes one word, the *mark*, of one page. Marks tell which page it is and how
//! often it was written, so that a read is checked by one addition, and at the end every byte of
//! every page is compared with what it must be. Nothing here knows about uzswap or the kernel's
//! swap: one program, any arm.

use std::hint::black_box;
use std::io::{self, BufRead, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use memmap2::MmapMut;
use nix::sys::resource::{UsageWho, getrusage};
use serde_json::{Value, json};

use super::histogram::Histogram;
use crate::Failure;
use crate::pages::{PAGE_BYTES, Pages, Random};
use crate::program::reason;

#[derive(clap::Args, Debug)]
pub struct WorkerArguments {
    /// Pages to fill and touch
    #[arg(long)]
    pages: u32,
    /// Passes over all pages in each phase
    #[arg(long, default_value_t = 2)]
    passes: u32,
    /// Seed of the random orders
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// After each touch read so many cache lines of a working set of its own: who works between its
    /// faults finds the caches cold
    #[arg(long, default_value_t = 0)]
    between_lines: u32,
    /// Take pages from a file
    #[arg(long)]
    corpus: Option<PathBuf>,
    /// Only these phases, by name (to profile one)
    #[arg(long, value_name = "NAME")]
    phase: Vec<String>,
}

/// A way to touch pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    pub name: &'static str,
    random: bool,
    write: bool,
}

pub const PHASES: [Phase; 4] = [
    Phase { name: "sequential read", random: false, write: false },
    Phase { name: "sequential write", random: false, write: true },
    Phase { name: "random read", random: true, write: false },
    Phase { name: "random write", random: true, write: true },
];

pub fn run(arguments: WorkerArguments) -> Result<u8, Failure> {
    let failed = |what: &str| {
        let what = what.to_string();
        move |e: io::Error| Failure::environment(format!("{what}: {}", reason(&e)))
    };
    let pages = match &arguments.corpus {
        None => Pages::Synthetic,
        Some(path) => Pages::from_file(path).map_err(failed(&path.display().to_string()))?,
    };
    let mut worker = Worker::new(arguments.pages, pages).map_err(failed("memory for the pages"))?;
    worker.between = (arguments.between_lines > 0).then(|| Between::new(arguments.between_lines));
    let fill_time = worker.fill().map_err(failed("filling the pages"))?;
    let mut random = Random(arguments.seed);
    let mut phases = serde_json::Map::new();
    for phase in PHASES {
        if !arguments.phase.is_empty() && !arguments.phase.iter().any(|name| name == phase.name) {
            continue;
        }
        phases.insert(phase.name.into(), worker.measure(phase, arguments.passes, &mut random)?);
    }
    let started = Instant::now();
    worker.verify()?;
    let verify_time = started.elapsed();
    let result = json!({
        "pages": arguments.pages,
        "passes": arguments.passes,
        "fill_ns_per_page": fill_time.as_nanos() as f64 / f64::from(arguments.pages),
        "phases": phases,
        "verify_ns": verify_time.as_nanos() as u64,
    });
    say_and_wait(&result)?;
    Ok(0)
}

/// Prints the result as one line, and keeps all memory until the bench, which looks at it, answers.
pub fn say_and_wait(result: &Value) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let failed =
        |stream: &str, e: io::Error| Failure::environment(format!("{stream}: {}", reason(&e)));
    let said = writeln!(out, "{result}").and_then(|()| out.flush());
    said.map_err(|e| failed("standard output", e))?;
    let heard = io::stdin().lock().read_line(&mut String::new());
    heard.map_err(|e| failed("standard input", e))?;
    Ok(())
}

struct Worker {
    memory: MmapMut,
    /// Page numbers in the order in which they are touched.
    order: Vec<u32>,
    pages: Pages,
    /// The number of times that every page was written since it was filled.
    version: u64,
    between: Option<Between>,
}

/// A working set of the process's own, and how much of it is used between two touches.
pub struct Between {
    lines: u32,
    words: Vec<u64>,
    random: Random,
}

impl Between {
    const LINE_WORDS: usize = 8;
    /// 1 MiB: about what the caches that are a core's own hold, and more than the translations in
    /// the nearest of them cover.
    pub const LINES: usize = 1 << 14;

    fn new(lines: u32) -> Between {
        Between { lines, words: vec![1; Between::LINES * Between::LINE_WORDS], random: Random(7) }
    }

    /// Returns when it is done.
    fn work(&mut self) -> Instant {
        for _ in 0..self.lines {
            let line = self.random.next() as usize % Between::LINES;
            black_box(self.words[line * Between::LINE_WORDS]);
        }
        Instant::now()
    }
}

impl Worker {
    fn new(pages: u32, source: Pages) -> io::Result<Worker> {
        let memory = MmapMut::map_anon(pages as usize * PAGE_BYTES)?;
        Ok(Worker { memory, order: (0..pages).collect(), pages: source, version: 0, between: None })
    }

    /// Writes every page once. Returns the time for that, without the time for making the content.
    fn fill(&mut self) -> io::Result<Duration> {
        let mut bytes = [0; PAGE_BYTES];
        let mut time = Duration::ZERO;
        for (page, place) in self.memory.chunks_exact_mut(PAGE_BYTES).enumerate() {
            content(&self.pages, page as u32, 0, &mut bytes)?;
            let started = Instant::now();
            place.copy_from_slice(&bytes);
            time += started.elapsed();
        }
        Ok(time)
    }

    fn measure(
        &mut self,
        phase: Phase,
        passes: u32,
        random: &mut Random,
    ) -> Result<Value, Failure> {
        let mut histogram = Histogram::new();
        let (mut elapsed, mut cpu) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..passes {
            match phase.random {
                true => random.shuffle(&mut self.order),
                false => self.order.sort_unstable(),
            }
            let expected = match phase.write {
                true => 0,
                false => (self.order.iter())
                    .fold(0, |sum: u64, p| sum.wrapping_add(mark(*p, self.version))),
            };
            let (wall_before, cpu_before) = (Instant::now(), cpu_time());
            let sum = if phase.write {
                self.version += 1;
                self.write_pass(&mut histogram);
                0
            } else {
                self.read_pass(&mut histogram)
            };
            elapsed += wall_before.elapsed();
            cpu += cpu_time() - cpu_before;
            if sum != expected {
                return Err(Failure::failed(format!(
                    "{}: a page came back with wrong bytes",
                    phase.name
                )));
            }
        }
        let mut result = histogram.to_json();
        // The time of the touches alone.
        let wall_ns = histogram.total_ns();
        result["wall_ns"] = json!(wall_ns);
        let between_ns = (elapsed.as_nanos() as u64).saturating_sub(wall_ns) as f64;
        result["between_mean_ns"] = json!(between_ns / (passes as f64 * self.order.len() as f64));
        result["cpu_ns"] = json!(cpu.as_nanos() as u64);
        Ok(result)
    }

    // One clock reading per touch: it ends one and begins the next.
    fn read_pass(&mut self, histogram: &mut Histogram) -> u64 {
        let mut sum = 0u64;
        let mut before = Instant::now();
        for &page in &self.order {
            let at = mark_offset(page);
            let word = &self.memory[at..at + 8];
            sum =
                sum.wrapping_add(black_box(u64::from_ne_bytes(word.try_into().expect("8 bytes"))));
            let after = Instant::now();
            histogram.record((after - before).as_nanos() as u64);
            before = self.between.as_mut().map_or(after, Between::work);
        }
        sum
    }

    fn write_pass(&mut self, histogram: &mut Histogram) {
        let mut before = Instant::now();
        for &page in &self.order {
            let at = mark_offset(page);
            self.memory[at..at + 8]
                .copy_from_slice(&black_box(mark(page, self.version)).to_ne_bytes());
            let after = Instant::now();
            histogram.record((after - before).as_nanos() as u64);
            before = self.between.as_mut().map_or(after, Between::work);
        }
    }

    /// Compares every byte.
    fn verify(&self) -> Result<(), Failure> {
        let mut bytes = [0; PAGE_BYTES];
        for (page, found) in self.memory.chunks_exact(PAGE_BYTES).enumerate() {
            content(&self.pages, page as u32, self.version, &mut bytes).map_err(|e| {
                Failure::environment(format!("reading the corpus again: {}", reason(&e)))
            })?;
            if let Some(at) = (0..PAGE_BYTES).find(|at| found[*at] != bytes[*at]) {
                return Err(Failure::failed(format!(
                    "page {page} came back with a wrong byte at {at}"
                )));
            }
        }
        Ok(())
    }
}

/// The page as it must be after `version` writes.
fn content(pages: &Pages, page: u32, version: u64, bytes: &mut [u8; PAGE_BYTES]) -> io::Result<()> {
    pages.make(page.into(), bytes)?;
    let at = mark_offset(page) % PAGE_BYTES;
    bytes[at..at + 8].copy_from_slice(&mark(page, version).to_ne_bytes());
    Ok(())
}

pub fn mark(page: u32, version: u64) -> u64 {
    Random(version << 32 | u64::from(page)).next()
}

/// Where the mark is in memory: in another cache line from page to page, or all marks would fight
/// for one cache set.
fn mark_offset(page: u32) -> usize {
    page as usize * PAGE_BYTES + page as usize * 13 % 64 * 64
}

/// Processor time of all our threads.
pub fn cpu_time() -> Duration {
    let of =
        |t: nix::sys::time::TimeVal| Duration::new(t.tv_sec() as u64, t.tv_usec() as u32 * 1000);
    getrusage(UsageWho::RUSAGE_SELF)
        .map_or(Duration::ZERO, |u| of(u.user_time()) + of(u.system_time()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_phase_touches_every_page_and_all_is_verified() {
        let mut worker = Worker::new(300, Pages::Synthetic).unwrap();
        worker.fill().unwrap();
        worker.verify().unwrap();
        let mut random = Random(3);
        for phase in PHASES {
            let result = worker.measure(phase, 2, &mut random).unwrap();
            assert_eq!(result["touches"], 600, "{phase:?}");
            worker.verify().unwrap();
        }
        assert_eq!(worker.version, 4);
    }

    #[test]
    fn what_is_done_between_touches_is_not_part_of_them() {
        let mut worker = Worker::new(50, Pages::Synthetic).unwrap();
        worker.fill().unwrap();
        let idle = worker.measure(PHASES[2], 1, &mut Random(3)).unwrap();
        worker.between = Some(Between::new(20_000));
        let working = worker.measure(PHASES[2], 1, &mut Random(3)).unwrap();
        assert_eq!(working["touches"], 50);
        let ns = |phase: &Value, name: &str| phase[name].as_f64().unwrap();
        assert!(ns(&working, "between_mean_ns") > ns(&idle, "between_mean_ns"), "{working} {idle}");
        let all: f64 = ns(&working, "hit_mean_ns") * (50.0 - ns(&working, "refaults"))
            + ns(&working, "refault_mean_ns") * ns(&working, "refaults");
        assert!((ns(&working, "wall_ns") - all).abs() <= 50.0, "{working}");
    }

    #[test]
    fn a_wrong_byte_is_found() {
        let mut worker = Worker::new(20, Pages::Synthetic).unwrap();
        worker.fill().unwrap();
        worker.memory[7 * PAGE_BYTES + 4095] ^= 1;
        let failure = worker.verify().unwrap_err();
        assert_eq!(failure.message, "page 7 came back with a wrong byte at 4095");
        worker.memory[7 * PAGE_BYTES + 4095] ^= 1;
        worker.verify().unwrap();

        // Two pages exchanged: each is a good page, in the wrong place.
        let (one, other) = worker.memory.split_at_mut(10 * PAGE_BYTES);
        one[..PAGE_BYTES].swap_with_slice(&mut other[..PAGE_BYTES]);
        assert!(worker.verify().is_err());
        // A stale mark is found by the read pass alone.
        worker.fill().unwrap();
        worker.version = 1;
        assert!(worker.measure(PHASES[0], 1, &mut Random(0)).is_err());
    }
}
