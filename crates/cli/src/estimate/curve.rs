//! From how fast memory is touched to how often it would have to be brought back.
//!
//! ```text
//!  touched since
//!  the clearing      ,----------------   a hot set: few pages beyond it are wanted
//!        |         /
//!      M +- - - - /- - - - - - - - - -   here as many pages have been touched as would be resident:
//!        |      /                        the ones touched next, for the first time, are those that
//!        |    /                          would have been put out: the slope is the rate of faults
//!        |  /
//!        +---------------------------> time since the clearing
//! ```
//!
//! That is Denning's working-set theory (The working set model for program behavior, 1968). The M
//! pages that were touched since a moment are the M that were used last. A memory of M pages from
//! which the page used longest ago goes first would hold just these. A page that is touched now for
//! the first time since that moment is not among them.
//!
//! An *epoch* is the time from one clearing to the next, a *step* that between two looks within it.
//! The slope of a step that crosses M is the rate of faults then. At other times it is guessed from
//! the steps around that cross M, or if none does from those that come near it; those near in time
//! count most. For another M than its own, a step's rate is taken to lie between that of a loop,
//! which is equal for all M, and that of touches at random, which is proportional to the pages not
//! touched yet. The guess stays within what the step itself proves. A step that ends below M gives
//! an upper bound, since some of its pages would still be there. A step that begins above M gives a
//! lower bound, since pages that were touched in the epoch may have been put out since. So a
//! program that stops wanting its memory is seen to.

/// Touches seen between two looks. Pages are of 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Step {
    pub seconds: f64,
    /// Memory that was there.
    pub anonymous_pages: f64,
    /// Touched since the clearing: at the beginning of the step and at its end.
    pub touched_before_pages: f64,
    pub touched_pages: f64,
    /// Of the pages touched in the step, those that had been there before.
    pub again_pages: f64,
    /// First touches.
    pub new_pages: f64,
    /// Of these, pages that would come with 2 MiB.
    pub new_huge_pages: f64,
    /// Entries of the page tables that were marked anew for pages touched again.
    pub marks: f64,
    /// Faults that uzswap served, where the program is watched from within, and how long they took.
    pub faults: f64,
    pub fault_seconds: f64,
}

/// The number of steps asked before a step and after it, and the distance at which one counts half:
/// an epoch has some six steps.
const AROUND: usize = 40;
const HALF_AFTER: f64 = 6.0;
/// How fast a step loses weight with its distance from M, where no step crosses M: a step whose
/// middle is e times M, or M / e, has the weight exp(-1 / NEAR).
const NEAR: f64 = 0.2;
/// A step's estimate for an M from far away is at most so many times the step's own rate.
const MOST_TIMES: f64 = 4.0;

impl Step {
    fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.again_pages / self.seconds } else { 0.0 }
    }

    fn middle(&self) -> f64 {
        (self.touched_before_pages + self.touched_pages) / 2.0
    }

    fn crosses(&self, resident: f64) -> bool {
        self.touched_before_pages <= resident && resident <= self.touched_pages
    }

    /// The step's estimate of the rate of faults with `resident` pages, and its weight: 1 where the
    /// step saw that memory, less the farther away it is.
    fn rate_at(&self, resident: f64) -> (f64, f64) {
        if self.crosses(resident) {
            return (self.rate(), 1.0);
        }
        let distance = (self.middle().max(1.0) / resident.max(1.0)).ln().abs();
        let missing = |touched: f64| (self.anonymous_pages - touched).max(1.0);
        let times = (missing(resident) / missing(self.middle())).sqrt().min(MOST_TIMES);
        (self.rate() * times, (-distance / NEAR).exp())
    }
}

/// Pages that would have to be brought back in all steps, if as many of a step's pages stayed
/// resident as `resident` says. Where all of them stay, none comes back.
pub fn refaults(steps: &[Step], resident: &dyn Fn(f64) -> f64) -> f64 {
    let of_step = |(index, step): (usize, &Step)| {
        let resident = resident(step.anonymous_pages);
        if resident >= step.anonymous_pages {
            return 0.0;
        }
        let rate = if step.crosses(resident) {
            step.rate()
        } else if step.touched_pages < resident {
            guess(steps, index, resident).min(step.rate())
        } else {
            guess(steps, index, resident).max(step.rate())
        };
        rate * step.seconds
    };
    steps.iter().enumerate().map(of_step).sum()
}

