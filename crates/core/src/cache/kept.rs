//! Copies that stay though their page is back: a page that has not been written goes out again for
//! nothing.
//!
//! ```text
//!   load, page goes back to its owner       page comes again
//!   keep(entry, page) ----> kept --------> take_back(entry, page) ----> as it was, nothing compressed or written
//!                            |                       \-- contents differ: dropped, the page is stored anew
//!                            | memory is short
//!                            v
//!                          gone (the entry stays, without an object)
//! ```
//!
//! Whether a page was written is not asked of the kernel, whose answer may be old before it is
//! there. The contents are compared: a fingerprint under a secret key is taken of the page that was
//! loaded, and of the page that comes back when nobody can write it any more. Two different pages
//! have the same fingerprint once in 2^60 times, unless somebody knows the key.
//!
//! A copy in the pool takes memory that could hold a page. So the owner says how much memory copies
//! may take ([`SwapCache::set_max_kept_bytes`], beside the pool's limit for all other objects).
//! Copies are kept while enough of them turn out to be of use. The oldest go when the owner allows
//! less, and when memory must be freed and nothing more can be written back. One in the store costs
//! nothing, and saves a write while the pool is full.

use super::entry::{Ends, Location, Mark, SwapEntry};
use super::state::{RAW, State};
use super::{Loaded, Page, SwapCache};
use crate::bet::Bet;
use crate::store::Store;

/// Copies that are kept in vain for one that serves.
const ODDS: i8 = 3;

/// The fingerprint of a page that was loaded, or comes again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Print(u64);

impl Print {
    /// The entry has the fingerprint, from an earlier time when a copy of the page was kept: a
    /// stored page does not change.
    const KNOWN: Print = Print(u64::MAX - 1);
    /// The fingerprint for places without room for an `Option`; all zero: none.
    pub fn to_bytes(print: Option<Print>) -> [u8; 8] {
        print.map_or(0, |p| p.0 + 1).to_ne_bytes()
    }

    pub fn from_bytes(bytes: [u8; 8]) -> Option<Print> {
        u64::from_ne_bytes(bytes).checked_sub(1).map(Print)
    }
}

/// A page that comes again, compared with its kept copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Back {
    /// As it was, and stored under its entry.
    Same,
    /// Not what it was: somebody has written it.
    Changed,
    /// Its copy is gone or worth replacing.
    Gone,
}

/// The state of the kept copies, guarded by the cache's lock.
pub struct Kept {
    /// Copies in the pool, the youngest first.
    pub list: Ends,
    pub bytes: usize,
    pub max_bytes: usize,
    /// A copy is still right when its page comes again.
    serves: Bet<ODDS>,
}

impl Kept {
    pub fn new() -> Kept {
        Kept { list: Ends::default(), bytes: 0, max_bytes: 0, serves: Bet::new() }
    }
}

impl<S: Store> SwapCache<S> {
    /// The fingerprint of a page that was loaded, if a copy of it is worth keeping.
    pub fn print(&self, loaded: Loaded, page: &Page) -> Option<Print> {
        match loaded.wants_copy {
            true if loaded.is_printed => Some(Print::KNOWN),
            true => Some(self.print_of(page)),
            false => None,
        }
    }

    /// The page of `entry`, loaded, goes back to its owner. True: the cache keeps its copy, and the
    /// entry is for [`SwapCache::take_back`] or `free`. False: the entry is freed, as it always is
    /// without a `print`.
    pub fn keep(&self, entry: SwapEntry, print: Option<Print>) -> bool {
        self.keep_each(core::iter::once((entry, print))) != 0
    }

    /// Gives pages back, at most 64, as [`SwapCache::keep`] does; one bit each says which copies
    /// are kept.
    pub fn keep_each(&self, loads: impl Iterator<Item = (SwapEntry, Option<Print>)>) -> u64 {
        let mut s = self.state.lock();
        let mut kept = 0;
        for (i, (entry, print)) in loads.enumerate() {
            let id = s.lookup(entry).expect("a swap entry is kept once");
            if print.is_some_and(|print| s.keep(id, print)) {
                kept |= 1 << i;
            } else {
                s.drop_entry(entry, id);
            }
        }
        self.end_of_drops(s);
        kept
    }

    /// The page of a kept entry comes again. Unless it is `Same`, the entry is freed, and the page
    /// not taken.
    pub fn take_back(&self, entry: SwapEntry, page: &Page) -> Back {
        let mut back = Back::Gone;
        self.take_back_each(core::iter::once((entry, self.print_of(page))), |_, b| back = b);
        back
    }

