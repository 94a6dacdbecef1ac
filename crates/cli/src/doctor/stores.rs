//! Findings about the store: a directory is written to, a device, an export or a server of values
//! is measured.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{Check, bad, good, note};
use crate::options::{self, RawOptions};
use crate::place;
use crate::remote::valkey::{self, Values};
use crate::remote::{self, Exports, Kept, address, device};
use crate::size::human;

/// How often each measurement is made.
const ROUNDS: usize = 100;
/// The time of a load beside the read: the fault, the seal and the codec.
const LOAD_US: u64 = 5;
/// Pages of one cluster, at a ratio of two.
const PAGES_IN_CLUSTER: u64 = 32;

const REMEDY: &str = "see docs/remote.md";

pub(super) fn stores(
    named: Option<OsString>,
    env: &dyn Fn(&str) -> Option<OsString>,
) -> Vec<Check> {
    let given = RawOptions::default().text(&options::STORE, env);
    let named = named.map(|value| options::Given { value, origin: "--store".to_string() });
    let given = named.or(given);
    match given.as_ref().and_then(|g| g.value.to_str()) {
        Some(text) if valkey::address::is_one(text) => values(text, env),
        Some(text) if address::is_one(text) => servers(text),
        _ => {
            match given.as_ref().map(|g| Path::new(&g.value)).filter(|path| device::is_one(path)) {
                Some(path) => vec![measured(Exports::device(path), false)],
                None => vec![store(given, env)],
            }
        }
    }
}

fn store(given: Option<options::Given<OsString>>, env: &dyn Fn(&str) -> Option<OsString>) -> Check {
    const NAME: &str = "store";
    let directory = match &given {
        Some(given) if given.value == "none" => {
            return good(NAME, format!("none, as {} says", given.origin));
        }
        Some(given) => PathBuf::from(&given.value),
        None => match place::default_store(env) {
            Ok(directory) => directory,
            Err(why) => {
                return note(
                    NAME,
                    format!("no directory on a disk ({why}): pages stay compressed in memory"),
                    "name a directory with --store or UZSWAP_STORE",
                );
            }
        },
    };
    let shown = directory.display();
    match place::try_store(&directory) {
        Ok(file_system) => {
            let found = format!(
                "{shown} on {}, {} free, O_DIRECT {}",
                file_system.name(),
                human(file_system.free_bytes),
                if place::takes_direct_io(&directory) {
                    "works"
                } else {
                    "is refused: writes pass through the page cache"
                }
            );
            if file_system.is_memory() {
                note(NAME, found, "this is memory: name a directory on a disk")
            } else if file_system.free_bytes < 1 << 30 {
                note(NAME, found, "free space, or name another directory with --store")
            } else {
                good(NAME, found)
            }
        }
        Err(e) => bad(
            NAME,
            format!(
                "{}: {shown}: {}",
                given.as_ref().map_or(options::STORE.variable, |g| g.origin.as_str()),
                place::store_fault(&e)
            ),
            "name a writable directory on a disk",
        ),
    }
}

/// One line for each server.
fn servers(text: &str) -> Vec<Check> {
    const NAME: &str = "store";
    let addresses = match remote::addresses(text) {
        Ok(addresses) => addresses,
        Err(why) => return vec![bad(NAME, why, REMEDY)],
    };
    let open = |one: &address::Address| Exports::open(std::slice::from_ref(one), 1);
    addresses.iter().map(|one| measured(open(one), one.is_local())).collect()
}

/// Valkey and Redis: one line for all of it, and one for each node.
fn values(text: &str, env: &dyn Fn(&str) -> Option<OsString>) -> Vec<Check> {
    const NAME: &str = "store";
    let password = |name: &str| env(name).map(|value| value.as_bytes().to_vec());
    let opened = valkey::address::Address::parse(text, password).and_then(|address| {
        let mut values = Values::open(&address)?;
        values.claim()?;
        let times = times(values.measure(ROUNDS)?);
        Ok((address.is_local(), values, times))
    });
    let (is_local, values, times) = match opened {
        Ok(opened) => opened,
        Err(why) => return vec![bad(NAME, why, REMEDY)],
    };
    let kind = match (values.is_cluster(), values.has_replicas()) {
        (false, _) => "one server".to_string(),
        (true, true) => format!("a Cluster of {} primaries with replicas", values.primaries()),
        (true, false) => format!("a Cluster of {} primaries", values.primaries()),
    };
    let found = format!("{}: {kind}; {times}", values.shown());
    let mut checks = vec![if values.is_cluster() && !values.has_replicas() {
        note(NAME, found, "give each primary a replica: with it gone its pages are lost")
    } else if is_local {
        note(NAME, found, "it is on this machine, and takes of its memory")
    } else {
        good(NAME, found)
    }];
    checks.extend(values.nodes.iter().map(|node| {
        let found = node.describe();
        match (&node.policy, node.evicts()) {
            (None, _) => note(NAME, found, "see to it that it says noeviction, or pages are lost"),
            (_, Some(_)) => bad(NAME, found, valkey::node::POLICY_REMEDY),
            _ => good(NAME, found),
        }
    }));
    checks
}

/// One export, or one device, tried.
fn measured(exports: Result<Exports, String>, takes_memory: bool) -> Check {
    const NAME: &str = "store";
    let try_it = || -> Result<Check, String> {
        let mut exports = exports?;
        exports.claim()?;
        let claim = &mut exports.claims[0];
        let times = times(claim.measure(ROUNDS)?);
        let trims = claim.traits().can_trim;
        let found = format!(
            "{}: {}, {} extents of {}; {times}",
            claim.shown,
            human(claim.traits().bytes),
            claim.server.extents,
            human(exports.geometry.extent_bytes),
        );
        Ok(if !trims {
            note(NAME, found, "it does not know TRIM, and keeps what is not needed any more")
        } else if takes_memory {
            note(NAME, found, "it is on this machine, and takes of its memory")
        } else {
            good(NAME, found)
        })
    };
    try_it().unwrap_or_else(|why| bad(NAME, why, REMEDY))
}

/// The measured times of reads of 4 and 64 KiB and of writes of 64 KiB, in words, with the times of
/// loads that follow from them.
fn times([block, cluster, write]: [u64; 3]) -> String {
    let megabytes = |ns: u64| (64 << 10) * 1000 / ns.max(1);
    format!(
        "4 KiB in {} us, 64 KiB in {} us ({} MB/s), written in {} us ({} MB/s); so a load takes \
         about {} us, and one of many in a row {} us",
        block / 1000,
        cluster / 1000,
        megabytes(cluster),
        write / 1000,
        megabytes(write),
        block / 1000 + LOAD_US,
        cluster / 1000 / PAGES_IN_CLUSTER + LOAD_US,
    )
}
