//! Recompression: an object that has not been asked for in a while is compressed again, more
//! densely.
//!
//! ```text
//!   stored --> YOUNG --the oldest, idle--> compressed by the stronger codec --> OLD --the oldest--> written back
//!                ^                                                               |
//!                +--------------------------- loaded ----------------------------+
//! ```
//!
//! A fast codec is right for pages that come back soon, a dense one for those that do not. So there
//! are two lists. New objects are young. While the program hardly pages
//! ([`SwapCache::set_leisure`]) and the young are more than their part of all, the oldest of them
//! are idle and due, for any thread that has time. An object that does not become smaller grows old
//! as it is. A program that pages has nothing compressed again: loads would be slower, and the
//! memory saved gains it less (docs/experiments/recompression.md).
//!
//! Where the stronger codec is the better one for all pages, all objects in the pool follow,
//! whether idle or not: [`super::choice`].
//!
//! # The race
//! An object is copied out under the lock, compressed again without it, and replaced under it. In
//! between its entry may be freed, used for another page, kept, loaded, written back. So it is
//! marked: every new object of an entry begins without marks, so an entry with the mark and the
//! same handle has the same object. An object that was loaded meanwhile is not idle and stays as it
//! is.
//!
//! Objects that stay idle after that are compressed once more, together with their neighbours:
//! [`super::group`].

use core::sync::atomic::Ordering;

use super::entry::{Location, Mark};
use super::group::Grouper;
use super::keys::Which;
use super::state::{self, RAW, State};
use super::{MAX_COMPRESSED_BYTES, Page, SwapCache};
use crate::codec::{CodecId, CodecSpec, Scratch};
use crate::store::Store;
use crate::sys::mem::Mapping;
use crate::sys::{PAGE_SIZE, Result};

/// The part of all objects that stay young, as a divisor, and objects that may be young in any
/// case.
const YOUNG_PART: u32 = 4;
const YOUNG_LEAST: u32 = 64;
/// Entries passed over at most in one look for one that is due, under one hold of the lock.
pub const MAX_PASSED: u32 = 64;
/// The part of the young that one call spares at most, but for a few: an entry that is asked for
/// between eight calls is not taken for idle.
const SPARED_PART: u32 = 8;
/// Objects shorter than this are hardly made smaller by any codec.
pub const SHORT_BYTES: usize = 128;

/// Working memory of the recompressor.
pub struct Packer {
    pub(super) scratch: Scratch,
    /// For the codec of [`with_entropy_coding`](super::choice::with_entropy_coding), which is in
    /// turns with the other.
    pub(super) entropy_scratch: Scratch,
    /// The object as it was, its page, and the object as it will be.
    object: Mapping,
    page: Mapping,
    pub(super) out: Mapping,
    grouper: Grouper,
    /// Groups were made, and the pool has not been compacted since.
    has_holes: bool,
}

impl Packer {
    pub fn new() -> Result<Packer> {
        let page = || Mapping::new(PAGE_SIZE);
        let (scratch, entropy_scratch) = (Scratch::new(), Scratch::new());
        let grouper = Grouper::new()?;
        Ok(Packer {
            scratch,
            entropy_scratch,
            object: page()?,
            page: page()?,
            out: page()?,
            grouper,
            has_holes: false,
        })
    }

    /// Gives the codecs' memory back.
    pub fn give_buffers_back(&mut self) {
        (self.scratch, self.entropy_scratch) = (Scratch::new(), Scratch::new());
        for buffer in [&mut self.object, &mut self.page, &mut self.out] {
            buffer.decommit(0..buffer.len());
        }
        self.grouper.give_buffers_back();
    }

    fn memory_bytes(&self) -> usize {
        let buffers = [&self.object, &self.page, &self.out].map(Mapping::len);
        self.scratch.mapped_bytes()
            + self.entropy_scratch.mapped_bytes()
            + buffers.iter().sum::<usize>()
            + self.grouper.memory_bytes()
    }
}

/// An object that is being compressed again.
struct Job {
    id: u32,
    raw: u64,
    codec: CodecId,
    len: usize,
}

/// The outcome of one look for entries that are due.
pub enum Due<J> {
    Now(J),
    /// None among those that one look passes at most. Others may be behind them.
    Perhaps,
    Nothing,
}

