//! The calls by which processes and threads begin and end: fork, clone, exec and exit.
//!
//! - **fork**: with the lock held and nothing half done; the child re-registers every range before
//!   it runs.
//! - **thread**: its block is made by the parent; it starts on the block's stack, because the stack
//!   that the program gave it may be missing memory.
//! - **vfork** and other calls whose child shares memory with a waiting parent run in place, with
//!   no frame of ours on the stack.
//! - **exec** starts afresh; the environment carries us into the new program, and only there.
#![allow(unsafe_code)]

use core::sync::atomic::Ordering;

use uzswap::control::handles::TEXT_BYTES;
use uzswap::control::trace::Kind;
use uzswap::control::{CONTROL_FD_ENV, Counter, Notice, PROGRAM_ENV};
use uzswap::region::page_floor;
use uzswap::sys::fd::ForNow;
use uzswap::sys::mem::{PROT_READ, PROT_WRITE, map_anonymous};
use uzswap::sys::{Errno, PAGE_SIZE, nr};

use super::descriptors;
use super::outside::finish_counters;
use super::own_stack::{self, runtime};
use super::target::Way;
use super::thread::{self, ThreadBlock};
use super::{
    ACTIVE, Answer, Args, PAGER, PID, buffers, call, ending, evictor, identity, inflight,
    is_shared_child, masks, memory, outside, raw, relatives, reserved, run, sandbox, signals,
    target,
};
use crate::patch::{self, HookFrame, ThreadStart};

const CLONE_VM: usize = 0x100;
const CLONE_FILES: usize = 0x400;
const CLONE_PIDFD: usize = 0x1000;
const CLONE_VFORK: usize = 0x4000;
const CLONE_THREAD: usize = 0x1_0000;
const CLONE_SETTLS: usize = 0x8_0000;
const CLONE_PARENT_SETTID: usize = 0x10_0000;
const CLONE_CHILD_CLEARTID: usize = 0x20_0000;
const CLONE_CHILD_SETTID: usize = 0x100_0000;

pub(super) fn call(
    t: &'static ThreadBlock,
    number: usize,
    a: Args,
    f: &mut HookFrame,
) -> Option<Answer> {
    match number {
        nr::VFORK => {
            signals::inherit::expect_child(t);
            t.expect_guest(true);
            Some(Answer::Inline)
        }
        nr::FORK => Some(Answer::Result(fork(t, number, a))),
        nr::CLONE => Some(clone(t, a, f)),
        // glibc and others fall back to clone.
        nr::CLONE3 => Some(Answer::Result(Errno::ENOSYS.as_return())),
        nr::EXECVE | nr::EXECVEAT => Some(Answer::Result(exec(t, number, a, f))),
        nr::EXIT => {
            thread_exit(t);
            Some(Answer::Inline)
        }
        nr::EXIT_GROUP => {
            process_exit(t);
            Some(Answer::Inline)
        }
        _ => identity::call(t, number, a),
    }
}

fn clone(t: &'static ThreadBlock, a: Args, f: &mut HookFrame) -> Answer {
    let [flags, stack, ..] = a;
    if flags & CLONE_VM == 0 {
        // A shared descriptor table would have the child close the parent's descriptors of ours
        // when it makes its own.
        let mut b = a;
        b[0] &= !CLONE_FILES;
        if stack == 0 {
            return Answer::Result(fork(t, nr::CLONE, b));
        }
        // A process on a stack of its own: forked on ours, then moved there.
        b[1] = 0;
        let r = fork(t, nr::CLONE, b);
        if r == 0 {
            // SAFETY: we are the child, alone; the frame's registers and the given stack are what
            // it expects.
            unsafe { resume_on(f, stack) }
        }
        return Answer::Result(r);
    }
    for word in words_written(&a).into_iter().flatten() {
        buffers::keep(t, word, 4);
    }
    // A child that shares our memory while the parent waits: the call runs as it is.
    if flags & CLONE_VFORK != 0 || stack == 0 {
        signals::inherit::expect_child(t);
        t.expect_guest(true);
        return Answer::Inline;
    }
    // A process beside us that has our thread-local area is found by its id. A thread that sets it
    // by itself has its word in gs: Go's.
    let has_own_word =
        flags & CLONE_SETTLS != 0 || flags & CLONE_THREAD != 0 && patch::are_slots_in_gs();
    let is_guest = !has_own_word;
    // The kernel uses rseq and the robust list in the thread's control block behind its back, and
    // we our own word below it. A program may have put all of it into managed memory.
    if flags & CLONE_SETTLS != 0 {
        let pointer = a[4];
        let own_word = patch::thread_slot_of(pointer).unwrap_or(pointer);
        buffers::keep(t, own_word, pointer.wrapping_sub(own_word) + PAGE_SIZE);
    }
    let mask = masks::block_all();
    let Some(block) = ThreadBlock::allocate() else {
        masks::restore(mask);
        // There is no memory for a block: the answer of a kernel that has none for a thread.
        return Answer::Result(Errno::EAGAIN.as_return());
    };
    runtime(t, ending::before_company);
    block.saved_mask.store(mask, Ordering::Relaxed);
    t.saved_mask.store(mask, Ordering::Relaxed);
    signals::inherit(t, block);
    if is_guest {
        t.expect_guest(false);
        block.is_guest.store(1, Ordering::Relaxed);
    } else {
        thread::came();
    }
    Answer::CloneThread(core::ptr::from_ref(block).cast_mut().cast())
}

