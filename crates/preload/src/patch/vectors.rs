//! Vector state: how this processor saves it around a hook, and how much there is.
//!
//! Around code that may use all vectors of the processor, all that the kernel has enabled are
//! saved, by `xsavec` or `xsave`, or by `fxsave` where there are no others than SSE's. Here that is
//! measured, once; the instructions themselves are `entry.rs`'s, which reads the outcome from the
//! statics.
//!
//! # Safety charter
//! The register that says what is enabled is read where the processor says that there is one.
#![allow(unsafe_code)]

use core::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// x87, SSE, AVX, and the three parts of AVX-512. Nothing else can be touched by compiled Rust
/// here.
const WANTED_STATE: u32 = 0b1110_0111;

const BY_FXSAVE: u32 = 0;
pub(super) const BY_XSAVE: u32 = 1;
const BY_XSAVEC: u32 = 2;

pub(super) static SAVE_METHOD: AtomicU32 = AtomicU32::new(BY_FXSAVE);
pub(super) static SAVE_MASK: AtomicU32 = AtomicU32::new(0);
pub(super) static SAVE_BYTES: AtomicU64 = AtomicU64::new(512);

/// Bytes of vector state saved around a hook.
pub fn vector_state_bytes() -> usize {
    SAVE_BYTES.load(Ordering::Relaxed) as usize
}

pub(super) fn measure_vector_state() {
    let osxsave = __cpuid(1).ecx & (1 << 27) != 0;
    if !osxsave {
        return;
    }
    // SAFETY: OSXSAVE says that the instruction exists and the kernel has enabled it.
    let enabled = unsafe { xcr0() } as u32;
    let mask = enabled & WANTED_STATE;
    let compact = __cpuid_count(0xd, 1).eax & 2 != 0;
    let mut bytes = 512 + 64;
    for component in 2..8 {
        if mask & (1 << component) == 0 {
            continue;
        }
        let leaf = __cpuid_count(0xd, component);
        if compact {
            if leaf.ecx & 2 != 0 {
                bytes = u64::next_multiple_of(bytes, 64);
            }
            bytes += leaf.eax as u64;
        } else {
            bytes = bytes.max(leaf.ebx as u64 + leaf.eax as u64);
        }
    }
    SAVE_BYTES.store(bytes, Ordering::Relaxed);
    SAVE_MASK.store(mask, Ordering::Relaxed);
    SAVE_METHOD.store(if compact { BY_XSAVEC } else { BY_XSAVE }, Ordering::Relaxed);
}

/// Uses an older way to save vectors than this machine has, for tests: 0 `fxsave` (SSE only), 1
/// `xsave`.
#[doc(hidden)]
pub fn force_save_method(method: u32) {
    if method < SAVE_METHOD.load(Ordering::Relaxed) {
        // The standard layout is the larger one: 2 688 bytes hold everything up to AVX-512.
        SAVE_BYTES.store(if method == BY_FXSAVE { 512 } else { 2688 }, Ordering::Relaxed);
        SAVE_METHOD.store(method, Ordering::Relaxed);
    }
}

#[target_feature(enable = "xsave")]
unsafe fn xcr0() -> u64 {
    // SAFETY: the caller has checked OSXSAVE.
    unsafe { _xgetbv(0) }
}
