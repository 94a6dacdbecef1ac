//! The end of paging, for good, in a process that goes on: all its memory is brought in
//! (`core/pager/ending.rs`).
//!
//! Called where something that paging needs is about to go. The process may then hold more than the
//! limit, which is said once; a program that dies would be worse.

use core::sync::atomic::Ordering;

use uzswap::control::Notice;

use super::{ACTIVE, PAGER, evictor, is_unmanaged, reserved, routes, set_unmanaged};

/// Ends paging, and says why. With all signals blocked, without the pager's lock.
pub fn end_paging(why: Notice, errno: i32) {
    if is_unmanaged() {
        return;
    }
    // The evictor must not come back, nor be in the middle of anything.
    set_unmanaged();
    evictor::stop();
    // Another thread may be switching paging on, with the lock held.
    let mut s = PAGER.lock();
    if ACTIVE.load(Ordering::Acquire) {
        let is_all_in;
        (s, is_all_in) = PAGER.end_paging(s);
        if is_all_in {
            forget();
        }
    }
    drop(s);
    PAGER.reserve(reserved::dormant_pages());
    PAGER.tree().notice(why, errno);
}

/// Notes that the pager has ended paging in the child of a fork.
pub fn ended_in_child(errno: i32) {
    set_unmanaged();
    forget();
    PAGER.reserve(reserved::dormant_pages());
    PAGER.tree().notice(Notice::PagingEnded, errno);
}

/// Ends the holding of buffers: no page is missing any more.
fn forget() {
    ACTIVE.store(false, Ordering::SeqCst);
    routes::set_routes(false);
}

/// Ends paging before the process has another thread, or another process in its memory, if the
/// mechanism allows none.
pub fn before_company() {
    if PAGER.active().is_some_and(|a| a.mechanism.needs_to_be_alone()) {
        end_paging(Notice::PagingEnded, 0);
    }
}
