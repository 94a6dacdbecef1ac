//! How small the sampled pages become: by the engine's own cache, as `uzswap run` would store them.
//!
//! Each page takes the way that it would take there: one repeated word, sparse, the codec, the
//! denser codec for what the first makes nothing of, size classes of the pool. A sample of some
//! pages leaves a pool of many size classes half empty, which a program's pages would not; so every
//! page goes in several times, until the pool is as large as one that is worth having.
//!
//! By the fast codec, and by the denser one that `--compressor auto` takes for programs to which
//! memory is worth more than time.

use std::sync::Arc;
use std::time::Instant;

use uzswap::cache::{CacheConfig, SwapCache};
use uzswap::codec::CodecSpec;
use uzswap::store::FileStore;

use crate::options::RECOMPRESSOR_DEFAULT;
use crate::pages::{PAGE_BYTES, PageBytes};

/// Pages that are put in, at least: 80 MiB.
const PAGES_LEAST: usize = 20_000;
/// The cost of one page in tables: its entry, and its word in the page table (`region/table.rs`).
const TABLE_BYTES: f64 = 32.0;
/// 95 % of a normal distribution lie within so many standard deviations of its mean.
const CONFIDENT: f64 = 1.96;

/// The size of pages in the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Density {
    /// Different pages in the sample.
    pub sampled_pages: usize,
    /// Shares of all pages.
    pub same_filled: f64,
    pub incompressible: f64,
    /// Memory that a compressible page takes, in pages, tables included: mean, and how far the
    /// sample leaves that open.
    pub stored: f64,
    pub stored_error: f64,
    /// Memory that the cache takes besides: buffers, working memory of the codecs.
    pub buffer_bytes: f64,
    /// The time to put one page in and take it out, as measured here.
    pub page_ns: f64,
}

impl Density {
    /// How many times more memory so many pages take uncompressed: the mean, and the bounds by the
    /// sample (95 %). The ratio of a run also counts the cache's own buffers.
    pub fn ratio(&self, pages: f64) -> [f64; 3] {
        let buffers = self.buffer_bytes / (pages.max(1.0) * PAGE_BYTES as f64);
        [self.stored, self.stored + self.stored_error, self.stored - self.stored_error]
            .map(|stored| 1.0 / (stored + buffers).max(1e-3))
    }
}

/// The densities by the codec in force at first, and by the denser one.
pub fn densities(pages: &[Arc<PageBytes>]) -> Result<[Density; 2], String> {
    Ok([density(pages, false)?, density(pages, true)?])
}

fn density(pages: &[Arc<PageBytes>], dense: bool) -> Result<Density, String> {
    let config = CacheConfig::<FileStore> {
        recompressor: CodecSpec::parse(RECOMPRESSOR_DEFAULT).ok(),
        chooses_codec: true,
        ..CacheConfig::default()
    };
    let cache = SwapCache::new(config).map_err(|e| format!("no memory for a cache: {e:?}"))?;
    cache.choose_dense(dense);
    let mut bytes = Vec::new();
    let mut entries = Vec::new();
    let mut before = 0;
    let started = Instant::now();
    for places in pages.chunk_by(Arc::ptr_eq) {
        for page in places {
            entries.extend(cache.swap_out(page).ok());
        }
        let now = cache.counters().compr_data_bytes;
        bytes.push(((now - before) as f64, places.len() as f64));
        before = now;
    }
    let mut out = [0; PAGE_BYTES];
    for entry in entries {
        cache.swap_in(entry, &mut out).map_err(|e| format!("a page did not come back: {e:?}"))?;
    }
    let page_ns = started.elapsed().as_nanos() as f64 / pages.len().max(1) as f64;
    for _ in 1..PAGES_LEAST.div_ceil(pages.len().max(1)) {
        for page in pages {
            // A page that was refused is refused again.
            let _ = cache.swap_out(page);
        }
    }
    let counters = cache.counters();
    let in_memory = (counters.pool_pages + counters.same_filled_pages) as f64;
    let all = counters.stores as f64;
    if in_memory == 0.0 {
        return Ok(Density {
            sampled_pages: bytes.len(),
            incompressible: if all > 0.0 { 1.0 } else { 0.0 },
            stored: 1.0,
            ..Density::default()
        });
    }
    let own = (counters.mem_used_bytes as f64 / in_memory + TABLE_BYTES) / PAGE_BYTES as f64;
    Ok(Density {
        sampled_pages: bytes.len(),
        same_filled: counters.same_filled_pages as f64 / all,
        incompressible: counters.failed_stores as f64 / all,
        stored: own.min(1.0),
        stored_error: CONFIDENT * standard_error(&bytes) / PAGE_BYTES as f64,
        buffer_bytes: (cache.footprint_bytes() as f64 - own * in_memory * PAGE_BYTES as f64)
            .max(0.0),
        page_ns,
    })
}

