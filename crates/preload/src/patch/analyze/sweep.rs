//! Calls in code of which no table says where functions begin: Go's, musl's, hand-written.
//!
//! x86 code that is decoded from a wrong byte falls into step with the right one after a few
//! instructions. So the bytes before a call are decoded from each of their addresses at once, and
//! each decoding *votes* for the instructions that it comes to; where nearly all agree, that is how
//! the processor reads them.
//!
//! ```text
//!        CONVERGE_BYTES           AROUND_BYTES            AROUND_BYTES
//!   |  each address votes  |   what branches from here   syscall    ...and here    |
//!                          ^ the window: a body, for `plan` as if it were a function
//! ```
//!
//! Data falls into step as well, so votes do not tell it from code. The sign of code is a number
//! that is loaded into eax just before; where the number comes in a register, only objects without
//! any table of functions are believed, and only code that looks like a compiler's.
//!
//! There are three ways into the middle of code that a jump replaces. Short branches are in the
//! window. Long branches are looked for in the whole text by `far_branches_into`. The third way is
//! by addresses in data, in instructions and in jump tables, which are looked for here
//! (`References`).

use std::vec::Vec;

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind};
use uzswap::sys::PAGE_SIZE;

use super::body::{Body, MAX_TABLE, SHORT_REACH};
use super::candidates::looks_like_a_call;
use super::instruction::{direct_targets, returns_from_signal};
use crate::patch::elf::{Function, Functions, Image, Segment};
use crate::patch::table::SITE_BYTES;

/// How far before the window the first decoding begins, and the last one, in bytes: nearly all are
/// in step where the window begins.
const CONVERGE_BYTES: u64 = 160;
const LAST_BEGINS_BYTES: usize = 40;
/// The windows that are tried for a call, and how much earlier each begins than the one before, in
/// bytes.
const EARLIER: u64 = 6;
const EARLIER_BYTES: u64 = 72;
/// Bytes around a call from which a short branch to it could come.
const AROUND_BYTES: u64 = SHORT_REACH + 12;
/// How near to a call an address must be to be remembered, in bytes: no replacement is longer.
const NEAR_BYTES: u64 = 2 * SITE_BYTES as u64;
/// Instructions before a call that are looked at to tell code from data.
const LOOKED_AT: usize = 10;

/// The outcome for calls without a function.
#[derive(Default)]
pub(super) struct Swept {
    pub bodies: Vec<Body>,
    /// Calls, or bytes that look like one, that no body has.
    pub unplaced: Vec<u64>,
}

/// Makes bodies of the code around `candidates`, sorted.
pub(super) fn sweep(image: &Image, functions: Option<&Functions>, candidates: &[u64]) -> Swept {
    let mut swept = Swept::default();
    if candidates.is_empty() {
        return swept;
    }
    // Go keeps its text free of data, and so do compilers that make all of it, or nearly all,
    // without tables.
    let is_all_code = image.is_go() || functions.is_none_or(|f| knows_little(f, image));
    let references = References::collect(image, candidates);
    for (vaddr, text) in image.texts() {
        let end = vaddr + text.len() as u64;
        let first = candidates.partition_point(|&c| c < vaddr);
        let mut left = &candidates[first..candidates.partition_point(|&c| c < end)];
        while let Some(&c) = left.first() {
            let mut count = 1;
            while left.get(count).is_some_and(|&next| next - left[count - 1] < 2 * AROUND_BYTES) {
                count += 1;
            }
            let (group, rest) = left.split_at(count);
            left = rest;
            // Where decodings do not agree, those of an earlier window may.
            let windows = (0..EARLIER).map(|n| {
                let first = c.saturating_sub(n * EARLIER_BYTES).max(vaddr);
                Window::around(vaddr, text, first, group[count - 1]).decode()
            });
            let mut windows =
                windows.filter(|code| code.last().is_some_and(|i| i.ip() >= group[0]));
            let code = windows.next().unwrap_or_default();
            let mut calls: Vec<usize> = Vec::new();
            for &c in group {
                let named = looks_like_a_call(image, c);
                match code.binary_search_by_key(&c, Instruction::ip) {
                    Ok(at) if returns_from_signal(&code[..at]) => {}
                    Ok(at) if named || (is_all_code && is_compiled(image, &code[..at])) => {
                        calls.push(at)
                    }
                    _ => swept.unplaced.extend(named.then_some(c)),
                }
            }
            if let (false, Some(last)) = (calls.is_empty(), code.last()) {
                let function = Function { start: code[0].ip(), end: last.next_ip(), lsda: None };
                let targets = references.ways_into(functions, &function, &code);
                let (index, all_targets_known, is_swept) = (0, true, true);
                let body =
                    Body { function, index, code, calls, targets, all_targets_known, is_swept };
                swept.bodies.push(body);
            }
        }
    }
    swept
}

