//! The plan for each call of a body: `before`, `over` or a `detour`, in this order.
//!
//! Neighbours move until there is room for a jump. At first only those move that run the same at
//! another address; where that is not enough for any of the three ways, also those that have to be
//! corrected. Bytes that a plan takes are not there for the next call's plan. In the end a plan
//! becomes a [`Site`], with the bytes that it was made for.

use std::vec::Vec;

use iced_x86::{
    Code, Decoder, DecoderOptions, Instruction, InstructionInfoFactory, OpKind, Register,
};

use super::body::Body;
use super::instruction::{may_move, tail_of, writes};
use super::pads::{JUMP_BYTES, Pads};
use crate::patch::elf::{Functions, Image};
use crate::patch::table::{NO_NUMBER, NO_RIP, SITE_BYTES, Site, Tail};

/// How many instructions before or after the system call are considered.
const MAX_NEIGHBOURS: usize = 4;
/// The longest code moved before or after the instruction.
const MAX_MOVED_BYTES: usize = 16;

/// Instructions `first..=last` give way to a jump.
struct Plan {
    first: usize,
    last: usize,
    call: usize,
    tail: Tail,
    /// Where the long jump lies, if not at the start.
    pad: u64,
}

impl Body {
    /// Plans every call of the function.
    pub(super) fn plan(
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
