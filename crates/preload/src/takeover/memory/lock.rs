//! Memory that the program locks (mlock and its kin): brought in where the call says so, and never
//! swept from then on.

use core::sync::atomic::{AtomicUsize, Ordering};

use uzswap::region::{ADDRESS_END, RangeFlags, page_ceil, page_floor};
use uzswap::sys::{Errno, nr};

use super::super::thread::ThreadBlock;
use super::super::{ACTIVE, Args, PAGER, call, raw};

const MCL_CURRENT: usize = 1;
const MCL_FUTURE: usize = 2;
const MCL_ONFAULT: usize = 4;

/// The flags of mlockall while MCL_FUTURE is in force, else 0.
static LOCK_FUTURE: AtomicUsize = AtomicUsize::new(0);

/// Whether mlockall holds for memory that is mapped from now on.
pub(super) fn holds_for_memory_to_come() -> bool {
    LOCK_FUTURE.load(Ordering::Relaxed) != 0
}

/// Whether memory to come is locked page by page, as it is touched.
pub(super) fn waits_for_touches() -> bool {
    LOCK_FUTURE.load(Ordering::Relaxed) & MCL_ONFAULT != 0
}

/// Called in the child after fork, whose mappings to come the kernel does not lock.
pub(in crate::takeover) fn after_fork_child() {
    LOCK_FUTURE.store(0, Ordering::Relaxed);
}

/// Whether a call that locks memory brings it in, too. Memory that is locked when it is touched
/// stays out until then, and flags that the kernel does not know it refuses.
fn brings_in(number: usize, flags: usize) -> bool {
    match number {
        nr::MLOCK => true,
        nr::MLOCK2 => flags == 0,
        nr::MLOCKALL => flags & (MCL_CURRENT | MCL_ONFAULT) == MCL_CURRENT,
        _ => false,
    }
}

pub(super) fn mlock(t: &'static ThreadBlock, number: usize, a: Args) -> isize {
    let (start, end) = (page_floor(a[0]), page_ceil(a[0].saturating_add(a[1])));
    let mut s = PAGER.lock_range(start, end);
    // Resident pages must stay until the others have come: the kernel stops at a missing page, with
    // the mapping locked.
    let mark = t.holds().mark();
    if brings_in(number, a[2]) {
        t.holds().push(start, end, &raw const s as usize);
        let (guard, ok) = PAGER.make_resident(s, start, end);
        s = guard;
        if !ok {
            t.holds().pop_to(mark);
            return Errno::ENOMEM.as_return();
        }
    }
    let r = raw(number, a);
    t.holds().pop_to(mark);
    if r == 0 {
        PAGER.note_flag(start, end, RangeFlags::LOCKED, number != nr::MUNLOCK);
    }
    drop(s);
    r
}

pub(super) fn mlockall(flags: usize) -> isize {
    let mut s = PAGER.lock();
    if brings_in(nr::MLOCKALL, flags) && ACTIVE.load(Ordering::Acquire) {
        let (guard, ok) = PAGER.make_resident(s, 0, ADDRESS_END);
        s = guard;
        if !ok {
            return Errno::EAGAIN.as_return();
        }
    }
    let r = call!(nr::MLOCKALL, flags);
    if r == 0 {
        if flags & MCL_CURRENT != 0 {
            PAGER.note_flag(0, ADDRESS_END, RangeFlags::LOCKED, true);
        }
        let future = if flags & MCL_FUTURE != 0 { flags } else { 0 };
        LOCK_FUTURE.store(future, Ordering::Relaxed);
    }
    drop(s);
    r
}

pub(super) fn munlockall() -> isize {
    let s = PAGER.lock();
    let r = call!(nr::MUNLOCKALL);
    if r == 0 {
        LOCK_FUTURE.store(0, Ordering::Relaxed);
        PAGER.note_flag(0, ADDRESS_END, RangeFlags::LOCKED, false);
    }
    drop(s);
    r
}

#[cfg(test)]
mod tests {
    use super::super::super::run;
    use super::super::{mmap_noted, munmap};
    use super::*;
    use uzswap::sys::mem::{MAP_ANONYMOUS, MAP_PRIVATE, PROT_READ, PROT_WRITE};
    use uzswap::sys::{PAGE_SIZE, check};

    #[test]
    fn a_child_of_fork_does_not_inherit_that_memory_to_come_is_locked() {
        let map = || {
            let a = [0, PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, 0, 0];
            let at = check(mmap_noted(a, true)).unwrap();
            let is_locked = PAGER.ranges.find(at).unwrap().flags.has(RangeFlags::LOCKED);
            assert_eq!(munmap([at, PAGE_SIZE, 0, 0, 0, 0]), 0);
            is_locked
        };
        run::set_settings(uzswap::control::Settings::new());
        LOCK_FUTURE.store(MCL_FUTURE, Ordering::Relaxed);
        assert!(map());
        after_fork_child();
        assert!(!map());
    }

    #[test]
    fn memory_that_is_locked_when_it_is_touched_does_not_come_before() {
        const MLOCK_ONFAULT: usize = 1;
        assert!(brings_in(nr::MLOCK, 0) && brings_in(nr::MLOCK2, 0));
        assert!(brings_in(nr::MLOCK, MLOCK_ONFAULT), "mlock has no flags");
        assert!(!brings_in(nr::MLOCK2, MLOCK_ONFAULT) && !brings_in(nr::MUNLOCK, 0));
        let all = |flags| brings_in(nr::MLOCKALL, flags);
        assert!(all(MCL_CURRENT) && all(MCL_CURRENT | MCL_FUTURE));
        assert!(!all(MCL_FUTURE) && !all(MCL_CURRENT | MCL_ONFAULT));
        assert!(!all(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT));
    }
}
