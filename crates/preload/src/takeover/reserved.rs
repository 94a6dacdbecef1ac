//! Memory that a dormant process has reserved and perhaps never touches: allocators and runtimes
//! map gigabytes at their start (bun 9 GiB, mimalloc 1 GiB at a time, sanitizers terabytes).
//!
//! Such memory counts as the pages that the process holds by the kernel's count, and those that it
//! may touch until the evictor looks again:
//!
//! ```text
//!   held            ahead
//!   |###############|...........|                                  reserved
//!                   ^ looked at, eight times in the time in which `ahead` can be touched
//! ```
//!
//! `ahead` is a part of the tree's free memory, and at least as much as can be touched in some 60
//! ms. Where so much is not free, paging begins, so a small limit is held as if all counted. All
//! other memory counts whole, from when it is mapped.

use core::sync::atomic::{AtomicBool, Ordering};

use uzswap::pager::Locked;
use uzswap::region::RangeFlags;
use uzswap::sys::{PAGE_SIZE, fd};

use super::{Args, PAGER, descriptors, evictor, file_memory, is_settled, outside};

/// Smaller mappings count whole: they are soon used (an arena, an array).
const LEAST_BYTES: usize = 64 << 20;
/// The part of the free memory, as a divisor, that a process may touch before the evictor looks
/// again, and the most of it, in pages.
const AHEAD_PART: i64 = 4;
const AHEAD_MOST: i64 = pages_of(1 << 30);
/// Looks of the evictor in the time in which `ahead` can be touched. One would be enough if the
/// evictor ran at once, but where many programs run it does not.
const LOOKS: i64 = 8;

/// How fast memory can be touched for the first time.
struct Pace {
    /// Pages that a process may touch at least. A limit that leaves fewer is short: paging begins.
    least_pages: i64,
    /// Nanoseconds for the first touch of a page.
    page_ns: i64,
}

/// Page by page, 3 GiB in a second by two processors at it (1.5 us for each page by one).
const BY_PAGES: Pace = Pace { least_pages: pages_of(192 << 20), page_ns: pages_ns(3) };
/// In huge pages, as fast as one processor can zero them: 8 GiB in a second.
const BY_HUGE_PAGES: Pace = Pace { least_pages: pages_of(512 << 20), page_ns: pages_ns(8) };

const fn pages_of(bytes: usize) -> i64 {
    (bytes / PAGE_SIZE) as i64
}

/// Nanoseconds for a page where so many GiB take a second.
const fn pages_ns(gib: usize) -> i64 {
    (PAGE_SIZE * 1_000_000_000 / (gib << 30)) as i64
}

/// Whether the kernel maps huge pages unasked; found out when the first memory is reserved.
static ARE_ALWAYS_HUGE: AtomicBool = AtomicBool::new(false);

fn pace() -> Pace {
    let is_huge = ARE_ALWAYS_HUGE.load(Ordering::Relaxed) || PAGER.ranges.huge_bytes() > 0;
    if is_huge { BY_HUGE_PAGES } else { BY_PAGES }
}

fn find_pace() {
    let Ok(file) = fd::open_read(c"/sys/kernel/mm/transparent_hugepage/enabled") else { return };
    let mut text = [0u8; 64];
    let n = fd::read(file, &mut text).unwrap_or(0);
    fd::close(file);
    let always = b"[always]";
    let is_always = text[..n].windows(always.len()).any(|w| w == always);
    ARE_ALWAYS_HUGE.store(is_always, Ordering::Relaxed);
}

/// Whether a mapping of `len` bytes is a reservation, to be touched bit by bit. `is_reserve`: it
/// was mapped with MAP_NORESERVE, or without any access first.
pub fn is_one(len: usize, is_reserve: bool) -> bool {
    is_reserve && len >= LEAST_BYTES
}

/// Notes that `[start, end)` was mapped as a reservation, or is one that becomes accessible now.
pub fn note(start: usize, end: usize) {
    PAGER.note_flag(start, end, RangeFlags::RESERVED, true);
    begin_to_look();
}

