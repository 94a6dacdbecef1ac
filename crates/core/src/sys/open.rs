//! Flags of open(2) and of the calls that take the same, as x86-64 has them.

/// The value in place of a directory's descriptor: a path is taken as it is.
pub const AT_FDCWD: isize = -100;
pub const O_WRONLY: usize = 0o1;
pub const O_RDWR: usize = 0o2;
pub const O_CREAT: usize = 0o100;
pub const O_EXCL: usize = 0o200;
pub const O_NONBLOCK: usize = 0o4000;
pub const O_DIRECT: usize = 0o40000;
pub const O_DIRECTORY: usize = 0o200000;
pub const O_NOFOLLOW: usize = 0o400000;
pub const O_CLOEXEC: usize = 0o2000000;
pub const O_PATH: usize = 0o10000000;
pub const O_TMPFILE: usize = 0o20000000 | O_DIRECTORY;
