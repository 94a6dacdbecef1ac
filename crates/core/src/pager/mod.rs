//! The pager: serves the faults of one process and evicts its cold pages.
//!
//! ```text
//!   touch of a missing page          system call with a buffer       mmap, munmap, mremap, fork ...
//!          | signal                        | hold.rs                          | mapping.rs, fork.rs
//!          v                               v                                  v
//!     resolve.rs  <------------------ make_resident                      ranges; book.rs
//!          | serve.rs: no room?                                            ^
//!          v                                                       background thread
//!     evict.rs: sweep.rs (resident -> limbo), age_out.rs (limbo -> swap cache) <---- evictor
//! ```
//!
//! A file calls methods of the pager only in the rows below its own, and to its left in its row
//! (`tests/tests/tidy/pager.rs` reads this table):
//!
//! ```text
//!   calls and orders   mapping advise bring_in ending activate fork
//!   faults             resolve
//!   memory is wanted   evict reclaim
//!   pages come         window serve ahead
//!   pages go           take hide guard together age_out sweep sampling
//!   both ways          fill huge_state huge_usage huge to_cache protection marks
//!   amounts            timing turn room balance tuning refusal trial frames mappings
//!   the book           shared accounts size record claim book
//!   values             active hold stream huge_sampling
//! ```
//!
//! Vocabulary. *Dormant*: the memory that the process has mapped cannot exceed the limit, so ranges
//! are only noted. *Active*: the mechanism is on, missing pages fault. *Limbo*: see
//! `policy/limbo.rs`. *Held*: see `hold.rs`. *Used*: pages counted against the limit: resident +
//! limbo + swap cache + tables + memory of the process that is not managed.
//!
//! Lock order: the pager's `state` lock, then the locks that the swap cache takes inside. It
//! protects page words (writes), ranges (writes), limbo, the sweep's hand. Slow work is done
//! without it, by the holder of a claim (`claim.rs`). A call of the program that changes mappings
//! is made, and noted, under the lock, when no page of the range is claimed. A thread that takes
//! the lock, or a claim, has all signals blocked but the one of faults, runs on memory that is not
//! managed, and touches no managed memory but through the mechanism.
//!
//! Architecture invariant: nothing here allocates after activation, logs, or calls libc.

mod accounts;
mod activate;
mod active;
mod advise;
mod age_out;
mod ahead;
mod balance;
mod book;
mod bring_in;
mod claim;
mod ending;
mod evict;
mod fill;
mod fork;
mod frames;
mod guard;
mod hide;
pub mod hold;
mod huge;
mod huge_sampling;
mod huge_state;
mod huge_usage;
mod mapping;
mod mappings;
mod marks;
#[cfg(any(test, feature = "testing"))]
pub mod model;
mod protection;
mod reclaim;
mod record;
mod refusal;
mod resolve;
mod room;
mod sampling;
mod serve;
mod shared;
mod size;
mod stream;
mod sweep;
mod take;
mod timing;
mod to_cache;
mod together;
mod trial;
mod tuning;
mod turn;
mod window;

use core::sync::atomic::{
    AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};

pub use active::{Active, PagerStore};
pub use bring_in::BringIn;
pub use evict::{EVICTOR_PAGES, Reclaimed};
pub use reclaim::Reclaim;
pub use resolve::Fault;
pub use size::GIVEN_AHEAD;
pub use stream::FaultStream;
pub use turn::COMPETING_PAGES;

use crate::control::trace::Ring;
use crate::control::{Counter, Slot, Tree};
use crate::policy::limbo::Limbo;
use crate::policy::trail::Trail;
use crate::region::{PageTable, Ranges};
use crate::store::extents::set_owner;
use crate::sys::contention::Class;
use crate::sys::mem::Mapping;
use crate::sys::sync::{Mutex, MutexGuard};
use accounts::CACHE_EVENTS;
use ahead::Ahead;
use balance::Balance;
use claim::Claims;
use hold::Holds;
use huge_sampling::Sampling;
use mappings::Mappings;
use refusal::Refusals;
use room::Room;
use sampling::Watched;
use shared::Sharing;
use together::Lone;
use trial::Trial;

