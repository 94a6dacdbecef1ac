//! The runtime's counters: the name, unit and meaning of each, in one place, for `--stats`, metrics
//! and reports.

macro_rules! counters {
    ($( $variant:ident $name:literal $fold:ident $doc:literal ),* $(,)?) => {
        /// Every counter of the runtime, in the order of `--stats`.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        pub enum Counter { $( #[doc = $doc] $variant ),* }

        impl Counter {
            pub const ALL: &'static [Counter] = &[ $( Counter::$variant ),* ];
            pub const COUNT: usize = Self::ALL.len();
            /// The key in the JSON of `--stats`.
            pub const fn name(self) -> &'static str {
                match self { $( Counter::$variant => $name ),* }
            }
            /// One line of explanation, with the unit.
            pub const fn doc(self) -> &'static str {
                match self { $( Counter::$variant => $doc ),* }
            }
            /// How the values of several processes combine.
            pub const fn fold(self) -> Fold {
                match self { $( Counter::$variant => Fold::$fold ),* }
            }
        }
    };
}

/// How a counter of a process that ended enters the totals of the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fold {
    /// Events: added.
    Sum,
    /// High-water marks of one process: the largest is kept.
    Max,
    /// State of a live process (pages it holds now): gone with the process.
    Gauge,
}

