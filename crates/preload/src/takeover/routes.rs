//! Calls that pass the hook, and calls that the kernel answers alone.

use core::sync::atomic::Ordering;

use uzswap::sys::nr;

use super::{descriptors, own_path, pins};
use crate::calls::shapes::{Disposition, disposition};
use crate::patch::{ROUTE_INLINE, ROUTE_LIGHT_HOOK, ROUTE_TABLE};

/// Calls that read or set the limit on descriptors, which the program sees as if ours did not
/// exist.
pub(super) const LIMITS: [usize; 3] = [nr::GETRLIMIT, nr::SETRLIMIT, nr::PRLIMIT64];

/// Calls that name memory which the kernel goes on using.
pub(super) const KEPT: [usize; 3] = [nr::SET_ROBUST_LIST, nr::SET_TID_ADDRESS, nr::RSEQ];

/// Calls after which files of /proc may be out of reach, beside those that change the caller's
/// rights (`identity.rs`).
pub(super) const LOSING: [usize; 1] = [nr::CHROOT];

/// Whether a call is newer than the table of shapes: nobody knows its memory, nor whether it maps
/// some or goes on using it. Programs fall back, as on an older kernel.
pub(super) fn is_newer_than_table(number: usize) -> bool {
    number >= nr::COUNT
}

/// Writes which calls pass the hook.
pub(super) fn set_routes(active: bool) {
    for (number, route) in ROUTE_TABLE.iter().enumerate() {
        route.store(route_of(number, active), Ordering::Release);
    }
}

/// The route of a call. Those that change mappings, signals, processes and descriptors pass the
/// hook always, those with buffers once paging is on.
pub(super) fn route_of(number: usize, active: bool) -> u8 {
    let hooked = match disposition(number) {
        _ if is_newer_than_table(number) => true,
        Disposition::MemoryMap
        | Disposition::Signal
        | Disposition::Process
        | Disposition::Descriptor
        | Disposition::Special => true,
        _ if KEPT.contains(&number) || LIMITS.contains(&number) || number == nr::RT_SIGPENDING => {
            true
        }
        _ if descriptors::ASKING.contains(&number) || pins::PINNING.contains(&number) => true,
        _ if number == nr::PTRACE => true,
        _ if own_path::is_named(number) => true,
        _ if LOSING.contains(&number) => true,
        // It may seek memory that is out (`buffers/own_memory.rs`).
        _ if number == nr::LSEEK => active,
        Disposition::Piecewise | Disposition::Buffers | Disposition::ConsumesBeforeFault => active,
        Disposition::Plain | Disposition::Unimplemented => false,
    };
    // This call must find the stack exactly as it is.
    let never = number == nr::RT_SIGRETURN;
    if hooked && !never { ROUTE_LIGHT_HOOK } else { ROUTE_INLINE }
}

/// Makes all calls run without the hook from now on, in all threads: the process is left to itself.
pub(super) fn set_no_routes() {
    ROUTE_TABLE.iter().for_each(|route| route.store(ROUTE_INLINE, Ordering::Release));
}
