//! The takeover: what happens when the program makes a system call.
//!
//! ```text
//!  program's `syscall` --patched--> patch/entry.rs --> hook (here) --+-- memory.rs       mmap, munmap, mremap, brk, madvise ...
//!                                                                    +-- signals.rs      handlers, masks, alternate stacks
//!                                                                    +-- process.rs      fork, clone, exec, exit
//!                                                                    +-- descriptors.rs  close, dup2: ours are hidden
//!                                                                    +-- buffers.rs      everything with pointers
//! ```
//!
//! # Where code runs
//! - The hook runs on the program's stack, which may itself be managed memory. It may fault there
//!   like the program, so it holds no lock. It uses no wide vector registers (they are not saved
//!   for it).
//! - Code that needs the pager's lock runs inside [`runtime`]: all signals blocked but the fault
//!   signal, on the thread's own runtime stack, with values moved in and out, so that nothing it
//!   touches can be missing.
//! - The fault handler runs on the thread's own alternate stack with all signals blocked.
//!
//! # Safety charter
//! The hook receives the program's registers and acts for the kernel: addresses in arguments are
//! the program's and are touched only by the kernel (system calls) or through the pager. References
//! to `ThreadBlock` are to mappings of our own that are reused but never unmapped.
#![allow(unsafe_code)]

mod buffers;
mod cancel;
mod descriptors;
mod ending;
mod evictor;
mod file_memory;
mod guests;
mod identity;
mod inflight;
mod memory;
mod own_exe;
pub(crate) mod own_path;
mod own_userfaultfd;
mod pins;
mod process;
mod relatives;
mod reserved;
mod run;
mod sandbox;
mod signals;
mod start;
mod target;
pub(crate) use memory::leave_later_texts;
pub(crate) use run::set_preload;
pub use start::constructor;
pub(crate) use start::{leave_unmanaged, take_over};
mod thread;

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use uzswap::control::Counter;
use uzswap::pager::Pager;
use uzswap::sys::{Errno, nr, syscall};

use crate::calls::is_kept;
use crate::calls::shapes::{Disposition, disposition, has_pointers};
use crate::patch::{
    self, ACTION_CLONE_THREAD, ACTION_INLINE, ACTION_RETURN, CLASS_COUNT, CLASS_INLINE,
    CLASS_LIGHT_HOOK, CLASS_TABLE, HookFrame,
};
use thread::ThreadBlock;

/// The one pager of this process.
pub static PAGER: Pager = Pager::new();

/// This process's id, to recognise a child that shares our memory (vfork).
static PID: AtomicU32 = AtomicU32::new(0);

/// Set while paging is on: buffers must be held.
static ACTIVE: AtomicBool = AtomicBool::new(false);

/// Set if UZSWAP_DEBUG was set for the run.
static DEBUG: AtomicBool = AtomicBool::new(false);

/// A system call's arguments, as the program gave them.
pub(crate) type Args = [usize; 6];

/// Makes a system call as the program would.
#[inline]
pub(crate) fn raw(number: usize, args: Args) -> isize {
    // SAFETY: the program's own call, or one that the caller has made harmless (charter).
    unsafe { syscall(number, args) }
}

/// Makes a system call of the runtime's own with up to six arguments.
macro_rules! call {
    ($nr:expr $(, $a:expr)* $(,)?) => {
        $crate::takeover::raw($nr, uzswap::sys::six(&[$($a as usize),*]))
    };
}
pub(crate) use call;

/// The hook's decision on a call.
pub(crate) enum Answer {
    /// The call's result: the instruction does not run.
    Result(isize),
    /// Let the instruction run in its place, with the arguments as they are in the frame now.
    Inline,
    /// Make the thread that the frame asks for (see `patch/entry.rs`).
    CloneThread(*mut ThreadBlock),
}

