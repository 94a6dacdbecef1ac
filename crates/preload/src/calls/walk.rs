//! Visits the memory that a system call will touch.
//!
//! The walker follows the call's shape through the program's memory, which may be missing as well:
//! so it has memory held before it looks there, and reads it through [`Visit::read`], which can
//! fail. Memory that cannot be read is left alone: the kernel cannot read it either and says EFAULT
//! itself.
//!
//! The walk runs before every call that is hooked: a row is found by index, only arguments that
//! point somewhere are looked at, nothing is allocated, and the stack stays within a few hundred
//! bytes.

use uzswap::sys::PAGE_SIZE;

use super::commands;
use super::records::{Field, Id, MAX_BYTES};
pub use super::shapes::Kind;
use super::shapes::{self, Arg, Args, Length, Number};

/// The most bytes that the kernel moves in one piece (MAX_RW_COUNT).
pub const MAX_HOLD_BYTES: usize = 0x7fff_f000;
/// The end of user addresses with five-level page tables; with four, they end sooner.
const END: usize = 1 << 56;
/// More iovecs than this are EINVAL (UIO_MAXIOV).
const MAX_IOVECS: usize = 1024;
/// The most records of an array that are walked: no call but recvmmsg takes more.
const MAX_RECORDS: usize = 1 << 16;
/// A process has no more descriptors than this as the kernel comes (fs.nr_open). A program may say
/// far more: getdtablesize() answers a thousand million where nothing limits them.
const MAX_DESCRIPTORS: usize = 1 << 20;
/// A path ends here (PATH_MAX), as do the names of keys, attributes, types of file systems.
const MAX_STR_BYTES: usize = 4096;
/// An argument of a program ends here (MAX_ARG_STRLEN).
const MAX_LONG_STR_BYTES: usize = 32 * PAGE_SIZE;
/// All arguments together, with their pointers, end here: exec gives three quarters of this to
/// them.
const MAX_STRINGS_BYTES: usize = 8 << 20;

/// The bytes in which [`scan`] looks for pointers, and the pages that it holds behind each, by
/// attempt. Structs with pointers seldom have more than 128 bytes. The last attempt could hold 512
/// KiB behind each of 6 arguments and 96 words, but few words of a struct are addresses.
const REACH: [(usize, usize); 3] = [(PAGE_SIZE, 2), (128, 16), (128, 128)];

/// The memory that is walked.
pub trait Visit {
    /// Makes `[addr, addr + len)` resident, to stay until the call returns (or longer: see `Kind`).
    ///
    /// `len` is at least 1 and at most [`MAX_HOLD_BYTES`], and the range does not wrap. It may be
    /// memory of any sort or none, or only partly mapped: many calls touch less than they are told,
    /// so the mapped part must be held even if the rest is missing. A page may come more than once.
    fn hold(&mut self, addr: usize, len: usize, kind: Kind);

    /// Copies from the program's memory, always from inside a range held before. False: the memory
    /// cannot be read.
    fn read(&self, addr: usize, into: &mut [u8]) -> bool;

    /// Whether the kernel takes that number for this process: each of its threads stands for it.
    fn is_own(&self, pid: usize) -> bool;
}

/// Visits every range that call `nr` with `args` touches.
#[inline]
pub fn walk(nr: usize, args: &[usize; 6], mem: &mut impl Visit) {
    let shape = shapes::shape(nr);
    if shape.by_command {
        let by_command = commands::shape(nr, args);
        walk_args(&by_command, shapes::pointers(&by_command), args, mem);
    } else {
        walk_args(&shape.args, shape.pointers, args, mem);
    }
}

