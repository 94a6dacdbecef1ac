//! Trampolines: the pieces of code that patched instructions jump to.
//!
//! ```text
//!  trampoline, 128 bytes
//!    0  moved neighbours (before the instruction)
//!       mov r11, [routes]; cmp byte ptr [r11 + number], 0
//!       jne slow
//!       syscall                               or, where it stayed in place, a jump to it
//!       moved neighbours (after it); jmp back
//!  slow: lea rcx, [after the syscall]
//!       jmp [slow path]
//!  120  how far from here the original instruction is
//! ```
//!
//! All trampolines lie in one array in this library's own .bss, made executable page by page as
//! they are filled. A single entry of call-frame information covers the array. It says that the
//! stack of a thread in a trampoline is as at the address in the trampoline's last word. So an
//! unwinder that meets an interrupted system call, which for glibc is how a thread is cancelled,
//! finds its way back into the function that made it.
//!
//! A trampoline finds this library by two addresses, its [`Links`], and names the rest by distance.
//! So the trampolines of a near object are the same in all processes where object, trampolines and
//! links lie at the same distances: pages of a file (`shared.rs`), for which `place_for` chooses
//! the place in the array.
//!
//! # Safety charter
//! Each object has pages of its own in the array. They are filled before a jump leads to them, and
//! written again only when the object's text is not mapped any more, so that nobody can be in them.
#![allow(unsafe_code)]

use core::arch::global_asm;
use core::mem::offset_of;
use core::sync::atomic::AtomicU8;
use std::vec::Vec;

use uzswap::sys::mem::{PROT_EXEC, PROT_READ, PROT_WRITE};
use uzswap::sys::{PAGE_SIZE, Result, nr};
use uzswap::uz_syscall;

use super::apply::Text;
use super::entry::{uzswap_patch_slow, uzswap_patch_slow_own};
use super::maps::Maps;
use super::routes::{ROUTE_COUNT, ROUTE_TABLE};
use super::table::{NO_NUMBER, NO_RIP, Site, Tail};

pub const TRAMPOLINE_BYTES: usize = 128;
/// Where a trampoline keeps the address of the original instruction, from the trampoline.
const ORIGIN_AT: usize = 120;
const TRAMPOLINES_PER_PAGE: usize = PAGE_SIZE / TRAMPOLINE_BYTES;
/// Pages of the array: somewhat less than 2 MiB, so that a huge page fits in nowhere.
const TRAMPOLINE_PAGES: usize = 448;
/// The distance between shared texts and their trampolines is a multiple of this: 2 MiB, as kernels
/// align large objects, this library among them.
const STEP_PAGES: usize = 512;
/// Places that are tried for a shared text's trampolines, where the first is taken or not in the
/// array.
const PLACES: usize = 8;
const ARRAY_BYTES: usize = TRAMPOLINE_PAGES * PAGE_SIZE;

global_asm!(
    ".pushsection .bss.uzswap_patch_trampolines,\"aw\",@nobits",
    ".p2align 12",
    ".globl uzswap_patch_trampolines",
    ".hidden uzswap_patch_trampolines",
    ".type uzswap_patch_trampolines,@object",
    ".size uzswap_patch_trampolines, {bytes}",
    "uzswap_patch_trampolines:",
    "    .cfi_startproc",
    "    .cfi_signal_frame",
    "    .cfi_def_cfa rsp, 0",
    // The return address (column 16) is the value of: trampoline + [trampoline + 120], where
    // trampoline is rip & -128. DW_CFA_val_expression 16, 10 bytes: breg16 0, const1s -128, and,
    // dup, plus_uconst 120, deref, plus
    "    .cfi_escape 0x16, 0x10, 0x0a, 0x80, 0x00, 0x09, 0x80, 0x1a, 0x12, 0x23, {origin}, 0x06, \
     0x22",
    "    .zero {bytes}",
    "    .cfi_endproc",
    ".popsection",
    bytes = const ARRAY_BYTES,
    origin = const ORIGIN_AT,
);

