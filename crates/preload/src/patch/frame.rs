//! The structures that both sides of `entry.rs` know, its assembly and Rust: the registers of a
//! hook's caller, the hook's answer, and the block of a thread with its hook stack.
//!
//! # The hook stack
//! Go's functions run on stacks with room for a few hundred bytes, and musl's threads unmap the
//! stack that they are on. For such objects the slow path is `uzswap_patch_slow_own`: the frame
//! lies on a stack of the thread's block, and nothing of the program's is touched. A handler of the
//! program that comes in the middle of a hook may make calls, too: so that stack has *pieces*, each
//! hook takes the next one. Taking and giving back are single instructions each, so a handler in
//! between finds them whole. Where no piece is left, or the thread has no block yet, the program's
//! stack has to do.
//!
//! # Safety charter
//! `HookFrame` is only ever built by the assembly; a hook has exclusive access to its own. Frames
//! of hooks that have not returned lie at the upper ends of the used pieces of their thread's hook
//! stack, and are read there by that thread.
#![allow(unsafe_code)]

use core::mem::{offset_of, size_of};
use core::sync::atomic::{AtomicUsize, Ordering};

#[cfg(doc)]
use super::Hooks;

/// The program's registers at a system call, on the program's stack (below its red zone) or on the
/// hook stack.
#[repr(C)]
#[derive(Clone, Debug)]
pub struct HookFrame {
    /// The number (the kernel looks at the low 32 bits); with [`ACTION_RETURN`], the result.
    pub rax: u64,
    pub rdi: u64,
    pub rsi: u64,
    pub rdx: u64,
    pub r10: u64,
    pub r8: u64,
    pub r9: u64,
    pub rbx: u64,
    pub rbp: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    /// The address after the system-call instruction: in the program's text where the instruction
    /// stayed there, else in a trampoline. The instruction itself is at `ret - 2`.
    pub ret: u64,
    /// The program's stack pointer, for information.
    pub rsp: u64,
    /// For [`ACTION_CLONE_THREAD`].
    pub thread_block: *mut ThreadStart,
    /// The thread's block if the frame lies on its hook stack, else null.
    pub hook_stack: *const ThreadStart,
}

/// The hook has done the call; its result is in `frame.rax`. Edited argument registers reach the
/// program, which does not expect them to change: put them back.
pub const ACTION_RETURN: u64 = 0;
/// Restore everything and let the instruction run in its place, with no frame of ours on the stack.
pub const ACTION_INLINE: u64 = 1;
/// Run the `clone` or `clone3` of the frame, whose child is a thread with a stack of its own. All
/// signals must be blocked; `frame.thread_block` must be set.
pub const ACTION_CLONE_THREAD: u64 = 2;

/// A new thread finds the address of this in r9. Embed it as the first field of a block of your
/// own.
#[repr(C)]
#[derive(Debug)]
pub struct ThreadStart {
    /// The upper end of a stack that is never evicted, on which [`Hooks::thread_start`] runs (16
    /// KiB suffice for the stub's own needs several times over).
    pub stack_top: usize,
    pub(super) program_r9: u64,
    pub(super) program_rsp: u64,
    pub(super) ret: u64,
    /// The lower end of the used part of the hook stack: see the head.
    pub(super) hook_bottom: AtomicUsize,
    /// Pieces of the hook stack that are free.
    pub(super) hook_pieces: AtomicUsize,
}

impl ThreadStart {
    /// A block whose hook stack ends at `hook_top` and has [`HOOK_STACK_BYTES`].
    pub const fn new(stack_top: usize, hook_top: usize) -> ThreadStart {
        ThreadStart {
            stack_top,
            program_r9: 0,
            program_rsp: 0,
            ret: 0,
            hook_bottom: AtomicUsize::new(hook_top),
            hook_pieces: AtomicUsize::new(HOOK_PIECES),
        }
    }

    /// Frees all pieces: nobody is on the hook stack any more, since all hooks there were left
    /// without returning.
    pub fn forget_hooks(&self, hook_top: usize) {
        self.hook_bottom.store(hook_top, Ordering::Relaxed);
        self.hook_pieces.store(HOOK_PIECES, Ordering::Relaxed);
    }

    /// Gives the running hook's piece back before the hook returns, or takes it again: an exec of a
    /// child that shares this memory never returns.
    pub fn lend_piece(&self, back: bool) {
        let (bytes, pieces) =
            if back { (PIECE_BYTES, 1) } else { (PIECE_BYTES.wrapping_neg(), usize::MAX) };
        self.hook_bottom.fetch_add(bytes, Ordering::Relaxed);
        self.hook_pieces.fetch_add(pieces, Ordering::Relaxed);
    }

    /// The program's stack pointer at its entry to the innermost hook on the hook stack.
    pub fn innermost_stack_pointer(&self) -> usize {
        let frame = self.hook_bottom.load(Ordering::Relaxed) + PIECE_BYTES - HOOK_FRAME_BYTES;
        // SAFETY: a thread asks that is on its hook stack: its innermost frame is there.
        unsafe { (*(frame as *const HookFrame)).rsp as usize }
    }

    /// The stack pointers of the program at all hooks that have not returned, innermost first.
    pub fn stack_pointers(&self, hook_top: usize) -> impl Iterator<Item = usize> {
        let bottom = self.hook_bottom.load(Ordering::Relaxed);
        (bottom..hook_top).step_by(PIECE_BYTES).map(|piece| {
            let frame = piece + PIECE_BYTES - HOOK_FRAME_BYTES;
            // SAFETY: a frame that was written when the piece was taken.
            unsafe { (*(frame as *const HookFrame)).rsp as usize }
        })
    }
}

/// Hooks that can be under way at a time in one thread: one, and three in handlers that each
/// interrupt the hook before.
const HOOK_PIECES: usize = 4;
/// Bytes of stack for one hook: as many as it finds at least on a stack of a thread of libc.
pub(super) const PIECE_BYTES: usize = 32 << 10;
/// The hook stack of a thread, in bytes.
pub const HOOK_STACK_BYTES: usize = HOOK_PIECES * PIECE_BYTES;
/// Room for a frame at the upper end of a piece, aligned for vectors.
pub(super) const HOOK_FRAME_BYTES: usize = size_of::<HookFrame>().next_multiple_of(64);

/// Offsets in `ThreadStart` of the two fields by which a piece of the hook stack is given back, and
/// the piece's bytes: `bottom += PIECE`, `pieces += 1`.
pub const PIECE_GIVEN_BACK: (usize, usize, usize) =
    (offset_of!(ThreadStart, hook_bottom), offset_of!(ThreadStart, hook_pieces), PIECE_BYTES);
