//! Objects in use without the pool's lock.
//!
//! ```text
//!   the owner's lock         no lock                     the owner's lock
//!   pin(handle)     ->  Pinned: copy_to        -- if it was freed meanwhile -->  bury(handle)
//!   place(length)   ->  Unfilled: fill         -- likewise ------------------->
//! ```
//!
//! A pinned object keeps its place and its bytes. Compaction passes it by, and `free` makes its
//! handle stale, but leaves its slot used until the last pin has gone. An *unfilled* object has a
//! handle and a slot, and its bytes come later, from the thread that placed it: until then nobody
//! reads it.
//!
//! # Safety charter
//! A `Pinned` is an address in frames of a pool, used without the pool being borrowed. The pool
//! neither unmaps a frame nor gives its memory back while a slot in it is used, and a slot stays
//! used while its object is pinned. Its bytes are written by `Unfilled::fill` alone, which nothing
//! reads before, and by no one else: stores, moves and reads borrow the bytes of their own slots
//! (`Frames::get_mut`). `pin` and `place` are unsafe, since they cannot say how long the pool
//! lives.
#![allow(unsafe_code)]

use core::marker::PhantomData;

use super::frames::Growth;
use super::{Handle, Pool, PoolError, check_length};
use crate::sys::mem::Table;
use crate::sys::pin::PinCount;

/// Pins of all objects of a pool, by the index in their handles.
pub(super) struct Pins(Table<PinCount>);

impl Pins {
    pub const fn new() -> Self {
        Pins(Table::new())
    }

    /// Makes room for an object.
    #[inline]
    pub fn ensure(&self, index: u32, growth: &mut Growth) -> Result<(), PoolError> {
        growth.ensure(&self.0, index as usize)
    }

    #[inline]
    pub fn of(&self, index: u32) -> &PinCount {
        self.0.get(index as usize).expect("pool: an object has pins")
    }
}

/// Addresses and lengths of an object's parts: it lies in one frame, or in two.
pub(super) type Extents = [(*mut u8, usize); 2];

/// An object that keeps its place and its bytes, until it is copied.
#[must_use]
pub struct Pinned<'a> {
    extents: Extents,
    pins: *const PinCount,
    handle: Handle,
    _pool: PhantomData<&'a Pool>,
}

/// An object without bytes, which must be filled.
#[must_use]
pub struct Unfilled<'a>(Pinned<'a>);

impl Pinned<'_> {
    pub(super) fn new(extents: Extents, pins: &PinCount, handle: Handle) -> Self {
        Pinned { extents, pins: core::ptr::from_ref(pins), handle, _pool: PhantomData }
    }

    /// Copies the object's bytes to the begin of `out`, which is at least as long, and lets it go.
    /// A handle that comes back was freed meanwhile: the pool has to `bury` it.
    #[inline]
    pub fn copy_to(self, out: &mut [u8]) -> (&[u8], Option<Handle>) {
        let [(first, first_len), (second, second_len)] = self.extents;
        let (head, tail) = out[..self.handle.len()].split_at_mut(first_len);
        // SAFETY: the object is pinned and filled, and the pool lives: see the charter. The lengths
        // are those of `extents`.
        let was_freed = unsafe {
            core::ptr::copy_nonoverlapping(first, head.as_mut_ptr(), first_len);
            core::ptr::copy_nonoverlapping(second, tail.as_mut_ptr(), second_len);
            (*self.pins).unpin()
        };
        (&out[..self.handle.len()], was_freed.then_some(self.handle))
    }
}

impl Unfilled<'_> {
    /// Copies the object's bytes to their place, and lets it go. As [`Pinned::copy_to`].
    #[inline]
    #[must_use]
    pub fn fill(self, bytes: &[u8]) -> Option<Handle> {
        let Pinned { extents: [first, second], pins, handle, .. } = self.0;
        assert_eq!(bytes.len(), handle.len(), "pool: an object of another length was placed");
        let (head, tail) = bytes.split_at(first.1);
        // SAFETY: the object is pinned, and nobody else has its bytes before this is over: see the
        // charter. The lengths are those of `extents`.
        unsafe {
            core::ptr::copy_nonoverlapping(head.as_ptr(), first.0, head.len());
            core::ptr::copy_nonoverlapping(tail.as_ptr(), second.0, tail.len());
            (*pins).unpin_finished().then_some(handle)
        }
    }
}

impl Pool {
    /// Pins a live object, if the pool can: zbud does not. A handle that is stale stops the
    /// process.
    ///
    /// # Safety
    /// The pool lives, and is not replaced, until the object is let go.
    #[inline]
    pub unsafe fn pin<'a>(&self, h: Handle) -> Option<Pinned<'a>> {
        match self {
            Pool::Zsmalloc(p) => Some(p.pin(h)),
            Pool::Zbud(_) => None,
        }
    }

    /// As `store`, of an object whose bytes come later. `None`: the pool cannot, as in `pin`.
    ///
    /// # Safety
    /// As of `pin`.
    #[inline]
    pub unsafe fn place<'a>(
        &mut self,
        len: usize,
    ) -> Option<Result<(Handle, Unfilled<'a>), PoolError>> {
        let Pool::Zsmalloc(p) = self else { return None };
        let placed = check_length(len).and_then(|()| p.place(len));
        Some(placed.map(|(h, pinned)| (h, Unfilled(pinned))))
    }

    /// Whether the object's bytes are still to come.
    #[inline]
    pub fn is_unfilled(&self, h: Handle) -> bool {
        match self {
            Pool::Zsmalloc(p) => p.is_unfilled(h),
            Pool::Zbud(_) => false,
        }
    }

    /// Ends an object that was freed while it was pinned, now that it is not any more.
    pub fn bury(&mut self, h: Handle) {
        if let Pool::Zsmalloc(p) = self {
            p.bury(h);
        }
    }
}
