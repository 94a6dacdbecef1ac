//! Units: the pages that go and come together by protection faults, as few as the kernel's mappings
//! allow.
//!
//! ```text
//!   pages      hidden hidden SHOWN SHOWN hidden SHOWN(shared) SHOWN hidden
//!   borders                 ^           ^      ^             ^     ^         one mapping more each
//! ```
//!
//! A process has some 65 000 mappings (`vm.max_map_count`). Each page that is hidden between two
//! that are shown takes two of them, but where pages lie as the program uses them most borders fall
//! together. So the borders are counted as they come and go, and units are large only where there
//! are many: a random touch loads a whole unit.

use core::sync::atomic::{AtomicUsize, Ordering};

use super::{Active, Locked, Pager};
use crate::sys::{PAGE_SHIFT, PAGE_SIZE};

/// Kernel mappings that units may make, of the some 65 000 that a process may have: the rest is for
/// the program's own.
const MAPPINGS_MOST: usize = 40 << 10;
/// Borders from which on units grow, of all processes of a run: the kernel has some 10 MiB of
/// memory for so many mappings, 310 bytes each, and a memory group has 12 MiB at least beside the
/// limit (`cli/budget.rs`).
const BORDERS_MOST: usize = 32 << 10;
/// Pages of a unit at most: 16 MiB. With 65 000 of these, units cover all memory that a process
/// has.
const UNIT_MOST_PAGES: usize = 4096;
/// Runs that are shown or hidden between two looks at the borders: each makes two borders more at
/// most, so that they do not pass [`BORDERS_MOST`] by more than an eighth unseen.
const LOOK_RUNS: usize = 2 << 10;
/// Looks between two counts of all words. A count takes a nanosecond or two a page, some percent of
/// the time of [`LOOK_RUNS`] runs where the program has gigabytes.
const COUNT_LOOKS: usize = 8;

/// The borders between pages that are shown and hidden, or shown in different ways.
pub(super) struct Mappings {
    /// By the runs that were shown and hidden since all words were counted: what the program does
    /// itself is not in it.
    borders: AtomicUsize,
    /// Runs since the last look, and looks since the last count.
    runs: AtomicUsize,
    looks: AtomicUsize,
    /// Pages of a unit as far as the borders allow. At first more than any unit has: how the pages
    /// lie is not known.
    unit_pages: AtomicUsize,
}

impl Mappings {
    pub const fn new() -> Mappings {
        Mappings {
            borders: AtomicUsize::new(0),
            runs: AtomicUsize::new(0),
            looks: AtomicUsize::new(0),
            unit_pages: AtomicUsize::new(UNIT_MOST_PAGES),
        }
    }
}

/// The next size of units after one of `unit` pages, with which there are so many borders, of
/// `borders_most`. `most`: with units of that size there cannot be too many.
fn next_unit(unit: usize, most: usize, borders: usize, borders_most: usize) -> usize {
    // Units of half the size make twice as many borders at most: fewer than would make units grow.
    let enough = (borders_most - borders_most / 16).max(1);
    // Larger units make fewer borders only as pages leave. Where borders are far too many there is
    // no time for the next look.
    let far_too_many = borders_most + borders_most / 8;
    let next = match borders {
        _ if borders >= far_too_many => most,
        _ if borders >= borders_most => unit * 4,
        _ => (unit * borders).div_ceil(enough).next_power_of_two().min(unit),
    };
    next.min(most)
}

impl Pager {
    /// Bytes that go and come together: a unit, or a page where there are no units.
    pub(super) fn unit_bytes(&self, active: &Active) -> usize {
        if active.mechanism.has_units() { self.unit_pages() * PAGE_SIZE } else { PAGE_SIZE }
    }

    /// Pages that protection faults handle together: as many as keep the kernel's mappings few.
    pub(super) fn unit_pages(&self) -> usize {
        let least = self.unit_pages_least.load(Ordering::Relaxed).max(1);
        let most = self.unit_pages_by_size().max(least);
        self.mappings.unit_pages.load(Ordering::Relaxed).clamp(least, most)
    }

    /// Units that are never too small: one has a mapping at most, and two if it is shown.
    pub(super) fn unit_pages_by_size(&self) -> usize {
        let pages = self.ranges.accessible_bytes() >> PAGE_SHIFT;
        let shown = usize::try_from(self.limit_pages()).unwrap_or(0);
        let mappings = pages.min(2 * shown);
        mappings.div_ceil(MAPPINGS_MOST).next_power_of_two().min(UNIT_MOST_PAGES)
    }

    /// The kernel had no mapping left for a run of so many pages: larger units need fewer.
    pub(super) fn need_fewer_mappings(&self, pages: usize) {
        let least = (pages.max(self.unit_pages()) * 2).next_power_of_two().min(UNIT_MOST_PAGES);
        self.unit_pages_least.fetch_max(least, Ordering::Relaxed);
    }

    /// Changes words of `[start, end)`, of pages that are shown or hidden, and notes how many
    /// borders there are more or fewer.
    #[inline]
    pub(super) fn with_borders<R>(
        &self,
        s: &Locked<'_>,
        active: &Active,
        (start, end): (usize, usize),
        change: impl FnOnce() -> R,
    ) -> R {
        if !active.mechanism.has_units() {
            return change();
        }
        let before = self.borders_of(start, end);
        let result = change();
        let more = self.borders_of(start, end).wrapping_sub(before) as isize;
        self.note_borders(s, more);
        result
    }

