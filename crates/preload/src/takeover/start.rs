//! Start of a process: the loader runs this before any code of the program.
//!
//! Without the control variable in the environment the library does nothing at all. With it: check
//! the descriptors that it names (`core/control/handles.rs`), read the settings, take a slot in the
//! tree, note the memory that is there already, hide ourselves from the environment, take the
//! signals over, and redirect the system calls. Paging itself is switched on later, when the
//! process could exceed the limit.
#![allow(unsafe_code)]
// # Safety charter
// Runs once, on one thread. The environment array is the one the loader passes; it is edited in
// place, as `unsetenv` would. The control block is mapped shared and lives for ever.

use core::sync::atomic::Ordering;
use std::vec::Vec;

use uzswap::control::handles::{COUNTERS_SEALS, Handles, SETTINGS_SEALS};
use uzswap::control::trace::{Kind, RING_BYTES, RING_OFFSET, Ring, TRACED_BYTES};
use uzswap::control::{CONTROL_BYTES, CONTROL_FD_ENV, Counter, Mechanism, Notice, Settings, Tree};
use uzswap::region::{RangeFlags, page_ceil, page_floor};
use uzswap::sys::mem::{MAP_SHARED, PROT_READ, PROT_WRITE};
use uzswap::sys::sync::{Owners, set_owners};
use uzswap::sys::userfaultfd::{FEATURE_MOVE, FEATURE_SIGBUS, Userfaultfd};
use uzswap::sys::{Errno, PAGE_SIZE, check, fd, file, nr};

use super::descriptors;
use super::thread::{self, ThreadBlock};
use super::{
    PAGER, PID, call, dispatch, masks, memory, outside, own_stack, owners, process, relatives,
    routes, run, signals, target,
};
use crate::patch;

/// The smallest mapping from before us that is worth managing: smaller ones hold memory that the
/// loader and the kernel use.
const EARLY_MIN_BYTES: usize = 1 << 20;

/// The loader's call.
///
/// # Safety
/// Called by the loader with the process's own vectors.
pub unsafe extern "C" fn constructor(_argc: i32, _argv: *mut *mut u8, envp: *mut *mut u8) {
    // SAFETY: the caller's vectors.
    let Some(handles) = (unsafe { take_handles(envp) }) else { return };
    // SAFETY: as above.
    let hide = |own_file: &[u8]| unsafe { take_preload(envp, own_file) };
    match is_guest_of_valgrind() {
        true => hide(b""),
        false => take_over(&handles, hide),
    }
}

/// Whether Valgrind runs this code. The process is then Valgrind's, a static program that was
/// booted: it is taken over already, with the memory of the program that it runs. A library that
/// took that program over once more would put jumps into code that Valgrind knows without them.
fn is_guest_of_valgrind() -> bool {
    // Valgrind's name for this question, and five arguments that it does not have.
    const RUNNING_ON_VALGRIND: usize = 0x1001;
    let question: [usize; 6] = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    let answer: usize;
    // SAFETY: Valgrind's `client request` of valgrind.h. A processor rotates rdi by 128 bits in
    // all, which leaves it as it was, and exchanges rbx with itself; Valgrind knows the sequence,
    // reads the array at rax, and answers in rdx.
    unsafe {
        core::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") question.as_ptr(),
            inout("rdx") 0usize => answer,
            options(nostack, readonly),
        );
    }
    answer != 0
}

/// Takes the process over: one thread, before any code of the program runs. `hide` is called with
/// the path of the library's file, empty if that is not known, when it is time to hide the library
/// from the program.
pub(crate) fn take_over(handles: &Handles, hide: impl FnOnce(&[u8])) {
    let Some((mut settings, map)) = open(handles) else { return hide(b"") };
    // SAFETY: the mapping is as large as the block and is never unmapped; Tree consists of atomics.
    let tree: &'static Tree = unsafe { &*(map as *const Tree) };
    let pid = uzswap::sys::getpid();
    PID.store(pid, Ordering::Release);
    descriptors::set_handles(handles);
    let slot = relatives::claim(tree, pid);
    slot.add(Counter::Processes, 1);
    settings.mechanism = resolve(settings.mechanism) as u32;
    super::DEBUG.store(settings.debug != 0, Ordering::Relaxed);
    run::set_settings(settings);
    // The first process of the run sets the limit; a change while running is kept.
    let limit = (settings.memory_bytes / PAGE_SIZE as u64) as i64;
    let _ = tree.limit_pages.compare_exchange(0, limit, Ordering::AcqRel, Ordering::Relaxed);
    PAGER.connect(tree, slot);
    if settings.watch != 0 {
        PAGER.begin_to_watch();
    }
    if settings.trace != 0 {
        record(handles.counters.fd);
    }
    descriptors::keep_over_exec(false);
    relatives::come_alive();
    descriptors::refresh();

    let Some(main) = ThreadBlock::allocate() else {
        // A program with so little address space runs as it would without us.
        tree.notice(Notice::NoMechanism, Errno::ENOMEM.0);
        return;
    };
    let kind = Mechanism::from_u32(settings.mechanism).unwrap_or(Mechanism::Protect);
    static OWNERS: Owners = Owners {
        me: owners::id_for_locks,
        look_after: owners::look_after,
        look_for_abandoned: owners::look_for_abandoned,
    };
    set_owners(&OWNERS);
    signals::start(uzswap::sys::mechanism::Mechanism::signal(kind), handles.ignored);
    main.adopt(uzswap::sys::gettid());
    masks::unblock(main);
    thread::came();
    let own_file = note_early_memory();
    hide(&own_file);
    routes::set_routes(false);
    patch::set_hooks(patch::Hooks {
        hook: dispatch::hook,
        thread_start: process::thread_start,
        clone_parent: process::clone_parent,
    });
    let cache = (settings.cache_dir_len > 0).then(|| settings.cache_dir());
    // SAFETY: one thread, before the program runs.
    let report = unsafe { patch::patch_all_loaded(cache) };
    slot.add(Counter::UnpatchedSites, report.unpatched as u64);
    outside::look_outside();
    own_stack::runtime(main, || {
        let mut s = PAGER.lock();
        memory::grown(&mut s);
    });
}

