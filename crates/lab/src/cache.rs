//! `uzswap bench cache`: what the whole cache costs over the bare compressor and one copy, and what
//! its faces for other programs cost over the cache.
//!
//! | | bare | cache | Rust | C |
//! |---|---|---|---|---|
//! | store | compress into a buffer, copy the form away | `swap_out` | `Cache::store` | `uzswap_cache_store` |
//! | load | copy the form into a buffer, decompress | `swap_in` | `Cache::load` | `uzswap_cache_load` |
//!
//! All work on the same batch of pages, read just before, each in a cache that holds the rest of
//! the mix; batches are freed again, so that the pool's frames are warm: what memory costs to get
//! from the kernel is not the question here. The cache names its entries itself, and a *face* has
//! keys of its caller's. The face for C is `libuzswap.so`, loaded from beside the command.

use std::cell::RefCell;
use std::hint::black_box;

use serde_json::{Map, json};
use uzswap::cache::{CacheConfig, SwapCache};
use uzswap::codec::{CodecSpec, Codecs, Scratch, same_filled};
use uzswap::store::FileStore;

use super::c_library::{self, Library};
use super::codecs::{Forms, MAX_COMPRESSED_BYTES};
use super::engine::{Aim, Arm, Comparison, EngineArguments, Times, arm, ns_each, touch};
use super::plot;
use uzswap_cli::Failure;
use uzswap_cli::pages::{PAGE_BYTES, PageBytes};

const BATCH_PAGES: usize = 256;
const CODECS: [&str; 3] = ["lz4", "lzo-rle", "zstd:level=1"];
/// The most that the cache may cost over the bare codec.
const MOST: f64 = 1.10;
/// The most that a face may cost over the cache.
const FACE_MOST: f64 = 1.10;
/// A limit of the faces that no mix reaches: the cache beside them has none.
const UNLIMITED_BYTES: u64 = 1 << 40;

pub fn run(arguments: EngineArguments) -> Result<u8, Failure> {
    let mut comparison = Comparison::begin(&arguments, "cache")?;
    let library = Library::load();
    let of_library = match &library {
        Ok(library) => library.path().display().to_string(),
        Err(why) => format!("not measured: {why}"),
    };
    println!("C: {of_library}");
    let mut results = Map::new();
    let mut groups = Vec::new();
    for text in CODECS {
        let measured = measure(&comparison, library.as_ref().ok(), text)?;
        groups.push((text.to_string(), told(&mut comparison, text, &measured)));
        let Measured { pages, times, .. } = measured;
        results.insert(
            text.to_string(),
            json!({"pages": pages, "C": of_library, "times_ns": times.to_json()}),
        );
    }
    let plot = plot::bars("The cache beside the bare compressor", "nanoseconds per page", &groups);
    comparison.end(results.into(), &plot)
}

/// The measurements of one codec.
struct Measured {
    pages: usize,
    batches: usize,
    /// Names of the faces that were measured.
    faces: Vec<&'static str>,
    times: Times,
}

fn measure(
    comparison: &Comparison,
    library: Option<&Library>,
    text: &str,
) -> Result<Measured, Failure> {
    let spec: CodecSpec = text.parse().expect("a codec of ours");
    let codecs = Codecs::new(spec);
    let pages = shrinking(&codecs, &comparison.mix);
    let batches: Vec<&[PageBytes]> = pages.chunks_exact(BATCH_PAGES).collect();
    if batches.is_empty() {
        return Err(Failure::usage("--pages: too few of them shrink".to_string()));
    }
    let cache = filled(spec, &pages)?;
    let faces = Faces::filled(library, text, &pages)?;
    let scratch = RefCell::new(Scratch::new());
    let forms: Vec<Forms> =
        batches.iter().map(|batch| Forms::of(&codecs, &mut scratch.borrow_mut(), batch)).collect();
    // A cache's batch of a round is stored, loaded and freed by its two arms in this order,
    // whichever comes first.
    let first = pages.len() as u64;
    let mut arms = vec![bare_store(&codecs, &scratch, &batches), cache_store(&cache, &batches)];
    arms.extend(faces.each().map(|(name, face)| face_store(name, face, first, &batches)));
    arms.extend([bare_load(&codecs, &scratch, &forms), cache_load(&cache, &batches)]);
    arms.extend(faces.each().map(|(name, face)| face_load(name, face, first, &batches)));
    let times = comparison.in_turn(comparison.rounds * batches.len() as u32, &mut arms)?;
    drop(arms);
    cache.check();
    let faces = faces.each().map(|(name, _)| name).collect();
    Ok(Measured { pages: pages.len(), batches: batches.len(), faces, times })
}

// ---------------------------------------------------------------- faces

