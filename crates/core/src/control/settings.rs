//! The settings that `uzswap run` decided: plain bytes in a memfd of their own, written before the
//! program starts and sealed against every change after that (`handles.rs`).
//!
//! Settings say which files and servers are opened and whether the store is encrypted, for
//! processes with all kinds of rights. So no process of the tree may write them, unlike the
//! counters, which all of them must.
//!
//! Every process of the tree reads them at its start, in the loader, where nothing can be parsed or
//! allocated: texts are bytes with a length, choices are numbers.

use crate::store::extents::EXTENT_LEAST_BYTES;
use crate::store::remote::{COPIES_MOST, SERVERS_MOST, Server};
use crate::store::valkey::{PREFIX_BYTES, Terms};

pub use crate::sys::mechanism::Kind as Mechanism;

const MAGIC: u64 = u64::from_le_bytes(*b"uzswap04");
/// Longest path of the store directory, in bytes.
pub const PATH_BYTES: usize = 3072;

/// Which memory goes out and comes in as huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum HugePages {
    Never = 0,
    /// Huge pages only in memory for which the program asks for them (MADV_HUGEPAGE).
    Madvise = 1,
    Always = 2,
}

impl HugePages {
    pub const ALL: [HugePages; 3] = [HugePages::Never, HugePages::Madvise, HugePages::Always];

    pub const fn name(self) -> &'static str {
        match self {
            HugePages::Never => "never",
            HugePages::Madvise => "madvise",
            HugePages::Always => "always",
        }
    }

    pub fn from_u32(v: u32) -> Option<HugePages> {
        Self::ALL.into_iter().find(|h| *h as u32 == v)
    }
}

/// The settings that `uzswap run` decided, as plain data.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Settings {
    pub magic: u64,
    /// Bytes that the tree may hold in memory (anonymous memory, ours included).
    pub memory_bytes: u64,
    /// Bytes of an extent, where the store is on servers.
    pub extent_bytes: u64,
    /// Share of `memory_bytes` that the compressed pool may take, in percent; 0: the runtime finds
    /// the best.
    pub pool_percent: u32,
    /// A [`Mechanism`].
    pub mechanism: u32,
    /// Length of `compressor`, in bytes.
    pub compressor_len: u32,
    /// Length of `store_dir`; 0 means no backing store.
    pub store_dir_len: u32,
    /// Length of `cache_dir` (where patch tables are kept between starts); 0 means none.
    pub cache_dir_len: u32,
    /// 1: where the takeover is impossible, run the program unmanaged instead of refusing.
    pub if_possible: u32,
    /// 1: encrypt pages written to the store.
    pub encrypt: u32,
    /// 1: print diagnostics of the runtime on stderr (debugging uzswap itself).
    pub debug: u32,
    /// Length of `recompressor`, in bytes; 0: nothing is compressed again.
    pub recompressor_len: u32,
    /// A [`HugePages`].
    pub huge_pages: u32,
    /// 1: there is a [`Ring`](super::trace::Ring) behind the tree, for every fault.
    pub trace: u32,
    /// 1: pages are watched, one in 2^[`Tree::watch_log2`](super::Tree), see `pager/sampling.rs`.
    pub watch: u32,
    /// How many of `servers` there are; 0: the store is in a directory, or there is none.
    pub servers_len: u32,
    /// Number of servers that hold each written page.
    pub copies: u32,
    /// Lifetime of a value that nobody renews, in ms, where the store is Valkey's; 0: it is not.
    pub lease_ms: u32,
    /// Beginning of the run's keys in Valkey.
    pub key_prefix: [u8; PREFIX_BYTES],
    /// The compressor's specification, for instance `lz4` or `zstd:level=3`.
    pub compressor: [u8; 128],
    /// The specification of the compressor for pages that have not been asked for in a while.
    pub recompressor: [u8; 128],
    pub store_dir: [u8; PATH_BYTES],
    pub cache_dir: [u8; 1024],
    pub servers: [Server; SERVERS_MOST],
}

impl Settings {
    pub const fn new() -> Settings {
        Settings {
            magic: MAGIC,
            memory_bytes: 0,
            extent_bytes: EXTENT_LEAST_BYTES,
            pool_percent: 0,
            mechanism: 0,
            compressor_len: 0,
            store_dir_len: 0,
            cache_dir_len: 0,
            if_possible: 0,
            encrypt: 1,
            debug: 0,
            recompressor_len: 0,
            huge_pages: HugePages::Madvise as u32,
            trace: 0,
            watch: 0,
            servers_len: 0,
            copies: 1,
            lease_ms: 0,
            key_prefix: [0; PREFIX_BYTES],
            compressor: [0; 128],
            recompressor: [0; 128],
            store_dir: [0; PATH_BYTES],
            cache_dir: [0; 1024],
            servers: [Server::NONE; SERVERS_MOST],
        }
    }

    /// Whether the bytes are settings of this version.
    pub fn is_valid(&self) -> bool {
        self.magic == MAGIC
            && self.compressor_len as usize <= self.compressor.len()
            && self.recompressor_len as usize <= self.recompressor.len()
            && self.store_dir_len as usize <= self.store_dir.len()
            && self.cache_dir_len as usize <= self.cache_dir.len()
            && self.servers_len as usize <= SERVERS_MOST
            && self.servers().iter().all(Server::is_valid)
            && (1..=COPIES_MOST as u32).contains(&self.copies)
            && self.extent_bytes >= EXTENT_LEAST_BYTES
            && self.extent_bytes.is_power_of_two()
            && self.is_valkey() == (self.lease_ms > 0)
    }

