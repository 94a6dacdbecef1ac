//! `uzswap_self_*`: this process, where it runs under uzswap.
//!
//! # Safety charter
//! `madvise` with advice that changes no content, on whole pages; the other calls have structures
//! and numbers of the caller's.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};
use std::{fs, io};

use crate::border::{Outcome, Result, Versioned, give, number, with_errno, write_sized};
use crate::run::{self, Figures};

/// `struct uzswap_self_status`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct StatusOfC {
    pub size: usize,
    pub figures: Figures,
}

// SAFETY: a size and words.
unsafe impl Versioned for StatusOfC {
    const LEAST_BYTES: usize = 104;
}

/// `enum uzswap_advice`, as the kernel numbers it.
const ADVICE: [c_int; 3] = [libc::MADV_COLD, libc::MADV_PAGEOUT, libc::MADV_WILLNEED];
const NEED: usize = 2;

/// The states of an answer that is looked for once.
const UNKNOWN: u8 = 0;
const NO: u8 = 1;
const YES: u8 = 2;

/// Whether uzswap's library is in this process: it comes with an exec and never leaves, so it is
/// looked for once. No lock is in this, which a forked child could find taken.
fn is_managed() -> bool {
    static FOUND: AtomicU8 = AtomicU8::new(UNKNOWN);
    is_found(&FOUND, || fs::read("/proc/self/maps"))
}

/// As `is_managed`, by what was found so far, or by the process's mappings. A look that fails, for
/// want of a descriptor perhaps, says nothing, and the next call looks again.
fn is_found(found: &AtomicU8, maps: impl FnOnce() -> io::Result<Vec<u8>>) -> bool {
    if found.load(Ordering::Relaxed) == UNKNOWN {
        let Ok(maps) = maps() else { return false };
        // Packages give its file a suffix, cargo does not.
        let name = b"/libuzswap_preload";
        let is_there = maps.windows(name.len()).any(|here| here == name);
        found.store(if is_there { YES } else { NO }, Ordering::Relaxed);
    }
    found.load(Ordering::Relaxed) == YES
}

fn managed() -> Result<()> {
    if is_managed() { Ok(()) } else { Err(Outcome::NotManaged) }
}

#[unsafe(no_mangle)]
extern "C" fn uzswap_self_is_managed() -> c_int {
    c_int::from(is_managed())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn uzswap_self_status(status: *mut StatusOfC) -> c_int {
    if status.is_null() {
        return Outcome::Invalid as c_int;
    }
    number(managed().and_then(|()| run::find()).and_then(|found| {
        let status_now = StatusOfC { size: size_of::<StatusOfC>(), figures: found.figures };
        // SAFETY: the header's contract.
        unsafe { write_sized(status, &status_now) }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn uzswap_self_set_memory(bytes: u64, limit_bytes: *mut u64) -> c_int {
    number(managed().and_then(|()| run::set_memory(bytes)).map(|limit| {
        // SAFETY: the header's contract.
        unsafe { give(limit_bytes, limit) }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn uzswap_self_reclaim(freed_bytes: *mut u64) -> c_int {
    number(managed().and_then(|()| run::reclaim()).map(|freed| {
        // SAFETY: the header's contract.
        unsafe { give(freed_bytes, freed) }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn uzswap_self_advise(
    start: *const c_void,
    bytes: usize,
    advice: c_int,
) -> c_int {
    number(advise(start, bytes, advice))
}

fn advise(start: *const c_void, bytes: usize, advice: c_int) -> Result<()> {
    let advice = usize::try_from(advice).ok().filter(|number| *number < ADVICE.len());
    let (false, Some(advice)) = (start.is_null(), advice) else { return Err(Outcome::Invalid) };
    managed()?;
    let pages = pages(start.addr(), bytes, advice == NEED).ok_or(Outcome::Invalid)?;
    if pages.is_empty() {
        return Ok(());
    }
    let at = start.with_addr(pages.start).cast_mut();
    // SAFETY: the advice leaves all contents as they are, whosever memory it is.
    match unsafe { libc::madvise(at, pages.len(), ADVICE[advice]) } {
        0 => Ok(()),
        _ => {
            let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
            Err(with_errno(Outcome::System, errno))
        }
    }
}

/// The addresses of the whole pages in a piece of memory, or of all pages that it touches:
/// neighbours on the first and the last page come along, but do not go. `None`: there is no such
/// memory.
fn pages(start: usize, bytes: usize, touched: bool) -> Option<Range<usize>> {
    const PAGE: usize = uzswap::PAGE_BYTES;
    let end = start.checked_add(bytes)?;
    if touched {
        return Some(start / PAGE * PAGE..end.checked_next_multiple_of(PAGE)?);
    }
    // A piece of the last page of all has no whole one behind it.
    let first = start.checked_next_multiple_of(PAGE).unwrap_or(usize::MAX);
    Some(first..end / PAGE * PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cold_are_whole_pages_and_needed_all_that_are_touched_up_to_the_last_address() {
        let bytes_of =
            |start, bytes, touched| pages(start, bytes, touched).map(|p| (p.start, p.len()));
        assert_eq!(bytes_of(4097, 8191, false), Some((8192, 4096)));
        assert_eq!(bytes_of(4097, 8191, true), Some((4096, 8192)));
        assert_eq!(bytes_of(4096, 8192, false), bytes_of(4096, 8192, true));
        assert!(pages(4097, 4096, false).is_some_and(|p| p.is_empty()));
        // From here on the next page would be the first of all.
        let last = usize::MAX - 4000;
        assert!(pages(last, 100, false).is_some_and(|p| p.is_empty()));
        assert_eq!(pages(last, 100, true), None);
        assert_eq!((pages(last, 5000, false), pages(last, 5000, true)), (None, None));
    }

    #[test]
    fn a_look_that_fails_is_not_remembered_and_one_that_does_not_is() {
        let found = AtomicU8::new(UNKNOWN);
        let maps = |text: &'static str| move || Ok(text.as_bytes().to_vec());
        let fails = || Err(io::Error::from_raw_os_error(libc::EMFILE));
        assert!(!is_found(&found, fails));
        assert!(is_found(&found, maps("7f0-7f1 r-xp /lib/libuzswap_preload.so\n")));
        let found = AtomicU8::new(UNKNOWN);
        assert!(is_found(&found, maps("7f0-7f1 r-xp /bin/libuzswap_preload\n")));
        assert!(is_found(&found, fails) && is_found(&found, maps("")));
        let found = AtomicU8::new(UNKNOWN);
        assert!(!is_found(&found, maps("7f0-7f1 r-xp /lib/libuzswap.so.1\n")));
        assert_eq!(found.load(Ordering::Relaxed), NO);
    }
}