/// A cache whose caller names the pages.
trait Face {
    fn store(&self, number: u64, page: &PageBytes) -> Result<(), String>;
    fn load(&self, number: u64, page: &mut PageBytes) -> Result<(), String>;
    fn drop_page(&self, number: u64) -> Result<(), String>;
}

impl Face for uzswap::Cache {
    fn store(&self, number: u64, page: &PageBytes) -> Result<(), String> {
        self.store(0, number, page).map_err(|why| why.to_string())
    }

    fn load(&self, number: u64, page: &mut PageBytes) -> Result<(), String> {
        self.load(0, number, page).map_err(|why| why.to_string())
    }

    fn drop_page(&self, number: u64) -> Result<(), String> {
        match self.drop_page(0, number).map_err(|why| why.to_string())? {
            true => Ok(()),
            false => Err("there was no page".to_string()),
        }
    }
}

impl Face for c_library::Cache<'_> {
    fn store(&self, number: u64, page: &PageBytes) -> Result<(), String> {
        self.store(number, page)
    }

    fn load(&self, number: u64, page: &mut PageBytes) -> Result<(), String> {
        self.load(number, page)
    }

    fn drop_page(&self, number: u64) -> Result<(), String> {
        self.drop_page(number)
    }
}

/// A cache of each face.
struct Faces<'a> {
    rust: uzswap::Cache,
    c: Option<c_library::Cache<'a>>,
}

impl Faces<'_> {
    /// Faces that hold the pages, under numbers from 0 on.
    fn filled<'a>(
        library: Option<&'a Library>,
        text: &str,
        pages: &[PageBytes],
    ) -> Result<Faces<'a>, Failure> {
        let config = uzswap::Config::new(UNLIMITED_BYTES).compressor(text);
        let rust = uzswap::Cache::open(&config)
            .map_err(|why| Failure::environment(format!("the Rust face: {why}")))?;
        let c = library
            .map(|library| c_library::Cache::open(library, text, UNLIMITED_BYTES))
            .transpose()
            .map_err(|why| Failure::environment(format!("the C face: {why}")))?;
        let faces = Faces { rust, c };
        for (name, face) in faces.each() {
            stored(face, 0, pages)
                .map_err(|why| Failure::environment(format!("the {name} face: {why}")))?;
        }
        Ok(faces)
    }

    fn each(&self) -> impl Iterator<Item = (&'static str, &dyn Face)> {
        let c = self.c.as_ref().map(|c| ("C", c as &dyn Face));
        [("Rust", &self.rust as &dyn Face)].into_iter().chain(c)
    }
}

// ---------------------------------------------------------------- arms

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

/// Stores a batch under the numbers from `first` on, as `cache_store` does without numbers.
fn face_store<'a>(
    name: &str,
    face: &'a dyn Face,
    first: u64,
    batches: &'a [&'a [PageBytes]],
) -> Arm<'a> {
    arm(&format!("{name} store"), move |round| {
        let batch = batches[round % batches.len()];
        touch(batch);
        let ns = ns_each(batch.len(), || stored(face, first, batch).expect("no limit"));
        dropped(face, first);
        ns
    })
}

/// Loads a batch that was stored just before, as `cache_load` does.
fn face_load<'a>(
    name: &str,
    face: &'a dyn Face,
    first: u64,
    batches: &'a [&'a [PageBytes]],
) -> Arm<'a> {
    let mut page = Box::new([0; PAGE_BYTES]);
    arm(&format!("{name} load"), move |round| {
        let batch = batches[round % batches.len()];
        stored(face, first, batch).expect("no limit");
        let ns = ns_each(batch.len(), || {
            for number in (first..).take(batch.len()) {
                face.load(number, &mut page).expect("it is there");
            }
        });
        assert!(batch.last() == Some(&*page), "another page than the one that was stored");
        dropped(face, first);
        ns
    })
}

/// Stores pages under the numbers from `first` on.
fn stored(face: &dyn Face, first: u64, pages: &[PageBytes]) -> Result<(), String> {
    (first..).zip(pages).try_for_each(|(number, page)| face.store(number, page))
}

/// Drops a batch.
fn dropped(face: &dyn Face, first: u64) {
    (first..).take(BATCH_PAGES).for_each(|number| face.drop_page(number).expect("it is there"));
}

// ---------------------------------------------------------------- what is said

