//! The vectors on a program's stack: argc, argv, envp and auxv, read, edited and laid out anew.
//!
//! # Safety charter
//! Reads the vectors that the kernel has laid out; the strings stay where they are. Strings that
//! are added are leaked, so they stay, too.
#![allow(unsafe_code)]

use std::vec::Vec;

use super::load::Object;

const AT_NULL: usize = 0;
const AT_PHDR: usize = 3;
const AT_PHENT: usize = 4;
const AT_PHNUM: usize = 5;
const AT_BASE: usize = 7;
const AT_ENTRY: usize = 9;
const AT_HWCAP2: usize = 26;
const AT_EXECFN: usize = 31;
/// Bit of AT_HWCAP2: user code may use rdgsbase and its kin.
const HWCAP2_FSGSBASE: usize = 2;

/// The vectors. Pointers are to C strings, without the null at the end.
pub struct Vectors {
    argv: Vec<usize>,
    envp: Vec<usize>,
    auxv: Vec<(usize, usize)>,
    /// argv as it came.
    first_argv: Vec<usize>,
    /// Where auxv ends: the strings follow.
    end: usize,
}

/// A C string's bytes, with the NUL.
fn string(at: usize) -> &'static [u8] {
    // SAFETY: a string of the kernel's vectors, or one of ours (charter).
    unsafe { core::ffi::CStr::from_ptr(at as *const core::ffi::c_char) }.to_bytes_with_nul()
}

impl Vectors {
    /// # Safety
    /// `stack` must be the stack pointer with which the kernel has started the process.
    pub unsafe fn read(stack: *const usize) -> Vectors {
        let mut at = stack;
        let mut next = || {
            // SAFETY: within the vectors, which end with nulls.
            unsafe {
                let word = *at;
                at = at.add(1);
                word
            }
        };
        let argc = next();
        let argv: Vec<usize> = (0..argc).map(|_| next()).collect();
        next();
        let mut envp = Vec::new();
        loop {
            match next() {
                0 => break,
                at => envp.push(at),
            }
        }
        let mut auxv = Vec::new();
        loop {
            match (next(), next()) {
                (AT_NULL, _) => break,
                pair => auxv.push(pair),
            }
        }
        Vectors { first_argv: argv.clone(), argv, envp, auxv, end: at.addr() }
    }

    /// Removes a variable, the first of several of that name. Returns its value, with the NUL.
    pub fn take_variable(&mut self, name: &[u8]) -> Option<Vec<u8>> {
        let value_of = |at: usize| string(at).strip_prefix(name)?.strip_prefix(b"=");
        let (n, value) =
            self.envp.iter().enumerate().find_map(|(n, &at)| Some((n, value_of(at)?)))?;
        self.envp.remove(n);
        Some(value.into())
    }

    /// Whether the environment has a variable.
    pub fn has_variable(&self, name: &[u8]) -> bool {
        let is_it =
            |&at: &usize| string(at).strip_prefix(name).is_some_and(|rest| rest.starts_with(b"="));
        self.envp.iter().any(is_it)
    }

    /// Whether thread slots can be in gs here.
    pub fn may_use_gs(&self) -> bool {
        self.auxv.iter().any(|&(tag, value)| tag == AT_HWCAP2 && value & HWCAP2_FSGSBASE != 0)
    }

    /// Has an interpreter called in place of its script.
    pub fn interpret(&mut self, interpreter: &[u8], argument: Option<Vec<u8>>, script: &[u8]) {
        let kept = |bytes: &[u8]| Vec::from(bytes).leak().as_ptr().addr();
        let mut argv = Vec::new();
        argv.push(kept(interpreter));
        argv.extend(argument.map(|a| kept(&a)));
        argv.push(kept(script));
        argv.extend(self.argv.iter().skip(1));
        self.argv = argv;
    }

    /// Has auxv describe the program in place of the library. `path`: the program's, as it was
    /// executed.
    pub fn describe(&mut self, program: &Object, loader: Option<&Object>, path: &[u8]) {
        for (tag, value) in &mut self.auxv {
            *value = match *tag {
                AT_PHDR => program.headers,
                AT_PHENT => super::load::HEADER_BYTES,
                AT_PHNUM => program.header_count,
                AT_BASE => loader.map_or(0, |l| l.bias),
                AT_ENTRY => program.entry,
                AT_EXECFN => Vec::from(path).leak().as_ptr().addr(),
                _ => *value,
            };
        }
    }

    /// The words of the vectors, and their place: that of the kernel's, up to the strings.
    pub fn lay_out(&self) -> (&'static [usize], usize) {
        let mut words = Vec::new();
        words.push(self.argv.len());
        words.extend(&self.argv);
        words.push(0);
        words.extend(&self.envp);
        words.push(0);
        words.extend(self.auxv.iter().flat_map(|&(tag, value)| [tag, value]));
        words.extend([AT_NULL, 0]);
        let stack = (self.end - size_of_val(&words[..])) & !15;
        (words.leak(), stack)
    }

    /// argv as it came, and the environment as it is now, both with a null at the end.
    pub fn original(&self) -> (Vec<usize>, Vec<usize>) {
        let ended = |v: &Vec<usize>| v.iter().copied().chain([0]).collect();
        (ended(&self.first_argv), ended(&self.envp))
    }

    /// An address on the stack.
    pub fn end(&self) -> usize {
        self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_laid_out_is_what_was_read() {
        let strings =
            [c"program", c"-x", c"A=1", c"UZSWAP_T=/bin/x", c"B=2"].map(|s| s.as_ptr().addr());
        let [program, option, a, ours, b] = strings;
        let stack = [2, program, option, 0, a, ours, b, 0, AT_HWCAP2, 2, AT_ENTRY, 77, AT_NULL, 0];
        // SAFETY: laid out as the kernel does.
        let mut v = unsafe { Vectors::read(stack.as_ptr()) };
        assert!(v.may_use_gs());
        assert!(v.has_variable(b"B") && !v.has_variable(b"UZSWAP"));
        assert_eq!(v.end(), stack.as_ptr_range().end.addr());
        assert_eq!(v.take_variable(b"UZSWAP_T").unwrap(), b"/bin/x\0");
        assert_eq!(v.take_variable(b"UZSWAP_T"), None);
        let (words, at) = v.lay_out();
        assert_eq!(words, [2, program, option, 0, a, b, 0, AT_HWCAP2, 2, AT_ENTRY, 77, AT_NULL, 0]);
        assert!(
            at % 16 == 0 && at + 8 * words.len() <= v.end() && at + 8 * words.len() + 16 > v.end()
        );
        v.interpret(b"/bin/sh\0", Some(b"-e\0".to_vec()), b"program\0");
        let (words, _) = v.lay_out();
        let shown: Vec<_> = words[1..5].iter().map(|&at| string(at)).collect();
        assert_eq!(
            (words[0], &shown[..]),
            (4, &[&b"/bin/sh\0"[..], b"-e\0", b"program\0", b"-x\0"][..])
        );
        assert_eq!(v.original(), ([program, option, 0].into(), [a, b, 0].into()));
    }
}
