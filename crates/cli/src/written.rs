//! Pages that went to the store, by both ways.
//!
//! ```text
//!   page ──> pool ── written back ──> store
//!     └───── straight, as it does not compress, or the pool is full ──> store
//! ```

use uzswap::control::Counter;

/// Pages that did not go into the pool, by the reason. All but those that the store refused went
/// straight there.
const STRAIGHT: [Counter; 4] =
    [Counter::RejectPoor, Counter::RejectFull, Counter::RejectAlloc, Counter::RejectCodec];

/// Pages that went to the store so far; `count` gives the value of a counter.
pub fn pages(count: impl Fn(Counter) -> u64) -> u64 {
    let straight = STRAIGHT.into_iter().map(&count).fold(0, u64::saturating_add);
    let straight = straight.saturating_sub(count(Counter::RejectReclaim));
    count(Counter::WrittenBackPages).saturating_add(straight)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_went_straight_to_the_store_were_written_too() {
        let of = |counts: &[(Counter, u64)]| {
            let count = |counter| counts.iter().find(|c| c.0 == counter).map_or(0, |c| c.1);
            pages(count)
        };
        assert_eq!(of(&[(Counter::Stores, 7)]), 0);
        assert_eq!(of(&[(Counter::WrittenBackPages, 5), (Counter::RejectPoor, 3)]), 8);
        let refused = [(Counter::RejectFull, 3), (Counter::RejectReclaim, 2)];
        assert_eq!(of(&refused), 1);
        // The counts come one after the other: a page may have been refused in between.
        assert_eq!(of(&[(Counter::RejectReclaim, 2)]), 0);
        assert_eq!(of(&STRAIGHT.map(|counter| (counter, u64::MAX))), u64::MAX);
    }
}
