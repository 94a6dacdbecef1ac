//! `uzswap bench store`: writing back and reading, beside what fio reaches in the same file.
//!
//! | figure | ours | fio, same file, block size and depth |
//! |---|---|---|
//! | write | everything in the pool is written back (`shrink`) | 64 KiB, libaio, depth 2 |
//! | read in order | loads in the order of writing, by clusters | 64 KiB, one at a time |
//! | read at random | loads in any order | 4 and 8 KiB as often as ours, one at a time |
//! | decode alone | loads in the order of writing of what has been read already: nothing is read | |
//!
//! A single thread reads in order no faster than it decodes, whatever the disk does: the part of
//! the slower of the two that it reaches shows what reading and decoding cost each other. The pages
//! that come of it are more bytes than were read: their cost uncompressed is printed too.
//!
//! Ours includes all that belongs to it: taking objects out of the pool, sealing, packing; opening
//! and decompressing on the way back. fio reads and writes nothing but bytes. It is given our file
//! by its descriptor (the file has no name), and writes to a part of it that we do not use.

use std::cell::RefCell;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use serde_json::{Map, Value, json};
use uzswap::cache::{CacheConfig, Counters, SwapCache, SwapEntry};
use uzswap::codec::same_filled;
use uzswap::store::seal::Encryption;
use uzswap::store::{CLUSTER_BYTES, FileStore, QUEUE_DEPTH};

use super::arms;
use super::engine::{Aim, Arm, Comparison, EngineArguments, Times, arm};
use super::plot;
use uzswap_cli::Failure;
use uzswap_cli::console;
use uzswap_cli::pages::{PAGE_BYTES, PageBytes, Random};

#[derive(clap::Args, Debug)]
pub struct StoreArguments {
    #[command(flatten)]
    engine: EngineArguments,
    /// Directory of the store, on the disk that is to be measured
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    directory: PathBuf,
    /// How often the pages are stored: so many times their compressed size is written
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = arms::times())]
    copies: u32,
    /// Random loads of a round
    #[arg(
        long, value_name = "N", default_value_t = 4000,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    loads: u32,
}

const ENCRYPTIONS: [(&str, Encryption); 2] =
    [("sealed", Encryption::On), ("plain", Encryption::Off)];
const MIB: f64 = (1 << 20) as f64;
/// Pages that are decoded in a round, at most.
const MAX_DECODED: usize = 16384;
/// Where in the file fio writes: far behind everything of ours.
const FIO_OFFSET_BYTES: u64 = 1 << 39;

/// A cache with all its pages in the file.
struct Written {
    cache: SwapCache<FileStore>,
    /// In the order of writing.
    entries: Vec<SwapEntry>,
    write_mib_per_s: f64,
    written_bytes: u64,
}

impl Written {
    /// Stores the pages and writes them back. Only the writing is timed.
    fn new(
        arguments: &StoreArguments,
        encryption: Encryption,
        pages: &[PageBytes],
    ) -> Result<Written, Failure> {
        let directory = arguments.directory.as_os_str().as_encoded_bytes();
        let environment =
            |e| Failure::environment(format!("{}: {e:?}", arguments.directory.display()));
        let store = FileStore::open(directory).map_err(environment)?;
        let config = CacheConfig { store: Some(store), encryption, ..CacheConfig::default() };
        let cache = SwapCache::new(config).map_err(environment)?;
        let store = |page: &PageBytes| cache.swap_out(page).ok();
        let all = (0..arguments.copies).flat_map(|_| pages).map(store).collect::<Option<Vec<_>>>();
        let entries = all.ok_or(Failure::environment("no memory for the pages".to_string()))?;
        let before = cache.counters().store_write_bytes;
        let started = Instant::now();
        cache.shrink(usize::MAX);
        let seconds = started.elapsed().as_secs_f64();
        let written_bytes = cache.counters().store_write_bytes - before;
        if let Some(e) = cache.store_failure() {
            return Err(environment(e));
        }
        Ok(Written {
            cache,
            entries,
            write_mib_per_s: written_bytes as f64 / MIB / seconds,
            written_bytes,
        })
    }

