//! Watching from within: the program runs under uzswap with all the memory that it wants, and a
//! part of its pages is watched (`core/pager/sampling.rs`).
//!
//! ```text
//!   PROGRAM with the preload library ──records of watched pages──> ring ──> Reader: recency ──> Touches: distance, how many
//! ```
//!
//! So each page that is used again tells how many others were used in between, which nobody can see
//! from outside. A program that cannot be taken over, or a machine without userfaultfd, is watched
//! from outside.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use uzswap::control::trace::{Kind, Record, is_watched};
use uzswap::control::{HugePages, Mechanism, Settings, Tree};

use super::recency::{Page, Recency};
use crate::mechanism::Probe;
use crate::observe::clock::TickWatch;
use crate::os::ControlBlock;
use crate::pages::PAGE_BYTES;
use crate::program::Program;
use crate::trace::recorder;
use crate::{place, run, settings};

/// log2 of the pages of which one is watched: at first, and at most.
const LOG2_FIRST: u32 = 5;
const LOG2_MOST: u32 = 9;
/// Records of touches in a second, at most: each is some 15 us of the program's time. If there are
/// more, half of the pages are not watched any more. A short time says little of that rate, so
/// `RECORDS_BESIDES` more are allowed in all.
const RECORDS_BY_SECOND: f64 = 10_000.0;
const RECORDS_BESIDES: f64 = 4000.0;
/// The limit of a program that is watched, 16 TiB: no program reaches it, so nothing is paged.
const MEMORY_BYTES: u64 = 1 << 44;
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Refaults are averaged over these factors of the resident memory. It is known to about a tenth,
/// and the pager, which sees no touch of a page that is there, needs some more than LRU.
const UNSURE: [f64; 3] = [0.8, 0.9, 1.0];
/// The precision to which distances and sizes of memory are kept: 2 %.
const STEP: f64 = 1.02;

/// A run in which a program is watched, before it has begun.
pub struct Within {
    preload: PathBuf,
    block: ControlBlock,
}

impl Within {
    /// Prepares to watch a program, if the program and the machine allow it.
    pub fn prepare(program: &Program) -> Option<Within> {
        let ticks = TickWatch::start();
        program.takeover.clone().ok()?;
        Probe::run().check(Mechanism::Userfaultfd).ok()?;
        let env = |name: &str| std::env::var_os(name);
        let preload = place::find_preload(&env).ok()?;
        let mut plain = Settings {
            memory_bytes: MEMORY_BYTES,
            mechanism: Mechanism::Userfaultfd as u32,
            trace: 1,
            watch: 1,
            // Taking one page out of a huge one splits that, which would slow the program unseen.
            huge_pages: HugePages::Never as u32,
            ..Settings::new()
        };
        settings::put_cache(&mut plain, place::default_cache(&env, &mut Vec::new()).as_deref())
            .ok()?;
        let block = ControlBlock::create(&plain).ok()?;
        run::begin(&block, &ticks, MEMORY_BYTES);
        let tree = block.tree();
        tree.watch_log2.store(LOG2_FIRST, Ordering::Release);
        // Without a clock in it nobody could tell the program's time from uzswap's.
        let has_clock = tree.tick_ns_q32.load(Ordering::Acquire) != 0;
        has_clock.then_some(Within { preload, block })
    }

    /// The library and the control block by which the program is managed.
    pub fn managed(&self) -> (&Path, &ControlBlock) {
        (&self.preload, &self.block)
    }

    pub fn tree(&self) -> &'static Tree {
        self.block.tree()
    }

    /// Begins to listen, in a thread: after the program has started. Without a thread nothing is
    /// recorded any more, so that the program waits for nobody.
    pub fn listen(&self) -> io::Result<Reader> {
        let (tree, ring) = (self.tree(), self.block.ring().expect("there is one with a trace"));
        let (end, stop) = mpsc::channel::<()>();
        let listen = move || {
            let (mut touched, since, mut unfinished_since) = (Touched::new(), Instant::now(), None);
            let mut drain = |touched: &mut Touched| {
                recorder::drain(ring, &mut unfinished_since, |words| touched.take(words))
            };
            while stop.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                drain(&mut touched);
                let most = RECORDS_BY_SECOND * since.elapsed().as_secs_f64() + RECORDS_BESIDES;
                if touched.records as f64 > most && touched.log2 < LOG2_MOST {
                    touched.watch_half();
                    tree.watch_log2.store(touched.log2, Ordering::Release);
                }
            }
            recorder::drain_rest(ring, |words| touched.take(words));
            touched.finish()
        };
        match thread::Builder::new().spawn(listen) {
            Ok(thread) => Ok(Reader { end, thread }),
            Err(e) => {
                ring.close();
                Err(e)
            }
        }
    }
}

