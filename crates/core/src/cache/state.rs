//! All that the cache's lock guards, and what is done to it in one step.
//!
//! Every function here runs under the lock from start to end, and leaves all structures in
//! agreement: an entry's location, the list it is in, the object in pool or cluster, and the
//! counters change together.

use super::Page;
use super::counters::Counters;
use super::entry::{
    Area, AreaState, Ends, Entries, Entry, Location, MAX_AREAS, Mark, OWN_AREA, SwapEntry,
};
use super::group::Groups;
use super::kept::Kept;
use super::keys;
use super::records::NONE;
use crate::codec::{CodecId, CompressError};
use crate::pool::{Handle, Pool, PoolError, PoolKind};
use crate::store::Store;
use crate::store::cluster::{AppendError, Clusters, Place};
use crate::sys::PAGE_SIZE;

/// The codec id of a page that is stored as it is.
pub const RAW: CodecId = CodecId::MAX;
/// Free pool frames that are kept before some are given back to the kernel.
const FREE_FRAMES_KEPT: usize = 256;
const FREE_FRAMES_RELEASED: usize = 64;

/// A full pool without a store may pass its limit by a sixteenth of it, or by this least, to take
/// an object that is about as long as the one that it replaces.
const LENT_PART: usize = 16;
const LENT_LEAST_BYTES: usize = 64 << 10;

/// All that the lock guards.
pub struct State<S: Store> {
    pub entries: Entries,
    pub areas: [Area; MAX_AREAS],
    /// Areas from here on were never begun.
    pub areas_end: usize,
    /// Entries in the pool, but for kept ones, least recently used last: the young, then the old,
    /// which the recompressor has dealt with, then the ancient, which have been offered a place in
    /// a group.
    pub young: Ends,
    pub old: Ends,
    pub ancient: Ends,
    /// The owner's program hardly pages: idle objects are compressed again.
    pub has_leisure: bool,
    pub groups: Groups,
    pub kept: Kept,
    /// One pool per kind; the current one takes new objects.
    pub pools: [Pool; 2],
    pub pool: usize,
    pub clusters: Clusters<S>,
    pub counters: Counters,
    pub max_pool_bytes: usize,
    pub accept_threshold_percent: u32,
    /// The limit was reached, and use is not below the threshold again yet.
    pub is_full: bool,
    /// Pages that do not compress may be in the pool, as they are.
    pub keeps_incompressible: bool,
    /// Bytes of the object that the page coming in replaces.
    lends_bytes: usize,
    /// The owner's clock.
    pub now: u32,
}

/// The owner of a new entry.
#[derive(Clone, Copy)]
pub enum Owner {
    /// The cache finds an offset in its own area.
    Any,
    /// The cache finds an offset in its own area, for a page that is not to take memory.
    Cold,
    Key(SwapEntry),
}

/// The form of a page on its way in.
#[derive(Clone, Copy)]
pub enum Content<'a> {
    Same(u64),
    Compressed(CodecId, &'a [u8]),
    Raw(&'a Page, CompressError),
}

impl Content<'_> {
    /// The bytes of the object that it becomes in the pool.
    pub fn object(&self) -> &[u8] {
        match self {
            Content::Same(_) => &[],
            Content::Compressed(_, object) => object,
            Content::Raw(page, _) => &page[..],
        }
    }
}

/// The counter of why the pool did not take a page.
type Cause = fn(&mut Counters) -> &mut u64;

/// A way to put an object into a pool.
pub type Put<'a> = &'a mut dyn FnMut(&mut Pool, &[u8]) -> Result<Handle, PoolError>;

/// Outcome of one attempt to take a page in.
pub enum Attempt {
    Done(SwapEntry),
    /// Taken, and the store has work to do.
    DoneFlush(SwapEntry),
    /// All buffers of the store are full.
    NoRoom,
    Full,
}

impl<S: Store> State<S> {
    pub fn new(
        pool: PoolKind,
        clusters: Clusters<S>,
        max_pool_bytes: usize,
        accept_threshold_percent: u32,
    ) -> Self {
        let mut areas: [Area; MAX_AREAS] = core::array::from_fn(|_| Area::default());
        areas[usize::from(OWN_AREA)].state = AreaState::InUse;
        State {
            entries: Entries::default(),
            areas,
            areas_end: usize::from(OWN_AREA) + 1,
            young: Ends::default(),
            old: Ends::default(),
            ancient: Ends::default(),
            has_leisure: false,
            groups: Groups::default(),
            kept: Kept::new(),
            pools: [Pool::new(PoolKind::Zsmalloc), Pool::new(PoolKind::Zbud)],
            pool: pool_index(pool),
            clusters,
            counters: Counters::default(),
            max_pool_bytes,
            accept_threshold_percent: accept_threshold_percent.min(100),
            is_full: false,
            keeps_incompressible: false,
            lends_bytes: 0,
            now: keys::FIRST_SECOND,
        }
    }

