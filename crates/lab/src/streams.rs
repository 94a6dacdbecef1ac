//! `uzswap bench streams`: compressing from one thread, from two, from very many.
//!
//! | arm | |
//! |---|---|
//! | owned | one thread with working memory of its own, nothing to take: a single-stream build |
//! | one stream | the same through a set of one stream |
//! | 1, 2, 64 threads | through a set of one stream per processor |
//! | cache: 1, 2, 64 threads | the same as whole stores into the cache, and frees |
//!
//! | owned, 2 threads | two such threads, sharing nothing: what the machine can do |
//!
//! All arms do the same pages with lz4. Figures are rates, and processor time per page. On a
//! machine that does other things too two threads do not always have two processors, so what others
//! used of the machine is noted beside every run, and ratios are taken of the rounds in which that
//! was next to nothing; if there are none, of processor time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use nix::time::ClockId;
use serde_json::{Map, Value, json};
use uzswap::cache::{CacheConfig, SwapCache};
use uzswap::codec::{CodecSpec, Codecs, Scratch, Stream, Streams, same_filled};
use uzswap::store::FileStore;

use super::codecs::MAX_COMPRESSED_BYTES;
use super::engine::{Aim, Arm, Comparison, EngineArguments, Times, arm, processor_ns};
use super::plot;
use super::record::median;
use uzswap_cli::Failure;
use uzswap_cli::pages::{PAGE_BYTES, PageBytes};

const MANY: usize = 64;
const OUT_BYTES: usize = 2 * PAGE_BYTES;

/// One run.
#[derive(Clone, Copy, Default)]
struct Run {
    pages_per_s: f64,
    /// Processor time per page.
    cpu_ns: f64,
    /// Processors that others used, on average.
    others: f64,
}

/// How often each run does all pages: long enough that beginning and end do not matter.
const PASSES: usize = 4;
/// A round is quiet if others used less than this of a processor in each of its runs.
const QUIET: f64 = 0.1;

/// Seconds that all processors together were busy.
fn busy_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let fields = text.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let ticks: Vec<f64> = fields.map(|field| field.parse().unwrap_or(0.0)).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal
    let busy = |i: &usize| ticks.get(*i).copied().unwrap_or(0.0);
    [0, 1, 2, 5, 6, 7].iter().map(busy).sum::<f64>() / 100.0
}

/// Lets `threads` threads do a share of the pages each, all beginning at the same time.
fn measure(threads: usize, pages: &[PageBytes], work: &(impl Fn(&[PageBytes]) + Sync)) -> Run {
    let cpu = || processor_ns(ClockId::CLOCK_PROCESS_CPUTIME_ID);
    let share = pages.len() / threads;
    let (begin, end) = (Barrier::new(threads + 1), Barrier::new(threads + 1));
    let (seconds, cpu_ns, others) = thread::scope(|scope| {
        for share in pages.chunks_exact(share).take(threads) {
            let (begin, end) = (&begin, &end);
            scope.spawn(move || {
                begin.wait();
                (0..PASSES).for_each(|_| work(share));
                end.wait();
            });
        }
        // Before the barrier: behind it, the first threads may be done before this one runs again.
        let (cpu_before, busy_before) = (cpu(), busy_seconds());
        let started = Instant::now();
        begin.wait();
        end.wait();
        let (seconds, cpu_ns) = (started.elapsed().as_secs_f64(), cpu() - cpu_before);
        (seconds, cpu_ns, (busy_seconds() - busy_before - cpu_ns / 1e9) / seconds)
    });
    let done = (share * threads * PASSES) as f64;
    Run { pages_per_s: done / seconds, cpu_ns: cpu_ns / done, others: others.max(0.0) }
}

