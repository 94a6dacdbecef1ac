//! The evictor at work: it frees pages, obeys orders, and keeps time: the kernel's count of the
//! process's anonymous memory, what relatives share (`relatives.rs`), the gauges.
//!
//! A dormant process that could hold much has an evictor, too, asleep without end until an order
//! comes from outside (`control/orders.rs`): a lower limit, or memory to give back.

use core::sync::atomic::Ordering;

use uzswap::control::orders::BRING_IN;
use uzswap::pager::{BringIn, EVICTOR_PAGES, Reclaim};
use uzswap::sys::{nr, sync};

use super::evictor::{self, TICK_NS};
use super::wishes::Wishes;
use super::{ACTIVE, PAGER, call, inflight, memory, outside, relatives, reserved};
use crate::patch;

/// How long a dead process still counts, so that each relative has had a tick.
const NOTICE_NS: u64 = 2 * TICK_NS;
/// The pause between two looks, in ticks, while the process waits for its turn and has nothing more
/// to give.
const DRAINED_TICKS: u64 = 5;
/// How often a process that waits for its turn gives back the little memory that it has taken
/// meanwhile.
const GIVE_BACK_NS: u64 = 100_000_000;
/// How long the fresh child of a dormant process is left alone: most exec or exit by then.
const FORK_GRACE_NS: u64 = 50_000_000;

pub(super) extern "C" fn body() -> ! {
    if patch::are_slots_in_gs() {
        // A new thread inherits its maker's.
        patch::thread_slot_set(0);
    }
    evictor::TID.store(uzswap::sys::gettid(), Ordering::Relaxed);
    let name = b"uzswap-evict\0";
    let _ = call!(nr::PRCTL, 15, name.as_ptr());
    PAGER.slot().orders.set_listener(true);
    if evictor::IN_FORKED_CHILD.load(Ordering::Acquire) {
        grow_up();
    }
    let mut last = uzswap::sys::now_ns();
    let (mut work, mut wishes) = (None, Wishes::default());
    let mut rested = 0;
    while !evictor::STOPPING.load(Ordering::Acquire) {
        if !evictor::is_allowed() {
            evictor::leave_alone();
            break;
        }
        if !ACTIVE.load(Ordering::Acquire) {
            listen();
            continue;
        }
        let word = PAGER.evictor_word.load(Ordering::Acquire);
        wishes.look();
        let mut is_done = PAGER.evict_to_watermark().freed < EVICTOR_PAGES;
        if let Some(active) = PAGER.active() {
            // Trains dictionaries, where the codec wants them; returns at once when none is due.
            active.cache.train();
        }
        if is_done {
            is_done = obey(&mut work) && !PAGER.recompress_idle();
        }
        let now = uzswap::sys::now_ns();
        if now - last >= TICK_NS {
            tick();
            last = now;
        }
        if is_done {
            if PAGER.slot().turn.is_paused() && now - rested >= GIVE_BACK_NS {
                PAGER.give_buffers_back();
                rested = now;
            }
            if wishes.are_some() {
                wishes.wait();
                continue;
            }
            let may_sleep = PAGER.is_drained() && !relatives::may_share();
            let ticks = if may_sleep { DRAINED_TICKS } else { 1 };
            sync::futex_wait(&PAGER.evictor_word, word, Some(ticks * TICK_NS));
        }
    }
    wishes.end();
    loop {
        let _ = call!(nr::EXIT, 0);
    }
}

/// Whether there is nothing left to do for the thread as long as the process is dormant.
fn may_sleep() -> bool {
    !ACTIVE.load(Ordering::Acquire) && !evictor::STOPPING.load(Ordering::Acquire)
}

/// Waits in the fresh child of a dormant process, until it counts as a process like others.
fn grow_up() {
    let orders = &PAGER.slot().orders;
    let until = uzswap::sys::now_ns() + FORK_GRACE_NS;
    loop {
        let (rung, now) = (orders.rung(), uzswap::sys::now_ns());
        if !may_sleep() {
            return;
        }
        if now >= until || reserved::has_any() {
            break;
        }
        orders.wait(rung, Some(until - now));
    }
    let mut s = PAGER.lock();
    memory::grown(&mut s);
}

/// One round of a dormant process's listening: looks whether paging must be switched on after all,
/// and sleeps.
fn listen() {
    let orders = &PAGER.slot().orders;
    let rung = orders.rung();
    let wanted = orders.wanted();
    if let Some((number, BRING_IN)) = wanted {
        // A dormant process has no page out.
        orders.finish_bring_in(number, 0);
        return;
    }
    if wanted.is_some() || PAGER.slot().share.most_pages().is_some() || relatives::is_tree_full() {
        memory::activate(&mut PAGER.lock());
        if let (Some((number, _)), false) = (wanted, ACTIVE.load(Ordering::Acquire)) {
            // The process cannot be paged: the order has no effect.
            orders.finish(number);
        }
    }
    if reserved::has_any() {
        memory::grown(&mut PAGER.lock());
    }
    if may_sleep() {
        orders.wait(rung, reserved::look_after_ns());
    }
}

/// An order to the process, under way.
enum Work {
    Reclaim(Reclaim),
    BringIn(BringIn),
}

/// Carries out a portion of the process's order. True: there is none.
fn obey(work: &mut Option<(u32, Work)>) -> bool {
    let orders = &PAGER.slot().orders;
    let Some((number, pages)) = orders.wanted() else {
        *work = None;
        return true;
    };
    if work.as_ref().is_none_or(|(n, _)| *n != number) {
        let begun = match pages {
            BRING_IN => Work::BringIn(BringIn::default()),
            pages => Work::Reclaim(PAGER.begin_reclaim(pages)),
        };
        *work = Some((number, begun));
    }
    match work {
        Some((_, Work::Reclaim(r))) => {
            let is_done = PAGER.reclaim_portion(r);
            if is_done {
                PAGER.give_buffers_back();
                orders.finish(number);
            }
        }
        Some((_, Work::BringIn(b))) => {
            let is_done = PAGER.bring_in_portion(b);
            if is_done {
                PAGER.publish_gauges();
                orders.finish_bring_in(number, PAGER.missing_pages());
            }
        }
        None => {}
    }
    false
}

fn tick() {
    // Memory that a dead process shared with this one counts here before it stops counting there.
    let gone = relatives::has_one_gone(uzswap::sys::now_ns(), NOTICE_NS);
    outside::look_outside();
    relatives::correct_share(gone);
    PAGER.watch_rest();
    PAGER.tend_store();
    PAGER.follow_tuning();
    PAGER.balance_pool();
    PAGER.shrink_size();
    inflight::release_finished();
    PAGER.publish(true);
    PAGER.publish_gauges();
    relatives::stay_alive();
}
