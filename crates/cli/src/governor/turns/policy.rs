//! Processes that run: how many at a time, and for how long.
//!
//! **When.** *Pressure* is the part of the processes' processor time that paging takes. Above a
//! quarter there are turns. It is better not to get there. So turns also begin where memory is
//! about to be full, or a process asks before it takes memory, if more processes run than there are
//! processors. Most processes then wait before they have memory, and none of it has to go and come
//! back. While processors are busy that costs nothing.
//!
//! **How many.** At first as many processes run as would fit with half of what they need. If turns
//! begin before memory is full, it is one more than there are processors. Fewer run while pressure
//! stays high and memory full, but not fewer than there are processors, unless nearly all time goes
//! to paging. One more process runs in three cases: while there is room for it at the size that
//! processes before it came to; while pressure is low and a processor idle; and after a long calm.
//! When all could run and pressure is low, turns are over. There are no turns, either, where one of
//! the processes would page even if it ran alone.
//!
//! **Which.** The process that waits longest comes next. A turn is long beside the processor time
//! that it takes to bring a process's memory back, so that little of it is lost; a process that
//! ends within its turn, as compilers do, never has to come back at all. A process that sleeps
//! holds no place: it may sleep for the work of one that waits.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::control::run::Room;
use crate::control::sight::Key;

/// Resources of all: memory, and the part of the machine's processors that was idle since the
/// last look.
#[derive(Clone, Copy, Debug)]
pub struct Supply {
    pub room: Room,
    pub idle: f64,
}

/// The cost of bringing a page of a process's memory back at the beginning of its turn, and of
/// taking it out at the end.
const RELOAD_COST: Duration = Duration::from_micros(12);
/// Pressure at which turns begin, and the bounds between which the number of running processes
/// stays.
const BEGIN: f64 = 0.25;
const TOO_MUCH: f64 = 0.20;
const LITTLE: f64 = 0.08;
/// Pressure at which it is better to leave a processor idle than to let as many run as there are
/// processors.
const SEVERE: f64 = 0.75;
/// The part of the processors that the processes are taken to use at least: less, and they wait for
/// each other or a disk.
const LEAST_USE: f64 = 0.2;
/// The time over which pressure is averaged, and the time after which the effect of a change is
/// believed.
const AVERAGE: Duration = Duration::from_millis(300);
const SETTLED: Duration = Duration::from_millis(400);
/// Memory that waiting processes keep free ahead of running ones: a part of the limit. With less,
/// those that run fill it by themselves.
const AHEAD: u64 = uzswap::pager::GIVEN_AHEAD as u64;
/// The length of a turn as a multiple of the cost of bringing the memory back, and its bounds in
/// processor time; the last bounds its time as well.
const TURN_RELOADS: u32 = 25;
const SHORTEST_TURN: Duration = Duration::from_millis(400);
const LONGEST_TURN: Duration = Duration::from_secs(8);
/// Memory is about to be full if it will be after this long, as fast as it fills now.
const FORESIGHT: Duration = Duration::from_secs(1);
/// The processors are busy while a smaller part of the machine is idle.
const IDLE: f64 = 0.1;
/// Little pressure and free memory for so long is a calm.
const CALM: Duration = Duration::from_secs(3);
/// The weight of one process, when it ends, in the typical size of processes.
const LESSON: f64 = 0.125;
/// Without processor time for so long a process sleeps.
const ASLEEP: Duration = Duration::from_millis(200);
/// A process that has not paged for so long is not counted among those that compete.
const AWAY: Duration = Duration::from_secs(1);

/// A process as the policy sees it.
#[derive(Clone, Debug)]
pub struct Sight {
    pub key: Key,
    /// The cost of bringing pages back so far.
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
    /// The process as seen at the last look.
    seen: Sight,
    /// When it last paged or wanted to, and when it last ran or wanted to.
    paged_at: Instant,
    ran_at: Instant,
    /// The process's turn, if it has one; `since` is the beginning of the turn, or else of the
    /// wait.
    turn: Option<Turn>,
    since: Instant,
}

/// A turn: the processor time at its beginning, if that can be seen.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Turn {
    processor_from: Option<Duration>,
}

impl Contender {
    fn contends(&self, now: Instant) -> bool {
        let last = if self.turn.is_some() { self.paged_at.max(self.ran_at) } else { self.paged_at };
        now - last < AWAY
    }

    fn waits(&self) -> bool {
        self.turn.is_none() && self.seen.is_waiting
    }