    /// Loads entries one after the other: MiB read from the file per second, and the counters'
    /// growth.
    fn load(&self, entries: &[SwapEntry]) -> (f64, Counters) {
        let before = self.cache.counters();
        let mut page = [0; PAGE_BYTES];
        let started = Instant::now();
        for entry in entries {
            self.cache.swap_in(*entry, &mut page).expect("what was written is read");
        }
        let seconds = started.elapsed().as_secs_f64();
        let mut grown = self.cache.counters();
        grown.store_reads -= before.store_reads;
        grown.store_read_bytes -= before.store_read_bytes;
        (grown.store_read_bytes as f64 / MIB / seconds, grown)
    }

    /// Loads entries a few at a time, each twice: the second time they are in the readers' buffers,
    /// so that all there is to do is to open and to decompress. MiB of the file per second of that.
    fn decode(&self) -> f64 {
        // Two clusters or three, which is what the readers hold; more, so that the second time is
        // not the quicker for being a repetition.
        const AT_ONCE: usize = 80;
        let mut page = [0; PAGE_BYTES];
        let mut load = |entries: &[SwapEntry]| {
            for entry in entries {
                self.cache.swap_in(*entry, &mut page).expect("what was written is read");
            }
        };
        let (mut decoded, mut seconds) = (0, 0.0);
        for entries in self.entries.chunks(AT_ONCE).take(MAX_DECODED / AT_ONCE) {
            load(entries);
            let before = self.cache.counters();
            let started = Instant::now();
            load(entries);
            let elapsed = started.elapsed().as_secs_f64();
            let after = self.cache.counters();
            // A page that is still in memory was never read, and what had to be read again is not
            // decoding alone.
            if after.read_ahead_hits - before.read_ahead_hits == entries.len() as u64
                && after.store_reads == before.store_reads
            {
                decoded += entries.len();
                seconds += elapsed;
            }
        }
        let bytes_per_page = self.written_bytes as f64 / self.entries.len() as f64;
        decoded as f64 * bytes_per_page / MIB / seconds
    }

    /// Bytes of pages to bytes of the file.
    fn expansion(&self) -> f64 {
        self.entries.len() as f64 * PAGE_BYTES as f64 / self.written_bytes as f64
    }

    /// The path by which another process reaches the file.
    fn path(&self) -> String {
        let mut first = None;
        self.cache.for_each_descriptor(|fd| first = first.or(Some(fd)));
        format!("/proc/{}/fd/{}", std::process::id(), first.unwrap_or(-1))
    }
}

