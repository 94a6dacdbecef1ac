//! The path `/proc/self/exe` of a booted program: the kernel would answer with the library's path,
//! and the program finds its own.
//!
//! # Safety charter
//! The path is written once, before any other thread is there, and read afterwards.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicUsize, Ordering};

use uzswap::sys::text::{DIGITS_MOST, decimal};
use uzswap::sys::{check, nr};

use super::call;

const PATH_BYTES: usize = 4096;

/// The program's path as the kernel would show it, NUL-terminated: an address of leaked memory. 0:
/// this program was not booted.
static PATH: AtomicUsize = AtomicUsize::new(0);
static LENGTH: AtomicUsize = AtomicUsize::new(0);

/// Notes the path of the open file that is the program.
pub(crate) fn note(fd: i32) {
    let name = std::format!("/proc/self/fd/{fd}\0");
    let mut path = std::vec![0u8; PATH_BYTES];
    let n =
        check(call!(nr::READLINK, name.as_ptr(), path.as_mut_ptr(), PATH_BYTES - 1)).unwrap_or(0);
    if n > 0 {
        LENGTH.store(n, Ordering::Relaxed);
        PATH.store(path.leak().as_ptr().addr(), Ordering::Release);
    }
}

/// Calls that name a file and may mean `/proc/self/exe`: their numbers, and which argument is the
/// path.
pub(crate) const NAMING: [(usize, usize); 6] = [
    (nr::OPEN, 0),
    (nr::OPENAT, 1),
    (nr::READLINK, 0),
    (nr::READLINKAT, 1),
    (nr::EXECVE, 0),
    (nr::EXECVEAT, 1),
];

pub(crate) fn was_booted() -> bool {
    PATH.load(Ordering::Acquire) != 0
}

/// Whether a call of this number may name the program's file.
pub(super) fn is_named(number: usize) -> bool {
    was_booted() && NAMING.iter().any(|(n, _)| *n == number)
}

/// The program's path.
pub(crate) fn path() -> &'static [u8] {
    let at = PATH.load(Ordering::Acquire);
    if at == 0 {
        return b"";
    }
    // SAFETY: leaked memory of that length, never written again (charter).
    unsafe { core::slice::from_raw_parts(at as *const u8, LENGTH.load(Ordering::Relaxed)) }
}

/// Whether a path, without its NUL, is how this process names its own executable file.
pub(crate) fn is_own(path: &[u8]) -> bool {
    let Some(rest) = path.strip_prefix(b"/proc/") else { return false };
    let Some(who) = rest.strip_suffix(b"/exe") else { return false };
    let mut digits = [0u8; DIGITS_MOST];
    who == b"self"
        || who == b"thread-self"
        || who == decimal(u64::from(uzswap::sys::getpid()), &mut digits)
}
