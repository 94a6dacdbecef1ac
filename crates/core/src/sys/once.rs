//! A value that is set once and read by anybody afterwards, without a lock and without waiting.
//!
//! # Safety charter
//! `state` goes from EMPTY to WRITING to READY and never back while shared. Only the thread that
//! made the first step writes the value. Nobody reads it before the second step (release, seen by
//! acquire). That is the argument for `Sync`. The value is shared, and may be dropped by another
//! thread: `T: Send + Sync`.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU8, Ordering};

const EMPTY: u8 = 0;
const WRITING: u8 = 1;
const READY: u8 = 2;

/// See the module.
pub struct Once<T> {
    state: AtomicU8,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: see the charter.
unsafe impl<T: Send + Sync> Sync for Once<T> {}

impl<T> Once<T> {
    pub const fn new() -> Self {
        Once { state: AtomicU8::new(EMPTY), value: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    /// The value, if it was set.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        let ready = self.state.load(Ordering::Acquire) == READY;
        // SAFETY: READY: written before, and never again while borrowed.
        ready.then(|| unsafe { (*self.value.get()).assume_init_ref() })
    }

    /// Sets the value; gives it back if there is one, or another thread is about to set one.
    pub fn set(&self, value: T) -> Result<(), T> {
        if self
            .state
            .compare_exchange(EMPTY, WRITING, Ordering::Relaxed, Ordering::Relaxed)
            .is_err()
        {
            return Err(value);
        }
        // SAFETY: this thread made the step to WRITING, so no other writes, and none reads yet.
        unsafe { (*self.value.get()).write(value) };
        self.state.store(READY, Ordering::Release);
        Ok(())
    }
}

impl<T> Default for Once<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for Once<T> {
    fn drop(&mut self) {
        if *self.state.get_mut() == READY {
            // SAFETY: READY: the value is there, and nobody can borrow it any more.
            unsafe { self.value.get_mut().assume_init_drop() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn one_setter_wins_and_everybody_sees_its_value() {
        for _ in 0..200 {
            let once = Once::new();
            let won: usize = std::thread::scope(|s| {
                let threads: Vec<_> = (0..4u64)
                    .map(|i| {
                        let once = &once;
                        s.spawn(move || {
                            let won = once.set(vec![i; 100]).is_ok();
                            if let Some(v) = once.get() {
                                assert!(v.iter().all(|x| *x == v[0]));
                            }
                            usize::from(won)
                        })
                    })
                    .collect();
                threads.into_iter().map(|t| t.join().unwrap()).sum()
            });
            assert_eq!(won, 1);
            assert_eq!(once.get().unwrap().len(), 100);
        }
    }

    #[test]
    fn the_value_is_dropped_once() {
        let value = Arc::new(());
        let once = Once::new();
        assert!(once.get().is_none());
        once.set(value.clone()).unwrap();
        assert!(once.set(value.clone()).is_err());
        assert_eq!(Arc::strong_count(&value), 2);
        drop(once);
        assert_eq!(Arc::strong_count(&value), 1);
        drop(Once::<Arc<()>>::new());
    }
}
