//! Start of a process: the loader runs this before any code of the program.
//!
//! Without the control descriptor in the environment the library does nothing at all. With it: read the settings, take a
//! slot in the tree, note what memory there is already, hide ourselves from the environment, take the signals over, and
//! redirect the system calls. Paging itself is switched on later, when the process could exceed the limit.
#![allow(unsafe_code)]
// # Safety charter
// Runs once, on one thread. The environment array is the one the loader passes; it is edited in place, as `unsetenv`
// would. The control block is mapped shared and lives for ever.

use core::sync::atomic::Ordering;

use uzswap::control::trace::{Kind, RING_BYTES, RING_OFFSET, Ring};
use uzswap::control::{
    CONTROL_BYTES, CONTROL_FD_ENV, Counter, Mechanism, Notice, Settings, Slot, TREE_OFFSET, Tree,
};
use uzswap::region::{RangeFlags, page_ceil, page_floor};
use uzswap::sys::mem::{MAP_SHARED, PROT_READ, PROT_WRITE};
use uzswap::sys::userfaultfd::{FEATURE_MOVE, FEATURE_SIGBUS, Userfaultfd};
use uzswap::sys::{PAGE_SIZE, check, fd, nr};

use super::descriptors::{self, CONTROL_FD};
use super::thread::{self, ThreadBlock};
use super::{PAGER, PID, SETTINGS, call, evictor, memory, process, relatives, signals};
use crate::patch;

/// Mappings from before us that are worth managing: small ones hold what the loader and the kernel use.
const EARLY_MIN_BYTES: usize = 1 << 20;

/// The settings of the run.
pub fn settings() -> &'static Settings {
    // SAFETY: stored once, before any hook runs, and never freed.
    unsafe { &*SETTINGS.load(Ordering::Acquire) }
}

/// A slot outside the tree, for a process that found none: its counters are lost, nothing else.
pub fn spare_slot() -> &'static Slot {
    static SPARE: core::sync::atomic::AtomicPtr<Slot> =
        core::sync::atomic::AtomicPtr::new(core::ptr::null_mut());
    if SPARE.load(Ordering::Acquire).is_null() {
        match uzswap::sys::mem::map_anonymous(size_of::<Slot>(), PROT_READ | PROT_WRITE) {
            Ok(at) => SPARE.store(at as *mut Slot, Ordering::Release),
            Err(_) => super::fatal("no memory for a slot"),
        }
    }
    // SAFETY: zeroed memory of our own; a slot consists of atomics.
    unsafe { &*SPARE.load(Ordering::Acquire) }
}

/// The loader's call.
///
/// # Safety
/// Called by the loader with the process's own vectors.
pub unsafe extern "C" fn constructor(_argc: i32, _argv: *mut *mut u8, envp: *mut *mut u8) {
    // SAFETY: the caller's vectors.
    let Some(control) = (unsafe { take_environment(envp) }) else { return };
    let mut settings = Settings::new();
    let n = call!(nr::PREAD64, control, &raw mut settings, size_of::<Settings>(), 0);
    if n != size_of::<Settings>() as isize || !settings.is_valid() {
        return;
    }
    let map = call!(nr::MMAP, 0, CONTROL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, control, 0);
    let Ok(map) = check(map) else { return };
    // SAFETY: the mapping is as large as the block and is never unmapped; Tree consists of atomics.
    let tree: &'static Tree = unsafe { &*((map + TREE_OFFSET) as *const Tree) };
    let pid = uzswap::sys::getpid();
    PID.store(pid, Ordering::Release);
    CONTROL_FD.store(control, Ordering::Release);
    let slot = relatives::claim(tree, pid);
    slot.add(Counter::Processes, 1);
    settings.mechanism = resolve(settings.mechanism) as u32;
    super::DEBUG.store(settings.debug != 0, Ordering::Relaxed);
    SETTINGS.store(Box::leak(Box::new(settings)), Ordering::Release);
    // The first process of the run sets the limit; a change while running is kept.
    let limit = (settings.memory_bytes / PAGE_SIZE as u64) as i64;
    let _ = tree.limit_pages.compare_exchange(0, limit, Ordering::AcqRel, Ordering::Relaxed);
    PAGER.connect(tree, slot);
    if settings.watch != 0 {
        PAGER.begin_to_watch();
    }
    if settings.trace != 0 {
        record(control);
    }
    const F_SETFD: usize = 2;
    let _ = call!(nr::FCNTL, control, F_SETFD, 1);
    relatives::come_alive();
    descriptors::refresh();

    let kind = Mechanism::from_u32(settings.mechanism).unwrap_or(Mechanism::Protect);
    signals::start(uzswap::sys::mechanism::Mechanism::signal(kind));
    let main = ThreadBlock::allocate();
    main.adopt(uzswap::sys::gettid());
    thread::came();
    note_early_memory();
    super::set_classes(false);
    patch::set_hooks(patch::Hooks {
        hook: super::hook,
        thread_start: process::thread_start,
        clone_parent: process::clone_parent,
    });
    let cache = (settings.cache_dir_len > 0).then(|| settings.cache_dir());
    // SAFETY: one thread, before the program runs.
    let report = unsafe { patch::patch_all_loaded(cache) };
    slot.add(Counter::UnpatchedSites, report.unpatched as u64);
    evictor::look_outside();
    super::runtime(main, || {
        let mut s = PAGER.lock();
        memory::grown(&mut s);
    });
}

