//! How many processors could serve faults side by side: a projection from what one fault needs of
//! each lock, on a machine that has not so many.
//!
//! ```text
//!   processor 1 ─┐                    ┌─> lock: serial[0] ns ─> lock: serial[1] ns ─┐
//!      ...       ├─> rest_ns alone ──>┤   (one at a time, in the order of arrival)  ├──> a fault
//!   processor N ─┘                    └─────────────────────────────────────────────┘
//! ```
//!
//! *Amdahl* is the least that can be hoped for: all locks together are one, and a processor that
//! holds it keeps all others from working. *Queue* is a closed queueing network: each processor
//! alternates between work of its own and the locks, each of which is a queue; its mean values are
//! exact where times are exponential. *Bound* is what the busiest lock allows any number of
//! processors.
//!
//! None of them knows the locks of the kernel, the caches that processors take from each other, or
//! that one evictor thread does most evictions now.

/// The time that a fault needs, with the evictions that make room for it: nanoseconds of a
/// processor.
#[derive(Clone, PartialEq, Debug)]
pub struct Demand {
    /// The time in each lock.
    pub serial_ns: Vec<f64>,
    /// The time in no lock.
    pub rest_ns: f64,
}

impl Demand {
    /// The demand of a fault that takes `all_ns` in all.
    pub fn of(serial_ns: Vec<f64>, all_ns: f64) -> Demand {
        let rest_ns = (all_ns - serial_ns.iter().sum::<f64>()).max(0.0);
        Demand { serial_ns, rest_ns }
    }

    fn all_ns(&self) -> f64 {
        self.rest_ns + self.serial_ns.iter().sum::<f64>()
    }

    /// Faults in the time of one on one processor.
    pub fn amdahl(&self, processors: u32) -> f64 {
        let serial = (self.all_ns() - self.rest_ns) / self.all_ns();
        1.0 / (serial + (1.0 - serial) / f64::from(processors))
    }

    /// Faults in the time of one on one processor, where a lock delays only the processors that
    /// want it: mean value analysis.
    pub fn queue(&self, processors: u32) -> f64 {
        let mut queued = vec![0.0; self.serial_ns.len()];
        let mut by_ns = 0.0;
        for n in 1..=processors {
            // A processor that arrives finds the queue that one processor less would leave there.
            let stays = |(need, before): (&f64, &f64)| need * (1.0 + before);
            let times: Vec<f64> = self.serial_ns.iter().zip(&queued).map(stays).collect();
            by_ns = f64::from(n) / (self.rest_ns + times.iter().sum::<f64>());
            queued = times.iter().map(|time| by_ns * time).collect();
        }
        by_ns * self.all_ns()
    }

    /// The bound that no number of processors exceeds.
    pub fn bound(&self) -> f64 {
        self.all_ns() / self.serial_ns.iter().copied().fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9 * b.abs().max(1.0)
    }

    #[test]
    fn one_processor_is_the_measure() {
        let demand = Demand::of(vec![100.0, 50.0], 1000.0);
        assert_eq!(demand.rest_ns, 850.0);
        assert!(near(demand.amdahl(1), 1.0) && near(demand.queue(1), 1.0));
    }

    #[test]
    fn amdahl_is_what_it_is_in_books() {
        let demand = Demand::of(vec![50.0], 1000.0);
        assert!(near(demand.amdahl(4), 1.0 / (0.05 + 0.95 / 4.0)));
        assert!(near(Demand::of(vec![], 1000.0).amdahl(64), 64.0));
    }

    #[test]
    fn a_queue_of_two_is_solved_by_hand() {
        // One lock, no work of its own: it serves one after the other, however many there are.
        assert!(near(Demand::of(vec![10.0], 10.0).queue(64), 1.0));
        // Two processors, half the time in the lock: the second finds the first there half the
        // time, so 2 / (1 + 1 * 1.5) faults a unit, of which one makes 1 / 2.
        assert!(near(Demand::of(vec![1.0], 2.0).queue(2), 2.0 / 2.5 * 2.0));
        assert!(near(Demand::of(vec![], 7.0).queue(16), 16.0));
    }

    #[test]
    fn more_processors_come_nearer_to_the_bound_and_never_over_it() {
        let demand = Demand::of(vec![150.0, 30.0], 5000.0);
        assert!(near(demand.bound(), 5000.0 / 150.0));
        let all = [1, 4, 16, 64, 1000].map(|n| demand.queue(n));
        assert!(all.windows(2).all(|pair| pair[0] < pair[1]), "{all:?}");
        assert!(all[4] <= demand.bound() && all[4] > 0.99 * demand.bound());
        assert!((1..=64).all(|n| demand.amdahl(n) <= demand.queue(n) + 1e-9));
        assert!((1..=64).all(|n| demand.queue(n) <= f64::from(n) + 1e-9));
    }

    #[test]
    fn a_fault_whose_locks_take_longer_than_all_of_it_has_no_rest() {
        let demand = Demand::of(vec![30.0], 20.0);
        assert_eq!(demand.rest_ns, 0.0);
        assert!(near(demand.amdahl(8), 1.0));
    }
}
