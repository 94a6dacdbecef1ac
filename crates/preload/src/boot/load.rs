//! Mapping of an ELF file as the kernel does it for a program or its loader.
//!
//! # Safety charter
//! An object with fixed addresses is mapped only where nothing is; one without, at a place that the
//! kernel chooses. Mappings replaced afterwards lie inside that reservation.
#![allow(unsafe_code)]

use std::vec::Vec;

use uzswap::region::{page_ceil, page_floor};
use uzswap::sys::mem::{
    MAP_ANONYMOUS, MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_NORESERVE, MAP_PRIVATE, PROT_EXEC,
    PROT_NONE, PROT_READ, PROT_WRITE,
};
use uzswap::sys::{PAGE_SIZE, check, file, nr};

use crate::takeover::call;

pub const HEADER_BYTES: usize = 56;
const EHDR_BYTES: usize = 64;
/// The most program headers that the kernel takes.
const MOST_HEADERS: usize = 65536 / HEADER_BYTES;
const PT_LOAD: u32 = 1;
const PT_INTERP: u32 = 3;
const PT_PHDR: u32 = 6;
const PT_GNU_STACK: u32 = 0x6474_e551;
const PF_X: u32 = 1;
const PF_W: u32 = 2;
const PF_R: u32 = 4;
const ET_EXEC: u16 = 2;
const ET_DYN: u16 = 3;
const EM_X86_64: u16 = 62;

/// An object in memory.
pub struct Object {
    pub bias: usize,
    pub entry: usize,
    /// Where the program headers are, and how many.
    pub headers: usize,
    pub header_count: usize,
    /// The path of its loader, NUL-terminated.
    pub loader: Option<Vec<u8>>,
    pub wants_executable_stack: bool,
}

/// A program header.
struct Header {
    kind: u32,
    flags: u32,
    offset: usize,
    address: usize,
    file_bytes: usize,
    memory_bytes: usize,
    align: usize,
}

impl Header {
    fn parse(b: &[u8; HEADER_BYTES]) -> Header {
        let word = |at: usize| usize::from_le_bytes(core::array::from_fn(|i| b[at + i]));
        Header {
            kind: word(0) as u32,
            flags: (word(0) >> 32) as u32,
            offset: word(8),
            address: word(16),
            file_bytes: word(32),
            memory_bytes: word(40),
            align: word(48),
        }
    }

    fn end(&self) -> Option<usize> {
        self.address.checked_add(self.memory_bytes)?.checked_next_multiple_of(PAGE_SIZE)
    }

    fn prot(&self) -> usize {
        let bit = |flag, prot| if self.flags & flag != 0 { prot } else { 0 };
        bit(PF_R, PROT_READ) | bit(PF_W, PROT_WRITE) | bit(PF_X, PROT_EXEC)
    }
}

impl Object {
    /// Maps the object in an open file. `None`: the file is no object, or does not fit.
    pub fn map(fd: i32) -> Option<Object> {
        let mut head = [0u8; EHDR_BYTES];
        file::read_exact_at(fd, &mut head, 0).ok()?;
        let half = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        let word = |at: usize| usize::from_le_bytes(core::array::from_fn(|i| head[at + i]));
        let count = half(56) as usize;
        if !head.starts_with(b"\x7fELF\x02\x01")
            || half(18) != EM_X86_64
            || half(54) as usize != HEADER_BYTES
            || count > MOST_HEADERS
        {
            return None;
        }
        let mut table = std::vec![0u8; count * HEADER_BYTES];
        file::read_exact_at(fd, &mut table, word(32) as u64).ok()?;
        let headers: Vec<Header> = table.as_chunks().0.iter().map(Header::parse).collect();
        let loads: Vec<&Header> =
            headers.iter().filter(|h| h.kind == PT_LOAD && h.memory_bytes > 0).collect();
        let bias = reserve(&loads, half(16))?;
        for header in &loads {
            map_segment(fd, header, bias)?;
        }
        let table_at =
            headers.iter().find(|h| h.kind == PT_PHDR).map(|h| h.address).or_else(|| {
                let holds = |h: &&&Header| word(32).wrapping_sub(h.offset) < h.file_bytes;
                loads.iter().find(holds).map(|h| word(32) - h.offset + h.address)
            });
        Some(Object {
            bias,
            entry: bias.wrapping_add(word(24)),
            headers: table_at.map_or(0, |at| bias.wrapping_add(at)),
            header_count: count,
            loader: loader_path(fd, &headers)?,
            wants_executable_stack: headers
                .iter()
                .any(|h| h.kind == PT_GNU_STACK && h.flags & PF_X != 0),
        })
    }
}

