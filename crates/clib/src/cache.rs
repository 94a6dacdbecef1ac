//! `uzswap_cache_*`: the cache of pages.
//!
//! # Safety charter
//! A `Handle` is made by `open` and freed by `close`, and in between only shared: all it has is
//! made for several threads. Pages are 4096 bytes of the caller's, of any alignment, borrowed for a
//! call.
#![allow(unsafe_code)]

use std::ffi::{OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use uzswap::{Cache, Config, Forking, Page};

use crate::border::{
    Outcome, Result, Versioned, borrowed, give, number, of_engine, read_sized, text, write_sized,
};

/// `uzswap_cache`.
pub struct Handle {
    /// The guard of the thread that is about to fork and has all of the cache's locks; else null.
    forking: AtomicPtr<Forking<'static>>,
    cache: Cache,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.take_forking();
    }
}

impl Handle {
    fn take_forking(&self) -> Option<Box<Forking<'static>>> {
        let forking = self.forking.swap(null_mut(), Ordering::AcqRel);
        // SAFETY: the thread that takes the pointer out owns the box that was put in.
        (!forking.is_null()).then(|| unsafe { Box::from_raw(forking) })
    }
}

/// `struct uzswap_config`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ConfigOfC {
    pub size: usize,
    pub memory_bytes: u64,
    pub compressor: *const c_char,
    pub store_directory: *const c_char,
    pub flags: u64,
}

/// A flag of the configuration.
pub const UNENCRYPTED: u64 = 1;

// SAFETY: a size, words and pointers.
unsafe impl Versioned for ConfigOfC {
    const LEAST_BYTES: usize = 40;
}

/// `struct uzswap_cache_stats`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct StatsOfC {
    pub size: usize,
    pub memory_bytes: u64,
    pub used_bytes: u64,
    pub pages: u64,
    pub same_filled_pages: u64,
    pub memory_pages: u64,
    pub store_pages: u64,
    pub incompressible_pages: u64,
    pub compressed_bytes: u64,
    pub store_bytes: u64,
    pub stores: u64,
    pub failed_stores: u64,
    pub loads: u64,
    pub store_loads: u64,
    pub missing_loads: u64,
    pub read_errors: u64,
    pub corrupt_loads: u64,
    pub drops: u64,
    pub written_back_pages: u64,
    pub written_bytes: u64,
    pub read_bytes: u64,
    pub store_error: i64,
}

// SAFETY: a size and words.
unsafe impl Versioned for StatsOfC {
    const LEAST_BYTES: usize = 176;
}

impl StatsOfC {
    fn of(s: &uzswap::Stats) -> StatsOfC {
        StatsOfC {
            size: size_of::<StatsOfC>(),
            memory_bytes: s.memory_bytes,
            used_bytes: s.used_bytes,
            pages: s.pages,
            same_filled_pages: s.same_filled_pages,
            memory_pages: s.memory_pages,
            store_pages: s.store_pages,
            incompressible_pages: s.incompressible_pages,
            compressed_bytes: s.compressed_bytes,
            store_bytes: s.store_bytes,
            stores: s.stores,
            failed_stores: s.failed_stores,
            loads: s.loads,
            store_loads: s.store_loads,
            missing_loads: s.missing_loads,
            read_errors: s.read_errors,
            corrupt_loads: s.corrupt_loads,
            drops: s.drops,
            written_back_pages: s.written_back_pages,
            written_bytes: s.written_bytes,
            read_bytes: s.read_bytes,
            store_error: s.store_error.into(),
        }
    }
}

/// Calls `f` with the cache of a handle. Returns the number of the result.
///
/// # Safety
/// Unless it is null the handle is one that `open` made and nobody has closed.
unsafe fn with(cache: *const Handle, f: impl FnOnce(&Cache) -> Result<()>) -> c_int {
    // SAFETY: the caller's.
    number(unsafe { borrowed(cache) }.and_then(|handle| f(&handle.cache)))
}

