//! Signals: ours for faults, and the program's exactly as it asked for.
//!
//! The kernel delivers every handled signal on the thread's own alternate stack, to `entry` below,
//! with all signals blocked: a frame cannot be pushed on a stack whose page is missing. For a
//! signal of the program the frame is then *moved* to where the kernel would have put it (the
//! program's stack, or the alternate stack that it asked for), made resident first, and the
//! program's handler runs there with the mask that it asked for. So handlers see their own stack,
//! may switch away from it, and conservative collectors find what they scan.
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
//! The fault signal (SIGBUS, or SIGSEGV for protection faults) can be neither blocked nor ignored
//! by the program: the kernel would kill. Masks are edited on their way in and corrected on their
//! way out.
//!
//! # Safety charter
//! The entry gets the kernel's own frame. The frame is copied to program memory with the pager's
//! lock held, after making it resident, or with plain stores where the stack is not managed.
//! Everything else is plain data.
#![allow(unsafe_code)]

mod calls;
pub mod dump;
mod frame;
pub mod inherit;
pub mod sent;

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use uzswap::pager::Fault;
use uzswap::sys::{Errno, nr};

pub(super) use calls::{call, sigaltstack};
use frame::{UC_ERR, UC_RAX, UC_RIP, UC_SIGMASK, UCONTEXT_BYTES, managed_return, move_frame};

use super::masks::{
    FAULT_SIGNAL, SIG_BLOCK, SIG_SETMASK, SIG_UNBLOCK, SIGBUS, block_all, fault_bit, restore,
    would_interrupt,
};
use super::thread::{self, SS_AUTODISARM, SS_DISABLE, SS_ONSTACK, ThreadBlock, WAITS};
use super::{PAGER, PID, call, cancel, is_shared_child};

const BUS_MCEERR_AO: i32 = 5;
const SIGSEGV: i32 = 11;
const SIGNALS: usize = 65;

const SIG_DFL: usize = 0;
const SIG_IGN: usize = 1;
const SA_SIGINFO: u64 = 4;
const SA_ONSTACK: u64 = 0x0800_0000;
const SA_RESTORER: u64 = 0x0400_0000;
const SA_NODEFER: u64 = 0x4000_0000;
const SA_RESETHAND: u64 = 0x8000_0000;

/// `struct sigaction` of the kernel.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct KernelAction {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// The program's action for one signal. Fields are atomics: handlers read while threads set.
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

/// The signals that a handler may leave blocked when it returns, by a change of the mask in its
/// frame: all but the fault signal, as long as that is ours.
static MAY_BE_BLOCKED: AtomicU64 = AtomicU64::new(!0);

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

// The restorers. The second is for frames that the kernel must not read where they are (see
// `managed_return`). Exceptions and backtraces pass through them: their unwind information says, as
// libc's does, that the registers are in the ucontext that the stack pointer points to. It begins a
// byte early, since unwinders look up the byte before a return address.
core::arch::global_asm!(
    // Where the registers are, with the ucontext at a register: DW_OP_breg3 (rbx) or DW_OP_breg7
    // (rsp).
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
    "mov rax, qword ptr [rip + {may_be_blocked}]",
    "and qword ptr [rsp + {mask}], rax",
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
    // uzswap_enter_handler(frame, handler, sig, info, context, mask): on the frame's stack with the
    // mask, as the kernel would have entered the handler.
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
    may_be_blocked = sym MAY_BE_BLOCKED,
    mask = const UC_SIGMASK,
);

fn kernel_action(sig: i32, new: Option<&KernelAction>, old: Option<&mut KernelAction>) -> isize {
    let n = new.map_or(0, |n| core::ptr::from_ref(n) as usize);
    let o = old.map_or(0, |o| core::ptr::from_mut(o) as usize);
    loop {
        let r = call!(nr::RT_SIGACTION, sig, n, o, 8);
        if r != Errno::EFAULT.as_return() {
            return r;
        }
        // The caller's frame was paged out since it was written. Setting an action twice is
        // harmless.
        for at in [n, o].into_iter().filter(|at| *at != 0) {
            // SAFETY: both are live, aligned structs of the caller.
            unsafe { (at as *mut u64).write_volatile((at as *const u64).read_volatile()) };
        }
    }
}

/// The action installed in the kernel for a handler of the program.
fn wrapped(a: KernelAction) -> KernelAction {
    KernelAction {
        handler: entry as *const () as usize,
        flags: (a.flags | SA_SIGINFO | SA_ONSTACK | SA_RESTORER) & !(SA_NODEFER | SA_RESETHAND),
        restorer: uzswap_restorer as *const () as usize,
        mask: !(fault_bit()),
    }
}

