//! The process that `faults --threads` measures: several threads touch one heap at random.
//!
//! ```text
//!  fill ─> for each number of threads: warm-up ─> read ─> warm-up ─> write
//!          verify (every byte) ─> one line of JSON        (warm-ups are not timed)
//! ```
//!
//! A *touch* reads or writes one word of a page that is drawn at random, so threads meet only by
//! accident. A read compares the page's mark; a write adds one to the page's count, and at the end
//! the counts of all pages together are the number of writes: an update that paging lost is missing
//! there. The threads draw their touches in small portions from one budget, so that all of them
//! work to the end, and the time is from a common start to the last end. Nothing here knows about
//! uzswap or the kernel's swap, but that `--contention` asks what a library for that has counted.

use std::io;
use std::sync::RwLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::contention::Watch;
use uzswap_cli::Failure;
use uzswap_cli::estimate::histogram::Histogram;
use uzswap_cli::estimate::worker::{cpu_time, mark, say_and_wait};
use uzswap_cli::pages::{PAGE_BYTES, Pages, Random};
use uzswap_cli::program::reason;

#[derive(clap::Args, Debug)]
pub struct ToucherArguments {
    /// Pages to fill and touch
    #[arg(long)]
    pages: u32,
    /// Touches of each measurement, by pages
    #[arg(long, default_value_t = 2)]
    passes: u32,
    /// Seed of the random draws
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Numbers of threads, measured one after the other
    #[arg(long, value_delimiter = ',', default_value = "1")]
    threads: Vec<u32>,
    /// Say what the library in this process has counted of its locks
    #[arg(long)]
    contention: bool,
}

pub fn run(arguments: ToucherArguments) -> Result<u8, Failure> {
    let heap = Heap::new(arguments.pages).map_err(|e| failed("the pages", &e))?;
    let touches = u64::from(arguments.pages) * u64::from(arguments.passes);
    let mut draws = Random(arguments.seed);
    let mut results = Vec::new();
    for threads in &arguments.threads {
        for write in [false, true] {
            // The pages that the measurement before left in memory were chosen for other touches.
            heap.touch(*threads, u64::from(arguments.pages) / 2, write, &mut draws)?;
            let watch = match arguments.contention {
                true => Some(Watch::begin()?),
                false => None,
            };
            let mut result = heap.touch(*threads, touches, write, &mut draws)?.to_json();
            if let Some(watch) = watch {
                result["contention"] = watch.end()?;
            }
            result["threads"] = json!(threads);
            result["write"] = json!(write);
            results.push(result);
        }
    }
    heap.verify()?;
    say_and_wait(&json!({"pages": arguments.pages, "measurements": results}))?;
    Ok(0)
}

const WORDS: usize = PAGE_BYTES / 8;

/// A page whose words several threads may use.
#[repr(C, align(4096))]
struct Page([AtomicU64; WORDS]);

struct Heap {
    pages: Vec<Page>,
    /// All writes so far.
    writes: AtomicU64,
}

/// One measurement.
struct Touched {
    histogram: Histogram,
    wall: Duration,
    cpu: Duration,
}

impl Touched {
    fn to_json(&self) -> Value {
        let mut result = self.histogram.to_json();
        result["wall_ns"] = json!(self.wall.as_nanos() as u64);
        result["cpu_ns"] = json!(self.cpu.as_nanos() as u64);
        result
    }
}

impl Heap {
    fn new(count: u32) -> io::Result<Heap> {
        let mut pages = Vec::with_capacity(count as usize);
        for page in 0..count {
            let words = content(page)?;
            pages.push(Page(words.map(AtomicU64::new)));
        }
        Ok(Heap { pages, writes: AtomicU64::new(0) })
    }

    /// Touches pages from several threads, and waits for all of them.
    fn touch(
        &self,
        threads: u32,
        touches: u64,
        write: bool,
        draws: &mut Random,
    ) -> Result<Touched, Failure> {
        const STACK_BYTES: usize = 128 << 10;
        let budget = AtomicU64::new(touches);
        // The threads wait until it can be read, which is when all of them are there.
        let gate = RwLock::new(());
        thread::scope(|scope| {
            let closed = gate.write();
            let mut running = Vec::new();
            for _ in 0..threads {
                let draws = Random(draws.next());
                let thread = thread::Builder::new().stack_size(STACK_BYTES);
                let work = || {
                    drop(gate.read());
                    self.take_part(&budget, write, draws)
                };
                let spawned = thread.spawn_scoped(scope, work);
                running.push(spawned.map_err(|e| failed("a thread", &e))?);
            }
            let (cpu_before, started) = (cpu_time(), Instant::now());
            drop(closed);
            let mut all = Histogram::new();
            let mut right = true;
            for thread in running {
                let (histogram, own) = thread.join().expect("a panic ends the process");
                all.add(&histogram);
                right &= own;
            }
            let (wall, cpu) = (started.elapsed(), cpu_time() - cpu_before);
            match right {
                true => Ok(Touched { histogram: all, wall, cpu }),
                false => Err(Failure::failed("a page came back with wrong bytes".to_string())),
            }
        })
    }

