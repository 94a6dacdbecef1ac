//! Shapes of system calls: the memory to which their arguments point.
//!
//! A page that uzswap has taken away is missing for the kernel, too: a call that meets one answers
//! EFAULT, or a short count, or eats a datagram and then answers EFAULT. So before a call goes to
//! the kernel, everything that it will read or write is made resident, and held until it returns.
//! This file is the language in which that is written down, `table.rs` has a row for every call,
//! and `walk.rs` reads the row and visits the memory:
//!
//! ```text
//!  read(fd, buf, n)   ->  table.rs      READ Piecewise (Int, Out(Len(U64(2))))
//!  fcntl(fd, cmd, p)  ->  commands.rs   the row depends on cmd (ioctl: ioctl.rs)
//!  sendmsg(fd, msg)   ->  records.rs    msg is a struct that holds further pointers
//!                              \
//!                               walk.rs  hold(address, length, In | Out | Keep), once for each range
//! ```
//!
//! Vocabulary: an argument is an [`Arg`]; a range of memory has a [`Length`]; a length that
//! depends on another argument names it by a [`Number`]. A struct with pointers in it is a record,
//! which is nothing but a call whose arguments lie in memory: its fields are `Arg`s, and its
//! numbers are byte offsets in the struct instead of argument positions.
//!
//! A range may be larger than the memory that the kernel touches in the end, never smaller.
//! `tests/shapes_kernel` holds the rows against the running kernel.

use super::records::Id;
use super::table;

/// How uzswap treats a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disposition {
    /// Numbers only, and no effect on what uzswap keeps in order: passes.
    Plain,
    /// Reads or writes memory; a fault leaves nothing changed, the call could be made again.
    Buffers,
    /// As `Buffers`, but the fault comes after the effect: the datagram is gone, the child is
    /// reaped.
    ConsumesBeforeFault,
    /// Changes or asks about the address space.
    MemoryMap,
    /// Handlers, masks and alternate stacks.
    Signal,
    /// Makes, ends or changes a process or thread, or its state in the kernel.
    Process,
    /// Could close or replace a descriptor of ours.
    Descriptor,
    /// The kernel may go on using the memory after the call, or the memory is another process's.
    Special,
    /// Moves bytes in order and may stop early: large transfers go piece by piece.
    Piecewise,
    /// No such call: ENOSYS, by the kernel where a number has no call any more or never had one. A
    /// number past the table may have one in a newer kernel, and never gets there: nobody knows its
    /// memory, nor whether it maps some or goes on using it.
    Unimplemented,
}

/// The kernel's access to a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Reads it before the call returns.
    In,
    /// Writes it, or reads and writes it, before the call returns.
    Out,
    /// Goes on using it after the call has returned.
    Keep,
}

/// A number that the caller passes: in an argument of the call (counted from 0), or in a record
/// (the byte offset). The type says at what width the kernel takes it; bits above are not looked
/// at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Number {
    U64(u8),
    U32(u8),
    /// A negative number means none.
    I32(u8),
    U16(u8),
    U8(u8),
    /// This very number, whatever the caller passes.
    Just(u8),
    /// An int to which the argument points, such as the `socklen_t *` of getsockname; a negative
    /// one means none.
    At(u8),
}

/// The length of a range, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Length {
    /// Always this many.
    Fixed(u16),
    /// As many as the number says.
    Len(Number),
    /// As many as the number says, of which the kernel takes no more than this.
    AtMost(u16, Number),
    /// A head of fixed size, and as many more as the number says.
    Head(u16, Number),
    /// Elements of fixed size, as many as the number says.
    Array(u16, Number),
    /// A bit set in 64-bit words, with as many bits as the number says.
    Bits(Number),
    /// A bit set of descriptors, with as many bits as the number says, of which the kernel looks at
    /// no more than the process's table has places.
    Descriptors(Number),
    /// One byte for each page of as many bytes as the number says (mincore).
    PerPage(Number),
    /// A struct that may grow with the kernel, with its size; the kernel takes no more than a page.
    Struct(Number),
}

/// One argument of a call, or one field of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arg {
    /// A number, or an address that the kernel does not follow. Also: nothing.
    Int,
    In(Length),
    Out(Length),
    Keep(Length),
    /// A path or name, up to its NUL, 4096 bytes at most.
    Str,
    /// A string that may be longer (a program's argument, a module's parameters).
    LongStr,
    /// Pointers to such strings, up to the null pointer: argv and envp.
    Strings,
    /// An array of `iovec` and what they point to.
    Iov(Kind, Number),
    /// [`Arg::Iov`] in the process that the first argument names, which may be this one.
    RemoteIov(Kind, Number),
    /// A struct that points on.
    Record(Id),
    /// A struct that points on, with its size, which may be smaller or larger than the one known
    /// here.
    Sized(Id, Number),
    /// An array of such structs.
    Records(Id, Number),
    /// An array of pointers to such structs.
    RecordPointers(Id, Number),
}

/// The arguments of a call, in order.
pub type Args = [Arg; 6];

/// No argument points anywhere.
pub const NO_POINTERS: Args = [Arg::Int; 6];

/// `args` filled up with `Int`.
pub const fn args(given: &[Arg]) -> Args {
    let mut all = NO_POINTERS;
    let mut i = 0;
    while i < given.len() {
        all[i] = given[i];
        i += 1;
    }
    all
}

/// Arguments of which only number `index` points anywhere.
pub const fn only(index: usize, arg: Arg) -> Args {
    let mut all = NO_POINTERS;
    all[index] = arg;
    all
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub args: Args,
    /// Bit i: argument i points somewhere.
    pub pointers: u8,
    pub disposition: Disposition,
    /// The arguments depend on a command, a request or flags: ask `commands::shape`.
    pub by_command: bool,
    /// The table names this call (a gap in the numbering is not named).
    pub listed: bool,
}

impl Shape {
    /// The row of a number that the table does not name.
    pub const GAP: Shape = Shape {
        args: NO_POINTERS,
        pointers: 0,
        disposition: Disposition::Unimplemented,
        by_command: false,
        listed: false,
    };

    pub const fn new(disposition: Disposition, args: Args) -> Shape {
        Shape { args, pointers: pointers(&args), disposition, by_command: false, listed: true }
    }

    pub const fn by_command(disposition: Disposition) -> Shape {
        Shape { args: NO_POINTERS, pointers: 0, disposition, by_command: true, listed: true }
    }
}

/// Bit i: argument i points somewhere.
pub const fn pointers(args: &Args) -> u8 {
    let (mut bits, mut i) = (0, 0);
    while i < args.len() {
        if !matches!(args[i], Arg::Int) {
            bits |= 1 << i;
        }
        i += 1;
    }
    bits
}

/// The row of call `nr`; any number may be asked for.
#[inline]
pub fn shape(nr: usize) -> &'static Shape {
    table::SHAPES.get(nr).unwrap_or(&Shape::GAP)
}

/// How call `nr` is treated.
#[inline]
pub fn disposition(nr: usize) -> Disposition {
    shape(nr).disposition
}

/// Whether call `nr` can touch memory of the program at all.
#[inline]
pub fn has_pointers(nr: usize) -> bool {
    let shape = shape(nr);
    shape.pointers != 0 || shape.by_command
}

/// The name of call `nr` as `nr.rs` spells it; empty for a gap.
pub fn name(nr: usize) -> &'static str {
    table::NAMES.get(nr).copied().unwrap_or("")
}
