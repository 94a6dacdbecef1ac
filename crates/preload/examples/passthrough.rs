//! A preload library whose hook sees every system call and passes it through, for the tests of
//! `patch`.
//!
//! Settings come from the environment:
//! - `UZ_PASSTHROUGH=return` (default): calls are made inside the hook; `inline`: by the program's
//!   instruction; `light`: inside the hook, which has only xmm0-15 saved; `dormant`: everything is
//!   patched but nothing is hooked.
//! - `UZ_PASSTHROUGH_SAVE=0|1`: save vectors by `fxsave` or `xsave` instead of `xsavec`.
//! - `UZ_PASSTHROUGH_LOG=FILE`: what was patched at start, and the number of hooked calls at exit,
//!   are appended.
//! - `UZ_PASSTHROUGH_CACHE=DIR`: where patch tables are kept.
//! - `UZ_PASSTHROUGH_SCRUB=1`: the hook overwrites all vector registers, as real work would.
//!
//! # Safety charter
//! The calls are the program's own, with its own arguments. New threads get a small stack from here
//! that is used before they return to the program.
#![allow(unsafe_code)]

use core::arch::asm;
use core::ffi::{CStr, c_char};
use core::fmt::Write;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use uzswap::sys::{nr, syscall};
use uzswap_preload::patch::{
    self, ACTION_CLONE_THREAD, ACTION_INLINE, ACTION_RETURN, HOOK_STACK_BYTES, HookFrame, Hooks,
    ROUTE_HOOK, ROUTE_INLINE, ROUTE_LIGHT_HOOK, ROUTE_TABLE, ThreadStart,
};

const CLONE_VM: u64 = 0x100;
const CLONE_THREAD: u64 = 0x10000;
const STACK_BYTES: usize = 32 << 10;
/// Bytes of a block, below the hook stack.
const BLOCK_BYTES: usize = 4096;
const PROT_EXEC: u64 = 4;
const MAP_ANONYMOUS: u64 = 0x20;
const SIG_SETMASK: usize = 2;

/// A call that no kernel has; its answer tells a test program that it is hooked.
const MAGIC_CALL: usize = 499;
const MAGIC_ANSWER: u64 = 4242;

static INLINE_ALL: AtomicBool = AtomicBool::new(false);
static SCRUB: AtomicBool = AtomicBool::new(false);
static CALLS: AtomicU64 = AtomicU64::new(0);
static LOG_FD: AtomicI32 = AtomicI32::new(-1);

/// The block of a new thread, at the low end of the stack on which it starts.
#[repr(C)]
struct Block {
    start: ThreadStart,
    mask: u64,
}

fn raw(number: usize, a: [usize; 6]) -> isize {
    // SAFETY: the arguments are the program's, or those of the few calls made below.
    unsafe { syscall(number, a) }
}

fn set_mask(new: u64) -> u64 {
    let mut old = 0u64;
    raw(nr::RT_SIGPROCMASK, [SIG_SETMASK, &raw const new as usize, &raw mut old as usize, 8, 0, 0]);
    old
}

fn scrub_vectors() {
    // SAFETY: zeroing vector registers that are declared as overwritten.
    unsafe {
        asm!(
            "pcmpeqd xmm0, xmm0", "pcmpeqd xmm1, xmm1", "pcmpeqd xmm2, xmm2", "pcmpeqd xmm3, xmm3",
            "pcmpeqd xmm4, xmm4", "pcmpeqd xmm5, xmm5", "pcmpeqd xmm6, xmm6", "pcmpeqd xmm7, xmm7",
            "pcmpeqd xmm8, xmm8", "pcmpeqd xmm9, xmm9", "pcmpeqd xmm10, xmm10",
            "pcmpeqd xmm11, xmm11",
            "pcmpeqd xmm12, xmm12", "pcmpeqd xmm13, xmm13", "pcmpeqd xmm14, xmm14",
            "pcmpeqd xmm15, xmm15",
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _,
            out("xmm5") _,
            out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _,
            out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack, nomem)
        );
        if is_x86_feature_detected!("avx") {
            asm!("vzeroall", out("xmm0") _, options(nostack, nomem));
        }
        if is_x86_feature_detected!("avx512f") {
            asm!(
                "vpternlogd zmm16, zmm16, zmm16, 255",
                "vpternlogd zmm31, zmm31, zmm31, 255",
                "kxnorw k1, k1, k1",
                "kxnorw k7, k7, k7",
                options(nostack, nomem)
            );
        }
    }
}

