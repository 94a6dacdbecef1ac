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
//! # Trust in the shared block
//! Nobody can trust it. A process of the tree that has given its rights up can still write all of
//! it. So nothing in it decides what another process executes, opens or encrypts: that is in the
//! settings. A value read from it is a count, or is brought within bounds before it is used as an
//! index, an address, a divisor or a time. A process that scribbles over the block can spoil the
//! accounting of the tree, make its processes page more or find no slot and run unmanaged, and make
//! them wait, for a bounded time each; nothing else.

mod counters;
pub mod handles;
mod leases;
pub mod orders;
mod recount;
pub mod room;
mod settings;
pub mod share;
pub mod trace;
pub mod turns;

pub use counters::{Counter, Fold};
pub use recount::Recount;
pub use settings::{HugePages, Mechanism, PATH_BYTES, Settings};

use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use crate::latency::{FaultKind, Histogram, Latency};
use crate::store::extents::Leases;
use crate::sys::{fd, thread_exists};
use leases::ANCESTORS;
use orders::Orders;
use room::Room;
use share::Share;
use turns::{Referee, Turn};

/// The environment variable that names the two descriptors, see [`handles`].
pub const CONTROL_FD_ENV: &str = "UZSWAP_CONTROL_FD";
/// The environment variable that names the program which the library, executed by itself, boots.
pub const PROGRAM_ENV: &str = "UZSWAP_PROGRAM";
/// Processes that can be counted at one time; more run unmanaged.
pub const MAX_PROCESSES: usize = 1024;

/// This bit in a slot's `id` marks a process that exec'd while relatives shared memory with it: the
/// shared pages that it counted stay counted until the relatives have looked.
const DEPARTED: u32 = 1 << 31;
/// The slot of a child that is being forked has this in its `id`.
const UNBORN: u32 = 1 << 30;
/// Ids are below this.
const ID_END: u32 = 1 << 30;
/// In place of an id while a slot is being freed.
const RETIRING: u32 = u32::MAX;
/// 10 s: a process of another pid namespace that has not locked its slot's byte by then never will,
/// since it has ended before.
const UNLOCKED_NS: u64 = 10_000_000_000;

/// A process id with the namespace in which it means something (0: unknown).
const fn whose(namespace: u32, pid: u32) -> u64 {
    (namespace as u64) << 32 | pid as u64
}

/// One process of the tree.
#[repr(C)]
pub struct Slot {
    /// The slot's owner, 0 when free: a number that no other process of the tree has or had. A
    /// process id would not do: two processes in namespaces of their own may have the same one.
    /// Claimed by compare-and-swap.
    pub id: AtomicU32,
    /// The [`Mechanism`] in use, 0 while dormant.
    pub mechanism: AtomicU32,
    /// Pages that this process counts in `Tree::used_pages`.
    pub used_pages: AtomicI64,
    /// Pages that it has said it holds, which a dormant process does not; of `Tree::held_pages`.
    pub held_pages: AtomicI64,
    /// Pages that this process counts in `Tree::needed_pages`.
    pub needed_pages: AtomicI64,
    /// Process id, as the process itself sees it, and its pid namespace: see [`whose`].
    whose: AtomicU64,
    /// The process id as `uzswap run` sees it, below the id for which that holds.
    seen: AtomicU64,
    /// When the slot was claimed.
    claimed_at_ns: AtomicU64,
    /// The parent of a forked process (its slot's id) whose memory the parent still counts, and
    /// when it was forked; 0: nobody.
    pub counted_by: AtomicU32,
    /// 1: the process holds the lock on the slot's byte of the control block (see
    /// [`Tree::lock_offset`]).
    pub is_locked: AtomicU32,
    pub forked_at_ns: AtomicU64,
    /// Pages of memory shared by fork that the parent has made this process count.
    pub charged_pages: AtomicI64,
    /// When the process last asked the kernel what of its memory is its own; 0: it shares none.
    pub looked_at_ns: AtomicU64,
    /// When a process first saw that this one is gone; 0: none has.
    gone_at_ns: AtomicU64,
    /// Orders to the process from outside.
    pub orders: Orders,
    /// Whether it is the process's turn to run.
    pub turn: Turn,
    /// How much memory it may have.
    pub share: Share,
    pub counters: [AtomicU64; Counter::COUNT],
    /// How long the faults of this process took.
    pub latency: Latency,
    /// Ids of the slots of this process's ancestors by fork, whose extents it may read beside its
    /// own; 0: no more.
    reads: [AtomicU32; ANCESTORS],
    /// How often the slot was claimed: tells a process from the next one in the slot, which may
    /// have the same process id after an exec.
    pub claims: AtomicU64,
}