    /// Takes several pages back, with their fingerprints by `print_of`.
    pub fn take_back_each(
        &self,
        pages: impl Iterator<Item = (SwapEntry, Print)>,
        mut each: impl FnMut(usize, Back),
    ) {
        let mut s = self.state.lock();
        for (i, (entry, print)) in pages.enumerate() {
            let id = s.lookup(entry).expect("a kept entry is there");
            let back = s.take_back(id, print);
            if back != Back::Same {
                s.drop_entry(entry, id);
            }
            each(i, back);
        }
        self.end_of_drops(s);
    }

    /// The fingerprint of a page that comes again.
    pub fn print_of(&self, page: &Page) -> Print {
        Print(self.fingerprint.of(page))
    }

    /// The page of a kept entry is about to be written: its copy goes.
    pub fn give_up_copy(&self, entry: SwapEntry) {
        let mut s = self.state.lock();
        let id = s.lookup(entry).expect("a kept entry is there");
        s.kept.serves.learn(false);
        s.counters.changed_pages += 1;
        self.drop_entry(s, entry, id);
    }

    /// Sets how much memory copies of pages that are back may take; 0 at first.
    pub fn set_max_kept_bytes(&self, bytes: usize) {
        let mut s = self.state.lock();
        s.kept.max_bytes = bytes;
        s.drop_copies_above(bytes);
    }

    /// Drops the oldest copies, `bytes` of them or more; says how many.
    pub(super) fn drop_copies(&self, bytes: usize) -> usize {
        let mut s = self.state.lock();
        let before = s.kept.bytes;
        s.drop_copies_above(before.saturating_sub(bytes));
        before - s.kept.bytes
    }
}

impl<S: Store> State<S> {
    /// Whether the copy of a page that is loaded is worth keeping. Asked once for each load.
    pub(super) fn may_keep(&mut self, id: u32, is_dense: bool) -> bool {
        let e = *self.entries.get(id);
        match e.location() {
            // An object that was compressed again because it was idle is not kept: it would cost
            // each load from now on what the denser codec costs.
            Location::Pool(_) if e.is(Mark::Packed) && !is_dense => false,
            // The copy would take as much as the page.
            Location::Pool(_) if e.codec == RAW => false,
            Location::Pool(_) => {
                self.has_room_for_copy(usize::from(e.len)) && self.kept.serves.is_on()
            }
            Location::Stored(_) => self.kept.serves.is_on(),
            _ => false,
        }
    }

    /// The oldest copy is that of the page that is most likely to come again soon, so none goes for
    /// a new one.
    fn has_room_for_copy(&self, len: usize) -> bool {
        self.kept.bytes + len <= self.kept.max_bytes
    }

    fn keep(&mut self, id: u32, print: Print) -> bool {
        let e = *self.entries.get(id);
        assert!(e.kept == 0, "a page goes back once");
        if print == Print::KNOWN && !e.is(Mark::Printed) {
            return false;
        }
        let len = usize::from(e.len);
        match e.location() {
            Location::Pool(_) => {
                if !self.has_room_for_copy(len) {
                    return false;
                }
                self.unlink_pooled(id);
                self.kept.list.push_front(&mut self.entries, id);
                self.kept.bytes += len;
            }
            Location::Stored(_) => {}
            _ => return false,
        }
        let e = self.entries.get_mut(id);
        e.kept = 1;
        if print != Print::KNOWN {
            e.fingerprint = print.0;
            e.mark(Mark::Printed, true);
        }
        self.counters.kept_pages += 1;
        true
    }

    fn take_back(&mut self, id: u32, print: Print) -> Back {
        let e = *self.entries.get(id);
        assert!(e.kept != 0, "only what was kept comes back like this");
        if e.location() == Location::Gone {
            return Back::Gone;
        }
        let is_same = print.0 == e.fingerprint;
        self.kept.serves.learn(is_same);
        if !is_same {
            self.counters.changed_pages += 1;
            return Back::Changed;
        }
        // A page that was wanted a moment ago is not left on the disk while there is room in
        // memory.
        if matches!(e.location(), Location::Stored(_)) && self.accepts() {
            return Back::Gone;
        }
        self.unmark_kept(id);
        self.entries.get_mut(id).mark(Mark::Referenced, false);
        if matches!(e.location(), Location::Pool(_)) {
            self.link_young(id);
        }
        self.counters.unchanged_pages += 1;
        Back::Same
    }

