//! Windows: runs of stored pages that come in together, decompressed without the lock into frames
//! that evicted pages left.
//!
//! ```text
//!   lock: words say STORED, into slots k, k+1, ...   no lock: load into the slots   claim: MOVE what is still so, RESIDENT
//!                                                                                        the rest is somebody else's by now
//! ```
//!
//! Page by page three things would be dearer. The lock would be held while this thread
//! decompresses. Each page would be copied from a buffer of the pager's to a new frame. And the old
//! frame would be given back, with an interrupt of every processor.
//!
//! Anything may happen to a page while the lock is free: touched, dropped, moved, forked, back and
//! out again. All of it changes the page's word (`region/page.rs`), and the slots are this thread's
//! alone, so a word that still names slot and entry is that of a page to which nothing has
//! happened. The entry may be gone meanwhile and its number another page's: then the loaded bytes
//! are wrong, or there are none, and the word does not name slot and entry any more.

use super::age_out::TOGETHER;
use super::book::swap_entry;
use super::fill::Serve;
use super::{Active, Locked, Pager, is_data};
use crate::cache::{LoadError, Origin, Print, SwapEntry};
use crate::latency::FaultKind;
use crate::policy::{BATCH_PAGES, WINDOW_LEAST_PAGES};
use crate::region::{PageState, Range};
use crate::sys::PAGE_SIZE;
use crate::sys::mechanism::{Filled, Mover};

/// A page of the window: its entry, and the fingerprint of the loaded bytes.
#[derive(Clone, Copy)]
struct Load {
    entry: SwapEntry,
    print: Option<Print>,
}

/// The result of a window: pages that came from the first on without a gap, pages that came in all,
/// and how many of those took their frames along.
struct Moved {
    in_order: usize,
    brought: usize,
    frames: usize,
}

impl Pager {
    /// Whether `pages` stored pages of `range` can come in as a window.
    pub(super) fn may_be_window(&self, active: &Active, range: &Range, pages: usize) -> bool {
        pages >= WINDOW_LEAST_PAGES
            && active.mechanism.as_mover().is_some()
            // MOVE takes no other memory.
            && is_data(range.prot)
            && range.is_swept()
    }

    /// Brings in up to `pages` stored pages from `page` on, in the frames of a batch of the
    /// stock.
    pub(super) fn serve_window(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        page: usize,
        pages: usize,
    ) -> Serve {
        let mechanism = active.mechanism.as_mover().expect("asked");
        let batch = s.limbo.take_stock(pages).expect("there is a stock");
        let pages = pages.min(batch.count);
        let mut loads = [None; BATCH_PAGES];
        for (i, load) in loads[..pages].iter_mut().enumerate() {
            let PageState::Stored(raw) = self.state_of(page + i * PAGE_SIZE) else {
                unreachable!("a window is stored")
            };
            self.table.word(page + i * PAGE_SIZE, |_, e| e.begin_load((batch.slot + i) as u64));
            *load = Some(Load { entry: swap_entry(raw), print: None });
        }
        let (loaded, kind, error) =
            s.unlocked(|| load_all(active, mechanism, batch.slot, &mut loads[..pages]));
        let Moved { in_order, brought, frames } =
            self.move_window(s, active, mechanism, page, batch.slot, &loads[..loaded]);
        // A thread that has claimed the page meanwhile brings it, and may have freed its entry
        // before its word says so.
        let is_lost = loaded == 0 && self.is_loading(page, batch.slot) && self.is_free(s, page);
        for i in 0..pages {
            if let Some(e) = self.table.get(page + i * PAGE_SIZE) {
                e.end_load((batch.slot + i) as u64);
            }
        }
        self.release_batch(s, active, batch, frames < batch.count);
        self.recount_own();
        self.count_loaded(brought);
        match error {
            Some(error) if is_lost => Serve::Lost(error),
            _ if in_order > 0 => Serve::Done(in_order, kind),
            _ => Serve::Changed,
        }
    }