/// Listens to a program that runs.
pub struct Reader {
    end: Sender<()>,
    thread: JoinHandle<Touches>,
}

impl Reader {
    /// The program has ended.
    pub fn finish(self) -> Touches {
        drop(self.end);
        self.thread.join().expect("a panic ends the process")
    }
}

/// Pages that would have to be brought back, and of them those that follow one that was used a
/// moment ago: they come by windows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Refaults {
    pub pages: f64,
    pub in_order: f64,
}

/// Counts of pages that were used again, by how many others were used in between, and how much
/// memory there was: what is watched, counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Touches {
    /// By the powers of [`STEP`] of how many pages there were, and of the distance; and whether the
    /// one before was used a moment ago.
    counts: HashMap<(u16, u16, bool), u64>,
    /// The most pages that there were.
    pub peak: usize,
    /// One page in so many was watched in the end.
    pub one_in: u32,
}

fn power(pages: usize) -> u16 {
    (pages as f64).max(1.0).log(STEP).round() as u16
}

impl Touches {
    #[cfg(test)]
    pub fn of_peak(peak: usize, one_in: u32) -> Touches {
        Touches { peak, one_in, ..Touches::default() }
    }

    /// The most memory of which use was seen.
    pub fn peak_bytes(&self) -> f64 {
        (self.peak << LOG2_FIRST) as f64 * PAGE_BYTES as f64
    }

    /// As [`Self::refaults`], averaged over as many resident pages, and up to a fifth fewer: where
    /// all of a loop fits or none of it does, the truth is between the two.
    pub fn refaults_about(&self, peak_pages: f64, resident: &dyn Fn(f64) -> f64) -> Refaults {
        let with = |times: &f64| {
            let about = |pages: f64| match resident(pages) {
                resident if resident >= pages => resident,
                resident => resident * times,
            };
            self.refaults(peak_pages, &about)
        };
        let all = UNSURE.each_ref().map(with);
        let mean = |of: fn(&Refaults) -> f64| {
            (all.iter().map(|r| of(r).sqrt()).sum::<f64>() / UNSURE.len() as f64).powi(2)
        };
        Refaults { pages: mean(|r| r.pages), in_order: mean(|r| r.in_order) }
    }

    /// How many pages would have had to be brought back, if of so much memory as there is (in
    /// pages) so many stayed resident as `resident` says. The program had `peak_pages` at most.
    pub fn refaults(&self, peak_pages: f64, resident: &dyn Fn(f64) -> f64) -> Refaults {
        let mut sum = Refaults::default();
        if self.peak == 0 {
            return sum;
        }
        // The number of pages that each watched one stands for: a sample is never just as large as
        // it should be.
        let each = peak_pages / self.peak as f64;
        let mut by_memory: HashMap<u16, f64> = HashMap::new();
        for ((memory, distance, in_order), count) in &self.counts {
            let resident = *by_memory.entry(*memory).or_insert_with(|| {
                let pages = STEP.powi(i32::from(*memory)) * each;
                let resident = resident(pages);
                if resident >= pages { f64::INFINITY } else { resident }
            });
            if STEP.powi(i32::from(*distance)) * each >= resident {
                let pages = *count as f64 * each;
                sum.pages += pages;
                sum.in_order += if *in_order { pages } else { 0.0 };
            }
        }
        sum
    }
}

/// Places at which a process, with its several threads, reads on at a time, as the pager sees them
/// (`core/pager/stream.rs`).
const HEADS: usize = 8;

