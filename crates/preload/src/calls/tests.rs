//! The walker against a memory that knows what it has been asked for: a read of memory that was not
//! held first fails the test, and so does a range that wraps or is empty.

use std::collections::{BTreeMap, BTreeSet};

use uzswap::sys::{PAGE_SIZE, nr};

use super::commands::is_kept;
use super::shapes::{self, Disposition, Kind};
use super::walk::{MAX_HOLD_BYTES, Visit, scan, walk};

const IN: Kind = Kind::In;
const OUT: Kind = Kind::Out;
const KEEP: Kind = Kind::Keep;
const PID: usize = 4321;
/// Another thread of that process.
const TID: usize = 4325;
/// Addresses where the tests put arguments.
const A: usize = 0x10_0000;
const B: usize = 0x20_0ff0;
const C: usize = 0x30_0000;
const D: usize = 0x40_0123;

#[derive(Default)]
struct Memory {
    pages: BTreeMap<usize, Vec<u8>>,
    held_pages: BTreeSet<usize>,
    held: Vec<(usize, usize, Kind)>,
}

impl Memory {
    fn put(mut self, addr: usize, bytes: &[u8]) -> Self {
        for (i, &byte) in bytes.iter().enumerate() {
            let at = addr + i;
            self.pages.entry(at / PAGE_SIZE).or_insert_with(|| vec![0; PAGE_SIZE])
                [at % PAGE_SIZE] = byte;
        }
        self
    }

    fn words(self, addr: usize, words: &[usize]) -> Self {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.put(addr, &bytes)
    }

    /// Asserts the ranges that the call touches, in any order.
    #[track_caller]
    fn expect(mut self, nr: usize, args: &[usize], expected: &[(usize, usize, Kind)]) {
        let mut given = [0; 6];
        given[..args.len()].copy_from_slice(args);
        walk(nr, &given, &mut self);
        let mut expected = expected.to_vec();
        let order = |range: &(usize, usize, Kind)| (range.0, range.1);
        self.held.sort_by_key(order);
        expected.sort_by_key(order);
        assert_eq!(self.held, expected, "call {} {}", nr, shapes::name(nr));
    }
}

impl Visit for Memory {
    fn hold(&mut self, addr: usize, len: usize, kind: Kind) {
        assert!(
            addr != 0 && (1..=MAX_HOLD_BYTES).contains(&len),
            "a range that cannot be: {addr:x} {len:x}"
        );
        let last = addr.checked_add(len - 1).expect("a range that wraps");
        self.held.push((addr, len, kind));
        self.held_pages.extend(addr / PAGE_SIZE..=(last / PAGE_SIZE).min(addr / PAGE_SIZE + 64));
    }

    fn read(&self, addr: usize, into: &mut [u8]) -> bool {
        for (i, byte) in into.iter_mut().enumerate() {
            let at = addr + i;
            assert!(
                self.held_pages.contains(&(at / PAGE_SIZE)),
                "read of {at:x}, which is not held"
            );
            match self.pages.get(&(at / PAGE_SIZE)) {
                Some(page) => *byte = page[at % PAGE_SIZE],
                None => return false,
            }
        }
        true
    }

    fn is_own(&self, pid: usize) -> bool {
        matches!(pid, PID | TID)
    }
}

fn memory() -> Memory {
    Memory::default()
}

/// Bytes from `addr` to the end of its page, which a short string takes.
const fn rest(addr: usize) -> usize {
    PAGE_SIZE - addr % PAGE_SIZE
}

#[test]
fn every_call_of_this_kernel_version_has_a_row() {
    for number in (0..=336).chain(424..nr::COUNT) {
        assert!(shapes::shape(number).listed, "number {number} has no row");
        assert!(!shapes::name(number).is_empty());
    }
    for number in (337..424).chain([nr::COUNT, usize::MAX]) {
        assert!(!shapes::shape(number).listed, "number {number} has a row");
        assert_eq!(shapes::disposition(number), Disposition::Unimplemented);
        assert!(!shapes::has_pointers(number));
    }
}

#[test]
fn fields_lie_in_their_records() {
    use super::records::{Field, LAYOUTS, MAX_BYTES};
    use super::shapes::{Arg, Length, Number};
    let offset = |number: Number| match number {
        Number::U64(at) | Number::U32(at) | Number::I32(at) | Number::U16(at) | Number::U8(at) => {
            at as usize
        }
        Number::Just(_) => 0,
        Number::At(_) => panic!("a record has no pointers to numbers"),
    };
    let number_of = |arg: Arg| match arg {
        Arg::In(length) | Arg::Out(length) | Arg::Keep(length) => match length {
            Length::Fixed(_) => 0,
            Length::Len(n) | Length::AtMost(_, n) | Length::Head(_, n) | Length::Array(_, n) => {
                offset(n)
            }
            Length::Bits(n) | Length::Descriptors(n) => offset(n),
            Length::PerPage(n) | Length::Struct(n) => offset(n),
        },
        Arg::Iov(_, n) | Arg::RemoteIov(_, n) | Arg::Sized(_, n) => offset(n),
        Arg::Records(_, n) | Arg::RecordPointers(_, n) => offset(n),
        Arg::Int | Arg::Str | Arg::LongStr | Arg::Strings | Arg::Record(_) => 0,
    };
    for (i, layout) in LAYOUTS.iter().enumerate() {
        let bytes = layout.bytes as usize;
        for &field in layout.fields {
            let (at, end, arg) = match field {
                Field::Ptr(at, arg) | Field::PtrIf(_, _, at, arg) => {
                    (at as usize, at as usize + 8, arg)
                }
                Field::Tail(at, arg) => (at as usize, at as usize, arg),
            };
            assert!(end <= bytes, "record {i}: the field at {at} lies outside");
            assert!(
                number_of(arg) < bytes && number_of(arg) + 8 <= MAX_BYTES,
                "record {i}: {arg:?}"
            );
        }
    }
}

#[test]
fn plain_calls_point_nowhere() {
    for number in 0..nr::COUNT {
        let plain =
            matches!(shapes::disposition(number), Disposition::Plain | Disposition::Unimplemented);
        if plain {
            assert!(!shapes::has_pointers(number), "{}", shapes::name(number));
        }
        let consumes = matches!(
            shapes::disposition(number),
            Disposition::ConsumesBeforeFault | Disposition::Buffers
        );
        if consumes {
            assert!(shapes::has_pointers(number), "{}", shapes::name(number));
        }
    }
}

#[test]
fn buffers_have_the_length_that_the_call_says() {
    memory().expect(nr::READ, &[0, D, 10_000], &[(D, 10_000, OUT)]);
    memory().expect(nr::WRITE, &[0, D, 1], &[(D, 1, IN)]);
    memory().expect(nr::EPOLL_WAIT, &[3, A, 10, 0], &[(A, 120, OUT)]);
    memory().expect(nr::POLL, &[A, 3, 0], &[(A, 24, OUT)]);
    memory().expect(nr::MINCORE, &[0x1000, 4097, A], &[(A, 2, OUT)]);
    memory().expect(nr::MSGSND, &[0, A, 5, 0], &[(A, 13, IN)]);
    memory().expect(nr::GETGROUPS, &[4, A], &[(A, 16, OUT)]);
    memory().expect(nr::MBIND, &[0, 0, 2, A, 65], &[(A, 16, IN)]);
}