    /// The id of an entry that is in use.
    pub fn lookup(&self, entry: SwapEntry) -> Option<u32> {
        if entry.area() == OWN_AREA {
            let e = self.entries.find(entry.offset())?;
            (e.area == OWN_AREA && e.location() != Location::Free).then_some(entry.offset())
        } else {
            self.areas[usize::from(entry.area())].get(entry.offset())
        }
    }

    /// Frames of the pools, whether they are used or not, and their records.
    pub fn frames_bytes(&self) -> usize {
        self.pools.iter().map(|p| p.resident_frames() * PAGE_SIZE + p.metadata_bytes()).sum()
    }

    /// Records of areas, entries, groups and clusters.
    pub fn tables_bytes(&self) -> usize {
        let areas: usize = self.areas[..self.areas_end].iter().map(Area::memory_bytes).sum();
        areas
            + self.entries.memory_bytes()
            + self.groups.memory_bytes()
            + self.clusters.memory_bytes()
    }

    pub fn pool_bytes(&self) -> usize {
        self.pools.iter().map(|p| p.used_frames() * PAGE_SIZE).sum()
    }

    /// Memory of the pool without kept copies: its limit is for this.
    pub fn limited_pool_bytes(&self) -> usize {
        self.pool_bytes() - self.kept.bytes
    }

    /// All counters, with those that the pools and clusters keep.
    pub fn counters_now(&self) -> Counters {
        let mut c = self.counters;
        c.mem_used_bytes = self.pool_bytes() as u64;
        c.kept_bytes = self.kept.bytes as u64;
        c.compr_data_bytes = self.pools.iter().map(|p| p.object_bytes() as u64).sum();
        c.orig_data_bytes = (c.pool_pages + c.same_filled_pages) * PAGE_SIZE as u64;
        let store = self.clusters.stats();
        c.store_data_bytes = store.live_bytes;
        c.store_disk_bytes = store.disk_bytes;
        c
    }

    /// Takes a page in, in the form that it has got. Every outcome but `NoRoom` is counted, once.
    pub fn take(&mut self, owner: Owner, content: Content<'_>) -> Attempt {
        self.take_by(&mut |pool, object| pool.store(object), owner, content)
    }

    /// As `take`, where objects come into the pool by `put`.
    pub fn take_by(&mut self, put: Put<'_>, owner: Owner, content: Content<'_>) -> Attempt {
        let mut old = None;
        if let Owner::Key(key) = owner {
            old = self.lookup(key);
            let area = &mut self.areas[usize::from(key.area())];
            if key.area() == OWN_AREA
                || area.state != AreaState::InUse
                || area.reserve(key.offset()).is_err()
            {
                return self.no_slot();
            }
        }
        let Ok(id) = self.entries.allocate() else { return self.no_slot() };
        let entry = match owner {
            Owner::Any | Owner::Cold => SwapEntry::new(OWN_AREA, id),
            Owner::Key(key) => key,
        };
        let cold = matches!(owner, Owner::Cold) && self.clusters.is_writable();
        // The older page of the key stays until the new one has a place: if there is none, nothing
        // is lost.
        self.lends_bytes = old.map_or(0, |old| self.replaceable_bytes(old));
        let outcome = self.place(put, id, entry.area(), content, cold);
        self.lends_bytes = 0;
        if outcome.is_err() {
            // The entry is freed as it was made: with nothing in it.
            self.entries.get_mut(id).set_location(Location::Same(0));
            self.entries.free(id);
        }
        match outcome {
            Err(AppendError::Full) => return Attempt::NoRoom,
            Err(AppendError::Unwritable) => {
                self.counters.stores += 1;
                self.counters.failed_stores += 1;
                return Attempt::Full;
            }
            Ok(()) => {}
        }
        self.counters.stores += 1;
        self.counters.stored_pages += 1;
        if let Some(old) = old {
            self.drop_entry(entry, old);
            self.counters.duplicate_entries += 1;
        }
        if entry.area() != OWN_AREA {
            self.areas[usize::from(entry.area())].set(entry.offset(), Some(id));
        }
        if self.clusters.has_full() || self.is_full && self.clusters.is_writable() {
            Attempt::DoneFlush(entry)
        } else {
            Attempt::Done(entry)
        }
    }

