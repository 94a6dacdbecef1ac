//! Shares: of the tree's memory each process has what it gains most by.
//!
//! The *worth* of a page more to a process is the paging that it would save. It shows at two
//! places. Pages outside, in pool and store, come back (a loop through more than there is). And
//! pages in limbo, which are the next to go, are touched (a set that nearly fits). The larger of
//! the two counts, as paging time per second and page:
//!
//! ```text
//!   worth = max( loads / pages outside,  hits in limbo / pages in it )
//! ```
//!
//! While memory is short, processes to which a page is worth a quarter or less of what it is to
//! another *give*: they get a bound a little below what they have (`uzswap::control::share`). If
//! what they give comes back, a page is worth more to them from then on, and they keep the rest;
//! the lesson is forgotten slowly, so that trying again costs little. A process that nobody knows
//! anything of, because it never had to give, is tried so as well. Sights of the processes go in,
//! the processes that give come out.
//!
//! Where processes take turns (`turns`), those that wait have given already, and those that run
//! have just brought back what they need: only sleeping processes give then.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use uzswap::control::{Counter, Slot};
use uzswap::pager::GIVEN_AHEAD;

use super::cost;
use crate::control::run::Run;
use crate::control::sight::{Key, key, processor_time};

/// The time between two looks, and the part of its memory, as a divisor, that a process gives in
/// between. The part is small because the pages of it that come back tell whether the process can
/// give more.
const LOOK: Duration = Duration::from_millis(100);
const GIVEN_PART: u64 = 8;
/// A process may take others' memory if it pages for more than one part in so many of the time.
const TAKES_FROM: u32 = 100;
/// A process begins to give when a page is worth so many times more to another, and ends when it is
/// worth only so many times more.
const BEGIN: f64 = 4.0;
const END: f64 = 2.0;
/// A process that holds fewer pages, besides those compressed, has nothing to give.
const LEAST_PAGES: u64 = 1024;
/// Few pages outside or in limbo are taken for so many: a handful that comes back says nothing.
const LEAST_BASE_PAGES: u64 = 256;
/// A process that has been there for less is let alone; most end before that.
const SETTLED: Duration = Duration::from_secs(2);
/// The time in which the knowledge of a process loses half of its weight.
const HALF_LIFE: Duration = Duration::from_secs(4);
/// How long a bound lasts without news.
const BOUND: Duration = Duration::from_secs(1);
/// A process that had a processor for less than this part of the time sleeps.
const ASLEEP: u32 = 50;

/// Watches the processes of a run. Without a thread for it they keep what they have, that is all.
pub fn start(run: Arc<Run>) {
    super::in_background("uzswap-shares", move || {
        let mut policy = Policy::default();
        loop {
            thread::sleep(LOOK);
            look(&run, &mut policy);
        }
    });
}

fn look(run: &Run, policy: &mut Policy) {
    let live: Vec<(u32, &Slot)> = run.live().collect();
    let room = run.room();
    // Memory that is given ahead and not yet taken does not mean that nobody wants it.
    let is_short = room.free_pages <= room.limit_pages / GIVEN_AHEAD as u64 * 2;
    let pages = live.iter().any(|(_, slot)| slot.mechanism().is_some());
    if live.len() < 2 || !is_short || !pages {
        policy.let_all_keep();
    } else {
        policy.step(Instant::now(), live.iter().map(|(pid, slot)| Sight::of(*pid, slot)).collect());
    }
    let until_ns = uzswap::sys::now_ns() + BOUND.as_nanos() as u64;
    for (pid, slot) in &live {
        match policy.bound(key(*pid, slot)) {
            // The evictor of a dormant process sleeps.
            Some(most) if slot.share.bound(most, until_ns) => slot.orders.ring(),
            Some(_) => {}
            None => slot.share.unbound(),
        }
    }
}

/// A process as the governor sees it.
#[derive(Clone, Debug)]
struct Sight {
    key: Key,
    /// The cost of paging so far; loads alone, and what loads would have cost instead of hits in
    /// limbo.
    paging: Duration,
    loads: Duration,
    hits: Duration,
    outside_pages: u64,
    /// Pages in limbo, or as good as there.
    edge_pages: u64,
    /// Pages that it could give.
    held_pages: u64,
    /// Processor time so far; None: not known.
    processor: Option<Duration>,
    /// It waits for its turn, and gives all that it has. False for a dormant process: nobody has
    /// asked it for any.
    is_paused: bool,
}

