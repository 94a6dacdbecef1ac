//! A trace made into what policies see: touches of numbered pages, and deaths.
//!
//! A number is one *life* of a page, from its first touch until it is unmapped or discarded: what
//! is mapped there afterwards is another page, and its first touch is nobody's miss. Numbers are
//! given in the order of processes and addresses, so that a clock over addresses can go by them. A
//! page that moves (mremap) keeps its number, and so its first place in that order.
//!
//! A child of fork begins with no pages of its own: what it shares with its parent is its own from
//! the first touch that was recorded, and that is a first touch.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Read;

use uzswap::control::trace::{Kind, Record};

use crate::trace::{End, Header, Reader};

/// Touches and deaths that can be held.
const EVENTS_MAX: usize = 1 << 29;
/// The most pages of one fault: a record of more is damaged.
const TOUCHED_MAX: u32 = 1 << 16;

/// An event of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    Touch(u32),
    Death(u32),
}

/// A policy at work. Pages are below [`Sequence::lives`].
pub trait Policy {
    /// A page is touched, by the event at `at`: whether it was in memory. It is now.
    fn touch(&mut self, page: u32, at: usize) -> bool;
    /// A page is worthless.
    fn forget(&mut self, page: u32);
}

/// Everything that a trace says.
#[derive(Debug)]
pub struct Sequence {
    events: Vec<u32>,
    /// Lives of pages: their numbers are below this.
    pub lives: usize,
    /// The most pages that were alive at a time: what the program needs.
    pub peak_pages: u64,
    pub touches: u64,
    pub first_touches: u64,
    /// Faults that were recorded, and pages brought in for system calls.
    pub faults: u64,
    pub held_records: u64,
    /// Pages that came back from pool or store, and from limbo, while it was recorded.
    pub loads: u64,
    pub limbo_hits: u64,
    pub processes: u64,
    pub seconds: f64,
    /// How many pages were in memory while it was short: the least, without the tenth that is
    /// lowest (processes that come and go), and the most.
    pub recorded_pages: Option<[u64; 2]>,
    pub header: Header,
    pub end: End,
}

impl Sequence {
    pub fn read(from: impl Read) -> Result<Sequence, String> {
        let mut reader = Reader::new(from)?;
        let mut making = Making::default();
        loop {
            match reader.next_block()? {
                Ok(records) => records.iter().try_for_each(|r| making.add(r))?,
                Err(end) => return Ok(making.finish(reader.header, end)),
            }
        }
    }

    pub fn len(&self) -> usize {
        self.events.len()
    }

    pub fn events(&self) -> impl DoubleEndedIterator<Item = (usize, Event)> {
        self.events.iter().map(|e| unpack(*e)).enumerate()
    }

    #[cfg(test)]
    pub fn of_touches(pages: &[u64]) -> Sequence {
        let mut making = Making::default();
        for page in pages {
            making.add(&crate::trace::tests::record(Kind::PoolLoad, 1, *page, 1)).unwrap();
        }
        making.finish(crate::trace::tests::HEADER, End::Whole { lost: 0 })
    }
}

fn pack(page: u32, dies: bool) -> u32 {
    page << 1 | u32::from(dies)
}

fn unpack(event: u32) -> Event {
    if event & 1 == 0 { Event::Touch(event >> 1) } else { Event::Death(event >> 1) }
}

/// A process while its records are read.
#[derive(Default)]
struct Process {
    ordinal: u32,
    /// The numbers of its live pages, by page.
    pages: BTreeMap<u64, u32>,
    moves: Option<(u64, u64)>,
}

#[derive(Default)]
struct Making {
    events: Vec<u32>,
    /// Of every life the process and the page.
    places: Vec<(u32, u64)>,
    processes: HashMap<u32, Process>,
    seen: u32,
    pids: HashSet<u32>,
    alive: u64,
    peak: u64,
    touches: u64,
    faults: u64,
    held_records: u64,
    loads: u64,
    limbo_hits: u64,
    last_us: u64,
    in_memory: Vec<u64>,
}