/// A further attempt, for a call that has answered EFAULT. Besides the memory that the shape names,
/// some pages are held at each argument, and at each word in its first bytes that looks like a
/// pointer. `REACH` has the numbers of bytes and pages: a later attempt believes fewer words, and
/// holds more behind each.
///
/// This is for structs that point on and that nobody has listed: in requests of drivers, options of
/// protocols. Their buffers may be of any length.
pub fn scan(nr: usize, args: &[usize; 6], attempt: usize, mem: &mut impl Visit) {
    let (struct_bytes, pages) = REACH[attempt.min(REACH.len() - 1)];
    walk(nr, args, mem);
    for &arg in args {
        if !looks_like_pointer(arg) {
            continue;
        }
        hold(mem, arg, pages * PAGE_SIZE - arg % PAGE_SIZE, Kind::Out);
        let mut at = arg.next_multiple_of(8);
        while at < arg + struct_bytes {
            let Some(word) = u64_at(mem, at) else { break };
            if looks_like_pointer(word) {
                hold(mem, word, pages * PAGE_SIZE - word % PAGE_SIZE, Kind::Out);
            }
            at += 8;
        }
    }
}

/// Whether a word is no small number (the first 64 KiB are never mapped), and no negative one.
fn looks_like_pointer(word: usize) -> bool {
    (1 << 16..END - 2 * PAGE_SIZE).contains(&word)
}

/// Visits arguments from the last to the first: a length behind a pointer comes after its buffer in
/// every call, so the length is held by the time it is read.
#[inline]
fn walk_args<M: Visit>(shape: &Args, pointers: u8, args: &[usize; 6], mem: &mut M) {
    let mut left = pointers;
    while left != 0 {
        let index = 7 - left.leading_zeros() as usize;
        left &= !(1 << index);
        let (Some(&arg), Some(&addr)) = (shape.get(index), args.get(index)) else { return };
        let numbers = Numbers::OfCall(args);
        match arg {
            // The arguments of nearly every call take a short cut.
            Arg::Out(length) => hold_range(mem, addr, length, Kind::Out, numbers),
            Arg::In(length) => hold_range(mem, addr, length, Kind::In, numbers),
            _ => visit(mem, arg, addr, numbers),
        }
    }
}

/// Where an argument's [`Number`]s come from.
#[derive(Clone, Copy)]
enum Numbers<'a> {
    OfCall(&'a [usize; 6]),
    OfRecord(&'a [u8; MAX_BYTES]),
}

impl Numbers<'_> {
    #[inline]
    fn get(self, mem: &impl Visit, number: Number) -> usize {
        let raw = |at: u8| match self {
            Numbers::OfCall(args) => args[at as usize],
            Numbers::OfRecord(bytes) => word(bytes, at as usize),
        };
        match number {
            Number::U64(at) => raw(at),
            Number::U32(at) => raw(at) as u32 as usize,
            Number::I32(at) => not_negative(raw(at) as i32),
            Number::U16(at) => raw(at) as u16 as usize,
            Number::U8(at) => raw(at) as u8 as usize,
            Number::Just(number) => number as usize,
            Number::At(at) => not_negative(i32_at(mem, raw(at)).unwrap_or(0)),
        }
    }
}

fn not_negative(number: i32) -> usize {
    usize::try_from(number).unwrap_or(0)
}

/// Eight bytes as a number.
#[inline]
fn word(bytes: &[u8], at: usize) -> usize {
    match bytes.get(at..at + 8).and_then(|word| word.try_into().ok()) {
        Some(word) => usize::from_le_bytes(word),
        None => 0,
    }
}