impl<S: Store> SwapCache<S> {
    /// Compresses some `pages` idle entries of the pool again, if there is leisure
    /// ([`Self::set_leisure`]), one by one as long as such are due, then in groups, and packs the
    /// pool after that. Says how many pages were dealt with; fewer than asked: no more are due, or
    /// another thread is at it.
    pub fn recompress(&self, pages: usize) -> usize {
        let Some(codec) = self.choice.stronger().filter(|c| *c != self.codecs.spec()) else {
            return 0;
        };
        let for_all = self.is_dense().then_some(codec);
        let pages = if for_all.is_some() { pages.min(self.may_convert()) } else { pages };
        let Some(mut packer) = self.packer.try_lock() else { return 0 };
        let (mut done, mut spared) = (0, 0);
        while done < pages {
            let object = packer.object.as_mut_slice();
            let due = self.state.lock().begin_packing(object, for_all, &mut spared);
            match due {
                Due::Now(job) => {
                    self.pack(&job, codec, &mut packer);
                    done += 1;
                }
                Due::Perhaps => {}
                Due::Nothing => break,
            }
        }
        self.choice.learn_converted(done);
        while done < pages {
            let Packer { scratch, grouper, .. } = &mut *packer;
            match self.group_oldest(codec, grouper, scratch) {
                Due::Now(grouped) => {
                    packer.has_holes = true;
                    done += grouped;
                }
                // Entries that were passed are not old any more, so this ends.
                Due::Perhaps => {}
                Due::Nothing => break,
            }
        }
        // Sixteen small objects have become a few large ones: without packing the frames would
        // stay, half empty.
        while done < pages && packer.has_holes {
            match self.compact_pools() {
                0 => {
                    self.release_frames();
                    packer.has_holes = false;
                }
                frames => done += frames,
            }
        }
        self.count_packer(&packer);
        done
    }

    /// Counts the packer's memory, which somebody has used.
    pub(super) fn count_packer(&self, packer: &Packer) {
        self.packer_bytes.store(packer.memory_bytes(), Ordering::Relaxed);
    }

    /// Compresses the object of `job`, which the packer has, again.
    fn pack(&self, job: &Job, codec: CodecSpec, packer: &mut Packer) {
        let Packer { scratch, object, page, out, .. } = packer;
        let page = page.as_mut_slice();
        // A copy that cannot be read is left to the load that asks for it.
        let is_whole = self.unpack(job.codec, scratch, &object.as_slice()[..job.len], page).is_ok();
        let out = &mut out.as_mut_slice()[..MAX_COMPRESSED_BYTES];
        let packed =
            is_whole.then(|| self.codecs.compress_as(codec, scratch, page, out).ok()).flatten();
        let packed = packed.map(|c| (c.codec, &out[..c.len]));
        self.state.lock().end_packing(job, packed);
    }

    /// Compresses up to `pages` of the pages `which` again, one by one, whether due or not. Says
    /// how many were tried: a page that was tried before is not tried again. Waits for another
    /// thread that is at it.
    pub fn recompress_which(&self, which: Which, pages: usize) -> usize {
        self.recompress_each(which, pages, &mut self.packer.lock())
    }

    /// As [`SwapCache::recompress_which`], for a thread that must not wait for all that another one
    /// was asked to do. `None`: another one is at it.
    pub fn try_recompress_which(&self, which: Which, pages: usize) -> Option<usize> {
        Some(self.recompress_each(which, pages, &mut *self.packer.try_lock()?))
    }

    fn recompress_each(&self, which: Which, pages: usize, packer: &mut Packer) -> usize {
        let Some(codec) = self.choice.stronger().filter(|c| *c != self.codecs.spec()) else {
            return 0;
        };
        let (mut done, mut from) = (0, 0);
        while done < pages {
            let object = packer.object.as_mut_slice();
            let some = self.state.lock().begin_packing_which(which, &mut from, object);
            match some {
                Some(Some(job)) => {
                    self.pack(&job, codec, packer);
                    done += 1;
                }
                Some(None) => {}
                None => break,
            }
        }
        self.count_packer(packer);
        done
    }

    /// Whether the owner's program hardly pages, so that idle objects are compressed again, and
    /// groups that are asked for stay.
    pub fn set_leisure(&self, has_leisure: bool) {
        let mut s = self.state.lock();
        s.has_leisure = has_leisure;
        if has_leisure {
            self.choice.grant(s.counters.pool_stores, s.counters.pool_pages);
        }
    }

    /// Nothing will be compressed again for a while: gives back the memory for making groups, if
    /// nobody uses it.
    pub fn pause_recompression(&self) {
        if let Some(mut packer) = self.packer.try_lock() {
            packer.grouper.give_buffers_back();
            // The remaining memory counts from the first use of the packer on.
            if self.packer_bytes.load(Ordering::Relaxed) > 0 {
                self.count_packer(&packer);
            }
        }
    }
}

impl<S: Store> State<S> {
    /// Whether the oldest of `young` objects are due, where `old` are older.
    pub(super) fn is_due(&self, young: u32, old: u32) -> bool {
        self.has_leisure && young > YOUNG_LEAST.max((young + old) / YOUNG_PART)
    }

