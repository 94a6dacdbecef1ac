//! The routes of system calls: one for each number, looked up by every patched call.

use core::sync::atomic::AtomicU8;

/// Numbers that have a route of their own; larger ones run inline.
pub const ROUTE_COUNT: usize = 512;

/// The instruction runs inline, without a hook.
pub const ROUTE_INLINE: u8 = 0;
/// The hook is called with all vector state saved (some 90 ns).
pub const ROUTE_HOOK: u8 = 1;
/// The hook is called with xmm0-15 saved, nothing more (some 10 ns). Rust compiles baseline x86-64
/// code here, which touches no more than these, and `mem.rs` sees to it that it calls nothing that
/// does. Floating point, codecs and all other code that is compiled for or dispatches on newer
/// processors run under [`call_on_stack_saving_vectors`](super::call_on_stack_saving_vectors).
pub const ROUTE_LIGHT_HOOK: u8 = 2;

/// One byte per system-call number, a `ROUTE_`, read by every patched call.
pub static ROUTE_TABLE: [AtomicU8; ROUTE_COUNT] = [const { AtomicU8::new(0) }; ROUTE_COUNT];
