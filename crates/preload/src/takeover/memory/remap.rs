//! mremap: memory that the program moves or resizes.
//!
//! Memory that stays at its place stays under the mechanism. Memory that moves is taken off it
//! first, and brought under it again where it has come to lie, or where it was if the call fails.

use uzswap::pager::Locked;
use uzswap::region::page_ceil;
use uzswap::sys::{Errno, PAGE_SIZE, check, nr, program};

use super::super::{Args, PAGER, file_memory, raw, reserved};
use super::growth::grown;
use super::{MREMAP_FIXED, note_failed_over};

const MREMAP_MAYMOVE: usize = 1;
const MREMAP_DONTUNMAP: usize = 4;

pub(super) fn mremap(a: Args) -> isize {
    let [old, old_len, new_len, flags, target, _] = a;
    let (old_len, new_len) = (page_ceil(old_len), page_ceil(new_len));
    let mut s = PAGER.lock();
    // The kernel refuses these at once, and the mechanism has no such ranges.
    let Some(old_end) = old.checked_add(old_len) else { return raw(nr::MREMAP, a) };
    let managed = PAGER.ranges.find(old);
    if !old.is_multiple_of(PAGE_SIZE) || managed.is_some() && old_len == 0 {
        return raw(nr::MREMAP, a);
    }
    let is_move = flags & MREMAP_FIXED != 0 && old_len == new_len;
    if is_move && !moves_as_one(old, old_end) {
        return Errno::EFAULT.as_return();
    }
    // Memory that stays at its place stays under the mechanism: other threads may use it meanwhile.
    let may_stay = managed.is_some() && flags & (MREMAP_FIXED | MREMAP_DONTUNMAP) == 0;
    if may_stay && PAGER.active().is_some_and(|x| !x.mechanism.hides()) {
        let r = raw(nr::MREMAP, [old, old_len, new_len, flags & !MREMAP_MAYMOVE, target, 0]);
        if check(r).is_ok() {
            return moved(&mut s, a, old);
        }
        if flags & MREMAP_MAYMOVE == 0 || !may_move_after(r) {
            return r;
        }
    }
    if managed.is_some() && PAGER.prepare_move(old, old_end).is_err() {
        return Errno::ENOMEM.as_return();
    }
    let r = raw(nr::MREMAP, a);
    let Ok(new) = check(r) else {
        if flags & MREMAP_FIXED != 0 {
            note_failed_over(&mut s, target, target.saturating_add(new_len));
            // A mapping that is to become smaller does so first.
            note_failed_over(&mut s, old + new_len.min(old_len), old_end);
        }
        PAGER.after_move(old, old_end);
        return r;
    };
    if flags & MREMAP_FIXED != 0 {
        debug_assert!(new == target);
        PAGER.note_unmapped(&mut s, new, new + new_len);
        // Over managed memory goes a mapping of a file as well, and over one of a file any memory.
        file_memory::forget(&s, new, new + new_len);
        if managed.is_none() && file_memory::overlaps(old, old_len) {
            file_moved(&s, a, new);
        }
    }
    moved(&mut s, a, new)
}

/// Whether a call that could not resize memory at its place may do so at another. A wrong argument
/// (EINVAL, EFAULT), a seal (EPERM) or a limit on locked memory (EAGAIN) is in the way wherever the
/// memory is to go. Taken off the mechanism for such a call, pages that are out would read as zeros
/// meanwhile.
fn may_move_after(r: isize) -> bool {
    r == Errno::ENOMEM.as_return()
}

/// Whether a move of `[old, end)` moves all of it. Newer kernels (6.17) move several mappings by
/// one call, leave what lies where the holes come to be, and stop at a mapping that cannot go
/// along. Others refuse that.
fn moves_as_one(old: usize, end: usize) -> bool {
    if PAGER.ranges.overlaps(old, end) { PAGER.ranges.cover(old, end) } else { !has_hole(old, end) }
}

/// Whether there is no mapping somewhere in `[start, end)`.
pub(super) fn has_hole(start: usize, end: usize) -> bool {
    /// Pages that the kernel is asked for at a time.
    const PAGES: usize = 512;
    let mut there = [0u8; PAGES];
    (start..end).step_by(PAGES * PAGE_SIZE).any(|at| {
        let pages = ((end - at) / PAGE_SIZE).min(PAGES);
        program::mincore(at, &mut there[..pages]) == Err(Errno::ENOMEM)
    })
}

/// Notes that the kernel has moved or resized the memory, which is at `new`.
fn moved(s: &mut Locked<'_>, a: Args, new: usize) -> isize {
    let [old, old_len, new_len, flags, ..] = a;
    let (old_len, new_len) = (page_ceil(old_len), page_ceil(new_len));
    PAGER.note_moved(s, old, old_len, new, new_len, flags & MREMAP_DONTUNMAP != 0);
    grown(s);
    new as isize
}

