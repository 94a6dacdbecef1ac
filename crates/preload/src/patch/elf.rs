//! An ELF object as the patcher needs it: its segments, its identity and the bounds of its
//! functions.
//!
//! An object is read in one of two ways. Objects that are there when uzswap starts, and the vDSO,
//! are read in memory. An object that the loader is mapping right now has only its text in place,
//! so it is read as a file. Both are asked by virtual address, so that everything above this file
//! knows one kind.
//!
//! Function bounds come from `.eh_frame_hdr`, the sorted table by which unwinders find their
//! entries: every object that a C compiler made for x86-64 has it, stripped or not, and no symbol
//! table is needed.
//!
//! Nothing here trusts the object: every read is bounds-checked, and nonsense yields `None`.
//!
//! # Safety charter
//! A memory image borrows the segments of a loaded object as byte slices. That is sound while the
//! object stays mapped and its read-only segments are not written, which the patcher guarantees by
//! finishing its analysis before it changes a byte.
#![allow(unsafe_code)]

use std::vec::Vec;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_NOTE: u32 = 4;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
const PF_X: u32 = 1;
const PF_R: u32 = 4;
const NT_GNU_BUILD_ID: u32 = 3;
const DT_NULL: u64 = 0;
const DT_TEXTREL: u64 = 22;
const DT_FLAGS: u64 = 30;
const DF_TEXTREL: u64 = 4;
const EM_X86_64: u16 = 62;

/// A PT_LOAD segment; `file_bytes` of it come from the file.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub vaddr: u64,
    pub offset: u64,
    pub file_bytes: u64,
    pub memory_bytes: u64,
    pub readable: bool,
    pub executable: bool,
}

enum Bytes<'a> {
    /// Mapped at virtual address plus this.
    Memory {
        bias: u64,
    },
    File(&'a [u8]),
}

/// An ELF object, in memory or in a file.
pub struct Image<'a> {
    bytes: Bytes<'a>,
    pub segments: Vec<Segment>,
    notes: Vec<(u64, u64)>,
    dynamic: Option<(u64, u64)>,
    eh_frame_hdr: Option<u64>,
}

/// A function as the unwinder knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Function {
    pub start: u64,
    pub end: u64,
    /// The language-specific data area, which names the landing pads.
    pub lsda: Option<u64>,
}

