//! Bets: heuristics of which only a trial shows whether they help.
//!
//! A trial that does not help is a loss, and one that helps is worth `ODDS` losses. While wins make
//! up for losses every trial is made; else one in [`PROBED`], since a program changes. All bets
//! have one memory and one rate of probes: a new one gives its odds, and nothing else.

use core::sync::atomic::{AtomicI8, Ordering};

/// The score of a bet that nothing is known of: so many losses end it.
const FIRST: i8 = 8;
/// The highest score: after a long time of wins so many losses end it.
const MOST: i8 = 32;
/// One trial in so many is made of a bet that does not pay.
const PROBED: i8 = 32;

/// A bet: its score, and below 0 how often it was asked since the last trial. Threads that race
/// lose a result, which is harmless.
pub struct Bet<const ODDS: i8>(AtomicI8);

impl<const ODDS: i8> Bet<ODDS> {
    pub const fn new() -> Self {
        Bet(AtomicI8::new(FIRST))
    }

    /// Whether to make a trial now.
    #[inline]
    pub fn is_on(&self) -> bool {
        let score = self.0.load(Ordering::Relaxed);
        score > 0 || {
            let asked = (1 - score) % PROBED;
            self.0.store(-asked, Ordering::Relaxed);
            asked == 0
        }
    }

    /// A trial has helped, or not.
    #[inline]
    pub fn learn(&self, helped: bool) {
        let score = self.0.load(Ordering::Relaxed);
        if helped {
            self.0.store((score.max(0) + ODDS).min(MOST), Ordering::Relaxed);
        } else if score > 0 {
            self.0.store(score - 1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trials_are_made_while_they_help_and_now_and_then_after() {
        let tried = |bet: &Bet<8>, times: usize, helps: &dyn Fn(usize) -> bool| {
            let is_tried = |i: &usize| {
                let is_on = bet.is_on();
                if is_on {
                    bet.learn(helps(*i));
                }
                is_on
            };
            (0..times).filter(is_tried).count()
        };
        let (good, bad) = (Bet::new(), Bet::new());
        assert_eq!(tried(&good, 1000, &|_| true), 1000);
        assert_eq!(tried(&bad, 1000, &|_| false), 8 + 992 / 32);
        // One in eight is enough, and one in a thousand is not.
        assert_eq!(tried(&good, 1000, &|i| i % 8 == 0), 1000);
        assert!(tried(&good, 4000, &|i| i % 1000 == 0) < 400);
        // A change for the better is found out.
        assert!(tried(&bad, 1000, &|_| true) > 960);
    }
}