#[test]
fn nothing_is_held_for_null_or_nothing() {
    memory().expect(nr::READ, &[0, 0, 100], &[]);
    memory().expect(nr::READ, &[0, A, 0], &[]);
    memory().expect(nr::WAIT4, &[1, 0, 0, 0], &[]);
    memory().expect(nr::READV, &[0, 0, 3], &[]);
    memory().expect(nr::SENDMSG, &[0, 0, 0], &[]);
    memory().expect(nr::EXECVE, &[0, 0, 0], &[]);
    memory().expect(nr::SELECT, &[0, A, A, A, 0], &[]);
    memory().expect(nr::FUTEX, &[0, 0, 0, 0, 0, 0], &[]);
}

#[test]
fn a_call_that_is_not_known_is_left_alone() {
    memory().expect(400, &[A, A, A, A, A, A], &[]);
    memory().expect(usize::MAX, &[A, A, A, A, A, A], &[]);
    memory().expect(nr::GETPID, &[A, A, A, A, A, A], &[]);
}

#[test]
fn a_row_knows_which_arguments_point() {
    use super::shapes::{Arg::*, Length::Fixed, NO_POINTERS, Shape, args, only, pointers};
    assert_eq!(pointers(&NO_POINTERS), 0);
    assert_eq!(pointers(&args(&[Int, Str, Int, Out(Fixed(1))])), 0b1010);
    assert_eq!(pointers(&only(5, Strings)), 0b10_0000);
    assert_eq!(args(&[]), NO_POINTERS);
    let row = Shape::new(Disposition::Buffers, args(&[Str]));
    assert!(row.listed && !row.by_command && row.pointers == 1);
    for number in 0..nr::COUNT {
        let shape = shapes::shape(number);
        assert_eq!(shape.pointers, pointers(&shape.args), "{}", shapes::name(number));
        assert!(!shape.by_command || shape.pointers == 0, "{}", shapes::name(number));
    }
}

#[test]
fn numbers_are_as_wide_as_the_kernel_takes_them() {
    // An int: garbage above it is not looked at, and a negative one is none.
    const GARBAGE: usize = 0xdead_beef << 32;
    let negative = -5i32 as u32 as usize;
    let path = || memory().put(D, b"/\0");
    path().expect(nr::READLINK, &[D, A, GARBAGE | 9], &[(A, 9, OUT), (D, rest(D), IN)]);
    path().expect(nr::READLINK, &[D, A, negative], &[(D, rest(D), IN)]);
    memory().expect(nr::EPOLL_WAIT, &[3, A, negative, 0], &[]);
    memory().expect(nr::BIND, &[3, A, GARBAGE | 16], &[(A, 16, IN)]);
    memory().expect(nr::BIND, &[3, A, negative], &[]);
    // An unsigned one; a size.
    memory().expect(nr::POLL, &[A, GARBAGE | 2, 0], &[(A, 16, OUT)]);
    memory().expect(nr::GETDENTS64, &[3, A, 1 << 32 | 100], &[(A, 100, OUT)]);
    memory().expect(nr::GETCWD, &[A, 1 << 20], &[(A, 1 << 20, OUT)]);
    // In a record too: the length of a message's name is an int, that of its data is not.
    memory().words(A, &[C, GARBAGE | 16, 0, 0, D, 1 << 16, 0]).expect(
        nr::SENDMSG,
        &[3, A, 0],
        &[(A, 56, IN), (C, 16, IN), (D, 1 << 16, IN)],
    );
    memory().words(A, &[C, negative, 0, 0, 0, 0, 0]).expect(
        nr::SENDMSG,
        &[3, A, 0],
        &[(A, 56, IN)],
    );
    // Numbers of 8 and 16 bits beside each other: lengths of an SG_IO command and its sense.
    let sg = [b'S' as usize, 0xff | 0xfe << 8, 0, C, D];
    memory().words(A, &sg).words(A + 88, &[0]).expect(
        nr::IOCTL,
        &[0, 0x2285, A],
        &[(A, 88, OUT), (A + 88, 72, OUT), (C, 255, IN), (D, 254, OUT)],
    );
}

#[test]
fn fields_behind_the_end_of_a_record_count_as_null() {
    // xattr_args of 8 bytes has a value, and no size; one of no bytes has nothing.
    let named = || memory().put(C, b"p\0").put(D, b"n\0").words(A, &[B, 30]);
    let names = [(C, rest(C), IN), (D, rest(D), IN)];
    let given = |size: usize| [3, C, 0, D, A, size];
    named().expect(nr::SETXATTRAT, &given(0), &names);
    named().expect(nr::SETXATTRAT, &given(8), &[(A, 8, IN), names[0], names[1]]);
    let all = [(A, 16, IN), (B, 30, IN), names[0], names[1]];
    named().expect(nr::SETXATTRAT, &given(16), &all);
    // A pointer of which half is there is what that half says, as for the kernel.
    named().expect(nr::SETXATTRAT, &given(4), &[(A, 4, IN), names[0], names[1]]);
}

#[test]
fn what_cannot_be_read_ends_the_walk_of_its_list_alone() {
    // Nine buffers, of which the last is described on a page that is not there.
    let at = A + PAGE_SIZE - 128;
    let eight: Vec<usize> = (0..8).flat_map(|i| [C + i * PAGE_SIZE, 10]).collect();
    let mut expected: Vec<_> = (0..8).map(|i| (C + i * PAGE_SIZE, 10, OUT)).collect();
    expected.push((at, 144, IN));
    memory().words(at, &eight).expect(nr::READV, &[0, at, 9], &expected);
    // Two messages, the first on a page that is not there.
    let first = A + PAGE_SIZE - 64;
    memory().words(first + 64, &[C, 16, 0, 0, 0, 0, 0, 0]).expect(
        nr::SENDMMSG,
        &[3, first, 2, 0],
        &[(first, 64, OUT), (first + 64, 64, OUT), (C, 16, IN)],
    );
    // The time beside a mask that cannot be read.
    let sets = [(A, 8, OUT), (B, 16, OUT), (C, 16, IN)];
    memory().expect(nr::PSELECT6, &[3, A, 0, 0, B, C], &sets);
}

#[test]
fn select_sets_are_whole_words() {
    for (descriptors, bytes) in [(1, 8), (64, 8), (65, 16), (1000, 128), (1024, 128), (1025, 136)] {
        memory().expect(
            nr::SELECT,
            &[descriptors, A, 0, B, 0],
            &[(A, bytes, OUT), (B, bytes, OUT)],
        );
    }
    // A negative number, and one whose upper half is garbage.
    memory().expect(nr::SELECT, &[-1i32 as u32 as usize, A, B, 0, C], &[(C, 16, OUT)]);
    memory().expect(nr::SELECT, &[0x7777_0000_0003, A, 0, 0, 0], &[(A, 8, OUT)]);
    // More descriptors than a process can have, as getdtablesize() says where they have no limit.
    memory().expect(nr::SELECT, &[1 << 30, A, 0, 0, 0], &[(A, 128 << 10, OUT)]);
    memory().expect(nr::PSELECT6, &[i32::MAX as usize, A, 0, 0], &[(A, 128 << 10, OUT)]);
    let sets = [(A, 8, OUT), (B, 16, OUT), (C, 16, IN), (D, 8, IN)];
    memory().words(C, &[D, 8]).expect(nr::PSELECT6, &[3, A, 0, 0, B, C], &sets);
}

