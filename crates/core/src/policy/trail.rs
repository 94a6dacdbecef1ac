//! The trail of an access that runs through memory: windows that came in one after the other, which
//! go first.
//!
//! ```text
//!   a thread reads on    ... |64|64|64|64|64|64|64| >
//!                             ^ taken first         the last `gap` pages: not yet
//! ```
//!
//! A program that goes round and round through more memory than there is needs last the pages that
//! it has just left. Every policy that goes by age keeps exactly those, and has dropped them when
//! the program comes round. So pages that came in by windows make room for the next ones, and the
//! rest of memory stays: where a program goes through twice as much as there is, a part stays and
//! never has to come back.
//!
//! That is wrong where the rest is no longer used: then the pages that are gone through now should
//! have the memory. Touches are not seen, so the hand tries the rest of memory. While most of the
//! pages that it takes there come back, the rest is in use, and the trail is on. The hand still
//! takes one page in [`SHARE`], so that a change is noticed. A page's word says which of the two
//! took it (`PageEntry::was_from_trail`).
//!
//! Pages that the program calls cold (MADV_COLD) go before all others, once, whether the trail is
//! on or not.

use super::WINDOW_LEAST_PAGES;

/// Windows that the trail knows.
const RUNS_MAX: usize = 64;
/// While the trail is on the hand takes one page in this many, and the trail gives the others.
pub const SHARE: i64 = 4;
/// Pages that the hand takes in its turn: they leave as large a hole as a window brings.
const HAND_PAGES: i64 = 64;
/// The gap: the trail's last pages, which are left alone because the evictor may have brought them
/// before the program touches them. It is this part of the limit, as a divisor, but not fewer pages
/// than the least.
const GAP_PART: i64 = 32;
const GAP_LEAST_PAGES: i64 = 256;
/// Runs that are left alone whatever their size.
const GAP_RUNS: usize = 2;
/// The length of an epoch, in pages that the hand takes: a part of the limit, as a divisor, but not
/// fewer pages than the least. At its end the share of them that came back turns the trail on or
/// off, and the counts are halved.
const EPOCH_PART: i64 = 16;
const EPOCH_LEAST_PAGES: i64 = 256;
/// The trail turns on when at least this percentage of the hand's pages come back, and off again
/// below the second one. The distance keeps it from turning to and fro.
const ON_PERCENT: u64 = 70;
const OFF_PERCENT: u64 = 40;

/// Runs of cold pages that are remembered. Where a program names more before memory is short, the
/// oldest are forgotten, and go in their turn.
const ADVISED_MAX: usize = 16;

/// Consecutive pages, by number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Run {
    pub start: usize,
    pub pages: usize,
}

impl Run {
    /// Goes on `pages` pages, to the end at most; says how many those are.
    fn skip(&mut self, pages: usize) -> usize {
        let pages = pages.min(self.pages);
        *self = Run { start: self.start + pages, pages: self.pages - pages };
        pages
    }
}

/// Windows that came in one after the other, and whether they go first.
pub struct Trail {
    runs: [Run; RUNS_MAX],
    oldest: usize,
    len: usize,
    pages: usize,
    /// Runs that the program calls cold, the oldest first.
    advised: [Run; ADVISED_MAX],
    advised_len: usize,
    /// Pages by which the trail is ahead of its share, or behind.
    ahead: i64,
    is_hands_turn: bool,
    /// Pages that the hand took, and pages among them that came back: in this epoch, and less and
    /// less of those before.
    taken: u64,
    came_back: u64,
    /// Pages that the hand may take before the epoch ends.
    left: i64,
    is_on: bool,
}

impl Default for Trail {
    fn default() -> Self {
        Self::new()
    }
}

impl Trail {
    pub const fn new() -> Trail {
        Trail {
            runs: [Run { start: 0, pages: 0 }; RUNS_MAX],
            oldest: 0,
            len: 0,
            pages: 0,
            advised: [Run { start: 0, pages: 0 }; ADVISED_MAX],
            advised_len: 0,
            ahead: 0,
            is_hands_turn: false,
            taken: 0,
            came_back: 0,
            left: 0,
            is_on: false,
        }
    }

    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Adds a window that came in, of a thread whose access is sequential.
    pub fn follow(&mut self, run: Run, limit_pages: i64) {
        if run.pages < WINDOW_LEAST_PAGES {
            return;
        }
        // Windows too far behind stay, as part of the rest: with all of memory for a trail, the
        // oldest page would go first again.
        while self.len == RUNS_MAX
            || self.len > GAP_RUNS && self.pages as i64 > 2 * gap(limit_pages)
        {
            self.drop_oldest();
        }
        self.runs[(self.oldest + self.len) % RUNS_MAX] = run;
        self.len += 1;
        self.pages += run.pages;
    }

