//! A mutex that a fault handler may take: one word, the futex system call, nothing of libc.
//!
//! # Safety charter
//! `Mutex` hands out `&mut T` only while its word says locked by this guard, which is the argument
//! for `Send`/`Sync` and for the two dereferences. It knows nothing of signals: a thread that can
//! be interrupted by a handler that takes the same lock must have blocked signals first (the
//! pager's rule).
//!
//! The word of a lock that is held says which thread has it, so that a thread that waits for long
//! can ask whether the owner still exists: a process that shares our memory (vfork,
//! `clone(CLONE_VM)`) may be killed with a lock in its hands. Nobody can finish the change that it
//! was making.
//!
//! A lock may say of which class it is; `contention.rs` counts by it, in builds for that alone.
//!
//! Built with `--cfg shuttle`, every attempt to take a lock is a point at which the scheduler of
//! `tests/shuttle_cache.rs` may let another thread run, and a thread that would sleep lets others
//! run.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use super::contention::{Class, Meter, Waits};
use super::nr;

const FREE: u32 = 0;
/// Bit of the word of a lock that is held: somebody may sleep. The others are the owner's thread
/// id.
const CONTENDED: u32 = 1 << 31;
/// The owner in the word of a lock where its id is not known.
const SOMEBODY: u32 = 1;
/// How long a waiter sleeps before it asks whether the owner exists, in nanoseconds: longer than
/// any lock is held.
#[cfg(not(shuttle))]
const PATIENCE_NS: u64 = 1_000_000_000;

/// Functions that say which thread this is, and act where an owner does not exist any more.
pub struct Owners {
    /// The calling thread's id, without a system call if possible; not 0.
    pub me: fn() -> u32,
    /// This thread has waited for a long time for a lock of the thread of this id. Does not return
    /// if that thread is gone.
    pub look_after: fn(u32),
    /// This thread has waited for a long time for a thing that another one has in hand. Does not
    /// return if that one is gone.
    pub look_for_abandoned: fn(),
}

static OWNERS: AtomicPtr<Owners> = AtomicPtr::new(core::ptr::null_mut());

/// Sets the [`Owners`], once, before there is a second thread. Without them no owner is known.
pub fn set_owners(owners: &'static Owners) {
    OWNERS.store(core::ptr::from_ref(owners).cast_mut(), Ordering::Release);
}

/// This thread has waited for a long time, and a thread that is gone may have had the thing in
/// hand: see [`Owners`].
pub fn look_for_abandoned() {
    owners().inspect(|o| (o.look_for_abandoned)());
}

fn owners() -> Option<&'static Owners> {
    super::static_ref(&OWNERS)
}

/// The calling thread's id, as it stands in the words of locks.
#[inline]
pub(super) fn me() -> u32 {
    owners().map_or(SOMEBODY, |o| (o.me)())
}

const FUTEX_WAIT: usize = 0;
const FUTEX_WAKE: usize = 1;
/// The word is this process's alone.
const FUTEX_PRIVATE: usize = 128;

/// A point at which another thread may run first. Does nothing outside of shuttle's tests.
#[inline(always)]
pub fn point() {
    #[cfg(shuttle)]
    shuttle::sync::atomic::AtomicBool::new(false).load(Ordering::SeqCst);
}

/// Sleeps while `*word == expected`, for at most `timeout_ns` (`None`: until woken). Spurious
/// returns are allowed, so callers loop.
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout_ns: Option<u64>) {
    wait(FUTEX_WAIT | FUTEX_PRIVATE, word, expected, timeout_ns);
}

/// Wakes up to `count` sleepers of `word`.
pub fn futex_wake(word: &AtomicU32, count: u32) {
    wake(FUTEX_WAKE | FUTEX_PRIVATE, word, count);
}

/// As `futex_wait`, on a word that others than this process's threads wake: in memory shared with
/// other processes, or cleared by the kernel at a thread's end.
pub fn futex_wait_shared(word: &AtomicU32, expected: u32, timeout_ns: Option<u64>) {
    wait(FUTEX_WAIT, word, expected, timeout_ns);
}

/// Wakes up to `count` sleepers of `word`, in any process.
pub fn futex_wake_shared(word: &AtomicU32, count: u32) {
    wake(FUTEX_WAKE, word, count);
}

fn wait(operation: usize, word: &AtomicU32, expected: u32, timeout_ns: Option<u64>) {
    #[cfg(shuttle)]
    if word.load(Ordering::SeqCst) == expected {
        return shuttle::thread::yield_now();
    }
    let ts = timeout_ns.map(|ns| [(ns / 1_000_000_000) as i64, (ns % 1_000_000_000) as i64]);
    let ts_ptr = ts.as_ref().map_or(0, |t| t.as_ptr() as usize);
    // SAFETY: the word and the timespec outlive the call, which only reads them.
    let _ = unsafe { uz_syscall!(nr::FUTEX, word.as_ptr(), operation, expected, ts_ptr) };
}

fn wake(operation: usize, word: &AtomicU32, count: u32) {
    // SAFETY: a wake only uses the address as a key.
    let _ = unsafe { uz_syscall!(nr::FUTEX, word.as_ptr(), operation, count) };
}

