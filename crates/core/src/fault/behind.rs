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
        let mut unit = self.unit_pages() * PAGE_SIZE;
        let start = (page & !(unit - 1)).max(range.start);
        let mut end = ((page & !(unit - 1)) + unit.max((want * PAGE_SIZE).next_multiple_of(unit)))
            .min(range.end);
        let mut missing = 0;
        let mut at = start;
        while at < end {
            missing += (self.state_of(at) != PageState::Resident) as i64;
            at += PAGE_SIZE;
        }
        let excess = self.excess(missing);
        if excess > 0 {
            let least = ((page & !(unit - 1)) + unit).min(range.end);
            if least < end {
                end = least;
            }
            if self.excess(((end - start) >> PAGE_SHIFT) as i64) > 0 {
                return Serve::NeedRoom(((end - start) >> PAGE_SHIFT) as i64);
            }
        }
        let mut kind = match self.state_of(page) {
            PageState::None => FaultKind::FirstTouch,
            PageState::Limbo(_) | PageState::Resident => FaultKind::LimboHit,
            PageState::Stored(_) => FaultKind::PoolLoad,
        };
        let mut low = start;
        loop {
            match self.fill_behind(s, active, low, end) {
                Ok(Origin::Memory) => {}
                Ok(Origin::Store) => kind = FaultKind::StoreLoad,
                Err(r) => return r,
            }
            if active.mechanism.expose(low, end - low, range.prot).is_ok() {
                break;
            }
            // Out of kernel mappings: a larger run needs fewer of them.
            assert!(
                low > range.start || end < range.end,
                "a whole range cannot be shown: {range:?}"
            );
            unit *= 8;
            low = (page & !(unit - 1)).max(range.start);
            end = ((page & !(unit - 1)) + unit).min(range.end);
        }
        let mut shown = 0;
        let mut at = low;
        while at < end {
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
            at += PAGE_SIZE;
        }
        self.recount_own();
        self.resident.fetch_add(shown, Ordering::Relaxed);
        self.trace_pages(Kind::Around, low, page);
        Serve::Done((end - page) >> PAGE_SHIFT, kind)
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
        (pages / UNITS_MAX).next_power_of_two().clamp(16, 4096)
    }
}
