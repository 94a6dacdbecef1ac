//! `uzswap bench contention`: how long locks and claims are held and waited for, by fault.
//!
//! The process of `touchers` runs under `uzswap run`, as in `faults --threads`, with a library that
//! counts (`uzswap::sys::contention`). Nothing but that library differs from what people use, and
//! it is slower by two readings of the clock for each lock, which are in its holds.
//!
//! *Serial part* is the time, by fault, for which those locks are held that the fault of another
//! stretch could wait for: in the faults themselves, and in the evictor's work and the program's
//! calls meanwhile. The throughput that it would allow on machines of more processors is computed
//! ([`projection`]), not measured.

mod figures;
mod projection;

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use uzswap::sys::contention::Class;

use super::arms::{self, Arm, ArmArguments, Bench, counted};
use super::record::{Out, Record, median};
use figures::PROCESSORS;
pub use figures::Watch;
use uzswap_cli::Failure;
use uzswap_cli::pages::PAGE_BYTES;
use uzswap_cli::place::PRELOAD_VARIABLE;
use uzswap_cli::size::human;

/// The bound below which the serial part of a fault should stay, in nanoseconds: a fault takes some
/// 5000, so thirty processors could fault side by side.
const SERIAL_MOST_NS: f64 = 150.0;
const BUILD: &str = "cargo build --profile contention -p uzswap-cli --features contention";

#[derive(clap::Args, Debug)]
pub struct ContentionArguments {
    /// Memory limit
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = arms::bytes)]
    memory: u64,
    /// Memory that the measured program fills and touches
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = arms::bytes)]
    size: u64,
    /// Touches of each measurement, by pages
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = arms::times())]
    passes: u32,
    /// Runs; results are medians
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = arms::times())]
    rounds: u32,
    /// Touch from N threads, one measurement for each N
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,2,8",
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: Vec<u32>,
    /// The library that counts (cargo build --profile contention -p uzswap-cli --features
    /// contention) [default: ../contention/libuzswap_preload, from where this command is]
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    #[command(flatten)]
    out: Out,
}

pub fn run(arguments: ContentionArguments) -> Result<u8, Failure> {
    let pages = u32::try_from(arguments.size / PAGE_BYTES as u64)
        .map_err(|_| Failure::usage("--size: more than 16 TiB".to_string()))?;
    let library = library(arguments.library.as_deref())?;
    let record = Record::begin(&arguments.out, "contention")?;
    let arm_arguments = ArmArguments::of_uzswap(arguments.rounds, arguments.out);
    let bench = Bench::begin(&arm_arguments);
    let mut arms = bench.arms(arguments.memory);
    let threads: Vec<String> = arguments.threads.iter().map(u32::to_string).collect();
    let run = |arm: &Arm, round: u32| -> Result<Value, Failure> {
        let own = arms::own_path()?;
        let mut run = json!({"round": round});
        bench.run(arm, arguments.size, &mut run, |mut command, look| {
            command.env(PRELOAD_VARIABLE, &library);
            command.arg(own).args(["touchers", "--contention", "--pages", &pages.to_string()]);
            command.args(["--passes", &arguments.passes.to_string(), "--seed", &round.to_string()]);
            command.args(["--threads", &threads.join(",")]);
            arms::hear_worker(&mut command, &bench.interrupt, look)
        })?;
        run["figures"] = figures::of_run(&run["worker"]);
        Ok(run)
    };
    let runs = bench.rounds("", &mut arms, arguments.size, run)?;
    let summary = summarize(&arms[0], &runs);
    let (size, memory) = (human(arguments.size), human(arguments.memory));
    println!(
        "{size} of heap-like pages at random under {memory}, medians of {}; ns, by fault",
        arguments.rounds
    );
    print!("{}", text(&summary));
    let json = record.write_json(json!({
        "settings": {
            "memory_bytes": arguments.memory,
            "size_bytes": arguments.size,
            "rounds": arguments.rounds,
            "passes": arguments.passes,
            "threads": arguments.threads,
        },
        "summary": summary,
        "runs": runs,
    }))?;
    println!("\n{}", json.display());
    arms::end(&runs)
}

/// The library that counts: the one that is named, or the one beside this build.
fn library(given: Option<&Path>) -> Result<PathBuf, Failure> {
    let beside = || Some(arms::own_path().ok()?.parent()?.with_file_name("contention"));
    let path = match given {
        Some(given) => given.to_path_buf(),
        None => beside().unwrap_or_default().join("libuzswap_preload"),
    };
    std::fs::canonicalize(&path).map_err(|e| {
        Failure::environment(format!(
            "{}: {e}: build the library that counts: {BUILD}",
            path.display()
        ))
    })
}

