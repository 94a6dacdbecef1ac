//! The pager: serves the faults of one process and evicts its cold pages.
//!
//! ```text
//!   touch of a missing page          system call with a buffer        mmap, munmap, mremap, madvise ...
//!          | signal                        | hold.rs                          | mapping.rs
//!          v                               v                                  v
//!     resolve.rs  <------------------ make_resident                     ranges, page words follow
//!          | no room?
//!          v                                                       background thread
//!     evict.rs: sweep.rs (resident -> limbo), age_out.rs (limbo -> swap cache) <---- evictor
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
//! the lock, or a claim, has all signals blocked, runs on memory that is not managed, and touches
//! no managed memory but through the mechanism.
//!
//! Architecture invariant: nothing here allocates after activation, logs, or calls libc.

mod activate;
mod active;
mod advise;
mod age_out;
mod ahead;
mod balance;
mod bring_in;
mod claim;
mod ending;
mod evict;
mod fill;
mod guard;
pub mod hold;
mod huge;
mod huge_sampling;
mod mapping;
#[cfg(any(test, feature = "testing"))]
pub mod model;
mod protection;
mod reclaim;
mod record;
mod refusal;
mod resolve;
mod room;
pub mod sampling;
mod shared;
mod size;
mod stream;
mod sweep;
mod timing;
mod together;
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

use crate::cache::Counters as CacheCounters;
use crate::control::trace::Ring;
use crate::control::{Counter, Notice, Slot, Tree};
use crate::policy::WINDOW_LOCKED_PAGES;
use crate::policy::limbo::Limbo;
use crate::policy::trail::Trail;
use crate::region::{PageTable, Ranges};
use crate::store::extents::set_owner;
use crate::sys::contention::Class;
use crate::sys::mem::Mapping;
use crate::sys::sync::{Mutex, MutexGuard};
use crate::sys::{PAGE_SIZE, Result};
use ahead::Ahead;
use balance::Balance;
use claim::Claims;
use hold::Holds;
use huge_sampling::Units;
use refusal::Refusals;
use room::Room;
use sampling::Watched;
use shared::Sharing;
use together::Lone;

/// Pages that a process may keep mapped however full the tree is: below that it could not make
/// progress.
const MIN_PAGES: i64 = 256;
/// [`MIN_PAGES`] of a process that waits for its turn.
const PAUSED_PAGES: i64 = 32;

/// [`State::by_limbo`] when all pages leave by way of limbo.
const ALL_BY_LIMBO: usize = 1024;

/// How many of the run's counters are counted by the cache.
const CACHE_EVENTS: usize = 15;

fn cache_events(c: &CacheCounters) -> [(Counter, u64); CACHE_EVENTS] {
    [
        (Counter::SameFilledPages, c.same_filled_stores),
        (Counter::PoolStores, c.pool_stores),
        (Counter::ChangedPages, c.changed_pages),
        (Counter::RejectPoor, c.reject_compress_poor),
        (Counter::RejectFull, c.reject_full),
        (Counter::RejectAlloc, c.reject_alloc_failed),
        (Counter::RejectCodec, c.reject_compress_failed),
        (Counter::RejectReclaim, c.reject_reclaim_failed),
        (Counter::RecompressedPages, c.recompressed_pages),
        (Counter::GroupedPages, c.group_stores),
        (Counter::RecompressedSavedBytes, c.recompressed_saved_bytes),
        (Counter::PoolLimitHits, c.pool_limit_hits),
        (Counter::WrittenBackPages, c.written_back_pages),
        (Counter::ReadBackPages, c.store_loads),
        (Counter::StoreErrors, c.write_errors + c.read_errors),
    ]
}

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
    /// So many of 1024 pages that leave go by way of limbo.
    by_limbo: usize,
    ahead: Ahead,
    /// The part of `ahead` that the evictor has in hand.
    coming: Ahead,
    units: Units,
    watched: Watched,
    /// Some thread fills a huge page in the mechanism's dock.
    is_dock_taken: bool,
    /// Buffer for loads: WINDOW_LOCKED_PAGES pages. A thread that loads several has it meanwhile.
    bounce: Option<Mapping>,
}

