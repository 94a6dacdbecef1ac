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
use super::engine::{Aim, Comparison, EngineArguments, arm, ns_each, touch};
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
        let spec: CodecSpec = text.parse().expect("a codec of ours");
        let codecs = Codecs::new(spec);
        let mut scratch = Scratch::new();
        let mut out = [0; MAX_COMPRESSED_BYTES];
        let shrinks = |page: &&PageBytes| {
            same_filled(page).is_none()
                && codecs.compress(&mut scratch, &page[..], &mut out).is_ok()
        };
        let pages: Vec<PageBytes> = comparison.mix.iter().filter(shrinks).copied().collect();
        let batches: Vec<&[PageBytes]> = pages.chunks_exact(BATCH_PAGES).collect();
        if batches.is_empty() {
            return Err(Failure::usage("--pages: too few of them shrink".to_string()));
        }

        let config: CacheConfig<FileStore> = CacheConfig { codec: spec, ..CacheConfig::default() };
        let cache = SwapCache::new(config).map_err(|e| Failure::environment(format!("{e:?}")))?;
        for page in &pages {
            cache
                .swap_out(page)
                .map_err(|_| Failure::environment("no memory for the cache".to_string()))?;
        }
        let mut entries = Vec::with_capacity(BATCH_PAGES);
        let scratch = RefCell::new(Scratch::new());
        let mut heap = vec![0u8; BATCH_PAGES * PAGE_BYTES];
        let mut page = Box::new([0; PAGE_BYTES]);
        let mut other_page = Box::new([0; PAGE_BYTES]);
        // The cache's batch of a round is stored, loaded and freed by its two arms in this order,
        // whichever comes first.
        let forms: Vec<Forms> = batches
            .iter()
            .map(|batch| Forms::of(&codecs, &mut scratch.borrow_mut(), batch))
            .collect();
        let mut arms = [
            arm("bare store", |round| {
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
            }),
            arm("cache store", |round| {
                let batch = batches[round % batches.len()];
                touch(batch);
                let ns = ns_each(batch.len(), || {
                    entries
                        .extend(batch.iter().map(|page| cache.swap_out(page).expect("no limit")));
                });
                entries.drain(..).for_each(|entry| cache.free(entry));
                ns
            }),
            arm("bare load", |round| {
                let forms = &forms[round % forms.len()];
                let mut out = [0; MAX_COMPRESSED_BYTES];
                let scratch = &mut *scratch.borrow_mut();
                black_box(
                    forms
                        .each()
                        .map(|(_, form)| form.iter().map(|b| *b as usize).sum::<usize>())
                        .sum::<usize>(),
                );
                ns_each(BATCH_PAGES, || {
                    for (codec, form) in forms.each() {
                        out[..form.len()].copy_from_slice(form);
                        let done =
                            codecs.decompress(codec, scratch, &out[..form.len()], &mut page[..]);
                        black_box(done).expect("what was compressed decompresses");
                    }
                })
            }),
            arm("cache load", |round| {
                let batch = batches[round % batches.len()];
                let entries: Vec<_> =
                    batch.iter().map(|page| cache.swap_out(page).expect("no limit")).collect();
                let ns = ns_each(batch.len(), || {
                    for entry in &entries {
                        cache.swap_in(*entry, &mut other_page).expect("it is there");
                    }
                });
                entries.into_iter().for_each(|entry| cache.free(entry));
                ns
            }),
        ];
        let times = comparison.in_turn(comparison.rounds * batches.len() as u32, &mut arms)?;
        drop(arms);
        cache.check();

        println!("{text}, {} pages, {} batches of {BATCH_PAGES}", pages.len(), batches.len());
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
            // Promises are of lz4, the fastest; with others the cache is a smaller
            // part.
            comparison.aim(
                &format!("{text}: {way}, cache to bare"),
                times.ratio(&whole, &bare),
                Aim::AtMost(MOST),
            );
            bars.extend([
                (bare.clone(), times.median(&bare)),
                (whole.clone(), times.median(&whole)),
            ]);
        }
        groups.push((text.to_string(), bars));
        results
            .insert(text.to_string(), json!({"pages": pages.len(), "times_ns": times.to_json()}));
    }
    let plot = plot::bars("The cache beside the bare compressor", "nanoseconds per page", &groups);
    comparison.end(results.into(), &plot)
}