// ---------------------------------------------------------------- results

/// The median of each figure over runs, by case.
fn summarize(arm: &Arm, runs: &[Value]) -> Value {
    let runs = counted(runs, arm);
    let mut summary = Map::new();
    for (case, figures) in runs.first().and_then(|r| r["figures"].as_object()).into_iter().flatten()
    {
        let over =
            |metric: &str| median(runs.iter().filter_map(|r| r["figures"][case][metric].as_f64()));
        let metrics = figures.as_object().into_iter().flatten();
        let medians = metrics.map(|(metric, _)| (metric.clone(), json!(over(metric))));
        summary.insert(case.clone(), Value::Object(medians.collect()));
    }
    summary.into()
}

fn text(summary: &Value) -> String {
    let mut text = String::new();
    for (case, whole) in summary.as_object().into_iter().flatten() {
        if case.contains('/') {
            continue;
        }
        let number = |value: &Value, decimals: usize, scale: f64| {
            value.as_f64().map_or("-".to_string(), |v| format!("{:.decimals$}", v * scale))
        };
        text += &format!(
            "\n{:<14} {:>8} {:>8} {:>8} {:>8} {:>9} {:>7} {:>9} {:>7} {:>7} {:>7}\n",
            case,
            "taken",
            "mean",
            "p50",
            "p99",
            "in all",
            "waits",
            "waited",
            "calls",
            "codecs",
            "copies"
        );
        let row = |name: &str, f: &Value| {
            format!(
                "  {:<12} {:>8} {:>8} {:>8} {:>8} {:>9} {:>6}% {:>9} {:>7} {:>7} {:>7}\n",
                name,
                number(&f["acquired"], 2, 1.0),
                number(&f["held_mean_ns"], 0, 1.0),
                number(&f["held_p50_ns"], 0, 1.0),
                number(&f["held_p99_ns"], 0, 1.0),
                number(&f["held_ns"], 0, 1.0),
                number(&f["wait_share"], 2, 100.0),
                number(&f["waited_ns"], 0, 1.0),
                number(&f["calls"], 3, 1.0),
                number(&f["codecs"], 3, 1.0),
                number(&f["copies"], 3, 1.0),
            )
        };
        for class in Class::ALL {
            let figures = &summary[format!("{case}/{}", class.name())];
            if figures.is_object() {
                text += &row(class.name(), figures);
            }
        }
        let serial_ns = whole["serial_ns"].as_f64().unwrap_or(f64::NAN);
        let verdict = if serial_ns < SERIAL_MOST_NS { "below" } else { "not below" };
        text += &format!(
            "  serial part of a fault {serial_ns:.0} ns, {} of it in the fault: {verdict} \
             {SERIAL_MOST_NS:.0} (if each hold took its median: {}; a reading of the clock: {})\n",
            number(&whole["serial_in_fault_ns"], 0, 1.0),
            number(&whole["serial_by_median_ns"], 0, 1.0),
            number(&whole["clock_ns"], 0, 1.0),
        );
        let projected = |kind: &str| {
            PROCESSORS.map(|n| number(&whole[format!("projected_{kind}_{n}")], 1, 1.0)).join(", ")
        };
        text += &format!(
            "  a projection, not measured: 4, 16, 64 processors serve {} times as many faults as \
             one (queue), {} (Amdahl); never more than {}\n",
            projected("queue"),
            projected("amdahl"),
            number(&whole["projected_bound"], 0, 1.0),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_by_case_and_a_verdict_on_the_serial_part() {
        let run = |serial: f64| {
            json!({"arm": "uzswap", "round": 1, "figures": {
                "read 1": {"serial_ns": serial, "clock_ns": null},
                "read 1/pager": {"acquired": 3.0, "wait_share": 0.5},
            }})
        };
        let runs = [run(100.0), run(140.0), run(900.0)];
        let summary = summarize(&Arm::of_uzswap(0), &runs);
        assert_eq!(summary["read 1"]["serial_ns"], 140.0);
        let said = text(&summary);
        assert!(said.contains("140 ns") && said.contains(": below 150"), "{said}");
        assert!(said.contains("a projection") && said.contains("50.00%"), "{said}");
        let said = text(&summarize(&Arm::of_uzswap(0), &[run(900.0)]));
        assert!(said.contains(": not below 150"), "{said}");
    }

    #[test]
    fn without_the_library_it_is_said_how_to_build_it() {
        let failure = library(Some(Path::new("/does/not/exist.so"))).unwrap_err();
        assert!(failure.message.contains("/does/not/exist.so"), "{}", failure.message);
        assert!(failure.message.ends_with(BUILD), "{}", failure.message);
    }
}
