//! Bringing pages ahead of a thread that runs through memory: the evictor loads the next window
//! while the thread loads this one.
//!
//! ```text
//!   thread    | fault: loads 0..64 ........ | touches 0..128 | fault: loads 128..192 ......... |
//!   evictor         | loads 64..128 ... | evicts             | loads 192..256 ... | evicts
//! ```
//!
//! A thread asks at the beginning of a fault that is served with a window of the largest size, so
//! both work at the same time, each on pages of its own. An evictor that comes late, or is busy
//! making room, is overtaken: the thread loads the pages that it needs itself, and asks for those
//! behind them. If the evictor has just those pages in hand, the thread first loads the ones behind
//! them, so that nothing is loaded twice. No thread waits for pages from here.

use super::fill::Serve;
use super::{Active, Locked, Pager};
use crate::control::Counter;
use crate::policy::WINDOW_LOCKED_PAGES;
use crate::policy::trail::Run;
use crate::region::{PageState, Range};
use crate::sys::{PAGE_SHIFT, PAGE_SIZE};

/// The pages that are to be brought.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Ahead {
    start: usize,
    end: usize,
}

impl Ahead {
    pub const NOTHING: Ahead = Ahead { start: 0, end: 0 };
}

impl Pager {
    /// A fault at `page` is about to be served with a window of `pages`: asks the evictor for the
    /// window after it if the access is sequential so far. Returns where the evictor's window ends,
    /// or 0.
    pub(super) fn ask_ahead(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        range: &Range,
        page: usize,
        pages: usize,
    ) -> usize {
        let start = page + pages * PAGE_SIZE;
        if pages < WINDOW_LOCKED_PAGES
            || start >= range.end
            || !(active.mechanism.has_units() || self.may_be_window(active, range, pages))
            || self.may_be_huge(active, range, page)
            || !matches!(self.state_of(page), PageState::Stored(_))
            || !matches!(self.state_of(start), PageState::Stored(_))
        {
            return 0;
        }
        let end = (start + pages * PAGE_SIZE).min(range.end);
        s.ahead = Ahead { start, end };
        self.wake_evictor();
        end
    }

    /// The end of the pages that the evictor has in hand, if `page` is one of them.
    pub(super) fn coming_end(&self, s: &Locked<'_>, page: usize) -> Option<usize> {
        (s.coming.start..s.coming.end).contains(&page).then_some(s.coming.end)
    }

    /// The page that a fault at `page` is to be served with first, if the evictor has `page` in
    /// hand: the first one after the evictor's, in `range`.
    pub(super) fn after_coming(
        &self,
        s: &Locked<'_>,
        active: &Active,
        range: &Range,
        page: usize,
    ) -> Option<usize> {
        let after = self.coming_end(s, page)?;
        let may_be = after < range.end
            && matches!(self.state_of(after), PageState::Stored(_))
            && !self.may_be_huge(active, range, after);
        may_be.then_some(after)
    }

    /// Brings a portion of the pages that were asked for, if there is room. Returns whether it did.
    pub(super) fn bring_ahead(&self, s: &mut Locked<'_>, active: &Active) -> bool {
        let Ahead { start, end } = s.ahead;
        if start >= end {
            return false;
        }
        let range = self.ranges.find(start).filter(|r| end <= r.end);
        let is_wanted =
            matches!(self.state_of(start), PageState::Stored(_)) && !self.slot().turn.is_paused();
        let Some(range) = range.filter(|_| is_wanted) else {
            s.ahead = Ahead::NOTHING;
            return false;
        };
        let pages = (end - start) >> PAGE_SHIFT;
        let has_stock = s.limbo.has_stock() && self.excess(0) <= 0;
        if !has_stock && (self.is_nearly_full() || self.excess(pages as i64) > 0) {
            // The evictor makes room first.
            return false;
        }
        // Before the lock is let go: a thread that asks meanwhile wants something else, or nothing
        // any more.
        let in_hand = Ahead { start: end, end };
        s.ahead = in_hand;
        s.coming = Ahead { start, end };
        let brought = match self.serve(s, active, range, start, pages, 0) {
            Serve::Done(brought, kind) => {
                self.trace_served(start, brought, kind, false, true);
                s.trail
                    .follow(Run { start: start >> PAGE_SHIFT, pages: brought }, self.limit_pages());
                brought
            }
            _ => 0,
        };
        s.coming = Ahead::NOTHING;
        if s.ahead == in_hand && brought > 0 {
            s.ahead = Ahead { start: start + brought * PAGE_SIZE, end };
        }
        self.add(Counter::AheadPages, brought as u64);
        self.publish(false);
        brought > 0
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::{READ_WRITE, STRETCH_PAGES, Spec, Touch, World};
    use super::*;

    /// It would make room for the others, and hold claims meanwhile.
    #[test]
    fn a_guest_brings_no_page_but_the_one_that_it_touches() {
        let w = World::new(Spec::roomy(8));
        w.map(0, 8, READ_WRITE);
        let mut thread = w.thread();
        for page in 0..8 {
            assert_eq!(thread.access(w.at(page), true, |b| b[7] = 1), Touch::Done);
        }
        w.page_out();
        w.pager.enter().coming = Ahead { start: w.at(0), end: w.at(4) };
        let touch = w.guest().access(w.at(1), false, |b| assert_eq!(b[7], 1));
        w.pager.enter().coming = Ahead::NOTHING;
        assert_eq!((touch, w.pager.resident_pages()), (Touch::Done, 1));
        w.check();
    }

    #[test]
    fn a_guest_brings_one_page_of_a_huge_page() {
        let w = World::new(Spec { blocks: 2, ..Spec::roomy(2 * STRETCH_PAGES) });
        w.map(0, 2 * STRETCH_PAGES, READ_WRITE);
        let huge = STRETCH_PAGES..2 * STRETCH_PAGES;
        let mut thread = w.write(huge.clone(), |page, b| b[7] = page as u8);
        assert!(w.pager.is_in_huge(w.at(STRETCH_PAGES)));
        w.page_out();
        assert_eq!(w.pager.resident_pages(), 0);
        let mut guest = w.guest();
        // One that was never touched, and one that was.
        for (page, resident) in [(9, 1), (STRETCH_PAGES + 9, 2)] {
            let byte = if page == 9 { 0 } else { page as u8 };
            let touch = guest.access(w.at(page), true, |b| assert_eq!(b[7], byte));
            assert_eq!((touch, w.pager.resident_pages()), (Touch::Done, resident));
        }
        w.check();
        for page in huge {
            thread.access(w.at(page), false, |b| assert_eq!(b[7], page as u8));
        }
        w.check();
    }
}
