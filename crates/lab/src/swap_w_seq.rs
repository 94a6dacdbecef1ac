//! `uzswap bench swap-w-seq`: several processes write more than there is memory for, from begin to
//! end, over and over.
//!
//! After the test of that name in vm-scalability, by which changes to the kernel's swap are judged:
//! nothing is used again before all else was, so every page goes out and comes in once a round, and
//! what is measured is how fast pages are reclaimed by several processes at a time. The arms differ
//! in what stands behind the limit (see `arms`), the processes are those of `writers`.
//!
//! *Throughput* is pages written by the wall time from the common start to the last end. *CPU* is
//! the processor time of the processes by pages written, their eviction thread included under
//! uzswap. *Huge* is the share of what is resident at the end that is in huge pages: reclaim that
//! splits all of them pays for that in every later TLB miss. The ratios are such that more is
//! better for uzswap.

use serde_json::{Map, Value, json};

use super::arms::{self, Arm, ArmArguments, Bench, counted};
use super::plot;
use super::record::{Record, median};
use super::writers::{self, WriterArguments};
use uzswap_cli::Failure;
use uzswap_cli::pages::PAGE_BYTES;
use uzswap_cli::size::human;

#[derive(clap::Args, Debug)]
pub struct SwapWSeqArguments {
    #[command(flatten)]
    arms: ArmArguments,
    #[command(flatten)]
    writers: WriterArguments,
    /// Memory limit of every arm, for all processes together
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = arms::bytes)]
    memory: u64,
}

pub fn run(arguments: SwapWSeqArguments) -> Result<u8, Failure> {
    let writers = &arguments.writers;
    let need_bytes =
        writers.size.checked_mul(writers.processes.into()).filter(|bytes| *bytes < 1 << 44);
    let need_bytes = need_bytes.ok_or(Failure::usage(format!(
        "--size: {} for each of {} processes is more than 16 TiB, give less",
        human(writers.size),
        writers.processes
    )))?;
    let record = Record::begin(&arguments.arms.out, "swap-w-seq")?;
    let bench = Bench::begin(&arguments.arms);
    let mut arms = bench.arms(arguments.memory);
    let run = |arm: &Arm, round: u32| -> Result<Value, Failure> {
        let own = arms::own_path()?;
        let mut run = json!({"round": round});
        bench.run(arm, need_bytes, &mut run, |mut command, look| {
            command.arg(own).args(["writers"]);
            writers.add_to(&mut command);
            arms::hear_worker(&mut command, &bench.interrupt, look)
        })?;
        Ok(run)
    };
    let runs = bench.rounds("", &mut arms, need_bytes, run)?;
    let pages = need_bytes / PAGE_BYTES as u64 * u64::from(writers.rounds_of_writing);
    let summary = summarize(&arms, &runs, pages);
    print!("{}", table(&arguments, &arms, &summary));
    let json = record.write_json(json!({
        "settings": {
            "memory_bytes": arguments.memory,
            "processes": writers.processes,
            "size_bytes": writers.size,
            "rounds_of_writing": writers.rounds_of_writing,
            "huge": writers.huge.map(writers::name),
            "content": writers::name(writers.content),
            "rounds": arguments.arms.rounds,
            "count_pool": arguments.arms.count_pool,
        },
        "summary": summary,
        "runs": runs,
    }))?;
    let plot = record
        .write("svg", &plot::bars(&headline(&arguments), "MiB/s", &groups(&arms, &summary)))?;
    println!("\n{}\n{}", json.display(), plot.display());
    arms::end(&runs)
}

// ---------------------------------------------------------------- results

