//! Where the `syscall` instructions of an object are, and how each can be replaced.
//!
//! A jump takes 5 bytes and the instruction has 2, so a neighbour has to move. Three ways, best
//! first:
//!
//! ```text
//!  before   mov eax, 1          jmp slot            the slot runs the mov, looks at the class, and comes back to the
//!           syscall      ==>    syscall             instruction itself: it stays where it was, so that a signal
//!           cmp rax, ..         cmp rax, ..         handler, a debugger and an unwinder see the address they know
//!
//!  over     syscall      ==>    jmp slot            the slot holds the instruction and the moved neighbours
//!           cmp rax, ..         (int3s)
//!
//!  detour   syscall      ==>    jmp short pad       where nothing may move: the 5-byte jump lies in the padding
//!           pad: nop..          pad: jmp slot       between two functions nearby
//! ```
//!
//! An instruction may move under three conditions. It runs the same at another address (one that
//! names memory relative to itself is corrected, and is the last resort). It does not change the
//! stack pointer, as unwinding through the slot relies on it. It does not transfer control, except
//! that the last one may be a branch or a return. No overwritten byte but the first may be reached
//! by a jump. To know that, the function is decoded, and its branches, jump tables and landing pads
//! are collected. Hand-written code also branches from one function into another. Short branches of
//! this kind are found by decoding the neighbours, long ones by a scan of the whole text for any
//! bytes that could be one.
//!
//! Code that no table of functions knows is read by `analyze/sweep.rs`.
//!
//! Only functions that contain the bytes 0f 05 are decoded: libc has some 530 instructions in 3000
//! functions.
#![forbid(unsafe_code)]

mod sweep;

use std::vec::Vec;

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
    OpAccess, OpKind, Register,
};

use super::elf::{Function, Functions, Image};
use super::table::{Analysis, NO_NUMBER, NO_RIP, SITE_BYTES, Site, Tail};

/// Bytes of the jump that replaces an instruction.
pub const JUMP_BYTES: usize = 5;
/// How many instructions before or after the system call are considered.
const MAX_NEIGHBOURS: usize = 4;
/// The longest code moved before or after the instruction.
const MAX_MOVED_BYTES: usize = 16;
/// Reach of a two-byte jump, and a margin, in bytes.
const SHORT_REACH: u64 = 132;
/// The longest code between two functions that is taken for a part of the first.
const MAX_GAP_BYTES: u64 = 512;
/// Entries read of one jump table.
const MAX_TABLE: usize = 4096;
const RT_SIGRETURN: u64 = 15;

/// Finds every system-call instruction of `image` and decides how to replace it.
pub fn analyze(image: &Image) -> Analysis {
    let candidates: Vec<u64> = image.texts().flat_map(|(v, b)| find_candidates(v, b)).collect();
    let mut analysis = Analysis::default();
    if image.has_text_relocations() {
        analysis.unpatchable = candidates;
        analysis.unpatchable.retain(|&c| looks_like_a_call(image, c));
        return analysis;
    }
    let functions = image.functions();
    let mut work = Vec::new();
    // Candidates in code that no unwinder knows, or in data.
    let mut unknown = Vec::new();
    let mut i = 0;
    while i < candidates.len() {
        let found = functions.as_ref().and_then(|functions| {
            let n = functions.at_or_below(candidates[i])?;
            Some((functions, n, extent(functions, n, functions.get(n)?, candidates[i])?))
        });
        let Some((functions, index, function)) = found else {
            unknown.push(candidates[i]);
            i += 1;
            continue;
        };
        let count = candidates[i..].iter().take_while(|&&c| c < function.end).count();
        let mine = &candidates[i..i + count];
        match Body::decode(image, functions, index, function, mine) {
            Some(body) if body.calls.is_empty() => {}
            Some(body) => work.push(body),
            None => {
                analysis.unpatchable.extend(mine.iter().filter(|&&c| looks_like_a_call(image, c)))
            }
        }
        i += count;
    }
    let swept = sweep::sweep(image, functions.as_ref(), &unknown);
    work.extend(swept.bodies);
    analysis.unpatchable.extend(swept.unplaced);
    plan_all(image, functions.as_ref(), &mut work, &mut analysis);
    analysis
}