    pub fn compressor(&self) -> &[u8] {
        &self.compressor[..self.compressor_len as usize]
    }
    pub fn recompressor(&self) -> &[u8] {
        &self.recompressor[..self.recompressor_len as usize]
    }
    pub fn store_dir(&self) -> &[u8] {
        &self.store_dir[..self.store_dir_len as usize]
    }
    pub fn servers(&self) -> &[Server] {
        &self.servers[..self.servers_len as usize]
    }
    /// The block device that the store is on.
    pub fn device(&self) -> Option<&Server> {
        self.servers().first().filter(|server| server.kind == Server::DEVICE)
    }
    /// Whether the store is Valkey's: one server, or a Cluster.
    pub fn is_valkey(&self) -> bool {
        let is_its = |s: &Server| s.kind == Server::VALKEY || s.kind == Server::CLUSTER;
        self.servers().first().is_some_and(is_its)
    }
    /// The terms of a store that is Valkey's.
    pub fn terms(&self) -> Terms<'_> {
        Terms {
            servers: self.servers(),
            extent_bytes: self.extent_bytes,
            lease_ms: self.lease_ms,
            key_prefix: self.key_prefix,
        }
    }
    /// Whether the store is on other machines.
    pub fn is_remote(&self) -> bool {
        self.servers_len > 0 && self.device().is_none()
    }
    pub fn cache_dir(&self) -> &[u8] {
        &self.cache_dir[..self.cache_dir_len as usize]
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_run_decided_is_no_settings() {
        assert!(Settings::new().is_valid() && Settings::default().is_valid());
        type Change = fn(&mut Settings);
        let valkey: Change = |s| (s.servers_len, s.servers[0].kind) = (1, Server::VALKEY);
        let is_valid = |change: &[Change]| {
            let mut settings = Settings::new();
            change.iter().for_each(|change| change(&mut settings));
            settings.is_valid()
        };
        let good: [&[Change]; 6] = [
            &[|s| s.compressor_len = 128, |s| s.recompressor_len = 128],
            &[|s| s.store_dir_len = PATH_BYTES as u32, |s| s.cache_dir_len = 1024],
            &[|s| s.servers_len = SERVERS_MOST as u32, |s| s.copies = COPIES_MOST as u32],
            &[|s| s.extent_bytes = 1 << 63],
            &[valkey, |s| s.lease_ms = 1],
            &[|s| (s.servers_len, s.servers[0].kind) = (1, Server::DEVICE)],
        ];
        for (i, change) in good.iter().enumerate() {
            assert!(is_valid(change), "good {i}");
        }
        let wrong: [&[Change]; 16] = [
            &[|s| s.magic = u64::from_le_bytes(*b"uzswap03")],
            &[|s| s.compressor_len = 129],
            &[|s| s.recompressor_len = u32::MAX],
            &[|s| s.store_dir_len = PATH_BYTES as u32 + 1],
            &[|s| s.cache_dir_len = 1025],
            &[|s| s.servers_len = SERVERS_MOST as u32 + 1],
            &[|s| (s.servers_len, s.servers[0].kind) = (1, Server::CLUSTER + 1)],
            &[|s| (s.servers_len, s.servers[0].name_len) = (1, u32::MAX)],
            &[|s| (s.servers_len, s.servers[0].address_len) = (1, 113)],
            &[|s| s.copies = 0],
            &[|s| s.copies = COPIES_MOST as u32 + 1],
            &[|s| s.extent_bytes = 0],
            &[|s| s.extent_bytes = EXTENT_LEAST_BYTES / 2],
            &[|s| s.extent_bytes = EXTENT_LEAST_BYTES + 4096],
            &[valkey],
            &[|s| s.lease_ms = 1],
        ];
        for (i, change) in wrong.iter().enumerate() {
            assert!(!is_valid(change), "wrong {i}");
        }
    }

    #[test]
    fn a_text_is_as_long_as_it_says() {
        let mut settings = Settings::new();
        assert_eq!((settings.compressor(), settings.store_dir()), (&b""[..], &b""[..]));
        settings.cache_dir[..3].copy_from_slice(b"/ab");
        settings.cache_dir_len = 2;
        assert_eq!(settings.cache_dir(), b"/a");
        assert!(settings.servers().is_empty() && settings.device().is_none());
        assert!(!settings.is_remote() && !settings.is_valkey());
        (settings.servers_len, settings.servers[0]) = (1, Server::device(b"/dev/sdx").unwrap());
        assert_eq!(settings.device().unwrap().export(), b"/dev/sdx");
        assert!(!settings.is_remote(), "a device is of this machine");
        settings.servers[0].kind = Server::NBD;
        assert!(settings.is_remote() && settings.device().is_none());
    }

    /// All of it is read as bytes, which padding has none of.
    #[test]
    fn there_is_no_padding() {
        let s = Settings::new();
        let texts = s.key_prefix.len()
            + s.compressor.len()
            + s.recompressor.len()
            + s.store_dir.len()
            + s.cache_dir.len();
        let servers = SERVERS_MOST * (4 * 4 + Server::ADDRESS_BYTES + Server::NAME_BYTES);
        // Three words of eight bytes, fifteen of four.
        assert_eq!(size_of::<Settings>(), 3 * 8 + 15 * 4 + texts + servers);
    }

    #[test]
    fn choices_are_what_they_were_written_as() {
        for choice in HugePages::ALL {
            assert_eq!(HugePages::from_u32(choice as u32), Some(choice));
        }
        assert_eq!(HugePages::from_u32(3), None);
        for mechanism in Mechanism::ALL {
            assert_eq!(Mechanism::from_u32(mechanism as u32), Some(mechanism));
        }
        assert_eq!(Mechanism::from_u32(u32::MAX), None);
    }
}