unsafe extern "C" {
    static uzswap_patch_trampolines: [u8; ARRAY_BYTES];
}

/// The addresses of all trampolines.
pub fn trampoline_range() -> core::ops::Range<usize> {
    let start = &raw const uzswap_patch_trampolines as usize;
    start..start + ARRAY_BYTES
}

/// The addresses in this library that trampolines refer to.
#[repr(C)]
pub struct Links {
    routes: *const AtomicU8,
    slow_path: unsafe extern "C" fn(),
}

// SAFETY: two constants.
unsafe impl Sync for Links {}

impl Links {
    pub const fn new() -> Links {
        Links { routes: ROUTE_TABLE.as_ptr(), slow_path: uzswap_patch_slow }
    }
}

/// The links of all trampolines that are not shared.
static LINKS: Links = Links::new();
/// The links of trampolines whose hooks run on the thread's hook stack.
static LINKS_TO_HOOK_STACK: Links = Links { slow_path: uzswap_patch_slow_own, ..Links::new() };

pub fn common_links(to_hook_stack: bool) -> usize {
    let links = if to_hook_stack { &LINKS_TO_HOOK_STACK } else { &LINKS };
    core::ptr::from_ref(links) as usize
}

/// One bit for each page of the array.
type PageBits = [u64; TRAMPOLINE_PAGES / 64];

/// The used trampolines and their objects. Guarded by the patcher's lock.
pub struct Trampolines {
    used: PageBits,
    /// Pages that had an object once: they are not writable.
    filled: PageBits,
    objects: Vec<Object>,
}

/// An object that has trampolines.
struct Object {
    text: Text,
    trampolines: usize,
    pages: usize,
    stubs: (usize, usize),
}

/// The number of whole pages for `trampolines` trampolines.
pub fn pages_for(trampolines: usize) -> usize {
    trampolines.div_ceil(TRAMPOLINES_PER_PAGE)
}

fn bit(bits: &PageBits, page: usize) -> bool {
    bits[page / 64] & 1 << (page % 64) != 0
}

fn set_bits(bits: &mut PageBits, first: usize, pages: usize, to: bool) {
    for page in first..first + pages {
        bits[page / 64] = bits[page / 64] & !(1 << (page % 64)) | (to as u64) << (page % 64);
    }
}

fn page_of(trampolines: usize) -> usize {
    (trampolines - trampoline_range().start) / PAGE_SIZE
}

impl Trampolines {
    pub const fn new() -> Trampolines {
        Trampolines {
            used: [0; TRAMPOLINE_PAGES / 64],
            filled: [0; TRAMPOLINE_PAGES / 64],
            objects: Vec::new(),
        }
    }

    fn is_free(&self, first: usize, pages: usize) -> bool {
        first + pages <= TRAMPOLINE_PAGES
            && !(first..first + pages).any(|page| bit(&self.used, page))
    }

    /// Whole pages for `count` trampolines that nobody executes, writable: their address and
    /// number.
    pub fn take(&mut self, count: usize, maps: &mut Maps) -> Option<(usize, usize)> {
        let pages = pages_for(count);
        let find = |s: &Trampolines| (0..TRAMPOLINE_PAGES).find(|&first| s.is_free(first, pages));
        let first = find(self).or_else(|| {
            let mapped: Vec<_> =
                maps.reread().iter().filter(|m| m.prot & PROT_EXEC != 0).cloned().collect();
            self.forget(|t| !mapped.iter().any(|m| m.start < t.end && t.start < m.end));
            find(self)
        })?;
        let at = trampoline_range().start + first * PAGE_SIZE;
        if (first..first + pages).any(|page| bit(&self.filled, page)) {
            // SAFETY: trampolines of an object that is not mapped any more, or none; nobody comes
            // here.
            unsafe { uz_syscall!(nr::MPROTECT, at, pages * PAGE_SIZE, PROT_READ | PROT_WRITE) }
                .ok()?;
        }
        Some((at, pages))
    }

