//! Who runs: how many at a time, and for how long.
//!
//! **How many.** *Pressure* is what paging costs of the processor time that the processes have. Above a quarter there are turns; as many
//! processes run as would fit by half of what they need, then fewer while pressure stays high and memory full, and one more
//! while pressure is low or there is room; not fewer than there are processors, unless nearly all time goes to paging. When all could run and pressure is low, turns are over. They are of no use either where one of
//! those that page would do so alone.
//!
//! **Which.** Who waits longest comes next. A turn is long beside the processor time that it takes to bring a process's memory back, so that
//! little of it is lost; a process that ends within its turn, as compilers do, never has to come back at all. One that sleeps
//! holds no place: what it sleeps for may be the work of one that waits.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::control::server::Room;

/// What it costs to bring a page of a process's memory back at the beginning of its turn, and to take it out at the end.
const RELOAD_COST: Duration = Duration::from_micros(12);
/// Pressure at which turns begin, and between which the number of those that run stays.
const BEGIN: f64 = 0.25;
const TOO_MUCH: f64 = 0.20;
const LITTLE: f64 = 0.08;
/// Pressure at which it is better to leave a processor idle than to let as many run as there are processors.
const SEVERE: f64 = 0.75;
/// What the processes are taken to use of the processors at least: less, and they wait for each other or a disk.
const LEAST_USE: f64 = 0.2;
/// The time over which pressure is averaged, and after which what a change has brought is believed.
const AVERAGE: Duration = Duration::from_millis(300);
const SETTLED: Duration = Duration::from_millis(400);
/// What is kept free ahead of those that run, by who waits: a part of the limit. With less, those that run fill it by themselves.
const AHEAD: u64 = uzswap::fault::GIVEN_AHEAD as u64;
/// A turn in times of what it costs to bring the memory back, and its bounds: of processor time, and the last of time as well.
const TURN_RELOADS: u32 = 25;
const SHORTEST_TURN: Duration = Duration::from_millis(400);
const LONGEST_TURN: Duration = Duration::from_secs(8);
/// Without processor time for so long a process sleeps.
const ASLEEP: Duration = Duration::from_millis(200);
/// A process that has not paged for so long does not take part in what is counted.
const AWAY: Duration = Duration::from_secs(1);

/// Process id and the slot's count of claims: one program of one process.
pub type Key = (u32, u64);

/// What is seen of a process.
#[derive(Clone, Debug)]
pub struct Sight {
    pub key: Key,
    /// What bringing pages back has cost so far.
    pub paging: Duration,
    /// Pages that it would hold if it could, and those it holds.
    pub needed_pages: u64,
    pub resident_pages: u64,
    /// A thread waits for the turn.
    pub is_waiting: bool,
    /// Processor time so far; None: not known.
    pub processor: Option<Duration>,
}

/// One process, over time.
struct Contender {
    /// At the last look.
    seen: Sight,
    /// When it last paged or wanted to, and when it last ran or wanted to.
    paged_at: Instant,
    ran_at: Instant,
    /// Whose turn it is: since when, and how much it may do. Else: since when it waits.
    turn: Option<Turn>,
    since: Instant,
}

/// What a turn comes to: so much processor time, if that can be seen, and time at most.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Turn {
    processor_until: Option<Duration>,
    longest: Duration,
}

impl Contender {
    fn contends(&self, now: Instant) -> bool {
        now - self.paged_at < AWAY
    }

    fn waits(&self) -> bool {
        self.turn.is_none() && self.seen.is_waiting
    }

    fn has_had_its_turn(&self, now: Instant) -> bool {
        self.turn.is_some_and(|turn| {
            let used = turn.processor_until.zip(self.seen.processor);
            now - self.since >= turn.longest || used.is_some_and(|(until, used)| used >= until)
        })
    }

    fn runs(&self, now: Instant) -> bool {
        self.turn.is_some() && now - self.ran_at < ASLEEP
    }

    /// Who comes first is first in turn.
    fn place(&self) -> (Instant, Key) {
        (self.since, self.seen.key)
    }
}