/// The standard error of a mean of values per place; an item is (sum, places).
fn standard_error(values: &[(f64, f64)]) -> f64 {
    let (sum, places) = values.iter().fold((0.0, 0.0), |(a, b), (sum, n)| (a + sum, b + n));
    let count = values.len() as f64;
    if count < 2.0 {
        return f64::INFINITY;
    }
    let mean = sum / places;
    // The standard error of a ratio of sums.
    let squares = values.iter().map(|(sum, n)| (sum - mean * n).powi(2)).sum::<f64>();
    (squares * count / (count - 1.0)).sqrt() / places
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::{Pages, Random};

    fn made(count: u64, make: impl Fn(u64, &mut PageBytes)) -> Vec<Arc<PageBytes>> {
        let page = |i| {
            let mut page = [0; PAGE_BYTES];
            make(i, &mut page);
            Arc::new(page)
        };
        (0..count).map(page).collect()
    }

    /// Numbers and words in a random order: the denser codec makes more of them.
    fn text(i: u64, page: &mut PageBytes) {
        const WORDS: [&str; 8] =
            ["which ", "page ", "was ", "written ", "before, ", "and ", "since ", "not "];
        let mut random = Random(i);
        let words = std::iter::repeat_with(|| {
            let number = random.next();
            format!("{}{} ", WORDS[(number % 8) as usize], number >> 8 & 0xfff)
        });
        let bytes: Vec<u8> = words.flat_map(String::into_bytes).take(PAGE_BYTES).collect();
        page.copy_from_slice(&bytes);
    }

    #[test]
    fn kinds_of_pages_are_told_apart() {
        let pages = made(900, |i, page| match i % 3 {
            0 => page.fill(i as u8),
            1 => text(i, page),
            _ => {
                let mut random = Random(i);
                page.as_chunks_mut()
                    .0
                    .iter_mut()
                    .for_each(|word| *word = random.next().to_ne_bytes());
            }
        });
        let [fast, dense] = densities(&pages).unwrap();
        for density in [fast, dense] {
            assert_eq!(density.sampled_pages, 900);
            assert!((density.same_filled - 1.0 / 3.0).abs() < 0.01, "{density:?}");
            assert!((density.incompressible - 1.0 / 3.0).abs() < 0.01, "{density:?}");
            let [ratio, least, most] = density.ratio(1e9);
            assert!(least < ratio && ratio < most, "{density:?}");
        }
        let few = fast.ratio(1000.0)[0];
        assert!(few < fast.ratio(1e6)[0] && fast.buffer_bytes < 8e6, "{fast:?}");
        // Such text is about half, and half of what is kept takes nothing.
        assert!((0.15..0.35).contains(&fast.stored), "{fast:?}");
        assert!(dense.stored < fast.stored, "{dense:?}");
    }

    #[test]
    fn the_sample_says_how_far_it_can_be_trusted() {
        let error = |count| {
            let pages = made(count, |i, page| Pages::Synthetic.make(i * 7, page).unwrap());
            densities(&pages).unwrap()[0].stored_error
        };
        assert!(error(2000) < error(50) / 3.0);
        assert_eq!(standard_error(&[(1.0, 1.0)]), f64::INFINITY);
        assert!((standard_error(&[(1.0, 1.0), (3.0, 1.0)]) - 1.0).abs() < 1e-9);
        // Seen twice, a page says no more than seen once.
        assert!((standard_error(&[(2.0, 2.0), (6.0, 2.0)]) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn without_pages_nothing_is_claimed() {
        let [fast, _] = densities(&[]).unwrap();
        assert_eq!((fast.sampled_pages, fast.stored), (0, 1.0));
    }
}
