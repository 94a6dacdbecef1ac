//! Errors of the cache, in words.

use std::fmt;

/// Why the cache did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// There is no page under this key.
    NotFound,
    /// Neither memory nor file has room. Pages stored before are still there.
    Full,
    /// The area or the page number is too large: see [`AREAS`](crate::AREAS) and
    /// [`PAGES`](crate::PAGES).
    OutOfRange,
    /// The bytes read from the file are not those that were written.
    Corrupt,
    /// This process is a forked child of the one that opened the cache.
    Forked,
    /// The file could not be made or read: the kernel's error number.
    Store(i32),
    /// The kernel refused something else, memory mostly: its error number.
    System(i32),
    /// There is no such compressor; which there are.
    Compressor(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |number: &i32| std::io::Error::from_raw_os_error(*number);
        match self {
            Error::NotFound => f.write_str("there is no page under this key"),
            Error::Full => f.write_str("neither memory nor store has room for the page"),
            Error::OutOfRange => f.write_str("the area or the page number is too large"),
            Error::Corrupt => f.write_str("what was read is not what was written"),
            Error::Forked => f.write_str("the cache is that of a parent process"),
            Error::Store(number) => write!(f, "the store: {}", of(number)),
            Error::System(number) => write!(f, "{}", of(number)),
            Error::Compressor(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Error {}
