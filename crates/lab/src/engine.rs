//! The parts that the benches of the engine (codecs, cache, same-filled, streams, pools, store)
//! share.
//!
//! *Arms* are measured in turn, another one first in each round, so that a machine that is slow for
//! a while is slow for all of them. A time is the median over rounds; a ratio of two arms is the
//! median of the rounds' own ratios, with its quartiles. An *aim* is what a ratio has to be; it is
//! printed and recorded, met or not.

use std::path::PathBuf;

use nix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value, json};

use super::corpus::Corpora;
use super::process::Interrupt;
use super::record::{Out, Record, median, quartiles};
use uzswap_cli::Failure;
use uzswap_cli::pages::PageBytes;

#[derive(clap::Args, Debug)]
pub struct EngineArguments {
    /// Directory with page corpora ('uzswap bench corpus' makes them)
    #[arg(long, value_name = "DIR", default_value = "bench-corpus")]
    corpus: PathBuf,
    /// Pages to measure with, as many of each corpus
    #[arg(
        long, value_name = "N", default_value_t = 8192,
        value_parser = clap::value_parser!(u32).range(256..)
    )]
    pages: u32,
    /// Rounds in which the arms take turns
    #[arg(
        long, value_name = "N", default_value_t = 15,
        value_parser = clap::value_parser!(u32).range(1..=10_000)
    )]
    rounds: u32,
    #[command(flatten)]
    out: Out,
}

/// One measurement under way.
pub struct Comparison {
    record: Record,
    interrupt: Interrupt,
    pub corpora: Corpora,
    pub mix: Vec<PageBytes>,
    pub rounds: u32,
    aims: Vec<Value>,
}

impl Comparison {
    pub fn begin(arguments: &EngineArguments, name: &str) -> Result<Comparison, Failure> {
        let corpora = Corpora::load(&arguments.corpus)?;
        let record = Record::begin(&arguments.out, name)?;
        let mix = corpora.mix(arguments.pages as usize);
        let interrupt = Interrupt::install();
        Ok(Comparison {
            record,
            interrupt,
            mix,
            corpora,
            rounds: arguments.rounds,
            aims: Vec::new(),
        })
    }

    /// Measures every arm once per round. An arm answers with its figure of this round.
    pub fn in_turn(&self, rounds: u32, arms: &mut [Arm]) -> Result<Times, Failure> {
        let mut times =
            Times { names: arms.iter().map(|arm| arm.0.clone()).collect(), rounds: Vec::new() };
        for round in 0..rounds as usize {
            let mut of_round = vec![f64::NAN; arms.len()];
            for i in 0..arms.len() {
                self.interrupt.check()?;
                let arm = (round + i) % arms.len();
                of_round[arm] = (arms[arm].1)(round);
            }
            times.rounds.push(of_round);
        }
        Ok(times)
    }

    /// Holds a figure against what it has to be.
    pub fn aim(&mut self, what: &str, value: f64, aim: Aim) {
        self.aims.push(aim.hold(what, value));
    }

    /// Writes the record and the plot, and says where.
    pub fn end(self, results: Value, plot: &str) -> Result<u8, Failure> {
        let json = self.record.write_json(json!({
            "corpora": self.corpora.describe(),
            "settings": {"pages": self.mix.len(), "rounds": self.rounds},
            "aims": self.aims,
            "results": results,
        }))?;
        let svg = self.record.write("svg", plot)?;
        println!("\n{}\n{}", json.display(), svg.display());
        Ok(0)
    }
}

/// A name, and what is measured in the round of that number.
pub type Arm<'a> = (String, Box<dyn FnMut(usize) -> f64 + 'a>);

/// An arm of a closure.
pub fn arm<'a>(name: &str, measure: impl FnMut(usize) -> f64 + 'a) -> Arm<'a> {
    (name.to_string(), Box::new(measure))
}

#[derive(Clone, Copy, Debug)]
pub enum Aim {
    AtMost(f64),
    AtLeast(f64),
}

