//! How much the processes hold: each publishes its own, and the tree's sums and peaks follow.
//!
//! A process says pages in its slot and moves the sums by the difference, so no process adds up all
//! slots to know whether there is room. A dormant process *reserves* the most that it could hold:
//! that counts against the limit, and in no peak. `recount.rs` puts right what processes leave
//! behind that are killed halfway.

use core::sync::atomic::{AtomicI64, Ordering};

use super::{Counter, Slot, Tree};

impl Tree {
    /// Reserves the most pages that a dormant process could hold: they count against the limit, but
    /// nobody holds them, so the peaks stay.
    pub fn reserve(&self, s: &Slot, used_pages: i64) {
        let old = s.used_pages.swap(used_pages, Ordering::AcqRel);
        self.used_pages.fetch_add(used_pages.wrapping_sub(old), Ordering::AcqRel);
        self.hold(s, 0);
    }

    /// Reserves as [`Tree::reserve`], if the sum stays within the limit. Pages that do not fit must
    /// not be seen by other processes, even for a moment, as if they were held.
    pub fn try_reserve(&self, s: &Slot, pages: i64) -> bool {
        let more = pages.wrapping_sub(s.used_pages.load(Ordering::Acquire));
        let limit = self.limit();
        let add = |used: i64| {
            let sum = used.wrapping_add(more);
            (more <= 0 || sum <= limit).then_some(sum)
        };
        let fits = self.used_pages.fetch_update(Ordering::AcqRel, Ordering::Acquire, add).is_ok();
        if fits {
            s.used_pages.fetch_add(more, Ordering::AcqRel);
        }
        fits
    }

    /// Has a process count so many pages more, of memory that it shares with the caller. They are
    /// in the sum at once, however late the process itself notices.
    pub fn charge(&self, s: &Slot, pages: i64) {
        s.charged_pages.fetch_add(pages, Ordering::AcqRel);
        s.used_pages.fetch_add(pages, Ordering::AcqRel);
        self.used_pages.fetch_add(pages, Ordering::AcqRel);
    }

    /// Publishes the pages that a process holds now; the sums and peaks follow. Pages that dormant
    /// processes have reserved are in the sum and not in the peak: perhaps nobody holds them.
    pub fn publish(&self, s: &Slot, used_pages: i64, needed_pages: i64) {
        let change = |sum: &AtomicI64, own: &AtomicI64, now: i64| {
            let more = now.wrapping_sub(own.swap(now, Ordering::AcqRel));
            sum.fetch_add(more, Ordering::AcqRel).wrapping_add(more)
        };
        change(&self.used_pages, &s.used_pages, used_pages);
        let held = self.hold(s, used_pages);
        self.peak_used_pages.fetch_max(held, Ordering::Relaxed);
        let now = change(&self.needed_pages, &s.needed_pages, needed_pages);
        self.peak_needed_pages.fetch_max(now, Ordering::Relaxed);
        s.max(Counter::PeakUsedPages, used_pages.max(0) as u64);
        s.max(Counter::PeakNeededPages, needed_pages.max(0) as u64);
    }

    /// Sets the pages that a process says it holds; returns the sum over all processes.
    pub(super) fn hold(&self, s: &Slot, pages: i64) -> i64 {
        let more = pages.wrapping_sub(s.held_pages.swap(pages, Ordering::AcqRel));
        self.held_pages.fetch_add(more, Ordering::AcqRel).wrapping_add(more)
    }

    /// Publishes the end of a dormant process that held `pages` at most.
    pub fn publish_last(&self, s: &Slot, pages: i64) {
        self.reserve(s, pages);
        self.note_peaks(pages, pages);
        s.max(Counter::PeakUsedPages, pages.max(0) as u64);
        s.max(Counter::PeakNeededPages, pages.max(0) as u64);
    }

    /// Counts shared memory of the run, of which there are so many pages: all of them, but no more
    /// than `most`. Processes hold it and need it, and nobody can page it. Only `uzswap run` calls
    /// this.
    pub fn count_shared(&self, pages: i64, most: i64) {
        self.peak_shared_pages.fetch_max(pages, Ordering::Relaxed);
        let counted = pages.min(most);
        let more = counted.wrapping_sub(self.shared_pages.swap(counted, Ordering::AcqRel));
        for sum in [&self.used_pages, &self.held_pages, &self.needed_pages] {
            sum.fetch_add(more, Ordering::AcqRel);
        }
        let [held, needed] = self.said_pages();
        self.note_peaks(held, needed);
    }

