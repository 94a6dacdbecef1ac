//! The cache as a library: pages of 4096 bytes under keys, in as much memory as is allowed.
//!
//! ```text
//!   Cache::store(area, page, bytes) ──> memory limit ──> cache/: compressed in memory,
//!   Cache::load(area, page, &mut b) <── fork check  <──          the coldest in a file
//! ```
//!
//! A face for programs that are not managed: no fault, no signal, no thread. It adds to
//! [`SwapCache`] what a caller outside of uzswap needs: one limit for all that grows, keys that are
//! checked, errors that can be displayed, and a fork that is noticed. Unlike the rest of the crate
//! this module may allocate: nothing here runs in a fault.

mod error;
mod stats;
#[cfg(test)]
mod tests;

pub use error::Error;
pub use stats::Stats;

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::cache::{CacheConfig, ForkGuard, LoadError, Page, SwapCache, SwapEntry, SwapFull};
use crate::codec::CodecSpec;
use crate::store::FileStore;
use crate::store::seal::Encryption;
use crate::sys::Errno;
use crate::sys::fork_mark::ForkMark;

/// Areas of keys, numbered from 0: each has page numbers of its own, and all its pages can be
/// dropped at once.
pub const AREAS: u32 = 31;
/// Page numbers of an area are below this.
pub const PAGES: u64 = u32::MAX as u64;

/// The memory is divided anew after so many stores, in which tables grow by some 10 KiB.
const DIVIDED_AFTER: u64 = 256;

/// How a [`Cache`] is made.
///
/// ```
/// let config = uzswap::Config::new(64 << 20).compressor("zstd:level=3");
/// let cache = uzswap::Cache::open(&config).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    memory_bytes: u64,
    compressor: Option<String>,
    store: Option<PathBuf>,
    encrypts: bool,
}

impl Config {
    /// At most `memory_bytes` of memory for what is stored: compressed pages and their tables. One
    /// or two MiB of buffers come on top while the cache works.
    pub fn new(memory_bytes: u64) -> Config {
        Config { memory_bytes, compressor: None, store: None, encrypts: true }
    }

    /// Another compressor than the one that is fastest here: `words`, `lz4`, `lz4hc`, `lzo`,
    /// `lzo-rle`, `zstd`, `deflate`, `842` or `none`; some take a level (`zstd:level=3`).
    pub fn compressor(mut self, name: &str) -> Config {
        self.compressor = Some(name.to_string());
        self
    }

    /// A directory: pages that find no room in memory go to a file without a name there, the least
    /// recently used first. The file is gone when the last process that has it open ends.
    pub fn store(mut self, directory: impl Into<PathBuf>) -> Config {
        self.store = Some(directory.into());
        self
    }

    /// Whether the file is encrypted, with a key that is in this process's memory alone. It is,
    /// unless this says otherwise. In both cases a page that is read is checked to be the one that
    /// was written.
    pub fn encrypts(mut self, encrypts: bool) -> Config {
        self.encrypts = encrypts;
        self
    }
}

/// Pages under keys, compressed in memory, the coldest of them in a file.
///
/// A key is an area, below [`AREAS`], and a page number, below [`PAGES`]. Numbers had better be
/// dense: an area's table has four bytes for each up to the largest. All functions may be called by
/// several threads at once; a load gives a page as it was at one moment.
///
/// # Fork
///
/// A child that was forked while [`Cache::before_fork`] held the cache still has all pages, and
/// both sides go on by themselves. Any other child gets [`Error::Forked`] from every function: a
/// thread that it does not have may have held a lock.
///
/// # Example
///
/// ```
/// # fn main() -> Result<(), uzswap::Error> {
/// let cache = uzswap::Cache::open(&uzswap::Config::new(16 << 20))?;
/// let mut page = [0; uzswap::PAGE_BYTES];
/// for number in 0..10_000 {
///     page[..8].copy_from_slice(&u64::to_le_bytes(number));
///     cache.store(0, number, &page)?;
/// }
/// cache.load(0, 1234, &mut page)?;
/// assert_eq!(page[..8], 1234u64.to_le_bytes());
/// assert!(cache.drop_page(0, 1234)?);
/// assert_eq!(cache.load(0, 1234, &mut page), Err(uzswap::Error::NotFound));
/// assert!(cache.stats()?.used_bytes < 10_000 * uzswap::PAGE_BYTES as u64 / 10);
/// # Ok(())
/// # }
/// ```
pub struct Cache {
    swap: SwapCache,
    memory_bytes: AtomicU64,
    /// The tables alone take all memory.
    are_tables_full: AtomicBool,
    /// Pages that were to be stored, and those of them that were not taken. The engine has other
    /// counts: it does not see a page that full tables refuse, and twice one that packing helps.
    stores: AtomicU64,
    failed_stores: AtomicU64,
    /// Pages that had been dropped when the pool was packed last.
    packed_after: AtomicU64,
    /// Frames that packing has freed.
    packed_frames: AtomicU64,
    mark: ForkMark,
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("memory_bytes", &self.memory_bytes).finish_non_exhaustive()
    }
}

