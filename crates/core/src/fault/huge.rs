//! Huge pages: 2 MiB out and in as a whole.
//!
//! ```text
//!              one MOVE                 compressed page by page, without the lock
//!   RESIDENT x 512 ------> a block of limbo ---------------------------------------> STORED x 512
//!        ^                     |                                                         |
//!        |   one MOVE back     |                   loaded into the dock, one MOVE        |
//!        +---------------------+---------------------------------------------------------+
//! ```
//! A huge page is only more to the kernel: here it is 512 page words that change together, so that everything else
//! (holds, discarding, mremap, fork, the cache) may meet one and see nothing but pages. Where pages of a stretch go
//! different ways, it is small from then on, until the program maps it anew. That the kernel splits a huge page under us is
//! never wrong, only slow.

use core::sync::atomic::{Ordering, fence};

use super::resolve::{Serve, swap_entry};
use super::{Active, Locked, PROT_EXEC, PROT_READ, PROT_WRITE, Pager};
use crate::cache::{LoadError, Origin};
use crate::control::trace::Kind;
use crate::control::{Counter, HugePages};
use crate::latency::FaultKind;
use crate::region::{Mapped, PageState, Range, RangeFlags};
use crate::sys::mechanism::{Next, Uffd};
use crate::sys::{HUGE_BYTES, HUGE_PAGES, PAGE_SIZE};

/// What is at the pages of a stretch.
enum Contents {
    /// Nothing: they read as zero.
    Zero,
    /// Nothing, or copies in the cache.
    Stored,
    /// All in one block of limbo, which nobody is emptying.
    Block(usize),
    Mixed,
}

impl Pager {
    /// Whether there may be huge pages at all.
    pub fn makes_huge_pages(&self) -> bool {
        self.active().is_some_and(|a| a.blocks > 0 && a.huge_pages != HugePages::Never)
    }

    /// With `always`, a new range may become huge. The kernel must believe it, too: else it makes a table of small pages
    /// for the very fault that is to bring the huge one.
    pub(super) fn want_huge(&self, active: &Active, range: &Range) {
        if active.blocks > 0
            && active.huge_pages == HugePages::Always
            && !range.flags.has(RangeFlags::NOT_HUGE)
            && range.len() >= HUGE_BYTES
        {
            active.mechanism.want_huge(range.start, range.len());
        }
    }

    /// Whether the stretch around `page` is, or may become, a huge page of `range`.
    pub(super) fn may_be_huge(&self, active: &Active, range: &Range, page: usize) -> bool {
        let start = page / HUGE_BYTES * HUGE_BYTES;
        let asked = match active.huge_pages {
            HugePages::Never => false,
            HugePages::Madvise => range.flags.has(RangeFlags::HUGE),
            HugePages::Always => !range.flags.has(RangeFlags::NOT_HUGE),
        };
        asked
            && active.blocks > 0
            && range.start <= start
            && start + HUGE_BYTES <= range.end
            && range.prot & (PROT_READ | PROT_WRITE | PROT_EXEC) == PROT_READ | PROT_WRITE
            && !range.flags.has(RangeFlags::UNREGISTERED)
    }

    /// The huge page of `range` that `addr` is in, if there is one: its start.
    pub(super) fn huge_page(&self, active: &Active, range: &Range, addr: usize) -> Option<usize> {
        let m = self.table.middle(addr)?;
        let whole = m.mapped() == Mapped::Huge && m.resident() as usize == HUGE_PAGES;
        (whole && self.may_be_huge(active, range, addr)).then_some(addr / HUGE_BYTES * HUGE_BYTES)
    }

    /// Pages around `page` come or go one by one: the kernel has a table of small pages there.
    pub(super) fn note_small(&self, page: usize) {
        if let Some(m) = self.table.middle(page) {
            m.set_mapped(Mapped::Small);
        }
    }

    /// Before fork, with the lock held: a huge page in common is written page by page.
    pub(super) fn note_all_small(&self) {
        for i in 0..self.ranges.len() {
            let range = self.ranges.at(i);
            self.table.for_each_stretch(range.start, range.end, |_, m| {
                if m.resident() > 0 {
                    m.set_mapped(Mapped::Small);
                }
            });
        }
    }

