//! `uzswap doctor`.
use crate::Failure;
#[derive(clap::Args, Debug)]
pub struct DoctorArguments {}
pub fn run(_a: DoctorArguments) -> Result<u8, Failure> { Ok(0) }