/// Begins to record faults. A process that has no memory for the ring is missing in the trace.
fn record(control: i32) {
    let map = call!(nr::MMAP, 0, RING_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, control, RING_OFFSET);
    match check(map) {
        Ok(map) => {
            // SAFETY: the mapping is as large as the ring and is never unmapped; Ring consists of atomics.
            PAGER.record_to(unsafe { &*(map as *const Ring) });
            PAGER.trace_process(Kind::Began);
        }
        Err(e) => _ = PAGER.tree().notice(Notice::NotTraced, e.0),
    }
}

/// The mechanism that will be used: it decides the fault signal, so it is settled now.
fn resolve(wanted: u32) -> Mechanism {
    match Mechanism::from_u32(wanted) {
        Some(Mechanism::Auto) | None => match Userfaultfd::probe() {
            Ok(f) if f & FEATURE_SIGBUS != 0 && f & FEATURE_MOVE != 0 => Mechanism::Userfaultfd,
            Ok(f) if f & FEATURE_SIGBUS != 0 => Mechanism::UserfaultfdCopy,
            _ => Mechanism::Protect,
        },
        Some(m) => m,
    }
}

/// Finds our variable, takes it and our entry of LD_PRELOAD out of the environment: the program sees what it
/// would see without us. Returns the control descriptor.
///
/// # Safety
/// `envp` must be the process's environment array.
unsafe fn take_environment(envp: *mut *mut u8) -> Option<i32> {
    const PRELOAD: &[u8] = b"LD_PRELOAD=";
    let mut control = None;
    let mut out = 0;
    let mut i = 0;
    // SAFETY: a null-terminated array of C strings, ours to edit.
    unsafe {
        while !(*envp.add(i)).is_null() {
            let s = *envp.add(i);
            i += 1;
            if let Some(value) = value_of(s, CONTROL_FD_ENV.as_bytes()) {
                // Two: a managed `uzswap run` has started us. The outer run came first and ends here.
                if let Some(outer) = control {
                    fd::close(outer);
                }
                control = parse(value);
                continue;
            }
            if starts_with(s, PRELOAD) && !take_first_entry(s.add(PRELOAD.len())) {
                continue;
            }
            *envp.add(out) = s;
            out += 1;
        }
        if control.is_some() {
            *envp.add(out) = core::ptr::null_mut();
        }
    }
    control
}

/// The value of `NAME=value`.
///
/// # Safety
/// `s` is a C string.
unsafe fn value_of(s: *mut u8, name: &[u8]) -> Option<*mut u8> {
    // SAFETY: reads stop at the first difference, at the latest at the string's end.
    unsafe { (starts_with(s, name) && *s.add(name.len()) == b'=').then(|| s.add(name.len() + 1)) }
}

unsafe fn starts_with(s: *mut u8, prefix: &[u8]) -> bool {
    // SAFETY: as above.
    prefix.iter().enumerate().all(|(i, b)| unsafe { *s.add(i) } == *b)
}

unsafe fn parse(mut s: *mut u8) -> Option<i32> {
    let mut v = 0i32;
    // SAFETY: a C string.
    unsafe {
        while (*s).is_ascii_digit() {
            v = v.checked_mul(10)?.checked_add((*s - b'0') as i32)?;
            s = s.add(1);
        }
        (*s == 0).then_some(v)
    }
}

