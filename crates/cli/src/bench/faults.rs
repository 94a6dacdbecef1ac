//! `uzswap bench faults`: what a page costs that comes back.
//!
//! One worker process, the same pages, the same limit; the arms differ in what stands behind the limit: uzswap, or a
//! memory cgroup with zswap, zram or plain swap of the kernel.
//!
//! *Per touch* is the wall time of a pass by its touches, hits included: what a program feels. *Per refault* is the mean
//! time of those touches that were no hits, including the eviction that made room if it happened in the
//! faulting thread. *CPU* is the processor time of all threads of the process by its touches, so that work moved to
//! another core is seen. The limit counts different things: uzswap's compressed pool is inside it, zram's and (with
//! cgroup v1) zswap's come on top, so uzswap keeps fewer pages ready and has more refaults. `--count-pool` lowers
//! the kernel's limit by the pool for a comparison at equal memory.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Map, Value, json};

use super::pages::PAGE_BYTES;
use super::peers::{self, Kind, Lock, Peer, Plan};
use super::plot;
use super::process::{self, Interrupt};
use super::record::{Record, median};
use super::worker::PHASES;
use crate::Failure;
use crate::report;
use crate::size::{self, Size, human};

#[derive(clap::Args, Debug)]
pub struct FaultsArguments {
    /// Compare with swap of the kernel (as root): a list of zswap, zram and swap, or none
    #[arg(long, value_name = "LIST", default_value = "none", value_parser = peer_list)]
    peers: Peers,
    /// Memory limit of every arm
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = bytes)]
    memory: u64,
    /// Memory that the measured program fills and touches
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = bytes)]
    size: u64,
    /// Runs of each arm, in turn; results are medians
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Passes over all pages for each way of touching them
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1000))]
    passes: u32,
    /// Take the pages' content from a file (a memory image, say) instead of making it up
    #[arg(long, value_name = "FILE")]
    corpus: Option<PathBuf>,
    /// Read-ahead of the kernel's swap, 2^N pages; one arm for each
    #[arg(long, value_name = "N,...", default_value = "0,3", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(0..=6))]
    page_cluster: Vec<u32>,
    /// Lower the kernel's limit by the compressed pool, so that all arms hold the same memory
    #[arg(long)]
    count_pool: bool,
    /// Directory for the kernel's swap file
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    swap_directory: PathBuf,
    /// Directory for the results: every run as JSON, and a plot
    #[arg(long, value_name = "DIR", default_value = "bench-results")]
    out: PathBuf,
}

/// A parsed `--peers` (a type of its own: clap takes a bare `Vec` for a repeated option).
#[derive(Clone, Debug, PartialEq, Eq)]
struct Peers(Vec<Kind>);

fn peer_list(text: &str) -> Result<Peers, String> {
    if text == "none" {
        return Ok(Peers(vec![]));
    }
    let mut peers = Vec::new();
    for name in text.split(',') {
        match Kind::ALL.into_iter().find(|kind| kind.name() == name) {
            Some(kind) if !peers.contains(&kind) => peers.push(kind),
            Some(_) => return Err(format!("{name} is there twice")),
            None => return Err(format!("'{name}' is none of zswap, zram, swap")),
        }
    }
    Ok(Peers(peers))
}

fn bytes(text: &str) -> Result<u64, String> {
    match size::parse(text)? {
        Size::Bytes(bytes) if bytes >= PAGE_BYTES as u64 => Ok(bytes),
        Size::Bytes(_) => Err("is less than a page".to_string()),
        Size::MilliPercent(_) => Err("must be a size, not a percentage".to_string()),
    }
}

/// One way to hold the limit.
#[derive(Clone, Debug)]
struct Arm {
    name: String,
    backing: Backing,
}

#[derive(Clone, Copy, Debug)]
enum Backing {
    Uzswap,
    Kernel { kind: Kind, page_cluster: u32, limit_bytes: u64 },
}

