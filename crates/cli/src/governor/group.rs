//! Lets the limit of a run follow the room of its memory group, where it was taken from one.
//!
//! ```text
//!  group:  |---- used by others ----|---- the run holds ----|-------- free --------|  its limit
//!                                   |---- the limit of the run ----|---- left -----|
//! ```
//! *Left* is what the group has free once the run holds all that its limit allows. At first that is
//! the margin. Page tables, kernel memory, shared memory, and other processes of the group take
//! from it later, and a group without any is one in which the kernel kills. When less than half of
//! the margin is left, the limit goes down. When more than the whole margin is left, it comes up
//! again. Either way it goes to where three quarters of the margin are left. The new limit follows
//! from what the run holds and not from the limit before, so a run that has not obeyed yet is not
//! lowered once more.
//!
//! Amounts are read one after another while processes begin and end, and a process that ends counts
//! no more while the kernel still frees its memory. So the limit changes only when two looks in a
//! row agree, or when hardly anything is free now.
//!
//! A user who sets the limit has decided; then this thread ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use super::pace::Pace;
use crate::budget::Levels;
use crate::control::run::Run;
use crate::options::MIN_MEMORY_BYTES;
use crate::procfs;
use crate::size::PAGE_BYTES;

/// The longest time between two looks, however dear they are: the kernel kills in a group that is
/// full.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// The part of its first limit, as a divisor, that a run keeps: with less a program stands still,
/// and what took the rest will not stop there.
const KEPT_PART: i64 = 4;
/// The part of its first limit, as a divisor, by which a run grows at a look: all of it in some
/// seconds, so that memory that others need again at once is not given away meanwhile.
const RAISED_PART: i64 = 32;
/// The part of the room that is left, as a divisor, which a run takes at a look at most: with half
/// of it, two runs of one group would take all, give it back, and evict for that again and again.
const SHARED_PART: i64 = 8;

/// Watches the group. Without a thread for it, or without a group that can be read, the limit stays
/// as it is.
pub fn start(run: Arc<Run>, margin_bytes: u64) {
    // Before anybody can set another.
    let first_pages = run.tree.limit();
    super::in_background("uzswap-group", move || {
        let Some(levels) = Levels::find_limited() else { return };
        let mut limit = Limit::new(first_pages, (margin_bytes / PAGE_BYTES) as i64);
        let mut pace = Pace::default();
        loop {
            pace.begin();
            let held_pages = held(&run);
            // A limit that was taken off (`memory.high` put back to `max`) leaves all free.
            let free = levels.tightest().map_or(u64::MAX, |g| g.available_bytes);
            if !limit.follow(&run, held_pages, (free / PAGE_BYTES) as i64) {
                return;
            }
            thread::sleep(pace.pause().min(LONGEST_PAUSE));
        }
    });
}

/// Pages that the processes of a run hold. Those of processes that do not say it, dormant ones and
/// one that begins to page, are asked of the kernel, and first: a process that says it meanwhile
/// counts twice, which lowers nothing. Memory that they share counts for each of them, but for no
/// more than they have reserved.
fn held(run: &Run) -> i64 {
    let silent = run.live().filter(|(_, slot)| slot.held_pages.load(Ordering::Acquire) <= 0);
    let silent_bytes: u64 = silent.map(|(pid, _)| procfs::anonymous_bytes(pid).unwrap_or(0)).sum();
    let [said_pages, _] = run.tree.said_pages();
    said_pages.saturating_add((silent_bytes / PAGE_BYTES) as i64).clamp(0, run.tree.used().max(0))
}

/// The limit of a run, in pages, as it follows the room.
struct Limit {
    first_pages: i64,
    margin_pages: i64,
    now_pages: i64,
    /// The limit that the last look would have had.
    wanted_before: i64,
}

impl Limit {
    fn new(first_pages: i64, margin_pages: i64) -> Limit {
        Limit { first_pages, margin_pages, now_pages: first_pages, wanted_before: i64::MAX }
    }

    /// Sets the limit anew after a look, if it changes. Returns false where somebody else has set
    /// it.
    fn follow(&mut self, run: &Run, held_pages: i64, free_pages: i64) -> bool {
        let (before, tree) = (self.now_pages, run.tree);
        if tree.lowest_limit_pages.load(Ordering::Acquire) < 0 {
            return false;
        }
        let now = self.next(held_pages, free_pages);
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        if tree.limit_pages.compare_exchange(before, now, success, failure).is_err() {
            // From here on it is the user's, and said to be.
            tree.lowest_limit_pages.store(0, Ordering::Release);
            return false;
        }
        if now < before {
            let lowest = tree.lowest_limit_pages.load(Ordering::Acquire);
            if lowest == 0 || now < lowest {
                tree.lowest_limit_pages.store(now, Ordering::Release);
            }
            // Dormant processes wait for that; the others look by themselves.
            run.live().for_each(|(_, slot)| slot.orders.ring());
        }
        true
    }

