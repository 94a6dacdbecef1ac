//! `uzswap bench disk`: a compressed disk beside the kernel's zram and nbdkit's.
//!
//! ```text
//!  fio, by its NBD engine ──┬─ Unix socket ─> uzswap disk
//!   (or writers of ours)    ├─ Unix socket ─> nbdkit memory allocator=zstd
//!                           └─ direct ──────> /dev/zramN, lz4
//! ```
//!
//! The eleven phases of [`jobs`], with one writer and with many, on data of several kinds. Every
//! run has a disk of its own, made for it. A ratio is ours by a peer's, of the runs of one round,
//! which follow each other; a result is the median over rounds. zram is asked without any wire, so
//! its ratios are the price of one.
//!
//! *Idle* is one writer while other clients are connected and ask for nothing: the cost of clients
//! that could ask.

mod jobs;
mod table;
mod targets;
mod writer;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::{Map, Value, json};

use self::jobs::{Data, PHASES, REQUEST_BYTES};
use self::targets::{Peer, Target};
use self::writer::{Order, Way};
use super::arms;
use super::corpus::Corpora;
use super::peers::{self, Lock};
use super::process::{Interrupt, Running};
use super::record::{Out, Record};
use super::results;
use super::scratch::Scratch;
pub use table::table;
use uzswap_cli::Failure;
use uzswap_cli::console;
use uzswap_cli::pages::{PAGE_BYTES, PageBytes, Pages};
use uzswap_cli::program::reason;

/// Pages of heaps that are kept ready, 256 MiB: more than any cache of a processor holds.
const HEAP_PAGES: usize = 1 << 16;
/// Connections beside the one that writes, so that all are the twelve of the published line.
const IDLE: u32 = 11;
/// The arm of one writer beside those.
const IDLE_ARM: &str = "uzswap, others idle";
/// The time between two looks whether fio has ended.
const LOOK: Duration = Duration::from_millis(20);

#[derive(clap::Args, Debug)]
pub struct DiskArguments {
    /// Compare with others, a list
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    peers: Vec<Peer>,
    /// Writers, and readers, at one time; one measurement for each N
    #[arg(long, value_name = "N,...", default_value = "1,12", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=48))]
    writers: Vec<u32>,
    /// Kinds of data to write, a list
    #[arg(long, value_name = "LIST", default_value = "zeros,half,heap", value_delimiter = ',')]
    data: Vec<Data>,
    /// Directory with page corpora ('uzswap bench corpus' makes them) for 'heap', rather than pages
    /// that are made up like one
    #[arg(long, value_name = "DIR")]
    corpus: Option<PathBuf>,
    /// The disk; its writers share it
    #[arg(long, value_name = "SIZE", default_value = "720M", value_parser = arms::bytes)]
    size: u64,
    /// Runs of each arm, in turn; results are medians
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = arms::times())]
    rounds: u32,
    #[command(flatten)]
    out: Out,
}

/// The parts that all runs need.
struct Bench {
    own: PathBuf,
    scratch: Scratch,
    /// The right to make a zram device: only with it is zram a peer.
    lock: Option<Lock>,
    heap: Vec<PageBytes>,
    size: u64,
    interrupt: Interrupt,
}

/// One way of measuring: data, and writers at one time.
#[derive(Clone, Copy)]
struct Case {
    data: Data,
    writers: u32,
}

pub fn run(arguments: DiskArguments) -> Result<u8, Failure> {
    let most = arguments.writers.iter().max().copied().unwrap_or(1);
    if arguments.size < u64::from(most) * REQUEST_BYTES * 64 {
        return Err(Failure::usage("--size: less than 64 requests of 16 KiB a writer".to_string()));
    }
    let record = Record::begin(&arguments.out, "disk")?;
    let mut peers = arguments.peers.clone();
    let lock = lock(&mut peers);
    let bench = Bench {
        own: arms::uzswap()?,
        scratch: Scratch::new("disk")?,
        lock,
        heap: heap(&arguments)?,
        size: arguments.size,
        interrupt: Interrupt::install(),
    };
    let mut runs = Vec::new();
    for round in 1..=arguments.rounds {
        for data in arguments.data.iter().copied() {
            for writers in arguments.writers.iter().copied() {
                let what = format!("round {round} of {}: {}", arguments.rounds, data.name());
                console::say(&format!("{what}, {writers} at one time"));
                runs.extend(bench.in_turn(&peers, Case { data, writers }, round)?);
            }
        }
    }
    let whole = json!({
        "settings": {
            "size_bytes": arguments.size,
            "request_bytes": REQUEST_BYTES,
            "rounds": arguments.rounds,
            "heap": if arguments.corpus.is_some() { "corpora" } else { "made up" },
        },
        "runs": runs,
    });
    let mut shown = whole.clone();
    shown["benchmark"] = "disk".into();
    let lines = results::lines_of(&shown);
    print!("{}", table(&lines.iter().collect::<Vec<_>>()));
    println!("\n{}", record.write_json(whole)?.display());
    arms::end(&runs)
}