/// For every arm its medians over rounds, and uzswap's ratios to them. `pages` were written in a
/// run.
fn summarize(arms: &[Arm], runs: &[Value], pages: u64) -> Map<String, Value> {
    let mut summary: Map<String, Value> = Map::new();
    for arm in arms {
        let own = counted(runs, arm);
        let over_runs =
            |of: &dyn Fn(&Value) -> Option<f64>| median(own.iter().filter_map(|run| of(run)));
        let sum = |run: &Value, key: &str| {
            let writers = run["worker"]["writers"].as_array()?;
            writers.iter().map(|writer| writer[key].as_f64()).sum::<Option<f64>>()
        };
        let mib = (pages * PAGE_BYTES as u64) as f64 / f64::from(1 << 20);
        let speed = over_runs(&|run| Some(mib / (run["worker"]["wall_ns"].as_f64()? / 1e9)));
        let cpu = over_runs(&|run| Some(sum(run, "cpu_ns")? / pages as f64));
        let huge =
            over_runs(&|run| Some(sum(run, "huge_bytes")? / sum(run, "resident_bytes")?.max(1.0)));
        let of_uzswap = |key: &str, own: Option<f64>| match summary.get("uzswap") {
            None => own,
            Some(uzswap) => uzswap[key].as_f64(),
        };
        let by_peer = || Some(of_uzswap("mib_per_second", speed)? / speed?);
        let of_peer = || Some(cpu? / of_uzswap("cpu_ns_per_page", cpu)?);
        let figures = json!({
            "runs": own.len(),
            "mib_per_second": speed,
            "cpu_ns_per_page": cpu,
            "huge_share": huge,
            "speed_of_uzswap_by_this": by_peer(),
            "cpu_of_this_by_uzswap": of_peer(),
            "limit_bytes": over_runs(&|run| run["limit_bytes"].as_f64()),
            "pool_bytes": over_runs(&|run| run["pool_bytes"].as_f64()),
        });
        summary.insert(arm.name.clone(), figures);
    }
    summary
}

fn headline(arguments: &SwapWSeqArguments) -> String {
    let writers = &arguments.writers;
    format!(
        "{} x {} written {} times, {}, huge pages {}, under {}, medians of {}",
        writers.processes,
        human(writers.size),
        writers.rounds_of_writing,
        match writers.content {
            writers::Content::Word => "a word a page",
            writers::Content::Heap => "pages like a heap",
        },
        writers.huge.map_or("as the system has them".to_string(), writers::name),
        human(arguments.memory),
        arguments.arms.rounds,
    )
}

fn table(arguments: &SwapWSeqArguments, arms: &[Arm], summary: &Map<String, Value>) -> String {
    let number = |value: &Value, decimals: usize, scale: f64| {
        value.as_f64().map_or("-".to_string(), |value| format!("{:.decimals$}", value * scale))
    };
    let mut text = format!(
        "{}\n\n{:<9} {:>8} {:>8} {:>12} {:>8} {:>6}   memory\n",
        headline(arguments),
        "",
        "MiB/s",
        "uzswap x",
        "CPU us/page",
        "x uzswap",
        "huge"
    );
    for arm in arms {
        let own = &summary[&arm.name];
        let held = arms::held(own, arguments.memory);
        text += &format!(
            "{:<9} {:>8} {:>8} {:>12} {:>8} {:>5}%   {held}\n",
            arm.name,
            number(&own["mib_per_second"], 0, 1.0),
            number(&own["speed_of_uzswap_by_this"], 2, 1.0),
            number(&own["cpu_ns_per_page"], 2, 1e-3),
            number(&own["cpu_of_this_by_uzswap"], 2, 1.0),
            number(&own["huge_share"], 0, 100.0),
        );
    }
    text
}

/// Throughput alone: time per page and shares are of other scales.
fn groups(arms: &[Arm], summary: &Map<String, Value>) -> [plot::Group; 1] {
    let speed = |arm: &Arm| summary[&arm.name]["mib_per_second"].as_f64().unwrap_or(f64::NAN);
    [("throughput".to_string(), arms.iter().map(|arm| (arm.name.clone(), speed(arm))).collect())]
}

#[cfg(test)]
mod tests {
    use super::super::arms::Backing;
    use super::super::peers::Kind;
    use super::arms::parse_line;
    use super::*;