    fn has_had_its_turn(&self, now: Instant) -> bool {
        let (length, lasted) = (turn_length(self.seen.needed_pages), now - self.since);
        self.turn.is_some_and(|turn| match turn.processor_from.zip(self.seen.processor) {
            Some((from, used)) => used.saturating_sub(from) >= length || lasted >= LONGEST_TURN,
            None => lasted >= length,
        })
    }

    fn is_awake(&self, now: Instant) -> bool {
        now - self.ran_at < ASLEEP
    }

    fn runs(&self, now: Instant) -> bool {
        self.turn.is_some() && self.is_awake(now)
    }

    fn take_turn(&mut self, now: Instant) {
        self.turn = Some(Turn { processor_from: self.seen.processor });
        (self.since, self.ran_at) = (now, now);
    }

    /// The process that comes first is first in turn.
    fn place(&self) -> (Instant, Key) {
        (self.since, self.seen.key)
    }
}

pub struct Policy {
    cores: f64,
    contenders: HashMap<Key, Contender>,
    /// The time of the last look, and the memory in use then.
    looked_at: Option<(Instant, u64)>,
    pressure: f64,
    /// Pages by which memory in use grows, in a second.
    filling: f64,
    idle: f64,
    /// The typical size, in pages, of processes that have ended.
    typical: Option<f64>,
    /// How many may run at a time; None: all.
    allowed: Option<usize>,
    changed_at: Option<Instant>,
    /// When memory was full last.
    full_at: Option<Instant>,
}

impl Policy {
    pub fn new(cores: usize) -> Policy {
        Policy {
            cores: cores as f64,
            contenders: HashMap::new(),
            looked_at: None,
            pressure: 0.0,
            filling: 0.0,
            idle: 1.0,
            typical: None,
            allowed: None,
            changed_at: None,
            full_at: None,
        }
    }

    /// Whether processes take turns now.
    pub fn is_on(&self) -> bool {
        self.allowed.is_some()
    }

    /// Forgets all processes and turns, since none competes.
    pub fn forget(&mut self) {
        *self = Policy::new(self.cores as usize);
    }

    /// Processes that keep all processors busy, even where one ends and nobody has seen it yet.
    fn enough(&self) -> usize {
        self.cores as usize + 1
    }

    /// One look at the processes that compete.
    pub fn step(&mut self, now: Instant, supply: Supply, sights: Vec<Sight>) {
        let (paging, processor) = self.see(now, sights);
        self.average(now, supply, paging, processor);
        self.decide(now, supply.room);
        if let Some(allowed) = self.allowed {
            let has_room = self.has_room(now, supply.room);
            self.take_turns(now, allowed, has_room);
        }
    }