/// Works on another stack, as a light hook does for work that may touch all vectors.
fn scrub_elsewhere() {
    extern "C" fn work(_: *mut u8) {
        scrub_vectors();
    }
    let mut stack = [0u8; 16 << 10];
    let top = stack.as_mut_ptr_range().end as usize;
    // SAFETY: a stack that is big enough and nobody else's, a function that returns. (A part of the
    // program's stack, because threads come and go; real hooks have one of their own.)
    unsafe { patch::call_on_stack_saving_vectors(top, work, core::ptr::null_mut()) };
}

extern "C" fn hook(frame: *mut HookFrame) -> u64 {
    // SAFETY: the stub's frame, ours for the time of the call.
    let f = unsafe { &mut *frame };
    CALLS.fetch_add(1, Ordering::Relaxed);
    if SCRUB.load(Ordering::Relaxed) {
        if ROUTE_TABLE[0].load(Ordering::Relaxed) == ROUTE_LIGHT_HOOK {
            scrub_elsewhere();
        } else {
            scrub_vectors();
        }
    }
    let number = f.rax as u32 as usize;
    let (flags, stack) = match number {
        nr::CLONE => (f.rdi, f.rsi),
        // SAFETY: the program's clone_args; the first word is the flags, the sixth the stack.
        nr::CLONE3 => unsafe { (*(f.rdi as *const u64), *(f.rdi as *const u64).add(5)) },
        _ => (0, 0),
    };
    match number {
        nr::EXIT_GROUP => {
            log(format_args!("calls {}\n", CALLS.load(Ordering::Relaxed)));
            ACTION_INLINE
        }
        nr::CLONE | nr::CLONE3 if flags & CLONE_THREAD != 0 => {
            let stack = raw(
                nr::MMAP,
                [0, BLOCK_BYTES + HOOK_STACK_BYTES + STACK_BYTES, 3, 0x22, usize::MAX, 0],
            );
            if stack < 0 {
                f.rax = stack as u64;
                return ACTION_RETURN;
            }
            let block = stack as *mut Block;
            let mask = set_mask(u64::MAX);
            let hook_top = stack as usize + BLOCK_BYTES + HOOK_STACK_BYTES;
            let start = ThreadStart::new(hook_top + STACK_BYTES, hook_top);
            // SAFETY: fresh memory.
            unsafe { block.write(Block { start, mask }) };
            f.thread_block = block.cast();
            ACTION_CLONE_THREAD
        }
        MAGIC_CALL => {
            f.rax = MAGIC_ANSWER;
            ACTION_RETURN
        }
        nr::VFORK | nr::RT_SIGRETURN | nr::EXIT => ACTION_INLINE,
        // The child must not come back into this frame: it shares it, or has another stack.
        nr::CLONE | nr::CLONE3 if flags & CLONE_VM != 0 || stack != 0 => ACTION_INLINE,
        _ if INLINE_ALL.load(Ordering::Relaxed) && number != nr::MMAP => ACTION_INLINE,
        _ => {
            let args = [f.rdi, f.rsi, f.rdx, f.r10, f.r8, f.r9].map(|r| r as usize);
            let result = raw(number, args);
            f.rax = result as u64;
            if number == nr::MMAP
                && result > 0
                && f.rdx & PROT_EXEC != 0
                && f.r10 & MAP_ANONYMOUS == 0
            {
                let (addr, len, offset) = (result as usize, args[1], args[5]);
                // SAFETY: just mapped like this, and nobody knows the address yet.
                let r =
                    unsafe { patch::patch_file_mapping(f.r8 as i32, addr, len, offset, args[2]) };
                if r.sites > 0 {
                    log(format_args!("mapped sites {} patched {}\n", r.sites, r.patched));
                }
            }
            ACTION_RETURN
        }
    }
}

extern "C" fn thread_start(block: *mut ThreadStart) {
    patch::thread_slot_set(block as usize);
    // SAFETY: the block made by the hook.
    set_mask(unsafe { (*block.cast::<Block>()).mask });
    // The stack is leaked: this is a test.
}