/// The function, which may have to reach up to the next one to contain `candidate`: `clone` ends
/// its entry just before the instruction, because in the child the caller's frame does not exist.
fn extent(
    functions: &Functions,
    index: usize,
    function: Function,
    candidate: u64,
) -> Option<Function> {
    if candidate < function.end {
        return Some(function);
    }
    let next = functions.get(index + 1)?.start;
    let fits = candidate < next && next - function.end <= MAX_GAP_BYTES;
    fits.then_some(Function { end: next, ..function })
}

/// Plans all functions; when a far branch turns out to lead into overwritten bytes, plans again
/// knowing it.
fn plan_all(
    image: &Image,
    functions: Option<&Functions>,
    work: &mut [Body],
    analysis: &mut Analysis,
) {
    loop {
        let mut sites = Vec::new();
        let mut failed = Vec::new();
        let mut pads = Pads::default();
        for body in work.iter() {
            body.plan(image, functions, &mut pads, &mut sites, &mut failed);
        }
        sites.sort_by_key(|s: &Site| s.start);
        let hit = far_branches_into(image, &sites);
        let mut news = false;
        for target in hit {
            for body in
                work.iter_mut().filter(|b| (b.function.start..b.function.end).contains(&target))
            {
                if let Err(at) = body.targets.binary_search(&target) {
                    body.targets.insert(at, target);
                    news = true;
                }
            }
        }
        if !news {
            analysis.sites = sites;
            analysis.unpatchable.extend(failed);
            analysis.unpatchable.sort_unstable();
            return;
        }
    }
}

/// The addresses of the bytes 0f 05.
fn find_candidates(vaddr: u64, text: &[u8]) -> Vec<u64> {
    let mut found = Vec::new();
    let mut at = 0;
    // Whole words without the byte 0x05 are skipped eight bytes at a time.
    const ONES: u64 = u64::MAX / 255;
    while at + 9 <= text.len() {
        let word = u64::from_le_bytes(text[at..at + 8].try_into().unwrap_or_default());
        let x = word ^ (ONES * 0x0f);
        if x.wrapping_sub(ONES) & !x & (ONES * 0x80) != 0 {
            found.extend(
                (at..at + 8)
                    .filter(|&i| text[i] == 0x0f && text[i + 1] == 0x05)
                    .map(|i| vaddr + i as u64),
            );
        }
        at += 8;
    }
    found.extend(
        (at..text.len().saturating_sub(1))
            .filter(|&i| text[i] == 0x0f && text[i + 1] == 0x05)
            .map(|i| vaddr + i as u64),
    );
    found
}

/// For counting only: whether straight code that begins by loading a number into eax leads to the
/// bytes at `at`.
fn looks_like_a_call(image: &Image, at: u64) -> bool {
    (2..=24).any(|back| {
        let Some(b) = at.checked_sub(back).and_then(|from| image.bytes_at(from, back as usize + 2))
        else {
            return false;
        };
        let number = match b {
            [0xb8, a, b, 0, 0, ..] | [0x48, 0xc7, 0xc0, a, b, 0, 0, ..] => {
                u16::from_le_bytes([*a, *b])
            }
            [0x31, 0xc0, ..] => 0,
            _ => return false,
        };
        if number >= 1024 || number as u64 == RT_SIGRETURN {
            return false;
        }
        let code = Decoder::with_ip(64, b, at - back, DecoderOptions::NONE);
        let mut straight = code.into_iter().skip_while(|i| i.flow_control() == FlowControl::Next);
        straight.next().is_some_and(|i| i.code() == Code::Syscall && i.ip() == at)
    })
}

/// A decoded function with system calls in it.
struct Body {
    function: Function,
    index: usize,
    code: Vec<Instruction>,
    /// Indices of the system calls in `code`.
    calls: Vec<usize>,
    /// Every address in the function that something jumps to, sorted.
    targets: Vec<u64>,
    /// True if all ways into the middle of the function are in `targets`.
    all_targets_known: bool,
    /// A piece of code without a function. Nobody unwinds through it, so pushes and pops may move,
    /// too.
    is_swept: bool,
}

