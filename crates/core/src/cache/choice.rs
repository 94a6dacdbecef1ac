//! The choice between the two codecs: the fast one, or the stronger one for all pages.
//!
//! ```text
//!   page in --the codec in force--> pool           one in 64 by the other, too: sizes of both ──> the owner ──> choose_dense
//!            `-no smaller?-> the stronger one
//! ```
//!
//! For some programs the stronger codec is the better one for all pages: they become so much
//! smaller that the memory saves more loads than the slower ones cost. Both are tried on a sample
//! ([`Choice`]); the owner knows what memory is worth, and chooses ([`SwapCache::choose_dense`]).
//! Then the objects in the pool follow little by little, the oldest first, whether idle or not
//! ([`super::recompress`] does it). Otherwise the pages that a program seldom asks for, which may
//! be most of them, would stay as large as they are.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::recompress::Packer;
use super::{MAX_COMPRESSED_BYTES, Page, SwapCache};
use crate::bet::Bet;
use crate::codec::{Algorithm, CodecSpec, Compressed};
use crate::store::Store;
use crate::sys::PAGE_SIZE;

/// Both codecs are tried on one in this many of the pages that come in. So many samples are enough
/// to choose by.
const SAMPLED: u32 = 64;
const SAMPLES: u32 = 32;

/// Where the stronger codec is the one for all pages, an object of the pool is compressed again for
/// each so many pages that come in. A program that brings many pages back gains most by it, and a
/// program that ends soon has not paid for the whole pool.
const STORES_TO_CONVERT: u64 = 4;
/// Pages on which the stronger codec fails as well that one which it makes smaller makes up for.
const HELP_ODDS: i8 = 4;

/// Which of the two codecs pages are compressed with as they come in. Guesses that race are
/// harmless.
pub struct Choice {
    /// The owner may choose.
    is_free: AtomicBool,
    /// The word of the stronger codec, if there is one.
    stronger: AtomicU32,
    /// The stronger codec is chosen for all pages.
    is_dense: AtomicBool,
    /// Stores to the pool until that was decided; objects that may be compressed again besides;
    /// objects that were since.
    chosen_at: AtomicU64,
    granted: AtomicU64,
    converted: AtomicU64,
    /// The stronger codec helps where the fast one makes a page no smaller.
    help: Bet<HELP_ODDS>,
    offered: AtomicU32,
    samples: AtomicU32,
    /// Bytes of the samples by one and by the other, older ones fading.
    fast_bytes: AtomicU32,
    dense_bytes: AtomicU32,
}

impl Choice {
    pub fn new(is_free: bool, stronger: Option<CodecSpec>) -> Choice {
        Choice {
            is_free: AtomicBool::new(is_free),
            stronger: AtomicU32::new(CodecSpec::option_to_word(stronger)),
            is_dense: AtomicBool::new(false),
            chosen_at: AtomicU64::new(0),
            granted: AtomicU64::new(0),
            converted: AtomicU64::new(0),
            help: Bet::new(),
            offered: AtomicU32::new(0),
            samples: AtomicU32::new(0),
            fast_bytes: AtomicU32::new(0),
            dense_bytes: AtomicU32::new(0),
        }
    }

    fn set_stronger(&self, codec: Option<CodecSpec>) {
        self.stronger.store(CodecSpec::option_to_word(codec), Ordering::Relaxed);
    }

    pub fn stronger(&self) -> Option<CodecSpec> {
        CodecSpec::option_from_word(self.stronger.load(Ordering::Relaxed)).flatten()
    }

    /// From now on, after so many stores, the stronger codec is the one for all pages, or the fast
    /// one is again.
    fn choose(&self, dense: bool, pool_stores: u64) {
        self.grant(pool_stores, 0);
        self.is_dense.store(dense, Ordering::Relaxed);
    }

