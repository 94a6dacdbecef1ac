//! Signals: ours for faults, and the program's exactly as it asked for.
//!
//! The kernel delivers every handled signal on the thread's own alternate stack, to `entry` below, with all signals
//! blocked: a frame cannot be pushed on a stack whose page is missing. For a signal of the program
//! the frame is then *moved* to where the kernel would have put it (the program's stack, or the alternate stack that it
//! asked for), made resident first, and the program's handler runs there with the mask that it asked for. So handlers see
//! their own stack, may switch away from it, and conservative collectors find what they scan.
//!
//! ```text
//!   our alternate stack                 program's stack
//!  +--------------------+   copy      +--------------------+
//!  | fpstate            | ----------> | fpstate            |
//!  | siginfo            |             | siginfo            |
//!  | ucontext           |             | ucontext           |
//!  | return address     |             | restorer           | <- rsp of the handler
//!  +--------------------+             +--------------------+
//! ```
//!
//! The fault signal (SIGBUS, or SIGSEGV for protection faults) can be neither blocked nor ignored by the program: the
//! kernel would kill. Masks are edited on their way in and corrected on their way out.
//!
//! # Safety charter
//! The entry gets the kernel's own frame. The frame is copied to program memory with the pager's lock held, after
//! making it resident, or with plain stores where the stack is not managed. Everything else is plain data.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

use uzswap::fault::Fault;
use uzswap::region::{RangeFlags, page_ceil, page_floor};
use uzswap::sys::program::{break_sharing, raw_copy};
use uzswap::sys::{Errno, PAGE_SIZE, nr};

use super::thread::{self, SS_AUTODISARM, SS_DISABLE, SS_ONSTACK, StackT, ThreadBlock};
use super::{Answer, Args, PAGER, PID, buffers, call};

const SIGBUS: i32 = 7;
const SIGSEGV: i32 = 11;
const SIGNALS: usize = 65;

const SIG_DFL: usize = 0;
const SIG_IGN: usize = 1;
const SA_SIGINFO: u64 = 4;
const SA_ONSTACK: u64 = 0x0800_0000;
const SA_RESTORER: u64 = 0x0400_0000;
const SA_NODEFER: u64 = 0x4000_0000;
const SA_RESETHAND: u64 = 0x8000_0000;

const SIG_BLOCK: usize = 0;
const SIG_UNBLOCK: usize = 1;
const SIG_SETMASK: usize = 2;

/// Size of `ucontext` as the kernel writes it, and of the whole frame without the vector state.
const UCONTEXT_BYTES: usize = 304;
const SIGINFO_BYTES: usize = 128;
const FRAME_BYTES: usize = 8 + UCONTEXT_BYTES + SIGINFO_BYTES;
// Offsets in ucontext.
const UC_STACK: usize = 16;
const UC_RSP: usize = 40 + 15 * 8;
const UC_ERR: usize = 40 + 19 * 8;
const UC_FPSTATE: usize = 40 + 23 * 8;
const UC_SIGMASK: usize = 296;
const RED_ZONE: usize = 128;

/// `struct sigaction` of the kernel.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct KernelAction {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// What the program asked for, by signal. Fields are atomics: handlers read while threads set.
struct Recorded {
    handler: AtomicUsize,
    flags: AtomicU64,
    restorer: AtomicUsize,
    mask: AtomicU64,
}

static RECORDED: [Recorded; SIGNALS] = [const {
    Recorded {
        handler: AtomicUsize::new(0),
        flags: AtomicU64::new(0),
        restorer: AtomicUsize::new(0),
        mask: AtomicU64::new(0),
    }
}; SIGNALS];

impl Recorded {
    fn get(&self) -> KernelAction {
        KernelAction {
            handler: self.handler.load(Ordering::Acquire),
            flags: self.flags.load(Ordering::Acquire),
            restorer: self.restorer.load(Ordering::Acquire),
            mask: self.mask.load(Ordering::Acquire),
        }
    }
    fn set(&self, a: KernelAction) {
        self.mask.store(a.mask, Ordering::Release);
        self.restorer.store(a.restorer, Ordering::Release);
        self.flags.store(a.flags, Ordering::Release);
        self.handler.store(a.handler, Ordering::Release);
    }
}