    /// The pages of `run` are to go before all others, after those of which that was said before.
    pub fn advise(&mut self, run: Run) {
        if run.pages == 0 {
            return;
        }
        if self.advised_len == ADVISED_MAX {
            self.drop_advised();
        }
        self.advised[self.advised_len] = run;
        self.advised_len += 1;
    }

    fn drop_advised(&mut self) {
        self.advised.rotate_left(1);
        self.advised_len -= 1;
    }

    /// The run that is to go next, if one is cold or it is the trail's turn. The caller says by
    /// `took` how far it has got.
    pub fn next(&self, limit_pages: i64) -> Option<Run> {
        if self.advised_len > 0 {
            return Some(self.advised[0]);
        }
        let is_long = self.pages as i64 > gap(limit_pages) && self.len > GAP_RUNS;
        (self.is_on && is_long && !self.is_hands_turn).then(|| self.runs[self.oldest])
    }

    /// Notes that `taken` of the first `looked` pages of the run that [`Trail::next`] returned were
    /// taken, and that no more are to be had of those.
    pub fn took(&mut self, looked: usize, taken: usize) {
        if self.advised_len > 0 {
            self.advised[0].skip(looked);
            if self.advised[0].pages == 0 {
                self.drop_advised();
            }
            return;
        }
        let run = &mut self.runs[self.oldest];
        self.pages -= run.skip(looked);
        if run.pages == 0 {
            self.drop_oldest();
        }
        self.ahead += taken as i64;
        self.is_hands_turn |= self.ahead >= (SHARE - 1) * HAND_PAGES;
    }

    fn drop_oldest(&mut self) {
        self.pages -= self.runs[self.oldest].pages;
        self.oldest = (self.oldest + 1) % RUNS_MAX;
        self.len -= 1;
    }

    /// Notes that the hand has taken `taken` pages of the rest, or found none. `came_back`: pages
    /// that it had taken before and that came back since the last time.
    pub fn learn(&mut self, taken: usize, came_back: usize, limit_pages: i64) {
        let shares = (SHARE - 1) * taken as i64;
        self.ahead = (self.ahead - shares).max(-shares);
        self.is_hands_turn &= self.ahead > 0 && taken > 0;
        self.taken += taken as u64;
        self.came_back += came_back as u64;
        self.left -= taken as i64;
        if self.left > 0 || self.taken == 0 {
            return;
        }
        self.left = (limit_pages / EPOCH_PART).max(EPOCH_LEAST_PAGES);
        let percent = self.came_back * 100 / self.taken;
        self.is_on = percent >= if self.is_on { OFF_PERCENT } else { ON_PERCENT };
        (self.taken, self.came_back) = (self.taken / 2, self.came_back / 2);
    }
}

