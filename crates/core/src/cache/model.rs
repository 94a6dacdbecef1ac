//! The naive model: a map from names to tags, and events that must agree with it. No disk is ever
//! full here: the memory that a store may fail for is another model's business.

use std::collections::HashMap;

use super::{
    Back, CodecSpec, LoadError, PAGE_SIZE, PoolKind, Run, Store, SwapCache, SwapEntry, SwapFull,
    Which,
};
use crate::testing::{Choices, any_page};

const KEYED_AREA: u8 = 3;
/// Pages that come in at once, now and then.
const MANY_PAGES: u64 = 400;

struct Model {
    own: Vec<(SwapEntry, u64)>,
    /// Entries whose page is back with its owner.
    kept: Vec<(SwapEntry, u64)>,
    keyed: HashMap<u32, u64>,
}

/// The calls that a disk makes: ranges, ages, and orders for some pages.
fn orders<S: Store>(cache: &SwapCache<S>, random: &mut impl Choices, model: &mut Model) {
    let which = Which {
        idle: random.below(2) == 0,
        huge: random.below(4) == 0,
        incompressible: random.below(8) == 0,
        least_bytes: random.index(4) * 700,
    };
    let first = random.below(250) as u32;
    let keys = first..first + random.below(40) as u32;
    match random.below(8) {
        0 => cache.set_now(random.below(100) as u32),
        1 => cache.mark_idle(random.below(100) as u32),
        2 => drop(cache.write_back_which(which, random.index(100))),
        3 => drop(cache.recompress_which(which, random.index(100))),
        4 => drop(cache.compact()),
        5 => cache.give_tables_back(),
        6 => {
            let before = model.keyed.len();
            model.keyed.retain(|key, _| !keys.contains(key));
            let dropped = cache.invalidate_range(KEYED_AREA, keys);
            assert_eq!(dropped as usize, before - model.keyed.len());
        }
        _ if keys.is_empty() => {}
        _ => {
            let run = cache.run(KEYED_AREA, keys.clone());
            assert!(!run.is_empty() && run.len() <= keys.end - keys.start);
            let is = |key| match model.keyed.get(&key) {
                None => Run::Absent(run.len()),
                Some(tag) if any_page(*tag) == [0; PAGE_SIZE] => Run::Zero(run.len()),
                Some(_) => Run::Present(run.len()),
            };
            let end = keys.start + run.len();
            assert!((keys.start..end).all(|key| is(key) == run), "{run:?} of {keys:?}");
            assert!(end == keys.end || is(end) != run, "{run:?} of {keys:?} goes on");
        }
    }
}

fn out<S: Store>(
    cache: &SwapCache<S>,
    kind: u64,
    page: &[u8; PAGE_SIZE],
) -> Result<SwapEntry, SwapFull> {
    match kind % 4 {
        0 => cache.swap_out_cold(page),
        _ => cache.swap_out(page),
    }
}