/// Visits one argument of a call or one field of a record: `addr` is its value.
fn visit<M: Visit>(mem: &mut M, arg: Arg, addr: usize, numbers: Numbers<'_>) {
    if addr == 0 {
        return;
    }
    match arg {
        Arg::Int => {}
        Arg::In(length) => hold_range(mem, addr, length, Kind::In, numbers),
        Arg::Out(length) => hold_range(mem, addr, length, Kind::Out, numbers),
        Arg::Keep(length) => hold_range(mem, addr, length, Kind::Keep, numbers),
        Arg::Str => {
            string(mem, addr, MAX_STR_BYTES);
        }
        Arg::LongStr => {
            string(mem, addr, MAX_LONG_STR_BYTES);
        }
        Arg::Strings => strings(mem, addr),
        Arg::Iov(kind, count) => iovecs(mem, addr, numbers.get(mem, count), Some(kind)),
        Arg::RemoteIov(kind, count) => {
            let here = mem.is_own(numbers.get(mem, Number::I32(0)));
            iovecs(mem, addr, numbers.get(mem, count), here.then_some(kind));
        }
        Arg::Record(id) => record(mem, addr, id, id.layout().bytes as usize),
        Arg::Sized(id, size) => record(mem, addr, id, numbers.get(mem, size).min(PAGE_SIZE)),
        Arg::Records(id, count) => {
            let bytes = id.layout().bytes as usize;
            for i in 0..numbers.get(mem, count).min(MAX_RECORDS) {
                let Some(at) = addr.checked_add(i * bytes).filter(|&at| at < END) else { return };
                record(mem, at, id, bytes);
            }
        }
        Arg::RecordPointers(id, count) => {
            let count = numbers.get(mem, count).min(MAX_RECORDS);
            hold(mem, addr, count * 8, Kind::In);
            for i in 0..count {
                let Some(at) = u64_at(mem, addr.saturating_add(i * 8)) else { return };
                if at != 0 {
                    record(mem, at, id, id.layout().bytes as usize);
                }
            }
        }
    }
}

/// Holds the memory to which one pointer points directly.
#[inline(always)]
fn hold_range<M: Visit>(
    mem: &mut M,
    addr: usize,
    length: Length,
    kind: Kind,
    numbers: Numbers<'_>,
) {
    let len = match length {
        Length::Fixed(bytes) => bytes as usize,
        Length::Len(len) => numbers.get(mem, len),
        Length::AtMost(most, len) => numbers.get(mem, len).min(most as usize),
        Length::Head(bytes, len) => numbers.get(mem, len).saturating_add(bytes as usize),
        Length::Array(bytes, count) => numbers.get(mem, count).saturating_mul(bytes as usize),
        Length::Bits(count) => set_bytes(numbers.get(mem, count)),
        Length::Descriptors(count) => set_bytes(numbers.get(mem, count).min(MAX_DESCRIPTORS)),
        Length::PerPage(len) => numbers.get(mem, len).div_ceil(PAGE_SIZE),
        Length::Struct(size) => numbers.get(mem, size).min(PAGE_SIZE),
    };
    hold(mem, addr, len, kind);
}

/// Bytes of a bit set in 64-bit words.
#[inline]
fn set_bytes(bits: usize) -> usize {
    bits.div_ceil(64).saturating_mul(8)
}

/// Holds a range after cutting it to the addresses that can be held.
#[inline]
fn hold<M: Visit>(mem: &mut M, addr: usize, len: usize, kind: Kind) {
    if addr == 0 || addr >= END || len == 0 {
        return;
    }
    mem.hold(addr, len.min(MAX_HOLD_BYTES).min(END - addr), kind);
}

/// Reads memory that has been held, unless it runs over the end of user addresses (and was cut
/// there).
fn read(mem: &impl Visit, addr: usize, into: &mut [u8]) -> bool {
    addr != 0 && addr.checked_add(into.len()).is_some_and(|end| end <= END) && mem.read(addr, into)
}

fn i32_at(mem: &impl Visit, addr: usize) -> Option<i32> {
    let mut bytes = [0; 4];
    read(mem, addr, &mut bytes).then(|| i32::from_le_bytes(bytes))
}

fn u64_at(mem: &impl Visit, addr: usize) -> Option<usize> {
    let mut bytes = [0; 8];
    read(mem, addr, &mut bytes).then(|| usize::from_le_bytes(bytes))
}