pub struct Policy {
    cores: f64,
    contenders: HashMap<Key, Contender>,
    looked_at: Option<Instant>,
    pressure: f64,
    /// How many may run at a time; None: all.
    allowed: Option<usize>,
    changed_at: Option<Instant>,
}

impl Policy {
    pub fn new(cores: usize) -> Policy {
        Policy {
            cores: cores as f64,
            contenders: HashMap::new(),
            looked_at: None,
            pressure: 0.0,
            allowed: None,
            changed_at: None,
        }
    }

    /// Whether processes take turns now.
    pub fn is_on(&self) -> bool {
        self.allowed.is_some()
    }

    /// Nobody competes.
    pub fn forget(&mut self) {
        *self = Policy::new(self.cores as usize);
    }

    /// One look at the processes that compete.
    pub fn step(&mut self, now: Instant, room: Room, sights: Vec<Sight>) {
        let (paging, processor) = self.see(now, sights);
        self.average(now, paging, processor);
        self.decide(now, room);
        if let Some(allowed) = self.allowed {
            self.take_turns(now, allowed);
        }
    }

    /// Whether a process may run until the next look. Who does not compete may.
    pub fn may_run(&self, key: Key) -> bool {
        !self.is_on() || self.contenders.get(&key).is_none_or(|c| c.turn.is_some())
    }

    /// Notes what has happened since the last look: what paging took, and processor time, of all.
    fn see(&mut self, now: Instant, sights: Vec<Sight>) -> (Duration, Duration) {
        let mut before = std::mem::take(&mut self.contenders);
        let mut all = (Duration::ZERO, Duration::ZERO);
        for s in sights {
            let mut c = before.remove(&s.key).unwrap_or_else(|| Contender {
                seen: s.clone(),
                paged_at: now,
                ran_at: now,
                turn: None,
                since: now,
            });
            let time = |s: &Sight| s.processor.unwrap_or_default();
            let paging = s.paging.saturating_sub(c.seen.paging);
            let processor = time(&s).saturating_sub(time(&c.seen));
            all = (all.0 + paging, all.1 + processor);
            let pages = !paging.is_zero() || s.is_waiting;
            if pages {
                c.paged_at = now;
            }
            // Who cannot be seen is taken to run.
            if pages || s.processor.is_none() || !processor.is_zero() {
                c.ran_at = now;
            }
            c.seen = s;
            self.contenders.insert(c.seen.key, c);
        }
        all
    }

    fn average(&mut self, now: Instant, paging: Duration, processor: Duration) {
        if let Some(before) = self.looked_at.filter(|b| *b < now) {
            let passed = (now - before).as_secs_f64();
            let used = processor.as_secs_f64().max(passed * self.cores * LEAST_USE);
            let weight = (passed / AVERAGE.as_secs_f64()).min(1.0);
            self.pressure += (paging.as_secs_f64() / used - self.pressure) * weight;
        }
        self.looked_at = Some(now);
    }

    /// How many may run from now on.
    fn decide(&mut self, now: Instant, room: Room) {
        let contending = self.contenders.values().filter(|c| c.contends(now)).count();
        let fitting = self.fitting(now, room);
        let least = if self.pressure > SEVERE { 1 } else { self.cores as usize };
        let Some(allowed) = self.allowed else {
            if self.pressure > BEGIN && contending > least && fitting > 0 {
                self.allowed = Some(fitting.clamp(least, contending - 1));
                self.changed_at = Some(now);
            }
            return;
        };
        if fitting == 0 {
            return self.end();
        }
        if self.changed_at.is_some_and(|at| now - at < SETTLED) {
            return;
        }
        let ahead = room.limit_pages / AHEAD;
        let next = if self.pressure > TOO_MUCH && room.free_pages < ahead {
            (allowed * 2 / 3).max(least.min(allowed))
        } else if allowed < contending
            && (self.pressure < LITTLE || room.free_pages > ahead + self.next_needs())
        {
            allowed + 1
        } else {
            allowed
        };
        if next >= contending && self.pressure < TOO_MUCH {
            return self.end();
        }
        if next != allowed {
            self.allowed = Some(next);
            self.changed_at = Some(now);
        }
    }

