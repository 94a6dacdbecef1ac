//! The process's mappings, as /proc/self/maps shows them.
//!
//! # Safety charter
//! Maps memory only where nothing is mapped (`MAP_FIXED_NOREPLACE`).
#![allow(unsafe_code)]

use std::vec;
use std::vec::Vec;

use uzswap::sys::mem::{
    MAP_ANONYMOUS, MAP_FIXED_NOREPLACE, MAP_PRIVATE, PROT_EXEC, PROT_READ, PROT_WRITE,
};
use uzswap::sys::{PAGE_SIZE, fd, file, nr};
use uzswap::uz_syscall;

use super::cache::{open_path, read_all};

/// The lowest address at which an ordinary process may map memory.
const LOWEST: usize = 1 << 16;
/// Bytes read at a time.
const READ_BYTES: usize = 8 << 10;
/// Room left above an object for the heap that may grow behind it.
const HEAP_ROOM: usize = 1 << 30;

/// One line: a mapping.
#[derive(Clone, Debug)]
pub struct Mapping {
    pub start: usize,
    pub end: usize,
    pub prot: usize,
    pub private: bool,
    pub offset: usize,
    pub device: (u32, u32),
    pub inode: u64,
    pub name: Vec<u8>,
}

/// All mappings, lowest first, read when first asked for.
#[derive(Default)]
pub struct Maps {
    list: Option<Vec<Mapping>>,
}

impl Maps {
    pub fn list(&mut self) -> &[Mapping] {
        self.list.get_or_insert_with(read_maps)
    }

    /// The list as it is now.
    pub fn reread(&mut self) -> &[Mapping] {
        self.list = None;
        self.list()
    }

    /// Maps `len` writable bytes such that everything in `start..end` is less than `reach` away. A
    /// place below is taken rather than one above: behind an executable its heap grows.
    pub fn map_near(
        &mut self,
        start: usize,
        end: usize,
        len: usize,
        reach: usize,
    ) -> Option<usize> {
        let lowest = end.saturating_sub(reach).max(LOWEST).next_multiple_of(PAGE_SIZE);
        let highest = start.checked_add(reach)?.checked_sub(len)?;
        let list = self.reread();
        let mut gaps = Vec::new();
        let mut from = LOWEST;
        for m in list {
            // The stack grows into the gap below it, which must stay free.
            if m.start > from && m.name != b"[stack]" {
                gaps.push((from, m.start));
            }
            from = from.max(m.end);
        }
        gaps.push((from, usize::MAX / 2 + 1 - PAGE_SIZE));
        let below = gaps.iter().rev().filter_map(|&(low, high)| {
            let at = high.min(start).checked_sub(len)?;
            (at >= low && at >= lowest).then_some(at)
        });
        let above = gaps.iter().filter_map(|&(low, high)| {
            let at = low.max(end.checked_add(HEAP_ROOM)?);
            (at + len <= high && at <= highest).then_some(at)
        });
        below.chain(above).take(16).find_map(|at| {
            let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
            // SAFETY: with NOREPLACE the kernel refuses what would hit another mapping.
            let got = unsafe {
                uz_syscall!(nr::MMAP, at, len, PROT_READ | PROT_WRITE, flags, usize::MAX, 0)
            }
            .ok()?;
            if got != at {
                // A kernel before 4.17 takes the address for a hint.
                // SAFETY: just mapped, used by nobody.
                let _ = unsafe { uz_syscall!(nr::MUNMAP, got, len) };
                return None;
            }
            Some(got)
        })
    }
}

/// The kernel's record of single pages, /proc/self/pagemap.
pub struct Pagemap {
    fd: i32,
    entries: Vec<u8>,
}

impl Pagemap {
    pub fn open() -> Option<Pagemap> {
        let fd = open_path(b"/proc/self/pagemap", 0).ok()?;
        Some(Pagemap { fd, entries: vec![0; READ_BYTES] })
    }

    /// Whether the pages of a private mapping of a file are all as they are in the file: none was
    /// written, neither by the process nor by a debugger. Where the kernel does not tell, the
    /// answer is no.
    pub fn is_unwritten(&mut self, start: usize, end: usize) -> bool {
        const PRESENT: u64 = 1 << 63;
        const SWAPPED: u64 = 1 << 62;
        const OF_FILE: u64 = 1 << 61;
        let as_in_file =
            |e: u64| e & (PRESENT | SWAPPED) == 0 || e & (PRESENT | OF_FILE) == PRESENT | OF_FILE;
        let (mut page, last) = (start / PAGE_SIZE, end / PAGE_SIZE);
        while page < last {
            let some = &mut self.entries[..((last - page) * 8).min(READ_BYTES)];
            let known = file::read_exact_at(self.fd, some, page as u64 * 8).is_ok();
            if !known || !some.as_chunks().0.iter().all(|e| as_in_file(u64::from_le_bytes(*e))) {
                return false;
            }
            page += some.len() / 8;
        }
        true
    }
}

impl Drop for Pagemap {
    fn drop(&mut self) {
        fd::close(self.fd);
    }
}

