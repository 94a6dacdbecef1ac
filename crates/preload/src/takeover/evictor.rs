//! The evictor: one thread of ours beside the program's, that keeps free memory ready.
//!
//! It is made with a bare clone, so libc knows nothing of it; it has a stack, a thread-local area
//! and a block of its own, blocks every signal, and never touches managed memory. This file begins
//! and ends it; `evictor_work.rs` is what it does.
#![allow(unsafe_code)]
// # Safety charter
// The new thread starts on memory mapped for it alone and runs `body`, which never returns. Its
// thread-local area is zero but for the self pointer and the stack guard that compiled C code
// reads.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use uzswap::sys::mem::{PROT_READ, PROT_WRITE, map_anonymous};
use uzswap::sys::{nr, sync};

use super::{PAGER, call, evictor_work, is_unmanaged, outside};
use crate::patch;

const STACK_BYTES: usize = 256 << 10;
const TLS_BYTES: usize = 64 << 10;
pub const CLONE_FLAGS: usize =
    0x100 | 0x200 | 0x400 | 0x800 | 0x10000 | 0x40000 | 0x80000 | CLONE_CHILD_CLEARTID;
const CLONE_CHILD_CLEARTID: usize = 0x20_0000;
/// A dormant process that could hold so many pages, 32 MiB, listens to orders; the memory that a
/// smaller one could give is not worth a thread.
const LISTENS_PAGES: i64 = (32 << 20) / uzswap::sys::PAGE_SIZE as i64;
/// How often the evictor looks by itself, in nanoseconds.
pub const TICK_NS: u64 = 10_000_000;

static RUNNING: AtomicBool = AtomicBool::new(false);
/// `STOPPING` is set when the thread is to end. `ALIVE` is cleared by the kernel, which wakes the
/// waiters, when the thread has ended.
pub static STOPPING: AtomicBool = AtomicBool::new(false);
static ALIVE: AtomicU32 = AtomicU32::new(0);
/// The address of the thread's memory: its stack and thread-local area. The evictor of a forked
/// child uses its copy.
static BASE: AtomicUsize = AtomicUsize::new(0);
pub static IN_FORKED_CHILD: AtomicBool = AtomicBool::new(false);
/// Cleared where the call that makes the thread would end the program.
static MAY_START: AtomicBool = AtomicBool::new(true);

/// Starts the evictor of a dormant process that could hold enough pages to be worth listening to
/// orders.
pub fn listen_from(pages: i64) {
    if pages >= LISTENS_PAGES && !is_running() {
        start();
    }
}

/// Starts the thread if it does not run; one that listens notices that paging is on. Called with
/// all signals blocked, so that it inherits that.
pub fn start() {
    if !is_allowed() || !may_start() {
        // An evictor that only listens sees by itself that it must end.
        PAGER.slot().orders.ring();
        return;
    }
    // `ALIVE` comes first: a thread that is to end the evictor while another starts it waits for
    // that one, and two would run on one stack.
    if is_running() || ALIVE.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire).is_err() {
        PAGER.slot().orders.ring();
        return;
    }
    RUNNING.store(true, Ordering::Release);
    if BASE.load(Ordering::Acquire) == 0 {
        match map_anonymous(STACK_BYTES + TLS_BYTES, PROT_READ | PROT_WRITE) {
            Ok(b) => BASE.store(b, Ordering::Release),
            // Without the thread every eviction is direct; nothing is lost but speed.
            Err(_) => return not_started(),
        }
    }
    let base = BASE.load(Ordering::Acquire);
    let (stack, tls) = (base + STACK_BYTES, base + STACK_BYTES + TLS_BYTES / 2);
    // SAFETY: memory of our own; fs:0 points to itself, fs:0x28 is the stack guard.
    unsafe {
        core::ptr::write_bytes((base + STACK_BYTES) as *mut u8, 0, TLS_BYTES);
        (tls as *mut usize).write(tls);
        ((tls + 0x10) as *mut usize).write(tls);
        let mut guard = 0usize;
        // The thread pointer of a program that was booted is its own business.
        if !patch::are_slots_in_gs() {
            core::arch::asm!("mov {}, fs:[0x28]", out(reg) guard, options(nostack, readonly));
        }
        ((tls + 0x28) as *mut usize).write(guard);
    }
    let all = !0u64;
    let mut old = 0u64;
    let _ = call!(nr::RT_SIGPROCMASK, 2, &raw const all, &raw mut old, 8);
    let result: isize;
    // SAFETY: the child runs on its own stack and never returns from `body`.
    unsafe {
        core::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "and rsp, -16",
            "call {body}",
            "ud2",
            "2:",
            body = sym evictor_work::body,
            inlateout("rax") nr::CLONE as isize => result,
            in("rdi") CLONE_FLAGS, in("rsi") stack, in("rdx") 0, in("r10") ALIVE.as_ptr(),
            in("r8") tls,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    let _ = call!(nr::RT_SIGPROCMASK, 2, &raw const old, 0, 8);
    if result < 0 {
        not_started();
    }
}