    /// The place for the trampolines of a text such that jumps between the two are equal in most
    /// processes: at a distance that is a multiple of the step, or some pages more where that place
    /// is taken. Its pages were never used before.
    pub fn place_for(&self, text: &Text, pages: usize) -> Option<usize> {
        let array = trampoline_range().start;
        let same = (text.start.wrapping_sub(array) / PAGE_SIZE) % STEP_PAGES;
        let first = (0..PLACES).map(|n| (same + n * STEP_PAGES / PLACES) % STEP_PAGES);
        let is_new = |first: usize| (first..first + pages).all(|page| !bit(&self.filled, page));
        let mut first = first.filter(|&first| self.is_free(first, pages) && is_new(first));
        first.next().map(|first| array + first * PAGE_SIZE)
    }

    /// Notes the pages as the text's, until the text has gone. `stubs`: address and length, 0 where
    /// there are none.
    pub fn assign(
        &mut self,
        text: Text,
        (trampolines, pages): (usize, usize),
        stubs: (usize, usize),
    ) {
        set_bits(&mut self.used, page_of(trampolines), pages, true);
        set_bits(&mut self.filled, page_of(trampolines), pages, true);
        self.objects.push(Object { text, trampolines, pages, stubs });
    }

    /// Takes the trampolines of objects back whose text is known to have gone.
    pub fn forget(&mut self, gone: impl Fn(&Text) -> bool) {
        let mut i = 0;
        while i < self.objects.len() {
            if !gone(&self.objects[i].text) {
                i += 1;
                continue;
            }
            let o = self.objects.swap_remove(i);
            set_bits(&mut self.used, page_of(o.trampolines), o.pages, false);
            if o.stubs.1 > 0 {
                // SAFETY: only the object's text led there.
                let _ = unsafe { uz_syscall!(nr::MUNMAP, o.stubs.0, o.stubs.1) };
            }
        }
    }
}

/// Writes code to fresh pages and makes them executable.
///
/// # Safety
/// The pages must be ours, and nobody may be executing them.
pub unsafe fn fill(at: usize, code: &[u8]) -> Result<()> {
    let len = code.len().next_multiple_of(PAGE_SIZE);
    // SAFETY: as the caller says; they are mapped read-write.
    unsafe {
        core::ptr::copy_nonoverlapping(code.as_ptr(), at as *mut u8, code.len());
        uz_syscall!(nr::MPROTECT, at, len, PROT_READ | PROT_EXEC).map(drop)
    }
}

/// The code of a trampoline.
struct Assembler {
    at: usize,
    code: [u8; TRAMPOLINE_BYTES],
    len: usize,
}

impl Assembler {
    fn bytes(&mut self, b: &[u8]) {
        self.code[self.len..self.len + b.len()].copy_from_slice(b);
        self.len += b.len();
    }

    fn here(&self) -> usize {
        self.at + self.len
    }

    /// The last four bytes of an instruction (but for `trailing` more): the distance to `to`.
    fn distance(&mut self, to: usize, trailing: usize) {
        let d = to.wrapping_sub(self.here() + 4 + trailing) as i32;
        self.bytes(&d.to_le_bytes());
    }

    /// `mov r11, [links.routes]`
    fn routes(&mut self, links: usize) {
        self.bytes(&[0x4c, 0x8b, 0x1d]);
        self.distance(links + offset_of!(Links, routes), 0);
    }

    fn jump(&mut self, to: usize, near: bool) {
        if near {
            self.bytes(&[0xe9]);
            self.distance(to, 0);
        } else {
            self.bytes(&[0xff, 0x25, 0, 0, 0, 0]);
            self.bytes(&to.to_le_bytes());
        }
    }

    /// A short forward branch to be bound later.
    fn short_branch(&mut self, opcode: u8) -> usize {
        self.bytes(&[opcode, 0]);
        self.len
    }

    fn bind(&mut self, branch: usize) {
        self.code[branch - 1] = (self.len - branch) as u8;
    }