impl Slot {
    /// The process in the slot, if one is: not one that is being forked, ends, or has left for
    /// another program. Its id as `uzswap run` sees it, as far as that is known
    /// ([`Tree::translate`]).
    pub fn process(&self) -> Option<u32> {
        let id = self.id.load(Ordering::Acquire);
        let seen = self.seen.load(Ordering::Acquire);
        let is_there = id != 0 && id & (DEPARTED | UNBORN) == 0;
        is_there.then(|| if (seen >> 32) as u32 == id { seen as u32 } else { self.own_pid() })
    }

    /// The process's id as it sees it itself.
    pub fn own_pid(&self) -> u32 {
        self.whose.load(Ordering::Acquire) as u32
    }

    /// The slot's owner now, for [`Tree::retire`].
    pub fn id(&self) -> u32 {
        self.id.load(Ordering::Acquire)
    }

    #[inline]
    pub fn add(&self, c: Counter, n: u64) {
        self.counters[c as usize].fetch_add(n, Ordering::Relaxed);
    }
    #[inline]
    pub fn set(&self, c: Counter, n: u64) {
        self.counters[c as usize].store(n, Ordering::Relaxed);
    }
    #[inline]
    pub fn max(&self, c: Counter, n: u64) {
        self.counters[c as usize].fetch_max(n, Ordering::Relaxed);
    }
    #[inline]
    pub fn get(&self, c: Counter) -> u64 {
        self.counters[c as usize].load(Ordering::Relaxed)
    }

    /// Pages that this process counts, within bounds whatever is in the block.
    #[inline]
    pub fn used(&self) -> i64 {
        self.used_pages.load(Ordering::Acquire).clamp(-MOST_PAGES, MOST_PAGES)
    }

    /// Pages that its parent has made it count, within bounds whatever is in the block.
    pub fn charged(&self) -> i64 {
        self.charged_pages.load(Ordering::Acquire).clamp(0, MOST_PAGES)
    }

    /// How the process is paged; `None` while it is dormant.
    pub fn mechanism(&self) -> Option<Mechanism> {
        Mechanism::from_u32(self.mechanism.load(Ordering::Relaxed))
            .filter(|m| *m != Mechanism::Auto)
    }
}

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

/// Largest count of pages, in pages: 2^40, more than any address space has (2^35), and so little
/// that sums of some thousands of them do not overflow. A larger one is scribble.
const MOST_PAGES: i64 = 1 << 40;

/// Things that happened once in some process and that the user must hear of, as bits of
/// `Tree::notices`. The runtime cannot print (the program owns its descriptors), so `uzswap run`
/// does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Notice {
    /// The backing store refused a write; nothing is lost, but no more is written.
    StoreFailed = 0,
    /// No mechanism works here; the program ran unmanaged.
    NoMechanism = 1,
    /// The limit cannot be held: the memory that must stay resident is larger.
    OverLimit = 2,
    /// More processes than slots; the rest ran unmanaged.
    TooManyProcesses = 3,
    /// A page did not verify when it was read back; the program got SIGBUS.
    CorruptPage = 4,
    /// A program of the tree could not be taken over (static or setuid).
    Unmanaged = 5,
    /// A process has no memory for the ring of `--trace`: the trace does not have it.
    NotTraced = 6,
    /// Paging ended in a process that lives on, because the process lost something that paging
    /// needs: it ran unmanaged from there.
    PagingEnded = 7,
    /// Paging ended because of a seccomp filter that the program installed: the process ran
    /// unmanaged from there.
    Sandboxed = 8,
    /// A page could not be read back because the system refused the call; the program got SIGBUS.
    LoadRefused = 9,
    /// A page was on a server that did not answer; the program got SIGBUS.
    RemoteLost = 10,
    /// A server no longer had a page that was written to it; the program got SIGBUS.
    RemoteGone = 11,
}

