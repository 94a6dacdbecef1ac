//! Room: threads that find none, how many of them free memory themselves, and how the evictor is
//! woken.
//!
//! The evictor frees pages by the dozen and with one flush; a thread that frees a few for itself
//! pays a flush for each. With more threads than processors the evictor gets little of the
//! processors beside them, and all of them would work in the dear way. So only as many threads
//! evict as the evictor leaves processors; the others sleep until pages have been freed, which
//! leaves the processors to those that free them.

use core::sync::atomic::{AtomicU32, Ordering, fence};

use super::{Locked, Pager};
use crate::sys::cpu;
use crate::sys::sync::{futex_wait, futex_wake};

/// How long a thread waits for pages that others free, before it evicts by itself however many
/// threads do: the time of some fifty batches of the evictor.
const WAIT_NS: u64 = 10_000_000;
/// How often a thread may be woken in vain, because others were quicker, before it evicts by
/// itself.
const VAIN_MAX: u32 = 8;

/// Threads without room.
pub(super) struct Room {
    /// Threads that may evict beside the evictor: one until the number of processors is known.
    most: AtomicU32,
    /// Threads that evict.
    evicting: AtomicU32,
    /// Threads that sleep until pages are freed.
    waiting: AtomicU32,
    /// Changes when pages have been freed and some thread sleeps.
    freed: AtomicU32,
}

impl Room {
    pub const fn new() -> Room {
        Room {
            most: AtomicU32::new(1),
            evicting: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            freed: AtomicU32::new(0),
        }
    }

    /// Asks how many processors there are.
    pub fn begin(&self) {
        self.most.store((cpu::count() as u32).saturating_sub(1).max(1), Ordering::Relaxed);
    }

    /// In the child after fork: the threads of the parent are not there.
    pub fn after_fork_child(&self) {
        self.evicting.store(0, Ordering::Relaxed);
        self.waiting.store(0, Ordering::Relaxed);
    }

    /// Counts the calling thread among those that evict. False: there are enough.
    fn enter(&self) -> bool {
        let most = self.most.load(Ordering::Relaxed);
        let next = |n: u32| (n < most).then_some(n + 1);
        self.evicting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }

    fn leave(&self) {
        self.evicting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Wakes as many threads as may evict: pages have been freed. Those threads find room again and
    /// again, and do not crowd out a thread that frees pages.
    pub fn wake_some(&self) {
        self.wake(self.most.load(Ordering::Relaxed));
    }

    /// Wakes all threads: the evictor has done its work.
    pub fn wake_all(&self) {
        self.wake(i32::MAX as u32);
    }

    fn is_awaited(&self) -> bool {
        // Pairs with a thread's count in `waiting`, which is made before it looks for room and
        // sleeps.
        fence(Ordering::SeqCst);
        self.waiting.load(Ordering::Relaxed) > 0
    }

    fn wake(&self, most: u32) {
        if self.is_awaited() {
            self.freed.fetch_add(1, Ordering::Release);
            futex_wake(&self.freed, most);
        }
    }
}

impl Pager {
    /// Lets a thread that needs room sleep until `has_room`, while others free memory. True: the
    /// thread is to free memory itself, and is counted until [`Self::leave_room`].
    pub(super) fn enter_room<'a>(
        &'a self,
        mut s: Locked<'a>,
        has_room: impl Fn(&Locked<'a>) -> bool,
    ) -> (Locked<'a>, bool) {
        for _ in 0..VAIN_MAX {
            if self.room.enter() {
                return (s, true);
            }
            let seen = self.room.freed.load(Ordering::Acquire);
            // The thread counts itself first: a page that is freed after its look wakes it.
            self.room.waiting.fetch_add(1, Ordering::SeqCst);
            let is_there = has_room(&s);
            if !is_there {
                drop(s);
                self.wake_evictor();
                futex_wait(&self.room.freed, seen, Some(WAIT_NS));
                s = self.enter();
            }
            self.room.waiting.fetch_sub(1, Ordering::Relaxed);
            if is_there || has_room(&s) {
                return (s, false);
            }
            if self.room.freed.load(Ordering::Relaxed) == seen {
                // Nothing was freed: more threads are better than none.
                break;
            }
        }
        self.room.evicting.fetch_add(1, Ordering::Relaxed);
        (s, true)
    }

    /// Ends the work of a thread that evicts.
    pub(super) fn leave_room(&self, s: &mut Locked<'_>) {
        self.room.leave();
        if self.room.is_awaited() {
            s.unlocked(|| self.room.wake_some());
        }
    }

    /// Wakes the evictor when free pages are below the low mark.
    #[inline]
    pub(super) fn ask_evictor(&self) {
        if self.excess(0) + self.watermarks().0 > 0 && !self.refusals.rests() {
            self.wake_evictor();
        }
    }

    #[inline]
    pub(super) fn wake_evictor(&self) {
        if !self.evictor_asked.swap(true, Ordering::AcqRel) {
            self.evictor_word.fetch_add(1, Ordering::Release);
            futex_wake(&self.evictor_word, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Duration;

    fn room(most: u32) -> Room {
        let room = Room::new();
        room.most.store(most, Ordering::Relaxed);
        room
    }

    #[test]
    fn as_many_evict_as_the_evictor_leaves_processors() {
        let room = room(2);
        assert!(room.enter() && room.enter() && !room.enter());
        room.leave();
        assert!(room.enter() && !room.enter());
        // One thread may evict until the processors are counted.
        let room = Room::new();
        assert!(room.enter() && !room.enter());
        room.after_fork_child();
        assert!(room.enter());
    }

    #[test]
    fn a_batch_wakes_few_and_the_end_of_the_work_all() {
        const SLEEPERS: u32 = 4;
        let room = Arc::new(room(1));
        let woken = Arc::new(AtomicU32::new(0));
        let sleepers: Vec<_> = (0..SLEEPERS)
            .map(|_| {
                let (room, woken) = (Arc::clone(&room), Arc::clone(&woken));
                std::thread::spawn(move || {
                    let seen = room.freed.load(Ordering::Acquire);
                    room.waiting.fetch_add(1, Ordering::SeqCst);
                    while room.freed.load(Ordering::Acquire) == seen {
                        futex_wait(&room.freed, seen, None);
                    }
                    room.waiting.fetch_sub(1, Ordering::Relaxed);
                    woken.fetch_add(1, Ordering::Release);
                })
            })
            .collect();
        let until = |done: &dyn Fn() -> bool| {
            while !done() {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        until(&|| room.waiting.load(Ordering::SeqCst) == SLEEPERS);
        // All are asleep then, and not on their way to it.
        std::thread::sleep(Duration::from_millis(20));
        room.wake_some();
        until(&|| woken.load(Ordering::Acquire) >= 1);
        room.wake_all();
        sleepers.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(
            (woken.load(Ordering::Relaxed), room.waiting.load(Ordering::Relaxed)),
            (SLEEPERS, 0)
        );
    }
}