/// The action installed for the fault signal. Everything blocked: the fault path is never
/// interrupted.
fn fault_action() -> KernelAction {
    KernelAction { mask: !0, ..wrapped(KernelAction::default()) }
}

fn is_handler(h: usize) -> bool {
    h != SIG_DFL && h != SIG_IGN
}

/// Takes the fault signal over at the start, and wraps the handlers that exist already. `ignored`:
/// what the program before has told of its fault signal ([`inherit::to_tell`]).
pub fn start(fault_signal: i32, ignored: Option<u32>) {
    FAULT_SIGNAL.store(fault_signal, Ordering::Release);
    MAY_BE_BLOCKED.store(!fault_bit(), Ordering::Release);
    for sig in 1..SIGNALS as i32 {
        let mut a = KernelAction::default();
        if kernel_action(sig, None, Some(&mut a)) != 0 {
            continue;
        }
        let is_told = ignored == Some(sig as u32) && matches!(sig, SIGBUS | SIGSEGV);
        if is_told && a.handler == SIG_DFL {
            a.handler = SIG_IGN;
            // This program's fault signal may be the other one.
            let _ = kernel_action(sig, Some(&a), None);
        }
        RECORDED[sig as usize].set(a);
        if sig == fault_signal {
            let _ = kernel_action(sig, Some(&fault_action()), None);
        } else if is_handler(a.handler) {
            let _ = kernel_action(sig, Some(&wrapped(a)), None);
        }
    }
}

/// Leaves the process to itself: its signals are as it has set them, and so are mask and alternate
/// stack of the calling thread. Other threads keep our alternate stack, which does no harm.
pub fn give_back(t: &'static ThreadBlock) {
    let mask = block_all();
    MAY_BE_BLOCKED.store(!0, Ordering::Release);
    for sig in 1..SIGNALS as i32 {
        let recorded = RECORDED[sig as usize].get();
        let is_ours = sig == FAULT_SIGNAL.load(Ordering::Relaxed) || dump::is_ours(sig);
        if is_handler(recorded.handler) || is_ours {
            let _ = kernel_action(sig, Some(&recorded), None);
        }
    }
    // SAFETY: this thread's own cell.
    let stack = unsafe { *t.program_stack.get() };
    let _ = call!(nr::SIGALTSTACK, &raw const stack, 0);
    let is_blocked = t.fault_signal_blocked.load(Ordering::Relaxed) != 0;
    restore(mask | if is_blocked { fault_bit() } else { 0 });
    if is_blocked {
        sent::send_on(t);
    }
}

fn read_u64(addr: usize) -> u64 {
    // SAFETY: a word of the kernel's frame, or of the program's memory read as the program would
    // (it may fault).
    unsafe { (addr as *const u64).read_unaligned() }
}

fn write_u64(addr: usize, v: u64) {
    // SAFETY: as above; our own copy of a frame.
    unsafe { (addr as *mut u64).write_unaligned(v) }
}

