//! `uzswap bench`: measurements of uzswap itself, beside its peers in the kernel.
//!
//! ```text
//!  faults ───> arms: uzswap │ zswap │ zram │ swap     (peers: switched on, and put back by guards)
//!                 └──> worker, an ordinary process     (pages, histogram)
//!  overhead ─> pairs: plain │ under `uzswap run`
//!       both ─> record: machine, commit, raw runs as JSON;  plot: SVG
//! ```
//!
//! A *run* is one process that measures and says what it saw; a *round* is one run of every arm, in turn; a result is
//! the median over rounds. Arms are interleaved because a machine is never quiet for long: what
//! disturbs, disturbs all of them, and their ratios stay.

mod faults;
mod histogram;
mod overhead;
mod pages;
mod peers;
mod plot;
mod process;
mod record;
mod worker;

use crate::Failure;

/// What can be measured.
#[derive(clap::Subcommand, Debug)]
pub enum BenchCommand {
    /// What a page costs that comes back, beside zswap, zram and swap of the kernel
    Faults(faults::FaultsArguments),
    /// What uzswap costs a program that fits its limit
    Overhead(overhead::OverheadArguments),
    /// The process that 'faults' measures
    #[command(hide = true)]
    Worker(worker::WorkerArguments),
}

/// Runs one measurement.
pub fn run(command: BenchCommand) -> Result<u8, Failure> {
    match command {
        BenchCommand::Faults(arguments) => faults::run(arguments),
        BenchCommand::Overhead(arguments) => overhead::run(arguments),
        BenchCommand::Worker(arguments) => worker::run(arguments),
    }
}
