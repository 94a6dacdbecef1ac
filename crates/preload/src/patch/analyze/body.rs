//! A function with system calls in it: its instructions, and all ways into the middle of them.
//!
//! ```text
//!   branches of its own      decoded
//!   jump tables              read, where an instruction names their address
//!   landing pads             from the tables for unwinding
//!   short branches           from functions nearby, decoded as far as they reach
//! ```
//! Long branches from elsewhere are no business of one function: `far_branches_into` looks for them
//! in the whole text. A piece of code without a function is a body, too (`sweep.rs`).

use std::ops::Range;
use std::vec::Vec;

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
    Register,
};

use super::instruction::{direct_targets, is_call, returns_from_signal, writes};
use crate::patch::elf::{Function, Functions, Image};

/// Reach of a two-byte jump, and a margin, in bytes.
pub(super) const SHORT_REACH: u64 = 132;
/// Entries read of one jump table.
pub(super) const MAX_TABLE: usize = 4096;

/// A decoded function with system calls in it.
pub(super) struct Body {
    pub(super) function: Function,
    pub(super) index: usize,
    pub(super) code: Vec<Instruction>,
    /// Indices of the system calls in `code`.
    pub(super) calls: Vec<usize>,
    /// Every address in the function that something jumps to, sorted.
    pub(super) targets: Vec<u64>,
    /// True if all ways into the middle of the function are in `targets`.
    pub(super) all_targets_known: bool,
    /// A piece of code without a function. Nobody unwinds through it, so pushes and pops may move,
    /// too.
    pub(super) is_swept: bool,
}

impl Body {
    /// Decodes a function; `None` if that fails. Candidates that are no instructions are no calls.
    pub(super) fn decode(
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
}

/// Adds the targets of a jump table, as far as they lie in the function; answers 1 if there were
/// any.
fn read_table<const N: usize>(
    image: &Image,
    inside: &Range<u64>,
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
