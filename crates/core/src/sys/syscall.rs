//! The system-call instruction itself, and the kernel's error numbers.
//!
//! # Safety charter
//! uzswap lives inside a program whose libc has been rewired: a call through libc would come back
//! to uzswap's own hook, take libc's locks and touch the program's memory. So every system call of
//! ours is the instruction, here, with nothing of libc around it. `syscall` is unsafe because the
//! kernel does what the arguments say; each wrapper in `sys/` argues why its arguments are sound.

use core::fmt;

/// A kernel error number (positive, as in `errno.h`).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl Errno {
    pub const EPERM: Errno = Errno(1);
    pub const ENOENT: Errno = Errno(2);
    pub const ESRCH: Errno = Errno(3);
    pub const EINTR: Errno = Errno(4);
    pub const EIO: Errno = Errno(5);
    pub const EBADF: Errno = Errno(9);
    pub const EAGAIN: Errno = Errno(11);
    pub const ENOMEM: Errno = Errno(12);
    pub const EACCES: Errno = Errno(13);
    pub const EFAULT: Errno = Errno(14);
    pub const EBUSY: Errno = Errno(16);
    pub const EEXIST: Errno = Errno(17);
    pub const EINVAL: Errno = Errno(22);
    pub const EMFILE: Errno = Errno(24);
    pub const ENOSPC: Errno = Errno(28);
    pub const ENOSYS: Errno = Errno(38);
    pub const ENODATA: Errno = Errno(61);
    pub const ENOPROTOOPT: Errno = Errno(92);
    pub const EOPNOTSUPP: Errno = Errno(95);
    pub const ETIMEDOUT: Errno = Errno(110);

    /// The value a system call returns for this error.
    pub const fn as_return(self) -> isize {
        -(self.0 as isize)
    }

    /// The kernel's name, for messages.
    pub const fn name(self) -> &'static str {
        match self.0 {
            1 => "EPERM",
            2 => "ENOENT",
            3 => "ESRCH",
            4 => "EINTR",
            5 => "EIO",
            9 => "EBADF",
            11 => "EAGAIN",
            12 => "ENOMEM",
            13 => "EACCES",
            14 => "EFAULT",
            16 => "EBUSY",
            17 => "EEXIST",
            22 => "EINVAL",
            24 => "EMFILE",
            27 => "EFBIG",
            28 => "ENOSPC",
            38 => "ENOSYS",
            92 => "ENOPROTOOPT",
            95 => "EOPNOTSUPP",
            110 => "ETIMEDOUT",
            122 => "EDQUOT",
            _ => "errno",
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The result of a system call: the kernel's value, or its error.
pub type Result<T> = core::result::Result<T, Errno>;

/// Splits a raw return value into value and error.
#[inline]
pub const fn check(raw: isize) -> Result<usize> {
    if raw < 0 && raw > -4096 { Err(Errno(-raw as i32)) } else { Ok(raw as usize) }
}

/// One system call, raw: `nr` and up to six arguments, the kernel's return value as it is.
///
/// # Safety
/// The arguments must be ones with which this call may be made: the kernel reads, writes, maps and
/// unmaps what they name.
#[inline(always)]
pub unsafe fn syscall(nr: usize, a: [usize; 6]) -> isize {
    // GETTID is not counted: the counter itself asks for the thread's id.
    if nr != super::nr::GETTID {
        super::contention::note(super::contention::Slow::Call);
    }
    let ret: isize;
    // SAFETY: the caller vouches for the arguments; the clobbers are the ones of the x86-64
    // system-call ABI.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") nr as isize => ret,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    ret
}

/// Up to six arguments, the rest zero.
#[inline(always)]
pub fn six(a: &[usize]) -> [usize; 6] {
    core::array::from_fn(|i| a.get(i).copied().unwrap_or(0))
}

/// `syscall!(NR, a, b, ...)`: a checked system call with up to six arguments, each cast to `usize`.
/// Must stand inside `unsafe`.
#[macro_export]
macro_rules! uz_syscall {
    ($nr:expr $(, $a:expr)* $(,)?) => {{
        $crate::sys::check($crate::sys::syscall($nr, $crate::sys::six(&[$($a as usize),*])))
    }};
}