    /// Moves the pages that are still as they were when the load began. If the kernel does not move
    /// the first page, it is copied.
    fn move_window(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        mechanism: Mover<'_>,
        page: usize,
        slot: usize,
        loads: &[Option<Load>],
    ) -> Moved {
        let mut sum = Moved { in_order: 0, brought: 0, frames: 0 };
        let mut i = 0;
        while i < loads.len() {
            let is_here = |j: &usize| {
                let page = page + j * PAGE_SIZE;
                self.is_loading(page, slot + j) && self.is_free(s, page)
            };
            let run = (i..loads.len()).take_while(is_here).count();
            if run == 0 && self.is_loading(page + i * PAGE_SIZE, slot + i) {
                // The page's stretch is being protected, say: the loaded bytes are not thrown away
                // for that.
                self.wait_for_claim(s);
                continue;
            }
            let (first, first_slot) = (page + i * PAGE_SIZE, slot + i);
            self.claim(s, first, run);
            let (frames, moved) = s.unlocked(|| {
                let frames =
                    if run > 0 { mechanism.fill_by_move(first, first_slot, run) } else { 0 };
                let copies = i == 0 && run > 0 && frames == 0;
                let copied =
                    copies && active.mechanism.fill_from_limbo(page, slot, 1) == Filled::All;
                (frames, frames + copied as usize)
            });
            for (n, some) in loads[i..i + moved].chunks(TOGETHER).enumerate() {
                let print = |l: &Load| (l.entry, l.print);
                let kept = active.cache.keep_each(some.iter().flatten().map(print));
                for j in 0..some.len() {
                    let page = page + (i + n * TOGETHER + j) * PAGE_SIZE;
                    self.note_loaded(s, page, kept >> j & 1 != 0);
                }
            }
            self.end_claim(s, first, run);
            self.count_coming(moved);
            sum.in_order = if i == 0 { moved } else { sum.in_order };
            sum.brought += moved;
            sum.frames += frames;
            if moved < run {
                // The kernel does not move the rest now; page by page it may.
                break;
            }
            i += run.max(1);
        }
        sum
    }

    fn is_loading(&self, page: usize, slot: usize) -> bool {
        self.table.get(page).is_some_and(|e| e.is_loading(slot as u64))
    }
}

/// Loads pages into the slots from `slot` on. Returns how many came, the kind of load that took
/// longest, and why not the next one.
fn load_all(
    active: &Active,
    mechanism: Mover<'_>,
    slot: usize,
    loads: &mut [Option<Load>],
) -> (usize, FaultKind, Option<LoadError>) {
    let mut kind = FaultKind::PoolLoad;
    for (i, load) in loads.iter_mut().flatten().enumerate() {
        let from = mechanism.slot_mut(slot + i, |bytes| {
            let loaded = active.cache.swap_in_from(load.entry, bytes)?;
            load.print = active.cache.print(loaded, bytes);
            Ok(loaded.from)
        });
        match from {
            Ok(Origin::Memory) => {}
            Ok(Origin::Store) => kind = FaultKind::StoreLoad,
            Err(error) => return (i, kind, Some(error)),
        }
    }
    (loads.len(), kind, None)
}

#[cfg(test)]
mod tests {
    use super::super::PROT_READ;
    use super::super::model::{READ_WRITE, Spec, Thread, Touch, World};
    use super::*;
    use crate::region::RangeFlags;

    const PAGES: usize = 64;

    /// A world whose pages are stored, and that has frames ready for a window.
    fn world() -> World {
        let world = World::new(Spec { slots: 1024, ..Spec::roomy(8 * PAGES) });
        world.map(0, PAGES, READ_WRITE);
        let mut thread = world.thread();
        fill(&mut thread, 0, PAGES);
        world.page_out();
        // These are other pages, whose frames stay behind.
        world.map(2 * PAGES, 4 * PAGES, READ_WRITE);
        fill(&mut thread, 2 * PAGES, 4 * PAGES);
        world.sweep(false);
        assert!(world.stock());
        world
    }

