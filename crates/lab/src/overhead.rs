//! `uzswap bench overhead`: what uzswap costs a program that fits its limit.
//!
//! Pairs of runs, one plain and one under `uzswap run`, in turn; every other pair the other way
//! round. A figure is the ratio of the two medians: of wall time, and of processor time (all
//! processes of the run), which a busy machine disturbs less. The quartiles of the pairs' own
//! ratios say how far it can be trusted. Where others share the processors, `least`, the ratio of
//! the shortest runs of either side, is the figure to believe: nothing makes a run too short.
//!
//! | workload | figure |
//! |---|---|
//! | start | `/bin/true`, from before the fork to after the end |
//! | Python, ... | start and end of `python3`, by each way to run it under uzswap; see `starts` |
//! | CPython | five loops, timed inside, start not included |
//! | sort | GNU sort of made-up lines |
//! | redis | redis-benchmark against redis-server over a Unix socket: each command's time, and the processor time of both |

mod starts;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::arms;
use super::engine::Aim;
use super::process::{Interrupt, Running, children_seconds, find};
use super::record::{Out, Record, median, quartiles};
use super::scratch::Scratch;
use uzswap_cli::Failure;
use uzswap_cli::console;
use uzswap_cli::program::reason;

use starts::{Starts, Way};

/// The most that a start of Python may take longer under uzswap.
const PYTHON_START_MOST_MS: f64 = 15.0;
/// A run in place writes its statistics after the program's end: so long they are waited for.
const STATS_PATIENCE: Duration = Duration::from_secs(5);

#[derive(clap::Args, Debug)]
pub struct OverheadArguments {
    /// Limit of the runs under uzswap; more than the programs need
    #[arg(long, value_name = "SIZE", default_value = "2G")]
    memory: String,
    /// Pairs of runs of each program
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = arms::times())]
    rounds: u32,
    /// Pairs of starts, of /bin/true and of Python in each way
    #[arg(
        long, value_name = "N", default_value_t = 100,
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    starts: u32,
    #[command(flatten)]
    out: Out,
}

/// With or without uzswap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Plain,
    Managed,
}

/// Figures of one run, all such that less is better.
type Figures = BTreeMap<String, f64>;

/// One run of a program, or why it cannot be measured here.
type Workload<'a> = &'a dyn Fn(Side) -> Result<Figures, String>;

pub fn run(arguments: OverheadArguments) -> Result<u8, Failure> {
    let record = Record::begin(&arguments.out, "overhead")?;
    let bench = Bench {
        arguments: &arguments,
        interrupt: Interrupt::install(),
        scratch: Scratch::new("overhead")?,
    };
    let starts = Starts::prepare(bench.scratch.path());
    let python = |side: Side, way: Way| bench.python_start(starts.as_ref(), side, way);
    let workloads: [(&str, u32, Workload); 7] = [
        ("start", arguments.starts, &|side| bench.start(side)),
        (Way::Run.name(), arguments.starts, &|side| python(side, Way::Run)),
        (Way::Module.name(), arguments.starts, &|side| python(side, Way::Module)),
        (Way::Restart.name(), arguments.starts, &|side| python(side, Way::Restart)),
        ("CPython", arguments.rounds, &|side| bench.python(side)),
        ("sort", arguments.rounds, &|side| bench.sort(side)),
        ("redis", arguments.rounds, &|side| bench.redis(side)),
    ];
    let (mut all, mut aims) = (Map::new(), Vec::new());
    println!(
        "{:<24} {:>10} {:>10} {:>11} {:>8} {:>18} {:>8}",
        "", "plain", "uzswap", "difference", "ratio", "quartiles", "least"
    );
    for (name, rounds, workload) in workloads {
        console::say(&format!("{name}: {rounds} pairs"));
        match bench.pairs(rounds, workload)? {
            Ok(pairs) => {
                let summary = summarize(&pairs);
                print!("{}", table(name, &summary));
                aims.extend(Way::of(name).map(|way| start_aim(way, &summary)));
                all.insert(name.to_string(), json!({"summary": summary, "pairs": pairs}));
            }
            Err(why) => {
                println!("{name:<24} not measured: {why}");
                all.insert(name.to_string(), json!({"not_measured": why}));
            }
        }
    }
    let json = record.write_json(json!({
        "settings": {
            "memory": arguments.memory, "rounds": arguments.rounds, "starts": arguments.starts,
        },
        "aims": aims,
        "workloads": all,
    }))?;
    println!("\n{}", json.display());
    Ok(0)
}

struct Bench<'a> {
    arguments: &'a OverheadArguments,
    interrupt: Interrupt,
    scratch: Scratch,
}

/// One pair: plain and managed.
type Pair = [Figures; 2];

