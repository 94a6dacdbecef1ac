//! How long a tick of the processor's time stamp counter is, measured while the run is being
//! prepared anyway.
//!
//! Two readings of both clocks, a few milliseconds apart: each is known to some 50 ns, so the tick
//! is right to one in ten thousand. The runtime times faults with the counter because reading it is
//! no system call.

use std::time::{Duration, Instant};

use uzswap::sys::tsc;

/// The shortest measurement: in less time the readings are too near each other.
const LEAST: Duration = Duration::from_micros(300);
/// A counter that takes longer to read (a hypervisor that emulates it) would make faults slower.
const SLOWEST_NS: f64 = 500.0;

#[derive(Clone, Copy)]
struct Reading {
    ticks: u64,
    at: Instant,
    /// Ticks that the reading took: how exact it is, and what one costs.
    width: u64,
}

impl Reading {
    /// The best of some: others may have been interrupted.
    fn take() -> Reading {
        let once = || {
            let before = tsc::now();
            let at = Instant::now();
            let width = tsc::now().saturating_sub(before);
            Reading { ticks: before + width / 2, at, width }
        };
        (0..8).map(|_| once()).min_by_key(|r| r.width).expect("some")
    }
}

/// A measurement that has begun.
pub struct TickWatch(Option<Reading>);

impl TickWatch {
    pub fn start() -> TickWatch {
        tsc::ask();
        TickWatch(tsc::is_allowed().then(Reading::take))
    }

    /// Nanoseconds of a tick times 2^32; 0: the counter is of no use here.
    pub fn tick_ns_q32(&self) -> u64 {
        let Some(first) = self.0 else { return 0 };
        while first.at.elapsed() < LEAST {
            std::hint::spin_loop();
        }
        let last = Reading::take();
        let ns = last.at.duration_since(first.at).as_nanos() as f64;
        let tick_ns = ns / last.ticks.saturating_sub(first.ticks) as f64;
        // Slower than a megahertz, faster than 64 gigahertz, or standing still: that is no clock.
        let plausible = tick_ns.is_finite() && (1.0 / 64.0..1000.0).contains(&tick_ns);
        if plausible && last.width as f64 * tick_ns < SLOWEST_NS {
            (tick_ns * 2f64.powi(32)) as u64
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_is_measured_or_the_counter_is_refused() {
        let watch = TickWatch::start();
        let tick = watch.tick_ns_q32();
        assert!(tick == 0 || (1 << 26..1000 << 32).contains(&tick), "{tick}");
        assert_eq!(TickWatch(None).tick_ns_q32(), 0);
    }
}
