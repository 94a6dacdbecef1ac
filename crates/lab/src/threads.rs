//! `uzswap bench faults --threads`: pages that come back to several threads at a time.
//!
//! The process of `touchers` runs in every arm and measures all numbers of threads one after the
//! other. *Throughput* is the touches of all threads by the wall time, *per touch* is the wall time
//! by the touches of all threads: two threads that do not hinder each other on two processors have
//! half of what one has. *Fault* is the time of those touches that were no hits, as their thread
//! felt it, the time included in which it waited for a processor. The kernel's pool of compressed
//! pages comes on top of its limit in arms by the peer's name alone; in those called *equal* the
//! limit is lower by the pool, so that they hold what uzswap holds.

use serde_json::{Map, Value, json};

use super::arms::{self, Arm, ArmArguments, Bench, counted};
use super::plot;
use super::record::{Record, median};
use uzswap_cli::Failure;
use uzswap_cli::pages::PAGE_BYTES;
use uzswap_cli::size::human;

/// The arguments of `bench faults`, as far as threads are concerned.
pub struct Threads {
    pub arms: ArmArguments,
    pub memory: u64,
    pub size: u64,
    pub passes: u32,
    /// Numbers of threads.
    pub threads: Vec<u32>,
    /// Whether the runs are written down.
    pub keep: bool,
}

pub fn run(told: Threads) -> Result<u8, Failure> {
    let pages = u32::try_from(told.size / PAGE_BYTES as u64)
        .map_err(|_| Failure::usage("--size: more than 16 TiB".to_string()))?;
    let record = match told.keep {
        true => Some(Record::begin(&told.arms.out, "threads")?),
        false => None,
    };
    let bench = Bench::begin(&told.arms);
    let mut arms = bench.arms_by_both_counts(told.memory);
    let threads: Vec<String> = told.threads.iter().map(u32::to_string).collect();
    let run = |arm: &Arm, round: u32| -> Result<Value, Failure> {
        let own = arms::own_path()?;
        let mut run = json!({"round": round});
        bench.run(arm, told.size, &mut run, |mut command, look| {
            command.arg(own).args(["touchers", "--pages", &pages.to_string()]);
            command.args(["--passes", &told.passes.to_string(), "--seed", &round.to_string()]);
            // The size of the pool is all that a calibration is for.
            let threads = if round == 0 { threads[0].clone() } else { threads.join(",") };
            command.args(["--threads", &threads]);
            arms::hear_worker(&mut command, &bench.interrupt, look)
        })?;
        Ok(run)
    };
    let runs = bench.rounds("", &mut arms, told.size, run)?;
    let summary = summarize(&told.threads, &arms, &runs);
    print!("{}", table(&told, &arms, &summary));
    if let Some(record) = record {
        let json = record.write_json(json!({
            "settings": {
                "memory_bytes": told.memory,
                "size_bytes": told.size,
                "rounds": told.arms.rounds,
                "passes": told.passes,
                "threads": told.threads,
            },
            "summary": summary,
            "runs": runs,
        }))?;
        let bars =
            plot::bars(&headline(&told), "touches a second", &groups(&told, &arms, &summary));
        let plot = record.write("svg", &bars)?;
        println!("\n{}\n{}", json.display(), plot.display());
    }
    arms::end(&runs)
}

// ---------------------------------------------------------------- results

const KINDS: [(&str, bool); 2] = [("read", false), ("write", true)];

/// The name of a measurement.
fn name(kind: &str, threads: u32) -> String {
    format!("{kind} {threads}")
}

/// For every arm and measurement the medians over rounds, with ratios.
fn summarize(threads: &[u32], arms: &[Arm], runs: &[Value]) -> Value {
    let mut summary = Map::new();
    for arm in arms {
        let own = counted(runs, arm);
        let over_runs = |key: &str| median(own.iter().filter_map(|run| run[key].as_f64()));
        let mut measurements: Map<String, Value> = Map::new();
        for (kind, write) in KINDS {
            for count in threads.iter().copied() {
                let found = found(&own, count, write);
                let mut figures = figures(&found);
                let touch_ns = figures["touch_ns"].as_f64();
                let first = measurements.get(&name(kind, threads[0])).unwrap_or(&figures);
                let by_first = || Some(first["touch_ns"].as_f64()? / touch_ns?);
                let of_uzswap = || {
                    let uzswap = summary.get("uzswap").unwrap_or(&Value::Null);
                    let uzswap = &uzswap["measurements"][name(kind, count)]["touch_ns"];
                    Some(touch_ns? / uzswap.as_f64().or(touch_ns)?)
                };
                let (by_first, by_uzswap) = (by_first(), of_uzswap());
                figures["throughput_by_first"] = json!(by_first);
                figures["touch_by_uzswap"] = json!(by_uzswap);
                measurements.insert(name(kind, count), figures);
            }
        }
        let figures = json!({
            "runs": own.len(),
            "limit_bytes": over_runs("limit_bytes"),
            "pool_bytes": over_runs("pool_bytes"),
            "measurements": measurements,
        });
        summary.insert(arm.name.clone(), figures);
    }
    summary.into()
}

/// The measurements of this kind, one of each run.
fn found<'a>(runs: &[&'a Value], threads: u32, write: bool) -> Vec<&'a Value> {
    let all = runs.iter().filter_map(|run| run["worker"]["measurements"].as_array()).flatten();
    all.filter(|found| found["threads"] == threads && found["write"] == write).collect()
}

