//! A wish of another process of the run: that a few pages of this one are in their place while it
//! reads or writes them (`process_vm_readv` and its like). The kernel shows it nothing where a page
//! is out.
//!
//! ```text
//!   who reads                                    the evictor of the process that is read
//!   FREE ── make ──> CLAIMED ──> MADE ─────────> brings the pages in, holds them
//!   wait_until_granted <────────────── GRANTED <──┘ grant
//!   reads again
//!   end ──> FREE ──────────────────────────────> lets them go; so it does after HELD_NS
//! ```
//!
//! There is one wish at a time, and each has a number of its own. A process that has ended or
//! stands still with its wish keeps nobody from the next one: the evictor ends what is old. An
//! evictor that stands still (its process is stopped) costs its readers one wait of
//! [`PATIENCE_NS`]: as long as that wish has no answer, nobody waits for another.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::sys::sync::{futex_wait_shared, futex_wake_shared};
use crate::sys::{ADDRESS_END, PAGE_SIZE, now_ns};

/// Pages that one wish can be for: as many as the buffer of a small call, so that holding them
/// matters to no limit that a process can live with.
pub const WISHED_MOST: usize = 64;
/// How long pages are held for a reader that does not say that it has read: many times what a copy
/// of them takes, so that one which waits for a processor meanwhile finds them.
pub const HELD_NS: u64 = 100_000_000;
/// How long a reader waits for the evictor: ten of its longest pauses.
pub const PATIENCE_NS: u64 = 500_000_000;
/// How often a reader that waits looks whether there is still somebody to answer.
const LOOK_NS: u64 = 20_000_000;

/// Of a state: what has become of the wish. The other bits are its number.
const PHASE: u32 = 3;
const FREE: u32 = 0;
const CLAIMED: u32 = 1;
const MADE: u32 = 2;
const GRANTED: u32 = 3;

/// The place for a wish. All-zero: there is none.
#[repr(C)]
pub struct Wish {
    state: AtomicU32,
    pad: AtomicU32,
    start: AtomicU64,
    end: AtomicU64,
    /// When it was made.
    at_ns: AtomicU64,
}

/// The number of a wish.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Number(u32);

impl Wish {
    /// Wishes that the pages of `[start, end)` be there, and waits until they are. `None`: nobody
    /// answers, or too many wish; `is_there` says whether there is somebody who could.
    pub fn make(&self, start: usize, end: usize, is_there: impl Fn() -> bool) -> Option<Number> {
        let until = now_ns() + PATIENCE_NS;
        while now_ns() < until && is_there() {
            let seen = self.state.load(Ordering::Acquire);
            if self.is_unanswered(seen) {
                return None;
            }
            if !Wish::is_over(seen) {
                futex_wait_shared(&self.state, seen, Some(LOOK_NS));
                continue;
            }
            let number = seen.wrapping_add(PHASE + 1);
            if !self.goes(seen, number | CLAIMED) {
                continue;
            }
            self.start.store(start as u64, Ordering::Relaxed);
            self.end.store(end as u64, Ordering::Relaxed);
            self.at_ns.store(now_ns(), Ordering::Relaxed);
            if self.goes(number | CLAIMED, number | MADE) {
                return self.wait_until_granted(number, is_there);
            }
        }
        None
    }

    /// Whether a wish was made so long ago that nobody can be expected to answer. A time that is
    /// still to come is nonsense.
    fn is_unanswered(&self, state: u32) -> bool {
        state & PHASE == MADE
            && now_ns().wrapping_sub(self.at_ns.load(Ordering::Relaxed)) > PATIENCE_NS
    }

    fn wait_until_granted(&self, number: u32, is_there: impl Fn() -> bool) -> Option<Number> {
        loop {
            let seen = self.state.load(Ordering::Acquire);
            if seen == number | GRANTED {
                return Some(Number(number));
            }
            // A wish that nobody answers stays, for others to see.
            if seen != number | MADE || self.is_unanswered(seen) || !is_there() {
                return None;
            }
            futex_wait_shared(&self.state, seen, Some(LOOK_NS));
        }
    }

    /// Ends a wish that was granted. True: the pages were held until now.
    pub fn end(&self, number: Number) -> bool {
        self.goes(number.0 | GRANTED, number.0)
    }

    /// The state now, for [`Wish::is_over`] and [`Wish::wait`]; and the pages of a wish that waits,
    /// within bounds whatever is in the block.
    pub fn wanted(&self) -> (u32, Option<(usize, usize)>) {
        let state = self.state.load(Ordering::Acquire);
        if state & PHASE != MADE {
            return (state, None);
        }
        let page = |word: &AtomicU64| {
            (word.load(Ordering::Relaxed) as usize).min(ADDRESS_END) / PAGE_SIZE * PAGE_SIZE
        };
        let (start, end) = (page(&self.start), page(&self.end));
        (state, Some((start, end.clamp(start, start + WISHED_MOST * PAGE_SIZE))))
    }