/// Words that the kernel writes for a child in our memory: one of the parent's gets its number or
/// descriptor, one of the child's its number, and is cleared at its end. The kernel does not say
/// that it could not write a number.
fn words_written(a: &Args) -> [Option<usize>; 2] {
    let [flags, _, parent, child, ..] = *a;
    let for_parent = flags & (CLONE_PARENT_SETTID | CLONE_PIDFD) != 0;
    let for_child = flags & (CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID) != 0;
    // In glibc one word is both.
    let is_one = for_parent && parent == child;
    [for_parent.then_some(parent), (for_child && !is_one).then_some(child)]
}

/// A new thread begins here, on its block's runtime stack, with all signals blocked.
pub(crate) extern "C" fn thread_start(block: *mut ThreadStart) {
    // SAFETY: the block that `clone` above handed out; ThreadStart is its first field.
    let b: &'static ThreadBlock = unsafe { &*block.cast::<ThreadBlock>() };
    match b.is_guest.load(Ordering::Relaxed) {
        0 => b.adopt(uzswap::sys::gettid()),
        _ => b.adopt_guest(uzswap::sys::gettid()),
    }
    masks::restore(b.saved_mask.load(Ordering::Relaxed));
}

/// The maker of a thread goes on here.
pub(crate) extern "C" fn clone_parent(block: *mut ThreadStart, result: isize) {
    // SAFETY: as above.
    let b: &'static ThreadBlock = unsafe { &*block.cast::<ThreadBlock>() };
    let mask = own_stack::current().saved_mask.load(Ordering::Relaxed);
    if result < 0 {
        if b.is_guest.load(Ordering::Relaxed) == 0 {
            thread::went();
        }
        b.give_back();
    }
    masks::restore(mask);
}

fn fork(t: &'static ThreadBlock, number: usize, a: Args) -> isize {
    // This comes first: from here on the memory behind the call's pointers is held only if paging
    // is on.
    runtime(t, memory::before_fork);
    // The program's pointers (child and parent thread ids) must be there on both sides.
    buffers::with_held(t, number, &a, || {
        runtime(t, move || {
            patch::before_fork();
            let mut s = PAGER.lock();
            let (parent, child) = (PID.load(Ordering::Relaxed), relatives::expect_child());
            let guard = PAGER.prepare_fork(&mut s, child.map(|(slot, _)| slot));
            let r = raw(number, a);
            patch::after_fork();
            if r == 0 {
                let room = ForNow::make_room();
                let pid = uzswap::sys::getpid();
                identity::look_up_namespace();
                relatives::am_born(child, pid);
                PID.store(pid, Ordering::Release);
                let tid = uzswap::sys::gettid();
                thread::after_fork_child(t, tid);
                evictor::after_fork_child();
                relatives::note_fork();
                identity::after_fork_child();
                inflight::after_fork_child();
                memory::after_fork_child();
                if ACTIVE.load(Ordering::Acquire) || reserved::has_any() {
                    outside::open_files();
                }
                let slot = child.map_or_else(run::spare_slot, |(slot, _)| slot);
                slot.add(Counter::Processes, 1);
                let may_renew = sandbox::may_open_again();
                if let Err(e) =
                    PAGER.after_fork_child(&mut s, guard, t.holds(), tid, slot, may_renew)
                {
                    ending::ended_in_child(e.0);
                }
                relatives::come_alive();
                ForNow::end(room);
                descriptors::refresh();
                // A process that counts shared pages must be able to give them back.
                if ACTIVE.load(Ordering::Acquire) || reserved::inherited_pages().is_some() {
                    evictor::start();
                }
            } else {
                relatives::child_born(child, parent, r);
                PAGER.after_fork_parent(&mut s, guard, r > 0);
                relatives::note_fork();
                descriptors::refresh();
            }
            drop(s);
            r
        })
    })
}