fn u16_at(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(b.get(at..at.checked_add(2)?)?.try_into().ok()?))
}
fn u32_at(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(b.get(at..at.checked_add(4)?)?.try_into().ok()?))
}
fn u64_at(b: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(b.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

impl<'a> Image<'a> {
    /// The object in a file of these bytes.
    pub fn of_file(file: &'a [u8]) -> Option<Image<'a>> {
        let (phdrs, _) = program_headers(file)?;
        Image::new(Bytes::File(file), phdrs)
    }

    /// The object whose ELF header is mapped at `header`, `header_bytes` of it readable.
    ///
    /// # Safety
    /// The object must be completely mapped (as the loader or the kernel does) for `'a`, and its
    /// segments must not be written while the image is used.
    pub unsafe fn of_memory(header: usize, header_bytes: usize) -> Option<Image<'a>> {
        // SAFETY: the caller vouches that the header's mapping is readable.
        let head: &'a [u8] =
            unsafe { core::slice::from_raw_parts(header as *const u8, header_bytes) };
        let (phdrs, first_vaddr) = program_headers(head)?;
        Image::new(Bytes::Memory { bias: (header as u64).wrapping_sub(first_vaddr) }, phdrs)
    }

    fn new(bytes: Bytes<'a>, phdrs: &[u8]) -> Option<Image<'a>> {
        let mut image = Image {
            bytes,
            segments: Vec::new(),
            notes: Vec::new(),
            dynamic: None,
            eh_frame_hdr: None,
        };
        for ph in phdrs.chunks_exact(56) {
            let (kind, flags) = (u32_at(ph, 0)?, u32_at(ph, 4)?);
            let (offset, vaddr) = (u64_at(ph, 8)?, u64_at(ph, 16)?);
            let (file_bytes, memory_bytes) = (u64_at(ph, 32)?, u64_at(ph, 40)?);
            match kind {
                PT_LOAD => image.segments.push(Segment {
                    vaddr,
                    offset,
                    file_bytes: file_bytes.min(memory_bytes),
                    memory_bytes,
                    readable: flags & PF_R != 0,
                    executable: flags & PF_X != 0,
                }),
                PT_NOTE => image.notes.push((vaddr, file_bytes)),
                PT_DYNAMIC => image.dynamic = Some((vaddr, file_bytes)),
                PT_GNU_EH_FRAME => image.eh_frame_hdr = Some(vaddr),
                _ => {}
            }
        }
        (!image.segments.is_empty()).then_some(image)
    }

    /// The number to add to a virtual address to find it in memory. Only a memory image has one.
    pub fn bias(&self) -> Option<u64> {
        match self.bytes {
            Bytes::Memory { bias } => Some(bias),
            Bytes::File(_) => None,
        }
    }

    /// The readable bytes from `vaddr` to the end of the file-backed part of its segment.
    pub fn bytes_from(&self, vaddr: u64) -> Option<&'a [u8]> {
        let s = self
            .segments
            .iter()
            .find(|s| s.readable && vaddr >= s.vaddr && vaddr - s.vaddr < s.file_bytes)?;
        let (skip, left) = (vaddr - s.vaddr, s.file_bytes - (vaddr - s.vaddr));
        match self.bytes {
            Bytes::Memory { bias } => {
                let start = bias.wrapping_add(vaddr) as *const u8;
                // SAFETY: `of_memory` was promised that the object's segments are mapped and stay
                // unwritten.
                Some(unsafe { core::slice::from_raw_parts(start, left as usize) })
            }
            Bytes::File(file) => {
                let start = usize::try_from(s.offset.checked_add(skip)?).ok()?;
                let end = start.checked_add(usize::try_from(left).ok()?)?.min(file.len());
                file.get(start..end)
            }
        }
    }

    /// `len` bytes at `vaddr`.
    pub fn bytes_at(&self, vaddr: u64, len: usize) -> Option<&'a [u8]> {
        self.bytes_from(vaddr)?.get(..len)
    }

    /// The executable segments' bytes with their virtual addresses.
    pub fn texts(&self) -> impl Iterator<Item = (u64, &'a [u8])> + '_ {
        self.segments
            .iter()
            .filter(|s| s.executable)
            .filter_map(|s| Some((s.vaddr, self.bytes_from(s.vaddr)?)))
    }

    /// The end of the last segment: a second mark beside the build id.
    pub fn span(&self) -> u64 {
        self.segments.iter().map(|s| s.vaddr.wrapping_add(s.memory_bytes)).max().unwrap_or(0)
    }

    /// The contents of a note of the given kind and owner.
    fn note(&self, owner: &[u8], kind: u32) -> Option<&'a [u8]> {
        for &(vaddr, len) in &self.notes {
            let Some(mut b) = self.bytes_at(vaddr, len as usize) else { continue };
            while let (Some(name_len), Some(desc_len), Some(k)) =
                (u32_at(b, 0), u32_at(b, 4), u32_at(b, 8))
            {
                let name_end = 12usize.checked_add(name_len as usize)?;
                let desc = name_end.checked_next_multiple_of(4)?;
                let desc_end = desc.checked_add(desc_len as usize)?;
                if k == kind && b.get(12..name_end)? == owner {
                    return b.get(desc..desc_end);
                }
                match b.get(desc_end.checked_next_multiple_of(4)?..) {
                    Some(rest) => b = rest,
                    None => break,
                }
            }
        }
        None
    }

    /// The linker's fingerprint of the contents.
    pub fn build_id(&self) -> Option<&'a [u8]> {
        self.note(b"GNU\0", NT_GNU_BUILD_ID).filter(|id| (8..=64).contains(&id.len()))
    }

    /// Whether Go's linker made it. Its functions run on stacks too small for a hook and have no
    /// entries in the table of functions.
    pub fn is_go(&self) -> bool {
        self.note(b"Go\0\0", 4).is_some()
    }

    /// Whether the loader is going to write relocations into the text.
    pub fn has_text_relocations(&self) -> bool {
        let Some((vaddr, len)) = self.dynamic else { return false };
        let Some(b) = self.bytes_at(vaddr, len as usize) else { return false };
        b.chunks_exact(16)
            .map(|d| (u64_at(d, 0).unwrap_or(DT_NULL), u64_at(d, 8).unwrap_or(0)))
            .take_while(|&(tag, _)| tag != DT_NULL)
            .any(|(tag, value)| tag == DT_TEXTREL || (tag == DT_FLAGS && value & DF_TEXTREL != 0))
    }

    /// The table of functions, if the object has one that can be searched.
    pub fn functions(&self) -> Option<Functions<'a, '_>> {
        let hdr = self.eh_frame_hdr?;
        let b = self.bytes_from(hdr)?;
        // version, encoding of the eh_frame pointer (skipped), of the count (udata4), of the table
        // (pairs of sdata4 relative to the header): what every linker writes.
        if b.get(..4)? != [1, 0x1b, 0x03, 0x3b] {
            return None;
        }
        let count = u32_at(b, 8)? as usize;
        let table = b.get(12..12usize.checked_add(count.checked_mul(8)?)?)?;
        (count > 0).then_some(Functions { image: self, hdr, table })
    }

    /// A value in one of the DWARF pointer encodings (without the indirect bit), and its length.
    fn encoded(&self, at: u64, encoding: u8) -> Option<(u64, usize)> {
        let b = self.bytes_from(at)?;
        let (raw, len) = match encoding & 0xf {
            0x0 | 0x4 | 0xc => (u64_at(b, 0)?, 8),
            0x2 => (u16_at(b, 0)? as u64, 2),
            0xa => (u16_at(b, 0)? as i16 as u64, 2),
            0x3 => (u32_at(b, 0)? as u64, 4),
            0xb => (u32_at(b, 0)? as i32 as u64, 4),
            0x1 => uleb(b)?,
            _ => return None,
        };
        match encoding & 0x70 {
            0x00 => Some((raw, len)),
            0x10 if raw == 0 => Some((0, len)),
            0x10 => Some((raw.wrapping_add(at), len)),
            _ => None,
        }
    }

    /// The addresses at which the unwinder may enter `f` in its middle.
    pub fn landing_pads(&self, f: &Function) -> Option<Vec<u64>> {
        let Some(lsda) = f.lsda else { return Some(Vec::new()) };
        let mut at = lsda;
        let byte = |at: &mut u64| -> Option<u8> {
            let b = *self.bytes_from(*at)?.first()?;
            *at += 1;
            Some(b)
        };
        let mut base = f.start;
        let base_encoding = byte(&mut at)?;
        if base_encoding != 0xff {
            let (v, n) = self.encoded(at, base_encoding)?;
            (base, at) = (v, at + n as u64);
        }
        if byte(&mut at)? != 0xff {
            at += uleb(self.bytes_from(at)?)?.1 as u64;
        }
        let encoding = byte(&mut at)?;
        let (table_bytes, n) = uleb(self.bytes_from(at)?)?;
        at += n as u64;
        let end = at.checked_add(table_bytes)?;
        let mut pads = Vec::new();
        while at < end {
            let mut fields = [0u64; 3];
            for field in &mut fields {
                let (v, n) = self.encoded(at, encoding)?;
                (*field, at) = (v, at + n as u64);
            }
            at += uleb(self.bytes_from(at)?)?.1 as u64;
            if fields[2] != 0 {
                pads.push(base.wrapping_add(fields[2]));
            }
        }
        Some(pads)
    }
}

