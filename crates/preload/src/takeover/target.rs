//! A program that is about to be executed: its kind decides what it is given of ours.
//!
//! - One that *gains rights* by it (setuid, setgid, capabilities of its file) is given nothing: the
//!   loader would ignore LD_PRELOAD, and our descriptors would be in a program with other rights
//!   than ours. So it has the program's own environment, and no descriptor of ours.
//! - One that has no loader (static), and one for another loader than glibc's (musl's), is booted
//!   by the library (`boot`), where that can be executed in its place and nothing of the call is
//!   lost. Where it cannot, a static one is given all nevertheless: programs that it starts can be
//!   taken over. Another loader would complain, or give up: its program is given nothing. Programs
//!   that run unmanaged are counted and reported.
//! - One for another processor, and one that will not find the library (after a chroot), are given
//!   nothing.
//! - One that wants to have a sanitizer's runtime loaded first gets it first: the runtime looks who
//!   comes before it, and gives up if anybody does. Our constructor runs before all others wherever
//!   we are in the list.
//!
//! A program that we may not read is taken for an ordinary one.
#![allow(unsafe_code)]
// # Safety charter
// Paths are the program's C strings, read by the kernel alone. Everything else is in a buffer of
// the caller's, which is memory of ours.

use uzswap::sys::open::{AT_FDCWD, O_CLOEXEC, O_NONBLOCK};
use uzswap::sys::{Errno, Result, check, fd, file, nr};

use super::{Args, call, run};

/// Bytes of a file that are read at a time.
pub const BUFFER_BYTES: usize = 4096;
/// Interpreters of interpreters that the kernel follows.
const DEPTH: usize = 5;

const AT_EMPTY_PATH: usize = 0x1000;
const AT_EACCESS: usize = 0x200;
const X_OK: usize = 1;
const S_IFMT: u32 = 0o170000;
const S_IFREG: u32 = 0o100000;
const S_ISUID: u32 = 0o4000;
const S_ISGID: u32 = 0o2000;
const S_IXGRP: u32 = 0o010;

/// The longest name of a sanitizer's runtime that is carried.
const NAME_BYTES: usize = 32;

/// The kind of a program.
#[derive(Clone, Copy, Default)]
pub struct Target {
    pub gains_rights: bool,
    pub is_static: bool,
    /// It has another loader than glibc's.
    has_other_loader: bool,
    /// It is for another processor, or will not find the library.
    is_foreign: bool,
    /// The address of the path by which it is executed, if the path leads the library to the same
    /// file, so that the library may boot it.
    boots_by: Option<usize>,
    name: [u8; NAME_BYTES],
    name_len: usize,
}

impl Target {
    /// How the program is started.
    pub fn way(&self) -> Way {
        match self.boots_by {
            _ if self.gains_rights || self.is_foreign => Way::Alone,
            Some(path) => Way::Boot(path),
            None if self.has_other_loader => Way::Alone,
            None if self.is_static => Way::Through,
            None => Way::Preload,
        }
    }

    /// The sanitizer's runtime that has to come first; empty: none.
    pub fn first_library(&self) -> &[u8] {
        &self.name[..self.name_len]
    }
}

/// How a program is started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Its loader loads the library.
    Preload,
    /// The library is executed, and boots the program of this path (the address of a C string of
    /// the caller's).
    Boot(usize),
    /// It is unmanaged, but given all that the programs need which it starts.
    Through,
    /// It is started as it would be without us.
    Alone,
}

impl Way {
    /// Whether a program started this way gets our variables and descriptors.
    pub fn is_given_ours(self) -> bool {
        self != Way::Alone
    }

    pub fn is_managed(self) -> bool {
        matches!(self, Way::Preload | Way::Boot(_))
    }
}

/// Whether an entry of LD_PRELOAD is a sanitizer's runtime as this file puts it there: by its bare
/// name.
pub fn is_first_library(name: &[u8]) -> bool {
    !name.contains(&b'/')
        && (name.starts_with(b"libasan.so") || name.starts_with(b"libclang_rt.asan"))
}