impl State {
    /// Whether some thread has a part of limbo in hand, or pages that leave together: memory is
    /// about to be freed.
    fn is_claimed(&mut self) -> bool {
        self.limbo.claimed() > 0 || self.lone.are_leaving()
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
    /// Bumped, then futex-woken, when a claim ends that some thread waits for.
    claims_ended: AtomicU32,
    /// Pages that were written while they, or their neighbours, were leaving together, since the
    /// last look.
    disturbed: AtomicU32,
    /// Pages that left without limbo so far: the clock of `policy/ghost.rs`.
    dropped: AtomicU64,
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
                    by_limbo: ALL_BY_LIMBO,
                    ahead: Ahead::NOTHING,
                    coming: Ahead::NOTHING,
                    units: Units::new(),
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
            claims_ended: AtomicU32::new(0),
            disturbed: AtomicU32::new(0),
            dropped: AtomicU64::new(0),
            came_back: AtomicU32::new(0),
            own: AtomicI64::new(0),
            pool: AtomicI64::new(0),
            inherited_events: [const { AtomicU64::new(0) }; CACHE_EVENTS],
            sharing: Sharing::new(),
            refusals: Refusals::new(),
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

    /// Switches paging on. The caller attaches the ranges (`activate_ranges`) under the same lock.
    pub fn set_active(&self, s: &mut Locked<'_>, active: &'static mut Active) -> Result<()> {
        s.limbo.init(active.slots, active.blocks)?;
        crate::sys::mem::keep_spare()?;
        // The buffer's frames are taken as windows grow: in a tree of many processes most never
        // need them all.
        s.bounce = Some(Mapping::new(WINDOW_LOCKED_PAGES * PAGE_SIZE)?);
        self.slot().mechanism.store(active.kind as u32, Ordering::Release);
        crate::sys::tsc::ask();
        self.room.begin();
        self.add(Counter::Activations, 1);
        self.balance.begin(active.pool_percent, active.has_store);
        self.limit_pool(active);
        self.active.store(active, Ordering::Release);
        Ok(())
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

    /// Asks the cache how much memory it takes now. Called after pages were given to it or taken
    /// from it.
    pub(super) fn recount_own(&self) {
        if let Some(a) = self.active() {
            let own_bytes = a.cache.footprint_bytes() + self.table.bytes();
            let pages = (own_bytes / PAGE_SIZE) as i64;
            let given_back = self.own.swap(pages, Ordering::Relaxed) - pages;
            if given_back > 0 {
                self.count_given_back(given_back);
            }
            self.pool.store((a.cache.pool_bytes() / PAGE_SIZE) as i64, Ordering::Relaxed);
        }
    }

    fn pool_pages(&self) -> i64 {
        self.pool.load(Ordering::Relaxed)
    }

    /// Pages of this process that count against the limit.
    pub fn used_pages(&self) -> i64 {
        let all = self.resident_pages()
            + self.limbo_pages()
            + self.own_pages()
            + self.outside.load(Ordering::Relaxed);
        all - self.uncounted_pages()
    }

    /// Pages that the process would hold without uzswap, except those that it shares with relatives
    /// and that count there.
    pub fn needed_pages(&self) -> i64 {
        self.resident_pages()
            + self.limbo_pages()
            + self.stored_pages()
            + self.outside.load(Ordering::Relaxed)
            - self.needed_by_relatives()
    }

    /// The limit that the tree leaves to this process.
    pub fn limit_pages(&self) -> i64 {
        let t = self.tree();
        t.limit() - (t.used() - self.published_pages()).max(0)
    }

    /// Pages that this process uses, as the tree knows.
    fn published_pages(&self) -> i64 {
        self.slot().used()
    }

    /// Publishes how many pages this process uses, when that has changed enough to matter.
    pub fn publish(&self, always: bool) {
        let used = self.used_pages();
        if always || (used - self.published_pages()).abs() >= 32 {
            self.tree().publish(self.slot(), used, self.needed_pages());
        }
    }

    /// Reserves the pages that a dormant process could use at most.
    pub fn reserve(&self, pages: i64) {
        self.tree().reserve(self.slot(), pages);
    }

    /// [`Self::reserve`], if the tree's limit leaves room.
    pub fn try_reserve(&self, pages: i64) -> bool {
        self.tree().try_reserve(self.slot(), pages)
    }

    /// Publishes the pages that a dormant process held at its end, by the kernel's count.
    pub fn publish_final(&self, pages: i64) {
        self.tree().publish_last(self.slot(), pages);
    }

    /// Sets the anonymous memory of the process that is not managed, from the kernel's own count.
    pub fn set_outside(&self, anonymous_pages: i64) {
        self.recount_own();
        let known = self.resident_pages() + self.limbo_pages() + self.own_pages();
        self.outside.store((anonymous_pages - known).max(0), Ordering::Relaxed);
    }

    pub fn outside_pages(&self) -> i64 {
        self.outside.load(Ordering::Relaxed)
    }

    /// Writes the gauges into the shared slot.
    pub fn publish_gauges(&self) {
        let s = self.slot();
        s.set(Counter::ResidentPages, self.resident_pages().max(0) as u64);
        s.set(Counter::LimboPages, self.limbo_pages().max(0) as u64);
        s.set(Counter::StoredPages, self.stored_pages().max(0) as u64);
        s.set(Counter::OutsidePages, self.outside_pages() as u64);
        s.set(Counter::ManagedBytes, self.ranges.total_bytes() as u64);
        s.set(Counter::HugeBytes, self.ranges.huge_bytes() as u64);
        if let Some(a) = self.active() {
            let pool = a.cache.footprint_bytes() as u64;
            s.set(Counter::PoolBytes, pool);
            s.max(Counter::PeakPoolBytes, pool);
            let c = a.cache.counters();
            s.set(Counter::KeptBytes, c.kept_bytes);
            s.max(Counter::PeakKeptBytes, c.kept_bytes);
            for (i, (counter, count)) in cache_events(&c).into_iter().enumerate() {
                s.set(
                    counter,
                    count.saturating_sub(self.inherited_events[i].load(Ordering::Relaxed)),
                );
            }
            let remote = a.cache.remote_counts();
            s.set(Counter::RemoteLoads, remote.loads);
            s.set(Counter::RemoteTimeouts, remote.timeouts);
            s.set(Counter::RemoteSecondCopies, remote.second_copies);
            s.set(Counter::RemoteLoneCopies, remote.lone_copies);
            if let Some(e) = a.cache.store_failure() {
                self.tree().notice(Notice::StoreFailed, e.0);
            }
        }
    }

    /// Notes, in the child after fork, that the cache's counts so far are the parent's.
    fn inherit_events(&self, active: &Active) {
        for (inherited, (_, count)) in
            self.inherited_events.iter().zip(cache_events(&active.cache.counters()))
        {
            inherited.store(count, Ordering::Relaxed);
        }
    }

    /// Asserts the pager's invariants, with the lock held and nothing in flight.
    pub fn check(&self, s: &Locked<'_>) {
        use crate::region::PageState;
        self.ranges.check();
        s.limbo.check();
        self.check_claims(s);
        let (mut resident, mut stored) = (0, 0);
        let mut counts = std::collections::BTreeMap::new();
        self.table.for_each_occupied(0, usize::MAX, |addr, m, e| {
            let c = counts.entry(addr >> 21).or_insert((0, 0, m.resident(), m.occupied()));
            c.1 += 1;
            assert!(self.ranges.find(addr).is_some(), "page {addr:#x} has contents but no range");
            self.check_shared(addr, e.state());
            match e.state() {
                PageState::Resident => {
                    resident += 1;
                    c.0 += 1;
                }
                PageState::Stored(_) => stored += 1,
                PageState::Limbo(slot) => assert_eq!(s.limbo.page(slot as usize), Some(addr)),
                PageState::None => unreachable!(),
            }
        });
        for (at, (r, o, mr, mo)) in counts {
            assert_eq!((r, o), (mr, mo), "counts of the stretch {at:#x}");
        }
        assert_eq!((resident, stored), (self.resident_pages(), self.stored_pages()));
    }
}
