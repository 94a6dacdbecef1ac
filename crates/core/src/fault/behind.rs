//! Faults served by protection: units of pages that are filled behind PROT_NONE, and shown at once.
//!
//! Each change of protection may split a mapping of the kernel's, of which a process has some 65
//! 000 (`vm.max_map_count`), so pages come and go by units of 16 and more, as many as keep mappings
//! few.

use core::sync::atomic::Ordering;

use super::resolve::{Serve, swap_entry};
use super::{Active, Locked, Pager};
use crate::cache::Origin;
use crate::control::Counter;
use crate::control::trace::Kind;
use crate::latency::FaultKind;
use crate::region::{PageState, Range};
use crate::sys::mechanism::Filled;
use crate::sys::{PAGE_SHIFT, PAGE_SIZE};

/// Pages of a unit, at least. A touch at random loads so many: 16 load four times as much as 4, and
/// take 2.9 times as long (256 MiB in 128). Up to 256 MiB need no larger ones.
const UNIT_LEAST_PAGES: usize = 4;

impl Pager {
    /// Serves by protection faults: the whole unit around the page, filled behind its protection,
    /// then shown at once.
    pub(super) fn serve_unit(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        range: Range,
        page: usize,
        want: usize,
    ) -> Serve {
        let (start, end) = match self.unit_with_room(&range, page, want) {
            Ok(unit) => unit,
            Err(pages) => return Serve::NeedRoom(pages),
        };
        let found = match self.state_of(page) {
            PageState::None => FaultKind::FirstTouch,
            PageState::Limbo(_) | PageState::Resident => FaultKind::LimboHit,
            PageState::Stored(_) => FaultKind::PoolLoad,
        };
        let (start, end, from) = match self.fill_and_show(s, active, &range, page, (start, end)) {
            Ok(shown) => shown,
            Err(r) => return r,
        };
        self.note_shown(s, start, end);
        self.trace_pages(Kind::Around, start, page);
        let kind = if from == Origin::Store { FaultKind::StoreLoad } else { found };
        Serve::Done((end - page) >> PAGE_SHIFT, kind)
    }

    /// The unit around a page, and so many after it as `want` pages reach into, or it alone where
    /// room is short. `Err`: so many pages that there is no room for even that.
    fn unit_with_room(
        &self,
        range: &Range,
        page: usize,
        want: usize,
    ) -> core::result::Result<(usize, usize), i64> {
        let unit = self.unit_pages() * PAGE_SIZE;
        let (start, least_end) = around(range, page, unit);
        let wanted = (want * PAGE_SIZE).next_multiple_of(unit).max(unit);
        let end = ((page & !(unit - 1)) + wanted).min(range.end);
        let is_missing = |at: &usize| self.state_of(*at) != PageState::Resident;
        let missing = (start..end).step_by(PAGE_SIZE).filter(is_missing).count();
        if self.excess(missing as i64) <= 0 {
            return Ok((start, end));
        }
        let least = ((least_end - start) >> PAGE_SHIFT) as i64;
        if self.excess(least) > 0 { Err(least) } else { Ok((start, least_end)) }
    }

    /// Fills a hidden run around a page and shows it, or a larger one if the kernel has no mapping
    /// left for that. Returns what was shown, and whether some of it came from the store.
    fn fill_and_show(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        range: &Range,
        page: usize,
        (mut start, mut end): (usize, usize),
    ) -> core::result::Result<(usize, usize, Origin), Serve> {
        let mut unit = self.unit_pages() * PAGE_SIZE;
        let mut from = Origin::Memory;
        loop {
            if self.fill_behind(s, active, start, end)? == Origin::Store {
                from = Origin::Store;
            }
            if active.mechanism.expose(start, end - start, range.prot).is_ok() {
                return Ok((start, end, from));
            }
            // Out of kernel mappings: a larger run needs fewer of them.
            assert!(
                start > range.start || end < range.end,
                "a whole range cannot be shown: {range:?}"
            );
            unit *= 8;
            (start, end) = around(range, page, unit);
        }
    }

    /// The words and counts of a run that was filled and is shown.
    fn note_shown(&self, s: &mut Locked<'_>, start: usize, end: usize) {
        let mut shown = 0;
        for at in (start..end).step_by(PAGE_SIZE) {
            let limbo = match self.state_of(at) {
                PageState::Limbo(slot) => Some(slot as usize),
                _ => None,
            };
            if let Some(slot) = limbo {
                s.limbo.kill(slot);
            }
            self.word(at, |m, e| match e.state() {
                PageState::None => {
                    e.touch_first();
                    m.count(1, 1);
                    shown += 1;
                }
                PageState::Limbo(_) => {
                    e.leave_limbo();
                    m.count(1, 0);
                    shown += 1;
                    self.limbo_pages.fetch_sub(1, Ordering::Relaxed);
                }
                PageState::Stored(raw) => {
                    e.load();
                    m.count(1, 0);
                    shown += 1;
                    self.stored.fetch_sub(1, Ordering::Relaxed);
                    self.add(Counter::Loads, 1);
                    self.free_entry(Some(raw));
                }
                PageState::Resident => self.count_owned(e.own() as usize),
            });
        }
        self.recount_own();
        self.resident.fetch_add(shown, Ordering::Relaxed);
    }

    /// Writes the stored pages of a hidden run into place, and says whether one came from the
    /// store. `Err` is how it failed.
    fn fill_behind(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        start: usize,
        end: usize,
    ) -> core::result::Result<Origin, Serve> {
        let mut from = Origin::Memory;
        let bounce = s.bounce.as_mut().expect("active").as_mut_slice();
        for at in (start..end).step_by(PAGE_SIZE) {
            if self.table.ensure(at).is_err() {
                return Err(Serve::Again);
            }
            if let PageState::Stored(raw) = self.state_of(at) {
                let (into, _) = bounce.as_chunks_mut::<PAGE_SIZE>();
                match active.cache.swap_in_from(swap_entry(raw), &mut into[0]).map(|l| l.from) {
                    Ok(Origin::Memory) => {}
                    Ok(Origin::Store) => from = Origin::Store,
                    Err(e) => return Err(Serve::Lost(e)),
                }
                if active.mechanism.fill(at, &into[0]) != Filled::All {
                    return Err(Serve::Again);
                }
            }
        }
        Ok(from)
    }

    /// Pages that protection faults handle together: as many as keep the kernel's mappings few.
    pub(super) fn unit_pages(&self) -> usize {
        const UNITS_MAX: usize = 16 << 10;
        let pages = self.ranges.accessible_bytes() >> PAGE_SHIFT;
        (pages / UNITS_MAX).next_power_of_two().clamp(UNIT_LEAST_PAGES, 4096)
    }
}

/// The unit of `bytes`, a power of two, that a page is in, as far as it is of the range.
fn around(range: &Range, page: usize, bytes: usize) -> (usize, usize) {
    let start = page & !(bytes - 1);
    (start.max(range.start), (start + bytes).min(range.end))
}
