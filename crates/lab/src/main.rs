//! `uzswap-bench`, called by `uzswap bench`: measurements of uzswap, beside its peers in the
//! kernel.
//!
//! ```text
//!  faults ─────┐                                         ┌──> worker, an ordinary process   (pages, histogram)
//!  swap-w-seq ─┼─> arms: uzswap │ zswap │ zram │ swap ───┼──> writers, several processes
//!  programs ───┤   (peers: on, and put back by guards)   ├──> real programs, and a client   (scratch)
//!  build ──────┘                                         └──> make -jN of a source tree     (source)
//!  policies ─> traces of the real programs under `uzswap simulate`
//!  estimate ─> what `uzswap estimate` says of the real programs │ what they do under `uzswap run`
//!  disk ─────> fio's phases: uzswap disk │ nbdkit │ zram
//!  overhead ─> pairs: plain │ under `uzswap run`
//!  contention ─> a library that counts how long its locks are held  (projection)
//!  corpus ───> pages of real heaps ──> codecs, cache, same-filled, streams, pools, store   (the engine alone)
//!        all ─> record: machine, commit, raw runs as JSON;  plot: SVG
//! ```
//!
//! A *run* is one process that measures and says what it saw; a *round* is one run of every arm, in
//! turn; a result is the median over rounds. Arms are interleaved because a machine is never quiet
//! for long: what disturbs, disturbs all of them, and their ratios stay.

mod arms;
mod build;
mod c_library;
mod cache;
mod codecs;
mod contention;
mod corpus;
mod disk;
mod engine;
mod estimate;
mod faults;
mod overhead;
mod peers;
mod plot;
mod policies;
mod pools;
mod process;
mod programs;
mod record;
mod results;
mod same_filled;
mod scratch;
mod store;
mod streams;
mod swap_w_seq;
#[cfg(test)]
mod tables;
mod threads;
mod touchers;
mod variety;
mod writers;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use uzswap_cli::Failure;
use uzswap_cli::estimate::worker;

/// Measure uzswap on this machine.
#[derive(Parser, Debug)]
#[command(
    name = "uzswap-bench",
    bin_name = "uzswap bench",
    version,
    disable_help_subcommand = true
)]
struct Arguments {
    #[command(subcommand)]
    command: BenchCommand,
}

fn main() -> ExitCode {
    let code = match Arguments::try_parse() {
        Ok(arguments) => run(arguments.command).map_or_else(uzswap_cli::fail, i32::from),
        Err(e) if !e.use_stderr() => uzswap_cli::print(&e.to_string()),
        Err(e) if e.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            uzswap_cli::fail(Failure::usage(
                "what to measure? (see 'uzswap bench --help')".to_string(),
            ))
        }
        Err(e) => uzswap_cli::fail(Failure::usage(uzswap_cli::one_line(&e, "uzswap bench --help"))),
    };
    ExitCode::from(code as u8)
}

/// The benchmarks.
#[derive(clap::Subcommand, Debug)]
enum BenchCommand {
    /// The cost of a page that comes back, beside zswap, zram and swap of the kernel
    Faults(faults::FaultsArguments),
    /// Several processes that write more than there is memory for, beside zswap, zram and swap of
    /// the kernel
    SwapWSeq(swap_w_seq::SwapWSeqArguments),
    /// Real programs at parts of the memory that they need, beside zswap, zram and swap of the
    /// kernel
    Programs(programs::ProgramsArguments),
    /// Many programs of many kinds, each once by each mechanism at half of what it needs: do they
    /// work?
    Variety(variety::VarietyArguments),
    /// The estimates of real programs, beside what then happens
    Estimate(estimate::EstimateArguments),
    /// How many pages other policies of replacement would bring back, by traces of real programs
    Policies(policies::PoliciesArguments),
    /// The build of a large source tree by N jobs at a time, beside zswap, zram and swap of the
    /// kernel
    Build(build::BuildArguments),
    /// How long locks and claims are held and waited for, by a library that is built to count that
    Contention(contention::ContentionArguments),
    /// A compressed disk by fio, beside nbdkit's and the kernel's zram
    Disk(disk::DiskArguments),
    /// The cost of uzswap to a program that fits its limit
    Overhead(overhead::OverheadArguments),
    /// Make page corpora from the heaps of CPython, g++, node and redis, for the benches below
    Corpus(corpus::CorpusArguments),
    /// Speed and density of every compressor on pages
    Codecs(engine::EngineArguments),
    /// The cost of the cache over the bare compressor, and of its faces for Rust and C over the
    /// cache
    Cache(engine::EngineArguments),
    /// The cost of pages of one repeated word, and of looking for them to the others
    SameFilled(engine::EngineArguments),
    /// Compressing from one, two and many threads
    Streams(engine::EngineArguments),
    /// Density and speed of the pools, and what they give back
    Pools(pools::PoolsArguments),
    /// Writing back and reading, beside fio
    Store(store::StoreArguments),
    /// Keep the results of raw runs: a line for each arm, from which the documents' tables are made
    Keep(results::KeepArguments),
    /// The process that 'faults' measures
    #[command(hide = true)]
    Worker(worker::WorkerArguments),
    /// The process that 'faults --threads' measures
    #[command(hide = true)]
    Touchers(touchers::ToucherArguments),
    /// The processes that 'swap-w-seq' measures
    #[command(hide = true)]
    Writers(writers::WriterArguments),
    /// One of them
    #[command(hide = true)]
    Writer(writers::WriterArguments),
}

/// Runs one measurement.
fn run(command: BenchCommand) -> Result<u8, Failure> {
    match command {
        BenchCommand::Faults(arguments) => faults::run(arguments),
        BenchCommand::SwapWSeq(arguments) => swap_w_seq::run(arguments),
        BenchCommand::Programs(arguments) => programs::run(arguments),
        BenchCommand::Variety(arguments) => variety::run(arguments),
        BenchCommand::Estimate(arguments) => estimate::run(arguments),
        BenchCommand::Policies(arguments) => policies::run(arguments),
        BenchCommand::Build(arguments) => build::run(arguments),
        BenchCommand::Contention(arguments) => contention::run(arguments),
        BenchCommand::Disk(arguments) => disk::run(arguments),
        BenchCommand::Overhead(arguments) => overhead::run(arguments),
        BenchCommand::Corpus(arguments) => corpus::run(arguments),
        BenchCommand::Codecs(arguments) => codecs::run(arguments),
        BenchCommand::Cache(arguments) => cache::run(arguments),
        BenchCommand::SameFilled(arguments) => same_filled::run(arguments),
        BenchCommand::Streams(arguments) => streams::run(arguments),
        BenchCommand::Pools(arguments) => pools::run(arguments),
        BenchCommand::Store(arguments) => store::run(arguments),
        BenchCommand::Keep(arguments) => results::run(arguments),
        BenchCommand::Worker(arguments) => worker::run(arguments),
        BenchCommand::Touchers(arguments) => touchers::run(arguments),
        BenchCommand::Writers(arguments) => writers::run_all(arguments),
        BenchCommand::Writer(arguments) => writers::run_one(arguments),
    }
}
