//! Filling: pages come into the program, each way under a claim.
//!
//! ```text
//!   NONE   -- zeros -----------> RESIDENT
//!   LIMBO  -- COPY from its slot
//!   STORED -- load, COPY            (windows of many: window.rs; whole stretches: huge.rs)
//! ```
//!
//! The caller has the lock and has found the pages free (`claim.rs`) and alike. Each way here
//! claims them, lets the lock go for the kernel's call and the codec, and gives the words their new
//! state when it has the lock again.

use super::book::swap_entry;
use super::{Active, Locked, Pager};
use crate::cache::{LoadError, Origin, SwapEntry};
use crate::control::Counter;
use crate::latency::FaultKind;
use crate::policy::WINDOW_LOCKED_PAGES;
use crate::region::PageState;
use crate::sys::PAGE_SIZE;
use crate::sys::mechanism::Filled;
use crate::sys::mem::Mapping;

/// The outcome of one attempt to serve.
pub(super) enum Serve {
    /// So many pages are there now; and the kind of load that took longest.
    Done(usize, FaultKind),
    NeedRoom(i64),
    /// The lock was let go, and the page may have changed meanwhile.
    Changed,
    Again,
    Lost(LoadError),
}

/// The result of loading and filling stored pages without the lock.
struct Brought {
    /// How many of the pages are in the program, and whether to try again.
    pages: usize,
    is_again: bool,
    /// Bits of the pages whose copies the cache keeps.
    kept: u64,
    kind: FaultKind,
    /// Why not even the first could be loaded.
    error: Option<LoadError>,
}

impl Pager {
    /// How many of `pages` the kernel filled, and whether to try again.
    fn filled(&self, f: Filled, pages: usize) -> (usize, bool) {
        match f {
            Filled::All => (pages, false),
            // The page after the first n is there already. The pager did not put it there, so the
            // program did.
            Filled::Present(n) => (n + 1, false),
            Filled::Again(n) => (n, n == 0),
            Filled::Failed(n) => (n, n == 0),
        }
    }

    pub(super) fn serve_zero(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        page: usize,
        pages: usize,
    ) -> Serve {
        // Words first: without memory for them nothing may be mapped.
        for i in 0..pages {
            if self.table.ensure(page + i * PAGE_SIZE).is_err() {
                return Serve::Again;
            }
        }
        self.claim_to_fill(s, page, pages);
        let filled = s.unlocked(|| active.mechanism.fill_zero(page, pages));
        let (n, again) = self.filled(filled, pages);
        (0..n).for_each(|i| self.note_touched(s, page + i * PAGE_SIZE));
        self.end_fill(s, page, pages, n);
        self.add(Counter::FirstTouches, n as u64);
        if again { Serve::Again } else { Serve::Done(n, FaultKind::FirstTouch) }
    }

    pub(super) fn serve_limbo(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        page: usize,
        slot: usize,
        pages: usize,
    ) -> Serve {
        let pages = s.limbo.side_by_side(slot, pages);
        self.claim_to_fill(s, page, pages);
        let filled = s.unlocked(|| active.mechanism.fill_from_limbo(page, slot, pages));
        let (n, again) = match filled {
            Filled::Present(n) => {
                assert!(n > 0, "page {page:#x} is in limbo and mapped");
                (n, false)
            }
            f => self.filled(f, pages),
        };
        (0..n).for_each(|i| self.note_left_limbo(s, page + i * PAGE_SIZE, slot + i));
        // The frames stay in the slots until limbo's tail passes, so they go on counting.
        self.end_fill(s, page, pages, n);
        self.add(Counter::LimboHits, n as u64);
        if again { Serve::Again } else { Serve::Done(n, FaultKind::LimboHit) }
    }

    /// Serves stored pages.
    pub(super) fn serve_stored(
        &self,
        s: &mut Locked<'_>,
        active: &Active,
        page: usize,
        pages: usize,
    ) -> Serve {
        // One page has room on the stack. The buffer for several may be in use by another thread.
        let buffer = if pages > 1 { s.bounce.take() } else { None };
        let pages = if buffer.is_some() { pages } else { 1 };
        let mut entries = [None; WINDOW_LOCKED_PAGES];
        for (i, entry) in entries[..pages].iter_mut().enumerate() {
            let PageState::Stored(raw) = self.state_of(page + i * PAGE_SIZE) else {
                unreachable!("the run is stored")
            };
            *entry = Some(swap_entry(raw));
        }
        self.claim_to_fill(s, page, pages);
        let b = unlocked_with_room(s, buffer, |bytes| {
            self.bring(active, page, &entries[..pages], bytes)
        });
        for i in 0..b.pages {
            self.note_loaded(s, page + i * PAGE_SIZE, b.kept >> i & 1 != 0);
        }
        self.end_fill(s, page, pages, b.pages);
        self.count_loaded(b.pages);
        match b.error {
            Some(error) => Serve::Lost(error),
            None if b.is_again => Serve::Again,
            None => Serve::Done(b.pages, b.kind),
        }
    }

