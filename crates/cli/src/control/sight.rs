//! A process, seen from outside: which one it is, whether it waits, how long it ran.

use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use uzswap::control::Slot;

/// Process id and the slot's count of claims: one program of one process.
pub type Key = (u32, u64);

/// The identity of a process among all others.
pub fn key(pid: u32, slot: &Slot) -> Key {
    (pid, slot.claims.load(Ordering::Relaxed))
}

/// Whether a process waits for its turn. An active process waits from the moment that it is paused,
/// as it gives its memory then; a dormant one is paused, too, but waits only once it wants more
/// memory.
pub fn waits_for_turn(slot: &Slot) -> bool {
    match slot.mechanism() {
        Some(_) => slot.turn.is_paused(),
        None => slot.turn.is_waiting(),
    }
}

/// Processor time that a process had. None where it cannot be seen from here.
pub fn processor_time(pid: u32) -> Option<Duration> {
    let clock = clock_getcpuclockid(Pid::from_raw(i32::try_from(pid).ok()?)).ok()?;
    clock_gettime(clock).ok().map(Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_whether_a_process_ran() {
        let me = std::process::id();
        let before = processor_time(me).unwrap();
        assert!(before > Duration::ZERO && processor_time(me).unwrap() > before);
        assert_eq!(processor_time(u32::MAX), None);
    }
}
