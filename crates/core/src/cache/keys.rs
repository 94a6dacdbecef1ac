//! The cache as a disk wants it: ranges of keys, ages, and orders for the pages that are idle or
//! huge.
//!
//! ```text
//!   set_now ──> every page that is stored or loaded is stamped     mark_idle(latest) ──> IDLE
//!   run, invalidate_range: keys in order                           *_which(Which) ──> those pages
//! ```
//! A disk has up to 2^32 keys, of which most have no page, and its users ask about, or drop, all of
//! them at once. So a range is gone through in portions, none of which holds the lock for long.

use core::ops::Range;

use super::entry::{Area, Entries, Entry, Location, Mark, OWN_AREA};
use super::group::Oldest;
use super::state::{RAW, State};
use super::writeback::Fill;
use super::{SwapCache, SwapEntry};
use crate::store::Store;

/// The first second of the owner's clock: 0 says idle.
pub const FIRST_SECOND: u32 = 1;
/// Entries looked at, and keys dropped, in one hold of the lock: some 10 us.
const ENTRIES_AT_ONCE: u32 = 1024;
/// Keys without a page that are passed in one hold of the lock: they are looked at much faster.
const KEYS_AT_ONCE: u32 = 64 << 10;
/// Objects moved to the store in one hold of the lock.
const MOVED_AT_ONCE: usize = 16;

/// Pages of the pool, by what they are.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Which {
    /// Only pages that were marked as idle and not used since.
    pub idle: bool,
    /// Only pages that are kept as they are.
    pub huge: bool,
    /// Of these, only pages that the recompressor could not make smaller, either.
    pub incompressible: bool,
    /// Only pages that take so many bytes or more.
    pub least_bytes: usize,
}

impl Which {
    /// Whether an entry is one of them.
    pub(super) fn has(self, e: &Entry) -> bool {
        let is_in_pool = matches!(e.location(), Location::Pool(_) | Location::Grouped(_));
        is_in_pool
            && e.kept == 0
            && usize::from(e.len) >= self.least_bytes
            && (!self.idle || e.is_idle())
            && (!self.huge || e.codec == RAW)
            && (!self.incompressible || e.codec == RAW && e.is(Mark::Packed))
    }
}

/// Keys of an area that follow one another and are alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Run {
    /// They have no page.
    Absent(u32),
    /// Their pages are all zero.
    Zero(u32),
    Present(u32),
}

impl Run {
    /// The number of keys.
    pub fn len(self) -> u32 {
        let (Run::Absent(n) | Run::Zero(n) | Run::Present(n)) = self;
        n
    }

    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// The outcome of one portion of an order.
enum Portion {
    Moved(usize),
    /// The open cluster is full.
    Full,
    /// The next is a page of a group.
    Group(Oldest),
    End,
}

impl<S: Store> SwapCache<S> {
    /// Sets the clock that pages are stamped with, in seconds from 1 on.
    pub fn set_now(&self, second: u32) {
        self.state.lock().now = second.max(FIRST_SECOND);
    }

    /// Marks the pages as idle that were not used after second `latest`, wherever they are.
    pub fn mark_idle(&self, latest: u32) {
        let mut from = 0;
        loop {
            let mut s = self.state.lock();
            let Some(ids) = s.next_ids(&mut from) else { return };
            for id in ids {
                let e = s.entries.get_mut(id);
                if e.location() != Location::Free {
                    e.become_idle(latest);
                }
            }
        }
    }

    /// The first keys of a range that are alike, as many as are looked at in one hold of the lock.
    /// An area that is not there has no pages.
    pub fn run(&self, area: u8, keys: Range<u32>) -> Run {
        let s = self.state.lock();
        let Range { start, end } = keys;
        let area = &s.areas[usize::from(area)];
        let is_zero = |id| s.entries.get(id).location() == Location::Same(0);
        let Some(first) = area.get(start) else {
            let end = end.min(start.saturating_add(KEYS_AT_ONCE));
            return Run::Absent(area.next_before(start, end).map_or(end, |(key, _)| key) - start);
        };
        let end = end.min(start.saturating_add(ENTRIES_AT_ONCE));
        let zero = is_zero(first);
        let differs = |key: &u32| area.get(*key).is_none_or(|id| is_zero(id) != zero);
        let len = (start..end).find(differs).unwrap_or(end) - start;
        if zero { Run::Zero(len) } else { Run::Present(len) }
    }

