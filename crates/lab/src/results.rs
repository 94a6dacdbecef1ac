//! Results in short: one line of JSON for each arm of a measurement.
//!
//! ```text
//!  raw runs (a file for each measurement) ─> lines_of ─> DIR/results.jsonl
//!        uzswap bench keep FILE... ───────────────────> docs/results.jsonl ─> tables of the documents
//! ```
//!
//! A *line* has the date, by which the documents name a measurement, the benchmark, the arm, the
//! machine, the commit, the settings, and the *figures*: for each *case* (a way of touching, a
//! program at a part of its need, a number of jobs) and each *metric*, whose name ends with its
//! unit, `[median, lower quartile, upper quartile, n]` over the runs that count. Quartiles are null
//! where a benchmark has medians only. Failed runs are in no figure but `failed_runs`. Figures have
//! four digits: no machine is quieter than that.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::record::{median, quartiles};
use uzswap_cli::Failure;
use uzswap_cli::program::reason;
use uzswap_cli::whole_file;

#[derive(clap::Args, Debug)]
pub struct KeepArguments {
    /// Files of raw runs, as the other benches write them
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The file of lines that they go into; a line of the same arm and date is replaced
    #[arg(long, value_name = "FILE", default_value = "docs/results.jsonl")]
    to: PathBuf,
}

/// `uzswap bench keep`.
pub fn run(arguments: KeepArguments) -> Result<u8, Failure> {
    for file in &arguments.files {
        let usage = |why: &str| Failure::usage(format!("{}: {why}", file.display()));
        let text = fs::read_to_string(file).map_err(|e| usage(&reason(&e)))?;
        let record: Value = serde_json::from_str(&text).map_err(|e| usage(&e.to_string()))?;
        let lines = lines_of(&named(record, file));
        if lines.is_empty() {
            return Err(usage("there are no runs in it: give a file that 'uzswap bench' wrote"));
        }
        keep(&arguments.to, lines)?;
    }
    Ok(0)
}

/// Older records have the benchmark in their file's name only: `<date>-<benchmark>.json`.
fn named(mut record: Value, file: &Path) -> Value {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    if record["benchmark"].is_null()
        && let Some(name) = stem.splitn(4, '-').nth(3)
    {
        record["benchmark"] = name.into();
    }
    record
}

/// Adds lines to a file of lines, in the order of their dates.
pub fn keep(path: &Path, lines: Vec<Value>) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::failed(format!("{}: {}", path.display(), reason(&e)));
    let text = match fs::read_to_string(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
        read => read.map_err(failed)?,
    };
    let mut all =
        read(&text).map_err(|why| Failure::usage(format!("{}: {why}", path.display())))?;
    let key = |line: &Value| {
        ["date", "benchmark", "arm"].map(|key| line[key].as_str().map(str::to_string))
    };
    for line in lines {
        all.retain(|old| key(old) != key(&line));
        all.push(line);
    }
    // Arms stay in the order in which they were measured.
    all.sort_by_key(|line| key(line)[..2].to_vec());
    let text: String = all.iter().map(|line| format!("{line}\n")).collect();
    whole_file::write(path, &text).map_err(failed)
}

/// Parses a file of lines.
pub fn read(text: &str) -> Result<Vec<Value>, String> {
    let parse = |(number, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|e| format!("line {}: {e}", number + 1))
    };
    text.lines().enumerate().map(parse).collect()
}

/// The lines of a record of raw runs.
pub fn lines_of(record: &Value) -> Vec<Value> {
    let mut figures = Figures::default();
    let benchmark = record["benchmark"].as_str().unwrap_or_default();
    for run in record["runs"].as_array().into_iter().flatten() {
        figures.add_run(benchmark, run);
    }
    figures.add_summary(benchmark, record);
    let line = |(arm, cases): (String, Cases)| {
        json!({
            "date": record["date"].as_str().unwrap_or_default().replace([':', 'Z'], ""),
            "benchmark": benchmark,
            "arm": arm,
            "machine": machine(&record["machine"]),
            "commit": record["commit"],
            "settings": record["settings"],
            "figures": cases.to_json(),
        })
    };
    figures.0.into_iter().map(line).collect()
}