/// Notes that the thread could not be made.
fn not_started() {
    RUNNING.store(false, Ordering::Release);
    ALIVE.store(0, Ordering::Release);
}

/// Whether the thread may run: not where paging has ended, nor where the mechanism allows no other
/// thread.
pub fn is_allowed() -> bool {
    !is_unmanaged() && !PAGER.active().is_some_and(|a| a.mechanism.needs_to_be_alone())
}

pub fn may_start() -> bool {
    MAY_START.load(Ordering::Relaxed)
}

/// Has no thread be made from now on: without one that runs already, all evictions are direct.
pub fn start_no_more() {
    MAY_START.store(false, Ordering::Relaxed);
}

pub fn is_running() -> bool {
    RUNNING.load(Ordering::Acquire)
}

/// Ends the thread, if it runs, and waits until it has ended. Called without the pager's lock,
/// which the thread may need to get there.
pub fn stop() {
    if !is_running() {
        return;
    }
    STOPPING.store(true, Ordering::Release);
    PAGER.evictor_word.fetch_add(1, Ordering::Release);
    sync::futex_wake(&PAGER.evictor_word, 1);
    PAGER.slot().orders.ring();
    while ALIVE.load(Ordering::Acquire) != 0 {
        // The kernel's wake at a thread's end is for waiters that are not private.
        sync::futex_wait_shared(&ALIVE, 1, Some(TICK_NS));
    }
    STOPPING.store(false, Ordering::Release);
    TID.store(0, Ordering::Relaxed);
    PAGER.slot().orders.set_listener(false);
    RUNNING.store(false, Ordering::Release);
}

/// Forgets the thread in the child after fork, where it does not exist.
pub fn after_fork_child() {
    RUNNING.store(false, Ordering::Release);
    ALIVE.store(0, Ordering::Release);
    // A thread of the parent may have been ending its evictor.
    STOPPING.store(false, Ordering::Release);
    TID.store(0, Ordering::Relaxed);
    outside::close_files();
    IN_FORKED_CHILD.store(true, Ordering::Release);
}

/// Thread id of the evictor.
pub static TID: AtomicU32 = AtomicU32::new(0);

pub fn tid() -> u32 {
    TID.load(Ordering::Relaxed)
}

/// Where a thread's area has its own address, from the thread pointer on.
pub const OWN_ADDRESS: usize = 0x10;

/// Whether the calling thread is the evictor: its thread-local area, which holds its own address,
/// tells.
pub fn is_caller() -> bool {
    if patch::are_slots_in_gs() {
        return patch::thread_slot_get() == 0 && tid() == uzswap::sys::gettid();
    }
    let tls: usize;
    // SAFETY: every thread has that word, here as in libc's.
    unsafe {
        core::arch::asm!(
            "mov {}, fs:[{}]", out(reg) tls, const OWN_ADDRESS, options(nostack, readonly)
        )
    };
    let base = BASE.load(Ordering::Relaxed);
    base != 0 && tls == base + STACK_BYTES + TLS_BYTES / 2 && TID.load(Ordering::Relaxed) != 0
}

/// Notes that the thread is about to end by itself; nobody starts it again in this process.
pub fn leave_alone() {
    TID.store(0, Ordering::Relaxed);
    PAGER.slot().orders.set_listener(false);
    RUNNING.store(false, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_of_fork_does_not_ask_the_files_of_its_parent() {
        outside::open_files();
        assert!(outside::fds().iter().all(|file| *file >= 0));
        let (pss, anonymous) = outside::share_of_anonymous().unwrap();
        assert!(0 < pss && pss <= anonymous, "{pss} of {anonymous} pages");
        assert!(outside::held_pages().unwrap() > 0);
        after_fork_child();
        assert_eq!(outside::fds(), [-1; 2]);
        assert!(outside::share_of_anonymous().is_none());
        // By a file that is opened for the question.
        assert!(outside::held_pages().unwrap() > 0);
    }
}