impl Making {
    fn add(&mut self, r: &Record) -> Result<(), String> {
        self.last_us = self.last_us.max(r.time_us);
        let pages = u64::from(r.pages);
        match r.kind {
            Kind::FirstTouch | Kind::LimboHit | Kind::PoolLoad | Kind::StoreLoad => {
                *(if r.is_held { &mut self.held_records } else { &mut self.faults }) += 1;
                match r.kind {
                    Kind::LimboHit => self.limbo_hits += pages,
                    Kind::PoolLoad | Kind::StoreLoad => self.loads += pages,
                    _ => {}
                }
                self.touch(r)?;
            }
            Kind::Around | Kind::Adopted => self.touch(r)?,
            Kind::Discarded => self.die(r.pid, r.page, r.page + pages),
            Kind::MovedFrom => self.process(r.pid).moves = Some((r.page, pages)),
            Kind::MovedTo => {
                let process = self.process(r.pid);
                if let Some((from, pages)) = process.moves.take() {
                    let moved = take_range(&mut process.pages, from, from + pages);
                    process
                        .pages
                        .extend(moved.into_iter().map(|(page, life)| (page - from + r.page, life)));
                }
            }
            Kind::Forked | Kind::Began => {
                self.end(r.pid);
                self.process(r.pid);
            }
            Kind::Ended => self.end(r.pid),
            Kind::InMemory => {
                self.in_memory.push(r.page);
            }
        }
        if self.events.len() > EVENTS_MAX {
            return Err(format!("it is too long: more than {EVENTS_MAX} pages are touched in it"));
        }
        Ok(())
    }

    fn process(&mut self, pid: u32) -> &mut Process {
        self.pids.insert(pid);
        self.processes.entry(pid).or_insert_with(|| {
            self.seen += 1;
            Process { ordinal: self.seen, ..Process::default() }
        })
    }

    fn touch(&mut self, r: &Record) -> Result<(), String> {
        if r.pages > TOUCHED_MAX {
            return Err(format!("it is damaged: a fault that brought {} pages", r.pages));
        }
        let mut born = 0;
        let mut places = std::mem::take(&mut self.places);
        let mut events = std::mem::take(&mut self.events);
        let process = self.process(r.pid);
        for page in r.page..r.page + u64::from(r.pages) {
            let life = *process.pages.entry(page).or_insert_with(|| {
                born += 1;
                places.push((process.ordinal, page));
                places.len() as u32 - 1
            });
            events.push(pack(life, false));
        }
        (self.places, self.events) = (places, events);
        self.touches += u64::from(r.pages);
        self.alive += born;
        self.peak = self.peak.max(self.alive);
        Ok(())
    }

    fn die(&mut self, pid: u32, from: u64, to: u64) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        for (_, life) in take_range(&mut process.pages, from, to) {
            self.events.push(pack(life, true));
            self.alive -= 1;
        }
    }

    fn end(&mut self, pid: u32) {
        self.die(pid, 0, u64::MAX);
        self.processes.remove(&pid);
    }

    /// Gives the numbers anew, in the order of places.
    fn finish(mut self, header: Header, end: End) -> Sequence {
        self.in_memory.sort_unstable();
        let mut order: Vec<u32> = (0..self.places.len() as u32).collect();
        order.sort_by_key(|life| self.places[*life as usize]);
        let mut rank = vec![0; order.len()];
        for (i, life) in order.iter().enumerate() {
            rank[*life as usize] = i as u32;
        }
        for event in &mut self.events {
            *event = pack(rank[(*event >> 1) as usize], *event & 1 != 0);
        }
        Sequence {
            lives: self.places.len(),
            peak_pages: self.peak,
            touches: self.touches,
            first_touches: self.places.len() as u64,
            faults: self.faults,
            held_records: self.held_records,
            loads: self.loads,
            limbo_hits: self.limbo_hits,
            processes: self.pids.len() as u64,
            seconds: self.last_us as f64 / 1e6,
            recorded_pages: self
                .in_memory
                .last()
                .map(|most| [self.in_memory[self.in_memory.len() / 10], *most]),
            header,
            end,
            events: self.events,
        }
    }
}