impl Body {
    /// Decodes a function; `None` if that fails. Candidates that are no instructions are no calls.
    fn decode(
        image: &Image,
        functions: &Functions,
        index: usize,
        function: Function,
        candidates: &[u64],
    ) -> Option<Body> {
        let text = image.bytes_at(function.start, (function.end - function.start) as usize)?;
        let mut code = Vec::with_capacity(text.len() / 4);
        let mut decoder = Decoder::with_ip(64, text, function.start, DecoderOptions::NONE);
        let mut calls = Vec::new();
        while decoder.can_decode() {
            let instruction = decoder.decode();
            // The end cuts the last instruction short, or this is data, as the end of a gap may be.
            if instruction.is_invalid()
                || (instruction.is_privileged() && instruction.code() != Code::Hlt)
            {
                return None;
            }
            if instruction.code() == Code::Syscall
                && candidates.binary_search(&instruction.ip()).is_ok()
            {
                calls.push(code.len());
            }
            code.push(instruction);
        }
        let mut info = InstructionInfoFactory::new();
        calls.retain(|&c| {
            // A call without anything that sets the number before it is data that decodes by
            // accident.
            let before = &code[c.saturating_sub(64)..c];
            !returns_from_signal(before)
                && before.iter().any(|i| is_call(i) || writes(&mut info, i, Register::RAX))
        });
        let mut body = Body {
            function,
            index,
            code,
            calls,
            targets: Vec::new(),
            all_targets_known: true,
            is_swept: false,
        };
        if !body.calls.is_empty() {
            body.collect_targets(image, functions);
        }
        Some(body)
    }

    fn collect_targets(&mut self, image: &Image, functions: &Functions) {
        let inside = self.function.start..self.function.end;
        let mut targets = direct_targets(&self.code);
        let mut indirect = 0;
        let mut tables = 0;
        for i in &self.code {
            if i.flow_control() == FlowControl::IndirectBranch && !i.is_ip_rel_memory_operand() {
                indirect += 1;
                if i.memory_base() == Register::None && i.memory_index() != Register::None {
                    let table = i.memory_displacement64();
                    tables +=
                        read_table(image, &inside, &mut targets, table, |b| u64::from_le_bytes(*b));
                }
            }
            if i.mnemonic() == Mnemonic::Lea && i.is_ip_rel_memory_operand() {
                let table = i.ip_rel_memory_address();
                tables += read_table(image, &inside, &mut targets, table, |b| {
                    table.wrapping_add(i32::from_le_bytes(*b) as u64)
                });
            }
        }
        let pads = image.landing_pads(&self.function);
        self.all_targets_known = pads.is_some() && tables >= indirect;
        targets.extend(pads.unwrap_or_default());
        // Short branches may come from the neighbours.
        let (first, last) =
            (self.code[self.calls[0]].ip(), self.code[self.calls[self.calls.len() - 1]].ip());
        let mut decode_into = |n: usize| -> Option<Function> {
            let f = functions.get(n)?;
            let text = image.bytes_at(f.start, f.end.checked_sub(f.start)? as usize)?;
            let near = text.len().min(4096); // from the side that faces us, or all of it
            let (from, text) =
                if f.start < self.function.start { (0, text) } else { (0, &text[..near]) };
            let decoder = Decoder::with_ip(64, text, f.start + from, DecoderOptions::NONE);
            targets.extend(direct_targets(&decoder.into_iter().collect::<Vec<_>>()));
            Some(f)
        };
        let mut n = self.index;
        while n > 0 && first.saturating_sub(SHORT_REACH) < self.function.start {
            n -= 1;
            match decode_into(n) {
                Some(f) if f.start + SHORT_REACH > first => {}
                _ => break,
            }
        }
        n = self.index + 1;
        while n < functions.len() && last + SHORT_REACH > self.function.end {
            match decode_into(n) {
                Some(f) if f.end < last + SHORT_REACH => n += 1,
                _ => break,
            }
        }
        targets.retain(|t| inside.contains(t));
        targets.sort_unstable();
        targets.dedup();
        self.targets = targets;
    }

