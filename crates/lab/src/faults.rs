//! `uzswap bench faults`: what a page costs that comes back.
//!
//! One worker process, the same pages, the same limit; the arms differ in what stands behind the
//! limit: uzswap, or a memory cgroup with zswap, zram or plain swap of the kernel.
//!
//! *Per touch* is the wall time of a pass by its touches, hits included: what a program feels. *Per
//! refault* is the mean time of those touches that were no hits, including the eviction that made
//! room if it happened in the faulting thread. *CPU* is the processor time of all threads of the
//! process by its touches, so that work moved to another core is seen. Compressed pools are inside
//! uzswap's limit and mostly on top of the kernel's (see `arms`), so uzswap keeps fewer pages ready
//! and has more refaults. `--count-pool` is the comparison at equal memory.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::arms::{self, Arm, ArmArguments, Backing, Bench, counted};
use super::plot;
use super::record::{Record, median};
use super::threads;
use uzswap_cli::Failure;
use uzswap_cli::estimate::worker::PHASES;
use uzswap_cli::pages::PAGE_BYTES;
use uzswap_cli::size::human;

#[derive(clap::Args, Debug)]
pub struct FaultsArguments {
    #[command(flatten)]
    arms: ArmArguments,
    /// Memory limit of every arm
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = arms::bytes)]
    memory: u64,
    /// Memory that the measured program fills and touches
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = arms::bytes)]
    size: u64,
    /// Passes over all pages for each way of touching them
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = arms::times())]
    passes: u32,
    /// Take the pages' content from a file (a memory image, say) instead of making it up
    #[arg(long, value_name = "FILE")]
    corpus: Option<PathBuf>,
    /// Touch at random from N threads, one measurement for each N; the kernel's pool is counted
    /// both ways
    #[arg(long, value_name = "N,...", value_delimiter = ',',
          conflicts_with_all = ["corpus", "count_pool"],
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: Vec<u32>,
    /// With --threads: uzswap alone, 128M in 64M, one round, in a few seconds; no result is kept
    #[arg(long, requires = "threads", conflicts_with_all = ["memory", "size", "rounds", "peers"])]
    quick: bool,
}

impl From<FaultsArguments> for threads::Threads {
    fn from(given: FaultsArguments) -> threads::Threads {
        let FaultsArguments { mut arms, mut memory, mut size, passes, threads, quick, .. } = given;
        if quick {
            (memory, size, arms.rounds) = (64 << 20, 128 << 20, 1);
        }
        threads::Threads { arms, memory, size, passes, threads, keep: !quick }
    }
}

pub fn run(arguments: FaultsArguments) -> Result<u8, Failure> {
    if !arguments.threads.is_empty() {
        return threads::run(threads::Threads::from(arguments));
    }
    let pages = u32::try_from(arguments.size / PAGE_BYTES as u64)
        .map_err(|_| Failure::usage("--size: more than 16 TiB".to_string()))?;
    let corpus = match &arguments.corpus {
        None => None,
        Some(path) => {
            Some(std::path::absolute(path).map_err(|e| Failure::usage(format!("--corpus: {e}")))?)
        }
    };
    let record = Record::begin(&arguments.arms.out, "faults")?;
    let bench = Bench::begin(&arguments.arms);
    let mut arms = bench.arms(arguments.memory);
    let run = |arm: &Arm, round: u32| -> Result<Value, Failure> {
        let own = arms::own_path()?;
        let mut run = json!({"round": round});
        bench.run(arm, arguments.size, &mut run, |mut command, look| {
            command.arg(own).args(["worker", "--pages", &pages.to_string()]);
            // Every arm meets the same orders in one round, and others in the next.
            command.args(["--passes", &arguments.passes.to_string(), "--seed", &round.to_string()]);
            if let Some(corpus) = &corpus {
                command.arg("--corpus").arg(corpus);
            }
            arms::hear_worker(&mut command, &bench.interrupt, look)
        })?;
        Ok(run)
    };
    let runs = bench.rounds("", &mut arms, arguments.size, run)?;
    let summary = summarize(&arms, &runs);
    print!("{}", table(&arguments, &arms, &summary));
    let json = record.write_json(json!({
        "settings": {
            "memory_bytes": arguments.memory,
            "size_bytes": arguments.size,
            "rounds": arguments.arms.rounds,
            "passes": arguments.passes,
            "content": corpus
                .as_ref()
                .map_or("made up like a heap".into(), |p| p.display().to_string()),
            "count_pool": arguments.arms.count_pool,
        },
        "summary": summary,
        "runs": runs,
    }))?;
    let names: Vec<&str> = arms.iter().map(|arm| arm.name.as_str()).collect();
    let plot = record.write("svg", &plot::faults(&headline(&arguments), &names, &summary))?;
    println!("\n{}\n{}", json.display(), plot.display());
    arms::end(&runs)
}

