//! The environment of a program that is executed: the program's own, plus the variables that bring
//! us there. It is built in memory of ours, of strings that stay where the program has them.
//!
//! # Safety charter
//! The program's array and strings are read only where the kernel could read them ([`Readable`]),
//! and while they are held for the call. All that is written lies in the block's own scratch
//! memory, which was sized for it.
#![allow(unsafe_code)]

use core::sync::atomic::Ordering;

use uzswap::control::handles::{Handles, TEXT_BYTES};
use uzswap::control::{CONTROL_FD_ENV, PROGRAM_ENV};
use uzswap::region::page_floor;
use uzswap::sys::mem::{PROT_READ, PROT_WRITE, map_anonymous};
use uzswap::sys::{PAGE_SIZE, nr};

use super::super::target::Way;
use super::super::thread::ThreadBlock;
use super::super::{buffers, call, descriptors, run, signals};

/// The result of [`carry`]: addresses of an array of pointers and of a C string.
pub(super) struct Carried {
    pub(super) environment: usize,
    /// The library's path.
    pub(super) library: usize,
}

const PRELOAD: &[u8] = b"LD_PRELOAD=";

/// Builds the environment of the new program: the program's, plus the two variables that bring us
/// there. `first`: the library that has to be loaded before us, or nothing.
pub(super) fn carry(
    t: &'static ThreadBlock,
    way: Way,
    given: &Given,
    first: &[u8],
) -> Option<Carried> {
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
    let handles = Handles { ignored: signals::inherit::to_tell(t), ..descriptors::handles() };
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

/// The environment that the program gives to exec: its own array of C strings, held for the call.
pub(super) struct Given {
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
    pub(super) fn read(at: usize, looks_for_preload: bool) -> Option<Given> {
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

/// Memory for an environment, kept by the block: a vfork child that execs could not give it back.
pub(super) fn scratch(t: &'static ThreadBlock, need: usize) -> Option<usize> {
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
}