extern "C" fn clone_parent(block: *mut ThreadStart, _result: isize) {
    // SAFETY: the block made by the hook; nobody unmaps it.
    set_mask(unsafe { (*block.cast::<Block>()).mask });
}

struct Line([u8; 256], usize);
impl Write for Line {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        let n = s.len().min(self.0.len() - self.1);
        self.0[self.1..self.1 + n].copy_from_slice(&s.as_bytes()[..n]);
        self.1 += n;
        Ok(())
    }
}

fn log(text: core::fmt::Arguments) {
    let fd = LOG_FD.load(Ordering::Relaxed);
    if fd >= 0 {
        let mut line = Line([0; 256], 0);
        let _ = line.write_fmt(text);
        raw(nr::WRITE, [fd as usize, line.0.as_ptr() as usize, line.1, 0, 0, 0]);
    }
}

fn now_ns() -> u64 {
    let mut t = [0u64; 2];
    raw(nr::CLOCK_GETTIME, [1, t.as_mut_ptr() as usize, 0, 0, 0, 0]);
    t[0] * 1_000_000_000 + t[1]
}

extern "C" fn constructor(_argc: i32, _argv: *const *const c_char, mut envp: *const *const c_char) {
    let (mut cache, mut log_path, mut save_method, mut route) = (None, None, None, ROUTE_HOOK);
    // SAFETY: the loader passes the environment, a null-terminated array of C strings.
    unsafe {
        while !envp.is_null() && !(*envp).is_null() {
            let entry = CStr::from_ptr(*envp).to_bytes();
            match entry.iter().position(|&b| b == b'=').map(|i| (&entry[..i], &entry[i + 1..])) {
                Some((b"UZ_PASSTHROUGH", b"inline")) => INLINE_ALL.store(true, Ordering::Relaxed),
                Some((b"UZ_PASSTHROUGH", b"dormant")) => route = ROUTE_INLINE,
                Some((b"UZ_PASSTHROUGH", b"light")) => route = ROUTE_LIGHT_HOOK,
                Some((b"UZ_PASSTHROUGH_SAVE", &[digit])) => save_method = Some(digit - b'0'),
                Some((b"UZ_PASSTHROUGH_SCRUB", _)) => SCRUB.store(true, Ordering::Relaxed),
                Some((b"UZ_PASSTHROUGH_CACHE", dir)) => cache = Some(dir),
                Some((b"UZ_PASSTHROUGH_LOG", path)) => log_path = Some(path.as_ptr()),
                _ => {}
            }
            envp = envp.add(1);
        }
    }
    if let Some(path) = log_path {
        const O_WRONLY_CREAT_APPEND_CLOEXEC: usize = 0o1 | 0o100 | 0o2000 | 0o2000000;
        let fd = raw(nr::OPEN, [path as usize, O_WRONLY_CREAT_APPEND_CLOEXEC, 0o600, 0, 0, 0]);
        if fd >= 0 {
            let high = raw(nr::FCNTL, [fd as usize, 1030, 900, 0, 0, 0]);
            raw(nr::CLOSE, [fd as usize, 0, 0, 0, 0, 0]);
            LOG_FD.store(high as i32, Ordering::Relaxed);
        }
    }
    patch::set_hooks(Hooks { hook, thread_start, clone_parent });
    if let Some(method) = save_method {
        patch::force_save_method(method as u32);
    }
    let start = now_ns();
    // SAFETY: a constructor of an initfirst library: one thread.
    let report = unsafe { patch::patch_all_loaded(cache) };
    let ns = now_ns() - start;
    for c in &ROUTE_TABLE {
        c.store(route, Ordering::Relaxed);
    }
    log(format_args!(
        "start objects {} sites {} patched {} unpatched {} ns {}\n",
        report.objects, report.sites, report.patched, report.unpatched, ns
    ));
    for d in &report.details {
        let name = core::str::from_utf8(&d.name).unwrap_or("?");
        log(format_args!("object {} sites {} patched {}\n", name, d.sites, d.patched));
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn(i32, *const *const c_char, *const *const c_char) = constructor;
