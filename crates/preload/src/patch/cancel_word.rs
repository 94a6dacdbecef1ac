//! The word that cancels a thread, found from the frame of a call.
//!
//! libc makes all calls that pthread_cancel may end at one place, and keeps the address of the word
//! on the stack while it does: `takeover/cancel.rs` shows the sequence, and what the word is for.
//! The sequence is patched like others, so the place is known by the bytes around the jump and by
//! those that have moved into the trampoline.
//!
//! # Safety charter
//! Bytes are read from where the call returns to, and backwards within the page that they are known
//! to lie in; then from the trampoline to which the jump there leads. The word is read from the
//! stack that libc made the call on.
#![allow(unsafe_code)]

use uzswap::sys::PAGE_SIZE;

use super::frame::HookFrame;

/// Where libc keeps the word that cancels the calling thread, if the call of this frame is one that
/// ends by it; else 0. Such calls are made at one place of musl, and of glibc from 2.41 on:
/// `takeover/cancel.rs` shows it.
pub fn cancel_word(f: &HookFrame) -> usize {
    /// `mov r9, [rsp + 16]`, which stays, and `mov [rsp + 8], r11`, which is in the trampoline.
    const STAYS: [u8; 5] = [0x4c, 0x8b, 0x4c, 0x24, 0x10];
    const MOVED: [u8; 5] = [0x4c, 0x89, 0x5c, 0x24, 0x08];
    const STUB: [u8; 6] = [0xff, 0x25, 0, 0, 0, 0];
    const RET: u8 = 0xc3;
    const JMP: u8 = 0xe9;
    let next = f.ret as usize;
    let jump = next - 2 - MOVED.len();
    // SAFETY: the call returns to `next`, and before its instruction lies at least a jump, or the
    // code of a trampoline.
    let byte = |at: usize| unsafe { (at as *const u8).read() };
    if byte(next) != RET
        || byte(jump) != JMP
        || (jump - STAYS.len()) / PAGE_SIZE != jump / PAGE_SIZE
    {
        return 0;
    }
    let is_at = |at: usize, code: &[u8]| (0..code.len()).all(|i| byte(at + i) == code[i]);
    if !is_at(jump - STAYS.len(), &STAYS) {
        return 0;
    }
    // Nothing before the jump was overwritten, so it is one of ours, to a trampoline or to a stub.
    let distance = i32::from_le_bytes([1, 2, 3, 4].map(|i| byte(jump + i)));
    let mut trampoline = (next - 2).wrapping_add(distance as usize);
    if is_at(trampoline, &STUB) {
        // SAFETY: a stub of ours: the trampoline's address follows the instruction.
        trampoline = unsafe { ((trampoline + STUB.len()) as *const usize).read_unaligned() };
    }
    if !is_at(trampoline, &MOVED) {
        return 0;
    }
    // SAFETY: the word that libc has written there a moment ago.
    unsafe { ((f.rsp as usize + 8) as *const usize).read() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_of_a_call_that_can_be_cancelled_is_found() {
        let mut code = vec![0x90u8; 2 * PAGE_SIZE];
        let at = PAGE_SIZE - code.as_ptr() as usize % PAGE_SIZE;
        // The end of the sequence, a stub, and two trampolines: libc's, and another.
        let head = [0x4c, 0x8b, 0x4c, 0x24, 0x10, 0xe9];
        code[at..at + 6].copy_from_slice(&head);
        code[at + 10..at + 13].copy_from_slice(&[0x0f, 0x05, 0xc3]);
        code[at + 64..at + 70].copy_from_slice(&[0xff, 0x25, 0, 0, 0, 0]);
        code[at + 96..at + 101].copy_from_slice(&[0x4c, 0x89, 0x5c, 0x24, 0x08]);
        let start = code.as_ptr() as usize + at;
        code[at + 70..at + 78].copy_from_slice(&(start + 96).to_le_bytes());
        let stack = [1usize, 2, 3];
        // SAFETY: a frame is plain integers and pointers that may be null.
        let mut f: HookFrame = unsafe { core::mem::zeroed() };
        (f.ret, f.rsp) = (start as u64 + 12, stack.as_ptr() as u64);
        for (target, word) in [(96, 2), (64, 2), (112, 0)] {
            let distance: i32 = target - 10;
            code[at + 6..at + 10].copy_from_slice(&distance.to_le_bytes());
            assert_eq!(cancel_word(&f), word, "{target}");
        }
        code[at] = 0x90;
        assert_eq!(cancel_word(&f), 0);
    }
}
