//! The process as the kernel counts it: its anonymous memory, and its part of the memory that
//! relatives share.

use core::sync::atomic::{AtomicI32, Ordering};

use uzswap::sys::{fd, nr};

use super::{ACTIVE, PAGER, call};

/// Files that the evictor reads again and again, opened once by a thread of the program: a
/// descriptor that came and went beside the program would now and then take the number that the
/// program expects for its own.
static FILES: [AtomicI32; 2] = [const { AtomicI32::new(-1) }; 2];

/// Closes the files: in the child of a fork the inherited ones speak of the parent.
pub fn close_files() {
    for slot in &FILES {
        let old = slot.swap(-1, Ordering::AcqRel);
        if old >= 0 {
            fd::close(old);
        }
    }
}

/// Opens the files for this process.
pub fn open_files() {
    close_files();
    for (slot, path) in FILES.iter().zip([c"/proc/self/statm", c"/proc/self/smaps_rollup"]) {
        if let Ok(file) = fd::open_read(path) {
            slot.store(fd::move_high(file), Ordering::Release);
        }
    }
}

/// The descriptors of those files, to be hidden from the program.
pub fn fds() -> [i32; 2] {
    FILES.each_ref().map(|f| f.load(Ordering::Acquire))
}

/// Reads one of the files from its start.
fn read_file(which: usize, text: &mut [u8]) -> Option<usize> {
    let file = FILES[which].load(Ordering::Acquire);
    let n = call!(nr::PREAD64, file, text.as_mut_ptr(), text.len(), 0);
    (file >= 0 && n > 0).then_some(n as usize)
}

/// Proportional share and whole of the anonymous memory, in pages.
pub fn share_of_anonymous() -> Option<(i64, i64)> {
    let mut text = [0u8; 4096];
    let n = read_file(1, &mut text)?;
    let kib = |name: &[u8]| number_after(&text[..n], name);
    Some((kib(b"Pss_Anon:")? / 4, kib(b"Anonymous:")? / 4))
}

/// Pages that the kernel itself needs for a process, as memory groups count them: page tables, the
/// stacks and descriptors of two threads. A build by 24 compilers, 74 processes at a time, needed
/// 60 pages each. For one process the default of `--memory` leaves a margin that is large enough;
/// for many of them it was not, and the OOM killer came.
const KERNEL_PAGES: i64 = 48;

/// Tells the pager how much unmanaged memory the process has. Returns its anonymous memory, in
/// pages.
pub fn look_outside() -> Option<i64> {
    let pages = anonymous_pages()?;
    PAGER.set_outside(pages + KERNEL_PAGES);
    Some(pages)
}

/// Pages that a dormant process holds; asked by a thread of the program.
pub fn held_pages() -> Option<i64> {
    Some(anonymous_pages()? + KERNEL_PAGES)
}

/// Anonymous memory of this process, in pages, as the kernel counts it.
fn anonymous_pages() -> Option<i64> {
    let mut text = [0u8; 128];
    let n = if fds()[0] >= 0 {
        read_file(0, &mut text)?
    } else {
        // In a dormant process a thread of the program asks.
        let file = fd::open_read(c"/proc/self/statm").ok()?;
        let n = fd::read(file, &mut text);
        fd::close(file);
        n.ok()?
    };
    let mut fields = text[..n].split(|b| *b == b' ').map(|f| {
        f.iter().take_while(|b| b.is_ascii_digit()).fold(0i64, |v, b| v * 10 + (b - b'0') as i64)
    });
    let resident = fields.nth(1)?;
    let shared = fields.next()?;
    Some(resident - shared)
}

/// The most anonymous memory that this process had, in pages: its peak less its file memory now.
/// For a dormant process, asked by a thread of the program when it ends.
pub fn peak_anonymous_pages() -> Option<i64> {
    let file = fd::open_read(c"/proc/self/status").ok()?;
    let mut text = [0u8; 4096];
    let n = fd::read(file, &mut text);
    fd::close(file);
    let n = n.ok()?;
    let kib = |name: &[u8]| number_after(&text[..n], name);
    Some((kib(b"VmHWM:")? - kib(b"RssFile:")? - kib(b"RssShmem:")?) / 4)
}

/// The number in the line of `text` that begins with `name`.
fn number_after(text: &[u8], name: &[u8]) -> Option<i64> {
    text.split(|b| *b == b'\n').find_map(|line| line.strip_prefix(name)).map(|value| {
        value.iter().filter(|b| b.is_ascii_digit()).fold(0, |v, b| v * 10 + (b - b'0') as i64)
    })
}

/// Brings the shared counters up to date before the process goes.
pub fn finish_counters() {
    if let Some(pages) = look_outside() {
        if ACTIVE.load(Ordering::Acquire) {
            PAGER.publish(true);
        } else {
            PAGER.publish_final(peak_anonymous_pages().unwrap_or(0).max(pages));
        }
    }
    PAGER.publish_gauges();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_that_of_the_line_that_begins_with_its_name() {
        let text =
            b"Rss:  900 kB\nPss_Anon:   40 kB\nSwapAnonymous: 7 kB\nAnonymous:  1048576 kB\nLast:";
        assert_eq!(number_after(text, b"Anonymous:"), Some(1 << 20));
        assert_eq!(number_after(text, b"Pss_Anon:"), Some(40));
        assert_eq!(number_after(text, b"Pss:"), None);
        assert_eq!(number_after(text, b"Last:"), Some(0), "the text was cut");
    }
}