/// Pages that a process may keep mapped however full the tree is: below that it could not make
/// progress.
const MIN_PAGES: i64 = 256;
/// [`MIN_PAGES`] of a process that waits for its turn.
const PAUSED_PAGES: i64 = 32;

// Bits of a range's `prot`, which are the kernel's PROT_*.
const PROT_READ: u32 = 1;
const PROT_WRITE: u32 = 2;
const PROT_EXEC: u32 = 4;

/// Whether a range with `prot` is read and written, and nothing else: only such memory can be moved
/// by MOVE, or write-protected.
fn is_data(prot: u32) -> bool {
    prot & (PROT_READ | PROT_WRITE | PROT_EXEC) == PROT_READ | PROT_WRITE
}

/// The part of the pager that its lock protects.
pub struct State {
    claims: Claims,
    limbo: Limbo,
    /// Where the sweep goes on; and the pages that it takes first.
    hand: usize,
    trail: Trail,
    lone: Lone,
    ahead: Ahead,
    /// The part of `ahead` that the evictor has in hand.
    coming: Ahead,
    huge_sampling: Sampling,
    watched: Watched,
    /// Some thread fills a huge page in the mechanism's dock.
    is_dock_taken: bool,
    /// Buffer for loads: WINDOW_LOCKED_PAGES pages. A thread that loads several has it meanwhile.
    bounce: Option<Mapping>,
}

impl State {
    /// Whether some thread ages a part of limbo, or has pages that leave together: memory is
    /// about to be freed.
    fn is_ageing(&mut self) -> bool {
        self.limbo.ageing() > 0 || self.lone.are_leaving()
    }
}

/// One process's pager.
pub struct Pager {
    state: Mutex<State>,
    active: AtomicPtr<Active>,
    /// Paging ends, or has ended: see `ending.rs`. `ended`: the mechanism and the cache from
    /// before.
    ending: AtomicBool,
    ended: AtomicPtr<Active>,
    pub ranges: Ranges,
    pub table: PageTable,
    pub holds: Holds,
    resident: AtomicI64,
    limbo_pages: AtomicI64,
    stored: AtomicI64,
    outside: AtomicI64,
    /// Memory may be written without asking the page tables: see `together.rs`.
    pins: AtomicBool,
    /// Threads that read pages of the program without the lock, for which memory stays under the
    /// mechanism.
    copying: AtomicU32,
    /// The fewest pages of a unit, with protection faults: the kernel was short of mappings.
    unit_pages_least: AtomicUsize,
    mappings: Mappings,
    /// Bumped, then futex-woken, when a claim ends that some thread waits for.
    claims_ended: AtomicU32,
    /// Pages that were written while they, or their neighbours, were leaving together, since the
    /// last look.
    disturbed: AtomicU32,
    /// Pages that left without limbo so far: the clock of `policy/ghost.rs`.
    left_directly: AtomicU64,
    /// Pages that are back after the sweep's hand had taken them, since the trail was told.
    came_back: AtomicU32,
    /// Pages of memory that the cache and the tables take, and the pool's part of them, at the last
    /// count.
    own: AtomicI64,
    pool: AtomicI64,
    /// Events of the cache that happened before this process was forked.
    inherited_events: [AtomicU64; CACHE_EVENTS],
    sharing: Sharing,
    refusals: Refusals,
    trial: Trial,
    balance: Balance,
    room: Room,
    /// Wakes the evictor: bumped, then futex-woken.
    pub evictor_word: AtomicU32,
    evictor_asked: AtomicBool,
    /// Pages that the process used when memory was last not short: see `above_size`.
    size: AtomicI64,
    /// A dormant process has asked whether it is its turn.
    has_asked: AtomicBool,
    /// `Tree::stuck` as last seen.
    stuck_seen: AtomicU32,
    tree: AtomicPtr<Tree>,
    slot: AtomicPtr<Slot>,
    /// Where faults are recorded, if they are (`--trace`).
    ring: AtomicPtr<Ring>,
    /// See `sampling.rs`.
    is_watching: AtomicBool,
    /// The changes of the run's tuning that the process has followed.
    tuned: AtomicU32,
}

/// The lock, held.
pub type Locked<'a> = MutexGuard<'a, State>;

impl Default for Pager {
    fn default() -> Self {
        Self::new()
    }
}