/// The signal by which missing pages are reported.
static FAULT_SIGNAL: AtomicI32 = AtomicI32::new(SIGBUS);

fn fault_bit() -> u64 {
    1 << (FAULT_SIGNAL.load(Ordering::Relaxed) - 1)
}

unsafe extern "C" {
    fn uzswap_restorer();
    fn uzswap_managed_restorer();
    fn uzswap_enter_handler(
        frame: usize,
        handler: usize,
        sig: usize,
        info: usize,
        context: usize,
        mask: *const u64,
    ) -> !;
}

// The restorers. The second is for frames that the kernel must not read where they are (see `managed_return`).
// Exceptions and backtraces pass through them: their unwind information says, as libc's does, that the registers are
// in the ucontext that the stack pointer points to. It begins a byte early, since unwinders look up the byte before
// a return address.
core::arch::global_asm!(
    // Where the registers are, with the ucontext at a register: DW_OP_breg3 (rbx) or DW_OP_breg7 (rsp).
    ".macro uzswap_in_ucontext dwarf, offset, breg",
    "    .cfi_escape 0x10, \\dwarf, 3, \\breg, 0x80 | (\\offset & 0x7f), \\offset >> 7",
    ".endm",
    ".macro uzswap_registers_at breg",
    // The frame address is the stack pointer of the interrupted code, read from its place.
    "    .cfi_escape 0x0f, 4, \\breg, 0x80 | (160 & 0x7f), 160 >> 7, 0x06",
    "    uzswap_in_ucontext 8, 40, \\breg",
    "    uzswap_in_ucontext 9, 48, \\breg",
    "    uzswap_in_ucontext 10, 56, \\breg",
    "    uzswap_in_ucontext 11, 64, \\breg",
    "    uzswap_in_ucontext 12, 72, \\breg",
    "    uzswap_in_ucontext 13, 80, \\breg",
    "    uzswap_in_ucontext 14, 88, \\breg",
    "    uzswap_in_ucontext 15, 96, \\breg",
    "    uzswap_in_ucontext 5, 104, \\breg",
    "    uzswap_in_ucontext 4, 112, \\breg",
    "    uzswap_in_ucontext 6, 120, \\breg",
    "    uzswap_in_ucontext 3, 128, \\breg",
    "    uzswap_in_ucontext 1, 136, \\breg",
    "    uzswap_in_ucontext 0, 144, \\breg",
    "    uzswap_in_ucontext 2, 152, \\breg",
    "    uzswap_in_ucontext 7, 160, \\breg",
    "    uzswap_in_ucontext 16, 168, \\breg",
    ".endm",
    ".globl uzswap_restorer",
    ".hidden uzswap_restorer",
    ".cfi_startproc simple",
    ".cfi_signal_frame",
    "uzswap_registers_at 0x77",
    "nop",
    "uzswap_restorer:",
    "mov rax, 15",
    "syscall",
    "ud2",
    ".cfi_endproc",
    ".globl uzswap_managed_restorer",
    ".hidden uzswap_managed_restorer",
    ".cfi_startproc simple",
    ".cfi_signal_frame",
    "uzswap_registers_at 0x77",
    "nop",
    "uzswap_managed_restorer:",
    "mov rbx, rsp",
    "uzswap_registers_at 0x73",
    "mov rdi, rsp",
    "and rsp, -16",
    "call {managed_return}",
    "mov rsp, rax",
    "mov rax, 15",
    "syscall",
    "ud2",
    ".cfi_endproc",
    ".purgem uzswap_registers_at",
    ".purgem uzswap_in_ucontext",
    // uzswap_enter_handler(frame, handler, sig, info, context, mask): on the frame's stack with the mask, as
    // the kernel would have entered the handler.
    ".globl uzswap_enter_handler",
    ".hidden uzswap_enter_handler",
    "uzswap_enter_handler:",
    "mov rsp, rdi",
    "mov rbx, rsi",
    "mov rbp, rdx",
    "mov r12, rcx",
    "mov r13, r8",
    "mov rsi, r9",
    "mov rdi, 2",
    "xor edx, edx",
    "mov r10, 8",
    "mov rax, 14",
    "syscall",
    "mov rdi, rbp",
    "mov rsi, r12",
    "mov rdx, r13",
    "xor eax, eax",
    "mov rcx, rbx",
    "xor ebx, ebx",
    "xor ebp, ebp",
    "jmp rcx",
    managed_return = sym managed_return,
);

