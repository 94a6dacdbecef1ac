//! The runtime's block for each thread of the program: three stacks of its own, its holds, its view
//! of signals.
//!
//! The stacks lie below the block in its memory (`thread/stacks.rs`). Blocks are made by the parent
//! before a thread exists (the new thread may have nothing but missing memory under its feet) and
//! reused when their thread is gone; they are never unmapped.
//!
//! # Safety charter
//! A block is reached through the thread slot (a TLS word of our own) by its thread only, and its
//! stacks are used by that thread only. Fields shared with others are atomics.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use uzswap::pager::FaultStream;
use uzswap::pager::hold::ThreadHolds;
use uzswap::sys::mem::{PROT_READ, PROT_WRITE, map_anonymous};
use uzswap::sys::{PAGE_SIZE, nr};

mod sent;
mod stacks;

pub use sent::{INFO_WORDS, Info, Sent};
pub use stacks::{SS_AUTODISARM, SS_DISABLE, SS_ONSTACK, StackT};

use super::{PAGER, call};
use crate::patch::{ThreadStart, thread_slot_get, thread_slot_set};
use stacks::{ALTERNATE_BYTES, BLOCK_BYTES, RUNTIME_BYTES, TOTAL_BYTES};

/// In place of a thread's id as long as it has none: no thread of that id exists.
const COMING: u32 = u32::MAX >> 1;

/// One thread's block.
#[repr(C)]
pub struct ThreadBlock {
    /// For `patch/entry.rs`; first.
    pub start: UnsafeCell<ThreadStart>,
    pub tid: AtomicU32,
    holds: AtomicPtr<ThreadHolds>,
    pub stream: UnsafeCell<FaultStream>,
    /// The alternate stack that the program asked for.
    pub program_stack: UnsafeCell<StackT>,
    /// The program believes that the fault signal is blocked.
    pub fault_signal_blocked: AtomicU32,
    /// The fault signal that was sent while the program believed it blocked.
    pub sent: Sent,
    /// 1: the thread waits for such a signal, or is about to.
    pub awaits_sent: AtomicU32,
    /// 1: one has come since the thread looked last.
    pub sent_came: AtomicU32,
    /// For `signals/inherit.rs`.
    pub fault_signal_of_child: AtomicU32,
    /// The mask with which the thread's innermost call waits for signals (sigsuspend, ppoll), and
    /// [`WAITS`]; 0: it does not. A handler that comes takes it.
    pub wait_mask: AtomicU64,
    /// The signal mask with which a thread that is being made starts, and its maker goes on.
    pub saved_mask: AtomicU64,
    /// For blocking signals around the runtime: the mask, and the one in force before.
    pub block_words: [AtomicU64; 2],
    /// The mask with which a handler is entered. Signals are blocked until the kernel has read it.
    pub handler_mask: AtomicU64,
    /// Masks handed to the kernel in place of the program's: a small ring, since handlers nest.
    /// Only calls of the program take a place, so that one is still there when the kernel reads it:
    /// as many handlers as there are places would have to come in between, and make such calls.
    masks: [AtomicU64; 16],
    masks_next: AtomicUsize,
    /// Where libc keeps the word that cancels the thread; 0: its innermost call does not end by it.
    pub cancel_word: AtomicUsize,
    /// Memory for the environment of an exec, kept for the next (a vfork child cannot free it).
    pub exec_scratch: AtomicUsize,
    pub exec_scratch_len: AtomicUsize,
    /// Whether others use this thread's thread-local area, and with it the word that leads here:
    /// [`ALONE`], [`VFORKED`] or [`SHARED`].
    company: AtomicU32,
    /// 1: the block is a guest's, a process that shares the thread-local area of another's thread.
    pub is_guest: AtomicU32,
    /// 1: the guest is in the pager.
    pub is_busy: AtomicU32,
    next: AtomicPtr<ThreadBlock>,
    base: usize,
}

/// Set in `wait_mask` of a thread that waits: the bit of SIGKILL, which is in no mask.
pub const WAITS: u64 = 1 << 8;

const ALONE: u32 = 0;
/// A child of vfork may use the area, as long as the thread itself waits.
const VFORKED: u32 = 1;
/// Processes that share memory and run beside the thread may use the area: each has a block of its
/// own, found by its thread id.
const SHARED: u32 = 2;

// SAFETY: the cells are used by the owning thread only (charter).
unsafe impl Sync for ThreadBlock {}

/// All blocks ever made, a list that only grows.
static BLOCKS: AtomicPtr<ThreadBlock> = AtomicPtr::new(core::ptr::null_mut());