    /// Lets `objects` objects follow the stronger codec now, and more as more come in.
    pub fn grant(&self, pool_stores: u64, objects: u64) {
        self.chosen_at.store(pool_stores, Ordering::Relaxed);
        self.granted.store(objects, Ordering::Relaxed);
        self.converted.store(0, Ordering::Relaxed);
    }

    /// The number of objects that may follow now. Where pages go to the disk the evictor has enough
    /// to do, unless there was time.
    fn may_convert(&self, pool_stores: u64, store_pages: u64) -> usize {
        let stores = pool_stores.saturating_sub(self.chosen_at.load(Ordering::Relaxed));
        let by_stores = if store_pages > 0 { 0 } else { stores / STORES_TO_CONVERT };
        let all = by_stores + self.granted.load(Ordering::Relaxed);
        all.saturating_sub(self.converted.load(Ordering::Relaxed)) as usize
    }

    /// `objects` objects have followed.
    pub fn learn_converted(&self, objects: usize) {
        self.converted.fetch_add(objects as u64, Ordering::Relaxed);
    }

    fn is_free(&self) -> bool {
        self.is_free.load(Ordering::Relaxed)
    }

    /// The codecs are others from now on: what is known of their sizes does not hold.
    fn begin(&self, is_free: bool) {
        self.is_free.store(is_free, Ordering::Relaxed);
        for sum in [&self.samples, &self.fast_bytes, &self.dense_bytes] {
            sum.store(0, Ordering::Relaxed);
        }
    }

    fn is_due(&self) -> bool {
        self.is_free() && self.offered.fetch_add(1, Ordering::Relaxed).is_multiple_of(SAMPLED)
    }

    /// One page takes so many bytes by one and by the other.
    fn learn(&self, by_fast: usize, by_dense: usize) {
        let fast = self.fast_bytes.fetch_add(by_fast as u32, Ordering::Relaxed) + by_fast as u32;
        let dense =
            self.dense_bytes.fetch_add(by_dense as u32, Ordering::Relaxed) + by_dense as u32;
        if self.samples.fetch_add(1, Ordering::Relaxed) + 1 >= 2 * SAMPLES {
            self.samples.store(SAMPLES, Ordering::Relaxed);
            self.fast_bytes.store(fast / 2, Ordering::Relaxed);
            self.dense_bytes.store(dense / 2, Ordering::Relaxed);
        }
    }

    fn sizes(&self) -> Option<(u32, u32)> {
        let sizes =
            (self.fast_bytes.load(Ordering::Relaxed), self.dense_bytes.load(Ordering::Relaxed));
        (self.samples.load(Ordering::Relaxed) >= SAMPLES && sizes.0 > 0 && sizes.1 > 0)
            .then_some(sizes)
    }
}

/// The codec, with literals coded by their frequency: zstd leaves that coding out at negative
/// levels, and nothing else helps with digits or text without repetitions.
pub fn with_entropy_coding(codec: CodecSpec) -> CodecSpec {
    if codec.algorithm() == Algorithm::Zstd && codec.level() < 0 {
        CodecSpec::parse("zstd:level=1").unwrap_or(codec)
    } else {
        codec
    }
}

impl<S: Store> SwapCache<S> {
    /// Compresses all pages that come in by `fixed` from now on, or by the best: then the fast
    /// codec first, and the stronger one too where it is much stronger. Objects already stored stay
    /// as they are.
    pub fn fix_codec(&self, fixed: Option<CodecSpec>) {
        self.choice.begin(fixed.is_none());
        self.choose_dense(false);
        self.set_codec(fixed.unwrap_or_default());
    }

    /// Sets the stronger codec; without one, nothing is compressed again.
    pub fn set_recompressor(&self, codec: Option<CodecSpec>) {
        self.choice.set_stronger(codec);
    }

    /// Sizes of some pages by the codec in force and by the stronger one, in proportion; `None`:
    /// not known, or there is no choice.
    pub fn codec_sizes(&self) -> Option<(u32, u32)> {
        self.choice.sizes()
    }

