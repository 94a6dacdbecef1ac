//! The cache over a real file: full disks, tampering, page cache.

use std::os::unix::fs::{FileExt, MetadataExt};

use super::*;
use crate::store::seal::Encryption;
use crate::sys::file::testing;

fn file_of(cache: &SwapCache<FileStore>) -> std::fs::File {
    let mut first = None;
    cache.for_each_descriptor(|fd| first = first.or(Some(fd)));
    std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(format!("/proc/self/fd/{}", first.unwrap()))
        .unwrap()
}

/// A cache without a pool.
fn straight_to_file(encryption: Encryption) -> SwapCache<FileStore> {
    let store = FileStore::open(std::env::temp_dir().as_os_str().as_encoded_bytes()).unwrap();
    let store = Some(store);
    let config = CacheConfig { max_pool_bytes: 0, store, encryption, ..CacheConfig::default() };
    SwapCache::new(config).unwrap()
}

#[test]
fn the_file_has_no_name_and_is_for_its_owner_only() {
    let cache = over_file(0);
    let meta = file_of(&cache).metadata().unwrap();
    assert_eq!((meta.nlink(), meta.mode() & 0o777), (0, 0o600));
    let mut descriptors = Vec::new();
    cache.for_each_descriptor(|fd| descriptors.push(fd));
    assert_eq!(descriptors.len(), 2, "file, directory");
}

#[test]
fn nothing_readable_is_written_unless_it_is_wanted() {
    for encryption in [Encryption::On, Encryption::Off] {
        let cache = straight_to_file(encryption);
        let mut secret = noise(1);
        secret[1000..1032].copy_from_slice(b"the password is correct horse ba");
        let entries: Vec<_> = (0..40).map(|_| cache.swap_out(&secret).unwrap()).collect();
        // A page that dies before it is written must not be written in clear either.
        cache.free(entries[3]);
        let file = file_of(&cache);
        cache.check();
        assert_eq!(cache.counters().cluster_writes, 2);
        let mut disk = vec![0; 128 << 10];
        file.read_exact_at(&mut disk, 0).unwrap();
        let found = disk.windows(32).filter(|w| *w == &secret[1000..1032]).count();
        assert_eq!(found > 0, encryption == Encryption::Off, "{encryption:?}");
        assert!(loaded(&cache, entries[0]) == secret);
    }
}

#[test]
fn a_page_that_was_changed_on_disk_is_an_error_and_never_wrong_bytes() {
    for encryption in [Encryption::On, Encryption::Off] {
        let cache = straight_to_file(encryption);
        let entries: Vec<_> =
            (0..400u64).map(|tag| (cache.swap_out(&page(tag)).unwrap(), tag)).collect();
        let file = file_of(&cache);
        cache.check();
        assert!(cache.counters().cluster_writes >= 8);
        let flip = |at: u64| {
            let mut b = [0];
            file.read_exact_at(&mut b, at).unwrap();
            file.write_all_at(&[b[0] ^ 0x10], at).unwrap();
        };
        // One bit in the first cluster, the whole of the second, the third over the fourth, the
        // fifth cut out.
        flip(30_000);
        file.write_all_at(&[0x77; 65536], 65536).unwrap();
        let mut third = vec![0; 65536];
        file.read_exact_at(&mut third, 2 * 65536).unwrap();
        file.write_all_at(&third, 3 * 65536).unwrap();
        file.write_all_at(&[0; 65536], 4 * 65536).unwrap();
        let mut corrupt = 0;
        for (e, tag) in &entries {
            let mut p = [0; PAGE_SIZE];
            match cache.swap_in(*e, &mut p) {
                Ok(()) => assert!(p == page(*tag)),
                Err(why) => {
                    assert_eq!(why, LoadError::Corrupt);
                    corrupt += 1;
                }
            }
        }
        assert_eq!(cache.counters().corrupt_loads, corrupt);
        assert!((3 * 20 + 1..5 * 60).contains(&corrupt), "{corrupt}");
        // The file cut short: reads fail, and say so.
        file.set_len(65536).unwrap();
        let (last, tag) = entries[350];
        let mut p = [0; PAGE_SIZE];
        match cache.swap_in(last, &mut p) {
            Ok(()) => assert!(p == page(tag), "still in memory"),
            Err(why) => assert_eq!(why, LoadError::Io(Errno::EIO)),
        }
        for (e, _) in entries {
            cache.free(e);
        }
        cache.check();
    }
}

