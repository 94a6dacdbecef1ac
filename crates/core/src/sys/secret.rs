//! Secrets in memory: each on a page of its own that no core dump has, wiped when its last owner
//! goes.
//!
//! A value that is moved or copied leaves its bytes behind. So a key is made where it stays, and
//! only the right to use it is handed around.
//!
//! # Safety charter
//! The page is mapped by `new` and unmapped by the last owner, which the counter on the page knows.
//! The value is written before anybody else has the address, and only read after that.
#![allow(unsafe_code)]

use core::ops::Deref;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering, compiler_fence};

use super::mem::{PROT_READ, PROT_WRITE, map_anonymous, unmap_anonymous};
use super::{PAGE_SIZE, Result};

/// Bytes of stack on which making a secret may have left parts of it: several times as much as a
/// key with all its round keys takes, and little beside any stack that this runs on.
const STACK_BYTES: usize = 8 << 10;

struct Held<T> {
    owners: AtomicUsize,
    value: T,
}

/// A secret, and a share of the right to use it.
pub struct Secret<T> {
    at: NonNull<Held<T>>,
}

// SAFETY: owners share the value by reference and drop nothing of it but its memory.
unsafe impl<T: Send + Sync> Send for Secret<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Secret<T> {}

impl<T> Secret<T> {
    /// Keeps the secret that `make` gives. The part of the stack where it was is wiped.
    pub fn new(make: impl FnOnce() -> Result<T>) -> Result<Secret<T>> {
        const {
            assert!(size_of::<Held<T>>() <= PAGE_SIZE && !core::mem::needs_drop::<T>());
        }
        let page = map_anonymous(PAGE_SIZE, PROT_READ | PROT_WRITE)?;
        let at = NonNull::new(page as *mut Held<T>).expect("the kernel maps nothing at zero");
        let made = put(at, make);
        wipe_stack();
        // From here on the page goes with its owner, filled or not.
        let secret = Secret { at };
        made.map(|()| secret)
    }
}

/// Fills the page, in a frame of its own, of which nothing is left when the stack is wiped.
#[inline(never)]
fn put<T>(at: NonNull<Held<T>>, make: impl FnOnce() -> Result<T>) -> Result<()> {
    // SAFETY: a page of ours, large enough, that nobody else knows. All-zero it has no owner yet.
    unsafe { (&raw mut (*at.as_ptr()).owners).write(AtomicUsize::new(1)) };
    let value = make()?;
    // SAFETY: as above.
    unsafe { (&raw mut (*at.as_ptr()).value).write(value) };
    Ok(())
}

/// Writes over the stack below its caller.
#[inline(never)]
fn wipe_stack() {
    let mut space = core::mem::MaybeUninit::<[u8; STACK_BYTES]>::uninit();
    wipe(space.as_mut_ptr().cast(), STACK_BYTES);
}

/// Writes zeros that no compiler leaves out.
fn wipe(at: *mut u64, bytes: usize) {
    for i in 0..bytes / size_of::<u64>() {
        // SAFETY: the callers' memory, of that length; any alignment of a word is allowed here.
        unsafe { at.byte_add(i * size_of::<u64>()).cast::<[u8; 8]>().write_volatile([0; 8]) };
    }
    compiler_fence(Ordering::SeqCst);
}

impl<T> Clone for Secret<T> {
    fn clone(&self) -> Self {
        // SAFETY: the page lives as long as any owner.
        unsafe { &self.at.as_ref().owners }.fetch_add(1, Ordering::Relaxed);
        Secret { at: self.at }
    }
}

impl<T> Deref for Secret<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: written before the first owner was handed out, and there as long as any is.
        unsafe { &self.at.as_ref().value }
    }
}

impl<T> Drop for Secret<T> {
    fn drop(&mut self) {
        // SAFETY: the page lives until the last owner has gone, which is the one that counts to
        // zero.
        if unsafe { &self.at.as_ref().owners }.fetch_sub(1, Ordering::AcqRel) == 1 {
            wipe(self.at.as_ptr().cast(), PAGE_SIZE);
            // SAFETY: mapped by `new` for this, and nobody has it any more.
            unsafe { unmap_anonymous(self.at.as_ptr() as usize, PAGE_SIZE) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::Errno;

    /// How many mappings begin at an address.
    fn mappings_at(addr: usize) -> usize {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|l| l.starts_with(&format!("{addr:x}-"))).count()
    }

    #[test]
    fn a_secret_is_on_a_page_of_its_own_that_goes_with_its_last_owner() {
        let a = Secret::new(|| Ok([0x5a5a_1234_u64; 60])).unwrap();
        let page = a.at.as_ptr() as usize;
        assert!(page.is_multiple_of(PAGE_SIZE) && crate::sys::place::is_here(page));
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let of_page = |l: &&str| {
            let Some((from, to)) = l.split(' ').next().and_then(|r| r.split_once('-')) else {
                return false;
            };
            let hex = |s| usize::from_str_radix(s, 16).unwrap_or(0);
            hex(from) <= page && page < hex(to)
        };
        let flags =
            smaps.lines().skip_while(|l| !of_page(l)).find(|l| l.starts_with("VmFlags:")).unwrap();
        assert!(flags.split(' ').any(|f| f == "dd"), "{flags}");
        let b = a.clone();
        drop(a);
        assert!(b.iter().all(|w| *w == 0x5a5a_1234));
        drop(b);
        assert_eq!(mappings_at(page), 0);
        assert_eq!(Secret::<u64>::new(|| Err(Errno::EINVAL)).err(), Some(Errno::EINVAL));
    }

    #[test]
    fn what_is_wiped_is_zero() {
        let mut words = [7u64; 16];
        wipe(words.as_mut_ptr(), size_of_val(&words));
        assert_eq!(words, [0; 16]);
    }
}