    /// The oldest young entry if it is due, with a copy of its object. An object that is not by the
    /// codec `for_all` is due however young it is. `spared` counts entries that were asked for,
    /// from look to look of one call: after many of them nothing counts as due.
    fn begin_packing(
        &mut self,
        object: &mut [u8],
        for_all: Option<CodecSpec>,
        spared: &mut u32,
    ) -> Due<Job> {
        for _ in 0..MAX_PASSED {
            let is_idle = self.is_due(self.young.len, self.old.len + self.ancient.len);
            let id = self.young.last;
            let most = (self.young.len / SPARED_PART).max(MAX_PASSED).min(self.young.len);
            if *spared >= most || !is_idle && for_all.is_none() {
                return Due::Nothing;
            }
            let e = *self.entries.get(id);
            let is_as_all = for_all.is_some_and(|codec| e.codec != RAW && codec.writes(e.codec));
            if !is_idle && is_as_all {
                return Due::Nothing;
            }
            if e.is(Mark::Referenced) || self.is_unfilled(&e) {
                self.spare(id);
                *spared += 1;
                continue;
            }
            let len = usize::from(e.len);
            if e.is(Mark::Packed) || is_as_all || len < SHORT_BYTES {
                self.grow_old(id);
                continue;
            }
            let Location::Pool(raw) = e.location() else {
                unreachable!("whole, in a list of the pool")
            };
            return Due::Now(self.begin_job(id, raw, object));
        }
        Due::Perhaps
    }

    fn begin_job(&mut self, id: u32, raw: u64, object: &mut [u8]) -> Job {
        let e = *self.entries.get(id);
        let len = usize::from(e.len);
        let mut scratch: Page = [0; PAGE_SIZE];
        object[..len].copy_from_slice(state::object(&self.pools, e.pool, raw, &mut scratch));
        self.entries.get_mut(id).mark(Mark::Packing, true);
        Job { id, raw, codec: e.codec, len }
    }

    /// The next entry of `which` from `from` on, with a copy of its object. `Some(None)`: none
    /// among those that were looked at. `None`: there are no more entries.
    fn begin_packing_which(
        &mut self,
        which: Which,
        from: &mut u32,
        object: &mut [u8],
    ) -> Option<Option<Job>> {
        let ids = self.next_ids(from)?;
        for id in ids.clone() {
            let e = *self.entries.get(id);
            let is_tried =
                e.is(Mark::Old) || e.is(Mark::Packed) || usize::from(e.len) < SHORT_BYTES;
            let Location::Pool(raw) = e.location() else { continue };
            if is_tried || !which.has(&e) || self.is_unfilled(&e) {
                continue;
            }
            *from = id + 1;
            // A load before the order does not matter; a load meanwhile does.
            self.entries.get_mut(id).mark(Mark::Referenced, false);
            return Some(Some(self.begin_job(id, raw, object)));
        }
        Some(None)
    }

    /// The object of `job` is replaced by `packed`, if it is still there and idle, and `packed` is
    /// smaller.
    fn end_packing(&mut self, job: &Job, packed: Option<(CodecId, &[u8])>) {
        let e = *self.entries.get(job.id);
        if !e.is(Mark::Packing) || e.location() != Location::Pool(job.raw) {
            return;
        }
        self.entries.get_mut(job.id).mark(Mark::Packing, false);
        if e.kept != 0 || e.is(Mark::Old) || e.is(Mark::Referenced) {
            return;
        }
        if let Some((codec, object)) = packed
            && object.len() + object.len() / 16 < job.len
            && let Ok(handle) = self.pools[self.pool].store(object)
        {
            self.free_object(e.pool, job.raw);
            let pool = self.pool as u8;
            let e = self.entries.get_mut(job.id);
            e.set_location(Location::Pool(handle.to_raw()));
            (e.codec, e.len, e.pool) = (codec, object.len() as u16, pool);
            let saved = job.len - object.len();
            self.counters.incompressible_pages -= u64::from(job.codec == RAW);
            self.counters.recompressed_pages += 1;
            self.counters.recompressed_saved_bytes += saved as u64;
            self.note_most_used();
        }
        self.grow_old(job.id);
    }