    /// Drops the pages of a range of keys; says how many there were.
    pub fn invalidate_range(&self, area: u8, keys: Range<u32>) -> u64 {
        assert!(area != OWN_AREA, "the cache's own area has no keys");
        let (mut from, mut dropped) = (keys.start, 0);
        while from < keys.end {
            let mut s = self.state.lock();
            let most = keys.end.min(from.saturating_add(KEYS_AT_ONCE));
            for _ in 0..ENTRIES_AT_ONCE {
                let next = s.areas[usize::from(area)].next_before(from, most);
                let Some((offset, id)) = next else {
                    from = most;
                    break;
                };
                s.drop_entry(SwapEntry::new(area, offset), id);
                dropped += 1;
                from = offset + 1;
            }
            self.end_of_drops(s);
        }
        dropped
    }

    /// Moves up to `pages` of the pages `which` to the store; says how many.
    pub fn write_back_which(&self, which: Which, pages: usize) -> usize {
        let (mut moved, mut from, mut stuck_at) = (0, 0, None);
        while moved < pages {
            let at_once = MOVED_AT_ONCE.min(pages - moved);
            let portion = self.state.lock().move_which(which, &mut from, at_once);
            match portion {
                Portion::Moved(n) => moved += n,
                Portion::Group(oldest) if self.disperse(&oldest, which, pages, &mut moved) => {}
                // A full cluster is written, a group that cannot be read passed: when it is met
                // twice, because another thread may have written the cluster that was in the way.
                Portion::Group(_) | Portion::Full => {
                    // Locked before the look, so that a write that does nothing is a failure.
                    let mut writer = self.writer.lock();
                    if self.state.lock().clusters.has_full() {
                        if !self.write_back(&mut writer, Fill::No) {
                            break;
                        }
                    } else if stuck_at.replace(from) == Some(from) {
                        from += 1;
                    }
                }
                Portion::End => break,
            }
        }
        if moved > 0 {
            self.settle(&mut self.writer.lock());
            self.release_frames();
        }
        moved
    }

    /// Packs the pool's objects as densely as can be; says how many frames that freed.
    pub fn compact(&self) -> usize {
        let mut freed = 0;
        loop {
            match self.compact_pools() {
                0 => break,
                frames => freed += frames,
            }
        }
        self.release_frames();
        freed
    }

    /// Memory that records and tables take, beside the pool.
    pub fn tables_bytes(&self) -> usize {
        self.state.tables_bytes()
    }

    /// As [`SwapCache::tables_bytes`], without the store's buffers, which come and go.
    pub fn records_bytes(&self) -> usize {
        let s = self.state.lock();
        s.tables_bytes() - s.clusters.buffers_bytes()
    }

    /// Whether a page under `key` would make records or tables larger: there is none yet, and none
    /// that was dropped has left its place.
    pub fn needs_tables(&self, key: SwapEntry) -> bool {
        let s = self.state.lock();
        let has_place =
            || s.entries.has_unused() && s.areas[usize::from(key.area())].reaches(key.offset());
        s.lookup(key).is_none() && !has_place()
    }

    /// Gives the memory of an area's table back, if the area has no page.
    pub fn give_table_back(&self, area: u8) {
        self.state.lock().areas[usize::from(area)].clear_if_empty();
    }

    /// Gives the memory of records and tables back, if no page is stored.
    pub fn give_tables_back(&self) {
        // A thread that has either lock knows ids of entries while the state is not locked.
        let (_packer, _writer) = (self.packer.lock(), self.writer.lock());
        let mut s = self.state.lock();
        if s.entries.in_use() == 0 {
            s.entries = Entries::default();
            s.areas.iter_mut().skip(1).for_each(Area::clear_if_empty);
        }
    }
}

impl<S: Store> State<S> {
    /// The next portion of all entries from `from` on, which moves on behind it.
    pub(super) fn next_ids(&self, from: &mut u32) -> Option<Range<u32>> {
        let end = self.entries.ids().end.min(from.saturating_add(ENTRIES_AT_ONCE));
        let ids = *from..end;
        *from = end;
        (!ids.is_empty()).then_some(ids)
    }