/// The program headers in an object's first bytes, and the virtual address of those bytes.
fn program_headers(head: &[u8]) -> Option<(&[u8], u64)> {
    let is_elf64_le = head.get(..6)? == *b"\x7fELF\x02\x01";
    if !is_elf64_le || u16_at(head, 18)? != EM_X86_64 || u16_at(head, 54)? != 56 {
        return None;
    }
    let (start, count) = (usize::try_from(u64_at(head, 32)?).ok()?, u16_at(head, 56)? as usize);
    let phdrs = head.get(start..start.checked_add(count * 56)?)?;
    let first = phdrs.chunks_exact(56).find(|ph| u32_at(ph, 0) == Some(PT_LOAD))?;
    // The header lies in the first segment, at file offset 0.
    Some((phdrs, u64_at(first, 16)?.wrapping_sub(u64_at(first, 8)?)))
}

/// An unsigned LEB128 number and its length.
fn uleb(b: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0u64;
    for (i, &byte) in b.iter().take(10).enumerate() {
        value |= ((byte & 0x7f) as u64).checked_shl(7 * i as u32)?;
        if byte & 0x80 == 0 {
            return Some((value, i + 1));
        }
    }
    None
}

/// The binary search table of `.eh_frame_hdr`, sorted by start.
pub struct Functions<'a, 'i> {
    image: &'i Image<'a>,
    hdr: u64,
    table: &'a [u8],
}