pub fn run(arguments: EngineArguments) -> Result<u8, Failure> {
    let mut comparison = Comparison::begin(&arguments, "streams")?;
    let pages: Vec<PageBytes> =
        comparison.mix.iter().filter(|page| same_filled(page).is_none()).copied().collect();
    let ways = Ways::new()?;
    let noted = RefCell::new(BTreeMap::new());
    let mut arms = arms(&ways, &pages, &noted);
    let names: Vec<String> = arms.iter().map(|arm| arm.0.clone()).collect();
    // The first use of a stream is not counted: it takes its memory.
    comparison.in_turn(1, &mut arms)?;
    noted.borrow_mut().clear();
    let bytes_after_warming = ways.per_cpu.mapped_bytes();
    let times = comparison.in_turn(comparison.rounds, &mut arms)?;
    drop(arms);
    ways.cache.check();

    let seen = Seen::new(noted.into_inner(), comparison.rounds as usize);
    table(&times, &seen, &names);
    let cores = thread::available_parallelism().map_or(1, |n| n.get());
    println!(
        "{cores} processors, {} streams of {} bytes together",
        ways.per_cpu.cells(),
        ways.per_cpu.mapped_bytes()
    );
    aims(&mut comparison, &seen);
    let growth = ways.per_cpu.mapped_bytes() as f64 / bytes_after_warming as f64;
    comparison.aim(
        "stream memory after all rounds to after the first use",
        growth,
        Aim::AtMost(1.0),
    );
    asides(&times, &seen);
    let bars = names.iter().map(|name| (name.clone(), times.median(name) / 1000.0)).collect();
    let plot = plot::bars(
        "Compressing from several threads",
        "thousand pages per second",
        &[("lz4".to_string(), bars)],
    );
    let results = json!({
        "processors": cores,
        "streams": ways.per_cpu.cells(),
        "stream_bytes": ways.per_cpu.mapped_bytes(),
        "pages_per_s": times.to_json(),
        "quiet_rounds": seen.quiet,
        "cpu_ns_per_page": seen.processor_times(&names),
        "processors_of_others": seen.others(),
    });
    comparison.end(results, &plot)
}

/// The codecs, streams and cache that pages go through.
struct Ways {
    codecs: Codecs,
    single: Streams,
    per_cpu: Streams,
    cache: SwapCache<FileStore>,
}

impl Ways {
    fn new() -> Result<Ways, Failure> {
        let environment = |e| Failure::environment(format!("{e:?}"));
        let config: CacheConfig<FileStore> = CacheConfig::default();
        Ok(Ways {
            codecs: Codecs::new(CodecSpec::default()),
            single: Streams::with_cells(1, OUT_BYTES).map_err(environment)?,
            per_cpu: Streams::new(OUT_BYTES).map_err(environment)?,
            cache: SwapCache::new(config).map_err(environment)?,
        })
    }

    fn compress(&self, scratch: &mut Scratch, out: &mut [u8], page: &PageBytes) {
        let out = &mut out[..MAX_COMPRESSED_BYTES];
        let _ = std::hint::black_box(self.codecs.compress(scratch, page, out));
    }

    /// Compresses pages with working memory that no other thread has.
    fn owned(&self, pages: &[PageBytes]) {
        let (mut scratch, mut out) = (Scratch::new(), vec![0; OUT_BYTES]);
        pages.iter().for_each(|page| self.compress(&mut scratch, &mut out, page));
    }

    fn through(&self, streams: &Streams, pages: &[PageBytes]) {
        for page in pages {
            streams
                .with(|Stream { scratch, out }| self.compress(scratch, out.as_mut_slice(), page));
        }
    }

    /// Stores and frees.
    fn store(&self, pages: &[PageBytes]) {
        // Some hundred pages are in at any time: what is freed makes room for what comes.
        for batch in pages.chunks(64) {
            let mut entries = [None; 64];
            for (entry, page) in entries.iter_mut().zip(batch) {
                *entry = self.cache.swap_out(page).ok();
            }
            entries.into_iter().flatten().for_each(|entry| self.cache.free(entry));
        }
    }
}

/// All runs of each arm.
type Noted = BTreeMap<String, Vec<Run>>;

/// Rates are what the arms answer; the rest is noted beside them.
fn arms<'a>(ways: &'a Ways, pages: &'a [PageBytes], noted: &'a RefCell<Noted>) -> Vec<Arm<'a>> {
    let note = |name: &str, run: Run| {
        noted.borrow_mut().entry(name.to_string()).or_default().push(run);
        run.pages_per_s
    };
    let noting = |name: String, threads: usize, work: fn(&Ways, &[PageBytes])| {
        let whole = name.clone();
        arm(&name, move |_| note(&whole, measure(threads, pages, &|share| work(ways, share))))
    };
    let mut arms = vec![
        noting("owned".to_string(), 1, Ways::owned),
        noting("owned, 2 threads".to_string(), 2, Ways::owned),
        noting("one stream".to_string(), 1, |ways, pages| ways.through(&ways.single, pages)),
    ];
    for threads in [1, 2, MANY] {
        let work = |ways: &Ways, pages: &[PageBytes]| ways.through(&ways.per_cpu, pages);
        arms.push(noting(format!("{threads} threads"), threads, work));
    }
    for threads in [1, 2, MANY] {
        arms.push(noting(format!("cache: {threads} threads"), threads, Ways::store));
    }
    arms
}