pub(crate) extern "C" fn hook(frame: *mut HookFrame) -> u64 {
    // SAFETY: the trampoline passes its own live frame.
    let f = unsafe { &mut *frame };
    let number = f.rax as u32 as usize;
    let args: Args = [f.rdi, f.rsi, f.rdx, f.r10, f.r8, f.r9].map(|r| r as usize);
    // Without memory for a block the kernel decides alone, as it would without us.
    let Some(t) = thread::find() else { return ACTION_INLINE };
    t.take_back_holds();
    if f.hook_stack.is_null() {
        t.forget_abandoned_hooks(f.rsp as usize);
        t.holds().drop_abandoned(f.rsp as usize, t.alternate_range());
    } else {
        // Holds of hooks whose frames lie below this one's on the hook stack were abandoned.
        t.holds().drop_abandoned(frame as usize, 0..0);
    }
    // Only this thread has the word, and a handler puts back what it finds.
    let (word, interrupted) = (patch::cancel_word(f), t.cancel_word.load(Ordering::Relaxed));
    t.cancel_word.store(word, Ordering::Relaxed);
    let mut answer = dispatch(t, number, args, f);
    // In its place the call would wait though the thread was cancelled during the hook. close is
    // not made here: musl takes EINTR for its success.
    if word != 0 && number != nr::CLOSE && matches!(answer, Answer::Inline) {
        let args = [f.rdi, f.rsi, f.rdx, f.r10, f.r8, f.r9].map(|r| r as usize);
        answer = Answer::Result(cancel::call(t, number, args));
    }
    // The word is that of a call which the program's handler has interrupted, or nobody's.
    t.cancel_word.store(interrupted, Ordering::Relaxed);
    match answer {
        Answer::Result(r) => {
            f.rax = r as u64;
            ACTION_RETURN
        }
        Answer::Inline => ACTION_INLINE,
        Answer::CloneThread(block) => {
            f.thread_block = block.cast();
            ACTION_CLONE_THREAD
        }
    }
}

/// Makes a call that reads or writes words of ours on the program's stack. They may be paged out
/// after `attempt` has touched them and before the kernel does: a bad address is one that stays
/// bad. `attempt` writes the words anew each time.
///
/// Trying again is not enough. In a process that waits for its turn each touch waits until a signal
/// comes, whose handler then runs before the call is made, while the evictor takes all pages: no
/// number of tries would do. So the stack around the words is held.
fn with_own_words(mut attempt: impl FnMut() -> isize) -> isize {
    const TRIES: u32 = 2;
    for _ in 0..TRIES {
        let result = attempt();
        if result != Errno::EFAULT.as_return() {
            return result;
        }
    }
    buffers::with_stack_held(attempt)
}

/// Calls that read or set the limit on descriptors, which the program sees as if ours did not
/// exist.
const LIMITS: [usize; 3] = [nr::GETRLIMIT, nr::SETRLIMIT, nr::PRLIMIT64];

/// Calls that name memory which the kernel goes on using.
const KEPT: [usize; 3] = [nr::SET_ROBUST_LIST, nr::SET_TID_ADDRESS, nr::RSEQ];

fn dispatch(t: &'static ThreadBlock, number: usize, mut args: Args, f: &mut HookFrame) -> Answer {
    if own_exe::is_named(number)
        && let Some(answer) = own_exe::call(t, number, &mut args)
    {
        return answer;
    }
    if descriptors::ASKING.contains(&number) && descriptors::is_hidden(number, &args) {
        return Answer::Result(Errno::EBADF.as_return());
    }
    pins::note(number, &args);
    own_userfaultfd::note(t, number, &args);
    identity::note(number, &args);
    sandbox::note(t, number, &args);
    if number == nr::PTRACE && guests::stops_us(&args) {
        return Answer::Result(guests::stop_thread(t, args));
    }
    let answer = match disposition(number) {
        _ if number == nr::RT_SIGPENDING => signals::call(t, number, args),
        _ if LIMITS.contains(&number) => descriptors::limit_call(t, number, args),
        Disposition::MemoryMap => memory::call(t, number, args),
        Disposition::Signal if number == nr::SIGALTSTACK => {
            Some(Answer::Result(signals::sigaltstack(t, args, f.rsp as usize)))
        }
        Disposition::Signal => signals::call(t, number, args),
        Disposition::Process => {
            if matches!(number, nr::EXECVE | nr::EXECVEAT) {
                descriptors::before_exec();
            }
            process::call(t, number, args, f)
        }
        Disposition::Descriptor => descriptors::call(number, args),
        Disposition::Special => buffers::special(t, number, args),
        Disposition::Piecewise => buffers::piecewise(t, number, args),
        Disposition::Buffers | Disposition::ConsumesBeforeFault => None,
        Disposition::Plain | Disposition::Unimplemented => return Answer::Inline,
    };
    if KEPT.contains(&number) {
        buffers::keep_named(t, number, &args);
        return Answer::Inline;
    }
    if number == nr::IOCTL && is_kept(args[1] as u32) {
        buffers::keep_named(t, number, &args);
    }
    match answer {
        Some(a) => a,
        None if ACTIVE.load(Ordering::Acquire) && has_pointers(number) => {
            Answer::Result(buffers::held_call(t, number, buffers::clamp_length(number, args)))
        }
        None => Answer::Inline,
    }
}