pub fn run(arguments: FaultsArguments) -> Result<u8, Failure> {
    let pages = u32::try_from(arguments.size / PAGE_BYTES as u64)
        .map_err(|_| Failure::usage("--size: more than 16 TiB".to_string()))?;
    let corpus = match &arguments.corpus {
        None => None,
        Some(path) => Some(std::path::absolute(path).map_err(|e| Failure::usage(format!("--corpus: {e}")))?),
    };
    let record = Record::begin(&arguments.out, "faults")?;
    let interrupt = Interrupt::install();
    let lock = match arguments.peers.0.is_empty() {
        true => None,
        false => match peers::privileged().and_then(|()| Lock::take()) {
            Ok(lock) => Some(lock),
            Err(why) => {
                report::say(&format!("--peers: {why}; only uzswap is measured"));
                None
            }
        },
    };
    let bench = Bench { arguments: &arguments, corpus, pages, lock, interrupt };
    let mut arms = bench.arms();
    let mut runs = Vec::new();
    if arguments.count_pool {
        bench.count_pool(&mut arms, &mut runs)?;
    }
    for round in 1..=arguments.rounds {
        for arm in &arms {
            report::say(&format!("round {round} of {}: {}", arguments.rounds, arm.name));
            runs.push(bench.run(arm, round)?);
        }
    }
    let summary = summarize(&arms, &runs);
    print!("{}", table(&arguments, &arms, &summary));
    let json = record.write_json(json!({
        "settings": {
            "memory_bytes": arguments.memory,
            "size_bytes": arguments.size,
            "rounds": arguments.rounds,
            "passes": arguments.passes,
            "content": bench.corpus.as_ref().map_or("made up like a heap".into(), |p| p.display().to_string()),
            "count_pool": arguments.count_pool,
        },
        "summary": summary,
        "runs": runs,
    }))?;
    let names: Vec<&str> = arms.iter().map(|arm| arm.name.as_str()).collect();
    let plot = record.write("svg", &plot::faults(&headline(&arguments), &names, &summary))?;
    println!("\n{}\n{}", json.display(), plot.display());
    match runs.iter().find(|run| run["arm"] == "uzswap" && !run["error"].is_null()) {
        Some(run) => Err(Failure::failed(format!("uzswap: {}", run["error"].as_str().unwrap_or_default()))),
        None => Ok(0),
    }
}

struct Bench<'a> {
    arguments: &'a FaultsArguments,
    corpus: Option<PathBuf>,
    pages: u32,
    /// Only with it are there arms of the kernel.
    lock: Option<Lock>,
    interrupt: Interrupt,
}

