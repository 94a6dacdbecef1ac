//! The arguments of benches with arms.

use std::path::PathBuf;

use crate::peers::Kind;
use crate::record::Out;
use uzswap_cli::pages::PAGE_BYTES;
use uzswap_cli::size::{self, Size};

/// The arguments of every bench with arms.
#[derive(clap::Args, Debug)]
pub struct ArmArguments {
    /// Compare with swap of the kernel (as root): a list of zswap, zram and swap, or none
    #[arg(long, value_name = "LIST", default_value = "none", value_parser = peer_list)]
    pub peers: Peers,
    /// Read-ahead of the kernel's swap, 2^N pages; one arm for each
    #[arg(
        long, value_name = "N,...", default_value = "0,3", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(0..=6)
    )]
    pub page_cluster: Vec<u32>,
    /// Runs of each arm, in turn; results are medians
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = times())]
    pub rounds: u32,
    /// Lower the kernel's limit by the compressed pool, so that all arms hold the same memory
    #[arg(long)]
    pub count_pool: bool,
    /// Directory for the kernel's swap file
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub(super) swap_directory: PathBuf,
    #[command(flatten)]
    pub out: Out,
}

impl ArmArguments {
    /// The arguments for uzswap's arm alone.
    pub fn of_uzswap(rounds: u32, out: Out) -> ArmArguments {
        ArmArguments {
            peers: Peers(vec![]),
            page_cluster: vec![],
            rounds,
            count_pool: false,
            swap_directory: PathBuf::new(),
            out,
        }
    }
}

/// A parsed `--peers` (a type of its own: clap takes a bare `Vec` for a repeated option).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peers(pub Vec<Kind>);

fn peer_list(text: &str) -> Result<Peers, String> {
    if text == "none" {
        return Ok(Peers(vec![]));
    }
    let mut peers = Vec::new();
    for name in text.split(',') {
        match Kind::ALL.into_iter().find(|kind| kind.name() == name) {
            Some(kind) if !peers.contains(&kind) => peers.push(kind),
            Some(_) => return Err(format!("{name} is there twice")),
            None => return Err(format!("'{name}' is none of zswap, zram, swap")),
        }
    }
    Ok(Peers(peers))
}

/// How often something is done: once at least.
pub fn times() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=1000)
}

/// A size in bytes, of a page or more.
pub fn bytes(text: &str) -> Result<u64, String> {
    match size::parse(text)? {
        Size::Bytes(bytes) if bytes >= PAGE_BYTES as u64 => Ok(bytes),
        Size::Bytes(_) => Err("is less than a page".to_string()),
        Size::MilliPercent(_) => Err("must be a size, not a percentage".to_string()),
    }
}
