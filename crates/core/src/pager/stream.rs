//! One thread's faults: where its access is sequential, and how many pages come with the next one
//! there.
//!
//! A thread may read on in up to four places at a time. A fault on one of these paths brings a
//! window, which doubles while windows are used. A fault elsewhere brings one page, and begins a
//! new path in place of the one that is out of use for longest.

use crate::policy::next_window;
use crate::sys::PAGE_SIZE;

/// Places at which a thread may read on at the same time: from one array to another, say, by way of
/// an index.
const PATHS: usize = 4;

/// One of these places: where the thread's next fault falls if the access runs on, and how many
/// pages are brought then.
#[derive(Clone, Copy, Default)]
pub(super) struct Path {
    pub next: usize,
    /// The end of the pages that the evictor was asked to bring ahead of this thread; 0: none.
    pub ahead_end: usize,
    window: usize,
    /// Faults on this path that were served with one page all the same.
    alone: u32,
    /// Pages that the last fault brought along, if they were loaded.
    pub around: usize,
}

impl Path {
    const NONE: Path = Path { next: 0, ahead_end: 0, window: 0, alone: 0, around: 0 };

    /// Whether a fault at `page` is the next one of this path. `was_last`: the thread's last fault
    /// was on it, too. `reaches(a, b)`: all of `[a, b)` is there.
    fn leads_to(
        &self,
        page: usize,
        was_last: bool,
        reaches: impl FnOnce(usize, usize) -> bool,
    ) -> bool {
        let is_under_way = self.window > 1;
        page == self.next
            || (was_last || is_under_way)
                && (self.next..=self.next.max(self.ahead_end) + PAGE_SIZE).contains(&page)
            || is_under_way && self.next < page && reaches(self.next, page)
    }
}

/// One thread's pattern of faults.
#[derive(Default)]
pub struct FaultStream {
    /// The path of the last fault comes first. A path is forgotten after [`PATHS`] faults
    /// elsewhere.
    paths: [Path; PATHS],
    /// Windows that were used lately, less those that were not.
    used: i32,
    /// The page of the last fault that found its page there, and how often it repeated, to notice
    /// one that repeats without end.
    last: usize,
    repeats: u32,
    /// The faults are those of a guest: a process that shares the program's memory, and may be
    /// killed at any moment. A guest claims nothing that others would wait for, so it evicts
    /// nothing and brings in one page at a time.
    pub is_of_guest: bool,
}

impl FaultStream {
    pub const fn new() -> FaultStream {
        FaultStream { paths: [Path::NONE; PATHS], used: 0, last: 0, repeats: 0, is_of_guest: false }
    }

    /// Counts a fault for which there was nothing to do; true when that has happened too often in a
    /// row.
    pub(super) fn repeated(&mut self, page: usize) -> bool {
        self.count_repeat(page) > REPEATS_MAX
    }

    /// [`Self::repeated`], for a page that is in no range.
    pub(super) fn repeated_outside(&mut self, page: usize) -> bool {
        self.count_repeat(page) > REPEATS_OUTSIDE_MAX
    }

    fn count_repeat(&mut self, page: usize) -> u32 {
        self.repeats = if self.last == page { self.repeats + 1 } else { 0 };
        self.last = page;
        self.repeats
    }

    /// Notes that a fault was served.
    pub(super) fn served(&mut self) {
        self.repeats = 0;
    }

    /// The path of the last fault.
    pub(super) fn path(&mut self) -> &mut Path {
        &mut self.paths[0]
    }

    /// Pages to serve for a fault at `page`: doubled while the faults run on, up to `most`, else
    /// one. Also returns the pages that the path that is forgotten for this one has brought in
    /// vain. `reaches(a, b)`: all of `[a, b)` is there.
    pub(super) fn window(
        &mut self,
        page: usize,
        most: usize,
        reaches: impl Fn(usize, usize) -> bool,
    ) -> (usize, usize) {
        let on = |(i, path): (usize, &Path)| path.leads_to(page, i == 0, &reaches);
        let known = self.paths.iter().enumerate().position(on);
        self.paths[..=known.unwrap_or(PATHS - 1)].rotate_right(1);
        let path = &mut self.paths[0];
        if known.is_some() {
            self.used = (self.used + (path.around > 0) as i32).min(USED_MOST);
            if path.window == 1 && self.used < 0 && path.alone < ALONE_FAULTS {
                // Neighbours are not read in order here: the program has records of two pages, say.
                path.alone += 1;
            } else {
                path.window = next_window(path.window, most);
            }
            return (path.window, 0);
        }
        let wasted = core::mem::replace(path, Path { window: 1, ..Path::NONE }).around;
        self.used = (self.used - (wasted > 0) as i32).max(-USED_MOST);
        (1, wasted)
    }
}

