//! Making groups: the oldest of the old, copied out, compressed as one, and put in the place of
//! their objects.
//!
//! ```text
//!   begin (locked)            not locked                               end (locked)
//!   copy 16 objects, mark --> decompress side by side, compress --> who is still what it was joins; all grow ancient
//! ```

use super::{GROUP_PAGES, MAX_FORM_BYTES, Spot};
use crate::cache::choice::with_entropy_coding;
use crate::cache::entry::{Location, Mark, Member};
use crate::cache::recompress::{Due, MAX_PASSED, SHORT_BYTES};
use crate::cache::records::NONE;
use crate::cache::state::{self, State};
use crate::cache::{Page, SwapCache};
use crate::codec::{CodecId, CodecSpec, Scratch};
use crate::store::Store;
use crate::sys::mem::Mapping;
use crate::sys::{PAGE_SIZE, Result};

/// The fewest pages of a group: fewer gain too little.
const GROUP_PAGES_LEAST: usize = 4;
/// Working memory is not taken for fewer pages than this.
const WORTH_BEGINNING: u32 = 64;

/// Working memory for making groups, apart from what is needed page by page.
pub struct Grouper {
    scratch: Scratch,
    /// The objects one after the other, then the form.
    bytes: Mapping,
    pages: Mapping,
    is_in_use: bool,
}

impl Grouper {
    pub fn new() -> Result<Grouper> {
        let pages = || Mapping::new(GROUP_PAGES * PAGE_SIZE);
        Ok(Grouper { scratch: Scratch::new(), bytes: pages()?, pages: pages()?, is_in_use: false })
    }

    /// Gives its memory back, if it has some.
    pub fn give_buffers_back(&mut self) {
        if core::mem::take(&mut self.is_in_use) {
            self.scratch = Scratch::new();
            self.bytes.decommit(0..self.bytes.len());
            self.pages.decommit(0..self.pages.len());
        }
    }

    pub fn memory_bytes(&self) -> usize {
        if self.is_in_use {
            self.scratch.mapped_bytes() + self.bytes.len() + self.pages.len()
        } else {
            0
        }
    }
}

/// An object that is to be in a group.
#[derive(Clone, Copy)]
struct Job {
    id: u32,
    location: Location,
    codec: CodecId,
    /// The place of the object's copy; a page that is in a group already has none.
    at: usize,
    len: usize,
    spot: Option<Spot>,
    /// Bytes that the page takes in the pool now.
    cost: usize,
    is_whole: bool,
}

/// The objects of one group.
struct Batch {
    jobs: [Option<Job>; GROUP_PAGES],
    len: usize,
}

impl Batch {
    fn jobs(&mut self) -> impl Iterator<Item = &mut Job> {
        self.jobs.iter_mut().flatten()
    }
}

/// The most that a group of objects of `cost` bytes may take: an eighth less.
fn worth(cost: usize) -> usize {
    (cost - cost / 8).min(MAX_FORM_BYTES)
}

impl<S: Store> SwapCache<S> {
    /// Makes one group of the oldest of the old, if they are due; of how many pages.
    pub(in crate::cache) fn group_oldest(
        &self,
        codec: CodecSpec,
        grouper: &mut Grouper,
        scratch: &mut Scratch,
    ) -> Due<usize> {
        let due = self.state.lock().begin_group(grouper);
        let mut batch = match due {
            Due::Now(batch) => batch,
            Due::Perhaps => return Due::Perhaps,
            Due::Nothing => {
                grouper.give_buffers_back();
                return Due::Nothing;
            }
        };
        let Grouper { scratch: group_scratch, bytes, pages, .. } = grouper;
        let (pages, bytes) =
            (&mut pages.as_mut_slice()[..batch.len * PAGE_SIZE], bytes.as_mut_slice());
        for (job, page) in batch.jobs().zip(pages.chunks_exact_mut(PAGE_SIZE)) {
            let object = &bytes[job.at..job.at + job.len];
            job.is_whole = match job.spot {
                Some(spot) => self.copy_member(spot, page),
                None => self.unpack(job.codec, scratch, object, page).is_ok(),
            };
            // A copy that cannot be read is left to the load that asks for it.
            if !job.is_whole {
                page.fill(0);
            }
        }
        let out = &mut bytes[..worth(batch.jobs().map(|job| job.cost).sum())];
        let form =
            self.codecs.compress_as(with_entropy_coding(codec), group_scratch, pages, out).ok();
        let form = form.map(|c| (c.codec, &out[..c.len]));
        self.state.lock().end_group(&mut batch, form);
        Due::Now(batch.len)
    }
}