    /// Moved code from `from` bytes into the site, its distances corrected.
    fn moved(&mut self, site: &Site, bias: u64, from: usize, to: usize) {
        let delta = (bias.wrapping_add(site.start) as usize + from).wrapping_sub(self.here());
        let base = self.len;
        self.bytes(&site.original[from..to]);
        for &r in site.rip.iter().filter(|&&r| r != NO_RIP) {
            if let Some(at) = (r as usize).checked_sub(from).filter(|at| at + 4 <= to - from) {
                let field = &mut self.code[base + at..base + at + 4];
                let old = i32::from_le_bytes([field[0], field[1], field[2], field[3]]);
                field.copy_from_slice(&old.wrapping_add(delta as i32).to_le_bytes());
            }
        }
    }
}

/// The code of the trampoline at `trampoline` for a site of an object at `bias`; `near`: 32-bit
/// distances reach between them. `links`: where its links are, near the trampoline.
pub fn emit_trampoline(
    site: &Site,
    trampoline: usize,
    bias: u64,
    near: bool,
    links: usize,
) -> [u8; TRAMPOLINE_BYTES] {
    let mut a = Assembler { at: trampoline, code: [0xcc; TRAMPOLINE_BYTES], len: 0 };
    let address = |vaddr: u64| bias.wrapping_add(vaddr) as usize;
    let (syscall, copied) = (site.syscall as usize, site.copied as usize);
    let resume = address(site.start) + site.len as usize;

    a.moved(site, bias, 0, syscall);
    let mut unknown = None;
    if site.number != NO_NUMBER {
        if (site.number as usize) < ROUTE_COUNT {
            a.routes(links);
            a.bytes(&[0x41, 0x80, 0xbb]); // cmp byte ptr [r11 + number], 0
            a.bytes(&(site.number as u32).to_le_bytes());
            a.bytes(&[0]);
        } else {
            a.bytes(&[0x39, 0xc0]); // cmp eax, eax
        }
    } else {
        a.bytes(&[0x89, 0xc1]); // mov ecx, eax
        a.bytes(&[0x81, 0xf9]); // cmp ecx, ROUTE_COUNT
        a.bytes(&(ROUTE_COUNT as u32).to_le_bytes());
        unknown = Some(a.short_branch(0x73)); // jae
        a.routes(links);
        a.bytes(&[0x41, 0x80, 0x3c, 0x0b, 0x00]); // cmp byte ptr [r11 + rcx], 0
    }
    let slow = a.short_branch(0x75); // jne
    if let Some(branch) = unknown {
        a.bind(branch);
    }
    let after;
    if site.stays_in_place() {
        after = resume + 2;
        a.jump(resume, near);
    } else {
        a.bytes(&[0x0f, 0x05]);
        after = a.here();
        a.moved(site, bias, syscall + 2, copied);
        match site.tail {
            Tail::Next => a.jump(resume, near),
            Tail::None => {}
            Tail::Jump(to) => a.jump(address(to), near),
            Tail::Branch(condition, to) => {
                let skip = a.short_branch(0x70 | condition ^ 1);
                a.jump(address(to), near);
                a.bind(skip);
                a.jump(resume, near);
            }
        }
    }
    a.bind(slow);
    if near || !site.stays_in_place() {
        a.bytes(&[0x48, 0x8d, 0x0d]); // lea rcx, [rip + after]
        a.distance(after, 0);
    } else {
        a.bytes(&[0x48, 0xb9]); // mov rcx, after
        a.bytes(&after.to_le_bytes());
    }
    a.bytes(&[0xff, 0x25]); // jmp [links.slow_path]
    a.distance(links + offset_of!(Links, slow_path), 0);
    assert!(a.len <= ORIGIN_AT);
    let origin = address(site.syscall_vaddr()).wrapping_sub(trampoline);
    a.code[ORIGIN_AT..].copy_from_slice(&origin.to_le_bytes());
    a.code
}

