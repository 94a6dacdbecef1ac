//! `uzswap simulate`: a recorded trace under other policies of replacement, beside the pager's own
//! and the optimum.
//!
//! ```text
//!  FILE of `run --trace` ──> sequence: touches and deaths of numbered pages ──> policies, each at several sizes ──> table, JSON, plot
//!                                                                               └─ own: the parts that the pager goes by
//! ```
//!
//! *Not* simulated is time: pages that come back are counted. And a trace has only the touches that
//! faulted: it is filtered by the memory that it was recorded with. Puzak's theorem says that
//! nothing is lost by that for sizes larger than the filter; for smaller ones the trace does not
//! tell, and so no figures are given.

mod list;
mod optimum;
mod own;
mod policies;
mod sequence;
mod table;

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

pub use self::policies::Kind as Policy;
use self::policies::Replay;
pub use self::sequence::Sequence;
use crate::Failure;
use crate::progress::Progress;
use crate::size::{self, PAGE_BYTES, Size, grouped, human};
use crate::trace::End;
use crate::{console, plot, program::reason};

/// Arguments of `uzswap simulate`.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "A trace has only the touches that faulted: what was in memory while it was \
                  recorded left no record. Record with a small --memory (a tenth of what the \
                  program needs) for a fine trace: uzswap run --memory 32M --trace FILE -- \
                  PROGRAM. Sizes below what was in memory then are not told by the trace and have \
                  no figures; of those marked with ~ only a part is told. Sizes are memory for \
                  pages as they are, without compressed ones. A load is a page that comes back; \
                  first touches are no loads."
)]
pub struct SimulateArguments {
    /// File that 'uzswap run --trace' has recorded
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// Sizes of the memory, or parts of what the program needed at most
    #[arg(
        long, value_name = "SIZE|PERCENT,...", default_value = "75%,50%,35%,25%",
        value_delimiter = ',', value_parser = size::parse
    )]
    memory: Vec<Size>,
    /// Policies to compare, beside the optimum: uzswap (the pager's own), s3-fifo, clock, lru,
    /// s3-blind, fifo [default: all]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = Policy::named)]
    policy: Vec<Policy>,
    /// Plot the loads
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Write the same as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// How much a trace tells of a size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told {
    Wholly,
    /// The recording had more in memory for a part of the time: touches that hit there are not in
    /// the trace.
    Partly,
    Not,
}

/// A size, and the loads of every policy; the first is the optimum.
#[derive(Debug)]
pub struct Column {
    pub pages: u64,
    pub told: Told,
    pub loads: Vec<u64>,
}

/// A trace under all policies.
#[derive(Debug)]
pub struct Simulation {
    pub policies: Vec<Policy>,
    pub columns: Vec<Column>,
}

pub fn run(arguments: SimulateArguments) -> Result<u8, Failure> {
    // Before the work: a name that is wrong is heard of at once.
    let create = |option: &str, path: &Option<PathBuf>| {
        let made = path.as_ref().map(|path| match File::create(path) {
            Ok(file) => Ok((path.clone(), file)),
            Err(e) => Err(Failure::usage(format!("{option}: {}: {}", path.display(), reason(&e)))),
        });
        made.transpose()
    };
    let sequence = read(&arguments.trace)?;
    let sizes = sizes(&arguments.memory, &sequence).map_err(Failure::usage)?;
    let (json, plot) = (create("--json", &arguments.json)?, create("--plot", &arguments.plot)?);
    let policies =
        if arguments.policy.is_empty() { Policy::ALL.to_vec() } else { arguments.policy };
    let simulation = Simulation::of(&sequence, &policies, &sizes);
    console::print(&simulation.text(&sequence))?;
    let write = |option: &str, made: Option<(PathBuf, File)>, text: String| match made {
        None => Ok(()),
        Some((path, mut file)) => std::io::Write::write_all(&mut file, text.as_bytes())
            .map_err(|e| Failure::failed(format!("{option}: {}: {}", path.display(), reason(&e)))),
    };
    write("--json", json, format!("{:#}\n", simulation.to_json(&sequence)))?;
    let title = format!("Pages brought back, of {} needed", human(bytes_of(sequence.peak_pages)));
    write(
        "--plot",
        plot,
        plot::bars(&title, "loads: less is better", &simulation.groups(&sequence)),
    )?;
    Ok(0)
}