/// Whether a call only asks if a program may be executed.
pub fn is_check(number: usize, a: &Args) -> bool {
    const AT_EXECVE_CHECK: usize = 0x10000;
    number == nr::EXECVEAT && a[4] & AT_EXECVE_CHECK != 0
}

/// The error with which an exec fails if its path leads to nothing that may be executed. The call's
/// memory is held. `None`: the kernel will say.
pub fn why_not_executed(number: usize, a: &Args) -> Option<Errno> {
    const AT_SYMLINK_NOFOLLOW: usize = 0x100;
    const ENOTDIR: Errno = Errno(20);
    const ELOOP: Errno = Errno(40);
    let (directory, path, flags) = match number {
        nr::EXECVE => (AT_FDCWD as usize, a[0], 0),
        _ => (a[0], a[1], a[4] & (AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW)),
    };
    let asked = check(call!(nr::FACCESSAT2, directory, path, X_OK, AT_EACCESS | flags));
    asked.err().filter(|e| [Errno::ENOENT, Errno::EACCES, ENOTDIR, ELOOP].contains(e))
}

/// Looks at the program that an exec names.
pub fn look(number: usize, a: &Args, buffer: &mut [u8; BUFFER_BYTES]) -> Target {
    let (directory, path, flags) = match number {
        nr::EXECVE => (AT_FDCWD as usize, a[0], 0),
        _ => (a[0], a[1], a[4] & AT_EMPTY_PATH),
    };
    let mut target = Target::default();
    let Some(mode) = mode_of(directory, path, flags, buffer, &mut target) else { return target };
    if target.gains_rights || mode & S_IFMT != S_IFREG {
        return target;
    }
    let opened = match flags {
        // The call names a descriptor: the program is read through it.
        AT_EMPTY_PATH if is_empty(path) => file::duplicate(directory as i32),
        _ => open(directory, path),
    };
    let mut file = opened.ok();
    for _ in 0..DEPTH {
        let Some(program) = file.take() else { break };
        let n = read(program, 0, buffer);
        if buffer[..n].starts_with(b"#!") {
            fd::close(program);
            if let Some(at) = interpreter(&mut buffer[..n]) {
                file = open(AT_FDCWD as usize, buffer.as_ptr() as usize + at).ok();
            }
            continue;
        }
        look_at_elf(program, n, buffer, &mut target);
        fd::close(program);
        break;
    }
    if let Some(left) = file {
        fd::close(left);
    }
    let library = run::preload();
    target.is_foreign |= !finds_library(library, buffer);
    if target.is_static || target.has_other_loader {
        let has_path = match number {
            nr::EXECVE => true,
            // Another directory's descriptor would be closed before the library starts.
            _ => directory as i32 as isize == AT_FDCWD && a[4] == 0,
        };
        target.boots_by = (has_path && is_to_be_executed(path, library, buffer)).then_some(path);
    }
    target
}

/// Whether the kernel would execute the program, and executes the library, which can boot programs
/// here.
fn is_to_be_executed(program: usize, library: &[u8], buffer: &mut [u8; BUFFER_BYTES]) -> bool {
    const ST_NOEXEC: u64 = 8;
    /// Where `f_flags` is in struct statfs.
    const FLAGS_AT: usize = 80;
    let may = |path: usize| call!(nr::FACCESSAT2, AT_FDCWD, path, X_OK, AT_EACCESS) == 0;
    let program_may = may(program) && {
        let flags = call!(nr::STATFS, program, buffer.as_mut_ptr());
        flags == 0 && u64_at(buffer, FLAGS_AT).is_some_and(|flags| flags & ST_NOEXEC == 0)
    };
    if !program_may || library.is_empty() || library.len() >= BUFFER_BYTES {
        return false;
    }
    buffer[..library.len()].copy_from_slice(library);
    buffer[library.len()] = 0;
    may(buffer.as_ptr() as usize) && may_use_gs(buffer)
}