impl Bench<'_> {
    /// Runs the pairs. The inner error says why this workload cannot be measured here.
    fn pairs(&self, rounds: u32, workload: Workload) -> Result<Result<Vec<Pair>, String>, Failure> {
        // Not counted: files come into the page cache, libraries into the cache of analyses.
        for side in [Side::Plain, Side::Managed] {
            if let Err(why) = workload(side).and_then(|_| self.as_meant(side)) {
                return Ok(Err(why));
            }
        }
        let mut pairs = Vec::new();
        for round in 0..rounds {
            let mut pair = [Figures::new(), Figures::new()];
            let order = if round % 2 == 0 {
                [Side::Plain, Side::Managed]
            } else {
                [Side::Managed, Side::Plain]
            };
            for side in order {
                self.interrupt.check()?;
                match workload(side).and_then(|figures| self.as_meant(side).map(|()| figures)) {
                    Ok(figures) => pair[side as usize] = figures,
                    Err(why) => return Ok(Err(format!("{side:?}: {why}"))),
                }
            }
            pairs.push(pair);
        }
        Ok(Ok(pairs))
    }

    /// Whether the last managed run was one: taken over, and inside its limit. If not, it measured
    /// nothing.
    fn as_meant(&self, side: Side) -> Result<(), String> {
        if side == Side::Plain {
            return Ok(());
        }
        let path = self.stats();
        let text = written(&path)?;
        let _ = fs::remove_file(&path);
        judge(&serde_json::from_str(&text).map_err(|e| format!("--stats: {e}"))?)
    }

    fn stats(&self) -> PathBuf {
        self.scratch.path().join("stats.json")
    }

    /// The command, under uzswap or not.
    fn command(&self, side: Side, program: &str) -> Result<Command, String> {
        let path = find(program)?;
        let mut command = match side {
            Side::Plain => Command::new(path),
            Side::Managed => {
                let own = super::arms::uzswap().map_err(|failure| failure.message)?;
                let mut command = Command::new(own);
                command.args(["run", "--quiet", "--memory", &self.arguments.memory, "--stats"]);
                command.arg(self.stats()).arg("--").arg(path);
                command
            }
        };
        command.stdin(Stdio::null()).stdout(Stdio::null()).env("LC_ALL", "C");
        Ok(command)
    }

    fn start(&self, side: Side) -> Result<Figures, String> {
        timed(&mut self.command(side, "true")?)
    }

    /// Wall time of `python3` that does nothing. Processor time is left out: the supervisor of a
    /// run in place is nobody's child.
    fn python_start(
        &self,
        starts: Result<&Starts, &String>,
        side: Side,
        way: Way,
    ) -> Result<Figures, String> {
        let starts = starts.map_err(String::clone)?;
        let mut command = match side {
            Side::Plain => starts.plain(),
            Side::Managed => starts.managed(way, &self.arguments.memory, &self.stats()),
        };
        let wall = timed(command.stdin(Stdio::null()).stdout(Stdio::null()))?.remove("wall");
        Ok(wall.map(|seconds| ("wall".to_string(), seconds)).into_iter().collect())
    }

    fn python(&self, side: Side) -> Result<Figures, String> {
        let output =
            (self.command(side, "python3")?.args(["-I", "-c", include_str!("overhead.py")]))
                .stdout(Stdio::piped())
                .output()
                .map_err(|e| reason(&e))?;
        if !output.status.success() {
            return Err(format!("python3 ended with {}", output.status));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let mut figures = Figures::new();
        for line in text.lines() {
            if let [name, wall, cpu] = line.split(' ').collect::<Vec<_>>()[..]
                && let (Ok(wall), Ok(cpu)) = (wall.parse(), cpu.parse())
            {
                figures.insert(format!("{name} wall"), wall);
                figures.insert(format!("{name} CPU"), cpu);
            }
        }
        Ok(figures)
    }

    fn sort(&self, side: Side) -> Result<Figures, String> {
        let lines = self.scratch.lines()?;
        timed(
            self.command(side, "sort")?
                .args(["-S", "512M", "--parallel=1", "-o", "/dev/null"])
                .arg(lines),
        )
    }

    fn redis(&self, side: Side) -> Result<Figures, String> {
        find("redis-benchmark")?;
        let socket = self.scratch.path().join("redis.socket");
        let _ = fs::remove_file(&socket);
        let before = children_seconds();
        let mut server = self.command(side, "redis-server")?;
        server
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(&socket);
        let mut server = Running::start(server.current_dir(self.scratch.path()))?;
        let started = Instant::now();
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            if !server.is_alive() || started.elapsed() > Duration::from_secs(20) {
                return Err("redis-server does not answer".to_string());
            }
            thread::sleep(Duration::from_millis(10));
        }
        let output = (self.command(Side::Plain, "redis-benchmark")?)
            .args([
                "-t",
                "set,get,lpush,hset",
                "-n",
                "100000",
                "-r",
                "50000",
                "-d",
                "200",
                "--csv",
                "-s",
            ])
            .arg(&socket)
            .stdout(Stdio::piped())
            .output()
            .map_err(|e| reason(&e))?;
        if !output.status.success() || !server.is_alive() {
            return Err(format!("redis-benchmark ended with {}", output.status));
        }
        // Its statistics are written when it has ended.
        drop(server);
        let mut figures = redis_figures(&String::from_utf8_lossy(&output.stdout));
        if figures.is_empty() {
            return Err("redis-benchmark said nothing".to_string());
        }
        figures.insert("all CPU".to_string(), children_seconds() - before);
        Ok(figures)
    }
}