    /// Loads claimed pages and fills them, without the lock. `bytes`: room for all of them.
    fn bring(
        &self,
        active: &Active,
        page: usize,
        entries: &[Option<SwapEntry>],
        bytes: &mut [[u8; PAGE_SIZE]],
    ) -> Brought {
        let mut loads = [None; WINDOW_LOCKED_PAGES];
        let mut loaded = 0;
        let mut b =
            Brought { pages: 0, is_again: false, kept: 0, kind: FaultKind::PoolLoad, error: None };
        for (entry, into) in entries.iter().flatten().zip(bytes.iter_mut()) {
            match active.cache.swap_in_from(*entry, into) {
                Ok(l) => {
                    b.kind = if l.from == Origin::Store { FaultKind::StoreLoad } else { b.kind };
                    loads[loaded] = Some((*entry, active.cache.print(l, into)));
                }
                Err(error) if loaded == 0 => return Brought { error: Some(error), ..b },
                // A neighbour that cannot be read matters to no thread before it is touched.
                Err(_) => break,
            }
            loaded += 1;
        }
        let filled = active.mechanism.fill(page, bytes[..loaded].as_flattened());
        (b.pages, b.is_again) = match filled {
            Filled::Present(n) => {
                assert!(n > 0, "page {page:#x} is stored and mapped");
                (n, false)
            }
            f => self.filled(f, loaded),
        };
        b.kept = active.cache.keep_each(loads[..b.pages].iter().flatten().copied());
        self.recount_own();
        b
    }

    /// Claims pages that are about to come in. They count as resident from now on.
    fn claim_to_fill(&self, s: &mut Locked<'_>, page: usize, pages: usize) {
        self.claim(s, page, pages);
        self.count_coming(pages);
    }

    /// Ends the claim of pages of which the first `came` are in the program.
    fn end_fill(&self, s: &mut Locked<'_>, page: usize, pages: usize, came: usize) {
        self.end_claim(s, page, pages);
        self.count_not_come(pages - came);
    }
}