/// Every handled signal comes here, on the thread's alternate stack, with all signals blocked.
extern "C" fn entry(sig: i32, info: usize, context: usize) {
    let si_code = read_u64(info + 8) as i32;
    // BUS_MCEERR_AO tells of bad memory that no access has met: none would be made again.
    let is_advance_notice = sig == SIGBUS && si_code == BUS_MCEERR_AO;
    if sig == FAULT_SIGNAL.load(Ordering::Relaxed)
        && si_code > 0
        && !is_advance_notice
        && let Some(t) = thread::existing()
    {
        let (addr, error) = (read_u64(info + 16) as usize, read_u64(context + UC_ERR));
        // The wait ends at a signal that the program would take now.
        PAGER.wait_for_turn(|| !would_interrupt(read_u64(context + UC_SIGMASK)));
        // SAFETY: this thread's own cell, and the handler is not reentered (all blocked).
        let fault = t.busy(|| PAGER.fault(addr, error, unsafe { &mut *t.stream.get() }));
        match fault {
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
        && sent::arrived(t, info, context)
    {
        return;
    }
    deliver(sig, read_u64(info + 8) as i32, info, context);
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
            dump::prepare(sig);
            // The signal was under way when another thread took its handler away: the kernel's
            // action now is right, unless the signal would come here again (a handler that only a
            // vfork child knew of).
            let mut now = KernelAction::default();
            let _ = kernel_action(sig, None, Some(&mut now));
            if now.handler == entry as *const () as usize && !is_handler(recorded.get().handler) {
                let _ = kernel_action(sig, Some(&KernelAction::default()), None);
            }
            let _ = call!(
                nr::RT_TGSIGQUEUEINFO,
                uzswap::sys::getpid(),
                uzswap::sys::gettid(),
                sig,
                info
            );
            return;
        }
        return deliver_default(sig, si_code);
    }
    inherit::take_back();
    if action.flags & SA_RESETHAND != 0 {
        end_handling(sig, is_shared_child());
    }
    let saved = read_u64(context + UC_SIGMASK);
    let Some(t) = thread::existing() else {
        // A thread without a block is on its own stack already.
        // SAFETY: the program's handler, called as the kernel would.
        let f: extern "C" fn(i32, usize, usize) = unsafe { core::mem::transmute(action.handler) };
        return f(sig, info, context);
    };
    let (ip, result) = (read_u64(context + UC_RIP) as usize, read_u64(context + UC_RAX));
    let interrupted = waits_with(t, ip, result).unwrap_or(saved);
    let own = if action.flags & SA_NODEFER != 0 { 0 } else { 1u64 << (sig - 1) };
    let mask = (interrupted | action.mask | own) & !fault_bit();
    let is_sent = sig == FAULT_SIGNAL.load(Ordering::Relaxed) && si_code <= 0;
    let goes_on = if is_sent { sent::ends_call(t, ip) } else { cancel::interrupted(t, sig, ip) };
    if let Some(ip) = goes_on {
        write_u64(context + UC_RIP, ip as u64);
    }
    let Some(frame) = move_frame(t, &action, info, context) else {
        // SIGSEGV, as from the kernel when it cannot push a frame.
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

/// The mask with which the call waited that a signal has ended: the signal's handler goes by that
/// one, and the frame has the mask to which the thread returns.
fn waits_with(t: &ThreadBlock, ip: usize, result: u64) -> Option<u64> {
    let waited = t.wait_mask.swap(0, Ordering::Relaxed);
    (waited != 0 && cancel::has_ended_a_call(ip, result)).then_some(waited & !WAITS)
}

/// Has the next signal take its default action: the program's handler was for one. `is_shared`:
/// this is a vfork child, whose table in the kernel is its own and our record its parent's.
fn end_handling(sig: i32, is_shared: bool) {
    if !is_shared {
        RECORDED[sig as usize].handler.store(SIG_DFL, Ordering::Release);
    }
    if sig != FAULT_SIGNAL.load(Ordering::Relaxed) {
        let default = KernelAction::default();
        let prepares = !is_shared && dump::is_ours(sig);
        let action = if prepares { wrapped(default) } else { default };
        let _ = kernel_action(sig, Some(&action), None);
    }
}

/// The default action: let the kernel do it.
fn deliver_default(sig: i32, si_code: i32) {
    super::debug(&[("default action of signal", sig as u64), ("code", si_code as u64)]);
    dump::prepare(sig);
    let _ = kernel_action(sig, Some(&KernelAction::default()), None);
    // A fault happens again when we return and then kills with the right context; a sent signal is
    // sent again, and so is one that stands for another (a lost page, by protection faults).
    if si_code <= 0 || sig != FAULT_SIGNAL.load(Ordering::Relaxed) {
        let _ = call!(nr::TKILL, uzswap::sys::gettid(), sig);
    }
}

/// In the child after fork the thread's view is inherited; in a new thread the program's stack is
/// not.
pub fn inherit(from: &ThreadBlock, to: &ThreadBlock) {
    to.fault_signal_blocked
        .store(from.fault_signal_blocked.load(Ordering::Relaxed), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    const USR2: i32 = 12;
    /// Its default action is a dump.
    const XCPU: i32 = 24;

    /// One test: the process has one table of actions.
    #[test]
    fn signals_that_dump_come_here_until_the_process_is_left_to_itself() {
        let handler = |sig| {
            let mut now = KernelAction::default();
            assert_eq!(kernel_action(sig, None, Some(&mut now)), 0);
            now.handler
        };
        let record = |sig: i32| &RECORDED[sig as usize].handler;
        let (ours, programs) = (entry as *const () as usize, 0x1000);
        dump::BEGUN.store(true, Ordering::Release);
        for sig in [USR2, XCPU] {
            record(sig).store(programs, Ordering::Release);
            end_handling(sig, false);
            assert_eq!(record(sig).load(Ordering::Acquire), SIG_DFL);
        }
        assert_eq!([handler(USR2), handler(XCPU)], [SIG_DFL, ours]);
        // A vfork child: the handler goes on being its parent's.
        record(XCPU).store(programs, Ordering::Release);
        end_handling(XCPU, true);
        assert_eq!(record(XCPU).swap(SIG_DFL, Ordering::AcqRel), programs);
        assert_eq!(handler(XCPU), SIG_DFL);
        end_handling(XCPU, false);
        assert_eq!(handler(XCPU), ours);
        let t = ThreadBlock::allocate().unwrap();
        give_back(t);
        assert_eq!(handler(XCPU), SIG_DFL);
        dump::BEGUN.store(false, Ordering::Release);
        t.give_back();
    }
}
