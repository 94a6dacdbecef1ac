//! `uzswap bench programs`: real programs at parts of the memory that they need.
//!
//! ```text
//!  free, twice ─> need, output, time ─┬─> 75 % of the need: uzswap │ zswap │ zram │ swap, in turn ─> medians
//!                                     ├─> 50 % ...
//!                                     └─> 25 % ...                     every output like the free one, or failed
//! ```
//!
//! The *need* is the largest private anonymous memory of all processes of the program, sampled in
//! the first free run; the time is the shorter one's, which is the second's unless the machine was
//! disturbed. A *part* of the need is the limit of every arm: `uzswap run --memory`, and memory
//! cgroups with the kernel's swap (see `arms` for what each counts). A run *fails* if the program
//! is killed, ends with an error, takes twenty times its free time (at least 30 seconds), or says
//! anything else than when it was free. Failed runs are in no median; they are shown.
//!
//! The *best peer* is the arm of the kernel with the shortest median. Its time by uzswap's is the
//! figure: more than one where uzswap is faster than whatever the kernel can be set to, zero where
//! only uzswap failed; where all peers failed there is none. Over programs, the median of those
//! ratios.

pub mod catalogue;
mod inputs;
mod python;
mod redis;
mod tools;
pub mod watch;

use std::time::Duration;

use serde_json::{Map, Value, json};

use self::catalogue::{Chosen, Line, Program};
use self::watch::{Run, watch};
use super::arms::{self, Arm, ArmArguments, Backing, Bench, counted};
use super::plot;
use super::process::{Tree, patience};
use super::record::{Record, median};
use super::scratch::Scratch;
use uzswap_cli::Failure;
use uzswap_cli::console;
use uzswap_cli::size::human;

#[derive(clap::Args, Debug)]
pub struct ProgramsArguments {
    /// Programs to run, by name, or 'all', or 'classic': python, numpy, sort, redis and g++; one
    /// that is not installed is left out, and said
    #[arg(long, value_name = "LIST", default_value = "all", value_parser = catalogue::chosen)]
    programs: Chosen,
    /// Memory limits of the arms, in percent of what the program needs
    #[arg(
        long, value_name = "N,...", default_value = "75,50,35,25", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(5..=95)
    )]
    parts: Vec<u32>,
    #[command(flatten)]
    arms: ArmArguments,
}

pub fn run(arguments: ProgramsArguments) -> Result<u8, Failure> {
    let record = Record::begin(&arguments.arms.out, "programs")?;
    let measuring = Measuring {
        arguments: &arguments,
        bench: Bench::begin(&arguments.arms),
        scratch: Scratch::new("programs")?,
    };
    let (mut runs, mut summary) = (Vec::new(), Map::new());
    for program in &arguments.programs.0 {
        let own = match program.line(&measuring.scratch) {
            Ok(line) => measuring.program(program, &line, &mut runs)?,
            Err(why) => Err(why),
        };
        let own = own.unwrap_or_else(|why| json!({"not_measured": why}));
        print!("{}", table(program.name, &own));
        summary.insert(program.name.to_string(), own);
    }
    let over_all = over_programs(&arguments.parts, &summary);
    print!("{}", conclusion(&over_all));
    let json = record.write_json(json!({
        "settings": {
            "parts_percent": arguments.parts,
            "rounds": arguments.arms.rounds,
            "count_pool": arguments.arms.count_pool,
        },
        "summary": {"programs": summary, "parts": over_all},
        "runs": runs,
    }))?;
    let title = format!("Time by the time without a limit, medians of {}", arguments.arms.rounds);
    let plot = record.write("svg", &plot::bars(&title, "less is better", &groups(&summary)))?;
    println!("\n{}\n{}", json.display(), plot.display());
    arms::end(&runs)
}

struct Measuring<'a> {
    arguments: &'a ProgramsArguments,
    bench: Bench<'a>,
    scratch: Scratch,
}

/// A program without a limit.
#[derive(Clone, Copy, Debug)]
struct Free {
    need_bytes: u64,
    run: Run,
}

