//! Writing jumps into text.
//!
//! Libraries are mapped next to each other, so a 5-byte jump reaches from nearly all of them to the
//! trampolines. Objects out of reach (executables, mostly) get a page of 16-byte stubs near them,
//! each a jump to a trampoline.
//!
//! # Safety charter
//! Text is changed only while no thread can execute it: at start, when there is one thread, or when
//! an object has just been mapped by the loader and nobody has its addresses yet. While it is not
//! executable, nothing but inlined code and raw system calls of this file runs.
#![allow(unsafe_code)]

use core::arch::asm;
use std::vec::Vec;

use uzswap::sys::mem::{PROT_READ, PROT_WRITE};
use uzswap::sys::open::{AT_FDCWD, O_CLOEXEC};
use uzswap::sys::{PAGE_SIZE, Result, nr};
use uzswap::uz_syscall;

use super::maps::Maps;
use super::table::{NO_RIP, SITE_BYTES, Site};
use super::trampoline::{
    TRAMPOLINE_BYTES, Trampolines, emit_trampoline, fill, pages_for, trampoline_range,
};

const STUB_BYTES: usize = 16;
/// How far a jump with a 32-bit distance reaches, less a margin.
const REACH: usize = (1 << 31) - (1 << 16);

/// A change of text: `len` bytes at `at`.
struct Write {
    at: usize,
    len: usize,
    bytes: [u8; SITE_BYTES],
}

/// Executable memory of an object, as it is mapped now.
#[derive(Clone, Copy, Debug)]
pub struct Text {
    pub start: usize,
    pub end: usize,
    pub prot: usize,
}

/// The file behind a piece of text, to map it again if it cannot be made executable after it was
/// written.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    /// A path, NUL-terminated.
    Path {
        path: &'a [u8],
        offset: usize,
    },
    Fd {
        fd: i32,
        offset: usize,
    },
    /// No file (the vDSO).
    None,
}

/// Those of `sites` that lie in `text` and have the bytes there that the analysis saw.
///
/// # Safety
/// `text` must be mapped like that, and nobody may write it meanwhile.
pub unsafe fn sites_in<'a>(sites: &'a [Site], bias: u64, text: &Text) -> Vec<&'a Site> {
    let address = |vaddr: u64| bias.wrapping_add(vaddr) as usize;
    let inside = |at: usize, len: usize| {
        at >= text.start && len <= text.end - text.start && at <= text.end - len
    };
    let is_here = |s: &&Site| {
        let at = address(s.start);
        let covered = s.len as usize + if s.stays_in_place() { 2 } else { 0 };
        let pad_fits = s.pad == 0 || inside(address(s.pad), 5);
        // SAFETY: checked to lie in mapped, readable text that nobody writes.
        let original = || unsafe { core::slice::from_raw_parts(at as *const u8, covered) };
        inside(at, covered)
            && pad_fits
            && original()[..s.len as usize] == s.original[..s.len as usize]
            && (!s.stays_in_place() || original()[s.len as usize..] == [0x0f, 0x05])
    };
    sites.iter().filter(is_here).collect()
}

/// Whether jumps reach from everywhere in `text` to the trampolines and back.
pub fn is_near(text: &Text) -> bool {
    let range = trampoline_range();
    range.end.saturating_sub(text.start) < REACH && text.end.saturating_sub(range.start) < REACH
}

/// The redirection of sites: the code of their trampolines and stubs, and the bytes to be written
/// into the text.
pub struct Patch {
    /// Whole pages.
    pub trampolines: Vec<u8>,
    stubs: Vec<u8>,
    writes: Vec<Write>,
}

impl Patch {
    /// Redirects `sites` of an object at its virtual addresses plus `bias` to the trampolines from
    /// `first_trampoline` on, by stubs in `stub_area` where they are far. `links`: where the
    /// trampolines' links are.
    pub fn new(
        sites: &[&Site],
        bias: u64,
        first_trampoline: usize,
        stub_area: Option<usize>,
        links: usize,
    ) -> Patch {
        let address = |vaddr: u64| bias.wrapping_add(vaddr) as usize;
        let mut trampolines = Vec::new();
        trampolines.resize(pages_for(sites.len()) * PAGE_SIZE, 0xcc);
        let mut writes = Vec::with_capacity(sites.len() + 8);
        let mut stubs = Vec::new();
        for (i, site) in sites.iter().enumerate() {
            let trampoline = first_trampoline + i * TRAMPOLINE_BYTES;
            let code = emit_trampoline(site, trampoline, bias, stub_area.is_none(), links);
            trampolines[i * TRAMPOLINE_BYTES..(i + 1) * TRAMPOLINE_BYTES].copy_from_slice(&code);
            let target = match stub_area {
                None => trampoline,
                Some(area) => {
                    stubs.extend([0xff, 0x25, 0, 0, 0, 0]); // jmp [rip]
                    stubs.extend(trampoline.to_le_bytes());
                    stubs.extend([0xcc; 2]);
                    area + i * STUB_BYTES
                }
            };
            let start = address(site.start);
            // Bytes after the jump are never run: if they are, better a trap than half an
            // instruction.
            let mut write = Write { at: start, len: site.len as usize, bytes: [0xcc; SITE_BYTES] };
            if site.pad == 0 {
                write.bytes[..5].copy_from_slice(&jump(start, target));
            } else {
                let pad = address(site.pad);
                let mut long = Write { at: pad, len: 5, bytes: [0xcc; SITE_BYTES] };
                long.bytes[..5].copy_from_slice(&jump(pad, target));
                writes.push(long);
                write.bytes[..2].copy_from_slice(&[0xeb, pad.wrapping_sub(start + 2) as u8]);
            }
            writes.push(write);
        }
        Patch { trampolines, stubs, writes }
    }

