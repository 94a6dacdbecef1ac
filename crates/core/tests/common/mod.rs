//! One pager for a test program, and memory that it manages. The program plays the part of the
//! hooks: it calls the kernel and the notes under one lock.
#![allow(unsafe_code, dead_code)]

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use uzswap::control::{HugePages, Mechanism, Settings, Tree};
use uzswap::pager::{Active, Fault, FaultStream, Pager};
use uzswap::region::RangeFlags;

pub const P: usize = 4096;
pub static PAGER: Pager = Pager::new();
pub static LOST: AtomicBool = AtomicBool::new(false);

std::thread_local! {
    static STREAM: std::cell::RefCell<FaultStream> =
        const { std::cell::RefCell::new(FaultStream::new()) };
}

extern "C" fn on_fault(sig: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel's own arguments of a signal handler.
    let (addr, code) = unsafe {
        let uc = context as *mut libc::ucontext_t;
        ((*info).si_addr() as usize, (*uc).uc_mcontext.gregs[libc::REG_ERR as usize] as u64)
    };
    let r = STREAM.with(|s| PAGER.fault(addr, code, &mut s.borrow_mut()));
    if r != Fault::Served {
        LOST.store(true, Ordering::SeqCst);
        // SAFETY: back to the default: the access kills the test.
        unsafe { libc::signal(sig, libc::SIG_DFL) };
    }
}

/// Switches paging on. False: this machine does not allow it.
pub fn start(mechanism: Mechanism, memory_bytes: u64, huge_pages: HugePages) -> bool {
    static TREE: OnceLock<&'static Tree> = OnceLock::new();
    let tree = *TREE.get_or_init(|| {
        // SAFETY: all-zero is a valid Tree (atomics).
        unsafe { &*(std::alloc::alloc_zeroed(std::alloc::Layout::new::<Tree>()) as *const Tree) }
    });
    tree.limit_pages.store((memory_bytes / P as u64) as i64, Ordering::SeqCst);
    PAGER.connect(tree, tree.claim(std::process::id()).unwrap());
    let mut settings = Settings {
        memory_bytes,
        mechanism: mechanism as u32,
        huge_pages: huge_pages as u32,
        ..Settings::new()
    };
    settings.store_dir[..4].copy_from_slice(b"/tmp");
    settings.store_dir_len = 4;
    let active = match Active::open(&settings, false, &tree.leases) {
        Ok(a) => Box::leak(Box::new(a)),
        Err(e) => {
            println!("SKIPPED: {} is not available: {e}", mechanism.name());
            return false;
        }
    };
    let signal = uzswap::sys::mechanism::Mechanism::signal(active.kind);
    // SAFETY: installs the handler above on the stack it finds (test threads have ordinary stacks).
    unsafe {
        let mut sa: libc::sigaction = std::mem::zeroed();
        sa.sa_sigaction = on_fault as *const () as usize;
        sa.sa_flags = libc::SA_SIGINFO;
        libc::sigfillset(&mut sa.sa_mask);
        assert_eq!(libc::sigaction(signal, &sa, std::ptr::null_mut()), 0);
    }
    let mut s = PAGER.lock();
    PAGER.set_active(&mut s, active).unwrap();
    PAGER.activate_ranges(&mut s);
    true
}

pub fn map(len: usize) -> usize {
    map_parts(len, |base| std::iter::once(base..base + len))
}

/// Memory of which only some parts, by the address of the whole, are managed.
pub fn map_parts<I: Iterator<Item = Range<usize>>>(
    len: usize,
    parts: impl FnOnce(usize) -> I,
) -> usize {
    let mut s = PAGER.lock();
    // SAFETY: a fresh mapping.
    let p = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            3,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    assert_ne!(p, libc::MAP_FAILED);
    for part in parts(p as usize) {
        PAGER.note_mapped(&mut s, part.start, part.end, 3, RangeFlags::NONE);
    }
    p as usize
}

pub fn word(addr: usize) -> &'static AtomicU64 {
    // SAFETY: an aligned word of a mapping of this test.
    unsafe { &*(addr as *const AtomicU64) }
}

/// Fills a page of the test: half noise, half one value, so that it compresses about twofold.
pub fn fill(page: usize, value: u64) {
    let mut x = value | 1;
    for i in 0..512 {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        word(page + i * 8).store(if i % 2 == 0 { value } else { x }, Ordering::Relaxed);
    }
}

pub fn check(page: usize, value: u64) {
    let mut x = value | 1;
    for i in 0..512 {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        let want = if i % 2 == 0 { value } else { x };
        assert_eq!(word(page + i * 8).load(Ordering::Relaxed), want, "page {page:#x} word {i}");
    }
}

pub fn rnd(s: &mut u64) -> u64 {
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    *s
}

pub fn checked() {
    let s = PAGER.lock();
    PAGER.check(&s);
}
