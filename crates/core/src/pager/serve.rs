//! Serving: a missing page comes in by one of the ways, with as many of its neighbours as are
//! wanted, are missing in the same way and have room.
//!
//! ```text
//!   look (lock): states, room   | plan: a value, by what was seen   | fill: zero, limbo, load, window
//! ```
//!
//! Huge pages, and the units of protection faults, are looked at and planned by themselves
//! (`huge.rs`, `protection.rs`).

use super::fill::Serve;
use super::{Active, Locked, Pager};
use crate::cache::LoadError;
use crate::control::Notice;
use crate::latency::FaultKind;
use crate::policy::WINDOW_LOCKED_PAGES;
use crate::region::{PageState, Range};
use crate::store::remote::NO_ANSWER;
use crate::store::valkey::GONE;
use crate::sys::{Errno, PAGE_SHIFT, PAGE_SIZE};

/// Attempts to make room for a huge page.
pub(super) const HUGE_TRIES: u32 = 8;
/// Attempts to bring a window in by moving frames.
const WINDOW_TRIES: u32 = 4;

/// A missing page as it looks: by this, and nothing else, it is planned how it comes.
#[derive(Clone, Copy, Debug)]
struct Look {
    first: PageState,
    /// Pages from the first on, not 0, that are missing in the same way, free and wanted.
    alike: usize,
    /// They can come as a window; and there are frames for one, which count already.
    may_be_window: bool,
    has_stock: bool,
    /// The evictor has, or will soon have, to make room; looked at for windows only.
    is_nearly_full: bool,
    /// Pages over the limit if the pages come one by one, [`WINDOW_LOCKED_PAGES`] at most;
    /// negative: room.
    excess: i64,
    tries: u32,
}

/// How missing pages are to come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Plan {
    Zero(usize),
    /// From this slot on.
    Limbo(usize, usize),
    Window(usize),
    Load(usize),
    /// Not before there is room for so many.
    Room(i64),
    /// No thread asks for a page that is there.
    None,
}

impl Plan {
    /// Pages that come, if the kernel takes them.
    fn pages(self) -> usize {
        match self {
            Plan::Zero(pages) | Plan::Limbo(_, pages) | Plan::Window(pages) | Plan::Load(pages) => {
                pages
            }
            Plan::Room(_) | Plan::None => 1,
        }
    }
}

impl Look {
    /// The way that fits: a window if it can, else page by page as far as there is room.
    fn plan(&self) -> Plan {
        if self.may_be_window {
            if self.has_stock {
                return Plan::Window(self.alike);
            }
            if self.tries == 0 && self.is_nearly_full {
                // Pages have to leave for these, now or soon: better now, and without a copy.
                return Plan::Room(self.alike as i64);
            }
        }
        let pages = self.alike.min(WINDOW_LOCKED_PAGES);
        // To bring fewer pages is better than to wait for room.
        let with_room = |plan: fn(usize) -> Plan| match pages as i64 - self.excess.max(0) {
            ..=0 => Plan::Room(if self.may_be_window { pages as i64 } else { 1 }),
            room => plan(room as usize),
        };
        match self.first {
            PageState::None => with_room(Plan::Zero),
            PageState::Stored(_) => with_room(Plan::Load),
            // Pages of limbo count already.
            PageState::Limbo(slot) => Plan::Limbo(slot as usize, pages),
            PageState::Resident => Plan::None,
        }
    }
}

impl Pager {
    /// Serves the missing page `page` and up to `want - 1` after it that are missing in the same
    /// way, or the huge page that they belong to. After some `tries` less is enough.
    pub(super) fn serve(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        range: Range,
        page: usize,
        want: usize,
        tries: u32,
    ) -> Serve {
        if active.mechanism.has_units() {
            return self.serve_unit(s, active, range, page, want, tries);
        }
        if tries <= HUGE_TRIES
            && let Some(served) = self.serve_huge(s, active, &range, page)
        {
            return served;
        }
        let Some(look) = self.look(s, active, &range, page, want, tries) else {
            return Serve::Changed;
        };
        if look.may_be_window {
            s.limbo.want_stock();
        }
        let plan = look.plan();
        let served = match plan {
            Plan::Room(pages) => return Serve::NeedRoom(pages),
            Plan::Zero(pages) => self.serve_zero(s, active, page, pages),
            Plan::Limbo(slot, pages) => self.serve_limbo(s, active, page, slot, pages),
            Plan::Window(pages) => self.serve_window(s, active, page, pages),
            Plan::Load(pages) => self.serve_stored(s, active, page, pages),
            Plan::None => Serve::Done(1, FaultKind::LimboHit),
        };
        if active.blocks > 0 && !matches!(served, Serve::Changed) {
            // A window may reach into the next stretch.
            self.note_small(page);
            self.note_small(page + (plan.pages() - 1) * PAGE_SIZE);
            if let Serve::Done(brought, _) = served {
                self.note_brought(s, active, &range, page, brought);
            }
        }
        served
    }

