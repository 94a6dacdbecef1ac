//! Arms: one memory limit, and what stands behind it.
//!
//! ```text
//!  uzswap:            uzswap run --memory LIMIT --stats FILE -- │ PROGRAM ARGS...
//!     or, in a group without swap:  uzswap run --stats FILE -- │ PROGRAM ARGS...
//!  kernel:  peer on ─> sh enters the memory cgroup, and becomes │ PROGRAM ARGS... ─> peer put back
//! ```
//!
//! An *arm* is one way to hold the limit: uzswap, or a *peer* (zswap, zram, plain swap of the
//! kernel) with one read-ahead. The *work* is what a bench does with the program once the limit
//! holds; while it goes on it may *look*: the memory that the peer's compressed pages take is read
//! then, and the largest figure kept. The limit counts different things: uzswap's compressed pool
//! is inside it, zram's and (with cgroup v1) zswap's come on top; a cgroup also counts the file
//! pages and page tables that its processes were the first to need. `--count-pool` lowers the
//! kernel's limit by the pool, measured in a *calibration*, a run of its own (round 0) that counts
//! for nothing else.

use std::process::Command;

use serde_json::Value;

mod arguments;
mod under;

#[cfg(test)]
pub use arguments::Peers;
pub use arguments::{ArmArguments, bytes, times};
pub use under::{entering, hear_worker, uzswap};
pub use uzswap_cli::place::own_path;

use super::peers::{self, Kind, Lock, Peer, Plan};
use super::process::Interrupt;
use under::{difference, in_group, own_run, under_uzswap, vmstat, with_fresh_statistics};
use uzswap_cli::Failure;
use uzswap_cli::console;
use uzswap_cli::size::human;

/// One way to hold the limit.
#[derive(Clone, Debug)]
pub struct Arm {
    pub name: String,
    pub backing: Backing,
    /// Whether the kernel's limit is lowered by the pool of compressed pages, which a calibration
    /// tells the size of.
    pub counts_pool: bool,
}

impl Arm {
    pub fn of_uzswap(limit_bytes: u64) -> Arm {
        let backing = Backing::Uzswap { limit_bytes };
        Arm { name: "uzswap".to_string(), backing, counts_pool: false }
    }

    /// The peer, if the arm is one of the kernel's.
    fn kernel_kind(&self) -> Option<Kind> {
        match self.backing {
            Backing::Kernel { kind, .. } => Some(kind),
            Backing::Uzswap { .. } | Backing::UzswapInGroup { .. } => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Backing {
    Uzswap {
        limit_bytes: u64,
    },
    /// uzswap in a memory cgroup without swap, with what `--memory` is there by default: not a page
    /// over the limit, the kernel's own memory for the processes included.
    UzswapInGroup {
        limit_bytes: u64,
    },
    Kernel {
        kind: Kind,
        page_cluster: u32,
        limit_bytes: u64,
    },
}

/// The outcome of the work: its figures, or why there are none. Only an interrupt is a failure.
pub type Outcome = Result<Result<Value, String>, Failure>;

/// Runs programs in arms.
pub struct Bench<'a> {
    arguments: &'a ArmArguments,
    /// The lock of the machine's swap: only with it are there arms of the kernel.
    lock: Option<Lock>,
    pub interrupt: Interrupt,
}

impl Bench<'_> {
    pub fn begin(arguments: &ArmArguments) -> Bench<'_> {
        let interrupt = Interrupt::install();
        let lock = match arguments.peers.0.is_empty() {
            true => None,
            false => match peers::privileged().and_then(|()| Lock::take()) {
                Ok(lock) => Some(lock),
                Err(why) => {
                    console::say(&format!("--peers: {why}; only uzswap is measured"));
                    None
                }
            },
        };
        Bench { arguments, lock, interrupt }
    }

    /// All arms, uzswap's first.
    pub fn arms(&self, limit_bytes: u64) -> Vec<Arm> {
        let mut arms = vec![Arm::of_uzswap(limit_bytes)];
        if self.lock.is_none() {
            return arms;
        }
        for kind in self.arguments.peers.0.iter().copied() {
            for page_cluster in self.arguments.page_cluster.iter().copied() {
                arms.push(Arm {
                    name: format!("{} pc{page_cluster}", kind.name()),
                    backing: Backing::Kernel { kind, page_cluster, limit_bytes },
                    counts_pool: self.arguments.count_pool,
                });
            }
        }
        arms
    }

    /// All arms, those of the kernel twice where their pool can be counted or not: with the pool on
    /// top of the limit, and inside it.
    pub fn arms_by_both_counts(&self, limit_bytes: u64) -> Vec<Arm> {
        let mut arms = Vec::new();
        for arm in self.arms(limit_bytes) {
            let Some(kind) = arm.kernel_kind() else {
                arms.push(arm);
                continue;
            };
            match kind == Kind::Swap || peers::pool_is_charged(kind) {
                true => arms.push(Arm { counts_pool: false, ..arm }),
                false => {
                    let name = format!("{} equal", arm.name);
                    arms.push(Arm { counts_pool: false, ..arm.clone() });
                    arms.push(Arm { name, counts_pool: true, ..arm });
                }
            }
        }
        arms
    }