/// Prints what was found with one codec: its bars.
fn told(comparison: &mut Comparison, text: &str, measured: &Measured) -> Vec<(String, f64)> {
    let Measured { pages, batches, faces, times } = measured;
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
        for face in faces {
            let name = format!("{face} {way}");
            let quartiles = times.quartiles(&name, &whole);
            println!(
                "  {way:<6} {face:<4} {:>7.0} ns, quartiles of the ratio to the cache {:.3} {:.3}",
                times.median(&name),
                quartiles[0],
                quartiles[1]
            );
            comparison.aim(
                &format!("{text}: {way}, {face} to cache"),
                times.ratio(&name, &whole),
                Aim::AtMost(FACE_MOST),
            );
        }
        let of_faces = faces.iter().map(|face| format!("{face} {way}"));
        let names = [bare, whole].into_iter().chain(of_faces);
        bars.extend(names.map(|name| (name.clone(), times.median(&name))));
    }
    bars
}

/// The ways of a measurement by codec, in microseconds, from the lines that were kept of it.
#[cfg(test)]
pub fn table(lines: &[&serde_json::Value]) -> String {
    const WAYS: [&str; 4] = ["bare", "cache", "Rust", "C"];
    let mut text = format!("| us a page | {} |\n|{}\n", WAYS.join(" | "), "---|".repeat(5));
    for line in lines {
        for what in ["store", "load"] {
            let cell = |way: &&str| {
                let ns = line["figures"]["times_ns"][format!("{way} {what}")][0].as_f64();
                ns.map_or("-".to_string(), |ns| format!("{:.2}", ns / 1e3))
            };
            let codec = line["arm"].as_str().unwrap_or_default();
            let cells: Vec<String> = WAYS.iter().map(cell).collect();
            text += &format!("| {codec}: {what} | {} |\n", cells.join(" | "));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use uzswap_cli::pages::Pages;

    use super::*;

    fn made(count: u64) -> Vec<PageBytes> {
        let made = |number| {
            let mut page = [0; PAGE_BYTES];
            Pages::Synthetic.make(number, &mut page).unwrap();
            page
        };
        (0..count).map(made).collect()
    }

    #[test]
    fn the_faces_store_and_load_the_batch_and_keep_the_rest() {
        let pages = made(2 * BATCH_PAGES as u64);
        let batches: Vec<&[PageBytes]> = pages.chunks_exact(BATCH_PAGES).collect();
        let library = Library::load();
        if let Err(why) = &library {
            println!("SKIPPED: the face for C: {why}");
        }
        let faces = Faces::filled(library.as_ref().ok(), "lz4", &pages).unwrap();
        let first = pages.len() as u64;
        let names: Vec<&str> = faces.each().map(|(name, _)| name).collect();
        assert_eq!(names, ["Rust", "C"][..1 + usize::from(library.is_ok())]);
        for (name, face) in faces.each() {
            let [mut store, mut load] =
                [face_store(name, face, first, &batches), face_load(name, face, first, &batches)];
            assert_eq!([&store.0, &load.0], [&format!("{name} store"), &format!("{name} load")]);
            for round in 0..3 {
                assert!((store.1)(round) > 0.0 && (load.1)(round) > 0.0);
            }
            let mut page = [0; PAGE_BYTES];
            for (number, stored) in pages.iter().enumerate() {
                face.load(number as u64, &mut page).unwrap();
                assert!(page == *stored, "{name}: page {number}");
            }
            assert!(face.load(first, &mut page).is_err(), "{name}: the batch is there still");
        }
        let stats = faces.rust.stats().unwrap();
        assert_eq!(stats.pages, first);
        // Both arms stored every batch, beside the pages that stay.
        assert_eq!(stats.stores, first + 2 * 3 * BATCH_PAGES as u64);
    }

    #[test]
    #[should_panic(expected = "another page than the one that was stored")]
    fn a_face_that_loads_another_page_is_not_measured() {
        struct Wrong;
        impl Face for Wrong {
            fn store(&self, _: u64, _: &PageBytes) -> Result<(), String> {
                Ok(())
            }
            fn load(&self, _: u64, page: &mut PageBytes) -> Result<(), String> {
                page.fill(1);
                Ok(())
            }
            fn drop_page(&self, _: u64) -> Result<(), String> {
                Ok(())
            }
        }
        let pages = made(BATCH_PAGES as u64);
        let batches = [&pages[..]];
        let mut load = face_load("wrong", &Wrong, 0, &batches);
        (load.1)(0);
    }
    #[test]
    fn a_table_has_a_row_for_each_codec_and_way() {
        let times = json!({"bare store": [7498, 7029, 7879, 14], "cache store": [8173, 1, 1, 14],
            "Rust store": [8340, 1, 1, 14], "bare load": [1897, 1, 1, 14]});
        let line = json!({"arm": "lz4", "figures": {"times_ns": times}});
        let expected = "| us a page | bare | cache | Rust | C |\n|---|---|---|---|---|\n\
                        | lz4: store | 7.50 | 8.17 | 8.34 | - |\n\
                        | lz4: load | 1.90 | - | - | - |\n";
        assert_eq!(table(&[&line]), expected);
    }
}
