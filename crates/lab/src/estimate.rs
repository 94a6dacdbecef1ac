//! `uzswap bench estimate`: what `uzswap estimate` says of real programs, beside what then happens.
//!
//! ```text
//!  round 1: free, estimate, at 75 %, 50 %, 25 % of the need, compressed as a whole     round 2: ...
//!            └─ its output is what all others have to say
//! ```
//!
//! The *time* of a limit is the median of the runs under `uzswap run --memory` by that of the free
//! runs; the estimate's is its median, too. A run that fails, or takes more than twenty times as
//! long (at least 30 seconds), has no time: all that is known is that it is longer.
//!
//! The *ratio* is that of all pages of the program when they are compressed: in a run with as much
//! memory as it needs, without a store and with one codec, `reclaim all` takes them out every now
//! and then, and `ps` says what they were and what they have become.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::arms;
use super::process::{Interrupt, Tree, patience};
use super::programs::catalogue::{self, Chosen, Line, Program};
use super::programs::watch::{Run, watch};
use super::record::{Out, Record, median};
use super::scratch::Scratch;
use uzswap_cli::Failure;
use uzswap_cli::console;
use uzswap_cli::control::client::{self, Runs};
use uzswap_cli::control::protocol::{Reclaimed, Request};
use uzswap_cli::size::human;

#[derive(clap::Args, Debug)]
pub struct EstimateArguments {
    /// Programs to run; one that is not installed is left out, and said
    #[arg(long, value_name = "LIST", default_value = "all", value_parser = catalogue::chosen)]
    programs: Chosen,
    /// Memory limits, in percent of what the program needs
    #[arg(
        long, value_name = "N,...", default_value = "75,50,25", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(5..=95)
    )]
    parts: Vec<u32>,
    /// Runs of each kind, in turn; results are medians
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = arms::times())]
    rounds: u32,
    #[command(flatten)]
    out: Out,
}

/// The aim of an estimate: within a tenth of the ratio, and a factor of one and a half of the time.
const RATIO_WITHIN: f64 = 1.1;
const TIME_WITHIN: f64 = 1.5;
/// The time between two moments at which all pages are taken out.
const TAKE_EVERY: Duration = Duration::from_millis(200);

pub fn run(arguments: EstimateArguments) -> Result<u8, Failure> {
    let record = Record::begin(&arguments.out, "estimate")?;
    let bench = Bench {
        arguments: &arguments,
        interrupt: Interrupt::install(),
        scratch: Scratch::new("estimate")?,
        own: arms::uzswap()?,
    };
    let (mut summary, mut runs, mut json) = (Map::new(), Vec::new(), PathBuf::new());
    for program in &arguments.programs.0 {
        let own = match program.line(&bench.scratch) {
            Ok(line) => bench.program(program, &line, &mut runs)?,
            Err(why) => json!({"not_measured": why}),
        };
        print!("{}", table(program.name, &own));
        summary.insert(program.name.to_string(), own);
        // Written after each program: one takes minutes, and figures shall not be lost.
        json = record.write_json(json!({
            "settings": {"parts_percent": arguments.parts, "rounds": arguments.rounds},
            "summary": summary,
            "runs": runs,
        }))?;
    }
    println!("\n{}", json.display());
    Ok(0)
}

struct Bench<'a> {
    arguments: &'a EstimateArguments,
    interrupt: Interrupt,
    scratch: Scratch,
    own: PathBuf,
}