impl Pager {
    pub const fn new() -> Pager {
        Pager {
            state: Mutex::of(
                Class::Pager,
                State {
                    claims: Claims::new(),
                    limbo: Limbo::new(),
                    hand: 0,
                    trail: Trail::new(),
                    lone: Lone::new(),
                    ahead: Ahead::NOTHING,
                    coming: Ahead::NOTHING,
                    huge_sampling: Sampling::new(),
                    watched: Watched::new(),
                    is_dock_taken: false,
                    bounce: None,
                },
            ),
            active: AtomicPtr::new(core::ptr::null_mut()),
            ending: AtomicBool::new(false),
            ended: AtomicPtr::new(core::ptr::null_mut()),
            ranges: Ranges::new(),
            table: PageTable::new(),
            holds: Holds::new(),
            resident: AtomicI64::new(0),
            limbo_pages: AtomicI64::new(0),
            stored: AtomicI64::new(0),
            outside: AtomicI64::new(0),
            pins: AtomicBool::new(false),
            copying: AtomicU32::new(0),
            unit_pages_least: AtomicUsize::new(0),
            mappings: Mappings::new(),
            claims_ended: AtomicU32::new(0),
            disturbed: AtomicU32::new(0),
            left_directly: AtomicU64::new(0),
            came_back: AtomicU32::new(0),
            own: AtomicI64::new(0),
            pool: AtomicI64::new(0),
            inherited_events: [const { AtomicU64::new(0) }; CACHE_EVENTS],
            sharing: Sharing::new(),
            refusals: Refusals::new(),
            trial: Trial::new(),
            balance: Balance::new(),
            room: Room::new(),
            evictor_word: AtomicU32::new(0),
            evictor_asked: AtomicBool::new(false),
            size: AtomicI64::new(0),
            has_asked: AtomicBool::new(false),
            stuck_seen: AtomicU32::new(0),
            tree: AtomicPtr::new(core::ptr::null_mut()),
            slot: AtomicPtr::new(core::ptr::null_mut()),
            ring: AtomicPtr::new(core::ptr::null_mut()),
            is_watching: AtomicBool::new(false),
            tuned: AtomicU32::new(0),
        }
    }

    /// Connects the pager to the run's shared counters, before anything else is called.
    pub fn connect(&self, tree: &'static Tree, slot: &'static Slot) {
        self.tree.store(core::ptr::from_ref(tree).cast_mut(), Ordering::Release);
        self.slot.store(core::ptr::from_ref(slot).cast_mut(), Ordering::Release);
        set_owner(slot.lease_owner());
    }

    pub fn tree(&self) -> &'static Tree {
        crate::sys::static_ref(&self.tree).expect("pager is connected")
    }

    pub fn slot(&self) -> &'static Slot {
        crate::sys::static_ref(&self.slot).expect("pager is connected")
    }

    /// Whether a slot is this process's.
    pub fn is_my_slot(&self, slot: &Slot) -> bool {
        core::ptr::eq(self.slot.load(Ordering::Acquire), slot)
    }

    /// The mechanism and the cache, once paging is on.
    #[inline]
    pub fn active(&self) -> Option<&'static Active> {
        crate::sys::static_ref(&self.active)
    }

    #[inline]
    pub fn add(&self, c: Counter, n: u64) {
        self.slot().add(c, n);
    }

    pub fn resident_pages(&self) -> i64 {
        self.resident.load(Ordering::Relaxed)
    }

    pub fn limbo_pages(&self) -> i64 {
        self.limbo_pages.load(Ordering::Relaxed)
    }

    pub fn stored_pages(&self) -> i64 {
        self.stored.load(Ordering::Relaxed)
    }

    /// Memory of uzswap's own that grows with use: pool, entries, page table; as of `recount_own`.
    fn own_pages(&self) -> i64 {
        self.own.load(Ordering::Relaxed)
    }

    fn pool_pages(&self) -> i64 {
        self.pool.load(Ordering::Relaxed)
    }

    /// The mechanism and the cache from before paging ended: their descriptors are still there.
    pub fn ended(&self) -> Option<&'static Active> {
        crate::sys::static_ref(&self.ended)
    }

    /// Whether paging has ended for good, or is about to: nothing is taken out any more.
    #[inline]
    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }
}
