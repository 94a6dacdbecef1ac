//! The processor's time stamp counter: the only clock that costs no system call and touches no
//! memory.
//!
//! # Safety charter
//! One instruction that reads a register, and a system call that writes a local. The kernel can
//! forbid the instruction to a thread (PR_SET_TSC); it is not used then, for in the fault handler
//! its SIGSEGV would kill the program.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicBool, Ordering};

use super::nr;

const PR_GET_TSC: usize = 25;
/// The option of prctl that forbids the instruction, or allows it again.
pub const PR_SET_TSC: usize = 26;
const PR_TSC_SIGSEGV: u32 = 2;

static FORBIDDEN: AtomicBool = AtomicBool::new(false);

/// Ticks since some moment.
#[inline]
pub fn now() -> u64 {
    // SAFETY: every x86-64 processor has it; that it is not forbidden is the caller's to know
    // (`is_allowed`).
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The program forbids the instruction to one of its threads, and perhaps to others later.
pub fn forbid() {
    FORBIDDEN.store(true, Ordering::Relaxed);
}

/// Whether this process may read the counter, as far as is known.
#[inline]
pub fn is_allowed() -> bool {
    !FORBIDDEN.load(Ordering::Relaxed)
}

/// Asks the kernel once: an instruction that was forbidden stays so over fork and exec.
pub fn ask() {
    let mut mode = 0u32;
    // SAFETY: the kernel writes the local.
    let asked = unsafe { uz_syscall!(nr::PRCTL, PR_GET_TSC, &raw mut mode) };
    if asked.is_ok() && mode == PR_TSC_SIGSEGV {
        forbid();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_on() {
        ask();
        assert!(is_allowed());
        let first = now();
        assert!((0..1000).map(|_| now()).max().unwrap() > first);
    }
}
