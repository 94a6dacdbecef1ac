//! The calls by which processes and threads begin and end: fork, clone, exec and exit.
//!
//! - **fork**: with the lock held and nothing half done; the child re-registers every range before
//!   it runs.
//! - **thread**: its block is made by the parent; it starts on the block's stack, because the stack
//!   that the program gave it may be missing memory.
//! - **vfork** and other calls whose child shares memory with a waiting parent run in place, with
//!   no frame of ours on the stack.
//! - **exec** starts afresh (`process/exec.rs`); the environment carries us into the new program,
//!   and only there (`process/environment.rs`).
#![allow(unsafe_code)]

use core::sync::atomic::Ordering;

use uzswap::control::Counter;
use uzswap::control::trace::Kind;
use uzswap::sys::fd::ForNow;
use uzswap::sys::{Errno, PAGE_SIZE, nr};

mod environment;
mod exec;

use super::descriptors;
use super::outside::finish_counters;
use super::own_stack::{self, runtime};
use super::thread::{self, ThreadBlock};
use super::{
    ACTIVE, Answer, Args, PAGER, PID, buffers, call, ending, evictor, identity, inflight,
    is_shared_child, masks, memory, outside, raw, relatives, reserved, run, sandbox, signals,
};
use crate::patch::{self, HookFrame, ThreadStart};

const CLONE_VM: usize = 0x100;
const CLONE_FILES: usize = 0x400;
const CLONE_PIDFD: usize = 0x1000;
const CLONE_VFORK: usize = 0x4000;
const CLONE_THREAD: usize = 0x1_0000;
const CLONE_SETTLS: usize = 0x8_0000;
const CLONE_PARENT_SETTID: usize = 0x10_0000;
const CLONE_CHILD_CLEARTID: usize = 0x20_0000;
const CLONE_CHILD_SETTID: usize = 0x100_0000;
/// Of arch_prctl: sets the thread pointer.
const ARCH_SET_FS: usize = 0x1002;

pub(super) fn call(
    t: &'static ThreadBlock,
    number: usize,
    a: Args,
    f: &mut HookFrame,
) -> Option<Answer> {
    match number {
        nr::VFORK => {
            signals::inherit::expect_child(t);
            t.expect_guest(true);
            Some(Answer::Inline)
        }
        nr::FORK => Some(Answer::Result(fork(t, number, a))),
        nr::CLONE => Some(clone(t, a, f)),
        // glibc and others fall back to clone.
        nr::CLONE3 => Some(Answer::Result(Errno::ENOSYS.as_return())),
        nr::EXECVE | nr::EXECVEAT => Some(Answer::Result(exec::exec(t, number, a, f))),
        nr::EXIT => {
            thread_exit(t);
            Some(Answer::Inline)
        }
        nr::EXIT_GROUP => {
            process_exit(t);
            Some(Answer::Inline)
        }
        _ => identity::call(t, number, a),
    }
}

fn clone(t: &'static ThreadBlock, a: Args, f: &mut HookFrame) -> Answer {
    let [flags, stack, ..] = a;
    if flags & CLONE_VM == 0 {
        // A shared descriptor table would have the child close the parent's descriptors of ours
        // when it makes its own.
        let mut b = a;
        b[0] &= !CLONE_FILES;
        // A process on a stack of its own: forked on ours, then moved there.
        b[1] = 0;
        let r = fork_with_pointer(t, b);
        if r == 0 && stack != 0 {
            // SAFETY: we are the child, alone; the frame's registers and the given stack are what
            // it expects.
            unsafe { resume_on(f, stack) }
        }
        return Answer::Result(r);
    }
    for word in words_written(&a).into_iter().flatten() {
        buffers::keep(t, word, 4);
    }
    // A child that shares our memory while the parent waits: the call runs as it is.
    if flags & CLONE_VFORK != 0 || stack == 0 {
        signals::inherit::expect_child(t);
        t.expect_guest(true);
        return Answer::Inline;
    }
    // A process beside us that has our thread-local area is found by its id. A thread that sets it
    // by itself has its word in gs: Go's.
    let has_own_word =
        flags & CLONE_SETTLS != 0 || flags & CLONE_THREAD != 0 && patch::are_slots_in_gs();
    let is_guest = !has_own_word;
    // The kernel uses rseq and the robust list in the thread's control block behind its back, and
    // we our own word below it. A program may have put all of it into managed memory.
    if flags & CLONE_SETTLS != 0 {
        keep_area(t, a[4], patch::thread_slot_of(a[4]).unwrap_or(a[4]));
    }
    let mask = masks::block_all();
    let Some(block) = ThreadBlock::allocate() else {
        masks::restore(mask);
        // There is no memory for a block: the answer of a kernel that has none for a thread.
        return Answer::Result(Errno::EAGAIN.as_return());
    };
    runtime(t, ending::before_company);
    block.saved_mask.store(mask, Ordering::Relaxed);
    t.saved_mask.store(mask, Ordering::Relaxed);
    signals::inherit(t, block);
    if is_guest {
        t.expect_guest(false);
        block.is_guest.store(1, Ordering::Relaxed);
    } else {
        thread::came();
    }
    Answer::CloneThread(core::ptr::from_ref(block).cast_mut().cast())
}