/// Continues the program in the child of a fork on another stack: registers from the frame, rax 0.
///
/// # Safety
/// Only in such a child; never returns to our frames.
unsafe fn resume_on(f: &HookFrame, stack: usize) -> ! {
    let own = f.hook_stack.addr() as u64;
    let regs = [
        f.rbx, f.rbp, f.r12, f.r13, f.r14, f.r15, f.rdi, f.rsi, f.rdx, f.r10, f.r8, f.r9, f.ret,
        own,
    ];
    // SAFETY: the caller vouches; the registers are loaded from our frame before the stack is left.
    unsafe {
        core::arch::asm!(
            "mov rcx, [rax + 96]",
            "mov rbx, [rax]",
            "mov rbp, [rax + 8]",
            "mov r12, [rax + 16]",
            "mov r13, [rax + 24]",
            "mov r14, [rax + 32]",
            "mov r15, [rax + 40]",
            "mov rdi, [rax + 48]",
            "mov rsi, [rax + 56]",
            "mov rdx, [rax + 64]",
            "mov r10, [rax + 72]",
            "mov r8, [rax + 80]",
            "mov r9, [rax + 88]",
            "mov rax, [rax + 104]",
            "mov rsp, r11",
            "test rax, rax",
            "jz 2f",
            "add qword ptr [rax + {bottom}], {piece_bytes}",
            "inc qword ptr [rax + {pieces}]",
            "2: xor eax, eax",
            "jmp rcx",
            in("rax") regs.as_ptr(),
            in("r11") stack,
            bottom = const patch::PIECE_GIVEN_BACK.0,
            pieces = const patch::PIECE_GIVEN_BACK.1,
            piece_bytes = const patch::PIECE_GIVEN_BACK.2,
            options(noreturn)
        )
    }
}

fn thread_exit(t: &'static ThreadBlock) {
    if is_shared_child() {
        if t.is_guest.load(Ordering::Relaxed) != 0 {
            t.retire();
        }
        return;
    }
    if ACTIVE.load(Ordering::Acquire) {
        buffers::hold_robust_list(t);
    }
    // A process ends with its last thread, and that must not be the evictor: not every program ends
    // by exit_group (a process that libc's clone(2) starts does not).
    let is_own = t.tid.load(Ordering::Relaxed) == uzswap::sys::gettid();
    if is_own && thread::went() && evictor::is_running() {
        runtime(t, || {
            finish_counters();
            PAGER.trace_process(Kind::Ended);
            evictor::stop();
        });
    }
    t.retire();
}

fn process_exit(t: &'static ThreadBlock) {
    if is_shared_child() {
        return;
    }
    runtime(t, || {
        finish_counters();
        PAGER.trace_process(Kind::Ended);
        relatives::leave();
    });
}

/// Makes the call of an exec with its memory held, and with the limits on descriptors in which the
/// program believes.
///
/// Only a process with rights may raise its hard limit again. So the limits stay as they are where
/// the path alone makes the call fail: a search of PATH makes many such calls.
fn with_limits_and_held(
    t: &'static ThreadBlock,
    number: usize,
    a: &Args,
    exec: impl FnOnce() -> isize,
) -> isize {
    buffers::with_held(t, number, a, || {
        if !descriptors::is_hard_limit_ours() || target::is_check(number, a) {
            return exec();
        }
        let fails = if sandbox::may_start() { target::why_not_executed(number, a) } else { None };
        match fails {
            Some(e) => e.as_return(),
            None => descriptors::with_believed_limits(t, exec),
        }
    })
}

fn execute(t: &'static ThreadBlock, number: usize, a: Args) -> isize {
    signals::inherit::with_inherited(t, || raw(number, a))
}

