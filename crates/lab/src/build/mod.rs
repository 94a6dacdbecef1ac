//! `uzswap bench build`: `make -jN` of a large source tree, as zswap was first measured.
//!
//! ```text
//!  free, at the most jobs ─> need, objects, time ─┬─> -j8:  swap │ zswap │ zram │ uzswap, in turn ─> medians
//!                                                 ├─> -j12: ...
//!                                                 └─> -j24: ...              every object like the free one's
//! ```
//!
//! Every arm has a memory cgroup with the same limit: the kernel's may swap, uzswap's may not, and
//! uzswap gets no `--memory` there, so that the group's limit is what it has to find and to keep,
//! with the kernel's own memory for some hundred processes in it. The limit is half of what the
//! free build *needs* at the most jobs (the most private anonymous memory of all processes,
//! sampled), unless one is given. The memory of the compressed pool is inside the limit for uzswap
//! and on top of it for the kernel with cgroup v1; `--count-pool` lowers the kernel's limit by it
//! (see `arms`).
//!
//! *I/O* is counted as where zswap was first measured: pages swapped in, pages swapped out, and
//! major faults, which include pages that zswap and zram have in memory. For uzswap: pages read
//! from and written to its backing store, and major faults of the kernel with the faults for which
//! its cache brought pages back; what comes along, by read-ahead there and fault-around here, is no
//! fault in either. *Disk* is the part of it that went to a disk: none of zram's swapping. A
//! build *fails* if it ends with an error, takes twenty times its free time, or makes other
//! objects.

mod once;
mod source;

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value, json};

use self::once::{Build, once};
use self::source::Source;
use super::arms::{self, Arm, ArmArguments, Backing, Bench, counted};
use super::peers;
use super::plot;
use super::process::patience;
use super::record::{Record, median};
use super::scratch::Scratch;
use uzswap_cli::Failure;
use uzswap_cli::console;
use uzswap_cli::pages::PAGE_BYTES;
use uzswap_cli::size::{grouped, human};

#[derive(clap::Args, Debug)]
pub struct BuildArguments {
    /// Numbers of jobs at a time
    #[arg(
        long, value_name = "N,...", default_value = "8,12,16,20,24", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=256)
    )]
    jobs: Vec<u32>,
    /// Limit of every arm's memory group [default: half of what the build needs at the most jobs]
    #[arg(long, value_name = "SIZE", value_parser = arms::bytes)]
    memory: Option<u64>,
    /// Build so many files of the tree only; 0 is all
    #[arg(long, value_name = "N", default_value_t = 0)]
    files: usize,
    /// Options of the compiler
    #[arg(long, value_name = "FLAGS", default_value = "-O2", allow_hyphen_values = true)]
    cflags: String,
    /// Directory in which the archive of the source tree is kept, or found [default: fetched each
    /// time]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    #[command(flatten)]
    arms: ArmArguments,
}

pub fn run(arguments: BuildArguments) -> Result<u8, Failure> {
    let record = Record::begin(&arguments.arms.out, "build")?;
    let bench = Bench::begin(&arguments.arms);
    let scratch = Scratch::new("build")?;
    let cache = arguments.cache.as_deref().unwrap_or(scratch.path());
    console::say("the source tree: fetched and unpacked");
    let source = Source::prepare(cache, scratch.path(), arguments.files, &arguments.cflags)
        .map_err(Failure::environment)?;
    let measuring = Measuring { bench, source, scratch };

    let most = arguments.jobs.iter().copied().max().unwrap_or(1);
    console::say(&format!("-j{most}: free"));
    let free = measuring
        .free(most)?
        .map_err(|why| Failure::environment(format!("the build fails: {why}")))?;
    let limit_bytes = arguments.memory.unwrap_or(free.peak_bytes / 2);
    let (mut runs, mut summary) = (Vec::new(), Map::new());
    for jobs in &arguments.jobs {
        let (arms, own) = measuring.jobs(*jobs, limit_bytes, &free)?;
        let of_jobs = summarize(&arms, &own);
        print!("{}", table(*jobs, limit_bytes, &of_jobs));
        summary.insert(jobs.to_string(), of_jobs);
        runs.extend(own);
    }
    let mut free = free.figures();
    free["jobs"] = most.into();
    println!("\n{}", described(&free));
    let json = record.write_json(json!({
        "settings": {
            "jobs": arguments.jobs,
            "limit_bytes": limit_bytes,
            "files": arguments.files,
            "cflags": arguments.cflags,
            "rounds": arguments.arms.rounds,
            "count_pool": arguments.arms.count_pool,
        },
        "summary": {"free": free, "jobs": summary},
        "runs": runs,
    }))?;
    let title = format!("make -jN in {}, medians of {}", human(limit_bytes), arguments.arms.rounds);
    let plot =
        record.write("svg", &plot::bars(&title, "seconds: less is better", &groups(&summary)))?;
    println!("\n{}\n{}", json.display(), plot.display());
    arms::end(&runs)
}

