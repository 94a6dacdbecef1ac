//! Paging ends for good, while the program goes on: every page is brought in, over the limit if
//! need be, and the memory is the kernel's alone again.
//!
//! This is the last resort where something that paging needs is about to go, or is gone. A seccomp
//! filter may refuse the pager's calls, a child may not have a userfaultfd, a second thread may
//! come where only one may be ([`needs_to_be_alone`]). A program over its limit is better than a
//! program that dies or sees wrong bytes.
//!
//! ```text
//!   all threads run, the mechanism works     end_paging:      serve what is missing, then take the ranges off
//!   of these a part                          end_paging_of:   likewise, and the pager goes on elsewhere
//!   one thread, and it does not (a child)    end_in_child:    plain copies, nobody looks on
//! ```
//!
//! [`needs_to_be_alone`]: crate::sys::mechanism::Mechanism::needs_to_be_alone

use core::sync::atomic::Ordering;

use super::book::swap_entry;
use super::fill::Serve;
use super::{Active, Locked, Pager};
use crate::policy::WINDOW_LOCKED_PAGES;
use crate::region::{ADDRESS_END, PageState, Range, RangeFlags};
use crate::sys::{PAGE_SHIFT, PAGE_SIZE, Result, program};

/// How long the wait for pages that other threads have in hand sleeps between two looks.
const WAIT_NS: u64 = 50_000;
/// Attempts to fill a page that the kernel refuses, before it is given up.
const TRIES_MAX: u32 = 200;
/// Readable and writable.
const DATA: usize = 3;

