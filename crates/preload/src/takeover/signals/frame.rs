//! Signal frames: the kernel's, on our alternate stack, is moved to the program's stack, and back
//! when the handler returns.
//!
//! # Safety charter
//! As for [`super`]: sources are frames that the kernel made, or the program's memory read as the
//! program would; destinations are made resident under the pager's lock, or are our own.
#![allow(unsafe_code)]

use uzswap::region::{RangeFlags, page_ceil, page_floor};
use uzswap::sys::PAGE_SIZE;
use uzswap::sys::program::{break_sharing, raw_copy};

use super::super::PAGER;
use super::super::own_stack::current;
use super::super::thread::{SS_AUTODISARM, SS_DISABLE, StackT, ThreadBlock};
use super::*;
use crate::patch;

/// Size of `ucontext` as the kernel writes it, and of the whole frame without the vector state.
pub(super) const UCONTEXT_BYTES: usize = 304;
const SIGINFO_BYTES: usize = 128;
const FRAME_BYTES: usize = 8 + UCONTEXT_BYTES + SIGINFO_BYTES;
// Offsets in ucontext.
const UC_STACK: usize = 16;
pub(super) const UC_RAX: usize = 40 + 13 * 8;
const UC_RSP: usize = 40 + 15 * 8;
pub(super) const UC_RIP: usize = 40 + 16 * 8;
pub(super) const UC_ERR: usize = 40 + 19 * 8;
const UC_FPSTATE: usize = 40 + 23 * 8;
pub(super) const UC_SIGMASK: usize = 296;
const RED_ZONE: usize = 128;

/// Size of the vector state behind a frame, in bytes. A program may have written into its frame: of
/// a state that is larger than any processor's the kernel takes the old part alone, and so do we.
fn vector_bytes(fpstate: usize) -> usize {
    const MAGIC1: u32 = 0x4650_5853;
    /// The part that all processors have.
    const OLD_BYTES: usize = 512;
    /// 64 KiB: the largest state, with AMX, has 11 KiB, and the copy has 96 KiB of our stack.
    const MOST: usize = 64 << 10;
    if fpstate == 0 {
        return 0;
    }
    let word = read_u64(fpstate + 464);
    let (magic, bytes) = (word as u32, (word >> 32) as usize);
    if magic == MAGIC1 && (OLD_BYTES..=MOST).contains(&bytes) { bytes } else { OLD_BYTES }
}

/// Where a frame goes.
#[derive(Debug, PartialEq)]
struct Place {
    frame: usize,
    /// The vector state, and the end of all that is written.
    fpstate: usize,
    top: usize,
    /// It is the first on the alternate stack.
    enters: bool,
}

/// Where the kernel would put a frame with so many bytes of vector state, for a handler that wants
/// the alternate stack or not. `None`: it would write below that stack, and the kernel refuses.
fn place(stack: &StackT, wants_stack: bool, sp: usize, vector: usize) -> Option<Place> {
    let nests = stack.has(sp);
    let enters = wants_stack && stack.flags & SS_DISABLE == 0 && !nests;
    let end = stack.sp.wrapping_add(stack.size);
    let top = if enters { end } else { sp.wrapping_sub(RED_ZONE) };
    let fpstate = top.wrapping_sub(vector) & !63;
    let frame = (fpstate.wrapping_sub(FRAME_BYTES) & !15).wrapping_sub(8);
    let fits = !(enters || nests) || stack.reaches(frame);
    fits.then_some(Place { frame, fpstate, top, enters })
}

