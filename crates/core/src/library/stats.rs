//! Figures of a cache, for its users: fewer than the engine's, and none that only its builders
//! know.

use crate::cache::Counters;

/// Figures of a cache: its contents, and its operations since it was opened. Counts of pages are of
/// one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The limit for what is stored.
    pub memory_bytes: u64,
    /// Memory of compressed pages and tables: what the limit bounds.
    pub used_bytes: u64,
    /// Pages that are stored: in memory, in the file, or one word repeated.
    pub pages: u64,
    /// Of these, pages that are one word repeated and take a table's record alone.
    pub same_filled_pages: u64,
    /// Of these, compressed pages in memory.
    pub memory_pages: u64,
    /// Of these, pages in the file, or on their way there.
    pub store_pages: u64,
    /// Pages that do not compress and are kept as they are.
    pub incompressible_pages: u64,
    /// Bytes of the compressed pages in memory.
    pub compressed_bytes: u64,
    /// Disk space of the file.
    pub store_bytes: u64,
    /// Pages that were to be stored, taken or not.
    pub stores: u64,
    /// Of these, pages that found no room.
    pub failed_stores: u64,
    /// Pages that were loaded.
    pub loads: u64,
    /// Of these, pages that were read from the file.
    pub store_loads: u64,
    /// Loads of a key without a page.
    pub missing_loads: u64,
    /// Loads that failed since the file could not be read.
    pub read_errors: u64,
    /// Loads that failed since what was read is not what was written.
    pub corrupt_loads: u64,
    /// Pages that were dropped or replaced.
    pub drops: u64,
    /// Pages that went from memory to the file, for want of room.
    pub written_back_pages: u64,
    /// Bytes written to the file.
    pub written_bytes: u64,
    /// Bytes read from the file.
    pub read_bytes: u64,
    /// The kernel's number for why writing to the file has stopped; 0: it has not. Pages in memory
    /// are served on.
    pub store_error: i32,
}

impl Stats {
    /// All but `stores` and `failed_stores`, which the face counts itself.
    pub(super) fn of(c: &Counters, memory_bytes: u64, used_bytes: u64, store_error: i32) -> Stats {
        Stats {
            memory_bytes,
            used_bytes,
            pages: c.stored_pages,
            same_filled_pages: c.same_filled_pages,
            memory_pages: c.pool_pages,
            store_pages: c.store_pages,
            incompressible_pages: c.incompressible_pages,
            compressed_bytes: c.compr_data_bytes,
            store_bytes: c.store_disk_bytes,
            loads: c.same_filled_loads + c.pool_loads + c.buffer_loads + c.store_loads,
            store_loads: c.store_loads,
            missing_loads: c.missing_loads,
            read_errors: c.read_errors,
            corrupt_loads: c.corrupt_loads,
            drops: c.invalidates,
            written_back_pages: c.written_back_pages,
            written_bytes: c.store_write_bytes,
            read_bytes: c.store_read_bytes,
            store_error,
            ..Stats::default()
        }
    }
}