struct Measuring<'a> {
    bench: Bench<'a>,
    source: Source,
    scratch: Scratch,
}

impl Measuring<'_> {
    fn free(&self, jobs: u32) -> Result<Result<Build, String>, Failure> {
        // The patience with the free build, of which nothing is known yet.
        const PATIENCE: Duration = Duration::from_secs(3600);
        let command = self.source.build(None, jobs);
        once(&self.source, command, &self.scratch, PATIENCE, &self.bench.interrupt, &mut || ())
    }

    /// All runs of all arms with so many jobs, the kernel's swap alone first where it is one of
    /// them.
    fn jobs(
        &self,
        jobs: u32,
        limit_bytes: u64,
        free: &Build,
    ) -> Result<(Vec<Arm>, Vec<Value>), Failure> {
        let mut arms = self.bench.arms(limit_bytes);
        arms.sort_by_key(|arm| match arm.backing {
            Backing::Kernel { kind: peers::Kind::Swap, .. } => 0,
            Backing::Kernel { kind: peers::Kind::Zswap, .. } => 1,
            Backing::Kernel { kind: peers::Kind::Zram, .. } => 2,
            _ => 3,
        });
        // Groups need root; without it uzswap is told its limit.
        if peers::privileged().is_ok() {
            for arm in arms.iter_mut().filter(|arm| matches!(arm.backing, Backing::Uzswap { .. })) {
                arm.backing = Backing::UzswapInGroup { limit_bytes };
            }
        }
        let patience = patience(free.wall);
        let run = |arm: &Arm, round: u32| -> Result<Value, Failure> {
            let mut run = json!({"jobs": jobs, "round": round});
            self.bench.run(arm, free.peak_bytes, &mut run, |command, look| {
                let command = self.source.build(Some(command), jobs);
                let build = once(
                    &self.source,
                    command,
                    &self.scratch,
                    patience,
                    &self.bench.interrupt,
                    look,
                )?;
                Ok(build.and_then(|build| build.like(free)))
            })?;
            count_io(arm, &mut run);
            Ok(run)
        };
        let runs = self.bench.rounds(&format!("-j{jobs}, "), &mut arms, free.peak_bytes, run)?;
        Ok((arms, runs))
    }
}

/// Adds to a run what went in and out, in pages; see the head of this file.
fn count_io(arm: &Arm, run: &mut Value) {
    let Some(major_faults) = run["major_faults"].as_u64() else { return };
    let vmstat = |key: &str| run["vmstat"][key].as_u64().unwrap_or(0);
    let counter = |key: &str| run["stats"]["counters"][key].as_u64().unwrap_or(0);
    let (pages_in, pages_out, major, is_memory) = match arm.backing {
        Backing::Kernel { kind, .. } => {
            (vmstat("pswpin"), vmstat("pswpout"), major_faults, kind == peers::Kind::Zram)
        }
        Backing::Uzswap { .. } | Backing::UzswapInGroup { .. } => (
            counter("read_back_pages"),
            counter("written_back_pages"),
            major_faults + counter("loads").saturating_sub(counter("fault_around_pages")),
            false,
        ),
    };
    run["io"] = json!({
        "pages_in": pages_in,
        "pages_out": pages_out,
        "major_faults": major,
        "sum_pages": pages_in + pages_out + major,
        "disk_bytes": if is_memory { 0 } else { (pages_in + pages_out) * PAGE_BYTES as u64 },
    });
}

// ---------------------------------------------------------------- results