    /// All runs of all arms, in turn: what `run` does for an arm and a round. Round 0 is a
    /// calibration, where one is asked for. `what` says to a waiting user what is measured.
    pub fn rounds(
        &self,
        what: &str,
        arms: &mut [Arm],
        need_bytes: u64,
        run: impl Fn(&Arm, u32) -> Result<Value, Failure>,
    ) -> Result<Vec<Value>, Failure> {
        let mut runs = Vec::new();
        self.count_pool(arms, need_bytes, &mut runs, |arm| run(arm, 0))?;
        let rounds = self.arguments.rounds;
        for round in 1..=rounds {
            for arm in &*arms {
                console::say(&format!("{what}round {round} of {rounds}: {}", arm.name));
                runs.push(run(arm, round)?);
            }
        }
        Ok(runs)
    }

    /// With `--count-pool`, lowers the limits so that limit and pool together are the memory that
    /// was asked for, by the ratio that a calibration has. `run` is one run of an arm.
    fn count_pool(
        &self,
        arms: &mut [Arm],
        need_bytes: u64,
        runs: &mut Vec<Value>,
        run: impl Fn(&Arm) -> Result<Value, Failure>,
    ) -> Result<(), Failure> {
        for arm in arms.iter_mut().filter(|arm| arm.counts_pool) {
            let before = arm.clone();
            let Backing::Kernel { kind, limit_bytes, .. } = &mut arm.backing else { continue };
            if *kind == Kind::Swap || peers::pool_is_charged(*kind) {
                continue;
            }
            console::say(&format!("calibration: {}", before.name));
            let run = run(&before)?;
            if let Some(pool_bytes) = run["pool_bytes"].as_u64() {
                *limit_bytes = limit_with_pool(need_bytes, *limit_bytes, pool_bytes);
            }
            runs.push(run);
        }
        Ok(())
    }

    /// Does the work in an arm, on a program that needs `need_bytes`. The work is given the
    /// beginning of a command line, to which it adds the program. The figures of the arm go into
    /// `run`, an object, with the work's own figures or `error`.
    pub fn run(
        &self,
        arm: &Arm,
        need_bytes: u64,
        run: &mut Value,
        work: impl FnOnce(Command, &mut dyn FnMut()) -> Outcome,
    ) -> Result<(), Failure> {
        run["arm"] = arm.name.clone().into();
        let result = match arm.backing {
            Backing::Uzswap { limit_bytes } => {
                let mut command = own_run()?;
                command.args(["--memory", &limit_bytes.to_string()]);
                under_uzswap(command, "activations", run, work)?
            }
            Backing::UzswapInGroup { limit_bytes } => in_group(limit_bytes, run, work)?,
            Backing::Kernel { kind, page_cluster, limit_bytes } => {
                let plan = Plan {
                    kind,
                    page_cluster,
                    limit_bytes,
                    // All of it may be out at a time; and a little more, for a limit is never met
                    // exactly.
                    swap_bytes: need_bytes + need_bytes / 8 + (16 << 20),
                    directory: &self.arguments.swap_directory,
                };
                self.under_kernel(plan, run, work)?
            }
        };
        match result {
            Ok(figures) => {
                if let (Value::Object(run), Value::Object(figures)) = (run, figures) {
                    run.extend(figures);
                }
            }
            Err(why) => {
                console::say(&format!("{}: {why}", arm.name));
                run["error"] = why.into();
            }
        }
        Ok(())
    }

    fn under_kernel(
        &self,
        plan: Plan,
        run: &mut Value,
        work: impl FnOnce(Command, &mut dyn FnMut()) -> Outcome,
    ) -> Outcome {
        let lock = self.lock.as_ref().expect("no arm of the kernel without it");
        let peer = match Peer::switch_on(lock, plan) {
            Ok(peer) => peer,
            Err(why) => return Ok(Err(why)),
        };
        let command = entering(peer.group());
        let before = vmstat();
        let mut pool_bytes = 0;
        let mut look = || pool_bytes = peer.pool_bytes().max(pool_bytes);
        let mut result = with_fresh_statistics(peer.group(), || work(command, &mut look))?;
        run["limit_bytes"] = plan.limit_bytes.into();
        run["pool_bytes"] = pool_bytes.into();
        run["vmstat"] = difference(&before, &vmstat());
        if let (Err(why), 1..) = (&mut result, peer.out_of_memory_kills()) {
            *why = format!("out of memory: {why}");
        }
        match peer.put_back() {
            Ok(()) => Ok(result),
            Err(failures) => Err(Failure::failed(format!("not put back: {failures}"))),
        }
    }
}

/// The limit at which limit plus pool are `memory`, when a run under `memory` had a pool of
/// `pool_bytes`.
fn limit_with_pool(size: u64, memory: u64, pool_bytes: u64) -> u64 {
    // Pages that are out are compressed by one ratio: limit + share * (size - limit) = memory.
    let share = pool_bytes as f64 / size.saturating_sub(memory).max(1) as f64;
    let limit = (memory as f64 - share * size as f64) / (1.0 - share);
    let least = memory / 8;
    if limit.is_finite() { (limit as u64).clamp(least, memory) } else { least }
}

