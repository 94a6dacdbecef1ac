//! The statistics that zram shows of a disk, by zram's names and in its columns, so that programs
//! that read zram's read these.
//!
//! | zram's file | columns |
//! |---|---|
//! | `mm_stat` | orig_data_size compr_data_size mem_used_total mem_limit mem_used_max same_pages
//! pages_compacted huge_pages huge_pages_since |
//! | `io_stat` | failed_reads failed_writes invalid_io notify_free |
//! | `bd_stat` | bd_count bd_reads bd_writes, in units of 4 KiB |
//!
//! Pages that are all zero are not stored at all here, so `same_pages` are those of another word.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::disk::{Disk, PAGE_BYTES};

fn line(columns: &[u64]) -> String {
    let columns: Vec<String> = columns.iter().map(|n| format!("{n:>8}")).collect();
    format!("{}\n", columns.join(" "))
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

pub fn mm_stat(disk: &Disk) -> String {
    let c = disk.cache().counters();
    line(&[
        c.stored_pages * PAGE_BYTES,
        c.compr_data_bytes,
        c.mem_used_bytes,
        disk.memory_bytes(),
        c.mem_used_max_bytes,
        c.same_filled_pages,
        get(&disk.traffic.compacted_frames),
        c.incompressible_pages,
        c.incompressible_stores,
    ])
}

pub fn io_stat(disk: &Disk) -> String {
    let t = &disk.traffic;
    line(&[&t.failed_reads, &t.failed_writes, &t.invalid, &t.dropped_pages].map(get))
}

pub fn bd_stat(disk: &Disk) -> String {
    let c = disk.cache().counters();
    let units = |bytes: u64| bytes.div_ceil(PAGE_BYTES);
    line(&[c.store_pages, units(c.store_read_bytes), units(c.store_write_bytes)])
}

/// Everything, a name and a number on each line.
pub fn all(disk: &Disk) -> String {
    let t = &disk.traffic;
    let mut text = String::new();
    let mut add = |name: &str, value: u64| text += &format!("{name} {value}\n");
    add("bytes", disk.bytes());
    add("memory_bytes", disk.memory_bytes());
    add("used_bytes", disk.used_bytes());
    add("footprint_bytes", disk.cache().footprint_bytes() as u64);
    add("read_only", u64::from(disk.is_read_only()));
    add("has_store", u64::from(disk.has_store()));
    let own: [(&str, &AtomicU64); 9] = [
        ("reads", &t.reads),
        ("read_bytes", &t.read_bytes),
        ("writes", &t.writes),
        ("written_bytes", &t.written_bytes),
        ("dropped_pages", &t.dropped_pages),
        ("failed_reads", &t.failed_reads),
        ("failed_writes", &t.failed_writes),
        ("invalid_requests", &t.invalid),
        ("compacted_frames", &t.compacted_frames),
    ];
    own.iter().for_each(|(name, counter)| add(name, get(counter)));
    disk.cache().counters().iter().for_each(|(name, value, _)| add(name, value));
    text
}
