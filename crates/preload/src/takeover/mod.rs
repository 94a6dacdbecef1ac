//! The takeover: what happens when the program makes a system call.
//!
//! ```text
//!  program's `syscall` --patched--> patch/entry.rs --> dispatch.rs --+-- memory.rs       mmap, munmap, mremap, brk, madvise ...
//!                                                                    +-- signals.rs      handlers, masks, alternate stacks
//!                                                                    +-- process.rs      fork, clone, exec, exit
//!                                                                    +-- descriptors.rs  close, dup2: ours are hidden
//!                                                                    +-- buffers.rs      everything with pointers
//! ```
//!
//! All files import this one. A file, and the folder of its name, imports others only from the rows
//! below its own, and from its left in its row (`tests/tests/tidy/takeover.rs` reads this table):
//!
//! ```text
//!   the whole          dispatch start
//!   processes          others target ending sandbox identity guests process
//!   the evictor        wishes evictor_work
//!   memory             memory own_userfaultfd
//!   amounts            file_memory reserved relatives inflight
//!   signals            signals
//!   what is seen       own_path own_exe pins descriptors routes
//!   buffers            cancel buffers
//!   where code runs    evictor thread owners masks own_stack
//!   facts              run outside
//! ```
//!
//! # Where code runs
//! - The hook runs on the program's stack, which may itself be managed memory, or on the thread's
//!   hook stack (`patch/frame.rs`). On the program's stack it may fault like the program, so it
//!   holds no lock. It uses no wide vector registers (they are not saved for it).
//! - Code that needs the pager's lock runs inside `own_stack::runtime`: all signals blocked but the
//!   fault signal, on the thread's own runtime stack, with values moved in and out, so that nothing
//!   it touches can be missing.
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
mod dispatch;
mod ending;
mod evictor;
mod evictor_work;
mod file_memory;
mod guests;
mod identity;
mod inflight;
mod masks;
mod memory;
mod others;
mod outside;
mod own_exe;
pub(crate) mod own_path;
mod own_stack;
mod own_userfaultfd;
mod owners;
mod pins;
mod process;
mod relatives;
mod reserved;
mod routes;
mod run;
mod sandbox;
mod signals;
mod start;
mod target;
mod thread;
mod wishes;

pub(crate) use memory::leave_later_texts;
pub(crate) use run::set_preload;
pub use start::constructor;
pub(crate) use start::{leave_unmanaged, take_over};

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use uzswap::control::Counter;
use uzswap::pager::Pager;
use uzswap::sys::{nr, syscall};

use crate::patch::ThreadStart;

/// The one pager of this process.
pub static PAGER: Pager = Pager::new();

/// This process's id, to recognise a child that shares our memory (vfork).
static PID: AtomicU32 = AtomicU32::new(0);

/// Set while paging is on: buffers must be held.
static ACTIVE: AtomicBool = AtomicBool::new(false);

/// Set when the program has installed a seccomp filter: it may end a process that makes a call
/// which it does not know.
static FILTERED: AtomicBool = AtomicBool::new(false);
/// Set when paging could not be switched on or has ended: it is not tried again.
static UNMANAGED: AtomicBool = AtomicBool::new(false);

/// Set if UZSWAP_DEBUG was set for the run.
static DEBUG: AtomicBool = AtomicBool::new(false);

/// Whether this process is not paged, nor will be.
fn is_unmanaged() -> bool {
    UNMANAGED.load(Ordering::Acquire)
}

fn set_unmanaged() {
    UNMANAGED.store(true, Ordering::Release);
}

/// Whether the caller is a child that shares our memory (vfork), or a guest.
fn is_shared_child() -> bool {
    uzswap::sys::getpid() != PID.load(Ordering::Relaxed)
}

/// Whether paging is on, or is not to be switched on here: a child of vfork has descriptors and
/// threads of its own, which end with it, and those of paging must not.
fn is_settled() -> bool {
    ACTIVE.load(Ordering::Acquire) || is_unmanaged() || is_shared_child()
}

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
    CloneThread(*mut ThreadStart),
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