/// Runs fio in the file: MiB per second, or why it cannot say.
fn fio(path: &str, way: &str, options: &[String]) -> Result<f64, String> {
    let mut command = Command::new("fio");
    command.args([
        "--name=uzswap",
        "--direct=1",
        "--allow_file_create=0",
        "--fallocate=none",
        "--output-format=json",
    ]);
    command.arg(format!("--filename={path}")).arg(format!("--rw={way}")).args(options);
    let output = command.output().map_err(|e| uzswap_cli::program::reason(&e))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        return Err(format!(
            "ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        ));
    }
    // Notes may stand before the JSON.
    let from = text.find('{').ok_or("said nothing")?;
    let value: Value = serde_json::from_str(&text[from..]).map_err(|e| e.to_string())?;
    let side = if way.contains("read") { "read" } else { "write" };
    value["jobs"][0][side]["bw_bytes"]
        .as_f64()
        .map(|bytes| bytes / MIB)
        .ok_or("no figure".to_string())
}

pub fn run(arguments: StoreArguments) -> Result<u8, Failure> {
    let mut comparison = Comparison::begin(&arguments.engine, "store")?;
    let pages: Vec<PageBytes> =
        comparison.mix.iter().filter(|page| same_filled(page).is_none()).copied().collect();
    let with_fio =
        Command::new("fio").arg("--version").output().is_ok_and(|output| output.status.success());
    if !with_fio {
        console::say("fio is not installed: rates without a comparison");
    }
    let mut groups: Vec<plot::Group> = Vec::new();
    let mut results = Map::new();
    for (name, encryption) in ENCRYPTIONS {
        let bench = Bench::begin(&arguments, encryption, &pages)?;
        let mut arms = bench.own_arms();
        if with_fio {
            arms.extend(bench.fio_arms());
        }
        let times = comparison.in_turn(comparison.rounds, &mut arms)?;
        drop(arms);
        if let Some(why) = bench.failure.take() {
            return Err(Failure::failed(why));
        }
        println!(
            "{name}: {:.0} MiB in clusters, {:.2} blocks per random read",
            bench.data_bytes as f64 / MIB,
            bench.mean_blocks
        );
        let expansion = bench.written.borrow().expansion();
        let mut bars = rates(&mut comparison, name, &times, with_fio);
        bars.push(of_decoding(&times, expansion, with_fio));
        groups.push((name.to_string(), bars));
        results.insert(
            name.to_string(),
            json!({
                "mean_blocks": bench.mean_blocks,
                "page_bytes_to_bytes": expansion,
                "mib_per_s": times.to_json(),
            }),
        );
    }
    let plot = plot::bars("Writing back and reading", "MiB per second", &groups);
    comparison.end(results.into(), &plot)
}

/// The measurement of one encryption.
struct Bench<'a> {
    arguments: &'a StoreArguments,
    encryption: Encryption,
    pages: &'a [PageBytes],
    written: RefCell<Written>,
    /// The order in which entries are loaded at random, by their places.
    order: Vec<u32>,
    /// The blocks that one random load reads, for fio to do the same.
    mean_blocks: f64,
    data_bytes: u64,
    /// The first reason why a figure is missing.
    failure: RefCell<Option<String>>,
}

