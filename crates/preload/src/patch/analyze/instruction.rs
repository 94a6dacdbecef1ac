//! Facts about one instruction: may it move, does it end the moved code, where does it lead?
//!
//! Both readers ask for them, that of code with a table of functions (`body.rs`) and that of code
//! without (`sweep.rs`), and so do plans. Nothing here knows what is around the instruction.

use std::vec::Vec;

use iced_x86::{
    Code, FlowControl, Instruction, InstructionInfoFactory, OpAccess, OpKind, Register,
};

use crate::patch::table::Tail;

/// The number of `rt_sigreturn`.
pub(super) const RT_SIGRETURN: u64 = 15;

/// Whether it is a `call`.
pub(super) fn is_call(i: &Instruction) -> bool {
    matches!(i.flow_control(), FlowControl::Call | FlowControl::IndirectCall)
}

/// Whether the last of these loads the number of `rt_sigreturn`: unwinders and debuggers know those
/// bytes.
pub(super) fn returns_from_signal(before: &[Instruction]) -> bool {
    before.last().is_some_and(|i| match i.code() {
        Code::Mov_r32_imm32 | Code::Mov_rm64_imm32 => i.immediate(1) == RT_SIGRETURN,
        _ => false,
    })
}

/// Whether it writes to the register, or to a part of it.
pub(super) fn writes(
    info: &mut InstructionInfoFactory,
    i: &Instruction,
    register: Register,
) -> bool {
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
pub(super) fn may_move(i: &Instruction, allow_rip: bool) -> bool {
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
pub(super) fn tail_of(i: &Instruction) -> Option<Tail> {
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

/// The addresses that these instructions say they lead to.
pub(super) fn direct_targets(code: &[Instruction]) -> Vec<u64> {
    let is_branch = |i: &&Instruction| {
        matches!(i.op0_kind(), OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64)
    };
    code.iter().filter(is_branch).map(|i| i.near_branch_target()).collect()
}
