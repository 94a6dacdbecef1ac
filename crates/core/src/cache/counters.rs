//! Every counter of the cache, one per cause. All of them are exact: `check` compares them with the
//! structures.

/// Declares the counters once: their names, their meaning, and the list that faces print.
macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)*) => {
        /// A snapshot of all counters, consistent in itself.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $name: u64,)*
        }

        impl Counters {
            /// (name, value, meaning) of each, in order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64, &'static str)> {
                [$((stringify!($name), self.$name, concat!($($doc),+).trim_ascii()),)*].into_iter()
            }
        }
    };
}

counters! {
    // ---- State: what is there now (zswap's and zram's columns)
    /// Pages in the cache: same-filled, in the pool, in the store, or gone.
    stored_pages,
    /// Of these, pages that are one word repeated and take no memory.
    same_filled_pages,
    /// Pages in the pool.
    pool_pages,
    /// Of these, pages that are compressed in groups.
    grouped_pages,
    /// Pages in the store, or in a cluster on their way there.
    store_pages,
    /// Entries whose page is back with its owner; what they hold are copies.
    kept_pages,
    /// Of these, entries whose copy was dropped.
    gone_pages,
    /// Bytes of the copies in the pool.
    kept_bytes,
    /// Pages kept as they are, because compressing did not help: in the store, or in the pool if
    /// they may be there.
    incompressible_pages,
    /// Memory that the pages in memory (pool and same-filled) stand for.
    orig_data_bytes,
    /// Bytes of the compressed objects in the pool.
    compr_data_bytes,
    /// Memory that the pool uses for them, in whole frames.
    mem_used_bytes,
    /// The largest value that `mem_used_bytes` has had.
    mem_used_max_bytes,
    /// Compressed bytes of the pages in the store.
    store_data_bytes,
    /// Disk space of the store's file.
    store_disk_bytes,

    // ---- Events since the start
    /// Pages that came in.
    stores,
    /// Pages that came in as one word repeated.
    same_filled_stores,
    /// Pages of the pool that were compressed again, by the stronger codec.
    recompressed_pages,
    /// Pages of the pool that were compressed once more, in groups with their neighbours.
    group_stores,
    /// Bytes by which both made objects smaller.
    recompressed_saved_bytes,
    /// Pages that were taken into the pool.
    pool_stores,
    /// Of these, pages that are kept as they are.
    incompressible_stores,
    /// Pages that went straight to the store, for one of the causes below.
    direct_stores,
    /// Pages that were not taken, because neither pool nor store could.
    failed_stores,
    /// Stores of a key that had a page already; the older page was dropped.
    duplicate_entries,
    /// Not offered to the pool: the caller knew that they are not worth memory.
    cold_stores,
    /// Rejected by the pool: full, and not yet below the acceptance threshold again.
    reject_full,
    /// Rejected by the pool: no memory.
    reject_alloc_failed,
    /// Not compressed: too little to gain.
    reject_compress_poor,
    /// Not compressed: the compressor failed.
    reject_compress_failed,
    /// Rejected by the pool for one of these causes, and by the store too: it is not there, or it
    /// fails.
    reject_reclaim_failed,
    /// Not taken at all: no record for it, an area that is not there, or all buffers of the store
    /// full time and again.
    reject_no_slot,
    /// Pages that came again as they had been loaded, so that the copy that was kept still served.
    unchanged_pages,
    /// Pages that came again and differed from the copy that was kept.
    changed_pages,
    /// Copies dropped because the memory was wanted.
    dropped_copies,
    /// Times that the pool reached its limit.
    pool_limit_hits,
    /// Pages moved from the pool towards the store, oldest first.
    written_back_pages,
    /// Of these, pages that were in groups, compressed singly for it.
    dispersed_pages,
    /// Entries that were spared once by writeback because they had been loaded.
    second_chances,
    /// Pages read back: same-filled.
    same_filled_loads,
    /// Pages read back: from the pool.
    pool_loads,
    /// Of these, pages of groups.
    group_loads,
    /// Groups that were decompressed for that; their other pages come from the buffer.
    unpacked_groups,
    /// Pages read back: from a cluster that was still in memory.
    buffer_loads,
    /// Pages read back: from the file.
    store_loads,
    /// Of these, pages that are kept as they are.
    incompressible_loads,
    /// Of these, pages that a pool larger by an eighth would have had.
    near_loads,
    /// Of the pages read back, those found in blocks that an earlier read had brought.
    read_ahead_hits,
    /// Loads of an entry that is not there.
    missing_loads,
    /// Loads that failed because the file could not be read.
    read_errors,
    /// Loads that failed because what was read is not what was written.
    corrupt_loads,
    /// Pages dropped: freed, invalidated or replaced.
    invalidates,
    /// Clusters written.
    cluster_writes,
    /// Bytes written.
    store_write_bytes,
    /// Reads of the file, those that were started ahead included.
    store_reads,
    /// Bytes read.
    store_read_bytes,
    /// Writes that failed.
    write_errors,
    /// Pages moved out of sparse clusters.
    compacted_pages,
    /// Clusters whose disk space was given back.
    discarded_clusters,
}