impl Sight {
    fn of(pid: u32, slot: &Slot) -> Sight {
        let held_pages = match slot.mechanism() {
            Some(_) => slot.get(Counter::ResidentPages) + slot.get(Counter::LimboPages),
            // Dormant: what it has reserved.
            None => slot.used_pages.load(Ordering::Relaxed).max(0) as u64,
        };
        Sight {
            key: key(pid, slot),
            paging: cost::of(slot),
            loads: cost::of_loads(slot),
            // A page that left unseen and was back at once counts as one that was still in limbo.
            hits: cost::times(
                cost::LOAD,
                slot.get(Counter::LimboHits) + slot.get(Counter::QuickReturns),
            ),
            outside_pages: slot.get(Counter::StoredPages),
            edge_pages: slot.get(Counter::EdgePages),
            // A process in which no thread listens cannot be asked.
            held_pages: if slot.orders.has_listener() { held_pages } else { 0 },
            processor: processor_time(pid),
            is_paused: slot.mechanism().is_some() && slot.turn.is_paused(),
        }
    }
}

/// One process, over time.
struct Share {
    seen: Sight,
    since: Instant,
    /// The worth of a page more to it, in seconds of paging per second.
    worth: f64,
    gives: bool,
}

#[derive(Default)]
struct Policy {
    shares: HashMap<Key, Share>,
    looked_at: Option<Instant>,
}

impl Policy {
    /// Memory that a process may have until the next look, in pages, if it has too much.
    fn bound(&self, key: Key) -> Option<u64> {
        self.shares
            .get(&key)
            .filter(|s| s.gives)
            .map(|s| s.seen.held_pages - s.seen.held_pages / GIVEN_PART)
    }

    /// Memory is not short: no process gives. The policy keeps what it has learned of each.
    fn let_all_keep(&mut self) {
        self.shares.values_mut().for_each(|s| s.gives = false);
    }

    fn step(&mut self, now: Instant, sights: Vec<Sight>) {
        let passed = self.looked_at.map_or(Duration::ZERO, |at| now - at);
        self.looked_at = Some(now);
        let takes_turns = sights.iter().any(|s| s.is_paused);
        let mut before = std::mem::take(&mut self.shares);
        let (mut best, mut may_give) = (0.0f64, Vec::new());
        for s in sights {
            let first = || Share { seen: s.clone(), since: now, worth: 0.0, gives: false };
            let mut share = before.remove(&s.key).unwrap_or_else(first);
            share.learn(&s, passed);
            if !s.is_paused && s.paging.saturating_sub(share.seen.paging) * TAKES_FROM > passed {
                best = best.max(share.worth);
            }
            let ran =
                s.processor.zip(share.seen.processor).map(|(now, then)| now.saturating_sub(then));
            let sleeps = ran.is_some_and(|ran| ran * ASLEEP <= passed);
            if !s.is_paused
                && s.held_pages >= LEAST_PAGES
                && now - share.since >= SETTLED
                && (sleeps || !takes_turns)
            {
                may_give.push(s.key);
            }
            share.seen = s;
            self.shares.insert(share.seen.key, share);
        }
        for (key, share) in &mut self.shares {
            let much = share.worth * if share.gives { END } else { BEGIN };
            share.gives = best > much && may_give.contains(key);
        }
    }
}