/// Writes which calls pass the hook: those that change mappings, signals, processes and descriptors
/// always, those with buffers once paging is on.
pub(crate) fn set_classes(active: bool) {
    for (number, class) in CLASS_TABLE.iter().enumerate().take(CLASS_COUNT.min(nr::COUNT)) {
        let hooked = match disposition(number) {
            Disposition::MemoryMap
            | Disposition::Signal
            | Disposition::Process
            | Disposition::Descriptor
            | Disposition::Special => true,
            _ if KEPT.contains(&number)
                || LIMITS.contains(&number)
                || number == nr::RT_SIGPENDING =>
            {
                true
            }
            _ if descriptors::ASKING.contains(&number) || pins::PINNING.contains(&number) => true,
            _ if number == nr::PTRACE => true,
            _ if own_exe::is_named(number) => true,
            _ if identity::LOSING.contains(&number) => true,
            Disposition::Piecewise | Disposition::Buffers | Disposition::ConsumesBeforeFault => {
                active
            }
            Disposition::Plain | Disposition::Unimplemented => false,
        };
        // This call must find the stack exactly as it is.
        let never = number == nr::RT_SIGRETURN;
        let class_of = if hooked && !never { CLASS_LIGHT_HOOK } else { CLASS_INLINE };
        class.store(class_of, Ordering::Release);
    }
}

/// Makes all calls run without the hook from now on, in all threads: the process is left to itself.
fn set_no_classes() {
    CLASS_TABLE.iter().for_each(|class| class.store(CLASS_INLINE, Ordering::Release));
}

/// Runs `f` where the pager's lock may be taken: signals blocked, on this thread's runtime stack.
/// `f` and its result are moved, so it must capture by value: nothing on the program's stack may be
/// touched inside.
pub(crate) fn runtime<R>(t: &'static ThreadBlock, f: impl FnOnce() -> R) -> R {
    struct Job<F, R> {
        f: Option<F>,
        result: Option<R>,
    }
    extern "C" fn run<F: FnOnce() -> R, R>(job: *mut u8) {
        let job = job.cast::<Job<F, R>>();
        // Both moves happen on this stack while no lock is held: the program's stack may fault
        // here.
        // SAFETY: the job lives on the caller's stack until we return.
        let f = unsafe { (*job).f.take() }.expect("a job runs once");
        let result = f();
        // SAFETY: as above.
        unsafe { (*job).result = Some(result) };
    }
    let mask = signals::block_all();
    let was_busy = t.is_busy.swap(1, Ordering::Relaxed);
    let mut job = Job { f: Some(f), result: None };
    let p = (&raw mut job).cast::<u8>();
    if t.on_own_stack() {
        run_here(p, run_of(&job));
    } else {
        // SAFETY: the runtime stack is ours, and signals are blocked: nobody else uses it
        // meanwhile.
        unsafe { patch::call_on_stack_saving_vectors(t.runtime_stack_top(), run_of(&job), p) };
    }
    t.is_busy.store(was_busy, Ordering::Relaxed);
    signals::restore(mask);
    fn run_of<F: FnOnce() -> R, R>(_: &Job<F, R>) -> extern "C" fn(*mut u8) {
        run::<F, R>
    }
    fn run_here(p: *mut u8, f: extern "C" fn(*mut u8)) {
        f(p)
    }
    job.result.expect("the job has run")
}

/// Counts an event in this process's slot of the control block.
pub(crate) fn count(c: Counter, n: u64) {
    PAGER.add(c, n);
}

/// Prints numbers on stderr when the run was started with UZSWAP_DEBUG: for finding errors in
/// uzswap itself.
pub(crate) fn debug(values: &[(&str, u64)]) {
    if !DEBUG.load(Ordering::Relaxed) {
        return;
    }
    let mut line = [0u8; 256];
    let mut n = 0;
    let mut put = |bytes: &[u8]| {
        let k = bytes.len().min(line.len() - n);
        line[n..n + k].copy_from_slice(&bytes[..k]);
        n += k;
    };
    put(b"uzswap: debug:");
    for (name, value) in values {
        put(b" ");
        put(name.as_bytes());
        put(b" ");
        let hex: [u8; 16] =
            core::array::from_fn(|i| b"0123456789abcdef"[(value >> (60 - 4 * i)) as usize & 15]);
        put(&hex);
    }
    put(b"\n");
    let _ = call!(nr::WRITE, 2, line.as_ptr(), n);
}

/// Stops the process with a message: a broken invariant of ours. Never returns.
pub(crate) fn fatal(message: &str) -> ! {
    let parts: [&[u8]; 3] = [b"uzswap: fatal: ", message.as_bytes(), b"\n"];
    for p in parts {
        let _ = call!(nr::WRITE, 2, p.as_ptr(), p.len());
    }
    loop {
        let _ = call!(nr::EXIT_GROUP, 134);
    }
}
