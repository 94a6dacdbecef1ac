//! Taking pages out of groups: for a load, for a new group, for the store.
//!
//! ```text
//!   group --form, copied under the lock--> bytes --decompressed without it--> pages --> load: one of them
//!                                                                                  \-> store: each, compressed singly
//! ```
//! The pages in a buffer serve the next loads of the same group. To fill a buffer costs one codec
//! call, and its pages take 64 KiB, so two buffers are enough, and they go back with the others
//! ([`rest`](super::super::rest)).

use core::sync::atomic::Ordering;

use super::{GROUP_PAGES, MAX_FORM_BYTES, Spot};
use crate::cache::entry::{Location, Mark, Member};
use crate::cache::keys::Which;
use crate::cache::read::Failure;
use crate::cache::state::{RAW, State};
use crate::cache::{LoadError, MAX_COMPRESSED_BYTES, Page, SwapCache};
use crate::codec::{CodecId, CodecSpec, Codecs, Scratch};
use crate::store::Store;
use crate::sys::mem::Mapping;
use crate::sys::sync::Mutex;
use crate::sys::{PAGE_SIZE, Result};

/// The page that is to be written back next.
pub struct Oldest {
    pub id: u32,
    pub spot: Spot,
}

/// Groups that are unpacked at the same time: by a thread that loads, and by another one or the one
/// that writes back.
pub const UNPACKED: usize = 2;

/// The pages of one group.
pub struct Unpacked {
    /// The group's sequence number; 0: none.
    sequence: u64,
    pages: Mapping,
    /// The form, and then, one at a time, the objects that members are compressed into singly.
    bytes: Mapping,
    scratch: Scratch,
    /// Memory of these buffers, as it was counted last.
    used_bytes: usize,
}

impl Unpacked {
    pub fn new() -> Result<Unpacked> {
        let (pages, bytes) =
            (Mapping::new(GROUP_PAGES * PAGE_SIZE)?, Mapping::new(MAX_FORM_BYTES)?);
        Ok(Unpacked { sequence: 0, pages, bytes, scratch: Scratch::new(), used_bytes: 0 })
    }

    fn page(&self, index: usize) -> &Page {
        let at = index * PAGE_SIZE;
        self.pages.as_slice()[at..at + PAGE_SIZE].try_into().expect("a page's length")
    }

    /// A page compressed by itself; as it is, where compressing does not help.
    fn compress_singly(
        &mut self,
        codecs: &Codecs,
        codec: CodecSpec,
        index: u8,
    ) -> core::result::Result<(CodecId, &[u8]), &[u8]> {
        let at = usize::from(index) * PAGE_SIZE;
        let page = &self.pages.as_slice()[at..at + PAGE_SIZE];
        let out = &mut self.bytes.as_mut_slice()[..MAX_COMPRESSED_BYTES];
        match codecs.compress_as(codec, &mut self.scratch, page, out) {
            Ok(c) => Ok((c.codec, &out[..c.len])),
            Err(_) => Err(page),
        }
    }

    /// Gives its memory back; says how much that was.
    fn give_buffers_back(&mut self) -> usize {
        self.sequence = 0;
        self.pages.decommit(0..self.pages.len());
        self.bytes.decommit(0..self.bytes.len());
        self.scratch = Scratch::new();
        core::mem::take(&mut self.used_bytes)
    }
}

impl<S: Store> SwapCache<S> {
    /// The page of a member, from its group. The entry may have been loaded, or freed, since it was
    /// looked at: the page is the one that it had then.
    pub(in crate::cache) fn load_from_group(
        &self,
        spot: Spot,
        page: &mut Page,
    ) -> core::result::Result<(), Failure> {
        let mut unpacked = self.unpacked_of(spot).lock();
        let is_busy = self.unpack_group(&mut unpacked, spot)? && {
            let mut s = self.state.lock();
            s.counters.unpacked_groups += 1;
            !s.has_leisure
        };
        page.copy_from_slice(unpacked.page(spot.member.index.into()));
        if is_busy {
            self.take_apart(&mut unpacked, spot);
        }
        Ok(())
    }

    /// The other members of a group become objects again, each by itself: the program pages, and
    /// may ask for them soon.
    fn take_apart(&self, unpacked: &mut Unpacked, loaded: Spot) {
        let codec = self.codec_for_stores();
        for index in (0..GROUP_PAGES as u8).filter(|index| *index != loaded.member.index) {
            let spot = Spot { member: Member { index, ..loaded.member }, ..loaded };
            if self.state.lock().member(spot).is_none() {
                continue;
            }
            // A page that this codec cannot make smaller stays where it is.
            if let Ok((codec, object)) = unpacked.compress_singly(&self.codecs, codec, index) {
                self.state.lock().leave_for_pool(spot, codec, object);
            }
        }
        self.count_unpacked(unpacked);
    }