    /// How many of those that contend would run in the memory that all processes hold, with half of what each needs. None if
    /// one of them would not even alone: it goes on paging whoever waits.
    fn fitting(&self, now: Instant, room: Room) -> usize {
        let there = room.free_pages + self.contenders.values().map(|c| c.seen.resident_pages).sum::<u64>();
        let contending = self.contenders.values().filter(|c| c.contends(now));
        let needs = contending.map(|c| c.seen.needed_pages / 2);
        let (count, needed) = (needs.clone().count() as u64, needs.clone().sum::<u64>());
        match needs.max() {
            Some(most) if most > there => 0,
            _ => (there * count / needed.max(1)).max(1) as usize,
        }
    }

    fn end(&mut self) {
        self.allowed = None;
        self.contenders.values_mut().for_each(|c| c.turn = None);
    }

    /// What the process needs that comes next, if one waits.
    fn next_needs(&self) -> u64 {
        let waiting = self.contenders.values().filter(|c| c.seen.is_waiting);
        waiting.min_by_key(|c| c.place()).map_or(0, |c| c.seen.needed_pages)
    }

    /// Ends turns that are over, and gives the free places to who waits longest.
    fn take_turns(&mut self, now: Instant, allowed: usize) {
        let mut all: Vec<&mut Contender> = self.contenders.values_mut().collect();
        if all.iter().any(|c| c.waits()) {
            for c in all.iter_mut().filter(|c| c.has_had_its_turn(now)) {
                (c.turn, c.since) = (None, now);
            }
        }
        all.sort_by_key(|c| c.place());
        // Of too many, who came last has lost least; it will be the first again.
        let running = all.iter().filter(|c| c.runs(now)).count();
        all.iter_mut().filter(|c| c.runs(now)).skip(allowed).for_each(|c| c.turn = None);
        let free = allowed.saturating_sub(running);
        for c in all.iter_mut().filter(|c| c.waits()).take(free) {
            (c.turn, c.since, c.ran_at) = (Some(turn(&c.seen)), now, now);
        }
    }
}

