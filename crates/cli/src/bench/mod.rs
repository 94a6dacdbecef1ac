//! `uzswap bench`: measurements of uzswap itself.

use crate::Failure;

/// What can be measured.
#[derive(clap::Subcommand, Debug)]
pub enum BenchCommand {}

/// Runs one measurement.
pub fn run(command: BenchCommand) -> Result<u8, Failure> {
    match command {}
}