/// Copies the kernel's frame to where the program expects it and returns its address; `None` if
/// there is no room.
pub(super) fn move_frame(
    t: &'static ThreadBlock,
    action: &KernelAction,
    info: usize,
    context: usize,
) -> Option<usize> {
    let sp = t.program_stack_pointer(read_u64(context + UC_RSP) as usize);
    // SAFETY: this thread's own cell.
    let stack = unsafe { &mut *t.program_stack.get() };
    let asked = *stack;
    let fpstate = read_u64(context + UC_FPSTATE) as usize;
    let vector = vector_bytes(fpstate);
    let wants_stack = action.flags & SA_ONSTACK != 0;
    let Place { frame, fpstate: new_fpstate, top, enters } =
        place(&asked, wants_stack, sp, vector)?;
    // This holds also while dormant: paging may be on when the handler returns.
    let managed = PAGER.ranges.first_overlap_unlocked(frame, top).is_some();
    let disarms = enters && asked.flags & SS_AUTODISARM != 0;
    let restorer = if managed || disarms {
        uzswap_managed_restorer as *const () as usize
    } else if action.flags & SA_RESTORER != 0 && patch::are_slots_in_gs() {
        // The unwinder of a program that was booted does not know ours.
        action.restorer
    } else {
        uzswap_restorer as *const () as usize
    };
    // The frame is completed here, on our stack, and then copied as it is.
    write_u64(context - 8, restorer as u64);
    write_u64(context + UC_FPSTATE, if fpstate == 0 { 0 } else { new_fpstate as u64 });
    if managed || disarms {
        // Our restorer arms this stack again; the libc's would give it to the kernel.
        write_stack(context + UC_STACK, asked);
    }
    let copy = move || {
        // SAFETY: source is the kernel's frame on our stack; the destination is the program's
        // stack, resident.
        unsafe {
            if vector > 0 {
                raw_copy(new_fpstate, fpstate, vector);
            }
            raw_copy(frame, context - 8, 8 + UCONTEXT_BYTES);
            raw_copy(frame + 8 + UCONTEXT_BYTES, info, SIGINFO_BYTES);
        }
    };
    if managed {
        // A frame may lie on two pages. They are held, or making room for the one would take the
        // other, again and again where memory is short.
        let mark = t.holds().mark();
        t.holds().push(page_floor(frame), page_ceil(top), (&raw const mark).addr());
        let is_copied = copy_resident(frame, top, copy);
        t.holds().pop_to(mark);
        if !is_copied {
            return None;
        }
    } else {
        copy();
    }
    if disarms {
        *stack = StackT { sp: 0, flags: SS_DISABLE, size: 0 };
    }
    Some(frame)
}

/// Calls `copy` with the held pages of `[start, end)` resident and writable; false if they cannot
/// be.
fn copy_resident(start: usize, end: usize, copy: impl FnOnce()) -> bool {
    // A single try would not do: a fork may protect the pages in between.
    const TRIES: u32 = 1000;
    for _ in 0..TRIES {
        // A fault under the lock would wait for itself.
        let (_guard, resident) = PAGER.make_resident(PAGER.enter(), start, end);
        if !resident || !takes_a_frame(start, end) {
            return false;
        }
        if all_writable(start, end) {
            copy();
            return true;
        }
    }
    false
}

/// Whether every page of `[start, end)`, made resident before, can be written. Called with the lock
/// held.
fn takes_a_frame(start: usize, end: usize) -> bool {
    const PROT_WRITE: u32 = 2;
    let mut page = page_floor(start);
    while page < end {
        let writable = match PAGER.ranges.find(page) {
            Some(range) => range.prot & PROT_WRITE != 0 && !range.flags.has(RangeFlags::GUARD),
            // A page that is not managed: the kernel tries.
            None => break_sharing(page).is_ok(),
        };
        if !writable {
            return false;
        }
        page += PAGE_SIZE;
    }
    true
}

/// Whether a write to `[start, end)` would not fault. Called with the lock held.
fn all_writable(start: usize, end: usize) -> bool {
    PAGER.active().is_none()
        || (page_floor(start)..end).step_by(PAGE_SIZE).all(|page| {
            PAGER.ranges.find(page).is_none_or(|r| r.flags.has(RangeFlags::UNREGISTERED))
                || PAGER.table.get(page).is_some_and(|e| e.is_writable())
        })
}