/// Whether a table of functions has less than half of the text: musl's has only functions written
/// in assembly.
fn knows_little(functions: &Functions, image: &Image) -> bool {
    let text: u64 = image.texts().map(|(_, bytes)| bytes.len() as u64).sum();
    let each = (0..functions.len()).filter_map(|n| functions.get(n)).map(|f| f.end - f.start);
    each.sum::<u64>() < text / 2
}

/// Whether the last instructions look like those that compilers make before a call whose number is
/// in a register.
fn is_compiled(image: &Image, before: &[Instruction]) -> bool {
    let before = since_padding(before);
    let last = &before[before.len().saturating_sub(LOOKED_AT)..];
    let is_usual = |i: &Instruction| {
        use Mnemonic::*;
        let is_plain = matches!(
            i.mnemonic(),
            Mov | Movsxd
                | Movzx
                | Movsx
                | Lea
                | Xor
                | And
                | Or
                | Add
                | Sub
                | Inc
                | Dec
                | Imul
                | Cmp
                | Test
                | Push
                | Pop
                | Nop
                | Endbr64
                | Int3
                | Ret
                | Hlt
                | Neg
                | Not
                | Shl
                | Shr
                | Sar
                | Cdqe
                | Call
                | Xchg
                | Cmpxchg
                | Xadd
                | Bt
                | Bts
                | Syscall
                | Ud2
                | Movups
                | Movaps
                | Movdqu
                | Movdqa
                | Movq
                | Movd
                | Xorps
                | Pxor
                | Punpckldq
                | Punpcklqdq
                | Punpckhqdq
                | Movhps
                | Sete
                | Setne
                | Cmove
                | Cmovne
                | Cmova
                | Cmovae
                | Cmovb
                | Cmovbe
                | Cmovg
                | Cmovge
                | Cmovl
                | Cmovle
                | Cmovs
                | Cmovns
        ) || i.is_jmp_short_or_near()
            || i.is_jcc_short_or_near()
            || i.flow_control() == FlowControl::IndirectBranch;
        let target = i.near_branch_target();
        let leads_out = i.op0_kind() == OpKind::NearBranch64 && image.bytes_at(target, 1).is_none();
        // Zeros decode as `add [rax], al`.
        is_plain && !leads_out && i.code() != Code::Add_rm8_r8
    };
    last.len() >= 3 && last.iter().all(is_usual)
}

/// The instructions since the function's beginning, where zeros lie between it and the end of the
/// function before: Free Pascal pads so. The last of the zeros may take a few bytes of the
/// function's first instruction with it; decoding is in step again soon after.
fn since_padding(before: &[Instruction]) -> &[Instruction] {
    let is_padding = |i: &Instruction| i.code() == Code::Add_rm8_r8;
    let Some(last) = before.iter().rposition(is_padding) else { return before };
    let ends = |i: &Instruction| {
        matches!(i.flow_control(), FlowControl::Return | FlowControl::UnconditionalBranch)
    };
    match before[..last].iter().rfind(|i| !is_padding(i)) {
        Some(i) if ends(i) => &before[last + 1..],
        _ => before,
    }
}

/// A piece of text, and how many decodings come to each of its bytes as the beginning of an
/// instruction.
struct Window<'a> {
    vaddr: u64,
    bytes: &'a [u8],
    /// Where the body may begin.
    from: usize,
    /// True if the first byte is the first of the text, so that it begins an instruction.
    is_first: bool,
}

