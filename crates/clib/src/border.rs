//! The border: numbers for results, structures with a size, and strings.
//!
//! # Safety charter
//! Pointers come from C. A null one is refused; of any other the header says what it must point to,
//! which is all that can be known here. Structures are copied by bytes, as many as their `size`
//! says, so neither an older nor a newer caller has more read or written than is there.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};

use uzswap::Error;

/// `enum uzswap_result`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub enum Outcome {
    Ok = 0,
    Invalid = 1,
    NotFound = 2,
    Full = 3,
    OutOfRange = 4,
    Corrupt = 5,
    Forked = 6,
    Store = 7,
    System = 8,
    Compressor = 9,
    NotManaged = 10,
    NoAnswer = 11,
    Refused = 12,
}

/// A sentence for each, by its number.
const SENTENCES: [&CStr; 13] = [
    c"it is done",
    c"an argument is not valid",
    c"there is no page under this key",
    c"neither memory nor store has room for the page",
    c"the area or the page number is too large",
    c"what was read from the store is not what was written",
    c"the cache is that of a parent process",
    c"the store cannot be made or read",
    c"the system has refused it",
    c"there is no such compressor",
    c"this process does not run under uzswap",
    c"the run of this process does not answer",
    c"the run of this process has refused it",
];

#[unsafe(no_mangle)]
pub extern "C" fn uzswap_strerror(result: c_int) -> *const c_char {
    let sentence = usize::try_from(result).ok().and_then(|number| SENTENCES.get(number));
    sentence.map_or(c"an unknown result", |sentence| *sentence).as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn uzswap_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// The result of a call from C: a value, or the outcome that is not `Ok`.
pub type Result<T> = std::result::Result<T, Outcome>;

/// The number that C gets.
pub fn number(result: Result<()>) -> c_int {
    result.err().unwrap_or(Outcome::Ok) as c_int
}

/// The error of the engine; sets errno where the header says so.
pub fn of_engine(error: Error) -> Outcome {
    match error {
        Error::NotFound => Outcome::NotFound,
        Error::Full => Outcome::Full,
        Error::OutOfRange => Outcome::OutOfRange,
        Error::Corrupt => Outcome::Corrupt,
        Error::Forked => Outcome::Forked,
        Error::Store(errno) => with_errno(Outcome::Store, errno),
        Error::System(errno) => with_errno(Outcome::System, errno),
        Error::Compressor(_) => Outcome::Compressor,
        _ => Outcome::System,
    }
}

pub fn with_errno(outcome: Outcome, errno: i32) -> Outcome {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() = errno };
    outcome
}

/// The value that a pointer from C points to; an error if it is null.
///
/// # Safety
/// Unless it is null it points to a `T` that nobody changes meanwhile.
pub unsafe fn borrowed<'a, T>(pointer: *const T) -> Result<&'a T> {
    // SAFETY: the caller's.
    unsafe { pointer.as_ref() }.ok_or(Outcome::Invalid)
}

/// Sets what a pointer of C's points to, unless it is null.
///
/// # Safety
/// Unless it is null it points to room for a `T`.
pub unsafe fn give<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: the caller's.
        unsafe { to.write(value) };
    }
}

/// A string of C's; none if it is null.
///
/// # Safety
/// Unless it is null it is a string of C's.
pub unsafe fn text<'a>(pointer: *const c_char) -> Option<&'a CStr> {
    // SAFETY: the caller's.
    (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) })
}

/// A structure that begins with its `size`.
///
/// # Safety
/// The implementor vouches: `repr(C)`, a `usize` first, integers and pointers otherwise, and no
/// padding.
pub unsafe trait Versioned: Copy {
    /// The structure's size in the first version: no caller has less.
    const LEAST_BYTES: usize;
}

/// Reads a structure of a caller that may know fewer fields (those are zero) or more (those must be
/// zero).
///
/// # Safety
/// Unless it is null it points to a structure of as many bytes as its `size` says.
pub unsafe fn read_sized<T: Versioned>(from: *const T) -> Result<T> {
    // SAFETY: integers and pointers can be zero.
    let mut value: T = unsafe { std::mem::zeroed() };
    // SAFETY: the caller's.
    let size = unsafe { size_of_structure::<T>(from)? };
    let known = size.min(size_of::<T>());
    // SAFETY: the caller's structure has `size` bytes, and `value` room for `known`.
    unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut value).cast(), known) };
    // SAFETY: of the caller's structure, behind what is known.
    let more = unsafe { std::slice::from_raw_parts(from.cast::<u8>().add(known), size - known) };
    if more.iter().all(|byte| *byte == 0) { Ok(value) } else { Err(Outcome::Invalid) }
}

/// Fills a structure of a caller's, as far as it goes, and sets its `size` to what was filled.
///
/// # Safety
/// Unless it is null it points to a structure of as many bytes as its `size` says.
pub unsafe fn write_sized<T: Versioned>(to: *mut T, value: &T) -> Result<()> {
    // SAFETY: the caller's.
    let size = unsafe { size_of_structure::<T>(to)? };
    let known = size.min(size_of::<T>());
    // SAFETY: the caller's structure has `size` bytes, and begins with its size.
    unsafe {
        std::ptr::copy_nonoverlapping((&raw const *value).cast::<u8>(), to.cast(), known);
        to.cast::<u8>().add(known).write_bytes(0, size - known);
        to.cast::<usize>().write(known);
    }
    Ok(())
}

/// The size that a structure says it has. A page would hold all that will ever be known.
///
/// # Safety
/// Unless it is null it points to a structure that begins with its size.
unsafe fn size_of_structure<T: Versioned>(of: *const T) -> Result<usize> {
    // SAFETY: the caller's.
    let size = unsafe { *borrowed(of.cast::<usize>())? };
    if (T::LEAST_BYTES..=uzswap::PAGE_BYTES).contains(&size) {
        Ok(size)
    } else {
        Err(Outcome::Invalid)
    }
}