fn figures(found: &[&Value]) -> Value {
    let over = |of: &dyn Fn(&Value) -> Option<f64>| median(found.iter().filter_map(|one| of(one)));
    let by_touch = |key: &str| over(&|one| Some(one[key].as_f64()? / one["touches"].as_f64()?));
    let plain = |key: &str| over(&|one| one[key].as_f64());
    let touch_ns = by_touch("wall_ns");
    json!({
        "touches_per_second": touch_ns.map(|ns| 1e9 / ns),
        "touch_ns": touch_ns,
        "cpu_per_touch_ns": by_touch("cpu_ns"),
        "refault_share": by_touch("refaults"),
        "refault_p50_ns": plain("refault_p50_ns"),
        "refault_mean_ns": plain("refault_mean_ns"),
        "refault_p99_ns": plain("refault_p99_ns"),
    })
}

fn headline(told: &Threads) -> String {
    let (size, memory) = (human(told.size), human(told.memory));
    format!("{size} of heap-like pages at random under {memory}, medians of {}", told.arms.rounds)
}

fn table(told: &Threads, arms: &[Arm], summary: &Value) -> String {
    let number = |value: &Value, decimals: usize, scale: f64| {
        value.as_f64().map_or("-".to_string(), |value| format!("{:.decimals$}", value * scale))
    };
    let mut text = format!("{}; times in us\n", headline(told));
    for (kind, _) in KINDS {
        for arm in arms {
            text += &format!(
                "\n{:<24} {:>10} {:>8} {:>9} {:>9} {:>7} {:>7} | {:>9} {:>9} {:>9}\n",
                format!("{kind}, {}", arm.name),
                "touches/s",
                "x first",
                "per touch",
                "x uzswap",
                "CPU",
                "faults",
                "fault p50",
                "mean",
                "p99"
            );
            for count in &told.threads {
                let own = &summary[&arm.name]["measurements"][name(kind, *count)];
                text += &format!(
                    "  {:<22} {:>10} {:>8} {:>9} {:>9} {:>7} {:>6}% | {:>9} {:>9} {:>9}\n",
                    format!("{count} thread{}", if *count == 1 { "" } else { "s" }),
                    number(&own["touches_per_second"], 0, 1.0),
                    number(&own["throughput_by_first"], 2, 1.0),
                    number(&own["touch_ns"], 2, 1e-3),
                    number(&own["touch_by_uzswap"], 2, 1.0),
                    number(&own["cpu_per_touch_ns"], 2, 1e-3),
                    number(&own["refault_share"], 0, 100.0),
                    number(&own["refault_p50_ns"], 2, 1e-3),
                    number(&own["refault_mean_ns"], 2, 1e-3),
                    number(&own["refault_p99_ns"], 2, 1e-3),
                );
            }
        }
    }
    text += "\nmemory\n";
    for arm in arms {
        text += &format!("  {:<18} {}\n", arm.name, arms::held(&summary[&arm.name], told.memory));
    }
    text
}

fn groups(told: &Threads, arms: &[Arm], summary: &Value) -> Vec<plot::Group> {
    let measurements =
        KINDS.iter().flat_map(|(kind, _)| told.threads.iter().map(|n| name(kind, *n)));
    let group = |measurement: String| {
        let speed = |arm: &Arm| {
            let own = &summary[&arm.name]["measurements"][&measurement];
            own["touches_per_second"].as_f64().unwrap_or(f64::NAN)
        };
        let bars = arms.iter().map(|arm| (arm.name.clone(), speed(arm))).collect();
        (measurement, bars)
    };
    measurements.map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::super::arms::Backing;
    use super::super::peers::Kind;
    use super::*;

    fn measurement(threads: u32, write: bool, us: f64) -> Value {
        json!({
            "threads": threads, "write": write, "touches": 100, "refaults": 50,
            "wall_ns": us * 1e5, "cpu_ns": us * 2e5, "refault_p50_ns": us * 1500.0,
            "refault_mean_ns": us * 2000.0, "refault_p99_ns": us * 9000.0,
        })
    }

    fn made_up_run(arm: &str, round: u32, us: [f64; 2]) -> Value {
        let all: Vec<Value> = (KINDS.iter())
            .flat_map(|(_, write)| {
                [(1, us[0]), (2, us[1])].map(|(n, us)| measurement(n, *write, us))
            })
            .collect();
        json!({"arm": arm, "round": round, "worker": {"measurements": all}, "limit_bytes": 4096})
    }

    #[test]
    fn results_are_medians_with_ratios_to_one_thread_and_to_uzswap() {
        let backing = Backing::Kernel { kind: Kind::Zram, page_cluster: 0, limit_bytes: 0 };
        let peer = |name: &str| Arm { name: name.to_string(), backing, counts_pool: true };
        let arms = [Arm::of_uzswap(0), peer("zram pc0"), peer("zram pc0 equal")];
        let mut runs: Vec<Value> = [[4.0, 2.0], [99.0, 99.0], [5.0, 2.5]]
            .into_iter()
            .map(|us| made_up_run("uzswap", 1, us))
            .collect();
        runs.push(made_up_run("zram pc0", 0, [1.0, 1.0])); // a calibration
        runs.push(made_up_run("zram pc0", 1, [10.0, 10.0]));
        runs.push(json!({"arm": "zram pc0 equal", "round": 1, "error": "killed"}));
        let summary = summarize(&[1, 2], &arms, &runs);
        let own = &summary["uzswap"]["measurements"]["write 2"];
        assert_eq!(own["touches_per_second"], 400_000.0);
        assert_eq!(
            (&own["throughput_by_first"], &own["touch_by_uzswap"]),
            (&json!(2.0), &json!(1.0))
        );
        let peer = &summary["zram pc0"]["measurements"]["read 2"];
        assert_eq!(
            (&peer["throughput_by_first"], &peer["touch_by_uzswap"]),
            (&json!(1.0), &json!(4.0))
        );
        assert_eq!(summary["zram pc0 equal"]["measurements"]["read 1"]["touch_ns"], Value::Null);
    }
}