/// Removes the first entry of a list like LD_PRELOAD's (ours: `uzswap run` and every exec put it first), and those at once
/// after it that are the same (a run in a run). False: nothing is left.
///
/// # Safety
/// `list` is a C string, ours to edit.
unsafe fn take_first_entry(list: *mut u8) -> bool {
    // SAFETY: within the string.
    unsafe {
        let ends = |at: usize| matches!(*list.add(at), 0 | b':' | b' ');
        let mut len = 0;
        while !ends(len) {
            len += 1;
        }
        let mut rest = len;
        while *list.add(rest) != 0 {
            let next = rest + 1;
            // Stops inside the string: the terminator differs from every byte of the entry.
            let same = (0..len).all(|k| *list.add(next + k) == *list.add(k)) && ends(next + len);
            if !same {
                let mut k = 0;
                while *list.add(next + k) != 0 {
                    *list.add(k) = *list.add(next + k);
                    k += 1;
                }
                *list.add(k) = 0;
                return k > 0;
            }
            rest = next + len;
        }
        false
    }
}

/// Large anonymous memory from before us: the program's .bss. The heap is managed from its next growth on.
///
/// Where the loader has put the main thread's control block right behind a .bss, the kernel shows both as one. The kernel writes to
/// that block by itself (rseq), and kills the process if it cannot: it and what follows are left alone.
fn note_early_memory() {
    let here = call!(nr::BRK, 0) as usize;
    memory::set_break(here);
    let Ok(file) = fd::open_read(c"/proc/self/maps") else { return };
    let mut text = [0u8; 4096];
    let mut kept = 0;
    let mut last_file_end = 0;
    let own_word = patch::thread_slot_address();
    let mut s = PAGER.lock();
    while let Ok(n) = fd::read(file, &mut text[kept..]) {
        if n == 0 {
            break;
        }
        let full = kept + n;
        let mut at = 0;
        while let Some(end) = text[at..full].iter().position(|b| *b == b'\n') {
            if let Some(m) = Line::parse(&text[at..at + end]) {
                let bss = m.anonymous && m.start == last_file_end;
                let ours =
                    m.contains(&raw const PAGER as usize) || m.contains(patch::trampoline_range().start);
                let noted = page_ceil(m.end_before(own_word));
                if m.anonymous && m.private_writable && bss && !ours && noted - m.start >= EARLY_MIN_BYTES {
                    PAGER.note_mapped(&mut s, m.start, noted, 3, RangeFlags::NONE);
                }
                last_file_end = if m.anonymous { 0 } else { m.end };
            }
            at += end + 1;
        }
        text.copy_within(at..full, 0);
        kept = full - at;
        if kept == text.len() {
            break;
        }
    }
    fd::close(file);
}

/// One line of /proc/self/maps, as far as it matters here.
struct Line {
    start: usize,
    end: usize,
    private_writable: bool,
    anonymous: bool,
}

impl Line {
    fn contains(&self, addr: usize) -> bool {
        self.start <= addr && addr < self.end
    }

    /// Where it ends, or the page begins that has `addr`.
    fn end_before(&self, addr: usize) -> usize {
        if self.contains(addr) { page_floor(addr) } else { self.end }
    }

    fn parse(line: &[u8]) -> Option<Line> {
        let mut fields = line.split(|b| *b == b' ').filter(|f| !f.is_empty());
        let range = fields.next()?;
        let dash = range.iter().position(|b| *b == b'-')?;
        let hex =
            |s: &[u8]| s.iter().try_fold(0usize, |v, b| Some(v << 4 | (*b as char).to_digit(16)? as usize));
        let mode = fields.next()?;
        let inode_at = 2;
        let inode = fields.nth(inode_at)?;
        Some(Line {
            start: hex(&range[..dash])?,
            end: hex(&range[dash + 1..])?,
            private_writable: mode == b"rw-p",
            anonymous: inode == b"0" && fields.next().is_none(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_block_of_the_main_thread_is_not_part_of_a_bss() {
        let text = b"7f7bdb0ce000-7f7bdb2f4000 rw-p 00000000 00:00 0";
        let line = Line::parse(text).unwrap();
        assert!(line.anonymous && line.private_writable);
        assert_eq!(line.end_before(0x7f7b_db2e_e278), 0x7f7b_db2e_e000);
        assert_eq!(line.end_before(0x7f7b_db2f_4000), 0x7f7b_db2f_4000);
    }
}