impl Bench<'_> {
    fn arms(&self) -> Vec<Arm> {
        let mut arms = vec![Arm { name: "uzswap".to_string(), backing: Backing::Uzswap }];
        if self.lock.is_none() {
            return arms;
        }
        for kind in self.arguments.peers.0.iter().copied() {
            for page_cluster in self.arguments.page_cluster.iter().copied() {
                arms.push(Arm {
                    name: format!("{} pc{page_cluster}", kind.name()),
                    backing: Backing::Kernel { kind, page_cluster, limit_bytes: self.arguments.memory },
                });
            }
        }
        arms
    }

    /// Lowers the limits so that limit and pool together are what was asked for, by the ratio that a first run has.
    fn count_pool(&self, arms: &mut [Arm], runs: &mut Vec<Value>) -> Result<(), Failure> {
        for arm in arms {
            let before = arm.clone();
            let Backing::Kernel { kind, limit_bytes, .. } = &mut arm.backing else { continue };
            if *kind == Kind::Swap || peers::pool_is_charged(*kind) {
                continue;
            }
            report::say(&format!("calibration: {}", before.name));
            let run = self.run(&before, 0)?;
            if let Some(pool_bytes) = run["pool_bytes"].as_u64() {
                *limit_bytes = limit_with_pool(self.arguments.size, self.arguments.memory, pool_bytes);
            }
            runs.push(run);
        }
        Ok(())
    }

    /// One run of one arm: what the worker saw, or why it saw nothing. Only an interrupt is an error.
    fn run(&self, arm: &Arm, round: u32) -> Result<Value, Failure> {
        let mut run = json!({"round": round, "arm": arm.name});
        let result = match arm.backing {
            Backing::Uzswap => self.under_uzswap(&mut run, round)?,
            Backing::Kernel { kind, page_cluster, limit_bytes } => {
                let plan = Plan {
                    kind,
                    page_cluster,
                    limit_bytes,
                    // All of it may be out at a time; and a little more, for a limit is never met exactly.
                    swap_bytes: self.arguments.size + self.arguments.size / 8 + (16 << 20),
                    directory: &self.arguments.swap_directory,
                };
                self.under_kernel(&mut run, round, plan)?
            }
        };
        match result {
            Ok(worker) => run["worker"] = worker,
            Err(why) => {
                report::say(&format!("{}: {why}", arm.name));
                run["error"] = why.into();
            }
        }
        Ok(run)
    }

    fn under_uzswap(&self, run: &mut Value, round: u32) -> Result<Result<Value, String>, Failure> {
        let stats = std::env::temp_dir().join(format!("uzswap-bench-{}.json", std::process::id()));
        let mut command = own_command()?;
        command.args(["run", "--quiet", "--memory", &self.arguments.memory.to_string(), "--stats"]);
        command.arg(&stats).arg("--").arg(own_path()?);
        self.worker_arguments(&mut command, round);
        let line = process::one_line(&mut command, &self.interrupt, || ());
        let text = std::fs::read_to_string(&stats).unwrap_or_default();
        let _ = std::fs::remove_file(&stats);
        let result = line?.and_then(|line| parse(&line));
        run["stats"] = serde_json::from_str(&text).unwrap_or(Value::Null);
        let activations = run["stats"]["counters"]["activations"].as_u64();
        // A run that was not managed measures nothing, however good its figures.
        Ok(match activations {
            Some(0) | None if result.is_ok() => Err("the worker ran unmanaged".to_string()),
            _ => result,
        })
    }

    fn under_kernel(
        &self,
        run: &mut Value,
        round: u32,
        plan: Plan,
    ) -> Result<Result<Value, String>, Failure> {
        let lock = self.lock.as_ref().expect("no arm of the kernel without it");
        let peer = match Peer::switch_on(lock, plan) {
            Ok(peer) => peer,
            Err(why) => return Ok(Err(why)),
        };
        let mut command = own_command()?;
        self.worker_arguments(&mut command, round);
        command.arg("--cgroup").arg(peer.group());
        let before = vmstat();
        let mut pool_bytes = 0;
        let line = process::one_line(&mut command, &self.interrupt, || pool_bytes = peer.pool_bytes())?;
        run["limit_bytes"] = plan.limit_bytes.into();
        run["pool_bytes"] = pool_bytes.into();
        run["vmstat"] = difference(&before, &vmstat());
        if let Err(failures) = peer.put_back() {
            return Err(Failure::failed(format!("not put back: {failures}")));
        }
        Ok(line.and_then(|line| parse(&line)))
    }

    fn worker_arguments(&self, command: &mut Command, round: u32) {
        command.args(["bench", "worker", "--pages", &self.pages.to_string()]);
        // Every arm meets the same orders in one round, and others in the next.
        command.args(["--passes", &self.arguments.passes.to_string(), "--seed", &round.to_string()]);
        if let Some(corpus) = &self.corpus {
            command.arg("--corpus").arg(corpus);
        }
    }
}

fn own_path() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|e| Failure::environment(format!("where this command is: {e}")))
}

fn own_command() -> Result<Command, Failure> {
    let mut command = Command::new(own_path()?);
    command.stderr(Stdio::inherit());
    Ok(command)
}

