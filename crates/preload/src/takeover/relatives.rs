//! The other processes of the run: which of them are alive, and what memory is shared with those
//! that are relatives by fork.
//!
//! **Alive.** Each process locks a byte of the control block's file. The kernel gives the lock back
//! after it has freed the process's memory, whatever ended it, before its parent has waited for it
//! and in any pid namespace. So a share goes back to the tree when its memory is free, not before
//! and not much later. A process that finds the lock free takes the slot away.
//!
//! **Shared.** The kernel knows each process's proportional part of memory that relatives share;
//! the question takes milliseconds, so it is asked now and then, and at once when a relative is
//! gone.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use uzswap::control::{CONTROL_BYTES, Notice, Slot, Tree};
use uzswap::sys::fd;

use super::descriptors::CONTROL_FD;
use super::{ACTIVE, PAGER, PID, outside, reserved, run, thread};

/// Shortest time between two questions about the share, in nanoseconds.
const ASK_AGAIN_NS: u64 = 10_000_000;

/// Ticks that are left until this process believes that it shares no memory with relatives by fork.
static RELATIVES: AtomicU32 = AtomicU32::new(0);
/// Ticks, a second in all, for which a process that shares nothing goes on looking for relatives.
const RELATIVES_TICKS: u32 = 100;
/// When the kernel was last asked for the share, and how long that took, in nanoseconds.
static SHARE_AT: AtomicU64 = AtomicU64::new(0);
static SHARE_COST: AtomicU64 = AtomicU64::new(0);

/// Notes that the process has forked, or is the child of a fork.
pub fn note_fork() {
    RELATIVES.store(RELATIVES_TICKS, Ordering::Release);
}

/// Whether relatives may share memory with this process.
pub fn may_share() -> bool {
    RELATIVES.load(Ordering::Acquire) != 0
}

