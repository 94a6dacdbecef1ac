//! Memory that the processes of one run share: settings written once, and a block of counters.
//!
//! ```text
//!  uzswap run ─┬─ sealed memfd ─── Settings  (plain bytes: nobody can write them any more)
//!              └─ shared memfd ─┬─ Tree      (atomics: the limit's counter, one Slot per live process, totals)
//!                               └─ Ring      (`--trace` only: faults on their way into the file, see `trace.rs`)
//! ```
//!
//! `uzswap run` makes the two memfds and hands their numbers down in `UZSWAP_CONTROL_FD`
//! (`handles.rs`); the preload library maps the shared one in every process of the tree. A process
//! publishes into its own `Slot` only; a slot whose process has died is folded into the totals by
//! the process that finds it.
//!
//! This file has the block itself, and reads of it. Methods that change it are by subject:
//!
//! ```text
//!  amounts   pages that are held, needed and reserved, and their sums
//!  life      a slot is claimed, born, left, freed          recount   sums that killed processes leave wrong
//!  gone      is a slot's process still there?              leases    may an extent be read by anybody?
//! ```
//!
//! # Trust in the shared block
//! Nobody can trust it. A process of the tree that has given its rights up can still write all of
//! it. So nothing in it decides what another process executes, opens or encrypts: that is in the
//! settings. A value read from it is a count, or is brought within bounds before it is used as an
//! index, an address, a divisor or a time. A process that scribbles over the block can spoil the
//! accounting of the tree, make its processes page more or find no slot and run unmanaged, and make
//! them wait, for a bounded time each; nothing else.

mod amounts;
mod counters;
mod gone;
pub mod handles;
mod leases;
mod life;
mod notice;
pub mod orders;
mod recount;
pub mod room;
mod settings;
pub mod share;
mod slot;
pub mod trace;
pub mod tuning;
pub mod turns;
pub mod wish;

pub use counters::{Counter, Fold};
pub use notice::Notice;
pub use recount::Recount;
pub use settings::{HugePages, Mechanism, PATH_BYTES, Settings};
pub use slot::Slot;

use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use crate::latency::{FaultKind, Histogram, Latency};
use crate::store::extents::Leases;
use room::Room;
use slot::{MOST_PAGES, RETIRING};
use tuning::Tuning;
use turns::Referee;

/// The environment variable that names the two descriptors, see [`handles`].
pub const CONTROL_FD_ENV: &str = "UZSWAP_CONTROL_FD";
/// The environment variable that names the program which the library, executed by itself, boots.
pub const PROGRAM_ENV: &str = "UZSWAP_PROGRAM";
/// Processes that can be counted at one time; more run unmanaged.
pub const MAX_PROCESSES: usize = 1024;

/// The shared half of the control block. All atomics, all-zero at first.
#[repr(C)]
pub struct Tree {
    /// Pages that the live processes hold, against `memory_bytes`.
    pub used_pages: AtomicI64,
    /// Of these, pages that processes have said they hold. The others are reserved by dormant
    /// processes; `uzswap run` finds out now and then how many pages those hold.
    pub held_pages: AtomicI64,
    /// The most that processes have held, as far as known.
    pub peak_used_pages: AtomicI64,
    /// Pages that the live processes would hold without uzswap.
    pub needed_pages: AtomicI64,
    /// Largest value of `needed_pages`.
    pub peak_needed_pages: AtomicI64,
    /// Of all these sums, pages of shared memory that the processes map, each page once. `uzswap
    /// run` counts them.
    pub shared_pages: AtomicI64,
    /// The most shared memory that there was. Not all of it need have been counted.
    pub peak_shared_pages: AtomicI64,
    /// The limit now, in pages: `uzswap set` changes it.
    pub limit_pages: AtomicI64,
    /// The lowest limit that `uzswap run` has set because the memory group had no more room. 0: it
    /// has set none. -1: a user has set the limit, so it does not follow the group any more.
    pub lowest_limit_pages: AtomicI64,
    /// A message code for `uzswap run` to print once, see [`Notice`]; bit set.
    pub notices: AtomicU64,
    /// The errno of each notice; 0: it has none.
    pub notice_errnos: [AtomicU32; Notice::ALL.len()],
    /// How often a process wanted memory and had nothing of its own to give for it.
    pub stuck: AtomicU32,
    /// The id that was given last.
    last_id: AtomicU32,
    /// Highest slot ever used, plus one.
    pub slots_high: AtomicU32,
    /// The [`Mechanism`]s of processes that have ended, as bits.
    pub mechanisms: AtomicU32,
    /// While pages are watched, one in 2^`watch_log2` is (`pager/sampling.rs`). It never falls.
    pub watch_log2: AtomicU32,
    /// The referee: `uzswap run`, while it decides which processes run.
    pub referee: Referee,
    /// The question of how much memory the machine has left, and the answer.
    pub room: Room,
    /// How the processes compress.
    pub tuning: Tuning,
    /// When a process last looked for others that are gone, and when one was found.
    gone_looked_at_ns: AtomicU64,
    gone_found_at_ns: AtomicU64,
    /// Nanoseconds to a tick of the processor's time stamp counter, times 2^32; 0: not known,
    /// faults are not timed.
    pub tick_ns_q32: AtomicU64,
    /// The extents of a store on servers or on a device, by owner; see `store/extents.rs`.
    pub leases: Leases,
    /// 1: there may be processes without a slot that read extents, so none is taken back.
    pub keeps_leases: AtomicU32,
    pad: AtomicU32,
    /// Counters of processes that ended.
    pub totals: [AtomicU64; Counter::COUNT],
    /// How long the faults of processes that ended took.
    pub latency: Latency,
    pub slots: [Slot; MAX_PROCESSES],
}

