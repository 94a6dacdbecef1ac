//! `uzswap bench same-filled`: what pages of one repeated word cost, and what looking for them
//! costs all others.
//!
//! Three kinds of pages, made up, for their content is all there is to them: *same-filled*; *last
//! word* differs, which is the published worst case; *last but one* differs, which is the worst for
//! a check that looks at both ends first. The two others go through the compressor, so they are
//! what a same-filled page would cost without the check.

use std::hint::black_box;

use serde_json::json;
use uzswap::cache::{CacheConfig, SwapCache};
use uzswap::codec::same_filled;
use uzswap::store::FileStore;

use super::engine::{Aim, Arm, Comparison, EngineArguments, Times, arm, ns_each, touch};
use super::plot;
use uzswap_cli::Failure;
use uzswap_cli::pages::{PAGE_BYTES, PageBytes, Random};

const PAGES: usize = 512;
const WORD_BYTES: usize = 8;

/// Pages of one word each, with the word that is so many before the end changed.
fn pages(changed: Option<usize>) -> Vec<PageBytes> {
    let mut random = Random(1);
    let mut page = |index: usize| {
        // Two thirds of real ones are zero.
        let word = if index.is_multiple_of(3) { random.next() } else { 0 };
        let mut page = [0; PAGE_BYTES];
        page.as_chunks_mut::<WORD_BYTES>().0.fill(word.to_ne_bytes());
        if let Some(before_end) = changed {
            page[PAGE_BYTES - (before_end + 1) * WORD_BYTES] ^= 0x55;
        }
        page
    };
    (0..PAGES).map(&mut page).collect()
}

/// Nanoseconds of the check alone.
fn check(pages: &[PageBytes]) -> f64 {
    ns_each(pages.len(), || {
        for page in pages {
            let _ = black_box(same_filled(black_box(page)));
        }
    })
}

pub fn run(arguments: EngineArguments) -> Result<u8, Failure> {
    let mut comparison = Comparison::begin(&arguments, "same-filled")?;
    let kinds = [
        ("same-filled", pages(None)),
        ("last word", pages(Some(0))),
        ("last but one", pages(Some(1))),
    ];
    let config: CacheConfig<FileStore> = CacheConfig::default();
    let cache = SwapCache::new(config).map_err(|e| Failure::environment(format!("{e:?}")))?;
    // A real page's store, for scale: what the check is a part of most of the time.
    let others: Vec<PageBytes> = comparison
        .mix
        .iter()
        .filter(|page| same_filled(page).is_none())
        .take(PAGES)
        .copied()
        .collect();
    let made_up = kinds.iter().flat_map(|(name, pages)| arms_of(name, pages, &cache));
    let mut arms: Vec<Arm> = made_up.chain(arms_of_real(&others, &cache)).collect();
    let times = comparison.in_turn(comparison.rounds * 10, &mut arms)?;
    drop(arms);

    let groups = table(&times, kinds.each_ref().map(|(name, _)| *name));
    let same = times.median("same-filled: store") + times.median("same-filled: load");
    let through = times.median("last word: store") + times.median("last word: load");
    comparison.aim("store and load, through lz4 to same-filled", through / same, Aim::AtLeast(5.0));
    let worst = times.ratio("last word: check", "last word: store");
    comparison.aim("check to store, last word differs", worst, Aim::AtMost(0.02));
    println!(
        "  check to store, last but one differs: {:.3}; of real pages: {:.4}",
        times.ratio("last but one: check", "last but one: store"),
        times.ratio("real: check", "real: store")
    );
    let plot = plot::bars("Pages of one repeated word", "nanoseconds per page", &groups);
    comparison.end(json!({"pages": PAGES, "times_ns": times.to_json()}), &plot)
}

/// The arms on made-up pages.
fn arms_of<'a>(
    name: &str,
    pages: &'a [PageBytes],
    cache: &'a SwapCache<FileStore>,
) -> [Arm<'a>; 3] {
    let store = move || pages.iter().map(|page| cache.swap_out(page).expect("no limit"));
    [
        arm(&format!("{name}: check"), move |_| {
            touch(pages);
            check(pages)
        }),
        arm(&format!("{name}: store"), move |_| {
            touch(pages);
            let mut entries = Vec::with_capacity(PAGES);
            let ns = ns_each(PAGES, || entries.extend(store()));
            entries.into_iter().for_each(|entry| cache.free(entry));
            ns
        }),
        arm(&format!("{name}: load"), move |_| {
            let entries: Vec<_> = store().collect();
            let mut page = [0; PAGE_BYTES];
            let ns = ns_each(PAGES, || {
                entries
                    .iter()
                    .for_each(|entry| cache.swap_in(*entry, &mut page).expect("it is there"));
            });
            entries.into_iter().for_each(|entry| cache.free(entry));
            ns
        }),
    ]
}

/// The arms on real pages, of which the cache may refuse some.
fn arms_of_real<'a>(others: &'a [PageBytes], cache: &'a SwapCache<FileStore>) -> [Arm<'a>; 2] {
    [
        arm("real: check", move |_| {
            touch(others);
            check(others)
        }),
        arm("real: store", move |_| {
            touch(others);
            let mut entries = Vec::with_capacity(PAGES);
            let store = |page| cache.swap_out(page).ok();
            let ns = ns_each(others.len(), || entries.extend(others.iter().filter_map(store)));
            entries.into_iter().for_each(|entry| cache.free(entry));
            ns
        }),
    ]
}

/// Prints all times: the bars of each kind.
fn table(times: &Times, kinds: [&str; 3]) -> Vec<plot::Group> {
    println!("{:<14} {:>10} {:>10} {:>10}", "ns/page", "check", "store", "load");
    let mut groups = Vec::new();
    for name in kinds {
        let [check, store, load] =
            ["check", "store", "load"].map(|what| times.median(&format!("{name}: {what}")));
        println!("{name:<14} {check:>10.1} {store:>10.1} {load:>10.1}");
        let bars = [("check", check), ("store", store), ("load", load)];
        groups.push((name.to_string(), bars.map(|(what, ns)| (what.to_string(), ns)).into()));
    }
    println!(
        "{:<14} {:>10.1} {:>10.1}",
        "real",
        times.median("real: check"),
        times.median("real: store")
    );
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_of_their_kind() {
        assert!(pages(None).iter().all(|page| same_filled(page).is_some()));
        for before_end in [0, 1] {
            let pages = pages(Some(before_end));
            assert!(pages.iter().all(|page| same_filled(page).is_none()));
            let words: Vec<u64> =
                pages[0].as_chunks::<8>().0.iter().map(|w| u64::from_ne_bytes(*w)).collect();
            assert_eq!(words.iter().filter(|word| **word != words[0]).count(), 1);
            assert_ne!(words[511 - before_end], words[0]);
        }
    }
}