    /// Pages that processes have said they hold, and need.
    pub fn said_pages(&self) -> [i64; 2] {
        [&self.held_pages, &self.needed_pages].map(|pages| pages.load(Ordering::Acquire))
    }

    /// Raises the peaks to pages that all processes together held, and needed, at one time.
    pub fn note_peaks(&self, used_pages: i64, needed_pages: i64) {
        self.peak_used_pages.fetch_max(used_pages, Ordering::Relaxed);
        self.peak_needed_pages.fetch_max(needed_pages, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{Mechanism, zeroed_tree as tree};
    use crate::latency::FaultKind;

    #[test]
    fn publishing_and_retiring_keep_the_sums() {
        let t = tree();
        let a = t.claim(10).unwrap();
        let b = t.claim(11).unwrap();
        t.publish(a, 100, 300);
        t.publish(b, 50, 50);
        t.publish(a, 80, 400);
        assert_eq!(t.used_pages.load(Ordering::Relaxed), 130);
        assert_eq!(t.peak_used_pages.load(Ordering::Relaxed), 150);
        // Pages that a dormant process has reserved are in the sum; those that it holds are in the
        // peak once `uzswap run` has looked.
        let c = t.claim(12).unwrap();
        t.reserve(c, 500);
        t.publish(a, 100, 400);
        assert_eq!(t.used_pages.load(Ordering::Relaxed), 650);
        assert_eq!(t.peak_used_pages.load(Ordering::Relaxed), 150);
        assert_eq!(t.said_pages(), [150, 450]);
        t.publish_last(c, 120);
        assert_eq!((t.said_pages()[0], t.peak_used_pages.load(Ordering::Relaxed)), (150, 150));
        t.retire(c, c.id());
        t.publish(a, 80, 400);
        a.add(Counter::Faults, 7);
        b.add(Counter::Faults, 1);
        a.latency.record(FaultKind::PoolLoad, 3000);
        b.latency.record(FaultKind::PoolLoad, 5000);
        a.mechanism.store(Mechanism::Protect as u32, Ordering::Release);
        let id = a.id();
        t.retire(a, id);
        t.retire(a, id);
        assert_eq!(t.mechanisms_used().collect::<Vec<_>>(), [Mechanism::Protect]);
        assert_eq!(t.used_pages.load(Ordering::Relaxed), 50);
        assert_eq!(t.peak_needed_pages.load(Ordering::Relaxed), 450);
        assert_eq!(t.total(Counter::Faults), 8);
        assert_eq!(t.total(Counter::PeakNeededPages), 400);
        assert_eq!(t.latency(FaultKind::PoolLoad).count(), 2);
        assert_eq!(t.latency(FaultKind::PoolLoad).sum_ns, 8000);
        assert_eq!(a.latency.count(FaultKind::PoolLoad), 0);
    }

    #[test]
    fn shared_memory_is_in_the_sums_once() {
        let t = tree();
        t.publish(t.claim(10).unwrap(), 100, 300);
        t.count_shared(70, 90);
        assert_eq!((t.used(), t.said_pages()), (170, [170, 370]));
        t.count_shared(95, 90);
        assert_eq!((t.used(), t.said_pages()), (190, [190, 390]), "no more than the most");
        t.count_shared(20, 90);
        assert_eq!((t.used(), t.said_pages()), (120, [120, 320]));
        let peaks = [&t.peak_used_pages, &t.peak_needed_pages, &t.peak_shared_pages];
        assert_eq!(peaks.map(|peak| peak.load(Ordering::Relaxed)), [190, 390, 95]);
    }

    #[test]
    fn a_reservation_that_does_not_fit_is_not_made() {
        let t = tree();
        let (a, b) = (t.claim(10).unwrap(), t.claim(11).unwrap());
        t.limit_pages.store(100, Ordering::Relaxed);
        assert!(
            t.try_reserve(a, 60)
                && t.try_reserve(a, 70)
                && !t.try_reserve(b, 31)
                && t.try_reserve(b, 30)
        );
        assert_eq!(t.used_pages.load(Ordering::Relaxed), 100);
        t.limit_pages.store(50, Ordering::Relaxed);
        assert!(t.try_reserve(a, 40), "less always fits");
        assert_eq!(t.used_pages.load(Ordering::Relaxed), 70);
    }
}