impl Measuring<'_> {
    /// Everything about one program. The inner error says why it cannot be measured here.
    fn program(
        &self,
        program: &Program,
        line: &Line,
        runs: &mut Vec<Value>,
    ) -> Result<Result<Value, String>, Failure> {
        console::say(&format!("{}: free", program.name));
        let free = match self.free(line)? {
            Ok(free) => free,
            Err(why) => return Ok(Err(why)),
        };
        let mut parts = Map::new();
        for &part in &self.arguments.parts {
            let mut arms = self.bench.arms(free.need_bytes * u64::from(part) / 100);
            let run = |arm: &Arm, round: u32| -> Result<Value, Failure> {
                let mut run =
                    json!({"program": program.name, "part_percent": part, "round": round});
                self.bench.run(arm, free.need_bytes, &mut run, |command, look| {
                    let command = line.behind(command);
                    let longest = patience(free.run.wall);
                    let run =
                        watch(command, line, longest, &self.bench.interrupt, &mut |_| look())?;
                    Ok(run.and_then(|run| run.like(&free.run)))
                })?;
                Ok(run)
            };
            let what = format!("{} at {part} %, ", program.name);
            let of_part = self.bench.rounds(&what, &mut arms, free.need_bytes, run)?;
            parts.insert(part.to_string(), summarize(&arms, &of_part, free.run.wall));
            runs.extend(of_part);
        }
        Ok(Ok(json!({
            "free": {
                "need_bytes": free.need_bytes,
                "wall_seconds": free.run.wall.as_secs_f64(),
                "cpu_seconds": free.run.cpu_seconds,
                "output": format!("{:016x}", free.run.digest),
            },
            "parts": parts,
        })))
    }

    fn free(&self, line: &Line) -> Result<Result<Free, String>, Failure> {
        // The patience with the free run, of which nothing is known yet.
        const PATIENCE: Duration = Duration::from_secs(300);
        let once = |look: &mut dyn FnMut(&Tree)| {
            watch(line.command(), line, PATIENCE, &self.bench.interrupt, look)
        };
        let mut need_bytes = 0;
        let first = match once(&mut |tree| need_bytes = tree.anonymous_bytes().max(need_bytes))? {
            Ok(run) => run,
            Err(why) => return Ok(Err(why)),
        };
        Ok(once(&mut |_| ())?.and_then(|run| {
            // Else nothing could be said of its output under a limit.
            run.like(&first).map_err(|_| "its output is another one in each run".to_string())?;
            let run = if run.wall < first.wall { run } else { first };
            Ok(Free { need_bytes, run })
        }))
    }
}

// ---------------------------------------------------------------- results

/// For every arm the median over its runs that did not fail, by the free time and by uzswap's; and
/// the best peer.
fn summarize(arms: &[Arm], runs: &[Value], free: Duration) -> Value {
    let mut of_arms: Map<String, Value> = Map::new();
    let mut best: Option<(&str, f64)> = None;
    for arm in arms {
        let own = counted(runs, arm);
        let over_runs = |key: &str| median(own.iter().filter_map(|run| run[key].as_f64()));
        let wall = over_runs("wall_seconds");
        let failures: Vec<&Value> = (runs.iter())
            .filter(|run| run["arm"] == *arm.name && run["round"] != 0)
            .map(|run| &run["error"])
            .filter(|error| !error.is_null())
            .collect();
        let by_uzswap = match of_arms.get("uzswap") {
            None => wall.map(|_| 1.0),
            Some(uzswap) => {
                wall.zip(uzswap["wall_seconds"].as_f64()).map(|(own, uzswap)| own / uzswap)
            }
        };
        if let (Backing::Kernel { .. }, Some(wall)) = (arm.backing, wall)
            && best.is_none_or(|(_, least)| wall < least)
        {
            best = Some((&arm.name, wall));
        }
        let figures = json!({
            "runs": own.len(),
            "wall_seconds": wall,
            "cpu_seconds": over_runs("cpu_seconds"),
            "by_free": wall.map(|wall| wall / free.as_secs_f64()),
            "by_uzswap": by_uzswap,
            "limit_bytes": over_runs("limit_bytes"),
            "pool_bytes": over_runs("pool_bytes"),
            "failed_runs": failures.len(),
            "failure": failures.first(),
        });
        of_arms.insert(arm.name.clone(), figures);
    }
    // Without a time of uzswap's it counts as endless.
    let uzswap = of_arms.get("uzswap").and_then(|uzswap| uzswap["wall_seconds"].as_f64());
    let ratio = best.map(|(_, wall)| uzswap.map_or(0.0, |uzswap| wall / uzswap));
    json!({"arms": of_arms, "best_peer": best.map(|best| best.0), "best_peer_by_uzswap": ratio})
}