/// Holds a record of `bytes` bytes and the memory to which it points. Of a record that is shorter
/// than its layout, the missing fields count as null, as they do for the kernel.
fn record<M: Visit>(mem: &mut M, addr: usize, id: Id, bytes: usize) {
    let layout = id.layout();
    hold(mem, addr, bytes, layout.kind);
    let mut copy = [0; MAX_BYTES];
    let known = bytes.min(layout.bytes as usize);
    if !read(mem, addr, &mut copy[..known]) {
        return;
    }
    let numbers = Numbers::OfRecord(&copy);
    for &field in layout.fields {
        match field {
            Field::Ptr(at, arg) => visit(mem, arg, word(&copy, at as usize), numbers),
            Field::PtrIf(number, values, at, arg) => {
                if values.contains(&numbers.get(mem, number)) {
                    visit(mem, arg, word(&copy, at as usize), numbers);
                }
            }
            Field::Tail(at, arg) => visit(mem, arg, addr + at as usize, numbers),
        }
    }
}

/// Holds an array of iovecs, and the memory to which they point if that is in this process.
fn iovecs<M: Visit>(mem: &mut M, addr: usize, count: usize, kind: Option<Kind>) {
    const BYTES: usize = 16;
    /// Iovecs read at a time.
    const BATCH: usize = 8;
    if count > MAX_IOVECS {
        return;
    }
    hold(mem, addr, count * BYTES, Kind::In);
    let Some(kind) = kind else { return };
    let mut batch = [0; BATCH * BYTES];
    for first in (0..count).step_by(BATCH) {
        let bytes = (count - first).min(BATCH) * BYTES;
        if !read(mem, addr.saturating_add(first * BYTES), &mut batch[..bytes]) {
            return;
        }
        for at in (0..bytes).step_by(BYTES) {
            hold(mem, word(&batch, at), word(&batch, at + 8), kind);
        }
    }
}

/// Holds a string, page by page up to the one in which it ends; says how long it is, or `limit`.
fn string<M: Visit>(mem: &mut M, addr: usize, limit: usize) -> usize {
    const CHUNK: usize = 128;
    let mut len = 0;
    let mut held_to = addr;
    while len < limit {
        let Some(at) = addr.checked_add(len).filter(|&at| at < END) else { break };
        if at == held_to {
            held_to = at - at % PAGE_SIZE + PAGE_SIZE;
            hold(mem, at, (held_to - at).min(limit - len), Kind::In);
        }
        let mut chunk = [0; CHUNK];
        let bytes = CHUNK.min(held_to - at).min(limit - len);
        if !read(mem, at, &mut chunk[..bytes]) {
            break;
        }
        if let Some(nul) = chunk[..bytes].iter().position(|&byte| byte == 0) {
            return len + nul + 1;
        }
        len += bytes;
    }
    len
}

/// Holds argv or envp: the pointers up to the null, and the strings.
fn strings<M: Visit>(mem: &mut M, addr: usize) {
    /// Bytes of pointers read at a time, within a page: the next page may not be there.
    const BATCH: usize = 128;
    let mut batch = [0; BATCH];
    let mut total = 0;
    let mut at = addr;
    let mut held_to = addr;
    while total < MAX_STRINGS_BYTES {
        // A pointer may lie across two pages, so its last byte decides.
        let Some(end) = at.checked_add(8).filter(|&end| end <= END) else { return };
        if end > held_to {
            let to = end.next_multiple_of(PAGE_SIZE);
            hold(mem, at, to - at, Kind::In);
            held_to = to;
        }
        let bytes = (held_to - at).min(BATCH) & !7;
        if !read(mem, at, &mut batch[..bytes]) {
            return;
        }
        for pointer in (0..bytes).step_by(8) {
            match word(&batch, pointer) {
                0 => return,
                string_at => total += 8 + string(mem, string_at, MAX_LONG_STR_BYTES),
            }
        }
        at += bytes;
    }
}