    /// Looks at a missing page and at the pages after it. `None`: the page itself is claimed.
    #[inline]
    fn look(
        &self,
        s: &Locked<'_>,
        active: &Active,
        range: &Range,
        page: usize,
        want: usize,
        tries: u32,
    ) -> Option<Look> {
        let first = self.state_of(page);
        let alike = self.alike_run(s, active, range, first, page, want);
        let may_be_window = matches!(first, PageState::Stored(_))
            && tries <= WINDOW_TRIES
            && self.may_be_window(active, range, alike);
        (alike > 0).then(|| Look {
            first,
            alike,
            may_be_window,
            has_stock: may_be_window && s.limbo.has_stock() && self.excess(0) <= 0,
            is_nearly_full: may_be_window && tries == 0 && self.is_nearly_full(),
            excess: self.excess(alike.min(WINDOW_LOCKED_PAGES) as i64),
            tries,
        })
    }

    /// How many pages from `page` on, `want` at most, are missing in the same way and free; 0: the
    /// page itself is claimed.
    #[inline]
    fn alike_run(
        &self,
        s: &Locked<'_>,
        active: &Active,
        range: &Range,
        first: PageState,
        page: usize,
        want: usize,
    ) -> usize {
        let is_stored = matches!(first, PageState::Stored(_));
        let want = if is_stored { want } else { want.min(WINDOW_LOCKED_PAGES) };
        let most = ((range.end - page) >> PAGE_SHIFT).min(want);
        let most = self.free_run(s, page, self.within_stretch(active, range, page, most));
        let is_alike = |i: usize| match (first, self.state_of(page + i * PAGE_SIZE)) {
            (PageState::None, PageState::None) => true,
            (PageState::Stored(_), PageState::Stored(_)) => true,
            (PageState::Limbo(a), PageState::Limbo(b)) => b == a + i as u64,
            _ => false,
        };
        let mut pages = most.min(1);
        while pages < most && is_alike(pages) {
            pages += 1;
        }
        pages
    }