impl Share {
    /// Events since the last look. Good news for the others is believed slowly.
    fn learn(&mut self, now: &Sight, passed: Duration) {
        let seconds = passed.as_secs_f64();
        if seconds <= 0.0 {
            return;
        }
        let per_page = |now: Duration, then: Duration, pages: u64| {
            now.saturating_sub(then).as_secs_f64() / seconds / pages.max(LEAST_BASE_PAGES) as f64
        };
        let outside = per_page(now.loads, self.seen.loads, now.outside_pages);
        let edge = per_page(now.hits, self.seen.hits, now.edge_pages);
        let forgotten = self.worth * 0.5f64.powf(seconds / HALF_LIFE.as_secs_f64());
        self.worth = outside.max(edge).max(forgotten);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two processes of a tree that is full: what happens between two looks is said by the test.
    struct Two {
        policy: Policy,
        now: Instant,
        sights: [Sight; 2],
    }

    const COLD: usize = 0;
    const BUSY: usize = 1;

    impl Two {
        fn new() -> Two {
            let sight = |pid| Sight {
                key: (pid, 1),
                paging: Duration::ZERO,
                loads: Duration::ZERO,
                hits: Duration::ZERO,
                outside_pages: 4096,
                edge_pages: 1024,
                held_pages: 16_384,
                processor: Some(Duration::ZERO),
                is_paused: false,
            };
            Two { policy: Policy::default(), now: Instant::now(), sights: [sight(10), sight(11)] }
        }

        /// So many looks, in each of which so many pages are loaded and found in limbo.
        fn look(&mut self, looks: u32, loads: [u64; 2], hits: [u64; 2]) -> [bool; 2] {
            for _ in 0..looks {
                self.now += LOOK;
                for (i, s) in self.sights.iter_mut().enumerate() {
                    s.loads += cost::times(cost::LOAD, loads[i]);
                    s.hits += cost::times(cost::LOAD, hits[i]);
                    s.paging = s.loads + s.hits / 5;
                    s.processor = s.processor.map(|p| p + s.paging);
                }
                self.policy.step(self.now, self.sights.to_vec());
            }
            [COLD, BUSY].map(|i| self.policy.bound(self.sights[i].key).is_some())
        }
    }

    #[test]
    fn who_does_not_need_its_memory_gives_to_who_does() {
        let mut two = Two::new();
        assert_eq!(two.look(15, [0, 1000], [0, 0]), [false, false], "they have only come");
        assert_eq!(two.look(10, [0, 1000], [0, 0]), [true, false]);
        assert_eq!(two.look(10, [0, 0], [0, 1000]), [true, false], "hits in limbo tell as well");
        assert_eq!(two.look(1, [0, 0], [0, 0]), [false, false], "nobody takes");
    }

    #[test]
    fn what_comes_back_is_not_asked_for_again_soon() {
        let mut two = Two::new();
        assert_eq!(two.look(25, [0, 1000], [0, 0]), [true, false]);
        assert_eq!(two.look(1, [0, 1000], [1000, 0]), [false, false]);
        assert_eq!(two.look(40, [0, 1000], [0, 0]), [false, false]);
        assert_eq!(two.look(300, [0, 1000], [0, 0]), [true, false]);
    }

    #[test]
    fn where_all_need_it_alike_all_keep_what_they_have() {
        let mut two = Two::new();
        assert_eq!(two.look(50, [500, 1000], [0, 0]), [false, false]);
        assert_eq!(two.look(50, [1000, 1000], [100, 0]), [false, false]);
    }

    #[test]
    fn who_has_little_or_cannot_be_asked_is_not() {
        let mut two = Two::new();
        two.sights[COLD].held_pages = LEAST_PAGES - 1;
        assert_eq!(two.look(25, [0, 1000], [0, 0]), [false, false]);
    }

    #[test]
    fn while_there_are_turns_only_who_sleeps_gives() {
        let mut two = Two::new();
        let mut waits = two.sights[COLD].clone();
        (waits.key, waits.is_paused) = ((12, 1), true);
        two.policy.shares.insert(
            waits.key,
            Share { seen: waits.clone(), since: two.now, worth: 0.0, gives: false },
        );
        let step = |two: &mut Two, runs: bool| {
            two.look(25, [0, 1000], [0, 0]);
            for _ in 0..2 {
                two.now += LOOK;
                two.sights[BUSY].loads += Duration::from_millis(20);
                two.sights[BUSY].paging = two.sights[BUSY].loads;
                if runs {
                    two.sights[COLD].processor = two.sights[COLD].processor.map(|p| p + LOOK);
                }
                let all = [two.sights[COLD].clone(), two.sights[BUSY].clone(), waits.clone()];
                two.policy.step(two.now, all.to_vec());
            }
            [two.sights[COLD].key, waits.key].map(|key| two.policy.bound(key).is_some())
        };
        assert_eq!(step(&mut two, false), [true, false]);
        assert_eq!(step(&mut two, true), [false, false]);
    }

    #[test]
    fn one_that_is_dormant_gives_though_it_is_not_its_turn() {
        let block = crate::os::ControlBlock::create(&uzswap::control::Settings::new()).unwrap();
        let slot = block.tree().claim(10).unwrap();
        slot.turn.pause(u64::MAX);
        assert!(!Sight::of(10, slot).is_paused);
        slot.mechanism.store(uzswap::control::Mechanism::Userfaultfd as u32, Ordering::Relaxed);
        assert!(Sight::of(10, slot).is_paused);
    }

    #[test]
    fn when_memory_is_there_again_nobody_gives() {
        let mut two = Two::new();
        assert_eq!(two.look(25, [0, 1000], [0, 0]), [true, false]);
        two.policy.let_all_keep();
        assert_eq!(two.policy.bound(two.sights[COLD].key), None);
    }
}
