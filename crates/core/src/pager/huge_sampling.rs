//! Samples of use: whether a stretch of 2 MiB that is out comes back whole or page by page.
//!
//! There are no access bits, and all of a huge page comes for a touch of one page. So now and then
//! a stretch that would come whole comes page by page (and window by window) instead, a *probe*:
//! how many of its pages are in before all are out again says how it is used. From three quarters
//! on it is *dense*, and comes whole from then on; else it is *sparse*, and does not.
//!
//! ```text
//!   unknown --probe--> dense: whole, one in 4 .. 64 a probe <------> sparse: page by page, each time a probe
//!                        ^ ^
//!     out, written in most \ in, page by page, all at a time: it goes out altogether
//!     of its pages: no probe
//! ```
//!
//! The process's [`Score`] decides for a stretch of which nothing is known: it counts the last
//! probes of others that might have come whole. While it is low no stretch comes whole, whatever
//! was found out about it before, so a program that turns from running through its memory to random
//! accesses pays for a few stretches and not for all. In doubt a stretch comes page by page. If
//! that was wrong it costs some ten faults instead of one. To come whole wrongly loads 511 pages
//! and takes their memory.
//!
//! First touches are believed to be dense, as the kernel does, until pages on their way out say
//! otherwise: a page that is still zero was not written.

use crate::cache::Back;
use crate::sys::{HUGE_BYTES, HUGE_PAGES, PAGE_SHIFT};

/// Pages of a dense stretch that are used, at least.
pub const DENSE_PAGES: usize = HUGE_PAGES / 4 * 3;
/// The fewest kept copies that say whether the other pages of a huge page were written, too.
const COPIES_LEAST: usize = 8;
/// Where nothing is known of stretches that come whole because others are dense, at least one in
/// this many is a probe. Probes are rarer where a stretch that comes page by page could never come
/// whole again.
const UNKNOWN_INTERVAL: u32 = 8;
/// Probes that are under way at a time: beyond that the oldest is judged as it is.
const PROBES_MAX: usize = 32;

/// A score of how dense a process's stretches were found lately.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Score(u8);

impl Score {
    const MAX: u8 = 8;
    /// From here on stretches that are not known to be sparse come whole.
    const WHOLE: u8 = 3;
    /// Nothing is known, and the next dense stretch decides.
    const OPEN: Score = Score(Score::WHOLE - 1);
    const FULL: Score = Score(Score::MAX);

    fn learn(&mut self, is_dense: bool) {
        // Two sparse stretches in a row end the best reputation; it takes some dense ones to have
        // it again.
        self.0 = if is_dense { (self.0 + 1).min(Self::MAX) } else { self.0.saturating_sub(3) };
    }

    fn is_high(self) -> bool {
        self.0 >= Self::WHOLE
    }

    /// One in so many stretches that could come whole is a probe.
    fn interval(self) -> u32 {
        match self.0 {
            Self::MAX => 64,
            5..Self::MAX => 16,
            _ => 4,
        }
    }
}

/// The use of one stretch, as far as known: see `MiddleEntry::usage`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// The finding of its last probe: dense, or not.
    pub dense: Option<bool>,
    /// A probe of it is under way.
    pub is_probed: bool,
    /// The stretch was written nearly all over when it was in last: the next time there is nothing
    /// to find out.
    pub is_confirmed: bool,
    /// The stretch was touched for the first time when it came in, as a whole.
    pub is_first: bool,
}

impl Usage {
    pub fn from_bits(bits: u32) -> Usage {
        let dense = (bits & 1 != 0).then_some(bits & 2 != 0);
        Usage {
            dense,
            is_probed: bits & 4 != 0,
            is_confirmed: bits & 8 != 0,
            is_first: bits & 16 != 0,
        }
    }

    pub fn bits(self) -> u32 {
        let dense = self.dense.map_or(0, |dense| 1 | (dense as u32) << 1);
        dense
            | (self.is_probed as u32) << 2
            | (self.is_confirmed as u32) << 3
            | (self.is_first as u32) << 4
    }
}

/// The evidence of a huge page on its way out.
#[derive(Clone, Copy, Default)]
pub struct Evidence {
    /// Its pages, and those of them that were all zero.
    pub pages: usize,
    pub zeros: usize,
    /// Its kept copies that could be compared, and those that were not right any more.
    pub copies: usize,
    pub changed: usize,
}

impl Evidence {
    /// Counts a page on its way out of which there was a copy.
    pub fn note_copy(&mut self, back: Back) {
        self.copies += (back != Back::Gone) as usize;
        self.changed += (back == Back::Changed) as usize;
    }

    pub fn add(&mut self, more: Evidence) {
        self.pages += more.pages;
        self.zeros += more.zeros;
        self.copies += more.copies;
        self.changed += more.changed;
    }
}