    /// Writes the jumps into a copy of the text that begins at `start`.
    pub fn write_to(&self, copy: &mut [u8], start: usize) {
        for w in &self.writes {
            copy[w.at - start..][..w.len].copy_from_slice(&w.bytes[..w.len]);
        }
    }
}

/// Redirects `sites` of an object that lies at its virtual addresses plus `bias`, as far as they
/// are within `text`; answers how many were. `links`: the links of its trampolines.
///
/// # Safety
/// No thread may be executing `text` or about to, `text` must be mapped like that, privately, and
/// the sites must come from an analysis of this object.
pub unsafe fn redirect(
    trampolines: &mut Trampolines,
    sites: &[Site],
    bias: u64,
    text: Text,
    source: Source,
    links: usize,
    maps: &mut Maps,
) -> usize {
    // SAFETY: the caller's.
    let mut here = unsafe { sites_in(sites, bias, &text) };
    let near = is_near(&text);
    here.retain(|s| near || s.rip == [NO_RIP; 2]);
    if here.is_empty() {
        return 0;
    }
    // The text that was mapped here before is gone.
    trampolines.forget(|t| t.start < text.end && text.start < t.end);
    let Some((first_trampoline, pages)) = trampolines.take(here.len(), maps) else { return 0 };
    let stub_bytes = if near { 0 } else { (here.len() * STUB_BYTES).next_multiple_of(PAGE_SIZE) };
    let stub_area =
        if near { None } else { maps.map_near(text.start, text.end, stub_bytes, REACH) };
    // From here on the pages are the object's, even if something below fails: they may have become
    // executable.
    trampolines.assign(
        text,
        (first_trampoline, pages),
        (stub_area.unwrap_or(0), if stub_area.is_some() { stub_bytes } else { 0 }),
    );
    if !near && stub_area.is_none() {
        return 0;
    }
    let patch = Patch::new(&here, bias, first_trampoline, stub_area, links);
    // SAFETY: the pages were just taken or mapped for this; the writes are within text, checked
    // above.
    unsafe {
        if fill(first_trampoline, &patch.trampolines).is_err() {
            return 0;
        }
        if let Some(area) = stub_area
            && fill(area, &patch.stubs).is_err()
        {
            return 0;
        }
        if change_text(&patch.writes, text, source).is_err() {
            return 0;
        }
    }
    here.len()
}

/// `jmp rel32` from `at` to `to`.
fn jump(at: usize, to: usize) -> [u8; 5] {
    let d = (to.wrapping_sub(at + 5) as i32).to_le_bytes();
    [0xe9, d[0], d[1], d[2], d[3]]
}

/// The pages whose protection changes. Those of the vDSO change together: the kernel does not split
/// a mapping of its own (EINVAL).
fn pages_of(writes: &[Write], text: &Text, source: Source) -> (usize, usize) {
    if matches!(source, Source::None) {
        return (text.start, text.end);
    }
    let first = writes.iter().map(|w| w.at).min().unwrap_or(text.start);
    let end = writes.iter().map(|w| w.at + w.len).max().unwrap_or(text.start);
    (first & !(PAGE_SIZE - 1), end.next_multiple_of(PAGE_SIZE))
}

/// Writes into text. Either all of it or nothing is written.
///
/// # Safety
/// No thread may be executing `text`, all writes must lie in it, and `source` must be what is
/// mapped there.
unsafe fn change_text(writes: &[Write], text: Text, source: Source) -> Result<()> {
    let (start, end) = pages_of(writes, &text, source);
    // SAFETY: the caller's; from here to the end nothing outside this function and system calls
    // runs.
    unsafe {
        uz_syscall!(nr::MPROTECT, start, end - start, PROT_READ | PROT_WRITE)?;
        for w in writes {
            // No copy function is called: it would be libc's memcpy, which may be the text that
            // changes.
            asm!(
                "rep movsb",
                inout("rcx") w.len => _,
                inout("rsi") w.bytes.as_ptr() => _,
                inout("rdi") w.at => _,
                options(nostack, preserves_flags)
            );
        }
        let outcome = uz_syscall!(nr::MPROTECT, start, end - start, text.prot);
        if outcome.is_err() {
            // A security policy that lets text be written but not executed again (SELinux:
            // execmod). The text as it is in the file may be executed, so it is mapped again.
            map_again(text, source);
        }
        outcome.map(drop)
    }
}

