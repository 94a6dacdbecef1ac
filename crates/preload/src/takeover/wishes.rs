//! Wishes of other processes, granted: pages that they want to read or write are brought in and
//! held for a moment (`control/wish.rs`). The evictor does it, and looks more often while somebody
//! reads.

use uzswap::control::wish::{HELD_NS, Wish};
use uzswap::pager::hold::ThreadHolds;

use super::{PAGER, evictor};

/// The longest pause while somebody reads: who makes room for the program waits no longer for the
/// evictor, which sleeps on the wish then.
const PAUSE_NS: u64 = 1_000_000;
/// How long after a wish the next one is expected.
const LINGER_NS: u64 = 20_000_000;

/// The wishes, as the evictor sees them.
#[derive(Default)]
pub struct Wishes {
    /// The evictor's own, from the first wish on.
    holds: Option<&'static ThreadHolds>,
    /// The state that was seen last, and since when it is.
    state: u32,
    since_ns: u64,
}

impl Wishes {
    /// Looks for a wish and grants it; ends one that is old.
    pub fn look(&mut self) {
        let wish = &PAGER.slot().wish;
        let (state, pages) = wish.wanted();
        if state != self.state {
            self.note(state);
            self.let_go();
        }
        match pages {
            Some((start, end)) if self.bring(start, end) => {
                let granted = wish.grant(state);
                self.note(granted);
            }
            Some(_) => wish.give_up(state),
            None if !Wish::is_over(state) && self.age_ns() > HELD_NS => {
                self.let_go();
                wish.give_up(state);
            }
            None => {}
        }
    }

    fn note(&mut self, state: u32) {
        (self.state, self.since_ns) = (state, uzswap::sys::now_ns());
    }

    fn age_ns(&self) -> u64 {
        uzswap::sys::now_ns() - self.since_ns
    }

    /// Brings the managed pages of `[start, end)` in, and holds them. False: there is no memory to
    /// note that.
    fn bring(&mut self, start: usize, end: usize) -> bool {
        if PAGER.ranges.first_overlap_unlocked(start, end).is_none() {
            return true;
        }
        let holds = self.holds.or_else(|| PAGER.holds.register(evictor::tid()).ok());
        let Some(own) = holds else { return false };
        self.holds = holds;
        own.push(start, end, 0);
        drop(PAGER.make_resident(PAGER.enter(), start, end));
        true
    }

    fn let_go(&self) {
        if let Some(own) = self.holds {
            own.pop_to(0);
        }
    }

    /// Whether somebody wishes now, or did a moment ago.
    pub fn are_some(&self) -> bool {
        !Wish::is_over(self.state) || self.since_ns != 0 && self.age_ns() < LINGER_NS
    }

    /// Sleeps until there is another wish, for a short time.
    pub fn wait(&self) {
        PAGER.slot().wish.wait(self.state, PAUSE_NS);
    }

    /// Lets all go: the thread ends.
    pub fn end(self) {
        if let Some(own) = self.holds {
            PAGER.holds.unregister(own);
        }
    }
}