/// exec, with the environment that carries us along.
fn exec(t: &'static ThreadBlock, number: usize, a: Args, f: &HookFrame) -> isize {
    if !sandbox::may_start() {
        // The calls that we make at its start would end the program.
        return with_limits_and_held(t, number, &a, || execute(t, number, a));
    }
    let environment_at = if number == nr::EXECVE { 2 } else { 3 };
    with_limits_and_held(t, number, &a, || {
        let Some(target) = look(t, number, &a) else { return Errno::ENOMEM.as_return() };
        let way = target.way();
        let mut executed = (number, a);
        if way.is_given_ours() {
            let Some(given) = Given::read(a[environment_at], !matches!(way, Way::Boot(_))) else {
                // The kernel says what is wrong with it, or with the path, which it reads first.
                return execute(t, number, a);
            };
            let carried = carry(t, way, &given, target.first_library());
            let Some(carried) = carried else { return Errno::ENOMEM.as_return() };
            executed.1[environment_at] = carried.environment;
            if let Way::Boot(_) = way {
                executed = (
                    nr::EXECVE,
                    [carried.library, a[environment_at - 1], carried.environment, 0, 0, 0],
                );
            }
            descriptors::keep_over_exec(true);
        }
        let mut is_unmanaged = !way.is_managed();
        let note_unmanaged = || {
            PAGER.add(Counter::UnmanagedExecs, 1);
            PAGER.tree().notice(Notice::Unmanaged, 0);
        };
        let shared = is_shared_child();
        if !shared {
            runtime(t, || {
                finish_counters();
                PAGER.reserve(PAGER.slot().charged());
            });
        }
        if is_unmanaged {
            note_unmanaged();
        }
        // SAFETY: this thread's block, or none.
        let lent = unsafe { f.hook_stack.as_ref() }.filter(|_| shared);
        lent.inspect(|start| start.lend_piece(true));
        let mut r = execute(t, executed.0, executed.1);
        if let Way::Boot(_) = way {
            // The library was not executed: the call is made for the program itself.
            descriptors::keep_over_exec(false);
            note_unmanaged();
            is_unmanaged = true;
            r = execute(t, number, a);
        }
        // The exec failed: all is as before.
        lent.inspect(|start| start.lend_piece(false));
        if is_unmanaged {
            PAGER.add(Counter::UnmanagedExecs, 1u64.wrapping_neg());
        }
        descriptors::keep_over_exec(false);
        if !shared {
            runtime(t, || {
                if ACTIVE.load(Ordering::Acquire) {
                    PAGER.publish(true)
                } else {
                    PAGER.reserve(reserved::dormant_pages())
                }
            });
        }
        r
    })
}

/// Looks at the program that is to be executed. `None`: there is no memory for that.
fn look(t: &'static ThreadBlock, number: usize, a: &Args) -> Option<target::Target> {
    let buffer = scratch(t, target::BUFFER_BYTES)? as *mut [u8; target::BUFFER_BYTES];
    // SAFETY: memory of ours of that size, which nobody else has; the environment is built in it
    // only after this.
    Some(target::look(number, a, unsafe { &mut *buffer }))
}

/// The result of [`carry`]: addresses of an array of pointers and of a C string.
struct Carried {
    environment: usize,
    /// The library's path.
    library: usize,
}

const PRELOAD: &[u8] = b"LD_PRELOAD=";

/// The environment that the program gives to exec: its own array of C strings, held for the call.
struct Given {
    at: usize,
    count: usize,
    /// Where LD_PRELOAD is, if that is looked for. Of several the loader takes the last.
    preload_at: Option<usize>,
    /// A run inside this one executes its library to boot a program: that library needs to know of
    /// this run, and no more.
    is_booting: bool,
}

impl Given {
    /// `None`: the kernel could not read it either.
    fn read(at: usize, looks_for_preload: bool) -> Option<Given> {
        let mut given = Given { at, count: 0, preload_at: None, is_booting: false };
        // Words and strings lie apart, each kind on few pages.
        let (mut words, mut strings) = (Readable::default(), Readable::default());
        if at == 0 {
            return Some(given);
        }
        loop {
            let word_at = at.checked_add(given.count * 8)?;
            if !words.has(word_at) || !words.has(word_at.checked_add(7)?) {
                return None;
            }
            let variable = given.word(given.count);
            if variable == 0 {
                return Some(given);
            }
            if looks_for_preload && strings.starts_with(variable, PRELOAD)? {
                strings.reaches_end(variable)?;
                given.preload_at = Some(given.count);
            }
            given.is_booting |= strings.starts_with(variable, PROGRAM_ENV.as_bytes())?;
            given.count += 1;
        }
    }

