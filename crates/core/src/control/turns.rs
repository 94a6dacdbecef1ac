//! Turns of the processes of a tree, while they need more memory at a time than there is.
//!
//! Where more processes run than fit, each takes from the others pages that they will touch next,
//! and all of them do little but page. Then `uzswap run` lets some run and has the others wait, by
//! turns (`cli/src/governor/turns`):
//!
//! ```text
//!   uzswap run                       the process
//!   pause(until) ──────────────────> the next fault waits; the evictor takes its memory, before others lose theirs
//!   pause(until later), ...          (without news it runs again: a pause ends by itself)
//!   resume ─────────────────────────> goes on
//!          <───────────────────── ask: a process that wants memory where it is short waits for an answer, which is one of the two
//! ```
//!
//! Only a process that needs memory waits: one whose pages are all there runs on, and one that
//! sleeps does not notice.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::sys::now_ns;
use crate::sys::sync::{futex_wait_shared, futex_wake_shared};

/// Longest piece of a wait, 20 ms, after which the thread looks whether it should go on waiting: a
/// signal may have come.
const SLICE_NS: u64 = 20_000_000;
/// Longest wait of a fault, one minute, whatever the shared block says.
const WAIT_MAX_NS: u64 = 60_000_000_000;

/// Longest wait of an asking process for the answer: 120 ms.
const ANSWER_NS: u64 = 120_000_000;

/// How long the referee is believed to be there without news: a second.
const HERE_NS: u64 = 1_000_000_000;

/// How far ahead a pause may end: one second, twice as far as `uzswap run` ever says (`PAUSE` in
/// `cli/src/governor/turns`). A pause that ends later does not come from `uzswap run`.
const PAUSE_MOST_NS: u64 = 1_000_000_000;

/// Whether `until` is still to come, and not so far ahead that it is nonsense. Twice `most_ns` is
/// allowed, since the reader may have looked at the clock before the writer.
fn is_ahead(until_ns: u64, now_ns: u64, most_ns: u64) -> bool {
    until_ns.checked_sub(now_ns).is_some_and(|left| 0 < left && left <= 2 * most_ns)
}

/// The referee, `uzswap run`, as the processes see it: it says whose turn it is. All-zero: nobody
/// does.
#[repr(C)]
pub struct Referee {
    /// The referee answers until then, without news.
    until_ns: AtomicU64,
    /// Raised and woken by an asking process.
    bell: AtomicU32,
}

impl Referee {
    /// Says that the referee answers for a second from now on.
    pub fn stay(&self) {
        self.until_ns.store(now_ns() + HERE_NS, Ordering::Release);
    }

    pub fn is_there(&self) -> bool {
        is_ahead(self.until_ns.load(Ordering::Acquire), now_ns(), HERE_NS)
    }

    /// The bell's count, to be read before looking which processes ask, and given to `wait`.
    pub fn rung(&self) -> u32 {
        self.bell.load(Ordering::Acquire)
    }

    /// Sleeps until a process has asked since `rung` was read, for `timeout_ns` at most.
    pub fn wait(&self, rung: u32, timeout_ns: u64) {
        futex_wait_shared(&self.bell, rung, Some(timeout_ns));
    }

    fn ring(&self) {
        self.bell.fetch_add(1, Ordering::AcqRel);
        futex_wake_shared(&self.bell, u32::MAX >> 1);
    }
}

/// The turn of one process. All-zero: it runs.
#[repr(C)]
pub struct Turn {
    /// When the process's wait ends; 0: it does not wait.
    paused_until_ns: AtomicU64,
    /// Raised and woken when the process need not wait any longer.
    bell: AtomicU32,
    /// Threads that wait now.
    waiting: AtomicU32,
}

impl Turn {
    /// Pauses the process, for a second at most: a longer pause must be renewed.
    pub fn pause(&self, until_ns: u64) {
        self.paused_until_ns.store(until_ns.min(now_ns() + PAUSE_MOST_NS), Ordering::Release);
    }

    pub fn resume(&self) {
        if self.paused_until_ns.swap(0, Ordering::AcqRel) != 0 {
            self.bell.fetch_add(1, Ordering::AcqRel);
            futex_wake_shared(&self.bell, u32::MAX >> 1);
        }
    }

    #[inline]
    pub fn is_paused(&self) -> bool {
        let until = self.paused_until_ns.load(Ordering::Acquire);
        until != 0 && is_ahead(until, now_ns(), PAUSE_MOST_NS)
    }