    /// Moves up to `most` of the next pages of `which` to the open cluster.
    fn move_which(&mut self, which: Which, from: &mut u32, most: usize) -> Portion {
        if !self.clusters.is_writable() {
            return Portion::End;
        }
        let Some(ids) = self.next_ids(from) else { return Portion::End };
        let mut moved = 0;
        for id in ids {
            let e = *self.entries.get(id);
            if !which.has(&e) {
                continue;
            }
            *from = id;
            if moved == most {
                return Portion::Moved(moved);
            }
            if let Location::Grouped(member) = e.location() {
                return match moved {
                    0 => Portion::Group(Oldest { id, spot: self.groups.spot(member) }),
                    _ => Portion::Moved(moved),
                };
            }
            if self.clusters.has_full() || !self.move_to_store(id) {
                return if moved == 0 { Portion::Full } else { Portion::Moved(moved) };
            }
            moved += 1;
            *from = id + 1;
        }
        Portion::Moved(moved)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Page;
    use super::super::tests::{in_memory, loaded};
    use super::*;
    use crate::codec::CodecSpec;
    use crate::store::testing::MemoryStore;
    use crate::sys::PAGE_SIZE;
    use crate::testing::{kin, page};

    fn key(k: u64) -> SwapEntry {
        SwapEntry::new(1, k as u32)
    }

    /// Over a store, with pages under keys from 0 on.
    fn holding(pages: impl Iterator<Item = Page>) -> SwapCache<MemoryStore> {
        let (cache, _) = in_memory(usize::MAX);
        cache.set_recompressor(CodecSpec::parse("zstd:level=1").ok());
        cache.set_leisure(true);
        cache.init(1).unwrap();
        pages.zip(0..).for_each(|(page, k)| {
            // Every other page is used later than the one before it.
            cache.set_now(10 + 90 * (k as u32 % 2));
            cache.store(key(k), &page).unwrap();
        });
        cache
    }

    #[test]
    fn marks_reach_every_portion_of_the_entries() {
        let pages = 2 * u64::from(ENTRIES_AT_ONCE) + 2;
        let cache = holding((0..pages).map(page));
        cache.mark_idle(50);
        let idle = Which { idle: true, ..Which::default() };
        assert_eq!(cache.write_back_which(idle, usize::MAX) as u64, pages / 2);
        cache.check();
    }

    #[test]
    fn a_run_of_keys_ends_with_a_portion_or_with_the_range() {
        let cache = holding((0..2 * u64::from(ENTRIES_AT_ONCE)).map(|_| [7; PAGE_SIZE]));
        assert_eq!(cache.run(1, 5..u32::MAX), Run::Present(ENTRIES_AT_ONCE));
        assert_eq!(cache.run(1, 5..9), Run::Present(4));
        assert!(cache.run(1, 5..5).is_empty() && cache.run(2, 5..5).is_empty());
        // There is no such area.
        assert_eq!(cache.run(2, 5..u32::MAX), Run::Absent(KEYS_AT_ONCE));
        assert_eq!(cache.run(2, u32::MAX - 1..u32::MAX), Run::Absent(1));
    }

    #[test]
    fn an_order_moves_no_other_pages_of_a_group_and_no_more_than_it_says() {
        let cache = holding((0..1024).map(kin));
        cache.recompress(usize::MAX);
        assert!(cache.counters().grouped_pages >= 256);
        cache.mark_idle(50);
        let idle = Which { idle: true, ..Which::default() };
        assert_eq!(cache.write_back_which(idle, 3), 3);
        assert_eq!(cache.write_back_which(idle, usize::MAX), 509);
        assert_eq!(cache.counters().written_back_pages, 512);
        cache.check();
        assert!((0..1024).all(|k| loaded(&cache, key(k)) == kin(k)));
    }

    #[test]
    fn an_order_goes_on_where_another_thread_writes_the_full_cluster() {
        let cache = holding((0..400).map(page));
        let mut writer = cache.writer.lock();
        std::thread::scope(|s| {
            let order = s.spawn(|| cache.write_back_which(Which::default(), usize::MAX));
            let has_full = || cache.state.lock().clusters.has_full();
            while !has_full() && !order.is_finished() {
                std::thread::yield_now();
            }
            // Now, or soon, the order waits for the writer, to write that cluster itself.
            (0..1000).for_each(|_| std::thread::yield_now());
            assert!(cache.write_back(&mut writer, Fill::No));
            drop(writer);
            assert_eq!(order.join().unwrap(), 400);
        });
        cache.check();
    }
}