    /// The length of an entry's object in the pool, which a new page of its key may take.
    fn replaceable_bytes(&self, id: u32) -> usize {
        let e = self.entries.get(id);
        match e.location() {
            Location::Pool(_) if e.kept == 0 => usize::from(e.len),
            _ => 0,
        }
    }

    fn no_slot(&mut self) -> Attempt {
        self.counters.stores += 1;
        self.counters.failed_stores += 1;
        self.counters.reject_no_slot += 1;
        Attempt::Full
    }

    /// Finds a place for the content of entry `id`.
    fn place(
        &mut self,
        put: Put<'_>,
        id: u32,
        area: u8,
        content: Content<'_>,
        cold: bool,
    ) -> core::result::Result<(), AppendError> {
        let (codec, object, cause): (_, _, Cause) = match content {
            Content::Same(word) => {
                self.set(id, area, Location::Same(word), 0, 0);
                self.counters.same_filled_stores += 1;
                self.counters.same_filled_pages += 1;
                return Ok(());
            }
            Content::Compressed(codec, object) if cold => (codec, object, |c| &mut c.cold_stores),
            Content::Compressed(codec, object) => {
                match self.place_in_pool(put, id, area, codec, object) {
                    Ok(()) => return Ok(()),
                    Err(cause) => (codec, object, cause),
                }
            }
            Content::Raw(page, _) if self.keeps_incompressible && !cold => {
                match self.place_in_pool(put, id, area, RAW, page) {
                    Ok(()) => {
                        self.counters.incompressible_stores += 1;
                        self.counters.incompressible_pages += 1;
                        return Ok(());
                    }
                    Err(cause) => (RAW, &page[..], cause),
                }
            }
            Content::Raw(page, CompressError::Incompressible) => {
                (RAW, &page[..], |c| &mut c.reject_compress_poor)
            }
            Content::Raw(page, CompressError::Failed) => {
                (RAW, &page[..], |c| &mut c.reject_compress_failed)
            }
        };
        let appended = self.clusters.append(object);
        if appended != Err(AppendError::Full) {
            *cause(&mut self.counters) += 1;
        }
        if appended == Err(AppendError::Unwritable) {
            self.counters.reject_reclaim_failed += 1;
        }
        let place = appended?;
        self.set(id, area, Location::Stored(place), codec, object.len());
        self.link_stored(id, place);
        self.counters.direct_stores += 1;
        self.counters.store_pages += 1;
        self.counters.incompressible_pages += u64::from(codec == RAW);
        Ok(())
    }

    /// Puts a compressed page into the pool, or names the counter of why not.
    fn place_in_pool(
        &mut self,
        put: Put<'_>,
        id: u32,
        area: u8,
        codec: CodecId,
        object: &[u8],
    ) -> core::result::Result<(), Cause> {
        if !self.accepts() && !self.has_lent_room(object.len()) {
            return Err(|c| &mut c.reject_full);
        }
        let handle = put(&mut self.pools[self.pool], object).map_err(|e| -> Cause {
            match e {
                PoolError::TooLarge | PoolError::Empty => |c| &mut c.reject_compress_poor,
                PoolError::Full | PoolError::NoMemory => |c| &mut c.reject_alloc_failed,
            }
        })?;
        self.set(id, area, Location::Pool(handle.to_raw()), codec, object.len());
        self.entries.get_mut(id).pool = self.pool as u8;
        self.link_young(id);
        self.counters.pool_stores += 1;
        self.counters.pool_pages += 1;
        self.note_most_used();
        Ok(())
    }

    /// Whether an object is about as long as the one that it replaces, in a pool without a store:
    /// such an object is not refused because the pool is full. Objects of other lengths leave gaps,
    /// hence the margin.
    fn has_lent_room(&self, len: usize) -> bool {
        let margin_bytes = (self.max_pool_bytes / LENT_PART).max(LENT_LEAST_BYTES);
        let most_bytes = self.max_pool_bytes.saturating_add(margin_bytes);
        len <= self.lends_bytes + self.lends_bytes / 8
            && !self.clusters.is_writable()
            && self.limited_pool_bytes() < most_bytes
    }