fn machine(machine: &Value) -> String {
    let word = |key: &str| machine[key].as_str().unwrap_or("?");
    let gib = machine["memory_bytes"].as_f64().unwrap_or(0.0) / f64::from(1 << 30);
    let release = word("kernel").split('-').next().unwrap_or_default();
    format!("{}, {} cores, {gib:.0} GiB, Linux {release}", word("cpu"), machine["cores"])
}

// ---------------------------------------------------------------- figures

/// The outcome of one metric.
#[derive(Debug)]
enum Figure {
    /// A value for each run.
    Runs(Vec<f64>),
    /// A benchmark's own summary: median, quartiles, number of runs.
    Known([Option<f64>; 3], u64),
}

/// Figures by case and metric, in the order in which they came.
#[derive(Default, Debug)]
struct Cases(Vec<(String, String, Figure)>);

/// Cases by arm.
#[derive(Default, Debug)]
struct Figures(Vec<(String, Cases)>);

/// Four digits.
fn round(value: f64) -> Value {
    let rounded = format!("{value:.3e}").parse::<f64>().unwrap_or(value);
    match rounded {
        rounded if rounded.fract() == 0.0 && rounded.abs() < 1e15 => json!(rounded as i64),
        rounded => json!(rounded),
    }
}

impl Cases {
    fn to_json(&self) -> Value {
        let mut cases: Map<String, Value> = Map::new();
        for (case, metric, figure) in &self.0 {
            let (values, n) = match figure {
                Figure::Known(values, n) => (*values, *n),
                Figure::Runs(values) => {
                    let [low, high] = quartiles(values.iter().copied());
                    let middle = median(values.iter().copied());
                    ([middle, Some(low), Some(high)], values.len() as u64)
                }
            };
            let [middle, low, high] = values.map(|value| value.map_or(Value::Null, round));
            let metrics = cases.entry(case).or_insert(json!({}));
            metrics[metric] = json!([middle, low, high, n]);
        }
        cases.into()
    }
}

impl Figures {
    fn at(&mut self, arm: &str, case: &str, metric: &str, new: Figure) -> &mut Figure {
        let at = self.0.iter().position(|(name, _)| name == arm).unwrap_or_else(|| {
            self.0.push((arm.to_string(), Cases::default()));
            self.0.len() - 1
        });
        let cases = &mut self.0[at].1.0;
        let at = cases.iter().position(|(c, m, _)| c == case && m == metric).unwrap_or_else(|| {
            cases.push((case.to_string(), metric.to_string(), new));
            cases.len() - 1
        });
        &mut cases[at].2
    }

    /// One run's value.
    fn add(&mut self, arm: &str, case: &str, metric: &str, value: Option<f64>) {
        let Some(value) = value else { return };
        if let Figure::Runs(values) = self.at(arm, case, metric, Figure::Runs(Vec::new())) {
            values.push(value);
        }
    }

    /// A value that is known over runs.
    fn know(&mut self, arm: &str, case: &str, metric: &str, values: [Option<f64>; 3], n: u64) {
        if values[0].is_some() {
            self.at(arm, case, metric, Figure::Known(values, n));
        }
    }