impl Functions<'_, '_> {
    pub fn len(&self) -> usize {
        self.table.len() / 8
    }

    fn start(&self, i: usize) -> u64 {
        self.hdr.wrapping_add(u32_at(self.table, i * 8).unwrap_or(0) as i32 as u64)
    }

    /// The index of the last function that starts at or below `vaddr`.
    pub fn at_or_below(&self, vaddr: u64) -> Option<usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let mid = (low + high) / 2;
            if self.start(mid) <= vaddr { low = mid + 1 } else { high = mid }
        }
        low.checked_sub(1)
    }

    /// The `i`-th function.
    pub fn get(&self, i: usize) -> Option<Function> {
        let im = self.image;
        let entry = self.hdr.wrapping_add(u32_at(self.table, i * 8 + 4)? as i32 as u64);
        // FDE: length, distance back to the CIE, start, length, augmentation.
        let b = im.bytes_from(entry)?;
        if u32_at(b, 0)? == u32::MAX {
            return None;
        }
        let cie = (entry + 4).wrapping_sub(u32_at(b, 4)? as u64);
        let (encoding, lsda_encoding) = self.cie(cie)?;
        let start = self.start(i);
        let (_, n) = im.encoded(entry + 8, encoding)?;
        let (len, m) = im.encoded(entry + 8 + n as u64, encoding & 0xf)?;
        let mut at = entry + 8 + (n + m) as u64;
        at += uleb(im.bytes_from(at)?)?.1 as u64;
        let lsda = match lsda_encoding {
            Some(e) => Some(im.encoded(at, e)?.0).filter(|&v| v != 0),
            None => None,
        };
        Some(Function { start, end: start.checked_add(len)?, lsda })
    }

    /// The pointer encodings that a CIE names: of code addresses and of the LSDA.
    fn cie(&self, at: u64) -> Option<(u8, Option<u8>)> {
        let b = self.image.bytes_from(at)?;
        if u32_at(b, 4)? != 0 || *b.get(8)? != 1 {
            return None;
        }
        let augmentation_len = b.get(9..)?.iter().take(8).position(|&c| c == 0)?;
        let augmentation = &b[9..9 + augmentation_len];
        if augmentation.first() != Some(&b'z') {
            return None;
        }
        let mut p = 9 + augmentation_len + 1;
        p += uleb(b.get(p..)?)?.1; // code alignment
        p += uleb(b.get(p..)?)?.1; // data alignment (signed, same length)
        p += uleb(b.get(p..)?)?.1; // return address register
        p += uleb(b.get(p..)?)?.1; // augmentation length
        let (mut code, mut lsda) = (0, None);
        for letter in &augmentation[1..] {
            match letter {
                b'R' => (code, p) = (*b.get(p)?, p + 1),
                b'L' => (lsda, p) = (Some(*b.get(p)?).filter(|&e| e != 0xff), p + 1),
                b'P' => {
                    let e = *b.get(p)?;
                    // The indirect bit does not change how many bytes the pointer takes.
                    p += 1 + self.image.encoded(at + p as u64 + 1, e & 0xf)?.1;
                }
                b'S' | b'B' => {}
                _ => return None,
            }
        }
        Some((code, lsda))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn libc() -> Vec<u8> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let path = maps
            .split_whitespace()
            .find(|w| w.contains("/libc.so") || w.contains("/libc-2"))
            .unwrap();
        std::fs::read(path).unwrap()
    }

    #[test]
    fn libc_has_an_identity_and_sorted_functions() {
        let file = libc();
        let image = Image::of_file(&file).unwrap();
        assert!(image.build_id().is_some());
        assert!(!image.has_text_relocations() && !image.is_go());
        let functions = image.functions().unwrap();
        assert!(functions.len() > 1000);
        let mut last = 0;
        let mut pads = 0;
        for i in 0..functions.len() {
            let f = functions.get(i).unwrap();
            assert!(f.start >= last && f.end >= f.start);
            assert_eq!(
                functions.at_or_below(f.start).map(|i| functions.get(i).unwrap().start),
                Some(f.start)
            );
            for pad in image.landing_pads(&f).unwrap() {
                // A function split into hot and cold parts has its pads in the cold one.
                let text = image.texts().any(|(v, b)| pad >= v && pad < v + b.len() as u64);
                assert!(text, "{pad:x} of {f:x?}");
                pads += 1;
            }
            last = f.start;
        }
        assert!(pads > 0);
    }

    #[test]
    fn file_and_memory_agree() {
        let file = libc();
        let on_disk = Image::of_file(&file).unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|l| l.contains("/libc") && l.contains(" 00000000 ")).unwrap();
        let base = usize::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
        // SAFETY: libc stays loaded; nobody writes its read-only segments.
        let loaded = unsafe { Image::of_memory(base, 4096) }.unwrap();
        assert_eq!(loaded.bias(), Some(base as u64));
        assert_eq!(loaded.build_id(), on_disk.build_id());
        assert_eq!(loaded.span(), on_disk.span());
        for ((va, a), (vb, b)) in loaded.texts().zip(on_disk.texts()) {
            assert_eq!((va, a.len()), (vb, b.len()));
            assert!(a == b);
        }
    }

    #[test]
    fn damaged_files_are_refused_without_a_crash() {
        let file = libc();
        for cut in [0, 1, 63, 64, 100, 1000, 5000] {
            if let Some(image) = Image::of_file(&file[..cut]) {
                assert!(image.functions().is_none());
                assert!(image.texts().all(|(_, b)| b.is_empty()));
            }
        }
        // Every byte of the headers turned over, one at a time.
        for at in 0..1024 {
            let mut bad = file[..1 << 20].to_vec();
            bad[at] ^= 0xff;
            if let Some(image) = Image::of_file(&bad) {
                let _ =
                    (image.build_id(), image.is_go(), image.has_text_relocations(), image.span());
                if let Some(functions) = image.functions() {
                    for i in (0..functions.len()).step_by(97) {
                        let _ = functions.get(i).map(|f| image.landing_pads(&f));
                    }
                }
            }
        }
    }
}
