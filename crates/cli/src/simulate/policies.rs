//! The policies that a trace is replayed under, and how.
//!
//! ```text
//!  fifo      in at the end, out at the front
//!  clock     the same, but a page that was touched since goes round once more
//!  lru       a touch moves a page to the end
//!  s3-fifo   a small queue for what is new, a main one for what was touched twice there or comes back soon (a list of ghosts)
//!  s3-blind  the same without access bits: all that it knows is who comes back soon
//!  uzswap    what the pager does (`own.rs`)
//!  optimum   out goes what is not needed for longest (`optimum.rs`)
//! ```
//! All have the same memory, in pages as they are, and bring a page when it is touched. CLOCK, LRU
//! and S3-FIFO are told of every touch in the trace, as if there were access bits, of which there
//! are none without privilege; FIFO, s3-blind and uzswap see only what faults.
//!
//! A *load* is a touch of a page that was in memory before and is not now. First touches are the
//! same for all, and no loads.

use super::list::List;
use super::optimum::{self, Optimum};
use super::own::Own;
use super::sequence::{Event, Policy, Sequence};

/// Which policies there are, in the order of tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Optimum,
    Uzswap,
    S3Fifo,
    Clock,
    Lru,
    S3Blind,
    Fifo,
}

impl Kind {
    pub const ALL: [Kind; 7] = [
        Kind::Optimum,
        Kind::Uzswap,
        Kind::S3Fifo,
        Kind::Clock,
        Kind::Lru,
        Kind::S3Blind,
        Kind::Fifo,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Kind::Optimum => "optimum",
            Kind::Uzswap => "uzswap",
            Kind::S3Fifo => "s3-fifo",
            Kind::Clock => "clock",
            Kind::Lru => "lru",
            Kind::S3Blind => "s3-blind",
            Kind::Fifo => "fifo",
        }
    }

    pub fn named(name: &str) -> Result<Kind, String> {
        let names = || Kind::ALL.map(Kind::name).join(", ");
        Kind::ALL
            .into_iter()
            .find(|k| k.name() == name)
            .ok_or_else(|| format!("'{name}' is none of {}", names()))
    }
}

/// Replays traces.
pub struct Replay<'a> {
    sequence: &'a Sequence,
    /// Of each event when its page is touched next.
    next: Vec<u32>,
}

impl<'a> Replay<'a> {
    pub fn new(sequence: &'a Sequence) -> Replay<'a> {
        Replay { sequence, next: optimum::next_touches(sequence) }
    }

    /// The loads of a policy that has so many pages of memory. `tell` hears now and then how many
    /// events are done.
    pub fn loads(&self, kind: Kind, pages: usize, mut tell: impl FnMut(usize)) -> u64 {
        const TELL_EVERY: usize = 1 << 16;
        let mut policy = self.make(kind, pages);
        let mut is_known = vec![false; self.sequence.lives];
        let mut loads = 0;
        for (at, event) in self.sequence.events() {
            match event {
                Event::Touch(page) => {
                    let is_there = policy.touch(page, at);
                    let was_known = std::mem::replace(&mut is_known[page as usize], true);
                    loads += u64::from(was_known && !is_there);
                }
                Event::Death(page) => policy.forget(page),
            }
            if at % TELL_EVERY == 0 {
                tell(at);
            }
        }
        loads
    }

    fn make(&self, kind: Kind, pages: usize) -> Box<dyn Policy + '_> {
        let lives = self.sequence.lives;
        match kind {
            Kind::Optimum => Box::new(Optimum::new(&self.next, lives, pages)),
            Kind::Uzswap => Box::new(Own::new(lives, pages)),
            Kind::S3Fifo => Box::new(S3Fifo::new(lives, pages, true)),
            Kind::S3Blind => Box::new(S3Fifo::new(lives, pages, false)),
            Kind::Clock => {
                Box::new(Clock { queue: List::new(lives), touched: vec![false; lives], pages })
            }
            Kind::Lru => Box::new(Lru { queue: List::new(lives), pages }),
            Kind::Fifo => Box::new(Fifo { queue: List::new(lives), pages }),
        }
    }
}