/// Checks the files that the variable names, reads the settings and maps the counters. Returns the
/// settings and the address of the counters.
fn open(handles: &Handles) -> Option<(Settings, usize)> {
    if !handles.settings.is_there(SETTINGS_SEALS, size_of::<Settings>()) {
        return None;
    }
    let mut settings = Settings::new();
    // SAFETY: plain numbers and bytes, for which all bytes are valid.
    let bytes = unsafe {
        core::slice::from_raw_parts_mut((&raw mut settings).cast::<u8>(), size_of::<Settings>())
    };
    file::read_exact_at(handles.settings.fd, bytes, 0).ok()?;
    let needed = if settings.trace != 0 { TRACED_BYTES } else { CONTROL_BYTES };
    if !settings.is_valid() || !handles.counters.is_there(COUNTERS_SEALS, needed) {
        return None;
    }
    let fd = handles.counters.fd;
    let map = call!(nr::MMAP, 0, CONTROL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    Some((settings, check(map).ok()?))
}

/// Begins to record faults. A process that has no memory for the ring is missing in the trace.
fn record(control: i32) {
    let map =
        call!(nr::MMAP, 0, RING_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, control, RING_OFFSET);
    match check(map) {
        Ok(map) => {
            // SAFETY: the mapping is as large as the ring and is never unmapped; Ring consists of
            // atomics.
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

/// Takes our variable out of the environment, so that the program sees what it would see without
/// us. Returns its value.
///
/// # Safety
/// `envp` must be the process's environment array.
unsafe fn take_handles(envp: *mut *mut u8) -> Option<Handles> {
    let mut found: Option<Handles> = None;
    let name = CONTROL_FD_ENV.as_bytes();
    // SAFETY: a null-terminated array of C strings, ours to edit; values are read to their ends.
    unsafe {
        keep_variables(envp, |s| {
            let Some(value) = value_of(s, name) else { return true };
            // Two: a managed `uzswap run` has started us. The outer run came first and ends here.
            if let Some(outer) = found.take() {
                outer.counters.close();
                outer.settings.close();
            }
            found = Handles::parse(core::ffi::CStr::from_ptr(value.cast()).to_bytes());
            false
        });
    }
    found
}

/// Takes our entry out of LD_PRELOAD, and notes it: the one that is the library's own file, or else
/// the first.
///
/// # Safety
/// As for `take_handles`.
unsafe fn take_preload(envp: *mut *mut u8, own_file: &[u8]) {
    const NAME: &[u8] = b"LD_PRELOAD";
    let mut noted = None;
    // SAFETY: a null-terminated array of C strings, ours to edit.
    unsafe {
        keep_variables(envp, |s| {
            let Some(list) = value_of(s, NAME) else { return true };
            let (entry, is_anything_left) = take_entry(list, own_file);
            noted = noted.take().or(entry);
            is_anything_left
        });
    }
    run::set_preload(noted.unwrap_or_default());
}

/// Counts that the process goes on without us.
pub(crate) fn leave_unmanaged(handles: &Handles) {
    let Some((_, map)) = open(handles) else { return };
    // SAFETY: as in `take_over`.
    let tree: &'static Tree = unsafe { &*(map as *const Tree) };
    relatives::claim(tree, uzswap::sys::getpid()).add(Counter::UnmanagedExecs, 1);
    tree.notice(Notice::Unmanaged, 0);
}

/// Keeps the variables of the environment for which `keep` is true.
///
/// # Safety
/// `envp` must be the process's environment array.
unsafe fn keep_variables(envp: *mut *mut u8, mut keep: impl FnMut(*mut u8) -> bool) {
    let (mut from, mut to) = (0, 0);
    // SAFETY: a null-terminated array, ours to edit; what is written lies before what is read.
    unsafe {
        while !(*envp.add(from)).is_null() {
            let variable = *envp.add(from);
            from += 1;
            if keep(variable) {
                *envp.add(to) = variable;
                to += 1;
            }
        }
        *envp.add(to) = core::ptr::null_mut();
    }
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

/// Removes our entries from a list like LD_PRELOAD's. Ours is the entry that is `own_file`, or the
/// first one where there is none (`uzswap run` and every exec put ours first). Equal entries right
/// after it go, too (a run in a run), and so does a sanitizer's runtime right before it, which was
/// put there with it (`target.rs`). Returns our entry, and whether any other is left.
///
/// # Safety
/// `list` is a C string, ours to edit.
unsafe fn take_entry(list: *mut u8, own_file: &[u8]) -> (Option<Vec<u8>>, bool) {
    // SAFETY: the string's bytes; nobody else has them.
    let text = unsafe {
        core::slice::from_raw_parts_mut(list, core::ffi::CStr::from_ptr(list.cast()).count_bytes())
    };
    let is_separator = |b: &u8| matches!(b, b':' | b' ');
    let entries = || text.split(is_separator);
    // An empty entry is not a file that is not known.
    let at = entries().position(|e| e == own_file && !e.is_empty());
    let at = at.unwrap_or_else(|| entries().take_while(|e| target::is_first_library(e)).count());
    let own: Vec<u8> = entries().nth(at).unwrap_or_default().into();
    let same = entries().skip(at).take_while(|e| *e == own).count();
    let before = at > 0 && entries().nth(at - 1).is_some_and(target::is_first_library);
    let first = at - usize::from(before);
    // The bytes before what goes, and those up to its end, each entry with a separator.
    let bytes_of = |from: usize, count: usize| {
        entries().skip(from).take(count).map(|e| e.len() + 1).sum::<usize>()
    };
    let start = bytes_of(0, first);
    let end = (start + bytes_of(first, usize::from(before) + same)).min(text.len());
    let (len, rest) = (text.len(), text.len() - end);
    text.copy_within(end.., start);
    // Where no entry follows, the separator before it goes, too.
    let left = if rest == 0 { start.saturating_sub(1) } else { start + rest };
    if left < len {
        text[left] = 0;
    }
    ((!own.is_empty()).then_some(own), left > 0)
}

/// Large anonymous memory from before us: the program's .bss. The heap is managed from its next
/// growth on.
///
/// Where the loader has put the main thread's control block right behind a .bss, the kernel shows
/// both as one. The kernel writes to that block by itself (rseq), and kills the process if it
/// cannot: the block and the memory after it are left alone.
///
/// Returns the path of this library's file, empty if it is not known: the same list has it.
fn note_early_memory() -> Vec<u8> {
    let mut own_file = Vec::new();
    let here = call!(nr::BRK, 0) as usize;
    memory::set_break(here);
    let Ok(file) = fd::open_read(c"/proc/self/maps") else { return own_file };
    let mut text = [0u8; 4096];
    let mut kept = 0;
    let mut last_file_end = 0;
    let own_word = patch::thread_slot_address();
    let own_code = note_early_memory as *const () as usize;
    let mut s = PAGER.lock();
    while let Ok(n) = fd::read(file, &mut text[kept..]) {
        if n == 0 {
            break;
        }
        let full = kept + n;
        let mut at = 0;
        while let Some(end) = text[at..full].iter().position(|b| *b == b'\n') {
            if let Some(m) = Line::parse(&text[at..at + end]) {
                if m.contains(own_code) {
                    own_file = m.name.into();
                }
                let bss = m.anonymous && m.start == last_file_end;
                let ours = m.contains(&raw const PAGER as usize)
                    || m.contains(patch::trampoline_range().start);
                let noted = page_ceil(own_word.map_or(m.end, |word| m.end_before(word)));
                if m.anonymous
                    && m.private_writable
                    && bss
                    && !ours
                    && noted - m.start >= EARLY_MIN_BYTES
                {
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
    own_file
}

/// One line of /proc/self/maps, as far as it matters here.
struct Line<'a> {
    start: usize,
    end: usize,
    private_writable: bool,
    anonymous: bool,
    name: &'a [u8],
}

impl<'a> Line<'a> {
    fn contains(&self, addr: usize) -> bool {
        self.start <= addr && addr < self.end
    }

    /// The end of the mapping, or the beginning of the page that has `addr`.
    fn end_before(&self, addr: usize) -> usize {
        if self.contains(addr) { page_floor(addr) } else { self.end }
    }

    fn parse(line: &'a [u8]) -> Option<Line<'a>> {
        let mut rest = line;
        let mut field = || {
            rest = rest.trim_ascii_start();
            let end = rest.iter().position(|b| *b == b' ').unwrap_or(rest.len());
            let field;
            (field, rest) = rest.split_at(end);
            (!field.is_empty()).then_some(field)
        };
        let range = field()?;
        let dash = range.iter().position(|b| *b == b'-')?;
        let hex = |s: &[u8]| {
            s.iter().try_fold(0usize, |v, b| Some(v << 4 | (*b as char).to_digit(16)? as usize))
        };
        let (mode, _offset, _device, inode) = (field()?, field()?, field()?, field()?);
        // A path may have blanks.
        let name = rest.trim_ascii_start();
        let name = name.strip_suffix(b" (deleted)").unwrap_or(name);
        Some(Line {
            start: hex(&range[..dash])?,
            end: hex(&range[dash + 1..])?,
            private_writable: mode == b"rw-p",
            anonymous: inode == b"0" && name.is_empty(),
            name,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_entry_is_taken_out_of_the_list_wherever_it_is() {
        let taken = |list: &str| {
            let mut text: Vec<u8> = list.bytes().chain([0]).collect();
            // SAFETY: a C string of our own.
            let (entry, is_left) = unsafe { take_entry(text.as_mut_ptr(), b"/our.so") };
            let len = text.iter().position(|b| *b == 0).unwrap();
            let string = |b: &[u8]| std::string::String::from_utf8(b.into()).unwrap();
            (string(&entry.unwrap_or_default()), string(&text[..len]), is_left)
        };
        let expect = |list: &str, entry: &str, left: &str| {
            let got = taken(list);
            assert_eq!(
                (got.0.as_str(), got.1.as_str(), got.2),
                (entry, left, !left.is_empty()),
                "{list}"
            );
        };
        expect("/our.so", "/our.so", "");
        expect("/our.so:/a.so:/b.so", "/our.so", "/a.so:/b.so");
        expect("/our.so /a.so", "/our.so", "/a.so");
        expect("/our.so:/our.so:/a.so", "/our.so", "/a.so");
        expect("/our.so:/our.so", "/our.so", "");
        expect("/a.so:/our.so:/b.so", "/our.so", "/a.so:/b.so");
        expect("/a.so:/our.so", "/our.so", "/a.so");
        expect("libasan.so.8:/our.so:/a.so", "/our.so", "/a.so");
        expect("libasan.so.8:/our.so:/our.so", "/our.so", "");
        expect("libasan.so.8:/our.so:libasan.so.8", "/our.so", "libasan.so.8");
        expect("libasan.so.8:/link.so:/a.so", "/link.so", "/a.so");
        expect("/our.so.1:/our.so", "/our.so", "/our.so.1");
        // The entry names the file by another name.
        expect("/link.so:/a.so", "/link.so", "/a.so");
        expect("", "", "");
    }

    #[test]
    fn an_empty_entry_is_not_ours_where_our_file_is_not_known() {
        let mut text = *b"/our.so:/a.so::/b.so\0";
        // SAFETY: a C string of our own.
        let (entry, is_left) = unsafe { take_entry(text.as_mut_ptr(), b"") };
        assert_eq!(entry.as_deref(), Some(&b"/our.so"[..]));
        assert!(is_left && text.starts_with(b"/a.so::/b.so\0"));
    }

    #[test]
    fn a_path_with_blanks_is_read_to_its_end() {
        let name = |rest: &str| {
            let line = std::format!("7f7bdb0ce000-7f7bdb2f4000 r-xp 00001000 fe:01 77{rest}");
            Line::parse(line.as_bytes()).map(|line| Vec::from(line.name))
        };
        assert_eq!(name("      /my lib/our 1.so").unwrap(), b"/my lib/our 1.so");
        assert_eq!(name("      /my lib/our.so (deleted)").unwrap(), b"/my lib/our.so");
        assert_eq!([name(""), name(" ")], [Some(Vec::new()), Some(Vec::new())]);
        assert!(Line::parse(b"7f7bdb0ce000-7f7bdb2f4000 r-xp 00001000 fe:01").is_none());
    }

    #[test]
    fn the_control_block_of_the_main_thread_is_not_part_of_a_bss() {
        let text = b"7f7bdb0ce000-7f7bdb2f4000 rw-p 00000000 00:00 0";
        let line = Line::parse(text).unwrap();
        assert!(line.anonymous && line.private_writable);
        assert_eq!(line.end_before(0x7f7b_db2e_e278), 0x7f7b_db2e_e000);
        assert_eq!(line.end_before(0x7f7b_db2f_4000), 0x7f7b_db2f_4000);
    }
}