/// Pages that the trail leaves alone.
fn gap(limit_pages: i64) -> i64 {
    (limit_pages / GAP_PART).max(GAP_LEAST_PAGES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: i64 = 1600;

    fn learned(percent: usize, epochs: usize) -> Trail {
        let mut t = Trail::new();
        learn(&mut t, percent, epochs);
        t
    }

    fn learn(t: &mut Trail, percent: usize, epochs: usize) {
        (0..epochs).for_each(|_| t.learn(256, 256 * percent / 100, LIMIT));
    }

    fn windows(t: &mut Trail, runs: usize) {
        (0..runs).for_each(|i| t.follow(Run { start: i * 64, pages: 64 }, LIMIT));
    }

    #[test]
    fn cold_pages_go_before_all_others_and_once() {
        let mut t = Trail::new();
        let run = |start, pages| Run { start, pages };
        t.advise(run(7, 0));
        assert_eq!(t.next(LIMIT), None);
        (0..=ADVISED_MAX).for_each(|i| t.advise(run(100 * i, 50)));
        assert_eq!(t.next(LIMIT), Some(run(100, 50)), "the oldest is forgotten");
        t.took(20, 3);
        assert_eq!(t.next(LIMIT), Some(run(120, 30)));
        t.took(99, 30);
        assert_eq!(t.next(LIMIT), Some(run(200, 50)));
        (1..ADVISED_MAX).for_each(|_| t.took(50, 50));
        assert_eq!((t.next(LIMIT), t.ahead), (None, 0));
    }

    #[test]
    fn the_trail_is_on_while_most_of_the_rest_comes_back() {
        assert!(!learned(60, 20).is_on());
        let mut t = learned(0, 10);
        learn(&mut t, 100, 1);
        assert!(!t.is_on(), "not so soon");
        learn(&mut t, 100, 2);
        assert!(t.is_on());
        learn(&mut t, 50, 20);
        assert!(t.is_on(), "nor the other way");
        learn(&mut t, 0, 1);
        assert!(!t.is_on());
    }

    #[test]
    fn the_oldest_windows_go_first_but_not_the_last_ones() {
        let mut t = learned(100, 3);
        windows(&mut t, 4);
        assert_eq!(t.next(LIMIT), None, "four windows are the gap");
        windows(&mut t, 2);
        assert_eq!(t.next(LIMIT), Some(Run { start: 0, pages: 64 }));
        t.took(32, 32);
        assert_eq!(t.next(LIMIT), Some(Run { start: 32, pages: 32 }));
        t.took(40, 0);
        assert_eq!(t.next(LIMIT), Some(Run { start: 64, pages: 64 }));
        t.took(64, 64);
        assert_eq!((t.next(LIMIT), t.pages), (None, 256));
        // The last two windows stay, however large they are.
        let mut huge = learned(100, 3);
        (0..2).for_each(|i| huge.follow(Run { start: i * 512, pages: 512 }, LIMIT));
        assert_eq!(huge.next(LIMIT), None);
    }

    #[test]
    fn what_is_too_long_stays_and_what_is_short_is_no_trail() {
        let mut t = learned(100, 3);
        windows(&mut t, 20);
        assert_eq!((t.len, t.pages), (9, 576));
        assert_eq!(t.next(LIMIT).map(|r| r.start), Some(11 * 64));
        let mut long = learned(100, 3);
        (0..100).for_each(|i| long.follow(Run { start: i * 64, pages: 64 }, 1 << 30));
        assert_eq!(long.len, RUNS_MAX);
        let mut none = learned(100, 3);
        (0..1000)
            .for_each(|i| none.follow(Run { start: i * 9, pages: WINDOW_LEAST_PAGES - 1 }, LIMIT));
        assert_eq!(none.next(0), None);
    }

    #[test]
    fn the_hand_has_its_share() {
        let mut t = learned(100, 3);
        let (mut behind, mut by_hand) = (0, 0);
        for i in 0..10_000 {
            t.follow(Run { start: i * 64, pages: 64 }, LIMIT);
            while t.next(LIMIT).is_some() {
                t.took(64, 64);
                behind += 64;
            }
            while t.is_hands_turn {
                t.learn(32, 32, LIMIT);
                by_hand += 32;
            }
        }
        assert_eq!(behind / by_hand, SHARE - 1);
        // The hand has no more than that if it takes a huge page at a time.
        let mut taken = [0, 0];
        for i in 0..1000 {
            t.follow(Run { start: i * 512, pages: 512 }, LIMIT);
            if t.next(LIMIT).is_some() {
                t.took(512, 512);
                taken[0] += 1;
            } else {
                t.learn(512, 512, LIMIT);
                taken[1] += 1;
            }
        }
        assert!((2..=4).contains(&(taken[0] / taken[1])), "{taken:?}");
        // A hand that finds nothing does not stop the trail.
        t.ahead = 1_000_000;
        t.is_hands_turn = true;
        t.learn(0, 0, LIMIT);
        windows(&mut t, 5);
        assert!(t.next(LIMIT).is_some());
    }

    #[test]
    fn an_old_rest_makes_room_in_the_end() {
        // No page that the hand takes comes back: a quarter of the memory later the trail is off.
        let mut t = learned(100, 10);
        let mut taken = 0;
        while t.is_on() {
            t.learn(32, 0, LIMIT);
            taken += 32;
        }
        assert!(taken as i64 <= 3 * EPOCH_LEAST_PAGES, "{taken}");
    }
}
