//! The purpose of a cache: pages come back from every place that they can be in.

use std::sync::LazyLock;

use super::*;
use crate::codec::Training;
use crate::sys::file::testing;
use crate::testing::object;

#[test]
fn pages_come_back_from_every_place() {
    let (cache, _) = in_memory(1 << 20);
    let pages: Vec<Page> = (0..3000u64)
        .map(|i| match i % 10 {
            0 => [i as u8; PAGE_SIZE],
            1 => noise(i),
            _ => page(i),
        })
        .collect();
    let out = |p| {
        cache
            .swap_out(p)
            .unwrap_or_else(|_| panic!("{:?} {:?}", cache.store_failure(), cache.counters()))
    };
    let entries: Vec<SwapEntry> = pages.iter().map(out).collect();
    cache.check();
    for (e, p) in entries.iter().zip(&pages) {
        assert_eq!(&loaded(&cache, *e), p);
    }
    let c = cache.counters();
    assert!(
        c.pool_loads > 0 && c.store_loads > 0 && c.same_filled_loads > 0 && c.buffer_loads > 0,
        "{c:?}"
    );
    assert!(
        c.written_back_pages > 0
            && c.pool_limit_hits > 0
            && c.reject_compress_poor > 0
            && c.read_ahead_hits > 0
    );
    cache.check();
    for e in entries {
        cache.free(e);
        assert_eq!(cache.swap_in(e, &mut [0; PAGE_SIZE]), Err(LoadError::NotFound));
    }
    cache.check();
    let c = cache.counters();
    assert_eq!((c.stored_pages, c.pool_pages, c.store_pages, c.compr_data_bytes), (0, 0, 0, 0));
}

/// A thread that brings a window loads entries that others may free meanwhile, and whose numbers
/// they may use again.
#[test]
fn an_object_that_is_still_to_be_filled_is_no_page_yet() {
    let (cache, _) = in_memory(usize::MAX);
    let before = cache.swap_out(&noise(1)).unwrap();
    cache.free(before);
    let (mut page, mut out) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
    page[100..110].fill(7);
    let object = cache.codecs.compress_sparse(&page, &mut out).expect("nearly all is zero");
    let bytes = &out[..object.len];
    let content = Content::Compressed(object.codec, bytes);
    let (attempt, unfilled) = cache.state.lock().take_unfilled(Owner::Any, content);
    let Attempt::Done(entry) = attempt else { panic!("there is room") };
    assert_eq!(entry, before, "its number is used again");
    let missing = cache.counters().missing_loads;
    assert_eq!(cache.swap_in(before, &mut [0; PAGE_SIZE]), Err(LoadError::NotFound));
    assert_eq!(cache.counters().missing_loads, missing + 1);
    assert!(unfilled.expect("it is in the pool").fill(bytes).is_none());
    assert_eq!(loaded(&cache, entry), page);
    cache.free(entry);
    cache.check();
}

/// Pages of records that resemble those of other pages.
fn record_page(tag: u64) -> Page {
    static KINDS: LazyLock<[Vec<u8>; 40]> =
        LazyLock::new(|| core::array::from_fn(|kind| object(kind as u64, 300)));
    let (mut random, mut page) = (Random::new(tag), Vec::new());
    while page.len() < PAGE_SIZE {
        page.extend_from_slice(&KINDS[random.index(KINDS.len())]);
        page.extend_from_slice(&random.next().to_le_bytes());
    }
    Page::try_from(&page[..PAGE_SIZE]).unwrap()
}

#[test]
fn a_dictionary_comes_into_force_while_pages_come_and_go() {
    let (cache, _) = in_memory(usize::MAX);
    assert_eq!(cache.train(), Training::NotDue);
    cache.set_codec(CodecSpec::parse("zstd:level=1,dict=auto").unwrap());
    let mut entries = Vec::new();
    let mut out = |number: u64| {
        let before = cache.counters().compr_data_bytes;
        for _ in 0..number {
            let tag = entries.len() as u64;
            entries.push(cache.swap_out(&record_page(tag)).unwrap());
        }
        (cache.counters().compr_data_bytes - before) / number
    };
    let before = out(200);
    let trained = (0..100).find_map(|_| {
        out(200);
        Some(cache.train()).filter(|result| *result != Training::NotDue)
    });
    let footprint = cache.footprint_bytes();
    assert!(matches!(trained, Some(Training::Kept { .. })), "{trained:?}");
    assert!(cache.codecs.dictionary_bytes() > 0 && footprint > cache.codecs.dictionary_bytes());
    let after = out(200);
    assert!(after < before / 2, "{before} -> {after} bytes");
    cache.shrink(1 << 20);
    for (tag, e) in entries.iter().enumerate() {
        assert!(loaded(&cache, *e) == record_page(tag as u64));
    }
    cache.check();
}

#[test]
fn a_fork_waits_for_a_training_and_both_sides_train_then() {
    let (cache, _) = in_memory(usize::MAX);
    cache.set_codec(CodecSpec::parse("zstd:level=1,dict=auto").unwrap());
    let mut tags = 0..100_000;
    while !cache.codecs.training_due() {
        cache
            .free(cache.swap_out(&record_page(tags.next().expect("it is due some time"))).unwrap());
    }
    let mut guard = Some(cache.prepare_fork());
    // None has begun before and is not over, and none begins meanwhile.
    assert_eq!(cache.train(), Training::NotDue);
    let child = testing::fork(|| {
        cache.after_fork_child(guard.take().unwrap());
        cache.train() != Training::NotDue
    });
    cache.after_fork_parent(guard.take().unwrap());
    assert_eq!(testing::wait(child), 0);
    assert!(cache.train() != Training::NotDue);
}

#[test]
fn samples_for_a_dictionary_count_as_memory() {
    let (cache, _) = in_memory(usize::MAX);
    cache.set_codec(CodecSpec::parse("zstd:level=1,dict=auto").unwrap());
    let pass = |n: u64| (0..n).for_each(|n| cache.free(cache.swap_out(&page(n)).unwrap()));
    // One page of sixteen is a sample.
    pass(16);
    let before = cache.footprint_bytes();
    pass(160);
    assert!(cache.footprint_bytes() >= before + 10 * PAGE_SIZE);
}