/// Reads a trace, and says if records are missing. A trace in which no page came back is refused.
pub fn read(path: &Path) -> Result<Sequence, Failure> {
    let shown = path.display();
    let file = File::open(path).map_err(|e| Failure::usage(format!("{shown}: {}", reason(&e))))?;
    let sequence = Sequence::read(BufReader::new(file))
        .map_err(|why| Failure::failed(format!("{shown}: {why}")))?;
    match sequence.end {
        End::Whole { lost: 0 } => {}
        End::Whole { lost } => {
            console::say(&format!(
                "{shown}: {} records were lost: the figures are of the others",
                grouped(lost)
            ));
        }
        End::Cut => {
            console::say(&format!(
                "{shown}: the trace was cut short: the figures are of what is there"
            ));
        }
    }
    if sequence.loads + sequence.limbo_hits == 0 {
        return Err(Failure::failed(format!(
            "{shown}: nothing was brought back while it was recorded: record it again with less \
             --memory"
        )));
    }
    Ok(sequence)
}

/// Pages of each size. The pager keeps a MiB for a process however small the limit is.
fn sizes(given: &[Size], sequence: &Sequence) -> Result<Vec<u64>, String> {
    const LEAST_PAGES: u64 = 256;
    let need = bytes_of(sequence.peak_pages);
    let of = |size: &Size| match size.of(need) / PAGE_BYTES {
        pages if pages < LEAST_PAGES => Err(format!(
            "--memory: {} of the {} that the program needed: 1 MiB is the least that can be \
             simulated",
            human(size.of(need)),
            human(need)
        )),
        pages => u32::try_from(pages)
            .map(u64::from)
            .map_err(|_| "--memory: more than 16 TiB".to_string()),
    };
    given.iter().map(of).collect()
}

fn bytes_of(pages: u64) -> u64 {
    pages * PAGE_BYTES
}

impl Simulation {
    /// Replays the trace under the optimum and all `policies`, at each size that it tells of. Shows
    /// how far it is.
    pub fn of(sequence: &Sequence, policies: &[Policy], sizes: &[u64]) -> Simulation {
        let mut all = vec![Policy::Optimum];
        all.extend(policies.iter().filter(|p| **p != Policy::Optimum));
        let (replay, mut progress) = (Replay::new(sequence), Progress::new());
        let steps = sizes.len() * all.len();
        let mut step = 0;
        let columns = sizes.iter().map(|&pages| {
            let told = Told::of(pages, sequence);
            let loads = all.iter().map(|policy| {
                step += 1;
                let what = format!(
                    "simulating: {step} of {steps}, {} in {}",
                    policy.name(),
                    human(bytes_of(pages))
                );
                if told == Told::Not {
                    return 0;
                }
                replay.loads(*policy, pages as usize, |at| {
                    progress.show(&format!("{what}: {} %", at * 100 / sequence.len().max(1)));
                })
            });
            Column { pages, told, loads: loads.collect() }
        });
        let columns = columns.collect();
        Simulation { policies: all, columns }
    }

    /// The loads of a policy by those of the optimum, at each size; nothing where the trace does
    /// not tell, or nothing is loaded.
    pub fn by_optimum(&self, policy: usize) -> impl Iterator<Item = Option<f64>> {
        self.columns.iter().map(move |column| {
            let (loads, least) = (column.loads[policy], column.loads[0]);
            (column.told != Told::Not && least > 0).then(|| loads as f64 / least as f64)
        })
    }

