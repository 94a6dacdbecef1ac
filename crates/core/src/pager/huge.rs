//! Huge pages: 2 MiB out and in as a whole.
//!
//! ```text
//!              one MOVE                 compressed page by page, without the lock
//!   RESIDENT x 512 ------> a block of limbo ---------------------------------------> STORED x 512
//!        ^                     |                                                         |
//!        |   one MOVE back     |                   loaded into the dock, one MOVE        |
//!        +---------------------+---------------------------------------------------------+
//! ```
//! A huge page is a unit of the kernel only: here it is 512 page words that change together, so
//! that everything else (holds, discarding, mremap, fork, the cache) may meet one and see nothing
//! but pages. Where pages of a stretch go different ways, it is small until all of them are out
//! again; then the kernel's table of small pages is removed, if this kernel allows it.
//! `huge_state.rs` knows which stretches may be huge, and `huge_sampling.rs` decides whether one
//! comes whole at all. A huge page that the kernel splits is never wrong, only slow.

use core::sync::atomic::{Ordering, fence};

use super::book::swap_entry;
use super::fill::Serve;
use super::huge_sampling::Usage;
use super::{Active, Locked, Pager};
use crate::cache::{LoadError, Origin, Print};
use crate::control::Counter;
use crate::control::trace::Kind;
use crate::latency::FaultKind;
use crate::region::table::MiddleEntry;
use crate::region::{Mapped, PageState, Range};
use crate::sys::mechanism::{Mover, Next};
use crate::sys::{HUGE_BYTES, HUGE_PAGES, PAGE_SIZE};

/// Contents of a stretch's pages.
enum Contents {
    /// Nothing: they read as zero.
    Zero,
    /// Nothing, or copies in the cache.
    Stored,
    /// All in one block of limbo, which no thread is emptying.
    Block(usize),
    Mixed,
}

/// Where the frames of a huge page come from.
#[derive(Clone, Copy)]
enum Source {
    /// New ones, filled in the dock.
    Dock,
    /// Those that a block of limbo has kept; its first slot.
    Kept(usize),
    /// Those that the page left with: the first slot of a block of limbo, and the block's place in
    /// the order.
    Block(usize, u64),
}

/// A huge page that is to come in.
struct HugeFill {
    start: usize,
    was_small: bool,
    is_zero: bool,
    from: Source,
}

impl HugeFill {
    /// The slots of its frames, if they are not in the dock.
    fn frames(&self) -> Option<usize> {
        match self.from {
            Source::Dock => None,
            Source::Kept(slot) | Source::Block(slot, _) => Some(slot),
        }
    }
}

/// The result of a huge fill: pages from the first on, whether they are one huge page to the
/// kernel, and the kind of load that took longest.
struct HugeFilled {
    pages: usize,
    is_huge: bool,
    kind: FaultKind,
}

impl Pager {
    /// Serves a missing page of `range` with all of the huge page around it, if there is to be one.
    /// `None`: the page comes by itself.
    pub(super) fn serve_huge(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        range: &Range,
        page: usize,
    ) -> Option<Serve> {
        // The kernel moves nothing between memory that is locked and memory that is not.
        let may_come = range.is_swept() && self.may_be_huge(active, range, page);
        let mechanism = active.mechanism.as_huge().filter(|_| may_come)?;
        let start = page / HUGE_BYTES * HUGE_BYTES;
        // Words first: without memory for them nothing may be mapped.
        let m = self.table.ensure(start).ok()?.0;
        let (was_small, keeps_tables) = (m.mapped() == Mapped::Small, mechanism.keeps_tables());
        if m.resident() > 0 || was_small && keeps_tables {
            return None;
        }
        let usage = Usage::from_bits(m.usage());
        let is_in_block = !was_small && matches!(self.state_of(start), PageState::Limbo(_));
        if !is_in_block && !s.huge_sampling.may_come_whole(usage, m.occupied() as usize) {
            if !usage.is_probed {
                self.begin_probe(s, m, start);
            }
            return None;
        }
        let mut h = HugeFill { start, was_small, from: Source::Dock, is_zero: false };
        match self.contents(s, start) {
            Contents::Mixed => return None,
            Contents::Block(slot) => h.from = Source::Block(slot, 0),
            _ if !self.has_room_for_huge(s) => {
                return Some(Serve::NeedRoom(HUGE_PAGES as i64));
            }
            Contents::Stored if s.huge_sampling.is_probe(usage, keeps_tables) => {
                self.begin_probe(s, m, start);
                return None;
            }
            contents => h.is_zero = matches!(contents, Contents::Zero),
        }
        let has_frame = s.limbo.kept_frame().is_some();
        let needs_dock = matches!(h.from, Source::Dock) && !has_frame;
        if needs_dock && s.is_dock_taken || !self.claim_stretches(s, start, start + HUGE_BYTES) {
            // Another thread is at the stretch, or at the dock.
            self.wait_for_claim(s);
            return Some(Serve::Changed);
        }
        if !matches!(h.from, Source::Block(..)) {
            m.set_usage(Usage { is_first: h.is_zero, is_probed: false, ..usage }.bits());
        }
        Some(self.bring_huge(s, active, mechanism, m, h, page))
    }