/// For every arm the medians over its runs that did not fail, and their changes from the first
/// arm's.
fn summarize(arms: &[Arm], runs: &[Value]) -> Value {
    let mut summary: Map<String, Value> = Map::new();
    for arm in arms {
        let own = counted(runs, arm);
        let over_runs =
            |of: &dyn Fn(&Value) -> Option<f64>| median(own.iter().filter_map(|run| of(run)));
        let figure = |key: &str| over_runs(&|run| run[key].as_f64());
        let io = |key: &str| over_runs(&|run| run["io"][key].as_f64());
        let (wall, sum) = (figure("wall_seconds"), io("sum_pages"));
        let base = summary.values().next();
        let change = |own: Option<f64>, key: &str| Some(own? / base?[key].as_f64()? - 1.0);
        let failed: Vec<&Value> = (runs.iter())
            .filter(|run| run["arm"] == *arm.name && run["round"] != 0 && !run["error"].is_null())
            .map(|run| &run["error"])
            .collect();
        let figures = json!({
            "runs": own.len(),
            "io_pages": sum,
            "io_change": change(sum, "io_pages"),
            "disk_bytes": io("disk_bytes"),
            "wall_seconds": wall,
            "wall_change": change(wall, "wall_seconds"),
            "cpu_percent": figure("cpu_percent"),
            "cpu_seconds": figure("cpu_seconds"),
            "peak_anonymous_bytes": figure("peak_anonymous_bytes"),
            "limit_bytes": figure("limit_bytes"),
            "pool_bytes": figure("pool_bytes"),
            "failed_runs": failed.len(),
            "failure": failed.first(),
        });
        summary.insert(arm.name.clone(), figures);
    }
    summary.into()
}

fn table(jobs: u32, limit_bytes: u64, summary: &Value) -> String {
    let mut text = format!(
        "\nmake -j{jobs} in {}\n  {:<9} {:>12} {:>7} {:>10} {:>9} {:>7} {:>6} {:>6}  memory\n",
        human(limit_bytes),
        "",
        "I/O pages",
        "",
        "disk",
        "seconds",
        "",
        "CPU",
        "CPU s"
    );
    let mut failures = String::new();
    for (arm, figures) in summary.as_object().into_iter().flatten() {
        if let Some(why) = figures["failure"].as_str() {
            failures += &format!("  {arm}: {} failed: {why}\n", figures["failed_runs"]);
        }
        let Some(wall) = figures["wall_seconds"].as_f64() else {
            text += &format!("  {arm:<9} {:>12}\n", "failed");
            continue;
        };
        let whole = |key: &str| figures[key].as_f64().unwrap_or(f64::NAN) as u64;
        let change = |key: &str| {
            figures[key].as_f64().map_or(String::new(), |part| format!("{:+.0} %", part * 100.0))
        };
        text += &format!(
            "  {arm:<9} {:>12} {:>7} {:>10} {wall:>9.1} {:>7} {:>4.0} % {:>6.1}  {}\n",
            grouped(whole("io_pages")),
            change("io_change"),
            human(whole("disk_bytes")),
            change("wall_change"),
            figures["cpu_percent"].as_f64().unwrap_or(f64::NAN),
            figures["cpu_seconds"].as_f64().unwrap_or(f64::NAN),
            arms::held(figures, limit_bytes),
        );
    }
    text + &failures
}

fn described(free: &Value) -> String {
    format!(
        "without a limit, -j{}: needs {}, takes {:.1} s, CPU {:.0} %, {} objects",
        free["jobs"],
        human(free["peak_anonymous_bytes"].as_u64().unwrap_or(0)),
        free["wall_seconds"].as_f64().unwrap_or(f64::NAN),
        free["cpu_percent"].as_f64().unwrap_or(f64::NAN),
        free["objects"],
    )
}

fn groups(summary: &Map<String, Value>) -> Vec<plot::Group> {
    let bars = |own: &Value| {
        let arms = own.as_object().into_iter().flatten();
        arms.map(|(arm, own)| (arm.clone(), own["wall_seconds"].as_f64().unwrap_or(f64::NAN)))
            .collect()
    };
    summary.iter().map(|(jobs, own)| (format!("-j{jobs}"), bars(own))).collect()
}

#[cfg(test)]
mod tests {
    use super::arms::parse_line;
    use super::*;