/// The times noted, and the rounds that count.
struct Seen {
    noted: Noted,
    rounds: usize,
    /// Rounds in which others did next to nothing.
    quiet: Vec<usize>,
    /// The quiet rounds, or all if there are none.
    counted: Vec<usize>,
}

impl Seen {
    fn new(noted: Noted, rounds: usize) -> Seen {
        let is_quiet = |round: &usize| noted.values().all(|runs| runs[*round].others < QUIET);
        let quiet: Vec<usize> = (0..rounds).filter(is_quiet).collect();
        let counted = if quiet.is_empty() { (0..rounds).collect() } else { quiet.clone() };
        Seen { noted, rounds, quiet, counted }
    }

    fn cpu_ns(&self, name: &str) -> f64 {
        median(self.noted[name].iter().map(|run| run.cpu_ns)).unwrap_or(f64::NAN)
    }

    /// The ratio of two arms' rates, by the clock.
    fn ratio(&self, name: &str, to: &str) -> f64 {
        let rate = |name: &str, round: usize| self.noted[name][round].pages_per_s;
        let of = |round: &usize| rate(name, *round) / rate(to, *round);
        median(self.counted.iter().map(of)).unwrap_or(f64::NAN)
    }

    /// The ratio of two arms' rates by processor time, for `threads` times as many threads. Without
    /// a quiet round the clock shows the work of others; no thread sleeps here, so processor time
    /// gives the same ratio.
    fn by_cpu(&self, threads: f64, name: &str, to: &str) -> f64 {
        let cpu_ns = |name: &str, round: usize| self.noted[name][round].cpu_ns;
        let of = |round: usize| threads * cpu_ns(to, round) / cpu_ns(name, round);
        median((0..self.rounds).map(of)).unwrap_or(f64::NAN)
    }

    fn processor_times(&self, names: &[String]) -> Map<String, Value> {
        names.iter().map(|name| (name.clone(), self.cpu_ns(name).into())).collect()
    }

    fn others(&self) -> Map<String, Value> {
        let rounded = |run: &Run| (run.others * 1000.0).round() / 1000.0;
        let of = |runs: &Vec<Run>| runs.iter().map(rounded).collect::<Vec<f64>>().into();
        self.noted.iter().map(|(name, runs)| (name.clone(), of(runs))).collect()
    }
}

/// Prints all rates.
fn table(times: &Times, seen: &Seen, names: &[String]) {
    println!("{:<20} {:>12} {:>12} {:>16}", "", "pages/s", "MiB/s", "CPU ns/page");
    for name in names {
        let (rate, cpu_ns) = (times.median(name), seen.cpu_ns(name));
        println!("{name:<20} {rate:>12.0} {:>12.0} {cpu_ns:>16.0}", rate / 256.0);
    }
    println!("{} of {} rounds were quiet", seen.quiet.len(), seen.rounds);
}

/// Holds the threads' rates against what they have to be.
fn aims(comparison: &mut Comparison, seen: &Seen) {
    let (one, two, by) = if seen.quiet.is_empty() {
        let one = seen.by_cpu(1.0, "1 threads", "owned");
        (one, seen.by_cpu(2.0, "2 threads", "1 threads"), "processor time")
    } else {
        let one = seen.ratio("1 threads", "owned");
        (one, seen.ratio("2 threads", "1 threads"), "time, quiet rounds")
    };
    comparison.aim(&format!("one writer: 1 thread to owned, by {by}"), one, Aim::AtLeast(0.98));
    comparison.aim(&format!("two writers to one, by {by}"), two, Aim::AtLeast(1.8));
    let many = seen.ratio("64 threads", "2 threads");
    comparison.aim("64 threads to two", many, Aim::AtLeast(1.0));
}

/// Prints ratios that have no aim.
fn asides(times: &Times, seen: &Seen) {
    println!(
        "  two writers to two that share nothing: {:.3}; what the machine gives two: {:.3}",
        seen.ratio("2 threads", "owned, 2 threads"),
        seen.ratio("owned, 2 threads", "owned")
    );
    println!(
        "  by the clock, all rounds: one writer to owned {:.3}, two writers to one {:.3}",
        times.ratio("1 threads", "owned"),
        times.ratio("2 threads", "1 threads")
    );
    println!(
        "  whole stores: two writers to one {:.3}, 64 threads to two {:.3}",
        seen.ratio("cache: 2 threads", "cache: 1 threads"),
        seen.ratio("cache: 64 threads", "cache: 2 threads")
    );
}