/// The right to make a zram device, or zram is no peer.
fn lock(peers: &mut Vec<Peer>) -> Option<Lock> {
    if !peers.contains(&Peer::Zram) {
        return None;
    }
    match peers::privileged().and_then(|()| Lock::take()) {
        Ok(lock) => Some(lock),
        Err(why) => {
            console::say(&format!("--peers: zram: {why}; it is left out"));
            peers.retain(|peer| *peer != Peer::Zram);
            None
        }
    }
}

/// The pages for 'heap', if that is wanted.
fn heap(arguments: &DiskArguments) -> Result<Vec<PageBytes>, Failure> {
    let pages = HEAP_PAGES.min(arguments.size as usize / PAGE_BYTES);
    if !arguments.data.contains(&Data::Heap) {
        return Ok(Vec::new());
    }
    if let Some(directory) = &arguments.corpus {
        return Ok(Corpora::load(directory)?.mix(pages));
    }
    let mut made = vec![[0; PAGE_BYTES]; pages];
    for (number, page) in made.iter_mut().enumerate() {
        let failed = |e| Failure::failed(format!("a page: {}", reason(&e)));
        Pages::Synthetic.make(number as u64, page).map_err(failed)?;
    }
    Ok(made)
}

impl Bench {
    /// A run of each arm, ours with its ratios to the others.
    fn in_turn(&self, peers: &[Peer], case: Case, round: u32) -> Result<Vec<Value>, Failure> {
        let mut runs = vec![self.run("uzswap", case, round)?];
        for peer in peers {
            runs.push(self.run(peer.name(), case, round)?);
        }
        if case.writers == 1 {
            runs.push(self.run(IDLE_ARM, case, round)?);
        }
        let (ours, others) = runs.split_at_mut(1);
        let ours = &mut ours[0];
        for other in others {
            if other["arm"] == IDLE_ARM {
                // Turned round: what the others cost.
                other["by"] = json!({"uzswap": by(other, ours)});
                continue;
            }
            let name = other["arm"].as_str().unwrap_or_default().to_string();
            ours["by"][name] = by(ours, other);
        }
        Ok(runs)
    }

    /// One run of an arm; only an interrupt is a failure.
    fn run(&self, arm: &str, case: Case, round: u32) -> Result<Value, Failure> {
        let Case { data, writers } = case;
        let mut run = json!({"arm": arm, "data": data.name(), "writers": writers, "round": round});
        let measured = match self.target(arm) {
            Ok(target) => {
                let idle = if arm == IDLE_ARM { target.ways(IDLE) } else { Ok(Vec::new()) };
                let measured = match &idle {
                    Ok(_) => self.measure(&target, case),
                    Err(why) => Ok(Err(why.clone())),
                };
                drop(idle);
                let ended = target.end();
                measured?.and_then(|figures| ended.map(|()| figures))
            }
            Err(why) => Err(why),
        };
        match measured {
            Ok(Value::Object(figures)) => {
                run.as_object_mut().expect("it is one").extend(figures);
            }
            Ok(_) => {}
            Err(why) => {
                console::say(&format!("{arm}: {why}"));
                run["error"] = why.into();
            }
        }
        self.interrupt.check()?;
        Ok(run)
    }

    fn target(&self, arm: &str) -> Result<Target, String> {
        let directory = self.scratch.path();
        match (arm, &self.lock) {
            ("nbdkit", _) => Target::nbdkit(directory, self.size),
            ("zram", Some(lock)) => Target::zram(lock, self.size),
            ("zram", None) => Err("nobody may make one".to_string()),
            _ => Target::uzswap(&self.own, directory, self.size),
        }
    }