/// Takes the pages of `[from, to)` out.
fn take_range(pages: &mut BTreeMap<u64, u32>, from: u64, to: u64) -> BTreeMap<u64, u32> {
    let mut taken = pages.split_off(&from);
    let mut rest = taken.split_off(&to);
    pages.append(&mut rest);
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::tests::{record, trace};
    use Event::{Death, Touch};

    fn of(records: &[Record]) -> Sequence {
        Sequence::read(&trace(records, 3)[..]).unwrap()
    }

    fn events(records: &[Record]) -> Vec<Event> {
        of(records).events().map(|(_, e)| e).collect()
    }

    #[test]
    fn pages_are_numbered_by_address_and_die() {
        let touch = |page, pages| record(Kind::FirstTouch, 1, page, pages);
        let records = [
            touch(20, 2),
            touch(10, 1),
            record(Kind::Discarded, 1, 15, 6),
            touch(20, 1),
            touch(21, 1),
        ];
        // 10 is 0; the first life of 20 is 1, the second 2; 21 is 3.
        assert_eq!(events(&records), [Touch(1), Touch(3), Touch(0), Death(1), Touch(2), Touch(3)]);
        let sequence = of(&records);
        assert_eq!((sequence.lives, sequence.peak_pages, sequence.touches), (4, 3, 5));
        assert_eq!((sequence.faults, sequence.end), (4, End::Whole { lost: 5 }));
    }

    #[test]
    fn a_page_that_moves_stays_the_page_that_it_was() {
        let records = [
            record(Kind::FirstTouch, 1, 5, 2),
            record(Kind::MovedFrom, 1, 4, 4),
            record(Kind::FirstTouch, 2, 6, 1),
            record(Kind::MovedTo, 1, 104, 4),
            record(Kind::PoolLoad, 1, 105, 2),
            record(Kind::FirstTouch, 1, 5, 1),
        ];
        assert_eq!(
            events(&records),
            [Touch(0), Touch(2), Touch(3), Touch(0), Touch(2), Touch(1)],
            "a new page where the old one was"
        );
    }

    #[test]
    fn processes_come_fork_exec_and_go() {
        let records = [
            record(Kind::FirstTouch, 1, 5, 1),
            record(Kind::Forked, 2, 1, 0),
            record(Kind::LimboHit, 2, 5, 1),
            record(Kind::Began, 1, 0, 0),
            record(Kind::FirstTouch, 1, 5, 1),
            record(Kind::Ended, 2, 0, 0),
            record(Kind::InMemory, 0, 70, 0),
            record(Kind::InMemory, 0, 50, 0),
        ];
        assert_eq!(events(&records), [Touch(0), Touch(1), Death(0), Touch(2), Death(1)]);
        let sequence = of(&records);
        assert_eq!((sequence.processes, sequence.peak_pages, sequence.limbo_hits), (2, 2, 1));
        assert_eq!(sequence.recorded_pages, Some([50, 70]));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let why =
            Sequence::read(&trace(&[record(Kind::PoolLoad, 1, 0, 1 << 20)], 1)[..]).unwrap_err();
        assert!(why.contains("brought 1048576 pages"), "{why}");
        // Moves to nowhere, deaths of nobody.
        let odd = [
            record(Kind::MovedTo, 7, 5, 1),
            record(Kind::Discarded, 8, 0, 9),
            record(Kind::Ended, 9, 0, 0),
            record(Kind::MovedFrom, 7, (1 << 36) - 4, 4),
        ];
        assert_eq!(events(&odd), []);
    }
}
