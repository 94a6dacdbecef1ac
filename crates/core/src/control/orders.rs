//! Orders to one process from outside while it runs: `uzswap set`, `uzswap reclaim` and `uzswap
//! bring-in`.
//!
//! ```text
//!   uzswap run's server                          the process's evictor
//!   ask_reclaim: pages, asked + 1 ──┐
//!   (or a new limit in the Tree) ───┴─> ring ──> wakes up, looks: what is wanted? is the tree full?
//!   is_done? <────────────────────────────────── finish: done = asked
//! ```
//!
//! The evictor of a process that pages looks by itself every few milliseconds. In a dormant process
//! it sleeps on the bell, which lies in shared memory, so that waiting costs nothing.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::sys::sync::{futex_wait_shared, futex_wake_shared};

/// `ask_reclaim`: all that can go, the compressed pages too if there is a store.
pub const ALL_PAGES: u64 = u64::MAX;
/// In place of pages to free: the process is to bring in all that its limit leaves room for.
pub const BRING_IN: u64 = u64::MAX - 1;

/// The orders to one process. All-zero: none.
#[repr(C)]
pub struct Orders {
    /// Raised and woken when there is an order to look at.
    bell: AtomicU32,
    /// 1: a thread of the process listens.
    listener: AtomicU32,
    /// Pages that the last order wants taken out, or [`BRING_IN`].
    pages: AtomicU64,
    /// Numbers of the last order given and of the last one done.
    asked: AtomicU32,
    done: AtomicU32,
    /// Pages that the last bringing in has left out.
    missing: AtomicU64,
}

impl Orders {
    /// Orders the process to take pages out; returns the number by which `is_done` knows the order.
    pub fn ask_reclaim(&self, pages: u64) -> u32 {
        self.pages.store(pages, Ordering::Relaxed);
        let number = self.asked.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        self.ring();
        number
    }

    /// Whether an order has been carried out, or never will be (the process ended or exec'd).
    pub fn is_done(&self, number: u32) -> bool {
        self.done.load(Ordering::Acquire).wrapping_sub(number) as i32 >= 0
    }

    /// The number and the pages of the order that waits.
    pub fn wanted(&self) -> Option<(u32, u64)> {
        let number = self.asked.load(Ordering::Acquire);
        (!self.is_done(number)).then(|| (number, self.pages.load(Ordering::Relaxed)))
    }

    /// Orders the process to bring in pages that are out; returns the number by which `is_done`
    /// knows the order.
    pub fn ask_bring_in(&self) -> u32 {
        self.ask_reclaim(BRING_IN)
    }

    /// Finishes an order to bring pages in, of which `missing` are still out.
    pub fn finish_bring_in(&self, number: u32, missing: u64) {
        self.missing.store(missing, Ordering::Relaxed);
        self.finish(number);
    }

    pub fn missing_pages(&self) -> u64 {
        self.missing.load(Ordering::Relaxed)
    }

    pub fn finish(&self, number: u32) {
        self.done.store(number, Ordering::Release);
    }

    /// Wakes the thread that listens.
    pub fn ring(&self) {
        self.bell.fetch_add(1, Ordering::AcqRel);
        futex_wake_shared(&self.bell, u32::MAX >> 1);
    }

    /// The bell's count, to be read before looking for orders and given to `wait`.
    pub fn rung(&self) -> u32 {
        self.bell.load(Ordering::Acquire)
    }

    /// Sleeps until the bell has rung since `rung` was read, for `timeout_ns` at most.
    pub fn wait(&self, rung: u32, timeout_ns: Option<u64>) {
        futex_wait_shared(&self.bell, rung, timeout_ns);
    }

    pub fn set_listener(&self, is_there: bool) {
        self.listener.store(is_there as u32, Ordering::Release);
    }

    /// Whether an order would be heard.
    pub fn has_listener(&self) -> bool {
        self.listener.load(Ordering::Acquire) != 0
    }

    /// Ends all orders: the process has ended, and nobody is to wait for it.
    pub(super) fn clear(&self) {
        self.set_listener(false);
        self.finish(self.asked.load(Ordering::Acquire));
    }
}

#[cfg(test)]
mod tests {
    use crate::control::zeroed_tree as tree;

    #[test]
    fn an_order_waits_until_it_is_done_or_its_process_has_ended() {
        let t = tree();
        let s = t.claim(10).unwrap();
        assert_eq!((s.orders.wanted(), s.orders.has_listener()), (None, false));
        let first = s.orders.ask_reclaim(5);
        let second = s.orders.ask_reclaim(7);
        assert_eq!(s.orders.wanted(), Some((second, 7)));
        s.orders.finish(first);
        assert!(s.orders.is_done(first) && !s.orders.is_done(second));
        s.orders.set_listener(true);
        t.retire(s, s.id());
        assert!(
            s.orders.is_done(second) && s.orders.wanted().is_none() && !s.orders.has_listener()
        );
    }

    #[test]
    fn ringing_wakes_who_listens() {
        let t = tree();
        let s = t.claim(10).unwrap();
        std::thread::scope(|scope| {
            let rung = s.orders.rung();
            let listener = scope.spawn(move || {
                while s.orders.rung() == rung {
                    s.orders.wait(rung, None);
                }
            });
            s.orders.ring();
            listener.join().unwrap();
        });
    }
}