/// Runs `f` without the lock, with room for pages: `buffer`, which is put back afterwards, or room
/// for one on the stack.
pub(super) fn unlocked_with_room<T>(
    s: &mut Locked<'_>,
    mut buffer: Option<Mapping>,
    f: impl FnOnce(&mut [[u8; PAGE_SIZE]]) -> T,
) -> T {
    let result = s.unlocked(|| {
        let mut one = [[0u8; PAGE_SIZE]; 1];
        f(match &mut buffer {
            Some(buffer) => buffer.as_mut_slice().as_chunks_mut().0,
            None => &mut one[..],
        })
    });
    if buffer.is_some() {
        s.bounce = buffer;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::super::model::{READ_WRITE, Spec, Thread, Touch, World};
    use super::*;
    use crate::store::testing::Fault;
    use crate::testing::{Choices, Random};

    const PAGES: usize = 16;

    fn world() -> World {
        let world = World::new(Spec { has_store: true, ..Spec::roomy(PAGES) });
        world.map(0, PAGES, READ_WRITE);
        world
    }

    fn fill(world: &World, pages: usize) -> Thread<'_> {
        world.write(0..pages, |page, b| b[7] = page as u8 + 1)
    }

    fn state(world: &World, page: usize) -> PageState {
        world.pager.state_of(world.at(page))
    }

    fn serve_stored(world: &World, page: usize, pages: usize) -> Serve {
        let mut s = world.pager.enter();
        let at = world.at(page);
        world.pager.serve_stored(&mut s, world.active(), at, pages)
    }

    #[test]
    fn first_touches_count_once_and_read_as_zero() {
        let w = world();
        let mut s = w.pager.enter();
        let served = w.pager.serve_zero(&mut s, w.active(), w.at(2), 3);
        assert!(matches!(served, Serve::Done(3, FaultKind::FirstTouch)));
        drop(s);
        assert_eq!((w.pager.resident_pages(), w.pager.slot().get(Counter::FirstTouches)), (3, 3));
        w.check();
        let touch = w.thread().access(w.at(3), false, |b| assert!(b.iter().all(|b| *b == 0)));
        assert_eq!(touch, Touch::Done);
    }

    /// Rule 5 of `claim.rs`: threads side by side see the pages that are on their way.
    #[test]
    fn pages_count_from_their_claim_on() {
        let w = world();
        // The claim is in the words of the pages.
        w.pager.table.ensure(w.at(0)).unwrap();
        let mut s = w.pager.enter();
        w.pager.claim_to_fill(&mut s, w.at(0), 5);
        assert_eq!(w.pager.resident_pages(), 5);
        w.pager.end_fill(&mut s, w.at(0), 5, 0);
        drop(s);
        assert_eq!(w.pager.resident_pages(), 0);
        w.check();
    }

    /// Rule 5 of `claim.rs`, for the pages that did not come.
    #[test]
    fn pages_that_the_kernel_refuses_do_not_count_and_are_free_again() {
        let w = world();
        w.fake().set_trouble(1);
        let mut s = w.pager.enter();
        let served = w.pager.serve_zero(&mut s, w.active(), w.at(0), 8);
        let came = match served {
            Serve::Done(n, FaultKind::FirstTouch) => n,
            Serve::Again => 0,
            _ => panic!("neither some nor none"),
        };
        assert!(came < 8, "each call stops halfway");
        assert_eq!(w.pager.resident_pages(), came as i64);
        assert_eq!(w.pager.free_run(&s, w.at(0), 8), 8);
        drop(s);
        assert_eq!(w.count(|state| state == PageState::Resident), came);
        w.fake().set_trouble(0);
        fill(&w, 8);
        w.check();
    }

    #[test]
    fn a_page_that_comes_back_from_limbo_leaves_its_slot_empty() {
        let w = world();
        let mut thread = fill(&w, 4);
        w.sweep(false);
        let PageState::Limbo(slot) = state(&w, 1) else { panic!("{:?}", state(&w, 1)) };
        let touch = thread.access(w.at(1), false, |b| assert_eq!(b[7], 2));
        assert_eq!((touch, state(&w, 1)), (Touch::Done, PageState::Resident));
        assert_eq!(w.pager.enter().limbo.page(slot as usize), None);
        assert!(w.pager.slot().get(Counter::LimboHits) > 0);
        w.check();
    }

    #[test]
    fn stored_pages_that_come_together_are_stored_no_more() {
        let w = world();
        let mut thread = fill(&w, 6);
        w.page_out();
        assert!(matches!(serve_stored(&w, 1, 3), Serve::Done(3, FaultKind::PoolLoad)));
        let states = [1, 2, 3].map(|page| state(&w, page));
        assert_eq!(states, [PageState::Resident; 3]);
        assert_eq!((w.pager.stored_pages(), w.pager.slot().get(Counter::Loads)), (3, 3));
        assert!(w.pager.enter().bounce.is_some(), "others may have the buffer");
        w.check();
        for page in 0..6 {
            thread.access(w.at(page), false, |b| assert_eq!(b[7], page as u8 + 1));
        }
    }

    #[test]
    fn while_another_has_the_buffer_one_page_comes_by_itself() {
        let w = world();
        fill(&w, 6);
        w.page_out();
        let buffer = w.pager.enter().bounce.take();
        assert!(matches!(serve_stored(&w, 1, 3), Serve::Done(1, FaultKind::PoolLoad)));
        w.pager.enter().bounce = buffer;
        w.check();
    }

    #[test]
    fn what_cannot_be_read_is_lost_for_who_asks_and_only_for_as_long() {
        let w = world();
        let mut thread = w.thread();
        let mut noise = Random::new(5);
        for page in 0..PAGES {
            // Noise, which no codec makes smaller, goes to the store, and so do cold pages.
            let touch = thread.access(w.at(page), true, |b| {
                b.fill_with(|| noise.below(256) as u8);
                b[7] = page as u8 + 1;
            });
            assert_eq!(touch, Touch::Done);
        }
        w.page_out();
        let cache = &w.active().cache;
        cache.shrink(1 << 20);
        cache.give_buffers_back();
        w.store.unwrap().set_fault(Fault::From(1));
        let resident = w.pager.resident_pages();
        let lost = serve_stored(&w, 0, 1);
        assert!(matches!(lost, Serve::Lost(_)));
        assert_eq!(w.pager.resident_pages(), resident);
        assert!(matches!(state(&w, 0), PageState::Stored(_)));
        w.store.unwrap().set_fault(Fault::Never);
        let touch = thread.access(w.at(0), false, |b| assert_eq!(b[7], 1));
        assert_eq!(touch, Touch::Done);
        w.check();
    }
}
