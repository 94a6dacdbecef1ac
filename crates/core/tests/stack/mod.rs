//! Measures how much stack something takes: paints the stack below, and looks how far the paint was
//! overwritten.
#![allow(unsafe_code)]

const PAINT: u8 = 0xc7;
const PAINTED_BYTES: usize = 192 << 10;

/// The stack that `f` takes below its caller, in bytes. To be called on a thread with enough of it.
#[inline(never)]
pub fn stack_bytes_of(mut f: impl FnMut()) -> usize {
    let sp: usize;
    // SAFETY: reads a register.
    unsafe { std::arch::asm!("mov {}, rsp", out(reg) sp, options(nomem, nostack)) };
    // Below the red zone of this frame, which has no callee while it paints (`write_volatile` is
    // inlined or takes a few words, which is far less than what is asserted).
    let (low, high) = (sp - PAINTED_BYTES, sp - 512);
    for at in (low..high).step_by(8) {
        // SAFETY: unused stack of this thread, which has more of it.
        unsafe { std::ptr::write_volatile(at as *mut u64, u64::from_ne_bytes([PAINT; 8])) };
    }
    f();
    // SAFETY: as above.
    let touched =
        (low..high).find(|&at| unsafe { std::ptr::read_volatile(at as *const u8) } != PAINT);
    touched.map_or(512, |at| sp - at)
}

/// Runs `f` on a new thread, with a stack large enough to measure on.
pub fn on_a_fresh_stack<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|s| {
        std::thread::Builder::new().stack_size(1 << 20).spawn_scoped(s, f).unwrap().join().unwrap()
    })
}
