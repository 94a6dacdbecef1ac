//! Regions: the addresses that are managed, and the state of each of their pages.
//!
//! `ranges` is the list of managed address ranges with the protection that the program asked for;
//! `table` finds a page's entry by address; `page` is the life cycle of a page, in one file.

pub mod page;
pub mod ranges;
pub mod table;

pub use page::{LOAD_SLOTS_MAX, PageEntry, PageState, STAMPS};
pub use ranges::{Range, RangeFlags, Ranges};
pub use table::{Mapped, PageTable};

pub use crate::sys::ADDRESS_END;

use crate::sys::PAGE_SIZE;

/// Rounds an address down to its page.
#[inline]
pub const fn page_floor(addr: usize) -> usize {
    addr & !(PAGE_SIZE - 1)
}

/// Rounds an address up to a page boundary (saturating at the top of the address space).
#[inline]
pub const fn page_ceil(addr: usize) -> usize {
    match addr.checked_add(PAGE_SIZE - 1) {
        Some(a) => a & !(PAGE_SIZE - 1),
        None => !(PAGE_SIZE - 1),
    }
}
