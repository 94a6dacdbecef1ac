//! Limbo without frames: which of the pages that left without it would still be there.
//!
//! A guarded page (`region/page.rs`) needs no limbo: its copy is there already, and a frame of its
//! own would be kept for nothing but its second chance. Nor do pages that were compressed before
//! they left (`fault/together.rs`). They get that by the clock instead. Each such page notes when
//! it went; one that comes back before a limbo full of others has gone the same way has proved
//! useful, as if it had been found in limbo.
//!
//! The time is told in 64ths of limbo and fits a page's word. It wraps after so many times limbo's
//! size that a page which is taken for younger than it is does not matter.

use crate::region::STAMPS;

/// Ticks of the clock while a limbo full of pages goes.
const TICKS: u64 = 64;

/// The time, after `dropped` pages have gone like this, where limbo holds `limbo` pages.
pub fn stamp(dropped: u64, limbo: u64) -> u64 {
    dropped / (limbo / TICKS).max(1) % STAMPS
}

/// Whether a page that went at `then` would still be in limbo `now`.
pub fn would_be_there(then: u64, now: u64, limbo: u64) -> bool {
    let age = (now + STAMPS - then) % STAMPS;
    age < TICKS.min(limbo)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_there_until_as_many_have_gone_as_limbo_holds() {
        for (limbo, went) in [(16, 0), (100, 77), (16_384, 1 << 40), (2048, STAMPS * 32 - 1)] {
            let is_there =
                |later: u64| would_be_there(stamp(went, limbo), stamp(went + later, limbo), limbo);
            let tick = (limbo / TICKS).max(1);
            assert!(is_there(0) && is_there(limbo.min(TICKS * tick) - tick));
            assert!(!is_there(limbo + tick), "{limbo}");
            assert!(!is_there(100 * limbo));
        }
    }
}
