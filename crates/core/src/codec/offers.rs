//! Which pages are worth a second codec's time, learnt from the pages before.
//!
//! `words` sees words of eight bytes, lz4 sees repetitions of any length: text that repeats itself
//! takes a quarter of a page by the one and a thirtieth by the other. Trying both on every page
//! would cost what the faster one saves. So pages are of kinds, by what the first codec made of
//! them, and each kind has a score. The score falls by one with each page that the second codec
//! makes no smaller. It rises by several with each page that becomes smaller, since the bytes are
//! saved for as long as the page is out.

use crate::sys::PAGE_SIZE;

/// Kinds: by length, and by how many words were found further back.
const LENGTHS: usize = 16;
const DISTANCES: usize = 8;
/// The rise of a kind's score by a page that the second codec makes much smaller; the largest
/// score, and the first one.
const SUCCESS: u8 = 8;
const SCORE_MOST: u8 = 32;
const SCORE_FIRST: u8 = 8;
/// One page in so many is offered of a kind whose score is 0.
const SAMPLED: u8 = 32;
/// Pages no longer than this have little to save.
const SHORT_BYTES: usize = PAGE_SIZE / 8;

/// The scores of all kinds. Not shared: each stream learns for itself.
pub struct Offers {
    scores: [u8; LENGTHS * DISTANCES],
    passed: u8,
}

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
        Offers { scores: [SCORE_FIRST; LENGTHS * DISTANCES], passed: 0 }
    }

    /// Whether the second codec is to try a page of this kind.
    pub fn is_due(&mut self, kind: Kind) -> bool {
        if self.scores[kind.0] > 0 {
            return true;
        }
        self.passed = (self.passed + 1) % SAMPLED;
        self.passed == 0
    }

    /// The second codec has tried a page of this kind.
    pub fn learn(&mut self, kind: Kind, is_better: bool) {
        let score = &mut self.scores[kind.0];
        *score =
            if is_better { (*score + SUCCESS).min(SCORE_MOST) } else { score.saturating_sub(1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_offered_while_that_helps_and_now_and_then_after() {
        let mut offers = Offers::new();
        let (text, heap) = (Kind::of(1000, 400).unwrap(), Kind::of(1000, 100).unwrap());
        let mut tried = |kind, pages: usize, helps: &dyn Fn(usize) -> bool| {
            let is_tried = |i: &usize| {
                let is_due = offers.is_due(kind);
                if is_due {
                    offers.learn(kind, helps(*i));
                }
                is_due
            };
            (0..pages).filter(is_tried).count()
        };
        assert_eq!(tried(text, 1000, &|_| true), 1000);
        assert_eq!(tried(heap, 1000, &|_| false), 8 + 992 / 32);
        // One in eight is enough, and one in a thousand is not.
        assert_eq!(tried(text, 1000, &|i| i % 8 == 0), 1000);
        assert!(tried(text, 4000, &|i| i % 1000 == 0) < 400);
        // A kind that the second codec begins to help is found out.
        assert!(tried(heap, 1000, &|_| true) > 960);
    }

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