impl<S: Store> State<S> {
    /// The oldest of the old if they are due, with copies of their objects.
    fn begin_group(&mut self, grouper: &mut Grouper) -> Due<Batch> {
        let margin = if grouper.is_in_use { 0 } else { WORTH_BEGINNING };
        if !self.is_due(self.old.len.saturating_sub(margin), self.ancient.len) {
            return Due::Nothing;
        }
        grouper.is_in_use = true;
        let bytes = grouper.bytes.as_mut_slice();
        let mut batch = Batch { jobs: [None; GROUP_PAGES], len: 0 };
        let (mut id, mut at, mut passed) = (self.old.last, 0, 0);
        while id != NONE && batch.len < GROUP_PAGES && passed < MAX_PASSED {
            let e = *self.entries.get(id);
            let len = usize::from(e.len);
            let is_wanted = e.is(Mark::Referenced) || self.is_unfilled(&e);
            let (spot, cost) = match e.location() {
                _ if is_wanted => (None, None),
                Location::Pool(raw) if len >= SHORT_BYTES => {
                    let mut scratch: Page = [0; PAGE_SIZE];
                    let object = state::object(&self.pools, e.pool, raw, &mut scratch);
                    bytes[at..at + len].copy_from_slice(object);
                    (None, Some(len))
                }
                Location::Grouped(member) => {
                    let group = self.groups.get(member.group);
                    let share = group.bytes as usize / group.live.count_ones() as usize;
                    (Some(self.groups.spot(member)), (group.is_sparse != 0).then_some(share))
                }
                _ => (None, None),
            };
            if let Some(cost) = cost {
                let location = e.location();
                let job =
                    Job { id, location, codec: e.codec, at, len, spot, cost, is_whole: false };
                batch.jobs[batch.len] = Some(job);
                batch.len += 1;
                at += len;
            } else {
                passed += 1;
                if is_wanted { self.spare(id) } else { self.grow_ancient(id) }
            }
            id = e.prev;
        }
        if batch.len < GROUP_PAGES_LEAST {
            return if passed == MAX_PASSED { Due::Perhaps } else { Due::Nothing };
        }
        batch.jobs().for_each(|job| self.entries.get_mut(job.id).mark(Mark::Packing, true));
        Due::Now(batch)
    }

    /// The entries of `batch` that are still there and idle become a group of the form `form`, if
    /// there is one that is worth it, and grow ancient in any case.
    fn end_group(&mut self, batch: &mut Batch, form: Option<(CodecId, &[u8])>) {
        let before = self.object_bytes();
        let (mut live, mut cost) = (0u16, 0);
        for (index, job) in batch.jobs().enumerate() {
            let e = *self.entries.get(job.id);
            if !e.is(Mark::Packing) || e.location() != job.location {
                continue;
            }
            self.entries.get_mut(job.id).mark(Mark::Packing, false);
            if e.kept != 0 || !e.is(Mark::Old) || e.is(Mark::Ancient) || e.is(Mark::Referenced) {
                continue;
            }
            if job.is_whole {
                live |= 1 << index;
                cost += job.cost;
            } else {
                self.grow_ancient(job.id);
            }
        }
        // A group of which most members have left meanwhile would be due again at once.
        let is_sparse = (live.count_ones() as usize) < batch.len.div_ceil(2);
        let form = form.filter(|(_, form)| !is_sparse && form.len() <= worth(cost));
        let group = form.and_then(|(codec, form)| self.store_group(codec, form, batch.len));
        for (index, job) in batch.jobs().enumerate().filter(|(index, _)| live >> index & 1 != 0) {
            if let Some(group) = group {
                match job.location {
                    Location::Pool(raw) => self.free_object(self.entries.get(job.id).pool, raw),
                    Location::Grouped(old) => self.leave_group(old),
                    _ => unreachable!("an object of the pool"),
                }
                self.join_group(job.id, Member { group, index: index as u8 });
            }
            self.grow_ancient(job.id);
        }
        let saved = before.saturating_sub(self.object_bytes());
        if group.is_some() {
            self.counters.recompressed_saved_bytes += saved as u64;
            self.note_most_used();
        }
    }