/// Keeps a thread's area resident, from our word to the end of the control block.
fn keep_area(t: &'static ThreadBlock, pointer: usize, own_word: usize) {
    buffers::keep(t, own_word, pointer.wrapping_sub(own_word) + PAGE_SIZE);
}

/// Words that the kernel writes for a child in our memory: one of the parent's gets its number or
/// descriptor, one of the child's its number, and is cleared at its end. The kernel does not say
/// that it could not write a number.
fn words_written(a: &Args) -> [Option<usize>; 2] {
    let [flags, _, parent, child, ..] = *a;
    let for_parent = flags & (CLONE_PARENT_SETTID | CLONE_PIDFD) != 0;
    let for_child = flags & (CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID) != 0;
    // In glibc one word is both.
    let is_one = for_parent && parent == child;
    [for_parent.then_some(parent), (for_child && !is_one).then_some(child)]
}

/// A new thread begins here, on its block's runtime stack, with all signals blocked.
pub(crate) extern "C" fn thread_start(block: *mut ThreadStart) {
    // SAFETY: the block that `clone` above handed out; ThreadStart is its first field.
    let b: &'static ThreadBlock = unsafe { &*block.cast::<ThreadBlock>() };
    match b.is_guest.load(Ordering::Relaxed) {
        0 => b.adopt(uzswap::sys::gettid()),
        _ => b.adopt_guest(uzswap::sys::gettid()),
    }
    masks::restore(b.saved_mask.load(Ordering::Relaxed));
}

/// The maker of a thread goes on here.
pub(crate) extern "C" fn clone_parent(block: *mut ThreadStart, result: isize) {
    // SAFETY: as above.
    let b: &'static ThreadBlock = unsafe { &*block.cast::<ThreadBlock>() };
    let mask = own_stack::current().saved_mask.load(Ordering::Relaxed);
    if result < 0 {
        if b.is_guest.load(Ordering::Relaxed) == 0 {
            thread::went();
        }
        b.give_back();
    }
    masks::restore(mask);
}

fn fork(t: &'static ThreadBlock, number: usize, a: Args) -> isize {
    // This comes first: from here on the memory behind the call's pointers is held only if paging
    // is on.
    runtime(t, memory::before_fork);
    // The program's pointers (child and parent thread ids) must be there on both sides.
    buffers::with_held(t, number, &a, || {
        runtime(t, move || {
            patch::before_fork();
            let mut s = PAGER.lock();
            let (parent, child) = (PID.load(Ordering::Relaxed), relatives::expect_child());
            let guard = PAGER.prepare_fork(&mut s, child.map(|(slot, _)| slot));
            let r = raw(number, a);
            patch::after_fork();
            if r == 0 {
                let room = ForNow::make_room();
                let pid = uzswap::sys::getpid();
                identity::look_up_namespace();
                relatives::am_born(child, pid);
                PID.store(pid, Ordering::Release);
                let tid = uzswap::sys::gettid();
                thread::after_fork_child(t, tid);
                signals::sent::after_fork_child(t);
                evictor::after_fork_child();
                relatives::note_fork();
                identity::after_fork_child();
                inflight::after_fork_child();
                memory::after_fork_child();
                if ACTIVE.load(Ordering::Acquire) || reserved::has_any() {
                    outside::open_files();
                }
                let slot = child.map_or_else(run::spare_slot, |(slot, _)| slot);
                slot.add(Counter::Processes, 1);
                let may_renew = sandbox::may_open_again();
                if let Err(e) =
                    PAGER.after_fork_child(&mut s, guard, t.holds(), tid, slot, may_renew)
                {
                    ending::ended_in_child(e.0);
                }
                relatives::come_alive();
                ForNow::end(room);
                descriptors::refresh();
                // A process that counts shared pages must be able to give them back.
                if ACTIVE.load(Ordering::Acquire) || reserved::inherited_pages().is_some() {
                    evictor::start();
                }
            } else {
                relatives::child_born(child, parent, r);
                PAGER.after_fork_parent(&mut s, guard, r > 0);
                relatives::note_fork();
                descriptors::refresh();
            }
            drop(s);
            r
        })
    })
}