impl Bench<'_> {
    fn program(
        &self,
        program: &Program,
        line: &Line,
        runs: &mut Vec<Value>,
    ) -> Result<Value, Failure> {
        let (mut need_bytes, mut first, first_of_all) = (0, None, runs.len());
        for round in 1..=self.arguments.rounds {
            console::say(&format!("{}: round {round} of {}", program.name, self.arguments.rounds));
            // The first run brings files into the page cache, and gives the output that all others
            // must give.
            let free = |look: &mut dyn FnMut(&Tree)| {
                watch(line.command(), line, Duration::from_secs(300), &self.interrupt, look)
            };
            if first.is_none() {
                match free(&mut |tree| need_bytes = tree.anonymous_bytes().max(need_bytes))? {
                    Ok(run) => first = Some(run),
                    Err(why) => return Ok(json!({"not_measured": why})),
                }
            }
            let first = first.as_ref().expect("it ran");
            let mut note = |kind: &str, mut figures: Value| {
                figures["program"] = program.name.into();
                figures["round"] = round.into();
                figures["kind"] = kind.into();
                runs.push(figures);
            };
            note("free", outcome(free(&mut |_| ())?, first));
            note("estimate", self.estimate(line, first)?);
            for part in &self.arguments.parts {
                let memory = need_bytes * u64::from(*part) / 100;
                note(
                    &part.to_string(),
                    self.managed(line, first, &["--memory", &memory.to_string()], &mut |_| ())?,
                );
            }
            let ample = (2 * need_bytes + (64 << 20)).to_string();
            let mut taken = Taken::new();
            let figures = self.managed(
                line,
                first,
                &["--memory", &ample, "--store", "none", "--recompressor", "none"],
                &mut |tree| taken.take(tree),
            )?;
            note("compressed", taken.into_figures(figures));
        }
        Ok(summarize(&runs[first_of_all..], &self.arguments.parts, need_bytes))
    }

    fn estimate(&self, line: &Line, first: &Run) -> Result<Value, Failure> {
        let path = self.scratch.path().join("estimate.json");
        let parts: Vec<String> =
            self.arguments.parts.iter().map(|part| format!("{part}%")).collect();
        let mut command = Command::new(&self.own);
        command.arg("estimate").arg("--json").arg(&path).args(["--memory", &parts.join(","), "--"]);
        let run =
            watch(line.behind(command), line, patience(first.wall), &self.interrupt, &mut |_| ())?;
        let mut figures = outcome(run, first);
        figures["estimate"] = read(&path);
        Ok(figures)
    }

    fn managed(
        &self,
        line: &Line,
        first: &Run,
        options: &[&str],
        look: &mut dyn FnMut(&Tree),
    ) -> Result<Value, Failure> {
        let stats = self.scratch.path().join("stats.json");
        let mut command = Command::new(&self.own);
        command.args(["run", "--quiet", "--stats"]).arg(&stats).args(options).arg("--");
        let mut figures = outcome(
            watch(line.behind(command), line, patience(first.wall), &self.interrupt, look)?,
            first,
        );
        figures["stats"] = read(&stats);
        Ok(figures)
    }
}

/// The outcome of a run, if its output is that of the first, free run.
fn outcome(run: Result<Run, String>, first: &Run) -> Value {
    run.and_then(|run| run.like(first)).unwrap_or_else(|why| json!({"error": why}))
}

/// Reads the JSON of a file and removes the file, so that it is not taken for the next run's.
fn read(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let _ = std::fs::remove_file(path);
    serde_json::from_str(&text).unwrap_or(Value::Null)
}

/// All pages of a run, taken out now and then.
struct Taken {
    last: Instant,
    /// The pages' sizes before and after, in bytes, summed up.
    pages: f64,
    compressed: f64,
}

impl Taken {
    fn new() -> Taken {
        Taken { last: Instant::now(), pages: 0.0, compressed: 0.0 }
    }

    fn take(&mut self, tree: &Tree) {
        if self.last.elapsed() < TAKE_EVERY {
            return;
        }
        self.last = Instant::now();
        let run = tree.id();
        let all = Request::Reclaim { pid: None, amount: "all".to_string() };
        if client::ask::<Vec<Reclaimed>>(run, &all).is_err() {
            return;
        }
        // At once: what has been touched again by then counts as not taken, on both sides.
        for state in Runs::find().states.iter().filter(|state| state.run == run) {
            // A small process is left alone.
            for process in state.processes.iter().filter(|process| process.mechanism.is_some()) {
                self.pages += process.needed_bytes.saturating_sub(process.resident_bytes) as f64;
                self.compressed += process.pool_bytes.saturating_sub(process.kept_bytes) as f64;
            }
        }
    }

    fn into_figures(self, mut figures: Value) -> Value {
        figures["taken_bytes"] = json!(self.pages as u64);
        figures["compressed_bytes"] = json!(self.compressed as u64);
        figures["ratio"] =
            if self.compressed > 0.0 { json!(self.pages / self.compressed) } else { Value::Null };
        figures
    }
}

// ---------------------------------------------------------------- results