/// Notes that `[start, end)` is a private mapping of a file now that may be written.
pub fn note_file(lock: &Locked<'_>, start: usize, end: usize) {
    let is_large = is_one(end - start, true);
    file_memory::note(lock, start, end, is_large);
    if is_large {
        begin_to_look();
    }
}

/// From now on the evictor looks how many pages a dormant process holds.
pub fn begin_to_look() {
    if is_settled() {
        return;
    }
    if outside::fds()[0] < 0 {
        find_pace();
        outside::open_files();
        descriptors::refresh();
    }
    // An evictor that runs sleeps without end where nothing accessible was reserved: it is woken.
    evictor::start();
}

fn reserved_bytes() -> usize {
    PAGER.ranges.reserved_bytes() + file_memory::reserved_bytes()
}

/// Pages that the process has reserved.
fn reserved_pages() -> i64 {
    (reserved_bytes() / PAGE_SIZE) as i64
}

pub fn has_any() -> bool {
    reserved_bytes() > 0
}

fn ahead_pages(held: i64) -> i64 {
    ((PAGER.limit_pages() - held) / AHEAD_PART).clamp(pace().least_pages, AHEAD_MOST)
}

/// Reserved pages that need not count. 0 where no evictor looks.
pub fn uncounted_pages() -> i64 {
    let reserved = reserved_pages();
    if reserved == 0 || !evictor::is_running() || outside::fds()[0] < 0 {
        return 0;
    }
    match outside::held_pages() {
        Some(held) => (reserved - held - ahead_pages(held)).max(0),
        None => 0,
    }
}

/// When the evictor of a dormant process is to look again. `None`: there is nothing reserved.
pub fn look_after_ns() -> Option<u64> {
    let held = has_any().then(outside::held_pages)??;
    Some((ahead_pages(held) / LOOKS * pace().page_ns) as u64)
}

/// Whether a call of mmap makes a reservation.
pub fn is_mapping(a: Args) -> bool {
    const MAP_NORESERVE: usize = 0x4000;
    is_one(a[1], a[3] & MAP_NORESERVE != 0)
}

/// Pages that a child of this dormant process counts. None: so few that paging many such children
/// would take as much. Most of them exec, and in a build that fills its memory each shell would
/// page.
pub fn inherited_pages() -> Option<i64> {
    const LEAST_PAGES: i64 = (16 << 20) / PAGE_SIZE as i64;
    let limit = PAGER.tree().limit();
    Some(dormant_pages()).filter(|pages| *pages >= LEAST_PAGES.min(limit / 4))
}

/// The most pages that a dormant process could hold until the evictor looks at it again: of
/// reserved memory only the pages that it holds or may touch by then.
pub fn dormant_pages() -> i64 {
    let accessible = (PAGER.ranges.accessible_bytes() / PAGE_SIZE) as i64;
    accessible + file_memory::pages() - uncounted_pages() + PAGER.outside_pages()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_may_touch_unseen_takes_it_some_time() {
        // Some 60 ms, whatever the pages, and several looks in that time.
        for pace in [BY_PAGES, BY_HUGE_PAGES] {
            let ms = pace.least_pages * pace.page_ns / 1_000_000;
            assert!((55..65).contains(&ms), "{ms} ms");
            assert!(pace.least_pages < AHEAD_MOST && pace.least_pages > LOOKS);
        }
    }

    #[test]
    fn a_reservation_is_large_and_mapped_to_be_touched_bit_by_bit() {
        const MAP_NORESERVE: usize = 0x4000;
        let mapping = |len, flags| is_mapping([0, len, 3, flags, 0, 0]);
        assert!(mapping(LEAST_BYTES, MAP_NORESERVE) && mapping(usize::MAX, MAP_NORESERVE));
        assert!(!mapping(LEAST_BYTES - 1, MAP_NORESERVE) && !mapping(LEAST_BYTES, 0x22));
    }
}