impl ThreadBlock {
    /// A block for a thread to come, with a place for its holds: a dead thread's, or a new one.
    /// None: there is no memory.
    pub fn allocate() -> Option<&'static ThreadBlock> {
        let block = Self::find_or_make()?;
        match PAGER.holds.register(COMING) {
            Ok(holds) => {
                block.holds.store(core::ptr::from_ref(holds).cast_mut(), Ordering::Release);
                Some(block)
            }
            Err(_) => {
                block.tid.store(0, Ordering::Release);
                None
            }
        }
    }

    /// Frees a block for which there is no thread after all.
    pub fn give_back(&self) {
        PAGER.holds.unregister(self.holds());
        self.tid.store(0, Ordering::Release);
    }

    fn find_or_make() -> Option<&'static ThreadBlock> {
        let mut p = BLOCKS.load(Ordering::Acquire);
        // SAFETY: blocks are never unmapped.
        while let Some(b) = unsafe { p.as_ref() } {
            let owner = b.tid.load(Ordering::Acquire);
            let dead = !b.is_busy_guest()
                && (owner == 0 || (owner != u32::MAX && !uzswap::sys::thread_exists(owner)));
            if dead
                && b.tid
                    .compare_exchange(owner, u32::MAX, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            {
                b.forget_holds(owner);
                b.reset();
                return Some(b);
            }
            p = b.next.load(Ordering::Acquire);
        }
        let base = map_anonymous(TOTAL_BYTES, PROT_READ | PROT_WRITE).ok()?;
        for guard in [base, base + PAGE_SIZE + ALTERNATE_BYTES] {
            // The call fails where the kernel has no mapping left. A stack that runs over would not
            // be noticed then, but none does.
            let _ = call!(nr::MPROTECT, guard, PAGE_SIZE, 0);
        }
        let at = (base + TOTAL_BYTES - BLOCK_BYTES) as *mut ThreadBlock;
        let top = base + TOTAL_BYTES - BLOCK_BYTES;
        // SAFETY: fresh memory of ours, large and aligned enough.
        let b = unsafe {
            at.write(ThreadBlock {
                start: UnsafeCell::new(ThreadStart::new(top, top - RUNTIME_BYTES)),
                tid: AtomicU32::new(u32::MAX),
                holds: AtomicPtr::new(core::ptr::null_mut()),
                stream: UnsafeCell::new(FaultStream::new()),
                program_stack: UnsafeCell::new(StackT { sp: 0, flags: SS_DISABLE, size: 0 }),
                fault_signal_blocked: AtomicU32::new(0),
                sent: Sent::new(),
                awaits_sent: AtomicU32::new(0),
                sent_came: AtomicU32::new(0),
                fault_signal_of_child: AtomicU32::new(0),
                wait_mask: AtomicU64::new(0),
                saved_mask: AtomicU64::new(0),
                block_words: [const { AtomicU64::new(0) }; 2],
                handler_mask: AtomicU64::new(0),
                masks: [const { AtomicU64::new(0) }; 16],
                masks_next: AtomicUsize::new(0),
                cancel_word: AtomicUsize::new(0),
                exec_scratch: AtomicUsize::new(0),
                exec_scratch_len: AtomicUsize::new(0),
                company: AtomicU32::new(ALONE),
                is_guest: AtomicU32::new(0),
                is_busy: AtomicU32::new(0),
                next: AtomicPtr::new(core::ptr::null_mut()),
                base,
            });
            &*at
        };
        let mut head = BLOCKS.load(Ordering::Acquire);
        loop {
            b.next.store(head, Ordering::Release);
            match BLOCKS.compare_exchange(head, at, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(b),
                Err(h) => head = h,
            }
        }
    }

    /// The id of the block's thread, if it has one.
    pub fn thread(&self) -> Option<u32> {
        Some(self.tid.load(Ordering::Acquire)).filter(|tid| (1..COMING).contains(tid))
    }

    /// Whether the block's guest is in the pager, or was when it was killed: what it has left there
    /// must not be forgotten.
    pub fn is_busy_guest(&self) -> bool {
        self.is_guest.load(Ordering::Relaxed) != 0 && self.is_busy.load(Ordering::Relaxed) != 0
    }

    /// Gives up what thread `tid` held, which is gone: it may have ended in the middle of a call,
    /// or in a way that we have not seen.
    fn forget_holds(&self, tid: u32) {
        // SAFETY: set to a table element that is never unmapped, or null.
        let holds = unsafe { self.holds.load(Ordering::Acquire).as_ref() };
        if tid != 0
            && let Some(holds) = holds
        {
            PAGER.holds.forget_gone(holds, tid);
        }
    }

    fn reset(&self) {
        self.company.store(ALONE, Ordering::Relaxed);
        self.is_guest.store(0, Ordering::Relaxed);
        self.is_busy.store(0, Ordering::Relaxed);
        self.holds.store(core::ptr::null_mut(), Ordering::Release);
        self.fault_signal_blocked.store(0, Ordering::Relaxed);
        self.sent.forget();
        self.awaits_sent.store(0, Ordering::Relaxed);
        self.sent_came.store(0, Ordering::Relaxed);
        self.fault_signal_of_child.store(0, Ordering::Relaxed);
        self.wait_mask.store(0, Ordering::Relaxed);
        // SAFETY: the block's thread is gone and the new one does not exist yet.
        unsafe {
            *self.stream.get() = FaultStream::new();
            *self.program_stack.get() = StackT { sp: 0, flags: SS_DISABLE, size: 0 };
            *self.start.get() = ThreadStart::new(self.runtime_stack_top(), self.hook_stack().end);
        }
    }

    /// Makes this the block of the calling thread: slot, holds, alternate stack.
    pub fn adopt(&'static self, tid: u32) {
        self.tid.store(tid, Ordering::Release);
        self.holds().adopt(tid);
        thread_slot_set(core::ptr::from_ref(self) as usize);
        self.arm_alternate_stack();
    }

    /// Makes this the block of the calling process, which shares the thread-local area of the
    /// thread that made it: not by the word there, but by its id.
    pub fn adopt_guest(&'static self, tid: u32) {
        // The thread that had the number before is gone.
        each_block(|b| {
            let had = b.tid.compare_exchange(tid, 0, Ordering::AcqRel, Ordering::Relaxed);
            if had.is_ok() && !b.is_busy_guest() {
                b.forget_holds(tid);
            }
        });
        self.tid.store(tid, Ordering::Release);
        self.holds().adopt(tid);
        // The guest may be killed at any moment, with holds in hand.
        // SAFETY: the caller's own block.
        unsafe { (*self.stream.get()).is_of_guest = true };
        self.arm_alternate_stack();
    }

    /// In the child after fork: the block's thread is the first of a process of its own, whatever
    /// the thread is that it is a copy of.
    fn become_own(&self, tid: u32) {
        self.tid.store(tid, Ordering::Release);
        self.company.store(ALONE, Ordering::Release);
        self.is_guest.store(0, Ordering::Relaxed);
        // SAFETY: the caller's own block.
        unsafe { (*self.stream.get()).is_of_guest = false };
    }

    /// Notes that the thread is about to make a process that shares its thread-local area. `waits`:
    /// the thread waits until that has ended or executed a program.
    pub fn expect_guest(&self, waits: bool) {
        self.company.fetch_max(if waits { VFORKED } else { SHARED }, Ordering::AcqRel);
        if waits {
            self.holds().lend();
        }
    }

    /// Called at each of the thread's calls, which its child of vfork makes, too: the thread gives
    /// up what the child held when it ended or executed a program.
    #[inline]
    pub fn take_back_holds(&self) {
        let holds = self.holds();
        if holds.is_lent() && self.tid.load(Ordering::Relaxed) == uzswap::sys::gettid() {
            holds.take_back();
        }
    }

    /// Notes that the thread is in the pager while `f` runs. A fault may come on top of another use
    /// of the pager, which goes on afterwards.
    pub fn busy<R>(&self, f: impl FnOnce() -> R) -> R {
        let before = self.is_busy.swap(1, Ordering::Relaxed);
        let result = f();
        self.is_busy.store(before, Ordering::Relaxed);
        result
    }

    /// Whether processes that share this memory may use the thread's thread-local area.
    pub fn is_in_company(&self) -> bool {
        self.company.load(Ordering::Acquire) != ALONE
    }

    pub fn holds(&self) -> &'static ThreadHolds {
        // SAFETY: set by `adopt` to a table element that is never unmapped.
        unsafe { &*self.holds.load(Ordering::Acquire) }
    }

    /// A place for a signal mask that the kernel is to read instead of the program's.
    pub fn mask_slot(&self, mask: u64) -> usize {
        let i = self.masks_next.fetch_add(1, Ordering::Relaxed) % self.masks.len();
        self.masks[i].store(mask, Ordering::Relaxed);
        self.masks[i].as_ptr() as usize
    }

    /// Retires the block of a thread that is about to end. Block and holds are reused once the
    /// kernel says that the thread is gone.
    pub fn retire(&self) {
        PAGER.holds.end(self.holds());
    }
}