    /// `dense`: pages that come in are compressed by the stronger codec from now on, and those in
    /// the pool follow little by little; else by the fast codec again.
    pub fn choose_dense(&self, dense: bool) {
        let pool_stores = self.state.lock().counters.pool_stores;
        self.choice.choose(dense, pool_stores);
    }

    /// Whether the stronger codec is the one for all pages.
    pub fn is_dense(&self) -> bool {
        self.choice.is_dense.load(Ordering::Relaxed)
    }

    /// The codec for a page that comes in: the stronger one, if it has been chosen for all.
    pub(super) fn codec_for_stores(&self) -> CodecSpec {
        let dense = if self.is_dense() { self.choice.stronger() } else { None };
        dense.unwrap_or_else(|| self.codecs.spec())
    }

    /// Compresses by the stronger codec a page that `codec` could not make smaller: always as long
    /// as that helps, now and then when it does not, and not if another thread is using it.
    pub(super) fn compress_densely(
        &self,
        page: &Page,
        codec: CodecSpec,
        out: &mut [u8],
    ) -> Option<Compressed> {
        let dense = with_entropy_coding(self.choice.stronger()?);
        if dense == codec || !self.choice.help.is_on() {
            return None;
        }
        let mut packer = self.packer.try_lock()?;
        let c = self.codecs.compress_as(dense, &mut packer.entropy_scratch, page, out).ok();
        self.choice.help.learn(c.is_some());
        self.count_packer(&packer);
        c
    }

    /// A page came in and was compressed by `codec` to so many bytes: now and then the other codec
    /// is tried on it, to learn which is better.
    pub(super) fn compare_codecs(&self, page: &Page, codec: CodecSpec, bytes: usize) {
        if !self.choice.is_due() {
            return;
        }
        let fast = self.codecs.spec();
        let Some(dense) = self.choice.stronger().filter(|dense| *dense != fast) else { return };
        let Some(mut packer) = self.packer.try_lock() else { return };
        let other = if codec == dense { fast } else { dense };
        let Packer { scratch, out, .. } = &mut *packer;
        let out = &mut out.as_mut_slice()[..MAX_COMPRESSED_BYTES];
        let other_bytes =
            self.codecs.compress_as(other, scratch, page, out).map_or(PAGE_SIZE, |c| c.len);
        let (by_fast, by_dense) =
            if codec == dense { (other_bytes, bytes) } else { (bytes, other_bytes) };
        self.choice.learn(by_fast, by_dense);
        self.count_packer(&packer);
    }

