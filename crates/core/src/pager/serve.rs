//! Serving: a missing page comes in by one of the ways, with as many of its neighbours as are
//! wanted, are missing in the same way and have room.

use super::fill::Serve;
use super::{Active, Locked, Pager};
use crate::cache::LoadError;
use crate::control::Notice;
use crate::latency::FaultKind;
use crate::policy::WINDOW_LOCKED_PAGES;
use crate::policy::limbo::Stretch;
use crate::region::{PageState, Range};
use crate::store::remote::NO_ANSWER;
use crate::store::valkey::GONE;
use crate::sys::{Errno, PAGE_SHIFT, PAGE_SIZE};

/// Attempts to make room for a huge page.
const HUGE_TRIES: u32 = 8;
/// Attempts to bring a window in by moving frames.
const WINDOW_TRIES: u32 = 4;

impl Pager {
    /// Serves the missing page `page` and up to `want - 1` after it that are missing in the same
    /// way, or the huge page that they belong to. After some `tries` less is enough. `write`: the
    /// page will be written, or may be by the kernel.
    #[expect(clippy::too_many_arguments, reason = "what a fault is")]
    pub(super) fn serve(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        range: Range,
        page: usize,
        want: usize,
        tries: u32,
        write: bool,
    ) -> Serve {
        if active.mechanism.is_protect() {
            return self.serve_unit(s, active, range, page, want);
        }
        if tries <= HUGE_TRIES
            && let Some(served) = self.serve_huge(s, active, &range, page)
        {
            return served;
        }
        let first = self.state_of(page);
        let pages = self.alike_run(s, active, &range, first, page, want);
        if pages == 0 {
            return Serve::Changed;
        }
        let is_window = matches!(first, PageState::Stored(_))
            && tries <= WINDOW_TRIES
            && self.may_be_window(active, &range, pages);
        let (pages, stretch) = match self.room_for(s, first, pages, is_window, tries) {
            Ok(room) => room,
            Err(pages) => return Serve::NeedRoom(pages),
        };
        let served = match first {
            PageState::Stored(_) if let Some(stretch) = stretch => {
                self.serve_window(s, active, page, pages, stretch)
            }
            PageState::None => self.serve_zero(s, active, page, pages),
            PageState::Limbo(slot) => self.serve_limbo(s, active, page, slot as usize, pages),
            PageState::Stored(_) => {
                let guards = !write && pages == 1 && self.may_be_guarded(active, &range);
                self.serve_stored(s, active, &range, page, pages, guards)
            }
            // No thread asks for a page that is there.
            PageState::Resident => Serve::Done(1, FaultKind::LimboHit),
        };
        if active.blocks > 0 && !matches!(served, Serve::Changed) {
            // A window may reach into the next stretch.
            self.note_small(page);
            self.note_small(page + (pages - 1) * PAGE_SIZE);
            if let Serve::Done(brought, _) = served {
                self.note_brought(s, active, &range, page, brought);
            }
        }
        served
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
        let most = self.free_run(s, page, self.within_unit(active, range, page, most));
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

    /// How many of `pages` missing pages have room now, and the frames of the stock that a window
    /// moves in. `Err`: the pages to make room for.
    #[inline]
    fn room_for(
        &self,
        s: &mut Locked<'_>,
        first: PageState,
        pages: usize,
        is_window: bool,
        tries: u32,
    ) -> core::result::Result<(usize, Option<Stretch>), i64> {
        if is_window {
            s.limbo.want_stock();
            // The frames of the stock count already.
            let stretch = if self.excess(0) <= 0 { s.limbo.take_stock(pages) } else { None };
            if stretch.is_some() {
                return Ok((pages, stretch));
            }
            if tries == 0 && self.is_nearly_full() {
                // Pages have to leave for these, now or soon: better now, and without a copy.
                return Err(pages as i64);
            }
        }
        let pages = pages.min(WINDOW_LOCKED_PAGES);
        // Limbo pages count already; everything else needs room. Fewer pages are better than a
        // wait.
        if matches!(first, PageState::Limbo(_)) {
            return Ok((pages, None));
        }
        let excess = self.excess(pages as i64).max(0) as usize;
        if excess >= pages {
            return Err(if is_window { pages as i64 } else { 1 });
        }
        Ok((pages - excess, None))
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