/// The fate of watched pages, as the records say.
struct Touched {
    /// log2 of how many pages there are to one that is watched now.
    log2: u32,
    /// Records of touches so far, as if as few pages as now had been watched from the beginning:
    /// otherwise a moment of many would halve them again and again.
    records: u64,
    recency: Recency,
    /// As if one in 2^[`LOG2_FIRST`] were watched all the time.
    touches: Touches,
    /// Of each process that is moving pages, how many of those that it moves are watched.
    moving: HashMap<u32, usize>,
    /// For each process, the last page of each place at which it read on, or may; the latest at the
    /// end.
    heads: HashMap<u32, [u64; HEADS]>,
}

impl Touched {
    fn new() -> Touched {
        Touched {
            log2: LOG2_FIRST,
            records: 0,
            recency: Recency::new(),
            touches: Touches::default(),
            moving: HashMap::new(),
            heads: HashMap::new(),
        }
    }

    /// Whether the page that is used now follows one that was used a moment ago.
    fn is_in_order(&mut self, page: Page) -> bool {
        let heads = self.heads.entry(page.0).or_default();
        let follows = |head: &u64| self.recency.following((page.0, *head)) == Some(page);
        let at = heads.iter().rposition(follows);
        heads[at.unwrap_or(0)..].rotate_left(1);
        heads[HEADS - 1] = page.1;
        at.is_some()
    }

    /// From now on only half of the pages are watched.
    fn watch_half(&mut self) {
        self.log2 += 1;
        self.records /= 2;
        let log2 = self.log2;
        self.recency.retain(|page| is_watched(page.1, log2));
    }

    /// Words that are no record say nothing.
    fn take(&mut self, words: [u64; 2]) {
        Record::unpack(words).iter().for_each(|record| self.add(record));
    }

    fn add(&mut self, record: &Record) {
        self.records += u64::from(record.kind.is_touch());
        let (pid, first, last) = (record.pid, record.page, record.page + u64::from(record.pages));
        match record.kind {
            // A page that is not watched any more may still be on its way.
            kind if kind.is_touch() && !is_watched(first, self.log2) => {}
            kind if kind.is_touch() => {
                let times = self.log2 - LOG2_FIRST;
                let memory = self.recency.len() << times;
                let page = (pid, first);
                let in_order = self.is_in_order(page);
                let distance = self.recency.touch(page);
                // A page that is there for the first time, or once more as zeros, need not be
                // brought back.
                let is_back = matches!(kind, Kind::LimboHit | Kind::PoolLoad | Kind::StoreLoad);
                if let (true, Some(distance)) = (is_back, distance) {
                    let key = (power(memory), power(distance << times), in_order);
                    *self.touches.counts.entry(key).or_default() += 1 << times;
                }
            }
            Kind::Discarded => _ = self.recency.remove(pid, first, last),
            Kind::MovedFrom => _ = self.moving.insert(pid, self.recency.remove(pid, first, last)),
            Kind::MovedTo => {
                // Other pages are watched at the new place, about as many.
                let moved = self.moving.remove(&pid).unwrap_or(0);
                let watched = (first..last).filter(|page| is_watched(*page, self.log2)).take(moved);
                watched.for_each(|page| _ = self.recency.touch((pid, page)));
            }
            Kind::Forked => self.recency.fork(first as u32, pid),
            Kind::Began | Kind::Ended => _ = self.recency.remove(pid, 0, u64::MAX),
            _ => {}
        }
        self.touches.peak = self.touches.peak.max(self.recency.len() << (self.log2 - LOG2_FIRST));
    }