    /// Whether a process may run until the next look. A process that does not compete may.
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
            // A process that cannot be seen is taken to run; one that has its turn and waits on was
            // stopped.
            let would_run = s.is_waiting && c.turn.is_none();
            if !paging.is_zero() || would_run || s.processor.is_none() || !processor.is_zero() {
                c.ran_at = now;
            }
            c.seen = s;
            self.contenders.insert(c.seen.key, c);
        }
        for ended in before.values() {
            let came_to = ended.seen.needed_pages as f64;
            self.typical = Some(self.typical.map_or(came_to, |t| t + (came_to - t) * LESSON));
        }
        all
    }

    fn average(&mut self, now: Instant, supply: Supply, paging: Duration, processor: Duration) {
        let in_use = supply.room.limit_pages.saturating_sub(supply.room.free_pages);
        if self.looked_at.is_none() {
            self.idle = supply.idle;
        }
        if let Some((before, used_before)) = self.looked_at.filter(|(b, _)| *b < now) {
            let passed = (now - before).as_secs_f64();
            let used = processor.as_secs_f64().max(passed * self.cores * LEAST_USE);
            let weight = (passed / AVERAGE.as_secs_f64()).min(1.0);
            self.pressure += (paging.as_secs_f64() / used - self.pressure) * weight;
            self.filling += ((in_use as f64 - used_before as f64) / passed - self.filling) * weight;
            self.idle += (supply.idle - self.idle) * weight;
        }
        self.looked_at = Some((now, in_use));
    }

    /// How many may run from now on.
    fn decide(&mut self, now: Instant, room: Room) {
        let contending = self.contenders.values().filter(|c| c.contends(now)).count();
        let fitting = self.fitting(now, room);
        let least = if self.pressure > SEVERE { 1 } else { self.cores as usize };
        let Some(allowed) = self.allowed else {
            // A process that has never paged is no part of the pressure: it has only just come, or
            // sleeps.
            let pages =
                |c: &&Contender| c.contends(now) && c.is_awake(now) && !c.seen.paging.is_zero();
            let paging = self.contenders.values().filter(pages).count();
            let begin = if fitting == 0 {
                None
            } else if self.pressure > BEGIN && paging > least {
                Some(fitting.clamp(least, contending - 1))
            } else {
                self.before_memory_is_full(now, room)
            };
            return begin.map_or((), |allowed| self.begin(now, allowed));
        };
        // A process that is alone takes no turns.
        if fitting == 0 || contending < 2 {
            return self.end();
        }
        let ahead = room.limit_pages / AHEAD;
        if room.free_pages < ahead {
            self.full_at = Some(now);
        }
        if self.changed_at.is_some_and(|at| now - at < SETTLED) {
            return;
        }
        let is_calm = self.changed_at.max(self.full_at).is_some_and(|at| now - at > CALM);
        let is_easy = self.pressure < LITTLE && (self.idle > IDLE || is_calm);
        let next = if self.pressure > TOO_MUCH && room.free_pages < ahead {
            (allowed * 2 / 3).max(least.min(allowed))
        } else if allowed < contending && (is_easy || self.has_room(now, room)) {
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

    /// How many of those that contend would run in the memory that all processes hold, with half of
    /// what each needs. Zero if one of them would not even alone: it goes on paging, whichever
    /// others wait.
    fn fitting(&self, now: Instant, room: Room) -> usize {
        let there =
            room.free_pages + self.contenders.values().map(|c| c.seen.resident_pages).sum::<u64>();
        let contending = self.contenders.values().filter(|c| c.contends(now));
        let needs = contending.map(|c| c.seen.needed_pages / 2);
        let (count, needed) = (needs.clone().count() as u64, needs.clone().sum::<u64>());
        match needs.max() {
            Some(most) if most > there => 0,
            _ => (there * count / needed.max(1)).max(1) as usize,
        }
    }

    /// How many may run where memory is about to be full, if more do than keep the processors busy.
    fn before_memory_is_full(&self, now: Instant, room: Room) -> Option<usize> {
        let running = self.contenders.values().filter(|c| c.is_awake(now)).count();
        let asks = self.contenders.values().any(|c| c.seen.is_waiting);
        let soon = (self.filling * FORESIGHT.as_secs_f64()) as u64;
        let is_near = self.idle < IDLE && room.free_pages < soon;
        (running > self.enough() && (asks || is_near)).then_some(self.enough())
    }

    /// Begins turns, with those of the running processes that are there longest.
    fn begin(&mut self, now: Instant, allowed: usize) {
        (self.allowed, self.changed_at) = (Some(allowed), Some(now));
        let mut running: Vec<_> =
            self.contenders.values_mut().filter(|c| c.is_awake(now)).collect();
        running.sort_by_key(|c| c.place());
        running.iter_mut().take(allowed).for_each(|c| c.take_turn(now));
    }

    fn end(&mut self) {
        self.allowed = None;
        self.contenders.values_mut().for_each(|c| c.turn = None);
    }

    /// Whether there is memory for what those that run will come to, and one more.
    fn has_room(&self, now: Instant, room: Room) -> bool {
        room.free_pages > room.limit_pages / AHEAD + self.to_come(now)
    }

    /// Memory that will be wanted if one more runs: what it needs that it does not hold, and what
    /// those that run will come to.
    fn to_come(&self, now: Instant) -> u64 {
        let all = self.contenders.values();
        let typical = self.typical.map(|t| t as u64);
        let typical = typical.or(all.clone().map(|c| c.seen.needed_pages).max()).unwrap_or(0);
        let more =
            |c: &Contender| c.seen.needed_pages.max(typical).saturating_sub(c.seen.resident_pages);
        let next = all.clone().filter(|c| c.waits()).min_by_key(|c| c.place());
        next.map_or(0, more) + all.filter(|c| c.runs(now)).map(more).sum::<u64>()
    }

    /// Ends turns that are over, and gives the free places to the processes that wait longest.
    fn take_turns(&mut self, now: Instant, allowed: usize, has_room: bool) {
        let enough = self.enough();
        let mut all: Vec<&mut Contender> = self.contenders.values_mut().collect();
        if all.iter().any(|c| c.waits()) {
            for c in all.iter_mut().filter(|c| c.has_had_its_turn(now)) {
                (c.turn, c.since) = (None, now);
            }
        }
        all.sort_by_key(|c| c.place());
        // Of too many, the process that came last has lost least; it will be the first again.
        let running = all.iter().filter(|c| c.runs(now)).count();
        all.iter_mut().filter(|c| c.runs(now)).skip(allowed).for_each(|c| c.turn = None);
        // While processors are busy, more bring nothing but paging, if there is no room for them.
        let most = if self.idle < IDLE {
            allowed.min(enough.max(running + has_room as usize))
        } else {
            allowed
        };
        let free = most.saturating_sub(running);
        for c in all.iter_mut().filter(|c| c.waits()).take(free) {
            c.take_turn(now);
        }
    }
}

/// The length of the turn of a process that needs so much by now. In processor time, if that can be
/// seen: where three share a processor, the same time would be a third of the work, and what is
/// begun would go out before it is done.
fn turn_length(needed_pages: u64) -> Duration {
    let reload = RELOAD_COST * u32::try_from(needed_pages).unwrap_or(u32::MAX);
    (reload * TURN_RELOADS).clamp(SHORTEST_TURN, LONGEST_TURN)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Duration = Duration::from_millis(50);
    const PAGES: u64 = 4096;
    const ROOM: Room = Room { limit_pages: 1 << 20, free_pages: 4 * PAGES / 2 };

    /// Compilers that need so much, on two processors: each that may run pages heavily when more
    /// than `fit` do.
    struct Build {
        policy: Policy,
        now: Instant,
        room: Room,
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
            Build {
                policy: Policy::new(2),
                now: Instant::now(),
                room: ROOM,
                sights,
                fit,
                part: 0.5,
                asleep: None,
            }
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
                    s.paging += if running.len() > self.fit {
                        time.mul_f64(self.part)
                    } else {
                        Duration::ZERO
                    };
                }
            }
            self.now += LOOK;
            let idle = if running.len() < 2 { 0.5 } else { 0.0 };
            self.policy.step(self.now, Supply { room: self.room, idle }, self.sights.clone());
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
    fn who_sleeps_on_its_memory_is_no_reason_for_turns() {
        let mut b = Build::new(2, 0);
        (b.asleep, b.part) = (Some((1, 1)), 1.0);
        b.look_for(Duration::from_secs(5));
        assert!(!b.policy.is_on());
        // Another comes, and the two that page take turns until one of them sleeps.
        b.sights.push(Sight { key: (3, 1), ..Build::new(1, 1).sights.remove(0) });
        b.look_for(Duration::from_secs(2));
        assert!(b.policy.is_on());
        b.sights.remove(1);
        b.look_for(Duration::from_secs(2));
        assert!(!b.policy.is_on());
    }

    #[test]
    fn who_has_just_come_does_not_wait_for_one_that_pages_alone() {
        let mut b = Build::new(2, 0);
        (b.asleep, b.part) = (Some((2, 1)), 1.0);
        b.sights[0].resident_pages = PAGES;
        b.look_for(Duration::from_secs(2));
        let supply = Supply { room: Room { free_pages: 0, ..ROOM }, idle: 0.5 };
        b.sights[1] =
            Sight { key: (3, 1), needed_pages: 300, is_waiting: true, ..b.sights[1].clone() };
        for _ in 0..20 {
            b.now += LOOK;
            let time = b.sights[0].processor.map(|p| p + LOOK);
            b.sights[0].processor = time;
            b.sights[0].paging += LOOK;
            b.policy.step(b.now, supply, b.sights.clone());
            assert!(b.policy.may_run((3, 1)));
        }
    }

    #[test]
    fn who_was_stopped_while_it_waited_holds_no_place() {
        let mut b = Build::new(24, 4);
        b.look_for(Duration::from_secs(2));
        let (places, stopped) = (b.running().len(), b.running()[0]);
        // Neither one more nor one fewer for another reason.
        let bearable = (TOO_MUCH + LITTLE) / 2.0;
        b.policy.pressure = bearable;
        let looks = (ASLEEP.as_millis() / LOOK.as_millis()) as u32 + 1;
        for _ in 0..looks {
            let running = b.running();
            for s in &mut b.sights {
                s.is_waiting = s.key == stopped || !running.contains(&s.key);
                if !s.is_waiting {
                    s.processor = s.processor.map(|p| p + LOOK);
                    s.paging += LOOK.mul_f64(bearable);
                }
            }
            b.now += LOOK;
            b.policy.step(b.now, Supply { room: b.room, idle: 0.5 }, b.sights.clone());
        }
        let others = |b: &Build| b.running().iter().filter(|k| **k != stopped).count();
        assert!(b.policy.may_run(stopped) && others(&b) >= places, "{places}: {:?}", b.running());
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
        assert!(
            b.running().iter().filter(|k| **k != sleeper).count() >= 3,
            "as many as keep processors busy"
        );
        let gone = b.running()[1];
        b.sights.retain(|s| s.key != gone);
        b.look();
        assert!(b.running().iter().filter(|k| **k != sleeper).count() >= 3);
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
        for (pages, length) in
            [(0, SHORTEST_TURN), (10_000, Duration::from_secs(3)), (u64::MAX, LONGEST_TURN)]
        {
            assert_eq!(turn_length(pages), length);
        }
        // In processor time, if that is seen; a turn grows with what the process turns out to need.
        let mut sight = Build::new(1, 1).sights.remove(0);
        (sight.needed_pages, sight.processor) = (0, Some(Duration::from_secs(5)));
        let now = Instant::now();
        let mut c = Contender { seen: sight, paged_at: now, ran_at: now, turn: None, since: now };
        c.take_turn(now);
        assert!(
            !c.has_had_its_turn(now + Duration::from_secs(1))
                && c.has_had_its_turn(now + LONGEST_TURN)
        );
        c.seen.processor = Some(Duration::from_secs(6));
        assert!(c.has_had_its_turn(now));
        c.seen.needed_pages = PAGES;
        assert!(!c.has_had_its_turn(now));
        c.seen.processor = None;
        assert!(!c.has_had_its_turn(now + Duration::from_secs(1)));
        assert!(c.has_had_its_turn(now + Duration::from_secs(2)));
    }

    /// Compilers that begin with little, and room for four of them; they do not page yet.
    fn beginning(processes: u32) -> Build {
        let mut b = Build::new(processes, usize::MAX);
        b.room = Room { limit_pages: 4 * PAGES, free_pages: 4 * PAGES };
        b.sights.iter_mut().for_each(|s| s.needed_pages = PAGES / 16);
        b
    }

    /// Processes that run grow, and take of what is free.
    fn grow(b: &mut Build, pages: u64) {
        let running = b.running();
        for s in b.sights.iter_mut().filter(|s| running.contains(&s.key)) {
            let more = pages.min(PAGES.saturating_sub(s.needed_pages));
            (s.needed_pages, s.resident_pages) = (s.needed_pages + more, s.resident_pages + more);
            b.room.free_pages = b.room.free_pages.saturating_sub(more);
        }
        b.look();
    }

    #[test]
    fn before_memory_is_full_most_wait() {
        let mut b = beginning(24);
        while b.running().len() == 24 {
            grow(&mut b, PAGES / 128);
        }
        assert!(b.room.free_pages > PAGES, "{:?}", b.room);
        assert_eq!(b.running().len(), 3, "one more than processors");
        // One ends: the next begins.
        let ended = b.running()[0];
        b.sights.retain(|s| s.key != ended);
        b.look();
        b.look();
        assert_eq!(b.running().len(), 3);
        // As many as there are processors, or one more, are let alone.
        let mut few = beginning(3);
        (0..20).for_each(|_| grow(&mut few, PAGES / 16));
        assert!(!few.policy.is_on());
    }

    #[test]
    fn while_processors_are_busy_more_run_only_where_there_is_room() {
        let mut b = beginning(24);
        while b.running().len() == 24 {
            grow(&mut b, PAGES / 128);
        }
        // The size that one came to that ended is the size that others will.
        b.sights[0].needed_pages = PAGES;
        b.look();
        b.sights.remove(0);
        b.room.free_pages = 3 * PAGES;
        b.look_for(SETTLED * 3);
        assert_eq!(b.policy.typical, Some(PAGES as f64));
        assert_eq!(b.running().len(), 3);
        b.room.free_pages = 100 * PAGES;
        b.look_for(SETTLED * 3);
        assert!(b.running().len() > 4, "{:?}", b.running());
    }

    #[test]
    fn who_asks_is_answered() {
        let mut b = beginning(4);
        b.look();
        b.sights.iter_mut().for_each(|s| s.processor = s.processor.map(|p| p + LOOK));
        b.sights[3].is_waiting = true;
        b.room.free_pages = PAGES / 8;
        let supply = Supply { room: b.room, idle: 0.0 };
        b.policy.step(b.now + LOOK, supply, b.sights.clone());
        assert_eq!(
            b.running(),
            [(1, 1), (2, 1), (3, 1)],
            "there is no room for what it may come to"
        );
    }
}
