//! Recording of the pager's work (`uzswap run --trace`): faults, and other events of pages.
//!
//! Without a trace each call here is one branch that is never taken. Callers hold the pager's lock,
//! so that records are in the order of the events; the ring takes its time from the kernel, which
//! asks for no memory of the program.

use core::sync::atomic::Ordering;

use super::Pager;
use crate::control::trace::{Kind, PAGES_MAX, Record, Ring, WATCH_LOG2_MAX, is_watched};
use crate::latency::FaultKind;
use crate::sys::{PAGE_SHIFT, PAGE_SIZE};

impl Pager {
    /// Records everything in `ring` from now on.
    pub fn record_to(&self, ring: &'static Ring) {
        self.ring.store(core::ptr::from_ref(ring).cast_mut(), Ordering::Release);
    }

    #[inline]
    fn ring(&self) -> Option<&'static Ring> {
        crate::sys::static_ref(&self.ring)
    }

    /// Records that the process runs a program from its start ([`Kind::Began`]), or ends
    /// ([`Kind::Ended`]).
    pub fn trace_process(&self, kind: Kind) {
        if let Some(ring) = self.ring() {
            self.record(ring, kind, 0, 0, [false; 2]);
        }
    }

    /// Records a fork, in the child.
    pub(super) fn trace_fork(&self, parent: u32) {
        if let Some(ring) = self.ring() {
            self.record(ring, Kind::Forked, parent as usize, 0, [false; 2]);
        }
    }

    /// Records that a fault was served, or that a page was brought in for a system call.
    #[inline]
    pub(super) fn trace_served(
        &self,
        page: usize,
        pages: usize,
        kind: FaultKind,
        is_write: bool,
        is_held: bool,
    ) {
        if let Some(ring) = self.ring() {
            self.record_some(ring, kind.into(), page >> PAGE_SHIFT, pages, [is_write, is_held]);
        }
    }

    /// Records an event of the pages of `[start, end)`.
    #[inline]
    pub(super) fn trace_pages(&self, kind: Kind, start: usize, end: usize) {
        if let Some(ring) = self.ring()
            && start < end
        {
            self.record_some(
                ring,
                kind,
                start >> PAGE_SHIFT,
                (end - start) / PAGE_SIZE,
                [false; 2],
            );
        }
    }

    /// Records an event of pages: of all of them, or, of touches while pages are watched, of
    /// watched ones only.
    #[cold]
    fn record_some(&self, ring: &Ring, kind: Kind, page: usize, pages: usize, flags: [bool; 2]) {
        match self.watch_log2() {
            log2 if log2 != 0 && kind.is_touch() => (page..page + pages)
                .filter(|page| is_watched(*page as u64, log2))
                .for_each(|page| self.record(ring, kind, page, 1, flags)),
            _ => self.record(ring, kind, page, pages, flags),
        }
    }

    /// `page`: a page number, or the number that the kind calls for.
    fn record(
        &self,
        ring: &Ring,
        kind: Kind,
        page: usize,
        pages: usize,
        [is_write, is_held]: [bool; 2],
    ) {
        let (mut page, mut left) = (page as u64, pages as u64);
        let time_us =
            crate::sys::now_ns().saturating_sub(ring.began_ns.load(Ordering::Relaxed)) / 1000;
        // A process that found no slot has no id there.
        let pid =
            Some(self.slot().own_pid()).filter(|pid| *pid != 0).unwrap_or_else(crate::sys::getpid);
        loop {
            // A longer stretch is several records. A move is two records that belong together, so
            // that a long one is cut: 16 GiB.
            let pages = left.min(u64::from(PAGES_MAX)) as u32;
            ring.push(&Record { kind, is_write, is_held, page, pages, pid, time_us });
            (page, left) = (page + u64::from(pages), left - u64::from(pages));
            if left == 0 || matches!(kind, Kind::MovedFrom | Kind::MovedTo) {
                return;
            }
        }
    }

    #[inline]
    pub fn is_watching(&self) -> bool {
        self.is_watching.load(Ordering::Relaxed)
    }

    /// log2 of the number of pages to a watched one, which the watching command may raise; 0: no
    /// page is watched.
    #[inline]
    pub(super) fn watch_log2(&self) -> u32 {
        match self.is_watching() {
            true => self.tree().watch_log2.load(Ordering::Relaxed).clamp(1, WATCH_LOG2_MAX),
            false => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::trace::{Next, tests::ring};

    const PID: u32 = 7;

    /// A pager that records, and where it does.
    fn recording() -> (Pager, &'static Ring) {
        let tree: &'static _ = Box::leak(crate::control::zeroed_tree());
        let ring: &'static Ring = Box::leak(Box::new(ring()));
        // All records are of the first moment: no time comes after this.
        ring.began_ns.store(u64::MAX, Ordering::Relaxed);
        let pager = Pager::new();
        pager.connect(tree, tree.claim(PID).expect("a slot"));
        pager.record_to(ring);
        (pager, ring)
    }

    fn taken(ring: &Ring) -> Vec<Record> {
        let next = || match ring.next() {
            Next::Record(words) => Some(Record::unpack(words).expect("a record")),
            _ => None,
        };
        core::iter::from_fn(next).collect()
    }

    fn stretches(ring: &Ring) -> Vec<(u64, u32)> {
        taken(ring).iter().map(|r| (r.page, r.pages)).collect()
    }

    #[test]
    fn a_long_stretch_is_several_records_and_a_long_move_is_cut() {
        let (p, ring) = recording();
        let most = PAGES_MAX as usize;
        let trace = |kind: Kind, pages: usize| {
            p.trace_pages(kind, 5 * PAGE_SIZE, (5 + pages) * PAGE_SIZE);
            stretches(ring)
        };
        assert!(trace(Kind::Discarded, 0).is_empty());
        assert_eq!(trace(Kind::Discarded, most), [(5, PAGES_MAX)]);
        let second = (5 + u64::from(PAGES_MAX), 3);
        assert_eq!(trace(Kind::Discarded, most + 3), [(5, PAGES_MAX), second]);
        for kind in [Kind::MovedFrom, Kind::MovedTo] {
            assert_eq!(trace(kind, most + 3), [(5, PAGES_MAX)]);
        }
    }

    #[test]
    fn while_pages_are_watched_touches_of_others_are_left_out_and_nothing_else() {
        let (p, ring) = recording();
        p.tree().watch_log2.store(3, Ordering::Relaxed);
        let touch = || {
            p.trace_served(103 * PAGE_SIZE, 58, FaultKind::PoolLoad, false, false);
            stretches(ring)
        };
        assert_eq!(touch(), [(103, 58)]);
        p.begin_to_watch();
        // The first and the last page are watched, and few of those between.
        let mut watched: Vec<_> = (103..161).map(|page| (page, 1)).collect();
        watched.retain(|(page, _)| is_watched(*page, 3));
        assert!(watched.len() < 20 && watched.starts_with(&[(103, 1)]));
        assert!(watched.ends_with(&[(160, 1)]));
        assert_eq!(touch(), watched);
        p.trace_pages(Kind::Discarded, 103 * PAGE_SIZE, 161 * PAGE_SIZE);
        assert_eq!(stretches(ring), [(103, 58)]);
    }

    #[test]
    fn a_record_names_its_process_even_if_that_has_no_slot() {
        let (p, ring) = recording();
        p.trace_served(3 * PAGE_SIZE, 2, FaultKind::StoreLoad, true, false);
        p.trace_fork(41);
        let fault = Record {
            kind: Kind::StoreLoad,
            is_write: true,
            is_held: false,
            page: 3,
            pages: 2,
            pid: PID,
            time_us: 0,
        };
        let fork = Record { kind: Kind::Forked, is_write: false, page: 41, pages: 0, ..fault };
        assert_eq!(taken(ring), [fault, fork]);
        let nobodys = core::ptr::from_ref(&p.tree().slots[9]).cast_mut();
        p.slot.store(nobodys, Ordering::Release);
        p.trace_process(Kind::Ended);
        assert_eq!(taken(ring)[0].pid, crate::sys::getpid());
    }
}