    /// Brings the huge page of a stretch that is claimed, and ends the claim.
    fn bring_huge(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        mechanism: Mover<'_>,
        m: &MiddleEntry,
        mut h: HugeFill,
        page: usize,
    ) -> Serve {
        let start = h.start;
        match &mut h.from {
            Source::Block(slot, place) => *place = s.limbo.take_waiting_block(*slot),
            from => match s.limbo.take_kept_frame() {
                Some(slot) => *from = Source::Kept(slot),
                None => s.is_dock_taken = true,
            },
        }
        // The frame of the huge page counts already if it is limbo's, and from now on if it is new.
        let counted = if h.frames().is_some() { HUGE_PAGES as i64 } else { 0 };
        self.count_frames(-counted);
        self.count_coming(HUGE_PAGES);
        let mut prints = [[0u8; 8]; HUGE_PAGES];
        let filled = s.unlocked(|| self.fill_huge(active, mechanism, &h, &mut prints));
        self.count_not_come(HUGE_PAGES);
        self.count_frames(counted);
        if matches!(h.from, Source::Dock) {
            s.is_dock_taken = false;
        }
        let Some(f) = filled else {
            m.set_mapped(Mapped::Small);
            if let Source::Kept(slot) = h.from {
                self.release_block(s, active, slot);
            }
            self.end_stretch_claims(s, start, start + HUGE_BYTES);
            return Serve::Changed;
        };
        self.note_came_whole(s, active, (m, start), (f.pages, f.is_huge), &prints);
        self.end_huge_frames(s, active, mechanism, &h, &f);
        self.end_stretch_claims(s, start, start + HUGE_BYTES);
        self.trace_pages(Kind::Around, start, page.min(start + f.pages * PAGE_SIZE));
        self.recount_own();
        if f.pages < HUGE_PAGES && start + f.pages * PAGE_SIZE <= page {
            return Serve::Changed;
        }
        self.add(Counter::HugeFaults, 1);
        Serve::Done((start + f.pages * PAGE_SIZE - page) / PAGE_SIZE, f.kind)
    }

    /// Fills a huge page and moves it in, without the lock. `None`: it cannot come as a whole.
    fn fill_huge(
        &self,
        active: &Active,
        mechanism: Mover<'_>,
        h: &HugeFill,
        prints: &mut [[u8; 8]; HUGE_PAGES],
    ) -> Option<HugeFilled> {
        let (start, frames) = (h.start, h.frames());
        let mut kind = FaultKind::LimboHit;
        if !matches!(h.from, Source::Block(..)) {
            if h.was_small && !mechanism.clear_table(start) {
                return None;
            }
            let Ok(from) = self.fill_frame(active, mechanism, frames, start, h.is_zero, prints)
            else {
                // A touch of the page that cannot be loaded will tell that it is lost. The dock is
                // another thread's while this one fills a kept frame.
                if frames.is_none() {
                    mechanism.clear_dock();
                }
                return None;
            };
            kind = from;
        }
        // Memory may be fragmented: then the source is no huge page to begin with.
        let is_test = h.was_small && mechanism.is_source_huge(frames);
        let pages = mechanism.fill_huge(start, frames);
        let is_huge = pages == HUGE_PAGES && mechanism.is_huge(start);
        if is_test && pages == HUGE_PAGES && !is_huge {
            mechanism.note_table_kept();
        }
        Some(HugeFilled { pages, is_huge, kind })
    }