/// Asks the kernel for this process's share of memory, as often as that is cheap, and at once when
/// a relative may have gone.
pub fn correct_share(at_once: bool) {
    let left = RELATIVES.load(Ordering::Acquire);
    if left == 0 {
        return;
    }
    let now = uzswap::sys::now_ns();
    let pause = (SHARE_COST.load(Ordering::Relaxed) * 8).max(ASK_AGAIN_NS);
    if now - SHARE_AT.load(Ordering::Relaxed) < pause && !at_once || !PAGER.may_correct_share() {
        return;
    }
    let counted = PAGER.used_pages();
    let Some((pss, anonymous)) = outside::share_of_anonymous() else { return };
    SHARE_AT.store(uzswap::sys::now_ns(), Ordering::Relaxed);
    SHARE_COST.store(uzswap::sys::now_ns() - now, Ordering::Relaxed);
    // A difference within a hundredth means that nothing is shared: the relatives have gone, or
    // have copies of their own.
    if pss + anonymous / 100 < anonymous {
        PAGER.correct_share(now, counted, pss);
        RELATIVES.store(RELATIVES_TICKS, Ordering::Release);
    } else {
        PAGER.set_unshared();
        let _ = RELATIVES.compare_exchange(left, left - 1, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Takes a slot of the tree by `claim`, at once or after processes that are gone have given theirs
/// back.
fn claim_by(
    tree: &'static Tree,
    claim: impl Fn() -> Option<&'static Slot>,
) -> Option<&'static Slot> {
    let slot = claim().or_else(|| {
        reap(tree);
        claim()
    });
    if slot.is_none() {
        tree.notice(Notice::TooManyProcesses, 0);
    }
    slot
}

/// A slot for this process, or one outside the tree where there is none: its counters are lost
/// then, nothing else. The process gives up the slot that it had before it exec'd.
pub fn claim(tree: &'static Tree, pid: u32) -> &'static Slot {
    let control = CONTROL_FD.load(Ordering::Relaxed);
    tree.leave_former(pid, |s| {
        // Our own locks do not show.
        tree.lock_offset(s).is_some_and(|at| fd::is_byte_locked(control, at) == Ok(false))
    });
    claim_by(tree, || tree.claim(pid)).unwrap_or_else(run::spare_slot)
}

/// The slot of a child to come, and its id.
pub type Expected = Option<(&'static Slot, u32)>;

/// Claims a slot for the child before fork, in which the pages that it will inherit count already.
/// Where paging is on, the pager counts for both.
pub fn expect_child() -> Expected {
    let (tree, me) = (PAGER.tree(), PID.load(Ordering::Relaxed));
    let slot = claim_by(tree, || tree.claim_for_child(me));
    tree.inherit_leases(PAGER.slot(), slot);
    let slot = slot?;
    if !ACTIVE.load(Ordering::Acquire) {
        reserved::inherited_pages().inspect(|pages| tree.reserve(slot, *pages));
    }
    Some((slot, slot.id()))
}

/// Notes the child after fork, in the parent: `child` as `expect_child` gave it. A negative process
/// id: there is none.
pub fn child_born(child: Expected, parent: u32, pid: isize) {
    let (tree, Some((slot, id))) = (PAGER.tree(), child) else { return };
    match u32::try_from(pid) {
        Ok(pid) => tree.is_born(slot, id, parent, pid),
        Err(_) => tree.not_born(slot, id),
    }
}

/// Takes the child's slot after fork, in the child.
pub fn am_born(child: Expected, pid: u32) {
    if let Some((slot, id)) = child {
        PAGER.tree().am_born(slot, id, pid);
    }
}

/// Locks the byte of the slot that this process has taken, and no other.
pub fn come_alive() {
    let (tree, slot) = (PAGER.tree(), PAGER.slot());
    let Some(at) = tree.lock_offset(slot) else { return };
    if fd::lock_only_byte(CONTROL_FD.load(Ordering::Relaxed), CONTROL_BYTES, at).is_ok() {
        slot.is_locked.store(1, Ordering::Release);
    }
}

/// Locks the slot's byte from a thread that stays as long as the process does: the lock belongs to
/// a table of descriptors, and the program may have moved to another one (unshare).
pub fn stay_alive() {
    if let Some(at) = PAGER.tree().lock_offset(PAGER.slot()) {
        let _ = fd::lock_byte(CONTROL_FD.load(Ordering::Relaxed), at);
    }
}

/// Whether a slot's process is gone. False for this process, whose own lock does not show here. May
/// be asked before the pager knows the tree.
fn is_gone(tree: &Tree, s: &Slot) -> bool {
    !PAGER.is_my_slot(s) && tree.is_gone(s, CONTROL_FD.load(Ordering::Relaxed))
}

/// When this process last heard that another one is gone.
static HEARD_AT: AtomicU64 = AtomicU64::new(0);

/// Whether another process has gone since this was last asked. One process of the tree looks for
/// all, once in `notice_ns`.
pub fn has_one_gone(now_ns: u64, notice_ns: u64) -> bool {
    let tree = PAGER.tree();
    tree.look_for_gone(now_ns, notice_ns, |s| is_gone(tree, s));
    let found = tree.gone_found_at_ns();
    HEARD_AT.swap(found, Ordering::Relaxed) != found
}

/// Gives the shares of processes that are gone back, at once.
pub fn reap(tree: &'static Tree) {
    for s in tree.live_slots() {
        let id = s.id();
        if is_gone(tree, s) {
            tree.retire(s, id);
        }
    }
}

/// Reserves so many pages for this dormant process, if they fit beside what the others hold or have
/// reserved.
pub fn reserve(pages: i64) -> bool {
    PAGER.try_reserve(pages) || {
        reap(PAGER.tree());
        PAGER.try_reserve(pages)
    }
}

/// Whether the processes hold, or have reserved, more than the limit. Those that are gone hold
/// nothing.
pub fn is_tree_full() -> bool {
    !has_room(0)
}

/// Whether so many pages more would fit beside those that the processes hold or have reserved.
pub fn has_room(pages: i64) -> bool {
    let tree = PAGER.tree();
    let fits = || tree.used() + pages <= tree.limit();
    fits() || {
        reap(tree);
        fits()
    }
}

/// Leaves the tree at the end of the process. If it was paging, its memory is not free yet, and
/// other threads may still wait for their turn: its share counts until another process sees that it
/// has gone.
pub fn leave() {
    let me = PAGER.slot();
    let ends_slowly = PAGER.active().is_some() || !thread::is_only_one();
    let is_seen_to = me.is_locked.load(Ordering::Relaxed) != 0 && ends_slowly;
    if !is_seen_to {
        PAGER.tree().retire(me, me.id());
    }
}

#[cfg(test)]
mod tests {
    #![allow(unsafe_code)]

    use super::*;
    use uzswap::sys::mem::{PROT_READ, PROT_WRITE, map_anonymous};

    fn tree() -> &'static Tree {
        let at = map_anonymous(size_of::<Tree>(), PROT_READ | PROT_WRITE).unwrap();
        // SAFETY: fresh memory of ours; a tree of zeros is one, as that of a new run.
        unsafe { &*(at as *const Tree) }
    }

    #[test]
    fn a_slot_comes_from_a_process_that_is_gone_before_it_is_said_that_there_is_none() {
        let (tree, me) = (tree(), uzswap::sys::getpid());
        // Numbers of processes end at 4 million.
        let gone = tree.claim((1 << 30) - 1).unwrap();
        let alive = tree.claim(me).unwrap();
        let only_the_gone_ones = || if gone.id() == 0 { tree.claim(me) } else { None };
        let slot = claim_by(tree, only_the_gone_ones).unwrap();
        assert!(core::ptr::eq(slot, gone) && alive.id() != 0);
        assert_eq!(tree.notices.load(Ordering::Acquire), 0);
        assert!(claim_by(tree, || None).is_none());
        assert_ne!(tree.notices.load(Ordering::Acquire), 0);
        assert!(slot.id() != 0 && alive.id() != 0, "they live");
    }
}