/// The path that PT_INTERP names, if there is one; `None` if it cannot be read.
fn loader_path(fd: i32, headers: &[Header]) -> Option<Option<Vec<u8>>> {
    const LONGEST: usize = 4096;
    let Some(h) = headers.iter().find(|h| h.kind == PT_INTERP) else { return Some(None) };
    if !(2..=LONGEST).contains(&h.file_bytes) {
        return None;
    }
    let mut path = std::vec![0u8; h.file_bytes];
    file::read_exact_at(fd, &mut path, h.offset as u64).ok()?;
    (path.last() == Some(&0)).then_some(Some(path))
}

/// Reserves the addresses of all segments; returns the number to add to those in the file.
fn reserve(loads: &[&Header], kind: u16) -> Option<usize> {
    let low = page_floor(loads.iter().map(|h| h.address).min()?);
    let high = loads.iter().map(|h| h.end()).try_fold(0, |high, end| Some(high.max(end?)))?;
    let len = high.checked_sub(low)?;
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    let map = |at: usize, len: usize, flags: usize| {
        check(call!(nr::MMAP, at, len, PROT_NONE, flags, usize::MAX, 0)).ok()
    };
    match kind {
        ET_EXEC => map(low, len, flags | MAP_FIXED_NOREPLACE).filter(|&at| at == low).map(|_| 0),
        ET_DYN => {
            let align = loads.iter().map(|h| h.align).max()?.clamp(PAGE_SIZE, 1 << 30);
            if !align.is_power_of_two() {
                return None;
            }
            let wide = len.checked_add(align - PAGE_SIZE)?;
            let start = map(0, wide, flags)?;
            let at = start.next_multiple_of(align);
            for (edge, bytes) in [(start, at - start), (at + len, start + wide - (at + len))] {
                if bytes > 0 {
                    let _ = call!(nr::MUNMAP, edge, bytes);
                }
            }
            Some(at.wrapping_sub(low))
        }
        _ => None,
    }
}

/// Maps a segment inside the reservation: its part of the file, zeros behind it.
fn map_segment(fd: i32, h: &Header, bias: usize) -> Option<()> {
    if h.file_bytes > h.memory_bytes || h.offset % PAGE_SIZE != h.address % PAGE_SIZE {
        return None;
    }
    let start = bias.wrapping_add(h.address);
    let (file_end, end) = (start + h.file_bytes, page_ceil(start + h.memory_bytes));
    let place = MAP_PRIVATE | MAP_FIXED;
    let mut zeros_from = page_floor(start);
    if h.file_bytes > 0 {
        let (at, from) = (page_floor(start), page_floor(h.offset));
        check(call!(nr::MMAP, at, page_ceil(file_end) - at, h.prot(), place, fd, from)).ok()?;
        zeros_from = page_ceil(file_end);
        // Bytes of the file behind the segment are not the program's.
        if h.prot() & PROT_WRITE != 0 && h.memory_bytes > h.file_bytes {
            // SAFETY: the rest of a page that was just mapped, private and writable.
            unsafe { core::ptr::write_bytes(file_end as *mut u8, 0, zeros_from - file_end) };
        }
    }
    if end > zeros_from {
        let flags = place | MAP_ANONYMOUS;
        check(call!(nr::MMAP, zeros_from, end - zeros_from, h.prot(), flags, usize::MAX, 0))
            .ok()?;
    }
    Some(())
}

