//! A count of those who use a thing without its owner's lock, and a mark that the thing has ended.
//!
//! ```text
//!   owner, under its lock          user, without it         owner, under its lock
//!   pin() ------------------------ unpin(): no -------------- end(): yes, nobody uses it
//!   pin() ---- end(): not yet ---- unpin(): yes, the last --> the user tells the owner
//! ```
//!
//! Of `end` and all `unpin` of one thing exactly one answers yes: that one sees to its end, and
//! sees all that the others did before they answered no. Run through all interleavings by
//! `tests/loom_pin.rs` (build with `--cfg loom`).
#![allow(unsafe_code)]

#[cfg(loom)]
use loom::sync::atomic::AtomicU8;

#[cfg(not(loom))]
use core::sync::atomic::AtomicU8;

use core::sync::atomic::Ordering;

/// The thing has ended for its owner, and somebody uses it still.
const ENDED: u8 = 0x80;
/// The only user is the one that makes it.
const UNFINISHED: u8 = 0x40;
/// Users at the same time: each has a stream of the cache, of which there are 32 at most.
const MOST_USERS: u8 = 0x3f;

/// See the module.
#[derive(Default)]
pub struct PinCount(AtomicU8);

// SAFETY: zero is a count of nobody. (Loom's atomics are no plain words; its tests have no table.)
unsafe impl super::mem::Zeroable for PinCount {}

impl PinCount {
    /// One user more. For the owner, under its lock.
    #[inline]
    pub fn pin(&self) {
        let before = self.0.fetch_add(1, Ordering::Relaxed);
        assert!(before < MOST_USERS, "an object in use is neither ended nor unfinished");
    }

    /// One user, who will make the thing before it unpins it. For the owner, under its lock, of a
    /// thing that nobody uses.
    #[inline]
    pub fn pin_unfinished(&self) {
        self.0.store(UNFINISHED | 1, Ordering::Relaxed);
    }

    /// One user less. True: it was the last one, and the thing has ended meanwhile; the owner has
    /// to be told.
    #[inline]
    #[must_use]
    pub fn unpin(&self) -> bool {
        super::sync::point();
        self.0.fetch_sub(1, Ordering::AcqRel) == ENDED | 1
    }

    /// The thing is made, and the user that made it has left. As `unpin`.
    #[inline]
    #[must_use]
    pub fn unpin_finished(&self) -> bool {
        super::sync::point();
        self.0.fetch_sub(UNFINISHED | 1, Ordering::AcqRel) == ENDED | UNFINISHED | 1
    }

    /// Whether somebody uses the thing. For the owner, under its lock.
    #[inline]
    pub fn is_pinned(&self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }

    /// Whether the thing is being made. For the owner, under its lock.
    #[inline]
    pub fn is_unfinished(&self) -> bool {
        self.0.load(Ordering::Acquire) & UNFINISHED != 0
    }

    /// Whether the thing has ended for its owner, and is used still.
    pub fn is_ended(&self) -> bool {
        self.0.load(Ordering::Acquire) & ENDED != 0
    }

    /// The thing ends for its owner. True: nobody uses it. For the owner, under its lock.
    #[inline]
    #[must_use]
    pub fn end(&self) -> bool {
        // Nobody pins it meanwhile: that takes the lock.
        if !self.is_pinned() {
            return true;
        }
        let last_has_left = self.0.fetch_or(ENDED, Ordering::AcqRel) == 0;
        if last_has_left {
            self.clear();
        }
        last_has_left
    }

    /// The ended thing can be made anew. For the owner, under its lock, once it was told.
    pub fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
