//! The face before the engine: limits, keys, files and forks. The engine has tests of its own.

use super::*;
use crate::cache::Which;
use crate::sys::PAGE_SIZE;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

/// A page that compresses to about half, and says its number.
fn page(number: u64) -> Page {
    let mut page = [0; PAGE_SIZE];
    let mut x = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for (at, word) in page.chunks_exact_mut(8).enumerate() {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        word.copy_from_slice(&if at % 2 == 0 { x } else { number }.to_le_bytes());
    }
    page
}

fn loaded(cache: &Cache, area: u32, number: u64) -> Result<Page, Error> {
    let mut to = [0; PAGE_SIZE];
    cache.load(area, number, &mut to).map(|()| to)
}

fn in_memory(bytes: u64) -> Cache {
    Cache::open(&Config::new(bytes)).unwrap()
}

fn with_file(bytes: u64) -> Cache {
    Cache::open(&Config::new(bytes).store(std::env::temp_dir())).unwrap()
}

#[test]
fn areas_keep_their_pages_apart_and_are_dropped_alone() {
    let cache = in_memory(16 << 20);
    for area in [0, 7, AREAS - 1] {
        for number in [0, 5, 70_000] {
            cache.store(area, number, &page(number + u64::from(area))).unwrap();
        }
    }
    assert_eq!(cache.drop_area(7), Ok(3));
    assert_eq!(cache.drop_area(7), Ok(0));
    assert_eq!(loaded(&cache, 7, 5), Err(Error::NotFound));
    assert_eq!(loaded(&cache, 0, 70_000), Ok(page(70_000)));
    assert_eq!(loaded(&cache, AREAS - 1, 5), Ok(page(5 + u64::from(AREAS - 1))));
    // An area that was dropped takes pages again.
    cache.store(7, 5, &page(1)).unwrap();
    assert_eq!(loaded(&cache, 7, 5), Ok(page(1)));
    assert_eq!(cache.drop_page(7, 5), Ok(true));
    assert_eq!(cache.drop_page(7, 5), Ok(false));
}

#[test]
fn an_area_that_is_dropped_leaves_no_table() {
    let cache = in_memory(16 << 20);
    cache.store(1, 0, &page(1)).unwrap();
    let before = cache.stats().unwrap().used_bytes;
    cache.store(0, 1_000_000, &page(2)).unwrap();
    assert!(cache.stats().unwrap().used_bytes >= before + (1 << 20));
    assert_eq!(cache.drop_area(0), Ok(1));
    assert!(cache.stats().unwrap().used_bytes < before + (64 << 10));
    cache.store(0, 1_000_000, &page(3)).unwrap();
    assert_eq!((loaded(&cache, 0, 1_000_000), loaded(&cache, 1, 0)), (Ok(page(3)), Ok(page(1))));
}

#[test]
fn keys_that_are_too_large_are_refused_and_the_largest_are_not() {
    let cache = in_memory(64 << 20);
    assert_eq!(cache.store(AREAS, 0, &page(0)), Err(Error::OutOfRange));
    assert_eq!(cache.store(0, PAGES, &page(0)), Err(Error::OutOfRange));
    assert_eq!(cache.store(0, u64::MAX, &page(0)), Err(Error::OutOfRange));
    assert_eq!(loaded(&cache, AREAS, 0), Err(Error::OutOfRange));
    assert_eq!(cache.drop_page(0, PAGES), Err(Error::OutOfRange));
    assert_eq!(cache.drop_area(AREAS), Err(Error::OutOfRange));
    cache.store(AREAS - 1, PAGES - 1, &page(9)).unwrap();
    assert_eq!(loaded(&cache, AREAS - 1, PAGES - 1), Ok(page(9)));
    assert_eq!(cache.drop_area(AREAS - 1), Ok(1));
}

#[test]
fn a_full_cache_refuses_pages_and_keeps_those_it_has() {
    let cache = in_memory(4 << 20);
    let stored = (0..10_000).take_while(|n| cache.store(0, *n, &page(*n)).is_ok()).count() as u64;
    assert!((1000..4000).contains(&stored), "{stored} pages of half their size in 4 MiB");
    assert_eq!(cache.store(0, stored, &page(stored)), Err(Error::Full));
    let stats = cache.stats().unwrap();
    assert_eq!((stats.pages, stats.memory_pages), (stored, stored));
    assert!(stats.failed_stores >= 2 && stats.used_bytes <= (4 << 20) + (64 << 10), "{stats:?}");
    (0..stored).for_each(|n| assert_eq!(loaded(&cache, 0, n), Ok(page(n))));
    // Another limit makes room.
    cache.set_memory(8 << 20).unwrap();
    cache.store(0, stored, &page(stored)).unwrap();
}

