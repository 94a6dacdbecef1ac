//! A process that has more memory: whether it waits for its turn first, and whether paging is
//! switched on afterwards, because the process could exceed the limit now.

use core::sync::atomic::Ordering;

use uzswap::pager::{Active, Locked};
use uzswap::sys::fd::ForNow;
use uzswap::sys::mem::{MAP_ANONYMOUS, MAP_PRIVATE, MAP_TYPE};
use uzswap::sys::{Errno, PAGE_SIZE, nr};

use super::super::own_stack::runtime;
use super::super::reserved::{dormant_pages, inherited_pages};
use super::super::signals::dump;
use super::super::thread::{self, ThreadBlock};
use super::super::{
    ACTIVE, Args, PAGER, descriptors, evictor, file_memory, inflight, is_settled, masks, outside,
    relatives, reserved, routes, run, set_unmanaged,
};
use super::{BREAK, overlaps};

/// Pages that a call may add to those that the process could hold.
pub(super) fn added_pages(number: usize, a: Args) -> i64 {
    const ACCESSIBLE: usize = 7;
    let private = MAP_ANONYMOUS | MAP_PRIVATE;
    let bytes = match number {
        nr::MMAP if reserved::is_mapping(a) => 0,
        nr::MMAP if file_memory::is_mapping(&a) && !reserved::is_one(a[1], true) => a[1],
        nr::MMAP if a[3] & (MAP_ANONYMOUS | MAP_TYPE) == private && a[2] & ACCESSIBLE != 0 => a[1],
        nr::MPROTECT | nr::PKEY_MPROTECT if a[2] & ACCESSIBLE != 0 && overlaps(a[0], a[1]) => a[1],
        nr::MREMAP => a[2].saturating_sub(a[1]),
        nr::BRK => a[0].saturating_sub(BREAK.load(Ordering::Relaxed)),
        _ => 0,
    };
    bytes.div_ceil(PAGE_SIZE) as i64
}

/// Waits for the turn of this dormant process before it has more memory. A process of one thread
/// touches nothing meanwhile, so only the pages that it holds count.
pub(super) fn wait_for_turn(t: &'static ThreadBlock) {
    let mask = masks::block_all();
    runtime(t, move || {
        let held = if thread::is_only_one() { outside::held_pages() } else { None };
        PAGER.wait_to_grow(held, || !masks::would_interrupt(mask));
        grown(&mut PAGER.enter());
    });
    masks::restore(mask);
}

/// The smallest process whose pages are watched (`pager/sampling.rs`), in pages, 8 MiB; smaller
/// ones are left alone anyway.
const WATCHED_FROM_PAGES: i64 = (8 << 20) / PAGE_SIZE as i64;

/// Asks, after memory was added, whether the process may exceed the limit now.
pub(in crate::takeover) fn grown(s: &mut Locked<'_>) {
    if is_settled() {
        return;
    }
    let pages = dormant_pages();
    if !relatives::reserve(pages) || PAGER.is_watching() && pages >= WATCHED_FROM_PAGES {
        activate(s);
    } else {
        evictor::listen_from(pages);
    }
}

/// Asks before a fork whether the child's pages fit. The child of a dormant process counts all
/// inherited pages from before it exists ([`relatives::expect_child`]): it could write to them
/// faster than anybody would notice. Where they do not fit, paging is on before the fork: then
/// shared pages count as they are written to.
pub(in crate::takeover) fn before_fork() {
    if is_settled() {
        return;
    }
    if inherited_pages().is_some_and(|pages| !relatives::has_room(pages)) {
        activate(&mut PAGER.lock());
    }
}

/// Switches paging on.
pub(in crate::takeover) fn activate(s: &mut Locked<'_>) {
    if is_settled() {
        return;
    }
    let room = ForNow::make_room();
    let opened = Active::open(run::settings(), thread::is_only_one(), &PAGER.tree().leases)
        .and_then(|a| PAGER.set_active(s, Box::leak(Box::new(a))));
    if let Err(e) = opened {
        ForNow::end(room);
        return unmanaged(e);
    }
    // From here on buffers are held, before any page can be missing.
    routes::set_routes(true);
    ACTIVE.store(true, Ordering::SeqCst);
    dump::begin();
    inflight::hold_all();
    PAGER.activate_ranges(s);
    outside::open_files();
    ForNow::end(room);
    descriptors::refresh();
    evictor::start();
}

fn unmanaged(e: Errno) {
    set_unmanaged();
    PAGER.reserve(dormant_pages());
    PAGER.tree().notice(uzswap::control::Notice::NoMechanism, e.0);
}