    /// Settles the frames that a huge page came from.
    fn end_huge_frames(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        mechanism: Mover<'_>,
        h: &HugeFill,
        f: &HugeFilled,
    ) {
        match h.from {
            Source::Dock if !f.is_huge => mechanism.clear_dock(),
            Source::Dock => {}
            Source::Block(slot, _) | Source::Kept(slot) if f.pages == HUGE_PAGES => {
                // The block's frames are the program's now. A block from which they came split
                // would split the next huge page, too.
                if !f.is_huge {
                    active.mechanism.release_slots(slot, HUGE_PAGES);
                }
                s.limbo.finish_block(slot);
                self.count_frames(-(HUGE_PAGES as i64));
            }
            Source::Kept(slot) => self.release_block(s, active, slot),
            Source::Block(slot, place) => s.limbo.leave_block(slot, place),
        }
    }

    /// Writes the contents of the huge page at `start` into the kept frame, or into the dock.
    /// `prints` gets the fingerprints of those pages whose copies are to stay, taken while the
    /// pages are still in the processor's cache; it is a buffer of the pager's, as a signal's stack
    /// has no room for 512 of them. Returns where the contents came from; a page that cannot be
    /// loaded is an error.
    fn fill_frame(
        &self,
        active: &Active,
        mechanism: Mover<'_>,
        kept: Option<usize>,
        start: usize,
        zero: bool,
        prints: &mut [[u8; 8]],
    ) -> Result<FaultKind, LoadError> {
        if zero && kept.is_none() {
            // The kernel fills the dock with zeros at the first touch.
            mechanism.with_page_to_fill(None, 0, |bytes| bytes[0] = 0);
            return Ok(FaultKind::FirstTouch);
        }
        let mut kind = if zero { FaultKind::FirstTouch } else { FaultKind::PoolLoad };
        for (i, print) in prints.iter_mut().enumerate().take(HUGE_PAGES) {
            match self.state_of(start + i * PAGE_SIZE) {
                PageState::Stored(raw) => {
                    let entry = swap_entry(raw);
                    let load = |bytes: &mut _| {
                        let loaded = active.cache.swap_in_from(entry, bytes)?;
                        *print = Print::to_bytes(active.cache.print(loaded, bytes));
                        Ok(loaded.from)
                    };
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

    /// Takes out the huge page at `start` that a sweep has picked, if it still is one. Returns the
    /// pages taken out; `None`: there is no block for them.
    pub(super) fn take_huge(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        start: usize,
        from_trail: bool,
    ) -> Option<usize> {
        let range = self.ranges.find(start).filter(Range::is_swept);
        let is_there = range.is_some_and(|r| self.huge_page(active, &r, start).is_some());
        if !is_there || !self.claim_stretches(s, start, start + HUGE_BYTES) {
            return Some(0);
        }
        let Some(slot) = s.limbo.reserve_block() else {
            self.end_stretch_claims(s, start, start + HUGE_BYTES);
            return None;
        };
        // As in `take_run`: publish the intent, then look at the holds.
        let each = |from: usize, f: &dyn Fn(usize, &crate::region::PageEntry)| {
            for i in from..HUGE_PAGES {
                self.table.word(start + i * PAGE_SIZE, |_, e| f(i, e));
            }
        };
        let may_go = (0..HUGE_PAGES).all(|i| {
            self.table
                .get(start + i * PAGE_SIZE)
                .is_some_and(|e| e.is_resident() && !e.is_guarded())
        });
        let mut taken = 0;
        if may_go {
            each(0, &|i, e| e.enter_limbo((slot + i) as u64, from_trail));
            fence(Ordering::SeqCst);
            if self.holds.is_held(start, start + HUGE_BYTES) {
                each(0, &|_, e| e.refuse_limbo(true));
            } else {
                let t = s.unlocked(|| active.mechanism.take_out(start, HUGE_PAGES, slot));
                each(t.pages, &|_, e| e.refuse_limbo(true));
                if t.next == Next::Absent {
                    self.note_dropped(s, start + t.pages * PAGE_SIZE);
                }
                taken = t.pages;
            }
        }
        self.end_taking_huge(s, start, slot, taken);
        Some(taken)
    }

    /// Notes that the first `pages` pages of a huge page are in a block.
    fn end_taking_huge(&self, s: &mut Locked<'_>, start: usize, slot: usize, pages: usize) {
        if pages == 0 {
            s.limbo.finish_block(slot);
        } else {
            self.note_taken_whole(s, start, pages);
            s.limbo.take_block(slot, start, pages);
        }
        self.end_stretch_claims(s, start, start + HUGE_BYTES);
        if pages < HUGE_PAGES {
            self.note_small(start);
        }
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering;

    use super::super::model::{READ_WRITE, Spec, Thread, Touch, World};
    use super::*;
    use crate::region::RangeFlags;
    use crate::store::testing::Fault;
    use crate::testing::noise;

    const HUGE: i64 = HUGE_PAGES as i64;

    /// Two stretches that no thread has touched.
    fn world(blocks: usize) -> World {
        let spec = Spec { blocks, has_store: true, ..Spec::roomy(2 * HUGE_PAGES) };
        let w = World::new(spec);
        w.map(0, spec.pages, READ_WRITE);
        w
    }

    /// Bytes of a page that is written. No codec makes them smaller, so they go to the store.
    fn written(page: usize) -> [u8; PAGE_SIZE] {
        noise(page as u64 + 1)
    }

    fn zeros(_: usize) -> [u8; PAGE_SIZE] {
        [0; PAGE_SIZE]
    }

    fn each(thread: &mut Thread<'_>, stretch: usize, f: impl Fn(usize, &mut [u8; PAGE_SIZE])) {
        for page in stretch * HUGE_PAGES..(stretch + 1) * HUGE_PAGES {
            let touch = thread.access(thread.world.at(page), true, |b| f(page, b));
            assert_eq!(touch, Touch::Done);
        }
    }

    fn write(thread: &mut Thread<'_>, stretch: usize) {
        each(thread, stretch, |page, b| *b = written(page));
    }

    fn assert_is(thread: &mut Thread<'_>, stretch: usize, bytes: fn(usize) -> [u8; PAGE_SIZE]) {
        each(thread, stretch, |page, b| assert!(*b == bytes(page), "page {page}"));
    }

    fn take(w: &World, stretch: usize) -> Option<usize> {
        w.pager.take_huge(&mut w.pager.enter(), w.active(), w.at(stretch * HUGE_PAGES), false)
    }

    fn serve(w: &World, page: usize) -> Option<Serve> {
        let range = w.pager.ranges.find(w.at(page)).expect("it is mapped");
        w.pager.serve_huge(&mut w.pager.enter(), w.active(), &range, w.at(page))
    }

    /// Resident pages, and frames of limbo.
    fn counts(w: &World) -> (i64, i64) {
        (w.pager.resident_pages(), w.pager.limbo_pages())
    }

    /// A forgotten claim would let `World::check` wait for ever.
    fn check(w: &World) {
        let s = w.pager.enter();
        w.pager.check_claims(&s);
        assert!(!s.is_dock_taken);
        drop(s);
        w.check();
    }

    #[test]
    fn a_huge_page_goes_if_there_is_a_block_and_comes_back_whole_in_its_frames() {
        let w = world(1);
        let mut thread = w.thread();
        (0..2).for_each(|stretch| write(&mut thread, stretch));
        assert_eq!(take(&w, 0), Some(HUGE_PAGES));
        assert_eq!((counts(&w), take(&w, 0)), ((HUGE, HUGE), Some(0)), "it is out already");
        assert_eq!([take(&w, 1), take(&w, 1)], [None; 2], "there is one block");
        check(&w);
        let touch = thread.access(w.at(HUGE_PAGES - 1), false, |_| ());
        assert_eq!((touch, counts(&w)), (Touch::Done, (2 * HUGE, 0)));
        assert!(w.pager.is_in_huge(w.at(0)) && w.fake().is_huge(w.at(0)));
        assert_eq!(take(&w, 1), Some(HUGE_PAGES), "the block is free again");
        check(&w);
        (0..2).for_each(|stretch| assert_is(&mut thread, stretch, written));
        assert_eq!(w.pager.slot().get(Counter::HugeFaults), 4);
    }

    #[test]
    fn into_locked_memory_come_small_pages() {
        let w = world(2);
        w.pager.note_flag(w.at(0), w.at(HUGE_PAGES), RangeFlags::LOCKED, true);
        assert!(serve(&w, 5).is_none() && serve(&w, HUGE_PAGES + 5).is_some());
        let mut thread = w.thread();
        write(&mut thread, 0);
        assert_is(&mut thread, 0, written);
        assert!(!w.pager.is_in_huge(w.at(0)) && w.pager.is_in_huge(w.at(HUGE_PAGES)));
        check(&w);
    }

    #[test]
    fn a_huge_page_of_which_a_call_holds_the_last_page_stays() {
        let w = world(2);
        let mut thread = w.thread();
        (0..2).for_each(|stretch| write(&mut thread, stretch));
        let mark = thread.holds.mark();
        thread.holds.push(w.at(HUGE_PAGES - 1), w.at(HUGE_PAGES), 1);
        assert_eq!((take(&w, 0), take(&w, 1)), (Some(0), Some(HUGE_PAGES)));
        thread.holds.pop_to(mark);
        assert_eq!(counts(&w), (HUGE, HUGE));
        assert_eq!(w.pager.enter().limbo.in_use(), HUGE_PAGES, "its block is free again");
        check(&w);
        (0..2).for_each(|stretch| assert_is(&mut thread, stretch, written));
    }

    #[test]
    fn a_huge_page_that_the_kernel_takes_in_part_is_small_and_counts_whole_in_limbo() {
        let w = world(2);
        let mut thread = w.thread();
        write(&mut thread, 0);
        w.fake().set_trouble(1);
        let taken = take(&w, 0).expect("there is a block");
        w.fake().set_trouble(0);
        assert!((1..HUGE_PAGES).contains(&taken), "each call stops halfway");
        assert_eq!(counts(&w), (HUGE - taken as i64, HUGE));
        assert_eq!(w.pager.table.middle(w.at(0)).map(|m| m.mapped()), Some(Mapped::Small));
        check(&w);
        assert_is(&mut thread, 0, written);
        assert_eq!(counts(&w), (HUGE, HUGE), "the block is given back as a whole");
        w.age_out(1);
        assert_eq!(counts(&w), (HUGE, 0));
        check(&w);
    }

    #[test]
    fn a_kept_frame_is_room_for_a_huge_page_and_shows_nothing_of_the_last_one() {
        let w = world(2);
        let mut thread = w.thread();
        write(&mut thread, 0);
        assert_eq!(take(&w, 0), Some(HUGE_PAGES));
        w.age_out(1);
        assert_eq!(counts(&w), (0, HUGE), "its frame is kept");
        // Memory is just full.
        w.pager.publish(true);
        w.pager.tree().limit_pages.store(w.pager.used_pages(), Ordering::Relaxed);
        let served = serve(&w, HUGE_PAGES + 9).expect("it comes whole");
        assert!(matches!(served, Serve::Done(503, FaultKind::FirstTouch)), "from page 9 to 511");
        assert_eq!(counts(&w), (HUGE, 0));
        assert_is(&mut thread, 1, zeros);
        check(&w);
    }

    #[test]
    fn a_huge_page_that_cannot_be_loaded_leaves_nothing_behind() {
        let w = world(2);
        let mut thread = w.thread();
        write(&mut thread, 0);
        w.page_out();
        // Other stretches were found to be dense, so this one may come whole.
        w.pager.enter().huge_sampling.judge(Usage::default(), HUGE_PAGES);
        let store = w.store.expect("asked for");
        store.set_fault(Fault::From(4));
        assert!(matches!(serve(&w, 0), Some(Serve::Changed)));
        store.set_fault(Fault::Never);
        assert_eq!((counts(&w), w.pager.stored_pages()), ((0, 0), HUGE));
        check(&w);
        // The dock is free, and has no page of it.
        assert_is(&mut thread, 1, zeros);
        assert_is(&mut thread, 0, written);
        assert_eq!(w.pager.slot().get(Counter::HugeFaults), 3);
        check(&w);
    }
}