/// A handler on a managed or self-disarming stack has returned; `context` is its ucontext. Copies
/// the frame to our own memory, where the kernel can read it whatever is evicted, and returns the
/// new place.
pub(super) extern "C" fn managed_return(context: usize) -> usize {
    let t = current();
    block_all();
    // The alternate stack is free: nothing of the program runs on it, and signals are blocked. A
    // fault while we read the program's frame uses its upper end; the copy lies well below.
    let fpstate = read_u64(context + UC_FPSTATE) as usize;
    let vector = vector_bytes(fpstate);
    let low = t.runtime_stack_top() - (96 << 10);
    let new_context = low + 16;
    let new_fpstate = (new_context + UCONTEXT_BYTES + SIGINFO_BYTES + 63) & !63;
    // SAFETY: from the program's stack (it may fault, no lock is held) to the lower part of our
    // runtime stack.
    unsafe {
        raw_copy(new_context, context, UCONTEXT_BYTES + SIGINFO_BYTES);
        if vector > 0 {
            raw_copy(new_fpstate, fpstate, vector);
        }
    }
    if fpstate != 0 {
        write_u64(new_context + UC_FPSTATE, new_fpstate as u64);
    }
    let mask = read_u64(new_context + UC_SIGMASK);
    write_u64(new_context + UC_SIGMASK, mask & MAY_BE_BLOCKED.load(Ordering::Relaxed));
    // The stack in the frame is the program's, to be armed again; the kernel's is ours.
    let asked = read_stack(new_context + UC_STACK);
    // SAFETY: this thread's own cell.
    let stack = unsafe { &mut *t.program_stack.get() };
    let sp = t.program_stack_pointer(read_u64(new_context + UC_RSP) as usize);
    if !stack.has(sp) {
        *stack = asked;
    }
    write_stack(new_context + UC_STACK, t.alternate_stack());
    new_context
}

fn read_stack(at: usize) -> StackT {
    StackT {
        sp: read_u64(at) as usize,
        flags: read_u64(at + 8) as i32,
        size: read_u64(at + 16) as usize,
    }
}

fn write_stack(at: usize, stack: StackT) {
    write_u64(at, stack.sp as u64);
    write_u64(at + 8, stack.flags as u32 as u64);
    write_u64(at + 16, stack.size as u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vector state of a processor with AVX-512, in bytes.
    const VECTOR: usize = 2700;
    const STACK: StackT = StackT { sp: 0x10_0000, flags: 0, size: 0x4000 };

    #[test]
    fn a_frame_goes_where_the_kernel_would_put_it() {
        let end = STACK.sp + STACK.size;
        let top = |wants, sp| place(&STACK, wants, sp, VECTOR).map(|p| (p.top, p.enters));
        assert_eq!(top(true, 0x7000_0000), Some((end, true)));
        assert_eq!(top(false, 0x7000_0000), Some((0x7000_0000 - RED_ZONE, false)));
        // On the stack already, also with nothing on it yet: the red zone below stays.
        for sp in [end - 0x100, end] {
            assert_eq!(top(true, sp), Some((sp - RED_ZONE, false)));
        }
        let disabled = StackT { sp: 0, flags: SS_DISABLE, size: 0 };
        let place = place(&disabled, true, 0x7000_0000, VECTOR).unwrap();
        assert!(!place.enters && place.frame % 16 == 8 && place.fpstate.is_multiple_of(64));
        assert!(place.frame + FRAME_BYTES <= place.fpstate && place.fpstate + VECTOR <= place.top);
    }

    #[test]
    fn a_vector_state_of_a_size_that_no_processor_has_is_the_old_part_of_one() {
        let bytes = |size: u64, magic: u64| {
            let mut state = [0u64; 64];
            state[464 / 8] = size << 32 | magic;
            vector_bytes(state.as_ptr() as usize)
        };
        let magic = 0x4650_5853;
        assert_eq!([bytes(2700, magic), bytes(11 << 10, magic)], [2700, 11 << 10]);
        for rubbish in [0, 511, 1 << 20, u64::from(u32::MAX)] {
            assert_eq!(bytes(rubbish, magic), 512, "{rubbish} bytes");
        }
        assert_eq!((bytes(2700, 0), vector_bytes(0)), (512, 0));
    }

    #[test]
    fn a_frame_that_does_not_fit_the_alternate_stack_is_not_written_below_it() {
        let least = StackT { size: 2048, ..STACK };
        assert_eq!(place(&least, true, 0x7000_0000, VECTOR), None);
        assert!(place(&least, true, 0x7000_0000, 512).is_some());
        // A handler on top of another, until there is no room.
        assert!(place(&STACK, true, STACK.sp + 0x3000, VECTOR).is_some());
        assert_eq!(place(&STACK, true, STACK.sp + 0x800, VECTOR), None);
        assert_eq!(place(&STACK, false, STACK.sp + 0x800, VECTOR), None);
        // The kernel does not count a thread as on a stack that disarms itself.
        let disarming = StackT { flags: SS_AUTODISARM, ..STACK };
        assert!(place(&disarming, false, STACK.sp + 0x800, VECTOR).is_some());
    }
}