/// Blocks all signals but the fault signal; returns the mask before. Handlers come until it has, as many as like.
pub fn block_all() -> u64 {
    // The kernel reads and writes the masks in memory that cannot be missing: the program's stack can. A handler that comes
    // before the call is made leaves the first word as it is, and the second is written after it.
    let Some(t) = thread::existing() else {
        let (all, mut old) = (!fault_bit(), 0u64);
        let _ = call!(nr::RT_SIGPROCMASK, SIG_SETMASK, &raw const all, &raw mut old, 8);
        return old;
    };
    let [all, old] = &t.block_words;
    all.store(!fault_bit(), Ordering::Relaxed);
    let _ = call!(nr::RT_SIGPROCMASK, SIG_SETMASK, all.as_ptr(), old.as_ptr(), 8);
    old.load(Ordering::Relaxed)
}

/// Sets the signal mask.
pub fn restore(mask: u64) {
    if let Some(t) = thread::existing() {
        // Signals are blocked: nobody else uses the word.
        let word = &t.block_words[1];
        word.store(mask, Ordering::Relaxed);
        let _ = call!(nr::RT_SIGPROCMASK, SIG_SETMASK, word.as_ptr(), 0, 8);
        return;
    }
    let _ = call!(nr::RT_SIGPROCMASK, SIG_SETMASK, &raw const mask, 0, 8);
}

fn kernel_action(sig: i32, new: Option<&KernelAction>, old: Option<&mut KernelAction>) -> isize {
    let n = new.map_or(0, |n| core::ptr::from_ref(n) as usize);
    let o = old.map_or(0, |o| core::ptr::from_mut(o) as usize);
    loop {
        let r = call!(nr::RT_SIGACTION, sig, n, o, 8);
        if r != Errno::EFAULT.as_return() {
            return r;
        }
        // The caller's frame was paged out since it was written. Setting an action twice is harmless.
        for at in [n, o].into_iter().filter(|at| *at != 0) {
            // SAFETY: both are live, aligned structs of the caller.
            unsafe { (at as *mut u64).write_volatile((at as *const u64).read_volatile()) };
        }
    }
}

/// What is installed in the kernel for a handler of the program.
fn wrapped(a: KernelAction) -> KernelAction {
    KernelAction {
        handler: entry as *const () as usize,
        flags: (a.flags | SA_SIGINFO | SA_ONSTACK | SA_RESTORER) & !(SA_NODEFER | SA_RESETHAND),
        restorer: uzswap_restorer as *const () as usize,
        mask: !(fault_bit()),
    }
}

fn is_handler(h: usize) -> bool {
    h != SIG_DFL && h != SIG_IGN
}

/// At start: takes the fault signal over and wraps the handlers that exist already.
pub fn start(fault_signal: i32) {
    FAULT_SIGNAL.store(fault_signal, Ordering::Release);
    for sig in 1..SIGNALS as i32 {
        let mut a = KernelAction::default();
        if kernel_action(sig, None, Some(&mut a)) != 0 {
            continue;
        }
        RECORDED[sig as usize].set(a);
        if sig == fault_signal {
            // Everything blocked: the fault path is never interrupted.
            let ours = KernelAction { mask: !0, ..wrapped(KernelAction::default()) };
            let _ = kernel_action(sig, Some(&ours), None);
        } else if is_handler(a.handler) {
            let _ = kernel_action(sig, Some(&wrapped(a)), None);
        }
    }
    // Masks survive exec.
    let bit = fault_bit();
    let _ = call!(nr::RT_SIGPROCMASK, SIG_UNBLOCK, &raw const bit, 0, 8);
}

fn read_u64(addr: usize) -> u64 {
    // SAFETY: a word of the kernel's frame, or of the program's memory read as the program would (it may fault).
    unsafe { (addr as *const u64).read_unaligned() }
}

fn write_u64(addr: usize, v: u64) {
    // SAFETY: as above; our own copy of a frame.
    unsafe { (addr as *mut u64).write_unaligned(v) }
}