    /// A page of `range` is missing: brings all of the huge page around it, if there is to be one. `None`: it comes by itself.
    pub(super) fn serve_huge(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        range: &Range,
        page: usize,
    ) -> Option<Serve> {
        let mechanism = active.mechanism.as_huge().filter(|_| self.may_be_huge(active, range, page))?;
        let start = page / HUGE_BYTES * HUGE_BYTES;
        // Words first: without memory for them nothing may be mapped.
        let m = self.table.ensure(start).ok()?.0;
        if m.mapped() == Mapped::Small || m.resident() > 0 {
            return None;
        }
        let kept = s.limbo.kept_frame();
        let mut kind = FaultKind::LimboHit;
        let block = match self.contents(s, start) {
            Contents::Mixed => return None,
            Contents::Block(slot) => Some(slot),
            _ if !self.has_room_for_huge(s) => {
                return Some(Serve::NeedRoom(HUGE_PAGES as i64));
            }
            contents => {
                let zero = matches!(contents, Contents::Zero);
                let Ok(from) = self.fill_frame(active, mechanism, kept, start, zero) else {
                    // Whoever touches the page that cannot be loaded will hear of it.
                    mechanism.clear_dock();
                    m.set_mapped(Mapped::Small);
                    return None;
                };
                kind = from;
                kept
            }
        };
        let filled = mechanism.fill_huge(start, block);
        let (mut touched, mut loaded, mut hits) = (0, 0, 0);
        for i in 0..filled {
            self.word(start + i * PAGE_SIZE, |_, e| match e.state() {
                PageState::None => {
                    e.touch_first();
                    touched += 1;
                }
                PageState::Stored(raw) => {
                    self.note_return(e);
                    e.load();
                    loaded += 1;
                    self.free_entry(Some(raw));
                }
                PageState::Limbo(slot) => {
                    self.note_return(e);
                    e.leave_limbo();
                    s.limbo.kill(slot as usize);
                    hits += 1;
                }
                PageState::Resident => unreachable!("no page of the stretch is resident"),
            });
        }
        m.count(filled as i32, touched);
        self.resident.fetch_add(filled as i64, Ordering::Relaxed);
        self.stored.fetch_sub(loaded, Ordering::Relaxed);
        self.add(Counter::FirstTouches, touched as u64);
        self.add(Counter::Loads, loaded as u64);
        self.add(Counter::LimboHits, hits);
        m.set_mapped(if filled == HUGE_PAGES { Mapped::Huge } else { Mapped::Small });
        self.trace_pages(Kind::Around, start, page.min(start + filled * PAGE_SIZE));
        match block {
            Some(slot) if filled == HUGE_PAGES => {
                // Its frames are the program's now.
                s.limbo.finish_block(slot);
                self.limbo_pages.fetch_sub(HUGE_PAGES as i64, Ordering::Relaxed);
            }
            Some(slot) if block == kept => self.release_block(s, active, slot),
            None if filled < HUGE_PAGES => mechanism.clear_dock(),
            _ => {}
        }
        self.recount_own();
        if filled < HUGE_PAGES && start + filled * PAGE_SIZE <= page {
            return None;
        }
        self.add(Counter::HugeFaults, 1);
        Some(Serve::Done((start + filled * PAGE_SIZE - page) / PAGE_SIZE, kind))
    }

    /// Writes what the huge page at `start` is to hold into the kept frame, or into the dock. Says where it came from; a page
    /// that cannot be loaded is an error.
    fn fill_frame(
        &self,
        active: &Active,
        mechanism: &Uffd,
        kept: Option<usize>,
        start: usize,
        zero: bool,
    ) -> Result<FaultKind, LoadError> {
        if zero && kept.is_none() {
            // The kernel's own zeros.
            mechanism.with_page_to_fill(None, 0, |bytes| bytes[0] = 0);
            return Ok(FaultKind::FirstTouch);
        }
        let mut kind = if zero { FaultKind::FirstTouch } else { FaultKind::PoolLoad };
        for i in 0..HUGE_PAGES {
            match self.state_of(start + i * PAGE_SIZE) {
                PageState::Stored(raw) => {
                    let load = |bytes: &mut _| active.cache.swap_in_from(swap_entry(raw), bytes);
                    if mechanism.with_page_to_fill(kept, i, load)? == Origin::Store {
                        kind = FaultKind::StoreLoad;
                    }
                }
                _ if kept.is_some() => mechanism.with_page_to_fill(kept, i, |bytes| bytes.fill(0)),
                _ => {}
            }
        }
        Ok(kind)
    }

