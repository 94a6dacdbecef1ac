//! Huge pages that the kernel made before paging began: they go out as a whole, and come back so.
#![allow(unsafe_code)]

mod common;

use std::sync::atomic::Ordering;

use common::*;
use uzswap::control::orders::ALL_PAGES;
use uzswap::control::{Counter, HugePages, Mechanism};
use uzswap::sys::pagemap::Pagemap;

const HUGE_BYTES: usize = 512 * P;
const STRETCHES: usize = 8;

#[test]
fn what_the_kernel_made_huge_goes_out_whole() {
    let base = map((STRETCHES + 1) * HUGE_BYTES).next_multiple_of(HUGE_BYTES);
    // SAFETY: the test's own mapping.
    unsafe { libc::madvise(base as *mut _, STRETCHES * HUGE_BYTES, libc::MADV_HUGEPAGE) };
    let pages = STRETCHES * 512;
    (0..pages).for_each(|i| fill(base + i * P, i as u64));
    let Ok(pagemap) = Pagemap::open() else { return println!("SKIPPED: PAGEMAP_SCAN") };
    let huge = (0..STRETCHES).filter(|i| pagemap.is_huge(base + i * HUGE_BYTES)).count() as u64;
    if !start(Mechanism::Userfaultfd, 64 << 20, HugePages::Always) {
        return;
    }
    let mut reclaim = PAGER.begin_reclaim(ALL_PAGES);
    while !PAGER.reclaim_portion(&mut reclaim) {}
    let out = PAGER.slot().get(Counter::HugeEvictions);
    println!("{huge} huge pages, {out} went out whole");
    assert_eq!(out, huge);
    checked();
    (0..pages).for_each(|i| check(base + i * P, i as u64));
    assert!(!LOST.load(Ordering::SeqCst));
}