/// Maps the original text over one that has become unusable.
///
/// # Safety
/// As for `change_text`. Calls nothing but the kernel.
#[cold]
pub unsafe fn map_again(text: Text, source: Source) {
    const MAP_PRIVATE_FIXED: usize = 0x12;
    // SAFETY: the caller's: the same bytes of the same file at the same place.
    unsafe {
        let (fd, offset) = match source {
            Source::Fd { fd, offset } => (fd as usize, offset),
            Source::Path { path, offset } => {
                match uz_syscall!(nr::OPENAT, AT_FDCWD, path.as_ptr(), O_CLOEXEC) {
                    Ok(fd) => (fd, offset),
                    Err(_) => return,
                }
            }
            Source::None => return,
        };
        let len = text.end - text.start;
        let _ = uz_syscall!(nr::MMAP, text.start, len, text.prot, MAP_PRIVATE_FIXED, fd, offset);
        if let Source::Path { .. } = source {
            let _ = uz_syscall!(nr::CLOSE, fd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uzswap::sys::mem::PROT_EXEC;

    /// On Linux 6.1 all system calls of the vDSO lie in one page: a change to only that part of the
    /// mapping failed, and none of them was patched.
    #[test]
    fn the_vdso_changes_as_a_whole() {
        let list = super::super::maps::read_maps();
        let Some(vdso) = list.iter().find(|m| m.name == b"[vdso]") else {
            std::println!("SKIPPED: this kernel gives its programs no vDSO");
            return;
        };
        let text = Text { start: vdso.start, end: vdso.end, prot: vdso.prot };
        // SAFETY: the head of an ELF image is there to be read.
        let head = unsafe { core::slice::from_raw_parts(text.start as *const u8, 5) };
        let mut bytes = [0; SITE_BYTES];
        bytes[..5].copy_from_slice(head);
        // SAFETY: the bytes are those that are there, and in front of all code. Other threads of
        // the tests may be in the vDSO while it cannot be run, so this happens in a child.
        let ended = unsafe {
            let child = uz_syscall!(nr::FORK).unwrap();
            if child == 0 {
                let is_changed =
                    change_text(&[Write { at: text.start, len: 5, bytes }], text, Source::None);
                let _ = uz_syscall!(nr::EXIT_GROUP, usize::from(is_changed.is_err()));
            }
            let mut status = 0u32;
            uz_syscall!(nr::WAIT4, child, &raw mut status, 0, 0).unwrap();
            status
        };
        assert_eq!(ended, 0);
    }

    /// The policy that lets text be written but not run again: the original comes back.
    #[test]
    fn text_that_cannot_run_again_is_mapped_again() {
        let path = std::env::temp_dir().join(std::format!("uzswap-text-{}", std::process::id()));
        std::fs::write(&path, [0xc3; 2 * PAGE_SIZE]).unwrap();
        let mut c_path = path.as_os_str().as_encoded_bytes().to_vec();
        c_path.push(0);
        let file = std::fs::File::open(&path).unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        for source in [
            Source::Path { path: &c_path, offset: PAGE_SIZE },
            Source::Fd { fd, offset: PAGE_SIZE },
        ] {
            let (read_execute, private) = (PROT_READ | PROT_EXEC, 2usize);
            // SAFETY: a new mapping; the writes are within it; nobody else knows it.
            unsafe {
                let at = uz_syscall!(nr::MMAP, 0, PAGE_SIZE, read_execute, private, fd, PAGE_SIZE)
                    .unwrap();
                let writes = [Write { at: at + 10, len: 5, bytes: [0xcc; SITE_BYTES] }];
                let mut text = Text { start: at, end: at + PAGE_SIZE, prot: read_execute };
                change_text(&writes, text, source).unwrap();
                let byte = |n: usize| *((at + n) as *const u8);
                assert_eq!((byte(9), byte(10), byte(14), byte(15)), (0xc3, 0xcc, 0xcc, 0xc3));
                text.prot = read_execute | 1 << 20; // no such protection
                assert!(change_text(&writes, text, source).is_err());
                text.prot = read_execute;
                map_again(text, source);
                assert!((0..PAGE_SIZE).all(|n| byte(n) == 0xc3));
                let run: extern "C" fn() = core::mem::transmute(at);
                run();
                uz_syscall!(nr::MUNMAP, at, PAGE_SIZE).unwrap();
            }
        }
        std::fs::remove_file(path).unwrap();
    }
}