impl Aim {
    /// Prints whether a figure is as it has to be; the record's entry of it.
    pub fn hold(self, what: &str, value: f64) -> Value {
        let (met, wanted) = match self {
            Aim::AtMost(limit) => (value <= limit, format!("at most {limit}")),
            Aim::AtLeast(limit) => (value >= limit, format!("at least {limit}")),
        };
        println!("  {what}: {value:.3} ({wanted}: {})", if met { "met" } else { "MISSED" });
        json!({"what": what, "value": value, "aim": wanted, "met": met})
    }
}

/// Figures of arms: a row of each round.
pub struct Times {
    names: Vec<String>,
    rounds: Vec<Vec<f64>>,
}

impl Times {
    fn column(&self, name: &str) -> usize {
        self.names.iter().position(|n| n == name).expect("an arm that was measured")
    }

    pub fn median(&self, name: &str) -> f64 {
        let column = self.column(name);
        median(self.rounds.iter().map(|round| round[column])).unwrap_or(f64::NAN)
    }

    fn ratios(&self, name: &str, to: &str) -> impl Iterator<Item = f64> {
        let (a, b) = (self.column(name), self.column(to));
        self.rounds.iter().map(move |round| round[a] / round[b])
    }

    /// The median of the rounds' ratios.
    pub fn ratio(&self, name: &str, to: &str) -> f64 {
        median(self.ratios(name, to)).unwrap_or(f64::NAN)
    }

    /// The quartiles of the rounds' ratios.
    pub fn quartiles(&self, name: &str, to: &str) -> [f64; 2] {
        quartiles(self.ratios(name, to))
    }

    /// Medians and every round, in one line each: there may be thousands.
    pub fn to_json(&self) -> Value {
        let of = |name: &String| {
            let column = self.column(name);
            let all: Vec<String> =
                self.rounds.iter().map(|round| format!("{:.4}", round[column])).collect();
            (name.clone(), json!({"median": self.median(name), "rounds": all.join(" ")}))
        };
        self.names.iter().map(of).collect::<Map<_, _>>().into()
    }
}

/// Nanoseconds that `work` takes, for each of `count`: processor time of this thread, so that what
/// else runs on the machine costs it no more than caches and clock rate.
pub fn ns_each(count: usize, work: impl FnOnce()) -> f64 {
    let started = processor_ns(ClockId::CLOCK_THREAD_CPUTIME_ID);
    work();
    (processor_ns(ClockId::CLOCK_THREAD_CPUTIME_ID) - started) / count as f64
}

/// Processor time used so far, of the thread or of the process.
pub fn processor_ns(clock: ClockId) -> f64 {
    let time = clock_gettime(clock).expect("every kernel has these clocks");
    time.tv_sec() as f64 * 1e9 + time.tv_nsec() as f64
}

/// Reads pages, so that the next who does finds them where the last one left them.
pub fn touch(pages: &[PageBytes]) {
    let sum = pages
        .iter()
        .flat_map(|page| page.iter().step_by(64))
        .fold(0u8, |sum, b| sum.wrapping_add(*b));
    std::hint::black_box(sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aim_is_met_up_to_its_limit() {
        let is_met = |aim: Aim, value: f64| aim.hold("x", value)["met"] == true;
        assert!(is_met(Aim::AtMost(1.1), 1.1) && !is_met(Aim::AtMost(1.1), 1.2));
        assert!(is_met(Aim::AtLeast(1.1), 1.1) && !is_met(Aim::AtLeast(1.1), 1.0));
        // A figure that there is not meets nothing.
        assert!(!is_met(Aim::AtMost(1.1), f64::NAN) && !is_met(Aim::AtLeast(1.1), f64::NAN));
        assert_eq!(Aim::AtMost(15.0).hold("x", 3.0)["aim"], "at most 15");
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        let names = ["a", "b"].map(str::to_string).to_vec();
        let times =
            Times { names, rounds: vec![vec![1.0, 2.0], vec![10.0, 20.0], vec![300.0, 100.0]] };
        assert_eq!(times.median("a"), 10.0);
        assert_eq!(times.ratio("a", "b"), 0.5);
        assert_eq!(times.quartiles("a", "b"), [0.5, 3.0]);
        assert_eq!(times.to_json()["b"]["rounds"], "2.0000 20.0000 100.0000");
    }
}
