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