/// Runs `operations` random events. Under `fault`, stores may be refused and loads may say that
/// they could not read; wrong bytes and lost pages are never right. Returns how many loads failed.
pub fn run<S: Store>(
    cache: &SwapCache<S>,
    random: &mut impl Choices,
    operations: u64,
    max_pages: usize,
    faulty: bool,
) -> u64 {
    let mut model = Model { own: Vec::new(), kept: Vec::new(), keyed: HashMap::new() };
    cache.init(KEYED_AREA).unwrap();
    let (mut read_errors, mut most_used_bytes) = (0, 0);
    let mut page_out = [0u8; PAGE_SIZE];
    let mut verify = |e: SwapEntry, tag: u64| match cache.swap_in(e, &mut page_out) {
        Ok(()) => assert!(page_out == any_page(tag), "wrong bytes for {e:?}"),
        Err(LoadError::Io(_)) if faulty => read_errors += 1,
        Err(why) => panic!("{e:?}: {why:?}"),
    };
    for step in 0..operations {
        if random.is_over() {
            break;
        }
        let tag = random.next();
        match random.below(100) {
            kind @ 0..40 if model.own.len() < max_pages => match out(cache, kind, &any_page(tag)) {
                Ok(e) => {
                    assert_ne!(e.to_bits(), (1 << SwapEntry::BITS) - 1);
                    assert_eq!(SwapEntry::from_bits(e.to_bits()), Some(e));
                    model.own.push((e, tag));
                }
                Err(SwapFull) => assert!(faulty, "full"),
            },
            0..60 if !model.own.is_empty() => {
                let (e, tag) = model.own[random.below(model.own.len() as u64) as usize];
                verify(e, tag);
            }
            0..68 if !model.own.is_empty() => {
                let i = random.below(model.own.len() as u64) as usize;
                let (e, tag) = model.own.swap_remove(i);
                let mut page = any_page(tag);
                let keeps = match cache.swap_in_from(e, &mut page) {
                    Ok(loaded) => cache.keep(e, cache.print(loaded, &page)),
                    Err(_) => cache.keep(e, None),
                };
                if keeps {
                    model.kept.push((e, tag));
                }
            }
            0..76 if !model.kept.is_empty() => {
                let i = random.below(model.kept.len() as u64) as usize;
                let (e, tag) = model.kept.swap_remove(i);
                let mut page = any_page(tag);
                let was_written = random.below(4) == 0;
                page[random.below(PAGE_SIZE as u64) as usize] ^= u8::from(was_written);
                if cache.take_back(e, &page) == Back::Same {
                    assert!(!was_written, "a page that was written is not what it was");
                    model.own.push((e, tag));
                }
            }
            0..78 if !model.kept.is_empty() => {
                let i = random.below(model.kept.len() as u64) as usize;
                cache.free(model.kept.swap_remove(i).0);
            }
            0..80 if !model.own.is_empty() => {
                let i = random.below(model.own.len() as u64) as usize;
                cache.free(model.own.swap_remove(i).0);
            }
            80..86 => {
                // Near ones, and ones far away in the area.
                let offset =
                    (random.below(200) * if random.below(8) == 0 { 1 << 20 } else { 1 }) as u32;
                match cache.store(SwapEntry::new(KEYED_AREA, offset), &any_page(tag)) {
                    Ok(()) => drop(model.keyed.insert(offset, tag)),
                    // An older page stays.
                    Err(SwapFull) => assert!(faulty, "full"),
                }
            }
            86..92 => {
                let key = SwapEntry::new(KEYED_AREA, random.below(200) as u32);
                match model.keyed.get(&key.offset()) {
                    Some(&tag) => verify(key, tag),
                    None => {
                        assert_eq!(cache.load(key, &mut [0; PAGE_SIZE]), Err(LoadError::NotFound))
                    }
                }
            }
            92..94 => {
                let key = SwapEntry::new(KEYED_AREA, random.below(200) as u32);
                assert_eq!(cache.invalidate_page(key), model.keyed.remove(&key.offset()).is_some());
            }
            94 if random.below(3) == 0 => orders(cache, random, &mut model),
            94 => match random.below(16) {
                0 => cache.give_buffers_back(),
                1 => cache.pause_recompression(),
                3 => cache.choose_dense(random.below(4) == 0),
                4 | 5 => cache.set_leisure(random.below(4) > 0),
                // A fork that comes to nothing.
                2 => cache.after_fork_failed(cache.prepare_fork()),
                _ => drop(cache.recompress(random.below(200) as usize)),
            },
            95 if random.below(2) == 0 => {
                cache.recompress(random.below(32) as usize);
            }
            95 => {
                cache.shrink(random.below(64 << 10) as usize);
            }
            96 if random.below(2) == 0 => cache.set_max_kept_bytes(random.below(1 << 20) as usize),
            96 => cache.set_max_pool_bytes(random.below(2 << 20) as usize),
            97 => match random.below(4) {
                2 => {
                    let names = ["zstd:level=-1", "lz4hc", "deflate", ""];
                    cache.set_recompressor(CodecSpec::parse(names[random.index(4)]).ok());
                }
                0 => cache.set_accept_threshold_percent(random.below(101) as u32),
                1 => cache.set_pool([PoolKind::Zsmalloc, PoolKind::Zbud][random.below(2) as usize]),
                _ => cache.set_codec(
                    CodecSpec::parse(
                        ["lz4", "zstd:level=1", "words", "none"][random.below(4) as usize],
                    )
                    .unwrap(),
                ),
            },
            98 if random.below(40) == 0 => {
                cache.invalidate_area(KEYED_AREA);
                model.keyed.clear();
                assert_eq!(
                    cache.store(SwapEntry::new(KEYED_AREA, 0), &any_page(tag)),
                    Err(SwapFull)
                );
                cache.init(KEYED_AREA).unwrap();
            }
            98 if random.below(8) == 0 && model.own.len() < max_pages => {
                // Many pages come in and lie idle: some become groups. They are used up like the
                // others.
                cache.set_max_pool_bytes(64 << 20);
                for tag in tag..tag.saturating_add(MANY_PAGES) {
                    match cache.swap_out(&any_page(tag)) {
                        Ok(e) => model.own.push((e, tag)),
                        Err(SwapFull) => assert!(faulty, "full"),
                    }
                }
                cache.recompress(2 * MANY_PAGES as usize);
            }
            99 if faulty && random.below(10) == 0 => cache.retry_store(),
            _ => {}
        }
        if step % 2000 == 0 {
            cache.check();
        }
        let c = cache.counters();
        assert_eq!(c.stored_pages as usize, model.own.len() + model.kept.len() + model.keyed.len());
        assert_eq!(c.kept_pages as usize, model.kept.len());
        most_used_bytes = most_used_bytes.max(c.mem_used_bytes);
        assert!(c.mem_used_max_bytes >= most_used_bytes);
    }
    cache.check();
    for (e, tag) in &model.own {
        verify(*e, *tag);
    }
    for (offset, tag) in &model.keyed {
        verify(SwapEntry::new(KEYED_AREA, *offset), *tag);
    }
    for (e, _) in model.own.into_iter().chain(model.kept) {
        cache.free(e);
    }
    cache.invalidate_area(KEYED_AREA);
    cache.check();
    assert_eq!(cache.counters().stored_pages, 0);
    read_errors
}
