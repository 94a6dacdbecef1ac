//! The cost of paging to a process, roughly, and rather too little than too much.

use std::time::Duration;

use uzswap::control::{Counter, Slot};

/// A page brought back, with the eviction that made room for it.
pub const LOAD: Duration = Duration::from_micros(20);
/// The costs of a page that came along with others, of a page that was still in limbo, and of a
/// page that was read from the store.
const ALONG: Duration = Duration::from_micros(1);
const HIT: Duration = Duration::from_micros(4);
const READ: Duration = Duration::from_micros(100);

/// The cost of bringing pages back so far, without first touches.
pub fn of(slot: &Slot) -> Duration {
    times(HIT, slot.get(Counter::LimboHits)) + of_loads(slot)
}

/// The part of [`of`] for pages that were no longer in limbo.
pub fn of_loads(slot: &Slot) -> Duration {
    let loads = slot.get(Counter::Loads);
    let along = slot.get(Counter::FaultAroundPages).min(loads);
    times(LOAD, loads - along) + times(ALONG, along) + times(READ, slot.get(Counter::ReadBackPages))
}

pub fn times(cost: Duration, events: u64) -> Duration {
    Duration::from_nanos(events.saturating_mul(cost.as_nanos() as u64))
}