/// Moves or resizes a private mapping of a file, which stays one (mremap).
pub(super) fn remap_file(a: Args) -> isize {
    let mut s = PAGER.enter();
    let r = raw(nr::MREMAP, a);
    if let Ok(start) = check(r) {
        file_moved(&s, a, start);
        grown(&mut s);
    }
    r
}

/// Notes that the kernel has moved or resized a private mapping of a file, which is at `new`.
fn file_moved(s: &Locked<'_>, a: Args, new: usize) {
    file_memory::forget(s, a[0], a[0] + page_ceil(a[1]));
    reserved::note_file(s, new, new + page_ceil(a[2]));
}

#[cfg(test)]
mod tests {
    use super::super::super::call;
    use super::super::{munmap, overlaps};
    use super::*;
    use uzswap::region::RangeFlags;
    use uzswap::sys::mem::{PROT_READ, PROT_WRITE};

    #[test]
    fn memory_that_the_kernel_will_not_move_either_is_not_made_ready_for_that() {
        const LEN: usize = 2 * PAGE_SIZE;
        let at = uzswap::sys::mem::map_anonymous(2 * LEN, PROT_READ | PROT_WRITE).unwrap();
        // Another mapping follows.
        assert_eq!(call!(nr::MPROTECT, at + LEN, LEN, PROT_READ), 0);
        let resize = |from, to| call!(nr::MREMAP, at, from, to, 0);
        assert!(may_move_after(resize(LEN, 2 * LEN)), "it has no room here");
        assert!(!may_move_after(resize(2 * LEN, 3 * LEN)), "two mappings");
        assert!(!may_move_after(resize(LEN, 0)), "nothing would be left");
        assert_eq!(call!(nr::MUNMAP, at, 2 * LEN), 0);
    }

    #[test]
    fn mappings_of_files_count_where_they_are_whatever_they_were_moved_over() {
        const LEN: usize = 2 * PAGE_SIZE;
        let new = || {
            let at = uzswap::sys::mem::map_anonymous(LEN, PROT_READ | PROT_WRITE).unwrap();
            move |is_managed| {
                let mut s = PAGER.enter();
                match is_managed {
                    true => PAGER.note_mapped(&mut s, at, at + LEN, 3, RangeFlags::NONE),
                    false => reserved::note_file(&s, at, at + LEN),
                }
                at
            }
        };
        let (file, memory, other) = (new()(false), new()(true), new()(true));
        let move_over = |from, to| mremap([from, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, to, 0]);
        assert_eq!(move_over(file, memory), memory as isize);
        assert!(!overlaps(memory, LEN) && file_memory::overlaps(memory, LEN));
        assert!(!file_memory::overlaps(file, LEN), "nothing is there any more");
        assert_eq!(move_over(other, memory), memory as isize);
        assert!(overlaps(memory, LEN) && !file_memory::overlaps(memory, LEN));
        assert_eq!(munmap([memory, LEN, 0, 0, 0, 0]), 0);
        assert!(!overlaps(memory, LEN));
    }

    #[test]
    fn memory_that_is_managed_in_part_and_memory_with_holes_is_not_moved() {
        const LEN: usize = 4 * PAGE_SIZE;
        let new = || uzswap::sys::mem::map_anonymous(LEN, PROT_READ | PROT_WRITE).unwrap();
        let note = |at: usize, pages: usize| {
            let end = at + pages * PAGE_SIZE;
            PAGER.note_mapped(&mut PAGER.enter(), at, end, 3, RangeFlags::NONE);
        };
        let (old, to) = (new(), new());
        note(old, 2);
        note(to, 4);
        let remap = |len| mremap([old, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, to, 0]);
        assert_eq!(remap(LEN), Errno::EFAULT.as_return(), "two pages are not managed");
        assert!(overlaps(old, PAGE_SIZE) && !overlaps(old + 2 * PAGE_SIZE, PAGE_SIZE));
        assert_eq!(call!(nr::MUNMAP, old + 2 * PAGE_SIZE, PAGE_SIZE), 0);
        PAGER.note_unmapped(&mut PAGER.enter(), old, old + LEN);
        assert_eq!(remap(LEN), Errno::EFAULT.as_return(), "the third page is a hole");
        assert!(overlaps(to, LEN));
        assert_eq!(remap(2 * PAGE_SIZE), to as isize);
        assert!(!overlaps(to, 2 * PAGE_SIZE) && overlaps(to + 2 * PAGE_SIZE, PAGE_SIZE));
        assert_eq!(munmap([to, LEN, 0, 0, 0, 0]), 0);
    }
}