    /// The figures of one run. Calibrations (round 0) count for nothing.
    fn add_run(&mut self, benchmark: &str, run: &Value) {
        let (Some(arm), false) = (run["arm"].as_str(), run["round"] == 0) else { return };
        let case = match benchmark {
            "programs" => format!("{} {}", word(&run["program"]), run["part_percent"]),
            "build" => format!("{} jobs", run["jobs"]),
            "variety" => word(&run["program"]).to_string(),
            "disk" => format!("{} {}", word(&run["data"]), run["writers"]),
            _ => String::new(),
        };
        if !run["error"].is_null() {
            self.add(arm, &case, "failed_runs", Some(1.0));
            if benchmark == "variety" {
                // Why, in short: `killed`, `other`, `not` (ended), `said` (a notice).
                let why = word(&run["error"]).split([' ', ':']).next().unwrap_or_default();
                self.add(arm, &case, &format!("{why}_runs"), Some(1.0));
            }
            return;
        }
        let plain = |key: &str| run[key].as_f64();
        match benchmark {
            "faults" => self.add_touches(arm, &run["worker"]["phases"]),
            "threads" => {
                for one in run["worker"]["measurements"].as_array().into_iter().flatten() {
                    let kind = if one["write"] == true { "write" } else { "read" };
                    self.add_touch(arm, &format!("{kind} {}", one["threads"]), one);
                }
            }
            "swap-w-seq" => self.add_writing(arm, run),
            "contention" => self.add_contention(arm, &run["figures"]),
            "disk" => self.add_disk(arm, &case, run),
            _ => {
                for metric in ["wall_seconds", "cpu_seconds"] {
                    self.add(arm, &case, metric, plain(metric));
                }
                self.add(arm, &case, "io_pages", run["io"]["sum_pages"].as_f64());
            }
        }
        for metric in ["limit_bytes", "pool_bytes", "held_bytes"] {
            self.add(arm, &case, metric, plain(metric));
        }
    }

    fn add_touches(&mut self, arm: &str, phases: &Value) {
        for (phase, figures) in phases.as_object().into_iter().flatten() {
            self.add_touch(arm, phase, figures);
        }
    }

    fn add_touch(&mut self, arm: &str, case: &str, touches: &Value) {
        let by_touch = |key: &str| Some(touches[key].as_f64()? / touches["touches"].as_f64()?);
        self.add(arm, case, "touch_ns", by_touch("wall_ns"));
        self.add(arm, case, "cpu_per_touch_ns", by_touch("cpu_ns"));
        for metric in ["refault_p50_ns", "refault_mean_ns", "refault_p99_ns"] {
            self.add(arm, case, metric, touches[metric].as_f64());
        }
    }

    fn add_contention(&mut self, arm: &str, figures: &Value) {
        for (case, metrics) in figures.as_object().into_iter().flatten() {
            for (metric, value) in metrics.as_object().into_iter().flatten() {
                self.add(arm, case, metric, value.as_f64());
            }
        }
    }

    /// Speeds, and their ratios to those of the same round.
    fn add_disk(&mut self, arm: &str, case: &str, run: &Value) {
        for (phase, speed) in run["phases"].as_object().into_iter().flatten() {
            self.add(arm, &format!("{case}/{phase}"), "mib_per_second", speed.as_f64());
        }
        for (other, ratios) in run["by"].as_object().into_iter().flatten() {
            for (of, ratio) in ratios.as_object().into_iter().flatten() {
                let (case, metric) = match of.ends_with("_bytes") {
                    true => (case.to_string(), format!("{of}_by_{other}")),
                    false => (format!("{case}/{of}"), format!("by_{other}")),
                };
                self.add(arm, &case, &metric, ratio.as_f64());
            }
        }
    }

    fn add_writing(&mut self, arm: &str, run: &Value) {
        let writers = || run["worker"]["writers"].as_array().into_iter().flatten();
        let sum = |key: &str| writers().map(|writer| writer[key].as_f64()).sum::<Option<f64>>();
        self.add(arm, "", "wall_seconds", run["worker"]["wall_ns"].as_f64().map(|ns| ns / 1e9));
        self.add(arm, "", "cpu_seconds", sum("cpu_ns").map(|ns| ns / 1e9));
        let huge = || Some(sum("huge_bytes")? / sum("resident_bytes")?.max(1.0));
        self.add(arm, "", "huge_share", huge());
    }

