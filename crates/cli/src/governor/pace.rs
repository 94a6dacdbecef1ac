//! How often a thread looks at the processes of a run: as often as its looks are cheap.
//!
//! The cost of a look is processor time: a look that waits for a processor takes long and costs
//! nothing.

use std::time::Duration;

use crate::procfs;

/// The shortest time between two looks, and the part of the time that looks may take, as a divisor.
const LOOK: Duration = Duration::from_millis(50);
const PART: u32 = 100;

/// The pace of a thread.
#[derive(Default)]
pub struct Pace {
    /// The thread's processor time when the look began.
    began: Duration,
    /// The cost of the last look.
    before: Duration,
}

impl Pace {
    pub fn begin(&mut self) {
        self.began = procfs::own_time();
    }

    /// The time until the next look, after the one that has begun.
    pub fn pause(&mut self) -> Duration {
        self.after(procfs::own_time().saturating_sub(self.began))
    }

    /// The time until the next look, after one of that cost. One alone that cost much says nothing:
    /// a virtual machine that stalls counts it for the thread that ran.
    fn after(&mut self, cost: Duration) -> Duration {
        let before = std::mem::replace(&mut self.before, cost);
        LOOK.max(cost.min(before) * PART)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_as_rare_as_they_are_dear_and_a_stall_makes_them_no_rarer() {
        let mut pace = Pace::default();
        let [cheap, dear, stall] = [1, 20, 3000].map(Duration::from_millis);
        let mut pauses = |costs: &[Duration]| -> Vec<Duration> {
            costs.iter().map(|cost| pace.after(*cost)).collect()
        };
        assert_eq!(
            pauses(&[cheap, cheap, stall, cheap]),
            [LOOK, cheap * 100, cheap * 100, cheap * 100]
        );
        assert_eq!(pauses(&[dear, dear, stall]), [cheap * 100, dear * 100, dear * 100]);
    }
}
