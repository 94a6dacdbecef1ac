//! A mark that a forked child finds gone: whether memory was copied by a fork, for the price of a
//! look at one word.
//!
//! # Safety charter
//! The word is the first of a mapping that the mark owns, which is zero or whole at any time; it is
//! only used as an atomic.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU32, Ordering};

use super::mem::Mapping;
use super::{PAGE_SIZE, Result, nr};

/// Advice that a page is zero in a child (Linux 4.14).
const MADV_WIPEONFORK: usize = 18;
/// Any value but zero.
const SET: u32 = 1;

/// See the module.
pub struct ForkMark {
    page: Mapping,
}

impl ForkMark {
    /// A mark that is set in this process and in no child of it.
    pub fn new() -> Result<ForkMark> {
        let page = Mapping::new(PAGE_SIZE)?;
        // SAFETY: advice about a mapping of our own.
        unsafe { uz_syscall!(nr::MADVISE, page.addr(), page.len(), MADV_WIPEONFORK)? };
        let mark = ForkMark { page };
        mark.set();
        Ok(mark)
    }

    #[inline]
    pub fn is_set(&self) -> bool {
        self.word().load(Ordering::Relaxed) == SET
    }

    /// Sets the mark in a child, whose own children will find it gone again.
    pub fn set(&self) {
        self.word().store(SET, Ordering::Relaxed);
    }

    #[inline]
    fn word(&self) -> &AtomicU32 {
        // SAFETY: see the charter; a page is aligned for it, and lives as long as the mark.
        unsafe { &*(self.page.addr() as *const AtomicU32) }
    }
}
