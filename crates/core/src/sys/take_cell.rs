//! A value that one taker at a time can have: a lock that is only ever tried.
//!
//! # Safety charter
//! The value is reached through a [`Taken`] only. There is one at a time, because it is made by the
//! exchange that found `taken` false, and false is stored again only by its drop, with release
//! order against the acquire of the next exchange. That is the argument for `Sync` and for the
//! dereference in `with`. The protocol is run through all interleavings by
//! `tests/loom_take_cell.rs` (build with `--cfg loom`).
#![allow(unsafe_code)]

#[cfg(loom)]
use loom::{cell::UnsafeCell, sync::atomic::AtomicBool};

#[cfg(not(loom))]
use core::sync::atomic::AtomicBool;

use core::sync::atomic::Ordering;

/// The standard cell with loom's way of access.
#[cfg(not(loom))]
struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    const fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// See the module. Aligned so that takers of neighbouring cells do not share cache lines (two,
/// because lines are fetched in pairs).
#[repr(align(128))]
pub struct TakeCell<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value moves between threads but is never shared: see the charter.
unsafe impl<T: Send> Sync for TakeCell<T> {}

impl<T> TakeCell<T> {
    pub fn new(value: T) -> Self {
        TakeCell { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Takes the value, if nobody has it.
    #[inline]
    pub fn try_take(&self) -> Option<Taken<'_, T>> {
        super::sync::point();
        // Looked at before the locked instruction: a taken cell's line stays with its holder.
        let free = !self.taken.load(Ordering::Relaxed)
            && self
                .taken
                .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        // Not `then_some`: a guard made in vain would give back what another one holds.
        free.then(|| Taken { cell: self })
    }
}

/// The right to use the value, until dropped.
pub struct Taken<'a, T> {
    cell: &'a TakeCell<T>,
}

impl<T> Taken<'_, T> {
    /// Uses the value.
    #[inline]
    pub fn with<R>(self, f: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: this is the only `Taken` of the cell, and it is used up: see the charter.
        self.cell.value.with_mut(|value| f(unsafe { &mut *value }))
    }
}

impl<T> Drop for Taken<'_, T> {
    fn drop(&mut self) {
        self.cell.taken.store(false, Ordering::Release);
    }
}