    fn object_bytes(&self) -> usize {
        self.pools.iter().map(|p| p.object_bytes()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::SwapEntry;
    use crate::cache::tests::{loaded, recompressing};
    use crate::testing::kin;

    /// 500 of 1024 pages old, and the oldest of them about to be a group.
    fn world() -> (SwapCache, Vec<SwapEntry>, Batch) {
        let cache = recompressing(false);
        let entries: Vec<_> = (0..1024).map(|n| cache.swap_out(&kin(n)).unwrap()).collect();
        assert_eq!(cache.recompress(500), 500);
        let Due::Now(batch) = cache.state.lock().begin_group(&mut Grouper::new().unwrap()) else {
            panic!("the oldest are due")
        };
        assert_eq!(batch.len, GROUP_PAGES);
        (cache, entries, batch)
    }

    fn end(cache: &SwapCache, mut batch: Batch) -> u64 {
        batch.jobs().for_each(|job| job.is_whole = true);
        cache.state.lock().end_group(&mut batch, Some((0, &[1, 2, 3])));
        cache.check();
        cache.counters().grouped_pages
    }

    #[test]
    fn old_pages_are_found_behind_many_that_were_asked_for() {
        let cache = recompressing(false);
        let entries: Vec<_> = (0..1024).map(|n| cache.swap_out(&kin(n)).unwrap()).collect();
        assert_eq!(cache.recompress(500), 500);
        let asked_for = 2 * MAX_PASSED as usize;
        (0..asked_for).for_each(|n| assert!(loaded(&cache, entries[n]) == kin(n as u64)));
        cache.recompress(usize::MAX);
        cache.check();
        assert!(cache.counters().grouped_pages >= 4 * GROUP_PAGES as u64);
    }

    #[test]
    fn who_changes_hands_meanwhile_does_not_join() {
        let (cache, entries, batch) = world();
        // Freed, and the entry used again.
        cache.free(entries[0]);
        assert_eq!(cache.swap_out(&kin(5000)), Ok(entries[0]));
        // Loaded.
        assert!(loaded(&cache, entries[1]) == kin(1));
        assert_eq!(end(&cache, batch), 14);
        assert!(loaded(&cache, entries[0]) == kin(5000) && loaded(&cache, entries[1]) == kin(1));
        entries.into_iter().for_each(|e| cache.free(e));
        cache.check();
        assert_eq!(cache.counters().mem_used_bytes, 0);
    }

    #[test]
    fn what_most_have_left_is_no_group() {
        let (cache, entries, batch) = world();
        entries.iter().take(9).for_each(|e| cache.free(*e));
        assert_eq!(end(&cache, batch), 0);
        assert!((9..1024).all(|n| loaded(&cache, entries[n]) == kin(n as u64)));
    }

    #[test]
    fn a_page_that_cannot_be_read_does_not_join_and_is_not_tried_again() {
        let (cache, entries, mut batch) = world();
        let first = batch.jobs().next().unwrap().id;
        batch.jobs().skip(1).for_each(|job| job.is_whole = true);
        let mut s = cache.state.lock();
        s.end_group(&mut batch, Some((0, &[1, 2, 3])));
        let e = *s.entries.get(first);
        assert!(matches!(e.location(), Location::Pool(_)) && e.is(Mark::Ancient));
        assert!(!e.is(Mark::Packing), "another group may be made with it");
        assert_eq!(s.counters.grouped_pages, GROUP_PAGES as u64 - 1);
        drop(s);
        cache.check();
        let first = first as usize;
        assert!(loaded(&cache, entries[first]) == kin(first as u64));
    }
}
