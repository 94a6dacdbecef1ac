//! How much memory the machine, or the memory group of the run, has left: a question of a process
//! that is about to be dumped.
//!
//! Pages that are out must come in before a core dump, even over the limit; but not where that
//! would have a process killed. The dumped process may be without /proc, so `uzswap run` looks, and
//! answers within a millisecond or two.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::sys::now_ns;
use crate::sys::sync::{futex_wait_shared, futex_wake_shared};

/// Longest wait of an asking process for the answer: 500 ms.
const ANSWER_NS: u64 = 500_000_000;

/// The question and its answer. All-zero: nobody has asked.
#[repr(C)]
pub struct Room {
    /// Questions so far, and of these the ones that are answered.
    asked: AtomicU32,
    answered: AtomicU32,
    pages: AtomicU64,
}

impl Room {
    /// Asks for the pages that are left; `None`: nobody answers.
    pub fn ask(&self) -> Option<u64> {
        let number = self.asked.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        futex_wake_shared(&self.asked, u32::MAX >> 1);
        let until_ns = now_ns() + ANSWER_NS;
        loop {
            let answered = self.answered.load(Ordering::Acquire);
            if answered.wrapping_sub(number) as i32 >= 0 {
                return Some(self.pages.load(Ordering::Acquire));
            }
            let left_ns = until_ns.checked_sub(now_ns()).filter(|left| *left > 0)?;
            futex_wait_shared(&self.answered, answered, Some(left_ns));
        }
    }

    /// Answers one question after another by `look`, until that returns `None`.
    pub fn answer(&self, look: impl Fn() -> Option<u64>) {
        loop {
            let asked = self.asked.load(Ordering::Acquire);
            if asked == self.answered.load(Ordering::Acquire) {
                futex_wait_shared(&self.asked, asked, None);
                continue;
            }
            let Some(pages) = look() else { return };
            self.pages.store(pages, Ordering::Release);
            self.answered.store(asked, Ordering::Release);
            futex_wake_shared(&self.answered, u32::MAX >> 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicU64;

    use super::*;
    use crate::control::zeroed_tree as tree;

    #[test]
    fn who_asks_is_answered_or_goes_on_without() {
        let room = &tree().room;
        assert_eq!(room.ask(), None, "nobody is there");
        let pages = AtomicU64::new(41);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                room.answer(|| Some(pages.load(Ordering::Relaxed)).filter(|p| *p < 43));
            });
            // An answer may be late on a busy machine. A question for which nobody waits any
            // more is answered, too, and its answer is none to the next one.
            let ask = || (0..100).find_map(|_| room.ask());
            assert_eq!(ask(), Some(41));
            pages.store(42, Ordering::Relaxed);
            assert_eq!(ask(), Some(42));
            pages.store(43, Ordering::Relaxed);
            assert_eq!(room.ask(), None);
        });
    }
}