/// A clone without CLONE_VM, whose child may have another thread pointer. The child is born with
/// ours, by which it finds its word, and takes the word along.
fn fork_with_pointer(t: &'static ThreadBlock, a: Args) -> isize {
    let [flags, .., pointer, _] = a;
    // A word in gs is the child's whatever its thread pointer is.
    let Some(word) = patch::thread_slot_of(pointer).filter(|_| flags & CLONE_SETTLS != 0) else {
        return fork(t, nr::CLONE, a);
    };
    // A thread is lost without its word, or where its own address cannot be read, by which a fault
    // knows the evictor: the answer of a kernel that does not take the pointer.
    let is_there = |at| buffers::copy_in(t, at, &mut [0; 8]);
    if !is_there(word) || !is_there(pointer.wrapping_add(evictor::OWN_ADDRESS)) {
        return Errno::EPERM.as_return();
    }
    // No handler of the program's runs in the child with the wrong pointer.
    let mask = masks::block_all();
    let mut b = a;
    b[0] &= !CLONE_SETTLS;
    let r = fork(t, nr::CLONE, b);
    if r == 0 {
        // A fault reads both: they must not be missing.
        keep_area(t, pointer, word);
        let is_there = buffers::copy_out(t, word, &core::ptr::from_ref(t).addr().to_le_bytes());
        if !is_there || call!(nr::ARCH_PRCTL, ARCH_SET_FS, pointer) != 0 {
            super::fatal("a child of clone cannot have the thread pointer that it was given");
        }
    }
    masks::restore(mask);
    r
}

/// Continues the program in the child of a fork on another stack: registers from the frame, rax 0.
///
/// # Safety
/// Only in such a child; never returns to our frames.
unsafe fn resume_on(f: &HookFrame, stack: usize) -> ! {
    let own = f.hook_stack.addr() as u64;
    let regs = [
        f.rbx, f.rbp, f.r12, f.r13, f.r14, f.r15, f.rdi, f.rsi, f.rdx, f.r10, f.r8, f.r9, f.ret,
        own,
    ];
    // SAFETY: the caller vouches; the registers are loaded from our frame before the stack is left.
    unsafe {
        core::arch::asm!(
            "mov rcx, [rax + 96]",
            "mov rbx, [rax]",
            "mov rbp, [rax + 8]",
            "mov r12, [rax + 16]",
            "mov r13, [rax + 24]",
            "mov r14, [rax + 32]",
            "mov r15, [rax + 40]",
            "mov rdi, [rax + 48]",
            "mov rsi, [rax + 56]",
            "mov rdx, [rax + 64]",
            "mov r10, [rax + 72]",
            "mov r8, [rax + 80]",
            "mov r9, [rax + 88]",
            "mov rax, [rax + 104]",
            "mov rsp, r11",
            "test rax, rax",
            "jz 2f",
            "add qword ptr [rax + {bottom}], {piece_bytes}",
            "inc qword ptr [rax + {pieces}]",
            "2: xor eax, eax",
            "jmp rcx",
            in("rax") regs.as_ptr(),
            in("r11") stack,
            bottom = const patch::PIECE_GIVEN_BACK.0,
            pieces = const patch::PIECE_GIVEN_BACK.1,
            piece_bytes = const patch::PIECE_GIVEN_BACK.2,
            options(noreturn)
        )
    }
}

fn thread_exit(t: &'static ThreadBlock) {
    if is_shared_child() {
        if t.is_guest.load(Ordering::Relaxed) != 0 {
            t.retire();
        }
        return;
    }
    if ACTIVE.load(Ordering::Acquire) {
        buffers::hold_robust_list(t);
    }
    // A process ends with its last thread, and that must not be the evictor: not every program ends
    // by exit_group (a process that libc's clone(2) starts does not).
    let is_own = t.tid.load(Ordering::Relaxed) == uzswap::sys::gettid();
    if is_own && thread::went() && evictor::is_running() {
        runtime(t, || {
            finish_counters();
            PAGER.trace_process(Kind::Ended);
            evictor::stop();
        });
    }
    t.retire();
}

fn process_exit(t: &'static ThreadBlock) {
    if is_shared_child() {
        return;
    }
    runtime(t, || {
        finish_counters();
        PAGER.trace_process(Kind::Ended);
        relatives::leave();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_the_kernel_writes_for_a_thread_are_known_by_the_flags() {
        const PLAIN: usize = CLONE_VM | CLONE_THREAD | CLONE_SETTLS;
        let words = |flags, parent, child| words_written(&[flags, 0, parent, child, 0, 0]);
        assert_eq!(words(PLAIN, 8, 16), [None, None]);
        assert_eq!(words(PLAIN | CLONE_PARENT_SETTID, 8, 16), [Some(8), None]);
        assert_eq!(words(CLONE_VM | CLONE_VFORK | CLONE_PIDFD, 8, 16), [Some(8), None]);
        for for_child in [CLONE_CHILD_SETTID, CLONE_CHILD_CLEARTID] {
            assert_eq!(words(PLAIN | for_child, 8, 16), [None, Some(16)]);
            assert_eq!(words(PLAIN | for_child | CLONE_PARENT_SETTID, 8, 16), [Some(8), Some(16)]);
            assert_eq!(words(PLAIN | for_child | CLONE_PARENT_SETTID, 8, 8), [Some(8), None]);
            assert_eq!(words(PLAIN | for_child, 8, 8), [None, Some(8)]);
        }
    }
}