/// A probe that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ended {
    pub stretch: usize,
    pub used: usize,
}

#[derive(Clone, Copy)]
struct Probe {
    /// Address of the stretch; 0: none.
    stretch: usize,
    /// One bit for each page that has come in.
    seen: [u64; HUGE_PAGES / 64],
}

impl Probe {
    const NONE: Probe = Probe { stretch: 0, seen: [0; HUGE_PAGES / 64] };

    fn used(&self) -> usize {
        self.seen.iter().map(|word| word.count_ones() as usize).sum()
    }
}

/// A process's knowledge, under the pager's lock.
pub struct Sampling {
    back: Score,
    first: Score,
    probes: [Probe; PROBES_MAX],
    next: usize,
    /// Counts stretches that might have come whole, to choose probes.
    count: u32,
    /// Stretches that came back whole since the last probe ended, and were not found to be dense
    /// without one.
    unproved: u64,
    /// Pages that the last probe found used.
    last_used: usize,
}

impl Sampling {
    pub const fn new() -> Sampling {
        Sampling {
            back: Score::OPEN,
            first: Score::FULL,
            probes: [Probe::NONE; PROBES_MAX],
            next: 0,
            count: 0,
            unproved: 0,
            last_used: HUGE_PAGES,
        }
    }

    /// Whether a stretch that is out and has `occupied` pages with contents may come whole, as far
    /// as known.
    pub fn may_come_whole(&self, usage: Usage, occupied: usize) -> bool {
        if occupied == 0 {
            return self.first.is_high();
        }
        occupied >= DENSE_PAGES && self.back.is_high() && usage.dense != Some(false)
    }

    /// All pages of a stretch are in, some of which came page by page: such a stretch is dense,
    /// whether or not it was a probe.
    pub fn saw_full(&mut self, usage: Usage) -> Usage {
        self.back.learn(true);
        Usage { dense: Some(true), ..usage }
    }

    /// Whether a stretch with contents that would come whole is to be a probe. `is_final`: it could
    /// never come whole again.
    pub fn is_probe(&mut self, usage: Usage, is_final: bool) -> bool {
        if usage.is_confirmed {
            return false;
        }
        self.count = self.count.wrapping_add(1);
        // More probes where a stretch is only believed to be dense.
        let most = if usage.dense.is_none() { UNKNOWN_INTERVAL } else { u32::MAX };
        let interval =
            if is_final { 2 * Score::FULL.interval() } else { self.back.interval().min(most) };
        let probes = self.count.is_multiple_of(interval);
        self.unproved += !probes as u64;
        probes
    }

    /// Begins a probe: a stretch without a page in memory is about to come page by page. Returns a
    /// probe that had to end for it.
    #[must_use]
    pub fn begin_probe(&mut self, stretch: usize) -> Option<Ended> {
        debug_assert!(stretch.is_multiple_of(HUGE_BYTES));
        let known = self.probes.iter().position(|p| p.stretch == stretch);
        let place = known
            .or_else(|| self.probes.iter().position(|p| p.stretch == 0))
            .unwrap_or_else(|| {
                self.next = (self.next + 1) % PROBES_MAX;
                self.next
            });
        let old = core::mem::replace(&mut self.probes[place], Probe { stretch, ..Probe::NONE });
        (old.stretch != 0 && old.stretch != stretch)
            .then(|| Ended { stretch: old.stretch, used: old.used() })
    }

    /// Notes that `pages` pages from `page` on, in the probed stretch of `page`, have come in.
    /// Returns the probe if that decides it: while nothing comes whole, as soon as the stretch is
    /// dense.
    #[must_use]
    pub fn saw(&mut self, page: usize, pages: usize) -> Option<Ended> {
        let stretch = page / HUGE_BYTES * HUGE_BYTES;
        let probe = self.probes.iter_mut().find(|p| p.stretch == stretch)?;
        let first = (page - stretch) >> PAGE_SHIFT;
        for i in first..(first + pages).min(HUGE_PAGES) {
            probe.seen[i / 64] |= 1 << (i % 64);
        }
        let enough = if self.back.is_high() { HUGE_PAGES } else { DENSE_PAGES };
        if probe.used() >= enough { self.end_probe(stretch) } else { None }
    }

    /// Ends the probe of `stretch`.
    #[must_use]
    pub fn end_probe(&mut self, stretch: usize) -> Option<Ended> {
        let probe = self.probes.iter_mut().find(|p| p.stretch == stretch)?;
        let used = core::mem::replace(probe, Probe::NONE).used();
        Some(Ended { stretch, used })
    }