/// For every part: over how many programs there is a peer to compare with, the median of the best
/// peer's time by uzswap's, the programs of which a peer is faster, and uzswap's median time by
/// that without a limit.
fn over_programs(parts: &[u32], summary: &Map<String, Value>) -> Value {
    let of_part = |part: &u32| {
        let part = part.to_string();
        let ratio = |program: &Value| program["parts"][&part]["best_peer_by_uzswap"].as_f64();
        let ratios: Vec<f64> = summary.values().filter_map(ratio).collect();
        let is_slower = |program: &Value| ratio(program).is_some_and(|ratio| ratio < 1.0);
        let slower = summary.iter().filter(|(_, program)| is_slower(program));
        let by_free =
            |program: &Value| program["parts"][&part]["arms"]["uzswap"]["by_free"].as_f64();
        let figures = json!({
            "programs": ratios.len(),
            "best_peer_by_uzswap": median(ratios),
            "slower": slower.map(|(name, _)| name).collect::<Vec<_>>(),
            "uzswap_by_free": median(summary.values().filter_map(by_free)),
        });
        (part, figures)
    };
    parts.iter().map(of_part).collect::<Map<_, _>>().into()
}

fn table(program: &str, own: &Value) -> String {
    if let Some(why) = own["not_measured"].as_str() {
        return format!("\n{program}: skipped: {why}\n");
    }
    let Some(parts) = own["parts"].as_object() else { return String::new() };
    let free = &own["free"];
    let need = human(free["need_bytes"].as_u64().unwrap_or(0));
    let seconds = free["wall_seconds"].as_f64().unwrap_or(f64::NAN);
    let mut text =
        format!("\n{program}: needs {need}, takes {seconds:.2} s without a limit\n  {:<9}", "");
    for part in parts.keys() {
        text += &format!(" {:>19}", format!("{part} % x uzswap"));
    }
    text += "\n";
    let arms = parts.values().next().and_then(|part| part["arms"].as_object());
    let mut failures = String::new();
    for arm in arms.into_iter().flat_map(Map::keys) {
        text += &format!("  {arm:<9}");
        for (part, figures) in parts {
            let figures = &figures["arms"][arm];
            let cell = match (figures["wall_seconds"].as_f64(), figures["by_uzswap"].as_f64()) {
                (Some(wall), Some(ratio)) => format!("{wall:.2} s {ratio:>7.2}x"),
                (Some(wall), None) => format!("{wall:.2} s {:>8}", "-"),
                _ => "failed".to_string(),
            };
            text += &format!(" {cell:>19}");
            if let Some(why) = figures["failure"].as_str() {
                failures +=
                    &format!("  {arm} at {part} %: {} failed: {why}\n", figures["failed_runs"]);
            }
        }
        text += "\n";
    }
    text + &failures
}

fn conclusion(over_all: &Value) -> String {
    let number =
        |value: &Value| value.as_f64().map_or("-".to_string(), |value| format!("{value:.2}"));
    let mut text = String::from(
        "\nmedians over programs: best peer's time by uzswap's, uzswap's by the free one\n",
    );
    for (part, figures) in over_all.as_object().into_iter().flatten() {
        let (ratio, by_free) =
            (number(&figures["best_peer_by_uzswap"]), number(&figures["uzswap_by_free"]));
        text += &format!(
            "  {part:>2} % of the need: {ratio:>5} ({} programs), {by_free:>5}",
            figures["programs"]
        );
        let slower = figures["slower"].as_array().into_iter().flatten().filter_map(Value::as_str);
        match slower.collect::<Vec<_>>() {
            names if names.is_empty() => text += "\n",
            names => text += &format!("; a peer is faster: {}\n", names.join(", ")),
        }
    }
    text
}

