//! Calls by which a booted program names its own executable file as `/proc/self/exe`: for the
//! kernel that is the library's file.
#![allow(unsafe_code)]

use uzswap::sys::{Errno, PAGE_SIZE, nr};

use super::thread::ThreadBlock;
use super::{Answer, Args, buffers, own_path, raw};

/// The longest name of the file, in bytes: `/proc/thread-self/exe`, or one with a process id.
const NAME_BYTES: usize = 32;

/// Answers a call that names the file, or has `args` name it by the program's path.
pub(super) fn call(t: &'static ThreadBlock, number: usize, args: &mut Args) -> Option<Answer> {
    let at = own_path::NAMING.iter().find(|(n, _)| *n == number)?.1;
    let mut name = [0u8; NAME_BYTES];
    if !own_path::is_own(read_name(t, args[at], &mut name)?) {
        return None;
    }
    match number {
        nr::READLINK => Some(Answer::Result(read_link(t, args[1], args[2]))),
        nr::READLINKAT => Some(Answer::Result(read_link(t, args[2], args[3]))),
        _ => {
            args[at] = own_path::path().as_ptr().addr();
            let is_exec = matches!(number, nr::EXECVE | nr::EXECVEAT);
            (!is_exec).then(|| Answer::Result(raw(number, *args)))
        }
    }
}

/// A C string of the program; `None` where it is longer than any name of the file, or not there.
fn read_name<'n>(
    t: &'static ThreadBlock,
    at: usize,
    into: &'n mut [u8; NAME_BYTES],
) -> Option<&'n [u8]> {
    // The string may end where memory ends.
    let on_page = (PAGE_SIZE - at % PAGE_SIZE).min(NAME_BYTES);
    let (first, second) = into.split_at_mut(on_page);
    if !buffers::copy_in(t, at, first) {
        return None;
    }
    if !first.contains(&0) && !buffers::copy_in(t, at + on_page, second) {
        return None;
    }
    let end = into.iter().position(|b| *b == 0)?;
    Some(&into[..end])
}

fn read_link(t: &'static ThreadBlock, to: usize, len: usize) -> isize {
    let len = len as i32;
    if len <= 0 {
        return Errno::EINVAL.as_return();
    }
    let path = own_path::path();
    let path = &path[..path.len().min(len as usize)];
    if buffers::copy_out(t, to, path) { path.len() as isize } else { Errno::EFAULT.as_return() }
}