/// The signals that wait for this thread, as bits.
fn pending() -> u64 {
    let mut set = 0u64;
    let _ = call!(nr::RT_SIGPENDING, &raw mut set, 8);
    set
}

/// Whether a signal waits for this thread that it would take with this mask.
pub fn would_interrupt(mask: u64) -> bool {
    pending() & !mask != 0
}

/// Every handled signal comes here, on the thread's alternate stack, with all signals blocked.
extern "C" fn entry(sig: i32, info: usize, context: usize) {
    let si_code = read_u64(info + 8) as i32;
    if sig == FAULT_SIGNAL.load(Ordering::Relaxed)
        && si_code > 0
        && let Some(t) = thread::existing()
    {
        let (addr, error) = (read_u64(info + 16) as usize, read_u64(context + UC_ERR));
        // A signal that the program would take now goes first.
        PAGER.wait_for_turn(|| !would_interrupt(read_u64(context + UC_SIGMASK)));
        // SAFETY: this thread's own cell, and the handler is not reentered (all blocked).
        match PAGER.fault(addr, error, unsafe { &mut *t.stream.get() }) {
            Fault::Served => return,
            Fault::Lost => {
                super::debug(&[("page lost at", addr as u64)]);
                return deliver_default(SIGBUS, si_code);
            }
            Fault::NotOurs => {
                let range = PAGER.ranges.find_unlocked(addr);
                super::debug(&[
                    ("fault not ours at", addr as u64),
                    ("error", error),
                    ("range", range.map_or(0, |r| r.start as u64)),
                    ("end", range.map_or(0, |r| r.end as u64)),
                    ("prot", range.map_or(99, |r| r.prot as u64)),
                    ("tid", uzswap::sys::gettid() as u64),
                ]);
            }
        }
    }
    if sig == FAULT_SIGNAL.load(Ordering::Relaxed)
        && si_code <= 0
        && let Some(t) = thread::existing()
        && t.fault_signal_blocked.load(Ordering::Relaxed) != 0
    {
        // Sent, not raised by an access, to a thread that believes it has it blocked.
        t.fault_signal_pending.store(1, Ordering::Relaxed);
        return;
    }
    deliver(sig, si_code, info, context);
}

/// The program's own signal.
fn deliver(sig: i32, si_code: i32, info: usize, context: usize) {
    let recorded = &RECORDED[sig as usize];
    let action = recorded.get();
    if !is_handler(action.handler) {
        let fault_signal = sig == FAULT_SIGNAL.load(Ordering::Relaxed);
        if action.handler == SIG_IGN && !(fault_signal && si_code > 0) {
            return;
        }
        if !fault_signal {
            // It was under way when another thread took its handler away: what the kernel does with it now is right,
            // unless it would come here again (a handler that only a vfork child knew of).
            let mut now = KernelAction::default();
            let _ = kernel_action(sig, None, Some(&mut now));
            if now.handler == entry as *const () as usize && !is_handler(recorded.get().handler) {
                let _ = kernel_action(sig, Some(&KernelAction::default()), None);
            }
            let _ = call!(nr::RT_TGSIGQUEUEINFO, uzswap::sys::getpid(), uzswap::sys::gettid(), sig, info);
            return;
        }
        return deliver_default(sig, si_code);
    }
    if action.flags & SA_RESETHAND != 0 {
        recorded.handler.store(SIG_DFL, Ordering::Release);
        if sig != FAULT_SIGNAL.load(Ordering::Relaxed) {
            let _ = kernel_action(sig, Some(&KernelAction::default()), None);
        }
    }
    let saved = read_u64(context + UC_SIGMASK);
    let own = if action.flags & SA_NODEFER != 0 { 0 } else { 1u64 << (sig - 1) };
    let mask = (saved | action.mask | own) & !fault_bit();
    let Some(t) = thread::existing() else {
        // A thread that we know nothing of: it is on its own stack already.
        // SAFETY: the program's handler, called as the kernel would.
        let f: extern "C" fn(i32, usize, usize) = unsafe { core::mem::transmute(action.handler) };
        return f(sig, info, context);
    };
    let Some(frame) = move_frame(t, &action, info, context) else {
        // As the kernel does when it cannot push a frame.
        write_u64(context + UC_SIGMASK, saved & !(1 << (SIGSEGV - 1)));
        return deliver_default(SIGSEGV, 0);
    };
    t.handler_mask.store(mask, Ordering::Relaxed);
    // SAFETY: the frame is complete and on the program's stack.
    unsafe {
        uzswap_enter_handler(
            frame,
            action.handler,
            sig as usize,
            frame + 8 + UCONTEXT_BYTES,
            frame + 8,
            t.handler_mask.as_ptr(),
        )
    }
}