fn groups(summary: &Map<String, Value>) -> Vec<plot::Group> {
    let mut groups = Vec::new();
    for (program, own) in summary {
        for (part, figures) in own["parts"].as_object().into_iter().flatten() {
            let arms = figures["arms"].as_object().into_iter().flatten();
            let bars =
                arms.map(|(arm, own)| (arm.clone(), own["by_free"].as_f64().unwrap_or(f64::NAN)));
            groups.push((format!("{program} at {part} % of its need"), bars.collect()));
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::super::peers::Kind;
    use super::arms::parse_line;
    use super::*;

    fn names(arguments: &ProgramsArguments) -> Vec<&str> {
        arguments.programs.0.iter().map(|program| program.name).collect()
    }

    #[test]
    fn options() {
        let defaults = parse_line::<ProgramsArguments>(&[]).unwrap();
        assert!(names(&defaults).len() >= 16, "{:?}", names(&defaults));
        assert_eq!(defaults.parts, [75, 50, 35, 25]);
        let given = parse_line::<ProgramsArguments>(&[
            "--programs=redis,g++",
            "--parts=50",
            "--peers=zram",
        ])
        .unwrap();
        assert_eq!((names(&given), &given.parts[..]), (vec!["redis", "g++"], &[50][..]));
        for (wrong, word) in [
            ("--programs=perl", "'perl' is none of all, classic, python, numpy"),
            ("--parts=100", "5..=95"),
            ("--parts=half", "invalid digit"),
        ] {
            let error = parse_line::<ProgramsArguments>(&[wrong])
                .err()
                .unwrap_or_else(|| panic!("{wrong} was taken"));
            assert!(error.contains(word), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_run_may_take_twenty_times_its_free_time() {
        let free = |seconds: f64| patience(Duration::from_secs_f64(seconds)).as_secs();
        assert_eq!((free(0.1), free(1.5), free(4.0)), (30, 30, 80));
    }

    fn arms() -> [Arm; 4] {
        let kernel = Backing::Kernel { kind: Kind::Zram, page_cluster: 0, limit_bytes: 0 };
        let uzswap = Backing::Uzswap { limit_bytes: 0 };
        [("uzswap", uzswap), ("zswap pc0", kernel), ("zram pc0", kernel), ("swap pc0", kernel)]
            .map(|(name, backing)| Arm { name: name.to_string(), backing, counts_pool: false })
    }

    fn made_up(times: &[(&str, f64)], failed: &[&str]) -> Value {
        let run = |(arm, wall): &(&str, f64)| json!({"arm": arm, "round": 1, "wall_seconds": wall});
        let mut runs: Vec<Value> = times.iter().map(run).collect();
        runs.extend(failed.iter().map(|arm| json!({"arm": arm, "round": 2, "error": "killed"})));
        summarize(&arms(), &runs, Duration::from_secs(1))
    }

    #[test]
    fn the_best_peer_is_the_fastest_that_did_not_fail() {
        let times = [
            ("uzswap", 2.0),
            ("uzswap", 90.0),
            ("uzswap", 1.0),
            ("zswap pc0", 5.0),
            ("zram pc0", 3.0),
        ];
        let part = made_up(&times, &["swap pc0", "zswap pc0"]);
        assert_eq!(part["best_peer"], "zram pc0");
        assert_eq!(part["best_peer_by_uzswap"], 1.5);
        assert_eq!(part["arms"]["zswap pc0"]["by_uzswap"], 2.5);
        assert_eq!(part["arms"]["zswap pc0"]["by_free"], 5.0);
        assert_eq!(part["arms"]["zswap pc0"]["failed_runs"], 1);
        assert_eq!(part["arms"]["swap pc0"]["wall_seconds"], Value::Null);
        let text = table(
            "redis",
            &json!({"free": {"need_bytes": 1 << 28, "wall_seconds": 1.0}, "parts": {"50": part}}),
        );
        let row = |name: &str| {
            text.lines().find(|line| line.trim_start().starts_with(name)).unwrap().to_string()
        };
        assert!(row("zram pc0").contains("3.00 s    1.50x"), "{text}");
        assert!(row("swap pc0").ends_with("failed"), "{text}");
        assert!(text.contains("zswap pc0 at 50 %: 1 failed: killed"), "{text}");
        // Nobody to compare with.
        assert_eq!(made_up(&[("uzswap", 2.0)], &[])["best_peer"], Value::Null);
        assert_eq!(made_up(&[("uzswap", 2.0)], &["zram pc0"])["best_peer_by_uzswap"], Value::Null);
        assert_eq!(made_up(&[("zram pc0", 2.0)], &["uzswap"])["best_peer_by_uzswap"], 0.0);
    }

    #[test]
    fn over_programs_it_is_the_median() {
        let program = |seconds: f64| {
            let part = made_up(&[("uzswap", 1.0), ("zram pc0", seconds)], &[]);
            json!({"parts": {"50": part}})
        };
        let mut summary: Map<String, Value> = [("a", 1.5), ("b", 9.0), ("c", 0.5)]
            .map(|(name, s)| (name.to_string(), program(s)))
            .into_iter()
            .collect();
        summary.insert("d".to_string(), json!({"not_measured": "d is not installed: install d"}));
        let over_all = over_programs(&[50, 25], &summary);
        let of_50 = &over_all["50"];
        assert_eq!((&of_50["programs"], &of_50["best_peer_by_uzswap"]), (&json!(3), &json!(1.5)));
        assert_eq!(over_all["25"]["best_peer_by_uzswap"], Value::Null);
        assert!(conclusion(&over_all).contains("50 % of the need:  1.50 (3 programs)"));
        assert_eq!(table("d", &summary["d"]), "\nd: skipped: d is not installed: install d\n");
        assert_eq!(groups(&summary).len(), 3);
    }
}