#[test]
fn an_address_has_the_length_behind_the_length_pointer() {
    let two = |len: usize| [(A, len, OUT), (B, 4, OUT)];
    memory().put(B, &16u32.to_le_bytes()).expect(nr::GETSOCKNAME, &[3, A, B], &two(16));
    // No address is longer than 128 bytes, whatever the caller leaves in the length.
    memory().put(B, &0x5555_5555u32.to_le_bytes()).expect(nr::ACCEPT, &[3, A, B], &two(128));
    // Nothing is there: the length pointer alone is held.
    memory().expect(nr::GETPEERNAME, &[3, A, B], &[(B, 4, OUT)]);
    memory().expect(nr::ACCEPT4, &[3, 0, 0, 0], &[]);
    memory().put(B, &28u32.to_le_bytes()).expect(
        nr::RECVFROM,
        &[3, C, 500, 0, A, B],
        &[(A, 28, OUT), (B, 4, OUT), (C, 500, OUT)],
    );
    // A length pointer at the end of one page and the beginning of the next.
    let across = C + PAGE_SIZE - 2;
    memory().put(across, &12u32.to_le_bytes()).expect(
        nr::GETSOCKOPT,
        &[3, 0, 0, A, across],
        &[(A, 12, OUT), (across, 4, OUT)],
    );
    // A length that nobody has set; a negative one.
    memory().put(B, &0x5555_5555u32.to_le_bytes()).expect(
        nr::GETSOCKOPT,
        &[3, 1, 4, A, B],
        &[(A, 65535, OUT), (B, 4, OUT)],
    );
    memory().put(B, &(-1i32).to_le_bytes()).expect(
        nr::GETSOCKOPT,
        &[3, 1, 4, A, B],
        &[(B, 4, OUT)],
    );
    memory().expect(nr::GETSOCKOPT, &[3, 1, 4, A, 0], &[]);
    memory().expect(nr::ACCEPT, &[3, A, 0], &[]);
    // SO_GET_FILTER counts instructions.
    memory().put(B, &12u32.to_le_bytes()).expect(
        nr::GETSOCKOPT,
        &[3, 1, 26, A, B],
        &[(A, 96, OUT), (B, 4, OUT)],
    );
}

#[test]
fn iovecs_and_what_they_point_to() {
    memory().words(B, &[A, 5, 0, 9, C, 0, D, 5000]).expect(
        nr::READV,
        &[0, B, 4],
        &[(A, 5, OUT), (B, 64, IN), (D, 5000, OUT)],
    );
    memory().words(A, &[D, 7]).expect(nr::PWRITEV2, &[0, A, 1], &[(A, 16, IN), (D, 7, IN)]);
    memory().words(A, &[D, 7]).expect(nr::VMSPLICE, &[0, A, 1], &[(A, 16, IN), (D, 7, KEEP)]);
    memory().words(A, &[D, 7]).expect(nr::PROCESS_MADVISE, &[0, A, 1], &[(A, 16, IN)]);
    // The kernel takes 1024, no more.
    memory().expect(nr::WRITEV, &[0, A, 1025], &[]);
    memory().expect(nr::WRITEV, &[0, A, usize::MAX], &[]);
    let many: Vec<usize> = (0..1024).flat_map(|i| [C + 64 * i, 64]).collect();
    let mut expected: Vec<_> = (0..1024).map(|i| (C + 64 * i, 64, IN)).collect();
    expected.push((A, 16384, IN));
    memory().words(A, &many).expect(nr::WRITEV, &[0, A, 1024], &expected);
}

#[test]
fn the_remote_side_is_walked_if_it_is_this_process() {
    let two = || memory().words(A, &[C, 10]).words(B, &[D, 20]);
    let here = [(A, 16, IN), (C, 10, OUT), (B, 16, IN), (D, 20, IN)];
    two().expect(nr::PROCESS_VM_READV, &[PID, A, 1, B, 1, 0], &here);
    two().expect(nr::PROCESS_VM_READV, &[TID, A, 1, B, 1, 0], &here);
    two().expect(nr::PROCESS_VM_READV, &[PID + 1, A, 1, B, 1, 0], &here[..3]);
    // A negative number is no process.
    two().expect(nr::PROCESS_VM_READV, &[-(PID as i32) as usize, A, 1, B, 1, 0], &here[..3]);
    let written = [(A, 16, IN), (C, 10, IN), (B, 16, IN), (D, 20, OUT)];
    two().expect(nr::PROCESS_VM_WRITEV, &[PID, A, 1, B, 1, 0], &written);
}

/// msghdr: an address of 16 bytes at C, one iovec at B (100 bytes at D), 24 bytes of control data
/// after it.
fn message(addr: usize) -> Memory {
    memory().words(addr, &[C, 16, B, 1, B + 32, 24, 0]).words(B, &[D, 100])
}

#[test]
fn messages() {
    let sent = [(A, 56, IN), (C, 16, IN), (B, 16, IN), (D, 100, IN), (B + 32, 24, IN)];
    message(A).expect(nr::SENDMSG, &[3, A, 0], &sent);
    let received = [(A, 56, OUT), (C, 16, OUT), (B, 16, IN), (D, 100, OUT), (B + 32, 24, OUT)];
    message(A).expect(nr::RECVMSG, &[3, A, 0], &received);
    // Across two pages; the end of the header decides.
    let across = A + PAGE_SIZE - 20;
    let at_across = [(across, 56, OUT), received[1], received[2], received[3], received[4]];
    message(across).expect(nr::RECVMSG, &[3, across, 0], &at_across);
    // The second page is not there: the header alone is held.
    let mut cut = message(across);
    cut.pages.remove(&(across / PAGE_SIZE + 1));
    cut.expect(nr::RECVMSG, &[3, across, 0], &[(across, 56, OUT)]);
}

#[test]
fn many_messages() {
    let two = || message(A).words(A + 64, &[0, 0, B, 1, 0, 0, 0, 0]);
    let expected = [
        (A, 64, OUT),
        (C, 16, OUT),
        (B, 16, IN),
        (D, 100, OUT),
        (B + 32, 24, OUT),
        (A + 64, 64, OUT),
        (B, 16, IN),
        (D, 100, OUT),
    ];
    let mut with_time = expected.to_vec();
    with_time.push((0x50_0000, 16, OUT));
    two().expect(nr::RECVMMSG, &[3, A, 2, 0, 0x50_0000], &with_time);
    two().expect(nr::RECVMMSG, &[3, A, 0xdead_0000_0002, 0, 0], &expected);
    // recvmmsg takes any number: more than a thousand messages are walked, and no more than are
    // there.
    let thousands: Vec<usize> = (0..3000).flat_map(|i| [C + i, 1, 0, 0, 0, 0, 0, 0]).collect();
    let mut all = Memory::default().words(A, &thousands);
    walk(nr::RECVMMSG, &[3, A, usize::MAX, 0, 0, 0], &mut all);
    for i in 0..3000 {
        assert!(all.held.contains(&(C + i, 1, OUT)), "message {i}");
    }
}

#[test]
fn programs_and_their_arguments() {
    let program = || {
        memory()
            .put(D, b"/bin/true\0")
            .put(C, b"one\0")
            .put(C + 100, b"\0")
            .words(A, &[C, C + 100, 0, D])
    };
    let expected =
        [(D, rest(D), IN), (A, PAGE_SIZE, IN), (C, rest(C), IN), (C + 100, rest(C + 100), IN)];
    program().expect(nr::EXECVE, &[D, A, 0], &expected);
    program().expect(nr::EXECVEAT, &[3, D, A, 0, 0], &expected);
    // The list of pointers runs over pages, and one pointer lies across two.
    let list = A + PAGE_SIZE - 12;
    memory().words(list, &[C, C, C, 0]).put(C, b"x\0").expect(
        nr::EXECVE,
        &[0, 0, list],
        &[
            (list, 12, IN),
            (list + 8, PAGE_SIZE + 4, IN),
            (C, rest(C), IN),
            (C, rest(C), IN),
            (C, rest(C), IN),
        ],
    );
    // A list without an end stops somewhere.
    let endless = memory().words(A, &vec![C; 10 * 512]).put(C, &[b'x'; 2 * PAGE_SIZE]);
    let mut endless = endless;
    walk(nr::EXECVE, &[0, A, 0, 0, 0, 0], &mut endless);
    assert!(endless.held.len() < 10_000);
}

