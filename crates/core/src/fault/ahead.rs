//! Bringing pages ahead of a thread that runs through memory: the evictor loads the next window
//! while the thread loads this one.
//!
//! ```text
//!   thread    | fault: loads 0..64 ........ | touches 0..128 | fault: loads 128..192 ......... |
//!   evictor         | loads 64..128 ... | evicts             | loads 192..256 ... | evicts
//! ```
//!
//! Asked for at the beginning of a fault that is served with a window as large as they get, so both
//! work at the same time, each on pages of its own. An evictor that comes late, or has enough to do
//! with making room, is overtaken: the thread loads what it needs itself, and asks for what is
//! behind that. If the evictor has just that in hand the thread first loads what is behind it, so
//! that nothing is done twice. Nothing waits for pages from here.

use super::resolve::Serve;
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
    /// window after it if the access runs on and on. Returns where that one ends, or 0.
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
            || !self.may_be_window(active, range, pages)
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

    /// Where what the evictor has in hand ends, if `page` is in it.
    pub(super) fn coming_end(&self, s: &Locked<'_>, page: usize) -> Option<usize> {
        (s.coming.start..s.coming.end).contains(&page).then_some(s.coming.end)
    }

    /// What a fault at `page` is to be served with first, if the evictor has that page in hand:
    /// what comes after, of `range`.
    pub(super) fn behind_coming(
        &self,
        s: &Locked<'_>,
        active: &Active,
        range: &Range,
        page: usize,
    ) -> Option<usize> {
        let behind = self.coming_end(s, page)?;
        let may_be = behind < range.end
            && matches!(self.state_of(behind), PageState::Stored(_))
            && !self.may_be_huge(active, range, behind);
        may_be.then_some(behind)
    }

    /// The evictor brings a portion of what was asked for, if there is room. Says whether it did.
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
            // Room first.
            return false;
        }
        // Before the lock is let go: whoever asks anew meanwhile wants something else, or nothing
        // any more.
        let in_hand = Ahead { start: end, end };
        s.ahead = in_hand;
        s.coming = Ahead { start, end };
        let brought = match self.serve(s, active, range, start, pages, 0, true) {
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