    /// Takes the finding of a stretch's probe into account. Returns the use of the stretch as known
    /// now, and an estimate of the pages that were brought for nothing with stretches that came
    /// whole meanwhile.
    pub fn judge(&mut self, usage: Usage, used: usize) -> (Usage, u64) {
        let is_dense = used >= DENSE_PAGES;
        let wasted = match usage.dense {
            // This is nothing new, and says nothing about stretches that come whole.
            Some(false) if !is_dense => 0,
            _ if usage.is_first => {
                self.first.learn(is_dense);
                0
            }
            _ => {
                self.back.learn(is_dense);
                // These stretches came between two probes, so their use is taken to lie between the
                // two findings.
                let likely = (core::mem::replace(&mut self.last_used, used) + used) / 2;
                core::mem::take(&mut self.unproved) * (HUGE_PAGES - likely) as u64
            }
        };
        let known = Usage { dense: Some(is_dense), is_probed: false, is_first: false, ..usage };
        (known, wasted)
    }

    /// Takes the evidence of a huge page on its way out into account. Returns the same as
    /// [`Self::judge`].
    pub fn learn(&mut self, usage: Usage, e: Evidence) -> (Usage, u64) {
        let mut known = Usage { is_first: false, ..usage };
        if e.pages < HUGE_PAGES {
            return (known, 0);
        }
        let written = e.pages - e.zeros;
        if usage.is_first {
            let is_dense = written >= DENSE_PAGES;
            self.first.learn(is_dense);
            known.dense = if is_dense { known.dense } else { Some(false) };
            return (known, e.zeros as u64);
        }
        known.is_confirmed =
            e.copies >= COPIES_LEAST && e.changed * HUGE_PAGES >= e.copies * DENSE_PAGES;
        if known.is_confirmed {
            known.dense = Some(true);
            self.unproved = self.unproved.saturating_sub(!usage.is_confirmed as u64);
        }
        (known, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: usize = 0x7f00_0000_0000;

    fn at(i: usize) -> usize {
        AT + i * HUGE_BYTES
    }

    /// A program as the pager sees it: stretches that all come and go, of which `used` pages are
    /// touched. Returns for each of `rounds` comings whether it was whole.
    fn run(u: &mut Sampling, usages: &mut [Usage], rounds: usize, used: usize) -> Vec<bool> {
        let mut whole = Vec::new();
        for i in 0..rounds {
            let n = i % usages.len();
            let comes_whole =
                u.may_come_whole(usages[n], HUGE_PAGES) && !u.is_probe(usages[n], false);
            whole.push(comes_whole);
            if !comes_whole {
                assert_eq!(u.begin_probe(at(n)), None);
                let ended = u.saw(at(n), used).or_else(|| u.end_probe(at(n))).unwrap();
                assert_eq!(ended, Ended { stretch: at(n), used });
                usages[n] = u.judge(usages[n], used).0;
            }
        }
        whole
    }

    fn count(whole: &[bool]) -> usize {
        whole.iter().filter(|w| **w).count()
    }

    #[test]
    fn what_is_used_as_a_whole_soon_comes_whole() {
        let (mut u, mut usages) = (Sampling::new(), [Usage::default(); 40]);
        let whole = run(&mut u, &mut usages, 400, HUGE_PAGES);
        assert!(!whole[0] && whole[1], "{whole:?}");
        assert!(count(&whole[100..]) >= 290, "{}", count(&whole[100..]));
    }

    #[test]
    fn what_is_used_page_by_page_soon_comes_so() {
        let (mut u, mut usages) = (Sampling::new(), [Usage::default(); 40]);
        assert_eq!(count(&run(&mut u, &mut usages, 400, 3)), 0);
        // It comes whole again once it is used so.
        let whole = run(&mut u, &mut usages, 400, 500);
        assert_eq!((count(&whole[..40]), count(&whole[120..]) >= 260), (0, true), "{whole:?}");
        // It soon comes page by page again once it is used so, whatever is known of each stretch.
        let whole = run(&mut u, &mut usages, 1000, 3);
        assert!(count(&whole) <= 100, "{}", count(&whole));
        assert_eq!(count(&whole[200..]), 0);
    }

    #[test]
    fn some_that_are_sparse_do_not_make_the_others_so() {
        let (mut u, mut dense, mut sparse) =
            (Sampling::new(), [Usage::default(); 20], [Usage::default(); 20]);
        let mut whole = (0, 0);
        for _ in 0..50 {
            whole.0 += count(&run(&mut u, &mut dense, 20, HUGE_PAGES));
            whole.1 += count(&run(&mut u, &mut sparse, 20, 10));
        }
        assert!(whole.0 > 700 && whole.1 < 150, "{whole:?}");
    }

    #[test]
    fn first_touches_are_whole_until_most_of_them_stay_zero() {
        let mut u = Sampling::new();
        let first = Usage { is_first: true, ..Usage::default() };
        let evidence = |zeros| Evidence { pages: HUGE_PAGES, zeros, ..Evidence::default() };
        assert!(u.may_come_whole(Usage::default(), 0));
        assert_eq!(u.learn(first, evidence(100)), (Usage::default(), 100));
        let (known, wasted) = u.learn(first, evidence(500));
        assert_eq!((known.dense, wasted), (Some(false), 500));
        assert_eq!(
            u.learn(first, Evidence { pages: 100, zeros: 90, ..evidence(0) }).1,
            0,
            "a part of one"
        );
        u.learn(first, evidence(500));
        assert!(!u.may_come_whole(Usage::default(), 0));
        // Stretches that come page by page are evidence of first touches, too.
        for _ in 0..3 {
            u.judge(first, HUGE_PAGES);
        }
        assert!(u.may_come_whole(Usage::default(), 0));
    }

    #[test]
    fn what_was_written_all_over_needs_no_probe() {
        let mut u = Sampling::new();
        u.judge(Usage::default(), HUGE_PAGES);
        let evidence = |changed| Evidence { pages: HUGE_PAGES, zeros: 0, copies: 16, changed };
        let (known, _) = u.learn(Usage::default(), evidence(16));
        assert!(known.is_confirmed && known.dense == Some(true));
        assert!((0..1000).all(|_| !u.is_probe(known, false)));
        let (known, _) = u.learn(known, evidence(3));
        assert!(!known.is_confirmed && known.dense == Some(true));
        assert!(
            (0..100).any(|_| u.is_probe(known, false))
                && (0..100).all(|_| !u.is_probe(known, true))
        );
    }

    #[test]
    fn what_was_wasted_is_what_probes_did_not_use() {
        let (mut u, dense) = (Sampling::new(), Usage { dense: Some(true), ..Usage::default() });
        u.judge(dense, HUGE_PAGES);
        let came = (0..3).filter(|_| !u.is_probe(dense, false)).count() as u64;
        assert_eq!(
            u.judge(dense, 12),
            (Usage { dense: Some(false), ..dense }, came * 250),
            "less and less of them"
        );
        assert_eq!(u.judge(dense, 12).1, 0, "counted already");
        let came = (0..9).filter(|_| !u.is_probe(dense, false)).count() as u64;
        assert_eq!(u.judge(dense, 12).1, came * 500);
        assert!(!u.may_come_whole(dense, HUGE_PAGES) && !u.may_come_whole(dense, DENSE_PAGES - 1));
    }

    #[test]
    fn what_is_never_out_as_a_whole_may_come_to_be() {
        let (mut u, mut usage) = (Sampling::new(), Usage::default());
        for _ in 0..3 {
            (usage, _) = u.judge(usage, 9);
        }
        let mut fulls = 0;
        while !u.may_come_whole(usage, HUGE_PAGES) {
            usage = u.saw_full(usage);
            fulls += 1;
        }
        assert_eq!((fulls, usage.dense), (3, Some(true)));
    }

    #[test]
    fn probes_are_few_and_count_pages_once() {
        let mut u = Sampling::new();
        for i in 0..PROBES_MAX {
            assert_eq!(u.begin_probe(at(i)), None);
        }
        // The last of these pages are another stretch's.
        for (page, pages) in [(5, 3), (6, 3), (511, 64)] {
            assert_eq!(u.saw(at(2) + page * 0x1000, pages), None);
        }
        assert_eq!(u.end_probe(at(2)), Some(Ended { stretch: at(2), used: 5 }));
        assert_eq!((u.saw(at(2), 7), u.begin_probe(at(2))), (None, None));
        assert_eq!(u.saw(at(1), 9), None);
        assert_eq!(u.begin_probe(at(1)), None, "begins anew");
        assert_eq!(u.saw(at(1), 2), None);
        let ended = u.begin_probe(at(50)).unwrap();
        assert_eq!((ended, u.end_probe(ended.stretch)), (Ended { stretch: at(1), used: 2 }, None));
        assert_eq!(u.saw(at(3), DENSE_PAGES), Some(Ended { stretch: at(3), used: DENSE_PAGES }));
        (0..3).for_each(|_| u.back.learn(true));
        assert_eq!(u.saw(at(4), DENSE_PAGES), None, "what is wasted is to be known");
        assert_eq!(u.saw(at(4), HUGE_PAGES).unwrap().used, HUGE_PAGES);
        for bits in 0..32 {
            assert_eq!(Usage::from_bits(Usage::from_bits(bits).bits()), Usage::from_bits(bits));
        }
    }
}
