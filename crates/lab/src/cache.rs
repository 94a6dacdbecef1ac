//! `uzswap bench cache`: what the whole cache costs over the bare compressor and one copy.
//!
//! | | bare | cache |
//! |---|---|---|
//! | store | compress into a buffer, copy the form away | `swap_out` |
//! | load | copy the form into a buffer, decompress | `swap_in` |
//!
//! Both work on the same batch of pages, read just before, in a cache that holds the rest of the
//! mix; batches are freed again, so that the pool's frames are warm: what memory costs to get from
//! the kernel is not the question here.

use std::cell::RefCell;
use std::hint::black_box;

use serde_json::{Map, json};
use uzswap::cache::{CacheConfig, SwapCache};
use uzswap::codec::{CodecSpec, Codecs, Scratch, same_filled};
use uzswap::store::FileStore;

use super::codecs::{Forms, MAX_COMPRESSED_BYTES};
use super::engine::{Aim, Arm, Comparison, EngineArguments, Times, arm, ns_each, touch};
use super::plot;
use uzswap_cli::Failure;
use uzswap_cli::pages::{PAGE_BYTES, PageBytes};

const BATCH_PAGES: usize = 256;
const CODECS: [&str; 3] = ["lz4", "lzo-rle", "zstd:level=1"];
/// The most that the cache may cost over the bare codec.
const MOST: f64 = 1.10;

pub fn run(arguments: EngineArguments) -> Result<u8, Failure> {
    let mut comparison = Comparison::begin(&arguments, "cache")?;
    let mut results = Map::new();
    let mut groups = Vec::new();
    for text in CODECS {
        let measured = measure(&comparison, text)?;
        groups.push((text.to_string(), told(&mut comparison, text, &measured)));
        let Measured { pages, times, .. } = measured;
        results.insert(text.to_string(), json!({"pages": pages, "times_ns": times.to_json()}));
    }
    let plot = plot::bars("The cache beside the bare compressor", "nanoseconds per page", &groups);
    comparison.end(results.into(), &plot)
}

/// The measurements of one codec.
struct Measured {
    pages: usize,
    batches: usize,
    times: Times,
}

fn measure(comparison: &Comparison, text: &str) -> Result<Measured, Failure> {
    let spec: CodecSpec = text.parse().expect("a codec of ours");
    let codecs = Codecs::new(spec);
    let pages = shrinking(&codecs, &comparison.mix);
    let batches: Vec<&[PageBytes]> = pages.chunks_exact(BATCH_PAGES).collect();
    if batches.is_empty() {
        return Err(Failure::usage("--pages: too few of them shrink".to_string()));
    }
    let cache = filled(spec, &pages)?;
    let scratch = RefCell::new(Scratch::new());
    let forms: Vec<Forms> =
        batches.iter().map(|batch| Forms::of(&codecs, &mut scratch.borrow_mut(), batch)).collect();
    // The cache's batch of a round is stored, loaded and freed by its two arms in this order,
    // whichever comes first.
    let mut arms = [
        bare_store(&codecs, &scratch, &batches),
        cache_store(&cache, &batches),
        bare_load(&codecs, &scratch, &forms),
        cache_load(&cache, &batches),
    ];
    let times = comparison.in_turn(comparison.rounds * batches.len() as u32, &mut arms)?;
    drop(arms);
    cache.check();
    Ok(Measured { pages: pages.len(), batches: batches.len(), times })
}

/// The pages that the codec makes smaller.
fn shrinking(codecs: &Codecs, mix: &[PageBytes]) -> Vec<PageBytes> {
    let (mut scratch, mut out) = (Scratch::new(), [0; MAX_COMPRESSED_BYTES]);
    let shrinks = |page: &&PageBytes| {
        same_filled(page).is_none() && codecs.compress(&mut scratch, &page[..], &mut out).is_ok()
    };
    mix.iter().filter(shrinks).copied().collect()
}

/// A cache that holds the pages.
fn filled(spec: CodecSpec, pages: &[PageBytes]) -> Result<SwapCache<FileStore>, Failure> {
    let config: CacheConfig<FileStore> = CacheConfig { codec: spec, ..CacheConfig::default() };
    let cache = SwapCache::new(config).map_err(|e| Failure::environment(format!("{e:?}")))?;
    for page in pages {
        cache
            .swap_out(page)
            .map_err(|_| Failure::environment("no memory for the cache".to_string()))?;
    }
    Ok(cache)
}