    fn word(&self, i: usize) -> usize {
        // SAFETY: the program's own array of C strings, held for this call, and readable when it
        // was looked through.
        unsafe { ((self.at + i * 8) as *const usize).read_unaligned() }
    }

    /// Whether variable `i` is LD_PRELOAD, or an earlier one of that name, which the loader would
    /// take in place of one that is put before it.
    fn is_preload(&self, i: usize) -> bool {
        let is = |i| Readable::default().starts_with(self.word(i), PRELOAD) == Some(true);
        self.preload_at.is_some_and(|at| i == at || i < at && is(i))
    }

    /// The libraries that LD_PRELOAD names already.
    fn preload(&self) -> &[u8] {
        self.preload_at.map_or(&[], |i| c_bytes(self.word(i) + PRELOAD.len()))
    }
}

/// The program's memory, read only where the kernel can read it.
#[derive(Default)]
struct Readable {
    /// The page that the kernel has read last; 0: none.
    page: usize,
}

impl Readable {
    fn has(&mut self, at: usize) -> bool {
        let page = page_floor(at);
        if page == 0 || page != self.page && !buffers::is_readable(at) {
            return false;
        }
        self.page = page;
        true
    }

    fn byte(&mut self, at: usize) -> Option<u8> {
        // SAFETY: the byte could be read a moment ago.
        self.has(at).then(|| unsafe { *(at as *const u8) })
    }

    /// Whether a C string has this beginning. Reading stops at the first difference, at the latest
    /// at the string's end. `None`: it cannot be read so far.
    fn starts_with(&mut self, at: usize, prefix: &[u8]) -> Option<bool> {
        for (i, b) in prefix.iter().enumerate() {
            if self.byte(at.checked_add(i)?)? != *b {
                return Some(false);
            }
        }
        Some(true)
    }

    /// `None`: a C string cannot be read to its end.
    fn reaches_end(&mut self, at: usize) -> Option<()> {
        let mut end = at;
        while self.byte(end)? != 0 {
            end = end.checked_add(1)?;
        }
        Some(())
    }
}

/// Strings, one behind the other, in memory that was sized for all of them.
struct Strings {
    at: usize,
}

impl Strings {
    /// Adds the parts of a string; returns the address of the first.
    fn put(&mut self, parts: &[&[u8]]) -> usize {
        let start = self.at;
        for part in parts {
            // SAFETY: inside the scratch memory, which was sized for all of it.
            unsafe {
                core::ptr::copy_nonoverlapping(part.as_ptr(), self.at as *mut u8, part.len())
            };
            self.at += part.len();
        }
        start
    }
}

/// Builds the environment of the new program: the program's, plus the two variables that bring us
/// there. `first`: the library that has to be loaded before us, or nothing.
fn carry(t: &'static ThreadBlock, way: Way, given: &Given, first: &[u8]) -> Option<Carried> {
    let own = run::preload();
    let program = if let Way::Boot(path) = way { Some(path) } else { None };
    let (others, path) = (given.preload(), program.map_or(&[][..], c_bytes));
    let words = given.count + 3;
    let of_list = PRELOAD.len() + first.len() + 1 + own.len() + 1 + others.len() + 1;
    let of_program = PROGRAM_ENV.len() + 1 + path.len() + 1;
    let of_strings = of_list + of_program + CONTROL_FD_ENV.len() + 1 + TEXT_BYTES + 1;
    let base = scratch(t, words * 8 + of_strings)?;

    let mut strings = Strings { at: base + words * 8 };
    let preload = strings.put(&[PRELOAD]);
    if !first.is_empty() {
        strings.put(&[first, b":"]);
    }
    let library = strings.put(&[own]);
    if !others.is_empty() {
        strings.put(&[b":", others]);
    }
    strings.put(&[b"\0"]);
    let named = strings.put(&[PROGRAM_ENV.as_bytes(), b"=", path, b"\0"]);
    let handles = descriptors::handles();
    let mut text = [0; TEXT_BYTES];
    let text = handles.write_to(&mut text);
    let control = strings.put(&[CONTROL_FD_ENV.as_bytes(), b"=", text, b"\0"]);

    let mut out = 0;
    // SAFETY: so many words were reserved for the array.
    let mut push = |w: usize| unsafe {
        ((base + out * 8) as *mut usize).write_unaligned(w);
        out += 1;
    };
    match program {
        _ if given.is_booting => {}
        Some(_) => push(named),
        None => push(preload),
    }
    push(control);
    for i in (0..given.count).filter(|i| given.is_booting || !given.is_preload(*i)) {
        push(given.word(i));
    }
    push(0);
    Some(Carried { environment: base, library })
}