    /// How many objects may be compressed again now that the stronger codec is the one for all.
    pub(super) fn may_convert(&self) -> usize {
        let c = self.state.lock().counters;
        self.choice.may_convert(c.pool_stores, c.store_pages)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{loaded, recompressing};
    use super::*;
    use crate::testing::{Choices, page};

    #[test]
    fn both_codecs_are_tried_on_a_sample() {
        let cache = recompressing(true);
        assert_eq!(cache.codec_sizes(), None);
        let store = |n: u64| cache.free(cache.swap_out(&page(n)).unwrap());
        (0..u64::from(SAMPLED * SAMPLES)).for_each(store);
        let (fast, dense) = cache.codec_sizes().unwrap();
        assert!(dense < fast);
        assert_ne!(cache.packer_bytes.load(Ordering::Relaxed), 0, "its memory counts");
        cache.choose_dense(true);
        let e = cache.swap_out(&page(1)).unwrap();
        let by_dense = cache.counters().compr_data_bytes;
        assert_eq!(loaded(&cache, e), page(1));
        cache.free(e);
        (0..u64::from(4 * SAMPLED * SAMPLES)).for_each(store);
        let (fast, dense) = cache.codec_sizes().unwrap();
        assert!(dense < fast, "the other way round");
        cache.choose_dense(false);
        let _ = cache.swap_out(&page(1)).unwrap();
        assert!(by_dense < cache.counters().compr_data_bytes);
        cache.check();
    }

    #[test]
    fn what_is_in_the_pool_follows_the_codec_for_all() {
        let cache = recompressing(true);
        let dense = cache.choice.stronger().unwrap();
        // Half of it random words, so that both codecs have something to do.
        let half = |n: u64| {
            let mut random = crate::testing::Random::new(n);
            core::array::from_fn(|i| {
                if i / 8 % 2 == 0 { random.index(256) as u8 } else { (i / 16) as u8 }
            })
        };
        let by_dense = |entries: &[crate::cache::SwapEntry]| {
            let s = cache.state.lock();
            entries.iter().filter(|e| dense.writes(s.entries.get(e.offset()).codec)).count()
        };
        let store = |n: u64| cache.swap_out(&half(n)).unwrap();
        let first: Vec<_> = (0..200).map(store).collect();
        assert_eq!(by_dense(&first), 0);
        cache.choose_dense(true);
        assert_eq!(cache.recompress(usize::MAX), 0, "nothing has come in since");
        let then: Vec<_> = (200..600).map(store).collect();
        assert_eq!((by_dense(&first), by_dense(&then)), (0, 400));
        // A quarter of what came in: the oldest.
        assert_eq!(cache.recompress(usize::MAX), 100);
        assert_eq!((by_dense(&first[..100]), by_dense(&first[100..])), (100, 0));
        assert_eq!(cache.recompress(usize::MAX), 0);
        // The rest of them, and no more than these.
        let last: Vec<_> = (600..2600).map(store).collect();
        cache.recompress(usize::MAX);
        assert_eq!(by_dense(&first), 200);
        assert_eq!(cache.counters().recompressed_pages, 200);
        for (n, e) in first.iter().chain(&then).chain(&last).enumerate() {
            assert_eq!(loaded(&cache, *e), half(n as u64));
        }
        cache.check();
    }

    #[test]
    fn where_pages_go_to_the_disk_nothing_follows_unless_there_is_time() {
        let choice = Choice::new(true, None);
        choice.choose(true, 1000);
        let may = |stores| choice.may_convert(stores, 0);
        assert_eq!([999, 1000, 1003, 1004, 1400].map(may), [0, 0, 0, 1, 100]);
        choice.learn_converted(99);
        assert_eq!([may(1400), may(1404), choice.may_convert(1404, 1)], [1, 2, 0]);
        choice.grant(1404, 50);
        choice.learn_converted(20);
        assert_eq!([may(1404), may(1444), choice.may_convert(1444, 1)], [30, 40, 30]);
        // It is the whole pool then.
        let cache = recompressing(false);
        let entries: Vec<_> = (0..100).map(|n| cache.swap_out(&page(n)).unwrap()).collect();
        cache.choose_dense(true);
        assert_eq!(cache.may_convert(), 0);
        cache.set_leisure(true);
        assert_eq!(cache.may_convert() as u64, cache.counters().pool_pages);
        entries.iter().for_each(|e| cache.free(*e));
    }

    #[test]
    fn what_only_the_stronger_codec_makes_smaller_stays_in_memory() {
        // Hexadecimal digits: no repetitions, half the entropy.
        let mut random = crate::testing::Random::new(1);
        let mut hex = || core::array::from_fn(|_| b"0123456789abcdef"[random.index(16)]);
        let cache = recompressing(false);
        let pages: Vec<Page> = (0..100).map(|_| hex()).collect();
        let entries: Vec<_> = pages.iter().map(|p| cache.swap_out(p).unwrap()).collect();
        assert_eq!(cache.counters().pool_pages, 100);
        assert_ne!(cache.packer_bytes.load(Ordering::Relaxed), 0, "its memory counts");
        for (e, p) in entries.iter().zip(&pages) {
            assert_eq!(loaded(&cache, *e), *p);
        }
        cache.check();
    }
}
