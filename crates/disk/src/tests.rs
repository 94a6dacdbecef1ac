//! Tests of the disk by itself, and of whole sessions against a naive model.

mod handshakes;
mod server;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use uzswap::cache::Which;
use uzswap::sys::{fd, socket};

use super::disk::{Disk, DiskError, Extent, PAGE_BYTES};
use super::handshake::Agreement;
use super::testing::{config, requests};

const MIB: u64 = 1 << 20;

/// Numbers that a seed names.
pub fn random(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    move |n| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11) % n
    }
}

/// Moves all pages to the store, and has nothing come back from there: all but the last few are
/// lost.
pub fn lose_the_store(disk: &Disk) {
    assert!(disk.cache().write_back_which(Which::default(), usize::MAX) > 0);
    disk.cache().give_buffers_back();
    let mut descriptors = Vec::new();
    disk.cache().for_each_descriptor(|fd| descriptors.push(fd));
    // The first is the file. It takes what is written, and has nothing to read.
    socket::replace(descriptors[0], fd::open_read_write(c"/dev/null").unwrap()).unwrap();
}

pub fn disk(bytes: u64, memory_bytes: u64) -> Disk {
    disk_over(false, bytes, memory_bytes)
}

pub fn disk_over(store: bool, bytes: u64, memory_bytes: u64) -> Disk {
    let mut config = config(bytes, memory_bytes);
    config.store = store.then(std::env::temp_dir);
    Disk::new(&config).unwrap()
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut next = random(seed);
    (0..len).map(|_| next(256) as u8).collect()
}

fn read(disk: &Disk, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; len];
    disk.read(at, &mut bytes).unwrap();
    bytes
}

/// Runs random requests by every agreement, and says the seed if it fails.
fn against_the_model(disk: &Disk, seed: u64, sessions: usize) {
    let mut model = vec![0; disk.bytes() as usize];
    let mut below = random(seed);
    for n in 0..sessions {
        let structured = n % 3 != 0;
        let agreement = Agreement { structured, allocation: structured && n % 3 == 1 };
        let mut run = || requests(disk, &mut model, agreement, 200, &mut below);
        if let Err(why) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&mut run)) {
            eprintln!("failed with seed {seed} in session {n}");
            std::panic::resume_unwind(why);
        }
        match n % 5 {
            0 => drop(disk.cache().recompress(100)),
            1 => drop(disk.compact()),
            2 => disk.divide_memory(),
            _ => {}
        }
        disk.cache().check();
    }
    assert!(read(disk, 0, model.len()) == model, "seed {seed}");
}

#[test]
fn sessions_agree_with_the_model() {
    for seed in 0..6 {
        // Of whole pages, and not.
        let bytes = MIB + [0, 1, 511, 4095, 512, 2048][seed as usize];
        against_the_model(&disk(bytes, 64 * MIB), seed, 24);
    }
}

#[test]
fn sessions_agree_with_the_model_over_a_store() {
    let disk = disk_over(true, 2 * MIB, 300 << 10);
    against_the_model(&disk, 100, 40);
    let c = disk.cache().counters();
    assert!(c.written_back_pages > 0 && c.store_loads > 0, "{c:?}");
}

#[test]
fn a_disk_of_less_than_a_page() {
    against_the_model(&disk(100, MIB), 7, 10);
}

#[test]
fn a_full_disk_refuses_and_keeps_what_it_has() {
    let disk = disk(16 * MIB, 2 * MIB);
    let page = |n: u64| noise(n, PAGE_BYTES as usize);
    let mut stored = 0;
    while disk.write(stored * PAGE_BYTES, &page(stored)).is_ok() {
        stored += 1;
    }
    assert!((300..512).contains(&stored), "{stored}");
    assert!(disk.used_bytes() <= 2 * MIB + (128 << 10), "{}", disk.used_bytes());
    // A part of a page that is not there needs one, too; pages of one word need none.
    assert_eq!(disk.write(15 * MIB, &page(1)), Err(DiskError::Full));
    assert_eq!(disk.write(15 * MIB + 5, &[1; 100]), Err(DiskError::Full));
    assert_eq!(read(&disk, 15 * MIB, 200), [0; 200]);
    assert_eq!(disk.write(15 * MIB, &[0; 4096]), Ok(()));
    assert_eq!(disk.write(15 * MIB, &[9; 4096]), Ok(()));
    // Pages that are stored can be overwritten, though the disk is full.
    for n in 0..stored {
        assert_eq!(disk.write(n * PAGE_BYTES, &page(n + 1000)), Ok(()), "page {n} of {stored}");
    }
    let all = |base: u64| (0..stored).all(|n| read(&disk, n * PAGE_BYTES, 4096) == page(n + base));
    assert!(all(1000));
    // Room for one is room for one.
    disk.trim(0, 8 * PAGE_BYTES).unwrap();
    disk.write(12 * MIB, &page(5)).unwrap();
    assert_eq!(read(&disk, 12 * MIB, 4096), page(5));
    disk.cache().check();
}