/// The default action: let the kernel do it.
fn deliver_default(sig: i32, si_code: i32) {
    super::debug(&[("default action of signal", sig as u64), ("code", si_code as u64)]);
    let _ = kernel_action(sig, Some(&KernelAction::default()), None);
    // A fault happens again when we return and then kills with the right context; a sent signal is sent again, and so
    // is one that stands for another (a lost page, by protection faults).
    if si_code <= 0 || sig != FAULT_SIGNAL.load(Ordering::Relaxed) {
        let _ = call!(nr::TKILL, uzswap::sys::gettid(), sig);
    }
}

/// Size of the vector state behind a frame, in bytes.
fn vector_bytes(fpstate: usize) -> usize {
    const MAGIC1: u32 = 0x4650_5853;
    match fpstate {
        0 => 0,
        p if read_u64(p + 464) as u32 == MAGIC1 => (read_u64(p + 464) >> 32) as usize,
        _ => 512,
    }
}

/// Copies the kernel's frame to where the program expects it and returns its address; `None` if there is no room.
fn move_frame(t: &'static ThreadBlock, action: &KernelAction, info: usize, context: usize) -> Option<usize> {
    let sp = read_u64(context + UC_RSP) as usize;
    // SAFETY: this thread's own cell.
    let stack = unsafe { &mut *t.program_stack.get() };
    let asked = *stack;
    let inside = sp.wrapping_sub(asked.sp) < asked.size;
    let use_stack = action.flags & SA_ONSTACK != 0 && asked.flags & SS_DISABLE == 0 && !inside;
    let top = if use_stack { asked.sp + asked.size } else { sp - RED_ZONE };
    let fpstate = read_u64(context + UC_FPSTATE) as usize;
    let vector = vector_bytes(fpstate);
    let new_fpstate = (top - vector) & !63;
    let frame = ((new_fpstate - FRAME_BYTES) & !15) - 8;
    // Also while dormant: paging may be on when the handler returns.
    let managed = PAGER.ranges.first_overlap_unlocked(frame, top).is_some();
    let disarms = use_stack && asked.flags & SS_AUTODISARM != 0;
    let restorer = if managed || disarms {
        uzswap_managed_restorer as *const () as usize
    } else if action.flags & SA_RESTORER != 0 {
        action.restorer
    } else {
        uzswap_restorer as *const () as usize
    };
    // The frame is completed here, on our stack, and then copied as it is.
    write_u64(context - 8, restorer as u64);
    write_u64(context + UC_FPSTATE, if fpstate == 0 { 0 } else { new_fpstate as u64 });
    if managed || disarms {
        // What our restorer arms again; the libc's would give it to the kernel.
        write_stack(context + UC_STACK, asked);
    }
    let copy = move || {
        // SAFETY: source is the kernel's frame on our stack; the destination is the program's stack, resident.
        unsafe {
            if vector > 0 {
                raw_copy(new_fpstate, fpstate, vector);
            }
            raw_copy(frame, context - 8, 8 + UCONTEXT_BYTES);
            raw_copy(frame + 8 + UCONTEXT_BYTES, info, SIGINFO_BYTES);
        }
    };
    if managed {
        // A frame may lie on two pages: held, or making room for the one takes the other, again and again where memory is short.
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

/// Calls `copy` with the held pages of `[start, end)` resident and writable; false if they cannot be.
fn copy_resident(start: usize, end: usize, copy: impl FnOnce()) -> bool {
    // More than one: a fork may protect them in between.
    const TRIES: u32 = 1000;
    for _ in 0..TRIES {
        // A fault under the lock would wait for itself.
        let (_guard, resident) = PAGER.make_resident(PAGER.lock(), start, end);
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

/// Whether every page of `[start, end)`, made resident before, can be written. With the lock held.
fn takes_a_frame(start: usize, end: usize) -> bool {
    const PROT_WRITE: u32 = 2;
    let mut page = page_floor(start);
    while page < end {
        let writable = match PAGER.ranges.find(page) {
            Some(range) => range.prot & PROT_WRITE != 0 && !range.flags.has(RangeFlags::GUARD),
            // Not ours: the kernel tries.
            None => break_sharing(page).is_ok(),
        };
        if !writable {
            return false;
        }
        page += PAGE_SIZE;
    }
    true
}

/// Whether a write to `[start, end)` would not fault. With the lock held.
fn all_writable(start: usize, end: usize) -> bool {
    PAGER.active().is_none()
        || (page_floor(start)..end).step_by(PAGE_SIZE).all(|page| {
            PAGER.ranges.find(page).is_none_or(|r| r.flags.has(RangeFlags::UNREGISTERED))
                || PAGER.table.get(page).is_some_and(|e| e.is_writable())
        })
}

/// A handler on a managed or self-disarming stack has returned; `context` is its ucontext. Copies the frame to our own memory, where the
/// kernel can read it whatever is evicted, and returns the new place.
extern "C" fn managed_return(context: usize) -> usize {
    let t = thread::current();
    block_all();
    // The alternate stack is free: nothing of the program runs on it, and signals are blocked. A fault while we read
    // the program's frame uses its upper end; the copy lies well below.
    let fpstate = read_u64(context + UC_FPSTATE) as usize;
    let vector = vector_bytes(fpstate);
    let low = t.runtime_stack_top() - (96 << 10);
    let new_context = low + 16;
    let new_fpstate = (new_context + UCONTEXT_BYTES + SIGINFO_BYTES + 63) & !63;
    // SAFETY: from the program's stack (it may fault, no lock is held) to the lower part of our runtime stack.
    unsafe {
        raw_copy(new_context, context, UCONTEXT_BYTES + SIGINFO_BYTES);
        if vector > 0 {
            raw_copy(new_fpstate, fpstate, vector);
        }
    }
    if fpstate != 0 {
        write_u64(new_context + UC_FPSTATE, new_fpstate as u64);
    }
    // The stack in the frame is the program's, to be armed again; the kernel's is ours.
    let asked = read_stack(new_context + UC_STACK);
    // SAFETY: this thread's own cell.
    let stack = unsafe { &mut *t.program_stack.get() };
    let sp = read_u64(new_context + UC_RSP) as usize;
    if stack.flags & SS_DISABLE != 0 || sp.wrapping_sub(stack.sp) >= stack.size {
        *stack = asked;
    }
    write_stack(new_context + UC_STACK, t.alternate_stack());
    new_context
}

fn read_stack(at: usize) -> StackT {
    StackT { sp: read_u64(at) as usize, flags: read_u64(at + 8) as i32, size: read_u64(at + 16) as usize }
}

fn write_stack(at: usize, stack: StackT) {
    write_u64(at, stack.sp as u64);
    write_u64(at + 8, stack.flags as u32 as u64);
    write_u64(at + 16, stack.size as u64);
}

/// The signal calls.
pub(super) fn call(t: &'static ThreadBlock, number: usize, a: Args) -> Option<Answer> {
    match number {
        nr::RT_SIGACTION => Some(Answer::Result(sigaction(t, a))),
        nr::RT_SIGPENDING => Some(Answer::Result(sigpending(t, a))),
        nr::RT_SIGPROCMASK => Some(Answer::Result(sigprocmask(t, a))),
        nr::SIGALTSTACK => Some(Answer::Result(sigaltstack(t, a))),
        nr::RT_SIGSUSPEND => with_mask(t, number, a, 0, 1),
        nr::PPOLL => with_mask(t, number, a, 3, 4),
        nr::EPOLL_PWAIT | nr::EPOLL_PWAIT2 => with_mask(t, number, a, 4, 5),
        nr::SIGNALFD | nr::SIGNALFD4 => with_mask(t, number, a, 1, 2),
        nr::PSELECT6 => pselect(t, a),
        _ => None,
    }
}

/// A call that takes a signal mask by pointer in argument `at`, its size in argument `size_at`.
fn with_mask(
    t: &'static ThreadBlock,
    number: usize,
    mut a: Args,
    at: usize,
    size_at: usize,
) -> Option<Answer> {
    if a[at] == 0 || a[size_at] != 8 {
        return None;
    }
    let mask = argument(t, a[at])?;
    if mask & fault_bit() == 0 {
        return None;
    }
    a[at] = t.mask_slot(mask & !fault_bit());
    Some(Answer::Result(buffers::held_call(t, number, a)))
}

fn pselect(t: &'static ThreadBlock, mut a: Args) -> Option<Answer> {
    if a[5] == 0 {
        return None;
    }
    let (mask_at, size) = (argument(t, a[5])? as usize, argument(t, a[5] + 8)?);
    if mask_at == 0 || size != 8 {
        return None;
    }
    let mask = argument(t, mask_at)?;
    if mask & fault_bit() == 0 {
        return None;
    }
    let pair = [t.mask_slot(mask & !fault_bit()) as u64, 8];
    a[5] = pair.as_ptr() as usize;
    Some(Answer::Result(buffers::held_call(t, nr::PSELECT6, a)))
}

/// A word of the program's arguments; `None` where the address is bad (the kernel then says so).
fn argument(t: &'static ThreadBlock, at: usize) -> Option<u64> {
    let mut bytes = [0u8; 8];
    buffers::copy_in(t, at, &mut bytes).then(|| u64::from_le_bytes(bytes))
}

/// The pending signals, with the fault signal that waits here for the program to unblock it.
fn sigpending(t: &'static ThreadBlock, a: Args) -> isize {
    let mut set = 0u64;
    let r = super::with_own_words(|| {
        set = core::hint::black_box(0);
        call!(nr::RT_SIGPENDING, &raw mut set, 8)
    });
    if r != 0 || a[1] > 8 {
        return super::raw(nr::RT_SIGPENDING, a);
    }
    let ours = if t.fault_signal_pending.load(Ordering::Relaxed) != 0 { fault_bit() } else { 0 };
    set |= ours;
    if buffers::copy_out(t, a[0], &set.to_le_bytes()[..a[1]]) { 0 } else { Errno::EFAULT.as_return() }
}

/// The program unblocks the fault signal: one that came meanwhile is delivered now.
fn deliver_pending(t: &'static ThreadBlock) {
    if t.fault_signal_pending.swap(0, Ordering::Relaxed) != 0 {
        let _ = call!(nr::TKILL, uzswap::sys::gettid(), FAULT_SIGNAL.load(Ordering::Relaxed));
    }
}

fn sigaction(t: &'static ThreadBlock, a: Args) -> isize {
    let (sig, new_at, old_at) = (a[0] as i32, a[1], a[2]);
    if a[3] != 8 || sig <= 0 || sig >= SIGNALS as i32 {
        return super::raw(nr::RT_SIGACTION, a);
    }
    // A vfork child has its own table in the kernel but shares our record.
    let shared_child = uzswap::sys::getpid() != PID.load(Ordering::Relaxed);
    let recorded = &RECORDED[sig as usize];
    let mut words = [0u8; size_of::<KernelAction>()];
    if new_at != 0 && !buffers::copy_in(t, new_at, &mut words) {
        return Errno::EFAULT.as_return();
    }
    // SAFETY: plain integers, any bytes are valid.
    let new = (new_at != 0).then(|| unsafe { words.as_ptr().cast::<KernelAction>().read_unaligned() });
    let old = recorded.get();
    if sig == FAULT_SIGNAL.load(Ordering::Relaxed) {
        if let Some(n) = new
            && !shared_child
        {
            recorded.set(n);
        }
    } else {
        let mut kernel_old = KernelAction::default();
        let install = new.map(|n| if is_handler(n.handler) { wrapped(n) } else { n });
        // The record first when a handler comes, so that it is there when the first signal is.
        if let Some(n) = new
            && is_handler(n.handler)
            && !shared_child
        {
            recorded.set(n);
        }
        let r = kernel_action(sig, install.as_ref(), Some(&mut kernel_old));
        if r != 0 {
            recorded.set(old);
            return r;
        }
        if let Some(n) = new
            && !shared_child
        {
            recorded.set(n);
        }
    }
    if old_at != 0 {
        // SAFETY: plain integers without padding.
        let bytes: [u8; size_of::<KernelAction>()] = unsafe { core::mem::transmute(old) };
        if !buffers::copy_out(t, old_at, &bytes) {
            return Errno::EFAULT.as_return();
        }
    }
    0
}

fn sigprocmask(t: &'static ThreadBlock, a: Args) -> isize {
    let (how, set_at, old_at) = (a[0], a[1], a[2]);
    if a[3] != 8 || how > SIG_SETMASK {
        return super::raw(nr::RT_SIGPROCMASK, a);
    }
    let asked = match set_at {
        0 => None,
        at => match argument(t, at) {
            Some(asked) => Some(asked),
            None => return Errno::EFAULT.as_return(),
        },
    };
    let bit = fault_bit();
    // In one call the kernel would leave the mask from before where handlers that come with the new one find it, and use the place.
    let believed = if t.fault_signal_blocked.load(Ordering::Relaxed) != 0 { bit } else { 0 };
    let old = block_all() | believed;
    let new = match (how, asked) {
        (_, None) => old,
        (SIG_BLOCK, Some(asked)) => old | asked,
        (SIG_UNBLOCK, Some(asked)) => old & !asked,
        (_, Some(asked)) => asked,
    };
    t.fault_signal_blocked.store((new & bit != 0) as u32, Ordering::Relaxed);
    restore(new & !bit);
    if new & bit == 0 {
        deliver_pending(t);
    }
    if old_at != 0 && !buffers::copy_out(t, old_at, &old.to_le_bytes()) {
        return Errno::EFAULT.as_return();
    }
    0
}

/// The program's alternate stack is only recorded: the kernel knows ours.
fn sigaltstack(t: &'static ThreadBlock, a: Args) -> isize {
    const MIN_BYTES: usize = 2048;
    let here = &raw const a as usize;
    // SAFETY: this thread's own cell.
    let stack = unsafe { &mut *t.program_stack.get() };
    let on_it = stack.flags & SS_DISABLE == 0 && here.wrapping_sub(stack.sp) < stack.size;
    let old = StackT { flags: (stack.flags & !SS_ONSTACK) | if on_it { SS_ONSTACK } else { 0 }, ..*stack };
    let mut words = [0u8; size_of::<StackT>()];
    if a[0] != 0 && !buffers::copy_in(t, a[0], &mut words) {
        return Errno::EFAULT.as_return();
    }
    // SAFETY: plain integers, any bytes are valid.
    let new = (a[0] != 0).then(|| unsafe { words.as_ptr().cast::<StackT>().read_unaligned() });
    if let Some(n) = new {
        let mode = n.flags & !SS_AUTODISARM;
        if on_it && stack.flags & SS_AUTODISARM == 0 {
            return Errno::EPERM.as_return();
        }
        if mode != 0 && mode != SS_DISABLE && mode != SS_ONSTACK {
            return Errno::EINVAL.as_return();
        }
        *stack = if mode == SS_DISABLE {
            StackT { sp: 0, flags: SS_DISABLE, size: 0 }
        } else if n.size < MIN_BYTES {
            return Errno::ENOMEM.as_return();
        } else {
            StackT { flags: n.flags & !SS_ONSTACK, ..n }
        };
    }
    if a[1] != 0 {
        let mut bytes = [0u8; size_of::<StackT>()];
        bytes[..8].copy_from_slice(&old.sp.to_le_bytes());
        bytes[8..12].copy_from_slice(&old.flags.to_le_bytes());
        bytes[16..].copy_from_slice(&old.size.to_le_bytes());
        if !buffers::copy_out(t, a[1], &bytes) {
            return Errno::EFAULT.as_return();
        }
    }
    0
}

/// In the child after fork the thread's view is inherited; in a new thread the program's stack is not.
pub fn inherit(from: &ThreadBlock, to: &ThreadBlock) {
    to.fault_signal_blocked.store(from.fault_signal_blocked.load(Ordering::Relaxed), Ordering::Relaxed);
}
