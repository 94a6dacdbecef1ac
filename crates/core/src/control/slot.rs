//! One process of the tree: its place in the block, and what others may see and count of it.
//!
//! A slot is the process's own. Others write there what is for it (orders, turns, shares, pages
//! that it is charged), and free it when it is gone. The id says in which state of its life the
//! slot is (`life.rs`).

use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

#[cfg(doc)]
use super::Tree;
use super::counters::Counter;
use super::orders::Orders;
use super::settings::Mechanism;
use super::share::Share;
use super::turns::Turn;
use super::wish::Wish;
use crate::latency::Latency;

/// This bit in a slot's `id` marks a process that exec'd while relatives shared memory with it: the
/// shared pages that it counted stay counted until the relatives have looked.
pub(super) const DEPARTED: u32 = 1 << 31;
/// The slot of a child that is being forked has this in its `id`.
pub(super) const UNBORN: u32 = 1 << 30;
/// Ids are below this.
pub(super) const ID_END: u32 = 1 << 30;
/// In place of an id while a slot is being freed.
pub(super) const RETIRING: u32 = u32::MAX;

/// Ancestors by fork, none of which has exec'd, whose extents a process may read. A longer line of
/// them has the extents of the run kept to its end.
pub(super) const ANCESTORS: usize = 16;

/// Largest count of pages, in pages: 2^40, more than any address space has (2^35), and so little
/// that sums of some thousands of them do not overflow. A larger one is scribble.
pub(super) const MOST_PAGES: i64 = 1 << 40;

/// A process id with the namespace in which it means something (0: unknown).
pub(super) const fn whose(namespace: u32, pid: u32) -> u64 {
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
    pub(super) whose: AtomicU64,
    /// The process id as `uzswap run` sees it, below the id for which that holds.
    pub(super) seen: AtomicU64,
    /// When the slot was claimed.
    pub(super) claimed_at_ns: AtomicU64,
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
    pub(super) gone_at_ns: AtomicU64,
    /// Orders to the process from outside.
    pub orders: Orders,
    /// Pages that another process wants to read or write.
    pub wish: Wish,
    /// Whether it is the process's turn to run.
    pub turn: Turn,
    /// How much memory it may have.
    pub share: Share,
    pub counters: [AtomicU64; Counter::COUNT],
    /// How long the faults of this process took.
    pub latency: Latency,
    /// Ids of the slots of this process's ancestors by fork, whose extents it may read beside its
    /// own; 0: no more.
    pub(super) reads: [AtomicU32; ANCESTORS],
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