#[test]
fn strings() {
    memory().put(D, b"/etc/passwd\0").expect(nr::OPEN, &[D, 0], &[(D, rest(D), IN)]);
    let long = vec![b'x'; 4000];
    let at = A + 4095;
    let second = at + 1;
    memory().put(at, &long).put(at + 4000, b"\0").expect(
        nr::CHDIR,
        &[at],
        &[(at, 1, IN), (second, 4095, IN)],
    );
    // A string without an end is held for 4096 bytes, as the kernel reads it.
    memory().put(A, &[b'x'; 3 * PAGE_SIZE]).expect(
        nr::RMDIR,
        &[A + 8],
        &[(A + 8, 4088, IN), (A + PAGE_SIZE, 8, IN)],
    );
    // The page after the string is missing: it is held, not read.
    memory().put(A + 4000, &[b'x'; 96]).expect(
        nr::UNLINK,
        &[A + 4000],
        &[(A + 4000, 96, IN), (A + PAGE_SIZE, 4000, IN)],
    );
}

#[test]
fn filters_are_nested() {
    let filter = || memory().words(A, &[3, C]);
    let expected = [(A, 16, IN), (C, 24, IN)];
    filter().expect(nr::SECCOMP, &[1, 0, A], &expected);
    filter().expect(nr::PRCTL, &[22, 2, A], &expected);
    filter().expect(nr::SETSOCKOPT, &[3, 1, 26, A, 16], &expected);
    memory().expect(nr::PRCTL, &[22, 1, A], &[]);
    memory().expect(nr::SETSOCKOPT, &[3, 1, 2, A, 4], &[(A, 4, IN)]);
}

#[test]
fn asynchronous_io_keeps_its_buffers() {
    let iocb =
        |operation: usize, buffer: usize, len: usize| [0, 0, operation, buffer, len, 0, 0, 0];
    memory()
        .words(A, &[B, C, 0, D])
        .words(B, &iocb(0, 0x50_0000, 4096))
        .words(C, &iocb(8, 0x60_0000, 2))
        .words(D, &iocb(2, 0x70_0000, 4096))
        .words(0x60_0000, &[0x80_0000, 10, 0x90_0000, 20])
        .expect(
            nr::IO_SUBMIT,
            &[0, 4, A],
            &[
                (A, 32, IN),
                (B, 64, OUT),
                (C, 64, OUT),
                (D, 64, OUT),
                (0x50_0000, 4096, KEEP),
                (0x60_0000, 32, IN),
                (0x80_0000, 10, KEEP),
                (0x90_0000, 20, KEEP),
            ],
        );
    let mut endless = memory().words(A, &[B; 600]).words(B, &iocb(0, C, 1));
    walk(nr::IO_SUBMIT, &[0, usize::MAX, A, 0, 0, 0], &mut endless);
    // Pointers after the array in its last page are null.
    assert_eq!(endless.held.iter().filter(|range| range.0 == C).count(), 600);
}

#[test]
fn what_the_kernel_remembers_is_kept() {
    memory().expect(nr::SET_ROBUST_LIST, &[A, 24], &[(A, 24, KEEP)]);
    memory().expect(nr::RSEQ, &[A, 32, 0, 0], &[(A, 32, KEEP)]);
    memory().expect(nr::SET_TID_ADDRESS, &[A], &[(A, 4, KEEP)]);
    memory().expect(nr::PRCTL, &[59, 1, 0, 0, A], &[(A, 1, KEEP)]);
    // clone: only what its flags mean.
    memory().expect(nr::CLONE, &[0x0011, A, B, C, D], &[]);
    memory().expect(nr::CLONE, &[0x0030_0000, A, B, C, D], &[(B, 4, OUT), (C, 4, KEEP)]);
    let clone3 = [0, B, C, 0, 0, D, 4096, 0, 0x50_0000, 2, 0];
    let mut expected = vec![(A, 64, IN), (B, 4, OUT), (C, 4, KEEP)];
    memory().words(A, &clone3).expect(nr::CLONE3, &[A, 64], &expected);
    expected[0] = (A, 88, IN);
    expected.push((0x50_0000, 8, IN));
    memory().words(A, &clone3).expect(nr::CLONE3, &[A, 88], &expected);
    // A struct that is larger than any that is known, up to a page.
    expected[0] = (A, 4096, IN);
    memory().words(A, &clone3).expect(nr::CLONE3, &[A, 1 << 30], &expected);
}

#[test]
fn structs_that_begin_with_their_size() {
    memory().words(A, &[56]).expect(nr::SCHED_SETATTR, &[0, A, 0], &[(A, 48, OUT), (A, 56, OUT)]);
    memory().words(A, &[136 << 32]).expect(
        nr::PERF_EVENT_OPEN,
        &[A, 0, 0, 0, 0],
        &[(A, 64, OUT), (A, 136, OUT)],
    );
    memory().words(A, &[usize::MAX]).expect(
        nr::STATMOUNT,
        &[A, 0, 0, 0],
        &[(A, 24, IN), (A, 4096, IN)],
    );
    memory().words(A, &[32]).expect(
        nr::LISTNS,
        &[A, B, 3, 0],
        &[(A, 24, IN), (A, 32, IN), (B, 24, OUT)],
    );
    memory().words(A, &[64]).expect(
        nr::OPEN_BY_HANDLE_AT,
        &[3, A, 0],
        &[(A, 8, OUT), (A + 8, 64, OUT)],
    );
    memory().words(A, &[B, 30]).put(C, b"p\0").put(D, b"n\0").expect(
        nr::GETXATTRAT,
        &[3, C, 0, D, A, 16],
        &[(A, 16, IN), (B, 30, OUT), (C, rest(C), IN), (D, rest(D), IN)],
    );
}

#[test]
fn futexes_by_operation() {
    const PRIVATE: usize = 128;
    memory().expect(nr::FUTEX, &[A, PRIVATE, 0, B, C, 0], &[(A, 4, OUT), (B, 16, IN)]);
    memory().expect(nr::FUTEX, &[A, 1 | PRIVATE, 1, B, C, 0], &[(A, 4, OUT)]);
    // The fourth argument of a requeue is a number, even if it looks like an address.
    memory().expect(nr::FUTEX, &[A, 4, 1, B, C, 0], &[(A, 4, OUT), (C, 4, OUT)]);
    memory().expect(nr::FUTEX, &[A, 5, 1, B, C, 0], &[(A, 4, OUT), (C, 4, OUT)]);
    memory().expect(nr::FUTEX, &[A, 9 | 256, 1, B, C, 0], &[(A, 4, OUT), (B, 16, IN)]);
    memory().expect(nr::FUTEX, &[A, 11, 1, B, C, 0], &[(A, 4, OUT), (B, 16, IN), (C, 4, OUT)]);
    memory().words(A, &[1, B, 2, 1, C, 2]).expect(
        nr::FUTEX_WAITV,
        &[A, 2, 0, D, 0],
        &[(A, 24, IN), (B, 4, OUT), (A + 24, 24, IN), (C, 4, OUT), (D, 16, IN)],
    );
    memory().words(A, &[1, B, 2, 1, C, 2]).expect(
        nr::FUTEX_REQUEUE,
        &[A, 0, 1, 1],
        &[(A, 24, IN), (B, 4, OUT), (A + 24, 24, IN), (C, 4, OUT)],
    );
}