impl<'a> Bench<'a> {
    fn begin(
        arguments: &'a StoreArguments,
        encryption: Encryption,
        pages: &'a [PageBytes],
    ) -> Result<Bench<'a>, Failure> {
        let written = Written::new(arguments, encryption, pages)?;
        let mut order: Vec<u32> = (0..written.entries.len() as u32).collect();
        Random(1).shuffle(&mut order);
        let data_bytes = written.written_bytes / CLUSTER_BYTES as u64 * CLUSTER_BYTES as u64;
        let mut bench = Bench {
            arguments,
            encryption,
            pages,
            written: RefCell::new(written),
            order,
            mean_blocks: 0.0,
            data_bytes,
            failure: RefCell::new(None),
        };
        let (_, grown) = bench.load_at_random(0);
        bench.mean_blocks =
            grown.store_read_bytes as f64 / grown.store_reads as f64 / PAGE_BYTES as f64;
        Ok(bench)
    }

    fn load_at_random(&self, round: usize) -> (f64, Counters) {
        let written = self.written.borrow();
        let loads = self.arguments.loads as usize;
        let places = self.order.iter().cycle().skip(round * loads % self.order.len()).take(loads);
        let part: Vec<SwapEntry> = places.map(|&i| written.entries[i as usize]).collect();
        written.load(&part)
    }

    fn failed(&self, why: String) -> f64 {
        self.failure.borrow_mut().get_or_insert(why);
        f64::NAN
    }

    /// Writes all pages to a new file. The old one goes, and with it what fio wrote.
    fn write_anew(&self) -> f64 {
        match Written::new(self.arguments, self.encryption, self.pages) {
            Ok(new) => {
                let rate = new.write_mib_per_s;
                *self.written.borrow_mut() = new;
                rate
            }
            Err(why) => self.failed(why.message),
        }
    }

    fn own_arms(&self) -> Vec<Arm<'_>> {
        vec![
            arm("write", |_| self.write_anew()),
            arm("read in order", |_| {
                let written = self.written.borrow();
                written.load(&written.entries).0
            }),
            arm("read at random", |round| self.load_at_random(round).0),
            arm("decode alone", |_| self.written.borrow().decode()),
        ]
    }

    fn fio(&self, way: &str, options: &[String]) -> f64 {
        let path = self.written.borrow().path();
        fio(&path, way, options).unwrap_or_else(|why| self.failed(why))
    }

    fn fio_arms(&self) -> [Arm<'_>; 3] {
        let data_bytes = self.data_bytes;
        let two_blocks = ((self.mean_blocks - 1.0) * 100.0).round().clamp(0.0, 100.0) as u32;
        let loads = f64::from(self.arguments.loads);
        let loads_bytes = (loads * self.mean_blocks) as u64 * PAGE_BYTES as u64;
        [
            arm("fio write", move |round| {
                let offset = FIO_OFFSET_BYTES + (round as u64) * data_bytes;
                let options = [
                    "--ioengine=libaio".to_string(),
                    format!("--bs={CLUSTER_BYTES}"),
                    format!("--iodepth={QUEUE_DEPTH}"),
                    format!("--offset={offset}"),
                    format!("--size={data_bytes}"),
                ];
                self.fio("write", &options)
            }),
            arm("fio read in order", move |_| {
                let options = [
                    "--ioengine=psync".to_string(),
                    format!("--bs={CLUSTER_BYTES}"),
                    format!("--size={data_bytes}"),
                ];
                self.fio("read", &options)
            }),
            arm("fio read at random", move |round| {
                let options = [
                    "--ioengine=psync".to_string(),
                    format!("--bssplit=4k/{}:8k/{two_blocks}", 100 - two_blocks),
                    "--blockalign=4k".to_string(),
                    format!("--randseed={round}"),
                    format!("--size={data_bytes}"),
                    format!("--io_size={loads_bytes}"),
                ];
                self.fio("randread", &options)
            }),
        ]
    }
}

/// Prints the rates of writing and reading, and what they are to fio's: their bars.
fn rates(
    comparison: &mut Comparison,
    name: &str,
    times: &Times,
    with_fio: bool,
) -> Vec<(String, f64)> {
    let mut bars = Vec::new();
    for what in ["write", "read in order", "read at random"] {
        let ours = times.median(what);
        bars.push((format!("uzswap {what}"), ours));
        if !with_fio {
            println!("  {what:<16} {ours:>8.0} MiB/s");
            continue;
        }
        let theirs = format!("fio {what}");
        println!("  {what:<16} {ours:>8.0} MiB/s, fio {:>8.0} MiB/s", times.median(&theirs));
        comparison.aim(
            &format!("{name}: {what}, to fio"),
            times.ratio(what, &theirs),
            Aim::AtLeast(0.8),
        );
        bars.push((theirs.clone(), times.median(&theirs)));
    }
    bars
}

/// Prints what decoding is of reading: its bar.
fn of_decoding(times: &Times, expansion: f64, with_fio: bool) -> (String, f64) {
    let decode = times.median("decode alone");
    println!("  {:<16} {decode:>8.0} MiB/s", "decode alone");
    println!("  pages in order   {:>8.0} MiB/s", times.median("read in order") * expansion);
    if with_fio {
        let to_fio = times.ratio("read in order", "fio read in order");
        println!("  pages in order, to fio reading them uncompressed: {:.3}", to_fio * expansion);
        println!(
            "  decode alone, to fio reading in order: {:.3}; \
             uzswap reading in order, to the slower of the two: {:.3}",
            times.ratio("decode alone", "fio read in order"),
            to_fio.max(times.ratio("read in order", "decode alone"))
        );
    }
    ("decode alone".to_string(), decode)
}