    /// Frames that were kept for what comes in go back to the kernel, a huge page's or a window's. Says whether there were any.
    pub(super) fn give_frame_back(&self, s: &mut Locked<'_>, active: &Active) -> bool {
        if self.give_stock_back(s, active) {
            return true;
        }
        let Some(slot) = s.limbo.kept_frame() else { return false };
        self.release_block(s, active, slot);
        true
    }

    fn release_block(&self, s: &mut Locked<'_>, active: &Active, slot: usize) {
        active.mechanism.release_slots(slot, HUGE_PAGES);
        s.limbo.finish_block(slot);
        self.limbo_pages.fetch_sub(HUGE_PAGES as i64, Ordering::Relaxed);
    }

    /// Whether there is room for a huge page. A frame that was kept counts already.
    pub(super) fn has_room_for_huge(&self, s: &Locked<'_>) -> bool {
        let more = if s.limbo.kept_frame().is_some() { 0 } else { HUGE_PAGES as i64 };
        self.excess(more) <= 0
    }

    fn contents(&self, s: &Locked<'_>, start: usize) -> Contents {
        if let PageState::Limbo(slot) = self.state_of(start) {
            let whole = s.limbo.is_whole(slot as usize, start);
            return if whole { Contents::Block(slot as usize) } else { Contents::Mixed };
        }
        let mut stored = false;
        for i in 0..HUGE_PAGES {
            match self.state_of(start + i * PAGE_SIZE) {
                PageState::None => {}
                PageState::Stored(_) => stored = true,
                PageState::Limbo(_) | PageState::Resident => return Contents::Mixed,
            }
        }
        if stored { Contents::Stored } else { Contents::Zero }
    }

    /// The sweep comes to the huge page at `start`. Returns the pages taken out; `None`: there is no block for them.
    pub(super) fn sweep_huge(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        start: usize,
        behind: bool,
    ) -> Option<usize> {
        if !self.word(start, |_, e| if behind { e.may_go_behind() } else { e.cool() }) {
            return Some(0);
        }
        let slot = s.limbo.peek_free_block()?;
        // As in `take_run`: publish the intent, then look at the holds.
        let each = |from: usize, f: &dyn Fn(usize, &crate::region::PageEntry)| {
            for i in from..HUGE_PAGES {
                self.word(start + i * PAGE_SIZE, |_, e| f(i, e));
            }
        };
        each(0, &|i, e| e.enter_limbo((slot + i) as u64, behind));
        fence(Ordering::SeqCst);
        if self.holds.is_held(start, start + HUGE_BYTES) {
            each(0, &|_, e| e.refuse_limbo(true));
            return Some(0);
        }
        let t = active.mechanism.take_out(start, HUGE_PAGES, slot);
        each(t.pages, &|_, e| e.refuse_limbo(true));
        if t.next == Next::Absent {
            self.note_dropped(start + t.pages * PAGE_SIZE);
        }
        if t.pages < HUGE_PAGES {
            self.note_small(start);
        }
        if t.pages == 0 {
            return Some(0);
        }
        self.word(start, |m, _| m.count(-(t.pages as i32), 0));
        s.limbo.take_block(slot, start, t.pages);
        self.resident.fetch_sub(t.pages as i64, Ordering::Relaxed);
        // The block counts as a whole: it is given back as a whole.
        self.limbo_pages.fetch_add(HUGE_PAGES as i64, Ordering::Relaxed);
        self.add(Counter::HugeEvictions, 1);
        Some(t.pages)
    }
}