    /// Plans every call of the function.
    fn plan(
        &self,
        image: &Image,
        functions: Option<&Functions>,
        pads: &mut Pads,
        sites: &mut Vec<Site>,
        failed: &mut Vec<u64>,
    ) {
        let mut free_from = self.function.start;
        for &call in &self.calls {
            let plan = [false, true].into_iter().find_map(|allow_rip| {
                self.before(call, free_from, allow_rip)
                    .or_else(|| self.over(call, free_from, allow_rip))
                    .or_else(|| {
                        let functions = functions.filter(|_| !allow_rip && !self.is_swept)?;
                        self.detour(call, free_from, image, functions, pads)
                    })
            });
            match plan.and_then(|p| self.site(image, &p)) {
                Some(site) => {
                    free_from = (site.start + site.len as u64).max(self.code[call].next_ip());
                    sites.push(site);
                }
                None => failed.push(self.code[call].ip()),
            }
        }
    }

    /// Whether an instruction runs the same at another address.
    fn may_move(&self, i: &Instruction, allow_rip: bool) -> bool {
        let keeps_a_register = matches!(i.code(), Code::Push_r64 | Code::Pop_r64);
        may_move(i, allow_rip)
            || (self.is_swept && keeps_a_register && i.op0_register() != Register::RSP)
    }

    /// Whether something jumps to an address after `start` and before `end`.
    fn entered(&self, start: u64, end: u64) -> bool {
        let i = self.targets.partition_point(|&t| t <= start);
        self.targets.get(i).is_some_and(|&t| t < end)
    }

    /// Whether the instructions from `start` to `end` may be merged into one jump, as far as ways
    /// into them go.
    fn mergeable(&self, start: u64, end: u64, boundaries: usize) -> bool {
        !self.entered(start, end) && (self.all_targets_known || boundaries == 0)
    }

    fn before(&self, call: usize, free_from: u64, allow_rip: bool) -> Option<Plan> {
        let end = self.code[call].ip();
        for first in (call.saturating_sub(MAX_NEIGHBOURS)..call).rev() {
            let i = &self.code[first];
            if i.ip() < free_from || !self.may_move(i, allow_rip) {
                return None;
            }
            if (end - i.ip()) as usize >= JUMP_BYTES {
                // The instruction itself is not overwritten, but a jump to it would bypass the
                // hook.
                let open = self.mergeable(i.ip(), end + 1, call - first - 1);
                return open.then_some(Plan {
                    first,
                    last: call - 1,
                    call,
                    tail: Tail::Next,
                    pad: 0,
                });
            }
        }
        None
    }

    fn over(&self, call: usize, free_from: u64, allow_rip: bool) -> Option<Plan> {
        for first in (call.saturating_sub(MAX_NEIGHBOURS)..=call).rev() {
            let start = self.code[first].ip();
            if start < free_from || (first < call && !self.may_move(&self.code[first], allow_rip)) {
                return None;
            }
            for last in call..self.code.len().min(call + 1 + MAX_NEIGHBOURS) {
                let i = &self.code[last];
                let end = i.next_ip();
                let tail = match () {
                    _ if last == call || self.may_move(i, allow_rip) => Tail::Next,
                    _ => match tail_of(i) {
                        Some(tail) => tail,
                        None => break,
                    },
                };
                if end - start >= JUMP_BYTES as u64 {
                    if self.mergeable(start, end, last - first) {
                        return Some(Plan { first, last, call, tail, pad: 0 });
                    }
                    break;
                }
                if tail != Tail::Next {
                    break;
                }
            }
        }
        None
    }

    fn detour(
        &self,
        call: usize,
        free_from: u64,
        image: &Image,
        functions: &Functions,
        pads: &mut Pads,
    ) -> Option<Plan> {
        let i = &self.code[call];
        if i.ip() < free_from {
            return None;
        }
        let pad = pads.take(image, functions, self.index, i.next_ip())?;
        Some(Plan { first: call, last: call, call, tail: Tail::Next, pad })
    }