counters! {
    ResidentPages "resident_pages" Gauge "managed pages that are mapped now (4 KiB pages)",
    LimboPages "limbo_pages" Gauge
        "pages unmapped for their second chance, frame kept (4 KiB pages)",
    EdgePages "edge_pages" Gauge
        "pages in limbo, and those that left unseen so lately that they would be there (4 KiB \
         pages)",
    StoredPages "stored_pages" Gauge
        "pages held by the swap cache: same-filled, in the pool or written back (4 KiB pages)",
    PoolBytes "pool_bytes" Gauge "memory of the compressed pool and its tables (bytes)",
    PeakPoolBytes "peak_pool_bytes" Max "largest pool of one process, with its tables (bytes)",
    KeptBytes "kept_bytes" Gauge
        "of the pool, compressed copies of pages that were mapped again (bytes)",
    PeakKeptBytes "peak_kept_bytes" Max
        "of the pool, the most that compressed copies of pages that were mapped again took (bytes)",
    OutsidePages "outside_pages" Gauge
        "memory of the process that is not managed: stacks, small data, uzswap's own, and what the \
         kernel needs for it (4 KiB pages)",
    ManagedBytes "managed_bytes" Gauge "address space under management (bytes)",
    HugeBytes "huge_bytes" Gauge "of these, what the program asks to be in huge pages (bytes)",
    PeakUsedPages "peak_used_pages" Max
        "largest memory of one process counted against the limit (4 KiB pages)",
    PeakNeededPages "peak_needed_pages" Max
        "largest memory one process would have needed without uzswap (4 KiB pages)",
    Processes "processes" Sum "processes that were taken over",
    Activations "activations" Sum
        "processes whose memory could exceed the limit, so that paging was switched on",
    Faults "faults" Sum "faults served: touches of pages that were not mapped",
    FirstTouches "first_touches" Sum "of these, first touches (zero-filled)",
    LimboHits "limbo_hits" Sum "of these, pages that were still in limbo",
    QuickReturns "quick_returns" Sum
        "pages that went out unseen and were back so soon that they would have been in limbo (of \
         the loads)",
    Loads "loads" Sum "pages brought back from the swap cache",
    FaultAroundPages "fault_around_pages" Sum "pages mapped beside the one that faulted",
    AroundWastedPages "around_wasted_pages" Sum
        "of these, how many at most were not used: those in windows after which the thread's \
         accesses did not go on",
    AheadPages "ahead_pages" Sum
        "of these, pages that the evictor brought in ahead of a thread that reads on and on",
    HugeFaults "huge_faults" Sum "faults that brought a whole huge page (2 MiB) in",
    HugeWastedPages "huge_wasted_pages" Sum
        "pages of these that were not used: first touches still zero on their way out, and by \
         estimate, from one in 4 to 64 that came page by page instead, of what was brought back",
    HugeEvictions "huge_evictions" Sum "huge pages taken out as a whole",
    HeldPages "held_pages" Sum "pages brought in for a system call's buffers",
    Evictions "evictions" Sum "pages taken out of the program",
    CleanEvictions "clean_evictions" Sum
        "of these, pages that were as they had been loaded: nothing to compress or to write",
    ChangedPages "changed_pages" Sum "pages that left whose kept copy was no longer right",
    LoneEvictions "lone_evictions" Sum
        "evictions of pages that lay alone and left together with others",
    DirectEvictions "direct_evictions" Sum
        "evictions by a faulting thread because no memory was free",
    EvictionsRefused "evictions_refused" Sum "pages that could not be stored and stayed resident",
    ZeroPages "zero_pages" Sum "evicted pages that were all zero and needed no storage",
    Stores "stores" Sum "pages given to the swap cache",
    SameFilledPages "same_filled_pages" Sum "stored pages that are one repeated word",
    PoolStores "pool_stores" Sum "stored pages that were compressed into the pool",
    RejectPoor "reject_compress_poor" Sum
        "pages that did not shrink enough and went straight to the store",
    RejectFull "reject_pool_full" Sum
        "pages that found the pool at its limit and went straight to the store",
    RejectAlloc "reject_alloc_fail" Sum "pages for which the pool found no memory",
    RejectCodec "reject_compress_fail" Sum "pages on which the compressor failed",
    RejectReclaim "reject_reclaim_fail" Sum "pages refused because writing back older ones failed",
    RecompressedPages "recompressed_pages" Sum
        "pages of the pool that had not been asked for in a while and were compressed again, more \
         densely",
    GroupedPages "grouped_pages" Sum
        "pages that still were not, and were compressed once more, 64 KiB at a time",
    RecompressedSavedBytes "recompressed_saved_bytes" Sum "memory that both saved (bytes)",
    PoolLimitHits "pool_limit_hit" Sum "times the pool reached its limit",
    WrittenBackPages "written_back_pages" Sum "pages written to the backing store",
    ReadBackPages "read_back_pages" Sum "pages read from the backing store",
    RemoteLoads "remote_loads" Sum "reads that servers of the store answered (see --store)",
    RemoteTimeouts "remote_timeouts" Sum
        "requests and connections that came to nothing: no answer in time, or one not by the \
         protocol",
    RemoteSecondCopies "remote_second_copies" Sum
        "reads of another copy, because a server did not answer, or with wrong bytes",
    RemoteLoneCopies "remote_lone_copies" Sum
        "clusters (64 KiB) that one server took, and no second one",
    StoreErrors "store_errors" Sum "failed operations on the backing store",
    MoveBusy "move_busy" Sum "pages that the kernel would not move (shared or pinned)",
    Pauses "pauses" Sum
        "faults, and calls for more memory, that waited for the process's turn (see --no-turns)",
    PausedNs "paused_ns" Sum "how long they waited, all together (ns)",
    EfaultRetries "efault_retries" Sum "system calls repeated after EFAULT (the safety net)",
    HookedCalls "hooked_calls" Sum "system calls that passed through uzswap",
    Forks "forks" Sum "forks of a process with managed memory",
    OwnedPages "owned_pages" Sum
        "pages shared by fork that were written or evicted, and so became the process's own",
    UnmanagedExecs "unmanaged_execs" Sum
        "programs started in the tree that could not be taken over (setuid, not for x86-64, in a \
         chroot without the library, or a static or musl one that the library could not start)",
    UnpatchedSites "unpatched_sites" Sum "system-call instructions that could not be redirected",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_has_a_name_of_its_own_and_says_what_it_counts() {
        let mut names = std::collections::HashSet::new();
        for (i, counter) in Counter::ALL.iter().enumerate() {
            let (name, doc) = (counter.name(), counter.doc());
            assert_eq!(*counter as usize, i, "{name} has the place of another");
            assert!(names.insert(name), "two are called {name}");
            assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{name}");
            assert!(doc.len() > 10 && !doc.ends_with('.') && !doc.contains("  "), "{name}: {doc}");
            // A counter that is shown by its name alone has the unit of its name.
            if name.ends_with("_bytes") || name.ends_with("_ns") {
                let unit = if name.ends_with("_ns") { "(ns)" } else { "(bytes)" };
                assert!(doc.contains(unit), "{name}: {doc}");
            }
        }
        assert_eq!(names.len(), Counter::COUNT);
    }

    #[test]
    fn the_largest_is_kept_of_what_is_called_a_peak() {
        for counter in Counter::ALL {
            let is_peak = counter.name().starts_with("peak_");
            assert_eq!(counter.fold() == Fold::Max, is_peak, "{}", counter.name());
        }
    }
}