/// Bytes of the shared memfd without a trace.
pub const CONTROL_BYTES: usize = size_of::<Tree>().next_multiple_of(4096);

impl Tree {
    /// The limit now, in pages, within bounds whatever is in the block.
    #[inline]
    pub fn limit(&self) -> i64 {
        self.limit_pages.load(Ordering::Acquire).clamp(0, MOST_PAGES)
    }

    /// Pages that the live processes hold, within bounds whatever is in the block.
    #[inline]
    pub fn used(&self) -> i64 {
        self.used_pages.load(Ordering::Acquire).clamp(-MOST_PAGES, MOST_PAGES)
    }

    /// The slots of processes that exist, or did a moment ago.
    pub fn live_slots(&self) -> impl Iterator<Item = &Slot> {
        self.used_slots().iter().filter(|s| !matches!(s.id(), 0 | RETIRING))
    }

    /// The slots that were ever used: to look at the others would be to allocate their memory.
    pub fn used_slots(&self) -> &[Slot] {
        &self.slots[..(self.slots_high.load(Ordering::Acquire) as usize).min(MAX_PROCESSES)]
    }

    /// The value of a counter over the whole run: ended processes and live ones. A slot that is
    /// being folded at this moment may be missing, but none counts twice: the totals are read
    /// first.
    pub fn total(&self, c: Counter) -> u64 {
        let ended = self.totals[c as usize].load(Ordering::Acquire);
        let live = self
            .used_slots()
            .iter()
            .filter(|s| s.id.load(Ordering::Relaxed) != 0)
            .map(|s| s.get(c));
        match c.fold() {
            Fold::Max => live.fold(ended, u64::max),
            Fold::Sum | Fold::Gauge => live.fold(ended, u64::wrapping_add),
        }
    }

    /// How long the faults of one kind took, over the whole run; as [`Tree::total`].
    pub fn latency(&self, kind: FaultKind) -> Histogram {
        let mut histogram = Histogram::default();
        self.latency.add_to(kind, &mut histogram);
        self.used_slots().iter().for_each(|s| s.latency.add_to(kind, &mut histogram));
        histogram
    }

    /// The mechanisms that were used in this run, by processes ended or alive.
    pub fn mechanisms_used(&self) -> impl Iterator<Item = Mechanism> {
        let live =
            self.used_slots().iter().map(|s| 1 << (s.mechanism.load(Ordering::Relaxed) & 31));
        let bits = live.fold(self.mechanisms.load(Ordering::Acquire), |all: u32, one| all | one);
        // Bit 0 stands for processes that stayed dormant.
        Mechanism::ALL
            .into_iter()
            .filter(move |m| *m != Mechanism::Auto && bits & 1 << *m as u32 != 0)
    }

    /// Sets a notice bit; true for the first caller.
    pub fn notice(&self, n: Notice, errno: i32) -> bool {
        let bit = 1u64 << n as u32;
        if self.notices.load(Ordering::Relaxed) & bit == 0 {
            self.notice_errnos[n as usize].store(errno as u32, Ordering::Relaxed);
        }
        self.notices.fetch_or(bit, Ordering::AcqRel) & bit == 0
    }
}

/// A tree of no process, for tests.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn zeroed_tree() -> Box<Tree> {
    // An all-zero Tree is valid: it consists of atomics.
    let layout = std::alloc::Layout::new::<Tree>();
    #[allow(unsafe_code)]
    // SAFETY: allocated zeroed with Tree's own layout; zero is valid for atomics.
    unsafe {
        Box::from_raw(std::alloc::alloc_zeroed(layout) as *mut Tree)
    }
}