    /// Figures that are in the summary only.
    fn add_summary(&mut self, benchmark: &str, record: &Value) {
        let summary = &record["summary"];
        let rounds = record["settings"]["rounds"].as_u64().unwrap_or(1);
        match benchmark {
            "faults" | "threads" | "contention" | "disk" => {}
            "swap-w-seq" => {
                for (arm, figures) in summary.as_object().into_iter().flatten() {
                    let speed = figures["mib_per_second"].as_f64();
                    self.know(arm, "", "mib_per_second", [speed, None, None], rounds);
                }
            }
            "programs" | "variety" => {
                for (program, own) in summary["programs"].as_object().into_iter().flatten() {
                    self.add_free(program, &own["free"]);
                }
            }
            "build" => self.add_free("", &summary["free"]),
            "estimate" => self.add_estimates(summary, rounds),
            "policies" => {
                for (part, policies) in record["loads_by_uzswap"].as_object().into_iter().flatten()
                {
                    for (policy, figures) in policies.as_object().into_iter().flatten() {
                        let n = figures["programs"].as_u64().unwrap_or(0);
                        let loads = [figures["median"].as_f64(), None, None];
                        self.know(policy, &format!("{part} %"), "loads_by_uzswap", loads, n);
                    }
                }
            }
            _ => self.add_tree(
                "",
                &record[if benchmark == "overhead" { "workloads" } else { "results" }],
            ),
        }
    }

    /// A program without a limit.
    fn add_free(&mut self, case: &str, free: &Value) {
        for metric in ["wall_seconds", "cpu_seconds", "need_bytes", "peak_anonymous_bytes"] {
            self.know("free", case, metric, [free[metric].as_f64(), None, None], 1);
        }
    }

    fn add_estimates(&mut self, summary: &Value, rounds: u64) {
        for (program, own) in summary.as_object().into_iter().flatten() {
            let parts = own["times"].as_object().into_iter().flatten();
            let ratio = [(&"ratio".to_string(), &own["ratio"])];
            for (part, figures) in parts.chain(ratio) {
                let metric = if part == "ratio" { "needed_by_used" } else { "time_by_free" };
                for arm in ["estimated", "measured"] {
                    let values = [figures[arm].as_f64(), None, None];
                    self.know(arm, &format!("{program} {part}"), metric, values, rounds);
                }
            }
        }
    }

    /// A tree of figures, as the benches of the engine have them: its first level are the arms.
    fn add_tree(&mut self, path: &str, tree: &Value) {
        for (name, node) in tree.as_object().into_iter().flatten() {
            let here = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
            let (arm, rest) = here.split_once('/').unwrap_or((&here, ""));
            let (case, metric) = rest.rsplit_once('/').unwrap_or(("", rest));
            let values = |key: &str| -> Vec<f64> {
                // Rounds are written as words, to keep a record readable.
                let text = node[key].as_str().unwrap_or_default();
                text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
            };
            match node {
                Value::Object(figure) if figure.contains_key("median") => {
                    let rounds = values("rounds");
                    let [low, high] = quartiles(rounds.iter().copied()).map(Some);
                    let known = [node["median"].as_f64(), low, high];
                    self.know(arm, case, metric, known, rounds.len().max(1) as u64);
                }
                Value::Object(figure) if figure.contains_key("quartiles") => {
                    let of = |at: usize| node["quartiles"][at].as_f64();
                    self.know(arm, rest, "ratio", [node["ratio"].as_f64(), of(0), of(1)], 1);
                    for metric in ["least", "difference_seconds"] {
                        self.know(arm, rest, metric, [node[metric].as_f64(), None, None], 1);
                    }
                }
                Value::Object(_) => self.add_tree(&here, node),
                Value::Number(number) => {
                    self.know(arm, case, metric, [number.as_f64(), None, None], 1)
                }
                _ => {}
            }
        }
    }
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(benchmark: &str, runs: Value) -> Value {
        json!({
            "benchmark": benchmark, "date": "2026-11-25T06:08:54Z", "commit": "abc",
            "machine": {
                "cpu": "Some CPU", "cores": 2, "memory_bytes": 25_276_063_744u64,
                "kernel": "6.18.4-x",
            },
            "settings": {"rounds": 3}, "runs": runs,
        })
    }