/// The key in the engine, whose area 0 is its own.
fn key(area: u32, page: u64) -> Result<SwapEntry, Error> {
    let offset = u32::try_from(page).ok().filter(|_| page < PAGES).ok_or(Error::OutOfRange)?;
    Ok(SwapEntry::new(area_of(area)?, offset))
}

fn area_of(area: u32) -> Result<u8, Error> {
    if area < AREAS { Ok(area as u8 + 1) } else { Err(Error::OutOfRange) }
}

impl Cache {
    /// Makes an empty cache.
    ///
    /// # Errors
    /// [`Error::Compressor`] for a name that is none, [`Error::System`] for want of memory, and
    /// [`Error::Store`] for a directory in which no file can be made.
    pub fn open(config: &Config) -> Result<Cache, Error> {
        let codec = match &config.compressor {
            Some(name) => {
                CodecSpec::parse(name).map_err(|why| Error::Compressor(why.to_string()))?
            }
            None => CodecSpec::default(),
        };
        let in_words = |errno: Errno| Error::System(errno.0);
        let mark = ForkMark::new().map_err(in_words)?;
        let of_store = |errno: Errno| Error::Store(errno.0);
        let open = |directory: &PathBuf| FileStore::open(directory.as_os_str().as_bytes());
        let store = config.store.as_ref().map(open).transpose().map_err(of_store)?;
        let swap = SwapCache::new(CacheConfig {
            codec,
            keeps_incompressible: true,
            store,
            encryption: if config.encrypts { Encryption::On } else { Encryption::Off },
            ..CacheConfig::default()
        })
        .map_err(in_words)?;
        for area in 0..AREAS {
            swap.init(area_of(area)?).map_err(in_words)?;
        }
        let cache = Cache {
            swap,
            memory_bytes: AtomicU64::new(config.memory_bytes),
            are_tables_full: AtomicBool::new(false),
            stores: AtomicU64::new(0),
            failed_stores: AtomicU64::new(0),
            packed_after: AtomicU64::new(0),
            packed_frames: AtomicU64::new(0),
            mark,
        };
        cache.divide_memory();
        Ok(cache)
    }

    /// The engine, in the process that may use it.
    #[inline]
    fn swap(&self) -> Result<&SwapCache, Error> {
        if self.mark.is_set() { Ok(&self.swap) } else { Err(Error::Forked) }
    }

    // ---- Pages

    /// Stores a page under a key, in the place of an older one.
    ///
    /// # Errors
    /// [`Error::Full`] where neither memory nor file has room: the older page is still there then.
    pub fn store(&self, area: u32, page: u64, bytes: &Page) -> Result<(), Error> {
        let (swap, key) = (self.swap()?, key(area, page)?);
        if self.stores.fetch_add(1, Ordering::Relaxed).is_multiple_of(DIVIDED_AFTER) {
            self.divide_memory();
        }
        self.put(swap, key, bytes).map_err(|SwapFull| {
            self.failed_stores.fetch_add(1, Ordering::Relaxed);
            Error::Full
        })
    }

    fn put(&self, swap: &SwapCache, key: SwapEntry, bytes: &Page) -> Result<(), SwapFull> {
        if self.are_tables_full.load(Ordering::Relaxed) && swap.needs_tables(key) {
            return Err(SwapFull);
        }
        let packed = self.packed_frames.load(Ordering::Relaxed);
        match swap.store(key, bytes) {
            Err(SwapFull) if self.pack(swap, packed) => swap.store(key, bytes),
            stored => stored,
        }
    }

    /// Closes the gaps that dropped pages have left; says whether that may have freed something
    /// since `packed` frames were. Without new gaps it is not tried again. Threads side by side all
    /// pack: a lock to wait for would be one more for a fork to find taken.
    fn pack(&self, swap: &SwapCache, packed: u64) -> bool {
        let drops = swap.counters().invalidates;
        if self.packed_after.load(Ordering::Acquire) == drops {
            return self.packed_frames.load(Ordering::Relaxed) != packed;
        }
        self.packed_frames.fetch_add(swap.compact() as u64, Ordering::Relaxed);
        self.packed_after.store(drops, Ordering::Release);
        // Where this has freed nothing another thread may just have freed all there was.
        true
    }

    /// Brings the page of a key. It stays stored.
    ///
    /// # Errors
    /// [`Error::NotFound`] where there is none, [`Error::Store`] where the file cannot be read, and
    /// [`Error::Corrupt`] where the bytes read are not those that were written. `bytes` may hold
    /// anything then.
    pub fn load(&self, area: u32, page: u64, bytes: &mut Page) -> Result<(), Error> {
        self.swap()?.load(key(area, page)?, bytes).map_err(|why| match why {
            LoadError::NotFound => Error::NotFound,
            LoadError::Io(errno) => Error::Store(errno.0),
            LoadError::Corrupt => Error::Corrupt,
        })
    }

