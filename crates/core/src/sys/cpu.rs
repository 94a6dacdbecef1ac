//! The number of this CPU, the number of CPUs, and a wait for another thread without a lock.
//!
//! # Safety charter
//! One instruction that reads a register of the CPU, and system calls that read and write nothing
//! but locals.
#![allow(unsafe_code)]

use core::arch::x86_64::__cpuid_count;
use core::sync::atomic::{AtomicU8, Ordering};

use super::nr;

/// Whether the CPU has the instruction `rdpid`, which the standard library does not look for: asked
/// once, because `cpuid` is an exit to the hypervisor in a virtual machine.
fn has_rdpid() -> bool {
    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;
    static ANSWER: AtomicU8 = AtomicU8::new(UNKNOWN);
    match ANSWER.load(Ordering::Relaxed) {
        UNKNOWN => {
            let has = __cpuid_count(0, 0).eax >= 7 && __cpuid_count(7, 0).ecx >> 22 & 1 == 1;
            ANSWER.store(if has { YES } else { NO }, Ordering::Relaxed);
            has
        }
        answer => answer == YES,
    }
}

/// The CPU that this thread runs on, as a hint: it may be another one a moment later, and 0 where
/// the machine does not say.
#[inline]
pub fn current() -> usize {
    if has_rdpid() {
        let aux: u64;
        // SAFETY: reads the register that Linux sets to node << 12 | CPU; the feature was found.
        unsafe {
            core::arch::asm!("rdpid {}", out(reg) aux, options(nomem, nostack, preserves_flags))
        };
        return (aux & 0xfff) as usize;
    }
    let aux: u32;
    // SAFETY: as above; every x86-64 CPU that Linux's vDSO `getcpu` supports without rdpid has it.
    unsafe {
        core::arch::asm!(
            "rdtscp", out("eax") _, out("edx") _, out("ecx") aux,
            options(nomem, nostack, preserves_flags),
        )
    };
    (aux & 0xfff) as usize
}

/// The CPUs that this thread may run on; 1 if the kernel does not say.
pub fn count() -> usize {
    let mut mask = [0u64; 128];
    // SAFETY: the kernel writes at most the length given.
    let filled =
        unsafe { uz_syscall!(nr::SCHED_GETAFFINITY, 0, size_of_val(&mask), mask.as_mut_ptr()) };
    let bytes = filled.unwrap_or(0);
    let count: u32 = mask[..bytes / 8].iter().map(|word| word.count_ones()).sum();
    count.max(1) as usize
}

/// Lets some time pass, the more the higher `round`: pauses first, then the rest of the time slice,
/// and now and then a short sleep, without which a real-time thread could starve the one that it
/// waits for.
pub fn relax(round: u32) {
    const PAUSE_ROUNDS: u32 = 32;
    const SLEEP_EVERY: u32 = 256;
    if round < PAUSE_ROUNDS {
        core::hint::spin_loop();
    } else if !round.is_multiple_of(SLEEP_EVERY) {
        // SAFETY: the call takes no argument.
        let _ = unsafe { uz_syscall!(nr::SCHED_YIELD, 0) };
    } else {
        let (seconds, nanoseconds) = (0i64, 50_000i64);
        let time = [seconds, nanoseconds];
        // SAFETY: the timespec outlives the call; the kernel need not say what is left of it.
        let _ = unsafe { uz_syscall!(nr::NANOSLEEP, time.as_ptr(), 0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_current_cpu_is_one_that_the_kernel_lets_us_use() {
        let mut mask = [0u64; 128];
        // SAFETY: as in `count`.
        unsafe { uz_syscall!(nr::SCHED_GETAFFINITY, 0, size_of_val(&mask), mask.as_mut_ptr()) }
            .unwrap();
        assert_eq!(count(), mask.iter().map(|w| w.count_ones() as usize).sum::<usize>());
        for _ in 0..1000 {
            let cpu = current();
            assert_ne!(mask[cpu / 64] >> (cpu % 64) & 1, 0, "CPU {cpu}");
        }
    }
}