#[cfg(test)]
mod tests {
    use super::super::analyze::analyze;
    use super::super::elf::Image;
    use super::super::table::SITE_BYTES;
    use super::*;
    use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Register};
    use std::string::String;

    fn libc_path() -> String {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.split_whitespace().find(|w| w.contains("/libc.so")).unwrap().into()
    }

    fn decode(bytes: &[u8], at: u64) -> Vec<Instruction> {
        Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).into_iter().collect()
    }

    /// Whether two instructions are one operation on equal operands, at whatever address.
    fn same(a: &Instruction, b: &Instruction) -> bool {
        a.code() == b.code()
            && a.op_count() == b.op_count()
            && (0..a.op_count())
                .all(|n| a.op_kind(n) == b.op_kind(n) && a.op_register(n) == b.op_register(n))
            && a.memory_base() == b.memory_base()
            && a.memory_index() == b.memory_index()
            && a.memory_displacement64() == b.memory_displacement64()
            && (0..a.op_count()).all(|n| a.try_immediate(n).ok() == b.try_immediate(n).ok())
    }

    /// The original code of a site, from its start.
    fn original_of(site: &Site, bias: u64) -> Vec<Instruction> {
        let mut bytes = site.original[..site.len as usize].to_vec();
        if site.stays_in_place() {
            bytes.extend([0x0f, 0x05]);
        }
        decode(&bytes, bias + site.start)
    }

    /// A trampoline, read as a processor would.
    struct Reading<'a> {
        site: &'a Site,
        code: &'a [u8; TRAMPOLINE_BYTES],
        trampoline: u64,
        links: u64,
        ahead: Decoder<'a>,
    }

    impl Reading<'_> {
        fn next(&mut self) -> Instruction {
            self.ahead.decode()
        }

        fn at(&self, address: u64) -> Vec<Instruction> {
            decode(&self.code[(address - self.trampoline) as usize..], address)
        }

        /// Where an unconditional jump leads; jumps through the following eight bytes included.
        fn destination(&self, i: &Instruction) -> u64 {
            if i.code() == Code::Jmp_rm64 {
                assert_eq!(i.ip_rel_memory_address(), i.next_ip());
                let from = (i.next_ip() - self.trampoline) as usize;
                return u64::from_le_bytes(self.code[from..from + 8].try_into().unwrap());
            }
            assert_eq!(i.flow_control(), FlowControl::UnconditionalBranch);
            i.near_branch_target()
        }

        fn check_moved(&mut self, original: &[Instruction]) {
            for o in original {
                let n = self.next();
                assert!(same(o, &n), "{o:?} {n:?}");
            }
        }

        /// Checks that the route is looked up. Returns where a number leads that is not in the
        /// table, if the number is known only when the call is made.
        fn check_route(&mut self) -> Option<u64> {
            let links = self.links;
            let i = self.next();
            if i.code() == Code::Mov_rm32_r32 {
                let compare = self.next();
                let compared = (compare.code(), compare.immediate32());
                assert_eq!(compared, (Code::Cmp_rm32_imm32, ROUTE_COUNT as u32));
                let jae = self.next();
                assert_eq!(jae.code(), Code::Jae_rel8_64);
                let load = self.next();
                let loaded = (load.code(), load.ip_rel_memory_address());
                assert_eq!(loaded, (Code::Mov_r64_rm64, links));
                let i = self.next();
                assert_eq!((i.code(), i.memory_index()), (Code::Cmp_rm8_imm8, Register::RCX));
                Some(jae.near_branch_target())
            } else if (self.site.number as usize) < ROUTE_COUNT {
                assert_eq!((i.code(), i.ip_rel_memory_address()), (Code::Mov_r64_rm64, links));
                let load = i;
                let i = self.next();
                assert_eq!((i.code(), i.memory_base()), (Code::Cmp_rm8_imm8, load.op0_register()));
                assert_eq!(i.memory_displacement64(), self.site.number as u64);
                None
            } else {
                assert_eq!(i.code(), Code::Cmp_rm32_r32);
                None
            }
        }

        /// Checks the code after the call, and the way back.
        fn check_rest(&mut self, original: &[Instruction], resume: u64) {
            let is_jump = matches!(self.site.tail, Tail::Jump(_) | Tail::Branch(..));
            self.check_moved(&original[..original.len() - usize::from(is_jump)]);
            let last = original.last();
            match self.site.tail {
                Tail::None => assert_eq!(last.unwrap().flow_control(), FlowControl::Return),
                Tail::Next => {
                    let next = self.next();
                    assert_eq!(self.destination(&next), resume);
                }
                Tail::Jump(_) => {
                    let next = self.next();
                    assert_eq!(self.destination(&next), last.unwrap().near_branch_target());
                }
                Tail::Branch(..) => {
                    let skip = self.next();
                    let mut inverted = *last.unwrap();
                    inverted.negate_condition_code();
                    assert_eq!(skip.condition_code(), inverted.condition_code());
                    let next = self.next();
                    assert_eq!(self.destination(&next), last.unwrap().near_branch_target());
                    let back = self.at(skip.near_branch_target())[0];
                    assert_eq!(self.destination(&back), resume);
                }
            }
        }

        /// Checks that the slow path gets the address to which the call returns.
        fn check_slow(&self, slow: u64, after: u64) {
            let slow = self.at(slow);
            let given = match slow[0].code() {
                Code::Lea_r64_m => slow[0].ip_rel_memory_address(),
                Code::Mov_r64_imm64 => slow[0].immediate64(),
                other => panic!("{other:?}"),
            };
            assert_eq!(given, after);
            let jump = (slow[1].code(), slow[1].ip_rel_memory_address());
            assert_eq!(jump, (Code::Jmp_rm64, self.links + 8));
        }
    }

    /// Reads a trampoline as a processor would, and compares it with the code that it replaces.
    fn check_trampoline(site: &Site, trampoline: u64, bias: u64, near: bool) {
        let links = trampoline - PAGE_SIZE as u64;
        let code = &emit_trampoline(site, trampoline as usize, bias, near, links as usize);
        let ahead = Decoder::with_ip(64, code, trampoline, DecoderOptions::NONE);
        let mut reading = Reading { site, code, trampoline, links, ahead };
        let original = original_of(site, bias);
        let call = original.iter().position(|i| i.code() == Code::Syscall).unwrap();
        assert_eq!(original[call].ip(), bias + site.syscall_vaddr());

        reading.check_moved(&original[..call]);
        let unknown = reading.check_route();
        let to_slow = reading.next();
        assert_eq!(to_slow.code(), Code::Jne_rel8_64);
        let plain = reading.next();
        assert!(unknown.is_none_or(|t| t == plain.ip()));
        let resume = bias + site.start + u64::from(site.len);
        let after = if site.stays_in_place() {
            assert_eq!(reading.destination(&plain), resume);
            resume + 2
        } else {
            assert_eq!(plain.code(), Code::Syscall);
            reading.check_rest(&original[call + 1..], resume);
            plain.next_ip()
        };
        reading.check_slow(to_slow.near_branch_target(), after);
        let origin = (bias + site.syscall_vaddr()).wrapping_sub(trampoline);
        assert_eq!(code[ORIGIN_AT..], origin.to_le_bytes());
    }

    #[test]
    fn every_trampoline_of_libc_does_what_the_original_does() {
        let file = std::fs::read(libc_path()).unwrap();
        let sites = analyze(&Image::of_file(&file).unwrap()).sites;
        assert!(sites.len() > 300);
        let trampolines = trampoline_range().start as u64;
        for (i, site) in sites.iter().enumerate() {
            let trampoline = trampolines + (i * TRAMPOLINE_BYTES) as u64;
            check_trampoline(site, trampoline, trampolines - (1 << 30), true);
            check_trampoline(site, trampoline, 0x1234_5600_0000, false);
        }
    }

    #[test]
    fn trampolines_of_all_shapes_do_what_the_original_does() {
        let trampolines = trampoline_range().start as u64;
        // mov eax, [rip+1000]; syscall; cmp [rip+2000], r9d; jcc / jmp / ret / more
        let mut code =
            std::vec![0x8b, 0x05, 0xe8, 3, 0, 0, 0x0f, 0x05, 0x44, 0x39, 0x0d, 0xd0, 7, 0, 0];
        let copied = code.len();
        let tails: [(&[u8], Tail); 5] = [
            (&[0x74, 0x10], Tail::Branch(4, 0x4000 + 17 + 16)),
            (&[0x0f, 0x87, 0, 1, 0, 0], Tail::Branch(7, 0x4000 + 21 + 256)),
            (&[0xeb, 0xf0], Tail::Jump(0x4000 + 17 - 16)),
            (&[0xc3], Tail::None),
            (&[], Tail::Next),
        ];
        for (bytes, tail) in tails {
            code.truncate(copied);
            code.extend(bytes);
            let mut original = [0; SITE_BYTES];
            original[..code.len()].copy_from_slice(&code);
            let site = Site {
                start: 0x4000,
                original,
                len: code.len() as u8,
                syscall: 6,
                copied: if tail == Tail::None { copied as u8 + 1 } else { copied as u8 },
                number: NO_NUMBER,
                rip: [2, 11],
                tail,
                pad: 0,
            };
            check_trampoline(&site, trampolines, trampolines - (1 << 30), true);
            check_trampoline(&site, trampolines + 5 * 128, trampolines + (1 << 30), true);
        }
    }

    #[test]
    fn trampolines_are_used_again_when_their_object_has_gone() {
        let mut trampolines = Trampolines::new();
        let mut maps = Maps::default();
        let text = |n: usize| Text { start: n << 30, end: (n << 30) + PAGE_SIZE, prot: 5 };
        let mut seen = std::collections::HashSet::new();
        // Far more than there are, in 40-trampoline objects, half of them forgotten by their
        // successors.
        for n in 1..1000 {
            trampolines.forget(|t| t.start == text(n / 2).start);
            let Some((at, pages)) = trampolines.take(40, &mut maps) else {
                panic!("out of trampolines at {n}")
            };
            assert!(pages == 2 && trampoline_range().contains(&at) && at % PAGE_SIZE == 0);
            assert!(trampolines.objects.iter().all(|o| at + 2 * PAGE_SIZE <= o.trampolines
                || at >= o.trampolines + o.pages * PAGE_SIZE));
            seen.insert(at);
            trampolines.assign(text(n), (at, pages), (0, 0));
        }
        assert!(seen.len() <= TRAMPOLINE_PAGES / 2);
    }

    /// Wherever a text lies: its trampolines' place is free, in the array, and one of few distances
    /// away.
    #[test]
    fn places_are_at_few_distances() {
        let array = trampoline_range();
        let mut distances = std::collections::HashSet::new();
        for n in 0..2 * STEP_PAGES {
            let start = array.start + (4 * STEP_PAGES + n) * PAGE_SIZE;
            let text = Text { start, end: start + PAGE_SIZE, prot: 5 };
            let mut trampolines = Trampolines::new();
            let mut taken = Vec::new();
            for _ in 0..3 {
                let place = trampolines.place_for(&text, 18).unwrap();
                assert!(place >= array.start && place + 18 * PAGE_SIZE <= array.end);
                assert!(taken.iter().all(|&t: &usize| place.abs_diff(t) >= 18 * PAGE_SIZE));
                trampolines.assign(text, (place, 18), (0, 0));
                taken.push(place);
                distances.insert(start - place);
            }
            // Trampolines that were used once are not writable, and not asked for again.
            trampolines.forget(|_| true);
            assert!(!taken.contains(&trampolines.place_for(&text, 18).unwrap()));
        }
        assert!(distances.len() < 5 * PLACES, "{}", distances.len());
    }
}
