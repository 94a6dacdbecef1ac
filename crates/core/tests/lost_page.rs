//! A child of a fork that cannot have the mechanism, while pages of its memory are lost: paging
//! ends there, all other pages have their bytes, and a touch of one that is lost ends the program.
#![allow(unsafe_code)]

mod common;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::Ordering;

use common::*;
use uzswap::control::{HugePages, Mechanism};

const PAGES: usize = 16 << 10;
const LIMIT_BYTES: u64 = 8 << 20;

/// The files of the backing store that this process has open.
fn store_files() -> Vec<File> {
    let is_store = |path: &std::path::Path| {
        let target = fs::read_link(path).unwrap_or_default();
        let target = target.to_string_lossy();
        target.starts_with("/tmp/") && target.contains("(deleted)")
    };
    let all = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let stores = all.filter(|path| is_store(path));
    stores.map(|path| OpenOptions::new().read(true).write(true).open(path).unwrap()).collect()
}

/// A page's first bytes as the kernel reads them, or `None` if it must not.
fn seen(page: usize) -> Option<u64> {
    let mut value = 0u64;
    let local = libc::iovec { iov_base: (&raw mut value).cast(), iov_len: 8 };
    let remote = libc::iovec { iov_base: page as *mut _, iov_len: 8 };
    // SAFETY: the kernel checks the address that it reads, and writes a word of ours.
    let n = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    (n == 8).then_some(value)
}

/// Whether each page is what it must be, or shut; and how many are shut.
fn look(base: usize) -> (bool, usize) {
    let pages = (0..PAGES).map(|i| (seen(base + i * P), i as u64 * 7919));
    pages.fold((true, 0), |(right, shut), (seen, want)| match seen {
        Some(value) => (right && value == want, shut),
        None => (right, shut + 1),
    })
}

#[test]
fn a_lost_page_is_shut_in_a_child_without_the_mechanism() {
    if !start(Mechanism::Userfaultfd, LIMIT_BYTES, HugePages::Never) {
        return;
    }
    // Two ranges, with a page between that is not managed.
    let half = PAGES / 2;
    let parts =
        |base: usize| [base..base + half * P, base + (half + 1) * P..base + PAGES * P].into_iter();
    let base = map_parts(PAGES * P, parts);
    for i in 0..PAGES {
        fill(base + i * P, i as u64 * 7919);
        if i % 64 == 0 {
            PAGER.balance_pool();
            PAGER.evict_to_watermark();
        }
    }
    let files = store_files();
    for file in &files {
        // Half of what was written, so that some pages can be had and others cannot. The file is
        // filled from its start; most of its length is a hole.
        let written_bytes = file.metadata().unwrap().blocks() * 512;
        let noise = vec![0x5a; (written_bytes / 2) as usize];
        file.write_all_at(&noise, 0).unwrap();
    }
    let tree = PAGER.tree();
    let slot = tree.claim_for_child(PAGER.slot().id()).unwrap();
    let mut s = PAGER.lock();
    let mut guard = PAGER.prepare_fork(&mut s, Some(slot));
    let holds = PAGER.holds.register(1).unwrap();
    // SAFETY: the child makes only system calls of its own, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let ended = PAGER.after_fork_child(&mut s, guard.take(), holds, 1, slot, false);
        let (is_right, shut) = look(base);
        let code = match (ended.is_err(), is_right, shut) {
            (true, true, 1..PAGES) => 0,
            (_, false, _) => 10,
            (_, _, 0) => 11,
            _ => 12,
        };
        // SAFETY: no destructor of the parent's runs.
        unsafe { libc::_exit(code) };
    }
    PAGER.after_fork_parent(&mut s, guard, true);
    drop(s);
    let mut status = 0;
    // SAFETY: our own child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(!files.is_empty(), "no store was found");
    assert_eq!(status >> 8, 0, "10: wrong bytes, 11: no page was lost, 12: paging did not end");
    assert_eq!(status & 127, 0, "the child was killed");
    assert!(!LOST.load(Ordering::SeqCst));
}
