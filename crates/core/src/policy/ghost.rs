//! Limbo without frames: which of the pages that left without it would still be there.
//!
//! A page that was compressed before it left (`pager/together.rs`) needs no limbo: a frame of its
//! own would be kept only for its second chance. Such a page notes when it went; one that comes
//! back before a limbo full of others has gone in this way counts as one that was found in limbo.
//!
//! The time is told in 64ths of limbo and fits a page's word. It wraps after many times limbo's
//! size, so a page that is taken for younger than it is does not matter.

use crate::region::STAMPS;

/// Ticks of the clock while as many pages leave as limbo holds.
const TICKS: u64 = 64;

/// The time after `dropped` pages have left without limbo, where limbo holds `limbo` pages.
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