#[test]
fn tables_count_against_the_memory() {
    // Pages of one word take no pool, and 36 bytes of tables each.
    let disk = disk(1024 * MIB, 4 * MIB);
    let mut page = [0; 4096];
    let mut stored = 0u64;
    loop {
        page.fill(1 + (stored % 255) as u8);
        if disk.write(stored * PAGE_BYTES, &page).is_err() {
            break;
        }
        stored += 1;
        assert!(stored < 200_000, "it is full some time");
    }
    assert!(stored > 50_000, "{stored}");
    assert_eq!(disk.zero(0, 1024 * MIB, true), Err(DiskError::Full), "so do zeros that are kept");
    // Pages that are dropped leave their places in the tables.
    disk.trim(0, 8 * PAGE_BYTES).unwrap();
    disk.write(5 * PAGE_BYTES, &page).unwrap();
    disk.set_memory_bytes(64 * MIB);
    disk.write(stored * PAGE_BYTES, &page).unwrap();
    assert_eq!(read(&disk, 0, 3), [1; 3].map(|_| 0), "zeroed as far as it went");
}

#[test]
fn an_emptied_disk_takes_nothing() {
    let disk = disk(64 * MIB, 80 * MIB);
    for n in 0..16 {
        disk.write(n * 4 * MIB, &noise(n, 1 << 20)).unwrap();
    }
    assert!(disk.used_bytes() > 16 * MIB);
    disk.trim(0, 64 * MIB).unwrap();
    disk.cache().give_tables_back();
    assert!(disk.used_bytes() < MIB, "{}", disk.used_bytes());
    assert_eq!(read(&disk, 0, 100), [0; 100]);
    let hole = Extent { bytes: 64 * MIB, is_hole: true, is_zero: true };
    assert_eq!(disk.extent(0, 64 * MIB), hole);
}

#[test]
fn parts_of_one_page_are_not_lost_to_each_other() {
    const WRITERS: usize = 4;
    const PART: usize = 4096 / WRITERS;
    let disk = Arc::new(disk(MIB, 8 * MIB));
    for round in 0..60u8 {
        // The first writes the whole page once, in the beginning, and all write their parts.
        thread::scope(|scope| {
            for writer in 0..WRITERS {
                let disk = &disk;
                scope.spawn(move || {
                    for n in 0..40u8 {
                        let bytes = [round.wrapping_add(n).wrapping_add(writer as u8) | 1; PART];
                        disk.write((writer * PART) as u64, &bytes).unwrap();
                        let seen = read(disk, (writer * PART) as u64, PART);
                        assert_eq!(seen, bytes, "writer {writer}, round {round}");
                    }
                });
            }
            // Others take the page away and bring it back where it is not theirs.
            let other = &disk;
            scope.spawn(move || {
                for _ in 0..40 {
                    other.zero(4096, 300 * 4096 / 2, false).unwrap();
                    other.write(4096, &[7; 8192]).unwrap();
                    other.cache().recompress(8);
                }
            });
        });
    }
    disk.cache().check();
}

#[test]
fn whole_pages_and_parts_of_them_at_one_time() {
    // One writes whole pages, the other a byte at their ends: each byte is of one of both, the
    // rest the first's.
    let disk = disk(MIB, 8 * MIB);
    thread::scope(|scope| {
        let disk = &disk;
        let whole = scope.spawn(move || {
            for n in 1..=200u8 {
                (0..16).for_each(|page| disk.write(page * PAGE_BYTES, &[n; 4096]).unwrap());
            }
        });
        scope.spawn(move || {
            while !whole.is_finished() {
                (0..16).for_each(|page| disk.write(page * PAGE_BYTES + 4095, &[255]).unwrap());
            }
        });
    });
    for page in 0..16 {
        let bytes = read(&disk, page * PAGE_BYTES, 4096);
        assert!(bytes[..4095].iter().all(|b| *b == 200), "a whole page is not lost to a part");
        assert!([200, 255].contains(&bytes[4095]));
    }
}

#[test]
fn what_was_done_is_counted() {
    let disk = disk(MIB, 8 * MIB);
    let mut model = vec![0; MIB as usize];
    let plain = Agreement::default();
    requests(&disk, &mut model, plain, 400, &mut random(3));
    let t = &disk.traffic;
    let get = |c: &std::sync::atomic::AtomicU64| c.load(Ordering::Relaxed);
    assert!(get(&t.reads) > 50 && get(&t.writes) > 50 && get(&t.invalid) > 5);
    assert_eq!((get(&t.failed_reads), get(&t.failed_writes)), (0, 0));
    let line = super::stats::mm_stat(&disk);
    let columns: Vec<u64> = line.split_whitespace().map(|n| n.parse().unwrap()).collect();
    assert_eq!(columns.len(), 9);
    assert_eq!(columns[0], disk.cache().counters().stored_pages * 4096);
    assert_eq!(super::stats::io_stat(&disk).split_whitespace().count(), 4);
    assert_eq!(super::stats::bd_stat(&disk).split_whitespace().count(), 3);
}