/// As `with`, for an `f` that answers a number, which goes `to` the caller.
///
/// # Safety
/// As of `with`, and of `give`.
unsafe fn counted(
    cache: *const Handle,
    to: *mut u64,
    f: impl FnOnce(&Cache) -> std::result::Result<u64, uzswap::Error>,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { with(cache, |cache| f(cache).map(|value| give(to, value)).map_err(of_engine)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn uzswap_cache_open(config: *const ConfigOfC, cache: *mut *mut Handle) -> c_int {
    if cache.is_null() {
        return Outcome::Invalid as c_int;
    }
    // SAFETY: the header's contract; the result is a pointer's room.
    unsafe {
        give(cache, null_mut());
        number(open(config).map(|handle| give(cache, Box::into_raw(handle))))
    }
}

/// # Safety
/// The configuration is as the header says, or null.
unsafe fn open(config: *const ConfigOfC) -> Result<Box<Handle>> {
    // SAFETY: the caller's.
    let (given, compressor, directory) = unsafe {
        let given = read_sized(config)?;
        (given, text(given.compressor), text(given.store_directory))
    };
    if given.flags & !UNENCRYPTED != 0 {
        return Err(Outcome::Invalid);
    }
    let mut config = Config::new(given.memory_bytes).encrypts(given.flags & UNENCRYPTED == 0);
    if let Some(name) = compressor {
        config = config.compressor(name.to_str().map_err(|_| Outcome::Compressor)?);
    }
    if let Some(directory) = directory {
        config = config.store(OsStr::from_bytes(directory.to_bytes()));
    }
    let cache = Cache::open(&config).map_err(of_engine)?;
    Ok(Box::new(Handle { forking: AtomicPtr::new(null_mut()), cache }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn uzswap_cache_close(cache: *mut Handle) {
    if !cache.is_null() {
        // SAFETY: `open` made it, and the header says that this is the last call.
        drop(unsafe { Box::from_raw(cache) });
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn uzswap_cache_store(
    cache: *const Handle,
    area: u32,
    page_number: u64,
    page: *const Page,
) -> c_int {
    // SAFETY: the header's contract.
    unsafe {
        with(cache, |cache| cache.store(area, page_number, borrowed(page)?).map_err(of_engine))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn uzswap_cache_load(
    cache: *const Handle,
    area: u32,
    page_number: u64,
    page: *mut Page,
) -> c_int {
    // SAFETY: the header's contract.
    unsafe {
        with(cache, |cache| {
            let page = page.as_mut().ok_or(Outcome::Invalid)?;
            cache.load(area, page_number, page).map_err(of_engine)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn uzswap_cache_drop(cache: *const Handle, area: u32, page_number: u64) -> c_int {
    // SAFETY: the header's contract.
    unsafe {
        with(cache, |cache| match cache.drop_page(area, page_number).map_err(of_engine)? {
            true => Ok(()),
            false => Err(Outcome::NotFound),
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn uzswap_cache_drop_area(
    cache: *const Handle,
    area: u32,
    pages: *mut u64,
) -> c_int {
    // SAFETY: the header's contract.
    unsafe { counted(cache, pages, |cache| cache.drop_area(area)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn uzswap_cache_shrink(
    cache: *const Handle,
    bytes: u64,
    used_bytes: *mut u64,
) -> c_int {
    // SAFETY: the header's contract.
    unsafe { counted(cache, used_bytes, |cache| cache.shrink(bytes)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn uzswap_cache_set_memory(
    cache: *const Handle,
    bytes: u64,
    used_bytes: *mut u64,
) -> c_int {
    // SAFETY: the header's contract.
    unsafe { counted(cache, used_bytes, |cache| cache.set_memory(bytes)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn uzswap_cache_stats(cache: *const Handle, stats: *mut StatsOfC) -> c_int {
    // SAFETY: the header's contract.
    unsafe {
        with(cache, |cache| {
            let now = cache.stats().map_err(of_engine)?;
            write_sized(stats, &StatsOfC::of(&now))
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn uzswap_cache_before_fork(cache: *const Handle) -> c_int {
    // SAFETY: the header's contract.
    let handle = match unsafe { borrowed::<Handle>(cache) } {
        Ok(handle) => handle,
        Err(why) => return why as c_int,
    };
    number(handle.cache.before_fork().map_err(of_engine).map(|forking| {
        // SAFETY: it refers to the cache beside which it lies, which drops it first.
        let forking: Forking<'static> = unsafe { std::mem::transmute(forking) };
        // Nobody else is between: this thread has the cache's locks.
        handle.forking.store(Box::into_raw(Box::new(forking)), Ordering::Release);
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn uzswap_cache_after_fork(cache: *const Handle, pid: i64) -> c_int {
    // SAFETY: the header's contract.
    let forking = unsafe { borrowed::<Handle>(cache) }
        .and_then(|handle| handle.take_forking().ok_or(Outcome::Invalid));
    number(forking.map(|forking| match pid {
        0 => forking.in_child(),
        1.. => forking.in_parent(),
        _ => drop(forking),
    }))
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::ptr::null;

    use super::*;

    fn open(memory_bytes: u64, directory: Option<&CString>) -> *mut Handle {
        let config = ConfigOfC {
            size: size_of::<ConfigOfC>(),
            memory_bytes,
            compressor: null(),
            store_directory: directory.map_or(null(), |directory| directory.as_ptr()),
            flags: 0,
        };
        let mut cache = null_mut();
        // SAFETY: a configuration, and a pointer's room.
        assert_eq!(unsafe { uzswap_cache_open(&config, &mut cache) }, Outcome::Ok as c_int);
        cache
    }

    #[test]
    fn numbers_are_given_of_what_was_done_and_else_left_alone() {
        let cache = open(1 << 20, None);
        let (page, mut number): (Page, u64) = ([5; uzswap::PAGE_BYTES], 77);
        let mut small: StatsOfC = StatsOfC::of(&uzswap::Stats::default());
        (small.size, small.pages) = (StatsOfC::LEAST_BYTES - 1, 77);
        // SAFETY: the cache is open until the last line; all pointers are to what is here.
        unsafe {
            assert_eq!(uzswap_cache_store(cache, 0, 3, &page), Outcome::Ok as c_int);
            let refused = uzswap_cache_drop_area(cache, uzswap::AREAS, &mut number);
            assert_eq!((refused, number), (Outcome::OutOfRange as c_int, 77));
            assert_eq!(uzswap_cache_shrink(null(), 0, &mut number), Outcome::Invalid as c_int);
            assert_eq!(uzswap_cache_stats(cache, &mut small), Outcome::Invalid as c_int);
            assert_eq!((number, small.pages), (77, 77));
            assert_eq!(uzswap_cache_drop_area(cache, 0, &mut number), Outcome::Ok as c_int);
            assert_eq!(number, 1);
            assert_eq!(uzswap_cache_shrink(cache, 0, &mut number), Outcome::Ok as c_int);
            assert!(number != 1 && number < 1 << 20, "{number} bytes are used");
            uzswap_cache_close(cache);
        }
    }

    /// Descriptors of this process.
    fn descriptors() -> usize {
        std::fs::read_dir("/proc/self/fd").unwrap().count()
    }

    /// Announces forks that do not happen; which of the steps has left descriptors, or 0.
    fn announce_in_vain() -> i32 {
        let directory = CString::new(std::env::temp_dir().as_os_str().as_bytes()).unwrap();
        let before = descriptors();
        let cache = open(128 << 10, Some(&directory));
        // SAFETY: the cache is open until it is closed, and only this thread uses it.
        unsafe {
            for number in 0..1000u64 {
                let mut page: Page = [number as u8; uzswap::PAGE_BYTES];
                let mut x = 2 * number + 1;
                page[..2048].iter_mut().for_each(|byte| {
                    x = x.wrapping_mul(0x9E37_79B9_7F4A_7C15);
                    *byte = (x >> 56) as u8;
                });
                assert_eq!(uzswap_cache_store(cache, 0, number, &page), Outcome::Ok as c_int);
            }
            let open = descriptors();
            for _ in 0..3 {
                assert_eq!(uzswap_cache_before_fork(cache), Outcome::Ok as c_int);
                if descriptors() == open {
                    return 1;
                }
                assert_eq!(uzswap_cache_after_fork(cache, -1), Outcome::Ok as c_int);
            }
            if descriptors() != open {
                return 2;
            }
            // The thread that has announced it may close instead.
            assert_eq!(uzswap_cache_before_fork(cache), Outcome::Ok as c_int);
            uzswap_cache_close(cache);
        }
        if descriptors() == before { 0 } else { 3 }
    }

    #[test]
    fn a_fork_that_was_announced_and_did_not_happen_leaves_no_descriptor() {
        // In a process with one thread: others open descriptors, too.
        // SAFETY: the child uses what is its own, and ends without destructors.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let left = std::panic::catch_unwind(announce_in_vain).unwrap_or(9);
            // SAFETY: ends the child.
            unsafe { libc::_exit(left) }
        }
        let mut status = 0;
        // SAFETY: waits for a child of ours.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 0), "step");
    }
}