    #[test]
    fn options() {
        let defaults = parse_line::<BuildArguments>(&[]).unwrap();
        assert_eq!(defaults.jobs, [8, 12, 16, 20, 24]);
        assert_eq!((defaults.memory, defaults.files, &defaults.cflags[..]), (None, 0, "-O2"));
        let given = parse_line::<BuildArguments>(&[
            "--jobs=8,24",
            "--memory=240M",
            "--files=60",
            "--cflags",
            "-O1 -g",
        ])
        .unwrap();
        assert_eq!(
            (&given.jobs[..], given.memory, given.files),
            (&[8, 24][..], Some(240 << 20), 60)
        );
        assert_eq!(given.cflags, "-O1 -g");
        for (wrong, word) in
            [("--jobs=0", "1..=256"), ("--memory=50%", "must be a size"), ("--jobs=x", "invalid")]
        {
            let error = parse_line::<BuildArguments>(&[wrong]).unwrap_err();
            assert!(error.contains(word), "{wrong}: {error}");
        }
    }

    fn arms() -> [Arm; 3] {
        let kernel = |kind| Backing::Kernel { kind, page_cluster: 3, limit_bytes: 0 };
        let swap = ("swap pc3", kernel(peers::Kind::Swap));
        let zram = ("zram pc3", kernel(peers::Kind::Zram));
        let uzswap = ("uzswap", Backing::UzswapInGroup { limit_bytes: 0 });
        [swap, zram, uzswap].map(|(name, backing)| Arm {
            name: name.to_string(),
            backing,
            counts_pool: false,
        })
    }

    /// Runs of all arms: in, out, major faults, seconds.
    fn made_up() -> Vec<Value> {
        let kernel = |arm: &str, [pages_in, pages_out, major, wall]: [u64; 4]| {
            json!({
                "arm": arm, "round": 1, "major_faults": major, "wall_seconds": wall,
                "cpu_percent": 60.0, "vmstat": {"pswpin": pages_in, "pswpout": pages_out},
                "limit_bytes": 1 << 28, "pool_bytes": 1 << 20,
            })
        };
        let counters = json!({
            "read_back_pages": 10, "written_back_pages": 20, "loads": 35, "fault_around_pages": 5,
        });
        let uzswap = json!({
            "arm": "uzswap", "round": 1, "major_faults": 40, "wall_seconds": 50,
            "cpu_percent": 120.0,
            "stats": {"counters": counters},
        });
        let mut runs = vec![
            kernel("swap pc3", [100, 200, 100, 200]),
            kernel("zram pc3", [50, 60, 90, 100]),
            uzswap,
        ];
        runs.iter_mut().zip(arms()).for_each(|(run, arm)| count_io(&arm, run));
        runs
    }

    #[test]
    fn io_is_what_the_published_table_counts() {
        let runs = made_up();
        assert_eq!(runs[0]["io"]["sum_pages"], 400);
        assert_eq!(runs[0]["io"]["disk_bytes"], 300 * 4096);
        assert_eq!(
            (&runs[1]["io"]["sum_pages"], &runs[1]["io"]["disk_bytes"]),
            (&json!(200), &json!(0))
        );
        assert_eq!(
            (&runs[2]["io"]["sum_pages"], &runs[2]["io"]["disk_bytes"]),
            (&json!(100), &json!(30 * 4096))
        );
        let mut failed = json!({"arm": "uzswap", "round": 1, "error": "killed"});
        count_io(&arms()[2], &mut failed);
        assert_eq!(failed["io"], Value::Null);
    }

    #[test]
    fn changes_are_from_the_first_arm() {
        let mut runs = made_up();
        runs.push(json!({"arm": "zram pc3", "round": 2, "error": "out of memory: killed"}));
        let summary = summarize(&arms(), &runs);
        assert_eq!(summary["swap pc3"]["io_change"], Value::Null);
        assert_eq!(summary["zram pc3"]["io_change"], -0.5);
        assert_eq!(
            (&summary["uzswap"]["io_change"], &summary["uzswap"]["wall_change"]),
            (&json!(-0.75), &json!(-0.75))
        );
        let text = table(24, 1 << 28, &summary);
        let row = |name: &str| {
            text.lines().find(|line| line.trim_start().starts_with(name)).unwrap().to_string()
        };
        assert!(
            row("uzswap").contains("-75 %") && row("uzswap").ends_with("256 MiB with its pool"),
            "{text}"
        );
        assert!(row("zram pc3").ends_with("256 MiB and a pool of 1.0 MiB"), "{text}");
        assert!(text.contains("zram pc3: 1 failed: out of memory: killed"), "{text}");
        let groups = groups(&Map::from_iter([("24".to_string(), summary)]));
        assert_eq!((&groups[0].0[..], groups[0].1[2].1), ("-j24", 50.0));
    }
}