/// Memory for an environment, kept by the block: a vfork child that execs could not give it back.
fn scratch(t: &'static ThreadBlock, need: usize) -> Option<usize> {
    if t.exec_scratch_len.load(Ordering::Relaxed) < need {
        let len = need.next_multiple_of(16 * PAGE_SIZE);
        let new = map_anonymous(len, PROT_READ | PROT_WRITE).ok()?;
        let (old, old_len) =
            (t.exec_scratch.load(Ordering::Relaxed), t.exec_scratch_len.load(Ordering::Relaxed));
        if old_len > 0 {
            let _ = call!(nr::MUNMAP, old, old_len);
        }
        t.exec_scratch.store(new, Ordering::Relaxed);
        t.exec_scratch_len.store(len, Ordering::Relaxed);
    }
    Some(t.exec_scratch.load(Ordering::Relaxed))
}

/// A C string of the program without its NUL, which is held for the call that names it.
fn c_bytes<'a>(at: usize) -> &'a [u8] {
    // SAFETY: a C string of the program; reading stops at its end.
    let len = (0..).take_while(|i| unsafe { *((at + i) as *const u8) } != 0).count();
    // SAFETY: so many bytes of it were read.
    unsafe { core::slice::from_raw_parts(at as *const u8, len) }
}

#[cfg(test)]
mod tests {
    use super::super::descriptors::kernel_limits;
    use super::super::descriptors::tests::{LIMITS, believe};
    use super::*;
    use core::ffi::CStr;
    use std::ffi::CString;
    use std::vec::Vec;

    /// An environment of the program's, and the addresses of its strings up to the null.
    struct Environment {
        _strings: Vec<CString>,
        words: Vec<usize>,
    }

    impl Environment {
        fn new(variables: &[&str]) -> Environment {
            let strings: Vec<_> = variables.iter().map(|v| CString::new(*v).unwrap()).collect();
            let words = strings.iter().map(|s| s.as_ptr() as usize).chain([0]).collect();
            Environment { _strings: strings, words }
        }

        fn at(&self) -> usize {
            self.words.as_ptr() as usize
        }
    }