    /// Writes a plan down. `None` if it is too long to be one.
    fn site(&self, image: &Image, plan: &Plan) -> Option<Site> {
        let (start, end) = (self.code[plan.first].ip(), self.code[plan.last].next_ip());
        let call = self.code[plan.call].ip();
        let len = (end - start) as usize;
        let copied = match plan.tail {
            Tail::Next | Tail::None => len,
            Tail::Jump(_) | Tail::Branch(..) => (self.code[plan.last].ip() - start) as usize,
        };
        let before = (call - start) as usize;
        if before > MAX_MOVED_BYTES
            || len.saturating_sub(before + 2) > MAX_MOVED_BYTES
            || len > SITE_BYTES
        {
            return None;
        }
        let mut original = [0; SITE_BYTES];
        original[..len].copy_from_slice(image.bytes_at(start, len)?);
        let mut rip = [NO_RIP; 2];
        let mut fixups = 0;
        for (n, i) in self.code[plan.first..=plan.last].iter().enumerate() {
            if i.is_ip_rel_memory_operand() && plan.first + n != plan.call {
                let at = (i.ip() - start) as usize;
                if at >= copied {
                    continue;
                }
                let bytes = image.bytes_at(i.ip(), i.len())?;
                let mut d = Decoder::with_ip(64, bytes, i.ip(), DecoderOptions::NONE);
                let again = d.decode();
                let offsets = d.get_constant_offsets(&again);
                if offsets.displacement_size() != 4 {
                    return None;
                }
                *rip.get_mut(fixups)? = (at + offsets.displacement_offset()) as u8;
                fixups += 1;
            }
        }
        let number = if plan.first < plan.call {
            self.number(&self.code[plan.first..plan.call])
        } else {
            NO_NUMBER
        };
        Some(Site {
            start,
            original,
            len: len as u8,
            syscall: before as u8,
            copied: copied as u8,
            number,
            rip,
            tail: plan.tail,
            pad: plan.pad,
        })
    }

    /// The system-call number that these instructions load, if that is certain.
    fn number(&self, moved: &[Instruction]) -> u16 {
        let mut info = InstructionInfoFactory::new();
        let last = moved.iter().rev().find(|i| writes(&mut info, i, Register::RAX));
        let Some(i) = last else { return NO_NUMBER };
        match i.code() {
            Code::Mov_r32_imm32 | Code::Mov_rm32_imm32 => {
                u16::try_from(i.immediate32()).unwrap_or(NO_NUMBER)
            }
            Code::Mov_rm64_imm32 => u16::try_from(i.immediate64()).unwrap_or(NO_NUMBER),
            Code::Xor_r32_rm32 | Code::Xor_rm32_r32
                if i.op0_kind() == OpKind::Register
                    && i.op1_kind() == OpKind::Register
                    && i.op0_register() == i.op1_register() =>
            {
                0
            }
            _ => NO_NUMBER,
        }
    }
}

/// Instructions `first..=last` give way to a jump.
struct Plan {
    first: usize,
    last: usize,
    call: usize,
    tail: Tail,
    /// Where the long jump lies, if not at the start.
    pad: u64,
}

/// The padding between functions, each piece used once.
#[derive(Default)]
struct Pads {
    /// The end of the used part of a gap, by the function before it.
    used: Vec<(usize, u64)>,
}

impl Pads {
    /// Finds room for a long jump that a short jump ending at `from` reaches.
    fn take(
        &mut self,
        image: &Image,
        functions: &Functions,
        near: usize,
        from: u64,
    ) -> Option<u64> {
        let lowest = near.saturating_sub(16);
        let mut order: Vec<usize> =
            (lowest..(near + 16).min(functions.len().saturating_sub(1))).collect();
        order.sort_by_key(|&n| n.abs_diff(near));
        for n in order {
            let Some(f) = functions.get(n) else { continue };
            let Some(next) = functions.get(n + 1) else { continue };
            let used = self.used.iter().position(|&(i, _)| i == n);
            let start = used.map_or(f.end, |i| self.used[i].1);
            let in_reach = |to: u64| (-128..=127).contains(&(to.wrapping_sub(from) as i64));
            if start + JUMP_BYTES as u64 > next.start
                || !in_reach(start)
                || !is_padding(image, f.end, next.start)
            {
                continue;
            }
            let end = start + JUMP_BYTES as u64;
            match used {
                Some(i) => self.used[i].1 = end,
                None => self.used.push((n, end)),
            }
            return Some(start);
        }
        None
    }
}