    /// The limit after a look at what the run holds and its group has free.
    fn next(&mut self, held_pages: i64, free_pages: i64) -> i64 {
        let (now, margin) = (self.now_pages, self.margin_pages);
        let target = margin - margin / 4;
        let wanted = held_pages.saturating_add(free_pages).saturating_sub(target);
        let before = std::mem::replace(&mut self.wanted_before, wanted);
        let (most, least) = (wanted.max(before), wanted.min(before));
        let left = |wanted: i64| wanted.saturating_add(target).saturating_sub(now);
        // Where it rises, the kernel still frees the memory of a process that has ended.
        self.now_pages = if left(most) < margin / 2 && wanted <= before {
            self.lowered_to(most)
        } else if free_pages < margin / 2 && wanted < now {
            // So little is free that the limit goes down without a second look.
            self.lowered_to(wanted.max(now - (target - free_pages)))
        } else if left(least) > margin {
            // A part of what is left: other runs of the group take theirs at the same time.
            let step = (self.first_pages / RAISED_PART).min((least - now) / SHARED_PART).max(1);
            least.min(now + step).min(self.first_pages)
        } else {
            now
        };
        self.now_pages
    }

    fn lowered_to(&self, pages: i64) -> i64 {
        let least = (self.first_pages / KEPT_PART).max((MIN_MEMORY_BYTES / PAGE_BYTES) as i64);
        pages.max(least).min(self.now_pages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::ControlBlock;
    use std::time::Instant;
    use uzswap::control::Settings;

    const FIRST: i64 = 40_000;
    const MARGIN: i64 = 3072;
    const TARGET: i64 = 2304;

    /// The limits after looks at a group in which others take so much more than at the start, while
    /// the run holds so much.
    fn series(limit: &mut Limit, looks: &[(i64, i64)]) -> Vec<i64> {
        let free = |others, held| FIRST + MARGIN - others - held;
        looks.iter().map(|(others, held)| limit.next(*held, free(others, held))).collect()
    }

    #[test]
    fn the_limit_follows_the_room_down_and_up_again() {
        let mut limit = Limit::new(FIRST, MARGIN);
        let small = series(&mut limit, &[(0, 0), (1000, 1000), (1500, FIRST), (1500, FIRST)]);
        assert_eq!(small, [FIRST; 4], "for that there is a margin");
        let lower = FIRST + MARGIN - TARGET - 16_384;
        let looks = [(16_384, 1000), (16_384, 1000), (16_384, 20_000), (17_000, lower)];
        assert_eq!(series(&mut limit, &looks), [FIRST, lower, lower, lower]);
        let up = series(&mut limit, &[(0, lower); 40]);
        assert_eq!(up[..3], [lower, lower + FIRST / 32, lower + FIRST / 16]);
        assert_eq!(*up.last().unwrap(), FIRST, "and no further");
    }

    #[test]
    fn a_run_that_has_not_obeyed_yet_is_not_lowered_again() {
        let mut limit = Limit::new(FIRST, MARGIN);
        let lower = FIRST + MARGIN - TARGET - 2500;
        // Almost nothing is free, and one look has to do.
        assert_eq!(series(&mut limit, &[(0, FIRST), (2500, FIRST)]), [FIRST, lower]);
        assert_eq!(series(&mut limit, &[(2500, FIRST); 5]), [lower; 5]);
        assert_eq!(series(&mut limit, &[(2500, lower)]), [lower]);
    }

    #[test]
    fn a_process_that_ends_lowers_nothing() {
        let mut limit = Limit::new(FIRST, MARGIN);
        // The ended process is not counted any more, while the kernel still frees its memory.
        let looks = [MARGIN, MARGIN + 100, MARGIN + 9000, FIRST + MARGIN, FIRST];
        for (held, free) in [FIRST, 0, 0, 0, 0].into_iter().zip(looks) {
            assert_eq!(limit.next(held, free), FIRST, "{held} {free}");
        }
    }

    #[test]
    fn a_run_keeps_a_part_of_its_limit() {
        let mut limit = Limit::new(FIRST, MARGIN);
        assert_eq!(series(&mut limit, &[(FIRST, 100); 3])[2], FIRST / 4);
        let mut small = Limit::new(5000, MARGIN);
        assert_eq!([0; 3].map(|free| small.next(0, free)), [4096; 3], "the least that works");
    }

    #[test]
    fn a_limit_that_the_user_sets_stays() {
        let block: &'static ControlBlock =
            Box::leak(Box::new(ControlBlock::create(&Settings::new()).unwrap()));
        let (tree, command) = (block.tree(), vec!["prog".to_string()]);
        tree.limit_pages.store(FIRST, Ordering::Relaxed);
        let (id, control_fd) = (std::process::id(), block.fd());
        let run = Run { id, tree, control_fd, command, started: Instant::now() };
        let slot = tree.claim(id).unwrap();
        let mut limit = Limit::new(FIRST, MARGIN);
        let rung = slot.orders.rung();
        assert!(limit.follow(&run, 0, 20_000) && limit.follow(&run, 0, 20_000));
        let lower = 20_000 - TARGET;
        assert_eq!(tree.limit(), lower);
        assert_eq!(tree.lowest_limit_pages.load(Ordering::Relaxed), lower);
        assert_ne!(slot.orders.rung(), rung, "the dormant are woken");
        tree.limit_pages.store(30_000, Ordering::Relaxed);
        assert!(!limit.follow(&run, 0, 10_000));
        assert_eq!(tree.limit(), 30_000);
        assert_eq!(tree.lowest_limit_pages.load(Ordering::Relaxed), 0);
    }
}