    /// The strings of an environment that was built, but for the variable of the descriptors.
    fn built(at: usize) -> Vec<&'static str> {
        // SAFETY: an array of C strings up to a null, in memory that stays.
        let words = (0..).map(|i| unsafe { *((at + i * 8) as *const usize) });
        let strings = words.take_while(|w| *w != 0);
        // SAFETY: as above.
        let strings = strings.map(|w| unsafe { CStr::from_ptr(w as *const _) }.to_str().unwrap());
        strings.filter(|s| !s.starts_with(CONTROL_FD_ENV)).collect()
    }

    #[test]
    fn a_program_gets_one_list_of_libraries_with_ours_first_however_many_there_were() {
        // In tests the path of ours is empty.
        let t = ThreadBlock::allocate().unwrap();
        let carried = |variables: &[&str], first: &[u8]| {
            let environment = Environment::new(variables);
            let given = Given::read(environment.at(), true).unwrap();
            built(carry(t, Way::Preload, &given, first).unwrap().environment).join(" ")
        };
        assert_eq!(carried(&[], b""), "LD_PRELOAD=");
        assert_eq!(carried(&["A=1", "LD_PRELOAD=", "B=2"], b""), "LD_PRELOAD= A=1 B=2");
        let several = ["LD_PRELOAD=/a.so", "A=1", "LD_PRELOAD=/b.so", "LD_PRELOADS=1"];
        assert_eq!(carried(&several, b"asan"), "LD_PRELOAD=asan::/b.so A=1 LD_PRELOADS=1");
        t.give_back();
    }

    #[test]
    fn words_that_the_kernel_writes_for_a_thread_are_known_by_the_flags() {
        const PLAIN: usize = CLONE_VM | CLONE_THREAD | CLONE_SETTLS;
        let words = |flags, parent, child| words_written(&[flags, 0, parent, child, 0, 0]);
        assert_eq!(words(PLAIN, 8, 16), [None, None]);
        assert_eq!(words(PLAIN | CLONE_PARENT_SETTID, 8, 16), [Some(8), None]);
        assert_eq!(words(CLONE_VM | CLONE_VFORK | CLONE_PIDFD, 8, 16), [Some(8), None]);
        for for_child in [CLONE_CHILD_SETTID, CLONE_CHILD_CLEARTID] {
            assert_eq!(words(PLAIN | for_child, 8, 16), [None, Some(16)]);
            assert_eq!(words(PLAIN | for_child | CLONE_PARENT_SETTID, 8, 16), [Some(8), Some(16)]);
            assert_eq!(words(PLAIN | for_child | CLONE_PARENT_SETTID, 8, 8), [Some(8), None]);
            assert_eq!(words(PLAIN | for_child, 8, 8), [None, Some(8)]);
        }
    }

    #[test]
    fn an_environment_that_the_kernel_cannot_read_is_left_to_it() {
        assert!(Given::read(0, true).is_some_and(|given| given.count == 0));
        let environment = Environment::new(&["A=1", "B=2"]);
        let given = Given::read(environment.at(), true).unwrap();
        assert_eq!((given.count, given.preload_at, given.is_booting), (2, None, false));
        assert!(Given::read([environment.words[0], 8, 0].as_ptr() as usize, true).is_none());
        // A list that goes on where memory ends, and one whose first pointer does.
        let page = map_anonymous(2 * PAGE_SIZE, PROT_READ | PROT_WRITE).unwrap();
        assert_eq!(call!(nr::MPROTECT, page + PAGE_SIZE, PAGE_SIZE, 0), 0);
        let end = page + PAGE_SIZE;
        // SAFETY: the last word of a page of our own.
        unsafe { ((end - 8) as *mut usize).write(environment.words[0]) };
        assert!(Given::read(end - 8, true).is_none() && Given::read(end - 4, true).is_none());
        assert!(Given::read(usize::MAX - 3, true).is_none());
        // A list of libraries without an end.
        let last = end - PRELOAD.len();
        // SAFETY: as above.
        unsafe { core::ptr::copy_nonoverlapping(PRELOAD.as_ptr(), last as *mut u8, PRELOAD.len()) };
        assert!(Given::read([last, 0].as_ptr() as usize, true).is_none());
        assert!(Given::read([last, 0].as_ptr() as usize, false).is_some(), "it is not looked for");
    }

    #[test]
    fn an_exec_that_fails_leaves_the_limits_as_they_were() {
        let _limits = LIMITS.lock();
        let (t, before) = (own_stack::current(), kernel_limits(None).unwrap());
        let [soft, hard] = before;
        let [believed_soft, believed] = [soft.min(hard - 1), hard - 1];
        believe(believed);
        let seen = |path: &CStr| {
            let (mut limits, a) = (None, [path.as_ptr() as usize, 0, 0, 0, 0, 0]);
            let r = with_limits_and_held(t, nr::EXECVE, &a, || {
                limits = Some(kernel_limits(None).unwrap());
                -8
            });
            (r, limits)
        };
        // The kernel is not even asked where there is no such program.
        assert_eq!(seen(c"/no/such/program"), (Errno::ENOENT.as_return(), None));
        assert_eq!(seen(c"/proc/self/status/program"), (-20, None), "a file is no directory");
        assert_eq!(seen(c"/proc/self/status"), (Errno::EACCES.as_return(), None));
        assert_eq!(kernel_limits(None), Ok(before));
        assert_eq!(seen(c"/bin/sh"), (-8, Some([believed_soft, believed])));
        let after = kernel_limits(None);
        match kernel_limits(Some(before)) {
            Ok(_) => assert_eq!(after, Ok(before)),
            Err(_) => std::println!("SKIPPED: nobody without rights raises a hard limit"),
        }
        believe(u64::MAX);
        assert_eq!(seen(c"/bin/sh"), (-8, Some(kernel_limits(None).unwrap())));
    }
}