/// Whether there is nothing but no-ops and traps from `start` to `end`.
fn is_padding(image: &Image, start: u64, end: u64) -> bool {
    let Some(bytes) = image.bytes_at(start, (end - start) as usize) else { return false };
    bytes.len() < 64
        && Decoder::with_ip(64, bytes, start, DecoderOptions::NONE)
            .into_iter()
            .all(|i| matches!(i.mnemonic(), Mnemonic::Nop | Mnemonic::Int3))
}

fn is_call(i: &Instruction) -> bool {
    matches!(i.flow_control(), FlowControl::Call | FlowControl::IndirectCall)
}

/// Whether the last of these loads the number of `rt_sigreturn`: unwinders and debuggers know those
/// bytes.
fn returns_from_signal(before: &[Instruction]) -> bool {
    before.last().is_some_and(|i| match i.code() {
        Code::Mov_r32_imm32 | Code::Mov_rm64_imm32 => i.immediate(1) == RT_SIGRETURN,
        _ => false,
    })
}

fn writes(info: &mut InstructionInfoFactory, i: &Instruction, register: Register) -> bool {
    info.info(i).used_registers().iter().any(|r| {
        r.register().full_register() == register
            && matches!(
                r.access(),
                OpAccess::Write
                    | OpAccess::CondWrite
                    | OpAccess::ReadWrite
                    | OpAccess::ReadCondWrite
            )
    })
}

/// Whether an instruction runs the same at another address, and leaves the stack pointer alone.
fn may_move(i: &Instruction, allow_rip: bool) -> bool {
    if i.flow_control() != FlowControl::Next || i.is_stack_instruction() || i.is_privileged() {
        return false;
    }
    if matches!(i.code(), Code::Endbr64 | Code::Endbr32) || i.has_lock_prefix() {
        return false;
    }
    if i.is_ip_rel_memory_operand() && !(allow_rip && i.memory_base() == Register::RIP) {
        return false;
    }
    !writes(&mut InstructionInfoFactory::new(), i, Register::RSP)
}

/// The kind of the last moved instruction, if it transfers control and may move nevertheless.
fn tail_of(i: &Instruction) -> Option<Tail> {
    match i.flow_control() {
        FlowControl::Return => Some(Tail::None),
        FlowControl::UnconditionalBranch if i.is_jmp_short_or_near() => {
            Some(Tail::Jump(i.near_branch_target()))
        }
        FlowControl::ConditionalBranch if i.is_jcc_short_or_near() => {
            Some(Tail::Branch(i.condition_code() as u8 - 1, i.near_branch_target()))
        }
        _ => None,
    }
}

fn direct_targets(code: &[Instruction]) -> Vec<u64> {
    let is_branch = |i: &&Instruction| {
        matches!(i.op0_kind(), OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64)
    };
    code.iter().filter(is_branch).map(|i| i.near_branch_target()).collect()
}

/// Adds the targets of a jump table, as far as they lie in the function; answers 1 if there were
/// any.
fn read_table<const N: usize>(
    image: &Image,
    inside: &std::ops::Range<u64>,
    targets: &mut Vec<u64>,
    table: u64,
    target: impl Fn(&[u8; N]) -> u64,
) -> usize {
    if inside.contains(&table) {
        return 0;
    }
    let Some(bytes) = image.bytes_from(table) else { return 0 };
    let before = targets.len();
    let entries = bytes.as_chunks::<N>().0.iter().take(MAX_TABLE);
    targets.extend(entries.map(target).take_while(|t| inside.contains(t)));
    (targets.len() > before) as usize
}