    /// A young entry becomes the youngest of the old.
    fn grow_old(&mut self, id: u32) {
        self.unlink_pooled(id);
        let e = self.entries.get_mut(id);
        e.mark(Mark::Old, true);
        e.mark(Mark::Packed, true);
        self.old.push_front(&mut self.entries, id);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{keep, loaded, recompressing};
    use super::*;
    use crate::cache::Back;
    use crate::testing::page;

    #[test]
    fn what_is_idle_takes_less_and_is_the_same() {
        let cache = recompressing(false);
        let pages: Vec<_> = (0..1024u64).map(page).collect();
        let entries: Vec<_> = pages.iter().map(|p| cache.swap_out(p).unwrap()).collect();
        // The oldest is asked for: it is not idle.
        assert_eq!(loaded(&cache, entries[0]), pages[0]);
        let before = cache.counters().compr_data_bytes;
        let done = cache.recompress(usize::MAX);
        cache.check();
        let c = cache.counters();
        assert!((767..=832).contains(&c.recompressed_pages), "three quarters: {c:?}");
        assert!(done > c.recompressed_pages as usize, "most were tried in groups, for nothing");
        assert_eq!(before - c.compr_data_bytes, c.recompressed_saved_bytes);
        assert!(c.recompressed_saved_bytes > 64 << 10);
        assert_eq!(cache.recompress(10), 0, "nothing is due any more");
        for (e, p) in entries.iter().zip(&pages) {
            assert_eq!(loaded(&cache, *e), *p);
            cache.free(*e);
        }
        cache.check();
    }

    #[test]
    fn idle_pages_are_found_behind_many_that_were_asked_for() {
        const PAGES: usize = 2048;
        const ASKED_FOR: usize = 3 * MAX_PASSED as usize;
        let cache = recompressing(false);
        let store = |n: usize| cache.swap_out(&page(n as u64)).unwrap();
        let entries: Vec<_> = (0..PAGES).map(store).collect();
        let ask_for = |n: usize| assert_eq!(loaded(&cache, entries[n]), page(n as u64));
        let marked = |which: &[crate::cache::SwapEntry], mark| {
            let s = cache.state.lock();
            which.iter().filter(|e| s.entries.get(e.offset()).is(mark)).count()
        };
        (0..ASKED_FOR).for_each(ask_for);
        assert_eq!(cache.recompress(20), 20);
        let (first, rest) = entries.split_at(ASKED_FOR);
        assert_eq!((marked(first, Mark::Old), marked(rest, Mark::Old)), (0, 20));
        // Where all were asked for, none is idle: a call spares a part of them, and no more.
        (0..PAGES).for_each(ask_for);
        assert_eq!(cache.recompress(usize::MAX), 0);
        assert_eq!(marked(&entries, Mark::Old), 20);
        assert_eq!(PAGES - marked(&entries, Mark::Referenced), (PAGES - 20) / 8);
        cache.check();
    }

    #[test]
    fn who_must_not_wait_is_told_that_another_thread_compresses() {
        let cache = recompressing(false);
        (0..100u64).for_each(|n| _ = cache.swap_out(&page(n)).unwrap());
        let packer = cache.packer.lock();
        assert_eq!(cache.try_recompress_which(Which::default(), 10), None);
        drop(packer);
        assert_eq!(cache.try_recompress_which(Which::default(), 10), Some(10));
        assert_eq!(cache.recompress_which(Which::default(), usize::MAX), 90);
    }

    #[test]
    fn an_object_that_changes_hands_meanwhile_is_left_alone() {
        let cache = recompressing(false);
        let entries: Vec<_> = (0..200u64).map(|n| cache.swap_out(&page(n)).unwrap()).collect();
        let mut object = [0u8; PAGE_SIZE];
        let mut begin = || match cache.state.lock().begin_packing(&mut object, None, &mut 0) {
            Due::Now(job) => job,
            _ => panic!("the oldest is due"),
        };
        let end = |job: &Job| cache.state.lock().end_packing(job, Some((0, &[1, 2, 3])));
        // Freed, and the entry used again: the same id and perhaps the same handle.
        let job = begin();
        cache.free(entries[0]);
        let again = cache.swap_out(&page(1000)).unwrap();
        assert_eq!(u64::from(job.id), again.to_bits());
        end(&job);
        assert_eq!(loaded(&cache, again), page(1000));
        // Loaded.
        let job = begin();
        assert_eq!(loaded(&cache, entries[1]), page(1));
        end(&job);
        assert_eq!(loaded(&cache, entries[1]), page(1));
        // Kept.
        cache.set_max_kept_bytes(1 << 20);
        let job = begin();
        assert_eq!(u64::from(job.id), entries[2].to_bits());
        assert!(keep(&cache, entries[2], &page(2)));
        end(&job);
        assert_eq!(cache.take_back(entries[2], &page(2)), Back::Same);
        assert_eq!(loaded(&cache, entries[2]), page(2));
        cache.check();
        assert_eq!(cache.counters().recompressed_pages, 0);
    }

    #[test]
    fn without_a_stronger_codec_nothing_is_done() {
        let cache = recompressing(false);
        cache.set_codec(CodecSpec::parse("zstd:level=1").unwrap());
        let entries: Vec<_> = (0..200u64).map(|n| cache.swap_out(&page(n)).unwrap()).collect();
        assert_eq!(cache.recompress(100), 0);
        cache.set_codec(CodecSpec::default());
        cache.set_recompressor(None);
        assert_eq!(cache.recompress(100), 0);
        assert_eq!(loaded(&cache, entries[0]), page(0));
    }
}