#[test]
fn requests_of_ioctl() {
    const TCGETS: usize = 0x5401;
    memory().expect(nr::IOCTL, &[0, TCGETS, A], &[(A, 36, OUT)]);
    memory().expect(nr::IOCTL, &[0, 0x5413, A], &[(A, 8, OUT)]);
    // FIOCLEX takes nothing, FIONREAD an int.
    memory().expect(nr::IOCTL, &[0, 0x5451, A], &[]);
    memory().expect(nr::IOCTL, &[0, 0x541b, A], &[(A, 4, OUT)]);
    // _IOR(0x12, 114, size_t): by its size. An unknown one without: a page.
    memory().expect(nr::IOCTL, &[0, 0x8008_1272, A], &[(A, 8, OUT)]);
    memory().expect(nr::IOCTL, &[0, 0xae01, A], &[(A, 4096, OUT)]);
    // The request is 32 bits wide.
    memory().expect(nr::IOCTL, &[0, 0xffff_ffff_0000_5413, A], &[(A, 8, OUT)]);
    // SIOCGIFCONF.
    memory().words(A, &[400, C]).expect(nr::IOCTL, &[0, 0x8912, A], &[(A, 16, OUT), (C, 400, OUT)]);
    memory().words(A, &[400, 0]).expect(nr::IOCTL, &[0, 0x8912, A], &[(A, 16, OUT)]);
    // FS_IOC_FIEMAP with 3 extents.
    memory().words(A, &[0, 0, 0, 3]).expect(
        nr::IOCTL,
        &[0, 0xc020_660b, A],
        &[(A, 32, OUT), (A + 32, 168, OUT)],
    );
    // UFFDIO_COPY of 8192 bytes.
    memory().words(A, &[B, C, 8192]).expect(
        nr::IOCTL,
        &[0, 0xc028_aa03, A],
        &[(A, 40, OUT), (C, 8192, IN)],
    );
    // SG_IO with 6 bytes of command, 32 of sense, data once flat and once in an iovec.
    let sg = |iovecs: usize, bytes: usize| {
        [0x0000_0000_0000_0053, 6 | 32 << 8 | iovecs << 16 | bytes << 32, B, C, D]
    };
    memory().words(A, &sg(0, 512)).expect(
        nr::IOCTL,
        &[0, 0x2285, A],
        &[(A, 88, OUT), (A + 88, 72, OUT), (B, 512, OUT), (C, 6, IN), (D, 32, OUT)],
    );
    memory().words(A, &sg(1, 512)).words(B, &[0x50_0000, 512]).expect(
        nr::IOCTL,
        &[0, 0x2285, A],
        &[
            (A, 88, OUT),
            (A + 88, 72, OUT),
            (B, 512, OUT),
            (B, 16, IN),
            (0x50_0000, 512, OUT),
            (C, 6, IN),
            (D, 32, OUT),
        ],
    );
}

#[test]
fn requests_of_disks_and_files() {
    // SG_IO in its fourth version: 10 bytes of command, 64 of sense, data of 9000 bytes in.
    let sg = [b'Q' as usize, 10 << 32, C, 0, 0, 64 << 32, D, 0, 9000 << 32, 0, B];
    memory().words(A, &sg).expect(
        nr::IOCTL,
        &[0, 0x2285, A],
        &[(A, 88, OUT), (A + 88, 72, OUT), (B, 9000, OUT), (C, 10, OUT), (D, 64, OUT)],
    );
    // NVME_IOCTL_ADMIN_CMD with data of 16 KiB.
    memory().words(A, &[0, 0, 0, B, 16384 << 32]).words(A + 64, &[0]).expect(
        nr::IOCTL,
        &[0, 0xc048_4e41, A],
        &[(A, 72, OUT), (A + 72, 8, OUT), (B, 16384, OUT)],
    );
    // DM_TABLE_STATUS, whose answer follows its head.
    memory().words(A, &[4, 16384 << 32]).expect(
        nr::IOCTL,
        &[0, 0xc138_fd0c, A],
        &[(A, 16, OUT), (A, 312, OUT), (A, 16384, OUT)],
    );
    // BLKPG; BLKREPORTZONE of 1000 zones.
    memory().words(A, &[1, 152, B]).expect(
        nr::IOCTL,
        &[0, 0x1269, A],
        &[(A, 24, IN), (B, 152, IN)],
    );
    memory().words(A, &[0, 1000]).expect(
        nr::IOCTL,
        &[0, 0xc010_1282, A],
        &[(A, 16, OUT), (A + 16, 64_000, OUT)],
    );
    // MMC_IOC_MULTI_CMD with one command that reads 32 blocks.
    let command = [0, 0, 0, 0, 512 << 32, 32, 0, 0, B];
    memory().words(A, &[1]).words(A + 8, &command).expect(
        nr::IOCTL,
        &[0, 0xc008_b301, A],
        &[(A, 8, IN), (A + 8, 72, OUT), (B, 512, OUT), (B, 16384, OUT)],
    );
    // FS_IOC_GETFSMAP with room for three records.
    memory().words(A, &[0, 3]).words(A + 184, &[0]).expect(
        nr::IOCTL,
        &[0, 0xc0c0_583b, A],
        &[(A, 192, OUT), (A + 192, 192, OUT)],
    );
    // BTRFS_IOC_TREE_SEARCH_V2, BTRFS_IOC_LOGICAL_INO_V2 and BTRFS_IOC_ENCODED_READ.
    memory().words(A, &[0; 13]).words(A + 104, &[65536]).expect(
        nr::IOCTL,
        &[0, 0xc070_9411, A],
        &[(A, 112, OUT), (A + 112, 65536, OUT)],
    );
    memory().words(A, &[7, 65536, 0, 0, 0, 0, B]).expect(
        nr::IOCTL,
        &[0, 0xc038_943b, A],
        &[(A, 56, OUT), (B, 65536, OUT)],
    );
    memory().words(A, &[B, 1]).words(B, &[C, 20_000]).expect(
        nr::IOCTL,
        &[0, 0x8080_9440, A],
        &[(A, 128, OUT), (B, 16, IN), (C, 20_000, OUT)],
    );
    // XFS_IOC_FSBULKSTAT of 100 inodes; XFS_IOC_ATTRMULTI_BY_HANDLE of one.
    memory().words(A, &[C, 100, B, D]).expect(
        nr::IOCTL,
        &[0, 0xc020_5865, A],
        &[(A, 32, IN), (C, 8, OUT), (B, 13_600, OUT), (D, 4, OUT)],
    );
    memory()
        .words(A, &[0; 7])
        .words(A + 56, &[1, B])
        .words(B, &[1, C, D, 60_000])
        .put(C, b"a\0")
        .expect(
            nr::IOCTL,
            &[0, 0x4048_587b, A],
            &[(A, 72, IN), (B, 32, OUT), (C, rest(C), IN), (D, 60_000, OUT)],
        );
}

#[test]
fn requests_about_mappings_and_keys_of_files() {
    // PAGEMAP_SCAN with room for 30 000 regions; PROCMAP_QUERY with a name, and no build id.
    memory().words(A, &[96, 1, 0, 0, 0, B, 30_000, 0, 0, 0, 0, 0]).expect(
        nr::IOCTL,
        &[3, 0xc060_6610, A],
        &[(A, 96, OUT), (B, 720_000, OUT)],
    );
    memory().words(A, &[0; 10]).words(A + 80, &[100, B, 0]).expect(
        nr::IOCTL,
        &[3, 0xc068_6611, A],
        &[(A, 104, OUT), (B, 100, OUT)],
    );
    // FS_IOC_ADD_ENCRYPTION_KEY of 64 bytes; FS_IOC_GET_ENCRYPTION_POLICY_EX.
    memory().words(A, &[0; 10]).words(A + 40, &[64]).expect(
        nr::IOCTL,
        &[3, 0xc050_6617, A],
        &[(A, 80, OUT), (A + 80, 64, IN)],
    );
    memory().words(A, &[24]).expect(
        nr::IOCTL,
        &[3, 0xc009_6616, A],
        &[(A, 8, OUT), (A + 8, 24, OUT)],
    );
}