impl<'a> Window<'a> {
    /// The window around the calls from `first` to `last`, in the text at `vaddr`.
    fn around(vaddr: u64, text: &'a [u8], first: u64, last: u64) -> Window<'a> {
        let from = (first - vaddr).saturating_sub(AROUND_BYTES) as usize;
        let low = from.saturating_sub(CONVERGE_BYTES as usize);
        let high = ((last + 2 + AROUND_BYTES - vaddr) as usize).min(text.len());
        let is_first = low == 0;
        Window {
            vaddr: vaddr + low as u64,
            bytes: &text[low..high],
            from: if is_first { 0 } else { from - low },
            is_first,
        }
    }

    /// The instruction at a byte; `None` where the bytes are none that a program has.
    fn instruction(&self, at: usize) -> Option<Instruction> {
        let ip = self.vaddr + at as u64;
        let i = Decoder::with_ip(64, &self.bytes[at..], ip, DecoderOptions::NONE).decode();
        let is_none = i.is_invalid() || (i.is_privileged() && i.code() != Code::Hlt);
        (!is_none).then_some(i)
    }

    /// The instructions on which nearly all decodings agree, up to the first byte that begins no
    /// instruction.
    fn decode(&self) -> Vec<Instruction> {
        let Some(mut at) = self.start() else { return Vec::new() };
        let mut code = Vec::new();
        while at < self.bytes.len()
            && let Some(i) = self.instruction(at)
        {
            at += i.len();
            code.push(i);
        }
        code
    }

    fn start(&self) -> Option<usize> {
        if self.is_first {
            return Some(0);
        }
        const LOOKED_FOR_BYTES: usize = 16;
        let mut votes = [0u32; CONVERGE_BYTES as usize + LOOKED_FOR_BYTES + 1];
        let voters = self.from - LAST_BEGINS_BYTES;
        votes[..voters].fill(1);
        for at in 0..self.from + LOOKED_FOR_BYTES {
            if votes[at] > 0
                && at < self.from
                && let Some(i) = self.instruction(at)
                && let Some(next) = votes.get(at + i.len()).copied()
            {
                votes[at + i.len()] = next + votes[at];
            }
        }
        // Each decoding that has not ended before has one vote there: its first instruction.
        let found = (self.from..self.from + LOOKED_FOR_BYTES).max_by_key(|&at| votes[at])?;
        let all: u32 = votes[self.from..].iter().sum();
        (votes[found] * 10 >= all * 9 && all as usize * 2 >= voters).then_some(found)
    }
}

/// Addresses near calls that data, instructions or jump tables name.
struct References(Vec<u64>);

impl References {
    fn collect(image: &Image, candidates: &[u64]) -> References {
        let (low, high) = (candidates[0], candidates[candidates.len() - 1]);
        let (low, high) = (low.saturating_sub(NEAR_BYTES), high + NEAR_BYTES);
        let is_near = |v: u64| {
            let from = v.saturating_sub(NEAR_BYTES);
            let next = candidates.get(candidates.partition_point(|&c| c < from));
            next.is_some_and(|&c| c <= v + NEAR_BYTES)
        };
        let mut found = Vec::new();
        let mut note = |v: u64| {
            if v >= low && v <= high && is_near(v) {
                found.push(v);
            }
        };
        // In memory, addresses in data are those that the loader has corrected.
        let bias = image.bias().unwrap_or(0);
        for s in image.segments.iter().filter(|s| s.readable && !s.executable) {
            let Some(bytes) = image.bytes_from(s.vaddr) else { continue };
            let skip = (s.vaddr.next_multiple_of(8) - s.vaddr) as usize;
            for word in bytes.get(skip..).unwrap_or_default().as_chunks().0 {
                let word = u64::from_le_bytes(*word);
                note(word);
                note(word.wrapping_sub(bias));
            }
        }
        // Only code at fixed addresses names addresses as numbers; where they begin at 0, many a
        // small number looks like one.
        let is_fixed = image.segments.iter().all(|s| s.vaddr >= PAGE_SIZE as u64);
        for (vaddr, text) in image.texts() {
            for (at, w) in text.windows(7).enumerate() {
                let number = |from: usize| {
                    i32::from_le_bytes([w[from], w[from + 1], w[from + 2], w[from + 3]])
                };
                if is_fixed {
                    note(number(0) as u32 as u64);
                }
                // lea r64, [rip + distance]
                if w[0] & 0xfb == 0x48 && w[1] == 0x8d && w[2] & 0xc7 == 0x05 {
                    let address = (vaddr + at as u64 + 7).wrapping_add(number(3) as u64);
                    note(address);
                    note_table(image, address, &mut note);
                }
            }
        }
        found.sort_unstable();
        found.dedup();
        References(found)
    }