fn summarize(runs: &[Value], parts: &[u32], need_bytes: u64) -> Value {
    let over = |kind: &str, of: &dyn Fn(&Value) -> Option<f64>| {
        median(runs.iter().filter(|run| run["kind"] == *kind).filter_map(of))
    };
    let wall = |run: &Value| run["wall_seconds"].as_f64();
    let free = over("free", &wall);
    let ratio = compare(
        over("estimate", &|run| run["estimate"]["codec"]["ratio"].as_f64()),
        over("compressed", &|run| run["ratio"].as_f64()),
    );
    let of_part = |(index, part): (usize, &u32)| {
        let expected =
            over("estimate", &|run| run["estimate"]["limits"][index]["slowdown"].as_f64());
        let kind = part.to_string();
        let measured = over(&kind, &wall).zip(free).map(|(wall, free)| wall / free);
        let failed: Vec<&Value> = (runs.iter())
            .filter(|run| run["kind"] == *kind && !run["error"].is_null())
            .map(|run| &run["error"])
            .collect();
        let mut figures = compare(expected, measured);
        figures["failed_runs"] = failed.len().into();
        figures["failure"] = failed.first().copied().cloned().unwrap_or(Value::Null);
        (kind, figures)
    };
    json!({
        "need_bytes": need_bytes,
        "free_seconds": free,
        "ratio": ratio,
        "times": parts.iter().enumerate().map(of_part).collect::<Map<_, _>>(),
    })
}

/// How far the estimate is from what was measured, as a factor above one.
fn compare(expected: Option<f64>, measured: Option<f64>) -> Value {
    let off = expected.zip(measured).map(|(e, m)| (e / m).max(m / e));
    json!({"estimated": expected, "measured": measured, "off_by": off})
}

fn table(program: &str, own: &Value) -> String {
    if let Some(why) = own["not_measured"].as_str() {
        return format!("\n{program}: skipped: {why}\n");
    }
    let need = human(own["need_bytes"].as_u64().unwrap_or(0));
    let seconds = own["free_seconds"].as_f64().unwrap_or(f64::NAN);
    let mut text = format!("\n{program}: needs {need}, takes {seconds:.2} s without a limit\n");
    text += &format!("  {:<12} {:>9} {:>9} {:>7}\n", "", "estimated", "measured", "off by");
    let number =
        |value: &Value| value.as_f64().map_or("-".to_string(), |number| format!("{number:.2}"));
    let mut row = |name: &str, figures: &Value, within: f64| {
        let verdict = match figures["off_by"].as_f64() {
            Some(off) if off <= within => "",
            Some(_) => "  MISSED",
            None => "",
        };
        let cells = ["estimated", "measured", "off_by"].map(|key| number(&figures[key]));
        text += &format!("  {name:<12} {:>9} {:>9} {:>7}{verdict}", cells[0], cells[1], cells[2]);
        if let Some(why) = figures["failure"].as_str() {
            text += &format!("  {} failed: {why}", figures["failed_runs"]);
        }
        text += "\n";
    };
    row("ratio", &own["ratio"], RATIO_WITHIN);
    for (part, figures) in own["times"].as_object().into_iter().flatten() {
        row(&format!("time at {part} %"), figures, TIME_WITHIN);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_are_held_against_medians() {
        let estimate = |time: f64| {
            let limits = [json!({"slowdown": time}), json!({"slowdown": 9.0})];
            json!({"kind": "estimate", "estimate": {"codec": {"ratio": 3.0}, "limits": limits}})
        };
        let wall = |kind: &str, seconds: f64| json!({"kind": kind, "wall_seconds": seconds});
        let runs = [
            wall("free", 2.0),
            wall("free", 1.0),
            wall("free", 2.0),
            estimate(1.0),
            estimate(4.0),
            estimate(1.5),
            wall("50", 4.0),
            json!({"kind": "25", "error": "killed"}),
            json!({"kind": "compressed", "ratio": 3.2}),
        ];
        let own = summarize(&runs, &[50, 25], 64 << 20);
        assert_eq!(own["times"]["50"]["measured"], 2.0);
        assert_eq!(own["times"]["50"]["estimated"], 1.5);
        assert_eq!(own["times"]["25"]["off_by"], Value::Null);
        let text = table("it", &own);
        let row =
            |name: &str| text.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
        assert!(row("ratio").ends_with("3.00      3.20    1.07"), "{text}");
        assert!(row("time at 50 %").ends_with("1.50      2.00    1.33"), "{text}");
        assert!(
            row("time at 25 %").ends_with("9.00         -       -  1 failed: killed"),
            "{text}"
        );
        let off = summarize(&[wall("free", 1.0), wall("50", 9.0), estimate(1.0)], &[50], 0);
        assert!(table("it", &off).contains("9.00  MISSED"));
        assert_eq!(table("it", &json!({"not_measured": "why"})), "\nit: skipped: why\n");
    }
}
