//! The evictor: one thread of ours beside the program's, that keeps free memory ready.
//!
//! It is made with a bare clone, so libc knows nothing of it; it has a stack, a thread-local area
//! and a block of its own, blocks every signal, and never touches managed memory. It also keeps
//! time: the kernel's count of the process's anonymous memory, what relatives share
//! (`relatives.rs`), the gauges.
//!
//! A dormant process that could hold much has an evictor, too, asleep without end until an order
//! comes from outside (`control/orders.rs`): a lower limit, or memory to give back.
#![allow(unsafe_code)]
// # Safety charter
// The new thread starts on memory mapped for it alone and runs `body`, which never returns. Its
// thread-local area is zero but for the self pointer and the stack guard that compiled C code
// reads.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};

use uzswap::control::orders::BRING_IN;
use uzswap::pager::{BringIn, EVICTOR_PAGES, Reclaim};
use uzswap::sys::mem::{PROT_READ, PROT_WRITE, map_anonymous};
use uzswap::sys::{fd, nr, sync};

use super::{ACTIVE, PAGER, call, memory, relatives, reserved};
use crate::patch;

const STACK_BYTES: usize = 256 << 10;
const TLS_BYTES: usize = 64 << 10;
const CLONE_FLAGS: usize =
    0x100 | 0x200 | 0x400 | 0x800 | 0x10000 | 0x40000 | 0x80000 | CLONE_CHILD_CLEARTID;
const CLONE_CHILD_CLEARTID: usize = 0x20_0000;
/// A dormant process that could hold so many pages, 32 MiB, listens to orders; the memory that a
/// smaller one could give is not worth a thread.
const LISTENS_PAGES: i64 = (32 << 20) / uzswap::sys::PAGE_SIZE as i64;
/// How often the evictor looks by itself, in nanoseconds.
const TICK_NS: u64 = 10_000_000;
/// How long a dead process still counts, so that each relative has had a tick.
const NOTICE_NS: u64 = 2 * TICK_NS;
/// The pause between two looks, in ticks, while the process waits for its turn and has nothing more
/// to give.
const DRAINED_TICKS: u64 = 5;
/// How often a process that waits for its turn gives back the little memory that it has taken
/// meanwhile.
const REST_NS: u64 = 100_000_000;
/// How long the fresh child of a dormant process is left alone: most exec or exit by then.
const FORK_GRACE_NS: u64 = 50_000_000;

static RUNNING: AtomicBool = AtomicBool::new(false);
/// `STOPPING`: the thread is to end. The kernel clears `ALIVE` and wakes its waiters when it has.
static STOPPING: AtomicBool = AtomicBool::new(false);
static ALIVE: AtomicU32 = AtomicU32::new(0);
/// Memory of the thread: stack and thread-local area. The thread of a forked child uses it again.
static BASE: AtomicUsize = AtomicUsize::new(0);
static IN_FORKED_CHILD: AtomicBool = AtomicBool::new(false);

/// Starts the evictor of a dormant process that could hold enough pages to be worth listening to
/// orders.
pub fn listen_from(pages: i64) {
    if pages >= LISTENS_PAGES && !is_running() {
        start();
    }
}