#[test]
fn a_store_that_was_refused_while_another_thread_packed_is_tried_again() {
    let cache = in_memory(4 << 20);
    let stored = (0..10_000).take_while(|n| cache.store(0, *n, &page(*n)).is_ok()).count() as u64;
    (0..stored).step_by(2).for_each(|n| assert_eq!(cache.drop_page(0, n), Ok(true)));
    // Two threads were refused by then: one packs, and the other finds nothing left to do.
    let packed = || cache.packed_frames.load(Ordering::Relaxed);
    let before = packed();
    assert!([(); 2].iter().all(|()| cache.pack(&cache.swap, before)));
    assert!(!cache.pack(&cache.swap, packed()), "nothing was freed since");
}

#[test]
fn full_tables_take_as_many_pages_as_were_dropped() {
    // Pages of one word take no pool, and 36 bytes of tables each.
    let cache = in_memory(1 << 20);
    let stored = (0..100_000).take_while(|n| cache.store(0, *n, &[7; PAGE_SIZE]).is_ok()).count();
    assert!((10_000..40_000).contains(&stored), "{stored}");
    assert_eq!(cache.drop_page(0, 5), Ok(true));
    assert_eq!(cache.drop_page(0, 6), Ok(true));
    cache.store(0, 6, &[8; PAGE_SIZE]).unwrap();
    cache.store(0, 5, &[9; PAGE_SIZE]).unwrap();
    assert_eq!(loaded(&cache, 0, 5), Ok([9; PAGE_SIZE]));
    // The table has no place for a larger number.
    assert_eq!(cache.drop_page(0, 5), Ok(true));
    assert_eq!(cache.store(0, stored as u64, &[7; PAGE_SIZE]), Err(Error::Full));
}

#[test]
fn with_a_file_memory_for_the_tables_is_enough() {
    // Less than the store's buffers, which come on top.
    let cache = with_file(128 << 10);
    (0..2000).for_each(|n| cache.store(0, n, &page(n)).unwrap());
    (0..2000).for_each(|n| assert_eq!(loaded(&cache, 0, n), Ok(page(n))));
}

#[test]
fn what_finds_no_room_in_memory_is_in_the_file() {
    let cache = with_file(4 << 20);
    (0..10_000).for_each(|n| cache.store(0, n, &page(n)).unwrap());
    let stats = cache.stats().unwrap();
    assert!(stats.store_pages > 5000 && stats.used_bytes <= 6 << 20, "{stats:?}");
    assert!(stats.store_bytes > 5 << 20 && stats.written_bytes > 5 << 20, "{stats:?}");
    (0..10_000).for_each(|n| assert_eq!(loaded(&cache, 0, n), Ok(page(n))));
    let used = cache.shrink(0).unwrap();
    let stats = cache.stats().unwrap();
    assert_eq!(stats.memory_pages, 0, "{stats:?}");
    assert!(used < 1 << 20, "only tables are left, of {used} bytes");
    (0..10_000).for_each(|n| assert_eq!(loaded(&cache, 0, n), Ok(page(n))));
    assert_eq!(cache.stats().unwrap().loads, 20_000);
}

#[test]
fn a_cache_is_for_several_threads() {
    fn is_for_threads<T: Send + Sync>() {}
    is_for_threads::<Cache>();
    let cache = with_file(1 << 20);
    std::thread::scope(|scope| {
        for area in 0..4 {
            let cache = &cache;
            scope.spawn(move || {
                for n in 0..1500 {
                    cache.store(area, n, &page(n + u64::from(area))).unwrap();
                    let at = n / 2;
                    assert_eq!(loaded(cache, area, at), Ok(page(at + u64::from(area))));
                }
            });
        }
    });
    assert_eq!(cache.stats().unwrap().pages, 6000);
}

#[test]
fn what_cannot_be_opened_says_why() {
    let why = Cache::open(&Config::new(1 << 20).compressor("snappy")).unwrap_err();
    assert!(why.to_string().starts_with("codec 'snappy': no such codec; there are words"), "{why}");
    let why = Cache::open(&Config::new(1 << 20).store("/no/such/directory")).unwrap_err();
    assert_eq!(why, Error::Store(2));
    assert!(why.to_string().contains("No such file"), "{why}");
}

/// Runs `child` in a forked child, and returns its answer.
#[allow(unsafe_code)]
fn forked(before: impl FnOnce(), child: impl FnOnce() -> u8, parent: impl FnOnce()) -> u8 {
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    before();
    // SAFETY: the child calls the cache, which allocates nothing by then, writes one byte and ends.
    match unsafe { libc::fork() } {
        0 => {
            let _ = theirs.write_all(&[child()]);
            // SAFETY: ends the child without destructors.
            unsafe { libc::_exit(0) }
        }
        pid => {
            assert!(pid > 0);
            parent();
            let mut said = [0];
            drop(theirs);
            ours.read_exact(&mut said).expect("the child lives to say it");
            // SAFETY: waits for a child of ours.
            assert_eq!(unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) }, pid);
            said[0]
        }
    }
}