    /// Notes how large the pools are, after a step that may have made them larger.
    pub fn note_most_used(&mut self) {
        let used_bytes = self.pool_bytes() as u64;
        self.counters.mem_used_max_bytes = self.counters.mem_used_max_bytes.max(used_bytes);
    }

    fn set(&mut self, id: u32, area: u8, location: Location, codec: CodecId, len: usize) {
        let now = self.now;
        let e = self.entries.get_mut(id);
        e.set_location(location);
        (e.area, e.codec, e.len, e.kept) = (area, codec, len as u16, 0);
        e.unmark();
        e.touch(now);
        (e.prev, e.next) = (NONE, NONE);
    }

    /// An object of the pool is the most recently used.
    pub fn link_young(&mut self, id: u32) {
        let e = self.entries.get_mut(id);
        e.mark(Mark::Old, false);
        e.mark(Mark::Ancient, false);
        self.young.push_front(&mut self.entries, id);
    }

    /// Takes an object of the pool out of its list; not a kept one.
    pub fn unlink_pooled(&mut self, id: u32) {
        let e = self.entries.get(id);
        let list = match (e.is(Mark::Ancient), e.is(Mark::Old)) {
            (true, _) => &mut self.ancient,
            (false, true) => &mut self.old,
            (false, false) => &mut self.young,
        };
        list.remove(&mut self.entries, id);
    }

    /// An object that was asked for since it was looked at last has another chance.
    pub fn spare(&mut self, id: u32) {
        self.unlink_pooled(id);
        self.entries.get_mut(id).mark(Mark::Referenced, false);
        self.link_young(id);
    }

    /// Whether an entry has an object whose bytes are still to come: such an object is not read.
    pub fn is_unfilled(&self, e: &Entry) -> bool {
        match e.location() {
            Location::Pool(raw) => self.pools[usize::from(e.pool)].is_unfilled(handle(raw)),
            _ => false,
        }
    }

    /// Whether an entry has a page to load. A page that left while its copy was kept has none any
    /// more. Nor has one whose object is unfilled: its owner does not know the entry yet, so that
    /// the asker means the page that had this number before.
    pub fn has_page(&self, id: u32) -> bool {
        let e = self.entries.get(id);
        e.location() != Location::Gone && !self.is_unfilled(e)
    }

    /// The least recently used object of the pool, but for kept ones.
    pub fn oldest(&self) -> Option<u32> {
        [self.ancient.last, self.old.last, self.young.last].into_iter().find(|id| *id != NONE)
    }

    /// Whether the pool takes one more object. Once full, it does so only below the threshold;
    /// without a store there is nothing that could free it, so then the limit alone counts.
    pub fn accepts(&mut self) -> bool {
        let used = self.limited_pool_bytes();
        if self.is_full {
            let threshold =
                self.max_pool_bytes as u128 * u128::from(self.accept_threshold_percent) / 100;
            // At the limit it would be full again at once, and the limit reached once more.
            if used < self.max_pool_bytes
                && (used as u128 <= threshold || !self.clusters.is_writable())
            {
                self.is_full = false;
            }
        }
        if !self.is_full && used >= self.max_pool_bytes {
            self.counters.pool_limit_hits += 1;
            self.is_full = true;
        }
        !self.is_full
    }

    /// Puts an entry at the head of its cluster's list.
    pub fn link_stored(&mut self, id: u32, place: Place) {
        let first = self.clusters.first(place.cluster);
        let e = self.entries.get_mut(id);
        (e.prev, e.next) = (NONE, first);
        if first != NONE {
            self.entries.get_mut(first).prev = id;
        }
        self.clusters.set_first(place.cluster, id);
    }

    /// Takes an entry out of its cluster's list and lets go of its object.
    pub fn unlink_stored(&mut self, id: u32, place: Place) {
        let e = *self.entries.get(id);
        match e.prev {
            NONE => self.clusters.set_first(place.cluster, e.next),
            prev => self.entries.get_mut(prev).next = e.next,
        }
        if e.next != NONE {
            self.entries.get_mut(e.next).prev = e.prev;
        }
        self.clusters.release(place, usize::from(e.len));
    }