impl Notice {
    pub const ALL: [Notice; 12] = [
        Notice::StoreFailed,
        Notice::NoMechanism,
        Notice::OverLimit,
        Notice::TooManyProcesses,
        Notice::CorruptPage,
        Notice::Unmanaged,
        Notice::NotTraced,
        Notice::PagingEnded,
        Notice::Sandboxed,
        Notice::LoadRefused,
        Notice::RemoteLost,
        Notice::RemoteGone,
    ];
}

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

    /// Claims a slot for the process `pid`.
    pub fn claim(&self, pid: u32) -> Option<&Slot> {
        self.claim_with(0, pid)
    }

    /// `state`: [`UNBORN`], or nothing.
    fn claim_with(&self, state: u32, pid: u32) -> Option<&Slot> {
        let id = self.last_id.fetch_add(1, Ordering::AcqRel) % (ID_END - 1) + 1;
        for (i, s) in self.slots.iter().enumerate() {
            if s.id.compare_exchange(0, RETIRING, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                s.claims.fetch_add(1, Ordering::AcqRel);
                // Threads of the slot's last process may have been killed while they waited.
                s.turn.clear();
                s.reads.iter().for_each(|r| r.store(0, Ordering::Release));
                s.whose.store(whose(crate::sys::pid_namespace(), pid), Ordering::Release);
                s.claimed_at_ns.store(crate::sys::now_ns(), Ordering::Release);
                s.id.store(state | id, Ordering::Release);
                self.slots_high.fetch_max(i as u32 + 1, Ordering::AcqRel);
                return Some(s);
            }
        }
        None
    }

    /// Gives up the slots that a process which has just begun had before it exec'd: those under its
    /// process id whose lock nobody else holds, as `is_free` says. Pages that it counted for
    /// relatives stay counted.
    pub fn leave_former(&self, pid: u32, is_free: impl Fn(&Slot) -> bool) {
        let mine = whose(crate::sys::pid_namespace(), pid);
        for s in self.live_slots() {
            let id = s.id();
            let whose = s.whose.load(Ordering::Acquire);
            // Without a lock the namespace decides, as far as it is known.
            let is_locked = s.is_locked.load(Ordering::Acquire) != 0;
            let is_former =
                if is_locked { whose as u32 == pid && is_free(s) } else { whose == mine };
            if id & (DEPARTED | UNBORN) != 0 || !is_former {
                continue;
            }
            if s.charged_pages.load(Ordering::Acquire) > 0 {
                s.is_locked.store(0, Ordering::Release);
                let _ =
                    s.id.compare_exchange(id, DEPARTED | id, Ordering::AcqRel, Ordering::Relaxed);
            } else {
                self.retire(s, id);
            }
        }
    }

    /// Folds a slot's counters into the totals, takes its pages out of the sums and frees it. The
    /// caller that changes `id` to `RETIRING` first does it; a second caller does nothing.
    pub fn retire(&self, s: &Slot, id: u32) {
        if id == 0
            || id == RETIRING
            || s.id.compare_exchange(id, RETIRING, Ordering::AcqRel, Ordering::Relaxed).is_err()
        {
            return;
        }
        self.free(s);
    }

    /// Frees a slot whose `id` is `RETIRING`. Each number is taken out of the slot before it goes
    /// into a sum or out of one, so that nothing counts twice if another process began with it.
    fn free(&self, s: &Slot) {
        self.used_pages.fetch_sub(s.used_pages.swap(0, Ordering::AcqRel), Ordering::AcqRel);
        self.hold(s, 0);
        self.needed_pages.fetch_sub(s.needed_pages.swap(0, Ordering::AcqRel), Ordering::AcqRel);
        for c in Counter::ALL {
            let v = s.counters[*c as usize].swap(0, Ordering::AcqRel);
            let total = &self.totals[*c as usize];
            match c.fold() {
                Fold::Sum => _ = total.fetch_add(v, Ordering::AcqRel),
                Fold::Max => _ = total.fetch_max(v, Ordering::AcqRel),
                Fold::Gauge => {}
            }
        }
        s.latency.fold_into(&self.latency);
        s.is_locked.store(0, Ordering::Release);
        s.counted_by.store(0, Ordering::Release);
        s.charged_pages.store(0, Ordering::Release);
        s.looked_at_ns.store(0, Ordering::Release);
        s.gone_at_ns.store(0, Ordering::Release);
        s.orders.clear();
        s.turn.clear();
        s.share.unbound();
        self.mechanisms
            .fetch_or(1 << (s.mechanism.swap(0, Ordering::AcqRel) & 31), Ordering::AcqRel);
        s.id.store(0, Ordering::Release);
    }

    /// Claims a slot for the child that the process `parent` is about to fork.
    pub fn claim_for_child(&self, parent: u32) -> Option<&Slot> {
        self.claim_with(UNBORN, parent)
    }

    /// The parent says that its child exists, which it forked with `id` in the slot. The child's
    /// own statement ([`Tree::am_born`]) counts more.
    pub fn is_born(&self, s: &Slot, id: u32, parent: u32, child: u32) {
        let namespace = crate::sys::pid_namespace();
        let (from, to) = (whose(namespace, parent), whose(namespace, child));
        // `whose` changes before the id: a process that finds the new id reads `whose`.
        let _ = s.whose.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
        let _ = s.id.compare_exchange(id, id & !UNBORN, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// The child itself says that it exists: see [`Tree::is_born`].
    pub fn am_born(&self, s: &Slot, id: u32, child: u32) {
        s.whose.store(whose(crate::sys::pid_namespace(), child), Ordering::Release);
        let _ = s.id.compare_exchange(id, id & !UNBORN, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Frees the slot of a child that was not forked after all.
    pub fn not_born(&self, s: &Slot, id: u32) {
        self.retire(s, id);
    }

    /// Finds out under which process ids `uzswap run` sees the processes: the kernel names the
    /// holder of the lock on a slot's byte.
    pub fn translate(&self, control_fd: i32) {
        for s in self.live_slots() {
            let id = s.id();
            let is_known = (s.seen.load(Ordering::Acquire) >> 32) as u32 == id;
            if is_known || id & (DEPARTED | UNBORN) != 0 || s.is_locked.load(Ordering::Acquire) == 0
            {
                continue;
            }
            if let Some(at) = self.lock_offset(s)
                && let Ok(Some(pid)) = fd::lock_holder(control_fd, at)
                && s.id() == id
            {
                s.seen.store(u64::from(id) << 32 | u64::from(pid), Ordering::Release);
            }
        }
    }

    /// Where in the control block's file the lock of a slot's process lies: behind its end, one
    /// byte each. None: a slot that is not of this tree.
    pub fn lock_offset(&self, s: &Slot) -> Option<usize> {
        let i = self.slots.element_offset(s)?;
        Some(CONTROL_BYTES + i)
    }

    /// Whether a slot's process is gone, and its memory with it. `control_fd` is the control
    /// block's file. A process that could take no lock (or has not yet) is gone when its process id
    /// is, where that can be told.
    pub fn is_gone(&self, s: &Slot, control_fd: i32) -> bool {
        let id = s.id();
        let locked = s.is_locked.load(Ordering::Acquire) != 0;
        match self.lock_offset(s).filter(|_| locked).map(|at| fd::is_byte_locked(control_fd, at)) {
            // The lock may have gone to the next process in the slot meanwhile.
            Some(Ok(held)) => !held && s.id() == id,
            _ => id & DEPARTED != 0 || self.is_gone_unlocked(s),
        }
    }

    /// Whether a slot's process is gone, if it has taken no lock.
    fn is_gone_unlocked(&self, s: &Slot) -> bool {
        let whose = s.whose.load(Ordering::Acquire);
        let (namespace, pid) = ((whose >> 32) as u32, whose as u32);
        if namespace != 0 && namespace == crate::sys::pid_namespace() {
            return !thread_exists(pid);
        }
        // A process id of another namespace says nothing here. A time that is still to come is
        // nonsense.
        crate::sys::now_ns().wrapping_sub(s.claimed_at_ns.load(Ordering::Acquire)) > UNLOCKED_NS
    }

    /// Looks for processes that are gone, unless another process did within `notice_ns`: one look
    /// is enough for all. A process is retired `notice_ns` after it was first seen to be gone:
    /// until then its relatives can look at the memory that they shared with it.
    pub fn look_for_gone(&self, now_ns: u64, notice_ns: u64, is_gone: impl Fn(&Slot) -> bool) {
        let at = self.gone_looked_at_ns.load(Ordering::Acquire);
        // A time that is still to come is nonsense, and must not keep all processes from looking.
        let looks = now_ns.wrapping_sub(at) >= notice_ns
            && self
                .gone_looked_at_ns
                .compare_exchange(at, now_ns, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        if !looks {
            return;
        }
        for s in self.live_slots() {
            let id = s.id();
            if !is_gone(s) {
                continue;
            }
            match s.gone_at_ns.load(Ordering::Acquire) {
                0 => {
                    s.gone_at_ns.store(now_ns, Ordering::Release);
                    self.gone_found_at_ns.fetch_max(now_ns, Ordering::AcqRel);
                }
                since if now_ns.wrapping_sub(since) >= notice_ns => self.retire(s, id),
                _ => {}
            }
        }
    }

    /// When a process was last found to be gone.
    pub fn gone_found_at_ns(&self) -> u64 {
        self.gone_found_at_ns.load(Ordering::Acquire)
    }

    /// The slots of processes that exist, or did a moment ago.
    pub fn live_slots(&self) -> impl Iterator<Item = &Slot> {
        self.used_slots().iter().filter(|s| !matches!(s.id(), 0 | RETIRING))
    }

    /// Reserves the most pages that a dormant process could hold: they count against the limit, but
    /// nobody holds them, so the peaks stay.
    pub fn reserve(&self, s: &Slot, used_pages: i64) {
        let old = s.used_pages.swap(used_pages, Ordering::AcqRel);
        self.used_pages.fetch_add(used_pages.wrapping_sub(old), Ordering::AcqRel);
        self.hold(s, 0);
    }

    /// Reserves as [`Tree::reserve`], if the sum stays within the limit. Pages that do not fit must
    /// not be seen by other processes, even for a moment, as if they were held.
    pub fn try_reserve(&self, s: &Slot, pages: i64) -> bool {
        let more = pages.wrapping_sub(s.used_pages.load(Ordering::Acquire));
        let limit = self.limit();
        let add = |used: i64| {
            let sum = used.wrapping_add(more);
            (more <= 0 || sum <= limit).then_some(sum)
        };
        let fits = self.used_pages.fetch_update(Ordering::AcqRel, Ordering::Acquire, add).is_ok();
        if fits {
            s.used_pages.fetch_add(more, Ordering::AcqRel);
        }
        fits
    }

    /// Has a process count so many pages more, of memory that it shares with the caller. They are
    /// in the sum at once, however late the process itself notices.
    pub fn charge(&self, s: &Slot, pages: i64) {
        s.charged_pages.fetch_add(pages, Ordering::AcqRel);
        s.used_pages.fetch_add(pages, Ordering::AcqRel);
        self.used_pages.fetch_add(pages, Ordering::AcqRel);
    }

    /// Publishes the pages that a process holds now; the sums and peaks follow. Pages that dormant
    /// processes have reserved are in the sum and not in the peak: perhaps nobody holds them.
    pub fn publish(&self, s: &Slot, used_pages: i64, needed_pages: i64) {
        let change = |sum: &AtomicI64, own: &AtomicI64, now: i64| {
            let more = now.wrapping_sub(own.swap(now, Ordering::AcqRel));
            sum.fetch_add(more, Ordering::AcqRel).wrapping_add(more)
        };
        change(&self.used_pages, &s.used_pages, used_pages);
        let held = self.hold(s, used_pages);
        self.peak_used_pages.fetch_max(held, Ordering::Relaxed);
        let now = change(&self.needed_pages, &s.needed_pages, needed_pages);
        self.peak_needed_pages.fetch_max(now, Ordering::Relaxed);
        s.max(Counter::PeakUsedPages, used_pages.max(0) as u64);
        s.max(Counter::PeakNeededPages, needed_pages.max(0) as u64);
    }

    /// Sets the pages that a process says it holds; returns the sum over all processes.
    fn hold(&self, s: &Slot, pages: i64) -> i64 {
        let more = pages.wrapping_sub(s.held_pages.swap(pages, Ordering::AcqRel));
        self.held_pages.fetch_add(more, Ordering::AcqRel).wrapping_add(more)
    }

    /// Publishes the end of a dormant process that held `pages` at most.
    pub fn publish_last(&self, s: &Slot, pages: i64) {
        self.reserve(s, pages);
        self.note_peaks(pages, pages);
        s.max(Counter::PeakUsedPages, pages.max(0) as u64);
        s.max(Counter::PeakNeededPages, pages.max(0) as u64);
    }

    /// Pages that processes have said they hold, and need.
    pub fn said_pages(&self) -> [i64; 2] {
        [&self.held_pages, &self.needed_pages].map(|pages| pages.load(Ordering::Acquire))
    }

    /// Raises the peaks to pages that all processes together held, and needed, at one time.
    pub fn note_peaks(&self, used_pages: i64, needed_pages: i64) {
        self.peak_used_pages.fetch_max(used_pages, Ordering::Relaxed);
        self.peak_needed_pages.fetch_max(needed_pages, Ordering::Relaxed);
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) use super::zeroed_tree as tree;

    #[test]
    fn publishing_and_retiring_keep_the_sums() {
        let t = tree();
        let a = t.claim(10).unwrap();
        let b = t.claim(11).unwrap();
        t.publish(a, 100, 300);
        t.publish(b, 50, 50);
        t.publish(a, 80, 400);
        assert_eq!(t.used_pages.load(Ordering::Relaxed), 130);
        assert_eq!(t.peak_used_pages.load(Ordering::Relaxed), 150);
        // Pages that a dormant process has reserved are in the sum; those that it holds are in the
        // peak once `uzswap run` has looked.
        let c = t.claim(12).unwrap();
        t.reserve(c, 500);
        t.publish(a, 100, 400);
        assert_eq!(t.used_pages.load(Ordering::Relaxed), 650);
        assert_eq!(t.peak_used_pages.load(Ordering::Relaxed), 150);
        assert_eq!(t.said_pages(), [150, 450]);
        t.publish_last(c, 120);
        assert_eq!((t.said_pages()[0], t.peak_used_pages.load(Ordering::Relaxed)), (150, 150));
        t.retire(c, c.id());
        t.publish(a, 80, 400);
        a.add(Counter::Faults, 7);
        b.add(Counter::Faults, 1);
        a.latency.record(FaultKind::PoolLoad, 3000);
        b.latency.record(FaultKind::PoolLoad, 5000);
        a.mechanism.store(Mechanism::Protect as u32, Ordering::Release);
        let id = a.id();
        t.retire(a, id);
        t.retire(a, id);
        assert_eq!(t.mechanisms_used().collect::<Vec<_>>(), [Mechanism::Protect]);
        assert_eq!(t.used_pages.load(Ordering::Relaxed), 50);
        assert_eq!(t.peak_needed_pages.load(Ordering::Relaxed), 450);
        assert_eq!(t.total(Counter::Faults), 8);
        assert_eq!(t.total(Counter::PeakNeededPages), 400);
        assert_eq!(t.latency(FaultKind::PoolLoad).count(), 2);
        assert_eq!(t.latency(FaultKind::PoolLoad).sum_ns, 8000);
        assert_eq!(a.latency.count(FaultKind::PoolLoad), 0);
    }

    #[test]
    fn who_is_gone_is_noticed_once_for_all_and_counts_until_relatives_have_looked() {
        let t = tree();
        let a = t.claim(10).unwrap();
        t.publish(a, 100, 100);
        t.publish(t.claim(11).unwrap(), 50, 50);
        let is_gone = |s: &Slot| s.own_pid() == 10;
        let looks = |now: u64| {
            t.look_for_gone(now, 10, is_gone);
            (t.gone_found_at_ns(), t.used_pages.load(Ordering::Relaxed))
        };
        assert_eq!(looks(1000), (1000, 150));
        t.look_for_gone(1005, 10, |_| panic!("somebody has just looked"));
        assert_eq!(looks(1010), (1000, 50), "after its time");
        let b = t.claim(10).unwrap();
        t.publish(b, 30, 30);
        assert_eq!(looks(1020), (1020, 80), "the next in the slot has a time of its own");
    }

    #[test]
    fn an_exec_gives_up_the_slot_of_before_and_nobody_elses() {
        let t = tree();
        let (mine, other) = (t.claim(10).unwrap(), t.claim(10).unwrap());
        for s in [mine, other] {
            s.is_locked.store(1, Ordering::Relaxed);
            t.publish(s, 5, 5);
        }
        // Two processes 10, in namespaces of their own: the lock tells whose slot is whose.
        t.leave_former(10, |s| std::ptr::eq(s, mine));
        assert_eq!(t.used_pages.load(Ordering::Relaxed), 5);
        assert!(mine.process().is_none() && other.process() == Some(10));
        // Without a lock the namespace does.
        other.is_locked.store(0, Ordering::Relaxed);
        other.whose.store(whose(1, 10), Ordering::Relaxed);
        t.leave_former(10, |_| unreachable!("nobody has locked"));
        assert_eq!(other.process(), Some(10));
        assert!(!t.is_gone(other, -1), "it may be about to take its lock");
        other.claimed_at_ns.store(1, Ordering::Relaxed);
        assert!(crate::sys::now_ns() < UNLOCKED_NS || t.is_gone(other, -1));
    }

    #[test]
    fn a_slot_that_changed_hands_is_not_taken_from_the_next() {
        let t = tree();
        let s = t.claim(1).unwrap();
        let former = s.id();
        t.retire(s, former);
        let again = t.claim(1).unwrap();
        assert!(std::ptr::eq(s, again) && again.id() != former);
        t.retire(again, former);
        assert_eq!(again.process(), Some(1));
    }

    #[test]
    fn a_child_has_a_slot_before_it_exists() {
        let t = tree();
        let me = std::process::id();
        let s = t.claim_for_child(me).unwrap();
        let id = s.id();
        assert!(!t.is_gone(s, -1) && s.process().is_none());
        t.am_born(s, id, 77);
        t.is_born(s, id, me, 78);
        assert_eq!(s.process(), Some(77), "the child knows best");
        let s = t.claim_for_child(me).unwrap();
        t.not_born(s, s.id());
        assert_eq!(t.live_slots().count(), 1);
    }

    #[test]
    fn what_a_process_counted_for_relatives_outlives_its_exec() {
        let t = tree();
        let me = std::process::id();
        let old = t.claim(me).unwrap();
        t.publish(old, 500, 500);
        old.charged_pages.store(300, Ordering::Relaxed);
        t.reserve(old, 300);
        t.leave_former(me, |_| true);
        let new = t.claim(me).unwrap();
        assert!(!std::ptr::eq(old, new) && !t.is_gone(new, -1));
        assert!(t.is_gone(old, -1));
        assert_eq!(t.used_pages.load(Ordering::Relaxed), 300);
        t.retire(old, old.id());
        assert_eq!(t.used_pages.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_reservation_that_does_not_fit_is_not_made() {
        let t = tree();
        let (a, b) = (t.claim(10).unwrap(), t.claim(11).unwrap());
        t.limit_pages.store(100, Ordering::Relaxed);
        assert!(
            t.try_reserve(a, 60)
                && t.try_reserve(a, 70)
                && !t.try_reserve(b, 31)
                && t.try_reserve(b, 30)
        );
        assert_eq!(t.used_pages.load(Ordering::Relaxed), 100);
        t.limit_pages.store(50, Ordering::Relaxed);
        assert!(t.try_reserve(a, 40), "less always fits");
        assert_eq!(t.used_pages.load(Ordering::Relaxed), 70);
    }

    #[test]
    fn a_full_table_refuses() {
        let t = tree();
        for pid in 1..=MAX_PROCESSES as u32 {
            assert!(t.claim(pid).is_some());
        }
        assert!(t.claim(5000).is_none());
        assert!(t.notice(Notice::TooManyProcesses, 0));
        assert!(!t.notice(Notice::TooManyProcesses, 0));
    }
}
