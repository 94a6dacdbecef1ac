//! The seam at which tests put their own kernel: the abilities of the mechanism with MOVE beyond
//! the others.
//!
//! In the product there is one kind, so an enum of one variant, which costs nothing; in tests also
//! the fake one.

use super::Uffd;
use crate::sys::PAGE_SIZE;

#[cfg(any(test, feature = "testing"))]
use super::Fake;

/// Frames go in as they are, and many pages at once.
#[derive(Clone, Copy)]
pub enum Mover<'a> {
    Uffd(&'a Uffd),
    #[cfg(any(test, feature = "testing"))]
    Fake(&'a Fake),
}

/// Calls a method of the mechanism, of any kind.
macro_rules! each {
    ($self:ident, $kind:ident => $call:expr) => {
        match $self {
            Mover::Uffd($kind) => $call,
            #[cfg(any(test, feature = "testing"))]
            Mover::Fake($kind) => $call,
        }
    };
}

impl<'a> Mover<'a> {
    /// Slots that `has_frames` looks at in one call.
    pub const FRAMES_MAX: usize = Uffd::FRAMES_MAX;

    /// See [`Uffd::with_page_to_fill`].
    pub fn with_page_to_fill<T>(
        self,
        kept: Option<usize>,
        i: usize,
        f: impl FnOnce(&mut [u8; PAGE_SIZE]) -> T,
    ) -> T {
        each!(self, m => m.with_page_to_fill(kept, i, f))
    }

    /// See [`Uffd::fill_huge`].
    pub fn fill_huge(self, addr: usize, from: Option<usize>) -> usize {
        each!(self, m => m.fill_huge(addr, from))
    }

    /// See [`Uffd::fill_by_move`].
    pub fn fill_by_move(self, addr: usize, slot: usize, pages: usize) -> usize {
        each!(self, m => m.fill_by_move(addr, slot, pages))
    }

    /// See [`Uffd::keeps_tables`].
    pub fn keeps_tables(self) -> bool {
        each!(self, m => m.keeps_tables())
    }

    /// See [`Uffd::clear_table`].
    pub fn clear_table(self, addr: usize) -> bool {
        each!(self, m => m.clear_table(addr))
    }

    /// See [`Uffd::is_huge`].
    pub fn is_huge(self, addr: usize) -> bool {
        each!(self, m => m.is_huge(addr))
    }

    /// See [`Uffd::is_known_huge`].
    pub fn is_known_huge(self, addr: usize) -> bool {
        each!(self, m => m.is_known_huge(addr))
    }

    /// See [`Uffd::is_source_huge`].
    pub fn is_source_huge(self, from: Option<usize>) -> bool {
        each!(self, m => m.is_source_huge(from))
    }

    /// See [`Uffd::note_table_kept`].
    pub fn note_table_kept(self) {
        each!(self, m => m.note_table_kept())
    }

    /// See [`Uffd::clear_dock`].
    pub fn clear_dock(self) {
        each!(self, m => m.clear_dock())
    }

    /// See [`Uffd::slot_mut`].
    pub fn slot_mut<T>(self, slot: usize, f: impl FnOnce(&mut [u8; PAGE_SIZE]) -> T) -> T {
        each!(self, m => m.slot_mut(slot, f))
    }

    /// See [`Uffd::has_frames`].
    pub fn has_frames(self, slot: usize, count: usize) -> bool {
        each!(self, m => m.has_frames(slot, count))
    }

    /// See [`Uffd::has_drop_each`].
    pub fn has_drop_each(self) -> bool {
        each!(self, m => m.has_drop_each())
    }

    /// See [`Uffd::has_copy_each`].
    pub fn has_copy_each(self) -> bool {
        each!(self, m => m.has_copy_each())
    }

    /// See [`Uffd::copy_each`].
    pub fn copy_each(self, pages: &[usize], into: &mut [u8]) -> usize {
        each!(self, m => m.copy_each(pages, into))
    }

    /// See [`Uffd::drop_each`].
    pub fn drop_each(self, pages: &[usize]) -> usize {
        each!(self, m => m.drop_each(pages))
    }
}