    /// Drops an entry and the page with it.
    pub fn drop_entry(&mut self, entry: SwapEntry, id: u32) {
        let e = *self.entries.get(id);
        let was_kept = e.kept != 0;
        if was_kept {
            self.unmark_kept(id);
        }
        match e.location() {
            Location::Free => unreachable!("looked up"),
            Location::Same(_) => self.counters.same_filled_pages -= 1,
            Location::Gone => self.counters.gone_pages -= 1,
            Location::Pool(raw) => {
                if !was_kept {
                    self.unlink_pooled(id);
                }
                self.free_object(e.pool, raw);
                self.counters.pool_pages -= 1;
                self.counters.incompressible_pages -= u64::from(e.codec == RAW);
            }
            Location::Grouped(member) => {
                self.unlink_pooled(id);
                self.leave_group(member);
                self.counters.pool_pages -= 1;
            }
            Location::Stored(place) => {
                self.unlink_stored(id, place);
                self.counters.store_pages -= 1;
                self.counters.incompressible_pages -= u64::from(e.codec == RAW);
            }
        }
        if entry.area() != OWN_AREA {
            self.areas[usize::from(entry.area())].set(entry.offset(), None);
        }
        self.entries.free(id);
        self.counters.stored_pages -= 1;
        self.counters.invalidates += 1;
    }

    pub fn free_object(&mut self, pool: u8, raw: u64) {
        self.pools[usize::from(pool)].free(handle(raw));
        self.give_frames_back(pool);
    }

    /// Ends an object that was freed while a thread used it.
    #[cold]
    pub fn bury_object(&mut self, pool: u8, handle: Handle) {
        self.pools[usize::from(pool)].bury(handle);
        self.give_frames_back(pool);
    }

    fn give_frames_back(&mut self, pool: u8) {
        let pool = &mut self.pools[usize::from(pool)];
        // Free frames go back to the kernel, but not one by one.
        if pool.resident_frames() - pool.used_frames() > FREE_FRAMES_KEPT + pool.used_frames() / 16
        {
            pool.release_some(FREE_FRAMES_RELEASED);
        }
    }
}

/// The bytes of a pool's object, put together in `scratch` if they are in two frames.
pub fn object<'a>(pools: &'a [Pool; 2], pool: u8, raw: u64, scratch: &'a mut [u8]) -> &'a [u8] {
    pools[usize::from(pool)].read(handle(raw), scratch)
}

/// The handle in an entry.
pub fn handle(raw: u64) -> Handle {
    Handle::from_raw(raw).expect("an entry keeps a handle")
}

pub fn pool_index(kind: PoolKind) -> usize {
    match kind {
        PoolKind::Zsmalloc => 0,
        PoolKind::Zbud => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{in_memory, loaded};
    use crate::store::testing::Fault;
    use crate::sys::PAGE_SIZE;
    use crate::testing::page;

    #[test]
    fn a_cold_page_goes_past_the_pool_only_where_the_store_takes_it() {
        let (cache, store) = in_memory(usize::MAX);
        let first = cache.swap_out_cold(&page(1)).unwrap();
        let same = cache.swap_out_cold(&[3; PAGE_SIZE]).unwrap();
        let c = cache.counters();
        assert_eq!((c.cold_stores, c.store_pages, c.same_filled_pages), (1, 1, 1));
        store.set_fault(Fault::From(1));
        let more: Vec<_> = (2..200).map(|n| (cache.swap_out_cold(&page(n)).unwrap(), n)).collect();
        assert!(cache.store_failure().is_some());
        let c = cache.counters();
        assert!(c.pool_pages > 100 && c.failed_stores == 0, "{c:?}");
        assert!(loaded(&cache, first) == page(1) && loaded(&cache, same) == [3; PAGE_SIZE]);
        assert!(more.iter().all(|(e, n)| loaded(&cache, *e) == page(*n)));
        cache.check();
    }

    #[test]
    fn a_limit_is_reached_once_however_often_pages_come_to_it() {
        // Without any pool, and with a threshold that is the limit itself.
        for pages in [0, 8] {
            let (cache, _) = in_memory(usize::MAX);
            cache.set_accept_threshold_percent(100);
            let mut s = cache.state.lock();
            (0..pages).for_each(|n| _ = s.pools[0].store(&page(n)).unwrap());
            s.max_pool_bytes = s.pool_bytes();
            assert!((0..10).all(|_| !s.accepts()));
            assert_eq!(s.counters.pool_limit_hits, 1);
        }
    }
}
