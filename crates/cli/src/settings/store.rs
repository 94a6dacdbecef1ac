//! The store of a run: a directory, a device, exports of servers, or values on Valkey or Redis. It
//! is tried before the program starts.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{Env, absolute};
use crate::Failure;
use crate::options::{self, Given, RawOptions};
use crate::place;
use crate::remote::valkey::{self, Values};
use crate::remote::{self, Exports, Kept, address, device};

/// Where pages go that find no room in memory.
#[derive(Debug)]
pub enum Backing {
    Directory(PathBuf),
    /// On servers, or on a block device. Taken out when the program starts; how that is called
    /// stays.
    Servers(Option<Box<dyn Kept>>, String),
}

impl Backing {
    /// For messages and documents.
    pub fn shown(&self) -> String {
        match self {
            Backing::Directory(path) => path.to_string_lossy().into_owned(),
            Backing::Servers(_, shown) => shown.clone(),
        }
    }

    pub(super) fn directory(&self) -> Option<&Path> {
        match self {
            Backing::Directory(path) => Some(path),
            Backing::Servers(..) => None,
        }
    }

    fn servers(kept: impl Kept + 'static) -> Backing {
        let shown = kept.shown();
        Backing::Servers(Some(Box::new(kept)), shown)
    }
}

fn copies(given: &Given<String>) -> Result<usize, String> {
    match given.value.trim() {
        "1" => Ok(1),
        "2" => Ok(2),
        other => Err(format!("{}: '{other}' is neither 1 nor 2", given.origin)),
    }
}

pub(super) fn store(
    raw: &RawOptions,
    env: Env,
    wanted: Option<Given<String>>,
    remarks: &mut Vec<String>,
) -> Result<Option<Backing>, Failure> {
    let wrong = Failure::usage;
    let copies = wanted.as_ref().map_or(Ok(1), copies).map_err(wrong)?;
    let given = raw.text(&options::STORE, env);
    if let Some(given) = &given
        && let Some(text) = given.value.to_str().filter(|text| text.contains("://"))
    {
        return on_servers(text, copies, env, remarks)
            .map(Some)
            .map_err(|why| wrong(format!("{}: {why}", given.origin)));
    }
    if let Some(wanted) = wanted.filter(|_| copies == 2) {
        let origin = wanted.origin;
        return Err(wrong(format!(
            "{origin}: two copies are for servers: --store nbd://A/X,nbd://B/Y"
        )));
    }
    let Some(given) = given else {
        return match place::default_store(env) {
            Ok(directory) => Ok(Some(Backing::Directory(directory))),
            Err(why) => {
                remarks.push(format!(
                    "no directory for the backing store ({why}): pages stay compressed in memory; \
                     name a directory on a disk with --store"
                ));
                Ok(None)
            }
        };
    };
    if given.value == "none" {
        return Ok(None);
    }
    let directory = absolute(&given)?;
    if device::is_one(&directory) {
        let exports = Exports::device(&directory);
        let exports = exports.map_err(|why| Failure::usage(format!("{}: {why}", given.origin)))?;
        return Ok(Some(Backing::servers(exports)));
    }
    match place::try_store(&directory) {
        Ok(file_system) => {
            if file_system.is_memory() {
                remarks.push(format!(
                    "{}: {} is a {}: what is written there stays in memory",
                    given.origin,
                    directory.display(),
                    file_system.name()
                ));
            }
            Ok(Some(Backing::Directory(directory)))
        }
        Err(e) => Err(Failure::usage(format!(
            "{}: {}: {}",
            given.origin,
            directory.display(),
            place::store_fault(&e)
        ))),
    }
}

/// A store on servers, whatever they speak.
fn on_servers(
    text: &str,
    copies: usize,
    env: Env,
    remarks: &mut Vec<String>,
) -> Result<Backing, String> {
    if valkey::address::is_one(text) {
        values(text, copies, env, remarks)
    } else if address::is_one(text) {
        servers(text, copies, remarks)
    } else {
        Err(format!(
            "'{text}' is none of nbd://, nbd+unix://, valkey:// and redis:// (a directory of that \
             name: ./{text})"
        ))
    }
}

/// The exports of a store on servers.
fn servers(text: &str, copies: usize, remarks: &mut Vec<String>) -> Result<Backing, String> {
    let addresses = remote::addresses(text)?;
    let exports = Exports::open(&addresses, copies)?;
    for claim in exports.claims.iter().filter(|c| !c.traits().can_trim) {
        remarks.push(format!(
            "{} keeps what is not needed any more: it does not know TRIM",
            claim.shown
        ));
    }
    Ok(Backing::servers(exports))
}

/// A store of values on Valkey or Redis servers.
fn values(
    text: &str,
    copies: usize,
    env: Env,
    remarks: &mut Vec<String>,
) -> Result<Backing, String> {
    if copies != 1 {
        return Err("a second copy is the replica's of a Cluster: leave --copies away".to_string());
    }
    let password = |name: &str| env(name).map(|value| value.as_bytes().to_vec());
    let address = valkey::address::Address::parse(text, password)?;
    let values = Values::open(&address)?;
    values.check_policies()?;
    if values.is_cluster() && !values.has_replicas() {
        remarks.push(format!(
            "{}: a primary has no replica: its pages are lost when it is",
            values.shown()
        ));
    }
    Ok(Backing::servers(values))
}