    pub(super) fn copy_member(&self, spot: Spot, page: &mut [u8]) -> bool {
        let mut unpacked = self.unpacked_of(spot).lock();
        let is_here = self.unpack_group(&mut unpacked, spot).is_ok();
        if is_here {
            page.copy_from_slice(unpacked.page(spot.member.index.into()));
        }
        is_here
    }

    fn unpacked_of(&self, spot: Spot) -> &Mutex<Unpacked> {
        &self.unpacked[spot.sequence as usize % UNPACKED]
    }

    /// Makes the pages of a group present. False: they were present before.
    fn unpack_group(&self, to: &mut Unpacked, spot: Spot) -> core::result::Result<bool, Failure> {
        if to.sequence == spot.sequence {
            return Ok(false);
        }
        to.sequence = 0;
        self.count_unpacked(to);
        let (codec, len, pages) = {
            let s = self.state.lock();
            let group = s.groups.find(spot).ok_or(Failure::Changed)?;
            s.copy_form(group, to.bytes.as_mut_slice());
            (group.codec, group.bytes as usize, usize::from(group.pages))
        };
        let (form, out) =
            (&to.bytes.as_slice()[..len], &mut to.pages.as_mut_slice()[..pages * PAGE_SIZE]);
        self.streams
            .with(|stream| self.codecs.decompress(codec, &mut stream.scratch, form, out))
            .map_err(|_| Failure::Load(LoadError::Corrupt))?;
        to.sequence = spot.sequence;
        Ok(true)
    }

    fn count_unpacked(&self, of: &mut Unpacked) {
        let used_bytes = of.pages.len() + of.bytes.len() + of.scratch.mapped_bytes();
        // Wraps when the codec's memory shrinks, which is what the sum wants.
        self.unpacked_bytes.fetch_add(used_bytes.wrapping_sub(of.used_bytes), Ordering::Relaxed);
        of.used_bytes = used_bytes;
    }

    pub(in crate::cache) fn give_unpacked_back(&self) {
        for unpacked in &self.unpacked {
            self.unpacked_bytes.fetch_sub(unpacked.lock().give_buffers_back(), Ordering::Relaxed);
        }
    }

    /// Moves the pages `which` of the group of `oldest` to the open cluster, one by one, but for
    /// pages that were asked for, until `moved`, which counts them, is `most`. False: no more can
    /// be moved now.
    pub(in crate::cache) fn disperse(
        &self,
        oldest: &Oldest,
        which: Which,
        most: usize,
        moved: &mut usize,
    ) -> bool {
        let spot = oldest.spot;
        let codec = self.choice.stronger().unwrap_or_else(|| self.codec_for_stores());
        let mut guard = self.unpacked_of(spot).lock();
        let unpacked = &mut *guard;
        match self.unpack_group(unpacked, spot) {
            Ok(_) => {}
            Err(Failure::Changed) => return true,
            Err(Failure::Load(_)) => {
                // Other objects are written back before this one is tried again.
                let mut s = self.state.lock();
                if s.oldest() == Some(oldest.id) {
                    s.spare(oldest.id);
                }
                return false;
            }
        }
        let mut has_room = true;
        for index in 0..GROUP_PAGES as u8 {
            let spot = Spot { member: Member { index, ..spot.member }, ..spot };
            if *moved >= most {
                break;
            }
            if self.state.lock().leaving(spot, oldest.id, which).is_none() {
                continue;
            }
            let single = unpacked.compress_singly(&self.codecs, codec, index);
            let (codec, object) = single.unwrap_or_else(|page| (RAW, page));
            has_room =
                self.state.lock().disperse_member(spot, (oldest.id, which), codec, object, moved);
            if !has_room {
                break;
            }
        }
        self.count_unpacked(unpacked);
        has_room
    }
}

impl<S: Store> State<S> {
    /// The entry of that place, if there is one.
    fn member(&self, spot: Spot) -> Option<u32> {
        let group = self.groups.find(spot)?;
        let (_, id) =
            group.members().find(|(index, _)| *index == usize::from(spot.member.index))?;
        Some(id)
    }

    /// A member becomes the object `object` of the pool, and young, if there is room.
    fn leave_for_pool(&mut self, spot: Spot, codec: CodecId, object: &[u8]) {
        let Some(id) = self.member(spot) else { return };
        // Without a store nothing would make the pool smaller again.
        if !self.clusters.is_writable() && self.limited_pool_bytes() >= self.max_pool_bytes {
            return;
        }
        let Ok(handle) = self.pools[self.pool].store(object) else { return };
        self.unlink_pooled(id);
        self.leave_group(spot.member);
        let pool = self.pool as u8;
        let e = self.entries.get_mut(id);
        e.set_location(Location::Pool(handle.to_raw()));
        (e.codec, e.len, e.pool) = (codec, object.len() as u16, pool);
        // A thread that is making another group with this entry leaves it alone now.
        e.mark(Mark::Packed, false);
        e.mark(Mark::Packing, false);
        self.link_young(id);
        self.note_most_used();
    }

