//! The state's lock, and what is known of the state without it.
//!
//! Each fault asks how much memory the cache takes. That is not worth a lock that others wait for.
//! So a thread that lets the lock go leaves the figures behind: they are those of the state as it
//! was last seen.
//!
//! An object of the pool that a thread has pinned can be used after the lock, too.
//!
//! # Safety charter
//! The pools live in the state as long as the lock does, and nobody puts another one in the place
//! of one. That is what [`Pool::pin`] and [`Pool::place`] ask for.
#![allow(unsafe_code)]

use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicUsize, Ordering};

use super::state::{Attempt, Content, Owner, State};
use crate::pool::pin::{Pinned, Unfilled};
use crate::pool::{Handle, Pool};
use crate::store::Store;
use crate::sys::contention::Class;
use crate::sys::sync::{Mutex, MutexGuard};

/// The state, behind its lock.
pub struct StateLock<S: Store> {
    state: Mutex<State<S>>,
    glance: Glance,
}

/// Figures that need no lock.
#[derive(Default)]
struct Glance {
    frames_bytes: AtomicUsize,
    tables_bytes: AtomicUsize,
    pool_bytes: AtomicUsize,
}

/// The right to use the state, until dropped.
pub struct StateGuard<'a, S: Store> {
    state: MutexGuard<'a, State<S>>,
    glance: &'a Glance,
}

impl<S: Store> StateLock<S> {
    pub fn new(state: State<S>) -> Self {
        let lock =
            StateLock { state: Mutex::of(Class::CacheState, state), glance: Glance::default() };
        drop(lock.lock());
        lock
    }

    pub fn lock(&self) -> StateGuard<'_, S> {
        StateGuard { state: self.state.lock(), glance: &self.glance }
    }

    /// All memory of the state.
    pub fn memory_bytes(&self) -> usize {
        self.glance.frames_bytes.load(Ordering::Relaxed) + self.tables_bytes()
    }

    /// As [`State::tables_bytes`].
    pub fn tables_bytes(&self) -> usize {
        self.glance.tables_bytes.load(Ordering::Relaxed)
    }

    /// Memory of the pool without kept copies: its limit is for this.
    pub fn pool_bytes(&self) -> usize {
        self.glance.pool_bytes.load(Ordering::Relaxed)
    }
}

impl<'a, S: Store> StateGuard<'a, S> {
    /// Pins an object, if its pool can.
    pub fn pin(&self, pool: u8, handle: Handle) -> Option<Pinned<'a>> {
        // SAFETY: the pools live for 'a: see the charter.
        unsafe { self.state.pools[usize::from(pool)].pin(handle) }
    }

    /// As [`State::take`], but the bytes of an object of the pool come later, if its pool can do
    /// so.
    pub fn take_unfilled(
        &mut self,
        owner: Owner,
        content: Content<'_>,
    ) -> (Attempt, Option<Unfilled<'a>>) {
        let mut unfilled = None;
        let mut place = |pool: &mut Pool, object: &[u8]| {
            // SAFETY: as in `pin`.
            match unsafe { pool.place(object.len()) } {
                Some(placed) => placed.map(|(handle, object)| {
                    unfilled = Some(object);
                    handle
                }),
                None => pool.store(object),
            }
        };
        let attempt = self.state.take_by(&mut place, owner, content);
        (attempt, unfilled)
    }
}

impl<S: Store> Deref for StateGuard<'_, S> {
    type Target = State<S>;

    fn deref(&self) -> &State<S> {
        &self.state
    }
}

impl<S: Store> DerefMut for StateGuard<'_, S> {
    fn deref_mut(&mut self) -> &mut State<S> {
        &mut self.state
    }
}

impl<S: Store> Drop for StateGuard<'_, S> {
    // The lock is released after this, when the guard in the field is dropped.
    fn drop(&mut self) {
        let (s, glance) = (&self.state, self.glance);
        glance.frames_bytes.store(s.frames_bytes(), Ordering::Relaxed);
        glance.tables_bytes.store(s.tables_bytes(), Ordering::Relaxed);
        glance.pool_bytes.store(s.limited_pool_bytes(), Ordering::Relaxed);
    }
}
