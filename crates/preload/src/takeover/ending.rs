//! Paging ends for good in this process, which goes on: all its memory is brought in
//! (`core/fault/ending.rs`).
//!
//! Called where something that paging needs is about to go. More memory than the limit is said,
//! once; a program that dies of it would be worse.

use core::sync::atomic::Ordering;

use uzswap::control::Notice;

use super::{ACTIVE, PAGER, evictor, memory};

/// Ends paging, and says why. With all signals blocked, without the pager's lock.
pub fn end_paging(why: Notice, errno: i32) {
    if memory::is_unmanaged() {
        return;
    }
    // It must not come back, nor be in the middle of anything.
    memory::set_unmanaged();
    evictor::stop();
    if ACTIVE.load(Ordering::Acquire) {
        let (s, is_all_in) = PAGER.end_paging(PAGER.lock());
        if is_all_in {
            forget();
        }
        drop(s);
    }
    PAGER.reserve(memory::dormant_pages());
    PAGER.tree().notice(why, errno);
}

/// In the child of a fork the pager has ended paging.
pub fn ended_in_child(errno: i32) {
    memory::set_unmanaged();
    forget();
    PAGER.reserve(memory::dormant_pages());
    PAGER.tree().notice(Notice::PagingEnded, errno);
}

/// Nothing is missing any more, so no buffer has to be held.
fn forget() {
    ACTIVE.store(false, Ordering::SeqCst);
    super::set_classes(false);
}

/// Before the process has another thread, or another process in its memory: some ways of paging
/// allow none.
pub fn before_company() {
    if PAGER.active().is_some_and(|a| a.mechanism.needs_to_be_alone()) {
        end_paging(Notice::PagingEnded, 0);
    }
}