struct Fifo {
    queue: List,
    pages: usize,
}

impl Policy for Fifo {
    fn touch(&mut self, page: u32, _: usize) -> bool {
        if self.queue.contains(page) {
            return true;
        }
        if self.queue.len() == self.pages {
            self.queue.pop();
        }
        self.queue.push(page);
        false
    }

    fn forget(&mut self, page: u32) {
        self.queue.remove(page);
    }
}

struct Clock {
    queue: List,
    touched: Vec<bool>,
    pages: usize,
}

impl Policy for Clock {
    fn touch(&mut self, page: u32, _: usize) -> bool {
        if self.queue.contains(page) {
            self.touched[page as usize] = true;
            return true;
        }
        if self.queue.len() == self.pages {
            while let Some(oldest) = self.queue.pop() {
                if !std::mem::take(&mut self.touched[oldest as usize]) {
                    break;
                }
                self.queue.push(oldest);
            }
        }
        self.queue.push(page);
        false
    }

    fn forget(&mut self, page: u32) {
        self.queue.remove(page);
    }
}

struct Lru {
    queue: List,
    pages: usize,
}

impl Policy for Lru {
    fn touch(&mut self, page: u32, _: usize) -> bool {
        let is_there = self.queue.remove(page);
        if self.queue.len() == self.pages {
            self.queue.pop();
        }
        self.queue.push(page);
        is_there
    }

    fn forget(&mut self, page: u32) {
        self.queue.remove(page);
    }
}

/// After Yang et al., "FIFO queues are all you need for cache eviction" (SOSP 2023).
struct S3Fifo {
    small: List,
    main: List,
    ghosts: List,
    touches: Vec<u8>,
    pages: usize,
    small_pages: usize,
    /// Touches of what is in memory are seen.
    sees_hits: bool,
}

impl S3Fifo {
    const TOUCHES_MAX: u8 = 3;

    fn new(lives: usize, pages: usize, sees_hits: bool) -> S3Fifo {
        let [small, main, ghosts] = [(); 3].map(|()| List::new(lives));
        S3Fifo {
            small,
            main,
            ghosts,
            touches: vec![0; lives],
            pages,
            small_pages: (pages / 10).max(1),
            sees_hits,
        }
    }

    fn evict(&mut self) {
        loop {
            let from_small = self.small.len() >= self.small_pages || self.main.len() == 0;
            let queue = if from_small { &mut self.small } else { &mut self.main };
            let Some(oldest) = queue.pop() else { return };
            let touches = &mut self.touches[oldest as usize];
            match (from_small, *touches) {
                (true, 2..) => {
                    *touches = 0;
                    self.main.push(oldest);
                }
                (true, _) => {
                    self.ghosts.push(oldest);
                    if self.ghosts.len() > self.pages - self.small_pages {
                        self.ghosts.pop();
                    }
                    return;
                }
                (false, 0) => return,
                (false, _) => {
                    *touches -= 1;
                    self.main.push(oldest);
                }
            }
        }
    }
}

impl Policy for S3Fifo {
    fn touch(&mut self, page: u32, _: usize) -> bool {
        let touches = &mut self.touches[page as usize];
        if self.small.contains(page) || self.main.contains(page) {
            if self.sees_hits {
                *touches = (*touches + 1).min(Self::TOUCHES_MAX);
            }
            return true;
        }
        *touches = 0;
        if self.small.len() + self.main.len() == self.pages {
            self.evict();
        }
        if self.ghosts.remove(page) {
            self.main.push(page)
        } else {
            self.small.push(page)
        }
        false
    }