/// Whether user code may use the base of gs, where a program that is booted has its thread slots
/// (AT_HWCAP2).
fn may_use_gs(buffer: &mut [u8; BUFFER_BYTES]) -> bool {
    const AT_HWCAP2: u64 = 26;
    const HWCAP2_FSGSBASE: u64 = 2;
    let Ok(auxv) = fd::open_read(c"/proc/self/auxv") else { return false };
    let n = fd::read(auxv, buffer).unwrap_or(0);
    fd::close(auxv);
    let (pairs, _) = buffer[..n].as_chunks::<16>();
    pairs.iter().any(|pair| {
        u64_at(pair, 0) == Some(AT_HWCAP2)
            && u64_at(pair, 8).is_some_and(|bits| bits & HWCAP2_FSGSBASE != 0)
    })
}

/// Whether the library can be read where the process is now.
fn finds_library(path: &[u8], buffer: &mut [u8; BUFFER_BYTES]) -> bool {
    if path.is_empty() || path.len() >= BUFFER_BYTES {
        return true;
    }
    buffer[..path.len()].copy_from_slice(path);
    buffer[path.len()] = 0;
    let opened = open(AT_FDCWD as usize, buffer.as_ptr() as usize);
    if let Ok(library) = opened {
        fd::close(library);
    }
    // Any other error (no descriptor is left) tells nothing, so the library counts as found.
    !matches!(opened, Err(Errno::ENOENT | Errno::EACCES))
}

/// Returns the file's mode; notes whether the file gives other rights.
fn mode_of(
    directory: usize,
    path: usize,
    flags: usize,
    buffer: &mut [u8; BUFFER_BYTES],
    target: &mut Target,
) -> Option<u32> {
    if call!(nr::NEWFSTATAT, directory, path, buffer.as_mut_ptr(), flags) != 0 {
        return None;
    }
    // struct stat of x86-64: st_mode is at 24, st_uid at 28, st_gid at 32.
    let word = |at: usize| u32_at(buffer, at).unwrap_or(0);
    let (mode, owner, group) = (word(24), word(28), word(32));
    let (user, own_group) = (call!(nr::GETEUID) as u32, call!(nr::GETEGID) as u32);
    let by_owner = mode & S_ISUID != 0 && owner != user;
    // Set-group-ID without group execution is an old mark for locking.
    let by_group = mode & (S_ISGID | S_IXGRP) == S_ISGID | S_IXGRP && group != own_group;
    let by_file = || {
        let name = c"security.capability".as_ptr();
        user != 0
            && flags == 0
            && directory == AT_FDCWD as usize
            && call!(nr::GETXATTR, path, name, 0, 0) > 0
    };
    target.gains_rights = (by_owner || by_group || by_file()) && may_gain(path, directory, buffer);
    Some(mode)
}

