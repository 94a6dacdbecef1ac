//! Core dumps: before a signal ends the program with one, all of its memory comes in.
//!
//! The kernel writes zeros where a page is out, and a zero is a plausible value. So while paging is
//! on and the limit for core dumps is above zero (ulimit -c), the signals whose default action is a
//! dump come here first. Pages that are out are brought in, as far as the limit and the machine
//! leave room. Then the signal goes on its way. A message says how many pages are missing.
//!
//! A signal that a thread has blocked when its own access raises it ends the program without coming
//! here.
//!
//! # Safety charter
//! As for [`super`]: plain integers for the kernel, and lines of our own for it to write.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicBool, Ordering};

use uzswap::sys::text::{DIGITS_MOST, decimal, join};
use uzswap::sys::{PAGE_SIZE, nr};

use super::super::{ACTIVE, PAGER, call};
use super::*;

/// Signals whose default action is a core dump: QUIT, ILL, TRAP, ABRT, BUS, FPE, SEGV, XCPU, XFSZ,
/// SYS.
const DUMPING: [i32; 10] = [3, 4, 5, 6, SIGBUS, 8, SIGSEGV, 24, 25, 31];
/// The part of the machine's free memory that a dump leaves to others: an eighth.
const LEFT_PART: u64 = 8;
/// Pages that a dump leaves free at least, of little room half: 16 MiB. The kernel writes the core
/// by way of its page cache, which counts in the process's memory group until the disk has it. With
/// 4 MiB left the group killed a process in its dump while the disk was busy.
const LEFT_PAGES: u64 = (16 << 20) / PAGE_SIZE as u64;

/// Set when the signals come here.
pub(super) static BEGUN: AtomicBool = AtomicBool::new(false);

/// Takes the signals that the program leaves to the kernel, when paging begins and if there is to
/// be a dump.
pub fn begin() {
    if !is_wanted() {
        return;
    }
    BEGUN.store(true, Ordering::Release);
    let fault_signal = FAULT_SIGNAL.load(Ordering::Relaxed);
    for sig in DUMPING.into_iter().filter(|sig| *sig != fault_signal) {
        if RECORDED[sig as usize].get().handler == SIG_DFL {
            let _ = kernel_action(sig, Some(&wrapped(KernelAction::default())), None);
        }
    }
}

/// Whether the default action of a signal is ours to prepare.
pub fn is_ours(sig: i32) -> bool {
    BEGUN.load(Ordering::Acquire) && DUMPING.contains(&sig)
}

/// Whether a core would be written.
fn is_wanted() -> bool {
    const RLIMIT_CORE: usize = 4;
    const PR_GET_DUMPABLE: usize = 3;
    let mut limit = [0u64; 2];
    let asked = call!(nr::PRLIMIT64, 0, RLIMIT_CORE, 0, limit.as_mut_ptr());
    asked == 0 && limit[0] > 0 && call!(nr::PRCTL, PR_GET_DUMPABLE) != 0
}

/// Pages of the free ones that are used for the program's memory.
fn usable_pages(room: u64) -> u64 {
    room - (room / LEFT_PART).max(LEFT_PAGES.min(room / 2))
}

/// Brings memory in before a signal ends the process by its default action.
pub(super) fn prepare(sig: i32) {
    static PREPARING: AtomicBool = AtomicBool::new(false);
    let is_child_of_ours = uzswap::sys::getpid() != PID.load(Ordering::Relaxed);
    if is_child_of_ours
        || !DUMPING.contains(&sig)
        || !ACTIVE.load(Ordering::Acquire)
        || !is_wanted()
        || PREPARING.swap(true, Ordering::AcqRel)
    {
        return;
    }
    let room = PAGER.tree().room.ask().unwrap_or(0);
    let missing = PAGER.bring_in_all(usable_pages(room) as i64);
    if missing > 0 {
        let mut digits = [[0u8; DIGITS_MOST]; 2];
        let [pages, mib] = &mut digits;
        let lines: [&[u8]; 5] = [
            b"uzswap: the core dump lacks ",
            decimal(missing, pages),
            b" pages (",
            decimal((missing * PAGE_SIZE as u64) >> 20, mib),
            b" MiB) of the program, which read as zeros: there is no memory for them\n",
        ];
        let mut line = [0u8; 160];
        let n = join(&lines, &mut line);
        let _ = call!(nr::WRITE, 2, line.as_ptr(), n);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dump_leaves_room_to_write_it() {
        let mib = |mib: u64| (mib << 20) / PAGE_SIZE as u64;
        let usable = [0, 1, mib(10), mib(30), mib(100), mib(800)].map(usable_pages);
        assert_eq!(usable, [0, 1, mib(5), mib(15), mib(84), mib(700)]);
    }
}