#[test]
fn links_and_output_of_programs_of_the_kernel() {
    const LINK_CREATE: usize = 28;
    // Probes of two functions, by name, with a cookie each.
    memory()
        .words(A, &[0, 42, 2 << 32, B, 0, C, 0, 0])
        .words(B, &[D, D + 5])
        .put(D, b"open\0read\0")
        .expect(
            nr::BPF,
            &[LINK_CREATE, A, 64],
            &[
                (A, 64, OUT),
                (B, 16, IN),
                (C, 16, IN),
                (D, 1, IN),
                (D, rest(D), IN),
                (D + 5, 1, IN),
                (D + 5, rest(D + 5), IN),
            ],
        );
    // Probes of a file at three places.
    memory().words(A, &[0, 48, D, B, 0, C, 3, 0]).put(D, b"/bin/true\0").expect(
        nr::BPF,
        &[LINK_CREATE, A, 64],
        &[(A, 64, OUT), (B, 24, IN), (C, 24, IN), (D, rest(D), IN)],
    );
    // A link of another kind has numbers there. PROG_STREAM_READ_BY_FD.
    memory().words(A, &[0, 0, D, B, C]).expect(nr::BPF, &[LINK_CREATE, A, 64], &[(A, 64, OUT)]);
    memory().words(A, &[B, 9000, 7]).expect(nr::BPF, &[37, A, 24], &[(A, 24, IN), (B, 9000, OUT)]);
}

#[test]
fn requests_of_devices() {
    // USBDEVFS_SUBMITURB: a bulk transfer, and an isochronous one of two packets.
    memory().words(A, &[3, 0, B, 40_000, 0, 0, 0]).expect(
        nr::IOCTL,
        &[0, 0x8038_550a, A],
        &[(A, 56, KEEP), (B, 40_000, KEEP)],
    );
    memory().words(A, &[0, 0, B, 0, 2 << 32, 0, 0]).expect(
        nr::IOCTL,
        &[0, 0x8038_550a, A],
        &[(A, 56, KEEP), (A + 56, 24, KEEP), (B, 6144, KEEP)],
    );
    // The kernel goes on using these, and neither the data of USBDEVFS_BULK nor TCGETS.
    assert!(is_kept(0x8038_550a) && !is_kept(0xc018_5502) && !is_kept(0x5401));
    // USBDEVFS_IOCTL with _IOR('x', 1, 5000 bytes).
    memory().words(A, &[(2 << 30 | 5000 << 16 | 0x7801) << 32, B]).expect(
        nr::IOCTL,
        &[0, 0xc010_5512, A],
        &[(A, 16, IN), (B, 0x3fff, OUT)],
    );
    // I2C_RDWR with one message; SPI_IOC_MESSAGE with two transfers.
    memory().words(A, &[C, 1]).words(C, &[8192 << 32, D]).expect(
        nr::IOCTL,
        &[0, 0x0707, A],
        &[(A, 16, IN), (C, 16, IN), (D, 8192, OUT)],
    );
    memory().words(A, &[B, C, 4096, 0, D, 0, 10, 0]).expect(
        nr::IOCTL,
        &[0, 0x4040_6b00, A],
        &[(A, 32, IN), (B, 4096, IN), (C, 4096, OUT), (A + 32, 32, IN), (D, 10, IN)],
    );
    // SNDRV_PCM_IOCTL_WRITEI_FRAMES of 1000 frames; SNDRV_CTL_IOCTL_ELEM_LIST with room for 300.
    memory().words(A, &[0, B, 1000]).expect(
        nr::IOCTL,
        &[0, 0x4018_4150, A],
        &[(A, 24, OUT), (B, 32_000, OUT)],
    );
    memory().words(A, &[300 << 32, 0, B]).words(A + 72, &[0]).expect(
        nr::IOCTL,
        &[0, 0xc050_5510, A],
        &[(A, 80, OUT), (B, 19_200, OUT)],
    );
    // VIDIOC_QBUF of memory of the program, in one piece and with one plane; VIDIOC_DQBUF believes
    // no address.
    let buffer = |kind: usize, place: usize, length: usize| {
        [kind << 32, 0, 0, 0, 0, 0, 0, 2 << 32, place, length, 0]
    };
    memory().words(A, &buffer(1, C, 60_000)).expect(
        nr::IOCTL,
        &[0, 0xc058_560f, A],
        &[(A, 88, OUT), (C, 60_000, OUT)],
    );
    memory().words(A, &buffer(9, C, 1)).words(C, &[50_000 << 32, D]).expect(
        nr::IOCTL,
        &[0, 0xc058_560f, A],
        &[(A, 88, OUT), (C, 1, OUT), (C, 64, OUT), (D, 50_000, OUT)],
    );
    memory().words(A, &buffer(1, C, 60_000)).expect(
        nr::IOCTL,
        &[0, 0xc058_5611, A],
        &[(A, 88, OUT)],
    );
    // TUNSETIFF; SIOCETHTOOL.
    memory().expect(nr::IOCTL, &[0, 0x4004_54ca, A], &[(A, 40, OUT)]);
    memory().words(A, &[0, 0, B, 0, 0]).expect(
        nr::IOCTL,
        &[0, 0x8946, A],
        &[(A, 40, OUT), (B, 65535, OUT)],
    );
    // PERF_EVENT_IOC_QUERY_BPF with room for 64 programs.
    memory().words(A, &[64]).expect(
        nr::IOCTL,
        &[0, 0xc008_240a, A],
        &[(A, 8, OUT), (A + 8, 256, OUT)],
    );
}

#[test]
fn requests_of_graphics_processors() {
    // DRM_IOCTL_AMDGPU_CS with a list of three buffers; NV_ESC_RM_CONTROL.
    memory()
        .words(A, &[0, 1, B])
        .words(B, &[C])
        .words(C, &[6 << 32 | 6, D])
        .words(D, &[0, 3, A + 64])
        .expect(
            nr::IOCTL,
            &[0, 0xc018_6444, A],
            &[(A, 24, OUT), (B, 8, IN), (C, 16, IN), (D, 24, IN), (D, 24, OUT), (A + 64, 24, IN)],
        );
    memory().words(A, &[0, 0, B, 700]).expect(
        nr::IOCTL,
        &[0, 0xc020_462a, A],
        &[(A, 32, OUT), (B, 700, OUT)],
    );
}

#[test]
fn requests_of_virtual_machines() {
    // KVM_SET_CPUID2 with 256 entries, KVM_GET_DIRTY_LOG, KVM_CLEAR_DIRTY_LOG of 100 000 pages.
    memory().words(A, &[256]).expect(
        nr::IOCTL,
        &[0, 0x4008_ae90, A],
        &[(A, 8, OUT), (A + 8, 10_240, OUT)],
    );
    memory().words(A, &[0, B]).expect(
        nr::IOCTL,
        &[0, 0x4010_ae42, A],
        &[(A, 16, IN), (B, 255 * 4096, OUT)],
    );
    memory().words(A, &[100_000 << 32, 0, B]).expect(
        nr::IOCTL,
        &[0, 0xc018_aec0, A],
        &[(A, 24, IN), (B, 12_504, IN)],
    );
}