    fn fill(thread: &mut Thread<'_>, page: usize, pages: usize) {
        for page in page..page + pages {
            let touch =
                thread.access(thread.world.at(page), true, |b| b[7] = (page as u8).wrapping_add(1));
            assert_eq!(touch, Touch::Done);
        }
    }

    fn serve(world: &World, page: usize, pages: usize) -> Serve {
        let mut s = world.pager.enter();
        world.pager.serve_window(&mut s, world.active(), world.at(page), pages)
    }

    #[test]
    fn only_enough_memory_that_is_read_and_written_comes_as_a_window() {
        let w = world();
        let may = |pages: usize, prot: u32, flags: RangeFlags| {
            let range = Range { prot, flags, ..w.pager.ranges.find(w.at(0)).unwrap() };
            w.pager.may_be_window(w.active(), &range, pages)
        };
        assert!(may(WINDOW_LEAST_PAGES, READ_WRITE, RangeFlags::NONE));
        assert!(!may(WINDOW_LEAST_PAGES - 1, READ_WRITE, RangeFlags::NONE));
        assert!(!may(PAGES, PROT_READ, RangeFlags::NONE), "MOVE does not take it");
        assert!(!may(PAGES, READ_WRITE, RangeFlags::LOCKED), "it would not go out again");
    }

    #[test]
    fn a_window_comes_whole_in_frames_that_counted_already() {
        let w = world();
        let (used, limbo) = (w.pager.used_pages(), w.pager.limbo_pages());
        let served = serve(&w, 8, 24);
        assert!(matches!(served, Serve::Done(24, FaultKind::PoolLoad)));
        w.check();
        assert!(w.pager.limbo_pages() <= limbo - 24, "the batch of the stock is used up");
        assert!(w.pager.used_pages() <= used, "nothing more is used");
        let mut thread = w.thread();
        for page in 0..PAGES {
            let right = |b: &mut [u8; PAGE_SIZE]| {
                assert_eq!(b[7], (page as u8).wrapping_add(1), "page {page}")
            };
            assert_eq!(thread.access(w.at(page), false, right), Touch::Done);
        }
    }

    /// Anything may happen to a page while the lock is free.
    #[test]
    fn what_another_thread_changed_meanwhile_is_left_alone() {
        let w = world();
        let mut s = w.pager.enter();
        let batch = s.limbo.take_stock(24).expect("there is a stock");
        let slot = batch.slot;
        for i in 0..24 {
            w.pager.table.word(w.at(8 + i), |_, e| e.begin_load((slot + i) as u64));
        }
        assert!((0..24).all(|i| w.pager.is_loading(w.at(8 + i), slot + i)));
        drop(s);
        // Page 9 is touched, and comes by itself.
        fill(&mut w.thread(), 9, 1);
        w.discard(10, 1);
        let is_loading = [8, 9, 10, 11].map(|page| w.pager.is_loading(w.at(page), slot + page - 8));
        assert_eq!(is_loading, [true, false, false, true]);
        assert!(!w.pager.is_loading(w.at(8), slot + 1), "into another slot");
        let mut s = w.pager.enter();
        for i in 0..24 {
            w.pager.table.get(w.at(8 + i)).inspect(|e| e.end_load((slot + i) as u64));
        }
        w.pager.release_batch(&mut s, w.active(), batch, true);
        drop(s);
        w.check();
    }

    #[test]
    fn no_window_begins_once_paging_ends() {
        let w = world();
        let s = w.pager.begin_to_end(w.pager.lock(), w.active());
        assert!(!s.limbo.has_stock());
        drop(s);
        w.check();
        w.end_paging();
    }

    #[test]
    fn a_stock_that_nobody_wants_gives_its_frames_back() {
        let w = world();
        let before = w.pager.limbo_pages();
        let mut s = w.pager.enter();
        assert!(w.pager.give_stock_back(&mut s, w.active()));
        while w.pager.give_stock_back(&mut s, w.active()) {}
        assert!(!s.limbo.has_stock());
        drop(s);
        assert!(w.pager.limbo_pages() < before);
        w.check();
    }
}
