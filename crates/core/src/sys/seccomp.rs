//! The verdict of a seccomp filter on a system call, found out by running its program before it is
//! installed.
//!
//! A filter is a program of classic BPF over the call's number, its arguments and the instruction's
//! address. Jumps only go forward, so it ends. An argument that is not known beforehand (an
//! address, a descriptor) is *unknown*, and a branch that depends on it goes both ways: the verdict
//! is the worst of all.

/// One instruction (`struct sock_filter`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Instruction {
    pub code: u16,
    pub jump_true: u8,
    pub jump_false: u8,
    pub k: u32,
}

/// The longest filter that the kernel takes, in instructions.
pub const INSTRUCTIONS_MAX: usize = 4096;

/// The fate of a call, from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The call is made.
    Allowed,
    /// It fails.
    Refused,
    /// The call ends the program or its thread, or somebody else decides on it; or the filter is
    /// too involved to tell.
    Fatal,
}

/// A call, as far as it is known.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub number: usize,
    pub args: [Option<u64>; 6],
}

impl Call {
    /// Nothing is known of the arguments.
    pub const fn any(number: usize) -> Call {
        Call { number, args: [None; 6] }
    }

    /// The second argument is known: a command.
    pub const fn with_command(number: usize, command: usize) -> Call {
        Call { number, args: [None, Some(command as u64), None, None, None, None] }
    }
}

const AUDIT_ARCH_X86_64: u32 = 0xC000_003E;
/// Bytes of `struct seccomp_data`.
const DATA_BYTES: u32 = 64;
/// Branches that are still to be followed, at most.
const BRANCHES_MAX: usize = 64;
/// Instructions that are run for one call, on all ways together, at most: many times as many as a
/// filter of some hundred rules takes.
const STEPS_MAX: usize = 1 << 16;

/// The machine: registers and memory, each known or not.
#[derive(Clone, Copy)]
struct Machine {
    at: usize,
    a: Option<u32>,
    x: Option<u32>,
    memory: [Option<u32>; 16],
}

/// The outcome of one instruction.
enum Step {
    On,
    /// Both ways are possible: on in the machine, and here.
    Fork(usize),
    Return(Option<u32>),
    /// No instruction that a filter may have.
    Bad,
}

/// The verdict of `filter` on `call`.
pub fn verdict(filter: &[Instruction], call: &Call) -> Verdict {
    let start = Machine { at: 0, a: Some(0), x: Some(0), memory: [Some(0); 16] };
    let mut branches = [start; BRANCHES_MAX];
    let mut count = 1;
    let mut worst = Verdict::Allowed;
    let mut steps = 0;
    while count > 0 {
        count -= 1;
        let mut m = branches[count];
        loop {
            steps += 1;
            let Some(instruction) = filter.get(m.at).filter(|_| steps < STEPS_MAX) else {
                return Verdict::Fatal;
            };
            m.at += 1;
            match m.step(instruction, call) {
                Step::On => {}
                Step::Fork(to) if count < BRANCHES_MAX => {
                    branches[count] = Machine { at: to, ..m };
                    count += 1;
                }
                Step::Return(Some(action)) => {
                    worst = worst.max(verdict_of(action));
                    break;
                }
                Step::Fork(_) | Step::Return(None) | Step::Bad => return Verdict::Fatal,
            }
        }
        if worst == Verdict::Fatal {
            break;
        }
    }
    worst
}

fn verdict_of(action: u32) -> Verdict {
    const ALLOW: u32 = 0x7fff;
    const LOG: u32 = 0x7ffc;
    const ERRNO: u32 = 5;
    match action >> 16 {
        ALLOW | LOG => Verdict::Allowed,
        ERRNO => Verdict::Refused,
        _ => Verdict::Fatal,
    }
}

/// A word of `struct seccomp_data`. `None`: there is none at that offset.
fn load(call: &Call, offset: u32) -> Option<Option<u32>> {
    const ARGS_AT: u32 = 16;
    match offset {
        0 => Some(Some(call.number as u32)),
        4 => Some(Some(AUDIT_ARCH_X86_64)),
        // The instruction's address.
        8 | 12 => Some(None),
        ARGS_AT..DATA_BYTES if offset.is_multiple_of(4) => {
            let (i, high) = ((offset - ARGS_AT) / 8, (offset - ARGS_AT) % 8 == 4);
            Some(call.args[i as usize].map(|v| if high { (v >> 32) as u32 } else { v as u32 }))
        }
        _ => None,
    }
}

impl Machine {
    fn step(&mut self, i: &Instruction, call: &Call) -> Step {
        const LD: u16 = 0;
        const LDX: u16 = 1;
        const ST: u16 = 2;
        const STX: u16 = 3;
        const ALU: u16 = 4;
        const JMP: u16 = 5;
        const RET: u16 = 6;
        const MISC: u16 = 7;
        let cell = (i.k as usize).min(self.memory.len() - 1);
        match i.code & 7 {
            LD | LDX => {
                let Some(value) = self.loaded(i, call, cell) else { return Step::Bad };
                *(if i.code & 7 == LD { &mut self.a } else { &mut self.x }) = value;
            }
            ST => self.memory[cell] = self.a,
            STX => self.memory[cell] = self.x,
            ALU => return self.calculate(i),
            JMP => return self.jump(i),
            RET => return Step::Return(if i.code & 0x18 == 0x10 { self.a } else { Some(i.k) }),
            MISC if i.code & 0x80 != 0 => self.a = self.x,
            _ => self.x = self.a,
        }
        Step::On
    }

