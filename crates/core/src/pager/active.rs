//! The parts of a pager that exist only while paging is on: the mechanism and the swap cache, made
//! from the run's settings.

use core::sync::atomic::AtomicU32;

use crate::cache::{CacheConfig, SwapCache};
use crate::codec::CodecSpec;
use crate::control::{HugePages, Mechanism as Kind, Settings};
use crate::policy::limbo::BLOCKS_MAX;
use crate::policy::limbo_slots;
use crate::region::LOAD_SLOTS_MAX;
use crate::store::extents::{Geometry, Leases};
use crate::store::remote::{Remote, RemoteStore};
use crate::store::seal::Encryption;
use crate::store::valkey::{Valkey, ValkeyStore};
use crate::store::{AnyStore, DeviceStore, FileStore};
use crate::sys::mechanism::Mechanism;
use crate::sys::{Errno, HUGE_PAGES, PAGE_SIZE, Result};

/// The fewest blocks for huge pages that limbo has: with room for fewer it has none.
const BLOCKS_MIN: usize = 2;

/// Where a pager's cache writes to.
pub type PagerStore = AnyStore;

/// The mechanism and the cache of an active pager.
pub struct Active {
    pub mechanism: Mechanism,
    pub cache: SwapCache<PagerStore>,
    pub kind: Kind,
    /// Staging slots for limbo.
    pub slots: usize,
    /// Limbo's blocks for huge pages, each of a huge page's size; 0: there will be none.
    pub blocks: usize,
    pub huge_pages: HugePages,
    /// The pool's share of the memory that the process may use, in percent; 0: it adapts.
    pub pool_percent: AtomicU32,
    pub has_store: bool,
}

impl Active {
    /// Opens both. Allocates: called once, outside any fault. `is_alone`: the process has one
    /// thread. `leases`: of the run, for a store on other machines.
    pub fn open(settings: &Settings, is_alone: bool, leases: &'static Leases) -> Result<Active> {
        let limit_pages = settings.memory_bytes as usize / PAGE_SIZE;
        let slots = limbo_slots(limit_pages).min(LOAD_SLOTS_MAX);
        let huge_pages = HugePages::from_u32(settings.huge_pages).unwrap_or(HugePages::Never);
        // A limit of a few huge pages has no room to move them about.
        let blocks = if huge_pages == HugePages::Never { 0 } else { limit_pages / HUGE_PAGES / 8 };
        let blocks = if blocks < BLOCKS_MIN { 0 } else { blocks.min(BLOCKS_MAX) };
        let wanted = Kind::from_u32(settings.mechanism).ok_or(Errno::EINVAL)?;
        let mechanism = Mechanism::open(wanted, slots, blocks, is_alone)?;
        let codec =
            |name: &[u8]| core::str::from_utf8(name).ok().and_then(|s| CodecSpec::parse(s).ok());
        let store = open_store(settings, leases);
        let config = CacheConfig {
            codec: codec(settings.compressor()).unwrap_or_default(),
            recompressor: codec(settings.recompressor()),
            chooses_codec: settings.compressor() == b"auto",
            store,
            encryption: if settings.encrypt == 0 { Encryption::Off } else { Encryption::On },
            ..CacheConfig::default()
        };
        let kind = mechanism.kind();
        let has_store = config.store.is_some();
        let cache = SwapCache::new(config)?;
        let pool_percent = AtomicU32::new(settings.pool_percent);
        Ok(Active { mechanism, cache, kind, slots, blocks, huge_pages, pool_percent, has_store })
    }

    /// Which mechanism would be opened, without keeping it.
    pub fn probe(wanted: Kind) -> Result<Kind> {
        Mechanism::open(wanted, 1, 0, false).map(|m| m.kind())
    }
}

/// A store that cannot be opened any more (its directory went away, no server answers) is as good
/// as none.
fn open_store(settings: &Settings, leases: &'static Leases) -> Option<PagerStore> {
    if let Some(device) = settings.device() {
        let geometry = Geometry::cut(settings.extent_bytes, [device.extents as usize].into_iter());
        return DeviceStore::open(device.export(), geometry, leases).ok().map(PagerStore::from);
    }
    if settings.is_valkey() {
        let valkey = Valkey::new(&settings.terms(), leases);
        return ValkeyStore::open(valkey).ok().map(PagerStore::from);
    }
    if settings.is_remote() {
        let copies = settings.copies as usize;
        let remote = Remote::new(settings.servers(), copies, settings.extent_bytes, leases);
        return RemoteStore::open(remote).ok().map(PagerStore::from);
    }
    let has_directory = settings.store_dir_len > 0;
    has_directory
        .then(|| FileStore::open(settings.store_dir()).ok())
        .flatten()
        .map(PagerStore::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;
    use crate::store::remote::Server;

    fn leases() -> &'static Leases {
        &Box::leak(crate::control::zeroed_tree()).leases
    }

    /// Settings of protection faults, which need nothing of the kernel in a process of one thread.
    fn settings(directory: &[u8]) -> Settings {
        let mut s = Settings { mechanism: Kind::Protect as u32, ..Settings::new() };
        s.store_dir[..directory.len()].copy_from_slice(directory);
        s.store_dir_len = directory.len() as u32;
        s
    }

    fn open(settings: &Settings) -> Active {
        Active::open(settings, true, leases()).expect("protection faults are always to be had")
    }

    #[test]
    fn a_store_that_cannot_be_opened_is_as_good_as_none() {
        let directory = std::env::temp_dir();
        let mut there = settings(directory.as_os_str().as_encoded_bytes());
        match open_store(&there, leases()) {
            Some(PagerStore::File(file)) => file.close(),
            _ => panic!("the directory is there"),
        }
        assert!(open(&there).has_store);
        assert!(!open(&settings(b"")).has_store && !open(&settings(b"/no/such/place")).has_store);
        // The user named a device, so nothing is to be written to a directory.
        there.servers[0] = Server::device(b"/no/such/device").expect("a short path");
        there.servers_len = 1;
        assert!(!open(&there).has_store);
    }

    #[test]
    fn limbo_has_blocks_where_there_is_room_for_two_and_as_many_slots_as_words_can_name() {
        let with = |pages: usize, huge_pages: u32| {
            let memory_bytes = (pages * PAGE_SIZE) as u64;
            let active = open(&Settings { memory_bytes, huge_pages, ..settings(b"") });
            (active.blocks, active.slots)
        };
        let (always, never) = (HugePages::Always as u32, HugePages::Never as u32);
        let least = 8 * BLOCKS_MIN * HUGE_PAGES;
        assert_eq!([with(least - 1, always).0, with(least, always).0], [0, BLOCKS_MIN]);
        // An unknown choice is none.
        assert_eq!([with(least, never).0, with(least, 99).0], [0, 0]);
        assert_eq!(with(16 * LOAD_SLOTS_MAX, always), (BLOCKS_MAX, LOAD_SLOTS_MAX));
    }

    #[test]
    fn an_unknown_mechanism_is_refused_and_an_unknown_codec_replaced() {
        let unknown = Settings { mechanism: 99, ..settings(b"") };
        assert_eq!(Active::open(&unknown, true, leases()).err(), Some(Errno::EINVAL));
        let mut unknown = settings(b"");
        unknown.compressor[..3].copy_from_slice(b"no\xff");
        unknown.compressor_len = 3;
        let (active, page) = (open(&unknown), crate::testing::any_page(4));
        let entry = active.cache.swap_out(&page).expect("there is room");
        let mut back = [0; PAGE_SIZE];
        assert_eq!((active.cache.swap_in(entry, &mut back), back), (Ok(()), page));
    }
}