    /// The entry's copy is an ordinary object from now on, or is about to go. If it is in the pool,
    /// it is in no list then.
    pub(super) fn unmark_kept(&mut self, id: u32) {
        let e = self.entries.get_mut(id);
        e.kept = 0;
        let e = *e;
        self.counters.kept_pages -= 1;
        if matches!(e.location(), Location::Pool(_)) {
            self.kept.list.remove(&mut self.entries, id);
            self.kept.bytes -= usize::from(e.len);
        }
    }

    /// Drops the oldest copies until the rest takes no more than `bytes`.
    fn drop_copies_above(&mut self, bytes: usize) {
        while self.kept.bytes > bytes {
            self.drop_oldest_copy();
        }
    }

    /// Drops the oldest copy that takes memory. Its entry stays for the owner to find it gone.
    fn drop_oldest_copy(&mut self) {
        let id = self.kept.list.last;
        let e = *self.entries.get(id);
        let Location::Pool(raw) = e.location() else { unreachable!("in the list of copies") };
        self.kept.list.remove(&mut self.entries, id);
        self.kept.bytes -= usize::from(e.len);
        self.free_object(e.pool, raw);
        self.entries.get_mut(id).set_location(Location::Gone);
        self.counters.pool_pages -= 1;
        self.counters.incompressible_pages -= u64::from(e.codec == RAW);
        self.counters.gone_pages += 1;
        self.counters.dropped_copies += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::super::CacheConfig;
    use super::super::tests::{in_memory, keep, loaded, recompressing};
    use super::*;
    use crate::sys::PAGE_SIZE;
    use crate::testing::page;

    #[test]
    fn a_page_that_is_as_it_was_goes_out_for_nothing() {
        let (cache, _) = in_memory(1 << 20);
        let (a, b) = (page(1), page(2));
        let stored = cache.swap_out(&a).unwrap();
        assert!(!keep(&cache, stored, &a), "no copies are allowed yet, and the entry is gone");
        cache.set_max_kept_bytes(1 << 20);
        let kept = cache.swap_out(&a).unwrap();
        assert!(keep(&cache, kept, &a) && cache.take_back(kept, &a) == Back::Same);
        assert_eq!(loaded(&cache, kept), a);
        cache.check();
        assert!(keep(&cache, kept, &a) && cache.take_back(kept, &b) != Back::Same);
        let c = cache.counters();
        assert_eq!((c.unchanged_pages, c.changed_pages, c.stored_pages), (1, 1, 0));
        cache.check();
    }

    #[test]
    fn several_are_kept_and_come_again_at_once() {
        let (cache, _) = in_memory(1 << 20);
        let pages: Vec<_> = (0..40).map(page).collect();
        let loads: Vec<_> =
            pages.iter().map(|p| (cache.swap_out(p).unwrap(), Some(cache.print_of(p)))).collect();
        assert_eq!(cache.keep_each(loads[..8].iter().copied()), 0, "no copies are allowed yet");
        cache.set_max_kept_bytes(1 << 20);
        assert_eq!(cache.keep_each(loads[8..].iter().copied()), u64::from(u32::MAX));
        cache.check();
        let other = cache.print_of(&page(1000));
        let again = loads[8..]
            .iter()
            .enumerate()
            .map(|(i, (e, p))| (*e, if i % 4 == 0 { other } else { p.unwrap() }));
        let mut backs = Vec::new();
        cache.take_back_each(again, |i, back| {
            assert_eq!(i, backs.len());
            backs.push(back);
        });
        let right = |i: usize| if i.is_multiple_of(4) { Back::Changed } else { Back::Same };
        assert!(backs.len() == 32 && backs.iter().enumerate().all(|(i, back)| *back == right(i)));
        cache.check();
        let c = cache.counters();
        assert_eq!((c.unchanged_pages, c.changed_pages, c.stored_pages), (24, 8, 24));
        assert!((9..12).all(|i| loaded(&cache, loads[i].0) == pages[i]));
    }

    #[test]
    fn a_copy_is_asked_for_before_its_fingerprint_is_taken() {
        let (cache, _) = in_memory(1 << 20);
        let (a, b) = (page(1), page(2));
        let print = |entry| {
            let mut page = [0; PAGE_SIZE];
            let loaded = cache.swap_in_from(entry, &mut page).unwrap();
            Print::from_bytes(Print::to_bytes(cache.print(loaded, &page)))
        };
        let first = cache.swap_out(&a).unwrap();
        assert!(print(first).is_none() && !cache.keep(first, None), "no copies are allowed yet");
        cache.set_max_kept_bytes(1 << 20);
        let kept = cache.swap_out(&a).unwrap();
        let taken = print(kept);
        assert!(taken.is_some_and(|print| print != Print::KNOWN) && cache.keep(kept, taken));
        assert_eq!(cache.take_back(kept, &a), Back::Same);
        assert_eq!(print(kept), Some(Print::KNOWN), "it is not taken again");
        assert!(cache.keep(kept, print(kept)));
        assert_eq!(cache.take_back(kept, &b), Back::Changed);
        let late = cache.swap_out(&a).unwrap();
        let taken = print(late);
        assert!(taken.is_some_and(|print| print != Print::KNOWN), "it is another page's entry");
        cache.set_max_kept_bytes(0);
        assert!(!cache.keep(late, taken), "there is no room any more");
        assert_eq!(cache.counters().stored_pages, 0);
        cache.check();
    }

    #[test]
    fn a_copy_is_given_up_before_its_page_is_written() {
        let (cache, _) = in_memory(1 << 20);
        cache.set_max_kept_bytes(1 << 20);
        let a = page(1);
        let entry = || {
            let e = cache.swap_out(&a).unwrap();
            assert!(keep(&cache, e, &a));
            e
        };
        cache.give_up_copy(entry());
        let gone = entry();
        cache.set_max_kept_bytes(0);
        assert_eq!(cache.take_back(gone, &a), Back::Gone);
        let c = cache.counters();
        assert_eq!((c.unchanged_pages, c.changed_pages, c.stored_pages), (0, 1, 0));
        cache.check();
    }

    #[test]
    fn copies_in_the_store_serve_while_the_pool_is_full() {
        let (cache, _) = in_memory(1 << 20);
        let a = page(3);
        let e = cache.swap_out(&a).unwrap();
        cache.shrink(1 << 20);
        assert!(keep(&cache, e, &a), "though no memory is allowed for copies");
        cache.set_max_pool_bytes(0);
        assert_eq!(cache.take_back(e, &a), Back::Same);
        assert_eq!(loaded(&cache, e), a);
        assert_eq!((cache.counters().store_pages, cache.counters().pool_pages), (1, 0));
        cache.check();
        assert!(keep(&cache, e, &a));
        cache.set_max_pool_bytes(1 << 20);
        assert_ne!(cache.take_back(e, &a), Back::Same, "there is room in memory for it");
        cache.check();
    }

    #[test]
    fn a_copy_that_was_compressed_again_is_not_kept_once_it_is_asked_for() {
        let cache = recompressing(false);
        cache.set_max_kept_bytes(8 << 20);
        let pages: Vec<_> = (0..512u64).map(page).collect();
        let entries: Vec<_> = pages.iter().map(|p| cache.swap_out(p).unwrap()).collect();
        while cache.recompress(64) > 0 {}
        let packed = cache.counters().recompressed_pages as usize;
        assert!((100..500).contains(&packed), "{packed}");
        let kept =
            |from: usize| (from..512).filter(|i| keep(&cache, entries[*i], &pages[*i])).count();
        // The oldest were compressed again. As long as the denser codec is the one for all pages
        // theirs is as good as any.
        assert!(!keep(&cache, entries[0], &pages[0]));
        cache.choose_dense(true);
        assert!(keep(&cache, entries[1], &pages[1]));
        cache.choose_dense(false);
        assert_eq!(kept(2), 512 - packed);
        cache.check();
    }

    #[test]
    fn copies_go_when_nothing_else_can() {
        let cache: SwapCache = SwapCache::new(CacheConfig::default()).unwrap();
        cache.set_max_kept_bytes(8 << 20);
        let pages: Vec<_> = (0..1024u64).map(page).collect();
        let entries: Vec<_> = pages.iter().map(|p| cache.swap_out(p).unwrap()).collect();
        for (e, p) in entries.iter().zip(&pages).take(512) {
            assert!(keep(&cache, *e, p));
        }
        cache.check();
        cache.shrink(128 << 10);
        let c = cache.counters();
        assert!((1..512).contains(&c.dropped_copies), "{c:?}");
        cache.set_max_kept_bytes(0);
        assert_eq!((cache.counters().kept_bytes, cache.counters().gone_pages), (0, 512));
        cache.check();
        // Gone, and said so; the others are all there.
        for (i, (e, p)) in entries.iter().zip(&pages).enumerate() {
            if i < 512 {
                assert_ne!(cache.take_back(*e, p), Back::Same);
            } else {
                assert_eq!(loaded(&cache, *e), *p);
            }
        }
        assert_eq!(cache.counters().stored_pages, 512);
        cache.check();
    }
}
