//! Switching paging on. Each range is attached first and looked at afterwards: from the attach on
//! only uzswap maps pages there, so the pages found present then are exactly the resident ones.

use core::sync::atomic::Ordering;

use super::{Active, Locked, Pager};
use crate::control::Counter;
use crate::policy::WINDOW_LOCKED_PAGES;
use crate::region::{ADDRESS_END, RangeFlags};
use crate::sys::mem::Mapping;
use crate::sys::{PAGE_SIZE, Result};

impl Pager {
    /// Switches paging on. The caller attaches the ranges (`activate_ranges`) under the same lock.
    pub fn set_active(&self, s: &mut Locked<'_>, active: &'static mut Active) -> Result<()> {
        s.limbo.init(active.slots, active.blocks)?;
        crate::sys::mem::keep_spare()?;
        // The buffer's frames are taken as windows grow: in a tree of many processes most never
        // need them all.
        s.bounce = Some(Mapping::new(WINDOW_LOCKED_PAGES * PAGE_SIZE)?);
        self.slot().mechanism.store(active.kind as u32, Ordering::Release);
        crate::sys::tsc::ask();
        self.room.begin();
        self.add(Counter::Activations, 1);
        self.balance.begin(active.pool_percent, active.has_store);
        self.limit_pool(active);
        self.active.store(active, Ordering::Release);
        Ok(())
    }

    /// Attaches every range and adopts what is present. With the lock held, right after
    /// `set_active`.
    pub fn activate_ranges(&self, s: &mut Locked<'_>) {
        let active = self.active().expect("active");
        let hides = active.mechanism.is_protect();
        if hides {
            // Hiding memory, if only for a moment, would fail the call that is using it. Memory
            // around it can be paged.
            self.holds.overlapping(0, ADDRESS_END, |start, end| {
                self.note_flag(start, end, RangeFlags::UNREGISTERED, true);
                false
            });
        }
        let mut i = 0;
        while i < self.ranges.len() {
            let range = self.ranges.at(i);
            i += 1;
            if range.flags.has(RangeFlags::UNREGISTERED) {
                continue;
            }
            let in_use = hides && self.holds.is_inflight(range.start, range.end);
            if in_use || active.mechanism.attach(range.start, range.len()).is_err() {
                self.note_flag(range.start, range.end, RangeFlags::UNREGISTERED, true);
                // The list may have been split or merged: find the place again.
                i = self.ranges.index_from(range.end);
                continue;
            }
            self.want_huge(active, &range);
            self.adopt(s, active, range.start, range.end, range.prot);
            self.note_huge_ones(active, &range);
        }
        self.size.store(self.used_pages(), Ordering::Relaxed);
        self.publish(true);
    }

    /// Finds the pages that are present in a range that was just attached.
    fn adopt(&self, s: &mut Locked<'_>, active: &Active, start: usize, end: usize, prot: u32) {
        let mut present = [0u8; 512];
        let unit =
            if active.mechanism.is_protect() { self.unit_pages() * PAGE_SIZE } else { PAGE_SIZE };
        let mut at = start;
        while at < end {
            let stop = ((at / (512 * PAGE_SIZE) + 1) * 512 * PAGE_SIZE).min(end);
            let pages = (stop - at) / PAGE_SIZE;
            if active.mechanism.present(at, &mut present[..pages]).is_ok()
                && present[..pages].iter().any(|p| p & 1 != 0)
            {
                for unit_at in (at / unit * unit..stop).step_by(unit) {
                    let (from, to) = (unit_at.max(at), (unit_at + unit).min(stop));
                    let slice = &present[(from - at) / PAGE_SIZE..(to - at) / PAGE_SIZE];
                    if slice.iter().any(|p| p & 1 != 0) {
                        self.adopt_run(s, active, from, to, prot);
                        self.watch_found(s, from, to);
                    }
                }
            }
            at = stop;
        }
    }

    fn adopt_run(&self, s: &Locked<'_>, active: &Active, from: usize, to: usize, prot: u32) {
        // Pages that the kernel has no mapping to show are not taken to be there: calls would not
        // make them so. By protection faults a page that was never touched is shown as it is.
        if active.mechanism.expose(from, to - from, prot).is_err() {
            return;
        }
        self.note_adopted(s, from, to);
    }
}