    /// Reports a page that is needed and cannot be had.
    pub(super) fn note_lost(&self, why: LoadError) {
        let (notice, errno) = match why {
            LoadError::Io(e) if [Errno::EPERM, Errno::EACCES, Errno::ENOSYS].contains(&e) => {
                (Notice::LoadRefused, e.0)
            }
            LoadError::Io(NO_ANSWER) => (Notice::RemoteLost, 0),
            LoadError::Io(GONE) => (Notice::RemoteGone, 0),
            LoadError::Corrupt => (Notice::CorruptPage, 0),
            _ => (Notice::CorruptPage, Errno::EIO.0),
        };
        self.tree().notice(notice, errno);
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering;

    use super::super::PROT_READ;
    use super::super::model::{READ_WRITE, STRETCH_PAGES, Spec, World};
    use super::*;
    use crate::region::Mapped;

    const STORED: PageState = PageState::Stored(7);
    const MOST: usize = WINDOW_LOCKED_PAGES;

    /// A first attempt at `alike` pages, with more room than they need.
    fn look(first: PageState, alike: usize) -> Look {
        Look {
            first,
            alike,
            may_be_window: false,
            has_stock: false,
            is_nearly_full: false,
            excess: -100,
            tries: 0,
        }
    }

    #[test]
    fn each_state_has_its_way() {
        assert_eq!(look(PageState::None, 3).plan(), Plan::Zero(3));
        assert_eq!(look(PageState::Limbo(9), 3).plan(), Plan::Limbo(9, 3));
        assert_eq!(look(STORED, 3).plan(), Plan::Load(3));
        assert_eq!(look(PageState::Resident, 3).plan(), Plan::None);
        assert_eq!(look(STORED, 4 * MOST).plan(), Plan::Load(MOST), "no buffer for more");
    }

    #[test]
    fn fewer_pages_come_rather_than_none() {
        for first in [PageState::None, STORED] {
            let with = |excess| Look { excess, ..look(first, 8) }.plan();
            assert_eq!(with(0).pages(), 8);
            assert_eq!(with(1).pages(), 7);
            assert_eq!(with(7).pages(), 1);
            assert_eq!([8, 9, 1000].map(with), [Plan::Room(1); 3], "one is enough to go on");
        }
        let in_limbo = Look { excess: 1000, ..look(PageState::Limbo(1), 8) };
        assert_eq!(in_limbo.plan(), Plan::Limbo(1, 8), "these count already");
    }

    #[test]
    fn a_window_waits_for_frames_once() {
        let window = Look { may_be_window: true, ..look(STORED, 4 * MOST) };
        assert_eq!(window.plan(), Plan::Load(MOST), "there is room for ordinary loads");
        let full = Look { is_nearly_full: true, ..window };
        assert_eq!(full.plan(), Plan::Room(4 * MOST as i64));
        assert_eq!(Look { tries: 1, ..full }.plan(), Plan::Load(MOST));
        let has_stock = Look { has_stock: true, excess: 1000, ..full };
        assert_eq!(has_stock.plan(), Plan::Window(4 * MOST), "its frames count already");
        let over = Look { tries: 1, excess: MOST as i64, ..full };
        assert_eq!(over.plan(), Plan::Room(MOST as i64), "room for all of it at once");
    }

    fn write(w: &World, pages: impl IntoIterator<Item = usize>) {
        w.write(pages, |page, b| b[..2].copy_from_slice(&[page as u8, 1]));
    }

    fn serve(w: &World, page: usize, want: usize, tries: u32) -> Serve {
        let range = w.pager.ranges.find(w.at(page)).expect("it is mapped");
        w.pager.serve(&mut w.pager.enter(), w.active(), range, w.at(page), want, tries)
    }

    fn take_out(w: &World, page: usize, pages: usize) {
        let range = w.pager.ranges.find(w.at(page)).expect("it is mapped");
        let run = range.clip(w.at(page), w.at(page + pages));
        w.pager.sweep_run(&mut w.pager.enter(), w.active(), run, pages);
    }

    #[test]
    fn neighbours_come_along_that_are_missing_in_the_same_way_and_free() {
        let w = World::new(Spec::roomy(16));
        w.map(0, 16, READ_WRITE);
        w.protect(14, 2, PROT_READ);
        // From the last to the first, so that no page brings neighbours along.
        write(&w, (0..4).rev());
        w.page_out();
        write(&w, (4..9).rev());
        // In limbo they lie in this order; page 4 stays.
        [6, 5, 7, 8].into_iter().for_each(|page| take_out(&w, page, 1));
        let serve = |page: usize| serve(&w, page, 16, 0);
        assert!(matches!(serve(0), Serve::Done(4, FaultKind::PoolLoad)));
        assert!(matches!(serve(5), Serve::Done(1, FaultKind::LimboHit)));
        assert!(matches!(serve(6), Serve::Done(1, FaultKind::LimboHit)));
        assert!(matches!(serve(7), Serve::Done(2, FaultKind::LimboHit)));
        w.pager.claim(&mut w.pager.enter(), w.at(12), 1);
        assert!(matches!(serve(9), Serve::Done(3, FaultKind::FirstTouch)));
        assert!(matches!(serve(12), Serve::Changed), "it is claimed");
        w.pager.end_claim(&mut w.pager.enter(), w.at(12), 1);
        assert!(matches!(serve(12), Serve::Done(2, FaultKind::FirstTouch)), "there the range ends");
        w.check();
        let mut thread = w.thread();
        for page in 0..9 {
            thread.access(w.at(page), false, |b| assert_eq!(b[0], page as u8));
        }
    }

    #[test]
    fn frames_of_the_stock_are_room_within_the_limit_only() {
        const PAGES: usize = 320;
        let w = World::new(Spec::roomy(PAGES));
        w.map(0, PAGES, READ_WRITE);
        write(&w, 0..PAGES);
        w.page_out();
        write(&w, 32..PAGES);
        take_out(&w, 100, 16);
        assert!(w.stock());
        w.pager.publish(true);
        let plan = |room: i64| {
            w.pager.tree().limit_pages.store(w.pager.used_pages() + room, Ordering::Relaxed);
            let range = w.pager.ranges.find(w.at(0)).expect("it is mapped");
            let s = w.pager.enter();
            w.pager.look(&s, w.active(), &range, w.at(0), 12, 1).expect("it is free").plan()
        };
        assert_eq!([0, -1].map(plan), [Plan::Window(12), Plan::Room(12)]);
        w.check();
    }

    #[test]
    fn where_a_huge_page_finds_no_room_small_ones_come_and_leave_the_next_stretch_alone() {
        const HUGE: i64 = STRETCH_PAGES as i64;
        let spec = Spec { limit_pages: 300, blocks: 2, ..Spec::roomy(3 * STRETCH_PAGES) };
        let w = World::new(spec);
        // The last stretch is too short for a huge page.
        w.map(0, 2 * STRETCH_PAGES + 100, READ_WRITE);
        let serve =
            |stretch: usize, tries: u32| serve(&w, (stretch + 1) * STRETCH_PAGES - 2, 4, tries);
        let mapped = |stretch: usize| {
            w.pager.table.middle(w.at(stretch * STRETCH_PAGES)).map(|m| m.mapped())
        };
        assert!(matches!(serve(0, HUGE_TRIES), Serve::NeedRoom(HUGE)));
        assert!(matches!(serve(0, HUGE_TRIES + 1), Serve::Done(2, FaultKind::FirstTouch)));
        assert_eq!([0, 1].map(mapped), [Some(Mapped::Small), Some(Mapped::Empty)]);
        assert!(matches!(serve(1, HUGE_TRIES + 1), Serve::Done(4, FaultKind::FirstTouch)));
        assert_eq!([1, 2].map(mapped), [Some(Mapped::Small); 2]);
        w.check();
    }
}