    pub fn to_json(&self, sequence: &Sequence) -> Value {
        let [least, most] =
            sequence.recorded_pages.map_or([None; 2], |pages| pages.map(|p| Some(bytes_of(p))));
        let of = |(at, column): (usize, &Column)| {
            let policies = self.policies.iter().enumerate().map(|(i, policy)| {
                let by_optimum = self.by_optimum(i).nth(at).flatten();
                let loads = (column.told != Told::Not).then_some(column.loads[i]);
                (policy.name().to_string(), json!({"loads": loads, "by_optimum": by_optimum}))
            });
            json!({
                "memory_bytes": bytes_of(column.pages),
                "told": column.told.name(),
                "policies": policies.collect::<serde_json::Map<_, _>>(),
            })
        };
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "needed_bytes": bytes_of(sequence.peak_pages),
            "processes": sequence.processes,
            "seconds": sequence.seconds,
            "faults": sequence.faults,
            "held_records": sequence.held_records,
            "lost_records": match sequence.end {
                End::Whole { lost } => json!(lost),
                End::Cut => Value::Null,
            },
            "touches": sequence.touches,
            "first_touches": sequence.first_touches,
            "recorded": {
                "limit_bytes": bytes_of(sequence.header.limit_pages),
                "least_bytes": least,
                "most_bytes": most,
                "loads": sequence.loads,
                "limbo_hits": sequence.limbo_hits,
            },
            "sizes": self.columns.iter().enumerate().map(of).collect::<Vec<_>>(),
        })
    }
}

impl Told {
    fn of(pages: u64, sequence: &Sequence) -> Told {
        match sequence.recorded_pages {
            Some([least, _]) if pages < least => Told::Not,
            Some([_, most]) if pages >= most => Told::Wholly,
            // Between the two, or without counts, the trace may tell a part only.
            _ => Told::Partly,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Told::Wholly => "wholly",
            Told::Partly => "partly",
            Told::Not => "not",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A loop over 1000 pages, forty times, recorded with 300 to 600 of them in memory.
    pub fn looping() -> Sequence {
        let touches: Vec<u64> = (0..40_000).map(|i| i % 1000).collect();
        let mut sequence = Sequence::of_touches(&touches);
        sequence.recorded_pages = Some([300, 600]);
        sequence
    }

    #[test]
    fn sizes_are_parts_of_the_need() {
        let sequence = looping();
        assert_eq!(
            sizes(&[Size::MilliPercent(50_000), Size::Bytes(4 << 20)], &sequence),
            Ok(vec![500, 1024])
        );
        let why = sizes(&[Size::MilliPercent(10_000)], &sequence).unwrap_err();
        assert!(why.contains("400 KiB of the 3.9 MiB"), "{why}");
    }

    #[test]
    fn what_is_not_told_has_no_figures() {
        let sequence = looping();
        let simulation =
            Simulation::of(&sequence, &[Policy::Fifo, Policy::Optimum], &[750, 500, 256]);
        assert_eq!(simulation.policies, [Policy::Optimum, Policy::Fifo]);
        let told: Vec<Told> = simulation.columns.iter().map(|c| c.told).collect();
        assert_eq!(told, [Told::Wholly, Told::Partly, Told::Not]);
        // Every touch of a loop misses in a queue that is shorter.
        assert_eq!(simulation.columns[0].loads[1], 39_000);
        let ratios: Vec<_> = simulation.by_optimum(1).collect();
        assert!(
            ratios[0] > ratios[1] && ratios[1] > Some(1.5) && ratios[2].is_none(),
            "{ratios:?}"
        );
        let json = simulation.to_json(&sequence);
        assert_eq!(json["sizes"][0]["policies"]["fifo"]["loads"], 39_000);
        assert_eq!(json["sizes"][2]["policies"]["fifo"]["loads"], Value::Null);
        assert_eq!(
            (&json["sizes"][1]["told"], &json["recorded"]["least_bytes"]),
            (&json!("partly"), &json!(1228800))
        );
    }
}