#[test]
fn a_child_that_was_not_announced_gets_an_error_and_can_close() {
    let cache = std::cell::RefCell::new(Some(with_file(1 << 20)));
    (0..2000).for_each(|n| cache.borrow().as_ref().unwrap().store(0, n, &page(n)).unwrap());
    let said = forked(
        || {},
        || {
            let own = cache.borrow_mut().take().unwrap();
            let refused = [
                own.store(0, 1, &[0; PAGE_SIZE]).err(),
                loaded(&own, 0, 1).err(),
                own.drop_page(0, 1).err(),
                own.drop_area(0).err(),
                own.shrink(0).err(),
                own.set_memory(0).err(),
                own.stats().err(),
                own.before_fork().err(),
            ];
            drop(own);
            u8::from(refused.iter().all(|why| *why == Some(Error::Forked)))
        },
        || {},
    );
    assert_eq!(said, 1);
    let cache = cache.into_inner().unwrap();
    (0..2000).for_each(|n| assert_eq!(loaded(&cache, 0, n), Ok(page(n))));
}

#[test]
fn a_child_that_was_announced_has_all_pages_and_goes_its_own_way() {
    let cache = with_file(1 << 20);
    (0..2000).for_each(|n| cache.store(0, n, &page(n)).unwrap());
    let forking = std::cell::Cell::new(None);
    let said = forked(
        || forking.set(Some(cache.before_fork().unwrap())),
        || {
            forking.take().unwrap().in_child();
            let inherits = (0..2000).all(|n| loaded(&cache, 0, n) == Ok(page(n)));
            let goes_on = (0..2000).all(|n| cache.store(0, n, &page(n + 1)).is_ok());
            let is_own = (0..2000).all(|n| loaded(&cache, 0, n) == Ok(page(n + 1)));
            u8::from(inherits && goes_on && is_own)
        },
        || forking.take().unwrap().in_parent(),
    );
    assert_eq!(said, 1);
    (0..2000).for_each(|n| assert_eq!(loaded(&cache, 0, n), Ok(page(n))));
    // A cache whose process did not fork after all goes on, too.
    drop(cache.before_fork().unwrap());
    cache.store(0, 0, &page(7)).unwrap();
}

#[test]
fn a_cache_shrinks_though_dropped_pages_have_left_free_frames() {
    let cache = with_file(32 << 20);
    (0..4000).for_each(|n| cache.store(0, n, &page(n)).unwrap());
    // The pool keeps their frames, some 1.2 MiB: fewer than it gives back by itself.
    (0..600).for_each(|n| assert_eq!(cache.drop_page(0, n), Ok(true)));
    let before = cache.stats().unwrap();
    assert_eq!(before.store_pages, 0, "nothing had to go yet");
    // The cluster that is being filled and the tables of the file come on top.
    let (wanted, more) = (before.used_bytes - (1 << 20), 256 << 10);
    let used = cache.shrink(wanted).unwrap();
    assert!(used <= wanted + more, "{used} instead of {wanted} of {}", before.used_bytes);
    let stats = cache.stats().unwrap();
    assert!((300..1500).contains(&stats.store_pages), "no more than that: {stats:?}");
    (600..4000).for_each(|n| assert_eq!(loaded(&cache, 0, n), Ok(page(n))));
}

#[test]
fn a_cache_that_shrinks_gives_buffers_back_before_it_writes_pages() {
    let cache = with_file(32 << 20);
    (0..2000).for_each(|n| cache.store(0, n, &page(n)).unwrap());
    // The writing of some pages leaves buffers, and no free frames but a few that the pool keeps.
    assert_eq!(cache.swap.write_back_which(Which::default(), 100), 100);
    let wanted = cache.stats().unwrap().used_bytes - (64 << 10);
    assert!(cache.shrink(wanted).unwrap() <= wanted);
    assert_eq!(cache.stats().unwrap().written_back_pages, 100);
}

#[test]
fn each_page_that_was_to_be_stored_counts_once_taken_or_not() {
    let agree = |cache: &Cache, tried: u64, refused: u64| {
        let stats = cache.stats().unwrap();
        assert_eq!((stats.stores, stats.failed_stores), (tried, refused), "{stats:?}");
        assert_eq!(stats.pages, stats.stores - stats.failed_stores - stats.drops, "{stats:?}");
    };
    // Full tables refuse what the engine never sees.
    let cache = in_memory(1 << 20);
    let stored = (0..100_000).take_while(|n| cache.store(0, *n, &[7; PAGE_SIZE]).is_ok()).count();
    agree(&cache, stored as u64 + 1, 1);
    assert_eq!(cache.store(0, PAGES, &[7; PAGE_SIZE]), Err(Error::OutOfRange));
    agree(&cache, stored as u64 + 1, 1);
    // A page that fits once the pool is packed is offered to the engine twice.
    let cache = in_memory(4 << 20);
    let stored = (0..10_000).take_while(|n| cache.store(0, *n, &page(*n)).is_ok()).count() as u64;
    (0..stored).step_by(2).for_each(|n| assert_eq!(cache.drop_page(0, n), Ok(true)));
    cache.store(0, stored, &page(stored)).unwrap();
    agree(&cache, stored + 2, 1);
}