    /// All phases, and what the disk takes then.
    fn measure(&self, target: &Target, case: Case) -> Result<Result<Value, String>, Failure> {
        let pages = self.size / u64::from(case.writers) / REQUEST_BYTES;
        let bytes_of_each = pages * REQUEST_BYTES;
        let mut phases = Map::new();
        if !case.data.is_of_fio() {
            match self.fill(target, case.writers, bytes_of_each) {
                Ok(own) => phases.extend(own),
                Err(why) => return Ok(Err(why)),
            }
        }
        let text = jobs::text(&target.place(), case.data, case.writers, bytes_of_each);
        match self.fio(&text)? {
            Ok(own) => phases.extend(own.into_iter().map(|(name, speed)| (name, speed.into()))),
            Err(why) => return Ok(Err(why)),
        }
        let mut figures = target.memory(&self.own);
        figures["phases"] = phases.into();
        Ok(Ok(figures))
    }

    /// The phases that our own writers do.
    fn fill(
        &self,
        target: &Target,
        n: u32,
        bytes_of_each: u64,
    ) -> Result<Map<String, Value>, String> {
        let mut ways: Vec<Way> = target.ways(n)?;
        let mut phases = Map::new();
        for (name, order) in [
            (PHASES[0].name, Order::Forward),
            (PHASES[1].name, Order::Forward),
            ("random write", Order::Random),
        ] {
            let seconds = writer::write(&mut ways, &self.heap, bytes_of_each, order)
                .map_err(|e| format!("{name}: {}", reason(&e)))?;
            let mib = (bytes_of_each * u64::from(n)) as f64 / f64::from(1 << 20);
            phases.insert(name.to_string(), json!(mib / seconds));
        }
        Ok(phases)
    }

    /// Runs fio to its end.
    fn fio(&self, jobs: &str) -> Result<Result<Vec<(String, f64)>, String>, Failure> {
        let [job, said] = ["jobs.fio", "said.json"].map(|name| self.scratch.path().join(name));
        let named = |e: std::io::Error| format!("{}: {}", job.display(), reason(&e));
        if let Err(why) = fs::write(&job, jobs).map_err(named) {
            return Ok(Err(why));
        }
        let mut command = Command::new("fio");
        command.arg("--output-format=json").arg("--output").arg(&said).arg(&job);
        command.stdin(Stdio::null()).stdout(Stdio::null()).current_dir(self.scratch.path());
        let mut fio = match Running::start(&mut command) {
            Ok(fio) => fio,
            Err(why) => return Ok(Err(why)),
        };
        while fio.is_alive() {
            self.interrupt.check()?;
            thread::sleep(LOOK);
        }
        let end = fio.wait().map_err(|why| format!("fio: {why}"));
        let text = fs::read_to_string(&said).unwrap_or_default();
        let _ = fs::remove_file(&said);
        Ok(end.and_then(|()| jobs::parse(&text)))
    }
}

/// The ratios of a run's figures to another's.
fn by(run: &Value, other: &Value) -> Value {
    let ratio = |own: &Value, other: &Value| Some(own.as_f64()? / other.as_f64()?);
    let mut ratios = Map::new();
    for (phase, speed) in run["phases"].as_object().into_iter().flatten() {
        if let Some(ratio) = ratio(speed, &other["phases"][phase]) {
            ratios.insert(phase.clone(), json!(ratio));
        }
    }
    for memory in ["held_bytes", "pool_bytes"] {
        if let Some(ratio) = ratio(&run[memory], &other[memory]) {
            ratios.insert(memory.to_string(), json!(ratio));
        }
    }
    ratios.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_ours_by_the_others() {
        let ours = json!({"phases": {"read": 30.0, "rewrite": 1.0}, "held_bytes": 8,
                          "pool_bytes": 6});
        let other = json!({"phases": {"read": 10.0}, "held_bytes": 10});
        assert_eq!(by(&ours, &other), json!({"read": 3.0, "held_bytes": 0.8}));
        assert_eq!(by(&json!({"error": "killed"}), &other), json!({}));
    }

    #[test]
    fn a_run_puts_all_back_on_an_error() {
        let lock = match peers::privileged().and_then(|()| Lock::take()) {
            Ok(lock) => lock,
            Err(why) => return eprintln!("skipped: {why}"),
        };
        let Ok(target) = Target::zram(&lock, 1 << 20) else {
            return eprintln!("skipped: this kernel has no zram");
        };
        let jobs::Place::Device { path } = target.place() else { panic!("zram is a device") };
        let block = format!("/sys/block/{}", path.trim_start_matches("/dev/"));
        assert!(fs::exists(&block).unwrap());
        // Dropped without a word, as when a run fails.
        drop(target);
        assert!(!fs::exists(&block).unwrap());
    }
}