    fn forget(&mut self, page: u32) {
        let _ = self.small.remove(page) || self.main.remove(page) || self.ghosts.remove(page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::Random;
    use crate::trace::tests::{record, trace};
    use uzswap::control::trace::{Kind as What, Record};

    /// Misses, first touches included, as textbooks count them.
    fn misses(kind: Kind, pages: usize, touches: &[u64]) -> u64 {
        let sequence = Sequence::of_touches(touches);
        Replay::new(&sequence).loads(kind, pages, |_| ()) + sequence.first_touches
    }

    #[test]
    fn the_textbook_string_of_silberschatz() {
        let string = [7, 0, 1, 2, 0, 3, 0, 4, 2, 3, 0, 3, 2, 1, 2, 0, 1, 7, 0, 1];
        let of = |kind| misses(kind, 3, &string);
        assert_eq!((of(Kind::Fifo), of(Kind::Lru), of(Kind::Optimum)), (15, 12, 9));
    }

    #[test]
    fn fifo_has_beladys_anomaly_and_the_others_do_not() {
        let string = [1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5];
        let of = |kind| [misses(kind, 3, &string), misses(kind, 4, &string)];
        assert_eq!((of(Kind::Fifo), of(Kind::Lru), of(Kind::Optimum)), ([9, 10], [10, 8], [7, 6]));
    }

    #[test]
    fn clock_gives_a_second_chance() {
        // 1 is touched again: 2 goes instead of it. Without that clock is FIFO.
        assert_eq!(misses(Kind::Clock, 3, &[1, 2, 3, 1, 4, 1]), 4);
        assert_eq!(misses(Kind::Fifo, 3, &[1, 2, 3, 1, 4, 1]), 5);
        // Tanenbaum's case: all touched, so the oldest goes after one round.
        assert_eq!(misses(Kind::Clock, 3, &[1, 2, 3, 1, 2, 3, 4, 1]), 5);
    }

    #[test]
    fn s3_fifo_keeps_what_is_hot_beside_a_scan() {
        let mut touches = Vec::new();
        for round in 0..200u64 {
            touches.extend([0, 1, 2, 3, 4].repeat(2));
            touches.extend((0..20).map(|i| 1000 + 20 * round + i));
        }
        let scan = 200 * 20;
        assert_eq!(misses(Kind::Lru, 15, &touches), scan + 200 * 5);
        // The second time they come back as ghosts, and are in the main queue for good.
        assert_eq!(misses(Kind::S3Fifo, 15, &touches), scan + 10);
        assert_eq!(misses(Kind::S3Blind, 15, &touches), scan + 10, "ghosts are enough here");
        // A ghost that comes back outlives the scan that it did not at first.
        assert_eq!(misses(Kind::S3Fifo, 4, &[1, 2, 3, 4, 5, 1, 6, 7, 8, 1]), 9);
    }

    #[test]
    fn the_dead_make_room() {
        let touch = |page| record(What::FirstTouch, 1, page, 1);
        let dies = |page| record(What::Discarded, 1, page, 1);
        let records = [
            touch(1),
            touch(2),
            dies(2),
            touch(3),
            touch(1),
            touch(2),
            dies(1),
            touch(3),
            touch(2),
        ];
        let sequence = Sequence::read(&trace(&records, 4)[..]).unwrap();
        for kind in Kind::ALL.into_iter().filter(|k| *k != Kind::Uzswap) {
            // Never more than two alive but for the moment when 1, 2 and 3 are: one page has to go,
            // which comes back.
            let loads = Replay::new(&sequence).loads(kind, 2, |_| ());
            assert!(loads <= 2, "{kind:?}: {loads}");
            assert_eq!(Replay::new(&sequence).loads(kind, 3, |_| ()), 0, "{kind:?}");
        }
    }

    /// Phases of loops, scans and random touches, with pages that die and move, of two processes.
    fn made_up(seed: u64) -> Vec<Record> {
        let mut random = Random(seed);
        let mut records = Vec::new();
        for _ in 0..60 {
            let (pid, base) = (1 + random.next() as u32 % 2, random.next() >> 20 & 0xff);
            let length = 1 + (random.next() >> 20) % 600;
            let kind = random.next() >> 20 & 7;
            for i in 0..length {
                let page = match kind {
                    0..4 => base + i % 97,
                    4 | 5 => base + (random.next() >> 22) % 300,
                    _ => base + i,
                };
                records.push(record(
                    What::PoolLoad,
                    pid,
                    page,
                    1 + (random.next() >> 30) as u32 % 3,
                ));
            }
            match kind {
                1 => records.push(record(What::Discarded, pid, base, 50)),
                2 => records.extend([
                    record(What::MovedFrom, pid, base, 40),
                    record(What::MovedTo, pid, base + 5000, 40),
                ]),
                3 if random.next() >> 30 & 3 == 0 => records.push(record(What::Ended, pid, 0, 0)),
                _ => {}
            }
        }
        records
    }

    #[test]
    fn nothing_is_better_than_the_optimum_and_more_memory_never_worse_for_lru() {
        for seed in 1..=12 {
            let sequence = Sequence::read(&trace(&made_up(seed), 100)[..]).unwrap();
            let replay = Replay::new(&sequence);
            let mut last = [u64::MAX; 2];
            for pages in [1, 2, 5, 17, 60, 200, 400, sequence.peak_pages as usize] {
                let optimum = replay.loads(Kind::Optimum, pages, |_| ());
                // The least that the pager keeps in limbo needs some memory.
                for kind in Kind::ALL.into_iter().filter(|k| *k != Kind::Uzswap || pages >= 60) {
                    let loads = replay.loads(kind, pages, |_| ());
                    assert!(
                        loads >= optimum,
                        "seed {seed}, {pages} pages, {kind:?}: {loads} < {optimum}"
                    );
                }
                let now = [replay.loads(Kind::Lru, pages, |_| ()), optimum];
                assert!(now[0] <= last[0] && now[1] <= last[1], "seed {seed}, {pages} pages");
                last = now;
            }
            assert_eq!(last, [0, 0], "all fits");
        }
    }

    /// Straight from the definition: of all pages in memory the one whose next touch is farthest.
    fn slow_optimum(sequence: &Sequence, pages: usize) -> u64 {
        let events: Vec<Event> = sequence.events().map(|(_, e)| e).collect();
        let (mut there, mut known) = (Vec::new(), std::collections::HashSet::new());
        let mut loads = 0;
        for (at, event) in events.iter().enumerate() {
            match event {
                Event::Touch(page) if there.contains(page) => {}
                Event::Touch(page) => {
                    loads += u64::from(!known.insert(*page));
                    if there.len() == pages {
                        let next =
                            |p: &u32| events[at..].iter().position(|e| *e == Event::Touch(*p));
                        let farthest =
                            (0..pages).max_by_key(|i| next(&there[*i]).unwrap_or(usize::MAX));
                        there.swap_remove(farthest.unwrap());
                    }
                    there.push(*page);
                }
                Event::Death(page) => there.retain(|p| p != page),
            }
        }
        loads
    }

    #[test]
    fn the_optimum_is_what_its_definition_says() {
        for seed in 20..24 {
            let mut records = made_up(seed);
            records.truncate(2500);
            let sequence = Sequence::read(&trace(&records, 100)[..]).unwrap();
            let replay = Replay::new(&sequence);
            for pages in [3, 40, 120] {
                assert_eq!(
                    replay.loads(Kind::Optimum, pages, |_| ()),
                    slow_optimum(&sequence, pages)
                );
            }
        }
    }

    #[test]
    fn names() {
        for kind in Kind::ALL {
            assert_eq!(Kind::named(kind.name()), Ok(kind));
        }
        assert_eq!(
            Kind::named("random").unwrap_err(),
            "'random' is none of optimum, uzswap, s3-fifo, clock, lru, s3-blind, fifo"
        );
    }
}