    /// The borders in `[start, end)`, and at both ends of it.
    fn borders_of(&self, start: usize, end: usize) -> usize {
        let (mut borders, mut last) = (0, self.is_shown_shared(start.saturating_sub(PAGE_SIZE)));
        for page in (start..=end).step_by(PAGE_SIZE) {
            let this = self.is_shown_shared(page);
            borders += (this != last) as usize;
            last = this;
        }
        borders
    }

    /// Whether a page is shown, and whether it is shared by fork, and so write-protected.
    fn is_shown_shared(&self, page: usize) -> Option<bool> {
        self.table.get(page).filter(|e| e.is_resident()).map(|e| e.is_shared())
    }

    fn note_borders(&self, s: &Locked<'_>, more: isize) {
        let m = &self.mappings;
        let borders = m.borders.load(Ordering::Relaxed).saturating_add_signed(more);
        m.borders.store(borders, Ordering::Relaxed);
        let runs = m.runs.load(Ordering::Relaxed) + 1;
        m.runs.store(runs % LOOK_RUNS, Ordering::Relaxed);
        if runs == LOOK_RUNS {
            self.look_at_borders(s);
        }
    }

    /// Gives units the size that the borders allow.
    fn look_at_borders(&self, s: &Locked<'_>) {
        let (m, most) = (&self.mappings, self.unit_pages_by_size());
        if most == 1 {
            // Should the memory grow, it is not known again how its pages lie.
            m.unit_pages.store(UNIT_MOST_PAGES, Ordering::Relaxed);
            m.looks.store(0, Ordering::Relaxed);
            return;
        }
        let looks = m.looks.load(Ordering::Relaxed);
        m.looks.store((looks + 1) % COUNT_LOOKS, Ordering::Relaxed);
        let unit = m.unit_pages.load(Ordering::Relaxed).min(most);
        let processes = self.tree().live_slots().count().max(1);
        let borders_most = BORDERS_MOST / processes;
        let next = || next_unit(unit, most, m.borders.load(Ordering::Relaxed), borders_most);
        if looks == 0 || next() != unit {
            m.borders.store(self.count_borders(s), Ordering::Relaxed);
        }
        m.unit_pages.store(next(), Ordering::Relaxed);
    }

    /// The borders in all memory.
    fn count_borders(&self, _: &Locked<'_>) -> usize {
        let (mut borders, mut last) = (0, (0, false));
        for range in (0..self.ranges.len()).map(|i| self.ranges.at(i)) {
            self.table.for_each_occupied(range.start, range.end, |page, _, e| {
                if e.is_resident() {
                    // Two for a run that lies alone, one for a page that is shown in another way
                    // than the one before.
                    let is_next = last.0 == page;
                    borders += if is_next { (last.1 != e.is_shared()) as usize } else { 2 };
                    last = (page + PAGE_SIZE, e.is_shared());
                }
            });
        }
        borders
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::{READ_WRITE, Spec, World};
    use super::*;
    use crate::testing::{Choices, Random};

    #[test]
    fn units_shrink_while_few_mappings_are_in_use_and_grow_before_there_are_too_many() {
        let next = |unit, most, borders| next_unit(unit, most, borders, BORDERS_MOST);
        assert_eq!(next(64, 64, 0), 1, "nothing lies alone");
        assert_eq!(next(64, 64, BORDERS_MOST / 3), 32);
        assert_eq!(next(1, 64, BORDERS_MOST - 1), 1);
        assert_eq!(next(1, 64, BORDERS_MOST), 4);
        assert_eq!(next(1, 2, BORDERS_MOST), 2, "with units of two pages they are enough");
        assert_eq!(next(1, 64, BORDERS_MOST * 5 / 4), 64);
        assert_eq!(next(64, 2, BORDERS_MOST / 2), 2, "the limit has become smaller");
        // In a run of ten processes each has a tenth.
        assert_eq!(next_unit(1, 64, BORDERS_MOST / 10, BORDERS_MOST / 10), 4);
    }

    #[test]
    fn units_that_have_shrunk_do_not_grow_again_by_that() {
        for borders_most in [BORDERS_MOST, BORDERS_MOST / 7, 100] {
            for unit in [1, 2, 4, 64, UNIT_MOST_PAGES] {
                for borders in (0..borders_most).step_by(97) {
                    let next = next_unit(unit, UNIT_MOST_PAGES, borders, borders_most);
                    assert!(next.is_power_of_two() && next <= unit);
                    let most = borders * (unit / next);
                    assert!(next == unit || most < borders_most, "{borders} of {unit}: {next}");
                }
            }
        }
    }

    #[test]
    fn borders_are_those_of_the_pages_that_are_shown() {
        const PAGES: usize = 64;
        let w = World::new(Spec { hides: true, ..Spec::roomy(PAGES) });
        w.map(0, PAGES, READ_WRITE);
        let mut random = Random::new(5);
        let noted = || w.pager.mappings.borders.load(Ordering::Relaxed);
        let counted = || w.pager.count_borders(&w.pager.enter());
        w.write(0..PAGES, |page, b| b[7] = page as u8);
        assert_eq!((noted(), counted()), (2, 2), "one run");
        for _ in 0..200 {
            let page = random.below(PAGES as u64) as usize;
            if random.below(2) == 0 {
                w.write([page], |_, b| b[8] = 1);
            } else {
                let s = &mut w.pager.enter();
                let _ = w.pager.take_run(s, w.active(), w.at(page), 1, false);
            }
            assert_eq!(noted(), counted());
        }
        assert!(noted() > 2);
        w.check();
    }
}