/// Lets code run on the stack that has `at`, as the kernel does for a program that asks for it.
pub fn make_stack_executable(at: usize) {
    const PROT_GROWSDOWN: usize = 0x0100_0000;
    let prot = PROT_READ | PROT_WRITE | PROT_EXEC | PROT_GROWSDOWN;
    let _ = call!(nr::MPROTECT, page_floor(at), PAGE_SIZE, prot);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    const CODE: usize = EHDR_BYTES + 3 * HEADER_BYTES;
    const LOADER: &[u8] = b"/lib/loader\0";

    /// A file in memory with these bytes.
    fn file(bytes: &[u8]) -> OwnedFd {
        let fd = call!(nr::MEMFD_CREATE, c"object".as_ptr(), 0) as i32;
        assert!(fd >= 0, "error {fd}");
        let written = call!(nr::PWRITE64, fd, bytes.as_ptr(), bytes.len(), 0);
        assert_eq!(written, bytes.len() as isize);
        // SAFETY: a descriptor that was just made, and is nobody else's.
        unsafe { OwnedFd::from_raw_fd(fd) }
    }

    fn header(kind: u32, flags: u32, words: [usize; 5]) -> Vec<u8> {
        let [offset, address, file_bytes, memory_bytes, align] = words;
        let first = [kind.to_le_bytes(), flags.to_le_bytes()].concat();
        let words = [offset, address, address, file_bytes, memory_bytes, align];
        let words = words.iter().flat_map(|word| word.to_le_bytes());
        first.into_iter().chain(words).collect()
    }

    /// An object of one segment with `file_bytes` of the file and `memory_bytes` in memory, whose
    /// loader has this name.
    fn object(kind: u16, address: usize, bytes: [usize; 2], loader: &[u8]) -> Vec<u8> {
        let mut all = std::vec![0u8; EHDR_BYTES];
        all[..6].copy_from_slice(b"\x7fELF\x02\x01");
        all[16..18].copy_from_slice(&kind.to_le_bytes());
        all[18..20].copy_from_slice(&EM_X86_64.to_le_bytes());
        all[24..32].copy_from_slice(&(address + CODE).to_le_bytes());
        all[32..40].copy_from_slice(&EHDR_BYTES.to_le_bytes());
        all[54..56].copy_from_slice(&(HEADER_BYTES as u16).to_le_bytes());
        all[56..58].copy_from_slice(&3u16.to_le_bytes());
        let [file_bytes, memory_bytes] = bytes;
        let load = [0, address, file_bytes, memory_bytes, PAGE_SIZE];
        all.extend(header(PT_LOAD, PF_R | PF_W, load));
        all.extend(header(PT_INTERP, PF_R, [CODE, 0, loader.len(), loader.len(), 1]));
        all.extend(header(PT_GNU_STACK, PF_R | PF_W | PF_X, [0; 5]));
        all.extend_from_slice(loader);
        // Behind the segment there is more in the file.
        all.resize(2 * PAGE_SIZE, 7);
        all
    }

    fn map(bytes: &[u8]) -> Option<Object> {
        Object::map(file(bytes).as_raw_fd())
    }

    #[test]
    fn an_object_is_mapped_with_zeros_behind_what_its_file_has() {
        const FILE_BYTES: usize = PAGE_SIZE + 100;
        let bytes = object(ET_DYN, 0, [FILE_BYTES, 3 * PAGE_SIZE], LOADER);
        let o = map(&bytes).unwrap();
        assert_eq!((o.entry, o.headers), (o.bias + CODE, o.bias + EHDR_BYTES));
        assert_eq!((o.header_count, o.loader.as_deref()), (3, Some(LOADER)));
        assert!(o.wants_executable_stack);
        // SAFETY: the segment, which was just mapped for reading.
        let memory = unsafe { core::slice::from_raw_parts(o.bias as *const u8, 3 * PAGE_SIZE) };
        assert_eq!(memory[..FILE_BYTES], bytes[..FILE_BYTES]);
        assert!(memory[FILE_BYTES..].iter().all(|byte| *byte == 0));
        assert_eq!(call!(nr::MUNMAP, o.bias, 3 * PAGE_SIZE), 0);
    }

    #[test]
    fn an_object_with_a_place_of_its_own_is_mapped_there_or_not_at_all() {
        // Far from where the kernel puts mappings.
        const PLACE: usize = 0x2345_0000_0000;
        let bytes = object(ET_EXEC, PLACE, [PAGE_SIZE, PAGE_SIZE], LOADER);
        let o = map(&bytes).unwrap();
        assert_eq!((o.bias, o.entry), (0, PLACE + CODE));
        assert!(map(&bytes).is_none(), "the place is taken");
        assert_eq!(call!(nr::MUNMAP, PLACE, PAGE_SIZE), 0);
    }

    #[test]
    fn a_file_that_is_no_object_is_not_mapped() {
        let good = object(ET_DYN, 0, [PAGE_SIZE, PAGE_SIZE], LOADER);
        let spoiled = |at: usize, with: &[u8]| {
            let mut bytes = good.clone();
            bytes[at..at + with.len()].copy_from_slice(with);
            map(&bytes).is_none()
        };
        const LOAD: usize = EHDR_BYTES;
        assert!(spoiled(0, b"#!") && spoiled(18, &[183, 0]) && spoiled(16, &[1, 0]));
        assert!(spoiled(56, &[0, 0]) && spoiled(56, &[0xff, 0xff]) && spoiled(54, &[55, 0]));
        assert!(spoiled(32, &[0xff; 8]), "no table");
        // Of the segment: in memory smaller than in the file, another place in its page, no end,
        // no power of two.
        assert!(spoiled(LOAD + 40, &[1, 0]) && spoiled(LOAD + 8, &[1]));
        assert!(spoiled(LOAD + 40, &[0xff; 8]) && spoiled(LOAD + 48, &[0, 0x30, 0]));
        // The loader's name has no end.
        assert!(map(&object(ET_DYN, 0, [PAGE_SIZE; 2], b"/lib/loader")).is_none());
        assert!(map(&good[..EHDR_BYTES]).is_none() && map(&good[..CODE - 1]).is_none());
        assert!(map(b"").is_none());
    }
}