    /// The entry of that place if it is of `which` and is to be written back: `oldest`, or one that
    /// was not asked for.
    fn leaving(&self, spot: Spot, oldest: u32, which: Which) -> Option<u32> {
        let id = self.member(spot)?;
        let e = self.entries.get(id);
        // Members that had a second chance are young.
        let may_leave = id == oldest || e.is(Mark::Old) && !e.is(Mark::Referenced);
        (may_leave && which.has(e)).then_some(id)
    }

    /// Moves a member to the open cluster, as an object, if it is still to be written back. False:
    /// there is no room.
    fn disperse_member(
        &mut self,
        spot: Spot,
        (oldest, which): (u32, Which),
        codec: CodecId,
        object: &[u8],
        moved: &mut usize,
    ) -> bool {
        let Some(id) = self.leaving(spot, oldest, which) else { return true };
        let Ok(place) = self.clusters.append(object) else { return false };
        self.unlink_pooled(id);
        self.leave_group(spot.member);
        let e = self.entries.get_mut(id);
        e.set_location(Location::Stored(place));
        (e.codec, e.len) = (codec, object.len() as u16);
        self.link_stored(id, place);
        self.counters.pool_pages -= 1;
        self.counters.store_pages += 1;
        self.counters.incompressible_pages += u64::from(codec == RAW);
        self.counters.written_back_pages += 1;
        self.counters.dispersed_pages += 1;
        *moved += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::SwapEntry;
    use crate::cache::tests::{in_memory, loaded, recompressing};
    use crate::testing::kin;

    /// Pages without a store, the oldest of them in groups; and how many those are.
    fn world() -> (SwapCache, Vec<SwapEntry>, usize) {
        let cache = recompressing(false);
        let entries: Vec<_> = (0..1024).map(|n| cache.swap_out(&kin(n)).unwrap()).collect();
        cache.recompress(usize::MAX);
        let grouped = cache.counters().grouped_pages as usize;
        assert!(grouped >= 4 * GROUP_PAGES && grouped.is_multiple_of(GROUP_PAGES), "{grouped}");
        (cache, entries, grouped)
    }

    #[test]
    fn a_group_that_cannot_be_read_keeps_its_pages_and_others_go_first() {
        for is_order in [false, true] {
            let (cache, _) = in_memory(64 << 20);
            cache.set_recompressor(CodecSpec::parse("zstd:level=1").ok());
            cache.set_leisure(true);
            let entries: Vec<_> = (0..1024).map(|n| cache.swap_out(&kin(n)).unwrap()).collect();
            cache.recompress(usize::MAX);
            let set_codec = |codec: u8| {
                let mut s = cache.state.lock();
                let Location::Grouped(member) = s.entries.get(0).location() else {
                    panic!("the oldest is in a group")
                };
                core::mem::replace(&mut s.groups.get_mut(member.group).codec, codec)
            };
            let codec = set_codec(u8::MAX);
            if is_order {
                let others = 1024 - GROUP_PAGES;
                assert_eq!(cache.write_back_which(Which::default(), usize::MAX), others);
            } else {
                // Each of its pages ends one round, and is young then.
                (0..=GROUP_PAGES).for_each(|_| _ = cache.shrink(64 << 20));
            }
            let c = cache.counters();
            let left = GROUP_PAGES as u64;
            assert_eq!((c.pool_pages, c.grouped_pages), (left, left));
            assert_eq!(cache.swap_in(entries[0], &mut [0; PAGE_SIZE]), Err(LoadError::Corrupt));
            set_codec(codec);
            assert!(entries.iter().zip(0..).all(|(e, n)| loaded(&cache, *e) == kin(n)));
            cache.check();
        }
    }

    #[test]
    fn without_a_store_groups_are_taken_apart_as_long_as_the_pool_has_room() {
        let (cache, entries, grouped) = world();
        cache.set_leisure(false);
        let one_of_each = || {
            let ones = (0..grouped).step_by(GROUP_PAGES);
            ones.for_each(|n| assert!(loaded(&cache, entries[n]) == kin(n as u64)));
            cache.check();
            cache.counters().grouped_pages as usize
        };
        let most_bytes = cache.pool_bytes();
        cache.set_max_pool_bytes(most_bytes);
        assert_eq!((one_of_each(), cache.pool_bytes()), (grouped, most_bytes));
        // Room for some: an object may need a frame or two.
        cache.set_max_pool_bytes(most_bytes + 8 * PAGE_SIZE);
        assert!(one_of_each() < grouped);
        assert!(cache.pool_bytes() < most_bytes + 10 * PAGE_SIZE);
        cache.set_max_pool_bytes(usize::MAX);
        assert!(one_of_each() < 2 * GROUP_PAGES + grouped / GROUP_PAGES);
    }
}