#[test]
fn a_full_disk_ends_writing_back_and_nothing_else() {
    let store = MemoryStore::with_capacity(512 << 10);
    let cache = over(store, 256 << 10);
    let mut taken = Vec::new();
    let mut refused = 0;
    for tag in 0..2000 {
        match cache.swap_out(&page(tag)) {
            Ok(e) => taken.push((e, tag)),
            Err(SwapFull) => refused += 1,
        }
    }
    assert_eq!(cache.store_failure(), Some(Errno::ENOSPC));
    assert!(refused > 0 && taken.len() > 300, "{refused} {}", taken.len());
    for (e, tag) in &taken {
        assert!(loaded(&cache, *e) == page(*tag));
    }
    cache.check();
    // Half of it is freed; the store can be tried again and finds room in its own file.
    for (e, _) in taken.drain(..taken.len() / 2) {
        cache.free(e);
    }
    cache.retry_store();
    for tag in 0..60 {
        taken.push((cache.swap_out(&page(tag)).unwrap(), tag));
    }
    for (e, tag) in &taken {
        assert!(loaded(&cache, *e) == page(*tag));
    }
    cache.check();
}

#[test]
fn a_file_size_limit_is_a_full_disk_and_no_signal() {
    let cache = over_file(0);
    // In a child, because the limit is the process's. SIGXFSZ would kill it.
    let mut guard = Some(cache.prepare_fork());
    let child = testing::fork(|| {
        cache.after_fork_child(guard.take().unwrap());
        testing::limit_file_size(3 * 65536 + 100);
        let mut entries = [None; 1000];
        for (tag, e) in entries.iter_mut().enumerate() {
            *e = cache.swap_out(&noise(tag as u64)).ok();
        }
        let taken = entries.iter().flatten().count();
        let mut p = [0; PAGE_SIZE];
        let mut is_right = |(tag, e): (usize, &Option<SwapEntry>)| {
            e.is_none_or(|e| cache.swap_in(e, &mut p).is_ok() && p == noise(tag as u64))
        };
        let all_right = entries.iter().enumerate().all(&mut is_right);
        cache.store_failure() == Some(Errno(27)) && (45..100).contains(&taken) && all_right
    });
    cache.after_fork_parent(guard.take().unwrap());
    assert_eq!(testing::wait(child), 0);
}

#[test]
fn without_o_direct_the_page_cache_stays_small() {
    use crate::store::PageCache;
    let directory = std::env::temp_dir();
    let store =
        FileStore::open_with(directory.as_os_str().as_encoded_bytes(), PageCache::Use).unwrap();
    assert!(!store.is_direct());
    let cache = over(store, 0);
    let entries: Vec<_> =
        (0..3000u64).map(|tag| (cache.swap_out(&noise(tag)).unwrap(), tag)).collect();
    for (e, tag) in &entries {
        assert!(loaded(&cache, *e) == noise(*tag));
    }
    cache.check();
}

#[test]
fn what_rests_takes_less_and_loses_nothing() {
    let cache = over_file(256 << 10);
    let entries: Vec<_> =
        (0..2000u64).map(|tag| (cache.swap_out(&page(tag)).unwrap(), tag)).collect();
    let all_are_right =
        || entries.iter().for_each(|&(e, tag)| assert!(loaded(&cache, e) == page(tag), "{tag}"));
    for _ in 0..3 {
        all_are_right();
        while cache.recompress(64) == 64 {}
        let before = cache.footprint_bytes();
        cache.give_buffers_back();
        cache.check();
        let after = cache.footprint_bytes();
        assert!(after + (500 << 10) < before, "{before} bytes, then {after}");
        cache.give_buffers_back();
        assert_eq!(cache.footprint_bytes(), after);
    }
    all_are_right();
    entries.iter().for_each(|&(e, _)| cache.free(e));
    cache.check();
}