    fn loaded(&self, i: &Instruction, call: &Call, cell: usize) -> Option<Option<u32>> {
        const IMM: u16 = 0x00;
        const ABS: u16 = 0x20;
        const MEM: u16 = 0x60;
        const LEN: u16 = 0x80;
        match i.code & 0xe0 {
            IMM => Some(Some(i.k)),
            ABS => load(call, i.k),
            MEM => Some(self.memory[cell]),
            LEN => Some(Some(DATA_BYTES)),
            _ => None,
        }
    }

    fn operand(&self, i: &Instruction) -> Option<u32> {
        if i.code & 8 != 0 { self.x } else { Some(i.k) }
    }

    fn calculate(&mut self, i: &Instruction) -> Step {
        let both = self.a.zip(self.operand(i));
        let with = |f: fn(u32, u32) -> u32| both.map(|(a, b)| f(a, b));
        self.a = match i.code & 0xf0 {
            0x00 => with(u32::wrapping_add),
            0x10 => with(u32::wrapping_sub),
            0x20 => with(u32::wrapping_mul),
            // On a division by zero the kernel's filter returns 0, which kills.
            0x30 if matches!(both, Some((_, 0))) => return Step::Return(Some(0)),
            0x30 => with(|a, b| a / b),
            0x40 => with(|a, b| a | b),
            // Zero, whatever the accumulator was.
            0x50 if self.operand(i) == Some(0) => Some(0),
            0x50 => with(|a, b| a & b),
            0x60 => with(|a, b| a.wrapping_shl(b)),
            0x70 => with(|a, b| a.wrapping_shr(b)),
            0x80 => self.a.map(u32::wrapping_neg),
            0xa0 => with(|a, b| a ^ b),
            _ => return Step::Bad,
        };
        Step::On
    }

    fn jump(&mut self, i: &Instruction) -> Step {
        let both = self.a.zip(self.operand(i));
        let taken = match i.code & 0xf0 {
            0x00 => {
                self.at += i.k as usize;
                return Step::On;
            }
            0x10 => both.map(|(a, b)| a == b),
            0x20 => both.map(|(a, b)| a > b),
            0x30 => both.map(|(a, b)| a >= b),
            0x40 => both.map(|(a, b)| a & b != 0),
            _ => return Step::Bad,
        };
        let (yes, no) = (self.at + i.jump_true as usize, self.at + i.jump_false as usize);
        self.at = if taken == Some(false) { no } else { yes };
        if taken.is_none() && yes != no { Step::Fork(no) } else { Step::On }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOW: u32 = 0x7fff_0000;
    const EPERM: u32 = 0x5_0001;
    const KILL: u32 = 0x8000_0000;

    fn i(code: u16, jump_true: u8, jump_false: u8, k: u32) -> Instruction {
        Instruction { code, jump_true, jump_false, k }
    }

    #[test]
    fn a_list_of_allowed_numbers_allows_these() {
        let filter = [
            i(0x20, 0, 0, 4),
            i(0x15, 1, 0, AUDIT_ARCH_X86_64),
            i(0x06, 0, 0, KILL),
            i(0x20, 0, 0, 0),
            i(0x15, 0, 1, 3),
            i(0x06, 0, 0, ALLOW),
            i(0x15, 0, 1, 9),
            i(0x06, 0, 0, ALLOW),
            i(0x06, 0, 0, EPERM),
        ];
        assert_eq!(verdict(&filter, &Call::any(3)), Verdict::Allowed);
        assert_eq!(verdict(&filter, &Call::any(9)), Verdict::Allowed);
        assert_eq!(verdict(&filter, &Call::any(4)), Verdict::Refused);
        assert_eq!(verdict(&filter[..4], &Call::any(4)), Verdict::Fatal, "it does not end");
    }

    #[test]
    fn what_depends_on_the_unknown_is_as_bad_as_can_be() {
        // The low half of the second argument decides, or the address of the instruction.
        let by = |offset| {
            [
                i(0x20, 0, 0, offset),
                i(0x54, 0, 0, 0xff),
                i(0x15, 0, 1, 7),
                i(0x06, 0, 0, ALLOW),
                i(0x06, 0, 0, KILL),
            ]
        };
        assert_eq!(verdict(&by(24), &Call::any(1)), Verdict::Fatal);
        assert_eq!(verdict(&by(24), &Call::with_command(1, 0x107)), Verdict::Allowed);
        assert_eq!(verdict(&by(24), &Call::with_command(1, 8)), Verdict::Fatal);
        assert_eq!(verdict(&by(8), &Call::with_command(1, 7)), Verdict::Fatal);
        let mut masked = by(24);
        masked[1].k = 0;
        masked[2].k = 0;
        assert_eq!(verdict(&masked, &Call::any(1)), Verdict::Allowed, "nothing is left of it");
    }

    #[test]
    fn registers_and_memory_are_the_kernels() {
        let filter = [
            i(0x20, 0, 0, 0),
            i(0x02, 0, 0, 3),
            i(0x01, 0, 0, 2),
            i(0x0c, 0, 0, 0),
            i(0x07, 0, 0, 0),
            i(0x60, 0, 0, 3),
            i(0x1c, 0, 0, 0),
            i(0x84, 0, 0, 0),
            // a is now (number + 2) - number, whatever the number.
            i(0x15, 0, 1, 2),
            i(0x06, 0, 0, ALLOW),
            i(0x16, 0, 0, 0),
        ];
        assert_eq!(verdict(&filter, &Call::any(77)), Verdict::Allowed);
        let divides = [i(0x00, 0, 0, 5), i(0x34, 0, 0, 0), i(0x06, 0, 0, ALLOW)];
        assert_eq!(verdict(&divides, &Call::any(1)), Verdict::Fatal);
        assert_eq!(verdict(&[i(0x30, 0, 0, 0)], &Call::any(1)), Verdict::Fatal, "no byte loads");
    }
}
