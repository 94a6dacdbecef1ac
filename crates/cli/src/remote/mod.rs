//! A store on other machines, or on a block device, as `uzswap run` sees to it: exports are checked
//! and claimed before the program starts, leased out again when a process is gone, and given back
//! at the end. Of Valkey and Redis servers: `valkey`.
//!
//! ```text
//!   --store nbd://A/X,nbd://B/Y ─> address ─> Exports ── claim ──> the first bytes of X and Y
//!                                               │          keeper: counts there; leases of who is gone
//!                                               v
//!                            the run's settings: addresses, how the exports are cut
//! ```
//!
//! Pages never come through here: each process has connections of its own (`core/store/remote`). So
//! processes that outlive a killed `uzswap run` keep their pages; only nobody counts then, and
//! another run may take the export after some seconds.

pub mod address;
pub mod claim;
pub mod device;
mod keeper;
pub mod valkey;
mod words;

pub use keeper::{Keeper, Kept};

use std::path::Path;

use uzswap::control::Settings;
use uzswap::store::extents::Geometry;
use uzswap::store::remote::{COPIES_MOST, SERVERS_MOST};

use crate::control::Run;
use address::Address;
use claim::Claimed;

/// The exports of a run.
#[derive(Debug)]
pub struct Exports {
    pub claims: Vec<Claimed>,
    pub copies: usize,
    pub geometry: Geometry,
}

/// Addresses of a value of `--store`.
pub fn addresses(text: &str) -> Result<Vec<Address>, String> {
    let all: Vec<Address> = text
        .split(',')
        .map(|one| Address::parse(one).map_err(|why| format!("'{one}' {why}")))
        .collect::<Result<_, _>>()?;
    if all.len() > SERVERS_MOST {
        return Err(format!("{} servers are named, {SERVERS_MOST} are the most", all.len()));
    }
    for (i, one) in all.iter().enumerate() {
        if all[..i].iter().any(|other| other.text == one.text) {
            return Err(format!("{} is named twice", one.text));
        }
    }
    Ok(all)
}

impl Exports {
    /// Connects to the exports, and looks whether they are free.
    pub fn open(addresses: &[Address], copies: usize) -> Result<Exports, String> {
        if copies > addresses.len() {
            return Err(format!(
                "{copies} copies need as many servers, and {} is named",
                addresses.len()
            ));
        }
        assert!(copies <= COPIES_MOST);
        let mut claims = Vec::new();
        for address in addresses {
            let server = address.resolve().map_err(|why| format!("{}: {why}", address.text))?;
            let mut claim = Claimed::connect(&address.text, server)?;
            claim.look()?;
            claims.push(claim);
        }
        Self::of(claims, copies)
    }

    /// A block device.
    pub fn device(path: &Path) -> Result<Exports, String> {
        let mut claim = Claimed::device(path)?;
        claim.look()?;
        Self::of(vec![claim], 1)
    }

    fn of(mut claims: Vec<Claimed>, copies: usize) -> Result<Exports, String> {
        let sizes: Vec<u64> = claims.iter().map(|c| c.traits().bytes).collect();
        let geometry = Geometry::of(&sizes);
        for (i, claim) in claims.iter_mut().enumerate() {
            claim.server.extents = geometry.extents_of(i).len() as u32;
            if claim.server.extents == 0 {
                return Err(format!("{} is too small beside the others to be of use", claim.shown));
            }
        }
        Ok(Exports { claims, copies, geometry })
    }
}

impl Kept for Exports {
    fn put(&self, settings: &mut Settings) {
        settings.extent_bytes = self.geometry.extent_bytes;
        settings.copies = self.copies as u32;
        settings.servers_len = self.claims.len() as u32;
        for (place, claim) in settings.servers.iter_mut().zip(&self.claims) {
            *place = claim.server;
        }
    }

    /// Takes all of them, or none.
    fn claim(&mut self) -> Result<(), String> {
        let by = whose().map_err(|e| format!("a name for the run: {e}"))?;
        for i in 0..self.claims.len() {
            let (before, rest) = self.claims.split_at_mut(i);
            if let Err(why) = rest[0].claim(&by, before) {
                before.iter_mut().for_each(|claim| _ = claim.release(false));
                return Err(why);
            }
        }
        Ok(())
    }

    fn hurry(&mut self) {
        self.claims.iter_mut().for_each(Claimed::hurry);
    }

    fn beat(&mut self, _: &Run) {
        self.claims.iter_mut().for_each(|claim| _ = claim.beat());
    }

    fn give_back(&mut self, extent: usize) -> bool {
        let Some((server, at)) = self.geometry.at(extent) else { return true };
        let bytes = self.geometry.extent_bytes;
        self.claims.get_mut(server).is_some_and(|claim| claim.trim(at, bytes).is_ok())
    }

    fn release(&mut self, is_used: bool) -> Result<(), String> {
        let mut released = Ok(());
        for claim in &mut self.claims {
            if let Err(e) = claim.release(is_used) {
                released = Err(words::in_words(&claim.shown, e));
            }
        }
        released
    }

    fn shown(&self) -> String {
        self.claims.iter().map(|c| c.shown.as_str()).collect::<Vec<_>>().join(",")
    }
}

/// Words that no other run has.
fn whose() -> std::io::Result<String> {
    let random = std::fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Ok(format!("process {} on {} ({})", std::process::id(), host.trim(), random.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_servers_are_named_by_one_value() {
        assert_eq!(addresses("nbd://a/x,nbd://b/y").unwrap().len(), 2);
        for (wrong, says) in [
            ("nbd://a/x,nbd://a/x", "named twice"),
            ("nbd://a,", "is no address"),
            ("nbd://a,nbd://b,nbd://c,nbd://d,nbd://e", "5 servers"),
        ] {
            assert!(addresses(wrong).unwrap_err().contains(says), "{wrong}");
        }
        let two = addresses("nbd://127.0.0.1:1/x").unwrap();
        assert!(Exports::open(&two, 2).unwrap_err().contains("2 copies need"));
        assert!(Exports::open(&two, 1).unwrap_err().contains("nbd://127.0.0.1:1/x: "));
        assert_ne!(whose().unwrap(), whose().unwrap());
    }
}