fn bare_store<'a>(
    codecs: &'a Codecs,
    scratch: &'a RefCell<Scratch>,
    batches: &'a [&'a [PageBytes]],
) -> Arm<'a> {
    let mut heap = vec![0u8; BATCH_PAGES * PAGE_BYTES];
    arm("bare store", move |round| {
        let batch = batches[round % batches.len()];
        touch(batch);
        let (mut out, mut at) = ([0; MAX_COMPRESSED_BYTES], 0);
        let scratch = &mut *scratch.borrow_mut();
        ns_each(batch.len(), || {
            for page in batch {
                let len = codecs.compress(scratch, page, &mut out).expect("it shrinks").len;
                heap[at..at + len].copy_from_slice(&out[..len]);
                at += len;
            }
        })
    })
}

fn cache_store<'a>(cache: &'a SwapCache<FileStore>, batches: &'a [&'a [PageBytes]]) -> Arm<'a> {
    let mut entries = Vec::with_capacity(BATCH_PAGES);
    arm("cache store", move |round| {
        let batch = batches[round % batches.len()];
        touch(batch);
        let ns = ns_each(batch.len(), || {
            entries.extend(batch.iter().map(|page| cache.swap_out(page).expect("no limit")));
        });
        entries.drain(..).for_each(|entry| cache.free(entry));
        ns
    })
}

fn bare_load<'a>(codecs: &'a Codecs, scratch: &'a RefCell<Scratch>, forms: &'a [Forms]) -> Arm<'a> {
    let mut page = Box::new([0; PAGE_BYTES]);
    arm("bare load", move |round| {
        let forms = &forms[round % forms.len()];
        let mut out = [0; MAX_COMPRESSED_BYTES];
        let scratch = &mut *scratch.borrow_mut();
        let sum = |form: &[u8]| form.iter().map(|b| *b as usize).sum::<usize>();
        black_box(forms.each().map(|(_, form)| sum(form)).sum::<usize>());
        ns_each(BATCH_PAGES, || {
            for (codec, form) in forms.each() {
                out[..form.len()].copy_from_slice(form);
                let done = codecs.decompress(codec, scratch, &out[..form.len()], &mut page[..]);
                black_box(done).expect("what was compressed decompresses");
            }
        })
    })
}

fn cache_load<'a>(cache: &'a SwapCache<FileStore>, batches: &'a [&'a [PageBytes]]) -> Arm<'a> {
    let mut page = Box::new([0; PAGE_BYTES]);
    arm("cache load", move |round| {
        let batch = batches[round % batches.len()];
        let entries: Vec<_> =
            batch.iter().map(|page| cache.swap_out(page).expect("no limit")).collect();
        let ns = ns_each(batch.len(), || {
            for entry in &entries {
                cache.swap_in(*entry, &mut page).expect("it is there");
            }
        });
        entries.into_iter().for_each(|entry| cache.free(entry));
        ns
    })
}

/// Prints what was found with one codec: its bars.
fn told(comparison: &mut Comparison, text: &str, measured: &Measured) -> Vec<(String, f64)> {
    let Measured { pages, batches, times } = measured;
    println!("{text}, {pages} pages, {batches} batches of {BATCH_PAGES}");
    let mut bars = Vec::new();
    for way in ["store", "load"] {
        let (bare, whole) = (format!("bare {way}"), format!("cache {way}"));
        let quartiles = times.quartiles(&whole, &bare);
        println!(
            "  {way:<6} bare {:>7.0} ns, cache {:>7.0} ns, quartiles of the ratio {:.3} {:.3}",
            times.median(&bare),
            times.median(&whole),
            quartiles[0],
            quartiles[1]
        );
        // Promises are of lz4, the fastest; with others the cache is a smaller part.
        comparison.aim(
            &format!("{text}: {way}, cache to bare"),
            times.ratio(&whole, &bare),
            Aim::AtMost(MOST),
        );
        bars.extend([bare, whole].map(|name| (name.clone(), times.median(&name))));
    }
    bars
}
