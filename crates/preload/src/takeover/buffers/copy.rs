//! Arguments and results copied between memory of ours and the program's, which the kernel checks.
//!
//! # Safety charter
//! An address of the program's is touched by the kernel, or where it was found mapped; of the
//! caller's live stack frames also directly.
#![allow(unsafe_code)]

use core::hint::black_box;
use core::sync::atomic::Ordering;

use uzswap::region::page_floor;
use uzswap::sys::{Errno, nr};

use super::super::thread::ThreadBlock;
use super::super::{ACTIVE, call};
use super::hold::{Holder, with_own_words};
use crate::calls::walk::{Kind, Visit};

/// Copies a program's argument in, as the kernel would: false where the address is bad.
pub(in crate::takeover) fn copy_in(t: &'static ThreadBlock, addr: usize, into: &mut [u8]) -> bool {
    let here = 0u8;
    let mut holder = Holder { t, sp: &raw const here as usize };
    let mark = t.holds().mark();
    if ACTIVE.load(Ordering::Acquire) {
        holder.hold(addr, into.len(), Kind::In);
    }
    let ok = addr.checked_add(into.len()).is_some() && holder.read(addr, into);
    t.holds().pop_to(mark);
    ok
}

/// Copies a result out to the program: false where the address is bad.
pub(in crate::takeover) fn copy_out(t: &'static ThreadBlock, addr: usize, from: &[u8]) -> bool {
    let here = 0u8;
    let sp = &raw const here as usize;
    if addr.wrapping_sub(sp) < 1024 && from.len() <= 1024 {
        // SAFETY: part of the caller's live stack frames.
        unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), addr as *mut u8, from.len()) };
        return true;
    }
    let mark = t.holds().mark();
    if ACTIVE.load(Ordering::Acquire) && addr.checked_add(from.len()).is_some() {
        Holder { t, sp }.hold(addr, from.len(), Kind::Out);
    }
    let r = transfer(nr::PROCESS_VM_WRITEV, from.as_ptr() as usize, addr, from.len());
    let is_refused = r < 0 && r != Errno::EFAULT.as_return();
    if is_refused {
        // Refused by a sandbox: write as the program would.
        // SAFETY: the program's own address; a bad one faults in it.
        unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), addr as *mut u8, from.len()) };
    }
    t.holds().pop_to(mark);
    // Where memory ends in the middle, the kernel copies as far as it goes and says how much.
    is_refused || r == from.len() as isize
}

/// Whether a byte of the program's memory can be read.
pub(in crate::takeover) fn is_readable(addr: usize) -> bool {
    read_program(addr, &mut [0])
}

/// Copies program memory that may be unmapped: the kernel checks.
pub(super) fn read_program(addr: usize, into: &mut [u8]) -> bool {
    let r = transfer(nr::PROCESS_VM_READV, into.as_mut_ptr() as usize, addr, into.len());
    if r == into.len() as isize {
        return true;
    }
    if r == Errno::EFAULT.as_return() || r >= 0 {
        return false;
    }
    // process_vm_readv is refused by some sandboxes. Then ask whether the pages are mapped at all.
    let (first, last) = (page_floor(addr), page_floor(addr + into.len() - 1));
    let mapped = |p: usize| uzswap::sys::program::mincore(p, &mut [0u8]).is_ok();
    if !mapped(first) || !mapped(last) {
        return false;
    }
    // SAFETY: mapped a moment ago; memory without read access faults as it would in the program.
    unsafe { core::ptr::copy_nonoverlapping(addr as *const u8, into.as_mut_ptr(), into.len()) };
    true
}

/// Has the kernel copy between memory of ours and the program's, which it checks.
fn transfer(number: usize, ours: usize, theirs: usize, len: usize) -> isize {
    let pid = uzswap::sys::getpid();
    with_own_words(|| {
        for at in [ours, ours + len.max(1) - 1] {
            // SAFETY: a byte of ours: its page is there afterwards, to be written where the kernel
            // will write.
            unsafe {
                let byte = (at as *const u8).read_volatile();
                if number == nr::PROCESS_VM_READV {
                    (at as *mut u8).write_volatile(byte);
                }
            }
        }
        let (local, remote) = black_box(([ours, len], [theirs, len]));
        call!(number, pid, local.as_ptr(), 1, remote.as_ptr(), 1, 0)
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::block;
    use super::*;
    use uzswap::sys::PAGE_SIZE;
    use uzswap::sys::mem::{PROT_READ, PROT_WRITE, map_anonymous};

    /// The end of a page behind which nothing is mapped.
    fn end_of_memory() -> usize {
        let at = map_anonymous(2 * PAGE_SIZE, PROT_READ | PROT_WRITE).unwrap();
        assert_eq!(call!(nr::MPROTECT, at + PAGE_SIZE, PAGE_SIZE, 0), 0);
        at + PAGE_SIZE
    }

    #[test]
    fn an_answer_that_fits_in_part_is_not_given() {
        let (t, end) = (block(), end_of_memory());
        assert!(copy_out(t, end - 16, &[7; 16]));
        assert!(!copy_out(t, end - 8, &[8; 16]), "the second half has no place");
        assert!(!copy_out(t, end, &[8; 16]));
        let mut bytes = [0; 16];
        assert!(copy_in(t, end - 16, &mut bytes) && bytes[..8] == [7; 8]);
        assert!(!copy_in(t, end - 8, &mut bytes));
        t.give_back();
    }
}