/// Starts the thread if it does not run; one that listens notices that paging is on. Called with
/// all signals blocked, so that it inherits that.
pub fn start() {
    if !is_allowed() {
        // An evictor that only listens sees by itself that it must end.
        PAGER.slot().orders.ring();
        return;
    }
    // `ALIVE` comes first: a thread that is to end the evictor while another starts it waits for
    // that one, and two would run on one stack.
    if is_running() || ALIVE.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire).is_err() {
        PAGER.slot().orders.ring();
        return;
    }
    RUNNING.store(true, Ordering::Release);
    if BASE.load(Ordering::Acquire) == 0 {
        match map_anonymous(STACK_BYTES + TLS_BYTES, PROT_READ | PROT_WRITE) {
            Ok(b) => BASE.store(b, Ordering::Release),
            // Without the thread every eviction is direct; nothing is lost but speed.
            Err(_) => return not_started(),
        }
    }
    let base = BASE.load(Ordering::Acquire);
    let (stack, tls) = (base + STACK_BYTES, base + STACK_BYTES + TLS_BYTES / 2);
    // SAFETY: memory of our own; fs:0 points to itself, fs:0x28 is the stack guard.
    unsafe {
        core::ptr::write_bytes((base + STACK_BYTES) as *mut u8, 0, TLS_BYTES);
        (tls as *mut usize).write(tls);
        ((tls + 0x10) as *mut usize).write(tls);
        let mut guard = 0usize;
        // The thread pointer of a program that was booted is its own business.
        if !patch::are_slots_in_gs() {
            core::arch::asm!("mov {}, fs:[0x28]", out(reg) guard, options(nostack, readonly));
        }
        ((tls + 0x28) as *mut usize).write(guard);
    }
    let all = !0u64;
    let mut old = 0u64;
    let _ = call!(nr::RT_SIGPROCMASK, 2, &raw const all, &raw mut old, 8);
    let result: isize;
    // SAFETY: the child runs on its own stack and never returns from `body`.
    unsafe {
        core::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "and rsp, -16",
            "call {body}",
            "ud2",
            "2:",
            body = sym body,
            inlateout("rax") nr::CLONE as isize => result,
            in("rdi") CLONE_FLAGS, in("rsi") stack, in("rdx") 0, in("r10") ALIVE.as_ptr(),
            in("r8") tls,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    let _ = call!(nr::RT_SIGPROCMASK, 2, &raw const old, 0, 8);
    if result < 0 {
        not_started();
    }
}

/// Notes that the thread could not be made.
fn not_started() {
    RUNNING.store(false, Ordering::Release);
    ALIVE.store(0, Ordering::Release);
}

/// Whether the thread may run: not where paging has ended, nor where the mechanism allows no other
/// thread.
fn is_allowed() -> bool {
    !memory::is_unmanaged() && !PAGER.active().is_some_and(|a| a.mechanism.needs_to_be_alone())
}

pub fn is_running() -> bool {
    RUNNING.load(Ordering::Acquire)
}

/// Ends the thread, if it runs, and waits until it has ended. Called without the pager's lock,
/// which the thread may need to get there.
pub fn stop() {
    if !is_running() {
        return;
    }
    STOPPING.store(true, Ordering::Release);
    PAGER.evictor_word.fetch_add(1, Ordering::Release);
    sync::futex_wake(&PAGER.evictor_word, 1);
    PAGER.slot().orders.ring();
    while ALIVE.load(Ordering::Acquire) != 0 {
        // The kernel's wake at a thread's end is for waiters that are not private.
        sync::futex_wait_shared(&ALIVE, 1, Some(TICK_NS));
    }
    STOPPING.store(false, Ordering::Release);
    TID.store(0, Ordering::Relaxed);
    PAGER.slot().orders.set_listener(false);
    RUNNING.store(false, Ordering::Release);
}

/// Forgets the thread in the child after fork, where it does not exist.
pub fn after_fork_child() {
    RUNNING.store(false, Ordering::Release);
    ALIVE.store(0, Ordering::Release);
    // A thread of the parent may have been ending its evictor.
    STOPPING.store(false, Ordering::Release);
    TID.store(0, Ordering::Relaxed);
    close_files();
    relatives::note_fork();
    IN_FORKED_CHILD.store(true, Ordering::Release);
}

/// Thread id of the evictor.
static TID: AtomicU32 = AtomicU32::new(0);

pub fn tid() -> u32 {
    TID.load(Ordering::Relaxed)
}

/// Whether the calling thread is the evictor: its thread-local area, which holds its own address,
/// tells.
pub fn is_caller() -> bool {
    if patch::are_slots_in_gs() {
        return patch::thread_slot_get() == 0 && tid() == uzswap::sys::gettid();
    }
    let tls: usize;
    // SAFETY: every thread has that word, here as in libc's.
    unsafe { core::arch::asm!("mov {}, fs:[0x10]", out(reg) tls, options(nostack, readonly)) };
    let base = BASE.load(Ordering::Relaxed);
    base != 0 && tls == base + STACK_BYTES + TLS_BYTES / 2 && TID.load(Ordering::Relaxed) != 0
}