/// Bounds of the count of used windows less unused ones.
const USED_MOST: i32 = 16;
/// Where most windows were not used, so many faults in order bring one page each before the next
/// window.
const ALONE_FAULTS: u32 = 3;
/// Faults in a row at one page for which there was nothing to do, before they are taken for the
/// program's own.
const REPEATS_MAX: u32 = 20_000;
/// [`REPEATS_MAX`] outside of all ranges. A fault there is nearly always the program's own (the end
/// of a file that it has mapped), and a race is over when the access is made again.
const REPEATS_OUTSIDE_MAX: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 256;

    /// Serves a fault at page number `page` as if all of its window came. Returns the window's
    /// size.
    fn fault(stream: &mut FaultStream, page: usize) -> usize {
        let (window, _) = stream.window(page * PAGE_SIZE, MOST, |_, _| false);
        stream.path().next = (page + window) * PAGE_SIZE;
        window
    }

    #[test]
    fn windows_that_are_not_used_take_longer_to_open() {
        let mut stream = FaultStream::new();
        let mut at = 1 << 20;
        // Reads `pages` pages in order, somewhere else each time. Returns the largest window.
        let mut read = |stream: &mut FaultStream, pages: usize| {
            at += 1 << 12;
            let (mut largest, mut page) = (0, at);
            while page < at + pages {
                let window = fault(stream, page);
                stream.path().around = window - 1;
                page += window;
                largest = largest.max(window);
            }
            largest
        };
        assert_eq!(read(&mut stream, 2), 4);
        assert_eq!(read(&mut stream, 600), MOST);
        // Two pages side by side, again and again: soon one by one.
        let opened = (0..200).filter(|_| read(&mut stream, 2) > 1).count();
        assert!((1..30).contains(&opened), "{opened}");
        // A thread that reads on has windows all the same, and soon at once.
        assert_eq!(read(&mut stream, 600), MOST);
        (0..20).for_each(|_| _ = read(&mut stream, 600));
        assert_eq!(read(&mut stream, 2), 4);
    }

    #[test]
    fn windows_double_and_end_where_the_access_does() {
        let mut s = FaultStream::new();
        let mut at = 1000;
        let windows: Vec<_> = (0..9)
            .map(|_| {
                let window = fault(&mut s, at);
                at += window;
                window
            })
            .collect();
        assert_eq!(windows, [1, 4, 8, 16, 32, 64, 128, 256, 256]);
        s.path().around = 255;
        // The path is forgotten after as many faults elsewhere as there are paths, and the pages
        // that it brought were in vain.
        let wasted: Vec<_> = (1..=PATHS).map(|i| s.window(i << 30, MOST, |_, _| false).1).collect();
        assert_eq!(wasted, [0, 0, 0, 255]);
        assert_eq!(fault(&mut s, at), 1);
    }

    #[test]
    fn a_thread_reads_on_in_several_places() {
        let mut s = FaultStream::new();
        let mut at = [1 << 20, 2 << 20, 3 << 20];
        let mut windows = [0; 3];
        for _ in 0..8 {
            for (at, window) in at.iter_mut().zip(&mut windows) {
                *window = fault(&mut s, *at);
                *at += *window;
            }
        }
        assert_eq!(windows, [MOST; 3]);
    }

    #[test]
    fn who_touches_at_random_gets_single_pages() {
        let mut s = FaultStream::new();
        // Pages near those of the last fault but one, and never the next one of it.
        let pages = [10, 500, 12, 502, 14, 504];
        assert!(pages.iter().all(|page| fault(&mut s, *page) == 1));
        // One page after those of the last fault may be left out.
        assert_eq!(fault(&mut s, 506), 4);
    }
}