    /// All known ways into a window, sorted.
    fn ways_into(
        &self,
        functions: Option<&Functions>,
        window: &Function,
        code: &[Instruction],
    ) -> Vec<u64> {
        let mut targets = direct_targets(code);
        let from = self.0.partition_point(|&v| v < window.start);
        targets.extend(self.0[from..].iter().take_while(|&&v| v < window.end));
        let mut index = functions.and_then(|f| f.at_or_below(window.end));
        while let (Some(n), Some(f)) = (index, functions)
            && let Some(function) = f.get(n).filter(|f| f.start >= window.start)
        {
            targets.push(function.start);
            index = n.checked_sub(1);
        }
        targets.retain(|t| (window.start..window.end).contains(t));
        targets.sort_unstable();
        targets.dedup();
        targets
    }
}

/// Notes the targets of a jump table that may be at `address`: distances from there, as long as
/// they lead to text.
fn note_table(image: &Image, address: u64, note: &mut impl FnMut(u64)) {
    let is_data = |s: &&Segment| s.readable && !s.executable;
    let holds = |s: &Segment| address.wrapping_sub(s.vaddr) < s.file_bytes;
    if !image.segments.iter().filter(is_data).any(holds) {
        return;
    }
    let Some(bytes) = image.bytes_from(address) else { return };
    let leads_to_text = |v: u64| {
        image.segments.iter().any(|s| s.executable && v.wrapping_sub(s.vaddr) < s.file_bytes)
    };
    for entry in bytes.as_chunks::<4>().0.iter().take(MAX_TABLE) {
        let target = address.wrapping_add(i32::from_le_bytes(*entry) as u64);
        if !leads_to_text(target) {
            return;
        }
        note(target);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patch::analyze::candidates::find_candidates;
    use crate::patch::analyze::tests::loaded;
    use crate::patch::analyze::{analyze, plan_all};
    use crate::patch::table::Analysis;
    use std::collections::HashSet;

    /// The table of functions says which calls there are; without it all of them are found, and
    /// replaced without touching bytes to which a branch of any function leads.
    #[test]
    fn without_a_table_the_same_calls_are_found() {
        for name in ["/libc.so", "/ld-linux"] {
            let file = std::fs::read(loaded(name)).unwrap();
            let image = Image::of_file(&file).unwrap();
            let expected: Vec<u64> =
                analyze(&image).sites.iter().map(|s| s.syscall_vaddr()).collect();
            let candidates: Vec<u64> =
                image.texts().flat_map(|(v, b)| find_candidates(v, b)).collect();
            let mut swept = sweep(&image, None, &candidates);
            let calls = |b: &Body| b.calls.iter().map(|&c| b.code[c].ip()).collect::<Vec<_>>();
            let mut found: Vec<u64> = swept.bodies.iter().flat_map(calls).collect();
            found.sort_unstable();
            let missing: Vec<_> = expected.iter().filter(|e| !found.contains(e)).collect();
            let invented: Vec<_> = found.iter().filter(|f| !expected.contains(f)).collect();
            assert!(invented.is_empty(), "{name}: {invented:x?}");
            assert!(
                missing.len() * 50 < expected.len(),
                "{name}: {missing:x?} of {}",
                expected.len()
            );

            let mut analysis = Analysis::default();
            plan_all(&image, None, &mut swept.bodies, &mut analysis);
            let sites = &analysis.sites;
            assert!(sites.len() * 100 >= found.len() * 85, "{} of {}", sites.len(), found.len());
            let inner: HashSet<u64> =
                sites.iter().flat_map(|s| s.start + 1..s.start + s.len as u64).collect();
            let functions = image.functions().unwrap();
            for i in 0..functions.len() {
                let f = functions.get(i).unwrap();
                assert!(!inner.contains(&f.start), "{name}: {:x}", f.start);
                let Some(text) = image.bytes_at(f.start, (f.end - f.start) as usize) else {
                    continue;
                };
                let code: Vec<_> =
                    Decoder::with_ip(64, text, f.start, DecoderOptions::NONE).into_iter().collect();
                for target in direct_targets(&code) {
                    assert!(!inner.contains(&target), "{name}: {target:x}");
                }
                // A replacement takes whole instructions.
                for s in sites.iter().filter(|s| (f.start..f.end).contains(&s.start)) {
                    for at in [s.start, s.start + s.len as u64] {
                        let is_whole = at == f.end || code.iter().any(|i| i.ip() == at);
                        assert!(is_whole, "{name}: {at:x} in {f:x?}");
                    }
                }
            }
        }
    }

    #[test]
    fn data_is_not_code() {
        // Numbers, text and zeros with the bytes of a call in them: nothing loads a number before
        // it.
        let mut x = 1u64;
        let mut noise = |mask: u64| {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (x >> 33 & mask) as u8
        };
        for mask in [0xff, 0x7f, 0x0f, 0] {
            for _ in 0..200 {
                let mut file = tests_elf(4096);
                let text = &mut file[4096..];
                text.iter_mut().for_each(|b| *b = noise(mask));
                text[2000..2002].copy_from_slice(&[0x0f, 0x05]);
                let image = Image::of_file(&file).unwrap();
                let swept = sweep(&image, None, &[0x1000 + 2000]);
                assert!(swept.unplaced.is_empty());
                assert!(swept.bodies.is_empty(), "{:x?}", &file[4096 + 1960..4096 + 2004]);
            }
        }
    }

    /// Free Pascal's functions for calls with one to seven arguments have their number as an
    /// argument, and zeros between them.
    #[test]
    fn calls_between_zeros_are_found() {
        const ENTRY: &[u8] = b"\x55\x48\x89\xe5\x48\x8d\x64\x24\xf0\x48\x89\xf8";
        const MOVES: [&[u8]; 6] = [
            b"\x48\x89\xf7",
            b"\x48\x89\xd6",
            b"\x48\x89\xca",
            b"\x4d\x89\xc2",
            b"\x4d\x89\xc8",
            b"\x4c\x8b\x4d\x10",
        ];
        const REST: &[u8] = b"\x0f\x05\x48\x3d\x01\xf0\xff\xff\x72\x0d\x48\xf7\xd8\x48\x89\xc7\
            \x48\xc7\xc0\xff\xff\xff\xff\x48\x89\xec\x5d\xc3";
        // Where a function begins by 16 bytes, the padding has any length.
        for padding in 4..12 {
            let mut text = std::vec![0x90; 512];
            let mut calls = Vec::new();
            for moves in 0..=MOVES.len() {
                text.extend_from_slice(ENTRY);
                MOVES[..moves].iter().for_each(|m| text.extend_from_slice(m));
                calls.push(0x1000 + text.len() as u64);
                text.extend_from_slice(REST);
                text.resize(text.len() + padding, 0);
            }
            text.resize(2048, 0x90);
            let mut file = tests_elf(2048);
            file[4096..].copy_from_slice(&text);
            let image = Image::of_file(&file).unwrap();
            let analysis = analyze(&image);
            let found: Vec<u64> = analysis.sites.iter().map(|s| s.syscall_vaddr()).collect();
            assert_eq!(found, calls, "{padding} zeros");
        }
    }

    /// An object with one segment of text.
    fn tests_elf(bytes: usize) -> Vec<u8> {
        let mut f = std::vec![0u8; 4096 + bytes];
        f[..6].copy_from_slice(b"\x7fELF\x02\x01");
        f[18] = 62;
        f[32] = 64;
        f[54] = 56;
        f[56] = 1;
        let mut word =
            |at: usize, v: u64| f[64 + at..64 + at + 8].copy_from_slice(&v.to_le_bytes());
        word(0, 1 | 5 << 32);
        word(8, 4096);
        word(16, 0x1000);
        word(32, bytes as u64);
        word(40, bytes as u64);
        f
    }
}