#[test]
fn commands_of_other_calls() {
    memory().expect(nr::FCNTL, &[3, 1, A], &[]);
    memory().expect(nr::FCNTL, &[3, 6, A], &[(A, 32, OUT)]);
    memory().expect(nr::FCNTL, &[3, 16, A], &[(A, 8, OUT)]);
    memory().expect(nr::ARCH_PRCTL, &[0x1002, A], &[]);
    memory().expect(nr::ARCH_PRCTL, &[0x1003, A], &[(A, 8, OUT)]);
    memory().expect(nr::SHMCTL, &[0, 2, A], &[(A, 112, OUT)]);
    memory().expect(nr::SEMCTL, &[0, 0, 16, A], &[]);
    memory().expect(nr::SEMCTL, &[0, 0, 13, A], &[(A, 64000, OUT)]);
    memory().words(A, &[B, 50]).expect(
        nr::PTRACE,
        &[0x4204, 1, 1, A],
        &[(A, 16, OUT), (B, 50, OUT)],
    );
    memory().expect(nr::PTRACE, &[30, 1, A, 0x1003], &[(A, 8, OUT)]);
    memory().expect(nr::KEYCTL, &[11, 1, A, 77], &[(A, 77, OUT)]);
    memory().expect(nr::GET_MEMPOLICY, &[A, B, 64, C, 2], &[(A, 4, OUT), (B, 8, OUT)]);
    memory().expect(nr::GET_MEMPOLICY, &[A, 0, 0, C, 3], &[(A, 4, OUT), (C, 1, IN)]);
    memory().expect(nr::IO_URING_ENTER, &[3, 1, 1, 1, A, 8], &[(A, 8, IN)]);
    memory().words(A, &[B, 8, C]).expect(
        nr::IO_URING_ENTER,
        &[3, 1, 1, 9, A, 24],
        &[(A, 24, IN), (B, 8, IN), (C, 16, IN)],
    );
    memory().words(A, &[B, 4096]).expect(
        nr::IO_URING_REGISTER,
        &[3, 0, A, 1],
        &[(A, 16, IN), (B, 4096, KEEP)],
    );
    let load = [2 << 32, B, C, 0];
    memory().words(A, &load).put(C, b"GPL\0").expect(
        nr::BPF,
        &[5, A, 32],
        &[(A, 32, OUT), (B, 16, IN), (C, rest(C), IN)],
    );
    memory().put(B, b"k\0").expect(nr::FSCONFIG, &[3, 2, B, A, 9], &[(A, 9, IN), (B, rest(B), IN)]);
}

#[test]
fn options_of_a_process() {
    let prctl = |args: &[usize], expected: &[(usize, usize, Kind)]| {
        memory().put(D, b"name\0").words(B, &[0; 13]).expect(nr::PRCTL, args, expected);
    };
    // GET_PDEATHSIG, GET_CHILD_SUBREAPER; SET_NAME, GET_NAME; GET_TID_ADDRESS.
    prctl(&[2, A], &[(A, 4, OUT)]);
    prctl(&[37, A], &[(A, 4, OUT)]);
    prctl(&[15, D], &[(D, rest(D), IN)]);
    prctl(&[16, A], &[(A, 16, OUT)]);
    prctl(&[40, A], &[(A, 8, OUT)]);
    // SET_MM: AUXV, MAP, MAP_SIZE, BRK.
    prctl(&[35, 12, A, 320], &[(A, 320, IN)]);
    prctl(&[35, 14, B, 104], &[(B, 104, IN)]);
    prctl(&[35, 15, A], &[(A, 4, OUT)]);
    prctl(&[35, 7, A, 320], &[]);
    // SCHED_CORE: GET, CREATE; SET_VMA; GET_AUXV.
    prctl(&[62, 0, 1, 2, A], &[(A, 8, OUT)]);
    prctl(&[62, 1, 1, 2, A], &[]);
    prctl(&[0x5356_4d41, 0, A, 4096, D], &[(D, rest(D), IN)]);
    prctl(&[0x4155_5856, A, 336, 0, 0], &[(A, 336, OUT)]);
    // GET_DUMPABLE, SET_NO_NEW_PRIVS, RSEQ_SLICE_EXTENSION and one that does not exist.
    for option in [3, 38, 79, 0x7fff_ffff] {
        prctl(&[option, A, A, A, A], &[]);
    }
    memory().expect(nr::ARCH_PRCTL, &[0x5005, A], &[(A, 8, OUT)]);
    memory().expect(nr::SECCOMP, &[2, 0, A], &[(A, 4, IN)]);
    memory().expect(nr::SECCOMP, &[3, 0, A], &[(A, 6, OUT)]);
    memory().expect(nr::SECCOMP, &[0, 0, A], &[]);
}

#[test]
fn commands_about_keys_queues_and_tracees() {
    let keyctl = |args: &[usize], expected: &[(usize, usize, Kind)]| {
        let named = memory().put(C, b"user\0").put(D, b"name\0").words(A, &[B, 7, 0]);
        named.words(A + 512, &[C, D, 9]).expect(nr::KEYCTL, args, expected);
    };
    let (kind, name) = ((C, rest(C), IN), (D, rest(D), IN));
    // JOIN, UPDATE, INSTANTIATE_IOV, SEARCH, RESTRICT_KEYRING, CAPABILITIES, REVOKE.
    keyctl(&[1, D], &[name]);
    keyctl(&[2, 1, A, 40], &[(A, 40, IN)]);
    keyctl(&[20, 1, A, 1, 0], &[(A, 16, IN), (B, 7, IN)]);
    keyctl(&[10, 1, C, D, 0], &[kind, name]);
    keyctl(&[29, 1, C, D], &[kind, name]);
    keyctl(&[31, A, 5], &[(A, 5, OUT)]);
    keyctl(&[3, A, A, A, A], &[]);
    // DH_COMPUTE with a hash; PKEY_QUERY; PKEY_SIGN.
    keyctl(
        &[23, A, B, 30, A + 512],
        &[(A, 12, IN), (A + 512, 56, IN), (B, 30, OUT), kind, (D, 9, IN)],
    );
    keyctl(&[24, 1, 0, D, A], &[(A, 56, OUT), name]);
    keyctl(&[27, A, D, B, C], &[(A, 40, IN), (B, 4096, IN), (C, 4096, OUT), name]);
    // Queues, sets and segments of System V: IPC_STAT, IPC_INFO, IPC_RMID.
    memory().expect(nr::MSGCTL, &[0, 2, A], &[(A, 120, OUT)]);
    memory().expect(nr::MSGCTL, &[0, 3, A], &[(A, 32, OUT)]);
    memory().expect(nr::SEMCTL, &[0, 0, 2, A], &[(A, 104, OUT)]);
    memory().expect(nr::SEMCTL, &[0, 0, 3, A], &[(A, 40, OUT)]);
    memory().expect(nr::SHMCTL, &[0, 3, A], &[(A, 72, OUT)]);
    for number in [nr::MSGCTL, nr::SEMCTL, nr::SHMCTL] {
        memory().expect(number, &[0, 0, 0, A], &[]);
    }
    // PEEKDATA, POKEDATA, GETREGS, PEEKSIGINFO, SECCOMP_GET_FILTER, GET_SYSCALL_INFO.
    let ptrace = |args: &[usize], expected: &[(usize, usize, Kind)]| {
        memory().expect(nr::PTRACE, args, expected);
    };
    ptrace(&[2, 1, B, A], &[(A, 8, OUT)]);
    ptrace(&[5, 1, B, A], &[]);
    ptrace(&[12, 1, B, A], &[(A, 216, OUT)]);
    ptrace(&[0x4209, 1, B, A], &[(A, 65535, OUT), (B, 16, IN)]);
    ptrace(&[0x420c, 1, 0, A], &[(A, 32768, OUT)]);
    ptrace(&[0x420e, 1, 88, A], &[(A, 88, OUT)]);
}