impl Pager {
    /// Ends paging in a process whose mechanism works. The evictor must have stopped. False: a
    /// range could not be taken off, so missing pages go on being served, and no page leaves any
    /// more.
    pub fn end_paging<'a>(&'a self, s: Locked<'a>) -> (Locked<'a>, bool) {
        let Some(active) = self.active() else { return (s, true) };
        let mut s = self.begin_to_end(s, active);
        loop {
            let lost;
            (s, lost) = self.bring_all_for_good(s, active, 0, ADDRESS_END);
            let Some(page) = lost else { break };
            self.give_up(&mut s, page);
        }
        self.wait_for_copies();
        let mut all = true;
        for i in 0..self.ranges.len() {
            let r = self.ranges.at(i);
            let is_paged = !r.flags.has(RangeFlags::UNREGISTERED);
            all &= !is_paged || active.mechanism.release(r.start, r.len(), r.prot).is_ok();
        }
        if all {
            self.forget_paging(&mut s, active);
        }
        (s, all)
    }

    /// Begins the end. From then on nothing is on its way out, and no thread has slots of limbo
    /// without a claim of pages: their frames go at the end.
    pub(super) fn begin_to_end<'a>(&'a self, mut s: Locked<'a>, active: &Active) -> Locked<'a> {
        self.ending.store(true, Ordering::Release);
        self.is_watching.store(false, Ordering::Release);
        // A page on its way out is taken back, or gone, once its claimer is done with it; no page
        // begins to leave any more.
        while s.is_ageing() {
            drop(s);
            crate::sys::sleep_ns(WAIT_NS);
            s = self.lock();
        }
        // A window is loaded into frames of the stock, and its pages are claimed afterwards.
        // Without a stock no window begins.
        while self.give_frame_back(&mut s, active) {}
        s
    }

    /// Ends paging of `[start, end)` in a process that goes on paging: all of it is brought in, and
    /// is the program's and the kernel's alone from then on, like memory that was never managed.
    /// False: some of it cannot be brought in or taken off now. It goes on being served, and none
    /// of it leaves.
    pub fn end_paging_of(&self, start: usize, end: usize) -> bool {
        let mut s = self.lock_range(start, end);
        // No page of it leaves from here on.
        self.note_flag(start, end, RangeFlags::STAYS, true);
        let mut all = true;
        if let Some(active) = self.active() {
            let lost;
            (s, lost) = self.bring_all_for_good(s, active, start, end);
            if lost.is_some() {
                return false;
            }
            self.wait_for_copies();
            // Where an attachment failed, part of it may have been made, so each range is taken
            // off.
            self.ranges.for_each(start, end, |r| {
                all &= active.mechanism.release(r.start, r.len(), r.prot).is_ok();
            });
        }
        if all {
            self.note_unmapped(&mut s, start, end);
        }
        all
    }

    /// Ends paging in the child of a fork, before anything else runs there, because it cannot have
    /// the mechanism.
    pub(super) fn end_in_child(&self, s: &mut Locked<'_>, active: &'static Active) {
        self.ending.store(true, Ordering::Release);
        self.is_watching.store(false, Ordering::Release);
        active.mechanism.close();
        let _ = self.for_each_inherited(s, |s, r| {
            let is_shown = program::show(r.start, r.len(), DATA).is_ok();
            let mut at = r.start;
            while let Some(run) = self.first_out(&Range { start: at, ..r }, usize::MAX) {
                for page in (run.start..run.end).step_by(PAGE_SIZE) {
                    if !is_shown || !self.copy_in_place(s, active, page) {
                        self.give_up(s, page);
                    }
                }
                at = run.end;
            }
            // Pages that were given up stay hidden: their bytes would be wrong.
            self.ranges.for_each(r.start, r.end, |part| {
                if !part.flags.has(RangeFlags::UNREGISTERED) {
                    let _ = program::show(part.start, part.len(), part.prot as usize);
                }
            });
            Ok(())
        });
        self.forget_paging(s, active);
    }

    /// Frees the rest of paging once all pages are in: the pager's memory is given back, and the
    /// pager is as in a dormant process.
    fn forget_paging(&self, s: &mut Locked<'_>, active: &Active) {
        self.table.for_each_occupied(0, usize::MAX, |_, _, e| self.free_entry(e.take_copy()));
        s.limbo.after_fork_child(|slot, n| active.mechanism.release_slots(slot, n));
        self.count_frames(-self.limbo_pages());
        active.cache.give_buffers_back();
        self.note_flag(0, ADDRESS_END, RangeFlags::UNREGISTERED, true);
        // A fault looks at the two without the lock, and must find one of them.
        self.ended.store(self.active.load(Ordering::Acquire), Ordering::Release);
        self.active.store(core::ptr::null_mut(), Ordering::Release);
    }

    /// Brings in the missing pages of `[start, end)`, where nothing leaves any more. Returns the
    /// lock, while no page of it is claimed, or with a page that cannot be had.
    fn bring_all_for_good<'a>(
        &'a self,
        mut s: Locked<'a>,
        active: &Active,
        start: usize,
        end: usize,
    ) -> (Locked<'a>, Option<usize>) {
        let most = self.batch_pages().min(WINDOW_LOCKED_PAGES);
        let missing_from = |page: usize| self.next_out(page, most).filter(|run| run.start < end);
        while let Some(first) = missing_from(start) {
            let mut next = Some(first);
            while let Some(run) = next {
                let page = run.start;
                let range = self.ranges.find(page).expect("a page that is out has a range");
                let pages = (run.end.min(end) - page) >> PAGE_SHIFT;
                let settled;
                (s, settled) = self.bring_for_good(s, active, range, page, pages);
                let Some(settled) = settled else { return (s, Some(page)) };
                next = missing_from(page + settled * PAGE_SIZE);
            }
            // A page that a thread was bringing itself is there now, or missing after all.
            drop(s);
            s = self.lock_range(start, end);
        }
        (s, None)
    }

    /// Brings in `pages` pages from `page` on, or as many as go at once. Returns how many are
    /// settled; `None`: the first cannot be had.
    fn bring_for_good<'a>(
        &'a self,
        mut s: Locked<'a>,
        active: &Active,
        range: Range,
        page: usize,
        pages: usize,
    ) -> (Locked<'a>, Option<usize>) {
        for tries in 0..TRIES_MAX {
            if !self.is_free(&s, page) {
                // Another thread brings it.
                self.wait_for_claim(&mut s);
                return (s, Some(0));
            }
            match self.serve(&mut s, active, range, page, pages, tries) {
                Serve::Done(n, _) => return (s, Some(n.max(1))),
                Serve::Lost(why) => {
                    self.note_lost(why);
                    break;
                }
                // Another thread may have brought it, or changed the range, meanwhile.
                Serve::Changed => return (s, Some(0)),
                Serve::NeedRoom(pages) if !self.is_ending() => s = self.make_room(s, active, pages),
                Serve::Again | Serve::NeedRoom(_) => {
                    s.unlocked(crate::sys::yield_now);
                    if !self.state_of(page).is_out() {
                        return (s, Some(0));
                    }
                }
            }
        }
        (s, None)
    }

    /// Copies a page's contents into place. The memory there is writable, and no other thread looks
    /// at it.
    fn copy_in_place(&self, s: &mut Locked<'_>, active: &Active, page: usize) -> bool {
        let bounce = s.bounce.as_mut().expect("active").as_mut_slice();
        let (into, _) = bounce.as_chunks_mut::<PAGE_SIZE>();
        match self.state_of(page) {
            PageState::Stored(raw) => {
                if let Err(why) = active.cache.swap_in_from(swap_entry(raw), &mut into[0]) {
                    self.note_lost(why);
                    return false;
                }
                program::put_page(page, &into[0]);
            }
            PageState::Limbo(slot) => {
                if let Some(bytes) = active.mechanism.slot(slot as usize) {
                    program::put_page(page, bytes);
                }
            }
            PageState::None | PageState::Resident => {}
        }
        self.note_copied(s, page);
        true
    }

    /// Gives up a page whose contents cannot be had: a touch of it ends the program, which is
    /// better than wrong bytes.
    fn give_up(&self, s: &mut Locked<'_>, page: usize) {
        let _ = program::show(page, PAGE_SIZE, 0);
        self.note_flag(page, page + PAGE_SIZE, RangeFlags::UNREGISTERED, true);
        self.discard_words(s, page, page + PAGE_SIZE);
    }

    /// Calls `f`, in the child, with every range that its parent paged. Ranges that fork wipes are
    /// empty by then.
    pub(super) fn for_each_inherited(
        &self,
        s: &mut Locked<'_>,
        mut f: impl FnMut(&mut Locked<'_>, Range) -> Result<()>,
    ) -> Result<()> {
        // Each range is found by its address, as `f` may split ranges.
        let mut next = 0;
        while let Some(r) = self.ranges.next_from(next) {
            next = r.end;
            if r.flags.has(RangeFlags::UNREGISTERED) {
                continue;
            }
            if r.flags.has(RangeFlags::WIPEONFORK) {
                self.note_discarded(s, r.start, r.end);
            }
            f(s, r)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::{READ_WRITE, Spec, World};

    #[test]
    fn frames_of_limbo_count_no_more_once_paging_has_ended() {
        let w = World::new(Spec::roomy(8));
        w.map(0, 8, READ_WRITE);
        w.write(0..8, |_, b| b[9] = 1);
        w.pager.take_run(&mut w.pager.enter(), w.active(), w.at(2), 3, false);
        assert_eq!(w.pager.limbo_pages(), 3);
        assert!(w.pager.end_paging(w.pager.lock()).1);
        assert_eq!((w.pager.limbo_pages(), w.pager.resident_pages()), (0, 8));
    }
}