/// All mappings, lowest first; none if the kernel does not tell.
pub fn read_maps() -> Vec<Mapping> {
    let Ok(fd) = open_path(b"/proc/self/maps", 0) else { return Vec::new() };
    let text = read_all(fd, READ_BYTES).unwrap_or_default();
    fd::close(fd);
    let mut list = Vec::with_capacity(text.len() / 80);
    list.extend(text.split(|&b| b == b'\n').filter_map(parse_line));
    list
}

/// `start-end perms offset major:minor inode   name`
fn parse_line(line: &[u8]) -> Option<Mapping> {
    let mut rest = line;
    let mut field = || {
        let skip = rest.iter().position(|&b| b != b' ')?;
        let word = &rest[skip..];
        let end = word.iter().position(|&b| b == b' ').unwrap_or(word.len());
        rest = &word[end..];
        Some(&word[..end])
    };
    let range = field()?;
    let dash = range.iter().position(|&b| b == b'-')?;
    let perms = field()?;
    let offset = number(field()?, 16)?;
    let device = field()?;
    let colon = device.iter().position(|&b| b == b':')?;
    let inode = number(field()?, 10)? as u64;
    let name = rest.iter().position(|&b| b != b' ').map_or(&[][..], |skip| &rest[skip..]);
    let bit =
        |i: usize, letter: u8, value: usize| if perms.get(i) == Some(&letter) { value } else { 0 };
    Some(Mapping {
        start: number(&range[..dash], 16)?,
        end: number(&range[dash + 1..], 16)?,
        prot: bit(0, b'r', PROT_READ) | bit(1, b'w', PROT_WRITE) | bit(2, b'x', PROT_EXEC),
        private: perms.get(3) == Some(&b'p'),
        offset,
        device: (number(&device[..colon], 16)? as u32, number(&device[colon + 1..], 16)? as u32),
        inode,
        name: name.into(),
    })
}

fn number(digits: &[u8], radix: u32) -> Option<usize> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0usize, |n, &d| {
        n.checked_mul(radix as usize)?.checked_add((d as char).to_digit(radix)? as usize)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_in_full() {
        let m =
            parse_line(b"7f10a000-7f10c000 r-xp 00026000 fe:01 1234                 /lib/a b.so")
                .unwrap();
        assert_eq!((m.start, m.end, m.offset, m.inode), (0x7f10a000, 0x7f10c000, 0x26000, 1234));
        assert_eq!((m.prot, m.private, m.device), (PROT_READ | PROT_EXEC, true, (0xfe, 1)));
        assert_eq!(m.name, b"/lib/a b.so");
        let m = parse_line(b"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0  [vsyscall]")
            .unwrap();
        assert_eq!((m.prot, &m.name[..]), (PROT_EXEC, &b"[vsyscall]"[..]));
        assert!(parse_line(b"").is_none() && parse_line(b"x-y r").is_none());
    }

    #[test]
    fn own_code_is_in_the_list_and_room_near_it_is_found() {
        let mut maps = Maps::default();
        let here = own_code_is_in_the_list_and_room_near_it_is_found as *const () as usize;
        let m = maps.list().iter().find(|m| (m.start..m.end).contains(&here)).unwrap().clone();
        assert!(m.prot & PROT_EXEC != 0 && m.private);
        let reach = (1 << 31) - (1 << 16);
        let a = maps.map_near(m.start, m.end, 3 * PAGE_SIZE, reach).unwrap();
        let b = maps.map_near(m.start, m.end, PAGE_SIZE, reach).unwrap();
        for at in [a, b] {
            assert!(m.end.abs_diff(at) < reach && at.abs_diff(m.start) < reach);
            assert!(!(m.start..m.end).contains(&at));
        }
        assert!(a.abs_diff(b) >= PAGE_SIZE);
    }

    #[test]
    fn a_written_page_is_noticed() {
        let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        let Some(mut pagemap) = Pagemap::open() else { return };
        const PAGES: usize = 2500; // more than are asked for at a time
        let (len, writable) = (PAGES * PAGE_SIZE, PROT_READ | PROT_WRITE);
        // SAFETY: a new private mapping; what is touched lies in the file.
        unsafe {
            let at = uz_syscall!(nr::MMAP, 0, len, writable, MAP_PRIVATE, fd, 0).unwrap();
            assert!(pagemap.is_unwritten(at, at + len), "nothing is there");
            core::ptr::read_volatile((at + 3 * PAGE_SIZE) as *const u8);
            assert!(pagemap.is_unwritten(at, at + len), "it was read");
            core::ptr::write_volatile((at + 3 * PAGE_SIZE) as *mut u8, 1);
            assert!(!pagemap.is_unwritten(at, at + len));
            assert!(pagemap.is_unwritten(at, at + 3 * PAGE_SIZE));
            assert!(pagemap.is_unwritten(at + 4 * PAGE_SIZE, at + len));
            uz_syscall!(nr::MUNMAP, at, len).unwrap();
        }
    }
}