#[test]
fn arguments_that_are_numbers_for_other_commands() {
    // Q_QUOTAON names a file, Q_SYNC nothing, Q_GETQUOTA has a struct. The low byte is the type.
    let quota = |command: usize, data: &[(usize, usize, Kind)]| {
        let mut expected = vec![(B, rest(B), IN)];
        expected.extend(data);
        let named = || memory().put(B, b"/dev\0").put(C, b"quota\0");
        named().expect(nr::QUOTACTL, &[command << 8 | 1, B, 0, C], &expected);
        named().expect(nr::QUOTACTL_FD, &[3, command << 8 | 1, 0, C], &expected[1..]);
    };
    quota(0x80_0002, &[(C, rest(C), IN)]);
    quota(0x80_0001, &[]);
    quota(0x80_0007, &[(C, 160, OUT)]);
    memory().expect(nr::KCMP, &[1, 2, 7, 3, A], &[(A, 12, IN)]);
    memory().expect(nr::KCMP, &[1, 2, 0, 3, A], &[]);
    memory().put(A, b"now\0").expect(nr::REBOOT, &[0, 0, 0xa1b2_c3d4, A], &[(A, rest(A), IN)]);
    memory().expect(nr::REBOOT, &[0, 0, 0x0123_4567, A], &[]);
    memory().expect(nr::LANDLOCK_ADD_RULE, &[3, 1, A, 0], &[(A, 12, IN)]);
    memory().expect(nr::LANDLOCK_ADD_RULE, &[3, 2, A, 0], &[(A, 16, IN)]);
    // The number of a file system by its name, its name by its number, how many there are.
    memory().put(A, b"ext4\0").expect(nr::SYSFS, &[1, A, A], &[(A, rest(A), IN)]);
    memory().expect(nr::SYSFS, &[2, A, A], &[(A, 256, OUT)]);
    memory().expect(nr::SYSFS, &[3, A, A], &[]);
    // An argument that is an index of memory that the ring knows.
    memory().expect(nr::IO_URING_ENTER, &[3, 1, 1, 8 | 64, A, 64], &[]);
}

#[test]
fn insane_lengths_are_cut() {
    memory().expect(nr::READ, &[0, A, usize::MAX], &[(A, MAX_HOLD_BYTES, OUT)]);
    // Kernel addresses and the last byte of all are nobody's.
    memory().expect(nr::READ, &[0, usize::MAX, usize::MAX], &[]);
    memory().expect(nr::READ, &[0, usize::MAX - 5, 100], &[]);
    memory().expect(nr::READ, &[0, 0xffff_8000_0000_0000, 100], &[]);
    memory().expect(nr::OPEN, &[usize::MAX, 0], &[]);
    memory().expect(nr::EXECVE, &[usize::MAX, usize::MAX - 3, usize::MAX - 8], &[]);
    memory().expect(nr::WRITEV, &[0, usize::MAX - 15, 1], &[]);
    memory().expect(nr::SENDMSG, &[0, usize::MAX - 20, 0], &[]);
    memory().expect(nr::RECVMMSG, &[0, usize::MAX - 20, 5, 0, 0], &[]);
    memory().expect(nr::GETSOCKNAME, &[0, A, usize::MAX - 1], &[]);
    // At the end of user addresses.
    let last = (1 << 56) - 1;
    memory().expect(nr::READ, &[0, last, 100], &[(last, 1, OUT)]);
    memory().expect(nr::SENDMSG, &[0, last - 8, 0], &[(last - 8, 9, IN)]);
    memory().expect(nr::OPEN, &[last, 0], &[(last, 1, IN)]);
    memory().words(last - 15, &[A, 8]).expect(
        nr::WRITEV,
        &[0, last - 15, 1],
        &[(last - 15, 16, IN), (A, 8, IN)],
    );
    memory().words(last - 7, &[0]).expect(nr::EXECVE, &[0, last - 7, 0], &[(last - 7, 8, IN)]);
    memory().words(last - 15, &[A]).put(last - 7, &[1; 8]).put(A, b"a\0").expect(
        nr::EXECVE,
        &[0, last - 15, 0],
        &[(last - 15, 16, IN), (A, rest(A), IN)],
    );
    // Products that overflow.
    memory().expect(nr::MOVE_PAGES, &[0, usize::MAX / 2, A, 0, 0, 0], &[(A, MAX_HOLD_BYTES, IN)]);
    memory().expect(nr::MSGRCV, &[0, A, usize::MAX, 0, 0], &[(A, MAX_HOLD_BYTES, OUT)]);
    memory().expect(nr::MBIND, &[0, 0, 0, A, usize::MAX, 0], &[(A, MAX_HOLD_BYTES, IN)]);
    memory().expect(nr::SENDTO, &[0, A, 5, 0, B, usize::MAX], &[(A, 5, IN)]);
    memory().words(A, &[B, usize::MAX, last, 40]).expect(
        nr::READV,
        &[0, A, 2],
        &[(A, 32, IN), (B, MAX_HOLD_BYTES, OUT), (last, 1, OUT)],
    );
}

#[test]
fn a_second_attempt_takes_words_for_pointers() {
    let mut mem = memory().words(A, &[5, D, usize::MAX, B]).words(D, &[0]);
    scan(nr::IOCTL, &[3, 0xc030_0001, A, 0, 0, 0], 0, &mut mem);
    assert!(mem.held.contains(&(A, 48, OUT)));
    assert!(mem.held.contains(&(A, 2 * PAGE_SIZE, OUT)));
    assert!(mem.held.contains(&(D, rest(D) + PAGE_SIZE, OUT)));
    assert!(mem.held.contains(&(B, rest(B) + PAGE_SIZE, OUT)));
    // The request number is held as well, since it might be an address.
    assert_eq!(mem.held.len(), 5);
    // Later attempts hold more behind each word, and look at fewer words.
    let mut mem = memory().words(A, &[5, D]).words(A + 128, &[B]);
    scan(nr::IOCTL, &[3, 0xc030_0001, A, 0, 0, 0], 2, &mut mem);
    assert!(mem.held.contains(&(D, rest(D) + 127 * PAGE_SIZE, OUT)));
    assert!(mem.held.iter().all(|range| range.0 != B));
    // Arguments at the end of everything.
    let mut mem = memory();
    scan(
        nr::IOCTL,
        &[usize::MAX, (1 << 56) - 1, (1 << 56) - 8192, usize::MAX - 7, 1, 0],
        0,
        &mut mem,
    );
}

/// Numbers that calls and structs are made of, with those at which something changes.
fn any_word(random: &mut impl FnMut() -> usize) -> usize {
    let near =
        [0, A, B, C, D, 1 << 31, 1 << 32, 1 << 47, 1 << 56, 1 << 63, usize::MAX, A + PAGE_SIZE];
    match random() % 4 {
        0 => random() % 64,
        1 => random() >> (random() % 64),
        _ => near[random() % near.len()].wrapping_add(random() % 33).wrapping_sub(16),
    }
}

#[test]
fn whatever_the_arguments_are_the_walker_asks_for_what_can_be() {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize >> 8
    };
    for round in 0..10 {
        let mut mem = memory();
        for page in [A, B, C, D, A + PAGE_SIZE, usize::MAX >> 8] {
            let words: Vec<usize> = (0..512).map(|_| any_word(&mut random)).collect();
            mem = mem.words(page & !(PAGE_SIZE - 1), &words);
        }
        for number in 0..nr::COUNT {
            for _ in 0..8 {
                let args = [(); 6].map(|()| any_word(&mut random));
                mem.held.clear();
                mem.held_pages.clear();
                // The memory checks each range; the other half of the test is that the walk ends.
                walk(number, &args, &mut mem);
                if round == 0 {
                    scan(number, &args, number % 3, &mut mem);
                }
            }
        }
    }
}
