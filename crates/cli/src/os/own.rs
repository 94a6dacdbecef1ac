//! This process itself: descriptors, identity, limits and memory, as it was started with them and
//! as it changes them. Other processes are in `program.rs` and `stat.rs`.
//!
//! # Safety charter
//! That of `os.rs`.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;

use super::check;

/// Puts /dev/null where a standard descriptor is closed, for us only: it is closed again by the
/// exec. Without this the first file opened would become our stderr.
pub fn fill_standard_descriptors() {
    for fd in 0..3 {
        // SAFETY: no pointers but a constant string; an open takes the lowest free number, which is
        // `fd`.
        unsafe {
            if libc::fcntl(fd, libc::F_GETFD) == -1 {
                libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
            }
        }
    }
}

/// Our identity, and whether an exec may change that.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    pub user: u32,
    pub group: u32,
    pub no_new_privileges: bool,
}

pub fn identity() -> Identity {
    // SAFETY: plain calls.
    unsafe {
        Identity {
            user: libc::getuid(),
            group: libc::getgid(),
            no_new_privileges: libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1,
        }
    }
}

/// Whether we lead our session: then a hang-up of the terminal reaches us alone.
pub fn is_session_leader() -> bool {
    // SAFETY: plain calls.
    unsafe { libc::getsid(0) == libc::getpid() }
}

/// A value that the kernel has told this process at its start; 0: it did not.
pub fn auxiliary(tag: libc::c_ulong) -> libc::c_ulong {
    // SAFETY: reads what the loader has kept.
    unsafe { libc::getauxval(tag) }
}

/// The soft limit of a resource; `None` when it is unlimited.
pub fn resource_limit(resource: c_int) -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills the local.
    let result = unsafe { libc::getrlimit(resource as libc::__rlimit_resource_t, &mut limit) };
    (result == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// The soft limit on address space.
pub fn address_space_limit() -> Option<u64> {
    resource_limit(libc::RLIMIT_AS as c_int)
}

/// No core dump of ours: the program has left its own.
pub fn disable_core_dump() {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: reads the local.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
}

/// Keeps this process's memory out of swap, now and later.
pub fn lock_memory() -> io::Result<()> {
    // SAFETY: a plain call.
    check(unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT) })?;
    Ok(())
}

/// Tells the kernel, as far as we may, whether others wait for this thread, and those that it
/// starts from now on, when they need memory. Such threads do not wait for swap themselves, and
/// because they run in real time they have some memory left when others have none.
pub fn serve_memory(serves: bool) {
    const PR_SET_IO_FLUSHER: c_int = 57;
    let class = if serves { libc::SCHED_RR } else { libc::SCHED_OTHER };
    let lowest = libc::sched_param { sched_priority: serves.into() };
    // SAFETY: reads the local.
    unsafe {
        libc::prctl(PR_SET_IO_FLUSHER, libc::c_ulong::from(serves), 0, 0, 0);
        libc::sched_setscheduler(0, class, &lowest);
    }
}