    #[test]
    fn options() {
        let defaults = parse_line::<SwapWSeqArguments>(&[]).unwrap();
        let writers = &defaults.writers;
        assert_eq!((writers.processes, writers.size, writers.rounds_of_writing), (2, 128 << 20, 8));
        assert_eq!((writers.huge, writers.content), (None, writers::Content::Word));
        assert_eq!((defaults.memory, defaults.arms.rounds), (128 << 20, 3));
        let given =
            ["--processes=4", "--size=1G", "--huge=never", "--content=heap", "--memory=1.5G"];
        let given = parse_line::<SwapWSeqArguments>(&given).unwrap();
        assert_eq!(
            (given.writers.processes, given.writers.size, given.memory),
            (4, 1 << 30, 3 << 29)
        );
        assert_eq!(given.writers.huge, Some(writers::Huge::Never));
        assert_eq!(given.writers.content, writers::Content::Heap);
        for (wrong, word) in [
            ("--processes=0", "1..=1024"),
            ("--size=10", "less than a page"),
            ("--huge=maybe", "[possible values: always, never]"),
            ("--content=zeros", "[possible values: word, heap]"),
            ("--memory=50%", "not a percentage"),
        ] {
            let error = parse_line::<SwapWSeqArguments>(&[wrong])
                .err()
                .unwrap_or_else(|| panic!("{wrong} was taken"));
            assert!(error.contains(word), "{wrong}: {error}");
        }
        let far_too_much =
            parse_line::<SwapWSeqArguments>(&["--processes=1000", "--size=1T"]).unwrap();
        assert!(
            run(far_too_much).unwrap_err().message.starts_with("--size: 1.0 TiB for each of 1000")
        );
    }

    #[test]
    fn the_workers_command_line_is_the_users() {
        let given = parse_line::<SwapWSeqArguments>(&[
            "--processes=3",
            "--size=7M",
            "--huge=always",
            "--content=heap",
        ])
        .unwrap();
        let mut command = std::process::Command::new("x");
        given.writers.add_to(&mut command);
        let again: Vec<&str> = command.get_args().map(|word| word.to_str().unwrap()).collect();
        let again = parse_line::<SwapWSeqArguments>(&again).unwrap();
        assert_eq!(format!("{:?}", again.writers), format!("{:?}", given.writers));
    }

    #[test]
    fn results_are_medians_and_ratios_of_them() {
        let kernel = Backing::Kernel { kind: Kind::Zram, page_cluster: 0, limit_bytes: 0 };
        let arms = [
            ("uzswap", Backing::Uzswap { limit_bytes: 0 }),
            ("zram pc0", kernel),
            ("swap pc0", kernel),
        ]
        .map(|(name, backing)| Arm { name: name.to_string(), backing, counts_pool: false });
        let run = |arm: &str, seconds: f64| {
            let writer =
                json!({"cpu_ns": seconds * 4e9, "resident_bytes": 4096, "huge_bytes": 1024});
            let worker = json!({"wall_ns": seconds * 1e9, "writers": [writer, writer]});
            json!({"arm": arm, "round": 1, "worker": worker})
        };
        let mut runs: Vec<Value> = [1.0, 50.0, 2.0].iter().map(|s| run("uzswap", *s)).collect();
        runs.extend([3.0, 5.0].map(|s| run("zram pc0", s)));
        runs.push(json!({"arm": "swap pc0", "round": 1, "error": "killed"}));
        // 256 MiB in two seconds.
        let summary = summarize(&arms, &runs, 65536);
        assert_eq!(summary["uzswap"]["mib_per_second"], 128.0);
        assert_eq!(summary["uzswap"]["speed_of_uzswap_by_this"], 1.0);
        let zram = &summary["zram pc0"];
        assert!((zram["speed_of_uzswap_by_this"].as_f64().unwrap() - 1.875).abs() < 1e-9, "{zram}");
        assert_eq!(zram["cpu_of_this_by_uzswap"], 2.0);
        assert_eq!(zram["huge_share"], 0.25);
        assert_eq!(summary["swap pc0"]["mib_per_second"], Value::Null);
        let text = table(&parse_line::<SwapWSeqArguments>(&[]).unwrap(), &arms, &summary);
        let row = text.lines().find(|line| line.starts_with("zram pc0")).unwrap();
        assert!(row.contains("1.88") && row.contains("2.00") && row.contains("25%"), "{row}");
        assert_eq!(groups(&arms, &summary)[0].1[0], ("uzswap".to_string(), 128.0));
    }
}