fn parse(line: &str) -> Result<Value, String> {
    serde_json::from_str(line).map_err(|e| format!("the worker's answer: {e}"))
}

/// The limit at which limit plus pool are `memory`, when a run under `memory` had a pool of `pool_bytes`.
fn limit_with_pool(size: u64, memory: u64, pool_bytes: u64) -> u64 {
    // What is out is compressed by one ratio: limit + share * (size - limit) = memory.
    let share = pool_bytes as f64 / size.saturating_sub(memory).max(1) as f64;
    let limit = (memory as f64 - share * size as f64) / (1.0 - share);
    let least = memory / 8;
    if limit.is_finite() { (limit as u64).clamp(least, memory) } else { least }
}

fn vmstat() -> Map<String, Value> {
    let text = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let pairs = text.lines().filter_map(|line| line.split_once(' '));
    pairs
        .filter(|(key, _)| key.starts_with("pswp") || key.starts_with("zswp"))
        .filter_map(|(key, value)| Some((key.to_string(), value.parse::<u64>().ok()?.into())))
        .collect()
}

fn difference(before: &Map<String, Value>, after: &Map<String, Value>) -> Value {
    let of = |map: &Map<String, Value>, key| map.get(key).and_then(Value::as_u64).unwrap_or(0);
    after
        .keys()
        .map(|key| (key.clone(), (of(after, key) - of(before, key)).into()))
        .collect::<Map<_, _>>()
        .into()
}

// ---------------------------------------------------------------- results

/// For every arm its medians over rounds, and their ratios to uzswap's.
fn summarize(arms: &[Arm], runs: &[Value]) -> Value {
    let mut summary = Map::new();
    for arm in arms {
        let own: Vec<&Value> = (runs.iter())
            .filter(|run| run["arm"] == *arm.name && run["round"] != 0 && run["error"].is_null())
            .collect();
        let over_runs = |of: &dyn Fn(&Value) -> Option<f64>| median(own.iter().filter_map(|run| of(run)));
        let mut phases = Map::new();
        for phase in PHASES {
            let figure = |of: &dyn Fn(&Value) -> Option<f64>| {
                over_runs(&|run| of(&run["worker"]["phases"][phase.name]))
            };
            let by_touch = |key: &str| figure(&|p| Some(p[key].as_f64()? / p["touches"].as_f64()?));
            let plain = |key: &str| figure(&|p| p[key].as_f64());
            let of_uzswap = |key: &str| summary.get("uzswap")?["phases"][phase.name][key].as_f64();
            let ratio = |key: &str, own: Option<f64>| match arm.backing {
                Backing::Uzswap => own.map(|_| 1.0),
                Backing::Kernel { .. } => Some(own? / of_uzswap(key)?),
            };
            let (touch, refault) = (by_touch("wall_ns"), plain("refault_mean_ns"));
            phases.insert(
                phase.name.to_string(),
                json!({
                    "touch_ns": touch,
                    "cpu_per_touch_ns": by_touch("cpu_ns"),
                    "refault_share": by_touch("refaults"),
                    "hit_mean_ns": plain("hit_mean_ns"),
                    "refault_mean_ns": refault,
                    "refault_p50_ns": plain("refault_p50_ns"),
                    "refault_p99_ns": plain("refault_p99_ns"),
                    "refault_p999_ns": plain("refault_p999_ns"),
                    "touch_by_uzswap": ratio("touch_ns", touch),
                    "refault_by_uzswap": ratio("refault_mean_ns", refault),
                }),
            );
        }
        summary.insert(
            arm.name.clone(),
            json!({
                "runs": own.len(),
                "fill_ns_per_page": over_runs(&|run| run["worker"]["fill_ns_per_page"].as_f64()),
                "limit_bytes": over_runs(&|run| run["limit_bytes"].as_f64()),
                "pool_bytes": over_runs(&|run| run["pool_bytes"].as_f64()),
                "phases": phases,
            }),
        );
    }
    summary.into()
}

