//! The run that this process belongs to: facts that `start` notes once, and all others read.
//!
//! No lock is before them: a vfork child and a signal handler that execs read them on top of
//! anything. They lie in the process's own memory, since they decide what is executed and opened.
#![allow(unsafe_code)]
// # Safety charter
// Each pointer is null, or to a box that was leaked: it is never freed and never changes again.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::boxed::Box;
use std::vec::Vec;

use uzswap::control::{Settings, Slot};

/// The settings of the run: set once by `start`.
static SETTINGS: AtomicPtr<Settings> = AtomicPtr::new(core::ptr::null_mut());

/// The path by which the loader found this library: the entry of LD_PRELOAD, which loads it into
/// the programs that this one executes.
static PRELOAD: AtomicPtr<Vec<u8>> = AtomicPtr::new(core::ptr::null_mut());

/// The settings of the run.
pub fn settings() -> &'static Settings {
    // SAFETY: stored once, before any hook runs, and never freed.
    unsafe { &*SETTINGS.load(Ordering::Acquire) }
}

/// Notes the settings, before any hook runs.
pub fn set_settings(settings: Settings) {
    SETTINGS.store(Box::leak(Box::new(settings)), Ordering::Release);
}

/// The entry of LD_PRELOAD by which the library came; empty: it came otherwise.
pub fn preload() -> &'static [u8] {
    // SAFETY: stored once, before any hook runs, and never freed.
    unsafe { PRELOAD.load(Ordering::Acquire).as_ref() }.map_or(&[], |path| path.as_slice())
}

/// Notes by which path the library is loaded into other programs.
pub fn set_preload(path: Vec<u8>) {
    PRELOAD.store(Box::leak(Box::new(path)), Ordering::Release);
}

/// A slot outside the tree, for a process that found none: its counters are lost, nothing else.
pub fn spare_slot() -> &'static Slot {
    struct Spare(UnsafeCell<MaybeUninit<Slot>>);
    // SAFETY: a slot consists of atomics.
    unsafe impl Sync for Spare {}
    static SPARE: Spare = Spare(UnsafeCell::new(MaybeUninit::zeroed()));
    // SAFETY: all zero is a slot.
    unsafe { (*SPARE.0.get()).assume_init_ref() }
}