/// The rate at the time of a step, by all those around it.
fn guess(steps: &[Step], index: usize, resident: f64) -> f64 {
    let first = index.saturating_sub(AROUND);
    let around = steps.iter().enumerate().take(index + AROUND + 1).skip(first);
    let mean = |only_crossing: bool| {
        let (mut sum, mut weights) = (0.0, 0.0);
        for (at, step) in
            around.clone().filter(|(_, step)| !only_crossing || step.crosses(resident))
        {
            let (rate, near) = step.rate_at(resident);
            let weight = near * step.seconds * (-(at.abs_diff(index) as f64) / HALF_AFTER).exp2();
            sum += rate * weight;
            weights += weight;
        }
        (weights > 0.0).then(|| sum / weights)
    };
    mean(true).or_else(|| mean(false)).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap, HashSet};

    use super::*;
    use crate::pages::Random;

    const SECOND: usize = 100_000;

    /// Faults of a memory of `frames` pages from which the one used longest ago goes; first touches
    /// do not count.
    fn lru(trace: &[u32], frames: usize) -> usize {
        let mut last: HashMap<u32, usize> = HashMap::new();
        let mut order: BTreeMap<usize, u32> = BTreeMap::new();
        let (mut seen, mut faults) = (HashSet::new(), 0);
        for (at, &page) in trace.iter().enumerate() {
            match last.insert(page, at) {
                Some(before) => drop(order.remove(&before)),
                None => faults += usize::from(!seen.insert(page)),
            }
            order.insert(at, page);
            if order.len() > frames {
                let (_, gone) = order.pop_first().expect("there are some");
                last.remove(&gone);
            }
        }
        faults
    }

    /// The trace as it would be seen: as `watch` looks, a touch every 10 us.
    fn seen(trace: &[u32]) -> Vec<Step> {
        let mut steps = Vec::new();
        let (mut ever, mut epoch): (HashSet<u32>, HashSet<u32>) = Default::default();
        let (mut at, mut turn) = (0, 0);
        while at < trace.len() {
            epoch.clear();
            let share = [0.2, 0.5, 0.9][turn % 3];
            let (begun, mut wait) = (at, SECOND / 500);
            loop {
                let (before, mut again) = (epoch.len(), 0);
                let end = (at + wait).min(trace.len());
                for page in &trace[at..end] {
                    let is_new = ever.insert(*page);
                    again += usize::from(epoch.insert(*page) && !is_new);
                }
                steps.push(Step {
                    seconds: (end - at) as f64 / SECOND as f64,
                    anonymous_pages: ever.len() as f64,
                    touched_before_pages: before as f64,
                    touched_pages: epoch.len() as f64,
                    again_pages: again as f64,
                    ..Step::default()
                });
                at = end;
                wait = (at - begun) / 2;
                let is_long = at - begun > SECOND * 3 / 10;
                if at == trace.len() || epoch.len() as f64 > share * ever.len() as f64 || is_long {
                    break;
                }
            }
            turn += 1;
        }
        steps
    }

    fn compare(name: &str, trace: &[u32], parts: &[f64]) {
        let pages = trace.iter().collect::<HashSet<_>>().len() as f64;
        let steps = seen(trace);
        for part in parts {
            let frames = pages * part;
            let (exact, estimated) =
                (lru(trace, frames as usize) as f64, refaults(&steps, &|_| frames));
            let few = trace.len() as f64 / 100.0;
            let is_near = estimated <= 1.3 * exact + few && estimated >= exact / 1.3 - few;
            assert!(is_near, "{name}, {part} of {pages}: {estimated:.0} instead of {exact}");
        }
    }

    /// Once over all, so that later touches are no first ones.
    fn filled(pages: u32, rest: impl Iterator<Item = u32>) -> Vec<u32> {
        (0..pages).chain(rest).collect()
    }

    #[test]
    fn a_loop_misses_all_or_nothing() {
        let trace = filled(5000, (0..400_000).map(|i| i % 5000));
        compare("loop", &trace, &[0.1, 0.25, 0.5, 0.75, 0.9]);
        assert_eq!(refaults(&seen(&trace), &|pages| pages), 0.0);
    }

    #[test]
    fn random_touches_miss_by_what_is_missing() {
        let mut random = Random(7);
        let trace = filled(5000, (0..400_000).map(|_| random.below(5000) as u32));
        compare("random", &trace, &[0.1, 0.25, 0.5, 0.75]);
    }

    #[test]
    fn a_hot_set_beside_a_cold_one() {
        let mut random = Random(7);
        let mut pick =
            || if random.below(100) < 95 { random.below(1000) } else { random.below(8000) } as u32;
        let trace = filled(8000, (0..600_000).map(|_| pick()));
        compare("hot and cold", &trace, &[0.05, 0.1, 0.2, 0.5, 0.75]);
    }

    #[test]
    fn phases_count_for_themselves() {
        let mut random = Random(7);
        // At random over all, then for as long over a little of it, then a scan.
        let mixed = (0..900_000u32).map(|i| match i / 300_000 {
            0 => random.below(6000) as u32,
            1 => random.below(600) as u32,
            _ => i % 6000,
        });
        compare("phases", &filled(6000, mixed), &[0.15, 0.25, 0.5, 0.75]);
    }

    #[test]
    fn new_memory_is_not_brought_back() {
        let trace: Vec<u32> = (0..300_000).collect();
        assert_eq!(refaults(&seen(&trace), &|_| 1000.0), 0.0);
        assert_eq!(refaults(&[], &|_| 1000.0), 0.0);
    }
}
