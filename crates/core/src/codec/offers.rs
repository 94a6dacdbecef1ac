//! Which pages are worth a second codec's time, learnt from the pages before.
//!
//! `words` sees words of eight bytes, lz4 sees repetitions of any length: text that repeats itself
//! takes a quarter of a page by the one and a thirtieth by the other. Trying both on every page
//! would cost what the faster one saves. So pages are of kinds, by what the first codec made of
//! them, and each kind is a [`Bet`]. A page that becomes smaller makes up for several that do not,
//! since its bytes are saved for as long as it is out.

use crate::bet::Bet;
use crate::sys::PAGE_SIZE;

/// Kinds: by length, and by how many words were found further back.
const LENGTHS: usize = 16;
const DISTANCES: usize = 8;
/// Pages that the second codec tries in vain for one that it makes much smaller.
const ODDS: i8 = 8;
/// Pages no longer than this have little to save.
const SHORT_BYTES: usize = PAGE_SIZE / 8;

/// The bets on all kinds. Not shared: each stream learns for itself.
pub struct Offers([Bet<ODDS>; LENGTHS * DISTANCES]);

/// The kind of a page, by what the first codec made of it.
#[derive(Clone, Copy)]
pub struct Kind(usize);

impl Kind {
    /// The kind of a page that took `bytes` bytes, with `distances` of its words somewhere further
    /// back. `None`: it is short.
    pub fn of(bytes: usize, distances: usize) -> Option<Kind> {
        let length = (bytes * LENGTHS / PAGE_SIZE).min(LENGTHS - 1);
        let distances = (distances * DISTANCES * 8 / PAGE_SIZE).min(DISTANCES - 1);
        (bytes > SHORT_BYTES).then_some(Kind(length * DISTANCES + distances))
    }
}

impl Offers {
    pub const fn new() -> Offers {
        Offers([const { Bet::new() }; LENGTHS * DISTANCES])
    }

    /// Whether the second codec is to try a page of this kind.
    pub fn is_due(&self, kind: Kind) -> bool {
        self.0[kind.0].is_on()
    }

    /// The second codec has tried a page of this kind.
    pub fn learn(&self, kind: Kind, is_better: bool) {
        self.0[kind.0].learn(is_better);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_cover_every_page() {
        assert!(Kind::of(SHORT_BYTES, 0).is_none());
        for bytes in (SHORT_BYTES + 1..2 * PAGE_SIZE).step_by(100) {
            for distances in 0..=PAGE_SIZE / 8 {
                assert!(Kind::of(bytes, distances).unwrap().0 < LENGTHS * DISTANCES);
            }
        }
    }
}