/// A mutual exclusion lock of one word. Not reentrant; no poisoning (a panic stops the process).
pub struct Mutex<T> {
    word: AtomicU32,
    meter: Meter,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through a guard, and there is one guard at a time.
unsafe impl<T: Send> Sync for Mutex<T> {}
// SAFETY: moving the mutex moves the value.
unsafe impl<T: Send> Send for Mutex<T> {}

impl<T> Mutex<T> {
    pub const fn new(value: T) -> Self {
        Self::of(Class::Other, value)
    }

    /// A lock of a class that is counted by itself.
    pub const fn of(class: Class, value: T) -> Self {
        Mutex {
            word: AtomicU32::new(FREE),
            meter: Meter::new(class),
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the lock, spinning briefly and then sleeping.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        point();
        let me = me();
        let mut waits = Waits::NONE;
        if self.word.compare_exchange(FREE, me, Ordering::Acquire, Ordering::Relaxed).is_err() {
            waits = Waits::begin();
            self.lock_slow(me);
        }
        self.meter.taken(me, waits);
        MutexGuard { mutex: self }
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        point();
        let me = me();
        self.word.compare_exchange(FREE, me, Ordering::Acquire, Ordering::Relaxed).ok()?;
        self.meter.taken(me, Waits::NONE);
        Some(MutexGuard { mutex: self })
    }

    #[cfg(shuttle)]
    fn lock_slow(&self, me: u32) {
        while self.word.compare_exchange(FREE, me, Ordering::Acquire, Ordering::Relaxed).is_err() {
            // Lets others run first for certain; a `point` only may.
            shuttle::thread::yield_now();
        }
    }

    #[cfg(not(shuttle))]
    #[cold]
    fn lock_slow(&self, me: u32) {
        for _ in 0..100 {
            core::hint::spin_loop();
            if self.word.load(Ordering::Relaxed) == FREE
                && self
                    .word
                    .compare_exchange(FREE, me, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return;
            }
        }
        let mut since = super::now_ns();
        let mut waits_for = FREE;
        loop {
            let word = self.word.load(Ordering::Relaxed);
            // Others may sleep, too, so a thread that has slept leaves the mark.
            let next = if word == FREE { me | CONTENDED } else { word | CONTENDED };
            if word != next
                && self
                    .word
                    .compare_exchange(word, next, Ordering::Acquire, Ordering::Relaxed)
                    .is_err()
            {
                continue;
            }
            if word == FREE {
                return;
            }
            futex_wait(&self.word, next, Some(PATIENCE_NS));
            let owner = next & !CONTENDED;
            if owner != waits_for {
                (waits_for, since) = (owner, super::now_ns());
            } else if owner != SOMEBODY && super::now_ns() > since + PATIENCE_NS {
                owners().inspect(|o| (o.look_after)(owner));
            }
        }
    }

    fn release(&self) {
        let hold = self.meter.ends();
        if self.word.swap(FREE, Ordering::Release) & CONTENDED != 0 {
            futex_wake(&self.word, 1);
        }
        hold.count();
    }

    /// Exclusive access without locking, by exclusive borrow.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Forgets who held the lock. For the child after fork, where the holders do not exist.
    ///
    /// # Safety
    /// No guard may be alive in this process, and the value must be consistent.
    pub unsafe fn force_unlock(&self) {
        self.word.store(FREE, Ordering::Release);
    }
}

/// The right to use the value, until dropped.
pub struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
}

impl<T> MutexGuard<'_, T> {
    /// Lets the lock go while `f` runs. Anything known of the value is to be asked again
    /// afterwards.
    pub fn unlocked<R>(&mut self, f: impl FnOnce() -> R) -> R {
        /// Takes the lock again also if `f` panics: the guard will release it.
        struct Relock<'a, T>(&'a Mutex<T>);
        impl<T> Drop for Relock<'_, T> {
            fn drop(&mut self) {
                core::mem::forget(self.0.lock());
            }
        }
        self.mutex.release();
        let _relock = Relock(self.mutex);
        f()
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard exists, so the lock is ours.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard exists, so the lock is ours, and it is borrowed exclusively.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.mutex.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn many_threads_count_exactly() {
        let m = Arc::new(Mutex::new(0u64));
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let m = m.clone();
                std::thread::spawn(move || {
                    for _ in 0..20_000 {
                        *m.lock() += 1;
                    }
                })
            })
            .collect();
        for t in threads {
            t.join().unwrap();
        }
        assert_eq!(*m.lock(), 160_000);
    }

    #[test]
    fn a_lock_that_is_let_go_for_a_while_is_free_then_and_held_after() {
        let m = Mutex::new(1);
        let mut g = m.lock();
        let seen = g.unlocked(|| {
            *m.try_lock().expect("free") += 1;
            7
        });
        assert_eq!((seen, *g), (7, 2));
        assert!(m.try_lock().is_none());
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            g.unlocked(|| panic!("meant"))
        }));
        assert!(panicked.is_err() && m.try_lock().is_none());
        drop(g);
        assert!(m.try_lock().is_some());
    }

    #[test]
    fn try_lock_refuses_a_held_lock() {
        let m = Mutex::new(());
        let g = m.lock();
        assert!(m.try_lock().is_none());
        assert!(m.try_lock().is_none(), "it stays held");
        drop(g);
        assert!(m.try_lock().is_some());
    }
}