    /// Whether there is no wish, as far as a state says.
    pub fn is_over(state: u32) -> bool {
        state & PHASE == FREE
    }

    /// Says that the pages are there and held. Returns the state from then on.
    pub fn grant(&self, made: u32) -> u32 {
        let granted = made | GRANTED;
        self.goes(made, granted);
        granted
    }

    /// Ends a wish that is as it was for too long.
    pub fn give_up(&self, seen: u32) {
        self.goes(seen, seen & !PHASE);
    }

    /// Ends whatever wish there is: the process has ended.
    pub(super) fn clear(&self) {
        self.give_up(self.state.load(Ordering::Acquire));
    }

    /// Sleeps while the state is `seen`.
    pub fn wait(&self, seen: u32, timeout_ns: u64) {
        futex_wait_shared(&self.state, seen, Some(timeout_ns));
    }

    /// Goes from one state to the next, if it is still in that one, and wakes all who wait.
    fn goes(&self, from: u32, to: u32) -> bool {
        let goes =
            self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if goes {
            futex_wake_shared(&self.state, i32::MAX as u32);
        }
        goes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::zeroed_tree as tree;

    /// Answers so many wishes, each by `answer`.
    fn answer(wish: &Wish, times: usize, answer: impl Fn((usize, usize))) {
        for _ in 0..times {
            let (made, pages) = loop {
                match wish.wanted() {
                    (state, Some(pages)) => break (state, pages),
                    (state, None) => wish.wait(state, LOOK_NS),
                }
            };
            answer(pages);
            let mut state = wish.grant(made);
            while !Wish::is_over(state) && state & PHASE != MADE {
                wish.wait(state, LOOK_NS);
                state = wish.wanted().0;
            }
        }
    }

    #[test]
    fn wishes_of_many_are_granted_one_after_the_other() {
        const READERS: usize = 4;
        const TIMES: usize = 50;
        let t = tree();
        let wish = &t.claim(10).unwrap().wish;
        let here = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                answer(wish, READERS * TIMES, |(start, end)| {
                    assert_eq!(end - start, PAGE_SIZE);
                    here.store(start as u64, Ordering::SeqCst);
                });
            });
            for reader in 1..=READERS {
                let here = &here;
                scope.spawn(move || {
                    let start = reader * PAGE_SIZE;
                    for _ in 0..TIMES {
                        let number = loop {
                            let made = wish.make(start, start + PAGE_SIZE, || true);
                            if let Some(number) = made {
                                break number;
                            }
                        };
                        assert_eq!(here.load(Ordering::SeqCst), start as u64);
                        assert!(wish.end(number), "the pages were held");
                    }
                });
            }
        });
    }

    #[test]
    fn an_evictor_that_stands_still_is_waited_for_once() {
        let t = tree();
        let wish = &t.claim(10).unwrap().wish;
        assert_eq!(wish.make(0, PAGE_SIZE, || false), None, "nobody listens");
        assert!(Wish::is_over(wish.wanted().0));
        assert_eq!(wish.make(0, PAGE_SIZE, || true), None);
        let (made, pages) = wish.wanted();
        assert_eq!(pages, Some((0, PAGE_SIZE)), "it stays, for others to see");
        let looks = core::cell::Cell::new(0);
        let look = || {
            looks.set(looks.get() + 1);
            true
        };
        assert_eq!(wish.make(PAGE_SIZE, 2 * PAGE_SIZE, look), None);
        assert_eq!(looks.get(), 1, "nobody waits again");
        // The evictor goes on, and ends what nobody waits for any more.
        let granted = wish.grant(made);
        assert_eq!(wish.wanted(), (granted, None));
        wish.give_up(granted);
        assert!(Wish::is_over(wish.wanted().0) && !wish.end(Number(made & !PHASE)));
    }

    #[test]
    fn a_wish_is_brought_within_bounds() {
        let t = tree();
        let wish = &t.claim(10).unwrap().wish;
        let most = WISHED_MOST * PAGE_SIZE;
        for (start, end, pages) in [
            (0, u64::MAX, (0, most)),
            (u64::MAX, u64::MAX, (ADDRESS_END, ADDRESS_END)),
            (2 * PAGE_SIZE as u64, 0, (2 * PAGE_SIZE, 2 * PAGE_SIZE)),
            (PAGE_SIZE as u64 + 5, 2 * PAGE_SIZE as u64, (PAGE_SIZE, 2 * PAGE_SIZE)),
        ] {
            wish.start.store(start, Ordering::Relaxed);
            wish.end.store(end, Ordering::Relaxed);
            wish.state.store(MADE, Ordering::Relaxed);
            assert_eq!(wish.wanted().1, Some(pages));
        }
    }
}
