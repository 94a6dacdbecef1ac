//! The stacks of a thread's block, and the alternate stack that the program believes in.
//!
//! ```text
//!  | guard | alternate signal stack | guard | hook stack (patch/frame.rs) | runtime stack | block |
//! ```
#![allow(unsafe_code)]

use uzswap::sys::{PAGE_SIZE, nr};

use super::super::call;
use super::ThreadBlock;
use crate::patch::HOOK_STACK_BYTES;

/// The alternate stack holds a kernel signal frame (up to 11 KiB with all vector state) and the
/// fault path.
pub(super) const ALTERNATE_BYTES: usize = 128 << 10;
/// The runtime stack holds the pager under a hook, codecs included, and the making of the cache.
/// Untouched, it costs nothing.
pub(super) const RUNTIME_BYTES: usize = 1 << 20;
pub(super) const BLOCK_BYTES: usize = PAGE_SIZE;
pub(super) const TOTAL_BYTES: usize =
    2 * PAGE_SIZE + ALTERNATE_BYTES + HOOK_STACK_BYTES + RUNTIME_BYTES + BLOCK_BYTES;

/// `stack_t` of the kernel.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct StackT {
    pub sp: usize,
    pub flags: i32,
    pub size: usize,
}

impl StackT {
    /// Whether a thread with this stack pointer is on the stack, as the kernel sees it: not where
    /// nothing of it is left, and not at all if it disarms itself.
    pub fn has(&self, sp: usize) -> bool {
        self.flags & (SS_DISABLE | SS_AUTODISARM) == 0 && self.reaches(sp)
    }

    /// Whether what grows down to `sp` lies on the stack.
    pub fn reaches(&self, sp: usize) -> bool {
        sp > self.sp && sp - self.sp <= self.size
    }
}

pub const SS_ONSTACK: i32 = 1;
pub const SS_DISABLE: i32 = 2;
pub const SS_AUTODISARM: i32 = 1 << 31;

impl ThreadBlock {
    /// The alternate stack that the kernel knows.
    pub fn alternate_stack(&self) -> StackT {
        StackT { sp: self.base + PAGE_SIZE, flags: 0, size: ALTERNATE_BYTES }
    }

    /// Tells the kernel of the alternate stack (per thread; not inherited by threads).
    pub fn arm_alternate_stack(&self) {
        let s = self.alternate_stack();
        let _ = call!(nr::SIGALTSTACK, &raw const s, 0);
    }

    pub fn runtime_stack_top(&self) -> usize {
        self.base + TOTAL_BYTES - BLOCK_BYTES
    }

    /// The alternate stack that the program asked for; empty if none.
    pub fn alternate_range(&self) -> core::ops::Range<usize> {
        // SAFETY: read by the owning thread.
        let s = unsafe { *self.program_stack.get() };
        if s.flags & SS_DISABLE != 0 { 0..0 } else { s.sp..s.sp.saturating_add(s.size) }
    }

    /// Whether an address lies on one of the block's stacks.
    pub fn owns(&self, sp: usize) -> bool {
        sp >= self.base && sp < self.base + TOTAL_BYTES
    }

    /// Whether this code runs on one of the block's stacks now that have room for all that the
    /// runtime does.
    #[inline]
    pub fn on_own_stack(&self) -> bool {
        let here = &raw const self as usize;
        self.owns(here) && !self.hook_stack().contains(&here)
    }

    /// The stack of hooks that have no room on the program's.
    pub fn hook_stack(&self) -> core::ops::Range<usize> {
        let end = self.runtime_stack_top() - RUNTIME_BYTES;
        end - HOOK_STACK_BYTES..end
    }

    /// The program's stack pointer when a signal interrupted at `sp`: below the hook's caller if
    /// the signal came in a hook that has a stack of its own.
    pub fn program_stack_pointer(&self, sp: usize) -> usize {
        if self.hook_stack().contains(&sp) {
            // SAFETY: the owning thread asks.
            unsafe { &*self.start.get() }.innermost_stack_pointer()
        } else {
            sp
        }
    }

    /// Called when a hook runs on the program's stack because no piece of the hook stack is left.
    /// Frees the pieces if the callers of all their hooks have been left without returning (longjmp
    /// out of a handler).
    pub fn forget_abandoned_hooks(&self, sp: usize) {
        let alternate = self.alternate_range();
        // SAFETY: the owning thread asks.
        let start = unsafe { &*self.start.get() };
        let is_left = |caller: usize| {
            !alternate.contains(&sp) && (alternate.contains(&caller) || caller <= sp)
        };
        if start.stack_pointers(self.hook_stack().end).all(is_left) {
            start.forget_hooks(self.hook_stack().end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_on_its_alternate_stack_where_the_kernel_says_so() {
        let stack = |flags| StackT { sp: 0x1000, flags, size: 0x2000 };
        let of = |flags| [0xfff, 0x1000, 0x1001, 0x3000, 0x3001].map(|sp| stack(flags).has(sp));
        assert_eq!(of(0), [false, false, true, true, false]);
        assert_eq!([of(SS_DISABLE), of(SS_AUTODISARM)], [[false; 5]; 2]);
        let endless = StackT { sp: 0x1000, flags: 0, size: usize::MAX };
        assert!(endless.has(usize::MAX) && !endless.has(0));
    }
}