/// The turn of a process. It is told in processor time: where three share a processor, the same time would be a third of the work,
/// and what is begun would go out before it is done.
fn turn(s: &Sight) -> Turn {
    let reload = RELOAD_COST * u32::try_from(s.needed_pages).unwrap_or(u32::MAX);
    let length = (reload * TURN_RELOADS).clamp(SHORTEST_TURN, LONGEST_TURN);
    match s.processor {
        Some(used) => Turn { processor_until: Some(used + length), longest: LONGEST_TURN },
        None => Turn { processor_until: None, longest: length },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Duration = Duration::from_millis(50);
    const PAGES: u64 = 4096;
    const ROOM: Room = Room { limit_pages: 1 << 20, free_pages: 4 * PAGES / 2 };

    /// Compilers that need so much, on two processors: each that may run pages heavily when more than `fit` do.
    struct Build {
        policy: Policy,
        now: Instant,
        sights: Vec<Sight>,
        fit: usize,
        /// The part of their time that paging takes then.
        part: f64,
        asleep: Option<Key>,
    }

    impl Build {
        fn new(processes: u32, fit: usize) -> Build {
            let sight = |pid| Sight {
                key: (pid, 1),
                paging: Duration::ZERO,
                needed_pages: PAGES,
                resident_pages: 0,
                is_waiting: false,
                processor: Some(Duration::ZERO),
            };
            let sights = (1..=processes).map(sight).collect();
            Build { policy: Policy::new(2), now: Instant::now(), sights, fit, part: 0.5, asleep: None }
        }

        fn running(&self) -> Vec<Key> {
            self.sights.iter().map(|s| s.key).filter(|k| self.policy.may_run(*k)).collect()
        }

        fn look(&mut self) {
            let running = self.running();
            for s in &mut self.sights {
                let runs = running.contains(&s.key);
                let sleeps = self.asleep == Some(s.key);
                s.is_waiting = !runs && !sleeps;
                if runs && !sleeps {
                    let time = LOOK * 2 / running.len() as u32;
                    s.processor = s.processor.map(|p| p + time);
                    s.paging +=
                        if running.len() > self.fit { time.mul_f64(self.part) } else { Duration::ZERO };
                }
            }
            self.now += LOOK;
            self.policy.step(self.now, ROOM, self.sights.clone());
        }

        fn look_for(&mut self, time: Duration) {
            (0..time.as_millis() / LOOK.as_millis()).for_each(|_| self.look());
        }
    }

    #[test]
    fn no_processor_is_left_idle_but_for_the_worst() {
        let mut two = Build::new(2, 1);
        two.look_for(Duration::from_secs(5));
        assert!(!two.policy.is_on());
        two.part = 0.9;
        two.look_for(Duration::from_secs(2));
        assert_eq!(two.running().len(), 1);
        let mut many = Build::new(24, 1);
        many.look_for(Duration::from_secs(5));
        assert_eq!(many.running().len(), 2);
    }

    #[test]
    fn what_fits_is_left_alone() {
        let mut b = Build::new(24, 24);
        b.look_for(Duration::from_secs(5));
        assert!(!b.policy.is_on());
        assert_eq!(b.running().len(), 24);
        let mut one = Build::new(1, 0);
        one.look_for(Duration::from_secs(5));
        assert!(!one.policy.is_on(), "one process takes no turns with itself");
    }

    #[test]
    fn where_too_many_page_as_many_run_as_fit_and_everybody_gets_a_turn() {
        let mut b = Build::new(24, 4);
        b.look_for(Duration::from_secs(2));
        assert!((3..=5).contains(&b.running().len()), "{:?}", b.running());
        let mut had = std::collections::HashSet::new();
        for _ in 0..20 * 24 / 4 * 2 {
            b.look();
            had.extend(b.running());
            assert!((3..=5).contains(&b.running().len()), "{:?}", b.running());
        }
        assert_eq!(had.len(), 24);
    }

    #[test]
    fn who_ends_or_sleeps_leaves_its_place() {
        let mut b = Build::new(24, 4);
        b.look_for(Duration::from_secs(2));
        let sleeper = b.running()[0];
        b.asleep = Some(sleeper);
        b.look_for(ASLEEP + LOOK);
        assert!(b.running().iter().filter(|k| **k != sleeper).count() >= 4);
        let gone = b.running()[1];
        b.sights.retain(|s| s.key != gone);
        b.look();
        assert!(b.running().len() >= 4);
    }

    #[test]
    fn when_the_rest_fits_all_run() {
        let mut b = Build::new(8, 4);
        b.look_for(Duration::from_secs(2));
        assert!(b.policy.is_on());
        b.sights.truncate(4);
        b.look_for(Duration::from_secs(5));
        assert!(!b.policy.is_on());
        assert_eq!(b.running().len(), 4);
    }

    #[test]
    fn where_one_does_not_fit_even_alone_all_run() {
        let mut b = Build::new(8, 4);
        b.look_for(Duration::from_secs(2));
        assert!(b.policy.is_on());
        b.sights[3].needed_pages = 2 * ROOM.free_pages + 2;
        b.look_for(Duration::from_secs(2));
        assert!(!b.policy.is_on());
        assert_eq!(b.running().len(), 8);
    }

    #[test]
    fn a_turn_is_long_beside_what_it_costs() {
        let of = |needed_pages, processor| {
            let sight = Build::new(1, 1).sights.remove(0);
            turn(&Sight { needed_pages, processor, ..sight })
        };
        for (pages, length) in
            [(0, SHORTEST_TURN), (10_000, Duration::from_secs(3)), (u64::MAX, LONGEST_TURN)]
        {
            assert_eq!(of(pages, None), Turn { processor_until: None, longest: length });
            let used = Duration::from_secs(5);
            assert_eq!(
                of(pages, Some(used)),
                Turn { processor_until: Some(used + length), longest: LONGEST_TURN }
            );
        }
    }
}