extern "C" fn body() -> ! {
    if patch::are_slots_in_gs() {
        // A new thread inherits its maker's.
        patch::thread_slot_set(0);
    }
    TID.store(uzswap::sys::gettid(), Ordering::Relaxed);
    let name = b"uzswap-evict\0";
    let _ = call!(nr::PRCTL, 15, name.as_ptr());
    PAGER.slot().orders.set_listener(true);
    if IN_FORKED_CHILD.load(Ordering::Acquire) {
        grow_up();
    }
    let mut last = uzswap::sys::now_ns();
    let mut work = None;
    let mut rested = 0;
    while !STOPPING.load(Ordering::Acquire) {
        if !is_allowed() {
            leave_alone();
            break;
        }
        if !ACTIVE.load(Ordering::Acquire) {
            listen();
            continue;
        }
        let word = PAGER.evictor_word.load(Ordering::Acquire);
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
            if PAGER.slot().turn.is_paused() && now - rested >= REST_NS {
                PAGER.rest();
                rested = now;
            }
            let may_sleep = PAGER.is_drained() && !relatives::may_share();
            let ticks = if may_sleep { DRAINED_TICKS } else { 1 };
            sync::futex_wait(&PAGER.evictor_word, word, Some(ticks * TICK_NS));
        }
    }
    loop {
        let _ = call!(nr::EXIT, 0);
    }
}

/// Notes that the thread is about to end by itself; nobody starts it again in this process.
fn leave_alone() {
    TID.store(0, Ordering::Relaxed);
    PAGER.slot().orders.set_listener(false);
    RUNNING.store(false, Ordering::Release);
}