    /// Touches pages until the budget is spent. Returns the times, and whether all reads were
    /// right.
    fn take_part(&self, budget: &AtomicU64, write: bool, mut draws: Random) -> (Histogram, bool) {
        // Touches that a thread draws at a time: few against all, and much work for one atomic.
        const PORTION: u64 = 64;
        let mut histogram = Histogram::new();
        let mut right = true;
        loop {
            let take = |left: u64| Some(left.saturating_sub(PORTION));
            let left = budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
            let count = left.unwrap_or(0).min(PORTION);
            if count == 0 {
                return (histogram, right);
            }
            // One clock reading a touch: it ends one and begins the next.
            let mut before = Instant::now();
            for _ in 0..count {
                let page = draws.below(self.pages.len() as u64) as u32;
                match write {
                    true => self.count_of(page).fetch_add(1, Ordering::Relaxed),
                    false => {
                        right &= self.mark_of(page).load(Ordering::Relaxed) == mark(page, 0);
                        0
                    }
                };
                let after = Instant::now();
                histogram.record((after - before).as_nanos() as u64);
                before = after;
            }
            if write {
                self.writes.fetch_add(count, Ordering::Relaxed);
            }
        }
    }

    fn mark_of(&self, page: u32) -> &AtomicU64 {
        &self.pages[page as usize].0[mark_word(page)]
    }

    /// The page's count of writes: beside the mark, in one cache line with it.
    fn count_of(&self, page: u32) -> &AtomicU64 {
        &self.pages[page as usize].0[mark_word(page) + 1]
    }

    /// Compares every byte, and the number of writes.
    fn verify(&self) -> Result<(), Failure> {
        let mut writes = 0;
        for (number, page) in (0..).zip(&self.pages) {
            let expected = content(number).map_err(|e| failed("the pages", &e))?;
            for (at, (found, expected)) in page.0.iter().zip(expected).enumerate() {
                let found = found.load(Ordering::Relaxed);
                match at == mark_word(number) + 1 {
                    true => writes += found,
                    false if found == expected => {}
                    false => {
                        let why = format!("page {number} came back with a wrong word at {at}");
                        return Err(Failure::failed(why));
                    }
                }
            }
        }
        match self.writes.load(Ordering::Relaxed) {
            all if all == writes => Ok(()),
            all => Err(Failure::failed(format!("{writes} of {all} writes are in the pages"))),
        }
    }
}

fn failed(what: &str, e: &io::Error) -> Failure {
    Failure::environment(format!("{what}: {}", reason(e)))
}

/// Where the mark is in its page: in another cache line from page to page, or all marks would fight
/// for one cache set.
fn mark_word(page: u32) -> usize {
    page as usize * 13 % 64 * 8
}

/// The page as it is before the first write.
fn content(page: u32) -> io::Result<[u64; WORDS]> {
    let mut bytes = [0; PAGE_BYTES];
    Pages::Synthetic.make(page.into(), &mut bytes)?;
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_ne_bytes(bytes.try_into().expect("8 bytes"));
    }
    words[mark_word(page)] = mark(page, 0);
    words[mark_word(page) + 1] = 0;
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_threads_together_touch_as_often_as_they_are_told() {
        let heap = Heap::new(200).unwrap();
        heap.verify().unwrap();
        for (threads, touches) in [(1, 1000), (3, 1001), (8, 10)] {
            for write in [false, true] {
                let touched = heap.touch(threads, touches, write, &mut Random(5)).unwrap();
                assert_eq!(touched.to_json()["touches"], touches, "{threads} {write}");
                heap.verify().unwrap();
            }
        }
        assert_eq!(heap.writes.load(Ordering::Relaxed), 2011);
    }

    #[test]
    fn a_wrong_word_and_a_lost_write_are_found() {
        let heap = Heap::new(20).unwrap();
        heap.touch(2, 100, true, &mut Random(1)).unwrap();
        heap.pages[3].0[511].fetch_xor(1 << 63, Ordering::Relaxed);
        let failure = heap.verify().unwrap_err();
        assert_eq!(failure.message, "page 3 came back with a wrong word at 511");
        heap.pages[3].0[511].fetch_xor(1 << 63, Ordering::Relaxed);
        heap.verify().unwrap();
        // A stale page lacks a write.
        heap.count_of(7).fetch_sub(1, Ordering::Relaxed);
        assert_eq!(heap.verify().unwrap_err().message, "99 of 100 writes are in the pages");
        // Reads find a wrong mark by themselves.
        heap.mark_of(9).store(0, Ordering::Relaxed);
        let failure = heap.touch(2, 2000, false, &mut Random(1)).err().unwrap();
        assert_eq!(failure.message, "a page came back with wrong bytes");
    }
}