    /// Drops the page of a key; says whether there was one.
    pub fn drop_page(&self, area: u32, page: u64) -> Result<bool, Error> {
        Ok(self.swap()?.invalidate_page(key(area, page)?))
    }

    /// Drops all pages of an area; says how many. A page that another thread stores meanwhile may
    /// be among them or not.
    pub fn drop_area(&self, area: u32) -> Result<u64, Error> {
        let swap = self.swap()?;
        let area = area_of(area)?;
        let dropped = swap.invalidate_range(area, 0..u32::MAX);
        swap.give_table_back(area);
        swap.give_tables_back();
        self.divide_memory();
        Ok(dropped)
    }

    // ---- Memory

    /// Gives the pool what the tables leave.
    fn divide_memory(&self) {
        let memory_bytes = self.memory_bytes.load(Ordering::Relaxed);
        let pool_bytes = memory_bytes.saturating_sub(self.swap.tables_bytes() as u64);
        // Buffers leave the pool less, but a page that goes through them needs no pool.
        let is_full = self.swap.records_bytes() as u64 >= memory_bytes;
        self.are_tables_full.store(is_full, Ordering::Relaxed);
        self.swap.set_max_pool_bytes(usize::try_from(pool_bytes).unwrap_or(usize::MAX));
    }

    /// Sets another limit. Pages above it go to the file at once, as far as there is one. Returns
    /// the bytes used afterwards.
    pub fn set_memory(&self, bytes: u64) -> Result<u64, Error> {
        self.swap()?;
        self.memory_bytes.store(bytes, Ordering::Relaxed);
        self.divide_memory();
        self.shrink(bytes)
    }

    /// Has all pages take at most `bytes` of memory, once, by writing the least recently used ones
    /// to the file and packing those that stay, and gives buffers back. Returns the bytes used
    /// afterwards. They can be more without a file, or because tables stay in memory.
    pub fn shrink(&self, bytes: u64) -> Result<u64, Error> {
        let swap = self.swap()?;
        // Before each look: buffers count as used.
        swap.give_buffers_back();
        // Twice, because the cluster that the first look begins, and its record, count as well.
        for _ in 0..2 {
            let excess = self.used_bytes().saturating_sub(bytes);
            let freed = swap.shrink_used(usize::try_from(excess).unwrap_or(usize::MAX));
            swap.give_buffers_back();
            if freed == 0 {
                break;
            }
        }
        Ok(self.used_bytes())
    }

    /// Memory of compressed pages and of tables: what the limit bounds.
    fn used_bytes(&self) -> u64 {
        (self.swap.pool_bytes() + self.swap.tables_bytes()) as u64
    }

    /// Figures of the pages that are stored, and of all operations since the cache was opened.
    pub fn stats(&self) -> Result<Stats, Error> {
        let swap = self.swap()?;
        let failure = swap.store_failure().map_or(0, |errno| errno.0);
        let limit = self.memory_bytes.load(Ordering::Relaxed);
        Ok(Stats {
            // First, so that not more have failed than there were.
            failed_stores: self.failed_stores.load(Ordering::Relaxed),
            stores: self.stores.load(Ordering::Relaxed),
            ..Stats::of(&swap.counters(), limit, self.used_bytes(), failure)
        })
    }

    // ---- Fork

    /// Brings the cache to rest for a fork. Until the result is gone, all other threads wait, and
    /// this one must not use the cache.
    ///
    /// The parent ends it by [`Forking::in_parent`], the child by [`Forking::in_child`]; to drop it
    /// says that there was no fork.
    pub fn before_fork(&self) -> Result<Forking<'_>, Error> {
        let guard = Some(self.swap()?.prepare_fork());
        Ok(Forking { cache: self, guard })
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        if !self.mark.is_set() {
            self.swap.abandon();
        }
    }
}

/// A cache at rest for the moment of a fork: see [`Cache::before_fork`].
#[must_use]
pub struct Forking<'a> {
    cache: &'a Cache,
    guard: Option<ForkGuard<'a, FileStore>>,
}

impl fmt::Debug for Forking<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forking").finish_non_exhaustive()
    }
}

impl Forking<'_> {
    /// In the parent, after a fork that succeeded.
    pub fn in_parent(mut self) {
        self.guard.take().into_iter().for_each(|guard| self.cache.swap.after_fork_parent(guard));
    }

    /// In the child: from here on it may use the cache, which has all pages of the moment of the
    /// fork and writes to a file of its own.
    pub fn in_child(mut self) {
        self.cache.mark.set();
        self.guard.take().into_iter().for_each(|guard| self.cache.swap.after_fork_child(guard));
    }
}

impl Drop for Forking<'_> {
    fn drop(&mut self) {
        self.guard.take().into_iter().for_each(|guard| self.cache.swap.after_fork_failed(guard));
    }
}