/// Whether an exec may change rights at all, here.
fn may_gain(path: usize, directory: usize, buffer: &mut [u8; BUFFER_BYTES]) -> bool {
    const PR_GET_NO_NEW_PRIVS: usize = 39;
    const ST_NOSUID: u64 = 2;
    /// Where `f_flags` is in struct statfs.
    const FLAGS_AT: usize = 80;
    if call!(nr::PRCTL, PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 {
        return false;
    }
    let is_known =
        directory == AT_FDCWD as usize && call!(nr::STATFS, path, buffer.as_mut_ptr()) == 0;
    !(is_known && u64_at(buffer, FLAGS_AT).is_some_and(|flags| flags & ST_NOSUID != 0))
}

fn is_empty(path: usize) -> bool {
    // SAFETY: a C string of the program, held for the call; a wild one faults as in libc.
    path == 0 || unsafe { *(path as *const u8) } == 0
}

/// Opens a file for reading, if that is possible.
fn open(directory: usize, path: usize) -> Result<i32> {
    check(call!(nr::OPENAT, directory, path, O_CLOEXEC | O_NONBLOCK)).map(|opened| opened as i32)
}

fn read(program: i32, at: u64, into: &mut [u8]) -> usize {
    call!(nr::PREAD64, program, into.as_mut_ptr(), into.len(), at).max(0) as usize
}

/// Where the path of the interpreter begins in a script's first line; it is ended by a zero.
fn interpreter(text: &mut [u8]) -> Option<usize> {
    let is_blank = |b: &u8| matches!(b, b' ' | b'\t');
    let start = 2 + text.get(2..)?.iter().position(|b| !is_blank(b))?;
    let end = start + text[start..].iter().position(|b| is_blank(b) || *b == b'\n' || *b == 0)?;
    text[end] = 0;
    (end > start).then_some(start)
}

/// Looks for a loader, and for the first library that is needed. `n`: bytes of the file's beginning
/// in the buffer.
fn look_at_elf(program: i32, n: usize, buffer: &mut [u8; BUFFER_BYTES], target: &mut Target) {
    const PT_LOAD: u32 = 1;
    const PT_DYNAMIC: u32 = 2;
    const PT_INTERP: u32 = 3;
    const HEADER_BYTES: usize = 56;
    const SEGMENTS_MAX: usize = 16;
    let head = &buffer[..n];
    /// 64 bits, the lowest byte first.
    const CLASS: &[u8] = b"\x02\x01";
    const EM_X86_64: u16 = 62;
    if !head.starts_with(b"\x7fELF") {
        // Text for the shell, or a format for which the kernel has an interpreter.
        return;
    }
    if head.get(4..6) != Some(CLASS) || u16_at(head, 18) != Some(EM_X86_64) {
        target.is_foreign = true;
        return;
    }
    let (Some(table), Some(count)) = (u64_at(head, 32), u16_at(head, 56)) else { return };
    let is_usual = u16_at(head, 54) == Some(HEADER_BYTES as u16);
    // A table that does not fit the first page is rare: its program is taken for an ordinary one.
    let end = (table as usize).saturating_add(usize::from(count) * HEADER_BYTES);
    if !is_usual || end > n {
        return;
    }
    let (mut loads, mut known, mut dynamic, mut loader) =
        ([(0, 0, 0); SEGMENTS_MAX], 0, None, None);
    for header in head[table as usize..end].chunks_exact(HEADER_BYTES) {
        let word = |at: usize| u64_at(header, at).unwrap_or(0);
        let (offset, address, bytes) = (word(8), word(16), word(32));
        match u32_at(header, 0) {
            Some(PT_INTERP) => loader = Some((offset, bytes)),
            Some(PT_DYNAMIC) => dynamic = Some((offset, bytes)),
            Some(PT_LOAD) if known < SEGMENTS_MAX => {
                loads[known] = (address, offset, bytes);
                known += 1;
            }
            _ => {}
        }
    }
    target.is_static = loader.is_none();
    let Some((at, bytes)) = loader else { return };
    target.has_other_loader = !is_glibcs(program, at, bytes);
    if let (false, Some((at, bytes))) = (target.has_other_loader, dynamic) {
        note_first_library(program, at, bytes, &loads[..known], buffer, target);
    }
}

/// Whether a program's loader is glibc's, which has one name everywhere. Where another loader
/// answers to the name (Alpine's gcompat), it is a link. A loader's name that cannot be read is
/// taken for glibc's.
fn is_glibcs(program: i32, at: u64, bytes: u64) -> bool {
    const PATH_BYTES: usize = 256;
    let mut path = [0u8; PATH_BYTES];
    let n = read(program, at, &mut path[..(bytes as usize).min(PATH_BYTES - 1)]);
    let end = path[..n].iter().position(|b| *b == 0).unwrap_or(n);
    let mut link = [0u8; PATH_BYTES];
    let n = call!(nr::READLINK, path.as_ptr(), link.as_mut_ptr(), PATH_BYTES);
    let link = &link[..check(n).unwrap_or(0).min(PATH_BYTES)];
    let names = |needle: &[u8]| link.windows(needle.len()).any(|w| w == needle);
    end == 0
        || path[..end].ends_with(b"/ld-linux-x86-64.so.2") && !names(b"musl") && !names(b"gcompat")
}

/// Notes the first library that a dynamic program needs, if that is a sanitizer's runtime. Such a
/// runtime is always the first: it insists on that.
fn note_first_library(
    program: i32,
    at: u64,
    bytes: u64,
    loads: &[(u64, u64, u64)],
    buffer: &mut [u8; BUFFER_BYTES],
    target: &mut Target,
) {
    const DT_NEEDED: u64 = 1;
    const DT_STRTAB: u64 = 5;
    let n = read(program, at, &mut buffer[..(bytes as usize).min(BUFFER_BYTES)]);
    let entries = || {
        let (pairs, _) = buffer[..n].as_chunks::<16>();
        pairs.iter().map(|p| (u64_at(p, 0).unwrap_or(0), u64_at(p, 8).unwrap_or(0)))
    };
    let value = |tag| entries().find(|e| e.0 == tag).map(|e| e.1);
    let (Some(name), Some(strings)) = (value(DT_NEEDED), value(DT_STRTAB)) else { return };
    let in_file = |load: &&(u64, u64, u64)| strings >= load.0 && strings - load.0 < load.2;
    let Some((address, offset, _)) = loads.iter().find(in_file) else { return };
    let place = (strings - address).checked_add(*offset).and_then(|v| v.checked_add(name));
    let Some(place) = place else { return };
    let n = read(program, place, &mut buffer[..NAME_BYTES]);
    let Some(len) = buffer[..n].iter().position(|b| *b == 0) else { return };
    if is_first_library(&buffer[..len]) {
        target.name[..len].copy_from_slice(&buffer[..len]);
        target.name_len = len;
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::os::unix::fs::{PermissionsExt, chown};

    fn target(path: &std::path::Path) -> Target {
        let path = CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        look(nr::EXECVE, &[path.as_ptr() as usize, 0, 0, 0, 0, 0], &mut [0; BUFFER_BYTES])
    }

    fn seen(path: &std::path::Path) -> (bool, bool) {
        let t = target(path);
        (t.gains_rights, t.is_static)
    }

    #[test]
    fn programs_are_what_they_are() {
        let dir = std::env::temp_dir().join(std::format!("uzswap-target-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let made = |name: &str, text: &[u8], mode: u32| {
            let path = dir.join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        assert_eq!(seen("/bin/sh".as_ref()), (false, false));
        assert_eq!(seen("/no/such/program".as_ref()), (false, false));
        assert_eq!(seen(&made("script", b"#! /bin/sh -e\n", 0o755)), (false, false));
        assert_eq!(seen(&made("text", b"echo\n", 0o755)), (false, false));
        assert_eq!(
            seen(&made("loop", std::format!("#!{}/loop\n", dir.display()).as_bytes(), 0o755)),
            (false, false)
        );
        // A header that names no loader.
        let mut fixed = std::fs::read("/bin/sh").unwrap();
        let table = u64_at(&fixed, 32).unwrap() as usize;
        for i in 0..usize::from(u16_at(&fixed, 56).unwrap()) {
            if u32_at(&fixed, table + i * 56) == Some(3) {
                fixed[table + i * 56] = 0;
            }
        }
        let fixed = made("fixed", &fixed, 0o755);
        assert_eq!(seen(&fixed), (false, true));
        assert_eq!(
            seen(&made("of-it", std::format!("#!{}\n", fixed.display()).as_bytes(), 0o755)),
            (false, true)
        );
        assert!(target(&fixed).way().is_given_ours());
        let mut other = std::fs::read("/bin/sh").unwrap();
        let name = b"/ld-linux-x86-64.so.2";
        let at = other.windows(name.len()).position(|w| w == name).unwrap();
        other[at..at + name.len()].copy_from_slice(b"/ld-musl-x86_64.so.11");
        let for_musl = target(&made("for-musl", &other, 0o755));
        assert!(!for_musl.is_static && for_musl.has_other_loader);
        other[18] = 183;
        assert_eq!(target(&made("for-arm", &other, 0o755)).way(), Way::Alone);
        for n in [0, 3, 20, 63, 64, 100] {
            target(&made("cut", &std::fs::read(&fixed).unwrap()[..n], 0o755));
        }
        let rights = made("rights", b"", 0o4755);
        assert_eq!(seen(&rights), (false, false), "it is ours");
        if chown(&rights, Some(65534), None).is_ok() {
            std::fs::set_permissions(&rights, std::fs::Permissions::from_mode(0o4755)).unwrap();
            assert_eq!(seen(&rights), (true, false));
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn names_of_runtimes_that_come_first() {
        assert!(
            is_first_library(b"libasan.so.8") && is_first_library(b"libclang_rt.asan-x86_64.so")
        );
        assert!(!is_first_library(b"libc.so.6") && !is_first_library(b"/lib/libasan.so.8"));
    }
}