fn headline(arguments: &FaultsArguments) -> String {
    let content = arguments.corpus.as_deref().and_then(Path::file_name);
    format!(
        "{} of {} under {}, medians of {}",
        human(arguments.size),
        content.map_or("heap-like pages".into(), |name| format!("pages of {}", name.display())),
        human(arguments.memory),
        arguments.rounds,
    )
}

fn table(arguments: &FaultsArguments, arms: &[Arm], summary: &Value) -> String {
    let us = |value: &Value| value.as_f64().map_or("-".to_string(), |ns| format!("{:.2}", ns / 1000.0));
    let times = |value: &Value| value.as_f64().map_or("-".to_string(), |ratio| format!("{ratio:.2}"));
    let mut text = format!("{}; times in us\n", headline(arguments));
    for phase in PHASES {
        text += &format!(
            "\n{:<17} {:>9} {:>8} {:>8} | {:>11} {:>8} {:>8} {:>8} {:>8}\n",
            phase.name, "per touch", "x uzswap", "CPU", "per refault", "x uzswap", "p50", "p99", "p99.9"
        );
        for arm in arms {
            let figures = &summary[&arm.name]["phases"][phase.name];
            let share = figures["refault_share"].as_f64();
            text += &format!(
                "  {:<9} {:>4}% {:>9} {:>8} {:>8} | {:>11} {:>8} {:>8} {:>8} {:>8}\n",
                arm.name,
                share.map_or("-".to_string(), |share| format!("{:.0}", share * 100.0)),
                us(&figures["touch_ns"]),
                times(&figures["touch_by_uzswap"]),
                us(&figures["cpu_per_touch_ns"]),
                us(&figures["refault_mean_ns"]),
                times(&figures["refault_by_uzswap"]),
                us(&figures["refault_p50_ns"]),
                us(&figures["refault_p99_ns"]),
                us(&figures["refault_p999_ns"]),
            );
        }
    }
    text += "\nmemory and filling\n";
    for arm in arms {
        let own = &summary[&arm.name];
        let mib = |key: &str| own[key].as_f64().map(|bytes| human(bytes as u64));
        let held = match (mib("limit_bytes"), mib("pool_bytes")) {
            (Some(limit), Some(pool)) => format!("{limit} and a pool of {pool}"),
            _ => format!("{} with its pool", human(arguments.memory)),
        };
        text += &format!("  {:<9} {held}; {} us to fill a page\n", arm.name, us(&own["fill_ns_per_page"]));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        faults: FaultsArguments,
    }

    fn parse_line(arguments: &[&str]) -> Result<FaultsArguments, String> {
        let line = Line::try_parse_from(["faults"].iter().chain(arguments));
        line.map(|line| line.faults).map_err(|e| e.to_string())
    }

    #[test]
    fn options() {
        let defaults = parse_line(&[]).unwrap();
        assert_eq!(defaults.peers, Peers(vec![]));
        assert_eq!((defaults.memory, defaults.size, defaults.rounds), (128 << 20, 256 << 20, 3));
        assert_eq!(defaults.page_cluster, [0, 3]);
        let given = parse_line(&[
            "--peers=zram,swap",
            "--memory",
            "1.5G",
            "--size=4GiB",
            "--rounds=7",
            "--page-cluster=2",
            "--count-pool",
        ]);
        let given = given.unwrap();
        assert_eq!(given.peers, Peers(vec![Kind::Zram, Kind::Swap]));
        assert_eq!((given.memory, given.size, given.rounds), (3 << 29, 4 << 30, 7));
        assert_eq!(given.page_cluster, [2]);
        assert!(given.count_pool);
        for (wrong, word) in [
            ("--peers=zfs", "none of zswap, zram, swap"),
            ("--peers=", "none of zswap, zram, swap"),
            ("--peers=zram,zram", "twice"),
            ("--memory=50%", "not a percentage"),
            ("--memory=x", "no size"),
            ("--size=1", "less than a page"),
            ("--rounds=0", "1..=1000"),
            ("--page-cluster=9", "0..=6"),
        ] {
            let error = parse_line(&[wrong]).err().unwrap_or_else(|| panic!("{wrong} was taken"));
            assert!(error.contains(word), "{wrong}: {error}");
        }
    }

    #[test]
    fn limit_and_pool_together_are_the_memory() {
        const MIB: u64 = 1 << 20;
        // 128 of 256 MiB out take 32 MiB: a quarter. Then L + (256 - L) / 4 = 128.
        let limit = limit_with_pool(256 * MIB, 128 * MIB, 32 * MIB);
        assert_eq!(limit / MIB, 85);
        assert_eq!((limit + (256 * MIB - limit) / 4) / MIB, 127);
        // Nothing compressed: no limit does it.
        assert_eq!(limit_with_pool(256 * MIB, 128 * MIB, 128 * MIB), 16 * MIB);
        assert_eq!(limit_with_pool(256 * MIB, 128 * MIB, 0), 128 * MIB);
    }

    fn made_up_run(arm: &str, round: u32, us: f64) -> Value {
        let phases: Map<String, Value> = (PHASES.iter())
            .map(|phase| {
                let figures = json!({
                    "touches": 100, "refaults": 50, "wall_ns": us * 1000.0 * 50.0, "cpu_ns": 0,
                    "hit_mean_ns": 0.0, "refault_mean_ns": us * 1000.0, "refault_p50_ns": us * 900.0,
                    "refault_p99_ns": us * 2000.0, "refault_p999_ns": us * 3000.0,
                });
                (phase.name.to_string(), figures)
            })
            .collect();
        json!({"arm": arm, "round": round, "worker": {"fill_ns_per_page": 500.0, "phases": phases}})
    }

    #[test]
    fn results_are_medians_and_ratios_of_them() {
        let kernel = Backing::Kernel { kind: Kind::Zram, page_cluster: 0, limit_bytes: 0 };
        let arms = [
            Arm { name: "uzswap".to_string(), backing: Backing::Uzswap },
            Arm { name: "zram pc0".to_string(), backing: kernel },
            Arm { name: "swap pc0".to_string(), backing: kernel },
        ];
        let mut runs: Vec<Value> = [4.0, 100.0, 5.0].iter().map(|us| made_up_run("uzswap", 1, *us)).collect();
        runs.extend([10.0, 11.0].map(|us| made_up_run("zram pc0", 1, us)));
        runs.push(made_up_run("zram pc0", 0, 77.0)); // a calibration
        runs.push(json!({"arm": "swap pc0", "round": 1, "error": "killed"}));
        let summary = summarize(&arms, &runs);
        let figures = &summary["zram pc0"]["phases"]["random read"];
        assert_eq!(figures["refault_mean_ns"], 10_500.0);
        assert_eq!(figures["touch_ns"], 5_250.0);
        assert_eq!(figures["refault_share"], 0.5);
        assert_eq!(figures["refault_by_uzswap"], 2.1);
        assert_eq!(summary["uzswap"]["phases"]["random read"]["refault_by_uzswap"], 1.0);
        assert_eq!(summary["swap pc0"]["runs"], 0);
        assert_eq!(summary["swap pc0"]["phases"]["random read"]["touch_ns"], Value::Null);
        let text = table(&parse_line(&[]).unwrap(), &arms, &summary);
        let row = text.lines().find(|l| l.contains("zram pc0") && l.contains('%')).unwrap();
        assert!(row.contains("10.50") && row.contains("2.10") && row.contains("50%"), "{row}");
        let svg = plot::faults("<title>", &["uzswap", "zram pc0", "swap pc0"], &summary);
        assert!(svg.contains("&lt;title&gt;") && svg.ends_with("</svg>\n"));
    }
}