/// Whether there is nothing left to do for the thread as long as the process is dormant.
fn may_sleep() -> bool {
    !ACTIVE.load(Ordering::Acquire) && !STOPPING.load(Ordering::Acquire)
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
                PAGER.rest();
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

/// Files that the evictor reads again and again, opened once by a thread of the program: a
/// descriptor that came and went beside the program would now and then take the number that the
/// program expects for its own.
static FILES: [AtomicI32; 2] = [const { AtomicI32::new(-1) }; 2];

/// Closes the files: in the child of a fork the inherited ones speak of the parent.
fn close_files() {
    for slot in &FILES {
        let old = slot.swap(-1, Ordering::AcqRel);
        if old >= 0 {
            fd::close(old);
        }
    }
}

/// Opens the files for this process.
pub fn open_files() {
    close_files();
    for (slot, path) in FILES.iter().zip([c"/proc/self/statm", c"/proc/self/smaps_rollup"]) {
        if let Ok(file) = fd::open_read(path) {
            slot.store(fd::move_high(file), Ordering::Release);
        }
    }
}

/// The descriptors of those files, to be hidden from the program.
pub fn fds() -> [i32; 2] {
    FILES.each_ref().map(|f| f.load(Ordering::Acquire))
}

/// Reads one of the files from its start.
fn read_file(which: usize, text: &mut [u8]) -> Option<usize> {
    let file = FILES[which].load(Ordering::Acquire);
    let n = call!(nr::PREAD64, file, text.as_mut_ptr(), text.len(), 0);
    (file >= 0 && n > 0).then_some(n as usize)
}

/// Proportional share and whole of the anonymous memory, in pages.
pub(super) fn share_of_anonymous() -> Option<(i64, i64)> {
    let mut text = [0u8; 4096];
    let n = read_file(1, &mut text)?;
    let kib = |name: &[u8]| number_after(&text[..n], name);
    Some((kib(b"Pss_Anon:")? / 4, kib(b"Anonymous:")? / 4))
}

fn tick() {
    // Memory that a dead process shared with this one counts here before it stops counting there.
    let gone = relatives::has_one_gone(uzswap::sys::now_ns(), NOTICE_NS);
    look_outside();
    relatives::correct_share(gone);
    PAGER.watch_rest();
    PAGER.tend_store();
    PAGER.balance_pool();
    PAGER.shrink_size();
    super::inflight::release_finished();
    PAGER.publish(true);
    PAGER.publish_gauges();
    relatives::stay_alive();
}

/// Pages that the kernel itself needs for a process, as memory groups count them: page tables, the
/// stacks and descriptors of two threads. A build by 24 compilers, 74 processes at a time, needed
/// 60 pages each. For one process the default of `--memory` leaves a margin that is large enough;
/// for many of them it was not, and the OOM killer came.
const KERNEL_PAGES: i64 = 48;

/// Tells the pager how much unmanaged memory the process has. Returns its anonymous memory, in
/// pages.
pub fn look_outside() -> Option<i64> {
    let pages = anonymous_pages()?;
    PAGER.set_outside(pages + KERNEL_PAGES);
    Some(pages)
}

/// Pages that a dormant process holds; asked by a thread of the program.
pub fn held_pages() -> Option<i64> {
    Some(anonymous_pages()? + KERNEL_PAGES)
}

/// Anonymous memory of this process, in pages, as the kernel counts it.
fn anonymous_pages() -> Option<i64> {
    let mut text = [0u8; 128];
    let n = if fds()[0] >= 0 {
        read_file(0, &mut text)?
    } else {
        // In a dormant process a thread of the program asks.
        let file = fd::open_read(c"/proc/self/statm").ok()?;
        let n = fd::read(file, &mut text);
        fd::close(file);
        n.ok()?
    };
    let mut fields = text[..n].split(|b| *b == b' ').map(|f| {
        f.iter().take_while(|b| b.is_ascii_digit()).fold(0i64, |v, b| v * 10 + (b - b'0') as i64)
    });
    let resident = fields.nth(1)?;
    let shared = fields.next()?;
    Some(resident - shared)
}

/// The most anonymous memory that this process had, in pages: its peak less its file memory now.
/// For a dormant process, asked by a thread of the program when it ends.
pub fn peak_anonymous_pages() -> Option<i64> {
    let file = fd::open_read(c"/proc/self/status").ok()?;
    let mut text = [0u8; 4096];
    let n = fd::read(file, &mut text);
    fd::close(file);
    let n = n.ok()?;
    let kib = |name: &[u8]| number_after(&text[..n], name);
    Some((kib(b"VmHWM:")? - kib(b"RssFile:")? - kib(b"RssShmem:")?) / 4)
}

/// The number in the line of `text` that begins with `name`.
fn number_after(text: &[u8], name: &[u8]) -> Option<i64> {
    text.split(|b| *b == b'\n').find_map(|line| line.strip_prefix(name)).map(|value| {
        value.iter().filter(|b| b.is_ascii_digit()).fold(0, |v, b| v * 10 + (b - b'0') as i64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_of_fork_does_not_ask_the_files_of_its_parent() {
        open_files();
        assert!(fds().iter().all(|file| *file >= 0));
        let (pss, anonymous) = share_of_anonymous().unwrap();
        assert!(0 < pss && pss <= anonymous, "{pss} of {anonymous} pages");
        assert!(anonymous_pages().unwrap() > 0);
        after_fork_child();
        assert_eq!(fds(), [-1; 2]);
        assert!(share_of_anonymous().is_none());
        // By a file that is opened for the question.
        assert!(anonymous_pages().unwrap() > 0);
    }

    #[test]
    fn a_number_is_that_of_the_line_that_begins_with_its_name() {
        let text =
            b"Rss:  900 kB\nPss_Anon:   40 kB\nSwapAnonymous: 7 kB\nAnonymous:  1048576 kB\nLast:";
        assert_eq!(number_after(text, b"Anonymous:"), Some(1 << 20));
        assert_eq!(number_after(text, b"Pss_Anon:"), Some(40));
        assert_eq!(number_after(text, b"Pss:"), None);
        assert_eq!(number_after(text, b"Last:"), Some(0), "the text was cut");
    }
}