    #[test]
    fn lines_of_before_stay_where_new_ones_cannot_be_written() {
        let directory = std::env::temp_dir().join(format!("uzswap-keep-{}", std::process::id()));
        // Something is in the way.
        let way = directory.join(format!(".results.jsonl.{}.tmp", std::process::id()));
        fs::create_dir_all(&way).unwrap();
        let path = directory.join("results.jsonl");
        fs::write(&path, "{\"date\":\"1\"}\n").unwrap();
        assert!(keep(&path, vec![json!({"date": "2"})]).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "{\"date\":\"1\"}\n");
        fs::remove_dir(way).unwrap();
        keep(&path, vec![json!({"date": "2"})]).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 2);
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_line_an_arm_with_medians_quartiles_and_the_number_of_runs() {
        let run = |arm: &str, round: u32, seconds: f64| {
            json!({
                "arm": arm, "program": "sort", "part_percent": 50, "round": round,
                "wall_seconds": seconds,
            })
        };
        let mut runs: Vec<Value> =
            (1..=3).map(|round| run("uzswap", round, f64::from(round))).collect();
        runs.push(run("zram", 0, 77.0));
        runs.push(run("zram", 1, 2.0 / 3.0));
        runs.push(json!({
            "arm": "zram", "program": "sort", "part_percent": 50, "round": 2,
            "error": "killed",
        }));
        let lines = lines_of(&record("programs", runs.into()));
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0]["date"], "2026-11-25T060854");
        assert_eq!(lines[0]["machine"], "Some CPU, 2 cores, 24 GiB, Linux 6.18.4");
        assert_eq!(lines[0]["figures"], json!({"sort 50": {"wall_seconds": [2, 2, 3, 3]}}));
        let zram = &lines[1]["figures"]["sort 50"];
        assert_eq!(zram["wall_seconds"], json!([0.6667, 0.6667, 0.6667, 1]));
        assert_eq!(zram["failed_runs"], json!([1, 1, 1, 1]));
    }

    #[test]
    fn figures_of_the_engine_are_a_tree() {
        let mut record = record("cache", json!([]));
        record["results"] = json!({"lz4": {
            "pages": 3, "times_ns": {"bare store": {"median": 2.0, "rounds": "3.0 1.0 2.0"}},
        }});
        let lines = lines_of(&record);
        assert_eq!(lines[0]["arm"], "lz4");
        assert_eq!(lines[0]["figures"]["times_ns"]["bare store"], json!([2, 2, 3, 3]));
    }

    #[test]
    fn a_line_is_replaced_by_a_newer_one_of_its_arm() {
        let path = std::env::temp_dir().join(format!("uzswap-results-{}", std::process::id()));
        let line = |date: &str, arm: &str, commit: &str| {
            let benchmark = "faults";
            json!({"date": date, "benchmark": benchmark, "arm": arm, "commit": commit})
        };
        keep(&path, vec![line("2", "b", "x"), line("2", "a", "x")]).unwrap();
        keep(&path, vec![line("1", "a", "x"), line("2", "a", "y")]).unwrap();
        let all = read(&fs::read_to_string(&path).unwrap()).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(all, [line("1", "a", "x"), line("2", "b", "x"), line("2", "a", "y")]);
        assert!(read("{}\n{").unwrap_err().starts_with("line 2: "));
    }

    #[test]
    fn four_digits_are_kept() {
        let values =
            [123_456.0, 0.000_123_456, 1.0, 0.0, 99_999.6, 134_217_000.0, f64::NAN].map(round);
        assert_eq!(
            values,
            [
                json!(123_500),
                json!(0.000_123_5),
                json!(1),
                json!(0),
                json!(100_000),
                json!(134_200_000),
                Value::Null
            ]
        );
    }
}