    fn finish(self) -> Touches {
        Touches { one_in: 1 << self.log2, ..self.touches }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::Random;
    use crate::trace::tests::record;

    fn watched(log2: u32) -> impl Iterator<Item = u64> {
        (0..).filter(move |page| is_watched(*page, log2))
    }

    #[test]
    fn a_loop_is_missed_as_often_as_it_is_gone_through() {
        // 300 watched pages stand for 9600; one in four is used ten times more.
        let (mut touched, pages) =
            (Touched::new(), watched(LOG2_FIRST).take(300).collect::<Vec<_>>());
        pages.iter().for_each(|page| touched.add(&record(Kind::FirstTouch, 1, *page, 1)));
        let hot = pages.iter().step_by(4);
        for page in pages.iter().chain(std::iter::repeat_n(hot, 10).flatten()) {
            touched.add(&record(Kind::LimboHit, 1, *page, 1));
        }
        let touches = touched.finish();
        let at = |part: f64| touches.refaults_about(9600.0, &|pages| pages * part).pages.round();
        assert_eq!(touches.peak, 300);
        let once = 32.0 * 300.0;
        assert_eq!([at(0.1), at(1.0)], [once + 32.0 * 750.0, 0.0]);
        // All of it once, and of the hot part the first time those that were used in the first
        // half.
        let half = once + 32.0 * 50.0;
        assert!((0.95..1.05).contains(&(at(0.5) / half)), "{}", at(0.5));
        // Just where the hot part begins to fit, something between.
        assert!((half..once + 32.0 * 750.0).contains(&at(0.25)), "{}", at(0.25));
        assert_eq!(Touches::default().refaults(9600.0, &|_| 1.0), Refaults::default());
    }

    #[test]
    fn what_is_read_in_order_is_told_from_the_rest() {
        let (mut touched, mut random) = (Touched::new(), Random(3));
        let pages: Vec<u64> = watched(LOG2_FIRST).take(1000).collect();
        pages.iter().for_each(|page| touched.add(&record(Kind::FirstTouch, 1, *page, 1)));
        // Two readers in different places, and as many touches anywhere.
        for i in 0..500 {
            for page in [
                pages[i],
                pages[i + 500],
                pages[random.below(1000) as usize],
                pages[random.below(1000) as usize],
            ] {
                touched.add(&record(Kind::PoolLoad, 1, page, 1));
            }
        }
        let all = touched.finish().refaults(32_000.0, &|_| 1.0);
        let share = all.in_order / all.pages;
        assert!((0.45..0.55).contains(&share), "{share}");
    }

    #[test]
    fn half_of_the_pages_say_the_same() {
        let (mut touched, mut random) = (Touched::new(), Random(3));
        let pages: Vec<u64> = watched(LOG2_FIRST).take(2000).collect();
        for round in 0..12 {
            if round % 4 == 3 {
                touched.watch_half();
            }
            for page in &pages {
                let kind = if round == 0 { Kind::FirstTouch } else { Kind::PoolLoad };
                // A use that comes too late is not counted; nor is one that follows at once.
                touched.add(&record(kind, 1, *page, 1));
                if random.below(2) == 0 {
                    touched.add(&record(Kind::LimboHit, 1, *page, 1));
                }
            }
        }
        let found = touched.finish().refaults(64_000.0, &|pages| pages / 2.0).pages;
        let expected = 11.0 * 64_000.0;
        assert!((found / expected - 1.0).abs() < 0.1, "{found} for {expected}");
    }

    #[test]
    fn pages_go_move_and_are_inherited() {
        let mut touched = Touched::new();
        let pages: Vec<u64> = watched(LOG2_FIRST).take(40).collect();
        let (first, behind) = (pages[0], pages[39] + 1);
        let all = behind - first;
        let touch = |touched: &mut Touched, kind, pid| {
            pages.iter().for_each(|page| touched.add(&record(kind, pid, *page, 1)));
        };
        touch(&mut touched, Kind::FirstTouch, 1);
        touched.add(&record(Kind::Forked, 2, 1, 0));
        assert_eq!(touched.recency.len(), 80);
        // The child's are used again, after those of its parent.
        touch(&mut touched, Kind::LimboHit, 2);
        assert_eq!(touched.touches.counts.values().sum::<u64>(), 40);
        touched.add(&record(Kind::Discarded, 1, first, all as u32));
        assert_eq!(touched.recency.len(), 40);
        touch(&mut touched, Kind::LimboHit, 1);
        assert_eq!(touched.touches.counts.values().sum::<u64>(), 40, "they were new");
        touched.add(&record(Kind::MovedFrom, 1, first, all as u32));
        touched.add(&record(Kind::MovedTo, 1, first + (1 << 30), all as u32));
        assert!((60..=80).contains(&touched.recency.len()), "{}", touched.recency.len());
        touched.add(&record(Kind::Ended, 1, 0, 0));
        touched.add(&record(Kind::Began, 2, 0, 0));
        assert_eq!((touched.recency.len(), touched.finish().peak), (0, 80));
    }
}