/// The text of the statistics, once it is there.
fn written(path: &Path) -> Result<String, String> {
    let started = Instant::now();
    loop {
        match fs::read_to_string(path) {
            Err(e) => return Err(format!("--stats: {}", reason(&e))),
            Ok(text) if text.ends_with("\n}\n") => return Ok(text),
            Ok(_) if started.elapsed() > STATS_PATIENCE => {
                return Err("--stats: nothing was written".to_string());
            }
            Ok(_) => thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Holds the difference of a start of Python against what it may be.
fn start_aim(way: Way, summary: &Map<String, Value>) -> Value {
    let seconds = summary.get("wall").and_then(|wall| wall["difference_seconds"].as_f64());
    let ms = seconds.map_or(f64::NAN, |seconds| seconds * 1e3);
    Aim::AtMost(PYTHON_START_MOST_MS).hold(&format!("{}: ms over plain", way.name()), ms)
}

fn judge(stats: &Value) -> Result<(), String> {
    if stats["managed"] != true {
        return Err("it ran unmanaged".to_string());
    }
    match stats["counters"]["activations"].as_u64() {
        Some(0) => Ok(()),
        _ => Err("it does not fit the limit, give more with --memory".to_string()),
    }
}

/// Seconds per command from `"SET","123456.78",...`.
fn redis_figures(csv: &str) -> Figures {
    let line = |line: &str| {
        let mut fields = line.split(',').map(|field| field.trim_matches('"'));
        let (name, rate) = (fields.next()?, fields.next()?.parse::<f64>().ok()?);
        (rate > 0.0).then(|| (format!("{name} wall"), 1.0 / rate))
    };
    csv.lines().filter_map(line).collect()
}

/// Runs a command to its end: seconds of wall time, and of processor time of all its processes.
fn timed(command: &mut Command) -> Result<Figures, String> {
    let before = children_seconds();
    let started = Instant::now();
    Running::start(command)?.wait()?;
    let wall = started.elapsed().as_secs_f64();
    Ok([("wall".to_string(), wall), ("CPU".to_string(), children_seconds() - before)].into())
}

/// For every figure: both medians, their ratio and difference. Where there are several, the
/// geometric mean of their ratios too.
fn summarize(pairs: &[Pair]) -> Map<String, Value> {
    let mut summary = Map::new();
    let mut logs: BTreeMap<&str, Vec<[f64; 2]>> = BTreeMap::new();
    for name in pairs.first().map(|pair| pair[0].keys().collect::<Vec<_>>()).unwrap_or_default() {
        let side = |side: Side| {
            median(pairs.iter().filter_map(|pair| pair[side as usize].get(name)).copied())
        };
        let (Some(plain), Some(managed)) = (side(Side::Plain), side(Side::Managed)) else {
            continue;
        };
        let ratios =
            pairs.iter().filter_map(|[plain, managed]| Some(managed.get(name)? / plain.get(name)?));
        let shortest = |side: Side| {
            pairs
                .iter()
                .filter_map(|pair| pair[side as usize].get(name))
                .copied()
                .fold(f64::MAX, f64::min)
        };
        let least = shortest(Side::Managed) / shortest(Side::Plain);
        let kind = if name.ends_with("CPU") { "CPU" } else { "wall" };
        logs.entry(kind).or_default().push([(managed / plain).ln(), least.ln()]);
        summary.insert(
            name.clone(),
            json!({
                "plain_seconds": plain,
                "managed_seconds": managed,
                "ratio": managed / plain,
                "quartiles": quartiles(ratios),
                "least": least,
                "difference_seconds": managed - plain,
            }),
        );
    }
    for (kind, logs) in logs {
        if logs.len() > 1 {
            let mean =
                |i: usize| (logs.iter().map(|l| l[i]).sum::<f64>() / logs.len() as f64).exp();
            summary.insert(format!("mean {kind}"), json!({"ratio": mean(0), "least": mean(1)}));
        }
    }
    summary
}

fn table(workload: &str, summary: &Map<String, Value>) -> String {
    let mut text = String::new();
    for (figure, values) in summary {
        let seconds = |key: &str| match values[key].as_f64() {
            None => String::new(),
            Some(s) if s.abs() < 1e-3 => format!("{:.2} us", s * 1e6),
            Some(s) if s.abs() < 1.0 => format!("{:.2} ms", s * 1e3),
            Some(s) => format!("{s:.3} s"),
        };
        let ratio =
            |value: &Value| value.as_f64().map_or(String::new(), |ratio| format!("{ratio:.4}"));
        let quartiles = [ratio(&values["quartiles"][0]), ratio(&values["quartiles"][1])];
        text += &format!(
            "{:<24} {:>10} {:>10} {:>11} {:>8} {:>18} {:>8}\n",
            format!("{workload}: {figure}"),
            seconds("plain_seconds"),
            seconds("managed_seconds"),
            seconds("difference_seconds"),
            ratio(&values["ratio"]),
            quartiles.join(" "),
            ratio(&values["least"]),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_of_redis_become_times() {
        let csv = "\"test\",\"rps\",\"avg_latency_ms\"\n\
                   \"SET\",\"50000.00\",\"0.5\"\n\
                   \"GET\",\"100000.00\",\"0.4\"\n";
        let figures = redis_figures(csv);
        assert_eq!(figures.len(), 2);
        assert_eq!((figures["SET wall"], figures["GET wall"]), (2e-5, 1e-5));
    }

    #[test]
    fn ratios_are_of_medians() {
        let figures = |seconds: f64| Figures::from([("wall".to_string(), seconds)]);
        let pairs = [[1.0, 1.1], [9.0, 1.0], [1.0, 7.0]].map(|pair| pair.map(figures));
        let summary = summarize(&pairs);
        assert_eq!(summary["wall"]["ratio"], 1.1);
        assert_eq!(summary["wall"]["least"], 1.0);
        assert_eq!(quartiles([5.0, 1.0, 2.0, 4.0, 3.0].into_iter()), [2.0, 4.0]);
        assert_eq!(quartiles([7.0].into_iter()), [7.0, 7.0]);
        assert_eq!(summary.len(), 1);
        let many = |scale: f64| -> Figures { (0..3).map(|i| (format!("f{i}"), scale)).collect() };
        let summary = summarize(&[[many(2.0), many(3.0)]]);
        assert!((summary["mean wall"]["ratio"].as_f64().unwrap() - 1.5).abs() < 1e-9);
        assert!(table("x", &summary).contains("x: f2"));
    }

    #[test]
    fn a_run_that_was_not_managed_or_did_not_fit_counts_for_nothing() {
        let stats = |managed: bool, activations: u64| {
            let counters = json!({"activations": activations});
            json!({"managed": managed, "counters": counters})
        };
        assert_eq!(judge(&stats(true, 0)), Ok(()));
        assert!(judge(&stats(false, 0)).unwrap_err().contains("unmanaged"));
        assert!(judge(&stats(true, 1)).unwrap_err().contains("--memory"));
        assert!(judge(&json!({})).is_err());
    }

    #[test]
    fn statistics_are_waited_for_until_they_are_whole() {
        let path = std::env::temp_dir().join(format!("uzswap-overhead-{}", std::process::id()));
        assert!(written(&path).unwrap_err().starts_with("--stats: "));
        fs::write(&path, "{\n").unwrap();
        let writer = thread::spawn({
            let path = path.clone();
            move || {
                thread::sleep(Duration::from_millis(20));
                fs::write(&path, "{\n}\n").unwrap();
            }
        });
        assert_eq!(written(&path).unwrap(), "{\n}\n");
        writer.join().unwrap();
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_start_of_python_is_held_against_milliseconds() {
        let aim = |seconds: f64| {
            let wall = json!({"difference_seconds": seconds});
            start_aim(Way::Run, &Map::from_iter([("wall".to_string(), wall)]))
        };
        assert_eq!((&aim(0.0149)["met"], &aim(0.0151)["met"]), (&json!(true), &json!(false)));
        assert_eq!(aim(0.0151)["what"], "Python, run: ms over plain");
        assert_eq!(start_aim(Way::Run, &Map::new())["met"], false);
    }

    #[test]
    fn a_process_is_timed_with_its_children() {
        let mut busy = Command::new("sh");
        busy.args(["-c", "sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done'; exit 0"]);
        let figures = timed(&mut busy).unwrap();
        assert!(figures["CPU"] > 0.0, "the grandchild's time is missing");
        assert!(timed(Command::new("sh").args(["-c", "exit 5"])).is_err());
    }
}