/// Targets, inside overwritten bytes, of anything in the text that could be a branch with a 32-bit
/// distance.
fn far_branches_into(image: &Image, sites: &[Site]) -> Vec<u64> {
    // Inner bytes of each site; the instruction that stays in place counts.
    let inner = |s: &Site| (s.start + 1, s.start + (s.len as u64).max(s.syscall as u64 + 2));
    let (Some(first), Some(last)) = (sites.first(), sites.last()) else { return Vec::new() };
    let (low, high) = (inner(first).0, inner(last).1);
    let mut hits = Vec::new();
    for (vaddr, text) in image.texts() {
        for (at, w) in text.windows(5).enumerate() {
            // e8 call, e9 jmp, (0f) 80-8f jcc: the distance is the last four bytes in each case.
            if !(w[0] & 0xfe == 0xe8 || w[0] & 0xf0 == 0x80) {
                continue;
            }
            let distance = i32::from_le_bytes([w[1], w[2], w[3], w[4]]);
            let target = (vaddr + at as u64 + 5).wrapping_add(distance as u64);
            if target < low || target >= high {
                continue;
            }
            let i = sites.partition_point(|s| s.start < target);
            let Some(site) = i.checked_sub(1).map(|i| &sites[i]) else { continue };
            let (from, to) = inner(site);
            let is_branch = w[0] & 0xfe == 0xe8 || (at > 0 && text[at - 1] == 0x0f);
            if is_branch && (from..to).contains(&target) {
                hits.push(target);
            }
        }
    }
    hits
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::string::String;

    fn loaded(name: &str) -> String {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.split_whitespace().find(|w| w.contains(name)).unwrap().into()
    }

    fn objects() -> [String; 2] {
        [loaded("/libc.so"), loaded("/ld-linux")]
    }

    /// Addresses of the instruction in a disassembly by binutils, but for returns from signals.
    fn by_objdump(path: &str) -> Option<Vec<u64>> {
        let out = std::process::Command::new("objdump")
            .args(["-d", "--no-show-raw-insn", path])
            .output()
            .ok()?;
        let text = String::from_utf8(out.stdout).unwrap();
        let mut found = Vec::new();
        let mut last = "";
        for line in text.lines() {
            let Some((address, instruction)) = line.split_once(':') else { continue };
            if instruction.trim() == "syscall" && !last.contains("$0xf,%") {
                found.push(u64::from_str_radix(address.trim(), 16).unwrap());
            }
            last = instruction;
        }
        Some(found)
    }

    #[test]
    fn every_instruction_that_a_disassembler_sees_is_found_and_has_a_plan() {
        for path in objects() {
            let file = std::fs::read(&path).unwrap();
            let analysis = analyze(&Image::of_file(&file).unwrap());
            assert_eq!(analysis.unpatchable, []);
            let Some(expected) = by_objdump(&path) else { return };
            let found: Vec<u64> = analysis.sites.iter().map(|s| s.syscall_vaddr()).collect();
            assert_eq!(found, expected, "{path}");
        }
    }

    /// All code of the object is decoded, and no branch in it leads between the ends of a site.
    #[test]
    fn nothing_jumps_into_a_site() {
        for path in objects() {
            let file = std::fs::read(&path).unwrap();
            let image = Image::of_file(&file).unwrap();
            let sites = analyze(&image).sites;
            let inner: HashSet<u64> = sites
                .iter()
                .flat_map(|s| {
                    s.start + 1
                        ..s.start
                            + (s.len as u64).max(s.syscall as u64 + 1)
                            + s.stays_in_place() as u64
                })
                .collect();
            let functions = image.functions().unwrap();
            let mut branches = 0;
            for i in 0..functions.len() {
                let f = functions.get(i).unwrap();
                let end = if i + 1 < functions.len() {
                    functions.get(i + 1).unwrap().start
                } else {
                    f.end
                };
                let Some(text) = image.bytes_at(f.start, (end - f.start) as usize) else {
                    continue;
                };
                let code: Vec<_> =
                    Decoder::with_ip(64, text, f.start, DecoderOptions::NONE).into_iter().collect();
                for target in direct_targets(&code) {
                    assert!(!inner.contains(&target), "{path}: {target:x}");
                    branches += 1;
                }
            }
            assert!(branches > 1000);
            for (a, b) in sites.iter().zip(&sites[1..]) {
                assert!(a.start + (a.len as u64).max(a.syscall as u64 + 2) <= b.start);
            }
        }
    }

    #[test]
    fn candidates_are_found_at_every_alignment_and_edge() {
        for at in 0..40 {
            let mut text = [0x90; 42];
            text[at..at + 2].copy_from_slice(&[0x0f, 0x05]);
            assert_eq!(find_candidates(1000, &text), [1000 + at as u64]);
        }
        assert_eq!(find_candidates(0, &[0x0f, 0x0f, 0x05, 0x0f]), [1]);
        assert_eq!(find_candidates(0, &[0x0f; 100]), []);
        assert_eq!(find_candidates(0, &[]), []);
    }
}