// ---------------------------------------------------------------- results

/// For every arm its medians over rounds, and their ratios to uzswap's.
fn summarize(arms: &[Arm], runs: &[Value]) -> Value {
    let mut summary = Map::new();
    for arm in arms {
        let own = counted(runs, arm);
        let over_runs =
            |of: &dyn Fn(&Value) -> Option<f64>| median(own.iter().filter_map(|run| of(run)));
        let mut phases = Map::new();
        for phase in PHASES {
            let figure = |of: &dyn Fn(&Value) -> Option<f64>| {
                over_runs(&|run| of(&run["worker"]["phases"][phase.name]))
            };
            let by_touch = |key: &str| figure(&|p| Some(p[key].as_f64()? / p["touches"].as_f64()?));
            let plain = |key: &str| figure(&|p| p[key].as_f64());
            let of_uzswap = |key: &str| summary.get("uzswap")?["phases"][phase.name][key].as_f64();
            let ratio = |key: &str, own: Option<f64>| match arm.backing {
                Backing::Uzswap { .. } | Backing::UzswapInGroup { .. } => own.map(|_| 1.0),
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
        arguments.arms.rounds,
    )
}

fn table(arguments: &FaultsArguments, arms: &[Arm], summary: &Value) -> String {
    let us =
        |value: &Value| value.as_f64().map_or("-".to_string(), |ns| format!("{:.2}", ns / 1000.0));
    let times =
        |value: &Value| value.as_f64().map_or("-".to_string(), |ratio| format!("{ratio:.2}"));
    let mut text = format!("{}; times in us\n", headline(arguments));
    for phase in PHASES {
        text += &format!(
            "\n{:<17} {:>9} {:>8} {:>8} | {:>11} {:>8} {:>8} {:>8} {:>8}\n",
            phase.name,
            "per touch",
            "x uzswap",
            "CPU",
            "per refault",
            "x uzswap",
            "p50",
            "p99",
            "p99.9"
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
        let held = arms::held(own, arguments.memory);
        text += &format!(
            "  {:<9} {held}; {} us to fill a page\n",
            arm.name,
            us(&own["fill_ns_per_page"])
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::arms::Peers;
    use super::super::peers::Kind;
    use super::arms::parse_line;
    use super::*;

    #[test]
    fn options() {
        let defaults = parse_line::<FaultsArguments>(&[]).unwrap();
        assert_eq!((defaults.memory, defaults.size, defaults.passes), (128 << 20, 256 << 20, 2));
        let given = parse_line::<FaultsArguments>(&[
            "--memory",
            "1.5G",
            "--size=4GiB",
            "--passes=7",
            "--peers=zram",
        ])
        .unwrap();
        assert_eq!((given.memory, given.size, given.passes), (3 << 29, 4 << 30, 7));
        assert_eq!(given.arms.peers, Peers(vec![Kind::Zram]));
        for (wrong, word) in [
            ("--memory=50%", "not a percentage"),
            ("--memory=x", "no size"),
            ("--size=1", "less than a page"),
            ("--passes=0", "1..=1000"),
            ("--threads=1,0", "1..=4096"),
            ("--quick", "--threads"),
        ] {
            let error = parse_line::<FaultsArguments>(&[wrong])
                .err()
                .unwrap_or_else(|| panic!("{wrong} was taken"));
            assert!(error.contains(word), "{wrong}: {error}");
        }
    }

    fn made_up_run(arm: &str, round: u32, us: f64) -> Value {
        let phases: Map<String, Value> = (PHASES.iter())
            .map(|phase| {
                let figures = json!({
                    "touches": 100, "refaults": 50, "wall_ns": us * 1000.0 * 50.0, "cpu_ns": 0,
                    "hit_mean_ns": 0.0, "refault_mean_ns": us * 1000.0,
                    "refault_p50_ns": us * 900.0,
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
            Arm::of_uzswap(0),
            Arm { name: "zram pc0".to_string(), backing: kernel, counts_pool: false },
            Arm { name: "swap pc0".to_string(), backing: kernel, counts_pool: false },
        ];
        let mut runs: Vec<Value> =
            [4.0, 100.0, 5.0].iter().map(|us| made_up_run("uzswap", 1, *us)).collect();
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
        let text = table(&parse_line::<FaultsArguments>(&[]).unwrap(), &arms, &summary);
        let row = text.lines().find(|l| l.contains("zram pc0") && l.contains('%')).unwrap();
        assert!(row.contains("10.50") && row.contains("2.10") && row.contains("50%"), "{row}");
        let svg = plot::faults("<title>", &["uzswap", "zram pc0", "swap pc0"], &summary);
        assert!(svg.contains("&lt;title&gt;") && svg.ends_with("</svg>\n"));
    }
}