/// Threads of the program that are alive, or about to be.
static THREADS: AtomicU32 = AtomicU32::new(0);

/// Counts one thread of the program more.
pub fn came() {
    THREADS.fetch_add(1, Ordering::AcqRel);
}

/// Whether the program has no other thread.
pub fn is_only_one() -> bool {
    THREADS.load(Ordering::Acquire) == 1
}

/// Counts one thread less. True: it was the last.
pub fn went() -> bool {
    THREADS.fetch_sub(1, Ordering::AcqRel) == 1
}

/// The block of the calling thread, if it has one.
#[inline]
pub fn existing() -> Option<&'static ThreadBlock> {
    let block = by_word()?;
    Some(if block.company.load(Ordering::Relaxed) == ALONE { block } else { of_caller(block) })
}

/// The block to which the caller's word leads. Another's, where the caller shares its thread-local
/// area.
#[inline]
pub fn by_word() -> Option<&'static ThreadBlock> {
    // SAFETY: the slot holds null or a block, and blocks are never unmapped.
    unsafe { (thread_slot_get() as *const ThreadBlock).as_ref() }
}

/// The block of the caller, which has found `block` by a word that it may share.
#[cold]
fn of_caller(block: &'static ThreadBlock) -> &'static ThreadBlock {
    let tid = uzswap::sys::gettid();
    if block.tid.load(Ordering::Acquire) == tid {
        // The thread does not wait any more.
        let _ = block.company.compare_exchange(VFORKED, ALONE, Ordering::AcqRel, Ordering::Relaxed);
        return block;
    }
    // A child of vfork has no block: it uses that of its parent, which waits. The block of a thread
    // that is gone may still have the child's number.
    let mut own = None;
    each_block(|b| {
        if b.is_guest.load(Ordering::Relaxed) != 0 && b.tid.load(Ordering::Acquire) == tid {
            own = Some(b);
        }
    });
    own.unwrap_or(block)
}

/// Calls `f` with each block that was ever made.
pub fn each_block(mut f: impl FnMut(&'static ThreadBlock)) {
    let mut p = BLOCKS.load(Ordering::Acquire);
    // SAFETY: blocks are never unmapped.
    while let Some(b) = unsafe { p.as_ref() } {
        f(b);
        p = b.next.load(Ordering::Acquire);
    }
}

/// Frees the blocks of other threads in the child after fork: nobody has them here.
pub fn after_fork_child(mine: &'static ThreadBlock, tid: u32) {
    each_block(|b| {
        if !core::ptr::eq(b, mine) {
            b.is_busy.store(0, Ordering::Relaxed);
            b.tid.store(0, Ordering::Release);
        }
    });
    mine.become_own(tid);
    THREADS.store(1, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_busy_until_the_outermost_use_of_the_pager_ends() {
        let t = ThreadBlock::allocate().unwrap();
        let is_busy = || t.is_busy.load(Ordering::Relaxed) != 0;
        assert!(!is_busy());
        t.busy(|| {
            assert!(t.busy(is_busy));
            assert!(is_busy(), "a fault was served on top");
        });
        assert!(!is_busy());
        t.give_back();
    }

    #[test]
    fn a_thread_that_has_ended_unseen_holds_nothing() {
        // Numbers of threads end at 4 million.
        let (t, gone) = (ThreadBlock::allocate().unwrap(), (1 << 30) - 1);
        let (start, end) = (0x6789_0000_0000, 0x6789_0000_0000 + PAGE_SIZE);
        t.tid.store(gone, Ordering::Release);
        t.holds().adopt(gone);
        t.holds().push(start, end, 0);
        assert!(PAGER.holds.is_held(start, end));
        // Blocks are made until one is that one: here, or by another test.
        let mut made = std::vec::Vec::new();
        while t.tid.load(Ordering::Acquire) == gone {
            made.push(ThreadBlock::allocate().unwrap());
        }
        assert!(!PAGER.holds.is_held(start, end));
        made.into_iter().for_each(ThreadBlock::give_back);
    }

    #[test]
    fn a_child_that_a_guest_forks_is_a_process_of_its_own() {
        let t = ThreadBlock::allocate().unwrap();
        t.is_guest.store(1, Ordering::Relaxed);
        // SAFETY: nobody else has the block.
        unsafe { (*t.stream.get()).is_of_guest = true };
        t.expect_guest(false);
        let me = uzswap::sys::gettid();
        t.become_own(me);
        // SAFETY: as above.
        assert!(!unsafe { (*t.stream.get()).is_of_guest } && !t.is_in_company());
        assert_eq!([&t.tid, &t.is_guest].map(|n| n.load(Ordering::Relaxed)), [me, 0]);
        t.give_back();
    }
}
