//! The marks of a library that counts nothing of contention: empty, and gone when compiled.

use super::{Class, Slow};

/// A lock's record for being counted: nothing.
pub struct Meter;

/// When a wait began.
#[derive(Clone, Copy)]
pub struct Waits;

/// A hold that has ended.
pub struct Hold;

impl Waits {
    pub const NONE: Waits = Waits;

    #[inline(always)]
    pub fn begin() -> Waits {
        Waits
    }
}

impl Meter {
    #[inline(always)]
    pub const fn new(_class: Class) -> Meter {
        Meter
    }

    #[inline(always)]
    pub fn taken(&self, _me: u32, _waits: Waits) {}

    #[inline(always)]
    pub fn ends(&self) -> Hold {
        Hold
    }
}

#[inline(always)]
pub fn hold_begins(_class: Class, _waits: Waits) -> Meter {
    Meter
}

impl Hold {
    #[inline(always)]
    pub fn count(self) {}
}

#[inline(always)]
pub fn claim_begins(_page: usize, _pages: usize) {}

#[inline(always)]
pub fn claim_ends(_page: usize) {}

#[inline(always)]
pub fn claim_waited(_waits: Waits) {}

/// A mark: the calling thread serves a fault while it is there.
pub struct InFault;

#[inline(always)]
pub fn fault_begins() -> InFault {
    InFault
}

#[inline(always)]
pub fn note(_slow: Slow) {}