/// The runs of an arm that count: no calibrations, no failures.
pub fn counted<'a>(runs: &'a [Value], arm: &Arm) -> Vec<&'a Value> {
    runs.iter()
        .filter(|run| run["arm"] == *arm.name && run["round"] != 0 && run["error"].is_null())
        .collect()
}

/// The memory that an arm held, in words, by its summary; `memory` is the limit that was asked for.
pub fn held(summary: &Value, memory: u64) -> String {
    let size = |key: &str| summary[key].as_f64().map(|bytes| human(bytes as u64));
    match (size("limit_bytes"), size("pool_bytes")) {
        (Some(limit), Some(pool)) => format!("{limit} and a pool of {pool}"),
        _ => format!("{} with its pool", human(memory)),
    }
}

/// An error if a run under uzswap failed, once all is written down.
pub fn end(runs: &[Value]) -> Result<u8, Failure> {
    match runs.iter().find(|run| run["arm"] == "uzswap" && !run["error"].is_null()) {
        Some(run) => {
            Err(Failure::failed(format!("uzswap: {}", run["error"].as_str().unwrap_or_default())))
        }
        None => Ok(0),
    }
}

/// For tests: the options of a benchmark, as a command line that has these arguments gives them.
#[cfg(test)]
pub fn parse_line<A: clap::Args>(arguments: &[&str]) -> Result<A, String> {
    #[derive(clap::Parser)]
    struct Line<A: clap::Args> {
        #[command(flatten)]
        options: A,
    }
    let line = <Line<A> as clap::Parser>::try_parse_from(["bench"].iter().chain(arguments));
    line.map(|line| line.options).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn options() {
        let defaults = parse_line::<ArmArguments>(&[]).unwrap();
        assert_eq!(defaults.peers, Peers(vec![]));
        assert_eq!((defaults.rounds, defaults.count_pool), (3, false));
        assert_eq!(defaults.page_cluster, [0, 3]);
        let given = parse_line::<ArmArguments>(&[
            "--peers=zram,swap",
            "--rounds=7",
            "--page-cluster=2",
            "--count-pool",
        ])
        .unwrap();
        assert_eq!(given.peers, Peers(vec![Kind::Zram, Kind::Swap]));
        assert_eq!((given.rounds, given.count_pool), (7, true));
        assert_eq!(given.page_cluster, [2]);
        for (wrong, word) in [
            ("--peers=zfs", "none of zswap, zram, swap"),
            ("--peers=", "none of zswap, zram, swap"),
            ("--peers=zram,zram", "twice"),
            ("--rounds=0", "1..=1000"),
            ("--page-cluster=9", "0..=6"),
        ] {
            let error = parse_line::<ArmArguments>(&[wrong])
                .err()
                .unwrap_or_else(|| panic!("{wrong} was taken"));
            assert!(error.contains(word), "{wrong}: {error}");
        }
    }

    #[test]
    fn limit_and_pool_together_are_the_memory() {
        const MIB: u64 = 1 << 20;
        // 128 of 256 MiB out take 32 MiB: a quarter. Then L + (256 - L) / 4 = 128.
        let limit = limit_with_pool(256 * MIB, 128 * MIB, 32 * MIB);
        assert_eq!(limit / MIB, 85);
        assert_eq!((limit + (256 * MIB - limit) / 4) / MIB, 127);
        // Nothing compressed: no limit does it.
        assert_eq!(limit_with_pool(256 * MIB, 128 * MIB, 128 * MIB), 16 * MIB);
        assert_eq!(limit_with_pool(256 * MIB, 128 * MIB, 0), 128 * MIB);
    }

    #[test]
    fn without_peers_there_is_one_arm_and_nothing_to_calibrate() {
        let arguments = parse_line::<ArmArguments>(&["--count-pool"]).unwrap();
        let bench = Bench::begin(&arguments);
        let mut arms = bench.arms(64 << 20);
        assert_eq!(arms.len(), 1);
        let mut runs = Vec::new();
        bench
            .count_pool(&mut arms, 1 << 30, &mut runs, |arm| panic!("a run of {}", arm.name))
            .unwrap();
        assert!(runs.is_empty());
    }

    #[test]
    fn failures_and_calibrations_do_not_count() {
        let arm = Arm::of_uzswap(0);
        let mut runs = vec![
            json!({"arm": "uzswap", "round": 0}),
            json!({"arm": "uzswap", "round": 1}),
            json!({"arm": "zram pc0", "round": 1, "error": "killed"}),
        ];
        assert_eq!(counted(&runs, &arm).len(), 1);
        end(&runs).unwrap();
        runs.push(json!({"arm": "uzswap", "round": 2, "error": "said nothing"}));
        assert_eq!(counted(&runs, &arm).len(), 1);
        assert_eq!(end(&runs).unwrap_err().message, "uzswap: said nothing");
    }
}