    /// Whether a thread would run if it could.
    pub fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire) != 0
    }

    /// Waits for the turn, as long as `may_wait` allows. Returns how long that took, in
    /// nanoseconds.
    pub fn wait(&self, may_wait: impl Fn() -> bool) -> u64 {
        self.wait_after(|| (), may_wait)
    }

    /// The process itself asks whether it is its turn, and waits for the answer and through the
    /// pause that it may bring; as `wait`.
    pub fn ask(&self, referee: &Referee, may_wait: impl Fn() -> bool) -> u64 {
        self.pause(now_ns() + ANSWER_NS);
        // The bell rings after `waiting` is raised: else the referee might not see that this
        // process asks.
        self.wait_after(|| referee.ring(), may_wait)
    }

    fn wait_after(&self, is_seen: impl FnOnce(), may_wait: impl Fn() -> bool) -> u64 {
        let began = now_ns();
        let mut now = began;
        self.waiting.fetch_add(1, Ordering::AcqRel);
        is_seen();
        while now - began < WAIT_MAX_NS {
            let rung = self.bell.load(Ordering::Acquire);
            let until = self.paused_until_ns.load(Ordering::Acquire);
            if !is_ahead(until, now, PAUSE_MOST_NS) || !may_wait() {
                break;
            }
            futex_wait_shared(&self.bell, rung, Some((until - now).min(SLICE_NS)));
            now = now_ns();
        }
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        now - began
    }

    /// Ends the pause of a process that has ended.
    pub(super) fn clear(&self) {
        self.paused_until_ns.store(0, Ordering::Release);
        self.waiting.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::control::zeroed_tree as tree;

    #[test]
    fn a_pause_ends_by_itself_or_when_it_is_said() {
        let t = tree();
        let turn = &t.claim(10).unwrap().turn;
        assert!(!turn.is_paused());
        let until = now_ns() + 5_000_000;
        turn.pause(until);
        turn.wait(|| true);
        assert!(now_ns() >= until);
        assert!(!turn.is_paused() && !turn.is_waiting());
        thread::scope(|scope| {
            turn.pause(u64::MAX);
            let waiter = scope.spawn(|| turn.wait(|| true));
            while !turn.is_waiting() {
                thread::sleep(Duration::from_millis(1));
            }
            assert!(turn.is_paused());
            turn.resume();
            waiter.join().unwrap();
        });
        assert!(!turn.is_paused() && !turn.is_waiting());
    }

    #[test]
    fn what_nobody_can_have_said_is_not_believed() {
        let t = tree();
        let turn = &t.claim(10).unwrap().turn;
        for nonsense in [u64::MAX, now_ns() + 4 * PAUSE_MOST_NS, 1] {
            turn.paused_until_ns.store(nonsense, Ordering::Relaxed);
            assert!(!turn.is_paused());
            turn.wait(|| panic!("it need not wait"));
            t.referee.until_ns.store(nonsense, Ordering::Relaxed);
            assert!(!t.referee.is_there());
        }
    }

    #[test]
    fn who_asks_is_seen_to_wait_and_goes_on_without_an_answer() {
        let t = tree();
        let turn = &t.claim(10).unwrap().turn;
        let began = now_ns();
        turn.ask(&t.referee, || true);
        assert!(now_ns() - began >= ANSWER_NS);
        // The question and the pause end by themselves, on a machine that stalls before the look.
        assert!((0..20).any(|_| is_seen_to_wait(&t.referee, turn)));
    }

    /// Whether who asks was seen to wait, until the end of the pause that is the answer.
    fn is_seen_to_wait(referee: &Referee, turn: &Turn) -> bool {
        thread::scope(|scope| {
            let rung = referee.rung();
            let began = now_ns();
            let asker = scope.spawn(|| turn.ask(referee, || true));
            while referee.rung() == rung {
                referee.wait(rung, 1_000_000);
            }
            let is_asking = turn.is_waiting() && turn.is_paused();
            turn.pause(u64::MAX);
            thread::sleep(Duration::from_nanos(ANSWER_NS));
            let is_paused = turn.is_waiting();
            turn.resume();
            // The end of the wait first: a time taken before it may be too early.
            let waited_ns = asker.join().unwrap();
            assert!(waited_ns <= now_ns() - began);
            is_asking && is_paused && waited_ns >= ANSWER_NS
        })
    }

    #[test]
    fn a_wait_ends_when_something_else_is_to_be_done() {
        let t = tree();
        let s = t.claim(10).unwrap();
        s.turn.pause(u64::MAX);
        s.turn.wait(|| false);
        assert!(s.turn.is_paused(), "and stays a pause");
        t.retire(s, s.id());
        assert!(!s.turn.is_paused());
    }
}
